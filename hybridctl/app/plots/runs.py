"""Figures of a run: its states and inputs, what its contacts do, their forces, its energy."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, groupby, repeat
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from hybridctl.app.mode_colors import find_mode_color, shade_contact_mode
from hybridctl.app.plots.panels import (
    BANDS,
    BASELINE,
    CURVES,
    REFERENCE,
    TRACKING,
    Band,
    Figure,
    Line,
    Mark,
    Panel,
    arrange_panels,
    draw_series,
)
from hybridctl.app.plots.picture_files import draw_in_parallel
from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.joint_contacts import (
    AnyContact,
    JointFriction,
    force_unit,
    gap_unit,
)
from hybridctl.mechanics.system import ContactSystem, closed_contacts

Path = str | os.PathLike[str] | None
"""File of a figure, or None for no file."""
Part: TypeAlias = tuple[Arc, Array, Array]  # an arc, times (n,) on it, and values (n, ...)
_SAMPLES = 1500  # over a run; every arc has at least two
_CLOSED_WIDTH = 3.5  # points; a contact that is closed is drawn thicker than an open one
_LEAST_GAP = 0.01  # mm, above what the tolerances of a run leave of gaps that are closed
_LEAST_SPEED = 1e-6  # m/s, above what tolerances leave of the speeds of contacts that stick
_PANELS = 12  # of a figure; more coordinates share panels
_SHARING = 6  # coordinates in a panel
_STYLES = ("-", "--")
_SLIDING_MODES = ("slip", "slip+", "slip-", "strip")
_ORDINARY_SHARE, _ORDINARY_FACTOR = 0.95, 2.0
"""Share of the time in contact, and factor of the force that is not exceeded in it: see `forces`.

