r"""Derivatives of a contact system by named parameters, at fixed state and input.

A parameter is named "KIND:OWNER", such as "friction:corner_1". By owner:

- contact: "restitution", "tangential_restitution"; "friction", the kinetic coefficient;
  "static_friction". Where both of these are one, give both the same change. "offset_x",
  "offset_y", "offset_z", the position in m of the point in its frame, and "radius" in m of the
  sphere around it: see below.
- joint of one degree of freedom: "stiffness", "damping", and "rest" of its spring.
- link: "mass" in kg, "center_x", "center_y", "center_z" of the center of mass in m, and
  "inertia_xx", "inertia_xy", ... about that center in kg m^2, each while the others stay. They
  are those of the whole rigid body that the link belongs to, links fixed to it included, along
  the axes of the link's frame. More mass is thus a point mass at the center of mass.

With the inertial parameters pi of all bodies, M a + h = Y(q, v, a) pi + springs, where Y is the
joint-torque regressor. So in a mode

.. math::
    M\, D_p a - J^T E\, D_p m = -Y\, D_p \pi - D_p \tau_{passive} + J^T (D_p E)\, m, \qquad
    C\, D_p a = 0,

with lambda = E m: the equations of `dynamics` with another right-hand side. For an impact v+ - v-
takes the place of a, without gravity and springs, and C D_p v+ = -D_p(E) J v-.

Offsets and radii, the lengths of contacts, change J: with them D_p(J^T) f is added to the first
equations, and -D_p(J a + Jdot v) of the constrained rows to the second ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.hybrid.model import JumpPoint, ModeKey, ModeModel, Point, PointProperty
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.stairs import PiecewiseSurface
from hybridctl.mechanics.contacts.surfaces import ExpressedSurface
from hybridctl.mechanics.impacts.impact import ImpactResult
from hybridctl.mechanics.impacts.impact_derivatives import solve_impact_changes
from hybridctl.mechanics.impacts.resets import ImpactReset, Release
from hybridctl.mechanics.impacts.stick_slip_resets import Breakaway, SlidingStop
from hybridctl.mechanics.inertial_parameters import (
    INERTIAL_KINDS,
    differentiate_inertia,
    make_inertia_matrix,
)
from hybridctl.mechanics.modes.constraint_equations import Solution
from hybridctl.mechanics.modes.contact_mode import ContactPoint
from hybridctl.mechanics.modes.derivatives import AccelerationDerivatives
from hybridctl.mechanics.modes.dynamics import STABILIZATION, ContactDynamics
from hybridctl.mechanics.modes.force_distribution import (
    differentiate_multipliers,
    scatter_adjoint,
)
from hybridctl.mechanics.modes.generated_mode import GeneratedContactMode
from hybridctl.mechanics.modes.phase import ContactPhase
from hybridctl.mechanics.modes.slip_directions import differentiate_starting_contacts
from hybridctl.mechanics.multibody.passive import Passive
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.mechanics.terms.contact_terms import LengthDerivatives
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms
from hybridctl.sensitivity.parameter_models import ParameterPoint, SystemParameters

_MAX_CONTRADICTION = 1e-8
"""Residual of constraints that a parameter may leave, relative to the rates or to 1 m/s.

