"""Files read, or written whole or not at all; YAML and what it must hold; arrays in JSON."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import numpy as np
import yaml
from numpy.typing import ArrayLike

from hybridctl.checks import member
from hybridctl.errors import FileFormatError, InputError

T = TypeVar("T")
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`")
_WANTED = re.compile(r"Expected (.*?)(?:, got .*)?")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def file_or_text(name: str, given: str | os.PathLike[str]) -> str:
    """XML that is given, or that of the file of this path; `name` is that of the argument.

    Raises `FileFormatError` for a file that cannot be read as text.
    """
    if isinstance(given, str) and "<" in given:
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{name} {os.fspath(given)} cannot be read: {error}") from error


@contextmanager
def file_of(given: str | os.PathLike[str], suffix: str) -> Iterator[Path]:
    """The path of what `file_or_text` reads: a temporary file for a text."""
    if not (isinstance(given, str) and "<" in given):
        yield Path(given)
        return
    with TemporaryDirectory() as folder:
        path = (Path(folder) / "text").with_suffix(suffix)
        path.write_text(given, encoding="utf-8")
        yield path


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path` that replaces it when the block ends without an error.

    The temporary file keeps the suffix of `path`, for writers that choose a format by it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem}-{uuid4().hex}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)  # with the permissions of an ordinary new file
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def packed(values: ArrayLike) -> dict[str, Any]:
    """An array for JSON that is drawn: its shape, and 32-bit numbers, little-endian, in base64."""
    array = np.asarray(values, dtype="<f4")
    return {"shape": list(array.shape), "float32": b64encode(array.tobytes()).decode("ascii")}


def read_yaml(path: str | Path, what: str) -> Any:
    """The content of a YAML file; `what` names it in errors.

    Raises `InputError` for a file that does not exist, `FileFormatError` for one that is no YAML,
    or in which a key occurs twice.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{what} {str(path)!r} does not exist")
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{path}: not YAML ({' '.join(str(error).split())})") from error


def typed(kind: type[T], content: Any, where: str) -> T:
    """What YAML or JSON has given as a type; `where` is the key that holds it, for errors.

    Raises `UnknownNameError` for a key that is none, and `InputError` for one that is missing or
    has another type, with its path, its value and what would be right.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        found = _WHERE.fullmatch(str(error))
        assert found is not None
        path, what = found["path"] or "", found["what"]
        if isinstance(error.__cause__, InputError):  # of a type's own check, which names its field
            raise type(error.__cause__)(f"{where}{path}.{error.__cause__}") from error
        value, field_type = content, kind
        for name, index in _STEP.findall(path):
            value = value[name] if name else value[int(index)]
        key = _KEY.fullmatch(what)
        if key is not None and key[1].startswith("missing"):
            raise InputError(f"{where}{path} needs {key[2]}, got {value!r}") from error
        if key is not None:
            known = [name for name in field_type.__annotations__] if not path else []
            if known:
                member(f"key in {where}", key[2], known)
            raise InputError(f"{where}{path} has no key {key[2]!r}") from error
        wanted = _WANTED.fullmatch(what)
        right = what if wanted is None else wanted[1].replace("`", "")
        raise InputError(f"{where}{path} must be {right}, got {value!r}") from error


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key that occurs twice is an error, and 1e-3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The dictionary of a node."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} occurs twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
