"""The biped of [Bder] 3.2: physics, closed forms, derivatives."""

from functools import partial
from itertools import permutations

import numpy as np
import pytest
from differences import assert_derivative, central
from hybridctl.robots import biped
from hybridctl.robots.biped import AIR, MODES, BipedParameters
from hypothesis import given
from hypothesis import strategies as st

import hybridctl as hc
from hybridctl.base import errors
from hybridctl.hybrid.model import JumpPoint

LEFT, RIGHT = "left closes", "right closes"
ONLY_LEFT, ONLY_RIGHT = ("closed", "open"), ("open", "closed")
STANCE = ("closed", "closed")
NO_INPUT = np.zeros(0)
UNEQUAL = BipedParameters(
    mass=2.0, inertia=0.3, spread=0.9, length=0.7, curvature=0.4, stiffness=80.0, damping=3.0
)
SYSTEMS = {name: partial(biped.soft, damping=name) for name in ("none", "linear", "by_feet")}
SYSTEMS["rigid"] = biped.rigid


def field(system, key, x):
    return system.mode(key).field(0.0, x, NO_INPUT)


def output(system, key, x, name):
    return system.mode(key).outputs(0.0, x, NO_INPUT)[name]


def normals(q, p):
    """Da (2, 3) by differences of the gap; error h^2 + eps / h = 1e-10."""
    return central(lambda d: biped.gaps(q + d, p), 3, 1e-5)


def unit_normals(q, p):
    """Da over its length by x and y, as gaps of the rigid ground have it."""
    n = normals(q, p)
    return n / np.linalg.norm(n[:, :2], axis=1, keepdims=True)


def masses(p):
    return np.array([p.mass, p.mass, p.inertia])


def on_ground(p, x=0.0):
    """q with both feet on the ground, the body at x; the pitch by bisection."""

    def low_and_high(pitch):
        left, right = biped.gaps([x, 0.0, pitch], p)
        return left - right, left

    a, b = -0.7, 0.7
    rising = low_and_high(b)[0] > 0
    for _ in range(50):
        middle = 0.5 * (a + b)
        a, b = (a, middle) if (low_and_high(middle)[0] > 0) == rising else (middle, b)
    return np.array([x, -low_and_high(a)[1], a])


# --- geometry and free fall


@given(
    x=st.floats(-2, 2), y=st.floats(-2, 2), pitch=st.floats(-3, 3), psi=st.floats(0.1, 1.4),
    length=st.floats(0.1, 2.0), c=st.floats(-0.3, 1.0),
)  # fmt: skip
def test_the_gap_is_the_height_of_a_foot_above_the_hill(x, y, pitch, psi, length, c):
    p = BipedParameters(spread=psi, length=length, curvature=c, height=100.0)
    body, turn = x + 1j * y, np.exp(1j * pitch)
    feet = [body + length * turn * np.exp(1j * angle) for angle in (np.pi + psi, -psi)]
    expected = [foot.imag + c * foot.real**2 for foot in feet]
    np.testing.assert_allclose(biped.gaps([x, y, pitch], p), expected, atol=1e-13)


@pytest.mark.parametrize("p", [BipedParameters(), UNEQUAL])
def test_at_the_start_both_gaps_are_positive_and_equal(p):
    expected = p.height - p.length * np.sin(p.spread)
    expected += p.curvature * (p.length * np.cos(p.spread)) ** 2
    assert expected > 0.0
    np.testing.assert_allclose(biped.gaps(biped.start(p)[:3], p), expected, rtol=1e-14)
    for name, make in SYSTEMS.items():
        guards = make(p).outgoing(AIR).guards
        values = guards.values(0.0, biped.start(p), NO_INPUT)
        steep = 2.0 * p.curvature * p.length * np.cos(p.spread) if name == "rigid" else 0.0
        np.testing.assert_allclose(
            values, expected / np.hypot(1.0, steep), rtol=1e-13, err_msg=name
        )
        assert guards.names == (LEFT, RIGHT)


