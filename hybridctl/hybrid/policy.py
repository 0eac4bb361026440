"""Policies: what turns the past of a trajectory into the input on its present arc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from hybridctl.checks import Array, vector
from hybridctl.errors import InputError
from hybridctl.hybrid.mode import InputLaw, ModeKey
from hybridctl.hybrid.trajectory import Event


@dataclass(frozen=True)
class History:
    """What has happened when an arc begins: its mode, time and state, and all events so far."""

    mode: ModeKey
    time: float
    state: Array
    events: tuple[Event, ...] = ()


@runtime_checkable
class Policy(Protocol):
    """A controller for hybrid systems.

    It is asked once per arc, so what depends on the events (which reference arc, which gain)
    is decided there; the law it returns is called in every evaluation of the vector field and
    must be smooth in (t, x).
    """

    def law(self, history: History) -> InputLaw:
        """The input law of the arc that begins with this history: u (nu,) as function of t, x."""
        ...


@dataclass(frozen=True)
class _Constant:
    u: Array

    def law(self, history: History) -> InputLaw:
        return lambda t, x: self.u


@dataclass(frozen=True)
class _SameLaw:
    function: InputLaw

    def law(self, history: History) -> InputLaw:
        return self.function


def as_policy(policy: Policy | InputLaw | None, nu: int) -> Policy:
    """A policy from what `simulate` accepts: None (zero input), u(t, x), or a `Policy`."""
    if policy is None:
        return _Constant(np.zeros(nu))
    if isinstance(policy, Policy):
        return policy
    if callable(policy):
        return _SameLaw(policy)
    raise InputError(f"policy must be None, a function u(t, x) or a Policy, got {policy!r}")


def first_input(law: InputLaw, t: float, x: Array, nu: int) -> Array:
    """The input at the start of an arc, checked once for shape and finiteness."""
    return vector(f"input of the policy at t = {t}", law(t, x), nu)
