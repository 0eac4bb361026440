"""A journal of finished computations, from which an interrupted run is resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from hybridctl import __version__
from hybridctl.base.checks import check_path, join_names, quote
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import atomic
from hybridctl.base.fingerprint import compute_fingerprint, make_canonical_form, make_canonical_text
from hybridctl.base.run_store import check_writable
from hybridctl.base.workers import Crew, call_numbered

R = TypeVar("R")
T = TypeVar("T")
FORMAT_VERSION = 2
"""Version of the file: 2 has digests of code, and canonical forms in its first line. A file of
another version counts as one of other settings."""
_CODE_DIGITS = 16
"""Hexadecimal digits of the digest of the code in each line: 64 bits tell a few versions apart."""
_MAX_LISTED_SETTINGS = 5
"""Most settings that a message names, to keep it short. A choice."""


class Journal:
    """Results by key, kept in a file with one line of JSON for each.

    Life cycle: the constructor makes the file or reads it, `get` returns a result from memory, and
    `put` adds one to memory and to the file. The file is open only during a `put`.

    The first line has the settings that all results depend on, as canonical forms (see
    `fingerprint.make_canonical_form`). Each other line has a key, the result, and a digest of the
    code that computed it: results of other code or another version of hybridctl stay in the file
    but are not found. A process that is killed may leave a line in part: what follows the last
    whole line is cut off at the next start. Nothing keeps a second process from the file but the
    lock of its `RunStore`.

    Args:
        path: The file. It is made, or read and continued.
        configuration: Settings that the results depend on, by name.
        code: What else they depend on, by name: functions, digests of source and data.

    Attributes:
        path: The file.
        unused_results: Number of results in the file that `get` does not return, as other code
            computed them.

    Raises:
        InputError: The file has another configuration, or an entry has no canonical form.
        FileFormatError: The file is no journal.
        FileWriteError: The file cannot be made, or is a foreign one in the folder of an open run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        configuration: Mapping[str, Any],
        code: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.path, self.unused_results = check_path("path", path), 0
        settings = {name: make_canonical_form(name, entry) for name, entry in configuration.items()}
        self._header = {"format": FORMAT_VERSION, **settings}
        forms = {name: make_canonical_form(name, entry) for name, entry in code.items()}
        self._code = compute_fingerprint({"version": __version__, **forms})[:_CODE_DIGITS]
        self._known: dict[str, tuple[Any, ...]] = {}
        if self.path.exists():
            check_writable(self.path)
            self._read()
        else:
            with atomic(self.path, grows=True) as temporary:
                temporary.write_text(_write_form(self._header) + "\n")

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> tuple[Any, ...] | None:
        """Return the result under a key, None if there is none.

        Tuples within a result that was read from the file are lists.
        """
        return self._known.get(key)

    def values(self) -> tuple[tuple[Any, ...], ...]:
        """Return all results, in the order in which their keys were first stored."""
        return tuple(self._known.values())

    def put(self, key: str, values: tuple[Any, ...]) -> None:
        """Store the values of a result under a key, in place of earlier ones.

        Args:
            key: Name of the computation.
            values: Its result. Numbers and arrays of numpy are stored as those of JSON; infinities
                and NaN are stored as Python's `json` writes them.

        Raises:
            InputError: JSON does not hold one of the values. Nothing is stored.
            OSError: The file cannot be written.
        """
        try:
            line = json.dumps([key, values, self._code], default=_convert_numpy)
        except InputError:  # of `_convert_numpy`; it is a ValueError, too
            raise
        except (TypeError, ValueError) as error:  # keys that are no text, a value within itself
            raise InputError(
                f"results that are kept must be numbers, text or lists: {error}"
            ) from error
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._known[key] = values

    def _read(self) -> None:
        """Update `_known` and `unused_results` from the file, and cut off an unfinished last line.

        Raises:
            InputError: The first line has other settings. The file is left as it is.
            FileFormatError: The file is no journal.
        """
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            header, *lines = whole.decode().splitlines()
            stored = dict(json.loads(header))
            for line in lines:
                key, values, code = json.loads(line)
                if code == self._code:
                    self._known[key] = tuple(values)
                else:
                    self.unused_results += 1
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{self.path} is not a record of a run: {error}") from error
        other = list(_find_differences(stored, self._header))
        if other:
            raise InputError(
                f"{self.path.parent} holds a run with other settings: "
                f"{join_names(other, _MAX_LISTED_SETTINGS)}. Use those of before again to resume "
                "it, overwrite it, or name another folder"
            )
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))