@pytest.mark.parametrize("name", SYSTEMS)
def test_free_fall(name):
    q, v = np.array([0.2, 3.0, -0.4]), np.array([0.5, 1.0, 0.8])
    traj = hc.simulate(SYSTEMS[name](UNEQUAL), AIR, [*q, *v], (0.0, 0.5))
    for t in np.linspace(0.0, 0.5, 6):
        exact = [*(q + v * t), *v]
        exact[1] -= UNEQUAL.gravity * t**2 / 2
        exact[4] -= UNEQUAL.gravity * t
        np.testing.assert_allclose(traj.arcs[0](float(t)), exact, atol=1e-13)  # rounding


@pytest.mark.parametrize("p", [BipedParameters(), UNEQUAL])
@pytest.mark.parametrize("name", SYSTEMS)
def test_both_feet_touch_at_once_and_when_free_fall_says(name, p):
    time, state = biped.touchdown(p)
    event = hc.simulate(SYSTEMS[name](p), AIR, biped.start(p), (0.0, time + 0.01)).events[0]
    assert event.guards == (LEFT, RIGHT)
    assert event.mode_after == STANCE
    gap = biped.gaps(biped.start(p)[:3], p)[0]
    assert event.time == pytest.approx(np.sqrt(2 * gap / p.gravity), abs=1e-13)
    assert time == pytest.approx(event.time, abs=1e-13)
    np.testing.assert_allclose(event.state_before, state, atol=1e-12)
    np.testing.assert_allclose(biped.gaps(state[:3], p), 0.0, atol=1e-14)


# --- soft ground

TILTED = np.array([0.05, 1.0, 0.2, 0.1, -0.5, -0.4])


def drop(damping, p=UNEQUAL):
    traj = hc.simulate(
        biped.soft(p, damping=damping), AIR, TILTED, (0.0, 1.6), rtol=1e-11, atol=1e-11
    )
    happened = {name for event in traj.events for name in event.guards}
    assert {LEFT, RIGHT, "left opens", "right opens"} <= happened
    return traj


def energies(system, arc, times):
    return np.array([output(system, arc.mode, arc(float(t)), "energy")[0] for t in times])


def test_springs_conserve_energy_through_all_contacts():
    traj, system = drop("none"), biped.soft(UNEQUAL, damping="none")
    modes = {arc.mode for arc in traj.arcs}
    assert len(modes) >= 3
    energy = [energies(system, a, np.linspace(a.start, a.end, 9)) for a in traj.arcs]
    scale = UNEQUAL.mass * UNEQUAL.gravity * UNEQUAL.height
    np.testing.assert_allclose(np.concatenate(energy), energy[0][0], atol=1e-8 * scale)


@pytest.mark.parametrize("damping", ["linear", "by_feet"])
def test_dampers_take_what_their_power_says(damping):
    """E' = - sum beta adot^2; ten Gauss points per integrator step."""
    traj, system = drop(damping), biped.soft(UNEQUAL, damping=damping)
    nodes, weights = np.polynomial.legendre.leggauss(10)
    lost_in_contact = 0.0
    for arc in traj.arcs:
        closed = [j for j, mode in enumerate(arc.mode) if mode == "closed"]
        beta = UNEQUAL.damping * (len(closed) / 2 if damping == "by_feet" else 1.0)
        loss = 0.0
        for a, b in zip(arc.times[:-1], arc.times[1:], strict=True):
            for node, weight in zip(nodes, weights, strict=True):
                x = arc(float(a + (b - a) * (node + 1) / 2))
                rate = (normals(x[:3], UNEQUAL) @ x[3:])[closed]
                loss += weight * (b - a) / 2 * beta * (rate @ rate)
        before, after = energies(system, arc, (arc.start, arc.end))
        assert before - after == pytest.approx(loss, abs=1e-7)  # 1e-10 in Da, 1e-11 in the flow
        lost_in_contact += loss
    assert lost_in_contact > 1.0


