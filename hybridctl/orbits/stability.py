r"""Whether a periodic orbit is stable, also where its return map has kinks.

To first order a period maps perturbations by P, :math:`A_k x` on cones :math:`C_k x \ge 0`, see
`conewise`. Trivial directions are left out: along the flow, along free directions of a symmetry,
and those that the constraints of the mode at the start exclude.

With one piece its eigenvalues decide. With several neither that all pieces are stable nor that all
are unstable decides. There are three proofs:

- *stable*: a norm that contracts, a piecewise quadratic form, see `contraction`;
- *unstable*: a ray that a product of pieces maps into itself, through the cones of these pieces,
  and stretches;
- *unstable*: a piecewise quadratic form that grows, where motions turn for ever.

What is exponentially stable to first order is stable for small perturbations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

import numpy as np
from scipy.linalg import matrix_balance

from hybridctl.base.checks import Array, check_array, check_count, check_instance
from hybridctl.orbits.conewise import ConewiseMap, LinearPiece, compute_conewise_map
from hybridctl.orbits.contraction import FormSearch, PiecewiseForm, Route, list_routes
from hybridctl.orbits.return_map import PeriodicOrbit
from hybridctl.sensitivity.floquet import check_closed, find_trivial_directions
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.symmetry import Symmetry

Verdict = Literal["stable", "unstable", "undecided"]

_UNDECIDED_MARGIN = 1e-7
"""Distance from 1 within which an eigenvalue or a rate decides nothing. The value is a choice."""
_CLOSING_TOLERANCE = 1e-6  # error with which a linearization closes, relative to the state or to 1
_MAX_ROUTES = 64  # of one length; a larger programme takes longer
_MAX_ROUTE_STEPS = 12  # longest sequence of pieces whose rays are looked for, periods
_RAY_TOLERANCE = 1e-8  # miss of a ray that comes back, relative to its length
_DIRECTION_COUNT = 64  # random directions that are followed
_FOLLOWED_PERIODS = 300  # the growth is that of the second half of them
_HALVINGS = 8  # of the logarithm of the interval of rates
_LEAST_RATE = 1e-3  # lowest rate that is tried, relative to the first that is proved
_GROWTH_SHARES = (0.9, 0.5, 0.1)  # of the logarithm of the growth seen, for which proofs are tried


@dataclass(frozen=True, eq=False)
class Ray:
    """Perturbations along a direction that come back stretched.

    Attributes:
        direction: The direction (ndx,).
        factor: Length after `periods` relative to before.
        periods: Number of periods.
    """

    direction: Array
    factor: float
    periods: int

    @property
    def rate(self) -> float:
        """The growth per period."""
        return float(self.factor ** (1.0 / self.periods))


@dataclass(frozen=True, eq=False)
class Stability:
    """Whether perturbations of a periodic orbit die out, and what proves it.

    Attributes:
        verdict: "stable", "unstable", or "undecided".
        growth: Lower and upper bound of the largest growth per period that goes on for ever. For a
            linear return map both are the largest modulus of its multipliers.
        return_map: The map P in coordinates c (n,) without trivial directions.
        basis: Matrix (ndx, n): perturbations are basis @ c.
        multipliers: Eigenvalues (n,) of each piece, the largest modulus first. They decide if there
            is one piece.
        ray: Of the rays found the one that grows most; None with one piece and where none is found.
        form: Form V(c), with c = basis.T @ dx. A period multiplies it by at most the square of the
            upper bound; but where it is a form that proves growth, which no ray does, by at least
            the square of the lower one. None with one piece and where none is found.
    """

    verdict: Verdict
    growth: tuple[float, float]
    return_map: ConewiseMap
    basis: Array
    multipliers: tuple[Array, ...]
    ray: Ray | None
    form: PiecewiseForm | None

    def __repr__(self) -> str:
        low, high = self.growth
        if len(self.multipliers) == 1:
            why = f"largest multiplier {high:.6g}"
        elif self.verdict == "stable":
            why = f"a norm shrinks by {high:.6g} per period or more"
        elif self.verdict == "unstable" and self.ray is not None and self.ray.rate >= low:
            why = f"a ray grows by {self.ray.factor:.6g} in {self.ray.periods} periods"
        else:
            why = f"growth per period between {low:.6g} and {high:.6g}"
        return f"Stability({self.verdict}: {why}; {len(self.multipliers)} pieces)"

    def propagate_lengths(self, periods: int, start: Array | None = None) -> Array:
        """Return the lengths (m, periods + 1) of perturbations after 0, 1, ... periods.

        Args:
            periods: Number of periods.
            start: Perturbations (m, n) in coordinates c. If None, 64 random ones of length 1.

        Raises:
            InputError: If `periods` is no positive integer, or the shape of `start` does not fit.
        """
        n = self.basis.shape[1]
        start = _draw_directions(n) if start is None else check_array("start", start, (None, n))
        lengths, x = [np.linalg.norm(start, axis=1)], start
        for _ in range(check_count("periods", periods)):
            x = self.return_map(x)
            lengths.append(np.linalg.norm(x, axis=1))
        return np.asarray(np.array(lengths).T)


def stability(
    orbit: PeriodicOrbit | Linearization, *, symmetry: Symmetry | None = None, depth: int = 4
) -> Stability:
    """Return whether a periodic orbit is stable, with the proof; see this module.

    Args:
        orbit: An orbit that was found, or the linearization of one period (under its policy, say).
        symmetry: The symmetry up to which a linearization closes; an orbit has its own.
        depth: Largest number of periods whose pieces define the cells of forms. A larger one
            decides more, and takes longer.

    Raises:
        InputError: If a linearization is not that of one period, or if an argument is not valid.
    """
    if isinstance(orbit, PeriodicOrbit):
        lin, symmetry = orbit.linearization, orbit.symmetry
    else:
        check_instance("orbit", lin := orbit, Linearization)
        check_closed(lin, symmetry, _CLOSING_TOLERANCE)
    whole = compute_conewise_map(lin)
    if symmetry is not None:
        whole = whole.multiply_by(symmetry.matrix)
    matrices = [piece.matrix for piece in whole.pieces]
    basis = find_trivial_directions(lin, matrices, symmetry).across
    return judge_map(whole.restrict_to(basis), basis, depth=depth)


def judge_map(map: ConewiseMap, basis: Array | None = None, *, depth: int = 4) -> Stability:
    """Return the stability of a conewise linear map itself; see `stability`.

    Args:
        map: The map (n, n).
        basis: Matrix (ndx, n) of its coordinates. If None, the identity.
        depth: Largest number of periods whose pieces define the cells of forms.

    Raises:
        InputError: If `depth` is no positive integer.
    """
    check_count("depth", depth)
    n = map.pieces[0].matrix.shape[1]
    basis = np.eye(n) if basis is None else basis
    values = tuple(_compute_eigenvalues(piece.matrix) for piece in map.pieces)
    if map.is_linear:
        largest = float(np.abs(values[0]).max(initial=0.0))
        return Stability(
            _decide(largest, largest), (largest, largest), map, basis, values, None, None
        )
    search = _ProofSearch(*balance_map(map), depth)
    low, high, ray, form = search.find_bounds()
    found = None
    if ray is not None:
        found = Ray(basis @ (search.scale * ray.direction), ray.factor, ray.periods)
    return Stability(_decide(low, high), (low, high), map, basis, values, found, form)


@dataclass(frozen=True, eq=False)
class _ProofSearch:
    """The search for proofs, in coordinates c / scale in which the pieces are balanced.

    Attributes:
        map: The map in these coordinates.
        scale: The scale (n,).
        depth: Largest number of steps of cells.
    """

    map: ConewiseMap
    scale: Array
    depth: int

    def find_bounds(self) -> tuple[float, float, Ray | None, PiecewiseForm | None]:
        """Return both bounds of the growth, the ray that grows most, and a form.

        The form is in the coordinates c, the ray in c / scale.
        """
        ray = self._find_ray()
        low, seen = 0.0 if ray is None else ray.rate, self._followed[1]
        form, high = self._find_least_shrinking_form(max(low, seen))
        # Growth is seen that neither a ray nor a form has explained: motions turn for ever.
        if high >= 1.0 - _UNDECIDED_MARGIN and low <= 1.0 + _UNDECIDED_MARGIN < seen:
            grown = self._find_growing_form(seen)
            if grown is not None:
                return max(low, grown.rate), high, ray, self._unscale_form(grown)
        return low, high, ray, None if form is None else self._unscale_form(form)

    def _unscale_form(self, form: PiecewiseForm) -> PiecewiseForm:
        """Return a form in the coordinates c."""
        forms = form.forms / np.outer(self.scale, self.scale)
        return PiecewiseForm(tuple(c / self.scale for c in form.cones), forms, form.rate)

    @cached_property
    def _followed(self) -> tuple[Array, float]:
        """The direction that grows most after many periods, and its late growth per period."""
        x, late = _draw_directions(len(self.scale)), np.zeros(_DIRECTION_COUNT)
        for k in range(_FOLLOWED_PERIODS):
            x = self.map(x)
            sizes = np.linalg.norm(x, axis=1)
            with np.errstate(divide="ignore"):
                late += np.log(sizes) if k >= _FOLLOWED_PERIODS // 2 else 0.0
            x /= np.where(sizes > 0.0, sizes, 1.0)[:, None]
        best = int(late.argmax())
        count = _FOLLOWED_PERIODS - _FOLLOWED_PERIODS // 2
        return x[best], float(np.exp(late[best] / count))

    @cached_property
    def _levels(self) -> tuple[list[Route], ...]:
        """The routes of 1, 2, ... steps."""
        return tuple(islice(list_routes(self.map, _MAX_ROUTES), _MAX_ROUTE_STEPS))

    def _find_ray(self) -> Ray | None:
        """Return the ray that grows most of those that products of pieces have."""
        best: Ray | None = None
        for matrix, periods in self._list_products():
            values, vectors = np.linalg.eig(matrix)
            for k in np.flatnonzero((values.imag == 0.0) & (values.real > 0.0)):
                for v in (vectors[:, k].real, -vectors[:, k].real):
                    ray = Ray(v, float(values[k].real), periods)
                    if (best is None or ray.rate > best.rate) and self._comes_back(ray):
                        best = ray
        return best

    def _comes_back(self, ray: Ray) -> bool:
        """Return whether the map itself, and not only a product of pieces, stretches the ray."""
        x = ray.direction
        for _ in range(ray.periods):
            x = self.map(x)
        return float(np.linalg.norm(x / ray.factor - ray.direction)) <= _RAY_TOLERANCE

    def _list_products(self) -> Iterator[tuple[Array, int]]:
        """Yield products of the pieces of successive periods, with their number.

        They are those of all short routes and, for longer ones than are listed, those that the
        direction followed takes.
        """
        for level in self._levels:
            for route in level:
                yield route.matrices[-1], len(route.pieces)
        x, matrix = self._followed[0], np.eye(len(self.scale))
        for periods in range(1, 2 * _MAX_ROUTE_STEPS + 1):
            piece = self.map.pieces[int(self.map.find_pieces(x[None])[0])]
            x, matrix = piece.matrix @ x, piece.matrix @ matrix
            yield matrix, periods

    def _make_form_search(self, steps: int) -> FormSearch | None:
        """Return the search on cells of so many steps; None where they are too many."""
        if len(self._levels) <= steps:
            return None
        return FormSearch(self._levels[steps - 1], self._levels[steps])

    def _find_least_shrinking_form(self, least: float) -> tuple[PiecewiseForm | None, float]:
        """Return the form found that grows least, and the upper bound of growth that it proves.

        Cells of more steps are tried until growth below 1 is proved, or cannot be.

        Args:
            least: Growth that is seen; forms of lower rates are not looked for.
        """
        best, high = None, max(float(np.linalg.norm(p.matrix, 2)) for p in self.map.pieces)
        for steps in range(1, self.depth + 1):
            search = self._make_form_search(steps)
            if search is None:
                break
            found = None
            if least < 1.0 <= high:  # the rate that decides is tried first
                found = search.find_shrinking_form(1.0 - 2.0 * _UNDECIDED_MARGIN)
            if found is not None or steps == 1:
                best, high = found, high if found is None else found.rate
                low = max(least, _LEAST_RATE * high)
                for _ in range(_HALVINGS):
                    middle = float(np.sqrt(low * high))
                    tried = search.find_shrinking_form(middle)
                    best, high, low = (
                        (best, high, middle) if tried is None else (tried, middle, low)
                    )
            if high < 1.0 or least >= 1.0:
                break
        return best, high

    def _find_growing_form(self, seen: float) -> PiecewiseForm | None:
        """Return a form that proves growth, where motions are seen to grow by `seen` a period."""
        for steps in range(1, self.depth + 1):
            search = self._make_form_search(steps)
            if search is None:
                break
            for share in _GROWTH_SHARES:
                found = search.find_growing_form(seen**share, self._followed[0])
                if found is not None:
                    return found
        return None


def balance_map(map: ConewiseMap) -> tuple[ConewiseMap, Array]:
    """Return a map in coordinates x / scale in which its pieces are balanced, and the scale (n,).

    Args:
        map: The map (n, n).
    """
    size = np.sum([np.abs(piece.matrix) for piece in map.pieces], axis=0)
    scale = matrix_balance(size, permute=False, separate=True)[1][0]
    pieces = []
    for matrix, cone in map.pieces:
        rows = cone * scale
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        pieces.append(LinearPiece(matrix * scale / scale[:, None], rows))
    return ConewiseMap(tuple(pieces)), scale


def _decide(low: float, high: float) -> Verdict:
    """Return the verdict of both bounds of growth."""
    if high < 1.0 - _UNDECIDED_MARGIN:
        return "stable"
    return "unstable" if low > 1.0 + _UNDECIDED_MARGIN else "undecided"


def _compute_eigenvalues(matrix: Array) -> Array:
    """Return the eigenvalues, the largest modulus first."""
    values = np.linalg.eigvals(matrix)
    return np.asarray(values[np.argsort(-np.abs(values), kind="stable")])


def _draw_directions(n: int) -> Array:
    """Return random directions (m, n) of length 1, the same every time."""
    x = np.random.default_rng(0).normal(size=(_DIRECTION_COUNT, n))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
