"""Half a stride of solo12's trot, planned with its floating base; its multipliers and feedback.

The half stride is a stance on two diagonal feet and a flight, which ends where the other two feet
land. It closes up to the exchange of left and right, and to the way along x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np
from hybridctl.robots import public
from numpy.typing import NDArray
from rich.table import Table
from scipy.linalg import null_space

from hybridctl.app.report import make_record_table
from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr, periodic_lqr
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.orbits.conewise import ConewiseMap, compute_conewise_map
from hybridctl.planning.optimisation import OptimalTrajectory, optimise
from hybridctl.planning.plan import Feedforwards, InputCurve
from hybridctl.planning.task import Condition, Expression, Guess, Margins, Phase, Task
from hybridctl.sensitivity.floquet import find_trivial_directions
from hybridctl.sensitivity.linearization import Linearization, linearize
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.saltation import JumpGains, jump_gains
from hybridctl.sensitivity.symmetry import Symmetry, map_perturbations

DURATIONS = (0.10, 0.20), (0.03, 0.08)
"""Bounds of the durations of stance and flight, s."""
LANDING_SPEED = 0.6
"""Greatest speed of landing feet, m/s. A choice."""
TORQUE = 2.7
"""Greatest torque, N m, near what the motors of solo12 give. A choice."""
FEET = ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT")
_PAIRS = {f"{end}L_{joint}": f"{end}R_{joint}" for end in "FH" for joint in ("HAA", "HFE", "KFE")}
_STANCE, _FLIGHT = ("stick", "open", "open", "stick"), ("open",) * 4
_CLEARANCE, _LIFT = 0.02, 0.03  # m, least height of swinging feet in mid-flight, and of the guess
_JOINT_SPEEDS = slice(25, 37)
"""Velocities of the joints in the state: after 19 coordinates and the 6 velocities of the base."""
_RATE_COST = 0.01
"""Weight of squared velocities of the joints beside squared torques, N^2 m^2 s^2/rad^2. Without it
the trot was not found."""
_MODEL_SYMMETRY = 1e-3
"""Relative difference of masses and inertias of legs that count as mirrored."""
_DIFFERENCE = 1e-5
"""Half the distance of two configurations that give a velocity of the guess, s."""
_STEPS = 10
"""Newton steps of the inverse kinematics of the guess: the residual is then rounding."""
_CLOSING = 1e-2
"""Tolerance with which simulations follow the plan and its half stride closes, relative to 1 + |x|:
between its points of collocation the mesh of ten intervals follows the motion no better."""
_SIMULATION = 1e-11
"""Tolerances of simulations."""
_EVENT_WINDOW = 1e-6
"""Time within which feet let go or land together, s: two of them by the plan, which closes to as
much."""
_MOST_CORRECTIONS = 10
"""Most corrections of Newton's method."""
_SHOWN = 4
"""Multipliers in the table."""
_RICCATI = 1e-8
"""Relative tolerance of the value function."""
_CLOSED = 1e-7
"""Gap in m, rad and per s at which it ends: multipliers need an orbit that closes to 1e-6."""


def make_trot_task(speed: float) -> tuple[Task, Guess]:
    """Return the task of half a stride of solo12, and its guess.

    Args:
        speed: Mean speed forwards, m/s; zero for a trot in place.
    """
    robot = Robot.from_urdf(public.urdf("solo12"), root="floating")
    plant = contact_system(robot, public.contacts("solo12"), terms="pinocchio")
    names = [contact.name for contact in plant.contacts]
    symmetry = limb_symmetry(
        plant,
        _PAIRS,
        {names[0]: names[1], names[2]: names[3]},
        free={"translation": ("root_joint", "x")},
        tolerance=_MODEL_SYMMETRY,
    )
    lifts, lands = ((names[0], names[3]), (names[1], names[2]))
    phases = [
        Phase(_STANCE, tuple(f"{name} opens" for name in lifts), DURATIONS[0], 6, 3),
        Phase(_FLIGHT, tuple(f"{name} closes" for name in lands), DURATIONS[1], 4, 3),
    ]
    task = Task(
        plant,
        phases,
        symmetry=symmetry,
        conditions=[Condition("speed", lambda a, b, t: b[0] - a[0] - speed * t, unit="m")],
        margins=Margins(
            force=1.0,
            friction=0.7,
            impulse=0.0,
            landing_speed=LANDING_SPEED,
            clearance=_CLEARANCE,
        ),
        torque=TORQUE,
        degree=5,
        running_cost=_compute_running_cost,
    )
    return task, make_trot_guess(robot, speed)


