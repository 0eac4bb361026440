"""The planned trot of solo12 on a physics engine, whose contacts give, under its LQR.

The law is asked at each sample. The clock lifts the feet, and normal forces tell when both feet of
a landing have touched.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.plant_loop import Engine, driven, make_engine_plant
from hybridctl.experiments.walking.planned_trot import TORQUE, PlannedTrot
from hybridctl.robots import public
from numpy.typing import NDArray
from rich.table import Table

from hybridctl.app.report import make_record_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.control.gains import GainSchedule
from hybridctl.control.reference import Reference
from hybridctl.control.tracking_law import TrackingLaw
from hybridctl.hybrid.plant import Sample
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.plan import PhaseSequence

_PERIOD = 1e-3
"""Time between samples, s. At 2 ms the trot was lost from all of eight starts."""
_CLOCK_ROUNDING = 1e-6
"""Time before a stance ends by the clock within which it is over, s: rounding of sample times."""
_TOUCH = 1.0
"""Normal force from which on a foot has touched, N: solo12 weighs 25 N."""
_EARLY, _LATE = 0.02, 0.015
"""Time before a planned landing from which on forces count, and after it at which the next arc is
tracked without them, s. A choice."""
_LOST = 0.5
"""Distance of the base from the reference at which the trot counts as lost, m or rad."""


class PlantTrot(NamedTuple):
    """A trot on a plant.

    Attributes:
        strides: Strides until it was lost or the reference ended.
        reason: Why it was lost; empty if it was not.
        error: Largest distance of a coordinate from the reference at the last sample, m or rad.
    """

    strides: float
    reason: str
    error: float


class TouchTracking:
    """The LQR of a trot at samples: it goes on to the next arc by the clock and by touches.

    `compute_torques` is called with the samples of one run in their order.

    Args:
        reference: The trot over some strides.
        gains: Gains of its arcs.
    """

    def __init__(self, reference: Reference, gains: GainSchedule) -> None:
        nominal = reference.nominal
        self._phases = PhaseSequence.from_arcs(nominal.arcs, nominal.events)
        self._ends = [event.time for event in nominal.events]
        self._laws = [
            TrackingLaw(arc, gain, np.array([[-TORQUE], [TORQUE]]) * np.ones(arc.inputs.shape[2]))
            for arc, gain in zip(reference.arcs, gains.arcs, strict=True)
        ]
        self._arc, self._touched = 0, set[int]()

    def compute_torques(self, sample: Sample) -> Array:
        """Return the torques (nu,) at a sample, and go on to the next arc where one has ended."""
        while self._arc < len(self._ends) and self._has_ended(sample):
            self._arc, self._touched = self._arc + 1, set()
        return self._laws[self._arc](sample.time, sample.state)

    def _has_ended(self, sample: Sample) -> bool:
        """Return whether the present arc is over, and remember which feet have touched on it."""
        end = self._phases.get_end(self._arc)
        if end < math.inf:
            return sample.time > end - _CLOCK_ROUNDING
        due, after = self._ends[self._arc], self._phases.modes[self._arc + 1]
        landing = {*closed_contacts(after)}
        if sample.time > due - _EARLY:
            forces = np.asarray(sample.sensed["normal_force"])
            self._touched |= {i for i in landing if forces[i] > _TOUCH}
        return self._touched == landing or sample.time > due + _LATE


def run_trot(
    trot: PlannedTrot,
    reference: Reference,
    gains: GainSchedule,
    start: Array,
    engine: Engine,
    time_constant: float,
) -> PlantTrot:
    """Return the trot on an engine from a start in mid-stance.

    Args:
        trot: The plan.
        reference: The trot over some strides, see `PlannedTrot.make_reference`.
        gains: Gains of its arcs.
        start: State (nx,) at the start.
        engine: Name of the engine.
        time_constant: Time constant of the contacts, s.
    """
    nominal, robot = reference.nominal, trot.system.robot
    contacts = public.contacts("solo12")
    plant = make_engine_plant(
        engine, robot, contacts, time_constant, _PERIOD, trot.middle[: robot.nq]
    )
    law, reason, now = TouchTracking(reference, gains), "", nominal.start
    off: NDArray[np.float64] = np.zeros(robot.nv)
    try:
        for sample in driven(plant, nominal.start, start, law.compute_torques):
            now = min(sample.time, nominal.end)
            off = np.abs(trot.system.space.difference(nominal(now), sample.state))[: robot.nv]
            if off[:6].max() > _LOST:
                reason = "lost"
            if reason or now > nominal.end - _PERIOD:
                break
    except SimulationError as error:
        reason = type(error).__name__
    return PlantTrot((now - nominal.start) / (2.0 * trot.period), reason, float(off.max()))


def make_plant_record(
    trot: PlannedTrot,
    reference: Reference,
    gains: GainSchedule,
    angles: tuple[float, ...],
    starts: int,
    *,
    engine: Engine,
    time_constant: float,
) -> list[dict[str, Any]]:
    """Return how trots on a plant go, one record for each size of starts.

    Args:
        trot: The plan.
        reference: The trot over some strides.
        gains: Gains of its arcs.
        angles: Sizes of perturbations, see `PlannedTrot.perturb_start`.
        starts: Number of starts for each size.
        engine: Name of the engine.
        time_constant: Time constant of the contacts, s.
    """
    rng, records = np.random.default_rng(0), []
    for angle in angles:
        runs = [
            run_trot(trot, reference, gains, trot.perturb_start(rng, angle), engine, time_constant)
            for _ in range(starts)
        ]
        records.append(
            {
                "engine": engine,
                "angle": angle,
                "starts": starts,
                "held": sum(not run.reason for run in runs),
                "strides": [run.strides for run in runs],
                "error": max(run.error for run in runs),
            }
        )
    return records


def make_plant_table(records: list[dict[str, Any]]) -> Table:
    """Return the table of planned trots on a plant."""
    columns = {
        "engine": "{engine}",
        "perturbation [rad]": "{angle:.0e}",
        "trots that hold": "{held} of {starts}",
        "distance at the end [rad]": "{error:.2g}",
    }
    return make_record_table("Planned trot on a plant", records, columns)
