r"""Coulomb's law for a set of contacts: contact states, problem, solution, and its certificate.

Let f be the impulses (or forces) along the rows of the contacts, and w = G f + b the velocities (or
accelerations) of these rows. G = J M^-1 J^T is the Delassus matrix, b what w is without forces.
Each contact has a normal row n and up to two tangent rows t. It is in one of these states:

.. math::
    \text{open: } & f = 0,\ w_n \ge 0; \qquad
    \text{closed: } w_n = 0,\ f_n \ge 0, \text{ and} \\
    \text{stick: } & w_t = 0,\ |f_t| \le \mu_s f_n; \qquad
    \text{slip: } f_t = -\mu f_n s,\ w_t = |w_t| s.

The unit vector s is the sliding direction. A contact that slides already has s given; then w_t is
free. Restitution is part of b: the law then holds for w_n = v_n+ + e v_n-. Sources: [RS]
(2.25)-(2.28) for impacts, (2.53)-(2.59) for accelerations.

Two equivalent forms are used by the solvers: a projection equation (`newton`), and a fixed point of
cone programmes (`cone_programme`).

Certificate. Violations of the law are measured in units of the data, never of the answer, so that
large forces excuse nothing. These are the units of the dimensionless problem (`scale_problem`):
V / d_i for velocities of contact i and (V / g) d_i for its forces. V is the size of the terms whose
sum is b, g_i the largest diagonal entry of the block of G of contact i, g the largest of these, and
d_i = sqrt(g / g_i). For the contact of largest response they are V and V / g. For others they are
smaller than V and V / g_i, as 1 <= d_i <= g / g_i, so that the certificate is stricter than one in
V and V / g_i. A solution is accepted if no violation exceeds `CERTIFIED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import hypot, sqrt
from typing import Literal, TypeAlias

import numpy as np

from hybridctl.base.checks import Array, Indices, is_finite


class ContactState(str, Enum):
    """State of one contact; the key of a mode of a contact system has one for each contact.

    A state equals its name as text, prints like it, and is stored like it, so that mode keys may be
    written with either. A closed contact without friction is CLOSED. With friction it is STICK,
    SLIP where it can slide in a surface, or, where it can slide along one direction only, SLIP_PLUS
    or SLIP_MINUS by the sign of its sliding velocity.
    """

    OPEN = "open"
    CLOSED = "closed"
    STICK = "stick"
    SLIP = "slip"
    SLIP_PLUS = "slip+"
    SLIP_MINUS = "slip-"

    __str__ = str.__str__
    __repr__ = str.__repr__


OPEN, CLOSED, STICK, SLIP, SLIP_PLUS, SLIP_MINUS = ContactState
SLIPS: dict[str, float] = {SLIP: 0.0, SLIP_PLUS: 1.0, SLIP_MINUS: -1.0}
"""Sliding states, with the sign of the sliding velocity; zero for SLIP, which has a direction."""

Modes: TypeAlias = tuple[str, ...]
"""Contact states, one for each contact."""

Uniqueness: TypeAlias = Literal["proven", "disproven", "not established"]
"""Whether the rates of a solution are the only ones that obey the law; forces need not be."""

CERTIFIED = 1e-9
"""Largest accepted violation of the law, in the units of the certificate (see the module).

Newton's method ends at about 1e-15 times the condition number of its equations. A choice."""
BOUNDARY_TOLERANCE = 1e-9
"""Slack, in the same units, up to which a contact counts as on the boundary of its state.

It equals `CERTIFIED`: within that no state is better than its neighbour."""
_MIN_RESPONSE = 1e-6
"""Smallest response g_i of a contact that scales its forces, relative to the largest.

Without it a contact that hardly moves under its own force would have units so large that its forces
could not be resolved. A choice."""


