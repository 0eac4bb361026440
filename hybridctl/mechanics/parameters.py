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

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.hybrid.model import JumpPoint, ModeKey, ModeModel, Point, PointProperty, ResetBatch
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.impacts.impact import ImpactResult
from hybridctl.mechanics.impacts.impact_batches import ImpactBatch
from hybridctl.mechanics.impacts.impact_derivatives import solve_impact_changes
from hybridctl.mechanics.impacts.resets import ImpactReset, Release
from hybridctl.mechanics.impacts.stick_slip_resets import Breakaway, SlidingStop
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
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.parameter_columns import ParameterColumns
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.mechanics.terms.contact_terms import LengthDerivatives
from hybridctl.sensitivity.parameter_models import ParameterPoint, SystemParameters

_MAX_CONTRADICTION = 1e-8
"""Residual of constraints that a parameter may leave, relative to the rates or to 1 m/s.

Where more is left, redundant contacts would no longer take part together. A choice."""


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

    def differentiate_guards(self, points: Sequence[Point], guards: Sequence[int]) -> Array:
        """Return the derivatives D_p g (m, np) of one guard at each of m points.

        Gaps depend on lengths alone.

        Args:
            points: Points of modes of the system.
            guards: Index of the guard at each of them.
        """
        if not self.columns.has_lengths and all(map(_is_gap, points, guards)):
            return np.zeros((len(points), self.columns.count))
        return super().differentiate_guards(points, guards)

    def differentiate_batch(
        self, batch: ResetBatch, jumps: Sequence[tuple[ModeKey, tuple[str, ...], JumpPoint]]
    ) -> Array | None:
        """Return the derivatives D_p of resets (m, 2 nv, np), of impacts by one solution for all.

        Args:
            batch: The derivatives of the m jumps by the state.
            jumps: Key, guards and point of each, as for `differentiate_reset`.
        """
        if not isinstance(batch, ImpactBatch) or self.columns.has_lengths:
            return super().differentiate_batch(batch, jumps)
        velocities = _differentiate_impact_velocities(self.system.dynamics, self.columns, batch)
        return np.concatenate((np.zeros_like(velocities), velocities), axis=1)


def _is_gap(point: Point, guard: int) -> bool:
    """Return whether a guard of a contact mode is a gap."""
    return (
        isinstance(point, ContactPoint) and point.mode.contact_guards.guards[guard].kind == "closes"
    )


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
    upper = rows.T @ own - columns.momentum(q, change)
    xi_p = _differentiate_rebound(dynamics, columns, result)
    if columns.has_lengths:
        still, along = 0.0 * v, phase.scatter_rows(impulses, size)
        lengths = columns.differentiate_terms(q, still, change, along)
        before_p = columns.differentiate_terms(q, still, v, np.zeros(size)).accelerations
        xi_p += lengths.accelerations + before_p + result.restitution[:, None] * before_p
        upper += lengths.pushes
    xi_p = xi_p[phase.all_rows]  # at fixed v+

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


def _differentiate_rebound(
    dynamics: ContactDynamics, columns: ParameterColumns, result: ImpactResult
) -> Array:
    """Return the derivatives (r, np) of E J v along the rows of all contacts, by restitution."""
    if not columns.restitution.any():
        return np.zeros_like(columns.restitution)
    before = result.terms.rates
    # A plastic impact, such as the last of an accumulation, has none of the contacts' restitution.
    is_used = result.restitution == dynamics.select_restitution(before)
    active = dynamics.is_rebounding(before) * is_used * before
    return np.asarray(columns.restitution * active[:, None])


def _differentiate_impact_velocities(
    dynamics: ContactDynamics, columns: ParameterColumns, batch: ImpactBatch
) -> Array:
    """Return the derivatives D_p v+ (m, nv, np) of impacts, by parameters that are no lengths.

    Contacts are not redundant in a batch, so that no parameter can contradict others.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        columns: The parameters.
        batch: The impacts.
    """
    own = np.zeros((*batch.impulses.shape, columns.count))
    found = 0
    for slide in batch.phase.sliding:
        if slide.sign:
            s = np.full((len(own), 1), slide.sign)
        else:
            s, found = batch.directions[:, found], found + 1
        change = columns.friction[batch.closed[:, slide.contact]]
        push = -s * batch.impulses[:, slide.contact, None]
        own[:, slide.rows] = push[..., None] * change[:, None]
    pairs = zip(batch.q, batch.change, strict=True)
    momentum = np.array([columns.momentum(q, change) for q, change in pairs])
    xi_p = np.zeros_like(own)
    if columns.restitution.any():
        for by_p, result, rows in zip(xi_p, batch.results, batch.places, strict=True):
            by_p[:] = _differentiate_rebound(dynamics, columns, result)[rows]
    return batch.solve(batch.rows.swapaxes(1, 2) @ own - momentum, xi_p)
