"""Half a stride of solo12's trot, planned with its floating base; its multipliers and feedback.

The half stride is a stance on two diagonal feet and a flight, which ends where the other two feet
land. It closes up to the exchange of left and right, and to the way along x. The stance ends by the
clock: the input jumps, and pulls up feet that have pressed until then.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import Any

import casadi as ca
import numpy as np
from hybridctl.experiments.walking.closing import find_closing_state, measure_gap
from hybridctl.robots import public
from numpy.typing import NDArray
from rich.table import Table
from scipy.interpolate import CubicSpline
from scipy.linalg import null_space

from hybridctl.app.report import make_record_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import HybridctlError
from hybridctl.control.gains import GainSchedule
from hybridctl.control.lqr.periodic import PeriodicLqr, periodic_lqr
from hybridctl.control.reference import Reference, extend_arcs
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.orbits.conewise import compute_conewise_map
from hybridctl.planning.constrained_tracking import ConstrainedTracking
from hybridctl.planning.optimisation import OptimalTrajectory, optimise
from hybridctl.planning.plan import Feedforwards, InputCurve, PhaseSequence, PlanTracking
from hybridctl.planning.task import Condition, Expression, Guess, Margins, Phase, Task
from hybridctl.sensitivity.floquet import find_trivial_directions
from hybridctl.sensitivity.linearization import Linearization, linearize
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.symmetry import Symmetry, map_perturbations

DURATIONS = (0.12, 0.20), (0.03, 0.08)
"""Bounds of the durations of stance and flight, s."""
LANDING_SPEED = 0.6
"""Greatest speed of landing feet, m/s. A choice."""
TORQUE = 2.7
"""Greatest torque, N m, near what the motors of solo12 give. A choice."""
FEET = ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT")
_PAIRS = {f"{end}L_{joint}": f"{end}R_{joint}" for end in "FH" for joint in ("HAA", "HFE", "KFE")}
_STANCE, _FLIGHT = ("stick", "open", "open", "stick"), ("open",) * 4
_CLEARANCE, _LIFT = 0.02, 0.03  # m, least height of swinging feet in mid-stance, and of the guess
_FLIGHT_CLEARANCE = 0.005
"""Least height of feet in mid-flight, m: where they rise to it within 0.03 s, or fall from it."""
_LIFT_ACCELERATION = 10.0
"""Least acceleration with which feet lift off, m/s^2. A choice."""
_APPROACH = 0.3
"""Least speed of landing feet, m/s: slower ones touch at uncertain times. A choice."""
_JOINT_SPEEDS = slice(25, 37)
"""Velocities of the joints in the state: after 19 coordinates and the 6 velocities of the base."""
_QUATERNION = slice(3, 7)
"""Orientation of the base in the state."""
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
"""Tolerance with which simulations follow the plan, relative to 1 + |x|. Half a stride multiplies
errors of its mesh by ten."""
_SIMULATION = 1e-11
"""Tolerances of simulations."""
_EVENT_WINDOW = 1e-5
"""Time within which feet land together in the half stride that is closed, s: those of the plan do
to the accuracy of its mesh."""
_APART = 1e-9
"""The same in the half stride whose map has feet that land in turn, s."""
_MOST_CORRECTIONS = 10
"""Most corrections of Newton's method."""
_SHOWN = 4
"""Multipliers in the table."""
_EXTENSION = 0.02
"""Time by which arcs of the reference go on past their ends, s: no touch was that far off."""
_SPEEDS_PER_ANGLE = 10.0
"""Size of perturbations of velocities relative to those of coordinates, 1/s."""
_TRACKING_TOLERANCE = 1e-6
"""Tolerances of simulations under feedback, far below their perturbations."""
_SHARES = (50.0, 99.0)
"""Percentiles of the time of a sample that are shown."""
_LOST = 0.5
"""Distance of a coordinate from the reference at which the trot counts as lost, m or rad."""
_RICCATI = 1e-8
"""Relative tolerance of the value function."""
_CLOSED = 1e-7
"""Gap in m, rad and per s at which Newton's method ends: multipliers need an orbit that closes to
1e-6."""


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
    lands = names[1], names[2]
    phases = [
        Phase(_STANCE, (), DURATIONS[0], 8, 3),
        Phase(
            _FLIGHT,
            tuple(f"{name} closes" for name in lands),
            DURATIONS[1],
            6,
            3,
            clearance=_FLIGHT_CLEARANCE,
        ),
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
            lift=_LIFT_ACCELERATION,
            approach=_APPROACH,
            landing_speed=LANDING_SPEED,
            clearance=_CLEARANCE,
        ),
        torque=TORQUE,
        degree=3,
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


