"""The salted Kalman filter: the extended Kalman filter of a hybrid system, through its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, count, instance, member, number, sequence
from hybridctl.errors import InputError
from hybridctl.estimation.admit import admit
from hybridctl.estimation.contact_signal import Evidence
from hybridctl.estimation.estimate import Estimate, checked, covariance_matrix
from hybridctl.estimation.jumps import STRATEGIES, Strategy
from hybridctl.estimation.measurement import AnyMeasurement
from hybridctl.estimation.model import Model
from hybridctl.estimation.noise import EventNoise, GuardNoise, Noise, as_noise
from hybridctl.estimation.predict import Prediction, carry_alternative, predict
from hybridctl.estimation.record import Record, Sample, Series
from hybridctl.estimation.recovery import Beginning, Doubt, inflation
from hybridctl.estimation.restart import Row, restarted
from hybridctl.estimation.result import Admission, Correction, FilterResult, Step, over_record
from hybridctl.estimation.update import Innovation, compared, correct
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event

Constant = ArrayLike | Mapping[ModeKey, ArrayLike]


class SaltedKalmanFilter:
    r"""A Kalman filter on any hybrid system, [Salt] III-D: `predict`, `update`, or `run` on a log.

    The mean follows the exact simulation, with as many events as there are between two samples;
    the covariance its first order, :math:`\dot P = A P + P A^T + Q` on arcs and
    :math:`P^+ = G P G^T + P_R + k k^T \sigma_g^2 / \dot g^2` at events, with G the saltation
    matrix, P_R the noise of the reset and k = f+ - Rdot what an error of the guard's offset is
    multiplied with. Simultaneous guards have the moments of their piecewise-linear map.

    process_noise: spectral density in the tangent space (ndx, ndx), by mode, or a `Noise`.
    measurement: one, or several with different names; implicit ones too. reset_noise: a covariance
    after the jump (ndx+, ndx+), by the mode after, a `Noise`, or an `EventNoise`; added where the
    reset moves the state. guard_noise: variance of the guards' offsets, one number or by guard.
    Names of guards that no mode has raise `UnknownNameError`.
    signals: contact signals and other evidence of the mode. strategy: "saltation", or a baseline
    that is wrong on purpose: "reset_jacobian" or "no_jump" (see `jumps`).
    rewind: longest time in s for which a corrected mean that is past a guard is taken to be just
    early or late there (see `admit`). window: time in s after an event in which the hypothesis
    that it is still to come is kept beside the main one; 0 keeps none. odds: the log-likelihood by
    which that must win for the event to be undone. rtol, atol: of the integrator.
    patience: of that many values of a channel in a row that the gate rejects, `run` believes the
    last rather than the estimate (see `recovery`); None never does. beginning: of an estimate that
    is made anew, because its mode was wrong; None for mode and covariance of the initial one.

    A correction that leaves the mode is admitted by the rules of `admit`. Samples without a change
    of the estimate (rejected, missing) are no updates.
    """

    def __init__(
        self,
        system: HybridSystem,
        process_noise: Noise | Constant,
        measurement: AnyMeasurement | Sequence[AnyMeasurement],
        reset_noise: Noise | EventNoise | Constant | None = None,
        guard_noise: float | Mapping[str, float] | None = None,
        *,
        signals: Sequence[Evidence] = (),
        strategy: Strategy = "saltation",
        rewind: float = 0.05,
        window: float = 0.05,
        odds: float = 3.0,
        patience: int | None = 8,
        beginning: Beginning | None = None,
        rtol: float = 1e-9,
        atol: float = 1e-9,
    ) -> None:
        if reset_noise is not None and not isinstance(reset_noise, EventNoise):
            reset_noise = as_noise("reset_noise", reset_noise)
        self.model = Model(
            instance("system", system, HybridSystem),
            as_noise("process_noise", process_noise),
            reset_noise,
            None if guard_noise is None else GuardNoise(guard_noise),
            member("strategy", strategy, STRATEGIES),
            number("rewind", rewind, at_least=0.0),
            number("rtol", rtol, above=0.0),
            number("atol", atol, above=0.0),
        )
        self.window = number("window", window, at_least=0.0)
        self.odds = number("odds", odds, at_least=0.0)
        self.patience = None if patience is None else count("patience", patience)
        self.beginning = beginning
        if beginning is not None:
            ndx = system.mode(beginning.mode).space.ndx
            covariance_matrix("beginning", beginning.covariance, ndx)
        rows = [measurement] if isinstance(measurement, AnyMeasurement) else measurement
        given: list[AnyMeasurement] = sequence("measurement", rows)
        for k, m in enumerate(given):
            if not isinstance(m, AnyMeasurement):
                raise InputError(f"measurement[{k}] must be a Measurement, got {m!r}")
        for k, signal in enumerate(sequence("signals", signals)):
            if not isinstance(signal, Evidence):
                raise InputError(f"signals[{k}] must be a ContactSignal, got {signal!r}")
        self.measurements = {m.name: m for m in given}
        self.signals = {signal.channel: signal for signal in signals}
        _check_guards(self.model, signals)
        names = [m.name for m in given] + [signal.channel for signal in signals]
        if not given or len(set(names)) != len(names):
            raise InputError(
                f"measurement and signals must have different names, and one at least, got {names}"
            )

    def predict(
        self, estimate: Estimate, time: float, input: ArrayLike | InputLaw | None = None
    ) -> Prediction:
        """The estimate at a later time. input: constant (nu,), a function u(t, x), or None: zero.

        Raises `InputError` for a time before that of the estimate.
        """
        instance("estimate", estimate, Estimate)
        end = number("time", time)
        if end < estimate.time:
            raise InputError(
                f"time must not be before that of the estimate, {estimate.time} s, got {end}"
            )
        law = self.model.law(estimate.mode, input)
        prediction = self._predicted(estimate, end, law)
        carried = carry_alternative(self.model, estimate, prediction, self.window, law)
        if carried is prediction.estimate:
            return prediction
        return replace(prediction, estimate=carried)

    def update(
        self,
        estimate: Estimate,
        channel: str,
        value: ArrayLike,
        input: ArrayLike | InputLaw | None = None,
        *,
        reopen: bool = False,
    ) -> Correction:
        """The estimate after a value (m,) of a channel, measured at the time of the estimate.

        reopen: take also what the gate rejects, where a larger covariance explains it.
        """
        known = [*self.measurements, *self.signals]
        member("channel", channel, known)
        instance("estimate", estimate, Estimate)
        (measured,) = Series(np.array([estimate.time]), np.atleast_1d(value)[None]).values
        law = self.model.law(estimate.mode, input)
        return self._updated(estimate, channel, measured, law, reopen)

    def _updated(
        self, estimate: Estimate, channel: str, measured: Array, law: InputLaw, reopen: bool
    ) -> Correction:
        if channel in self.signals:
            found = self.signals[channel].applied(self.model, estimate, measured, law)
            passed = None
            if found.events:
                passed = Admission(estimate.mean, estimate.covariance, found.transition)
            return Correction(found.estimate, None, found.events, None, found.notes, passed)
        main = self._corrected(estimate, channel, measured, law)
        if main is None:
            return Correction(estimate)
        after, innovation, undone = self._weighed(estimate, main, channel, measured, law)
        inflated = None
        if reopen and not innovation.accepted:
            believed = self._believed(after, innovation, channel, measured, law)
            if believed is not None:
                inflated, after, _ = believed
        admitted = admit(self.model, after, law)
        kept = admitted.estimate
        if not admitted.events and after.alternative is not None:
            kept = replace(kept, alternative=after.alternative)
        passed = (
            Admission(after.mean, after.covariance, admitted.transition)
            if admitted.events
            else None
        )
        notes = admitted.notes
        return Correction(kept, innovation, admitted.events, undone, notes, passed, inflated)

    def run(
        self,
        record: Record,
        initial: Estimate,
        *,
        progress: Callable[[float], None] | None = None,
    ) -> FilterResult:
        """Filter a record from `initial` on, in order of time; see `Record` for missing rows.

        Rows before the time of `initial` are left out, and counted as `skipped`. Rows that share a
        stamp are taken one after the other, channel by channel. progress: called with the time.
        Raises `InputError` for a channel that has no measurement.
        """
        estimate = checked(self.model.system, initial)
        beginning = self.beginning or Beginning(estimate.mode, estimate.covariance)
        doubt = Doubt(self.patience)
        window = max(self.patience or 0, 2)
        last = {name: deque[Row](maxlen=window) for name in self.measurements}

        def take(sample: Sample) -> Step:
            nonlocal estimate
            channel = sample.channel
            step = self.advance(record, estimate, sample, reopen=doubt.of_estimate(channel))
            if step.innovation is not None:
                last[channel].append((step.estimate, sample))
            if doubt.of_mode(step):
                anew = restarted(self, record, beginning, last[channel], step)
                if anew is None and doubt.of_estimate(channel):
                    note = f"{channel!r} contradicts the estimate, and is not explained otherwise"
                    step = replace(step, notes=(*step.notes, note))
                step = step if anew is None else anew
            doubt.count(step)
            estimate = step.estimate
            return step

        channels = [*self.measurements, *self.signals]
        return over_record(record, estimate, channels, take, progress)

    def advance(
        self, record: Record, estimate: Estimate, sample: Sample, *, reopen: bool = False
    ) -> Step:
        """One step of `run`: prediction to a sample, over changes of the input, and correction."""
        events, notes = list[Event](), list[str]()
        transition: Array | None = np.eye(len(estimate.covariance))
        if estimate.alternative is not None:
            own = np.eye(len(estimate.alternative.estimate.covariance))
            other = replace(estimate.alternative, transition=own)
            estimate = replace(estimate, alternative=other)
        changes = record.input_changes(estimate.time, sample.time)
        for t in (*changes.tolist(), sample.time):
            if t == estimate.time:
                continue
            p = self.predict(estimate, t, record.input(estimate.time))
            estimate = _since_sample(p, transition)
            if transition is not None and p.transition is not None:
                transition = p.transition @ transition
            else:
                transition = None
            events += p.events
            notes += p.notes
        law = self.model.law(estimate.mode, record.input(sample.time))
        found = self._updated(estimate, sample.channel, sample.value, law, reopen)
        reopened = found.inflated is not None
        if reopened:
            notes.append(f"{sample.channel!r} is believed, not the estimate that rejects it")
        return Step(
            sample.time,
            sample.channel,
            estimate if found.inflated is None else found.inflated,
            found.estimate,
            found.innovation,
            (*events, *found.events),
            found.undone,
            (*notes, *found.notes),
            transition,
            found.admission,
            reopened,
        )

    def believe(
        self, estimate: Estimate, channel: str, value: Array, law: InputLaw
    ) -> tuple[Estimate, Estimate, Innovation] | None:
        """The estimate before and after a value that must be taken, None where it cannot be.

        Before it is as uncertain as it takes.
        """
        found = self._corrected(estimate, channel, value, law)
        if found is None or found[1].accepted:
            return None if found is None else (estimate, *found)
        return self._believed(estimate, found[1], channel, value, law)

    def _believed(
        self, estimate: Estimate, rejected: Innovation, channel: str, value: Array, law: InputLaw
    ) -> tuple[Estimate, Estimate, Innovation] | None:
        """The estimate made uncertain enough for a rejected value, and after that value.

        None where no factor of the covariance is enough.
        """
        mode, u = self.model.system.mode(estimate.mode), law(estimate.time, estimate.mean)
        found = compared(self.measurements[channel], mode, estimate, value, u)
        assert found is not None  # it was rejected
        noise = found.covariance
        factor = inflation(rejected.covariance - noise, noise, rejected.residual)
        wide = replace(estimate, covariance=factor * estimate.covariance, alternative=None)
        taken = self._corrected(wide, channel, value, law)
        return None if taken is None or not taken[1].accepted else (wide, *taken)

    def _predicted(self, estimate: Estimate, end: float, law: InputLaw) -> Prediction:
        return predict(self.model, estimate, end, law)

    def _corrected(
        self, estimate: Estimate, channel: str, value: Array, law: InputLaw
    ) -> tuple[Estimate, Innovation] | None:
        mode = self.model.system.mode(estimate.mode)
        u = law(estimate.time, estimate.mean)
        return correct(self.measurements[channel], mode, estimate, value, u)

    def _weighed(
        self,
        estimate: Estimate,
        main: tuple[Estimate, Innovation],
        channel: str,
        value: Array,
        law: InputLaw,
    ) -> tuple[Estimate, Innovation, float | None]:
        """The main hypothesis, or that the last event is still to come where that has won."""
        after, innovation = main
        other = estimate.alternative
        if other is None:
            return after, innovation, None
        rival = self._corrected(other.estimate, channel, value, law)
        if rival is None:
            return after, innovation, None
        odds = other.log_odds + rival[1].log_likelihood - innovation.log_likelihood
        if odds > self.odds and rival[1].accepted:
            return rival[0], rival[1], other.since
        alternative = replace(other, estimate=rival[0], log_odds=odds)
        return replace(after, alternative=alternative), innovation, None


def _check_guards(model: Model, signals: Sequence[Evidence]) -> None:
    """Raise `UnknownNameError` for guards that no mode of the system has, where these are known."""
    known = model.system.guard_names
    if known is None:
        return
    if model.guard_noise is not None:
        for name in model.guard_noise.named:
            member("guard_noise of", name, known)
    for signal in signals:
        for what, guard in (("closes", signal.closes), ("opens", signal.opens)):
            if guard is not None:
                member(f"{what} of signal {signal.channel!r},", guard, known)


def _since_sample(prediction: Prediction, before: Array | None) -> Estimate:
    """The predicted estimate; the map to a new alternative goes on that from the last sample."""
    e = prediction.estimate
    other = e.alternative
    if other is None or not prediction.events:
        return e
    whole = None
    if before is not None and other.transition is not None:
        whole = other.transition @ before
    return replace(e, alternative=replace(other, transition=whole))
