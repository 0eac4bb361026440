"""Contact points: a point of one body that may touch a surface of another, or of the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridctl.checks import number, vector
from hybridctl.errors import InputError
from hybridctl.mechanics.surfaces import Surface

WORLD = "universe"


@dataclass(frozen=True)
class Contact:
    """A point fixed in `frame`, at `offset` (m), against `surface`, which is fixed in `body`.

    frame and body are frame names of the robot; `body` "universe" is the world. `restitution`
    is Newton's coefficient e in [0, 1]: 0 plastic, 1 elastic.
    """

    name: str
    frame: str
    surface: Surface
    body: str = WORLD
    offset: Any = (0.0, 0.0, 0.0)
    restitution: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a contact must have a name")
        object.__setattr__(self, "offset", vector("offset", self.offset, 3))
        number("restitution", self.restitution, at_least=0.0, at_most=1.0)
