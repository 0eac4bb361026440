r"""Policy for several orders of events: how hypotheses split, are weighed, merge and are dropped.

A hypothesis is a normal distribution that follows one order of events. To first order it does so
also where the mean has its events at another time: along extended arcs, past a guard that is still
to fire, or back from an event that is still to come. A guard is *pending* in a hypothesis if it has
not fired there, whatever its value at the mean. Besides the hypothesis itself, the belief gets

- at each event of a prediction: one in which the guards of the event are pending, for as long as
  they may not have fired yet, and those in which another guard fires before;
- at each value: one in which a guard has fired that the mean has not reached yet. If the value
  takes the mean of the hypothesis itself past that guard, the guard is pending there from then on;
- at each value that takes the mean past another guard, whose event is then overdue: one in which
  that guard is pending;
- at the end of each prediction of a hypothesis with pending guards: one in which they have fired
  since.

The probability of each comes from the guard's value g and its variance,
:math:`\Phi(\pm g / \sqrt{g_x P g_x^T + \sigma_g^2})`; for the order of two guards, from the
difference of their times. Below `HypothesisLimits.log_split` nothing splits. Orders that are beyond
the likeliest `_UNCORRECTED_PER_BOUND` times the bound are not followed. Weights sum to one before
each value, and are multiplied by the density of the value under each hypothesis, so that the
likelihood of a value integrates to one over the value. In the weights, a value that the gate
rejects counts as one at the gate's limit. A hypothesis in whose mode the value contains nothing
keeps its probability.

Of hypotheses that agree, in mode and within half a standard deviation in every coordinate, the
likelier is kept with both weights; of all, the likeliest `bound`. These are found in the order of
their weights, and the others are not corrected.

Within a hypothesis the motion may have had a disturbance that the model does not contain. Its
density of a value is then a mixture, and its moments are those of all parts, see
`unmodelled_motion`.

With a bound of one only the order of the mean is followed. At each of its events notes say where
the event may lie on the other side of a sample, or behind the event of another guard, with more
than 1 %. The weight of the only hypothesis matters to nothing and is not normalized.

Once a deadline is exceeded (`NoisySystem.late`), nothing splits, and of several hypotheses only the
likeliest is predicted and corrected. Notes say how many were dropped, and where orders of events
were not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hybridctl.base.checks import check_count, check_member
from hybridctl.estimation.deadline import CORRECTION, NO_TIME_LEFT
from hybridctl.estimation.filter_state import (
    FilterRules,
    Hypothesis,
    HypothesisLimits,
    begin_sample,
)
from hybridctl.estimation.guard_probabilities import (
    MIN_LOG_PROBABILITY,
    can_split_belief,
    find_overtaking_guards,
    log_complement,
    log_probability_positive,
    note_ambiguous_event,
    note_overtaking_guards,
)
from hybridctl.estimation.hypothesis_weights import (
    normalize_weights,
    sort_key,
)
from hybridctl.estimation.kalman_equations import (
    StatePrediction,
    identity_map,
)
from hybridctl.estimation.mode_consistency import pass_guard_early, reconcile
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.prediction import extend_past_guards
from hybridctl.estimation.unmodelled_motion import add_logs
from hybridctl.hybrid.laws import InputLaw

Hypotheses = int | Literal["auto"]
"""Largest number of orders of events, or "auto"."""
DEFAULT_HYPOTHESES = 1
"""Number of hypotheses that a filter follows by default."""
_MIN_LOG_WEIGHT = -14.0
"""Logarithm of the weight, relative to the likeliest, below which a hypothesis is dropped: some one
in a million. A choice; with 1e-4 a later height did not revive the side of a bounce
(tests/estimation/test_smoother_orders.py)."""
_AUTO_BOUND = 4
"""Largest number of hypotheses of "auto". With more the cube's poses are hardly more likely."""
_AUTO_LOG_SPLIT = float(np.log(0.05))
"""Logarithm of the least probability of an order of events that "auto" follows. A choice."""
_AUTO_LOG_WEIGHT = float(np.log(0.05))
"""The same of its weight relative to the likeliest, below which "auto" drops it. A choice."""
_UNCORRECTED_PER_BOUND = 2
"""Number of likelier hypotheses, per hypothesis that is kept after a value, from which on another
order is not followed to it. Of up to 22 that poses of a cube were compared with, of which 4 were
kept, those beyond the 8 likeliest before the pose had 3 % of the weight after it."""
ORDERS_CUT = f"other orders of events were not looked for: {NO_TIME_LEFT}"
"""Note of a hypothesis whose other orders of events the deadline has cut."""


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
    return HypothesisLimits(bound, MIN_LOG_PROBABILITY, _MIN_LOG_WEIGHT)


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
        At most twice as many as the bound, the likeliest first, with weights that sum to one.
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
    found, splits, cut = list[Hypothesis](), list[_Split](), 0
    for k, h in enumerate(hypotheses):
        # What is predicted has to be corrected too.
        count = len(found) + len(splits)
        if count and not model.deadline.has_time_for("other order", *CORRECTION * count):
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
        only = not count and h is hypotheses[-1]
        limited = model if only or h is hypotheses[0] else model.with_few_events
        main = first or rules.moments.predict(limited, h.estimate, end, law)
        if main.mode_frozen and limited is not model:
            continue
        if not main.pre_event:
            found.append(continue_hypothesis(h, main))
        elif bound == 1:
            found.append(_continue_with_notes(model, h, main, end, law))
        else:
            splits.append(_Split(h, main))
            found += _wait_at_events(rules, splits[-1], end, law)
    if splits:
        found += _follow_other_orders(rules, splits, found, end, law)
    if not found:
        # All have ended past their pending guards: these fire. The probability of having been
        # before them stays part of the weight.
        freed = [h._replace(log_weight=h.weight, pending=(), side=0.0) for h in hypotheses]
        return predict_hypotheses(rules, freed, end, law, begins_sample=False)
    if bound == 1:
        return tuple(found)
    found.sort(key=sort_key)
    if cut:
        found[0] = note_dropped(found[0], cut, len(hypotheses))
    return tuple(normalize_weights(found[: _UNCORRECTED_PER_BOUND * bound]))


