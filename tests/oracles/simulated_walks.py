"""Quadrupeds that walk on MuJoCo, where contacts give way: what their sensors say, with the truth.

A quadruped of `robots.public` stands for a second and trots. Its law knows no state but joint
angles: feet follow a pattern under the body by inverse kinematics, joints are held to that by
springs and dampers, and the feet that should stand bear the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hybridctl.robots import public
from oracles.walking_robots import Gait, reached
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.estimation.record import Series
from hybridctl.interop.mujoco import Compliance, MujocoModel, MujocoPlant
from hybridctl.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.legged.readings import Readings
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.multibody.robot import Robot

GAIT = Gait(period=0.4, lift=0.05)
GAINS = {  # N m/rad and N m s/rad
    "solo12": (8.0, 0.25),
    "go1": (120.0, 3.0),
    "a1": (120.0, 3.0),
    "go2": (150.0, 4.0),
}
BEGIN, RISE = 1.0, 0.3  # s: when it begins to trot, and until it does so with full steps
PERIOD = 1e-3  # s, of the law; a sample is `EVERY` of them
EVERY, PHASES = 4, 200
# noise of the recorded humanoid's inertial sensor, per sqrt(Hz); of angles in rad, of forces in N
RATE, FORCE, ANGLE, LOAD = 6e-4, 1.5e-2, 1e-3, 1.0
BIAS = np.repeat([5e-3, 3e-2], 3)  # rad/s and m/s^2


def settings(name: str) -> BaseSettings:
    """What there is to say of a quadruped, and no more."""
    frame = Robot.from_urdf(public.urdf(name), root="fixed").link_names[0]
    return BaseSettings(frame, tuple(Foot(tip) for tip in public.MODELS[name].tips))


class Pattern(NamedTuple):
    """A period of the trot: joint angles and rates (n, 12), who stands (n, 4), legs (n, 4, 3, 12).

    legs: derivatives of the feet by the angles.
    """

    angles: Array
    rates: Array
    stands: Array
    legs: Array

    @staticmethod
    def of(kinematics: LegKinematics, posture: Array) -> Pattern:
        """Feet that move back under the body while they stand, and swing forward."""
        feet = list(kinematics.feet)
        below = np.array([seen.position for seen in kinematics(posture, feet)])
        part = (np.arange(PHASES)[:, None] / PHASES + [0.0, 0.5, 0.5, 0.0]) % 1.0
        way = np.clip((part - GAIT.stance) / (1.0 - GAIT.stance), 0.0, 1.0)
        along = np.where(part < GAIT.stance, -part / GAIT.stance, way**2 * (3.0 - 2.0 * way) - 1.0)
        places = np.tile(below, (PHASES, 1, 1))
        places[:, :, 0] += GAIT.speed * GAIT.period * GAIT.stance * (along + 0.5)
        places[:, :, 2] += GAIT.lift * np.sin(np.pi * way) ** 2
        angles, still = [posture], (Rotation.identity(), np.zeros(3))
        for wanted in places:
            angles.append(reached(kinematics, angles[-1], *still, wanted))
        found = np.array(angles[1:])
        rates = np.roll(found, -1, axis=0) - np.roll(found, 1, axis=0)
        legs = np.array([[seen.moving for seen in kinematics(row, feet)] for row in found])
        return Pattern(found, rates * PHASES / (2.0 * GAIT.period), part < GAIT.stance, legs)


@dataclass(frozen=True, eq=False)
class Walk:
    """A walk: times (n,) every ms, states (n, nx), forces (n, 4) of the feet.

    coordinates: of the joints in the state, in the order of the kinematics. torques (n, 12): of
    these joints in N m, over the ms before each time.
    """

    name: str
    times: Array
    states: Array
    forces: Array
    coordinates: list[int]
    torques: Array


def walk(
    name: str, time_constant: float, duration: float, *, friction: float | None = None
) -> Walk:
    """Let a quadruped of `GAINS` walk.

    Args:
        name: Of the quadruped in `robots.public`.
        time_constant: How slowly contacts give way, s.
        duration: s, of which it stands the first.
        friction: Coefficient of all feet; None for that of `robots.public`.
    """
    # The gains stand for controlled motors, whose dry friction is left out.
    fixed, own = Robot.from_urdf(public.urdf(name), root="fixed"), settings(name)
    none = dict.fromkeys(fixed.joint_names, 0.0)
    robot = Robot.from_urdf(public.urdf(name), root="floating", friction=none)
    kinematics = LegKinematics(fixed, own.inertial, own.feet)
    posture = np.array([public.MODELS[name].posture.get(joint, 0.0) for joint in kinematics.joints])
    pattern, (stiffness, damping) = Pattern.of(kinematics, posture), GAINS[name]
    plant = MujocoPlant(
        MujocoModel(robot, round_contacts(name, kinematics, friction), Compliance(time_constant)),
        PERIOD,
    )
    places = [robot.joints.single("joint", joint) for joint in kinematics.joints]
    coordinates, rows = [q for q, _ in places], [v for _, v in places]
    x = np.concatenate([robot.neutral(), np.zeros(robot.nv)])
    x[coordinates] = posture
    x[2] = kinematics.base[1][2] - min(
        seen.position[2] - kinematics.radii[foot]
        for foot, seen in zip(kinematics.feet, kinematics(posture, kinematics.feet), strict=True)
    )
    weight, sample = robot.mass * 9.81, plant.reset(0.0, x)
    found, torques = [sample], [np.zeros(len(rows))]
    for t in (PERIOD * np.arange(round(duration / PERIOD))).tolist():
        full = float(np.clip((t - BEGIN) / RISE, 0.0, 1.0))
        phase = int((max(t - BEGIN, 0.0) / GAIT.period % 1.0) * PHASES)
        stands = pattern.stands[phase] if full else np.ones(4, dtype=bool)
        error = posture + full * (pattern.angles[phase] - posture) - sample.state[coordinates]
        rates = full * pattern.rates[phase] - sample.state[[robot.nq + v for v in rows]]
        up = Rotation.from_quat(sample.state[3:7]).inv().apply([0.0, 0.0, weight / stands.sum()])
        bearing = -(pattern.legs[phase][stands].sum(axis=0).T @ up)
        torque = stiffness * error + damping * rates + bearing
        sample = plant.step(np.linalg.solve(robot.actuation[rows], torque))
        found.append(sample)
        torques.append(torque)
    times, states, sensed = zip(*found, strict=True)
    forces = np.array([one["normal_force"] for one in sensed])
    return Walk(name, np.array(times), np.array(states), forces, coordinates, np.array(torques))


def round_contacts(
    name: str, kinematics: LegKinematics, friction: float | None = None
) -> list[Contact]:
    """Return the contacts of a quadruped's feet with the floor, round where its URDF says so.

    Args:
        name: Of the quadruped in `robots.public`.
        kinematics: Its legs, with the radii of feet.
        friction: Coefficient of all feet; None for that of `robots.public`.
    """
    return [
        Contact(
            c.name,
            c.frame,
            c.surface,
            radius=kinematics.radii[c.frame],
            friction=c.friction if friction is None else friction,
        )
        for c in public.contacts(name)
    ]


def log(
    estimator: BaseEstimator,
    done: Walk,
    begin: float,
    span: float,
    seed: int,
    *,
    bias: float = 1.0,
    late: int = 0,
    noise: float = 1.0,
) -> Readings:
    """What sensors say every 4 ms: those of motion the means over that time, with their biases.

    Args:
        estimator: Whose frames and feet the sensors are at.
        done: The walk.
        begin: Of the log, s from the walk's begin.
        span: Of the log, s.
        seed: Of noise and biases.
        bias: By how many times biases exceed `BIAS`.
        late: By how many samples joint angles come late.
        noise: By how many times the inertial sensor and encoders are noisier than `RATE`, `FORCE`
            and `ANGLE`.
    """
    rng, turns = np.random.default_rng(seed), Rotation.from_quat(done.states[:, 3:7])
    axes, arm = estimator.base.kinematics.base
    first = round(begin / PERIOD) + EVERY
    rows = np.arange(first, first + round(span / PERIOD), EVERY)
    a, b, h = rows - EVERY // 2, rows + EVERY // 2, EVERY * PERIOD
    nq = 7 + len(done.coordinates)
    moving = turns.apply(
        done.states[:, nq : nq + 3] + np.cross(done.states[:, nq + 3 : nq + 6], arm)
    )
    rate = (turns[a].inv() * turns[b]).as_rotvec() / h
    force = turns[rows].inv().apply((moving[b] - moving[a]) / h + [0.0, 0.0, 9.81])
    spread = noise * np.repeat([RATE, FORCE], 3) / np.sqrt(h)
    inertial = np.hstack([rate @ axes, force @ axes]) + bias * BIAS * rng.normal(size=6)
    inertial += spread * rng.normal(size=inertial.shape)
    angles = done.states[np.maximum(rows - late * EVERY, 0)][:, done.coordinates]
    angles += noise * ANGLE * rng.normal(size=angles.shape)
    loads = done.forces[rows] + LOAD * rng.normal(size=(len(rows), 4))
    times, feet = done.times[rows], estimator.base.feet
    return Readings(
        Series(times, inertial),
        Series(times, angles),
        {foot: Series(times, loads[:, k : k + 1]) for k, foot in enumerate(feet)},
    )


def measured_torques(done: Walk, readings: Readings) -> Series:
    """What motors say at the stamps of the joint angles: the law's torques, in N m."""
    times = readings.angles.times
    return Series(times, done.torques[np.rint(times / PERIOD).astype(int)])