def _compute_running_cost(x: Expression, u: Expression) -> Expression:
    """Return squared torques and squared velocities of the joints."""
    return ca.sumsqr(u) + _RATE_COST * ca.sumsqr(x[_JOINT_SPEEDS])


def make_trot_guess(robot: Robot, speed: float) -> Guess:
    """Return a hop of the base over feet on parabolas or on the ground, by inverse kinematics.

    Args:
        robot: solo12.
        speed: Mean speed forwards, m/s.
    """
    stand = public.start("solo12", 0.0, 0.0, 0.0)[: robot.nq]
    stance, flight = (0.5 * sum(pair) for pair in DURATIONS)
    half, rise = stance + flight, 0.5 * 9.81 * flight
    standing = [robot.point_position(stand, foot) for foot in FEET]

    def place_foot(i: int, t: float) -> Array:
        """Return the place (3,) of foot i at a time, s."""
        later = 0.0 if i in (0, 3) else half
        stride, tau = divmod(t - later, 2.0 * half)
        x, s = speed * (2.0 * half * stride + later + 0.5 * stance), 0.0
        if tau > stance:
            s = (tau - stance) / (2.0 * half - stance)
            x += speed * 2.0 * half * (3.0 * s * s - 2.0 * s**3)
        return np.asarray(standing[i] + [x, 0.0, 4.0 * _LIFT * s * (1.0 - s)])

    def place_robot(t: float) -> Array:
        """Return the configuration (nq,) at a time, s."""
        air = t - stance
        q = stand.copy()
        q[0] += speed * t
        q[2] += rise * (t * t / stance - t) if air < 0.0 else rise * air - 4.905 * air * air
        for _ in range(_STEPS):
            off = [place_foot(i, t) - robot.point_position(q, foot) for i, foot in enumerate(FEET)]
            rows = [robot.point_jacobian(q, foot, np.zeros(3))[:, 6:] for foot in FEET]
            step = np.linalg.solve(np.vstack(rows), np.concatenate(off))
            q = robot.integrate(q, np.concatenate([np.zeros(6), step]))
        return np.asarray(q)

    def guess(k: int, s: float) -> Array:
        """Return the state (nq + nv,) at a fraction of phase k."""
        first, length = ((0.0, stance), (stance, flight))[k]
        t = first + s * length
        # Differences stay inside the phase: the velocity jumps at a touch.
        a = max(t - _DIFFERENCE, first + 1e-9)
        b = min(t + _DIFFERENCE, first + length - 1e-9)
        velocity = robot.difference(place_robot(a), place_robot(b)) / (b - a)
        return np.concatenate([place_robot(t), velocity])

    return guess


@dataclass(frozen=True)
class TrotWeights:
    """LQR weights; the place along x is held, too.

    Attributes:
        coordinates: Weight of coordinates, 1/rad^2 or 1/m^2.
        velocities: Weight of velocities, s^2/rad^2 or s^2/m^2.
        torques: Weight of torques, 1/(N m)^2.
    """

    coordinates: float = 100.0
    velocities: float = 1.0
    torques: float = 10.0

    def make_state_weights(self, nv: int) -> Array:
        """Return the weights Q (2 nv, 2 nv) of the state."""
        return np.diag(np.repeat([self.coordinates, self.velocities], nv))


