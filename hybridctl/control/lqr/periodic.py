r"""Hybrid LQR on a periodic orbit, by the periodic solution of the Riccati equation.

Backwards over one period the value function goes through

.. math:: V \mapsto C + F^T V (I + P V)^{-1} F.

F, P and C are the propagation of the period, arcs and jumps (see `sensitivity.collocation`): C is
what V = 0 becomes, F is the closed-loop map of that sweep, and P its reach. A fixed point solves a
discrete algebraic Riccati equation. Where guards fire together, so that the cost is not quadratic,
or where the input enters an event, the sweeps are repeated instead.

An orbit that closes up to a symmetry, :math:`S x(T) = x(0) + c`, goes on with
:math:`x(t + T) = S^{-1}(x(t) + c)`, under the input :math:`W^{-1} u` and the gains
:math:`W^{-1} K S`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import eigh, null_space, solve_discrete_are

from hybridctl.base.checks import Array, check_count, check_number
from hybridctl.base.errors import SimulationError
from hybridctl.base.progress import Progress, report_share
from hybridctl.base.spaces import Space
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.lqr.finite_horizon import (
    Covariance,
    EventRule,
    LqrResult,
    make_riccati_equation,
    solve_backwards,
)
from hybridctl.control.lqr.jumps import Treatment
from hybridctl.control.lqr.weights import Weights
from hybridctl.hybrid.arc import Arc, join_arcs
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.collocation import Propagation
from hybridctl.sensitivity.floquet import FloquetMultipliers, check_closed, floquet_multipliers
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.saltation import JumpGains
from hybridctl.sensitivity.symmetry import CLOSING_TOLERANCE, Symmetry, map_perturbations

_MAX_PERIODS = 500
"""Number of periods over which the Riccati equation is solved before the search is given up. A
choice."""
_FREE_COST = 1e-9
"""Cost of a direction, relative to the largest entry of C, that counts as none: it is rounding."""


@dataclass(frozen=True, eq=False)
class LaterPeriod:
    """The map from a motion to its image one period later.

    With a symmetry S of states and W of inputs, states go to S^-1 g x and inputs to W^-1 u. The
    motion g along the free directions takes the start of the period to S x(T).

    Attributes:
        symmetry: The symmetry; None for the same motion, later.
        period: Duration of a period, s.
        shift: Shift c (nx,) of states along the free directions, where these are constant.
        moved: State space, and amounts (k,) of the free motions by which S x(T) is moved from x(0),
            where a direction depends on the state. None otherwise.
    """

    symmetry: Symmetry | None
    period: float
    shift: Array
    moved: tuple[Space, Array] | None = None

    @staticmethod
    def from_orbit(once: HybridTrajectory, symmetry: Symmetry | None) -> LaterPeriod:
        """Return the map by which an orbit goes on where it ends.

        Args:
            once: One period of the orbit.
            symmetry: Symmetry up to which it closes; None for none.
        """
        space, moved = once.arcs[0].space, None
        shift = np.zeros(space.nx)
        if symmetry is not None and symmetry.free:
            start = once.arcs[0](once.start)
            if symmetry.coordinates is None and not symmetry.motions:
                shift = symmetry.free_part(symmetry.matrix @ once.final_state - start)
            else:
                end = symmetry.image(once.final_state)
                moved = space, symmetry.align(space, start, end)[1]
        return LaterPeriod(symmetry, once.end - once.start, shift, moved)

    def map_arc(self, arc: Arc, index: int) -> Arc:
        """Return the image of an arc, with a given index."""
        later = replace(
            arc,
            index=index,
            start=arc.start + self.period,
            end=arc.end + self.period,
            breaks=arc.breaks + self.period,
        )
        if self.symmetry is None:
            return later
        matrix, offset = self._state_map
        states = arc.states @ matrix.T
        states[:, 0] += offset  # the constant term of each series
        inputs = arc.inputs @ self._inverse_input_map(arc.inputs.shape[2]).T
        return replace(later, mode=self.symmetry.mode(arc.mode), states=states, inputs=inputs)

    def map_gains(self, gains: GainSchedule) -> GainSchedule:
        """Return the gains on the image."""
        phantoms = {
            (k, frozenset(self._map_guards(fired))): self._map_curve(curve)
            for (k, fired), curve in gains.phantoms.items()
        }
        return GainSchedule(tuple(map(self._map_curve, gains.arcs)), phantoms)

    def map_event(self, event: Event, index: int) -> Event:
        """Return the image of an event, with a given index."""
        later = replace(event, index=index, time=event.time + self.period)
        if self.symmetry is None:
            return later
        inputs, impulses = self._inverse_input_map(len(event.input_before)), event.impulses
        if self.symmetry.contacts is not None and impulses.size:  # a change of the law has none
            impulses = np.asarray(impulses[list(self.symmetry.contacts)])
        return replace(
            later,
            mode_before=self.symmetry.mode(event.mode_before),
            mode_after=self.symmetry.mode(event.mode_after),
            guards=self._map_guards(event.guards),
            state_before=self._map_state(event.state_before),
            state_after=self._map_state(event.state_after),
            input_before=inputs @ event.input_before,
            input_after=inputs @ event.input_after,
            input_rate=inputs @ event.input_rate,
            impulses=impulses,
        )

    def _map_curve(self, curve: GainCurve) -> GainCurve:
        """Return the gain W^-1 K S on the image, a period later."""

        def transform(gains: Array) -> Array:
            if self.symmetry is None:
                return gains
            inputs = self._inverse_input_map(gains.shape[1])
            return np.asarray(inputs @ gains @ self.symmetry.matrix)

        slopes = None if curve.slopes is None else transform(curve.slopes)
        return GainCurve(curve.times + self.period, transform(curve.values), slopes)

    def _map_guards(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that guards have in the image."""
        return tuple(names if self.symmetry is None else map(self.symmetry.guard, names))

    @cached_property
    def _state_map(self) -> tuple[Array, Array]:
        """The matrix (nx, nx) and the offset (nx,) of the affine map S^-1 g of coordinates."""
        assert self.symmetry is not None
        inverse = np.asarray(np.linalg.inv(self.symmetry.state_map))
        if self.moved is None:
            return inverse, inverse @ self.shift
        space, amounts = self.moved
        offset = self.symmetry.add_shift(space, np.zeros(len(inverse)), amounts)
        columns = [self.symmetry.add_shift(space, x, amounts) for x in np.eye(len(inverse))]
        return inverse @ (np.array(columns) - offset).T, inverse @ offset

    def _map_state(self, x: Array) -> Array:
        """Return the image (nx,) of a state."""
        matrix, offset = self._state_map
        return np.asarray(matrix @ x + offset)

    def _inverse_input_map(self, nu: int) -> Array:
        """Return the inverse W^-1 (nu, nu)."""
        assert self.symmetry is not None
        return np.asarray(np.linalg.inv(self.symmetry.inputs(nu)))


