r"""A ball that bounces infinitely often in finite time, and past that: [Relax] Fig. 8 f.

The claims: the event-driven run predicts the time of the last bounce, and the relaxed system goes
on after it, close to rest: within order 1/2 of epsilon if it is integrated exactly, since in its
strip it goes on bouncing below :math:`v_c = K(c) \sqrt{g \varepsilon}`; and with the discrete
scheme of 7.7, epsilon a hundredth of the step, nearly of first order in the step. A force that
pulls lifts it off at once.

From height 1 at rest, g = 1: the last bounce is at
:math:`t_\infty = (1 + c) / (1 - c) \sqrt{2 x_0 / g}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from hybridctl.experiments.convergence import Convergence, convergence_panel, draw_convergence
from rich.console import Console
from rich.table import Table

from hybridctl import (
    Guard,
    HybridSystem,
    HybridTrajectory,
    Mode,
    Reset,
    SampledPolicy,
    SimulationOptions,
    Transition,
    VectorSpace,
    ZenoPolicy,
    relax,
    simulate,
)
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import REFERENCE, Line, Panel, series
from hybridctl.app.report import record_table, report_alive, table
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings
from hybridctl.hybrid.mode import Edge, FieldJacobian, GuardJacobian, ResetJacobian
from hybridctl.relaxation.discrete import (
    OneStep,
    Rate,
    discretize_relaxed,
    euler,
    runge_kutta,
)
from hybridctl.relaxation.relax import Relaxed

SUMMARY = "a ball goes on past infinitely many bounces, by relaxation; errors over step and width"

GRAVITY, HEIGHT = 1.0, 1.0
AFTER = 3.0  # s past the last bounce, over which errors are taken
START = (HEIGHT, 0.0)
SLOPES, LIFT = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]])
HEIGHT_SLOPES = np.zeros(()), np.array([1.0, 0.0]), np.zeros(1)


Restitution: TypeAlias = Annotated[float, Meta(ge=0.0, le=0.95)]
Several: TypeAlias = Annotated[int, Meta(ge=3)]
Width: TypeAlias = Annotated[float, Meta(gt=0.0, le=0.1)]


@dataclass(frozen=True)
class Config(Settings):
    """The settings: what is varied.

    restitution: of the main case. restitutions: for which the time of the last bounce is looked at;
    others: for which the scheme is. steps: how many between `shortest` and 1e-1 s; other_steps: as
    many down to 1e-3 s for other restitutions and integrators. ratio: epsilon by the step, m/s.
    widths: epsilon in m of the exact flows. lift_width: epsilon where an input pulls, by
    `pull` m/s^2, after `rest` s.
    """

    restitution: Annotated[float, Meta(gt=0.0, le=0.95)] = 0.5
    restitutions: tuple[Restitution, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    others: tuple[Restitution, ...] = (0.1, 0.7, 0.8)
    steps: Several = 25
    shortest: Annotated[float, Meta(gt=0.0, le=0.05)] = 1e-4
    other_steps: Several = 13
    ratio: Positive = 0.01
    widths: tuple[Width, ...] = tuple(np.geomspace(1e-2, 1e-5, 13).tolist())
    lift_width: Width = 1e-7
    pull: Annotated[float, Meta(gt=GRAVITY)] = 2.0
    rest: Positive = 2.0


def quick(config: Config) -> Config:
    """The settings with fewer and longer steps."""
    return replace(
        config,
        restitutions=config.restitutions[::3],
        others=config.others[:1],
        steps=9,
        shortest=5e-4,
        other_steps=5,
        widths=config.widths[::3],
        lift_width=1e-5,
    )


def ball(c: float) -> HybridSystem:
    """The ball (height, velocity) with an upward input, which knows that it can rest."""
    space = VectorSpace(2)
    air = Mode("air", space, _fall, 1, lambda t, x, u: FieldJacobian(SLOPES, LIFT))
    floor = Mode("floor", space, lambda t, x, u: np.zeros(2), 1)
    height = Guard("floor", lambda t, x, u: x[0], lambda t, x, u: GuardJacobian(*HEIGHT_SLOPES))
    matrix = np.diag([1.0, -c])
    still = ResetJacobian(np.zeros(2), matrix, np.zeros((2, 1)))
    bounce = Reset(lambda t, x, u: matrix @ x, lambda t, x, u: still)
    stay = Edge(Reset(lambda t, x, u: np.zeros(2)), "floor")
    return HybridSystem([air, floor], [Transition("air", height, bounce, "air", rest=stay)])


def _fall(t: float, x: Array, u: Array) -> Array:
    return np.array([x[1], u[0] - GRAVITY])


def last_bounce(c: float) -> float:
    """The time when a ball that is dropped has bounced for the last time, s."""
    return float((1.0 + c) / (1.0 - c) * np.sqrt(2.0 * HEIGHT / GRAVITY))


def stop_time(c: float) -> float:
    """The time of rest as an event-driven run predicts it, s."""
    span = 0.0, last_bounce(c) + 0.1
    run = simulate(ball(c), "air", START, span, on_zeno=ZenoPolicy(horizon=1e-7))
    (rest,) = [event for event in run.events if event.accumulation is not None]
    return float(rest.accumulation or 0.0)


def symplectic_euler(f: Rate, t: float, y: Array, h: float) -> Array:
    """Velocity first, and the height by the new one."""
    faster = np.append(y[:1], y[1:] + h * f(t, y)[1:])
    return np.append(y[:1] + h * f(t, faster)[:1], faster[1:])


INTEGRATORS: Mapping[str, OneStep] = {
    "Euler": euler,
    "Runge-Kutta 4": runge_kutta,
    "symplectic Euler": symplectic_euler,
}


def scheme_errors(c: float, method: OneStep, steps: Array, ratio: float) -> Convergence:
    """The largest coordinate after the last bounce, by the discrete scheme, for each step."""
    system, start, errors = ball(c), last_bounce(c), []
    for h in steps:
        end = np.ceil((start + AFTER) / h) * h
        run = discretize_relaxed(relax(system, ratio * h), "air", START, (0.0, end), h, method)
        states = np.array(run.mapped_states)[run.times >= start]
        errors.append(np.abs(states).max())
    return Convergence(steps, np.array(errors))


def flow_error(c: float, width: float) -> float:
    """The error of the relaxed flow, integrated to 1e-9."""
    start, relaxed = last_bounce(c), relax(ball(c), width)
    run = relaxed_run(relaxed, start + AFTER)
    return float(np.abs(entered(relaxed, run, start)[1]).max())


def relaxed_run(
    relaxed: Relaxed, end: float, policy: SampledPolicy | None = None
) -> HybridTrajectory:
    """The relaxed ball from its start until `end`."""
    span, many = (0.0, end), 10**7
    options = SimulationOptions(max_steps=many)
    return simulate(relaxed, "air", START, span, policy, max_events=many, options=options)


def entered(
    relaxed: Relaxed, run: HybridTrajectory, start: float, samples: int = 9
) -> tuple[Array, Array]:
    """Times (m,) from `start` on and states (m, 2) in the chart of the mode entered, by arcs."""
    times, states = [], []
    for arc in run.arcs:
        if arc.end >= start:
            own = np.linspace(max(arc.start, start), arc.end, samples)
            times.append(own)
            states += [relaxed.map_to_system(arc.mode, t, arc(t))[1] for t in own.tolist()]
    return np.concatenate(times), np.array(states)


def lift_off(config: Config, c: float) -> float:
    """How long after the input pulls the ball leaves the floor, s."""
    pulled = np.ceil(last_bounce(c)) + config.rest

    def law(t: float, x: Array) -> Array:
        return np.array([config.pull if t >= pulled else 0.0])

    relaxed = relax(ball(c), config.lift_width)
    run = relaxed_run(relaxed, pulled + 0.5, SampledPolicy(law, pulled))
    if run.final_mode != "air":
        return np.inf
    return float(run.arcs[-1].start - pulled)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Go on past infinitely many bounces, by events, by a scheme, and by exact relaxed flows."""
    c = config.restitution
    with report_alive(console, "times of the last bounce"):
        times = [(r, stop_time(r), last_bounce(r)) for r in config.restitutions]
    steps = np.geomspace(1e-1, config.shortest, config.steps)
    with report_alive(console, "discrete schemes"):
        errors = scheme_errors(c, euler, steps, config.ratio)
        others = _other_errors(config)
    with report_alive(console, "relaxed flows"):
        widths = np.array(config.widths)
        flows = Convergence(widths, np.array([flow_error(c, width) for width in widths]))
        lifts = {str(r): lift_off(config, r) for r in (0.0, c)}
    summary = {
        "stop_time": stop_time(c),
        "stop_time_exact": last_bounce(c),
        "stop_times": times,
        "error_slope": errors.order,
        "steps": steps,
        "errors": errors.errors,
        "other_slopes": {name: found.order for name, found in others.items()},
        "flow_slope": flows.order,
        "flow_errors": flows.errors,
        "lift_off": lifts,
    }

    def draw(folder: RunFolder) -> None:
        draw_errors(folder, {f"Euler, c = {c:g}": errors, **others}, flows)
        relaxed = relax(ball(c), 1e-3)
        shown = relaxed_run(relaxed, last_bounce(c) + 1.0)
        draw_ball(folder, *entered(relaxed, shown, 0.0, 60), last_bounce(c))

    return Findings(summary, tables(config, summary), checks(summary), draw=draw)