A choice: of a quadruped that lands from 5 cm it cuts the first 20 ms."""
_STILL = 1e-9  # N s: momenta below are zero


def states(
    run: HybridTrajectory,
    path: Path = None,
    *,
    title: str = "States",
    names: Sequence[str] | None = None,
) -> Figure:
    """Draw the coordinates over time, in bands of the modes, broken at events of guards.

    Up to twelve coordinates have a panel each; more share panels by their unit, six at most.

    Args:
        run: The run.
        path: File to save the figure in; None to save none.
        title: Title of the figure.
        names: Labels of the coordinates to draw; None for all.

    Returns:
        The figure.

    Raises:
        InputError: The modes of the run have states of different sizes.
        UnknownNameError: A name is no label of a coordinate.
    """
    sizes = {arc.space.nx for arc in run.arcs}
    if len(sizes) > 1:
        raise InputError(f"run must have states of one size to be plotted, got {sorted(sizes)}")
    system, mode = run.system, run.arcs[0].mode
    labels = [f"x{k}" for k in range(*sizes)] if system is None else system.state_labels(mode)
    wanted = labels if names is None else [check_member("names", name, labels) for name in names]
    parts = [(arc, times, arc(times)) for arc, times in run.sampled(_choose_period(run))]
    panels = _make_panels(wanted, {name: k for k, name in enumerate(labels)}, parts)
    return _draw_in_bands(path, panels, parts, title)


def inputs(run: HybridTrajectory, path: Path = None, *, title: str = "Inputs") -> Figure:
    """Draw the inputs over time, in bands of the modes, in panels as those of `states`.

    A stored run has its inputs also where its system is not known.

    Args:
        run: The run.
        path: File to save the figure in; None to save none.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        InputError: The run has no inputs, or its modes have inputs of different sizes.
    """
    sizes = {arc.inputs.shape[-1] for arc in run.arcs}
    if len(sizes) > 1 or sizes == {0}:
        raise InputError(f"run must have inputs of one size to be plotted, got {sorted(sizes)}")
    system, mode = run.system, run.arcs[0].mode
    labels = [f"u{k}" for k in range(*sizes)] if system is None else system.input_labels(mode)
    parts = [(arc, times, arc.input(times)) for arc, times in run.sampled(_choose_period(run))]
    panels = _make_panels(labels, {name: k for k, name in enumerate(labels)}, parts)
    return _draw_in_bands(path, panels, parts, title)


def _draw_in_bands(
    path: Path, panels: Sequence[Panel], parts: Sequence[Part], title: str
) -> Figure:
    """Draw panels of a whole run, in bands of its modes.

    Args:
        path: File to save the figure in; None to save none.
        panels: The panels.
        parts: All arcs of the run, with times and values.
        title: Title of the figure.

    Returns:
        The figure.
    """
    spans = [(times[0], times[-1], arc.mode) for arc, times, _ in parts]
    return draw_series(
        path,
        arrange_panels(panels),
        title=title,
        bands=make_mode_bands(spans),
        span=(spans[0][0], spans[-1][1]),
    )


def _make_panels(
    names: Sequence[str], column: dict[str, int], parts: Sequence[Part]
) -> list[Panel]:
    """Return a panel for each name, or for names of one unit if there are many.

    Args:
        names: Labels of the columns to draw.
        column: Index of each label in the values of the parts.
        parts: Arcs with times and values.
    """
    if len(names) <= _PANELS:
        return [
            Panel(name, [Line(times, values[:, column[name]]) for _, times, values in parts])
            for name in names
        ]
    panels = []
    for unit, same in groupby(names, _find_unit):
        group = list(same)
        for some in np.array_split(group, -(-len(group) // _SHARING)):
            lines = []
            for k, name in enumerate(some.tolist()):
                color, style = CURVES[k % len(CURVES)], _STYLES[k // len(CURVES)]
                labels = chain([name.removesuffix(f" [{unit}]")], repeat(None))
                lines += [
                    Line(times, values[:, column[name]], label, color, style)
                    for label, (_, times, values) in zip(labels, parts, strict=False)
                ]
            panels.append(Panel(f"[{unit}]", lines))
    return panels


def _find_unit(label: str) -> str:
    """Return the unit that a label ends with, 1 where it has none."""
    return label[label.rindex("[") + 1 : -1] if label.endswith("]") else "1"


def make_mode_bands(spans: Iterable[tuple[float, float, ModeKey]]) -> list[Band]:
    """Return a band for each (start, end, mode), in the colour of the mode."""
    spans = list(spans)
    kinds = list(dict.fromkeys(mode for _, _, mode in spans))
    return [
        Band(start, end, shorten_mode(mode), _choose_shade(mode, kinds))
        for start, end, mode in spans
        if end >= start
    ]


def _choose_shade(mode: ModeKey, kinds: Sequence[ModeKey]) -> str:
    """Return the colour of a mode; of other systems' modes in the order in which they come."""
    if isinstance(mode, tuple):
        return shade_contact_mode(mode)
    return BANDS[kinds.index(mode) % len(BANDS)]


def shorten_mode(mode: ModeKey) -> str:
    """Return the number of contacts in each state, or "open"; modes without contacts by name."""
    parts = [str(part) for part in (mode if isinstance(mode, tuple) else (mode,))]
    if len(parts) == 1:
        return parts[0]
    counts = Counter(part for part in parts if part != "open")
    return ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "open"


