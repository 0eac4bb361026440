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
from copy import copy
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri

from hybridctl.base.checks import Array, check_member, check_number
from hybridctl.base.errors import InputError, NoContactSolutionError
from hybridctl.mechanics.constrained.equations import (
    AccelerationDerivatives,
    ContactAcceleration,
    ContactRows,
    Solution,
    balanced,
    contradict,
    linearised,
    problem,
    shared,
)
from hybridctl.mechanics.constrained.phase import ContactPhase
from hybridctl.mechanics.constrained.sliding import steered_derivatives, turned_by_loads
from hybridctl.mechanics.constrained.standstill import settled
from hybridctl.mechanics.constrained.tolerances import CONSISTENT
from hybridctl.mechanics.contact_law.law import CLOSED, CoulombProblem, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contacts.contact import Contact, check_contacts, check_names
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.joint_contacts import AnyContact, JointContact
from hybridctl.mechanics.contacts.joint_rows import JointContactSet
from hybridctl.mechanics.contacts.surfaces import ExpressedSurface
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_terms import TermDerivatives, Terms, TermValues
from hybridctl.mechanics.terms.flat_terms import FlatTerms
from hybridctl.mechanics.terms.generated import GeneratedTerms
from hybridctl.mechanics.terms.joint_terms import JointTerms
from hybridctl.mechanics.terms.multibody_terms import PinocchioTerms

ON_SURFACE = 1e-11
"""Newton's method that puts closed contacts on their surfaces ends at this gap: rounding, of m."""

TermsChoice = Literal["auto", "generated", "native", "pinocchio"]
OnSeveral = Literal["raise", "dissipation"]
MOST_EXPRESSED = 24  # velocities of a robot up to which its terms are generated in half a second
_COMPILED = 7  # velocities of a robot up to which those of each mode are, whole steps included

STABILIZATION = 0.0  # 1/s
_PROJECTIONS = 20


