"""Periodic orbits as fixed points of a return map, by Newton's method with its exact derivative."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from hybridctl.base.checks import (
    Array,
    check_count,
    check_instance,
    check_number,
    check_vector,
    quote,
)
from hybridctl.base.errors import HybridctlError, InputError, SimulationError
from hybridctl.base.progress import Progress, report_each, report_share
from hybridctl.base.spaces import Space
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import computed_starts, simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.orbits.conewise import ConewiseMap, compute_conewise_map
from hybridctl.sensitivity.floquet import (
    FloquetMultipliers,
    evaluate_field,
    floquet_multipliers,
    project_along_flow,
)
from hybridctl.sensitivity.linearization import Linearization, linearize
from hybridctl.sensitivity.simultaneous import Simultaneous
from hybridctl.sensitivity.symmetry import (
    Symmetry,
    compute_closing_error,
    map_mode,
    map_perturbations,
)

T = TypeVar("T")

_SAMPLES_PER_STEP = 8  # of a height or of the size of an orbit
_ON_SECTION = 1e-9  # height of a start above its section, relative to the state or to 1
_HALVINGS = 8  # of a step of Newton's method, to 1/128
_LEAVING_TIME = 1e-6
"""Time within which a crossing is that of the start, relative to the horizon: a start on the
section has a height of rounding."""
_SAME_FIELD = 1e-6  # change of field and guards over a period, relative to their size or to 1
_REST_SIZE = 10.0  # size of a motion that is rest, in units of the tolerance
_RANK_TOLERANCE = 1e-10  # singular values of I - DP that are zero, relative to the largest
_SPLIT_WINDOW = 1e-13  # event window in which guards that meet are told apart, s: rounding of times


@dataclass(frozen=True, eq=False)
class PoincareSection:
    """The states x of a mode with normal . (x - point) = 0.

    It is crossed in the direction of the normal: from negative heights normal . (x - point) to
    positive ones. Other crossings do not count. Shapes are checked by `periodic_orbit`.

    Attributes:
        mode: Key of the mode.
        point: A state (nx,) of the section.
        normal: Its normal (ndx,), in the tangent space of `point`. Its length does not matter to
            where the section is, but scales the height that a start may have above it.
    """

    mode: ModeKey
    point: ArrayLike
    normal: ArrayLike


@dataclass(frozen=True, eq=False)
class PeriodicOrbit:
    """An orbit from its section back to it.

    Attributes:
        linearization: The linearization of one period.
        return_map: First-order map (ndx, ndx) of the return. It is zero along the flow if the
            section is a guard or a Poincare section, not if it is a period. It has kinks where
            guards fire together.
        residuals: Largest entry of P(x) - x before each step of Newton's method.
        symmetry: The symmetry up to which the orbit closes; None if it closes by itself.
    """

    linearization: Linearization
    return_map: ConewiseMap
    residuals: tuple[float, ...]
    symmetry: Symmetry | None = None

    def __repr__(self) -> str:
        run, left = self.trajectory, self.residuals[-1]
        events = ", ".join(name for event in run.guard_events for name in event.guards)
        return f"PeriodicOrbit(period {self.period:.9g} s, events {events}; closes to {left:.2g})"

    @property
    def trajectory(self) -> HybridTrajectory:
        """The motion of one period."""
        return self.linearization.trajectory

    @property
    def state(self) -> Array:
        """The fixed point (nx,) of the return map."""
        return self.trajectory(self.trajectory.start, side="left")

    @property
    def period(self) -> float:
        """The duration of the orbit, s."""
        return self.trajectory.end - self.trajectory.start

    @cached_property
    def multipliers(self) -> FloquetMultipliers:
        """The Floquet multipliers of the orbit."""
        return floquet_multipliers(self.linearization, symmetry=self.symmetry)


def periodic_orbit(
    system: HybridSystem,
    mode: ModeKey,
    x0: ArrayLike,
    section: str | PoincareSection | float,
    *,
    horizon: float | None = None,
    crossings: int = 1,
    start: float = 0.0,
    input: Callable[[float], ArrayLike] | None = None,
    symmetry: Symmetry | None = None,
    event_window: float = 1e-8,
    simultaneous: Simultaneous = "in turn",
    tolerance: float = 1e-9,
    max_steps: int = 20,
    rtol: float = 1e-11,
    atol: float = 1e-11,
    progress: Progress = None,
) -> PeriodicOrbit:
    r"""Return the periodic orbit near x0: a fixed point of a return map P, by Newton's method.

    .. math:: (I - DP)\, \delta x = P(x) - x, \qquad DP = \Big(I - \frac{f n^T}{n^T f}\Big) \Phi,

    for a section with the normal n. For a guard, the derivative :math:`D_x R + \dot R\, D_x \delta
    t` of its event stands in place of the projection. Where guards fire together P is linear on
    cones only. Of the steps that its pieces ask for, that one is taken which lies in its piece's
    cone, or nearest to it (a semismooth Newton method).

    DP of a guard or of a Poincare section has the flow in its kernel, so the equation is regular
    unless orbits come in families. Over a period DP is :math:`\Phi`, and orbits of a system that
    does not depend on time are a family. Of a family the nearest orbit is taken. A step that does
    not lessen the residual is halved. The orbit is found where the residual is below `tolerance`
    times one plus the largest entry of x.

    Args:
        system: The system.
        mode: Key of the mode of x0.
        x0: First state (nx,); on a Poincare section if there is one.
        section: A guard: P leads from x to the state after its event. Or a Poincare section. Or a
            period, s, for systems that depend on time: P is the flow over it.
        horizon: Longest time until the return, s; needed for a guard and for a Poincare section.
        crossings: Number of the crossing that is the return.
        start: Time of x0, s.
        input: Input u(t) (nu,). If None, the input is zero.
        symmetry: Map S of states up to which the orbit closes. P is then S times the return, to the
            image of the section, and P(x) - x may lie along the free directions of S.
        event_window: Guards that fire within this time of each other are one event, s. That moves
            the end of a period by as much. Where it keeps steps from being taken, guards are told
            apart until the orbit is found.
        simultaneous: How guards that fire together are linearized, see `jump_derivative`. "at
            once" is for impacts of several contacts that stay one event within the window, and
            keeps the window throughout.
        tolerance: Largest residual, relative to the state or to 1.
        max_steps: Largest number of states whose residual is compared with the tolerance: one more
            than of steps of Newton's method.
        rtol: Relative tolerance of simulation and linearization.
        atol: Absolute tolerance of both.
        progress: True prints the share of `max_steps` that is done on standard error. A function
            is called with it, from 0 to 1. Newton's method may end early.

    Raises:
        InputError: If an argument is not valid; if there are too few crossings from x0; if the
            return leads to another mode; if other guards fire with that of the section; or if field
            and guards differ after the return, as where they depend on time. With a symmetry the
            last is not checked.
        SimulationError: If Newton's method does not converge, with all residuals, or if the motion
            tends to rest.
        HybridctlError: If `simulate` or `linearize` fail from x0.
    """
    returns = _ReturnMap(system, mode, section, horizon, check_count("crossings", crossings),
                         check_number("start", start), input, symmetry, simultaneous, rtol, atol,
                         check_number("event_window", event_window, at_least=0.0))  # fmt: skip
    window = returns.window
    check_number("tolerance", tolerance, above=0.0)
    check_count("max_steps", max_steps)
    space = system.mode(mode).space
    if symmetry is not None:
        check_instance("symmetry", symmetry, Symmetry).check(space)
    x: Array = check_vector("x0", x0, space.nx)
    returns.check_start(x)
    report = report_share(progress, "periodic_orbit")
    current, residuals = returns.linearize_from(x), list[float]()
    for _ in report_each(range(max_steps), max_steps, report):
        residual = compute_closing_error(symmetry, space, x, current.trajectory.final_state)
        residuals.append(float(np.abs(residual).max()))
        derivative = returns.differentiate(current)
        if residuals[-1] <= tolerance * (1.0 + float(np.abs(x).max())):
            if returns.window != window:  # guards were told apart on the way
                current = replace(returns, window=window).linearize_from(x)
                derivative = returns.differentiate(current)
            returns.check_orbit(current.trajectory, tolerance)
            return PeriodicOrbit(current, derivative, tuple(residuals), symmetry)
        step = _compute_newton_step(derivative, residual, symmetry, x)
        found = returns.search_line(x, step, residuals[-1])
        if found is None and returns.window > _SPLIT_WINDOW and simultaneous == "in turn":
            # Guards that are one event within the window move the end of the period by as much,
            # and so the residual: with a small window P is continuous.
            returns = replace(returns, window=_SPLIT_WINDOW)
            found = x, returns.linearize_from(x)
        if found is None:
            break
        x, current = found
    raise SimulationError(
        f"Newton's method found no periodic orbit in mode {mode!r} near x0 = "
        f"{np.asarray(x0).tolist()}: residuals {[float(f'{r:.3g}') for r in residuals]}"
    )


def _compute_newton_step(
    derivative: ConewiseMap, residual: Array, symmetry: Symmetry | None, x: Array
) -> Array:
    """Return the step (ndx,) of least norm that closes an orbit, of the piece in whose cone it is.

    Args:
        derivative: DP.
        residual: P(x) - x (ndx,).
        symmetry: The symmetry up to which the orbit closes.
        x: State (nx,) at the start.
    """
    steps = []
    for piece in derivative.pieces:
        closing = np.eye(len(residual)) - piece.matrix
        if symmetry is not None:
            closing -= symmetry.free_part(closing, x)
        step = np.linalg.lstsq(closing, residual, rcond=_RANK_TOLERANCE)[0]
        steps.append((float((piece.cone @ step).min(initial=0.0)), step))
    return np.asarray(max(steps, key=lambda found: found[0])[1], dtype=np.float64)


@dataclass(frozen=True)
class _ReturnMap:
    """The return map of a section; see `periodic_orbit` for the attributes.

    Attributes:
        window: The event window, s.

    Raises:
        InputError: If a section in space has no positive horizon; or if a period is not positive,
            or has a horizon or a number of crossings besides.
    """

    system: HybridSystem
    mode: ModeKey
    section: str | PoincareSection | float
    horizon: float | None
    crossings: int
    start: float
    input: Callable[[float], ArrayLike] | None
    symmetry: Symmetry | None
    simultaneous: Simultaneous
    rtol: float
    atol: float
    window: float

    def __post_init__(self) -> None:
        if isinstance(self.section, str | PoincareSection):
            if self.horizon is None:
                raise InputError("horizon must be given: how long to wait for the return, in s")
            check_number("horizon", self.horizon, above=0.0)
            return
        check_number("section", self.section, above=0.0)
        if self.horizon is not None or self.crossings != 1:
            raise InputError("horizon and crossings are for sections in space, not for a period")

    def check_start(self, x: Array) -> None:
        """Check that a first state is on the Poincare section, if there is one.

        Args:
            x: The state (nx,).

        Raises:
            InputError: If it is not; if the section is in another mode, or its shapes do not fit.
        """
        if not isinstance(self.section, PoincareSection):
            return
        if self.section.mode != self.mode:
            raise InputError(f"section.mode must be {self.mode!r}, got {quote(self.section.mode)}")
        height = _make_height(self.section, self.system.mode(self.mode).space)(x)
        if abs(height) > _ON_SECTION * (1.0 + float(np.abs(x).max())):
            raise InputError(
                f"x0 must lie on the section, but normal . (x0 - point) = {height:.3g}"
            )

    def check_orbit(self, run: HybridTrajectory, tolerance: float) -> None:
        """Check that a motion that closes is an orbit: it goes on in the same way, and moves.

        Args:
            run: The motion of one period.
            tolerance: Of the residual.

        Raises:
            InputError: If field and guards differ after the period.
            SimulationError: If the motion is rest.
        """
        first, last, mode = run.arcs[0], run.arcs[-1], self.system.mode(self.mode)
        x, ends = first(run.start), []
        for t, u in ((run.start, first.input(run.start)), (run.end, last.input(run.end))):
            point = mode.calc(t, x, u)
            ends.append(np.append(point.field, point.guards))
        change = float(np.abs(ends[1] - ends[0]).max())
        if self.symmetry is None and change > _SAME_FIELD * (1.0 + float(np.abs(ends[0]).max())):
            raise InputError(
                f"the motion closes after {run.end - run.start:.9g} s, but the system or the input "
                f"is another one then: field and guards differ by {change:.3g}. section must be a "
                "period of what depends on time"
            )
        size = max(
            float(np.abs(arc.space.difference(arc(arc.start), arc(t))).max())
            for arc in run.arcs
            for t in np.linspace(arc.start, arc.end, _SAMPLES_PER_STEP)
        )
        in_space = isinstance(self.section, str | PoincareSection)
        if in_space and size <= _REST_SIZE * tolerance:
            raise SimulationError(
                f"returns to the section tend to rest, not to an orbit: x = {x.tolist()} moves by "
                f"{size:.3g} until the next one"
            )

    def linearize_from(self, x: Array) -> Linearization:
        """Return the linearized trajectory from a state until it has returned.

        Args:
            x: First state (nx,).

        Raises:
            InputError: If it does not return, or returns to another mode.
            HybridctlError: If `simulate` or `linearize` fail.
        """
        section = self.section
        duration = self.horizon if isinstance(section, str | PoincareSection) else section
        assert duration is not None  # see __post_init__
        options = {"rtol": self.rtol, "atol": self.atol}
        span = (self.start, self.start + duration)
        law: InputLaw | None = None
        if self.input is not None:
            u = self.input
            law = lambda t, x: np.asarray(u(t), dtype=np.float64)  # noqa: E731
        with computed_starts():
            run = simulate(
                self.system,
                self.mode,
                x,
                span,
                law,
                terminal=self._make_terminal(),
                on_zeno="raise",  # a run that comes to rest has no derivative
                event_window=self.window,
                **options,  # type: ignore[arg-type]
            )
        if isinstance(section, str):
            run = self._cut_at_guard(run, section)
        elif isinstance(section, PoincareSection):
            run = self._cut_at_section(run, section)
        reached = map_mode(self.symmetry, run.final_mode)
        if reached != self.mode:
            raise InputError(
                f"the return must lead to the mode {self.mode!r} of x0, but leads to {reached!r}"
            )
        return linearize(
            self.system,
            run,
            simultaneous=self.simultaneous,
            **options,  # type: ignore[arg-type]
        )

    def _make_terminal(self) -> Callable[[Event], bool] | None:
        """Return a new function of an event: whether it is the return to the guard."""
        if not isinstance(self.section, str):
            return None
        guard, passed = self.section, itertools.count(1)
        return lambda event: guard in event.guards and next(passed) == self.crossings

    def search_line(
        self, x: Array, step: Array, residual: float
    ) -> tuple[Array, Linearization] | None:
        """Return the next state and its trajectory: the longest step that lessens the residual.

        Args:
            x: State (nx,).
            step: Step (ndx,) of Newton's method; also 1/2, 1/4, ... of it is tried.
            residual: The residual at x.

        Returns:
            The state (nx,) and its trajectory. None if none of the steps lessens the residual; a
            step from which there is no return does not.
        """
        space = self.system.mode(self.mode).space
        for k in range(_HALVINGS):
            trial = space.normalize(space.integrate(x, 0.5**k * step))
            try:
                lin = self.linearize_from(trial)
            except HybridctlError:
                continue
            end = lin.trajectory.final_state
            if np.abs(compute_closing_error(self.symmetry, space, trial, end)).max() < residual:
                return trial, lin
        return None

    def differentiate(self, lin: Linearization) -> ConewiseMap:
        """Return DP (ndx, ndx): perturbations at the section, each at its own time of return.

        Args:
            lin: The linearized trajectory.
        """
        if isinstance(self.section, str):
            last = len(lin.jumps) - 1
            jump = lin.linear_jump(last).state_at_events
            return compute_conewise_map(lin, last).multiply_by(
                map_perturbations(self.symmetry, jump)
            )
        whole = compute_conewise_map(lin)
        if self.symmetry is not None:
            whole = whole.multiply_by(self.symmetry.matrix)
        if isinstance(self.section, PoincareSection):
            arc = lin.trajectory.arcs[-1]
            f = map_perturbations(self.symmetry, evaluate_field(lin, arc, arc.end))
            normal = check_vector("section.normal", self.section.normal, len(f))
            return whole.multiply_by(project_along_flow(f, normal))
        return whole

    def _cut_at_guard(self, run: HybridTrajectory, guard: str) -> HybridTrajectory:
        """Return the run until just after the event of the guard.

        Args:
            run: A run over the horizon, or until that event.
            guard: Name of the guard.

        Raises:
            InputError: If there are too few such events, or if other guards fire with it.
        """
        found = [k for k, event in enumerate(run.events) if guard in event.guards]
        k = self._choose_crossing(found, f"events of guard {guard!r}")
        event = run.events[k]
        if event.guards != (guard,):
            raise InputError(f"the section must be one guard alone, but {event.guards} fire")
        rest = make_arc_from_steps(
            k + 1,
            self.system.mode(event.mode_after),
            [],
            event.time,
            event.state_after,
            event.input_after,
            event.time,
        )
        return replace(run, arcs=(*run.arcs[: k + 1], rest), events=run.events[: k + 1])

    def _cut_at_section(self, run: HybridTrajectory, section: PoincareSection) -> HybridTrajectory:
        """Return the run until it crosses the Poincare section.

        Args:
            run: A run over the horizon.
            section: The section.

        Raises:
            InputError: If there are too few crossings.
        """
        assert self.horizon is not None  # see __post_init__
        found = [
            (arc, t)
            for arc in run.arcs
            if map_mode(self.symmetry, arc.mode) == section.mode
            for t in _find_crossings(arc, section, self.symmetry)
            if t > self.start + _LEAVING_TIME * self.horizon
        ]
        arc, t = self._choose_crossing(found, "crossings of the section")
        before = arc.breaks < t
        last = replace(
            arc,
            end=t,
            breaks=arc.breaks[before],
            lengths=arc.lengths[before],
            states=arc.states[before],
            inputs=arc.inputs[before],
            jumps=arc.jumps[before],
        )
        return replace(run, arcs=(*run.arcs[: arc.index], last), events=run.events[: arc.index])

    def _choose_crossing(self, found: list[T], what: str) -> T:
        """Return the crossing that is the return.

        Args:
            found: All crossings, in order of time.
            what: What they are, for the message.

        Raises:
            InputError: If there are too few.
        """
        if len(found) < self.crossings:
            raise InputError(
                f"within horizon = {self.horizon} s there are {len(found)} {what}, not "
                f"{self.crossings}"
            )
        return found[self.crossings - 1]


def _make_height(section: PoincareSection, space: Space) -> Callable[[Array], float]:
    """Return the function normal . (x - point) of a state x (nx,)."""
    point = check_vector("section.point", section.point, space.nx)
    normal = check_vector("section.normal", section.normal, space.ndx)
    return lambda x: float(normal @ space.difference(point, x))


def _find_crossings(
    arc: Arc, section: PoincareSection, symmetry: Symmetry | None
) -> Iterator[float]:
    """Yield the times, s, at which an arc crosses the image of a section along its normal.

    A crossing leads from a negative height to one that is not. Each step of the arc is sampled at
    eight times; several crossings between two samples count as one, or as none.

    Args:
        arc: The arc.
        section: The section.
        symmetry: Map of states that is applied to the arc; None for none.
    """
    evaluate = _make_height(section, arc.space)

    def height(t: float) -> float:
        return evaluate(arc(t) if symmetry is None else symmetry.image(arc(t)))

    ends = np.minimum(arc.breaks + arc.lengths, arc.end)
    steps = zip(arc.breaks, ends, strict=True)
    times = [t for a, b in steps for t in np.linspace(a, b, _SAMPLES_PER_STEP, endpoint=False)]
    times = [float(t) for t in (*times, arc.end)]
    heights = [height(t) for t in times]
    for k in range(len(times) - 1):
        if heights[k] < 0.0 <= heights[k + 1]:
            yield float(brentq(height, times[k], times[k + 1], xtol=1e-15, rtol=9e-16))
