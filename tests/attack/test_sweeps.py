"""Random sweeps against direct calls: with and without a folder, in parts, after edits.

Many more are run by `HYBRIDCTL_SWEEPS=200 pytest -n 0 tests/attack/test_sweeps.py`.
"""

import json
import math
import os
import random
import zlib
from decimal import Decimal

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.app.sweep_result import Sweep
from hybridctl.base.errors import InputError

SWEEPS = int(os.environ.get("HYBRIDCTL_SWEEPS", "6"))
SCALARS = [None, True, False, 0, 1, 1.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e-300, "a", "1"]
SCALARS += [np.float64(1.0), np.float32(1.0), np.int64(1), np.bool_(True), 1j, -1j, 2**70, b"x"]


class StoppedError(Exception):
    """Ends a sweep in the middle."""


def drawn(rng):
    """A value for a grid: a number, text, or numbers in lists, mappings, arrays and series."""
    kind = rng.randrange(8)
    if kind == 0:
        return [rng.choice(SCALARS), rng.choice(SCALARS)]
    if kind == 1:
        return (rng.choice(SCALARS), {"k": rng.choice(SCALARS)})
    if kind == 2:
        long = np.zeros(2000)
        long[rng.randrange(500, 1500)] = 1.0
        return long
    if kind == 3:
        return hc.Series(np.arange(3.0), np.arange(3.0)[:, None] * rng.randrange(3))
    return rng.choice(SCALARS)


def content(value):
    """All of a value as text, without what `fingerprint` does."""
    if isinstance(value, hc.Series):
        return f"series {content(value.times)} {content(value.values)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.tolist()}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} " + " ".join(map(content, value))
    if isinstance(value, dict):
        return "dict " + " ".join(f"{key} {content(entry)}" for key, entry in value.items())
    return f"{type(value).__name__} {value!r}"


def made(rng):
    """A function of a grid, whose results have all kinds of numbers, and what they are as text."""
    factor, shift = rng.choice([2, 3.0, -1.0]), rng.choice([0, 1])
    special = rng.choice([math.nan, math.inf, np.bool_(True), True, np.float32(0.1), 7])

    def function(**point):
        number = zlib.crc32(" ".join(map(content, point.values())).encode())
        if number % 11 == 0:
            raise InputError("unlucky")
        found = {"number": number * factor + shift, "list": [number, special], "text": "x"}
        return {**found, "wave": complex(number, factor), "is_even": np.bool_(number % 2 == 0)}

    return function


def expected(function, point):
    """The row of a direct call."""
    try:
        found = function(**point)
    except InputError as error:
        return {"status": "failed", "message": str(error)}
    wave = found["wave"]
    return {
        "status": "done",
        "message": "",
        "number": found["number"],
        "list.0": found["list"][0],
        "list.1": getattr(found["list"][1], "tolist", lambda: found["list"][1])(),
        "wave.real": wave.real,
        "wave.imag": wave.imag,
        "is_even": bool(found["is_even"]),
    }


def check(rows, function, points):
    """Rows are those of direct calls: exact numbers, and the very objects of the grid."""
    assert len(rows) == len(points)
    for row, point in zip(rows, points, strict=True):
        assert all(row[name] is value or value != value for name, value in point.items())
        results = {name: value for name, value in row.items() if name not in point}
        assert json.dumps(results) == json.dumps(expected(function, point))


@pytest.mark.parametrize("seed", range(SWEEPS))
def test_rows_are_those_of_direct_calls(seed, tmp_path, monkeypatch):
    """Without a folder, in one that was stopped, resumed, and after an edit of the function."""
    monkeypatch.setattr(Sweep, "plot", lambda *path: None)  # takes most of the time
    rng = random.Random(seed)
    names = rng.sample(["a", "b", "c"], rng.randint(1, 2))
    values = [drawn(rng) for _ in range(8)]
    points = [{name: rng.choice(values) for name in names} for _ in range(rng.randint(1, 12))]
    function, other = made(rng), made(rng)
    check(hc.sweep(function, points).rows, function, points)
    stop_after = rng.randint(1, len(points))
    said = []

    def stop(line):
        said.append(line)
        if len(said) == stop_after:
            raise StoppedError

    with pytest.raises(StoppedError):
        hc.sweep(function, points, out=tmp_path / "out", tell=stop)
    lines = []
    rows = hc.sweep(function, points, out=tmp_path / "out", tell=lines.append).rows
    check(rows, function, points)
    assert lines[0] == f"{stop_after} of {len(points)} runs have results already"
    check(hc.sweep(other, points, out=tmp_path / "out").rows, other, points)
    check(hc.sweep(function, points, out=tmp_path / "out").rows, function, points)


def test_a_decimal_is_a_number_and_an_object_no_result():
    assert hc.sweep(lambda a: Decimal(a), {"a": [1]}).rows[0]["result"] == 1.0
    with pytest.raises(InputError, match=r"result 'b\.0' must be a number.* got <object"):
        hc.sweep(lambda a: {"b": [object()]}, {"a": [1]})
