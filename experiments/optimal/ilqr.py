"""Iterative LQR finds its events: on a ball, a block that lands and slides, a foot and a door.

- The ball falls from 4 m and has to be at rest at a target after 1 s, with a force along its way.
  Masses, weights and the target of 3 m ("near") are those of the authors' public example of hybrid
  iLQR; the target of 1 m ("far") makes a bounce worth its while. There is a minimum for each number
  of bounces, and which one is found depends on the start: one that hovers ends without a bounce,
  one that falls ends with one, and one that is pushed down to three bounces loses two of them on
  the way in plain iterative LQR, while curvature at the events may keep it at a minimum with more.
  With the Jacobian of the reset in place of the saltation matrix the gradient is wrong, and the
  search stalls, or flees from the bounce.
- The block lands corner by corner, slides with friction and sticks, and has to stop at a target.
- The arm hits the door from a perturbed start, and has to end where the reference does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import casadi as ca
import numpy as np
from hybridctl.experiments.optimal.lqr import replace_jumps
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.experiments.runners import tabulate
from hybridctl.robots import block, rrr_door
from rich.console import Console

from hybridctl import HybridSystem, HybridTrajectory, VectorSpace, ilqr, linearize, symbolic
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, Line, Panel, draw_series
from hybridctl.app.report import report_alive
from hybridctl.base.checks import Array, format_count
from hybridctl.base.settings import Count, Meta, Positive, Settings
from hybridctl.control import QuadraticCost
from hybridctl.control.ilqr.search import OptimalMotion
from hybridctl.sensitivity import Linearization

SUMMARY = "iterative LQR that finds its events: a ball, a sliding block, a foot and a door"

GRAVITY, RESTITUTION, HEIGHT = 9.8, 0.75, 4.0  # m/s^2, 1 and m, of the public set-up
FINAL_WEIGHT, INPUT_WEIGHT = 40.0, 0.25
STARTS = {"hovers": 9.8, "falls": 0.0, "is pushed down": -100.0}  # first guess of the force, N
TARGETS = {"near": 3.0, "far": 1.0}  # heights, m


@dataclass(frozen=True)
class Config(Settings):
    """Grids and iterations, and the three motions.

    Attributes:
        intervals: Intervals of the ball.
        iterations: Greatest number of iterations of each search.
        block_intervals: Intervals of the block.
        block_target: Place where the block shall stop, m, after sliding from x = 0.
        block_speed: Its speed at the start, m/s.
        block_tilt: Its pitch at the start, rad.
        block_duration: Duration of its motion, s.
        door_intervals: Intervals of the door.
        door_start: Time of the reference at which the optimised part begins, s.
        door_end: Time at which it ends, s.
        door_shift: Angle by which the wrist is turned at its start, rad.
        rtol: Relative tolerance of the simulations of block and door.
        atol: Absolute tolerance of them.
    """

    intervals: Count = 50
    iterations: Count = 100
    block_intervals: Count = 30
    block_target: float = 0.4
    block_speed: float = 1.0
    block_tilt: float = 0.2
    block_duration: Positive = 0.6
    door_intervals: Count = 20
    door_start: Annotated[float, Meta(ge=0.0, le=0.99)] = 0.8
    door_end: Annotated[float, Meta(gt=1.0, le=2.0)] = 1.2
    door_shift: float = 0.05
    rtol: Positive = 1e-9
    atol: Positive = 1e-9


def quick(config: Config) -> Config:
    """Return the settings with coarser grids and fewer iterations."""
    return replace(config, intervals=20, iterations=15, block_intervals=8, door_intervals=5)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of searches on the ball, the block and the door."""
    with report_alive(console, "the ball"):
        balls = {name: _optimise_flight(config, *case) for name, case in _ball_cases().items()}
    with report_alive(console, "the block"):
        slid = _optimise_block(config)
    with report_alive(console, "the door"):
        found = {**balls, "block": slid, "door": _optimise_door(config)}
    summary = {name: _record(motion) for name, motion in found.items()}
    cost = {name: entry["cost"] for name, entry in summary.items()}
    bounces = {name: len(entry["events"]) for name, entry in summary.items()}
    wrong = cost["far, falls, reset only"] / cost["far, falls"]
    counts = {
        name: {
            **entry,
            "before": len(entry["first_events"]),
            "after": bounces[name],
            "steps": len(entry["iterations"]),
        }
        for name, entry in summary.items()
    }
    columns = {
        "motion": "{name}",
        "events": "{before} -> {after}",
        "cost": "{first_cost:.4g} -> {cost:.6g}",
        "iterations": "{steps}",
        "converged": "{converged}",
    }

    title = "Iterative LQR through events, first guess -> last iterate"
    return Findings(
        summary,
        [tabulate(title, counts, columns)],
        [
            *(Check(f"{t}: hovering does not bounce", bounces[f"{t}, hovers"], 0) for t in TARGETS),
            *(Check(f"{t}: falling bounces once", bounces[f"{t}, falls"], 1, 1) for t in TARGETS),
            Check("cost for the far target: reset's Jacobian alone / saltation", wrong, least=2.0),
            *(
                Check(
                    f"{n}: cost / cost of the first guess", cost[n] / summary[n]["first_cost"], 0.1
                )
                for n in ("block", "door")
            ),
        ],
        {name: found[name].trajectory for name in ("block", "door")},
        draw=lambda folder: _draw_convergence(folder / "figures/convergence.png", balls),
    )


