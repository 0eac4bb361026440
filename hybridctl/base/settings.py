"""Settings of experiments and models: types say their bounds, whoever gives them.

@dataclass(frozen=True)
class Config(Settings):
    slope: Annotated[float, Meta(gt=0.0, le=1.5)] = 0.3  # rad
    widths: tuple[Positive, ...] = (1e-2, 1e-3)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec.inspect
import numpy as np
from msgspec import Meta as Meta

from hybridctl.base.checks import instance, member, number, quoted
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import read_text

T = TypeVar("T")
Positive = Annotated[float, Meta(gt=0.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
UnitInterval = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]

_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`")
_WANTED = re.compile(r"Expected (.*?)(?:, got .*)?")
_WORDS = {  # for what msgspec expects
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "an object",
    "str": "text",
    "null": "nothing",
    "|": "or",
}
_BOUNDS = {
    "a number > ": "greater than ",
    "a number >= ": "at least ",
    "a number <= ": "at most ",
    "a whole number >= ": "a whole number of at least ",
    "a whole number <= ": "a whole number of at most ",
}
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def least_and_most(kind: type, name: str) -> tuple[float, float]:
    """Bounds between which a field of settings may lie, by its type; infinite without any."""
    found: Any = get_type_hints(kind, include_extras=True).get(name)
    bounds = getattr(found, "__metadata__", (Meta(),))[0]
    lower = bounds.ge if bounds.gt is None else bounds.gt
    return -math.inf if lower is None else lower, math.inf if bounds.le is None else bounds.le


class Settings:
    """What a dataclass of settings derives from: they are checked when they are made.

    All fields, by their types; what a dataclass that it derives from says of a field holds as well.
    Raises `InputError` for a number outside its bounds, one that is not finite, and what has
    another type.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in _hints(kind):
            given = getattr(self, name)
            found = _converted(hint, _plain(name, given), name)
            if is_dataclass(found):
                instance(name, given, type(found))


def typed(kind: type[T], content: Any, where: str) -> T:
    """What YAML or JSON has given as a type; `where` is the key that holds it, for errors.

    Raises `UnknownNameError` for a key that is none, and `InputError` for one that is missing or
    has another type, with its path, its value and what would be right. Numbers of dataclasses are
    finite.
    """
    whole: T = _checked(where, _converted(kind, content, where), content)
    return whole


@cache
def _hints(settings: type) -> list[tuple[str, Any]]:
    """Fields with all types that a class and those that it derives from give them.

    Those that msgspec does not know, such as `ArrayLike`, are left to the class itself.
    """
    found = list[tuple[str, Any]]()
    for kind in filter(is_dataclass, settings.__mro__):
        hints = get_type_hints(kind, include_extras=True).items()
        found += [each for each in hints if each not in found]
    return [(name, hint) for name, hint in found if _is_known(hint)]


def _is_known(hint: Any) -> bool:
    try:
        msgspec.inspect.type_info(hint)
    except TypeError:
        return False
    return True


def _plain(name: str, value: Any) -> Any:
    """A value with numpy's numbers and arrays as Python's, the numbers finite."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(f"{name}[{k}]", entry) for k, entry in enumerate(value)]
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else number(name, value)


def _converted(kind: Any, content: Any, where: str) -> Any:
    """The content as a type, by msgspec; an error says in plain words what would be right."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        found = _WHERE.fullmatch(str(error))
        assert found is not None
        path, what = found["path"] or "", found["what"]
        if isinstance(error.__cause__, InputError):  # of a type's own check, which names its field
            raise type(error.__cause__)(f"{where}{path}.{error.__cause__}") from error
        value, steps = content, _STEP.findall(path)
        for name, index in steps:
            value = value[name] if name else value[int(index)]
        key = _KEY.fullmatch(what)
        if key is not None and key[1].startswith("missing"):
            raise InputError(f"{where}{path} needs {key[2]}, got {quoted(value)}") from error
        if key is not None:
            known = [name for name in kind.__annotations__] if not path else []
            if known:
                member(f"key in {where}", key[2], known)
            raise InputError(f"{where}{path} has no key {key[2]!r}") from error
        if what.startswith("Invalid enum"):  # one of a few texts
            chosen = kind
            if len(steps) == 1:
                chosen = get_type_hints(kind)[steps[0][0]] if steps[0][0] else get_args(kind)[0]
            member(f"{where}{path}", value, get_args(chosen))
        wanted = _WANTED.fullmatch(what)
        right = "in range" if wanted is None else wanted[1]
        right = re.sub(r"\w+|\|", lambda word: _WORDS.get(word[0], word[0]), right)
        right = right.replace("`", "")
        for bound, words in _BOUNDS.items():
            right = right.replace(bound, words)
        raise InputError(f"{where}{path} must be {right}, got {quoted(value)}") from error


def _checked(where: str, made: Any, content: Any) -> Any:
    """What msgspec has made: dataclasses by their own constructor, which sets their defaults too.

    Raises for a key of one that is no field, and for a number in it that is not finite.
    """
    if is_dataclass(made):
        names = [field.name for field in fields(made)]
        for key in content:
            member(f"key in {where}", key, names)
        parts = {k: _checked(f"{where}.{k}", getattr(made, k), v) for k, v in content.items()}
        kind: Any = type(made)
        return kind(**parts)
    if isinstance(made, tuple):
        both = enumerate(zip(made, content, strict=True))
        return tuple(_checked(f"{where}[{i}]", part, entry) for i, (part, entry) in both)
    return number(where, made) if isinstance(made, float) else made


C = TypeVar("C")


def load_configuration(
    kind: type[C],
    file: str | Path | None,
    assignments: Sequence[str],
    given: Mapping[str, Any] = MappingProxyType({}),
) -> C:
    """A configuration dataclass from a JSON file and `key=value` assignments, later ones winning.

    given: values that both win over. The file may be the config.json of an earlier run, or a plain
    object. Values of assignments are JSON, or else text. Unknown keys raise `InputError` and name
    the known ones.
    """
    values = dict(given)
    if file is not None:
        try:
            content = json.loads(read_text("configuration", file))
        except (ValueError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"configuration {file} cannot be read: {error}") from error
        found = content.get("configuration", content) if isinstance(content, dict) else content
        if not isinstance(found, dict):
            raise FileFormatError(
                f"configuration {file} must hold a JSON object, got {quoted(found)}"
            )
        values |= found
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"a setting must look like key=value, got {quoted(assignment)}")
        values[key] = json_or_text(text)
    return typed(kind, values, "settings")


def json_or_text(text: str) -> Any:
    """The value that JSON says, or else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
