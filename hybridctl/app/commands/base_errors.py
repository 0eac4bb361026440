"""Tables and figures of legged bases against a reference, and of several methods side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from hybridctl.app.plots import BASELINE, CURVES, REFERENCE, Line, Panel, save_plane_pictures
from hybridctl.app.report import make_table
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.estimation.pose_track import Alignment, Association, PoseTrack, align, associate
from hybridctl.estimation.trajectory_errors import (
    PATH_STEP,
    SPAN,
    RelativeErrors,
    TrajectoryErrors,
    path_distances,
    trajectory_errors,
)
from hybridctl.logs.legged import BaseTrack

OWN = "salted"
"""Name of the filter with the settings of the model, beside the baselines."""
_NONE = "-"
"""Cell of a number that is not known."""


@dataclass(frozen=True)
class PoseReference:
    """Poses that estimates are compared with, and how.

    Attributes:
        name: What the command line named: a file or channels.
        track: Its poses.
        alignment: See `pose_track.align`.
        association: See `pose_track.associate`.
        within: See `pose_track.associate`.
    """

    name: str
    track: PoseTrack
    alignment: Alignment = "yaw"
    association: Association = "interpolate"
    within: float | None = None

    def compute_errors(self, found: BaseTrack) -> TrajectoryErrors:
        """Return the errors of a track against the reference."""
        return trajectory_errors(
            found.track,
            self.track,
            covariances=found.covariances,
            alignment=self.alignment,
            association=self.association,
            within=self.within,
        )

    def align_with(self, found: BaseTrack) -> PoseTrack:
        """Return the reference in the world of a track, for a picture.

        With the alignment "none" it stays where it is. Else both are aligned at the start, or by
        yaw and position over the whole of them if the reference has no orientations.
        """
        pairs = associate(found.track, self.track, self.association, within=self.within)
        alignment = self.alignment
        if alignment != "none":
            alignment = "yaw" if self.track.orientations is None else "start"
        return self.track.transform(align(pairs, alignment))


def make_reference_table(reference: PoseReference, errors: TrajectoryErrors) -> Table:
    """Return the table of the errors of one track.

    Args:
        reference: What the track is compared with.
        errors: Its errors, of `PoseReference.compute_errors`.
    """
    end = _NONE
    if errors.end_error is not None:
        share = _format_percent(errors.end_share)
        end = f"{errors.end_error:.3f} m, {share} of {errors.path_length:.2f} m"
    rows = [
        ("position at the end", end),
        ("height at the end", _format_number(errors.end_height, "m", sign=True)),
        (
            "yaw at the end",
            _format_number(_convert_to_degrees(errors.end_yaw), "deg", 2, sign=True),
        ),
        (f"ATE, alignment {errors.alignment!r}", _format_number(errors.ate, "m")),
        ("height, rms", _format_number(errors.height_rms, "m")),
        ("rotation, rms", _format_number(_convert_to_degrees(errors.rotation_rms), "deg", 2)),
        ("yaw, rms", _format_number(_convert_to_degrees(errors.yaw_rms), "deg", 2)),
        (f"RPE over {SPAN:g} s", _format_relative(errors.rpe)),
        (f"RPE over {SPAN:g} m", _format_relative(errors.rpe_metre)),
        ("path, of the reference's", _format_percent(errors.path_length_ratio)),
        ("NEES of position at the end (3)", _format_number(errors.end_nees, "", 1)),
        ("NEES of position, mean (3)", _format_number(errors.mean_nees, "", 1)),
    ]
    title = f"Against {reference.name}: {errors.count} poses over {errors.duration:.1f} s"
    return make_table(title, ["error", "value"], rows)


def make_comparison_table(
    tracks: Mapping[str, BaseTrack], reference: PoseReference | None
) -> Table:
    """Return the table of several tracks, a row for each.

    Args:
        tracks: Tracks by name.
        reference: With one, the table has errors; without one, the path, where it ended, and what
            was claimed.
    """
    if reference is None:
        columns = ["", "path [m]", "end x, y, z [m]", "claimed ± [m]", "ms per sample"]
        return make_table("Side by side", columns, [_make_own_row(k, v) for k, v in tracks.items()])
    columns = ["", "end [%]", "ATE [m]", f"RPE {SPAN:g} s [m]", f"RPE {SPAN:g} m [m]"]
    columns += ["yaw [deg]", "height [m]", "NEES of end (3)", "ms per sample"]
    rows = []
    for name, found in tracks.items():
        e = reference.compute_errors(found)
        spans = [None if r is None else r.translation for r in (e.rpe, e.rpe_metre)]
        rows.append(
            (
                name,
                _format_percent(e.end_share).removesuffix(" %"),
                _format_number(e.ate),
                *(_format_number(value) for value in spans),
                _format_number(_convert_to_degrees(e.end_yaw), "", 2, sign=True),
                _format_number(e.end_height, sign=True),
                _format_number(e.end_nees, "", 1),
                f"{1e3 * found.seconds:.2f}",
            )
        )
    return make_table(f"Side by side, against {reference.name}", columns, rows)


def _make_own_row(name: str, found: BaseTrack) -> tuple[str, ...]:
    """Return the row of a track without a reference."""
    claims = _NONE
    if found.covariances is not None:
        claims = ", ".join(f"{s:.3f}" for s in np.sqrt(np.diag(found.covariances[-1])))
    end = ", ".join(f"{p:.3f}" for p in found.track.positions[-1])
    path = path_distances(found.track.positions)[-1]
    return name, f"{path:.2f}", end, claims, f"{1e3 * found.seconds:.2f}"


def encode_comparison(
    tracks: Mapping[str, BaseTrack], reference: PoseReference | None
) -> dict[str, dict[str, Any]]:
    """Return what summary.json holds of several tracks, by name.

    Args:
        tracks: Tracks by name.
        reference: What they are compared with; None where there is nothing.
    """
    return {
        name: {
            "path_length": float(path_distances(found.track.positions)[-1]),
            "final_position": found.track.positions[-1],
            "seconds_per_sample": found.seconds,
            "reference": None if reference is None else reference.compute_errors(found).record(),
        }
        for name, found in tracks.items()
    }


def draw_paths(
    folder: RunFolder, tracks: Mapping[str, BaseTrack], reference: PoseTrack | None
) -> None:
    """Write path.png: the tracks from above, with the reference, if any of them moves.

    Args:
        folder: Folder of the run.
        tracks: Tracks by name.
        reference: Reference in the world of the first track.
    """
    lines: dict[str, tuple[Array, str]] = {}
    if reference is not None:
        lines["reference"] = reference.positions, REFERENCE
    colors = [c for c in CURVES if c != BASELINE] + [BASELINE]
    for (name, found), color in zip(tracks.items(), colors, strict=False):
        lines[name] = found.track.positions, color
    if all(path_distances(p)[-1] < PATH_STEP for p, _ in lines.values()):
        return  # a robot that stands has no path, and a picture of one point no scale
    drawn = [Line.from_points(p[:, :2], name, color) for name, (p, color) in lines.items()]
    save_plane_pictures(
        folder / "figures/path.png",
        [[Panel("from above", drawn)]],
        title="Path of the root",
        labels=("x [m]", "y [m]"),
    )


def _format_number(
    value: float | None, unit: str = "", digits: int = 3, *, sign: bool = False
) -> str:
    """Return a number with its unit, or a dash.

    Args:
        value: The number; None, or one that is not finite, for none.
        unit: Unit behind it.
        digits: Digits behind the point.
        sign: Whether a plus is written.
    """
    if value is None or not np.isfinite(value):
        return _NONE
    return f"{value:{'+' if sign else ''}.{digits}f} {unit}".rstrip()


def _convert_to_degrees(angle: float | None) -> float | None:
    """Return an angle in rad in degrees."""
    return None if angle is None else float(np.degrees(angle))


def _format_percent(share: float | None) -> str:
    """Return a share in percent."""
    return _format_number(None if share is None else 100.0 * share, "%", 1)


def _format_relative(errors: RelativeErrors | None) -> str:
    """Return a relative error: translation and rotation."""
    if errors is None:
        return _NONE
    return f"{errors.translation:.3f} m, {np.degrees(errors.rotation):.2f} deg"