def _convert_numpy(value: Any) -> Any:
    """Return a number or an array of numpy as those of Python.

    `json.dumps` calls this for each value that it cannot write itself.

    Raises:
        InputError: The value is something else.
    """
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf":
        return value.tolist()
    raise InputError(f"results that are kept must be numbers, text or lists, got {quote(value)}")


def _write_form(form: Any) -> str:
    """Return a form as text, to compare forms: to Python 1 equals 1.0, and nan not itself."""
    return json.dumps(form, sort_keys=True)


def _find_differences(stored: Any, own: Any, name: str = "") -> Iterator[str]:
    """Yield the settings that differ between two configurations.

    Args:
        stored: Form in the file.
        own: Form of this run.
        name: Dotted name of the setting that both are of, "" for all settings.

    Yields:
        The dotted name with both values. Of lists and mappings the name alone: they are long.
    """
    if isinstance(stored, dict) and isinstance(own, dict) and not _is_tagged(stored | own):
        for key in dict.fromkeys([*stored, *own]):
            dotted = f"{name}.{key}" if name else key
            yield from _find_differences(stored.get(key), own.get(key), dotted)
    elif _write_form(stored) != _write_form(own):
        long = isinstance(stored, dict | list) or isinstance(own, dict | list)
        yield name if long else f"{name} (before {quote(stored)}, now {quote(own)})"


def _is_tagged(form: Mapping[str, Any]) -> bool:
    """Return whether a form describes one value by a key with "$", and is no mapping."""
    return any(key.startswith("$") for key in form)


def compute_all(
    fn: Callable[[T], R],
    items: Sequence[T],
    crew: Crew,
    tick: Callable[[float], None] | None = None,
    record: Journal | None = None,
    key: Callable[[T], str] | None = None,
) -> list[R]:
    """Return the results of `fn` for all items, in the order of the items.

    The calls may end in another order. An error of a call is raised here, after the results that
    ended before it were recorded.

    Args:
        fn: The computation. With a record it must return tuples.
        items: The arguments, one for each call. Items that are equal are computed separately.
        crew: Executor of the calls.
        tick: Called after each result with the share of items that is done, from 0 to 1.
        record: Journal with the results so far, which are not computed again; its inner tuples
            come back as lists. Results are added to it as they come.
        key: Returns the name of an item in the record. Items that differ need keys that differ. By
            default the canonical form of the item.

    Returns:
        The results, one for each item.

    Raises:
        InputError: An item has no canonical form, or a result cannot be recorded.
        Exception: `fn` raises it for an item.
    """
    found: dict[int, Any] = {}
    key = key or partial(make_canonical_text, "item")

    # By number, as items that are equal to Python (1, 1.0, True) are different computations.
    def store_result(number: int, result: Any) -> None:
        found[number] = result
        if tick is not None:
            tick(len(found) / len(items))

    for number, item in enumerate(items):
        stored = None if record is None else record.get(key(item))
        if stored is not None:
            store_result(number, stored)
    left = [(number, item) for number, item in enumerate(items) if number not in found]
    for (number, item), call in crew.finished(partial(call_numbered, fn), left):
        result: Any = call.result()
        if record is not None:
            record.put(key(item), result)
        store_result(number, result)
    return [found[number] for number in range(len(items))]


def compute_trials(
    fn: Callable[[tuple[T, int]], R],
    cases: Sequence[T],
    numbers: Sequence[int],
    crew: Crew,
    tick: Callable[[float], None] | None = None,
) -> dict[T, list[R]]:
    """Return the results of `fn((case, number))` for all numbers, by case.

    Args:
        fn: The computation.
        cases: Hashable cases, each once.
        numbers: Numbers of the trials of each case.
        crew: Executor of the calls.
        tick: Called after each result with the share of trials that is done, from 0 to 1.

    Returns:
        The results of each case, in the order of `numbers`.
    """
    trials = [(case, number) for case in cases for number in numbers]
    found = iter(compute_all(fn, trials, crew, tick))
    return {case: [next(found) for _ in numbers] for case in cases}
