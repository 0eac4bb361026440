"""Sensitivity to parameters against differences of whole flows of robots that are rebuilt."""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.robots import ball, block, rrr_door
from sensitivity.test_boundary import ball_on_the_cone

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import contact_system
from hybridctl.mechanics.parameters import parameter_derivatives
from hybridctl.sensitivity.parameters import parameter_sensitivity

RUN = {"rtol": 1e-12, "atol": 1e-12}
MAP = {"rtol": 1e-10, "atol": 1e-10}


def assert_sensitivity(f, expected):
    """Central differences of a flow along one direction, extrapolated for errors of h^2.

    1e-11 / h is left of the flow and its events.
    """
    coarse, fine = ((f(h) - f(-h)) / (2.0 * h) for h in (1e-2, 1e-3))
    found, size = (100.0 * fine - coarse) / 99.0, np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=2e-7 * size)


def one_sided(f, direction, h):
    """The derivative of f at 0 along a direction: two one-sided differences, extrapolated."""
    slopes = [(f(s * direction) - f(0.0 * direction)) / s for s in (h, 0.5 * h)]
    return 2.0 * slopes[1] - slopes[0]


def test_height_of_a_ball_after_bounces_as_its_closed_form_says():
    e, g, bounces, span = 0.8, 9.81, 3, 1.9
    p = ball.BallParameters(slope=0.0, restitution=e, gravity=g)
    system = ball.system(p)
    run = hc.simulate(system, ("open",), [0.0, 1.0, 0.3, 0.0], (0.0, span), **RUN)
    names = ("restitution:slope", "mass:ball")
    d = parameter_derivatives(ball.robot(p), ball.contacts(p), names)
    sensitivity = parameter_sensitivity(system, run, d, **MAP)
    assert len(run.events) == bounces
    fall = np.sqrt(2.0 * g)
    k = np.arange(bounces)
    last = fall / g + 2.0 * fall / g * (e ** k[1:]).sum()
    last_e = 2.0 * fall / g * (k * e ** (k - 1.0)).sum()
    flight, speed, speed_e = span - last, e**bounces * fall, bounces * e ** (bounces - 1) * fall
    height_e = speed_e * flight - (speed - g * flight) * last_e
    rate_e = speed_e + g * last_e
    np.testing.assert_allclose(
        sensitivity.matrix, [[0.0, 0.0], [height_e, 0.0], [0.0, 0.0], [rate_e, 0.0]], atol=1e-9
    )


# The block: coefficients of friction of both corners, and its mass


BLOCK = ("friction", "static_friction", "mass")


def block_parts(dp, **options):
    p = block.BlockParameters(**options)
    static = p.friction if p.static_friction is None else p.static_friction
    kinetic, static, mass = np.array([p.friction, static, p.mass]) + dp
    robot = block.robot(replace(p, mass=mass), actuated=True)
    # the mass alone changes, not the inertia that `BlockParameters` makes of it
    robot = robot.replace({3: (mass, np.zeros(3), block_inertia(p))}, robot.passive)
    return robot, block.contacts(replace(p, friction=kinetic, static_friction=static))


def block_inertia(p):
    return block.robot(p).inertia(3)[2]


