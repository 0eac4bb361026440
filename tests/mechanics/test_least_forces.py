"""Forces of least weighted norm inside the cones: closed forms, an optimiser, differences."""

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.contact_law import CoulombProblem, redundancy
from hybridctl.mechanics.contact_law.cone_programme import Cone
from hybridctl.mechanics.contact_law.linear_equations import LeastNormEquations
from hybridctl.mechanics.contact_law.redundancy import (
    APEX,
    INSIDE,
    AffineSet,
    ForceCones,
    distribute_forces,
    distribute_in_cones,
    find_least_in_cones,
)
from hybridctl.mechanics.modes.force_distribution import compute_friction_weights

MASS = np.diag([1.0, 1.0, 1.0, 0.4, 0.5, 0.6])
# Wrenches are of order one and the equations are solved by singular values: some hundred roundings
# times the condition of G, about a thousand.
EXACT = 1e-10
FRICTION = 0.7


def rows_at(points):
    """Normals z, then tangents x, y of every point: velocities by (v, omega)."""
    rows = []
    for axes in ([2], [0, 1]):
        for point in points:
            for axis in axes:
                d = np.eye(3)[axis]
                rows.append(np.concatenate((d, np.cross(point, d))))
    return np.array(rows)


def loaded(points, wrench, mu, mass=MASS):
    """The law for a body that a wrench (6,) presses on the points."""
    rows, k = rows_at(points), len(points)
    delassus = rows @ np.linalg.solve(mass, rows.T)
    free = rows @ np.linalg.solve(mass, wrench)
    tangents = tuple(k + 2 * i + np.arange(2) for i in range(k))
    friction = np.full(k, mu)
    return CoulombProblem(
        delassus, free, tangents, friction, friction, (None,) * k, np.abs(free).max()
    )


def stick(problem, weights=None):
    k = len(problem.static)
    weights = np.ones(len(problem.free)) if weights is None else weights
    return distribute_forces(problem, ("stick",) * k, (None,) * k, weights)


def bounded(forces, mu):
    """The contacts without a load, and those that friction only just holds.

    Borders are held to 1e-9 of the largest force; forces in the open are farther from them here.
    """
    k, near = len(mu), 1e-8 * np.abs(forces).max()
    friction = np.linalg.norm(forces[k:].reshape(k, -1), axis=1)
    unloaded, slipping = forces[:k] <= near, mu * forces[:k] - friction <= near
    return set(np.flatnonzero(unloaded)), set(np.flatnonzero(slipping & ~unloaded))


TABLE = np.array([(1.0, 1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, -1.0), (1.0, -1.0, -1.0)])


def pressed(at):
    """A unit weight at (x, y) of the table."""
    down = np.array([0.0, 0.0, -1.0])
    return np.concatenate((down, np.cross([*at, 0.0], down)))


def test_a_table_shares_its_load_linearly_while_all_legs_push():
    result = stick(loaded(TABLE, pressed((0.3, 0.2)), 0.5))
    expected = 0.25 * (1.0 + TABLE[:, :2] @ [0.3, 0.2])
    np.testing.assert_allclose(result.forces[:4], expected, atol=EXACT)
    np.testing.assert_allclose(result.forces[4:], 0.0, atol=EXACT)
    assert bounded(result.forces, np.full(4, 0.5)) == (set(), set())


def test_a_leg_that_would_pull_is_unloaded_and_the_others_are_a_tripod():
    """A load at (0.6, 0.6) would pull leg 2 by (1 - 1.2) / 4."""
    result = stick(loaded(TABLE, pressed((0.6, 0.6)), 0.5))
    np.testing.assert_allclose(result.forces[:4], [0.6, 0.2, 0.0, 0.2], atol=EXACT)


def test_a_load_on_a_leg_is_its_alone():
    """Where no other forces are inside the cones."""
    result = stick(loaded(TABLE, pressed((1.0, 1.0)), 0.5))
    np.testing.assert_allclose(result.forces[:4], [1.0, 0.0, 0.0, 0.0], atol=1e-8)


