"""What a controller and a filter in a loop cost: the time of their steps, sample after sample.

The door at 1 kHz, with touches of both corners: the median and the 99th percentile that a loop has
to allow for. Of a controller over its whole reference, and what the law alone takes of it; of a
filter on encoders alone, around the touches, in processor time.
"""

from __future__ import annotations

import math
from time import perf_counter, process_time

import numpy as np
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.experiments.rrr_door.tracking import Config, schedule
from hybridctl.robots import rrr_door
from rich.table import Table

from hybridctl.app.models import find_model
from hybridctl.app.report import make_table
from hybridctl.base.checks import Array
from hybridctl.control.baselines import ImpactInvariantTracking, NearestTracking
from hybridctl.control.controller import Controller
from hybridctl.control.detectors import Gate, Threshold
from hybridctl.control.interim import Interim
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import ClockTracking, ReferenceSpreading
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.online import Estimator
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.hybrid.policy import History
from hybridctl.sampling.filters import make_filter

PERIOD = 1e-3  # s
DEADLINES = (math.inf, 1e-3)  # s


def steps_table(quick: bool) -> Table:
    """Steps of all laws of the door."""
    plant = rrr_door.system()
    reference = build(plant, rrr_door.DoorParameters(), Design(), rtol=1e-9, atol=1e-9)
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
    return make_table(
        "Door in a loop, one step", ["policy", "median us", "99 % us", "law us"], rows
    )


def filter_table(quick: bool) -> Table:
    """Steps of the door's filter, after one run in which its modes are made."""
    source = find_model("door")
    length = 0.1 if quick else 0.6
    noise = ["reset_noise=0.02", "guard_noise=0.001"]
    settings = source.configure(None, ["rate=1000.0", "begin=0.9", f"duration={length}", *noise])
    model = source.make(settings)
    start, record = first_estimate(model, settings, simulate_record(model, settings)[0])
    samples, kept, rows = list(record.samples()), make_filter("salted", model, settings), []

    def costs(deadline: float) -> Array:
        loop, found = Estimator(kept, start, deadline=deadline, clock=process_time), []
        for t, channel, value in samples:
            u, began = record.input(t - 0.5 * PERIOD), process_time()
            loop.step(t, {channel: value}, u)
            found.append(process_time() - began)
        return np.array(found)

    costs(math.inf)
    for deadline in DEADLINES:
        times = np.concatenate([costs(deadline) for _ in range(1 if quick else 7)])
        median, last = np.median(times), np.percentile(times, 99.0)
        shown = (last / median, times.max() / median)
        name = "none" if deadline == math.inf else f"{1e3 * deadline:g} ms"
        rows.append((name, f"{1e6 * median:.0f}", *(f"{value:.1f}" for value in shown)))
    columns = ["deadline", "median us", "99 % / median", "longest / median"]
    return make_table("The door's filter in a loop, one step", columns, rows)


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
