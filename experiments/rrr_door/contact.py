"""The door's reference past the thesis also stops and releases with both corners at once.

The approach is that of the published reference. On the door the foot slides along it. Without a
release it comes to a stop and sticks. With one the forces of both corners fall to zero together
while it slides, and the foot backs off while the door swings on. From the perturbed start of the
thesis every one of these simultaneous events splits in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hybridctl.experiments.rrr_door.reference import (
    OPEN,
    DoorPlan,
    combine_curves,
    compute_foot,
    compute_slide,
    make_quintic,
    make_slide,
)

from hybridctl.base.errors import InfeasibleReferenceError
from hybridctl.control.reference import Feedforward
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History
from hybridctl.mechanics.contact_law.law import SLIPS


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
