r"""Equilibrium: a state at rest that contacts and motors hold, with its forces and torques.

At rest the equations of motion are :math:`h(q, 0) = S u + J^T f`. Many postures near a given one
satisfy them, with many torques and, where contacts are redundant, many contact forces. The search
minimises

.. math:: \tfrac12 |q \ominus q_0|^2 + \tfrac{r}{2} |u|^2 + \tfrac{\epsilon}{2} |f / W|^2

subject to these equations, closed gaps that are zero and open gaps that are not negative, forces
inside their friction cones, joint limits, torque limits, and :math:`|q \ominus q_0| \le` `reach` in
each coordinate. W is the weight; :math:`\epsilon` makes the forces unique and moves q by less than
1e-6.

It is sequential convex programming with a trust region (Nocedal and Wright, *Numerical
Optimization*, 2006, 18.5: S-l1-QP). Equations and gaps are linearised with the exact derivatives of
the dynamics, their violations are penalised by their absolute values, and cones and limits are kept
by each conic programme, which Clarabel solves.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import clarabel
import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import null_space

from hybridctl.checks import Array, number, vector
from hybridctl.errors import InputError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.coulomb.cones import Cone, ConeProgramme, cone_rows
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, PushedSystem

_MAX_VIOLATION = 1e-9
"""Violation of the equations (relative to the weight), gaps (m) and cones that is accepted.

Rounding of the terms is 1e-14; the conic programmes are solved to 1e-11."""
_MAX_EXCESS = 1e-6
"""Forces, relative to the weight, by which contacts may exceed their margins.

A run finds them with the mass matrix, whose condition makes 1e-9 of them."""
_FORCE_WEIGHT = 1e-6
"""Weight of squared contact forces, relative to the weight, against rad^2 and m^2."""
_FIRST_RADIUS, _LEAST_RADIUS = 0.5, 1e-9
"""Radius of the trust region in rad and m, at the start and where the search ends.

Half a radian is where the sine of an angle differs from its linearisation by 4 %."""
_LEAST_PENALTY, _PENALTY_RANGE = 1e2, 1e4
"""Smallest first penalty of violations, and how often it is multiplied before the search gives up.

It has to exceed the multipliers of the equations, r |u| W, where |u| is usually some W / 10 in N m;
so it begins with r W^2, which is 100 for a robot of 1 kN at r = 1e-4."""
_LEAST_DECREASE = 1e-11
"""Predicted decrease of the merit, relative to one plus the merit, at which the search ends.

The posture is then within some sqrt(1e-11) = 3e-6 rad of the minimum, and its equations hold to
1e-11 / penalty."""
_LEAST_PROGRESS = 1e-4
"""Predicted decrease, relative to the penalised violations, below which these are not reduced.

