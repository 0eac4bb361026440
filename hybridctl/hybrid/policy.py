"""Policies: what turns the past of a trajectory into the input on its present arc."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from hybridctl.base.checks import (
    Array,
    check_array,
    check_callable,
    check_instance,
    check_number,
    check_vector,
    convert_to_floats,
    quote,
)
from hybridctl.base.errors import InputError
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.laws import (
    DifferentiableLaw,
    HeldInput,
    InputLaw,
    LimitedLaw,
    demanded_input,
    no_input,
)
from hybridctl.hybrid.model import ModeKey


@dataclass(frozen=True)
class History:
    """What has happened when an arc begins: its mode, time and state, and all events so far.

    Events without guards are among them: those at which a policy asked to be asked again, if the
    arc did not go on there (see `Policy`).
    """

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

    A policy whose law changes at a time of its own choice (a clock, a late detection, a sample)
    has a method `next_change(history) -> float` besides: the next time after `history.time` at
    which it wants to be asked again, in s, infinite for none. The arc ends there with an event
    without guards, which leaves the state alone, unless the mode stays and both laws are a
    `HeldInput` or a `LinearFeedback`: then it goes on (see `Arc.changes`), but for a policy whose
    `sees_samples` is true, which goes by such events. Guards come first: those that fall through
    zero within the event window of a change have their event before it, or at the same time, and
    then the policy sees that time in the history of this event. A policy that passes on another
    one's law passes on its `next_change` and `sees_samples` too.
    """

    def law(self, history: History) -> InputLaw:
        """The input law of the arc that begins with this history: u (nu,) as function of t, x."""
        ...


@dataclass(frozen=True)
class DisturbedPolicy:
    """A policy with a disturbance d(t, x) (nu,) added to its input: u = policy + d.

    The policy sees the input just before the last event without it, and may hold that.
    """

    policy: Policy
    disturbance: InputLaw

    def __post_init__(self) -> None:
        check_instance("policy", self.policy, Policy)  # type: ignore[type-abstract]
        check_callable("disturbance", self.disturbance)

    def law(self, history: History) -> InputLaw:
        """The law of the policy, and the disturbance; with derivatives if both have them."""
        other, t = self.disturbance, history.time
        check_array(f"disturbance at t = {t}", other(t, history.state))
        if history.events:
            *past, last = history.events
            own = last.input_before - other(last.time, last.state_before)
            history = replace(history, events=(*past, replace(last, input_before=own)))
        law = self.policy.law(history)
        if not isinstance(law, DifferentiableLaw) or not isinstance(other, DifferentiableLaw):
            return lambda t, x: law(t, x) + other(t, x)
        return DifferentiableLaw(
            partial(_sum, law.function, other.function),
            partial(_sum, law.jacobian, other.jacobian),
            partial(_sum, law.rate, other.rate),
        )

    def next_change(self, history: History) -> float:
        """The time when the policy wants to be asked again, s."""
        return next_change(self.policy, history)

    @property
    def sees_samples(self) -> bool:
        """Whether the policy goes by what was at the samples."""
        return sees_samples(self.policy)


def sees_samples(policy: Policy) -> bool:
    """Whether a policy goes by past changes, and so wants them as events; false if it is silent."""
    return bool(getattr(policy, "sees_samples", False))


def _sum(one: InputLaw, other: InputLaw, t: float, x: Array) -> Array:
    return one(t, x) + other(t, x)


@dataclass(frozen=True)
class SampledPolicy:
    """Digital control: the input of `law` at the times start + k period, held in between.

    law: a function u(t, x), or a policy, whose law at the history of a sample is evaluated there.
    An arc goes on over samples, but for a policy whose `sees_samples` is true: it sees them as
    events without guards.
    period, start: s. A run that begins between two samples begins with one; at an event between
    two samples the input goes on, so all modes must have equally many.

    Raises `InputError` for a period that is not positive, and for what is no law.
    """

    law_or_policy: Policy | InputLaw
    period: float
    start: float = 0.0
    _policy: Policy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.law_or_policy
        if not isinstance(given, Policy):
            given = SameLaw(check_callable("law_or_policy", given))
        object.__setattr__(self, "_policy", given)
        check_number("period", self.period, above=0.0)
        check_number("start", self.start)

    def law(self, history: History) -> InputLaw:
        """The input of the last sample, held."""
        t, x = history.time, history.state
        if history.events and t != self._sample(self._index(t)):
            return HeldInput(history.events[-1].input_before)
        law = self._policy.law(history)
        u = np.array(law(t, x))
        demand = demanded_input(law, t, x, u)
        return HeldInput(u) if demand is u else HeldInput(u, demand)

    def next_change(self, history: History) -> float:
        """The time of the next sample, s."""
        return self._sample(self._index(history.time) + 1)

    @property
    def sees_samples(self) -> bool:
        """Whether the policy that is sampled goes by what was at the samples."""
        return sees_samples(self._policy)

    def _sample(self, k: int) -> float:
        """The time of sample k, a product, so that rounding does not add up."""
        return self.start + k * self.period

    def _index(self, t: float) -> int:
        """The last sample at or before t."""
        k = round((t - self.start) / self.period)
        return k if self._sample(k) <= t else k - 1


