"""Settings of experiments and models: their types state their bounds, whoever gives the values.

    @dataclass(frozen=True)
    class Config(Settings):
        slope: Annotated[float, Meta(gt=0.0, le=1.5)] = 0.3  # rad
        widths: tuple[Positive, ...] = (1e-2, 1e-3)

Values come from Python (`Settings` checks them when an object is made) or from YAML and JSON
(`parse_settings`, `load_configuration`). Both ways convert by msgspec, so that they accept the same
and say the same in errors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec.inspect
import numpy as np
from msgspec import Meta as Meta

from hybridctl.base.checks import check_instance, check_member, check_number, quote
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import read_text

T = TypeVar("T")
Positive = Annotated[float, Meta(gt=0.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
UnitInterval = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]

# Messages of msgspec are translated, as they speak of Python's types and of "$" for the value:
# "Expected `float` <= 1.0 - at `$.slope`", "Object missing required field `mass` - at `$[2]`".
_MESSAGE_AND_PATH = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_WRONG_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`")
_EXPECTED = re.compile(r"Expected (.*?)(?:, got .*)?")
_PATH_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")  # a field; an index, or the value of any key
_PLAIN_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "an object",
    "str": "text",
    "null": "nothing",
    "|": "or",
}
_PLAIN_BOUNDS = {
    "a number > ": "greater than ",
    "a number >= ": "at least ",
    "a number < ": "less than ",
    "a number <= ": "at most ",
    "a whole number >= ": "a whole number of at least ",
    "a whole number <= ": "a whole number of at most ",
}


def find_bounds(kind: type, name: str) -> tuple[float, float]:
    """Return the least and the greatest value of a numeric setting, by its type.

    Args:
        kind: Class of the settings.
        name: Name of the field.

    Returns:
        The bounds. They are infinite where the type states none, and for a name that is no field.
        A bound that must not be met (`gt`, `lt`) is returned like one that may be (`ge`, `le`).
    """
    hint: Any = get_type_hints(kind, include_extras=True).get(name)
    bounds = getattr(hint, "__metadata__", (Meta(),))[0]
    lower = bounds.ge if bounds.gt is None else bounds.gt
    upper = bounds.le if bounds.lt is None else bounds.lt
    return -math.inf if lower is None else lower, math.inf if upper is None else upper


class Settings:
    """Base of dataclasses of settings, whose fields are checked when an object is made.

    Each field must have its type, also the type that a base class gives it. The object keeps the
    values as they were given.

    Raises:
        InputError: A number is not finite or out of its bounds, or a value has another type.
        UnknownNameError: A text is none of those that a `Literal` lists.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in _find_hints(kind):
            given = getattr(self, name)
            converted = _convert(hint, _to_python_numbers(name, given), name)
            # msgspec would also take a mapping, or another class with the same fields.
            if is_dataclass(converted):
                check_instance(name, given, type(converted))


def parse_settings(kind: type[T], content: Any, where: str) -> T:
    """Return what YAML or JSON holds as an object of a type.

    Dataclasses are made by their own constructors, with their defaults and checks.

    Args:
        kind: The type, such as a dataclass, or a tuple of dataclasses.
        content: Numbers, text, lists and dicts.
        where: Key that holds the content, for errors.

    Raises:
        UnknownNameError: A key is no field of its dataclass, or a text is none of those allowed.
        InputError: A key is missing, a value has another type, or a number is not finite. The
            message has its path, its value and what would be right.
    """
    settings: T = _rebuild(where, _convert(kind, content, where), content)
    return settings