def tables(config: Config, summary: Mapping[str, Any]) -> list[Table]:
    """Times of the last bounce, orders of the errors, and how soon the ball lifts off."""
    c = config.restitution
    orders = {f"Euler, c = {c:g}": summary["error_slope"], **summary["other_slopes"]}
    orders[f"relaxed flow, in epsilon, c = {c:g}"] = summary["flow_slope"]
    times = [
        {"c": c, "found": a, "exact": b, "off": abs(a - b)} for c, a, b in summary["stop_times"]
    ]
    bounce = {
        "restitution": "{c:g}",
        "events": "{found:.9f}",
        "closed form": "{exact:.9f}",
        "difference": "{off:.1e}",
    }
    return [
        record_table("Last bounce [s]", times, bounce),
        table(
            "Order of the error after the last bounce",
            ["scheme", "order"],
            [(name, f"{order:.2f}") for name, order in orders.items()],
        ),
        table(
            "Delay of the lift-off",
            ["restitution", "delay [s]"],
            [(r, f"{delay:.1e}") for r, delay in summary["lift_off"].items()],
        ),
    ]


def checks(summary: Mapping[str, Any]) -> list[Check]:
    """Bounces end when they should, and relaxation converges as its theory says."""
    late = max(abs(found - exact) for _, found, exact in summary["stop_times"])
    lift = max(summary["lift_off"].values())
    return [
        Check("difference of accumulation times from the closed form [s]", late, 1e-7),
        Check("order of the relaxed flow in epsilon", summary["flow_slope"], 0.6, 0.4),
        Check("delay of lifting off after the pull [s]", lift, 0.01),
    ]


