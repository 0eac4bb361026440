"""What `hybridctl filter` does with a legged robot: the pose of its base along a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from scipy.spatial.transform import Rotation

from hybridctl.app.commands.base_errors import (
    OWN,
    PoseReference,
    draw_paths,
    encode_comparison,
    make_comparison_table,
    make_reference_table,
)
from hybridctl.app.commands.results import make_trust_table
from hybridctl.app.plots import REFERENCE, Line, Panel, draw_series
from hybridctl.app.plots.filters import make_band_lines, make_result_bands
from hybridctl.app.report import make_table, report_alive, say
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.estimation.consistency import Judgement, judge
from hybridctl.estimation.pose_track import PoseTrack
from hybridctl.logs import Log, examine, write_tum
from hybridctl.logs.base_model import BaseModel
from hybridctl.logs.legged import BASELINES, BaseRun, filter_base, make_filtered_track

_SIGMAS = 2.0
"""Standard deviations from the middle of a band to its ends."""
_PLACE = 3
"""First row of the position in the covariance of a root: turn, position, velocity."""


def run_base_filter(
    model: BaseModel,
    log: Log,
    mcap: bool,
    reference: PoseReference | None,
    compare: bool,
    folder: RunFolder,
    console: Console,
) -> None:
    """Filter a log into a folder; print the verdict, errors and comparison; draw figures.

    Args:
        model: The legged base.
        log: Its log.
        mcap: Whether estimates are wanted as MCAP, too.
        reference: Poses that estimates are compared with, None where there are none.
        compare: Whether the baselines are run beside the filter.
        folder: Folder of the run.
        console: Where tables are printed.
    """
    folder.write_configuration(model.settings, seed=None)
    warnings = examine(log).warnings
    for warning in warnings:
        say(console, f"warning: {warning}")
    found = filter_base(log, model)
    judgement = judge(found.estimator.system, found.result, faults=found.faults)
    summary = summarize(model.name, log.source or None, found, judgement, warnings)
    tracks = {OWN: make_filtered_track(found)}
    if compare:
        for name, run_baseline in BASELINES.items():
            with report_alive(console, name):
                tracks[name] = run_baseline(log, model)
        summary["compared"] = encode_comparison(tracks, reference)
    if reference is not None:
        errors = reference.compute_errors(tracks[OWN])
        summary["reference"] = {"name": reference.name, **errors.record()}
    folder.write_json("summary.json", summary)
    print_tables(console, summary, judgement)
    if reference is not None:
        console.print(make_reference_table(reference, errors))
    if compare:
        console.print(make_comparison_table(tracks, reference))
    with report_alive(console, "writing"):
        found.write(folder.path, origin_ns=log.origin_ns, mcap=mcap)
        for name in BASELINES if compare else ():
            write_tum(folder / f"{name}.tum", tracks[name].track, origin_ns=log.origin_ns)
        if folder.draws:
            drawn = None if reference is None else reference.align_with(tracks[OWN])
            draw_base(folder, found, drawn)
            draw_paths(folder, tracks, drawn)


def summarize(
    name: str,
    log: str | None,
    found: BaseRun,
    judgement: Judgement,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what summary.json holds: the numbers, the contacts, and where the root ended.

    Args:
        name: Name of the model.
        log: File of the log, if there is one.
        found: What came of the log.
        judgement: Whether the filter can be trusted.
        warnings: What is odd about the log, and what of it was not read.
    """
    changes, last = found.estimator.contact_changes(found.result), found.roots[-1]
    verdict = judgement.verdict
    if not found.faults:  # with other mistakes in a log its delay means nothing
        verdict += f"; {found.time_offset}"
    return {
        "model": name,
        "log": log,
        "warnings": list(warnings),
        **judgement.record(),
        "seconds_per_sample": found.result.seconds / len(found.roots),
        "touchdowns": {foot: downs for foot, (downs, _) in changes.items()},
        "lift_offs": {foot: ups for foot, (_, ups) in changes.items()},
        "verdict": verdict,
        "time_offset": found.time_offset.record(),
        "flags": list(found.flags),
        "walk": found.walk.record(),
        "final": {
            "time": last.time,
            "position": last.position,
            "orientation": last.orientation,
            "velocity": last.velocity,
            "position_deviation": np.sqrt(np.diag(last.covariance)[3:6]),
        },
    }


