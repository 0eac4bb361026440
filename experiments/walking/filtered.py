"""Walks on estimates: a filter on encoders and an inertial sensor, whose mean is fed back.

The encoders give the angles of hips and knees, the inertial sensor the inclination of the torso and
its rate. The filter knows the walker, the held torques, and nothing of touchdowns but what these
measurements say. Torques are held between samples, inside the friction cone and the limits as far
as the estimate shows them. Gains and filter are the same for both of its kinds but for the jump of
the covariance at touchdowns: the saltation matrix, or the Jacobian of the reset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hybridctl.experiments.walking.cone import ConeModel, nearest
from hybridctl.experiments.walking.controllers import Tracks
from hybridctl.experiments.walking.gait import Gait
from hybridctl.experiments.walking.walk import STANCES, TOLERANCE, is_fall
from hybridctl.robots import five_link

from hybridctl.control.laws import tracking_law
from hybridctl.control.lqr.periodic import PeriodicLqr
from hybridctl.errors import HybridctlError, SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.measurement import Measurement, coordinates
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import simulate

STRATEGIES: tuple[Strategy, ...] = ("saltation", "reset_jacobian")
_SAMPLE = 0.004  # s
_CHANNELS = {"encoders": ([3, 4, 5, 6], [1e-3] * 4), "inertial": ([2, 9], [2e-3, 1e-2])}
_DRIVEN = 1e-3  # spectral density of what the filter takes to disturb velocities, rad^2/s^3


@dataclass(frozen=True)
class Filtered:
    """A walk on estimates.

    steps: of the walker before it fell, or all. error: root mean square of the estimate's
    coordinates and velocities, the way apart. reason: of the fall, empty where there was none.
    """

    steps: int
    error: float
    reason: str


@dataclass(frozen=True, eq=False)
class Loop:
    """A gait, its feedback, and a filter in the loop.

    torque: the greatest, N m. level: of the noise, in units of 1 mrad of encoders, 2 mrad of
    inclination and 10 mrad/s of its rate.
    """

    tracks: Tracks
    lqr: PeriodicLqr
    torque: float
    level: float
    strategy: Strategy

    @property
    def gait(self) -> Gait:
        """The gait."""
        return self.tracks.gait

    def filter(self) -> SaltedKalmanFilter:
        """The filter of this loop, which knows how noisy the sensors are."""
        noise = np.diag([0.0] * 7 + [_DRIVEN] * 7)
        return SaltedKalmanFilter(
            self.gait.walker,
            noise,
            self._sensors(),
            strategy=self.strategy,
            patience=None,
            rtol=TOLERANCE,
            atol=TOLERANCE,
        )

    def walked(self, steps: int, seed: int) -> Filtered:
        """So many steps from mid-step on the orbit, which the filter knows up to its noise."""
        found, reason = list[tuple[float, int]](), ""
        try:
            for sample in self._samples(steps, np.random.default_rng(seed)):
                found.append(sample)
        except HybridctlError as failure:
            reason = f"{type(failure).__name__}: {failure}"
        walked = found[-1][1] if found else 0
        squares = [error**2 for error, _ in found]
        error = float(np.sqrt(np.mean(squares))) if squares else float("nan")
        return Filtered(walked, error, reason if walked < steps else "")

    def _samples(self, steps: int, random: np.random.Generator) -> Iterator[tuple[float, int]]:
        """Error of the estimate, and steps walked, sample by sample, until a fall or the end."""
        gait, kalman = self.gait, self.filter()
        t, x = 0.5 * gait.period, gait.middle
        mode: ModeKey = five_link.LEFT_STANCE
        state = kalman.start(Estimate(mode, t, x, 1e-6 * self.level**2 * np.eye(14)))
        walked, seen, laws, cone = 0, 0, self._laws(), ConeModel(gait)
        while walked < steps:
            undone = False
            for name, (indices, deviations) in _CHANNELS.items():
                noise = self.level * np.array(deviations) * random.normal(size=len(indices))
                state = kalman.update(state, name, x[indices] + noise)
                undone = undone or state.undone
            estimate = state.estimate
            if estimate.mode in STANCES and estimate.mode != STANCES[seen % 2]:
                seen += -1 if undone else 1
            u = laws[min(seen, len(laws) - 1)](t, estimate.mean)
            if estimate.mode in STANCES:
                u = nearest(u, *cone(estimate.mode, estimate.mean), self.torque)
            run = simulate(
                gait.walker,
                mode,
                x,
                (t, t + _SAMPLE),
                HeldInput(u),
                terminal=is_fall,
                rtol=TOLERANCE,
                atol=TOLERANCE,
            )
            for event in run.events:
                if is_fall(event):
                    raise SimulationError(f"fell by {event.guards!r} at {event.time:.3f} s")
            walked += len(run.guard_events)
            t, mode, x = run.end, run.final_mode, run.final_state
            state = kalman.predict(state, t, u)
            yield float(np.linalg.norm((state.estimate.mean - x)[1:])), walked

    def _sensors(self) -> list[Measurement]:
        return [
            coordinates(name, indices, np.diag((self.level * np.array(deviations)) ** 2))
            for name, (indices, deviations) in _CHANNELS.items()
        ]

    def _laws(self) -> list[InputLaw]:
        """The tracking law of each arc of the reference."""
        _, gains = self.lqr.repeated(self.tracks.steps + 1)
        limits = self.torque * np.array([-np.ones(4), np.ones(4)])
        arcs = self.tracks.reference.arcs
        return [tracking_law(arc, k, limits) for arc, k in zip(arcs, gains.arcs, strict=True)]