class ContactDynamics:
    r"""The dynamics of `robot` with its `contacts` in any modes.

    A closed contact obeys :math:`\ddot h + 2 s \dot h + s^2 h = 0`, and a sticking one
    :math:`\dot v_t + 2 s v_t = 0`, so that a gap or speed left by rounding or by the integrator
    decays with rate s = `stabilization` (in 1/s) and does not grow; on the constraint itself
    this changes nothing. s = 0 switches it off.

    terms: where mass, rows and their derivatives come from: functions "generated" from the robot,
    or "pinocchio". "auto" generates them for robots of up to 7 velocities, of which whole modes
    are compiled then, and up to 24 where contacts are other than points on planes of the world.
    "native" are generated ones as machine code, of which a step takes a third of the time; they are
    compiled where they are first asked for, by the C compiler of the machine, and kept.

    Redundant contacts share loads as `equations` says: by the smallest forces inside the friction
    cones, friction of those that stick in proportion to their normal forces.

    on_several: what becomes of an impact after which several velocities obey the law: see `impact`.

    joints: contacts of joints (see `joint_contacts`), which follow the others; at least one contact
    of either kind is needed.

    Raises what `check_contacts` raises.
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
    ) -> None:
        self.robot = robot
        in_space = check_contacts(robot, contacts, may_be_none=bool(joints))
        self.contacts: tuple[AnyContact, ...] = (*in_space, *joints)
        check_names(self.contacts)
        self.stabilization = check_number("stabilization", stabilization, at_least=0.0)
        self.on_several = check_member("on_several", on_several, get_args(OnSeveral))
        self.expected: frozenset[Modes] = frozenset()
        self.restitution = np.array([contact.restitution for contact in self.contacts])
        self.bounces = bool(self.restitution.any())
        self.friction = np.array([contact.friction for contact in self.contacts])
        self.static_friction = np.array(
            [contact.static_friction for contact in self.contacts], dtype=np.float64
        )
        self.all: ContactSet = (
            JointContactSet(robot, in_space, joints) if joints else ContactSet(robot, in_space)
        )
        self.pressed: tuple[int, ...] = tuple(np.flatnonzero(self.all.loads).tolist())
        each = [self.contacts[i] for i in self.all.owner]
        normal = np.arange(len(each)) < len(self.contacts)
        tangential = [contact.tangential_restitution for contact in each]
        self._rebound = np.where(normal, [contact.restitution for contact in each], tangential)
        self._slowest_rebound = np.array([contact.restitution_threshold for contact in each])
        self.terms = _chosen(check_member("terms", terms, get_args(TermsChoice)), robot, self.all)
        self._phases: dict[Modes, ContactPhase] = {}
        self._every = self.phase((CLOSED,) * len(self.contacts))

    def expecting(self, modes: frozenset[Modes]) -> ContactDynamics:
        """The same dynamics, which take of several solutions of the law the one in such `modes`.

        So a plan is followed through impacts and accelerations that its modes are to follow.
        """
        other = copy(self)
        other.expected = modes
        return other

    @property
    def has_expressions(self) -> bool:
        """Whether the equations can be written as expressions, see `mode_expressions`."""
        known = all(
            isinstance(contact, Contact) and isinstance(contact.surface, ExpressedSurface)
            for contact in self.contacts
        )
        return known and self.robot.nv <= MOST_EXPRESSED

    @property
    def compiles_modes(self) -> bool:
        """Whether field, guards and steps of each mode are generated functions."""
        return isinstance(self.terms, GeneratedTerms) and self.robot.nv <= _COMPILED

    @property
    def force_scales(self) -> Array:
        """Sizes (c,) of contact forces: the robot's weight, or the limit of dry friction."""
        return np.where(self.all.loads > 0.0, self.all.loads, self.robot.weight)

    # Kinematics of all contacts

    def gaps(self, q: Array) -> Array:
        """Signed distances h of all contacts (c,), in m, positive when open."""
        return self.all.gaps(q)

    def gap_jacobian(self, q: Array) -> Array:
        """The Jacobian J_n (c, nv) of the gaps of all contacts."""
        return self.all.jacobian(q)[: len(self.contacts)]

    def gap_rates(self, q: Array, v: Array) -> Array:
        """Normal velocities of all contacts (c,), in m/s."""
        return np.asarray(self.gap_jacobian(q) @ v)

    def tangent_jacobian(self, q: Array) -> Array:
        """The tangent Jacobian J_t (c, 2, nv), zero without friction and without such motion."""
        return self.tangential(self.all.jacobian(q))

    def slip_velocities(self, q: Array, v: Array) -> Array:
        """Sliding velocities v_t of all contacts (c, 2), in m/s, closed or not."""
        return np.asarray(self.tangent_jacobian(q) @ v)

    def rate_derivatives(self, q: Array, v: Array) -> Array:
        """The derivatives (r, 2 nv) by (q, v) of the rates J v of all rows."""
        turned = self.terms.impulse_derivatives(q, v, np.zeros(len(self.all.owner))).rates
        return np.hstack((turned, self.all.jacobian(q)))

    def tangential(self, rows: Array) -> Array:
        """Values of all rows (r, ...) along the tangents of every contact (c, 2, ...)."""
        return self._every.spread(rows)[1]

    # Restitution

    def rebounds(self, rates: Array) -> NDArray[np.bool_]:
        """Rows (r,) of contacts that do not approach too slowly to rebound, at rates (r,)."""
        normal, least = rates[self.all.owner], self._slowest_rebound
        return np.asarray((normal > 0.0) | (-normal > least) | (least == 0.0))

    def restitution_at(self, rates: Array) -> Array:
        """Coefficients of all rows (r,) that hit with rates (r,), 0 of contacts too slow."""
        return np.asarray(self._rebound * self.rebounds(rates))

    # Modes

    def phase(self, modes: Modes) -> ContactPhase:
        """The meaning of these modes of all contacts, made once."""
        known = self._phases.get(modes)
        if known is None:
            bodies = list(zip(self.all.joint_a, self.all.joint_b, strict=True))
            coefficients = self.friction, self.static_friction
            made = ContactPhase(self.all.tangents, *coefficients, modes, bodies, self.all.loads)
            known = self._phases.setdefault(modes, made)
        return known

    def acceleration(self, q: Array, v: Array, u: Array, modes: Modes) -> ContactAcceleration:
        """Acceleration and forces in the given modes, [RS] (2.38)-(2.41)."""
        phase = self.phase(modes)
        if not phase.closed:
            return self.free(q, self.robot.free_acceleration(q, v, u))
        now, gaps = self.solved(phase, q, v, u)
        return self.loaded(self.carried(now), gaps)

    def free(self, q: Array, a: Array) -> ContactAcceleration:
        """The acceleration a (nv,) with all contacts open, and no forces."""
        count = len(self.contacts)
        friction, slip = np.zeros((2, count, 2))
        return ContactAcceleration(a, np.zeros(count), friction, slip, self.gaps(q), None)

    def solved(self, phase: ContactPhase, q: Array, v: Array, u: Array) -> tuple[Solution, Array]:
        """The equations of a phase with a closed contact, solved, and all gaps (c,).

        The acceleration is right but where redundant contacts slide, the forces where none are
        redundant: those depend on how loads are shared, see `loaded`.
        """
        values = self.terms.values(q, v, u)
        gaps = values.gaps.copy()
        return settled(self.phase, phase, self._closed_rows(phase, q, values)), gaps

    def carried(self, now: Solution) -> Solution:
        """The solution with loads shared inside the friction cones."""
        friction = now.phase.friction
        return turned_by_loads(shared(now, friction), friction)

    def loaded(self, now: Solution, gaps: Array) -> ContactAcceleration:
        """Acceleration and forces of a solution whose loads are shared."""
        phase, count = now.phase, len(self.contacts)
        (forces, friction), (_, slip) = phase.spread(now.forces), phase.spread(now.rows.rates)
        if not phase.whole:
            forces, friction, slip = (
                phase.among_all(part, count) for part in (forces, friction, slip)
            )
        return ContactAcceleration(now.acceleration, forces, friction, slip, gaps, now)

    def kept_values(self, q: Array, v: Array) -> TermValues:
        """Terms at (q, v) and zero input, in arrays that last."""
        return TermValues(*(a.copy() for a in self.terms.values(q, v, np.zeros(self.robot.nu))))

    def rows(self, phase: ContactPhase, q: Array, v: Array, u: Array) -> ContactRows:
        """Terms of the closed contacts of a phase."""
        values = self.terms.values(q, v, u)
        return self._closed_rows(phase, q, values)

    def _closed_rows(self, phase: ContactPhase, q: Array, values: TermValues) -> ContactRows:
        """Return the rows of a phase; residuals decay as `stabilization` says."""
        if self.stabilization:
            values = values._replace(gaps=self.all.piece_gaps(q, values.gaps))
        rows = _closed_rows(phase, values, self.stabilization)
        if not len(phase.pressed):
            return rows
        soft = self.soft_rows(phase, rows.mass)
        return rows._replace(compliance=soft, target=rows.target + soft * phase.loads)

    def soft_rows(self, phase: ContactPhase, mass: Array) -> Array:
        """Return the compliance D of the rows of a phase, (r,), zero for rows of no soft contact.

        The normal row D f = D N of a pressed contact makes its force f the load N, whatever D is.
        D is large enough that friction of joints never hides that a solution of Coulomb's law is
        unique: `uniqueness` compares D with the response of the tangents, whose norm for n
        joints is at most n times the largest diagonal entry of the scaled response.

        Args:
            phase: A phase with pressed contacts.
            mass: Mass matrix (nv, nv).
        """
        assert isinstance(self.all, JointContactSet)
        velocities = self.all.pressed_velocities[phase.pressed_contacts]
        inverse, _ = dpotri(dpotrf(mass, lower=1)[0], lower=1)
        soft = np.zeros(len(phase.owner))
        soft[phase.pressed] = max(1.0, 0.5 * len(velocities)) * inverse.diagonal()[velocities]
        return soft

    def solve(self, phase: ContactPhase, q: Array, v: Array, u: Array) -> Solution:
        """The equations of a phase with at least one closed contact; see `equations.solve`."""
        return settled(self.phase, phase, self.rows(phase, q, v, u))

    def problem(self, phase: ContactPhase, rows: ContactRows) -> CoulombProblem:
        """Coulomb's law for the accelerations of the closed contacts of a phase."""
        kkt = KKT(rows.mass, rows.jacobian, compliance=rows.compliance)
        return problem(phase, rows, phase.friction, kkt)

    def projected(self, phase: ContactPhase, q: Array, v: Array) -> tuple[Array, Array]:
        """The state near (q, v) with the contacts of a phase closed and sticking, by least energy.

        q moves by dq of least dq' M dq, in Newton's steps, and v then by dv of least dv' M dv.
        Raises `NoContactSolutionError` where gaps do not close.
        """
        robot, none = self.robot, np.zeros(self.robot.nu)
        closed, held = phase.solid_contacts, phase.solid_rows
        if not len(held):
            return q, v
        for _ in range(_PROJECTIONS):
            now = self.terms.values(q, v, none)
            gap = self.all.piece_gaps(q, now.gaps)[closed]
            if np.abs(gap).max(initial=0.0) <= ON_SURFACE:
                rows = now.jacobian[held]
                system = KKT(now.mass, rows)
                return q, v - system.push @ system.forces(now.rates[held])
            normals = now.jacobian[closed]
            system = KKT(now.mass, normals)
            q = robot.normalize(robot.integrate(q, -system.push @ system.forces(gap)))
        raise NoContactSolutionError(
            f"closed contacts cannot be put on their surfaces: gaps of {gap.tolist()} m are left"
        )

    def projected_derivatives(
        self, phase: ContactPhase, q: Array, v: Array, contacts: Sequence[int]
    ) -> Array:
        """Derivatives (2 nv, 2 nv) of `projected` by (q, v), on its image but for some contacts.

        Perturbations of the gaps of these closed `contacts` are taken off, and those of the rates
        of all constrained rows.
        """
        nv, jacobian, mass = self.robot.nv, self.all.jacobian(q), self.robot.mass_matrix(q)
        closed, held = phase.solid_contacts, phase.solid_rows
        normals = jacobian[closed]
        off = np.where(np.isin(closed, contacts), -1.0, 0.0)[:, None] * normals
        moved = np.eye(2 * nv)
        moved[:nv, :nv] += KKT(mass, normals).solve(np.zeros((nv, nv)), off)[0]
        rates_z = self.rate_derivatives(q, v)[held] @ moved
        system = KKT(mass, jacobian[held])
        moved[nv:] += system.solve(np.zeros((nv, 2 * nv)), -rates_z)[0]
        return moved

    # Derivatives

    def derivatives_at(
        self, q: Array, v: Array, u: Array, point: ContactAcceleration
    ) -> AccelerationDerivatives:
        """Derivatives of `acceleration`, from the differentiated equations and constraints.

        For a contact that slides in a surface they grow as 1 / |v_t|, which makes perturbations
        across its direction vanish as it stops or begins to slide. Where it all but stands still
        its direction is that of its acceleration.
        """
        c, nv, now = len(self.contacts), len(v), point.solution
        columns, size = 2 * nv + len(u), len(self.all.owner)
        if now is None:
            d = self.terms.derivatives(q, v, point.acceleration, np.zeros(size))
            both = np.hstack([-d.equations, self.robot.actuation])
            a_z = self.robot.inverse_mass(q) @ both
            forces_z, friction_z = np.zeros((c, columns)), np.zeros((c, 2, columns))
        else:
            a_z, m_z, own, d = self._linearised(q, v, now)
            phase, rows_z = now.phase, m_z if now.phase.identity else now.mix @ m_z + own
            forces_z, friction_z = phase.spread(rows_z)
            if not phase.whole:
                forces_z, friction_z = phase.among_all(forces_z, c), phase.among_all(friction_z, c)
        rates_z, gaps_z = np.zeros((size, columns)), np.zeros((c, columns))
        rates_z[:, : 2 * nv] = d.rates
        gaps_z[:, :nv] = d.rates[:c, nv:]
        slip_z = self.tangential(rates_z)
        return AccelerationDerivatives(point, a_z, forces_z, friction_z, slip_z, gaps_z, rates_z)

    def _linearised(
        self, q: Array, v: Array, now: Solution
    ) -> tuple[Array, Array, Array, TermDerivatives]:
        """Derivatives by z: acceleration (nv, .), multipliers (m, .), forces at fixed ones (r, .).

        And the derivatives of the terms.
        """
        nv, s, phase, k = self.robot.nv, self.stabilization, now.phase, len(now.phase.closed)
        jacobian, by_state = now.rows.jacobian, slice(2 * self.robot.nv)
        along = phase.scattered(now.forces, len(self.all.owner))
        d = self.terms.derivatives(q, v, now.acceleration, along)
        rates_z, change = (part if phase.whole else part[phase.all_rows] for part in d[:0:-1])
        upper = np.empty((nv, 2 * nv + self.robot.nu))
        np.negative(d.equations, out=upper[:, by_state])
        upper[:, 2 * nv :] = self.robot.actuation
        own = np.zeros((len(jacobian), upper.shape[1]))
        if phase.spatial:
            own[:, by_state] = -now.turning(now.multipliers) @ rates_z
            upper += jacobian.T @ own
        if s:
            change = change + 2.0 * s * rates_z
            change[:k, :nv] += s * s * jacobian[:k]
        free = now.kkt.solve_mass(upper)
        wanted = -now.kkt.constraint.dot(free)
        wanted[:, by_state] -= change if phase.identity else change[phase.constrained]
        even = None if now.even is None else self._even(q, now, now.even, rates_z, wanted, own)
        m_z = linearised(now, wanted, lambda y: self._turned(q, now, rates_z, y), even)
        a_z = free + now.kkt.push.dot(m_z)
        if now.steered:
            change_z = np.hstack((change, np.zeros((len(change), self.robot.nu))))
            a_z, m_z, own = steered_derivatives(now, a_z, m_z, own, change_z)
        return a_z, m_z, own, d

    def _even(
        self, q: Array, now: Solution, even: Solution, rates_z: Array, wanted: Array, own: Array
    ) -> Array:
        """The derivative (m, .) of the multipliers of equal weights, by terms linear in these."""
        nv, phase, wanted = self.robot.nv, now.phase, wanted.copy()
        forces = phase.scattered(even.forces - now.forces, len(self.all.owner))
        change = even.acceleration - now.acceleration  # none but where contacts slide
        d = self.terms.impulse_derivatives(q, change if phase.sliding else 0.0 * change, forces)
        pull = now.pull
        wanted[:, :nv] += pull.T @ d.momentum - d.rates[phase.held_rows]
        if phase.spatial:
            own_even = -even.turning(even.multipliers) @ rates_z
            own = own[:, : 2 * nv]
            wanted[:, : 2 * nv] -= pull.T @ (now.rows.jacobian.T @ (own_even - own))
        return linearised(even, wanted, lambda y: self._turned(q, even, rates_z, y), None)

    def _turned(self, q: Array, now: Solution, rates_z: Array, y: Array) -> Array:
        """The derivative D(G^T) y (m, 2 nv + nu) by (q, v, u): rows that share the load turn.

        But for what acts, which does not matter unless constraints contradict each other.
        """
        nv, phase = self.robot.nv, now.phase
        rows, z = balanced(now, y)
        change = np.zeros((len(now.multipliers), 2 * nv + self.robot.nu))
        if phase.identity and not contradict(now, CONSISTENT):
            turned = self.terms.load_turns(q, z, phase.closed, now.kkt.rank)
            if turned is not None:
                change[:, :nv] = turned if phase.whole else turned[phase.all_rows]
                return change
        d = self.terms.impulse_derivatives(q, z, phase.scattered(rows, len(self.all.owner)))
        rates = d.rates if phase.whole else d.rates[phase.all_rows]
        change[:, :nv] = rates if phase.identity else now.mix.T @ rates
        change[:, :nv] -= now.kkt.push.T @ d.momentum
        if phase.spatial:
            along = now.turning(np.ones(len(phase.constrained)))
            pulls = now.rows.jacobian @ z @ along
            for slide in phase.spatial:
                change[slide.contact, : 2 * nv] -= pulls[slide.rows] @ rates_z[slide.rows]
        return change


