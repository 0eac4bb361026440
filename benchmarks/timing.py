"""Times of short calls: the best and the spread of several rounds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class Timing(NamedTuple):
    """Microseconds per call: the least of the rounds, and the largest over the least."""

    best: float
    spread: float


def measure(call: Callable[[], object], *, rounds: int, seconds: float) -> Timing:
    """Time `call` in rounds of about `seconds` each; the least is what the machine can do."""
    began = perf_counter()
    call()
    repeats = max(int(seconds / max(perf_counter() - began, 1e-7)), 1)
    times = []
    for _ in range(rounds):
        began = perf_counter()
        for _ in range(repeats):
            call()
        times.append((perf_counter() - began) / repeats * 1e6)
    return Timing(min(times), max(times) / min(times))
