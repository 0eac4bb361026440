"""A record of finished computations that an interrupted run leaves behind and reads again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from hybridctl import __version__
from hybridctl.checks import quoted
from hybridctl.control.tuning.fingerprint import canonical_form, canonical_text, fingerprint
from hybridctl.errors import FileFormatError, InputError
from hybridctl.files import atomic
from hybridctl.run_store import check_writable
from hybridctl.workers import Crew, call_numbered

R = TypeVar("R")
T = TypeVar("T")
FORMAT = 2
"""Of the file: 2 has digests of code, and canonical forms in its first line."""
_MOST_LISTED = 5
"""Settings that a message names."""


class Journal:
    """Keys with tuples of what JSON holds, in a file of one JSON line for each.

    The first line has the settings that all results depend on, as canonical forms (see
    `fingerprint`). Each other line has a key, the result, and a digest of the code that computed
    it: results of other code or another version of hybridctl stay in the file but are not found. A
    line is written whole or, by a process that is killed, in part: what follows the last whole line
    is dropped.

    Args:
        path: The file. It is made, or read and continued.
        configuration: Settings that the results depend on, by name.
        code: What else they depend on, by name: functions, digests of source and data.

    Attributes:
        others: Number of results in the file that are not found, as other code computed them.

    Raises:
        InputError: For a file of another configuration, and for an entry that has no canonical
            form.
        FileFormatError: For a file that is no journal.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        configuration: Mapping[str, Any],
        code: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.path, self.others = Path(path), 0
        settings = {name: canonical_form(name, entry) for name, entry in configuration.items()}
        self._header = {"format": FORMAT, **settings}
        forms = {name: canonical_form(name, entry) for name, entry in code.items()}
        self._code = fingerprint({"version": __version__, **forms})[:16]
        self._known: dict[str, tuple[Any, ...]] = {}
        if self.path.exists():
            check_writable(self.path)
            self._read()
        else:
            with atomic(self.path, grows=True) as temporary:
                temporary.write_text(_text(self._header) + "\n")

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> tuple[Any, ...] | None:
        """Return what is stored under a key, None if nothing is."""
        return self._known.get(key)

    def values(self) -> tuple[tuple[Any, ...], ...]:
        """Return all that is stored, in the order in which it came."""
        return tuple(self._known.values())

    def put(self, key: str, values: tuple[Any, ...]) -> None:
        """Store values under a key. Raises `InputError` for what JSON does not hold."""
        line = json.dumps([key, values, self._code], default=_as_json)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._known[key] = values

    def _read(self) -> None:
        """Read the file into `_known`, and cut off what follows its last whole line."""
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            header, *lines = whole.decode().splitlines()
            stored = dict(json.loads(header))
            for line in lines:
                key, values, *code = json.loads(line)
                if code in ([], [self._code]):
                    self._known[key] = tuple(values)
                else:
                    self.others += 1
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{self.path} is not a record of a run: {error}") from error
        other = list(_differences(stored, self._header))
        if other:
            raise InputError(
                f"{self.path.parent} holds a run with other settings: {_listed(other)}. Use those "
                "of before again to resume it, overwrite it, or name another folder"
            )
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))


def _as_json(value: Any) -> Any:
    """Return numbers and arrays of numpy as those of JSON; `json.dumps` calls this for the rest."""
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf":
        return value.tolist()
    raise InputError(f"results that are kept must be numbers, text or lists, got {quoted(value)}")


def _text(form: Any) -> str:
    """Return a form as text, by which forms are compared: nan is not equal to itself, 1 is 1.0."""
    return json.dumps(form, sort_keys=True)


def _differences(stored: Any, own: Any, name: str = "") -> Iterator[str]:
    """Yield what differs between two configurations, by dotted name with both values."""
    if isinstance(stored, dict) and isinstance(own, dict) and not _is_tagged(stored | own):
        for key in dict.fromkeys([*stored, *own]):
            yield from _differences(stored.get(key), own.get(key), f"{name}.{key}" if name else key)
    elif _text(stored) != _text(own):
        long = isinstance(stored, dict | list) or isinstance(own, dict | list)
        yield name if long else f"{name} (before {quoted(stored)}, now {quoted(own)})"


def _is_tagged(form: Mapping[str, Any]) -> bool:
    """Return whether a form describes one value, and no mapping."""
    return any(key.startswith("$") for key in form)


def _listed(names: Sequence[str]) -> str:
    """Return some of the names as text."""
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def completed(
    fn: Callable[[T], R],
    items: Sequence[T],
    crew: Crew,
    tick: Callable[[float], None] | None = None,
    record: Journal | None = None,
    key: Callable[[T], str] | None = None,
) -> list[R]:
    """Return the results of `fn` for all items, in their order; they may come in another one.

    Args:
        fn: The computation. A record keeps its results, which are tuples then.
        items: The arguments, one for each call. Those that are equal are computed each.
        crew: Who computes.
        tick: Called after each result with the share of items that is done.
        record: Journal with the results so far, which are not computed again; its inner tuples
            come back as lists. Results are added to it as they come.
        key: Name of an item in the record. Items that differ need keys that differ: by default
            their canonical form.

    Returns:
        The results.
    """
    found: dict[int, Any] = {}
    key = key or partial(canonical_text, "item")

    def keep(number: int, result: Any) -> None:
        found[number] = result
        if tick is not None:
            tick(len(found) / len(items))

    for number, item in enumerate(items):
        stored = None if record is None else record.get(key(item))
        if stored is not None:
            keep(number, stored)
    left = [(number, item) for number, item in enumerate(items) if number not in found]
    for (number, item), call in crew.finished(partial(call_numbered, fn), left):
        result: Any = call.result()
        if record is not None:
            record.put(key(item), result)
        keep(number, result)
    return [found[number] for number in range(len(items))]


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
