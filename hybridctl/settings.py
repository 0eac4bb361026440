"""Settings of experiments and models: dataclasses whose types say their bounds as well.

@dataclass(frozen=True)
class Config(Settings):
    slope: Annotated[float, Bounds(above=0.0, at_most=1.5)] = 0.3  # rad
    widths: tuple[Positive, ...] = (1e-2, 1e-3)
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from hybridctl.checks import count, number, sequence
from hybridctl.errors import InputError


@dataclass(frozen=True)
class Bounds:
    """The range in which a number may lie; None for no bound."""

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None


Positive = Annotated[float, Bounds(above=0.0)]
NotNegative = Annotated[float, Bounds(at_least=0.0)]
UnitInterval = Annotated[float, Bounds(at_least=0.0, at_most=1.0)]
Count = Annotated[int, Bounds(at_least=1)]


def least_and_most(kind: type, name: str) -> tuple[float, float]:
    """Bounds between which a field of settings may lie, by its type; infinite without any."""
    found: Any = get_type_hints(kind, include_extras=True).get(name)
    bounds = found.__metadata__[0] if get_origin(found) is Annotated else Bounds()
    lower = bounds.at_least if bounds.above is None else bounds.above
    return (
        -math.inf if lower is None else lower,
        math.inf if bounds.at_most is None else bounds.at_most,
    )


class Settings:
    """What a dataclass of settings derives from: they are checked when they are made.

    All numbers, also those in tuples, by the types of its fields; what a dataclass that it derives
    from says of a field holds as well. Raises `InputError` for a number outside its bounds, one
    that is not finite, what is no number, and a tuple of another length. Fields of other types are
    not looked at.
    """

    def __post_init__(self) -> None:
        for kind in filter(is_dataclass, type(self).__mro__):
            for name, hint in get_type_hints(kind, include_extras=True).items():
                _check(name, hint, getattr(self, name))


def _check(name: str, kind: Any, value: Any, bounds: Bounds | None = None) -> None:
    if get_origin(kind) is Annotated:
        _check(name, get_args(kind)[0], value, kind.__metadata__[0])
    elif kind is float:
        number(name, value, **asdict(bounds or Bounds()))
    elif kind is int and bounds is not None:
        count(name, value, at_least=int(bounds.at_least or 0))
        number(name, value, at_most=bounds.at_most)
    elif get_origin(kind) is tuple:
        entries, parts = sequence(name, value), get_args(kind)
        if parts[1:] == (...,):
            parts = parts[:1] * len(entries)
        if len(parts) != len(entries):
            raise InputError(f"{name} must have {len(parts)} entries, got {len(entries)}")
        for k, (part, entry) in enumerate(zip(parts, entries, strict=True)):
            _check(f"{name}[{k}]", part, entry)
