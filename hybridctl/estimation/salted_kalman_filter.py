r"""The salted Kalman filter: the extended Kalman filter of a hybrid system, through its events.

One sample is a prediction to its time and a correction by its value ([Salt] III-D):

.. math:: x_k^- = F(x_{k-1}), \quad P_k^- = \Phi P_{k-1} \Phi^T + Q_k, \qquad
          x_k = x_k^- \boxplus K (z_k - h(x_k^-)),

where F goes through as many events as there are until then, and :math:`\Phi` is the product of the
transition matrices of the arcs and the saltation matrices of the events between them. The parts:

- `kalman_equations`: flow, event and correction of one estimate;
- `prediction`: their loop over arcs and events, and what replaces a simulation that fails;
- `salted_jump`: the covariance through an event;
- `mode_consistency`: events that a value reveals;
- `event_hypotheses` and `hypothesis_correction`: the policy that follows several orders of events;
- `recovery`: the policy for an estimate that is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

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
from hybridctl.base.errors import GuardViolatedError, InputError
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.deadline import Deadline
from hybridctl.estimation.estimate import Estimate, check_estimate
from hybridctl.estimation.event_hypotheses import (
    DEFAULT_HYPOTHESES,
    Hypotheses,
    choose_limits,
    predict_hypotheses,
)
from hybridctl.estimation.filter_state import (
    Beginning,
    FilterRules,
    FilterState,
    Input,
    InputPiece,
    MomentRule,
    begin_sample,
)
from hybridctl.estimation.hypothesis_correction import apply_contact_signal, correct_hypotheses
from hybridctl.estimation.kalman_equations import linearize_residual
from hybridctl.estimation.measurement import AnyMeasurement, flow_tolerance
from hybridctl.estimation.mixture import add_sides, mix_hypotheses
from hybridctl.estimation.noise import EXACT_GUARDS, EventNoise, GuardNoise, Noise, as_noise
from hybridctl.estimation.noisy_system import NoisySystem, compute_guard_rates, find_input_guards
from hybridctl.estimation.prediction import predict
from hybridctl.estimation.record import Record
from hybridctl.estimation.recovery import monitor_rejections
from hybridctl.estimation.result import FilterResult, filter_record
from hybridctl.estimation.salted_jump import STRATEGIES, Strategy
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.system import HybridSystem

ConstantCovariance = ArrayLike | Mapping[ModeKey, ArrayLike]
"""A matrix, or matrices by mode."""
FIRST_ORDER = MomentRule(predict, linearize_residual)
_MAX_GUARD_DEVIATIONS = 4.0
"""Standard deviations of a guard's offset by which an initial mean may lie outside its mode. A
choice."""


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Options of filters that are seldom changed.

    The filter itself checks mode and covariance of `beginning`, which depend on its system.

    Attributes:
        strategy: "saltation", or a baseline that is wrong on purpose: "reset_jacobian" or
            "no_jump", see `salted_jump`.
        rewind: Longest time in s for which a mean that is past a guard is taken to be just early or
            late there, see `mode_consistency`.
        patience: Number of values of a channel in a row that the gate rejects, after which the
            filter believes the last instead of the estimate, see `recovery`. None for never.
        beginning: Where a filter restarts whose mode was wrong. None for mode and covariance of the
            initial estimate.
        rtol: Relative tolerance of the integrator. None for 1e-4 of the least standard deviation of
            a measured value, between 1e-9 and 1e-6: an error of the flow that no value shows.
        atol: Absolute tolerance of the integrator; None as for `rtol`.

    Raises:
        InputError: The strategy is unknown (`UnknownNameError`), another option is no number, or
            one is out of its range.
    """

    strategy: Strategy = "saltation"
    rewind: float = 0.05
    patience: int | None = 8
    beginning: Beginning | None = None
    rtol: float | None = None
    atol: float | None = None

    def __post_init__(self) -> None:
        check_member("strategy", self.strategy, STRATEGIES)
        check_number("rewind", self.rewind, at_least=0.0)
        if self.patience is not None:
            check_count("patience", self.patience)
        for name, tolerance in (("rtol", self.rtol), ("atol", self.atol)):
            if tolerance is not None:
                check_number(name, tolerance, above=0.0)


