r"""A ball goes on past infinitely many bounces in finite time: [Relax] Fig. 8 f.

The event-driven run predicts the time of the last bounce, and the relaxed system goes on after it,
close to rest: within order 1/2 of epsilon if it is integrated exactly, since in its strip it keeps
bouncing below :math:`v_c = K(c) \sqrt{g \varepsilon}`; and with the discrete scheme of 7.7, epsilon
a hundredth of the step, nearly of first order in the step. A force that pulls lifts it off at once.

From height 1 at rest, g = 1: the last bounce is at
:math:`t_\infty = (1 + c) / (1 - c) \sqrt{2 x_0 / g}`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import numpy as np
from hybridctl.experiments.convergence import Convergence
from hybridctl.experiments.runners import sample_relaxed_run, tabulate
from rich.console import Console

import hybridctl as hc
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import REFERENCE, Line, Panel, draw_series
from hybridctl.app.report import report_alive
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings
from hybridctl.hybrid.mode import Edge, FieldJacobian, GuardJacobian, ResetJacobian
from hybridctl.relaxation.discrete import discretize_relaxed, euler
from hybridctl.relaxation.relax import Relaxed

SUMMARY = "a ball goes on past infinitely many bounces, by relaxation; errors over step and width"

GRAVITY, HEIGHT = 1.0, 1.0  # m/s^2, m
START = (HEIGHT, 0.0)
AFTER = 3.0  # s past the last bounce, over which errors are taken
MAX_STEPS = 10**7  # of a relaxed run, whose ball keeps bouncing in its strip; a choice
SHOWN_WIDTH = 1e-3  # epsilon of the run that is drawn, m

Restitution: TypeAlias = Annotated[float, Meta(ge=0.0, le=0.95)]
Several: TypeAlias = Annotated[int, Meta(ge=3)]
Width: TypeAlias = Annotated[float, Meta(gt=0.0, le=0.1)]


@dataclass(frozen=True)
class Config(Settings):
    """Restitutions, steps and widths.

    Attributes:
        restitution: Restitution of the main case.
        restitutions: Restitutions of the runs that predict their last bounce.
        steps: Number of steps of the scheme, between `shortest` and 0.1 s.
        shortest: Its shortest step, s.
        ratio: Width epsilon by the step, m/s.
        widths: Widths epsilon of the exact flows, m.
        lift_width: Width where an input pulls, m.
        pull: Acceleration by which it pulls upwards, m/s^2; more than that of gravity.
        rest: Time of rest before it pulls, s.
    """

    restitution: Annotated[float, Meta(gt=0.0, le=0.95)] = 0.5
    restitutions: tuple[Restitution, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    steps: Several = 25
    shortest: Annotated[float, Meta(gt=0.0, le=0.05)] = 1e-4
    ratio: Positive = 0.01
    widths: tuple[Width, ...] = tuple(np.geomspace(1e-2, 1e-5, 13).tolist())
    lift_width: Width = 1e-7
    pull: Annotated[float, Meta(gt=GRAVITY)] = 2.0
    rest: Positive = 2.0


def quick(config: Config) -> Config:
    """Return the settings with fewer and longer steps."""
    return replace(
        config,
        restitutions=config.restitutions[::3],
        steps=9,
        shortest=5e-4,
        widths=config.widths[::3],
        lift_width=1e-5,
    )


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings past infinitely many bounces, by events, a scheme, and exact flows."""
    c = config.restitution
    with report_alive(console, "times of the last bounce"):
        times = [(r, _predict_stop(r), _compute_last_bounce(r)) for r in config.restitutions]
    steps = np.geomspace(1e-1, config.shortest, config.steps)
    with report_alive(console, "discrete schemes"):
        errors = _scheme_errors(c, steps, config.ratio)
    with report_alive(console, "relaxed flows"):
        widths = np.array(config.widths)
        flows = Convergence(widths, np.array([_flow_error(c, width) for width in widths]))
        lifts = {str(r): _lift_off_delay(config, r) for r in (0.0, c)}
    summary = {
        "stop_time": _predict_stop(c),
        "stop_time_exact": _compute_last_bounce(c),
        "stop_times": times,
        "error_slope": errors.order,
        "steps": steps,
        "errors": errors.errors,
        "flow_slope": flows.order,
        "flow_errors": flows.errors,
        "lift_off": lifts,
    }
    late = max(abs(found - exact) for _, found, exact in times)

    def draw(folder: RunFolder) -> None:
        relaxed = hc.relax(_ball(c), SHOWN_WIDTH)
        shown = _simulate_relaxed(relaxed, _compute_last_bounce(c) + 1.0)
        samples = sample_relaxed_run(relaxed, shown, lambda a, b: np.linspace(a, b, 60), 0.0)
        _draw_ball(folder, *samples[:2], _compute_last_bounce(c))

    bounce = {
        "restitution": "{name}",
        "events": "{found:.9f}",
        "closed form": "{exact:.9f}",
        "difference": "{off:.1e}",
    }
    bounces = {f"{r:g}": {"found": a, "exact": b, "off": abs(a - b)} for r, a, b in times}
    slopes = {"Euler, in the step": errors, "relaxed flow, in epsilon": flows}
    delays = {r: {"delay": delay} for r, delay in lifts.items()}
    return Findings(
        summary,
        [
            tabulate("Last bounce [s]", bounces, bounce),
            tabulate(
                "Order of the error after the last bounce",
                {name: {"order": found.order} for name, found in slopes.items()},
                {f"c = {c:g}": "{name}", "order": "{order:.2f}"},
            ),
            tabulate(
                "Delay of the lift-off",
                delays,
                {"restitution": "{name}", "delay [s]": "{delay:.1e}"},
            ),
        ],
        [
            Check("difference of accumulation times from the closed form [s]", late, 1e-7),
            Check("order of the relaxed flow in epsilon", flows.order, 0.6, 0.4),
            Check("delay of lifting off after the pull [s]", max(lifts.values()), 0.01),
        ],
        draw=draw,
    )


