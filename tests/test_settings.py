"""Bounds that the types of settings say."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from hybridctl.experiments.filter_models import BallSettings

from hybridctl.errors import InputError, UnknownNameError
from hybridctl.settings import Bounds, Count, NotNegative, Positive, Settings, least_and_most
from hybridctl.yaml_files import typed


@dataclass(frozen=True)
class Config(Settings):
    angle: Annotated[float, Bounds(above=0.0, at_most=1.5)] = 0.3
    size: NotNegative = 0.0
    any: float = -1.0
    runs: Count = 3
    few: Annotated[int, Bounds(at_least=1, at_most=9)] = 3
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
        ({"few": 10}, "few must be at most 9, got 10"),
        ({"widths": (1.0, 0.0)}, r"widths\[1\] must be greater than 0.0"),
        ({"widths": 1.0}, "widths must be a list"),
        ({"pair": (1.0,)}, "pair must have 2 entries, got 1"),
        ({"pair": (1.0, -1.0)}, r"pair\[1\] must be greater than 0.0"),
    ],
)
def test_numbers_outside_their_bounds_are_named(given, reason):
    with pytest.raises(InputError, match=reason):
        Config(**given)


def test_bounds_do_not_change_how_settings_are_read():
    found = typed(Config, {"widths": [1, 2], "angle": 1}, "settings")
    assert found == Config(1.0, widths=(1, 2))
    assert vars(found) == vars(Config(1.0, widths=(1.0, 2.0)))  # defaults are among them


def test_a_text_that_is_none_of_a_few_is_named_beside_them():
    @dataclass(frozen=True)
    class Chosen(Config):
        rule: Literal["first", "last"] = "first"

    with pytest.raises(UnknownNameError, match=r"settings\.rule.*'lats'.*first.*last"):
        typed(Chosen, {"rule": "lats"}, "settings")


def test_bounds_of_a_field_are_those_of_its_type():
    assert least_and_most(BallSettings, "restitution") == (0.0, 1.0)
    assert least_and_most(BallSettings, "mass") == (-np.inf, np.inf)


def test_bounds_of_a_field_hold_where_a_class_overrides_its_default():
    @dataclass(frozen=True)
    class Wider(Config):
        size: float = 2.0

    assert Wider().size == 2.0
    with pytest.raises(InputError, match="size must be at least"):
        Wider(size=-1.0)
