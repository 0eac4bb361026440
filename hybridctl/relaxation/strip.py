r"""The strip behind a guard: the field that leads from one mode into the next, [Relax] 6, app. B.

At the depth d = -g from 0 to epsilon, with s = d / epsilon and phi(s) = (1 - cos(pi s)) / 2,

.. math:: \dot y = (1 - \varphi) (f_j(x), 0) + \varphi\, \tilde A^\dagger f_{j'}(\tilde R(y)),
   \qquad \tilde R(x, z) = \bar R(x) - n \varepsilon + V z,

of y = (x, z): the state of mode j, and an auxiliary state z for what the reset forgets, zero on
entry. \tilde A = (\bar A | V), see `chart`.

As printed, z winds up where the next mode pushes back into the guard: a leg that lies on its stop
would have to undo that before it leaves. A unilateral z is therefore held at zero as long as its
rate is negative, and the pulled-back field is then D_x R f_{j'}, the acceleration that the stop
allows. That needs a reset that is a projection, as plastic impacts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.hybrid.mode import ModeKey, ModeModel, Reset, ResetJacobian, ResetModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.relaxation.chart import Border, Chart, Local, chart, passage

_STEP = 6e-6  # of a coordinate, or of 1: for central differences, which then err by 1e-10
_LANDS = 1e-9  # of the size of a state, or of 1: how far from a guard its image may be


def blend(s: float) -> tuple[float, float]:
    """The transition function phi(s), [Relax] (8), and its slope."""
    if not 0.0 < s < 1.0:
        return float(s >= 1.0), 0.0
    return 0.5 - 0.5 * math.cos(math.pi * s), 0.5 * math.pi * math.sin(math.pi * s)


@dataclass(frozen=True, eq=False)
class Strip:
    """The strip behind `guard`, of a width epsilon in the unit of the guard.

    target: the mode entered, border: its guard on the image of the reset, or None where the image
    lies inside it; nothing can push back then, and the mode's own field crosses the strip. basis
    (n', p): V. push (p,): the unit vector along which z moves the image away from the border; zero
    where it does not.
    """

    guard: Border
    target: ModeModel
    border: Border | None
    chart: Chart
    basis: Array
    push: Array
    epsilon: float

    @property
    def source(self) -> ModeModel:
        """The mode whose guard it is."""
        return self.guard.mode

    @cached_property
    def n(self) -> int:
        """The size of x."""
        return self.source.space.nx

    @cached_property
    def size(self) -> int:
        """Size of y = (x, z)."""
        return self.n + int(self.basis.shape[1])

    @property
    def holds(self) -> bool:
        """Whether there is an auxiliary state that can be held."""
        return bool(self.push.any())

    def depth(self, t: float, y: Array, u: Array) -> float:
        """The depth -g."""
        return -self.guard.value(t, y[: self.n], u)

    def entered(self, t: float, y: Array, u: Array) -> Array:
        """The state in the chart of the mode entered (n',)."""
        return self.landed(self.chart.at(t, y[: self.n], u), y)

    def matrix(self, t: float, y: Array, u: Array) -> tuple[Array, Array]:
        """Derivatives of `entered` by y (n', n + p) and by time (n',)."""
        local = self.chart.at(t, y[: self.n], u)
        return np.hstack([local.matrix, self.basis]), local.drift

    @property
    def through(self) -> Reset:
        """The reset into the mode entered."""
        return Reset(self.entered, self.entered_jacobian)

    def entered_jacobian(self, t: float, y: Array, u: Array) -> ResetJacobian:
        """Derivatives of `entered`."""
        state, time = self.matrix(t, y, u)
        return ResetJacobian(time, state, np.zeros((len(time), len(u))))

    def landed(self, local: Local, y: Array) -> Array:
        """The state in the chart of the mode entered (n',)."""
        image = local.landed - self.epsilon * local.normal
        return image + self.basis @ y[self.n :] if self.size > self.n else image

    def entry(self, x: Array) -> Array:
        """The entry (x, 0); a state that has its z already is itself."""
        missing = self.size - len(x)
        return np.append(x, np.zeros(missing)) if missing else x


class Strips:
    """The strips of a width epsilon behind the guards of a system, made at first use."""

    def __init__(self, system: HybridSystem, epsilon: float) -> None:
        self.system, self.epsilon = system, epsilon
        self._known: dict[tuple[ModeKey, str], Strip] = {}

    def of(self, key: ModeKey, name: str) -> Strip:
        """The strip behind guard `name` of mode `key`.

        Raises `SystemDefinitionError` where none is defined, see `relax`.
        """
        try:
            return self._known[key, name]
        except KeyError:
            return self._known.setdefault((key, name), self._made(key, name))

    def _made(self, key: ModeKey, name: str) -> Strip:
        guard, reset, target = passage(self.system, key, name)
        source = guard.mode
        if source.nu != target.nu:
            raise SystemDefinitionError(
                f"modes {key!r} and {target.key!r} have {source.nu} and {target.nu} inputs; a "
                "strip between them needs the same"
            )
        border = self._border(guard, reset, target)
        found, basis = chart(guard, reset, border, target)
        strip = Strip(guard, target, border, found, basis, np.zeros(basis.shape[1]), self.epsilon)
        return replace(strip, push=_push(strip))

    def _border(self, guard: Border, reset: ResetModel, target: ModeModel) -> Border | None:
        """The guard of the target that is zero on the image of the reset, if there is one."""
        guards = self.system.outgoing(target.key).guards
        touched = np.ones(len(guards.names), dtype=bool)
        for t, x, u in guard.points:
            image = reset(t, x, u).state
            size = max(1.0, float(np.abs(image).max(initial=0.0)))
            touched &= np.abs(guards.values(t, image, u)) <= _LANDS * size
        found = np.flatnonzero(touched).tolist()
        if len(found) > 1:
            names = [guards.names[i] for i in found]
            raise SystemDefinitionError(
                f"the reset of guard {guard.name!r} of mode {guard.mode.key!r} lands where guards "
                f"{names} of mode {target.key!r} are zero; a strip leads to one"
            )
        return Border(target, guards, found[0]) if found else None


def _push(strip: Strip) -> Array:
    """The direction (p,) of z along which the next mode's field leaves the border.

    Raises `SystemDefinitionError` where it changes, and where z would have to be held behind a
    reset that is no projection.
    """
    p = strip.basis.shape[1]
    if strip.border is None or p == 0:
        return np.zeros(p)
    directions, size = [], 0.0
    for t, x, u in strip.guard.points:
        image = strip.entered(t, strip.entry(x), u)
        inwards = strip.border.derivative(t, image, u)[1]
        along = inwards @ strip.target.jacobian(t, image, u).state @ strip.basis
        directions.append(along)
        size = max(size, float(np.abs(along).max()))
    if size <= _LANDS:
        return np.zeros(p)
    units = [d / np.linalg.norm(d) for d in directions]
    name, key = strip.guard.name, strip.source.key
    if min(float(unit @ units[0]) for unit in units) < 1.0 - _LANDS:
        raise SystemDefinitionError(
            f"what the reset of guard {name!r} of mode {key!r} forgets moves its image off the "
            f"border in directions that change, {units[0]} and others: no auxiliary state is held"
        )
    for t, x, u in strip.guard.points:
        reset = strip.chart.at(t, x, u).reset
        square = reset.shape[0] == reset.shape[1]
        if not square or np.abs(reset @ reset - reset).max() > _LANDS * np.abs(reset).max():
            raise SystemDefinitionError(
                f"the reset of guard {name!r} of mode {key!r} has no inverse and is no projection, "
                f"so that what pushes back into the guard behind it is not known: D_x R = "
                f"{reset.tolist()}"
            )
    return np.asarray(units[0])


def differences(f: Callable[[Array], Array], at: Array) -> Array:
    """The Jacobian (m, n) of f by central differences."""
    columns = []
    for k, step in enumerate(_STEP * np.maximum(1.0, np.abs(at))):
        change = np.zeros(len(at))
        change[k] = step
        columns.append((f(at + change) - f(at - change)) / (2.0 * step))
    return np.column_stack(columns) if columns else np.zeros((len(f(at)), 0))
