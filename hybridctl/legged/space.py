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

from hybridctl.base.checks import Array, check_count
from hybridctl.base.errors import InputError
from hybridctl.hybrid.model import (
    CompiledSteps,
    Diffusion,
    FieldJacobian,
    GuardJacobian,
    ModeKey,
    ModeModel,
    Point,
    PointProperty,
    StepRequest,
    StepTransition,
)
from hybridctl.legged.rotation import (
    inverse,
    left_jacobian,
    left_jacobian_slope_map,
    matrix,
    product,
    skew,
    skews,
    turn_of,
    turned_by,
    vector,
)

BASE, BASE_TANGENT = 16, 15  # coordinates and dimension of base and biases
ANGLE, POSITION, VELOCITY = slice(0, 3), slice(3, 6), slice(6, 9)  # in the tangent space
GYROSCOPE, ACCELEROMETER = slice(9, 12), slice(12, 15)
BIAS_ROWS = slice(2, 4)  # of `BaseSpace.vector_rows`
_NORM_TOLERANCE = 1e-6  # how far from one the norm of a quaternion may be


class RootPose(NamedTuple):
    """The root of a robot at one time.

    Attributes:
        time: Time, s.
        position: Position (3,) in the world, m.
        orientation: Quaternion (4,) x, y, z, w in the world.
        velocity: Velocity (3,) of its origin in the world, m/s.
        covariance: Covariance (9, 9) of turn (rad, about axes of the world), position and velocity.
            That of the velocity leaves out the noise of the gyroscope over the lever arm.
    """

    time: float
    position: Array
    orientation: Array
    velocity: Array
    covariance: Array