@pytest.mark.parametrize(("key", "share"), [(ONLY_LEFT, 0.5), (ONLY_RIGHT, 0.5), (STANCE, 1.0)])
def test_damping_by_feet_is_linear_damping_with_a_share_of_beta(key, share):
    other = BipedParameters(**{**vars(UNEQUAL), "damping": share * UNEQUAL.damping})
    x = np.array([0.1, 0.2, -0.3, 0.4, -2.0, 0.6])
    np.testing.assert_allclose(
        field(biped.soft(UNEQUAL, damping="by_feet"), key, x),
        field(biped.soft(other, damping="linear"), key, x),
        rtol=1e-14,
    )


@pytest.mark.parametrize("key", MODES)
def test_soft_guards_are_positive_inside_their_mode(key):
    """With any signs of the gaps: positive gap in a mode where open, negative where closed."""
    system = biped.soft(UNEQUAL)
    guards = system.outgoing(key).guards
    x = np.array([0.1, 0.4, 0.3, 0.0, 0.0, 0.0])
    expected = [
        g if mode == "open" else -g for g, mode in zip(biped.gaps(x[:3], UNEQUAL), key, strict=True)
    ]
    np.testing.assert_allclose(guards.values(0.0, x, NO_INPUT), expected, rtol=1e-14)
    events = ["closes" if mode == "open" else "opens" for mode in key]
    assert guards.names == tuple(f"{f} {e}" for f, e in zip(biped.FEET, events, strict=True))


# --- the two orders of a simultaneous landing


def saltation(system, guard, before, after, x):
    """I + (f+ - f-) Dg / (Dg f-), by hand from field values."""
    guards = system.outgoing(before).guards
    row = guards.jacobian(0.0, x, NO_INPUT).state[guards.names.index(guard)]
    f, g = field(system, before, x), field(system, after, x)
    return np.eye(6) + np.outer(g - f, row) / (row @ f)


def two_orders(system, x):
    left_first = saltation(system, RIGHT, ONLY_LEFT, STANCE, x) @ saltation(
        system, LEFT, AIR, ONLY_LEFT, x
    )
    right_first = saltation(system, LEFT, ONLY_RIGHT, STANCE, x) @ saltation(
        system, RIGHT, AIR, ONLY_RIGHT, x
    )
    return left_first, right_first


def difference_of_orders(p):
    """[Bder] (19) with l, m and c, which are 1 there."""
    c, s2 = np.cos(p.spread), np.sin(2 * p.spread)
    row = np.zeros((6, 6))
    row[4, 0] = -4 * p.damping * p.curvature * p.length * c / p.mass
    row[4, 2] = -2 * p.damping * (p.curvature * p.length**2 * s2 + p.length * c) / p.mass
    return row


@pytest.mark.parametrize("p", [BipedParameters(), UNEQUAL, BipedParameters(length=1.0, spread=0.5)])
def test_orders_with_damping_by_feet_differ_by_the_closed_form(p):
    left_first, right_first = two_orders(biped.soft(p, damping="by_feet"), biped.touchdown(p)[1])
    expected = difference_of_orders(p)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(left_first - right_first, expected, atol=1e-13)


def test_the_closed_form_is_the_printed_one_for_unit_length_and_mass():
    psi, beta = 0.5, 1.3
    printed = np.zeros((6, 6))
    printed[4, 0] = -4 * beta * np.cos(psi)
    printed[4, 2] = -2 * beta * (np.sin(2 * psi) + np.cos(psi))
    p = BipedParameters(length=1.0, spread=psi, damping=beta)
    left_first, right_first = two_orders(biped.soft(p, damping="by_feet"), biped.touchdown(p)[1])
    np.testing.assert_allclose(left_first - right_first, printed, atol=1e-13)


