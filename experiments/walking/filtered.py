"""A walker walks on a filter's mean, if the covariance jumps by the saltation matrix at touchdowns.

The encoders measure the angles of hips and knees, the inertial sensor the inclination of the torso
and its rate. The filter has the walker's model and the torques (zero-order hold), and detects
touchdowns by these measurements alone. Torques stay inside the friction cone and the limits at the
estimate. A policy may act instead of the gains; it gets the touchdowns of the estimate. The two
filters differ in the jump of the covariance at touchdowns alone: the saltation matrix, or the
Jacobian of the reset. A filter that fails ends the walk like a fall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.walking.controllers import Tracks, make_cone_filter
from hybridctl.experiments.walking.walk import (
    STANCES,
    TOLERANCE,
    Walk,
    draw_start,
    push_state,
    walk,
)
from hybridctl.robots import five_link

from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.tracking_law import TrackingLaw
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.salted_jump import Strategy
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.hybrid.laws import InputLaw, make_zero_input
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History, Policy, SampledPolicy, ask_next_change
from hybridctl.hybrid.trajectory import Event
from hybridctl.planning.plan import TIME_ROUNDING

STRATEGIES: tuple[Strategy, ...] = ("saltation", "reset_jacobian")
SAMPLE = 0.004
"""Time between samples, s."""
_CHANNELS = {"encoders": ([3, 4, 5, 6], [1e-3] * 4), "inertial": ([2, 9], [2e-3, 1e-2])}
"""Indices of the state and standard deviations (rad, rad/s) of each channel, at level 1."""


@dataclass(frozen=True)
class Sensing:
    """Sensors, and the filter on them.

    Attributes:
        level: Level of the noise, in units of 1 mrad (encoders), 2 mrad (inclination) and 10
            mrad/s (its rate).
        strategy: Jump of the filter's covariance at a touchdown.
        driven: Spectral density of the disturbance of velocities in the filter, rad^2/s^3.
        ground: Standard deviation of the height of the ground in the filter, m.
    """

    level: float
    strategy: Strategy
    driven: float = 1e-3
    ground: float = 0.0

    def measure(self, x: Array, random: np.random.Generator) -> dict[str, Array]:
        """Return the noisy measurements of a state x (14,) by channel."""
        return {
            name: x[indices] + self.level * np.array(deviations) * random.normal(size=len(indices))
            for name, (indices, deviations) in _CHANNELS.items()
        }

    def make_filter(self, tracks: Tracks) -> SaltedKalmanFilter:
        """Return the filter of the walker, with the sensors' own noise."""
        channels = [
            coordinates(name, indices, np.diag((self.level * np.array(deviations)) ** 2))
            for name, (indices, deviations) in _CHANNELS.items()
        ]
        noise, ground = np.diag([0.0] * 7 + [self.driven] * 7), self.ground**2
        options = FilterOptions(
            strategy=self.strategy, patience=None, rtol=TOLERANCE, atol=TOLERANCE
        )
        walker = tracks.gait.walker
        return SaltedKalmanFilter(walker, noise, channels, options=options, guard_noise=ground)


