r"""Likely orders of modes and events: how hypotheses part at events, are weighed, and agree.

A hypothesis is a normal distribution that goes on along one order of events, to first order also
where the mean has them at another time: along the extended arcs, past a guard that is still to fire
or back from an event that is still to come. From one hypothesis others part

- at each event of a prediction, with the guards of the event *pending*, for as long as they may not
  have fired yet; and with another guard that may have fired *before*;
- at each value, with a guard that the mean has not reached yet, fired *ahead*; where the value
  takes the mean past that guard, it is pending from there on;
- from one whose guards are pending, at the end of each prediction, with these fired since.

The probability of each comes from the guard's value g and its variance,
:math:`\Phi(\pm g / \sqrt{g_x P g_x^T + \sigma_g^2})`; for the order of two guards, from the
difference of their times. Below `LEAST` nothing parts. Weights sum to one before each value, and
are multiplied by the density of the value under each hypothesis, so that the likelihood of a value
integrates to one over the value. In the weights, a value that the gate rejects counts as one at the
gate's limit. Of hypotheses that agree, in mode and within half a deviation in every coordinate, the
likelier is kept with both weights, and of all the likeliest `bound`. With a bound of one there is
the mean's own order alone, and notes say where another has more than `chances.DOUBT`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.chances import (
    LEAST,
    astride,
    chance_before,
    contrary,
    find_truncation,
    inside,
    may_part,
    overtaking,
    within_reach,
)
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.correct import Compared, Innovation, correct_by_residual
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import AnyMeasurement, LinearizedResidual
from hybridctl.estimation.model import Model
from hybridctl.estimation.predict import StatePrediction, extend, identity
from hybridctl.estimation.pruning import by_weight, kept_of, normalize_weights
from hybridctl.estimation.reconcile import ahead, reconcile
from hybridctl.estimation.state import Beginning, FilterState, Hypothesis, Reconciliation
from hybridctl.hybrid.laws import InputLaw

HYPOTHESES = 1  # by default
_UNTRIED = 4  # times as many as are kept, before a value has been compared with them
_LOOKS = 2  # at hypotheses that have passed a guard, for each that is kept beside the first
_LEAST_SIDE = -1e4
"""Least logarithm of `Hypothesis.side`: rounding of weight - side + side is 1e-12 there."""

Corrected = tuple[Estimate, Innovation]
Predict = Callable[[Model, Estimate, float, InputLaw], StatePrediction]


class MomentRule(NamedTuple):
    """How an estimate is predicted, and a value linearised: to first order, or by sigma points."""

    predict: Predict
    compare: Compared


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules by which a filter predicts, corrects, parts and drops its hypotheses.

    See `SaltedKalmanFilter`.
    """

    model: Model
    moments: MomentRule
    measurements: Mapping[str, AnyMeasurement]
    signals: Mapping[str, ContactSignal]
    bound: int
    patience: int | None
    beginning: Beginning | None

    def start(self, estimate: Estimate) -> FilterState:
        """The state in which a run from an estimate begins."""
        beginning = self.beginning or Beginning(estimate.mode, estimate.covariance)
        return FilterState(estimate.time, begun([Hypothesis(estimate)]), beginning)

    def linearize_residual(
        self, e: Estimate, channel: str, value: Array, law: InputLaw
    ) -> LinearizedResidual | None:
        """Return the residual of a value, linearised at an estimate.

        Args:
            e: Estimate before the value.
            channel: Name of the measurement.
            value: The value (m,). Components that are NaN are missing.
            law: Input law, which is evaluated at the estimate.

        Returns:
            The residual with its Jacobian and covariance, None if the value is missing or contains
            nothing about the estimate's mode.

        Raises:
            InputError: The value, a Jacobian or a covariance has a wrong size.
        """
        mode, u = self.model.system.mode(e.mode), law(e.time, e.mean)
        return self.moments.compare(self.measurements[channel], mode, e, value, u)

    def corrected_by(self, e: Estimate, channel: str, found: LinearizedResidual) -> Corrected:
        """Return an estimate after a value with a given residual, and the innovation.

        Args:
            e: Estimate before the value.
            channel: Name of the measurement.
            found: The residual of the value with its Jacobian and covariance.

        Returns:
            The estimate, which stays as it is if the gate rejects the innovation, and the
            innovation.

        Raises:
            SimulationError: The covariance of the innovation is not positive definite.
        """
        mode = self.model.system.mode(e.mode)
        return correct_by_residual(self.measurements[channel], mode, e, found)

    def corrected(self, e: Estimate, channel: str, value: Array, law: InputLaw) -> Corrected | None:
        """Return an estimate after a value (m,), and the innovation; None where it is missing."""
        found = self.linearize_residual(e, channel, value, law)
        return None if found is None else self.corrected_by(e, channel, found)


