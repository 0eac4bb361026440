r"""Policy for several orders of events: how hypotheses split, are weighed, merge and are dropped.

A hypothesis is a normal distribution that follows one order of events. To first order it does so
also where the mean has its events at another time: along extended arcs, past a guard that is still
to fire, or back from an event that is still to come. A guard is *pending* in a hypothesis if it has
not fired there, whatever its value at the mean. Besides the hypothesis itself, the belief gets

- at each event of a prediction: one in which the guards of the event are pending, for as long as
  they may not have fired yet, and those in which another guard fires before;
- at each value: one in which a guard has fired that the mean has not reached yet. If the value
  takes the mean of the hypothesis itself past that guard, the guard is pending there from then on;
- at the end of each prediction of a hypothesis with pending guards: one in which they have fired
  since.

The probability of each comes from the guard's value g and its variance,
:math:`\Phi(\pm g / \sqrt{g_x P g_x^T + \sigma_g^2})`; for the order of two guards, from the
difference of their times. Below `HypothesisLimits.log_split` nothing splits. Weights sum to one
before
each value, and are multiplied by the density of the value under each hypothesis, so that the
likelihood of a value integrates to one over the value. In the weights, a value that the gate
rejects counts as one at the gate's limit. A hypothesis in whose mode the value contains nothing
keeps its probability.

Of hypotheses that agree, in mode and within half a standard deviation in every coordinate, the
likelier is kept with both weights; of all, the likeliest `bound`.

Within a hypothesis the motion may have had a disturbance that the model does not contain. Its
density of a value is then a mixture, and its moments are those of all parts, see
`unmodelled_motion`.

With a bound of one only the order of the mean is followed. At each of its events notes say where
the event may lie on the other side of a sample, or behind the event of another guard, with more
than 1 %. The weight of the only hypothesis matters to nothing and is not normalized.

Once a deadline is exceeded (`NoisySystem.late`), nothing splits, and only the likeliest of several
hypotheses is predicted. A note says how many were dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import numpy as np

from hybridctl.base.checks import Array, check_count, check_member
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_state import (
    FilterRules,
    Hypothesis,
    HypothesisLimits,
    Reconciliation,
    begin_sample,
)
from hybridctl.estimation.guard_probabilities import (
    MIN_LOG_PROBABILITY,
    Truncation,
    are_positive_at_mean,
    can_split_belief,
    find_guards_within_reach,
    find_overtaking_guards,
    find_truncation,
    log_complement,
    log_probability_positive,
    note_ambiguous_event,
    note_overtaking_guards,
)
from hybridctl.estimation.hypothesis_weights import (
    merge_and_prune,
    normalize_weights,
    sort_key,
)
from hybridctl.estimation.kalman_equations import (
    Innovation,
    StatePrediction,
    correct,
    identity_map,
)
from hybridctl.estimation.measurement import LinearizedResidual
from hybridctl.estimation.mode_consistency import pass_guard_early, reconcile
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import NO_TIME_LEFT, extend_past_guards
from hybridctl.estimation.unmodelled_motion import (
    MotionPart,
    add_logs,
    has_disturbances,
    join_motion,
    split_motion,
)
from hybridctl.hybrid.laws import InputLaw

Hypotheses = int | Literal["auto"]
"""Largest number of orders of events, or "auto"."""
DEFAULT_HYPOTHESES = 1
"""Number of hypotheses that a filter follows by default."""
_MIN_LOG_WEIGHT = -14.0
"""Logarithm of the weight, relative to the likeliest, below which a hypothesis is dropped: some one
in a million. A choice."""
_AUTO_BOUND = 4
"""Largest number of hypotheses of "auto". With more the cube's poses are hardly more likely."""
_AUTO_LOG_SPLIT = float(np.log(0.05))
"""Logarithm of the least probability of an order of events that "auto" follows. A choice."""
_AUTO_LOG_WEIGHT = float(np.log(0.05))
"""The same of its weight relative to the likeliest, below which "auto" drops it. A choice."""
_UNCORRECTED_PER_BOUND = 4
"""Hypotheses before a value, per hypothesis that is kept: none has been compared with the value
yet. A choice."""
_EARLY_PER_BOUND = 2
"""Hypotheses with a guard fired early that are tried at a value, for each that is kept beside the
first. A choice."""
_MIN_LOG_SIDE = -1e4
"""Least `Hypothesis.side`: logarithm of the probability of being before the pending guards.

A hypothesis stores log_weight = weight - side, and its weight is read as log_weight + side. A far
lower side would take the digits of the weight; at this one they are rounded by some 1e-12."""


