"""The door's reference is designed in task space and made exact by simulation.

Before the event the foot follows quintics in (x, y, theta), [RS] (5.22)-(5.27). After it both
corners stay on the door, so two coordinates remain: s, the foot along the door, and q4. The thesis
prints the ante-event numbers again for that segment, (5.28), so it is designed here and starts from
the post-impact state. Inverse dynamics gives the feedforward. With three torques and two contact
forces for four equations, the share of the corners is a choice.

Past the thesis the reference also stops and releases with both corners at once (`ManoeuvrePlan`).
The approach is that of the published reference. On the door the foot slides along it. Without a
release it comes to a stop and sticks. With one the forces of both corners fall to zero together
while it slides, and the foot backs off while the door swings on. From the perturbed start of the
thesis every one of these simultaneous events splits in two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from hybridctl.robots.rrr_door import DoorParameters, contacts, robot
from scipy.interpolate import BPoly

from hybridctl import HybridSystem, Reference, extend, simulate
from hybridctl.base.checks import Array
from hybridctl.base.errors import InfeasibleReferenceError
from hybridctl.base.settings import Positive, Settings, UnitInterval
from hybridctl.control.reference import Feedforward, PhantomFeedforward
from hybridctl.hybrid import History
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics import ContactDynamics
from hybridctl.mechanics.contact_law.law import SLIPS

OPEN = ("open", "open")
CLOSED = ("closed", "closed")
IMPACT_TIME, FINAL_TIME = 1.0, 2.0


class JointState(NamedTuple):
    """A motion of the joints at one time.

    Attributes:
        position: Angles (4,), rad.
        velocity: Rates (4,), rad/s.
        acceleration: Accelerations (4,), rad/s^2.
    """

    position: Array
    velocity: Array
    acceleration: Array


TaskMotion: TypeAlias = Callable[[float], tuple[Array, Array, Array]]
JointMotion: TypeAlias = Callable[[float], JointState]
Plan: TypeAlias = Callable[[History], Feedforward]


@dataclass(frozen=True)
class Design(Settings):
    """The numbers of the reference; ends of a quintic are (position, velocity, acceleration).

    Positions are in m or rad. The ante-event ends are those of [RS] (5.26) and the extension ends
    those of (5.27), which leaves the duration of the extension open. The post-event ends are not
    published and are chosen here.

    Attributes:
        start_x: Start of the foot in x.
        start_y: Start of the foot in y.
        start_angle: Start of the foot's angle.
        impact_x: Impact of the foot in x.
        impact_y: Impact of the foot in y.
        impact_angle: Impact of the foot's angle.
        extension_x: End of the extension past the impact in x.
        extension_y: End of the extension past the impact in y.
        extension_angle: End of the extension past the impact of the foot's angle.
        extension: Duration of the extension, s.
        slide_acceleration: Acceleration along the door after the impact, m/s^2.
        door_acceleration: Acceleration of the door after the impact, rad/s^2.
        final_slide: End of the foot along the door.
        final_door: End of the door's angle.
        corner_2_share: Share of the contact force that corner 2 bears.
    """

    start_x: tuple[float, float, float] = (0.650, 0.0, 0.0)
    start_y: tuple[float, float, float] = (0.0, 0.0, 0.0)
    start_angle: tuple[float, float, float] = (np.pi / 5.0, 0.0, 0.0)
    impact_x: tuple[float, float, float] = (0.433, -0.250, -0.700)
    impact_y: tuple[float, float, float] = (0.280, 0.350, 2.000)
    impact_angle: tuple[float, float, float] = (np.pi / 2.0, 0.0, 0.0)
    extension_x: tuple[float, float, float] = (0.353, -0.580, -0.700)
    extension_y: tuple[float, float, float] = (0.400, 0.830, 2.000)
    extension_angle: tuple[float, float, float] = (np.pi / 2.0, 0.0, 0.0)
    extension: Positive = 0.2
    slide_acceleration: float = 0.0
    door_acceleration: float = 0.0
    final_slide: tuple[float, float, float] = (0.45, 0.0, 0.0)
    final_door: tuple[float, float, float] = (0.33, 0.35, 0.0)
    corner_2_share: UnitInterval = 0.5


@dataclass(frozen=True)
class ArcByArc:
    """The policy of a feedforward that is planned for each arc.

    Attributes:
        plan: Returns the feedforward of an arc from the history that led to it.
    """

    plan: Plan

    def law(self, history: History) -> InputLaw:
        """Return the feedforward of the arc, a function of time alone."""
        torque = self.plan(history)
        return lambda t, x: torque(t)


@dataclass(frozen=True)
class DoorPlan(ABC):
    """A plan of torques: those of the approach, and those of each arc after an event.

    Attributes:
        end: End of the reference, s.
        parameters: Parameters of arm and door.
        design: Numbers of the reference.
    """

    end: ClassVar[float]
    parameters: DoorParameters
    design: Design

    @abstractmethod
    def plan_after_event(self, history: History) -> Feedforward:
        """Return the torques of an arc that begins with an event.

        Raises:
            InfeasibleReferenceError: The events are not those that were planned.
        """

    def __call__(self, history: History) -> Feedforward:
        """Return the torques of the arc that begins with this history."""
        if history.events:
            return self.plan_after_event(history)
        return self.compute_torques(make_approach(self.design))

    def compute_torques(
        self,
        motion: TaskMotion,
        door: BPoly | None = None,
        corner_2_share: float | None = None,
        sliding: float = 0.0,
    ) -> Feedforward:
        """Return the torques of a motion of foot and door.

        Args:
            motion: Motion of the foot.
            door: Angle of the door, rad; None where the door rests.
            corner_2_share: See `solve_inverse_dynamics`.
            sliding: See `solve_inverse_dynamics`.
        """
        joints = convert_to_joints(self.parameters, motion, door)
        return solve_inverse_dynamics(self.dynamics, joints, corner_2_share, sliding)

    @cached_property
    def dynamics(self) -> ContactDynamics:
        """The dynamics of arm and door."""
        return ContactDynamics(robot(self.parameters), contacts(self.parameters))


class ImpactPlan(DoorPlan):
    """The published plan: an impact with both corners, which then stay on the door."""

    end = FINAL_TIME

    def plan_after_event(self, history: History) -> Feedforward:
        """Return the torques from the impact on.

        Raises:
            InfeasibleReferenceError: The first event does not close both corners, or there is
                another event.
        """
        if history.mode != CLOSED or len(history.events) > 1:
            raise InfeasibleReferenceError(
                f"the reference must go from {OPEN} to {CLOSED} at once and stay there, but at "
                f"t = {history.time:.6g} s it enters {history.mode}"
            )
        q, v = history.state[:4], history.state[4:]
        slide = compute_slide(self.parameters, q, v, np.zeros(4))[:2]
        d = self.design
        span = [history.time, self.end]
        s = make_quintic(span, [(*slide, d.slide_acceleration), d.final_slide])
        q4 = make_quintic(span, [(q[3], v[3], d.door_acceleration), d.final_door])
        return self.compute_torques(make_slide(self.parameters, s, q4), q4, d.corner_2_share)


@dataclass(frozen=True)
class Manoeuvre:
    """The motion of the foot on the door.

    Without a release the foot stops on the door, sticks, and moves the door. With one it leaves the
    door, and backs off.

    Attributes:
        stop_time: Time at which the foot stops, s.
        stop_slide: Its place along the door there, m.
        stop_deceleration: Its deceleration before, m/s^2.
        final_door: Angle of the door at the end, rad.
        final_rate: Rate of the door at the end, rad/s.
        release_time: Time of the release, s.
        release_slide: Place of the foot along the door there, m.
        release_slide_rate: Its rate along the door there, m/s.
        release_door: Angle of the door there, rad.
        release_rate: Rate of the door there, rad/s.
        retreat: Distance by which the foot backs off, m.
        final_time: Time at the end, s.
    """

    stop_time: float = 1.4
    stop_slide: float = 0.455
    stop_deceleration: float = 1.0
    final_door: float = 0.33
    final_rate: float = 0.35
    release_time: float = 1.6
    release_slide: float = 0.40
    release_slide_rate: float = -0.1
    release_door: float = 0.25
    release_rate: float = 0.4
    retreat: float = 0.12
    final_time: float = 2.2


@dataclass(frozen=True)
class ManoeuvrePlan(DoorPlan):
    """A plan of the manoeuvre's torques, from the state in which each arc begins.

    Attributes:
        release: Whether the foot lets go of the door.
    """

    end = Manoeuvre.final_time
    release: bool

    def plan_after_event(self, history: History) -> Feedforward:
        """Return the torques on the door, or back from it once both corners are open.

        Raises:
            InfeasibleReferenceError: The corners are in different modes.
        """
        modes = get_contact_modes(history.mode)
        if modes == OPEN:
            return self._plan_retreat(history)
        if "open" in modes or len(set(modes)) > 1:
            raise InfeasibleReferenceError(
                f"the reference must touch, stop and release with both corners at once, but at "
                f"t = {history.time:.6g} s it enters {modes}"
            )
        return self._plan_slide(history, SLIPS.get(modes[0], 0.0))

    def _plan_slide(self, history: History, sliding: float) -> Feedforward:
        """Return the torques along the door, to the release or to a stop.

        Args:
            history: History whose state the motion begins with.
            sliding: Sign of the sliding velocity; 0 where the foot sticks and stays in its place.
        """
        m, d, q, v = Manoeuvre(), self.design, history.state[:4], history.state[4:]
        s, ds, _ = compute_slide(self.parameters, q, v, np.zeros(4))
        start, door = history.time, (q[3], v[3], d.door_acceleration)
        if self.release:
            end = m.release_time
            slide = make_quintic(
                [start, end],
                [(s, ds, d.slide_acceleration), (m.release_slide, m.release_slide_rate, 0.0)],
            )
            free = self._accelerate_free_door(m.release_door, m.release_rate)
            swing = make_quintic([start, end], [door, (m.release_door, m.release_rate, free)])
        else:
            end = m.final_time
            swing = make_quintic([start, end], [door, (m.final_door, m.final_rate, 0.0)])
            if sliding:
                stop = (m.stop_slide, 0.0, -m.stop_deceleration * np.sign(ds))
                slide = make_quintic([start, m.stop_time, end], [(s, ds, 0.0), stop, stop])
            else:
                slide = make_quintic([start, end], [(s, 0.0, 0.0), (s, 0.0, 0.0)])
        motion = make_slide(self.parameters, slide, swing)
        return self.compute_torques(motion, swing, d.corner_2_share, sliding)

    def _accelerate_free_door(self, angle: float, rate: float) -> float:
        """Return the acceleration of a door that nothing touches, rad/s^2."""
        p = self.parameters
        return -(p.hinge_damping * rate + p.hinge_stiffness * angle) / p.door_inertia

    def _plan_retreat(self, history: History) -> Feedforward:
        """Return the torques that back off along the door's normal, from the foot's motion."""
        m, q, v = Manoeuvre(), history.state[:4], history.state[4:]
        u = history.events[-1].input_before
        a = self.dynamics.acceleration(q, v, u, OPEN).acceleration
        foot = compute_foot(self.parameters, q, v, a)
        away = foot.position - 1j * np.exp(1j * q[3]) * m.retreat
        angle = (float(q[:3].sum()), float(v[:3].sum()), float(a[:3].sum()))
        span = [history.time, m.final_time]
        z, dz, ddz = foot
        ends = [
            ((z.real, dz.real, ddz.real), away.real),
            ((z.imag, dz.imag, ddz.imag), away.imag),
            (angle, angle[0]),
        ]
        curves = [make_quintic(span, [start, (end, 0.0, 0.0)]) for start, end in ends]
        return self.compute_torques(lambda t: combine_curves(curves, t))


def get_contact_modes(mode: ModeKey) -> tuple[str, ...]:
    """Return the modes of the contacts, which are the mode key of a contact system.

    Raises:
        InfeasibleReferenceError: The key is not a tuple.
    """
    if not isinstance(mode, tuple):
        raise InfeasibleReferenceError(f"mode {mode!r} is not a tuple of contact modes")
    return mode


def build(
    system: HybridSystem,
    parameters: DoorParameters,
    design: Design,
    plan: Callable[[DoorParameters, Design], DoorPlan] = ImpactPlan,
    *,
    phantom: PhantomFeedforward = "pushing",
    rtol: float = 1e-11,
    atol: float = 1e-11,
    progress: Callable[[float], None] | None = None,
) -> Reference:
    """Return the reference of a plan: simulated, with extended arcs and phantom arcs.

    Args:
        system: Arm and door.
        parameters: Their parameters.
        design: Numbers of the reference.
        plan: Returns the torques arc by arc.
        phantom: Feedforward on phantom arcs.
        rtol: Relative tolerance of the simulations.
        atol: Absolute tolerance of the simulations.
        progress: Called with the time that is reached, s.

    Raises:
        InfeasibleReferenceError: The foot cannot reach, misses the door, or does not go from event
            to event as planned.
    """
    planned = plan(parameters, design)
    start = np.concatenate(convert_to_joints(parameters, make_approach(design))(0.0)[:2])
    span, policy = (0.0, planned.end), ArcByArc(planned)
    nominal = simulate(system, OPEN, start, span, policy, rtol=rtol, atol=atol, progress=progress)
    if not nominal.events:
        raise InfeasibleReferenceError("the reference must hit the door, but misses it")
    begun = [
        History(arc.mode, arc.start, arc(arc.start), nominal.events[: arc.index])
        for arc in nominal.arcs
    ]
    return extend(
        system,
        nominal,
        before=design.extension,
        after=design.extension,
        feedforward=[planned(history) for history in begun],
        phantom=phantom,
        rtol=rtol,
        atol=atol,
    )


def find_impact_state(parameters: DoorParameters, design: Design) -> tuple[Array, Array]:
    """Return configuration and velocity (4,) as the design reaches the door, [RS] (5.26)."""
    q, v, _ = convert_to_joints(parameters, make_approach(design))(IMPACT_TIME)
    return q, v


def make_quintic(times: Sequence[float], values: Sequence[tuple[float, float, float]]) -> BPoly:
    """Return the quintics through (position, velocity, acceleration) at each time, [RS] (5.25)."""
    return BPoly.from_derivatives(times, values)


def combine_curves(curves: Sequence[BPoly], t: float) -> tuple[Array, Array, Array]:
    """Return position, velocity and acceleration of several curves at a time, (n,) each."""
    y, dy, ddy = (np.array([curve(t, nu) for curve in curves]) for nu in range(3))
    return y, dy, ddy


def make_approach(d: Design) -> TaskMotion:
    """Return the foot's motion before the event and past it, [RS] (5.26)-(5.27).

    After the extension the foot stays at its end.
    """
    times = [0.0, IMPACT_TIME, IMPACT_TIME + d.extension]
    curves = [
        make_quintic(times, values)
        for values in (
            (d.start_x, d.impact_x, d.extension_x),
            (d.start_y, d.impact_y, d.extension_y),
            (d.start_angle, d.impact_angle, d.extension_angle),
        )
    ]
    return lambda t: combine_curves(curves, min(t, times[-1]))


def make_slide(p: DoorParameters, slide: BPoly, door: BPoly) -> TaskMotion:
    """Return the motion of a foot that lies flat on the door; complex numbers rotate the plane.

    Args:
        p: Parameters of arm and door.
        slide: Place of the foot along the door, m.
        door: Angle of the door, rad.
    """
    hinge = complex(*p.hinge)

    def motion(t: float) -> tuple[Array, Array, Array]:
        s, ds, dds = (float(slide(t, nu)) for nu in range(3))
        q, dq, ddq = (float(door(t, nu)) for nu in range(3))
        arm = complex(s, -0.5 * p.door_thickness)
        turn = np.exp(1j * q)
        z = hinge + turn * arm
        dz = turn * (ds + 1j * dq * arm)
        ddz = turn * (dds + 2j * dq * ds + (1j * ddq - dq**2) * arm)
        return (
            np.array([z.real, z.imag, q + 0.5 * np.pi]),
            np.array([dz.real, dz.imag, dq]),
            np.array([ddz.real, ddz.imag, ddq]),
        )

    return motion


class PlaneMotion(NamedTuple):
    """A point of the plane, with x + i y for (x, y).

    Attributes:
        position: Position, m.
        velocity: Velocity, m/s.
        acceleration: Acceleration, m/s^2.
    """

    position: complex
    velocity: complex
    acceleration: complex


def compute_foot(p: DoorParameters, q: Array, v: Array, a: Array) -> PlaneMotion:
    """Return the motion of the end of the foot in the world, [RS] (5.9).

    Args:
        p: Parameters of arm and door.
        q: Joint angles (4,), rad.
        v: Joint rates (4,), rad/s.
        a: Joint accelerations (4,), rad/s^2.
    """
    links = np.array([p.upper_arm_length, p.forearm_length, p.foot_length])
    links = links * np.exp(1j * np.cumsum(q[:3]))
    spin, turn = np.cumsum(v[:3]), np.cumsum(a[:3])
    return PlaneMotion(
        complex(links.sum()), complex(1j * spin @ links), complex((1j * turn - spin**2) @ links)
    )


def compute_slide(p: DoorParameters, q: Array, v: Array, a: Array) -> tuple[float, float, float]:
    """Return s, the end of the foot along the door in the door's frame, and its derivatives.

    Args:
        p: Parameters of arm and door.
        q: Joint angles (4,), rad.
        v: Joint rates (4,), rad/s.
        a: Joint accelerations (4,), rad/s^2.
    """
    foot = compute_foot(p, q, v, a)
    back = np.exp(-1j * q[3])
    z = back * (foot.position - complex(*p.hinge))
    dz = back * foot.velocity - 1j * v[3] * z
    ddz = back * foot.acceleration - 2j * v[3] * dz - (1j * a[3] - v[3] ** 2) * z
    return float(z.real), float(dz.real), float(ddz.real)


def convert_to_joints(
    p: DoorParameters, task: TaskMotion, door: BPoly | None = None
) -> JointMotion:
    """Return the joint motion of a task-space motion, with the elbow at q2 > 0.

    Args:
        p: Parameters of arm and door.
        task: Motion of the foot.
        door: Angle of the door, rad; None where the door rests at 0.

    Returns:
        The motion. It raises `InfeasibleReferenceError` at a time at which the wrist is out of
        reach.
    """
    l1, l2, l3 = p.upper_arm_length, p.forearm_length, p.foot_length

    def motion(t: float) -> JointState:
        y, dy, ddy = task(t)
        wrist = complex(y[0], y[1]) - l3 * np.exp(1j * y[2])
        cosine = (abs(wrist) ** 2 - l1**2 - l2**2) / (2.0 * l1 * l2)
        if abs(cosine) >= 1.0:
            raise InfeasibleReferenceError(
                f"the wrist is {abs(wrist):.4g} m from the shoulder at t = {t:.4g} s, out of "
                f"reach of links of {l1} and {l2} m"
            )
        q2 = np.arccos(cosine)
        q1 = np.angle(wrist) - np.angle(l1 + l2 * np.exp(1j * q2))
        q = np.array([q1, q2, y[2] - q1 - q2])
        links = np.array([l1, l2, l3]) * np.exp(1j * np.cumsum(q))
        tips = np.cumsum(links[::-1])[::-1]
        jacobian = np.array([(1j * tips).real, (1j * tips).imag, np.ones(3)])
        v = np.linalg.solve(jacobian, dy)
        drift = -(np.cumsum(v) ** 2) @ links
        a = np.linalg.solve(jacobian, ddy - np.array([drift.real, drift.imag, 0.0]))
        doors = [0.0] * 3 if door is None else [float(door(t, nu)) for nu in range(3)]
        full = [np.append(part, d) for part, d in zip((q, v, a), doors, strict=True)]
        return JointState(*full)

    return motion


def solve_inverse_dynamics(
    dynamics: ContactDynamics,
    motion: JointMotion,
    corner_2_share: float | None,
    sliding: float = 0.0,
) -> Feedforward:
    """Return the torques of a motion in which the corners move the door, or do not touch it.

    The hinge row of the equations of motion gives one equation for two contact forces.

    Args:
        dynamics: Dynamics of arm and door.
        motion: Joint motion.
        corner_2_share: Share of the sum of both forces that corner 2 bears; None where the corners
            do not touch the door.
        sliding: Sign of the sliding velocity, against which friction acts; 0 where the corners
            stick without a tangential force.

    Returns:
        The torques of the arm (3,) over time, N m.
    """
    model = dynamics.robot
    friction = sliding * dynamics.friction[:, None]

    def torque(t: float) -> Array:
        q, v, a = motion(t)
        tau = model.mass_matrix(q) @ a + model.bias(q, v)
        if corner_2_share is not None:
            rows = dynamics.gap_jacobian(q) - friction * dynamics.tangent_jacobian(q)[:, 0]
            w = np.array([1.0 - corner_2_share, corner_2_share]) @ rows
            tau = tau - w * (tau[3] / w[3])
        u: Array = tau[:3]
        return u

    return torque