def begun(hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Hypotheses just after a value, as those that the next sample begins with."""
    return tuple(
        Hypothesis(
            h.estimate,
            h.log_weight,
            h.side,
            h.pending,
            k,
            None,
            identity(len(h.estimate.covariance)),
            fired=h.fired,
        )
        for k, h in enumerate(hypotheses)
    )


def predicted(
    rules: Rules, hypotheses: Sequence[Hypothesis], end: float, law: InputLaw
) -> tuple[Hypothesis, ...]:
    """Hypotheses at a later time, and those that part from them at events on the way."""
    found = list[Hypothesis]()
    for h in hypotheses:
        if h.pending:
            start = StatePrediction(h.estimate, transition=identity(len(h.estimate.covariance)))
            passed = extend(rules.model, start, end, law)
            if not passed.kept:
                found += _waited(rules.model, h, passed, law)
            continue
        alone = not found and h is hypotheses[-1]
        model = rules.model if alone or h is hypotheses[0] else rules.model.impatient
        main = rules.moments.predict(model, h.estimate, end, law)
        if main.kept and model is not rules.model:
            continue
        if not main.befores:
            found.append(_gone(h, main))
        elif rules.bound == 1:
            samples, pairs = (h.estimate.time, end), zip(main.befores, main.events, strict=False)
            said = [astride(rules.model, b.estimate, v, samples, law) for b, v in pairs]
            gone = _gone(h, main)
            found.append(gone._replace(notes=(*chain(*said), *gone.notes)))
        else:
            found += _parted(rules, h, main, end, law)
    if not found:  # all were past their guards, where the simulation does not go on
        freed = [h._replace(log_weight=h.weight, pending=(), side=0.0) for h in hypotheses]
        return predicted(rules, freed, end, law)
    if rules.bound == 1:
        return tuple(found)
    found.sort(key=by_weight)
    return tuple(normalize_weights(found[: _UNTRIED * rules.bound]))


def corrected(
    rules: Rules, hypotheses: Sequence[Hypothesis], channel: str, value: Array, law: InputLaw
) -> tuple[Hypothesis, ...]:
    r"""Return the hypotheses after a value of a measurement that are kept, the likeliest first.

    With weights w before the value that sum to one, and a density :math:`p_h` of the value for each
    hypothesis, the likelihood of the value is :math:`\sum_h w_h p_h(y)`, which integrates to one.
    The density of a hypothesis is :math:`N(r; 0, S)`, times what `Truncation.log_evidence` says.
    Hypotheses whose gate rejects the value have no part in this sum, as theirs is the density of an
    outlier; with the gate's other values it integrates to less than one.

    Args:
        rules: The rules of the filter.
        hypotheses: Hypotheses before the value.
        channel: Name of the measurement.
        value: The value (m,).
        law: The input.
    """
    first = rules.linearize_residual(hypotheses[0].estimate, channel, value, law)
    if first is None:
        return tuple(h._replace(predicted=h.estimate) for h in hypotheses)
    if rules.bound == 1:
        (h,) = hypotheses
        after, innovation = rules.corrected_by(h.estimate, channel, first)
        weight = h.weight + _evidence(innovation)
        return (_settled(rules, _Updated(h, (), first, after, innovation), law, weight),)
    updated = list[_Updated]()
    for k, (h, passed) in enumerate(zip(*_early(rules, hypotheses, law), strict=True)):
        own = _update_one(rules, h, passed, channel, value, law, None if k else first)
        if own is not None:
            updated.append(own)
    if len(updated) == 1:
        return (_settled(rules, updated[0], law, 0.0),)  # its probability is one
    total = float(logsumexp([one.prior.weight for one in updated]))
    weights = [one.prior.weight - total + _log_density(rules, one, law) for one in updated]
    taken = [w for one, w in zip(updated, weights, strict=True) if one.innovation.accepted]
    found = [_settled(rules, one, law, w) for one, w in zip(updated, weights, strict=True)]
    return kept_of(rules.model, rules.bound, found, float(logsumexp(taken)) if taken else -np.inf)


class _Updated(NamedTuple):
    """A hypothesis that was corrected by a value, without regard to the others.

    Attributes:
        prior: The hypothesis before the value.
        passed: Guards that are positive in this hypothesis, and that have fired in others that
            have parted from it.
        residual: Residual of the value, linearised.
        estimate: Estimate after the value.
        innovation: Innovation of the value.
    """

    prior: Hypothesis
    passed: tuple[str, ...]
    residual: LinearizedResidual
    estimate: Estimate
    innovation: Innovation


def _update_one(
    rules: Rules,
    h: Hypothesis,
    passed: tuple[str, ...],
    channel: str,
    value: Array,
    law: InputLaw,
    residual: LinearizedResidual | None,
) -> _Updated | None:
    """Return a hypothesis after a value; None where it has run away, which ends it alone.

    Args:
        rules: The rules of the filter.
        h: The hypothesis before the value.
        passed: As in `_Updated`.
        channel: Name of the measurement.
        value: The value (m,).
        law: The input.
        residual: Residual of the likeliest hypothesis; its correction may raise, which ends the
            filter. None for the others, of which an error ends only that hypothesis.
    """
    if residual is not None:
        return _Updated(h, passed, residual, *rules.corrected_by(h.estimate, channel, residual))
    with suppress(SimulationError):
        found = rules.linearize_residual(h.estimate, channel, value, law)
        if found is not None:
            return _Updated(h, passed, found, *rules.corrected_by(h.estimate, channel, found))
    return None


def _log_density(rules: Rules, one: _Updated, law: InputLaw) -> float:
    """Return the log-density of a value given a hypothesis, for its weight.

    A hypothesis before its pending guards is cut off at these. Another is cut off at the guards by
    which others have parted from it, and at those of its last event.
    """
    found, h = _evidence(one.innovation), one.prior
    if not one.innovation.accepted:
        return found  # the value has not changed what is known of the guards
    unfired, fired = (h.pending, ()) if h.pending else (one.passed, h.fired)
    cut = find_truncation(rules.model, h.estimate, unfired, fired, law)
    if cut is not None:
        found += cut.log_evidence(h.estimate.covariance, one.residual, one.innovation)
    return found


def signalled(
    rules: Rules, hypotheses: Sequence[Hypothesis], channel: str, value: Array, law: InputLaw
) -> tuple[Hypothesis, ...]:
    """Hypotheses after a signal of contact."""
    found = []
    for h in hypotheses:
        e = h.estimate
        p = rules.signals[channel].applied(rules.model, e, value, law)
        passed = Reconciliation(e.mean, e.covariance, p.transition) if p.events else None
        events, notes = (*h.events, *p.events), (*h.notes, *p.notes)
        after = h._replace(estimate=p.estimate, events=events, notes=notes)
        found.append(
            after._replace(
                log_weight=h.weight, predicted=e, reconciliation=passed, pending=(), side=0.0,
                fired=(),
            )
        )  # fmt: skip
    return tuple(found) if len(found) == 1 else kept_of(rules.model, rules.bound, found, None)


def _gone(h: Hypothesis, way: StatePrediction) -> Hypothesis:
    """The hypothesis at the end of a prediction that began at its estimate."""
    whole = way.transition
    if h.transition is None:
        whole = None
    elif whole is not None and h.transition is not identity(len(h.transition)):
        whole = whole @ h.transition
    events, notes = h.events + way.events, h.notes + way.notes
    return Hypothesis(
        way.estimate,
        h.log_weight,
        h.side,
        h.pending,
        h.parent,
        None,
        whole,
        events,
        notes,
        fired=way.events[-1].guards if way.events else h.fired,
    )


def _parted(
    rules: Rules, h: Hypothesis, main: StatePrediction, end: float, law: InputLaw
) -> list[Hypothesis]:
    """A prediction with events, and what else may have happened at each of them.

    Only the likeliest orders are followed, as many as hypotheses are kept beside the first. The
    weight of the prediction is reduced by their weights.
    """
    model, others, parts = rules.model, list[Hypothesis](), list[float]()
    orders = list[tuple[float, int, str]]()
    for k, (before, event) in enumerate(zip(main.befores, main.events, strict=False)):
        if not may_part(model.at(before.estimate, law), event):
            continue
        late = extend(model, before, end, law)
        if late.kept:
            continue
        chance = chance_before(model, late.estimate, event.guards, law)
        if h.weight + chance > LEAST:
            parts.append(chance)
            others.append(_gone(h, late)._replace(pending=event.guards, side=h.side + chance))
        for name, chance in overtaking(model, before.estimate, event.guards, law):
            orders.append((h.log_weight + chance, k, name))
    for weight, k, name in sorted(orders, reverse=True)[: rules.bound - 1]:
        way = None
        if weight > LEAST:
            way = _overtaken(rules, main.befores[k], name, end, law)
        if way is not None:
            parts.append(weight - h.log_weight)
            others.append(_gone(h, way)._replace(log_weight=weight))
    whole, own = _gone(h, main), contrary(float(logsumexp(parts))) if parts else 0.0
    return [whole._replace(log_weight=h.log_weight + own), *others]


def _waited(
    model: Model, h: Hypothesis, passed: StatePrediction, law: InputLaw
) -> list[Hypothesis]:
    """A hypothesis still before its pending guards, and one past those, if that is likely.

    Another one, for which they had fired at the last value, does not stand for the latter: a value
    may have spoken against that. passed: the way on without their event.
    """
    side = min(chance_before(model, passed.estimate, h.pending, law), h.side)
    waiting, weight = _gone(h, passed)._replace(side=side), h.weight + contrary(side - h.side)
    if weight < LEAST:
        return [waiting]
    way = reconcile(model, passed.estimate, law)
    fired = _gone(h, passed.then(way))._replace(log_weight=weight, side=0.0, pending=())
    return [waiting, fired] if way.events else [waiting]


def _overtaken(
    rules: Rules, before: StatePrediction, name: str, end: float, law: InputLaw
) -> StatePrediction | None:
    """The way on from just before an event, where another guard fires first; None if none can."""
    first = ahead(rules.model, before, name, law)
    if first is None:
        return None
    then = rules.moments.predict(rules.model.impatient, first.estimate, end, law)
    return None if then.kept else first.then(then)


class _Ahead(NamedTuple):
    """A guard that a hypothesis may be past already, and the weight that this has."""

    weight: float
    parent: int
    name: str


def _early(
    rules: Rules, hypotheses: Sequence[Hypothesis], law: InputLaw
) -> tuple[list[Hypothesis], list[tuple[str, ...]]]:
    """Hypotheses, with those that have passed guards before the mean, and what each has not.

    The likeliest first, and no more of them than twice what is kept. That a guard has fired says
    that those before it have, so its own probability counts.
    """
    model, found, waiting = rules.model, list(hypotheses), list[_Ahead]()
    passed: list[list[str]] = [[] for _ in hypotheses]

    def look(k: int, weight: float) -> None:
        for name, chance in within_reach(model, found[k].estimate, law):
            waiting.append(_Ahead(weight + chance, k, name))

    for k, h in enumerate(hypotheses):
        if not h.pending:
            look(k, h.weight)
    most = len(hypotheses) + _LOOKS * (rules.bound - 1)
    while waiting and len(found) < most:
        best = max(waiting)
        waiting.remove(best)
        if best.weight < LEAST:
            break
        h = found[best.parent]
        start = StatePrediction(h.estimate, transition=identity(len(h.estimate.covariance)))
        way = ahead(model, start, best.name, law)
        if way is not None:
            passed[best.parent].append(best.name)
            passed.append([])
            found.append(_gone(h, way)._replace(log_weight=best.weight))
            look(len(found) - 1, best.weight)
    for k, names in enumerate(passed):
        if names:
            # The others have the probability that these guards have fired: the rest remains.
            h = found[k]
            left = chance_before(model, h.estimate, names, law)
            found[k] = h._replace(log_weight=h.log_weight + left)
    return found, [tuple(names) for names in passed]


def _settled(rules: Rules, one: _Updated, law: InputLaw, weight: float) -> Hypothesis:
    """Return a hypothesis after a value, taken through events that the value has brought about.

    Args:
        rules: The rules of the filter.
        one: The hypothesis corrected by the value.
        law: The input.
        weight: Logarithm of its weight after the value, that of its side of guards included.
    """
    model, h, after, innovation = rules.model, one.prior, one.estimate, one.innovation
    side, pending, passed = 0.0, h.pending or one.passed, one.passed
    if pending and inside(model, after, pending, law):
        pending, passed = (), pending
    elif pending:
        side = max(chance_before(model, after, pending, law), _LEAST_SIDE)
    way = reconcile(model, after, law, pending)
    reconciliation, notes = None, (*h.notes, *way.notes)
    if way.events:
        reconciliation = Reconciliation(after.mean, after.covariance, way.transition)
        if rules.bound == 1:
            notes += astride(model, after, way.events[0], (after.time,), law)
        if pending and way.estimate.mode != after.mode:  # by another guard
            side, pending = 0.0, ()
    return Hypothesis(
        way.estimate,
        weight - side,
        side,
        pending,
        h.parent,
        h.estimate,
        h.transition,
        (*h.events, *way.events),
        notes,
        reconciliation,
        innovation,
        passed=passed,
        fired=way.events[-1].guards if way.events else h.fired,
    )


def _evidence(i: Innovation) -> float:
    """The log-likelihood of a value, at the limit of the gate where it is beyond that."""
    return i.log_likelihood if i.accepted else i.log_likelihood + 0.5 * (i.nis - i.limit)