@dataclass(frozen=True, eq=False)
class ContinuedPolicy:
    """A policy in a run that goes on from others, whose events it remembers: `past`."""

    policy: Policy
    past: tuple[Event, ...]

    def law(self, history: History) -> InputLaw:
        """The law after all events."""
        return self.policy.law(self._whole(history))

    def next_change(self, history: History) -> float:
        """The time when the policy wants to be asked again, s."""
        return next_change(self.policy, self._whole(history))

    @property
    def sees_samples(self) -> bool:
        """Whether the policy goes by what was at the samples."""
        return sees_samples(self.policy)

    def _whole(self, history: History) -> History:
        return replace(history, events=(*self.past, *history.events))


@dataclass(frozen=True)
class SameLaw:
    """The policy of one law, whatever happens."""

    function: InputLaw

    def law(self, history: History) -> InputLaw:
        """The law."""
        return self.function


def input_law(policy: Policy, history: History, nu: int) -> InputLaw:
    """The law of the arc that begins with `history`; its values are new arrays (nu,).

    Raises `InputError` where the policy returns anything else.
    """
    law, shape = policy.law(history), (nu,)
    if law is no_input(nu):
        return law
    if isinstance(law, HeldInput):
        value = check_vector(f"input of the policy at t = {history.time}", law.value, nu)
        return HeldInput(value, law.demand)
    if not callable(law):
        raise InputError(
            f"law of the policy must return a function u(t, x), got {quote(law)} in mode "
            f"{history.mode!r}"
        )
    source = law.function if isinstance(law, DifferentiableLaw) else law

    def checked(t: float, x: Array) -> Array:
        value = source(t, x)
        if type(value) is np.ndarray and value.dtype.kind == "f" and value.shape == shape:
            return np.array(value, dtype=np.float64)
        try:
            u = convert_to_floats(value)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the policy must return numbers, got {quote(value)} at t = {t} in mode "
                f"{history.mode!r}"
            ) from error
        if u.shape != shape:
            raise InputError(
                f"input of the policy at t = {t} in mode {history.mode!r} must have shape {shape}, "
                f"got {u.shape}"
            )
        return u

    if isinstance(source, LimitedLaw):
        return law
    return replace(law, function=checked) if isinstance(law, DifferentiableLaw) else checked


def next_change(policy: Policy, history: History) -> float:
    """The time when the policy wants to be asked again, s; infinite for one that does not say.

    Raises `InputError` for a time that is not after the present.
    """
    ask = getattr(policy, "next_change", None)
    if ask is None:
        return math.inf
    time = ask(history)
    if not isinstance(time, float):
        time = check_number("next_change of the policy", time)
    if not time > history.time:
        raise InputError(
            f"next_change of the policy must be after the time of the history, t = "
            f"{history.time!r} s, got {quote(time)}"
        )
    return float(time)


def first_input(law: InputLaw, t: float, x: Array, nu: int) -> Array:
    """Return the input (nu,) at the start of an arc.

    Raises:
        InputError: The input has another shape or is not finite, or the law cannot deal with a
            time and a state, as one that takes them in the other order.
    """
    if isinstance(law, HeldInput):
        return law.value
    try:
        u = law(t, x)
    except TypeError as error:
        raise InputError(
            f"policy must be a function u(t, x) of time and state, but at t = {t} s it raises "
            f"TypeError: {error}"
        ) from error
    return check_vector(f"input of the policy at t = {t}", u, nu)
