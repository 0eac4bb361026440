r"""Compiled formulas of a legged base: small algebra in one call each.

A step of the filter is a handful of products of large matrices, and many of vectors and of matrices
with three rows. The latter are CasADi functions here, which take a few microseconds where the same
products by numpy take a hundred. The formulas are those of `space`, `measurements` and `creep`,
which explain the symbols; tests compare both.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.legged.space import BASE, BASE_TANGENT
from hybridctl.symbolic.compiled_function import CompiledFunction, build_transposed_function

_TERMS = 10
"""Terms of a series of the square of an angle up to 1 rad^2; the next is below 1 / 20! = 4e-19."""
_MOTION = slice(3, 6), slice(6, 9)  # rows of position and velocity in the tangent space
_LEAST_SQUARE = 1e-300  # rad^2 that is added to a square, so that its root is a divisor


class PointFeetFormulas(NamedTuple):
    """The compiled formulas for a number of point feet in contact.

    Each call overwrites the results of the one before in the same thread.

    Attributes:
        predict: See `build_prediction`.
        compare: See `build_comparison`.
        retract: See `build_retraction`.
    """

    predict: CompiledFunction
    compare: CompiledFunction
    retract: CompiledFunction


@lru_cache
def build_formulas(feet: int) -> PointFeetFormulas:
    """Return the formulas for a number of point feet in contact."""
    return PointFeetFormulas(build_prediction(feet), build_comparison(feet), build_retraction(feet))


def build_prediction(feet: int) -> CompiledFunction:
    r"""Build the prediction of the mean, and of what the feet add to the covariance.

    Args:
        feet: Number k of point feet in contact.

    Returns:
        A function of

        - state: (16 + 3 k,), see `BaseSpace`;
        - core: transition (225,) of base and biases over the step, row by row;
        - covariance: its first twelve rows (12 (15 + 3 k),), row by row;
        - sensed: measured rate and specific force (6,);
        - places: positions (3 k,) of the feet in the inertial frame, m, foot by foot;
        - motion: their velocities (3 k,) against that frame in m/s, foot by foot, then the angular
          velocities (3 k,) of their links in rad/s;
        - levers: traces (k,) of the squares of their derivatives by the angles, m^2/rad^2;
        - step: length of the step in s, density (m^2/s) of creep in each direction, by how much it
          is larger along the vertical, mean (m) and variance (m^2) of how far feet rise after a
          touch;
        - parts: parts (k,) of that rise by which the feet come up in the step;
        - covariance_of_rise: covariance (15 + 3 k,) of the rise and the deviation of the state;
        - constants: slip_margin, slip_speed^2, slip_fast^2, slip_time of `BaseNoise`, variance
          (rad^2/s^2) of the rate of an angle in `motion`, gravity (3,), and the radius of each foot
          in m.

        Its results are the state (16 + 3 k,) after the step, the rows (3 k, 9) of the transition
        of the feet (by turn, by the gyroscope's bias, and by the foot itself), the covariance
        (k, 3, 3) of their noise over the step, the density (k,) of creep by their velocities, the
        covariance (15 + 3 k,) of rise and deviation after the step, and a matrix (15 + 3 k, 3 k)
        in the columns of the feet, whose symmetric part the rise adds to the covariance of the
        state; see `ground_rise`.
    """
    state, core = ca.SX.sym("state", BASE + 3 * feet), ca.SX.sym("core", BASE_TANGENT**2)
    size = BASE_TANGENT + 3 * feet
    covariance, sensed = ca.SX.sym("covariance", 12 * size), ca.SX.sym("sensed", 6)
    places, motion = ca.SX.sym("places", 3 * feet), ca.SX.sym("motion", 6 * feet)
    levers, step = ca.SX.sym("levers", feet), ca.SX.sym("step", 5)
    parts, constants = ca.SX.sym("parts", feet), ca.SX.sym("constants", 8 + feet)
    by_rise = ca.SX.sym("covariance_of_rise", size)
    h, level, steeper, rise, rise_variance = ca.vertsplit(step)
    slip, by_rate_of_angles = constants[:4], constants[4]
    gravity, radii = constants[5:8], constants[8:]
    phi = ca.reshape(core, BASE_TANGENT, BASE_TANGENT).T
    rate, turn = sensed[:3] - state[10:13], rotation_of(state[:4])
    own, up = ca.mtimes(turn.T, state[7:10]), turn[2, :].T
    known, linear, square = _expand_velocity_variance(
        ca.reshape(covariance, size, 12).T[:, :12], own
    )
    after = [_predict_base(state, phi, sensed, gravity, h)]
    rows, noises, creeps, raised = [ca.SX(0, 9)], [ca.SX(0, 3)], [ca.SX(0, 1)], [ca.SX(0, 1)]
    moved, up_after = [ca.mtimes(phi, by_rise[:BASE_TANGENT])], rotation_of(after[0][:4])[2, :].T
    turning = [rate + motion[3 * (feet + k) : 3 * (feet + k) + 3] for k in range(feet)]
    rolls = _roll_feet(phi, turn, rate, h, turning)
    for k, (way, rolled) in enumerate(rolls):
        foot = state[BASE + 3 * k : BASE + 3 * k + 3]
        after.append(foot + radii[k] * way + ca.vertcat(0.0, 0.0, rise * parts[k]))
        raised.append(parts[k] * up_after)
        rows.append(ca.horzcat(radii[k] * rolled, phi[:3, :3]))
        own_part = by_rise[BASE_TANGENT + 3 * k : BASE_TANGENT + 3 * k + 3]
        moved.append(ca.mtimes(rows[-1], ca.vertcat(by_rise[:3], by_rise[9:12], own_part)))
        place, moving = places[3 * k : 3 * k + 3], motion[3 * k : 3 * k + 3]
        unknown = known + ca.dot(place, linear + ca.mtimes(square, place))
        unknown += by_rate_of_angles * levers[k]
        creep = _find_creep(own + ca.cross(rate, place) + moving, unknown, slip)
        creeps.append(creep)
        noises.append(h * ((level + creep) * ca.SX.eye(3) + steeper * ca.mtimes(up, up.T)))
    # b of `ground_rise`: it moves neither base nor biases.
    risen, lift = ca.vertcat(*moved), ca.vertcat(ca.SX(BASE_TANGENT, 1), *raised)
    added = ca.mtimes(2.0 * risen + rise_variance * lift, ca.vertcat(*raised).T)
    arguments = [state, core, covariance, sensed, places, motion, levers, step, parts, by_rise]
    arguments.append(constants)
    results = [ca.vertcat(*each) for each in (after, rows, noises, creeps)]
    results += [ca.densify(risen + rise_variance * lift), ca.densify(added)]
    shapes = [(BASE + 3 * feet,), (3 * feet, 9), (feet, 3, 3), (feet,), (size,), (size, 3 * feet)]
    return CompiledFunction(build_transposed_function("predict", arguments, results), shapes)


def _predict_base(state: Any, phi: Any, sensed: Any, gravity: Any, h: Any) -> Any:
    """Return base and biases (16,) after a step of h s in which `sensed` (6,) is held.

    Args:
        state: State before, of which base and biases are the first 16 entries.
        phi: Transition (15, 15) of base and biases over the step.
        sensed: Measured rate and specific force.
        gravity: Acceleration (3,) of free fall in the world, m/s^2.
        h: Length of the step, s.
    """
    rate, force = sensed[:3] - state[10:13], sensed[3:] - state[13:16]
    velocity = state[7:10]
    # Position and velocity depend on the bias as on the force, but in the axes after the step.
    forward = ca.mtimes(rotation_of(state[:4]), phi[:3, :3].T)
    by_force = [ca.mtimes(forward, ca.mtimes(phi[rows, 12:15], force)) for rows in _MOTION]
    return ca.vertcat(
        normalized(quaternion_product(state[:4], quaternion_of(h * rate))),
        state[4:7] + h * velocity + 0.5 * h**2 * gravity - by_force[0],
        velocity + h * gravity - by_force[1],
        state[10:16],
    )


def _roll_feet(phi: Any, turn: Any, rate: Any, h: Any, turning: list[Any]) -> list[tuple[Any, Any]]:
    """Return how far (3,) feet with a radius of 1 m roll in a step, and its derivative (3, 6).

    Args:
        phi: Transition (15, 15) of base and biases over the step.
        turn: Rotation (3, 3) of the inertial frame in the world, before the step.
        rate: Angular velocity (3,) of the inertial frame in its axes, rad/s.
        h: Length of the step, s.
        turning: Angular velocity (3,) of the link of each foot in the same axes, rad/s.

    Returns:
        For each foot the way in the world in m, and the derivative of that in the axes after the
        step by the turn and by the gyroscope's bias.
    """
    turned = -phi[:3, 9:12].T  # h Gamma_1
    across = ca.mtimes(phi[:3, :3], ca.skew(turn[2, :].T))
    slopes = [h**2 * ca.mtimes(across, slope) for slope in left_jacobian_slopes(h * rate)]
    fixed, found = ca.mtimes(across, turned), []
    for w in turning:
        link = ca.mtimes(turned, w)  # of the link over the step, in the axes before it, rad
        x, y, _ = ca.vertsplit(ca.mtimes(turn, link))
        by_rate = fixed
        for axis, slope in zip(ca.vertsplit(w), slopes, strict=True):
            by_rate += axis * slope
        derivative = ca.horzcat(ca.mtimes(across, ca.skew(link)), by_rate)
        found.append((ca.vertcat(y, -x, 0.0), derivative))  # (x, y, z) x (0, 0, 1)
    return found


def _find_creep(velocity: Any, variance: Any, slip: Any) -> Any:
    """Return the density of creep in m^2/s of a foot with an apparent velocity; see `creep`.

    Args:
        velocity: The velocity (3,), m/s.
        variance: Trace of the covariance of the velocity, m^2/s^2.
        slip: slip_margin, slip_speed^2, slip_fast^2 and slip_time of `BaseNoise`.
    """
    margin, fastest, fast, lasting = ca.vertsplit(slip)
    excess = (ca.dot(velocity, velocity) - margin * variance) / 3.0
    excess = ca.fmin(ca.fmax(excess, 0.0), fastest)
    return lasting * excess * (1.0 + excess / fast)


def _expand_velocity_variance(covariance: Any, velocity: Any) -> tuple[Any, Any, Any]:
    r"""Expand the variance of the apparent velocity of a foot at s as a + b . s + s . C s.

    With blocks P of the covariance and H = ([v], I, [s]) it is the trace of H P H^T, by
    tr([a] M [b]^T) = (a . b) tr M - b . M a.

    Args:
        covariance: Covariance (12, 12) of turn, position, velocity and bias of the gyroscope.
        velocity: Velocity v (3,) of the base in its own axes, m/s.

    Returns:
        a, b (3,) and C (3, 3).
    """
    turn, speed, bias = slice(0, 3), slice(6, 9), slice(9, 12)
    by_turn, by_speed = covariance[turn, bias], covariance[bias, speed]
    fixed = (
        ca.dot(velocity, velocity) * ca.trace(covariance[turn, turn])
        - ca.dot(velocity, ca.mtimes(covariance[turn, turn], velocity))
        + ca.trace(covariance[speed, speed])
        + 2.0 * ca.dot(velocity, _axial(covariance[turn, speed]))
    )
    linear = 2.0 * (ca.trace(by_turn) * velocity - ca.mtimes(by_turn, velocity) + _axial(by_speed))
    spread = covariance[bias, bias]
    return fixed, linear, ca.trace(spread) * ca.SX.eye(3) - spread


def _axial(matrix: Any) -> Any:
    """Return the vector a (3,) with tr([s] M) = s . a for each s."""
    return ca.vertcat(
        matrix[1, 2] - matrix[2, 1], matrix[2, 0] - matrix[0, 2], matrix[0, 1] - matrix[1, 0]
    )


def build_comparison(feet: int) -> CompiledFunction:
    """Build the comparison of feet in contact with where joint angles see them.

    Args:
        feet: Number k of point feet in contact.

    Returns:
        A function of state (16 + 3 k,) and positions (3 k,) in m by the angles, foot by foot. Its
        results are the residual (3 k,) in m, and the derivative (3 k, 3) of what is predicted by
        the turn of the base.
    """
    state, places = ca.SX.sym("state", BASE + 3 * feet), ca.SX.sym("places", 3 * feet)
    back = rotation_of(state[:4]).T
    residuals, slopes = [ca.SX(0, 1)], [ca.SX(0, 3)]
    for k in range(feet):
        foot = state[BASE + 3 * k : BASE + 3 * k + 3]
        predicted = ca.mtimes(back, foot - state[4:7])
        residuals.append(places[3 * k : 3 * k + 3] - predicted)
        slopes.append(ca.skew(predicted))
    results = [ca.vertcat(*residuals), ca.vertcat(*slopes)]
    function = build_transposed_function("compare", [state, places], results)
    return CompiledFunction(function, [(3 * feet,), (3 * feet, 3)])


def build_retraction(feet: int) -> CompiledFunction:
    """Build the correction of a state along a deviation.

    Args:
        feet: Number k of point feet in contact.

    Returns:
        A function of state (16 + 3 k,) and deviation (15 + 3 k,). Its results are the state after
        it, the block (3, 3) on the diagonal of `BaseSpace.right_jacobian` for all that turns with
        the base, and its blocks (2 + k, 3, 3) from the turn to position, velocity and feet.
    """
    size = BASE_TANGENT + 3 * feet
    state, deviation = ca.SX.sym("state", BASE + 3 * feet), ca.SX.sym("deviation", size)
    theta = deviation[:3]
    jacobian, slopes = left_jacobian(theta), left_jacobian_slopes(theta)
    back = rotation_vector_matrix(theta).T
    slopes = [ca.mtimes(back, slope) for slope in slopes]
    along = ca.mtimes(rotation_of(state[:4]), jacobian)
    after = [normalized(quaternion_product(state[:4], quaternion_of(theta)))]
    blocks = []
    for first in (3, 6, *range(BASE_TANGENT, size, 3)):
        moved = deviation[first : first + 3]
        after.append(state[first + 1 : first + 4] + ca.mtimes(along, moved))
        blocks.append(sum(moved[i] * slopes[i] for i in range(3)))
    after.insert(3, state[10:16] + deviation[9:15])
    results = [ca.vertcat(*after), jacobian.T, ca.vertcat(*blocks)]
    function = build_transposed_function("retract", [state, deviation], results)
    return CompiledFunction(function, [(BASE + 3 * feet,), (3, 3), (2 + feet, 3, 3)])


@lru_cache
def build_root() -> CompiledFunction:
    """Build the pose and velocity of the root by those of the inertial frame.

    Returns:
        A function of base and biases (16,), of the measured rate (3,) in rad/s, and of the root in
        the inertial frame (7,): its origin in m and its axes as a quaternion. Its results are
        position (3,), orientation (4,) and velocity (3,) of the root in the world, and the
        derivative (9, 15) of its turn, position and velocity, all about and along axes of the
        world, by base and biases.
    """
    state, rate, root = ca.SX.sym("state", BASE), ca.SX.sym("rate", 3), ca.SX.sym("root", 7)
    turn, arm = rotation_of(state[:4]), root[:3]
    swing = ca.cross(rate - state[10:13], arm)
    slope = ca.SX(9, BASE_TANGENT)
    slope[:3, :3] = slope[3:6, 3:6] = slope[6:9, 6:9] = turn
    slope[3:6, :3], slope[6:9, :3] = (
        -ca.mtimes(turn, ca.skew(arm)),
        -ca.mtimes(turn, ca.skew(swing)),
    )
    slope[6:9, 9:12] = ca.mtimes(turn, ca.skew(arm))
    results = [
        state[4:7] + ca.mtimes(turn, arm),
        quaternion_product(state[:4], root[3:]),
        state[7:10] + ca.mtimes(turn, swing),
        slope,
    ]
    function = build_transposed_function("root", [state, rate, root], results)
    return CompiledFunction(function, [(3,), (4,), (3,), (9, BASE_TANGENT)])


def build_feet(fixed: Array, masks: Array, rates: Array | None) -> CompiledFunction:
    """Build the places of feet, and how they move with the joint angles.

    Args:
        fixed: Poses (1 + k, 4, 4) in their joints of the inertial frame and of the k feet.
        masks: Whether each of m joints moves each foot against the inertial frame (k, m): 1, 0, or
            -1 where it moves that frame instead.
        rates: Rates (m, n) of the joints by those of the angles; None where they are the same.

    Returns:
        A function of rotations (9 (1 + k),) and positions (3 (1 + k),) in m of the joints that
        carry the frames, and of the spatial axes (6 m,) of the m joints at the origin of the root,
        linear before angular, axis by axis. Its results are the fields of `FeetKinematics`.
    """
    k, joints = masks.shape
    n = joints if rates is None else rates.shape[1]
    turns, places = ca.SX.sym("turns", 9 * len(fixed)), ca.SX.sym("places", 3 * len(fixed))
    axes = ca.SX.sym("axes", 6 * joints)
    columns, poses = ca.reshape(axes, 6, joints), []
    for i, frame in enumerate(fixed):
        joint = ca.reshape(turns[9 * i : 9 * i + 9], 3, 3).T
        origin = ca.mtimes(joint, ca.DM(frame[:3, 3])) + places[3 * i : 3 * i + 3]
        poses.append((ca.mtimes(joint, ca.DM(frame[:3, :3])), origin))
    (base, here), *feet = poses
    back, twists, positions = base.T, [], []
    for mask, (_, place) in zip(masks, feet, strict=True):
        own = ca.mtimes(columns, ca.sparsify(ca.DM(np.diag(mask.astype(float)))))
        linear, angular = own[:3, :], own[3:, :]
        there = linear - ca.mtimes(ca.skew(place), angular)
        twist = ca.vertcat(ca.mtimes(back, there), ca.mtimes(back, angular))
        if rates is not None:
            twist = ca.mtimes(twist, ca.sparsify(ca.DM(rates)))
        twists.append(twist)
        positions.append(ca.mtimes(back, place - here))
    moving = ca.vertcat(*(twist[:3, :] for twist in twists))
    results = [
        ca.horzcat(*positions).T,
        ca.vertcat(*(ca.mtimes(back, turn) for turn, _ in feet)),
        ca.vertcat(*twists),
        ca.mtimes(moving, moving.T),
        ca.vertcat(*(ca.sumsqr(twist[:3, :]) for twist in twists)),
    ]
    shapes = [(k, 3), (k, 3, 3), (k, 6, n), (3 * k, 3 * k), (k,)]
    function = build_transposed_function("feet", [turns, places, axes], results)
    return CompiledFunction(function, shapes)


def rotation_of(q: Any) -> Any:
    """Return the rotation (3, 3) of a unit quaternion (4,) as an expression."""
    x, y, z, w = ca.vertsplit(q)
    tx, ty, tz = 2.0 * x, 2.0 * y, 2.0 * z
    wx, wy, wz, xx, xy, xz = tx * w, ty * w, tz * w, tx * x, ty * x, tz * x
    yy, yz, zz = ty * y, tz * y, tz * z
    return ca.vertcat(
        ca.horzcat(1.0 - (yy + zz), xy - wz, xz + wy),
        ca.horzcat(xy + wz, 1.0 - (xx + zz), yz - wx),
        ca.horzcat(xz - wy, yz + wx, 1.0 - (xx + yy)),
    )


def quaternion_product(p: Any, q: Any) -> Any:
    """Return the quaternion (4,) of the rotation q and then p as an expression."""
    a, d, x, w = p[:3], p[3], q[:3], q[3]
    return ca.vertcat(d * x + w * a + ca.cross(a, x), d * w - ca.dot(a, x))


def normalized(q: Any) -> Any:
    """Return the quaternion (4,) of norm one along q as an expression."""
    return q / ca.sqrt(ca.dot(q, q))


def quaternion_of(w: Any) -> Any:
    """Return the unit quaternion (4,) of a rotation vector w (3,) in rad as an expression."""
    half = 0.5 * ca.sqrt(ca.dot(w, w) + _LEAST_SQUARE)
    return ca.vertcat(0.5 * ca.sin(half) / half * w, ca.cos(half))


def rotation_vector_matrix(w: Any) -> Any:
    """Return the rotation (3, 3) of a rotation vector w (3,) in rad as an expression."""
    cross = ca.skew(w)
    a1, a2, _, _, _ = _coefficients(w)
    return ca.SX.eye(3) + a1 * cross + a2 * ca.mtimes(cross, cross)


def left_jacobian(w: Any) -> Any:
    """Return the left Jacobian (3, 3) of a rotation vector w (3,) in rad as an expression."""
    cross = ca.skew(w)
    _, a2, a3, _, _ = _coefficients(w)
    return ca.SX.eye(3) + a2 * cross + a3 * ca.mtimes(cross, cross)


def left_jacobian_slopes(w: Any) -> list[Any]:
    """Return derivatives (3, 3) of products of the left Jacobian with the axes, as expressions.

    See `rotation.left_jacobian_slope_map`.

    Args:
        w: Rotation vector (3,) in rad, by which is differentiated.
    """
    _, a2, a3, s2, s3 = _coefficients(w)
    found = []
    for i in range(3):
        c = ca.SX([float(i == j) for j in range(3)])
        once = ca.cross(w, c)
        before = s2 * once + s3 * ca.cross(w, once)
        rest = 2.0 * ca.mtimes(c, w.T) - ca.mtimes(w, c.T) - w[i] * ca.SX.eye(3)
        found.append(ca.mtimes(before, w.T) - a2 * ca.skew(c) - a3 * rest)
    return found


def _coefficients(w: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return the coefficients a_1 to a_3 of a rotation vector, and the slopes of a_2 and a_3.

    See `rotation.gammas`; the slope s_m is twice the derivative of a_m by the square of the angle.
    Series are summed up to 1 rad^2, where the closed forms cancel.
    """
    square = ca.dot(w, w)
    few, many = ca.fmin(square, 1.0), ca.fmax(square, 1.0)
    angle, root = ca.sqrt(many), ca.sqrt(square + _LEAST_SQUARE)
    half = 0.5 * root
    a1, a2 = ca.sin(root) / root, 0.5 * (ca.sin(half) / half) ** 2
    inverse = [[1.0 / math.factorial(m + 2 * j) for j in range(_TERMS + 1)] for m in (2, 3)]
    series = [_sum_series(terms, few) for terms in inverse]
    slopes = [
        _sum_series([-2.0 * (j + 1) * terms[j + 1] for j in range(_TERMS)], few)
        for terms in inverse
    ]
    b1, b2 = ca.sin(angle) / angle, (1.0 - ca.cos(angle)) / many
    b3 = (1.0 - b1) / many
    closed = b3, (b1 - 2.0 * b2) / many, (b2 - 3.0 * b3) / many
    small = square < 1.0
    a3, s2, s3 = (
        ca.if_else(small, short, long)
        for short, long in zip((series[1], *slopes), closed, strict=True)
    )
    return a1, a2, a3, s2, s3


def _sum_series(terms: list[float], square: Any) -> Any:
    """Return the sum of terms[j] (-square)^j as an expression, by Horner's scheme."""
    total = ca.SX(terms[-1])
    for term in reversed(terms[:-1]):
        total = term - square * total
    return total
