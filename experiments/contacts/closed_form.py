"""Simulated quantities beside their closed forms, as tables and as summary.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from hybridctl.report import table


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
        return {
            "quantity": self.quantity,
            "simulated": self.simulated,
            "closed_form": self.closed_form,
            "error": self.error,
        }


def comparison_table(title: str, groups: Mapping[str, Sequence[Comparison]]) -> Table:
    """One row for each comparison of each named group."""
    rows = [
        (
            f"{name}: {c.quantity}",
            f"{c.simulated:.6f}",
            f"{c.closed_form:.6f}",
            f"{c.error:.1e}",
        )
        for name, group in groups.items()
        for c in group
    ]
    return table(title, ["quantity", "simulated", "closed form", "error"], rows)
