"""`hybridctl simulate ROBOT.yaml`: a run of a robot, its tables, and a folder with all of it.

The folder holds what `hybridctl view` and `hybridctl plot` rebuild the run from: run.npz,
robot.urdf, and robot.yaml, which `hybridctl simulate` takes too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from hybridctl.app.page.motion import write_motion
from hybridctl.app.page.shapes import can_read_meshes
from hybridctl.app.plots.runs import draw_run, shorten_mode
from hybridctl.app.report import encode_event, make_table, report_alive, say, show_progress
from hybridctl.app.robot_file import RobotFile
from hybridctl.app.robot_run import (
    MotionSettings,
    RobotRun,
    configure_motion,
    describe_stored_robot,
    load_robot_file,
    prepare_robot_run,
    quick,
)
from hybridctl.app.view import make_scene
from hybridctl.base.checks import format_count
from hybridctl.base.errors import HybridctlWarning, InputError
from hybridctl.base.files import read_file_or_text
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import change_unassigned
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.joint_contacts import force_unit
from hybridctl.mechanics.system import closed_contacts

RUN, ROBOT, URDF = "run.npz", "robot.yaml", "robot.urdf"
"""Names of the files in the folder by which the run is rebuilt."""
_PERIOD = 1e-3
"""Sampling period of forces and torques in the tables, s. Impacts are no forces: see events."""
_SHOWN_EVENTS = 12
"""Events that are printed; all are in summary.json."""


@dataclass(frozen=True)
class RobotRequest:
    """What the command line asks for.

    Attributes:
        robot: Path of the robot's file, or the name of one that comes with hybridctl.
        config: JSON file with settings; None without one.
        settings: Texts `key=value`.
        quick: Whether tolerances are looser.
    """

    robot: str
    config: Path | None
    settings: tuple[str, ...]
    quick: bool = False

    def load(self) -> tuple[RobotFile, MotionSettings]:
        """Return the robot and the settings of the run.

        Raises:
            InputError: The file or a setting is wrong; the message names file and key.
        """
        file = load_robot_file(self.robot)
        settings = configure_motion(file, self.config, self.settings)
        if self.quick:
            settings = change_unassigned(settings, quick, self.settings)
        return file, settings


def prepare_run(request: RobotRequest) -> tuple[str, Any, str]:
    """Return the name of the run, the function that does it in a folder, and its summary.

    Args:
        request: What the command line asks for.

    Raises:
        InputError: The file or a setting is wrong.
    """
    file, settings = request.load()
    ready = prepare_robot_run(file, settings)
    name = file.path.stem
    return name, partial(run_robot, file, ready), f"{name}: {describe_start(ready)}"


def run_robot(file: RobotFile, ready: RobotRun, folder: RunFolder, console: Console) -> None:
    """Simulate a robot, print its tables, and write the folder.

    Args:
        file: The robot.
        ready: The run.
        folder: Folder of the run.
        console: Where tables, progress and warnings are printed.
    """
    settings = ready.settings
    folder.write_configuration(settings, seed=None)
    folder.write_text(URDF, read_file_or_text("urdf", file.urdf))
    stored = describe_stored_robot(file, settings, URDF)
    folder.write_text(ROBOT, yaml.safe_dump(stored, sort_keys=False, default_flow_style=None))
    for line in describe_robot(ready):
        say(console, line)
    with _say_warnings(console), show_progress(console, 0.0, settings.duration) as begin:
        run = ready.simulate(begin(f"simulating {file.path.stem}"))
    run.save(folder / RUN)
    summary = summarize(ready, run)
    folder.write_json("summary.json", {**summary, "urdf": str(file.urdf.absolute())})
    for part in make_tables(run, summary):
        console.print(part)
    if not folder.draws:
        return
    with report_alive(console, "writing figures and the page"):
        draw_run(run, folder / "figures")
        _write_motion(folder, run, ready, file, console)


def _write_motion(
    folder: RunFolder, run: HybridTrajectory, ready: RobotRun, file: RobotFile, console: Console
) -> None:
    """Write the motion for the page; links are lines where nothing is installed that reads meshes.

    Args:
        folder: Folder of the run.
        run: The run.
        ready: What was simulated.
        file: The robot.
        console: Where is said that links are lines.

    Raises:
        InputError: The motion cannot be drawn for another reason.
    """
    try:
        write_motion(folder, [make_scene(run, ready.system, urdf=file.urdf)])
    except InputError as error:
        if can_read_meshes():
            raise
        say(console, f"links are drawn as lines: {error}")
        write_motion(folder, [make_scene(run, ready.system, shapes=False)])


@contextmanager
def _say_warnings(console: Console) -> Iterator[None]:
    """Print the warnings of hybridctl in the block as lines of the run, without their place."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", HybridctlWarning)
        yield
    for warning in found:
        if issubclass(warning.category, HybridctlWarning):
            say(console, f"warning: {warning.message}")
        else:  # of other packages: shown as ever
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def describe_start(ready: RobotRun) -> str:
    """Return in words for how long a robot is simulated, and what pushes it."""
    settings = ready.settings
    push = settings.push
    pushed = "" if push is None else f", pushed at {push.body} from {push.start:g} s"
    return f"{settings.duration:g} s{pushed}"


