r"""A double pendulum lies on its stop without a locked mode, by relaxation: [Relax] Fig. 8.

The relaxed system (Example 1), which has no locked mode, stays in its strip while an event-driven
model with that mode is locked, for an elastic stop as for a plastic one, and leaves it when the
force of the stop vanishes. The field of appendix B as printed does not, for any epsilon. Variations
through the strip are of first order.

Uniform rods with m = L = g = 1, theta_1 from the vertical, theta_2 relative and held at zero or
above by the stop; the inertia, which the paper does not print, is ours:

.. math:: M = \begin{pmatrix} 5/3 + \cos\theta_2 & 1/3 + \cos\theta_2 / 2 \\ \cdot & 1/3
   \end{pmatrix}, \qquad k = M_{12} / M_{11}\big|_{\theta_2 = 0} = 5/16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, TypeAlias

import casadi as ca
import numpy as np
from hybridctl.experiments.convergence import Convergence, measure_errors
from hybridctl.experiments.runners import sample_relaxed_run
from rich.console import Console

import hybridctl as hc
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import BANDS, CURVES, REFERENCE, TRACKING, Band, Line, Panel, draw_series
from hybridctl.app.report import make_record_table, report_alive
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings
from hybridctl.hybrid.mode import Edge, Outgoing
from hybridctl.relaxation.relax import STRIP, Relaxed

SUMMARY = "a double pendulum lies on its stop and lets go, without a locked mode, by relaxation"

KICK = 5.0 / 16.0  # k above: change of omega_1 by a change of omega_2 that the stop makes
SHORTEST_LOCK = 0.1  # s: shorter ones are brief rests of a plastic stop that lets go at once
CALM = 2.0  # times sqrt(epsilon), rad/s: remaining bounces are slower, as K(0.5) = 1.46
RTOL, ATOL = 1e-12, 1e-13  # of variations, whose remainders are down to 1e-9
PRINTED_END = 9.0  # s, of runs of the printed field, past the first release
Interval: TypeAlias = tuple[float, float]
Width: TypeAlias = Annotated[float, Meta(gt=0.0, le=0.1)]


@dataclass(frozen=True)
class Config(Settings):
    """Starts, stops and widths.

    Attributes:
        start: Angles theta_1, theta_2 at the start, at rest, degrees.
        epsilon: Width of the strips, rad.
        restitution: Restitution of the elastic stop.
        duration: Duration of the runs, s.
        variation_start: Angles at the start of the run that is varied, at rest, degrees.
        variation_epsilon: Width of its strips, rad.
        variation_duration: Its duration, s.
        sizes: Perturbations of theta_2, degrees.
        printed: Widths at which the field printed in the paper is shown, rad.
    """

    start: tuple[float, float] = (25.0, 35.0)
    epsilon: Width = 1e-6
    restitution: Annotated[float, Meta(gt=0.0, le=0.9)] = 0.5
    duration: Positive = 22.0
    variation_start: tuple[float, float] = (20.0, 2.0)
    variation_epsilon: Width = 1e-3
    variation_duration: Positive = 2.0
    sizes: tuple[Positive, ...] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03)
    printed: tuple[Positive, ...] = (1e-3, 1e-4, 1e-5)


class Stop(NamedTuple):
    """Runs on a stop of one restitution: by events, and relaxed.

    Attributes:
        exact: Run by events.
        locks: Intervals in which it is locked, s.
        times: Times (m,) of the relaxed run, s.
        states: Its states (m, 4).
        in_strip: Whether (m,) each is in a strip.
        relaxed_locks: Intervals in which the relaxed run is calm while the stop would have to push,
            s.
    """

    exact: hc.HybridTrajectory
    locks: list[Interval]
    times: Array
    states: Array
    in_strip: Array
    relaxed_locks: list[Interval]


def quick(config: Config) -> Config:
    """Return the settings with one swing, a wider strip, fewer perturbations."""
    return replace(config, epsilon=1e-4, duration=6.5, sizes=config.sizes[::2], printed=(1e-3,))


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of runs on the stop, and of variations through the strip."""
    stops = {}
    for c in (config.restitution, 0.0):
        with report_alive(console, f"restitution {c:g}"):
            stops[c] = _lie_on_stop(c, config)
    with report_alive(console, "variations"):
        remainders = _vary_through_strip(config)
        printed = {epsilon: _simulate_printed(epsilon, config) for epsilon in config.printed}
    elastic, plastic = stops[config.restitution], stops[0.0]
    summary = {
        "locked": elastic.relaxed_locks,
        "locked_by_events": elastic.locks,
        "locked_plastic": plastic.relaxed_locks,
        "locked_by_events_plastic": plastic.locks,
        "variation_slope": remainders.order,
        "variation_sizes": remainders.sizes,
        "variation_remainders": remainders.errors,
    }
    rows: list[dict[str, Any]] = [
        {"c": c, "wanted": wanted, "found": found, "late": np.subtract(found, wanted)}
        for c, stop in stops.items()
        for wanted, found in zip(stop.locks, stop.relaxed_locks, strict=True)
    ]
    columns = {
        "restitution": "{c:g}",
        "by events": "{wanted[0]:.4f} to {wanted[1]:.4f}",
        "relaxed": "{found[0]:.4f} to {found[1]:.4f}",
        "difference at lock": "{late[0]:.1e}",
        "difference at release": "{late[1]:.1e}",
    }

    def draw(folder: RunFolder) -> None:
        for c, stop in stops.items():
            _draw_stop(folder, "plastic" if c == 0.0 else "elastic", c, stop)
        _draw_printed(folder, plastic.exact, printed)
        movers = {c: Mover("links", stop.exact, _outline) for c, stop in stops.items()}
        write_motion(folder, [Scene(f"restitution {c:g}", [m]) for c, m in movers.items()])

    order = "order of the remainder of first-order variations"
    late = max((abs(row["late"][1]) for row in rows), default=0.0)
    return Findings(
        summary,
        [
            make_record_table("Times when the link is locked [s]", rows, columns),
            f"{order}: {remainders.order:.2f}",
        ],
        [
            Check("difference of release times from those by events [s]", float(late), 1e-3),
            Check(order, remainders.order, 2.2, 1.8),
        ],
        draw=draw,
    )


