r"""Verdict on the filter of a legged base: whether its errors are as small as it claims.

*Size.* The mean NIS of each channel lies in its chi-square band, in each phase of the gait: all
feet in contact, some in swing, shortly after a touchdown.

*Whiteness.* Innovations, divided by the Cholesky factor of their covariance, are white. With the
correlations :math:`r_k` at lag k over :math:`N_k` products of components, rows of one mode each,
Ljung and Box's statistic :math:`\sum_k N_k r_k^2` is chi-square of as many degrees as lags.

*Height.* Feet that stand at the same time show whether the ground is level. Where it is, all
footholds of a walk have one height.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

from hybridctl.base.checks import Array
from hybridctl.estimation.consistency import Consistency, band
from hybridctl.estimation.kalman_equations import Innovation
from hybridctl.estimation.result import FilterResult
from hybridctl.legged.system import LeggedBase

PHASES = "all feet", "swing", "after touchdown"
"""Phases of the gait, of which each sample is in one."""
_TOUCHDOWN_TIME = 0.05
"""Time after a touchdown that is a phase of its own, s: ground gives way for some 20 ms."""
_LAG_COUNT = 5
"""Lags of Ljung and Box's statistic: 20 ms at 250 Hz, in which feet of soft ground settle."""
_TEST_PROBABILITY = 0.99
"""Probability with which a consistent filter passes a test."""

NIS_RATIO = 2.0
"""Mean NIS, per degree of freedom, above which a phase is named: a factor of 1.4 in the standard
deviation. Bands of long logs are narrower, but real noise is not known as precisely."""
FEWEST_VALUES = 50
"""Values from which on a mean or correlation is judged. The value is a choice."""
SUM_RATIO = 3.0
"""Variance of sums of innovations, relative to what is claimed, from which on they are named as
correlated: estimates drift by a factor of 1.7 more than claimed. Simulated trots have up to .1, a
recorded humanoid 1.3, a trot with an inertial sensor that is 40 ms late 3.3 to 50."""
LEVEL_SLOPE, LEVEL_HEIGHT = 0.02, 0.01
"""Largest slope of level ground, and largest standard deviation in m of heights of feet that stand
on it. The values are a choice."""
DRIFT_SHARE, DRIFT_DEVIATIONS = 0.01, 3.0
"""Drift of the height, per metre of way, and in claimed deviations, above both of which it is
named. The values are a choice."""
_MOST_STEPS = 1000
"""Estimates by which the slope of the ground is computed; more do not change it."""
_LEAST_CONTACTS = 3
"""Contacts a foot on average from which on a robot walks."""

FOOT_SPEED = 0.5
"""Root mean square speed of feet in contact from which on it is named, m/s. A simulated hop has
.03, a recorded trot .23, because its feet lift under forces; legs swing at 1 m/s and more."""


class PhaseConsistency(NamedTuple):
    """The mean NIS of a channel in a phase, per degree of freedom, with its band.

    Attributes:
        channel: Name of the channel.
        phase: One of `PHASES`.
        found: Mean NIS and band of all values of the phase.
    """

    channel: str
    phase: str
    found: Consistency

    @property
    def ratio(self) -> float:
        """Mean NIS per degree of freedom, of which 1 is expected."""
        return self.found.mean * self.found.count / max(self.found.degrees, 1)


class Whiteness(NamedTuple):
    """Correlations and size of normalised innovations.

    Attributes:
        lag_one: Correlation of successive normalised innovations.
        ljung_box: Statistic over `_LAG_COUNT` lags.
        limit: Its 99 % bound for white innovations.
        mean_square: Mean square of a normalised component, of which 1 is expected.
    """

    lag_one: float
    ljung_box: float
    limit: float
    mean_square: float

    @property
    def sum_ratio(self) -> float:
        """Variance of sums of innovations relative to what is claimed; 1 is expected.

        For innovations of a first-order process with correlation r, it is their mean square times
        (1 + r) / (1 - r). An estimate drifts by the square root of it: small innovations do no
        harm, however correlated.
        """
        r = min(self.lag_one, 1.0 - 1e-9)
        return self.mean_square * (1.0 + r) / (1.0 - r)


class HeightDrift(NamedTuple):
    """Change of the height of footholds along a walk over level ground.

    Attributes:
        height: Height gained from the first foothold to the last, by a straight line, m.
        deviation: Largest standard deviation that the filter claims for the height of a foot at the
            end of a contact, m.
        way: Length of the walk from foothold to foothold, the mean over the feet, m.
    """

    height: float
    deviation: float
    way: float