@pytest.mark.parametrize("p", [BipedParameters(), UNEQUAL])
@pytest.mark.parametrize("damping", ["none", "linear"])
def test_orders_agree_with_linear_damping_and_are_trivial_without(p, damping):
    """[Bder] (17): the product is I - beta M^-1 sum Da^T Da in the lower left block."""
    x = biped.touchdown(p)[1]
    left_first, right_first = two_orders(biped.soft(p, damping=damping), x)
    np.testing.assert_allclose(left_first, right_first, atol=1e-13)
    expected, n = np.eye(6), normals(x[:3], p)
    expected[3:, :3] -= (damping == "linear") * p.damping * (n.T @ n) / masses(p)[:, None]
    np.testing.assert_allclose(left_first, expected, atol=1e-9)  # normals by differences


# --- rigid ground


def landing(system, key, fired, x):
    return system.outgoing(key).edge(fired).reset(0.0, x, NO_INPUT)


def coupling(p, q):
    """Da_left M^-1 Da_right^T."""
    n = normals(q, p)
    return (n[0] / masses(p)) @ n[1]


LONG = BipedParameters(length=1.0, height=2.0)
CASES = [
    (AIR, (LEFT,)),
    (AIR, (RIGHT,)),
    (AIR, (LEFT, RIGHT)),
    (ONLY_LEFT, (RIGHT,)),
    (ONLY_RIGHT, (LEFT,)),
]


@pytest.mark.parametrize("p", [BipedParameters(), UNEQUAL, LONG])
@pytest.mark.parametrize(("key", "fired"), CASES)
def test_impacts_are_plastic_push_and_take_energy(p, key, fired):
    rng, system = np.random.default_rng(1), biped.rigid(p)
    for _ in range(10):
        q = on_ground(p, rng.uniform(-0.1, 0.1))
        n = unit_normals(q, p)
        # approach (2,) of the feet: zero where closed; any motion along the ground
        approach = [0.0 if mode == "closed" else -rng.uniform(0.1, 3.0) for mode in key]
        v = np.linalg.pinv(n) @ approach + rng.normal() * np.linalg.svd(n)[2][2]
        jump = landing(system, key, fired, np.array([*q, *v]))
        after, push = jump.state[3:], jump.impulses
        np.testing.assert_array_equal(jump.state[:3], q)
        np.testing.assert_allclose(masses(p) * (after - v), n.T @ push, atol=1e-8)
        speeds = n @ after
        took_part = [f"{f} closes" in fired or m == "closed" for f, m in zip(
            biped.FEET, key, strict=True)]  # fmt: skip
        for j, mode in enumerate(jump.mode):
            if mode == "closed":
                assert abs(speeds[j]) < 1e-8
            else:
                assert push[j] == 0.0
                assert speeds[j] > 0.0 or not took_part[j]
        assert (push >= 0.0).all()
        loss = 0.5 * masses(p) @ (v**2 - after**2)
        # of a plastic impact: half of the momentum that the ground takes, times the approach
        assert loss == pytest.approx(-0.5 * push @ approach, abs=1e-7)
        assert loss > 0.0


def test_level_landing_stops_both_feet():
    p = BipedParameters()
    x = biped.touchdown(p)[1]
    jump = landing(biped.rigid(p), AIR, (LEFT, RIGHT), x)
    assert jump.mode == STANCE
    np.testing.assert_allclose(jump.state[3:], 0.0, atol=1e-14)
    upwards = unit_normals(x[:3], p)[:, 1]
    np.testing.assert_allclose(upwards * jump.impulses, -p.mass * x[4] / 2, rtol=1e-9)  # half each


def composed(system, order, x):
    """Landings of single feet one after the other, in the mode that each leaves."""
    mode, state = AIR, x
    for guard in order:
        jump = landing(system, mode, (guard,), state)
        mode, state = jump.mode, jump.state
    return mode, state


def test_single_impacts_commute_where_the_feet_push_each_other_down():
    """Da M^-1 Da^T < 0: the second impact presses on the first foot, so both stop."""
    system, x = biped.rigid(LONG), biped.touchdown(LONG)[1]
    assert coupling(LONG, x[:3]) < -1.0
    joint = landing(system, AIR, (LEFT, RIGHT), x)
    for order in permutations((LEFT, RIGHT)):
        mode, state = composed(system, order, x)
        assert mode == joint.mode == STANCE
        np.testing.assert_allclose(state, joint.state, atol=1e-14)


