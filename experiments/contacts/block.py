"""A block lands, slides, stops and is lifted, and another one rocks, as closed forms say.

The first motion is that of Fig. 2.5 of the reference-spreading thesis: dropped tilted with a
horizontal speed, the block hits the ground with one corner, slides on it, hits with the other,
slides on both and stops; then a growing force lifts one corner after the other.

Closed forms. With m the mass, I the moment of inertia, (X, Z) from the centre to a corner, F_0
the height of a force that lifts at distance d from the centre of a block of width w:

- a corner that hits at v_n and slides towards +x gets -v_n / (1/m + X^2/I + mu X Z/I);
- whatever its impacts, a block that falls from rest and slides from speed v to a stop does so
  at v / (mu g): friction is mu times all that carried the weight until then;
- the near corner leaves the ground at F_0 = m g / (1 + 2 d / w);
- a block that slides from speed v stops after v / (mu g) and v^2 / (2 mu g);
- rocking, an impact keeps (1 - 3/2 sin^2 alpha)^2 of the energy, tan alpha = width / height
  (Housner); before the first the energy is that of the fall from the initial tilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from hybridctl.experiments.contacts.closed_form import Comparison, KnownMotion, KnownMotions
from hybridctl.robots import block
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Findings, experiment
from hybridctl.app.page.motion import Mover, Scene
from hybridctl.app.plots import BASELINE, Pose, save_snapshots
from hybridctl.app.report import encode_event, make_record_table
from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings
from hybridctl.base.tables import format_mode
from hybridctl.hybrid.trajectory import Event, HybridTrajectory

SUMMARY = "a block lands, slides, stops and is lifted; another one rocks to Housner's rule"

WITHIN = 1e-5  # s, m, N s, J, and parts of energy: error that the tolerances of a quick run leave
OPEN, SLIDING, PIVOTING = ("open", "open"), ("slip+", "slip+"), ("open", "stick")


@dataclass(frozen=True)
class Config(Settings):
    """The three motions of the block.

    Attributes:
        friction: Coefficient of friction.
        tilt: Initial tilt of the block that lands, rad.
        drop: Gap of its lower corner at the start, m.
        speed: Its speed along the ground at the start, m/s.
        lift_time: Time from which on a force pulls it up, s.
        lift_rate: Rate of that force, N/s.
        lift_offset: Distance of the force to the left of the centre, m.
        landing_duration: Duration of this motion, s.
        slide_speed: Initial speed of the block that slides, m/s.
        lean: Initial tilt of the rocking block, relative to the one at which it balances.
        rocking_duration: Duration of its motion, s.
        rtol: Relative tolerance of the simulations.
        atol: Absolute tolerance of the simulations.
    """

    friction: Positive = 0.3
    tilt: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.25
    drop: Positive = 0.08
    speed: Positive = 1.0
    lift_time: Positive = 0.6
    lift_rate: Positive = 15.0
    lift_offset: Positive = 0.03
    landing_duration: Positive = 1.5
    slide_speed: Positive = 1.0
    lean: Annotated[float, Meta(gt=0.0, le=0.95)] = 0.5
    rocking_duration: Positive = 2.0
    rtol: Positive = 1e-9
    atol: Positive = 1e-9

    def __post_init__(self) -> None:
        super().__post_init__()
        stop = self.speed / (self.friction * self.model.gravity)
        check_number("lift_time", self.lift_time, above=stop)
        check_number("landing_duration", self.landing_duration, above=self.lift_time)

    @property
    def model(self) -> block.BlockParameters:
        """Parameters of the block that lands and of the one that slides."""
        return block.BlockParameters(friction=self.friction)


def quick(config: Config) -> Config:
    """Return the settings with looser tolerances and less rocking."""
    return replace(config, rtol=1e-7, atol=1e-7, rocking_duration=1.0)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of the three motions beside their closed forms."""
    blocks = KnownMotions(
        _define_motions(config),
        "Blocks against closed forms",
        "every impulse, stop and release is the closed form's",
        WITHIN,
        lambda runs: [
            _define_scene("The block that lands and is lifted", config.model, runs["landing"]),
            _define_scene("The rocking block", block.ROCKING, runs["rocking"]),
        ],
        lambda runs, folder: _draw_snapshots(config, runs["landing"], folder),
        lambda runs: [_tabulate_events(runs["landing"])],
    )
    return blocks.simulate(config.rtol, config.atol, console)