def block_map(modes, x0, span, push, **options):
    """The end of a run as a function of dp, and its sensitivity to dp."""

    def run(dp):
        system = contact_system(*block_parts(dp, **options))
        return hc.simulate(system, modes, x0, span, push, **RUN)

    nominal, (robot, contacts) = run(np.zeros(3)), block_parts(np.zeros(3), **options)
    names = [f"{kind}:{c.name}" for kind in BLOCK[:2] for c in contacts] + ["mass:block"]
    d = parameter_derivatives(robot, contacts, names)
    sensitivity = parameter_sensitivity(contact_system(robot, contacts), nominal, d, **MAP)
    both = np.array(
        [[1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    )
    return nominal, lambda dp: run(dp).final_state, sensitivity, both


@pytest.mark.parametrize("end", [0.3, 0.35])
def test_a_block_that_lands_corner_by_corner_slides_and_stops(end):
    start = [0.0, 0.3, 0.2, 1.0, 0.0, 0.0]
    nominal, f, sensitivity, both = block_map(
        ("open", "open"), start, (0.0, end), None, static_friction=0.4
    )
    assert nominal.final_mode == {0.3: ("slip+", "slip+"), 0.35: ("stick", "stick")}[end]
    direction = np.array([0.2, -0.1, 0.3])
    assert_sensitivity(lambda h: f(h * direction), direction @ sensitivity.derivative(both))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_friction_at_the_border_of_stick_and_slip(sign):
    """An impact only just stops a ball: with less friction it slips briefly, and then rests too."""
    system, x0 = ball_on_the_cone(0.5, 1.0)
    run = hc.simulate(system, ("open",), x0, (0.0, 0.3), **RUN)
    assert run.events[0].report.border
    p = ball.BallParameters(friction=0.5, slope=0.3, restitution=0.0)
    d = parameter_derivatives(ball.robot(p), ball.contacts(p), ("friction:slope",))
    change, x = np.array([sign]), np.array([0.0, 0.0, 0.3, 0.1])
    expected = parameter_sensitivity(system, run, d, **MAP).derivative(change, x)

    def f(dp):
        changed = ball.system(replace(p, friction=0.5 + float(dp[0])))
        start = x0 + sign * float(dp[0]) * x
        return hc.simulate(changed, ("open",), start, (0.0, 0.3), **RUN).final_state

    found = one_sided(f, change, 1e-4)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5 * np.abs(expected).max())


def test_a_plank_that_lands_level_with_both_corners_at_the_border():
    """Pushed in the air; once the second corner hits, friction holds both against each other."""
    _, f, sensitivity, both = block_map(
        ("open", "open"),
        [0.0, 0.035, 0.0, 0.0, -1.0, 0.0],
        (0.0, 0.06),
        lambda t, x: np.array([1.0, 0.0, 0.0]),
        width=0.1,
        height=0.02,
        friction=0.5,
    )
    direction = np.array([0.2, 0.3, 0.3])
    expected = sensitivity.derivative(direction @ both)
    assert abs(expected[0]) > 1e-5  # the heavier it is, the less far it gets in the air
    found = one_sided(f, direction, 1e-3)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_a_block_that_is_pushed_until_it_slips_stops_and_slips_back():
    nominal, f, sensitivity, both = block_map(
        ("stick", "stick"),
        [0.0, 0.05, 0.0, 0.0, 0.0, 0.0],
        (0.0, 1.2),
        lambda t, x: np.array([5.0 * np.sin(4.0 * t), 0.0, 0.0]),
        static_friction=0.4,
    )
    assert [event.guards[0] for event in nominal.events] == [
        "left slips+",
        "left sticks",
        "left slips-",
    ]
    expected = sensitivity.derivative(both)
    assert np.abs(expected[:, 0]).min() > 0.05  # all of them matter
    direction = np.array([0.2, -0.3, 0.3])
    assert_sensitivity(lambda h: f(h * direction), direction @ expected)


# The door


DOOR = {
    "mass:foot": "foot_mass",
    "mass:upper_arm": "upper_arm_mass",
    "inertia_zz:forearm": "forearm_inertia",
    "stiffness:door_hinge": "hinge_stiffness",
    "damping:door_hinge": "hinge_damping",
}


class Door:
    """The door from 0.03 s before the impact of its reference, under the input of that."""

    def __init__(self, offset, after, contacts=(), **options):
        self.base = rrr_door.DoorParameters(**options)
        self.of_contacts = contacts
        self.names = (*DOOR, *(f"{kind}:{c}" for kind in contacts for c in rrr_door.CORNERS))
        # changes of a few per cent at the largest step
        self.scale = np.array([getattr(self.base, name) for name in DOOR.values()])
        self.scale = np.append(self.scale, np.full(len(self.names) - len(DOOR), 0.3))
        reference = build(rrr_door.system(), rrr_door.DoorParameters(), Design())
        event, arc = reference.events[0], reference.arcs[0]
        begin, self.span = event.time - 0.03, (event.time - 0.03, event.time + after)
        self.start = arc(begin) + np.append([0.0, 0.0, offset], np.zeros(5))
        self.push = lambda t, x: arc.input(min(t, event.time))
        self.nominal = self.run(np.zeros(len(self.names)))

    def parts(self, z):
        change = dict(zip(self.names, self.scale * z, strict=True))
        p = replace(
            self.base, **{own: getattr(self.base, own) + change[n] for n, own in DOOR.items()}
        )
        contacts = [
            replace(
                c,
                **{k: getattr(c, k) + change[f"{k}:{c.name}"] for k in self.of_contacts},
                static_friction=None,
            )
            for c in rrr_door.contacts(p)
        ]
        return rrr_door.robot(p), contacts

    def run(self, z):
        system = contact_system(*self.parts(z))
        return hc.simulate(system, OPEN, self.start, self.span, self.push, **RUN)

    def end(self, z):
        return self.run(z).final_state

    def sensitivity(self):
        robot, contacts = self.parts(np.zeros(len(self.names)))
        d = parameter_derivatives(robot, contacts, self.names)
        return parameter_sensitivity(contact_system(robot, contacts), self.nominal, d, **MAP)


CASES = {
    "plastic": ((0.03, 0.03), {}, 2),
    "bouncing": ((0.03, 0.01, ("restitution",)), {"restitution": 0.3}, 3),
    "rough": ((0.03, 0.03, ("friction",)), {"friction": 0.3}, 2),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("plastic", marks=pytest.mark.slow),
        "bouncing",
        pytest.param("rough", marks=pytest.mark.slow),
    ],
)
def test_the_door_that_is_hit_corner_by_corner(name):
    arguments, options, events = CASES[name]
    door = Door(*arguments, **options)
    assert [len(event.guards) for event in door.nominal.events] == [1] * events
    sensitivity = door.sensitivity()
    expected = sensitivity.matrix * door.scale
    direction = np.random.default_rng(0).uniform(-1.0, 1.0, len(door.names))
    assert_sensitivity(lambda h: door.end(h * direction), expected @ direction)
    lin = sensitivity.linearization
    jumps = tuple(replace(jump, field_change=0.0 * jump.field_change) for jump in lin.jumps)
    resets = replace(sensitivity, linearization=replace(lin, jumps=jumps)).matrix * door.scale
    # Steps of a closed contact take off what leaves its surface, also of a wrong jump. What is left
    # is ten thousand times what the differences above allow.
    assert np.abs(resets - expected).max() > 1e4 * 2e-7 * np.abs(expected).max()


