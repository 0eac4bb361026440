"""Draws the base of a recorded Go1 beside motion capture: python docs/go1_base.py RECORDING.npz.

The robot gets up, trots a square of 3 m with one full turn, and lies down. The filter runs with its
defaults. Motion capture has no stamps, so that its path is drawn, and the standing places before
and after the walk are compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from hybridctl.robots import public
from matplotlib.patches import Ellipse
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

from hybridctl.base.time_series import Series
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.readings import Readings
from hybridctl.mechanics.multibody.robot import Robot

HERE = Path(__file__).parent
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
WEIGHT = 12.0 * 9.81  # N, of the robot: forces are recorded as raw numbers
STANDS = 1.2  # s from the start, when it has got up
BEFORE, AFTER = slice(180, 240), slice(-100, None)  # rows of motion capture while it stands, lies


def main(recording: Path) -> None:
    """Filter the recording and draw its paths, seen from above and from the side."""
    data = np.load(recording)
    robot = Robot.from_urdf(public.urdf("go1"))
    estimator = BaseSettings("trunk", tuple(map(Foot, FEET))).build(robot)
    names = data["joint_names"].tolist()
    forces = np.clip(data["foot_force_raw"] + 6.0, 0.0, None) * WEIGHT / (WEIGHT + 24.0)
    times = data["time"]
    readings = Readings(
        Series(times, np.hstack([data["gyroscope"], data["accelerometer"]])),
        Series(times, data["joints"][:, [names.index(joint) for joint in estimator.joints]]),
        {foot: Series(times, forces[:, k : k + 1]) for k, foot in enumerate(FEET)},
    )
    steps = estimator.run(readings).steps
    roots = [estimator.root(step.estimate) for step in steps if step.channel == "angles"]
    roots = [root for root in roots if root.time > times[0] + STANDS]
    back = Rotation.from_euler("z", -heading(roots[0].orientation))
    path = back.apply(np.array([root.position for root in roots]) - roots[0].position)
    captured = data["mocap_position"] - data["mocap_position"][BEFORE].mean(axis=0)
    turns = Rotation.from_quat(data["mocap_quat_xyzw"][BEFORE]).mean()
    captured = Rotation.from_euler("z", -heading(turns.as_quat())).apply(captured)
    captured = captured[BEFORE.stop :]
    turned = back.as_matrix()
    claimed = turned @ roots[-1].covariance[3:6, 3:6] @ turned.T

    figure, (above, side) = plt.subplots(
        1, 2, figsize=(9.0, 4.2), width_ratios=(1.0, 1.25), layout="constrained"
    )
    for axes, second, label in ((above, 1, "y [m]"), (side, 2, "height [m]")):
        axes.grid(color="0.9")
        axes.set_ylabel(label)
        if second == 1:
            axes.plot(*captured[:, :2].T, color="0.6", lw=2.5, label="motion capture")
            axes.plot(*path[:, :2].T, color="C0", lw=1.2, label="estimate, defaults")
    above.add_patch(outline_region(path[-1, :2], claimed[:2, :2]))
    above.plot(*captured[AFTER].mean(axis=0)[:2], "o", color="0.4", label="end, captured")
    above.plot(*path[-1, :2], "o", color="C0", label="end, with 99 % region")
    above.set(xlabel="x [m]", aspect="equal")
    above.legend(fontsize=8, loc="center")
    elapsed = np.array([root.time for root in roots]) - times[0]
    spread = 2.0 * np.sqrt([root.covariance[5, 5] for root in roots])
    height = path[:, 2]
    band = {"color": "C0", "alpha": 0.2, "label": "two claimed deviations"}
    side.fill_between(elapsed, height - spread, height + spread, **band)
    side.plot(elapsed, height, color="C0", lw=1.2)
    side.plot(elapsed[-1], captured[AFTER].mean(axis=0)[2], "o", color="0.4")
    side.set(xlabel="time [s]")
    side.legend(fontsize=8, loc="lower left")
    figure.savefig(HERE / "go1_base.png", dpi=100)


def heading(orientation: np.ndarray) -> float:
    """Return the yaw in rad of a quaternion (x, y, z, w)."""
    return float(Rotation.from_quat(orientation).as_euler("ZYX")[0])


def outline_region(centre: np.ndarray, covariance: np.ndarray) -> Ellipse:
    """Return the 99 % region of a place (2,) in m with a covariance (2, 2)."""
    values, axes = np.linalg.eigh(covariance)
    width, length = 2.0 * np.sqrt(chi2.ppf(0.99, 2) * values)
    angle = np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    return Ellipse(tuple(centre), width, length, angle=angle, fill=False, color="C0", lw=1.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
