"""Simulated quantities beside their closed forms, as tables and as summary.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from hybridctl.app.experiment import Check
from hybridctl.app.plots import energy, forces, modes
from hybridctl.app.report import event_record, table
from hybridctl.hybrid.trajectory import HybridTrajectory


@dataclass(frozen=True)
class Comparison:
    """A quantity, named with its unit, as simulated and in closed form."""

    quantity: str
    simulated: float
    closed_form: float

    @property
    def error(self) -> float:
        """Simulated minus closed form."""
        return self.simulated - self.closed_form

    def record(self) -> dict[str, Any]:
        """The comparison as it stands in summary.json."""
        return {**asdict(self), "error": self.error}


def compared_summary(
    runs: Mapping[str, HybridTrajectory], groups: Mapping[str, Sequence[Comparison]]
) -> dict[str, Any]:
    """Events and comparisons of each run, for summary.json."""
    return {
        name: {
            "events": [event_record(event) for event in runs[name].events],
            "comparisons": [comparison.record() for comparison in group],
        }
        for name, group in groups.items()
    }


def agreement(claim: str, groups: Mapping[str, Sequence[Comparison]], within: float) -> Check:
    """The check that no quantity is farther from its closed form."""
    return Check(claim, max(abs(c.error) for group in groups.values() for c in group), within)


def comparison_table(title: str, groups: Mapping[str, Sequence[Comparison]]) -> Table:
    """One row for each comparison of each named group."""
    rows = [
        (
            f"{name}: {c.quantity}",
            _plain(c.simulated),
            _plain(c.closed_form),
            f"{c.error:.1e}",
        )
        for name, group in groups.items()
        for c in group
    ]
    return table(title, ["quantity", "simulated", "closed form", "error"], rows)


def _plain(value: float) -> str:
    """The value with six digits, and no sign for zero."""
    return f"{round(value, 6) + 0.0:.6f}"


def draw_contacts(stem: Path, title: str, run: HybridTrajectory) -> None:
    """Save `<stem>_modes.png`, `<stem>_forces.png` and `<stem>_energy.png`."""
    modes(run, stem.with_name(f"{stem.name}_modes.png"), title=title)
    forces(run, stem.with_name(f"{stem.name}_forces.png"), title=title)
    energy(run, stem.with_name(f"{stem.name}_energy.png"), title=title)
