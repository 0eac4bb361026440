"""YAML that is read from files, and what it or JSON must hold.

Its libraries are loaded where settings are read, and not by every run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import yaml

from hybridctl.checks import member, number, quoted
from hybridctl.errors import FileFormatError, InputError
from hybridctl.files import read_text

T = TypeVar("T")
MOST_YAML, MOST_ENTRIES, DEEPEST = 2**20, 100_000, 30
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
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def read_yaml(path: str | Path, what: str) -> Any:
    """The content of a YAML file; `what` names it in errors.

    Raises `InputError` for a file that does not exist, `FileFormatError` for one that is no YAML,
    in which a key occurs twice, or whose content is large or deep, counting aliases as often as
    they are used.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{what} {quoted(str(path))} does not exist")
    text = read_text(what, path, MOST_YAML)
    try:
        loader = _StrictLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_size(path, node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: not YAML ({' '.join(str(error).split())})") from error


def _check_size(path: Path, root: yaml.Node) -> None:
    """Raise `FileFormatError` for a node of more entries or levels than a file of ours has."""
    known: dict[int, int] = {}

    def size(node: yaml.Node, level: int) -> int:
        if level > DEEPEST or known.get(id(node)) == 0:  # 0: it holds itself
            raise FileFormatError(f"{path}: its content must have at most {DEEPEST} levels")
        if id(node) not in known:
            known[id(node)] = 0
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            entries = [e for part in parts for e in (part if isinstance(part, tuple) else (part,))]
            known[id(node)] = 1 + sum(size(entry, level + 1) for entry in entries)
        if known[id(node)] > MOST_ENTRIES:
            raise FileFormatError(f"{path}: its content must have at most {MOST_ENTRIES} entries")
        return known[id(node)]

    size(root, 0)


def typed(kind: type[T], content: Any, where: str) -> T:
    """What YAML or JSON has given as a type; `where` is the key that holds it, for errors.

    Raises `UnknownNameError` for a key that is none, and `InputError` for one that is missing or
    has another type, with its path, its value and what would be right. Numbers of dataclasses are
    finite.
    """
    try:
        made = msgspec.convert(content, kind)
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
        wanted = _WANTED.fullmatch(what)
        if wanted is None:  # one of a few texts
            options = get_args(get_type_hints(kind)[steps[0][0]]) if len(steps) == 1 else ()
            member(f"{where}{path}", value, options)
            raise InputError(f"{where}{path} {quoted(value)} is unknown") from error
        right = re.sub(r"\w+|\|", lambda word: _WORDS.get(word[0], word[0]), wanted[1])
        right = right.replace("`", "")
        raise InputError(f"{where}{path} must be {right}, got {quoted(value)}") from error
    whole: T = _checked(where, made, content)
    return whole


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


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key that occurs twice is an error, and 1e-3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The dictionary of a node."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, count in Counter(key for key in keys if isinstance(key, Hashable)).items():
            if count > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {quoted(key)} occurs twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
