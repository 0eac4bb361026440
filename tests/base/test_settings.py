"""Bounds that the types of settings say."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pytest
from hybridctl.experiments.filter_models import BallSettings

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.base.settings import (
    Count,
    Meta,
    NotNegative,
    Positive,
    Settings,
    find_bounds,
    load_configuration,
    parse_json_or_text,
    parse_settings,
)


@dataclass(frozen=True)
class Config(Settings):
    angle: Annotated[float, Meta(gt=0.0, le=1.5)] = 0.3
    size: NotNegative = 0.0
    any: float = -1.0
    runs: Count = 3
    few: Annotated[int, Meta(ge=1, le=9)] = 3
    widths: tuple[Positive, ...] = (1e-2, 1e-3)
    pair: tuple[float, Positive] = (-1.0, 1.0)
    name: str = "a"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"angle": 0.0}, "angle must be greater than 0.0, got 0.0"),
        ({"angle": 1.6}, "angle must be at most 1.5, got 1.6"),
        ({"size": -1e-9}, "size must be at least 0.0"),
        ({"any": float("nan")}, "any must be finite"),
        ({"any": "a"}, "any must be a number"),
        ({"runs": 0}, "runs must be a whole number of at least 1, got 0"),
        ({"runs": 1.5}, "runs must be a whole number"),
        ({"few": 10}, "few must be a whole number of at most 9, got 10"),
        ({"widths": (1.0, 0.0)}, r"widths\[1\] must be greater than 0.0"),
        ({"widths": 1.0}, "widths must be a list"),
        ({"pair": (1.0,)}, r"pair must be a list of length 2, got \[1.0\]"),
        ({"pair": (1.0, -1.0)}, r"pair\[1\] must be greater than 0.0"),
    ],
)
def test_numbers_outside_their_bounds_are_named(given, reason):
    with pytest.raises(InputError, match=reason):
        Config(**given)


def test_numbers_and_arrays_of_numpy_are_numbers():
    given = {"angle": np.float32(0.5), "runs": np.int64(2), "widths": np.array([1.0, 2.0])}
    assert Config(**given).angle == 0.5
    with pytest.raises(InputError, match=r"runs must be a whole number of at least 1, got 0"):
        Config(runs=np.int64(0))
    with pytest.raises(InputError, match=r"widths\[1\] must be finite, got nan"):
        Config(widths=np.array([1.0, np.nan]))


def test_a_number_that_no_float_can_hold_is_out_of_range():
    with pytest.raises(InputError, match="any must be in range, got 1000"):
        Config(any=10**400)


def test_bounds_do_not_change_how_settings_are_read():
    found = parse_settings(Config, {"widths": [1, 2], "angle": 1}, "settings")
    assert found == Config(1.0, widths=(1, 2))
    assert vars(found) == vars(Config(1.0, widths=(1.0, 2.0)))  # defaults are among them


def test_a_text_that_is_none_of_a_few_is_named_beside_them():
    @dataclass(frozen=True)
    class Chosen(Config):
        rule: Literal["first", "last"] = "first"
        rules: tuple[Literal["first", "last"], ...] = ()
        rest: Literal["first", "last"] | None = None

    with pytest.raises(UnknownNameError, match=r"settings\.rule.*'lats'.*first.*last"):
        parse_settings(Chosen, {"rule": "lats"}, "settings")
    with pytest.raises(UnknownNameError, match=r"^rule.*'lats'.*first.*last"):
        Chosen(rule="lats")
    with pytest.raises(UnknownNameError, match=r"^rules\[1\].*'lats'.*first.*last"):
        Chosen(rules=("last", "lats"))
    with pytest.raises(UnknownNameError, match=r"^rest.*'lats'.*\['first', 'last'\]"):
        Chosen(rest="lats")


def test_a_text_that_is_none_of_a_few_is_named_beside_them_at_any_depth():
    @dataclass(frozen=True)
    class Part(Settings):
        rule: Literal["first", "last"] = "first"
        pair: tuple[float, Literal["up", "down"]] = (0.0, "up")

    @dataclass(frozen=True)
    class Whole(Settings):
        part: Part | None = None
        parts: tuple[Part, ...] = ()
        rules: dict[str, Literal["left", "right"]] = field(default_factory=dict)

    wrong = {
        r"settings\.part\.rule.*'lats'.*\['first', 'last'\]": {"part": {"rule": "lats"}},
        r"settings\.parts\[1\]\.pair\[1\].*'lats'.*\['up', 'down'\]": {
            "parts": [{}, {"pair": [1.0, "lats"]}]
        },
    }
    for message, content in wrong.items():
        with pytest.raises(UnknownNameError, match=message):
            parse_settings(Whole, content, "settings")
    with pytest.raises(UnknownNameError, match=r"rules.*\['left', 'right'\]"):
        parse_settings(Whole, {"rules": {"a": "lats"}}, "settings")


def test_numbers_in_lists_and_dicts_must_be_finite():
    @dataclass(frozen=True)
    class Nested(Settings):
        many: list[float] = field(default_factory=list)
        named: dict[str, float] = field(default_factory=dict)
        parts: list[Config] = field(default_factory=list)

    assert Nested(named={"a": np.float64(1.0)}).named == {"a": 1.0}
    for content, reason in (
        ({"many": [1.0, np.inf]}, r"many\[1\] must be finite, got inf"),
        ({"named": {"a": np.inf}}, r"named\['a'\] must be finite, got inf"),
    ):
        with pytest.raises(InputError, match=reason):
            parse_settings(Nested, content, "settings")
        with pytest.raises(InputError, match=reason):
            Nested(**content)
    with pytest.raises(InputError, match="any must be finite, got inf"):
        parse_settings(Nested, {"parts": [{"any": np.inf}]}, "settings")
    with pytest.raises(UnknownNameError, match=r"key in settings\.parts\[0\]"):
        parse_settings(Nested, {"parts": [{"wide": 1.0}]}, "settings")


def test_bounds_of_a_field_are_those_of_its_type():
    assert find_bounds(BallSettings, "restitution") == (0.0, 1.0)
    assert find_bounds(BallSettings, "mass") == (-np.inf, np.inf)


def test_bounds_of_a_field_hold_where_a_class_overrides_its_default():
    @dataclass(frozen=True)
    class Wider(Config):
        size: float = 2.0

    assert Wider().size == 2.0
    with pytest.raises(InputError, match="size must be at least"):
        Wider(size=-1.0)


def test_a_bound_that_must_not_be_reached_is_a_bound():
    @dataclass(frozen=True)
    class Share(Settings):
        value: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.5

    assert find_bounds(Share, "value") == (0.0, 1.0)
    with pytest.raises(InputError, match=r"value must be less than 1\.0, got 1\.0"):
        Share(1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[go2, solo12]", ["go2", "solo12"]),
        ("[go2]", ["go2"]),
        ('["go2", 1]', ["go2", 1]),
        ("[1e-3,two]", [1e-3, "two"]),
        ("go2", "go2"),
        ("[go2", "[go2"),
        ("[[go2]]", "[[go2]]"),
    ],
)
def test_words_in_a_list_need_no_quotes(text, value):
    assert parse_json_or_text(text) == value


def test_lists_of_an_assignment_are_those_of_json():
    assert load_configuration(Config, None, ["widths=[1e-2, 1]"]).widths == (1e-2, 1.0)
    with pytest.raises(InputError, match="widths"):
        load_configuration(Config, None, ["widths=[wide]"])
