"""Validation of arguments where they enter the library, and values as error messages show them.

Each `check_...` function takes the name of the argument, for the error, and its value. It returns
the value, converted where it says so, or raises `InputError` with name, value and what is right.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from reprlib import Repr
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.errors import InputError, UnknownNameError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
T = TypeVar("T")
_MAX_LISTED_ENTRIES = 20
"""Most names or entries of an array that a message lists, to keep it in three lines. A choice."""
_MAX_QUOTE_LENGTH = 400
"""Most characters of a value that a message shows. A choice."""
_MAX_COMPARED_LENGTH = 100
"""Characters of a name that are compared with known names: the cost grows with their square."""
_SYMMETRY_TOLERANCE = 1e-9
"""Largest asymmetry and negative eigenvalue that count as rounding, relative to the largest entry.

The rounding of products such as J P J^T is far smaller. The value is a choice."""


def format_count(number: int, what: str) -> str:
    """Return a number of things in words, as in "1 event" and "2 events"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def join_names(names: Sequence[str], limit: int) -> str:
    """Return names as text for a message, as in "a, b and 3 more".

    Args:
        names: The names.
        limit: Most names that are shown.
    """
    left_out = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {left_out} more" if left_out > 0 else "")


def convert_to_floats(value: Any) -> Array:
    """Return a float copy of real numbers, of the same shape.

    Args:
        value: A number, an array, or nested sequences of numbers. NaN and infinities are accepted.

    Raises:
        TypeError: A value is not a real number, though numpy might convert it: complex numbers,
            truth values, text and None.
        ValueError: An entry is masked, a whole number is too large for a float, or the sequences
            have no common shape.
    """
    if type(value) is np.ndarray and value.dtype.kind == "f":
        return np.array(value, dtype=np.float64)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError("masked entries have no value")
    given = np.asarray(value)
    real = given.dtype.kind in "iuf"
    if not real and not (given.dtype == object and all(isinstance(v, Real) for v in given.flat)):
        raise TypeError(f"{given.dtype} is no type of real numbers")
    try:
        return np.array(given, dtype=np.float64)
    except OverflowError as error:  # of 10**400, so that callers have two classes to catch
        raise ValueError(str(error)) from error


class _ShortRepr(Repr):
    """Representation of a value by a few entries of a few levels, however large it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 160, 240, 60
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 8

    def repr_ndarray(self, value: NDArray[Any], level: int) -> str:
        """Return an array in text: all of a small one, else its shape and first six entries."""
        if value.size <= _MAX_LISTED_ENTRIES:
            return repr(value)
        return f"array{value.shape} {value.flat[:6]}..."


_SHORT_REPR = _ShortRepr()


def quote(value: object) -> str:
    """Return a value as an error message shows it: a few hundred characters, of any value."""
    text = _SHORT_REPR.repr(value)
    return text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:_MAX_QUOTE_LENGTH]}..."


def make_printable(text: str) -> str:
    r"""Return text for a terminal, with control characters but line ends as escapes like \x1b.

    A file name or a line of a log could otherwise move the cursor or change the title.
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def is_finite(a: Array) -> bool:
    """Return whether all entries of an array are finite; an empty array is."""
    flat = a.ravel()
    # The sum of squares takes one call where entries are moderate. It may overflow: then ask each.
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(a).all())


