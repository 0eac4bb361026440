"""A foot that tips over: contacts that share its load let go at the end of that, and not before."""

from dataclasses import replace

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

MASS, HEIGHT, GRAVITY, RATE = 1.0, 0.3, 9.81, 100.0
_INERTIAL = f"""<inertial><mass value="{MASS}"/>
  <inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>"""
CART = f"""
<robot name="cart">
  <link name="foot">{_INERTIAL}</link>
  <link name="load">{_INERTIAL}</link>
  <joint name="rail" type="prismatic"><parent link="foot"/><child link="load"/><axis xyz="1 0 0"/>
    <origin xyz="0 0 {HEIGHT}"/><limit lower="-9" upper="9" effort="99" velocity="99"/></joint>
</robot>
"""
REAR, MIDDLE, FRONT = -0.1, 0.1, 0.15
POINTS = [(REAR, -0.05), (REAR, 0.05), (MIDDLE, -0.05), (MIDDLE, 0.05), (FRONT, 0.0)]


def cart():
    """A foot with a point in front of its four corners, and a load that a motor moves above it."""
    robot = Robot.from_urdf(CART, root="floating")
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    contacts = [
        Contact(f"{i}", "foot", ground, offset=(*point, 0.0), friction=2.0)
        for i, point in enumerate(POINTS)
    ]
    return contact_system(robot, contacts)


@pytest.mark.parametrize("rate", [RATE, 0.9 * RATE])
def test_a_foot_tips_when_the_centre_of_pressure_is_below_its_foremost_point(rate):
    r"""The force on the load is -c t, the load at x = -c t^3 / (6 m) and the pressure at

    :math:`(m g x + c t h) / (2 m g)`. The least loads leave the rear before: it is held at none
    while it and the middle could bear it all, and all four corners let go at once.
    """
    system = cart()
    still = np.concatenate((system.mode(("stick",) * 5).dynamics.robot.neutral(), np.zeros(7)))
    push = lambda t, x: np.array([-rate * t])  # noqa: E731
    weight = MASS * GRAVITY
    moment = [-weight * rate / (6.0 * MASS), 0.0, rate * HEIGHT, -2.0 * weight * FRONT]
    roots = np.roots(moment)
    tips = min(r.real for r in roots if abs(r.imag) < 1e-12 and r.real > 0.0)
    run = hc.simulate(system, ("stick",) * 5, still, (0.0, 1.01 * tips), push, max_step=0.05)
    (event,) = run.events
    # all but the foremost point may pull by 1e-9 of the weight, which is known to be at a border
    pull = 1e-9 * 2.0 * weight * sum(FRONT - x for x, _ in POINTS)
    growth = rate * HEIGHT - weight * rate * tips**2 / (2.0 * MASS)
    assert event.time == pytest.approx(tips, abs=pull / growth)
    assert {f"{i} opens" for i in range(4)} <= set(event.guards)
    assert event.mode_after[:4] == ("open",) * 4
    mode, arc = system.mode(event.mode_before), run.arcs[0]
    early = 0.9 * tips
    loads = mode.dynamics.acceleration(*np.split(arc(early), [8]), push(early, None), mode.key)
    assert np.abs(loads.forces[:2]).max() < 1e-9 * weight
    assert loads.forces[2:].min() > 0.05 * weight
    guards = dict(zip(mode.guard_names, mode.contact_guards.values(loads, None), strict=True))
    assert [guards[f"{i} {kind}"] for i in range(2) for kind in ("opens", "slips")] == [0.0] * 4
    # The loads that let go are zero, so that accelerations are those of before.
    jump = hc.linearize(system, run).jumps[0]
    for order in (range(len(event.guards)), range(len(event.guards))[::-1]):
        np.testing.assert_array_equal(jump.matrix(order), np.eye(14))


@pytest.mark.parametrize(("beyond", "is_held"), [(1e-13, True), (-1e-13, True), (1e-11, False)])
def test_loads_inside_their_cones_by_rounding_are_at_the_border(beyond, is_held):
    """Loads count as inside up to 1e-12 of the largest: what their guards say agrees with that."""
    mode = cart().mode(("stick",) * 5)
    q = mode.dynamics.robot.neutral()
    point = mode.dynamics.acceleration(q, np.zeros(7), np.zeros(1), mode.key)
    assert point.solution.inside_cones
    assert point.solution.cone_forces is None
    largest, friction = point.forces.max(), np.zeros((5, 2))
    friction[0, 0] = 2.0 * point.forces[0] + beyond * largest
    values = mode.contact_guards.values(replace(point, friction=friction), None)
    slips = values[mode.guard_names.index("0 slips")]
    # rounding of forces of some 10 N
    assert slips == pytest.approx(0.0 if is_held else -beyond * largest, abs=1e-14 * (not is_held))


@pytest.mark.parametrize(
    "rate",
    [
        0.6818181818181819 * RATE,
        pytest.param(0.9545454545454546 * RATE, marks=pytest.mark.slow),
        pytest.param(1.4090909090909092 * RATE, marks=pytest.mark.slow),
    ],
)
def test_forces_at_the_end_of_an_arc_are_those_of_its_side(rate):
    """All corners let go at once. Rounding used to decide whether the forces were beyond that."""
    system = cart()
    mode = system.mode(("stick",) * 5)
    still = np.concatenate((mode.dynamics.robot.neutral(), np.zeros(7)))
    push = lambda t, x: np.array([-rate * t])  # noqa: E731
    run = hc.simulate(system, mode.key, still, (0.0, 0.2), push, terminal=lambda event: True)
    end, weight = run.events[0].time, 2.0 * MASS * GRAVITY
    normal, friction = (
        run.outputs(name, end, side="left") for name in ("normal_force", "friction_force")
    )
    # loads count as inside their cones up to 1e-9 of the weight (see above)
    assert normal.min() >= -1e-9 * weight
    assert (np.linalg.norm(friction, axis=1) - 2.0 * normal).max() <= 1e-9 * weight
    # and they are the limit: forces change by less than 10 of weight and push in a second, and
    # the time is known to 1e-8 s
    early = end - 1e-6
    allowed = 1e-5 * (weight + rate)
    np.testing.assert_allclose(normal, run.outputs("normal_force", early), atol=allowed)
    (_, _, sampled), *_ = run.sampled_outputs(1e-2)
    np.testing.assert_array_equal(sampled["normal_force"][-1], normal)
    pandas = pytest.importorskip("pandas")
    table = run.to_dataframe()
    assert isinstance(table, pandas.DataFrame)
    row = table[table["mode"] == table["mode"].iloc[0]].iloc[-1]
    loads = [row[f"normal_force.{contact.name} [N]"] for contact in system.contacts]
    np.testing.assert_allclose(loads, normal, atol=1e-9 * weight)
