"""The gradient of a run by about 1,000 held inputs, beside the run itself.

The sweep is that of a new run: the maps of its arcs and events are made, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hybridctl.robots import ball, block, cube, public
from rich.table import Table
from scipy.spatial.transform import Rotation

import hybridctl as hc
from benchmarks.timing import measure
from hybridctl.app.report import make_table
from hybridctl.gradients import DifferentiableFlow
from hybridctl.mechanics import contact_system

UNKNOWNS = 1000


def flows(unknowns: int) -> dict[str, tuple[DifferentiableFlow, np.ndarray, np.ndarray]]:
    """A flow, its start and its inputs, by name."""
    rng, found = np.random.default_rng(0), {}
    bouncing = ball.system(ball.BallParameters(friction=0.2, restitution=0.6))
    n = unknowns // 2
    flow = hc.differentiable(bouncing, ("open",), (0.0, 1.2), holds=n)
    found["ball"] = flow, np.array([0.0, 0.5, 0.5, 0.0]), rng.normal(size=(n, 2))
    n = unknowns // 3
    landing = block.system(block.BlockParameters(), actuated=True)
    flow = hc.differentiable(landing, ("open", "open"), (0.0, 0.5), holds=n)
    start = np.array([0.0, 0.05 + 0.1 * np.sin(0.25) + 0.08, 0.25, 1.0, 0.0, 0.0])
    found["block"] = flow, start, 0.2 * rng.normal(size=(n, 3))
    n = unknowns // 6
    given = cube.CubeParameters(restitution_threshold=1e-3)
    tossed = contact_system(cube.robot(given, actuated=True), cube.contacts(given))
    flow = hc.differentiable(tossed, ("open",) * 8, (0.0, 0.24), holds=n, kink="mean")
    start = np.zeros(13)
    start[2], start[7], start[10:] = 0.2, 0.5, (1.0, 2.0, 0.5)
    start[3:7] = Rotation.from_euler("xyz", [0.3, 0.2, 0.1]).as_quat()
    found["cube"] = flow, start, 0.05 * rng.normal(size=(n, 6))
    n = unknowns // 12
    walker = hc.Robot.from_urdf(public.urdf("solo12"), root="floating")
    standing = contact_system(walker, public.contacts("solo12"))
    flow = hc.differentiable(standing, ("open",) * 4, (0.0, 0.2), holds=n, kink="mean")
    start = public.start("solo12", 0.02, 0.05, 0.03)
    found["solo12"] = flow, start, 0.1 * rng.normal(size=(n, 12))
    return found


def table_of_gradients(effort: dict[str, float], unknowns: int = UNKNOWNS) -> Table:
    """Milliseconds of runs and of their gradients, and their sum in units of the run."""
    rows = []
    for name, (flow, start, inputs) in flows(unknowns).items():

        def both(
            flow: DifferentiableFlow = flow, x: np.ndarray = start, u: np.ndarray = inputs
        ) -> None:
            tape = flow.run(x, u)
            tape.vjp(np.ones(tape.states.shape))

        def alone(
            flow: DifferentiableFlow = flow, x: np.ndarray = start, u: np.ndarray = inputs
        ) -> None:
            flow.run(x, u)

        functions: list[Callable[[], None]] = [alone, both]
        run, gradient = (measure(function, **effort).best for function in functions)
        cells = f"{run / 1e3:.1f}", f"{gradient / 1e3:.1f}", f"{gradient / run:.2f}"
        rows.append([name, *cells])
    columns = ["", "run, ms", "with gradient, ms", "ratio"]
    return make_table(f"Gradients by {unknowns} held inputs", columns, rows)
