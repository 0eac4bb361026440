"""The salted Kalman filter: the extended Kalman filter of a hybrid system, through its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_count,
    check_instance,
    check_member,
    check_number,
    check_semidefinite,
    check_sequence,
    convert_to_floats,
    is_finite,
    quote,
)
from hybridctl.base.errors import InputError
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.correct import compared
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.estimate_checks import admitted
from hybridctl.estimation.hypotheses import (
    HYPOTHESES,
    MomentRule,
    Rules,
    begun,
    corrected,
    predicted,
    signalled,
)
from hybridctl.estimation.jumps import STRATEGIES, Strategy
from hybridctl.estimation.measurement import AnyMeasurement, flow_tolerance
from hybridctl.estimation.mixture import mixed_sides, with_sides
from hybridctl.estimation.model import Model
from hybridctl.estimation.monitor import monitored
from hybridctl.estimation.noise import EXACT_GUARDS, EventNoise, GuardNoise, Noise, as_noise
from hybridctl.estimation.predict import predict
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult, over_record
from hybridctl.estimation.state import Beginning, FilterState, Input, InputPiece
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem

Constant = ArrayLike | Mapping[ModeKey, ArrayLike]
FIRST_ORDER = MomentRule(predict, compared)


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
    signals: contact signals. strategy: "saltation", or a baseline
    that is wrong on purpose: "reset_jacobian" or "no_jump" (see `jumps`).
    rewind: longest time in s for which a mean that is past a guard is taken to be just early or
    late there (see `reconcile`). hypotheses: how many orders of events are followed at most (see
    `hypotheses`). rtol, atol: of the integrator, None for 1e-4 of the least deviation of a
    measured value, between 1e-9 and 1e-6: an error of the flow that no value shows.
    patience: of that many values of a channel in a row that the gate rejects, the filter believes
    the last rather than the estimate (see `monitor`); None never does. beginning: of an estimate
    that is made anew, because its mode was wrong; None for mode and covariance of the initial one.

    A correction that leaves the mode is reconciled with it by the rules of `reconcile`.
    """

    moments = FIRST_ORDER

    def __init__(
        self,
        system: HybridSystem,
        process_noise: Noise | Constant,
        measurement: AnyMeasurement | Sequence[AnyMeasurement],
        reset_noise: Noise | EventNoise | Constant | None = None,
        guard_noise: float | Mapping[str, float] | None = None,
        *,
        signals: Sequence[ContactSignal] = (),
        strategy: Strategy = "saltation",
        rewind: float = 0.05,
        hypotheses: int = HYPOTHESES,
        patience: int | None = 8,
        beginning: Beginning | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        self.measurements = by_name(measurement, signals)
        self.signals = {signal.channel: signal for signal in signals}
        self.channels = (*self.measurements, *self.signals)
        fine = flow_tolerance(list(self.measurements.values()))
        if reset_noise is not None and not isinstance(reset_noise, EventNoise):
            reset_noise = as_noise("reset_noise", reset_noise)
        self.model = Model(
            check_instance("system", system, HybridSystem),
            as_noise("process_noise", process_noise),
            reset_noise,
            EXACT_GUARDS if guard_noise is None else GuardNoise(guard_noise),
            check_member("strategy", strategy, STRATEGIES),
            check_number("rewind", rewind, at_least=0.0),
            fine if rtol is None else check_number("rtol", rtol, above=0.0),
            fine if atol is None else check_number("atol", atol, above=0.0),
        )
        check_guards(self.model, signals)
        if beginning is not None:
            ndx = system.mode(beginning.mode).space.ndx
            check_semidefinite("beginning", beginning.covariance, ndx)
        self.rules = Rules(
            self.model,
            self.moments,
            self.measurements,
            self.signals,
            check_count("hypotheses", hypotheses),
            None if patience is None else check_count("patience", patience),
            beginning,
        )

    def start(self, initial: Estimate) -> FilterState:
        """The state in which a run from an estimate begins.

        Raises `InputError` for a covariance that is not finite, symmetric and positive
        semidefinite, `ConstraintViolatedError` for a mean off what its mode holds, and
        `GuardViolatedError` for one outside its mode, farther than noise of the guards explains,
        unless it comes back within `rewind` s: so filters leave theirs just after events.
        """
        return self.rules.start(admitted(self.model, initial))

    def predict(
        self, state: FilterState | Estimate, time: float, input: Input = None
    ) -> FilterState:
        """The state at a later time. input: constant (nu,), a function u(t, x), or None: zero.

        Raises `InputError` for a time before that of the state, and for an estimate what `start`
        raises; states are the filter's own.
        """
        state, end = self._state(state), check_number("time", time)
        if end < state.time:
            raise InputError(
                f"time must not be before that of the estimate, {state.time} s, got {end}"
            )
        return self._mixed(self._predicted(state, end, input).finite(), input)

    def update(
        self,
        state: FilterState | Estimate,
        channel: str,
        value: ArrayLike,
        input: Input = None,
    ) -> FilterState:
        """The state after a value (m,) of a channel, measured at the time of the state.

        Raises for an estimate what `start` raises.
        """
        check_member("channel", channel, self.channels)
        state = self._state(state)
        return self._updated(state, channel, _check_value(channel, value), input)

    def run(
        self,
        record: Record,
        initial: Estimate,
        *,
        progress: Callable[[float], None] | None = None,
        watch: Callable[[FilterState], None] | None = None,
    ) -> FilterResult:
        """Filter a record from `initial` on, in order of time; see `Record` for missing rows.

        Rows before the time of `initial` are left out, and counted as `skipped`. Rows that share a
        stamp are taken one after the other, channel by channel. progress: called with the time.
        watch: called with the state after each sample; what it raises ends the run.
        Raises `InputError` for a channel that has no measurement, and what `start` raises.
        """
        start, steps = self.start(initial), (self._onward, self._updated)
        return over_record(
            record, start, self.channels, *steps, lambda state: state, progress, watch
        )

    def hurried(self, late: Callable[[], bool]) -> SaltedKalmanFilter:
        """The same filter, which follows no further events of a prediction when it is late.

        From there on the mean is held at the next guard that falls, and the covariance has the way
        that the flow would have taken past it; notes say so. late: asked at each event.
        """
        return self._with_model(replace(self.model, late=late))

    def count_steps(self, stepped: Callable[[float], None]) -> SaltedKalmanFilter:
        """Return the same filter, which calls a function after each step of its integrator.

        Args:
            stepped: Called with the time in s that the step ends at. What it raises ends the run,
                but for a `SimulationError`, which ends a hypothesis.
        """
        return self._with_model(replace(self.model, stepped=stepped))

    def _with_model(self, model: Model) -> SaltedKalmanFilter:
        other = copy(self)
        other.model = model
        other.rules = replace(self.rules, model=model)
        return other

    def _state(self, given: FilterState | Estimate) -> FilterState:
        return given if isinstance(given, FilterState) else self.start(given)

    def _onward(self, state: FilterState, end: float, given: Input) -> FilterState:
        """The state at the time of a row, of which several may share one."""
        return state if end == state.time else self._predicted(state, end, given)

    def _predicted(self, state: FilterState, end: float, given: Input) -> FilterState:
        before = state.hypotheses if state.channel is None else begun(state.hypotheses)
        law = self.model.law(before[0].estimate.mode, given)
        after = predicted(self.rules, before, end, law)
        # Without patience no restart asks for inputs of the past again.
        remembers = self.rules.patience is not None
        inputs = (*state.inputs, InputPiece(end, given)) if remembers else ()
        return FilterState(
            end, after, state.beginning, None, False, state.rejections, state.rows, inputs
        )

    def _updated(self, state: FilterState, channel: str, value: Array, given: Input) -> FilterState:
        before = state.hypotheses if state.channel is None else begun(state.hypotheses)
        law = self.model.law(before[0].estimate.mode, given)
        signal = channel in self.rules.signals
        after = (signalled if signal else corrected)(self.rules, before, channel, value, law)
        memory = state.rejections, state.rows, state.inputs
        found = FilterState(state.time, after, state.beginning, channel, False, *memory)
        if not signal:
            found = monitored(self.rules, found, channel, value, given)
        return self._mixed(found.finite(), given)

    def _mixed(self, state: FilterState, given: Input) -> FilterState:
        """The state with the moments of its hypotheses, where there are several."""
        if len(state.hypotheses) == 1:
            return state
        law = self.model.law(state.estimate.mode, given)
        each = tuple(with_sides(self.model, h, law) for h in state.hypotheses)
        return state._replace(hypotheses=each, several=mixed_sides(self.model.system, each))


def _check_value(channel: str, value: ArrayLike) -> Array:
    """Return a value as a read-only vector (m,), NaN where a component is missing.

    Raises:
        InputError: It is no vector of numbers, or infinite.
    """
    try:
        values = np.atleast_1d(convert_to_floats(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"value of {channel!r} must be an array of numbers, got {quote(value)}"
        ) from error
    if values.ndim != 1:
        raise InputError(f"value of {channel!r} must have shape (any,), got {values.shape}")
    if not is_finite(values) and np.isinf(values).any():
        raise InputError(f"value of {channel!r} must not be infinite, got {quote(values)}")
    values.flags.writeable = False
    return values


def by_name(
    measurement: AnyMeasurement | Sequence[AnyMeasurement], signals: Sequence[ContactSignal]
) -> dict[str, AnyMeasurement]:
    """Measurements by the name of their channel. Raises `InputError` for what is none."""
    rows = [measurement] if isinstance(measurement, AnyMeasurement) else measurement
    given: list[AnyMeasurement] = check_sequence("measurement", rows)
    for k, m in enumerate(given):
        if not isinstance(m, AnyMeasurement):
            raise InputError(f"measurement[{k}] must be a Measurement, got {quote(m)}")
    for k, signal in enumerate(check_sequence("signals", signals)):
        check_instance(f"signals[{k}]", signal, ContactSignal)
    names = [m.name for m in given] + [signal.channel for signal in signals]
    if not given or len(set(names)) != len(names):
        raise InputError(
            f"measurement and signals must have different names, and one at least, got {names}"
        )
    return {m.name: m for m in given}


def check_guards(model: Model, signals: Sequence[ContactSignal]) -> None:
    """Raise `UnknownNameError` for guards that no mode of the system has, where these are known."""
    known = model.system.guard_names
    if known is None:
        return
    for name in model.guard_noise.named:
        check_member("guard_noise of", name, known)
    for signal in signals:
        for what, guard in (("closes", signal.closes), ("opens", signal.opens)):
            if guard is not None:
                check_member(f"{what} of signal {signal.channel!r},", guard, known)
