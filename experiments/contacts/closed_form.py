"""Motions whose quantities are known in closed form: simulated, compared, printed and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings
from hybridctl.app.page.motion import Scene, write_motion
from hybridctl.app.plots import energy, forces, modes
from hybridctl.app.report import encode_event, progress, record_table
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory

Runs = Mapping[str, HybridTrajectory]


@dataclass(frozen=True)
class Comparison:
    """A quantity, named with its unit, as simulated and in closed form."""

    quantity: str
    simulated: float
    closed_form: float

    @property
    def error(self) -> float:
        """The difference, simulated minus closed form."""
        return self.simulated - self.closed_form

    def record(self) -> dict[str, Any]:
        """The comparison as it stands in summary.json."""
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, eq=False)
class KnownMotion:
    """A motion from `start` until `end` s, and what of it is compared with a closed form.

    title: of the figures of its contacts, None for none.
    """

    system: HybridSystem
    mode: ModeKey
    start: Array
    end: float
    compare: Callable[[HybridTrajectory], list[Comparison]]
    input: InputLaw | None = None
    title: str | None = None


@dataclass(frozen=True, eq=False)
class KnownMotions:
    """Motions by name, with the words and figures of their experiment.

    claim: that no quantity is farther than `within` from its closed form. printed: tables of the
    runs besides; scenes: for the page; draw: figures besides those of contacts.
    """

    motions: Mapping[str, KnownMotion]
    title: str
    claim: str
    within: float
    scenes: Callable[[Runs], Sequence[Scene]]
    draw: Callable[[Runs, RunFolder], None]
    printed: Callable[[Runs], Sequence[Table]] = lambda runs: ()

    def findings(self, rtol: float, atol: float, console: Console) -> Findings:
        """What simulation to these tolerances finds."""
        motions, runs = self.motions, dict[str, HybridTrajectory]()
        for name, motion in motions.items():
            span = (0.0, motion.end)
            with progress(console, *span) as begin:
                runs[name] = simulate(
                    motion.system, motion.mode, motion.start, span, motion.input,
                    rtol=rtol, atol=atol, on_zeno="rest", progress=begin(name),
                )  # fmt: skip
        found = {name: motion.compare(runs[name]) for name, motion in motions.items()}
        worst = max(abs(c.error) for group in found.values() for c in group)

        def draw(folder: RunFolder) -> None:
            self.draw(runs, folder)
            write_motion(folder, self.scenes(runs))
            for name, motion in motions.items():
                if motion.title is not None:
                    draw_contacts(folder, f"{name}_", motion.title, runs[name])

        return Findings(
            {name: _record(runs[name], group) for name, group in found.items()},
            [*self.printed(runs), comparison_table(self.title, found)],
            [Check(self.claim, worst, self.within)],
            runs,
            draw=draw,
        )


def _record(run: HybridTrajectory, group: Sequence[Comparison]) -> dict[str, Any]:
    """Events and comparisons of a run, for summary.json."""
    return {
        "events": [encode_event(event) for event in run.events],
        "comparisons": [comparison.record() for comparison in group],
    }


def comparison_table(title: str, groups: Mapping[str, Sequence[Comparison]]) -> Table:
    """One row for each comparison of each named group."""
    rows = [{"name": name, **c.record()} for name, group in groups.items() for c in group]
    columns = {
        "quantity": "{name}: {quantity}",
        "simulated": "{simulated:.6f}",
        "closed form": "{closed_form:.6f}",
        "error": "{error:.1e}",
    }
    return record_table(title, rows, columns)


def draw_contacts(
    folder: RunFolder,
    prefix: str,
    title: str,
    run: HybridTrajectory,
    contacts: Sequence[str] | None = None,
) -> None:
    """Save modes, forces and energy of a run, as figures whose names begin with the prefix.

    contacts: those that are drawn, all by default; of none there is the energy alone.
    """

    def path(kind: str) -> Path:
        return folder / f"figures/{prefix}{kind}.png"

    if contacts is None or contacts:
        modes(run, path("modes"), title=title, contacts=contacts)
        forces(run, path("forces"), title=title, contacts=contacts)
    energy(run, path("energy"), title=title)
