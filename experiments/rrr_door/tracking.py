"""Reference spreading has no error peak where an impact of both corners on a door splits in two.

The reference hits the door with both corners of the foot at once. From a perturbed start the
corners touch one after the other. Reference spreading compares the state with the arc of the same
event count. The conventional error compares them at the same time, and peaks while reference and
robot are on different sides of the impact. Thesis, chapter 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from hybridctl.experiments.rrr_door import figures
from hybridctl.experiments.rrr_door.laws import DoorRuns, make_joint_gain, make_law, run_beside
from hybridctl.experiments.rrr_door.reference import (
    Design,
    ImpactPlan,
    ManoeuvrePlan,
    build,
    get_contact_modes,
)
from hybridctl.robots.rrr_door import DoorParameters, system, urdf
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import encode_event, make_table, show_progress
from hybridctl.base.checks import Array, check_member, check_vector
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Positive, Settings
from hybridctl.base.tables import format_mode
from hybridctl.control.feasibility import Feasibility, feasibility
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import PHANTOM_FEEDFORWARDS, PhantomFeedforward, Reference
from hybridctl.control.tracking_error import TrackingError, tracking_error
from hybridctl.control.tracking_law import make_schedule
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics import closed_contacts

SUMMARY = "an arm hits a door with both corners of its foot, tracked with reference spreading"

PERTURBATION = (-0.05, -0.03, -0.02, 0.0, -0.02, -0.05, 0.03, 0.0)  # (5.31)
_INPUTS = (
    "Inputs are not what this run compares: both laws have the gains of the thesis, which grow "
    "from 8 to 100 N m/rad at the impact. By the clock they grow before the corners touch, with "
    "spreading at the last touch; that step is its peak. door-optimal and door-plants compare laws "
    "whose gains are tuned alike."
)
FEEDBACKS = ("ante", "post", "none")

# The thesis writes modes as digits, corner 1 last: 01 is closed open.
PUBLISHED_REFERENCE = (("open open -> closed closed", 1.0000, (1.2572, 0.3410)),)  # Table 5.1
PUBLISHED_TRACKING = (  # Table 5.2
    ("open open -> closed open", 1.0389, (1.2273, 0.0)),
    ("closed open -> closed closed", 1.0488, (0.5247, 0.4442)),
)


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the experiment; the gains are (5.32)-(5.33), acting on reference minus state.

    Attributes:
        friction: Whether the corners have friction, on a reference of `contact.Manoeuvre`. This
            goes past the thesis.
        release: Whether the foot lets go of the door again, on a reference of
            `contact.Manoeuvre`. This goes past the thesis.
        friction_coefficient: Coefficient of the corners with `friction`.
        gains: Path of a file of gains for all arcs, as `hybridctl tune` writes it; None for the
            gains of the settings.
        perturbation: Start minus start of the reference (5.31), rad and rad/s.
        scale: Factor of the perturbation.
        position_gains_ante: Gains of the arm joints where a corner is open, N m/rad.
        velocity_gains_ante: Gains of the arm joints where a corner is open, N m s/rad.
        position_gains_post: Gains of the arm joints where both corners are closed, N m/rad.
        velocity_gains_post: Gains of the arm joints where both corners are closed, N m s/rad.
        phantom: Feedforward between the touches.
        phantom_feedback: Gain between the touches, around the phantom arc: the one before the
            event ("ante"), after it ("post"), or "none".
        rtol: Relative tolerance of the tracked runs.
        atol: Absolute tolerance of the tracked runs.
        robot: Parameters of arm and door.
        design: Numbers of the reference.
    """

    friction: bool = False
    release: bool = False
    friction_coefficient: Positive = 0.2
    gains: str | None = None

    perturbation: tuple[float, ...] = PERTURBATION
    scale: float = 1.0
    position_gains_ante: tuple[float, float, float] = (8.0, 8.0, 8.0)
    velocity_gains_ante: tuple[float, float, float] = (16.0, 16.0, 16.0)
    position_gains_post: tuple[float, float, float] = (100.0, 100.0, 0.0)
    velocity_gains_post: tuple[float, float, float] = (20.0, 20.0, 0.0)
    phantom: PhantomFeedforward = "pushing"
    phantom_feedback: str = "ante"
    rtol: float = 1e-9
    atol: float = 1e-9
    robot: DoorParameters = field(default_factory=DoorParameters)
    design: Design = field(default_factory=Design)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vector("perturbation", self.perturbation, 8)
        check_member("phantom", self.phantom, PHANTOM_FEEDFORWARDS)
        check_member("phantom_feedback", self.phantom_feedback, FEEDBACKS)

    @property
    def goes_past_the_thesis(self) -> bool:
        """Whether the reference has friction or a release, of which nothing is published."""
        return self.friction or self.release