def _accelerations(x: Any) -> Any:
    """Return joint accelerations (2,), rad/s^2; x is theta_1, omega_1, theta_2, omega_2."""
    a, wa, b, wb = (x[i] for i in range(4))
    s, c = ca.sin(b), ca.cos(b)
    mass = ca.vertcat(
        ca.horzcat(5.0 / 3.0 + c, 1.0 / 3.0 + 0.5 * c), ca.horzcat(1.0 / 3.0 + 0.5 * c, 1.0 / 3.0)
    )
    turning = ca.vertcat(-0.5 * s * (2.0 * wa * wb + wb**2), 0.5 * s * wa**2)
    weight = ca.vertcat(1.5 * ca.sin(a) + 0.5 * ca.sin(a + b), 0.5 * ca.sin(a + b))
    return ca.solve(mass, -turning - weight)


def pendulum(c: float) -> hc.HybridSystem:
    """Return the pendulum, whose events can end in the mode `locked`.

    There the stop holds theta_2 = 0 as long as it pushes.

    Args:
        c: Restitution of the stop.
    """
    x = ca.SX.sym("x", 4)
    free = _accelerations(x)
    lying = ca.substitute(free, x[2:], ca.DM.zeros(2))
    modes = [
        hc.symbolic.SymbolicMode("free", x, [x[1], free[0], x[3], free[1]]),
        hc.symbolic.SymbolicMode("locked", x, [x[1], lying[0] + KICK * lying[1], 0.0, 0.0]),
    ]
    after = [x[0], x[1] + KICK * (1.0 + c) * x[3], x[2], -c * x[3]]
    edges = [
        hc.symbolic.SymbolicTransition("free", "stop", x[2], "free", after),
        hc.symbolic.SymbolicTransition("locked", "force", -lying[1], "free"),
    ]
    made = hc.symbolic.hybrid_system(modes, edges)
    lie = Edge(hc.Reset(lambda t, x, u: np.array([x[0], x[1] + KICK * x[3], 0.0, 0.0])), "locked")

    def outgoing(key: Any) -> Outgoing:
        way = made.outgoing(key)
        return replace(way, rest=lambda fired: lie) if key == "free" else way

    return hc.HybridSystem(made.mode, outgoing, made.guard_names)


