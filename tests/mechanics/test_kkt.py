"""Equations of motion and constraints: which sets of contacts hold each other."""

import numpy as np
import pytest

from hybridctl.mechanics.contact_law.linear_equations import KKT, RANK, LeastNormEquations

ROWS = np.array([[1.0, 0.5, 0.25], [0.0, 0.0, 0.0], [0.3, 1.0, 0.2]])


@pytest.mark.parametrize("share", [0.0, *10.0 ** -np.arange(2.0, 15.0)])
def test_a_row_that_is_a_sum_of_others_is_redundant_however_small_one_share(share):
    """Pivots of G do not tell: its last one may exceed the rounding by the inverse of the share."""
    rows = ROWS.copy()
    rows[1] = rows[0] + share * rows[2]
    system = KKT(np.eye(3), rows)
    assert system.redundant
    acceleration, forces = system.solve(np.array([1.0, 2.0, 3.0]), np.zeros(3))
    assert rows @ acceleration == pytest.approx(np.zeros(3), abs=1e-12)
    # forces along the sum and against its parts do nothing: those of least norm have none of it
    assert forces @ [1.0, -1.0, share] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("angle", [1.0, 1e-2, 1e-4])
def test_contacts_at_an_angle_are_independent(angle):
    rows = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    system = KKT(np.eye(2), rows)
    assert not system.redundant
    acceleration, _ = system.solve(np.ones(2), np.zeros(2))
    # two directions at this angle leave no motion, to rounding over the square of the angle
    assert acceleration == pytest.approx(np.zeros(2), abs=1e-15 / angle**2)


@pytest.mark.parametrize(("ratio", "redundant"), [(0.9 * RANK, True), (1.1 * RANK, False)])
def test_contacts_are_redundant_up_to_a_response_that_no_two_distinct_ones_have(ratio, redundant):
    """G = diag(1, ratio), whose inverse condition is the ratio itself.

    Rounding leaves 1e-16 times the condition of M, at most 1e-14 for robots; distinct contacts
    have left 1e-6: the border is in between.
    """
    rows = np.diag([1.0, np.sqrt(ratio)])
    assert KKT(np.eye(2), rows).redundant == redundant
    assert 1e-14 < RANK < 1e-6


