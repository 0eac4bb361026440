"""Figures of filters: states with their bands, innovations, NIS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from hybridctl.checks import Array, Indices
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.judgement import Judgement
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.plots import BANDS, BASELINE, CURVES, REFERENCE, TRACKING, Band, Line, Panel, series
from hybridctl.report import RunFolder

_COLUMNS = 2
_WIDE = 0.12  # of the time axis; bands that are narrower have no name
_SIGMAS = 3.0
_FAR = 20.0  # sigmas, at which innovations are drawn that are farther off


def draw_all(
    folder: RunFolder,
    model: FilterModel,
    judgements: Sequence[Judgement],
    truth: HybridTrajectory | None,
) -> None:
    """Write states.png, innovations.png and nis.png into the folder's figures."""
    main = judgements[0].result
    bands = mode_bands(main)
    _states(folder, model, main, truth, bands)
    if main.innovations:
        _innovations(folder, model, main, bands)
        _nis(folder, judgements, bands)


def _states(
    folder: RunFolder,
    model: FilterModel,
    result: FilterResult,
    truth: HybridTrajectory | None,
    bands: Sequence[Band],
) -> None:
    shown = [model.display(s.estimate.mean, s.estimate.covariance) for s in result.steps]
    values, deviations = (np.array([pair[k] for pair in shown]) for k in range(2))
    times = result.times
    jumps = np.searchsorted(times, sorted({event.time for event in result.events}))
    right, impacts = None, np.zeros(0, dtype=np.intp)
    if truth is not None and truth.start <= times[0] and times[-1] <= truth.end:
        nothing = np.zeros_like(result.covariances[0])
        right = np.array([model.display(truth(t), nothing)[0] for t in times.tolist()])
        impacts = np.searchsorted(times, [event.time for event in truth.events])
    panels = []
    for k, name in enumerate(model.display_names):
        low, high = (values[:, k] + s * _SIGMAS * deviations[:, k] for s in (-1.0, 1.0))
        first = k == 0
        lines = [
            apart(Line(times, low, "3 sigma" if first else None, TRACKING, ":", 0.8), jumps),
            apart(Line(times, high, None, TRACKING, ":", 0.8), jumps),
            apart(Line(times, values[:, k], "estimate" if first else None), jumps),
        ]
        if right is not None:
            line = Line(times, right[:, k], "truth" if first else None, REFERENCE, "--", 1.0)
            lines.append(apart(line, impacts))
        panels.append(Panel(name, lines))
    series(
        folder / "figures/states.png",
        _rows(panels),
        title=f"{model.name}: estimates",
        bands=bands,
        span=(float(times[0]), float(times[-1])),
    )


def apart(line: Line, at: Indices) -> Line:
    """A line with gaps before the samples `at`, where what it shows jumps."""
    inside = np.unique(at[(at > 0) & (at < len(line.times))])
    between = 0.5 * (line.times[inside - 1] + line.times[inside])
    times = np.insert(line.times, inside, between)
    return replace(line, times=times, values=np.insert(line.values, inside, np.nan))


def _innovations(
    folder: RunFolder, model: FilterModel, result: FilterResult, bands: Sequence[Band]
) -> None:
    panels: list[Panel] = []
    for sensor in model.sensors:
        found = [
            i
            for i in result.innovations
            if i.channel == sensor.name and i.dimension == sensor.measurement.dimension
        ]
        if not found:
            continue
        t = np.array([i.time for i in found])
        scaled = np.array([i.residual / np.sqrt(np.diag(i.covariance)) for i in found])
        limit = np.full(len(t), _SIGMAS)
        for k, name in enumerate(sensor.residual_names):
            label = "3 sigma" if not panels else None
            lines = [
                Line(t, np.clip(scaled[:, k], -_FAR, _FAR), None, TRACKING, ".", 1.0),
                Line(t, limit, label, BASELINE, "--", 0.8),
                Line(t, -limit, None, BASELINE, "--", 0.8),
            ]
            panels.append(Panel(f"{name} [sigma]", lines, zero=True))
    title = f"{model.name}: innovations over their deviations"
    series(folder / "figures/innovations.png", _rows(panels), title=title, bands=bands)


def _nis(folder: RunFolder, judgements: Sequence[Judgement], bands: Sequence[Band]) -> None:
    """NIS divided by its dimension, and the limit that one in a hundred values exceeds."""
    lines = []
    for judgement, color in zip(judgements, CURVES, strict=False):
        found = judgement.result.innovations
        t = np.array([i.time for i in found])
        ratio = np.array([i.nis / i.dimension for i in found])
        lines.append(Line(t, np.maximum(ratio, 1e-3), judgement.name, color, ".-", 0.7))
    first = judgements[0].result.innovations
    t = np.array([i.time for i in first])
    limit: Array = np.array([chi2.ppf(0.99, i.dimension) / i.dimension for i in first])
    lines.append(Line(t, limit, "99 % of right values are below", "black", "--", 0.9))
    panel = Panel("NIS / dimension", lines, log=True, legend="lower left")
    title = "Normalized innovations; 1 on average if consistent"
    series(folder / "figures/nis.png", [[panel]], title=title, bands=bands)


def mode_bands(result: FilterResult) -> list[Band]:
    """The spans of the modes; those that are wide enough are named."""
    times, modes = result.times, result.modes
    starts = [0, *(k for k in range(1, len(modes)) if modes[k] != modes[k - 1])]
    ends = [*starts[1:], len(modes) - 1]
    whole = float(times[-1] - times[0])
    kinds = list(dict.fromkeys(modes))
    bands = []
    for start, end in zip(starts, ends, strict=True):
        a, b = float(times[start]), float(times[end])
        wide = b - a > _WIDE * whole
        color = BANDS[kinds.index(modes[start]) % len(BANDS)]
        bands.append(Band(a, b, short_mode(modes[start]) if wide else "", color))
    return bands


def short_mode(mode: object) -> str:
    """How many contacts are in which mode; "open" where none is closed."""
    parts = [str(part) for part in (mode if isinstance(mode, tuple) else (mode,))]
    counts = Counter(part for part in parts if part != "open")
    return ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "open"


def _rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    columns = min(_COLUMNS, len(panels))
    return [panels[k : k + columns] for k in range(0, len(panels), columns)]