@dataclass(frozen=True)
class BaseSpace:
    """States of a base with some feet in contact (see this module and `spaces.Space`).

    Attributes:
        points: Number of feet in contact, flat ones included.
        flat: Number of those whose orientation is part of the state as well.

    Raises:
        InputError: A number is negative or no whole number.
    """

    points: int
    flat: int = 0

    def __post_init__(self) -> None:
        check_count("points", self.points, at_least=0)
        check_count("flat", self.flat, at_least=0)

    @property
    def nx(self) -> int:
        """The number of coordinates: 16, 3 for each foot in contact and 4 for each flat one."""
        return BASE + 3 * self.points + 4 * self.flat

    @property
    def ndx(self) -> int:
        """The number of deviations: 15, 3 for each foot in contact and 3 for each flat one."""
        return BASE_TANGENT + 3 * self.points + 3 * self.flat

    @cached_property
    def vector_rows(self) -> tuple[slice, slice]:
        """The slices of p, v, b_g, b_a, d_1 .. in a state, and in a deviation: rows of three.

        A state has them one after the other, so that all are moved at once; the biases, which are
        `BIAS_ROWS` of these rows, do not turn with the base.
        """
        rest = 3 * self.points
        return slice(4, BASE + rest), slice(3, BASE_TANGENT + rest)

    @cached_property
    def feet(self) -> tuple[slice, slice]:
        """The slices of the positions of all feet in contact in a state, and in a deviation."""
        rest = 3 * self.points
        return slice(BASE, BASE + rest), slice(BASE_TANGENT, BASE_TANGENT + rest)

    @cached_property
    def turning_blocks(self) -> NDArray[np.intp]:
        """Where the blocks on the diagonal that turn with the base are in a flat matrix, (n, 9).

        They are those of orientation, position and velocity, and of the positions of feet.
        """
        firsts = [0, 3, 6, *range(BASE_TANGENT, BASE_TANGENT + 3 * self.points, 3)]
        rows = np.add.outer(firsts, range(3))
        return (self.ndx * rows[:, :, None] + rows[:, None]).reshape(-1, 9)

    @cached_property
    def turning_quaternions(self) -> tuple[slice, ...]:
        """The slices of all rotations in a state: that of the base, and those of flat feet."""
        return slice(0, 4), *(q for q, _ in self.turns)

    @cached_property
    def turns(self) -> list[tuple[slice, slice]]:
        """The slices of the rotations of flat feet in a state, and in a deviation."""
        x, dx = BASE + 3 * self.points, BASE_TANGENT + 3 * self.points
        return [
            (slice(x + 4 * k, x + 4 * k + 4), slice(dx + 3 * k, dx + 3 * k + 3))
            for k in range(self.flat)
        ]

    def foot(self, k: int) -> tuple[slice, slice]:
        """Return the slices of the position of foot k in contact in a state, and in a deviation."""
        x, dx = BASE + 3 * k, BASE_TANGENT + 3 * k
        return slice(x, x + 3), slice(dx, dx + 3)

    def integrate(self, x: Array, dx: Array) -> Array:
        """Return the state (nx,) reached from x along the deviation dx (ndx,)."""
        own, rows = self.vector_rows
        theta, moved = dx[ANGLE], dx[rows].reshape(-1, 3)
        along = matrix(x[:4]).dot(left_jacobian(theta))
        way = moved.dot(along.T)
        way[BIAS_ROWS] = moved[BIAS_ROWS]
        result: Array = x.copy()
        result[own] += way.reshape(-1)
        result[:4] = product(x[:4], turned_by(theta))
        for q, phi in self.turns:
            result[q] = product(x[q], turned_by(dx[phi]))
        return result

    def difference(self, x0: Array, x1: Array) -> Array:
        """Return the deviation (ndx,) that leads from x0 to x1."""
        own, rows = self.vector_rows
        result = np.zeros(self.ndx)
        result[ANGLE] = vector(product(inverse(x0[:4]), x1[:4]))
        along = matrix(x0[:4]) @ left_jacobian(result[ANGLE])
        way = (x1 - x0)[own].reshape(-1, 3)
        moved = np.linalg.solve(along, way.T).T
        moved[BIAS_ROWS] = way[BIAS_ROWS]
        result[rows] = moved.ravel()
        for q, phi in self.turns:
            result[phi] = vector(product(inverse(x0[q]), x1[q]))
        return result

    def rate(self, x: Array, dx: Array) -> Array:
        """Return the velocity (nx,) of the coordinates at the velocity dx (ndx,)."""
        own, rows = self.vector_rows
        result, moved = np.zeros(self.nx), dx[rows].reshape(-1, 3)
        way = moved @ matrix(x[:4]).T
        way[BIAS_ROWS] = moved[BIAS_ROWS]
        result[own] = way.ravel()
        result[:4] = product(x[:4], np.append(0.5 * dx[ANGLE], 0.0))
        for q, phi in self.turns:
            result[q] = product(x[q], np.append(0.5 * dx[phi], 0.0))
        return result

    def transport(self, dx: Array) -> Array:
        """Return the negative adjoint action (ndx, ndx) of dx."""
        spin = -skew(dx[ANGLE])
        result = np.zeros((self.ndx, self.ndx))
        result[ANGLE, ANGLE] = spin
        feet = range(BASE_TANGENT, BASE_TANGENT + 3 * self.points, 3)
        for first in (POSITION.start, VELOCITY.start, *feet):
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
        theta, (_, rows) = dx[ANGLE], self.vector_rows
        result: Array = self._identity.copy()
        result.reshape(-1)[self.turning_blocks] = left_jacobian(theta).T.reshape(-1)
        back = turn_of(theta).T
        by_turn = np.matmul(back, left_jacobian_slope_map(theta).reshape(3, 3, 3)).reshape(3, 9)
        slopes = dx[rows].reshape(-1, 3).dot(by_turn)
        slopes[BIAS_ROWS] = 0.0
        result[rows, ANGLE] = slopes.reshape(-1, 3)
        for _, phi in self.turns:
            result[phi, phi] = left_jacobian(dx[phi]).T
        return result

    @cached_property
    def _identity(self) -> Array:
        return np.eye(self.ndx)

    def normalize(self, x: Array) -> Array:
        """Return the state with unit quaternions."""
        result: Array = x.copy()
        for q in self.turning_quaternions:
            own = result[q]
            own /= math.sqrt(own.dot(own))
        return result

    def check(self, name: str, x: Array) -> None:
        """Check the norms of quaternions.

        Args:
            name: Name of the state in the message.
            x: The state (nx,).

        Raises:
            InputError: The norm of one is not 1.
        """
        for q in self.turning_quaternions:
            norm = float(np.linalg.norm(x[q]))
            if abs(norm - 1.0) > _NORM_TOLERANCE:
                raise InputError(
                    f"{name}: entries {q.start} to {q.stop - 1} must be a quaternion x, y, z, w of "
                    f"norm 1, got {x[q].tolist()} of norm {norm:.6g}"
                )


