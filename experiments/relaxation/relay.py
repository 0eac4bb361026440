r"""Relaxed systems tend to Filippov's sliding solution with an error of first order in epsilon.

[Relax] Thm 6.3, through several phases of sliding. With Filippov's field as a mode of its own, a
relay and a body under dry friction slide and let go without a hand-made mode. The stick mode of
`mechanics` is the second opinion for dry friction.

- relay: :math:`\ddot x = A \sin(\omega t) - k \operatorname{sign}(x + \dot x)`. On the surface
  x decays; it lets go where the forcing exceeds the relay.
- friction: a body on a table, :math:`\dot v = A \sin(\omega t) - \mu g \operatorname{sign} v`.

The forcing is a pair of states, so that the fields are autonomous.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import casadi as ca
import numpy as np
from hybridctl.experiments.convergence import Convergence
from hybridctl.experiments.runners import tabulate
from hybridctl.robots import ball
from rich.console import Console

from hybridctl import HybridSystem, relax, simulate, symbolic
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import BANDS, REFERENCE, Band, Line, Panel, draw_series
from hybridctl.app.report import report_alive
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Positive, Settings
from hybridctl.relaxation import filippov
from hybridctl.relaxation.sliding import SLIDING

SUMMARY = "a relay and dry friction slide on a surface: Filippov's modes, and relaxed systems"

GRAVITY = 9.81  # m/s^2
SAMPLES = 600  # times at which runs are compared; a choice
SYSTEMS = ("relay", "friction")


@dataclass(frozen=True)
class Config(Settings):
    """The two systems, and the widths of their strips.

    Attributes:
        relay: Strength k of the relay, m/s^2.
        relay_forcing: Amplitude A, m/s^2, and frequency omega, rad/s, that force the relay.
        friction: Coefficient of friction mu of the body.
        friction_forcing: Amplitude and frequency that force the body, likewise.
        start: Position, m, and velocity, m/s, of the relay at the start.
        speed: Speed of the body at the start, m/s.
        duration: Duration of the runs, s.
        widths: Widths epsilon of the strips, m/s.
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
class SlidingRuns:
    """Filippov's run of one system beside the relaxed ones.

    Attributes:
        times: Times (m,) of Filippov's run, s.
        states: States (m, 4) of it.
        phases: Intervals in which it slides, s.
        relaxed: States (m, 4) of the run of the widest strip.
        errors: Largest differences of relaxed runs at these times, by width.
    """

    times: Array
    states: Array
    phases: list[tuple[float, float]]
    relaxed: Array
    errors: Convergence


def quick(config: Config) -> Config:
    """Return the settings with three widths."""
    return replace(config, widths=config.widths[::3])


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of sliding by Filippov's modes, by relaxation, and by mechanics."""
    with report_alive(console, "sliding"):
        runs = {name: _slide(config, name) for name in SYSTEMS}
        phases, positions = _slide_by_mechanics(config)
    shrinking = {name: found.errors for name, found in runs.items()}
    orders = {name: found.order for name, found in shrinking.items()}
    errors = {name: found.errors for name, found in shrinking.items()}
    apart = float(np.abs(runs["friction"].states[:, 0] - positions).max())
    summary = {
        "order": orders["relay"],
        "friction_order": orders["friction"],
        "sliding": runs["relay"].phases,
        "sticking": runs["friction"].phases,
        "sticking_by_mechanics": phases,
        "difference_to_mechanics": apart,
        "widths": config.widths,
        "errors": errors,
    }
    title = "Relaxed runs against Filippov's solution"
    rows = {
        name: {"phases": len(found.phases), "errors": errors[name], "order": orders[name]}
        for name, found in runs.items()
    }
    columns = {
        "system": "{name}",
        "phases": "{phases}",
        "error by width": "{errors:.1e}",
        "order": "{order:.3f}",
    }

    def draw(folder: RunFolder) -> None:
        for name, found in runs.items():
            _draw_velocity(folder, name, found)

    others = "dry friction: distance from the sticking contact mode of `mechanics` [m]"
    return Findings(
        summary,
        [tabulate(title, rows, columns)],
        [
            *(Check(f"{name}: order of the error", o, 1.1, 0.9) for name, o in orders.items()),
            Check(others, apart, 1e-7),
        ],
        draw=draw,
    )


