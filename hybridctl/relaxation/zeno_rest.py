r"""Rest past Zeno: the rest that relaxations tend to where events accumulate, as a mode of its own.

A relaxation of a finite width goes on bouncing with speeds of order sqrt(epsilon), thousands of
times a second, or is caught in its strip for a while when the force changes its sign. What it tends
to is the trajectory, [Relax] definition 7.5: the state stays on the guard without speed across it,
g = 0 and dg/dt = 0, under the combination of both fields that keeps it there,

.. math:: \dot x = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2},

as in
`guard_motion`, but with the second derivatives :math:`a_i` of the guard under the field of the
mode and the next one's pulled back, since the first ones vanish. It ends where a_1 is no longer
negative: the force of the guard has vanished. Behind a plastic reset, which has no inverse, the
field is :math:`D_x R f_1`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hybridctl.base.checks import Array, check_instance
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    Held,
    Jump,
    ModeKey,
    ModeModel,
    Outgoing,
    Reset,
)
from hybridctl.hybrid.system import HybridSystem
from hybridctl.relaxation.guard_motion import GuardMotionSystem, GuardPoint, MotionOnGuard
from hybridctl.relaxation.strip import Strip, Strips, differentiate_numerically

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
    return PastZeno(Strips(check_instance("system", system, HybridSystem), 0.0))


class PastZeno(GuardMotionSystem):
    """A system that comes to rest where its events accumulate; see `past_zeno`."""

    exit_names = ("released",)

    def make_motion(self, key: ModeKey) -> _RestingMode | None:
        """The rest on a guard; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind == RESTING:
                return _RestingMode(key, self.get_strip(source, name))
        return None

    def inner_mode(self, key: ModeKey) -> ModeModel:
        """A mode of the system as it is."""
        return self.inner.mode(key)

    def outgoing_edges(self, key: ModeKey) -> Outgoing:
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
        return Edge(
            Reset(_RestingMode((RESTING, key, own[0]), self.get_strip(key, own[0])).settled)
        )


class _RestingMode(MotionOnGuard):
    """Rest on the guard of a strip of no width: the field, what it holds, and its end."""

    exit_names = PastZeno.exit_names

    def __init__(self, key: ModeKey, strip: Strip) -> None:
        super().__init__(key, strip)
        names = (strip.guard.name, f"rate of {strip.guard.name}")
        self.held = Held(names, self._residuals, np.full(2, _HELD), ("", "1/s"))

    @property
    def is_plastic(self) -> bool:
        """Whether the reset has no inverse."""
        return self.strip.ny > self.strip.nx

    def settled(self, t: float, x: Array, u: Array) -> Jump:
        """The state at rest, from one of the mode where events of the guard accumulate."""
        x = self.project_state(x)
        point = self.calc(t, x, u)
        first, second = _force(point), np.inf
        if not self.is_plastic:
            second = point.side_fields.guard_rates[1]
        if not first < 0.0 or not (
            self.strip.can_hold_auxiliary or (self.strip.has_two_sides and second > 0.0)
        ):
            raise SystemDefinitionError(
                f"events of guard {self.strip.guard.name!r} of mode {self.strip.source.key!r} "
                f"accumulate at t = {t:.9g} s, x = {x.tolist()}, but the fields do not push onto "
                f"it from both sides: its second derivatives are {first:.6g} and {second:.6g}"
            )
        return Jump(x, self.key)

    def field_at(self, point: GuardPoint) -> Array:
        """The field that stays at rest."""
        if self.is_plastic:
            return np.asarray(point.gluing.reset_jacobian @ point.source_point.field)
        return super().field_at(point)

    def field_jacobian_at(self, point: GuardPoint) -> FieldJacobian:
        """Derivatives of the field; second ones that it contains by central differences."""
        if not self.is_plastic:
            return super().field_jacobian_at(point)
        own, by, reset = (
            point.source_point.field,
            point.source_point.field_jacobian,
            point.gluing.reset_jacobian,
        )
        turns = differentiate_numerically(
            lambda y: self.strip.gluing.evaluate(point.t, y, point.u).reset_jacobian @ own, point.x
        )
        return FieldJacobian(reset @ by.state + turns, reset @ by.input)

    def rate_form_at(self, point: GuardPoint) -> tuple[float, Array]:
        """Zero, and the derivative (n,) of dg/dt by the state."""
        t, x, u = point.t, point.x, point.u
        guard, source = self.strip.guard, point.source_point
        bent = np.asarray(guard.differentiate(t, x, u)[1] @ source.field_jacobian.state)
        if self.strip.gluing.is_affine:
            return 0.0, bent
        turns = differentiate_numerically(lambda y: guard.differentiate(t, y, u)[1], x)
        return 0.0, bent + source.field @ turns

    def rate_form_jacobian_at(self, point: GuardPoint) -> tuple[Array, Array]:
        """Derivatives by state and input of the gradient of dg/dt."""
        t, x, u = point.t, point.x, point.u
        by_state = differentiate_numerically(lambda y: self.calc(t, y, u).rate_form[1], x)
        return by_state, differentiate_numerically(lambda v: self.calc(t, x, v).rate_form[1], u)

    def outputs_at(self, point: GuardPoint) -> dict[str, Array]:
        """What the guard has to make up for: -a_1, as a force does."""
        return {"force": np.array([-_force(point)])}

    def project_state(self, x: Array) -> Array:
        """The state on the guard, at rest: moved along what the reset changes."""
        strip = self.strip
        point = self.calc(0.0, super().project_state(x), np.zeros(self.nu))
        across, reset = point.rate_form[1], point.gluing.reset_jacobian
        change = reset @ across - across if reset.shape[0] == strip.nx else -across
        speed = float(across @ change)
        return point.x if speed == 0.0 else point.x - change * (self._rate(point) / speed)

    def exits_at(self, point: GuardPoint) -> Array:
        """The second derivative -a_1, zero where the field of the mode lets go."""
        return np.array([-_force(point)])

    def exit_jacobian_at(self, point: GuardPoint) -> GuardJacobian:
        """Derivatives of the guard that ends the rest; the one by time is taken as zero."""
        d = point.source_point.field_jacobian
        by_x, by_u = point.differentiate_guard_rate(point.source_point.field, (d.state, d.input))
        return GuardJacobian(np.zeros(1), -by_x[None], -by_u[None])

    def exit_edge(self, name: str) -> Edge:
        """The edge out of the rest, into the mode itself; other guards lead as they do there."""
        return Edge(Reset.identity(), self.strip.source.key)

    def _rate(self, point: GuardPoint) -> float:
        """The rate dg/dt under the field of the mode."""
        rate, slope = self.strip.guard.differentiate(point.t, point.x, point.u)
        return rate + float(slope @ point.source_point.field)

    def _residuals(self, x: Array) -> Array:
        point = self.calc(0.0, x, np.zeros(self.nu))
        return np.array([self.strip.guard.evaluate(0.0, x, point.u), self._rate(point)])


def _force(point: GuardPoint) -> float:
    """The second derivative a_1 of the guard under the field of the mode."""
    return float(point.rate_form[1] @ point.source_point.field)
