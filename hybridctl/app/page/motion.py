"""The motion of mechanisms as the page plays it: outlines, forces and impulses over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridctl.app.plots import TRACKING
from hybridctl.app.viewer.figure import contact_forces, event_impulses
from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.base.files import encode_array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.tables import format_mode
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

MOTION = "motion.json"
AXES = (("x", "y"), ("x", "z"), ("x", "y", "z"))
_FRAMES = 400  # over a run, evenly
_NEAR = np.array([0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]) * 1e-3  # s, from both ends of an arc

Outline = Callable[[Array], Sequence[Array]]


@dataclass(frozen=True)
class Mover:
    """A mechanism that moves as `run` says.

    outline: polylines (n, d) in m of the world at a state, as many with as many points at all
    states. system: the one that was simulated; the contact forces of a robot are drawn.
    """

    label: str
    run: HybridTrajectory
    outline: Outline
    color: str = TRACKING
    system: HybridSystem | None = None


@dataclass(frozen=True)
class Scene:
    """Mechanisms that move together, before polylines (n, d) that are fixed.

    axes: those of the world that are drawn, two or three, for points of as many coordinates.
    """

    title: str
    movers: Sequence[Mover]
    fixed: Sequence[Array] = ()
    axes: tuple[str, ...] = ("x", "y")


def write_motion(folder: RunFolder, scenes: Sequence[Scene]) -> None:
    """Write motion.json: what the page plays.

    Raises `InputError` for a scene without movers, `UnknownNameError` for axes that are not drawn.
    """
    folder.write_json(MOTION, {"scenes": [_scene(scene) for scene in scenes]})


def _scene(scene: Scene) -> dict[str, Any]:
    if not scene.movers:
        raise InputError(f"scene {scene.title!r} must have at least one mover")
    columns = ["xyz".index(axis) for axis in check_member("axes", scene.axes, AXES)]
    return {
        "title": scene.title,
        "axes": scene.axes,
        "fixed": [encode_array(line) for line in scene.fixed],
        "movers": [_mover(mover, columns) for mover in scene.movers],
    }


def _mover(mover: Mover, columns: list[int]) -> dict[str, Any]:
    frames = [(arc, arc_times(arc, mover.run)) for arc in mover.run.arcs]
    states = [(t, arc, arc(t)) for arc, times in frames for t in times.tolist()]
    shapes = [mover.outline(x) for _, _, x in states]
    record = {
        "label": mover.label,
        "color": mover.color,
        "times": encode_array([t for t, _, _ in states]),
        "lines": [len(line) for line in shapes[0]],
        "points": encode_array([np.concatenate(shape) for shape in shapes]),
        "modes": [(arc.start, arc.end, format_mode(arc.mode)) for arc in mover.run.arcs],
        "events": [(event.time, event_text(event)) for event in mover.run.guard_events],
    }
    mechanism = None if mover.system is None else mover.system.mechanism
    if mover.system is not None and mechanism is not None:
        both = [contact_forces(mover.system, arc, t) for t, arc, _ in states]
        places, forces = (np.array(column)[..., columns] for column in zip(*both, strict=True))
        record |= {"places": encode_array(places), "forces": encode_array(forces)}
        record["impulses"] = [
            impulse | {part: impulse[part][columns] for part in ("place", "value")}
            for event in mover.run.guard_events
            for impulse in event_impulses(mechanism, event)
        ]
    return record


def arc_times(arc: Arc, run: HybridTrajectory) -> Array:
    """Return times (n,) at which an arc is drawn, evenly, with more near the events at its ends."""
    even = max(int(np.ceil(_FRAMES * (arc.end - arc.start) / (run.end - run.start))), 1)
    near = _NEAR[0.5 * (arc.end - arc.start) > _NEAR]
    grid = np.linspace(arc.start, arc.end, even + 1)
    return np.unique(np.concatenate((grid, arc.start + near, arc.end - near)))


def event_text(event: Event) -> str:
    """Return the guards of an event, the uniqueness of its impact, and its bridge or rest."""
    unique = "" if event.uniqueness is None else f"; uniqueness {event.uniqueness}"
    bridge = "" if event.bridge is None else f"; {event.bridge}"
    rest = "" if event.rest is None else f"; {event.rest}"
    return ", ".join(event.guards) + unique + bridge + rest
