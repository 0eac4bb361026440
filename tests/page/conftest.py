"""A ball that bounces on a slope and stops, with its tables, a chart, a picture and its motion."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hybridctl.robots import ball
from matplotlib.figure import Figure

from hybridctl.app.page.build import write_page
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.page.transcript import Transcript
from hybridctl.app.plots import Band, Line, Panel, draw_series, save_figure
from hybridctl.app.report import make_table
from hybridctl.base.run_folder import RunFolder
from hybridctl.hybrid.simulate import simulate

MODEL = ball.BallParameters(mass=2.0, slope=0.2, friction=0.5)
CIRCLE = 0.02 * np.array([(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0)])


@dataclass(frozen=True)
class Config:
    slope: float = 0.2
    label: str = "<b>&"


def fall():
    """It falls, slides and stops."""
    start = [0.0, 0.3, 1.5, 0.0]
    return simulate(ball.system(MODEL), ("open",), start, (0.0, 1.2), rtol=1e-8, atol=1e-8)


def outline(x):
    return [x[:2] + CIRCLE, np.array([[0.0, 0.0], [0.1, 0.0]])]


def write_figures(folder, run):
    times = np.linspace(0.0, 1.2, 200)
    heights = np.array([run(t)[1] for t in times])
    bands = [Band(arc.start, arc.end, arc.mode[0]) for arc in run.arcs]
    panel = Panel("height [m]", [Line(times, heights, 'height of "</script>"')])
    log = Panel(r"speed [m/s$^2$]", [Line(times, 1e-3 + times, "speed", style="--")], log=True)
    draw_series(
        folder / "figures/height.png", [[panel, panel], [log]], title="Heights", bands=bands
    )
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([0, 1], [0, 1])
    save_figure(figure, folder / "figures/picture.png")


@pytest.fixture(scope="session")
def run():
    return fall()


@pytest.fixture(scope="session")
def folder(run, tmp_path_factory):
    made = RunFolder("fall <of> a ball", tmp_path_factory.mktemp("page"))
    made.write_configuration(Config(), seed=3)
    write_figures(made, run)
    mover = Mover("ball", run, outline, system=ball.system(MODEL))
    slope = np.array([[-1.0, np.tan(0.2)], [3.0, -3.0 * np.tan(0.2)]])
    write_motion(made, [Scene("The ball", [mover], [slope], ("x", "z"))])
    console = Transcript()
    console.quiet = True
    console.print(make_table("Impacts [1]", ["quantity [s]", "<value>"], [("first [s]", "0.25")]))
    console.print("no [bold]more[/bold] than that")
    parts = "Closed forms, `code`:", "- one & a half, :math:`x^2`;\n- two.", ".. math:: a < b"
    claim = "\n\n".join(["A ball stops.", *parts])
    write_page(made, console.entries, summary="a ball & a slope", claim=claim)
    return made


@pytest.fixture(scope="session")
def page(folder):
    return Path(folder / "index.html")