class SaltedKalmanFilter:
    r"""A Kalman filter on any hybrid system: `predict` and `update` in a loop, or `run` on a log.

    The mean follows the exact simulation, the covariance its first order:
    :math:`\dot P = A P + P A^T + Q` on arcs and
    :math:`P^+ = \Xi P \Xi^T + P_R + k k^T \sigma_g^2 / \dot g^2` at events, with the saltation
    matrix :math:`\Xi`, the noise :math:`P_R` of the reset, and :math:`k = f^+ - \dot R`.
    Simultaneous guards have the moments of their piecewise-linear map. A correction that leaves the
    mode is reconciled with it, see `mode_consistency`.

    Life cycle: the filter itself does not change. `start` makes a `FilterState` of an estimate, and
    `predict` and `update` make the next one of it. States contain no filter. So a state may be
    passed to the same filter with a limit of time or a count of steps (`limit_time`, `count_steps`,
    which may be combined).

    Args:
        system: The hybrid system.
        process_noise: Spectral density in the tangent space (ndx, ndx), densities by mode, or a
            `Noise`.
        measurement: One or several measurements with different names, implicit ones too.
        reset_noise: Covariance (ndx+, ndx+) that is added after events that move the state,
            covariances by the mode after, a `Noise`, or an `EventNoise`. None for no noise.
        guard_noise: Variance of the guards' offsets in the square of their unit, one number or by
            the name of the guard. None for exact guards.
        signals: Contact signals.
        hypotheses: Largest number of orders of events that are followed, see `event_hypotheses`.
            "auto" follows up to four where these have 5 % each, and otherwise one.
        options: Options that are seldom changed; None for the default ones.

    Raises:
        InputError: An argument does not fit. A name of a guard that no mode has is an
            `UnknownNameError`, which is one too.
    """

    moments = FIRST_ORDER

    def __init__(
        self,
        system: HybridSystem,
        process_noise: Noise | ConstantCovariance,
        measurement: AnyMeasurement | Sequence[AnyMeasurement],
        reset_noise: Noise | EventNoise | ConstantCovariance | None = None,
        guard_noise: float | Mapping[str, float] | None = None,
        *,
        signals: Sequence[ContactSignal] = (),
        hypotheses: Hypotheses = DEFAULT_HYPOTHESES,
        options: FilterOptions | None = None,
    ) -> None:
        chosen = FilterOptions() if options is None else options
        check_instance("options", chosen, FilterOptions)
        self.measurements = _index_by_name(measurement, signals)
        self.signals = {signal.channel: signal for signal in signals}
        self.channels = (*self.measurements, *self.signals)
        tolerance = flow_tolerance(list(self.measurements.values()))
        if reset_noise is not None and not isinstance(reset_noise, EventNoise):
            reset_noise = as_noise("reset_noise", reset_noise)
        self.model = NoisySystem(
            system=check_instance("system", system, HybridSystem),
            process_noise=as_noise("process_noise", process_noise),
            reset_noise=reset_noise,
            guard_noise=EXACT_GUARDS if guard_noise is None else GuardNoise(guard_noise),
            strategy=chosen.strategy,
            rewind=float(chosen.rewind),
            rtol=tolerance if chosen.rtol is None else float(chosen.rtol),
            atol=tolerance if chosen.atol is None else float(chosen.atol),
        )
        _check_guard_names(self.model, signals)
        if chosen.beginning is not None:
            ndx = system.mode(chosen.beginning.mode).space.ndx
            check_semidefinite("beginning", chosen.beginning.covariance, ndx)
        self.rules = FilterRules(
            model=self.model,
            moments=self.moments,
            measurements=self.measurements,
            signals=self.signals,
            limits=choose_limits(hypotheses),
            patience=chosen.patience,
            beginning=chosen.beginning,
        )

    def start(self, initial: Estimate) -> FilterState:
        """Return the state in which a run from an estimate starts.

        Args:
            initial: The estimate. Its mean lies inside its mode, see `check_initial_estimate`.
        """
        return self.rules.start(check_initial_estimate(self.model, initial))

    def predict(
        self, state: FilterState | Estimate, time: float, input: Input = None
    ) -> FilterState:
        """Return the state at a later time.

        Args:
            state: State of this filter, or an initial estimate as `start` takes it.
            time: The later time, s.
            input: Constant input (nu,), a function u(t, x), or None for zero.

        Raises:
            InputError: The time is before that of the state.
            SimulationError: The estimate is not finite.
        """
        state, end = self._check_state(state), check_number("time", time)
        if end < state.time:
            raise InputError(
                f"time must not be before that of the estimate, {state.time} s, got {end}"
            )
        return self._mix(self._predict(state, end, input).check_finite(), input)

    def update(
        self,
        state: FilterState | Estimate,
        channel: str,
        value: ArrayLike,
        input: Input = None,
    ) -> FilterState:
        """Return the state after a value, measured at the time of the state.

        Args:
            state: State of this filter, or an initial estimate as `start` takes it.
            channel: Name of a measurement or contact signal.
            value: The value (m,). Components that are NaN are missing.
            input: Constant input (nu,), a function u(t, x), or None for zero.

        Raises:
            UnknownNameError: The filter has no such channel.
            InputError: The value has a wrong size, is infinite, or is no number.
            SimulationError: The estimate is not finite.
        """
        if not (isinstance(channel, str) and channel in self.channels):
            check_member("channel", channel, self.channels)
        return self._update(self._check_state(state), channel, _check_value(channel, value), input)

    def run(
        self,
        record: Record,
        initial: Estimate,
        *,
        progress: Callable[[float], None] | None = None,
        watch: Callable[[FilterState], None] | None = None,
    ) -> FilterResult:
        """Return the states of the filter over a record, in order of time.

        Rows before the time of `initial` are left out, and counted as `skipped`. Rows that share a
        stamp are taken one after the other, channel by channel.

        Args:
            record: Values by channel, and inputs; see `Record` for missing rows.
            initial: The initial estimate, as `start` takes it.
            progress: Called with the time in s after each sample.
            watch: Called with the state after each sample. What it raises ends the run.

        Raises:
            UnknownNameError: A channel of the record has no measurement.
            SimulationError: The estimate is not finite.
        """
        start, steps = self.start(initial), (self._predict_row, self._update)
        return filter_record(
            record, start, self.channels, *steps, lambda state: state, progress, watch
        )

    def limit_time(self, deadline: Deadline) -> SaltedKalmanFilter:
        """Return the same filter, whose work on a sample is cut by a deadline.

        Events and hypotheses are followed for which there is time. Without time the prediction ends
        by linearised steps with two events at most (`cut_prediction`), with the covariance of what
        may be beyond them. Notes say what was cut.

        Args:
            deadline: The deadline, whose limit is set before each sample.
        """
        return self._with_model(replace(self.model, deadline=deadline))

    def count_steps(self, stepped: Callable[[float], None]) -> SaltedKalmanFilter:
        """Return the same filter, which calls a function as its integrator goes on.

        Args:
            stepped: Called with the time in s that each step ends at, but for arcs past guards.
                What it raises ends the run, but for a `SimulationError`, which ends a hypothesis.
        """
        return self._with_model(replace(self.model, stepped=stepped))

    def _with_model(self, model: NoisySystem) -> SaltedKalmanFilter:
        other = copy(self)
        other.model = model
        other.rules = replace(self.rules, model=model)
        return other

    def _check_state(self, given: FilterState | Estimate) -> FilterState:
        return given if isinstance(given, FilterState) else self.start(given)

    def _predict_row(self, state: FilterState, end: float, given: Input) -> FilterState:
        """Return the state at the time of a row, of which several may share one."""
        return state if end == state.time else self._predict(state, end, given)

    def _predict(self, state: FilterState, end: float, given: Input) -> FilterState:
        """Return the state at a later time, without the check and the moments of all hypotheses."""
        rules = self.rules
        law = self.model.law(state.hypotheses[0].estimate.mode, given)
        after = predict_hypotheses(
            rules, state.hypotheses, end, law, begins_sample=state.is_after_value
        )
        # Inputs are kept for a restart, and without patience there is none.
        inputs = () if rules.patience is None else (*state.inputs, InputPiece(end, given))
        return FilterState(
            time=end,
            hypotheses=after,
            beginning=state.beginning,
            rejections=state.rejections,
            rows=state.rows,
            inputs=inputs,
        )

    def _update(self, state: FilterState, channel: str, value: Array, given: Input) -> FilterState:
        """Return the state after a value that was checked."""
        rules, before = self.rules, state.hypotheses
        if state.is_after_value:  # another value at this time: a sample without a prediction
            before = begin_sample(before)
        law = self.model.law(before[0].estimate.mode, given)
        is_signal = channel in rules.signals
        change = apply_contact_signal if is_signal else correct_hypotheses
        after = change(rules, before, channel, value, law)
        found = FilterState(
            time=state.time,
            hypotheses=after,
            beginning=state.beginning,
            channel=channel,
            rejections=state.rejections,
            rows=state.rows,
            inputs=state.inputs,
        )
        if not is_signal and rules.patience is not None:
            found = monitor_rejections(rules, found, channel, value, given)
        return self._mix(found.check_finite(), given)

    def _mix(self, state: FilterState, given: Input) -> FilterState:
        """Return the state with the moments of its hypotheses, if there are several.

        Predictions within `run` do without: nobody sees them before their value.
        """
        if len(state.hypotheses) == 1:
            return state
        law = self.model.law(state.estimate.mode, given)
        each = tuple(add_sides(self.model, h, law) for h in state.hypotheses)
        return state._replace(hypotheses=each, several=mix_hypotheses(self.model.system, each))


