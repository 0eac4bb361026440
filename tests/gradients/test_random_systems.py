"""Gradients of 100 random systems by all kinds of unknowns, against differences of whole flows."""

import re
from collections import Counter

import pytest
from gradients.random_systems import ORDER, make_case
from gradients.verdicts import judge

COUNT = 100
"""Number of systems, of which every 20 have the same number of each kind."""
OUTCOMES = ("smooth", "passed over", "kink", "refused", "wrong")
"""Of several unknowns of a system the last of these counts; see `verdicts.Verdict`."""
REASONS = (
    "fire together|accumulate|border|only just takes part|these events together|time of the first"
    "|not crossed transversally"
)
"""What an error says that refuses a gradient: why there is none."""
FLOORS = {
    "ball": {"smooth": 20},
    "block": {"smooth": 15},
    "level block": {"kink": 2},
    "door": {"smooth": 10},
    "cube": {"smooth": 7},
    "level cube": {"kink": 2},
    "chain": {"smooth": 20},
    "quadruped": {"smooth": 1},
    "level quadruped": {"kink": 2},
}
"""Least number of systems of a kind with an outcome.

One less than was counted where rounding may decide which contact an impact just reaches."""
LONG = ("cube", "level block", "level cube", "quadruped", "level quadruped")
"""Kinds that take more than a minute."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.long) if k in LONG else k for k in FLOORS]
)
def test_gradients_of_random_systems_are_those_of_the_flow_or_refused_with_the_reason(kind):
    """By initial state, each parameter, held inputs and weights of a feedback, each for itself."""
    seeds = [seed for seed in range(COUNT) if ORDER[seed % len(ORDER)] == kind]
    found = {seed: judge(make_case(seed), seed) for seed in seeds}
    every = [one for verdicts in found.values() for one in verdicts]
    assert not [one for one in every if one.outcome == "wrong"]
    assert all(re.search(REASONS, one.reason) for one in every if one.outcome != "smooth")
    counts = Counter(
        max((one.outcome for one in verdicts), key=OUTCOMES.index) for verdicts in found.values()
    )
    print(kind, dict(counts))
    assert all(counts[outcome] >= least for outcome, least in FLOORS[kind].items()), counts
