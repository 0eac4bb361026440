"""What the modes of contacts mean for the equations: constrained rows and directions of forces.

Rows are those of `ContactSet`: normals of all contacts, then their tangents. A phase counts rows
in two ways: among the rows of all contacts (names that end in `_rows`), and within the r rows of
its closed contacts, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.base.errors import UnknownNameError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.contact_law.law import OPEN, SLIP, SLIPS, STICK, Modes
from hybridctl.mechanics.modes.tolerances import NO_DIRECTION


@dataclass(frozen=True)
class Sliding:
    """A contact that slides.

    Attributes:
        contact: Its place among the closed contacts.
        rows: Its tangents, counted within the rows of closed contacts.
        friction: Kinetic coefficient of friction.
        sign: Sign of the velocity where it slides along one direction, 0 in a surface.
    """

    contact: int
    rows: Indices
    friction: float
    sign: float


@dataclass(frozen=True)
class Friction:
    """Coefficients of friction of the k closed contacts of a phase, zero for smooth ones.

    Attributes:
        static: Static coefficients (k,).
        kinetic: Kinetic coefficients (k,).
    """

    static: Array
    kinetic: Array


class ClosedRows:
    """The rows of the contacts that one mode closes, and which of them it constrains.

    Args:
        tangents: For each of all c contacts its tangents, counted among all rows.
        modes: Modes of all contacts.

    Attributes:
        modes: Modes of all contacts.
        closed: Indices of the k closed contacts among all, increasing.
        places: The same, as a list, which indexes arrays.
        all_closed: Whether all contacts are closed.
        all_rows: Rows (r,) of closed contacts among all: normals, then tangents.
        tangents: Tangents of each closed contact, counted within the r rows.
        owner: Closed contact (r,) that each row belongs to, by its place in `closed`.
        sticking: Tangents of contacts that stick, counted within the r rows.
        sticking_owner: Closed contact that each of these belongs to, by its place.
        constrained: Indices within the r rows: all normals, then the tangents of sticking contacts.
            Each of these m rows has a multiplier.
        constrained_rows: The same, counted among all rows.
        pattern: State and number of tangents of each closed contact: with the same ones, rows and
            multipliers count alike.
        is_sliding: Whether each closed contact slides, (k,).
    """

    def __init__(self, tangents: Sequence[Indices], modes: Modes) -> None:
        self.modes = modes
        self.closed = tuple(i for i, mode in enumerate(modes) if mode != OPEN)
        self.places = list(self.closed)
        k = len(self.closed)
        self.all_closed = k == len(modes)
        sizes = [len(tangents[i]) for i in self.closed]
        self.all_rows: Indices = np.array(
            [*self.closed, *(row for i in self.closed for row in tangents[i])], dtype=np.intp
        )
        ends = np.cumsum([k, *sizes])
        self.tangents = tuple(
            np.arange(end - m, end) for m, end in zip(sizes, ends[1:], strict=True)
        )
        self.owner: Indices = np.concatenate((np.arange(k), np.repeat(np.arange(k), sizes)))
        self.sticking = np.array(
            [r for j, i in enumerate(self.closed) if modes[i] == STICK for r in self.tangents[j]],
            dtype=np.intp,
        )
        self.constrained: Indices = np.concatenate((np.arange(k), self.sticking))
        self.constrained_rows: Indices = self.all_rows[self.constrained]
        self.sticking_owner = self.owner[self.sticking]
        self.pattern = tuple(zip([modes[i] for i in self.closed], sizes, strict=True))
        self.is_sliding = np.array([modes[i] in SLIPS for i in self.closed], dtype=np.bool_)


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
        redundant: Whether two bodies have more constraints than their six relative motions, so that
            forces are not unique. Contacts may be redundant without that: then `KKT` finds it.
        cones: Of each closed contact the numbers of the multipliers of its normal force and, where
            it sticks, of its friction.
        friction: Coefficients of the closed contacts.
        sliding: Closed contacts that slide; `spatial` are those of them that slide in a surface.
        spatial_contacts: The places (n,) of these n contacts among the closed ones.
        spatial_rows: Their tangents (n, 2), counted within the r rows.
        spatial_friction: Their coefficients (n,) of kinetic friction.
        identity: Whether forces along the rows are the multipliers: all rows are constrained.
        pressed_places: Contacts with a load, by their place among the closed ones. Their normal
            rows constrain no motion.
        pressed_contacts: The same contacts, by their place among all.
        loads: Loads along the rows of closed contacts, (r,); zero but for those normal rows.
        solid_rows: Constrained rows but for those normal rows, among the rows of all contacts.
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
        self.pressed_places: Indices = np.flatnonzero(loads[self.places] > 0.0)
        self.pressed_contacts: Indices = np.array(self.places, dtype=np.intp)[self.pressed_places]
        self.loads: Array = np.zeros(len(self.owner))
        self.loads[self.pressed_places] = loads[self.pressed_contacts]
        # Normals come first, so that places are numbers of constrained rows as well.
        self.solid_rows: Indices = self.all_rows[np.delete(self.constrained, self.pressed_places)]
        self.solid_contacts = [i for i in self.places if not loads[i] > 0.0]
        self.pairs = tuple(bodies[i] for i in self.closed)
        between = Counter(bodies[self.closed[k]] for k in self.owner[self.constrained])
        self.redundant = max(between.values(), default=0) > 6
        self._in_space = all(len(rows) == 2 for rows in self.tangents)
        places = np.arange(len(self.closed), len(self.constrained))
        self.cones = tuple(
            (j, places[self.sticking_owner == j].tolist()) for j in range(len(self.closed))
        )
        self.identity = len(self.constrained) == len(self.owner) and not self.is_sliding.any()
        self._set_friction(friction, static)

    def _set_friction(self, friction: Array, static: Array) -> None:
        """Set what depends on the coefficients (c,) of all contacts."""
        self.friction = Friction(static[self.places], friction[self.places])
        self.sliding = tuple(
            Sliding(j, self.tangents[j], float(friction[i]), SLIPS[self.modes[i]])
            for j, i in enumerate(self.closed)
            if self.modes[i] in SLIPS
        )
        self.spatial = tuple(slide for slide in self.sliding if slide.sign == 0.0)
        self.spatial_contacts = [slide.contact for slide in self.spatial]
        self.spatial_rows: Indices = np.array(
            [slide.rows for slide in self.spatial], dtype=np.intp
        ).reshape(-1, 2)
        self.spatial_friction: Array = np.array([slide.friction for slide in self.spatial])
        self._mix: Array = np.eye(len(self.owner))[:, self.constrained]
        for slide in self.sliding:
            if slide.sign:
                self._mix[slide.rows, slide.contact] = -slide.friction * slide.sign

    def with_friction(self, friction: Array, static: Array) -> ContactPhase:
        """Return the phase of the same modes with other coefficients.

        Args:
            friction: Kinetic coefficients (c,) of all contacts.
            static: Static coefficients (c,).
        """
        if not self.closed:  # no coefficient is of an open contact
            return self
        other: ContactPhase = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        if self.sliding:
            other._set_friction(friction, static)
        else:  # nothing else depends on the coefficients
            other.friction = Friction(static[self.places], friction[self.places])
        return other

    def compute_mix(self, directions: dict[int, Array]) -> Array:
        """Return the matrix E (r, m), which makes forces along all rows of multipliers.

        Args:
            directions: Unit sliding velocity (2,) of each contact that slides in a surface, by its
                place among the closed ones.
        """
        if not directions:
            return self._mix
        mix: Array = self._mix.copy()
        for slide in self.spatial:
            mix[slide.rows, slide.contact] = -slide.friction * directions[slide.contact]
        return mix

    def compute_turning(
        self, directions: dict[int, Array], speeds: Array, multipliers: Array
    ) -> Array:
        """Return the matrix K (r, r): how friction in a surface turns with the sliding velocity.

        f_t changes by -K dv_t with K = mu f_n / |v_t| (I - s s'), and not at all at a standstill,
        where there is no s.

        Args:
            directions: s (2,), as in `compute_mix`.
            speeds: Rates J v (r,), m/s; impacts give the rates after them.
            multipliers: Forces in N, or impulses in N s, whose first k are normal.
        """
        result = np.zeros((len(self.owner), len(self.owner)))
        if not self.spatial:
            return result
        # Numbers, not arrays: one to four contacts slide, and a small array takes longer.
        for slide, rates in zip(self.spatial, speeds[self.spatial_rows].tolist(), strict=True):
            speed = abs(complex(*rates))
            if speed > NO_DIRECTION:
                (i, j), (a, b) = slide.rows.tolist(), directions[slide.contact].tolist()
                ratio = slide.friction * float(multipliers[slide.contact]) / speed
                result[i, i], result[j, j] = ratio * (1.0 - a * a), ratio * (1.0 - b * b)
                result[i, j] = result[j, i] = ratio * -(a * b)
        return result

    def split_rows(self, rows: Array) -> tuple[Array, Array]:
        """Return values of the rows (r, ...) as normal (k, ...) and tangential (k, 2, ...) parts.

        A tangential part is zero where a contact has no such tangent.
        """
        k = len(self.closed)
        if self._in_space:
            return rows[:k], rows[k:].reshape(k, 2, *rows.shape[1:])
        tangential = np.zeros((k, 2, *rows.shape[1:]))
        for j, tangents in enumerate(self.tangents):
            tangential[j, : len(tangents)] = rows[tangents]
        return rows[:k], tangential

    def scatter_contacts(self, closed: Array, total: int) -> Array:
        """Return values of closed contacts (k, ...) among all `total` ones, zero where open."""
        result = np.zeros((total, *closed.shape[1:]))
        result[self.places] = closed
        return result

    def take_closed_rows(self, rows: Array) -> Array:
        """Return a copy of values of all rows, at those of the closed contacts, (r, ...)."""
        return rows.copy() if self.all_closed else rows[self.all_rows]

    def scatter_multipliers(self, multipliers: Array) -> Array:
        """Return values of multipliers (m, ...) along the rows (r, ...), zero for other rows."""
        if self.identity:
            return multipliers
        result = np.zeros((len(self.owner), *multipliers.shape[1:]))
        result[self.constrained] = multipliers
        return result

    def scatter_rows(self, rows: Array, total: int) -> Array:
        """Return values of the rows (r, ...) among all `total` rows, zero elsewhere."""
        if self.all_closed:
            return rows
        result = np.zeros((total, *rows.shape[1:]))
        result[self.all_rows] = rows
        return result


def compute_load_weights(normal: Any, least: Any, softplus: Callable[[Any], Any]) -> Any:
    """Return the weights l (1 + log(1 + e^(n / l - 1))) of friction by normal forces n.

    A weight is n itself if that is well above l, and l if the contact pulls; see
    `force_distribution`. Numbers and expressions share this formula.

    Args:
        normal: Normal forces n.
        least: Least weight l.
        softplus: The function log(1 + e^x) of the kind of these values.
    """
    return least * (1.0 + softplus(normal / least - 1.0))


def contact_modes(key: ModeKey) -> Modes:
    """Return a mode key as the modes of contacts.

    Args:
        key: Key of a mode of a contact system.

    Raises:
        UnknownNameError: If the key is no tuple.
    """
    if not isinstance(key, tuple):
        raise UnknownNameError(f"mode {key!r} is no tuple of contact modes")
    return key


def select_slip_mode(dimension: int, velocity: Sequence[float] | Array) -> str:
    """Return the mode in which a contact slides with a velocity.

    Args:
        dimension: Number of tangents of the contact, 1 or 2.
        velocity: Sliding velocity (dimension,), m/s; not zero along one tangent.
    """
    if dimension == 2:
        return SLIP
    return next(name for name, sign in SLIPS.items() if sign * velocity[0] > 0.0)