@dataclass(frozen=True, eq=False)
class PlannedTrot:
    """Half a stride of solo12, and its first order from mid-stance to mid-stance.

    Attributes:
        task: The task.
        optimum: Its optimum.
    """

    task: Task
    optimum: OptimalTrajectory

    @property
    def system(self) -> ContactSystem:
        """The robot on its feet."""
        return self.task.system

    @property
    def period(self) -> float:
        """Duration of half a stride, s."""
        return self.optimum.plan.end

    @cached_property
    def middle(self) -> Array:
        """The state (nx,) in mid-stance from which the simulated half stride closes.

        It is found by Newton's method from the plan, whose mesh is coarse. Where the map is
        piecewise linear its first piece is taken: the pieces differ little.
        """
        space, mode = self.system.space, self.system.mode(_STANCE)
        project, held = mode.project, mode.held
        assert project is not None
        assert held is not None
        assert held.jacobian is not None
        x = project(self.optimum.plan(self._begin))
        for _ in range(_MOST_CORRECTIONS):
            once = self._simulate_from(x)
            gap = self._find_gap(once)
            if np.abs(gap).max() < _CLOSED:
                break
            moved = (
                self._map_period(linearize(self.system, once, simultaneous="at once"))
                .pieces[0]
                .matrix
            )
            # The feet stay on the ground. Least squares: the way along the ground is free.
            kept = null_space(held.jacobian(x))
            closing = (np.eye(len(gap)) - moved) @ kept
            change = kept @ np.linalg.lstsq(closing, gap, rcond=1e-9)[0]
            x = project(space.integrate(x, change))
        return np.asarray(x)

    @cached_property
    def orbit(self) -> HybridTrajectory:
        """Simulation of half a stride from mid-stance to mid-stance under the planned inputs."""
        return self._simulate_from(self.middle)

    @property
    def closing(self) -> float:
        """The largest entry by which the orbit does not close, m, rad and per s."""
        return float(np.abs(self._find_gap(self.orbit)).max())

    @property
    def _begin(self) -> float:
        """Time of mid-stance, s."""
        return 0.5 * self.optimum.feedforward[0].length

    def _simulate_from(self, x: Array) -> HybridTrajectory:
        """Return the motion of half a stride from a state in mid-stance, without feedback."""
        stance, flight = self.optimum.feedforward
        symmetry, nu = self._symmetry, self.system.robot.nu
        inverse = np.linalg.inv(symmetry.inputs(nu))
        again = InputCurve(self.period, stance.length, stance.coefficients @ inverse.T)
        modes = (_STANCE, _FLIGHT, symmetry.mode(_STANCE))
        return simulate(
            self.system,
            _STANCE,
            x,
            (self._begin, self._begin + self.period),
            Feedforwards((stance, flight, again), modes, self.system.space.ndx),
            event_window=_EVENT_WINDOW,
            rtol=_SIMULATION,
            atol=_SIMULATION,
            on_jam="raise",
        )

    def _linearize(self, once: HybridTrajectory) -> Linearization:
        """Return the first-order map of a motion, in which feet that land together are one impact.

        Their orders lead to states that differ by 2e-5, as one is 1e-6 s ahead.
        """
        return linearize(self.system, once, simultaneous="at once")

    def _find_gap(self, once: HybridTrajectory) -> Array:
        """Return the gap (ndx,) between the image of the end of a motion and its start."""
        return self._symmetry.gap(self.system.space, once(once.start), once.final_state)

    def _map_period(self, lin: Linearization) -> ConewiseMap:
        """Return the first-order map of half a stride, up to the exchange of left and right."""
        back = map_perturbations(self._symmetry, np.eye(2 * self.system.robot.nv))
        return compute_conewise_map(lin).multiply_by(back)

    @cached_property
    def map(self) -> Linearization:
        """First-order map of the orbit, without feedback; piecewise linear where feet let go."""
        return self._linearize(self.orbit)

    def design_feedback(self, weights: TrotWeights | None = None) -> PeriodicLqr:
        """Return the hybrid LQR around the trot.

        The lift-off is that of its first foot, at a time that the states decide: torques decide it
        too, but a gain that is consistent with what it does there was not found. `close_loop` has
        the map of the feedback with both.

        Args:
            weights: Weights of the cost; None for the default ones.
        """
        weights = TrotWeights() if weights is None else weights
        robot, lin, jumps = self.system.robot, self.map, list[JumpGains | PiecewiseLinearJump]()
        for jump, event in zip(lin.jumps, self.orbit.events, strict=True):
            if isinstance(jump, PiecewiseLinearJump):
                jump = jump_gains(self.system, replace(event, guards=event.guards[:1]))
                jump = replace(jump, time_input=np.zeros_like(jump.time_input))
            jumps.append(jump)
        return periodic_lqr(
            replace(lin, jumps=tuple(jumps)),
            weights.make_state_weights(robot.nv),
            weights.torques * np.eye(robot.nu),
            symmetry=self._symmetry,
            rtol=_RICCATI,
        )

    def close_loop(self, feedback: PeriodicLqr) -> Linearization:
        """Return the first-order map of the orbit under a feedback.

        Args:
            feedback: Result of `design_feedback`.
        """
        gains = feedback.period.gains.arcs
        return self.map.closed_loop(gains, lambda k, fired: gains[k](self.orbit.events[k].time))

    def compute_multipliers(
        self, lin: Linearization, *, holds_place: bool = False
    ) -> list[NDArray[np.complex128]]:
        """Return the multipliers of half a stride, the largest modulus first, of each piece.

        Perturbations that lift a standing foot are left out: motions have none. So is the shift
        along x, whose multiplier is 1, unless feedback holds the place.

        Args:
            lin: Linearization of the orbit, open loop or under feedback.
            holds_place: Whether it has feedback that holds the place.
        """
        matrices = [piece.matrix for piece in self._map_period(lin).pieces]
        if holds_place:
            held = self.system.mode(_STANCE).held
            assert held is not None
            assert held.jacobian is not None
            across = null_space(held.jacobian(self.middle))
        else:
            across = find_trivial_directions(lin, matrices, self._symmetry).across
        found = [np.linalg.eigvals(across.T @ matrix @ across) for matrix in matrices]
        return [values[np.argsort(-np.abs(values))].astype(np.complex128) for values in found]

    @property
    def _symmetry(self) -> Symmetry:
        assert self.task.symmetry is not None
        return self.task.symmetry