def modes(
    run: HybridTrajectory,
    path: Path = None,
    *,
    title: str = "Contacts",
    contacts: Sequence[str] | None = None,
) -> Figure:
    """Draw gaps of contacts in the colour of their mode, and sliding speeds if any slides.

    Args:
        run: The run, of a robot with contacts.
        path: File to save the figure in; None to save none.
        title: Title of the figure.
        contacts: Names of the contacts to draw; None for all.

    Returns:
        The figure.

    Raises:
        InputError: The run is not one of a robot with contacts.
        UnknownNameError: There is no such contact.
    """
    chosen = _choose_contacts(run, contacts)
    gaps, slips = _sample_outputs(run, "gap", "slip_velocity")
    slides = any(
        _find_contact_mode(arc, i) in _SLIDING_MODES for arc in run.arcs for i, _ in chosen
    )
    rows = []
    for i, contact in chosen:
        gap = [(arc, times, 1e3 * values[:, i]) for arc, times, values in gaps]
        label = f"{contact.name}\ngap [m{gap_unit(contact)}]"
        lines, shared = _color_by_mode(gap, i), f"gap {gap_unit(contact)}"
        row = [Panel(label, lines, least=_LEAST_GAP, share=shared)]
        if slides:
            speed = [
                (arc, times, np.linalg.norm(values[:, i], axis=1))
                for arc, times, values in slips
                if i in closed_contacts(arc.mode)
            ]
            label, lines = f"{contact.name}\nsliding [m/s]", _color_by_mode(speed, i)
            row.append(Panel(label, lines, least=_LEAST_SPEED, share="sliding"))
        rows.append(row)
    return draw_series(path, rows, title=f"{title}: contacts by mode")


def forces(
    run: HybridTrajectory,
    path: Path = None,
    *,
    title: str = "Contacts",
    contacts: Sequence[str] | None = None,
) -> Figure:
    """Draw the normal forces of contacts, and friction below the bound of Coulomb's cone.

    All contacts with forces in one unit share an ordinate. It ends at twice what forces stay below
    for 95 % of the time in contact, so that a hard landing does not hide how the robot then stands;
    higher peaks are noted. Impulses of impacts are no forces: they are marked above. Dotted lines
    are events.

    Args:
        run: The run, of a robot with contacts.
        path: File to save the figure in; None to save none.
        title: Title of the figure.
        contacts: Names of the contacts to draw; None for all.

    Returns:
        The figure.

    Raises:
        InputError: The run is not one of a robot with contacts.
        UnknownNameError: There is no such contact.
    """
    chosen = _choose_contacts(run, contacts)
    normals, frictions = _sample_outputs(run, "normal_force", "friction_force")
    times = np.concatenate([part for _, part, _ in normals])
    normal = np.concatenate([values for _, _, values in normals])
    friction = np.concatenate([np.linalg.norm(values, axis=2) for _, _, values in frictions])
    units = {i: force_unit(contact) for i, contact in chosen}
    most = {
        unit: _find_ordinary_force(normal[:, [i for i in units if units[i] == unit]])
        for unit in set(units.values())
    }
    rows = []
    for i, contact in chosen:
        bound, unit = contact.friction * normal[:, i], units[i]
        impulses = [
            Mark(event.time, f"{event.impulses[i]:.2g} {unit} s")
            for event in run.guard_events
            if i < len(event.impulses) and event.impulses[i] > 0.0
        ]
        height = np.minimum(normal[:, i], most[unit])
        pressing = [Line(times, normal[:, i]), *_mark_events(run, height)]
        rubbing = [
            Line(times, bound, f"{contact.friction:g} x normal", REFERENCE, "--"),
            Line(times, friction[:, i], "friction"),
            *_mark_events(run, contact.friction * height),
        ]
        label, shared = f"{contact.name}\nnormal [{unit}]", f"normal {unit}"
        row = [Panel(label, pressing, zero=True, share=shared, most=most[unit], marks=impulses)]
        if friction.any():
            cut = contact.friction * most[unit] if contact.friction else np.inf
            label, shared = f"{contact.name}\nfriction [{unit}]", f"friction {unit}"
            row.append(Panel(label, rubbing, zero=True, share=shared, most=cut))
        rows.append(row)
    return draw_series(path, rows, title=f"{title}: forces (dotted: events; marked: impulses)")


