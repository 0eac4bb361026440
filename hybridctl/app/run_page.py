"""The page of one run: its motion, its events, and charts of states, inputs, contacts, energy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from hybridctl.app.page.build import render_run_page
from hybridctl.app.page.html_file import HtmlFile
from hybridctl.app.plots.runs import list_run_figures
from hybridctl.app.report import make_table
from hybridctl.app.view import find_robot, make_scene
from hybridctl.base.checks import check_instance, format_count
from hybridctl.base.errors import InputError
from hybridctl.base.tables import format_mode
from hybridctl.control.reference import Reference
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.multibody.robot import Robot

_COLUMNS = ("time s", "guards", "mode after", "impulses N s")


class RunPage(HtmlFile):
    """The page of a run, as one HTML file that needs no network and no server.

    It shows the motion of a robot as `View` does, a table of the events, and charts that can be
    zoomed: states, inputs, energy and momentum of a robot, and forces and gaps of contacts that
    close.

    Args:
        run: The run.
        robot: What moves, see `View`. If None, the robot of the system that was simulated; a run
            without one has no motion.
        reference: Another motion of the same robot, drawn beside it.
        estimate: An estimate of the same robot, see `View`.
        urdf: Path of the URDF with the meshes, or its text, see `View`.
        packages: Folders that hold what `package://` names.
        title: Title of the page. If None, the name of the robot, or "Run" without one.
        path: HTML file to write. If None, a new one among the temporary files, which `close`
            removes.

    Attributes:
        run: The run.

    Raises:
        InputError: States are not those of the robot, a mesh is to be drawn and `hybridctl[view]`
            is not installed, or a reference or an estimate is given without a robot.
        FileFormatError: Shapes or meshes cannot be read.
        FileWriteError: The page cannot be written.
        UnknownNameError: The path does not end in .html or .htm.
    """

    def __init__(
        self,
        run: HybridTrajectory,
        robot: Robot | HybridSystem | None = None,
        *,
        reference: HybridTrajectory | Reference | None = None,
        estimate: FilterResult | None = None,
        urdf: str | os.PathLike[str] | None = None,
        packages: Sequence[str | os.PathLike[str]] = (),
        title: str | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.run = check_instance("run", run, HybridTrajectory)
        system = run.system
        if robot is None and system is not None and system.mechanism is not None:
            robot = system
        scenes = []
        if robot is not None:
            scenes = [
                make_scene(
                    run, robot, reference=reference, estimate=estimate, urdf=urdf, packages=packages
                )
            ]
        elif reference is not None or estimate is not None:
            raise InputError("robot must be given for a reference or an estimate to be drawn")
        if title is None:
            title = "Run" if robot is None else find_robot(robot).model.name
        summary = (
            f"{run.start:.6g} to {run.end:.6g} s, {format_count(len(run.events), 'event')}, "
            f"ends in mode {format_mode(run.final_mode)}"
        )
        with TemporaryDirectory(prefix="hybridctl-") as folder:
            charts = list(_draw_charts(run, Path(folder)))
            content = render_run_page(title, summary, scenes, [_make_event_table(run)], charts)
        super().__init__(content, path)


page = RunPage


def _make_event_table(run: HybridTrajectory) -> Table:
    """Return the events of a run, one in each row; a change of the input has no guards."""
    rows = [
        (
            f"{event.time:.6f}",
            ", ".join(event.guards) or "(the input changes)",
            format_mode(event.mode_after),
            ", ".join(f"{impulse:.4g}" for impulse in event.impulses if event.impulses.any()),
        )
        for event in run.events
    ]
    return make_table(format_count(len(rows), "event"), _COLUMNS, rows)


def _draw_charts(run: HybridTrajectory, folder: Path) -> Iterator[Path]:
    """Yield files (.json) with the series of the charts of a run, written into a folder."""
    for name, draw in list_run_figures(run):
        path = folder / f"{name}.json"
        draw(run, path)
        yield path
