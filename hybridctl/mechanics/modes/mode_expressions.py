r"""The field and the guards of one mode of a contact system as CasADi expressions.

For sums of few terms and without a branch, so that a whole integrator step can be one function:

.. math:: M a + h = S u + J^T E m, \qquad C a = c

with multipliers m of the normals of closed contacts and the tangents of sticking ones, C = these
rows of J, and E the forces on all rows that come with m: friction of sliding contacts besides.
Dry friction of a joint that slips is a known force beside these: its load does not depend on m.
Rows are those of `ContactSet`, r of all contacts; c is the number of contacts. Where the rows C are
redundant, forces are shared as in `force_distribution`. Which rows depend on others is looked for
at a few configurations, once. Whether that, and what else the expressions assume, holds at a state
is told by `sound`, see `ModeField`.
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
from hybridctl.mechanics.contact_law.law import OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.contact_law.linear_equations import RANK
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.joint_contacts import AnyContact
from hybridctl.mechanics.modes import phase, tolerances
from hybridctl.mechanics.modes.phase import ClosedRows
from hybridctl.mechanics.modes.tolerances import (
    JAMMED,
    LEAST_WEIGHT,
    LIMIT_MARGIN,
    MIN_SLIDING_SPEED,
    SAME_MOTION_COSINE,
    STANDSTILL,
    STOPPED,
)
from hybridctl.mechanics.multibody.expressions import Expression
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_expressions import RowExpressions
from hybridctl.mechanics.terms.expression_terms import RobotConstants, hash_sources
from hybridctl.symbolic.compiled_step import find_least_soundness

_SAMPLE_GAP = 1e-9
"""Largest gap, m, of the configurations at which redundant rows are looked for."""
_MIN_PIVOT = 1e-6
"""Least pivot relative to the largest at which expressions are sound: divisions without pivoting
lose rounding over this, 1e-10."""
_TINY = 1e-300
"""Least square of a norm: an addend in m^2/s^2 or N^2 that makes the derivative of a norm zero
where the norm is zero."""
_SAMPLES = 8
"""Number of configurations at which redundant rows are looked for."""
_MAX_NEWTON_STEPS = 30
"""Newton steps to a configuration with closed contacts; without one the sample is left out."""

Solve = Callable[[Expression], Expression]
"""Returns the solution (n, .) of linear equations for a right-hand side (n, .)."""


class ModeField(NamedTuple):
    """The field and the guards of a mode in symbols of state and input.

    Attributes:
        x: Symbols (q, v), (nq + nv, 1).
        u: Symbols of the input (nu, 1).
        field: The rate dx/dt (nq + nv, 1).
        rates: T(q) (nq, nv) of dq/dt = T v.
        forces: Forces (r, 1) along all rows of all contacts, N or N m, zero where open.
        guards: Guards (n, 1), in the order of `guards`.
        margin: Least pivot of the equations relative to the largest; negative, by what rows taken
            to be redundant miss, where they are not; 0 where contacts share friction but carry no
            load, and where redundant rows meet a pressed contact and one that rubs freely.
        sound: Positive where all this is what `ContactDynamics` computes. It is not where the
            margin is small, where what slides in a surface has near-zero velocity but is not the
            only contact that slides and about to stop, and where forces of redundant contacts leave
            their cones, because other forces are taken then.
        sliding_rates: Rates (2, 1) in 1/s at which contacts that slide in a surface stop, and at
            which friction turns their velocity, see `PhaseExpressions.make_sliding_rates`.
    """

    x: Expression
    u: Expression
    field: Expression
    rates: Expression
    forces: Expression
    guards: Expression
    margin: Expression
    sound: Expression
    sliding_rates: Expression


class ModeEquations(NamedTuple):
    """All that the expressions of a mode are made of.

    Attributes:
        constants: Robot and contacts.
        tangents: Tangent rows of each contact, among all rows.
        modes: Modes of all contacts.
        stabilization: Rate at which residuals decay, 1/s.
        independent: Rows and columns of G whose block is regular at sampled configurations.
    """

    constants: RobotConstants
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
        """Return the equations of a mode.

        Args:
            robot: Robot.
            members: Kinematics of its contacts.
            contacts: The same contacts, which have the coefficients of friction.
            modes: Modes of all contacts.
            stabilization: Rate at which residuals decay, 1/s.

        Raises:
            InputError: If no expression is known for a surface.
        """
        constants = RobotConstants.of(robot, members, list_friction(contacts))
        tangents = members.tangents
        rows = PhaseExpressions(tangents, constants.friction, modes, constants.loads)
        independent = _find_independent_rows(robot, members, rows)
        return ModeEquations(
            constants, tangents, tuple(map(str, modes)), stabilization, independent
        )

    @property
    def phase(self) -> PhaseExpressions:
        """The rows that the mode constrains, and the forces that come with them."""
        c = self.constants
        return PhaseExpressions(self.tangents, c.friction, self.modes, c.loads)

    def make_key(self, *parts: Any) -> str:
        """Return a name under which to keep what is made from these and from `parts`.

        Numbers of robot and contacts are no part of it, but for which of them are zero.
        """
        made_by = hash_sources(tolerances.__file__, phase.__file__, __file__)
        return self.constants.make_key(made_by, RANK, *self[1:], *parts)


def mode_field(
    robot: Robot, contacts: Sequence[Contact], modes: Modes, *, stabilization: float = 0.0
) -> ModeField:
    """Return the expressions of a mode of contacts in space.

    Args:
        robot: Robot.
        contacts: Its contacts.
        modes: Modes of all contacts.
        stabilization: Rate at which residuals decay, 1/s.

    Raises:
        InputError: If no expression is known for a surface.
    """
    members = ContactSet(robot, contacts)
    return make_field(ModeEquations.of(robot, members, contacts, modes, stabilization))


def make_field(equations: ModeEquations) -> ModeField:
    """Return field and guards of a mode by its equations, whose constants may be symbols."""
    c, rows_of = equations.constants, equations.phase
    x, u = ca.SX.sym("x", c.nq + c.nv), ca.SX.sym("u", c.actuation.shape[1])
    q, v = x[: c.nq], x[c.nq :]
    bodies, drive, jacobian, rows = c.make_terms(q, v, u)
    by_mass, _ = cholesky(bodies.mass())
    known = rows_of.known_forces()
    free = by_mass(drive + jacobian.T @ known)
    ratio = ca.SX(1.0)
    target = _make_target(rows, c.contact_count, equations.stabilization)
    if rows_of.rows:
        mix = rows_of.make_mix(rows.rates)
        response = by_mass(jacobian.T @ mix)
        constraint = jacobian[rows_of.rows, :]
        delassus, wanted = constraint @ response, target[rows_of.rows] - constraint @ free
        independent = equations.independent
        m, margin = _solve_multipliers(rows_of, delassus, wanted, independent)
        if rows_of.slides_freely:
            even = constraint @ by_mass(constraint.T)
            ratio = _make_response_ratio(delassus, even, independent.rows)
        acceleration, forces = free + response @ m, mix @ m + known
        is_redundant = len(independent.rows) < len(rows_of.rows)
        cones = rows_of.cone_slacks(forces) if is_redundant else []
        speeds = rows_of.speed_margins(rows)
        if rows_of.slides_alone and not is_redundant:
            sticking = [*rows_of.rows, *rows_of.sliding_tangents]
            constraint = jacobian[sticking, :]
            stops = _make_stopping_margin(
                rows_of,
                rows.rates[rows_of.sliding_tangents],
                (jacobian @ acceleration - target)[rows_of.sliding_tangents],
                constraint @ by_mass(constraint.T),
                target[sticking] - constraint @ free,
            )
            speeds = [ca.fmax(speeds[0], stops)]
        sound = find_least_soundness([margin - _MIN_PIVOT, *speeds, *cones])
    else:
        acceleration, forces, margin = free, known, ca.SX(1.0)
        sound = margin
    field = ca.vertcat(bodies.rate @ v, acceleration)
    guards = rows_of.make_guards(rows, forces, ratio)
    sliding_rates = ca.SX.zeros(2, 1)
    if rows_of.spatial_contacts:
        change = jacobian @ acceleration - target
        closed = jacobian[rows_of.all_rows.tolist(), :]
        mobility = jacobian @ by_mass(closed.T)
        sliding_rates = rows_of.make_sliding_rates(rows.rates, change, forces, mobility)
    return ModeField(x, u, field, bodies.rate, forces, guards, margin, sound, sliding_rates)


def mode_derivatives(mode: ModeField) -> list[Expression]:
    """Return the derivatives of (v, a), then of the guards.

    Returns:
        Four expressions: of (v, a) by perturbations of (q, v), (2 nv, 2 nv), and by u, (2 nv, nu);
        of the n guards likewise, (n, 2 nv) and (n, nu). Quaternions and circles have norm 1.
    """
    nq, nv = mode.rates.shape
    by_tangent = ca.diagcat(mode.rates, ca.SX.eye(nv))
    velocity_and_acceleration = mode.x[nq:], mode.field[nq:]
    both = ca.vertcat(*velocity_and_acceleration, mode.guards)
    by_state, by_input = ca.jacobian(both, mode.x) @ by_tangent, ca.jacobian(both, mode.u)
    n = 2 * nv
    return [by_state[:n, :], by_input[:n, :], by_state[n:, :], by_input[n:, :]]


def _make_stopping_margin(
    part: PhaseExpressions,
    velocity: Expression,
    change: Expression,
    delassus: Expression,
    wanted: Expression,
) -> Expression:
    r"""Return a scalar that is positive where the only contact that slides is about to stop.

    Kinetic friction could hold it, :math:`|f_t| < \mu f_n` with the forces f by which it sticks,
    and it slows down. Then it goes on along its velocity, however slow it is, see
    `standstill.solve_slow_contacts`.

    Args:
        part: Rows of the mode, with one contact that slides, in a surface.
        velocity: Its sliding velocity (2, 1), m/s.
        change: Change (2, 1) of this velocity in the mode, m/s^2.
        delassus: J M^-1 J^T of the rows in which it would stick, which end with its tangents.
        wanted: Change of the rates of these rows that forces have to make, m/s^2.
    """
    (i,) = part.spatial_contacts
    divide, pivots = cholesky(delassus)
    forces = divide(wanted)
    holding = _make_length(forces[len(part.rows) :])
    limit = (1.0 - LIMIT_MARGIN) * part.kinetic_friction(i) * forces[part.rows.index(i)]
    speed = _make_length(velocity)
    return find_least_soundness(
        [
            _compare_pivots(pivots) - _MIN_PIVOT,
            limit - holding,
            speed - MIN_SLIDING_SPEED,
            -ca.dot(velocity, change) - SAME_MOTION_COSINE * speed * _make_length(change),
        ]
    )


def _make_target(rows: RowExpressions, count: int, s: float) -> Expression:
    """Return what J a (r, 1) must be for contacts to stay closed and sticking.

    Args:
        rows: Gaps, rates and accelerations at a = 0, the drift Jdot v.
        count: Number of contacts, whose normals come first among the rows.
        s: Rate at which residuals decay, 1/s.
    """
    gaps = ca.vertcat(rows.piece_gaps, ca.SX.zeros(rows.rates.numel() - count, 1))
    return -rows.accelerations - 2.0 * s * rows.rates - s * s * gaps


def list_friction(contacts: Sequence[AnyContact]) -> Array:
    """Return kinetic and static coefficients (c, 2)."""
    pairs = [(contact.friction, contact.static_friction) for contact in contacts]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


class PhaseExpressions(ClosedRows):
    """The rows of all contacts that a mode constrains, and the forces that come with them.

    Contacts that are pressed by a constant load, as dry friction of joints is, have a known normal
    force: their normal rows are not constrained. Row i of all is the normal of contact i.

    Args:
        tangents: For each of all c contacts its rows among all rows.
        friction: Kinetic and static coefficients (c, 2).
        modes: Modes of all contacts.
        loads: What presses each contact, (1, 1) in N or N m; a structural zero for none.

    Attributes:
        rows: Constrained rows, counted among all: normals of closed contacts that are not pressed,
            then tangents of sticking ones.
        pressed_contacts: Closed contacts that a constant load presses.
        solid_contacts: Closed contacts without a load.
        spatial_contacts: Closed contacts that slide in a surface.
        slides_freely: Whether a contact without a load slides.
        slides_alone: Whether one contact slides, in a surface, and all others stick.
        sliding_tangents: Tangent rows of sliding contacts without a load, among all rows.
        rubs_freely: Whether such a contact slides with friction, which makes the equations
            unsymmetric.
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
        self.pressed_contacts = [i for i in self.closed if not loads[i].is_zero()]
        self.solid_contacts = [i for i in self.closed if i not in self.pressed_contacts]
        self.rows = [
            row for row in self.constrained_rows.tolist() if row not in self.pressed_contacts
        ]
        sliding = [i for i in self.solid_contacts if modes[i] in SLIPS]
        self.spatial_contacts = [i for i in self.closed if SLIPS.get(modes[i]) == 0.0]
        self.slides_freely = bool(sliding)
        self.sliding_tangents = [row for i in sliding for row in self._tangents[i]]
        is_only = len(sliding) == sum(mode in SLIPS for mode in modes) == 1
        self.slides_alone = is_only and sliding == self.spatial_contacts
        self.rubs_freely = any(not self._friction[i, 0].is_zero() for i in sliding)
        self._size = len(modes) + sum(map(len, tangents))

    @staticmethod
    def of(members: ContactSet, contacts: Sequence[Contact], modes: Modes) -> PhaseExpressions:
        """Return the rows of contacts in space, with their own coefficients.

        Args:
            members: Kinematics of the contacts.
            contacts: The contacts.
            modes: Their modes.
        """
        none = [ca.SX(0.0)] * len(contacts)
        return PhaseExpressions(members.tangents, list_friction(contacts), modes, none)

    def known_forces(self) -> Expression:
        """Return the forces (r, 1) on all rows that do not depend on multipliers.

        They are loads of pressed contacts, and friction of those that slip, -mu N sign(v).
        """
        forces = ca.SX.zeros(self._size, 1)
        for i in self.pressed_contacts:
            forces[i] = self._loads[i]
            if self.modes[i] in SLIPS:
                limit = self._friction[i, 0] * self._loads[i]
                forces[self._tangents[i]] = -SLIPS[self.modes[i]] * limit
        return forces

    def normal_forces(self, multipliers: Expression) -> Expression:
        """Return the normal forces (k, 1) of the closed contacts, loads among them."""
        solid = iter(ca.vertsplit(multipliers)[: len(self.solid_contacts)])
        return ca.vertcat(
            *(self._loads[i] if i in self.pressed_contacts else next(solid) for i in self.closed)
        )

    def make_mix(self, rates: Expression) -> Expression:
        """Return the matrix E (r, m) of forces along all rows by multipliers.

        Args:
            rates: J v (r, 1) of all rows, along which contacts slide in a surface.
        """
        mix = ca.SX.zeros(self._size, len(self.rows))
        for k, row in enumerate(self.rows):
            mix[row, k] = 1.0
        for k, i in enumerate(self.solid_contacts):
            if self.modes[i] not in SLIPS:
                continue
            sign, tangents = SLIPS[self.modes[i]], self._tangents[i]
            velocity = rates[tangents]
            direction = ca.DM(sign) if sign else velocity / _make_length(velocity)
            mix[tangents, k] = -self._friction[i, 0] * direction
        return mix

    def make_guards(
        self, rows: RowExpressions, forces: Expression, ratio: Expression
    ) -> Expression:
        """Return the guards (n, 1) of the mode, in the order of `guards._list_guards`.

        Args:
            rows: Gaps, rates and margins.
            forces: Forces (r, 1) on all rows.
            ratio: Response ratio, see `jamming`.
        """
        values = []
        for i, mode in enumerate(self.modes):
            tangents = self._tangents[i]
            values += [rows.gaps[i]] if mode == OPEN else self._list_slacks(i, forces)
            if SLIPS.get(mode):
                values.append(SLIPS[mode] * rows.rates[tangents[0]])
            elif mode in SLIPS:
                values.append(_make_length(rows.rates[tangents]) - STOPPED)
        if self.rubs_freely:
            values.append(ratio - JAMMED)
        leaving = [i for i in rows.margins if self.modes[i] not in (OPEN, STICK)]
        values += [rows.margins[i] for i in leaving]
        return ca.vertcat(*values)

    def cone_slacks(self, forces: Expression) -> list[Expression]:
        """Return values in N or N m, positive where closed contacts are inside their cones."""
        return [value for i in self.closed for value in self._list_slacks(i, forces)]

    def speed_margins(self, rows: RowExpressions) -> list[Expression]:
        """Return the speeds less `STANDSTILL`, m/s, of contacts that slide in a surface."""
        speeds = [_make_length(rows.rates[self._tangents[i]]) for i in self.spatial_contacts]
        return [speed - STANDSTILL for speed in speeds]

    def kinetic_friction(self, i: int) -> Expression:
        """Return the coefficient of kinetic friction of contact i."""
        return self._friction[i, 0]

    def make_sliding_rates(
        self, rates: Expression, change: Expression, forces: Expression, mobility: Expression
    ) -> Expression:
        r"""Return the inverses of the two times of `slip_directions.compute_sliding_times`.

        They are the largest :math:`(-d|v_t|/dt) / |v_t|`, zero where no contact slows down, and the
        largest entry of :math:`|K J M^{-1} J^T|` with :math:`K = \mu f_n / |v_t| (I - s s^T)`.

        Args:
            rates: J v (r, 1) of all rows, m/s.
            change: J a - target (r, 1), m/s^2: the change of these rates in the mode.
            forces: Forces (r, 1) along all rows, N.
            mobility: J M^-1 J^T with all rows and the columns of closed contacts.

        Returns:
            Rates (2, 1), 1/s.
        """
        slowing, turning = ca.SX(0.0), ca.SX(0.0)
        for i in self.spatial_contacts:
            tangents = self._tangents[i]
            speed = _make_length(rates[tangents])
            s = rates[tangents] / speed
            slowing = ca.fmax(slowing, -ca.dot(s, change[tangents]) / ca.fmax(speed, STOPPED))
            # I - s s' projects on the direction across.
            across = ca.vertcat(-s[1], s[0])
            ratio = self._friction[i, 0] * forces[i] / ca.fmax(speed, STANDSTILL)
            turned = ratio * across @ (across.T @ mobility[tangents, :])
            turning = ca.fmax(turning, ca.mmax(ca.densify(ca.fabs(turned))))
        return ca.vertcat(slowing, turning)

    def _list_slacks(self, i: int, forces: Expression) -> list[Expression]:
        """Return the slacks of closed contact i, N or N m, in the order of its guards.

        The first is the normal force, but not of a contact with a constant load, which never opens.
        Where it sticks, static friction less the friction follows: in both directions for one
        tangent, else one slack mu_s f_n - |f_t|.
        """
        tangents, normal = self._tangents[i], forces[i]
        limit = self._friction[i, 1] * normal
        pushes = [] if i in self.pressed_contacts else [normal]
        if self.modes[i] != STICK:
            return pushes
        if len(tangents) == 1:
            return [*pushes, limit + forces[tangents[0]], limit - forces[tangents[0]]]
        return [*pushes, limit - _make_length(forces[tangents])]


