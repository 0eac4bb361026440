"""The reference of the RRR-door experiment: designed in task space, made exact by simulation.

Before the event the foot follows quintics in (x, y, theta), [RS] (5.22)-(5.27). After it both
corners stay on the door, so two coordinates remain: s, the foot along the door, and q4. (The
thesis prints the ante-event numbers again for that segment, (5.28), so it is designed here: it
starts from the post-impact state.) Inverse dynamics gives the feedforward; with three torques
and two contact forces for four equations, the share of the corners is a choice.
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

from hybridctl.base.checks import Array
from hybridctl.base.errors import InfeasibleReferenceError
from hybridctl.base.settings import Positive, Settings, UnitInterval
from hybridctl.control.reference import Feedforward, PhantomFeedforward, Reference, extend
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.modes.dynamics import ContactDynamics

OPEN = ("open", "open")
CLOSED = ("closed", "closed")
IMPACT_TIME, FINAL_TIME = 1.0, 2.0


class JointState(NamedTuple):
    """Joint positions, velocities and accelerations, (4,) each."""

    position: Array
    velocity: Array
    acceleration: Array


TaskMotion: TypeAlias = Callable[[float], tuple[Array, Array, Array]]
JointMotion: TypeAlias = Callable[[float], JointState]
Plan: TypeAlias = Callable[[History], Feedforward]


@dataclass(frozen=True)
class Design(Settings):
    """The numbers of the reference; ends of a quintic are (position, velocity, acceleration).

    The ante-event ends are those of [RS] (5.26) and the extension ends those of (5.27), which
    leaves the duration of the extension open. The post-event ones are ours.
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
    """The policy of a feedforward that is planned for each arc from what has led to it."""

    plan: Plan

    def law(self, history: History) -> InputLaw:
        """Feedforward of the arc, as a function of time alone."""
        torque = self.plan(history)
        return lambda t, x: torque(t)


@dataclass(frozen=True)
class DoorPlan(ABC):
    """Torques of the approach, and those that are planned of what has happened from then on.

    end: of the reference, s.
    """

    end: ClassVar[float]
    parameters: DoorParameters
    design: Design

    @abstractmethod
    def after(self, history: History) -> Feedforward:
        """The torques of an arc that begins with an event.

        Raises `InfeasibleReferenceError` where the events are not those that were planned.
        """

    def __call__(self, history: History) -> Feedforward:
        """The torques of the arc that begins with this history."""
        if history.events:
            return self.after(history)
        return self.torques(approach_motion(self.design))

    def torques(
        self,
        motion: TaskMotion,
        door: BPoly | None = None,
        corner_2_share: float | None = None,
        sliding: float = 0.0,
    ) -> Feedforward:
        """Torques of a motion of the foot, and of the door, see `inverse_dynamics`."""
        joints = in_joints(self.parameters, motion, door)
        return inverse_dynamics(self.dynamics, joints, corner_2_share, sliding)

    @cached_property
    def dynamics(self) -> ContactDynamics:
        """The dynamics of arm and door."""
        return ContactDynamics(robot(self.parameters), contacts(self.parameters))


class ImpactPlan(DoorPlan):
    """Torques up to the impact, and from there on with both corners on the door."""

    end = FINAL_TIME

    def after(self, history: History) -> Feedforward:
        """The torques from the impact on."""
        if history.mode != CLOSED or len(history.events) > 1:
            raise InfeasibleReferenceError(
                f"the reference must go from {OPEN} to {CLOSED} at once and stay there, but at "
                f"t = {history.time:.6g} s it enters {history.mode}"
            )
        q, v = history.state[:4], history.state[4:]
        slide = slide_motion(self.parameters, q, v, np.zeros(4))[:2]
        d = self.design
        s = quintic([history.time, self.end], [(*slide, d.slide_acceleration), d.final_slide])
        q4 = quintic([history.time, self.end], [(q[3], v[3], d.door_acceleration), d.final_door])
        return self.torques(on_the_door(self.parameters, s, q4), q4, d.corner_2_share)


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
    """Simulate what a plan leads to, extend its arcs, and add the phantom arcs.

    Raises `InfeasibleReferenceError` where the foot cannot reach, misses the door, or does not go
    from event to event as planned.
    """
    planned = plan(parameters, design)
    q, v, _ = in_joints(parameters, approach_motion(design))(0.0)
    nominal = simulate(
        system,
        OPEN,
        np.concatenate([q, v]),
        (0.0, planned.end),
        ArcByArc(planned),
        rtol=rtol,
        atol=atol,
        progress=progress,
    )
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