def _define_motions(config: Config) -> dict[str, KnownMotion]:
    """Return the block that lands and is lifted, the one that slides, the one that rocks.

    Args:
        config: Settings.
    """
    model = config.model
    slide_time = 1.2 * config.slide_speed / (model.friction * model.gravity)
    on_ground = np.array([0.0, 0.5 * model.height, 0.0, config.slide_speed, 0.0, 0.0])
    return {
        "landing": KnownMotion(
            block.system(model, actuated=True),
            OPEN,
            _tilted_start(config),
            config.landing_duration,
            partial(_compare_landing, config),
            lambda t, x: _lifting_force(config, t),
            "The block that lands and is lifted",
        ),
        "sliding": KnownMotion(
            block.system(model), SLIDING, on_ground, slide_time, partial(_compare_sliding, config)
        ),
        "rocking": KnownMotion(
            block.system(block.ROCKING),
            PIVOTING,
            _leaning_start(config),
            config.rocking_duration,
            partial(_compare_rocking, config),
            title="The rocking block",
        ),
    }


def _corner(model: block.BlockParameters, pitch: float, side: float) -> Array:
    """Return the vector (X, Z) from the centre to the lower left (side -1) or right (1) corner."""
    half, below = 0.5 * side * model.width, -0.5 * model.height
    c, s = np.cos(pitch), np.sin(pitch)
    return np.array([c * half + s * below, -s * half + c * below])


def _tilted_start(config: Config) -> Array:
    """Return the state of the block in the air, its right corner lower, moving along the ground."""
    height = config.drop - _corner(config.model, config.tilt, 1.0)[1]
    return np.array([0.0, height, config.tilt, config.speed, 0.0, 0.0])


def _leaning_start(config: Config) -> Array:
    """Return the state of the rocking block at rest on its right corner."""
    x, z = _corner(block.ROCKING, config.lean * _slenderness(), 1.0)
    return np.array([-x, -z, config.lean * _slenderness(), 0.0, 0.0, 0.0])


def _slenderness() -> float:
    """Return the tilt alpha at which the rocking block balances on a corner, rad."""
    return float(np.arctan2(block.ROCKING.width, block.ROCKING.height))


def _lifting_force(config: Config, t: float) -> Array:
    """Return forces along x and z and the torque about y of a force left of the centre."""
    force = config.lift_rate * max(t - config.lift_time, 0.0)
    return np.array([0.0, force, config.lift_offset * force])


def _compare_landing(config: Config, run: HybridTrajectory) -> list[Comparison]:
    """Return the first impact, the stop, and the release of the first corner."""
    model, touch = config.model, run.events[0]
    q, v = touch.state_before[:3], touch.state_before[3:]
    x, z = _corner(model, q[2], 1.0)
    inertia = model.pitch_inertia
    compliance = 1.0 / model.mass + (x * x + model.friction * x * z) / inertia
    stop = config.speed / (model.friction * model.gravity)
    force = model.mass * model.gravity / (1.0 + 2.0 * config.lift_offset / model.width)
    release = config.lift_time + force / config.lift_rate
    return [
        Comparison("first impulse [N s]", touch.impulses[1], -(v[1] - x * v[2]) / compliance),
        Comparison("time of the stop [s]", _find_first(run, "sticks").time, stop),
        Comparison(
            "time when the left corner opens [s]", _find_first(run, "left opens").time, release
        ),
    ]


