"""Robots that walk, with truth: what their sensors say with noise of known size.

A quadruped of `robots.public` trots; the five-link walker walks in its plane, to which motion and
creep of its feet are kept. The base moves smoothly, its feet stand in pairs and creep like a random
walk, joint angles follow by inverse kinematics. Inertial samples are those of the instant, so that
only the rule by which they are integrated stands between them and the motion, far below their
noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hybridctl.robots import five_link, public
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.base.spaces import VectorSpace
from hybridctl.estimation.consistency import nees
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.result import filter_sample
from hybridctl.hybrid.mode import ModeKey
from hybridctl.legged.creep_filter import CreepFilter, CreepState
from hybridctl.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.legged.readings import Readings
from hybridctl.legged.start import StartDeviations
from hybridctl.legged.system import OPEN, STICK, BaseNoise
from hybridctl.mechanics.multibody.robot import Robot

GRAVITY = np.array([0.0, 0.0, -9.81])
LOAD = 100.0  # N, of a foot that stands
STEP = 1e-5  # s, of differences
BIAS = np.array([0.01, -0.02, 0.015, 0.1, -0.05, 0.08])  # rad/s and m/s^2


WALKER = "five_link"
PLANE = np.array([1.0, 0.0, 1.0])  # of the walker


@dataclass(frozen=True, eq=False)
class Machine:
    """A robot that walks: its URDF, feet, angles of its posture; whether along x and z alone."""

    urdf: str | Path
    feet: tuple[str, ...]
    posture: Mapping[str, float]
    in_plane: bool = False

    @staticmethod
    def of(name: str) -> Machine:
        """The walker, or a quadruped of `robots.public`."""
        if name == WALKER:
            urdf = Path(five_link.__file__).with_name("five_link.urdf")
            angles = dict(zip(five_link.JOINTS, (-0.3, 0.6) * 2, strict=True))
            return Machine(urdf, ("left_foot", "right_foot"), angles, in_plane=True)
        model = public.MODELS[name]
        return Machine(public.urdf(name), tuple(model.tips), model.posture)


@dataclass(frozen=True)
class Gait:
    """A walk or trot: speed in m/s, period in s, share of it that a foot stands, lift in m."""

    speed: float = 0.3
    period: float = 0.5
    stance: float = 0.6
    lift: float = 0.04


def settings(name: str) -> BaseSettings:
    """Settings for a robot, with the noise that its logs are made of."""
    root = robot(name).link_names[0]
    noise = BaseNoise(
        gyroscope=1e-3,
        accelerometer=1e-2,
        gyroscope_walk=0.0,
        accelerometer_walk=0.0,
        foot=3e-3,
        encoder=1e-3,
        measured=1e-6,
    )
    start = StartDeviations(tilt=0.02, heading=0.02, position=0.01, velocity=0.05, gyroscope=2e-3)
    return BaseSettings(
        root,
        tuple(Foot(foot, radius=0.0) for foot in Machine.of(name).feet),  # as the log is made
        touch_force=60.0,
        lift_force=40.0,
        settle=0.0,
        standing=2.0,
        noise=noise,
        start=start,
    )


def robot(name: str) -> Robot:
    """The robot with its root fixed."""
    return Robot.from_urdf(Machine.of(name).urdf, root="fixed")


@dataclass(frozen=True, eq=False)
class Motion:
    """The walk of a robot: where base and feet are at a time."""

    kinematics: LegKinematics
    posture: Array
    gait: Gait
    in_plane: bool

    @staticmethod
    def of(estimator: BaseEstimator, name: str, gait: Gait) -> Motion:
        """The motion of the robot that an estimator is for."""
        machine = Machine.of(name)
        posture = np.array([machine.posture.get(joint, 0.0) for joint in estimator.joints])
        return Motion(estimator.base.kinematics, posture, gait, machine.in_plane)

    @property
    def free(self) -> Array:
        """Directions (3,) in which it moves, as 0 or 1."""
        return PLANE if self.in_plane else np.ones(3)

    def position(self, t: float) -> Array:
        """Of the inertial frame, m."""
        sway = np.array([0.01 * np.sin(9.0 * t), 0.015 * np.sin(7.0 * t), 0.01 * np.sin(11.0 * t)])
        return np.asarray(np.array([self.gait.speed * t, 0.0, 0.3]) + self.free * sway)

    def turn(self, t: float) -> Rotation:
        """Its axes in the world."""
        pitch, roll = 0.05 * np.sin(8.0 * t), 0.06 * np.sin(6.0 * t + 1.0)
        angles = (0.0, pitch, 0.0) if self.in_plane else (self.heading(t), pitch, roll)
        return Rotation.from_euler("ZYX", angles)

    def heading(self, t: float) -> float:
        """The yaw, rad."""
        return 0.0 if self.in_plane else 0.2 * float(np.sin(0.8 * t))

    def velocity(self, t: float) -> Array:
        """Of the inertial frame, m/s."""
        return (self.position(t + STEP) - self.position(t - STEP)) / (2.0 * STEP)

    def inertial(self, t: float) -> Array:
        """Rate (3,) in rad/s and specific force (3,) in m/s^2 of the instant."""
        turn, h = self.turn(t), 1e-3
        rate = (self.turn(t - STEP).inv() * self.turn(t + STEP)).as_rotvec() / (2.0 * STEP)
        ahead, here, behind = self.position(t + h), self.position(t), self.position(t - h)
        return np.concatenate(
            [rate, turn.inv().apply((ahead - 2.0 * here + behind) / h**2 - GRAVITY)]
        )

    def phase(self, foot: int, t: float) -> tuple[int, float]:
        """Number of the step and how far it is, from 0; the foot stands up to `stance`."""
        pair = 0.0 if foot in (0, 3) else 0.5
        whole, part = divmod(t / self.gait.period + pair, 1.0)
        return int(whole), part

    def stands(self, foot: int, t: float) -> bool:
        """Whether a foot is in contact."""
        return self.phase(foot, t)[1] < self.gait.stance

    def foothold(self, foot: int, number: int) -> Array:
        """Where a foot stands in one of its steps: below its posture in the middle of that."""
        pair = 0.0 if foot in (0, 3) else 0.5
        middle = (number + 0.5 * self.gait.stance - pair) * self.gait.period
        seen = self.kinematics(self.posture, list(self.kinematics.feet))[foot].position
        heading = Rotation.from_rotvec([0.0, 0.0, self.heading(middle)])
        place = self.position(middle) + heading.apply(seen)
        return np.array([place[0], place[1], 0.3 + seen[2]])

    def foot(self, foot: int, t: float) -> Array:
        """Where a foot is that does not creep."""
        number, part = self.phase(foot, t)
        here = self.foothold(foot, number)
        if part < self.gait.stance:
            return here
        way = (part - self.gait.stance) / (1.0 - self.gait.stance)
        blend = way**2 * (3.0 - 2.0 * way)
        lift = self.gait.lift * np.sin(np.pi * way) ** 2
        ahead = blend * (self.foothold(foot, number + 1) - here)
        return np.asarray(here + ahead + [0.0, 0.0, lift])


@dataclass(frozen=True, eq=False)
class Log:
    """Readings with the truth: times (n,), feet (n, k, 3) in m, and who stands (n, k)."""

    readings: Readings
    times: Array
    feet: Array
    standing: Array
    motion: Motion

    def mode(self, row: int) -> ModeKey:
        """The true mode."""
        return tuple(STICK if stands else OPEN for stands in self.standing[row])

    def state(self, row: int) -> Array:
        """The true state in the true mode."""
        t = float(self.times[row])
        parts = [
            self.motion.turn(t).as_quat(),
            self.motion.position(t),
            self.motion.velocity(t),
            BIAS,
            self.feet[row][self.standing[row] > 0.0].ravel(),
        ]
        return np.concatenate(parts)


def log(
    estimator: BaseEstimator, name: str, gait: Gait, duration: float, rate: float, seed: int
) -> Log:
    """A log of `duration` s at `rate` per s, with the noise of the estimator's settings."""
    rng, noise = np.random.default_rng(seed), estimator.settings.noise
    motion = Motion.of(estimator, name, gait)
    times, h = np.arange(int(duration * rate) + 1) / rate, 1.0 / rate
    count = len(estimator.base.feet)
    feet, standing = np.empty((len(times), count, 3)), np.zeros((len(times), count))
    angles, crept = np.empty((len(times), len(estimator.joints))), np.zeros((count, 3))
    guess = motion.posture
    for k, t in enumerate(times.tolist()):
        for foot in range(count):
            standing[k, foot] = motion.stands(foot, t)
            if k and standing[k, foot] and standing[k - 1, foot]:
                crept[foot] += noise.foot * np.sqrt(h) * motion.free * rng.normal(size=3)
            elif not standing[k, foot]:
                crept[foot] *= 0.9
            feet[k, foot] = motion.foot(foot, t) + crept[foot]
        guess = reached(motion.kinematics, guess, motion.turn(t), motion.position(t), feet[k])
        angles[k] = guess
    exact = np.array([motion.inertial(t) for t in times.tolist()])
    spread = np.repeat([noise.gyroscope, noise.accelerometer], 3) / np.sqrt(h)
    inertial = exact + BIAS + spread * rng.normal(size=exact.shape)
    measured = angles + noise.encoder * rng.normal(size=angles.shape)
    loads = {
        foot: Series(times, LOAD * standing[:, i : i + 1])
        for i, foot in enumerate(estimator.base.feet)
    }
    readings = Readings(Series(times, inertial), Series(times, measured), loads)
    return Log(readings, times, feet, standing, motion)


