r"""Rest past Zeno: the rest that relaxations tend to where events accumulate, as a mode of its own.

A relaxation of a finite width goes on bouncing with speeds of order sqrt(epsilon), thousands of
times a second, or is caught in its strip for a while when the force changes its sign. It tends to
the trajectory of [Relax] definition 7.5: the state stays on the guard without speed across it,
g = 0 and dg/dt = 0, under the combination of both fields that keeps it there,

.. math:: \dot x = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2},

as in `guard_motion`. The first derivatives of the guard vanish here, so :math:`a_1` and
:math:`a_2` are its second ones: under the field of the mode, and under the next one's pulled back.
Rest ends where a_1 is no longer negative: the force of the guard has vanished. Behind a plastic
reset, which has no inverse, the field is :math:`D_x R f_1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from hybridctl.hybrid.model import PointProperty
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.zeno import ZenoPolicy
from hybridctl.relaxation.guard_motion import (
    GuardMotionSystem,
    GuardPoint,
    MotionOnGuard,
    RateFormJacobian,
)
from hybridctl.relaxation.strip import Strip, Strips, differentiate_numerically

RESTING = "resting"
"""Kind of the modes of rest."""
_CONSTRAINT_TOLERANCE = 1e-8  # of a guard and of its rate, in their own units; as events have


def past_zeno(system: HybridSystem) -> PastZeno:
    """Return the system with a mode (RESTING, key, name) for rest on each guard of each mode.

    `simulate(past_zeno(system), ...)` is `simulate(system, ..., on_zeno=ZenoRelaxation())`; with
    the system at hand, a run can be continued and linearized. Modes are as they are. Rest begins
    where events of one guard accumulate, and ends where the fields let go.

    A run in which events accumulate ends with a `SystemDefinitionError` if several guards of the
    mode are among them, if the guard has no strip, see `relax_guards`, or if the fields do not push
    onto it from both sides.

    Args:
        system: The system.

    Raises:
        InputError: If it is no system.
    """
    return PastZeno(Strips(check_instance("system", system, HybridSystem), 0.0))


@dataclass(frozen=True)
class ZenoRelaxation(ZenoPolicy):
    """Take the rest that relaxations tend to where events accumulate, on systems that state none.

    `simulate(system, ..., on_zeno=ZenoRelaxation())` comes to rest on the guard for as long as the
    fields hold it there, and goes on when they let go, see `past_zeno`.
    """

    def extend(self, system: HybridSystem) -> HybridSystem:
        """Return the system with rest on each guard; one that has it already as it is.

        Args:
            system: The system that is simulated.

        Raises:
            InputError: If it is no hybrid system.
        """
        return system if isinstance(system, PastZeno) else past_zeno(system)


class PastZeno(GuardMotionSystem):
    """A system that comes to rest where its events accumulate; see `past_zeno`."""

    exit_names = ("released",)

    def make_motion(self, key: ModeKey) -> _RestingMode | None:
        """Return the rest on a guard for its key; None for a mode of the system."""
        match key:
            case (kind, source, str() as name) if kind == RESTING:
                return _RestingMode(key, self.get_strip(source, name))
        return None

    def inner_mode(self, key: ModeKey) -> ModeModel:
        """Return a mode of the system as it is: guards may have no strip until they need one."""
        return self.inner.mode(key)

    def outgoing_edges(self, key: ModeKey) -> Outgoing:
        """Return the edges of a mode of the system, and those to rest."""
        return replace(self.inner.outgoing(key), rest=partial(self._find_rest, key))

    def _find_rest(self, key: ModeKey, fired: tuple[str, ...]) -> Edge:
        """Return the edge to rest on the guard whose events accumulate.

        Args:
            key: The mode.
            fired: Names of the guards that fire, of this mode and of others.

        Raises:
            SystemDefinitionError: If several guards of the mode are among them.
        """
        own = [name for name in self.inner.outgoing(key).guards.names if name in fired]
        if len(own) != 1:
            raise SystemDefinitionError(
                f"events of guards {fired} accumulate in mode {key!r}; rest is defined on one "
                "guard of a mode only, and these meet"
            )
        resting = _RestingMode((RESTING, key, own[0]), self.get_strip(key, own[0]))
        return Edge(Reset(resting.begin_rest))


class _RestingPoint(GuardPoint):
    """A point of a rest on a guard, where fields change dg/dt, not g.

    The rate form is therefore that of dg/dt. Derivatives by time are taken as zero.
    """

    mode: _RestingMode

    @PointProperty
    def field(self) -> Array:
        """The field that stays at rest."""
        if self.mode.is_plastic:
            return np.asarray(self.gluing.reset_jacobian @ self.source_point.field)
        return super().field

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field; second ones that it contains as differences."""
        if not self.mode.is_plastic:
            return super().field_jacobian
        gluing, t, u = self.mode.strip.gluing, self.t, self.u
        field, d = self.source_point.field, self.source_point.field_jacobian
        reset = self.gluing.reset_jacobian
        by_reset = differentiate_numerically(
            lambda y: gluing.evaluate(t, y, u).reset_jacobian @ field, self.x
        )
        return FieldJacobian(reset @ d.state + by_reset, reset @ d.input)

    @PointProperty
    def rate_form(self) -> tuple[float, Array]:
        """Zero, and the gradient (n,) of dg/dt."""
        t, x, u = self.t, self.x, self.u
        strip, source = self.mode.strip, self.source_point
        guard = strip.guard
        by_field = np.asarray(guard.differentiate(t, x, u)[1] @ source.field_jacobian.state)
        if strip.gluing.is_affine:
            return 0.0, by_field
        by_guard = differentiate_numerically(lambda y: guard.differentiate(t, y, u)[1], x)
        return 0.0, by_field + source.field @ by_guard

    @PointProperty
    def rate_form_jacobian(self) -> RateFormJacobian:
        """The derivatives by state and input of the gradient of dg/dt, as differences."""
        t, x, u, calc = self.t, self.x, self.u, self.mode.calc
        by_state = differentiate_numerically(lambda y: calc(t, y, u).rate_form[1], x)
        by_input = differentiate_numerically(lambda v: calc(t, x, v).rate_form[1], u)
        return RateFormJacobian(np.zeros(len(x)), by_state, by_input)

    @PointProperty
    def guard_rate(self) -> float:
        """The rate dg/dt under the field of the source."""
        rate, gradient = self.mode.strip.guard.differentiate(self.t, self.x, self.u)
        return rate + float(gradient @ self.source_point.field)

    @PointProperty
    def guard_acceleration(self) -> float:
        """The second derivative a_1 of the guard under the field of the source."""
        return float(self.rate_form[1] @ self.source_point.field)

    @PointProperty
    def outputs(self) -> Mapping[str, Array]:
        """The guard acceleration -a_1 that the guard must cancel, as a force does."""
        return {"force": np.array([-self.guard_acceleration])}

    @PointProperty
    def exits(self) -> Array:
        """The acceleration -a_1, which falls to zero where the field of the source lets go."""
        return np.array([-self.guard_acceleration])

    @PointProperty
    def exit_jacobian(self) -> GuardJacobian:
        """The derivatives of the exit; that by time is taken as zero."""
        d = self.source_point.field_jacobian
        by_x, by_u = self.differentiate_guard_rate(self.source_point.field, (d.state, d.input))
        return GuardJacobian(np.zeros(1), -by_x[None], -by_u[None])


