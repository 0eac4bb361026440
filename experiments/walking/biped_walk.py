"""A five-link biped walks on gaits found by optimisation, under feedback across its touchdowns.

The claims: a gait is found from a crude guess and closes on simulation to 1e-8; it is unstable
under its feedforward, and stable under hybrid LQR that knows the saltation matrix, tracked by
reference spreading; the same design with the Jacobian of the reset alone may not be. From random
starts in mid-step it walks on. `full` puts six controllers, tuned with the same budget, through
pushes, steps up and down, slopes, a torso of another mass and late detection, and looks for gaits
at several speeds.

A slip, or a foot that lets go without the other one taking over, counts as a fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hybridctl.experiments.walking import figures
from hybridctl.experiments.walking.controllers import Tracks, Weights, design
from hybridctl.experiments.walking.filtered import STRATEGIES, Loop
from hybridctl.experiments.walking.gait import MARGINS, Gait, find
from hybridctl.experiments.walking.limits import Survived, Trials, candidates, compared
from hybridctl.experiments.walking.walk import Walk, scattered, walk
from rich.console import Console

from hybridctl.checks import Array, count, number, vector
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.errors import HybridctlError
from hybridctl.report import RunFolder, progress, table
from hybridctl.sensitivity.orbits import FloquetMultipliers

SUMMARY = "a five-link biped walks on gaits found by optimisation, with feedback across touchdowns"

_SHOWN = 3  # steps of the animation
_BRIEF = 6  # steps of trials in tuning
_BRIEF_KINDS = ("push", "up", "down")
_GRIDS = {
    "push": "pushes",
    "up": "heights",
    "down": "heights",
    "tilt": "tilts",
    "mass": "masses",
    "late": "delays",
}
_SIZES = {"weights": 3}
_COLUMNS = {  # of the table of limits: title, and how many of its unit there are in one of ours
    "push": ("push [N s]", 1.0),
    "up": ("up [cm]", 100.0),
    "down": ("down [cm]", 100.0),
    "tilt": ("slope [%]", 100.0),
    "mass": ("torso [%]", 100.0),
    "late": ("late [ms]", 1000.0),
}


@dataclass(frozen=True)
class Config:
    """The gait, its feedback, and the trials.

    speed: m/s. clearance: of the swinging foot in mid-step, m. friction: of the ground. torque: the
    greatest, N m. weights: of coordinates in 1/rad^2, velocities in s^2/rad^2 and torques in
    1/(N m)^2. extension: of the reference before and after touchdowns, s. starts, seed, scatter: of
    random starts, with standard deviations in rad and m, rad/s and m/s. steps: to walk.
    full: all controllers and speeds, from `full_starts`. budget: how many weights are tried for
    each controller. What is survived is looked for on grids: pushes in N s, heights of steps up and
    down in m, tilts of gravity against the ground in rad, masses as relative errors of the torso's,
    delays of the detection of touchdowns in s. speeds: of further gaits, m/s. levels: of noise of
    the sensors, where a filter is in the loop, see `filtered.Loop`. filtered: walks, each of
    `filtered_steps`, at each level, with gains for this weight of torques: noise asks for less.
    """

    speed: float = 0.7
    clearance: float = 0.05
    friction: float = 0.7
    torque: float = 100.0
    weights: tuple[float, float, float] = (100.0, 10.0, 0.01)
    extension: float = 0.2
    starts: int = 3
    seed: int = 0
    scatter: tuple[float, float] = (0.01, 0.05)
    steps: int = 50
    full: bool = False
    full_starts: int = 20
    budget: int = 5
    pushes: tuple[float, ...] = (4.0, 7.0, 10.0, 13.0, 16.0, 20.0, 25.0)
    heights: tuple[float, ...] = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05)
    tilts: tuple[float, ...] = (0.01, 0.02, 0.04, 0.06)
    masses: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    delays: tuple[float, ...] = (0.002, 0.005, 0.01, 0.02, 0.05)
    speeds: tuple[float, ...] = (0.5, 0.7, 0.9)
    levels: tuple[float, ...] = (0.1, 0.3, 1.0)
    filtered: int = 3
    filtered_steps: int = 10
    filtered_weight: float = 0.1

    def __post_init__(self) -> None:
        for name in ("speed", "clearance", "friction", "torque", "extension", "filtered_weight"):
            number(name, getattr(self, name), above=0.0)
        for name in ("weights", *_GRIDS.values(), "speeds", "levels"):
            for k, value in enumerate(vector(name, getattr(self, name), _SIZES.get(name))):
                number(f"{name}[{k}]", value, above=0.0)
        for k, value in enumerate(vector("scatter", self.scatter, 2)):
            number(f"scatter[{k}]", value, at_least=0.0)
        for name in ("starts", "full_starts", "steps", "budget", "filtered", "filtered_steps"):
            count(name, getattr(self, name))
        count("seed", self.seed, at_least=0)

    @property
    def walks(self) -> int:
        """How many random starts there are."""
        return self.full_starts if self.full else self.starts


def quick(config: Config) -> Config:
    """Few steps from one start."""
    return replace(
        config,
        starts=1,
        full_starts=1,
        steps=2,
        budget=1,
        pushes=(4.0,),
        heights=(0.01,),
        tilts=(0.01,),
        masses=(0.05,),
        delays=(0.002,),
        speeds=(config.speed,),
        levels=(0.3,),
        filtered=1,
        filtered_steps=2,
    )


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Run the experiment; returns what it writes to summary.json."""
    folder.write_configuration(config, seed=config.seed)
    with console.status("looking for the gait"):
        gait = found_gait(config, config.speed)
        lqr, blind = (design(gait, Weights(*config.weights), jumps) for jumps in _JUMPS)
    with console.status("walking"):
        walks = walked(config, gait, lqr)
    summary = record(gait, lqr, blind, walks)
    print_gaits(console, [gait_row(gait)])
    print_multipliers(console, summary)
    print_walks(console, gait, walks, config.steps)
    if config.full:
        summary |= everything(config, gait, folder, console)
    folder.write_json("summary.json", summary)
    gait.orbit.save(folder / "gait.npz")
    with console.status("drawing figures"):
        figures.draw_gait(folder / "figures/gait.png", gait)
        largest = float(summary["multipliers_closed"][0])
        figures.draw_errors(folder / "figures/errors.png", gait, walks, largest)
        if walks[0].run is not None:
            figures.animate(folder / "figures/walk.gif", gait, walks[0].run, _SHOWN)
            figures.write_walk(folder, gait, walks[0].run)
    return summary


