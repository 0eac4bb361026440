"""Messages of one topic as a table: nested fields become columns named by dotted paths.

Messages are the objects or dictionaries that decoders return. A path such as `pose.position.x`
leads to a number, a text, or an array of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridctl.logs.raw import RawTable

IS_TEXT = "it is text"
"""Reason why a field of text is unusable."""
_DEEPEST_NESTING = 12
"""Levels of nested messages that are opened; deeper ones are left out. The value is a choice."""
_MOST_NUMBERS = 4096
"""Largest array that is kept, in numbers: images and clouds of points are left out."""
_SI_PACKAGES = ("geometry_msgs", "nav_msgs", "sensor_msgs")
"""Packages of ROS whose vectors are in SI units, by the convention of REP 103."""
_VECTOR_UNITS = {
    "position": "m",
    "translation": "m",
    "linear": "m/s",
    "angular": "rad/s",
    "angular_velocity": "rad/s",
    "linear_acceleration": "m/s^2",
    "force": "N",
    "torque": "Nm",
}
"""Units of vectors in messages of these packages, by the name of the vector."""
_ACCELERATION_UNITS = {"linear": "m/s^2", "angular": "rad/s^2"}
"""Units where types named `Accel...` of geometry_msgs use the names that twists have."""


@dataclass
class CollectedTopic:
    """The messages of one topic, collected one by one and then made into a table.

    Attributes:
        name: The topic.
        kind: Type of its messages; empty while it is not known.
        stamps: Times in ns at which the messages were recorded.
        rows: Flattened messages, a dictionary from dotted path to value each.
    """

    name: str
    kind: str
    stamps: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, stamp: int, message: Any) -> None:
        """Append a decoded message that was recorded at `stamp` nanoseconds."""
        self.stamps.append(stamp)
        self.rows.append(dict(flatten_message(message, "", _DEEPEST_NESTING)))

    def make_table(self) -> RawTable:
        """Return the fields by dotted path, one row for each message.

        A number that a message does not have is NaN. Arrays beside a list `name`, as in
        sensor_msgs/JointState, get that list as labels, and are sorted by it where its order or its
        length changes from one message to the next. The vectors of `_SI_PACKAGES` get units. Text,
        and arrays whose size changes otherwise or which a message lacks, are unusable.
        """
        stamps = np.array(self.stamps, dtype=np.int64)
        table = RawTable(self.name, stamps=stamps, kind=self.kind)
        for path in dict.fromkeys(key for row in self.rows for key in row):
            cells = [row.get(path) for row in self.rows]
            parent, dot, _ = path.rpartition(".")
            names = [row.get(f"{parent}{dot}name") for row in self.rows]
            self._fill_field(table, path, cells, names)
        return table

    def _fill_field(self, table: RawTable, path: str, cells: list[Any], names: list[Any]) -> None:
        """Add a field to a table, or the reason why it is unusable.

        Args:
            table: The table; its fields, labels, units and unusable fields are set.
            path: Path of the field.
            cells: Value of the field in each message; None where a message has none.
            names: Value of the field `name` beside it in each message; None where there is none.
        """
        if any(isinstance(cell, str) or _is_text_list(cell) for cell in cells):
            table.unusable[path] = IS_TEXT
            return
        for cell in cells:
            if isinstance(cell, UnfitValue):
                table.unusable[path] = cell.reason
                return
        arrays = [np.nan if cell is None else np.asarray(cell) for cell in cells]
        shapes = {np.shape(array) for array in arrays}
        labelled = [
            _is_text_list(n) and np.shape(a) == (len(n),)
            for n, a in zip(names, arrays, strict=True)
        ]
        if all(labelled):
            labels = list(dict.fromkeys(label for n in names for label in n))
            table.labels[path] = tuple(labels)
            if any(list(n) != labels for n in names):
                table.fields[path] = _sort_by_label(arrays, names, labels)
                return
        elif any(labelled) and len(shapes) > 1:
            # Without its labels, an array of another length cannot be assigned to columns.
            table.unusable[path] = "it is not in every message, or not as long as `name`"
            return
        if len(shapes) > 1 or len(next(iter(shapes))) > 1:
            table.unusable[path] = "its size changes" if len(shapes) > 1 else "it has many axes"
            return
        values = np.array(arrays)
        if path.rpartition(".")[2] in ("stamp", "timestamp") and values.dtype.kind == "i":
            table.units[path] = "ns"
        vector = path.split(".")[-2:-1]
        package, _, kind = self.kind.partition("/")
        units = _VECTOR_UNITS
        if kind.rpartition("/")[2].startswith("Accel"):
            units = units | _ACCELERATION_UNITS
        if vector and package in _SI_PACKAGES and vector[0] in units:
            table.units[path] = units[vector[0]]
        table.fields[path] = values


@dataclass(frozen=True)
class UnfitValue:
    """A value of a message that has no place in a table.

    Attributes:
        reason: Why it has none.
    """

    reason: str


def flatten_message(message: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield all leaves of a message.

    Args:
        message: A decoded message.
        prefix: Path of the message with its dot; empty for the whole message.
        depth: Levels of nested messages that are opened.

    Yields:
        Path and value: a scalar, a text, an array, a list of scalars, None, or an `UnfitValue`. A
        stamp in two parts is one whole number of nanoseconds. Messages nested deeper than `depth`
        are left out.
    """
    for name, value in _list_parts(message):
        path = f"{prefix}{name}"
        if value is None or isinstance(value, bool | int | float | str):
            yield path, value
            continue
        parts = dict(_list_parts(value))
        if set(parts) in ({"sec", "nanosec"}, {"sec", "nsec"}):
            rest = parts["nanosec"] if "nanosec" in parts else parts["nsec"]
            yield path, int(parts["sec"]) * 10**9 + int(rest)
        elif parts and depth:
            yield from flatten_message(value, f"{path}.", depth - 1)
        elif isinstance(value, list | tuple) and any(_list_parts(item) for item in value):
            gathered = _gather_numbers(value)
            if gathered is None:
                yield path, UnfitValue("it is a list of messages")
            else:
                yield from ((f"{path}.{part}", numbers) for part, numbers in gathered.items())
        elif isinstance(value, np.ndarray | list | tuple) and np.size(value) > _MOST_NUMBERS:
            yield path, UnfitValue(f"it has {np.size(value)} numbers in one message")
        elif isinstance(value, np.ndarray | np.generic):
            yield path, value
        elif isinstance(value, list | tuple):
            yield path, list(value)


