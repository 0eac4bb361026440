"""Units that logs have, their SI units, and other spellings of them."""

from __future__ import annotations

import math

from scipy.constants import degree, g, inch

from hybridctl.base import checks

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
    "in": ("m", inch),
    "rad": ("rad", 1.0),
    "mrad": ("rad", 1e-3),
    "deg": ("rad", degree),
    "rev": ("rad", 2 * math.pi),
    "m/s": ("m/s", 1.0),
    "mm/s": ("m/s", 1e-3),
    "km/h": ("m/s", 1 / 3.6),
    "rad/s": ("rad/s", 1.0),
    "deg/s": ("rad/s", degree),
    "mrad/s": ("rad/s", 1e-3),
    "rpm": ("rad/s", 2 * math.pi / 60),
    "m/s^2": ("m/s^2", 1.0),
    "mm/s^2": ("m/s^2", 1e-3),
    "g": ("m/s^2", g),
    "mg": ("m/s^2", 1e-3 * g),
    "rad/s^2": ("rad/s^2", 1.0),
    "deg/s^2": ("rad/s^2", degree),
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
"""SI unit, and the number of SI units in one, of each unit that a mapping may name."""
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "min": 60 * 10**9}
"""Nanoseconds in each unit of time: whole numbers, with which stamps are converted exactly."""


def find_si_unit(name: str, unit: object) -> tuple[str, float]:
    """Return the SI unit of a unit, and the factor by which values are converted to it.

    Args:
        name: Name of the setting that holds the unit, for the error.
        unit: One of `UNITS`: `g` is standard gravity, mass in grams is `gram`.

    Returns:
        The SI unit, and the number of SI units in one `unit`.

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


def normalize_unit(text: str) -> str:
    """Return a unit in the spelling of `UNITS`; of other text only outer spaces are removed."""
    # Superscripts, the dot of products, and both characters that are used for micro.
    plain = text.strip().translate(str.maketrans("²·µμ", "2*uu"))
    return _SPELLINGS.get(plain, plain if plain in UNITS else text.strip())
