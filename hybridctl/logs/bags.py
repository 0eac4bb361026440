"""Messages of a topic, as the objects or dictionaries that decoders give, as a table of fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridctl.logs.raw import RawTable

TEXT = "it is text"
_DEPTH = 12
_LONGEST = 4096  # numbers; images and clouds of points are not kept
_SI_PACKAGES = ("geometry_msgs", "nav_msgs", "sensor_msgs")
_SI = {
    "position": "m",
    "translation": "m",
    "linear": "m/s",
    "angular": "rad/s",
    "angular_velocity": "rad/s",
    "linear_acceleration": "m/s^2",
    "force": "N",
    "torque": "Nm",
}


@dataclass
class Topic:
    """Collects the messages of one topic."""

    name: str
    kind: str
    stamps: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, stamp: int, message: Any) -> None:
        """One message, recorded at `stamp` nanoseconds."""
        self.stamps.append(stamp)
        self.rows.append(dict(_flat(message, "", _DEPTH)))

    def table(self) -> RawTable:
        """Return fields by dotted path, with NaN where a field is missing in a message.

        Arrays beside a list `name`, as in sensor_msgs/JointState, get that list as labels, and
        are sorted by it where its order or its length changes from one message to the next.
        The vectors of the usual ROS packages are in SI units, by convention.
        """
        stamps = np.array(self.stamps, dtype=np.int64)
        table = RawTable(self.name, stamps=stamps, kind=self.kind)
        for path in dict.fromkeys(key for row in self.rows for key in row):
            cells = [row.get(path) for row in self.rows]
            parent, dot, _ = path.rpartition(".")
            names = [row.get(f"{parent}{dot}name") for row in self.rows]
            self._column(table, path, cells, names)
        return table

    def _column(self, table: RawTable, path: str, cells: list[Any], names: list[Any]) -> None:
        if any(isinstance(cell, str) for cell in cells) or any(_is_text(cell) for cell in cells):
            table.unusable[path] = TEXT
            return
        for cell in cells:
            if isinstance(cell, _Unfit):
                table.unusable[path] = cell.reason
                return
        arrays = [np.nan if cell is None else np.asarray(cell) for cell in cells]
        shapes = {np.shape(array) for array in arrays}
        labelled = [
            _is_text(n) and np.shape(a) == (len(n),) for n, a in zip(names, arrays, strict=True)
        ]
        if all(labelled):
            labels = list(dict.fromkeys(label for n in names for label in n))
            table.labels[path] = tuple(labels)
            if any(list(n) != labels for n in names):
                table.fields[path] = _by_label(arrays, names, labels)
                return
        elif any(labelled) and len(shapes) > 1:
            table.unusable[path] = "it is not in every message, or not as long as `name`"
            return
        if len(shapes) > 1 or len(next(iter(shapes))) > 1:
            table.unusable[path] = "its size changes" if len(shapes) > 1 else "it has many axes"
            return
        values = np.array(arrays)
        if path.rpartition(".")[2] in ("stamp", "timestamp") and values.dtype.kind == "i":
            table.units[path] = "ns"
        vector = path.split(".")[-2:-1]
        if vector and self.kind.partition("/")[0] in _SI_PACKAGES and vector[0] in _SI:
            table.units[path] = _SI[vector[0]]
        table.fields[path] = values


@dataclass(frozen=True)
class _Unfit:
    """A mark for what has no place in a table."""

    reason: str


def _flat(message: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield pairs (path, scalar or array) of all leaves; stamps of two parts become one number."""
    for name, value in _parts(message):
        path = f"{prefix}{name}"
        if value is None or isinstance(value, bool | int | float | str):
            yield path, value
            continue
        parts = dict(_parts(value))
        if set(parts) in ({"sec", "nanosec"}, {"sec", "nsec"}):
            rest = parts["nanosec"] if "nanosec" in parts else parts["nsec"]
            yield path, int(parts["sec"]) * 10**9 + int(rest)
        elif parts and depth:
            yield from _flat(value, f"{path}.", depth - 1)
        elif isinstance(value, list | tuple) and any(_parts(item) for item in value):
            gathered = _gather(value)
            if gathered is None:
                yield path, _Unfit("it is a list of messages")
            else:
                yield from ((f"{path}.{part}", numbers) for part, numbers in gathered.items())
        elif isinstance(value, np.ndarray | list | tuple) and np.size(value) > _LONGEST:
            yield path, _Unfit(f"it has {np.size(value)} numbers in one message")
        elif isinstance(value, np.ndarray | np.generic):
            yield path, value
        elif isinstance(value, list | tuple):
            yield path, list(value)


def find_field(message: Any, path: str) -> Any:
    """Return the scalar, text or array at a dotted path of a message, None where there is none.

    It is the value that a table of the topic has there: a stamp in two parts is one whole number
    of nanoseconds, and a path into a list of messages gives an entry for each of them.
    """
    value, rest = message, path
    while rest:
        name, _, rest = rest.partition(".")
        if isinstance(value, list | tuple):  # of messages: the rest is one number of each
            return [_get_part(item, name) for item in value] if not rest else None
        value = _get_part(value, name)
        if value is None:
            return None
    if isinstance(value, bool | int | float | str | np.ndarray | np.generic):
        return value
    if isinstance(value, list | tuple):
        return None if any(_parts(item) for item in value) else list(value)
    seconds, rest_ns = _get_part(value, "sec"), _get_part(value, "nanosec")
    if rest_ns is None:
        rest_ns = _get_part(value, "nsec")
    if seconds is None or rest_ns is None:
        return None
    return int(seconds) * 10**9 + int(rest_ns)


def _get_part(message: Any, name: str) -> Any:
    """Return a part of a message by its name, None where there is none."""
    if isinstance(message, Mapping):
        return message.get(name)
    return getattr(message, name, None) if name in _names_of(message) else None


def _names_of(message: Any) -> Mapping[str, Any]:
    """Return the names of the parts of a decoded message, none of anything else."""
    found: Mapping[str, Any] = getattr(message, "__dataclass_fields__", {})
    return found


def _gather(messages: Sequence[Any]) -> dict[str, list[float]] | None:
    """Return the numbers of messages of one kind as arrays, one entry for each message.

    So the state of each of 20 motors becomes `motor_state.q` with 20 columns. Arrays within the
    messages are left out. None for messages that have text, messages or stamps in them, such as
    transforms, whose order may change.
    """
    rows = [dict(_parts(message)) for message in messages]
    names = list(rows[0])
    if len(rows) > _LONGEST or any(list(row) != names for row in rows):
        return None
    numbers = [name for name in names if all(_is_number(row[name]) for row in rows)]
    plain = [name for name in names if not _is_numeric_array(rows[0][name])]
    return {name: [row[name] for row in rows] for name in numbers} if numbers == plain else None


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _is_numeric_array(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_number, value))
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


def _parts(value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    names = getattr(value, "__dataclass_fields__", ())
    return [(name, getattr(value, name)) for name in names if not name.startswith("__")]


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def _by_label(arrays: list[Any], names: list[Any], labels: list[str]) -> Any:
    place = {label: i for i, label in enumerate(labels)}
    out = np.full((len(arrays), len(labels)), np.nan)
    for row, array, own in zip(out, arrays, names, strict=True):
        row[[place[label] for label in own]] = array
    return out
