"""One filter on one toss, and what filters are judged by over many: numbers, rows and tables.

Only poses are measured; a filter starts at the second one, with the velocity that the first two
say. After some that the gate rejects in a row it begins anew, in flight: a contact taken to be
closed by mistake would hold it for the rest of the toss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.cube_filter.tosses import (
    PHASES,
    after_impacts,
    corner_heights,
    in_contact,
    phases,
)
from hybridctl.robots.filter_models import CubeSettings, cube_model
from numpy.typing import NDArray
from rich.table import Table
from scipy.spatial.transform import Rotation
from scipy.stats import chi2

from hybridctl.app.plots import BASELINE, GREEN, REFERENCE, SKY, TRACKING, canvas, save_figure
from hybridctl.app.report import table
from hybridctl.checks import Array
from hybridctl.errors import HybridctlError
from hybridctl.estimation.filters import STRATEGIES, first_estimate, run_filter
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.state import FilterState
from hybridctl.mechanics import closed_contacts

SEVERAL = "several"
SLOW = ("unscented", "particle")  # judged on few tosses
FILTERS = (*STRATEGIES, SEVERAL, *SLOW)
BORROWED = (SEVERAL, *SLOW)  # not searched: they run at the levels of the salted filter
EVENTS = ("reset_noise", "reset_torque", "guard_noise")


class Case(NamedTuple):
    """A filter with noise of events or without."""

    name: str
    noisy: bool

    @property
    def label(self) -> str:
        """As it stands in tables."""
        return f"{self.name}, {'with' if self.noisy else 'without'} event noise"

    @property
    def file(self) -> str:
        """As it stands in names of files."""
        return self.label.replace(", ", "-").replace(" ", "-")

    def searched(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the levels that this filter depends on."""
        return tuple(name for name in names if self.noisy or name not in EVENTS)


