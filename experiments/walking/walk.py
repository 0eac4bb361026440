"""A walk of many steps is judged by its falls, from random or pushed starts, or over a step."""

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
"""Relative and absolute tolerance of walks."""
_TIME_FACTOR = 1.5
"""Longest duration of a walk, relative to the same number of steps of the gait."""
_COMPARED_CHANGES = 3
"""Changes of a state from step to step from which their ratio is taken."""
_LONGEST_CYCLE = 4
"""Greatest number of steps in which a limping walk repeats."""
_NEGLIGIBLE_CHANGE = 1e-3
"""Norm by which the steps to come may still change a state; a push of 1 N s changes it by 0.08."""
STANCES = (five_link.LEFT_STANCE, five_link.RIGHT_STANCE)
BOTH_DOWN = ("stick", "stick")


@dataclass(frozen=True, eq=False)
class Walk:
    """A walk of some steps.

    Attributes:
        steps: Touchdowns of the right foot at the right turn before a fall, plus those that are
            not simulated because the walk repeats.
        run: Simulated run; None if the simulation failed.
        reason: Reason of the fall; empty without a fall.
    """

    steps: int
    run: HybridTrajectory | None
    reason: str = ""

    def compute_errors(self, gait: Gait) -> Array:
        """Return the norms (steps,) of states after touchdowns minus that of the gait.

        States are those of one leg, without the distance walked; rad, m and per s together.
        """
        assert self.run is not None
        nominal = gait.orbit.events[0].state_after[1:]
        states = map_to_one_leg(gait, self.run.guard_events[: self.steps])
        return np.asarray(np.linalg.norm(states - nominal, axis=1))


def map_to_one_leg(gait: Gait, touchdowns: Sequence[Event]) -> Array:
    """Return states (steps, 13) after touchdowns, mapped to the leg of the first touchdown.

    The distance walked is left out.
    """
    exchange = gait.symmetry.matrix
    after = [event.state_after for event in touchdowns]
    states = [exchange @ x if k % 2 else x for k, x in enumerate(after)]
    return np.array(states).reshape(-1, len(exchange))[:, 1:]


def is_repeating(states: Array, more: int) -> bool:
    r"""Return whether a walk repeats its last steps over more steps to come.

    The changes :math:`d_k = |x_{k + p} - x_k|` are those over one step, p = 1, or over two to four
    steps of a limping walk. The worst ratio :math:`\rho` of one change to the one before, among the
    last p + 2 and not below 1/2, bounds the sum of the changes to come by

    .. math:: d\, (\rho + \rho^2 + \dots + \rho^m)

    with the last change d, if they continue in this way. The walk repeats if this is at most 1e-3
    rad, m and per s, an 80th of the effect of 1 N s: then each step to come equals one of the last
    p, up to a change of its start that is far below the grids on which limits are looked for.

    A drift, of ratio 1, counts with all its steps, and a growing error with its growth. An error is
    missed if it is smaller than a shrinking change, and shrinks more slowly or grows.

    Args:
        states: States (n, 13) after touchdowns.
        more: Number m of the steps to come.
    """
    return any(_is_settling(states, p, more) for p in range(1, _LONGEST_CYCLE + 1))


def _is_settling(states: Array, p: int, more: int) -> bool:
    compared = _COMPARED_CHANGES + p - 1
    changes = (states[p:] - states[:-p])[-compared:]
    if len(changes) < compared:
        return False
    # Changes below the tolerance are errors of the simulation: their ratios mean nothing.
    sizes = np.maximum(np.linalg.norm(changes, axis=1), TOLERANCE)
    ratio = max(0.5, float((sizes[1:] / sizes[:-1]).max()))
    return bool(sizes[-1] * np.sum(ratio ** np.arange(1, more + 1)) <= _NEGLIGIBLE_CHANGE)


