r"""Hybrid LQR without an end: the periodic solution of the Riccati equation on a periodic orbit.

Backwards over one period the value function goes through

.. math:: V \mapsto C + F^T V (I + P V)^{-1} F,

with the propagation F, P, C of the period, arcs and jumps (see `sensitivity.propagation`): C is
what V = 0 becomes, F the closed-loop map of that sweep, and P its reach. A fixed point solves a
discrete algebraic Riccati equation. Where the cost is not quadratic through events, or the input
enters them, the sweeps are repeated instead.

A period that is repeated lies later, and is seen through the symmetry of the orbit: an orbit that
closes as :math:`S x(T) = x(0) + c` goes on with :math:`x(t + T) = S^{-1}(x(t) + c)`, under the
input :math:`W^{-1} u` and the gains :math:`W^{-1} K S`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import eigh, null_space, solve_discrete_are

from hybridctl.checks import Array, count, number
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.lqr.continuous import (
    AtEvents,
    Covariance,
    LqrResult,
    riccati_equation,
    solved,
)
from hybridctl.control.lqr.events import Treatment
from hybridctl.control.lqr.weights import Weights
from hybridctl.errors import SimulationError
from hybridctl.hybrid.arc import Arc, joined
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.linearize import Linearization
from hybridctl.sensitivity.orbits import FloquetMultipliers, floquet_multipliers, monodromy
from hybridctl.sensitivity.propagation import Propagation
from hybridctl.sensitivity.symmetry import Symmetry, carried, seen_as


@dataclass(frozen=True, eq=False)
class Placement:
    """One of the periods of an orbit, `count` periods after the first.

    period: s. With a symmetry, states of the first period are A x + b here, inputs W u.
    """

    symmetry: Symmetry | None
    period: float
    shift: Array
    count: int
    matrix: Array
    offset: Array
    inputs: Array

    @staticmethod
    def first(once: HybridTrajectory, symmetry: Symmetry | None) -> Placement:
        """The placement of the orbit as it is."""
        arc, ndx, nu = once.arcs[0], once.arcs[0].space.ndx, once.arcs[0].inputs.shape[2]
        shift = np.zeros(ndx)
        if symmetry is not None:
            shift = symmetry.along(symmetry.matrix @ once.final_state - arc(arc.start))
        unit, none = np.eye(ndx), np.zeros(ndx)
        return Placement(symmetry, once.end - once.start, shift, 0, unit, none, np.eye(nu))

    def next(self) -> Placement:
        """The placement of the period after this one."""
        later = replace(self, count=self.count + 1)
        if self.symmetry is None:
            return later
        back = np.linalg.inv(self.symmetry.matrix)
        inputs = np.linalg.inv(self.symmetry.inputs(len(self.inputs))) @ self.inputs
        offset = back @ (self.offset + self.shift)
        return replace(later, matrix=back @ self.matrix, offset=offset, inputs=inputs)

    def arc(self, arc: Arc, index: int) -> Arc:
        """An arc of the first period, moved to this period."""
        shift = self.count * self.period
        start, end, breaks = arc.start + shift, arc.end + shift, arc.breaks + shift
        moved = replace(arc, index=index, start=start, end=end, breaks=breaks)
        if self.symmetry is None:
            return moved
        states = arc.states @ self.matrix.T
        states[:, 0] += self.offset
        inputs = arc.inputs @ self.inputs.T
        return replace(moved, mode=self._mode(arc.mode), states=states, inputs=inputs)

    def curve(self, curve: GainCurve) -> GainCurve:
        """The gains of an arc of the first period, moved to this period."""
        times = curve.times + self.count * self.period
        back = np.linalg.inv(self.matrix)

        def seen(gains: Array) -> Array:
            return np.asarray(self.inputs @ gains @ back)

        slopes = None if curve.slopes is None else seen(curve.slopes)
        return GainCurve(times, seen(curve.values), slopes)

    def event(self, event: Event, index: int) -> Event:
        """An event of the first period, moved to this period."""
        later = replace(event, index=index, time=event.time + self.count * self.period)
        if self.symmetry is None:
            return later
        return replace(
            later,
            mode_before=self._mode(event.mode_before),
            mode_after=self._mode(event.mode_after),
            guards=tuple(self._guard(name) for name in event.guards),
            state_before=self.matrix @ event.state_before + self.offset,
            state_after=self.matrix @ event.state_after + self.offset,
            input_before=self.inputs @ event.input_before,
            input_after=self.inputs @ event.input_after,
            input_rate=self.inputs @ event.input_rate,
            impulses=self._impulses(event.impulses),
        )

    def guards(self, fired: frozenset[str]) -> frozenset[str]:
        """The names that guards of the first period have in this period."""
        return frozenset(map(self._guard, fired))

    @property
    def _exchanged(self) -> Symmetry | None:
        """The symmetry, in every other period: an exchange done twice changes no names."""
        return self.symmetry if self.count % 2 else None

    def _mode(self, key: ModeKey) -> ModeKey:
        return seen_as(self._exchanged, key)

    def _guard(self, name: str) -> str:
        return name if self._exchanged is None else self._exchanged.guard(name)

    def _impulses(self, impulses: Array) -> Array:
        if self._exchanged is None or self._exchanged.contacts is None:
            return impulses
        return np.asarray(impulses[list(self._exchanged.contacts)])


_SWEEPS = 500
_COSTLESS = 1e-9  # of the largest entry of C: what rounding leaves of a direction without cost


@dataclass(frozen=True, eq=False)
class PeriodicLqr:
    """Optimal feedback on a periodic orbit.

    period: the result over one period, whose V at the end is that at the start, seen through the
    symmetry S: S' V S. residual: by how much the two differ, of the largest entry of V.
    """

    period: LqrResult
    residual: float
    symmetry: Symmetry | None = None

    @cached_property
    def multipliers(self) -> FloquetMultipliers:
        """The multipliers of the closed loop."""
        return floquet_multipliers(self.period.closed_loop, symmetry=self.symmetry)

    def repeated(self, periods: int) -> tuple[HybridTrajectory, GainSchedule]:
        """The orbit and its gains over so many periods, as a reference to track.

        Where the orbit closes up to a symmetry, the next period is the inverse image of the last.
        """
        count("periods", periods)
        once, gains = self.period.linearization.trajectory, self.period.gains
        arcs, curves = list[Arc](), list[GainCurve]()
        events = list[Event]()
        phantoms = dict[tuple[int, frozenset[str]], GainCurve]()
        place = Placement.first(once, self.symmetry)
        for _ in range(periods):
            for k, (arc, curve) in enumerate(zip(once.arcs, gains.arcs, strict=True)):
                a, c = place.arc(arc, len(arcs)), place.curve(curve)
                if k == 0 and arcs:
                    before = arcs.pop()
                    a, c = joined(before.index, [before, a]), _joined_curves(curves.pop(), c)
                arcs.append(a)
                curves.append(c)
            for (k, fired), curve in gains.phantoms.items():
                phantoms[k + len(events), place.guards(fired)] = place.curve(curve)
            events += [place.event(e, len(events) + k) for k, e in enumerate(once.events)]
            place = place.next()
        return HybridTrajectory(tuple(arcs), tuple(events)), GainSchedule(tuple(curves), phantoms)


def periodic_lqr(
    lin: Linearization,
    state_weight: Weights,
    input_weight: Weights,
    *,
    simultaneous: Treatment = "worst",
    covariance: Covariance | None = None,
    lead: float | None = None,
    symmetry: Symmetry | None = None,
    tolerance: float = 1e-8,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> PeriodicLqr:
    """The feedback of least cost for ever along a periodic orbit.

    lin: of one period, without feedback, that starts and ends inside an arc, and closes up to the
    `symmetry`. Free directions of it cost nothing where the weights do not see them: then no V is
    unique, and the one found is that of feedback which leaves them alone. tolerance: of V after
    one period against V before it, of its largest entry. Other arguments: see `hybrid_lqr`.
    Functions as weights must have the period.

    Raises what `hybrid_lqr` and `monodromy` raise, and `SimulationError` where no V is found:
    where the input cannot hold an unstable direction, or the weights do not see one.
    """
    number("tolerance", tolerance, above=0.0)
    if lin.is_linear:
        monodromy(lin, symmetry=symmetry)
    n = lin.trajectory.arcs[0].space.ndx

    rule = AtEvents(simultaneous, covariance, lead)
    nothing = np.zeros((n, n))
    riccati = riccati_equation(lin, state_weight, input_weight, nothing, rtol, atol)

    def sweep(v: Array) -> LqrResult:
        return solved(riccati, _seen_at_the_end(v, symmetry), rule)

    result = sweep(nothing)
    v = result.values[0].start
    if all(isinstance(jump, JumpGains) and not jump.input.any() for jump in lin.jumps):
        v = _fixed_point(result, symmetry)
    for _ in range(_SWEEPS):
        result = sweep(v)
        off = float(np.abs(result.values[0].start - v).max())
        v = result.values[0].start
        size = float(np.abs(v).max())
        if not np.isfinite(size):
            break
        if off <= tolerance * size:
            return PeriodicLqr(result, off / size if size else 0.0, symmetry)
    raise SimulationError(
        f"the Riccati equation has found no periodic solution in {_SWEEPS} sweeps: it still "
        f"changes by {off:.3g} of {size:.3g} in one period"
    )


def _seen_at_the_end(v: Array, symmetry: Symmetry | None) -> Array:
    """The form S' V S: the value function at the start, of deviations at the end."""
    at_the_end = carried(symmetry, np.eye(len(v)))
    return np.asarray(at_the_end.T @ v @ at_the_end)