def _ball_cases() -> dict[str, tuple[float, float, str]]:
    """Return target in m, first input in N, and method of the ball's searches, by name."""
    cases = {
        f"{target}, {start}": (height, force, "curvature")
        for target, height in TARGETS.items()
        for start, force in STARTS.items()
        if not (target == "far" and start == "is pushed down")
    }
    for method in ("plain", "reset only"):
        for target, height in TARGETS.items():
            cases[f"{target}, falls, {method}"] = (height, 0.0, method)
    cases["near, is pushed down, plain"] = (TARGETS["near"], STARTS["is pushed down"], "plain")
    return cases


def _ball() -> HybridSystem:
    """Return a ball of 1 kg above a floor, with a vertical force as its input."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    air = symbolic.SymbolicMode("air", state=x, field=[x[1], u - GRAVITY], input=u)
    bounce = symbolic.SymbolicTransition(
        "air", "floor", guard=x[0], target="air", reset=[x[0], -RESTITUTION * x[1]]
    )
    return symbolic.hybrid_system([air], [bounce])


def _optimise_flight(config: Config, target: float, force: float, method: str) -> OptimalMotion:
    """Return the flight of the ball, searched from a constant force.

    Args:
        config: Settings.
        target: Height of the target, m.
        force: First guess of the force, N.
        method: "curvature", "plain" or "reset only".
    """
    n = config.intervals
    return ilqr(
        _ball(),
        "air",
        [HEIGHT, 0.0],
        np.linspace(0.0, 1.0, n + 1),
        np.full((n + 1, 1), force),
        QuadraticCost(
            VectorSpace(2),
            [target, 0.0],
            input=INPUT_WEIGHT * np.eye(1),
            final=FINAL_WEIGHT * np.eye(2),
        ),
        max_iterations=config.iterations,
        linearizer=reset_only if method == "reset only" else linearize,
        curvature=method != "plain",
    )


def reset_only(system: HybridSystem, motion: HybridTrajectory) -> Linearization:
    """Return the wrong first-order map: the Jacobian of the reset for the saltation matrix.

    Args:
        system: System of the motion.
        motion: Motion to linearize.
    """
    return replace_jumps(linearize(system, motion), "reset")


def _optimise_block(config: Config) -> OptimalMotion:
    """Return the motion of the block, searched from a throw without any force."""
    system, n = block.system(actuated=True), config.block_intervals
    p = block.BlockParameters()
    cost = QuadraticCost(
        system.mode(OPEN).space,
        [config.block_target, 0.5 * p.height, 0.0, 0.0, 0.0, 0.0],
        input=np.diag([1e-2, 1e-2, 1.0]),
        final=np.diag([100.0, 100.0, 10.0, 1.0, 1.0, 0.1]),
    )
    return ilqr(
        system,
        OPEN,
        [0.0, p.width, config.block_tilt, config.block_speed, 0.0, 0.0],
        np.linspace(0.0, config.block_duration, n + 1),
        np.zeros((n + 1, 3)),
        cost,
        max_iterations=config.iterations,
        rtol=config.rtol,
        atol=config.atol,
    )


def _optimise_door(config: Config) -> OptimalMotion:
    """Return the motion of the arm, whose wrist is turned at the start.

    The first guess is the feedforward of the reference.

    Args:
        config: Settings.
    """
    p = rrr_door.DoorParameters()
    system = rrr_door.system(p)
    nominal = build(system, p, Design()).nominal
    times = np.linspace(config.door_start, config.door_end, config.door_intervals + 1)
    start = np.array(nominal(config.door_start))
    start[2] += config.door_shift
    cost = QuadraticCost(
        nominal.arcs[0].space,
        nominal(config.door_end),
        input=1e-4 * np.eye(3),
        final=np.diag([100.0] * 4 + [10.0] * 4),
        feedforward=lambda t: nominal.input(t),
    )
    return ilqr(
        system,
        OPEN,
        start,
        times,
        [nominal.input(t) for t in times.tolist()],
        cost,
        max_iterations=config.iterations,
        rtol=config.rtol,
        atol=config.atol,
    )


def _record(motion: OptimalMotion) -> dict[str, Any]:
    """Return a search as it stands in summary.json."""
    last = [event.guards for event in motion.rollout.events]
    steps = motion.iterations
    return {
        "cost": motion.cost,
        "slope": motion.slope,
        "events": last,
        "event_times": [event.time for event in motion.rollout.events],
        "first_cost": steps[0].cost if steps else motion.cost,
        "first_events": steps[0].events if steps else last,
        "converged": motion.converged,
        "message": motion.message,
        "iterations": [entry._asdict() for entry in steps],
    }


def _draw_convergence(path: Path, balls: Mapping[str, OptimalMotion]) -> None:
    """Save how the searches converge for balls that fall, a panel for each target."""
    panels = []
    for target in TARGETS:
        falls = {name: m for name, m in balls.items() if name.startswith(f"{target}, falls")}
        lines = [_gradient_line(name, motion) for name, motion in falls.items()]
        panels.append([Panel(f"gradient of the cost\nto the {target} target", lines, log=True)])
    title = "How searches converge (dotted: the bounce is lost)"
    draw_series(path, panels, title=title, xlabel="iteration")


def _gradient_line(name: str, motion: OptimalMotion) -> Line:
    """Return the norm of the gradient over iterations, as the search computes it.

    A search that loses its bounce converges quickly, to a motion that was not asked for: dotted.
    """
    slopes: Array = np.array([entry.slope for entry in motion.iterations] + [motion.slope])
    what, color = {
        "plain": ("without curvature at events", BASELINE),
        "reset only": ("with the reset's Jacobian", REFERENCE),
    }.get(name.split(", ")[-1], ("with saltation and curvature", TRACKING))
    bounces = len(motion.rollout.events)
    label = f"{what}: {format_count(bounces, 'bounce')}, cost {motion.cost:.3g}"
    style = "-" if bounces else ":"
    return Line(np.arange(len(slopes), dtype=np.float64), slopes, label, color, style)