def choose_limits(hypotheses: Hypotheses) -> HypothesisLimits:
    """Return how many hypotheses a filter follows, and from which probability on.

    Args:
        hypotheses: Largest number, or "auto" for one order of events as long as the others have
            less than 5 %, and up to four where they have more.

    Raises:
        InputError: It is neither a whole number of at least 1 nor "auto".
    """
    if isinstance(hypotheses, str):
        check_member("hypotheses", hypotheses, ("auto",))
        return HypothesisLimits(_AUTO_BOUND, _AUTO_LOG_SPLIT, _AUTO_LOG_WEIGHT)
    bound = check_count("hypotheses", hypotheses)
    return HypothesisLimits(bound, float(MIN_LOG_PROBABILITY), _MIN_LOG_WEIGHT)


# Prediction


def predict_hypotheses(
    rules: FilterRules,
    hypotheses: Sequence[Hypothesis],
    end: float,
    law: InputLaw,
    *,
    begins_sample: bool,
) -> tuple[Hypothesis, ...]:
    """Return hypotheses at a later time, and those that split off at events on the way.

    Args:
        rules: The rules of the filter.
        hypotheses: The hypotheses, the likeliest first.
        end: Time, s.
        law: Input law.
        begins_sample: Whether the hypotheses are those after a value, of which a new sample begins.

    Returns:
        At most four times as many as the bound, the likeliest first, with weights that sum to one.
        With a bound of one the only hypothesis, with its weight as it was; at each event it gets
        notes on the orders that are not followed, where these have more than 1 %.
    """
    model, bound, first = rules.model, rules.bound, None
    if len(hypotheses) == 1 and not hypotheses[0].pending:
        (h,) = hypotheses
        first = rules.moments.predict(model, h.estimate, end, law)
        if begins_sample and not first.pre_event and (bound == 1 or h.log_weight == 0.0):
            # The usual case, for speed: one hypothesis and no event. What follows returns the same.
            return (_begin_and_continue(h, first),)
    if begins_sample:
        hypotheses = [h._replace(begun=h.estimate.time) for h in begin_sample(hypotheses)]
    found, cut = list[Hypothesis](), 0
    for k, h in enumerate(hypotheses):
        if found and model.late():
            # No time is left for the less likely ones.
            cut = len(hypotheses) - k
            break
        if h.pending:
            start = StatePrediction(h.estimate, transition=identity_map(len(h.estimate.covariance)))
            extended = extend_past_guards(model, start, end, law)
            # Past its pending guards the flow may end, as inside a wall: then they have fired, and
            # this hypothesis ends.
            if not extended.mode_frozen:
                found += _wait_for_guards(rules, h, extended, law)
            continue
        # Less likely hypotheses may have few events: where they rattle they end. The likeliest is
        # always predicted, and so is the last one if none is left before it.
        only = not found and h is hypotheses[-1]
        limited = model if only or h is hypotheses[0] else model.with_few_events
        main = first or rules.moments.predict(limited, h.estimate, end, law)
        if main.mode_frozen and limited is not model:
            continue
        if not main.pre_event:
            found.append(_continue(h, main))
        elif bound == 1:
            found.append(_continue_with_notes(model, h, main, end, law))
        else:
            found += _split_at_events(rules, h, main, end, law)
    if not found:
        # All have ended past their pending guards: these fire. The probability of having been
        # before them stays part of the weight.
        freed = [h._replace(log_weight=h.weight, pending=(), side=0.0) for h in hypotheses]
        return predict_hypotheses(rules, freed, end, law, begins_sample=False)
    if bound == 1:
        return tuple(found)
    found.sort(key=sort_key)
    if cut:
        note = f"{cut} of {len(hypotheses)} hypotheses were dropped: {NO_TIME_LEFT}"
        found[0] = found[0]._replace(notes=(*found[0].notes, note))
    return tuple(normalize_weights(found[: _UNCORRECTED_PER_BOUND * bound]))