def find_field(message: Any, path: str) -> Any:
    """Return the scalar, text or array at a dotted path of a message, None where there is none.

    It is the value that `flatten_message` yields for the path, unless that is an `UnfitValue`, and
    is found without opening the whole message. A path into a list of messages gives a list with an
    entry for each of them.

    Args:
        message: A decoded message.
        path: Dotted path of a field.
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
        return None if any(_list_parts(item) for item in value) else list(value)
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
    return getattr(message, name, None) if name in _get_part_names(message) else None


def _get_part_names(message: Any) -> Mapping[str, Any]:
    """Return the names of the parts of a decoded message, none for any other value."""
    found: Mapping[str, Any] = getattr(message, "__dataclass_fields__", {})
    return found


def _gather_numbers(messages: Sequence[Any]) -> dict[str, list[float]] | None:
    """Return the numbers of messages of one kind as arrays, one entry for each message.

    So the state of each of 20 motors becomes `motor_state.q` with 20 columns. Arrays within the
    messages are left out.

    Args:
        messages: A list of messages within a message.

    Returns:
        The arrays by name. None for messages that contain text, messages or stamps, such as
        transforms, because their order in the list may change from one message to the next; and
        for messages with different parts, or more than `_MOST_NUMBERS` of them.
    """
    rows = [dict(_list_parts(message)) for message in messages]
    names = list(rows[0])
    if len(rows) > _MOST_NUMBERS or any(list(row) != names for row in rows):
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


def _list_parts(value: Any) -> Sequence[tuple[str, Any]]:
    """Return names and values of the parts of a message, none for a scalar or an array."""
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    names = [name for name in _get_part_names(value) if not name.startswith("__")]
    return [(name, getattr(value, name)) for name in names]


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def _sort_by_label(arrays: list[Any], names: list[Any], labels: list[str]) -> Any:
    """Return arrays (n, m) whose columns are in the order of labels, NaN where one is missing.

    Args:
        arrays: Array of each of n messages.
        names: Labels of the entries of each array.
        labels: Labels of the m columns.
    """
    place = {label: i for i, label in enumerate(labels)}
    out = np.full((len(arrays), len(labels)), np.nan)
    for row, array, own in zip(out, arrays, names, strict=True):
        row[[place[label] for label in own]] = array
    return out
