"""Compensation of a delay of the inertial sensor: samples are taken at later times.

Samples are interpolated linearly and keep their stamps, so that the pose is that at the stamps of
the joints. Delays that are multiples of the period are compensated exactly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.readings import Readings


def align_inertial(readings: Readings, late: float) -> Readings:
    """Return readings whose inertial samples are not late any more.

    Args:
        readings: Readings.
        late: Time in s by which inertial samples are stamped too late; negative for too early.

    Returns:
        The readings, cut to the stamps at which there are aligned inertial samples; rows of these
        that have a missing value are left out. They are unchanged without a delay, or where fewer
        than two samples would be left.
    """
    if not late:
        return readings
    known = readings.inertial.complete_rows
    t = known.times
    stamps = t[(t + late >= t[0]) & (t + late <= t[-1])]
    if len(stamps) < 2:
        return readings
    columns = [np.interp(stamps + late, t, column) for column in known.values.T]
    inside = readings.each(
        lambda s: s.select_rows((s.times >= stamps[0]) & (s.times <= stamps[-1]))
    )
    return replace(inside, inertial=Series(stamps, np.column_stack(columns)))


class InertialAlignment:
    """Aligns inertial samples one by one, with the numbers of `align_inertial`.

    Life cycle: `add` is called with each sample in order of the stamps. Between calls there are the
    stamps that wait for later samples, and the samples between which they will be interpolated.
    """

    def __init__(self, late: float) -> None:
        """Begin without samples.

        Args:
            late: Time in s by which inertial samples are stamped too late.
        """
        self._late = late
        self._known = list[tuple[float, Array]]()  # samples from the last before the first stamp on
        self._waiting = list[float]()  # stamps without aligned values

    def add(self, time: float, values: Array) -> list[tuple[float, Array]]:
        """Add a sample, and return the stamps whose aligned values it completes.

        Args:
            time: Stamp in s, after the last one.
            values: Rate in rad/s and specific force in m/s^2 (6,), none of them missing.

        Returns:
            Stamps in s with aligned values (6,). A stamp that lies before the first sample once it
            is shifted is left out.
        """
        self._known.append((time, values))
        self._waiting.append(time)
        found = list[tuple[float, Array]]()
        while self._waiting and self._waiting[0] + self._late <= time:
            stamp = self._waiting.pop(0)
            wanted = stamp + self._late
            while len(self._known) > 2 and self._known[1][0] <= wanted:
                self._known.pop(0)
            times = np.array([t for t, _ in self._known])
            if wanted >= times[0]:
                columns = np.array([v for _, v in self._known]).T
                found.append((stamp, np.array([np.interp(wanted, times, c) for c in columns])))
        return found