def make_rest_state(angles: tuple[float, float]) -> Array:
    """Return the state (4,) at rest at two angles in degrees.

    Args:
        angles: theta_1 and theta_2, degrees.
    """
    first, second = np.radians(angles)
    return np.array([first, 0.0, second, 0.0])


def _lie_on_stop(c: float, config: Config) -> Stop:
    """Return runs on the stop by events and relaxed, and when each is locked."""
    system, x0, span = pendulum(c), make_rest_state(config.start), (0.0, config.duration)
    exact = hc.simulate(system, "free", x0, span, on_zeno="rest")
    locks = [
        (arc.start, arc.end)
        for arc in exact.arcs
        if arc.mode == "locked" and arc.end - arc.start > SHORTEST_LOCK
    ]
    relaxed, options = hc.relax(pendulum(c), config.epsilon), hc.SimulationOptions(max_steps=10**7)
    run = hc.simulate(relaxed, "free", x0, span, max_events=10**6, options=options)
    times, states, in_strip = sample_relaxed_run(
        relaxed, run, lambda a, b: np.linspace(a, b, max(9, int(200 * (b - a))))
    )
    found = _find_locks(times, states, CALM * np.sqrt(config.epsilon))
    return Stop(exact, locks, times, states, in_strip, found)


def _find_locks(times: Array, states: Array, calm: float) -> list[Interval]:
    """Return spans over `SHORTEST_LOCK` in which the link is calm and its stop would have to push.

    The end is where the acceleration of a free link changes its sign, between two samples.

    Args:
        times: Times (m,), s.
        states: States (m, 4).
        calm: Speed of link 2 below which it is calm, rad/s; its angle is then below the square.
    """
    x = ca.SX.sym("x", 4)
    lying = ca.substitute(_accelerations(x), x[2:], ca.DM.zeros(2))
    free = ca.Function("free", [x], [lying[1]])
    force = -np.array(free.map(len(times))(states.T)).ravel()
    still = (np.abs(states[:, 3]) <= calm) & (np.abs(states[:, 2]) <= calm**2)
    down = still & (force > 0.0)
    changes = np.flatnonzero(np.diff(down, prepend=False, append=False))
    found = []
    for start, after in zip(changes[::2], changes[1::2], strict=True):
        end = after - 1
        # a lock that lasts beyond the run has no release to compare
        if times[end] - times[start] > SHORTEST_LOCK and after < len(times):
            a, b = force[end], force[after]
            share = a / (a - b) if b <= 0.0 else 0.0
            release = times[end] + share * (times[after] - times[end])
            found.append((float(times[start]), float(release)))
    return found


def _simulate_printed(epsilon: float, config: Config) -> tuple[Array, Array]:
    """Return times and theta_2 of the plastic stop under the field as printed, (24)."""
    relaxed = hc.relax(pendulum(0.0), epsilon)
    strip = relaxed.get_strip("free", "stop")
    span = (0.0, min(config.duration, PRINTED_END))
    run = hc.simulate(_PrintedRelaxation(relaxed), "free", make_rest_state(config.start), span)
    times = np.linspace(run.start, run.end, 1801)
    angles = []
    for t in times.tolist():
        arc = run.arc(t)
        in_strip = relaxed.find_strip(arc.mode) is not None
        angles.append((strip.map_to_target(t, arc(t), np.zeros(0)) if in_strip else arc(t))[2])
    return times, np.array(angles)


