"""Random impacts, and laws whose solution is known, judged apart: `python -m attack.impacts N`.

Three families. "robot": a random robot whose contacts all touch, with a random velocity; whether
the law has a solution is known only where e = 0 and some velocity lifts all contacts ("liftable").
"known": Jacobians and a velocity chosen so that a chosen v+ and impulses obey the law, e = 0.
"any": a law with chosen w and f and b = w - G f, as restitution makes it, where b is not J v.
The last two are in units of mass and velocity that differ by up to 1e4 from SI.

A refusal because there are several solutions is an answer too if all that it names obey the law and
their velocities differ.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attack import api
from attack.laws import Array, Law, liftable, violation
from attack.machines import BASES, machine
from attack.rigid import impact_law, row_forces
from hybridctl.base.errors import HybridctlError, SeveralContactSolutionsError

WRONG = 1e-7
FAMILIES = ("robot", "known", "any")


class Case(NamedTuple):
    """One problem: its law, a call that gives its forces, and whether a solution is known."""

    family: str
    law: Law
    solve: Callable[[], tuple[Array, float]]
    solvable: bool


@dataclass(frozen=True)
class Outcome:
    """What became of a case: the error's name or "", the worst residual, seconds.

    several: the error names more than one solution, and they are.
    """

    seed: int
    family: str
    contacts: int
    solvable: bool
    error: str
    wrong: float
    seconds: float
    several: bool = False


def case(seed: int) -> Case:
    """Case number `seed`: contacts 1 to 8, degrees of freedom 1 to 12, families in turn."""
    rng = np.random.default_rng([12, seed])
    family = FAMILIES[seed % 3]
    count, dof = 1 + (seed // 3) % 8, int(rng.integers(1, 13))
    if family == "robot":
        return _robot(rng, count, dof)
    return _known(rng, count, dof) if family == "known" else _any(rng, count, dof)


def _robot(rng: np.random.Generator, count: int, dof: int) -> Case:
    """Half of them without restitution."""
    bases = BASES if dof >= 6 else BASES[:2]
    elastic = 0.0 if rng.random() < 0.5 else 1.0
    base = bases[rng.integers(len(bases))]
    each = machine(rng, base, dof, count, restitution=elastic)
    v = 10.0 ** rng.uniform(-1.0, 1.0) * rng.normal(size=each.model.nv)
    at = tuple(range(count))
    judge = each.judge()
    law, jacobian = impact_law(judge, each.q, v, at)

    def solve() -> tuple[Array, float]:
        struck = api.strike(each, v, at)
        forces = row_forces(judge.rows(each.q, v), struck.impulses, struck.friction)
        change = judge.mass_matrix(each.q) @ (struck.velocity - v)
        size = np.abs(judge.mass_matrix(each.q)) @ (np.abs(v) + np.abs(struck.velocity))
        size = size + np.abs(jacobian.T) @ np.abs(forces)
        balance = np.abs(change - jacobian.T @ forces).max() / size.max()
        energy = 0.5 * change @ (struck.velocity + v)
        gained = energy / (0.5 * v @ judge.mass_matrix(each.q) @ v)
        return forces, float(max(balance, gained if elastic == 0.0 else 0.0))

    return Case("robot", law, solve, elastic == 0.0 and liftable(jacobian, law))


def _shape(rng: np.random.Generator, count: int) -> tuple[tuple[int, ...], Array]:
    """Numbers of tangents, and coefficients of friction from 0 to 2."""
    space = 2 if rng.random() < 0.7 else 1
    tangents = tuple(0 if rng.random() < 0.1 else space for _ in range(count))
    friction = np.where(np.array(tangents) == 0, 0.0, rng.uniform(0.0, 2.0, count))
    return tangents, friction


def _solution(
    rng: np.random.Generator, tangents: tuple[int, ...], friction: Array
) -> tuple[Array, Array]:
    """Velocities w and impulses f that obey the law: a third open, stick, slip each."""
    w, f = [], []
    for m, mu in zip(tangents, friction, strict=True):
        direction = rng.normal(size=m)
        direction /= np.linalg.norm(direction) if m else 1.0
        speed, push, kind = rng.uniform(0.1, 1.0), rng.uniform(0.1, 1.0), rng.integers(3)
        if kind == 0:
            w.append([speed, *(rng.uniform(0.0, 1.0) * direction)])
            f.append(np.zeros(1 + m))
        elif kind == 1:
            w.append(np.zeros(1 + m))
            f.append([push, *(rng.uniform(0.0, 0.95) * mu * push * direction)])
        else:
            w.append([0.0, *(-speed * direction)])
            f.append([push, *(mu * push * direction)])
    return np.concatenate(w), np.concatenate(f)


def _inverse_mass(rng: np.random.Generator, dof: int) -> Array:
    """Symmetric, with eigenvalues from 0.1 to 10."""
    basis = np.linalg.qr(rng.normal(size=(dof, dof)))[0]
    return np.asarray((basis * 10.0 ** rng.uniform(-1.0, 1.0, dof)) @ basis.T)


def _known(rng: np.random.Generator, count: int, dof: int) -> Case:
    """Rows turned so that J v+ = w for a chosen v+; then v = v+ - M^-1 J' f and b = J v."""
    tangents, friction = _shape(rng, count)
    w, f = _solution(rng, tangents, friction)
    after = rng.normal(size=dof)
    jacobian = rng.normal(size=(len(w), dof))
    jacobian -= np.outer(jacobian @ after - w, after) / (after @ after)
    by_impulse = _inverse_mass(rng, dof) @ jacobian.T
    before = after - by_impulse @ f
    speed = float((np.abs(jacobian) @ np.abs(before)).max())
    law = Law(jacobian @ by_impulse, jacobian @ before, friction, tangents, speed)
    return _by_law("known", rng, law)