def equations(seed, contacts, ranks, symmetric):
    """Random equations with so many contacts, of which so many are independent."""
    random = np.random.default_rng(seed)
    nv = 5
    root = random.normal(size=(nv, nv))
    mass = root @ root.T + nv * np.eye(nv)
    mixed = np.eye(contacts) if contacts == ranks else random.normal(size=(contacts, ranks))
    constraint = mixed @ random.normal(size=(ranks, nv))
    # sliding friction tilts what pushes, and independent contacts' forces stay independent
    tilted = (
        constraint.T
        if symmetric
        else constraint.T + 0.2 * random.normal(size=(nv, ranks)) @ mixed.T
    )
    weights = random.uniform(0.2, 5.0, size=contacts)
    return mass, tilted, constraint, weights, random


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("contacts", "ranks"), [(3, 3), (4, 2), (5, 4)])
def test_forces_and_what_belongs_to_them_are_those_of_numpy(contacts, ranks, symmetric, seed):
    """The least forces of G lambda = c in the metric of weights are W^(1/2) (G W^(1/2))^+ c.

    Condition numbers of these random matrices are up to 1e4, hence 1e-10 of rounding.
    """
    mass, force, constraint, weights, random = equations(seed, contacts, ranks, symmetric)
    G = constraint @ np.linalg.solve(mass, force)
    redundant, near = contacts > ranks, {"rtol": 1e-9, "atol": 1e-9}
    half = np.sqrt(weights)[:, None] if redundant else np.ones((contacts, 1))
    inverse = half * np.linalg.pinv(G * half.T, rcond=1e-11)
    given = None if symmetric else force
    system = KKT(mass, constraint, given, weights)
    assert (system.redundant, system.rank) == (redundant, ranks)

    upper, acting = random.normal(size=(5, 3)), random.normal(size=(contacts, 3))
    lower = G @ acting  # what these contacts can do
    acceleration, found = system.solve(upper, lower)
    expected = inverse @ (lower - constraint @ np.linalg.solve(mass, upper))
    np.testing.assert_allclose(found, expected, **near)
    np.testing.assert_allclose(mass @ acceleration - force @ found, upper, **near)
    np.testing.assert_allclose(system.forces(lower[:, 0]), inverse @ lower[:, 0], **near)

    sizes = np.linalg.svd(G, compute_uv=False)[:ranks]
    whole = np.linalg.det(G) if not redundant else sizes.prod()
    assert system.determinant == pytest.approx(whole, rel=1e-9)
    if not redundant:
        return
    sharing = system.distribution
    np.testing.assert_allclose(sharing.project(acting[:, 0]), inverse @ lower[:, 0], **near)
    np.testing.assert_allclose(
        system.distribution.null_projector(), np.eye(contacts) - inverse @ G, **near
    )
    np.testing.assert_allclose(
        system.distribution.residual_sensitivity(acting), inverse @ inverse.T @ acting, **near
    )
    least = inverse @ lower[:, 0]
    np.testing.assert_allclose(G.T @ sharing.adjoint(least), least / weights, **near)
    equal = np.linalg.pinv(G, rcond=1e-11)
    other = KKT(mass, constraint, given)
    np.testing.assert_allclose(other.forces(lower), equal @ lower, **near)
    again = other.with_weights(weights)
    np.testing.assert_allclose(again.forces(lower), inverse @ lower, **near)
    np.testing.assert_allclose(again.forces(lower[:, 0]), inverse @ lower[:, 0], **near)
    pushed = system.without_sliding_friction()
    plain = constraint @ np.linalg.solve(mass, constraint.T)
    np.testing.assert_allclose(pushed.delassus, plain, **near)
    reached = plain @ acting
    np.testing.assert_allclose(
        pushed.forces(reached), np.linalg.pinv(plain, rcond=1e-11) @ reached, **near
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "rank", "definite"),
    [
        (4, 4, 4, False),
        (5, 5, 2, False),
        (3, 6, 3, False),
        (3, 6, 2, False),
        (6, 3, 3, False),
        (6, 3, 1, False),
        (3, 3, 0, False),
        (2, 4, 0, False),
        (4, 4, 4, True),
        (6, 6, 3, True),
        (3, 3, 0, True),
    ],
)
def test_solutions_of_least_norm_are_those_of_numpy(rows, columns, rank, definite, weighted):
    """The inverse W^(1/2) (A W^(1/2))^+, and what A does not see, orthonormal in the metric.

    Condition numbers of these random matrices are up to 1e3, hence 1e-11 of rounding.
    """
    rng = np.random.default_rng(rows + 10 * columns + 100 * rank)
    A = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    A = A @ A.T if definite else A
    weights = rng.uniform(0.2, 5.0, columns) if weighted else np.ones(columns)
    system = LeastNormEquations(A, weights if weighted else None, definite=definite)
    half = np.sqrt(weights)[:, None]
    inverse = half * np.linalg.pinv(A * half.T, rcond=1e-11)
    assert system.rank == rank
    np.testing.assert_allclose(system.inverse, inverse, atol=1e-11)
    for right in (rng.normal(size=rows), rng.normal(size=(rows, 2))):
        np.testing.assert_allclose(system.solve(right), inverse @ right, atol=1e-11)
    assert system.null.shape == (columns, columns - rank)
    np.testing.assert_allclose(A @ system.null, 0.0, atol=1e-11)
    metric = system.null.T @ (system.null / weights[:, None])
    np.testing.assert_allclose(metric, np.eye(columns - rank), atol=1e-11)