RATE, FORCE = slice(0, 3), slice(3, 6)  # of the gyroscope and the accelerometer in the input
SENSED, BIASES = slice(0, 6), slice(10, 16)  # both of them in an input, and their biases in a state
_CORE, _MOTION = slice(0, BASE_TANGENT), slice(POSITION.start, VELOCITY.stop)


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


class StrapdownPoint(Point):
    """A point of the mode of a base with some feet in contact."""

    mode: Strapdown

    @PointProperty
    def field(self) -> Array:
        """The velocity (ndx,) of the state."""
        x, u, mode = self.x, self.u, self.mode
        back = matrix(x[:4]).T
        result = np.zeros(mode.space.ndx)
        result[ANGLE] = u[RATE] - x[10:13]
        result[POSITION] = back @ x[7:10]
        result[VELOCITY] = back @ mode.gravity + u[FORCE] - x[13:16]
        for foot in mode.rolling:
            _, delta = mode.space.foot(foot.number)
            turning = u[RATE] - x[10:13] + u[foot.turning]
            result[delta] = foot.radius * skew(turning).dot(back[:, 2])
        return result

    @PointProperty
    def guards(self) -> Array:
        """The values of no guards, (0,)."""
        return np.zeros(0)

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of no guards."""
        ndx, nu = self.mode.space.ndx, self.mode.nu
        return GuardJacobian(np.zeros(0), np.zeros((0, ndx)), np.zeros((0, nu)))

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field by state and input.

        The deviations obey z' = (D f + T(f)) z = A z.
        """
        mode, space = self.mode, self.mode.space
        by_input = np.zeros((space.ndx, mode.nu))
        by_input[ANGLE, RATE], by_input[VELOCITY, FORCE] = np.eye(3), np.eye(3)
        upwards = skew(matrix(self.x[:4])[2])
        for foot in mode.rolling:
            _, delta = space.foot(foot.number)
            by_input[delta, RATE] = by_input[delta, foot.turning] = -foot.radius * upwards
        generator = mode.compute_generator(self.x, self.u)
        return FieldJacobian(generator - space.transport(self.field), by_input)