def _compare_sliding(config: Config, run: HybridTrajectory) -> list[Comparison]:
    """Return time and distance to the stop."""
    deceleration = config.friction * config.model.gravity
    stop = _find_first(run, "sticks")
    v = config.slide_speed
    return [
        Comparison("time of the stop [s]", stop.time, v / deceleration),
        Comparison("distance [m]", stop.state_after[0], v**2 / (2.0 * deceleration)),
    ]


def _compare_rocking(config: Config, run: HybridTrajectory) -> list[Comparison]:
    """Return the energy before the first impact, and the share that every impact keeps.

    Args:
        config: Settings.
        run: Run of the rocking block.
    """
    model, robot, alpha = block.ROCKING, block.robot(block.ROCKING), _slenderness()
    radius = 0.5 * float(np.hypot(model.width, model.height))
    fall = radius * (np.cos(alpha * (1.0 - config.lean)) - np.cos(alpha))
    energies = [
        [robot.energy(x[:3], x[3:])[0] for x in (event.state_before, event.state_after)]
        for event in run.events
    ]
    kept = (1.0 - 1.5 * np.sin(alpha) ** 2) ** 2
    return [
        Comparison(
            "energy before the first impact [J]", energies[0][0], model.mass * model.gravity * fall
        ),
        *(
            Comparison(f"share of the energy kept by impact {k} [1]", after / before, kept)
            for k, (before, after) in enumerate(energies, 1)
        ),
    ]


def _find_first(run: HybridTrajectory, guard: str) -> Event:
    """Return the first event of a guard whose name ends so.

    Raises:
        InputError: There is none.
    """
    for event in run.events:
        if any(name.endswith(guard) for name in event.guards):
            return event
    raise InputError(f"with these settings no corner {guard.split()[-1]}, as the block should")


def _tabulate_events(run: HybridTrajectory) -> Table:
    """Return the table of events and impulses of a run."""
    rows = [{**encode_event(event), "modes": format_mode(event.mode_after)} for event in run.events]
    columns = {
        "event": "{guards}",
        "modes after": "{modes}",
        "time [s]": "{time:.6f}",
        "left [N s]": "{impulses[0]:.4f}",
        "right [N s]": "{impulses[1]:.4f}",
    }
    title = "A block lands, slides, stops and is lifted: events, impulses of corners"
    return make_record_table(title, rows, columns)


def _define_scene(title: str, model: block.BlockParameters, run: HybridTrajectory) -> Scene:
    """Return a block that moves above the ground."""
    ground = _ground_below(model, [run.start, *(event.time for event in run.events), run.end], run)
    mover = Mover("block", run, lambda x: [_outline(model, x)], system=run.system)
    return Scene(title, [mover], [ground], ("x", "z"))


def _ground_below(
    model: block.BlockParameters, times: Sequence[float], run: HybridTrajectory
) -> Array:
    """Return the ground (2, 2), as far as the block gets at these times."""
    centres = [run(t)[0] for t in times]
    return np.array([[min(centres) - model.width, 0.0], [max(centres) + model.width, 0.0]])


def _draw_snapshots(config: Config, run: HybridTrajectory, folder: RunFolder) -> None:
    """Save the block at its start, at its events, and at the end."""
    captions = ["dropped", *(", ".join(event.guards) for event in run.events), "end"]
    times = [run.start, *(event.time for event in run.events), run.end]
    states = [run(t) for t in times]
    ground = _ground_below(config.model, times, run)
    scenes = [
        (
            f"t = {t:.3f} s: {caption}",
            [Pose([ground], color=BASELINE), Pose([_outline(config.model, x)])],
        )
        for t, caption, x in zip(times, captions, states, strict=True)
    ]
    save_snapshots(
        folder / "figures/landing_snapshots.png", scenes, title="The block", vertical="z"
    )


def _outline(model: block.BlockParameters, x: Array) -> Array:
    """Return the sides of the block (5, 2) in the world."""
    left, right = (_corner(model, x[2], side) for side in (-1.0, 1.0))
    return np.array([x[:2] + part for part in (left, right, -left, -right, left)])