@dataclass(frozen=True, eq=False)
class PeriodicLqr:
    """Optimal feedback on a periodic orbit.

    Attributes:
        period: Feedback over one period. Its V at the end is S' V S of that at the start.
        residual: Largest change of V at the start in the last sweep, relative to the largest entry
            of V: at most the tolerance.
        symmetry: Symmetry S up to which the orbit closes; None for none.
        closing_tolerance: Largest gap between the ends of the orbit, relative to 1 + |x|.
    """

    period: LqrResult
    residual: float
    symmetry: Symmetry | None = None
    closing_tolerance: float = CLOSING_TOLERANCE

    @cached_property
    def multipliers(self) -> FloquetMultipliers:
        """Multipliers of the closed loop."""
        return floquet_multipliers(
            self.period.closed_loop, symmetry=self.symmetry, tolerance=self.closing_tolerance
        )

    def repeated(self, periods: int) -> tuple[HybridTrajectory, GainSchedule]:
        """Return the orbit and its gains over several periods, as a reference to track.

        Where the orbit closes up to a symmetry, the next period is the inverse image of the last.

        Args:
            periods: Number of periods, one at least.

        Raises:
            InputError: The number is not that.
        """
        once, gains = self.period.linearization.trajectory, self.period.gains
        later = LaterPeriod.from_orbit(once, self.symmetry)
        arcs, curves, events = list(once.arcs), list(gains.arcs), list(once.events)
        phantoms, last_arcs, last_events = dict(gains.phantoms), once.arcs, once.events
        for _ in range(check_count("periods", periods) - 1):
            n, count = len(arcs) - 1, len(events)
            last_arcs = tuple(later.map_arc(arc, n + k) for k, arc in enumerate(last_arcs))
            last_events = tuple(later.map_event(e, count + k) for k, e in enumerate(last_events))
            gains = later.map_gains(gains)
            # The last arc of a period and the first of the next one are a single arc.
            arcs[n:] = [join_arcs(n, [arcs[n], last_arcs[0]]), *last_arcs[1:]]
            curves[n:] = [GainCurve.join([curves[n], gains.arcs[0]]), *gains.arcs[1:]]
            events += last_events
            phantoms |= {(k + count, names): gain for (k, names), gain in gains.phantoms.items()}
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
    closing_tolerance: float = CLOSING_TOLERANCE,
    tolerance: float = 1e-8,
    rtol: float = 1e-10,
    atol: float = 1e-12,
    progress: Progress = None,
) -> PeriodicLqr:
    """Return the feedback of least cost for an infinite time along a periodic orbit.

    Free directions of the symmetry have no cost where the weights leave them out. Then V is not
    unique, and the one that is returned belongs to feedback that does not act on them.

    Args:
        lin: First-order map of one period, without feedback. It starts and ends inside an arc, and
            closes up to the symmetry.
        state_weight: See `hybrid_lqr`; a function must have the period of the orbit.
        input_weight: See `hybrid_lqr`, likewise.
        simultaneous: See `hybrid_lqr`.
        covariance: See `hybrid_lqr`.
        lead: See `hybrid_lqr`.
        symmetry: Symmetry S up to which the orbit closes; None for none.
        closing_tolerance: Largest gap between the ends of the orbit, relative to 1 + |x|, as of
            `monodromy`.
        tolerance: Greatest change of V over one period, relative to its largest entry.
        rtol: See `hybrid_lqr`.
        atol: See `hybrid_lqr`.
        progress: True prints the share of the work that is done on standard error. A function is
            called with it, from 0 to 1. The number of sweeps is not known: each one counts as half
            of what is left.

    Raises:
        InputError: An argument does not fit, see `hybrid_lqr` and `check_closed`.
        SimulationError: No V is found: the input cannot stabilise an unstable direction, or the
            weights leave one out.
    """
    check_number("tolerance", tolerance, above=0.0)
    check_closed(lin, symmetry, closing_tolerance)
    n = lin.trajectory.arcs[0].space.ndx

    rule = EventRule(simultaneous, covariance, lead)
    report, sweep_count = report_share(progress, "periodic_lqr"), 0

    def report_in_sweep(share: float) -> None:
        if report is not None:
            report(1.0 - 0.5**sweep_count * (1.0 - 0.5 * share))

    riccati = make_riccati_equation(
        lin,
        state_weight,
        input_weight,
        np.zeros((n, n)),
        rtol=rtol,
        atol=atol,
        report=None if report is None else report_in_sweep,
    )

    def sweep(v: Array) -> LqrResult:
        """Return the feedback over one period that ends with S' V S, for V at its start."""
        s = map_perturbations(symmetry, np.eye(n))
        return solve_backwards(riccati, s.T @ v @ s, rule)

    result = sweep(np.zeros((n, n)))
    v = result.values[0].start
    if all(isinstance(jump, JumpGains) and not jump.input.any() for jump in lin.jumps):
        v = _solve_fixed_point(result, symmetry)
    for sweep_count in range(1, _MAX_PERIODS + 1):  # noqa: B007 (read by report_in_sweep)
        result = sweep(v)
        change = float(np.abs(result.values[0].start - v).max())
        v = result.values[0].start
        size = float(np.abs(v).max())
        if not np.isfinite(size):
            break
        if change <= tolerance * size:
            residual = change / size if size else 0.0
            return PeriodicLqr(result, residual, symmetry, closing_tolerance)
    raise SimulationError(
        f"the Riccati equation has found no periodic solution in {_MAX_PERIODS} sweeps: it still "
        f"changes by {change:.3g} of {size:.3g} in one period"
    )