def _fixed_point(result: LqrResult, symmetry: Symmetry | None) -> Array:
    """The fixed point V (ndx, ndx) that one period leads back to.

    Free directions w of the symmetry that cost nothing, C w = 0, are left out: F w = w, so that V
    is that of the rest, with V w = 0.
    """
    lin = result.linearization
    period = result.values[0].propagation
    for k, value in enumerate(result.values[1:]):
        period = period.then(Propagation.jump(lin.linear_jump(k).state)).then(value.propagation)
    values, vectors = eigh(period.noise)
    root = carried(symmetry, vectors * np.sqrt(np.maximum(values, 0.0)))
    f, e = carried(symmetry, period.state), period.cost
    z = _weighed(e, symmetry)
    try:
        v = z @ solve_discrete_are(z.T @ f @ z, z.T @ root, z.T @ e @ z, np.eye(len(f))) @ z.T
    except np.linalg.LinAlgError as error:
        raise SimulationError(
            f"the Riccati equation has no periodic solution ({error}): the input must hold all "
            "unstable directions, and the weights must see them"
        ) from error
    return np.asarray(0.5 * (v + v.T))


def _weighed(e: Array, symmetry: Symmetry | None) -> Array:
    """Columns (ndx, k) across the free directions that cost nothing."""
    directions = np.zeros((len(e), 0)) if symmetry is None else symmetry.directions
    costs = np.abs(e @ directions).max(axis=0, initial=0.0)
    free = directions[:, costs <= _COSTLESS * np.abs(e).max()]
    return null_space(free.T) if free.shape[1] else np.eye(len(e))


def _joined_curves(first: GainCurve, second: GainCurve) -> GainCurve:
    """The curve of two that follow each other, the first up to the knot where the second begins."""

    def parts(a: Array, b: Array) -> Array:
        return np.concatenate([a[:-1], b])

    slopes: Sequence[Array] = [c.slopes for c in (first, second) if c.slopes is not None]
    return GainCurve(
        parts(first.times, second.times),
        parts(first.values, second.values),
        parts(*slopes) if len(slopes) == 2 else None,
    )
