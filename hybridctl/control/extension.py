r"""Extension of a reference by rule: how far, with which input, and whether the result is sound.

A perturbed trajectory has event k at another time than the nominal one. To first order the shift is
:math:`\delta t_k = D_x t_k\, z + D_u t_k\, b` for a deviation z of the state there and a constant
error b of the input. A covariance of both at the start, carried to the event as P_k, gives its
standard deviation :math:`\sqrt{D t_k P_k D t_k^\top}`. Arcs are extended by a multiple of it, under
their own field ([RS] 3.1.2), with an input that goes on by a rule, or as it was planned to.
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
from hybridctl.control.feasibility import GUARD_ERROR, least_guards
from hybridctl.control.laws import input_limits
from hybridctl.control.reference import (
    Feedforward,
    Reference,
    extend,
    stretches,
)
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
_Continued = tuple[End, frozenset[str], ModeKey, Arc]
_POINTS = 2**10
_SAMPLES = 50
_INPUT_ERROR = 1e-8  # by which an input may leave its limits
_TINY = 1e-300


@dataclass(frozen=True)
class Continuation:
    """What an arc of a reference does beyond its events.

    event: the one it is continued past, backwards in time where `end` is "before". fired: of a
    phantom arc, the guards that have fired; empty otherwise. length: s. least_guards: the least
    value on the way of each guard that is not of this event. growth: the largest norm of the field
    there, over the largest on the two nominal arcs at the event. excess: the most by which an input
    leaves its limits there, zero inside them and without any.
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
    """A reference extended by rule, and what is known of it.

    deviations: the standard deviation of each event's time, s; of several guards that fire at
    once, of the one with the largest. `failures` says in words what is wrong, and is empty if
    nothing is. That guards of the event itself are negative on the way is as it should be.
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
    """Extend a trajectory as far as its events are expected to spread.

    linearization: of the trajectory, under the feedback with which it will be tracked.
    covariance (ndx, ndx), mean (ndx,): of the deviation of the initial state; input_covariance
    (nu, nu): of a constant error of the input. spread, margin: each event is extended past by
    spread times its standard deviation, plus margin seconds.
    rule: inputs that go on by themselves, one function u(t) for each arc, such as the feedforward
    of an optimum; or the input goes on as it is at the end of an arc ("hold"), with its rate there
    ("extrapolate"), or as the quintic that continues it twice differentiably and comes to rest
    after the length of the extension, at the value reached with half of the rate ("quintic").
    rtol, atol: see `extend`. most_growth: of the norm of the field, beyond which a
    continuation is reported as a failure; limits: the greatest absolute inputs (nu,), or the least
    and the greatest (2, nu), beyond which it is as well.

    Raises `InputError`, and `IntegrationError` where a field cannot be continued.
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
    inputs = _by_rule(trajectory, rule, lengths) if isinstance(rule, str) else rule
    reference = extend(
        system,
        trajectory,
        before=lengths,
        after=lengths,
        feedforward=inputs,
        rtol=rtol,
        atol=atol,
    )
    bounds = input_limits(limits, reference.arcs[0].inputs.shape[2])
    continuations = tuple(_continuations(system, reference, lengths, bounds))
    failures = tuple(text for c in continuations for text in _failures(c, most_growth))
    return Extension(reference, deviations, continuations, failures)


def event_time_deviations(
    linearization: Linearization,
    covariance: ArrayLike,
    mean: ArrayLike | None = None,
    *,
    input_covariance: ArrayLike | None = None,
) -> tuple[float, ...]:
    """Root mean square shift of the time of each event of guards, s, to first order.

    covariance (ndx, ndx), mean (ndx,): of the initial deviation. input_covariance (nu, nu): of a
    constant error of the input, independent of it. Of several guards that fire at once, the
    largest. Raises `InputError`.
    """
    trajectory = linearization.trajectory
    ndx, nu = trajectory.arcs[0].space.ndx, trajectory.arcs[0].inputs.shape[2]
    p: Array = check_array("covariance", covariance, (ndx, ndx))
    m: Array = np.zeros(ndx) if mean is None else check_array("mean", mean, (ndx,))
    n = 0
    if input_covariance is not None:
        n = nu
        p = block_diag(p, check_array("input_covariance", input_covariance, (nu, nu)))
        m = np.append(m, np.zeros(nu))
    found = []
    for k, jump in enumerate(linearization.jumps):
        flow = _flow(linearization, k, n)
        shift, m, p = _passed(jump, flow @ m, flow @ p @ flow.T, n, k)
        if trajectory.events[k].guards:
            found.append(shift)
    return tuple(found)


def _flow(linearization: Linearization, k: int, n: int) -> Array:
    """The map of the state and n constant errors of the input along arc k, (ndx + n, ndx + n)."""
    arc, state = linearization.trajectory.arcs[k], linearization.arcs[k].end
    if not n:
        return state
    mode = linearization.system.mode(arc.mode)
    gain = None if linearization.gains is None else linearization.gains[k]
    tolerances, rest = (linearization.rtol, linearization.atol), np.zeros((len(state), n))
    of_input = propagate_perturbations(
        mode, arc, rest, lambda t: np.eye(n), gain, rtol=tolerances[0], atol=tolerances[1]
    )
    return np.block([[state, of_input.end], [np.zeros((n, len(state))), np.eye(n)]])


