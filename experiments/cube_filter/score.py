"""One filter on one toss.

Only poses are measured; a filter starts at the second one, with the velocity that the first two
say. After some that the gate rejects in a row it begins anew, in flight: a contact taken to be
closed by mistake would hold it for the rest of the toss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.cube_filter.tosses import (
    after_impacts,
    corner_heights,
    in_contact,
    phases,
)
from hybridctl.robots.filter_models import CubeSettings, cube_model
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array
from hybridctl.errors import HybridctlError
from hybridctl.estimation.filters import STRATEGIES, first_estimate, run_filter
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.state import FilterState
from hybridctl.mechanics import closed_contacts

SEVERAL = "several"
SLOW = ("unscented", "particle")  # judged on few tosses
FILTERS = (*STRATEGIES, SEVERAL, *SLOW)
BORROWED = (SEVERAL, *SLOW)  # not searched: they run at the levels of the salted filter
EVENTS = ("reset_noise", "reset_torque", "guard_noise")


class Case(NamedTuple):
    """A filter with noise of events or without."""

    name: str
    noisy: bool

    @property
    def label(self) -> str:
        """As it stands in tables."""
        return f"{self.name}, {'with' if self.noisy else 'without'} event noise"

    @property
    def file(self) -> str:
        """As it stands in names of files."""
        return self.label.replace(", ", "-").replace(" ", "-")

    def searched(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the levels that this filter depends on."""
        return tuple(name for name in names if self.noisy or name not in EVENTS)


@dataclass(frozen=True, eq=False)
class Score:
    """A filter on a toss: what `score` found, one row for each measured pose.

    residual (n, 6): innovations, in m in the frame of the table, and in rad in that of the cube.
    claimed (n,): the deviation of the predicted position, m. near (n,): at most the chosen time
    after an impact. touches, recorded (n,): contact by the filter and by the recorded pose. phases:
    of the recorded poses, as in `tosses`. reopened: how often a lost filter believed the
    poses. failure: why the run could not be finished, or None; then there are no rows.
    """

    toss: int
    nis: Array
    accepted: Array
    log_likelihood: Array
    residual: Array
    claimed: Array
    near: Array
    touches: Array
    recorded: Array
    phases: tuple[str, ...]
    notes: int
    reopened: int
    seconds: float
    failure: str | None = None


def filtered(name: str, settings: CubeSettings, toss: Record) -> tuple[FilterResult, Record]:
    """A filter on the rows after those that make its start, and these rows.

    `SEVERAL` alone follows more than one hypothesis.
    """
    bound = settings.hypotheses if name == SEVERAL else 1
    chosen, model = replace(settings, hypotheses=bound), cube_model(settings)
    start, rest = first_estimate(model, chosen, toss)
    return run_filter("salted" if name == SEVERAL else name, model, chosen, rest, start), rest


def score(
    name: str, settings: CubeSettings, number: int, toss: Record, tolerance: float, span: float
) -> Score:
    """The filter on a levelled toss; tolerance: m, of contact; span: s after an impact."""
    try:
        result, rest = filtered(name, settings, toss)
    except (HybridctlError, np.linalg.LinAlgError) as error:
        return lost(number, str(error))
    heights = corner_heights(toss, settings.parameters())
    found = result.innovations
    residual = np.array([i.residual for i in found])
    attitude = Rotation.from_quat([step.predicted.mean[3:7] for step in result.steps])
    residual[:, :3] = attitude.apply(residual[:, :3])
    rows = int(span * toss.channels["pose"].rate)
    return Score(
        number,
        np.array([i.nis for i in found]),
        np.array([i.accepted for i in found]),
        log_likelihoods(result, rest),
        residual,
        np.sqrt([np.trace(i.covariance[:3, :3]) for i in found]),
        after_impacts(heights, tolerance, rows)[settings.warm_up :],
        np.array([touched(step) for step in result.steps]),
        in_contact(heights, tolerance)[settings.warm_up :],
        phases(heights, tolerance)[settings.warm_up :],
        len(result.notes),
        sum(step.reopened for step in result.steps),
        result.seconds,
    )


def lost(toss: int, reason: str) -> Score:
    """A toss that the filter could not finish."""
    none = np.zeros(0)
    empty = none, none, none, np.zeros((0, 6)), none, none, none, none
    return Score(toss, *empty, (), 0, 0, 0.0, reason)


def touched(step: FilterState) -> bool:
    """Whether a corner is closed after a sample, or has hit the table since the one before."""
    closed = len(closed_contacts(step.estimate.mode)) > 0
    return closed or any(g.endswith("closes") for e in step.events for g in e.guards)
