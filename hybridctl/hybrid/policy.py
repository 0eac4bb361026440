"""Policies: what turns the past of a trajectory into the input on its present arc."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

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
from hybridctl.base.errors import HybridctlWarning, InputError
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.laws import (
    DifferentiableLaw,
    HeldInput,
    InputLaw,
    LimitedLaw,
    compute_demanded_input,
    make_zero_input,
)
from hybridctl.hybrid.model import ModeKey


@dataclass(frozen=True)
class History:
    """What has happened when an arc begins.

    Attributes:
        mode: Key of the mode of the arc.
        time: Start time of the arc, s.
        state: State (nx,) at its start.
        events: All events so far. Events without guards are among them: those at which a policy
            wanted to change its law, if the arc did not go on there (see `Policy`).
    """

    mode: ModeKey
    time: float
    state: Array
    events: tuple[Event, ...] = ()


@runtime_checkable
class Policy(Protocol):
    """A controller for hybrid systems.

    It is asked once per arc, so what depends on the events (which reference arc, which gain) is
    decided there. The law that it returns is called in every evaluation of the vector field and
    must be smooth in (t, x).

    A policy whose law changes at a time of its own choice (a clock, a late detection, a sample) has
    a method `next_change(history) -> float` besides: the next time after `history.time` at which it
    wants to be asked again, in s, infinite for none. The arc ends there with an event without
    guards, which leaves the state alone. Where the mode stays and both laws are a `HeldInput` or a
    `LinearFeedback`, the arc goes on instead (see `Arc.changes`). A policy whose attribute
    `sees_samples` is true needs such events in its history, and so has them all the same.

    Guards come first. Those that fall through zero within the event window of a change have their
    event before it, or at the same time; then the policy sees that time in the history of this
    event. A policy whose attribute `keeps_law` is true goes through events with the law, or the
    held input, that it has: so the rate of the input goes on, too.

    A policy that passes on another one's law passes on its `next_change`, `sees_samples` and
    `keeps_law` too.
    """

    def law(self, history: History) -> InputLaw:
        """Return the input law u(t, x), with values (nu,), of the arc that begins now.

        Args:
            history: What has happened so far.
        """
        ...


def sees_samples(policy: Policy) -> bool:
    """Return whether a policy needs its past changes as events; false if it does not say."""
    return bool(getattr(policy, "sees_samples", False))


def keeps_law(policy: Policy) -> bool:
    """Return whether a policy goes through events with the law it has; false if it does not say."""
    return bool(getattr(policy, "keeps_law", False))


def ask_next_change(policy: Policy, history: History) -> float:
    """Return the time at which a policy wants to be asked again, s; infinite if it does not say.

    Args:
        policy: The policy.
        history: What has happened so far.

    Raises:
        InputError: If it is not a time after the present.
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


def list_start_warnings(policy: object, history: History) -> list[HybridctlWarning]:
    """Return what a policy finds doubtful about the start of a run.

    A policy says so by a method `start_warnings(history)`. One without it that is made of another
    policy, such as `SampledPolicy`, has the warnings of that.

    Args:
        policy: The policy, or the function of an input law, which has none.
        history: The start of the run, without events.
    """
    ask = getattr(policy, "start_warnings", None)
    if ask is not None:
        return list(ask(history))
    inner = getattr(policy, "policy", getattr(policy, "law_or_policy", None))
    return [] if inner is None else list_start_warnings(inner, history)


def ask_input_law(policy: Policy, history: History, nu: int) -> InputLaw:
    """Return the law that a policy gives for an arc, with a check of each of its values.

    Args:
        policy: The policy.
        history: What has happened so far.
        nu: Size of the input.

    Returns:
        The law. Its values are new arrays (nu,); it raises `InputError` for any other.

    Raises:
        InputError: If the policy returns no function, or a held input of another size.
    """
    law, shape = policy.law(history), (nu,)
    if law is make_zero_input(nu):  # no policy: nothing to check
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

    def evaluate_checked(t: float, x: Array) -> Array:
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

    if isinstance(source, LimitedLaw):  # states that its values are new arrays (nu,)
        return law
    return (
        replace(law, function=evaluate_checked)
        if isinstance(law, DifferentiableLaw)
        else evaluate_checked
    )


