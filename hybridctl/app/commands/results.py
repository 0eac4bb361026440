"""What a filter leaves in its folder: estimates and innovations for other programs, and figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from hybridctl.app.plots import (
    BASELINE,
    CURVES,
    REFERENCE,
    TRACKING,
    Band,
    Line,
    Panel,
    arrange_panels,
    draw_series,
    nis,
    shorten_mode,
)
from hybridctl.app.plots.filters import (
    SIGMAS,
    break_line,
    find_gaps,
    make_band_lines,
    make_result_bands,
)
from hybridctl.app.report import VERDICT, make_table
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.tables import format_mode
from hybridctl.estimation.consistency import Judgement
from hybridctl.estimation.filter_model import FilterModel
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.logs import Log, PoseSeries, write_estimates

MAIN = "salted"
"""Name of the filter whose files have no name of a filter."""
_FAR = 20.0
"""Standard deviations at which innovations that are farther off are drawn. A choice."""


def make_trust_table(judgements: Sequence[Judgement]) -> Table:
    """Return a table of whether filters can be trusted, a column for each."""
    rows = [judgement.cells() for judgement in judgements]
    names = ["", *(judgement.name for judgement in judgements)]
    cells = [(label, *(row[label] for row in rows)) for label in rows[0]]
    return make_table(VERDICT, names, cells)


def write_results(
    folder: RunFolder, model: FilterModel, log: Log, judgement: Judgement, *, mcap: bool
) -> None:
    """Write estimates.npz and .csv, and innovations.npz and .csv if there are any.

    Estimates are the moments of all hypotheses together, with the most probable mode and its
    probability. Where others were in doubt, modes.npz and .csv have the probability of these at
    each time. Innovations, and notes in notes.json if there are any, are those of the likeliest
    hypothesis after each value. Names of files of another filter than the salted one end with its
    name.

    Args:
        folder: Folder of the run.
        model: Model of the filter, which names the states.
        log: Log that was filtered.
        judgement: Result of the filter.
        mcap: Whether to write estimates.mcap too.
    """
    result = judgement.result
    ending = "" if judgement.name == MAIN else f"_{judgement.name}"
    covariances = np.array(result.covariances)
    # Deviations are of the tangent space, which has fewer entries than a state with quaternions.
    tangent_numbers = tuple(str(k) for k in range(covariances.shape[1]))
    has_names = len(model.states) == len(tangent_numbers)
    deviation_names = model.states if has_names else tangent_numbers
    poses = None
    if model.pose is not None:
        track = np.array([model.pose(x) for x in result.means])
        poses = {model.name: PoseSeries(model.sensors[0].parts[0].frame or "world", track)}
    write_estimates(
        folder.path,
        result.times,
        {
            "state": np.array(result.means),
            "deviation": np.sqrt(np.maximum(np.diagonal(covariances, axis1=1, axis2=2), 0.0)),
            "covariance": covariances,
            "mode": np.array([format_mode(mode) for mode in result.modes]),
            "probability": np.array([m.probabilities[m.mode] for m in result.mixtures]),
        },
        columns={"state": model.states, "deviation": deviation_names},
        origin_ns=log.origin_ns,
        name=f"estimates{ending}",
        mcap=mcap,
        poses=poses,
    )
    if result.doubtful:
        shares = np.array([result.probability(mode) for mode in result.doubtful]).T
        write_estimates(
            folder.path,
            result.times,
            {"probability": shares},
            columns={"probability": [format_mode(mode) for mode in result.doubtful]},
            origin_ns=log.origin_ns,
            name=f"modes{ending}",
        )
    _write_innovations(folder, result, log, f"innovations{ending}")
    if result.notes:
        notes = [{"time": time, "note": note} for time, note in result.notes]
        folder.write_json(f"notes{ending}.json", {"notes": notes})


def _write_innovations(folder: RunFolder, result: FilterResult, log: Log, name: str) -> None:
    """Write the innovations of all samples that have one, rejected ones too.

    Rows of `residual` are as wide as the longest innovation, with NaN at the end of shorter ones.
    Of a value with a missing component the others move up: the file does not tell which is missing.

    Args:
        folder: Folder of the run.
        result: Result of the filter.
        log: Log that was filtered.
        name: Name of the files, without their endings.
    """
    rows = [(s.innovation, s.reopened) for s in result.steps if s.innovation is not None]
    if not rows:
        return
    found = [innovation for innovation, _ in rows]
    residuals = np.full((len(found), max(i.dimension for i in found)), np.nan)
    for row, innovation in zip(residuals, found, strict=True):
        row[: innovation.dimension] = innovation.residual
    write_estimates(
        folder.path,
        [i.time for i in found],
        {
            "channel": np.array([i.channel for i in found]),
            "residual": residuals,
            "nis": np.array([i.nis for i in found]),
            "accepted": np.array([i.accepted for i in found]),
            "reopened": np.array([reopened for _, reopened in rows]),
        },
        origin_ns=log.origin_ns,
        name=name,
    )


def draw_results(
    folder: RunFolder,
    model: FilterModel,
    judgements: Sequence[Judgement],
    truth: HybridTrajectory | None,
) -> None:
    """Write states.png into the folder's figures, and innovations.png and nis.png if there are any.

    Args:
        folder: Folder of the run.
        model: Model of the filters.
        judgements: Results of the filters; states and innovations are those of the first.
        truth: Run that was measured; None if it is not known.
    """
    main = judgements[0].result
    bands = make_result_bands(main)
    _draw_states(folder, model, main, truth, bands)
    if main.innovations:
        _draw_innovations(folder, model, main, bands)
        nis({j.name: j.result for j in judgements}, folder / "figures/nis.png")


def _draw_states(
    folder: RunFolder,
    model: FilterModel,
    result: FilterResult,
    truth: HybridTrajectory | None,
    bands: Sequence[Band],
) -> None:
    """Draw what the model displays of each state, with three standard deviations and the truth.

    Args:
        folder: Folder of the run.
        model: Model of the filter.
        result: Result of the filter.
        truth: Run that was measured, drawn if it covers the samples.
        bands: Spans of the most probable modes.
    """
    shown = [model.display(m.mean, m.covariance) for m in result.mixtures]
    values, deviations = (np.array([pair[k] for pair in shown]) for k in range(2))
    times = result.times
    # Curves break before the sample at or after each event: of estimates the filter's own events
    # and gaps of the log, of the truth its own events.
    jumps = np.searchsorted(times, sorted({event.time for event in result.events}))
    jumps = np.concatenate((jumps, find_gaps(times)))
    right, impacts = None, np.zeros(0, dtype=np.intp)
    if truth is not None and truth.start <= times[0] and times[-1] <= truth.end:
        nothing = np.zeros_like(result.covariances[0])
        right = np.array([model.display(truth(t), nothing)[0] for t in times.tolist()])
        impacts = np.searchsorted(times, [event.time for event in truth.events])
    panels = []
    for k, name in enumerate(model.display_names):
        named = ("3 sigma", "estimate", "truth") if k == 0 else (None, None, None)
        lines = [
            *make_band_lines(times, values[:, k], SIGMAS * deviations[:, k], named[0]),
            Line(times, values[:, k], named[1]),
        ]
        lines = [break_line(line, jumps) for line in lines]
        if right is not None:
            line = Line(times, right[:, k], named[2], REFERENCE, "--", 1.0)
            lines.append(break_line(line, impacts))
        panels.append(Panel(name, lines))
    if result.doubtful:
        # Modes are in order of doubt; those for which there is no colour are left out.
        shares = zip(result.doubtful, CURVES, strict=False)
        lines = [
            Line(times, result.probability(mode), shorten_mode(mode), color, ".-", 0.8)
            for mode, color in shares
        ]
        lines = [break_line(line, find_gaps(times)) for line in lines]
        panels.append(Panel("probability of modes", lines))
    draw_series(
        folder / "figures/states.png",
        arrange_panels(panels),
        title=f"{model.name}: estimates",
        bands=bands,
        span=(float(times[0]), float(times[-1])),
    )


def _draw_innovations(
    folder: RunFolder, model: FilterModel, result: FilterResult, bands: Sequence[Band]
) -> None:
    """Draw the complete innovations of each sensor over their standard deviations, if any.

    Those of values with a missing component are left out: their entries are not those of the names.
    """
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
        limit = np.full(len(t), SIGMAS)
        for k, name in enumerate(sensor.residual_names):
            label = "3 sigma" if not panels else None
            shown = Line(t, np.clip(scaled[:, k], -_FAR, _FAR), None, TRACKING, ".", 1.0)
            lines = [shown, *make_band_lines(t, 0.0, limit, label, BASELINE)]
            panels.append(Panel(f"{name}\n[sigma]", lines, zero=True))
    if not panels:
        return  # every value lacks a component
    title = f"{model.name}: innovations over their deviations"
    draw_series(
        folder / "figures/innovations.png", arrange_panels(panels), title=title, bands=bands
    )
