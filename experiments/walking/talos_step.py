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
from functools import lru_cache, partial
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
"""Height of corners in mid-swing at least, m. The plans rise higher: a sole leaves the ground at
0.2 m/s, as fast as the landing of the other one throws it up."""
_DURATION = (0.5, 0.7)
"""Bounds of the duration of a step, s. A choice; plans take the least."""
_JOINT_LIMITS = {
    "leg_{}_1_joint": (-0.2, 0.2),
    "leg_{}_2_joint": (-0.4, 0.4),
    "leg_{}_3_joint": (-1.0, 0.3),
    "leg_{}_4_joint": (0.15, 1.5),
    "leg_{}_5_joint": (-1.0, 0.4),
    "leg_{}_6_joint": (-0.4, 0.4),
}
"""Bounds of the joints of both legs, rad, inside those of the file. Without those of yaw the
cheapest step had its legs turned by two radians, where the independent rows of a sole are none."""
_TORSO_LIMITS = {"torso_1_joint": (-0.2, 0.2), "torso_2_joint": (-0.1, 0.3)}
"""Bounds of the torso, rad."""
_RATE_COST = 10.0
"""Weight of squared velocities of joints beside squared torques, N^2 m^2 s^2/rad^2: a choice."""
_MODEL_SYMMETRY = 1e-2
"""Relative difference of masses and inertias that count as mirrored: of the pelvis it is 0.94 %."""
_MIRRORED_CORNERS = ((0, 1), (1, 0), (2, 3), (3, 2))
"""Corners of the left sole, and their images on the right one."""
_BEND = 0.2
"""Angle of hips and ankles of the guess, rad; knees have twice this. Stances that are more bent
throw the standing sole up less (`sole_landing`)."""
_LIFT = 0.03
"""Height of the swinging sole of the guess, m."""
_PENDULUM = 0.9
"""Height of the centre of mass of the guess, m, by which it sways as an inverted pendulum."""
_DIFFERENCE = 1e-4
"""Half the distance of two configurations that give a velocity of the guess, as a share."""
_STEPS = 8
"""Newton steps of the inverse kinematics of the guess: the residual is then rounding."""
_COARSE, _FINE = (8, 4), (12, 5)
"""Intervals and points of collocation: of the search, and of the plan that is followed open loop.
Errors grow by some 1e7 over a step, whose fastest perturbation doubles in 0.02 s."""
CLOSING = 1e-2
"""Tolerance with which simulations follow a plan, relative to 1 + |x|."""
_EVENT_WINDOW = 2e-5
"""Time within which corners of a sole are one landing, s: those of a simulation of the fine plan
are 5e-6 s apart."""
_GUARD_TOLERANCE = 1e-6
"""Gap that counts as zero in simulations, m. Corners that land as one are up to
`_EVENT_WINDOW * LANDING_SPEED` = 1e-5 m above the ground; that they are put on it moves the other
sole, which just lets go, by 1e-6 m, and ten times this tolerance is allowed there."""
_SIMULATION = 1e-10
"""Tolerances of simulations."""
_TRACKING = 1e-8
"""Tolerances of simulations under feedback, far below their errors."""
_LATE = 0.05
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
        tolerance=_MODEL_SYMMETRY,
    )


