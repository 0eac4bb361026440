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

from hybridctl.base.checks import Array, check_count, check_number, check_vector, quote
from hybridctl.base.errors import HybridctlError, InputError, SimulationError
from hybridctl.base.progress import Progress, report_each, report_share
from hybridctl.base.spaces import Space
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import computed_starts, simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.orbits.conewise import ConewiseMap, conewise
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

_SAMPLES = 8
_ON = 1e-9
_HALVINGS = 8
_LEAVING = 1e-6
_SAME = 1e-6  # of field and guards, or of 1: by how much they may differ after a period
_SHARP = 1e-13  # s: guards that fire within it are one event, where they are told apart


@dataclass(frozen=True, eq=False)
class PoincareSection:
    """The states x of a mode with normal . (x - point) = 0, crossed the way the normal points.

    point (nx,); normal (ndx,), in the tangent space of `point`.
    """

    mode: ModeKey
    point: ArrayLike
    normal: ArrayLike


@dataclass(frozen=True, eq=False)
class PeriodicOrbit:
    """An orbit from its section back to it.

    linearization: of one period. return_map: the first-order map (ndx, ndx) of the return, which
    is zero along the flow, and has kinks where guards fire together. residuals: the largest entry
    of P(x) - x before each step of Newton's method. symmetry: up to which it closes.
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
        """The multipliers of the orbit."""
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
    r"""The periodic orbit near x0: a fixed point of a return map P, by semismooth Newton steps.

    section: a guard, where P leads from x to the state after the event of it; a `PoincareSection`;
    or a period in s, for systems that depend on time: P is then the flow over it. crossings: which
    return counts. horizon: how long to wait for it, s. input: u(t) (nu,), zero without it.
    symmetry: a map S of states up to which the orbit is to close; P is then S times the return, to
    the image of the section, and P(x) - x may lie along the free directions of S.

    .. math:: (I - DP)\, \delta x = P(x) - x, \qquad DP = \Big(I - \frac{f n^T}{n^T f}\Big) \Phi,

    with :math:`D_x R + \dot R\, D_x \delta t` of the event in place of the projection for a guard.
    Where guards fire together P is linear on cones only, and of the steps that its pieces ask for
    that one is taken which lies in its piece's cone, or nearest to it.
    DP has the flow in its kernel, so the equation is regular unless orbits come in families, of
    which the nearest is taken. Steps that do not lessen the residual are halved. The orbit is
    found where the residual is below tolerance (1 + |x|). Guards that fire within `event_window`
    (s) of each other are one event, which moves the end by as little; where that keeps steps from
    being taken, they are told apart until the orbit is found. simultaneous: see `jump_derivative`;
    "at once", for impacts of several contacts that stay one within the window, keeps it throughout.
    progress: True prints the share of `max_steps` that is done on standard error; a function is
    called with it, from 0 to 1. Newton's method may end early.

    Raises `InputError` for bad arguments, too few crossings from x0, another mode after the
    return, others that fire with the guard of the section, or a field that depends on time and is
    another one after the return; `SimulationError` with all residuals where it does not converge,
    or where it tends to rest; and what `simulate` and `linearize` raise.
    """
    returns = _Returns(system, mode, section, horizon, check_count("crossings", crossings),
                       check_number("start", start), input, symmetry, simultaneous, rtol, atol,
                       check_number("event_window", event_window, at_least=0.0))  # fmt: skip
    window = returns.window
    check_number("tolerance", tolerance, above=0.0)
    check_count("max_steps", max_steps)
    space = system.mode(mode).space
    if symmetry is not None:
        symmetry.check(space)
    x: Array = check_vector("x0", x0, space.nx)
    returns.check(x)
    report = report_share(progress, "periodic_orbit")
    current, residuals = returns.at(x), list[float]()
    for _ in report_each(range(max_steps), max_steps, report):
        off = compute_closing_error(symmetry, space, x, current.trajectory.final_state)
        residuals.append(float(np.abs(off).max()))
        derivative = returns.derivative(current)
        if residuals[-1] <= tolerance * (1.0 + float(np.abs(x).max())):
            if returns.window != window:
                current = replace(returns, window=window).at(x)
                derivative = returns.derivative(current)
            returns.check_orbit(current.trajectory, tolerance)
            return PeriodicOrbit(current, derivative, tuple(residuals), symmetry)
        found = returns.descend(x, _newton_step(derivative, off, symmetry), residuals[-1])
        if found is None and returns.window > _SHARP and simultaneous == "in turn":
            returns = replace(returns, window=_SHARP)
            found = x, returns.at(x)
        if found is None:
            break
        x, current = found
    raise SimulationError(
        f"Newton's method found no periodic orbit in mode {mode!r} near x0 = "
        f"{np.asarray(x0).tolist()}: residuals {[float(f'{r:.3g}') for r in residuals]}"
    )


def _newton_step(derivative: ConewiseMap, off: Array, symmetry: Symmetry | None) -> Array:
    """The step (ndx,) of least norm that closes an orbit off by `off`, of the piece it lies in."""
    steps = []
    for piece in derivative.pieces:
        closing = np.eye(len(off)) - piece.matrix
        if symmetry is not None:
            closing -= symmetry.free_part(closing)
        step = np.linalg.lstsq(closing, off, rcond=1e-10)[0]
        steps.append((float((piece.cone @ step).min(initial=0.0)), step))
    return np.asarray(max(steps, key=lambda found: found[0])[1], dtype=np.float64)


@dataclass(frozen=True)
class _Returns:
    """The return map of a section, with the trajectory that leads to it."""

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

    def check(self, x: Array) -> None:
        """Raise `InputError` where the first state is not on the section."""
        if not isinstance(self.section, PoincareSection):
            return
        if self.section.mode != self.mode:
            raise InputError(f"section.mode must be {self.mode!r}, got {quote(self.section.mode)}")
        height = _height(self.section, self.system.mode(self.mode).space)(x)
        if abs(height) > _ON * (1.0 + float(np.abs(x).max())):
            raise InputError(
                f"x0 must lie on the section, but normal . (x0 - point) = {height:.3g}"
            )

    def check_orbit(self, run: HybridTrajectory, tolerance: float) -> None:
        """Raise an error where what closes is no orbit: it goes on otherwise, or not at all."""
        first, last, mode = run.arcs[0], run.arcs[-1], self.system.mode(self.mode)
        x, ends = first(run.start), []
        for t, u in ((run.start, first.input(run.start)), (run.end, last.input(run.end))):
            point = mode.calc(t, x, u)
            ends.append(np.append(point.field, point.guards))
        change = float(np.abs(ends[1] - ends[0]).max())
        if self.symmetry is None and change > _SAME * (1.0 + float(np.abs(ends[0]).max())):
            raise InputError(
                f"the motion closes after {run.end - run.start:.9g} s, but the system or the input "
                f"is another one then: field and guards differ by {change:.3g}. section must be a "
                "period of what depends on time"
            )
        size = max(
            float(np.abs(arc.space.difference(arc(arc.start), arc(t))).max())
            for arc in run.arcs
            for t in np.linspace(arc.start, arc.end, _SAMPLES)
        )
        if isinstance(self.section, str | PoincareSection) and size <= 10.0 * tolerance:
            raise SimulationError(
                f"returns to the section tend to rest, not to an orbit: x = {x.tolist()} moves by "
                f"{size:.3g} until the next one"
            )

    def at(self, x: Array) -> Linearization:
        """The trajectory from x until it has returned, linearized."""
        section = self.section
        duration = self.horizon if isinstance(section, str | PoincareSection) else section
        assert duration is not None
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
                terminal=self._returns(),
                on_zeno="raise",  # a run that comes to rest has no derivative
                event_window=self.window,
                **options,  # type: ignore[arg-type]
            )
        if isinstance(section, str):
            run = self._through(run, section)
        elif isinstance(section, PoincareSection):
            run = self._until(run, section)
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

    def _returns(self) -> Callable[[Event], bool] | None:
        """Whether an event is the one at which the orbit is back at its guard."""
        if not isinstance(self.section, str):
            return None
        guard, passed = self.section, itertools.count(1)
        return lambda event: guard in event.guards and next(passed) == self.crossings

    def descend(self, x: Array, step: Array, residual: float) -> tuple[Array, Linearization] | None:
        """The longest of the steps 1, 1/2, 1/4, ... that lessens the residual, if one does."""
        space = self.system.mode(self.mode).space
        for k in range(_HALVINGS):
            trial = space.normalize(space.integrate(x, 0.5**k * step))
            try:
                lin = self.at(trial)
            except HybridctlError:
                continue
            end = lin.trajectory.final_state
            if np.abs(compute_closing_error(self.symmetry, space, trial, end)).max() < residual:
                return trial, lin
        return None

    def derivative(self, lin: Linearization) -> ConewiseMap:
        """The derivative DP (ndx, ndx), of deviations at the section, each at its own time."""
        if isinstance(self.section, str):
            last = len(lin.jumps) - 1
            jump = lin.linear_jump(last).state_at_events
            return conewise(lin, last).then(map_perturbations(self.symmetry, jump))
        whole = conewise(lin)
        if self.symmetry is not None:
            whole = whole.then(self.symmetry.matrix)
        if isinstance(self.section, PoincareSection):
            arc = lin.trajectory.arcs[-1]
            f = map_perturbations(self.symmetry, evaluate_field(lin, arc, arc.end))
            normal = check_vector("section.normal", self.section.normal, len(f))
            return whole.then(project_along_flow(f, normal))
        return whole

    def _through(self, run: HybridTrajectory, guard: str) -> HybridTrajectory:
        """The run until just after the event of the guard."""
        found = [k for k, event in enumerate(run.events) if guard in event.guards]
        k = self._chosen(found, f"events of guard {guard!r}")
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

    def _until(self, run: HybridTrajectory, section: PoincareSection) -> HybridTrajectory:
        """The run until it crosses the section."""
        assert self.horizon is not None
        found = [
            (arc, t)
            for arc in run.arcs
            if map_mode(self.symmetry, arc.mode) == section.mode
            for t in _crossings(arc, section, self.symmetry)
            if t > self.start + _LEAVING * self.horizon
        ]
        arc, t = self._chosen(found, "crossings of the section")
        kept = arc.breaks < t
        last = replace(
            arc,
            end=t,
            breaks=arc.breaks[kept],
            lengths=arc.lengths[kept],
            states=arc.states[kept],
            inputs=arc.inputs[kept],
        )
        return replace(run, arcs=(*run.arcs[: arc.index], last), events=run.events[: arc.index])

    def _chosen(self, found: list[T], what: str) -> T:
        if len(found) < self.crossings:
            raise InputError(
                f"within horizon = {self.horizon} s there are {len(found)} {what}, not "
                f"{self.crossings}"
            )
        return found[self.crossings - 1]


def _height(section: PoincareSection, space: Space) -> Callable[[Array], float]:
    """The height normal . (x - point), as a function of x."""
    point = check_vector("section.point", section.point, space.nx)
    normal = check_vector("section.normal", section.normal, space.ndx)
    return lambda x: float(normal @ space.difference(point, x))


def _crossings(arc: Arc, section: PoincareSection, symmetry: Symmetry | None) -> Iterator[float]:
    """Times at which the image of the arc crosses the section the way its normal points."""
    above = _height(section, arc.space)

    def height(t: float) -> float:
        return above(arc(t) if symmetry is None else symmetry.image(arc(t)))

    ends = np.minimum(arc.breaks + arc.lengths, arc.end)
    steps = zip(arc.breaks, ends, strict=True)
    times = [t for a, b in steps for t in np.linspace(a, b, _SAMPLES, endpoint=False)]
    times = [float(t) for t in (*times, arc.end)]
    heights = [height(t) for t in times]
    for k in range(len(times) - 1):
        if heights[k] < 0.0 <= heights[k + 1]:
            yield float(brentq(height, times[k], times[k + 1], xtol=1e-15, rtol=9e-16))
