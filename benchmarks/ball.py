"""A ball that bounces seven times in 10 s, and its derivative, beside CasADi's event integrator.

`integrator("erk")` locates zero crossings and differentiates through them; its event support is
experimental, and it serves isolated events.
"""

from __future__ import annotations

import casadi as ca
import numpy as np
from rich.table import Table

import hybridctl as hc
from benchmarks.timing import measure
from hybridctl.app.report import make_table

GRAVITY, RESTITUTION, START, END = 9.81, 0.8, [10.0, 0.0], 10.0
SINGLE = 50  # balls that are simulated one by one


def ball() -> hc.HybridSystem:
    """The ball as expressions."""
    x = ca.SX.sym("x", 2)
    air = hc.symbolic.SymbolicMode("air", state=x, field=[x[1], -GRAVITY])
    bounce = hc.symbolic.SymbolicTransition(
        "air", "floor", x[0], "air", [x[0], -RESTITUTION * x[1]]
    )
    return hc.symbolic.hybrid_system([air], [bounce])


def peer() -> tuple[ca.Function, ca.Function]:
    """CasADi's integrator of the same ball, and the one with its derivative."""
    x = ca.SX.sym("x", 2)
    after = {"x": x, "post_x": ca.vertcat(x[0], -RESTITUTION * x[1])}
    names = ["index", "t", "x", "z", "p", "u"], ["post_x", "post_z"]
    options = {"transition": ca.Function("transition", after, *names), "max_events": 20}
    flow = {"x": x, "ode": ca.vertcat(x[1], -GRAVITY), "zero": x[0]}
    run = ca.integrator("run", "erk", flow, 0.0, END, options)
    return run, run.factory("derivative", ["x0"], ["xf", "jac:xf:x0"])


def balls(n: int) -> np.ndarray:
    """Starts of n balls, of 6 or 7 impacts each."""
    heights = START[0] + np.random.default_rng(0).uniform(-0.5, 0.5, n)
    return np.column_stack((heights, np.zeros(n)))


def table_of_batches(effort: dict[str, float], n: int = 1000) -> Table:
    """Milliseconds for n balls at once, beside single calls, in one run."""
    system, starts, span = ball(), balls(n), (0.0, END)

    def single(linearized: bool) -> None:
        for start in starts[:SINGLE]:
            run = hc.simulate(system, "air", start, span)
            if linearized:
                _ = hc.linearize(system, run).state_transition

    rows = []
    for name, linearized in (("simulate", False), ("simulate and linearize", True)):
        batch = measure(
            lambda on=linearized: hc.simulate_batch(system, "air", starts, span, sensitivities=on),
            **effort,
        )
        alone = measure(lambda on=linearized: single(on), **{**effort, "rounds": 1})
        one = alone.best / len(starts[:SINGLE])
        ratio = one * n / batch.best
        each = f"{batch.best / 1e3:.0f}", f"{batch.spread:.2f}", f"{one / 1e3:.2f}", f"{ratio:.0f}"
        rows.append([name, *each])
    columns = ["", "at once, ms", "max/min", "one alone, ms", "ratio"]
    return make_table(f"{n} balls, 6 or 7 impacts each", columns, rows)


def table_of_balls(effort: dict[str, float]) -> Table:
    """Milliseconds for a run, for its derivative given the run, and for both."""
    system = ball()
    run = hc.simulate(system, "air", START, (0.0, END))
    simulated = measure(lambda: hc.simulate(system, "air", START, (0.0, END)), **effort)
    derived = measure(lambda: hc.linearize(system, run).state_transition, **effort)
    alone, together = (measure(lambda f=f: f(x0=START), **effort) for f in peer())
    rows = [
        [name, f"{ours / 1e3:.2f}", f"{theirs / 1e3:.2f}", f"{ours / theirs:.2f}"]
        for name, ours, theirs in (
            ("simulate", simulated.best, alone.best),
            ("simulate and linearize", simulated.best + derived.best, together.best),
        )
    ]
    return make_table("A ball, 7 impacts", ["", "ms", "CasADi erk, ms", "ratio"], rows)