def _solve_fixed_point(result: LqrResult, symmetry: Symmetry | None) -> Array:
    """Return the value V (ndx, ndx) that one period leads back to.

    Free directions w of the symmetry that cost nothing, C w = 0, are left out: F w = w, so that V
    is that of the other directions, with V w = 0.

    Args:
        result: Feedback over one period for V = 0 at its end.
        symmetry: Symmetry up to which the orbit closes; None for none.

    Raises:
        SimulationError: The algebraic Riccati equation has no stabilising solution.
    """
    lin = result.linearization
    period = result.values[0].propagation
    for k, value in enumerate(result.values[1:]):
        period = period.compose(Propagation.jump(lin.linear_jump(k).state)).compose(
            value.propagation
        )
    values, vectors = eigh(period.noise)
    root = map_perturbations(symmetry, vectors * np.sqrt(np.maximum(values, 0.0)))
    f, c = map_perturbations(symmetry, period.state), period.cost
    start = lin.trajectory.arcs[0](lin.trajectory.start)
    z = _find_costly_directions(c, symmetry, start)
    try:
        v = z @ solve_discrete_are(z.T @ f @ z, z.T @ root, z.T @ c @ z, np.eye(len(f))) @ z.T
    except np.linalg.LinAlgError as error:
        raise SimulationError(
            f"the Riccati equation has no periodic solution ({error}): the input must hold all "
            "unstable directions, and the weights must see them"
        ) from error
    return np.asarray(0.5 * (v + v.T))


def _find_costly_directions(c: Array, symmetry: Symmetry | None, x: Array) -> Array:
    """Return a basis (ndx, k) across the free directions at x that cost nothing by C (ndx, ndx)."""
    directions = np.zeros((len(c), 0)) if symmetry is None else symmetry.find_directions(x)
    costs = np.abs(c @ directions).max(axis=0, initial=0.0)
    free = directions[:, costs <= _FREE_COST * np.abs(c).max()]
    return null_space(free.T) if free.shape[1] else np.eye(len(c))