def _ball(c: float) -> hc.HybridSystem:
    """Return the ball (height, velocity) with an upward input; its events may end in rest."""
    space, zero = hc.VectorSpace(2), np.zeros(2)
    slopes = FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]))
    height_slopes = GuardJacobian(np.zeros(()), np.array([1.0, 0.0]), np.zeros(1))
    matrix = np.diag([1.0, -c])
    bounce_slopes = ResetJacobian(np.zeros(2), matrix, np.zeros((2, 1)))

    def fall(t: float, x: Array, u: Array) -> Array:
        return np.array([x[1], u[0] - GRAVITY])

    air = hc.Mode("air", space, fall, 1, lambda t, x, u: slopes)
    floor = hc.Mode("floor", space, lambda t, x, u: zero, 1)
    height = hc.Guard("floor", lambda t, x, u: x[0], lambda t, x, u: height_slopes)
    bounce = hc.Reset(lambda t, x, u: matrix @ x, lambda t, x, u: bounce_slopes)
    stay = Edge(hc.Reset(lambda t, x, u: zero), "floor")
    return hc.HybridSystem([air, floor], [hc.Transition("air", height, bounce, "air", rest=stay)])


def _compute_last_bounce(c: float) -> float:
    """Return the time when a ball that is dropped has bounced for the last time, s."""
    return float((1.0 + c) / (1.0 - c) * np.sqrt(2.0 * HEIGHT / GRAVITY))


def _predict_stop(c: float) -> float:
    """Return the time of rest as an event-driven run predicts it, s."""
    span = 0.0, _compute_last_bounce(c) + 0.1
    run = hc.simulate(_ball(c), "air", START, span, on_zeno=hc.ZenoPolicy(horizon=1e-7))
    (rest,) = [event for event in run.events if event.accumulation is not None]
    return float(rest.accumulation or 0.0)


def _scheme_errors(c: float, steps: Array, ratio: float) -> Convergence:
    """Return the largest coordinate after the last bounce, by Euler's scheme, by step."""
    system, start, errors = _ball(c), _compute_last_bounce(c), []
    for h in steps:
        end = np.ceil((start + AFTER) / h) * h
        run = discretize_relaxed(hc.relax(system, ratio * h), "air", START, (0.0, end), h, euler)
        states = np.array(run.mapped_states)[run.times >= start]
        errors.append(np.abs(states).max())
    return Convergence(steps, np.array(errors))


def _flow_error(c: float, width: float) -> float:
    """Return the largest coordinate after the last bounce, of the relaxed flow."""
    start, relaxed = _compute_last_bounce(c), hc.relax(_ball(c), width)
    run = _simulate_relaxed(relaxed, start + AFTER)
    states = sample_relaxed_run(relaxed, run, lambda a, b: np.linspace(a, b, 9), start)[1]
    return float(np.abs(states).max())


def _simulate_relaxed(
    relaxed: Relaxed, end: float, policy: hc.SampledPolicy | None = None
) -> hc.HybridTrajectory:
    """Return the run of the relaxed ball until `end`, s."""
    options = hc.SimulationOptions(max_steps=MAX_STEPS)
    return hc.simulate(
        relaxed, "air", START, (0.0, end), policy, max_events=MAX_STEPS, options=options
    )


def _lift_off_delay(config: Config, c: float) -> float:
    """Return how long after the pull the ball leaves the floor, s; inf if it does not."""
    pulled = np.ceil(_compute_last_bounce(c)) + config.rest

    def law(t: float, x: Array) -> Array:
        return np.array([config.pull if t >= pulled else 0.0])

    relaxed = hc.relax(_ball(c), config.lift_width)
    run = _simulate_relaxed(relaxed, pulled + 0.5, hc.SampledPolicy(law, pulled))
    return float(run.arcs[-1].start - pulled) if run.final_mode == "air" else np.inf


def _draw_ball(folder: RunFolder, times: Array, states: Array, last: float) -> None:
    """Save height and velocity of the relaxed ball over time."""
    rows: list[list[Panel]] = []
    for values, label in zip(states.T, ("height [m]", "velocity [m/s]"), strict=True):
        height = np.array([values.min(), values.max()])
        name = None if rows else "last bounce, closed form"
        end = Line(np.full(2, last), height, name, REFERENCE, "--", 1.0)
        rows.append([Panel(label, [Line(times, values), end])])
    title = "A ball with a strip of 1 mm on its floor goes on past its last bounce"
    draw_series(folder / "figures/ball.png", rows, title=title)
