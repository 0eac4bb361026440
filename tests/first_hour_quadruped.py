"""What the owner of a quadruped writes beside its MJCF: the robot, and its model for filters."""

import numpy as np

from hybridctl.estimation.filter_model import FilterModel, LogChannel, Sensor, surface_noise
from hybridctl.estimation.measurement import base_pose, encoders
from hybridctl.estimation.noise import Noise
from hybridctl.mechanics import Robot, RobotStateSpace, contact_system, contacts_from

LEGS = {"FL": (0.2, 0.12), "FR": (0.2, -0.12), "RL": (-0.2, 0.12), "RR": (-0.2, -0.12)}
JOINTS = [f"{leg}_{joint}" for leg in LEGS for joint in ("hip", "knee")]


def mjcf():
    """Return a trunk of 6 kg on four legs of two joints each, with round feet and motors."""
    legs = "".join(
        f"""<body name="{leg}_thigh" pos="{x} {y} 0">
<joint name="{leg}_hip" axis="0 1 0" range="-90 90" damping="0.1" armature="0.01"/>
<geom type="capsule" size="0.015" fromto="0 0 0 0 0 -0.2" mass="0.5" contype="0" conaffinity="0"/>
<body name="{leg}_foot" pos="0 0 -0.2">
<joint name="{leg}_knee" axis="0 1 0" range="-150 0" damping="0.1" armature="0.01"/>
<geom type="capsule" size="0.01" fromto="0 0 0 0 0 -0.2" mass="0.2" contype="0" conaffinity="0"/>
<geom type="sphere" size="0.02" pos="0 0 -0.2" mass="0.05"/></body></body>"""
        for leg, (x, y) in LEGS.items()
    )
    motors = "".join(f'<motor joint="{name}" ctrlrange="-25 25"/>' for name in JOINTS)
    return f"""<mujoco><worldbody><geom type="plane" size="5 5 1"/>
<body name="trunk" pos="0 0 0.4"><freejoint name="base"/>
<geom type="box" size="0.25 0.1 0.05" mass="6" contype="0" conaffinity="0"/>{legs}</body></worldbody>
<actuator>{motors}</actuator></mujoco>"""


def build():
    """Return the robot with its contacts."""
    robot = Robot.from_mjcf(mjcf())
    return contact_system(robot, contacts_from(robot, friction=0.8))


def model():
    """Return the model of a filter with motion capture, encoders and torques."""
    system = build()
    space = RobotStateSpace(system.robot)
    return FilterModel(
        system=system,
        open=("open",) * 4,
        sensors=[
            Sensor(
                base_pose("mocap", space, 1e-6 * np.eye(6)),
                (
                    LogChannel("position", ("x", "y", "z"), unit="m"),
                    LogChannel("attitude", ("qx", "qy", "qz", "qw"), quaternion=True),
                ),
            ),
            Sensor(
                encoders("joints", space, JOINTS, 1e-6 * np.eye(8)),
                (LogChannel("joints", tuple(JOINTS), unit="rad"),),
            ),
        ],
        process_noise=Noise(0.01 * np.eye(8), through_input=True),
        guard_noise=surface_noise(system.contacts, 1e-3),
        inputs=LogChannel("torque", tuple(JOINTS), unit="Nm"),
    )
