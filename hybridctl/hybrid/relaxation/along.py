r"""Motion on a guard, under the combination of both fields that stays there, and what ends it.

A field f of the mode does :math:`b + w \cdot f` across the guard. With a_1 that of the mode's own
field and a_2 that of the next one's, pulled back, the motion is that of

.. math:: f_s = (1 - \alpha) f_1 + \alpha f_2, \qquad \alpha = \frac{a_1}{a_1 - a_2}.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.mode import FieldJacobian
from hybridctl.hybrid.relaxation.chart import Border
from hybridctl.hybrid.relaxation.regions import Sides
from hybridctl.hybrid.relaxation.strip import Strip


@dataclass(frozen=True, eq=False)
class OnGuard(ABC):
    """Motion on the guard of a strip of no width."""

    strip: Strip

    @abstractmethod
    def across(self, t: float, x: Array, u: Array) -> tuple[float, Array]:
        """b and w (n,) at a point of the guard."""

    @abstractmethod
    def turning(self, t: float, x: Array, u: Array) -> tuple[Array, Array]:
        """Derivatives of w by state (n, n) and input (n, nu)."""

    def sides(self, t: float, x: Array, u: Array) -> Sides:
        """Both fields, and a_1 and a_2."""
        constant, w = self.across(t, x, u)
        before, behind = self.strip.source.field(t, x, u), self.strip.pulled(t, x, u)
        return Sides(before, behind, (constant + float(w @ before), constant + float(w @ behind)))

    def field(self, t: float, x: Array, u: Array) -> Array:
        """The field that stays on the guard."""
        return self.sides(t, x, u).sliding

    def jacobian(self, t: float, x: Array, u: Array) -> FieldJacobian:
        """Derivatives of the field; second ones that it contains by central differences."""
        found, (own, pulled) = self.sides(t, x, u), self._fields(t, x, u)
        first, second = found.speeds
        by_first, by_second = self.speeds_jacobian(t, x, u)
        parts = []
        for k in range(2):  # by state and by input
            change = (first * by_second[k] - second * by_first[k]) / (first - second) ** 2
            blended = (1.0 - found.weight) * own[k] + found.weight * pulled[k]
            parts.append(blended + np.outer(found.behind - found.before, change))
        return FieldJacobian(parts[0], parts[1])

    def speeds_jacobian(self, t: float, x: Array, u: Array) -> list[tuple[Array, Array]]:
        """Derivatives of a_1 and of a_2 by state (n,) and input (nu,)."""
        found = self.sides(t, x, u)
        pairs = zip((found.before, found.behind), self._fields(t, x, u), strict=True)
        return [self.speed_jacobian(f, by, t, x, u) for f, by in pairs]

    def speed_jacobian(
        self, f: Array, by: tuple[Array, Array], t: float, x: Array, u: Array
    ) -> tuple[Array, Array]:
        """Derivatives of what a field f, with derivatives `by` state and input, does across."""
        w, (turns, turns_u) = self.across(t, x, u)[1], self.turning(t, x, u)
        return w @ by[0] + f @ turns, w @ by[1] + f @ turns_u

    def _fields(self, t: float, x: Array, u: Array) -> list[tuple[Array, Array]]:
        """Derivatives of both fields by state and input."""
        own = self.strip.source.jacobian(t, x, u)  # type: ignore[misc]
        return [(own.state, own.input), self.strip.pulled_jacobian(t, x, u)]


@dataclass(frozen=True, eq=False)
class Beside:
    """Guards of a motion on or behind a guard, and after them the other guards of its mode.

    names (k,), values (k,) and derivatives of its own ones; they are functions of (t, y, u), and y
    begins with the state x (n,) of the mode.
    """

    guard: Border
    names: tuple[str, ...]
    own: Callable[[float, Array, Array], Array]
    own_jacobian: Callable[[float, Array, Array], GuardJacobian]

    @property
    def others(self) -> list[int]:
        """The other guards of the mode."""
        return [i for i in range(len(self.guard.guards.names)) if i != self.guard.index]

    def guards(self, scales: Array | None = None) -> GuardSet:
        """All of them; scales: see `GuardSet`."""
        names = [f"{self.guard.name}: {name}" for name in self.names]
        names += [self.guard.guards.names[i] for i in self.others]
        return GuardSet(tuple(names), self.values, self.jacobian, scales)

    def values(self, t: float, y: Array, u: Array) -> Array:
        """The values of these guards."""
        others = self.guard.guards.values(t, y[: self.guard.mode.space.nx], u)
        return np.append(self.own(t, y, u), others[self.others])

    def jacobian(self, t: float, y: Array, u: Array) -> GuardJacobian:
        """Their derivatives."""
        n, own, others = self.guard.mode.space.nx, self.own_jacobian(t, y, u), self.others
        d = self.guard.guards.jacobian(t, y[:n], u)  # type: ignore[misc]
        state = np.zeros((len(others), len(y)))
        state[:, :n] = d.state[others]
        return GuardJacobian(
            np.append(own.time, d.time[others]),
            np.vstack([own.state, state]),
            np.vstack([own.input, d.input[others]]),
        )