def test_a_load_beside_the_table_is_refused():
    with pytest.raises(NoContactSolutionError, match="no forces that give their rates"):
        stick(loaded(TABLE, pressed((1.2, 0.0)), 0.5))


def test_a_leg_alone_has_no_choice():
    result = stick(loaded(TABLE[:1], pressed((1.0, 1.0)), 0.5))
    np.testing.assert_allclose(result.forces, [1.0, 0.0, 0.0], atol=EXACT)


def test_sliding_legs_share_along_their_rays():
    """All slide along x: f_t = -mu f_n, balanced by the drive; least norm is linear in x, y."""
    mu, problem = 0.2, loaded(TABLE, pressed((0.3, 0.2)), 0.2)
    ones, s = np.ones(12), (np.array([1.0, 0.0]),) * 4
    result = distribute_forces(problem, ("slip",) * 4, s, ones)
    normal = result.forces[:4]
    np.testing.assert_allclose(result.forces[4:].reshape(4, 2), np.outer(-mu * normal, [1, 0]))
    # friction at height -1 turns the body by -mu N about y: the load seems to stand mu further on
    x = 0.3 + mu
    np.testing.assert_allclose(normal, 0.25 * (1.0 + TABLE[:, :2] @ [x, 0.2]), atol=EXACT)


@pytest.mark.parametrize("left", [0.0, 1e-12, 1e-10, 1e-8])
def test_a_table_turned_as_hard_as_it_holds_has_the_forces_of_its_turn(left):
    """Friction against the velocities of a twist, and of all loads those on which it works most.

    No other forces do as much work on the twist: there is no choice but by what is `left`.
    """
    rng, mu, k = np.random.default_rng(5), 0.2, len(TABLE)
    for _ in range(60):
        twist, load = rng.normal(size=3), pressed(rng.uniform(-0.8, 0.8, 2))
        velocities = twist[:2] + twist[2] * np.column_stack((-TABLE[:, 1], TABLE[:, 0]))
        speeds = np.linalg.norm(velocities, axis=1)
        normals = rows_at(TABLE)[:k]
        normal = linprog(-speeds, A_eq=normals[:, 2:5].T, b_eq=-load[2:5]).x
        friction = -mu * (1.0 - left) * (normal / speeds)[:, None] * velocities
        forces = np.concatenate((normal, friction.ravel()))
        found = stick(loaded(TABLE, -rows_at(TABLE).T @ forces, mu))
        # cones hold to 1e-9; friction may turn by sqrt(2 left), and loads change by some times that
        near = 10.0 * np.sqrt(2.0 * (left + 1e-9))
        np.testing.assert_allclose(found.forces, forces, atol=near)


def random_case(rng, t=0.0):
    """Points, mass, a wrench that forces inside the cones balance, weights: all smooth in t."""
    k, mu = int(rng.integers(4, 7)), rng.uniform(0.1, 1.0)
    points = np.column_stack((rng.uniform(-1.0, 1.0, (k, 2)), np.full(k, -1.0)))
    move = np.column_stack((rng.normal(size=(k, 2)), np.zeros(k)))
    push, angle = rng.uniform(0.1, 1.0, k), rng.uniform(0.0, 2.0 * np.pi, k)
    size = mu * push * rng.uniform(0.3, 0.98, k)
    forces = np.concatenate((push, (size * [np.cos(angle), np.sin(angle)]).T.ravel()))
    wrench = -rows_at(points).T @ forces
    turn = 0.05 * rng.normal(size=(6, 6))
    weights = 10.0 ** rng.uniform(-1.0, 1.0, 3 * k)
    grow, drift = rng.normal(size=3 * k), rng.normal(size=6)
    problem = loaded(points + t * move, wrench + t * drift, mu, MASS + t * (turn + turn.T))
    return problem, weights * (1.0 + t * grow), forces


