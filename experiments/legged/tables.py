"""The tables of the walk: what each way to estimate the base was worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from hybridctl.report import table


def printed(summary: Mapping[str, Any]) -> list[Table | str]:
    """Everything that summary.json holds, to be read."""
    touched = summary["touchdowns"]
    title = (
        f"Root over {summary['duration']:.1f} s, touchdowns {touched['left']} + {touched['right']}"
    )
    ways = ("", "mm", "walk", "end", "roll", "pitch", "yaw deg", "NEES", "L + R", "ms")
    tilts = ("error", "settled s", "tilt deg", "yaw deg", "mm")
    levels = ("", "force N", "gyro", "accel", "foot mm/s", "foot rad/s", "pose mm")
    parts: list[Table | str] = [
        table(title, ways, [_row(f) for f in summary["filters"]]),
        "mm: RMS position; walk: of the part that walks; end: last error. NEES: of the position, "
        "should be 3. L + R: touchdowns. ms: per sample.",
        table("Started wrong in tilt", tilts, [_tilt(f) for f in summary["tilted"]]),
        "settled: s until tilt stays within 1 deg while standing; others: RMS over everything.",
        table("Settings", levels, [_level(f) for f in summary["levels"]]),
    ]
    if "robustness" in summary:
        damages = ("", "mm", "yaw deg", "roll deg", "pitch deg", "NEES", "within", "flags")
        parts += [
            table("Damaged recordings", damages, [_robust(f) for f in summary["robustness"]]),
            "within: share of rows with position and yaw where the filter says with 99.9 %.",
        ]
    return parts


def _row(f: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = f["seconds_per_sample"]
    return (
        f["name"],
        f"{1e3 * f['position_rmse']:.1f}",
        f"{1e3 * f['position_rmse_walk']:.1f}",
        f"{1e3 * f['final_position_error']:.1f}",
        *(f"{np.degrees(f[f'{name}_rmse']):.2f}" for name in ("roll", "pitch", "yaw")),
        "-" if f["mean_nees"] is None else f"{f['mean_nees']:.2f}",
        "-" if "touchdowns" not in f else "{left} + {right}".format(**f["touchdowns"]),
        "-" if seconds is None else f"{1e3 * seconds:.2f}",
    )


def _tilt(f: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f["error"],
        "never" if f["settled"] is None else f"{f['settled']:.2f}",
        f"{np.degrees(f['tilt_rmse']):.2f}",
        f"{np.degrees(f['yaw_rmse']):.2f}",
        f"{1e3 * f['position_rmse']:.1f}",
    )


def _level(f: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f["name"],
        f"{f['touch_force']:.0f}/{f['lift_force']:.0f}",
        f"{f['gyroscope']:.1e}",
        f"{f['accelerometer']:.1e}",
        f"{1e3 * f['foot']:.1f}",
        f"{f['foot_turn']:.3f}",
        f"{1e3 * f['measured']:.1f}",
    )


def _robust(f: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f["name"],
        f"{1e3 * f['position_rmse']:.1f}",
        *(f"{np.degrees(f[f'{name}_rmse']):.2f}" for name in ("yaw", "roll", "pitch")),
        f"{f['mean_nees']:.2f}",
        f"{100.0 * f['within']:.0f} %",
        "; ".join(f["flags"]) or "none",
    )
