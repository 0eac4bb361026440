"""The RRR-door experiment: simultaneous impact of a foot on a door, tracked when it splits.

The reference hits the door with both corners of the foot at once. From a perturbed start the
impact splits in two. Reference spreading compares the state with the arc of the same event
count, and so keeps the error free of the peak that the conventional error has while reference
and robot are on different sides of the impact. Thesis, chapter 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from hybridctl.experiments.rrr_door import figures
from hybridctl.experiments.rrr_door.contact import ManoeuvrePlan, contact_modes
from hybridctl.experiments.rrr_door.laws import DoorRuns, joint_gains, law, run_beside
from hybridctl.experiments.rrr_door.reference import Design, ImpactPlan, build
from hybridctl.robots.rrr_door import DoorParameters, system, urdf
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.report import encode_event, progress, table
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

    scale: of the initial perturbation (5.31). phantom: feedforward between the touches.
    phantom_feedback: gain between the touches, around the phantom arc: the one of before the
    event ("ante"), of after it ("post"), or "none". friction, release: another reference, in
    which the corners have friction (`friction_coefficient`), or the foot lets go of the door
    again, see `Manoeuvre`; both go past the thesis, and are off by default. gains: a file of gains
    for all arcs, as `hybridctl tune` writes it, instead of those above.
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
        """Whether the reference is one that nothing is published of."""
        return self.friction or self.release


def quick(config: Config) -> Config:
    """The settings with looser tolerances."""
    return replace(config, rtol=1e-7, atol=1e-7)


@experiment
def run(config: Config, console: Console) -> Findings:
    """Track the reference from the perturbed start, by both kinds of error."""
    began = time.perf_counter()
    end = (ManoeuvrePlan if config.goes_past_the_thesis else ImpactPlan).end
    with progress(console, 0.0, end) as begin:
        parameters, runs = simulate_all(config, begin)
    report = None if config.goes_past_the_thesis else feasibility(runs.plant, runs.reference)
    summary = summarize(runs, report)
    summary["simulation_seconds"] = time.perf_counter() - began

    return Findings(
        summary,
        printed(runs, report, summary),
        checks(config, parameters, summary),
        {
            "reference": runs.reference.nominal,
            "tracking": runs.tracking,
            "conventional": runs.conventional,
        },
        {"rrr_door.urdf": urdf(parameters)},
        lambda folder: figures.draw_all(parameters, runs, folder),
    )


def checks(config: Config, parameters: DoorParameters, summary: Mapping[str, Any]) -> list[Check]:
    """What spreading is worth, and that contacts push, stay closed and keep to their cones."""
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
    """The robot's parameters, the plant, and the reference that the settings ask for."""
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
    """The reference, and the run from the perturbed start with either error."""
    from_file = tuned(config)  # before the work: it may not be there
    parameters, plant, reference = scene(config, begin("reference"))
    feedback = schedule(config, reference, from_file)

    def tracked(name: str, title: str) -> HybridTrajectory:
        deviation, to = config.scale * np.array(config.perturbation), (config.rtol, config.atol)
        policy = law(name, plant, reference, feedback)
        return run_beside(plant, reference, policy, deviation, to, progress=begin(title))

    tracking = tracked("spreading", "reference spreading")
    conventional = tracked("conventional", "conventional error")
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
    """The metrics of all runs; with the published numbers where there are such."""
    nominal, tracking, conventional = runs.reference.nominal, runs.tracking, runs.conventional
    reference = measures(runs.plant, nominal, runs.reference.events)
    tracked = measures(runs.plant, tracking, tracking.events, runs.spread_error)
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
    clock = measures(runs.plant, conventional, events, runs.conventional_error)
    return {
        "contacts": ["corner_1", "corner_2"],
        "reference": reference,
        "tracking": tracked,
        "conventional": clock,
        "drift": max(found.pop("drift") for found in (reference, tracked, clock)),
    }


def measures(
    plant: HybridSystem,
    run: HybridTrajectory,
    events: Sequence[Event],
    error: TrackingError | None = None,
) -> dict[str, Any]:
    """Events, forces and inputs of a run, and the error that it feeds back, if any."""
    found: dict[str, Any] = {
        "events": [encode_event(e) for e in events],
        **contact_measures(plant, run),
        "peak_input": peak_input(run),
        "rms_input": rms_input(run),
    }
    if error is None:
        return found
    final = float(error.norms[-1])
    return {**found, "peak_error": error.peak, "rms_error": error.rms, "final_error": final}


