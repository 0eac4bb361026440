"""Equations of motion and constraints: which sets of contacts hold each other."""

import numpy as np
import pytest

from hybridctl.mechanics.kkt import KKT
from hybridctl.mechanics.tolerances import RANK

ROWS = np.array([[1.0, 0.5, 0.25], [0.0, 0.0, 0.0], [0.3, 1.0, 0.2]])


@pytest.mark.parametrize("share", [0.0, *10.0 ** -np.arange(2.0, 15.0)])
def test_a_row_that_is_a_sum_of_others_is_redundant_however_small_one_share(share):
    """Pivots of G do not tell: its last one may exceed the rounding by the inverse of the share."""
    rows = ROWS.copy()
    rows[1] = rows[0] + share * rows[2]
    system = KKT(np.eye(3), rows.T, rows)
    assert system.redundant
    acceleration, forces = system.solve(np.array([1.0, 2.0, 3.0]), np.zeros(3))
    assert rows @ acceleration == pytest.approx(np.zeros(3), abs=1e-12)
    # forces along the sum and against its parts do nothing: those of least norm have none of it
    assert forces @ [1.0, -1.0, share] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("angle", [1.0, 1e-2, 1e-4])
def test_contacts_at_an_angle_are_independent(angle):
    rows = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    system = KKT(np.eye(2), rows.T, rows)
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
    assert KKT(np.eye(2), rows.T, rows).redundant == redundant
    assert 1e-14 < RANK < 1e-6
