"""What Python code executes and reads: its bytecode, names, modules and their source."""

from __future__ import annotations

import ast
import dis
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import resolve_name
from itertools import pairwise
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from hybridctl.base.digests import SHORT_DIGITS, hash_bytes

_LOAD_OPERATIONS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_LOAD_OPERATIONS |= {"LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
"""Operations of bytecode that read a global or a closure variable; the last two since 3.12."""
_ADDING_METHODS = {"append", "appendleft", "extend", "add", "update", "put"}
"""Methods that put something into an object and return nothing of it."""
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
"""Names of the folders into which pip, and Debian's pip, install packages."""
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


def digest_instructions(code: CodeType) -> str:
    """Return a digest of the instructions of a code, without its constants.

    Lines of the source are not part of it. Bytecode of another version of Python differs.

    Args:
        code: Code of a function; codes within it are constants, so they are left out.

    Returns:
        32 hexadecimal digits.
    """
    parts = (
        sys.implementation.cache_tag,
        code.co_code,
        getattr(code, "co_exceptiontable", b""),  # from Python 3.11 on; before, it is in the code
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags),
    )
    return hash_bytes(repr(parts).encode())[:SHORT_DIGITS]


def find_names_read(code: CodeType) -> set[str]:
    """Return the names from outside whose values a code reads, with the codes within it.

    A list that is only appended to is not read: a function that notes its calls there returns the
    same without it.

    Args:
        code: Code of a function.

    Returns:
        Names of globals and of closure variables. Built-in names are among the globals.
    """
    found = set()
    for one, following in pairwise([*dis.get_instructions(code), None]):
        # Only the second of a pair is ever None, which the type of the list does not say.
        if one is None or one.opname not in _LOAD_OPERATIONS or _is_adding(following):
            continue
        found.add(str(one.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= find_names_read(constant)
    return found


def _is_adding(instruction: dis.Instruction | None) -> bool:
    """Return whether an instruction takes one of `_ADDING_METHODS` from the object before it."""
    if instruction is None or instruction.opname not in ("LOAD_METHOD", "LOAD_ATTR"):
        return False
    return instruction.argval in _ADDING_METHODS


def is_installed(name: str | None) -> bool:
    """Return whether a module belongs to Python, hybridctl or an installed package.

    Args:
        name: Dotted name of the module, None for an object without a module. A module that is not
            imported is judged by the first part of its name.
    """
    top = (name or "").partition(".")[0]
    if top in ("hybridctl", "__main__"):  # the latter is a name of the standard library, too
        return top == "hybridctl"
    module = sys.modules.get(name or "")
    file = getattr(module, "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return top in sys.stdlib_module_names
    path = Path(file)
    return any(part in _PACKAGE_FOLDERS for part in path.parts) or path.is_relative_to(
        _STANDARD_LIBRARY
    )


def digest_sources(module: ModuleType) -> str | None:
    """Return a digest of the text of a module and of the modules that it uses, directly or not.

    A module uses another one if it imports it or something from it, or if it holds that module or a
    function or class made there. Modules of installed packages are left out.

    Args:
        module: The module.

    Returns:
        32 hexadecimal digits. None for a module without a readable file, as of a notebook.
    """
    waiting, files = [module], dict[str, bytes]()
    while waiting:
        one = waiting.pop()
        file = getattr(one, "__file__", None)
        if file is None or one.__name__ in files:
            continue
        try:
            files[one.__name__] = Path(file).read_bytes()
        except OSError:
            continue
        waiting += _modules_used(one, files[one.__name__])
    if module.__name__ not in files:
        return None
    total = hashlib.sha256()
    for name in sorted(files):
        # Which name a script has depends on who starts it.
        label = "" if name in (module.__name__, "__main__") else name
        total.update(f"{label} {len(files[name])} ".encode() + files[name])
    return total.hexdigest()[:SHORT_DIGITS]


def _modules_used(module: ModuleType, text: bytes) -> list[ModuleType]:
    """Return the modules, other than installed ones, that a module imports or holds something of.

    Args:
        module: The module.
        text: Its source.
    """
    # Of an imported number only the text of the import tells from which module it is.
    imported = [name for name in _imported_names(module, text) if not is_installed(name)]
    found: dict[str, Any] = {name: sys.modules.get(name) for name in imported}
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else None
        if name is None and (callable(value) or isinstance(value, type)):
            name = getattr(value, "__module__", None)
        if isinstance(name, str) and not is_installed(name):
            found[name] = sys.modules.get(name)
    return [one for one in found.values() if isinstance(one, ModuleType)]


def _imported_names(module: ModuleType, text: bytes) -> Iterator[str]:
    """Yield the dotted names that the import statements of a module could mean as modules."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # it has been edited since it was imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            with suppress(ImportError):  # a relative name beyond the top package
                source = resolve_name(relative, module.__package__)
                yield source
                yield from (f"{source}.{alias.name}" for alias in node.names)
