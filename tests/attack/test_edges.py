"""Bodies that slide over edges fall off them or are refused by name: none goes on in the air."""

import pytest

from attack.edges import judged

COUNTS = [(0, 8), pytest.param((8, 24), marks=pytest.mark.slow)]
"""First seed, and the seed after the last one; 200 by hand, see `attack.edges`."""


@pytest.mark.parametrize("seeds", COUNTS)
def test_what_slides_over_an_edge_obeys_the_laws_of_contact(seeds):
    found = [judged(seed)[1] for seed in range(*seeds)]
    assert not [verdict for verdict in found if not verdict.startswith("right")]
