"""A cube that tumbles and slides on a table until it lies flat, simulated in two ways.

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
from hybridctl.experiments.contacts.recorded_tosses import Toss, load_toss
from hybridctl.robots import cube
from rich.console import Console
from rich.table import Table
from scipy.spatial.transform import Rotation

from hybridctl import HybridTrajectory, simulate
from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import (
    BASELINE,
    ORANGE,
    REFERENCE,
    TRACKING,
    Line,
    Panel,
    Pose,
    series,
    snapshots,
)
from hybridctl.app.report import encode_event, progress, record_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Natural, NotNegative, Positive, Settings, UnitInterval
from hybridctl.mechanics import ContactDynamics, closed_contacts, time_stepping

SUMMARY = "a cube tumbles and slides on a table, beside time stepping and recorded tosses"

OPEN = ("open",) * len(cube.CORNERS)
INSTANTS = 6  # at which poses are put side by side and drawn, start and end included
LONGEST = 60.0  # s
STEPS = (1e-5, 1e-2)  # s, shortest and longest of time stepping
FLAT = 1e-6  # m; a cube lies flat if its four lowest corners are nearer to the table than this
PERIOD = 2e-3  # s, of the samples of energy, gaps and forces
ROUNDING = 1e-12  # J; an impact that loses less than minus this gains energy


@dataclass(frozen=True)
class Config(Settings):
    """State at the start, without `data`: m, rad (roll, pitch, yaw), m/s, rad/s; end in s.

    velocity: in the world. spin: about the axes of the cube. step: of time stepping, s. data:
    file of recorded tosses, from which toss number `toss` is taken; it says how long the run is.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is not None and not isinstance(self.data, str):
            raise InputError(f"data must be the path of a file, got {self.data!r}")


@dataclass(frozen=True)
class Drop:
    """The model, the state at the start, the times at which poses are compared, the recording."""

    model: cube.CubeParameters
    start: Array
    times: Array
    recorded: Array | None


@dataclass(frozen=True)
class Difference:
    """How far poses are apart at the same times: (n,) in mm and degrees."""

    position: Array
    angle: Array

    def record(self) -> dict[str, float]:
        """The mean and final difference as they stand in summary.json."""
        columns = {"position_mm": self.position, "angle_deg": self.angle}
        means = {f"mean_{name}": float(column.mean()) for name, column in columns.items()}
        return {**means, **{f"final_{name}": float(c[-1]) for name, c in columns.items()}}