def _passed(
    jump: JumpGains | PiecewiseLinearJump, m: Array, p: Array, n: int, seed: int
) -> tuple[float, Array, Array]:
    """The root mean square shift of an event, and mean and covariance after it.

    m, p: of the state and n constant errors of the input before it.
    """
    if isinstance(jump, JumpGains):
        row = np.append(jump.time_state, jump.time_input[:n])
        after = jump.state
        if n:
            below = np.zeros((n, after.shape[1])), np.eye(n)
            after = np.block([[after, jump.input], list(below)])
        spread = math.sqrt(max(float(row @ p @ row), 0.0) + float(row @ m) ** 2)
        return spread, after @ m, after @ p @ after.T
    points = m + sample_normal_points(p, _POINTS, seed)
    state, errors = np.split(points, [len(m) - n], axis=1)
    passage = jump.follow(state, errors if n else None)
    images = np.hstack([passage.state, errors])
    center = images.mean(axis=0)
    off = images - center
    shift = float(np.sqrt((passage.times**2).mean(axis=0).max()))
    return shift, center, off.T @ off / len(images)


def _by_rule(
    trajectory: HybridTrajectory, rule: Rule, lengths: Sequence[float]
) -> list[Feedforward]:
    """The inputs of all arcs, continued by these lengths past the events of guards."""
    found = []
    for pieces, before, after in zip(
        stretches(trajectory), (0.0, *lengths), (*lengths, 0.0), strict=True
    ):
        found += [
            continued_input(
                arc,
                rule,
                before=before if arc is pieces[0] else 0.0,
                after=after if arc is pieces[-1] else 0.0,
            )
            for arc in pieces
        ]
    return found


def continued_input(arc: Arc, rule: Rule, *, before: float, after: float) -> Feedforward:
    """The input of an arc on [start - before, end + after], continued by a rule."""
    past = _rule(rule, _derivatives(arc, arc.start) * np.array([[1.0], [-1.0], [1.0]]), before)
    future = _rule(rule, _derivatives(arc, arc.end), after)

    def u(t: float) -> Array:
        if t < arc.start:
            return past(arc.start - t)
        return future(t - arc.end) if t > arc.end else arc.input(float(t))

    return u


def _derivatives(arc: Arc, t: float) -> Array:
    """Input, its rate and the rate of that, (3, nu), inside the arc at one of its ends."""
    k = 0 if t == arc.start else len(arc.breaks) - 1
    scale = 2.0 / arc.lengths[k]
    s, series = scale * (t - arc.breaks[k]) - 1.0, arc.inputs[k]
    return np.array([scale**n * chebval(s, chebder(series, n, axis=0)) for n in range(3)])


def _rule(rule: Rule, end: Array, length: float) -> Callable[[float], Array]:
    """The input at a distance from an end, s, for the derivatives (3, nu) by the distance there."""
    u, rate, _ = end
    if rule == "hold" or length == 0.0:
        return lambda distance: u
    if rule == "extrapolate":
        return lambda distance: u + distance * rate
    rest = [u + 0.5 * length * rate, np.zeros_like(u), np.zeros_like(u)]
    curve = BPoly.from_derivatives([0.0, length], [list(end), rest])
    return lambda distance: np.asarray(curve(min(distance, length)))


def _continuations(
    system: HybridSystem, reference: Reference, lengths: Sequence[float], limits: Array | None
) -> Iterator[Continuation]:
    """All continued arcs and phantom arcs, event by event."""
    rows = stretches(reference.nominal)
    for k, event in enumerate(reference.events):
        nominal = (*rows[k], *rows[k + 1])
        usual = max(_fastest(system, a.mode, a, _samples(a.start, a.end)) for a in nominal)
        none = frozenset[str]()
        before = none, event.mode_before, reference.arcs[k]
        after = none, event.mode_after, reference.arcs[k + 1]
        phantoms = [
            (fired, phantom.mode, phantom.arc)
            for (index, fired), phantom in reference.phantoms.items()
            if index == k
        ]
        late: list[_Continued] = [("after", *arc) for arc in (before, *phantoms)]
        early: list[_Continued] = [("before", *arc) for arc in (after, *phantoms)]
        for end, fired, key, arc in late + early:
            start = event.time if end == "after" else event.time - lengths[k]
            times = _samples(start, start + lengths[k])
            least = least_guards(system, key, arc, times, event.guards)
            yield Continuation(
                k,
                end,
                fired,
                lengths[k],
                {name: value for name, (value, _) in least.items()},
                _fastest(system, key, arc, times) / max(usual, _TINY),
                _excess(arc, times, limits),
            )


def _excess(arc: Arc, times: Sequence[float], limits: Array | None) -> float:
    if limits is None:
        return 0.0
    inputs = np.array([arc.state_and_input(t)[1] for t in times])
    return float(max(0.0, (limits[0] - inputs).max(), (inputs - limits[1]).max()))


def _samples(start: float, end: float) -> list[float]:
    times: list[float] = np.linspace(start, end, _SAMPLES).tolist()
    return times


def _fastest(system: HybridSystem, key: ModeKey, arc: Arc, times: list[float]) -> float:
    """The largest norm of the field at these times."""
    field = system.mode(key).field
    return max(float(np.linalg.norm(field(t, *arc.state_and_input(t)))) for t in times)


def _failures(c: Continuation, most_growth: float) -> list[str]:
    arc = f"phantom arc after {sorted(c.fired)}" if c.fired else "arc"
    name = f"event {c.event}, {arc} continued {c.length:.3g} s to {c.end} it"
    texts = [
        f"{name}: guard {guard!r} falls to {value:.4g}"
        for guard, value in c.least_guards.items()
        if value < -GUARD_ERROR
    ]
    if c.excess > _INPUT_ERROR:
        texts.append(f"{name}: an input leaves its limits by {c.excess:.3g}")
    if not c.growth <= most_growth:
        texts.append(f"{name}: its field grows to {c.growth:.3g} times that of the nominal arc")
    return texts
