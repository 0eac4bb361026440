"""The one schema of a log: named channels in SI units, each with stamps of its own."""

from __future__ import annotations

from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, field

import numpy as np

from hybridctl import checks
from hybridctl.errors import InputError
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.record import Record
from hybridctl.logs.record import to_record
from hybridctl.series import ROLES, Series


@dataclass(frozen=True)
class Log:
    """Channels by name, of one origin: stamp 0 is `origin_ns` nanoseconds (since 1970, if known).

    The origin is a whole number, so that stamps of today, which a float resolves to 0.2 us only,
    lose nothing. `source` is the file, `format` what it is; `notes` say what reading left out.
    """

    channels: Dictionary[str, Series]
    origin_ns: int = 0
    source: str = ""
    format: str = ""
    metadata: Dictionary[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.channels, Dictionary) or not self.channels:
            raise InputError(f"channels must map names to Series, got {self.channels!r}")
        for name, series in self.channels.items():
            checks.instance(f"channel {name!r}", series, Series)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(self.channels)

    def __getitem__(self, name: str) -> Series:
        return self.channels[checks.member("channel", name, self.channels)]

    def __contains__(self, name: object) -> bool:
        return name in self.channels

    def of_role(self, role: str) -> dict[str, Series]:
        """The channels of a role: "measurement", "input" or "truth"."""
        checks.member("role", role, ROLES)
        return {name: series for name, series in self.channels.items() if series.role == role}

    def record(self, model: FilterModel, longest_gap: float = 2.0) -> Record:
        """What a filter of this model reads, see `to_record`."""
        return to_record(self, model, longest_gap)

    @property
    def span(self) -> tuple[float, float]:
        """First and last stamp over all channels [s]; NaN if there is none."""
        stamps = np.concatenate([series.times for series in self.channels.values()])
        if not stamps.size:
            return float("nan"), float("nan")
        return float(stamps.min()), float(stamps.max())
