"""Columns of a channel found by their names, and what to do where names differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from hybridctl.base.checks import quote
from hybridctl.base.errors import UnknownNameError

_ALIKE = 0.75
"""Ratio of `difflib.SequenceMatcher` from which on names are alike: one slip in four letters."""
_SHORTEST = 3
"""Letters from which on a name that another one begins or ends with is no coincidence."""
_SHOWN = 8
"""Names that an error lists."""


class ColumnOrder(NamedTuple):
    """Where the wanted columns are.

    Attributes:
        columns: Index of each wanted column.
        is_by_position: Whether names did not decide, because none resembles a wanted one.
    """

    columns: list[int]
    is_by_position: bool = False


def order_columns(channel: str, wanted: Sequence[str], found: Sequence[str]) -> ColumnOrder:
    """Return the columns of a channel in the order that is wanted.

    Columns are found by name. If no name resembles a wanted one, as for numbers or `across` and
    `x`, and there are as many, they are taken by position. If all resemble the wanted ones and are
    in their order, as `pos_x` and `x`, name and position agree.

    Args:
        channel: Name of the channel, for the error.
        wanted: Names of the m columns that are wanted.
        found: Names of the n columns of the channel.

    Raises:
        UnknownNameError: Some names match and others do not, or names that resemble the wanted
            ones are in another order; the message says which label each column should have.
    """
    if set(wanted) <= set(found):
        return ColumnOrder([found.index(name) for name in wanted])
    if len(found) == len(wanted) and not set(wanted) & set(found):
        alike = [[k for k, own in enumerate(found) if _resembles(own, name)] for name in wanted]
        if all(places == [k] for k, places in enumerate(alike)):
            return ColumnOrder(list(range(len(found))))
        numbers, own_numbers = map(_digits, wanted), map(_digits, found)
        is_permuted = sorted(numbers) == sorted(own_numbers) != [[]] * len(wanted) and any(
            _digits(own) != _digits(name) for own, name in zip(found, wanted, strict=True)
        )  # j2, j1 for q1, q2
        if not any(alike) and not is_permuted:
            is_numbered = list(found) == [str(k) for k in range(len(found))]
            return ColumnOrder(list(range(len(found))), is_by_position=not is_numbered)
    raise _refuse_names(channel, wanted, found)


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
        raise _refuse_names(channel, wanted, found)
    return [found.index(name) for name in wanted]


def _plain(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return re.sub(r"[\W_]+", "", name).casefold()


def _resembles(found: str, wanted: str) -> bool:
    """Return whether a name is another one with a prefix or suffix, or spelled differently."""
    own, other = _plain(found), _plain(wanted)
    if not own or not other:
        return False
    if own == other or _has_affix(found, wanted) or _has_affix(wanted, found):
        return True
    short, long = sorted((own, other), key=len)
    if len(short) >= _SHORTEST and (long.startswith(short) or long.endswith(short)):
        return _digits(own) == _digits(other)
    # joint_1 and joint_2 are spelled alike, and mean two joints.
    same_digits = re.findall(r"\d+", own) == re.findall(r"\d+", other)
    return (
        same_digits and SequenceMatcher(None, own, other).ratio() >= _ALIKE and _agree(own, other)
    )


def _digits(name: str) -> list[str]:
    """Return the whole numbers in a name."""
    return re.findall(r"\d+", name)


def _agree(one: str, other: str) -> bool:
    """Return whether two names that are alike begin and end alike: `slidex` is no `slidey`."""
    return one[-1] == other[-1] and one[0] == other[0]


def _has_affix(longer: str, name: str) -> bool:
    """Return whether a name is another one with a prefix, a suffix or both, set apart by a mark."""
    pattern = rf"(?:.*[\W_])?{re.escape(name)}(?:[\W_].*)?"
    return re.fullmatch(pattern, longer, re.IGNORECASE) is not None


def _refuse_names(channel: str, wanted: Sequence[str], found: Sequence[str]) -> UnknownNameError:
    """Return the error that says how to map the columns of a channel by their names.

    Args:
        channel: Name of the channel.
        wanted: Names that the model gives its columns.
        found: Names of the columns in the log.
    """
    labels: dict[str, str] = {}
    missing = [name for name in wanted if name not in found]
    for name in missing:
        near = [own for own in found if own not in wanted and _resembles(own, name)]
        if len(near) == 1:
            labels[near[0]] = name
    is_whole = len(labels) == len(missing) and len(set(labels.values())) == len(missing)
    if labels:
        own, name = next(iter(labels.items()))
        text = f"the log has {own!r}, the model {name!r}"
    else:
        text = f"it has {_list_names(found)}"
    remedy = "name its columns, in their order, by `labels` in the mapping"
    if is_whole and len(found) <= _SHOWN:
        new = ", ".join(labels.get(own, own) for own in found)
        remedy = f"map it by `labels: [{new}]` in the mapping"
    elif affix := _find_affix(labels):
        remedy = f"{remedy}, without {affix}"
    return UnknownNameError(
        f"channel {channel!r} has no column {_list_names(missing)}: {text}; {remedy}"
    )


def _list_names(names: Sequence[str]) -> str:
    """Return names for an error; long lists are cut, and the rest counted."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"[{', '.join(quote(name) for name in names[:_SHOWN])}]{more}"


def _find_affix(labels: dict[str, str]) -> str:
    """Return the prefix and suffix that all names share beside their labels, in words, or ""."""
    affixes = set()
    for own, name in labels.items():
        before, there, after = own.partition(name)
        affixes.add((before, after) if there else None)
    if len(affixes) != 1 or (pair := affixes.pop()) is None:
        return ""
    words = zip(("the prefix", "the suffix"), pair, strict=True)
    return " and ".join(f"{word} {quote(affix)}" for word, affix in words if affix)