def check_array(name: str, value: ArrayLike, shape: Sequence[int | None] | None = None) -> Array:
    """Return a read-only, finite float copy of an array.

    Args:
        name: Name of the argument, for errors.
        value: Numbers of any real type.
        shape: Required shape, in which None stands for any size. If None, any shape is right.

    Raises:
        InputError: The value is no array of real numbers, has another shape, or is not finite.
    """
    try:
        a = convert_to_floats(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers, got {quote(value)}") from error
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
    if not is_finite(a):
        where = np.argwhere(~np.isfinite(a))[0].tolist()
        raise InputError(f"{name} must be finite, but entry {where} is {a[tuple(where)]}")
    a.setflags(write=False)
    return a


def check_vector(name: str, value: ArrayLike, size: int | None = None) -> Array:
    """Return a read-only, finite float copy of a vector.

    Args:
        name: Name of the argument, for errors.
        value: Numbers in a row.
        size: Required number of entries; None for any.

    Raises:
        InputError: The value is no vector of real numbers, has another size, or is not finite.
    """
    return check_array(name, value, (size,))


def check_semidefinite(
    name: str, value: ArrayLike, size: int | None = None, *, definite: bool = False
) -> Array:
    """Return a read-only float copy of a symmetric, positive semidefinite matrix.

    Asymmetry and negative eigenvalues of 1e-9 of the largest entry count as rounding. They are
    accepted and stay as they are.

    Args:
        name: Name of the argument, for errors.
        value: Matrix (size, size).
        size: Required number of rows; None for any.
        definite: Whether all eigenvalues must be positive, however small.

    Raises:
        InputError: The value is no finite square matrix of this size, is not symmetric, or has a
            negative eigenvalue (a zero one, if `definite`).
    """
    a = check_array(name, value, (size, size))
    if a.shape[0] != a.shape[1]:
        raise InputError(f"{name} must be square, got shape {a.shape}")
    largest = float(np.abs(a).max(initial=0.0))
    off = np.abs(a - a.T)
    if off.max(initial=0.0) > _SYMMETRY_TOLERANCE * largest:
        i, j = np.unravel_index(int(off.argmax()), off.shape)
        raise InputError(
            f"{name} must be symmetric, entries [{i}, {j}] and [{j}, {i}] are {a[i, j]:.9g} and "
            f"{a[j, i]:.9g}"
        )
    # Most matrices are settled here, in a tenth of the time that eigenvalues take.
    if not definite and _has_cholesky_factor(a, _SYMMETRY_TOLERANCE * largest):
        return a
    least = float(np.linalg.eigvalsh(a).min(initial=np.inf))
    if definite and not least > 0.0:
        raise InputError(f"{name} must be positive definite, its least eigenvalue is {least:.3g}")
    if least < -_SYMMETRY_TOLERANCE * largest:
        raise InputError(
            f"{name} must be positive semidefinite, its least eigenvalue is {least:.3g}"
        )
    return a


def _has_cholesky_factor(a: Array, shift: float) -> bool:
    """Return whether a + shift I has a Cholesky factor: then no eigenvalue of a is below -shift.

    False for a matrix without rows, which LAPACK refuses.
    """
    from scipy.linalg.lapack import dpotrf  # here, as checks are imported before scipy is needed

    shifted: Array = a.copy()
    shifted.reshape(-1)[:: len(a) + 1] += shift
    return bool(len(a)) and not dpotrf(shifted)[1]


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return a number as a finite float.

    Args:
        name: Name of the argument, for errors.
        value: A real number; not a truth value, and no array of one entry.
        above: Bound that the number must exceed; None for no such bound.
        at_least: Smallest number that is right; None for no such bound.
        at_most: Largest number that is right; None for no such bound.

    Raises:
        InputError: The value is no real number, is not finite, or is out of bounds.
    """
    try:
        x = value if type(value) is float else convert_to_floats(value).item()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a number, got {quote(value)}") from error
    if type(value) is not float and np.ndim(value):
        raise InputError(f"{name} must be a number, got {quote(value)}")
    if not math.isfinite(x):
        raise InputError(f"{name} must be finite, got {x}")
    if above is not None and not x > above:
        raise InputError(f"{name} must be greater than {above}, got {x}")
    if at_least is not None and x < at_least:
        raise InputError(f"{name} must be at least {at_least}, got {x}")
    if at_most is not None and x > at_most:
        raise InputError(f"{name} must be at most {at_most}, got {x}")
    return x


def check_count(name: str, value: Any, *, at_least: int = 1) -> int:
    """Return a whole number as an int.

    Args:
        name: Name of the argument, for errors.
        value: An int of Python or numpy; not a truth value, and not a float such as 2.0.
        at_least: Smallest number that is right.

    Raises:
        InputError: The value is no whole number, or is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < at_least:
        raise InputError(
            f"{name} must be a whole number of at least {at_least}, got {quote(value)}"
        )
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value.

    Args:
        name: Name of the argument, for errors.
        value: True or False; not 1, 0 or a truth value of numpy.

    Raises:
        InputError: The value is something else.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {quote(value)}")
    return value


def check_instance(name: str, value: Any, kind: type[T]) -> T:
    """Return a value that has a type.

    Args:
        name: Name of the argument, for errors.
        value: What was given.
        kind: The type; objects of derived types are right as well.

    Raises:
        InputError: The value has another type.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, got {quote(value)}")
    return value


def check_path(name: str, value: Any) -> Path:
    """Return a path.

    Args:
        name: Name of the argument, for errors.
        value: A text or an object with a path as text.

    Raises:
        InputError: The value is neither; a number or bytes are none.
    """
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise InputError(f"{name} must be a path, such as 'folder/file', got {quote(value)}")
    return Path(value)


def check_hashable(name: str, value: Any) -> Any:
    """Return a value that can be a key.

    Args:
        name: What the value is, for errors, such as "key of the mode".
        value: What was given.

    Raises:
        InputError: The value is not hashable, as a list is not.
    """
    try:
        hash(value)
    except TypeError as error:
        raise InputError(
            f"{name} must be hashable, such as a text, got {quote(value)}{suggest_tuple(value)}"
        ) from error
    return value


def suggest_tuple(value: Any) -> str:
    """Return the end of a message about a key that is a list: the tuple of it; else nothing."""
    return f": give the tuple {tuple(value)!r}" if isinstance(value, list) else ""


def check_sequence(name: str, value: Any) -> list[Any]:
    """Return the entries of a list, a tuple, an array or another iterable as a new list.

    Args:
        name: Name of the argument, for errors.
        value: An iterable; text, bytes and mappings do not count as one.

    Raises:
        InputError: The value is something else.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise InputError(f"{name} must be a list, got {quote(value)}")
    return list(value)


def check_mapping(name: str, value: Any, entries: str) -> Mapping[Any, Any]:
    """Return a mapping, which is empty for None.

    Args:
        name: Name of the argument, for errors.
        value: A mapping, or None.
        entries: What it maps, for the error: "names of joints to N m/rad".

    Raises:
        InputError: The value is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a mapping of {entries}, got {quote(value)}")
    return value


def check_callable(name: str, value: Any) -> Any:
    """Return a value that can be called.

    Args:
        name: Name of the argument, for errors.
        value: A function, or an object with `__call__`.

    Raises:
        InputError: The value cannot be called.
    """
    if not callable(value):
        raise InputError(f"{name} must be a function, got {quote(value)}")
    return value


def check_interval(name: str, value: ArrayLike) -> tuple[float, float]:
    """Return a finite interval as (start, end).

    Args:
        name: Name of the argument, for errors.
        value: Two numbers, of which the second is larger.

    Raises:
        InputError: The value is something else, is not finite, or does not increase.
    """
    start, end = check_vector(name, value, 2).tolist()
    if not start < end:
        raise InputError(f"{name} must increase, got ({start}, {end})")
    return start, end


def check_member(name: str, value: Any, known: Collection[Any]) -> Any:
    """Return a value that is one of those known.

    Args:
        name: What the value is, for errors, such as "mode".
        value: What was given.
        known: Values that are right.

    Raises:
        UnknownNameError: The value is none of them. The message lists at most 20, and up to three
            that are spelled alike.
    """
    # What is not hashable, or an array, which is compared by its entries, is not one of them.
    with suppress(TypeError, ValueError):
        if value in known:
            return value
    names = [str(k) for k in known]
    listed = ", ".join(map(quote, names[:_MAX_LISTED_ENTRIES]))
    left_out = len(names) - _MAX_LISTED_ENTRIES
    more = f" and {left_out} more" if left_out > 0 else ""
    raise UnknownNameError(
        f"{name} {quote(value)} is unknown, expected one of [{listed}]{more}"
        + suggest_names(value, names)
    )


def suggest_names(value: Any, known: Iterable[Any]) -> str:
    """Return the end of an error message with the known names that are spelled most alike.

    Args:
        value: The name that is unknown. Upper and lower case count as equal.
        known: Names that are known.

    Returns:
        A clause such as "; did you mean 'open'?" with up to three names, "" if none is alike.
    """
    plain = {str(k).casefold(): str(k) for k in known}
    near = [
        plain[k] for k in get_close_matches(str(value)[:_MAX_COMPARED_LENGTH].casefold(), plain)
    ]
    return f"; did you mean {' or '.join(map(quote, near))}?" if near else ""
