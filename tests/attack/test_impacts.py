"""Random impacts: none that is accepted is wrong, and what has a solution is solved."""

from functools import cache

import pytest

from attack.impacts import WRONG, judged, outcomes, unsolved

# The first 40 of 120 run by default; more by hand, see `attack.impacts`.
SIZES = [40, pytest.param(120, marks=[pytest.mark.slow, pytest.mark.long])]


@cache
def found(count):
    return list(outcomes(count))


@pytest.mark.parametrize("count", SIZES)
def test_no_impact_that_is_accepted_is_wrong(count):
    wrong = [o for o in found(count) if o.wrong > WRONG]
    assert not wrong


@pytest.mark.parametrize("count", SIZES)
def test_what_is_known_to_have_a_solution_is_solved(count):
    known = sum(o.solvable for o in found(count))
    assert known > 0.7 * count
    assert len(unsolved(found(count))) <= 1e-3 * known


def test_a_solution_that_seemed_to_be_the_only_one_is_refused_beside_another():
    """Three contacts stick under impulses of some N s, or slide on under next to none."""
    outcome = judged(3319)
    assert outcome.error == "SeveralContactSolutionsError"
    assert outcome.several
