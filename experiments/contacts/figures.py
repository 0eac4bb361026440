"""Figures of a run with contacts: what each contact does, its forces, the energy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Arc, HybridTrajectory
from hybridctl.mechanics import Contact, Robot, closed_contacts
from hybridctl.plots import BASELINE, REFERENCE, TRACKING, Line, Panel, series

MODES = {"open": BASELINE, "closed": TRACKING, "stick": TRACKING, "slip": REFERENCE}
SAMPLES = 1500  # over a run; every arc has at least two
CLOSED_WIDTH = 3.5  # points; a contact that is closed is drawn thicker than an open one


def draw_contacts(
    stem: Path,
    title: str,
    system: HybridSystem,
    robot: Robot,
    contacts: Sequence[Contact],
    run: HybridTrajectory,
) -> None:
    """Save `<stem>_modes.png`, `<stem>_forces.png` and `<stem>_energy.png`."""
    draw_modes(stem.with_name(f"{stem.name}_modes.png"), title, system, contacts, run)
    draw_forces(stem.with_name(f"{stem.name}_forces.png"), title, system, contacts, run)
    draw_energy(stem.with_name(f"{stem.name}_energy.png"), title, robot, run)


def draw_modes(
    path: Path,
    title: str,
    system: HybridSystem,
    contacts: Sequence[Contact],
    run: HybridTrajectory,
) -> None:
    """Gap of every contact in the colour of its mode, and its sliding speed if any slides."""
    gaps = _outputs(system, run, "gap")
    slips = _outputs(system, run, "slip_velocity")
    slides = any(_mode(arc, i) == "slip" for arc in run.arcs for i in range(len(contacts)))
    rows = []
    for i, contact in enumerate(contacts):
        gap = [(arc, times, 1e3 * values[:, i]) for arc, times, values in gaps]
        row = [Panel(f"{contact.name} gap [mm]", _coloured(gap, i))]
        if slides:
            speed = [
                (arc, times, np.linalg.norm(values[:, i], axis=1))
                for arc, times, values in slips
                if i in closed_contacts(arc.mode)
            ]
            row.append(Panel(f"{contact.name} sliding [m/s]", _coloured(speed, i)))
        rows.append(row)
    series(path, rows, title=f"{title}: contacts by mode")


def _mode(arc: Arc, contact: int) -> str:
    """The mode of one contact, without the sign of its velocity."""
    return str(arc.mode[contact]).rstrip("+-")  # type: ignore[index]


def _coloured(parts: Sequence[tuple[Arc, Array, Array]], contact: int) -> list[Line]:
    """One line per arc in the colour of the contact's mode; the first of each mode is named."""
    lines, named = [], set()
    for arc, times, values in parts:
        mode = _mode(arc, contact)
        width = 1.4 if mode == "open" else CLOSED_WIDTH
        label = None if mode in named else mode
        lines.append(Line(times, values, label, MODES[mode], width=width))
        named.add(mode)
    return lines


def draw_forces(
    path: Path,
    title: str,
    system: HybridSystem,
    contacts: Sequence[Contact],
    run: HybridTrajectory,
) -> None:
    """Normal force of every contact, and its friction below the bound of Coulomb's cone."""
    normals = _outputs(system, run, "normal_force")
    frictions = _outputs(system, run, "friction_force")
    times = np.concatenate([part[1] for part in normals])
    normal = np.concatenate([part[2] for part in normals])
    friction = np.concatenate([np.linalg.norm(part[2], axis=2) for part in frictions])
    rows = []
    for i, contact in enumerate(contacts):
        bound = contact.friction * normal[:, i]
        rows.append(
            [
                Panel(
                    f"{contact.name} normal [N]",
                    [Line(times, normal[:, i]), *_marks(run, normal[:, i])],
                    zero=True,
                ),
                Panel(
                    f"{contact.name} friction [N]",
                    [
                        Line(times, bound, f"{contact.friction:g} x normal", REFERENCE, "--"),
                        Line(times, friction[:, i], "friction"),
                        *_marks(run, bound),
                    ],
                    zero=True,
                ),
            ]
        )
    series(path, rows, title=f"{title}: contact forces (dotted: events)")


def draw_energy(path: Path, title: str, robot: Robot, run: HybridTrajectory) -> None:
    """Kinetic, potential (above its least) and total energy."""
    times, energies = [], []
    for arc, at in run.sampled(_period(run)):
        states = arc(at)
        times.append(at)
        energies.append([robot.energy(x[: robot.nq], x[robot.nq :]) for x in states])
    t, energy = np.concatenate(times), np.concatenate(energies)
    energy[:, 1] -= energy[:, 1].min()
    total = energy.sum(axis=1)
    lines = [
        Line(t, total, "total", "black"),
        Line(t, energy[:, 0], "kinetic", REFERENCE),
        Line(t, energy[:, 1], "potential", TRACKING),
        *_marks(run, np.append(energy, total)),
    ]
    series(path, [[Panel("energy [J]", lines)]], title=f"{title}: energy (dotted: events)")


def _outputs(
    system: HybridSystem, run: HybridTrajectory, name: str
) -> list[tuple[Arc, Array, Array]]:
    """Each arc with times and an output of its mode (n, c) or (n, c, 2)."""
    found = []
    for arc, times in run.sampled(_period(run)):
        outputs = system.mode(arc.mode).outputs
        if outputs is not None:
            values = [outputs(t, *arc.state_and_input(t))[name] for t in map(float, times)]
            found.append((arc, times, np.array(values)))
    return found


def _marks(run: HybridTrajectory, values: Array) -> list[Line]:
    """Dotted lines at the events, as high as the values."""
    height = np.array([values.min(), values.max()])
    return [Line(np.full(2, event.time), height, None, BASELINE, ":", 0.8) for event in run.events]


def _period(run: HybridTrajectory) -> float:
    return (run.end - run.start) / SAMPLES