def _continue(h: Hypothesis, way: StatePrediction) -> Hypothesis:
    """Return a hypothesis at the end of a prediction that starts at its estimate.

    Its map, events and notes are those since the last value, before and on the way.
    """
    whole = way.transition
    if h.transition is None:
        whole = None
    elif whole is not None and h.transition is not identity_map(len(h.transition)):
        whole = whole @ h.transition
    events = way.events
    return Hypothesis(
        way.estimate,
        h.log_weight,
        h.side,
        h.pending,
        h.parent,
        None,
        whole,
        h.events + events,
        h.notes + way.notes,
        fired=events[-1].guards if events else h.fired,
        begun=h.begun,
    )


def _begin_and_continue(h: Hypothesis, way: StatePrediction) -> Hypothesis:
    """Return the only hypothesis after a value at the end of a prediction that starts there."""
    events = way.events
    return Hypothesis(
        way.estimate,
        h.log_weight,
        h.side,
        transition=way.transition,
        events=events,
        notes=way.notes,
        fired=events[-1].guards if events else h.fired,
        begun=h.estimate.time,
    )


def _continue_with_notes(
    model: NoisySystem, h: Hypothesis, main: StatePrediction, end: float, law: InputLaw
) -> Hypothesis:
    """Return a hypothesis after events, with notes on the orders that are not followed."""
    samples, notes = (h.estimate.time, end), list[str]()
    for before, event in main.pair_events():
        notes += note_ambiguous_event(model, before.estimate, event, samples, law)
        notes += note_overtaking_guards(model, before.estimate, event, law)
    after = _continue(h, main)
    return after._replace(notes=(*notes, *after.notes))


def _split_at_events(
    rules: FilterRules, h: Hypothesis, main: StatePrediction, end: float, law: InputLaw
) -> list[Hypothesis]:
    """Return a prediction with events, and what else may have happened at each of them.

    At each event the belief splits into a hypothesis in which its guards are still pending, and
    into orders in which another guard fires first. Of these orders the likeliest are followed, as
    many as hypotheses are kept beside the first. The weight of the prediction is reduced by the
    weights of all that split off.

    Args:
        rules: The rules of the filter.
        h: The hypothesis before the prediction.
        main: The prediction.
        end: Its time, s.
        law: Input law.

    Returns:
        The hypothesis after the prediction, then those that split off.
    """
    model, others, parts = rules.model, list[Hypothesis](), list[float]()
    if model.late():  # no time is left for other orders
        return [_continue(h, main)]
    orders = list[tuple[float, int, str]]()
    for k, (before, event) in enumerate(main.pair_events()):
        if not can_split_belief(model.evaluate_at(before.estimate, law), event):
            continue
        unfired = extend_past_guards(model, before, end, law)
        if unfired.mode_frozen:  # the flow ends past the guards: they cannot be pending there
            continue
        log_p = log_probability_positive(model, unfired.estimate, event.guards, law)
        if h.weight + log_p > rules.limits.log_split:
            parts.append(log_p)
            other = _continue(h, unfired)
            others.append(other._replace(pending=event.guards, side=h.side + log_p))
        for name, log_p in find_overtaking_guards(model, before.estimate, event.guards, law):
            orders.append((h.log_weight + log_p, k, name))
    for weight, k, name in sorted(orders, reverse=True)[: rules.bound - 1]:
        way = None
        if weight > rules.limits.log_split:
            way = _predict_overtaken(rules, main.pre_event[k], name, end, law)
        if way is not None:
            parts.append(weight - h.log_weight)
            others.append(_continue(h, way)._replace(log_weight=weight))
    whole, left = _continue(h, main), log_complement(add_logs(parts)) if parts else 0.0
    return [whole._replace(log_weight=h.log_weight + left), *others]


def _wait_for_guards(
    rules: FilterRules, h: Hypothesis, extended: StatePrediction, law: InputLaw
) -> list[Hypothesis]:
    """Return a hypothesis whose guards are still pending, and one past them, if that is likely.

    The second one is that of the guards firing since the last value. A hypothesis in which they had
    fired before cannot replace it: a value may have made that one unlikely.

    Args:
        rules: The rules of the filter.
        h: The hypothesis before the prediction.
        extended: The prediction without the event of the pending guards.
        law: Input law.
    """
    model = rules.model
    # Guards that have fired stay fired, so the probability that they have not can only fall.
    side = min(log_probability_positive(model, extended.estimate, h.pending, law), h.side)
    waiting = _continue(h, extended)._replace(side=side)
    weight = h.weight + log_complement(side - h.side)
    if weight < rules.limits.log_split:
        return [waiting]
    way = reconcile(model, extended.estimate, law)
    if not way.events:
        return [waiting]
    fired = _continue(h, extended.append(way))
    return [waiting, fired._replace(log_weight=weight, side=0.0, pending=())]


