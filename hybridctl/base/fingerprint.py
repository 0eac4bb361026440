"""Canonical forms of settings and of code, by which kept results are found again.

A journal keeps results by what they depend on. `make_canonical_form` describes a value such that
two values with one form give the same results, whoever made them, in whichever process. Where that
is in doubt two equal values have two forms: a result is then computed once more.

- None, truth values, whole numbers below 2^64, finite floats and text stand for themselves, lists
  and mappings of text to values too. All else is tagged by a key that begins with "$".
- The order of a dict does not count: code that depends on it needs an `OrderedDict` or a list.
- Floats are exact: nan, inf, -inf and -0.0 are four values, and 1 is not 1.0.
- Arrays go by type, shape and the digest of all their bytes.
- Dataclasses, named tuples and msgspec structs go by their class, fields and other attributes. A
  dataclass whose `__getstate__` is written in Python and returns a dict goes by its class and this
  dict, as it does when pickled.
- Functions and classes go by their code: by name within installed packages (whose versions a
  journal has to name), else by what is executed: the bytecode with its constants, defaults,
  closure, attributes, and whatever globals it reads. Comments, layout and annotations do not
  matter, the version of Python does.

Other objects have no form and are refused by name: two of them cannot be told apart for sure.
"""

from __future__ import annotations

import json
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import scipy.special

from hybridctl.base.checks import quote
from hybridctl.base.code_reading import (
    digest_instructions,
    digest_sources,
    find_names_read,
    is_installed,
)
from hybridctl.base.digests import SHORT_DIGITS, hash_bytes, hash_file
from hybridctl.base.errors import InputError
from hybridctl.base.files import find_named_files

_EXACT_REPR = (date, datetime, time, timedelta, Decimal, Fraction, UUID, range, type(...))
"""Types whose representation determines the value."""
_PATHS = (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)
_ARRAYS = (np.ndarray, np.memmap)
"""Arrays that are described by their entries alone; other subclasses hold more, such as units, or
calculate otherwise, such as `np.matrix`."""
_UFUNC_MODULES = (np, scipy.special)
"""Modules whose functions on arrays (`np.ufunc`) go by their names. A ufunc does not tell where it
is from, and one by `np.frompyfunc` not what it calls."""
_LRU_WRAPPER = type(lru_cache(len))
"""Type of the functions that `functools.cache` and `functools.lru_cache` return."""
_GENERATED_TYPES = ("member_descriptor", "getset_descriptor", "_abc_data", "_tuplegetter")
"""Names of the types of attributes that Python makes from the fields and bases of a class."""
_LARGEST_DECIMAL = 2**64
"""Whole numbers from it on are hexadecimal: Python refuses decimals of more than 4300 digits. The
threshold is a choice."""


def make_canonical_form(name: str, value: Any) -> Any:
    """Return the canonical form of a value, which JSON can hold and which determines the value.

    Args:
        name: Name of the argument, for errors.
        value: A setting, or a function.

    Returns:
        The form: None, bool, int, float, str, and lists and dicts of forms.

    Raises:
        InputError: An object in the value has no canonical form, or the value is nested too deeply.
            The message names where the object stands.
    """
    try:
        return _Description().describe(name, value)
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply, got {quote(value)}") from error


def make_canonical_text(name: str, value: Any) -> str:
    """Return the canonical form of a value as one line of JSON.

    Args:
        name: Name of the argument, for errors.
        value: A setting, or a function.

    Raises:
        InputError: The value has no canonical form, see `make_canonical_form`.
    """
    return json.dumps(make_canonical_form(name, value), sort_keys=True)


def compute_fingerprint(value: Any, name: str = "value") -> str:
    """Return 32 hexadecimal digits that determine a value.

    Args:
        value: A setting, or a function.
        name: Name of the argument, for errors.

    Raises:
        InputError: The value has no canonical form, see `make_canonical_form`.
    """
    return _hash_short(make_canonical_text(name, value).encode())


def _hash_short(content: bytes) -> str:
    """Return the first `SHORT_DIGITS` hexadecimal digits of the SHA-256 of bytes."""
    return hash_bytes(content)[:SHORT_DIGITS]