def test_single_impacts_do_not_commute_where_the_second_lifts_the_first_foot():
    p = BipedParameters()
    system, x = biped.rigid(p), biped.touchdown(p)[1]
    a = coupling(p, x[:3])
    n = normals(x[:3], p)
    own = (n[0] / masses(p)) @ n[0]
    assert 0.0 < a < own
    for order, mode, lifted in (
        ((LEFT, RIGHT), ONLY_RIGHT, 0),
        ((RIGHT, LEFT), ONLY_LEFT, 1),
    ):
        reached, state = composed(system, order, x)
        assert reached == mode
        # the first impact leaves the second foot with (1 - a/own) of its approach
        rise = -x[4] * (1 - a / own) * a / own
        assert (n @ state[3:])[lifted] == pytest.approx(rise, abs=1e-8)


@pytest.mark.parametrize("p", [BipedParameters(), LONG])
def test_a_nearly_level_drop_comes_to_rest_on_both_feet(p):
    x = biped.start(p) + 1e-3 * np.eye(6)[2]
    end = biped.touchdown(p)[0] + 0.2
    traj = hc.simulate(biped.rigid(p), AIR, x, (0.0, end), on_zeno="rest")
    assert traj.final_mode == STANCE
    level = hc.simulate(biped.rigid(p), AIR, biped.start(p), (0.0, end)).final_state
    assert np.abs(traj.final_state - level).max() < 10 * 1e-3  # of the size of the deviation


@pytest.mark.parametrize("p", [BipedParameters(), UNEQUAL])
@pytest.mark.parametrize("key", MODES[1:])
def test_closed_feet_follow_the_ground_without_friction(p, key):
    """A frictionless constraint does no work; N v = 0 keeps the gap."""
    q = on_ground(p, 0.05)
    closed = [j for j, mode in enumerate(key) if mode == "closed"]
    n = normals(q, p)[closed]
    away = np.array([0.02, 0.1, 0.0])
    q = q + away * (len(closed) == 1)
    for _ in range(20):
        n = normals(q, p)[closed]
        q = q - np.linalg.pinv(n) @ biped.gaps(q, p)[closed]
    v = np.array([0.1, 0.0, 0.05])
    v = v - np.linalg.pinv(n) @ n @ v
    system = biped.rigid(p)
    traj = hc.simulate(system, key, [*q, *v], (0.0, 0.1), rtol=1e-11, atol=1e-11)
    arc = traj.arcs[0]
    assert arc.end > 0.01
    for t in np.linspace(arc.start, arc.end, 7):
        x = arc(float(t))
        np.testing.assert_allclose(biped.gaps(x[:3], p)[closed], 0.0, atol=1e-9)
        forces = output(system, key, x, "normal_force")
        acceleration = field(system, key, x)[3:]
        pushed = masses(p) * acceleration + [0.0, p.mass * p.gravity, 0.0]
        np.testing.assert_allclose(unit_normals(x[:3], p).T @ forces, pushed, atol=1e-8)
    before, after = (output(system, key, arc(t), "energy").sum() for t in (arc.start, arc.end))
    assert after == pytest.approx(before, abs=1e-9)


def test_a_closed_foot_opens_where_its_force_falls_through_zero():
    """Sliding ever faster down the flank of the hill, the biped leaves the ground."""
    p = BipedParameters()
    q = on_ground(p)
    v = np.array([0.9, 0.0, 0.0])
    n = normals(q, p)
    v = v - np.linalg.pinv(n) @ n @ v
    system = biped.rigid(p)
    traj = hc.simulate(system, STANCE, [*q, *v], (0.0, 1.5), on_zeno="rest")
    event = traj.events[0]
    assert event.guards[0].endswith("opens")
    foot = biped.FEET.index(event.guards[0].split()[0])
    assert abs(output(system, STANCE, event.state_before, "normal_force")[foot]) < 1e-7
    np.testing.assert_array_equal(event.state_after, event.state_before)


