"""A block is lifted off the ground by a spring whose upper end rises: its corners let go."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

MASS, WIDTH, STIFFNESS, HAND, GRAVITY = 1.0, 0.2, 50.0, 1e4, 9.81


def lifted_block(speed: float, center: float, friction: float, **options):
    """Return the flow of a block that is lifted, and its start.

    A hand of 10 t, whose weight is borne, rises at a speed (m/s) above the block. Its spring pulls
    a tenth less than the weight of the block at first. The center of mass is off the middle by
    `center` (m), so that the corners let go in turn.
    """
    limit = '<limit lower="-9" upper="9" effort="1e9" velocity="99"/>'
    small = '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
    turn = '<inertia ixx="4e-3" iyy="4e-3" izz="4e-3" ixy="0" ixz="0" iyz="0"/>'
    joints = [
        ("lift", "prismatic", "world", "hand", "0 0 1"),
        ("along", "prismatic", "hand", "slide", "1 0 0"),
        ("spring", "prismatic", "slide", "pivot", "0 0 1"),
        ("pitch", "revolute", "pivot", "block", "0 1 0"),
    ]
    links = [
        '<link name="world"/><link name="slide"/><link name="pivot"/>',
        f'<link name="hand"><inertial><mass value="{HAND}"/>{small}</inertial></link>',
        f'<link name="block"><inertial><origin xyz="{center} 0 0"/>'
        f'<mass value="{MASS}"/>{turn}</inertial></link>',
    ]
    links += [
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<axis xyz="{axis}"/>{limit}</joint>'
        for name, kind, parent, child, axis in joints
    ]
    robot = Robot.from_urdf(
        f'<robot name="lifted">{"".join(links)}</robot>',
        actuated=("lift",),
        stiffness={"spring": STIFFNESS},
    )
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    corners = [
        Contact(name, "block", ground, offset=(side, 0.0, -0.05), friction=friction)
        for name, side in (("left", -0.5 * WIDTH), ("right", 0.5 * WIDTH))
    ]
    tension = 0.9 * MASS * GRAVITY
    rise = 0.1 * MASS * GRAVITY / (STIFFNESS * speed)  # time until the spring bears the weight
    flow = hc.differentiable(
        contact_system(robot, corners),
        ("stick", "stick"),
        (0.0, 1.3 * rise + 0.05),
        holds=1,
        events=1,
        parameters=("stiffness:spring", "mass:block", "friction"),
        **options,
    )
    height = 0.05 + tension / STIFFNESS
    x0 = np.array([height, 0.0, 0.05 - height, 0.0, speed, 0.0, -speed, 0.0])
    return flow, x0, np.array([[HAND * GRAVITY + tension]])


@pytest.mark.parametrize(
    "speed",
    [0.1, pytest.param(0.02, marks=pytest.mark.slow), pytest.param(0.4, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(("center", "friction"), [(0.0, 0.4), (0.002, 0.4), (0.002, 0.02)])
def test_a_block_that_is_lifted_has_the_gradient_of_the_flow(speed, center, friction):
    """By how far the hand is up, its speed, its force, and by stiffness, mass and friction.

    In the middle both corners let go together. Off it one does, and the other begins to slide
    before it lets go, too; with little friction it slides at once.
    """
    flow, x0, u = lifted_block(speed, center, friction)
    p = flow.nominal_parameters
    tape = flow.run(x0, u, p)
    first = tape.trajectory.guard_events[0]
    assert first.guards == (("left opens", "right opens") if center == 0.0 else ("left opens",))
    by_states = np.random.default_rng(0).normal(size=tape.states.shape)
    found = tape.vjp(by_states, [1.0])

    def value(x, u, p):
        run = flow.run(x, u, p)
        return (by_states * run.states).sum() + run.event_times.sum()

    up, faster = np.eye(8)[0] - np.eye(8)[2], np.eye(8)[4] - np.eye(8)[6]
    lines = [(found.state @ d, d, 0.0 * u, 0.0 * p) for d in (up, faster)]
    lines += [(found.inputs[0, 0], 0.0 * x0, np.ones((1, 1)), 0.0 * p)]
    lines += [(found.parameters[j], 0.0 * x0, 0.0 * u, np.eye(3)[j]) for j in range(3)]
    for ours, dx, du, dp in lines:
        errors = []
        for h in (1e-4, 1e-5):
            one, other = (value(x0 + s * dx, u + s * du, p + s * dp) for s in (h, -h))
            errors.append((one - other) / (2.0 * h) - ours)
        errors.append((100.0 * errors[1] - errors[0]) / 99.0)  # extrapolated to h = 0
        # Steps leave (k h)^2 with k up to 1 / speed, and eps / h: the best one counts.
        assert np.abs(errors).min() <= 1e-6 * max(1.0, abs(ours))
