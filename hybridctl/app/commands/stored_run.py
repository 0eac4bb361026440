"""`hybridctl view` and `hybridctl plot`: the page and the figures of runs that are stored.

A run is stored as a file that `HybridTrajectory.save` has written. Such a file does not hold the
system that was simulated. The folder that `hybridctl simulate ROBOT.yaml` leaves has its robot
beside it; for other files the robot is named, or the run has its states and inputs alone.
"""

from __future__ import annotations

import json
import os
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from hybridctl.app.commands.simulate_robot import ROBOT, RUN
from hybridctl.app.page.build import PAGE, render_motion
from hybridctl.app.page.html_file import HtmlFile, check_replaceable
from hybridctl.app.page.motion import MOTION
from hybridctl.app.page.transcript import Transcript
from hybridctl.app.plots.runs import draw_run, list_run_figures
from hybridctl.app.report import report_alive, say
from hybridctl.app.robot_run import configure_motion, load_robot_file, rebuild_system
from hybridctl.app.run_page import RunPage
from hybridctl.base.checks import quote
from hybridctl.base.errors import FileFormatError, FileWriteError, InputError
from hybridctl.base.run_store import SUMMARY
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory

PLOTS = "plots"
"""Folder of the figures, in the folder of a run. It is not `FIGURES`, whose files count as changed,
and are kept for ever, where another command replaces them."""
FIGURES = "figures"
"""Folder of the figures that a command draws of its own run, in the folder of the run."""
_OTHER_FILES = ("log.npz", "estimates.npz", "gains.npz")
"""Files of this suffix in folders of runs that hold no trajectory."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run from a file.

    Attributes:
        name: Name of the file without suffix.
        trajectory: The run. Its system is None where the robot is not known.
        urdf: URDF with the meshes of the robot; None for that of the robot itself.
    """

    name: str
    trajectory: HybridTrajectory
    urdf: Path | None = None


def load_stored_runs(path: Path, robot: str | None = None) -> list[StoredRun]:
    """Return the runs of a folder or of a file.

    Args:
        path: Folder of a run, or file of a trajectory.
        robot: The robot's YAML file, or the name of one that comes with hybridctl. If None, the
            robot.yaml beside the file, if it is there.

    Raises:
        InputError: There is no such folder or file, the folder holds no run, or the robot's file is
            wrong.
        FileFormatError: A file holds no run, is of another version, or is not one of the robot.
    """
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        files = _list_run_files(path)
    elif path.is_file():
        files = [path]
    else:
        raise InputError(
            f"RUN must be the folder of a run or a file of one, but {quote(str(path))} does not "
            "exist; runs go to runs/NAME-DATE-TIME unless --out names their folder"
        )
    beside = folder / ROBOT
    source = robot or (str(beside) if beside.is_file() else None)
    system = None if source is None else _load_system(source)
    urdf = _find_meshes(folder) if robot is None else None
    return [StoredRun(file.stem, HybridTrajectory.load(file, system), urdf) for file in files]


def _list_run_files(folder: Path) -> list[Path]:
    """Return the files of trajectories in a folder.

    Raises:
        InputError: There is none; the message says what the folder holds instead.
    """
    if (folder / RUN).is_file():
        return [folder / RUN]
    found = [path for path in sorted(folder.glob("*.npz")) if path.name not in _OTHER_FILES]
    if found:
        return found
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    runs = sorted(path.name for path in folder.iterdir() if (path / SUMMARY).is_file())
    if runs:
        raise InputError(
            f"{folder} is no folder of a run, but holds some: name one, such as {folder / runs[-1]}"
        )
    what = f"it has {', '.join(names[:5])}" if names else "it is empty"
    raise InputError(
        f"{folder} holds no run, that is no .npz file of a trajectory: {what}; the folders of "
        "`hybridctl simulate` have such files"
    )


def _load_system(robot: str) -> HybridSystem:
    """Return the system of a robot's YAML file, with the push of its settings."""
    file = load_robot_file(robot)
    return rebuild_system(file, configure_motion(file))


def _find_meshes(folder: Path) -> Path | None:
    """Return the URDF that a run was made of, if it is still there: it finds its meshes."""
    try:
        named = json.loads((folder / SUMMARY).read_text(encoding="utf-8")).get("urdf")
    except (OSError, ValueError, AttributeError):
        return None  # a folder without a summary, or another program's
    return Path(named) if isinstance(named, str) and Path(named).is_file() else None


