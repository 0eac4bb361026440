r"""Strapdown kinematics: a base that turns and falls as its inertial sensor says.

With the measured rate and specific force :math:`\tilde\omega, \tilde a` as the input,

.. math:: \dot R = R [\omega]_\times, \quad \dot p = v, \quad \dot v = R a + g, \qquad
          \omega = \tilde\omega - b_g, \quad a = \tilde a - b_a,

and biases and feet in contact at rest. While the input is held the flow is

.. math:: R\,\Gamma_0(\omega h), \quad p + v h + \big(R\,\Gamma_2(\omega h) a + \tfrac12 g\big) h^2,
          \quad v + \big(R\,\Gamma_1(\omega h) a + g\big) h .

Deviations written "left" obey a linear equation whose coefficients depend on :math:`\omega, a`
alone, so are constant on a step:

.. math:: \dot\theta = -\omega \times \theta - b_g, \quad
          \dot\rho = -\omega \times \rho + \nu, \quad
          \dot\nu = -\omega \times \nu - a \times \theta - b_a, \quad
          \dot\delta = -\omega \times \delta, \quad \dot\varphi = 0.

Its exponential and the integral of its noise are summed to 1e-11; other deviations are these,
seen through the linear maps at the ends of the step (`BaseSpace.from_left`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.estimation.legged.rotation import gammas, matrix, product, skew, turned_by
from hybridctl.estimation.legged.space import (
    ACCELEROMETER,
    ANGLE,
    BASE_TANGENT,
    GYROSCOPE,
    POSITION,
    VELOCITY,
    BaseSpace,
)
from hybridctl.hybrid.mode import FieldJacobian, Flowed

RATE, FORCE = slice(0, 3), slice(3, 6)  # of the gyroscope and the accelerometer in the input
_CORE = slice(0, BASE_TANGENT)


@dataclass(frozen=True, eq=False)
class Strapdown:
    """Field and flow of a mode. gravity (3,): the acceleration of free fall in m/s^2."""

    space: BaseSpace
    gravity: Array
    nu: int

    def field(self, t: float, x: Array, u: Array) -> Array:
        """The velocity (ndx,) of the state."""
        return np.asarray(self.space.from_left(x) @ self._left_field(x, u))

    def _left_field(self, x: Array, u: Array) -> Array:
        back = matrix(x[:4]).T
        result = np.zeros(self.space.ndx)
        result[ANGLE] = u[RATE] - x[10:13]
        result[POSITION] = back @ x[7:10]
        result[VELOCITY] = back @ self.gravity + u[FORCE] - x[13:16]
        return result

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """Its derivatives by state and input.

        For every error the deviations obey z' = (D f + T(f)) z, and z is the left one seen through
        a map M(x): D f = (M' + M A) M^-1 - T(f), with A that of the left deviations.
        """
        space = self.space
        seen, back = space.from_left(x), space.to_left(x)
        field = seen @ self._left_field(x, u)
        whole = (self._map_rate(x, u) + seen @ self._generator(x, u)) @ back
        by_input = np.zeros((space.ndx, self.nu))
        by_input[ANGLE, RATE], by_input[VELOCITY, FORCE] = np.eye(3), np.eye(3)
        return FieldJacobian(whole - space.transport(field), seen @ by_input, field)

    def _generator(self, x: Array, u: Array) -> Array:
        """A (ndx, ndx) of the left deviations."""
        result = np.zeros((self.space.ndx, self.space.ndx))
        result[_CORE, _CORE] = _core(u[RATE] - x[10:13], u[FORCE] - x[13:16])
        for k in range(self.space.points):
            _, delta = self.space.foot(k)
            result[delta, delta] = -skew(u[RATE] - x[10:13])
        return result

    def _map_rate(self, x: Array, u: Array) -> Array:
        """The rate (ndx, ndx) of `BaseSpace.from_left` along the flow."""
        result = np.zeros((self.space.ndx, self.space.ndx))
        if self.space.error == "left":
            return result
        turn = matrix(x[:4])
        spin = turn @ skew(u[RATE] - x[10:13])
        right = self.space.error == "right"
        velocities = np.zeros((2 + self.space.points, 3))
        velocities[0] = x[7:10]
        velocities[1] = turn @ (u[FORCE] - x[13:16]) + self.gravity
        if right:
            result[ANGLE, ANGLE] = spin
        own, moved = self.space.vectors
        for i, j, rate in zip(own[::3], moved[::3], velocities, strict=True):
            at = slice(j, j + 3)
            result[at, at] = spin
            if right:
                result[at, ANGLE] = skew(rate) @ turn + skew(x[i : i + 3]) @ spin
        return result

    def flow(self, t: float, x: Array, u: Array, h: float, density: Array | None) -> Flowed:
        """The state after h s, with its derivative and the noise gathered on the way.

        density (ndx, ndx): of the noise, at x. In the frames of base and feet it is taken to be
        constant, and that of each foot to have no preferred direction.
        """
        space = self.space
        omega, force = u[RATE] - x[10:13], u[FORCE] - x[13:16]
        spun = gammas(omega * h)
        turn = matrix(x[:4])
        after = x.copy()
        after[:4] = product(x[:4], turned_by(omega * h))
        after[4:7] += h * x[7:10] + h**2 * (turn @ (spun[2] @ force) + 0.5 * self.gravity)
        after[7:10] += h * (turn @ (spun[1] @ force) + self.gravity)
        phi, noise = np.eye(space.ndx), np.zeros((space.ndx, space.ndx))
        back = None if space.error == "left" else space.to_left(x)
        core = None
        if density is not None:
            q = density if back is None else back @ density @ back.T
            noise, core = h * q, q[_CORE, _CORE]
        phi[_CORE, _CORE], gathered = _step(_core(omega, force), core, h)
        if gathered is not None:
            noise[_CORE, _CORE] = gathered
        for k in range(space.points):
            _, delta = space.foot(k)
            phi[delta, delta] = spun[0].T
        if back is None:
            return Flowed(after, phi, noise)
        seen = space.from_left(after)
        return Flowed(after, seen @ phi @ back, seen @ noise @ seen.T)


def _core(omega: Array, force: Array) -> Array:
    """A (15, 15) of base and biases."""
    spin = -skew(omega)
    result: Array = _STILL.copy()
    result[ANGLE, ANGLE] = result[POSITION, POSITION] = result[VELOCITY, VELOCITY] = spin
    result[VELOCITY, ANGLE] = -skew(force)
    return result


def _still() -> Array:
    """A (15, 15) without rate and force."""
    result = np.zeros((BASE_TANGENT, BASE_TANGENT))
    result[ANGLE, GYROSCOPE] = result[VELOCITY, ACCELEROMETER] = -np.eye(3)
    result[POSITION, VELOCITY] = np.eye(3)
    return result


_STILL = _still()


def _step(a: Array, q: Array | None, h: float) -> tuple[Array, Array | None]:
    r"""The exponential of a h and :math:`\int_0^h e^{a s} q\, e^{a^T s} ds`, both (n, n).

    The series of the exponential at the end and, from the same powers, at Gauss' points of the
    integral. Where they need more terms, half of the step is doubled.
    """
    step = a * h
    if float(np.vdot(step, step)) > _LONGEST**2:
        half, noise = _step(a, q, 0.5 * h)
        return half @ half, None if noise is None else noise + half @ noise @ half.T
    n = len(a)
    powers = np.empty((_TERMS, n, n))
    powers[0], powers[1], powers[2] = _UNIT, step, step @ step
    for first, last in ((3, 4), (5, 8), (9, _TERMS - 1)):  # some powers times the last one known
        rows = powers[1 : last - first + 2].reshape(-1, n)
        powers[first : last + 1] = (rows @ powers[first - 1]).reshape(-1, n, n)
    flat = powers.reshape(_TERMS, n * n)
    if q is None:
        return (_SERIES[-1] @ flat).reshape(n, n), None
    exponentials = (_SERIES @ flat).reshape(-1, n, n)
    inner = exponentials[:-1]
    spread = (inner.reshape(-1, n) @ (q * h)).reshape(inner.shape) * _WEIGHTS
    sides = spread.transpose(1, 0, 2).reshape(n, -1), inner.transpose(1, 0, 2).reshape(n, -1)
    return exponentials[-1], sides[0] @ sides[1].T


_TERMS, _NODES = 10, 4
_LONGEST = 0.25  # size of the exponent, for which both are exact to 1e-11
_UNIT = np.eye(BASE_TANGENT)


def _series() -> tuple[Array, Array]:
    """Coefficients (nodes + 1, terms) of the series, and weights (nodes, 1, 1) of the integral."""
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    at = np.append(0.5 + 0.5 * points, 1.0)[:, None]
    factorials = np.cumprod(np.maximum(np.arange(_TERMS), 1.0))
    return at ** np.arange(_TERMS) / factorials, 0.5 * weights[:, None, None]


_SERIES, _WEIGHTS = _series()
