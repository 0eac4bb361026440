r"""Noise on the flow, on resets and on guards.

- Noise on the flow is white, with a spectral density Q in (unit of the tangent space)^2 / s:
  :math:`\dot P = A P + P A^T + Q`.
- Noise on a reset has a covariance, which is added after the jump.
- Noise on a guard: it fires at g + w = 0 instead of g = 0. That shifts the event by
  :math:`-w / \dot g`, and the state after it by :math:`(f^+ - \dot R)\, w / \dot g`.

Where contacts constrain the state, noise in the tangent space would violate the constraints. Noise
`through_input` is in the space of the input instead: a force (density in N^2 s) or an impulse
(covariance in N^2 s^2). :math:`B = D_u f` of the mode, which respects the constraints, takes it to
the state: :math:`Q = B W B^T`. Declare all joints of the model actuated for this.

No contact is rigid: what it constrains gives way a little, and a contact that is taken to be closed
by mistake constrains nothing. With the noise's `compliance` :math:`\kappa` that is

.. math:: Q = B_\kappa W B_\kappa^T, \qquad B_\kappa = B + \kappa (B_0 - B),

with :math:`B_0` that of the mode without its constraints. A closed contact then moves within white
noise of its velocity; for :math:`\kappa = 1` that is what the same forces would do in the air.
Corrections reach what it constrains, and the mean stays on the constraints. With zero, constrained
directions have no variance.

White noise is small everywhere. What a model leaves out (an impact that it misses, a push) is
rare and large: the `disturbances` of a noise. They make it a contaminated one, see
`unmodelled_motion`.
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
from hybridctl.estimation.estimate import SlowImpact, keep_open_impacts
from hybridctl.hybrid.model import Diffusion, ModeKey, ModeModel, Point
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event

NoiseFunction: TypeAlias = Callable[[ModeKey, float, Array, Array], ArrayLike]
"""Function of mode key, time in s, state (nx,) and input (nu,) that returns a matrix (n, n)."""


@dataclass(frozen=True, eq=False)
class Disturbance:
    r"""A rare sudden change of the state that the model does not contain.

    Changes come independently of each other, as a Poisson process. Within a time T there is one
    with probability :math:`1 - e^{-\lambda T}`.

    Attributes:
        rate: Mean number :math:`\lambda` of changes per second, 1/s: one number, or a function of
            the key of the mode. Zero for none.
        covariance: Covariance of one change, in the space of the noise that has the disturbance:
            of an impulse (nu, nu) in N^2 s^2 through the input, else in the tangent space
            (ndx, ndx).

    Raises:
        InputError: The rate is negative, or the matrix not symmetric and positive semidefinite.
    """

    rate: float | Callable[[ModeKey], float]
    covariance: ArrayLike

    def __post_init__(self) -> None:
        if not callable(self.rate):
            check_number("rate", self.rate, at_least=0.0)
        object.__setattr__(self, "covariance", check_semidefinite("covariance", self.covariance))

    def rate_in(self, mode: ModeKey) -> float:
        """Return the mean number of changes per second in a mode, 1/s.

        Args:
            mode: Key of the mode.

        Raises:
            InputError: A function returned a negative rate, or no number.
        """
        if callable(self.rate):
            return check_number(f"rate in mode {mode!r}", self.rate(mode), at_least=0.0)
        return float(self.rate)


@dataclass(frozen=True, eq=False)
class Noise:
    """A covariance or density: constant, by mode, or a function of mode, time, state and input.

    Constant ones are checked at once. What a function returns is checked for its shape and for
    finite numbers, not for being a covariance.

    Attributes:
        value: Matrix (n, n), matrices by key of the mode, or a function of (mode key, t, x, u).
        through_input: Whether the matrix is in the space of the input (nu, nu), otherwise in the
            tangent space (ndx, ndx).
        name: Name of the noise, for messages.
        compliance: Share of noise through the input by which constraints of a mode give way, see
            this module.
        of_input: Whether a function depends on mode and input only. Compiled steps then integrate
            its noise, as they do a constant one.
        disturbances: Rare changes besides the white noise, if this is the noise of a flow. Salted
            and unscented filters use them, the particle filter does not.

    Raises:
        InputError: A matrix is not symmetric and positive semidefinite.
    """

    value: ArrayLike | Mapping[ModeKey, ArrayLike] | NoiseFunction
    through_input: bool = False
    name: str = "noise"
    compliance: float = 1.0
    of_input: bool = field(default=False, kw_only=True)
    disturbances: tuple[Disturbance, ...] = field(default=(), kw_only=True)
    _fixed: dict[ModeKey, Array] = field(default_factory=dict, init=False, repr=False)
    _diffusions: dict[ModeKey, Diffusion] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("compliance", self.compliance, at_least=0.0)
        if callable(self.value):
            return
        given = self.value if isinstance(self.value, Mapping) else {None: self.value}
        for mode, matrix in given.items():
            label = self.name if mode is None else f"{self.name}[{mode!r}]"
            self._fixed[mode] = check_semidefinite(label, matrix)

    def constant_diffusion(self, mode: ModeModel, t: float, x: Array, u: Array) -> Diffusion | None:
        """Return the noise that stays constant while the input is held.

        Constant noise is kept by mode, so that it is made once.

        Args:
            mode: The mode.
            t: Time, s.
            x: State (nx,).
            u: Held input (nu,).

        Returns:
            The noise, None if it depends on time or state.

        Raises:
            InputError: The matrix does not fit the mode, or the mode has none (an
                `UnknownNameError`).
        """
        known = self._diffusions.get(mode.key)
        if known is not None or (callable(self.value) and not self.of_input):
            return known
        w, ndx, nu = self._evaluate(mode, t, x, u), mode.space.ndx, mode.nu
        found = Diffusion(_zero_density(ndx), w)
        if not self.through_input:
            found = Diffusion(w, _zero_density(nu))
        elif self.moves_constraints(mode):
            found = found._replace(compliance=self.compliance)
        if not callable(self.value):
            self._diffusions[mode.key] = found
        return found

    def matrix(self, point: Point, input_map: Array) -> Array:
        """Return the covariance or density (ndx, ndx) at a point.

        Args:
            point: A mode at a state and an input.
            input_map: B = D_u f (ndx, nu) there; not used for noise in the tangent space.
        """
        w = self._evaluate(point.mode, point.t, point.x, point.u)
        return self.map_to_state(point, input_map, w)

    def map_to_state(self, point: Point, input_map: Array, w: Array) -> Array:
        """Return a covariance or density (ndx, ndx) of the state by one in the space of this noise.

        Args:
            point: A mode at a state and an input.
            input_map: B = D_u f (ndx, nu) there; not used for noise in the tangent space.
            w: Matrix in the space of the noise: (nu, nu) through the input, else (ndx, ndx).
        """
        if not self.through_input:
            return w
        if self.moves_constraints(point.mode):
            input_map = input_map + self.compliance * (point.free_input - input_map)
        return np.asarray(input_map @ w @ input_map.T)

    def moves_constraints(self, mode: ModeModel) -> bool:
        """Return whether the noise moves constraints of a mode, such as those of closed contacts.

        Args:
            mode: The mode.
        """
        return self.through_input and self.compliance > 0.0 and mode.held is not None

    def _evaluate(self, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
        """Return the matrix (nu, nu) or (ndx, ndx) of a mode at a point, with its size checked.

        Raises:
            InputError: The matrix has another size.
        """
        if callable(self.value):
            w = _check_function_value(self.name, mode, self.value(mode.key, t, x, u))
        else:
            w = self._constant_matrix(mode.key)
        self._check_size(self.name, mode, w)
        return w

    def disturbances_in(self, mode: ModeModel) -> list[tuple[float, Array]]:
        """Return rate in 1/s and covariance of each disturbance that a mode has.

        Args:
            mode: The mode.

        Raises:
            InputError: A covariance has another size than the space of the noise.
        """
        found = []
        for one in self.disturbances:
            rate = one.rate_in(mode.key)
            if rate > 0.0:
                covariance = np.asarray(one.covariance)
                self._check_size(f"disturbance of {self.name}", mode, covariance)
                found.append((rate, covariance))
        return found

    def _check_size(self, name: str, mode: ModeModel, w: Array) -> None:
        """Check the size of a matrix in the space of the noise.

        Args:
            name: Name of the matrix, for the message.
            mode: The mode.
            w: The matrix.

        Raises:
            InputError: It does not fit the inputs or the tangent space of the mode.
        """
        size = mode.nu if self.through_input else mode.space.ndx
        if w.shape != (size, size):
            what = "inputs" if self.through_input else "dimensions of the tangent space"
            raise InputError(
                f"{name} must have shape ({size}, {size}), the {what} of mode "
                f"{mode.key!r}, got {w.shape}"
            )

    def _constant_matrix(self, mode: ModeKey) -> Array:
        """Return the constant matrix of a mode.

        Raises:
            UnknownNameError: There is none for this mode.
        """
        if isinstance(self.value, Mapping):
            if mode not in self._fixed:
                known = [str(key) for key in self._fixed]
                raise UnknownNameError(f"{self.name} has no entry for mode {mode!r}, only {known}")
            return self._fixed[mode]
        return self._fixed[None]


def _check_function_value(name: str, mode: ModeModel, found: ArrayLike) -> Array:
    """Return what a noise function has returned as a finite float array."""
    if type(found) is np.ndarray and found.dtype == np.float64 and is_finite(found):
        return found
    return check_array(f"{name} in mode {mode.key!r}", found)


@lru_cache
def _zero_density(n: int) -> Array:
    """Return the density zero (n, n), read-only."""
    density = np.zeros((n, n))
    density.setflags(write=False)
    return density


@dataclass(frozen=True, eq=False)
class EventNoise:
    """Noise of a reset as a function of its event.

    Attributes:
        function: Returns the covariance (ndx+, ndx+) that is added after an event, None for none.
    """

    function: Callable[[Event], ArrayLike | None]

    def __post_init__(self) -> None:
        check_callable("function", self.function)


@dataclass(frozen=True, eq=False)
class ImpactNoise(EventNoise):
    r"""Noise of impacts that take a stated time, where the model has them in an instant.

    Let a contact push for a time T after it closes, and let :math:`\delta = x^+ - x^-` be the
    change of the state by all of it. Three things differ from an impact in an instant.

    - *It is late.* Taken as one blow, the impact counts from some instant within T on. That delays
      the event by :math:`\tau`, uniform in [0, T] with :math:`E \tau^2 = T^2 / 3`, and moves the
      state by :math:`k \tau`, as noise on the guard does: positions by up to :math:`(v^+ - v^-) T`,
      velocities by the acceleration of the contact times T.
    - *Its law is not that of rigid bodies*, by :math:`P_\rho`.
    - *It is not over.* At a time s < T after it closes, a contact that pushes evenly has
      :math:`(1 - s / T)\, \delta` still to come.

    The first two stay, so their covariance is added at the event:

    .. math:: P_R = \frac{T^2}{3} k k^T + P_\rho, \qquad k = f^+ - f^-, \quad
        P_\rho = \rho^2 \, \frac{\delta_v^T M \delta_v}{n_v} M^{-1},

    where :math:`P_\rho` is of velocities, equal in all directions by the mass matrix. In a system
    that is no mechanism it is :math:`\rho^2 \delta \delta^T`.

    The third passes: from T on nothing is left of it. If it were in the covariance P at the event,
    it would be noise of the velocity from then on. A body that leaves slowly would then seem, in
    part of the belief, to fall onto the contact again, and that second impact would take what is
    known of the velocity from a motion that does not exist. So P is that of the state *after* the
    impact, and the impact is beside it in `Estimate.impacts`. With

    .. math:: U = \sum \left(1 - \frac{s}{T}\right)_+^2 \delta \delta^T

    over these, the state itself has the covariance P + U (`Estimate.full_covariance`, which a
    `Mixture` has), and a value of it corrects the state after the impact as one with the noise
    R + H U H^T. A camera sees no velocities, so its values are the same with and without U.

    Attributes:
        function: Not given; the covariance follows from the event.
        contact_time: Time T that a contact pushes, s; 0 for an instant.
        spread: Deviation :math:`\rho` of the change of velocity, relative to its size: of laws of
            impact of rigid bodies. A choice.

    Raises:
        InputError: A value is negative or no number.
    """

    function: Callable[[Event], ArrayLike | None] = field(default=lambda _: None, init=False)
    contact_time: float
    spread: float = 0.2

    def __post_init__(self) -> None:
        check_number("contact_time", self.contact_time, at_least=0.0)
        check_number("spread", self.spread, at_least=0.0)

    def covariance(self, system: HybridSystem, event: Event) -> Array:
        """Return the covariance (ndx, ndx) that is added after an event.

        Args:
            system: The hybrid system.
            event: An event that moves the state.

        Raises:
            InputError: The states before and after the event have different spaces.
        """
        before, after = system.mode(event.mode_before), system.mode(event.mode_after)
        if before.space.ndx != after.space.ndx:
            raise InputError(
                f"reset_noise must be no ImpactNoise where a state changes its dimension, as from "
                f"mode {event.mode_before!r} to {event.mode_after!r}"
            )
        delta = after.space.difference(event.state_before, event.state_after)
        k = after.calc(event.time, event.state_after, event.input_after).field
        k = k - before.calc(event.time, event.state_before, event.input_before).field
        found = self.contact_time**2 / 3.0 * np.outer(k, k)
        mechanism = system.mechanism
        if mechanism is None or mechanism.space.nx != after.space.nx:
            return np.asarray(found + self.spread**2 * np.outer(delta, delta))
        robot = mechanism.robot
        mass, jump = robot.mass_matrix(event.state_before[: robot.nq]), delta[-robot.nv :]
        energy = float(jump @ mass @ jump) / robot.nv
        found[-robot.nv :, -robot.nv :] += self.spread**2 * energy * np.linalg.inv(mass)
        return found


def as_noise(name: str, value: Noise | ArrayLike | Mapping[ModeKey, ArrayLike]) -> Noise:
    """Return the noise that a user has given.

    Args:
        name: Name of the argument, for messages.
        value: A `Noise`, or a matrix in the tangent space, or matrices by mode.

    Raises:
        InputError: A matrix is not symmetric and positive semidefinite.
    """
    return value if isinstance(value, Noise) else Noise(value, name=name)


def begin_impact(
    system: HybridSystem,
    noise: Noise | EventNoise | None,
    event: Event,
    impacts: tuple[SlowImpact, ...],
) -> tuple[SlowImpact, ...]:
    """Return the impacts that are not over just after an event.

    Args:
        system: The hybrid system.
        noise: The noise of resets. Only those of an `ImpactNoise` take time.
        event: The event, which is one of these if it moves the state.
        impacts: Impacts before it.
    """
    found = keep_open_impacts(impacts, event.time)
    if not isinstance(noise, ImpactNoise) or not noise.contact_time or not is_impact(event):
        return found
    space = system.mode(event.mode_after).space
    change = space.difference(event.state_before, event.state_after)
    return (*found, SlowImpact(event.time, event.time + noise.contact_time, change))


def is_impact(event: Event) -> bool:
    """Return whether an event moves the state, other than by rounding.

    Args:
        event: The event. Where a contact begins to stick or to slide its impulses are all zero:
            the reset removes rounding.
    """
    if np.array_equal(event.state_before, event.state_after):
        return False
    return not event.impulses.size or bool(event.impulses.any())


def reset_covariance(
    system: HybridSystem, noise: Noise | EventNoise | None, event: Event
) -> Array | None:
    """Return the covariance (ndx+, ndx+) that the noise of the reset adds after an event.

    Args:
        system: The hybrid system.
        noise: The noise, None for none.
        event: The event.

    Returns:
        The covariance. None without noise, if the `EventNoise` returns None, if the reset does not
        move the state, and if the event has impulses that are all zero, as where a contact begins
        to stick or to slide: there the reset removes rounding, which is no impact.

    Raises:
        InputError: A function of the user returns no covariance of this size.
    """
    if noise is None or not is_impact(event):
        return None
    mode = system.mode(event.mode_after)
    if isinstance(noise, ImpactNoise):
        return noise.covariance(system, event)
    if isinstance(noise, EventNoise):
        found = noise.function(event)
        return None if found is None else check_semidefinite("reset_noise", found, mode.space.ndx)
    t, x, u = event.time, event.state_after, event.input_after
    point = mode.calc(t, x, u)
    through = point.field_jacobian.input if noise.through_input else np.zeros((0, 0))
    return noise.matrix(point, through)


@dataclass(frozen=True, eq=False)
class GuardNoise:
    """Variances of the guards' offsets.

    Attributes:
        variance: One number for all guards, in the square of the guard's unit, or numbers by the
            name of the guard; those that are left out have zero.
    """

    variance: float | Mapping[str, float] = 0.0

    def __post_init__(self) -> None:
        given = self.variance
        for name, value in given.items() if isinstance(given, Mapping) else [("", given)]:
            check_number(f"guard_noise {name}".strip(), value, at_least=0.0)

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the guards that are given by name."""
        return tuple(self.variance) if isinstance(self.variance, Mapping) else ()

    def variance_of(self, guard: str) -> float:
        """Return the variance of one guard.

        Args:
            guard: Its name.
        """
        if isinstance(self.variance, Mapping):
            return float(self.variance.get(guard, 0.0))
        return float(self.variance)

    def variances_of(self, guards: Sequence[str]) -> Array:
        """Return the variances (n,) of some guards.

        Args:
            guards: Their names.
        """
        return np.array([self.variance_of(guard) for guard in guards])


EXACT_GUARDS = GuardNoise()
"""Guards without noise: each fires at g = 0."""
