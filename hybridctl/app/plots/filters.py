"""Figures of filters: errors against a truth, and normalized innovations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle

import numpy as np
from scipy.stats import chi2

from hybridctl.app.plots.panels import (
    BASELINE,
    CURVES,
    TRACKING,
    Band,
    Figure,
    Line,
    Panel,
    arrange_panels,
    draw_series,
)
from hybridctl.app.plots.runs import make_mode_bands
from hybridctl.base.checks import Array, Indices, check_instance
from hybridctl.base.errors import InputError
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.trajectory import HybridTrajectory

Path = str | os.PathLike[str] | None
"""File of a figure, or None for no file."""
SIGMAS = 3.0
"""Standard deviations between the middle of a band and its ends."""
_GAP = 10.0
"""Least length of a gap, in median steps. A choice: a few samples that are dropped are no gap."""
_LEAST = 1e-3
"""NIS per dimension at which its logarithmic axis begins; lower ones are drawn there. A choice."""


def nis(results: Mapping[str, FilterResult], path: Path = None) -> Figure:
    """Draw the normalized innovation squared (NIS) of each value over time, per dimension.

    NIS are divided by the dimension of the value. Bands are the modes of the first filter, and the
    limit is that of its values: one in a hundred exceeds it if the filter is consistent. Rejected
    values are drawn too.

    Args:
        results: Results by the name of the filter.
        path: File to save the figure in; None to save none.

    Returns:
        The figure.

    Raises:
        InputError: The first result has no innovations.
    """
    lines, limits = [], []
    for (name, result), color in zip(results.items(), cycle(CURVES), strict=False):
        found = result.innovations
        times = np.array([i.time for i in found])
        ratio = np.array([i.nis / i.dimension for i in found])
        line = Line(times, np.maximum(ratio, _LEAST), name, color, ".-", 0.7)
        lines.append(break_line(line, find_gaps(times)))
        limits.append(np.array([chi2.ppf(0.99, i.dimension) / i.dimension for i in found]))
    if not limits or not len(limits[0]):
        raise InputError("results must begin with a filter that has innovations")
    label = "99 % limit of a consistent filter"
    first = np.array([i.time for i in next(iter(results.values())).innovations])
    lines.append(break_line(Line(first, limits[0], label, "black", "--", 0.9), find_gaps(first)))
    panel = Panel("NIS / dimension", lines, log=True, legend="lower left")
    title = "Normalized innovations; 1 on average if consistent"
    return draw_series(
        path, [[panel]], title=title, bands=make_result_bands(next(iter(results.values())))
    )


def errors(
    result: FilterResult, truth: HybridTrajectory, path: Path = None, *, title: str = "Errors"
) -> Figure:
    """Draw the errors of the means, truth minus mean, within three standard deviations.

    Means and deviations are those of all hypotheses together (`FilterResult.mixtures`). There is a
    panel for each coordinate (ndx,) of the tangent space, broken at events. Where filter and truth
    are in modes of other dimensions there are deviations but no error.

    Args:
        result: Result of the filter.
        truth: Run that was measured.
        path: File to save the figure in; None to save none.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        InputError: The truth does not cover the samples.
    """
    check_instance("truth", truth, HybridTrajectory)
    times = result.times
    if not (len(times) and truth.start <= times[0] and times[-1] <= truth.end):
        raise InputError(f"truth must cover the samples, but ends are {truth.start}, {truth.end}")
    estimates = result.mixtures
    # Modes may have tangent spaces of different sizes: coordinates that a mode of the filter lacks
    # are gaps, and errors are gaps where the truth is in a mode of another size.
    size = max(len(e.covariance) for e in estimates)
    deviations, found = np.full((2, len(estimates), size), np.nan)
    for k, estimate in enumerate(estimates):
        arc, ndx = truth.arc(estimate.time), len(estimate.covariance)
        deviations[k, :ndx] = np.sqrt(np.maximum(np.diag(estimate.covariance), 0.0))
        if arc.space.ndx == ndx:
            found[k, :ndx] = arc.space.difference(estimate.mean, arc(estimate.time))
    jumps = np.searchsorted(times, sorted({e.time for e in (*truth.events, *result.events)}))
    jumps = np.concatenate((jumps, find_gaps(times)))
    panels = []
    for k in range(found.shape[1]):
        label = None if k else f"{SIGMAS:g} sigma"
        ends = make_band_lines(times, 0.0, SIGMAS * deviations[:, k], label, BASELINE)
        lines = [Line(times, found[:, k]), *ends]
        panels.append(Panel(f"error {k}", [break_line(line, jumps) for line in lines], zero=True))
    return draw_series(path, arrange_panels(panels), title=title, bands=make_result_bands(result))


def make_band_lines(
    times: Array,
    middle: Array | float,
    wide: Array,
    label: str | None = None,
    color: str = TRACKING,
) -> list[Line]:
    """Return dotted lines at both ends of a band.

    Args:
        times: Times (n,), s.
        middle: Middle of the band, (n,) or one number.
        wide: Distance (n,) from the middle to both ends.
        label: Name of the band; None without.
        color: Colour of the lines.
    """
    ends = zip((middle + wide, middle - wide), (label, None), strict=True)
    return [Line(times, end, name, color, ":", 0.8) for end, name in ends]


def find_gaps(times: Array) -> Indices:
    """Return the indices of the first samples after gaps, which are over ten usual steps long.

    The usual step is the median of those that are not zero: rows of several channels share stamps.

    Args:
        times: Times (n,), s, which do not decrease.
    """
    steps = np.diff(times)
    usual = np.median(steps[steps > 0.0]) if (steps > 0.0).any() else np.inf
    return np.asarray(np.flatnonzero(steps > _GAP * usual) + 1)


def break_line(line: Line, at: Indices) -> Line:
    """Return a line that is broken where what it shows jumps.

    Args:
        line: The line.
        at: Indices of the first samples after the jumps, in any order. Those of the first sample
            and behind the last are left out.

    Returns:
        The line with a NaN in the middle between the two samples of each jump.
    """
    inside = np.unique(at[(at > 0) & (at < len(line.times))])
    between: Array = 0.5 * (line.times[inside - 1] + line.times[inside])
    times = np.insert(line.times, inside, between)
    return replace(line, times=times, values=np.insert(line.values, inside, np.nan))


def make_result_bands(result: FilterResult) -> list[Band]:
    """Return a band for each span of samples with the same most probable mode.

    A band ends at the first sample of the next, the last one at the last sample.
    """
    times, found = result.times.tolist(), result.modes
    starts = [0, *(k for k in range(1, len(found)) if found[k] != found[k - 1])]
    ends = [*starts[1:], len(found) - 1]
    return make_mode_bands(
        [(times[a], times[b], found[a]) for a, b in zip(starts, ends, strict=True)]
    )
