r"""Flow along one mode: scipy's steppers, and each accepted step kept as a polynomial.

A step's dense output is sampled at eight Chebyshev points, which fixes it exactly for each
of the methods below (degree at most 7). The same samples serve three ends: the stored arc,
the watch on the guards, and the record of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.chebyshev import chebder, chebval
from scipy.integrate import BDF, DOP853, RK23, RK45, OdeSolver, Radau

from hybridctl.checks import Array
from hybridctl.errors import IntegrationError, SystemDefinitionError
from hybridctl.hybrid.mode import InputLaw, Mode, Pace

METHODS: dict[str, type[OdeSolver]] = {
    "DOP853": DOP853,
    "RK45": RK45,
    "RK23": RK23,
    "Radau": Radau,
    "BDF": BDF,
}

_EXPLICIT = (DOP853, RK45, RK23)
_IMPLICIT = Radau
_STIFF = 1e-6  # of the time to go: a decay as fast as this wants an implicit method at once
_SHORT = 5  # steps longer than the fastest decay, after which it is taken to be what limits them
_TRIED = 100  # roundings of the time: scipy gives up below 10 of them, and shrinks at most to 1/5
_RELAXED = 5.0  # times a step: a decay as slow as this does not limit it
_DEGREE = 7
_ORDERS = np.arange(_DEGREE + 1)
NODES: Array = -np.cos(np.pi * _ORDERS / _DEGREE)
TO_SERIES: Array = np.linalg.inv(np.cos(np.outer(np.arccos(NODES), _ORDERS)))
TO_SLOPES: Array = chebval(NODES, chebder(np.eye(_DEGREE + 1))).T @ TO_SERIES


def basis(s: Array | float) -> Array:
    """Chebyshev polynomials T_0..T_7 at s in [-1, 1], on a new last axis."""
    if isinstance(s, float):
        return np.asarray(np.cos(_ORDERS * math.acos(min(1.0, max(-1.0, s)))))
    angle = np.arccos(np.clip(s, -1.0, 1.0))
    return np.asarray(np.cos(angle[..., None] * _ORDERS))


@dataclass(frozen=True)
class Step:
    """One accepted step: `times` (8,), `states` (8, nx) and `inputs` (8, nu) at its nodes."""

    start: float
    end: float
    times: Array
    states: Array
    inputs: Array

    def state(self, t: float) -> Array:
        """The state on this step's polynomial."""
        s = 2.0 * (t - self.start) / (self.end - self.start) - 1.0
        return np.asarray(basis(s) @ TO_SERIES @ self.states)


@dataclass(frozen=True)
class Integrator:
    """A scipy stepper and its settings.

    first_step: what it tries first, in s; None leaves that to scipy.
    """

    method: type[OdeSolver]
    rtol: float
    atol: float
    max_step: float
    first_step: float | None = None

    def steps(
        self,
        mode: Mode,
        law: InputLaw,
        t: float,
        x: Array,
        t_end: float,
        *,
        open_loop: bool = False,
    ) -> Iterator[Step]:
        """Accepted steps from (t, x) until t_end; the caller stops early at an event.

        open_loop: the law does not look at the state, so that in a vector space the Jacobian of the
        mode is that of the flow, and implicit methods use it.

        Raises `SystemDefinitionError` if the field has the wrong shape, `IntegrationError` if it
        is not finite or the step size collapses.
        """
        space, rate = mode.space, _Rate(mode, law)
        rate(t, x)
        if rate.broken is not None:
            raise IntegrationError(rate.complaint())
        jac = _jacobian_along(mode, law) if open_loop else None
        pace = self._pace(mode, law, t, x)
        stiff = self.method in _EXPLICIT and pace.relaxation < _STIFF * (t_end - t)
        method = _IMPLICIT if stiff else self.method
        first = self.first_step
        solver = self._solver(method, rate, jac, t, x, t_end, pace, None if stiff else first)
        short = 0
        while solver.status == "running":
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                message = _advance(solver)
                if solver.status == "failed" and rate.broke_near(solver.t):
                    raise IntegrationError(rate.complaint())
                if solver.status == "failed" or not np.isfinite(solver.y).all():
                    why = message or "the state is not finite"
                    raise IntegrationError(_where(why, mode, solver.t, solver.y))
                step = _sampled(solver, mode, law)
            yield step
            if solver.status != "running":
                return
            pace = self._pace(mode, law, step.end, space.normalize(solver.y))
            solver.max_step = min(self.max_step, pace.longest_step)
            length = step.end - step.start
            short = short + 1 if length > pace.relaxation else 0
            method = self._suited(type(solver), short, length, pace.relaxation)
            if method is not type(solver):
                solver = self._solver(method, rate, jac, solver.t, solver.y, t_end, pace)

    def _suited(
        self, method: type[OdeSolver], short: int, length: float, relaxation: float
    ) -> type[OdeSolver]:
        """The method to go on with: an implicit one while steps are limited by a fast decay."""
        if method is self.method:
            return _IMPLICIT if short >= _SHORT and method in _EXPLICIT else method
        return self.method if relaxation > _RELAXED * length else method

    def _solver(
        self,
        method: type[OdeSolver],
        rate: Callable[[float, Array], Array],
        jac: Callable[[float, Array], Array] | None,
        t: float,
        x: Array,
        t_end: float,
        pace: Pace,
        first_step: float | None = None,
    ) -> OdeSolver:
        longest = min(self.max_step, pace.longest_step)
        options = {"jac": jac} if jac is not None and method not in _EXPLICIT else {}
        return method(
            rate,
            t,
            x,
            t_end,
            rtol=self.rtol,
            atol=self.atol,
            max_step=longest,
            first_step=None if first_step is None else min(first_step, t_end - t),
            **options,
        )

    @staticmethod
    def _pace(mode: Mode, law: InputLaw, t: float, x: Array) -> Pace:
        return Pace() if mode.pace is None else mode.pace(t, x, law(t, x))