def load_configuration(
    kind: type[T],
    file: str | Path | None,
    assignments: Sequence[str],
    given: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Return settings from `given`, a JSON file and `key=value` assignments; later ones win.

    Args:
        kind: Dataclass of the settings.
        file: The config.json of an earlier run, or a JSON object of settings. None for no file.
        assignments: Texts `key=value`, with values in JSON or else text. Of two with one key the
            second wins.
        given: Settings that both the file and the assignments replace.

    Raises:
        FileFormatError: The file cannot be read, or holds no JSON object.
        InputError: A text is no assignment, or a value is not right, see `parse_settings`.
        UnknownNameError: A key is no setting.
    """
    values = dict(given)
    if file is not None:
        try:
            content = json.loads(read_text("configuration", file))
        except FileFormatError:  # of `read_text`; it is a ValueError, too
            raise
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"configuration {file} cannot be read: {error}") from error
        # The config.json of a run has its settings beside its versions and its seed.
        stored = content.get("configuration", content) if isinstance(content, dict) else content
        if not isinstance(stored, dict):
            raise FileFormatError(
                f"configuration {file} must hold a JSON object, got {quote(stored)}"
            )
        values |= stored
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"a setting must look like key=value, got {quote(assignment)}")
        values[key] = parse_json_or_text(text)
    return parse_settings(kind, values, "settings")


def change_unassigned(settings: T, change: Callable[[T], T], assignments: Sequence[str]) -> T:
    """Return changed settings, in which the assigned ones have the values of their assignments.

    The change may be that to the quick settings of an experiment.

    Args:
        settings: Result of `load_configuration`, a dataclass.
        change: Function of all settings that returns the changed ones.
        assignments: Texts `key=value` by which the settings were made.
    """
    assigned = {assignment.partition("=")[0] for assignment in assignments}
    changed: Any = change(settings)
    result: T = replace(changed, **{key: getattr(settings, key) for key in assigned})
    return result


def parse_json_or_text(text: str) -> Any:
    """Return the value of a text in JSON, or the text itself if it is no JSON.

    Words in a list need no quotes, which a shell would take away: "[go2, solo12]".
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        inner = re.fullmatch(r"\[([^\[\]{}\"]+)\]", text)
        if inner is None:
            return text
    return [parse_json_or_text(entry.strip()) for entry in inner[1].split(",")]


@cache
def _find_hints(settings: type) -> list[tuple[str, Any]]:
    """Return (name, type) of each field of a class and of the dataclasses that it derives from.

    A field stands in the list once for each type that one of them gives it. Types that msgspec does
    not know, such as `ArrayLike`, are left out: the class itself checks these fields.
    """
    types_of_fields = list[tuple[str, Any]]()
    for kind in filter(is_dataclass, settings.__mro__):
        hints = get_type_hints(kind, include_extras=True).items()
        types_of_fields += [each for each in hints if each not in types_of_fields]
    return [(name, hint) for name, hint in types_of_fields if _is_known_type(hint)]


def _is_known_type(hint: Any) -> bool:
    """Return whether msgspec can convert to a type."""
    try:
        msgspec.inspect.type_info(hint)
    except TypeError:
        return False
    return True


def _to_python_numbers(name: str, value: Any) -> Any:
    """Return a value with arrays as lists and numpy's numbers as Python's, which msgspec reads.

    `name` is that of the setting, for the `InputError` of a number that is not finite.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_to_python_numbers(f"{name}[{k}]", entry) for k, entry in enumerate(value)]
    if isinstance(value, dict):
        return {k: _to_python_numbers(f"{name}[{k!r}]", entry) for k, entry in value.items()}
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else check_number(name, value)


def _convert(kind: Any, content: Any, where: str) -> Any:
    """Return the content as a type, by msgspec.

    Args:
        kind: The type.
        content: Numbers, text, lists and dicts.
        where: Key or setting that holds the content, for errors.

    Raises:
        InputError: The content does not fit, see `parse_settings`. If the constructor of a class
            raised an `InputError`, one of the same class with the path before its message.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        failure = _make_error(error, kind, content, where)
        raise failure from error


def _make_error(error: msgspec.ValidationError, kind: Any, content: Any, where: str) -> InputError:
    """Return the error of content that does not fit, with its path, its value and what is right.

    Args:
        error: The error of msgspec, whose message has the path and what was expected.
        kind: The type.
        content: Numbers, text, lists and dicts.
        where: Key or setting that holds the content.

    Raises:
        UnknownNameError: In place of the error: a key of the outermost object is no field, or the
            value is none of the texts of a `Literal`.
    """
    message = _MESSAGE_AND_PATH.fullmatch(str(error))
    assert message is not None  # the pattern matches every text
    path, what = message["path"] or "", message["what"]
    if isinstance(error.__cause__, InputError):  # of the constructor of a class
        return type(error.__cause__)(f"{where}{path}.{error.__cause__}")
    value, steps = content, _PATH_STEP.findall(path)
    for name, index in steps:
        if index == "...":  # of a value of a dict the path has no key: the dict is quoted
            break
        value = value[name] if name else value[int(index)]
    key = _WRONG_KEY.fullmatch(what)
    if key is not None and key[1].startswith("missing"):
        return InputError(f"{where}{path} needs {key[2]}, got {quote(value)}")
    if key is not None:
        # Of an outermost object the fields are known, so that the error can list them.
        known = [name for name in kind.__annotations__] if not path else []
        if known:
            check_member(f"key in {where}", key[2], known)
        return InputError(f"{where}{path} has no key {key[2]!r}")
    if what.startswith("Invalid enum"):
        # The value is none of the texts of the `Literal` that the path leads to.
        chosen = kind
        for name, index in steps:
            chosen = _find_part_type(chosen, name, index)
        check_member(f"{where}{path}", value, _find_texts(chosen))
    return InputError(f"{where}{path} must be {_translate_expectation(what)}, got {quote(value)}")


def _find_part_type(hint: Any, name: str, index: str) -> Any:
    """Return the type of a field or of an entry of a value of a type; None if there is none.

    Args:
        hint: The type. Of a union, the first member that has such a part counts.
        name: Name of a field of a dataclass or struct; empty for an entry.
        index: Index in a list or tuple, or "..." for the value of a dict.
    """
    if is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return get_type_hints(hint).get(name)
    args = get_args(hint)
    if index == "...":
        return args[-1]
    if index and get_origin(hint) is tuple and Ellipsis not in args:
        return args[int(index)]
    if index and isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Sequence):
        return args[0]
    return next((part for one in args if (part := _find_part_type(one, name, index))), None)


