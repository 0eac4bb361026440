"""The one schema of a log: named channels in SI units, each with stamps of its own."""

from __future__ import annotations

from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl import checks
from hybridctl.checks import Array
from hybridctl.errors import InputError
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.record import Record
from hybridctl.logs.record import to_record

ROLES = ("measurement", "input", "truth")
QUATERNION = ("qx", "qy", "qz", "qw")


@dataclass(frozen=True)
class Channel:
    """Samples of one quantity.

    `times` (n,) are seconds since the log's origin, as recorded: they may repeat or go back.
    `values` (n, m) are in the SI unit `unit` ("1" without one), expressed in `frame`; NaN stands
    for a value that is missing. `columns` names the m columns. `role` is "measurement", "input"
    (what was commanded) or "truth". With `quaternion`, values are unit quaternions in the order
    (x, y, z, w) that states use.

    Raises InputError where sizes disagree or a stamp is not finite.
    """

    name: str
    times: Array
    values: Array
    columns: tuple[str, ...] = ()
    unit: str = "1"
    frame: str = ""
    role: str = "measurement"
    quaternion: bool = False

    def __post_init__(self) -> None:
        times = checks.vector(f"times of channel {self.name!r}", self.times)
        values = _matrix(f"values of channel {self.name!r}", self.values)
        if len(values) != len(times):
            raise InputError(
                f"channel {self.name!r} must have a row of values for each of its {len(times)} "
                f"stamps, got {len(values)}"
            )
        width = values.shape[1]
        columns = tuple(str(c) for c in self.columns) or _columns(width, self.quaternion)
        if len(columns) != width or len(set(columns)) != width:
            raise InputError(
                f"columns of channel {self.name!r} must be {width} different names, "
                f"got {list(columns)}"
            )
        if self.quaternion and width != 4:
            raise InputError(f"quaternions of channel {self.name!r} need 4 columns, got {width}")
        checks.member(f"role of channel {self.name!r}", self.role, ROLES)
        for name, value in (("times", times), ("values", values), ("columns", columns)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def rate(self) -> float:
        """Samples per second, by the median spacing of the stamps; NaN with fewer than two."""
        with np.errstate(over="ignore"):
            spacing = np.diff(np.sort(self.times))
            spacing = spacing[spacing > 0]
            return float(1 / np.median(spacing)) if spacing.size else float("nan")


@dataclass(frozen=True)
class Log:
    """Channels that share an origin: stamp 0 is `origin_ns` nanoseconds (since 1970, if known).

    The origin is a whole number, so that stamps of today, which a float resolves to 0.2 us only,
    lose nothing. `source` is the file, `format` what it is; `notes` say what reading left out.
    """

    channels: tuple[Channel, ...]
    origin_ns: int = 0
    source: str = ""
    format: str = ""
    metadata: Dictionary[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))
        for k, channel in enumerate(self.channels):
            checks.instance(f"channels[{k}]", channel, Channel)
        names = self.names
        if not names or len(set(names)) != len(names):
            raise InputError(f"a log needs channels of different names, got {list(names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(channel.name for channel in self.channels)

    def __getitem__(self, name: str) -> Channel:
        channel: Channel = self._by_name[checks.member("channel", name, self._by_name)]
        return channel

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Channel]:
        return {channel.name: channel for channel in self.channels}

    def of_role(self, role: str) -> tuple[Channel, ...]:
        """The channels of a role: "measurement", "input" or "truth"."""
        checks.member("role", role, ROLES)
        return tuple(channel for channel in self.channels if channel.role == role)

    def record(self, model: FilterModel, longest_gap: float = 2.0) -> Record:
        """What a filter of this model reads, see `to_record`."""
        return to_record(self, model, longest_gap)

    @property
    def span(self) -> tuple[float, float]:
        """First and last stamp over all channels [s]; NaN if there is none."""
        stamps = np.concatenate([channel.times for channel in self.channels])
        if not stamps.size:
            return float("nan"), float("nan")
        return float(stamps.min()), float(stamps.max())


def _columns(width: int, quaternion: bool) -> tuple[str, ...]:
    if quaternion and width == 4:
        return QUATERNION
    return tuple(f"{i}" for i in range(width))


def _matrix(name: str, value: ArrayLike) -> Array:
    """A read-only (n, m) copy in which infinities, which no sensor measures, are NaN."""
    try:
        a: Any = checks.floats(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be numbers, got {value!r}") from error
    if a.ndim == 1:
        a = a[:, None]
    if a.ndim != 2:
        raise InputError(f"{name} must have shape (n,) or (n, m), got {a.shape}")
    a[~np.isfinite(a)] = np.nan
    a.flags.writeable = False
    return np.asarray(a)
