"""Input laws u(t, x) of an arc: any function, and those of which a step or a derivative knows more.

Times are in s, states (nx,), inputs (nu,).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.series import NODES

InputLaw: TypeAlias = Callable[[float, Array], Array]
"""A function of time and state that returns the input (nu,)."""


@dataclass(frozen=True, eq=False)
class HeldInput:
    """The input law that holds one value, so that a step evaluates no function.

    Attributes:
        value: The input (nu,).
        demand: The input (nu,) before it was cut to limits; None where nothing was cut.
    """

    value: Array
    demand: Array | None = None

    def __call__(self, t: float, x: Array) -> Array:
        """Return the value, at any time and state."""
        return self.value

    @cached_property
    def at_nodes(self) -> Array:
        """The value at the nodes of a step, (8, nu)."""
        return self.value[None].repeat(len(NODES), axis=0)


@lru_cache
def make_zero_input(nu: int) -> HeldInput:
    """Return the law of no input: zeros (nu,). It is the same object for the same size."""
    value = np.zeros(nu)
    value.setflags(write=False)
    return HeldInput(value)


@dataclass(frozen=True, eq=False)
class DifferentiableLaw:
    """An input law u(t, x) with its derivatives, which `linearize` asks for.

    The derivatives hold on the arc for which the policy gave the law. They promise that the law
    depends on the past only by which events there were: not by when or where they were.

    Attributes:
        function: Returns the input (nu,).
        jacobian: Returns D_x u (nu, ndx), in the tangent space at x.
        rate: Returns D_t u (nu,) at a fixed state, 1/s.
    """

    function: InputLaw
    jacobian: InputLaw
    rate: InputLaw

    @staticmethod
    def held(value: Array, rate: Array, ndx: int) -> DifferentiableLaw:
        """Return a law of one value at any time and state, with a rate of its own.

        Args:
            value: The input (nu,).
            rate: The rate (nu,) that it states, 1/s.
            ndx: Dimension of the tangent space of the state.
        """
        nothing = np.zeros((len(value), ndx))
        return DifferentiableLaw(HeldInput(value), HeldInput(nothing), HeldInput(rate))

    def __call__(self, t: float, x: Array) -> Array:
        """Return the input (nu,)."""
        return self.function(t, x)

    def velocity(self, t: float, x: Array, dx: Array) -> Array:
        """Return the rate (nu,) of the input where the state moves.

        Args:
            t: Time, s.
            x: State (nx,).
            dx: Velocity (ndx,) of the state.
        """
        return np.asarray(self.rate(t, x) + self.jacobian(t, x) @ dx)


class LimitedLaw(ABC):
    """An input law that cuts its input to limits, and gives the input that it cuts.

    Its values are new arrays (nu,).

    Attributes:
        limits: Least and greatest input (2, nu), None for none.
    """

    limits: Array | None

    @abstractmethod
    def __call__(self, t: float, x: Array) -> Array:
        """Return the input (nu,)."""

    @abstractmethod
    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu,) before it is cut."""


def compute_demanded_input(law: InputLaw, t: float, x: Array, u: Array) -> Array:
    """Return the input (nu,) that a law gives before it cuts it to limits.

    Args:
        law: The law.
        t: Time, s.
        x: State (nx,).
        u: Input (nu,) of the law there, which is returned where nothing is cut.
    """
    source = law.function if isinstance(law, DifferentiableLaw) else law
    if isinstance(source, HeldInput):
        return u if source.demand is None else source.demand
    if not isinstance(source, LimitedLaw) or source.limits is None:
        return u
    is_cut = ((u <= source.limits[0]) | (u >= source.limits[1])).any()
    return source.demand(t, x) if is_cut else u


class LinearFeedback(LimitedLaw):
    """A limited law on a vector space that is known ahead: u = b(t) - K(t) x, cut to limits."""

    def demand(self, t: float, x: Array) -> Array:
        """Return the input (nu,) before it is cut."""
        (offset,), (gain,) = self.find_offsets_and_gains(np.array([t]))
        return np.asarray(offset - gain @ x)

    @abstractmethod
    def find_offsets_and_gains(self, times: Array) -> tuple[Array, Array]:
        """Return the offsets b (k, nu) and gains K (k, nu, nx) at times (k,), s."""