class Errors(NamedTuple):
    """How far the root is off: position (n, 3) in m, and NEES (n,) of it and of all nine numbers.

    Those are turn, position and velocity. flags: of the estimator.
    """

    flags: tuple[str, ...]
    position: Array
    of_position: Array
    of_all: Array


def errors(estimator: BaseEstimator, done: Walk, readings: Readings, seed: int) -> Errors:
    """The filter's errors, begun at a place and heading as wrong as its settings say."""
    rng, record = np.random.default_rng(seed), estimator.record(readings)
    s, row = estimator.deviations(record), round(float(readings.angles.times[0]) / PERIOD)
    heading = Rotation.from_quat(done.states[row, 3:7]).as_euler("ZYX")[0]
    start = estimator.start(
        readings,
        heading=float(heading + s.heading * rng.normal()),
        position=done.states[row, :3] + s.position * rng.normal(size=3),
    )
    result = estimator.run_record(record, start, delay=estimator.time_offset(readings).left)
    roots = [estimator.root(step.estimate) for step in result.steps if step.channel == "angles"]
    true = done.states[np.rint(np.array([root.time for root in roots]) / PERIOD).astype(int)]
    turns, nq = Rotation.from_quat(true[:, 3:7]), 7 + len(done.coordinates)
    off = Rotation.from_quat([root.orientation for root in roots]) * turns.inv()
    position = np.array([root.position for root in roots]) - true[:, :3]
    moving = np.array([root.velocity for root in roots]) - turns.apply(true[:, nq : nq + 3])
    whole, p = (
        np.hstack([off.as_rotvec(), position, moving]),
        np.array([root.covariance for root in roots]),
    )

    def squares(rows: slice) -> Array:
        e = whole[:, rows, None]
        return np.asarray((e * np.linalg.solve(p[:, rows, rows], e)).sum(axis=(1, 2)))

    return Errors(
        estimator.flags(readings, result), position, squares(slice(3, 6)), squares(slice(0, 9))
    )
