r"""Periodic orbits and long trajectories: Floquet multipliers, return maps, Lyapunov exponents.

Over one period the first-order map of a trajectory is its monodromy matrix, [Salt] III-C,

.. math:: \Phi = \mathcal G_N \Phi_N \cdots \mathcal G_1 \Phi_1 ,

or S times this where an orbit closes up to a symmetry S (see `symmetry`). Where nothing depends on
time the field f is an eigenvector of it with eigenvalue 1, and the other eigenvalues are those of
the return map P of a section with normal n,

.. math:: DP = \Big(I - \frac{f\, n^T}{n^T f}\Big) \Phi .
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import GrazingError, InputError
from hybridctl.hybrid.arc import Arc
from hybridctl.sensitivity.first_order import FirstOrderMap
from hybridctl.sensitivity.symmetry import Symmetry, carried, closing_error, seen_as
from hybridctl.sensitivity.variation import along

_TANGENT = 1e-9
_FLOW = 1e-5


@dataclass(frozen=True, eq=False)
class FloquetMultipliers:
    """The eigenvalues of a monodromy matrix.

    values (ndx,): complex, the largest modulus first. period: s. trivial: the names of those that
    say nothing about stability, by index: "flow", the 1 whose eigenvector is the field of an
    autonomous system; the 1 of each free direction of a symmetry, by its name; "held", of
    deviations that the mode at the start does not allow, such as a foot off the ground.
    """

    values: NDArray[np.complex128]
    period: float
    trivial: Mapping[int, str]

    @property
    def along_flow(self) -> int | None:
        """The index of the multiplier along the flow, None where the system depends on time."""
        return next((i for i, name in self.trivial.items() if name == "flow"), None)

    @property
    def others(self) -> NDArray[np.complex128]:
        """The multipliers that are not trivial; they decide about stability."""
        return np.delete(self.values, list(self.trivial))

    @property
    def is_stable(self) -> bool:
        """Whether deviations from the orbit die out: all others are inside the unit circle."""
        return bool((np.abs(self.others) < 1.0).all())


def monodromy(
    lin: FirstOrderMap, *, symmetry: Symmetry | None = None, tolerance: float = 1e-6
) -> Array:
    """The derivative D x(end) / D x(start), (ndx, ndx), of one period of an orbit.

    With a symmetry S the image S x(end) takes the place of x(end). Raises `InputError` where the
    trajectory does not end in the mode and, to `tolerance` relative to 1 + |x|, in the state in
    which it starts, and where it is only piecewise linear.
    """
    check_closed(lin, symmetry, tolerance)
    return carried(symmetry, lin.state_transition)


def check_closed(lin: FirstOrderMap, symmetry: Symmetry | None, tolerance: float) -> None:
    """Raise `InputError` where a trajectory does not end as it starts, see `monodromy`."""
    first, last = lin.trajectory.arcs[0], lin.trajectory.arcs[-1]
    if symmetry is not None:
        symmetry.check(first.space)
    if first.mode != seen_as(symmetry, last.mode):
        raise InputError(
            f"trajectory must be periodic, but starts in mode {first.mode!r} and ends in "
            f"{seen_as(symmetry, last.mode)!r}"
        )
    start = first(first.start)
    gap = closing_error(symmetry, first.space, start, lin.trajectory.final_state)
    off = float(np.abs(gap).max())
    allowed = check_number("tolerance", tolerance, above=0.0) * (1.0 + float(np.abs(start).max()))
    if off > allowed:
        raise InputError(
            f"trajectory must be periodic, but its final state differs from its initial one by "
            f"{off:.3g}, more than {allowed:.3g}"
        )


def floquet_multipliers(
    lin: FirstOrderMap, *, symmetry: Symmetry | None = None, tolerance: float = 1e-6
) -> FloquetMultipliers:
    """The eigenvalues of the monodromy matrix, [Salt] III-C; raises what `monodromy` raises.

    What is known of them is split off first, so that others near 1 or 0 stay accurate: the field
    of an autonomous system, found by the matrix that maps it to itself; the free directions of a
    symmetry; and what the mode at the start holds, which deviations that obey it go on obeying.

    Raises `InputError` where a free direction is not mapped to itself.
    """
    matrix = monodromy(lin, symmetry=symmetry, tolerance=tolerance)
    period = lin.trajectory.end - lin.trajectory.start
    known, held, across = trivial_directions(lin, [matrix], symmetry)
    directions = np.array(list(known.values())).reshape(len(known), len(matrix))
    values = np.concatenate(
        [
            [d @ matrix @ d / (d @ d) for d in directions],
            np.linalg.eigvals(held @ matrix @ np.linalg.pinv(held)),
            np.linalg.eigvals(across.T @ matrix @ across),
        ]
    ).astype(np.complex128)
    names = [*known, *["held"] * len(held)]
    ranks = np.argsort(-np.abs(values), kind="stable").tolist()
    trivial = {at: names[k] for at, k in enumerate(ranks) if k < len(names)}
    return FloquetMultipliers(values[ranks], period, trivial)


class TrivialDirections(NamedTuple):
    """What is known of the return of deviations.

    known: directions (ndx,) that a period maps to themselves, by name. held (k, ndx): the
    derivatives of what the mode at the start holds. across (ndx, m): an orthonormal basis of the
    deviations that hold it, across the known ones.
    """

    known: dict[str, Array]
    held: Array
    across: Array


def trivial_directions(
    lin: FirstOrderMap, matrices: Sequence[Array], symmetry: Symmetry | None
) -> TrivialDirections:
    """What all these matrices of a period leave alone; see `floquet_multipliers`."""
    known: dict[str, Array] = {}
    if symmetry is not None:
        for name, direction in zip(symmetry.free, symmetry.directions.T, strict=True):
            for matrix in matrices:
                if not _carries(matrix, direction):
                    raise InputError(
                        f"symmetry: motions must not depend on the free direction {name!r}, but a "
                        f"period maps it to {(matrix @ direction).tolist()}"
                    )
            known[name] = direction
    f = velocity(lin, lin.trajectory.arcs[0], lin.trajectory.start)
    if all(_carries(matrix, f) for matrix in matrices):
        known["flow"] = f
    held = _held(lin)
    rows = np.vstack([held, *known.values()])
    across = np.asarray(null_space(rows)) if len(rows) else np.eye(len(f))
    return TrivialDirections(known, held, across)


def _held(lin: FirstOrderMap) -> Array:
    """The derivatives (k, ndx) of what the mode at the start holds, where they are known."""
    arc = lin.trajectory.arcs[0]
    held = lin.system.mode(arc.mode).held
    if held is None or held.jacobian is None:
        return np.zeros((0, arc.space.ndx))
    return held.jacobian(arc(arc.start))


def lyapunov_exponents(
    lin: FirstOrderMap, *, settle: float = 0.0, interval: float = np.inf
) -> Array:
    r"""All Lyapunov exponents (ndx,) of a long trajectory in 1/s, the largest first.

    An orthonormal frame is carried through arcs and jumps, and split again by :math:`\Phi Q =
    Q' R` after each, and after `interval` s within one: the exponents are the means of
    :math:`\log |R_{ii}|` over the time after the first `settle` s, in which the frame finds its
    directions. On a periodic orbit they tend to the logarithms of the moduli of its multipliers
    divided by the period, [Salt] III-C. A direction that a jump destroys has minus infinity.

    Raises `InputError` where the trajectory is piecewise linear or its dimension changes.
    """
    check_number("settle", settle, at_least=0.0)
    if not interval > 0.0:
        raise InputError(f"interval must be greater than 0, got {interval}")
    arcs = lin.trajectory.arcs
    begin, n = lin.trajectory.start + settle, arcs[0].space.ndx
    if not begin < lin.trajectory.end:
        raise InputError(
            f"settle must be less than the {lin.trajectory.end - lin.trajectory.start} s of the "
            f"trajectory, got {settle}"
        )
    sizes = {arc.space.ndx for arc in arcs}
    if len(sizes) > 1:
        raise InputError(f"trajectory must keep its dimension, but has {sorted(sizes)}")
    total, frame = np.zeros(n), np.eye(n)
    for k, arc in enumerate(arcs):
        for part in _parts(arc, begin, interval):
            gain = None if lin.gains is None else lin.gains[k]
            mode = lin.system.mode(arc.mode)
            end = along(mode, part, frame, gain=gain, rtol=lin.rtol, atol=lin.atol).end
            frame, growth = _split(end)
            total += growth if part.start >= begin else 0.0
        if k < len(lin.jumps):
            frame, growth = _split(lin.linear_jump(k).state @ frame)
            total += growth if arc.end >= begin else 0.0
    return -np.sort(-total / (lin.trajectory.end - begin))


def velocity(lin: FirstOrderMap, arc: Arc, t: float) -> Array:
    """The field (ndx,) at time t of an arc."""
    field = lin.system.mode(arc.mode).field
    return np.asarray(field(t, *arc.state_and_input(t)), dtype=np.float64)


def _carries(matrix: Array, f: Array) -> bool:
    """Whether the monodromy matrix maps the field to itself, as in autonomous systems only."""
    size = float(np.abs(f).max())
    return size > 0.0 and float(np.abs(matrix @ f - f).max()) <= _FLOW * size


def projection(f: Array, normal: Array) -> Array:
    """The projection I - f n^T / (n^T f), (ndx, ndx), along the flow back to the section."""
    rate = float(normal @ f)
    if not abs(rate) > _TANGENT * float(np.abs(normal) @ np.abs(f)):
        raise GrazingError(f"the flow does not cross the section: n . f = {rate:.3g}")
    return np.eye(len(f)) - np.outer(f, normal) / rate


def _parts(arc: Arc, begin: float, interval: float) -> Iterator[Arc]:
    """The arc cut at `begin` and into parts of at most `interval`."""
    cuts = [arc.start, *([begin] if arc.start < begin < arc.end else []), arc.end]
    for start, end in pairwise(cuts):
        ends = np.linspace(start, end, int(max(np.ceil((end - start) / interval), 1)) + 1)
        for a, b in pairwise(ends):
            yield replace(arc, start=float(a), end=float(b))


def _split(columns: Array) -> tuple[Array, Array]:
    """Orthonormal columns, and the logarithms (n,) of what they grew by."""
    frame, upper = np.linalg.qr(columns)
    growth = np.abs(np.diag(upper))
    growth[growth <= 1e-14 * len(growth) * np.abs(columns).max()] = 0.0
    with np.errstate(divide="ignore"):
        return frame, np.log(growth)