class _Description:
    """The canonical form of one value, made by one call of `describe`.

    Attributes:
        _open: Ids of the objects that contain the present one, from the outermost. An object that
            contains itself is described by its place in this list.
        _known: Functions and classes that have been described, each with its form, by id. It holds
            the object, too: the id of one that has been deleted may be that of another.
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        self._known: dict[int, tuple[Any, Any]] = {}

    def describe(self, where: str, value: Any) -> Any:
        """Return the form of a value.

        Args:
            where: Place of the value in words, for errors.
            value: The value.

        Returns:
            The form, as `make_canonical_form` returns it.

        Raises:
            InputError: The value, or something in it, has no form.
        """
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if abs(value) < _LARGEST_DECIMAL else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            return {"$again": self._open.index(id(value))}
        self._open.append(id(value))
        try:
            found = self._describe_scalar(where, value)
            for describe in (self._describe_container, self._describe_object, self._describe_code):
                found = describe(where, value) if found is None else found
        finally:
            self._open.pop()
        if found is None:
            raise InputError(
                f"{where} cannot be told from others, so that results with it in a folder would be "
                f"mixed up: a {kind.__name__} has no canonical form, got {quote(value)}. Give the "
                "numbers, text, arrays or dataclasses that it is made of, or no folder"
            )
        return found

    def _describe_scalar(self, where: str, value: Any) -> Any:
        """Return the form of an enum, number, bytes, path, date or array.

        Args:
            where: Place of the value in words, for errors.
            value: The value.

        Returns:
            The form, None for other types.

        Raises:
            InputError: An entry of an array, or the class of an enum, has no form.
        """
        if isinstance(value, Enum):
            # A combination of flags has no name before Python 3.11, nor with unknown bits after.
            label = value.value if isinstance(value, Flag) else value.name
            return {"$enum": [self.describe(where, type(value)), label]}
        if isinstance(value, np.ndarray):
            return self._describe_array(where, value)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return {"$number": [_describe_dtype(value.dtype), value.tobytes().hex()]}
        if type(value) is complex:
            return {
                "$complex": [self.describe(where, value.real), self.describe(where, value.imag)]
            }
        if type(value) in (bytes, bytearray):
            return {f"${type(value).__name__}": [len(value), _hash_short(value)]}
        if type(value) in _PATHS:
            return {f"${type(value).__name__}": str(value)}
        if isinstance(value, _EXACT_REPR) and type(value) in _EXACT_REPR:
            return {f"${type(value).__name__}": repr(value)}
        return None

    def _describe_array(self, where: str, value: Any) -> Any:
        """Return the form of an array, None for subclasses that hold more than their entries.

        Raises:
            InputError: An entry is an object without a form.
        """
        if type(value) is np.ma.MaskedArray:
            # The masked entries count, too: code can clear the mask.
            parts = (np.ma.getdata(value), np.ma.getmaskarray(value), value.fill_value)
            return {"$masked": [self.describe(where, part) for part in parts]}
        if type(value) is np.matrix:  # its `*` is the product of matrices
            return {"$matrix": self.describe(where, np.asarray(value))}
        if type(value) not in _ARRAYS:
            return None
        if value.dtype.hasobject:
            entries = [self.describe(where, entry) for entry in value.ravel().tolist()]
            return {"$objects": [list(value.shape), entries]}
        kind = _describe_dtype(value.dtype)
        return {"$array": [kind, list(value.shape), _hash_short(value.tobytes())]}

    def _describe_container(self, where: str, value: Any) -> Any:
        """Return the form of a list, tuple, set or mapping.

        Entries of sets and of dicts without text keys are sorted, as their order has no meaning.

        Args:
            where: Place of the value in words, for errors.
            value: The value.

        Returns:
            The form. None for other types, and for subclasses other than named tuples and
            `OrderedDict`.

        Raises:
            InputError: An entry has no form.
        """
        kind = type(value)
        if kind is list:
            return [self.describe(f"{where}[{k}]", entry) for k, entry in enumerate(value)]
        if isinstance(value, tuple):
            entries = [self.describe(f"{where}[{k}]", entry) for k, entry in enumerate(value)]
            if kind is tuple:
                return {"$tuple": entries}
            named = hasattr(kind, "_fields")
            return {"$tuple": entries, "$type": self.describe(where, kind)} if named else None
        if kind in (set, frozenset):
            entries = [self.describe(f"{where}, an entry", entry) for entry in value]
            return {f"${kind.__name__}": sorted(entries, key=_write_sort_key)}
        if kind is OrderedDict:
            pairs = [self.describe(f"{where}, an entry", entry) for entry in value.items()]
            return {"$ordered": pairs}
        if kind is MappingProxyType and hasattr(value, "copy"):
            # The copy is of the mapping within, which may have an order, or values for all keys.
            return self.describe(where, value.copy())
        if kind is not dict:
            return None
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.describe(f"{where}.{key}", entry) for key, entry in value.items()}
        pairs = [
            [self.describe(f"{where}, a key", key), self.describe(f"{where}[{quote(key)}]", entry)]
            for key, entry in value.items()
        ]
        return {"$mapping": sorted(pairs, key=_write_sort_key)}

    def _describe_object(self, where: str, value: Any) -> Any:
        """Return the form of a dataclass or a struct.

        Args:
            where: Place of the value in words, for errors.
            value: The value.

        Returns:
            The form of the class, and by name the forms of its entries: of the state that
            `_get_own_state` returns, or else of fields and other attributes. None for other types.

        Raises:
            InputError: The class or a field has no form.
        """
        kind = type(value)
        if is_dataclass(kind):
            # What `__getstate__` leaves out is not part of the value, such as the system of a run.
            # The class is part of the form in any case, see below.
            own = _get_own_state(value)
            entries = _list_attributes(value) if own is None else own
        elif isinstance(value, msgspec.Struct):
            entries = {name: getattr(value, name) for name in kind.__struct_fields__}
        else:
            return None
        forms = {name: self.describe(f"{where}.{name}", entry) for name, entry in entries.items()}
        return {"$object": self.describe(where, kind), "$fields": forms}

    def _describe_code(self, where: str, value: Any) -> Any:
        """Return the form of a function, a method, a class or a module.

        Args:
            where: Place of the value in words, for errors.
            value: The value.

        Returns:
            The form. None for other types, and for built-in methods of objects.

        Raises:
            InputError: Something that the code needs has no form.
        """
        if isinstance(value, ModuleType):
            installed = is_installed(value.__name__)
            return {"$module": [value.__name__, None if installed else digest_sources(value)]}
        # Exact types from here on: what a subclass adds to them would not be described.
        if type(value) is partial:
            parts = (value.func, value.args, value.keywords)
            return {"$partial": [self.describe(where, part) for part in parts]}
        if isinstance(value, MethodType):
            return {
                "$method": [
                    self.describe(where, value.__func__),
                    self.describe(where, value.__self__),
                ]
            }
        if type(value) in (staticmethod, classmethod):
            return {f"${type(value).__name__}": self.describe(where, value.__func__)}
        if type(value) is property:
            accessors = (value.fget, value.fset, value.fdel)
            return {"$property": [self.describe(where, part) for part in accessors]}
        if type(value) is cached_property:
            return {"$property": self.describe(where, value.func)}
        if isinstance(value, FunctionType | type):
            return self._describe_named(where, value)
        if isinstance(value, np.ufunc):
            homes = (m for m in _UFUNC_MODULES if getattr(m, value.__name__, None) is value)
            home = next(homes, None)
            return None if home is None else {"$name": f"{home.__name__}.{value.__name__}"}
        if isinstance(value, BuiltinFunctionType) and _is_of_module(value):
            # Compiled modules of the user's own go by their files, too.
            if is_installed(value.__module__):
                return {"$name": f"{value.__module__}.{value.__qualname__}"}
            module = sys.modules.get(value.__module__ or "")
            source = None if module is None else digest_sources(module)
            return None if source is None else {"$module": [value.__qualname__, source]}
        # Methods that are written in C go by their class, `owner`, and their name. Those that are
        # bound to any other object have no form.
        owner = value.__self__ if isinstance(value, BuiltinFunctionType) else None
        if isinstance(value, WrapperDescriptorType | MethodDescriptorType):
            owner = value.__objclass__
        if isinstance(owner, type):  # such as `tuple.__new__` or `str.__str__`
            return {"$builtin": [self.describe(where, owner), value.__name__]}
        if type(value) is _LRU_WRAPPER:
            return {"$wraps": self.describe(where, value.__wrapped__)}
        return None

    def _describe_named(self, where: str, value: Any) -> Any:
        """Return the form of a Python function or a class, and add it to `_known`."""
        # The name determines the code together with the version of the package, which the caller
        # has to keep. A function within a function has no name by which it can be found.
        if is_installed(value.__module__) and _is_importable(value):
            found = {"$name": f"{value.__module__}.{value.__qualname__}"}
        else:
            describe = self._describe_class if isinstance(value, type) else self._describe_function
            text = json.dumps(describe(value), sort_keys=True)
            found = {"$code": value.__qualname__, "$digest": _hash_short(text.encode())}
        self._known[id(value)] = (value, found)
        return found

    def _describe_function(self, function: FunctionType) -> Any:
        """Return what a call executes: code, defaults, and the globals and closure that it reads.

        A global without a form is described by the text of its module, which makes its value. The
        same text describes the closure, the defaults and the attributes of a function that can be
        imported, as its module makes it only once. A function that cannot be imported may be one of
        many with different closures: these need a form.

        Args:
            function: A function written in Python.

        Returns:
            The form of the code with its constants, that of the defaults, and the forms of the
            closure, the globals and the attributes by name.

        Raises:
            InputError: A value that the function needs has no form, and no text stands for it.
        """
        code, module = function.__code__, sys.modules.get(function.__module__ or "")
        title = f"function {function.__qualname__!r}"
        made_once = module if _is_importable(function) else None
        read = find_names_read(code)
        around = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in read:
                around[name] = self._describe_or_digest(
                    f"{title} uses {name!r}, which", cell, made_once
                )
        for name in sorted(read & function.__globals__.keys()):
            value = function.__globals__[name]
            around[f"global {name}"] = self._describe_or_digest(
                f"{title} uses {name!r}, which", value, module
            )
        for name, value in vars(function).items():
            if name != "__wrapped__":  # by `functools.wraps`; what is called is in the closure
                around[f"attribute {name}"] = self._describe_or_digest(
                    f"{title} has the attribute {name!r}, which", value, made_once
                )
        defaults = (function.__defaults__, function.__kwdefaults__)
        return [
            self.describe(f"{title}, its constants", _list_instructions(code)),
            self._describe_or_digest(f"{title} has defaults, which", defaults, made_once),
            around,
        ]

    def _describe_class(self, kind: type) -> Any:
        """Return what makes a class: its bases, its metaclass, functions, constants and fields.

        Functions that `dataclass` and `NamedTuple` write are left out: they follow from the fields
        and the arguments of the decorator. Special attributes that cannot be called are left out,
        too, such as `__doc__`.

        Args:
            kind: The class.

        Returns:
            The forms of the bases, those of the attributes and fields by name, and that of the
            metaclass.

        Raises:
            InputError: A base has no form, or an attribute has none and its module has no text.
        """
        module, parts = sys.modules.get(kind.__module__), {}
        for name, value in (*vars(kind).items(), *_list_fields(kind)):
            special = name.startswith("__") and name.endswith("__")
            # `__new__` is a static method, `__init_subclass__` a class method.
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if special and (not callable(function) or _is_generated(function)):
                continue
            # These follow from the rest, and have no form.
            if type(value).__name__ in _GENERATED_TYPES:
                continue
            where = f"class {kind.__qualname__!r} has {name!r}, which"
            parts[name] = self._describe_or_digest(where, value, module)
        title = f"class {kind.__qualname__!r}"
        bases = [self.describe(title, base) for base in kind.__bases__]
        # `type` has no form of its own: it would be described by itself.
        meta = None if type(kind) is type else self.describe(title, type(kind))
        return [bases, parts, meta]

    def _describe_or_digest(self, where: str, value: Any, module: ModuleType | None) -> Any:
        """Return the form of a value or, if it has none, a digest of the text that makes it.

        Args:
            where: Place of the value in words, for errors.
            value: The value, or the cell of a closure that holds it.
            module: Module whose text determines the value, None if no text does. The digest is of
                this text and that of the modules it uses (`digest_sources`).

        Returns:
            The form, or {"$source": digest}. The latter changes with any edit of the module.

        Raises:
            InputError: The value has no form, and `module` is None or has no text.
        """
        value = _read_cell(value)
        try:
            return self.describe(where, value)
        except InputError:
            source = None if module is None else digest_sources(module)
            if source is None:
                raise
            return {"$source": source}


def _write_sort_key(form: Any) -> str:
    """Return a form as text: forms of different types have no order of their own."""
    return json.dumps(form, sort_keys=True)


def _read_cell(value: Any) -> Any:
    """Return the content of a cell of a closure, None if it is empty; other values unchanged."""
    if type(value).__name__ != "cell":
        return value
    try:
        return value.cell_contents
    except ValueError:
        return None


def _get_own_state(value: Any) -> dict[str, Any] | None:
    """Return the state by a `__getstate__` that is written in Python, None without a dict of it.

    With slots, `dataclass` writes a `__getstate__` that returns a list: the fields are used then.
    """
    method = getattr(type(value), "__getstate__", None)
    if not isinstance(method, FunctionType):
        return None
    state = method(value)
    return state if isinstance(state, dict) else None


def _is_of_module(function: BuiltinFunctionType) -> bool:
    """Return whether a built-in function belongs to a module, and is no method of an object."""
    return function.__self__ is None or isinstance(function.__self__, ModuleType)


def _is_importable(value: Any) -> bool:
    """Return whether the module of a function or a class has this very object under its name."""
    found: Any = sys.modules.get(value.__module__ or "")
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _describe_dtype(dtype: np.dtype[Any]) -> str:
    """Return the type of entries as text, for records with the names of their fields."""
    return str(dtype.descr) if dtype.names else dtype.str


def _list_attributes(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and what else its object holds, by name.

    A class that derives from a dataclass, or has an `InitVar`, may set more than the fields. Values
    of cached properties follow from the others; they are there or not.
    """
    found = {one.name: getattr(value, one.name) for one in fields(value)}
    for name, entry in getattr(value, "__dict__", {}).items():
        if not isinstance(getattr(type(value), name, None), cached_property):
            found.setdefault(name, entry)
    return found


