"""What landing costs: public robots dropped on their feet, or swung against a wall, for 0.5 s.

Each drop stands beside the same equations in Python alone, and beside MuJoCo at a step of 0.1 ms
with contacts of 0.4 ms. Errors are those of the final configuration, in m or rad, against a run at
tolerances of 1e-11. Events are not counted: how often a foot bounces within 1 us is rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import process_time

import numpy as np
from hybridctl.robots import public
from rich.table import Table

from hybridctl.app.report import make_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import HybridctlError, HybridctlWarning, InputError
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics.kernel.extension import KernelChoice, is_kernel_available
from hybridctl.mechanics.system import contact_system

END = 0.5
TILT = 0.1
PERIOD, TIME_CONSTANT = 1e-4, 4e-4  # s, of MuJoCo's steps and contacts
COLUMNS = [
    "robot",
    "velocities",
    "contacts",
    "start",
    "seconds",
    "of real time",
    "in Python",
    "error",
    "steps",
    "MuJoCo",
    "its error",
]


@dataclass
class Counter:
    """How many steps a run took."""

    steps: int = 0

    def __call__(self, t: float) -> None:
        self.steps += 1


@dataclass
class Landing:
    """One drop of a robot.

    Attributes:
        name: Name of the robot.
        start: How it starts, in words.
        x0: State (nx,) at the start.
    """

    name: str
    start: str
    x0: Array

    def run(
        self, kernel: KernelChoice = "auto", tolerance: float = 1e-9
    ) -> tuple[float, int, Array]:
        """Seconds of the processor, steps, and final configuration."""
        robot, contacts = public.robot(self.name), public.contacts(self.name)
        system = contact_system(robot, contacts, kernel=kernel)
        counter, flying = Counter(), ("open",) * len(contacts)
        settings = {"rtol": tolerance, "atol": tolerance, "max_events": 1000}
        began = process_time()
        with warnings.catch_warnings():
            # Of jams that are passed and rests: their messages are for who looks at one run.
            warnings.simplefilter("ignore", HybridctlWarning)
            run = simulate(
                system, flying, self.x0, (0.0, END), on_zeno="rest", progress=counter, **settings
            )
        return process_time() - began, counter.steps, run.final_state[: robot.nq]

    def run_mujoco(self) -> tuple[float, Array] | None:
        """Seconds and final configuration in MuJoCo, None where it is missing or refuses."""
        try:
            import mujoco

            from hybridctl.interop.mujoco import Compliance, MujocoModel
        except ImportError:
            return None
        robot, contacts = public.robot(self.name), public.contacts(self.name)
        made = MujocoModel(robot, contacts, Compliance(TIME_CONSTANT), PERIOD)
        try:
            data = mujoco.MjData(made.model)
        except InputError:  # of links without an inertia, which the engine needs
            return None
        data.qpos[:], data.qvel[:] = made.to_engine(self.x0)
        began = process_time()
        for _ in range(round(END / PERIOD)):
            mujoco.mj_step(made.model, data)
        seconds = process_time() - began
        return seconds, made.from_engine(data.qpos, data.qvel)[: robot.nq]


def landings_table(quick: bool, show: Callable[[str], None] | None = None) -> Table:
    """One run of each, in seconds of the processor; `quick`: of the lightest alone.

    show: is called with each row as it comes, as all take minutes.
    """
    rows = []
    for drop in _list_drops(quick):
        rows.append(_landing(drop, quick))
        if show is not None:
            show(", ".join(filter(None, rows[-1])))
    return make_table(f"Public robots, {END} s of landing", COLUMNS, rows)


def _list_drops(quick: bool) -> Iterator[Landing]:
    """All drops; `quick`: the first alone."""
    for name, model in public.MODELS.items():
        yield Landing(name, "level" if model.stands else "swung back", public.start(name))
        if quick:
            return
        if model.stands:
            yield Landing(name, "tilted", public.start(name, roll=TILT, pitch=TILT))


def _landing(drop: Landing, quick: bool) -> tuple[str, ...]:
    """One line: a run, or the error it ends with. `quick`: without the run at 1e-11."""
    robot, contacts = public.robot(drop.name), public.contacts(drop.name)
    about = (drop.name, str(robot.nv), str(len(contacts)), drop.start)
    try:
        # A first run has the functions made and read, which is done once.
        drop.run()
        seconds, steps, end = drop.run()
        in_python = drop.run("off")[0] if is_kernel_available() else seconds
        exact = end if quick else drop.run(tolerance=1e-11)[2]
    except HybridctlError as error:
        return (*about, type(error).__name__, *[""] * 6)
    found = drop.run_mujoco()
    beside = ("", "") if found is None else (f"{found[0]:.2f}", _error(found[1], exact))
    return (
        *about,
        f"{seconds:.2f}",
        f"{seconds / END:.1f}",
        f"{in_python:.2f}",
        "" if quick else _error(end, exact),
        str(steps),
        *beside,
    )


def _error(end: Array, exact: Array) -> str:
    """The greatest difference of two configurations."""
    return f"{float(np.abs(end - exact).max()):.0e}"