def smallest(problem, weights, start):
    """The same by SLSQP, which stops where the cost gains less than 1e-15."""
    k, mu = len(problem.static), problem.static
    factor = np.linalg.svd(problem.delassus)[2][:6]
    target = factor @ start

    def cones(f):
        size = np.array([f[rows] @ f[rows] for rows in problem.tangents])
        return np.concatenate((f[:k], (mu * f[:k]) ** 2 - size))

    return minimize(
        lambda f: f @ (f / weights),
        start,
        jac=lambda f: 2.0 * f / weights,
        method="SLSQP",
        constraints=[
            {"type": "eq", "fun": lambda f: factor @ f - target, "jac": lambda f: factor},
            {"type": "ineq", "fun": cones},
        ],
        options={"ftol": 1e-15, "maxiter": 500},
    )


def test_no_forces_inside_the_cones_are_smaller():
    rng = np.random.default_rng(2)
    active = compared = 0
    for seed in rng.integers(0, 10**6, 25):
        problem, weights, inside = random_case(np.random.default_rng(seed))
        found = stick(problem, weights)
        forces, k = found.forces, len(problem.static)
        active += any(bounded(forces, problem.static))
        assert np.abs(problem.delassus @ forces + problem.free).max() <= EXACT * problem.magnitude
        friction = np.linalg.norm(forces[k:].reshape(k, 2), axis=1)
        assert (problem.static * forces[:k] - friction).min() >= -EXACT
        # a convex programme: the gradient does not point out of the set, here to a point of it
        gradient = forces / weights
        assert gradient @ (inside - forces) >= -1e-9 * np.abs(gradient).sum()
        other = smallest(problem, weights, inside)
        if other.success:
            compared += 1
            # squares are held to 1e-15, cones therefore to 3e-8, which also lowers the cost
            assert forces @ (forces / weights) <= other.fun * (1.0 + 1e-6)
            np.testing.assert_allclose(forces, other.x, atol=1e-4)  # sqrt of the gains left out
    assert active >= 10
    assert compared >= 10


def test_derivatives_with_borders_that_act():
    """Against central differences in points, masses, wrench and weights together."""
    h, met = 1e-5, np.zeros(2)
    for seed in range(30):

        def at(t, seed=seed):
            return random_case(np.random.default_rng(seed), t)

        (problem, weights, _), (more, w1, _), (less, w0, _) = at(0.0), at(h), at(-h)
        found, last, first = stick(problem, weights), stick(more, w1), stick(less, w0)
        borders = bounded(found.forces, problem.static)
        if any(bounded(other.forces, problem.static) != borders for other in (last, first)):
            continue
        met += [bool(kind) for kind in borders]
        delassus = (more.delassus - less.delassus) / (2.0 * h)
        equations = -(more.free - less.free) / (2.0 * h) - delassus @ found.forces
        change = found.sensitivity(
            equations[:, None], (delassus @ found.adjoint)[:, None], (w1 - w0)[:, None] / (2.0 * h)
        )[:, 0]
        expected = (last.forces - first.forces) / (2.0 * h)
        # differences: h^2 times third derivatives, some thousands here, and 1e-13 / h
        np.testing.assert_allclose(change, expected, atol=1e-5 * max(1.0, np.abs(expected).max()))
    assert met.min() >= 5


def test_derivatives_where_one_contact_slides():
    """The same with the first contact sliding along x: its friction goes with its normal force."""
    h, slope, met = 1e-5, 2.0, 0
    for seed in range(30):

        def at(t, seed=seed):
            rng = np.random.default_rng(seed)
            problem, weights, inside = random_case(rng)
            mu, k = problem.static[0], len(problem.static)
            inside[k : k + 2] = [-mu * inside[0], 0.0]
            # the free rates that these forces balance, and a drift that leaves them solvable
            free = -problem.delassus @ (inside * (1.0 + slope * t * rng.random(3 * k)))
            moved = replace(problem, free=free, magnitude=np.abs(free).max())
            directions = [np.array([1.0, 0.0]), *[None] * (k - 1)]
            weights = weights * (1.0 + t * rng.normal(size=3 * k))
            modes = ("slip", *["stick"] * (k - 1))
            found = distribute_forces(moved, modes, directions, weights)
            # the cost of friction that goes with the normal force is a cost of that
            own = np.delete(weights, [k, k + 1])
            own[0] = 1.0 / (1.0 / weights[0] + mu**2 / weights[k])
            return moved, own, found

        (now, _, found), (more, w1, last), (less, w0, first) = at(0.0), at(h), at(-h)
        borders = [bounded(each.forces, now.static) for each in (first, found, last)]
        if borders[0] != borders[1] or borders[1] != borders[2]:
            continue
        met += 1
        k = len(now.static)
        held = [*range(k), *range(k + 2, 3 * k)]
        equations = -(more.free - less.free)[held] / (2.0 * h)
        none = np.zeros((len(found.multipliers), 1))
        change = found.sensitivity(equations[:, None], none, (w1 - w0)[:, None] / (2.0 * h))[:, 0]
        expected = (last.multipliers - first.multipliers) / (2.0 * h)
        np.testing.assert_allclose(change, expected, atol=1e-5 * max(1.0, np.abs(expected).max()))
    assert met >= 10