def _other_errors(config: Config) -> dict[str, Convergence]:
    """Errors for other restitutions and integrators, by name."""
    steps, found = np.geomspace(1e-1, 1e-3, config.other_steps), {}
    for c in config.others:
        found[f"Euler, c = {c:g}"] = scheme_errors(c, euler, steps, config.ratio)
    for name in list(INTEGRATORS)[1:]:
        errors = scheme_errors(config.restitution, INTEGRATORS[name], steps, config.ratio)
        found[f"{name}, c = {config.restitution:g}"] = errors
    return found


def draw_errors(folder: RunFolder, schemes: Mapping[str, Convergence], flows: Convergence) -> None:
    """Errors of the ball after its last bounce: of schemes over the step, of the flow."""
    label, first = "largest |x| [m, m/s]", next(iter(schemes.values()))
    panel = convergence_panel(label, schemes, first, 1.0)
    title, along = "After the last bounce, by a discrete scheme", "step h [s], epsilon = 0.01 h"
    draw_convergence(folder / "figures/scheme.png", [panel], title, along)
    panel = convergence_panel(label, {"relaxed flow": flows}, flows, 0.5)
    title = "After the last bounce, integrated exactly"
    draw_convergence(folder / "figures/flow.png", [panel], title, "epsilon [m]")


def draw_ball(folder: RunFolder, times: Array, states: Array, last: float) -> None:
    """Height and velocity of the relaxed ball over time."""
    rows: list[list[Panel]] = []
    for values, label in zip(states.T, ("height [m]", "velocity [m/s]"), strict=True):
        height = np.array([values.min(), values.max()])
        name = None if rows else "last bounce, closed form"
        end = Line(np.full(2, last), height, name, REFERENCE, "--", 1.0)
        rows.append([Panel(label, [Line(times, values), end])])
    title = "A ball with a strip of 1 mm on its floor goes on past its last bounce"
    series(folder / "figures/ball.png", rows, title=title)
