r"""The hybrid bootstrap particle filter: many states through the exact event loop, weighted.

All particles are simulated to the time of the next sample, together where their modes have compiled
steps (`simulate_batch`). Weights are multiplied by the likelihood of the measured value. Where few
particles carry most of the weight (effective number :math:`1 / \sum w_i^2`), particles are drawn
anew by systematic resampling and, if asked for, spread by a kernel that keeps mean and covariance
of each mode,

.. math:: x \leftarrow \bar x \boxplus (\sqrt{1 - b^2}\,(x \boxminus \bar x) + b\,\varepsilon),
          \qquad \varepsilon \sim N(0, P).

Without the kernel few different particles are left where there is little process noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from hybridctl.base.checks import Array, Indices, check_count, check_member, check_number
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
from hybridctl.sampling.state_propagation import (
    integrate_perturbations,
    propagate_states,
    remove_noise,
)

_CONTRADICTION_LIKELIHOOD = 1e-3
"""Likelihood of a contact signal in a particle whose mode contradicts it, relative to another.

The value is a choice: a signal may be wrong, so that such particles keep a little weight."""


@dataclass(frozen=True, eq=False)
class ParticleSet:
    """Particles at one time.

    Attributes:
        time: The time, s.
        modes: Mode of each of n particles.
        states: State (nx,) of each.
        log_weights: Logarithms (n,) of the weights, which sum to one.
        events: Events of each since the filter began, or was begun anew.
    """

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
    def effective_count(self) -> float:
        """The effective number of particles, 1 / sum w^2."""
        return 1.0 / float(np.exp(2.0 * self.log_weights).sum())

    @property
    def shares(self) -> dict[ModeKey, float]:
        """The probabilities of modes, the most probable first."""
        return mode_probabilities(self.modes, self.weights)

    @property
    def typical_events(self) -> tuple[BriefEvent, ...]:
        """Events of a particle with the median number, the last of them at the median time."""
        counts = np.array([len(events) for events in self.events])
        same = np.flatnonzero(counts == counts[self._find_median(counts)])
        times = np.array([self.events[k][-1].time if self.events[k] else 0.0 for k in same])
        return self.events[int(same[self._find_median(times, same)])]

    def _find_median(self, values: Array | Indices, rows: Indices | None = None) -> int:
        """Return the index of the weighted median of values, of all particles or of `rows`."""
        weights = self.weights if rows is None else self.weights[rows]
        order = np.argsort(values, kind="stable")
        heaped = np.cumsum(weights[order])
        return int(order[min(int(heaped.searchsorted(0.5 * heaped[-1])), len(order) - 1)])

    def find_members(self, mode: ModeKey) -> Indices:
        """Return the indices of the particles in a mode.

        Args:
            mode: Key of the mode.
        """
        return np.flatnonzero([key == mode for key in self.modes])

    def select(self, rows: Indices) -> ParticleSet:
        """Return some of the particles, with equal weights.

        Args:
            rows: Their indices, in the order of the result; they may repeat.
        """
        return ParticleSet(
            self.time,
            tuple(self.modes[k] for k in rows),
            tuple(self.states[k] for k in rows),
            np.full(len(rows), -np.log(len(rows))),
            tuple(self.events[k] for k in rows),
        )


class ParticleState(NamedTuple):
    """The whole state of a particle filter: `predict` and `update` return the next one.

    Attributes:
        filter: The state that other filters have, with the moments of the particles.
        particles: The particles.
        counted_events: Events that half of the weight has had.
        draw_count: Number of generators used so far. Each draw has a generator of its own, so that
            results do not depend on how many numbers another one has taken.
    """

    filter: FilterState
    particles: ParticleSet
    counted_events: tuple[BriefEvent, ...] = ()
    draw_count: int = 0

    @property
    def time(self) -> float:
        """The time of the particles, s."""
        return self.particles.time


class ParticleFilter:
    """A particle filter on any hybrid system; `run` on a record gives what other filters give.

    Begin with `start`; then call `predict` and `update` with the state that the last call returned,
    or `run` for a whole record. The filter itself does not change.

    The estimate of a lost filter is found as by a salted filter, and new particles are drawn from
    it. Noise of flow, resets and guards is drawn at the end of a prediction. Particles with the
    same events draw it from the covariance that one of them gathers on its way to first order,
    which is exact on linear flows.

    An estimate is of the mode with the largest weight: mean and covariance of its particles. An
    event counts once half of the weight has had it. A contact signal takes weight from particles
    whose mode contradicts it. The log-likelihood of a value is that of the mixture.

    Args:
        system: As of `SaltedKalmanFilter`.
        process_noise: As of `SaltedKalmanFilter`.
        measurement: As of `SaltedKalmanFilter`, but no implicit one.
        reset_noise: As of `SaltedKalmanFilter`.
        guard_noise: As of `SaltedKalmanFilter`.
        signals: As of `SaltedKalmanFilter`.
        rewind: As of `FilterOptions`.
        patience: As of `FilterOptions`.
        beginning: As of `FilterOptions`.
        rtol: Relative tolerance of the flow of each particle.
        atol: Absolute tolerance of it.
        particles: Number of particles, 1 or more.
        seed: Seed of all draws of a run, 0 or more.
        resample: Effective number, relative to `particles` and in [0, 1], below which particles are
            drawn anew; 0 for never.
        smoothing: Width b of the kernel after resampling, in [0, 1); 0 for none.

    Raises:
        InputError: If an argument is not valid.
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
        """Return the state in which a run from an estimate begins.

        Args:
            initial: The estimate.

        Raises:
            InputError: If the filter cannot start there, see `SaltedKalmanFilter.start`.
        """
        estimate = check_initial_estimate(self.model, initial)
        return self._begin(self.rules.start(estimate), estimate, 0)

    def predict(
        self, state: ParticleState, time: float, input: Array | None = None
    ) -> ParticleState:
        """Return the state at a later time.

        Args:
            state: The state.
            time: Later time, s; particles stay where they are at the same one.
            input: Held input (nu,). If None, it is zero.

        Raises:
            InputError: If the time is before that of the state, or the input does not fit.
            SimulationError: If a particle can neither be simulated nor predicted, or numbers are
                not finite.
        """
        if check_number("time", time) < state.time:
            raise InputError(
                f"time must not be before that of the particles, {state.time} s, got {time}"
            )
        inputs = (*state.filter.inputs, InputPiece(time, input))
        generator = self._make_generator(state.draw_count)
        particles = self._propagate(state.particles, time, input, generator)
        hypotheses = (Hypothesis(self._summarize(particles)),)
        of_filter = state.filter._replace(
            time=time, hypotheses=hypotheses, channel=None, several=None, inputs=inputs
        ).check_finite()
        return state._replace(
            filter=of_filter, particles=particles, draw_count=state.draw_count + 1
        )

    def update(
        self, state: ParticleState, channel: str, value: Array, input: Array | None = None
    ) -> ParticleState:
        """Return the state after a measured value.

        Args:
            state: The state at the time of the measurement.
            channel: Name of a measurement or contact signal.
            value: The value (m,). Components that are not finite are missing.
            input: Input (nu,) at that time. If None, it is zero.

        Raises:
            UnknownNameError: If the filter has no such channel.
            InputError: If the value has a wrong size, or the measurement is an implicit one.
            SimulationError: If numbers are not finite.
        """
        check_member("channel", channel, [*self.measurements, *self.signals])
        before = state.filter.estimate
        particles, innovation = self._weigh(state.particles, before, channel, value, input)
        after, several = self._summarize(particles), self._combine_modes(particles)
        if particles.effective_count < self.resample * self.particles:
            particles = self._resample(particles, self._make_generator(state.draw_count))
        typical, counted = particles.typical_events, state.counted_events
        n, new = len(typical), typical[len(counted) :]
        hypothesis = Hypothesis(
            after,
            predicted=before,
            events=tuple(_lengthen(event) for event in new),
            innovation=innovation,
            # Fewer events are counted than before: the last ones are taken back.
            undone=counted[n].time if n < len(counted) else None,
        )
        of_filter = state.filter._replace(
            hypotheses=(hypothesis,), channel=channel, several=several, reopened=False
        ).check_finite()
        if channel not in self.signals:
            of_filter = monitor_rejections(self.rules, of_filter, channel, value, input)
        if of_filter.reopened:
            cleared = of_filter._replace(several=None)
            return self._begin(cleared, of_filter.estimate, state.draw_count + 1)
        counted = (*counted[:n], *new)
        return ParticleState(of_filter, particles, counted, state.draw_count + 1)

    def run(
        self,
        record: Record,
        initial: Estimate,
        *,
        progress: Callable[[float], None] | None = None,
        watch: Callable[[FilterState], None] | None = None,
    ) -> FilterResult:
        """Return the result of a record; the same seed gives the same result.

        Args:
            record: Rows to filter.
            initial: The first estimate.
            progress: Called with the time after each row, s.
            watch: Called with the state after each row.

        Raises:
            InputError: If record or estimate do not fit, see `SaltedKalmanFilter.run`.
            SimulationError: If a particle can neither be simulated nor predicted, or numbers are
                not finite.
        """
        start, channels = self.start(initial), [*self.measurements, *self.signals]
        steps = self.predict, self.update
        to_filter_state = lambda state: state.filter  # noqa: E731
        return filter_record(record, start, channels, *steps, to_filter_state, progress, watch)

    def _make_generator(self, draw_count: int) -> np.random.Generator:
        """Return the generator of one draw."""
        return np.random.default_rng((self.seed, draw_count))

    def _begin(self, state: FilterState, e: Estimate, draw_count: int) -> ParticleState:
        """Return the state with particles drawn from an estimate, all with the same weight."""
        n, mode = self.particles, self.model.system.mode(e.mode)
        draws = _draw_normal(self._make_generator(draw_count), e.covariance, n)
        states = integrate_perturbations(mode, e.mean, draws)
        weights = np.full(n, -np.log(n))
        particles = ParticleSet(e.time, (e.mode,) * n, tuple(states), weights, ((),) * n)
        return ParticleState(state, particles, (), draw_count + 1)

    def _propagate(
        self, now: ParticleSet, end: float, u: Array | None, generator: np.random.Generator
    ) -> ParticleSet:
        """Return the particles at a later time, with the noise gathered on the way.

        Args:
            now: The particles.
            end: Later time, s; the particles stay as they are if it is not later.
            u: Held input (nu,). If None, it is zero.
            generator: Of the noise.
        """
        if not end > now.time:
            return now
        if u is None:
            u = np.zeros(self.model.system.mode(now.modes[0]).nu)
        law = HeldInput(u)
        noiseless = remove_noise(self.model)
        paths = propagate_states(noiseless, now.modes, now.states, now.time, end, law)
        groups: dict[tuple[ModeKey, ...], list[int]] = {}
        for k, path in enumerate(paths):
            # With events the group is (mode, guards, mode after), without them (mode, mode).
            pattern = path.pattern if path.events else (path.mode,)
            groups.setdefault((now.modes[k], *pattern), []).append(k)
        states = [path.state for path in paths]
        for rows in groups.values():
            first = rows[0]
            covariance = self._gather_noise(now.modes[first], now.states[first], now.time, end, law)
            noise = _draw_normal(generator, covariance, len(rows))
            after = self.model.system.mode(paths[first].mode)
            moved = integrate_perturbations(after, np.array([states[k] for k in rows]), noise)
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

    def _gather_noise(
        self, mode: ModeKey, x: Array, start: float, end: float, law: InputLaw
    ) -> Array:
        """Return the covariance (ndx, ndx) of the noise that one state gathers on its way.

        Args:
            mode: Mode of the state.
            x: State (nx,).
            start: Its time, s.
            end: Later time, s.
            law: Input.
        """
        n = self.model.system.mode(mode).space.ndx
        certain = Estimate(mode, start, x, np.zeros((n, n)))
        return predict(self.model, certain, end, law).estimate.full_covariance

    def _weigh(
        self,
        now: ParticleSet,
        predicted: Estimate,
        channel: str,
        given: ArrayLike,
        u: Array | None,
    ) -> tuple[ParticleSet, Innovation | None]:
        """Return the particles with new weights after a value, and the innovation.

        Weights stay as they are where the value is missing or rejected. There is no innovation of a
        contact signal, nor of a missing value.

        Args:
            now: The particles.
            predicted: Their summary.
            channel: Channel of the value.
            given: The value (m,).
            u: Input (nu,). If None, it is zero.
        """
        value = np.atleast_1d(np.asarray(given, dtype=np.float64))
        if channel in self.signals:
            contradicts = self._find_contradictions(self.signals[channel], now, float(value[0]))
            penalties = np.log(_CONTRADICTION_LIKELIHOOD) * contradicts
            return _reweigh(now, penalties)[0], None
        measurement = require_explicit(self.measurements[channel])
        there = select_measured(measurement, value)
        if there is None:
            return now, None
        rows, noise = there
        residuals = self._compute_residuals(now, measurement, value, u)[:, rows]
        weights = now.weights
        r = weights @ residuals
        spread = residuals - r
        s = spread.T @ (weights[:, None] * spread) + noise
        innovation, _ = compute_innovation(measurement, predicted, r, s)
        after, log_likelihood = _reweigh(now, _compute_log_densities(residuals, noise))
        innovation = innovation._replace(log_likelihood=log_likelihood)
        return (after if innovation.accepted else now), innovation

    def _compute_residuals(
        self, now: ParticleSet, measurement: Measurement, value: Array, u: Array | None
    ) -> Array:
        """Return the residuals (n, m) of a value (m,) in all particles."""
        found = np.empty((len(now.states), measurement.dimension))
        for key in dict.fromkeys(now.modes):
            mode, rows = self.model.system.mode(key), now.find_members(key)
            input = np.zeros(mode.nu) if u is None else u
            states = [now.states[k] for k in rows]
            # A measurement function that takes many states gets all of them at once.
            given = [np.array(states)] if measurement.together else states
            values = np.array([predict_value(measurement, mode, now.time, x, input) for x in given])
            values = values[0] if measurement.together else values
            is_plain = measurement.residual is None
            if is_plain and values.shape[1:] == value.shape == (measurement.dimension,):
                found[rows] = value - values
            else:
                found[rows] = [compute_residual(measurement, z, value) for z in values]
        return found

    def _find_contradictions(self, signal: ContactSignal, now: ParticleSet, value: float) -> Array:
        """Return 1.0 for each particle whose mode a signal contradicts, else 0.0, (n,).

        A mode contradicts a signal of a closed contact if it has the guard that closes it, and one
        of an open contact if it has the guard that opens it.
        """
        if value >= signal.on:
            guard = signal.closes
        elif value <= signal.off:
            guard = signal.opens
        else:
            return np.zeros(self.particles)
        outgoing = self.model.system.outgoing
        return np.array([1.0 if guard in outgoing(key).guards.names else 0.0 for key in now.modes])

    def _resample(self, now: ParticleSet, generator: np.random.Generator) -> ParticleSet:
        """Return particles of equal weights, each drawn as often as its weight says, and spread.

        Args:
            now: The particles.
            generator: Of the draw and of the kernel.
        """
        n, b = self.particles, self.smoothing
        ticks = (generator.random() + np.arange(n)) / n
        drawn = now.select(np.minimum(np.cumsum(now.weights).searchsorted(ticks), n - 1))
        if b == 0.0:
            return drawn
        states = list(drawn.states)
        for key in dict.fromkeys(drawn.modes):
            rows = drawn.find_members(key)
            mode = self.model.system.mode(key)
            same = np.array([states[k] for k in rows])
            weights = np.full(len(rows), 1.0 / len(rows))
            mean, spread = compute_mean(mode.space, same, weights, same[0])
            covariance = spread.T @ spread / len(rows)
            noise = _draw_normal(generator, covariance, len(rows))
            perturbations = np.sqrt(1.0 - b**2) * spread + b * noise
            moved = integrate_perturbations(mode, mean, perturbations)
            for k, state in zip(rows, moved, strict=True):
                states[k] = state
        return replace(drawn, states=tuple(states))

    def _combine_modes(self, now: ParticleSet) -> Mixture | None:
        """Return the moments of all particles; None where all are in one mode."""
        shares = now.shares
        if len(shares) == 1:
            return None
        space, same_space = select_most_probable(self.model.system, shares)
        rows = np.flatnonzero([key in same_space for key in now.modes])
        states, w = np.array([now.states[k] for k in rows]), now.weights[rows]
        mean, p = compute_moments(space, states, w / w.sum())
        return Mixture(next(iter(shares)), now.time, mean, p, shares)

    def _summarize(self, now: ParticleSet) -> Estimate:
        """Return mean and covariance of the particles in the most probable mode."""
        shares, weights = now.shares, now.weights
        key = next(iter(shares))
        rows = now.find_members(key)
        states, w = np.array([now.states[k] for k in rows]), weights[rows] / shares[key]
        mode = self.model.system.mode(key)
        mean, p = compute_moments(mode.space, states, w)
        return Estimate(key, now.time, project_onto_constraints(mode, mean), p)


