"""Each check returns a clean value, or names the argument, the value and what would be right."""

from fractions import Fraction

import numpy as np
import pytest

from hybridctl.base import checks
from hybridctl.base.errors import InputError, UnknownNameError


def test_an_array_is_a_read_only_copy():
    given = np.array([[1, 2], [3, 4]])
    a = checks.check_array("a", given, (2, None))
    given[0, 0] = 9
    assert a.dtype == np.float64
    assert a[0, 0] == 1.0
    assert not a.flags.writeable


@pytest.mark.parametrize(
    ("value", "shape", "message"),
    [
        ([1, 2], (3,), r"a must have shape \(3\), got \(2,\)"),
        ([1, 2], (1, None), r"\(1, any\)"),
        (5.0, (None,), "shape"),
        ([1, np.nan], (2,), r"entry \[1\] is nan"),
        ([[1, 2], [np.inf, 0]], (2, 2), r"entry \[1, 0\] is inf"),
        (["x"], (1,), "array of numbers"),
        ([[1], [1, 2]], None, "array of numbers"),
        ([1j], (1,), "array of numbers"),
        (np.array([1j]), (1,), "array of numbers"),
        (np.array([1.0 + 0.0j]), (1,), "array of numbers"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), (2,), "array of numbers"),
        ([True, False], (2,), "array of numbers"),
        ("0.3", (), "array of numbers"),
        (["0.3"], (1,), "array of numbers"),
        (np.array(["0.3"], dtype=object), (1,), "array of numbers"),
        ([10**400], (1,), "array of numbers"),
        (None, (1,), "a must"),
        ([None, 1.0], (2,), "array of numbers"),
    ],
)
def test_a_wrong_array_is_named(value, shape, message):
    with pytest.raises(InputError, match=message):
        checks.check_array("a", value, shape)


def test_a_number_in_its_range_passes():
    assert checks.check_number("n", np.float32(0.5), above=0.0, at_most=1.0) == 0.5
    assert checks.check_number("n", 0, at_least=0) == 0.0
    assert checks.check_number("n", Fraction(1, 4)) == 0.25
    assert checks.check_number("n", np.array(0.5)) == 0.5


def test_what_is_not_masked_counts():
    assert checks.check_vector("a", np.ma.array([1.0, 2.0], mask=False)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (0.0, {"above": 0.0}, "greater than 0.0, got 0.0"),
        (True, {}, "must be a number, got True"),
        (-1, {"at_least": 0.0}, "at least 0.0, got -1.0"),
        (2, {"at_most": 1.0}, "at most 1.0, got 2.0"),
        (np.nan, {}, "finite, got nan"),
        (-np.inf, {"at_least": 0.0}, "finite"),
        ("x", {}, "a number, got 'x'"),
        (None, {}, "a number"),
        ([1, 2], {}, "a number"),
        ([1.0], {}, "a number"),
        ("0.3", {}, "a number, got '0.3'"),
        (b"0.3", {}, "a number"),
        (1.0 + 0.0j, {}, "a number"),
        (np.complex128(1.0), {}, "a number"),
        (np.True_, {}, "a number"),
        (np.ma.masked, {}, "a number"),
        (10**400, {}, "a number"),
    ],
)
def test_a_wrong_number_is_named(value, bounds, message):
    with pytest.raises(InputError, match=message):
        checks.check_number("n", value, **bounds)


@pytest.mark.parametrize("value", [0, -3, 1.0, "1", True, None])
def test_a_count_is_a_whole_number_of_at_least_one(value):
    with pytest.raises(InputError, match="n must be a whole number of at least 1"):
        checks.check_count("n", value)
    assert checks.check_count("n", np.int64(3)) == 3


def test_an_interval_increases():
    assert checks.check_interval("i", [0, 1]) == (0.0, 1.0)
    for wrong in ((1, 0), (0, 0), (0, np.nan), (0,), 3, None, "ab", ((0, 1), 2)):
        with pytest.raises(InputError, match="i must"):
            checks.check_interval("i", wrong)


def test_a_member_is_returned_and_a_stranger_gets_a_hint():
    assert checks.check_member("colour", "red", ("red", "blue")) == "red"
    with pytest.raises(UnknownNameError, match="did you mean 'blue'"):
        checks.check_member("colour", "bleu", ("red", "blue"))
    with pytest.raises(UnknownNameError, match="colour"):
        checks.check_member("colour", [], {"red": 1})


def test_names_spelled_alike_are_offered_whatever_their_case_and_long_lists_are_cut():
    frames = [f"link_{k}" for k in range(40)] + ["Left_Foot", "left_foot_2"]
    with pytest.raises(UnknownNameError) as caught:
        checks.check_member("frame", "left_foot", frames)
    message = str(caught.value)
    assert "'link_19'] and 22 more; did you mean 'Left_Foot' or 'left_foot_2'?" in message
    with pytest.raises(UnknownNameError, match=r"expected one of \['a', 'b'\]$"):
        checks.check_member("name", "zzz", ["a", "b"])
