"""Walks on estimates: a filter on encoders and an inertial sensor, whose mean is fed back.

The encoders give the angles of hips and knees, the inertial sensor the inclination of the torso and
its rate. The filter knows the walker, the held torques, and nothing of touchdowns but what these
measurements say. Torques are held between samples, inside the friction cone and the limits as far
as the estimate shows them. A policy may act instead, which is told of the touchdowns that the
estimate shows. Gains and filter are the same for both of its kinds but for the jump of
the covariance at touchdowns: the saltation matrix, or the Jacobian of the reset. A filter that
cannot go on ends the walk like a fall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hybridctl.experiments.walking.controllers import Tracks, standing
from hybridctl.experiments.walking.walk import STANCES, TOLERANCE, Walk, pushed, scattered, walk
from hybridctl.robots import five_link

from hybridctl.base.checks import Array
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.control.tracking_law import TrackingLaw
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import Measurement, coordinates
from hybridctl.estimation.salted_jump import Strategy
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.hybrid.laws import InputLaw, make_zero_input
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History, Policy, SampledPolicy, ask_next_change
from hybridctl.hybrid.trajectory import Event

STRATEGIES: tuple[Strategy, ...] = ("saltation", "reset_jacobian")
SAMPLE = 0.004  # s
_SAME = 1e-9  # s, by which times differ from rounding
_CHANNELS = {"encoders": ([3, 4, 5, 6], [1e-3] * 4), "inertial": ([2, 9], [2e-3, 1e-2])}


@dataclass(frozen=True)
class Sensing:
    """Sensors, and the filter on them.

    level: of the noise, in units of 1 mrad of encoders, 2 mrad of inclination and 10 mrad/s of its
    rate. strategy: what the filter takes a touchdown for. driven: spectral density of what it takes
    to disturb velocities, rad^2/s^3. ground: standard deviation of the height at which feet meet
    the ground, m.
    """

    level: float
    strategy: Strategy
    driven: float = 1e-3
    ground: float = 0.0

    def measured(self, x: Array, random: np.random.Generator) -> dict[str, Array]:
        """What the sensors say, by channel."""
        return {
            name: x[indices] + self.level * np.array(deviations) * random.normal(size=len(indices))
            for name, (indices, deviations) in _CHANNELS.items()
        }

    def filter(self, tracks: Tracks) -> SaltedKalmanFilter:
        """The filter, which knows how noisy the sensors are."""
        return SaltedKalmanFilter(
            tracks.gait.walker,
            np.diag([0.0] * 7 + [self.driven] * 7),
            self._channels(),
            options=FilterOptions(
                strategy=self.strategy, patience=None, rtol=TOLERANCE, atol=TOLERANCE
            ),
            guard_noise=self.ground**2,
        )

    def _channels(self) -> list[Measurement]:
        return [
            coordinates(name, indices, np.diag((self.level * np.array(deviations)) ** 2))
            for name, (indices, deviations) in _CHANNELS.items()
        ]


class EstimateFeedback:
    """Torques u(t, x) from what sensors say of x: a function with a memory, for times in order.

    start: in mid-step, which its filter knows up to its noise. torque: the greatest, N m. policy:
    what acts instead of the gains. unknown (14,): a standard deviation of the start along one
    direction, of which the filter is told besides. errors: by how much the estimate was off at each
    sample, the way apart; norms of coordinates and velocities.
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
        self._cone = standing(gait, torque)
        self._sensing, self._random = sensing, np.random.default_rng(seed)
        self._filter = sensing.filter(tracks)
        known = 1e-6 * sensing.level**2 * np.eye(14)
        if unknown is not None:
            known += np.outer(unknown, unknown)
        first = Estimate(five_link.LEFT_STANCE, 0.5 * gait.period, start, known)
        self._state = self._filter.start(first)
        self._input: Array | None = None
        self._policy = policy
        self._law: InputLaw = make_zero_input(4)
        self._again = -np.inf
        self._mode: ModeKey | None = None  # at which the policy was asked
        self._touchdowns: list[Event] = []  # that the filter believes in

    def __call__(self, t: float, x: Array) -> Array:
        """The torques (4,) from t on; asked again at the same time, they are the same."""
        if self._input is not None:
            if t <= self._state.time:
                return self._input
            self._state = self._filter.predict(self._state, t, self._input)
        for name, value in self._sensing.measured(x, self._random).items():
            self._state = self._filter.update(self._state, name, value)
        estimate = self._state.estimate
        self.errors.append(float(np.linalg.norm((estimate.mean - x)[1:])))
        on_foot = estimate.mode in STANCES
        if on_foot and estimate.mode != STANCES[len(self._touchdowns) % 2]:
            self._touchdowns.append(_touchdown(len(self._touchdowns), estimate))
        if self._policy is not None:
            self._input = self._asked(self._policy, estimate)
            return self._input
        u = self._laws[min(len(self._touchdowns), len(self._laws) - 1)](t, estimate.mean)
        if on_foot:
            u = self._cone(estimate.mode, estimate.mean, u)
        self._input = u
        return u

    def _asked(self, policy: Policy, estimate: Estimate) -> Array:
        """The torques of the policy at an estimate; its law is renewed by mode and when it asks."""
        history = History(
            estimate.mode, estimate.time, np.array(estimate.mean), tuple(self._touchdowns)
        )
        if estimate.mode != self._mode or estimate.time >= self._again:
            self._mode, self._law = estimate.mode, policy.law(history)
            self._again = ask_next_change(policy, history) - _SAME
        return self._law(estimate.time, history.state)


def _touchdown(k: int, estimate: Estimate) -> Event:
    """Touchdown k, of the foot that stands now, as far as an estimate tells."""
    x, nothing = np.array(estimate.mean), np.zeros(4)
    before, after = STANCES[k % 2], STANCES[(k + 1) % 2]
    guards = ("right closes" if k % 2 == 0 else "left closes",)
    return Event(
        k, estimate.time, before, after, guards, x, x, nothing, nothing, nothing, np.zeros(0)
    )


@dataclass(frozen=True, eq=False)
class Filtered:
    """A walk on estimates, and the root mean square of their errors at the samples."""

    walk: Walk
    error: float


class Pushed(NamedTuple):
    """A policy that walks from a random start that is pushed.

    impulse: in N s. scatter: see `scattered`. The filter knows the start before the push, and how
    pushes of this size move states, as a standard deviation, but not that there is one.
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
    """A walk of one step fewer than the reference has, on the orbit or after a push in mid-step."""
    gait, settings = tracks.gait, (tracks, lqr, torque, sensing, seed)
    if push is None:
        start = gait.middle
        feedback = EstimateFeedback(*settings, start)
    else:
        before = scattered(gait, np.random.default_rng([seed, 1]), push.scatter)
        start = pushed(gait, push.impulse, before)
        feedback = EstimateFeedback(*settings, before, push.policy, start - before)
    policy = SampledPolicy(feedback, SAMPLE, 0.5 * gait.period)
    found = walk(gait, policy, start, tracks.steps - 1)
    return Filtered(found, float(np.sqrt(np.mean(np.square(feedback.errors)))))