class _PrintedRelaxation(hc.HybridSystem):
    """A relaxation whose auxiliary state is never held."""

    def __init__(self, relaxed: Relaxed) -> None:
        super().__init__(relaxed.mode, self._outgoing_at)
        self._relaxed = relaxed

    def _outgoing_at(self, key: Any) -> Outgoing:
        way = self._relaxed.outgoing(key)
        if self._relaxed.find_strip(key) is None:
            enter = (STRIP, key, way.guards.names[0])
            reset = hc.Reset(lambda t, x, u: np.append(x, 0.0))
            return replace(way, edge=lambda fired: Edge(reset, enter)) if key == "free" else way
        guards = way.guards
        scales = guards.scales[:2] if guards.scales is not None else None
        return replace(
            way,
            guards=replace(
                guards,
                names=guards.names[:2],  # back and through
                values=lambda t, y, u: guards.values(t, y, u)[:2],
                jacobian=None,
                scales=scales,
            ),
        )


def _vary_through_strip(config: Config) -> Convergence:
    """Return remainders of the variation by theta_2 through the strip, c = 0, over sizes in deg.

    Args:
        config: Settings.
    """
    relaxed = hc.relax(pendulum(0.0), config.variation_epsilon)
    span = (0.0, config.variation_duration)
    x0 = make_rest_state(config.variation_start)
    direction = np.array([0.0, 0.0, np.radians(1.0), 0.0])
    nominal = hc.simulate(relaxed, "free", x0, span, rtol=RTOL, atol=ATOL)
    linear = hc.linearize(relaxed, nominal, rtol=RTOL, atol=ATOL)
    strip = relaxed.get_strip("free", "stop")

    def map_end(run: hc.HybridTrajectory) -> Array:
        return relaxed.map_to_system(run.final_mode, span[1], run.final_state)[1]

    reading = np.eye(4)
    if relaxed.find_strip(nominal.final_mode) is not None:
        reading = strip.differentiate_map_to_target(span[1], nominal.final_state, np.zeros(0)).state

    def flow(size: float) -> list[Array]:
        run = hc.simulate(relaxed, "free", x0 + size * direction, span, rtol=RTOL, atol=ATOL)
        return [map_end(run) - map_end(nominal)]

    return measure_errors(flow, [reading @ linear.derivative(direction)], config.sizes)


def _outline(x: Array) -> list[Array]:
    """Return the line (3, 2) of both links, which hang where both angles are zero."""
    first, second = x[0], x[0] + x[2]
    elbow = np.array([np.sin(first), -np.cos(first)])
    tip = elbow + np.array([np.sin(second), -np.cos(second)])
    return [np.array([np.zeros(2), elbow, tip])]


def _draw_stop(folder: RunFolder, name: str, c: float, stop: Stop) -> None:
    """Save angles and velocities; samples in the strip in black, locks by events shaded."""
    bands = [Band(start, end, "locked, by events", BANDS[1]) for start, end in stop.locks]
    rows = []
    for label, entries in (("angle [deg]", (0, 2)), ("velocity [deg/s]", (1, 3))):
        lines = []
        for i, link, color in zip(
            entries, ("link 1", "link 2"), (TRACKING, REFERENCE), strict=True
        ):
            degrees = np.degrees(stop.states[:, i])
            in_strip = np.where(stop.in_strip, degrees, np.nan)
            lines.append(Line(stop.times, degrees, link, color))
            lines.append(Line(stop.times, in_strip, None, "black", width=2.4))
        rows.append([Panel(label, lines)])
    title = f"Relaxed double pendulum, c = {c:g}; black: in the strip"
    draw_series(folder / f"figures/{name}.png", rows, title=title, bands=bands)


def _draw_printed(
    folder: RunFolder, exact: hc.HybridTrajectory, printed: Mapping[float, tuple[Array, Array]]
) -> None:
    """Save theta_2 of a plastic stop, by events and under the field as printed."""
    times = next(iter(printed.values()))[0]
    truth = np.array([exact(t)[2] for t in times.tolist()])
    lines = [Line(times, np.degrees(truth), "by events", "black", width=3.0)]
    looks = zip(printed.items(), CURVES, ("-", "--", ":"), strict=False)
    for (epsilon, (t, angle)), color, style in looks:
        lines.append(Line(t, np.degrees(angle), f"as printed, epsilon = {epsilon:g}", color, style))
    title = "The field of appendix B as printed lets go too late"
    draw_series(
        folder / "figures/printed.png", [[Panel("angle of link 2 [deg]", lines)]], title=title
    )
