r"""Extension of a reference by rule: how far, with which input, and whether the result is sound.

A perturbed trajectory has event k at another time than the nominal one. To first order the shift
is :math:`\delta t_k = D_x t_k\, z + D_u t_k\, b` for a perturbation z of the state there and a
constant error b of the input. If they have mean zero and the covariance P_k at the event, its
standard deviation is :math:`\sqrt{D t_k P_k D t_k^\top}`. Arcs are extended by a multiple of it,
under their own field ([RS] 3.1.2), with an input that is continued by a rule or was planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.polynomial.chebyshev import chebder, chebval
from numpy.typing import ArrayLike
from scipy.interpolate import BPoly
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, check_array, check_instance, check_member, check_number
from hybridctl.control.feasibility import GUARD_TOLERANCE, find_least_guards
from hybridctl.control.reference import Feedforward, Reference, extend, group_arcs
from hybridctl.control.tracking_law import parse_limits
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.moments import sample_normal_points
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.propagation import propagate_perturbations
from hybridctl.sensitivity.saltation import JumpGains

Rule = Literal["hold", "extrapolate", "quintic"]
RULES: tuple[Rule, ...] = ("hold", "extrapolate", "quintic")
End = Literal["before", "after"]

_JUMP_POINTS = 2**10
"""Quasi-random points by which mean and covariance go through a piecewise linear jump."""
_CONTINUATION_SAMPLES = 50
"""Number of times on a continuation at which guards, inputs and the field are evaluated."""
_INPUT_TOLERANCE = 1e-8
"""Amount by which an input may leave its limits before that is a failure, in its unit."""
_TINY_SPEED = 1e-300
"""Least norm of the nominal field in the denominator of `growth`: no division by zero."""


@dataclass(frozen=True)
class Continuation:
    """An arc of a reference beyond one of its events, and what it does there.

    Attributes:
        event: Index of the event that the arc is continued past.
        end: "after" where it is continued forwards in time, "before" where backwards.
        fired: Guards that have fired, of a phantom arc; empty for other arcs.
        length: Duration of the continuation, s.
        least_guards: Least value of each guard that is not of this event, by name.
        growth: Largest norm of the field on it, relative to that on both nominal arcs there.
        excess: Most by which an input leaves its limits on it; zero without limits.
    """

    event: int
    end: End
    fired: frozenset[str]
    length: float
    least_guards: dict[str, float]
    growth: float
    excess: float


@dataclass(frozen=True)
class Extension:
    """A reference that is extended by rule, with the checks of its continuations.

    Attributes:
        reference: The reference.
        deviations: Root mean square shift of the time of each event of guards, s; see
            `event_time_deviations`. For perturbations of mean zero it is the standard deviation.
        continuations: All continued arcs and phantom arcs.
        failures: One sentence for each condition that does not hold; empty if all hold. Guards of
            the event itself are negative beyond it, which is no failure.
    """

    reference: Reference
    deviations: tuple[float, ...]
    continuations: tuple[Continuation, ...]
    failures: tuple[str, ...]


def extend_by_rule(
    linearization: Linearization,
    covariance: ArrayLike,
    *,
    mean: ArrayLike | None = None,
    input_covariance: ArrayLike | None = None,
    rule: Rule | Sequence[Feedforward] = "hold",
    spread: float = 4.0,
    margin: float = 0.0,
    most_growth: float = 10.0,
    limits: ArrayLike | None = None,
    rtol: float = 1e-10,
    atol: float = 1e-10,
) -> Extension:
    """Return a trajectory extended as far as the times of its events are expected to spread.

    Args:
        linearization: Linearization of the trajectory, under the feedback that will track it.
        covariance: Covariance (ndx, ndx) of the perturbation of the initial state.
        mean: Mean (ndx,) of that perturbation; None for zero.
        input_covariance: Covariance (nu, nu) of a constant error of the input; None for no error.
        rule: How the input goes on past the ends of an arc. "hold" holds it, "extrapolate" goes on
            with its rate there. "quintic" continues it twice differentiably and brings it to rest
            after the length of the extension, at the value that half of the rate reaches. A
            sequence has one function u(t) for each arc that is valid there, such as the
            feedforward of an optimum.
        spread: Multiple of the root mean square shift of an event's time by which arcs are
            extended past the event.
        margin: Time in s that is added to each extension.
        most_growth: Growth of the field on a continuation above which it is a failure.
        limits: Greatest absolute inputs (nu,), or the least and the greatest (2, nu). An input
            that leaves them on a continuation is a failure.
        rtol: Relative tolerance of the integration.
        atol: Absolute tolerance of the integration.

    Returns:
        The extended reference with the checks of its continuations. Failures are reported, not
        raised.

    Raises:
        InputError: An argument does not fit.
        IntegrationError: A field cannot be continued.
    """
    if isinstance(rule, str):
        check_member("rule", rule, RULES)
    check_number("spread", spread, at_least=0.0)
    check_number("margin", margin, at_least=0.0)
    check_number("most_growth", most_growth, above=0.0)
    check_instance("linearization", linearization, Linearization)
    trajectory, system = linearization.trajectory, linearization.system
    deviations = event_time_deviations(
        linearization, covariance, mean, input_covariance=input_covariance
    )
    lengths = [spread * deviation + margin for deviation in deviations]
    inputs = _continue_inputs(trajectory, rule, lengths) if isinstance(rule, str) else rule
    reference = extend(
        system,
        trajectory,
        before=lengths,
        after=lengths,
        feedforward=inputs,
        rtol=rtol,
        atol=atol,
    )
    bounds = parse_limits(limits, reference.arcs[0].inputs.shape[2])
    continuations = tuple(_examine_continuations(system, reference, lengths, bounds))
    failures = tuple(text for c in continuations for text in _list_failures(c, most_growth))
    return Extension(reference, deviations, continuations, failures)


def event_time_deviations(
    linearization: Linearization,
    covariance: ArrayLike,
    mean: ArrayLike | None = None,
    *,
    input_covariance: ArrayLike | None = None,
) -> tuple[float, ...]:
    """Return the root mean square shift of the time of each event of guards, to first order.

    Args:
        linearization: Linearization of the trajectory.
        covariance: Covariance (ndx, ndx) of the perturbation of the initial state.
        mean: Mean (ndx,) of that perturbation; None for zero.
        input_covariance: Covariance (nu, nu) of a constant error of the input, independent of the
            perturbation; None for no error.

    Returns:
        Shift in s for each event. Where several guards fire at once they fire one by one on a
        perturbed trajectory: it is the largest of the shifts of the first, the second, ... of them.

    Raises:
        InputError: A shape does not fit.
    """
    trajectory = linearization.trajectory
    ndx, nu = trajectory.arcs[0].space.ndx, trajectory.arcs[0].inputs.shape[2]
    p: Array = check_array("covariance", covariance, (ndx, ndx))
    m: Array = np.zeros(ndx) if mean is None else check_array("mean", mean, (ndx,))
    n = 0  # number of input errors, which follow the perturbation of the state in m and P
    if input_covariance is not None:
        n = nu
        p = block_diag(p, check_array("input_covariance", input_covariance, (nu, nu)))
        m = np.append(m, np.zeros(nu))
    shifts = []
    for k, jump in enumerate(linearization.jumps):
        flow = _compute_flow(linearization, k, n)
        guards = len(trajectory.events[k].guards)
        shift, m, p = _propagate_jump(jump, flow @ m, flow @ p @ flow.T, n, guards, k)
        if guards:
            shifts.append(shift)
    return tuple(shifts)


def _compute_flow(linearization: Linearization, k: int, n: int) -> Array:
    """Return the map (ndx + n, ndx + n) of a perturbation and n input errors along arc k."""
    arc, transition = linearization.trajectory.arcs[k], linearization.arcs[k].end
    if not n:
        return transition
    mode = linearization.system.mode(arc.mode)
    gain = None if linearization.gains is None else linearization.gains[k]
    start = np.zeros((len(transition), n))
    by_input = propagate_perturbations(
        mode,
        arc,
        start,
        lambda t: np.eye(n),
        gain,
        rtol=linearization.rtol,
        atol=linearization.atol,
    )
    constant = [np.zeros((n, len(transition))), np.eye(n)]
    return np.block([[transition, by_input.end], constant])


def _propagate_jump(
    jump: JumpGains | PiecewiseLinearJump, m: Array, p: Array, n: int, guards: int, seed: int
) -> tuple[float, Array, Array]:
    """Take mean and covariance of a perturbation and n input errors through an event.

    Args:
        jump: First-order map of the event.
        m: Mean (ndx + n,) before it.
        p: Covariance (ndx + n, ndx + n) before it.
        n: Number of input errors.
        guards: Number of guards of the event. A piecewise linear jump may have a border besides.
        seed: Seed of the points that represent the distribution where the map has pieces.

    Returns:
        Root mean square shift of the event's time in s, and mean and covariance after it. Of
        several guards it is the largest of those of the first, the second, ... guard to fire.
    """
    if isinstance(jump, JumpGains):
        row = np.append(jump.time_state, jump.time_input[:n])
        after = jump.state
        if n:
            constant = np.zeros((n, after.shape[1])), np.eye(n)
            after = np.block([[after, jump.input], list(constant)])
        # The covariance may be negative by rounding.
        shift = math.sqrt(max(float(row @ p @ row), 0.0) + float(row @ m) ** 2)
        return shift, after @ m, after @ p @ after.T
    points = m + sample_normal_points(p, _JUMP_POINTS, seed)
    states, errors = np.split(points, [len(m) - n], axis=1)
    passage = jump.follow(states, errors if n else None)
    images = np.hstack([passage.state, errors])
    center = images.mean(axis=0)
    differences = images - center
    # A border has no time of its own
    # (test_the_border_of_an_impact_has_no_share_in_the_time_of_its_event).
    times = passage.times[passage.orders < guards].reshape(len(points), guards)
    shift = float(np.sqrt((times**2).mean(axis=0).max()))
    return shift, center, differences.T @ differences / len(images)


def _continue_inputs(
    trajectory: HybridTrajectory, rule: Rule, lengths: Sequence[float]
) -> list[Feedforward]:
    """Return the inputs of all arcs, continued past the events of guards.

    Args:
        trajectory: The nominal trajectory.
        rule: How they go on.
        lengths: Duration in s before and after each event of guards.
    """
    inputs = []
    for group, before, after in zip(
        group_arcs(trajectory), (0.0, *lengths), (*lengths, 0.0), strict=True
    ):
        inputs += [
            continue_input(
                arc,
                rule,
                before=before if arc is group[0] else 0.0,
                after=after if arc is group[-1] else 0.0,
            )
            for arc in group
        ]
    return inputs


def continue_input(arc: Arc, rule: Rule, *, before: float, after: float) -> Feedforward:
    """Return the input of an arc on [start - before, end + after], continued by a rule.

    Args:
        arc: The arc.
        rule: How it goes on, see `extend_by_rule`.
        before: Duration before the start, s.
        after: Duration after the end, s.
    """
    # Backwards in time, odd derivatives change their sign.
    backwards = _differentiate_input(arc, arc.start) * np.array([[1.0], [-1.0], [1.0]])
    past = _apply_rule(rule, backwards, before)
    future = _apply_rule(rule, _differentiate_input(arc, arc.end), after)

    def u(t: float) -> Array:
        if t < arc.start:
            return past(arc.start - t)
        return future(t - arc.end) if t > arc.end else arc.input(float(t))

    return u


def _differentiate_input(arc: Arc, t: float) -> Array:
    """Return input, first and second derivative (3, nu) at the start or the end t of an arc."""
    k = 0 if t == arc.start else len(arc.breaks) - 1
    scale = 2.0 / arc.lengths[k]
    s, series = scale * (t - arc.breaks[k]) - 1.0, arc.inputs[k]
    return np.array([scale**n * chebval(s, chebder(series, n, axis=0)) for n in range(3)])


def _apply_rule(rule: Rule, derivatives: Array, length: float) -> Callable[[float], Array]:
    """Return the input as a function of the distance in s from an end of an arc.

    Args:
        rule: How it goes on.
        derivatives: Input, first and second derivative (3, nu) by the distance, at the end.
        length: Duration of the continuation, s.
    """
    u, rate, _ = derivatives
    if rule == "hold" or length == 0.0:
        return lambda distance: u
    if rule == "extrapolate":
        return lambda distance: u + distance * rate
    at_rest = [u + 0.5 * length * rate, np.zeros_like(u), np.zeros_like(u)]
    curve = BPoly.from_derivatives([0.0, length], [list(derivatives), at_rest])
    return lambda distance: np.asarray(curve(min(distance, length)))


def _examine_continuations(
    system: HybridSystem, reference: Reference, lengths: Sequence[float], limits: Array | None
) -> Iterator[Continuation]:
    """Yield all continued arcs and phantom arcs, event by event.

    Args:
        system: The system.
        reference: The extended reference.
        lengths: Duration in s before and after each event.
        limits: Limits (2, nu) of the inputs, or None.
    """
    groups = group_arcs(reference.nominal)
    for k, event in enumerate(reference.events):
        nominal = (*groups[k], *groups[k + 1])
        nominal_speed = max(
            _find_top_speed(system, a.mode, a, _sample_times(a.start, a.end)) for a in nominal
        )
        phantoms = [
            (fired, phantom.mode, phantom.arc)
            for (index, fired), phantom in reference.phantoms.items()
            if index == k
        ]
        none = frozenset[str]()
        late = [(none, event.mode_before, reference.arcs[k]), *phantoms]
        early = [(none, event.mode_after, reference.arcs[k + 1]), *phantoms]
        ends: list[tuple[End, list[tuple[frozenset[str], ModeKey, Arc]]]]
        ends = [("after", late), ("before", early)]
        for end, continued in ends:
            start = event.time if end == "after" else event.time - lengths[k]
            times = _sample_times(start, start + lengths[k])
            for fired, key, arc in continued:
                least = find_least_guards(system, key, arc, times, event.guards)
                yield Continuation(
                    k,
                    end,
                    fired,
                    lengths[k],
                    {name: value for name, (value, _) in least.items()},
                    _find_top_speed(system, key, arc, times) / max(nominal_speed, _TINY_SPEED),
                    _find_excess(arc, times, limits),
                )


def _find_excess(arc: Arc, times: Sequence[float], limits: Array | None) -> float:
    """Return the most by which the input of an arc leaves limits (2, nu) at some times in s."""
    if limits is None:
        return 0.0
    inputs = np.array([arc.state_and_input(t)[1] for t in times])
    return float(max(0.0, (limits[0] - inputs).max(), (inputs - limits[1]).max()))


def _sample_times(start: float, end: float) -> list[float]:
    times: list[float] = np.linspace(start, end, _CONTINUATION_SAMPLES).tolist()
    return times


def _find_top_speed(system: HybridSystem, key: ModeKey, arc: Arc, times: list[float]) -> float:
    """Return the largest norm of a mode's field along an arc at some times in s."""
    mode = system.mode(key)
    return max(float(np.linalg.norm(mode.calc(t, *arc.state_and_input(t)).field)) for t in times)


def _list_failures(c: Continuation, most_growth: float) -> list[str]:
    """Return a sentence for each condition that a continuation does not meet."""
    arc = f"phantom arc after {sorted(c.fired)}" if c.fired else "arc"
    name = f"event {c.event}, {arc} continued {c.length:.3g} s to {c.end} it"
    texts = [
        f"{name}: guard {guard!r} falls to {value:.4g}"
        for guard, value in c.least_guards.items()
        if value < -GUARD_TOLERANCE
    ]
    if c.excess > _INPUT_TOLERANCE:
        texts.append(f"{name}: an input leaves its limits by {c.excess:.3g}")
    if not c.growth <= most_growth:
        texts.append(f"{name}: its field grows to {c.growth:.3g} times that of the nominal arc")
    return texts