def note_dropped(h: Hypothesis, cut: int, count: int) -> Hypothesis:
    """Return a hypothesis with a note of how many of several the deadline has dropped.

    Args:
        h: The hypothesis.
        cut: Number of those that were dropped.
        count: Number of all.
    """
    return add_note(h, f"{cut} of {count} hypotheses were dropped: {NO_TIME_LEFT}")


def add_note(h: Hypothesis, note: str) -> Hypothesis:
    """Return a hypothesis with one more note."""
    return h._replace(notes=(*h.notes, note))


def continue_hypothesis(h: Hypothesis, way: StatePrediction) -> Hypothesis:
    """Return a hypothesis at the end of a prediction that starts at its estimate.

    Its map, events and notes are those since the last value, before and on the way.

    Args:
        h: The hypothesis before the prediction.
        way: The prediction.
    """
    whole = way.transition
    if h.transition is None:
        whole = None
    elif whole is not None and h.transition is not identity_map(len(h.transition)):
        whole = whole @ h.transition
    events = way.events
    return Hypothesis(
        estimate=way.estimate,
        log_weight=h.log_weight,
        side=h.side,
        pending=h.pending,
        parent=h.parent,
        predicted=None,
        transition=whole,
        events=h.events + events,
        notes=h.notes + way.notes,
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
        if model.late():  # no time is left for notes either
            break
        notes += note_ambiguous_event(model, before.estimate, event, samples, law)
        notes += note_overtaking_guards(model, before.estimate, event, law)
    after = continue_hypothesis(h, main)
    return after._replace(notes=(*notes, *after.notes))


class _Split:
    """A prediction with events, and what splits off from it at these.

    Life cycle: `_wait_at_events` and `_follow_other_orders` add to it what splits off; then
    `end` returns the prediction with the weight that is left.

    Args:
        before: The hypothesis before the prediction.
        main: The prediction.

    Attributes:
        before: The hypothesis before the prediction.
        main: The prediction.
        parts: Log-probabilities of what has split off.
        is_cut: Whether the deadline has left no time for other orders.
    """

    def __init__(self, before: Hypothesis, main: StatePrediction) -> None:
        self.before, self.main = before, main
        self.parts = list[float]()
        self.is_cut = False

    def end(self) -> Hypothesis:
        """Return the hypothesis after the prediction, less likely by all that has split off."""
        whole = continue_hypothesis(self.before, self.main)
        if self.is_cut:
            whole = add_note(whole, ORDERS_CUT)
        left = log_complement(add_logs(self.parts)) if self.parts else 0.0
        return whole._replace(log_weight=self.before.log_weight + left)


def _wait_at_events(
    rules: FilterRules, split: _Split, end: float, law: InputLaw
) -> list[Hypothesis]:
    """Return the hypotheses in which the guards of a prediction's events are still pending.

    Args:
        rules: The rules of the filter.
        split: The prediction, to whose `parts` their log-probabilities are added.
        end: Its time, s.
        law: Input law.
    """
    model, h, found = rules.model, split.before, list[Hypothesis]()
    for before, event in split.main.pair_events():
        # What is predicted has to be corrected too.
        if not model.deadline.has_time_for("other order", *CORRECTION * (len(found) + 1)):
            split.is_cut = True
            break
        if not can_split_belief(model.evaluate_at(before.estimate, law), event):
            continue
        unfired = extend_past_guards(model, before, end, law)
        if unfired.mode_frozen:  # the flow ends past the guards: they cannot be pending there
            continue
        log_p = log_probability_positive(model, unfired.estimate, event.guards, law)
        if h.weight + log_p > rules.limits.log_split:
            split.parts.append(log_p)
            other = continue_hypothesis(h, unfired)
            found.append(other._replace(pending=event.guards, side=h.side + log_p))
    return found


def _follow_other_orders(
    rules: FilterRules,
    splits: Sequence[_Split],
    found: Sequence[Hypothesis],
    end: float,
    law: InputLaw,
) -> list[Hypothesis]:
    """Return predictions with events, and those in which another guard fires first at an event.

    Of these orders the likeliest are followed, as far as there are not so many likelier hypotheses
    that the value would not be compared with them. The weight of a prediction is reduced by the
    weights of all that split off from it.

    Args:
        rules: The rules of the filter.
        splits: The predictions; what splits off is added to their `parts`.
        found: The other hypotheses at the end.
        end: Time of the end, s.
        law: Input law.
    """
    model, deadline, others = rules.model, rules.model.deadline, list[Hypothesis]()
    orders = list[tuple[float, int, int, str]]()
    for i, split in enumerate(splits):
        for k, (before, event) in enumerate(split.main.pair_events()):
            if model.late():  # no time is left for orders either
                split.is_cut = True
                break
            if can_split_belief(model.evaluate_at(before.estimate, law), event):
                ways = find_overtaking_guards(model, before.estimate, event.guards, law)
                orders += [(split.before.log_weight + p, -i, -k, name) for name, p in ways]
    weights = [*(h.weight for h in found), *(split.before.weight for split in splits)]
    for weight, i, k, name in sorted(orders, reverse=True):
        split = splits[-i]
        if not weight > rules.limits.log_split or has_enough(rules, weights, weight):
            break
        if not deadline.has_time_for("other order", *CORRECTION * (len(weights) + 1)):
            split.is_cut = True
            break
        with deadline.measure("other order"):
            way = _predict_overtaken(rules, split.main.pre_event[-k], name, end, law)
        if way is not None:
            split.parts.append(weight - split.before.log_weight)
            others.append(continue_hypothesis(split.before, way)._replace(log_weight=weight))
            weights.append(weight)
    return [*(split.end() for split in splits), *others]


def has_enough(rules: FilterRules, weights: Sequence[float], weight: float) -> bool:
    """Return whether so many hypotheses are likelier than one that it is not followed to a value.

    Args:
        rules: The rules of the filter.
        weights: Log-weights of the others.
        weight: Log-weight of the one.
    """
    return sum(w > weight for w in weights) >= _UNCORRECTED_PER_BOUND * rules.bound


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
    waiting = continue_hypothesis(h, extended)._replace(side=side)
    weight = h.weight + log_complement(side - h.side)
    if weight < rules.limits.log_split:
        return [waiting]
    way = reconcile(model, extended.estimate, law)
    if not way.events:
        return [waiting]
    fired = continue_hypothesis(h, extended.append(way))
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
