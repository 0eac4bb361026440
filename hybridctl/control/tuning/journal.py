"""A record of finished computations that an interrupted run leaves behind and reads again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hybridctl.errors import FileFormatError, InputError
from hybridctl.files import atomic
from hybridctl.run_store import check_writable
from hybridctl.workers import Crew

R = TypeVar("R")
T = TypeVar("T")


class Journal:
    """Keys with tuples of what JSON holds, in a file of one JSON line for each.

    configuration: what the results depend on; a file of another one raises `InputError`. A line
    is written whole or, by a process that is killed, in part: what follows the last whole line
    is dropped.
    """

    def __init__(self, path: str | os.PathLike[str], configuration: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._header = json.dumps(configuration, sort_keys=True)
        self._known: dict[str, tuple[Any, ...]] = {}
        if self.path.exists():
            check_writable(self.path)
            self._read()
        else:
            with atomic(self.path, grows=True) as temporary:
                temporary.write_text(self._header + "\n")

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> tuple[Any, ...] | None:
        """What is stored under a key, None if nothing is."""
        return self._known.get(key)

    def values(self) -> tuple[tuple[Any, ...], ...]:
        """All that is stored, in the order in which it came."""
        return tuple(self._known.values())

    def put(self, key: str, values: tuple[Any, ...]) -> None:
        """Store values under a key."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps([key, values]) + "\n")
        self._known[key] = values

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            header, *lines = whole.decode().splitlines()
            stored = json.loads(header)
            for line in lines:
                key, values = json.loads(line)
                self._known[key] = tuple(values)
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{self.path} is not a record of a run: {error}") from error
        if stored != json.loads(self._header):
            raise InputError(
                f"{self.path.parent} holds a run with other settings: use them again to resume it, "
                "or another folder"
            )
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))


def completed(
    fn: Callable[[T], R],
    items: Sequence[T],
    crew: Crew,
    tick: Callable[[float], None] | None = None,
    record: Journal | None = None,
    key: Callable[[T], str] = str,
) -> list[R]:
    """The results of `fn` for all items, in their order; they may be computed in another one.

    tick: is called at each with the share that is done. record: keeps results, which are tuples
    then, under `key(item)` as they come; those that it holds already are taken from it, with lists
    for inner tuples.
    """
    found: dict[T, Any] = {}

    def keep(item: T, result: Any) -> None:
        found[item] = result
        if tick is not None:
            tick(len(found) / len(items))

    for item in items:
        stored = None if record is None else record.get(key(item))
        if stored is not None:
            keep(item, stored)
    for item, call in crew.finished(fn, [item for item in items if item not in found]):
        result: Any = call.result()
        if record is not None:
            record.put(key(item), result)
        keep(item, result)
    return [found[item] for item in items]


def repeated(
    fn: Callable[[tuple[T, int]], R],
    cases: Sequence[T],
    numbers: Sequence[int],
    crew: Crew,
    tick: Callable[[float], None] | None = None,
) -> dict[T, list[R]]:
    """What `fn((case, number))` finds of each case, for all numbers; see `completed`."""
    trials = [(case, number) for case in cases for number in numbers]
    found = iter(completed(fn, trials, crew, tick))
    return {case: [next(found) for _ in numbers] for case in cases}
