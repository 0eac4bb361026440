"""A cube tumbles and slides on a table until it lies flat, and obeys the laws of contact.

The event-driven simulator finds every impact, stop and release; time stepping goes over them in
steps of fixed length from the same state. With recorded tosses (`data`) both start from the last
recorded state before the first bounce, and their poses are put beside the recorded ones. A cube
on its corner magnifies errors: it may come to rest on another face.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, Any

import numpy as np
from hybridctl.experiments.contacts.closed_form import draw_contacts
from hybridctl.experiments.cube_filter.tosses import load_toss
from hybridctl.experiments.runners import tabulate
from hybridctl.robots import cube
from rich.console import Console
from scipy.spatial.transform import Rotation

from hybridctl import HybridTrajectory, simulate
from hybridctl.app import plots
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import Pose
from hybridctl.app.report import encode_event, show_progress
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Natural, NotNegative, Positive, Settings, UnitInterval
from hybridctl.mechanics import ContactDynamics, closed_contacts, time_stepping

SUMMARY = "a cube tumbles and slides on a table, beside time stepping and recorded tosses"

OPEN = ("open",) * len(cube.CORNERS)
INSTANTS = 6  # at which poses are drawn, start and end included
LONGEST = 60.0  # s
STEPS = (1e-5, 1e-2)  # s, shortest and longest of time stepping
FLAT = 1e-6  # m, largest gap of the four lowest corners of a cube that lies flat; a choice
PERIOD = 2e-3  # s, of the samples of energy, gaps and forces
ROUNDING = 1e-12  # J, gain of energy at an impact that is no rounding
COLORS = {"events": plots.TRACKING, "stepping": plots.REFERENCE, "recorded": plots.ORANGE}
DISTANCES = {
    "motions": "{name}",
    "mean mm": "{mean_position_mm:.2f}",
    "final mm": "{final_position_mm:.2f}",
    "mean deg": "{mean_angle_deg:.2f}",
    "final deg": "{final_angle_deg:.2f}",
}


@dataclass(frozen=True)
class Config(Settings):
    """The state at the start, and how it is simulated.

    Attributes:
        position: Position of the centre at the start, m.
        attitude: Roll, pitch and yaw at the start, rad.
        velocity: Velocity of the centre in the world at the start, m/s.
        spin: Angular velocity about the axes of the cube at the start, rad/s.
        end: Time at the end, s.
        step: Step of time stepping, s.
        data: File of recorded tosses, from which start and end are taken instead; None for none.
        toss: Number of the toss in that file.
        friction: Coefficient of friction.
        restitution: Coefficient of restitution.
        rtol: Relative tolerance of the event-driven run.
        atol: Absolute tolerance of it.
    """

    position: tuple[float, float, float] = (0.0, 0.0, 0.2)
    attitude: tuple[float, float, float] = (0.5, 0.3, 0.2)
    velocity: tuple[float, float, float] = (1.0, 0.2, 0.0)
    spin: tuple[float, float, float] = (2.0, 6.0, -1.0)
    end: Annotated[float, Meta(gt=0.0, le=LONGEST)] = 1.2
    step: Annotated[float, Meta(ge=STEPS[0], le=STEPS[1])] = 1e-3
    data: str | None = None
    toss: Natural = 0
    friction: NotNegative = 0.18
    restitution: UnitInterval = 0.125
    rtol: Positive = 1e-9
    atol: Positive = 1e-9


@dataclass(frozen=True)
class Drop:
    """A drop of the cube.

    Attributes:
        model: Parameters of the cube.
        start: Initial state (13,).
        times: Times (n,) at which poses are compared, s.
        recorded: Recorded poses (n, 7) at these times; None for a drop that was not recorded.
    """

    model: cube.CubeParameters
    start: Array
    times: Array
    recorded: Array | None


def quick(config: Config) -> Config:
    """Return the settings with looser tolerances and longer steps."""
    return replace(config, rtol=1e-7, atol=1e-7, step=2e-3)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of the drop by events and by time stepping."""
    drop = prepare_drop(config)
    with show_progress(console, 0.0, float(drop.times[-1])) as begin:
        events = simulate_events(config, drop, begin("events"))
        steps = time_stepping(
            cube.robot(drop.model),
            cube.contacts(drop.model),
            drop.start,
            (0.0, drop.times[-1]),
            step=config.step,
            progress=begin("time stepping"),
        )
    poses = {"events": sample_poses(events, drop.times)}
    poses["stepping"] = sample_poses(steps, drop.times)
    if drop.recorded is not None:
        poses["recorded"] = drop.recorded
    differences = {}
    for one, other in combinations(poses, 2):
        mm, degrees = compare_poses(poses[one], poses[other])
        differences[f"{one} - {other}"] = {
            "mean_position_mm": float(mm.mean()),
            "mean_angle_deg": float(degrees.mean()),
            "final_position_mm": float(mm[-1]),
            "final_angle_deg": float(degrees[-1]),
        }
    contact = _find_worst_contact(drop.model, events)
    summary = {
        "differences": differences,
        "rest": describe_rest(drop.model, events),
        "energy": compute_energy(drop.model, events),
        "contact": contact,
        "events": [encode_event(event) for event in events.events],
    }
    slack = 1e-6 * drop.model.mass * drop.model.gravity  # a table that pulled would by the weight
    lowest, least = contact["lowest_gap_m"], contact["least_normal_force_N"]

    def draw(folder: RunFolder) -> None:
        _draw_snapshots(drop.model, drop.times, poses, folder)
        touching = sorted({i for arc in events.arcs for i in closed_contacts(arc.mode)})
        draw_contacts(folder, "", "The cube", events, [cube.CORNERS[i] for i in touching])
        _write_scene(drop.model, events, folder)

    return Findings(
        summary,
        [tabulate("Distances between poses", differences, DISTANCES), *_describe_end(summary)],
        [
            Check("least gap of a corner above the table [m]", lowest, least=-1e-6),
            Check("least normal force of a corner [N]", least, least=-slack),
            Check("friction outside the cone [N]", contact["friction_beyond_cone_N"], slack),
        ],
        {"events": events, "time_stepping": steps},
        draw=draw,
    )