def _find_ordinary_force(normal: Array) -> float:
    """Return the force at which an ordinate ends; inf where all forces may be shown.

    Args:
        normal: Normal forces (n, c) of contacts, N or N m.
    """
    pressing = normal[normal > 0.0]
    if not len(pressing):
        return np.inf
    ordinary = _ORDINARY_FACTOR * float(np.quantile(pressing, _ORDINARY_SHARE))
    return ordinary if float(pressing.max()) > 1.5 * ordinary else np.inf


def energy(run: HybridTrajectory, path: Path = None, *, title: str = "Robot") -> Figure:
    """Draw kinetic, potential and total energy of a robot, and its momentum.

    Potential energy is that above its least. Momenta are those of `contact_system` that are not
    zero throughout; dotted lines are events.

    Args:
        run: The run, of a robot with contacts.
        path: File to save the figure in; None to save none.
        title: Title of the figure.

    Returns:
        The figure.

    Raises:
        InputError: The run is not one of a robot with contacts.
    """
    system = _find_robot_system(run)
    robot, nq, last = system.robot, system.robot.nq, system.robot.nq + system.robot.nv
    parts = [(times, arc(times)) for arc, times in run.sampled(_choose_period(run))]
    times, states = (np.concatenate(column) for column in zip(*parts, strict=True))
    moving = [(x[:nq], x[nq:last]) for x in states]
    both = np.array([robot.energy(q, v) for q, v in moving])
    both[:, 1] -= both[:, 1].min()
    total = both.sum(axis=1)
    lines = [
        Line(times, total, "total", "black"),
        Line(times, both[:, 0], "kinetic", REFERENCE),
        Line(times, both[:, 1], "potential", TRACKING),
        *_mark_events(run, np.append(both, total)),
    ]
    momenta = np.array([robot.momentum(q, v) for q, v in moving])
    labels, colors = system.output_labels("momentum", (6,)), (*CURVES, "black")
    shares = [
        Line(times, column, label.removeprefix("momentum "), color)
        for label, column, color in zip(labels, momenta.T, colors, strict=True)
        if np.abs(column).max() > _STILL
    ]
    panels = [
        Panel("energy [J]", lines),
        Panel("momentum", [*shares, *_mark_events(run, momenta.ravel())]),
    ]
    return draw_series(
        path, arrange_panels(panels), title=f"{title}: energy, momentum (dotted: events)"
    )


def draw_run(
    run: HybridTrajectory, folder: str | os.PathLike[str], *, prefix: str = ""
) -> list[str]:
    """Draw the standard figures of a run that its system has what is needed for.

    They are states, inputs if they are not zero throughout, and of a robot with contacts its forces
    and modes, for contacts that close, and its energy.

    Args:
        run: The run.
        folder: Folder for the figures, each as .png, .svg and .json.
        prefix: Beginning of the names of the files.

    Returns:
        The names of the figures, without suffix.
    """
    drawn = list_run_figures(run)
    with draw_in_parallel():
        for name, draw in drawn:
            draw(run, os.path.join(folder, f"{prefix}{name}.png"))
    return [f"{prefix}{name}" for name, _ in drawn]


def list_run_figures(run: HybridTrajectory) -> list[tuple[str, Callable[..., Figure]]]:
    """Return the standard figures of a run: names, and functions of the run and a path.

    Args:
        run: The run.
    """
    mechanism = None if run.system is None else run.system.mechanism
    touched = [] if mechanism is None else find_touched_contacts(run, mechanism)
    # A figure of states needs states of one size: modes of expressions may have others.
    one_size = len({arc.space.nx for arc in run.arcs}) == 1
    is_driven = len({arc.inputs.shape[-1] for arc in run.arcs}) == 1 and any(
        arc.inputs.any() for arc in run.arcs
    )
    drawn: list[tuple[bool, str, Callable[..., Figure]]] = [
        (one_size, "states", states),
        (is_driven, "inputs", inputs),
        (bool(touched), "forces", partial(forces, contacts=touched)),
        (bool(touched), "contacts", partial(modes, contacts=touched)),
        (mechanism is not None, "energy", energy),
    ]
    return [(name, draw) for is_drawn, name, draw in drawn if is_drawn]