def _make_length(vector: Expression) -> Expression:
    """Return the norm of a vector (n, 1), whose derivative at zero is zero."""
    return ca.sqrt(ca.sumsqr(vector) + _TINY)


class _Independent(NamedTuple):
    """Rows and columns of G whose block is regular; both have the length of its rank."""

    rows: list[int]
    columns: list[int]

    def take_block(self, g: Array) -> Array:
        """Return the block of the matrix G (m, m)."""
        return g[np.ix_(self.rows, self.columns)]


def _choose_independent(samples: list[Array], symmetric: bool) -> _Independent:
    """Return rows and columns of a regular block of G, of its largest rank in all samples (m, m).

    Each sample proposes a block. Of those of the largest rank, the one whose worst condition in all
    samples is best is taken. Rows and columns are the same where G is symmetric.
    """
    choices = []
    for g in samples:
        columns = _find_pivot_columns(g)
        choices.append(
            _Independent(columns if symmetric else _find_pivot_columns(g[:, columns].T), columns)
        )
    rank = max(len(choice.rows) for choice in choices)
    full = [choice for choice in choices if len(choice.rows) == rank]
    if rank == len(samples[0]):
        return full[0]
    return max(
        full, key=lambda choice: min(1.0 / np.linalg.cond(choice.take_block(g)) for g in samples)
    )