def _predict_overtaken(
    rules: FilterRules, before: StatePrediction, name: str, end: float, law: InputLaw
) -> StatePrediction | None:
    """Return the prediction from just before an event in which another guard fires first.

    Args:
        rules: The rules of the filter.
        before: The prediction just before the event.
        name: The guard that fires first.
        end: Time, s.
        law: Input law.

    Returns:
        The prediction. None if the guard has no event within `rewind` s, or if the mode after it
        cannot be simulated to the end with few events.
    """
    first = pass_guard_early(rules.model, before, name, law)
    if first is None:
        return None
    then = rules.moments.predict(rules.model.with_few_events, first.estimate, end, law)
    return None if then.mode_frozen else first.append(then)


# Correction


def correct_hypotheses(
    rules: FilterRules, hypotheses: Sequence[Hypothesis], channel: str, value: Array, law: InputLaw
) -> tuple[Hypothesis, ...]:
    r"""Return the hypotheses after a value of a measurement that are kept, the likeliest first.

    With weights w before the value that sum to one, and a density :math:`p_h` of the value for each
    hypothesis, the likelihood of the value is :math:`\sum_h w_h p_h(y)`, which integrates to one.
    The density of a hypothesis is :math:`N(r; 0, S)`, times `Truncation.log_evidence`. Hypotheses
    whose gate rejects the value have no part in this sum, as theirs is the density of an outlier;
    with the gate's other values it integrates to less than one.

    A value that contains nothing about the mode of the likeliest hypothesis, and one that is
    missing, leaves all hypotheses as they are: it has no innovation that stands for all.

    Args:
        rules: The rules of the filter.
        hypotheses: Hypotheses before the value.
        channel: Name of the measurement.
        value: The value (m,).
        law: The input.

    Returns:
        The hypotheses, at most as many as the bound, with weights that sum to one. The innovation
        of the first has the log-likelihood of the value by all of them. With a bound of one the
        weight is the sum of its log-densities.

    Raises:
        SimulationError: The covariance of the likeliest one's innovation is not positive definite.
            Other hypotheses of which that is true are dropped.
    """
    measurement, best = rules.measurements[channel], hypotheses[0].estimate
    mode = rules.model.system.mode(best.mode)
    first = rules.moments.linearize(measurement, mode, best, value, law(best.time, best.mean))
    if first is None:
        return tuple([h._replace(predicted=h.estimate) for h in hypotheses])
    if rules.bound == 1 and not has_disturbances(rules.model):
        (h,) = hypotheses
        after, innovation = correct(measurement, mode, best, first)
        weight = h.weight + _log_density_with_gate(innovation)
        if not (h.pending or mode.guard_names):
            # The usual case of a legged robot's base, for speed: no event that the value could
            # reveal. What follows returns the same.
            return (_correct_without_guards(h, after, innovation, weight),)
        one = _CorrectedHypothesis(h, (), after, innovation)
        return (_end_correction(rules, one, law, weight),)
    if rules.bound == 1:
        (h,) = hypotheses
        single = _compare_by_residual(rules, h, (), first, channel, law)
        weight = h.weight + single.log_density
        return (_end_correction(rules, _correct(rules, single, channel), law, weight),)
    compared = list[_ComparedHypothesis]()
    for k, (h, passed) in enumerate(_split_before_value(rules, hypotheses, law)):
        own = _compare(rules, h, passed, channel, value, law, None if k else first)
        if own is not None:
            compared.append(own)
    if len(compared) == 1:  # its probability is one
        return (_end_correction(rules, _correct(rules, compared[0], channel), law, 0.0),)
    weights, log_likelihood = _weigh_by_value(compared)
    # What is dropped for its weight needs no moments and no events: they take most of the time.
    least = max(weights) + rules.limits.log_weight
    found = [
        _end_correction(rules, _correct(rules, one, channel), law, w)
        for one, w in zip(compared, weights, strict=True)
        if not w < least
    ]
    return merge_and_prune(rules, found, log_likelihood, add_logs(weights))