_JUMPS = ("saltation", "reset")


def found_gait(config: Config, speed: float) -> Gait:
    """The gait at a speed."""
    margins = replace(MARGINS, clearance=config.clearance)
    return find(speed, friction=config.friction, torque=config.torque, margins=margins)


def walked(config: Config, gait: Gait, lqr: PeriodicLqr) -> list[Walk]:
    """From random starts, under reference spreading."""
    tracks = Tracks.of(gait, lqr, config.steps, config.extension)
    policy = tracks.policy("spreading", lqr, config.torque)
    random = np.random.default_rng(config.seed)
    return [
        walk(gait, policy, scattered(gait, random, config.scatter), config.steps)
        for _ in range(config.walks)
    ]


def moduli(multipliers: FloquetMultipliers) -> Array:
    """Of the multipliers that are not trivial, the largest first."""
    return np.abs(multipliers.others)


def record(
    gait: Gait, lqr: PeriodicLqr, blind: PeriodicLqr, walks: Sequence[Walk]
) -> dict[str, Any]:
    """What summary.json holds without `full`."""
    opened = gait.map.floquet_multipliers(symmetry=gait.symmetry)
    unaware = gait.map.closed_loop(blind.period.gains.arcs)
    return {
        "speed": gait.speed,
        **gait_record(gait),
        "multipliers_open": moduli(opened),
        "multipliers_closed": moduli(lqr.multipliers),
        "multipliers_closed_without_saltation": moduli(
            unaware.floquet_multipliers(symmetry=gait.symmetry)
        ),
        "multipliers_trivial": {
            name: [float(abs(opened.values[i])) for i, n in opened.trivial.items() if n == name]
            for name in dict.fromkeys(opened.trivial.values())
        },
        "steps_walked": [each.steps for each in walks],
        "falls": [each.reason for each in walks],
    }


