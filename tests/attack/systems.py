"""Random systems simulated for half a second, judged apart: `python -m attack.systems N [first]`.

Trees of 1 to 12 joints on a fixed, planar or floating base fall onto 1 to 8 planes and spheres,
with inputs, springs and dampers; with `python -m attack.systems N first layouts` the chains, loops,
stacks and balls of `layouts`, in turn, and with `laws` as the last word without derivatives, which
take nine tenths of the time. It prints how many of each kind, and of what they are made of, end
how. A run may end with an error of hybridctl's; it may not take more than `MOST_STEPS` steps, nor
raise anything else, nor break a law (`runs`). Where `linearize`
accepts a run, its derivative is compared with central differences of the whole simulated flow,
for steps from 1e-3 to 1e-8 until one, or what two lead to, agrees, where perturbed runs have the
same modes. Relative errors of differences are (k h)^2 by curvature and about 10 eps / h by the
tolerance eps of runs, so that no less than (10 eps k)^(2/3) can be asked, nor less than the longest
step with the same modes leaves; two steps tell k.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

import hybridctl as hc
from attack.laws import Array
from attack.layouts import KINDS, matter
from attack.machines import BASES, Machine, machine
from attack.runs import faults
from hybridctl.base.errors import BridgeWarning, HybridctlError, NearGrazingWarning

END = 0.5
MOST_STEPS = 20_000
MOST_EVENTS = 400
MOST_SECONDS = 60
SLOPE = 1e-6
SIZES = (1e-5, 1e-6, 1e-7, *np.geomspace(1e-3, 1e-8, 11).tolist())
NOISE = 10.0  # of a central difference, in tolerances by its step
FINE = {"rtol": 1e-12, "atol": 1e-12}


class Hang(Exception):
    """A run that does not come to an end."""


@dataclass
class StepLimit:
    """Counts steps, and stops at the limit."""

    limit: int = MOST_STEPS
    steps: int = 0

    def __call__(self, t: float) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise Hang(f"still at t = {t!r} after {self.limit} steps")


class Case(NamedTuple):
    """A machine, its start in flight, and its input u(t, x).

    kind: "trees", or of a layout. made: what it is made of, in words.
    """

    machine: Machine
    start: Array
    policy: object
    kind: str = "trees"
    made: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What became of a system.

    error: "" or the refusal's name; raw: another exception or a hang, with where it was raised;
    wrong: the broken laws; slope: error of the derivative, nan where there is none to compare;
    floor: what differences leave of it.
    """

    seed: int
    kind: str
    made: tuple[str, ...]
    size: str
    error: str = ""
    raw: str = ""
    wrong: dict[str, float] = field(default_factory=dict)
    events: int = 0
    seconds: float = 0.0
    linearized: str = ""
    slope: float = float("nan")
    floor: float = SLOPE

    @property
    def slope_wrong(self) -> bool:
        """Whether the derivative is another one than that of differences."""
        return self.slope > self.floor


def case(seed: int, layouts: bool = False) -> Case:
    """System number `seed`, of random trees or of the layouts in turn."""
    return _layout(seed) if layouts else _tree(seed)


def _layout(seed: int) -> Case:
    """Efforts are in proportion to the inertias that they move."""
    rng = np.random.default_rng([35, seed])
    kind = tuple(KINDS)[seed % len(KINDS)]
    of = matter(rng)
    each = KINDS[kind](rng, of, 0.03)
    v = 10.0 ** rng.uniform(-1.0, 0.3) * rng.normal(size=each.model.nv)
    inertia = np.diag(each.judge().mass_matrix(each.q)) @ each.robot.actuation
    size, pace = inertia * rng.uniform(0.0, 10.0), rng.uniform(0.0, 9.0)
    phase = rng.uniform(0.0, 6.0, each.robot.nu)
    driven = each.robot.nu and rng.random() < 0.5
    policy = (lambda t, x: size * np.sin(pace * t + phase)) if driven else None
    return Case(each, np.concatenate([each.q, v]), policy, kind, of.words)


