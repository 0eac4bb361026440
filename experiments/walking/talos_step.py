"""Talos steps in place on flat soles: planned, followed by simulations, and linearized.

The legs and the torso move; arms, hands and head are fixed to the torso. A step begins just after
the left sole has landed and the right one has let go, and ends with the landing of the right sole,
which lifts the left one: at friction 0.7 no such landing lets the other sole stick, unless the legs
are wide apart (`sole_landing`). So one sole stands at a time, as in walks of point feet.

Half of the motion closes up to the exchange of left and right. The pelvis of the file has its
centre of mass 8 mm beside its middle, so that legs mirror each other to 1 %: the half step is a
motion of the robot of the file, and the step of the other leg is its mirror image to 1 % only. The
whole motion, a step of each leg, closes as it is.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import casadi as ca
import numpy as np
from hybridctl.robots import public

from hybridctl.base.checks import Array
from hybridctl.hybrid.simulate import SimulationOptions, simulate
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.planning.optimisation import OptimalTrajectory, optimise
from hybridctl.planning.plan import Feedforwards, InputCurve, PlanTracking
from hybridctl.planning.task import Condition, Expression, Guess, Margins, Phase, Task
from hybridctl.sensitivity.symmetry import Symmetry

SOLES = ("left_sole_link", "right_sole_link")
LEFT_STANCE = ("stick",) * 4 + ("open",) * 4
RIGHT_STANCE = ("open",) * 4 + ("stick",) * 4
LANDING_SPEED = 0.5
"""Greatest speed of landing corners, m/s. A choice."""
CLEARANCE = 0.005
"""Least height of corners in mid-swing, m. The plans rise higher: a sole leaves the ground at
0.2 m/s, as fast as the landing of the other one throws it up."""
_DURATIONS = (0.5, 0.7)
"""Bounds of the duration of a step, s. A choice; plans take the least."""
_JOINT_LIMITS = {
    "leg_{}_1_joint": (-0.2, 0.2),
    "leg_{}_2_joint": (-0.4, 0.4),
    "leg_{}_3_joint": (-1.0, 0.3),
    "leg_{}_4_joint": (0.15, 1.5),
    "leg_{}_5_joint": (-1.0, 0.4),
    "leg_{}_6_joint": (-0.4, 0.4),
}
"""Bounds of the joints of both legs, rad, inside those of the file. Without those of yaw (joint 1)
the cheapest step had its legs turned by two radians. There the rows of a sole that are independent
in its reference pose are dependent, and the standing sole slid in simulations."""
_TORSO_LIMITS = {"torso_1_joint": (-0.2, 0.2), "torso_2_joint": (-0.1, 0.3)}
"""Bounds of the torso, rad."""
_RATE_COST = 10.0
"""Weight of squared velocities of joints beside squared torques, N^2 m^2 s^2/rad^2: a choice."""
_MIRROR_TOLERANCE = 1e-2
"""Relative difference of masses and inertias that count as mirrored: of the pelvis it is 0.94 %."""
_MIRRORED_CORNERS = ((0, 1), (1, 0), (2, 3), (3, 2))
"""Numbers of the corners of the left sole, and of their images on the right one."""
_BEND_ANGLE = 0.2
"""Angle of hips and ankles of the guess, rad; knees have twice this. Stances that are more bent
throw the standing sole up less (`sole_landing`)."""
_LIFT_HEIGHT = 0.03
"""Height of the swinging sole of the guess, m."""
_PENDULUM_HEIGHT = 0.9
"""Height of the centre of mass of the guess, m, by which it sways as an inverted pendulum."""
_DIFFERENCE_SHARE = 1e-4
"""Half the distance of two configurations that give a velocity of the guess, as a share of the
step."""
_NEWTON_STEPS = 8
"""Newton steps of the inverse kinematics of the guess: the residual is then rounding."""
_COARSE_MESH, _FINE_MESH = (8, 4), (12, 5)
"""Intervals and points of collocation: of the search, and of the plan that is followed open loop.
Errors grow by up to 4.5e7 over a step (the norm of its first-order map)."""
CLOSING_TOLERANCE = 1e-2
"""Tolerance with which simulations follow a plan, relative to 1 + |x|."""
_EVENT_WINDOW = 2e-5
"""Time within which corners of a sole are one landing, s: those of a simulation of the fine plan
are 5e-6 s apart."""
_GUARD_TOLERANCE = 1e-6
"""Gap that counts as zero in simulations, m. Corners that land as one are up to
`_EVENT_WINDOW * LANDING_SPEED` = 1e-5 m above the ground; that they are put on it moves the other
sole, which just lets go, by 1e-6 m, and ten times this tolerance is allowed there."""
_OPEN_LOOP_TOLERANCE = 1e-10
"""Tolerances of simulations without feedback: errors of 1e-10 grow to less than
`CLOSING_TOLERANCE`."""
_TRACKING_TOLERANCE = 1e-8
"""Tolerances of simulations under feedback, far below their errors."""
_LATENESS = 0.05
"""Time for which a stride may be late, as a share of it. A choice."""


@lru_cache
def make_talos() -> Robot:
    """Return talos with a motor at each joint of legs and torso, the other joints fixed at zero."""
    root = ET.fromstring(public.urdf("talos"))
    moving = []
    for joint in root.iter("joint"):
        name = joint.get("name", "")
        if joint.get("type") in ("revolute", "continuous", "prismatic"):
            if name.startswith(("leg_", "torso_")):
                moving.append(name)
            else:
                joint.set("type", "fixed")
    text = ET.tostring(root, encoding="unicode")
    # Plans have no dry friction at joints, which the file states.
    return Robot.from_urdf(text, root="floating", friction=dict.fromkeys(moving, 0.0))


@lru_cache
def make_talos_system() -> ContactSystem:
    """Return talos on the corners of its soles, at friction 0.7."""
    return contact_system(make_talos(), public.contacts("talos"), terms="pinocchio")


@lru_cache
def make_exchange() -> Symmetry:
    """Return the exchange of left and right, of legs that mirror each other to 1 %."""
    system = make_talos_system()
    joints = {name: name.replace("left", "right") for name in system.robot.joint_names}
    corners = {f"{SOLES[0]} {i}": f"{SOLES[1]} {j}" for i, j in _MIRRORED_CORNERS}
    return limb_symmetry(
        system,
        {left: right for left, right in joints.items() if left != right},
        corners,
        tolerance=_MIRROR_TOLERANCE,
    )


def make_stance(bend: float = _BEND_ANGLE, spread: float = 0.0) -> Array:
    """Return a configuration (nq,) with both soles level on the ground, at z = 0 and x = 0.

    Args:
        bend: Angle of hips and ankles, rad; knees have twice this.
        spread: Angle by which each leg is turned outwards, rad.
    """
    robot, angles = make_talos(), dict[str, float]()
    for side, outwards in (("left", spread), ("right", -spread)):
        values = (outwards, -bend, 2.0 * bend, -bend, -outwards)
        angles |= {f"leg_{side}_{i}_joint": value for i, value in enumerate(values, 2)}
    q = robot.posture(angles)
    q[[0, 2]] -= robot.point_position(q, SOLES[0])[[0, 2]]
    return np.asarray(q)


def make_half_task() -> Task:
    """Return the task of a step on the left sole, which closes up to the exchange of the legs."""
    system = make_talos_system()
    limits = {
        name.format(side): bounds
        for side in ("left", "right")
        for name, bounds in _JOINT_LIMITS.items()
    }
    joint_speeds = slice(system.robot.nq + 6, None)  # after the velocities of the base

    def compute_running_cost(x: Expression, u: Expression) -> Expression:
        """Return squared torques and squared velocities of the joints."""
        return ca.sumsqr(u) + _RATE_COST * ca.sumsqr(x[joint_speeds])

    return Task(
        system,
        [Phase(LEFT_STANCE, _list_landing_guards(1), _DURATIONS, *_COARSE_MESH)],
        symmetry=make_exchange(),
        # Steps in place cost the same anywhere: this one begins at x = 0.
        conditions=[Condition("place along x", lambda a, b, t: a[0], unit="m")],
        margins=Margins(
            force=20.0,
            friction=0.7,
            impulse=0.0,
            approach=0.1,
            landing_speed=LANDING_SPEED,
            clearance=CLEARANCE,
        ),
        joint_limits={**limits, **_TORSO_LIMITS},
        degree=4,
        running_cost=compute_running_cost,
    )


def make_whole_task() -> Task:
    """Return the task of a step on each sole, which ends as it begins."""
    half, robot = make_half_task(), make_talos()
    (left,) = half.phases
    right = replace(left, mode=RIGHT_STANCE, ends=_list_landing_guards(0))
    closed = Symmetry(np.eye(2 * robot.nv), coordinates=np.eye(robot.nq + robot.nv))
    return replace(half, phases=[left, right], symmetry=closed)


def _list_landing_guards(sole: int) -> tuple[str, ...]:
    """Return the names of the guards of a landing of sole 0 (left) or 1 (right)."""
    return tuple(f"{SOLES[sole]} {corner} closes" for corner in range(4))


def make_guess() -> Guess:
    """Return a guess of a step on the left sole, from one stance on both soles to the next.

    The base sways to the left by as much as an inverted pendulum, and back. The right sole rises
    and falls on a parabola, level. Joints of the legs follow by inverse kinematics.
    """
    robot, stand = make_talos(), make_stance()
    corners = np.array(public.MODELS["talos"].offsets[:3])  # three make the pose of a sole
    joints = [i for name in robot.joint_names[1:13] for i in robot.velocities(name)]
    duration = sum(_DURATIONS) / 2.0
    side = float(robot.point_position(stand, SOLES[0])[1])
    # As in `make_bolt_guess`: the distance d cosh(w (t - T / 2)) / cosh(w T / 2) of the pendulum to
    # its foot is least halfway.
    sway = side * (1.0 - 1.0 / np.cosh(0.5 * duration * np.sqrt(9.81 / _PENDULUM_HEIGHT)))

    def find_corners(q: Array) -> Array:
        """Return the places (2, 3, 3) of three corners of both soles."""
        return np.array([[robot.point_position(q, f, c) for c in corners] for f in SOLES])

    standing = find_corners(stand)

    def find_configuration(s: float) -> Array:
        """Return the configuration (nq,) at a fraction s of the step."""
        q, wanted = stand.copy(), standing.copy()
        q[1] += sway * np.sin(np.pi * s)
        wanted[1, :, 2] += 4.0 * _LIFT_HEIGHT * s * (1.0 - s)
        for _ in range(_NEWTON_STEPS):
            rows = [robot.point_jacobian(q, f, c)[:, joints] for f in SOLES for c in corners]
            missing = (wanted - find_corners(q)).ravel()
            change = np.zeros(robot.nv)
            change[joints] = np.linalg.lstsq(np.vstack(rows), missing, rcond=1e-8)[0]
            q = robot.integrate(q, change)
        return np.asarray(q)

    def guess(k: int, s: float) -> Array:
        """Return the state (nx,) at a fraction s of the step, which has one phase: k is 0."""
        a, b = max(s - _DIFFERENCE_SHARE, 0.0), min(s + _DIFFERENCE_SHARE, 1.0)
        velocity = robot.difference(find_configuration(a), find_configuration(b)) / (
            (b - a) * duration
        )
        return np.concatenate([find_configuration(s), velocity])

    return guess


def plan_half_step(start: Guess | None = None) -> OptimalTrajectory:
    """Return an optimal step on the left sole, by a search on the coarse and then the fine mesh.

    It takes about a minute.

    Args:
        start: Motion from which the search begins. None for `make_guess`.

    Raises:
        InfeasibleReferenceError: See `optimise`.
        SimulationError: See `optimise`.
    """
    task, guess = make_half_task(), make_guess() if start is None else start
    return _find_optimum(_refine(task), _find_optimum(task, guess))


def plan_whole_step(half: OptimalTrajectory) -> OptimalTrajectory:
    """Return an optimal step on each sole, on the coarse mesh.

    The search begins at a half step and its mirror image. It takes about a minute.

    Args:
        half: Result of `plan_half_step`, or such a plan on any mesh.

    Raises:
        InfeasibleReferenceError: See `optimise`.
        SimulationError: See `optimise`.
    """
    exchange, end = make_exchange(), half.plan.end

    def guess(k: int, s: float) -> Array:
        """Return the state (nx,) at a fraction s of step k: the half step, then its image."""
        x = half.plan(min(max(s, 0.0), 1.0) * end)
        return x if k == 0 else np.asarray(exchange.image(x))

    return _find_optimum(make_whole_task(), guess)


def follow_strides(whole: OptimalTrajectory, count: int) -> Array:
    """Simulate strides under feedback, and return how far each ends from the planned start.

    A stride is a step of each leg. Each of its arcs is followed under its own LQR (`PlanTracking`),
    which does not see the landings. So errors grow over a stride, and after four strides the motion
    is lost. A stride begins where the one before has ended, and its clock begins anew.

    Args:
        whole: Result of `plan_whole_step`.
        count: Number of strides.

    Returns:
        Largest entry (count,) of the difference between the end of each stride and the planned
        start, m, rad and per s. A stride without a landing on the left sole ends 5 % late.

    Raises:
        SimulationError: The simulation of a stride fails.
    """
    system = _make_single_support_system()
    policy = PlanTracking.from_plan(whole.plan, whole.feedforward, system.robot.effort)
    planned, distances = whole.plan(0.0), list[float]()
    x = planned
    for _ in range(count):
        run = simulate(
            system,
            LEFT_STANCE,
            x,
            (0.0, (1.0 + _LATENESS) * whole.plan.end),
            policy,
            rtol=_TRACKING_TOLERANCE,
            atol=_TRACKING_TOLERANCE,
            event_window=_EVENT_WINDOW,
            options=SimulationOptions(guard_tolerance=_GUARD_TOLERANCE),
            # Corners that share forces anew may have events that leave the mode as it is.
            terminal=lambda event: (
                event.mode_before != LEFT_STANCE and event.mode_after == LEFT_STANCE
            ),
            on_zeno="raise",
            on_jam="raise",
        )
        x = run.final_state
        distances.append(float(np.abs(system.space.difference(planned, x)).max()))
    return np.array(distances)


def _make_single_support_system() -> ContactSystem:
    """Return the system that prefers one sole standing where several outcomes obey the law."""
    dynamics = make_talos_system().dynamics
    return ContactSystem(dynamics.expect_modes(frozenset({LEFT_STANCE, RIGHT_STANCE})))


def _find_optimum(task: Task, start: Guess | OptimalTrajectory) -> OptimalTrajectory:
    """Return the optimum of a task, simulated with soles that land as one."""
    return optimise(task, start, tolerance=CLOSING_TOLERANCE, event_window=_EVENT_WINDOW)


def _refine(task: Task) -> Task:
    """Return a task on the fine mesh."""
    intervals, points = _FINE_MESH
    phases = [replace(phase, intervals=intervals, points=points) for phase in task.phases]
    return replace(task, phases=phases)


@dataclass(frozen=True, eq=False)
class StoredStep:
    """A half step that was found before: its start and its inputs.

    Attributes:
        start: State (nx,) just after the landing of the left sole, whose corners are closed.
        curve: Torques of the motors over the step, N m.
    """

    start: Array
    curve: InputCurve

    @staticmethod
    def load() -> StoredStep:
        """Return the step in `talos_step.json`, its start projected onto the ground."""
        content = json.loads(Path(__file__).with_name("talos_step.json").read_text("utf-8"))
        project = make_talos_system().mode(LEFT_STANCE).project
        assert project is not None
        curve = InputCurve(0.0, content["duration"], np.array(content["coefficients"]))
        return StoredStep(np.asarray(project(np.array(content["start"]))), curve)

    def simulate(self, start: Array | None = None, after: float = 0.0) -> HybridTrajectory:
        """Return the motion under the inputs alone, through the landing of the right sole.

        Args:
            start: State (nx,) at the start. None for that of the step.
            after: Time for which the motion goes on after the planned landing, s. The inputs go on
                as the same polynomials.

        Raises:
            SimulationError: The simulation fails.
        """
        system = _make_single_support_system()
        return simulate(
            system,
            LEFT_STANCE,
            self.start if start is None else start,
            (0.0, self.curve.end + after),
            Feedforwards((self.curve,), None, system.space.ndx),
            rtol=_OPEN_LOOP_TOLERANCE,
            atol=_OPEN_LOOP_TOLERANCE,
            event_window=_EVENT_WINDOW,
            options=SimulationOptions(guard_tolerance=_GUARD_TOLERANCE),
            on_zeno="raise",
            on_jam="raise",
        )