class EstimateFeedback:
    """Torques u(t, x) by an estimate of x.

    It is called at times in order, from mid-step on, and keeps the filter's state between calls.

    Args:
        tracks: Tracks of the gait.
        lqr: Feedback around the gait.
        torque: Greatest torque, N m.
        sensing: Sensors and filter.
        seed: Seed of the sensors' noise.
        start: Start in mid-step (14,), the mean of the filter.
        policy: Acts instead of the gains; None for the gains.
        unknown: Standard deviation (14,) of the start along one direction, which is added to the
            filter's covariance; None for none.

    Attributes:
        errors: Norm of the estimate minus the state at each sample, without the distance walked;
            rad, m and per s together.
    """

    def __init__(
        self,
        tracks: Tracks,
        lqr: PeriodicLqr,
        torque: float,
        sensing: Sensing,
        seed: int,
        start: Array,
        policy: Policy | None = None,
        unknown: Array | None = None,
    ) -> None:
        self.errors: list[float] = []
        gait, limits = tracks.gait, torque * np.array([-np.ones(4), np.ones(4)])
        gains = lqr.repeated(tracks.steps + 1)[1].arcs
        self._laws = [
            TrackingLaw(arc, gain, limits).differentiable()
            for arc, gain in zip(tracks.reference.arcs, gains, strict=True)
        ]
        self._cone = make_cone_filter(gait, torque)
        self._sensing, self._random = sensing, np.random.default_rng(seed)
        self._filter = sensing.make_filter(tracks)
        covariance = 1e-6 * sensing.level**2 * np.eye(14)
        if unknown is not None:
            covariance += np.outer(unknown, unknown)
        first = Estimate(five_link.LEFT_STANCE, 0.5 * gait.period, start, covariance)
        self._state = self._filter.start(first)
        self._input: Array | None = None
        self._policy = policy
        self._law: InputLaw = make_zero_input(4)
        self._next_change = -np.inf  # s, when the policy wants to be asked again
        self._mode: ModeKey | None = None  # in which the policy was asked
        self._touchdowns: list[Event] = []  # of the estimate

    def __call__(self, t: float, x: Array) -> Array:
        """Return the torques (4,) from time t on; a second call at the same time changes nothing.

        Args:
            t: Time, s.
            x: State (14,), which is measured.
        """
        if self._input is not None:
            if t <= self._state.time:
                return self._input
            self._state = self._filter.predict(self._state, t, self._input)
        for name, value in self._sensing.measure(x, self._random).items():
            self._state = self._filter.update(self._state, name, value)
        estimate = self._state.estimate
        self.errors.append(float(np.linalg.norm((estimate.mean - x)[1:])))
        on_foot = estimate.mode in STANCES
        if on_foot and estimate.mode != STANCES[len(self._touchdowns) % 2]:
            self._touchdowns.append(_make_touchdown(len(self._touchdowns), estimate))
        if self._policy is not None:
            self._input = self._ask_policy(self._policy, estimate)
            return self._input
        u = self._laws[min(len(self._touchdowns), len(self._laws) - 1)](t, estimate.mean)
        if on_foot:
            u = self._cone(estimate.mode, estimate.mean, u)
        self._input = u
        return u

    def _ask_policy(self, policy: Policy, estimate: Estimate) -> Array:
        """Return the torques at an estimate, and update the law in a new mode or when it is due."""
        history = History(
            estimate.mode, estimate.time, np.array(estimate.mean), tuple(self._touchdowns)
        )
        if estimate.mode != self._mode or estimate.time >= self._next_change:
            self._mode, self._law = estimate.mode, policy.law(history)
            self._next_change = ask_next_change(policy, history) - TIME_ROUNDING
        return self._law(estimate.time, history.state)


def _make_touchdown(k: int, estimate: Estimate) -> Event:
    """Return touchdown k as an event at an estimate, without inputs and impulses."""
    x, nothing = np.array(estimate.mean), np.zeros(4)
    before, after = STANCES[k % 2], STANCES[(k + 1) % 2]
    guards = ("right closes" if k % 2 == 0 else "left closes",)
    return Event(
        k, estimate.time, before, after, guards, x, x, nothing, nothing, nothing, np.zeros(0)
    )


@dataclass(frozen=True, eq=False)
class Filtered:
    """A walk on estimates.

    Attributes:
        walk: The walk.
        error: Root mean square of the errors of estimates at the samples.
    """

    walk: Walk
    error: float


class Pushed(NamedTuple):
    """A policy that walks on from a random start after a push.

    The filter begins with the start before the push. Its covariance has the effect of the push as a
    standard deviation.

    Attributes:
        policy: Controller.
        impulse: Impulse at the hip, N s.
        scatter: Standard deviations of the start, see `draw_start`.
    """

    policy: Policy
    impulse: float
    scatter: tuple[float, float]


def walk_on_estimates(
    tracks: Tracks,
    lqr: PeriodicLqr,
    torque: float,
    sensing: Sensing,
    seed: int,
    push: Pushed | None = None,
) -> Filtered:
    """Return the walk of one step fewer than the reference has, on a filter's estimates.

    Args:
        tracks: Tracks of the gait.
        lqr: Feedback around the gait.
        torque: Greatest torque, N m.
        sensing: Sensors and filter.
        seed: Seed of noise and start.
        push: Push in mid-step with the policy that acts; None for gains that start on the orbit.
    """
    gait, settings = tracks.gait, (tracks, lqr, torque, sensing, seed)
    if push is None:
        start = gait.middle
        feedback = EstimateFeedback(*settings, start)
    else:
        before = draw_start(gait, np.random.default_rng([seed, 1]), push.scatter)
        start = push_state(gait, push.impulse, before)
        feedback = EstimateFeedback(*settings, before, push.policy, start - before)
    policy = SampledPolicy(feedback, SAMPLE, 0.5 * gait.period)
    found = walk(gait, policy, start, tracks.steps - 1)
    return Filtered(found, float(np.sqrt(np.mean(np.square(feedback.errors)))))
