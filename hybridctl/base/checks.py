"""Validation at the border: each check names the argument, the value and what would be right."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from numbers import Real
from reprlib import Repr
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.errors import InputError, UnknownNameError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
T = TypeVar("T")
_LISTED = 20  # names in an error
_QUOTED = 400  # characters of a value
_LONGEST = 100  # characters of a name that others are compared with
_SYMMETRIC = 1e-9  # of the largest entry: rounding that a matrix may bring along


def counted(number: int, what: str) -> str:
    """A number of things in words, as in "1 event" and "2 events"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def floats(value: Any) -> Array:
    """A float copy of real numbers.

    Raises `TypeError` or `ValueError` for what numpy would convert with a loss, or by reading it:
    complex numbers, masked entries, truth values, text and None; `OverflowError` for what no float
    can hold.
    """
    if type(value) is np.ndarray and value.dtype.kind == "f":
        return np.array(value, dtype=np.float64)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError("masked entries have no value")
    given = np.asarray(value)
    real = given.dtype.kind in "iuf"
    if not real and not (given.dtype == object and all(isinstance(v, Real) for v in given.flat)):
        raise TypeError(f"{given.dtype} is no type of real numbers")
    return np.array(given, dtype=np.float64)


class _Short(Repr):
    """Representations of a few entries of a few levels, however large the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 160, 240, 60
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 8

    def repr_ndarray(self, value: NDArray[Any], level: int) -> str:
        """The first entries of an array."""
        return repr(value) if value.size <= _LISTED else f"array{value.shape} {value.flat[:6]}..."


_SHORT = _Short()


def quoted(value: object) -> str:
    """A value as an error shows it, in a few hundred characters, however large and deep it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def printable(text: str) -> str:
    """Text for a terminal: what would move its cursor or change its title is shown instead."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def all_finite(a: Array) -> bool:
    """Whether all entries are finite: those whose sum of squares is, which costs less to see."""
    flat = a.ravel()
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(a).all())


def array(name: str, value: ArrayLike, shape: Sequence[int | None] | None = None) -> Array:
    """A read-only float copy of `value`, finite and of the given shape (`None` is any size)."""
    try:
        a = floats(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be an array of numbers, got {quoted(value)}") from error
    if (
        shape is not None
        and a.shape != shape
        and (
            a.ndim != len(shape)
            or any(
                want is not None and want != got for want, got in zip(shape, a.shape, strict=True)
            )
        )
    ):
        wanted = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
        raise InputError(f"{name} must have shape {wanted}, got {a.shape}")
    if not all_finite(a):
        where = np.argwhere(~np.isfinite(a))[0].tolist()
        raise InputError(f"{name} must be finite, but entry {where} is {a[tuple(where)]}")
    a.setflags(write=False)
    return a


def vector(name: str, value: ArrayLike, size: int | None = None) -> Array:
    """A read-only, finite float vector of the given size."""
    return array(name, value, (size,))


def semidefinite(
    name: str, value: ArrayLike, size: int | None = None, *, definite: bool = False
) -> Array:
    """A symmetric, positive semidefinite matrix (size, size); positive definite if asked for."""
    a = array(name, value, (size, size))
    if a.shape[0] != a.shape[1]:
        raise InputError(f"{name} must be square, got shape {a.shape}")
    largest = float(np.abs(a).max(initial=0.0))
    off = np.abs(a - a.T)
    if off.max(initial=0.0) > _SYMMETRIC * largest:
        i, j = np.unravel_index(int(off.argmax()), off.shape)
        raise InputError(
            f"{name} must be symmetric, entries [{i}, {j}] and [{j}, {i}] are {a[i, j]:.9g} and "
            f"{a[j, i]:.9g}"
        )
    if not definite and _is_factored(a, _SYMMETRIC * largest):
        return a
    least = float(np.linalg.eigvalsh(a).min(initial=np.inf))
    if definite and not least > 0.0:
        raise InputError(f"{name} must be positive definite, its least eigenvalue is {least:.3g}")
    if least < -_SYMMETRIC * largest:
        raise InputError(
            f"{name} must be positive semidefinite, its least eigenvalue is {least:.3g}"
        )
    return a


def _is_factored(a: Array, shift: float) -> bool:
    """Whether a + shift I has a Cholesky factor: then no eigenvalue of a is below -shift.

    It takes a tenth of the time of eigenvalues.
    """
    from scipy.linalg.lapack import dpotrf

    shifted: Array = a.copy()
    shifted.reshape(-1)[:: len(a) + 1] += shift
    return bool(len(a)) and not dpotrf(shifted)[1]


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> float:
    """A finite float in the given range."""
    try:
        x = value if type(value) is float else floats(value).item()
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be a number, got {quoted(value)}") from error
    if type(value) is not float and np.ndim(value):
        raise InputError(f"{name} must be a number, got {quoted(value)}")
    if not math.isfinite(x):
        raise InputError(f"{name} must be finite, got {x}")
    if above is not None and not x > above:
        raise InputError(f"{name} must be greater than {above}, got {x}")
    if at_least is not None and x < at_least:
        raise InputError(f"{name} must be at least {at_least}, got {x}")
    if at_most is not None and x > at_most:
        raise InputError(f"{name} must be at most {at_most}, got {x}")
    return x


def count(name: str, value: Any, *, at_least: int = 1) -> int:
    """A whole number of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < at_least:
        raise InputError(
            f"{name} must be a whole number of at least {at_least}, got {quoted(value)}"
        )
    return int(value)


