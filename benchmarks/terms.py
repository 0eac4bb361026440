"""What filters and closed loops of robots of up to 7 velocities cost, by the terms they evaluate.

These robots do not use the compiled kernel of modes (`mechanics/kernel`): their modes are generated
as a whole. "pinocchio" is what they cost without that, and "native" what machine code gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.experiments.rrr_door.tracking import Config, schedule
from hybridctl.robots import cube, five_link, rrr_door
from rich.table import Table

from benchmarks.estimation import prepared
from benchmarks.timing import measure
from hybridctl.app.report import make_table
from hybridctl.base.function_cache import find_compiler
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics.system import contact_system
from hybridctl.mechanics.terms.sources import TermsChoice
from hybridctl.sampling.filters import make_filter

TERMS: tuple[TermsChoice, ...] = ("pinocchio", "generated", "native")
POSTURE = (0.0, 0.8, 0.05, -0.3, 0.2, 0.1, 0.25)
"""Base in m and rad and joints in rad of the walker, whose feet are 1 and 4 cm above the ground."""


def table_of_terms(effort: dict[str, float]) -> Table:
    """Milliseconds of a sample of two filters, and of one run of the door's closed loop.

    Without a C compiler there is no column of "native" terms.
    """
    quick = effort["rounds"] == 1
    choices = [terms for terms in TERMS if terms != "native" or find_compiler() is not None]
    makers: dict[str, Callable[[TermsChoice, bool], tuple[Callable[[], object], int]]] = {
        "cube, a sample of its filter": _filter_cube,
        "five-link walker, a sample of its filter": _filter_walker,
        "door, a run of a tuning ensemble": _run_door,
    }
    rows = []
    for name, make in makers.items():
        row = [name]
        for terms in choices:
            call, count = make(terms, quick)
            call()  # a first run has the functions made and read, which is done once
            row.append(f"{measure(call, **effort).best / count / 1e3:.2f}")
        rows.append(row)
    return make_table("Filters and closed loops by terms, ms", ["what", *choices], rows)


def _filter_cube(terms: TermsChoice, quick: bool) -> tuple[Callable[[], object], int]:
    """Return the run of the cube's filter over a toss at 148 Hz, and its number of samples."""
    log = prepared("cube", 0.1 if quick else 0.35)
    body, corners = log.model.robot, cube.contacts(log.settings.parameters())
    model = replace(log.model, system=contact_system(body, corners, terms=terms))
    kept = make_filter("salted", model, log.settings)
    return lambda: kept.run(log.record, log.start), log.samples


def _filter_walker(terms: TermsChoice, quick: bool) -> tuple[Callable[[], object], int]:
    """Return the run of the walker's filter on encoders and inclination, and its samples.

    It is dropped without torques, lands on one foot, then on the other, and collapses.
    """
    walker = five_link.system(terms=terms)
    flying, x0 = ("open", "open"), np.concatenate([POSTURE, np.zeros(7)])
    times = np.arange(0.0, 0.04 if quick else 0.2, 0.004)
    run = simulate(walker, flying, x0, (0.0, times[-1]))
    channel = coordinates("joints", [2, 3, 4, 5, 6], 1e-6 * np.eye(5))
    noise = np.diag([0.0] * 7 + [1e-3] * 7)
    kept = SaltedKalmanFilter(walker, noise, [channel])
    record = Record({"joints": Series(times, run(times)[:, 2:7])})
    start = Estimate(flying, 0.0, x0, 1e-6 * np.eye(14))
    return lambda: kept.run(record, start), len(times)


def _run_door(terms: TermsChoice, quick: bool) -> tuple[Callable[[], object], int]:
    """Return a perturbed run of the door with hand-set gains at the tuning's tolerance, and 1."""
    plant = contact_system(rrr_door.robot(), rrr_door.contacts(), terms=terms)
    reference = build(plant, rrr_door.DoorParameters(), Design())
    policy = ReferenceSpreading(reference, schedule(Config(), reference))
    x0 = reference.nominal(0.0) + np.array(Config().perturbation)
    end = 0.3 if quick else reference.nominal.end
    return lambda: simulate(plant, OPEN, x0, (0.0, end), policy, rtol=1e-4, atol=1e-4), 1
