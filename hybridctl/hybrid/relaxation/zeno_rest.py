r"""Rest past Zeno: the rest that relaxations tend to where events accumulate, as a mode of its own.

A relaxation of a finite width goes on bouncing with speeds of order sqrt(epsilon), thousands of
times a second, or is caught in its strip for a while when the force changes its sign. What it tends
to is the trajectory, [Relax] definition 7.5: the state stays on the guard without speed across it,
g = 0 and dg/dt = 0, under the combination of both fields that keeps it there,

.. math:: \dot x = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2},

as in `regions`, but with the second derivatives :math:`a_i` of the guard under the field of the
mode and the next one's pulled back, since the first ones vanish. It ends where a_1 is no longer
negative: the force of the guard has vanished. Behind a plastic reset, which has no inverse, the
field is :math:`D_x R f_1`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hybridctl.checks import Array, instance
from hybridctl.errors import SystemDefinitionError
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    Held,
    Jump,
    Mode,
    ModeKey,
    ModeModel,
    Outgoing,
    Reset,
)
from hybridctl.hybrid.relaxation.regions import Beside, GuardModes, OnGuard, slides
from hybridctl.hybrid.relaxation.strip import Strips, differences
from hybridctl.hybrid.system import HybridSystem

RESTING = "resting"
_HELD = 1e-8  # of a guard and of its rate, in their own units


def past_zeno(system: HybridSystem) -> PastZeno:
    """The system with a mode (RESTING, key, name) for rest on guard `name` of mode `key`.

    `simulate(past_zeno(system), ..., on_zeno="rest")` is `simulate(system, ..., on_zeno="relax")`;
    with the system at hand, a run can be continued and linearized. Modes are as they are; rest
    begins where events of one guard accumulate, and ends where the fields let go.

    Raises `InputError` for what is no system, and `SystemDefinitionError` in a run where events of
    guards accumulate for which no strip is defined, see `relax`, or that meet.
    """
    return PastZeno(Strips(instance("system", system, HybridSystem), 0.0))


class PastZeno(GuardModes):
    """A system that comes to rest where its events accumulate; see `past_zeno`."""

    ends = ("released",)

    def motion(self, key: ModeKey) -> _RestingMode | None:
        """The rest on a guard; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind == RESTING:
                return _RestingMode(self.strip(source, name))
        return None

    def plain(self, key: ModeKey) -> ModeModel:
        """A mode of the system as it is."""
        return self.inner.mode(key)

    def ways(self, key: ModeKey) -> Outgoing:
        """The edges of the system, and those to rest."""
        return replace(self.inner.outgoing(key), rest=partial(self._rest, key))

    def _rest(self, key: ModeKey, fired: tuple[str, ...]) -> Edge:
        """The way to rest on the guard whose events accumulate."""
        own = [name for name in self.inner.outgoing(key).guards.names if name in fired]
        if len(own) != 1:
            raise SystemDefinitionError(
                f"events of guards {fired} accumulate in mode {key!r}; rest is defined on one "
                "guard of a mode only, and these meet"
            )
        target = (RESTING, key, own[0])
        resting = _RestingMode(self.strip(key, own[0]))
        return Edge(Reset(partial(resting.settled, target)))


