"""Tracking of the door manoeuvres with friction and release; see `contact`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hybridctl.experiments.contacts.figures import draw_contacts
from hybridctl.experiments.rrr_door.figures import outline, write_scene
from hybridctl.robots.rrr_door import Parameters
from rich.table import Table

from hybridctl.checks import Array
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.control.tracking import TrackingError, tracking_error
from hybridctl.experiment import Check
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics import closed_contacts
from hybridctl.page.motion import mode_text
from hybridctl.plots import BASELINE, REFERENCE, TRACKING, Line, Panel, Pose, series, snapshots
from hybridctl.report import RunFolder, event_record, table


@dataclass(frozen=True)
class Manoeuvres:
    """The reference and both tracked runs, with the error that each feeds back."""

    plant: HybridSystem
    reference: Reference
    tracking: HybridTrajectory
    conventional: HybridTrajectory
    spread_error: TrackingError
    conventional_error: TrackingError


def track(
    plant: HybridSystem,
    reference: Reference,
    start: Array,
    gains: GainSchedule,
    *,
    tolerance: float,
) -> Manoeuvres:
    """Track the reference from a perturbed start, with spreading and with the clock's error."""
    end = reference.nominal.end
    policies: tuple[Policy, Policy] = (
        ReferenceSpreading(reference, gains),
        ClockTracking(reference, gains),
    )
    spread, clock = (
        simulate(
            plant,
            reference.nominal.arcs[0].mode,
            start,
            (0.0, end),
            policy,
            rtol=tolerance,
            atol=tolerance,
            on_zeno="rest",
        )
        for policy in policies
    )
    return Manoeuvres(
        plant,
        reference,
        spread,
        clock,
        tracking_error(reference, spread, "spread"),
        tracking_error(reference, clock, "conventional"),
    )


def summarize(runs: Manoeuvres) -> dict[str, Any]:
    """Events, errors, and how far the forces stay inside their cones."""
    summary: dict[str, Any] = {
        "reference": {
            "events": [event_record(e) for e in runs.reference.events],
            **force_margins(runs.plant, runs.reference.nominal),
        }
    }
    for name, run, error in (
        ("tracking", runs.tracking, runs.spread_error),
        ("conventional", runs.conventional, runs.conventional_error),
    ):
        summary[name] = {
            "events": [event_record(e) for e in run.events],
            "peak_error": error.peak,
            "rms_error": error.rms,
            "final_error": float(error.norms[-1]),
            "peak_input": max(float(np.abs(arc.input(t)).max()) for arc, t in run.sampled(1e-3)),
            **force_margins(runs.plant, run),
        }
    return summary


def force_margins(plant: HybridSystem, run: HybridTrajectory) -> dict[str, float]:
    """Least normal force of a closed contact, N, and the largest ratio of friction to it.

    The ratio leaves out contacts that hardly press (below 0.01 N), as at a release; the ends of
    arcs, where an event has just happened, are left out as well.
    """
    least, ratio = np.inf, 0.0
    for arc, _, outputs in replace(run, system=plant).sampled_outputs(1e-3):
        closed = list(closed_contacts(arc.mode))
        normal = outputs["normal_force"][:-1, closed]
        friction = np.linalg.norm(outputs["friction_force"][:-1, closed], axis=2)
        pressed = normal > 0.01
        least = min(least, float(normal.min(initial=np.inf)))
        ratio = max(ratio, float((friction[pressed] / normal[pressed]).max(initial=0.0)))
    return {"least_normal_force": least, "largest_friction_ratio": ratio}


def tables(runs: Manoeuvres, summary: Mapping[str, Any]) -> list[Table]:
    """Events of all three runs (of guards or modes), then errors and force margins."""
    printed = []
    columns = ["modes of corners 1 and 2", "time [s]", "normal impulses [N s]"]
    for title, events in (
        ("Reference", runs.reference.events),
        ("Perturbed, reference spreading", runs.tracking.events),
        ("Perturbed, conventional error", runs.conventional.events),
    ):
        rows = [
            (_modes(e), f"{e.time:.4f}", ", ".join(f"{x:.4f}" for x in e.impulses))
            for e in events
            if e.guards or e.mode_before != e.mode_after
        ]
        printed.append(table(title, columns, rows))
    lines: list[tuple[str, ...]] = []
    for name, label in (("tracking", "spreading"), ("conventional", "conventional")):
        part = summary[name]
        keys = ("peak_error", "rms_error", "final_error", "peak_input")
        margins = ("least_normal_force", "largest_friction_ratio")
        lines.append((label, *(f"{part[key]:.4f}" for key in (*keys, *margins))))
    printed.append(
        table(
            "Error (all states, rad and rad/s), peak input (N m), least normal force (N), and the "
            "largest ratio of friction to it",
            ["feedback", "peak", "rms", "final", "input", "normal", "ratio"],
            lines,
        )
    )
    return printed


def checks(summary: Mapping[str, Any], friction: float) -> list[Check]:
    """What reference spreading is worth here, and that no contact pulls or leaves its cone."""
    tracked, clock = summary["tracking"], summary["conventional"]
    pull, ratio = (
        summary["reference"][key] for key in ("least_normal_force", "largest_friction_ratio")
    )
    return [
        Check("the error fed back by spreading stays below", tracked["peak_error"], 0.4),
        Check("the conventional error peaks", clock["peak_error"], least=3.0),
        Check("no contact pulls on the reference [N]", pull, least=-1e-6),
        Check("its friction is inside the cone, ratio", ratio, friction + 1e-6),
    ]


def _modes(event: Event) -> str:
    return " -> ".join(mode_text(mode) for mode in (event.mode_before, event.mode_after))


def draw(parameters: Parameters, runs: Manoeuvres, folder: RunFolder) -> None:
    """Errors, modes, forces inside the cone and energy, and snapshots."""
    draw_errors(runs, folder)
    for name, run in (("reference", runs.reference.nominal), ("tracking", runs.tracking)):
        known = replace(run, system=runs.plant)
        draw_contacts(folder / f"figures/{name}", f"Door manoeuvre, {name}", known)
    events = runs.reference.events
    nominal, tracking = runs.reference.nominal, runs.tracking
    times = [0.0, *(e.time for e in events), 0.5 * (events[-1].time + nominal.end), nominal.end]
    snapshots(
        folder / "figures/snapshots.png",
        [
            (
                f"t = {t:.2f} s",
                [
                    Pose(outline(parameters, nominal(t)[:4]), t, REFERENCE, 0.6),
                    Pose(outline(parameters, tracking(t)[:4]), t, TRACKING),
                ],
            )
            for t in times
        ],
        title="Door manoeuvre: reference (orange) and tracking (blue)",
    )
    write_scene(parameters, runs.plant, nominal, tracking, folder)


def draw_errors(runs: Manoeuvres, folder: RunFolder) -> None:
    """Norm of the error of both controllers over time."""
    spread, clock = runs.spread_error, runs.conventional_error
    top = max(spread.peak, clock.peak)
    marks = [
        Line(np.full(2, e.time), np.array([0.0, top]), None, REFERENCE, ":", 0.9)
        for e in runs.reference.events
    ]
    lines = [
        Line(clock.times, clock.norms, "conventional error, fed back", BASELINE),
        Line(spread.times, spread.norms, "spread error, fed back", TRACKING),
        *marks,
    ]
    series(
        folder / "figures/errors.png",
        [[Panel("|error| [rad, rad/s]", lines)]],
        title="Door manoeuvre: tracking error (dotted: events of the reference)",
    )
