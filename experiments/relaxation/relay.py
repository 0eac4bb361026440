r"""Sliding on a guard: Filippov's solution, and the relaxed one that tends to it, [Relax] Thm 6.3.

The claims: with Filippov's field as a mode of its own, a relay and a body under dry friction slide
and let go without a hand-made mode, and the relaxed systems tend to that with an error of first
order in epsilon, through several phases of sliding. The stick mode of `mechanics` is the second
opinion for dry friction.

- relay: :math:`\ddot x = A \sin(\omega t) - k \operatorname{sign}(x + \dot x)`. On the surface
  x decays; it lets go where the forcing beats the relay.
- friction: a body on a table, :math:`\dot v = A \sin(\omega t) - \mu g \operatorname{sign} v`.

The forcing is a pair of states, so that the fields are autonomous.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import casadi as ca
import numpy as np
from hybridctl.experiments.convergence import Convergence, convergence_panel, draw_convergence
from hybridctl.robots import ball
from rich.console import Console

from hybridctl import HybridSystem, HybridTrajectory, relax, simulate, symbolic
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import BANDS, REFERENCE, Band, Line, Panel, series
from hybridctl.app.report import record_table, report_alive
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Positive, Settings
from hybridctl.relaxation import filippov
from hybridctl.relaxation.sliding import SLIDING

SUMMARY = "a relay and dry friction slide on a surface: Filippov's modes, and relaxed systems"

GRAVITY = 9.81
SAMPLES = 600
Surface = Literal["relay", "friction"]
SURFACES: tuple[Surface, ...] = ("relay", "friction")


@dataclass(frozen=True)
class Config(Settings):
    """The two systems, and the widths of their strips.

    relay: k in m/s^2. relay_forcing, friction_forcing: A in m/s^2 and omega in rad/s. friction: mu.
    start: of the relay, m and m/s. speed: of the body at first, m/s. duration: s. widths: epsilon,
    in m/s.
    """

    relay: Positive = 2.5
    relay_forcing: tuple[float, float] = (3.0, 1.2)
    friction: Positive = 0.3
    friction_forcing: tuple[float, float] = (4.0, 1.5)
    start: tuple[float, float] = (1.0, 0.0)
    speed: Positive = 0.5
    duration: Positive = 15.0
    widths: tuple[Positive, ...] = tuple(np.geomspace(1e-2, 1e-4, 7).tolist())


@dataclass(frozen=True, eq=False)
class RelayFindings:
    """What was found for one system.

    exact: Filippov's run. times (m,), states (m, n): of it. errors: the largest differences of
    relaxed runs at these times, by width. relaxed (m, n): the run of the widest strip.
    """

    exact: HybridTrajectory
    times: Array
    states: Array
    errors: Convergence
    relaxed: Array

    @property
    def phases(self) -> list[tuple[float, float]]:
        """The times at which the body slides, s."""
        arcs = self.exact.arcs
        return [(a.start, a.end) for a in arcs if a.mode[0] == SLIDING]  # type: ignore[index]


def quick(config: Config) -> Config:
    """The settings with three widths."""
    return replace(config, widths=config.widths[::3])


def system(config: Config, surface: Surface) -> HybridSystem:
    """The example of a surface, in (x, v, sin, cos), with guards there and no jump."""
    x = ca.SX.sym("x", 4)
    amplitude, rate = config.relay_forcing if surface == "relay" else config.friction_forcing
    level = config.relay if surface == "relay" else config.friction * GRAVITY
    value = x[0] + x[1] if surface == "relay" else x[1]
    modes = [
        symbolic.SymbolicMode(
            name, x, [x[1], amplitude * x[2] - sign * level, rate * x[3], -rate * x[2]]
        )
        for name, sign in (("plus", 1.0), ("minus", -1.0))
    ]
    down = symbolic.SymbolicTransition("plus", "down", value, "minus")
    up = symbolic.SymbolicTransition("minus", "up", -value, "plus")
    return symbolic.hybrid_system(modes, [down, up])


def study(config: Config, surface: Surface) -> RelayFindings:
    """Filippov's solution and the relaxed ones."""
    first = config.start if surface == "relay" else (0.0, config.speed)
    x0, span, given = (*first, 0.0, 1.0), (0.0, config.duration), system(config, surface)
    exact = simulate(filippov(given), "plus", x0, span)
    times = np.linspace(*span, SAMPLES)
    states = np.array([exact(t) for t in times.tolist()])
    found = []
    for width in config.widths:
        relaxed = relax(given, width)
        run = simulate(relaxed, "plus", x0, span)
        found.append([relaxed.map_to_system(run.arc(t).mode, t, run(t))[1] for t in times.tolist()])
    errors = np.array([np.abs(np.array(f) - states).max() for f in found])
    shrinking = Convergence(np.array(config.widths), errors)
    return RelayFindings(exact, times, states, shrinking, np.array(found[0]))