def _any(rng: np.random.Generator, count: int, dof: int) -> Case:
    tangents, friction = _shape(rng, count)
    w, f = _solution(rng, tangents, friction)
    jacobian = rng.normal(size=(len(w), dof))
    delassus = jacobian @ _inverse_mass(rng, dof) @ jacobian.T
    speed = float((np.abs(delassus) @ f + np.abs(w)).max())
    return _by_law("any", rng, Law(delassus, w - delassus @ f, friction, tangents, speed))


def _by_law(family: str, rng: np.random.Generator, law: Law) -> Case:
    """A case that is given as a law, in random units of mass and velocity."""
    mass, speed = 10.0 ** rng.uniform(-4.0, 4.0, 2)
    other = replace(
        law, delassus=law.delassus / mass, free=law.free * speed, speed=law.speed * speed
    )
    return Case(family, other, lambda: (api.solved(other), 0.0), True)


def judged(seed: int) -> Outcome:
    """Solve case `seed` and judge the result; errors that are not hybridctl's pass through."""
    each = case(seed)
    error, wrong, several = "", 0.0, False
    began = time.process_time()
    try:
        forces, besides = each.solve()
    except HybridctlError as refusal:
        error = type(refusal).__name__
        several = isinstance(refusal, SeveralContactSolutionsError) and _are_several(refusal)
    seconds = time.process_time() - began
    if not error:
        wrong = max(violation(each.law, forces).worst, besides)
    return Outcome(
        seed, each.family, len(each.law.friction), each.solvable, error, wrong, seconds, several
    )


def _are_several(refusal: SeveralContactSolutionsError) -> bool:
    """Whether a refusal names solutions that obey the law, with different velocities."""
    named = api.named(refusal)
    rates = np.array([law.delassus @ forces + law.free for law, forces in named])
    apart = np.ptp(rates, axis=0).max() > WRONG * max(law.velocity_unit for law, _ in named)
    return bool(apart) and all(violation(law, forces).worst <= WRONG for law, forces in named)


def outcomes(count: int) -> Iterator[Outcome]:
    """The first `count` cases."""
    return map(judged, range(count))


def unsolved(found: list[Outcome]) -> list[Outcome]:
    """Refused without a reason that holds, or wrong, although a solution is known."""
    return [o for o in found if o.solvable and not o.several and (o.error or o.wrong > WRONG)]


def main() -> None:
    """Print a table of many impacts, by family and number of contacts."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    groups: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in outcomes(count):
        groups[outcome.family, outcome.contacts].append(outcome)
    print("family contacts  cases accepted  wrong   worst  known unsolved  ms: median 99% max")
    for (family, contacts), group in sorted(groups.items()):
        accepted = [o for o in group if not o.error]
        wrong = [o for o in accepted if o.wrong > WRONG]
        known = [o for o in group if o.solvable]
        ms = 1e3 * np.array([o.seconds for o in group])
        print(
            f"{family:6} {contacts:8} {len(group):6} {len(accepted):8} {len(wrong):6} "
            f"{max((o.wrong for o in accepted), default=0.0):7.0e} {len(known):6} "
            f"{len(unsolved(group)):8}  {np.median(ms):10.2f} {np.quantile(ms, 0.99):.1f} "
            f"{ms.max():.0f}",
            flush=True,
        )
    every = [o for group in groups.values() for o in group]
    print("refused:", dict(Counter(f"{o.family} {o.error}" for o in every if o.error)))
    wrong = [o for o in every if o.wrong > WRONG]
    print(f"wrong: {len(wrong)}, first cases {[o.seed for o in wrong][:20]}")
    missing = unsolved(every)
    known_count = sum(o.solvable for o in every)
    print(f"unsolved: {len(missing)} of {known_count}, first {[o.seed for o in missing][:20]}")


if __name__ == "__main__":
    main()
