"""YAML that is read from files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from hybridctl.base.checks import quoted
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import read_text

MOST_YAML, MOST_ENTRIES, DEEPEST = 2**20, 100_000, 30


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
