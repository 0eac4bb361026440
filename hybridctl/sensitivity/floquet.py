r"""Floquet multipliers: the eigenvalues of the linearization of a periodic orbit.

Over one period the linearization of a run is its monodromy matrix, [Salt] III-C,

.. math:: M = \Phi_N\, \mathcal G_N \cdots \mathcal G_1\, \Phi_0,

or S M for an orbit that closes up to a symmetry S (see `symmetry`). In an autonomous system the
field f is an eigenvector with eigenvalue 1. The other eigenvalues are those of the return map P of
a section with normal n,

.. math:: DP = \Big(I - \frac{f\, n^T}{n^T f}\Big) M .
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import GrazingError, InputError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.symmetry import (
    CLOSING_TOLERANCE,
    Symmetry,
    compute_closing_error,
    map_mode,
    map_perturbations,
)

_TANGENT_RATIO = 1e-9
"""Rate n . f up to which a flow is tangent to a section, relative to |n| . |f|."""
_FIXED_DIRECTION = 1e-5
"""Change of a direction over a period up to which it is mapped to itself, relative to its largest
entry.

Orbits close to 1e-6 by default, and the field at their ends differs by about that."""


class PeriodicMap(Protocol):
    """The part of a `Linearization` that Floquet multipliers need; its file imports this one."""

    @property
    def system(self) -> HybridSystem:
        """The hybrid system."""

    @property
    def trajectory(self) -> HybridTrajectory:
        """One period of the orbit."""

    @property
    def state_transition(self) -> Array:
        """The derivative D x(end) / D x(start), (ndx, ndx)."""


@dataclass(frozen=True, eq=False)
class FloquetMultipliers:
    """The eigenvalues of a monodromy matrix.

    Attributes:
        values: Complex multipliers (ndx,), the largest modulus first.
        period: Period, s.
        trivial: Names of the multipliers that do not decide stability, by index. "flow": the 1
            of the field of an autonomous system. The name of a free direction of the symmetry: its
            1. "held": multipliers of perturbations that violate a constraint of the mode at the
            start, as one that lifts a foot off the ground; motions have no such perturbations.
    """

    values: NDArray[np.complex128]
    period: float
    trivial: Mapping[int, str]

    @property
    def along_flow(self) -> int | None:
        """The index of the multiplier along the flow.

        None if a period does not map the field to itself: the system depends on time, or the orbit
        is a point of rest.
        """
        return next((i for i, name in self.trivial.items() if name == "flow"), None)

    @property
    def others(self) -> NDArray[np.complex128]:
        """The multipliers that are not trivial; they decide about stability."""
        return np.delete(self.values, list(self.trivial))

    @property
    def is_stable(self) -> bool:
        """Whether perturbations die out: all `others` are inside the unit circle."""
        return bool((np.abs(self.others) < 1.0).all())


def monodromy(
    lin: PeriodicMap, *, symmetry: Symmetry | None = None, tolerance: float = CLOSING_TOLERANCE
) -> Array:
    """Return the monodromy matrix of one period of an orbit.

    Args:
        lin: Linearization of the period.
        symmetry: Symmetry S up to which the orbit closes. None if it closes itself.
        tolerance: Largest gap between final and initial state, relative to 1 + |x|.

    Returns:
        The matrix (ndx, ndx), with a symmetry that of S x(end).

    Raises:
        InputError: The run does not close, or its linearization is piecewise linear.
    """
    check_closed(lin, symmetry, tolerance)
    return map_perturbations(symmetry, lin.state_transition)


def check_closed(lin: PeriodicMap, symmetry: Symmetry | None, tolerance: float) -> None:
    """Check that a run ends as it starts, in mode and state.

    Args:
        lin: Linearization of the run.
        symmetry: Symmetry up to which the run closes. None if it closes itself.
        tolerance: Largest gap between final and initial state, relative to 1 + |x|.

    Raises:
        InputError: It does not.
    """
    first, last = lin.trajectory.arcs[0], lin.trajectory.arcs[-1]
    if symmetry is not None:
        symmetry.check(first.space)
    if first.mode != map_mode(symmetry, last.mode):
        raise InputError(
            f"trajectory must be periodic, but starts in mode {first.mode!r} and ends in "
            f"{map_mode(symmetry, last.mode)!r}"
        )
    start = first(first.start)
    gap = compute_closing_error(symmetry, first.space, start, lin.trajectory.final_state)
    size = float(np.abs(gap).max())
    allowed = check_number("tolerance", tolerance, above=0.0) * (1.0 + float(np.abs(start).max()))
    if size > allowed:
        raise InputError(
            f"trajectory must be periodic, but its final state differs from its initial one by "
            f"{size:.3g}, more than {allowed:.3g}: close it better, or give a larger tolerance"
        )


def floquet_multipliers(
    lin: PeriodicMap, *, symmetry: Symmetry | None = None, tolerance: float = CLOSING_TOLERANCE
) -> FloquetMultipliers:
    """Return the eigenvalues of the monodromy matrix, [Salt] III-C.

    Known eigenvectors are split off first (`find_trivial_directions`), so that other eigenvalues
    near 1 or 0 stay accurate.

    Args:
        lin: Linearization of one period.
        symmetry: Symmetry S up to which the orbit closes. None if it closes itself.
        tolerance: Largest gap between final and initial state, relative to 1 + |x|.

    Returns:
        The multipliers. An `InputError` if the run does not close, its linearization is piecewise
        linear, or a free direction of the symmetry is not mapped to itself.
    """
    matrix = monodromy(lin, symmetry=symmetry, tolerance=tolerance)
    period = lin.trajectory.end - lin.trajectory.start
    known, constraints, across = find_trivial_directions(lin, [matrix], symmetry)
    directions = np.array(list(known.values())).reshape(len(known), len(matrix))
    values = np.concatenate(
        [
            [d @ matrix @ d / (d @ d) for d in directions],
            np.linalg.eigvals(constraints @ matrix @ np.linalg.pinv(constraints)),
            np.linalg.eigvals(across.T @ matrix @ across),
        ]
    ).astype(np.complex128)
    names = [*known, *["held"] * len(constraints)]
    ranks = np.argsort(-np.abs(values), kind="stable").tolist()
    trivial = {i: names[k] for i, k in enumerate(ranks) if k < len(names)}
    return FloquetMultipliers(values[ranks], period, trivial)


class TrivialDirections(NamedTuple):
    """Directions that do not decide the stability of an orbit, and those that do.

    Attributes:
        known: Directions (ndx,) that a period maps to themselves, by name.
        constraints: Jacobian (k, ndx) of the constraints of the mode at the start. Perturbations
            that obey them go on obeying them.
        across: Orthonormal basis (ndx, m) of the perturbations that obey the constraints and are
            orthogonal to the known directions.
    """

    known: dict[str, Array]
    constraints: Array
    across: Array


def find_trivial_directions(
    lin: PeriodicMap, matrices: Sequence[Array], symmetry: Symmetry | None
) -> TrivialDirections:
    """Return the directions that all these monodromy matrices map to themselves, and the others.

    Args:
        lin: Linearization of one period.
        matrices: Monodromy matrices (ndx, ndx): one, or those of all pieces.
        symmetry: Symmetry up to which the orbit closes. None if it closes itself.

    Returns:
        The free directions of the symmetry, the field of an autonomous system as "flow", the
        constraints, and the rest.

    Raises:
        InputError: A free direction is not mapped to itself.
    """
    known: dict[str, Array] = {}
    if symmetry is not None:
        directions = symmetry.find_directions(lin.trajectory.arcs[0](lin.trajectory.start))
        for name, direction in zip(symmetry.free, directions.T, strict=True):
            for matrix in matrices:
                if not _is_fixed(matrix, direction):
                    raise InputError(
                        f"symmetry: motions must not depend on the free direction {name!r}, but a "
                        f"period maps it to {(matrix @ direction).tolist()}"
                    )
            known[name] = direction
    f = evaluate_field(lin, lin.trajectory.arcs[0], lin.trajectory.start)
    # The monodromy matrix of an autonomous system has the eigenvector f; under a law of time it has
    # not, in general.
    if all(_is_fixed(matrix, f) for matrix in matrices):
        known["flow"] = f
    constraints = _differentiate_constraints(lin)
    rows = np.vstack([constraints, *known.values()])
    across = np.asarray(null_space(rows)) if len(rows) else np.eye(len(f))
    return TrivialDirections(known, constraints, across)


def evaluate_field(lin: PeriodicMap, arc: Arc, t: float) -> Array:
    """Return the field (ndx,) at the recorded state and input of an arc.

    Args:
        lin: Linearization of the run.
        arc: An arc of the run.
        t: Time, s.
    """
    mode = lin.system.mode(arc.mode)
    return np.asarray(mode.calc(t, *arc.state_and_input(t)).field, dtype=np.float64)


def project_along_flow(f: Array, normal: Array) -> Array:
    """Return the projection I - f n^T / (n^T f) along the flow back to a section.

    Args:
        f: Field (ndx,).
        normal: Normal n (ndx,) of the section.

    Returns:
        The projection (ndx, ndx).

    Raises:
        GrazingError: The flow is tangent to the section.
    """
    rate = float(normal @ f)
    if not abs(rate) > _TANGENT_RATIO * float(np.abs(normal) @ np.abs(f)):
        raise GrazingError(f"the flow does not cross the section: n . f = {rate:.3g}")
    return np.eye(len(f)) - np.outer(f, normal) / rate


def _differentiate_constraints(lin: PeriodicMap) -> Array:
    """Return the Jacobian (k, ndx) of the constraints of the first mode; (0, ndx) if unknown."""
    arc = lin.trajectory.arcs[0]
    held = lin.system.mode(arc.mode).held
    if held is None or held.jacobian is None:
        return np.zeros((0, arc.space.ndx))
    return held.jacobian(arc(arc.start))


def _is_fixed(matrix: Array, direction: Array) -> bool:
    """Return whether a matrix maps a direction to itself; a direction of zero is none."""
    size = float(np.abs(direction).max())
    change = np.abs(matrix @ direction - direction)
    return size > 0.0 and float(change.max()) <= _FIXED_DIRECTION * size
