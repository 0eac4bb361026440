r"""Past Zeno: the rest that relaxations tend to where events accumulate, as a mode of its own.

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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hybridctl.checks import Array, instance
from hybridctl.errors import SystemDefinitionError
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.mode import Edge, FieldJacobian, Held, Jump, Mode, ModeKey, Outgoing, Reset
from hybridctl.hybrid.relaxation.regions import slides
from hybridctl.hybrid.relaxation.strip import Strip
from hybridctl.hybrid.relaxation.strips import Strips
from hybridctl.hybrid.system import HybridSystem

RESTING = "resting"
_STEP = 6e-6  # of a coordinate, or of 1: for central differences, which then err by 1e-10
_HELD = 1e-8  # of a guard and of its rate, in their own units


def past_zeno(system: HybridSystem) -> PastZeno:
    """The system with a mode (RESTING, key, name) for rest on guard `name` of mode `key`.

    `simulate(past_zeno(system), ..., on_zeno="rest")` is `simulate(system, ..., on_zeno="relax")`;
    with the system at hand, a run can be continued and linearized. Modes are as they are; rest
    begins where events of one guard accumulate, and ends where the fields let go.

    Raises `InputError` for what is no system, and `SystemDefinitionError` in a run where events of
    guards accumulate for which no strip is defined, see `relax`, or that meet.
    """
    return PastZeno(instance("system", system, HybridSystem))


class PastZeno(HybridSystem):
    """A system that comes to rest where its events accumulate; see `past_zeno`."""

    def __init__(self, system: HybridSystem) -> None:
        super().__init__(self._mode_at, self._outgoing_at)
        self.system, self.strip = system, Strips(system, 0.0, {}, {}).of

    def _resting(self, key: ModeKey) -> _Resting | None:
        if isinstance(key, tuple) and len(key) == 3 and key[0] == RESTING:
            return _Resting(self.strip(key[1], key[2]))
        return None

    def _mode_at(self, key: ModeKey) -> Mode:
        resting = self._resting(key)
        return self.system.mode(key) if resting is None else resting.mode(key)

    def _outgoing_at(self, key: ModeKey) -> Outgoing:
        resting = self._resting(key)
        if resting is None:
            return replace(self.system.outgoing(key), rest=partial(self._rest, key))
        return Outgoing(resting.guards(), resting.edge)

    def _rest(self, key: ModeKey, fired: tuple[str, ...]) -> Edge:
        """The way to rest on the guard whose events accumulate."""
        own = [name for name in self.system.outgoing(key).guards.names if name in fired]
        if len(own) != 1:
            raise SystemDefinitionError(
                f"events of guards {fired} accumulate in mode {key!r}; rest is defined on one "
                "guard of a mode only, and these meet"
            )
        target = (RESTING, key, own[0])
        resting = _Resting(self.strip(key, own[0]))
        return Edge(Reset(partial(resting.settled, target)))


@dataclass(frozen=True, eq=False)
class _Resting:
    """Rest on the guard of a strip of no width: the field, what it holds, and its end."""

    strip: Strip

    def mode(self, key: ModeKey) -> Mode:
        """The mode of this rest."""
        source = self.strip.source
        names = (self.strip.guard.name, f"rate of {self.strip.guard.name}")
        held = Held(names, self._residuals, np.full(2, _HELD), ("", "1/s"))
        return Mode(
            key,
            source.space,
            self.field,
            source.nu,
            self.jacobian,
            self.outputs,
            project=self.project,
            held=held,
        )

    def settled(self, key: ModeKey, t: float, x: Array, u: Array) -> Jump:
        """At rest, from a state of the mode where events of the guard accumulate."""
        x = self.project(x)
        first, second = self.accelerations(t, x, u)
        if not first < 0.0 or not (self.strip.holds or (slides(self.strip) and second > 0.0)):
            raise SystemDefinitionError(
                f"events of guard {self.strip.guard.name!r} of mode {self.strip.source.key!r} "
                f"accumulate at t = {t:.9g} s, x = {x.tolist()}, but the fields do not push onto "
                f"it from both sides: its second derivatives are {first:.6g} and {second:.6g}"
            )
        return Jump(x, key)

    def accelerations(self, t: float, x: Array, u: Array) -> tuple[float, float]:
        """The second derivatives a_1 and a_2 of the guard; a_2 is infinite behind a plastic one."""
        across = self._across(t, x, u)
        first = float(across @ self.strip.source.field(t, x, u))
        if self.strip.size > self.strip.n:
            return first, np.inf
        return first, float(across @ self.strip.pulled(t, x, u))

    def field(self, t: float, x: Array, u: Array) -> Array:
        """The field that stays at rest."""
        own = self.strip.source.field(t, x, u)
        if self.strip.size > self.strip.n:
            return np.asarray(self.strip.chart.at(t, x, u).reset @ own)
        first, second = self.accelerations(t, x, u)
        return own + first / (first - second) * (self.strip.pulled(t, x, u) - own)

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """Derivatives of the field; second ones that it contains by central differences."""
        own, state = self.strip.source.field(t, x, u), self.strip.source.jacobian(t, x, u)  # type: ignore[misc]
        if self.strip.size > self.strip.n:
            reset = self.strip.chart.at(t, x, u).reset
            turns = _differences(lambda y: self.strip.chart.at(t, y, u).reset @ own, x)
            return FieldJacobian(reset @ state.state + turns, reset @ state.input)
        pulled = self.strip.pulled(t, x, u)
        first, second = self.accelerations(t, x, u)
        weight, parts = first / (first - second), []
        sides = (own, (state.state, state.input)), (pulled, self.strip.pulled_jacobian(t, x, u))
        slopes = [self._slopes(f, by, t, x, u) for f, by in sides]
        for k in range(2):  # by state and by input
            change = (first * slopes[1][k] - second * slopes[0][k]) / (first - second) ** 2
            blended = (1.0 - weight) * sides[0][1][k] + weight * sides[1][1][k]
            parts.append(blended + np.outer(pulled - own, change))
        return FieldJacobian(parts[0], parts[1])

    def _slopes(
        self, f: Array, by: tuple[Array, Array], t: float, x: Array, u: Array
    ) -> tuple[Array, Array]:
        """Derivatives of the second derivative of the guard under a field f, by state and input."""
        across = self._across(t, x, u)
        turns = _differences(lambda y: self._across(t, y, u), x)
        turns_u = _differences(lambda v: self._across(t, x, v), u)
        return across @ by[0] + f @ turns, across @ by[1] + f @ turns_u

    def outputs(self, t: float, x: Array, u: Array) -> dict[str, Array]:
        """What the guard has to make up for: -a_1, as a force does."""
        return {"force": np.array([-self.accelerations(t, x, u)[0]])}

    def project(self, x: Array) -> Array:
        """On the guard, and at rest: along what the reset changes."""
        strip, u = self.strip, np.zeros(self.strip.source.nu)
        x = strip.guard.foot(0.0, x, u)
        across, local = self._across(0.0, x, u), strip.chart.at(0.0, x, u)
        change = local.reset @ across - across if local.reset.shape[0] == strip.n else -across
        speed = float(across @ change)
        rate = self._rate(0.0, x, u)
        return x if speed == 0.0 else x - change * (rate / speed)

    def guards(self) -> GuardSet:
        """The end of the rest, and the other guards of the mode."""
        guard = self.strip.guard
        others = tuple(guard.guards.names[i] for i in self._others)
        return GuardSet((f"{guard.name}: released", *others), self.values, self.guard_jacobian)

    def values(self, t: float, x: Array, u: Array) -> Array:
        """The values of these guards."""
        others = self.strip.guard.guards.values(t, x, u)[self._others]
        return np.append(-self.accelerations(t, x, u)[0], others)

    def guard_jacobian(self, t: float, x: Array, u: Array) -> GuardJacobian:
        """Their derivatives; that of the end by time is taken as zero."""
        d = self.strip.guard.guards.jacobian(t, x, u)  # type: ignore[misc]
        own, source = self.strip.source.jacobian(t, x, u), self.strip.source  # type: ignore[misc]
        by = own.state, own.input
        by_x, by_u = self._slopes(source.field(t, x, u), by, t, x, u)
        return GuardJacobian(
            np.append(0.0, d.time[self._others]),
            np.vstack([-by_x, d.state[self._others]]),
            np.vstack([-by_u, d.input[self._others]]),
        )

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """Where it ends: in the mode itself; another guard leads where it leads from there."""
        return Edge(Reset.identity(), self.strip.source.key) if len(fired) == 1 else None

    @property
    def _others(self) -> list[int]:
        names = self.strip.guard.guards.names
        return [i for i in range(len(names)) if i != self.strip.guard.index]

    def _rate(self, t: float, x: Array, u: Array) -> float:
        """dg/dt under the field of the mode."""
        rate, slope = self.strip.guard.derivative(t, x, u)
        return rate + float(slope @ self.strip.source.field(t, x, u))

    def _across(self, t: float, x: Array, u: Array) -> Array:
        """The derivative (n,) of dg/dt by the state."""
        source, slope = self.strip.source, self.strip.guard.derivative(t, x, u)[1]
        if source.jacobian is None:
            raise SystemDefinitionError(f"the vector field of mode {source.key!r} has no Jacobian")
        bent = slope @ source.jacobian(t, x, u).state
        if self.strip.chart.affine:
            return np.asarray(bent)
        turns = _differences(lambda y: self.strip.guard.derivative(t, y, u)[1], x)
        return np.asarray(bent + source.field(t, x, u) @ turns)

    def _residuals(self, x: Array) -> Array:
        u = np.zeros(self.strip.source.nu)
        return np.array([self.strip.guard.value(0.0, x, u), self._rate(0.0, x, u)])


def _differences(f: Callable[[Array], Array], at: Array) -> Array:
    """The Jacobian (m, n) of f by central differences."""
    columns = []
    for k, step in enumerate(_STEP * np.maximum(1.0, np.abs(at))):
        change = np.zeros(len(at))
        change[k] = step
        columns.append((f(at + change) - f(at - change)) / (2.0 * step))
    return np.column_stack(columns) if columns else np.zeros((len(f(at)), 0))
