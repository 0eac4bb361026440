r"""A double pendulum whose second link falls on a stop and lies there: [Relax] Example 1, Fig. 8.

The claims: the relaxed system, which knows no locked mode, stays in its strip while an event-driven
model with that mode is locked, for an elastic stop as for a plastic one, and leaves it when the
force of the stop vanishes; the field of appendix B as printed does not, for any epsilon; and
variations through the strip are of first order.

Uniform rods with m = L = g = 1, theta_1 from the vertical, theta_2 relative and held at zero or
above by the stop; the inertia, which the paper does not print, is ours:

.. math:: M = \begin{pmatrix} 5/3 + \cos\theta_2 & 1/3 + \cos\theta_2 / 2 \\ \cdot & 1/3
   \end{pmatrix}, \qquad k = M_{12} / M_{11}\big|_{\theta_2 = 0} = 5/16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import casadi as ca
import numpy as np
from hybridctl.experiments.convergence import (
    Convergence,
    convergence,
    convergence_panel,
    draw_convergence,
)
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hybridctl import (
    HybridSystem,
    HybridTrajectory,
    Reset,
    SimulationOptions,
    linearize,
    relax,
    simulate,
    symbolic,
)
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import BANDS, CURVES, REFERENCE, TRACKING, Band, Line, Panel, series
from hybridctl.app.report import record_table, report_alive
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings
from hybridctl.hybrid.mode import Edge, Outgoing
from hybridctl.relaxation.relax import STRIP, Relaxed

SUMMARY = "a double pendulum lies on its stop and lets go, without a locked mode, by relaxation"

KICK = 5.0 / 16.0
LINKS = ((TRACKING, "link 1"), (REFERENCE, "link 2"))
LONG = 0.1  # s: shorter locks are the brief rests of a plastic stop that lets go at once
CALM = 2.0  # times sqrt(epsilon): what is left of bounces is slower (K(0.5) = 1.46), rad/s
RTOL, ATOL = 1e-12, 1e-13  # of variations, whose remainders are down to 1e-9
Interval: TypeAlias = tuple[float, float]
Flags: TypeAlias = NDArray[np.bool_]
Width: TypeAlias = Annotated[float, Meta(gt=0.0, le=0.1)]


@dataclass(frozen=True)
class Config(Settings):
    """The settings: what is simulated.

    start, variation_start: theta_1, theta_2 in degrees, at rest. epsilon, variation_epsilon: rad.
    restitution: of the elastic stop. duration, variation_duration: s. sizes: perturbations of
    theta_2 in degrees. printed: epsilon at which the printed field is shown, rad.
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


def quick(config: Config) -> Config:
    """One swing, a wider strip, fewer perturbations."""
    return replace(config, epsilon=1e-4, duration=6.5, sizes=config.sizes[::2], printed=(1e-3,))


def accelerations(x: Any) -> Any:
    """The joint accelerations (2,), rad/s^2, in the state (theta_1, omega_1, theta_2, omega_2)."""
    a, wa, b, wb = (x[i] for i in range(4))
    s, c = ca.sin(b), ca.cos(b)
    mass = ca.vertcat(
        ca.horzcat(5.0 / 3.0 + c, 1.0 / 3.0 + 0.5 * c), ca.horzcat(1.0 / 3.0 + 0.5 * c, 1.0 / 3.0)
    )
    turning = ca.vertcat(-0.5 * s * (2.0 * wa * wb + wb**2), 0.5 * s * wa**2)
    weight = ca.vertcat(1.5 * ca.sin(a) + 0.5 * ca.sin(a + b), 0.5 * ca.sin(a + b))
    return ca.solve(mass, -turning - weight)