def everything(config: Config, gait: Gait, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Several speeds, and what controllers survive."""
    rows, gaits = [], {}
    for speed in config.speeds:
        try:
            at_speed = gait if speed == gait.speed else found_gait(config, speed)
            rows.append(gait_row(at_speed))
            gaits[f"{speed:g}"] = gait_record(at_speed)
        except HybridctlError as error:
            rows.append((f"{speed:g}", "none found", str(error)[:40], "", ""))
    print_gaits(console, rows)
    random = np.random.default_rng(config.seed + 1)
    tried = candidates(Weights(*config.weights), config.budget, random)
    whole = Trials(
        {kind: getattr(config, name) for kind, name in _GRIDS.items()},
        config.full_starts,
        config.scatter,
        config.steps,
        config.seed,
    )
    brief = replace(
        whole,
        sizes={kind: whole.sizes[kind][1::2] for kind in _BRIEF_KINDS},
        starts=1,
        steps=min(_BRIEF, config.steps),
        seed=config.seed + 1,
    )
    with progress(console, 0.0, 1.0) as begin:
        found = compared(
            gait,
            tried,
            brief,
            whole,
            torque=config.torque,
            extension=config.extension,
            tick=begin("controllers"),
        )
    with console.status("walking on estimates"):
        estimated = on_estimates(config, gait)
    print_limits(console, found, config)
    print_estimated(console, estimated, config)
    figures.draw_limits(folder / "figures/limits.png", found, _COLUMNS)
    return {
        "gaits": gaits,
        "largest_push": {each.controller: each.limits["push"] for each in found},
        "step_height": {
            each.controller: 100.0 * min(each.limits["up"], each.limits["down"]) for each in found
        },
        "controllers": {each.controller: controller_record(each) for each in found},
        "on_estimates": estimated,
    }


def on_estimates(config: Config, gait: Gait) -> list[dict[str, Any]]:
    """Walks with a filter in the loop, one record for each level and kind of filter."""
    lqr = design(gait, replace(Weights(*config.weights), torques=config.filtered_weight))
    tracks = Tracks.of(gait, lqr, config.filtered_steps + 1, config.extension)
    records = []
    for level in config.levels:
        for strategy in STRATEGIES:
            loop = Loop(tracks, lqr, config.torque, level, strategy)
            seeds = range(config.seed, config.seed + config.filtered)
            walks = [loop.walked(config.filtered_steps, seed) for seed in seeds]
            records.append(
                {
                    "level": level,
                    "filter": strategy,
                    "steps_walked": [each.steps for each in walks],
                    "errors": [each.error for each in walks],
                    "falls": [each.reason for each in walks],
                }
            )
    return records


def controller_record(each: Survived) -> dict[str, Any]:
    """A controller as it stands in summary.json; limits in the units of the table."""
    w = each.weights
    return {
        "weights": (w.coordinates, w.velocities, w.torques),
        "score": each.score,
        "contraction": each.contraction,
        "is_stable": each.is_stable,
        "steps_walked": each.walked,
        "limits": {title: factor * each.limits[kind] for kind, (title, factor) in _COLUMNS.items()},
        "survived_beyond_the_limit": dict(each.holes),
    }


def gait_record(gait: Gait) -> dict[str, Any]:
    """A gait as it stands in summary.json."""
    return {
        "step_duration": gait.period,
        "closing": gait.closing,
        "cost": gait.step.cost,
        "iterations": gait.step.iterations,
        "seconds": gait.step.seconds,
        "largest_multiplier": float(
            moduli(gait.map.floquet_multipliers(symmetry=gait.symmetry))[0]
        ),
    }


def gait_row(gait: Gait) -> tuple[str, ...]:
    """A gait in the table."""
    r = gait_record(gait)
    return (
        f"{gait.speed:g}",
        f"{r['step_duration']:.4f}",
        f"{r['closing']:.1e}",
        f"{r['iterations']} ({r['seconds']:.1f} s)",
        f"{r['largest_multiplier']:.1f}",
    )


def print_gaits(console: Console, rows: Sequence[tuple[str, ...]]) -> None:
    """Gaits by speed."""
    columns = ["speed [m/s]", "step [s]", "closes to", "iterations", "largest multiplier"]
    console.print(table("Gaits of least squared torque, under their feedforward", columns, rows))


def print_multipliers(console: Console, summary: dict[str, Any]) -> None:
    """The largest multipliers, open and closed."""
    rows = [
        (name, ", ".join(f"{m:.3g}" for m in summary[key][:4]))
        for name, key in (
            ("feedforward", "multipliers_open"),
            ("LQR with saltation", "multipliers_closed"),
            ("LQR, reset's Jacobian only", "multipliers_closed_without_saltation"),
        )
    ]
    console.print(table("Largest multipliers of a step", ["feedback", "moduli"], rows))


def print_walks(console: Console, gait: Gait, walks: Sequence[Walk], steps: int) -> None:
    """How the random starts went."""
    rows = []
    for k, each in enumerate(walks):
        errors = each.errors(gait) if each.run is not None and each.steps else np.zeros(0)
        ends = [f"{errors[i]:.1e}" if len(errors) else "" for i in (0, -1)]
        rows.append((str(k + 1), f"{each.steps} of {steps}", *ends, each.reason or "walks on"))
    columns = ["start", "steps", "error after the first", "after the last", "end"]
    console.print(table("Random starts in mid-step, reference spreading", columns, rows))


def print_limits(console: Console, found: Sequence[Survived], config: Config) -> None:
    """What controllers survive; * where more was survived beyond the first that was not."""
    rows = [
        (
            each.controller + ("" if each.is_stable else " (unstable)"),
            f"{sum(n >= config.steps for n in each.walked)} of {len(each.walked)}",
            *(
                f"{factor * each.limits[kind]:.3g}" + ("*" if each.holes[kind] else "")
                for kind, (_, factor) in _COLUMNS.items()
            ),
            f"{each.contraction:.2f}",
        )
        for each in found
    ]
    columns = ["controller", "starts", *(title for title, _ in _COLUMNS.values()), "error per step"]
    title = f"Survived for {config.steps} steps, each controller tuned over {config.budget} weights"
    console.print(table(title, columns, rows))


def print_estimated(console: Console, records: Sequence[dict[str, Any]], config: Config) -> None:
    """How far walks on estimates went."""
    rows = [
        (
            f"{r['level']:g}",
            r["filter"],
            ", ".join(map(str, r["steps_walked"])),
            ", ".join(f"{error:.3f}" for error in r["errors"]),
        )
        for r in records
    ]
    columns = ["noise", "filter", "steps", "error of the estimate"]
    title = f"On estimates, of {config.filtered_steps} steps (noise 1: encoders 1 mrad, "
    console.print(table(title + "inclination 2 mrad, its rate 10 mrad/s)", columns, rows))
