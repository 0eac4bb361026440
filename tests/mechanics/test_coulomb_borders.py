"""Coulomb's law in C where states, units and proofs change: on borders, and next to thresholds.

Where a case has no closed form, Python is the reference.
"""

import os
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

from hybridctl.base.errors import HybridctlError
from hybridctl.mechanics.contact_law import compiled, solver
from hybridctl.mechanics.contact_law.law import CoulombProblem, scale_problem
from hybridctl.mechanics.contact_law.uniqueness import is_provably_unique
from mechanics.impacts import violation

pytestmark = pytest.mark.skipif(
    find_spec("hybridctl.mechanics.contact_law._coulomb") is None
    or os.environ.get("HYBRIDCTL_KERNEL") == "off",
    reason="no compiled extension",
)
ROUNDING = 1e-10
"""Dimensionless: rounding, 1e-16, times the condition of Newton's equations, below 1e6 here."""


def make_problem(delassus, free, sizes, friction=0.0, static=None, sliding=None, magnitude=0.0):
    """Return a problem of contacts with so many tangents each."""
    k = len(sizes)
    tangents = tuple(np.arange(a, b) for a, b in pairwise(np.cumsum([k, *sizes])))
    kinetic = np.broadcast_to(np.asarray(friction, dtype=float), (k,)).copy()
    given = kinetic if static is None else np.broadcast_to(np.asarray(static, float), (k,)).copy()
    directions = sliding or (None,) * k
    g, b = np.array(delassus, dtype=float), np.array(free, dtype=float)
    return CoulombProblem(g, b, tangents, given, kinetic, directions, magnitude)


def search(problem):
    """Return what C finds."""
    return compiled.search_compiled(problem, solver.MAX_ENUMERATED_SETS)


def prove(problem):
    """Return whether C proves uniqueness, as Python does."""
    proven = compiled.is_problem_unique(problem)
    assert proven == is_provably_unique(scale_problem(problem)[0])
    return proven


def make_small_problems(count, seed):
    """Yield problems of small whole numbers: many are redundant, at a border, or without effect."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        k = int(rng.integers(1, 4))
        sizes = rng.integers(0, 3, size=k).tolist()
        rows = rng.integers(-1, 2, size=(k + sum(sizes), rng.integers(2, 8))).astype(float)
        free = rng.integers(-2, 3, size=len(rows)).astype(float)
        units = 4.0 ** rng.integers(-3, 4, size=k) if rng.random() < 0.5 else np.ones(k)
        units = np.concatenate([units, *[[u] * n for u, n in zip(units, sizes, strict=True)]])
        kinetic = rng.choice([0.0, 0.5, 1.0], size=k)
        slides = [n > 0 and rng.random() < 0.25 for n in sizes]
        sliding = tuple(
            rng.choice([-1.0, 1.0]) * np.eye(n)[rng.integers(n)] if s else None
            for n, s in zip(sizes, slides, strict=True)
        )
        rows, free = units[:, None] * rows, units * free
        yield make_problem(
            rows @ rows.T * (rng.random() > 0.05),
            free * (rng.random() > 0.05),
            sizes,
            kinetic,
            kinetic * (1.5 if rng.random() < 0.2 else 1.0),
            sliding,
            float(rng.choice([0.0, 1.0, 8.0])),
        )


def test_solutions_on_borders_are_those_of_python():
    settled = on_border = 0
    for problem in make_small_problems(1500, seed=1):
        prove(problem)
        found = search(problem)
        if found is None:
            continue
        expected = solver._solve_in_python(problem)
        assert (found.modes, found.border, found.uniqueness) == (
            expected.modes,
            expected.border,
            expected.uniqueness,
        )
        _, units = scale_problem(problem)
        for own, other, unit in (
            (found.forces, expected.forces, units.forces),
            (found.rates, expected.rates, units.rates),
        ):
            np.testing.assert_allclose(own / unit, other / unit, rtol=0.0, atol=ROUNDING)
        for i, rows in enumerate(problem.tangents):
            assert found.modes[i] != "open" or not found.forces[[i, *rows]].any()
        settled += 1
        on_border += bool(found.border)
    assert settled > 900
    assert on_border > 200


def test_what_is_found_obeys_the_law():
    """With friction of up to 3, where Newton's method often ends beside a solution."""
    rng, settled = np.random.default_rng(5), 0
    for _ in range(1500):
        k = int(rng.integers(1, 4))
        rows = rng.normal(size=(3 * k, rng.integers(3, 7)))
        free = rng.normal(size=3 * k)
        problem = make_problem(rows @ rows.T, free, [2] * k, rng.uniform(0.0, 3.0, size=k))
        found = search(problem)
        if found is None:
            continue
        settled += 1
        # The certificate is 1e-9 in stricter units than those of the violation.
        assert violation(problem, found.forces) <= 1e-8
        assert found.residual <= 1e-9
    assert settled > 300


