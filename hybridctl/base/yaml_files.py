"""Reading of YAML files that people write, with limits on what a file may contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from hybridctl.base.checks import check_path, quote
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.files import read_text

MAX_YAML_BYTES = 2**20
"""Most bytes of a file. Files of models and mappings have some kilobytes. A choice."""
MAX_YAML_ENTRIES = 100_000
"""Most entries, where an alias counts as all that it stands for. A choice: a file of a few lines
may stand for 10^9 entries."""
MAX_YAML_LEVELS = 30
"""Most levels of lists and mappings within each other, as reading them is recursive. A choice."""


def read_yaml(path: str | Path, what: str) -> Any:
    """Return the content of a YAML file, None for a file without content.

    Args:
        path: The file.
        what: What the file is, for errors, such as "mapping".

    Returns:
        Numbers, text, lists and dicts. 1e-3 is a number, as YAML 1.2 has it.

    Raises:
        InputError: The file does not exist, or the argument is no path.
        FileFormatError: The file cannot be read, is no YAML, has a key twice in one mapping, or
            exceeds one of the limits above.
    """
    path = check_path(what, path)
    if not path.exists():
        raise InputError(f"{what} {quote(str(path))} does not exist")
    text = read_text(what, path, MAX_YAML_BYTES)
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
    except FileFormatError:  # of `_check_size`; it is a ValueError, too
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not YAML ({' '.join(str(error).split())})") from error


def _check_size(path: Path, root: yaml.Node) -> None:
    """Raise `FileFormatError` for a node with more entries or levels than the limits above."""
    sizes: dict[int, int] = {}  # number of entries by the id of a node; 0 while it is counted

    def count_entries(node: yaml.Node, level: int) -> int:
        # A node that is met again while it is counted contains itself, through an alias.
        if level > MAX_YAML_LEVELS or sizes.get(id(node)) == 0:
            raise FileFormatError(f"{path}: its content must have at most {MAX_YAML_LEVELS} levels")
        if id(node) not in sizes:
            sizes[id(node)] = 0
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            # Parts of a list are nodes, parts of a mapping are pairs (key, value).
            entries = [e for part in parts for e in (part if isinstance(part, tuple) else (part,))]
            sizes[id(node)] = 1 + sum(count_entries(entry, level + 1) for entry in entries)
        if sizes[id(node)] > MAX_YAML_ENTRIES:
            raise FileFormatError(
                f"{path}: its content must have at most {MAX_YAML_ENTRIES} entries"
            )
        return sizes[id(node)]

    count_entries(root, 0)


class _StrictLoader(yaml.SafeLoader):
    """Reader of YAML in which a key that occurs twice is an error, and 1e-3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the dictionary of a node. PyYAML calls this method.

        Args:
            node: The node of a mapping.
            deep: Whether entries are constructed at once, as PyYAML asks.

        Raises:
            ConstructorError: A key occurs twice, of which PyYAML would use the last value.
        """
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, count in Counter(key for key in keys if isinstance(key, Hashable)).items():
            if count > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {quote(key)} occurs twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, in which a float needs a point, so that 1e-3 would be text.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
