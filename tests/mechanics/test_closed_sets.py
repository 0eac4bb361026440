"""Contacts that can be closed together: known solutions, linear programmes, a plank that tips."""

from itertools import pairwise, product

import numpy as np
import pytest
from scipy.optimize import linprog

from hybridctl.mechanics.contact_law import CoulombProblem
from hybridctl.mechanics.contact_law.enumeration import can_be_closed, drop_infeasible_sets
from hybridctl.mechanics.contact_law.law import scale_problem
from mechanics.test_coulomb import known_problem


@pytest.mark.parametrize("count", range(1, 6))
def test_contacts_that_are_closed_in_a_known_solution_can_be(count):
    rng = np.random.default_rng([3, count])
    for _ in range(60):
        problem, forces = known_problem(rng, count, int(rng.integers(1, 13)))
        closed = np.flatnonzero(forces[:count] > 0.0).tolist()
        if closed:
            assert can_be_closed(scale_problem(problem)[0], closed)


def feasible(problem, closed):
    """The same by a linear programme, where cones are edges: friction along one tangent at most.

    Unknown are normal forces and friction of the closed contacts, and what rates may miss.
    """
    count, columns = len(problem.static), []
    bounds, edges = [], []
    for i in closed:
        (_, rows, static, kinetic, given) = problem.contacts[i]
        push = problem.delassus[:count, i].copy()
        at = len(bounds)
        columns.append(push)
        bounds.append((0.0, None))
        if given is not None:
            push -= kinetic * problem.delassus[:count, rows] @ np.array(given)
        elif rows and static > 0.0:
            columns.append(problem.delassus[:count, rows[0]])
            bounds.append((None, None))
            edges += [(at, static, 1.0), (at, static, -1.0)]
    rates = np.array(columns).T
    within = np.zeros((len(edges), rates.shape[1]))
    for row, (at, static, sign) in enumerate(edges):
        within[row, [at, at + 1]] = -static, sign
    miss = np.ones((count, 1))
    upper = np.block([[-rates, -miss], [rates[list(closed)], -miss[: len(closed)]]])
    upper = np.vstack((upper, np.hstack((within, np.zeros((len(edges), 1))))))
    right = np.concatenate(
        (problem.free[:count], -problem.free[list(closed)], np.zeros(len(edges)))
    )
    cost = np.append(np.zeros(rates.shape[1]), 1.0)
    found = linprog(cost, A_ub=upper, b_ub=right, bounds=[*bounds, (0.0, None)])
    return found.fun


def planar(rng, count):
    """A random law with at most one tangent for each contact, some of which slide already."""
    sizes = rng.integers(0, 2, count)
    starts = count + np.concatenate(([0], np.cumsum(sizes)))
    tangents = tuple(np.arange(a, b) for a, b in pairwise(starts))
    rows = rng.normal(size=(starts[-1], rng.integers(2, 7)))
    mu = np.where(sizes > 0, rng.uniform(0.0, 1.5, count), 0.0)
    sliding = tuple(
        np.array([rng.choice([-1.0, 1.0])]) if size and rng.random() < 0.3 else None
        for size in sizes
    )
    free = (
        rows @ rng.normal(size=rows.shape[1]) if rng.random() < 0.5 else rng.normal(size=len(rows))
    )
    return CoulombProblem(rows @ rows.T, free, tangents, mu, mu, sliding, float(np.abs(free).max()))


def test_a_linear_programme_says_the_same_where_friction_has_one_direction():
    rng, met = np.random.default_rng(5), {True: 0, False: 0}
    for _ in range(120):
        count = int(rng.integers(1, 5))
        problem, _ = scale_problem(planar(rng, count))
        for states in product((False, True), repeat=count):
            closed = np.flatnonzero(states).tolist()
            missed = feasible(problem, closed) if closed else 0.0
            # by 1e-7 they count as possible; linprog's tolerance is as large
            if closed and not 1e-9 < missed < 1e-6:
                met[missed < 1e-8] += 1
                assert can_be_closed(problem, closed) == (missed < 1e-8), (missed, closed)
    assert min(met.values()) >= 100, met


def test_of_a_plank_that_tips_about_one_corner_only_that_one_is_closed():
    """Unit mass and inertia, corners at -1 and 1, each with friction in both directions.

    The corners' rates are coupled by 1 - 1 = 0: each force moves its own corner alone, so that the
    one that rises at 1 m/s has no reason to be closed, whatever friction does in the plane.
    """
    normals = np.array([[1.0, -1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    tangents = np.array([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    rows = np.vstack((normals, tangents, tangents))
    mu = np.array([0.5, 0.5])
    free = np.array([-1.0, 1.0, 0.3, 0.0, 0.3, 0.0])
    places = (np.array([2, 3]), np.array([4, 5]))
    problem, _ = scale_problem(
        CoulombProblem(rows @ rows.T, free, places, mu, mu, (None,) * 2, 1.0)
    )
    assert can_be_closed(problem, [0])
    assert not can_be_closed(problem, [0, 1])
    states = list(product(("open", "stick", "slip"), repeat=2))
    left = [(a, b) for a, b in states if "open" in (a, b)]  # one alone is not looked at
    assert drop_infeasible_sets(problem, states) == left
