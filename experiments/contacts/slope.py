"""A ball that falls on a slope slides, stops, sticks or bounces as closed forms say.

The example of the saltation tutorial, section V, with Coulomb friction and restitution. With v_t
the velocity down the slope, v_n that away from it and th its angle:

- an impact takes mu (1 + e) |v_n| off v_t, at most all of it, and turns v_n into -e v_n;
- the ball then slides with acceleration g (sin th - mu cos th), or stays where mu > tan th;
- bounces end 2 e |v_n| / (g cos th (1 - e)) after the first impact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from hybridctl.experiments.contacts.closed_form import Comparison, KnownMotion, KnownMotions, Runs
from hybridctl.robots import ball
from rich.console import Console

from hybridctl.app.experiment import Findings, experiment
from hybridctl.app.page.motion import Mover, Scene
from hybridctl.app.plots import GREEN, ORANGE, REFERENCE, TRACKING, Line, Panel, draw_series
from hybridctl.base.checks import Array, check_number
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, NotNegative, Positive, Settings
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics import closed_contacts

SUMMARY = "a ball falls on a slope and slides, stops, sticks or bounces, as closed forms say"

GRAVITY = 9.81
WITHIN = 1e-5  # m, m/s, s: error that the tolerances of a quick run leave
BOUNCES = 1000  # of the closed form; at the largest restitution the last has 1e-22 of the speed

PERIOD = 5e-3  # s, between drawn states
STYLES = (  # color, style and width of a curve; wider where later curves would hide it
    ("black", "--", 1.4),
    (TRACKING, "-", 4.0),
    (REFERENCE, "-", 2.8),
    (ORANGE, "-", 1.4),
    (GREEN, "-", 1.4),
)
DRAWN = ("stops", "bounces")  # balls whose contacts are drawn: they change their mode most


@dataclass(frozen=True)
class Config(Settings):
    """Balls dropped on a slope.

    Attributes:
        slope: Inclination of the slope, rad.
        height: Height of the ball above the slope at the start, m.
        speed: Speed down the slope at the start, m/s.
        friction_low: Coefficient of friction with which the ball slides on.
        friction_high: One that stops it.
        friction_catch: One that stops it too, for the defaults at the impact itself.
        restitution: Restitution of the ball that bounces, with `friction_low`.
        duration: Duration of the runs, s.
        rtol: Relative tolerance of the simulations.
        atol: Absolute tolerance of the simulations.
    """

    slope: Annotated[float, Meta(gt=0.0, le=1.5)] = 0.3
    height: Positive = 0.2
    speed: NotNegative = 0.5
    friction_low: NotNegative = 0.1
    friction_high: Positive = 0.4
    friction_catch: Positive = 0.8
    restitution: Annotated[float, Meta(gt=0.0, le=0.95)] = 0.6
    duration: Positive = 1.5
    rtol: NotNegative = 1e-9
    atol: NotNegative = 1e-9

    def __post_init__(self) -> None:
        super().__post_init__()
        border = float(np.tan(self.slope))
        check_number("friction_low", self.friction_low, at_most=border)
        check_number("friction_high", self.friction_high, above=border)
        check_number("friction_catch", self.friction_catch, above=border)
        motions = [predict(self, case) for case in define_cases(self).values()]
        last = [m.rest_time if m.stop_time is None else m.stop_time for m in motions]
        check_number("duration", self.duration, above=max(last))


@dataclass(frozen=True)
class BallCase:
    """A ball.

    Attributes:
        friction: Coefficient of friction.
        restitution: Coefficient of restitution.
    """

    friction: float
    restitution: float = 0.0


@dataclass(frozen=True)
class ClosedForm:
    """The motion in closed form.

    Attributes:
        impact_time: Time of the first impact, s.
        tangential_after: Velocity down the slope after it, m/s.
        normal_after: Velocity away from the slope after it, m/s.
        rest_time: Time at which the bouncing ends, s.
        acceleration: Acceleration along the slope from then on, m/s^2.
        stop_time: Time at which the ball stops, s; None if it does not.
        final_speed: Speed along the slope at the end, m/s.
    """

    impact_time: float
    tangential_after: float
    normal_after: float
    rest_time: float
    acceleration: float
    stop_time: float | None
    final_speed: float


def quick(config: Config) -> Config:
    """Return the settings with looser tolerances."""
    return replace(config, rtol=1e-7, atol=1e-7)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of every ball beside its closed form."""
    balls = KnownMotions(
        {name: _define_motion(config, name, case) for name, case in define_cases(config).items()},
        "A ball on a slope",
        "every impact, bounce and stop is that of the closed form",
        WITHIN,
        lambda runs: [_define_scene(config, runs)],
        partial(_draw_motion, config),
    )
    return balls.simulate(config.rtol, config.atol, console)


def define_cases(config: Config) -> dict[str, BallCase]:
    """Return the balls by name, which says what they do."""
    return {
        "frictionless": BallCase(0.0),
        "slides": BallCase(config.friction_low),
        "stops": BallCase(config.friction_high),
        "caught": BallCase(config.friction_catch),
        "bounces": BallCase(config.friction_low, config.restitution),
    }


