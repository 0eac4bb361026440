"""Impacts of trees with closed contacts between branches agree with those of all contacts."""

import pytest

from attack.branches import judged

COUNTS = [(0, 24), pytest.param((24, 64), marks=pytest.mark.slow)]
"""First seed, and the seed after the last one; 300 by hand, see `attack.branches`."""


@pytest.mark.parametrize("seeds", COUNTS)
def test_impacts_reach_every_contact_that_an_impulse_moves(seeds):
    found = [judged(seed)[1] for seed in range(*seeds)]
    assert not [verdict for verdict in found if verdict.startswith("wrong")]
    assert found.count("right") > 0.9 * len(found)