@dataclass
class _Rate:
    """The velocity of the coordinates, for a stepper; `broken` is where it was last not finite."""

    mode: Mode
    law: InputLaw
    broken: tuple[float, Array] | None = None

    def __call__(self, time: float, coordinates: Array) -> Array:
        mode, space = self.mode, self.mode.space
        state = space.normalize(coordinates)
        value = mode.field(time, state, self.law(time, state))
        velocity = np.asarray(value)
        if velocity.shape != (space.ndx,) or velocity.dtype.kind not in "iuf":
            got = velocity.shape if velocity.dtype.kind in "iuf" else repr(value)
            raise SystemDefinitionError(
                f"the field of mode {mode.key!r} must return shape ({space.ndx},), got {got} at "
                f"t = {time}"
            )
        if not velocity @ velocity < np.inf and not np.isfinite(velocity).all():
            self.broken = time, state
        return space.rate(state, velocity)

    def broke_near(self, t: float) -> bool:
        """Whether the field was not finite in the last steps tried from t."""
        return self.broken is not None and abs(self.broken[0] - t) <= _TRIED * np.spacing(abs(t))

    def complaint(self) -> str:
        """What is not finite, and where."""
        assert self.broken is not None
        t, x = self.broken
        u = self.law(t, x)
        if not np.isfinite(u).all():
            return _where(f"the input {u} is not finite", self.mode, t, x)
        what = f"the vector field {np.asarray(self.mode.field(t, x, u))} is not finite"
        return _where(what, self.mode, t, x)


def _jacobian_along(mode: Mode, law: InputLaw) -> Callable[[float, Array], Array] | None:
    """D_x f of a mode in a vector space, as a function of (t, x)."""
    derivatives = mode.jacobian
    if derivatives is None:
        return None
    return lambda t, x: derivatives(t, x, law(t, x)).state


def _advance(solver: OdeSolver) -> str | None:
    """One accepted step, or the message of the failure."""
    try:
        message: str | None = solver.step()
    except ValueError as error:
        if "infs or NaNs" not in str(error):
            raise
        solver.status = "failed"
        return "the vector field is not finite"
    return message


def _sampled(solver: OdeSolver, mode: Mode, law: InputLaw) -> Step:
    start, end = float(solver.t_old), float(solver.t)
    times = start + (end - start) * 0.5 * (NODES + 1.0)
    times[-1] = end
    states = solver.dense_output()(times).T
    states[-1] = solver.y
    normalize = mode.space.normalize
    inputs = np.array([law(t, normalize(x)) for t, x in zip(times, states, strict=True)])
    if not (np.isfinite(states).all() and np.isfinite(inputs).all()):
        raise IntegrationError(_where("the state or the input is not finite", mode, end, solver.y))
    return Step(start, end, times, states, inputs)


def _where(what: str, mode: Mode, t: float, x: Array) -> str:
    return f"{what} in mode {mode.key!r} at t = {t:.9g} s, x = {np.array2string(x, precision=6)}"