def least_by_trial(particular, null):
    """The least |z| with m_0 + N z >= 0: of all sets of borders, that with loads that push."""
    best = None
    for size in range(1, null.shape[1] + 1):
        for held in map(list, combinations(range(len(null)), size)):
            z = np.linalg.lstsq(null[held], -particular[held])[0]
            off = np.abs(null[held] @ z + particular[held]).max()
            inside = off <= 1e-10 and (particular + null @ z).min() >= -1e-10
            if inside and (best is None or np.linalg.norm(z) < np.linalg.norm(best)):
                best = z
    return best


def test_contacts_that_only_push_share_loads_as_the_best_set_of_borders_says(monkeypatch):
    """Two soles on four corners that slide, near and far from where no loads push; and any others.

    Such a sole is loaded by +, -, -, + along its diagonals, which sliding mixes with the other's:
    the rows of N all but depend on each other, to 1e-4. Loads are inside to 1e-12, which is 1e-8
    of where borders so near to parallel meet.
    """
    rng, met, programmes = np.random.default_rng(11), {True: 0, False: 0}, []
    by_programme = redundancy._solve_by_programme
    monkeypatch.setattr(
        redundancy,
        "_solve_by_programme",
        lambda *given: programmes.append(given) or by_programme(*given),
    )
    for trial in range(300):
        null = rng.normal(size=(8, int(rng.integers(2, 4))))
        if trial % 2:
            soles = np.kron(np.eye(2), np.array([[1.0], [-1.0], [-1.0], [1.0]]))
            mixed = soles @ rng.normal(size=(2, 2)) * rng.uniform(0.5, 1.5, (8, 1))
            null = 3e-3 * (mixed + 10.0 ** rng.uniform(-4.0, 0.0) * rng.normal(size=(8, 2)))
        null = np.linalg.qr(null)[0] if trial % 3 else null
        cones = [Cone(j, [], 0.0) for j in range(8)]
        particular = rng.normal(0.4, 0.5, 8)
        if trial % 2 and trial % 5:  # two opposite corners, which pull as one of them is relieved
            lengths = np.linalg.norm(null, axis=1)
            particular[1] = -particular[0] * lengths[1] / lengths[0] - 10.0 ** rng.uniform(-8, -6)
        allowed = AffineSet(particular, null)
        found, expected = find_least_in_cones(cones, allowed), least_by_trial(particular, null)
        if particular.min() >= 0.0:
            continue
        met[found is not None] += 1
        assert (found is None) == (expected is None)
        if found is not None:
            pushes, held = found.multipliers, np.array(found.active) == APEX
            size = max(1.0, np.abs(pushes).max())
            assert pushes.min() >= -1e-9 * size
            np.testing.assert_allclose(pushes, particular + null @ expected, atol=1e-7 * size)
            # z = N' kappa
            z = np.linalg.lstsq(null, pushes - particular)[0]
            np.testing.assert_allclose(null[held].T @ found.kappa, z, atol=1e-7 * size)
    assert min(met.values()) >= 40
    assert len(programmes) <= 3  # for those that nonnegative least squares do not tell