def _closed_rows(phase: ContactPhase, values: TermValues, stabilization: float) -> ContactRows:
    r"""The rows of a phase; residuals decay as -2 s rate - s^2 gap, s = `stabilization` in 1/s."""
    rates, target = phase.among_closed(values.rates), -phase.among_closed(values.drift)
    if stabilization:
        gaps = values.gaps[phase.places]
        target -= 2.0 * stabilization * rates
        target[: len(gaps)] -= stabilization**2 * gaps
    jacobian = phase.among_closed(values.jacobian)
    return ContactRows(values.mass.copy(), values.drive.copy(), jacobian, rates, target)


def _chosen(choice: str, robot: Robot, rows: ContactSet) -> Terms:
    """The terms asked for; "auto" generates those of small robots, and what sweeps are slow at."""
    if isinstance(rows, JointContactSet):
        own = _chosen(choice, robot, rows.in_space)
        if isinstance(own, GeneratedTerms):
            return GeneratedTerms(robot, rows, native=own.native)
        return JointTerms(own, rows)
    # Sweeps are over all joints, as if none would mimic.
    ground = rows.on_ground() if robot.nv > 1 and not robot.mimics else None
    by_sweeps = ground is not None and robot.nv > _COMPILED
    asked = choice in ("generated", "native")
    if asked or (choice == "auto" and robot.nv <= MOST_EXPRESSED and not by_sweeps):
        try:
            return GeneratedTerms(robot, rows, native=choice == "native")
        except InputError:
            if asked:
                raise
    return PinocchioTerms(robot, rows) if ground is None else FlatTerms(robot, ground, rows.owner)
