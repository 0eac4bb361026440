r"""Vertical forces of feet by joint torques: a momentum observer of the legs of a moving base.

Let S_j be the axis of joint j, h_b the spatial momentum of body b, both about the origin P of the
inertial frame, as seen by who moves along with P without turning. The momentum along the joints,
their motors' torques, and forces F of the feet obey

.. math:: p_j = \sum_{b \ge j} S_j^T h_b + A_j \dot q_j, \qquad
          \dot p = \tau + J^T F + w, \qquad
          w_j = \sum_{b \ge j} S_j^T g_b + \dot S_j^T h_b - k_j,

with the reflected inertia A of rotors, the wrench g_b of the "gravity" -f on body b, f being the
specific force that the accelerometer measures at P, and k of springs and dampers. The gyroscope's
rate goes into h_b and :math:`\dot S_j`. So no equation of the base is needed, nor its velocity. In
the notation of the mass matrix w is :math:`C^T v` and gravity. The observer of De Luca,
Albu-Schaeffer, Haddadin and Hirzinger (IROS 2006)

.. math:: r = \lambda \Bigl(p - \int (\tau + w + r) \, dt\Bigr), \qquad \dot r = \lambda (J^T F - r)

follows the torques of the feet with the first-order lag :math:`1 / \lambda`, and takes no second
derivative of the angles. F is the least-squares solution of :math:`J^T F = r`, and the vertical is
that of gyroscope and accelerometer.

Momenta are known halfway between two rows of angles, so that row k gives the mean torque
:math:`u_k` of the feet from one middle to the next, a time h around its centre :math:`c_k`. The
observer takes it as constant over that time. What changes steadily it shows late by :math:`L_k`,

.. math:: r_k = a r_{k-1} + (1 - a) u_k, \qquad a = e^{-\lambda h}, \qquad
          L_k = a (L_{k-1} + c_k - c_{k-1}),

which becomes :math:`h / (e^{\lambda h} - 1) \approx 1 / \lambda - h / 2` on an even clock. A log
knows what comes later, so the forces are stamped :math:`c_k - L_k`: a foot that lifts must not
count as one that stands. The observer starts from the static load, :math:`-(\tau + w)`, and so it
does after a gap, where no force is known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.legged.attitude import integrate_attitude
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.readings import stood
from hybridctl.legged.rotation import matrix, skew
from hybridctl.legged.stance import interpolate, is_sampled
from hybridctl.mechanics.multibody.robot import Robot

_LEAST_SINGULAR_RATIO = 0.02
"""Least singular value of J^T that counts, relative to the largest, a leg's length of 0.2 to 1 m.
At levers of less than 4 to 20 mm a torque of 0.2 N m, the friction of a gear, is 10 to 50 N."""
_SOLE = 0.1
"""Lever in m by which moments of a sole count as forces: half of a foot. It decides what is taken
to be zero where a leg has too few joints for force and moment."""
_START_SPAN = 0.5
"""Time in s at the start whose mean specific force points up, of a robot that walks already."""


class JointMomentum(NamedTuple):
    """Momentum along joints and the torques that change it, apart from those of motors and feet.

    Attributes:
        momentum: p (m,), kg m^2/s.
        torque: w (m,), N m.
    """

    momentum: Array
    torque: Array


class LegDynamics:
    """Momentum of the joints between an inertial sensor and the feet; see this module."""

    def __init__(self, robot: Robot, kinematics: LegKinematics) -> None:
        """Take the bodies that these joints move.

        Args:
            robot: The robot with its root fixed.
            kinematics: Feet, and joints, of the same robot.

        Raises:
            InputError: A joint lies between root and inertial frame.
        """
        self.kinematics = kinematics
        self._robot = robot
        self._turn, self._place = kinematics.base
        self._columns = [robot.velocities(name)[0] for name in kinematics.joints]
        legs = np.zeros(robot.nv, dtype=bool)
        legs[self._columns] = True
        joints, masks = [], []
        for joint in range(1, len(robot.joint_names) + 1):
            mask = robot.supporting(joint)
            if robot.reduce_flags(mask > 0.0)[legs].any():
                joints.append(joint)
                masks.append(mask)
        bodies = robot.tree().bodies
        self._joints, self._masks = joints, np.array(masks)
        self._masses = np.array([bodies[j - 1].mass for j in joints])
        moments = np.array([bodies[j - 1].moment for j in joints])
        self._inertias = np.array([bodies[j - 1].inertia for j in joints])
        # Bodies without mass have no moment either: their centre is zero instead of NaN.
        self._centers = moments / np.maximum(self._masses, 1e-300)[:, None]
        # About the centre of mass, in the axes of the body: I_O = I_C - m [c]^2.
        for k, (mass, center) in enumerate(zip(self._masses, self._centers, strict=True)):
            self._inertias[k] += mass * skew(center) @ skew(center)
        self._armature = robot.armature[self._columns]

    def evaluate(self, angles: Array, rates: Array, rate: Array, force: Array) -> JointMomentum:
        """Return the momentum of the joints, and what changes it besides motors and feet.

        Args:
            angles: Joint angles (m,), rad.
            rates: Their rates (m,), rad/s.
            rate: Angular velocity (3,) of the inertial frame, in its axes, rad/s.
            force: Specific force (3,) at its origin, in its axes, m/s^2.
        """
        robot, masks = self._robot, self._masks
        q, v = self.kinematics.posture(angles), np.zeros(robot.nv)
        v[self._columns] = rates
        motion = robot.motion(q, v, self._joints)
        axes, axes_rate = (
            self._about_sensor(columns) for columns in (motion.jacobian, motion.jacobian_rate)
        )
        omega, gravity = self._turn @ rate, -(self._turn @ force)
        # The axes turn with the base as well: omega x S for both halves.
        turned = skew(omega)
        axes_rate = axes_rate + np.vstack([turned @ axes[:3], turned @ axes[3:]])
        turns = motion.poses[:, :3, :3]
        centers = motion.poses[:, :3, 3] - self._place
        centers = centers + np.einsum("bij,bj->bi", turns, self._centers)
        twists = (masks * robot.all_velocities(v)) @ axes.T
        spins = twists[:, 3:] + omega
        velocities = twists[:, :3] + np.cross(spins, centers)
        linear = self._masses[:, None] * velocities
        own = np.einsum("bij,bjk,blk,bl->bi", turns, self._inertias, turns, spins)
        momenta = np.hstack([linear, own + np.cross(centers, linear)])
        weights = self._masses[:, None] * gravity
        wrenches = np.hstack([weights, np.cross(centers, weights)])
        p = (masks * (momenta @ axes)).sum(axis=0)
        w = (masks * (wrenches @ axes + momenta @ axes_rate)).sum(axis=0)
        p, w = robot.reduce_columns(p)[self._columns], robot.reduce_columns(w)[self._columns]
        if robot.resists:
            w = w - robot.passive.torque(q, v)[self._columns]
        return JointMomentum(p + self._armature * rates, w)

    def vertical_forces(self, angles: Array, torques: Array, up: Array) -> Array:
        """Return the vertical forces (k,) of the feet in N that make joint torques J^T F.

        Args:
            angles: Joint angles (m,), rad.
            torques: Torques (m,) of the feet's forces along the joints, N m.
            up: Upward direction (3,) in the axes of the inertial frame.
        """
        feet, columns, first = self.kinematics.feet, list[Array](), list[int]()
        for seen, foot in zip(self.kinematics(angles, feet), feet.values(), strict=True):
            # A round foot is touched below its centre.
            below = -self.kinematics.radii[foot.frame] * up
            moving = seen.moving - skew(below) @ seen.turning
            first.append(sum(map(len, columns)))
            columns += [moving, _SOLE * seen.turning] if foot.flat else [moving]
        found = np.linalg.lstsq(np.vstack(columns).T, torques, rcond=_LEAST_SINGULAR_RATIO)[0]
        return np.array([up @ found[k : k + 3] for k in first])

    def _about_sensor(self, columns: Array) -> Array:
        """Return spatial columns (6, nv) about the sensor's origin, from those about the root's."""
        moved: Array = columns.copy()
        moved[:3] -= skew(self._place) @ columns[3:]
        return moved


class ObservedTorques(NamedTuple):
    """Joint torques of the feet's forces by the observer.

    Attributes:
        times: Times (n,) at which they were so, in s, in order.
        torques: Torques (n, m), N m; NaN where they are not known.
    """

    times: Array
    torques: Array


def observe_torques(
    times: Array,
    motion: list[JointMomentum],
    torques: Array,
    gain: float,
    known: NDArray[np.bool_] | None = None,
) -> ObservedTorques:
    """Return the joint torques of the feet's forces, by the observer.

    Constant torques are exact from the first row on while the robot is at rest; torques that change
    steadily are exact once 1 / gain is over a few times, on any clock.

    Args:
        times: Times (n,) of the joint angles in s, in order and different.
        motion: Momentum halfway between two times each, n - 1.
        torques: Torques (n, m) of the motors, N m.
        gain: The gain lambda, 1/s.
        known: Whether motion around each of the rows 1 to n - 2, and its torques, were measured
            (n - 2,); None for all. After rows that were not the observer starts anew.

    Returns:
        A row for each of the rows 1 to n - 2.
    """
    middles = 0.5 * (times[1:] + times[:-1])
    centers, spans = 0.5 * (middles[1:] + middles[:-1]), np.diff(middles)
    found, lags = np.full((len(centers), torques.shape[1]), np.nan), np.zeros(len(centers))
    for k, h in enumerate(spans.tolist()):
        if known is not None and not known[k]:
            continue
        before, after = motion[k], motion[k + 1]
        given = torques[k + 1] + 0.5 * (before.torque + after.torque)
        if k == 0 or np.isnan(found[k - 1, 0]):
            # At rest the momentum does not change. Its change over one step is mostly the noise of
            # encoders: at 1 kHz ten times as large as the observer leaves of it.
            found[k] = -given
            continue
        unexplained = (after.momentum - before.momentum) / h - given
        kept = np.exp(-gain * h)
        found[k] = unexplained + kept * (found[k - 1] - unexplained)
        lags[k] = kept * (lags[k - 1] + centers[k] - centers[k - 1])
    return ObservedTorques(centers - lags, found)


def estimate_leg_forces(
    dynamics: LegDynamics, inertial: Series, angles: Series, torques: Series, gain: float
) -> dict[str, Series]:
    """Return vertical forces (n, 1) in N of each foot by the torques of the joints.

    Values between samples are interpolated. Where samples of one of the three are further apart
    than 20 ms, and than three of their usual periods, forces are NaN.

    Args:
        dynamics: The legs.
        inertial: Rates and specific forces (n, 6) of the inertial sensor.
        angles: Joint angles (n, m), rad.
        torques: Torques (n, m) of the motors at the joints, N m, in the order of the angles;
            positive along the joint's axis.
        gain: Gain of the observer, 1/s.

    Raises:
        InputError: The three share less than three rows of angles in time, or never three without
            a gap.
    """
    sensor, places, motors = (s.complete_rows.sort_by_time() for s in (inertial, angles, torques))
    ends = [s.times[[0, -1]] for s in (sensor, motors) if len(s)]
    first, last = (
        (max(e[0] for e in ends), min(e[1] for e in ends)) if len(ends) == 2 else (np.inf, -np.inf)
    )
    places = places.select_rows((places.times >= first) & (places.times <= last))
    places = places.select_rows(np.append(True, np.diff(places.times) > 0.0)[: len(places)])
    times, middles = places.times, 0.5 * (places.times[1:] + places.times[:-1])
    measured = _find_measured(sensor, places, motors) if len(times) >= 3 else np.zeros(0, bool)
    if not measured.any():
        raise InputError(
            "torques must have been measured along with joint angles and rates and forces of the "
            "inertial sensor, at three times"
        )
    rates = np.diff(places.values, axis=0) / np.diff(times)[:, None]
    postures = 0.5 * (places.values[1:] + places.values[:-1])
    felt = interpolate(sensor, middles)
    motion = [
        dynamics.evaluate(posture, speed, row[:3], row[3:])
        for posture, speed, row in zip(postures, rates, felt, strict=True)
    ]
    stamps, observed = observe_torques(times, motion, interpolate(motors, times), gain, measured)
    rows = zip(
        interpolate(places, stamps)[measured],
        observed[measured],
        _track_vertical(sensor, stamps, stood(places))[measured],
        strict=True,
    )
    feet = dynamics.kinematics.feet
    forces = np.full((len(stamps), len(feet)), np.nan)
    forces[measured] = [dynamics.vertical_forces(*row) for row in rows]
    return {foot: Series(stamps, forces[:, k : k + 1]) for k, foot in enumerate(feet)}


def _find_measured(sensor: Series, angles: Series, motors: Series) -> NDArray[np.bool_]:
    """Return whether motion around each inner row (n - 2,) of angles, and torques, are measured.

    Args:
        sensor: Inertial samples, complete and in order.
        angles: Joint angles (n, m), complete, at different times in order.
        motors: Torques of the motors, complete and in order.
    """
    times = angles.times
    middles, inner = 0.5 * (times[1:] + times[:-1]), times[1:-1]
    moves = is_sampled(times, times[:-1], times[1:]) & is_sampled(sensor.times, middles, middles)
    return np.asarray(moves[:-1] & moves[1:] & is_sampled(motors.times, inner, inner))


def _track_vertical(sensor: Series, times: Array, standstill: float) -> Array:
    """Return the upward direction (n, 3) in the axes of the inertial frame at some times.

    Args:
        sensor: Inertial samples, complete and in order.
        times: The times (n,), s.
        standstill: Time in s from the start that the robot stands still; 0 for one that walks.
    """
    early = sensor.times <= sensor.times[0] + (standstill or _START_SPAN)
    # As where a filter starts: a median does not see a push at the end of standing, and walking
    # the mean force alone points up.
    average = np.median if standstill else np.mean
    up = average(sensor.values[early, 3:], axis=0)
    start, _ = Rotation.align_vectors([[0.0, 0.0, 1.0]], [up])
    turns = integrate_attitude(sensor, start.as_quat(), np.zeros(3))
    rows = np.maximum(sensor.times.searchsorted(times, "right") - 1, 0)
    return np.array([matrix(turns[row])[2] for row in rows])