ContactData: TypeAlias = tuple[int, list[int], float, float, list[float] | None]
"""One contact of a problem as Python numbers: index, tangent rows, friction, sliding direction.

The index is also the normal row. Friction is the static, then the kinetic coefficient. The
direction is None for a contact at rest. A plain tuple: it is unpacked in every loop over contacts,
which takes longer for a class."""


@dataclass(frozen=True)
class CoulombProblem:
    """The law w = G f + b of k contacts with r rows: rows 0 to k - 1 are the normals.

    Units are those of the user: impulses in N s with velocities in m/s, or forces in N with
    accelerations in m/s^2.

    Attributes:
        delassus: G (r, r), symmetric and positive semidefinite.
        free: b (r,), the rates without contact forces.
        tangents: For each contact its tangent rows: none, one (in a plane) or two (in space).
        static: Coefficients of static friction (k,).
        kinetic: Coefficients of kinetic friction (k,).
        sliding: For each contact the unit direction in which it slides already, in the coordinates
            of its tangents; None if it is at rest.
        magnitude: Size of the terms whose sum is b, in the unit of b. Rounding and tolerances are
            relative to it; if it is below the largest entry of b that entry counts.
    """

    delassus: Array
    free: Array
    tangents: tuple[Indices, ...]
    static: Array
    kinetic: Array
    sliding: tuple[Array | None, ...]
    magnitude: float = 0.0

    def possible_states(self, i: int) -> Modes:
        """Return the states that contact i can be in: without tangents, in space, in a plane.

        A contact that slides already has a direction and a free w_t, so it opens or slides on.

        Args:
            i: Index of the contact.
        """
        rows, direction = self.tangents[i], self.sliding[i]
        if len(rows) == 0:
            return (OPEN, CLOSED)
        if len(rows) == 2:
            return (OPEN, SLIP) if direction is not None else (OPEN, STICK, SLIP)
        if direction is not None:
            return (OPEN, SLIP_PLUS if direction[0] > 0.0 else SLIP_MINUS)
        return (OPEN, STICK, SLIP_PLUS, SLIP_MINUS)

    def count_states(self) -> int:
        """Return the number of sets of contact states."""
        total = 1
        for i in range(len(self.static)):
            total *= len(self.possible_states(i))
        return total

    def has_unknown_direction(self, i: int, state: str) -> bool:
        """Return whether contact i begins to slide in space, in a direction to be found.

        Args:
            i: Index of the contact.
            state: Its state.
        """
        return state == SLIP and self.sliding[i] is None

    def restrict(self, contacts: Sequence[int]) -> CoulombProblem:
        """Return the problem of some contacts, while the others are open.

        Args:
            contacts: Indices (m,) of the contacts, each once. Contact k of the result is contact
                contacts[k].
        """
        chosen = np.array(contacts, dtype=np.intp)
        sizes = [len(self.tangents[i]) for i in contacts]
        rows = np.concatenate((chosen, *(self.tangents[i] for i in contacts)))
        places = np.split(np.arange(len(contacts), len(rows)), np.cumsum(sizes[:-1], dtype=np.intp))
        return CoulombProblem(
            delassus=self.delassus[np.ix_(rows, rows)],
            free=self.free[rows],
            tangents=tuple(places[: len(contacts)]),
            static=self.static[chosen],
            kinetic=self.kinetic[chosen],
            sliding=tuple(self.sliding[i] for i in contacts),
            magnitude=self.magnitude,
        )

    @cached_property
    def contacts(self) -> list[ContactData]:
        """Rows, friction and given direction of each contact."""
        columns = zip(
            self.tangents, self.static.tolist(), self.kinetic.tolist(), self.sliding, strict=True
        )
        return [
            (i, rows.tolist(), static, kinetic, None if given is None else given.tolist())
            for i, (rows, static, kinetic, given) in enumerate(columns)
        ]


