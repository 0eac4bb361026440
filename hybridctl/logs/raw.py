"""What a file holds before it is mapped: tables of fields, as recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridctl.base import checks
from hybridctl.base.errors import FileFormatError, HybridctlError, InputError

Field = NDArray[Any]
MAX_BYTES = 4 * 2**30
HEADER = "hybridctl_log"  # of logs that hybridctl wrote: where a file holds what its columns are
_TIME_NAME = re.compile(
    r"[%_#]*(?:(?:abs|elapsed|rel|relative|ros|rosbag|sample|sim|system|unix)[ _]?)?"
    r"(?:t|times?|date[ _]?time|stamps?|time[ _]?stamps?)(?:[ _]?(s|secs?|seconds|unix|ms|us|ns))?",
    re.IGNORECASE,
)
"""Names of the time, as `t`, `time_ns`, `%time` (rostopic), `__time` (PlotJuggler), `abs time`."""
_STEP_NAME = re.compile(
    r"(?:dt|delta[ _]?t|delta[ _]?time)(?:[ _](s|secs?|seconds|ms|us|ns))?", re.IGNORECASE
)
"""Names of the time between two rows."""
_SUFFIX_UNITS = {"ms": "ms", "us": "us", "ns": "ns"}


@dataclass
class RawTable:
    """The fields of a table, an archive or a topic.

    `fields` maps names (columns, arrays, dotted paths into messages) to arrays whose rows are
    samples. `stamps` (n,) are the nanoseconds at which messages were recorded, if they were.
    `labels` names the columns of a field, `units` holds units written beside a name, `absent`
    marks cells that are empty, and `unusable` says why a field is not among `fields`. `clocks`
    are fields whose cells are dates or clocks, in nanoseconds.
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
        if name in self.unusable:
            raise InputError(
                f"field {name!r} of {self.name!r} cannot be used: {self.unusable[name]}"
            )
        found: Field = self.fields[checks.check_member("field", name, self.fields)]
        return found

    def obvious_unit(self, name: str) -> str | None:
        """Return the unit of the time in a field whose name says that it is the time, else None."""
        match = _TIME_NAME.fullmatch(name.rpartition("/")[2])
        if match is None:
            return None
        # `rostopic echo -p` writes %time in nanoseconds.
        usual = "ns" if name == "%time" else _SUFFIX_UNITS.get((match[1] or "").lower(), "s")
        return self.units.get(name, usual)

    def obvious_time(self) -> tuple[str, str] | None:
        """Return the pair (field, unit) of the time, if one field is named like one, else None.

        Without such a name: the first field of dates or clocks.
        """
        for name, values in self.fields.items():
            unit = self.obvious_unit(name)
            if unit is not None and values.ndim == 1 and values.size:
                return name, unit
        return (self.clocks[0], "ns") if self.clocks else None

    def obvious_steps(self) -> tuple[str, str] | None:
        """Return the pair (field, unit) of the time between rows; None if no name is like `dt`."""
        for name, values in self.fields.items():
            match = _STEP_NAME.fullmatch(name.rpartition("/")[2])
            if match is not None and values.ndim == 1 and values.size:
                return name, self.units.get(name, _SUFFIX_UNITS.get((match[1] or "").lower(), "s"))
        return None


@dataclass
class RawLog:
    """All tables of a file; `native` is the header of a log that hybridctl wrote itself.

    `notes` name what was not read, and `unread` says why a whole topic is not among the tables.
    """

    path: Path
    format: str
    tables: dict[str, RawTable]
    native: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)


def measured(values: Field) -> Field:
    """Return numbers as floats, with infinities, which no sensor measures, as missing (NaN)."""
    found = values.astype(np.float64)
    found[~np.isfinite(found)] = np.nan
    return found


def too_large(path: Path, what: str, size: int) -> FileFormatError:
    """Return the error for a declared size that a file of this length cannot or should not have."""
    return FileFormatError(
        f"{path}: {what} is declared as {size} bytes, more than the file can hold or the limit of "
        f"{MAX_BYTES}"
    )


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a reader raises into one line that names the file.

    Libraries that parse binary formats raise nearly anything on damaged files.
    """
    try:
        yield
    except HybridctlError as error:
        if str(path) in str(error):
            raise
        raise FileFormatError(f"{path}: {error}") from error
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0][:200] if lines else ""
        raise FileFormatError(
            f"{path}: damaged, or not {kind} after all ({type(error).__name__}: {reason})"
        ) from error


@contextmanager
def needing(path: Path, kind: str, package: str, extra: str) -> Iterator[None]:
    """Say which package is to be installed, where what is imported inside is not there."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"{path}: reading or writing {kind} needs the package {package}; install it with "
            f'pip install "hybridctl[{extra}]"'
        ) from error
