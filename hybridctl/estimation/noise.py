r"""Noise on the flow, on resets and on guards.

On the flow it is white with a spectral density, :math:`\dot P = A P + P A^T + Q`, Q in (unit of
the tangent)^2 / s. On a reset its covariance is added after the jump. A guard that fires at
g + w = 0 instead of g = 0 shifts the event by :math:`-w / \dot g`, and the state after it by
:math:`(f^+ - \dot R)\, w / \dot g`.

Where contacts hold the state, noise in the tangent space would tear at them. `through_input` noise
is in the space of the input instead, a force (density in N^2 s) or an impulse (covariance in
N^2 s^2), and :math:`B = D_u f` of the mode, which knows what is held, takes it to the state:
:math:`Q = B W B^T`. Declare all joints of the model actuated for that.

No contact is rigid: what it holds gives way a little, and a contact that is taken to be closed by
mistake holds nothing. With the noise's `compliance` :math:`\kappa` that is

.. math:: Q = B_\kappa W B_\kappa^T, \qquad B_\kappa = B + \kappa (B_0 - B),

:math:`B_0` that of the mode if it held nothing. A closed contact then moves within white noise of
its velocity, with one what the same forces would do to it in the air, and corrections reach what it
holds; the mean stays on the mode's constraints. With zero, contacts have no variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_callable,
    check_number,
    check_semidefinite,
    is_finite,
)
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.hybrid.model import Diffusion, ModeKey, ModeModel, Point
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event

NoiseFunction: TypeAlias = Callable[[ModeKey, float, Array, Array], ArrayLike]


@dataclass(frozen=True, eq=False)
class Noise:
    """A covariance or density: constant, by mode key, or a function of (mode key, t, x, u).

    through_input: it is in the space of the input (nu, nu), otherwise in the tangent space (ndx,
    ndx). compliance: by how much of noise through the input what a mode holds gives way, see this
    module. of_input: a function sees the mode and the input alone. Constant ones are checked at
    once; what a function returns is checked for its shape.
    Raises `InputError` for a matrix that is not symmetric and positive semidefinite, and
    `UnknownNameError` for a mode that has none.
    """

    value: ArrayLike | Mapping[ModeKey, ArrayLike] | NoiseFunction
    through_input: bool = False
    name: str = "noise"
    compliance: float = 1.0
    of_input: bool = field(default=False, kw_only=True)
    _fixed: dict[ModeKey, Array] = field(default_factory=dict, init=False, repr=False)
    _held: dict[ModeKey, Diffusion] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("compliance", self.compliance, at_least=0.0)
        if callable(self.value):
            return
        given = self.value if isinstance(self.value, Mapping) else {None: self.value}
        for mode, matrix in given.items():
            label = self.name if mode is None else f"{self.name}[{mode!r}]"
            self._fixed[mode] = check_semidefinite(label, matrix)

    def held(self, mode: ModeModel, t: float, x: Array, u: Array) -> Diffusion | None:
        """The noise at a point, where it stays the same while the input is held; or None."""
        known = self._held.get(mode.key)
        if known is not None or (callable(self.value) and not self.of_input):
            return known
        w, ndx, nu = self._at(mode, t, x, u), mode.space.ndx, mode.nu
        found = Diffusion(_no_density(ndx), w)
        if not self.through_input:
            found = Diffusion(w, _no_density(nu))
        elif self.yields(mode):
            found = found._replace(compliance=self.compliance)
        if not callable(self.value):
            self._held[mode.key] = found
        return found

    def matrix(self, point: Point, input_map: Array) -> Array:
        """Covariance or density (ndx, ndx) at a point; input_map (ndx, nu) is D_u f there."""
        mode = point.mode
        w = self._at(mode, point.t, point.x, point.u)
        if not self.through_input:
            return w
        if self.yields(mode):
            free = point.free_input
            input_map = input_map + self.compliance * (free - input_map)
        return np.asarray(input_map @ w @ input_map.T)

    def yields(self, mode: ModeModel) -> bool:
        """Whether the noise moves a mode's constraints, such as closed contacts that give way."""
        return self.through_input and self.compliance > 0.0 and mode.held is not None

    def _at(self, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
        if callable(self.value):
            w = _check_found(self.name, mode, self.value(mode.key, t, x, u))
        else:
            w = self._of(mode.key)
        size = mode.nu if self.through_input else mode.space.ndx
        if w.shape != (size, size):
            what = "inputs" if self.through_input else "dimensions of the tangent space"
            raise InputError(
                f"{self.name} must have shape ({size}, {size}), the {what} of mode "
                f"{mode.key!r}, got {w.shape}"
            )
        return w

    def _of(self, mode: ModeKey) -> Array:
        if isinstance(self.value, Mapping):
            if mode not in self._fixed:
                known = [str(key) for key in self._fixed]
                raise UnknownNameError(f"{self.name} has no entry for mode {mode!r}, only {known}")
            return self._fixed[mode]
        return self._fixed[None]


def _check_found(name: str, mode: ModeModel, found: ArrayLike) -> Array:
    """Return what a function of noise has found as a finite float array; its own where it is one.

    Raises:
        InputError: It is no such array.
    """
    if type(found) is np.ndarray and found.dtype == np.float64 and is_finite(found):
        return found
    return check_array(f"{name} in mode {mode.key!r}", found)


@lru_cache
def _no_density(n: int) -> Array:
    """The density zero (n, n), read-only."""
    density = np.zeros((n, n))
    density.setflags(write=False)
    return density


@dataclass(frozen=True, eq=False)
class EventNoise:
    """A covariance (ndx+, ndx+) after the jump, as a function of the event; None for none."""

    function: Callable[[Event], ArrayLike | None]

    def __post_init__(self) -> None:
        check_callable("function", self.function)


def as_noise(name: str, value: Noise | ArrayLike | Mapping[ModeKey, ArrayLike]) -> Noise:
    """The noise that a user has given: a `Noise`, or a covariance in the tangent space."""
    return value if isinstance(value, Noise) else Noise(value, name=name)


def reset_covariance(
    system: HybridSystem, noise: Noise | EventNoise | None, event: Event
) -> Array | None:
    """What the noise of the reset adds after an event; nothing where the reset moves nothing.

    Nor where a robot begins to stick or to slide: what its state is put back by, which is rounding,
    is no impact.
    """
    still = np.array_equal(event.state_before, event.state_after)
    calm = event.impulses.size > 0 and not event.impulses.any()
    if noise is None or still or calm:
        return None
    mode = system.mode(event.mode_after)
    if isinstance(noise, EventNoise):
        found = noise.function(event)
        return None if found is None else check_semidefinite("reset_noise", found, mode.space.ndx)
    t, x, u = event.time, event.state_after, event.input_after
    point = mode.calc(t, x, u)
    through = point.field_jacobian.input if noise.through_input else np.zeros((0, 0))
    return noise.matrix(point, through)


@dataclass(frozen=True, eq=False)
class GuardNoise:
    """Variance of the offset of each guard, in the square of the guard's unit.

    One number for all guards, or by the name of the guard; those left out have none.
    """

    variance: float | Mapping[str, float] = 0.0

    def __post_init__(self) -> None:
        given = self.variance
        for name, value in given.items() if isinstance(given, Mapping) else [("", given)]:
            check_number(f"guard_noise {name}".strip(), value, at_least=0.0)

    @property
    def named(self) -> tuple[str, ...]:
        """The guards that are given by name."""
        return tuple(self.variance) if isinstance(self.variance, Mapping) else ()

    def of(self, guard: str) -> float:
        """The variance of one guard."""
        if isinstance(self.variance, Mapping):
            return float(self.variance.get(guard, 0.0))
        return float(self.variance)

    def of_all(self, guards: Sequence[str]) -> Array:
        """The variances (n,) of some guards."""
        return np.array([self.of(guard) for guard in guards])


EXACT_GUARDS = GuardNoise()