def printed(
    runs: DoorRuns, report: Feasibility | None, summary: Mapping[str, Any]
) -> list[Table | str]:
    """Events as in Tables 5.1 and 5.2, beside the published ones if comparable, then errors."""
    found: list[Table | str] = []
    for title, events, published in (
        ("Reference", runs.reference.events, PUBLISHED_REFERENCE),
        ("Perturbed, reference spreading", runs.tracking.guard_events, PUBLISHED_TRACKING),
        ("Perturbed, conventional error", runs.conventional.guard_events, ()),
    ):
        rows = [
            (modes(e), f"{e.time:.4f}", ", ".join(f"{x:.4f}" for x in e.impulses)) for e in events
        ]
        rows += [
            (f"thesis: {m}", f"{t:.4f}", ", ".join(f"{x:.4f}" for x in impulses))
            for m, t, impulses in published
            if report is not None
        ]
        columns = ["modes of corners 1 and 2", "time [s]", "normal impulses [N s]"]
        found.append(table(title, columns, rows))
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
    found.append(table(title, ["quantity", "error fed back", "peak", "rms"], cells))
    found.append(
        f"least contact force: reference {summary['reference']['least_force']:.3f} N, tracking "
        f"{t['least_force']:.3f} N; largest gap of a closed contact {summary['drift']:.1e} m"
    )
    return found if report is None else [*found, *feasibility_lines(report)]


def feasibility_lines(report: Feasibility) -> list[str]:
    """What the report says of every event, and what does not hold."""
    found = []
    for e in report.events:
        rates = ", ".join(f"{name} {rate:.2f} m/s" for name, rate in e.guard_rates.items())
        found.append(
            f"reference event: {rates}; least impulse in any order {e.least_impulse:.3f} N s; "
            f"states after both orders of the corners differ by {e.associativity:.1e}"
        )
    return found + [f"[yellow]not feasible:[/yellow] {failure}" for failure in report.failures]


def modes(event: Event) -> str:
    """The modes of corners 1 and 2 before and after an event, in words."""
    return " -> ".join(format_mode(key) for key in (event.mode_before, event.mode_after))


def contact_measures(plant: HybridSystem, run: HybridTrajectory) -> dict[str, float]:
    """The least normal force of closed contacts, N, their friction over it, and their gap, m.

    The force is without the ends of arcs; the ratio the largest of contacts that press with 0.01 N
    or more; the gap the largest of either sign.
    """
    least, ratio, gap = np.inf, 0.0, 0.0
    for arc, _, outputs in replace(run, system=plant).sampled_outputs(1e-3):
        closed = list(closed_contacts(arc.mode))
        if not closed:
            continue
        normal = outputs["normal_force"][:, closed]
        friction = np.linalg.norm(outputs["friction_force"][:, closed], axis=2)
        pressed = normal > 0.01
        least = min(least, float(normal[:-1].min()))
        ratio = max(ratio, float((friction[pressed] / normal[pressed]).max(initial=0.0)))
        gap = max(gap, float(np.abs(outputs["gap"][:, closed]).max()))
    return {"least_force": least, "largest_friction_ratio": ratio, "drift": gap}


def least_force(plant: HybridSystem, run: HybridTrajectory) -> float:
    """The smallest normal force of a closed contact over a run, N."""
    return contact_measures(plant, run)["least_force"]


def peak_input(run: HybridTrajectory) -> float:
    """Largest torque of any joint, N m."""
    return max(float(np.abs(arc.input(times)).max()) for arc, times in run.sampled(1e-3))


def rms_input(run: HybridTrajectory) -> float:
    """Root of the time average of |u|^2, N m."""
    total = sum(
        float(np.trapezoid((arc.input(times) ** 2).sum(axis=1), times))
        for arc, times in run.sampled(1e-3)
    )
    return float(np.sqrt(total / (run.end - run.start)))


def matrices(config: Config) -> tuple[Array, Array]:
    """The gains K (3, 8) of the settings: where a corner is open, and where both are closed."""
    c = config
    ante = joint_gains(np.array(c.position_gains_ante), np.array(c.velocity_gains_ante))
    return ante, joint_gains(np.array(c.position_gains_post), np.array(c.velocity_gains_post))


def tuned(config: Config) -> GainSchedule | None:
    """The gains of the settings' file, None where there is none."""
    return None if config.gains is None else GainSchedule.load(config.gains)


def schedule(
    config: Config, reference: Reference, from_file: GainSchedule | None = None
) -> GainSchedule:
    """The gains of all arcs: of a file, or the settings' own, by whether a corner is open.

    from_file: those of the settings' file, where it has been read. Raises `InputError` for a file
    whose gains do not fit the reference.
    """
    from_file = tuned(config) if from_file is None else from_file
    if from_file is not None:
        try:
            return make_schedule(reference, from_file)
        except InputError as error:
            raise InputError(
                f"the gains in {config.gains} do not fit this reference: {error}; those of another "
                "variant (--friction, --release) have other arcs"
            ) from error
    ante, post = matrices(config)
    arcs = [ante if "open" in contact_modes(arc.mode) else post for arc in reference.arcs]
    shift = {"ante": 0, "post": 1}.get(config.phantom_feedback)
    phantoms = {} if shift is None else {k: arcs[k[0] + shift] for k in reference.phantoms}
    return GainSchedule.constant(arcs, phantoms)