def stuck(config: Config) -> tuple[list[tuple[float, float]], Array]:
    """The time when the body sticks, by `mechanics`, s, and its positions (m,) at samples."""
    amplitude, rate = config.friction_forcing
    body = ball.system(ball.BallParameters(slope=0.0, friction=config.friction, gravity=GRAVITY))

    def force(t: float, x: Array) -> Array:
        return np.array([amplitude * np.sin(rate * t), 0.0])

    x0 = [0.0, 0.0, config.speed, 0.0]
    run = simulate(body, ("slip+",), x0, (0.0, config.duration), force)
    times = np.linspace(0.0, config.duration, SAMPLES)
    phases = [(a.start, a.end) for a in run.arcs if a.mode == ("stick",) and a.end > a.start]
    return phases, np.array([run(t)[0] for t in times.tolist()])


@experiment
def run(config: Config, console: Console) -> Findings:
    """Slide by Filippov's modes, by relaxation, and by mechanics."""
    with report_alive(console, "sliding"):
        studies: dict[str, RelayFindings] = {
            surface: study(config, surface) for surface in SURFACES
        }
        phases, positions = stuck(config)
    friction = studies["friction"]
    shrinking = {name: found.errors for name, found in studies.items()}
    orders = {name: found.order for name, found in shrinking.items()}
    errors = {name: found.errors for name, found in shrinking.items()}
    apart = float(np.abs(friction.states[:, 0] - positions).max())
    summary = {
        "order": orders["relay"],
        "friction_order": orders["friction"],
        "sliding": studies["relay"].phases,
        "sticking": friction.phases,
        "sticking_by_mechanics": phases,
        "difference_to_mechanics": apart,
        "widths": config.widths,
        "errors": errors,
    }
    rows = [
        {"name": name, "phases": len(found.phases), "errors": errors[name], "order": orders[name]}
        for name, found in studies.items()
    ]
    columns = {
        "system": "{name}",
        "phases": "{phases}",
        "error by width": "{errors:.1e}",
        "order": "{order:.3f}",
    }

    def draw(folder: RunFolder) -> None:
        for name, found in studies.items():
            draw_sliding(folder, name, found)
        panel = convergence_panel("largest difference [m, m/s]", shrinking, shrinking["relay"], 1.0)
        title = "Relaxed runs against Filippov's solution"
        draw_convergence(folder / "figures/errors.png", [panel], title, "epsilon [m/s]")

    return Findings(
        summary,
        [record_table("Relaxed runs against Filippov's solution", rows, columns)],
        [
            *(Check(f"{name}: order of the error", o, 1.1, 0.9) for name, o in orders.items()),
            Check(
                "dry friction: distance from the sticking contact mode of `mechanics` [m]",
                apart,
                1e-7,
            ),
        ],
        draw=draw,
    )


def draw_sliding(folder: RunFolder, name: str, found: RelayFindings) -> None:
    """Velocity over time, with the phases of sliding shaded."""
    bands = [Band(start, end, "slides", BANDS[1]) for start, end in found.phases]
    lines = [
        Line(found.times, found.states[:, 1], "Filippov", width=3.0),
        Line(found.times, found.relaxed[:, 1], "relaxed, widest strip", REFERENCE, "--"),
    ]
    panel = Panel("velocity [m/s]", lines, zero=True)
    series(folder / f"figures/{name}.png", [[panel]], title=f"Sliding: {name}", bands=bands)