def print_tables(console: Console, summary: Mapping[str, Any], judgement: Judgement) -> None:
    """Print the verdict and what speaks against the poses, then trust, phases and contacts.

    Args:
        console: Where they are printed.
        summary: What `summarize` returns.
        judgement: Whether the filter can be trusted.
    """
    say(console, summary["verdict"])
    for flag in summary["flags"]:
        say(console, f"flag: {flag}")
    console.print(make_trust_table([judgement]))
    print_walk(console, summary["walk"])
    downs, ups = summary["touchdowns"], summary["lift_offs"]
    rows = [(escape(foot), str(downs[foot]), str(ups[foot])) for foot in downs]
    console.print(make_table("Contacts", ["foot", "touchdowns", "lift-offs"], rows))
    final = summary["final"]
    ways = zip("xyz", final["position"], final["position_deviation"], strict=True)
    where = ", ".join(f"{axis} {p:.3f} ± {s:.3f} m" for axis, p, s in ways)
    say(console, f"final position of the root, at {final['time']:.2f} s: {where}")


def print_walk(console: Console, walk: Mapping[str, Any]) -> None:
    """Print mean NIS by phase, and in a line whiteness, height drift and speed of loaded feet.

    Args:
        console: Where it is printed.
        walk: `WalkVerdict.record`.
    """
    rows = [
        (
            escape(one["channel"]),
            one["phase"],
            str(one["count"]),
            f"{one['mean']:.2f}",
            f"{one['low']:.2f} {one['high']:.2f}",
        )
        for one in walk["nis_by_phase"]
    ]
    columns = ["channel", "phase", "values", "mean NIS per degree", "99 % band"]
    console.print(make_table("Innovations by phase", columns, rows))
    found = []
    if walk["lag_one"] is not None:
        limit = f"Ljung-Box {walk['ljung_box']:.4g}, white below {walk['ljung_box_limit']:.3g}"
        found.append(f"innovations at lag one correlate by {walk['lag_one']:.2f} ({limit})")
    drift = walk["height_drift"]
    if drift is not None:
        height, deviation = 1e3 * drift["height"], 1e3 * drift["deviation"]
        found.append(
            f"footholds on level ground rise by {height:.0f} ± {deviation:.0f} mm over "
            f"{drift['way']:.1f} m"
        )
    if walk["foot_speed"] is not None:
        found.append(f"feet in contact move at {1e3 * walk['foot_speed']:.1f} mm/s")
    if found:
        say(console, "; ".join(found))


def draw_base(folder: RunFolder, found: BaseRun, reference: PoseTrack | None = None) -> None:
    """Write base.png: position, orientation and velocity of the root, with the feet in contact.

    Args:
        folder: Folder of the run.
        found: The filter's run.
        reference: Poses that are drawn beside those of the run, in the same world.
    """
    times = np.array([root.time for root in found.roots])
    angles = _compute_angles(np.array([root.orientation for root in found.roots]))
    deviations = np.sqrt([np.diag(root.covariance) for root in found.roots])
    columns = [
        ("{} [m]", "xyz", np.array([root.position for root in found.roots]), 3, 1.0),
        ("{} [deg]", ("roll", "pitch", "yaw"), angles, 0, float(np.degrees(1.0))),
        ("v{} [m/s]", "xyz", np.array([root.velocity for root in found.roots]), 6, 1.0),
    ]
    rows = []
    for k in range(3):
        row = []
        for label, names, values, first, unit in columns:
            middle, wide = unit * values[:, k], unit * _SIGMAS * deviations[:, first + k]
            lines = [Line(times, middle), *make_band_lines(times, middle, wide)]
            known = None if reference is None else _find_reference_values(reference, first)
            if reference is not None and known is not None:
                named = "reference" if first == _PLACE and k == 0 else None
                lines.append(Line(reference.times, unit * known[:, k], named, REFERENCE, "--"))
            row.append(Panel(label.format(names[k]), lines))
        rows.append(row)
    title = "The root, with two standard deviations; shaded by feet in contact"
    draw_series(
        folder / "figures/base.png", rows, title=title, bands=make_result_bands(found.result)
    )


def _compute_angles(quaternions: Array) -> Array:
    """Return roll, pitch and yaw (n, 3) in rad of quaternions (n, 4) x, y, z, w, without jumps."""
    turns = Rotation.from_quat(quaternions).as_euler("ZYX")
    return np.asarray(np.unwrap(turns[:, ::-1], axis=0))


def _find_reference_values(reference: PoseTrack, first: int) -> Array | None:
    """Return what a reference says of three columns; None if it does not measure them.

    Args:
        reference: The reference.
        first: Index of the columns in a root's covariance: 0 for angles, `_PLACE` for the position.
    """
    if first == _PLACE:
        return reference.positions
    if first == 0 and reference.orientations is not None:
        return _compute_angles(reference.orientations)
    return None
