"""Bounds of normal forces against all solutions, found by linear equations, and closed forms."""

from itertools import product

import numpy as np
import pytest

from hybridctl.mechanics.contact_law import CoulombProblem, enumerate_solutions, solve
from hybridctl.mechanics.contact_law.law import scale_problem
from hybridctl.mechanics.contact_law.uniqueness import bound_normal_forces, is_provably_unique

# Bounds are wider than the intervals by 1e-7 in rates, over responses that are 0.05 at the least
# here; a solution is one if it obeys the law to 1e-9.
WIDER = 1e-5
LAW = 1e-9


def random_problem(rng, count, friction=0.5):
    """Contacts in a plane, normals first, without units; G has full rank."""
    rows = rng.normal(size=(2 * count, 9))
    mu = rng.uniform(0.1, 1.0, count) * friction
    tangents = tuple(np.array([count + i]) for i in range(count))
    free = rng.normal(size=2 * count)
    problem = CoulombProblem(rows @ rows.T, free, tangents, mu, mu, (None,) * count)
    return scale_problem(problem)[0]


def all_solutions(problem):
    """Forces (2 k,) of every solution: open, sticking and sliding contacts give linear equations.

    Each state of contact i says that two rows of E f + D w vanish, with w = G f + b.
    """
    count, unit = len(problem.static), np.eye(len(problem.free))
    found = []
    for states in product(("open", "stick", "plus", "minus"), repeat=count):
        of_forces, of_rates = np.zeros((2, *unit.shape))
        for i, state in enumerate(states):
            j, mu = count + i, problem.kinetic[i]
            if state == "open":
                of_forces[i], of_forces[j] = unit[i], unit[j]
            elif state == "stick":
                of_rates[i], of_rates[j] = unit[i], unit[j]
            else:
                of_rates[i] = unit[i]
                of_forces[j] = unit[j] + (mu if state == "plus" else -mu) * unit[i]
        f = np.linalg.solve(of_forces + of_rates @ problem.delassus, -of_rates @ problem.free)
        w = problem.delassus @ f + problem.free
        n, t = slice(count), slice(count, None)
        holds = np.abs(f[t]) <= problem.kinetic * f[n] + LAW
        against = {"plus": w[t] >= -LAW, "minus": w[t] <= LAW}
        slides = [against[s][i] if s in against else True for i, s in enumerate(states)]
        if (f[n] >= -LAW).all() and (w[n] >= -LAW).all() and holds.all() and all(slides):
            found.append(f)
    return found


