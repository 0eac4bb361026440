r"""Contacts as hypotheses: which feet stand, by how they move and by what they bear.

All feet are in the state. Those that stand creep, those that swing do a random walk that is far
wider, and a hypothesis says which do what; one foot stands at least. Between two samples h s apart
a foot takes the other part with probability :math:`1 - e^{-\lambda h}`. Then evidence weighs the
hypotheses, by the logarithm of a ratio for each foot that they take to stand:

- *Motion.* Seen from the inertial frame a foot moves by :math:`\dot s`, the mean over `span` s of
  what the joint angles say (the input has it), so in the axes of that frame, but in the world, by
  :math:`w = R^T v + \omega \times s + \dot s`. It is :math:`N(0, S + \sigma_s^2)` for one that
  stands and :math:`N(0, S + \sigma_m^2)` for one that swings, S being what estimate and angles do
  not know of it.
- *Force.* :math:`\log p / (1 - p)`, p that of contact by its vertical force (`readings`).

Both are new once in `span` s, so that a sample has the share h / span of them, or all. What the
angles say of a foot's pose is no evidence: their noise from sample to sample is as large as what a
slow foot moves. Every hypothesis that is left corrects the estimate by them, and the results are
merged by their moments (generalized pseudo-Bayes of first order: Bar-Shalom, Li and Kirubarajan,
*Estimation with applications to tracking and navigation*, 2001, 11.6.4).

A point foot slips, sinks and lifts as it does for contacts by thresholds: whichever part it takes,
its noise is that of `creep`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridctl.base.checks import Array, check_number
from hybridctl.base.settings import Positive, Settings
from hybridctl.base.time_series import Series
from hybridctl.estimation.estimate import Estimate, Mixture
from hybridctl.estimation.filter_state import FilterState, Hypothesis, Input
from hybridctl.estimation.kalman_equations import Innovation
from hybridctl.estimation.mixture import combine_estimates
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult, filter_record
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.mode import ModeKey
from hybridctl.legged.creep import FootMotion, apparent_velocity, complete_input, measure_creep
from hybridctl.legged.gait import gait_step_time
from hybridctl.legged.kinematics import FootKinematics
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.readings import Hysteresis, signal_name, step_time
from hybridctl.legged.rest import REST
from hybridctl.legged.rotation import matrix
from hybridctl.legged.space import RATE
from hybridctl.legged.system import OPEN, STICK, LeggedBase, find_kept_places

_LEAST_WEIGHT = 1e-3
"""Least probability of a hypothesis that still corrects the estimate."""


STEP = 1.0  # s, where neither forces nor joints repeat a step


@dataclass(frozen=True)
class ContactEvidence(Settings):
    """How feet move that stand and swing, and how often they change.

    Attributes:
        still: Standard deviation of the velocity of feet that stand, m/s.
        moving: Standard deviation of the velocity of feet that swing, m/s.
        step: Usual time in s that a foot stands or swings. None for what forces say (see
            `step_time`), and without these the gait of the joints (see `gait_step_time`).
        span: Time in s over which the velocity is a mean; None for a twentieth of a step.
        switches: Rate in 1/s at which a foot changes its contact; None for one in a step.
        swing: Noise of feet that swing, m/s/sqrt(Hz) and rad/s/sqrt(Hz).
        forces: Whether forces that are measured count.
    """

    still: Positive = 0.06
    moving: Positive = 0.5
    step: Positive | None = None
    span: Positive | None = None
    switches: Positive | None = None
    swing: Positive = 1.0
    forces: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("moving", self.moving, above=self.still)

    def find_step(
        self, contact: Hysteresis, loads: Iterable[Series], angles: Series
    ) -> ContactEvidence:
        """Return this evidence with the time of a step of a log, if it has none yet.

        Args:
            contact: Forces from which on, and down to which, a foot is in contact.
            loads: Vertical forces (n, 1) of feet in N; by these if one of them changes its contact.
            angles: Joint angles (n, m) in rad, by whose gait otherwise; 1 s if they have none.
        """
        step = self.step or step_time(contact, loads) or gait_step_time(angles) or STEP
        return replace(self, step=step)

    @property
    def window(self) -> float:
        """The time over which the motion of a foot is averaged, s."""
        return (self.step or STEP) / 20.0 if self.span is None else self.span

    @property
    def rate(self) -> float:
        """How often a foot touches down or lifts off, 1/s."""
        return 1.0 / (self.step or STEP) if self.switches is None else self.switches


class HypothesesState(NamedTuple):
    """All that the filter keeps: `predict` and `update` make the next one of it.

    Attributes:
        filter: State as other filters keep it, with the estimate of the likeliest hypothesis,
            without the feet that swing.
        estimate: Estimate with all feet.
        weights: Probabilities (m,) of the hypotheses.
        weighed: Time in s of the last angles, which weighed them.
        evidence: Last forces of feet by channel.
    """

    filter: FilterState
    estimate: Estimate
    weights: Array
    weighed: float
    evidence: Mapping[str, Array] = {}

    @property
    def time(self) -> float:
        """The time of the estimate, s."""
        return self.estimate.time


@dataclass(frozen=True, eq=False)
class ContactHypotheses:
    """The filter of a base whose contacts are not known; see this module.

    Attributes:
        base: Base, feet and noise.
        filter: Filter of the base, which predicts and corrects in the mode of all feet.
        contact: Thresholds of forces. The middle between them is as likely a foot that stands as
            one that swings.
        evidence: How feet move that stand and swing.
        motion: How the velocities of feet in the input were found, over the window of `evidence`.
    """

    base: LeggedBase
    filter: SaltedKalmanFilter
    contact: Hysteresis
    evidence: ContactEvidence
    motion: FootMotion

    @cached_property
    def standing(self) -> NDArray[np.bool_]:
        """The feet (m, k) that stand by each hypothesis."""
        parts = [p for p in product((True, False), repeat=len(self.base.feet)) if any(p)]
        return np.array(parts)

    @cached_property
    def foot_noise(self) -> Array:
        r"""Density (m, ndx) of the noise that feet have besides by each hypothesis.

        A point foot that stands has a velocity :math:`N(0, \sigma_s^2)`, which is another one
        after `span`: its position is a random walk of the density :math:`\sigma_s^2` times `span`.
        Without that the filter would be surer of such a foot than the evidence that chose it. A
        sole has the noise of `BaseNoise` alone, as in `creep`.
        """
        noise, evidence = self.base.noise, self.evidence
        found = np.zeros((len(self.standing), self.base.space(self.all_feet).ndx))
        for row, stands in zip(found, self.standing, strict=True):
            for place in self.base.places(self.all_feet):
                if not stands[place.number]:
                    creep = noise.creep(place.turn_dx is not None)
                    row[place.dx] = evidence.swing**2 - creep**2
                    if place.turn_dx is not None:
                        row[place.turn_dx] = evidence.swing**2 - noise.foot_turn**2
                elif place.turn_dx is None:
                    row[place.dx] = evidence.still**2 * evidence.window
        return found

    @property
    def all_feet(self) -> ModeKey:
        """The mode in which the filter runs."""
        return (STICK,) * len(self.base.feet)

    def run(self, record: Record, initial: Estimate, *, sure: bool = True) -> FilterResult:
        """Return the result of filtering a record.

        Estimates are those of the most likely mode, without the feet that swing.

        Args:
            record: Record that `BaseEstimator.record` has made.
            initial: Estimate at its first sample, with all feet in the state.
            sure: Whether all feet are known to stand at first; otherwise all hypotheses are as
                likely.
        """
        start, steps = self.start(initial, sure=sure), (self.predict, self.update)
        shown = lambda state: state.filter  # noqa: E731
        return filter_record(record, start, list(record.channels), *steps, shown, None)

    def start(self, initial: Estimate, *, sure: bool = True) -> HypothesesState:
        """Return the state in which a run from an estimate begins; see `run`."""
        weights = np.ones(len(self.standing)) / len(self.standing)
        if sure:
            weights = np.where(self.standing.all(axis=1), 1.0, 0.0)
        state = HypothesesState(self.filter.start(initial), initial, weights, initial.time)
        return self._showing(state)

    def predict(self, state: HypothesesState, time: float, input: Input = None) -> HypothesesState:
        """Return the state at a later time.

        Args:
            state: State before.
            time: The later time, s.
            input: Input (nu,) that is held until then; None for zero.
        """
        if time == state.time:
            return state
        now = self.filter.rules.start(state.estimate)
        if input is not None and time > state.time:
            u, e = np.asarray(input), state.estimate
            input = complete_input(
                self.base, e, u, measure_creep(self.base, e, u, self.motion), None
            )
        e = self.filter.predict(now, time, input).estimate
        return self._showing(state._replace(estimate=e))

    def update(
        self, state: HypothesesState, channel: str, value: Array, input: Array | None
    ) -> HypothesesState:
        """Return the state after a value of a channel, measured at the time of the state.

        Forces of feet are kept for the angles of the same time, which correct.

        Args:
            state: State before the value.
            channel: Name of the channel.
            value: The value (m,).
            input: Input (nu,) at that time; None only where no angles come.
        """
        if channel == REST:
            now = self.filter.rules.start(state.estimate)
            found = self.filter.update(now, REST, value, input)
            corrected = state._replace(estimate=found.estimate)
            return self._showing(corrected, channel, state.estimate, found.innovation)
        if channel != ANGLES:
            state = state._replace(evidence={**state.evidence, channel: value})
        elif np.isfinite(value).all():
            assert input is not None
            weights = self._weigh_hypotheses(state, value, input)
            e, innovation = self._correct_estimate(state, weights, value, input)
            after = state._replace(estimate=e, weights=weights, weighed=e.time)
            return self._showing(after, channel, state.estimate, innovation)
        return self._showing(state, channel)

    def propagate_weights(self, weights: Array, h: float) -> Array:
        """Return the weights (m,) of the hypotheses h s later, before any evidence."""
        changes = (self.standing[:, None] != self.standing[None]).sum(axis=2)
        one = -np.expm1(-self.evidence.rate * h)
        moved = one**changes * (1.0 - one) ** (self.standing.shape[1] - changes) @ weights
        return np.asarray(moved / moved.sum())

    def motion_odds(self, number: int, seen: FootKinematics, e: Estimate, u: Array) -> float:
        """Return the logarithm of the density of a foot's velocity if it stands to that if not.

        Args:
            number: Number of the foot.
            seen: The foot by its angles.
            e: Estimate of base and feet.
            u: Input (nu,), with the velocities of the feet.
        """
        w, h = apparent_velocity(seen, u[self.base.moving_columns(number)], e, u[RATE])
        w = w + self._roll_velocity(number, e, u)
        p = e.covariance[: h.shape[1], : h.shape[1]]
        angles = self.motion.rate_variance * seen.moving @ seen.moving.T
        values, axes = np.linalg.eigh(h @ p @ h.T + angles)
        along = (axes.T @ w) ** 2
        still, moving = values + self.evidence.still**2, values + self.evidence.moving**2
        return 0.5 * float((along / moving - along / still + np.log(moving / still)).sum())

    def _roll_velocity(self, number: int, e: Estimate, u: Array) -> Array:
        """Return the velocity (3,) in m/s of the lowest point of a foot against its centre.

        In the axes of the inertial frame. A round foot that rolls has no velocity there, but its
        centre moves: by 0.1 m/s where a calf turns at 5 rad/s over 20 mm.
        """
        radius = self.base.kinematics.radii[self.base.feet[number]]
        if not radius:
            return np.zeros(3)
        turning = u[RATE] - e.mean[10:13] + u[self.base.turning_columns(number)]
        return np.cross(turning, -radius * matrix(e.mean[:4])[2])

    def _weigh_hypotheses(self, state: HypothesesState, angles: Array, u: Array) -> Array:
        """Return the weights (m,) by what is known of motion and force of each foot."""
        e, feet = state.estimate, self.base.feet
        h = e.time - state.weighed
        share, odds = min(h / self.evidence.window, 1.0), np.zeros(len(feet))
        for k, seen in enumerate(self.base.kinematics(angles, feet)):
            odds[k] = share * self.motion_odds(k, seen, e, u)
            force = state.evidence.get(signal_name(feet[k]))
            if force is not None and np.isfinite(force[0]):
                odds[k] += share * self.contact.log_odds(float(force[0]))
        with np.errstate(divide="ignore"):  # a weight is zero until time has passed
            logarithms = np.log(self.propagate_weights(state.weights, h)) + self.standing @ odds
        weights = np.exp(logarithms - logarithms.max())
        return np.asarray(weights / weights.sum())

    def _correct_estimate(
        self, state: HypothesesState, weights: Array, angles: Array, u: Array
    ) -> tuple[Estimate, Innovation | None]:
        """Return the estimate by all hypotheses that count, and the innovation of the likeliest.

        Those of less than `_LEAST_WEIGHT` do not count.

        Args:
            state: State before the angles.
            weights: Weights (m,) of the hypotheses with the evidence of the angles' time.
            angles: Joint angles (n,), rad.
            u: Input (nu,) at that time.
        """
        e, h = state.estimate, state.estimate.time - state.weighed
        chosen = np.flatnonzero(weights >= _LEAST_WEIGHT)
        chosen = chosen[np.argsort(-weights[chosen], kind="stable")]
        found = []
        for k in chosen:
            p = e.covariance + np.diag(h * self.foot_noise[k])
            now = self.filter.rules.start(replace(e, covariance=p))
            found.append(self.filter.update(now, ANGLES, angles, u))
        first, shares = found[0], weights[chosen] / weights[chosen].sum()
        if len(found) == 1:
            return first.estimate, first.innovation
        merged = combine_estimates(
            self.filter.model.system, [one.estimate for one in found], shares
        )
        e = replace(first.estimate, mean=merged.mean, covariance=merged.covariance)
        return e, first.innovation

    def _showing(
        self,
        state: HypothesesState,
        channel: str | None = None,
        predicted: Estimate | None = None,
        innovation: Innovation | None = None,
    ) -> HypothesesState:
        """Return the state with what other filters keep, of the likeliest hypothesis and of all.

        Args:
            state: State whose `filter` is replaced.
            channel: Channel of the last value; None after a prediction.
            predicted: Estimate before that value; None without one.
            innovation: Innovation of that value; None without one.
        """
        order = np.argsort(-state.weights, kind="stable")
        modes: list[ModeKey] = [
            tuple(STICK if s else OPEN for s in self.standing[k]) for k in order
        ]
        probabilities = dict(zip(modes, state.weights[order].tolist(), strict=True))
        e, (x, dx) = state.estimate, find_kept_places(self.base, self.all_feet, modes[0])
        p = e.covariance[np.ix_(dx, dx)]
        shown = replace(e, mode=modes[0], mean=e.mean[x], covariance=p)
        several = Mixture(shown.mode, shown.time, shown.mean, p, probabilities)
        made = Hypothesis(shown, predicted=predicted, innovation=innovation)
        told = FilterState(e.time, (made,), state.filter.beginning, channel, several=several)
        return state._replace(filter=told)
