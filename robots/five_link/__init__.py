"""A walker of five links with point feet in the sagittal plane: the one known as RABBIT."""

from hybridctl.robots.five_link.model import (
    CONTACTS,
    JOINTS,
    LEFT_STANCE,
    RIGHT_STANCE,
    ROTORS,
    contacts,
    exchange_legs,
    robot,
    system,
)

__all__ = [
    "CONTACTS",
    "JOINTS",
    "LEFT_STANCE",
    "RIGHT_STANCE",
    "ROTORS",
    "contacts",
    "exchange_legs",
    "robot",
    "system",
]
