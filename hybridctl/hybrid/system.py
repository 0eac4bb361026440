"""The mode graph, given as lists or enumerated when a mode is first entered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, quote, suggest_names
from hybridctl.base.errors import (
    HybridctlError,
    HybridctlWarning,
    InputError,
    SystemDefinitionError,
    UnknownNameError,
)
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.laws import (
    DifferentiableLaw,
    HeldInput,
    InputLaw,
    LinearFeedback,
    make_zero_input,
)
from hybridctl.hybrid.mapped import Change, MappedMode, MappedReset
from hybridctl.hybrid.mode import (
    Bridge,
    Edge,
    Guard,
    GuardSet,
    ModeKey,
    ModeModel,
    Outgoing,
    Transition,
    guarded,
)
from hybridctl.hybrid.policy import History, Policy, SameLaw

T = TypeVar("T")


class HybridSystem:
    """A validated mode graph: modes with their vector fields, guards and resets.

    Two ways to give it:

    - `modes` and `transitions` as lists: every source and target must be a mode, guards of a
      mode need different names, and one set of guards has at most one transition.
    - both as functions of a mode key, for systems whose modes are too many to list (a robot
      with c contacts has 3^c). They are called once per mode, when it is first entered, and
      raise `UnknownNameError` for a key that is no mode. `guard_names` are then the names that
      guards of any mode have, if they are known: others can be refused where they are given.

    It pickles where these parts do; what was entered already is entered again in the copy.

    Raises `SystemDefinitionError` where the parts do not fit.
    """

    def __init__(
        self,
        modes: Iterable[ModeModel] | Callable[[ModeKey], ModeModel],
        transitions: Iterable[Transition] | Callable[[ModeKey], Outgoing],
        guard_names: Iterable[str] | None = None,
    ) -> None:
        if callable(modes) and callable(transitions):
            self._mode_of, self._outgoing_of = modes, transitions
        elif callable(modes) or callable(transitions):
            raise SystemDefinitionError("give modes and transitions both as lists or as functions")
        elif guard_names is not None:
            raise SystemDefinitionError("guard_names are those of the transitions that are listed")
        else:
            whole = "a list or a function"
            nodes = listed_parts("modes", modes, (ModeModel,), "a Mode", whole)
            listed = listed_parts("transitions", transitions, (Transition,), "a Transition", whole)
            self._mode_of, self._outgoing_of = _listed(nodes, listed)
            guard_names = [guard.name for transition in listed for guard in transition.guards]
        self.guard_names = None if guard_names is None else tuple(dict.fromkeys(guard_names))
        self._modes: dict[ModeKey, ModeModel] = {}
        self._given: dict[ModeKey, Outgoing] = {}  # with guards that may be others than the mode's
        self._outgoing: dict[ModeKey, Outgoing] = {}

    def __repr__(self) -> str:
        guards = "by mode" if self.guard_names is None else ", ".join(self.guard_names)
        return f"{type(self).__name__}(guards {guards})"

    def _repr_html_(self) -> str:
        """A table of the guards."""
        return render_html_table(("guard",), [(name,) for name in self.guard_names or ("by mode",)])

    def state_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Names of the coordinates (nx,) of a mode's state, with units in brackets if known."""
        return tuple(f"x{k}" for k in range(self.mode(key).space.nx))

    def input_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Names of the entries (nu,) of a mode's input, with units in brackets if known."""
        return tuple(f"u{k}" for k in range(self.mode(key).nu))

    def output_labels(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Names of the entries of an output of this shape, in the order of its flat array."""
        return tuple(".".join([name, *map(str, index)]) for index in np.ndindex(shape))

    @property
    def mechanism(self) -> Any:
        """The robot with contacts that this system is or is made of; None where there is none.

        States of this system begin with states of that, and outputs of modes have its names.
        """
        return None

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """The mode in which the state x flows on under the input u, where the system can tell.

        Those of robots with contacts do. Raises `InputError` for others.
        """
        raise InputError("mode must be given: this system does not tell it from a state")

    def complete_mode(self, key: ModeKey, find_mode: Callable[[], ModeKey]) -> ModeKey:
        """Return the key of an initial mode, where a shorter one than those of the modes is given.

        Args:
            key: The key that is given; returned as it is where it is no shorter one.
            find_mode: Returns the mode that is consistent with the initial state.
        """
        return key

    def describe_outside(self, guard: str, value: float, x: Array, u: Array) -> str:
        """Return the end of an error: why a start is outside its mode, and which mode it is in.

        Args:
            guard: Name of the guard that is negative.
            value: Its value, in its own unit.
            x: State (nx,) at the start.
            u: Input (nu,) there.
        """
        try:
            key = self.consistent_mode(x, u)
        except HybridctlError:  # the system does not tell, or there is none
            return ""
        return f"; mode {key!r} is consistent with x0"

    def start_warnings(self, x: Array) -> tuple[HybridctlWarning, ...]:
        """Return what is doubtful about a start of a simulation.

        Args:
            x: Initial state (nx,).
        """
        return ()

    def greatest_inputs(self, key: ModeKey) -> Array | None:
        """Return what motors can give in a mode, where the system has motors of limited effort.

        Args:
            key: Key of the mode.

        Returns:
            Greatest absolute inputs (nu,), infinite for those without a limit; None where no
            limit is known.
        """
        return None

    def pushed(self, wrench: object) -> HybridSystem:
        """The system while a wrench acts, where it has bodies: those of robots with contacts do.

        Raises `InputError` for others.
        """
        raise InputError("wrench must be None: this system has no bodies to push")

    def acting(self, policy: Policy | InputLaw | None) -> Policy | InputLaw | None:
        """What acts on the system where this policy is given for it."""
        return policy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_modes": {}, "_given": {}, "_outgoing": {}}

    def mode(self, key: ModeKey) -> ModeModel:
        """The mode of that key, with its guards."""
        return _cached(self._modes, key, self._joined)

    def outgoing(self, key: ModeKey) -> Outgoing:
        """The guards of a mode and the edges behind them."""
        return _cached(self._outgoing, key, self._ways_out)

    def _joined(self, key: ModeKey) -> ModeModel:
        return guarded(self._mode_of(key), _cached(self._given, key, self._outgoing_of).guards)

    def _ways_out(self, key: ModeKey) -> Outgoing:
        mode = self.mode(key)
        return replace(_cached(self._given, key, self._outgoing_of), guards=mode.guard_set)


@dataclass(frozen=True)
class _NoInput:
    system: HybridSystem

    def law(self, history: History) -> InputLaw:
        return make_zero_input(self.system.mode(history.mode).nu)


def as_policy(policy: Policy | InputLaw | None, system: HybridSystem) -> Policy:
    """The policy that acts where None (zero input), u(t, x) or a `Policy` is given for a system."""
    policy = system.acting(policy)
    if policy is None:
        return _NoInput(system)
    if isinstance(policy, type):
        raise InputError(f"policy must be an object, got the class {policy.__name__} itself")
    if hasattr(policy, "law") and isinstance(policy, Policy):  # which alone takes 25 us to deny
        return policy
    if callable(policy):
        _check_signature(policy)
        return SameLaw(policy)
    raise InputError(f"policy must be None, a function u(t, x) or a Policy, got {quote(policy)}")


def _check_signature(law: InputLaw) -> None:
    """Check that a function can be called with a time and a state.

    Args:
        law: The function. One whose signature Python cannot read is accepted.

    Raises:
        InputError: It cannot be called with two positional arguments.
    """
    # The usual laws of thousands of short runs come first: `signature` takes 20 us.
    if isinstance(law, HeldInput | LinearFeedback | DifferentiableLaw):
        return
    code = law.__code__ if isinstance(law, FunctionType) else None
    if code is not None and code.co_argcount == 2 and not code.co_kwonlyargcount:
        return
    try:
        parameters = signature(law)
    except (TypeError, ValueError):  # some functions of C do not say
        return
    try:
        parameters.bind(0.0, None)
    except TypeError as error:
        raise InputError(
            f"policy must be a function u(t, x) of time and state, got {quote(law)}, which takes "
            f"{parameters}"
        ) from error


def _cached(known: dict[ModeKey, T], key: ModeKey, make: Callable[[ModeKey], T]) -> T:
    try:
        return known[key]
    except KeyError:
        return known.setdefault(key, make(key))
    except TypeError as error:
        instead = f": give the tuple {tuple(key)!r}" if isinstance(key, list) else ""
        raise UnknownNameError(
            f"mode must be a key, which is hashable, got {quote(key)}{instead}"
        ) from error


def listed_parts(
    name: str, given: Any, kinds: tuple[type[T], ...], part: str, whole: str = "a list"
) -> list[T]:
    """The entries of the argument `name`, which are of these kinds.

    part, whole: what an entry and the argument should be, for messages. Raises
    `SystemDefinitionError` for anything else.
    """
    if not isinstance(given, Iterable):
        raise SystemDefinitionError(f"{name} must be {whole}, got {quote(given)}")
    parts = list(given)
    for i, entry in enumerate(parts):
        if not isinstance(entry, kinds):
            raise SystemDefinitionError(f"{name}[{i}] must be {part}, got {quote(entry)}")
    return parts


def _listed(
    modes: list[ModeModel], transitions: list[Transition]
) -> tuple[Callable[[ModeKey], ModeModel], Callable[[ModeKey], Outgoing]]:
    """Lookup functions of an explicitly listed graph, after checking that it is one."""
    by_key = {mode.key: mode for mode in modes}
    if not modes:
        raise SystemDefinitionError("modes must have at least one mode")
    if len(by_key) != len(modes):
        raise SystemDefinitionError(f"mode keys must differ, got {[m.key for m in modes]}")
    leaving: dict[ModeKey, list[Transition]] = {key: [] for key in by_key}
    for transition in transitions:
        resting = None if transition.rest is None else transition.rest.target
        ends = ("source", transition.source), ("target", transition.target), ("target", resting)
        for end, key in ends:
            if key not in by_key and not (end == "target" and key is None):
                raise SystemDefinitionError(
                    f"{end} {key!r} of a transition is no mode, expected one of {list(by_key)}"
                )
        leaving[transition.source].append(transition)
    outgoing = {key: _outgoing(by_key[key], edges) for key, edges in leaving.items()}
    return partial(_known, by_key), partial(_known, outgoing)


def _known(parts: dict[ModeKey, T], key: ModeKey) -> T:
    if key not in parts:
        raise UnknownNameError(
            f"mode {key!r} is unknown, expected one of {list(parts)}" + suggest_names(key, parts)
        )
    return parts[key]


def _entry(entries: dict[tuple[str, ...], Edge | None], fired: tuple[str, ...]) -> Edge | None:
    """The entry for a set of guards, in any order."""
    return entries.get(tuple(sorted(fired)))


def _outgoing(mode: ModeModel, transitions: list[Transition]) -> Outgoing:
    """The ways out of a mode: by guards of its own, if the transitions name these, or by theirs."""
    key, own = mode.key, mode.guard_set
    guards: dict[str, Guard] = {}
    edges: dict[tuple[str, ...], Edge | None] = {}
    rests: dict[tuple[str, ...], Edge | None] = {}
    for transition in transitions:
        for guard in transition.guards:
            if guards.setdefault(guard.name, guard) is not guard:
                raise SystemDefinitionError(f"mode {key!r} has two guards named {guard.name!r}")
        names = tuple(sorted(guard.name for guard in transition.guards))
        if names in edges:
            raise SystemDefinitionError(f"mode {key!r} has two transitions for guards {names}")
        edges[names] = Edge(transition.reset, transition.target)
        rests[names] = transition.rest
    for name in guards:
        if (name,) not in edges:
            raise SystemDefinitionError(f"mode {key!r} has no transition for {name!r} alone")
    if mode.takes_guards or set(own.names) != set(guards):
        own = GuardSet.of(list(guards.values()))
    return Outgoing(own, partial(_entry, edges), partial(_entry, rests))


class DerivedSystem(HybridSystem, ABC):
    """A system made of another one, `inner`: names, policies, what is drawn, consistent modes.

    Pushed it is what is made of the pushed inner system. A subclass says what differs.
    """

    def __init__(
        self,
        inner: HybridSystem,
        modes: Callable[[ModeKey], ModeModel],
        transitions: Callable[[ModeKey], Outgoing],
        guard_names: Iterable[str] | None,
    ) -> None:
        self.inner = inner
        super().__init__(modes, transitions, guard_names)

    @abstractmethod
    def again(self, inner: HybridSystem) -> HybridSystem:
        """The same, made of another system with these modes."""

    def origin(self, key: ModeKey) -> ModeKey:
        """The inner mode by which coordinates and inputs of a mode are called."""
        return key

    def state_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Labels of the inner system, and those of further coordinates."""
        own, inner = super().state_labels(key), self.inner.state_labels(self.origin(key))
        return (*inner, *own[len(inner) :])

    def input_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Labels of the inner system for the inputs that are left."""
        return self.inner.input_labels(self.origin(key))[: self.mode(key).nu]

    def output_labels(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Labels of the inner system."""
        return self.inner.output_labels(name, shape)

    @property
    def mechanism(self) -> Any:
        """What is drawn of the inner system."""
        return self.inner.mechanism

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """The mode of the inner system in which the state x flows on under the input u."""
        return self.inner.consistent_mode(x, u)

    def describe_outside(self, guard: str, value: float, x: Array, u: Array) -> str:
        """Return what the inner system reports of a start outside its mode."""
        return self.inner.describe_outside(guard, value, x, u)

    def start_warnings(self, x: Array) -> tuple[HybridctlWarning, ...]:
        """Return what is doubtful about the state of the inner system, which x begins with."""
        return self.inner.start_warnings(x)

    def greatest_inputs(self, key: ModeKey) -> Array | None:
        """Return the limits of the inner system's inputs; None where this has other inputs."""
        greatest = self.inner.greatest_inputs(self.origin(key))
        return None if greatest is None or len(greatest) != self.mode(key).nu else greatest

    def pushed(self, wrench: object) -> HybridSystem:
        """The same, made of the inner system while a wrench acts."""
        return self.again(self.inner.pushed(wrench))

    def acting(self, policy: Policy | InputLaw | None) -> Policy | InputLaw | None:
        """What acts on the inner system."""
        return self.inner.acting(policy)


class MappedSystem(DerivedSystem):
    """A system with a change of each of its modes, and of the resets that leave them.

    change(key): of a mode, None for one that is as it is. reset_change(key, fired): of the reset
    behind guards that fire together, by default that of the mode.
    """

    def __init__(
        self,
        inner: HybridSystem,
        change: Callable[[ModeKey], Change | None],
        reset_change: Callable[[ModeKey, tuple[str, ...]], Change] | None = None,
    ) -> None:
        self._change_of, self._reset_change = change, reset_change
        self._changes: dict[ModeKey, Change | None] = {}
        self._mapped: dict[ModeKey, ModeModel] = {}
        super().__init__(inner, self._mode, self._ways, inner.guard_names)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_changes": {}, "_mapped": {}}

    def again(self, inner: HybridSystem) -> HybridSystem:
        """The same changes of another system."""
        return MappedSystem(inner, self._change_of, self._reset_change)

    def _change(self, key: ModeKey) -> Change | None:
        return _cached(self._changes, key, self._change_of)

    def _mode(self, key: ModeKey) -> ModeModel:
        change = self._change(key)
        if change is None:
            return self.inner.mode(key)
        return _cached(self._mapped, key, lambda key: MappedMode(self.inner.mode(key), change))

    def _ways(self, key: ModeKey) -> Outgoing:
        own, change = self.inner.outgoing(key), self._change(key)
        if change is None:
            return own
        resets = None if self._reset_change is None else partial(self._reset_change, key)
        return mapped_ways(own, self._mode(key).guard_set, change, self._change, resets)


def mapped_ways(
    own: Outgoing,
    guards: GuardSet,
    change: Change,
    of_mode: Callable[[ModeKey], Change | None],
    of_reset: Callable[[tuple[str, ...]], Change] | None = None,
) -> Outgoing:
    """The ways out of a mode that is seen through a change, with the guards that it has then.

    of_mode: the changes of other modes. of_reset: those of resets, where they are not this one.
    """
    of_reset = of_reset or (lambda fired: change)

    def seen(
        edges: Callable[[tuple[str, ...]], Edge | None], fired: tuple[str, ...]
    ) -> Edge | None:
        edge = edges(fired)
        return None if edge is None else _mapped_edge(edge, of_reset(fired))

    bridge = None if own.bridge is None else partial(_mapped_bridge, own.bridge, change, of_mode)
    return Outgoing(guards, partial(seen, own.edge), partial(seen, own.rest), bridge)


def _mapped_edge(edge: Edge, change: Change | None) -> Edge:
    return edge if change is None else replace(edge, reset=MappedReset(edge.reset, change))


def _mapped_bridge(
    bridge_at: Callable[[float, Array, Array], Bridge | None],
    change: Change,
    of_mode: Callable[[ModeKey], Change | None],
    t: float,
    x: Array,
    u: Array,
) -> Bridge | None:
    bridge = bridge_at(change.time(t), change.state(x), change.input(u, x))
    if bridge is None:
        return None
    return bridge._replace(edge=_mapped_edge(bridge.edge, of_mode(bridge.mode)))
