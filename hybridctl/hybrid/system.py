"""The mode graph, given as lists or enumerated when a mode is first entered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, quote, suggest_names, suggest_tuple
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
from hybridctl.hybrid.mapped import Change, MappedReset
from hybridctl.hybrid.mode import (
    Bridge,
    Edge,
    Guard,
    GuardSet,
    Mode,
    ModeKey,
    ModeModel,
    Outgoing,
    Transition,
    attach_guards,
)
from hybridctl.hybrid.policy import History, Policy, SameLaw

T = TypeVar("T")


class HybridSystem:
    """A validated mode graph: modes with their vector fields, guards and resets.

    It is given as lists, or as functions of a mode key for systems whose modes are too many to list
    (a robot with c contacts has 3^c). Functions are called once per mode, when it is first entered.
    A system pickles where these parts do; modes are entered anew in the copy.

    Args:
        modes: The modes, or a function that returns the mode of a key and raises
            `UnknownNameError` for a key that is no mode.
        transitions: The transitions, or a function that returns the `Outgoing` of a mode's key. In
            a list every source and target must be a mode, guards of a mode need different names,
            and one set of guards has at most one transition.
        guard_names: With functions, the names that guards of any mode have; others are refused
            where users give them. None if they are not known.

    Attributes:
        guard_names: The same; with lists those of the transitions.

    Raises:
        SystemDefinitionError: The parts do not fit together.
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
            nodes = check_parts("modes", modes, (ModeModel,), "a Mode", whole)
            listed = check_parts("transitions", transitions, (Transition,), "a Transition", whole)
            self._mode_of, self._outgoing_of = _make_lookups(nodes, listed)
            guard_names = [guard.name for transition in listed for guard in transition.guards]
        self.guard_names = None if guard_names is None else tuple(dict.fromkeys(guard_names))
        self._modes: dict[ModeKey, ModeModel] = {}
        self._given: dict[ModeKey, Outgoing] = {}  # with guards that may be others than the mode's
        self._outgoing: dict[ModeKey, Outgoing] = {}

    def __repr__(self) -> str:
        guards = "by mode" if self.guard_names is None else ", ".join(self.guard_names)
        return f"{type(self).__name__}(guards {guards})"

    def _repr_html_(self) -> str:
        """Return a table of the guards."""
        return render_html_table(("guard",), [(name,) for name in self.guard_names or ("by mode",)])

    def state_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Return names of the coordinates (nx,) of a mode's state, with units if they are known.

        Args:
            key: Key of the mode.
        """
        return tuple(f"x{k}" for k in range(self.mode(key).space.nx))

    def input_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Return names of the entries (nu,) of a mode's input, with units if they are known.

        Args:
            key: Key of the mode.
        """
        return tuple(f"u{k}" for k in range(self.mode(key).nu))

    def output_labels(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return names of the entries of an output, in the order of its flat array.

        Args:
            name: Name of the output.
            shape: Its shape.
        """
        return tuple(".".join([name, *map(str, index)]) for index in np.ndindex(shape))

    @property
    def mechanism(self) -> Any:
        """The robot with contacts that this system is, or is made of; None where there is none.

        States of this system begin with those of the robot, and outputs of modes have its names.
        """
        return None

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """Return the key of the mode in which a state flows on: those of robots with contacts do.

        Args:
            x: State (nx,).
            u: Input (nu,). None for zero.

        Raises:
            InputError: The system cannot tell it from a state.
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
        """Return the system while wrenches act on bodies, which robots with contacts have.

        Args:
            wrench: The wrench, or several.

        Raises:
            InputError: The system has no bodies.
        """
        raise InputError("wrench must be None: this system has no bodies to push")

    def resolve_policy(self, policy: Policy | InputLaw | None) -> Policy | InputLaw | None:
        """Return what acts on the system where a policy is given for it.

        Args:
            policy: The policy, a law, or None for zero input.
        """
        return policy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_modes": {}, "_given": {}, "_outgoing": {}}

    def mode(self, key: ModeKey) -> ModeModel:
        """Return a mode with its guards.

        Args:
            key: Key of the mode.

        Raises:
            UnknownNameError: The key is of no mode.
        """
        return _find_or_make(self._modes, key, self._make_mode)

    def outgoing(self, key: ModeKey) -> Outgoing:
        """Return the guards of a mode and the edges behind them.

        Args:
            key: Key of the mode.

        Raises:
            UnknownNameError: The key is of no mode.
        """
        return _find_or_make(self._outgoing, key, self._make_outgoing)

    def _make_mode(self, key: ModeKey) -> ModeModel:
        given = _find_or_make(self._given, key, self._outgoing_of)
        return attach_guards(self._mode_of(key), given.guards)

    def _make_outgoing(self, key: ModeKey) -> Outgoing:
        mode = self.mode(key)
        return replace(_find_or_make(self._given, key, self._outgoing_of), guards=mode.guard_set)


@dataclass(frozen=True)
class _NoInput:
    """The policy of zero input, of the size that the mode of an arc has."""

    system: HybridSystem
    keeps_law: ClassVar[bool] = True

    def law(self, history: History) -> InputLaw:
        return make_zero_input(self.system.mode(history.mode).nu)


def as_policy(policy: Policy | InputLaw | None, system: HybridSystem) -> Policy:
    """Return the policy that acts on a system.

    Args:
        policy: None for zero input, a law u(t, x), or a `Policy`.
        system: The system.

    Raises:
        InputError: The policy is neither.
    """
    policy = system.resolve_policy(policy)
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


def _find_or_make(known: dict[ModeKey, T], key: ModeKey, make: Callable[[ModeKey], T]) -> T:
    """Return the entry of a key, made and added to `known` where it is not there yet.

    Raises:
        UnknownNameError: The key is not hashable, or `make` raises it for a key of no mode.
    """
    try:
        return known[key]
    except KeyError:
        return known.setdefault(key, make(key))
    except TypeError as error:
        raise UnknownNameError(
            f"mode must be a key, which is hashable, got {quote(key)}{suggest_tuple(key)}"
        ) from error


def check_parts(
    name: str, given: Any, kinds: tuple[type[T], ...], part: str, whole: str = "a list"
) -> list[T]:
    """Return the entries of an argument as a list, after checks.

    Args:
        name: Name of the argument.
        given: The argument.
        kinds: Classes that its entries may have.
        part: What an entry should be, for messages.
        whole: What the argument should be, for messages.

    Raises:
        SystemDefinitionError: It is no list, or an entry is of another class.
    """
    if not isinstance(given, Iterable):
        raise SystemDefinitionError(f"{name} must be {whole}, got {quote(given)}")
    parts = list(given)
    for i, entry in enumerate(parts):
        if not isinstance(entry, kinds):
            raise SystemDefinitionError(f"{name}[{i}] must be {part}, got {quote(entry)}")
    return parts


def _make_lookups(
    modes: list[ModeModel], transitions: list[Transition]
) -> tuple[Callable[[ModeKey], ModeModel], Callable[[ModeKey], Outgoing]]:
    """Return the functions of a mode's key for a graph that is given as lists, after checks.

    Args:
        modes: The modes.
        transitions: The transitions.

    Raises:
        SystemDefinitionError: There is no mode, or names are double, missing or unknown.
    """
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
    outgoing = {key: _connect_mode(by_key[key], edges) for key, edges in leaving.items()}
    return partial(_look_up, by_key), partial(_look_up, outgoing)


def _look_up(parts: dict[ModeKey, T], key: ModeKey) -> T:
    if key not in parts:
        raise UnknownNameError(
            f"mode {key!r} is unknown, expected one of {list(parts)}" + suggest_names(key, parts)
        )
    return parts[key]


def _find_entry(entries: dict[tuple[str, ...], Edge | None], fired: tuple[str, ...]) -> Edge | None:
    """Return the entry for a set of guards, in any order."""
    return entries.get(tuple(sorted(fired)))


def _connect_mode(mode: ModeModel, transitions: list[Transition]) -> Outgoing:
    """Return the ways out of a mode.

    Args:
        mode: The mode. Guards of its own count if the transitions name just these; else the guards
            of the transitions do.
        transitions: The transitions that leave it.

    Raises:
        SystemDefinitionError: Guards have the same name, or a set of guards two transitions, or a
            guard none alone.
    """
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
    if isinstance(mode, Mode) or set(own.names) != set(guards):
        own = GuardSet.of(list(guards.values()))
    return Outgoing(own, partial(_find_entry, edges), partial(_find_entry, rests))


class DerivedSystem(HybridSystem, ABC):
    """A system made of another one, with its names, policies, drawings and consistent modes.

    A subclass overrides what differs.

    Args:
        inner: The system that it is made of.
        modes: Returns the mode of a key.
        transitions: Returns the ways out of the mode of a key.
        guard_names: Names that guards of any mode have. None if they are not known.
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
    def rebuild_on(self, inner: HybridSystem) -> HybridSystem:
        """Return a copy of this system that is built on another inner system.

        Args:
            inner: The other system, which has the modes of the present one, such as the pushed one.
        """

    def origin(self, key: ModeKey) -> ModeKey:
        """Return the key of the inner mode that names the coordinates and inputs of a mode.

        Args:
            key: Key of the mode.
        """
        return key

    def state_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Return the labels of the inner system, and of further coordinates.

        Args:
            key: Key of the mode.
        """
        own, inner = super().state_labels(key), self.inner.state_labels(self.origin(key))
        return (*inner, *own[len(inner) :])

    def input_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Return the labels of the inner system for the inputs that are left.

        Args:
            key: Key of the mode.
        """
        return self.inner.input_labels(self.origin(key))[: self.mode(key).nu]

    def output_labels(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the labels of the inner system.

        Args:
            name: Name of the output.
            shape: Its shape.
        """
        return self.inner.output_labels(name, shape)

    @property
    def mechanism(self) -> Any:
        """The robot of the inner system, which is drawn."""
        return self.inner.mechanism

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """Return the key of the inner mode in which a state flows on.

        Args:
            x: State (nx,).
            u: Input (nu,). None for zero.

        Raises:
            InputError: The inner system cannot tell it from a state.
        """
        return self.inner.consistent_mode(x, u)

    def describe_outside(self, guard: str, value: float, x: Array, u: Array) -> str:
        """Return what the inner system reports of a start outside its mode.

        Args:
            guard: Name of the guard that is negative.
            value: Its value, in its own unit.
            x: State (nx,) at the start.
            u: Input (nu,) there.
        """
        return self.inner.describe_outside(guard, value, x, u)

    def start_warnings(self, x: Array) -> tuple[HybridctlWarning, ...]:
        """Return what is doubtful about the state of the inner system, which x begins with."""
        return self.inner.start_warnings(x)

    def greatest_inputs(self, key: ModeKey) -> Array | None:
        """Return the limits of the inner system's inputs; None where this has other inputs."""
        greatest = self.inner.greatest_inputs(self.origin(key))
        return None if greatest is None or len(greatest) != self.mode(key).nu else greatest

    def pushed(self, wrench: object) -> HybridSystem:
        """Return a copy of this system that is built on the inner one while wrenches act.

        Args:
            wrench: The wrench, or several.

        Raises:
            InputError: The inner system has no bodies.
        """
        return self.rebuild_on(self.inner.pushed(wrench))

    def resolve_policy(self, policy: Policy | InputLaw | None) -> Policy | InputLaw | None:
        """Return what acts on the inner system.

        Args:
            policy: The policy, a law, or None for zero input.
        """
        return self.inner.resolve_policy(policy)


class MappedSystem(DerivedSystem):
    """A system with a change of each of its modes, and of the resets that leave them.

    Args:
        inner: The system that it is made of.
        change: Returns the change of the mode of a key, None for a mode that stays as it is.
        reset_change: Returns the change of a reset, for the key of its mode and the names of the
            guards that fire together. If None, it is that of the mode.
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
        super().__init__(inner, self._mode, self._map_outgoing_of, inner.guard_names)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_changes": {}, "_mapped": {}}

    def rebuild_on(self, inner: HybridSystem) -> HybridSystem:
        """Return a system with the changes of this one, built on another inner system.

        Args:
            inner: The other system, which has the modes of the present one.
        """
        return MappedSystem(inner, self._change_of, self._reset_change)

    def _change(self, key: ModeKey) -> Change | None:
        return _find_or_make(self._changes, key, self._change_of)

    def _mode(self, key: ModeKey) -> ModeModel:
        change = self._change(key)
        if change is None:
            return self.inner.mode(key)
        return _find_or_make(self._mapped, key, lambda key: change.map_mode(self.inner.mode(key)))

    def _map_outgoing_of(self, key: ModeKey) -> Outgoing:
        own, change = self.inner.outgoing(key), self._change(key)
        if change is None:
            return own
        resets = None if self._reset_change is None else partial(self._reset_change, key)
        return map_outgoing(own, self._mode(key).guard_set, change, self._change, resets)


def map_outgoing(
    own: Outgoing,
    guards: GuardSet,
    change: Change,
    of_mode: Callable[[ModeKey], Change | None],
    of_reset: Callable[[tuple[str, ...]], Change] | None = None,
) -> Outgoing:
    """Return the ways out of a mapped mode.

    Args:
        own: Ways out of the inner mode.
        guards: Guards of the mapped mode.
        change: The change of the mode.
        of_mode: Returns the change of the mode of a key, None for one that stays as it is.
        of_reset: Returns the change of the reset behind guards. If None, it is that of the mode.
    """
    of_reset = of_reset or (lambda fired: change)

    def map_edge_of(
        edges: Callable[[tuple[str, ...]], Edge | None], fired: tuple[str, ...]
    ) -> Edge | None:
        edge = edges(fired)
        return None if edge is None else _map_edge(edge, of_reset(fired))

    bridge = None if own.bridge is None else partial(_map_bridge, own.bridge, change, of_mode)
    return Outgoing(guards, partial(map_edge_of, own.edge), partial(map_edge_of, own.rest), bridge)


def _map_edge(edge: Edge, change: Change | None) -> Edge:
    return edge if change is None else replace(edge, reset=MappedReset(edge.reset, change))


def _map_bridge(
    bridge_at: Callable[[float, Array, Array], Bridge | None],
    change: Change,
    of_mode: Callable[[ModeKey], Change | None],
    t: float,
    x: Array,
    u: Array,
) -> Bridge | None:
    bridge = bridge_at(*change.to_inner(t, x, u))
    if bridge is None:
        return None
    return bridge._replace(edge=_map_edge(bridge.edge, of_mode(bridge.mode)))
