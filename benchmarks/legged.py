"""What a sample costs the live filter of a legged base: median, tail, and beside bare calls.

A quadruped stands, then lifts its feet by turns as in a trot, with angles, rates and forces at
1 kHz. They fit no motion, which costs the same. The bare calls are what no such filter does
without: the Jacobians of the joints, and the products with the covariance of a prediction and a
correction. They run between the samples, so that a machine with other work slows both.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from time import thread_time

import numpy as np
import pinocchio as pin
from hybridctl.robots import public
from rich.table import Table

from hybridctl.app.report import make_table
from hybridctl.base.checks import Array
from hybridctl.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.live import LiveSample
from hybridctl.mechanics.multibody.robot import Robot

NAMES = "solo12", "go1"
RATE, OPENING, STANDS = 1000.0, 0.5, 0.3  # Hz, s, s
STEP, LIFT = 0.2, 0.05  # s that a foot stands or swings; rad by which its joints move then
COLUMNS = ["four feet", "median us", "99 %", "99.9 %", "worst", "bare us", "99.9 %", "multiple"]


def samples_table(quick: bool) -> Table:
    """Processor time of a live step."""
    rows = []
    for name in NAMES:
        ours, bare = measure_samples(name, 1.0 if quick else 6.0)
        tail = np.quantile(ours, [0.5, 0.99, 0.999, 1.0])
        least, late = np.quantile(bare, [0.5, 0.999])  # their tail is that of the machine
        numbers = (f"{v:.0f}" for v in (*tail, least, late))
        rows.append((name, *numbers, f"{tail[0] / least:.1f}"))
    return make_table(f"One sample of a legged base live, at {RATE:g} Hz", COLUMNS, rows)


def measure_samples(name: str, duration: float) -> tuple[Array, Array]:
    """Return processor times (n,) of samples and of the bare calls between them, us.

    Args:
        name: Name of a public quadruped.
        duration: Length of the log, s.
    """
    robot = Robot.from_urdf(public.urdf(name))
    feet = tuple(Foot(tip) for tip in public.MODELS[name].tips)
    settings = BaseSettings(robot.link_names[0], feet, opening=OPENING)
    estimator = settings.build(robot)
    live, bare = estimator.live(), bare_calls(name)
    ours, theirs = list[float](), list[float]()
    gc.collect()
    gc.freeze()
    for sample in trot(estimator, name, duration):
        began = thread_time()
        pose = live.step(sample)
        middle = thread_time()
        bare()
        if pose is not None:
            ours.append(1e6 * (middle - began))
            theirs.append(1e6 * (thread_time() - middle))
    gc.unfreeze()
    return np.array(ours), np.array(theirs)


def trot(estimator: BaseEstimator, name: str, duration: float) -> Iterator[LiveSample]:
    """Yield the samples of a robot that stands and then lifts its feet by turns."""
    rng, feet = np.random.default_rng(0), estimator.base.feet
    joints = estimator.joints
    posture = np.array([public.MODELS[name].posture.get(joint, 0.0) for joint in joints])
    for time in (np.arange(round(duration * RATE)) / RATE).tolist():
        phase = (time - STANDS) / STEP if time > STANDS else -1.0
        swing = LIFT * np.sin(np.pi * max(phase, 0.0))
        angles = posture + swing * np.where(np.arange(len(joints)) % 3, 1.0, 0.2)
        inertial = np.concatenate([np.zeros(3), [0.0, 0.0, 9.81]]) + 1e-2 * rng.normal(size=6)
        pair = int(phase) % 2
        stands = [phase < 0.0 or k in ((0, 3), (1, 2))[pair] for k in range(len(feet))]
        share = estimator.weight / max(sum(stands), 1)
        loads = {foot: share if s else 0.0 for foot, s in zip(feet, stands, strict=True)}
        noise = 1e-3 * rng.normal(size=len(joints))
        yield LiveSample(time, inertial[:3], inertial[3:], angles + noise, loads)


def bare_calls(name: str) -> Callable[[], None]:
    """Return the calls that a sample of a filter with four point feet cannot do without."""
    model = pin.buildModelFromXML(public.urdf(name))
    data, q, n = model.createData(), pin.neutral(model), 27
    rng = np.random.default_rng(0)
    phi, p = np.eye(n) + 1e-3 * rng.normal(size=(n, n)), np.eye(n)
    h, gain = rng.normal(size=(12, n)), 1e-2 * rng.normal(size=(n, 12))
    left, noise = np.eye(n) - gain.dot(h), np.eye(12)

    def calls() -> None:
        pin.computeJointJacobians(model, data, q)
        predicted = phi.dot(p).dot(phi.T)
        np.linalg.cholesky(h.dot(predicted).dot(h.T) + noise)
        left.dot(predicted).dot(left.T) + gain.dot(noise).dot(gain.T)

    return calls
