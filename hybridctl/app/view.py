"""A run of a robot in space, as a page for the browser: meshes, forces, modes over time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape

from hybridctl.app.page.build import render_motion_page
from hybridctl.app.page.figure import Figure, list_world_surfaces
from hybridctl.app.page.html_file import HtmlFile
from hybridctl.app.page.motion import Mover, Scene
from hybridctl.app.page.shapes import RobotShapes, make_plane_grid, make_surface_shapes
from hybridctl.base.checks import check_instance, check_number
from hybridctl.base.errors import InputError
from hybridctl.control.reference import Reference
from hybridctl.estimation.result import FilterResult
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.urdf import shapes_of

TRUTH, REFERENCE, ESTIMATE = "#5a5a61", "#e69f00", "#0072b2"


class View(HtmlFile):
    """A run of a robot in space, as one HTML file that needs no network and no server.

    The page is written when the view is made. `open` shows it in the browser, a notebook shows it
    as the last line of a cell, and the file can be kept or sent. It has the meshes of the robot,
    contact forces and impulses as arrows, the modes over time, and a way to each event.

    Args:
        run: The run. Its states are those of the robot, or begin with these.
        robot: What moves. For a contact system, or one made of it, its surfaces, contact
            forces and impulses are shown too. None for the system that was simulated.
        reference: Another motion of the same robot, drawn beside it.
        estimate: An estimate of the same robot, drawn by the means of all hypotheses together,
            with ellipsoids of three standard deviations around its points.
        urdf: Path of the URDF with the meshes, or its text. If None, the URDF that the robot
            was built from. A robot without shapes is drawn as lines between its joints.
        packages: Folders that hold what `package://` names.
        path: HTML file to write. If None, a new one among the temporary files, which `close`
            removes.

    Attributes:
        run: The run.
        scene: What the page shows, as pages of experiments describe it: movers "robot",
            "reference" and "estimate", and surfaces.
        path: The HTML file.
        time: Time at which the page begins, s; see `seek`.

    Raises:
        InputError: States are not those of the robot, or a mesh is to be drawn and
            `hybridctl[view]` is not installed.
        FileFormatError: Shapes or meshes cannot be read.
        FileWriteError: The page cannot be written.
        UnknownNameError: The path does not end in .html or .htm.
    """

    def __init__(
        self,
        run: HybridTrajectory,
        robot: Robot | HybridSystem | None = None,
        *,
        reference: HybridTrajectory | Reference | None = None,
        estimate: FilterResult | None = None,
        urdf: str | os.PathLike[str] | None = None,
        packages: Sequence[str | os.PathLike[str]] = (),
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.run = check_instance("run", run, HybridTrajectory)
        self.time = run.start
        if robot is None:
            robot = run.system
        if robot is None or (isinstance(robot, HybridSystem) and robot.mechanism is None):
            raise InputError(
                f"robot must say what moves, as the run is one of {robot!r}, which has no robot"
            )
        self.scene = make_scene(
            run, robot, reference=reference, estimate=estimate, urdf=urdf, packages=packages
        )
        super().__init__(render_motion_page(find_robot(robot).model.name, [self.scene]), path)

    @property
    def address(self) -> str:
        """The address at which a browser of this machine finds the page, at the time of `seek`."""
        return f"{super().address}#t={self.time!r}"

    def seek(self, t: float) -> None:
        """Set the time at which the page begins when it is opened next.

        Args:
            t: Time of the run, s.

        Raises:
            InputError: The time is outside of the run.
        """
        self.time = check_number("t", t, at_least=self.run.start, at_most=self.run.end)

    def _repr_html_(self) -> str:
        # A frame of a notebook has no address: the time is written into the page.
        at_time = f'<div id="motion" data-time="{self.time!r}"'
        return super()._repr_html_().replace(escape('<div id="motion"'), escape(at_time))


view = View


def find_robot(robot: Robot | HybridSystem) -> Robot:
    """Return a robot, or that of a contact system or of one made of it.

    Raises:
        InputError: The system has none.
    """
    system = robot.mechanism if isinstance(robot, HybridSystem) else None
    return check_instance("robot", robot if system is None else system.robot, Robot)


def make_scene(
    run: HybridTrajectory,
    robot: Robot | HybridSystem,
    *,
    reference: HybridTrajectory | Reference | None = None,
    estimate: FilterResult | None = None,
    urdf: str | os.PathLike[str] | None = None,
    packages: Sequence[str | os.PathLike[str]] = (),
    shapes: bool = True,
) -> Scene:
    """Return the scene of a run in space.

    Args:
        run: See `View`, as the others.
        robot: See `View`.
        reference: See `View`.
        estimate: See `View`.
        urdf: See `View`.
        packages: See `View`.
        shapes: Whether links have the shapes of the URDF; else they are lines between joints.

    Raises:
        InputError: States are not those of the robot, or a mesh is to be drawn and
            `hybridctl[view]` is not installed.
        FileFormatError: Shapes or meshes cannot be read.
    """
    given = robot if isinstance(robot, HybridSystem) else None
    system = None if given is None else given.mechanism
    body = find_robot(robot)
    nominal = reference.nominal if isinstance(reference, Reference) else reference
    _check_sizes(body, run, nominal, estimate)
    source = body.source if urdf is None else urdf
    geometry = None if source is None or not shapes else shapes_of(body.model, source, packages)
    contacts = () if system is None else system.contacts
    figure = Figure(body, contacts)

    bodies = RobotShapes(body, geometry) if geometry is not None and geometry.ngeoms else None
    # A run that was pushed has more inputs than the system that was given: forces need its own.
    own = given if run.system is None or run.system.mechanism is None else run.system
    shown = None if system is None else own
    bones = figure.find_bones
    movers = [Mover("robot", run, bones, TRUTH, shown, bodies)]
    if nominal is not None:
        tinted = None if bodies is None else bodies.tint(REFERENCE)
        movers.append(Mover("reference", nominal, bones, REFERENCE, bodies=tinted))
    if estimate is not None:
        tinted = None if bodies is None else bodies.tint(ESTIMATE)
        known = figure.find_ellipsoids
        movers.append(Mover("estimate", estimate, bones, ESTIMATE, None, tinted, known))
    surfaces = list_world_surfaces(contacts)
    grids = [make_plane_grid(each) for each in surfaces if isinstance(each, Plane)]
    return Scene(
        "",
        movers,
        [line for grid in grids for line in grid],
        ("x", "y", "z"),
        make_surface_shapes(surfaces),
    )


def _check_sizes(
    robot: Robot,
    run: HybridTrajectory,
    reference: HybridTrajectory | None,
    estimate: FilterResult | None,
) -> None:
    """Check that states have the size of the robot's.

    Raises:
        InputError: A motion has states of another size.
    """
    size = robot.nq + robot.nv
    given = {"run": _find_robot_size(run)}
    if reference is not None:
        checked = check_instance("reference", reference, HybridTrajectory)
        given["reference"] = _find_robot_size(checked)
    if estimate is not None:
        given["estimate"] = len(check_instance("estimate", estimate, FilterResult).means[-1])
    for name, found in given.items():
        if found != size:
            raise InputError(
                f"{name} must have states of the robot, nq + nv = {size} numbers, got {found}"
            )


def _find_robot_size(run: HybridTrajectory) -> int:
    """Return how many entries of the states are those of a robot, as far as the run tells."""
    mechanism = None if run.system is None else run.system.mechanism
    return len(run.final_state) if mechanism is None else mechanism.space.nx
