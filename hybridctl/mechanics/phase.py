r"""What the mode of each contact means for the equations: constrained rows and force directions.

A mode is one of "open" and, for a contact without friction, "closed"; for one with friction
"stick" and, where the contact can slide along one direction, "slip+" and "slip-" with the sign
of its sliding velocity, or "slip" where it slides in a surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array, Indices
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.coulomb.law import OPEN, SLIP, SLIPS, STICK, Modes
from hybridctl.mechanics.geometry import ContactSet
from hybridctl.mechanics.robot import Robot

STANDSTILL = 2e-8
STOPPED = 1e-9
NO_DIRECTION = 1e-12


@dataclass(frozen=True)
class Sliding:
    """A contact that slides: its place among the closed ones, its tangent rows, its friction.

    `sign` of the velocity where it slides along one direction, 0 in a surface.
    """

    contact: int
    rows: Indices
    friction: float
    sign: float


class Phase:
    """The closed contacts of one mode: which rows are constrained, which forces act.

    Rows are those of `contacts`, the set of the closed ones. `constrained` are all normals and
    the tangents of sticking contacts; each has a multiplier.
    """

    def __init__(self, robot: Robot, contacts: Sequence[Contact], modes: Modes) -> None:
        self.modes = modes
        self.closed = tuple(i for i, mode in enumerate(modes) if mode != OPEN)
        self.contacts = ContactSet(robot, [contacts[i] for i in self.closed])
        tangents = self.contacts.tangents
        held = [k for k, i in enumerate(self.closed) if modes[i] == STICK]
        self.sticking = np.array([row for k in held for row in tangents[k]], dtype=np.intp)
        self.normals = np.arange(len(self.closed))
        self.constrained = np.concatenate((self.normals, self.sticking))
        self.sliding = tuple(
            Sliding(k, tangents[k], contacts[i].friction, SLIPS[modes[i]])
            for k, i in enumerate(self.closed)
            if modes[i] in SLIPS
        )
        self.identity = not self.sliding and len(self.constrained) == len(self.contacts.owner)
        self._mix: Array = np.eye(len(self.contacts.owner))[:, self.constrained]
        for slide in self.sliding:
            if slide.sign:
                self._mix[slide.rows, slide.contact] = -slide.friction * slide.sign

    def mix(self, directions: dict[int, Array]) -> Array:
        """E (r, m): forces along all rows from the multipliers, for given sliding directions."""
        if not directions:
            return self._mix
        mix: Array = self._mix.copy()
        for slide in self.sliding:
            if not slide.sign:
                mix[slide.rows, slide.contact] = -slide.friction * directions[slide.contact]
        return mix

    def turning(
        self,
        directions: dict[int, Array],
        speeds: Array,
        multipliers: Array,
        slowest: float = NO_DIRECTION,
    ) -> Array:
        """K (r, r): how friction in a surface turns with the sliding velocity.

        f_t changes by -mu f_n / max(|v_t|, slowest) (I - s s') dv_t, not at all at a standstill,
        where there is no s.
        """
        size = len(self.contacts.owner)
        result = np.zeros((size, size))
        for slide in self.sliding:
            speed = float(np.linalg.norm(speeds[slide.rows]))
            if slide.sign == 0.0 and speed > NO_DIRECTION:
                s = directions[slide.contact]
                ratio = slide.friction * multipliers[slide.contact] / max(speed, slowest)
                result[np.ix_(slide.rows, slide.rows)] = ratio * (np.eye(2) - np.outer(s, s))
        return result

    @property
    def spatial(self) -> list[Sliding]:
        """The contacts that slide in a surface."""
        return [slide for slide in self.sliding if slide.sign == 0.0]

    def spread(self, rows: Array) -> tuple[Array, Array]:
        """Values of all rows (r, ...) as normal (k, ...) and tangential (k, 2, ...) parts."""
        k = len(self.closed)
        tangential = np.zeros((k, 2, *rows.shape[1:]))
        for i, tangents in enumerate(self.contacts.tangents):
            tangential[i, : len(tangents)] = rows[tangents]
        return rows[:k], tangential


def default_slip(dimension: int, velocity: Array) -> str:
    """The name of the mode in which a contact slides with this velocity."""
    if dimension == 2:
        return SLIP
    return next(name for name, sign in SLIPS.items() if sign * velocity[0] > 0.0)
