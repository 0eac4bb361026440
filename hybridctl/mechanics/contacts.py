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
    is Newton's coefficient e in [0, 1]: 0 plastic, 1 elastic; an approach slower than
    `restitution_threshold` (m/s) does not rebound, so that bounces end. `friction` is Coulomb's
    kinetic coefficient, for sliding and impacts; `static_friction` the one a sticking contact holds
    to, at least as large and by default equal.
    """

    name: str
    frame: str
    surface: Surface
    body: str = WORLD
    offset: Any = (0.0, 0.0, 0.0)
    restitution: float = 0.0
    friction: float = 0.0
    static_friction: float | None = None
    restitution_threshold: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("a contact must have a name")
        object.__setattr__(self, "offset", vector("offset", self.offset, 3))
        number("restitution", self.restitution, at_least=0.0, at_most=1.0)
        number("restitution_threshold", self.restitution_threshold, at_least=0.0)
        number("friction", self.friction, at_least=0.0)
        static = self.friction if self.static_friction is None else self.static_friction
        number("static_friction", static, at_least=float(self.friction))
        object.__setattr__(self, "static_friction", float(static))

    @property
    def rough(self) -> bool:
        """Whether there is any friction."""
        return bool(self.static_friction)
