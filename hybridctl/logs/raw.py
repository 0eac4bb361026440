"""The content of a log file before a mapping is applied: tables of fields, as recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridctl.base import checks
from hybridctl.base.errors import InputError

Field = NDArray[Any]
"""Array of a field, whose rows are samples."""
HEADER = "hybridctl_log"
"""Name under which a file that hybridctl wrote holds its header, see `hybridctl.logs.native`."""


@dataclass
class RawTable:
    """The fields of a text table, an archive, or a topic.

    Attributes:
        name: Topic; empty for tables and archives, of which a file has one.
        fields: Arrays by name: a column, an array of an archive, or a dotted path into messages.
        stamps: Times (n,) in ns at which messages were recorded; None where there is no recorder.
        kind: Type of the messages; empty without messages.
        labels: Names of the columns of a field, for fields that have some.
        units: Units that stand beside names of fields.
        absent: Cells (n,) of a field that are empty, for columns of text tables.
        unusable: Reasons why a field is not among `fields`.
        clocks: Fields whose cells are dates or clocks, in ns.
    """

    name: str
    fields: dict[str, Field] = field(default_factory=dict)
    stamps: NDArray[np.int64] | None = None
    kind: str = ""
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    absent: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    clocks: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Field:
        """Return a field.

        Raises:
            InputError: The field is there and cannot be used.
            UnknownNameError: There is no such field.
        """
        if name in self.unusable:
            raise InputError(
                f"field {name!r} of {self.name!r} cannot be used: {self.unusable[name]}"
            )
        found: Field = self.fields[checks.check_member("field", name, self.fields)]
        return found


@dataclass
class RawLog:
    """All tables of a file.

    Attributes:
        path: The file or folder.
        format: Its format, a key of `hybridctl.logs.readers.FORMATS`.
        tables: Tables by their names.
        native: Header of a log that hybridctl wrote; None for any other.
        notes: What the reader left out, one sentence each.
        unread: Reasons why a whole topic is not among the tables, by topic.
    """

    path: Path
    format: str
    tables: dict[str, RawTable]
    native: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)


def convert_to_measured(values: Field) -> Field:
    """Return numbers as floats, with infinities, which no sensor measures, as missing (NaN)."""
    found = values.astype(np.float64)
    found[~np.isfinite(found)] = np.nan
    return found
