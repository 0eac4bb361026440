"""Coulomb's law for impacts: what it says, a second solver, and closed forms of one contact."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridctl.base.errors import NoContactSolutionError, SeveralContactSolutionsError
from hybridctl.mechanics import Contact, ContactDynamics, Robot
from hybridctl.mechanics.contact_law import (
    CoulombProblem,
    enumerate_solutions,
    enumeration,
    solve,
    solve_near,
)
from hybridctl.mechanics.contact_law.law import CERTIFIED, scale_problem
from hybridctl.mechanics.contact_law.solver import MAX_ENUMERATED_SETS, search_by_newton
from hybridctl.mechanics.contact_law.uniqueness import NormalForceBounds, is_provably_unique
from hybridctl.mechanics.impacts.impact import impact
from mechanics.impacts import (
    GROUND,
    free_body,
    impact_problem,
    random_body,
    random_motion,
    violation,
)

# The solver certifies each equation to 1e-9 in units of the data. `violation` adds two of them
# where friction is next to a point of the disk; Newton's method ends far below both.
LAW = 2.0 * CERTIFIED
# Two solutions that both obey the law to 1e-10 differ by that times the condition of the contact
# matrices here, some hundreds where the points are close to each other.
SAME = 1e-7

# (in the plane, number of contacts, number of impacts): a thousand in all
SETS = [
    *((True, n, 40) for n in range(1, 9)),
    *((False, n, 40) for n in (1, 2, 6, 7, 8)),
    *((False, 3, 25), (False, 4, 10), (False, 5, 4)),
]


sideways = st.floats(-3.0, 3.0, allow_subnormal=False)


def all_loads(problem):
    """Bounds that leave nothing out."""
    count = len(problem.static)
    return NormalForceBounds(np.zeros(count), np.full(count, np.inf))


def all_forces(dynamics, result):
    """Impulses of a result along all rows."""
    rows = [
        f[: len(t)]
        for f, t in zip(result.friction_impulses, dynamics.contact_set.tangents, strict=True)
    ]
    return np.concatenate((result.impulses, *rows))


@pytest.mark.parametrize(("planar", "count", "impacts"), SETS)
@pytest.mark.parametrize("restitution", [0.0, 1.0])
def test_every_impact_obeys_the_law_or_says_why_not(planar, count, impacts, restitution):
    rng = np.random.default_rng([planar, count, int(restitution)])
    failures, several = 0, []
    for _ in range(impacts):
        dynamics = random_body(rng, planar, count, friction=2.0, restitution=restitution)
        q, v = random_motion(rng, dynamics)
        problem = impact_problem(dynamics, q, v)
        try:
            result = impact(dynamics, q, v, tuple(range(count)))
        except NoContactSolutionError as error:
            failures += 1
            np.testing.assert_allclose(error.problem.delassus, problem.delassus, rtol=1e-9)
            continue
        except SeveralContactSolutionsError as error:
            several.append(error)
            continue
        obeys(dynamics, q, v, problem, result)
    for error in several:
        assert len(error.solutions) > 1
        assert max(violation(error.problem, s.forces) for s in error.solutions) <= LAW
    # a solution exists: a body above a plane can always be lifted off (Acary et al. 2011)
    assert failures == 0


def obeys(dynamics, q, v, problem, result):
    robot, forces = dynamics.robot, all_forces(dynamics, result)
    assert violation(problem, forces) <= LAW
    # balance of momentum: rounding of J^T Lambda and M (v+ - v), some tens of terms
    after, rows = result.velocity_after, dynamics.contact_set.jacobian(q)
    change, mass = after - v, robot.mass_matrix(q)
    terms = np.abs(rows.T) @ np.abs(forces) + np.abs(mass) @ (np.abs(v) + np.abs(after))
    assert np.abs(mass @ change - rows.T @ forces).max() <= 1e-12 * terms.max()
    # kinetic energy: the difference, by Pinocchio; never negative without restitution
    before, left = robot.energy(q, v)[0], robot.energy(q, after)[0]
    assert abs(result.energy_loss - (before - left)) <= 1e-12 * (before + left)
    if not dynamics.restitution.any():
        assert result.energy_loss >= -LAW * before
    # states say what the velocities show
    speed = problem.magnitude
    for i, (state, tangents) in enumerate(
        zip(result.states, dynamics.contact_set.tangents, strict=True)
    ):
        slip = rows[tangents] @ after
        if state == "open":
            assert abs(result.impulses[i]) <= 1e-14 * max(1.0, result.impulses.max())
        else:
            rebound = rows[i] @ (after + dynamics.restitution[i] * v)
            assert abs(rebound) <= 1e-9 * speed
        if state == "stick":
            assert np.abs(slip).max() <= 1e-9 * speed
        if state in ("slip+", "slip-"):
            assert slip[0] * {"+": 1.0, "-": -1.0}[state[-1]] >= -1e-9 * speed


@pytest.mark.parametrize(
    ("planar", "count"), [(True, 1), (True, 2), (False, 1), (False, 2), (False, 3)]
)
def test_low_friction_of_independent_contacts_has_one_solution_which_a_second_solver_finds(
    planar, count
):
    rng = np.random.default_rng([7, planar, count])
    problems, found = [], []
    while len(problems) < 30:
        dynamics = random_body(rng, planar, count, friction=0.1, restitution=1.0)
        q, v = random_motion(rng, dynamics)
        problem = impact_problem(dynamics, q, v)
        normal = problem.delassus[:count, :count]
        if np.linalg.cond(normal) > 100.0:
            continue
        result = impact(dynamics, q, v, tuple(range(count)))
        problems.append(problem)
        found.append(problem.delassus @ all_forces(dynamics, result) + problem.free)
    speed = np.array([p.magnitude for p in problems])
    second = gauss_seidel(problems)
    assert (np.abs(second - found).max(axis=1) / speed).max() <= SAME


def gauss_seidel(problems, sweeps=3000):
    """Rates w = W f + c by projected Gauss-Seidel, for all problems (of equal size) at once."""
    k, tangents = len(problems[0].static), problems[0].tangents
    w_all = np.array([p.delassus for p in problems])
    free, mu = np.array([p.free for p in problems]), np.array([p.kinetic for p in problems])
    forces = np.zeros_like(free)
    blocks = [np.array([i, *tangents[i]]) for i in range(k)]
    steps = [1.0 / np.linalg.norm(w_all[:, b[:, None], b], 2, axis=(1, 2)) for b in blocks]
    for _ in range(sweeps):
        for i, block in enumerate(blocks):
            rates = np.einsum("nij,nj->ni", w_all[:, block], forces) + free[:, block]
            moved = forces[:, block] - steps[i][:, None] * rates
            normal = np.maximum(moved[:, 0], 0.0)
            size = np.linalg.norm(moved[:, 1:], axis=1)
            limit = np.minimum(1.0, mu[:, i] * normal / np.maximum(size, 1e-300))
            forces[:, i], forces[:, block[1:]] = normal, limit[:, None] * moved[:, 1:]
    return np.einsum("nij,nj->ni", w_all, forces) + free


@pytest.mark.parametrize(
    ("planar", "count", "cases"),
    [*((True, n, 40) for n in (1, 2, 3, 4)), (False, 1, 40), (False, 2, 40), (False, 3, 20)],
)
def test_enumeration_and_cone_programmes_agree_where_the_solution_is_unique(planar, count, cases):
    rng = np.random.default_rng([3, planar, count])
    compared = 0
    for _ in range(cases):
        dynamics = random_body(rng, planar, count, friction=1.0, restitution=1.0)
        problem = impact_problem(dynamics, *random_motion(rng, dynamics))
        found = enumerate_solutions(problem)
        plain, units = scale_problem(problem)
        iterated = units.restore(search_by_newton(plain, 40))
        assert all(violation(problem, s.forces) <= LAW for s in found)
        if iterated.residual <= CERTIFIED:
            assert violation(problem, iterated.forces) <= LAW
        if len(found) == 1 and iterated.residual <= CERTIFIED:
            compared += 1
            difference = np.abs(found[0].rates - iterated.rates).max()
            assert difference <= SAME * problem.magnitude
    assert compared >= 0.95 * cases


@pytest.mark.parametrize(("planar", "count"), [(True, 3), (False, 1), (False, 3), (False, 8)])
def test_a_solution_is_followed_from_any_forces_and_at_once_from_its_own(planar, count):
    rng = np.random.default_rng([12, planar, count])
    for _ in range(50):
        dynamics = random_body(rng, planar, count, friction=2.0, restitution=0.0)
        problem = impact_problem(dynamics, *random_motion(rng, dynamics))
        plain, units = scale_problem(problem)
        anywhere = units.forces * 10.0 ** rng.uniform(-1, 2) * rng.normal(size=len(problem.free))
        found = solve_near(problem, anywhere)
        assert violation(problem, found.forces) <= LAW
        if is_provably_unique(plain):
            difference = np.abs(found.rates - solve(problem).rates).max()
            assert difference <= SAME * problem.magnitude
        # no programme is needed
        again = search_by_newton(plain, 0, near=found.forces / units.forces)
        assert again.residual <= CERTIFIED


@pytest.mark.parametrize("rough", [False, True])
def test_contacts_that_exclude_each_other_end_in_an_error(rough):
    """w and -w are to be at least 1, beside a contact that rubs or not: no force helps."""
    tangents = (*np.zeros((2, 0), dtype=int), np.array([3] * rough, dtype=int))
    delassus = np.zeros((3 + rough, 3 + rough))
    delassus[:2, :2] = [[1.0, -1.0], [-1.0, 1.0]]
    delassus[2:, 2:] = np.eye(1 + rough)
    friction = np.array([0.0, 0.0, 0.5 * rough])
    problem = CoulombProblem(
        delassus, -np.ones(3 + rough), tangents, friction, friction, (None,) * 3
    )
    for found in (solve, partial(solve_near, near=np.ones(3 + rough))):
        with pytest.raises(NoContactSolutionError, match="no rates keep all contacts"):
            found(problem)


def planar_corner(x, z, friction, restitution):
    """A body in the plane of unit mass and inertia that touches with one point."""
    robot = Robot.from_urdf(free_body("body", 1.0, (1.0, 1.0, 1.0)), root="sagittal")
    point = Contact(
        "point", "body", GROUND, offset=(x, 0.0, z), friction=friction, restitution=restitution
    )
    return ContactDynamics(robot, [point], terms="pinocchio")


def closed_forms(a, b, d, normal, tangential, mu):
    """All solutions (normal impulse, tangential impulse) of one contact in the plane.

    W = [[a, b], [b, d]], normal = (1 + e) v_n.
    """
    found = [(0.0, 0.0)] if normal >= 0.0 else []
    stick = -np.linalg.solve([[a, b], [b, d]], [normal, tangential])
    if abs(stick[1]) <= mu * stick[0]:
        found.append(tuple(stick))
    for s in (1.0, -1.0):
        push = -normal / (a - mu * s * b)
        if push > 0.0 and s * (tangential + (b - mu * s * d) * push) > 0.0:
            found.append((push, -mu * s * push))
    return found


@settings(max_examples=150)
@given(
    x=st.floats(-1.0, 1.0),
    z=st.floats(-1.0, 1.0),
    mu=st.floats(0.01, 3.0),
    e=st.floats(0.0, 1.0),
    v_n=st.floats(-2.0, 2.0),
    v_t=st.floats(-3.0, 3.0),
)
def test_one_contact_in_the_plane_is_its_closed_form(x, z, mu, e, v_n, v_t):
    """Every solution of it too, where strong coupling gives three."""
    dynamics = planar_corner(x, z, mu, e)
    q = dynamics.robot.neutral()
    rows = dynamics.contact_set.jacobian(q)
    (a, b), (_, d) = rows @ rows.T  # M = 1
    expected = closed_forms(a, b, d, (1.0 + e) * v_n, v_t, mu)
    # stay away from where the number of solutions changes
    assume(min(abs(v_n), abs(a - mu * b), abs(a + mu * b)) > 1e-3)
    stick = -np.linalg.solve([[a, b], [b, d]], [(1.0 + e) * v_n, v_t])
    assume(abs(abs(stick[1]) - mu * stick[0]) > 1e-3)
    v = np.linalg.lstsq(rows, np.array([v_n, v_t]), rcond=None)[0]
    try:
        result = impact(dynamics, q, v, (0,))
        found = [all_forces(dynamics, result)]
    except SeveralContactSolutionsError as error:
        found = [s.forces for s in error.solutions]
    assert len(found) == len(expected)
    # the forces are as large as the closed forms' denominators make them
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(sorted(map(tuple, found)), sorted(expected), atol=1e-9 * scale)


@settings(max_examples=100)
@given(
    tangential=st.tuples(sideways, sideways),
    fall=st.floats(1e-3, 2.0),
    mu=st.floats(0.0, 2.0),
    e=st.floats(0.0, 1.0),
)
def test_a_point_mass_loses_mu_times_the_normal_impulse_sideways(tangential, fall, mu, e):
    """v_t+ = v_t max(0, 1 - mu (1 + e) |v_n| / |v_t|), in space: the direction stays."""
    mass, v_t = 0.7, np.array(tangential)
    free = np.array([-(1.0 + e) * fall, *v_t])
    friction = np.array([mu])
    point = CoulombProblem(
        np.eye(3) / mass, free, (np.array([1, 2]),), friction, friction, (None,), 4.0
    )
    result = solve(point)
    speed = float(np.linalg.norm(v_t))
    kept = max(0.0, 1.0 - mu * (1.0 + e) * fall / speed) if speed > 0.0 else 0.0
    np.testing.assert_allclose(result.rates, [0.0, *(kept * v_t)], atol=1e-9)
    assert result.forces[0] == pytest.approx(mass * (1.0 + e) * fall, rel=1e-9)


def slider(restitutions, friction=1.0):
    """A body of 1 kg on an axis that meets two planes at unit speed: rows n, n, t, t."""
    axis = np.array([0.9, -0.436]) / np.hypot(0.9, 0.436)
    normals = np.array([[0.0, 1.0], [-0.6, 0.8]])
    tangents = np.array([[1.0, 0.0], [0.8, 0.6]])
    rows = np.concatenate((normals @ axis, tangents @ axis))
    free = rows.copy()
    free[:2] *= 1.0 + np.array(restitutions)
    mu = np.full(2, friction)
    return CoulombProblem(
        np.outer(rows, rows), free, (np.array([2]), np.array([3])), mu, mu, (None,) * 2, 1.0
    )


@pytest.mark.parametrize("spatial", [False, True])
def test_a_slider_whose_rebounds_contradict_each_other_is_refused(spatial):
    """Both normals oppose the axis, n.a < 0, so that each asks for v+ <= -e: the first acts alone,
    v+ = -1/2. It slides back then, and its friction pushes on: n.a - mu t.a s = 0.46 > 0 along the
    axis, where -3/2 is due. Nothing else obeys the law: both open leave v+ = 1."""
    problem = slider((0.5, 0.2))
    if spatial:  # tangents across the axis are without motion
        order = np.array([0, 1, 2, 4, 3, 5])
        wide = np.zeros((6, 6))
        wide[:4, :4] = problem.delassus
        free = np.append(problem.free, [0.0, 0.0])
        tangents = (np.array([2, 3]), np.array([4, 5]))
        problem = replace(
            problem, delassus=wide[np.ix_(order, order)], free=free[order], tangents=tangents
        )
    with pytest.raises(NoContactSolutionError, match="none of the"):
        solve(problem)


def test_a_slider_with_less_friction_rebounds_from_the_plane_that_asks_for_more():
    """v+ = -1/2: f (n.a - mu t.a s) = -3/2 with s = -1, where n.a + mu t.a < 0."""
    result = solve(slider((0.5, 0.2), friction=0.2))
    n, t = np.array([-0.436, 0.9]) / np.hypot(0.9, 0.436)
    push = 1.5 / -(n + 0.2 * t)
    np.testing.assert_allclose(result.forces, [push, 0.0, 0.2 * push, 0.0], rtol=1e-12, atol=1e-14)
    assert result.modes == ("slip-", "open")


def test_contacts_that_no_velocity_keeps_apart_are_refused_with_that_reason():
    """A bead between two walls that both want it to go."""
    mu = np.array([0.5, 0.5])
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    free = np.array([-0.1, -0.2, 0.3, 0.3])
    walls = CoulombProblem(rows @ rows.T, free, (np.array([2]), np.array([3])), mu, mu, (None,) * 2)
    with pytest.raises(NoContactSolutionError, match="no rates keep all contacts"):
        solve(walls)


def known_problem(rng, count, dof):
    """A law with a solution by construction: states, w and f chosen, b = w - G f."""
    space = 2 if rng.random() < 0.7 else 1
    sizes = [0 if rng.random() < 0.1 else space for _ in range(count)]
    mu = np.where(np.array(sizes) == 0, 0.0, rng.uniform(0.0, 2.0, count))
    starts = count + np.concatenate(([0], np.cumsum(sizes)))
    tangents = tuple(np.arange(a, b) for a, b in pairwise(starts))
    w, f = np.zeros(starts[-1]), np.zeros(starts[-1])
    for i, rows in enumerate(tangents):
        s = rng.normal(size=len(rows))
        s /= np.linalg.norm(s) or 1.0
        kind, size, speed = rng.integers(3), *rng.uniform(0.1, 1.0, 2)
        if kind == 0:
            w[i], w[rows] = size, speed * s
        else:
            f[i] = size
            f[rows] = -mu[i] * size * s * (rng.uniform(0.0, 0.95) if kind == 1 else 1.0)
            w[rows] = speed * s * (kind == 2)
    rows = rng.normal(size=(len(w), dof))
    delassus = rows @ rows.T / dof
    free = w - delassus @ f
    size = float((np.abs(delassus) @ np.abs(f) + np.abs(w)).max())
    return CoulombProblem(delassus, free, tangents, mu, mu, (None,) * count, size), f


@pytest.mark.parametrize("count", range(1, 9))
def test_problems_with_a_known_solution_are_solved(count):
    """Up to 12 degrees of freedom, friction to 2; of 800 such problems none is missed.

    Where friction makes more solutions than one, all that are named obey the law.
    """
    rng = np.random.default_rng([8, count])
    for _ in range(25):
        problem, known = known_problem(rng, count, int(rng.integers(1, 13)))
        assert violation(problem, known) <= 1e-14  # rounding of b
        try:
            forces = [solve(problem).forces]
        except SeveralContactSolutionsError as error:
            assert problem.count_states() <= MAX_ENUMERATED_SETS
            forces = [solution.forces for solution in error.solutions]
        assert max(violation(problem, f) for f in forces) <= LAW


def test_large_forces_excuse_nothing():
    """G nearly singular: impulses of 1e4, and rates still right in units of the data."""
    mu, eps = np.zeros(2), 1e-4
    normals = np.array([[1.0, 0.0], [-1.0, eps]])
    free = normals @ np.array([0.0, -1.0]) - [0.1, 0.1]
    none = (np.zeros(0, dtype=np.intp),) * 2
    result = solve(CoulombProblem(normals @ normals.T, free, none, mu, mu, (None,) * 2, 1.0))
    expected = np.linalg.solve(normals @ normals.T, -free)
    assert expected.min() > 1e3
    np.testing.assert_allclose(result.forces, expected, rtol=1e-6)  # condition 4 / eps^2
    assert np.abs(result.rates).max() <= CERTIFIED


def turned(problem, angle):
    """The problem with the tangents of all contacts in space turned, and the matrix of that."""
    turn = np.eye(len(problem.free))
    for rows in problem.tangents:
        if len(rows) == 2:
            c, s = np.cos(angle), np.sin(angle)
            turn[np.ix_(rows, rows)] = [[c, s], [-s, c]]
    moved = replace(problem, delassus=turn @ problem.delassus @ turn.T, free=turn @ problem.free)
    return moved, turn


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 3),
    mass=st.floats(1e-4, 1e4),
    speed=st.floats(1e-4, 1e4),
    angle=st.floats(-3.0, 3.0),
)
def test_units_order_and_axes_do_not_matter(seed, count, mass, speed, angle):
    """One solution: masses and speeds scale it, and it turns with its tangents."""
    rng = np.random.default_rng(seed)
    dynamics = random_body(rng, False, count, friction=0.5, restitution=1.0)
    problem = impact_problem(dynamics, *random_motion(rng, dynamics))
    assume(is_provably_unique(scale_problem(problem)[0]))
    first = solve(problem)
    other, turn = turned(problem, angle)
    other = replace(
        other,
        delassus=other.delassus / mass,
        free=speed * other.free,
        magnitude=speed * problem.magnitude,
    )
    order = rng.permutation(count)
    rows = np.concatenate((order, *(problem.tangents[i] for i in order)))
    other = replace(
        other,
        delassus=other.delassus[np.ix_(rows, rows)],
        free=other.free[rows],
        static=other.static[order],
        kinetic=other.kinetic[order],
    )
    second = solve(other)
    difference = second.rates / speed - (turn @ first.rates)[rows]
    assert np.abs(difference).max() <= SAME * problem.magnitude
    assert second.modes == tuple(first.modes[i] for i in order)


@pytest.mark.parametrize(("planar", "count"), [(True, 1), (True, 2), (True, 3), (False, 1)])
def test_solutions_that_are_said_to_be_unique_are(planar, count, monkeypatch):
    """Trying all states, which in the plane are linear equations each, finds no other."""
    monkeypatch.setattr(enumeration, "bound_normal_forces", all_loads)
    rng = np.random.default_rng([6, planar, count])
    certain = several = 0
    for _ in range(300):
        number = count * (2 if planar else 3)
        rows = rng.normal(size=(number, int(rng.integers(number, 9))))
        size = 1 if planar else 2
        tangents = tuple(count + size * i + np.arange(size) for i in range(count))
        mu = 10.0 ** rng.uniform(-1.5, 0.5) * rng.uniform(0.5, 1.0, count)
        free = rng.normal(size=len(rows))
        problem = CoulombProblem(rows @ rows.T, free, tangents, mu, mu, (None,) * count)
        found = enumerate_solutions(problem)
        several += len(found) > 1
        if is_provably_unique(scale_problem(problem)[0]):
            certain += 1
            assert len(found) <= 1
    assert certain >= 20
    assert several >= 2


@pytest.mark.parametrize(("planar", "count"), [(True, 2), (False, 2), (False, 3)])
def test_contacts_that_slide_fast_have_one_solution_though_they_are_redundant(planar, count):
    """Trying all states finds no other. Slowly, the same contacts need not have only one."""
    rng = np.random.default_rng([13, planar, count])
    fast = slow = 0
    for _ in range(30):
        dynamics = random_body(rng, planar, count, friction=0.4, restitution=0.0)
        problem = impact_problem(dynamics, *random_motion(rng, dynamics))
        slow += is_provably_unique(scale_problem(problem)[0])
        along = problem.free.copy()
        for rows in problem.tangents:
            along[rows] += 4.0 * problem.magnitude * np.eye(len(rows))[0]
        sliding = replace(problem, free=along, magnitude=5.0 * problem.magnitude)
        if is_provably_unique(scale_problem(sliding)[0]):
            fast += 1
            assert len(enumerate_solutions(sliding)) <= 1
    assert fast >= slow
    assert fast >= 15


@pytest.mark.parametrize("contacts", [(), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("kind", [tuple, list])
def test_a_problem_is_restricted_to_any_sequence_of_contacts(contacts, kind):
    tangents = np.array([2]), np.array([3])
    friction = np.array([0.5, 0.6])
    problem = CoulombProblem(
        np.diag([1.0, 2.0, 3.0, 4.0]), np.arange(4.0), tangents, friction, friction, (None, None)
    )
    part = problem.restrict(kind(contacts))
    rows = [*contacts, *(2 + i for i in contacts)]
    np.testing.assert_array_equal(part.free, problem.free[rows])
    np.testing.assert_array_equal(part.static, friction[list(contacts)])
    assert [t.tolist() for t in part.tangents] == [
        [len(contacts) + k] for k in range(len(contacts))
    ]
