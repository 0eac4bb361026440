r"""Measurements: how a state appears in a channel, and how precisely.

.. math:: z = h(t, x, u) \boxplus e, \qquad e \sim N(0, R), \qquad D h = H,

with z a vector, or a point of a manifold whose `residual` is in its tangent space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_callable,
    check_count,
    check_instance,
    check_number,
    check_semidefinite,
    check_sequence,
)
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.mode import ModeModel
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.state import RobotStateSpace

MeasurementFunction = Callable[[ModeModel, float, Array, Array], Array]
"""Function of mode, time in s, state (nx,) and input (nu,)."""

DEFAULT_GATE = 0.999999
"""Probability with which a right value passes by default. A choice: one in a million is lost."""
_FLOW_ERROR_RATIO = 1e-4
"""Error of a flow relative to the least standard deviation of a value: no value shows it. A
choice."""
_MIN_TOLERANCE, _MAX_TOLERANCE = 1e-9, 1e-6
"""Limits of the integrator's tolerance that follows from this ratio. A choice: a finer one costs
steps and shows in no estimate, at a coarser one events are found less well."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """A measurement z of the state, in any mode.

    Attributes:
        name: Name of its channel.
        value: Function (mode, t, x, u) that returns the value (m,) without noise.
        jacobian: Function (mode, t, x, u) that returns its exact derivative (k, ndx).
        covariance: Covariance R (k, k), positive definite.
        residual: Function (predicted, measured) that returns the difference (k,) in the tangent
            space at the predicted value; None for measured - predicted.
        gate: Probability, between 0 and 1, with which a right value passes. A value whose
            normalized innovation squared is too large for that is rejected. None accepts all.
        together: Whether `value` takes states (n, nx) as well, and returns (n, m).

    Raises:
        InputError: An attribute does not fit.
    """

    name: str
    value: MeasurementFunction
    jacobian: MeasurementFunction
    covariance: Array
    residual: Callable[[Array, Array], Array] | None = None
    gate: float | None = DEFAULT_GATE
    together: bool = False

    def __post_init__(self) -> None:
        check_callable(f"value of {self.name!r}", self.value)
        check_callable(f"jacobian of {self.name!r}", self.jacobian)
        r = check_semidefinite(f"covariance of {self.name!r}", self.covariance, definite=True)
        if not len(r):
            raise InputError(f"covariance of {self.name!r} must have one row at least")
        object.__setattr__(self, "covariance", r)
        check_gate(self.gate)

    @property
    def dimension(self) -> int:
        """Dimension k of the residual."""
        return len(self.covariance)


class LinearizedResidual(NamedTuple):
    """A residual, linearised at an estimate.

    Attributes:
        residual: Residual r (k,).
        jacobian: Derivative H (k, ndx) of the prediction by the state.
        covariance: Covariance R (k, k) of the measured value's noise.
    """

    residual: Array
    jacobian: Array
    covariance: Array


Compare = Callable[[ModeModel, float, Array, Array, Array], LinearizedResidual | None]
"""Function of mode, time in s, state (nx,), input (nu,) and value z."""


@dataclass(frozen=True, eq=False)
class ImplicitMeasurement:
    r"""A measurement z without a predicted value: a residual of state and z, by mode.

    Attributes:
        name: Name of its channel.
        compare: Function (mode, t, x, u, z) that returns the residual :math:`r(x, z)` (k,), the
            matrix H (k, ndx) with :math:`r(x \boxplus e, z) = r(x, z) - H e` to first order where
            the residual is small, and its covariance (k, k) by the noise of z. It returns None if z
            tells nothing about the mode.
        gate: As for `Measurement`.

    Raises:
        InputError: An attribute does not fit.
    """

    name: str
    compare: Compare
    gate: float | None = DEFAULT_GATE

    def __post_init__(self) -> None:
        check_callable(f"compare of {self.name!r}", self.compare)
        check_gate(self.gate)


AnyMeasurement = Measurement | ImplicitMeasurement


def flow_tolerance(measurements: Sequence[AnyMeasurement]) -> float:
    """Return the tolerance of the integrator whose errors no value of some measurements shows.

    Args:
        measurements: The measurements. Implicit ones have no standard deviation and do not count.

    Returns:
        1e-4 of the least standard deviation, in the unit of that value, between 1e-9 and 1e-6; 1e-9
        without an explicit measurement.
    """
    variances = [np.diag(m.covariance).min() for m in measurements if isinstance(m, Measurement)]
    least = _FLOW_ERROR_RATIO * float(np.sqrt(min(variances))) if variances else _MIN_TOLERANCE
    return min(max(least, _MIN_TOLERANCE), _MAX_TOLERANCE)


def require_explicit(measurement: AnyMeasurement) -> Measurement:
    """Return a measurement that has a value h(t, x, u).

    Args:
        measurement: The measurement.

    Raises:
        InputError: It is an `ImplicitMeasurement`.
    """
    if isinstance(measurement, ImplicitMeasurement):
        raise InputError(
            f"{measurement.name!r} is an implicit measurement, which has no predicted value: only "
            "a SaltedKalmanFilter takes it"
        )
    return measurement


def check_gate(gate: float | None) -> None:
    """Raise an error for a gate that is no probability between 0 and 1.

    Args:
        gate: The probability; None accepts all values.

    Raises:
        InputError: It is no number between 0 and 1, or is 0 or 1.
    """
    if gate is not None:
        check_number("gate", gate, above=0.0)
        if gate >= 1.0:
            raise InputError(f"gate must be below 1, got {gate}; None takes everything")


def linear(
    name: str, matrix: ArrayLike, covariance: ArrayLike, *, gate: float | None = DEFAULT_GATE
) -> Measurement:
    """Return the measurement z = C x, in a vector space.

    The measurement raises `SystemDefinitionError` in a mode whose states are on a manifold, that is
    with nx other than ndx, and `InputError` in one whose states have another size.

    Args:
        name: Name of its channel.
        matrix: C (k, nx).
        covariance: R (k, k).
        gate: As for `Measurement`.

    Raises:
        InputError: C and R have different numbers of rows.
    """
    c = check_array("matrix", matrix, (None, None))
    if len(c) != len(np.atleast_2d(covariance)):
        raise InputError(f"matrix must have a row for each of covariance, got {len(c)}")
    value, jacobian = partial(_product, name, c), partial(_constant_jacobian, c)
    r = np.atleast_2d(covariance)
    return Measurement(name, value, jacobian, r, gate=gate, together=True)


def coordinates(
    name: str, indices: Sequence[int], covariance: ArrayLike, *, gate: float | None = DEFAULT_GATE
) -> Measurement:
    """Return the measurement of some coordinates of a state in a vector space.

    The measurement raises errors in other modes as that of `linear` does.

    Args:
        name: Name of its channel.
        indices: Indices of the k coordinates.
        covariance: R (k, k).
        gate: As for `Measurement`.

    Raises:
        InputError: An index is no whole number from 0 on, or R is no covariance.
    """
    chosen = check_sequence("indices", indices)
    entries = _StateEntries(name, [check_count("indices", i, at_least=0) for i in chosen])
    r = np.atleast_2d(covariance)
    return Measurement(name, entries.value, entries.jacobian, r, gate=gate, together=True)


def configuration(
    name: str, space: RobotStateSpace, covariance: ArrayLike, *, gate: float | None = DEFAULT_GATE
) -> Measurement:
    """Return the measurement of the configuration q (nq,) of a robot, such as a body's pose.

    The residual is difference(q predicted, q measured), whose Jacobian at the prediction is [I 0].
    Measured quaternions need not be normalized.

    Args:
        name: Name of its channel.
        space: Space of the robot's states.
        covariance: R (nv, nv) in the tangent space of q. For a floating base that is in the frame
            of the body: position in m, then rotation in rad.
        gate: As for `Measurement`.

    Raises:
        InputError: The space is not that of a robot's states.
    """
    robot = check_instance("space", space, RobotStateSpace).robot
    return _build_pose_measurement(
        _RobotPose(name, robot, robot.nq, robot.nv), space, covariance, gate
    )


def encoders(
    name: str,
    space: RobotStateSpace,
    joints: Sequence[str],
    covariance: ArrayLike,
    *,
    gate: float | None = DEFAULT_GATE,
) -> Measurement:
    """Return the measurement of joints of one degree of freedom, in rad or m.

    Args:
        name: Name of its channel.
        space: Space of the robot's states.
        joints: Names of the m joints, in the order of the value.
        covariance: R (m, m).
        gate: As for `Measurement`.

    Raises:
        InputError: The robot does not have one of the joints.
    """
    robot = check_instance("space", space, RobotStateSpace).robot
    places = [robot.joints.single(f"joints of {name!r}", joint) for joint in joints]
    columns = [coordinate for coordinate, _ in places]
    h = np.eye(space.ndx)[[velocity for _, velocity in places]]
    h.flags.writeable = False
    r = np.atleast_2d(covariance)
    return Measurement(
        name, _StateEntries(name, columns, True).value, partial(_constant_jacobian, h), r, gate=gate
    )


def base_pose(
    name: str, space: RobotStateSpace, covariance: ArrayLike, *, gate: float | None = DEFAULT_GATE
) -> Measurement:
    """Return the measurement of position and quaternion (7,) of a robot's floating base.

    Args:
        name: Name of its channel.
        space: Space of the robot's states.
        covariance: R (6, 6) in the frame of the base: position in m, then rotation in rad.
        gate: As for `Measurement`.

    Raises:
        InputError: The space is not that of the states of a robot with a floating base.
    """
    robot = check_instance("space", space, RobotStateSpace).robot
    if len(robot.velocities(robot.joint_names[0])) != 6:
        raise InputError(
            "space must be that of a robot with a floating base, but joint "
            f"{robot.joint_names[0]!r} comes first"
        )
    return _build_pose_measurement(_RobotPose(name, robot, 7, 6), space, covariance, gate)


def _build_pose_measurement(
    pose: _RobotPose, space: RobotStateSpace, covariance: ArrayLike, gate: float | None
) -> Measurement:
    # The tangent coordinates of the state begin with those of the configuration: H is [I 0].
    h, r = np.eye(pose.ndx, space.ndx), np.atleast_2d(covariance)
    h.flags.writeable = False  # a filter takes a read-only Jacobian without a copy
    return Measurement(
        pose.name, pose.value, partial(_constant_jacobian, h), r, pose.residual, gate
    )


def _constant_jacobian(matrix: Array, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
    """Return a Jacobian that is the same everywhere."""
    return matrix


def _product(name: str, matrix: Array, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
    """Return the product C x, in a vector space."""
    _check_vector_space(name, mode, matrix.shape[1])
    return np.asarray(x.dot(matrix.T))


@dataclass(frozen=True, eq=False)
class _StateEntries:
    """Some coordinates of a state.

    Attributes:
        name: Name of the measurement, for messages.
        indices: Indices of the coordinates.
        anywhere: Whether the state may be on a manifold, as where the coordinates are those of
            joints of one degree of freedom. Otherwise it is in a vector space.
    """

    name: str
    indices: list[int]
    anywhere: bool = False

    def value(self, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
        if not self.anywhere:
            _check_vector_space(self.name, mode, None, max(self.indices, default=-1))
        return np.asarray(x[..., self.indices])

    def jacobian(self, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
        return _rows_of_identity(tuple(self.indices), mode.space.ndx)


@lru_cache
def _rows_of_identity(rows: tuple[int, ...], size: int) -> Array:
    h = np.eye(size)[list(rows)]
    h.flags.writeable = False
    return h


@dataclass(frozen=True, eq=False)
class _RobotPose:
    """The first coordinates of a robot's configuration.

    Attributes:
        name: Name of the measurement, for messages.
        robot: The robot.
        size: Number of coordinates.
        ndx: Their degrees of freedom.
    """

    name: str
    robot: Robot
    size: int
    ndx: int

    def value(self, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
        return np.asarray(x[: self.size])

    def residual(self, predicted: Array, measured: Array) -> Array:
        if len(measured) != self.size:
            raise InputError(
                f"a row of {self.name!r} must have {self.size} values, got {len(measured)}"
            )
        robot, q, seen = self.robot, predicted, measured
        if self.size < robot.nq:
            # The difference is of whole configurations: other joints are the same in both.
            q, seen = robot.neutral(), robot.neutral()
            q[: self.size], seen[: self.size] = predicted, measured
        return robot.difference(q, robot.normalize(seen))[: self.ndx]


def _check_vector_space(name: str, mode: ModeModel, size: int | None, largest: int = -1) -> None:
    """Raise an error if a mode's state is on a manifold, or has another size.

    Args:
        name: Name of the measurement.
        mode: The mode.
        size: Number of coordinates of the state; None for any.
        largest: Largest index of a coordinate that is used.

    Raises:
        SystemDefinitionError: The space is a manifold.
        InputError: The state has another size.
    """
    space, nx = mode.space, mode.space.nx
    if nx != space.ndx:
        raise SystemDefinitionError(
            f"measurement {name!r} selects coordinates, but the space of mode {mode.key!r} is a "
            "manifold: give a Measurement with its residual, such as `configuration`"
        )
    if largest >= nx or size not in (None, nx):
        raise InputError(
            f"measurement {name!r} does not fit mode {mode.key!r}, whose state has {nx} coordinates"
        )