def _find_pivot_columns(matrix: Array) -> list[int]:
    """Return the columns that span the others, in ascending order."""
    _, triangle, order = qr(matrix, mode="economic", pivoting=True)
    sizes = np.abs(triangle.diagonal())
    return sorted(order[: int((sizes > RANK * sizes[0]).sum())].tolist())


def _find_independent_rows(
    robot: Robot, members: ContactSet, part: PhaseExpressions
) -> _Independent:
    """Return the block of G = C M^-1 J^T E that is regular where contacts touch.

    Expressions have no branches, so that it is chosen once, at sampled states. A state at which it
    is not regular, or at which other rows are independent, is not sound (`_solve_multipliers`).
    """
    if len(part.rows) <= 1:  # one row depends on no other
        return _Independent([0] * len(part.rows), [0] * len(part.rows))
    samples = []
    for x in _sample_states(robot, members, part.solid_contacts):
        q, v = np.split(x, [robot.nq])
        jacobian = members.jacobian(q)
        mix = np.array(ca.evalf(part.make_mix(ca.SX(jacobian @ v))))
        samples.append(
            jacobian[part.rows] @ np.linalg.solve(robot.mass_matrix(q), jacobian.T @ mix)
        )
    return _choose_independent(samples, not part.slides_freely)


def _sample_states(robot: Robot, members: ContactSet, closed: list[int]) -> list[Array]:
    """Return a few states x with these contacts closed; any states if none are found."""
    rng = np.random.default_rng(0)
    found, others = [], []
    for _ in range(_SAMPLES):
        q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
        v = rng.normal(size=robot.nv)
        others.append(np.concatenate((q, v)))
        for _ in range(_MAX_NEWTON_STEPS):
            gaps = members.gaps(q)[closed]
            if np.abs(gaps).max(initial=0.0) < _SAMPLE_GAP:
                found.append(np.concatenate((q, v)))
                break
            back = np.linalg.pinv(members.jacobian(q)[closed], RANK)
            q = robot.normalize(robot.integrate(q, -back @ gaps))
    return found or others