def find_touched_contacts(run: HybridTrajectory, system: ContactSystem) -> list[str]:
    """Return the names of the contacts in space that close in some arc of a run.

    Args:
        run: A run of the system.
        system: The system of the robot.
    """
    closed = {i for arc in run.arcs for i in closed_contacts(arc.mode)}
    return [
        contact.name
        for i, contact in enumerate(system.contacts)
        if i in closed and isinstance(contact, Contact)
    ]


def _find_robot_system(run: HybridTrajectory) -> ContactSystem:
    """Return the contact system of a run.

    Raises:
        InputError: The run is not one of a robot with contacts.
    """
    mechanism: ContactSystem | None = None if run.system is None else run.system.mechanism
    if mechanism is None:
        raise InputError(f"run must be one of a robot with contacts, got one of {run.system!r}")
    return mechanism


def _choose_contacts(
    run: HybridTrajectory, names: Sequence[str] | None
) -> list[tuple[int, AnyContact]]:
    """Return contacts with their indices in the system, without dry friction of joints.

    Args:
        run: The run.
        names: Names of the contacts in any order; None for all. The order is that of the system.

    Raises:
        InputError: The run is not one of a robot with contacts.
        UnknownNameError: There is no such contact.
    """
    every = _find_robot_system(run).contacts
    # Joints that rub are the last contacts of a system, so that indices stay those of the system.
    known = {c.name: c for c in every if not isinstance(c, JointFriction)}
    wanted = known if names is None else [check_member("contact", name, known) for name in names]
    return [(i, known[name]) for i, name in enumerate(known) if name in wanted]


def _sample_outputs(run: HybridTrajectory, *names: str) -> list[list[Part]]:
    """Return the arcs of a run with times (n,) and values (n, ...) of each output.

    Args:
        run: The run.
        *names: Names of the outputs. At events there are both limits.

    Raises:
        InputError: A mode does not have an output.
    """
    found = _SAMPLED.get(run)
    if found is None:
        found = list(run.sampled_outputs(_choose_period(run)))
        _SAMPLED.clear()  # one run at a time: figures of a run are drawn one after the other
        _SAMPLED[run] = found
    for arc, _, outputs in found:
        for name in names:
            if name not in outputs:
                raise InputError(f"run must have {name!r} in all modes, and {arc.mode!r} has none")
    return [[(arc, times, outputs[name]) for arc, times, outputs in found] for name in names]


_SAMPLED: WeakKeyDictionary[HybridTrajectory, list[tuple[Arc, Array, Any]]] = WeakKeyDictionary()
"""Outputs of the run that was drawn last, which several figures show."""


def _find_contact_mode(arc: Arc, contact: int) -> str:
    """Return the mode of one contact."""
    return str(arc.mode[contact])  # type: ignore[index]


def _color_by_mode(parts: Sequence[Part], contact: int) -> list[Line]:
    """Return a line for each part, in the colour of the contact's state, named at its first."""
    lines, named = [], set()
    for arc, times, values in parts:
        mode = _find_contact_mode(arc, contact)
        width = 1.4 if mode == "open" else _CLOSED_WIDTH
        label = None if mode in named else mode
        lines.append(Line(times, values, label, find_mode_color(mode), "-", width))
        named.add(mode)
    return lines


def _mark_events(run: HybridTrajectory, values: Array) -> list[Line]:
    """Return a dotted line at each event of a guard, from the least to the largest value."""
    height = np.array([values.min(), values.max()])
    return [
        Line(np.full(2, event.time), height, None, BASELINE, ":", 0.8) for event in run.guard_events
    ]


def _choose_period(run: HybridTrajectory) -> float:
    """Return the time in s between samples of a figure."""
    return (run.end - run.start) / _SAMPLES
