"""Noise of the sensors of a legged robot, and of feet that creep or slip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.settings import NotNegative, Positive, check_settings


@dataclass(frozen=True)
class BaseNoise:
    """Standard deviations; densities are per square root of Hz.

    gyroscope (rad/s/sqrt(Hz)) and accelerometer (m/s^2/sqrt(Hz)): of their white noise.
    gyroscope_walk (rad/s^2/sqrt(Hz)), accelerometer_walk (m/s^3/sqrt(Hz)): of their biases.
    foot (m/s/sqrt(Hz)), foot_turn (rad/s/sqrt(Hz)): of feet in contact, which creep and slip.
    encoder (rad): of each angle in each sample. measured (m), measured_turn (rad): of each pose of
    a foot besides, such as links that bend. ground (m): of the height of the ground under a foot.
    held_rate (rad/s), held_force (m/s^2): by how much rates and forces change while samples are
    missing; the change is taken to be white, as wide as the gap.
    """

    gyroscope: NotNegative = 5e-3
    accelerometer: NotNegative = 5e-2
    gyroscope_walk: NotNegative = 1e-4
    accelerometer_walk: NotNegative = 1e-3
    foot: NotNegative = 5e-3
    foot_turn: NotNegative = 0.15
    encoder: Positive = 1e-3
    measured: Positive = 1e-3
    measured_turn: Positive = 5e-3
    ground: Positive = 1e-2
    held_rate: NotNegative = 0.3
    held_force: NotNegative = 1.0

    def __post_init__(self) -> None:
        check_settings(self)

    def core(self, gap: float) -> Array:
        """Variances (15,) per s of base and biases; gap: s without a sample in this step."""
        return np.repeat(
            [
                self.gyroscope**2 + self.held_rate**2 * gap,
                0.0,
                self.accelerometer**2 + self.held_force**2 * gap,
                self.gyroscope_walk**2,
                self.accelerometer_walk**2,
            ],
            3,
        )