def _tree(seed: int) -> Case:
    rng = np.random.default_rng([34, seed])
    dof, count = int(rng.integers(1, 13)), int(rng.integers(1, 9))
    bases = BASES if dof >= 6 else BASES[:2]
    base = bases[rng.integers(len(bases))]
    each = machine(
        rng,
        base,
        dof,
        count,
        friction=1.2,
        restitution=0.0 if rng.random() < 0.5 else 0.8,
        apart=0.1,
        passive=rng.random() < 0.7,
    )
    model = each.model
    v = 10.0 ** rng.uniform(-1.0, 0.3) * rng.normal(size=model.nv)
    size, pace = rng.uniform(0.0, 3.0), rng.uniform(0.0, 9.0)
    phase = rng.uniform(0.0, 6.0, each.robot.nu)
    policy = (lambda t, x: size * np.sin(pace * t + phase)) if rng.random() < 0.7 else None
    return Case(each, np.concatenate([each.q, v]), policy)


def simulated(each: Case, system: hc.HybridSystem, start: Array, **options: float):
    """The run of a case from a start."""
    mode = ("open",) * len(each.machine.contacts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BridgeWarning)
        return hc.simulate(
            system,
            mode,
            start,
            (0.0, END),
            each.policy,
            on_zeno="rest",
            max_events=MOST_EVENTS,
            progress=StepLimit(),
            **options,
        )


def judged(seed: int, derivative: bool = True, layouts: bool = False) -> Outcome:
    """Simulate system `seed` and judge it, and its derivative."""
    each = case(seed, layouts)
    count, dof = len(each.machine.contacts), each.machine.model.nv
    outcome = Outcome(seed, each.kind, each.made, f"{count} contacts, {dof} dof")
    began = time.process_time()
    try:
        system = hc.mechanics.contact_system(each.machine.robot, each.machine.contacts)
        run = simulated(each, system, each.start)
        outcome.seconds = time.process_time() - began
        outcome.events = len(run.events)
        outcome.wrong = faults(each.machine, system, run).wrong()
        if derivative and run.events:
            _judge_derivative(each, system, np.random.default_rng(seed), outcome)
    except HybridctlError as refusal:
        outcome.error = type(refusal).__name__
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        outcome.raw = f"{type(error).__name__} {where}: {error}"[:160]
    outcome.seconds = outcome.seconds or time.process_time() - began
    return outcome