@dataclass(frozen=True)
class CoulombSolution:
    """Forces and rates that obey the law up to a residual, and the contact states.

    Attributes:
        forces: Impulses or forces f (r,).
        rates: Velocities or accelerations w = G f + b (r,).
        modes: State of each contact.
        directions: Unit direction in which each contact slides, None if it does not slide.
        border: Contacts on the boundary between two states, which may change under any
            perturbation.
        residual: Largest violation of the law, in the units of the module's certificate.
        rate_residual: Largest violation of the conditions on rates alone, in the same units.
        uniqueness: Whether other rates obey the law too.
    """

    forces: Array
    rates: Array
    modes: Modes
    directions: tuple[Array | None, ...]
    border: tuple[int, ...]
    residual: float
    rate_residual: float
    uniqueness: Uniqueness = "not established"


@dataclass(frozen=True)
class ProblemUnits:
    """Units of a problem: forces and rates are these times those of the dimensionless problem.

    Attributes:
        forces: Units of the forces (r,).
        rates: Units of the rates (r,).
    """

    forces: Array
    rates: Array

    def restore(self, solution: CoulombSolution) -> CoulombSolution:
        """Return a solution of the dimensionless problem in the units of the original one.

        Args:
            solution: The solution. Its residuals stay dimensionless.
        """
        forces, rates = self.forces * solution.forces, self.rates * solution.rates
        return replace(solution, forces=forces, rates=rates)


def scale_problem(problem: CoulombProblem) -> tuple[CoulombProblem, ProblemUnits]:
    r"""Return the dimensionless problem, whose G is symmetric with entries of at most one.

    With :math:`d_i = \sqrt{g / g_i}` and g the largest g_i, :math:`f_i = (V / g) d_i f'_i` and
    :math:`w_i = V w'_i / d_i`. The largest diagonal entry of each block of G is then 1; it is less
    for contacts whose response is below `_MIN_RESPONSE`. As 1 <= d_i <= g / g_i, an error in f' is
    no smaller than the same error in units of V / g_i, and one in w' no smaller than in units of V.

    Args:
        problem: Problem in any units.

    Returns:
        The dimensionless problem (magnitude 1), and the units of its forces and rates.
    """
    diagonal = problem.delassus.diagonal().tolist()
    responses = [
        max([diagonal[i], *[diagonal[row] for row in rows]]) for i, rows, *_ in problem.contacts
    ]
    each, largest = compute_force_scales(responses)
    d = np.empty(len(diagonal))
    for (i, rows, *_), factor in zip(problem.contacts, each, strict=True):
        d[i] = d[rows] = factor
    # A problem in which nothing moves has no unit of velocity: any will do.
    speed = max([problem.magnitude, *map(abs, problem.free.tolist())]) or 1.0
    units = ProblemUnits((speed / largest) * d, speed / d)
    plain = CoulombProblem(
        delassus=problem.delassus * (d[:, None] * (d / largest)),
        free=problem.free / units.rates,
        tangents=problem.tangents,
        static=problem.static,
        kinetic=problem.kinetic,
        sliding=problem.sliding,
        magnitude=1.0,
    )
    return plain, units


def compute_force_scales(responses: list[float]) -> tuple[list[float], float]:
    r"""Return the scales :math:`d_i = \sqrt{g / g_i}` of forces, and the largest response g.

    Args:
        responses: Response g_i of each contact, its largest diagonal entry of G. Those below 1e-6
            of the largest count as that.
    """
    # Where no contact responds to forces, responses give no unit of forces: any will do.
    largest = max(responses, default=0.0) or 1.0
    return [sqrt(largest / max(g, _MIN_RESPONSE * largest)) for g in responses], largest


