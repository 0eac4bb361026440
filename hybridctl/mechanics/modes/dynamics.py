r"""Dynamics of a robot in contact with Coulomb friction: accelerations, forces, derivatives.

Sign conventions: a contact force pushes, :math:`\lambda_n \ge 0`, and friction opposes sliding,

.. math:: M a + h = S u + J_n^T \lambda_n + J_t^T \lambda_t, \qquad
          \lambda_t = -\mu \lambda_n v_t / |v_t| \text{ in slip}.

Methods take q (nq,), v (nv,), u (nu,) and the mode of every contact (see `phase`). They do not
validate: that is done where a simulation starts. A `ContactDynamics` does not change once made, so
that threads can share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri

from hybridctl.base.checks import Array, check_member, check_number
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics.contact_law.law import CLOSED, CoulombProblem, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contacts.contact import Contact, check_contacts, check_names
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.joint_contacts import AnyContact, JointContact
from hybridctl.mechanics.contacts.joint_rows import JointContactSet
from hybridctl.mechanics.contacts.surfaces import ExpressedSurface
from hybridctl.mechanics.kernel.extension import KernelChoice
from hybridctl.mechanics.modes.acceleration import (
    ContactAcceleration,
    complete_forces,
    make_acceleration,
    make_open_acceleration,
    solve_phase,
)
from hybridctl.mechanics.modes.constraint_equations import (
    ContactRows,
    Solution,
    build_acceleration_problem,
    make_contact_rows,
)
from hybridctl.mechanics.modes.derivatives import AccelerationDerivatives, SolutionDerivatives
from hybridctl.mechanics.modes.mode_expressions import list_friction
from hybridctl.mechanics.modes.mode_functions import ModeStructure, find_structure
from hybridctl.mechanics.modes.phase import ContactPhase
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_terms import TermValues
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms, RobotConstants
from hybridctl.mechanics.terms.sources import (
    MAX_COMPILED_VELOCITIES,
    TermsChoice,
    make_kernel_terms,
    make_terms,
)

ON_SURFACE = 1e-11
"""Gap, m or rad, at which a closed contact is on its surface: rounding of lengths of 1 m."""

OnSeveral = Literal["raise", "dissipation"]

STABILIZATION = 0.0
"""Rate, 1/s, at which residuals of closed contacts decay by default: none does."""
_MAX_PROJECTION_STEPS = 20
"""Newton steps that put closed contacts on their surfaces; they end by `ON_SURFACE`."""


class ContactDynamics:
    r"""The dynamics of `robot` with its `contacts` in any modes.

    A closed contact obeys :math:`\ddot h + 2 s \dot h + s^2 h = 0`, and a sticking one
    :math:`\dot v_t + 2 s v_t = 0`, so that a gap or speed left by rounding or by the integrator
    decays with rate s = `stabilization` (in 1/s) and does not grow; on the constraint itself
    this changes nothing. s = 0 switches it off.

    Redundant contacts share loads as in `force_distribution`: by the smallest forces inside the
    friction cones, friction of those that stick in proportion to their normal forces.

    Args:
        robot: Robot.
        contacts: Contacts in space; may be empty only if there are contacts of joints.
        stabilization: Rate s, 1/s.
        terms: Where mass, rows and their derivatives come from: functions "generated" from the
            robot, or "pinocchio". "auto" generates them for robots of up to 7 velocities, of which
            whole modes are compiled then, and up to 24 where contacts are other than points on
            planes of the world. Functions that are called often become machine code while they are
            called, by the C compiler of the machine and in another process, and are kept. With
            "native" all are, where they are first called: a step takes a third of the time.
        on_several: What becomes of an impact after which several velocities obey the law: "raise"
            an error, or take the one of most "dissipation"; see `impact`.
        joints: Contacts of joints (see `joint_contacts`), which follow the others.
        kernel: "off" for modes without the compiled kernel, see `kernel_mode`.

    Attributes:
        contacts: All c contacts.
        contact_set: Their kinematics. Rows are normals of all contacts, then tangents.
        friction: Kinetic coefficients (c,).
        static_friction: Static coefficients (c,).
        restitution: Coefficients of restitution (c,).
        bouncing_contacts: Contacts whose coefficient of restitution is positive.
        row_restitution: Coefficients of restitution (r,) of the rows of all contacts.
        row_threshold: Approach speeds (r,) up to which these rows do not rebound, m/s.
        pressed_contacts: Contacts that a constant load presses: dry friction of joints.
        terms: Terms of the robot with its contacts; `terms_choice` is what was asked for.
        kernel_terms: Their expressions for the compiled kernel, None if modes do not use it;
            `kernel_choice` is what was asked for.
        expected_modes: Modes that are preferred where the law has several solutions.

    Raises:
        InputError: If contacts do not fit the robot, an option is none, or terms that are asked for
            cannot be made.
        UnknownNameError: If a contact names a frame or body that the robot does not have.
    """

    def __init__(
        self,
        robot: Robot,
        contacts: Sequence[Contact],
        *,
        stabilization: float = STABILIZATION,
        terms: TermsChoice = "auto",
        on_several: OnSeveral = "raise",
        joints: Sequence[JointContact] = (),
        kernel: KernelChoice = "auto",
    ) -> None:
        self.robot = robot
        in_space = check_contacts(robot, contacts, may_be_none=bool(joints))
        self.contacts: tuple[AnyContact, ...] = (*in_space, *joints)
        check_names(self.contacts)
        self.stabilization = check_number("stabilization", stabilization, at_least=0.0)
        self.on_several = check_member("on_several", on_several, get_args(OnSeveral))
        self.expected_modes: frozenset[Modes] = frozenset()
        self.contact_set: ContactSet = (
            JointContactSet(robot, in_space, joints) if joints else ContactSet(robot, in_space)
        )
        self.pressed_contacts: tuple[int, ...] = tuple(
            np.flatnonzero(self.contact_set.loads).tolist()
        )
        self._list_coefficients()
        # Phases of any coefficients, which dynamics that differ in numbers share.
        self._alike_phases: dict[Modes, ContactPhase] = {}
        self.terms_choice: TermsChoice = check_member("terms", terms, get_args(TermsChoice))
        self.kernel_choice: KernelChoice = check_member("kernel", kernel, get_args(KernelChoice))
        self._make_terms()
        self._phases: dict[Modes, ContactPhase] = {}
        self._all_closed = self.phase((CLOSED,) * len(self.contacts))

    def __getstate__(self) -> dict[str, Any]:
        """Return all but what is made at first use, so that runs change no pickled form."""
        made = "mode_constants", "mode_numbers", "_all_numbers"
        kept = {name: value for name, value in self.__dict__.items() if name not in made}
        return {**kept, "structure": self.structure, "_phases": {}, "_alike_phases": {}}

    def _copy(self) -> ContactDynamics:
        """Return a copy that shares all attributes, also those that pickled forms lack."""
        other: ContactDynamics = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def _list_coefficients(self) -> None:
        """Set the coefficients of friction and restitution from `contacts`."""
        table = [
            (c.restitution, c.friction, c.static_friction, c.tangential_restitution,
             c.restitution_threshold)
            for c in self.contacts
        ]  # fmt: skip
        columns = np.array(table, dtype=np.float64).T.copy()
        self.restitution, self.friction, self.static_friction, tangential, threshold = columns
        self.bouncing_contacts: list[int] = np.flatnonzero(self.restitution > 0.0).tolist()
        owner = self.contact_set.owner  # the first rows are the normals of all contacts
        tangential_rows = tangential[owner[len(self.contacts) :]]
        self.row_restitution: Array = np.concatenate((self.restitution, tangential_rows))
        self.row_threshold: Array = threshold[owner]

    def _make_terms(self) -> None:
        """Set the terms, from robot and contacts."""
        choice, robot, rows = self.terms_choice, self.robot, self.contact_set
        self.terms = make_terms(choice, robot, rows)
        self.kernel_terms = make_kernel_terms(choice, self.kernel_choice, robot, rows, self.terms)

    @cached_property
    def structure(self) -> ModeStructure:
        """The functions of its modes, which dynamics that differ in numbers share."""
        made_of = self.robot, self.contact_set, self.contacts, self.stabilization
        if not isinstance(self.terms, ExpressionTerms):
            return ModeStructure(*made_of)
        return find_structure(self.mode_constants, *made_of, self.terms.machine_code)

    @cached_property
    def mode_constants(self) -> RobotConstants:
        """Robot and contacts, by whose numbers the functions of `structure` are called."""
        friction = list_friction(self.contacts)
        if isinstance(self.terms, ExpressionTerms):
            return self.terms.constants._replace(friction=friction)
        return RobotConstants.of(self.robot, self.contact_set, friction)

    @cached_property
    def mode_numbers(self) -> Array:
        """The numbers of `mode_constants`."""
        return np.asarray(self._all_numbers[self._all_numbers != 0.0])

    @cached_property
    def _all_numbers(self) -> Array:
        """`mode_numbers` with those that are zero: functions are the same where these are."""
        return self.mode_constants.list_all_numbers()

    def with_values(self, robot: Robot, contacts: Sequence[Contact]) -> ContactDynamics:
        """Return the dynamics with other numbers.

        They call the functions that these have made where numbers
        that are zero stay zero, and others do not become so: for others the functions differ.

        Args:
            robot: The robot with other inertias, springs and dampers, see `Robot.replace`.
            contacts: The contacts in space with other coefficients, offsets or radii.
        """
        joints = [contact for contact in self.contacts if isinstance(contact, JointContact)]
        every = (*contacts, *joints)
        if any(one.rough != own.rough for one, own in zip(every, self.contacts, strict=True)):
            made = ContactDynamics(  # tangents appear or vanish
                robot,
                contacts,
                stabilization=self.stabilization,
                terms=self.terms_choice,
                on_several=self.on_several,
                joints=joints,
                kernel=self.kernel_choice,
            )
            made.expected_modes = self.expected_modes
            return made
        other = self._copy()
        for name in ("structure", "mode_constants", "mode_numbers", "_all_numbers"):
            other.__dict__.pop(name, None)  # of the old numbers
        other.robot, other.contacts = robot, every
        old = [contact for contact in self.contacts if isinstance(contact, Contact)]
        if any(not one.has_lengths_of(own) for one, own in zip(contacts, old, strict=True)):
            other.contact_set = (
                JointContactSet(robot, contacts, joints) if joints else ContactSet(robot, contacts)
            )
        if any(one is not own for one, own in zip(every, self.contacts, strict=True)):
            other._list_coefficients()
            other._phases = {}  # those that are known are of other coefficients
        # Terms are of robot and lengths: coefficients alone leave them.
        keeps_terms = robot is self.robot and other.contact_set is self.contact_set
        if not isinstance(self.kernel_terms or self.terms, ExpressionTerms):
            if not keeps_terms:
                other._make_terms()
            return other
        constants = RobotConstants.of(robot, other.contact_set)
        friction = list_friction(every)
        other.mode_constants = constants._replace(friction=friction)
        is_alike = np.array_equal(other._all_numbers == 0.0, self._all_numbers == 0.0)
        if is_alike:
            other.structure = self.structure
        if not keeps_terms:
            other._replace_terms(constants, is_alike)
        return other

    def _replace_terms(self, constants: RobotConstants, is_alike: bool) -> None:
        """Set the terms of a robot with its contacts that differs in numbers from that of these.

        Args:
            constants: Robot and contacts.
            is_alike: Whether the same numbers are zero, so that functions are the same.
        """
        old, of_kernel = self.terms, self.kernel_terms
        if of_kernel is not None:
            self.kernel_terms = of_kernel.with_constants(constants, is_alike)
        if self.kernel_terms is not None and of_kernel is old:
            self.terms = self.kernel_terms
        elif isinstance(old, ExpressionTerms):
            self.terms = old.with_constants(constants, is_alike)
        else:
            self.terms = make_terms(self.terms_choice, self.robot, self.contact_set)

    def has_guards_of(self, other: ContactDynamics) -> bool:
        """Return whether modes have the same guards as those of dynamics with other numbers.

        They have not where contacts become rough or stop being so, which then have other tangents,
        or where they begin or cease to rub.

        Args:
            other: Dynamics of the same contacts, see `with_values`.
        """
        if self.contacts is other.contacts:
            return True
        one, own = (tuple(map(len, d.contact_set.tangents)) for d in (self, other))
        return one == own and np.array_equal(self.friction > 0.0, other.friction > 0.0)

    def expect_modes(self, modes: frozenset[Modes]) -> ContactDynamics:
        """Return the same dynamics, which prefer `modes` where the law has several solutions.

        So a plan is followed through impacts and accelerations where its modes are one solution of
        several.
        """
        other = self._copy()
        other.expected_modes = modes
        return other

    @property
    def has_expressions(self) -> bool:
        """Whether the equations can be written as expressions, see `mode_expressions`."""
        return all(
            isinstance(contact, Contact) and isinstance(contact.surface, ExpressedSurface)
            for contact in self.contacts
        )

    @property
    def has_compiled_modes(self) -> bool:
        """Whether field, guards and steps of each mode are generated functions."""
        is_small = self.robot.nv <= MAX_COMPILED_VELOCITIES
        return isinstance(self.terms, ExpressionTerms) and is_small

    @property
    def force_scales(self) -> Array:
        """Sizes (c,) of contact forces: the robot's weight in N, or the limit of dry friction.

        The number of the weight also stands for N m, at stops of joints that turn.
        """
        return np.where(self.contact_set.loads > 0.0, self.contact_set.loads, self.robot.weight)

    # Kinematics of all contacts

    def gaps(self, q: Array) -> Array:
        """Return the signed distances h (c,) of all contacts, m or rad, positive when open."""
        return self.contact_set.gaps(q)

    def gap_jacobian(self, q: Array) -> Array:
        """Return the Jacobian J_n (c, nv) of the gaps of all contacts."""
        return self.contact_set.jacobian(q)[: len(self.contacts)]

    def gap_rates(self, q: Array, v: Array) -> Array:
        """Return the normal velocities (c,) of all contacts, m/s or rad/s."""
        return np.asarray(self.gap_jacobian(q) @ v)

    def tangent_jacobian(self, q: Array) -> Array:
        """Return the tangent Jacobian J_t (c, 2, nv), zero where a contact has no such tangent."""
        return self.take_tangents(self.contact_set.jacobian(q))

    def slip_velocities(self, q: Array, v: Array) -> Array:
        """Return the sliding velocities v_t (c, 2) of all contacts, m/s or rad/s, closed or not."""
        return np.asarray(self.tangent_jacobian(q) @ v)

    def differentiate_rates(self, q: Array, v: Array) -> Array:
        """Return the derivatives (r, 2 nv) by (q, v) of the rates J v of all rows."""
        no_forces = np.zeros(len(self.contact_set.owner))
        turned = self.terms.impulse_derivatives(q, v, no_forces).rates
        return np.hstack((turned, self.contact_set.jacobian(q)))

    def take_tangents(self, rows: Array) -> Array:
        """Return values of all rows (r, ...) along the tangents of every contact, (c, 2, ...)."""
        return self._all_closed.split_rows(rows)[1]

    # Restitution

    def is_rebounding(self, rates: Array) -> NDArray[np.bool_]:
        """Return which rows (r,) are of contacts that do not approach too slowly to rebound.

        Args:
            rates: J v (r,) before the impact, m/s.
        """
        normal, least = rates[self.contact_set.owner], self.row_threshold
        return np.asarray((normal > 0.0) | (-normal > least) | (least == 0.0))

    def select_restitution(self, rates: Array) -> Array:
        """Return the coefficients (r,) of all rows for an impact, 0 of contacts too slow.

        Args:
            rates: J v (r,) before the impact, m/s.
        """
        return np.asarray(self.row_restitution * self.is_rebounding(rates))

    # The pass of one mode at one point

    def phase(self, modes: Modes) -> ContactPhase:
        """Return the phase of these modes of all contacts: the rows that they constrain.

        It is made once for each tuple of modes. A mode that a contact cannot have is not refused.
        """
        known = self._phases.get(modes)
        if known is None and modes in self._alike_phases:
            coefficients = self.friction, self.static_friction
            made = self._alike_phases[modes].with_friction(*coefficients)
            known = self._phases.setdefault(modes, made)
        if known is None:
            bodies = list(zip(self.contact_set.joint_a, self.contact_set.joint_b, strict=True))
            coefficients = self.friction, self.static_friction
            tangents, loads = self.contact_set.tangents, self.contact_set.loads
            made = ContactPhase(tangents, *coefficients, modes, bodies, loads)
            self._alike_phases[modes] = made
            known = self._phases.setdefault(modes, made)
        return known

    def acceleration(self, q: Array, v: Array, u: Array, modes: Modes) -> ContactAcceleration:
        """Return acceleration and forces in the given modes, [RS] (2.38)-(2.41).

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
            modes: Modes of all contacts.

        Raises:
            NoContactSolutionError: If no sliding directions are found for redundant contacts that
                start to slide.
        """
        phase = self.phase(modes)
        if not phase.closed:
            a = self.robot.free_acceleration(q, v, u)
            return make_open_acceleration(a, self.gaps(q))
        solution = complete_forces(self.solve_phase(phase, q, v, u))
        return make_acceleration(solution, len(self.contacts))

    def solve_phase(self, phase: ContactPhase, q: Array, v: Array, u: Array) -> Solution:
        """Return the solved equations of a phase with a closed contact.

        The acceleration is right but where redundant contacts slide, the forces where none are
        redundant: those depend on how forces are shared, see `complete_forces`.

        Args:
            phase: Phase of a mode.
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        return solve_phase(self.phase, phase, self.make_rows(phase, q, v, u))

    def make_rows(self, phase: ContactPhase, q: Array, v: Array, u: Array) -> ContactRows:
        """Return the terms of the closed contacts of a phase.

        Args:
            phase: Phase of a mode.
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        values, s = self.terms.values(q, v, u), self.stabilization
        # A contact that decays to its surface stays on the piece that it is on.
        gaps = self.contact_set.piece_gaps(q, values.gaps) if s else values.gaps
        rows = make_contact_rows(phase, values, gaps, s)
        if not len(phase.pressed_places):
            return rows
        compliance = self.compute_compliance(phase, rows.mass)
        return rows._replace(compliance=compliance, target=rows.target + compliance * phase.loads)

    def compute_compliance(self, phase: ContactPhase, mass: Array) -> Array:
        """Return the compliance D of the rows of a phase, (r,), zero for rows of no soft contact.

        The normal row D f = D N of a pressed contact makes its force f the load N, whatever D is.
        D is large enough that friction of joints never hides that a solution of Coulomb's law is
        unique: `uniqueness` compares D with the response of the tangents, whose norm for n
        joints is at most n times the largest diagonal entry of the scaled response.

        Args:
            phase: A phase with pressed contacts.
            mass: Mass matrix (nv, nv).
        """
        assert isinstance(self.contact_set, JointContactSet)
        velocities = self.contact_set.joint_velocities[phase.pressed_contacts]
        inverse, _ = dpotri(dpotrf(mass, lower=1)[0], lower=1)
        compliance = np.zeros(len(phase.owner))
        largest = max(1.0, 0.5 * len(velocities)) * inverse.diagonal()[velocities]
        compliance[phase.pressed_places] = largest
        return compliance

    def build_acceleration_problem(self, phase: ContactPhase, rows: ContactRows) -> CoulombProblem:
        """Return Coulomb's law for the accelerations of the closed contacts of a phase."""
        kkt = KKT(rows.mass, rows.jacobian, compliance=rows.compliance)
        return build_acceleration_problem(phase, rows, phase.friction, kkt)

    def copy_terms(self, q: Array, v: Array) -> TermValues:
        """Return the terms at (q, v) and zero input, in arrays that last."""
        return TermValues(*(a.copy() for a in self.terms.values(q, v, np.zeros(self.robot.nu))))

    def derivatives_at(
        self, q: Array, v: Array, u: Array, point: ContactAcceleration
    ) -> AccelerationDerivatives:
        """Return the derivatives of `acceleration`, see `modes.derivatives`.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
            point: Acceleration and forces there.

        Raises:
            SimulationError: If contacts share friction but carry no load.
        """
        c, nv, solution = len(self.contacts), len(v), point.solution
        columns, size = 2 * nv + len(u), len(self.contact_set.owner)
        if solution is None:
            d = self.terms.derivatives(q, v, point.acceleration, np.zeros(size))
            both = np.hstack([-d.equations, self.robot.actuation])
            a_z = self.robot.inverse_mass(q) @ both
            forces_z, friction_z = np.zeros((c, columns)), np.zeros((c, 2, columns))
        else:
            found = SolutionDerivatives(
                self.terms, self.robot, size, self.stabilization, q, v, solution
            )
            d, a_z, phase = found.terms_z, found.acceleration_z, solution.phase
            forces_z, friction_z = phase.split_rows(found.forces_z)
            if not phase.all_closed:
                forces_z = phase.scatter_contacts(forces_z, c)
                friction_z = phase.scatter_contacts(friction_z, c)
        rates_z, gaps_z = np.zeros((size, columns)), np.zeros((c, columns))
        rates_z[:, : 2 * nv] = d.rates
        gaps_z[:, :nv] = d.rates[:c, nv:]
        slip_z = self.take_tangents(rates_z)
        return AccelerationDerivatives(point, a_z, forces_z, friction_z, slip_z, gaps_z, rates_z)

    # Projection onto the constraints of a phase

    def project_state(self, phase: ContactPhase, q: Array, v: Array) -> tuple[Array, Array]:
        """Return the state near (q, v) with the contacts of a phase closed and sticking.

        q moves by dq of least dq' M dq, in Newton's steps, and v then by dv of least dv' M dv.

        Args:
            phase: Phase of a mode.
            q: Configuration (nq,).
            v: Velocity (nv,).

        Raises:
            NoContactSolutionError: If gaps do not close to 1e-11 m in 20 steps.
        """
        robot, no_input = self.robot, np.zeros(self.robot.nu)
        closed, constrained = phase.solid_contacts, phase.solid_rows
        if not len(constrained):  # dry friction that slips: nothing is constrained
            return q, v
        for _ in range(_MAX_PROJECTION_STEPS):
            values = self.terms.values(q, v, no_input)
            gap = self.contact_set.piece_gaps(q, values.gaps)[closed]
            if np.abs(gap).max(initial=0.0) <= ON_SURFACE:
                system = KKT(values.mass, values.jacobian[constrained])
                return q, v - system.push @ system.forces(values.rates[constrained])
            system = KKT(values.mass, values.jacobian[closed])
            q = robot.normalize(robot.integrate(q, -system.push @ system.forces(gap)))
        raise NoContactSolutionError(
            "closed contacts cannot be put on their surfaces: gaps of "
            f"{gap.tolist()} m (rad at joints that turn) are left"
        )

    def differentiate_projection(
        self, phase: ContactPhase, q: Array, v: Array, contacts: Sequence[int]
    ) -> Array:
        """Return the derivatives (2 nv, 2 nv) of `project_state`, on its image.

        Perturbations of the gaps of some closed contacts are taken off, and those of the rates of
        all constrained rows. Gaps of other closed contacts keep their perturbations.

        Args:
            phase: Phase of a mode.
            q: Configuration (nq,), projected.
            v: Velocity (nv,), projected.
            contacts: The closed contacts whose gaps are projected.
        """
        nv, jacobian = self.robot.nv, self.contact_set.jacobian(q)
        mass = self.robot.mass_matrix(q)
        closed, constrained = phase.solid_contacts, phase.solid_rows
        normals = jacobian[closed]
        off = np.where(np.isin(closed, contacts), -1.0, 0.0)[:, None] * normals
        moved = np.eye(2 * nv)
        moved[:nv, :nv] += KKT(mass, normals).solve(np.zeros((nv, nv)), off)[0]
        rates_z = self.differentiate_rates(q, v)[constrained] @ moved
        system = KKT(mass, jacobian[constrained])
        moved[nv:] += system.solve(np.zeros((nv, 2 * nv)), -rates_z)[0]
        return moved