# --- derivatives


@pytest.mark.parametrize("key", MODES)
@pytest.mark.parametrize("name", SYSTEMS)
def test_fields_and_guards_have_the_derivatives_of_differences(name, key):
    system = SYSTEMS[name](UNEQUAL)
    mode, guards = system.mode(key), system.outgoing(key).guards
    for x in np.random.default_rng(3).normal(scale=0.4, size=(2, 6)):
        jacobian = mode.jacobian(0.0, x, NO_INPUT).state
        assert_derivative(lambda d, x=x: mode.field(0.0, x + d, NO_INPUT), jacobian)
        derivative = guards.jacobian(0.0, x, NO_INPUT)
        assert_derivative(lambda d, x=x: guards.values(0.0, x + d, NO_INPUT), derivative.state)
        np.testing.assert_array_equal(derivative.time, 0.0)


@pytest.mark.parametrize("p", [BipedParameters(), LONG])
@pytest.mark.parametrize(("key", "fired"), [case for case in CASES if len(case[1]) == 1])
def test_impacts_have_the_derivatives_of_differences(p, key, fired):
    reset = biped.rigid(p).outgoing(key).edge(fired).reset
    x = biped.touchdown(p)[1] + np.array([0.01, 0.0, 0.02, 0.1, 0.0, 0.05])
    if key != AIR:
        x = landing(biped.rigid(p), AIR, (LEFT if key == ONLY_LEFT else RIGHT,), x).state
    jacobian = reset.calc_diff(JumpPoint(0.0, x, NO_INPUT))
    assert_derivative(lambda d: reset(0.0, x + d, NO_INPUT).state, jacobian.state)
    assert jacobian.time.shape == (6,)
    assert jacobian.input.shape == (6, 0)


@pytest.mark.parametrize("p", [BipedParameters(), LONG])
def test_an_impact_of_both_feet_puts_them_on_the_ground(p):
    """By differences to where a foot is above it: second order in steps, which are extrapolated."""
    system = biped.rigid(p)
    reset = system.outgoing(AIR).edge((LEFT, RIGHT)).reset
    x = biped.touchdown(p)[1] + np.array([0.0, 0.0, 0.0, 0.1, 0.0, 0.05])
    jacobian, h = reset.calc_diff(JumpPoint(0.0, x, NO_INPUT)).state, 1e-4
    before = reset(0.0, x, NO_INPUT).state

    def slope(step):
        return (reset(0.0, x + step, NO_INPUT).state - before) / h

    for direction in np.random.default_rng(4).normal(size=(8, 6)):
        gaps = system.dynamics.gaps(x[:3] + h * direction[:3])
        d = direction if gaps.max() > -gaps.min() else -direction
        found = 4.0 * slope(0.5 * h * d) - slope(h * d)
        np.testing.assert_allclose(found, jacobian @ d, atol=1e-6)


# --- what is wrong is said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mass": 0.0}, "mass must be greater than 0"),
        ({"inertia": -1.0}, "inertia"),
        ({"spread": 2.0}, "spread must be less than pi/2"),
        ({"stiffness": -1.0}, "stiffness"),
        ({"damping": np.nan}, "damping must be finite"),
        ({"height": 0.2}, "height must be above 0.22"),
        ({"curvature": "flat"}, "curvature must be a number"),
    ],
)
def test_parameters_are_checked(changes, message):
    with pytest.raises(errors.InputError, match=message):
        BipedParameters(**changes)


def test_unknown_names_are_errors():
    with pytest.raises(errors.UnknownNameError, match="by_feet"):
        biped.soft(damping="by_foot")
    for make in SYSTEMS.values():
        with pytest.raises(errors.UnknownNameError, match="flying"):
            hc.simulate(make(BipedParameters()), "flying", biped.start(), (0.0, 1.0))
