r"""The field and the guards of one mode of a contact system as CasADi expressions.

For sums of few terms and without a branch, so that a whole integrator step can be one function:

.. math:: M a + h = S u + J^T E m, \qquad C a = c

with multipliers m of the normals of closed contacts and the tangents of sticking ones, C = these
rows of J, and E the forces on all rows that come with m: friction of sliding contacts besides.
Dry friction of a joint that slips is a known force beside these: its load does not depend on m.
Where the rows C are redundant, loads are shared as in `equations`. Which of them are is looked for
at a few configurations, once; `sound` says whether that holds at a state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from scipy.linalg import qr

from hybridctl.base.checks import Array, Indices
from hybridctl.mechanics.constrained import phase, tolerances
from hybridctl.mechanics.constrained.phase import ClosedRows
from hybridctl.mechanics.constrained.tolerances import JAMMED, LEAST_WEIGHT, STOPPED
from hybridctl.mechanics.contact_law.law import OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import RANK
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.joint_contacts import AnyContact
from hybridctl.mechanics.multibody.expressions import Expression
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_expressions import RowExpressions
from hybridctl.mechanics.terms.generated import Constants, sources
from hybridctl.symbolic.compiled_step import find_least_soundness

_SAMPLED_ON_SURFACE = 1e-9
"""Gaps, in m, of the configurations at which redundant rows are looked for."""
_LEAST_SPEED = 2e-7
"""In m/s: slower slides in a surface are left to the dynamics, which know other directions;
derivatives, which grow as 1 / |v_t|, are bounded by it. Ten times `STANDSTILL`."""
_LEAST_PIVOT = 1e-6
"""Of compiled modes relative to the largest: divisions go wrong by rounding over this, 1e-10."""
_TINY = 1e-300  # makes the derivative of a norm zero where the norm is
_LOOKS, _NEWTON = 8, 30

Solve = Callable[[Expression], Expression]


class ModeField(NamedTuple):
    """The rate dx/dt (nq + nv, 1) and guards (n, 1) of a mode in symbols x = (q, v) and u.

    rates (nq, nv): T(q) of dq/dt = T v. forces (r, 1): on all rows of all contacts, zero where
    open. Guards are in the order of `guards`. margin: the least pivot of the equations relative
    to the largest; minus what rows taken to be redundant miss; 0 where contacts share friction but
    carry no load.

    sound: positive where all this is what the dynamics say. It is not where the margin is small,
    where what slides in a surface all but stands still, and where forces of redundant contacts
    leave their cones, because the dynamics then look for others.
    """

    x: Expression
    u: Expression
    field: Expression
    rates: Expression
    forces: Expression
    guards: Expression
    margin: Expression
    sound: Expression


class ModeEquations(NamedTuple):
    """All that the expressions of a mode are made of.

    tangents: the rows of those of each contact. independent: of the rows that are held.
    """

    constants: Constants
    tangents: tuple[Indices, ...]
    modes: Modes
    stabilization: float
    independent: _Independent

    @staticmethod
    def of(
        robot: Robot,
        members: ContactSet,
        contacts: Sequence[AnyContact],
        modes: Modes,
        stabilization: float,
    ) -> ModeEquations:
        """The expressions of a robot, members being the set of its contacts.

        Residuals decay at `stabilization` 1/s.
        """
        constants = Constants.of(robot, members, _friction_of(contacts))
        tangents = members.tangents
        part = PhaseExpressions(tangents, constants.friction, modes, constants.loads)
        independent = _independent_rows(robot, members, part)
        return ModeEquations(
            constants, tangents, tuple(map(str, modes)), stabilization, independent
        )

    @property
    def part(self) -> PhaseExpressions:
        """The rows that the mode holds."""
        c = self.constants
        return PhaseExpressions(self.tangents, c.friction, self.modes, c.loads)

    def key(self, *parts: Any) -> str:
        """A name under which to keep what is made from these, but for numbers, and from `parts`."""
        made_by = sources(tolerances.__file__, phase.__file__, __file__)
        return self.constants.key(made_by, RANK, *self[1:], *parts)


def mode_field(
    robot: Robot, contacts: Sequence[Contact], modes: Modes, *, stabilization: float = 0.0
) -> ModeField:
    """The expressions of a mode, with residuals that decay at `stabilization` 1/s.

    Raises `InputError` for a surface for which no expression is known.
    """
    members = ContactSet(robot, contacts)
    return field_of(ModeEquations.of(robot, members, contacts, modes, stabilization))


def field_of(equations: ModeEquations) -> ModeField:
    """The expressions that are made of these; their constants may be symbols."""
    c, part = equations.constants, equations.part
    x, u = ca.SX.sym("x", c.nq + c.nv), ca.SX.sym("u", c.actuation.shape[1])
    q, v = x[: c.nq], x[c.nq :]
    bodies, drive, jacobian, rows = c.terms(q, v, u)
    by_mass, _ = cholesky(bodies.mass())
    known = part.known_forces()
    free = by_mass(drive + jacobian.T @ known)
    if part.rows:
        target = _target(rows, c.contact_count, equations.stabilization)[part.rows]
        mix = part.mix(rows.rates)
        response = by_mass(jacobian.T @ mix)
        held = jacobian[part.rows, :]
        delassus, wanted = held @ response, target - held @ free
        independent = equations.independent
        m, margin = _multipliers(part, delassus, wanted, independent)
        ratio = ca.SX(1.0)
        if part.slides_freely:
            ratio = _response_ratio(delassus, held @ by_mass(held.T), independent.rows)
        acceleration, forces = free + response @ m, mix @ m + known
        redundant = len(independent.rows) < len(part.rows)
        cones = part.cones(forces) if redundant else []
        sound = find_least_soundness([margin - _LEAST_PIVOT, *part.speeds(rows), *cones])
    else:
        acceleration, forces, margin = free, known, ca.SX(1.0)
        sound = margin
        ratio = ca.SX(1.0)
    field = ca.vertcat(bodies.rate @ v, acceleration)
    guards = part.guards(rows, forces, ratio)
    return ModeField(x, u, field, bodies.rate, forces, guards, margin, sound)


def mode_derivatives(mode: ModeField) -> list[Expression]:
    """The derivatives of (v, a), then of the guards, by (q, v) (., 2 nv) and by u (., nu)."""
    nq, nv = mode.rates.shape
    by_tangent = ca.diagcat(mode.rates, ca.SX.eye(nv))
    velocity_and_acceleration = mode.x[nq:], mode.field[nq:]
    both = ca.vertcat(*velocity_and_acceleration, mode.guards)
    by_state, by_input = ca.jacobian(both, mode.x) @ by_tangent, ca.jacobian(both, mode.u)
    n = 2 * nv
    return [by_state[:n, :], by_input[:n, :], by_state[n:, :], by_input[n:, :]]


def _target(rows: RowExpressions, count: int, s: float) -> Expression:
    """What J a (r, 1) must be for contacts to stay closed and sticking."""
    gaps = ca.vertcat(rows.piece_gaps, ca.SX.zeros(rows.rates.numel() - count, 1))
    return -rows.accelerations - 2.0 * s * rows.rates - s * s * gaps


def _friction_of(contacts: Sequence[AnyContact]) -> Array:
    """Kinetic and static coefficients (c, 2)."""
    pairs = [(contact.friction, contact.static_friction) for contact in contacts]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


class PhaseExpressions(ClosedRows):
    """The rows of all contacts that a mode holds, and the forces that come with them.

    Contacts that are pressed by a constant load, as dry friction of joints is, have a known normal
    force: their normal rows are not held. Row i of all is the normal of contact i.

    Args:
        tangents: For each of all c contacts its rows among all rows.
        friction: Kinetic and static coefficients (c, 2).
        modes: Modes of all contacts.
        loads: What presses each contact, (1, 1) in N or N m; a structural zero for none.

    Attributes:
        rows: Held rows, counted among all: normals of closed contacts that are not pressed, then
            tangents of sticking ones.
        solid: Closed contacts that are not pressed.
        slides_freely: Whether a solid contact slides, which makes the equations unsymmetric.
        rubs: Whether a solid contact slides with friction.
    """

    def __init__(
        self,
        tangents: Sequence[Indices],
        friction: Array | Expression,
        modes: Modes,
        loads: Sequence[Expression],
    ) -> None:
        super().__init__(tangents, modes)
        self._friction, self._tangents = ca.SX(friction), [rows.tolist() for rows in tangents]
        self._loads = loads
        self.pressed = [i for i in self.closed if not loads[i].is_zero()]
        self.solid = [i for i in self.closed if i not in self.pressed]
        self.rows = [row for row in self.held_rows.tolist() if row not in self.pressed]
        sliding = [i for i in self.solid if modes[i] in SLIPS]
        self.slides_freely = bool(sliding)
        self.rubs = any(not self._friction[i, 0].is_zero() for i in sliding)
        self._size = len(modes) + sum(map(len, tangents))

    @staticmethod
    def of(members: ContactSet, contacts: Sequence[Contact], modes: Modes) -> PhaseExpressions:
        """Return the rows of contacts in space, with their own coefficients."""
        none = [ca.SX(0.0)] * len(contacts)
        return PhaseExpressions(members.tangents, _friction_of(contacts), modes, none)

    def known_forces(self) -> Expression:
        """Return the forces (r, 1) on all rows that do not depend on multipliers.

        They are loads of pressed contacts, and friction of those that slip, -mu N sign(v).
        """
        forces = ca.SX.zeros(self._size, 1)
        for i in self.pressed:
            forces[i] = self._loads[i]
            if self.modes[i] in SLIPS:
                limit = self._friction[i, 0] * self._loads[i]
                forces[self._tangents[i]] = -SLIPS[self.modes[i]] * limit
        return forces

    def normal_forces(self, multipliers: Expression) -> Expression:
        """Return the normal forces (k, 1) of the closed contacts, loads among them."""
        solid = iter(ca.vertsplit(multipliers)[: len(self.solid)])
        return ca.vertcat(
            *(self._loads[i] if i in self.pressed else next(solid) for i in self.closed)
        )

    def mix(self, rates: Expression) -> Expression:
        """The matrix E (r, m) of forces along all rows by multipliers."""
        mix = ca.SX.zeros(self._size, len(self.rows))
        for k, row in enumerate(self.rows):
            mix[row, k] = 1.0
        for k, i in enumerate(self.solid):
            if self.modes[i] not in SLIPS:
                continue
            sign, tangents = SLIPS[self.modes[i]], self._tangents[i]
            velocity = rates[tangents]
            direction = ca.DM(sign) if sign else velocity / _length(velocity)
            mix[tangents, k] = -self._friction[i, 0] * direction
        return mix

    def guards(self, rows: RowExpressions, forces: Expression, ratio: Expression) -> Expression:
        """Return the guards of the mode, in the order of `guards._guards`; ratio: see `jamming`."""
        values = []
        for i, mode in enumerate(self.modes):
            tangents = self._tangents[i]
            values += [rows.gaps[i]] if mode == OPEN else self._cone(i, forces)
            if SLIPS.get(mode):
                values.append(SLIPS[mode] * rows.rates[tangents[0]])
            elif mode in SLIPS:
                values.append(_length(rows.rates[tangents]) - STOPPED)
        if self.rubs:
            values.append(ratio - JAMMED)
        leaving = [i for i in rows.margins if self.modes[i] not in (OPEN, STICK)]
        values += [rows.margins[i] for i in leaving]
        return ca.vertcat(*values)

    def cones(self, forces: Expression) -> list[Expression]:
        """What is positive where all closed contacts are inside their cones."""
        return [value for i in self.closed for value in self._cone(i, forces)]

    def speeds(self, rows: RowExpressions) -> list[Expression]:
        """The speeds, beyond the least, of contacts that slide in a surface."""
        spatial = [i for i in self.closed if SLIPS.get(self.modes[i]) == 0.0]
        return [_length(rows.rates[self._tangents[i]]) - _LEAST_SPEED for i in spatial]

    def _cone(self, i: int, forces: Expression) -> list[Expression]:
        tangents, normal = self._tangents[i], forces[i]
        limit = self._friction[i, 1] * normal
        pushes = [] if i in self.pressed else [normal]  # a load never opens
        if self.modes[i] != STICK:
            return pushes
        if len(tangents) == 1:
            return [*pushes, limit + forces[tangents[0]], limit - forces[tangents[0]]]
        return [*pushes, limit - _length(forces[tangents])]


def _length(vector: Expression) -> Expression:
    return ca.sqrt(ca.sumsqr(vector) + _TINY)


class _Independent(NamedTuple):
    """Rows and columns (lists of the rank's length) whose block of G is regular."""

    rows: list[int]
    columns: list[int]

    def block(self, g: Array) -> Array:
        """The block of the matrix."""
        return g[np.ix_(self.rows, self.columns)]


def _independent(samples: list[Array], symmetric: bool) -> _Independent:
    """Rows and columns, the same where G is symmetric, that span it best in all samples (m, m)."""
    choices = []
    for g in samples:
        columns = _pivots(g)
        choices.append(_Independent(columns if symmetric else _pivots(g[:, columns].T), columns))
    rank = max(len(choice.rows) for choice in choices)
    full = [choice for choice in choices if len(choice.rows) == rank]
    if rank == len(samples[0]):
        return full[0]
    return max(full, key=lambda choice: min(1.0 / np.linalg.cond(choice.block(g)) for g in samples))


def _pivots(matrix: Array) -> list[int]:
    """Columns that span the others, in their order."""
    _, triangle, order = qr(matrix, mode="economic", pivoting=True)
    sizes = np.abs(triangle.diagonal())
    return sorted(order[: int((sizes > RANK * sizes[0]).sum())].tolist())


def _independent_rows(robot: Robot, members: ContactSet, part: PhaseExpressions) -> _Independent:
    """Rows and columns of the block of G = C M^-1 J^T E that is regular where contacts touch."""
    if len(part.rows) <= 1:
        return _Independent([0] * len(part.rows), [0] * len(part.rows))
    samples = []
    for x in _looks(robot, members, part.solid):
        q, v = np.split(x, [robot.nq])
        jacobian = members.jacobian(q)
        mix = np.array(ca.evalf(part.mix(ca.SX(jacobian @ v))))
        samples.append(
            jacobian[part.rows] @ np.linalg.solve(robot.mass_matrix(q), jacobian.T @ mix)
        )
    return _independent(samples, not part.slides_freely)


def _looks(robot: Robot, members: ContactSet, closed: list[int]) -> list[Array]:
    """A few states x with these contacts closed, where Newton's method finds such."""
    rng = np.random.default_rng(0)
    found, others = [], []
    for _ in range(_LOOKS):
        q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
        v = rng.normal(size=robot.nv)
        others.append(np.concatenate((q, v)))
        for _ in range(_NEWTON):
            gaps = members.gaps(q)[closed]
            if np.abs(gaps).max(initial=0.0) < _SAMPLED_ON_SURFACE:
                found.append(np.concatenate((q, v)))
                break
            back = np.linalg.pinv(members.jacobian(q)[closed], RANK)
            q = robot.normalize(robot.integrate(q, -back @ gaps))
    return found or others


def _multipliers(
    part: PhaseExpressions, g: Expression, wanted: Expression, independent: _Independent
) -> tuple[Expression, Expression]:
    """The multipliers m of G m = wanted and the margin; of least norm where G is singular.

    There G = N B K with its regular block B, and least squares and least norms are divisions by
    N^T N and K W K^T, which are no worse conditioned than the choice of the block. Numbers take
    `LeastNormEquations` instead, with new pivots at each point: expressions have no branches.
    """
    divide = gauss if part.slides_freely else cholesky
    rows, columns = independent.rows, independent.columns
    if len(rows) == g.shape[0]:
        by_all, pivots = divide(g)
        return by_all(wanted), _spread(pivots)
    by_block, pivots = divide(g[rows, columns])
    right = by_block(g[rows, :])
    left = gauss(g[rows, columns].T)[0](g[:, columns].T).T if part.slides_freely else right.T
    coordinates = by_block(cholesky(left.T @ left)[0](left.T @ wanted))
    missed = ca.norm_fro(g - g[:, columns] @ right) / ca.norm_fro(g)
    margin = ca.if_else(missed > RANK, -missed, _spread(pivots))

    def of_least_norm(weights: Expression) -> Expression:
        weighted = right * ca.repmat(weights.T, len(rows), 1)
        return weighted.T @ cholesky(weighted @ right.T)[0](coordinates)

    even = of_least_norm(ca.DM.ones(g.shape[0], 1))
    if part.pressed and part.rubs:
        return even, ca.SX(0.0)  # left to the dynamics: loads of sliding contacts are not tested
    if not len(part.tied):
        return even, margin
    normal = part.normal_forces(even)
    loaded = ca.sumsqr(normal) > 0.0
    return of_least_norm(_friction_weights(part, normal)), ca.if_else(loaded, margin, 0.0)


def _friction_weights(part: PhaseExpressions, normal: Expression) -> Expression:
    """Return the `equations.friction_weights` (m, 1) for normal forces (k, 1) of equal weights."""
    load = phase.load_weights(normal, LEAST_WEIGHT * _length(normal), _softplus)
    return ca.vertcat(ca.DM.ones(len(part.solid), 1), load[part.tied.tolist(), 0])


def _softplus(x: Expression) -> Expression:
    return ca.fmax(x, 0.0) + ca.log1p(ca.exp(-ca.fabs(x)))


def cholesky(matrix: Expression) -> tuple[Solve, Expression]:
    """How to divide by a symmetric positive matrix, and its pivots (n, 1).

    Eliminated from the last row on, which for a mass matrix keeps the zeros between branches of the
    robot (Featherstone 2008, section 6.5).
    """
    back = list(reversed(range(matrix.shape[0])))
    pivots, upper, order = ca.ldl(matrix[back, back].T, False)

    def solve(right: Expression) -> Expression:
        return ca.ldl_solve(ca.SX(right)[back, :], pivots, upper, order)[back, :]

    return solve, pivots


def _response_ratio(response: Expression, even: Expression, rows: Sequence[int]) -> Expression:
    """The ratio p of `jamming`, from independent rows: det(R R') of these (Cauchy and Binet)."""
    if len(rows) == response.shape[0]:
        return _product(gauss(response)[1]) / _product(cholesky(even)[1])
    left, whole = response[list(rows), :], even[list(rows), :]
    return ca.sqrt(_product(cholesky(left @ left.T)[1]) / _product(cholesky(whole @ whole.T)[1]))


def gauss(matrix: Expression) -> tuple[Solve, Expression]:
    """How to divide by a square matrix without pivoting, and its pivots (n, 1)."""
    n = matrix.shape[0]
    both = ca.SX(matrix)
    for k in range(n):
        for i in range(k + 1, n):
            both[i, k] /= both[k, k]
            for j in range(k + 1, n):
                both[i, j] -= both[i, k] * both[k, j]

    def solve(right: Expression) -> Expression:
        x = ca.SX(right)
        for k in range(n):
            for i in range(k + 1, n):
                x[i, :] -= both[i, k] * x[k, :]
        for k in reversed(range(n)):
            for j in range(k + 1, n):
                x[k, :] -= both[k, j] * x[j, :]
            x[k, :] /= both[k, k]
        return x

    return solve, ca.diag(both)


def _product(pivots: Expression) -> Expression:
    """The determinant of the matrix that has these pivots."""
    return reduce(mul, ca.vertsplit(pivots))


def _spread(pivots: Expression) -> Expression:
    """The least pivot relative to the largest."""
    sizes = ca.fabs(pivots)
    return ca.mmin(sizes) / ca.mmax(sizes)