def _define_system(config: Config, name: str) -> HybridSystem:
    """Return a system in (x, v, sin, cos), whose field changes at the guard without a jump."""
    x = ca.SX.sym("x", 4)
    amplitude, rate = config.relay_forcing if name == "relay" else config.friction_forcing
    level = config.relay if name == "relay" else config.friction * GRAVITY
    value = x[0] + x[1] if name == "relay" else x[1]
    modes = [
        symbolic.SymbolicMode(
            side, x, [x[1], amplitude * x[2] - sign * level, rate * x[3], -rate * x[2]]
        )
        for side, sign in (("plus", 1.0), ("minus", -1.0))
    ]
    down = symbolic.SymbolicTransition("plus", "down", value, "minus")
    up = symbolic.SymbolicTransition("minus", "up", -value, "plus")
    return symbolic.hybrid_system(modes, [down, up])


def _slide(config: Config, name: str) -> SlidingRuns:
    """Return Filippov's solution and the relaxed runs of one system.

    Args:
        config: Settings.
        name: "relay" or "friction".
    """
    first = config.start if name == "relay" else (0.0, config.speed)
    x0, span, system = (*first, 0.0, 1.0), (0.0, config.duration), _define_system(config, name)
    exact = simulate(filippov(system), "plus", x0, span)
    times = np.linspace(*span, SAMPLES)
    states = np.array([exact(t) for t in times.tolist()])
    found = []
    for width in config.widths:
        relaxed = relax(system, width)
        run = simulate(relaxed, "plus", x0, span)
        mapped = [relaxed.map_to_system(run.arc(t).mode, t, run(t))[1] for t in times.tolist()]
        found.append(np.array(mapped))
    errors = np.array([np.abs(each - states).max() for each in found])
    phases = [(a.start, a.end) for a in exact.arcs if a.mode[0] == SLIDING]  # type: ignore[index]
    return SlidingRuns(
        times, states, phases, found[0], Convergence(np.array(config.widths), errors)
    )


def _slide_by_mechanics(config: Config) -> tuple[list[tuple[float, float]], Array]:
    """Return when the body of `mechanics` sticks, s, and its positions (m,) at the samples, m."""
    amplitude, rate = config.friction_forcing
    body = ball.system(ball.BallParameters(slope=0.0, friction=config.friction, gravity=GRAVITY))

    def force(t: float, x: Array) -> Array:
        return np.array([amplitude * np.sin(rate * t), 0.0])

    x0 = [0.0, 0.0, config.speed, 0.0]
    run = simulate(body, ("slip+",), x0, (0.0, config.duration), force)
    times = np.linspace(0.0, config.duration, SAMPLES)
    phases = [(a.start, a.end) for a in run.arcs if a.mode == ("stick",) and a.end > a.start]
    return phases, np.array([run(t)[0] for t in times.tolist()])


def _draw_velocity(folder: RunFolder, name: str, found: SlidingRuns) -> None:
    """Save the velocity over time, with the phases of sliding shaded."""
    bands = [Band(start, end, "slides", BANDS[1]) for start, end in found.phases]
    lines = [
        Line(found.times, found.states[:, 1], "Filippov", width=3.0),
        Line(found.times, found.relaxed[:, 1], "relaxed, widest strip", REFERENCE, "--"),
    ]
    panel = Panel("velocity [m/s]", lines, zero=True)
    draw_series(folder / f"figures/{name}.png", [[panel]], title=f"Sliding: {name}", bands=bands)
