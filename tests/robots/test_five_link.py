"""The five-link walker: its published numbers, and both ways to its equations."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import five_link

import hybridctl as hc
from hybridctl.base.errors import AmbiguousEventError, SeveralContactSolutionsError
from hybridctl.mechanics.impacts.impact_expressions import build_constraints, build_impact_map
from hybridctl.mechanics.modes.mode_expressions import mode_field

Q = np.array([0.1, 0.75, 0.1, -0.4, 0.3, 0.2, 0.4])


@pytest.fixture(scope="module")
def walker():
    return five_link.system()


def test_it_has_the_numbers_of_its_source():
    robot = five_link.robot()
    assert robot.weight == pytest.approx((12.0 + 2 * 6.8 + 2 * 3.2) * 9.81)
    assert robot.armature == pytest.approx([0, 0, 0, 0.83, 0.83, 0.83, 0.83])
    assert robot.joint_names[3:] == five_link.JOINTS
    assert robot.nu == 4


def test_its_energy_is_that_of_five_rods_and_four_rotors():
    """Heights and speeds of the centres of mass by hand, at a random state."""
    robot, v = five_link.robot(), np.array([0.7, -0.2, 0.3, 1.0, -0.8, -1.1, 0.6])
    _, z, pitch, *_ = Q
    kinetic, potential = robot.energy(Q, v)
    rods = [(12.0, 1.33, [(0.24, pitch, v[2])])]
    for hip, knee in ((3, 4), (5, 6)):
        femur, tibia = pitch + Q[hip], pitch + Q[hip] + Q[knee]
        rates = v[2] + v[hip], v[2] + v[hip] + v[knee]
        rods += [
            (6.8, 0.47, [(-0.11, femur, rates[0])]),
            (3.2, 0.20, [(-0.4, femur, rates[0]), (-0.24, tibia, rates[1])]),
        ]
    expected_kinetic = 0.5 * 0.83 * float(v[3:] @ v[3:])
    expected_potential = 0.0
    for mass, inertia, chain in rods:
        along = sum(length * np.cos(angle) * rate for length, angle, rate in chain)
        down = sum(length * np.sin(angle) * rate for length, angle, rate in chain)
        speed = np.array([v[0] + along, v[1] - down])
        expected_kinetic += 0.5 * (mass * speed @ speed + inertia * chain[-1][2] ** 2)
        height = z + sum(length * np.cos(angle) for length, angle, _ in chain)
        expected_potential += mass * 9.81 * height
    assert kinetic == pytest.approx(expected_kinetic, rel=1e-12)
    assert potential == pytest.approx(expected_potential, rel=1e-12)


def test_a_heavier_torso_and_tilted_gravity_are_those_of_the_model():
    heavy = five_link.robot(torso=1.25)
    assert heavy.weight == pytest.approx((1.25 * 12.0 + 2 * 6.8 + 2 * 3.2) * 9.81)
    at_rest = np.zeros(7)
    swung = at_rest.copy()
    swung[2] = 2.0
    light = five_link.robot()
    spin = heavy.energy(Q, swung)[0] - light.energy(Q, swung)[0]
    assert spin == pytest.approx(0.25 * 0.5 * (1.33 + 12.0 * 0.24**2) * 4.0, rel=1e-12)
    falling = five_link.robot(tilt=0.1).free_acceleration(Q, at_rest, np.zeros(4))
    expected = [-9.81 * np.sin(0.1), -9.81 * np.cos(0.1), *np.zeros(5)]
    np.testing.assert_allclose(falling, expected, atol=1e-12)


def test_exchanged_legs_take_motions_to_motions(walker):
    """S f(x, u) = f(S x, W u), in the mode of the other foot; impacts too."""
    symmetry, random = five_link.exchange_legs(walker), np.random.default_rng(0)
    for mode in (five_link.LEFT_STANCE, ("slip+", "open"), ("open", "open")):
        x = np.concatenate((Q, random.normal(size=7)))
        if walker.mode(mode).project is not None:
            x = walker.mode(mode).project(x)
        u = random.normal(size=4)
        there = walker.mode(symmetry.mode(mode)).field(
            0.0, symmetry.matrix @ x, symmetry.inputs(4) @ u
        )
        here = symmetry.matrix @ walker.mode(mode).field(0.0, x, u)
        np.testing.assert_allclose(there, here, rtol=1e-10, atol=1e-10)
    assert symmetry.guard("left closes") == "right closes"
    assert symmetry.mode(five_link.LEFT_STANCE) == five_link.RIGHT_STANCE
    assert symmetry.contacts == (1, 0)


def test_expressions_of_a_stance_are_what_is_simulated(walker):
    mode = mode_field(walker.robot, walker.contacts, five_link.LEFT_STANCE)
    f = ca.Function("f", [mode.x, mode.u], [mode.field, mode.guards])
    x = walker.mode(five_link.LEFT_STANCE).project(np.concatenate((Q, np.ones(7))))
    u = np.array([10.0, -5.0, 3.0, 8.0])
    field, guards = (np.array(part).ravel() for part in f(x, u))
    expected = walker.mode(five_link.LEFT_STANCE).field(0.0, x, u)
    np.testing.assert_allclose(field, expected, rtol=1e-9, atol=1e-9)
    values = walker.outgoing(five_link.LEFT_STANCE).guards.values(0.0, x, u)
    np.testing.assert_allclose(guards, values, rtol=1e-9, atol=1e-9)


def test_a_touchdown_with_release_is_the_impact_of_the_law():
    """Where its impulses are in the cone and the other foot leaves, both give one velocity."""
    walker = five_link.system(friction=1.5)
    impact = build_impact_map(walker.robot, walker.contacts, five_link.RIGHT_STANCE)
    f = ca.Function("f", [impact.x], [impact.after, impact.impulses, impact.rates])
    v = np.array([0.8, 0.05, 0.2, 1.2, -0.6, -0.9, 0.3])
    q = _both_feet_down(walker)
    x = walker.mode(five_link.LEFT_STANCE).project(np.concatenate((q, v)))
    after, impulses, rates = (np.array(part).ravel() for part in f(x))
    assert impulses[1] > 0.0
    assert rates[0] > 0.0
    assert abs(impulses[3]) < 1.5 * impulses[1]
    reset = walker.outgoing(five_link.LEFT_STANCE).edge(("right closes",)).reset
    jump = reset(0.0, x, np.zeros(4))
    np.testing.assert_allclose(jump.state, after, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(jump.impulses, impulses[:2], rtol=1e-9, atol=1e-10)


def test_what_a_mode_holds_and_its_derivative(walker):
    held = walker.mode(five_link.LEFT_STANCE).held
    x = np.concatenate((Q, np.linspace(-1.0, 1.0, 7)))
    symbol = ca.SX.sym("x", 14)
    rows = build_constraints(walker.robot, walker.contacts, five_link.LEFT_STANCE, symbol)
    f = ca.Function("f", [symbol], [rows, ca.jacobian(rows, symbol)])
    values, slopes = (np.array(part) for part in f(x))
    np.testing.assert_allclose(held.residuals(x), values.ravel(), atol=1e-12)
    np.testing.assert_allclose(held.jacobian(x), slopes, atol=1e-12)


def _both_feet_down(walker) -> np.ndarray:
    """A posture with the left foot behind and the right one in front, on the ground."""
    q = np.array([0.0, 0.75, 0.1, 0.15, 0.2, -0.55, 0.3])
    for _ in range(20):
        gaps = walker.dynamics.gaps(q)
        q = q - np.linalg.pinv(walker.dynamics.gap_jacobian(q)) @ gaps
    return q


def _dropped(walker, x):
    return hc.simulate(walker, ("open", "open"), x, (0.0, 0.05), rtol=1e-12, atol=1e-12)


def _above_the_ground(walker, pitch) -> np.ndarray:
    """Legs apart, the lower foot 2 cm up, coming down."""
    q = np.array([0.0, 0.0, pitch, -0.05, 0.3, -0.25, 0.3])
    q[1] = 0.02 - walker.dynamics.gaps(q).min()
    return np.array([*q, 0.0, -0.3, *np.zeros(5)])


def test_both_feet_down_at_once_has_no_derivative_and_says_why():
    """Level, both stick; foot after foot, the second landing lifts the first."""
    walker = five_link.system(friction=0.9)
    run = _dropped(walker, _above_the_ground(walker, 0.0))
    (event,) = run.events
    assert event.guards == ("left closes", "right closes")
    assert event.mode_after == ("stick", "stick")
    assert (event.impulses > 0.0).all()
    orders = (
        r"\('left closes', 'right closes'\) leads to \('open', 'stick'\)",
        r"\('right closes', 'left closes'\) leads to \('stick', 'open'\)",
    )
    with pytest.raises(AmbiguousEventError, match=f"order matters.*({'|'.join(orders)})"):
        hc.linearize(walker, run)


@pytest.mark.parametrize("pitch", [0.02, -0.02])
def test_a_tilted_landing_has_the_derivative_of_differences(pitch):
    """h = 1e-6: truncation 1e-10, rounding 1e-14 / h = 1e-8, times entries of some 10."""
    walker = five_link.system(friction=0.9)
    x, random, h = _above_the_ground(walker, pitch), np.random.default_rng(0), 1e-6
    run = _dropped(walker, x)
    assert len(run.events) == 1
    exact = hc.linearize(walker, run).state_transition
    for way in random.normal(size=(2, 14)):
        ends = [_dropped(walker, x + s * h * way).final_state for s in (1.0, -1.0)]
        np.testing.assert_allclose((ends[0] - ends[1]) / (2.0 * h), exact @ way, atol=1e-6)


def _landing(walker, q, along):
    """On the left foot, 1 ms before the right one lands at 0.5 m/s down and `along` times that."""
    for _ in range(20):
        q = q - np.linalg.pinv(walker.dynamics.gap_jacobian(q)) @ walker.dynamics.gaps(q)
    rates = 0.5 * np.array([0.0, -1.0, 0.0, along])
    v = np.linalg.pinv(walker.dynamics.contact_set.jacobian(q)) @ rates
    x = walker.mode(five_link.LEFT_STANCE).project(np.concatenate((q - 0.001 * v, v)))
    assert walker.dynamics.gaps(x[:7])[1] == pytest.approx(5e-4, rel=0.01)
    return x


STAYS = np.array([0.0, 0.7100, -0.3124, -0.2675, 0.9326, 0.4498, 0.5316]), 2.0
EITHER = np.array([0.0, 0.4984, 0.6031, 0.0639, 0.4252, 0.0166, 0.5044]), 0.75


def test_a_standing_foot_that_stays_as_the_other_lands_has_the_derivative_of_differences():
    """Knees bent, on ground of friction 3: h = 1e-6 leaves 1e-14 / h = 1e-8, times entries of 10.

    Its force keeps the standing foot down; on ordinary ground that foot lets go.
    """
    walker = five_link.system(friction=3.0)
    x, mode = _landing(walker, *STAYS), walker.mode(five_link.LEFT_STANCE)

    def landed(start):
        return hc.simulate(walker, mode.key, start, (0.0, 0.005), rtol=1e-12, atol=1e-12)

    run = landed(x)
    (event,) = run.events
    assert (event.guards, event.mode_after) == (("right closes",), ("stick", "stick"))
    assert (event.impulses > 0.0).all()
    exact, h = hc.linearize(walker, run).state_transition, 1e-6
    held = mode.held.jacobian(x)
    for way in np.linalg.svd(held)[2][len(held) :]:
        ends = [landed(mode.project(x + s * h * way)).final_state for s in (1.0, -1.0)]
        along = (ends[0] - ends[1]) / (2.0 * h)
        np.testing.assert_allclose(along, exact @ way, atol=1e-7 * np.abs(exact).max())

    ordinary = five_link.system(friction=0.7)
    run = hc.simulate(ordinary, mode.key, x, (0.0, 0.01))
    assert run.events[0].mode_after[0] == "open"


def test_a_landing_that_the_law_leaves_open_is_refused_with_what_it_allows():
    walker = five_link.system(friction=2.5)
    x = _landing(walker, *EITHER)
    with pytest.raises(SeveralContactSolutionsError, match=r"\('stick', 'stick'\)"):
        hc.simulate(walker, five_link.LEFT_STANCE, x, (0.0, 0.01))