def quick(config: Config) -> Config:
    """The settings with looser tolerances and longer steps."""
    return replace(config, rtol=1e-7, atol=1e-7, step=2e-3)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Simulate the drop by events and by time stepping."""
    drop = prepare(config)
    with progress(console, 0.0, float(drop.times[-1])) as begin:
        events = simulate_events(config, drop, begin("events"))
        steps = simulate_steps(config, drop, begin("time stepping"))
    poses = {"events": poses_at(events, drop.times), "stepping": poses_at(steps, drop.times)}
    if drop.recorded is not None:
        poses["recorded"] = drop.recorded
    contact = contact_of(drop.model, events)
    summary = {
        "poses": side_by_side(drop.times, poses),
        "differences": {name: d.record() for name, d in compare(poses).items()},
        "rest": rest_of(drop.model, events),
        "modes": mode_counts(events),
        "energy": energy_of(drop.model, events),
        "contact": contact,
        "events": [encode_event(event) for event in events.events],
    }
    return Findings(
        summary,
        printed(summary),
        checks(contact, drop.model),
        {"events": events, "time_stepping": steps},
        draw=lambda folder: draw_all(drop.model, drop.times, poses, events, folder),
    )


def prepare(config: Config) -> Drop:
    """The state in which the run starts."""
    model = cube.CubeParameters(friction=config.friction, restitution=config.restitution)
    if config.data is None:
        turn = Rotation.from_euler("xyz", config.attitude)
        velocity = turn.inv().apply(config.velocity)
        start = np.concatenate([config.position, turn.as_quat(), velocity, config.spin])
        check_clear(model, start)
        samples = int(np.ceil(config.end / PERIOD)) + 1
        return Drop(model, start, np.linspace(0.0, config.end, samples), None)
    toss: Toss = load_toss(config.data, config.toss)
    model = replace(toss.cube, friction=config.friction, restitution=config.restitution)
    return Drop(model, np.concatenate((toss.poses[0], toss.velocity)), toss.times, toss.poses)


def check_clear(model: cube.CubeParameters, start: Array) -> None:
    """Raise `InputError` if a corner is below the table."""
    gaps = corner_gaps(model, start)
    if gaps.min() < 0.0:
        raise InputError(
            f"position must leave every corner above the table, but corner "
            f"{cube.CORNERS[gaps.argmin()]!r} is {-gaps.min():.3g} m below it"
        )


def corner_gaps(model: cube.CubeParameters, x: Array) -> Array:
    """Heights of the eight corners above the table."""
    return ContactDynamics(cube.robot(model), cube.contacts(model)).gaps(x[:7])


def simulate_events(config: Config, drop: Drop, tick: Callable[[float], None]) -> HybridTrajectory:
    """The run with every event."""
    return simulate(
        cube.system(drop.model),
        OPEN,
        drop.start,
        (0.0, drop.times[-1]),
        rtol=config.rtol,
        atol=config.atol,
        on_zeno="rest",
        progress=tick,
    )


def simulate_steps(config: Config, drop: Drop, tick: Callable[[float], None]) -> HybridTrajectory:
    """The run in steps of fixed length."""
    return time_stepping(
        cube.robot(drop.model),
        cube.contacts(drop.model),
        drop.start,
        (0.0, drop.times[-1]),
        step=config.step,
        progress=tick,
    )


def poses_at(run: HybridTrajectory, times: Array) -> Array:
    """Position and quaternion (n, 7)."""
    return np.array([run(t)[:7] for t in times])


def side_by_side(times: Array, poses: Mapping[str, Array]) -> dict[str, Array]:
    """Times and poses (n, 7) of every motion at a few instants, quaternions of equal sign."""
    chosen = instants(times)
    result = {"times": times[chosen]}
    reference = poses["events"][chosen, 3:]
    for name, all_poses in poses.items():
        result[name] = all_poses[chosen].copy()
        opposite = np.einsum("ni,ni->n", result[name][:, 3:], reference) < 0.0
        result[name][opposite, 3:] *= -1.0
    return result


def instants(times: Array) -> list[int]:
    """The rows at which poses are looked at."""
    return [round(k) for k in np.linspace(0, len(times) - 1, INSTANTS).tolist()]


def compare(poses: Mapping[str, Array]) -> dict[str, Difference]:
    """A comparison of every pair of motions, by name."""
    return {
        f"{one} - {other}": difference(poses[one], poses[other])
        for one, other in combinations(poses, 2)
    }


def difference(one: Array, other: Array) -> Difference:
    """How far poses (n, 7) are apart."""
    turn = Rotation.from_quat(one[:, 3:]).inv() * Rotation.from_quat(other[:, 3:])
    distance = np.linalg.norm(one[:, :3] - other[:, :3], axis=1)
    return Difference(1e3 * distance, np.degrees(turn.magnitude()))


def rest_of(model: cube.CubeParameters, run: HybridTrajectory) -> dict[str, Any]:
    """How flat the cube lies at the end, and how fast it still is."""
    x = run.final_state
    lowest = np.sort(corner_gaps(model, x))[:4]
    return {
        "flat": bool(np.abs(lowest).max() <= FLAT),
        "lowest_four_gaps_m": lowest,
        "speed_m_s": float(np.linalg.norm(x[7:10])),
        "spin_rad_s": float(np.linalg.norm(x[10:])),
        "corners": dict(Counter(run.final_mode)),  # type: ignore[call-overload]
    }


def mode_counts(run: HybridTrajectory) -> dict[str, Any]:
    """How many modes the run went through, and corners that close, open, slip and stick."""
    fired = Counter(guard.split()[-1] for event in run.events for guard in event.guards)
    return {
        "events": len(run.events),
        "modes": len({arc.mode for arc in run.arcs}),
        "guards": dict(fired),
        "rests": sum(event.accumulation is not None for event in run.events),
    }


def energy_of(model: cube.CubeParameters, run: HybridTrajectory) -> dict[str, float]:
    """Energy in J at both ends, and the most it grows at an event and on an arc."""
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


def contact_of(model: cube.CubeParameters, run: HybridTrajectory) -> dict[str, float]:
    """The lowest gap, the least normal force, and friction beyond its cone at most."""
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


def checks(contact: Mapping[str, float], model: cube.CubeParameters) -> list[Check]:
    """What holds of contacts on the whole way; a table that pulled would do so by its weight."""
    slack = 1e-6 * model.mass * model.gravity
    return [
        Check("least gap of a corner above the table [m]", contact["lowest_gap_m"], least=-1e-6),
        Check("least normal force of a corner [N]", contact["least_normal_force_N"], least=-slack),
        Check("friction outside the cone [N]", contact["friction_beyond_cone_N"], slack),
    ]


def printed(summary: Mapping[str, Any]) -> list[Table | str]:
    """Poses side by side, where the cube came to rest, and what happened to its energy."""
    rows = [{"name": name, **found} for name, found in summary["differences"].items()]
    columns = {
        "motions": "{name}",
        "mean mm": "{mean_position_mm:.2f}",
        "final mm": "{final_position_mm:.2f}",
        "mean deg": "{mean_angle_deg:.2f}",
        "final deg": "{final_angle_deg:.2f}",
    }
    rest, modes, energy = (summary[name] for name in ("rest", "modes", "energy"))
    gaps = ", ".join(f"{1e6 * gap:.1e}" for gap in rest["lowest_four_gaps_m"])
    found: list[Table | str] = [
        pose_table(summary["poses"]),
        record_table("Distances between poses: mean and final", rows, columns),
        f"at the end the cube {'lies' if rest['flat'] else 'does not lie'} flat",
        f"gaps of the lowest four corners at the end: {gaps} um; {_counted(rest['corners'])}",
        f"{modes['events']} events through {modes['modes']} modes, corners: "
        f"{_counted(modes['guards'])}",
        f"energy: {energy['start_J']:.4f} J to {energy['end_J']:.4f} J",
    ]
    if energy["least_loss_at_an_impact_J"] < -ROUNDING:
        gain = -energy["least_loss_at_an_impact_J"]
        found.append(f"Newton's rule with friction gains up to {gain:.2g} J at an impact")
    return found


def pose_table(poses: Mapping[str, Array]) -> Table:
    """A table of every motion at the same times, one below the other."""
    motions = [name for name in poses if name != "times"]
    rows = [
        {"time": t, "name": name, "place": 1e3 * poses[name][k, :3], "turn": poses[name][k, 3:]}
        for k, t in enumerate(poses["times"])
        for name in motions
    ]
    columns = {"t [s]": "{time:.3f}", "motion": "{name}"}
    columns |= {axis: f"{{place[{i}]:.1f}}" for i, axis in enumerate("xyz")}
    columns |= {f"q_{axis}": f"{{turn[{i}]:.2f}}" for i, axis in enumerate("xyzw")}
    return record_table("Poses side by side: positions in mm, quaternions", rows, columns)


def _counted(counts: Mapping[str, int]) -> str:
    """The words with their counts."""
    return ", ".join(f"{number} {word}" for word, number in sorted(counts.items())) or "none"


STYLES = {"events": (TRACKING, "-"), "stepping": (REFERENCE, "--"), "recorded": (ORANGE, "-")}


def draw_all(
    model: cube.CubeParameters,
    times: Array,
    poses: Mapping[str, Array],
    run: HybridTrajectory,
    folder: RunFolder,
) -> None:
    """Save every figure of the experiment."""
    draw_poses(times, poses, folder)
    draw_snapshots(model, times, poses, folder)
    touching = sorted({i for arc in run.arcs for i in closed_contacts(arc.mode)})
    draw_contacts(folder, "", "The cube", run, [cube.CORNERS[i] for i in touching])
    write_scene(model, run, folder)


def draw_poses(times: Array, poses: Mapping[str, Array], folder: RunFolder) -> None:
    """Position (left) and quaternion (right) of every motion, named in the first panel."""
    steady = {name: _continuous(p) for name, p in poses.items()}
    position = [
        Panel(f"{axis} [mm]", [_line(times, 1e3 * p[:, i], n, i == 0) for n, p in steady.items()])
        for i, axis in enumerate("xyz")
    ]
    attitude = [
        Panel(f"quaternion {part} [1]", [_line(times, p[:, 3 + i], n) for n, p in steady.items()])
        for i, part in enumerate("xyzw")
    ]
    angle = Panel("angle from the start [deg]", [_turned(times, p, n) for n, p in poses.items()])
    rows = [[a, b] for a, b in zip([*position, angle], attitude, strict=True)]
    series(folder / "figures/poses.png", rows, title="Position and attitude of the cube")


def _line(times: Array, values: Array, name: str, named: bool = False) -> Line:
    color, style = STYLES[name]
    return Line(times, values, name if named else None, color, style)


def _turned(times: Array, poses: Array, name: str) -> Line:
    """The curve of the angle in degrees between the attitude and the one at the start."""
    turns = Rotation.from_quat(poses[:, 3:])
    return _line(times, np.degrees((turns[0].inv() * turns).magnitude()), name)


def _continuous(poses: Array) -> Array:
    """Poses whose quaternions do not change sign from one sample to the next."""
    q = poses[:, 3:]
    flips = np.where(np.einsum("ni,ni->n", q[1:], q[:-1]) < 0.0, -1.0, 1.0)
    sign = np.concatenate(([1.0], np.cumprod(flips)))
    return np.hstack((poses[:, :3], sign[:, None] * q))


def draw_snapshots(
    model: cube.CubeParameters, times: Array, poses: Mapping[str, Array], folder: RunFolder
) -> None:
    """The cube seen along y: by events, and as recorded or else by time stepping."""
    other, color = ("recorded", "orange") if "recorded" in poses else ("stepping", "red")
    shown = {"events": poses["events"], other: poses[other]}
    edges = {
        name: [[edge[:, [0, 2]] for edge in _edges(model, p[k])] for k in instants(times)]
        for name, p in shown.items()
    }
    corners = np.concatenate([line for lists in edges.values() for e in lists for line in e])
    table = np.array([[corners[:, 0].min(), 0.0], [corners[:, 0].max(), 0.0]])
    scenes = []
    for j, k in enumerate(instants(times)):
        cubes = [
            Pose(edges[name][j], color=STYLES[name][0], alpha=alpha, width=width)
            for name, (alpha, width) in zip(shown, ((0.4, 6.0), (1.0, 1.2)), strict=True)
        ]
        scenes.append((f"t = {times[k]:.3f} s", [Pose([table], color=BASELINE), *cubes]))
    snapshots(
        folder / "figures/snapshots.png",
        scenes,
        title=f"The cube from the side: events wide and blue, {other} narrow and {color}",
        vertical="z",
    )


def _edges(model: cube.CubeParameters, pose: Array) -> list[Array]:
    """The twelve edges in the world, (2, 3) each."""
    offsets = np.array([contact.offset for contact in cube.contacts(model)])
    corners = pose[:3] + Rotation.from_quat(pose[3:]).apply(offsets)
    pairs, signs = combinations(range(len(corners)), 2), np.array(cube.SIGNS)
    return [corners[[a, b]] for a, b in pairs if (signs[a] != signs[b]).sum() == 1]


def write_scene(model: cube.CubeParameters, run: HybridTrajectory, folder: RunFolder) -> None:
    """Write the motion of the cube above a part of the table, for the page."""
    centres = np.array([arc(arc.end)[:2] for arc in run.arcs] + [run(run.start)[:2]])
    margin = 4.0 * model.half_width
    (x0, y0), (x1, y1) = centres.min(axis=0) - margin, centres.max(axis=0) + margin
    table = np.array([(x0, y0, 0.0), (x1, y0, 0.0), (x1, y1, 0.0), (x0, y1, 0.0), (x0, y0, 0.0)])
    mover = Mover("cube", run, lambda x: _edges(model, x[:7]), system=run.system)
    write_motion(folder, [Scene("The cube on the table", [mover], [table], ("x", "y", "z"))])