def is_fall(event: Event) -> bool:
    """Return whether a foot slips, lets go before the other one lands, or stays as it lands.

    New torques of a policy may make a foot slip as well, in an event without guards.
    """
    if event.mode_before not in STANCES or event.mode_after not in STANCES:
        return True
    return bool(event.guards) and event.mode_after == event.mode_before


class GaitPlace(NamedTuple):
    """A place on a gait from which walks begin.

    Attributes:
        time: Time at the place, s.
        mode: Mode there, by the foot that stands.
        state: State of the gait there (14,).
        past: Events before it.
    """

    time: float
    mode: ModeKey
    state: Array
    past: tuple[Event, ...] = ()


def find_mid_step(gait: Gait) -> GaitPlace:
    """Return the first place of the orbit, in mid-step of the left leg."""
    return GaitPlace(0.5 * gait.period, five_link.LEFT_STANCE, gait.middle)


def find_place(gait: Gait, phase: float) -> GaitPlace:
    """Return the place on the right foot at which this share of its first step is over.

    The distance walked is not that of the orbit: it has no influence.
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
    """Return the walk of a number of steps; it may take half as long again as on the gait.

    Args:
        gait: Gait that is walked.
        policy: Controller.
        start: State at the start (14,).
        steps: Number of steps.
        walker: Walker; None for that of the gait.
        place: Place of the start; None for mid-step of the left leg.
        whole: Whether steps that only repeat are simulated, see `is_repeating`.
    """
    time, mode, _, past = place or find_mid_step(gait)
    span = (time, time + _TIME_FACTOR * steps * gait.period)
    if past:
        policy = ContinuedPolicy(policy, past)
    return _simulate_walk(gait, walker or gait.walker, mode, policy, start, span, steps, whole)


def walk_over_step(
    gait: Gait,
    policy: Policy,
    height: float,
    steps: int,
    start: Array | None = None,
    *,
    whole: bool = True,
) -> Walk:
    """Return the walk over ground that is higher from the first touchdown on.

    The left foot leaves the old ground then, and can meet the new one a quarter of a step later.

    Args:
        gait: Gait that is walked.
        policy: Controller.
        height: Height of the new ground, m.
        steps: Number of steps.
        start: State in mid-step (14,); None for that of the gait, whose other foot is 20 cm above
            the ground.
        whole: See `walk`.
    """
    start = gait.middle if start is None else start
    raised = gait.walker_with(step=height)
    begin, end = 0.5 * gait.period, (0.5 + _TIME_FACTOR * steps) * gait.period
    span = (begin, end)
    first = _simulate_walk(gait, raised, five_link.LEFT_STANCE, policy, start, span, most=1)
    if first.reason or first.run is None or not first.steps:
        return first
    after, reached = ContinuedPolicy(policy, first.run.events), first.run.final_state
    span = (first.run.end, first.run.end + 0.25 * gait.period)
    leaving = _simulate_walk(gait, raised, first.run.final_mode, after, reached, span)
    if leaving.reason or leaving.run is None or leaving.steps:
        return replace(leaving, steps=1, reason=leaving.reason or "lands on the old ground")
    if steps == 1:
        return replace(leaving, steps=1)
    state = leaving.run.final_state.copy()
    state[1] -= height  # heights are counted from the new ground from here on
    mode, span = leaving.run.final_mode, (span[1], end)
    rest = _simulate_walk(gait, gait.walker, mode, after, state, span, steps - 1, whole)
    return replace(rest, steps=rest.steps + 1)


def push_state(
    gait: Gait, impulse: float, start: Array | None = None, mode: ModeKey = five_link.LEFT_STANCE
) -> Array:
    """Return the state (14,) after a horizontal impulse at the hip; the stance foot stays at rest.

    Of 10 N s forwards the ground gives 0.2 N s down and 0.4 along: a force on the hip that lasts 2
    ms leaves the foot in its cone, under the weight of the walker.

    Args:
        gait: Gait that is walked.
        impulse: Impulse forwards, N s.
        start: State before it (14,); None for that of the gait in mid-step.
        mode: Mode of the state, by the foot that stands.
    """
    q, v = np.split(gait.middle if start is None else start, 2)
    (foot,) = closed_contacts(mode)
    rows = gait.walker.dynamics.contact_set.jacobian(q)[[foot, 2 + foot]]  # its normal and tangent
    kick = impulse * np.eye(7)[0]
    gained, _ = KKT(gait.walker.robot.mass_matrix(q), rows).solve(kick, np.zeros(2))
    return np.concatenate((q, v + gained))


def draw_start(
    gait: Gait,
    random: np.random.Generator,
    scatter: tuple[float, float],
    place: GaitPlace | None = None,
) -> Array:
    """Return a random start (nx,) with the stance foot at rest.

    Args:
        gait: Gait that is walked.
        random: Random numbers.
        scatter: Standard deviations of coordinates (rad, m) and of velocities (rad/s, m/s).
        place: Place of the start; None for mid-step of the left leg.
    """
    place = place or find_mid_step(gait)
    state = place.state + np.repeat(scatter, gait.walker.robot.nv) * random.normal(
        size=place.state.size
    )
    project = gait.walker.mode(place.mode).project
    assert project is not None
    return project(state)


def _simulate_walk(
    gait: Gait,
    walker: ContactSystem,
    mode: ModeKey,
    policy: Policy,
    start: Array,
    span: tuple[float, float],
    most: float = np.inf,
    whole: bool = True,
) -> Walk:
    """Return the walk until a fall, the end of the span, the last touchdown, or repetition.

    Args:
        gait: Gait that is walked.
        walker: Walker.
        mode: Mode at the start.
        policy: Controller.
        start: State at the start (14,).
        span: Times between which the walk is simulated, s.
        most: Number of touchdowns after which it ends.
        whole: Whether steps that only repeat are simulated.
    """
    touchdowns: list[Event] = []
    skipped = 0

    def is_terminal(event: Event) -> bool:
        nonlocal skipped
        if is_fall(event):
            return True
        touchdowns.append(event)
        more = most - len(touchdowns)
        if not whole and can_skip_rest(gait, touchdowns, int(more), span[1]):
            skipped = int(more)
        return more == 0 or skipped > 0

    try:
        run = simulate(
            walker, mode, start, span, policy, terminal=is_terminal, rtol=TOLERANCE, atol=TOLERANCE
        )
    except (SimulationError, GuardViolatedError) as error:
        return Walk(len(touchdowns), None, f"{type(error).__name__}: {error}")
    fall = next((event for event in run.events if is_fall(event)), None)
    if fall is None:
        return Walk(len(touchdowns) + skipped, run)
    walked = sum(event.time < fall.time for event in touchdowns)
    return Walk(walked, run, f"{_describe_fall(fall)} at {fall.time:.3f} s")


def can_skip_rest(gait: Gait, touchdowns: Sequence[Event], more: int, end: float) -> bool:
    """Return whether the steps repeat, and the rest of them would end in time.

    Args:
        gait: Gait that is walked.
        touchdowns: Touchdowns so far.
        more: Number of the steps to come. Each may take as long as the longest of the last ones.
        end: End of the walk, s.
    """
    last = touchdowns[-_COMPARED_CHANGES - 2 * _LONGEST_CYCLE + 1 :]
    if not is_repeating(map_to_one_leg(gait, last), more):
        return False
    longest = max(b.time - a.time for a, b in pairwise(last[-_LONGEST_CYCLE - 1 :]))
    return last[-1].time + more * longest <= end


def _describe_fall(fall: Event) -> str:
    if fall.mode_after == BOTH_DOWN:
        return "both feet down"
    if not fall.guards:
        return "slips under new torques"
    left, right = contact_modes(fall.mode_after)
    return f"{', '.join(fall.guards)}: left {left}, right {right}"