def _find_texts(hint: Any) -> list[Any]:
    """Return the texts of a `Literal`, or of those in a union such as `Literal["a"] | None`."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [text for part in get_args(hint) for text in _find_texts(part)]


def _translate_expectation(message: str) -> str:
    """Return what msgspec expected in plain words, such as "at most 1.0" or "text or nothing"."""
    expected = _EXPECTED.fullmatch(message)
    right = "in range" if expected is None else expected[1]
    right = re.sub(r"\w+|\|", lambda word: _PLAIN_WORDS.get(word[0], word[0]), right)
    right = right.replace("`", "")
    for bound, words in _PLAIN_BOUNDS.items():
        right = right.replace(bound, words)
    return right


def _rebuild(where: str, made: Any, content: Any) -> Any:
    """Return what msgspec has made, with dataclasses made anew by their own constructors.

    Args:
        where: Key that holds the content, for errors.
        made: Object that msgspec has made of the content. It ignores unknown keys of dataclasses
            and accepts infinities.
        content: The content, whose keys alone are given to the constructors.

    Raises:
        UnknownNameError: A key of the content is no field.
        InputError: A number is not finite, also in lists and dicts.
    """
    if is_dataclass(made):
        names = [field.name for field in fields(made)]
        for key in content:
            check_member(f"key in {where}", key, names)
        parts = {k: _rebuild(f"{where}.{k}", getattr(made, k), v) for k, v in content.items()}
        kind: Any = type(made)
        return kind(**parts)
    if isinstance(made, list | tuple):
        both = enumerate(zip(made, content, strict=True))
        return type(made)([_rebuild(f"{where}[{i}]", part, entry) for i, (part, entry) in both])
    if isinstance(made, dict):
        pairs = zip(made.items(), content.values(), strict=True)
        return {k: _rebuild(f"{where}[{k!r}]", part, entry) for (k, part), entry in pairs}
    return check_number(where, made) if isinstance(made, float) else made