def _correct_without_guards(
    h: Hypothesis, after: Estimate, innovation: Innovation, weight: float
) -> Hypothesis:
    """Return a hypothesis after a value, in a mode without guards."""
    return Hypothesis(
        after,
        weight,
        parent=h.parent,
        predicted=h.estimate,
        transition=h.transition,
        events=h.events,
        notes=h.notes,
        innovation=innovation,
        fired=h.fired,
        begun=h.begun,
    )


class _ComparedHypothesis(NamedTuple):
    """A hypothesis that was compared with a value, but not corrected by it yet.

    Attributes:
        prior: The hypothesis before the value.
        passed: Guards that are positive in this hypothesis, and that have fired in others that
            have split off from it.
        residual: Residual of the value. None if the value contains nothing about the mode of this
            hypothesis.
        parts: Its kinds of motion, see `unmodelled_motion`; empty without a residual.
        log_weights: Logarithm of the weight of each part after the value.
    """

    prior: Hypothesis
    passed: tuple[str, ...]
    residual: LinearizedResidual | None
    parts: Sequence[MotionPart] = ()
    log_weights: Sequence[float] = ()

    @property
    def log_density(self) -> float:
        """Log-density of the value given this hypothesis, which has a residual."""
        return add_logs(self.log_weights)

    @property
    def accepted(self) -> bool:
        """Whether the gate accepts the value, of which this hypothesis has a residual."""
        return self.parts[0].innovation.accepted


class _CorrectedHypothesis(NamedTuple):
    """A hypothesis that was corrected by a value, without regard to the others.

    Attributes:
        prior: The hypothesis before the value, with the covariance that disturbances leave.
        passed: As in `_ComparedHypothesis`.
        estimate: Estimate after the value.
        innovation: Innovation of the value. None if the value contains nothing about the mode of
            this hypothesis.
    """

    prior: Hypothesis
    passed: tuple[str, ...]
    estimate: Estimate
    innovation: Innovation | None


def _compare(
    rules: FilterRules,
    h: Hypothesis,
    passed: tuple[str, ...],
    channel: str,
    value: Array,
    law: InputLaw,
    residual: LinearizedResidual | None,
) -> _ComparedHypothesis | None:
    """Return a hypothesis compared with a value; None for an unlikely one for which that fails.

    None drops the hypothesis. An implicit measurement may contain nothing about its mode.

    Args:
        rules: The rules of the filter.
        h: The hypothesis before the value.
        passed: As in `_ComparedHypothesis`.
        channel: Name of the measurement.
        value: The value (m,).
        law: The input.
        residual: Residual of the likeliest hypothesis; its comparison may raise, which ends the
            filter. None for the others, of which an error ends only that hypothesis.
    """
    if residual is not None:
        return _compare_by_residual(rules, h, passed, residual, channel, law)
    with suppress(SimulationError):
        found = rules.linearize_residual(h.estimate, channel, value, law)
        if found is None:
            return _ComparedHypothesis(h, passed, None)
        return _compare_by_residual(rules, h, passed, found, channel, law)
    return None


def _compare_by_residual(
    rules: FilterRules,
    h: Hypothesis,
    passed: tuple[str, ...],
    residual: LinearizedResidual,
    channel: str,
    law: InputLaw,
) -> _ComparedHypothesis:
    """Return a hypothesis compared with a value, by all motions of `unmodelled_motion`.

    Args:
        rules: The rules of the filter.
        h: The hypothesis before the value.
        passed: As in `_ComparedHypothesis`.
        residual: Residual of the value.
        channel: Name of the measurement.
        law: The input.

    Raises:
        SimulationError: The covariance of an innovation is not positive definite.
    """
    parts = split_motion(rules, h.estimate, h.begun, channel, residual, law)
    truncation = _find_truncation(rules, h, passed, law)
    logs = [p.log_probability + _log_density(p, residual, truncation) for p in parts]
    return _ComparedHypothesis(h, passed, residual, parts, logs)


def _correct(rules: FilterRules, one: _ComparedHypothesis, channel: str) -> _CorrectedHypothesis:
    """Return a hypothesis after a value; without a residual its estimate stays as it is."""
    h = one.prior
    if one.residual is None:
        return _CorrectedHypothesis(h, one.passed, h.estimate, None)
    found = join_motion(rules, one.parts, one.log_weights, channel, one.residual)
    before, after, innovation = found
    prior = h if before is h.estimate else h._replace(estimate=before)
    return _CorrectedHypothesis(prior, one.passed, after, innovation)


