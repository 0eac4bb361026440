"""Processor times of short calls, best and spread of several rounds, and their lines in tables."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import NamedTuple


class Timing(NamedTuple):
    """Microseconds per call: the least of the rounds, and the largest over the least."""

    best: float
    spread: float


def measure(call: Callable[[], object], *, rounds: int, seconds: float) -> Timing:
    """Time `call` in rounds of about `seconds` each; the least is what the machine can do."""
    began = process_time()
    call()
    repeats = max(int(seconds / max(process_time() - began, 1e-7)), 1)
    times = []
    for _ in range(rounds):
        began = process_time()
        for _ in range(repeats):
            call()
        times.append((process_time() - began) / repeats * 1e6)
    return Timing(min(times), max(times) / min(times))


COLUMNS = ["what", "us", "bare us", "multiple", "max/min"]


def row(name: str, ours: Timing, bare: Timing) -> tuple[str, ...]:
    """One line of a table: our time, that of the bare calls, and spreads of both."""
    return (
        name,
        f"{ours.best:.1f}",
        f"{bare.best:.2f}",
        f"{ours.best / bare.best:.1f}",
        f"{ours.spread:.2f}, {bare.spread:.2f}",
    )
