"""What `hybridctl filter` does with a legged robot: the pose of its base along a log.

The model is a robot in YAML that has an inertial sensor, `imu`::

    urdf: icub.urdf                   # beside this file, or an absolute path
    imu: {frame: root_link_imu_frame} # channels `gyroscope` and `accelerometer`, unless named here
    encoders:                         # one channel, its columns named like the joints
      joints: {deviation: 1e-3}
    contacts:                         # feet; force: the channel of a vertical one
      left: {frame: l_sole, flat: true, force: left}
      right: {frame: r_sole, flat: true, force: right}
    start:                            # may be left out
      {position: [0, 0, 0.6], heading: -3.14, standing: 3, deviations: {tilt: 0.01}}
    noise: {foot: 4.0e-3}             # see `BaseNoise`; may be left out
    settings: {touch_force: 110}      # others of `BaseSettings`; may be left out
    mapping: {channels: {...}}        # from topics or fields of a log to channels; may be left out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from rich.console import Console
from rich.markup import escape
from scipy.spatial.transform import Rotation

from hybridctl.app.page.build import finish
from hybridctl.app.plots import TRACKING, Line, Panel, series
from hybridctl.app.plots.filters import result_bands
from hybridctl.app.report import RunFolder, say, table
from hybridctl.errors import InputError
from hybridctl.estimation.judgement import Judgement, judge
from hybridctl.estimation.legged.system import BaseNoise
from hybridctl.logs import Mapping as LogMapping
from hybridctl.logs import examine, read_log
from hybridctl.logs.legged import BaseModel, BaseRun, filter_base
from hybridctl.settings import Meta, typed
from hybridctl.yaml_files import read_yaml

_SIGMAS = 2.0


class ImuEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inertial sensor: its frame, and the channels of its rates and forces."""

    frame: str
    gyroscope: str = "gyroscope"
    accelerometer: str = "accelerometer"


class AnglesEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The standard deviation of joint angles, rad."""

    deviation: float = BaseNoise.encoder


class FootEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A foot, and the channel of its vertical force."""

    frame: str
    flat: bool = False
    force: str | None = None


class BaseStartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The start of a log, see `BaseModel` and `BaseSettings`."""

    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    heading: float = 0.0
    standing: float | None = None
    deviations: dict[str, Any] | None = None


class BaseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a YAML file that describes a legged base."""

    urdf: str
    imu: ImuEntry
    encoders: Annotated[dict[str, AnglesEntry], Meta(min_length=1, max_length=1)]
    contacts: Annotated[dict[str, FootEntry], Meta(min_length=1)]
    start: BaseStartEntry = BaseStartEntry()
    noise: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    mapping: Any = None

    def model(self, changed: Mapping[str, Any]) -> BaseModel:
        """The model of the base that the file describes, with some of its settings replaced."""
        ((joints, angles),) = self.encoders.items()
        feet = list(self.contacts.values())
        values: dict[str, Any] = {
            "urdf": self.urdf,
            "channels": {
                "gyroscope": self.imu.gyroscope,
                "accelerometer": self.imu.accelerometer,
                "joints": joints,
                "loads": [foot.force for foot in feet],
            },
            "settings": {
                "inertial": self.imu.frame,
                "feet": [{"frame": foot.frame, "flat": foot.flat} for foot in feet],
                "standing": self.start.standing,
                "start": self.start.deviations,
                "noise": {"encoder": angles.deviation, **self.noise},
                **self.settings,
                **changed,
            },
            "heading": self.start.heading,
            "position": list(self.start.position),
        }
        return typed(BaseModel, values, "settings")


@dataclass(frozen=True)
class BaseFile:
    """A model from YAML, where its URDF is found from, and the mapping of its logs."""

    model: BaseModel
    path: Path
    mapping: LogMapping | None


def is_base_file(model: str) -> bool:
    """Whether a model's name is that of a YAML file of a legged base."""
    if Path(model).suffix not in (".yaml", ".yml"):
        return False
    content = read_yaml(model, "model")
    return isinstance(content, Mapping) and "imu" in content


