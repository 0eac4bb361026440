"""What a controller in a loop costs: the wall time of its steps, sample after sample.

The door at 1 kHz over its whole reference, with touches of both corners: the median and the 99th
percentile that a loop has to allow for, and what the law alone takes of it.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.experiments.rrr_door.tracking import Config, schedule
from hybridctl.robots import rrr_door
from rich.table import Table

from hybridctl.app.report import table
from hybridctl.checks import Array
from hybridctl.control.baselines import ImpactInvariantTracking, NearestTracking
from hybridctl.control.detectors import Gate, Threshold
from hybridctl.control.interim import Interim
from hybridctl.control.online import Controller
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.hybrid.policy import History

PERIOD = 1e-3  # s


def steps_table(quick: bool) -> Table:
    """Steps of all laws of the door."""
    plant = rrr_door.system()
    reference = build(plant, rrr_door.Parameters(), Design(), rtol=1e-9, atol=1e-9)
    gains, arm = schedule(Config(), reference), (0, 1, 2)
    window = Interim(0.027, 0.007, 0.025, velocities=arm)
    policies = {
        "spreading": ReferenceSpreading(reference, gains),
        "spreading, interim mode": ReferenceSpreading(reference, gains, interim=window),
        "conventional": ClockTracking(reference, gains),
        "nearest arc": NearestTracking(reference, gains, window=0.03),
        "impact-invariant": ImpactInvariantTracking(
            plant, reference, gains, window=0.03, velocities=arm
        ),
    }
    rows = []
    for name, policy in policies.items():
        flags = Threshold("contact", reference.events[0].guards)
        gate = Gate(flags, reference, before=0.15, timeout=0.025)
        loop = Controller(plant, policy, PERIOD, gate, mode=OPEN, limits=[30.0] * 3)
        times = np.concatenate([_steps(loop, reference) for _ in range(1 if quick else 7)])
        law = policy.law(History(OPEN, 0.5, reference.nominal(0.5)))
        alone = _costs(lambda t, x, law=law: law(t, x), reference)
        shown = (np.median(times), np.percentile(times, 99.0), np.median(alone))
        rows.append((name, *(f"{1e6 * value:.1f}" for value in shown)))
    return table("Door in a loop, one step", ["policy", "median us", "99 % us", "law us"], rows)


def _steps(loop: Controller, reference: Reference) -> Array:
    """Seconds of each step of a run along the reference, whose impact splits by 5 ms."""
    loop.reset()
    touch = reference.events[0].time
    offset = np.full(8, 0.01)

    def step(t: float, x: Array) -> None:
        loop.step(t, x + offset, {"contact": (t > touch, t > touch + 0.005)})

    return _costs(step, reference)


def _costs(call, reference: Reference) -> Array:
    """Seconds of each of 2000 calls, sample by sample."""
    times = np.arange(0.0, reference.nominal.end, PERIOD)
    states, costs = reference.nominal(times), []
    for t, x in zip(times.tolist(), states, strict=True):
        began = perf_counter()
        call(t, x)
        costs.append(perf_counter() - began)
    return np.array(costs)