def load_trot_guess() -> Guess:
    """Return a trot in place that was found from a hop, to 1e-6: a search from it is short.

    From a hop searches take 67 to 349 iterations and end in one of several optima, as rounding has
    it.
    """
    content = json.loads(Path(__file__).with_name("solo12_trot.json").read_text("utf-8"))
    phases = [np.array(states) for states in content["states"]]
    shares = [np.linspace(0.0, 1.0, len(states)) for states in phases]
    curves = [CubicSpline(share, states) for share, states in zip(shares, phases, strict=True)]

    def guess(k: int, s: float) -> Array:
        """Return the state (nx,) at a fraction of phase k."""
        x = np.asarray(curves[k](s))
        x[_QUATERNION] /= np.linalg.norm(x[_QUATERNION])
        return x

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
class TrackedTrot:
    """How a simulation follows a trot.

    Attributes:
        problem: Why it was lost; empty if it went on to the end.
        errors: Largest distance (n,) from the reference each half stride, in mid-stance: m, rad and
            per s. Empty where an error ended the simulation.
        seconds: Processor time of the simulation, s.
    """

    problem: str
    errors: Array
    seconds: float


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

        It is found by Newton's method from the plan, whose mesh is coarse. After
        `_MOST_CORRECTIONS` the last state is taken; `closing` is how far its orbit is from closing.
        """

        def map_period(once: HybridTrajectory) -> Array:
            """Return the map (ndx, ndx) of half a stride whose feet land together, in one piece."""
            (matrix,) = self._map_period(self._linearize_at_once(once))
            return matrix

        return find_closing_state(
            self.system,
            _STANCE,
            self._symmetry,
            self.optimum.plan(self._begin),
            self.simulate_from,
            map_period,
            tolerance=_CLOSED,
            corrections=_MOST_CORRECTIONS,
        )

    @cached_property
    def orbit(self) -> HybridTrajectory:
        """Simulation of half a stride from mid-stance to mid-stance under the planned inputs."""
        return self.simulate_from(self.middle)

    @property
    def closing(self) -> float:
        """The largest entry by which the orbit does not close, m, rad and per s."""
        return float(np.abs(measure_gap(self.system, self._symmetry, self.orbit)).max())

    @cached_property
    def map(self) -> Linearization:
        """First-order map of the orbit without feedback, whose feet land in turn.

        Within `_APART` they may do so in either order, and the map has two pieces. Else it has one,
        for perturbations that keep the order.
        """
        return linearize(self.system, self.simulate_from(self.middle, _APART))

    def design_feedback(self, weights: TrotWeights | None = None) -> PeriodicLqr:
        """Return the hybrid LQR around the trot, for feet that land together.

        `close_loop` gives the map of this feedback where they land in turn. The lift-off is at a
        time, so that perturbations go through it unchanged.

        Args:
            weights: Weights of the cost; None for the default ones.
        """
        weights = TrotWeights() if weights is None else weights
        robot = self.system.robot
        return periodic_lqr(
            self._linearize_at_once(self.orbit),
            weights.make_state_weights(robot.nv),
            weights.torques * np.eye(robot.nu),
            symmetry=self._symmetry,
            rtol=_RICCATI,
        )

    def close_loop(self, feedback: PeriodicLqr) -> Linearization:
        """Return the first-order map of the orbit under a feedback, for feet that land in turn.

        Args:
            feedback: Result of `design_feedback`.
        """
        stance, flight, again = feedback.period.gains.arcs
        # Between two landings the gain of the flight goes on.
        waiting = [flight] * (len(self.map.trajectory.arcs) - 3)
        touch = self.orbit.events[1].time
        gains = (stance, flight, *waiting, again)
        return self.map.closed_loop(gains, lambda k, fired: flight(touch))

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
        matrices = self._map_period(lin)
        if holds_place:
            across = self.find_start_directions()
        else:
            across = find_trivial_directions(lin, matrices, self._symmetry).across
        found = [np.linalg.eigvals(across.T @ matrix @ across) for matrix in matrices]
        return [values[np.argsort(-np.abs(values))].astype(np.complex128) for values in found]

    def find_start_directions(self) -> Array:
        """Return an orthonormal basis (ndx, m) of perturbations that keep the standing feet."""
        held = self.system.mode(_STANCE).held
        assert held is not None
        assert held.jacobian is not None
        return np.asarray(null_space(held.jacobian(self.middle)))

    def make_reference(self, feedback: PeriodicLqr, strides: int) -> tuple[Reference, GainSchedule]:
        """Return the trot over some strides as a reference, and the gains of its arcs.

        Arcs go on for `_EXTENSION` past both ends, under the inputs that they have there.

        Args:
            feedback: Result of `design_feedback`.
            strides: Number of strides.
        """
        nominal, gains = feedback.repeated(2 * strides)
        nominal = replace(nominal, system=self.system)
        arcs = extend_arcs(nominal, before=_EXTENSION, after=_EXTENSION)
        return Reference(nominal, arcs, {}), gains

    def perturb_start(self, rng: np.random.Generator, angle: float) -> Array:
        """Return a state (nx,) at random near mid-stance, with the standing feet on the ground.

        Args:
            rng: Generator of random numbers.
            angle: Standard deviation of coordinates, rad or m. Velocities have ten times this, per
                s. Then the state is projected onto the ground.
        """
        nv, project = self.system.robot.nv, self.system.mode(_STANCE).project
        assert project is not None
        sizes = angle * np.repeat([1.0, _SPEEDS_PER_ANGLE], nv)
        x = self.system.space.integrate(self.middle, sizes * rng.normal(size=2 * nv))
        return np.asarray(project(x))

    def follow(self, reference: Reference, policy: Policy, start: Array) -> TrackedTrot:
        """Return how a simulation follows a reference under a policy.

        Args:
            reference: The reference.
            policy: The policy.
            start: State (nx,) at its start.
        """
        nominal, space = reference.nominal, self.system.space
        count = round((nominal.end - nominal.start) / self.period)
        times = np.linspace(nominal.start, nominal.end, count + 1)

        def has_fallen(event: Event) -> bool:
            x = event.state_before
            off = space.difference(nominal(min(event.time, nominal.end)), x)
            return bool(np.abs(off[: self.system.robot.nv]).max() > _LOST)

        clock = process_time()
        try:
            run = simulate(
                self.system,
                None,
                start,
                (nominal.start, nominal.end),
                policy,
                rtol=_TRACKING_TOLERANCE,
                atol=_TRACKING_TOLERANCE,
                terminal=has_fallen,
                on_zeno="raise",
                on_jam="raise",
            )
        except HybridctlError as error:
            return TrackedTrot(str(error).splitlines()[0], np.zeros(0), process_time() - clock)
        reached = times[times <= run.end]
        errors = [np.abs(space.difference(nominal(t), run(t))).max() for t in reached.tolist()]
        problem = "" if len(reached) == len(times) else f"lost at {run.end - run.start:.2f} s"
        return TrackedTrot(problem, np.array(errors), process_time() - clock)

    @property
    def _begin(self) -> float:
        """Time of mid-stance, s."""
        return 0.5 * self.optimum.feedforward[0].length

    def simulate_from(self, x: Array, event_window: float = _EVENT_WINDOW) -> HybridTrajectory:
        """Return the motion of half a stride, without feedback.

        Args:
            x: State (nx,) in mid-stance.
            event_window: Time within which feet land together, s.
        """
        stance, flight = self.optimum.feedforward
        symmetry, nu = self._symmetry, self.system.robot.nu
        inverse = np.linalg.inv(symmetry.inputs(nu))
        again = InputCurve(self.period, stance.length, stance.coefficients @ inverse.T)
        modes = (_STANCE, _FLIGHT, symmetry.mode(_STANCE))
        phases = PhaseSequence(modes, (stance.end, math.inf, math.inf))
        return simulate(
            self.system,
            _STANCE,
            x,
            (self._begin, self._begin + self.period),
            Feedforwards((stance, flight, again), phases, self.system.space.ndx),
            event_window=event_window,
            rtol=_SIMULATION,
            atol=_SIMULATION,
            on_jam="raise",
        )

    def _linearize_at_once(self, once: HybridTrajectory) -> Linearization:
        """Return the linear map of a motion, in which feet that land together are one impact.

        The impact is that of the foot which is first, or of any where they are as early.
        """
        lin = linearize(self.system, once, simultaneous="at once")
        first = frozenset[int]()
        jumps = (j.jump(first, 0) if isinstance(j, PiecewiseLinearJump) else j for j in lin.jumps)
        return replace(lin, jumps=tuple(jumps))

    def _map_period(self, lin: Linearization) -> list[Array]:
        """Return the pieces (ndx, ndx) of the map of half a stride, left and right exchanged."""
        back = map_perturbations(self._symmetry, np.eye(2 * self.system.robot.nv))
        return [piece.matrix for piece in compute_conewise_map(lin).multiply_by(back).pieces]

    @property
    def _symmetry(self) -> Symmetry:
        assert self.task.symmetry is not None
        return self.task.symmetry


def plan_trot(speed: float, start: Guess | PlannedTrot | None = None) -> PlannedTrot:
    """Return the trot of solo12 at a speed.

    Intervals are halved where simulations would not follow the plan: it has several local optima,
    some with faster feet than others.

    Args:
        speed: Mean speed forwards, m/s.
        start: Motion or plan from which the search begins, None for a hop.

    Raises:
        InfeasibleReferenceError: See `optimise`.
        SimulationError: See `optimise`.
    """
    task, hop = make_trot_task(speed)
    begin = start.optimum if isinstance(start, PlannedTrot) else start or hop
    return PlannedTrot(task, optimise(task, begin, tolerance=_CLOSING, refinements=1))


@dataclass(frozen=True)
class TrotTrials:
    """Simulations of a planned trot under feedback, from starts at random.

    Attributes:
        strides: Strides of each.
        starts: Number of starts for each size.
        angles: Sizes of their perturbations, rad or m; see `PlannedTrot.perturb_start`.
        predictive: Whether the LQR is also run with corrections at 50 Hz that keep limits
            (`ConstrainedTracking`), from the same starts.
        limit: Greatest torque under feedback, N m.
        seed: Seed of the starts.
    """

    strides: int = 20
    starts: int = 2
    angles: tuple[float, ...] = (1e-3,)
    predictive: bool = True
    limit: float = TORQUE
    seed: int = 0


def make_plan_record(
    trot: PlannedTrot, feedback: PeriodicLqr, trials: TrotTrials
) -> dict[str, Any]:
    """Return a plan as it stands in summary.json.

    Multipliers are moduli, of half a stride up to the exchange of left and right. Of several pieces
    of the map those of the piece with the largest are taken.

    Args:
        trot: The plan.
        feedback: Its LQR.
        trials: Simulations under feedback.
    """
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
        "trials": make_trial_records(trot, feedback, trials),
    }


def make_trial_records(
    trot: PlannedTrot, feedback: PeriodicLqr, trials: TrotTrials
) -> list[dict[str, Any]]:
    """Return how simulations follow the trot, one record for each law and size of starts.

    Args:
        trot: The plan.
        feedback: Its LQR.
        trials: The simulations.
    """
    reference, gains = trot.make_reference(feedback, trials.strides)
    nominal, nu = reference.nominal, trot.system.robot.nu
    phases = PhaseSequence.from_arcs(nominal.arcs, nominal.events)
    most = np.full(nu, trials.limit)
    laws: dict[str, PlanTracking | ConstrainedTracking] = {
        "LQR": PlanTracking(reference.arcs, gains.arcs, phases, np.array([-most, most]))
    }
    if trials.predictive:
        weight = TrotWeights().torques * np.eye(nu)
        laws["50 Hz"] = ConstrainedTracking(feedback, reference, weight, most)
    rng, records = np.random.default_rng(trials.seed), []
    for angle in trials.angles:
        starts = [trot.perturb_start(rng, angle) for _ in range(trials.starts)]
        for name, law in laws.items():
            runs, seconds, active = list[TrackedTrot](), list[float](), 0
            for start in starts:
                runs.append(trot.follow(reference, law, start))
                if isinstance(law, ConstrainedTracking):
                    seconds += law.seconds
                    active += law.active
            held = [run for run in runs if not run.problem]
            records.append(
                {
                    "law": name,
                    "angle": angle,
                    "starts": len(runs),
                    "held": len(held),
                    "first": max((float(run.errors[0]) for run in held), default=None),
                    "last": max((float(run.errors[-1]) for run in held), default=None),
                    "problems": [run.problem for run in runs if run.problem],
                    "samples": len(seconds),
                    "active": active,
                    "milliseconds": [1e3 * float(np.percentile(seconds, p)) for p in _SHARES]
                    if seconds
                    else [],
                }
            )
    return records


def make_multiplier_table(record: dict[str, Any]) -> Table:
    """Return the table of the largest multipliers of a planned trot."""
    rows = [
        {"name": name, "values": ", ".join(f"{each:.3g}" for each in record[key][:_SHOWN])}
        for name, key in (("open loop", "open"), ("under its LQR", "closed"))
    ]
    columns = {"map of half a stride": "{name}", "largest multipliers": "{values}"}
    return make_record_table("Planned trot in place of solo12", rows, columns)


def make_trial_table(record: dict[str, Any]) -> Table:
    """Return the table of simulations of a planned trot under feedback."""
    rows = [
        each
        | {
            "limited": f"{each['active']} of {each['samples']}" if each["samples"] else "",
            "times": ", ".join(f"{time:.2g}" for time in each["milliseconds"]),
            "distance": f"{each['first']:.2g}, {each['last']:.2g}" if each["held"] else "",
        }
        for each in record["trials"]
    ]
    columns = {
        "law": "{law}",
        "perturbation [rad]": "{angle:.0e}",
        "trots that hold": "{held} of {starts}",
        "distance at start and end": "{distance}",
        "samples with limits": "{limited}",
        "time per sample, p50 and p99 [ms]": "{times}",
    }
    return make_record_table("Planned trot under feedback", rows, columns)