def flag(name: str, value: Any) -> bool:
    """The flag, which is True or False, not what counts as one."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {quoted(value)}")
    return value


def instance(name: str, value: Any, kind: type[T]) -> T:
    """The value, if it is a `kind`."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, got {quoted(value)}")
    return value


def sequence(name: str, value: Any) -> list[Any]:
    """The entries of a list, a tuple, an array, or what else has entries in a row."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise InputError(f"{name} must be a list, got {quoted(value)}")
    return list(value)


def mapping(name: str, value: Any, entries: str) -> Mapping[Any, Any]:
    """Return the value if it is a mapping, or an empty one for None.

    Args:
        name: Of the argument.
        value: What was given.
        entries: What it maps, for the error: "names of joints to N m/rad".

    Raises:
        InputError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a mapping of {entries}, got {quoted(value)}")
    return value


def function(name: str, value: Any) -> Any:
    """The value, if it can be called."""
    if not callable(value):
        raise InputError(f"{name} must be a function, got {quoted(value)}")
    return value


def interval(name: str, value: ArrayLike) -> tuple[float, float]:
    """A finite interval (start, end) with start < end."""
    start, end = vector(name, value, 2).tolist()
    if not start < end:
        raise InputError(f"{name} must increase, got ({start}, {end})")
    return start, end


def member(name: str, value: Any, known: Collection[Any]) -> Any:
    """The value, if it is one of `known`; the error lists them (or some) and those alike."""
    # Not hashable, or an array, which is compared by its entries: so not one of them.
    with suppress(TypeError, ValueError):
        if value in known:
            return value
    names = [str(k) for k in known]
    listed = ", ".join(map(quoted, names[:_LISTED]))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    raise UnknownNameError(
        f"{name} {quoted(value)} is unknown, expected one of [{listed}]{more}"
        + did_you_mean(value, names)
    )


def did_you_mean(value: Any, known: Iterable[Any]) -> str:
    """The end of a message: the names (up to three) spelled most like `value`, or nothing."""
    plain = {str(k).casefold(): str(k) for k in known}
    near = [plain[k] for k in get_close_matches(str(value)[:_LONGEST].casefold(), plain)]
    return f"; did you mean {' or '.join(map(quoted, near))}?" if near else ""
