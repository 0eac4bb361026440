"""Units that logs have, their SI units, and other spellings of them."""

from __future__ import annotations

import math

from hybridctl.base import checks

_DEGREE = math.pi / 180
_GRAVITY = 9.80665

UNITS: dict[str, tuple[str, float]] = {
    "1": ("1", 1.0),
    "%": ("1", 0.01),
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "min": ("s", 60.0),
    "m": ("m", 1.0),
    "cm": ("m", 1e-2),
    "mm": ("m", 1e-3),
    "um": ("m", 1e-6),
    "in": ("m", 0.0254),
    "rad": ("rad", 1.0),
    "mrad": ("rad", 1e-3),
    "deg": ("rad", _DEGREE),
    "rev": ("rad", 2 * math.pi),
    "m/s": ("m/s", 1.0),
    "mm/s": ("m/s", 1e-3),
    "km/h": ("m/s", 1 / 3.6),
    "rad/s": ("rad/s", 1.0),
    "deg/s": ("rad/s", _DEGREE),
    "mrad/s": ("rad/s", 1e-3),
    "rpm": ("rad/s", 2 * math.pi / 60),
    "m/s^2": ("m/s^2", 1.0),
    "mm/s^2": ("m/s^2", 1e-3),
    "g": ("m/s^2", _GRAVITY),
    "mg": ("m/s^2", 1e-3 * _GRAVITY),
    "rad/s^2": ("rad/s^2", 1.0),
    "deg/s^2": ("rad/s^2", _DEGREE),
    "N": ("N", 1.0),
    "mN": ("N", 1e-3),
    "kN": ("N", 1e3),
    "Nm": ("Nm", 1.0),
    "mNm": ("Nm", 1e-3),
    "Ns": ("Ns", 1.0),
    "kg": ("kg", 1.0),
    "gram": ("kg", 1e-3),
    "Pa": ("Pa", 1.0),
    "kPa": ("Pa", 1e3),
    "V": ("V", 1.0),
    "A": ("A", 1.0),
    "mA": ("A", 1e-3),
}
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "min": 60 * 10**9}


def si(name: str, unit: object) -> tuple[str, float]:
    """Return the SI unit of a unit, and the factor to it.

    Args:
        name: What the unit is of, for the error.
        unit: One of `UNITS`: `g` is standard gravity, mass in grams is `gram`.

    Returns:
        The SI unit, and the number of these in one of `unit`.

    Raises:
        UnknownNameError: The unit is unknown.
    """
    known: tuple[str, float] = UNITS[checks.check_member(name, unit, UNITS)]
    return known


_SPELLINGS = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "msec": "ms",
    "usec": "us",
    "nsec": "ns",
    "°": "deg",
    "degree": "deg",
    "degrees": "deg",
    "radian": "rad",
    "radians": "rad",
    "°/s": "deg/s",
    "dps": "deg/s",
    "m/s2": "m/s^2",
    "m/s/s": "m/s^2",
    "mm/s2": "mm/s^2",
    "rad/s2": "rad/s^2",
    "deg/s2": "deg/s^2",
    "N*m": "Nm",
    "N.m": "Nm",
    "N m": "Nm",
    "N-m": "Nm",
}
"""Spellings in files that mean exactly one unit of `UNITS`."""


def canonical_unit(text: str) -> str:
    """Return the spelling of `UNITS` for a unit as files write it, or the text as it is."""
    # Superscripts, the dot of products, and both characters that are used for micro.
    plain = text.strip().translate(str.maketrans("²·µμ", "2*uu"))
    return _SPELLINGS.get(plain, plain if plain in UNITS else text.strip())