def pendulum(c: float) -> HybridSystem:
    """The pendulum with restitution c; its events can end in the mode `locked`.

    There the stop holds theta_2 = 0 with the force that `outputs` gives, as long as it pushes.
    """
    x = ca.SX.sym("x", 4)
    free = accelerations(x)
    lying = ca.substitute(free, x[2:], ca.DM.zeros(2))
    modes = [
        symbolic.SymbolicMode("free", x, [x[1], free[0], x[3], free[1]]),
        symbolic.SymbolicMode("locked", x, [x[1], lying[0] + KICK * lying[1], 0.0, 0.0]),
    ]
    after = [x[0], x[1] + KICK * (1.0 + c) * x[3], x[2], -c * x[3]]
    edges = [
        symbolic.SymbolicTransition("free", "stop", x[2], "free", after),
        symbolic.SymbolicTransition("locked", "force", -lying[1], "free"),
    ]
    made = symbolic.hybrid_system(modes, edges)
    lie = Edge(Reset(lambda t, x, u: np.array([x[0], x[1] + KICK * x[3], 0.0, 0.0])), "locked")

    def outgoing(key: Any) -> Outgoing:
        way = made.outgoing(key)
        return replace(way, rest=lambda fired: lie) if key == "free" else way

    return HybridSystem(made.mode, outgoing, made.guard_names)


def at_rest(angles: tuple[float, float]) -> Array:
    """The state of two angles in degrees."""
    first, second = np.radians(angles)
    return np.array([first, 0.0, second, 0.0])


