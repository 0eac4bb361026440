r"""Equilibrium: a state at rest that contacts and motors hold, with its forces and torques.

At rest the equations of motion are :math:`h(q, 0) = S u + J^T f`. Many postures near a given one
satisfy them, with many torques and, where contacts are redundant, many contact forces. The search
minimises

.. math:: \tfrac12 |q \ominus q_0|^2 + \tfrac{r}{2} |u|^2 + \tfrac{\epsilon}{2} |f / W|^2

subject to these equations, closed gaps that are zero and open gaps that are not negative, forces
inside their friction cones, joint limits, torque limits, and :math:`|q \ominus q_0| \le` `reach` in
each coordinate. W is the weight of the robot; :math:`\epsilon = 10^{-6}` makes the
forces unique and moves q by some 1e-6 rad or m.

Dry friction holds a joint with any force in its band. It is a force f of the search, so that the
posture is the one nearest to q0 that friction and motors hold together. If the motors hold this
posture alone, friction is zero, otherwise the least.

It is sequential convex programming with a trust region (Nocedal and Wright, *Numerical
Optimization*, 2006, 18.5: S-l1-QP). Equations and gaps are linearised with the exact derivatives of
the dynamics, their violations are penalised by their absolute values, and cones and limits are kept
by each conic programme, which Clarabel solves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_instance, check_number, check_vector
from hybridctl.base.errors import InputError
from hybridctl.base.progress import Progress, Report, report_share
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.contact_law.law import OPEN, STICK
from hybridctl.mechanics.static_problem import StaticMargins, StaticPoint, StaticProblem
from hybridctl.mechanics.system import ContactSystem, PushedSystem

_MAX_VIOLATION = 1e-9
"""Accepted violation of the equations (relative to the weight) and of gaps (m).

Gaps of closed contacts count by their size, those of open contacts by their depth. Cones and limits
do not count: they are constraints of each conic programme. Rounding of the terms is 1e-14; the
programmes are solved to 1e-11 (`cone_programme._TOLERANCE`)."""
_SAME_POSTURE = 1e-4
"""Largest change of a coordinate, rad or m, by which a posture may move to spare joint friction.

Weights move it by less than that, see `static_problem`; one that friction must hold moves farther
without it."""
_FIRST_RADIUS, _LEAST_RADIUS = 0.5, 1e-9
"""Radius of the trust region in rad and m, at the start and where the search ends.

Half a radian is where the sine of an angle differs from its linearisation by 4 %."""
_LEAST_DECREASE = 1e-11
"""Predicted decrease of the merit, relative to one plus the merit, at which the search ends.

The posture is then within some sqrt(1e-11) = 3e-6 rad of the minimum, and its equations hold to
1e-11 / penalty."""
_LEAST_PROGRESS = 1e-4
"""Predicted decrease of the merit, relative to the penalised violations, at which a descent stalls.

It ends searches for equilibria that do not exist, where violations cannot be reduced. The value is
a choice."""
_PENALTY_RANGE = 1e4
"""Largest penalty relative to the first: four increases by ten before a descent ends. A choice."""
_MAX_PROGRAMMES = 100
"""Conic programmes of one descent. The robots of example-robot-data take 5 to 30."""
_STARTS, _START_SPREAD = 2, 0.3
"""Starts of a search: q0 and, if that fails, a random posture up to 0.3 rad or m beside it."""
_MAX_PROGRAMMES_OF_CALL = 3 * _STARTS * 2 * _MAX_PROGRAMMES
"""Three searches (near, with shared loads, anywhere), each from all starts in two descents.

