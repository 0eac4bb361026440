"""Scores of one filter on one toss, and their summary over many: numbers, rows, tables, figure.

Only poses are measured; a filter starts at the second one, with the velocity by the first two.
After some rejected poses in a row it begins anew, in flight: a contact that is closed by mistake
would otherwise hold it for the rest of the toss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.cube_filter import tosses
from hybridctl.experiments.cube_filter.tosses import Camera
from hybridctl.experiments.figures import shares_below
from hybridctl.experiments.filter_models import CubeSettings, cube_model
from hybridctl.experiments.runners import compute_standard_error
from matplotlib.axes import Axes
from rich.table import Table
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

from hybridctl.app.plots import BASELINE, GREEN, REFERENCE, SKY, TRACKING, make_figure, save_figure
from hybridctl.app.report import make_record_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import HybridctlError
from hybridctl.estimation.event_hypotheses import Hypotheses
from hybridctl.estimation.filter_state import FilterState
from hybridctl.estimation.initial_estimate import STRATEGY_BY_FILTER, first_estimate
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.mechanics import closed_contacts
from hybridctl.sampling.filters import run_filter

SLOW = ("unscented", "particle")  # judged on few tosses, at the levels of the salted filter
FILTERS = (*STRATEGY_BY_FILTER, *SLOW)
DIMENSION = 6  # of a pose
ROW = "toss,phase,nis,log_likelihood,x_mm,y_mm,z_mm,rx_mrad,ry_mrad,rz_mrad,claimed_mm"
COLORS = dict(zip(FILTERS, (TRACKING, REFERENCE, BASELINE, GREEN, SKY), strict=True))
SPAN = (1e-2, 1e3)  # of NIS in the figure


class CubeCase(NamedTuple):
    """A filter, how many hypotheses it follows, and its camera."""

    name: str
    hypotheses: Hypotheses = 1
    camera: Camera = Camera()

    @property
    def file(self) -> str:
        """Name of the case in names of files."""
        every, blur = self.camera
        return f"{self.name}-{self.hypotheses}-every-{every}-blur-{1e3 * blur:g}mm"

    @property
    def label(self) -> str:
        """Name of the filter in tables."""
        several = "" if self.hypotheses == 1 else f", {self.hypotheses} hypotheses"
        return self.name.replace("_", " ") + several


@dataclass(frozen=True, eq=False)
class Score:
    """A filter on a toss, one row for each measured pose.

    residual (n, 6): innovations, in m in the frame of the table, and in rad in that of the cube.
    claimed (n,): standard deviation of the predicted position, m. near (n,): at most the chosen
    time after an impact. touches, recorded (n,): contact by the filter and by the recorded pose.
    phases: of the recorded poses, as in `tosses`. events, unsure: of the filter, and those at a
    guard rate that is not significant. reopened: how often a lost filter believed the poses.
    failure: why the run could not be finished, or None; then there are no rows.
    """

    toss: int
    nis: Array
    accepted: Array
    log_likelihood: Array
    residual: Array
    claimed: Array
    near: Array
    touches: Array
    recorded: Array
    phases: tuple[str, ...]
    events: int
    unsure: int
    reopened: int
    seconds: float
    failure: str | None = None


def run_cube_filter(
    name: str, settings: CubeSettings, toss: Record, hypotheses: Hypotheses = 1
) -> tuple[FilterResult, Record]:
    """Return the result of a filter on the rows after those that make its start, and these rows.

    Args:
        name: Name of the filter.
        settings: Its settings.
        toss: The toss.
        hypotheses: Largest number of hypotheses.
    """
    chosen, model = replace(settings, hypotheses=hypotheses), cube_model(settings)
    start, rest = first_estimate(model, chosen, toss)
    return run_filter(name, model, chosen, rest, start), rest


def score_toss(
    case: CubeCase, settings: CubeSettings, number: int, toss: Record, tolerance: float, span: float
) -> Score:
    """Return the score of a filter on a levelled toss.

    Args:
        case: The filter and its camera.
        settings: Its settings.
        number: Number of the toss, the seed of the camera's noise.
        toss: The toss.
        tolerance: Largest height of a corner that touches, m.
        span: Time after an impact that counts as just after it, s.
    """
    seen, chosen = case.camera.record_toss(toss, number), case.camera.select_poses(toss)
    try:
        result, rest = run_cube_filter(case.name, settings, seen, case.hypotheses)
    except (HybridctlError, np.linalg.LinAlgError) as error:
        none = np.zeros(0)
        empty = none, none, none, np.zeros((0, 6)), none, none, none, none
        return Score(number, *empty, (), 0, 0, 0, 0.0, str(error))
    heights = tosses.corner_heights(chosen, settings.parameters())
    found = result.innovations
    residual = np.array([i.residual for i in found])
    attitude = Rotation.from_quat([step.predicted.mean[3:7] for step in result.steps])
    residual[:, :3] = attitude.apply(residual[:, :3])
    rows = int(span * seen.channels["pose"].rate)
    return Score(
        number,
        np.array([i.nis for i in found]),
        np.array([i.accepted for i in found]),
        log_likelihoods(result, rest),
        residual,
        np.sqrt([np.trace(i.covariance[:3, :3]) for i in found]),
        tosses.find_rows_after_impacts(heights, tolerance, rows)[settings.warm_up :],
        np.array([_has_touched(step) for step in result.steps]),
        tosses.find_contact(heights, tolerance)[settings.warm_up :],
        tosses.name_phases(heights, tolerance)[settings.warm_up :],
        len(result.events),
        result.unsure,
        sum(step.reopened for step in result.steps),
        result.seconds,
    )


def _has_touched(step: FilterState) -> bool:
    """Return whether a corner is closed after a sample, or has hit the table since the last one."""
    closed = len(closed_contacts(step.estimate.mode)) > 0
    return closed or any(g.endswith("closes") for e in step.events for g in e.guards)


def summarize_filter(case: CubeCase, scores: Sequence[Score]) -> dict[str, Any]:
    """Return a filter as it stands in summary.json, over all rows of the tosses it could finish.

    touching is the share of rows at which the recorded cube is in contact: the `mode_agreement` of
    an estimate of constant contact.

    Args:
        case: The filter and its camera.
        scores: Its scores.
    """
    done = [s for s in scores if s.failure is None]
    head = {
        "name": case.name,
        "hypotheses": case.hypotheses,
        **case.camera._asdict(),
        "levels_of_salted": case.name in SLOW,
        "tosses": len(scores),
        "lost": len(scores) - len(done),
    }
    if not done:
        return head
    columns = ("nis", "accepted", "touches", "recorded")
    nis, accepted, touches, recorded = (
        np.concatenate([getattr(s, name) for s in done]) for name in columns
    )
    accepted = accepted.astype(bool)
    likelihoods = [s.log_likelihood.mean() for s in done]
    per_toss = np.array([s.nis[s.accepted].mean() for s in done if s.accepted.any()])
    after = _compute_misfit(done, [s.near.astype(bool) for s in done])
    return {
        **head,
        "steps": len(nis),
        "rejected": int((~accepted).sum()),
        "reopened": sum(s.reopened for s in done),
        "mean_nis": float(nis[accepted].mean()),
        "nis_error": compute_standard_error(per_toss),
        "median_log_likelihood_of_tosses": float(np.median(likelihoods)),
        "mode_agreement": float((touches == recorded).mean()),
        "touching": float(recorded.mean()),
        "phases": summarize_phases(done),
        "events": sum(s.events for s in done),
        "unsure": sum(s.unsure for s in done),
        "seconds_per_step": sum(s.seconds for s in done) / len(nis),
        **_compute_misfit(done, [np.ones(len(s.nis), dtype=bool) for s in done]),
        **{f"{name}_after_impacts": value for name, value in after.items()},
    }


def _compute_misfit(scores: Sequence[Score], chosen: Sequence[Array]) -> dict[str, Any]:
    """Return NIS, log-likelihood and innovations of some rows of tosses; nothing without any row.

    z_mm: mean innovation upwards, negative where cubes are lower than predicted; z_error_mm: its
    standard error over tosses.

    Args:
        scores: Scores of the tosses.
        chosen: Whether (n,) each row counts, for each toss.
    """
    some = [(s, rows) for s, rows in zip(scores, chosen, strict=True) if rows.any()]
    if not some:
        return {}
    nis, likelihood, residual = (
        np.concatenate([getattr(s, name)[rows] for s, rows in some])
        for name in ("nis", "log_likelihood", "residual")
    )
    up = np.array([1e3 * s.residual[rows, 2].mean() for s, rows in some])
    squares = (1e3 * residual) ** 2
    return {
        "rows": len(nis),
        "mean_nis_of_all": float(nis.mean()),
        "median_nis": float(np.median(nis)),
        "log_likelihood_per_row": float(likelihood.mean()),
        "z_mm": 1e3 * float(residual[:, 2].mean()),
        "z_error_mm": compute_standard_error(up),
        "position_rms_mm": float(np.sqrt(squares[:, :3].sum(axis=1).mean())),
        "rotation_rms_mrad": float(np.sqrt(squares[:, 3:].sum(axis=1).mean())),
    }


def summarize_phases(done: Sequence[Score]) -> list[dict[str, Any]]:
    """Return the misfit in each phase that has rows.

    Args:
        done: Scores of tosses that the filter has finished.
    """
    found = {
        name: _compute_misfit(done, [np.array([p == name for p in s.phases]) for s in done])
        for name in tosses.PHASES
    }
    return [{"phase": name, **values} for name, values in found.items() if values]


def write_rows(scores: Sequence[Score]) -> str:
    """Return all rows of all tosses as CSV.

    Args:
        scores: Scores of the tosses.
    """
    lines = [ROW]
    for s in scores:
        lengths = 1e3 * np.column_stack([s.residual, s.claimed])
        values = np.column_stack([s.nis, s.log_likelihood, lengths])
        for phase, row in zip(s.phases, values, strict=True):
            lines.append(f"{s.toss},{phase}," + ",".join(f"{v:.5g}" for v in row))
    return "\n".join(lines) + "\n"


def compare_filters(scores: Mapping[CubeCase, Sequence[Score]]) -> list[dict[str, Any]]:
    """Return the log-likelihood per row of the salted filter minus that of others.

    Others have the same camera and as many hypotheses, or are the salted filter with one. Toss by
    toss, over those that both have finished, so that it has a mean and a standard error; the median
    stands beside it because single tosses may decide the mean.

    Args:
        scores: Scores by case.
    """
    result = []
    for one, own in scores.items():
        for other, others in scores.items():
            fewer = other.name == one.name and other.hypotheses == 1 != one.hypotheses
            rival = other.name != one.name and other.hypotheses == one.hypotheses
            if one.name != "salted" or other.camera != one.camera or not (fewer or rival):
                continue
            gain = _compute_gains(own, others)
            if len(gain):
                result.append(
                    {
                        "of": one.label,
                        "over": other.label,
                        **one.camera._asdict(),
                        "mean": float(gain.mean()),
                        "error": compute_standard_error(gain),
                        "median": float(np.median(gain)),
                        "tosses_won": int((gain > 0.0).sum()),
                        "tosses": len(gain),
                    }
                )
    return result


def _compute_gains(own: Sequence[Score], others: Sequence[Score]) -> Array:
    """Return the log-likelihood per row gained on each toss that both have finished."""
    mine, theirs = (
        {s.toss: float(s.log_likelihood.mean()) for s in scores if s.failure is None}
        for scores in (own, others)
    )
    return np.array([mine[k] - theirs[k] for k in mine if k in theirs])


def tabulate_filters(summary: Mapping[str, Any]) -> list[Table | str]:
    """Return tables of all filters, of the phases of the first, and lines of the comparisons.

    Args:
        summary: Content of summary.json.
    """
    filters, rate = summary["filters"], summary["rate"]
    rows = []
    for f in filters:
        label = CubeCase(f["name"], f["hypotheses"]).label + "*" * f["levels_of_salted"]
        camera = Camera(f["every"], f["blur"]).label(rate)
        rows.append({**UNKNOWN, **f, "camera": camera, "filter": label})
    title = f"Held-out {summary['data']} tosses; expected NIS {DIMENSION}"
    return [
        make_record_table(title, rows, LIKELIHOODS),
        "NIS: mean over accepted poses; median: over all poses. restarts: how often a filter "
        "believed rejected poses or began anew. log L: mean log-likelihood per pose; of tosses: "
        "median of the tosses' means. table: standard deviation of the table's height. time: per "
        "pose. *: with the levels of the salted filter",
        make_record_table("After impacts", rows, PREDICTIONS),
        "position, angle: rms innovation. contact: share of poses at which estimate and recording "
        "agree on contact; always: that share for an estimate of constant contact. unsure: events "
        "at rates of uncertain sign",
        make_record_table(f"{filters[0]['name']}, by phase", filters[0].get("phases", ()), FITS),
        *(_describe_gain(comparison, rate) for comparison in summary["against"]),
    ]


# entries that a filter which finishes no toss lacks; the last two also without impacts
UNKNOWN = dict.fromkeys((
    "steps", "rejected", "reopened", "mean_nis", "nis_error", "median_nis",
    "log_likelihood_per_row", "median_log_likelihood_of_tosses", "mode_agreement", "touching",
    "events", "unsure", "seconds_per_step",
    "position_rms_mm_after_impacts", "rotation_rms_mrad_after_impacts",
))  # fmt: skip
LIKELIHOODS = {
    "camera": "{camera}",
    "filter": "{filter}",
    "NIS": "{mean_nis:.1f} ± {nis_error:.1f}",
    "median": "{median_nis:.1f}",
    "rejected": "{rejected} of {steps}",
    "restarts": "{reopened}",
    "log L": "{log_likelihood_per_row:.2f}",
    "of tosses": "{median_log_likelihood_of_tosses:.2f}",
    "table [mm]": "{levels[guard_noise]:.2g}",
    "time [ms]": "{seconds_per_step:.1f}",
}
PREDICTIONS = {
    "camera": "{camera}",
    "filter": "{filter}",
    "position mm": "{position_rms_mm_after_impacts:.2f}",
    "angle mrad": "{rotation_rms_mrad_after_impacts:.2f}",
    "contact": "{mode_agreement:.2f}",
    "always": "{touching:.2f}",
    "unsure": "{unsure} of {events}",
}
FITS = {
    "phase": "{phase}",
    "rows": "{rows}",
    "NIS": "{mean_nis_of_all:.1f}",
    "median": "{median_nis:.1f}",
    "log-likelihood": "{log_likelihood_per_row:.2f}",
    "vertical innovation in mm": "{z_mm:+.2f}",
}


def _describe_gain(c: Mapping[str, Any], rate: float) -> str:
    """Return a comparison in words."""
    error = "?" if c["error"] is None else f"{c['error']:.3f}"
    return (
        f"{Camera(c['every'], c['blur']).label(rate)}: log-likelihood per pose of {c['of']} minus "
        f"that of {c['over']}: mean {c['mean']:+.3f} +- {error}, median {c['median']:+.3f}, higher "
        f"in {c['tosses_won']} of {c['tosses']} tosses"
    )


def draw_shares(path: Path, scores: Mapping[CubeCase, Sequence[Score]], rate: float) -> None:
    """Save shares of poses below a NIS with the first camera, and the salted filter's gains.

    Args:
        path: File of the figure.
        scores: Scores by case.
        rate: Rate of the recordings, Hz.
    """
    figure = make_figure(10.0, 5.2)
    left, right = figure.subplots(1, 2)
    first = next(iter(scores)).camera
    for case, found in scores.items():
        done = [s for s in found if s.failure is None]
        if done and case.camera == first:
            nis = np.concatenate([s.nis for s in done])
            curve = shares_below(nis, f"{case.label}, {len(done)} tosses", COLORS[case.name])
            style = "-" if case.hypotheses == 1 else "--"
            left.plot(curve.times, curve.values, style, color=curve.color, label=curve.label)
    grid = np.geomspace(*SPAN, 200)
    left.plot(grid, chi2.cdf(grid, DIMENSION), color="black", lw=1.0, ls=":", label="consistent")
    left.set_xscale("log")
    left.set_xlim(SPAN)
    left.set_xlabel(f"NIS of a pose, {first.label(rate)}")
    left.set_ylabel("share of poses with a smaller NIS")
    _draw_gains(right, scores, rate)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle("Filters on tosses that were held out")
    save_figure(figure, path)


def _draw_gains(axes: Axes, scores: Mapping[CubeCase, Sequence[Score]], rate: float) -> None:
    """Draw the log-likelihood by which the salted filter is ahead, with two standard errors.

    Args:
        axes: Axes to draw in.
        scores: Scores by case.
        rate: Rate of the recordings, Hz.
    """
    cameras = list(dict.fromkeys(case.camera for case in scores))
    rivals = [case for case in scores if case.name != "salted"]
    axes.axhline(0.0, color="black", lw=1.0)
    for case in rivals:
        own = scores.get(case._replace(name="salted"))
        gain = _compute_gains(own or (), scores[case])
        if len(gain) < 2:
            continue
        same = sorted({(c.name, c.hypotheses) for c in rivals}, key=str)
        shift = 0.12 * (same.index((case.name, case.hypotheses)) - 0.5 * (len(same) - 1))
        axes.errorbar(
            cameras.index(case.camera) + shift,
            gain.mean(),
            2.0 * (compute_standard_error(gain) or 0.0),
            color=COLORS[case.name],
            marker="o" if case.hypotheses == 1 else "s",
            mfc=COLORS[case.name] if case.hypotheses == 1 else "white",
            capsize=3,
        )
    axes.set_xticks(range(len(cameras)), [c.label(rate).replace(", ", "\n") for c in cameras])
    axes.set_ylabel("log-likelihood per pose, salted minus other")