def check_initial_estimate(model: NoisySystem, estimate: Estimate) -> Estimate:
    """Return an estimate whose mean was checked to be possible in its mode.

    The mean obeys the constraints of the mode, and guards are not negative beyond their tolerance
    and noise. Estimates of a filter with one hypothesis pass too. So a guard may be negative that
    rises above zero within `rewind` s, as just after an event that is late (see
    `mode_consistency`), and guards of an estimate that has had an event (`since`) are not checked:
    it may wait for another past its guard. With several hypotheses one may wait so without an
    event, and is refused: go on from the state of the filter instead. Guards that depend on the
    input are not checked, for an estimate has no input; where guards have no Jacobian all are
    checked, without input.

    Args:
        model: The system and its noise.
        estimate: The estimate.

    Raises:
        InputError: The estimate does not fit its mode. Among these are `ConstraintViolatedError`
            and `GuardViolatedError` for a mean that violates constraints or guards.
    """
    found = check_estimate(model.system, estimate)
    mode = model.system.mode(found.mode)
    if mode.held is not None:
        mode.held.check("mean", found.mode, found.mean)
    if found.since == -np.inf:
        _check_guards(model, mode, found.time, found.mean)
    return found


def _check_guards(model: NoisySystem, mode: ModeModel, t: float, x: Array) -> None:
    """Raise an error if a mean lies outside its mode and does not move back in.

    Args:
        model: The system and its noise.
        mode: The mode.
        t: Time, s.
        x: Mean (nx,).

    Raises:
        GuardViolatedError: A guard is negative beyond its tolerance and noise. Where guards have a
            Jacobian, those that depend on the input are left out, and those that rise above zero
            within `rewind`.
    """
    key, rewind, u = mode.key, model.rewind, np.zeros(mode.nu)
    guards = model.system.outgoing(key).guards
    g, offsets = guards.checked_values(key, t, x, u), model.guard_noise.variances_of(guards.names)
    allowed = model.guard_tolerances(key) + _MAX_GUARD_DEVIATIONS * np.sqrt(offsets)
    outside = g < -allowed
    if outside.any() and guards.jacobian is not None:
        point = mode.calc(t, x, u)
        rewound = g + rewind * compute_guard_rates(point)
        outside &= ~find_input_guards(point) & (rewound < 0.0)
    if outside.any():
        i = int(np.where(outside, g / guards.sizes, np.inf).argmin())
        raise GuardViolatedError(
            f"mean {x.tolist()} lies outside mode {key!r} at t = {t:.9g} s: guard "
            f"{guards.names[i]!r} is {g[i]:.6g} and must not be negative, unless it rises above "
            f"zero within {rewind:g} s"
        )


