r"""Whether a periodic orbit is stable, also where its return map has kinks.

To first order a period maps deviations by P, :math:`A_k x` on cones :math:`C_k x \ge 0`, see
`conewise`. What is trivial (along the flow, along free directions of a symmetry, what the mode at
the start holds) is left out. With one piece its eigenvalues decide. Neither that all pieces are
stable nor that all are unstable decides otherwise; there are three proofs:

- *stable*: a norm that contracts, a piecewise quadratic form, see `contraction`;
- *unstable*: a ray that a product of pieces maps into itself, through the cones of these pieces,
  and stretches;
- *unstable*: a piecewise quadratic form that grows, where motions turn for ever.

What is exponentially stable to first order is stable for small deviations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

import numpy as np
from scipy.linalg import matrix_balance

from hybridctl.base.checks import Array, check_count, check_instance
from hybridctl.orbits.conewise import ConewiseMap, LinearPiece, conewise
from hybridctl.orbits.contraction import FormSearch, PiecewiseForm, Route, routes
from hybridctl.orbits.return_map import PeriodicOrbit
from hybridctl.sensitivity.floquet import check_closed, find_trivial_directions
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.symmetry import Symmetry

Verdict = Literal["stable", "unstable", "undecided"]

_MARGIN = 1e-7  # of 1: so near to it eigenvalues and rates decide nothing
_ROUTES = 64  # of one length that are looked at
_LONGEST = 12  # of them, periods
_ON_RAY = 1e-8  # of its length: by how much a ray may miss itself or its cones
_SPREAD = 64  # directions followed
_SETTLED = 300  # periods
_HALVINGS = 8
_FLOOR = 1e-3  # of a bound: how far below it a better one is looked for


@dataclass(frozen=True, eq=False)
class Ray:
    """Deviations along `direction` (ndx,) that come back stretched by `factor` after `periods`."""

    direction: Array
    factor: float
    periods: int

    @property
    def rate(self) -> float:
        """The growth per period."""
        return float(self.factor ** (1.0 / self.periods))


@dataclass(frozen=True, eq=False)
class Stability:
    """Whether deviations from a periodic orbit die out, and what proves it.

    growth: bounds from below and above of the largest growth per period that goes on for ever; of
    a linear return map both are the largest modulus of its multipliers. return_map: P in
    coordinates c of the deviations basis @ c (ndx, n), without what is trivial. multipliers: the
    eigenvalues of each piece; they decide if there is one. ray: the one that grows most of those
    found. form: V(c), with c = basis.T @ dx, that shrinks by the upper bound, or grows by the lower
    one where no ray does; None with one piece and where none was found.
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

    def deviations(self, periods: int, start: Array | None = None) -> Array:
        """The lengths (m, periods + 1) of deviations after 0, 1, ... periods, to first order.

        start (m, n): in coordinates c; by default 64 random directions of length 1.
        """
        if start is None:
            start = _directions(self.basis.shape[1])
        lengths, x = [np.linalg.norm(start, axis=1)], start
        for _ in range(check_count("periods", periods)):
            x = self.return_map(x)
            lengths.append(np.linalg.norm(x, axis=1))
        return np.asarray(np.array(lengths).T)


def stability(
    orbit: PeriodicOrbit | Linearization, *, symmetry: Symmetry | None = None, depth: int = 4
) -> Stability:
    """Whether a periodic orbit is stable, with the proof; see this module.

    orbit: one that was found, or the linearization of one period (under its policy, say), then with
    the `symmetry` up to which it closes. depth: forms differ between cells of directions that take
    the same pieces for up to so many periods; more of them decide more.

    Raises `InputError` where a linearization is not that of one period.
    """
    if isinstance(orbit, PeriodicOrbit):
        lin, symmetry = orbit.linearization, orbit.symmetry
    else:
        check_instance("orbit", lin := orbit, Linearization)
        check_closed(lin, symmetry, 1e-6)
    whole = conewise(lin)
    if symmetry is not None:
        whole = whole.then(symmetry.matrix)
    matrices = [piece.matrix for piece in whole.pieces]
    basis = find_trivial_directions(lin, matrices, symmetry).across
    return judge(whole.across(basis), basis, depth=depth)


