r"""Hybrid LQR without an end: the periodic solution of the Riccati equation on a periodic orbit.

Backwards over one period the value function goes through

.. math:: V \mapsto C + F^T V (I + P V)^{-1} F,

with the propagation F, P, C of the period, arcs and jumps (see `sensitivity.collocation`): C is
what V = 0 becomes, F the closed-loop map of that sweep, and P its reach. A fixed point solves a
discrete algebraic Riccati equation. Where the cost is not quadratic through events, or the input
enters them, the sweeps are repeated instead.

A period that is repeated lies later, and is seen through the symmetry of the orbit: an orbit that
closes as :math:`S x(T) = x(0) + c` goes on with :math:`x(t + T) = S^{-1}(x(t) + c)`, under the
input :math:`W^{-1} u` and the gains :math:`W^{-1} K S`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import eigh, null_space, solve_discrete_are

from hybridctl.base.checks import Array, check_count, check_number
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.base.progress import Progress, report_share
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
from hybridctl.hybrid.arc import Arc, joined
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.collocation import Propagation
from hybridctl.sensitivity.floquet import FloquetMultipliers, floquet_multipliers, monodromy
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.saltation import JumpGains
from hybridctl.sensitivity.symmetry import Symmetry, map_perturbations


@dataclass(frozen=True, eq=False)
class LaterPeriod:
    """The image of a motion one `period` later, s, of states x at S^-1 (x + shift), inputs W^-1 u.

    Without a symmetry it is the motion itself, later.
    """

    symmetry: Symmetry | None
    period: float
    shift: Array

    @staticmethod
    def of(once: HybridTrajectory, symmetry: Symmetry | None) -> LaterPeriod:
        """The image in which an orbit goes on where it ends."""
        shift = np.zeros(once.arcs[0].space.nx)
        if symmetry is not None and symmetry.free:
            if symmetry.coordinates is not None:
                raise InputError("symmetry: states with quaternions must have no free directions")
            start = once.arcs[0](once.start)
            shift = symmetry.free_part(symmetry.matrix @ once.final_state - start)
        return LaterPeriod(symmetry, once.end - once.start, shift)

    def arc(self, arc: Arc, index: int) -> Arc:
        """The image of an arc."""
        start, end, breaks = (
            arc.start + self.period,
            arc.end + self.period,
            arc.breaks + self.period,
        )
        moved = replace(arc, index=index, start=start, end=end, breaks=breaks)
        if self.symmetry is None:
            return moved
        states = arc.states @ self._states.T
        states[:, 0] += self._states @ self.shift
        inputs = arc.inputs @ self._inputs(arc.inputs.shape[2]).T
        return replace(moved, mode=self.symmetry.mode(arc.mode), states=states, inputs=inputs)

    def gains(self, gains: GainSchedule) -> GainSchedule:
        """The gains of the image."""
        phantoms = {
            (k, frozenset(self._names(fired))): self._curve(curve)
            for (k, fired), curve in gains.phantoms.items()
        }
        return GainSchedule(tuple(map(self._curve, gains.arcs)), phantoms)

    def _curve(self, curve: GainCurve) -> GainCurve:
        def seen(gains: Array) -> Array:
            if self.symmetry is None:
                return gains
            return np.asarray(self._inputs(gains.shape[1]) @ gains @ self.symmetry.matrix)

        slopes = None if curve.slopes is None else seen(curve.slopes)
        return GainCurve(curve.times + self.period, seen(curve.values), slopes)

    def event(self, event: Event, index: int) -> Event:
        """The image of an event."""
        later = replace(event, index=index, time=event.time + self.period)
        if self.symmetry is None:
            return later
        inputs, impulses = self._inputs(len(event.input_before)), event.impulses
        if self.symmetry.contacts is not None:
            impulses = np.asarray(impulses[list(self.symmetry.contacts)])
        return replace(
            later,
            mode_before=self.symmetry.mode(event.mode_before),
            mode_after=self.symmetry.mode(event.mode_after),
            guards=self._names(event.guards),
            state_before=self._states @ (event.state_before + self.shift),
            state_after=self._states @ (event.state_after + self.shift),
            input_before=inputs @ event.input_before,
            input_after=inputs @ event.input_after,
            input_rate=inputs @ event.input_rate,
            impulses=impulses,
        )

    def _names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names that guards have in the image."""
        return tuple(names if self.symmetry is None else map(self.symmetry.guard, names))

    @cached_property
    def _states(self) -> Array:
        """The inverse of the symmetry's map of states (nx, nx)."""
        assert self.symmetry is not None
        return np.asarray(np.linalg.inv(self.symmetry.state_map))

    def _inputs(self, nu: int) -> Array:
        """The inverse (nu, nu) of the symmetry's matrix of inputs."""
        assert self.symmetry is not None
        return np.asarray(np.linalg.inv(self.symmetry.inputs(nu)))


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
        once, gains = self.period.linearization.trajectory, self.period.gains
        later = LaterPeriod.of(once, self.symmetry)
        arcs, curves, events = list(once.arcs), list(gains.arcs), list(once.events)
        phantoms, last, ends = dict(gains.phantoms), once.arcs, once.events
        for _ in range(check_count("periods", periods) - 1):
            n, done = len(arcs) - 1, len(events)
            last = tuple(later.arc(arc, n + k) for k, arc in enumerate(last))
            ends = tuple(later.event(event, done + k) for k, event in enumerate(ends))
            gains = later.gains(gains)
            arcs[n:] = [joined(n, [arcs[n], last[0]]), *last[1:]]
            curves[n:] = [GainCurve.joined([curves[n], gains.arcs[0]]), *gains.arcs[1:]]
            events += ends
            phantoms |= {(k + done, names): gain for (k, names), gain in gains.phantoms.items()}
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
    progress: Progress = None,
) -> PeriodicLqr:
    """The feedback of least cost for ever along a periodic orbit.

    lin: of one period, without feedback, that starts and ends inside an arc, and closes up to the
    `symmetry`. Free directions of it cost nothing where the weights do not see them: then no V is
    unique, and the one found is that of feedback which leaves them alone. tolerance: of V after
    one period against V before it, of its largest entry. Other arguments: see `hybrid_lqr`.
    Functions as weights must have the period.
    progress: True prints the share of the work that is done on standard error; a function is called
    with it, from 0 to 1. How many sweeps are needed is not known: each one is taken for half
    of what is left.

    Raises what `hybrid_lqr` and `monodromy` raise, and `SimulationError` where no V is found:
    where the input cannot hold an unstable direction, or the weights do not see one.
    """
    check_number("tolerance", tolerance, above=0.0)
    if lin.is_linear:
        monodromy(lin, symmetry=symmetry)
    n = lin.trajectory.arcs[0].space.ndx

    rule = AtEvents(simultaneous, covariance, lead)
    nothing = np.zeros((n, n))
    report, sweeps = report_share(progress, "periodic_lqr"), 0

    def in_sweep(share: float) -> None:
        if report is not None:
            report(1.0 - 0.5**sweeps * (1.0 - 0.5 * share))

    tell = None if report is None else in_sweep
    riccati = riccati_equation(lin, state_weight, input_weight, nothing, rtol, atol, tell)

    def sweep(v: Array) -> LqrResult:  # with V at the start, S' V S at the end
        at_the_end = map_perturbations(symmetry, np.eye(n))
        return solved(riccati, at_the_end.T @ v @ at_the_end, rule)

    result = sweep(nothing)
    v = result.values[0].start
    if all(isinstance(jump, JumpGains) and not jump.input.any() for jump in lin.jumps):
        v = _fixed_point(result, symmetry)
    for sweeps in range(1, _SWEEPS + 1):  # noqa: B007 (read by in_sweep)
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


def _fixed_point(result: LqrResult, symmetry: Symmetry | None) -> Array:
    """The fixed point V (ndx, ndx) that one period leads back to.

    Free directions w of the symmetry that cost nothing, C w = 0, are left out: F w = w, so that V
    is that of the rest, with V w = 0.
    """
    lin = result.linearization
    period = result.values[0].propagation
    for k, value in enumerate(result.values[1:]):
        period = period.compose(Propagation.jump(lin.linear_jump(k).state)).compose(
            value.propagation
        )
    values, vectors = eigh(period.noise)
    root = map_perturbations(symmetry, vectors * np.sqrt(np.maximum(values, 0.0)))
    f, e = map_perturbations(symmetry, period.state), period.cost
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