def predict(config: Config, case: BallCase) -> ClosedForm:
    """Return the motion in closed form.

    Args:
        config: Settings.
        case: The ball.
    """
    along, into = GRAVITY * np.sin(config.slope), GRAVITY * np.cos(config.slope)
    mu, e = case.friction, case.restitution
    impact_time = float(np.sqrt(2.0 * config.height / into))
    normal = into * impact_time
    speed = first = _find_speed_after_impact(config.speed + along * impact_time, normal, case)
    rest_time = impact_time + 2.0 * e * normal / (into * (1.0 - e))
    bounce = normal
    for _ in range(BOUNCES if e > 0.0 else 0):
        bounce *= e
        speed = _find_speed_after_impact(speed + along * 2.0 * bounce / into, bounce, case)
    acceleration = along - mu * into
    stop_time = rest_time - speed / acceleration if acceleration < 0.0 else None
    return ClosedForm(
        impact_time,
        first,
        e * normal,
        rest_time,
        0.0 if stop_time == rest_time else acceleration,
        stop_time,
        0.0 if stop_time is not None else speed + acceleration * (config.duration - rest_time),
    )


def _find_speed_after_impact(tangential: float, normal: float, case: BallCase) -> float:
    """Return the speed down the slope after an impact at a normal speed, m/s."""
    return max(tangential - case.friction * (1.0 + case.restitution) * normal, 0.0)


def _define_motion(config: Config, name: str, case: BallCase) -> KnownMotion:
    """Return one ball, until it has come to rest on the slope and beyond."""
    down, away = _axes(config)
    model = ball.BallParameters(
        slope=config.slope, gravity=GRAVITY, friction=case.friction, restitution=case.restitution
    )
    return KnownMotion(
        ball.system(model),
        ("open",),
        np.concatenate([config.height * away, config.speed * down]),
        config.duration,
        partial(_compare, config, predict(config, case)),
        title=f"The ball that {name}" if name in DRAWN else None,
    )


def _axes(config: Config) -> tuple[Array, Array]:
    """Return unit vectors (x, z) down the slope and away from it."""
    s, c = np.sin(config.slope), np.cos(config.slope)
    return np.array([c, -s]), np.array([s, c])


def _compare(config: Config, expected: ClosedForm, run: HybridTrajectory) -> list[Comparison]:
    """Return the quantities of a run beside those of the closed form.

    Args:
        config: Settings.
        expected: Closed form.
        run: Run of the ball.
    """
    down, away = _axes(config)
    impact = run.events[0]
    landing = next(event for event in run.events if closed_contacts(event.mode_after))
    arc = run.arcs[landing.index + 1]
    gain = float(down @ (arc(arc.end) - arc(arc.start))[2:])
    along, normal = float(down @ impact.state_after[2:]), float(away @ impact.state_after[2:])
    final = float(down @ run.final_state[2:])
    rows = [
        Comparison("time of the impact [s]", impact.time, expected.impact_time),
        Comparison("speed down the slope after the impact [m/s]", along, expected.tangential_after),
        Comparison("speed off the slope after the impact [m/s]", normal, expected.normal_after),
        Comparison("acceleration [m/s^2]", gain / (arc.end - arc.start), expected.acceleration),
        Comparison("speed at the end [m/s]", final, expected.final_speed),
    ]
    if (last := landing.accumulation) is not None:
        rows.insert(3, Comparison("time of the last bounce [s]", last, expected.rest_time))
    if expected.stop_time is not None and expected.stop_time > expected.rest_time:
        rows.append(Comparison("time of the stop [s]", run.events[-1].time, expected.stop_time))
    return rows


def _define_scene(config: Config, runs: Runs) -> Scene:
    """Return the motion of all balls."""
    turns = np.linspace(0.0, 2.0 * np.pi, 17)
    circle = 0.02 * np.column_stack([np.cos(turns), np.sin(turns)])
    movers = [
        Mover(name, run, lambda x: [x[:2] + circle], color, run.system)
        for (name, run), (color, *_) in zip(runs.items(), STYLES, strict=True)
    ]
    down = _axes(config)[0]
    ends = [float(x @ down) for run in runs.values() for x in (run(0.0)[:2], run.final_state[:2])]
    slope = np.outer([min(ends) - 0.1, max(ends) + 0.1], down)
    return Scene("Balls on the slope", movers, [slope], ("x", "z"))


def _draw_motion(config: Config, runs: Runs, folder: RunFolder) -> None:
    """Save position and velocity along the slope (left) and away from it (right).

    Args:
        config: Settings.
        runs: Runs by ball.
        folder: Folder of the run.
    """
    sampled = {name: list(run.sampled(PERIOD)) for name, run in runs.items()}
    times = {name: np.concatenate([t for _, t in found]) for name, found in sampled.items()}
    states = {name: np.vstack([arc(t) for arc, t in found]) for name, found in sampled.items()}

    def panel(label: str, part: slice, axis: Array, *, named: bool = False) -> Panel:
        """Return the panel of one component of all balls over time.

        Args:
            label: Label of its axis, with the unit.
            part: Place or velocity (2,) in the state.
            axis: Unit vector (2,) along which the component is taken.
            named: Whether lines stand in the legend.
        """
        lines = [
            Line(times[name], x[:, part] @ axis, name if named else None, *style)
            for (name, x), style in zip(states.items(), STYLES, strict=True)
        ]
        return Panel(label, lines)

    down, away = _axes(config)
    place, speed = slice(0, 2), slice(2, 4)
    panels = [
        [panel("down the slope [m]", place, down, named=True), panel("height [m]", place, away)],
        [
            panel("speed down the slope [m/s]", speed, down),
            panel("normal speed [m/s]", speed, away),
        ],
    ]
    draw_series(folder / "figures/motion.png", panels, title="Balls on a slope")