Where joints rub, two more descents spare their friction."""


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """A state at rest with the input that holds it.

    Attributes:
        state: The state (nx,): posture and zero velocity.
        input: Input (nu,) that holds it, N m or N.
        normal: Normal forces (c,) of all contacts in N, and of joint stops in N m or N, zero where
            open. Redundant contacts share loads as they do in a run from this state.
        friction: Friction forces (c, 2) in N along the tangents of each surface; zero at stops.
        residual: Largest violation, at most 1e-9: of the equations of motion relative to the
            weight, of closed gaps in m, and of open gaps, by their depth in m.
        distance: Largest change of a coordinate from q0, rad or m.
        joint_friction: Forces (j,) of the dry friction of joints along their velocities, N m or N.
    """

    state: Array
    input: Array
    normal: Array
    friction: Array
    residual: float
    distance: float
    joint_friction: Array = field(default_factory=lambda: np.zeros(0))

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
    progress: Progress = None,
) -> Equilibrium:
    """Return the equilibrium near a posture, in a mode whose closed contacts do not slide.

    It minimises the distance from q0 and the torques, weighed against each other (see the module),
    within the joint limits of the model. A joint whose lower limit is not below the upper one, as
    URDF has it where none are written, has none. q0 itself may be outside limits and surfaces.

    Joints with dry friction stick. Their friction is zero where motors and contacts hold the
    posture without it; otherwise it is the least that holds it, within `share` of its limit. So a
    limp joint stays where friction can hold it, and else at the nearest posture where it can.

    Args:
        system: Robot and contacts.
        mode: Mode of each contact, such as ("stick", "open"); dry friction of joints may be left
            out.
        q0: Posture (nq,) to stay near to.
        torque_weight: Weight r of squared inputs in 1/(N m)^2, against squared changes of
            coordinates in rad^2 and m^2.
        torque: Largest absolute input, N m or N.
        force: Smallest normal force of a closed contact, N.
        share: Part of static friction that may be used, in (0, 1], of contacts and of joints.
        reach: Largest change of a coordinate from q0 that counts as near, rad or m.
        progress: True prints lines on standard error, a function is called with the part of the
            allowed conic programmes that have been solved; most searches end early.

    Returns:
        The equilibrium, with the forces as a run shares them among redundant contacts.

    Raises:
        UnknownNameError: If the system lacks the mode.
        InputError: If the system is pushed by wrenches, if a number is out of range, if a contact
            or joint of the mode slides, if q0 is no posture of the robot, or if no equilibrium is
            found within `reach`. The last message has the distance of the nearest one that was
            found, the loads by which redundant contacts miss the margins, or what is left of the
            equations at the best posture, and joints whose dry friction does not suffice.
    """
    if isinstance(system, PushedSystem):
        raise InputError("system must be without wrenches, got a pushed one: give `system.own`")
    check_instance("system", system, ContactSystem)
    rubbing = len(system.dynamics.pressed_contacts)
    resting = (OPEN,) * (len(system.contacts) - rubbing) + (STICK,) * rubbing
    mode = system.complete_mode(mode, lambda: resting)
    system.mode(mode)  # refuses an unknown mode
    start = check_vector("q0", q0, system.robot.nq)
    system.robot.check("q0", start)
    check_number("torque_weight", torque_weight, above=0.0)
    if torque != np.inf:
        check_number("torque", torque, above=0.0)
    check_number("force", force, at_least=0.0)
    check_number("share", share, above=0.0, at_most=1.0)
    if reach != np.inf:
        check_number("reach", reach, above=0.0)
    problem = StaticProblem(system, mode, start, torque_weight, StaticMargins(torque, force, share))
    count = _ProgrammeCount(report_share(progress, "equilibrium"))
    problem, point, violation = _search_with_margins(problem, reach, count)
    if violation <= _MAX_VIOLATION and problem.keeps_margins(point):
        problem, point, violation = _relieve_joint_friction(problem, point, reach, count)
        return _equilibrium_at(problem, point, violation)
    lacking = problem.joint_friction_excess(point)
    lacking = f"; {lacking}" if lacking else ""
    limits = f"with torque={torque:g}, force={force:g}, share={share:g}"
    if reach != np.inf:
        # Only for the message: whether a larger reach would help.
        far, far_violation = _search(problem, np.inf, count)
        if far_violation <= _MAX_VIOLATION and problem.distance(far) > reach:
            raise InputError(
                f"no equilibrium was found within reach={reach:g} of q0 in mode {mode!r}, "
                f"{limits}:\nthe nearest that was found is {problem.distance(far):.3g} away, at "
                f"{problem.farthest_coordinate(far)}: start nearer to it, or give a larger reach"
                f"{lacking}"
            )
    unsupported = ""
    if isinstance(mode, tuple) and all(part == OPEN for part in mode):
        unsupported = "; in this mode no contact is closed, so that none carries the robot"
    if violation <= _MAX_VIOLATION:  # the equations hold, but the shared loads miss the margins
        normal, _ = problem.shared_loads(point)
        raise InputError(
            f"no equilibrium was found near q0 in mode {mode!r}, {limits}:\nits redundant contacts "
            f"share loads beyond these, with normal forces {normal.round(3).tolist()} N, "
            f"{problem.distance(point):.3g} away from q0"
        )
    raise InputError(
        f"no equilibrium was found near q0 in mode {mode!r}, {limits}:\n{violation:.3g} of the "
        "weight or m is left of its equations and gaps at the best posture, "
        f"{problem.distance(point):.3g} away from q0{lacking}{unsupported}"
    )


def _search_with_margins(
    problem: StaticProblem, reach: float, count: _ProgrammeCount
) -> tuple[StaticProblem, StaticPoint, float]:
    """Return the problem that was solved last, its best point, and the violation there.

    Redundant contacts share loads in another way than the first point does. If some then carry too
    little, the search is repeated with loads that are shared so.
    """
    point, violation = _search(problem, reach, count)
    if violation <= _MAX_VIOLATION and not problem.keeps_margins(point):
        problem = problem.with_shared_loads()
        point, violation = _search(problem, reach, count)
    return problem, point, violation


def _relieve_joint_friction(
    problem: StaticProblem, point: StaticPoint, reach: float, count: _ProgrammeCount
) -> tuple[StaticProblem, StaticPoint, float]:
    """Return a point of the same posture with the least dry friction of joints.

    Args:
        problem: The problem.
        point: A point that solves it and keeps its margins.
        reach: Largest change of a coordinate from q0, rad or m.
        count: Counter of the conic programmes, which is increased.

    Returns:
        The problem, a point, and its violation.
    """
    if problem.joints_that_rub:
        near = problem.prefer_motors(point)
        for other, start in (near.without_joint_friction(point), (near, point)):
            found = _descend(other, start, reach, count)
            violation, moved = other.violation(found), problem.separation(point, found)
            solved = violation <= _MAX_VIOLATION and other.keeps_margins(found)
            if solved and moved <= _SAME_POSTURE:
                return problem, found, violation
    return problem, point, problem.violation(point)


class _ProgrammeCount:
    """Counts the conic programmes of all searches of one call, and reports their share."""

    def __init__(self, report: Report | None) -> None:
        self._report, self._solved = report, 0

    def add(self) -> None:
        """Count one more programme."""
        self._solved += 1
        if self._report is not None:
            self._report(self._solved / _MAX_PROGRAMMES_OF_CALL)


def _search(
    problem: StaticProblem, reach: float, count: _ProgrammeCount
) -> tuple[StaticPoint, float]:
    """Return the best point found within `reach` of q0, and its violation.

    The violation is that of `StaticProblem.violation` plus the distance beyond `reach`. A descent
    that ends off the equations, as it may where torques matter much more than the posture, is
    followed by a second one to the nearest posture that solves them. If both fail, they are
    repeated from beside q0: at a stretched leg the first derivative of the leg's length is zero,
    and the linearised equations do not tell how to bend it.

    Args:
        problem: Equations, posture q0 and costs.
        reach: Largest distance from q0, in the units of `StaticProblem.distance`.
        count: Counter of the programmes that are solved; it is updated.
    """
    rng = np.random.default_rng(0)
    best, least = problem.start(np.zeros(problem.nv)), np.inf
    for k in range(_STARTS):
        spread = min(_START_SPREAD, reach) if k else 0.0
        start = problem.start(rng.uniform(-spread, spread, size=problem.nv))
        found = _descend(problem, start, reach, count)
        if problem.violation(found) > _MAX_VIOLATION:
            found = _descend(problem.stay_near(found), found, reach, count)
        excess = max(problem.distance(found) - reach - _MAX_VIOLATION, 0.0)
        violation = problem.violation(found) + excess
        if violation < least:
            best, least = found, violation
        if least <= _MAX_VIOLATION:
            break
    return best, least


def _descend(
    problem: StaticProblem, point: StaticPoint, reach: float, count: _ProgrammeCount
) -> StaticPoint:
    """Return the last point of one descent by sequential convex programming, feasible or not.

    The descent is a trust-region method with an exact penalty, which grows while the equations are
    violated. It ends if the merit no longer decreases, or if a conic programme has no solution.

    Args:
        problem: The equations of rest.
        point: Start of the descent.
        reach: Largest change of a coordinate from q0, rad or m.
        count: Counter of the conic programmes, which is increased.
    """
    radius, penalty = _FIRST_RADIUS, problem.first_penalty
    max_penalty = _PENALTY_RANGE * penalty
    merit = problem.merit(point, penalty)
    for _ in range(_MAX_PROGRAMMES):
        count.add()
        trial = problem.trial(point, penalty, radius, reach)
        if trial is None:  # limits exclude each other, or the conic programme breaks down
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


def _equilibrium_at(problem: StaticProblem, point: StaticPoint, residual: float) -> Equilibrium:
    """Return the equilibrium at a point that solves the equations to `residual`."""
    normal, friction = problem.shared_loads(point)
    touching = len(normal) - problem.joints_that_rub
    return Equilibrium(
        state=np.concatenate((point.q, np.zeros(problem.nv))),
        input=problem.inputs(point),
        normal=normal[:touching],
        friction=friction[:touching],
        residual=residual,
        distance=problem.distance(point),
        joint_friction=friction[touching:, 0],
    )