def _judge_derivative(each: Case, system, rng: np.random.Generator, outcome: Outcome) -> None:
    """Compare the linearization with central differences along one random direction."""
    run = simulated(each, system, each.start, **FINE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", NearGrazingWarning)
            linear = hc.linearize(system, run)
        space = run.arcs[0].space
        direction = rng.uniform(-1.0, 1.0, space.ndx)
        expected = 0.5 * (linear.derivative(direction) - linear.derivative(-direction))
    except (HybridctlError, NearGrazingWarning) as refusal:
        outcome.linearized = type(refusal).__name__
        return
    outcome.linearized = "yes"
    size, before = max(1.0, np.abs(expected).max()), None
    floors, longest = list[float](), 0.0
    for h in SIZES:
        found = _difference(each, system, run, direction, h)
        nearest = [found] if before is None else [found, _extrapolated(*before, found, h)]
        errors = [np.abs(slope - expected).max() / size for slope in nearest]
        outcome.slope = float(np.fmin.reduce([outcome.slope, *errors]))
        if outcome.slope <= SLOPE:
            return
        if np.isfinite(found).all():
            longest = max(longest, h)
        if before is not None:
            apart = np.abs(found - before[0]).max() / size
            bend = np.sqrt(apart) / max(h, before[1])
            if np.isfinite(bend):
                floors.append((NOISE * FINE["rtol"] * bend) ** (2.0 / 3.0))
        before = found, h
    noise = NOISE * FINE["rtol"] / longest if longest else SLOPE
    outcome.floor = max(SLOPE, min(floors, default=SLOPE), noise)


def _difference(each: Case, system, run, direction: Array, h: float) -> Array:
    """The central difference along a direction, nan where the modes differ."""
    space, last, ends = run.arcs[0].space, run.arcs[-1].space, []
    for sign in (1.0, -1.0):
        try:
            start = space.integrate(each.start, sign * h * direction)
            other = simulated(each, system, start, **FINE)
        except HybridctlError:
            return np.full(last.ndx, np.nan)
        if sequence(other) != sequence(run):
            return np.full(last.ndx, np.nan)
        ends.append(last.difference(run.final_state, other.final_state))
    return np.asarray((ends[0] - ends[1]) / (2.0 * h))


def _extrapolated(one: Array, h_one: float, other: Array, h_other: float) -> Array:
    """Richardson's extrapolation of two central differences to h = 0."""
    weights = h_other**2, h_one**2
    return (weights[1] * other - weights[0] * one) / (weights[1] - weights[0])


def sequence(run: hc.HybridTrajectory) -> list[tuple[object, ...]]:
    """Modes and guards of a run in their order."""
    return [(e.mode_before, e.guards, e.mode_after) for e in run.events]


def _alarm(number: int, frame: object) -> None:
    raise Hang(f"more than {MOST_SECONDS} s of processor time")


def attack(
    count: int, first: int, layouts: bool = False, derivative: bool = True
) -> Iterator[Outcome]:
    """`count` systems from number `first` on; long ones are stopped by the clock."""
    signal.signal(signal.SIGVTALRM, _alarm)
    for seed in range(first, first + count):
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
        try:
            yield judged(seed, derivative, layouts)
        except Hang as hang:  # while the exception handlers of `judged` ran
            yield Outcome(seed, "", (), "", raw=str(hang))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


COLUMNS = ("systems", "by laws", "refused", "broken", "raw", "derivatives", "wrong ones")


def counted(every: list[Outcome]) -> tuple[int, ...]:
    """How many there are, and what became of them: the numbers of `COLUMNS`."""
    return (
        len(every),
        sum(not o.error and not o.raw for o in every),
        sum(bool(o.error) for o in every),
        sum(bool(o.wrong) for o in every),
        sum(bool(o.raw) for o in every),
        sum(bool(np.isfinite(o.slope)) for o in every),
        sum(o.slope_wrong for o in every),
    )


def table(every: list[Outcome]) -> Iterator[str]:
    """Counts of all systems, of each kind and of what they are made of, and names of refusals."""
    groups: dict[str, list[Outcome]] = {"all": every}
    for o in every:
        for name in (o.kind, *o.made):
            groups.setdefault(name, []).append(o)
    yield f"{'':20}" + "".join(f"{name:>13}" for name in COLUMNS)
    for name in ("all", *sorted(groups.keys() - {"all"})):
        yield f"{name:20}" + "".join(f"{n:>13}" for n in counted(groups[name]))
    yield f"refused: {dict(Counter(o.error for o in every if o.error))}"
    yield f"linearized: {dict(Counter(o.linearized for o in every if o.linearized))}"
    seconds = np.array([o.seconds for o in every])
    yield f"seconds a run: median {np.median(seconds):.2f}, 90 % {np.quantile(seconds, 0.9):.2f}"


def main() -> None:
    """Print what goes wrong in many systems, and how many of which kind end how."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    every = []
    for outcome in attack(count, first, "layouts" in sys.argv[3:], "laws" not in sys.argv[3:]):
        every.append(outcome)
        if outcome.raw or outcome.wrong or outcome.error or outcome.slope_wrong:
            print(outcome, flush=True)
    print(*table(every), sep="\n")


if __name__ == "__main__":
    main()