def locked_by_events(c: float, config: Config) -> tuple[HybridTrajectory, list[Interval]]:
    """The event-driven run and when it is locked, s."""
    run = simulate(
        pendulum(c), "free", at_rest(config.start), (0.0, config.duration), on_zeno="rest"
    )
    arcs = [arc for arc in run.arcs if arc.mode == "locked" and arc.end - arc.start > LONG]
    return run, [(arc.start, arc.end) for arc in arcs]


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A relaxed run: times (m,), states (m, 4), whether each is in the strip, and locked spans."""

    times: Array
    states: Array
    behind: Flags
    locked: list[Interval]


def relaxed_run(c: float, epsilon: float, config: Config) -> Relaxation:
    """The relaxed run; it is locked from where it has become calm until the force vanishes."""
    relaxed = relax(pendulum(c), epsilon)
    run = simulate(
        relaxed,
        "free",
        at_rest(config.start),
        (0.0, config.duration),
        max_events=10**6,
        options=SimulationOptions(max_steps=10**7),
    )
    return sampled(relaxed, run, CALM * np.sqrt(epsilon))


def sampled(relaxed: Relaxed, run: HybridTrajectory, calm: float) -> Relaxation:
    """A relaxed run in the chart of the mode entered, and its calm spans under a pushing force."""
    times, states, behind = [], [], []
    for arc in run.arcs:
        own = np.linspace(arc.start, arc.end, max(9, int(200 * (arc.end - arc.start))))
        times.append(own)
        states += [relaxed.map_to_system(arc.mode, t, arc(t))[1] for t in own.tolist()]
        behind += [relaxed.find_strip(arc.mode) is not None] * len(own)
    t, x = np.concatenate(times), np.array(states)
    still = (np.abs(x[:, 3]) <= calm) & (np.abs(x[:, 2]) <= calm**2)
    return Relaxation(t, x, np.array(behind), _held_down(t, x, still))


def _held_down(times: Array, states: Array, still: Flags) -> list[Interval]:
    """Spans over `LONG` in which the link is calm and its stop would have to push.

    The end is where the acceleration of a free link changes its sign, between two samples.
    """
    x = ca.SX.sym("x", 4)
    lying = ca.substitute(accelerations(x), x[2:], ca.DM.zeros(2))
    free = ca.Function("free", [x], [lying[1]])
    force = -np.array(free.map(len(times))(states.T)).ravel()
    down = still & (force > 0.0)
    changes = np.flatnonzero(np.diff(down, prepend=False, append=False))
    found = []
    for start, after in zip(changes[::2], changes[1::2], strict=True):
        end = after - 1
        if times[end] - times[start] > LONG and after < len(times):
            a, b = force[end], force[after]
            share = a / (a - b) if b <= 0.0 else 0.0
            release = times[end] + share * (times[after] - times[end])
            found.append((float(times[start]), float(release)))
    return found


def printed_run(c_epsilon: float, config: Config) -> tuple[Array, Array]:
    """Times and theta_2 of the plastic stop under the field as printed, (24)."""
    relaxed = relax(pendulum(0.0), c_epsilon)
    strip = relaxed.get_strip("free", "stop")
    loose = _Printed(relaxed)
    run = simulate(loose, "free", at_rest(config.start), (0.0, min(config.duration, 9.0)))
    times = np.linspace(run.start, run.end, 1801)
    angles = []
    for t in times.tolist():
        arc = run.arc(t)
        behind = relaxed.find_strip(arc.mode) is not None
        angles.append((strip.map_to_target(t, arc(t), np.zeros(0)) if behind else arc(t))[2])
    return times, np.array(angles)


class _Printed(HybridSystem):
    """A relaxation whose auxiliary state is never held."""

    def __init__(self, relaxed: Relaxed) -> None:
        super().__init__(relaxed.mode, self._outgoing_at)
        self._relaxed = relaxed

    def _outgoing_at(self, key: Any) -> Outgoing:
        way = self._relaxed.outgoing(key)
        strip = self._relaxed.find_strip(key)
        if strip is None:
            enter = (STRIP, key, way.guards.names[0])
            reset = Reset(lambda t, x, u: np.append(x, 0.0))
            return replace(way, edge=lambda fired: Edge(reset, enter)) if key == "free" else way
        names = way.guards.names[:2]  # back and through
        values = way.guards.values
        guards = replace(
            way.guards,
            names=names,
            values=lambda t, y, u: values(t, y, u)[:2],
            jacobian=None,
            scales=way.guards.scales[:2] if way.guards.scales is not None else None,
        )
        return replace(way, guards=guards)


def variations(config: Config) -> Convergence:
    """Remainders of the variation by theta_2 through the strip, c = 0, over sizes in deg."""
    relaxed = relax(pendulum(0.0), config.variation_epsilon)
    span = (0.0, config.variation_duration)
    x0, direction = at_rest(config.variation_start), np.array([0.0, 0.0, np.radians(1.0), 0.0])
    nominal = simulate(relaxed, "free", x0, span, rtol=RTOL, atol=ATOL)
    linear = linearize(relaxed, nominal, rtol=RTOL, atol=ATOL)
    strip = relaxed.get_strip("free", "stop")

    def chart(run: HybridTrajectory) -> Array:
        return relaxed.map_to_system(run.final_mode, span[1], run.final_state)[1]

    reading = np.eye(4)
    if relaxed.find_strip(nominal.final_mode) is not None:
        reading = strip.differentiate_map_to_target(span[1], nominal.final_state, np.zeros(0)).state

    def flow(size: float) -> list[Array]:
        run = simulate(relaxed, "free", x0 + size * direction, span, rtol=RTOL, atol=ATOL)
        return [chart(run) - chart(nominal)]

    return convergence(flow, [reading @ linear.derivative(direction)], config.sizes)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Lie on the stop by events and by relaxation, and vary what goes through the strip."""
    cases = {}
    for c in (config.restitution, 0.0):
        with report_alive(console, f"restitution {c:g}"):
            exact, locks = locked_by_events(c, config)
            cases[c] = exact, locks, relaxed_run(c, config.epsilon, config)
    with report_alive(console, "variations"):
        remainders = variations(config)
        printed = {epsilon: printed_run(epsilon, config) for epsilon in config.printed}
    elastic, plastic = cases[config.restitution], cases[0.0]
    summary = {
        "locked": elastic[2].locked,
        "locked_by_events": elastic[1],
        "locked_plastic": plastic[2].locked,
        "locked_by_events_plastic": plastic[1],
        "variation_slope": remainders.order,
        "variation_sizes": remainders.sizes,
        "variation_remainders": remainders.errors,
    }
    pairs = [
        (c, wanted, found)
        for c, (_, locks, relaxed) in cases.items()
        for wanted, found in zip(locks, relaxed.locked, strict=True)
    ]
    late = max((abs(found[1] - wanted[1]) for _, wanted, found in pairs), default=0.0)

    def draw(folder: RunFolder) -> None:
        for c, (_, locks, relaxed) in cases.items():
            name = "plastic" if c == 0.0 else "elastic"
            draw_locked(folder, name, relaxed, locks, f"c = {c:g}")
        label, title = "largest entry [rad, rad/s]", "Variation through the strip, as entered"
        panel = convergence_panel(label, {"remainder": remainders}, remainders, 2.0)
        along = "perturbation of theta_2 [deg]"
        draw_convergence(folder / "figures/variations.png", [panel], title, along)
        draw_printed(folder, plastic[0], printed)
        movers = {c: Mover("links", exact, _links) for c, (exact, *_) in cases.items()}
        write_motion(folder, [Scene(f"restitution {c:g}", [m]) for c, m in movers.items()])

    return Findings(
        summary,
        [
            locked_table(pairs),
            f"order of the remainder of first-order variations: {remainders.order:.2f}",
        ],
        [
            Check("difference of release times from those by events [s]", late, 1e-3),
            Check("order of the remainder of first-order variations", remainders.order, 2.2, 1.8),
        ],
        draw=draw,
    )