def _check_value(channel: str, value: ArrayLike) -> Array:
    """Return a read-only copy (m,) of a value, NaN where a component is missing.

    Args:
        channel: Its channel, for messages.
        value: What was given.

    Raises:
        InputError: It is no vector of numbers, or infinite.
    """
    try:
        values = convert_to_floats(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"value of {channel!r} must be an array of numbers, got {quote(value)}"
        ) from error
    if values.ndim == 0:
        values = values.reshape(1)
    if values.ndim != 1:
        raise InputError(f"value of {channel!r} must have shape (any,), got {values.shape}")
    if not is_finite(values) and np.isinf(values).any():
        raise InputError(f"value of {channel!r} must not be infinite, got {quote(values)}")
    values.flags.writeable = False
    return values


def _index_by_name(
    measurement: AnyMeasurement | Sequence[AnyMeasurement], signals: Sequence[ContactSignal]
) -> dict[str, AnyMeasurement]:
    """Return measurements by the name of their channel, checked to differ from those of signals.

    Args:
        measurement: What a user gives: one or several measurements.
        signals: Contact signals.

    Raises:
        InputError: There is none, one is something else, or names are not different.
    """
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


def _check_guard_names(model: NoisySystem, signals: Sequence[ContactSignal]) -> None:
    """Raise `UnknownNameError` for a guard that no mode has, if the system lists its guards."""
    known = model.system.guard_names
    if known is None:
        return
    for name in model.guard_noise.named:
        check_member("guard_noise of", name, known)
    for signal in signals:
        for what, guard in (("closes", signal.closes), ("opens", signal.opens)):
            if guard is not None:
                check_member(f"{what} of signal {signal.channel!r},", guard, known)
