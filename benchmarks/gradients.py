"""The gradient of a run by about 1,000 held inputs, beside the run itself.

The sweep is that of a new run: the maps of its arcs and events are made, and nothing is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from time import perf_counter

import numpy as np
from hybridctl.robots import ball, block, cube, public
from rich.table import Table
from scipy.spatial.transform import Rotation

import hybridctl as hc
from benchmarks.timing import measure
from hybridctl.app.report import make_table
from hybridctl.base.errors import NearGrazingWarning
from hybridctl.base.function_cache import find_compiler
from hybridctl.gradients import DifferentiableFlow, RunLoss, Tape
from hybridctl.mechanics import contact_system
from hybridctl.mechanics.terms.sources import TermsChoice

UNKNOWNS = 1000
TOSSES = 100
"""Number of different tosses; seconds of 1,000 are printed for as many."""
PROCESSES = 2


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
    found["toss of the cube"] = flow_of_tosses(), starts_of_tosses(1, spread=0.0)[0]
    return found


def flow_of_tosses(terms: TermsChoice = "auto") -> DifferentiableFlow:
    """A flow of the published cube until some ten impacts after it lands, by two parameters.

    Functions are machine code with terms "native", and interpreted with "generated".
    """
    given = cube.CubeParameters(restitution_threshold=1e-3)
    tossed = contact_system(cube.robot(given, actuated=True), cube.contacts(given), terms=terms)
    names = "friction", "mass:cube"
    return hc.differentiable(tossed, ("open",) * 8, (0.0, 0.24), parameters=names, kink="mean")


def starts_of_tosses(count: int, spread: float = 1.0) -> np.ndarray:
    """Initial states (count, 13) of tosses, normally distributed around one.

    Standard deviations are `spread` times 0.1 rad of rotations about x, y and z, 0.2 m/s and 0.2
    rad/s.
    """
    rng, starts = np.random.default_rng(0), np.zeros((count, 13))
    starts[:, 2] = 0.2
    angles = [0.3, 0.2, 0.1] + 0.1 * spread * rng.normal(size=(count, 3))
    starts[:, 3:7] = Rotation.from_euler("xyz", angles).as_quat()
    starts[:, 7:] = [0.5, 0.0, 0.0, 1.0, 2.0, 0.5] + 0.2 * spread * rng.normal(size=(count, 6))
    return starts


def loss_of_toss(tape: Tape) -> RunLoss:
    """Half the square of the final state, which depends on all that the run has passed."""
    return RunLoss(0.5 * float((tape.states**2).sum()), tape.states)


def table_of_tosses(count: int = TOSSES) -> Table:
    """Different tosses of the cube with gradients, in this process and in workers.

    Functions are interpreted, as in a first run, or machine code. Workers have run a batch before,
    as in training. Each batch makes its modes anew in them.
    """
    starts, rows = starts_of_tosses(count), []
    warnings.simplefilter("ignore", NearGrazingWarning)
    choices: dict[str, TermsChoice] = {"interpreted": "generated"}
    if find_compiler() is not None:
        choices["machine code"] = "native"
    with ProcessPoolExecutor(PROCESSES, initializer=_silence_grazing) as pool:
        for functions, terms in choices.items():
            flow = flow_of_tosses(terms)
            impacts = sum(len(flow.run(start).trajectory.guard_events) for start in starts)
            for where, executor in (("this process", None), (f"{PROCESSES} processes", pool)):
                best = np.inf
                for _ in range(3):
                    begun = perf_counter()
                    flow.differentiate_batch(loss_of_toss, starts, executor=executor).check()
                    best = min(best, (perf_counter() - begun) / count)
                cells = f"{impacts / count:.1f}", f"{1e3 * best:.1f}"
                rows.append([f"{functions}, {where}", *cells])
    columns = ["", "impacts of a toss", "ms of a toss, s of 1,000"]
    return make_table(f"{count} different tosses of the cube with gradients", columns, rows)


def _silence_grazing() -> None:
    warnings.simplefilter("ignore", NearGrazingWarning)


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