class _RestingMode(MotionOnGuard):
    """Rest on a guard, which ends at the exit `released`, or where another guard fires.

    Args:
        key: Key of this mode.
        strip: The strip of the guard, of width zero.
    """

    exit_names = PastZeno.exit_names
    point = _RestingPoint

    def __init__(self, key: ModeKey, strip: Strip) -> None:
        super().__init__(key, strip)
        names = (strip.guard.name, f"rate of {strip.guard.name}")
        tolerances = np.full(2, _CONSTRAINT_TOLERANCE)
        self.held = Held(names, self._compute_residuals, tolerances, ("", "1/s"))

    def calc(self, t: float, x: Array, u: Array) -> _RestingPoint:
        """Return the rest at a point, for a state (n,) on the guard and an input (nu,)."""
        return self.point(self, t, x, u)

    @property
    def is_plastic(self) -> bool:
        """Whether the reset has no inverse."""
        return self.strip.ny > self.strip.nx

    def begin_rest(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump to rest from a state of the source where events accumulate.

        Args:
            t: Time, s.
            x: State (n,).
            u: Input (nu,).

        Raises:
            SystemDefinitionError: If the fields do not push onto the guard from both sides.
        """
        x = self.project_state(x)
        point = self.calc(t, x, u)
        first = point.guard_acceleration
        second = np.inf if self.is_plastic else point.side_fields.guard_rates[1]
        pushes_back = self.strip.has_two_sides and second > 0.0
        if not first < 0.0 or not (self.strip.can_hold_auxiliary or pushes_back):
            raise SystemDefinitionError(
                f"events of guard {self.strip.guard.name!r} of mode {self.strip.source.key!r} "
                f"accumulate at t = {t:.9g} s, x = {x.tolist()}, but the fields do not push onto "
                f"it from both sides: its second derivatives are {first:.6g} and {second:.6g}"
            )
        return Jump(x, self.key)

    def project_state(self, x: Array) -> Array:
        """Return the state (n,) on the guard at rest, moved along what the reset changes.

        That is the direction of an impulse, and so leaves other velocities alone.
        """
        strip = self.strip
        point = self.calc(0.0, super().project_state(x), np.zeros(self.nu))
        gradient, reset = point.rate_form[1], point.gluing.reset_jacobian
        # Modes of other sizes cannot be compared: there the state moves along the gradient.
        same_size = reset.shape[0] == strip.nx
        direction = reset @ gradient - gradient if same_size else -gradient
        rate = float(gradient @ direction)
        if rate == 0.0:
            return point.x  # the reset leaves the guard's rate alone
        return point.x - direction * (point.guard_rate / rate)

    def exit_edge(self, name: str) -> Edge:
        """Return the edge out of the rest into the mode; another guard then leads on from there."""
        return Edge(Reset.identity(), self.strip.source.key)

    def _compute_residuals(self, x: Array) -> Array:
        """Return guard and guard rate (2,) of a state at t = 0, under no input."""
        point = self.calc(0.0, x, np.zeros(self.nu))
        guard = self.strip.guard.evaluate(0.0, x, point.u)
        return np.array([guard, point.guard_rate])
