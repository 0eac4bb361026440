"""Walks: many steps under a policy, from starts that are off, pushed, or over a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.walking.gait import Gait
from hybridctl.robots import five_link

from hybridctl.base.checks import Array
from hybridctl.base.errors import GuardViolatedError, SimulationError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import ContinuedPolicy, Policy
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.system import ContactSystem, closed_contacts

TOLERANCE = 1e-7
_PATIENCE = 1.5  # of the time that the steps of the gait take
_AGREED = 3  # changes of a state from step to step that tell how they go on
_CYCLE = 4  # steps, at most, in which a walk that limps repeats
_LEFT = 1e-3  # rad, m and per s, that steps to come may move a state; a push of 1 N s moves it 0.08
STANCES = (five_link.LEFT_STANCE, five_link.RIGHT_STANCE)
BOTH_DOWN = ("stick", "stick")


@dataclass(frozen=True, eq=False)
class Walk:
    """A walk of some steps.

    steps: touchdowns of the right foot at the right turn before a fall, and those that follow where
    the walk repeats. run: what was simulated, None where even that failed. reason: of the fall,
    empty where there was none.
    """

    steps: int
    run: HybridTrajectory | None
    reason: str = ""

    def errors(self, gait: Gait) -> Array:
        """Norms (steps,) of what states after touchdown are off, the way apart; rad, m and per s.

        They are compared as those of one leg.
        """
        assert self.run is not None
        nominal = gait.orbit.events[0].state_after[1:]
        seen = seen_alike(gait, self.run.guard_events[: self.steps])
        return np.asarray(np.linalg.norm(seen - nominal, axis=1))


def seen_alike(gait: Gait, touchdowns: Sequence[Event]) -> Array:
    """States (steps, 13) after touchdowns, the way apart, as those of the leg of the first one."""
    exchange = gait.symmetry.matrix
    after = [event.state_after for event in touchdowns]
    seen = [exchange @ x if k % 2 else x for k, x in enumerate(after)]
    return np.array(seen).reshape(-1, len(exchange))[:, 1:]


def repeats(states: Array, more: int) -> bool:
    r"""Whether a walk repeats, by its states (n, 13) after touchdowns, over so many more steps.

    With the changes :math:`d_k = |x_{k + p} - x_k|` over a step, p = 1, or over two to four of a
    walk that limps, and the worst ratio :math:`\rho` of one to the one before among the last p + 2,
    but no better than 1/2, what is left of them is at most

    .. math:: d\, (\rho + \rho^2 + \dots + \rho^m)

    with the last d, if they go on so; what is below the tolerance of a run counts as that. Where
    this is 1e-3 rad, m and per s or less, an 80th of what 1 N s does, each step to come is one of
    the last p but for a change of its start that is far below the grids on which limits are looked
    for: those were walked, so it is. A drift, of ratio 1, counts with all its steps, a growing
    error with its growth. What a change hides that shrinks by itself is not seen: an error that is
    smaller than it by then, and shrinks more slowly or grows.
    """
    return any(_settles(states, p, more) for p in range(1, _CYCLE + 1))


def _settles(states: Array, p: int, more: int) -> bool:
    agreed = _AGREED + p - 1
    changes = (states[p:] - states[:-p])[-agreed:]
    if len(changes) < agreed:
        return False
    sizes = np.maximum(np.linalg.norm(changes, axis=1), TOLERANCE)
    ratio = max(0.5, float((sizes[1:] / sizes[:-1]).max()))
    return bool(sizes[-1] * np.sum(ratio ** np.arange(1, more + 1)) <= _LEFT)


def is_fall(event: Event) -> bool:
    """Whether a foot slips, lets go without the other one taking over, or stays as that one lands.

    New torques of a policy may make it slip as well, in an event without guards.
    """
    if event.mode_before not in STANCES or event.mode_after not in STANCES:
        return True
    return bool(event.guards) and event.mode_after == event.mode_before


class GaitPlace(NamedTuple):
    """A place on a gait from which walks begin: the time there, s, which foot stands, its state.

    past: events before it.
    """

    time: float
    mode: ModeKey
    state: Array
    past: tuple[Event, ...] = ()


def in_mid_step(gait: Gait) -> GaitPlace:
    """The first place of the orbit: in mid-step of the left leg."""
    return GaitPlace(0.5 * gait.period, five_link.LEFT_STANCE, gait.middle)


def in_step(gait: Gait, phase: float) -> GaitPlace:
    """A place on the right foot after the first touchdown, where this share of the step is over.

    How far it has walked counts for nothing, and is left out.
    """
    x = np.asarray(np.linalg.solve(gait.symmetry.matrix, gait.step.run(phase * gait.period)), float)
    time = (1.0 + phase) * gait.period
    return GaitPlace(time, five_link.RIGHT_STANCE, x, gait.orbit.events[:1])


def walk(
    gait: Gait,
    policy: Policy,
    start: Array,
    steps: int,
    walker: ContactSystem | None = None,
    place: GaitPlace | None = None,
    *,
    whole: bool = True,
) -> Walk:
    """A walk of so many steps, from a state at a place, by default in mid-step of the left leg.

    They may take half as long again as those of the gait. walker: what walks, by default that of
    the gait. whole: whether steps are simulated that only repeat the last one, see `repeats`.
    """
    time, mode, _, past = place or in_mid_step(gait)
    span = (time, time + _PATIENCE * steps * gait.period)
    if past:
        policy = ContinuedPolicy(policy, past)
    return _walked(gait, walker or gait.walker, mode, policy, start, span, steps, whole)


def over_a_step(
    gait: Gait,
    policy: Policy,
    height: float,
    steps: int,
    start: Array | None = None,
    *,
    whole: bool = True,
) -> Walk:
    """A walk over ground that is higher by `height` in m from the first touchdown on.

    The left foot leaves the old ground then, and meets the new one a quarter of a step later.
    start: in mid-step, by default that of the gait, whose other foot is 20 cm above the ground.
    whole: see `walk`.
    """
    start = gait.middle if start is None else start
    raised = gait.walker_with(step=height)
    begin, end = 0.5 * gait.period, (0.5 + _PATIENCE * steps) * gait.period
    first = _walked(gait, raised, five_link.LEFT_STANCE, policy, start, (begin, end), most=1)
    if first.reason or first.run is None or not first.steps:
        return first
    past, now = first.run.events, first.run.end + 0.25 * gait.period
    leaving = _walked(
        gait,
        raised,
        first.run.final_mode,
        ContinuedPolicy(policy, past),
        first.run.final_state,
        (first.run.end, now),
    )
    if leaving.reason or leaving.run is None or leaving.steps:
        return replace(leaving, steps=1, reason=leaving.reason or "lands on the old ground")
    state = leaving.run.final_state.copy()
    state[1] -= height  # the ground is where it is, and zero again
    if steps == 1:
        return replace(leaving, steps=1)
    mode, after = leaving.run.final_mode, ContinuedPolicy(policy, past)
    rest = _walked(gait, gait.walker, mode, after, state, (now, end), steps - 1, whole)
    return replace(rest, steps=rest.steps + 1)


def pushed(
    gait: Gait, impulse: float, start: Array | None = None, mode: ModeKey = five_link.LEFT_STANCE
) -> Array:
    """A state, by default of the gait in mid-step, after a horizontal impulse in N s at the hip.

    The foot that stands in the mode is held. Of 10 N s forwards the ground gives 0.2 N s down and
    0.4 along: a force on the hip that lasts 2 ms leaves the foot in its cone, under the weight of
    the walker.
    """
    q, v = np.split(gait.middle if start is None else start, 2)
    (foot,) = closed_contacts(mode)
    rows = gait.walker.dynamics.contact_set.jacobian(q)[[foot, 2 + foot]]  # its normal and tangent
    kick = impulse * np.eye(7)[0]
    gained, _ = KKT(gait.walker.robot.mass_matrix(q), rows).solve(kick, np.zeros(2))
    return np.concatenate((q, v + gained))


def scattered(
    gait: Gait,
    random: np.random.Generator,
    scatter: tuple[float, float],
    place: GaitPlace | None = None,
) -> Array:
    """A random start at a place, by default in mid-step, with the stance foot at rest.

    scatter: standard deviations of coordinates (rad, m) and velocities (rad/s, m/s).
    """
    place = place or in_mid_step(gait)
    sizes = np.repeat(scatter, 7)
    off = place.state + sizes * random.normal(size=14)
    project = gait.walker.mode(place.mode).project
    assert project is not None
    return project(off)


def _walked(
    gait: Gait,
    walker: ContactSystem,
    mode: ModeKey,
    policy: Policy,
    start: Array,
    span: tuple[float, float],
    most: float = np.inf,
    whole: bool = True,
) -> Walk:
    """The walk until a fall, the end of the span, the last of `most` touchdowns, or repetition."""
    touchdowns: list[Event] = []
    skipped = 0

    def terminal(event: Event) -> bool:
        nonlocal skipped
        if is_fall(event):
            return True
        touchdowns.append(event)
        more = most - len(touchdowns)
        if not whole and goes_on(gait, touchdowns, int(more), span[1]):
            skipped = int(more)
        return more == 0 or skipped > 0

    try:
        run = simulate(
            walker, mode, start, span, policy, terminal=terminal, rtol=TOLERANCE, atol=TOLERANCE
        )
    except (SimulationError, GuardViolatedError) as error:
        return Walk(len(touchdowns), None, f"{type(error).__name__}: {error}")
    fall = next((event for event in run.events if is_fall(event)), None)
    if fall is None:
        return Walk(len(touchdowns) + skipped, run)
    walked = sum(event.time < fall.time for event in touchdowns)
    return Walk(walked, run, f"{_what_happens(fall)} at {fall.time:.3f} s")


def goes_on(gait: Gait, touchdowns: Sequence[Event], more: int, end: float) -> bool:
    """Whether the steps repeat, and `more` of them as long as the last ones end before `end`."""
    last = touchdowns[-_AGREED - 2 * _CYCLE + 1 :]
    if not repeats(seen_alike(gait, last), more):
        return False
    longest = max(b.time - a.time for a, b in pairwise(last[-_CYCLE - 1 :]))
    return last[-1].time + more * longest <= end


def _what_happens(fall: Event) -> str:
    if fall.mode_after == BOTH_DOWN:
        return "both feet down"
    if not fall.guards:
        return "slips under new torques"
    left, right = contact_modes(fall.mode_after)
    return f"{', '.join(fall.guards)}: left {left}, right {right}"