def compute_first_input(law: InputLaw, t: float, x: Array, nu: int) -> Array:
    """Return the input (nu,) at the start of an arc.

    Args:
        law: The input law of the arc.
        t: Start time, s.
        x: State (nx,) at the start.
        nu: Size of the input.

    Raises:
        InputError: If the input has another shape or is not finite, or the law cannot deal with a
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


@dataclass(frozen=True)
class SameLaw:
    """The policy of one law, whatever happens.

    Attributes:
        function: The law.
    """

    function: InputLaw
    keeps_law: ClassVar[bool] = True

    def law(self, history: History) -> InputLaw:
        """Return the law."""
        return self.function


@dataclass(frozen=True)
class DisturbedPolicy:
    """A policy with a disturbance added to its input: u = policy + d(t, x).

    The policy sees the input just before the last event without the disturbance, and may hold that.

    Attributes:
        policy: The policy.
        disturbance: Returns the disturbance d (nu,) at (t, x).

    Raises:
        InputError: If `policy` is no policy or `disturbance` no function.
    """

    policy: Policy
    disturbance: InputLaw

    def __post_init__(self) -> None:
        check_instance("policy", self.policy, Policy)  # type: ignore[type-abstract]
        check_callable("disturbance", self.disturbance)

    def law(self, history: History) -> InputLaw:
        """Return the law of the policy plus the disturbance, with derivatives if both have them.

        Args:
            history: What has happened so far.

        Raises:
            InputError: If the disturbance is not finite at the start of the arc.
        """
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
            partial(_add_laws, law.function, other.function),
            partial(_add_laws, law.jacobian, other.jacobian),
            partial(_add_laws, law.rate, other.rate),
        )

    def next_change(self, history: History) -> float:
        """Return the time at which the policy wants to be asked again, s."""
        return ask_next_change(self.policy, history)

    @property
    def sees_samples(self) -> bool:
        """Whether the policy needs its past changes as events."""
        return sees_samples(self.policy)

    @property
    def keeps_law(self) -> bool:
        """Whether the policy goes through events with the law it has."""
        return keeps_law(self.policy)


def _add_laws(one: InputLaw, other: InputLaw, t: float, x: Array) -> Array:
    """Return the sum of two functions at (t, x); unlike a closure it can be pickled."""
    return one(t, x) + other(t, x)


@dataclass(frozen=True)
class SampledPolicy:
    """Digital control: the input of a law at the times start + k period, held in between.

    A run that begins between two samples begins with one. At an event between two samples the input
    goes on, so all modes must have equally many inputs. An arc goes on over samples, but for a
    policy whose `sees_samples` is true: it sees them as events without guards.

    Attributes:
        law_or_policy: A function u(t, x), or a policy, whose law at the history of a sample is
            evaluated there.
        period: Time between samples, s; positive.
        start: Time of a sample, s.

    Raises:
        InputError: If the period is not positive, or a time not finite, or there is no law.
    """

    law_or_policy: Policy | InputLaw
    period: float
    start: float = 0.0
    keeps_law: ClassVar[bool] = True
    _policy: Policy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.law_or_policy
        if not isinstance(given, Policy):
            given = SameLaw(check_callable("law_or_policy", given))
        object.__setattr__(self, "_policy", given)
        check_number("period", self.period, above=0.0)
        check_number("start", self.start)

    def law(self, history: History) -> InputLaw:
        """Return the input of the last sample, held.

        Args:
            history: What has happened so far. If it has events and its time is no sample, the input
                before the last event goes on.
        """
        t, x = history.time, history.state
        if history.events and t != self._compute_sample_time(self._find_last_sample(t)):
            return HeldInput(history.events[-1].input_before)
        law = self._policy.law(history)
        u = np.array(law(t, x))
        demand = compute_demanded_input(law, t, x, u)
        return HeldInput(u) if demand is u else HeldInput(u, demand)

    def next_change(self, history: History) -> float:
        """Return the time of the next sample, s."""
        return self._compute_sample_time(self._find_last_sample(history.time) + 1)

    @property
    def sees_samples(self) -> bool:
        """Whether the policy that is sampled needs its past samples as events."""
        return sees_samples(self._policy)

    def _compute_sample_time(self, k: int) -> float:
        """Return the time of sample k, s. It is a product, so that rounding does not add up."""
        return self.start + k * self.period

    def _find_last_sample(self, t: float) -> int:
        """Return the number of the last sample at or before a time t, s."""
        k = round((t - self.start) / self.period)
        return k if self._compute_sample_time(k) <= t else k - 1


@dataclass(frozen=True, eq=False)
class ContinuedPolicy:
    """A policy in a run that goes on from earlier ones, whose events it sees too.

    Attributes:
        policy: The policy.
        past: Events of the earlier runs.
    """

    policy: Policy
    past: tuple[Event, ...]

    def law(self, history: History) -> InputLaw:
        """Return the law after all events."""
        return self.policy.law(self._prepend_past(history))

    def next_change(self, history: History) -> float:
        """Return the time at which the policy wants to be asked again, s."""
        return ask_next_change(self.policy, self._prepend_past(history))

    @property
    def sees_samples(self) -> bool:
        """Whether the policy needs its past changes as events."""
        return sees_samples(self.policy)

    @property
    def keeps_law(self) -> bool:
        """Whether the policy goes through events with the law it has."""
        return keeps_law(self.policy)

    def _prepend_past(self, history: History) -> History:
        return replace(history, events=(*self.past, *history.events))