def reached(
    kinematics: LegKinematics, guess: Array, turn: Rotation, position: Array, feet: Array
) -> Array:
    """The joint angles with which feet (k, 3) are where they are, by Newton's method.

    Raises `ValueError` where a leg is too short.
    """
    wanted = turn.inv().apply(feet - position)
    for _ in range(20):
        seen = kinematics(guess, list(kinematics.feet))
        gap = np.concatenate([w - s.position for w, s in zip(wanted, seen, strict=True)])
        if np.abs(gap).max() < 1e-12:
            return guess
        guess = guess + np.linalg.lstsq(np.vstack([s.moving for s in seen]), gap, rcond=None)[0]
    raise ValueError(f"feet are out of reach by {np.abs(gap).max():.3g} m")


def squared_error(estimator: BaseEstimator, estimate: Estimate, found: Log) -> tuple[float, int]:
    """NEES of an estimate at the end of a log, with its degrees of freedom, see `nees`.

    Of one that moves in a plane, that of the errors in the plane: across it, its feet do not creep.
    """
    space = estimator.base.space(estimate.mode)
    error = space.difference(estimate.mean, found.state(len(found.times) - 1))
    rows = np.arange(space.ndx)
    if found.motion.in_plane:
        turns = (rows < 3) | ((rows >= 9) & (rows < 12))
        rows = rows[(rows % 3 == 1) == turns]
    part = np.ix_(rows, rows)
    own = replace(estimate, mean=np.zeros(len(rows)), covariance=estimate.covariance[part])
    return nees(VectorSpace(len(rows)), own, error[rows])


