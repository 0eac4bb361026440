r"""Measurements: how a state appears in a channel, and how well.

.. math:: z = h(t, x, u) \boxplus e, \qquad e \sim N(0, R), \qquad D h = H,

with z a vector, or a point of a manifold whose `residual` is taken in its tangent space.
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

Observed = Callable[[ModeModel, float, Array, Array], Array]

GATE = 0.999999  # probability with which a right value passes by default
_SHARE = 1e-4  # of the least deviation of a value: the error of a flow
_FINEST, _COARSEST = 1e-9, 1e-6


@dataclass(frozen=True, eq=False)
class Measurement:
    """A measurement z of the state, in any mode.

    name: of its channel. value(mode, t, x, u): what would be measured without noise (m,).
    jacobian(mode, t, x, u): its exact derivative (k, ndx). covariance R (k, k), positive definite.
    residual(predicted, measured): the difference (k,) in the tangent space at what was predicted;
    None for measured - predicted. gate: the probability, between 0 and 1, with which a right
    measurement passes; one whose normalized innovation squared is improbably large is rejected.
    None takes all. together: whether `value` takes states (n, nx) as well, and gives (n, m).
    """

    name: str
    value: Observed
    jacobian: Observed
    covariance: Array
    residual: Callable[[Array, Array], Array] | None = None
    gate: float | None = GATE
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
        """The dimension k of the residual."""
        return len(self.covariance)


class LinearizedResidual(NamedTuple):
    """A residual (k,), the derivative (k, ndx) of what was predicted, and the noise (k, k)."""

    residual: Array
    jacobian: Array
    covariance: Array


Compare = Callable[[ModeModel, float, Array, Array, Array], LinearizedResidual | None]


@dataclass(frozen=True, eq=False)
class ImplicitMeasurement:
    r"""A measurement z that a state is compared with, where the size depends on the mode.

    name: of its channel. compare(mode, t, x, u, z): the residual :math:`r(x, z)` (k,), H (k, ndx)
    with :math:`r(x \boxplus e, z) = r(x, z) - H e` to first order where it is small, and the
    covariance (k, k) of the residual by the noise of z; None where z says nothing of this mode.
    gate: see `Measurement`.
    """

    name: str
    compare: Compare
    gate: float | None = GATE

    def __post_init__(self) -> None:
        check_callable(f"compare of {self.name!r}", self.compare)
        check_gate(self.gate)


AnyMeasurement = Measurement | ImplicitMeasurement


def flow_tolerance(measurements: Sequence[AnyMeasurement]) -> float:
    """The tolerance of flows, in any unit, whose errors no value of these measurements shows."""
    variances = [np.diag(m.covariance).min() for m in measurements if isinstance(m, Measurement)]
    least = _SHARE * float(np.sqrt(min(variances))) if variances else _FINEST
    return min(max(least, _FINEST), _COARSEST)


def explicit(measurement: AnyMeasurement) -> Measurement:
    """A measurement with a value h(t, x, u). Raises `InputError` for an implicit one."""
    if isinstance(measurement, ImplicitMeasurement):
        raise InputError(
            f"{measurement.name!r} is an implicit measurement, which has no predicted value: only "
            "a SaltedKalmanFilter takes it"
        )
    return measurement


def check_gate(gate: float | None) -> None:
    """Raise `InputError` for what is no probability between 0 and 1; None takes everything."""
    if gate is not None:
        check_number("gate", gate, above=0.0)
        if gate >= 1.0:
            raise InputError(f"gate must be below 1, got {gate}; None takes everything")


def linear(
    name: str, matrix: ArrayLike, covariance: ArrayLike, *, gate: float | None = GATE
) -> Measurement:
    """The measurement z = C x with C (k, nx), in a vector space."""
    c = check_array("matrix", matrix, (None, None))
    if len(c) != len(np.atleast_2d(covariance)):
        raise InputError(f"matrix must have a row for each of covariance, got {len(c)}")
    value, jacobian = partial(_product, name, c), partial(_constant, c)
    r = np.atleast_2d(covariance)
    return Measurement(name, value, jacobian, r, gate=gate, together=True)


def coordinates(
    name: str, indices: Sequence[int], covariance: ArrayLike, *, gate: float | None = GATE
) -> Measurement:
    """Some coordinates of a state in a vector space, such as joint encoders or a position."""
    chosen = check_sequence("indices", indices)
    entries = _StateEntries(name, [check_count("indices", i, at_least=0) for i in chosen])
    r = np.atleast_2d(covariance)
    return Measurement(name, entries.value, entries.jacobian, r, gate=gate, together=True)


def configuration(
    name: str, space: RobotStateSpace, covariance: ArrayLike, *, gate: float | None = GATE
) -> Measurement:
    """The configuration q (nq,) of a robot; its pose, for a body on a floating base.

    Raises `InputError` for a space that is not that of a robot's states.

    covariance (nv, nv) in the tangent space of q, for a floating base in the frame of the body:
    position in m, then rotation in rad. The residual is difference(q predicted, q measured), whose
    Jacobian at the prediction is [I 0]. Measured quaternions need not be normalized.
    """
    robot = check_instance("space", space, RobotStateSpace).robot
    return _posed(_RobotPose(name, robot, robot.nq, robot.nv), space, covariance, gate)


def encoders(
    name: str,
    space: RobotStateSpace,
    joints: Sequence[str],
    covariance: ArrayLike,
    *,
    gate: float | None = GATE,
) -> Measurement:
    """The coordinates (m,) of joints of one degree of freedom, in rad or m, in the order given.

    covariance (m, m). Raises `UnknownNameError` for a joint that the robot lacks.
    """
    robot = check_instance("space", space, RobotStateSpace).robot
    places = [robot.joints.single(f"joints of {name!r}", joint) for joint in joints]
    columns = [coordinate for coordinate, _ in places]
    h = np.eye(space.ndx)[[velocity for _, velocity in places]]
    h.flags.writeable = False
    r = np.atleast_2d(covariance)
    return Measurement(
        name, _StateEntries(name, columns, True).value, partial(_constant, h), r, gate=gate
    )


def base_pose(
    name: str, space: RobotStateSpace, covariance: ArrayLike, *, gate: float | None = GATE
) -> Measurement:
    """Position and quaternion (7,) of a robot's floating base.

    covariance (6, 6) in the frame of the base: position in m, then rotation in rad.
    """
    robot = check_instance("space", space, RobotStateSpace).robot
    return _posed(_RobotPose(name, robot, 7, 6), space, covariance, gate)


def _posed(
    pose: _RobotPose, space: RobotStateSpace, covariance: ArrayLike, gate: float | None
) -> Measurement:
    h, r = np.eye(pose.ndx, space.ndx), np.atleast_2d(covariance)
    h.flags.writeable = False
    return Measurement(pose.name, pose.value, partial(_constant, h), r, pose.residual, gate)


def _constant(matrix: Array, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
    """The Jacobian that is the same everywhere."""
    return matrix


def _product(name: str, matrix: Array, mode: ModeModel, t: float, x: Array, u: Array) -> Array:
    """The product C x, in a vector space."""
    _check_vector_space(name, mode, matrix.shape[1])
    return np.asarray(x.dot(matrix.T))


@dataclass(frozen=True, eq=False)
class _StateEntries:
    """Some coordinates of a state in a vector space, or of any state where that is allowed."""

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
    """The first `size` coordinates of a robot's configuration, of `ndx` degrees of freedom."""

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
            q, seen = robot.neutral(), robot.neutral()
            q[: self.size], seen[: self.size] = predicted, measured
        return robot.difference(q, robot.normalize(seen))[: self.ndx]


def _check_vector_space(name: str, mode: ModeModel, size: int | None, largest: int = -1) -> None:
    space = mode.space
    if space.nx != space.ndx:
        raise SystemDefinitionError(
            f"measurement {name!r} selects coordinates, but the space of mode {mode.key!r} is a "
            "manifold: give a Measurement with its residual, such as `configuration`"
        )
    if largest >= space.nx or size not in (None, space.nx):
        raise InputError(
            f"measurement {name!r} does not fit mode {mode.key!r}, whose state has {space.nx} "
            "coordinates"
        )
