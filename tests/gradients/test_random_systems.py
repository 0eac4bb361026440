"""Gradients of 100 random systems by all kinds of unknowns, against differences of whole flows."""

import re
from collections import Counter
from functools import cache

import pytest
from gradients.random_systems import ORDER, make_case
from gradients.verdicts import Verdict, judge

OUTCOMES = ("smooth", "passed over", "kink", "refused", "wrong")
"""Of several unknowns of a system the last of these counts."""
REASONS = r"fire together|accumulate|border|include one that|these events together|not crossed"
"""What an error says that refuses a gradient: why there is none."""


@cache
def judge_kind(kind: str, count: int) -> dict[int, list[Verdict]]:
    """Return the verdicts of those of the first `count` systems that are of a kind."""
    seeds = [seed for seed in range(count) if ORDER[seed % len(ORDER)] == kind]
    return {seed: judge(make_case(seed), seed) for seed in seeds}


def count_outcomes(verdicts: dict[int, list[Verdict]]) -> Counter[str]:
    """Return how many systems have each outcome, the worst of their unknowns."""
    return Counter(
        max((one.outcome for one in found), key=OUTCOMES.index) for found in verdicts.values()
    )
