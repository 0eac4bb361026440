"""The gradient of a run by about 1,000 held inputs, beside the run itself.

The sweep is that of a new run: the maps of its arcs and events are made, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

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


def flows_with_parameters() -> dict[str, tuple[DifferentiableFlow, np.ndarray]]:
    """A flow of nominal parameters and its start, by name; the toss ends after ten impacts."""
    bouncing = ball.system(ball.BallParameters(friction=0.2, restitution=0.6))
    names = "restitution:slope", "friction:slope", "mass:ball"
    flow = hc.differentiable(bouncing, ("open",), (0.0, 1.2), parameters=names)
    found = {"ball": (flow, np.array([0.0, 0.5, 0.5, 0.0]))}
    given = cube.CubeParameters(restitution_threshold=1e-3)
    tossed = contact_system(cube.robot(given, actuated=True), cube.contacts(given))
    flow = hc.differentiable(
        tossed, ("open",) * 8, (0.0, 0.24), parameters=("friction", "mass:cube"), kink="mean"
    )
    start = np.zeros(13)
    start[2], start[7], start[10:] = 0.2, 0.5, (1.0, 2.0, 0.5)
    start[3:7] = Rotation.from_euler("xyz", [0.3, 0.2, 0.1]).as_quat()
    found["toss of the cube"] = flow, start
    return found


def table_of_new_values(effort: dict[str, float]) -> Table:
    """Milliseconds of runs and of their gradients by parameters, with known and with new values.

    New ones differ by 1e-7 of themselves, so that the run is the same.
    """
    rows = []
    for name, (flow, start) in flows_with_parameters().items():
        rng, nominal = np.random.default_rng(0), flow.nominal_parameters
        assert nominal is not None
        known = nominal * (1.0 + 1e-7)  # nominal ones have the system that was given

        def call(
            is_new: bool,
            has_gradient: bool,
            flow: DifferentiableFlow = flow,
            start: np.ndarray = start,
            known: np.ndarray = known,
            rng: np.random.Generator = rng,
        ) -> None:
            values = known * (1.0 + 1e-7 * rng.normal(size=known.shape)) if is_new else known
            tape = flow.run(start, None, values)
            if has_gradient:
                tape.vjp(np.ones(tape.states.shape))

        each = [partial(call, *given) for given in product((False, True), repeat=2)]
        run, gradient, new_run, new_gradient = (measure(one, **effort).best for one in each)
        times = [f"{t / 1e3:.1f}" for t in (run, gradient, new_run, new_gradient)]
        rows.append([name, *times, f"{new_run / run:.2f}", f"{new_gradient / gradient:.2f}"])
    columns = [
        "",
        "run, ms",
        "with gradient",
        "new value",
        "with gradient",
        "ratio",
        "of gradients",
    ]
    return make_table("Gradients by parameters, and new values of them", columns, rows)