def describe_robot(ready: RobotRun) -> list[str]:
    """Return lines that say what is simulated."""
    robot, settings = ready.system.robot, ready.settings
    contacts = [c for c in ready.system.contacts if isinstance(c, Contact)]
    lines = [
        f"{robot.nq} coordinates, {format_count(robot.nu, 'motor')}, mass {robot.mass:.4g} kg; "
        f"contacts: {', '.join(c.name for c in contacts)}"
    ]
    if robot.nu and ready.law.stiffness.any():
        ends = np.array([ready.law.stiffness, ready.law.damping])
        stiffness, damping = (
            f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
            for low, high in zip(ends.min(axis=1), ends.max(axis=1), strict=True)
        )
        lines.append(
            f"motors hold the posture with {stiffness} N m/rad and {damping} N m s/rad "
            "(N/m where joints slide)"
        )
    elif robot.nu:
        lines.append("motors hold no posture (stiffness 0)")
    if robot.friction.any() and not settings.joint_friction:
        count = format_count(int(np.count_nonzero(robot.friction)), "joint")
        lines.append(f"dry friction of {count} is left out; --set joint_friction=true has it")
    return lines


def summarize(ready: RobotRun, run: HybridTrajectory) -> dict[str, Any]:
    """Return the metrics of a run, as they stand in summary.json.

    Args:
        ready: What was simulated.
        run: Its run.
    """
    robot = ready.system.robot
    peaks = np.zeros(robot.nu)
    for arc, times in run.sampled(_PERIOD):
        peaks = np.maximum(peaks, np.abs(arc.input(times)[:, : robot.nu]).max(axis=0, initial=0.0))
    labels = ready.system.input_labels(run.final_mode)
    return {
        "duration": run.end - run.start,
        "start_mode": run.arcs[0].mode,
        "final_mode": run.final_mode,
        "final_state": dict(
            zip(ready.system.state_labels(run.final_mode), run.final_state.tolist(), strict=True)
        ),
        "events": [encode_event(event) for event in run.events],
        "contacts": measure_contacts(run),
        "peak_inputs": dict(zip(labels, peaks.tolist(), strict=True)),
        "effort": dict(zip(labels, robot.effort.tolist(), strict=True)),
    }