class _RestingMode(OnGuard):
    """Rest on the guard of a strip of no width: the field, what it holds, and its end."""

    @property
    def is_plastic(self) -> bool:
        """Whether the reset has no inverse."""
        return self.strip.size > self.strip.n

    def mode(self, key: ModeKey) -> Mode:
        """The mode of this rest."""
        names = (self.strip.guard.name, f"rate of {self.strip.guard.name}")
        held = Held(names, self._residuals, np.full(2, _HELD), ("", "1/s"))
        return self.holding(key, held)

    def settled(self, key: ModeKey, t: float, x: Array, u: Array) -> Jump:
        """The state at rest, from one of the mode where events of the guard accumulate."""
        x = self.project(x)
        first, second = self._force(t, x, u), np.inf
        if not self.is_plastic:
            second = self.sides(t, x, u).speeds[1]
        if not first < 0.0 or not (self.strip.holds or (slides(self.strip) and second > 0.0)):
            raise SystemDefinitionError(
                f"events of guard {self.strip.guard.name!r} of mode {self.strip.source.key!r} "
                f"accumulate at t = {t:.9g} s, x = {x.tolist()}, but the fields do not push onto "
                f"it from both sides: its second derivatives are {first:.6g} and {second:.6g}"
            )
        return Jump(x, key)

    def field(self, t: float, x: Array, u: Array) -> Array:
        """The field that stays at rest."""
        if self.is_plastic:
            own = self.strip.source.field(t, x, u)
            return np.asarray(self.strip.chart.at(t, x, u).reset @ own)
        return super().field(t, x, u)

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """Derivatives of the field; second ones that it contains by central differences."""
        if not self.is_plastic:
            return super().jacobian(t, x, u)
        own, by = self.strip.source.field(t, x, u), self.strip.source.jacobian(t, x, u)
        reset = self.strip.chart.at(t, x, u).reset
        turns = differences(lambda y: self.strip.chart.at(t, y, u).reset @ own, x)
        return FieldJacobian(reset @ by.state + turns, reset @ by.input)

    def across(self, t: float, x: Array, u: Array) -> tuple[float, Array]:
        """Zero, and the derivative (n,) of dg/dt by the state."""
        source, slope = self.strip.source, self.strip.guard.derivative(t, x, u)[1]
        bent = np.asarray(slope @ source.jacobian(t, x, u).state)
        if self.strip.chart.affine:
            return 0.0, bent
        turns = differences(lambda y: self.strip.guard.derivative(t, y, u)[1], x)
        return 0.0, bent + source.field(t, x, u) @ turns

    def turning(self, t: float, x: Array, u: Array) -> tuple[Array, Array]:
        """Derivatives of that by state and input."""
        by_state = differences(lambda y: self.across(t, y, u)[1], x)
        return by_state, differences(lambda v: self.across(t, x, v)[1], u)

    def _force(self, t: float, x: Array, u: Array) -> float:
        """The second derivative a_1 of the guard under the field of the mode."""
        return float(self.across(t, x, u)[1] @ self.strip.source.field(t, x, u))

    def outputs(self, t: float, x: Array, u: Array) -> dict[str, Array]:
        """What the guard has to make up for: -a_1, as a force does."""
        return {"force": np.array([-self._force(t, x, u)])}

    def project(self, x: Array) -> Array:
        """The state on the guard, at rest: moved along what the reset changes."""
        strip, u = self.strip, np.zeros(self.strip.source.nu)
        x = strip.guard.foot(0.0, x, u)
        across, local = self.across(0.0, x, u)[1], strip.chart.at(0.0, x, u)
        change = local.reset @ across - across if local.reset.shape[0] == strip.n else -across
        speed = float(across @ change)
        rate = self._rate(0.0, x, u)
        return x if speed == 0.0 else x - change * (rate / speed)

    def guards(self) -> GuardSet:
        """The end of the rest, and the other guards of the mode."""
        return Beside(self.strip.guard, PastZeno.ends, self._released, self._released_by).guards()

    def _released(self, t: float, x: Array, u: Array) -> Array:
        return np.array([-self._force(t, x, u)])

    def _released_by(self, t: float, x: Array, u: Array) -> GuardJacobian:
        """Derivatives of that; the one by time is taken as zero."""
        source, d = self.strip.source, self.strip.source.jacobian(t, x, u)
        by_x, by_u = self.speed_jacobian(source.field(t, x, u), (d.state, d.input), t, x, u)
        return GuardJacobian(np.zeros(1), -by_x[None], -by_u[None])

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """The edge out of the rest, into the mode itself; other guards lead as they do there."""
        return Edge(Reset.identity(), self.strip.source.key) if len(fired) == 1 else None

    def _rate(self, t: float, x: Array, u: Array) -> float:
        """dg/dt under the field of the mode."""
        rate, slope = self.strip.guard.derivative(t, x, u)
        return rate + float(slope @ self.strip.source.field(t, x, u))

    def _residuals(self, x: Array) -> Array:
        u = np.zeros(self.strip.source.nu)
        return np.array([self.strip.guard.value(0.0, x, u), self._rate(0.0, x, u)])
