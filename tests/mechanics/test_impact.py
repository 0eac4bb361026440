"""The impact law: balance of momentum, complementarity, energy, and an independent solution."""

from itertools import chain, combinations

import numpy as np
import pytest
from hybridctl.robots import block
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, contact_system
from hybridctl.mechanics.contact_law import CoulombProblem, solve
from hybridctl.mechanics.impacts.impact import impact, solve_accumulated_impacts
from hybridctl.mechanics.modes.selection import select_modes
from mechanics.models import SLOPE, door, pair, random_state

CUBE = """<robot name="cube"><link name="cube"><inertial><mass value="0.37"/>
<inertia ixx="0.00081" iyy="0.00081" izz="0.00081" ixy="0" ixz="0" iyz="0"/></inertial></link>
</robot>"""


def enumerate_active_sets(mass, v, rows, e):
    """The Newton impact by trying every set of acting contacts."""
    inverse = np.linalg.inv(mass)
    count = len(rows)
    subsets = chain.from_iterable(combinations(range(count), k) for k in range(count + 1))
    for subset in map(list, subsets):
        impulse = np.zeros(count)
        if subset:
            j = rows[subset]
            impulse[subset] = np.linalg.lstsq(
                j @ inverse @ j.T, -(1.0 + e[subset]) * (j @ v), rcond=None
            )[0]
        after = v + inverse @ rows.T @ impulse
        if (impulse >= -1e-9).all() and (rows @ after + e * (rows @ v) >= -1e-9).all():
            return after
    raise AssertionError("no active set is consistent")


def momentum_missed(dynamics, q, v, result):
    """The largest entry of M (v+ - v-) - J^T Lambda, without friction."""
    change = dynamics.robot.mass_matrix(q) @ (result.velocity_after - v)
    return np.abs(change - dynamics.gap_jacobian(q).T @ result.impulses).max()


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 8),
    restitution=st.floats(0.0, 1.0),
)
def test_laws_hold_for_any_set_of_contacts(seed, count, restitution):
    rng = np.random.default_rng(seed)
    robot = Robot.from_urdf(CUBE, root="floating")
    ground = Plane((0, 0, 0), (0, 0, 1))
    corners = 0.05 * (np.indices((2, 2, 2)).reshape(3, 8).T * 2.0 - 1.0)
    chosen = rng.choice(8, size=count, replace=False)
    dynamics = ContactDynamics(
        robot,
        [
            Contact(f"{i}", "cube", ground, offset=corners[i], restitution=restitution)
            for i in chosen
        ],
    )
    q = robot.integrate(robot.neutral(), rng.normal(size=6))
    v = rng.normal(size=6)
    result = impact(dynamics, q, v, tuple(range(count)))
    before, after = dynamics.gap_rates(q, v), dynamics.gap_rates(q, result.velocity_after)
    scale = max(1.0, np.abs(before).max())
    # The solver certifies 1e-9 of the scale of the problem; velocities here are of order one.
    assert momentum_missed(dynamics, q, v, result) <= 1e-10
    assert (result.impulses >= 0.0).all()
    assert (after + restitution * before >= -1e-9 * scale).all()
    assert np.abs(result.impulses * (after + restitution * before)).max() <= 1e-9 * scale
    assert result.energy_loss >= -1e-9
    expected = enumerate_active_sets(
        robot.mass_matrix(q), v, dynamics.gap_jacobian(q), np.full(count, restitution)
    )
    np.testing.assert_allclose(result.velocity_after, expected, atol=1e-7 * scale)


@pytest.mark.parametrize("seed", range(20))
def test_different_restitutions_still_satisfy_complementarity(seed):
    dynamics = pair("floating", SLOPE)
    q, v, _ = random_state(dynamics, seed)
    result = impact(dynamics, q, v, (0, 1, 2, 3))
    e = dynamics.restitution
    slack = dynamics.gap_rates(q, result.velocity_after) + e * dynamics.gap_rates(q, v)
    assert slack.min() >= -1e-9
    assert np.abs(slack * result.impulses).max() <= 1e-9
    assert momentum_missed(dynamics, q, v, result) <= 1e-10


def test_an_elastic_impact_of_one_contact_keeps_the_energy():
    dynamics = pair("floating", SLOPE)
    q, v, _ = random_state(dynamics, seed=1)
    v = v if dynamics.gap_rates(q, v)[2] < 0.0 else -v
    result = impact(dynamics, q, v, (2,))
    robot = dynamics.robot
    before, after = robot.energy(q, v)[0], robot.energy(q, result.velocity_after)[0]
    assert result.impulses[2] > 0.0
    assert abs(after - before) <= 1e-12 * before