def evaluate_forces(
    problem: CoulombProblem, forces: Array, modes: Modes | None = None
) -> CoulombSolution:
    """Return the solution that forces are, with its residual by the law.

    First forces are rounded to what the states allow: normal forces that pull by at most 1e-9 and
    forces of open contacts are set to zero, and friction of a sliding contact is set to -mu f_n s.

    Args:
        problem: Dimensionless problem (see `scale_problem`).
        forces: Proposed forces (r,).
        modes: States in which the law is evaluated. If None, each contact has the state that its
            forces and rates show: it is closed, or sticks, if it may do so within 1e-9.

    Returns:
        The solution. Its residual is infinite if forces are not finite.
    """
    forces = forces.copy()
    rates = problem.delassus @ forces + problem.free
    states: list[str] = []
    directions: list[Array | None] = []
    for i, rows, _, kinetic, given in problem.contacts:
        force, rate = forces[[i, *rows]].tolist(), rates[[i, *rows]].tolist()
        state = _classify_contact(force, rate, given) if modes is None else modes[i]
        direction = None
        if -BOUNDARY_TOLERANCE <= force[0] < 0.0:
            force[0] = forces[i] = 0.0
        if state == OPEN:
            forces[[i, *rows]] = 0.0
        elif state != STICK and rows:
            direction = _find_sliding_direction(state, force[1:], rate[1:], given)
            forces[rows] = -kinetic * force[0] * direction
        states.append(state)
        directions.append(direction)
    rates = problem.delassus @ forces + problem.free
    force_violations, rate_violations, border = [0.0], [0.0], []
    for (i, rows, static, _, given), state, s in zip(
        problem.contacts, states, directions, strict=True
    ):
        force, rate = forces[[i, *rows]].tolist(), rates[[i, *rows]].tolist()
        # How far force and rate are inside the inequalities of the state; infinite without one.
        # A slack below zero is a violation. Equations add theirs to `rate_violations`.
        force_slack, rate_slack = force[0], np.inf
        if state == OPEN:
            force_slack, rate_slack = np.inf, rate[0]
        else:
            rate_violations.append(abs(rate[0]))
        if state == STICK:
            rate_violations.append(hypot(*rate[1:]))
            force_slack = min(force_slack, static * force[0] - hypot(*force[1:]))
        elif s is not None and given is None:
            rate_slack = float(s @ rate[1:])
            rate_violations.append(hypot(*(rate[1:] - rate_slack * s)))
        force_violations.append(-force_slack)
        rate_violations.append(-rate_slack)
        if min(force_slack, rate_slack) <= BOUNDARY_TOLERANCE:
            border.append(i)
    # `max` passes over NaN, so that forces that are not finite need a test of their own.
    rate_residual = max(rate_violations) if is_finite(forces) else np.inf
    residual = max(rate_residual, *force_violations)
    return CoulombSolution(
        forces=forces,
        rates=rates,
        modes=tuple(states),
        directions=tuple(directions),
        border=tuple(border),
        residual=residual,
        rate_residual=rate_residual,
    )


def _classify_contact(force: list[float], rate: list[float], given: list[float] | None) -> str:
    """Return the state of a contact that its forces and rates, normal ones first, show.

    At an exact solution either f_n or w_n is zero, so that the sign of w_n - f_n decides.
    """
    # The difference is not changed much by rounding of the one that should be zero.
    if rate[0] - force[0] > BOUNDARY_TOLERANCE:
        return OPEN
    if len(rate) == 1:
        return CLOSED
    if given is None and hypot(*rate[1:]) <= BOUNDARY_TOLERANCE:
        return STICK
    if len(rate) == 3:
        return SLIP
    return SLIP_PLUS if (rate[1] if given is None else given[0]) > 0.0 else SLIP_MINUS


def _find_sliding_direction(
    state: str, friction: list[float], slip: list[float], given: list[float] | None
) -> Array:
    """Return the unit direction in which a contact slides: that of w_t - f_t.

    Both terms point along s, so that the sum has a direction where the contact begins to slide
    (w_t = 0) and where it carries no load (f_t = 0). Where both vanish any direction will do.
    """
    if given is not None:
        return np.array(given)
    if state != SLIP:
        return np.array([SLIPS[state]])
    along = [w - f for w, f in zip(slip, friction, strict=True)]
    length = hypot(*along)
    return np.array(along) / length if length > 0.0 else np.array([1.0, 0.0])
