"""The mode graph, given as lists or enumerated when a mode is first entered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hybridctl.errors import SystemDefinitionError, UnknownNameError
from hybridctl.hybrid.mode import Edge, Guard, GuardSet, Mode, ModeKey, Outgoing, Transition

T = TypeVar("T")


class HybridSystem:
    """A validated mode graph: modes with their vector fields, guards and resets.

    Two ways to give it:

    - `modes` and `transitions` as lists: every source and target must be a mode, guards of a
      mode need different names, and one set of guards has at most one transition.
    - both as functions of a mode key, for systems whose modes are too many to list (a robot
      with c contacts has 3^c). They are called once per mode, when it is first entered, and
      raise `UnknownNameError` for a key that is no mode.

    It pickles where these parts do; what was entered already is entered again in the copy.
    Raises `SystemDefinitionError` where the parts do not fit.
    """

    def __init__(
        self,
        modes: Iterable[Mode] | Callable[[ModeKey], Mode],
        transitions: Iterable[Transition] | Callable[[ModeKey], Outgoing],
    ) -> None:
        if callable(modes) and callable(transitions):
            self._mode_of, self._outgoing_of = modes, transitions
        elif callable(modes) or callable(transitions):
            raise SystemDefinitionError("give modes and transitions both as lists or as functions")
        else:
            edges = _all("transitions", Transition, transitions)
            graph = _listed(_all("modes", Mode, modes), edges)
            self._mode_of, self._outgoing_of = graph.mode, graph.outgoing
        self._modes: dict[ModeKey, Mode] = {}
        self._outgoing: dict[ModeKey, Outgoing] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return HybridSystem, (self._mode_of, self._outgoing_of)

    def mode(self, key: ModeKey) -> Mode:
        """The mode of that key."""
        return _cached(self._modes, key, self._mode_of)

    def outgoing(self, key: ModeKey) -> Outgoing:
        """The guards of a mode and the edges behind them."""
        return _cached(self._outgoing, key, self._outgoing_of)


def _cached(known: dict[ModeKey, T], key: ModeKey, make: Callable[[ModeKey], T]) -> T:
    try:
        return known[key]
    except KeyError:
        return known.setdefault(key, make(key))
    except TypeError as error:
        raise UnknownNameError(f"mode {key!r} is unknown: a mode key is hashable") from error


def _all(name: str, kind: type[T], given: Any) -> list[T]:
    if not isinstance(given, Iterable):
        raise SystemDefinitionError(f"{name} must be a list or a function, got {given!r}")
    parts = list(given)
    for i, part in enumerate(parts):
        if not isinstance(part, kind):
            raise SystemDefinitionError(f"{name}[{i}] must be a {kind.__name__}, got {part!r}")
    return parts


@dataclass(frozen=True)
class _Graph:
    """A listed mode graph."""

    modes: Mapping[ModeKey, Mode]
    leaving: Mapping[ModeKey, Outgoing]

    def mode(self, key: ModeKey) -> Mode:
        if key not in self.modes:
            raise UnknownNameError(f"mode {key!r} is unknown, expected one of {list(self.modes)}")
        return self.modes[key]

    def outgoing(self, key: ModeKey) -> Outgoing:
        return self.leaving[self.mode(key).key]


def _listed(modes: list[Mode], transitions: list[Transition]) -> _Graph:
    """An explicitly listed graph, after checking that it is one."""
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
    return _Graph(by_key, {key: _outgoing(key, edges) for key, edges in leaving.items()})


@dataclass(frozen=True)
class _Edges:
    """Edges by the sets of guards that fire together; None for a set that has none."""

    by_guards: Mapping[tuple[str, ...], Edge | None]

    def __call__(self, fired: tuple[str, ...]) -> Edge | None:
        return self.by_guards.get(tuple(sorted(fired)))


def _outgoing(key: ModeKey, transitions: list[Transition]) -> Outgoing:
    guards: dict[str, Guard] = {}
    edges: dict[tuple[str, ...], Edge] = {}
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
    return Outgoing(
        GuardSet.of(list(guards.values())),
        _Edges(edges),
        _Edges(rests),
    )
