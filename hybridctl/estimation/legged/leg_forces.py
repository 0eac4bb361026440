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
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.estimation.legged.attitude import integrate_attitude
from hybridctl.estimation.legged.kinematics import LegKinematics
from hybridctl.estimation.legged.rotation import matrix, skew
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.series import Series

_LEAST_SINGULAR_RATIO = 0.02
"""Least singular value of J^T that counts, relative to the largest, a leg's length of 0.2 to 1 m.
At levers of less than 4 to 20 mm a torque of 0.2 N m, the friction of a gear, is 10 to 50 N."""
_SOLE = 0.1
"""Lever in m by which moments of a sole count as forces: half of a foot. It decides what is taken
to be zero where a leg has too few joints for force and moment."""
_START_SPAN = 0.5
"""Time in s at the start whose mean specific force points up, as where a filter starts."""
_LONGEST = 3.0
"""Gap between two rows of angles, in median periods, from which on rows are missing: the observer
keeps its value."""


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


def observe_torques(
    times: Array, motion: list[JointMomentum], torques: Array, gain: float
) -> Array:
    """Return the joint torques (n, m) of the feet's forces at each time, by the observer.

    The first two rows are zero: the momentum has to change once. Over longer times than three
    usual ones angles are missing, and the observer keeps its value.

    Args:
        times: Times (n,) of the joint angles in s, in order.
        motion: Momentum halfway between two times each, n - 1.
        torques: Torques (n, m) of the motors, N m.
        gain: The gain lambda, 1/s.
    """
    found = np.zeros_like(torques)
    steps = np.diff(times)
    longest = _LONGEST * float(np.median(steps))
    for k in range(1, len(times) - 1):
        before, after = motion[k - 1], motion[k]
        h = 0.5 * float(times[k + 1] - times[k - 1])
        value = found[k]
        if h > 0.0 and max(steps[k - 1], steps[k]) <= longest:
            given = torques[k] + 0.5 * (before.torque + after.torque)
            unexplained = (after.momentum - before.momentum) / h - given
            value = value - np.expm1(-gain * h) * (unexplained - value)
        found[k + 1] = value
    return found


def estimate_leg_forces(
    dynamics: LegDynamics, inertial: Series, angles: Series, torques: Series, gain: float
) -> dict[str, Series]:
    """Return vertical forces (n, 1) in N of each foot by the torques of the joints.

    Args:
        dynamics: The legs.
        inertial: Rates and specific forces (n, 6) of the inertial sensor.
        angles: Joint angles (n, m), rad.
        torques: Torques (n, m) of the motors at the joints, N m, in the order of the angles;
            positive along the joint's axis.
        gain: Gain of the observer, 1/s.

    Raises:
        InputError: The three share less than three rows of angles in time.
    """
    sensor, known, motors = (s.complete.sorted() for s in (inertial, angles, torques))
    ends = [s.times[[0, -1]] for s in (sensor, motors) if len(s)]
    first, last = (
        (max(e[0] for e in ends), min(e[1] for e in ends)) if len(ends) == 2 else (np.inf, -np.inf)
    )
    known = known.rows((known.times >= first) & (known.times <= last))
    known = known.rows(np.append(True, np.diff(known.times) > 0.0)[: len(known)])
    if len(known) < 3:
        raise InputError(
            "torques must have been measured along with joint angles and rates and forces of the "
            "inertial sensor, at three times"
        )
    times, middle = known.times, 0.5 * (known.times[1:] + known.times[:-1])
    rates = np.diff(known.values, axis=0) / np.diff(times)[:, None]
    places = 0.5 * (known.values[1:] + known.values[:-1])
    felt = _interpolate(sensor, middle)
    motion = [
        dynamics.evaluate(place, speed, row[:3], row[3:])
        for place, speed, row in zip(places, rates, felt, strict=True)
    ]
    observed = observe_torques(times, motion, _interpolate(motors, times), gain)
    # The observer answers 1 / gain late, and row k + 1 has the momentum around row k. A log knows
    # what comes later, so both are taken back: a foot that lifts must not count as one that stands.
    stamps = times[1:-1] - 1.0 / gain
    rows = zip(
        _interpolate(known, stamps), observed[2:], _track_vertical(sensor, stamps), strict=True
    )
    forces = np.array([dynamics.vertical_forces(*row) for row in rows])
    feet = dynamics.kinematics.feet
    return {foot: Series(stamps, forces[:, k : k + 1]) for k, foot in enumerate(feet)}


def _track_vertical(sensor: Series, times: Array) -> Array:
    """Return the upward direction (n, 3) in the axes of the inertial frame at some times."""
    early = sensor.times <= sensor.times[0] + _START_SPAN
    start, _ = Rotation.align_vectors([[0.0, 0.0, 1.0]], [sensor.values[early, 3:].mean(axis=0)])
    turns = integrate_attitude(sensor, start.as_quat(), np.zeros(3))
    rows = np.maximum(sensor.times.searchsorted(times, "right") - 1, 0)
    return np.array([matrix(turns[row])[2] for row in rows])


def _interpolate(series: Series, times: Array) -> Array:
    return np.column_stack([np.interp(times, series.times, c) for c in series.values.T])
