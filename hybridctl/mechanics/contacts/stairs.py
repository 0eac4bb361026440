"""Stairs: level treads, at whose edges a contact leaves the piece of surface that it is on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple, Protocol, runtime_checkable

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array, Indices, check_array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.surfaces import ByValue, Expression, Level, Surface

_SAME_HEIGHT = 1e-12
"""Difference in m: heights of treads that differ by less are one height, written with other
roundings."""
_LEAST_RISE = 1e-4
"""Height in m of the lowest step of stairs. A mode tolerates gaps of 1e-5 m
(`contact_mode.OFF_MODE`), and the tread nearest in height must be the one that is touched."""
_EDGE_WIDTH = 1e-9
"""Distance in m from an edge: a point this close to an edge counts as above the lower tread.
Rounding of positions is 1e-15 m."""
_AT_RISER = 1e-6
"""Distance in m, with two uses. A point is at a riser if it is no farther than this from the edge
along x, and farther than this from the heights of both treads. The position error of an event,
whose time is known to 1e-9 s, is below the first; the gap of a point that lands is below the
second."""


@runtime_checkable
class PiecewiseSurface(Surface, Protocol):
    """A surface of smooth pieces, between which its distance jumps.

    The piece that a point touches follows from its position alone: it is the piece nearest in
    height, also just beyond that piece's border, where `distance` is that of another piece. The
    contact leaves its piece where the margin falls through zero.
    """

    @property
    def has_borders(self) -> bool:
        """Whether there is more than one piece."""
        ...

    def piece_distance(self, r: Array) -> Array:
        """Return the signed distances of points from their nearest pieces.

        Args:
            r: Points (n, 3) in the frame of the surface's body, m.

        Returns:
            Distances (n,) in m, positive on the free side. The nearest piece of a point is the
            piece nearest in height.
        """
        ...

    def margin(self, r: Array) -> Array:
        """Return the distances of points from the borders of their nearest pieces.

        Args:
            r: Points (n, 3) in the frame of the surface's body, m.

        Returns:
            Distances (n,) in m, positive on the piece and negative beyond its border.
        """
        ...

    def margin_gradient(self, r: Array) -> Array:
        """Return the gradients of the margins.

        Args:
            r: Points (n, 3) in the frame of the surface's body, m.

        Returns:
            Derivatives (n, 3) of `margin` by the points, in the same frame.
        """
        ...

    def is_at_riser(self, r: Array) -> NDArray[np.bool_]:
        """Return whether points are at a face between two pieces, and on neither.

        Args:
            r: Points (n, 3) in the frame of the surface's body, m.

        Returns:
            One truth value for each point, (n,).
        """
        ...

    def piece_expressions(self, r: Expression) -> tuple[Expression, Expression]:
        """Return the piece distance and the margin of one point as expressions.

        Called only where `has_borders` is true.

        Args:
            r: Point (3, 1) in the frame of the surface's body, m.

        Returns:
            Signed distance (1, 1) from the nearest piece, and margin (1, 1), both in m.
        """
        ...


@dataclass(frozen=True, eq=False)
class Stairs(ByValue, Level):
    r"""Level treads along x, z = h(x) in the frame of its body, touched from above.

    .. math:: \phi = z - h(x), \qquad h = z_i \text{ for } e_i < x < e_{i+1} .

    phi jumps at an edge. The strip of 1e-9 m beside an edge belongs to the lower tread. A contact
    that slides over an edge leaves its tread: it opens above a lower tread. Risers are no part of
    the surface: what runs into one ends the run in a `RiserError`.

    Neighbouring treads of one height are one tread. Heights differ by at least 1e-4 m otherwise,
    ten times what a mode tolerates of a gap: the height of a contact tells on which tread it is.

    Attributes:
        edges: Places e_1 < .. < e_n along x, (n,), m.
        heights: Of the treads (n + 1,), from the one before e_1 on, m.

    Raises:
        InputError: If edges do not increase by more than 2e-9 m, if there is not one height more
            than edges, or if heights differ by less than 1e-4 m but are not equal.
    """

    edges: Any
    heights: Any

    def __post_init__(self) -> None:
        edges = check_array("edges", self.edges, (None,))
        heights = check_array("heights", self.heights, (len(edges) + 1,))
        if not (np.diff(edges) > 2.0 * _EDGE_WIDTH).all():
            raise InputError(f"edges must increase, got {edges.tolist()}")
        rises = np.diff(np.unique(heights))
        if ((rises > _SAME_HEIGHT) & (rises < _LEAST_RISE)).any():
            raise InputError(
                f"heights must be equal or differ by {_LEAST_RISE:g} m, got {heights.tolist()}: "
                "steps that are lower cannot be told from gaps; round them"
            )
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "heights", heights)

    def expression(self, r: Expression) -> Expression:
        """Return the signed distance phi of the point r (3, 1), m."""
        edges = self._edges_of_lower_treads
        rises = zip(edges.tolist(), np.diff(self.heights).tolist(), strict=True)
        return r[2] - self.heights[0] - sum(rise * (r[0] >= edge) for edge, rise in rises)

    def distance(self, r: Array) -> Array:
        """Return the heights z - h(x) above the ground (n,), m."""
        edges = self._edges_of_lower_treads
        return np.asarray(r[:, 2] - self.heights[edges.searchsorted(r[:, 0], "right")])

    @cached_property
    def _edges_of_lower_treads(self) -> Array:
        """The edges (n,) in m, moved by `_EDGE_WIDTH` into the higher tread.

        A contact that leaves its tread is at the edge to rounding. So it is above the lower tread,
        whatever the rounding, and does not land again on the tread that it has left.
        """
        return np.asarray(self.edges + _EDGE_WIDTH * np.sign(np.diff(self.heights)))

    def normal(self, r: Array) -> Array:
        """Return the upward normals (n, 3)."""
        return np.broadcast_to(np.array([0.0, 0.0, 1.0]), r.shape)

    @cached_property
    def _treads(self) -> _Treads:
        """The treads, where neighbours of one height are one tread."""
        return _merge_treads(self.edges, self.heights)

    @property
    def has_borders(self) -> bool:
        """Whether there is more than one tread."""
        return len(self._treads.levels) > 1

    def piece_distance(self, r: Array) -> Array:
        """Return the heights (n,) in m of points (n, 3) above the treads nearest in height."""
        treads = self._treads
        return np.asarray(r[:, 2] - treads.levels[treads.level_of(r[:, 2])])

    def margin(self, r: Array) -> Array:
        """Return the distances along x from the ends of the nearest tread.

        Args:
            r: Points (n, 3) in the frame of the body, m.

        Returns:
            Margins (n,) in m, positive on the tread and negative beyond it. Of the treads at the
            height that is nearest to a point, the one with the largest margin counts.
        """
        return self._margins(r)[0]

    def margin_gradient(self, r: Array) -> Array:
        """Return the gradients of the margins at points r (n, 3).

        Returns:
            Gradients (n, 3): e_x before the middle of the tread, -e_x after it.
        """
        return np.asarray(self._margins(r)[1][:, None] * np.array([1.0, 0.0, 0.0]))

    def _margins(self, r: Array) -> tuple[Array, Array]:
        """Return the margins (n,) and their derivatives by x (n,)."""
        treads, each = self._treads, np.arange(len(r))
        behind, ahead = r[:, :1] - treads.starts, treads.ends - r[:, :1]
        inside = np.minimum(behind, ahead)
        inside[treads.level_of(r[:, 2])[:, None] != treads.level] = -np.inf  # of other heights
        k = inside.argmax(axis=1)
        return inside[each, k], np.where(behind[each, k] < ahead[each, k], 1.0, -1.0)

    def is_at_riser(self, r: Array) -> NDArray[np.bool_]:
        """Return whether points (n, 3) are at an edge, between the heights of its two treads."""
        treads, height = self._treads, r[:, 2:]
        low = np.minimum(treads.heights[:-1], treads.heights[1:]) + _AT_RISER
        high = np.maximum(treads.heights[:-1], treads.heights[1:]) - _AT_RISER
        at = np.abs(r[:, :1] - treads.ends[:-1]) <= _AT_RISER
        return np.asarray((at & (low < height) & (height < high)).any(axis=1))

    def piece_expressions(self, r: Expression) -> tuple[Expression, Expression]:
        """Return the height above the tread nearest in height, and the margin, of one point.

        There must be more than one tread: the margin of a single one, without ends, is not defined.

        Args:
            r: Point (3, 1) in the frame of the body, m.

        Returns:
            Height (1, 1) and margin (1, 1) in m, see `piece_distance` and `margin`.
        """
        treads = self._treads
        margins: list[Expression] = []
        for level in range(len(treads.levels)):
            own = treads.level == level
            sides = zip(treads.starts[own].tolist(), treads.ends[own].tolist(), strict=True)
            inside = [
                reduce(
                    ca.fmin, [s * (r[0] - e) for s, e in ((1.0, a), (-1.0, b)) if math.isfinite(e)]
                )
                for a, b in sides
            ]
            margins.append(reduce(ca.fmax, inside))
        height, margin = ca.SX(float(treads.levels[0])), margins[0]
        for k, border in enumerate(treads.halfway.tolist(), 1):
            height = ca.if_else(r[2] > border, float(treads.levels[k]), height)
            margin = ca.if_else(r[2] > border, margins[k], margin)
        return r[2] - height, margin


class _Treads(NamedTuple):
    """Stairs without edges between equal heights.

    Attributes:
        starts, ends: Of each of m treads along x, m; infinite for the first and the last.
        heights: Of each tread, (m,), m.
        levels: Distinct heights, increasing, (k,), m.
        level: Index in `levels` of each tread's height, (m,).
        halfway: Heights halfway between successive levels, (k - 1,), m.
    """

    starts: Array
    ends: Array
    heights: Array
    levels: Array
    level: Indices
    halfway: Array

    def level_of(self, z: Array) -> Indices:
        """Return the indices of the levels nearest to heights z (n,)."""
        return np.asarray(self.halfway.searchsorted(z, "left"))


def _merge_treads(edges: Array, heights: Array) -> _Treads:
    """Return the treads of stairs, where neighbours of one height are one tread.

    Args:
        edges: Edges of the stairs (n,), m.
        heights: Heights of the treads between them (n + 1,), m.
    """
    found = np.unique(heights)
    levels = found[np.diff(found, prepend=-np.inf) > _SAME_HEIGHT]
    halfway = 0.5 * (levels[1:] + levels[:-1])
    level = halfway.searchsorted(heights, "left")
    steps = np.diff(level) != 0
    edges, level = edges[steps], level[np.append(True, steps)]
    ends, starts = np.append(edges, np.inf), np.append(-np.inf, edges)
    return _Treads(starts, ends, levels[level], levels, level, halfway)