def _solve_multipliers(
    part: PhaseExpressions, g: Expression, wanted: Expression, independent: _Independent
) -> tuple[Expression, Expression]:
    """Return the multipliers m (m, 1) of G m = wanted, of least norm where G is singular.

    There G = N B K with its regular block B, and least squares and least norms are divisions by
    N^T N and K W K^T, which are no worse conditioned than the choice of the block. Numbers take
    `LeastNormEquations` instead, with new pivots at each point: expressions have no branches.

    Args:
        part: Rows of the mode.
        g: G (m, m).
        wanted: Right-hand side (m, 1).
        independent: Rows and columns of B.

    Returns:
        The multipliers, and the margin of `ModeField`.
    """
    divide = gauss if part.slides_freely else cholesky
    rows, columns = independent.rows, independent.columns
    if len(rows) == g.shape[0]:
        by_all, pivots = divide(g)
        return by_all(wanted), _compare_pivots(pivots)
    by_block, pivots = divide(g[rows, columns])
    right = by_block(g[rows, :])
    left = gauss(g[rows, columns].T)[0](g[:, columns].T).T if part.slides_freely else right.T
    coordinates = by_block(cholesky(left.T @ left)[0](left.T @ wanted))
    missed = ca.norm_fro(g - g[:, columns] @ right) / ca.norm_fro(g)
    margin = ca.if_else(missed > RANK, -missed, _compare_pivots(pivots))

    def find_least_norm(weights: Expression) -> Expression:
        weighted = right * ca.repmat(weights.T, len(rows), 1)
        return weighted.T @ cholesky(weighted @ right.T)[0](coordinates)

    even = find_least_norm(ca.DM.ones(g.shape[0], 1))
    if part.pressed_contacts and part.rubs_freely:
        # The margin 0 is never sound, so that Python evaluates this case: no test compares it.
        return even, ca.SX(0.0)
    if not len(part.sticking_owner):
        return even, margin
    normal = part.normal_forces(even)
    loaded = ca.sumsqr(normal) > 0.0
    return find_least_norm(_make_friction_weights(part, normal)), ca.if_else(loaded, margin, 0.0)