def locked_table(pairs: Sequence[tuple[float, Interval, Interval]]) -> Table:
    """Restitution, and when the link was locked, by events and relaxed."""
    rows = [
        {"c": c, "wanted": wanted, "found": found, "late": np.subtract(found, wanted)}
        for c, wanted, found in pairs
    ]
    columns = {
        "restitution": "{c:g}",
        "by events": "{wanted[0]:.4f} to {wanted[1]:.4f}",
        "relaxed": "{found[0]:.4f} to {found[1]:.4f}",
        "difference at lock": "{late[0]:.1e}",
        "difference at release": "{late[1]:.1e}",
    }
    return record_table("Times when the link is locked [s]", rows, columns)


def _links(x: Array) -> list[Array]:
    """The lines of both links, hanging where both angles are zero."""
    first, second = x[0], x[0] + x[2]
    elbow = np.array([np.sin(first), -np.cos(first)])
    tip = elbow + np.array([np.sin(second), -np.cos(second)])
    return [np.array([np.zeros(2), elbow, tip])]


def draw_locked(
    folder: RunFolder, name: str, found: Relaxation, locks: list[tuple[float, float]], title: str
) -> None:
    """Angles and velocities; what is behind the stop in black, locks by events shaded."""
    bands = [Band(start, end, "locked, by events", BANDS[1]) for start, end in locks]
    rows = [
        [Panel("angle [deg]", _of_links(found, (0, 2)))],
        [Panel("velocity [deg/s]", _of_links(found, (1, 3)))],
    ]
    title = f"Relaxed double pendulum, {title}; black: in the strip"
    series(folder / f"figures/{name}.png", rows, title=title, bands=bands)


def _of_links(found: Relaxation, entries: tuple[int, int]) -> list[Line]:
    """Entries of the state of both links, in degrees, black where they are in the strip."""
    lines = []
    for entry, (color, name) in zip(entries, LINKS, strict=True):
        degrees = np.degrees(found.states[:, entry])
        behind = np.where(found.behind, degrees, np.nan)
        lines += [
            Line(found.times, degrees, name, color),
            Line(found.times, behind, None, "black", width=2.4),
        ]
    return lines


def draw_printed(
    folder: RunFolder, exact: HybridTrajectory, printed: Mapping[float, tuple[Array, Array]]
) -> None:
    """Draw theta_2 of a plastic stop, by events and under the field as printed."""
    times = next(iter(printed.values()))[0]
    truth = np.array([exact(t)[2] for t in times.tolist()])
    lines = [Line(times, np.degrees(truth), "by events", "black", width=3.0)]
    for (epsilon, (t, angle)), color, style in zip(
        printed.items(), CURVES, ("-", "--", ":"), strict=False
    ):
        lines.append(Line(t, np.degrees(angle), f"as printed, epsilon = {epsilon:g}", color, style))
    title = "The field of appendix B as printed lets go too late"
    series(folder / "figures/printed.png", [[Panel("angle of link 2 [deg]", lines)]], title=title)