def prepare_drop(config: Config) -> Drop:
    """Return the state in which the run starts, by the settings or by a recording.

    Args:
        config: Settings.

    Raises:
        InputError: A corner would be below the table.
    """
    model = cube.CubeParameters(friction=config.friction, restitution=config.restitution)
    if config.data is not None:
        toss = load_toss(config.data, config.toss)
        model = replace(toss.cube, friction=config.friction, restitution=config.restitution)
        return Drop(model, np.concatenate((toss.poses[0], toss.velocity)), toss.times, toss.poses)
    turn = Rotation.from_euler("xyz", config.attitude)
    velocity = turn.inv().apply(config.velocity)
    start = np.concatenate([config.position, turn.as_quat(), velocity, config.spin])
    gaps = compute_corner_gaps(model, start)
    if gaps.min() < 0.0:
        raise InputError(
            f"position must leave every corner above the table, but corner "
            f"{cube.CORNERS[gaps.argmin()]!r} is {-gaps.min():.3g} m below it"
        )
    samples = int(np.ceil(config.end / PERIOD)) + 1
    return Drop(model, start, np.linspace(0.0, config.end, samples), None)


def compute_corner_gaps(model: cube.CubeParameters, x: Array) -> Array:
    """Return heights (8,) of the corners above the table, m.

    Args:
        model: Parameters of the cube.
        x: Pose (7,), or a state that begins with it.
    """
    return ContactDynamics(cube.robot(model), cube.contacts(model)).gaps(x[:7])


def simulate_events(config: Config, drop: Drop, tick: Callable[[float], None]) -> HybridTrajectory:
    """Return the run with every event.

    Args:
        config: Settings.
        drop: The drop.
        tick: Function that is called with the times reached, s.
    """
    return simulate(
        cube.system(drop.model), OPEN, drop.start, (0.0, drop.times[-1]),
        rtol=config.rtol, atol=config.atol, on_zeno="rest", progress=tick,
    )  # fmt: skip


def sample_poses(run: HybridTrajectory, times: Array) -> Array:
    """Return poses (n, 7) at times (n,): position in m and quaternion.

    Args:
        run: The run.
        times: Times, s.
    """
    return np.array([run(t)[:7] for t in times])


def compare_poses(one: Array, other: Array) -> tuple[Array, Array]:
    """Return distances (n,) in mm and angles (n,) in degrees between poses.

    Args:
        one: Poses (n, 7).
        other: Poses (n, 7) at the same times.
    """
    turn = Rotation.from_quat(one[:, 3:]).inv() * Rotation.from_quat(other[:, 3:])
    distance = np.linalg.norm(one[:, :3] - other[:, :3], axis=1)
    return 1e3 * distance, np.degrees(turn.magnitude())


def _instants(times: Array) -> list[int]:
    """Return the rows at which poses are drawn."""
    return [round(k) for k in np.linspace(0, len(times) - 1, INSTANTS).tolist()]


def describe_rest(model: cube.CubeParameters, run: HybridTrajectory) -> dict[str, Any]:
    """Return whether the cube lies flat at the end, and its speed, as in summary.json.

    Args:
        model: Parameters of the cube.
        run: The run.
    """
    x = run.final_state
    lowest = np.sort(compute_corner_gaps(model, x))[:4]
    return {
        "flat": bool(np.abs(lowest).max() <= FLAT),
        "lowest_four_gaps_m": lowest,
        "speed_m_s": float(np.linalg.norm(x[7:10])),
        "spin_rad_s": float(np.linalg.norm(x[10:])),
        "corners": dict(Counter(run.final_mode)),  # type: ignore[call-overload]
    }


