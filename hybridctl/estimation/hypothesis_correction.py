"""The correction of several hypotheses by a value: which of them explain it, and what it reveals.

See `event_hypotheses` for the policy. What a value makes negligible is dropped before its moments
are corrected and its events are followed, which takes most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.deadline import CORRECTION, NO_TIME_LEFT
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.event_hypotheses import (
    ORDERS_CUT,
    add_note,
    continue_hypothesis,
    has_enough,
    note_dropped,
)
from hybridctl.estimation.filter_state import FilterRules, Hypothesis, Reconciliation
from hybridctl.estimation.guard_probabilities import (
    Truncation,
    are_positive_at_mean,
    can_split_belief,
    find_guards_within_reach,
    find_truncation,
    log_complement,
    log_probability_positive,
    note_ambiguous_event,
)
from hybridctl.estimation.hypothesis_weights import has_agreement, merge_and_prune
from hybridctl.estimation.kalman_equations import (
    Innovation,
    StatePrediction,
    correct,
    identity_map,
)
from hybridctl.estimation.measurement import LinearizedResidual
from hybridctl.estimation.mode_consistency import pass_guard_early, reconcile
from hybridctl.estimation.unmodelled_motion import (
    MotionPart,
    add_logs,
    has_disturbances,
    join_motion,
    split_motion,
)
from hybridctl.hybrid.laws import InputLaw

_PARTS_CUT = f"the likeliest disturbance alone was followed: {NO_TIME_LEFT}"
"""Note of a hypothesis of whose kinds of motion the deadline has left one."""
_MIN_LOG_SIDE = -1e4
"""Least `Hypothesis.side`: logarithm of the probability of being before the pending guards.