@dataclass(frozen=True)
class WalkVerdict:
    """Tests of a filtered walk.

    Attributes:
        phases: Mean NIS by channel and phase.
        whiteness: Correlations of innovations; None with too few innovations.
        drift: Drift of the height; None where the ground is not level, or the robot does not walk.
        foot_speed: Root mean square speed at which feet move while they are in contact by the
            estimate, m/s: from begin to end of each contact. NaN without a contact that lasts.
    """

    phases: tuple[PhaseConsistency, ...]
    whiteness: Whiteness | None
    drift: HeightDrift | None
    foot_speed: float

    @property
    def flags(self) -> tuple[str, ...]:
        """Tests that fail, one sentence each, with likely cause and remedy."""
        found = []
        for entry in self.phases:
            channel, phase, nis = entry
            ratio = entry.ratio
            if nis.count >= FEWEST_VALUES and nis.mean > nis.high and ratio > NIS_RATIO:
                found.append(
                    f"mean NIS of {channel!r}, {phase}, is {ratio:.1f} times what is expected: "
                    f"{_CAUSE_OF_PHASE[phase]}"
                )
        white = self.whiteness
        is_correlated = white is not None and white.lag_one > 0.0 and white.ljung_box > white.limit
        if white is not None and is_correlated and white.sum_ratio > SUM_RATIO:
            found.append(
                f"innovations are correlated (lag one {white.lag_one:.2f}), so that estimates "
                f"drift {np.sqrt(white.sum_ratio):.1f} times as far as claimed: inertial sensor "
                "and joints have different delays, or `noise.foot` is too small"
            )
        drift = self.drift
        if drift is not None:
            height, claimed = abs(drift.height), DRIFT_DEVIATIONS * drift.deviation
            if height > max(claimed, DRIFT_SHARE * drift.way):
                found.append(
                    f"footholds on level ground rise by {1e3 * drift.height:.0f} mm over "
                    f"{drift.way:.1f} m, +-{1e3 * drift.deviation:.0f} mm claimed: feet count too "
                    "early or too long, or the accelerometer is biased; see `settle`, `ground`"
                )
        if self.foot_speed > FOOT_SPEED:
            found.append(
                f"feet in contact move at {self.foot_speed:.2f} m/s: the velocity of the base is "
                "wrong, by biases or axes of the inertial sensor, or contacts are, see `lift_force`"
            )
        return tuple(found)

    def record(self) -> dict[str, Any]:
        """Return the verdict for summary.json."""
        white, drift = self.whiteness, self.drift
        return {
            "nis_by_phase": [
                {
                    "channel": entry.channel,
                    "phase": entry.phase,
                    "mean": entry.ratio,
                    "low": entry.found.low * entry.found.count / max(entry.found.degrees, 1),
                    "high": entry.found.high * entry.found.count / max(entry.found.degrees, 1),
                    "count": entry.found.count,
                }
                for entry in self.phases
            ],
            "lag_one": None if white is None else white.lag_one,
            "ljung_box": None if white is None else white.ljung_box,
            "ljung_box_limit": None if white is None else white.limit,
            "innovation_sum_ratio": None if white is None else white.sum_ratio,
            "height_drift": None if drift is None else drift._asdict(),
            "foot_speed": self.foot_speed if np.isfinite(self.foot_speed) else None,
        }


_CAUSE_OF_PHASE = {
    "all feet": "measurement noise is larger than `noise.encoder` and `noise.measured` say, or "
    "loaded feet slip",
    "swing": "loaded feet slip or roll more than `noise.foot` says",
    "after touchdown": "feet count before they stand: a larger `settle` or `touch_force`, or a "
    "larger `noise.foot`",
}
"""Likely cause and remedy of a large NIS in a phase."""


def judge_walk(base: LeggedBase, result: FilterResult) -> WalkVerdict:
    """Return the verdict on the result of a filter of a legged base.

    Args:
        base: Base and feet.
        result: Result of the filter along a log; rejected innovations are left out.
    """
    accepted = [i for i in result.innovations if i.accepted]
    contacts = _collect_contacts(base, result)
    return WalkVerdict(
        _judge_phases(base, accepted, contacts),
        judge_whiteness(accepted),
        _judge_height(base, result, contacts),
        _measure_foot_speed(contacts),
    )


class _Contact(NamedTuple):
    """A contact of a foot, by the estimate.

    Attributes:
        foot: Frame of the foot.
        begin: Time at which it begins, s.
        end: Time at which it ends, s.
        first: Position (3,) of the foot at its begin, m, in the world.
        last: Position (3,) of the foot at its end, m.
        variance: Variance of the height at its end, m^2.
    """

    foot: str
    begin: float
    end: float
    first: Array
    last: Array
    variance: float


def _collect_contacts(base: LeggedBase, result: FilterResult) -> list[_Contact]:
    """Return all contacts of a result, those of the start included, in order of their begin."""
    open_contacts = dict[str, tuple[float, Array]]()
    ends, found = dict[str, tuple[float, Array, float]](), list[_Contact]()

    def close(foot: str) -> None:
        begin, first = open_contacts.pop(foot)
        end, last, variance = ends.pop(foot)
        found.append(_Contact(foot, begin, end, first, last, variance))

    for step in result.steps:
        estimate = step.estimate
        places = base.places(estimate.mode)
        for foot in set(open_contacts) - {place.foot for place in places}:
            close(foot)
        for place in places:
            position = estimate.mean[place.x]
            open_contacts.setdefault(place.foot, (step.time, position))
            height = place.dx.start + 2  # row of the height in the covariance
            ends[place.foot] = step.time, position, float(estimate.covariance[height, height])
    for foot in list(open_contacts):
        close(foot)
    return sorted(found, key=lambda contact: contact.begin)