def impact_state(parameters: DoorParameters, design: Design) -> tuple[Array, Array]:
    """Configuration and velocity (4,) with which the design reaches the door, [RS] (5.26)."""
    q, v, _ = in_joints(parameters, approach_motion(design))(IMPACT_TIME)
    return q, v


def quintic(times: Sequence[float], values: Sequence[tuple[float, float, float]]) -> BPoly:
    """Piecewise quintic through (position, velocity, acceleration) at each time, [RS] (5.25)."""
    return BPoly.from_derivatives(times, values)


def approach_motion(d: Design) -> TaskMotion:
    """The foot before the event and past it, [RS] (5.26)-(5.27); the end is held."""
    times = [0.0, IMPACT_TIME, IMPACT_TIME + d.extension]
    curves = [
        quintic(times, values)
        for values in (
            (d.start_x, d.impact_x, d.extension_x),
            (d.start_y, d.impact_y, d.extension_y),
            (d.start_angle, d.impact_angle, d.extension_angle),
        )
    ]

    def motion(t: float) -> tuple[Array, Array, Array]:
        t = min(t, times[-1])
        y, dy, ddy = (np.array([curve(t, nu) for curve in curves]) for nu in range(3))
        return y, dy, ddy

    return motion


def on_the_door(p: DoorParameters, slide: BPoly, door: BPoly) -> TaskMotion:
    """The foot flat on the door: s along it, q4 its angle; complex numbers rotate the plane."""
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
    """A point of the plane as a complex number, with its velocity and acceleration."""

    position: complex
    velocity: complex
    acceleration: complex


def foot_motion(p: DoorParameters, q: Array, v: Array, a: Array) -> PlaneMotion:
    """The end of the foot in the world, [RS] (5.9)."""
    links = np.array([p.upper_arm_length, p.forearm_length, p.foot_length])
    links = links * np.exp(1j * np.cumsum(q[:3]))
    spin, turn = np.cumsum(v[:3]), np.cumsum(a[:3])
    return PlaneMotion(
        complex(links.sum()), complex(1j * spin @ links), complex((1j * turn - spin**2) @ links)
    )


def slide_motion(p: DoorParameters, q: Array, v: Array, a: Array) -> tuple[float, float, float]:
    """The end of the foot along the door, in the door's frame: s and its derivatives."""
    foot = foot_motion(p, q, v, a)
    back = np.exp(-1j * q[3])
    z = back * (foot.position - complex(*p.hinge))
    dz = back * foot.velocity - 1j * v[3] * z
    ddz = back * foot.acceleration - 2j * v[3] * dz - (1j * a[3] - v[3] ** 2) * z
    return float(z.real), float(dz.real), float(ddz.real)


def in_joints(p: DoorParameters, task: TaskMotion, door: BPoly | None = None) -> JointMotion:
    """Joint motion of a task-space motion with the elbow at q2 > 0; the door rests without one."""
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


def inverse_dynamics(
    dynamics: ContactDynamics,
    motion: JointMotion,
    corner_2_share: float | None,
    sliding: float = 0.0,
) -> Feedforward:
    """Torques of a motion; with a share the door is moved by the corners, else it is let be.

    The hinge row of the equations of motion gives one equation for two contact forces; corner 2
    bears `corner_2_share` of their sum. `sliding` is the sign of the sliding velocity, against
    which friction acts; 0 where the corners stick without pulling sideways.
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