Where more is left, redundant contacts would no longer take part together. A choice."""
CONTACT_KINDS = ("restitution", "tangential_restitution", "friction", "static_friction")
LENGTH_KINDS = ("offset_x", "offset_y", "offset_z", "radius")
JOINT_KINDS = ("stiffness", "damping", "rest")
KINDS = (*CONTACT_KINDS, *LENGTH_KINDS, *JOINT_KINDS, *INERTIAL_KINDS)


def parameter_derivatives(
    robot: Robot,
    contacts: Sequence[Contact],
    names: Sequence[str],
    *,
    stabilization: float = STABILIZATION,
) -> SystemParameters:
    """Return the derivatives of a contact system by named parameters.

    The system is `contact_system(robot, contacts, stabilization=stabilization)`.

    Args:
        robot: The robot.
        contacts: Its contacts in space.
        names: The np parameters, each as "KIND:OWNER" (see the module).
        stabilization: As for `contact_system`, 1/s.

    Raises:
        UnknownNameError: If a name is no parameter.
        InputError: If there is no derivative: by the friction of a contact without friction, which
            has no tangential motion in the model, and by a restitution of zero, as the least bounce
            changes the order of modes.
    """
    system = contact_system(robot, contacts, stabilization=stabilization)
    return differentiate_by_parameters(system, names)


def differentiate_by_parameters(
    system: ContactSystem, names: Sequence[str], columns: ParameterColumns | None = None
) -> SystemParameters:
    """Return the derivatives of a contact system by named parameters.

    Args:
        system: The system.
        names: The np parameters, each as "KIND:OWNER" (see the module) unless columns are given.
        columns: Columns of these parameters, of the system or of one with other values. None to
            make them.

    Returns:
        The derivatives. It raises the errors of `parameter_derivatives`.
    """
    dynamics = system.dynamics
    if columns is None:
        own = ParameterColumns(dynamics, [(name,) for name in names])
    else:
        own = columns.with_values(dynamics)
    return _ContactParameters(system, own, names)


class _ContactParameterPoint(ParameterPoint):
    """A point of a contact mode, with the derivatives by parameters there."""

    at: ContactPoint
    model: _ContactParameters

    @PointProperty
    def derivatives(self) -> AccelerationDerivatives:
        """Derivatives of acceleration and forces; zero for gaps, rates and sliding velocities."""
        at, columns, point = self.at, self.model.columns, self.at.contact
        dynamics, phase, count = at.mode.dynamics, at.mode.phase, len(at.mode.modes)
        forces, friction = np.zeros((count, columns.count)), np.zeros((count, 2, columns.count))
        if point.solution is None:
            torque = columns.torque(at.q, at.v, point.acceleration)
            a_p = np.asarray(-np.linalg.solve(dynamics.robot.mass_matrix(at.q), torque))
        else:
            a_p, m_p, own = _differentiate_solution(columns, at.q, at.v, point.solution)
            rows = point.solution.mix @ m_p + own
            forces[list(phase.closed)], friction[list(phase.closed)] = phase.split_rows(rows)
        no_forces = np.zeros(len(dynamics.contact_set.owner))
        lengths = columns.differentiate_terms(at.q, at.v, 0.0 * at.v, no_forces)
        slip, gaps = dynamics.take_tangents(lengths.rates), lengths.gaps
        return AccelerationDerivatives(point, a_p, forces, friction, slip, gaps, lengths.rates)

    @PointProperty
    def field(self) -> Array:
        """The derivative D_p of the field (2 nv, np)."""
        at = self.at
        found = self.model.evaluate_fields(
            at.mode, np.array([at.t]), np.atleast_2d(at.x), np.atleast_2d(at.u)
        )
        if found is not None and found[0][0] > 0.0:
            return np.asarray(found[1][0])
        a_p = self.derivatives.acceleration_z
        return np.vstack([np.zeros_like(a_p), a_p])

    @PointProperty
    def guards(self) -> Array:
        """The derivative D_p of the guards (n, np)."""
        mode, changes = self.at.mode, self.model.columns.number_changes
        is_plain = not self.model.columns.has_lengths
        if (
            isinstance(mode, GeneratedContactMode)
            and changes is not None
            and (is_plain or not mode.is_redundant)
        ):
            point = np.atleast_2d(self.at.x), np.atleast_2d(self.at.u)
            sound, by_parameters = mode.guard_number_slopes.combine(changes, *point)
            if sound[0] > 0.0:
                return np.asarray(by_parameters[0])
        guards = self.at.mode.contact_guards
        return guards.by_parameters(self.derivatives, self.model.columns.static_friction)


class _ContactParameters(SystemParameters):
    """Derivatives of a contact system by the np parameters of some columns."""

    system: ContactSystem
    point = _ContactParameterPoint

    def __init__(
        self, system: ContactSystem, columns: ParameterColumns, names: Sequence[str]
    ) -> None:
        super().__init__(system, names)
        self.columns, self.moves_constraints = columns, columns.has_lengths

    def calc(self, at: Point) -> _ContactParameterPoint:
        """Return the derivatives at a point of a contact mode.

        A point of another mode is evaluated again at its (t, x, u), in the contact mode of its
        key.
        """
        if not isinstance(at, ContactPoint):
            at = self.system.mode(at.mode.key).calc(at.t, at.x, at.u)
        assert isinstance(at, ContactPoint)
        return self.point(self, at)

    def evaluate_fields(
        self, mode: ModeModel, times: Array, states: Array, inputs: Array
    ) -> tuple[Array, Array] | None:
        """Return the derivatives of the field at m points of a generated mode.

        Args:
            mode: The mode.
            times: Times (m,), s.
            states: States (m, nx).
            inputs: Inputs (m, nu).

        Returns:
            See `ParameterModel.evaluate_fields`. None for other modes, for parameters that change
            numbers which generated functions take to be zero, and for lengths of redundant
            contacts.
        """
        columns, changes = self.columns, self.columns.number_changes
        if not isinstance(mode, GeneratedContactMode) or changes is None:
            return None
        if columns.has_lengths and mode.is_redundant:
            return None  # lengths may contradict redundant contacts, which one point finds
        points = times[:, None], states, inputs
        sound, a_p = mode.field_number_slopes.combine(changes, *points)
        return sound, np.concatenate((np.zeros_like(a_p), a_p), axis=1)

    def differentiate_departure(
        self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint
    ) -> Array | None:
        """Return minus the derivatives (np,) of the gap's acceleration, see `Release`.

        Args:
            key: Key of the mode before it.
            fired: Names of the guards that fire.
            at: The point before the jump.
        """
        edge, columns = self.system.outgoing(key).edge(fired), self.columns
        reset = None if edge is None else edge.reset
        if not isinstance(reset, Release) or reset.leaving_stuck is None:
            return None
        free, contact = self.system.mode(reset.modes).calc(at.t, at.x, at.u), reset.leaving_stuck[0]
        q, v = np.split(at.x, [self.system.robot.nq])
        a, no_forces = free.field[len(v) :], np.zeros(columns.row_count)
        lengths = columns.differentiate_terms(q, v, a, no_forces).accelerations[contact]
        row = self.system.dynamics.gap_jacobian(q)[contact]
        return np.asarray(-row @ self.calc(free).field[len(v) :] - lengths)

    def differentiate_reset(self, key: ModeKey, fired: tuple[str, ...], at: JumpPoint) -> Array:
        """Return the derivative D_p of the reset (2 nv, np)."""
        n, nv = self.system.robot.nq, self.system.robot.nv
        outgoing, columns, dynamics = self.system.outgoing(key), self.columns, self.system.dynamics
        report, edge = at.report, None
        if report is None:
            edge = outgoing.edge(fired)
            report = None if edge is None else edge.reset(at.t, at.x, at.u).report
        result, q, v = np.zeros((2 * nv, columns.count)), at.x[:n], at.x[n:]
        if isinstance(report, ImpactResult):
            result[nv:] = _differentiate_impact_velocity(dynamics, columns, q, v, report)
        if not columns.has_lengths:
            return result
        if isinstance(report, ImpactResult) and report.is_rest:
            edge = outgoing.rest(fired)
        elif edge is None:
            edge = outgoing.edge(fired)
        reset = None if edge is None else edge.reset
        if isinstance(reset, ImpactReset) and isinstance(report, ImpactResult):
            contacts = reset.find_newly_closed(report)
            return _close_gaps(dynamics, columns, q, report, contacts, result)
        if isinstance(reset, SlidingStop | Breakaway):
            no_forces = np.zeros(columns.row_count)
            return reset.move_rates(at, columns.differentiate_terms(q, v, 0.0 * v, no_forces).rates)
        return result


class ParameterColumns:
    """Derivatives of the model's data by the parameters, one column for each.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        members: For each of the np parameters those "KIND:OWNER" that have its value. Together they
            may have a derivative that each alone has not, such as the restitution of redundant
            contacts.

    Attributes:
        count: Number np of parameters.
        friction: Derivatives (c, np) of the kinetic coefficients.
        static_friction: Derivatives (c, np) of the static coefficients.
        restitution: Derivatives (r, np) of the restitution of all rows.
        row_count: Number r of rows of all contacts.
        stabilization: Rate at which residuals of closed contacts decay, 1/s.
        has_lengths: Whether some are lengths of contacts: offsets or radii.
    """

    def __init__(self, dynamics: ContactDynamics, members: Sequence[Sequence[str]]) -> None:
        self._robot, self.count, self._dynamics = dynamics.robot, len(members), dynamics
        self.row_count, self.stabilization = len(dynamics.contact_set.owner), dynamics.stabilization
        nv, c = dynamics.robot.nv, len(dynamics.contacts)
        self._members = tuple(map(tuple, members))
        self._bodies = np.zeros((10 * len(dynamics.robot.joint_names), self.count))
        self._joints = {kind: np.zeros((nv, self.count)) for kind in JOINT_KINDS}
        self._contacts = {kind: np.zeros((c, self.count)) for kind in CONTACT_KINDS}
        self._lengths = np.zeros((len(dynamics.contact_set.places()), 4, self.count))
        for column, names in enumerate(members):
            for name in names:
                self._add(dynamics, column, name)
        normal, tangential, self.friction, self.static_friction = self._contacts.values()
        self.restitution = np.vstack([normal, tangential[dynamics.contact_set.owner[c:]]])
        self.has_lengths = bool(self._lengths.any())

    def with_values(self, dynamics: ContactDynamics) -> ParameterColumns:
        """Return the columns of dynamics with other values of the parameters.

        Args:
            dynamics: Dynamics that differ in numbers alone, see `ContactDynamics.with_values`.

        Raises:
            InputError: If there is no derivative by a parameter with these values.
        """
        if dynamics is self._dynamics:
            return self
        other = copy(self)
        other.__dict__.pop("number_changes", None)
        other.__dict__.pop("_terms", None)
        other._robot, other._dynamics = dynamics.robot, dynamics
        if self._bodies.any():
            other._bodies = np.zeros_like(self._bodies)
        contacts = {contact.name: contact for contact in dynamics.contacts}
        singles = ((k, name) for k, names in enumerate(self._members) for name in names)
        for column, name in singles:
            kind, _, owner = name.partition(":")
            contact = contacts.get(owner)
            if kind in INERTIAL_KINDS:
                other._add_inertia(column, kind, owner)
            elif kind not in JOINT_KINDS and isinstance(contact, Contact):
                _check_contact(name, kind, contact)
        return other

    def _add_inertia(self, column: int, kind: str, link: str) -> None:
        """Add an inertial parameter of a link to a column."""
        body = self._robot.body(link)
        rows = slice(10 * (body.joint - 1), 10 * body.joint)
        self._bodies[rows, column] += differentiate_inertia(body, kind)

    def _add(self, dynamics: ContactDynamics, column: int, name: str) -> None:
        """Add a parameter to a column.

        Args:
            dynamics: Dynamics of the robot with its contacts.
            column: Number of the column.
            name: The parameter.

        Raises:
            UnknownNameError: If the name is no parameter.
            InputError: If there is no derivative by it.
        """
        kind, colon, owner = str(name).partition(":")
        if not colon:
            raise UnknownNameError(f"parameter {name!r} is unknown, expected KIND:OWNER")
        check_member("kind of parameter", kind, KINDS)
        if kind in CONTACT_KINDS or kind in LENGTH_KINDS:
            owners = [contact.name for contact in dynamics.contacts]
            i = owners.index(check_member(f"contact of parameter {name!r}:", owner, owners))
            contact = dynamics.contacts[i]
            if not isinstance(contact, Contact):
                raise InputError(
                    f"parameter {name!r} must be of a contact in space, not of a joint"
                )
            _check_contact(name, kind, contact)
            if kind in CONTACT_KINDS:
                self._contacts[kind][i, column] += 1.0
            else:
                turn = self._robot.frame(contact.frame).rotation
                axis = LENGTH_KINDS.index(kind)
                change = np.eye(4)[3] if axis == 3 else np.append(turn[:, axis], 0.0)
                self._lengths[i, :, column] += change
        elif kind in JOINT_KINDS:
            velocity = self._robot.joints.velocity(name, owner)
            # The springs of joints that mimic this one are in the same sum with rests of their own.
            if kind != "damping" and owner in {m.joint for m in self._robot.mimics.values()}:
                raise InputError(
                    f"parameter {name!r}: joint {owner!r} must not be mimicked by others for this"
                )
            self._joints[kind][velocity, column] += 1.0
        else:
            check_member(f"link of parameter {name!r}:", owner, self._robot.link_names)
            self._add_inertia(column, kind, owner)

    @cached_property
    def number_changes(self) -> Array | None:
        """Derivatives of the numbers of generated functions by the np parameters.

        None where a parameter changes a number that is zero: these functions lack it. They are kept
        for dynamics with other values: few of them depend on these.
        """
        data = self._bodies, self._lengths, *self._joints.values(), *self._contacts.values()
        key = tuple(array.tobytes() for array in data)
        last_key, changes = self._dynamics.structure.number_changes
        if key != last_key:
            changes = self._compute_number_changes()
            self._dynamics.structure.number_changes = key, changes
        return changes

    def _compute_number_changes(self) -> Array | None:
        """Return `number_changes`."""
        constants = self._dynamics.mode_constants
        zero = constants.make_zero()
        found = []
        for j in range(self.count):
            bodies = tuple(
                body._replace(
                    mass=float(pi[0]), moment=pi[1:4], inertia=make_inertia_matrix(pi[4:])
                )
                for body, pi in zip(
                    zero.tree.bodies, self._bodies[:, j].reshape(-1, 10), strict=True
                )
            )
            friction = np.column_stack((self.friction[:, j], self.static_friction[:, j]))
            stiffness, damping, rest = (self._joints[kind][:, j] for kind in JOINT_KINDS)
            changed = zero._replace(
                tree=zero.tree._replace(bodies=bodies),
                springs=Passive(*zero.springs[:2], stiffness, rest, damping),
                places=tuple(
                    place._replace(point=own[:3], radius=own[3])
                    for place, own in zip(zero.places, self._lengths[:, :, j], strict=True)
                ),
                friction=friction,
            )
            found.append(constants.collect_changes(changed))
        known = [one for one in found if one is not None]
        return np.column_stack(known) if len(known) == self.count else None

    def torque(self, q: Array, v: Array, a: Array) -> Array:
        """Return the derivative D_p (M a + h), (nv, np).

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
        """
        springs, joints = self._robot.passive, self._joints
        total: Array = springs.stretch(q)[:, None] * joints["stiffness"]
        total += v[:, None] * joints["damping"] - springs.stiffness[:, None] * joints["rest"]
        if self._bodies.any():
            total += self._robot.regressor(q, v, a) @ self._bodies
        return total

    def momentum(self, q: Array, dv: Array) -> Array:
        """Return the derivative D_p (M dv), (nv, np).

        Args:
            q: Configuration (nq,).
            dv: Change (nv,) of the velocity.
        """
        if not self._bodies.any():
            return np.zeros((len(dv), self.count))
        return np.asarray(self._robot.impulse_regressor(q, dv) @ self._bodies)

    def differentiate_terms(self, q: Array, v: Array, a: Array, forces: Array) -> LengthDerivatives:
        """Return the derivatives of terms by the np parameters, at fixed a and forces.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            forces: Forces (r,) along the rows of all contacts.
        """
        if not self.has_lengths:
            sizes = len(v), len(forces), len(forces), len(self.friction)
            return LengthDerivatives(*(np.zeros((size, self.count)) for size in sizes))
        by_lengths = self._terms.length_derivatives(q, v, a, forces)
        lengths = self._lengths.reshape(-1, self.count)
        return LengthDerivatives(*(each @ lengths for each in by_lengths))

    @cached_property
    def _terms(self) -> ExpressionTerms:
        """Expressions of the terms, which have derivatives by lengths."""
        for known in (self._dynamics.terms, self._dynamics.kernel_terms):
            if isinstance(known, ExpressionTerms):
                return known
        return ExpressionTerms(self._robot, self._dynamics.contact_set)

    def friction_per_normal(self, phase: ContactPhase, directions: dict[int, Array]) -> list[Array]:
        """Return the derivative (t, np) of friction per normal force, for each sliding contact.

        Args:
            phase: The states of the contacts.
            directions: Directions of those that slide in a surface, by their number.
        """
        result = []
        for slide in phase.sliding:
            s = directions.get(slide.contact, np.array([slide.sign]))
            result.append(np.outer(-s, self.friction[phase.closed[slide.contact]]))
        return result


def _check_contact(name: str, kind: str, contact: Contact) -> None:
    """Check that there is a derivative by a parameter of a contact.

    Args:
        name: The parameter, for messages.
        kind: One of `CONTACT_KINDS` or `LENGTH_KINDS`.
        contact: The contact.

    Raises:
        InputError: If there is none.
    """
    if kind in LENGTH_KINDS:
        surface = contact.surface
        if not isinstance(surface, ExpressedSurface) or isinstance(surface, PiecewiseSurface):
            raise InputError(
                f"parameter {name!r}: the surface of contact {contact.name!r} must be of one "
                f"piece, with a method `expression`, as a Plane has, got {type(surface).__name__}"
            )
        if kind == "radius" and contact.radius == 0.0:
            raise InputError(f"parameter {name!r}: contact {contact.name!r} must have a radius")
        return
    if kind == "restitution" and contact.restitution == 0.0:
        raise InputError(
            f"parameter {name!r}: contact {contact.name!r} must have a restitution above 0, as "
            "with the least bounce it would not stay closed"
        )
    if kind != "restitution" and not contact.rough:
        raise InputError(f"parameter {name!r}: contact {contact.name!r} must have friction above 0")


def _differentiate_solution(
    columns: ParameterColumns, q: Array, v: Array, now: Solution
) -> tuple[Array, Array, Array]:
    """Return the derivatives of the solved equations of a mode.

    Args:
        columns: The parameters.
        q: Configuration (nq,).
        v: Velocity (nv,).
        now: The solution.

    Returns:
        D_p of the acceleration (nv, np) and of the multipliers (m, np), and (D_p E) m (r, np).
    """
    phase, size = now.phase, columns.row_count
    along = phase.scatter_rows(now.forces, size)
    lengths = columns.differentiate_terms(q, v, now.acceleration, along)
    rates, shifts = lengths.rates[phase.all_rows], _stabilize(columns, phase, lengths)
    per_normal = columns.friction_per_normal(phase, now.directions)
    own = np.zeros((len(now.mix), columns.count))
    if phase.spatial:
        own -= now.compute_turning(now.multipliers) @ rates
    for slide, change in zip(phase.sliding, per_normal, strict=True):
        own[slide.rows] += change * now.multipliers[slide.contact]
    upper = now.rows.jacobian.T @ own - columns.torque(q, v, now.acceleration) + lengths.pushes

    def turned(y: Array) -> Array:
        loads, z = scatter_adjoint(now, y)
        bent = columns.differentiate_terms(q, 0.0 * z, z, phase.scatter_rows(loads, size))
        change: Array = -now.kkt.push.T @ (columns.momentum(q, z) - bent.pushes)
        change += now.mix.T @ bent.accelerations[phase.all_rows]
        pulls = now.rows.jacobian @ z
        for slide, by_p in zip(phase.sliding, per_normal, strict=True):
            change[slide.contact] += pulls[slide.rows] @ by_p
        if phase.spatial:
            pulls = pulls @ now.compute_turning(np.ones(len(phase.constrained)))
            for slide in phase.spatial:
                change[slide.contact] -= pulls[slide.rows] @ rates[slide.rows]
        return change

    even, even_p = now.even_solution, None
    if even is not None:
        even_p = _differentiate_solution(columns, q, v, even)[1]
    free = now.kkt.solve_mass(upper)
    wanted = -now.kkt.constraint @ free - shifts[phase.constrained]
    if columns.has_lengths and now.kkt.redundant:
        _check_lengths(now, shifts[phase.constrained], rates[phase.constrained], lengths)
    m_p = differentiate_multipliers(now, wanted, turned, even_p)
    a_p = free + now.kkt.push @ m_p
    if now.starting_contacts:
        return differentiate_starting_contacts(now, a_p, m_p, own, shifts)
    return a_p, m_p, own


def _stabilize(columns: ParameterColumns, phase: ContactPhase, by: LengthDerivatives) -> Array:
    """Return the derivatives (r, np) of J a less its target, along the rows of closed contacts.

    Args:
        columns: The parameters.
        phase: The states of the contacts.
        by: Derivatives of the terms.
    """
    s, change = columns.stabilization, by.accelerations[phase.all_rows]
    if s:
        change = change + 2.0 * s * by.rates[phase.all_rows]
        change[: len(phase.closed)] += s * s * by.gaps[list(phase.closed)]
    return change


def _check_lengths(now: Solution, shifts: Array, rates: Array, by: LengthDerivatives) -> None:
    """Check that redundant contacts stay closed together with other lengths.

    Args:
        now: The solution.
        shifts: Derivatives (m, np) of the accelerations of the constrained rows.
        rates: Derivatives (m, np) of their rates.
        by: Derivatives of the terms.

    Raises:
        InputError: Some would not: there is no motion with which all of them stay closed.
    """
    closed, constraint = list(now.phase.closed), now.kkt.constraint
    for what, rows in ((shifts, constraint), (rates, constraint), (by.gaps[closed], constraint)):
        rows = rows[: len(what)]
        left = what - rows @ np.linalg.lstsq(rows, what, rcond=None)[0]
        if np.abs(left).max(initial=0.0) > _MAX_CONTRADICTION * max(1.0, np.abs(what).max()):
            raise InputError(
                "redundant contacts have no derivative by an offset or radius of some of them "
                "alone: with it they would not stay closed together"
            )


def _close_gaps(
    dynamics: ContactDynamics,
    columns: ParameterColumns,
    q: Array,
    result: ImpactResult,
    contacts: Sequence[int],
    changes: Array,
) -> Array:
    """Return changes of the state after an impact, with gaps closed as the reset closes them.

    It is the part of `ContactDynamics.differentiate_projection` by parameters.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        columns: The parameters.
        q: Configuration (nq,).
        result: The impact.
        contacts: Contacts whose gaps are closed.
        changes: Changes (2 nv, np) of the state before that.
    """
    if not contacts:
        return changes
    phase, after, nv = dynamics.phase(result.modes), result.velocity_after, len(changes) // 2
    no_forces = np.zeros(len(result.terms.jacobian))
    by = columns.differentiate_terms(q, after, 0.0 * after, no_forces)
    closed, constrained = phase.solid_contacts, phase.solid_rows
    mass, jacobian = result.terms.mass, result.terms.jacobian
    off = np.where(np.isin(closed, contacts), -1.0, 0.0)[:, None] * by.gaps[closed]
    closing = changes.copy()
    closing[:nv] += KKT(mass, jacobian[closed]).solve(np.zeros((nv, columns.count)), off)[0]
    rates = by.rates[constrained] + dynamics.differentiate_rates(q, after)[constrained] @ closing
    closing[nv:] += KKT(mass, jacobian[constrained]).solve(np.zeros_like(closing[nv:]), -rates)[0]
    return np.asarray(closing)


def _differentiate_impact_velocity(
    dynamics: ContactDynamics, columns: ParameterColumns, q: Array, v: Array, result: ImpactResult
) -> Array:
    """Return the derivative D_p v+ (nv, np) of an impact, while every contact keeps its state.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        columns: The parameters.
        q: Configuration (nq,).
        v: Velocity (nv,) before the impact.
        result: The impact.

    Raises:
        InputError: If redundant contacts would not take part together with another restitution.
    """
    phase = dynamics.phase(result.perturbed_states)
    if not phase.closed:
        return np.zeros((len(v), columns.count))
    rows, impulses = result.terms.jacobian[phase.all_rows], result.impulses_along_rows(phase)
    equations = result.linearise(phase)
    own = np.zeros((len(rows), columns.count))
    per_normal = columns.friction_per_normal(phase, equations.directions)
    for slide, change in zip(phase.sliding, per_normal, strict=True):
        own[slide.rows] = change * impulses[slide.contact]
    size = len(result.terms.jacobian)
    change = result.velocity_after - v
    lengths = columns.differentiate_terms(q, 0.0 * v, change, phase.scatter_rows(impulses, size))
    before_p = columns.differentiate_terms(q, 0.0 * v, v, np.zeros(size)).accelerations
    before = result.terms.rates
    # A plastic impact, such as the last of an accumulation, has none of the contacts' restitution.
    is_used = result.restitution == dynamics.select_restitution(before)
    xi_p = columns.restitution * (dynamics.is_rebounding(before) * is_used * before)[:, None]
    xi_p += lengths.accelerations + before_p + result.restitution[:, None] * before_p
    xi_p = xi_p[phase.all_rows]  # at fixed v+
    upper = rows.T @ own - columns.momentum(q, change) + lengths.pushes

    def explicit(z: Array, forces: Array) -> tuple[Array, Array]:
        w = rows @ z
        stiffer, tilted = np.zeros_like(own), np.zeros((equations.mix.shape[1], columns.count))
        for slide, change in zip(phase.sliding, per_normal, strict=True):
            k, at = slide.contact, slide.rows
            by_p = columns.friction[phase.closed[k]]
            tilted[k] = w[at] @ change - 2.0 * slide.friction * impulses[k] * by_p  # D(W^-1) m
            stiffer[at] = np.outer((equations.turning @ w)[at], by_p / slide.friction)
        bent = columns.differentiate_terms(q, 0.0 * z, z, phase.scatter_rows(forces, size))
        turned = bent.accelerations[phase.all_rows]
        momentum = columns.momentum(q, z) - bent.pushes
        momentum += rows.T @ (stiffer + equations.turning @ turned)
        return momentum, tilted + equations.mix.T @ turned

    velocity, _, xi_p = solve_impact_changes(phase, result, equations, upper, xi_p, explicit)
    left = equations.select @ xi_p
    if np.abs(left).max() > _MAX_CONTRADICTION * max(1.0, float(np.abs(rows @ v).max())):
        raise InputError(
            "the impact has no derivative by the restitution, an offset or the radius of some "
            "redundant contacts alone: with it they would not take part together"
        )
    return velocity