def test_the_reported_energy_loss_is_the_difference_of_kinetic_energies():
    dynamics = door()
    q, v, _ = random_state(dynamics, seed=2)
    v = -dynamics.gap_jacobian(q)[0]
    result = impact(dynamics, q, v, (0,))
    loss = dynamics.robot.energy(q, v)[0] - dynamics.robot.energy(q, result.velocity_after)[0]
    assert abs(result.energy_loss - loss) <= 1e-12 * max(loss, 1.0)


def test_impulses_that_close_a_contact_which_would_part_count_in_the_energy():
    """A block turns about one of its corners, while the other one is at zero gap as well."""
    dynamics = block.system().dynamics
    q = np.zeros(dynamics.robot.nq)
    q[1] -= dynamics.gaps(q)[0]
    assert np.abs(dynamics.gaps(q)).max() < 1e-12
    rates = dynamics.gap_jacobian(q)
    turn = np.linalg.lstsq(rates, np.array([1.0, -0.5]))[0]  # one parts, the other one hits
    result = solve_accumulated_impacts(dynamics, turn, (0, 1), dynamics.copy_terms(q, turn))
    after = result.velocity_after
    np.testing.assert_allclose(dynamics.gap_rates(q, after), 0.0, atol=1e-12)
    assert result.impulses.min() < -1e-3
    assert "open" not in result.states
    assert "open" not in result.modes
    loss = dynamics.robot.energy(q, turn)[0] - dynamics.robot.energy(q, after)[0]
    assert result.energy_loss == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("restitution", [0.0, 0.6])
@pytest.mark.parametrize("slip", [(3.0, 0.0), (-2.0, 1.0)])
def test_rest_of_a_contact_that_leaves_is_what_its_bounces_make_of_sliding(restitution, slip):
    """A point on level ground leaves at w: it flies, lands, bounces, and is slower for it.

    Its bounces last T = 2 w / g / (1 - e) and push by (1 + e) w / (1 - e) m. Had it been on the
    ground from the start, the ground had pushed by m g T: by m w more, with its friction. So rest
    at the start is sliding that is faster by mu w.
    """
    friction, w, g = 0.4, 1e-3, 9.81
    ground = Plane((0, 0, 0), (0, 0, 1))
    foot = Contact("foot", "cube", ground, friction=friction, restitution=restitution)
    dynamics = ContactDynamics(Robot.from_urdf(CUBE, root="floating"), [foot])
    q, v = dynamics.robot.neutral(), np.array([*slip, w, 0.0, 0.0, 0.0])
    direction = np.array(slip) / np.hypot(*slip)
    duration = 2.0 * w / g / (1.0 - restitution)
    bounced = np.hypot(*slip) - friction * (1.0 + restitution) / (1.0 - restitution) * w
    at_once = solve_accumulated_impacts(dynamics, v, (0,), dynamics.copy_terms(q, v))
    after = at_once.velocity_after
    slid = after[:2] - friction * g * duration * direction
    np.testing.assert_allclose(slid, bounced * direction, rtol=1e-12)
    np.testing.assert_allclose(after[2:], 0.0, atol=1e-15)
    assert at_once.impulses[0] == pytest.approx(-0.37 * w, rel=1e-12)
    change = 0.37 * (after[:2] - slip)
    np.testing.assert_allclose(at_once.friction_impulses[0], change, rtol=1e-12, atol=1e-15)


