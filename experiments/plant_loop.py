"""The loop of a controller and a plant that is stepped from outside, by either engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.plant import Plant, Sample
from hybridctl.interop.drake import DrakeModel, DrakePlant, HuntCrossley
from hybridctl.interop.engine import EnginePlant
from hybridctl.interop.mujoco import (
    LONGEST_STEP,
    STEPS_PER_TIME_CONSTANT,
    Compliance,
    MujocoModel,
    MujocoPlant,
)
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.multibody.robot import Robot

Engine = Literal["mujoco", "drake"]


def make_engine_plant(
    engine: Engine,
    robot: Robot,
    contacts: Sequence[Contact],
    time_constant: float,
    period: float,
    q: Array,
) -> EnginePlant:
    """Return the plant of a robot on an engine.

    An impact of the mean effective mass at q lasts as long on both engines, but for damping.

    Args:
        engine: Name of the engine.
        robot: The robot.
        contacts: Its contacts.
        time_constant: Time constant of the contacts, s; impacts last twice as long.
        period: Time between samples, s.
        q: Configuration (nq,) of a typical impact.
    """
    soft = Compliance(time_constant)
    if engine == "mujoco":
        return MujocoPlant(MujocoModel(robot, tuple(contacts), soft), period)
    dynamics = ContactDynamics(robot, contacts)
    rows = dynamics.gap_jacobian(q)
    response = rows @ np.linalg.solve(robot.mass_matrix(q), rows.T)
    give = HuntCrossley.of(soft.duration, float((1.0 / response.diagonal()).mean()))
    longest = min(LONGEST_STEP, time_constant / STEPS_PER_TIME_CONSTANT)
    step = period / math.ceil(period / longest - 1e-9)
    return DrakePlant(DrakeModel(robot, tuple(contacts), give, step), period)


def driven(
    plant: Plant, time: float, state: Array, control: Callable[[Sample], Array]
) -> Iterator[Sample]:
    """Step a plant under a control, without end.

    Args:
        plant: The plant.
        time: Time of the start, s.
        state: State at the start.
        control: Function of a sample that returns the input held until the next one. It is called
            when that sample is asked for.

    Yields:
        The samples, from the start on.
    """
    sample = plant.reset(time, state)
    while True:
        yield sample
        sample = plant.step(control(sample))
