"""The states of a contact, of which mode keys of contact systems are made: one for each contact."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias


class ContactState(str, Enum):
    """What a contact does: it is open, closed, or sticks, or slips one way.

    A state equals its name as text, prints like it, and is stored like it: mode keys may be written
    with either. CLOSED: without friction; with it, STICK, SLIP in a surface, and where it can slide
    along one direction SLIP_PLUS and SLIP_MINUS, by the sign of its velocity.
    """

    OPEN = "open"
    CLOSED = "closed"
    STICK = "stick"
    SLIP = "slip"
    SLIP_PLUS = "slip+"
    SLIP_MINUS = "slip-"

    __str__ = str.__str__
    __repr__ = str.__repr__


OPEN, CLOSED, STICK, SLIP, SLIP_PLUS, SLIP_MINUS = ContactState
SLIPS: dict[str, float] = {SLIP: 0.0, SLIP_PLUS: 1.0, SLIP_MINUS: -1.0}

Modes: TypeAlias = tuple[str, ...]
