"""What the modes of contacts mean for the equations: constrained rows and force directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import UnknownNameError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.constrained.tolerances import NO_DIRECTION
from hybridctl.mechanics.contact_law.law import OPEN, SLIP, SLIPS, STICK, Modes


@dataclass(frozen=True)
class Sliding:
    """A contact that slides: its place among the closed ones, its tangent rows, its friction.

    `sign` of the velocity where it slides along one direction, 0 in a surface.
    """

    contact: int
    rows: Indices
    friction: float
    sign: float


@dataclass(frozen=True)
class Friction:
    """Static and kinetic coefficients of the closed contacts of a phase, (k,) each."""

    static: Array
    kinetic: Array


class ClosedRows:
    """The rows of the contacts that one mode closes, and which of them it holds.

    tangents: for each of all c contacts its rows among all rows.

    `closed` are the closed contacts, `all_rows` (r,) their rows among all: normals, then tangents.
    What follows counts rows within these: `tangents` of each closed contact, `owner` (r,) of each
    row, and `constrained`, all normals and the tangents of sticking contacts; each of these has a
    multiplier, and `held_rows` are the same among all. `held` are the sticking contacts, by their
    place among the closed ones, and `tied` those of the tangents that stick. `whole`: whether all
    contacts are closed. `slides` (k,): which of the closed ones do.
    """

    def __init__(self, tangents: Sequence[Indices], modes: Modes) -> None:
        self.modes = modes
        self.closed = tuple(i for i, mode in enumerate(modes) if mode != OPEN)
        self.places = list(self.closed)
        k = len(self.closed)
        self.whole = k == len(modes)
        sizes = [len(tangents[i]) for i in self.closed]
        self.all_rows: Indices = np.array(
            [*self.closed, *(row for i in self.closed for row in tangents[i])], dtype=np.intp
        )
        ends = np.cumsum([k, *sizes])
        self.tangents = tuple(
            np.arange(end - m, end) for m, end in zip(sizes, ends[1:], strict=True)
        )
        self.owner: Indices = np.concatenate((np.arange(k), np.repeat(np.arange(k), sizes)))
        self.held = tuple(j for j, i in enumerate(self.closed) if modes[i] == STICK)
        self.sticking = np.array([r for j in self.held for r in self.tangents[j]], dtype=np.intp)
        self.constrained: Indices = np.concatenate((np.arange(k), self.sticking))
        self.held_rows: Indices = self.all_rows[self.constrained]
        self.tied = self.owner[self.sticking]
        self.slides = np.array([modes[i] in SLIPS for i in self.closed], dtype=np.bool_)


class ContactPhase(ClosedRows):
    """The closed contacts of one mode: which rows are constrained, which forces act.

    Args:
        tangents: For each of all c contacts its rows among all rows.
        friction: Kinetic coefficients of friction (c,).
        static: Static coefficients of friction (c,).
        modes: Modes of all contacts.
        bodies: The pair of bodies that each of all contacts is between.
        loads: Constant forces that press contacts, (c,) in N or N m; 0 for all others.

    Attributes:
        pairs: Bodies of the closed contacts, (k,).
        redundant: Whether two bodies have more constraints than their six relative motions, which
            then hold each other.
        cones: Of each closed contact the numbers of the multipliers of its normal force and, where
            it sticks, of its friction.
        pressed: Contacts with a load, by their place among the closed ones. Their normal rows
            constrain no motion.
        pressed_contacts: The same contacts, by their place among all.
        loads: Loads along the rows of closed contacts, (r,); zero but for those normal rows.
        solid: Constrained rows but for those normal rows.
        solid_rows: The same, counted among the rows of all contacts.
        solid_contacts: Closed contacts without a load.
    """

    def __init__(
        self,
        tangents: Sequence[Indices],
        friction: Array,
        static: Array,
        modes: Modes,
        bodies: Sequence[tuple[int, int]],
        loads: Array,
    ) -> None:
        super().__init__(tangents, modes)
        pressed = loads[self.places] > 0.0
        self.pressed: Indices = np.flatnonzero(pressed)
        self.pressed_contacts: Indices = np.array(self.places, dtype=np.intp)[self.pressed]
        self.loads: Array = np.zeros(len(self.owner))
        self.loads[self.pressed] = loads[self.pressed_contacts]
        self.solid = np.delete(self.constrained, self.pressed)
        self.solid_rows: Indices = self.all_rows[self.solid]
        self.solid_contacts = [i for i in self.places if not loads[i] > 0.0]
        self.friction = Friction(static[self.places], friction[self.places])
        self.sliding = tuple(
            Sliding(j, self.tangents[j], float(friction[i]), SLIPS[modes[i]])
            for j, i in enumerate(self.closed)
            if modes[i] in SLIPS
        )
        self.spatial = tuple(slide for slide in self.sliding if slide.sign == 0.0)
        self.pairs = tuple(bodies[i] for i in self.closed)
        between = Counter(bodies[self.closed[k]] for k in self.owner[self.constrained])
        self.redundant = max(between.values(), default=0) > 6
        self._in_space = all(len(rows) == 2 for rows in self.tangents)
        places = np.arange(len(self.closed), len(self.constrained))
        self.cones = tuple((j, places[self.tied == j].tolist()) for j in range(len(self.closed)))
        self.identity = not self.sliding and len(self.constrained) == len(self.owner)
        self._mix: Array = np.eye(len(self.owner))[:, self.constrained]
        for slide in self.sliding:
            if slide.sign:
                self._mix[slide.rows, slide.contact] = -slide.friction * slide.sign

    def mix(self, directions: dict[int, Array]) -> Array:
        """The matrix E (r, m) of forces along all rows by multipliers, at these directions."""
        if not directions:
            return self._mix
        mix: Array = self._mix.copy()
        for slide in self.spatial:
            mix[slide.rows, slide.contact] = -slide.friction * directions[slide.contact]
        return mix

    def turning(self, directions: dict[int, Array], speeds: Array, multipliers: Array) -> Array:
        """The matrix K (r, r): how friction in a surface turns with the sliding velocity.

        f_t changes by -mu f_n / |v_t| (I - s s') dv_t, not at all at a standstill, where there is
        no s.
        """
        result = np.zeros((len(self.owner), len(self.owner)))
        if not self.spatial:
            return result
        contacts = [slide.contact for slide in self.spatial]
        rows = np.array([slide.rows for slide in self.spatial])
        friction = np.array([slide.friction for slide in self.spatial])
        s = np.array([directions[contact] for contact in contacts])
        speed = np.hypot(*speeds[rows].T)
        moving = speed > NO_DIRECTION
        ratio = friction * multipliers[contacts] * moving / np.where(moving, speed, 1.0)
        across = np.eye(2) - s[:, :, None] * s[:, None]
        result[rows[:, :, None], rows[:, None]] = ratio[:, None, None] * across
        return result

    def spread(self, rows: Array) -> tuple[Array, Array]:
        """Values of the rows (r, ...) as normal (k, ...) and tangential (k, 2, ...) parts."""
        k = len(self.closed)
        if self._in_space:
            return rows[:k], rows[k:].reshape(k, 2, *rows.shape[1:])
        tangential = np.zeros((k, 2, *rows.shape[1:]))
        for j, tangents in enumerate(self.tangents):
            tangential[j, : len(tangents)] = rows[tangents]
        return rows[:k], tangential

    def among_all(self, closed: Array, total: int) -> Array:
        """Values of the closed contacts (k, ...) among all `total` contacts, zero where open."""
        result = np.zeros((total, *closed.shape[1:]))
        result[self.places] = closed
        return result

    def among_closed(self, rows: Array) -> Array:
        """A copy of values of all rows (., ...) at those of the closed contacts (r, ...)."""
        return rows.copy() if self.whole else rows[self.all_rows]

    def along_rows(self, multipliers: Array) -> Array:
        """Values of the multipliers (m, ...) along the rows (r, ...), zero for other rows."""
        if self.identity:
            return multipliers
        result = np.zeros((len(self.owner), *multipliers.shape[1:]))
        result[self.constrained] = multipliers
        return result

    def scattered(self, rows: Array, total: int) -> Array:
        """Values of the rows (r, ...) among all `total` rows, zero elsewhere."""
        if self.whole:
            return rows
        result = np.zeros((total, *rows.shape[1:]))
        result[self.all_rows] = rows
        return result


def load_weights(normal: Any, least: Any, softplus: Callable[[Any], Any]) -> Any:
    """The weights l (1 + log(1 + e^(n / l - 1))) of friction by normal forces n, see `equations`.

    Of numbers or of expressions, which have functions log(1 + e^x) of their own: n itself if it is
    well above l, `least`, and l if it pulls.
    """
    return least * (1.0 + softplus(normal / least - 1.0))


def contact_modes(key: ModeKey) -> Modes:
    """A mode key as the modes of contacts; `UnknownNameError` for one that is no tuple."""
    if not isinstance(key, tuple):
        raise UnknownNameError(f"mode {key!r} is no tuple of contact modes")
    return key


def default_slip(dimension: int, velocity: Sequence[float] | Array) -> str:
    """The name of the mode in which a contact slides with this velocity."""
    if dimension == 2:
        return SLIP
    return next(name for name, sign in SLIPS.items() if sign * velocity[0] > 0.0)
