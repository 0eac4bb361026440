r"""The hybrid bootstrap particle filter: many states through the exact event loop, weighted.

All particles are simulated to the time of the next sample, together where their modes have compiled
steps (`simulate_batch`). Weights are multiplied with the likelihood of what was measured; where few
particles carry them (effective number :math:`1 / \sum w_i^2`), they are drawn anew by systematic
resampling and, if asked for, spread by a kernel that keeps mean and covariance of each mode,

.. math:: x \leftarrow \bar x \boxplus (\sqrt{1 - b^2}\,(x \boxminus \bar x) + b\,\varepsilon),
          \qquad \varepsilon \sim N(0, P),

without which few different particles are left where there is little process noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from hybridctl.base.checks import Array, Indices, check_count, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import compute_mean
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.estimate import Estimate, Mixture, project_onto_constraints
from hybridctl.estimation.filter_state import Beginning, FilterState, Hypothesis, InputPiece
from hybridctl.estimation.kalman_equations import (
    Innovation,
    compute_innovation,
    compute_residual,
    predict_value,
    select_measured,
)
from hybridctl.estimation.measurement import Measurement, require_explicit
from hybridctl.estimation.mixture import compute_moments, mode_probabilities, select_most_probable
from hybridctl.estimation.noise import EventNoise, Noise
from hybridctl.estimation.prediction import predict
from hybridctl.estimation.record import Record
from hybridctl.estimation.recovery import monitor_rejections
from hybridctl.estimation.result import FilterResult, filter_record
from hybridctl.estimation.salted_kalman_filter import (
    ConstantCovariance,
    FilterOptions,
    SaltedKalmanFilter,
    check_initial_estimate,
)
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.run import BriefEvent
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.sampling.sigma_points import carried_together, integrated, silent

_MISTAKEN = 1e-3  # likelihood of a contact signal in a particle whose mode it contradicts


@dataclass(frozen=True, eq=False)
class ParticleSet:
    """Particles at one time: modes, states (n of nx), log-weights (n,) that sum to one, events."""

    time: float
    modes: tuple[ModeKey, ...]
    states: tuple[Array, ...]
    log_weights: Array
    events: tuple[tuple[BriefEvent, ...], ...]

    @property
    def weights(self) -> Array:
        """The weights (n,)."""
        return np.asarray(np.exp(self.log_weights))

    @property
    def effective(self) -> float:
        """The effective number of particles."""
        return 1.0 / float(np.exp(2.0 * self.log_weights).sum())

    @property
    def shares(self) -> dict[ModeKey, float]:
        """The probabilities of modes, the most probable first."""
        return mode_probabilities(self.modes, self.weights)

    @property
    def typical_events(self) -> tuple[BriefEvent, ...]:
        """Events of a particle with their median number, and the last at the median time."""
        counts = np.array([len(events) for events in self.events])
        same = np.flatnonzero(counts == counts[self._median(counts)])
        times = np.array([self.events[k][-1].time if self.events[k] else 0.0 for k in same])
        return self.events[int(same[self._median(times, same)])]

    def _median(self, values: Array | Indices, rows: Indices | None = None) -> int:
        """The index of the weighted median of values, of all particles or of these."""
        weights = self.weights if rows is None else self.weights[rows]
        order = np.argsort(values, kind="stable")
        heaped = np.cumsum(weights[order])
        return int(order[min(int(heaped.searchsorted(0.5 * heaped[-1])), len(order) - 1)])

    def members(self, mode: ModeKey) -> Indices:
        """The particles in a mode."""
        return np.flatnonzero([key == mode for key in self.modes])

    def chosen(self, rows: Indices) -> ParticleSet:
        """The particles of these numbers, in this order, with equal weights."""
        return ParticleSet(
            self.time,
            tuple(self.modes[k] for k in rows),
            tuple(self.states[k] for k in rows),
            np.full(len(rows), -np.log(len(rows))),
            tuple(self.events[k] for k in rows),
        )


class ParticleState(NamedTuple):
    """All that a particle filter keeps: `predict` and `update` make the next one of it.

    filter: what other filters keep, with the moments of the particles. counted: the events that
    half of the weight has had. draws: how often numbers were drawn, each time by a generator of its
    own.
    """

    filter: FilterState
    particles: ParticleSet
    counted: tuple[BriefEvent, ...] = ()
    draws: int = 0

    @property
    def time(self) -> float:
        """The time of the particles, s."""
        return self.particles.time


class ParticleFilter:
    """A particle filter on any hybrid system; `run` on a record gives what other filters give.

    Arguments up to `atol` are those of `SaltedKalmanFilter`. What a lost one believes is found as
    by a salted filter, and new particles are drawn from that. Noise of flow, resets and guards is
    drawn at the end of a prediction: for particles with the same events from the covariance that
    one of them gathers on its way to first order (exact on linear flows).

    particles: how many. seed: of everything drawn in a run. resample: the part of `particles` below
    which the effective number must fall. smoothing b, in [0, 1): of the kernel after resampling, 0
    for none.

    An estimate is of the mode with the largest weight: mean and covariance of its particles.
    An event counts once half of the weight has had it. A contact signal takes weight from
    particles whose mode contradicts it. The log-likelihood of a value is that of the mixture.
    """

    def __init__(
        self,
        system: HybridSystem,
        process_noise: Noise | ConstantCovariance,
        measurement: Measurement | Sequence[Measurement],
        reset_noise: Noise | EventNoise | ConstantCovariance | None = None,
        guard_noise: float | Mapping[str, float] | None = None,
        *,
        signals: Sequence[ContactSignal] = (),
        rewind: float = 0.05,
        patience: int | None = 8,
        beginning: Beginning | None = None,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        particles: int = 1000,
        seed: int = 0,
        resample: float = 0.5,
        smoothing: float = 0.1,
    ) -> None:
        self.rules = SaltedKalmanFilter(
            system,
            process_noise,
            measurement,
            reset_noise,
            guard_noise,
            signals=signals,
            options=FilterOptions(
                rewind=rewind, patience=patience, beginning=beginning, rtol=rtol, atol=atol
            ),
        ).rules
        self.model, self.measurements = self.rules.model, self.rules.measurements
        self.signals = self.rules.signals
        self.particles = check_count("particles", particles)
        self.seed = check_count("seed", seed, at_least=0)
        self.resample = check_number("resample", resample, at_least=0.0, at_most=1.0)
        self.smoothing = check_number("smoothing", smoothing, at_least=0.0)
        if self.smoothing >= 1.0:
            raise InputError(f"smoothing must be below 1, got {smoothing}")

    def start(self, initial: Estimate) -> ParticleState:
        """The state in which a run from an estimate begins, see `SaltedKalmanFilter.start`."""
        estimate = check_initial_estimate(self.model, initial)
        return self._begun(self.rules.start(estimate), estimate, 0)

    def predict(
        self, state: ParticleState, time: float, input: Array | None = None
    ) -> ParticleState:
        """The state at a later time. input: held (nu,), or None: zero."""
        inputs = (*state.filter.inputs, InputPiece(time, input))
        after = self._predicted(state.particles, time, input, self._random(state.draws))
        shown = (Hypothesis(self._summary(after)),)
        kept = state.filter._replace(
            time=time, hypotheses=shown, channel=None, several=None, inputs=inputs
        ).check_finite()
        return state._replace(filter=kept, particles=after, draws=state.draws + 1)

    def update(
        self, state: ParticleState, channel: str, value: Array, input: Array | None = None
    ) -> ParticleState:
        """The state after a value (m,) of a channel, measured at the time of the state."""
        before = state.filter.estimate
        now, innovation = self._weighed(state.particles, before, channel, value, input)
        after, several = self._summary(now), self._mixture(now)
        if now.effective < self.resample * self.particles:
            now = self._resampled(now, self._random(state.draws))
        typical, counted = now.typical_events, state.counted
        n, new = len(typical), typical[len(counted) :]
        made = Hypothesis(
            after,
            predicted=before,
            events=tuple(_in_full(event) for event in new),
            innovation=innovation,
            undone=counted[n].time if n < len(counted) else None,
        )
        kept = state.filter._replace(
            hypotheses=(made,), channel=channel, several=several, reopened=False
        ).check_finite()
        if channel not in self.signals:
            kept = monitor_rejections(self.rules, kept, channel, value, input)
        if kept.reopened:
            return self._begun(kept._replace(several=None), kept.estimate, state.draws + 1)
        return ParticleState(kept, now, (*counted[:n], *new), state.draws + 1)

    def run(
        self,
        record: Record,
        initial: Estimate,
        *,
        progress: Callable[[float], None] | None = None,
        watch: Callable[[FilterState], None] | None = None,
    ) -> FilterResult:
        """Filter a record from `initial` on, see `SaltedKalmanFilter.run`.

        The same seed gives the same result.
        """
        start, channels = self.start(initial), [*self.measurements, *self.signals]
        steps = self.predict, self.update
        shown = lambda state: state.filter  # noqa: E731
        return filter_record(record, start, channels, *steps, shown, progress, watch)

    def _random(self, draws: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, draws))

    def _begun(self, state: FilterState, e: Estimate, draws: int) -> ParticleState:
        return ParticleState(state, self._drawn(e, self._random(draws)), (), draws + 1)

    def _drawn(self, e: Estimate, rng: np.random.Generator) -> ParticleSet:
        n, mode = self.particles, self.model.system.mode(e.mode)
        states = integrated(mode, e.mean, _normal(rng, e.covariance, n))
        weights = np.full(n, -np.log(n))
        return ParticleSet(e.time, (e.mode,) * n, tuple(states), weights, ((),) * n)

    def _predicted(
        self, now: ParticleSet, end: float, u: Array | None, rng: np.random.Generator
    ) -> ParticleSet:
        if not end > now.time:
            return now
        if u is None:
            u = np.zeros(self.model.system.mode(now.modes[0]).nu)
        law = HeldInput(u)
        quiet = silent(self.model)
        paths = carried_together(quiet, now.modes, now.states, now.time, end, law)
        groups: dict[tuple[ModeKey, ...], list[int]] = {}
        for k, path in enumerate(paths):
            kind = path.kind if path.events else (path.mode,)
            groups.setdefault((now.modes[k], *kind), []).append(k)
        states = [path.state for path in paths]
        for rows in groups.values():
            first = rows[0]
            p = self._gathered(now.modes[first], now.states[first], now.time, end, law)
            noise = _normal(rng, p, len(rows))
            after = self.model.system.mode(paths[first].mode)
            moved = integrated(after, np.array([states[k] for k in rows]), noise)
            for k, state in zip(rows, moved, strict=True):
                states[k] = state
        return replace(
            now,
            time=end,
            modes=tuple(path.mode for path in paths),
            states=tuple(states),
            events=tuple(
                (*past, *path.events) if path.events else past
                for past, path in zip(now.events, paths, strict=True)
            ),
        )

    def _gathered(self, mode: ModeKey, x: Array, start: float, end: float, law: InputLaw) -> Array:
        """The covariance of the noise that one state gathers on its way."""
        n = self.model.system.mode(mode).space.ndx
        certain = Estimate(mode, start, x, np.zeros((n, n)))
        return predict(self.model, certain, end, law).estimate.covariance

    def _weighed(
        self,
        now: ParticleSet,
        predicted: Estimate,
        channel: str,
        given: ArrayLike,
        u: Array | None,
    ) -> tuple[ParticleSet, Innovation | None]:
        """The particles with new weights, those of before where the value is rejected."""
        value = np.atleast_1d(np.asarray(given, dtype=np.float64))
        if channel in self.signals:
            mistaken = self._contradicts(self.signals[channel], now, float(value[0]))
            return _reweighted(now, np.log(_MISTAKEN) * mistaken)[0], None
        measurement = require_explicit(self.measurements[channel])
        there = select_measured(measurement, value)
        if there is None:
            return now, None
        rows, noise = there
        residuals = self._residuals(now, measurement, value, u)[:, rows]
        weights = now.weights
        r = weights @ residuals
        spread = residuals - r
        s = spread.T @ (weights[:, None] * spread) + noise
        innovation, _ = compute_innovation(measurement, predicted, r, s)
        after, log_likelihood = _reweighted(now, _log_normal(residuals, noise))
        innovation = innovation._replace(log_likelihood=log_likelihood)
        return (after if innovation.accepted else now), innovation

    def _residuals(
        self, now: ParticleSet, measurement: Measurement, value: Array, u: Array | None
    ) -> Array:
        found = np.empty((len(now.states), measurement.dimension))
        for key in dict.fromkeys(now.modes):
            mode, rows = self.model.system.mode(key), now.members(key)
            held = np.zeros(mode.nu) if u is None else u
            states = [now.states[k] for k in rows]
            given = [np.array(states)] if measurement.together else states
            seen = np.array([predict_value(measurement, mode, now.time, x, held) for x in given])
            seen = seen[0] if measurement.together else seen
            plain = measurement.residual is None
            if plain and seen.shape[1:] == value.shape == (measurement.dimension,):
                found[rows] = value - seen
            else:
                found[rows] = [compute_residual(measurement, z, value) for z in seen]
        return found

    def _contradicts(self, signal: ContactSignal, now: ParticleSet, value: float) -> Array:
        """The flags (n,): 1 for each particle that would have to change its mode, else 0."""
        if value >= signal.on:
            guard = signal.closes
        elif value <= signal.off:
            guard = signal.opens
        else:
            return np.zeros(self.particles)
        names = self.model.system.outgoing
        return np.array([float(guard in names(key).guards.names) for key in now.modes])

    def _resampled(self, now: ParticleSet, rng: np.random.Generator) -> ParticleSet:
        """Equal weights, each particle as often as its weight says, and the kernel."""
        n, b = self.particles, self.smoothing
        ticks = (rng.random() + np.arange(n)) / n
        drawn = now.chosen(np.minimum(np.cumsum(now.weights).searchsorted(ticks), n - 1))
        if b == 0.0:
            return drawn
        states = list(drawn.states)
        for key in dict.fromkeys(drawn.modes):
            rows = drawn.members(key)
            mode = self.model.system.mode(key)
            same = np.array([states[k] for k in rows])
            mean, ways = compute_mean(
                mode.space, same, np.full(len(rows), 1.0 / len(rows)), same[0]
            )
            ways = np.sqrt(1.0 - b**2) * ways + b * _normal(
                rng, ways.T @ ways / len(rows), len(rows)
            )
            for k, state in zip(rows, integrated(mode, mean, ways), strict=True):
                states[k] = state
        return replace(drawn, states=tuple(states))

    def _mixture(self, now: ParticleSet) -> Mixture | None:
        """The moments of all particles, None where all are in one mode."""
        shares = now.shares
        if len(shares) == 1:
            return None
        space, alike = select_most_probable(self.model.system, shares)
        rows = np.flatnonzero([key in alike for key in now.modes])
        states, w = np.array([now.states[k] for k in rows]), now.weights[rows]
        mean, p = compute_moments(space, states, w / w.sum())
        return Mixture(next(iter(shares)), now.time, mean, p, shares)

    def _summary(self, now: ParticleSet) -> Estimate:
        """The moments of the particles in the most probable mode."""
        shares, weights = now.shares, now.weights
        mode = next(iter(shares))
        rows = now.members(mode)
        states, w = np.array([now.states[k] for k in rows]), weights[rows] / shares[mode]
        held = self.model.system.mode(mode)
        mean, p = compute_moments(held.space, states, w)
        return Estimate(mode, now.time, project_onto_constraints(held, mean), p)


def _in_full(event: BriefEvent) -> Event:
    """The event as other filters have it, without its input and impulses."""
    none = np.zeros(0)
    modes = event.mode_before, event.mode_after
    states = event.state_before, event.state_after
    return Event(0, event.time, *modes, event.guards, *states, none, none, none, none)


def _reweighted(now: ParticleSet, log_likelihoods: Array) -> tuple[ParticleSet, float]:
    """The weights after a value, and the log-likelihood of it in the mixture."""
    joint = now.log_weights + log_likelihoods
    total = float(logsumexp(joint))
    return replace(now, log_weights=joint - total), total


def _log_normal(residuals: Array, covariance: Array) -> Array:
    """Log-densities (n,) of residuals (n, k)."""
    factor = cho_factor(covariance, lower=True)
    squares = (residuals * cho_solve(factor, residuals.T).T).sum(axis=1)
    size = 2.0 * np.log(np.diag(factor[0])).sum() + len(covariance) * np.log(2.0 * np.pi)
    return np.asarray(-0.5 * (squares + size))


def _normal(rng: np.random.Generator, covariance: Array, n: int) -> Array:
    """Draws (n, d) of a normal distribution, also of a singular one."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(rng.standard_normal((n, len(covariance))) @ root.T)