def _weigh_by_value(compared: Sequence[_ComparedHypothesis]) -> tuple[list[float], float]:
    """Return the log-weight of each hypothesis after a value, and the value's log-likelihood.

    A hypothesis about whose mode the value contains nothing has no density of it. It counts with
    the mean density of the others, weighted by their probabilities before the value. So its own
    probability stays what it was, and the others share the rest by their densities.

    Args:
        compared: The hypotheses, of which the first has a residual.

    Returns:
        Weights (k,), whose sum is the likelihood of the value except for what the gate rejects. The
        log-likelihood is by the hypotheses that accept the value, minus infinity without any.
    """
    total = add_logs([one.prior.weight for one in compared])
    priors = [one.prior.weight - total for one in compared]
    joint, accepted = dict[int, float](), list[float]()
    for k, one in enumerate(compared):
        if one.residual is not None:
            joint[k] = priors[k] + one.log_density
            if one.accepted:
                accepted.append(joint[k])
    share = 0.0  # log-probability of the hypotheses with a density
    if len(joint) < len(compared):
        share = add_logs([priors[k] for k in joint])
    mean_density = add_logs(list(joint.values())) - share
    weights = [joint.get(k, prior + mean_density) for k, prior in enumerate(priors)]
    return weights, add_logs(accepted) - share if accepted else -np.inf


def _find_truncation(
    rules: FilterRules, h: Hypothesis, passed: tuple[str, ...], law: InputLaw
) -> Truncation | None:
    """Return the guard that truncates a hypothesis before a value, None without any.

    A hypothesis before its pending guards is truncated at these. Another is truncated at the guards
    by which others have split off from it, and at those of its last event. The only hypothesis
    stands for both sides of every guard.
    """
    if rules.bound == 1:
        return None
    unfired, fired = (h.pending, ()) if h.pending else (passed, h.fired)
    return find_truncation(rules.model, h.estimate, unfired, fired, law)


def _log_density(
    part: MotionPart, residual: LinearizedResidual, truncation: Truncation | None
) -> float:
    """Return the log-density of a value given a part of a hypothesis, for its weight."""
    found, i = _log_density_with_gate(part.innovation), part.innovation
    # A rejected value has not changed what is known of the guards.
    if truncation is None or not i.accepted:
        return found
    return found + truncation.log_evidence(part.predicted.covariance, residual, i)


def _log_density_with_gate(i: Innovation) -> float:
    """Return the log-likelihood of a value; for one that the gate rejects, that at its limit.

    The NIS is replaced by the gate's limit: the size of an outlier says nothing about the order of
    events, and must not decide between hypotheses.
    """
    return i.log_likelihood if i.accepted else i.log_likelihood + 0.5 * (i.nis - i.limit)


class _EarlyEvent(NamedTuple):
    """A guard that may have fired although the mean has not reached it yet.

    Attributes:
        weight: Log-weight of the hypothesis in which it has fired.
        parent: Index of the hypothesis that splits.
        name: Name of the guard.
    """

    weight: float
    parent: int
    name: str


def _split_before_value(
    rules: FilterRules, hypotheses: Sequence[Hypothesis], law: InputLaw
) -> list[tuple[Hypothesis, tuple[str, ...]]]:
    """Return hypotheses before a value, and those in which guards have fired before the mean.

    The likeliest are tried first, until 2 (bound - 1) of them are found. The hypothesis in which a
    guard has fired is a parent of further ones, in which another guard has fired after it. Of such
    a sequence the last guard has fired only if those before have, so its probability is multiplied
    by theirs.

    Args:
        rules: The rules of the filter.
        hypotheses: The hypotheses, the likeliest first.
        law: Input law.

    Returns:
        The hypotheses, each with the guards that have fired in those that split off from it.
    """
    model, found, waiting = rules.model, list(hypotheses), list[_EarlyEvent]()
    passed: list[list[str]] = [[] for _ in hypotheses]

    def add_guards_within_reach(k: int, weight: float) -> None:
        for name, log_p in find_guards_within_reach(model, found[k].estimate, law):
            waiting.append(_EarlyEvent(weight + log_p, k, name))

    for k, h in enumerate(hypotheses):
        if not h.pending:
            add_guards_within_reach(k, h.weight)
    most = len(hypotheses) + _EARLY_PER_BOUND * (rules.bound - 1)
    while waiting and len(found) < most and not model.late():
        best = max(waiting)
        waiting.remove(best)
        if best.weight < rules.limits.log_split:
            break
        h = found[best.parent]
        start = StatePrediction(h.estimate, transition=identity_map(len(h.estimate.covariance)))
        way = pass_guard_early(model, start, best.name, law)
        if way is not None:
            passed[best.parent].append(best.name)
            passed.append([])
            found.append(_continue(h, way)._replace(log_weight=best.weight))
            add_guards_within_reach(len(found) - 1, best.weight)
    for k, names in enumerate(passed):
        if names:
            # What has split off has the probability that these guards have fired. This one keeps
            # the rest.
            h = found[k]
            left = log_probability_positive(model, h.estimate, names, law)
            found[k] = h._replace(log_weight=h.log_weight + left)
    return list(zip(found, map(tuple, passed), strict=True))