@pytest.mark.parametrize(("friction", "share"), [(0.5, 0.2), (3.0, 0.05)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_solutions_are_within_the_bounds(count, friction, share):
    """With much friction a contact may take its normal response away, and has no greatest force."""
    rng = np.random.default_rng([21, count])
    decided = 0
    for _ in range(150):
        problem = random_problem(rng, count, friction)
        bounds = bound_normal_forces(problem)
        for forces in all_solutions(problem):
            normal = forces[:count]
            assert (normal >= bounds.least - LAW).all()
            assert (normal <= bounds.greatest + LAW).all()
        decided += sum(bounds.open) + sum(bounds.closed)
    assert decided >= share * 150 * count  # bounds that say nothing would pass, too


def test_bounds_of_contacts_that_do_not_move_each_other_are_those_of_friction_alone():
    """The force of one contact alone is -b / a, with a between G_nn - mu |G_nt| and the sum."""
    delassus = np.kron(np.eye(2), np.array([[1.0, 0.3], [0.3, 0.8]]))
    order = np.ix_([0, 2, 1, 3], [0, 2, 1, 3])
    mu = np.array([0.5, 0.2])
    free = np.array([-0.6, 0.4, 0.1, 0.2])
    tangents = (np.array([2]), np.array([3]))
    problem = CoulombProblem(delassus[order], free, tangents, mu, mu, (None, None), 1.0)
    bounds = bound_normal_forces(problem)
    np.testing.assert_allclose(bounds.least, [0.6 / 1.15, 0.0], atol=WIDER)
    np.testing.assert_allclose(bounds.greatest, [0.6 / 0.85, 0.0], atol=WIDER)
    assert (bounds.closed, bounds.open) == ([True, False], [False, True])


def test_contacts_that_slide_already_have_friction_of_one_size():
    """With the direction s given a = G_nn - mu G_nt s, and the force is known to rounding."""
    delassus = np.array([[1.0, 0.3, -0.2], [0.3, 0.8, 0.0], [-0.2, 0.0, 0.8]])
    s, mu = np.array([0.6, 0.8]), np.array([0.5])
    problem = CoulombProblem(
        delassus, np.array([-0.6, 1.0, 1.0]), (np.array([1, 2]),), mu, mu, (s,), 1.0
    )
    response = 1.0 - 0.5 * (0.3 * 0.6 - 0.2 * 0.8)
    bounds = bound_normal_forces(problem)
    np.testing.assert_allclose(bounds.least, 0.6 / response, atol=WIDER)
    np.testing.assert_allclose(bounds.greatest, 0.6 / response, atol=WIDER)


def landing_rod(velocity):
    """A rod of length 2 l with heavy ends, on points that lie d apart in height, lands.

    Along the line between them forces cancel, with a normal part of d / (2 l). As its moment of
    inertia is above m l^2, an impact of one end moves the other up.
    """
    mass, half, rise, mu = 1.0, 0.5, 1e-3, 0.6
    inertia = 2.0 * mass * half**2
    normal = np.array([[0.0, 1.0, -half], [0.0, 1.0, half]])
    tangential = np.array([[1.0, 0.0, 0.5 * rise], [1.0, 0.0, -0.5 * rise]])
    rows = np.concatenate((normal, tangential))
    inverse = np.diag([1.0 / mass, 1.0 / mass, 1.0 / inertia])
    friction, tangents = np.full(2, mu), (np.array([2]), np.array([3]))
    free, delassus = rows @ velocity, rows @ inverse @ rows.T
    return CoulombProblem(delassus, free, tangents, friction, friction, (None,) * 2)


def test_a_rod_that_lands_with_one_end_has_one_solution_though_both_touch():
    """The other end, which the impact lifts, is left out; with it no condition holds."""
    # it turns: its left end falls, its right one hardly
    problem = landing_rod(np.array([0.1, -1.0, 1.9]))
    plain, _ = scale_problem(problem)
    assert bound_normal_forces(plain).open == [False, True]
    assert is_provably_unique(plain)
    found = solve(problem)
    assert (found.uniqueness, found.modes[1]) == ("proven", "open")
    (one,) = enumerate_solutions(problem)
    np.testing.assert_allclose(one.rates, found.rates, atol=1e-8)


@pytest.mark.parametrize(("speed", "certain"), [(4.0, True), (-4.0, True), (0.1, False)])
def test_a_rod_that_lands_with_both_ends_has_one_solution_where_it_slides(speed, certain):
    """Friction of the impulses that stop its fall, of 1 m/s, takes 0.6 m/s of what it slides.

    What its slope of d / (2 l) adds to that is of the same order.
    """
    problem = landing_rod(np.array([speed, -1.0, 0.0]))
    plain, _ = scale_problem(problem)
    assert bound_normal_forces(plain).open == [False, False]
    assert is_provably_unique(plain) is certain
    (one,) = enumerate_solutions(problem)
    assert (set(one.modes) == {"slip+" if speed > 0.0 else "slip-"}) is certain
    found = solve(problem)
    assert found.uniqueness == "proven"
    np.testing.assert_allclose(found.rates, one.rates, atol=1e-8)
    if certain:
        np.testing.assert_allclose(one.rates[2:], speed - 0.6 * np.sign(speed), atol=1e-3)


def test_contacts_that_separate_have_one_solution_whatever_their_friction():
    """Nothing pushes, so that static friction above kinetic friction leaves no choice either."""
    tangents = (np.array([2]), np.array([3]))
    free = np.array([0.5, 0.6, 1.0, -1.0])
    static, kinetic = np.full(2, 0.6), np.full(2, 0.4)
    delassus = np.diag([1.0, 1.0, 0.8, 0.8])
    delassus[0, 1] = delassus[1, 0] = 0.2
    problem = CoulombProblem(delassus, free, tangents, static, kinetic, (None, None))
    found = solve(problem)
    assert (found.uniqueness, found.modes) == ("proven", ("open", "open"))
    np.testing.assert_allclose(found.rates, free, atol=1e-15)


def test_several_solutions_stay_several_beside_a_contact_that_separates():
    """What is left out proves nothing of the others."""
    rng = np.random.default_rng(22)
    several = 0
    for _ in range(400):
        problem = random_problem(rng, 2, friction=3.0)
        rates = [problem.delassus @ f + problem.free for f in all_solutions(problem)]
        if all(np.abs(w - rates[0]).max() < 1e-6 for w in rates):
            continue
        several += 1
        rows = np.array([0, 1, 3, 4])  # of three contacts, the last on its own
        delassus, free = np.eye(6), np.array([0.0, 0.0, 0.5, 0.0, 0.0, 0.3])
        delassus[np.ix_(rows, rows)], free[rows] = problem.delassus, problem.free
        tangents = tuple(np.array([3 + i]) for i in range(3))
        friction = np.append(problem.kinetic, 0.4)
        beside = CoulombProblem(delassus, free, tangents, friction, friction, (None,) * 3, 1.0)
        assert bound_normal_forces(beside).open[2]
        assert not is_provably_unique(beside)
        assert len(enumerate_solutions(beside)) > 1
    assert several >= 5