def test_redundant_contacts_have_a_unique_velocity_and_impulses_of_least_norm():
    """A cube falls flat on four corners: rank three, equal impulses m v / 4 by symmetry."""
    robot = Robot.from_urdf(CUBE, root="floating")
    ground = Plane((0, 0, 0), (0, 0, 1))
    corners = [(x, y, -0.05) for x in (-0.05, 0.05) for y in (-0.05, 0.05)]
    dynamics = ContactDynamics(
        robot, [Contact(f"{i}", "cube", ground, offset=c) for i, c in enumerate(corners)]
    )
    q = robot.neutral()
    q[2] = 0.05
    fall = np.array([0.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    result = impact(dynamics, q, fall, (0, 1, 2, 3))
    np.testing.assert_allclose(result.velocity_after, np.zeros(6), atol=1e-12)
    np.testing.assert_allclose(result.impulses, np.full(4, 0.37 / 4), rtol=1e-12)
    resting = dynamics.acceleration(q, np.zeros(6), np.zeros(0), ("closed",) * 4)
    np.testing.assert_allclose(resting.acceleration, np.zeros(6), atol=1e-12)
    np.testing.assert_allclose(resting.forces, np.full(4, 0.37 * 9.81 / 4), rtol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_rounding_does_not_choose_among_solutions_of_redundant_contacts(seed):
    """A cube that stands on an edge and slides falls on its face: its sliding directions differ.

    So friction depends on how the four corners share the impulse, of which the law leaves a
    continuum, and the solution is that of least norm. Velocities that differ by rounding led to
    other ends of the continuum, up to 0.1 rad/s apart.
    """
    ground, rng = Plane((0, 0, 0), (0, 0, 1)), np.random.default_rng(seed)
    corners = [(x, y, -0.05) for x in (-0.05, 0.05) for y in (-0.05, 0.05)]
    contacts = [
        Contact(f"{i}", "cube", ground, offset=c, friction=0.18) for i, c in enumerate(corners)
    ]
    dynamics = ContactDynamics(Robot.from_urdf(CUBE, root="floating"), contacts)
    q = dynamics.robot.neutral()
    q[2] = 0.05
    speed = rng.uniform(1e-3, 1.0)
    turn = 2.0 * rng.normal()
    v = np.array([*(0.3 * rng.normal(size=2)), -0.5 * speed, 0.0, speed / 0.1, turn])
    results = [impact(dynamics, q, v + 1e-13 * rng.normal(size=6), (0, 1, 2, 3)) for _ in range(10)]
    after = np.array([result.velocity_after for result in results])
    assert np.ptp(after, axis=0).max() < 1e-9


def test_separating_contacts_take_no_part():
    dynamics = door()
    q, _, _ = random_state(dynamics, seed=7)
    rows = dynamics.gap_jacobian(q)
    v = np.linalg.pinv(rows) @ [-1.0, 2.0]
    result = impact(dynamics, q, v, (0, 1))
    separation = dynamics.gap_rates(q, result.velocity_after)
    assert result.impulses[0] > 0.0
    assert result.impulses[1] * separation[1] == pytest.approx(0.0, abs=1e-12)


def without_friction(delassus, free):
    """Coulomb's law of contacts that do not rub."""
    k = len(free)
    none = (np.zeros(0, dtype=int),) * k
    return CoulombProblem(delassus, np.array(free), none, np.zeros(k), np.zeros(k), (None,) * k)


def test_a_tie_is_reported():
    """Contact 1 is touched without being pressed: neither impulse nor separation."""
    result = solve(without_friction(np.eye(2), [-1.0, 0.0]))
    np.testing.assert_allclose(result.forces, [1.0, 0.0], atol=1e-15)
    assert result.border == (1,)


def test_contradicting_contacts_have_no_solution():
    with pytest.raises(NoContactSolutionError, match="no rates keep all contacts from penetrat"):
        solve(without_friction(np.array([[1.0, -1.0], [-1.0, 1.0]]), [-1.0, -1.0]))


def test_selection_agrees_with_the_accelerations_it_promises():
    """Kept contacts push and do not separate; released ones separate."""
    dynamics = door()
    for seed in range(30):
        q, v, u = random_state(dynamics, seed)
        kept = select_modes(dynamics, q, v, 10.0 * u, ("closed", "closed"))
        result = dynamics.acceleration(q, v, 10.0 * u, kept)
        s = dynamics.stabilization
        separation = (
            dynamics.gap_jacobian(q) @ result.acceleration
            + dynamics.copy_terms(q, v).drift[: len(dynamics.contacts)]
            + s * (2.0 * dynamics.gap_rates(q, v) + s * dynamics.gaps(q))
        )
        scale = max(1.0, np.abs(separation).max(), result.forces.max())
        assert (result.forces >= -1e-9 * scale).all()
        assert (separation >= -1e-9 * scale).all()


ROD = """<robot name="rod"><link name="rod"><inertial><mass value="1.0"/>
<inertia ixx="0.001" iyy="0.03" izz="0.03" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""


def test_an_end_that_bounces_off_is_not_struck_where_its_guard_fires_with_another():
    """With it Newton's law would send it back into the floor, at a part of its own speed."""
    robot, floor = Robot.from_urdf(ROD, root="sagittal"), Plane((0, 0, 0), (0, 0, 1))
    ends = [
        Contact(name, "rod", floor, offset=(x, 0.0, 0.0), restitution=0.5)
        for name, x in (("left", -0.3), ("right", 0.3))
    ]
    system = contact_system(robot, ends)
    rates = np.array([1e-3, -1.0])
    v = np.linalg.solve(
        np.vstack((np.eye(3)[:1], system.dynamics.gap_jacobian(np.zeros(3)))), [0.0, *rates]
    )
    x = np.concatenate((np.zeros(3), v))
    edge = system.outgoing(("open", "open")).edge(("left closes", "right closes"))
    jump = edge.reset(0.0, x, np.zeros(robot.nu))
    alone = impact(system.dynamics, np.zeros(3), v, (1,))
    assert jump.guards == ("right closes",)
    np.testing.assert_array_equal(jump.state[3:], alone.velocity_after)
    # the rod turns: its left end is sent down, and has an impact of its own
    assert system.dynamics.gap_rates(np.zeros(3), jump.state[3:])[0] < 0.0
    both = impact(system.dynamics, np.zeros(3), v, (0, 1))
    back = system.dynamics.gap_rates(np.zeros(3), both.velocity_after)
    np.testing.assert_allclose(back, -0.5 * rates, rtol=1e-9)