@pytest.mark.parametrize("response", [1e-4, 1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("pull", [1e-3, 1e-5, 1e-7])
def test_a_contact_that_hardly_responds_is_relieved_by_forces_of_the_size_of_others(response, pull):
    """The first contact pulls next to nothing, and the other three push with 2: z = N_0 p / N_0^2.

    Its pull is no unit in which a point could be too far away: |z| is 0.1 for 1e-6 and 1e-7.
    """
    null = np.linalg.qr([[response, 0.0], [1.0, 0.0], [0.0, 1.0], [0.3, 0.2]])[0]
    particular = np.array([-pull, 2.0, 2.0, 2.0])
    found = find_least_in_cones([Cone(j, [], 0.0) for j in range(4)], AffineSet(particular, null))
    expected = particular + null @ null[0] * pull / (null[0] @ null[0])
    size = np.abs(expected).max()
    if expected.min() >= -1e-15:  # else others pull as well, and the point is another one
        # kappa / N_0 has a few roundings, relative to z
        np.testing.assert_allclose(found.multipliers, expected, atol=1e-13 * size)
    assert found.multipliers.min() >= -1e-12 * size


@pytest.mark.filterwarnings("error")
def test_friction_that_is_open_does_not_relieve_a_contact_that_pulls():
    """Two against each other along x and along y: normal forces do not change."""
    cones = [Cone(0, [2, 3], 0.5), Cone(1, [4, 5], 0.5)]
    against = np.array([[0, 0, 1, 0, -1, 0], [0, 0, 0, 1, 0, -1]]).T / np.sqrt(2.0)
    pulled = np.array([1.0, -1.0, 0.0, 0.0, 0.0, 0.0])
    assert find_least_in_cones(cones, AffineSet(pulled, against)) is None


def test_least_squares_that_do_not_end_leave_it_to_the_programme(monkeypatch):
    def fails(*_):
        raise RuntimeError("Maximum number of iterations reached.")

    cones = [Cone(j, [], 0.0) for j in range(3)]
    allowed = AffineSet(np.array([1.0, 1.0, -0.3]), np.linalg.qr([[1.0, 0], [0, 1], [-1, -2]])[0])
    expected = find_least_in_cones(cones, allowed)
    monkeypatch.setattr(redundancy, "nnls", fails)
    found = find_least_in_cones(cones, allowed)
    np.testing.assert_allclose(found.multipliers, expected.multipliers, atol=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.99, 1.01, 2.0])
def test_least_squares_that_are_not_least_are_not_taken(monkeypatch, share):
    """Larger loads of borders than the least push contacts off these, and are inside the cones."""
    cones = [Cone(j, [], 0.0) for j in range(3)]
    allowed = AffineSet(np.array([1.0, 1.0, -0.3]), np.linalg.qr([[1.0, 0], [0, 1], [-1, -2]])[0])
    expected, exact = find_least_in_cones(cones, allowed), redundancy.nnls

    def wrong(*given):
        u, left = exact(*given)
        return share * u, left

    monkeypatch.setattr(redundancy, "nnls", wrong)
    found = find_least_in_cones(cones, allowed)
    np.testing.assert_allclose(found.multipliers, expected.multipliers, atol=1e-12)


def test_beside_contacts_that_push_others_stay_inside_their_cones():
    """Four that slide and two that stick: to known loads g inside, z . (z_g - z) >= 0."""
    rng, met = np.random.default_rng(12), {True: 0, False: 0}
    cones = [Cone(j, [], 0.0) for j in range(4)]
    cones += [Cone(4 + j, [6 + 2 * j, 7 + 2 * j], 0.6) for j in range(2)]
    for _ in range(200):
        null = np.linalg.qr(rng.normal(size=(10, int(rng.integers(2, 5)))))[0]
        inside = np.concatenate((rng.exponential(0.5, 4), rng.uniform(0.5, 1.5, 2), np.zeros(4)))
        inside[6:] = rng.uniform(-0.4, 0.4, 4) * np.repeat(inside[4:6], 2)
        known = rng.normal(size=null.shape[1])
        found = find_least_in_cones(cones, AffineSet(inside - null @ known, null))
        m = found.multipliers
        friction = np.hypot(m[6::2], m[7::2])
        # the programme keeps cones to 1e-9 of the largest load, of some 10 here
        assert min(m[:6].min(), (0.6 * m[4:6] - friction).min()) >= -1e-8
        z = null.T @ (m - inside) + known
        assert z @ (known - z) >= -1e-7
        of_sticking = any(kind != INSIDE for kind in found.active[4:])
        met[of_sticking] += any(kind == APEX for kind in found.active[:4])
    assert min(met.values()) >= 20


def test_where_one_direction_is_open_the_nearest_end_of_an_interval_is_found():
    """Normal forces n + z N > 0 bound z; of several that pull only the last one is a border."""
    rng, met = np.random.default_rng(4), {"inside": 0, "several": 0, "none": 0}
    for _ in range(400):
        n = int(rng.integers(3, 9))
        sizes = 10.0 ** rng.uniform(-4.0, 0.0, (n, 1))
        columns = rng.normal(size=(n, n))
        columns[:, :1] *= sizes
        whole = np.linalg.qr(columns)[0]
        open_one, system = whole[:, 0], LeastNormEquations(whole[:, 1:].T)
        forces = rng.normal(size=n) + 1.0
        forces *= sizes[:, 0] ** rng.integers(0, 2, size=n)
        least = system.solve(system.matrix @ forces)
        ends = -least / open_one
        low = ends[open_one > 0.0].max(initial=-np.inf)
        high = ends[open_one < 0.0].min(initial=np.inf)
        cones = [Cone(i, [], 0.0) for i in range(n)]
        found = distribute_in_cones(system, least, ForceCones(np.eye(n), cones, np.ones(n)))
        if abs(low - high) < 1e-6:
            continue
        if low > high:
            met["none"] += 1
            assert found is None
            continue
        z = min(max(0.0, low), high)
        met["inside"] += z == 0.0
        met["several"] += int((least < 0.0).sum()) > 1
        np.testing.assert_allclose(found.multipliers, least + z * open_one, atol=EXACT)
    assert min(met.values()) >= 20


def nearest_on_a_line(forces, along, mu):
    """The z of least size with forces + z along inside all cones, by the roots of quadratics."""
    k = len(forces) // 3

    def slack(z):
        f = forces + z * along
        return mu * f[:k] - np.hypot(f[k::2], f[k + 1 :: 2])

    ends = [0.0]
    for j in range(k):
        (fn, *ft), (an, *at) = ([v[j], *v[k + 2 * j : k + 2 * j + 2]] for v in (forces, along))
        ends += np.roots(
            [
                mu**2 * an**2 - np.dot(at, at),
                2.0 * (mu**2 * fn * an - np.dot(ft, at)),
                mu**2 * fn**2 - np.dot(ft, ft),
            ]
        ).tolist()
    possible = [z.real for z in map(complex, ends) if z.imag == 0.0 and slack(z.real).min() > -1e-9]
    return min(possible, key=abs, default=None)


def test_where_one_direction_is_open_friction_ends_the_interval():
    """Against the roots of the cones on the line, and differences: z goes with what ends it."""
    rng, h = np.random.default_rng(6), 1e-6
    met = {"inside": 0, "several": 0, "none": 0, "changes": 0}
    for _ in range(300):
        k = int(rng.integers(2, 5))
        n, mu = 3 * k, rng.uniform(0.2, 1.5)
        whole = np.linalg.qr(rng.normal(size=(n, n)))[0]
        open_one, system = whole[:, 0], LeastNormEquations(whole[:, 1:].T)
        forces = rng.uniform(0.0, 1.0, n)
        angles = rng.uniform(0.0, 2.0 * np.pi, k)
        limits = mu * forces[:k] * rng.uniform(0.0, 1.2, k)
        forces[k::2], forces[k + 1 :: 2] = limits * np.cos(angles), limits * np.sin(angles)
        cones = [Cone(j, [k + 2 * j, k + 2 * j + 1], mu) for j in range(k)]
        loads, way = ForceCones(np.eye(n), cones, np.ones(n)), rng.normal(size=n)

        def at(t, system=system, forces=forces, way=way, loads=loads):
            least = system.solve(system.matrix @ (forces + t * way))
            return least, distribute_in_cones(system, least, loads)

        least, found = at(0.0)
        z = nearest_on_a_line(least, open_one, mu)
        if z is None:
            met["none"] += 1
            assert found is None
            continue
        met["inside"] += z == 0.0
        met["several"] += int((mu * least[:k] < np.hypot(least[k::2], least[k + 1 :: 2])).sum()) > 1
        np.testing.assert_allclose(found.multipliers, least + z * open_one, atol=1e-9)
        (_, more), (_, less) = at(h), at(-h)
        if None in (more, less):
            continue
        borders = [bounded(each.forces, np.full(k, mu)) for each in (less, found, more)]
        if borders[0] != borders[1] or borders[1] != borders[2]:
            continue
        met["changes"] += 1
        equations = (system.matrix @ way)[:, None]
        change = found.sensitivity(equations, np.zeros((n, 1)))[:, 0]
        expected = (more.multipliers - less.multipliers) / (2.0 * h)
        # differences: h^2 times third derivatives, and 1e-15 / h; both grow where a line grazes
        size = np.abs(expected).max()
        np.testing.assert_allclose(change, expected, atol=1e-6 * max(1.0, size) ** 3)
    assert min(met.values()) >= 20


def test_forces_are_found_where_weights_of_four_decades_leave_them_far_outside_the_cones():
    """A light, a middle and a heavy body on rails that lean by 0.0114, pressed on each other.

    Forces of least norm are friction of 17 times the normal force: the programme's numerics fail,
    and both rubbing contacts are at their limits.
    """
    c, s = np.cos(0.0114), np.sin(0.0114)
    rows = np.array([[c, 0, 0], [-c, c, 0], [0, -c, c], [s, 0, 0], [0, -s, s]])
    mass, drive = np.array([0.01, 2.2, 100.0]), np.array([-0.1, -43.3, -1495.4])
    mu, tangents = (
        np.array([0.0464, 0.0, 0.4376]),
        (np.array([3]), np.array([], int), np.array([4])),
    )
    free = rows @ (drive / mass)
    problem = CoulombProblem(
        rows / mass @ rows.T, free, tangents, mu, mu, (None,) * 3, np.abs(free).max()
    )
    weights = np.array([1.0, 1.0, 1.0, 1540.0, 1495.0])
    result = distribute_forces(problem, ("stick", "closed", "stick"), (None,) * 3, weights)
    heavy = 1495.4 / (c + 0.4376 * s)
    light = 1538.8 / (c + 0.0464 * s)
    np.testing.assert_allclose(rows.T @ result.forces, -drive, atol=1e-6)
    friction = np.abs(result.forces[[3, 4]])
    np.testing.assert_allclose(friction, (mu * result.forces[:3])[[0, 2]], atol=1e-5)
    np.testing.assert_allclose(result.forces[[0, 2]], [light, heavy], rtol=1e-8)


def sole(seed):
    """A sole on four corners whose loads span decades, some of which are about to slip.

    Returned are forces inside the cones, and the equations of their wrench, whose weights are those
    of a mode.
    """
    draw, wrench = np.random.default_rng(seed), np.zeros((6, 12))
    for j, (x, y) in enumerate(((0.12, 0.05), (0.12, -0.05), (-0.06, 0.05), (-0.06, -0.05))):
        wrench[:, j] = 0, 0, 1, y, -x, 0
        wrench[:, 4 + 2 * j], wrench[:, 5 + 2 * j] = (1, 0, 0, 0, 0, -y), (0, 1, 0, 0, 0, x)
    forces = draw.uniform(size=12) * 10.0 ** -draw.uniform(0.0, 3.0, 12)
    for j in range(4):
        angle, share = draw.uniform(0.0, 2.0 * np.pi), 1.0 - 10.0 ** -draw.uniform(0.0, 6.0)
        along = np.array([np.cos(angle), np.sin(angle)])
        forces[4 + 2 * j : 6 + 2 * j] = FRICTION * share * forces[j] * along
    phase = SimpleNamespace(closed=range(4), sticking_owner=np.repeat(np.arange(4), 2))
    even = LeastNormEquations(wrench).solve(wrench @ forces)
    return forces, LeastNormEquations(wrench, compute_friction_weights(phase, even))


@pytest.mark.parametrize("seed", [*range(150), 1841, 1899, 1976, 2316, 2971, 3027])
def test_forces_of_a_sole_are_nearer_to_nothing_than_any_others_inside_the_cones(seed):
    """z . (g - z) >= 0 for all g inside the cones, in the metric of the weights.

    Programmes are solved to 1e-8, and lengths are to be right to the square root of rounding.
    """
    inside, system = sole(seed)
    cones = [Cone(j, [4 + 2 * j, 5 + 2 * j], FRICTION) for j in range(4)]
    least = system.solve(system.matrix @ inside)
    found = distribute_in_cones(
        system, least, ForceCones(np.eye(12), cones, np.ones(12))
    ).multipliers
    np.testing.assert_allclose(system.matrix @ (found - inside), 0.0, atol=1e-8)
    normal, sideways = found[:4], np.hypot(found[4::2], found[5::2])
    assert min(normal.min(), (FRICTION * normal - sideways).min()) >= -1e-9
    z, other = (found - least) / np.sqrt(system.weights), (inside - least) / np.sqrt(system.weights)
    assert z @ (other - z) >= -1e-6 * np.linalg.norm(z) * np.linalg.norm(other)


def test_friction_that_is_zero_leaves_its_contact_inside():
    """One contact shares a pull of -3 with another; a third has a load and no friction at all."""
    cones = [Cone(0, [], 0.0), Cone(1, [3], 1.0), Cone(2, [4], 1.0)]
    particular, along = np.array([2.0, 0.25, 3.0, 0.0, -6.0]), np.array([[1.0, 0, 0, 0, 1.0]]).T
    found = find_least_in_cones(cones, AffineSet(particular, along))
    np.testing.assert_allclose(found.multipliers, [5.0, 0.25, 3.0, 0.0, -3.0], atol=EXACT)


def test_a_point_on_boundaries_is_taken_where_none_of_them_is_optimal(monkeypatch):
    """Forces on the boundary of cones leave next to no room, and active sets alternate.

    The last point inside the cones obeys the equations to rounding. That of the cone programme,
    moved into the cones, misses them by 1e-9, as much as the law allows.
    """
    rng, search, ends = np.random.default_rng(3), redundancy._search_active_set, []

    def recorded(*given):
        ends.append(search(*given))
        return ends[-1]

    monkeypatch.setattr(redundancy, "_search_active_set", recorded)
    taken = 0
    for _ in range(400):
        mu, normal = rng.uniform(0.1, 1.0, 2), rng.uniform(0.0, 1.0, 2) * (rng.random(2) < 0.7)
        angle = rng.uniform(0.0, 2.0 * np.pi, 2)
        along = np.column_stack((np.cos(angle), np.sin(angle)))
        near = 10.0 ** rng.uniform(-12.0, -1.0, 2)
        left = np.where(rng.random(2) < 0.7, near, rng.random(2))
        friction = (mu * normal * (1.0 - left))[:, None] * along
        forces = np.concatenate((normal, friction.ravel()))
        cones = [Cone(j, [2 + 2 * j, 3 + 2 * j], mu[j]) for j in range(2)]
        null = np.linalg.qr(rng.normal(size=(6, int(rng.integers(2, 5)))))[0]
        particular = forces - null @ (null.T @ forces)
        ends.clear()
        found = find_least_in_cones(cones, AffineSet(particular, null))
        if ends and ends[0][0] is not None and not ends[0][1] and found is ends[0][0]:
            taken += 1
            change = found.multipliers - particular
            np.testing.assert_allclose(null @ (null.T @ change), change, atol=1e-14)
    assert taken >= 3