def compute_energy(model: cube.CubeParameters, run: HybridTrajectory) -> dict[str, float]:
    """Return the energy in J at both ends, and its largest gains at an event and on an arc.

    Args:
        model: Parameters of the cube.
        run: The run.
    """
    robot = cube.robot(model)

    def total(x: Array) -> float:
        return sum(robot.energy(x[:7], x[7:]))

    jumps = [total(event.state_after) - total(event.state_before) for event in run.events]
    flows = [np.diff([total(x) for x in arc(t)]).max() for arc, t in run.sampled(PERIOD)]
    losses = [getattr(event.report, "energy_loss", 0.0) for event in run.events]
    return {
        "start_J": total(run(run.start)),
        "end_J": total(run.final_state),
        "largest_gain_at_an_event_J": float(max(jumps, default=0.0)),
        "largest_gain_on_an_arc_J": float(max(flows)),
        "least_loss_at_an_impact_J": float(min(losses, default=0.0)),
    }


def _find_worst_contact(model: cube.CubeParameters, run: HybridTrajectory) -> dict[str, float]:
    """Return the lowest gap, the least normal force, and the largest friction beyond its cone."""
    gaps, pushes, beyond = [np.inf], [np.inf], [-np.inf]
    for arc, _, inside in run.sampled_outputs(PERIOD):
        closed = list(closed_contacts(arc.mode))
        gaps.append(inside["gap"].min())
        normal = inside["normal_force"][:, closed]
        friction = np.linalg.norm(inside["friction_force"][:, closed], axis=2)
        pushes.extend(normal.ravel())
        beyond.extend((friction - model.friction * normal).ravel())
    return {
        "lowest_gap_m": float(min(gaps)),
        "least_normal_force_N": float(min(pushes)),
        "friction_beyond_cone_N": float(max(beyond)),
    }


def _describe_end(summary: Mapping[str, Any]) -> list[str]:
    """Return lines on the rest of the cube and on its energy."""
    rest, energy = summary["rest"], summary["energy"]
    gaps = ", ".join(f"{1e6 * gap:.1e}" for gap in rest["lowest_four_gaps_m"])
    corners = ", ".join(f"{number} {mode}" for mode, number in sorted(rest["corners"].items()))
    found = [
        f"at the end the cube {'lies' if rest['flat'] else 'does not lie'} flat",
        f"gaps of the lowest four corners at the end: {gaps} um; {corners}",
        f"energy: {energy['start_J']:.4f} J to {energy['end_J']:.4f} J",
    ]
    if energy["least_loss_at_an_impact_J"] < -ROUNDING:
        gain = -energy["least_loss_at_an_impact_J"]
        found.append(f"Newton's rule with friction gains up to {gain:.2g} J at an impact")
    return found


def _draw_snapshots(
    model: cube.CubeParameters, times: Array, poses: Mapping[str, Array], folder: RunFolder
) -> None:
    """Save the cube seen along y: by events, and as recorded or else by time stepping."""
    other, color = ("recorded", "orange") if "recorded" in poses else ("stepping", "red")
    looks = {"events": (0.4, 6.0), other: (1.0, 1.2)}  # alpha and width
    edges = {
        name: [[e[:, [0, 2]] for e in _edges(model, poses[name][k])] for k in _instants(times)]
        for name in looks
    }
    corners = np.concatenate([line for lists in edges.values() for e in lists for line in e])
    table = np.array([[corners[:, 0].min(), 0.0], [corners[:, 0].max(), 0.0]])
    scenes = []
    for j, k in enumerate(_instants(times)):
        cubes = [Pose(edges[name][j], COLORS[name], *look) for name, look in looks.items()]
        scenes.append((f"t = {times[k]:.3f} s", [Pose([table], color=plots.BASELINE), *cubes]))
    title = f"The cube from the side: events wide and blue, {other} narrow and {color}"
    plots.save_snapshots(folder / "figures/snapshots.png", scenes, title=title, vertical="z")


def _edges(model: cube.CubeParameters, pose: Array) -> list[Array]:
    """Return the twelve edges in the world, (2, 3) each."""
    offsets = np.array([contact.offset for contact in cube.contacts(model)])
    corners = pose[:3] + Rotation.from_quat(pose[3:]).apply(offsets)
    pairs, signs = combinations(range(len(corners)), 2), np.array(cube.SIGNS)
    return [corners[[a, b]] for a, b in pairs if (signs[a] != signs[b]).sum() == 1]


def _write_scene(model: cube.CubeParameters, run: HybridTrajectory, folder: RunFolder) -> None:
    """Write the motion of the cube above a part of the table, for the page."""
    centres = np.array([arc(arc.end)[:2] for arc in run.arcs] + [run(run.start)[:2]])
    margin = 4.0 * model.half_width
    (x0, y0), (x1, y1) = centres.min(axis=0) - margin, centres.max(axis=0) + margin
    table = np.array([(x0, y0, 0.0), (x1, y0, 0.0), (x1, y1, 0.0), (x0, y1, 0.0), (x0, y0, 0.0)])
    mover = Mover("cube", run, lambda x: _edges(model, x[:7]), system=run.system)
    write_motion(folder, [Scene("The cube on the table", [mover], [table], ("x", "y", "z"))])
