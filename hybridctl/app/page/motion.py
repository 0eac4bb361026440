"""The motion of mechanisms as the player shows it: shapes, forces and impulses over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridctl.app.mode_colors import CONTACT_MODE_COLORS, OTHER_MODE_COLORS
from hybridctl.app.page.figure import Ellipsoid, compute_contact_forces, compute_impulses
from hybridctl.app.page.shapes import Mesh, RobotShapes, Shape, encode_mesh, encode_poses, make_ball
from hybridctl.app.plots import TRACKING
from hybridctl.base.checks import Array, check_member
from hybridctl.base.errors import InputError
from hybridctl.base.files import encode_array
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.tables import format_mode
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

MOTION = "motion.json"
AXES = (("x", "y"), ("x", "z"), ("x", "y", "z"))
_FRAMES = 400  # over a run, evenly: at a quarter of real time a run of 3 s has 30 a second
_NEAR = np.array([0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]) * 1e-3  # s, from both ends of an arc

Outline = Callable[[Array], Sequence[Array] | Array]


@dataclass(frozen=True, eq=False)
class Mover:
    """A mechanism that moves.

    Attributes:
        label: Its name in the legend.
        run: Its motion: states of a simulation, or means of an estimate, which stand still between
            its samples.
        outline: Function of a state that returns polylines (n, d) in m of the world, as many with
            as many points at all states, for the d axes of its scene. They are drawn where there
            are no bodies; the picture is large enough for all of them.
        color: Colour of its lines as "#rrggbb".
        system: The system that was simulated. If it is that of a robot with contacts, the contact
            forces are drawn.
        bodies: Shapes that are drawn; the states begin with the configuration of their robot. Only
            for scenes in space.
        ellipsoids: Function of a mean and its covariance that returns as many ellipsoids at all
            samples. Only for estimates, in scenes in space.
    """

    label: str
    run: HybridTrajectory | FilterResult
    outline: Outline
    color: str = TRACKING
    system: HybridSystem | None = None
    bodies: RobotShapes | None = None
    ellipsoids: Callable[[Array, Array], Sequence[Ellipsoid]] | None = None


@dataclass(frozen=True, eq=False)
class Scene:
    """Mechanisms that move together.

    Attributes:
        title: Title above the picture.
        movers: What moves.
        fixed: Polylines (n, d), m, that stand still.
        axes: Axes of the world that are drawn, two or three; see `AXES`.
        surfaces: Shapes that stand still, for scenes in space.
    """

    title: str
    movers: Sequence[Mover]
    fixed: Sequence[Array] = ()
    axes: tuple[str, ...] = ("x", "y")
    surfaces: Sequence[Shape] = ()


def write_motion(folder: RunFolder, scenes: Sequence[Scene]) -> None:
    """Write motion.json, which the page of the folder plays.

    Args:
        folder: Folder of the run.
        scenes: Scenes, one below the other.

    Raises:
        InputError: A scene has no movers, or has shapes in a plane.
        UnknownNameError: The axes of a scene are not drawn.
    """
    folder.write_json(MOTION, encode_motion(scenes))


def encode_motion(scenes: Sequence[Scene]) -> dict[str, Any]:
    """Return what the player reads, for JSON.

    Args:
        scenes: Scenes, one below the other.

    Raises:
        InputError: A scene has no movers, or has shapes in a plane.
        UnknownNameError: The axes of a scene are not drawn.
    """
    return {
        "scenes": [_encode_scene(scene) for scene in scenes],
        "mode_colors": CONTACT_MODE_COLORS,
        "other_colors": OTHER_MODE_COLORS,
    }


class _MeshTable:
    """The meshes of a scene, each stored once however many shapes have it."""

    def __init__(self) -> None:
        self.meshes: list[Mesh] = []

    def encode_shapes(self, shapes: Sequence[Shape]) -> list[dict[str, Any]]:
        """Return shapes for JSON, each with the index of its mesh; add meshes that are new."""
        return [
            {
                "mesh": self.find_index(shape.mesh),
                "link": shape.link,
                "placement": encode_poses(shape.placement).tolist(),
                "color": shape.color,
                "opacity": shape.opacity,
            }
            for shape in shapes
        ]

    def find_index(self, mesh: Mesh) -> int:
        """Return the index of a mesh; add it where it is new."""
        # By identity: meshes hold arrays, and have no equality.
        for k, known in enumerate(self.meshes):
            if known is mesh:
                return k
        self.meshes.append(mesh)
        return len(self.meshes) - 1


def _encode_scene(scene: Scene) -> dict[str, Any]:
    """Return a scene for JSON.

    Raises:
        InputError: The scene has no movers, or has shapes in a plane.
        UnknownNameError: Its axes are not drawn.
    """
    if not scene.movers:
        raise InputError(f"scene {scene.title!r} must have at least one mover")
    columns = ["xyz".index(axis) for axis in check_member("axes", scene.axes, AXES)]
    has_shapes = scene.surfaces or any(m.bodies or m.ellipsoids for m in scene.movers)
    if has_shapes and len(columns) < 3:
        raise InputError(f"scene {scene.title!r} has shapes: its axes must be ('x', 'y', 'z')")
    table = _MeshTable()
    record = {
        "title": scene.title,
        "axes": scene.axes,
        "fixed": [encode_array(line) for line in scene.fixed],
        "movers": [_encode_mover(mover, columns, table) for mover in scene.movers],
        "surfaces": table.encode_shapes(scene.surfaces),
    }
    return record | {"meshes": [encode_mesh(mesh) for mesh in table.meshes]}


def _encode_mover(mover: Mover, columns: list[int], table: _MeshTable) -> dict[str, Any]:
    """Return a mover for JSON.

    Args:
        mover: The mover.
        columns: Indices of the world's axes that are drawn.
        table: Meshes of the scene; those of the mover are added.
    """
    run = mover.run
    if isinstance(run, FilterResult):
        times, states, record = _sample_estimate(run, mover, table)
    else:
        times, states, record = _sample_run(run, mover.system, columns)
    lines = [mover.outline(x) for x in states]
    record |= {
        "label": mover.label,
        "color": mover.color,
        "times": encode_array(times),
        "lines": [len(line) for line in lines[0]],
        "points": encode_array([np.concatenate(each) for each in lines]),
    }
    if mover.bodies is not None:
        poses = np.array([mover.bodies.find_poses(x) for x in states])
        record["shapes"] = table.encode_shapes(mover.bodies.shapes)
        record["poses"] = encode_array(encode_poses(poses))
    return record


def _sample_run(
    run: HybridTrajectory, system: HybridSystem | None, columns: list[int]
) -> tuple[list[float], list[Array], dict[str, Any]]:
    """Return times in s, states, and modes, events and contact forces for JSON."""
    frames = [(arc, choose_arc_times(arc, run)) for arc in run.arcs]
    samples = [(t, arc, arc(t)) for arc, times in frames for t in times.tolist()]
    mechanism = None if system is None else system.mechanism
    own = mechanism if run.system is None else run.system.mechanism
    record: dict[str, Any] = {
        "modes": _encode_modes([(arc.start, arc.end, arc.mode) for arc in run.arcs]),
        "contacts": [] if own is None else [contact.name for contact in own.contacts],
        "events": [(event.time, describe_event(event)) for event in run.guard_events],
    }
    if system is not None and mechanism is not None:
        both = [compute_contact_forces(system, arc, t) for t, arc, _ in samples]
        places, forces = (np.array(column)[..., columns] for column in zip(*both, strict=True))
        record |= {"places": encode_array(places), "forces": encode_array(forces)}
        record["impulses"] = [
            impulse | {part: impulse[part][columns].tolist() for part in ("place", "value")}
            for event in run.guard_events
            for impulse in compute_impulses(mechanism, event)
        ]
    return [t for t, _, _ in samples], [x for _, _, x in samples], record


def _sample_estimate(
    result: FilterResult, mover: Mover, table: _MeshTable
) -> tuple[list[float], list[Array], dict[str, Any]]:
    """Return times in s, means, and probable modes and ellipsoids for JSON."""
    # A filter at 1 kHz has more samples than a page should hold.
    count = min(len(result.times), _FRAMES)
    chosen = np.unique(np.linspace(0, len(result.times) - 1, count).round().astype(int))
    mixtures = [result.mixtures[k] for k in chosen]
    ends = [*(mixture.time for mixture in mixtures[1:]), mixtures[-1].time]
    spans = [(m.time, end, m.mode) for m, end in zip(mixtures, ends, strict=True)]
    record: dict[str, Any] = {"modes": _encode_modes(spans), "contacts": [], "events": []}
    record["stepwise"] = True
    if mover.ellipsoids is not None:
        found = [mover.ellipsoids(m.mean, m.covariance) for m in mixtures]
        rows = [[np.append(one.axes * one.half_axes, one.centre) for one in each] for each in found]
        record["ellipsoids"] = encode_array(rows)
        record["ball"] = table.find_index(_BALL)
    return [m.time for m in mixtures], [m.mean for m in mixtures], record


_BALL = make_ball()  # scaled and turned to an ellipsoid


def _encode_modes(spans: Sequence[tuple[float, float, ModeKey]]) -> list[dict[str, Any]]:
    """Return spans (start, end, mode) in s for JSON: the mode as text, and its words if any.

    Words are those of a mode that is a tuple, one for each contact or other part. Where modes
    differ in how many they have, the whole text is their only word.
    """
    counts = {len(mode) if isinstance(mode, tuple) else 1 for _, _, mode in spans}
    records = []
    for start, end, mode in spans:
        text = format_mode(mode)
        split = isinstance(mode, tuple) and len(counts) == 1
        words = [str(word) for word in mode] if split and isinstance(mode, tuple) else [text]
        records.append({"start": start, "end": end, "text": text, "words": words})
    return records


def choose_arc_times(arc: Arc, run: HybridTrajectory) -> Array:
    """Return times (n,) in s at which an arc is drawn: evenly, and more near its ends.

    Args:
        arc: An arc of the run.
        run: The run, by whose length the distance of times is chosen.
    """
    even = max(int(np.ceil(_FRAMES * (arc.end - arc.start) / (run.end - run.start))), 1)
    near = _NEAR[0.5 * (arc.end - arc.start) > _NEAR]
    grid = np.linspace(arc.start, arc.end, even + 1)
    return np.unique(np.concatenate((grid, arc.start + near, arc.end - near)))


def describe_event(event: Event) -> str:
    """Return the guards of an event, the uniqueness of its impact, and its bridge or rest."""
    unique = "" if event.uniqueness is None else f"; uniqueness {event.uniqueness}"
    bridge = "" if event.bridge is None else f"; {event.bridge}"
    rest = "" if event.rest is None else f"; {event.rest}"
    return ", ".join(event.guards) + unique + bridge + rest