@dataclass(frozen=True, eq=False)
class Score:
    """A filter on a toss: what `score` found, one row for each measured pose.

    residual (n, 6): innovations, in m in the frame of the table, and in rad in that of the cube.
    claimed (n,): the deviation of the predicted position, m. near (n,): at most the chosen time
    after an impact. touches, recorded (n,): contact by the filter and by the recorded pose. phases:
    of the recorded poses, as in `tosses`. reopened: how often a lost filter believed the
    poses. failure: why the run could not be finished, or None; then there are no rows.
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
    notes: int
    reopened: int
    seconds: float
    failure: str | None = None


def filtered(name: str, settings: CubeSettings, toss: Record) -> tuple[FilterResult, Record]:
    """A filter on the rows after those that make its start, and these rows.

    `SEVERAL` alone follows more than one hypothesis.
    """
    bound = settings.hypotheses if name == SEVERAL else 1
    chosen, model = replace(settings, hypotheses=bound), cube_model(settings)
    start, rest = first_estimate(model, chosen, toss)
    return run_filter("salted" if name == SEVERAL else name, model, chosen, rest, start), rest


def score(
    name: str, settings: CubeSettings, number: int, toss: Record, tolerance: float, span: float
) -> Score:
    """The filter on a levelled toss; tolerance: m, of contact; span: s after an impact."""
    try:
        result, rest = filtered(name, settings, toss)
    except (HybridctlError, np.linalg.LinAlgError) as error:
        return lost(number, str(error))
    heights = corner_heights(toss, settings.parameters())
    found = result.innovations
    residual = np.array([i.residual for i in found])
    attitude = Rotation.from_quat([step.predicted.mean[3:7] for step in result.steps])
    residual[:, :3] = attitude.apply(residual[:, :3])
    rows = int(span * toss.channels["pose"].rate)
    return Score(
        number,
        np.array([i.nis for i in found]),
        np.array([i.accepted for i in found]),
        log_likelihoods(result, rest),
        residual,
        np.sqrt([np.trace(i.covariance[:3, :3]) for i in found]),
        after_impacts(heights, tolerance, rows)[settings.warm_up :],
        np.array([touched(step) for step in result.steps]),
        in_contact(heights, tolerance)[settings.warm_up :],
        phases(heights, tolerance)[settings.warm_up :],
        len(result.notes),
        sum(step.reopened for step in result.steps),
        result.seconds,
    )


def lost(toss: int, reason: str) -> Score:
    """A toss that the filter could not finish."""
    none = np.zeros(0)
    empty = none, none, none, np.zeros((0, 6)), none, none, none, none
    return Score(toss, *empty, (), 0, 0, 0.0, reason)


def touched(step: FilterState) -> bool:
    """Whether a corner is closed after a sample, or has hit the table since the one before."""
    closed = len(closed_contacts(step.estimate.mode)) > 0
    return closed or any(g.endswith("closes") for e in step.events for g in e.guards)


DIMENSION = 6
BURST = 0.05  # m: a claimed deviation as large as the cube says nothing any more
ROW = "toss,phase,nis,log_likelihood,x_mm,y_mm,z_mm,rx_mrad,ry_mrad,rz_mrad,claimed_mm"


def record(case: Case, scores: Sequence[Score]) -> dict[str, Any]:
    """A filter as it stands in summary.json, over all rows of the tosses it could finish.

    touching: the share of rows at which the recorded cube is in contact, which is what
    `mode_agreement` would be of a filter that always says so.
    """
    done = [s for s in scores if s.failure is None]
    head = {
        "name": case.name,
        "event_noise": case.noisy,
        "levels_of_salted": case.name in BORROWED,
        "tosses": len(scores),
        "lost": len(scores) - len(done),
    }
    if not done:
        return head
    columns = ("nis", "accepted", "near", "claimed", "touches", "recorded")
    nis, accepted, near, claimed, touches, recorded = (
        np.concatenate([getattr(s, name) for s in done]) for name in columns
    )
    accepted = accepted.astype(bool)
    likelihoods = [s.log_likelihood.mean() for s in done]
    per_toss = np.array([s.nis[s.accepted].mean() for s in done if s.accepted.any()])
    hit = near & accepted
    return {
        **head,
        "steps": len(nis),
        "rejected": int((~accepted).sum()),
        "reopened": sum(s.reopened for s in done),
        "mean_nis": float(nis[accepted].mean()),
        "nis_error": _error(per_toss),
        "mean_nis_after_impacts": float(nis[hit].mean()) if hit.any() else None,
        "nis_dim": DIMENSION,
        "median_log_likelihood_of_tosses": float(np.median(likelihoods)),
        "bursts": int((claimed > BURST).sum()),
        "rows_after_impacts": int(near.sum()),
        "mode_agreement": float((touches == recorded).mean()),
        "touching": float(recorded.mean()),
        "phases": by_phase(done),
        "notes": sum(s.notes for s in done),
        "seconds_per_step": sum(s.seconds for s in done) / len(nis),
        **misfit([(s, np.ones(len(s.nis), dtype=bool)) for s in done]),
        **_named("after_impacts", misfit([(s, s.near.astype(bool)) for s in done])),
    }


def _named(end: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_{end}": value for name, value in values.items()}


def misfit(chosen: Sequence[tuple[Score, NDArray[np.bool_]]]) -> dict[str, Any]:
    """Of some rows of tosses: NIS, log-likelihood and innovations, None without any row.

    z_mm: mean innovation upwards, negative where cubes are lower than predicted; z_error_mm: its
    standard error over tosses.
    """
    some = [(s, rows) for s, rows in chosen if rows.any()]
    if not some:
        return {}
    nis = np.concatenate([s.nis[rows] for s, rows in some])
    residual = np.concatenate([s.residual[rows] for s, rows in some])
    up = np.array([1e3 * s.residual[rows, 2].mean() for s, rows in some])
    return {
        "rows": len(nis),
        "mean_nis_of_all": float(nis.mean()),
        "median_nis": float(np.median(nis)),
        "log_likelihood_per_row": float(
            np.concatenate([s.log_likelihood[rows] for s, rows in some]).mean()
        ),
        "z_mm": 1e3 * float(residual[:, 2].mean()),
        "z_error_mm": _error(up),
        "position_rms_mm": _rms(1e3 * residual[:, :3]),
        "rotation_rms_mrad": _rms(1e3 * residual[:, 3:]),
    }


def by_phase(done: Sequence[Score]) -> list[dict[str, Any]]:
    """Where the filter fits and where it does not."""
    found = {
        name: misfit([(s, np.array([p == name for p in s.phases])) for s in done])
        for name in PHASES
    }
    return [{"phase": name, **values} for name, values in found.items() if values]


def rows_text(scores: Sequence[Score]) -> str:
    """All rows of all tosses as CSV."""
    lines = [ROW]
    for s in scores:
        lengths = 1e3 * np.column_stack([s.residual, s.claimed])
        values = np.column_stack([s.nis, s.log_likelihood, lengths])
        for phase, row in zip(s.phases, values, strict=True):
            lines.append(f"{s.toss},{phase}," + ",".join(f"{v:.5g}" for v in row))
    return "\n".join(lines) + "\n"


def _rms(rows: Array) -> float:
    return float(np.sqrt((rows**2).sum(axis=1).mean()))


def _error(values: Array) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def comparisons(scores: Mapping[Case, Sequence[Score]]) -> list[dict[str, Any]]:
    """Log-likelihood per row of the first filter with event noise, minus that of each other one.

    Toss by toss, over those that both have finished, so that it has a mean and a standard error;
    the median stands beside it because single tosses may decide the mean.
    """
    first, *others = scores
    own = _per_toss(scores[first])
    result = []
    for other in others:
        rival = _per_toss(scores[other])
        gain = np.array([own[k] - rival[k] for k in own if k in rival])
        if len(gain):
            result.append(
                {
                    "of": first.label,
                    "over": other.label,
                    "mean": float(gain.mean()),
                    "error": _error(gain),
                    "median": float(np.median(gain)),
                    "tosses_won": int((gain > 0.0).sum()),
                    "tosses": len(gain),
                }
            )
    return result


def _per_toss(scores: Sequence[Score]) -> dict[int, float]:
    return {s.toss: float(s.log_likelihood.mean()) for s in scores if s.failure is None}


def printed(summary: Mapping[str, Any]) -> list[Table | str]:
    """What was found, and how sure that is."""
    filters = summary["filters"]
    title = f"Held-out {summary['data']} tosses; NIS should be {DIMENSION}"
    columns = ("filter", "noise", "NIS", "median", "rejected", "log L", "tosses", "lost")
    after = ("filter", "noise", "mm", "mrad", "contact", "always")
    return [
        table(title, columns, [_likelihoods(f) for f in filters]),
        "noise: of events. NIS: mean of what is not rejected; median: of all. log L: per row; "
        "tosses: the median of their means. *: at the levels of the salted filter",
        table("After impacts", after, [_predictions(f) for f in filters]),
        "mm, mrad: rms innovation. contact: agreement with the recorded pose; always: that of a "
        "filter that always says so",
        phase_table(filters[0]),
        *(_gain(comparison) for comparison in summary["against"]),
    ]


def _gain(c: Mapping[str, Any]) -> str:
    error = "?" if c["error"] is None else f"{c['error']:.2f}"
    return (
        f"{c['of']}, over {c['over']}: {c['mean']:+.2f} +- {error} per row, median "
        f"{c['median']:+.2f}, better in {c['tosses_won']} of {c['tosses']} tosses"
    )


def phase_table(found: Mapping[str, Any]) -> Table:
    """One filter by phase: NIS, likelihood, and the mean innovation upwards."""
    rows = [
        (
            p["phase"],
            p["rows"],
            f"{p['mean_nis_of_all']:.1f}",
            f"{p['median_nis']:.1f}",
            f"{p['log_likelihood_per_row']:.2f}",
            f"{p['z_mm']:+.2f}",
        )
        for p in found.get("phases", ())
    ]
    columns = ("phase", "rows", "NIS", "median", "log L", "z mm")
    return table(f"{found['name']}, by phase", columns, rows)


def _likelihoods(f: Mapping[str, Any]) -> tuple[str, ...]:
    if "steps" not in f:
        return (*_label(f), *["-"] * 5, str(f["lost"]))
    error = "" if f["nis_error"] is None else f"\u00b1{f['nis_error']:.1f}"
    return (
        *_label(f),
        f"{f['mean_nis']:.1f}{error}",
        f"{f['median_nis']:.1f}",
        f"{100.0 * f['rejected'] / f['steps']:.1f} %",
        f"{f['log_likelihood_per_row']:.2f}",
        f"{f['median_log_likelihood_of_tosses']:.2f}",
        str(f["lost"]),
    )


def _predictions(f: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("position_rms_mm_after_impacts", "rotation_rms_mrad_after_impacts")
    cells = [f.get(name) for name in (*names, "mode_agreement", "touching")]
    return (*_label(f), *("-" if value is None else f"{value:.2f}" for value in cells))


def _label(f: Mapping[str, Any]) -> tuple[str, str]:
    return f["name"] + ("*" if f["levels_of_salted"] else ""), "on" if f["event_noise"] else "off"


COLORS = (TRACKING, REFERENCE, BASELINE, GREEN, SKY)
DEGREES = 6
SPAN = (1e-2, 1e3)  # of NIS
BELOW = 5.0  # by which a filter may stay below the best median log-likelihood and still be shown


def draw_shares(path: Path, scores: Mapping[str, Sequence[Score]]) -> None:
    """Shares of poses below a NIS, left, and of tosses below a mean log-likelihood, right."""
    figure = canvas(10.0, 5.2)
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(label.split(",")[0] for label in scores))
    medians = []
    for label, found in scores.items():
        done = [s for s in found if s.failure is None]
        if not done:
            continue
        style = {
            "color": COLORS[names.index(label.split(",")[0])],
            "ls": "--" if "without" in label else "-",
            "lw": 1.5,
            "label": f"{label}, {len(done)} tosses",
        }
        likelihoods = np.array([s.log_likelihood.mean() for s in done])
        medians.append(float(np.median(likelihoods)))
        left.step(*_shares(np.concatenate([s.nis for s in done])), **style)
        right.step(*_shares(likelihoods), **style)
    grid = np.geomspace(*SPAN, 200)
    left.plot(grid, chi2.cdf(grid, DEGREES), color="black", lw=1.0, ls=":", label="consistent")
    left.set_xscale("log")
    left.set_xlim(SPAN)
    left.set_xlabel("NIS of a pose")
    left.set_ylabel("share below")
    best = max(medians, default=0.0)
    right.set_xlim(best - BELOW, best + 0.6 * BELOW)
    right.set_xlabel("log-likelihood per pose, mean of a toss")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.suptitle("Filters on tosses that were held out")
    save_figure(figure, path)


def _shares(values: Array) -> tuple[Array, Array]:
    """Sorted values, and the share of them up to each."""
    return np.sort(values), np.arange(1, len(values) + 1) / len(values)
