"""The equations of rest of a robot in one mode, and convex models of them; see `equilibrium`."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import clarabel
import numpy as np
from scipy.linalg import null_space

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.contact_law.cone_programme import Cone, ConeProgramme, build_cone_rows
from hybridctl.mechanics.contacts.joint_contacts import JointFriction, force_unit
from hybridctl.mechanics.modes.force_distribution import compute_friction_weights
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem

_MAX_EXCESS = 1e-6
"""Accepted excess of contact forces over their margins, relative to the weight.

`shared_loads` solves for the forces with the mass matrix, whose condition number makes their error
about 1e-9 of the weight. The distance of 1e3 from that is a choice."""
_FORCE_WEIGHT = 1e-6
"""Weight of squared contact forces, relative to the weight, against rad^2 and m^2."""
_SPARED_FRICTION_WEIGHT, _SPARING_WEIGHT = 1e-5, 1e-8
"""Weights of squared joint friction and of other loads in `prefer_motors`, relative to the weight.

Their ratio is the part of what motors can hold that they leave to the friction of their joint. The
posture moves by some 1e-5 (f / W)^2, below 1e-6 rad. A choice."""
_LEAST_PENALTY = 1e2
"""Smallest first penalty of violations.

It has to exceed the multipliers of the equations, r |u| W, where |u| is usually some W / 10 in N m;
so it begins with r W^2, which is 100 for a robot of 1 kN at r = 1e-4."""


class StaticMargins(NamedTuple):
    """Limits of the inputs and contact forces that `equilibrium` admits.

    Attributes:
        torque: Largest absolute input, N m or N; inf for none.
        force: Smallest normal force of a closed contact, N.
        share: Part of static friction that may be used, in (0, 1].
    """

    torque: float
    force: float
    share: float


class StaticPoint(NamedTuple):
    """A posture q (nq,), with inputs (nu,) and contact forces (m,) divided by the weight.

    Forces are along the rows of closed contacts, as in `ContactPhase.constrained_rows`.
    """

    q: Array
    inputs: Array
    forces: Array


class StaticTrial(NamedTuple):
    """The solution of one conic programme around a point.

    Attributes:
        step: Change (nv,) of the posture, rad and m.
        point: The point after it, moved into the joint limits.
        predicted: Merit there by the linearised equations, without unit; see `StaticProblem.merit`.
    """

    step: Array
    point: StaticPoint
    predicted: float


class StaticProblem:
    """The equations of rest of a mode and the limits of their solution.

    Unknowns (n = nv + nu + m) of each programme are d (nv), a step of the posture, and the inputs
    (nu) and forces (m) per weight. Dry friction of joints is among the forces; what presses it is
    constant. Residuals (nv + k) are those of the equations per weight,
    :math:`(h - S u - J^T f) / W`, and the gaps of the k closed contacts in m. Instances do not
    change: `stay_near`, `with_shared_loads`, `prefer_motors` and `without_joint_friction` return
    others.

    Args:
        system: Robot and contacts.
        mode: Mode of each contact; no contact may slide.
        q0: Posture (nq,) to stay near to.
        torque_weight: Weight of squared inputs in 1/(N m)^2, against squared changes of coordinates
            in rad^2 and m^2.
        margins: Limits of torque, normal force and share of static friction.

    Attributes:
        nv: Number of velocities of the robot.
        first_penalty: Penalty of violations with which a descent begins.

    Raises:
        InputError: If a contact of the mode slides.
    """

    def __init__(
        self,
        system: ContactSystem,
        mode: ModeKey,
        q0: Array,
        torque_weight: float,
        margins: StaticMargins,
    ) -> None:
        robot, modes = system.robot, contact_modes(mode)
        self._system, self._robot, self._modes, self._q0 = system, robot, modes, q0
        self._preferred, self._shares_loads = q0, False
        self._phase = system.dynamics.phase(modes)
        if self._phase.sliding:
            raise InputError(f"mode {mode!r} must have no contact that slides")
        self.nv, self._weight, self._margins = robot.nv, robot.weight, margins
        self._closed = list(self._phase.closed)
        self._open = [i for i in range(len(modes)) if i not in self._phase.closed]
        self._constrained_rows = self._phase.constrained_rows
        self._pressed = self._phase.pressed_places.tolist()
        self._joint_friction = [t for j in self._pressed for t in self._phase.cones[j][1]]
        self._has_joint_friction = True
        coefficients = margins.share * self._phase.friction.static
        cones = zip(self._phase.cones, coefficients.tolist(), strict=True)
        self._cones = [Cone(normal, tangents, mu) for (normal, tangents), mu in cones]
        count = len(self._constrained_rows)
        self._in_cones = (
            build_cone_rows(self._cones, [], count) if count else (np.zeros((0, 0)), [])
        )
        self._lower, self._upper = _list_joint_limits(robot)
        weights = 0.0, torque_weight * robot.weight**2, _FORCE_WEIGHT
        self.first_penalty = max(_LEAST_PENALTY, torque_weight * robot.weight**2)
        self._load_weights = np.repeat(weights, [robot.nv, robot.nu, len(self._constrained_rows)])

    def stay_near(self, point: StaticPoint) -> StaticProblem:
        """Return the same problem with the objective to stay near a point instead of q0.

        Inputs have the small weight of forces, which only makes them unique. The reach is still
        counted from q0.

        Args:
            point: The point whose posture replaces q0 in the objective.
        """
        other = copy(self)
        other._preferred, other.first_penalty = point.q, _LEAST_PENALTY
        other._load_weights = np.where(self._load_weights > 0.0, _FORCE_WEIGHT, 0.0)
        return other

    def with_shared_loads(self) -> StaticProblem:
        """Return the same problem, with forces constrained to the distribution of a run."""
        other = copy(self)
        other._shares_loads = True
        return other

    @property
    def joints_that_rub(self) -> int:
        """Number of joints with dry friction."""
        return len(self._pressed)

    def separation(self, point: StaticPoint, other: StaticPoint) -> float:
        """Return the largest difference of a coordinate between two points, rad or m."""
        return float(np.abs(self._robot.difference(point.q, other.q)).max())

    def without_joint_friction(self, point: StaticPoint) -> tuple[StaticProblem, StaticPoint]:
        """Return the same problem and a point, with dry friction of joints that exerts no force.

        Args:
            point: A point of this problem.
        """
        other, forces = copy(self), point.forces.copy()
        other._has_joint_friction, forces[self._joint_friction] = False, 0.0
        return other, point._replace(forces=forces)

    def prefer_motors(self, point: StaticPoint) -> StaticProblem:
        """Return the problem to stay near a point with little dry friction of joints.

        Args:
            point: The point whose posture replaces q0 in the objective.
        """
        other = self.stay_near(point)
        first = self.nv + self._robot.nu
        rows = [first + t for t in self._joint_friction]
        other._load_weights[self.nv :] = _SPARING_WEIGHT
        other._load_weights[rows] = _SPARED_FRICTION_WEIGHT
        return other

    def joint_friction_excess(self, point: StaticPoint) -> str:
        """Return which joints need more dry friction at a point than they have, "" if none does.

        Args:
            point: The best point of a search, where friction takes what it can.
        """
        residual, _, _ = self._compute_residuals(point)
        found = []
        for j, t in zip(self._pressed, self._joint_friction, strict=True):
            contact = self._system.contacts[self._closed[j]]
            assert isinstance(contact, JointFriction)
            v = self._robot.velocities(contact.joint)[0]
            needed = self._weight * abs(float(point.forces[t] + residual[v]))
            limit = self._margins.share * contact.load
            if needed > limit + _MAX_EXCESS * self._weight:
                unit = force_unit(contact)
                found.append(
                    f"{contact.name!r} would have to be {needed:.4g} of {limit:.4g} {unit}"
                )
        return ", ".join(found)

    def start(self, change: Array) -> StaticPoint:
        """Return a point without loads from which a descent may begin.

        Args:
            change: Change (nv,) of the posture from q0, rad and m.

        Returns:
            The posture q0 plus the change, moved into the joint limits; inputs and forces are zero.
        """
        q = self._clip_to_limits(self._robot.integrate(self._q0, change))
        return StaticPoint(q, np.zeros(self._robot.nu), np.zeros(len(self._constrained_rows)))

    def inputs(self, point: StaticPoint) -> Array:
        """Return the inputs at a point, multiplied by the weight.

        Args:
            point: Its inputs are per weight.

        Returns:
            Inputs (nu,), N m or N.
        """
        return np.asarray(self._weight * point.inputs)

    def distance(self, point: StaticPoint) -> float:
        """Return the largest change of a coordinate from q0.

        Args:
            point: Its posture is compared.

        Returns:
            Largest absolute entry of the difference (nv,), rad or m.
        """
        return float(np.abs(self._robot.difference(self._q0, point.q)).max())

    def farthest_coordinate(self, point: StaticPoint) -> str:
        """Return the name of the coordinate in which a point is farthest from q0.

        Args:
            point: Its posture is compared.

        Returns:
            Label of the velocity of largest absolute difference, without its unit and "rate".
        """
        change = np.abs(self._robot.difference(self._q0, point.q))
        label = self._robot.labels.velocities[int(change.argmax())]
        return label.rpartition(" [")[0].removesuffix(" rate")

    def violation(self, point: StaticPoint) -> float:
        """Return the largest violation of the equations and gaps at a point.

        Args:
            point: Posture and loads.

        Returns:
            The largest of the residuals of the equations of motion, relative to the weight, the
            gaps of closed contacts in m, and the depths of open contacts in m.
        """
        residual, open_gaps, _ = self._compute_residuals(point)
        return max(float(np.abs(residual).max()), float(-open_gaps.min(initial=0.0)))

    def merit(self, point: StaticPoint, penalty: float) -> float:
        """Return the merit of a point: the objective plus the penalised sum of violations.

        Args:
            point: Posture and loads.
            penalty: Factor of the sum of all residuals and of the depths of open contacts. With 0
                the merit is the objective alone.
        """
        residual, open_gaps, _ = self._compute_residuals(point)
        violated = float(np.abs(residual).sum()) - float(np.minimum(open_gaps, 0.0).sum())
        change = self._robot.difference(self._preferred, point.q)
        return self._compute_objective(change, point) + penalty * violated

    def _compute_objective(self, change: Array, point: StaticPoint) -> float:
        loads = np.concatenate((point.inputs, point.forces))
        return 0.5 * float(change @ change + self._load_weights[self.nv :] @ loads**2)

    def _scatter_forces(self, point: StaticPoint) -> Array:
        """Return the contact forces along the rows of all contacts, N."""
        forces = np.zeros(len(self._system.dynamics.contact_set.owner))
        forces[self._constrained_rows] = self._weight * point.forces
        return forces

    def _compute_residuals(self, point: StaticPoint) -> tuple[Array, Array, Array]:
        """Return residuals (nv + k,), gaps of open contacts in m, and J of all contacts' rows.

        The first rows of J are the gradients of the gaps, one for each contact.
        """
        still, inputs = np.zeros(self.nv), self._weight * point.inputs
        values = self._system.dynamics.terms.values(point.q, still, inputs)
        net = values.drive + values.jacobian.T @ self._scatter_forces(point)
        residual = np.concatenate((-net / self._weight, values.gaps[self._closed]))
        return residual, values.gaps[self._open], values.jacobian.copy()

    def trial(
        self, point: StaticPoint, penalty: float, radius: float, reach: float
    ) -> StaticTrial | None:
        """Return the minimum of the convex model around a point, None where there is none.

        There is none where limits exclude each other, or where the numerics of the conic programme
        break down. Unknowns are those n of the class, and a slack s >= 0 for each residual and
        each open gap: |residual| <= s, gap >= -s. The sum of the slacks is penalised.

        Args:
            point: Where the equations are linearised.
            penalty: Penalty of violations.
            radius: Largest step of a coordinate, rad or m.
            reach: Largest change of a coordinate from q0, rad or m.
        """
        nv, robot = self.nv, self._robot
        residual, open_gaps, jacobian = self._compute_residuals(point)
        slopes = self._differentiate_residuals(point, jacobian)
        n, count, depths = slopes.shape[1], len(residual), len(open_gaps)
        # The model is affine in inputs and forces themselves, so that limits of these are exact.
        offset = residual - slopes[:, nv:] @ np.concatenate((point.inputs, point.forces))
        change = robot.difference(self._preferred, point.q)
        change_slope, gap_slope = np.zeros((nv, n)), np.zeros((depths, n))
        change_slope[:, :nv] = robot.difference_jacobians(self._preferred, point.q)[1]
        gap_slope[:, :nv] = jacobian[self._open]
        penalised = np.concatenate((slopes, -slopes, gap_slope))
        slacks = np.eye(count + depths)
        slacks_of_rows = np.concatenate((slacks[:count], slacks))
        hard, hard_offset = self._make_limits(point, jacobian, radius, reach)
        cones, kinds = self._in_cones
        exact = np.zeros((len(hard) + len(cones), n))
        exact[: len(hard)], exact[len(hard) :, n - len(self._constrained_rows) :] = hard, cones
        no_slack = np.zeros((len(exact), len(slacks)))
        signs = np.zeros((len(slacks), n))
        rows = np.block([[penalised, slacks_of_rows], [signs, slacks], [exact, no_slack]])
        offsets = (offset, -offset, open_gaps, np.zeros(len(slacks)), hard_offset)
        hessian = np.zeros((rows.shape[1], rows.shape[1]))
        hessian[:n, :n] = change_slope.T @ change_slope + np.diag(self._load_weights)
        found = ConeProgramme(
            hessian,
            np.concatenate((change_slope.T @ change, np.full(len(slacks), penalty))),
            rows,
            np.concatenate((*offsets, np.zeros(len(cones)))),
            [clarabel.NonnegativeConeT(len(rows) - len(cones)), *kinds],
        ).solve()
        if found.infeasible or not np.isfinite(found.point).all():
            return None
        moves, violations = found.point[:n], found.point[n:]
        step, inputs, forces = np.split(moves, [nv, nv + robot.nu])
        moved = StaticPoint(self._clip_to_limits(robot.integrate(point.q, step)), inputs, forces)
        predicted = self._compute_objective(change + change_slope @ moves, moved)
        return StaticTrial(step, moved, predicted + penalty * float(violations.sum()))

    def _differentiate_residuals(self, point: StaticPoint, jacobian: Array) -> Array:
        """Return the derivatives (nv + k, n) of the residuals by the unknowns."""
        still, nv, nu = np.zeros(self.nv), self.nv, self._robot.nu
        forces = self._scatter_forces(point)
        terms = self._system.dynamics.terms.derivatives(point.q, still, still, forces)
        slopes = np.zeros((nv + len(self._closed), len(self._load_weights)))
        slopes[:nv, :nv] = terms.equations[:, :nv] / self._weight
        slopes[:nv, nv : nv + nu] = -self._robot.actuation
        slopes[:nv, nv + nu :] = -jacobian[self._constrained_rows].T
        slopes[nv:, :nv] = jacobian[self._closed]
        return slopes

    def _make_limits(
        self, point: StaticPoint, jacobian: Array, radius: float, reach: float
    ) -> tuple[Array, Array]:
        """Return the limits of a step as linear inequalities in the unknowns.

        They are the joint limits, the radius, the reach, the torque limit, the contact-force
        distribution of a run if the problem has it, and the smallest normal force.

        Args:
            point: Posture and loads from which the step is taken.
            jacobian: J of the rows of all contacts at the point.
            radius: Largest step of a coordinate, rad or m.
            reach: Largest change of a coordinate from q0, rad or m.

        Returns:
            Rows (l, n) and offsets (l,): limits are met where rows @ unknowns + offsets >= 0.
        """
        robot, nv, nu = self._robot, self.nv, self._robot.nu
        unit = np.eye(len(self._load_weights))
        q = point.q[robot.passive.coordinate]
        lower = np.maximum(self._lower - q, -radius)
        upper = np.minimum(self._upper - q, radius)
        rows, offsets = [unit[:nv], -unit[:nv]], [-lower, upper]
        if reach != np.inf:
            change = robot.difference(self._q0, point.q)
            slope = robot.difference_jacobians(self._q0, point.q)[1] @ unit[:nv]
            rows += [slope, -slope]
            offsets += [reach + change, reach - change]
        torque, force, _ = self._margins
        if torque != np.inf:
            rows += [unit[nv : nv + nu], -unit[nv : nv + nu]]
            offsets.append(np.full(2 * nu, torque / self._weight))
        if self._shares_loads:
            shares = self._make_sharing_rows(point, jacobian) @ unit[nv + nu :]
            rows += [shares, -shares]
            offsets.append(np.zeros(2 * len(shares)))
        pressed = [nv + nu + j for j in self._pressed]
        if pressed:
            loads = self._phase.loads[self._pressed] / self._weight
            rows += [unit[pressed], -unit[pressed]]
            offsets += [-loads, loads]
        if not self._has_joint_friction:
            idle = unit[[nv + nu + t for t in self._joint_friction]]
            rows += [idle, -idle]
            offsets.append(np.zeros(2 * len(idle)))
        normals = [
            nv + nu + cone.normal for j, cone in enumerate(self._cones) if j not in self._pressed
        ]
        rows.append(unit[normals])
        offsets.append(np.full(len(normals), -force / self._weight))
        return np.concatenate(rows), np.concatenate(offsets)

    def _make_sharing_rows(self, point: StaticPoint, jacobian: Array) -> Array:
        """Return rows (., m) that vanish on the contact-force distribution of a run.

        Of all forces with the same J^T f, a run has those of least sum f_i^2 / w_i (see
        `compute_friction_weights`). For these f / w is orthogonal to the null space of J^T. The
        weights w are those of the distribution with equal weights at this point.
        """
        count = len(self._constrained_rows)
        free = np.delete(np.arange(count), self._pressed)  # constant forces are not shared
        among = null_space(jacobian[self._constrained_rows[free]].T)
        idle = np.zeros((count, among.shape[1]))
        idle[free] = among
        even = point.forces - idle @ (idle.T @ point.forces)
        return np.asarray((idle / compute_friction_weights(self._phase, even)[:, None]).T)

    def _clip_to_limits(self, q: Array) -> Array:
        """Return a normalized posture, with joints of one degree of freedom within their limits."""
        q = np.array(self._robot.normalize(q))
        limited = np.isfinite(self._lower) | np.isfinite(self._upper)
        places = self._robot.passive.coordinate[limited]
        q[places] = np.clip(q[places], self._lower[limited], self._upper[limited])
        return q

    def shared_loads(self, point: StaticPoint) -> tuple[Array, Array]:
        """Return the contact forces at a point, distributed as in a run.

        Where a joint moves nothing that has a mass, no run can be made and accelerations are not
        finite. Then the forces are those of the point.

        Args:
            point: Its inputs act at its posture at rest.

        Returns:
            Normal forces (c,) and friction (c, 2) of all contacts in N, zero where open.
        """
        dynamics, still = self._system.dynamics, np.zeros(self.nv)
        at_rest = dynamics.acceleration(point.q, still, self._weight * point.inputs, self._modes)
        if np.isfinite(at_rest.acceleration).all():
            return at_rest.forces, at_rest.friction
        forces = self._scatter_forces(point)
        return forces[: len(self._modes)], dynamics.take_tangents(forces)

    def keeps_margins(self, point: StaticPoint) -> bool:
        """Return whether normal forces and friction, distributed as in a run, are within margins.

        The torque limit is not checked: it is a constraint of each programme.

        Args:
            point: Posture and loads. Forces may exceed a margin by 1e-6 of the weight.
        """
        normal, friction = self.shared_loads(point)
        closed, slack = self._closed, _MAX_EXCESS * self._weight
        pushing = np.delete(normal[closed], self._pressed)
        used, static = np.linalg.norm(friction, axis=1)[closed], self._phase.friction.static
        pushes = bool((pushing >= self._margins.force - slack).all())
        return pushes and bool(
            (used <= self._margins.share * static * normal[closed] + slack).all()
        )


def _list_joint_limits(robot: Robot) -> tuple[Array, Array]:
    """Return lower and upper limits (nv,) of the coordinates of joints with one, rad or m.

    They are infinite where a joint has no limits (see `Robot.limits`) or several degrees of
    freedom, or turns without end.
    """
    lower, upper = np.full(robot.nv, -np.inf), np.full(robot.nv, np.inf)
    for name, limit in robot.limits.items():
        v = robot.velocity_index(name)
        lower[v], upper[v] = limit.lower, limit.upper
    return lower, upper