def plan_trot(speed: float, start: PlannedTrot | None = None) -> PlannedTrot:
    """Return the trot of solo12 at a speed.

    Args:
        speed: Mean speed forwards, m/s.
        start: Plan from which the search begins, None for a hop. At 0.3 m/s it does not end within
            300 iterations from a hop, and takes 67 from the trot in place.

    Raises:
        InfeasibleReferenceError: See `optimise`.
        SimulationError: See `optimise`.
    """
    task, guess = make_trot_task(speed)
    begin: Guess | OptimalTrajectory = guess if start is None else start.optimum
    return PlannedTrot(task, optimise(task, begin, tolerance=_CLOSING))


def make_plan_record(trot: PlannedTrot) -> dict[str, Any]:
    """Return a plan as it stands in summary.json.

    Multipliers are moduli, of half a stride up to the exchange of left and right. Of several pieces
    of the map those of the piece with the largest are taken.

    Args:
        trot: The plan.
    """
    feedback = trot.design_feedback()
    maps = [
        trot.compute_multipliers(trot.map),
        trot.compute_multipliers(trot.close_loop(feedback), holds_place=True),
    ]
    largest = [max(np.abs(values).tolist() for values in pieces) for pieces in maps]
    optimum = trot.optimum
    return {
        "robot": "solo12",
        "period": trot.period,
        "cost": optimum.cost,
        "iterations": optimum.iterations,
        "mismatch": optimum.mismatch,
        "closing": trot.closing,
        "pieces": len(maps[0]),
        "open": largest[0],
        "closed": largest[1],
    }


def make_multiplier_table(record: dict[str, Any]) -> Table:
    """Return the table of the largest multipliers of a planned trot."""
    rows = [
        {"name": name, "values": ", ".join(f"{each:.3g}" for each in record[key][:_SHOWN])}
        for name, key in (("open loop", "open"), ("under its LQR", "closed"))
    ]
    columns = {"map of half a stride": "{name}", "largest multipliers": "{values}"}
    return make_record_table("Planned trot in place of solo12", rows, columns)