@pytest.mark.parametrize("magnitude", [0.0, 50.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_tolerances_are_relative_to_the_largest_term(magnitude, sign):
    """A contact that separates at 0.5e-9 of it is closed; at 2e-9 it is open. Others are far."""
    largest = max(20.0, magnitude)
    for ratio, state in ((0.5e-9, "closed"), (2e-9, "open")):
        found = search(make_problem(np.eye(2), [sign * 20.0, ratio * largest], [0, 0],
                                    magnitude=magnitude))  # fmt: skip
        assert found.modes == ("open" if sign > 0.0 else "closed", state)
        assert (1 in found.border) == (state == "closed")


def test_a_contact_that_responds_less_has_smaller_units():
    """With 1e-4 of the other's response d = 100: its rates are in units of 1/100."""
    for rate, state in ((5e-12, "closed"), (5e-11, "open")):
        found = search(make_problem(np.diag([1.0, 1e-4]), [-1.0, rate], [0, 0]))
        assert found.modes == ("closed", state)


def test_a_pull_below_the_tolerance_is_none():
    """Two rigidly coupled contacts share a push; one of them by -5e-10 of it."""
    found = search(make_problem([[1.0, 0.5], [0.5, 1.0]], [-1.0, -0.5 + 5e-10], [0, 0]))
    assert found.modes == ("closed", "closed")
    assert found.border == (1,)
    assert found.forces[0] == pytest.approx(1.0, abs=1e-9)
    assert found.forces[1] == 0.0


@pytest.mark.parametrize(("slip", "state"), [(5e-10, "stick"), (2e-9, "slip"), (1e-3, "slip")])
def test_the_direction_of_a_slow_slip_is_that_of_its_friction(slip, state):
    """Friction of 0.5 is exceeded by the slip. Its direction is known to 1e-9 by the force."""
    way = np.array([0.6, 0.8])
    found = search(make_problem(np.eye(3), [-1.0, *((0.5 + slip) * way)], [2], 0.5))
    assert found.modes == (state,)
    if state == "slip":
        np.testing.assert_allclose(found.directions[0], way, atol=1e-12)
        np.testing.assert_allclose(found.forces[1:], -0.5 * way, atol=1e-12)


@pytest.mark.parametrize("load", [0.55, 0.65])
def test_four_contacts_hold_by_static_friction(load):
    """Loads between kinetic friction, 0.5, and static friction, 0.6, or above it.

    They have 81 sets of states: that is more than are tried for other solutions.
    """
    way = np.array([0.6, -0.8])
    problem = make_problem(np.eye(12), [*[-1.0] * 4, *np.tile(load * way, 4)], [2] * 4, 0.5, 0.6)
    found = search(problem)
    assert found.uniqueness == "not established"
    assert found.modes == ("stick" if load < 0.6 else "slip",) * 4
    np.testing.assert_allclose(found.forces[4:], np.tile(-min(load, 1.0) * way, 4)
                               if load < 0.6 else np.tile(-0.5 * way, 4), atol=1e-12)  # fmt: skip


def test_where_nothing_moves_or_responds():
    assert search(make_problem(np.eye(3), np.zeros(3), [2], 0.5)).modes == ("stick",)
    for rate, state in ((0.0, "closed"), (1.0, "open")):
        found = search(make_problem([[0.0]], [rate], [0]))
        assert found.modes == (state,)
        assert found.forces.tolist() == [0.0]
        assert found.rates.tolist() == [rate]
    assert search(make_problem([[0.0]], [-1.0], [0])) is None


def stretch(problem, what, factor):
    """Return a problem with tangential rates, or friction, that is multiplied."""
    k = len(problem.static)
    if what == "friction":
        return make_problem(problem.delassus, problem.free, [len(r) for r in problem.tangents],
                            factor * problem.kinetic, None, problem.sliding)  # fmt: skip
    free = problem.free.copy()
    free[k:] *= factor
    return make_problem(problem.delassus, free, [len(r) for r in problem.tangents],
                        problem.kinetic, None, problem.sliding)  # fmt: skip


@pytest.mark.parametrize("what", ["friction", "tangential rates"])
@pytest.mark.parametrize("slides", [False, True])
def test_proofs_end_at_the_same_thresholds(what, slides):
    """The threshold in a factor is bisected in Python; C changes its mind within 1e-8 of it."""
    rng, count = np.random.default_rng([7, slides]), 0
    for _ in range(120):
        k = int(rng.integers(2, 4))
        rows = np.eye(3 * k) + 0.4 * rng.normal(size=(3 * k, 3 * k))
        rows[k:] *= rng.uniform(1.0, 3.0)
        free = np.concatenate([-rng.uniform(-0.3, 1.0, size=k), rng.normal(size=2 * k)])
        ways = [w / np.linalg.norm(w) for w in rng.normal(size=(k, 2))]
        chosen = rng.random(k) < 0.5
        sliding = tuple(w if slides and s else None for w, s in zip(ways, chosen, strict=True))
        base = make_problem(
            rows @ rows.T, free, [2] * k, rng.uniform(0.1, 0.4, size=k), None, sliding
        )

        def proves(factor, base=base):
            return is_provably_unique(scale_problem(stretch(base, what, factor))[0])

        low, high = 1e-3, 1e3
        first, last = proves(low), proves(high)
        if first == last:
            continue
        while high - low > 1e-12 * high:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if proves(middle) == first else (low, middle)
        count += 1
        for factor, expected in ((low * (1.0 - 1e-8), first), (high * (1.0 + 1e-8), last)):
            if proves(factor) == expected:  # else there is another threshold within 1e-8
                assert compiled.is_problem_unique(stretch(base, what, factor)) == expected
    assert count >= 10


@pytest.mark.parametrize(
    ("name", "proven", "problem"),
    [
        # mu^2 |G_tt| |G_nn^-1| is 4 but for less than the 1e-6 that rounding is left.
        ("a limit is strict", False,
         make_problem(np.diag([0.25, 0.25, 1, 1, 1, 1]), np.zeros(6) - [1, 1, 0, 0, 0, 0], [2, 2],
                      1.0 - 2e-7)),
        ("below the limit", True,
         make_problem(np.diag([0.25, 0.25, 1, 1, 1, 1]), np.zeros(6) - [1, 1, 0, 0, 0, 0], [2, 2],
                      1.0 - 2e-6)),
        # Two normals that are the same: friction of 1e-6 proves nothing where G has no inverse.
        ("no inverse", False,
         make_problem(np.block([[np.ones((2, 2)), np.zeros((2, 4))],
                                [np.zeros((4, 2)), np.eye(4)]]), [-1, -1, 0, 0, 0, 0], [2, 2],
                      1e-6)),
        # Nothing moves: no force, whatever friction is.
        ("nothing moves", True,
         make_problem(np.diag([1, 1, 9, 9, 9, 9]), np.zeros(6), [2, 2], 1.0)),
        # A contact without friction does not have to slide.
        ("one without friction", True,
         make_problem(np.diag([1.0, 1.0, 9.0, 9.0, 9.0, 9.0]) + 0.01, [-1, -1, 900, 0, 0, 0],
                      [2, 2], [1.0, 0.0])),
        # Open but for the margin of 1e-7: the contact with static friction counts.
        ("open by less than the margin", False,
         make_problem(np.eye(4), [-1, 5e-8, 0, 0], [0, 2], 0.5, [0.5, 0.6], magnitude=1.0)),
        ("open by more", True,
         make_problem(np.eye(4), [-1, 5e-7, 0, 0], [0, 2], 0.5, [0.5, 0.6], magnitude=1.0)),
        ("pushed open by less than the margin", False,
         make_problem([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
                      [-5e-8, 8.5e-8, 0, 0], [0, 2], 0.5, [0.5, 0.6], magnitude=1.0)),
        # Static friction of 0.9, not kinetic friction of 0.3, may close a contact that separates.
        ("closed by its static friction", False,
         make_problem([[1, 0, 0], [0, 1, 2], [0, 2, 5]], [-1, 1, 0], [0, 1], [0.0, 0.3],
                      [0.0, 0.9])),
        ("not closed by kinetic friction", True,
         make_problem([[1, 0, 0], [0, 1, 2], [0, 2, 5]], [-1, 1, 0], [0, 1], [0.0, 0.3],
                      [0.0, 0.31])),
        # A contact without response opens no other.
        ("without response", False,
         make_problem(np.diag([0.0, 1, 1, 1]), [-1, -1, 0, 0], [0, 2], 0.5, [0.5, 0.6])),
        # One contact that all but separates, with a large tangential rate along its coupling.
        ("one contact that separates", True,
         make_problem([[1, 0.5, 0], [0.5, 5, 0], [0, 0, 5]], [5e-8, 10, 0], [2], 1.0)),
    ],
)  # fmt: skip
def test_what_decides_a_proof(name, proven, problem):
    """Each next to the place where one number of a condition changes the answer."""
    assert prove(problem) == proven, name


def test_proofs_of_one_contact_are_those_of_python():
    """Where friction couples to the normal, so that turning it matters."""
    rng, counts = np.random.default_rng(6), [0, 0]
    for _ in range(800):
        rows = rng.normal(size=(3, 4))
        rows[0] += 2.0 * rng.normal() * rows[1]
        free = np.r_[-rng.uniform(0.0, 1.0), 10.0 ** rng.uniform(-0.5, 2.0) * rng.normal(size=2)]
        counts[prove(make_problem(rows @ rows.T, free, [2], rng.uniform(0.2, 1.0)))] += 1
    assert min(counts) > 30


def test_a_problem_without_a_solution_is_left_to_python():
    """A rod that is pushed along the ground jams: mu G_nt > G_nn and b_n < 0."""
    problem = make_problem([[1.0, -1.2], [-1.2, 2.0]], [-1.0, -1.0], [1], 1.0,
                           sliding=(np.array([-1.0]),))  # fmt: skip
    assert search(problem) is None
    with pytest.raises(HybridctlError):
        solver.solve(problem)