def quick(config: Config) -> Config:
    """Return the settings with looser tolerances."""
    return replace(config, rtol=1e-7, atol=1e-7)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings: runs from the perturbed start under both kinds of error."""
    began = time.perf_counter()
    end = (ManoeuvrePlan if config.goes_past_the_thesis else ImpactPlan).end
    with show_progress(console, 0.0, end) as begin:
        parameters, runs = simulate_all(config, begin)
    report = None if config.goes_past_the_thesis else feasibility(runs.plant, runs.reference)
    summary = summarize(runs, report)
    summary["simulation_seconds"] = time.perf_counter() - began

    return Findings(
        summary,
        make_tables(runs, report, summary),
        make_checks(config, parameters, summary),
        {
            "reference": runs.reference.nominal,
            "tracking": runs.tracking,
            "conventional": runs.conventional,
        },
        {"rrr_door.urdf": urdf(parameters)},
        lambda folder: figures.draw_all(parameters, runs, folder),
    )


def make_checks(
    config: Config, parameters: DoorParameters, summary: Mapping[str, Any]
) -> list[Check]:
    """Return the claims: small spread error; contacts push, stay closed and keep to their cones.

    Args:
        config: Settings; a reference past the thesis has wider bounds.
        parameters: Parameters of the plant, for its friction.
        summary: Metrics of `summarize`.
    """
    spread, clock = summary["tracking"]["peak_error"], summary["conventional"]["peak_error"]
    runs = [summary[name] for name in ("reference", "tracking")]
    pull = min(run["least_force"] for run in runs)
    ratio = max(run["largest_friction_ratio"] for run in runs)
    most = 0.4 if config.goes_past_the_thesis else 0.3
    return [
        Check("largest error fed back by spreading", spread, most),
        Check("largest error, conventional / with spreading", clock / spread, least=3.0 / most),
        Check("least force of a closed contact [N]", pull, least=-1e-6),
        Check("largest ratio of friction to normal force", ratio, parameters.friction + 1e-6),
        Check("largest gap of a closed contact [m]", summary["drift"], 1e-8),
    ]


def scene(
    config: Config, progress: Callable[[float], None] | None = None, tolerance: float = 1e-11
) -> tuple[DoorParameters, HybridSystem, Reference]:
    """Return parameters, plant and reference of the settings.

    Args:
        config: Settings of the experiment.
        progress: Called with the time of the reference that is reached, s.
        tolerance: Relative and absolute tolerance of the reference.
    """
    mu = config.friction_coefficient if config.friction else config.robot.friction
    parameters = replace(config.robot, friction=mu)
    plant = system(parameters)
    past = partial(ManoeuvrePlan, release=config.release)
    reference = build(
        plant,
        parameters,
        config.design,
        past if config.goes_past_the_thesis else ImpactPlan,
        phantom=config.phantom,
        rtol=tolerance,
        atol=tolerance,
        progress=progress,
    )
    return parameters, plant, reference


def simulate_all(config: Config, begin: Any) -> tuple[DoorParameters, DoorRuns]:
    """Simulate the reference and the runs from the perturbed start with either error.

    Args:
        config: Settings of the experiment.
        begin: Begins a progress bar of a title and returns its tick.

    Returns:
        Parameters of the plant, and the runs.
    """
    from_file = load_gains(config)  # before the work: the file may be missing
    parameters, plant, reference = scene(config, begin("reference"))
    feedback = schedule(config, reference, from_file)

    def run_tracking(name: str, title: str) -> HybridTrajectory:
        deviation, to = config.scale * np.array(config.perturbation), (config.rtol, config.atol)
        policy = make_law(name, plant, reference, feedback)
        return run_beside(plant, reference, policy, deviation, to, progress=begin(title))

    tracking = run_tracking("spreading", "reference spreading")
    conventional = run_tracking("conventional", "conventional error")
    return parameters, DoorRuns(
        plant,
        reference,
        tracking,
        conventional,
        tracking_error(reference, tracking, "spread"),
        tracking_error(reference, tracking, "conventional"),
        tracking_error(reference, conventional, "conventional"),
    )


def summarize(runs: DoorRuns, report: Feasibility | None) -> dict[str, Any]:
    """Return the metrics of all runs.

    Args:
        runs: The runs.
        report: Feasibility of the reference; None for a reference past the thesis, which has no
            published numbers either.
    """
    nominal, tracking, conventional = runs.reference.nominal, runs.tracking, runs.conventional
    reference = measure_run(runs.plant, nominal, runs.reference.events)
    tracked = measure_run(runs.plant, tracking, tracking.events, runs.spread_error)
    splits = [b.time - a.time for a, b in zip(tracking.events, tracking.events[1:], strict=False)]
    tracked |= {
        "seconds_between_touches": splits[0] if splits else None,
        "peak_conventional_error": runs.clock_error.peak,
        "rms_conventional_error": runs.clock_error.rms,
    }
    if report is not None:
        reference |= {
            "feasible": not report.failures,
            "feasibility": asdict(report),
            "published": [list(row) for row in PUBLISHED_REFERENCE],
        }
        tracked["published"] = [list(row) for row in PUBLISHED_TRACKING]
    events = conventional.guard_events
    clock = measure_run(runs.plant, conventional, events, runs.conventional_error)
    return {
        "contacts": ["corner_1", "corner_2"],
        "reference": reference,
        "tracking": tracked,
        "conventional": clock,
        "drift": max(found.pop("drift") for found in (reference, tracked, clock)),
    }


def measure_run(
    plant: HybridSystem,
    run: HybridTrajectory,
    events: Sequence[Event],
    error: TrackingError | None = None,
) -> dict[str, Any]:
    """Return events, forces and inputs of a run, and its error.

    Args:
        plant: System of the run.
        run: The run.
        events: Events that are listed.
        error: Error that the run feeds back; None for the reference, which has none.
    """
    found: dict[str, Any] = {
        "events": [encode_event(e) for e in events],
        **measure_contacts(plant, run),
        "peak_input": find_peak_input(run),
        "rms_input": compute_rms_input(run),
    }
    if error is None:
        return found
    final = float(error.norms[-1])
    return {**found, "peak_error": error.peak, "rms_error": error.rms, "final_error": final}


def make_tables(
    runs: DoorRuns, report: Feasibility | None, summary: Mapping[str, Any]
) -> list[Table | str]:
    """Return events as in Tables 5.1 and 5.2, then errors, inputs and feasibility.

    Args:
        runs: The runs.
        report: Feasibility of the reference; None where nothing is published.
        summary: Metrics of `summarize`.
    """
    found: list[Table | str] = []
    for title, events, published in (
        ("Reference", runs.reference.events, PUBLISHED_REFERENCE),
        ("Perturbed, reference spreading", runs.tracking.guard_events, PUBLISHED_TRACKING),
        ("Perturbed, conventional error", runs.conventional.guard_events, ()),
    ):
        rows = [
            (format_modes(e), f"{e.time:.4f}", ", ".join(f"{x:.4f}" for x in e.impulses))
            for e in events
        ]
        rows += [
            (f"thesis: {m}", f"{t:.4f}", ", ".join(f"{x:.4f}" for x in impulses))
            for m, t, impulses in published
            if report is not None
        ]
        columns = ["modes of corners 1 and 2", "time [s]", "normal impulses [N s]"]
        found.append(make_table(title, columns, rows))
    t, c = summary["tracking"], summary["conventional"]
    measured: list[tuple[str, str, Any, str]] = [
        ("error against extended arcs (spread)", "spreading", t, "error"),
        ("error on the clock (conventional)", "spreading", t, "conventional_error"),
        ("error on the clock (conventional)", "conventional", c, "error"),
        ("input [N m]", "spreading", t, "input"),
        ("input [N m]", "conventional", c, "input"),
    ]
    cells = [
        (name, control, f"{of[f'peak_{key}']:.4f}", f"{of[f'rms_{key}']:.4f}")
        for name, control, of, key in measured
    ]
    title = "Errors (all states, rad and rad/s) and inputs"
    found.append(make_table(title, ["quantity", "error fed back", "peak", "rms"], cells))
    if report is not None:
        found.append(_INPUTS)
    found.append(
        f"least contact force: reference {summary['reference']['least_force']:.3f} N, tracking "
        f"{t['least_force']:.3f} N; largest gap of a closed contact {summary['drift']:.1e} m"
    )
    return found if report is None else [*found, *describe_feasibility(report)]


def describe_feasibility(report: Feasibility) -> list[str]:
    """Return a line for each event of the reference, and one for each failure."""
    found = []
    for e in report.events:
        rates = ", ".join(f"{name} {rate:.2f} m/s" for name, rate in e.guard_rates.items())
        found.append(
            f"reference event: {rates}; least impulse in any order {e.least_impulse:.3f} N s; "
            f"states after both orders of the corners differ by {e.associativity:.1e}"
        )
    return found + [f"[yellow]not feasible:[/yellow] {failure}" for failure in report.failures]


def format_modes(event: Event) -> str:
    """Return the modes of corners 1 and 2 before and after an event, in words."""
    return " -> ".join(format_mode(key) for key in (event.mode_before, event.mode_after))


def measure_contacts(plant: HybridSystem, run: HybridTrajectory) -> dict[str, float]:
    """Return the extreme forces and gaps of closed contacts over a run, sampled every 1 ms.

    Args:
        plant: System of the run.
        run: The run.

    Returns:
        "least_force": least normal force, N, without the ends of arcs, where a contact that opens
        has none. "largest_friction_ratio": largest friction over normal force, of contacts that
        press with more than 0.01 N. "drift": largest gap of either sign, m.
    """
    least, ratio, gap = np.inf, 0.0, 0.0
    # Arcs without closed contacts are left out before their outputs are computed.
    pressing = tuple(arc for arc in run.arcs if closed_contacts(arc.mode))
    for arc, _, outputs in replace(run, arcs=pressing, system=plant).sampled_outputs(1e-3):
        closed = list(closed_contacts(arc.mode))
        normal = outputs["normal_force"][:, closed]
        friction = np.linalg.norm(outputs["friction_force"][:, closed], axis=2)
        pressed = normal > 0.01
        least = min(least, float(normal[:-1].min()))
        ratio = max(ratio, float((friction[pressed] / normal[pressed]).max(initial=0.0)))
        gap = max(gap, float(np.abs(outputs["gap"][:, closed]).max()))
    return {"least_force": least, "largest_friction_ratio": ratio, "drift": gap}


def find_peak_input(run: HybridTrajectory) -> float:
    """Return the largest absolute torque of any joint, N m."""
    return max(float(np.abs(arc.input(times)).max()) for arc, times in run.sampled(1e-3))


def compute_rms_input(run: HybridTrajectory) -> float:
    """Return the root of the time average of |u|^2, N m."""
    total = sum(
        float(np.trapezoid((arc.input(times) ** 2).sum(axis=1), times))
        for arc, times in run.sampled(1e-3)
    )
    return float(np.sqrt(total / (run.end - run.start)))


def make_gain_matrices(config: Config) -> tuple[Array, Array]:
    """Return the gains K (3, 8) of the settings: with a corner open, and with both closed."""
    c = config
    ante = make_joint_gain(np.array(c.position_gains_ante), np.array(c.velocity_gains_ante))
    return ante, make_joint_gain(np.array(c.position_gains_post), np.array(c.velocity_gains_post))


def load_gains(config: Config) -> GainSchedule | None:
    """Return the gains of the settings' file; None if the settings name no file."""
    return None if config.gains is None else GainSchedule.load(config.gains)


def schedule(
    config: Config, reference: Reference, from_file: GainSchedule | None = None
) -> GainSchedule:
    """Return the gains of all arcs: of the settings' file, or else of the settings themselves.

    Args:
        config: Settings. Their own gains differ by whether a corner is open on an arc.
        reference: Reference that is tracked.
        from_file: Gains of the settings' file, if it has been read; None reads it.

    Raises:
        InputError: The gains of the file do not fit the reference.
    """
    from_file = load_gains(config) if from_file is None else from_file
    if from_file is not None:
        try:
            return make_schedule(reference, from_file)
        except InputError as error:
            raise InputError(
                f"the gains in {config.gains} do not fit this reference: {error}; those of another "
                "variant (--friction, --release) have other arcs"
            ) from error
    ante, post = make_gain_matrices(config)
    arcs = [ante if "open" in get_contact_modes(arc.mode) else post for arc in reference.arcs]
    shift = {"ante": 0, "post": 1}.get(config.phantom_feedback)
    phantoms = {} if shift is None else {k: arcs[k[0] + shift] for k in reference.phantoms}
    return GainSchedule.constant(arcs, phantoms)