def _judge_phases(
    base: LeggedBase, accepted: Sequence[Innovation], contacts: Sequence[_Contact]
) -> tuple[PhaseConsistency, ...]:
    """Return the mean NIS by channel and phase, of those phases that occur.

    Args:
        base: Base and feet.
        accepted: Innovations that were accepted, in order.
        contacts: Contacts; those that begin with the log are no touchdowns.
    """
    begins = np.sort([contact.begin for contact in contacts])
    groups = dict[tuple[str, str], list[Innovation]]()
    first = accepted[0].time if accepted else 0.0
    for innovation in accepted:
        k = int(np.searchsorted(begins, innovation.time, "right")) - 1
        is_fresh = k >= 0 and begins[k] > first and innovation.time - begins[k] < _TOUCHDOWN_TIME
        is_full = len(base.standing(innovation.mode)) == len(base.feet)
        phase = PHASES[2] if is_fresh else PHASES[0 if is_full else 1]
        groups.setdefault((innovation.channel, phase), []).append(innovation)
    return tuple(
        PhaseConsistency(
            channel,
            phase,
            band([i.nis for i in group], [i.dimension for i in group], level=_TEST_PROBABILITY),
        )
        for (channel, phase), group in sorted(groups.items())
    )


def judge_whiteness(innovations: Sequence[Innovation]) -> Whiteness | None:
    """Return the correlations of innovations.

    Args:
        innovations: Innovations, in order.

    Returns:
        The correlations; None with too few innovations of one mode in a row.
    """
    # Components of innovations are comparable within one mode of one channel.
    groups = groupby(innovations, key=lambda i: (i.channel, i.mode, i.dimension))
    runs = [list(run) for _, run in groups]
    whitened = []
    for run in runs:
        factors = np.linalg.cholesky(np.array([i.covariance for i in run]))
        residuals = np.array([i.residual for i in run])
        whitened.append(np.linalg.solve(factors, residuals[..., None])[..., 0])
    return _correlate(whitened)


def _correlate(runs: Iterable[Array]) -> Whiteness | None:
    """Return the whiteness of runs (n, m) of normalised innovations."""
    products, squares, counts = np.zeros(_LAG_COUNT), np.zeros(_LAG_COUNT), np.zeros(_LAG_COUNT)
    for run in runs:
        for lag in range(1, _LAG_COUNT + 1):  # shorter runs have no products
            one, other = run[:-lag], run[lag:]
            products[lag - 1] += (one * other).sum()
            squares[lag - 1] += 0.5 * ((one**2).sum() + (other**2).sum())
            counts[lag - 1] += one.size
    if counts[-1] < FEWEST_VALUES or not squares.all():
        return None
    r = products / squares
    limit = float(chi2.ppf(_TEST_PROBABILITY, _LAG_COUNT))
    statistic, mean = float((counts * r**2).sum()), float(squares[0] / counts[0])
    return Whiteness(float(r[0]), statistic, limit, mean)


def _judge_height(
    base: LeggedBase, result: FilterResult, contacts: Sequence[_Contact]
) -> HeightDrift | None:
    """Return the drift of the height of footholds over level ground.

    Args:
        base: Base and feet.
        result: Result of the filter along a log.
        contacts: Its contacts.

    Returns:
        The drift; None on ground that is not level, or with few footholds.
    """
    if len(contacts) < _LEAST_CONTACTS * len(base.feet):
        return None
    across, heights = [], []
    for step in result.steps[:: max(len(result.steps) // _MOST_STEPS, 1)]:
        x = step.estimate.mean
        for one, other in combinations(base.places(step.estimate.mode), 2):
            d = x[one.x] - x[other.x]
            across.append(d[:2])
            heights.append(d[2])
    if len(heights) < FEWEST_VALUES:
        return None
    slope, *_ = np.linalg.lstsq(np.array(across), np.array(heights), rcond=None)
    unevenness = np.array(heights) - np.array(across) @ slope
    if np.linalg.norm(slope) > LEVEL_SLOPE or unevenness.std() > LEVEL_HEIGHT:
        return None
    times = np.array([contact.begin for contact in contacts])
    places = np.array([contact.first for contact in contacts])
    fit = np.polyfit(times - times[0], places[:, 2], 1)
    footholds = [[c.first[:2] for c in contacts if c.foot == foot] for foot in base.feet]
    ways = [sum(float(np.linalg.norm(b - a)) for a, b in pairwise(way)) for way in footholds]
    deviation = float(np.sqrt(max(contact.variance for contact in contacts)))
    return HeightDrift(float(fit[0] * (times[-1] - times[0])), deviation, float(np.mean(ways)))


def _measure_foot_speed(contacts: Sequence[_Contact]) -> float:
    """Return the root mean square speed of feet over their contacts in m/s; NaN without any."""
    speeds = [
        float(np.linalg.norm(c.last - c.first)) / (c.end - c.begin)
        for c in contacts
        if c.end > c.begin
    ]
    return float(np.sqrt(np.mean(np.square(speeds)))) if speeds else float("nan")