def measure_contacts(run: HybridTrajectory) -> list[dict[str, Any]]:
    """Return for each contact in space when it closes, how hard it is hit, pressed and slides.

    Args:
        run: A run of a robot with contacts.

    Returns:
        For each: "contact" (its name), "unit" of its force, "first_closed" in s or None, "closed",
        the time in s for which it was, "largest_force" at samples of 1 ms, "largest_impulse",
        "slid", the length in m of its way while closed, and "final_mode".
    """
    assert run.system is not None
    contacts = run.system.mechanism.contacts
    found = [
        {"contact": contact.name, "unit": force_unit(contact), "first_closed": None, "closed": 0.0}
        | {"largest_force": 0.0, "largest_impulse": 0.0, "slid": 0.0}
        for contact in contacts
    ]
    for arc, times, outputs in run.sampled_outputs(_PERIOD):
        for i in closed_contacts(arc.mode):
            entry = found[i]
            if entry["first_closed"] is None:
                entry["first_closed"] = arc.start
            entry["closed"] += arc.end - arc.start
            force = float(outputs["normal_force"][:, i].max())
            entry["largest_force"] = max(entry["largest_force"], force)
            speed = np.linalg.norm(np.atleast_2d(outputs["slip_velocity"][:, i]), axis=1)
            entry["slid"] += float(np.trapezoid(speed, times))
    for event in run.guard_events:
        for i in range(min(len(event.impulses), len(found))):
            found[i]["largest_impulse"] = max(found[i]["largest_impulse"], float(event.impulses[i]))
    # Contacts of joints come behind those in space: places in the mode are those in the list.
    shown = [entry for entry, c in zip(found, contacts, strict=True) if isinstance(c, Contact)]
    for entry, i in zip(shown, range(len(shown)), strict=True):
        entry["final_mode"] = run.final_mode[i] if isinstance(run.final_mode, tuple) else ""
    return shown


def make_tables(run: HybridTrajectory, summary: dict[str, Any]) -> list[Table | str]:
    """Return the tables of a run: its events, its contacts, and its motors.

    Args:
        run: The run.
        summary: Its metrics, of `summarize`.
    """
    found: list[Table | str] = [
        f"ends at {run.end:g} s in mode {shorten_mode(run.final_mode)} after "
        f"{format_count(len(run.guard_events), 'event')}"
    ]
    happened = [
        (
            f"{event.time:.4f}",
            _shorten(event.guards),
            shorten_mode(event.mode_after),
            f"{float(np.max(event.impulses, initial=0.0)):.3g}",
        )
        for event in run.guard_events[:_SHOWN_EVENTS]
    ]
    if happened:
        more = len(run.guard_events) - len(happened)
        title = "Events" + (
            f" (the first {len(happened)}; {more} more in summary.json)" if more else ""
        )
        columns = ["time [s]", "guards", "contacts after", "impulse [N s]"]
        found.append(make_table(title, columns, happened))
    touched = [
        (
            entry["contact"],
            "-" if entry["first_closed"] is None else f"{entry['first_closed']:.4f}",
            f"{100.0 * entry['closed'] / max(summary['duration'], 1e-300):.0f}",
            f"{entry['largest_force']:.4g}",
            f"{entry['largest_impulse']:.3g}",
            f"{1e3 * entry['slid']:.3g}",
            entry["final_mode"],
        )
        for entry in summary["contacts"]
    ]
    columns = ["contact", "first [s]", "closed [%]", "force [N]", "hit [N s]", "slid [mm]"]
    title = "Contacts: first closed, largest force and impulse, last mode"
    found.append(make_table(title, [*columns, "last"], touched))
    driven = [
        (label, f"{peak:.4g}", f"{summary['effort'][label]:.4g}")
        for label, peak in sorted(summary["peak_inputs"].items(), key=lambda item: -item[1])[:4]
    ]
    if driven:
        found.append(make_table("Motors that give most", ["motor", "peak", "limit"], driven))
    return found


def _shorten(guards: Sequence[str]) -> str:
    """Return the names of guards, or of many the first and how many more."""
    if len(guards) <= 2:
        return ", ".join(guards)
    return f"{guards[0]} and {len(guards) - 1} more"
