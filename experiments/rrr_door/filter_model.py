"""A filter on joint encoders and torques estimates an arm that pushes a door open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from hybridctl.experiments.filter_models import impulse_noise
from hybridctl.experiments.rrr_door import tracking as experiment
from hybridctl.experiments.rrr_door.reference import FINAL_TIME, IMPACT_TIME, OPEN
from hybridctl.robots.rrr_door import CORNERS, JOINTS, contacts, system

from hybridctl import Noise, ReferenceSpreading
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Meta, NotNegative, Positive
from hybridctl.estimation import ContactSignal, FilterModel
from hybridctl.estimation.filter_model import (
    FilterSettings,
    LogChannel,
    Scenario,
    Sensor,
    surface_noise,
)
from hybridctl.estimation.measurement import coordinates

# Gains are softer than the experiment's, whose feedback is continuous: here an input is held for
# 10 ms.
TRACKING = experiment.Config(
    position_gains_ante=(8.0, 8.0, 0.2),
    velocity_gains_ante=(8.0, 3.0, 0.2),
    position_gains_post=(20.0, 20.0, 0.0),
    velocity_gains_post=(8.0, 4.0, 0.0),
)


@dataclass(frozen=True)
class DoorSettings(FilterSettings):
    """The door experiment, tracked with reference spreading by torques with a zero-order hold.

    Attributes:
        duration: Duration of a synthetic log, s.
        particles: Number of particles of the filters that have some.
        begin: Begin of the log, s after the start of the reference.
        angle_noise: Standard deviation of the encoders, rad.
        torque_noise: Noise of the torques of the arm's joints, N m sqrt(s).
        reset_noise: Standard deviation of the impulses of the arm's joints, N m s.
        guard_noise: Standard deviation of the place of the door's face, m.
        force: Whether synthetic logs have the normal forces of the corners. They are used wherever
            a log has them.
        force_on: Force from which on a corner counts as closed, N.
        force_off: Force below which a corner counts as open, N.
        force_noise: Standard deviation of the forces in synthetic logs, N.
    """

    duration: float = 2.0
    particles: int = 100
    begin: Annotated[float, Meta(ge=0.0, le=0.9 * IMPACT_TIME)] = 0.0
    angle_noise: Positive = 5e-4
    torque_noise: NotNegative = 1e-2
    reset_noise: NotNegative = 0.0
    guard_noise: NotNegative = 0.0
    force: bool = False
    force_on: float = 3.0
    force_off: float = 1.0
    force_noise: NotNegative = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.begin + self.duration > FINAL_TIME:
            raise InputError(
                f"begin + duration must be at most {FINAL_TIME} s, where the reference ends, got "
                f"{self.begin + self.duration:g} s"
            )


def door_model(settings: DoorSettings) -> FilterModel:
    """Return the filter model: state of angles and rates (8,), measured angles, torques (3,)."""
    angles = LogChannel("joints", JOINTS, "rad")
    encoders = coordinates("joints", range(4), settings.angle_noise**2 * np.eye(4))
    impulse = settings.reset_noise**2 * np.eye(3)
    return FilterModel(
        system=system(),
        open=OPEN,
        sensors=(Sensor(encoders, (angles,)),),
        process_noise=Noise(
            settings.torque_noise**2 * np.eye(3), True, "torque_noise", settings.compliance
        ),
        reset_noise=impulse_noise(impulse, settings.compliance),
        guard_noise=surface_noise(contacts(), settings.guard_noise),
        speeds=np.full(4, 5.0),
        states=(*JOINTS, *(f"{joint} rate" for joint in JOINTS)),
        scenario=lambda: _make_scenario(settings),
        shown_names=(
            *(f"{joint} [rad]" for joint in JOINTS),
            *(f"{joint} [rad/s]" for joint in JOINTS),
        ),
        inputs=LogChannel("torque", JOINTS[:3], "Nm"),
        signals=_make_signals(settings),
    )


def _make_scenario(settings: DoorSettings) -> Scenario:
    """Return the experiment from `begin` on, with an arm that starts beside the reference."""
    _, _, reference = experiment.scene(TRACKING)
    policy = ReferenceSpreading(reference, experiment.schedule(TRACKING, reference))
    spread = np.array([0.01, 0.01, 0.01, 0.0, 0.02, 0.02, 0.02, 0.0])
    return Scenario(reference.nominal(settings.begin), spread, settings.begin, policy)


def _make_signals(settings: DoorSettings) -> Mapping[LogChannel, ContactSignal]:
    on, off = settings.force_on, settings.force_off
    return {
        LogChannel(f"force {corner}", ("normal",), "N"): ContactSignal(
            f"force {corner}", on, off, f"{corner} closes", f"{corner} opens"
        )
        for corner in CORNERS
    }