def start(estimator: BaseEstimator, found: Log, seed: int) -> Estimate:
    """The truth at the start with an error of the covariance that the settings claim."""
    rng, s = np.random.default_rng(seed), estimator.deviations(estimator.record(found.readings))
    key = (OPEN,) * len(estimator.base.feet)
    space = estimator.base.space(key)
    spread = np.repeat([s.tilt, s.position, s.velocity, s.gyroscope, s.accelerometer], 3)
    error = spread * rng.normal(size=15)
    mean = space.integrate(found.state(0)[:16], error)
    estimate = Estimate(key, float(found.times[0]), mean, np.diag(spread**2))
    u = estimator.record(found.readings).input(0.0)
    assert u is not None
    for foot, stands in zip(estimator.base.feet, found.standing[0], strict=True):
        if stands:
            estimate = estimator.touched(estimate, foot, u)
    return estimate


def estimator_of(name: str) -> BaseEstimator:
    """The estimator of a robot, with stamps as they are."""
    return replace(settings(name), uniform_clock=False).build(robot(name))


def over_states(kept: CreepFilter, record: Record, initial: Estimate) -> list[CreepState]:
    """Return the states of a filter after each sample of a record, with what it remembers.

    Args:
        kept: The filter.
        record: Record from the time of the estimate on.
        initial: Estimate at the first sample.
    """
    states, state = list[CreepState](), kept.start(initial)
    for sample in record.samples():
        if sample.time >= initial.time:
            state = filter_sample(state, record, sample, kept.predict, kept.update)
            states.append(state)
    return states