class Strapdown(ModeModel, CompiledSteps):
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
    point = StrapdownPoint

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
        # Of position and velocity by falling, by h and h^2.
        self._fall = np.zeros((6, 2))
        self._fall[3:, 0], self._fall[:3, 1] = gravity, 0.5 * gravity
        self._feet_blocks = space.turning_blocks[3:]

    @property
    def compiled_steps(self) -> CompiledSteps:
        """The mode itself, whose transition has a closed form."""
        return self

    def compute_generator(self, x: Array, u: Array) -> Array:
        """Return the generator A (ndx, ndx), see this module.

        Args:
            x: State (nx,).
            u: Input (nu,).
        """
        result = np.zeros((self.space.ndx, self.space.ndx))
        result[:9, _CORE] = _make_core_generator(u[SENSED] - x[BIASES])
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
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition:
        """Return the flow under a held input in closed form.

        Args:
            ahead: Time, state and length of the step.
            u: Input (nu,), held over the step.
            noise: Density of the noise, of which none comes through the input; None without.

        Returns:
            The step, with an error of zero. With noise it has the bounds (0,) of no guards, without
            noise none, as `StepTransition` has it.
        """
        x, h = ahead.x, ahead.h
        sensed = u[SENSED] - x[BIASES]
        omega, force = sensed[RATE], sensed[FORCE]
        density = None if noise is None else noise.density[_CORE, _CORE]
        core, gathered = propagate_core(sensed, density, h)
        back = core[ANGLE, ANGLE]  # Gamma_0^T
        turn = matrix(x[:4])
        # Position and velocity depend on the bias as on the force, but in the axes after the step:
        # by -Gamma_0^T Gamma_2 h^2 and -Gamma_0^T Gamma_1 h.
        forced = core[_MOTION, ACCELEROMETER].dot(force).reshape(2, 3).dot(back)
        after = x.copy()
        after[:4] = product(x[:4], turned_by(omega * h))
        after[4:10] += self._fall.dot([h, h * h]) - forced.dot(turn.T).reshape(-1)
        after[4:7] += h * x[7:10]
        phi = self._eye.copy()
        phi[_CORE, _CORE] = core
        phi.reshape(-1)[self._feet_blocks] = back.reshape(-1)
        if self.rolling:
            self._roll(u, turn, core, omega, h, after, phi)
        if noise is None:
            return StepTransition(0.0, after, phi)
        spread = h * noise.density
        spread[_CORE, _CORE] = gathered
        return StepTransition(0.0, after, phi, spread, _NO_BOUNDS)

    @cached_property
    def _rolls(self) -> tuple[NDArray[np.intp], Array]:
        """Inputs (k, 3) that are the turning of the k feet in contact, and their radii (k, 1).

        Feet that do not roll have the radius zero, and any inputs.
        """
        inputs, radii = np.zeros((self.space.points, 3), np.intp), np.zeros((self.space.points, 1))
        for foot in self.rolling:
            inputs[foot.number] = range(foot.turning.start, foot.turning.stop)
            radii[foot.number] = foot.radius
        return inputs, radii

    def _roll(
        self,
        u: Array,
        turn: Array,
        core: Array,
        omega: Array,
        h: float,
        after: Array,
        phi: Array,
    ) -> None:
        """Move the feet that roll over a step, in `after` and `phi`.

        Args:
            u: Input (nu,), held over the step.
            turn: Rotation (3, 3) of the inertial frame in the world, before the step.
            core: Transition (15, 15) of base and biases over the step.
            omega: Angular velocity (3,) of the inertial frame in its axes, rad/s.
            h: Length of the step, s.
            after: State (nx,) after the step, of which the feet's positions are changed.
            phi: Derivative (ndx, ndx) of the step, of which the feet's rows are changed.
        """
        inputs, radii = self._rolls
        back, turned = core[ANGLE, ANGLE], -core[ANGLE, GYROSCOPE].T  # Gamma_0^T, h Gamma_1
        turning = omega + u[inputs]
        links = turning.dot(turned.T)  # of the links over the step, in the axes before it, rad
        moved = (radii * links).dot(turn.T.dot(_ACROSS_UP))
        feet_x, feet = self.space.feet
        after[feet_x] += moved.reshape(-1)
        by_rate = turning.dot(h**2 * left_jacobian_slope_map(omega * h)) + turned.reshape(9)
        # What stands before theta and b_g, side by side.
        blocks = np.concatenate([skews(links), by_rate.reshape(-1, 3, 3)], axis=2)
        blocks *= radii[:, :, None]
        rolled = np.matmul(back.dot(skew(turn[2])), blocks).reshape(-1, 6)
        phi[feet, ANGLE], phi[feet, GYROSCOPE] = rolled[:, :3], rolled[:, 3:]


_ACROSS_UP: Array = np.cross(np.eye(3), [0.0, 0.0, 1.0])
"""A vector times it is the cross product of that with the vertical."""


def _make_core_generator(sensed: Array) -> Array:
    """Return the first rows (9, 15) of the generator A of base and biases; the others are zero."""
    return np.asarray((sensed.dot(_BY_SENSED) + _STILL).reshape(9, BASE_TANGENT))


def _make_generator_parts() -> tuple[Array, Array]:
    """Return the generator (135,) at rest, and its derivative (6, 135) by rate and force."""
    still, by_rate, by_force = np.zeros((9, 15)), np.zeros((3, 9, 15)), np.zeros((3, 9, 15))
    still[ANGLE, GYROSCOPE] = still[VELOCITY, ACCELEROMETER] = -np.eye(3)
    still[POSITION, VELOCITY] = np.eye(3)
    spins = -skews(np.eye(3))
    for block in (ANGLE, POSITION, VELOCITY):
        by_rate[:, block, block] = spins
    by_force[:, VELOCITY, ANGLE] = spins
    return still.ravel(), np.concatenate([by_rate, by_force]).reshape(6, -1)


_STILL, _BY_SENSED = _make_generator_parts()
_NO_BOUNDS = np.zeros(0)
_SERIES_ORDER = 8
"""Powers of the generator. The turn enters up to the power 5 beside the other three factors that
a block can have; the term after that is below 1e-16 of the block for turns of `_LARGEST_TURN`."""
_LARGEST_TURN = 0.0125  # rad, of a step that is summed; a longer one is halved until it is shorter
_NOISE_NODES = 6
"""Points of the rule of Gauss that integrates the noise. Without a turn the integrand is of degree
6; the rule is exact up to 11, and what is left of a turn of `_LARGEST_TURN` is below 1e-18."""


