"""The record of a wiring mistake, and the names of the channels that can have one."""

from __future__ import annotations

from dataclasses import dataclass

GYROSCOPE, ACCELEROMETER = "gyroscope", "accelerometer"
INERTIAL, ANGLES, FORCES = "inertial sensor", "joint angles", "forces"


@dataclass(frozen=True)
class WiringFault:
    """A mistake in the wiring or description of a channel.

    Attributes:
        channel: Channel that is wrong.
        cause: What is wrong, as the end of a sentence about the channel.
        remedy: What to change.
        evidence: The numbers that show it.
    """

    channel: str
    cause: str
    remedy: str
    evidence: str

    def __str__(self) -> str:
        """Return the fault as one sentence."""
        return f"{self.channel} {self.cause}: {self.remedy} ({self.evidence})"