The value is a choice: it ends searches for equilibria that do not exist."""
_MAX_PROGRAMMES = 100
"""Conic programmes of one search. The robots of example-robot-data take 5 to 30."""
_MAX_COORDINATE = 1e100
"""Joint limits beyond are none: Pinocchio writes 1.8e308 where a model has none."""
_STARTS, _START_SPREAD = 2, 0.3
"""Searches from q0 and from postures beside it, by up to so many rad or m, if the first fails."""


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """A state at rest with the input that holds it.

    Attributes:
        state: The state (nx,): posture and zero velocity.
        input: Input (nu,) that holds it, N m or N.
        normal: Normal forces (c,) of all contacts in N, zero where open. Redundant contacts share
            loads as they do in a run from this state.
        friction: Friction forces (c, 2) in N along the tangents of each surface.
        residual: Largest violation of the equations of motion, relative to the weight, and of
            closed gaps in m.
        distance: Largest change of a coordinate from q0, rad or m.
    """

    state: Array
    input: Array
    normal: Array
    friction: Array
    residual: float
    distance: float

    def __repr__(self) -> str:
        most = np.abs(self.input).max(initial=0.0)
        forces = ", ".join(f"{force:.4g}" for force in self.normal)
        return (
            f"Equilibrium(normal forces [{forces}] N, largest input {most:.4g}, "
            f"residual {self.residual:.2g}, {self.distance:.2g} from q0)"
        )


def equilibrium(
    system: ContactSystem,
    mode: ModeKey,
    q0: ArrayLike,
    *,
    torque_weight: float = 1e-4,
    torque: float = np.inf,
    force: float = 0.0,
    share: float = 0.9,
    reach: float = 1.0,
) -> Equilibrium:
    """Return the equilibrium near a posture, in a mode whose closed contacts do not slide.

    It minimises the distance from q0 and the torques, weighed against each other (see the module),
    within the joint limits of the model. A joint whose two limits are equal, as URDF has it where
    none are written, has none. q0 itself may be outside limits and surfaces.

    Args:
        system: Robot and contacts.
        mode: Mode of each contact, such as ("stick", "open").
        q0: Posture (nq,) to stay near to.
        torque_weight: Weight r of squared inputs in 1/(N m)^2, against squared changes of
            coordinates in rad^2 and m^2.
        torque: Largest absolute input, N m or N.
        force: Smallest normal force of a closed contact, N.
        share: Part of static friction that may be used, in (0, 1].
        reach: Largest change of a coordinate from q0 that counts as near, rad or m.

    Raises:
        InputError: If a contact of the mode slides, if q0 is no posture of the robot, or if no
            equilibrium is found within `reach`; the message then has the distance of the nearest
            one that was found, or what is left of the equations at the best posture.
    """
    if isinstance(system, PushedSystem):
        raise InputError("system must be without wrenches, got a pushed one: give `system.own`")
    system.mode(mode)  # refuses an unknown mode
    start = vector("q0", q0, system.robot.nq)
    system.robot.check("q0", start)
    number("torque_weight", torque_weight, above=0.0)
    if torque != np.inf:
        number("torque", torque, above=0.0)
    number("force", force, at_least=0.0)
    number("share", share, above=0.0, at_most=1.0)
    if reach != np.inf:
        number("reach", reach, above=0.0)
    problem = _StaticProblem(system, mode, start, torque_weight, _Margins(torque, force, share))
    point, violation = _search(problem, reach)
    if violation <= _MAX_VIOLATION and not problem.keeps_margins(point):
        # Redundant contacts share loads in another way than this point does, and some then carry
        # too little. So the search is repeated with loads that are shared evenly.
        problem = problem.with_even_loads()
        point, violation = _search(problem, reach)
    if violation <= _MAX_VIOLATION and problem.keeps_margins(point):
        return problem.result(point)
    limits = f"with torque={torque:g}, force={force:g}, share={share:g}"
    if reach != np.inf:
        far, far_violation = _search(problem, np.inf)
        if far_violation <= _MAX_VIOLATION and problem.distance(far) > reach:
            raise InputError(
                f"no equilibrium was found within reach={reach:g} of q0 in mode {mode!r}, "
                f"{limits}:\nthe nearest that was found is {problem.distance(far):.3g} away, at "
                f"{problem.farthest_coordinate(far)}: start nearer to it, or give a larger reach"
            )
    if violation <= _MAX_VIOLATION:
        normal, _ = problem.shared_loads(point)
        raise InputError(
            f"no equilibrium was found near q0 in mode {mode!r}, {limits}:\nits redundant contacts "
            f"share loads beyond these, with normal forces {normal.round(3).tolist()} N, "
            f"{problem.distance(point):.3g} away from q0"
        )
    raise InputError(
        f"no equilibrium was found near q0 in mode {mode!r}, {limits}:\n{violation:.3g} of the "
        "weight or m is left of its equations and gaps at the best posture, "
        f"{problem.distance(point):.3g} away from q0"
    )


class _Margins(NamedTuple):
    """Limits of `equilibrium`: torque in N m, normal force in N, share of static friction."""

    torque: float
    force: float
    share: float


class _Point(NamedTuple):
    """A posture q (nq,), inputs (nu,) and forces along the held rows (m,), both per weight."""

    q: Array
    inputs: Array
    forces: Array


class _Trial(NamedTuple):
    """The solution of one conic programme: step (nv,), point, and the merit that it predicts."""

    step: Array
    point: _Point
    predicted: float


def _search(problem: _StaticProblem, reach: float) -> tuple[_Point, float]:
    """Return the best point found within `reach` of q0, and its violation.

    The violation is that of `_StaticProblem.violation` plus what exceeds `reach`. A search that
    ends off the equations, as it may where torques matter much more than the posture, goes on to
    the posture next to its end that solves them. One that fails is repeated from beside q0: at a
    stretched leg the linearised equations do not show the way.
    """
    rng = np.random.default_rng(0)
    best, least = problem.start(np.zeros(problem.nv)), np.inf
    for k in range(_STARTS):
        spread = min(_START_SPREAD, reach) if k else 0.0
        start = problem.start(rng.uniform(-spread, spread, size=problem.nv))
        found = _descend(problem, start, reach)
        if problem.violation(found) > _MAX_VIOLATION:
            found = _descend(problem.nearest_to(found), found, reach)
        excess = max(problem.distance(found) - reach - _MAX_VIOLATION, 0.0)
        violation = problem.violation(found) + excess
        if violation < least:
            best, least = found, violation
        if least <= _MAX_VIOLATION:
            break
    return best, least


def _descend(problem: _StaticProblem, point: _Point, reach: float) -> _Point:
    """Return the end of one search by sequential convex programming, feasible or not."""
    radius, penalty = _FIRST_RADIUS, problem.first_penalty
    max_penalty = _PENALTY_RANGE * penalty
    merit = problem.merit(point, penalty)
    for _ in range(_MAX_PROGRAMMES):
        trial = problem.trial(point, penalty, radius, reach)
        if trial is None:
            break
        decrease = merit - trial.predicted
        violated = merit - problem.merit(point, 0.0)
        least = max(_LEAST_DECREASE * (1.0 + merit), _LEAST_PROGRESS * violated)
        if decrease <= least or radius < _LEAST_RADIUS:
            if problem.violation(point) <= _MAX_VIOLATION or penalty >= max_penalty:
                break
            # The penalty is below the multipliers: it pays to violate the equations.
            penalty, radius = 10.0 * penalty, _FIRST_RADIUS
            merit = problem.merit(point, penalty)
            continue
        trial_merit = problem.merit(trial.point, penalty)
        ratio, size = (merit - trial_merit) / decrease, float(np.abs(trial.step).max())
        if ratio < 0.25:
            radius = 0.25 * min(size, radius)
        elif ratio > 0.75:
            radius = max(radius, 2.0 * size)
        if trial_merit < merit:
            point, merit = trial.point, trial_merit
    return point


class _StaticProblem:
    """The equations of rest of a mode and the limits of their solution.

    Unknowns of each programme are d (nv), a step of the posture, and the inputs and forces per
    weight. Residuals (nv + k) are those of the equations per weight and the gaps of the k closed
    contacts in m.
    """

    def __init__(
        self,
        system: ContactSystem,
        mode: ModeKey,
        q0: Array,
        torque_weight: float,
        margins: _Margins,
    ) -> None:
        robot, modes = system.robot, contact_modes(mode)
        self._system, self._robot, self._modes, self._q0 = system, robot, modes, q0
        self._preferred, self._has_even_loads = q0, False
        self._phase = system.dynamics.phase(modes)
        if self._phase.sliding:
            raise InputError(f"mode {mode!r} must have no contact that slides")
        self.nv, self._weight, self._margins = robot.nv, robot.weight, margins
        self._closed = list(self._phase.closed)
        self._open = [i for i in range(len(modes)) if i not in self._phase.closed]
        self._held = self._phase.held_rows
        coefficients = margins.share * self._phase.friction.static
        cones = zip(self._phase.cones, coefficients.tolist(), strict=True)
        self._cones = [Cone(normal, tangents, mu) for (normal, tangents), mu in cones]
        self._lower, self._upper = _joint_limits(robot)
        weights = 0.0, torque_weight * robot.weight**2, _FORCE_WEIGHT
        self.first_penalty = max(_LEAST_PENALTY, torque_weight * robot.weight**2)
        self._load_weights = np.repeat(weights, [robot.nv, robot.nu, len(self._held)])

    def nearest_to(self, point: _Point) -> _StaticProblem:
        """Return the same problem with the objective to stay near a point, whatever the torques."""
        other = copy(self)
        other._preferred, other.first_penalty = point.q, _LEAST_PENALTY
        other._load_weights = np.where(self._load_weights > 0.0, _FORCE_WEIGHT, 0.0)
        return other

    def with_even_loads(self) -> _StaticProblem:
        """Return the same problem with forces of least norm among those of the same effect."""
        other = copy(self)
        other._has_even_loads = True
        return other

    def start(self, change: Array) -> _Point:
        """Return the point without loads at q0 changed by (nv,), moved into the joint limits."""
        q = self._clipped(self._robot.integrate(self._q0, change))
        return _Point(q, np.zeros(self._robot.nu), np.zeros(len(self._held)))

    def distance(self, point: _Point) -> float:
        """Return the largest change of a coordinate from q0, rad or m."""
        return float(np.abs(self._robot.difference(self._q0, point.q)).max())

    def farthest_coordinate(self, point: _Point) -> str:
        """Return the name of the coordinate in which a point is farthest from q0."""
        change = np.abs(self._robot.difference(self._q0, point.q))
        label = self._robot.labels.velocities[int(change.argmax())]
        return label.rpartition(" [")[0].removesuffix(" rate")

    def violation(self, point: _Point) -> float:
        """Return the largest residual, per weight or in m, or depth of an open contact in m."""
        residual, open_gaps, _ = self._residuals(point)
        return max(float(np.abs(residual).max()), float(-open_gaps.min(initial=0.0)))

    def merit(self, point: _Point, penalty: float) -> float:
        """Return the objective plus the penalised sum of violations."""
        residual, open_gaps, _ = self._residuals(point)
        violated = float(np.abs(residual).sum()) - float(np.minimum(open_gaps, 0.0).sum())
        change = self._robot.difference(self._preferred, point.q)
        return self._objective(change, point) + penalty * violated

    def _objective(self, change: Array, point: _Point) -> float:
        loads = np.concatenate((point.inputs, point.forces))
        return 0.5 * float(change @ change + self._load_weights[self.nv :] @ loads**2)

    def _along_all_rows(self, point: _Point) -> Array:
        """Return the contact forces along the rows of all contacts, N."""
        forces = np.zeros(len(self._system.dynamics.all.owner))
        forces[self._held] = self._weight * point.forces
        return forces

    def _residuals(self, point: _Point) -> tuple[Array, Array, Array]:
        """Return residuals (nv + k,), gaps of open contacts in m, and the Jacobian of all rows."""
        still, inputs = np.zeros(self.nv), self._weight * point.inputs
        values = self._system.dynamics.terms.values(point.q, still, inputs)
        net = values.drive + values.jacobian.T @ self._along_all_rows(point)
        residual = np.concatenate((-net / self._weight, values.gaps[self._closed]))
        return residual, values.gaps[self._open], values.jacobian.copy()

    def trial(self, point: _Point, penalty: float, radius: float, reach: float) -> _Trial | None:
        """Return the minimum of the convex model around a point, or None if limits exclude it.

        Unknowns are those n of the class, and a violation of each residual and each open gap.

        Args:
            point: Where the equations are linearised.
            penalty: Penalty of violations.
            radius: Largest step of a coordinate, rad or m.
            reach: Largest change of a coordinate from q0, rad or m.
        """
        nv, robot = self.nv, self._robot
        residual, open_gaps, jacobian = self._residuals(point)
        slopes = self._slopes(point, jacobian)
        n, count, depths = slopes.shape[1], len(residual), len(open_gaps)
        # The model is affine in inputs and forces themselves, so that limits of these are exact.
        offset = residual - slopes[:, nv:] @ np.concatenate((point.inputs, point.forces))
        change = robot.difference(self._preferred, point.q)
        change_slope, gap_slope = np.zeros((nv, n)), np.zeros((depths, n))
        change_slope[:, :nv] = robot.difference_jacobians(self._preferred, point.q)[1]
        gap_slope[:, :nv] = jacobian[self._open]
        soft = np.concatenate((slopes, -slopes, gap_slope))
        violated = np.eye(count + depths)
        tie = np.concatenate((violated[:count], violated))
        hard, hard_offset = self._limits(point, jacobian, radius, reach)
        cones, kinds = cone_rows(self._cones, [], len(self._held))
        kept = np.zeros((len(hard) + len(cones), n))
        kept[: len(hard)], kept[len(hard) :, n - len(self._held) :] = hard, cones
        none = np.zeros((len(kept), len(violated)))
        rows = np.block([[soft, tie], [np.zeros((len(violated), n)), violated], [kept, none]])
        offsets = (offset, -offset, open_gaps, np.zeros(len(violated)), hard_offset)
        hessian = np.zeros((rows.shape[1], rows.shape[1]))
        hessian[:n, :n] = change_slope.T @ change_slope + np.diag(self._load_weights)
        found = ConeProgramme(
            hessian,
            np.concatenate((change_slope.T @ change, np.full(len(violated), penalty))),
            rows,
            np.concatenate((*offsets, np.zeros(len(cones)))),
            [clarabel.NonnegativeConeT(len(rows) - len(cones)), *kinds],
        ).solve()
        if found.infeasible or not np.isfinite(found.point).all():
            return None
        moves, violations = found.point[:n], found.point[n:]
        step, inputs, forces = np.split(moves, [nv, nv + robot.nu])
        moved = _Point(self._clipped(robot.integrate(point.q, step)), inputs, forces)
        predicted = self._objective(change + change_slope @ moves, moved)
        return _Trial(step, moved, predicted + penalty * float(violations.sum()))

    def _slopes(self, point: _Point, jacobian: Array) -> Array:
        """Return the derivatives (nv + k, n) of the residuals by the unknowns."""
        still, nv, nu = np.zeros(self.nv), self.nv, self._robot.nu
        forces = self._along_all_rows(point)
        terms = self._system.dynamics.terms.derivatives(point.q, still, still, forces)
        slopes = np.zeros((nv + len(self._closed), len(self._load_weights)))
        slopes[:nv, :nv] = terms.equations[:, :nv] / self._weight
        slopes[:nv, nv : nv + nu] = -self._robot.actuation
        slopes[:nv, nv + nu :] = -jacobian[self._held].T
        slopes[nv:, :nv] = jacobian[self._closed]
        return slopes

    def _limits(
        self, point: _Point, jacobian: Array, radius: float, reach: float
    ) -> tuple[Array, Array]:
        """Return rows (l, n) and offsets (l,) of the limits: rows @ unknowns + offsets >= 0."""
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
        if self._has_even_loads:
            # Forces of least norm have no part that leaves the robot as it is.
            idle = null_space(jacobian[self._held].T).T @ unit[nv + nu :]
            rows += [idle, -idle]
            offsets.append(np.zeros(2 * len(idle)))
        normals = [nv + nu + cone.normal for cone in self._cones]
        rows.append(unit[normals])
        offsets.append(np.full(len(normals), -force / self._weight))
        return np.concatenate(rows), np.concatenate(offsets)

    def _clipped(self, q: Array) -> Array:
        """Return a posture with joints of one degree of freedom moved into their limits."""
        q = np.array(self._robot.normalize(q))
        limited = np.isfinite(self._lower) | np.isfinite(self._upper)
        places = self._robot.passive.coordinate[limited]
        q[places] = np.clip(q[places], self._lower[limited], self._upper[limited])
        return q

    def shared_loads(self, point: _Point) -> tuple[Array, Array]:
        """Return normal forces (c,) and friction (c, 2) in N, as contacts share them in a run.

        Where a joint moves nothing that has a mass, no run can be made and accelerations are not
        finite: then the forces are those of the point.
        """
        dynamics, still = self._system.dynamics, np.zeros(self.nv)
        at_rest = dynamics.acceleration(point.q, still, self._weight * point.inputs, self._modes)
        if np.isfinite(at_rest.acceleration).all():
            return at_rest.forces, at_rest.friction
        forces = self._along_all_rows(point)
        return forces[: len(self._modes)], dynamics.tangential(forces)

    def keeps_margins(self, point: _Point) -> bool:
        """Return whether normal forces and friction are within the margins as loads are shared."""
        normal, friction = self.shared_loads(point)
        closed, slack = self._closed, _MAX_EXCESS * self._weight
        used, static = np.linalg.norm(friction, axis=1)[closed], self._phase.friction.static
        pushes = bool((normal[closed] >= self._margins.force - slack).all())
        return pushes and bool(
            (used <= self._margins.share * static * normal[closed] + slack).all()
        )

    def result(self, point: _Point) -> Equilibrium:
        """Return the equilibrium at a point that solves the equations."""
        normal, friction = self.shared_loads(point)
        return Equilibrium(
            np.concatenate((point.q, np.zeros(self.nv))),
            self._weight * point.inputs,
            normal,
            friction,
            self.violation(point),
            self.distance(point),
        )


def _joint_limits(robot: Robot) -> tuple[Array, Array]:
    """Return lower and upper limits (nv,) of the coordinates of joints with one, rad or m.

    They are infinite where a joint has none, has several degrees of freedom or turns without end,
    and where both are equal: so reads a URDF that gives a joint's effort but no limits.
    """
    model = robot.model
    lower, upper = np.full(robot.nv, -np.inf), np.full(robot.nv, np.inf)
    for q, v in filter(None, robot.joints.values()):
        if model.lowerPositionLimit[q] < model.upperPositionLimit[q]:
            lower[v], upper[v] = model.lowerPositionLimit[q], model.upperPositionLimit[q]
    lower[lower < -_MAX_COORDINATE], upper[upper > _MAX_COORDINATE] = -np.inf, np.inf
    return lower, upper
