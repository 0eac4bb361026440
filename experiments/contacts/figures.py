"""Figures of a run with contacts: what each contact does, its forces, the energy."""

from __future__ import annotations

from pathlib import Path

from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.plots import energy, forces, modes


def draw_contacts(stem: Path, title: str, run: HybridTrajectory) -> None:
    """Save `<stem>_modes.png`, `<stem>_forces.png` and `<stem>_energy.png`."""
    modes(run, stem.with_name(f"{stem.name}_modes.png"), title=title)
    forces(run, stem.with_name(f"{stem.name}_forces.png"), title=title)
    energy(run, stem.with_name(f"{stem.name}_energy.png"), title=title)
