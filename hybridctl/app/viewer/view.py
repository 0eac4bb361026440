"""The viewer: a scene of viser that follows a run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from html import escape
from importlib import import_module
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.app.viewer.bodies import DrawnBodies
from hybridctl.app.viewer.figure import Figure, contact_forces, event_impulses, world_surfaces
from hybridctl.base.checks import Array, Indices, check_instance, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.tables import format_mode
from hybridctl.control.reference import Reference
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics.contacts.surfaces import Plane, Sphere, Terrain
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.urdf import shapes_of
from hybridctl.mechanics.system import ContactSystem

TRUTH, REFERENCE, ESTIMATE = (90, 90, 97), (230, 159, 0), (0, 114, 178)
FORCE, IMPULSE = (30, 30, 30), (204, 121, 167)
TONES = ("#dddddd", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00")
SPEEDS = {"real time": 1.0, "1/4": 0.25, "1/10": 0.1, "1/50": 0.02}
_FRAME = 1.0 / 30.0  # s between pictures
_AFTER = 0.05  # s during which an impulse is shown
_GROUND = 2.0  # m, how far smooth ground is drawn around its origin
_GROUND_TICKS = 81
_ARROW = 0.4  # m, of a force as large as the weight, or larger


class View:
    """A run in the browser, in space: `seek` a time, `play`, `close`; a notebook shows it itself.

    robot: what moves; of a contact system, or one made of it, the surfaces, forces and impulses are
    shown too. reference: another motion of the same robot, drawn beside it. estimate: of the same
    robot, by all hypotheses together, with ellipsoids of three sigmas around its points. urdf:
    where the meshes are, by default the URDF that the robot was built from; packages: folders for
    `package://`. port: on this machine, or the next one that is free; `address` says which.

    `server` is viser's, to add things of your own. `figures`: what is drawn, by "robot",
    "reference" and "estimate"; the `bodies` of each are Pinocchio's `ViserVisualizer`, which can
    show frames too (`displayFrames(True)`), or None where there are no shapes and bones are drawn.

    Needs `pip install "hybridctl[view]"`, and raises `InputError` without it, or for states that
    are not those of the robot.
    """

    def __init__(
        self,
        run: HybridTrajectory,
        robot: Robot | HybridSystem,
        *,
        reference: HybridTrajectory | Reference | None = None,
        estimate: FilterResult | None = None,
        urdf: str | os.PathLike[str] | None = None,
        packages: Sequence[str | os.PathLike[str]] = (),
        port: int = 8080,
    ) -> None:
        viser = _viser()
        self.run = check_instance("run", run, HybridTrajectory)
        given = robot if isinstance(robot, HybridSystem) else None
        self.system: ContactSystem | None = None if given is None else given.mechanism
        body = check_instance("robot", robot if self.system is None else self.system.robot, Robot)
        self._reference = reference.nominal if isinstance(reference, Reference) else reference
        self._estimate = estimate
        _check_sizes(body, run, self._reference, estimate)
        contacts = () if self.system is None else self.system.contacts
        figure, source = Figure(body, contacts), body.source if urdf is None else urdf
        model = body.model
        shapes = None if source is None else shapes_of(model, source, packages)
        self.server = viser.ViserServer(host="127.0.0.1", port=port, verbose=False)
        scene = self.server.scene
        scene.set_up_direction("+z")
        tones: dict[str, tuple[int, int, int] | None] = {"robot": None}
        if self._reference is not None:
            tones["reference"] = REFERENCE
        if estimate is not None:
            tones["estimate"] = ESTIMATE
        self.figures = {
            name: Drawn(self.server, name, figure, model, shapes, tone)
            for name, tone in tones.items()
        }
        for k, surface in enumerate(world_surfaces(contacts)):
            _draw_surface(scene, f"/surfaces/{k}", surface)
        own = given if run.system is None or run.system.mechanism is None else run.system
        self._forces = None if self.system is None or own is None else _Forces(scene, run, own)
        self._playing = threading.Event()
        self._controls = _Controls(self, "" if self._forces is None else self._forces.legend())
        self.seek(run.start)
        self._look(figure)

    @property
    def address(self) -> str:
        """The address at which a browser finds the view."""
        return f"http://127.0.0.1:{self.server.get_port()}"

    def seek(self, t: float) -> None:
        """Show the time t, in s, of the run."""
        t = check_number("t", t, at_least=self.run.start, at_most=self.run.end)
        self.time = t
        with self.server.atomic():
            self.figures["robot"].place(self.run(t))
            if self._reference is not None:
                known = min(max(t, self._reference.start), self._reference.end)
                self.figures["reference"].place(self._reference(known))
            if self._estimate is not None:
                k = max(int(self._estimate.times.searchsorted(t, "right")) - 1, 0)
                found = self._estimate.mixtures[k]
                self.figures["estimate"].place(found.mean, found.covariance)
            if self._forces is not None:
                self._forces.show(t)
            self._controls.show(t)

    def play(self, speed: float = 0.25) -> None:
        """Play from the present time, or again, at a speed of 1 in real time.

        Returns at the end of the run, or where another thread has called `pause`.
        """
        check_number("speed", speed, above=0.0)
        if self.time >= self.run.end:
            self.seek(self.run.start)
        self._playing.set()
        begin, since = self.time, time.monotonic()
        while self.time < self.run.end and self._playing.is_set():
            time.sleep(_FRAME)
            self.seek(min(begin + speed * (time.monotonic() - since), self.run.end))
        self._playing.clear()

    def pause(self) -> None:
        """Stop playing."""
        self._playing.clear()

    @property
    def is_playing(self) -> bool:
        """Whether the motion plays."""
        return self._playing.is_set()

    def close(self) -> None:
        """End the server."""
        self.pause()
        self.server.stop()

    def _look(self, figure: Figure) -> None:
        """Put the camera where all joints and points are seen at the start."""
        places = figure.bones(self.run(self.run.start)).reshape(-1, 3)
        centre = places.mean(axis=0)
        far = 3.0 * max(float(np.linalg.norm(places - centre, axis=1).max()), 0.2)
        camera = self.server.initial_camera
        camera.position = centre + far * np.array([0.7, -0.7, 0.3])
        camera.look_at = centre

    def __enter__(self) -> View:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return f'<iframe src="{self.address}" width="100%" height="600"></iframe>'


view = View


class Drawn:
    """A figure in the scene: its bodies, or bones where it has no shapes; ellipsoids of points."""

    def __init__(
        self,
        server: Any,
        name: str,
        figure: Figure,
        model: Any,
        shapes: Any,
        color: tuple[int, int, int] | None,
    ) -> None:
        self._scene, self._name, self._figure = server.scene, name, figure
        self.bodies: DrawnBodies | None = None
        self.bones: Any = None
        if shapes is not None and shapes.ngeoms:
            self.bodies = DrawnBodies(server, name, model, shapes, color)
        else:
            lines = figure.bones(figure.robot.neutral())
            tone = np.full(lines.shape, color or TRUTH, dtype=np.uint8)
            self.bones = self._scene.add_line_segments(
                f"/{name}/bones", lines, tone, thickness=0.01
            )
        self.ellipsoids: list[Any] = []

    def place(self, x: Array, covariance: Array | None = None) -> None:
        """Move the figure to a state (nq + nv,), its ellipsoids by a covariance (2 nv, 2 nv)."""
        if self.bodies is not None:
            robot = self._figure.robot
            self.bodies.display(robot.all_coordinates(x[: robot.nq]))
        else:
            self.bones.points = self._figure.bones(x).astype(np.float32)
        if covariance is None:
            return
        found = self._figure.ellipsoids(x, covariance)
        while len(self.ellipsoids) < len(found):
            path = f"/{self._name}/ellipsoid {len(self.ellipsoids)}"
            made = self._scene.add_icosphere(
                path, 1.0, ESTIMATE, opacity=0.3, scale=(1.0, 1.0, 1.0)
            )
            self.ellipsoids.append(made)
        for node, one in zip(self.ellipsoids, found, strict=True):
            node.wxyz, node.position = _quaternion(one.axes), one.centre
            node.scale = tuple(map(float, one.half_axes))


class _Forces:
    """Arrows of contact forces, and of impulses for a moment after an event."""

    def __init__(self, scene: Any, run: HybridTrajectory, system: HybridSystem) -> None:
        self._scene, self._run, self._system = scene, run, system
        events = run.guard_events
        self._impulses = [i for e in events for i in event_impulses(system.mechanism, e)]
        self._largest = max((i["size"] for i in self._impulses), default=1.0)
        self._weight = system.mechanism.robot.weight

    def legend(self) -> str:
        """Return what the arrows are, and how long."""
        lines = [f"contact force; {_ARROW:g} m long for {self._weight:.3g} N (the weight) or more"]
        if self._impulses:
            most = f"{_ARROW:g} m long for {self._largest:.3g} N s, the largest"
            lines.append(f"impulse, just after an event; {most}")
        rows = "".join(
            f'<div><b style="color:rgb{tone}">\u2192</b> {line}</div>'
            for tone, line in zip((FORCE, IMPULSE), lines, strict=False)
        )
        return f'<div style="padding:0 1em;font-size:0.8em">{rows}</div>'

    def show(self, t: float) -> None:
        places, forces = contact_forces(self._system, self._run.arc(t), t)
        sizes = np.maximum(np.linalg.norm(forces, axis=1, keepdims=True), self._weight)
        tips = places + _ARROW * forces / sizes
        self._arrows("/forces", [np.array(pair) for pair in zip(places, tips, strict=True)], FORCE)
        recent = [i for i in self._impulses if 0.0 <= t - i["time"] <= _AFTER]
        pairs = [
            np.array([i["place"], i["place"] + _ARROW * i["value"] / self._largest]) for i in recent
        ]
        self._arrows("/impulses", pairs, IMPULSE)

    def _arrows(self, name: str, pairs: Sequence[Array], color: tuple[int, int, int]) -> None:
        long = [pair for pair in pairs if np.linalg.norm(pair[1] - pair[0]) > 1e-3]
        points = np.array(long or [np.zeros((2, 3))], dtype=np.float32)
        self._scene.add_arrows(
            name,
            points,
            color,
            shaft_radius=0.006,
            head_radius=0.015,
            head_length=0.03,
            visible=bool(long),
        )


class _Controls:
    """Slider, play, speed, buttons of the events, and the modes as a time line."""

    def __init__(self, shown: View, legend: str) -> None:
        self._view, run, gui = shown, shown.run, shown.server.gui
        self._contacts = [c.name for c in shown.system.contacts] if shown.system else []
        step = (run.end - run.start) / 10_000
        self._slider = gui.add_slider("time [s]", run.start, run.end, step, run.start)
        self._slider.on_update(self._moved)
        play = gui.add_button("play / pause")
        play.on_click(lambda _: self._toggle())
        self._speed = gui.add_dropdown("speed", tuple(SPEEDS), initial_value="1/4")
        for event in run.guard_events[:12]:
            button = gui.add_button(_event_label(event))
            button.on_click(lambda _, t=event.time: shown.seek(t))
        self.timeline = gui.add_html("")
        gui.add_html(legend)

    def show(self, t: float) -> None:
        self._slider.value = t
        self.timeline.content = timeline_html(self._view.run, t, self._contacts)

    def _moved(self, event: Any) -> None:
        if event.client is not None:  # by hand, not by `show`
            self._view.seek(min(max(self._slider.value, self._view.run.start), self._view.run.end))

    def _toggle(self) -> None:
        if self._view.is_playing:
            self._view.pause()
        else:
            speed = SPEEDS[self._speed.value]
            threading.Thread(target=self._view.play, args=(speed,), daemon=True).start()


def _event_label(event: Event) -> str:
    more = f" and {len(event.guards) - 1} more" if len(event.guards) > 1 else ""
    return f"{event.time:.4f} s: {event.guards[0]}{more}"


def _draw_surface(scene: Any, name: str, surface: object) -> None:
    if isinstance(surface, Plane):
        turn, _ = Rotation.align_vectors([surface.unit_normal], [(0.0, 0.0, 1.0)])
        wxyz = np.roll(turn.as_quat(), 1)
        scene.add_grid(name, 4.0, 4.0, wxyz=wxyz, position=surface.point, cell_size=0.1)
    elif isinstance(surface, Sphere):
        scene.add_icosphere(
            name, surface.radius, (200, 200, 200), opacity=0.4, position=surface.center
        )
    elif isinstance(surface, Terrain):
        vertices, faces = _ground(surface)
        scene.add_mesh_simple(name, vertices, faces, color=(200, 200, 200), side="double")


def _ground(terrain: Terrain) -> tuple[Array, Indices]:
    """Vertices (n^2, 3) and triangles of the ground around the origin."""
    ticks = np.linspace(-_GROUND, _GROUND, _GROUND_TICKS)
    x, y = (each.ravel() for each in np.meshgrid(ticks, ticks))
    vertices = np.column_stack((x, y, terrain.heights(x, y)))
    corner = np.arange(_GROUND_TICKS**2).reshape(_GROUND_TICKS, _GROUND_TICKS)
    a, b, c, d = corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]
    halves = [np.column_stack([each.ravel() for each in half]) for half in ((a, b, c), (a, c, d))]
    return vertices, np.concatenate(halves)


def _quaternion(turn: Array) -> Array:
    """Return the quaternions w, x, y, z of rotation matrices (..., 3, 3)."""
    return np.roll(Rotation.from_matrix(turn).as_quat(), 1, axis=-1)


def _check_sizes(
    robot: Robot,
    run: HybridTrajectory,
    reference: HybridTrajectory | None,
    estimate: FilterResult | None,
) -> None:
    size = robot.nq + robot.nv
    given = {"run": _of_robot(run)}
    if reference is not None:
        given["reference"] = _of_robot(check_instance("reference", reference, HybridTrajectory))
    if estimate is not None:
        given["estimate"] = len(check_instance("estimate", estimate, FilterResult).means[-1])
    for name, found in given.items():
        if found != size:
            raise InputError(
                f"{name} must have states of the robot, nq + nv = {size} numbers, got {found}"
            )


def _of_robot(run: HybridTrajectory) -> int:
    """Return how many entries of the states are those of a robot, as far as the run tells."""
    mechanism = None if run.system is None else run.system.mechanism
    return len(run.final_state) if mechanism is None else mechanism.space.nx


def _viser() -> Any:
    try:
        return import_module("viser")
    except ImportError as error:
        raise InputError('the viewer needs `pip install "hybridctl[view]"`') from error


def timeline_html(run: HybridTrajectory, t: float, contacts: Sequence[str] = ()) -> str:
    """Return the modes of a run over time, a row for each contact, and a mark at time t."""
    sizes = {len(_words(arc.mode)) for arc in run.arcs}
    keys = [_words(arc.mode) if len(sizes) == 1 else (format_mode(arc.mode),) for arc in run.arcs]
    known = dict.fromkeys(word for key in keys for word in key)
    tones = {word: TONES[k % len(TONES)] for k, word in enumerate(known)}
    span = run.end - run.start or 1.0
    parts = [(arc.end - arc.start) / span for arc in run.arcs]
    rows = "".join(_strip(parts, words, tones) for words in zip(*keys, strict=True))
    legend = " ".join(
        f'<span style="background:{tone};padding:0 4px">{escape(word)}</span>'
        for word, tone in tones.items()
    )
    left = f"left:{100.0 * (t - run.start) / span:.2f}%"
    mark = f'<div style="position:absolute;{left};top:0;bottom:0;border-left:2px solid"></div>'
    rows_are = f"<div>rows: {escape(', '.join(contacts))}</div>" if contacts else ""
    now = f"<div>t = {t:.4f} s: {escape(format_mode(run.arc(t).mode))}</div>"
    strips = f'<div style="position:relative">{rows}{mark}</div>'
    return (
        f'<div style="margin:0 1em;font-size:85%">{strips}<div>{legend}</div>{rows_are}{now}</div>'
    )


def _words(mode: ModeKey) -> tuple[str, ...]:
    return tuple(map(str, mode)) if isinstance(mode, tuple) else (str(mode),)


def _strip(parts: list[float], words: tuple[str, ...], tones: dict[str, str]) -> str:
    """Return a row of one contact: a piece for each arc, as long as its part of the run."""
    pieces = "".join(
        f'<div title="{escape(word)}" style="flex:{part:.6f};background:{tones[word]}"></div>'
        for part, word in zip(parts, words, strict=True)
    )
    return f'<div style="display:flex;height:10px;margin:2px 0">{pieces}</div>'