def _list_fields(kind: type) -> list[tuple[str, Any]]:
    """Return what `dataclass` or `msgspec` keep of a class beside its attributes, by name.

    A default is no attribute of the class if it has slots, and a default factory never is.
    """
    found: list[tuple[str, Any]] = []
    own = vars(kind)
    if "__dataclass_fields__" in own:
        found.append(("arguments of dataclass", repr(own["__dataclass_params__"])))
        found.append(("fields", [_describe_field(f) for f in own["__dataclass_fields__"].values()]))
    if issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        options = {name: getattr(config, name) for name in dir(config) if name[0] != "_"}
        found.append(("arguments of msgspec", repr(options)))
        # Names, and the defaults of the last of them.
        found.append(("fields", [kind.__struct_fields__, kind.__struct_defaults__]))
    return found


def _describe_field(field: Field[Any]) -> list[Any]:
    """Return all of a field of a dataclass that its generated functions depend on."""
    defaults = [[] if one is MISSING else [one] for one in (field.default, field.default_factory)]
    options = (field.init, field.repr, field.compare, field.hash, field.kw_only)
    return [field.name, field._field_type.name, *defaults, *options]  # type: ignore[attr-defined]


def _is_generated(function: Any) -> bool:
    """Return whether `dataclass` or `NamedTuple` compiled a function from text.

    That its file is "<string>" is not enough: the functions of `python -c` have that, too.
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename != "<string>":
        return False
    if code.co_name == "<lambda>":  # `__new__` of a named tuple
        return bool(code.co_varnames[:1] == ("_cls",))
    if sys.version_info < (3, 11):
        # Their text begins with the function in which they are made. A method of a class that has
        # a decorator and a field is never on its second line.
        return bool(code.co_firstlineno <= 2)
    return bool(code.co_qualname.startswith("__create_fn__."))


def _list_instructions(code: CodeType) -> list[Any]:
    """Return the instructions of a code with its constants, and those of codes within it."""
    constants = [_list_instructions(c) if isinstance(c, CodeType) else c for c in code.co_consts]
    return [digest_instructions(code), constants]


def digest_named_files(settings: Any) -> Iterator[tuple[str, str]]:
    """Yield the files that settings name, as (text that names it, digest of its content).

    Args:
        settings: Settings, see `files.find_named_files`.

    Yields:
        One pair for each text: a file that two texts name, such as "a" and "./a", comes twice. The
        digest has 32 hexadecimal digits. Files that cannot be read are left out.
    """
    for text, path in find_named_files(settings).items():
        with suppress(OSError):
            yield text, hash_file(path)[:SHORT_DIGITS]