def _lengthen(event: BriefEvent) -> Event:
    """Return the event as other filters have it, without its inputs and impulses."""
    none = np.zeros(0)
    modes = event.mode_before, event.mode_after
    states = event.state_before, event.state_after
    return Event(0, event.time, *modes, event.guards, *states, none, none, none, none)


def _reweigh(now: ParticleSet, log_likelihoods: Array) -> tuple[ParticleSet, float]:
    """Return the particles with new weights, and the log-likelihood of the value in the mixture.

    Args:
        now: The particles.
        log_likelihoods: Of the value in each particle (n,).
    """
    joint = now.log_weights + log_likelihoods
    total = float(logsumexp(joint))
    return replace(now, log_weights=joint - total), total


def _compute_log_densities(residuals: Array, covariance: Array) -> Array:
    """Return the log-densities (n,) of residuals (n, k) of a normal distribution."""
    factor = cho_factor(covariance, lower=True)
    squares = (residuals * cho_solve(factor, residuals.T).T).sum(axis=1)
    size = 2.0 * np.log(np.diag(factor[0])).sum() + len(covariance) * np.log(2.0 * np.pi)
    return np.asarray(-0.5 * (squares + size))


def _draw_normal(generator: np.random.Generator, covariance: Array, n: int) -> Array:
    """Return draws (n, d) of a normal distribution, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(generator.standard_normal((n, len(covariance))) @ root.T)