def show_run(path: Path, robot: str | None, out: Path | None, *, opens: bool) -> None:
    """Show the page of a run, which is written where there is none yet.

    Args:
        path: Folder of a run, or file of a trajectory.
        robot: See `load_stored_runs`.
        out: HTML file to write. If None, the page of the folder is shown, or one is written beside
            the file.
        opens: Whether it is shown in a browser; its path is printed in any case.

    Raises:
        InputError: There is no run, or it is not known what moves.
        FileWriteError: The page would replace a file that is no page of hybridctl.
    """
    console = Transcript()
    ready = path / PAGE
    if path.is_dir() and ready.is_file() and out is None and robot is None:
        page = ready
    else:
        with report_alive(console, "writing the page"):
            page = _write_page(path, robot, out, console)
    shown = opens and webbrowser.open(page.resolve().as_uri())
    say(console, f"{'page' if shown or not opens else 'no browser was found to show'}: {page}")


def _write_page(path: Path, robot: str | None, out: Path | None, console: Console) -> Path:
    """Write the page of a run.

    Args:
        path: Folder of a run, or file of a trajectory.
        robot: See `load_stored_runs`.
        out: HTML file to write; None for one in the folder or beside the file.
        console: Where is printed what the page lacks.

    Returns:
        Path of the page.

    Raises:
        InputError: There is no run, or several.
        FileWriteError: The page would replace a file that is no page of hybridctl.
    """
    motion = path / MOTION
    target = out or (path / "view.html" if path.is_dir() else path.with_suffix(".html"))
    check_replaceable(target)
    if path.is_dir() and motion.is_file() and robot is None and not (path / ROBOT).is_file():
        # An experiment's: the motion is stored as it is drawn, whatever moves.
        content = render_motion(path.resolve().name, _read_motion(motion))
        return HtmlFile(content, target).path
    (first, *others) = load_stored_runs(path, robot)
    if others:
        names = ", ".join(each.name for each in (first, *others))
        raise InputError(
            f"{path} holds several runs ({names}): name the file of one, such as "
            f"{path / f'{first.name}.npz'}"
        )
    if first.trajectory.system is None:
        say(console, _say_what_is_missing(path))
    return RunPage(first.trajectory, urdf=first.urdf, path=target).path


def _read_motion(path: Path) -> dict[str, Any]:
    """Return the content of a motion.json.

    Raises:
        FileFormatError: It is no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or "scenes" not in content:
        raise FileFormatError(f"{path} must hold the motion of a run, got {quote(content)}")
    return content


def _say_what_is_missing(path: Path) -> str:
    """Return a line on what a run lacks without its robot, and where an experiment's figures are.

    Args:
        path: Folder of a run, or file of a trajectory.
    """
    folder = path if path.is_dir() else path.parent
    own = sorted((folder / FIGURES).glob("*.png"))
    beside = f"; what the experiment has drawn is in {folder / FIGURES}" if own else ""
    return (
        f"{path} does not say which robot moved: there are charts of states and inputs alone; "
        f"--robot ROBOT.yaml adds the motion, forces, contacts and energy{beside}"
    )


def plot_runs(path: Path, robot: str | None, out: Path | None) -> None:
    """Draw the standard figures of a run, and print where they are.

    Args:
        path: Folder of a run, or file of a trajectory.
        robot: See `load_stored_runs`.
        out: Folder for the figures. If None, `plots` in the folder, or the folder NAME-plots beside
            the file.

    Raises:
        InputError: There is no run.
        FileWriteError: A figure would replace a file that is no figure of hybridctl.
    """
    console = Transcript()
    runs = load_stored_runs(path, robot)
    if out is None:
        out = path / PLOTS if path.is_dir() else path.with_name(f"{path.stem}-{PLOTS}")
    if out.exists() and not out.is_dir():
        raise FileWriteError(f"out must be a folder for figures, but {out} is a file")
    if any(run.trajectory.system is None for run in runs):
        say(console, _say_what_is_missing(path))
    for run in runs:
        prefix = f"{run.name}_" if len(runs) > 1 else ""
        for name, _ in list_run_figures(run.trajectory):
            _check_figure(out / f"{prefix}{name}.png")
        with report_alive(console, f"drawing {run.name}"):
            names = draw_run(run.trajectory, out, prefix=prefix)
        for name in names:
            say(console, os.path.join(out, f"{name}.png"))


def _check_figure(path: Path) -> None:
    """Check that a figure replaces none but one of hybridctl, which has its .svg beside it.

    Raises:
        FileWriteError: The file is there, without such a .svg.
    """
    if os.path.lexists(path) and not path.with_suffix(".svg").is_file():
        raise FileWriteError(
            f"{path} is no figure that hybridctl has drawn, so it is kept: name another folder by "
            "--out"
        )