A hypothesis stores log_weight = weight - side, and its weight is read as log_weight + side. A far
lower side would take the digits of the weight; at this one they are rounded by some 1e-12."""


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
        return tuple(_end_correction(rules, one, law, weight))
    if rules.bound == 1:
        (h,) = hypotheses
        single = _compare_by_residual(rules, h, (), first, channel, law)
        weight = h.weight + single.log_density
        return tuple(_end_correction(rules, _correct(rules, single), law, weight))
    compared, deadline = list[_ComparedHypothesis](), rules.model.deadline
    split = _split_before_value(rules, hypotheses, law)
    for k, (h, passed) in enumerate(split):
        if k and not deadline.has_time_for(*CORRECTION):
            prior = note_dropped(compared[0].prior, len(split) - k, len(split))
            compared[0] = compared[0]._replace(prior=prior)
            break
        with deadline.measure("value"):
            own = _compare(rules, h, passed, channel, value, law, None if k else first)
        if own is not None:
            compared.append(own)
    if len(compared) == 1:  # its probability is one
        found = _end_correction(rules, _correct(rules, compared[0]), law, 0.0)
        return tuple(found) if len(found) == 1 else merge_and_prune(rules, found, None, 0.0)
    weights, log_likelihood = _weigh_by_value(compared)
    found = _correct_likeliest(rules, compared, weights, law)
    return merge_and_prune(rules, found, log_likelihood, 0.0)


def _correct_likeliest(
    rules: FilterRules,
    compared: Sequence[_ComparedHypothesis],
    weights: Sequence[float],
    law: InputLaw,
) -> list[Hypothesis]:
    """Return the hypotheses after a value, the likeliest first, as far as there is time for them.

    It ends with as many as are kept, not counting those that agree with a likelier one. Those after
    them need no moments and no events, which take most of the time. One of them that would agree
    with a hypothesis that is kept counts as dropped.

    Args:
        rules: The rules of the filter.
        compared: The hypotheses, compared with the value.
        weights: Logarithms of their weights after the value, which sum to one.
        law: The input.
    """
    found, distinct, deadline = list[Hypothesis](), list[Hypothesis](), rules.model.deadline
    least = max(weights) + rules.limits.log_weight
    order = sorted(range(len(compared)), key=lambda k: -weights[k])
    order = [k for k in order if not weights[k] < least]
    for done, k in enumerate(order):
        if sum(other.weight >= weights[k] for other in distinct) >= rules.bound:
            break
        if done and not deadline.has_time_for("correction"):
            found[0] = note_dropped(found[0], len(order) - done, len(order))
            break
        with deadline.measure("correction"):
            one = _correct(rules, compared[k])
            ended = _end_correction(rules, one, law, weights[k])
        found += ended
        for h in ended:
            if not any(has_agreement(rules.model, other, h) for other in distinct):
                distinct.append(h)
    return found


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
    def is_accepted(self) -> bool:
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


def _correct(rules: FilterRules, one: _ComparedHypothesis) -> _CorrectedHypothesis:
    """Return a hypothesis after a value; without a residual its estimate stays as it is.

    Of its kinds of motion the likeliest alone is corrected where there is no time for all.
    """
    h = one.prior
    if one.residual is None:
        return _CorrectedHypothesis(h, one.passed, h.estimate, None)
    parts = one.parts, one.log_weights, one.residual
    deadline, several = rules.model.deadline, len(one.parts) > 1
    if several and deadline.has_time_for("disturbances"):
        with deadline.measure("disturbances"):
            before, after, innovation = join_motion(rules, *parts)
    else:
        h = add_note(h, _PARTS_CUT) if several else h
        before, after, innovation = join_motion(rules, *parts, only_likeliest=True)
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
        Weights (k,), which sum to one. The log-likelihood is by the hypotheses that accept the
        value, minus infinity without any.
    """
    total = add_logs([one.prior.weight for one in compared])
    priors = [one.prior.weight - total for one in compared]
    joint, accepted = dict[int, float](), list[float]()
    for k, one in enumerate(compared):
        if one.residual is not None:
            joint[k] = priors[k] + one.log_density
            if one.is_accepted:
                accepted.append(joint[k])
    share = 0.0  # log-probability of the hypotheses with a density
    if len(joint) < len(compared):
        share = add_logs([priors[k] for k in joint])
    mean_density = add_logs(list(joint.values())) - share
    weights = [joint.get(k, prior + mean_density) for k, prior in enumerate(priors)]
    total = add_logs(weights)
    log_likelihood = add_logs(accepted) - share if accepted else -np.inf
    return [w - total for w in weights], log_likelihood


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

    The likeliest are tried first, as long as they are followed (`has_enough`) and there is time
    beside that for correcting those that there are; a note says where there is none. The hypothesis
    in which a guard has fired is a parent of further ones, in which another guard has fired after
    it. Of such a sequence the last guard has fired only if those before have, so its probability is
    multiplied by theirs.

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
        """Add the guards that hypothesis k of `found`, of a weight, may have met to `waiting`."""
        for name, log_p in find_guards_within_reach(model, found[k].estimate, law):
            waiting.append(_EarlyEvent(weight + log_p, k, name))

    for k, h in enumerate(hypotheses):
        if not h.pending:
            add_guards_within_reach(k, h.weight)
    while waiting:
        best = max(waiting)
        waiting.remove(best)
        if best.weight < rules.limits.log_split or has_enough(
            rules, [h.weight for h in found], best.weight
        ):
            break
        if not model.deadline.has_time_for("early guard", *CORRECTION * (len(found) + 1)):
            found[0] = add_note(found[0], ORDERS_CUT)
            break
        h = found[best.parent]
        start = StatePrediction(h.estimate, transition=identity_map(len(h.estimate.covariance)))
        with model.deadline.measure("early guard"):
            way = pass_guard_early(model, start, best.name, law)
        if way is not None:
            passed[best.parent].append(best.name)
            passed.append([])
            found.append(continue_hypothesis(h, way)._replace(log_weight=best.weight))
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
) -> list[Hypothesis]:
    """Return a hypothesis after a value, taken through events that the value has revealed.

    The value leaves open whether the first of these has happened. Of several orders, that in which
    it has not is a hypothesis too, if it is likely enough.

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
    unfired = Hypothesis(
        estimate=after,
        log_weight=weight - side,
        side=side,
        pending=pending,
        parent=h.parent,
        predicted=h.estimate,
        transition=h.transition,
        events=h.events,
        notes=h.notes,
        innovation=one.innovation,
        passed=passed,
        fired=h.fired,
        begun=h.begun,
    )
    if not way.events:
        return [unfired._replace(estimate=way.estimate, notes=h.notes + way.notes)]
    notes, others = h.notes + way.notes, list[Hypothesis]()
    if rules.bound == 1:
        notes += note_ambiguous_event(model, after, way.events[0], (after.time,), law)
    elif model.late():
        notes += (ORDERS_CUT,)
    elif can_split_belief(model.evaluate_at(after, law), way.events[0]):
        overdue = way.events[0].guards
        log_p = log_probability_positive(model, after, overdue, law)
        if weight + log_p > rules.limits.log_split:
            waiting = (*pending, *overdue)
            others.append(unfired._replace(side=side + log_p, pending=waiting))
            weight += log_complement(log_p)
    # Another guard has taken it out of the mode that has the pending ones.
    if pending and way.estimate.mode != after.mode:
        side, pending = 0.0, ()
    fired = unfired._replace(
        estimate=way.estimate,
        log_weight=weight - side,
        side=side,
        pending=pending,
        events=h.events + way.events,
        notes=notes,
        reconciliation=Reconciliation(after.mean, after.covariance, way.transition),
        fired=way.events[-1].guards,
    )
    return [fired, *others]


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