def _make_friction_weights(part: PhaseExpressions, normal: Expression) -> Expression:
    """Return `force_distribution.compute_friction_weights` (m, 1).

    normal: normal forces (k, 1) of equal weights.
    """
    load = phase.compute_load_weights(normal, LEAST_WEIGHT * _make_length(normal), _make_softplus)
    return ca.vertcat(
        ca.DM.ones(len(part.solid_contacts), 1), load[part.sticking_owner.tolist(), 0]
    )


def _make_softplus(x: Expression) -> Expression:
    return ca.fmax(x, 0.0) + ca.log1p(ca.exp(-ca.fabs(x)))


def cholesky(matrix: Expression) -> tuple[Solve, Expression]:
    """Return how to divide by a symmetric positive matrix (n, n), and its pivots (n, 1).

    The first result takes a right-hand side (n, .) and returns the solution of the linear
    equations. The matrix is eliminated from the last row on, which for a mass matrix keeps the
    zeros between branches of the robot (Featherstone 2008, section 6.5).
    """
    back = list(reversed(range(matrix.shape[0])))
    pivots, upper, order = ca.ldl(matrix[back, back].T, False)

    def solve(right: Expression) -> Expression:
        return ca.ldl_solve(ca.SX(right)[back, :], pivots, upper, order)[back, :]

    return solve, pivots


