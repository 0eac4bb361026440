"""The door experiment past the thesis: friction at the corners, and a foot that lets go again.

The approach is that of the published reference. On the door the foot slides along it; without a
release it comes to a stop and sticks, with one the forces of both corners fall to zero together
while it slides, and the foot backs off while the door swings on. From the perturbed start of the
thesis every one of these simultaneous events splits in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hybridctl.experiments.rrr_door.reference import (
    OPEN,
    DoorPlan,
    foot_motion,
    on_the_door,
    quintic,
    slide_motion,
)

from hybridctl.base.checks import Array
from hybridctl.base.errors import InfeasibleReferenceError
from hybridctl.control.reference import Feedforward
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History
from hybridctl.mechanics.contact_law.law import SLIPS


@dataclass(frozen=True)
class Manoeuvre:
    """What the foot does on the door: s in m along it, door angles in rad, times in s.

    Without a release it stops at `stop_time` at `stop_slide`, sticks, and moves the door to
    `final_door`. With one it leaves the door at `release_time`, at angle and rate
    `release_door`, and backs off by `retreat` m until `final_time`.
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
    """Torques of the manoeuvre, planned from the state in which each arc begins."""

    end = Manoeuvre.final_time
    release: bool

    def after(self, history: History) -> Feedforward:
        """The torques on the door, and back from it."""
        modes = contact_modes(history.mode)
        if modes == OPEN:
            return self._retreat(history)
        if "open" in modes or len(set(modes)) > 1:
            raise InfeasibleReferenceError(
                f"the reference must touch, stop and release with both corners at once, but at "
                f"t = {history.time:.6g} s it enters {modes}"
            )
        return self._on_the_door(history, SLIPS.get(modes[0], 0.0))

    def _on_the_door(self, history: History, sliding: float) -> Feedforward:
        """The motion along the door, to the release or to a stop; sticking, with the foot held."""
        m, d, q, v = Manoeuvre(), self.design, history.state[:4], history.state[4:]
        s, ds, _ = slide_motion(self.parameters, q, v, np.zeros(4))
        start, door = history.time, (q[3], v[3], d.door_acceleration)
        if self.release:
            end = m.release_time
            slide = quintic(
                [start, end],
                [(s, ds, d.slide_acceleration), (m.release_slide, m.release_slide_rate, 0.0)],
            )
            free = self._free_door(m.release_door, m.release_rate)
            swing = quintic([start, end], [door, (m.release_door, m.release_rate, free)])
        else:
            end = m.final_time
            swing = quintic([start, end], [door, (m.final_door, m.final_rate, 0.0)])
            if sliding:
                stop = (m.stop_slide, 0.0, -m.stop_deceleration * np.sign(ds))
                slide = quintic([start, m.stop_time, end], [(s, ds, 0.0), stop, stop])
            else:
                slide = quintic([start, end], [(s, 0.0, 0.0), (s, 0.0, 0.0)])
        motion = on_the_door(self.parameters, slide, swing)
        return self.torques(motion, swing, d.corner_2_share, sliding)

    def _free_door(self, angle: float, rate: float) -> float:
        """Acceleration of a door that nothing touches."""
        p = self.parameters
        return -(p.hinge_damping * rate + p.hinge_stiffness * angle) / p.door_inertia

    def _retreat(self, history: History) -> Feedforward:
        """Back off along the door's normal, from the motion of the foot at the release."""
        m, q, v = Manoeuvre(), history.state[:4], history.state[4:]
        u = history.events[-1].input_before
        a = self.dynamics.acceleration(q, v, u, OPEN).acceleration
        foot = foot_motion(self.parameters, q, v, a)
        away = foot.position - 1j * np.exp(1j * q[3]) * m.retreat
        angle = (float(q[:3].sum()), float(v[:3].sum()), float(a[:3].sum()))
        span = [history.time, m.final_time]
        curves = [
            quintic(span, [(foot.position.real, foot.velocity.real, foot.acceleration.real),
                           (away.real, 0.0, 0.0)]),
            quintic(span, [(foot.position.imag, foot.velocity.imag, foot.acceleration.imag),
                           (away.imag, 0.0, 0.0)]),
            quintic(span, [angle, (angle[0], 0.0, 0.0)]),
        ]  # fmt: skip

        def task(t: float) -> tuple[Array, Array, Array]:
            y, dy, ddy = (np.array([curve(t, nu) for curve in curves]) for nu in range(3))
            return y, dy, ddy

        return self.torques(task)


def contact_modes(mode: ModeKey) -> tuple[str, ...]:
    """The mode key of a contact system, which is a tuple of the modes of its contacts."""
    if not isinstance(mode, tuple):
        raise InfeasibleReferenceError(f"mode {mode!r} is not a tuple of contact modes")
    return mode