def judge(map: ConewiseMap, basis: Array | None = None, *, depth: int = 4) -> Stability:
    """The stability of a conewise linear map (n, n) itself; see `stability`."""
    n = map.pieces[0].matrix.shape[1]
    basis = np.eye(n) if basis is None else basis
    values = tuple(_eigenvalues(piece.matrix) for piece in map.pieces)
    if map.is_linear:
        largest = float(np.abs(values[0]).max(initial=0.0))
        return Stability(
            _verdict(largest, largest), (largest, largest), map, basis, values, None, None
        )
    search = _Search.of(map, check_count("depth", depth))
    low, high, ray, form = search.bounds()
    found = None
    if ray is not None:
        found = Ray(basis @ (search.scale * ray.direction), ray.factor, ray.periods)
    return Stability(_verdict(low, high), (low, high), map, basis, values, found, form)


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for proofs, in coordinates c / scale in which pieces are balanced."""

    map: ConewiseMap
    scale: Array
    depth: int

    @staticmethod
    def of(map: ConewiseMap, depth: int) -> _Search:
        """The search for a map in coordinates of any size."""
        return _Search(*balanced(map), depth)

    def bounds(self) -> tuple[float, float, Ray | None, PiecewiseForm | None]:
        """The bounds of the growth, the ray that grows most, and a form."""
        ray = self._ray()
        low, seen = 0.0 if ray is None else ray.rate, self._followed[1]
        form, high = self._shrinking(max(low, seen))
        if high >= 1.0 - _MARGIN and low <= 1.0 + _MARGIN < seen:
            grown = self._growing(seen)
            if grown is not None:
                return max(low, grown.rate), high, ray, self._unscaled(grown)
        return low, high, ray, None if form is None else self._unscaled(form)

    def _unscaled(self, form: PiecewiseForm) -> PiecewiseForm:
        forms = form.forms / np.outer(self.scale, self.scale)
        return PiecewiseForm(tuple(c / self.scale for c in form.cones), forms, form.rate)

    @cached_property
    def _followed(self) -> tuple[Array, float]:
        """The direction that has grown most in the end, and its growth per period late."""
        x, late = _directions(len(self.scale)), np.zeros(_SPREAD)
        for k in range(_SETTLED):
            x = self.map(x)
            sizes = np.linalg.norm(x, axis=1)
            with np.errstate(divide="ignore"):
                late += np.log(sizes) if k >= _SETTLED // 2 else 0.0
            x /= np.where(sizes > 0.0, sizes, 1.0)[:, None]
        best = int(late.argmax())
        return x[best], float(np.exp(late[best] / (_SETTLED - _SETTLED // 2)))

    @cached_property
    def _levels(self) -> tuple[list[Route], ...]:
        """The routes of 1, 2, ... steps."""
        return tuple(islice(routes(self.map, _ROUTES), _LONGEST))

    def _ray(self) -> Ray | None:
        """The ray that grows most of those of feasible products, and of the direction followed."""
        best: Ray | None = None
        for matrix, periods in self._products():
            values, vectors = np.linalg.eig(matrix)
            for k in np.flatnonzero((values.imag == 0.0) & (values.real > 0.0)):
                for v in (vectors[:, k].real, -vectors[:, k].real):
                    ray = Ray(v, float(values[k].real), periods)
                    if (best is None or ray.rate > best.rate) and self._is_ray(ray):
                        best = ray
        return best

    def _is_ray(self, ray: Ray) -> bool:
        x = ray.direction
        for _ in range(ray.periods):
            x = self.map(x)
        return float(np.linalg.norm(x / ray.factor - ray.direction)) <= _ON_RAY

    def _products(self) -> Iterator[tuple[Array, int]]:
        """Products of the pieces of successive periods, with the number of periods."""
        for level in self._levels:
            for route in level:
                yield route.matrices[-1], len(route.pieces)
        x, matrix = self._followed[0], np.eye(len(self.scale))
        for periods in range(1, 2 * _LONGEST + 1):
            piece = self.map.pieces[int(self.map.pieces_of(x[None])[0])]
            x, matrix = piece.matrix @ x, piece.matrix @ matrix
            yield matrix, periods

    def _forms(self, steps: int) -> FormSearch | None:
        """The search on cells of so many steps, None where they are too many."""
        if len(self._levels) <= steps:
            return None
        return FormSearch(self._levels[steps - 1], self._levels[steps])

    def _shrinking(self, least: float) -> tuple[PiecewiseForm | None, float]:
        """The form that grows least of those found, and the bound of growth that it proves."""
        best, high = None, max(float(np.linalg.norm(p.matrix, 2)) for p in self.map.pieces)
        for steps in range(1, self.depth + 1):
            search = self._forms(steps)
            if search is None:
                break
            found = search.shrinking(1.0 - 2.0 * _MARGIN) if least < 1.0 <= high else None
            if found is not None or steps == 1:
                best, high = found, high if found is None else found.rate
                low = max(least, _FLOOR * high)
                for _ in range(_HALVINGS):
                    middle = float(np.sqrt(low * high))
                    tried = search.shrinking(middle)
                    best, high, low = (
                        (best, high, middle) if tried is None else (tried, middle, low)
                    )
            if high < 1.0 or least >= 1.0:
                break
        return best, high

    def _growing(self, seen: float) -> PiecewiseForm | None:
        """A form that proves growth, if motions are seen to grow by `seen` per period."""
        for steps in range(1, self.depth + 1):
            search = self._forms(steps)
            if search is None:
                break
            for part in (0.9, 0.5, 0.1):
                found = search.growing(seen**part, self._followed[0])
                if found is not None:
                    return found
        return None


def balanced(map: ConewiseMap) -> tuple[ConewiseMap, Array]:
    """The map in coordinates x / scale in which its pieces are balanced, and the scale (n,)."""
    size = np.sum([np.abs(piece.matrix) for piece in map.pieces], axis=0)
    scale = matrix_balance(size, permute=False, separate=True)[1][0]
    pieces = []
    for matrix, cone in map.pieces:
        rows = cone * scale
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        pieces.append(LinearPiece(matrix * scale / scale[:, None], rows))
    return ConewiseMap(tuple(pieces)), scale


def _verdict(low: float, high: float) -> Verdict:
    if high < 1.0 - _MARGIN:
        return "stable"
    return "unstable" if low > 1.0 + _MARGIN else "undecided"


def _eigenvalues(matrix: Array) -> Array:
    """The eigenvalues, the largest modulus first."""
    values = np.linalg.eigvals(matrix)
    return np.asarray(values[np.argsort(-np.abs(values), kind="stable")])


def _directions(n: int) -> Array:
    """Random directions (m, n) of length 1, the same every time."""
    x = np.random.default_rng(0).normal(size=(_SPREAD, n))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
