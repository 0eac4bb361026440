"""What the filters on tossed cubes are judged by: numbers for summary.json, rows, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hybridctl.experiments.cube_filter.fit import BORROWED, Case
from hybridctl.experiments.cube_filter.score import Score
from hybridctl.experiments.cube_filter.toss import PHASES
from rich.console import Console
from rich.table import Table

from hybridctl.checks import Array
from hybridctl.report import table

DIMENSION = 6
BURST = 0.05  # m: a claimed deviation as large as the cube says nothing any more
ROW = "toss,phase,nis,log_likelihood,x_mm,y_mm,z_mm,rx_mrad,ry_mrad,rz_mrad,claimed_mm"


def record(case: Case, scores: Sequence[Score]) -> dict[str, Any]:
    """A filter as it stands in summary.json, over all rows of the tosses it could finish."""
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
    rows, near = sum(len(s.nis) for s in done), np.concatenate([s.near for s in done])
    residual = np.concatenate([s.residual for s in done])[near]
    nis = np.concatenate([s.nis for s in done])
    accepted = np.concatenate([s.accepted for s in done]).astype(bool)
    likelihood = np.concatenate([s.log_likelihood for s in done])
    claimed = np.concatenate([s.claimed for s in done])
    means = [s.log_likelihood.mean() for s in done]
    per_toss = np.array([s.nis[s.accepted].mean() for s in done if s.accepted.any()])
    same = np.concatenate([s.touches == s.recorded for s in done])
    return {
        **head,
        "steps": rows,
        "rejected": int((~accepted).sum()),
        "reopened": sum(s.reopened for s in done),
        "mean_nis": float(nis[accepted].mean()),
        "nis_error": _error(per_toss),
        "median_nis": float(np.median(nis)),
        "mean_nis_after_impacts": _mean(nis[near & accepted]),
        "nis_dim": DIMENSION,
        "log_likelihood": float(likelihood.sum()),
        "log_likelihood_per_row": float(likelihood.mean()),
        "median_log_likelihood_of_tosses": float(np.median(means)),
        "bursts": int((claimed > BURST).sum()),
        "rows_after_impacts": int(near.sum()),
        "position_rms_mm": _rms(1e3 * residual[:, :3]),
        "rotation_rms_mrad": _rms(1e3 * residual[:, 3:]),
        "mode_agreement": float(same.mean()),
        "phases": by_phase(done),
        "notes": sum(s.notes for s in done),
        "seconds_per_step": sum(s.seconds for s in done) / rows,
    }


def by_phase(done: Sequence[Score]) -> list[dict[str, Any]]:
    """Where the filter fits and where it does not.

    z_mm: mean innovation upwards, negative where cubes are lower than predicted; z_error_mm: its
    standard error over tosses.
    """
    result = []
    for name in PHASES:
        chosen = [(s, np.array([p == name for p in s.phases])) for s in done]
        chosen = [(s, rows) for s, rows in chosen if rows.any()]
        if not chosen:
            continue
        nis = np.concatenate([s.nis[rows] for s, rows in chosen])
        up = [1e3 * s.residual[rows, 2] for s, rows in chosen]
        result.append(
            {
                "phase": name,
                "rows": len(nis),
                "mean_nis": float(nis.mean()),
                "median_nis": float(np.median(nis)),
                "log_likelihood_per_row": float(
                    np.concatenate([s.log_likelihood[rows] for s, rows in chosen]).mean()
                ),
                "z_mm": float(np.concatenate(up).mean()),
                "z_error_mm": _error(np.array([u.mean() for u in up])),
                "position_rms_mm": _rms(
                    1e3 * np.concatenate([s.residual[rows, :3] for s, rows in chosen])
                ),
                "rotation_rms_mrad": _rms(
                    1e3 * np.concatenate([s.residual[rows, 3:] for s, rows in chosen])
                ),
            }
        )
    return result


def rows_text(scores: Sequence[Score]) -> str:
    """All rows of all tosses as CSV."""
    lines = [ROW]
    for s in scores:
        lengths = 1e3 * np.column_stack([s.residual, s.claimed])
        values = np.column_stack([s.nis, s.log_likelihood, lengths])
        for phase, row in zip(s.phases, values, strict=True):
            lines.append(f"{s.toss},{phase}," + ",".join(f"{v:.5g}" for v in row))
    return "\n".join(lines) + "\n"


def _rms(rows: Array) -> float | None:
    return float(np.sqrt((rows**2).sum(axis=1).mean())) if len(rows) else None


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


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


def share_in_contact(scores: Mapping[Case, Sequence[Score]]) -> float:
    """By the recorded poses: the mode agreement of a filter that always says contact."""
    done = next((found for found in scores.values() if not any(s.failure for s in found)), ())
    return float(np.concatenate([s.recorded for s in done]).mean()) if done else float("nan")


def toss_record(found: Score) -> dict[str, Any]:
    """One run as it stands in summary.json."""
    if found.failure is not None:
        return {"toss": found.toss, "failure": found.failure}
    return {
        "toss": found.toss,
        "mean_nis": float(found.nis.mean()),
        "log_likelihood_per_row": float(found.log_likelihood.mean()),
    }


def print_tables(console: Console, summary: Mapping[str, Any]) -> None:
    """What was found, and how sure that is."""
    filters = summary["filters"]
    title = f"Held-out {summary['data']} tosses; NIS should be {DIMENSION}"
    columns = ("filter", "noise", "NIS", "median", "rejected", "log L", "tosses", "lost")
    console.print(table(title, columns, [_likelihoods(f) for f in filters]))
    console.print(
        "noise: of events. NIS: mean of what is not rejected; median: of all. log L: per row; "
        "tosses: the median of their means. *: at the levels of the salted filter"
    )
    after = ("filter", "noise", "mm", "mrad", "contact")
    console.print(table("After impacts", after, [_predictions(f) for f in filters]))
    console.print(
        "mm, mrad: rms innovation. contact: agreement with the recorded pose, which is in contact "
        f"at {summary['share_in_contact']:.2f} of the rows"
    )
    console.print(phase_table(filters[0]))
    for c in summary["against"]:
        error = "?" if c["error"] is None else f"{c['error']:.2f}"
        console.print(
            f"{c['of']}, over {c['over']}: {c['mean']:+.2f} +- {error} per row, median "
            f"{c['median']:+.2f}, better in {c['tosses_won']} of {c['tosses']} tosses"
        )


def phase_table(found: Mapping[str, Any]) -> Table:
    """One filter by phase: NIS, likelihood, and the mean innovation upwards."""
    rows = [
        (
            p["phase"],
            p["rows"],
            f"{p['mean_nis']:.1f}",
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
    def shown(name: str, digits: int) -> str:
        return "-" if f.get(name) is None else f"{f[name]:.{digits}f}"

    return (
        *_label(f),
        shown("position_rms_mm", 2),
        shown("rotation_rms_mrad", 1),
        shown("mode_agreement", 2),
    )


def _label(f: Mapping[str, Any]) -> tuple[str, str]:
    return f["name"] + ("*" if f["levels_of_salted"] else ""), "on" if f["event_noise"] else "off"
