"""Logs: named channels in SI units, each with stamps of its own, with one origin of time."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, field

import numpy as np

from hybridctl.base import checks
from hybridctl.base.checks import quote
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.record import Record
from hybridctl.logs.filter_record import make_record
from hybridctl.logs.stamp_faults import describe_stamp_fault


@dataclass(frozen=True)
class Log:
    """The channels of a recording.

    The origin is a whole number of nanoseconds, because a float resolves stamps of today to 0.2 us
    only.

    Attributes:
        channels: Channels by name.
        origin_ns: Time of stamp 0 in ns since 1970; 0 where it is not known.
        source: Path of the file; empty for a log that was not read.
        format: Format of the file, a key of `hybridctl.logs.readers.FORMATS`; empty without a file.
        metadata: Texts that `write_log` keeps with the log.
        notes: What reading left out, one sentence each.

    Raises:
        InputError: Channels are not a mapping from names to `Series`, or there are none.
    """

    channels: Dictionary[str, Series]
    origin_ns: int = 0
    source: str = ""
    format: str = ""
    metadata: Dictionary[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.channels, Dictionary) or not self.channels:
            raise InputError(f"channels must map names to Series, got {quote(self.channels)}")
        for name, series in self.channels.items():
            checks.check_instance(f"channel {name!r}", series, Series)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(self.channels)

    def __getitem__(self, name: str) -> Series:
        return self.channels[checks.check_member("channel", name, self.channels)]

    def __contains__(self, name: object) -> bool:
        return name in self.channels

    def record(self, model: FilterModel, longest_gap: float = 2.0) -> Record:
        """Return the record that a filter of a model reads: sensors, contact signals and input.

        The record's notes say what counts as missing, or is assumed.

        Args:
            model: Model of the filter.
            longest_gap: Longest time in s without any value.

        Raises:
            InputError: A channel is missing, has another unit, no complete row, or stamps that
                cannot be put in order, or all channels are silent for longer than `longest_gap`.
            UnknownNameError: A channel has other columns.
        """
        parts = [part for sensor in model.sensors for part in sensor.parts]
        self.check_stamps(part.channel for part in (*parts, *model.signals))
        return make_record(model, self.channels, self.source or "log", longest_gap)

    def check_stamps(self, names: Iterable[str]) -> None:
        """Check that the stamps of channels can be put in order.

        Args:
            names: Names of channels; those that the log does not have are left out.

        Raises:
            InputError: The clock of a channel stands still, or was set back.
        """
        for name in dict.fromkeys(names):
            fault = describe_stamp_fault(self.channels[name]) if name in self else ""
            if fault:
                raise InputError(
                    f"{self.source or 'log'}: channel {name!r}: {fault}; take other stamps in the "
                    "mapping (`time: {field: ...}`), or split the log"
                )

    @property
    def span(self) -> tuple[float, float]:
        """First and last stamp over all channels in s; NaN if all channels are empty."""
        stamps = np.concatenate([series.times for series in self.channels.values()])
        if not stamps.size:
            return float("nan"), float("nan")
        return float(stamps.min()), float(stamps.max())
