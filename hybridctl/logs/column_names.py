"""Columns of a channel by their names, and the remedy where names of log and model differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from hybridctl.base.checks import quote
from hybridctl.base.errors import UnknownNameError

_SIMILAR_RATIO = 0.75
"""Ratio of `difflib.SequenceMatcher` from which on names are alike: one slip in four letters."""
_FEWEST_LETTERS = 3
"""Letters of a name with which another one begins or ends, from which on that is no coincidence."""
_SHOWN_NAMES = 8
"""Names that an error lists."""


class ColumnOrder(NamedTuple):
    """The places of wanted columns in a channel.

    Attributes:
        columns: Index of each wanted column.
        is_by_position: Whether named columns are taken in their order, although no name resembles a
            wanted one. False for columns that are numbered from 0, which have no names.
    """

    columns: list[int]
    is_by_position: bool = False


def order_columns(channel: str, wanted: Sequence[str], found: Sequence[str]) -> ColumnOrder:
    """Return the columns of a channel in the order that is wanted.

    Columns are found by name. Where the numbers of columns agree, they are taken by position in two
    cases: no name resembles a wanted one, as for numbers, or `across` and `x`; or all names
    resemble the wanted ones in the same order, as `pos_x` and `x`.

    Args:
        channel: Name of the channel, for the error.
        wanted: Names of the m columns that are wanted.
        found: Names of the n columns of the channel.

    Raises:
        UnknownNameError: A wanted name is missing, and columns cannot be taken by position: their
            number is another one, some names match and others do not, or names that resemble the
            wanted ones are in another order. The message says which label each column should have.
    """
    if set(wanted) <= set(found):
        return ColumnOrder([found.index(name) for name in wanted])
    if len(found) == len(wanted) and not set(wanted) & set(found):
        alike = [[k for k, own in enumerate(found) if _is_similar(own, name)] for name in wanted]
        if all(places == [k] for k, places in enumerate(alike)):
            return ColumnOrder(list(range(len(found))))
        # Names such as j2, j1 for q1, q2 have the same numbers in another order.
        numbers, own_numbers = map(_find_numbers, wanted), map(_find_numbers, found)
        is_permuted = sorted(numbers) == sorted(own_numbers) != [[]] * len(wanted) and any(
            _find_numbers(own) != _find_numbers(name)
            for own, name in zip(found, wanted, strict=True)
        )
        if not any(alike) and not is_permuted:
            is_numbered = list(found) == [str(k) for k in range(len(found))]
            return ColumnOrder(list(range(len(found))), is_by_position=not is_numbered)
    raise UnknownNameError(_describe_mismatch(channel, wanted, found))


def find_columns(channel: str, wanted: Sequence[str], found: Sequence[str]) -> list[int]:
    """Return the indices of wanted columns, by name alone.

    Args:
        channel: Name of the channel, for the error.
        wanted: Names of the m columns that are wanted.
        found: Names of the n columns of the channel.

    Returns:
        The index of each wanted column, (m,).

    Raises:
        UnknownNameError: A name is missing; the message says which column resembles it.
    """
    if not set(wanted) <= set(found):
        raise UnknownNameError(_describe_mismatch(channel, wanted, found))
    return [found.index(name) for name in wanted]


def _strip_marks(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return re.sub(r"[\W_]+", "", name).casefold()


def _is_similar(found: str, wanted: str) -> bool:
    """Return whether a name is another one with a prefix or suffix, or spelled differently."""
    own, other = _strip_marks(found), _strip_marks(wanted)
    if not own or not other:
        return False
    if own == other or _has_affix(found, wanted) or _has_affix(wanted, found):
        return True
    short, long = sorted((own, other), key=len)
    if len(short) >= _FEWEST_LETTERS and (long.startswith(short) or long.endswith(short)):
        return _find_numbers(own) == _find_numbers(other)
    # joint_1 and joint_2 are spelled alike, and mean two joints.
    has_same_numbers = _find_numbers(own) == _find_numbers(other)
    # A slip is within a name: `slidex` is no `slidey`.
    has_same_ends = own[0] == other[0] and own[-1] == other[-1]
    if not (has_same_numbers and has_same_ends):
        return False
    return SequenceMatcher(None, own, other).ratio() >= _SIMILAR_RATIO


def _find_numbers(name: str) -> list[str]:
    """Return the whole numbers in a name."""
    return re.findall(r"\d+", name)


def _has_affix(longer: str, name: str) -> bool:
    """Return whether a name is another one with a prefix, a suffix or both, set apart by a mark."""
    pattern = rf"(?:.*[\W_])?{re.escape(name)}(?:[\W_].*)?"
    return re.fullmatch(pattern, longer, re.IGNORECASE) is not None


def _describe_mismatch(channel: str, wanted: Sequence[str], found: Sequence[str]) -> str:
    """Return the text of the error for names that differ: how to map the columns by `labels`.

    Args:
        channel: Name of the channel.
        wanted: Names that the model gives its columns.
        found: Names of the columns in the log.
    """
    labels: dict[str, str] = {}
    missing = [name for name in wanted if name not in found]
    for name in missing:
        near = [own for own in found if own not in wanted and _is_similar(own, name)]
        if len(near) == 1:
            labels[near[0]] = name
    has_all_labels = len(labels) == len(missing) and len(set(labels.values())) == len(missing)
    if labels:
        own, name = next(iter(labels.items()))
        text = f"the log has {own!r}, the model {name!r}"
    else:
        text = f"it has {_list_names(found)}"
    remedy = "name its columns, in their order, by `labels` in the mapping"
    if has_all_labels and len(found) <= _SHOWN_NAMES:
        new = ", ".join(labels.get(own, own) for own in found)
        remedy = f"map it by `labels: [{new}]` in the mapping"
    elif affix := _find_affix(labels):
        remedy = f"{remedy}, without {affix}"
    return f"channel {channel!r} has no column {_list_names(missing)}: {text}; {remedy}"


def _list_names(names: Sequence[str]) -> str:
    """Return names for an error; long lists are cut, and the rest counted."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"[{', '.join(quote(name) for name in names[:_SHOWN_NAMES])}]{more}"


def _find_affix(labels: dict[str, str]) -> str:
    """Return in words the prefix and suffix that all names have beside their labels.

    Args:
        labels: Label by name.

    Returns:
        Such as "the prefix 'l_'"; empty where names have none, or different ones.
    """
    affixes = set()
    for own, name in labels.items():
        before, label, after = own.partition(name)
        affixes.add((before, after) if label else None)
    if len(affixes) != 1 or (pair := affixes.pop()) is None:
        return ""
    words = zip(("the prefix", "the suffix"), pair, strict=True)
    return " and ".join(f"{word} {quote(affix)}" for word, affix in words if affix)