def _make_step_weights() -> tuple[Array, Array]:
    """Return what powers are added with at the end of a step, and at the nodes within it.

    Returns:
        Weights (7, 8) of the powers 1 to 8, and matrices (7, 15, 15) that are added to their sums,
        which are multiples of the identity. Those of nodes are multiplied by the roots of the
        weights of the rule.
    """
    points, weights = np.polynomial.legendre.leggauss(_NOISE_NODES)
    times = np.append(1.0, 0.5 * (points + 1.0))
    roots = np.append(1.0, np.sqrt(0.5 * weights))
    powers = [times**k / math.factorial(k) for k in range(1, _SERIES_ORDER + 1)]
    return np.array(powers).T * roots[:, None], roots[:, None, None] * np.eye(BASE_TANGENT)


_BY_POWER, _BY_IDENTITY = _make_step_weights()


def propagate_core(sensed: Array, density: Array | None, h: float) -> tuple[Array, Array | None]:
    r"""Propagate deviations and noise of base and biases over a step.

    The flow is the power series of the generator A, which ends for all but its turn, and the noise
    is integrated by the rule of Gauss with nodes s_i and weights w_i:

    .. math:: \Phi(s) = \sum_k \frac{(A s)^k}{k!}, \qquad
              \int_0^h \Phi(s) Q \Phi(s)^T ds
              = h \sum_i w_i \Phi(s_i h) Q \Phi(s_i h)^T .

    Steps with a large turn are made of halves: :math:`\Phi(2 h) = \Phi^2`,
    :math:`Q(2 h) = Q + \Phi Q \Phi^T`.

    Args:
        sensed: Angular velocity in rad/s and specific force in m/s^2 (6,) of the inertial frame, in
            its axes.
        density: Density Q (15, 15) of the noise, in the square of the unit per s, or its diagonal
            (15,) where it has no other entries; None without.
        h: Length of the step, s; not negative where there is noise.

    Returns:
        The transition (15, 15), and the covariance (15, 15) of the noise; None without density.
    """
    omega = sensed[RATE]
    halvings, angle = 0, abs(h) * math.sqrt(omega.dot(omega))
    if _LARGEST_TURN < angle < math.inf:
        halvings = math.ceil(math.log2(angle / _LARGEST_TURN))
    part = math.ldexp(h, -halvings)
    powers = _power_stack(part * _make_core_generator(sensed))
    flows = _BY_IDENTITY.copy()
    flows[:, :9] += _BY_POWER.dot(powers).reshape(-1, 9, BASE_TANGENT)
    phi: Array = flows[0]
    gathered = None
    if density is not None:
        nodes = flows[1:]
        if density.ndim == 1:
            roots = _lay_beside(nodes * np.sqrt(part * density))
            gathered = roots.dot(roots.T)
        else:
            spread = nodes.reshape(-1, BASE_TANGENT).dot(part * density).reshape(nodes.shape)
            gathered = _lay_beside(spread).dot(_lay_beside(nodes).T)
    for _ in range(halvings):
        if gathered is not None:
            gathered = gathered + phi.dot(gathered).dot(phi.T)
        phi = phi.dot(phi)
    return phi, gathered


def _power_stack(a: Array) -> Array:
    """Return the powers 1 to 8 (8, 135) of a generator, of its first rows (9, 15), flat.

    The other rows are zero, so that the rows of a product are those of the first factor, without
    its last columns, times those of the second.
    """
    rows = np.empty((9 * _SERIES_ORDER, BASE_TANGENT))
    own = rows[:, :9]
    rows[:9] = a
    np.dot(own[:9], rows[:9], out=rows[9:18])
    np.dot(own[:18], rows[9:18], out=rows[18:36])
    np.dot(own[:36], rows[27:36], out=rows[36:72])
    return rows.reshape(_SERIES_ORDER, -1)


def _lay_beside(stack: Array) -> Array:
    """Return matrices (k, n, n) side by side, (n, k n)."""
    return np.asarray(stack.transpose(1, 0, 2).reshape(stack.shape[1], -1))
