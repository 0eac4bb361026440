"""What landing costs: public robots dropped on their feet, or swung against a wall, for 0.5 s."""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time

from hybridctl.robots import public
from rich.table import Table

from hybridctl.app.report import table
from hybridctl.base.errors import HybridctlError
from hybridctl.hybrid.simulate import simulate

END = 0.5
TILT = 0.1
COLUMNS = ["robot", "velocities", "contacts", "start", "seconds", "of real time", "steps", "events"]


@dataclass
class Counter:
    """How many steps a run took."""

    steps: int = 0

    def __call__(self, t: float) -> None:
        self.steps += 1


def landings_table(quick: bool) -> Table:
    """One run of each, in seconds of the processor; `quick`: of the lightest alone."""
    rows = []
    for name, model in public.MODELS.items():
        rows.append(_landing(name, "level" if model.stands else "swung back", 0.0))
        if quick:
            break
        if model.stands:
            rows.append(_landing(name, "tilted", TILT))
    return table(f"Public robots, {END} s of landing", COLUMNS, rows)


def _landing(name: str, start: str, tilt: float) -> tuple[str, ...]:
    """One line: a run, or the error it ends with."""
    robot, contacts, system = public.robot(name), public.contacts(name), public.system(name)
    x0 = public.start(name, roll=tilt, pitch=tilt)
    counter, flying = Counter(), ("open",) * len(contacts)
    began = process_time()
    try:
        run = simulate(
            system, flying, x0, (0.0, END), on_zeno="rest", max_events=400, progress=counter
        )
        events = str(len(run.events))
    except HybridctlError as error:
        events = type(error).__name__
    seconds = process_time() - began
    return (
        name,
        str(robot.nv),
        str(len(contacts)),
        start,
        f"{seconds:.2f}",
        f"{seconds / END:.1f}",
        str(counter.steps),
        events,
    )
