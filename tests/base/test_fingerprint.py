"""Canonical forms: what differs has another form, what is equal the same, the rest is refused."""

import functools
import importlib
import importlib.util
import json
import math
import pickle
import re
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import combinations
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType

import msgspec
import numpy as np
import pytest
import scipy.special
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.code_reading import digest_sources
from hybridctl.base.errors import InputError
from hybridctl.base.fingerprint import digest_named_files, make_canonical_form, make_canonical_text
from hybridctl.mechanics import Terrain


class Color(Enum):
    RED = 1
    BLUE = 2


def digest_with(folder, monkeypatch, gain, imported):
    """The digest of a module that imports something, where its neighbour holds this gain."""
    (folder / "digested_gains.py").write_text(f"GAIN = {gain}\n")
    (folder / "digested_user.py").write_text(f"{imported}\n")
    for name in ("digested_gains", "digested_user"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return digest_sources(importlib.import_module("digested_user"))


@pytest.mark.parametrize(
    "imported", ["from digested_gains import GAIN", "import digested_gains as g\nGAIN = g.GAIN"]
)
def test_the_source_of_a_module_has_what_it_imports_also_if_that_is_a_number(
    imported, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first, other, again = (digest_with(tmp_path, monkeypatch, g, imported) for g in (1.5, 2.5, 1.5))
    assert first == again != other


@dataclass(frozen=True)
class Part:
    mass: float
    inside: object = None


class Entry(msgspec.Struct):
    mass: float


Pair = namedtuple("Pair", "a b")


def flat(slope):
    return Terrain(lambda x, y: slope + 0.0 * x)


def long_series(k):
    values = np.zeros((2000, 1))
    values[k] = 1.0
    return hc.Series(np.arange(2000.0), values)


@functools.cache
def dropped(height):
    system = ball.system(ball.BallParameters())
    return hc.simulate(system, ("open",), [0.0, height, 0.0, 0.0], (0.0, 0.1))


SCALARS = [
    *(
        None,
        True,
        False,
        0,
        1,
        0.0,
        -0.0,
        1.0,
        math.inf,
        -math.inf,
        math.nan,
        2**70,
        "",
        "1",
        "None",
    ),
    *(b"", b"1", 1j, complex(0.0, -1.0), complex(-0.0, 1.0), Decimal("1"), Decimal("1.0")),
    *(Fraction(1, 2), Fraction(1, 3), Path("a"), Path("b"), Color.RED, Color.BLUE),
    *(np.float64(1), np.float32(1), np.int64(1), np.bool_(True)),
    *(np.datetime64("2020-01-01"), np.datetime64("2020-01-02")),
]
CONTAINERS = [
    *((), [], {}, set(), frozenset(), (1,), [1], {1}, frozenset({1}), [[1]], (1, 2)),
    *({"a": 1}, {"a": 1.0}, {1: "a"}, {"$float": "nan"}, range(3), range(4)),
    *(np.array(1.0), np.array([1.0]), np.array([1]), np.array([[1.0]]), np.array([-0.0])),
    *(np.array([0.0]), np.array([math.nan]), np.array(["a"]), np.array([None])),
    *(np.array([1.0, 2.0]), np.ma.array([1.0, 2.0], mask=[0, 1])),
]
OBJECTS = [
    *(Part(1.0), Part(1), Part(1.0, [1]), Entry(1.0), Entry(2.0), Pair(1, 2), Pair(2, 1)),
    *(flat(0.1), flat(0.2), long_series(500), long_series(1000), dropped(1.0), dropped(1.1)),
    *(math.sin, math.cos, np.sin, len, Part, Entry, np.array, functools.partial(min, 1)),
    *(functools.partial(min, 2), functools.partial(min, key=1)),
]
DIFFERENT = [*SCALARS, *CONTAINERS, *OBJECTS]


def test_what_differs_has_another_form_and_what_is_equal_the_same():
    texts = [make_canonical_text("value", value) for value in DIFFERENT]
    same = [
        (DIFFERENT[i], DIFFERENT[k])
        for i, k in combinations(range(len(texts)), 2)
        if texts[i] == texts[k]
    ]
    assert same == []
    for value, text in zip(DIFFERENT, texts, strict=True):
        assert make_canonical_text("value", pickle.loads(pickle.dumps(value))) == text
        json.loads(text)


def test_order_in_mappings_and_memory_do_not_matter():
    assert make_canonical_form("m", {"a": 1, "b": 2}) == make_canonical_form("m", {"b": 2, "a": 1})
    assert make_canonical_form("m", {1: 1, "b": 2}) == make_canonical_form("m", {"b": 2, 1: 1})
    a = np.arange(12.0).reshape(3, 4)
    assert make_canonical_form("a", a.T) == make_canonical_form("a", np.ascontiguousarray(a.T))
    loop = [1]
    loop.append(loop)
    assert make_canonical_form("loop", loop) == [1, {"$again": 0}]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), "grid"),
        ({"a": [1, object()]}, r"grid\.a\[1\]"),
        (Part(1.0, iter([])), r"grid\.inside"),
        (np.random.default_rng(1), "grid"),
        ([].append, "grid"),
        (ball.system(ball.BallParameters()), "a ContactSystem has no"),
        (functools.partial(min, object()), "grid"),
        (type("Float", (float,), {})(1.0), "grid"),
    ],
)
def test_an_object_without_a_form_is_refused_by_name(value, where):
    with pytest.raises(InputError, match=where) as refused:
        make_canonical_form("grid", value)
    assert "canonical form" in str(refused.value)