def make_stance(bend: float = _BEND, spread: float = 0.0) -> Array:
    """Return a configuration (nq,) with both soles flat on the ground.

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
        name.format(side): pair
        for side in ("left", "right")
        for name, pair in _JOINT_LIMITS.items()
    }
    joint_speeds = slice(system.robot.nq + 6, None)  # after the velocities of the base

    def compute_running_cost(x: Expression, u: Expression) -> Expression:
        """Return squared torques and squared velocities of the joints."""
        return ca.sumsqr(u) + _RATE_COST * ca.sumsqr(x[joint_speeds])

    return Task(
        system,
        [Phase(LEFT_STANCE, _list_landing(1), _DURATION, *_COARSE)],
        symmetry=make_exchange(),
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
    right = replace(left, mode=RIGHT_STANCE, ends=_list_landing(0))
    closed = Symmetry(np.eye(2 * robot.nv), coordinates=np.eye(robot.nq + robot.nv))
    return replace(half, phases=[left, right], symmetry=closed)


def _list_landing(sole: int) -> tuple[str, ...]:
    """Return the guards of the corners of a sole that lands."""
    return tuple(f"{SOLES[sole]} {corner} closes" for corner in range(4))


def make_guess() -> Guess:
    """Return a step on the left sole: the body sways as a pendulum, the right sole rises and falls.

    Joints of the legs follow by inverse kinematics.
    """
    robot, stand = make_talos(), make_stance()
    corners = np.array(public.MODELS["talos"].offsets[:3])  # three make the pose of a sole
    joints = [i for name in robot.joint_names[1:13] for i in robot.velocities(name)]
    duration = sum(_DURATION) / 2.0
    side = float(robot.point_position(stand, SOLES[0])[1])
    # As in `make_bolt_guess`: y(t) = d cosh(w (t - T / 2)) / cosh(w T / 2) is nearest halfway.
    sway = side * (1.0 - 1.0 / np.cosh(0.5 * duration * np.sqrt(9.81 / _PENDULUM)))

    def find_corners(q: Array) -> Array:
        """Return the places (2, 3, 3) of three corners of both soles."""
        return np.array([[robot.point_position(q, f, c) for c in corners] for f in SOLES])

    standing = find_corners(stand)

    def place(s: float) -> Array:
        """Return the configuration (nq,) at a fraction of the step."""
        q, wanted = stand.copy(), standing.copy()
        q[1] += sway * np.sin(np.pi * s)
        wanted[1, :, 2] += 4.0 * _LIFT * s * (1.0 - s)
        for _ in range(_STEPS):
            rows = [robot.point_jacobian(q, f, c)[:, joints] for f in SOLES for c in corners]
            missing = (wanted - find_corners(q)).ravel()
            change = np.zeros(robot.nv)
            change[joints] = np.linalg.lstsq(np.vstack(rows), missing, rcond=1e-8)[0]
            q = robot.integrate(q, change)
        return np.asarray(q)

    def guess(k: int, s: float) -> Array:
        """Return the state (nx,) at a fraction of the step."""
        a, b = max(s - _DIFFERENCE, 0.0), min(s + _DIFFERENCE, 1.0)
        velocity = robot.difference(place(a), place(b)) / ((b - a) * duration)
        return np.concatenate([place(s), velocity])

    return guess


def plan_half_step(start: Guess | None = None) -> OptimalTrajectory:
    """Return a step on the left sole, on a fine mesh.

    Args:
        start: Motion from which the search begins. None for `make_guess`.

    Raises:
        InfeasibleReferenceError: See `optimise`.
        SimulationError: See `optimise`.
    """
    task, guess = make_half_task(), make_guess() if start is None else start
    search = partial(optimise, tolerance=CLOSING, event_window=_EVENT_WINDOW)
    return search(_refine(task), search(task, guess))


def plan_whole_step(half: OptimalTrajectory) -> OptimalTrajectory:
    """Return a step on each sole of the robot as it is, begun at a half step and its image.

    Args:
        half: Result of `plan_half_step`, or such a plan on any mesh.

    Raises:
        InfeasibleReferenceError: See `optimise`.
        SimulationError: See `optimise`.
    """
    exchange, end = make_exchange(), half.plan.end

    def guess(k: int, s: float) -> Array:
        """Return the state (nx,) at a fraction of a step, the image of the half step for k = 1."""
        x = half.plan(min(max(s, 0.0), 1.0) * end)
        return x if k == 0 else np.asarray(exchange.image(x))

    return optimise(make_whole_task(), guess, tolerance=CLOSING, event_window=_EVENT_WINDOW)


def follow_strides(whole: OptimalTrajectory, count: int) -> Array:
    """Return how far simulations are from a step of each leg after each of some strides.

    Each arc is followed under its own LQR (`PlanTracking`). The clock begins anew with each stride,
    at the end of the one before. The LQR of arcs by themselves does not hold the motion for ever:
    errors grow over a stride, and after four strides it is lost.

    Args:
        whole: Result of `plan_whole_step`.
        count: Number of strides.

    Returns:
        Largest entry (count,) of the distance from the planned start, m, rad and per s.

    Raises:
        SimulationError: The simulation of a stride fails.
    """
    system = _make_known_system()
    policy = PlanTracking.from_plan(whole.plan, whole.feedforward, system.robot.effort)
    begin, off = whole.plan(0.0), list[float]()
    x = begin
    for _ in range(count):
        run = simulate(
            system,
            LEFT_STANCE,
            x,
            (0.0, (1.0 + _LATE) * whole.plan.end),
            policy,
            rtol=_TRACKING,
            atol=_TRACKING,
            event_window=_EVENT_WINDOW,
            options=SimulationOptions(guard_tolerance=_GUARD_TOLERANCE),
            terminal=lambda event: event.mode_after == LEFT_STANCE,
            on_zeno="raise",
            on_jam="raise",
        )
        x = run.final_state
        off.append(float(np.abs(system.space.difference(begin, x)).max()))
    return np.array(off)


def _make_known_system() -> ContactSystem:
    """Return talos where, of several outcomes of an impact that obey the law, one sole stands."""
    dynamics = make_talos_system().dynamics
    return ContactSystem(dynamics.expect_modes(frozenset({LEFT_STANCE, RIGHT_STANCE})))


def _refine(task: Task) -> Task:
    """Return a task on the fine mesh."""
    intervals, points = _FINE
    phases = [replace(phase, intervals=intervals, points=points) for phase in task.phases]
    return replace(task, phases=phases)


@dataclass(frozen=True, eq=False)
class StoredStep:
    """A half step that was found before: its start and its inputs.

    Attributes:
        start: State (nx,) just after the landing of the left sole, which is closed.
        curve: The inputs.
    """

    start: Array
    curve: InputCurve

    @staticmethod
    def load() -> StoredStep:
        """Return the step in `talos_step.json`, the start put on the ground."""
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
        """
        system = _make_known_system()
        return simulate(
            system,
            LEFT_STANCE,
            self.start if start is None else start,
            (0.0, self.curve.end + after),
            Feedforwards((self.curve,), None, system.space.ndx),
            rtol=_SIMULATION,
            atol=_SIMULATION,
            event_window=_EVENT_WINDOW,
            options=SimulationOptions(guard_tolerance=_GUARD_TOLERANCE),
            on_zeno="raise",
            on_jam="raise",
        )