def _make_response_ratio(response: Expression, even: Expression, rows: Sequence[int]) -> Expression:
    """Return the ratio p of `jamming`.

    Of redundant contacts it is the root of det(G G') / det(S S') with the independent rows of both
    (Cauchy and Binet), otherwise det G / det S.

    Args:
        response: G (m, m), with sliding friction; R in `jamming`.
        even: S (m, m), without.
        rows: The independent rows.
    """
    if len(rows) == response.shape[0]:
        return _multiply_pivots(gauss(response)[1]) / _multiply_pivots(cholesky(even)[1])
    left, whole = response[list(rows), :], even[list(rows), :]
    return ca.sqrt(
        _multiply_pivots(cholesky(left @ left.T)[1])
        / _multiply_pivots(cholesky(whole @ whole.T)[1])
    )


def gauss(matrix: Expression) -> tuple[Solve, Expression]:
    """Return how to divide by a square matrix (n, n) without pivoting, and its pivots (n, 1).

    The first result takes a right-hand side (n, .) and returns the solution of the linear
    equations. A pivot of zero makes it not finite.
    """
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


def _multiply_pivots(pivots: Expression) -> Expression:
    """Return the determinant of the matrix that has these pivots (n, 1)."""
    return reduce(mul, ca.vertsplit(pivots))


def _compare_pivots(pivots: Expression) -> Expression:
    """Return the least pivot relative to the largest."""
    sizes = ca.fabs(pivots)
    return ca.mmin(sizes) / ca.mmax(sizes)