def _end_correction(
    rules: FilterRules, one: _CorrectedHypothesis, law: InputLaw, weight: float
) -> Hypothesis:
    """Return a hypothesis after a value, taken through events that the value has revealed.

    Args:
        rules: The rules of the filter.
        one: The hypothesis corrected by the value.
        law: The input.
        weight: Logarithm of its weight after the value, with the probability of its side of the
            guards as a factor (`Hypothesis.weight`).
    """
    model, h, after = rules.model, one.prior, one.estimate
    # The guards that have not fired here are those that were pending before, or those that have
    # fired in others that split off at this value (`passed`). If the value leaves the mean past one
    # of them, they are pending from here on, and `side` is the log-probability of being before
    # them. If the mean is before all of them, none is pending, and they are only noted as passed.
    side, pending, passed = 0.0, h.pending or one.passed, one.passed
    if pending and are_positive_at_mean(model, after, pending, law):
        pending, passed = (), pending
    elif pending:
        side = max(log_probability_positive(model, after, pending, law), _MIN_LOG_SIDE)
    way = reconcile(model, after, law, pending)
    reconciliation, notes = None, h.notes + way.notes
    if way.events:
        reconciliation = Reconciliation(after.mean, after.covariance, way.transition)
        if rules.bound == 1:
            notes += note_ambiguous_event(model, after, way.events[0], (after.time,), law)
        # Another guard has taken it out of the mode that has the pending ones.
        if pending and way.estimate.mode != after.mode:
            side, pending = 0.0, ()
    return Hypothesis(
        way.estimate,
        weight - side,
        side,
        pending,
        h.parent,
        h.estimate,
        h.transition,
        h.events + way.events,
        notes,
        reconciliation,
        one.innovation,
        passed=passed,
        fired=way.events[-1].guards if way.events else h.fired,
        begun=h.begun,
    )


def apply_contact_signal(
    rules: FilterRules, hypotheses: Sequence[Hypothesis], channel: str, value: Array, law: InputLaw
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses after a value of a contact signal that are kept.

    In each, the signal decides the mode: nothing is pending any more, the probability of its side
    of guards becomes part of its weight, and `fired` is cleared. `predicted` is set to the estimate
    before the signal. `reconciliation` is set to its mean and covariance with the map of the change
    of mode, or to None if there is no event; events and notes of the change are added. The value
    has no density. Weights of several hypotheses change as they merge or are dropped, and are then
    normalized; the weight of a single one is not.

    Args:
        rules: The rules of the filter.
        hypotheses: Hypotheses before the value.
        channel: Name of the signal.
        value: The value (1,).
        law: The input.
    """
    found = []
    for h in hypotheses:
        e = h.estimate
        p = rules.signals[channel].change_mode(rules.model, e, value, law)
        passed = Reconciliation(e.mean, e.covariance, p.transition) if p.events else None
        events, notes = (*h.events, *p.events), (*h.notes, *p.notes)
        after = h._replace(estimate=p.estimate, events=events, notes=notes)
        found.append(
            after._replace(
                log_weight=h.weight, predicted=e, reconciliation=passed, pending=(), side=0.0,
                fired=(),
            )
        )  # fmt: skip
    if len(found) == 1:
        return tuple(found)
    return merge_and_prune(rules, found, None, add_logs([h.weight for h in found]))
