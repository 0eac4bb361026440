"""Impacts built around a known solution, e = 0: `python -m attack.built N` prints what became of N.

Half of them have rows at random, fewer degrees of freedom than rows included, half contacts that
lie between others, as points of an edge or a face do, which makes normals redundant. Friction is up
to 6. Velocities and impulses are chosen to obey the law, and b = J v- follows: a solution is
known, whether or not it is the only one. Another one that obeys the law is a right answer too, but
not where its uniqueness is said to be proven, nor is it right that there is none.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attack import api
from attack.impacts import WRONG, _inverse_mass, _shape, _solution
from attack.laws import Array, Law, violation
from hybridctl.base.errors import (
    HybridctlError,
    NoContactSolutionError,
    SeveralContactSolutionsError,
)

ANOTHER = 1e-6  # of V: rates that differ by more are those of another solution
MOST_SETS = 64  # of contact states, up to which uniqueness is proven or disproven


class Outcome(NamedTuple):
    """What became of an impact: see `judged`. few: it has at most 64 sets of contact states."""

    seed: int
    kind: str
    few: bool
    answer: str
    another: bool
    wrong: float


def case(seed: int) -> tuple[str, Law, Array] | None:
    """Kind, law and known impulses of case `seed`; None where rounding left no solution."""
    rng = np.random.default_rng([29, seed])
    kind, count = ("random", "redundant")[seed % 2], 1 + (seed // 2) % 6
    dof = int(rng.integers(1, 10))
    tangents, friction = _shape(rng, count)
    friction = friction * rng.choice([1.0, 1.0, 3.0])
    if kind == "redundant":
        tangents = (2 if rng.random() < 0.5 else 1,) * count
        friction = rng.uniform(0.0, 2.0, count)
    w, f = _solution(rng, tangents, friction)
    after, rows = rng.normal(size=dof), rng.normal(size=(len(w), dof))
    rows -= np.outer(rows @ after - w, after) / (after @ after)
    if kind == "redundant" and count > 1:
        _add_between(rng, rows, f, after, friction, 1 + tangents[0])
    by_impulse = _inverse_mass(rng, dof) @ rows.T
    before = after - by_impulse @ f
    speed = float((np.abs(rows) @ np.abs(before)).max())
    law = Law(rows @ by_impulse, rows @ before, friction, tangents, speed)
    return None if violation(law, f).worst > 1e-10 else (kind, law, f)


def _add_between(
    rng: np.random.Generator, rows: Array, f: Array, after: Array, friction: Array, m: int
) -> None:
    """Put the last contacts, of m rows each, between earlier ones, with impulses that obey."""
    count = len(friction)
    base = int(rng.integers(1, count))
    for k in range(base, count):
        own = slice(m * k, m * (k + 1))
        one, other = (slice(m * j, m * (j + 1)) for j in rng.integers(0, base, 2))
        share, push = rng.uniform(0.2, 0.8), rng.uniform(0.1, 1.0)
        rows[own] = share * rows[one] + (1.0 - share) * rows[other]
        w = rows[own] @ after
        slip, draw = float(np.linalg.norm(w[1:])), rng.normal(size=m - 1)
        pull = draw / np.linalg.norm(draw) * rng.uniform(0.0, 0.95)
        if slip > 1e-9:
            pull = -w[1:] / slip
        f[own] = 0.0 if w[0] > 1e-9 else np.append(push, friction[k] * push * pull)


def judged(seed: int) -> Outcome | None:
    """Solve case `seed`: its answer is what is said of uniqueness, or why it was refused.

    another: the solution is not the known one. wrong: its largest violation of the law.
    """
    drawn = case(seed)
    if drawn is None:
        return None
    kind, law, known = drawn
    few = np.prod([2 + 2 * (m == 1) + (m == 2) for m in law.tangents]) <= MOST_SETS
    try:
        solution = api.solution(law)
    except SeveralContactSolutionsError:
        return Outcome(seed, kind, bool(few), "refused: several", False, 0.0)
    except NoContactSolutionError as refusal:
        why = "numerical failure" if refusal.numerical else "none"
        return Outcome(seed, kind, bool(few), f"refused: {why}", False, 0.0)
    except HybridctlError as refusal:
        return Outcome(seed, kind, bool(few), f"refused: {type(refusal).__name__}", False, 0.0)
    off = law.delassus @ (solution.forces - known)
    another = bool(np.abs(off).max() > ANOTHER * law.velocity_unit)
    wrong = violation(law, solution.forces).worst
    return Outcome(seed, kind, bool(few), solution.uniqueness, another, wrong)


def outcomes(count: int) -> Iterator[Outcome]:
    """Those of the first `count` cases."""
    return (outcome for outcome in map(judged, range(count)) if outcome is not None)


def unflagged(outcome: Outcome) -> bool:
    """Whether an answer is not true: unique though it is not, none though there is one."""
    undecided = outcome.few and outcome.answer == "not established"
    unique = outcome.another and outcome.answer == "proven"
    return undecided or unique or outcome.answer == "refused: none" or outcome.wrong > WRONG


def main() -> None:
    """Print a table of answers by kind and number of sets."""
    found = list(outcomes(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
    groups: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
    for o in found:
        groups[o.kind, o.few][o.answer + ", another one" * o.another] += 1
    for (kind, few), answers in sorted(groups.items()):
        print(f"{kind}, {'at most' if few else 'more than'} {MOST_SETS} sets: {dict(answers)}")
    print(f"worst residual {max(o.wrong for o in found):.0e}")
    print(f"untrue: {[o.seed for o in found if unflagged(o)]}")


if __name__ == "__main__":
    main()
