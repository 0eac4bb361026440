"""Impacts built around a known solution: none is lost, and none is called unique that is not."""

import pytest

from attack.built import judged, outcomes, unflagged


def test_no_answer_is_untrue_and_all_kinds_of_answers_are_met():
    found = list(outcomes(120))
    assert not [o for o in found if unflagged(o)]
    met = {(o.answer, o.another) for o in found}
    assert {("proven", False), ("disproven", True), ("not established", True)} <= met
    assert any(o.answer == "refused: several" for o in found)


@pytest.mark.slow
def test_no_answer_of_many_is_untrue():
    assert not [o.seed for o in outcomes(600) if unflagged(o)]


@pytest.mark.parametrize("seed", [60, 172, 185, 470, 520, 2081, 2813])
def test_a_solution_that_was_not_seen(seed):
    """Normals that cannot move, narrow ways of Newton's method, ends of a continuum."""
    assert not unflagged(judged(seed))