@pytest.mark.parametrize("rough", [False, True])
def test_the_door_that_is_hit_with_both_corners_at_once(rough):
    """One-sided: a change of a parameter decides which corner is first."""
    options = {"friction": 0.3} if rough else {}
    door = Door(0.0, 0.03, ("friction",) if rough else (), **options)
    assert len(door.nominal.events[0].guards) == 2
    sensitivity = door.sensitivity()
    with pytest.raises(InputError, match="piecewise linear"):
        _ = sensitivity.matrix
    orders = set()
    for i, sign in ((0, 1.0), (0, -1.0), (3, 1.0)):
        direction = sign * np.eye(len(door.names))[i]
        expected = sensitivity.derivative(door.scale * direction)
        found = one_sided(door.end, direction, 3e-3)
        # the remainder of extrapolation is h^2 times a third derivative of order 0.1
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-6)
        orders.add(door.run(3e-3 * direction).events[0].guards)
    assert {("corner_1 closes",), ("corner_2 closes",)} <= orders


@pytest.mark.slow
def test_parameters_start_and_input_together_and_under_feedback():
    """Deviations of a feedback loop with all three changes, by name and by vector."""
    door = Door(0.03, 0.03)
    gain = np.hstack((60.0 * np.eye(3), np.zeros((3, 1)), 8.0 * np.eye(3), np.zeros((3, 1))))
    rng = np.random.default_rng(1)
    dp, dx, du = 0.1 * rng.normal(size=5), 0.02 * rng.normal(size=8), rng.normal(size=3)
    dx[3] = 0.0
    nominal = door.nominal

    class Tracking:
        def __init__(self, h):
            self.h = h

        def law(self, history):
            arc = nominal.arcs[len(history.events)]

            def u(t, x):
                # beyond the arc, where it is a nominal motion that goes on
                return door.push(t, x) + self.h * du - gain @ (x - beyond(arc, t))

            return u

    def end(h):
        system = contact_system(*door.parts(h * dp))
        start = door.start + h * dx
        return hc.simulate(system, OPEN, start, door.span, Tracking(h), **RUN).final_state

    loop = door.sensitivity().closed_loop([gain] * len(nominal.arcs))
    by_name = dict(zip(door.names, door.scale * dp, strict=True))
    expected = loop.derivative(by_name, dx, lambda t: du)
    np.testing.assert_array_equal(loop.derivative(door.scale * dp, dx, lambda t: du), expected)
    # where arcs differ from the nominal one the reference has a kink: see the extrapolation
    found = one_sided(lambda h: end(h[0]), np.ones(1), 1e-3)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def beyond(arc, t):
    """The state of an arc, continued along its last or first rate."""
    at = float(np.clip(t, arc.start, arc.end))
    h = 1e-6
    inside = at - h if t > arc.end else at + h
    if at == t:
        return arc(t)
    return arc(at) + (t - at) * (arc(at) - arc(inside)) / (at - inside)
