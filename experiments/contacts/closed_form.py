"""Runner of motions that are known in closed form: simulate, compare, print and draw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hybridctl.experiments.runners import tabulate
from rich.console import Console
from rich.table import Table

from hybridctl import HybridSystem, HybridTrajectory, simulate
from hybridctl.app.experiment import Check, Findings
from hybridctl.app.page.motion import Scene, write_motion
from hybridctl.app.plots import energy, forces, modes
from hybridctl.app.report import encode_event, show_progress
from hybridctl.base.checks import Array
from hybridctl.base.run_folder import RunFolder
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey

Runs = Mapping[str, HybridTrajectory]


@dataclass(frozen=True)
class Comparison:
    """A quantity as simulated and in closed form.

    Attributes:
        quantity: Its name, with its unit.
        simulated: The simulated value.
        closed_form: The value in closed form.
    """

    quantity: str
    simulated: float
    closed_form: float

    @property
    def error(self) -> float:
        """Difference, simulated minus closed form."""
        return self.simulated - self.closed_form

    def record(self) -> dict[str, Any]:
        """Return the comparison as it stands in summary.json."""
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, eq=False)
class KnownMotion:
    """A motion with its comparisons with a closed form.

    Attributes:
        system: The system.
        mode: Key of the mode at the start.
        start: State (nx,) at the start, at time 0.
        end: Time at the end, s.
        compare: Returns the comparisons of a run.
        input: Input law; None for zero input.
        title: Title of the figures of its contacts; None for no figures.
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

    Attributes:
        motions: The motions.
        title: Title of the table of comparisons.
        claim: The claim: that no quantity is farther than `within` from its closed form.
        within: Largest difference that the claim allows.
        scenes: Returns the scenes for the page.
        draw: Saves figures besides those of contacts.
        printed: Returns tables of the runs besides that of comparisons.
    """

    motions: Mapping[str, KnownMotion]
    title: str
    claim: str
    within: float
    scenes: Callable[[Runs], Sequence[Scene]]
    draw: Callable[[Runs, RunFolder], None]
    printed: Callable[[Runs], Sequence[Table]] = lambda runs: ()

    def simulate(self, rtol: float, atol: float, console: Console) -> Findings:
        """Return the findings of simulations of all motions.

        Args:
            rtol: Relative tolerance.
            atol: Absolute tolerance.
            console: Where progress is shown.
        """
        runs: dict[str, HybridTrajectory] = {}
        for name, motion in self.motions.items():
            span = (0.0, motion.end)
            with show_progress(console, *span) as begin:
                runs[name] = simulate(
                    motion.system, motion.mode, motion.start, span, motion.input,
                    rtol=rtol, atol=atol, on_zeno="rest", progress=begin(name),
                )  # fmt: skip
        found = {name: motion.compare(runs[name]) for name, motion in self.motions.items()}
        worst = max(abs(c.error) for group in found.values() for c in group)
        summary = {
            name: {
                "events": [encode_event(event) for event in runs[name].events],
                "comparisons": [comparison.record() for comparison in group],
            }
            for name, group in found.items()
        }

        def draw(folder: RunFolder) -> None:
            self.draw(runs, folder)
            write_motion(folder, self.scenes(runs))
            for name, motion in self.motions.items():
                if motion.title is not None:
                    draw_contacts(folder, f"{name}_", motion.title, runs[name])

        return Findings(
            summary,
            [*self.printed(runs), comparison_table(self.title, found)],
            [Check(self.claim, worst, self.within)],
            runs,
            draw=draw,
        )


def comparison_table(title: str, groups: Mapping[str, Sequence[Comparison]]) -> Table:
    """Return a table with one row for each comparison of each named group.

    Args:
        title: Title of the table.
        groups: Comparisons by name.
    """
    columns = {
        "quantity": "{name}: {quantity}",
        "simulated": "{simulated:.6f}",
        "closed form": "{closed_form:.6f}",
        "error": "{error:.1e}",
    }
    records = {name: [c.record() for c in group] for name, group in groups.items()}
    return tabulate(title, records, columns)


def draw_contacts(
    folder: RunFolder,
    prefix: str,
    title: str,
    run: HybridTrajectory,
    contacts: Sequence[str] | None = None,
) -> None:
    """Save modes, forces and energy of a run.

    Args:
        folder: Folder of the experiment.
        prefix: Beginning of the names of the figures.
        title: Title of the figures.
        run: The run.
        contacts: Contacts to draw, all by default; if none, only the energy is drawn.
    """
    figures = folder / "figures"
    if contacts is None or contacts:
        modes(run, figures / f"{prefix}modes.png", title=title, contacts=contacts)
        forces(run, figures / f"{prefix}forces.png", title=title, contacts=contacts)
    energy(run, figures / f"{prefix}energy.png", title=title)