def test_a_list_within_lists_without_end_is_refused():
    deep = []
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(InputError, match="nested too deeply"):
        make_canonical_form("grid", deep)
    while deep:  # taken apart here: its own end would be a recursion, too
        deep = deep.pop()


def made(tmp_path, text, name="swept"):
    """The module of a text, loaded anew."""
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


BASE = """
import math
import helpers_of_swept as helpers
RATE = 2.0
TABLE = {"a": [1, 2]}
STREAM = iter([])
class Law:
    gain = 3.0
    def __new__(cls):
        return object.__new__(cls)
    @classmethod
    def __init_subclass__(cls):
        cls.kind = "own"
    def apply(self, x):
        return self.gain * x
def helper(x):
    return RATE * x
def f(x, power=2):
    return helper(x) ** power + helpers.half(x) + Law().apply(x) + TABLE["a"][0]
def streamed(x):
    return x + len(list(STREAM))
"""


@pytest.fixture
def texts(tmp_path):
    """Digests of `f` after edits of its module and of the one beside it."""

    def digest(*edit, half="return x / 2", name="f"):
        made(tmp_path, f"def half(x):\n    {half}\n", "helpers_of_swept")
        text = BASE.replace(*edit) if edit else BASE
        return make_canonical_text("function", getattr(made(tmp_path, text), name))

    yield digest
    del sys.modules["swept"], sys.modules["helpers_of_swept"]


@pytest.mark.parametrize(
    "edit",
    [
        ("** power", "* power"),
        ("power=2", "power=3"),
        ("power=2", "power=2.0"),
        ("return RATE * x", "return RATE + x"),
        ("RATE = 2.0", "RATE = 2.5"),
        ("gain = 3.0", "gain = 3.5"),
        ("self.gain * x", "self.gain - x"),
        ("object.__new__(cls)", "super().__new__(cls)"),
        ('"own"', '"other"'),
        ("[1, 2]", "[0, 2]"),
    ],
)
def test_an_edit_of_a_function_or_of_what_it_uses_is_seen(texts, edit):
    assert texts(*edit) != texts()


def test_an_edit_beside_a_function_is_not(texts):
    assert texts("def f(", "# A comment.\n\n\nOTHER = 3\ndef f(") == texts()
    assert texts(half="return x / 3") != texts()


def test_globals_without_a_form_go_by_the_text_of_their_module(texts):
    assert texts(name="streamed") == texts(name="streamed")
    assert texts("iter([])", "iter([1])", name="streamed") != texts(name="streamed")


def scaling(k):
    return lambda x: k * x


def test_functions_on_one_line_and_closures_are_told_apart():
    a, b = lambda x: x, lambda x: 100 * x
    times = [scaling(k) for k in (1, 2, 1.0)]
    texts = {make_canonical_text("function", each) for each in (a, b, *times)}
    assert len(texts) == 5
    assert make_canonical_text("f", functools.lru_cache(a)) != make_canonical_text(
        "f", functools.lru_cache(b)
    )
    assert make_canonical_text("function", scaling(1)) == make_canonical_text("function", times[0])
    with pytest.raises(InputError, match=r"'k', which cannot be told from others"):
        make_canonical_form("function", scaling(object()))


def test_a_list_of_calls_is_not_what_a_function_depends_on():
    calls = []

    def noting(x):
        calls.append(x)
        return x

    def reading(x):
        return len(calls) + x

    before = [make_canonical_text("function", each) for each in (noting, reading)]
    calls.append(1)
    assert make_canonical_text("function", noting) == before[0]
    assert make_canonical_text("function", reading) != before[1]


