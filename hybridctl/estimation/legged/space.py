r"""The state of a base and of its feet in contact, its flow, and how deviations are written.

A state is (q, p, v, b_g, b_a, d_1 .. d_N, q_1 .. q_F): orientation R of the inertial frame in the
world (quaternion x, y, z, w), its position in m and velocity in m/s, both in the world, biases of
gyroscope (rad/s) and accelerometer (m/s^2), and the positions of the feet in contact with, for flat
ones, their orientations. A deviation is (theta, rho, nu, b_g, b_a, delta_1 .., phi_1 ..). With
(R, p, v, d_i) as an element X of the group SE_k(3) of double poses, and feet's rotations R_j, it
leads to :math:`X \exp(\xi)`, :math:`R_j \exp(\varphi_j)`: it is written in the frames of base and
feet (the left-invariant error). The covariance goes along to the tangent space at each corrected
mean (see `estimate.right_jacobian`), so that the same point written in the world,
:math:`\exp(\xi) X`, makes the same filter to rounding.

Barrau and Bonnabel, "The invariant extended Kalman filter as a stable observer", 2017; Hartley,
Ghaffari, Eustice and Grizzle, "Contact-aided invariant extended Kalman filtering for robot state
estimation", 2020.

A base turns and falls as its inertial sensor says (strapdown kinematics). With the measured rate
and specific force :math:`\tilde\omega, \tilde a` as the input,

.. math:: \dot R = R [\omega]_\times, \quad \dot p = v, \quad \dot v = R a + g, \qquad
          \omega = \tilde\omega - b_g, \quad a = \tilde a - b_a,

and biases and feet in contact at rest, but for feet that roll. The centre of a sphere of radius r,
whose link turns against the base by w (in the axes of the base), moves over level ground by

.. math:: \dot d = r\, R (\omega + w) \times e_z .

While the input is held the flow is

.. math:: R\,\Gamma_0(\omega h), \quad p + v h + \big(R\,\Gamma_2(\omega h) a + \tfrac12 g\big) h^2,
          \quad v + \big(R\,\Gamma_1(\omega h) a + g\big) h .

Deviations obey a linear equation whose coefficients depend on :math:`\omega, a`
alone, so are constant on a step:

.. math:: \dot\theta = -\omega \times \theta - b_g, \quad
          \dot\rho = -\omega \times \rho + \nu, \quad
          \dot\nu = -\omega \times \nu - a \times \theta - b_a, \quad
          \dot\delta = -\omega \times \delta
            + r\, n \times ((\omega + w) \times \theta + b_g), \quad \dot\varphi = 0,

with r zero for feet that do not roll, and :math:`n = R^T e_z`.

The map and the noise of a step are power series of the generator, to rounding; of feet that roll
they are closed integrals, but for the noise of base and biases, which reaches these feet with the
next step only (of a gyroscope at 250 Hz and r = 20 mm some 1e-9 m).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.checks import Array, count
from hybridctl.errors import InputError
from hybridctl.estimation.legged.rotation import (
    inverse,
    left_jacobian,
    left_jacobian_slopes,
    matrix,
    product,
    skew,
    skews,
    turned_by,
    vector,
)
from hybridctl.hybrid.model import (
    Diffusion,
    FieldJacobian,
    GuardJacobian,
    ModeKey,
    ModeModel,
    Point,
    StepAhead,
    StepTransition,
)

BASE, BASE_TANGENT = 16, 15  # coordinates and dimension of base and biases
ANGLE, POSITION, VELOCITY = slice(0, 3), slice(3, 6), slice(6, 9)  # in the tangent space
GYROSCOPE, ACCELEROMETER = slice(9, 12), slice(12, 15)
_UNIT = 1e-6  # how far from one the norm of a quaternion may be


class RootPose(NamedTuple):
    """The root of a robot at one time.

    position (3,) in m, orientation (4,) as quaternion x, y, z, w and velocity (3,) of its origin in
    m/s, all in the world. covariance (9, 9) of turn (rad, about axes of the world), position, and
    velocity; that of the velocity leaves out the noise of the gyroscope over the lever arm.
    """

    time: float
    position: Array
    orientation: Array
    velocity: Array
    covariance: Array


@dataclass(frozen=True)
class BaseSpace:
    """States of a base with some feet in contact (see this module and `spaces.Space`).

    points: number of feet in contact. flat: number of those whose orientation is known as well.
    """

    points: int
    flat: int = 0

    def __post_init__(self) -> None:
        count("points", self.points, at_least=0)
        count("flat", self.flat, at_least=0)

    @property
    def nx(self) -> int:
        """The number of coordinates: 16, 3 for each foot in contact and 4 for each flat one."""
        return BASE + 3 * self.points + 4 * self.flat

    @property
    def ndx(self) -> int:
        """The number of deviations: 15, 3 for each foot in contact and 3 for each flat one."""
        return BASE_TANGENT + 3 * self.points + 3 * self.flat

    @cached_property
    def vectors(self) -> tuple[list[int], list[int]]:
        """Indices of p, v, d_1 .. in a state, and in a deviation, three for each."""
        rest = 3 * self.points
        state = [*range(4, 10), *range(BASE, BASE + rest)]
        return state, [*range(3, 9), *range(BASE_TANGENT, BASE_TANGENT + rest)]

    @cached_property
    def turns(self) -> list[tuple[slice, slice]]:
        """The slices of the rotations of flat feet in a state, and in a deviation."""
        x, dx = BASE + 3 * self.points, BASE_TANGENT + 3 * self.points
        return [
            (slice(x + 4 * k, x + 4 * k + 4), slice(dx + 3 * k, dx + 3 * k + 3))
            for k in range(self.flat)
        ]

    def foot(self, k: int) -> tuple[slice, slice]:
        """The slices of the position of foot k in contact in a state, and in a deviation."""
        x, dx = BASE + 3 * k, BASE_TANGENT + 3 * k
        return slice(x, x + 3), slice(dx, dx + 3)

    def integrate(self, x: Array, dx: Array) -> Array:
        """The state reached from x along dx."""
        own, moved = self.vectors
        result: Array = x.copy()
        result[10:16] += dx[9:15]
        along = matrix(x[:4]) @ left_jacobian(dx[ANGLE])
        result[own] += (dx[moved].reshape(-1, 3) @ along.T).ravel()
        result[:4] = product(x[:4], turned_by(dx[ANGLE]))
        for q, phi in self.turns:
            result[q] = product(x[q], turned_by(dx[phi]))
        return result

    def difference(self, x0: Array, x1: Array) -> Array:
        """The deviation that leads from x0 to x1."""
        own, moved = self.vectors
        result = np.zeros(self.ndx)
        result[9:15] = x1[10:16] - x0[10:16]
        result[ANGLE] = vector(product(inverse(x0[:4]), x1[:4]))
        along = matrix(x0[:4]) @ left_jacobian(result[ANGLE])
        result[moved] = np.linalg.solve(along, (x1 - x0)[own].reshape(-1, 3).T).T.ravel()
        for q, phi in self.turns:
            result[phi] = vector(product(inverse(x0[q]), x1[q]))
        return result

    def rate(self, x: Array, dx: Array) -> Array:
        """Velocity (nx,) of the coordinates at the velocity dx (ndx,)."""
        own, moved = self.vectors
        result = np.zeros(self.nx)
        result[10:16] = dx[9:15]
        result[own] = (dx[moved].reshape(-1, 3) @ matrix(x[:4]).T).ravel()
        result[:4] = product(x[:4], np.append(0.5 * dx[ANGLE], 0.0))
        for q, phi in self.turns:
            result[q] = product(x[q], np.append(0.5 * dx[phi], 0.0))
        return result

    def transport(self, dx: Array) -> Array:
        """The negative adjoint action of dx."""
        spin = -skew(dx[ANGLE])
        result = np.zeros((self.ndx, self.ndx))
        result[ANGLE, ANGLE] = spin
        for first in self.vectors[1][::3]:
            own = slice(first, first + 3)
            result[own, own], result[own, ANGLE] = spin, -skew(dx[own])
        for _, phi in self.turns:
            result[phi, phi] = -skew(dx[phi])
        return result

    def right_jacobian(self, dx: Array) -> Array:
        r"""Differentiate the end of a step along dx, in the tangent space there.

        The vectors are moved by :math:`R\,\Gamma_1(\theta) \rho`, so that, with
        :math:`R(\theta) = \Gamma_0(\theta)`, it is :math:`\Gamma_1(-\theta)` for rotation and
        vectors, and :math:`R^T \partial (\Gamma_1(\theta) \rho) / \partial \theta` from rotation to
        vectors.

        Args:
            dx: The step (ndx,).

        Returns:
            The matrix (ndx, ndx); see `estimate.right_jacobian`.
        """
        theta, (_, moved) = dx[ANGLE], self.vectors
        own = left_jacobian(theta).T
        result = np.eye(self.ndx)
        result[ANGLE, ANGLE] = own
        for first in moved[::3]:
            result[first : first + 3, first : first + 3] = own
        slopes = left_jacobian_slopes(theta, dx[moved].reshape(-1, 3))
        back = matrix(turned_by(theta)).T
        result[moved, ANGLE] = np.matmul(back, slopes).reshape(-1, 3)
        for _, phi in self.turns:
            result[phi, phi] = left_jacobian(dx[phi]).T
        return result

    def normalize(self, x: Array) -> Array:
        """The state with unit quaternions."""
        result: Array = x.copy()
        for q in (slice(0, 4), *(q for q, _ in self.turns)):
            result[q] /= math.sqrt(x[q].dot(x[q]))
        return result

    def check(self, name: str, x: Array) -> None:
        """Raise `InputError` for a quaternion whose norm is not one."""
        for q in (slice(0, 4), *(q for q, _ in self.turns)):
            norm = float(np.linalg.norm(x[q]))
            if abs(norm - 1.0) > _UNIT:
                raise InputError(
                    f"{name}: entries {q.start} to {q.stop - 1} must be a quaternion x, y, z, w of "
                    f"norm 1, got {x[q].tolist()} of norm {norm:.6g}"
                )


RATE, FORCE = slice(0, 3), slice(3, 6)  # of the gyroscope and the accelerometer in the input
_CORE = slice(0, BASE_TANGENT)


class RollingFoot(NamedTuple):
    """A foot in contact that rolls.

    Attributes:
        number: Which of the feet in contact it is, in the order of the state.
        turning: Entries of the input that are the angular velocity (3,) of its link against the
            inertial frame, in the axes of that frame, rad/s.
        radius: Radius of its sphere, m.
    """

    number: int
    turning: slice
    radius: float


class Strapdown(ModeModel):
    """The mode of a base with some feet in contact.

    No state ends it: feet touch and lift by contact signals.

    Args:
        key: Key of the mode.
        space: Its states.
        gravity: Acceleration (3,) of free fall in the world, m/s^2.
        nu: Number of inputs.
        rolling: Those of the feet in contact that roll.
    """

    space: BaseSpace
    compiled = True

    def __init__(
        self,
        key: ModeKey,
        space: BaseSpace,
        gravity: Array,
        nu: int,
        rolling: Sequence[RollingFoot] = (),
    ) -> None:
        self.key, self.space, self.gravity, self.nu = key, space, gravity, nu
        self.rolling = tuple(rolling)
        self._eye = np.eye(space.ndx)

    def field_at(self, point: Point) -> Array:
        """The velocity (ndx,) of the state."""
        x, u = point.x, point.u
        back = matrix(x[:4]).T
        result = np.zeros(self.space.ndx)
        result[ANGLE] = u[RATE] - x[10:13]
        result[POSITION] = back @ x[7:10]
        result[VELOCITY] = back @ self.gravity + u[FORCE] - x[13:16]
        for foot in self.rolling:
            _, delta = self.space.foot(foot.number)
            turning = u[RATE] - x[10:13] + u[foot.turning]
            result[delta] = foot.radius * skew(turning).dot(back[:, 2])
        return result

    def guards_at(self, point: Point) -> Array:
        """The values of no guards, (0,)."""
        return np.zeros(0)

    def guard_jacobian_at(self, point: Point) -> GuardJacobian:
        """The derivatives of no guards."""
        return GuardJacobian(np.zeros(0), np.zeros((0, self.space.ndx)), np.zeros((0, self.nu)))

    def field_jacobian_at(self, point: Point) -> FieldJacobian:
        """The derivatives by state and input.

        The deviations obey z' = (D f + T(f)) z = A z.
        """
        space = self.space
        by_input = np.zeros((space.ndx, self.nu))
        by_input[ANGLE, RATE], by_input[VELOCITY, FORCE] = np.eye(3), np.eye(3)
        upwards = skew(matrix(point.x[:4])[2])
        for foot in self.rolling:
            _, delta = space.foot(foot.number)
            by_input[delta, RATE] = by_input[delta, foot.turning] = -foot.radius * upwards
        generator = self._generator(point.x, point.u)
        return FieldJacobian(generator - space.transport(point.field), by_input)

    def _generator(self, x: Array, u: Array) -> Array:
        """The generator A (ndx, ndx)."""
        result = np.zeros((self.space.ndx, self.space.ndx))
        result[_CORE, _CORE] = _make_core_generator(u[RATE] - x[10:13], u[FORCE] - x[13:16])
        for k in range(self.space.points):
            _, delta = self.space.foot(k)
            result[delta, delta] = -skew(u[RATE] - x[10:13])
        upwards = skew(matrix(x[:4])[2])
        for foot in self.rolling:
            _, delta = self.space.foot(foot.number)
            turning = u[RATE] - x[10:13] + u[foot.turning]
            result[delta, ANGLE] = foot.radius * upwards @ skew(turning)
            result[delta, GYROSCOPE] = foot.radius * upwards
        return result

    def transition(
        self, ahead: StepAhead, u: Array, noise: Diffusion | None = None
    ) -> StepTransition:
        """The flow under a held input in closed form.

        Noise of each foot has no preferred direction, and none comes through the input.
        """
        space, x, h = self.space, ahead.x, ahead.h
        omega, force = u[RATE] - x[10:13], u[FORCE] - x[13:16]
        density = None if noise is None else noise.density[_CORE, _CORE]
        core, gathered = propagate_core(omega, force, density, h)
        back = core[ANGLE, ANGLE]  # Gamma_0^T
        turned = -core[ANGLE, GYROSCOPE].T  # h Gamma_1
        moved = -back.T.dot(core[POSITION, ACCELEROMETER])  # h^2 Gamma_2
        turn = matrix(x[:4])
        after = x.copy()
        after[:4] = product(x[:4], turned_by(omega * h))
        after[4:7] += h * x[7:10] + turn.dot(moved.dot(force)) + 0.5 * h**2 * self.gravity
        after[7:10] += turn.dot(turned.dot(force)) + h * self.gravity
        phi = self._eye.copy()
        phi[_CORE, _CORE] = core
        for first in range(BASE_TANGENT, BASE_TANGENT + 3 * space.points, 3):
            phi[first : first + 3, first : first + 3] = back
        if self.rolling:
            self._roll(u, turn, back, turned, omega, h, after, phi)
        if noise is None:
            return StepTransition(0.0, after, phi)
        spread = h * noise.density
        spread[_CORE, _CORE] = gathered
        return StepTransition(0.0, after, phi, spread, _NO_BOUNDS)

    @cached_property
    def _rolls(self) -> tuple[NDArray[np.intp], Array, NDArray[np.intp], NDArray[np.intp]]:
        """Of the k feet that roll: inputs (k, 3), radii (k,), rows (k,) of x, rows (3 k,) of dx."""
        places = [self.space.foot(foot.number) for foot in self.rolling]
        return (
            np.array([range(f.turning.start, f.turning.stop) for f in self.rolling]),
            np.array([foot.radius for foot in self.rolling]),
            np.array([x.start for x, _ in places]),
            np.concatenate([range(dx.start, dx.stop) for _, dx in places]),
        )

    def _roll(
        self,
        u: Array,
        turn: Array,
        back: Array,
        turned: Array,
        omega: Array,
        h: float,
        after: Array,
        phi: Array,
    ) -> None:
        """Move the feet that roll over a step, in `after` and `phi`.

        Args:
            u: Input (nu,), held over the step.
            turn: Rotation (3, 3) of the inertial frame in the world, before the step.
            back: Transpose of the turn (3, 3) over the step.
            turned: The integral (3, 3) of the turn over the step, s.
            omega: Angular velocity (3,) of the inertial frame in its axes, rad/s.
            h: Length of the step, s.
            after: State (nx,) after the step, of which the feet's positions are changed.
            phi: Derivative (ndx, ndx) of the step, of which the feet's rows are changed.
        """
        inputs, radii, x, dx = self._rolls
        turning = omega + u[inputs]
        links = turning.dot(turned.T)  # of the links over the step, in the axes before it, rad
        world = radii[:, None] * links.dot(turn.T)
        after[x] += world[:, 1]  # the cross product with e_z
        after[x + 1] -= world[:, 0]
        by_rate = turned + h**2 * left_jacobian_slopes(omega * h, turning)
        upwards = radii[:, None, None] * back.dot(skew(turn[2]))
        phi[dx, ANGLE] = np.matmul(upwards, skews(links)).reshape(-1, 3)
        phi[dx, GYROSCOPE] = np.matmul(upwards, by_rate).reshape(-1, 3)


def _make_core_generator(omega: Array, force: Array) -> Array:
    """The generator A (15, 15) of base and biases."""
    spin = -skew(omega)
    result: Array = _STILL.copy()
    result[ANGLE, ANGLE] = result[POSITION, POSITION] = result[VELOCITY, VELOCITY] = spin
    result[VELOCITY, ANGLE] = -skew(force)
    return result


def _make_still_generator() -> Array:
    """The generator A (15, 15) without rate and force."""
    result = np.zeros((BASE_TANGENT, BASE_TANGENT))
    result[ANGLE, GYROSCOPE] = result[VELOCITY, ACCELEROMETER] = -np.eye(3)
    result[POSITION, VELOCITY] = np.eye(3)
    return result


_STILL, _CORE_EYE = _make_still_generator(), np.eye(BASE_TANGENT)


_NO_BOUNDS = np.zeros(0)
_ORDER = 12
"""Powers of the generator. The turn enters up to the power 9 beside the other three factors that
a block can have; the term after that is below 1e-16 of the block for turns of `_LARGEST_TURN`."""
_LARGEST_TURN = 0.125  # rad, of a step that is summed; a longer one is halved until it is shorter
_BY_POWER: Array = np.array([1.0 / math.factorial(k) for k in range(_ORDER + 1)])
_BY_POWERS: Array = np.outer(_BY_POWER, _BY_POWER) / np.add.outer(
    range(_ORDER + 1), range(1, _ORDER + 2)
)


def propagate_core(
    omega: Array, force: Array, density: Array | None, h: float
) -> tuple[Array, Array | None]:
    r"""Propagate deviations and noise of base and biases over a step.

    Both are power series of the generator A, which end for all but its turn:

    .. math:: e^{A h} = \sum_k \frac{(A h)^k}{k!}, \qquad
              \int_0^h e^{A s} Q e^{A^T s} ds
              = h \sum_{i, j} \frac{(A h)^i Q (A^T h)^j}{i!\, j!\, (i + j + 1)} .

    Steps with a large turn are made of halves: :math:`\Phi(2 h) = \Phi^2`,
    :math:`Q(2 h) = Q + \Phi Q \Phi^T`.

    Args:
        omega: Angular velocity (3,) of the inertial frame in its axes, rad/s.
        force: Specific force (3,) in its axes, m/s^2.
        density: Density Q (15, 15) of the noise, in the square of the unit per s; None without.
        h: Length of the step, s.

    Returns:
        The transition (15, 15), and the covariance (15, 15) of the noise; None without density.
    """
    halvings, angle = 0, abs(h) * math.sqrt(omega.dot(omega))
    if _LARGEST_TURN < angle < math.inf:
        halvings = math.ceil(math.log2(angle / _LARGEST_TURN))
    part = math.ldexp(h, -halvings)
    powers = _power_stack(part * _make_core_generator(omega, force))
    phi = _BY_POWER.dot(powers.reshape(len(powers), -1)).reshape(BASE_TANGENT, BASE_TANGENT)
    gathered = None
    if density is not None:
        inner = _BY_POWERS.dot(powers.reshape(len(powers), -1)).reshape(powers.shape)
        outer = powers.reshape(-1, BASE_TANGENT).dot(part * density).reshape(powers.shape)
        gathered = _lay_beside(outer).dot(_lay_beside(inner).T)
    for _ in range(halvings):
        if gathered is not None:
            gathered = gathered + phi.dot(gathered).dot(phi.T)
        phi = phi.dot(phi)
    return phi, gathered


def _power_stack(a: Array) -> Array:
    """Return the powers 0 to 12 (13, n, n) of a matrix (n, n), by few and large products."""
    n = len(a)
    powers = np.empty((_ORDER + 1, n, n))
    rows = powers.reshape(-1, n)
    powers[0], powers[1] = _CORE_EYE, a
    np.dot(a, a, out=powers[2])
    np.dot(rows[n : 3 * n], powers[2], out=rows[3 * n : 5 * n])
    np.dot(rows[n : 5 * n], powers[4], out=rows[5 * n : 9 * n])
    np.dot(rows[n : 5 * n], powers[8], out=rows[9 * n :])
    return powers


def _lay_beside(stack: Array) -> Array:
    """Return matrices (k, n, n) side by side, (n, k n)."""
    return np.asarray(stack.transpose(1, 0, 2).reshape(stack.shape[1], -1))