def load_base(path: str | Path, changed: Mapping[str, Any]) -> BaseFile:
    """The model in a YAML file; changed: settings that replace those of the file.

    Raises `InputError` that names the file, the key, its value, and what would be right.
    """
    try:
        entry = typed(BaseEntry, read_yaml(path, "model"), "robot")
        mapping = None if entry.mapping is None else LogMapping.parse(entry.mapping)
        return BaseFile(entry.model(changed), Path(path), mapping)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error


def run(
    base: BaseFile,
    path: Path,
    mapping: Path | None,
    segment: int | None,
    out: Path | None,
    console: Console,
    *,
    mcap: bool = False,
    overwrite: bool = False,
    look: bool = False,
) -> dict[str, Any]:
    """Filter a log into a folder (see `RunFolder`); returns what summary.json holds."""
    log = read_log(path, mapping or base.mapping, segment=segment)
    for warning in examine(log).warnings:
        say(console, f"warning: {warning}")
    found = filter_base(log, base.model, base.path.parent)
    folder = RunFolder(f"filter-{base.path.stem}", out, overwrite=overwrite)
    folder.write_configuration(base.model, seed=None)
    judgement = judge(found.estimator.system, found.result)
    summary = summarize(base.path.stem, log.source or None, found, judgement)
    folder.write_json("summary.json", summary)
    print_tables(console, summary, judgement)
    with console.status("writing"):
        found.write(folder.path, origin_ns=log.origin_ns, mcap=mcap)
        if folder.draws:
            draw(folder, found)
    finish(folder, console, "the base of a legged robot along a log", look=look)
    return summary


def summarize(name: str, log: str | None, found: BaseRun, judgement: Judgement) -> dict[str, Any]:
    """What summary.json holds: the filter's numbers, the contacts, and where the root ended."""
    changes, last = found.estimator.contact_changes(found.result), found.roots[-1]
    return {
        "model": name,
        "log": log,
        **judgement.record(),
        "seconds_per_sample": found.result.seconds / len(found.roots),
        "touchdowns": {foot: downs for foot, (downs, _) in changes.items()},
        "lift_offs": {foot: ups for foot, (_, ups) in changes.items()},
        "flags": list(found.flags),
        "final": {
            "time": last.time,
            "position": last.position,
            "orientation": last.orientation,
            "velocity": last.velocity,
            "position_deviation": np.sqrt(np.diag(last.covariance)[3:6]),
        },
    }


def print_tables(console: Console, summary: Mapping[str, Any], judgement: Judgement) -> None:
    """Whether the filter can be trusted, contacts by foot, and what speaks against the poses."""
    cells = judgement.cells().items()
    console.print(table("Can the estimates be trusted?", ["", judgement.name], list(cells)))
    downs, ups = summary["touchdowns"], summary["lift_offs"]
    rows = [(escape(foot), str(downs[foot]), str(ups[foot])) for foot in downs]
    console.print(table("Contacts", ["foot", "touchdowns", "lift-offs"], rows))
    final = summary["final"]
    ways = zip("xyz", final["position"], final["position_deviation"], strict=True)
    where = ", ".join(f"{axis} {p:.3f} ± {s:.3f} m" for axis, p, s in ways)
    say(console, f"final position of the root, at {final['time']:.2f} s: {where}")
    say(console, judgement.verdict)
    for flag in summary["flags"]:
        say(console, f"flag: {flag}")


def draw(folder: RunFolder, found: BaseRun) -> None:
    """Write base.png: position, orientation and velocity of the root, with the feet in contact."""
    times = np.array([root.time for root in found.roots])
    turns = Rotation.from_quat([root.orientation for root in found.roots])
    angles = np.unwrap(turns.as_euler("ZYX")[:, ::-1], axis=0)
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
            edges = [Line(times, middle + s * wide, None, TRACKING, "--", 0.8) for s in (-1, 1)]
            row.append(Panel(label.format(names[k]), [Line(times, middle), *edges]))
        rows.append(row)
    (folder / "figures").mkdir(exist_ok=True)
    title = "The root, with two standard deviations; shaded by feet in contact"
    series(folder / "figures/base.png", rows, title=title, bands=result_bands(found.result))