def test_methods_and_recursion_have_forms():
    def count(n):
        return n and count(n - 1)

    def other(n):
        return n and other(n - 2)

    assert make_canonical_text("f", count) != make_canonical_text("f", other)
    assert make_canonical_text("f", Color.RED.__class__) != make_canonical_text("f", Part)
    assert make_canonical_text("f", Part(1.0).__eq__) != make_canonical_text("f", Part(2.0).__eq__)


def test_files_that_settings_name_count_with_what_they_hold(tmp_path):
    (tmp_path / "a").write_text("1")
    settings = {"data": str(tmp_path / "a"), "list": [tmp_path / "none", {"x": "\0", "y": 3}]}
    ((name, first),) = digest_named_files(settings)
    assert name == str(tmp_path / "a")
    (tmp_path / "a").write_text("2")
    assert dict(digest_named_files(settings))[name] != first


def doubling(x):
    return 2 * x


class Scaled:
    """A callable that looks like the function it wraps."""

    def __init__(self, factor):
        self.factor = factor
        functools.update_wrapper(self, doubling)

    def __call__(self, x):
        return self.factor * self.__wrapped__(x)


class Derived(Part):
    def __init__(self, mass, gain):
        super().__init__(mass)
        object.__setattr__(self, "gain", gain)


class Half(functools.partial):
    pass


def with_attribute(gain):
    def law(x):
        return law.gain * x

    law.gain = gain
    return law


RECORDS = (
    np.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
    np.array([(1, 2)], [("b", "i4"), ("a", "i4")]),
)
PROXIES = defaultdict(int, a=1), {"a": 1}, OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)


@pytest.mark.parametrize(
    "values",
    [
        (np.eye(2), np.matrix(np.eye(2))),
        (b"1", bytearray(b"1")),
        (PurePosixPath("a"), PureWindowsPath("a"), Path("a")),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), {"a": 1, "b": 2}),
        (np.expm1, scipy.special.expm1),
        tuple(each[0] for each in RECORDS),
        RECORDS,
        (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.array([1.0, 3.0], mask=[0, 1])),
        (Derived(1.0, 2.0), Derived(1.0, 3.0)),
        (with_attribute(2), with_attribute(3)),
        (re.RegexFlag(6), re.RegexFlag(2), re.RegexFlag(4)),
        tuple(MappingProxyType(each) for each in PROXIES[1:]),
    ],
)
def test_values_that_calculate_differently_never_share_a_form(values):
    assert len({make_canonical_text("value", each) for each in values}) == len(values)


@pytest.mark.parametrize(
    "value",
    [
        np.frompyfunc(doubling, 1, 1),
        Scaled(2.0),
        Half(doubling),
        MappingProxyType(PROXIES[0]),
    ],
)
def test_what_hides_a_part_of_itself_is_refused(value):
    with pytest.raises(InputError, match="canonical form"):
        make_canonical_form("value", value)


CLASSES = """
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import NamedTuple
import msgspec
class Meta(type):
    def __call__(cls):
        return 2
class Law:
    def __call__(self, x):
        return 2 * x
class Part:
    __call__ = partial(max, 2)
class Made(metaclass=Meta):
    pass
@dataclass
class Plain:
    a: list = field(default_factory=lambda: [2])
@dataclass(slots=True)
class Slotted:
    a: int = 2
@dataclass(eq=bool(2))
class Compared:
    a: int
@dataclass
class Own:
    a: int
    def __repr__(self):
        return 2
class Pair(NamedTuple):
    a: int = 2
class Name(str, Enum):
    A = "2"
    __str__ = str.__str__
class Entry(msgspec.Struct):
    a: int = 2
"""


@pytest.mark.parametrize(
    "name",
    ["Law", "Part", "Made", "Plain", "Slotted", "Compared", "Own", "Pair", "Name", "Entry"],
)
def test_classes_without_a_file_differ_by_all_that_they_calculate_with(name):
    def text(number):
        module = {"__name__": "made_from_text"}
        exec(CLASSES.replace("2", str(number)), module)
        return make_canonical_text("class", module[name])

    assert text(2) == text(2) != text(0)


def test_the_order_of_fields_is_part_of_a_dataclass():
    def text(names):
        return make_canonical_text("class", make_dataclass("Made", names))

    assert text("ab") == text("ab") != text("ba")
