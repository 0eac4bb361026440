r"""Whether an estimate is lost: when values are believed rather than what rejects them.

A wrong event or a push that the model does not know takes the estimate away from the motion, and
the gate then rejects every value: the filter flies blind. After `patience` rejections in a row of
one channel the estimate is what is in doubt, and two things are tried, one after the other.

*Inflation.* The covariance of the prediction is multiplied by the factor under which the value
becomes most likely, and the value is taken. With R = L L^T, eigenvalues d of
:math:`L^{-1} H P H^T L^{-T}` and the residual's components c along their eigenvectors,

.. math:: \lambda = \arg\max \sum_i -\tfrac12 \Big( \frac{c_i^2}{1 + \lambda d_i}
    + \log(1 + \lambda d_i) \Big), \qquad \text{so} \qquad
    \sum_i \frac{\lambda d_i}{1 + \lambda d_i} \Big( \frac{c_i^2}{1 + \lambda d_i} - 1 \Big) = 0.

For one component, and where R is small, that is the factor that puts the normalized innovation
squared at its mean, the dimension. The limit of the gate would be the least factor that lets the
value in, under which it is as improbable as a value may be: the estimate would go on being far too
sure. A direction that a contact holds has d = 0, and drops out. To the smoother, the inflation is
process noise :math:`(\lambda - 1) P` at that time.

*Restart.* Where no factor explains the value (it differs where a contact holds the state), or two
values in a row are rejected soon after an inflation, the mode is taken to be wrong. The filter
begins anew in a mode without contact, see `Beginning`, from two values in a row alone: past the
guards, so that velocities are known before it is asked which events there are. Of the last
`patience` values the first two are used with which the gate takes more than half of these, and
where there are none, nothing is done. The past does not learn of what comes after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import brentq

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.correct import Innovation, compared
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.hypotheses import Rules, begun, corrected, predicted
from hybridctl.estimation.predict import StatePrediction, extend
from hybridctl.estimation.reconcile import reconcile
from hybridctl.estimation.state import (
    FilterState,
    Hypothesis,
    Input,
    InputPiece,
    Reconciliation,
    Row,
)
from hybridctl.hybrid.laws import InputLaw

_LARGEST = 1e12  # a deviation of a million standard ones; more is a direction that is held
_AGAIN = 2  # rejections in a row soon after an inflation; a single one may be wild


def inflation(spread: Array, noise: Array, residual: Array) -> float:
    """The factor of a covariance, 1 or more, that makes a residual (k,) most likely.

    spread (k, k): H P H^T, the part of the innovation's covariance that the factor multiplies.
    noise (k, k): R. See this module.
    """
    d, vectors = eigh(spread, noise)
    d, c2 = np.maximum(d, 0.0), (vectors.T @ residual) ** 2

    def slope(exponent: float) -> float:
        grown = d * np.exp(exponent)
        return float((grown / (1.0 + grown) * (c2 / (1.0 + grown) - 1.0)).sum())

    longest = float(np.log(_LARGEST))
    if slope(0.0) <= 0.0:
        return 1.0
    if slope(longest) >= 0.0:
        return _LARGEST
    return float(np.exp(brentq(slope, 0.0, longest)))


def monitored(
    rules: Rules, state: FilterState, channel: str, value: Array, given: Input
) -> FilterState:
    """The state after a value, with the value believed where it is the estimate that is wrong.

    state: with the hypotheses after the value, and the rejections before it. given: the input.
    """
    innovation, patience = state.innovation, rules.patience
    if innovation is None or patience is None:
        return state
    kept = max(patience, 2)
    row = Row(state.estimate, channel, value, given)
    rows = (*state.rows.get(channel, ()), row)[-kept:]
    rejections = state.rejections
    if innovation.accepted:
        rejections = rejections.accepting(channel, patience)
    everything = {**state.rows, channel: rows}
    state = state._replace(rows=everything, rejections=rejections, inputs=_asked(state, everything))
    if innovation.accepted:
        return state
    count = state.rejections.rejected.get(channel, 0) + 1
    found = None
    if count >= patience:
        found = _inflated(rules, state, channel, value, given)
    if found is None and (
        count >= patience or (channel in state.rejections.unsure and count >= _AGAIN)
    ):
        found = _restarted(rules, state, rows)
    if found is not None:
        believing = state.rejections.believing(channel)
        return state._replace(hypotheses=(found,), reopened=True, rejections=believing)
    if count >= patience:
        note = f"{channel!r} contradicts the estimate, and is not explained otherwise"
        best, *others = state.hypotheses
        state = state._replace(hypotheses=(best._replace(notes=(*best.notes, note)), *others))
    return state._replace(rejections=state.rejections.rejecting(channel, patience))


def _asked(state: FilterState, rows: Mapping[str, tuple[Row, ...]]) -> tuple[InputPiece, ...]:
    """The inputs of a state that a restart from one of these rows may ask for."""
    first = min([each[0].estimate.time for each in rows.values()])
    if not state.inputs or state.inputs[0].end > first:
        return state.inputs
    return tuple([piece for piece in state.inputs if piece.end > first])


Believed = tuple[Estimate, Estimate, Innovation]


def _inflated(
    rules: Rules, state: FilterState, channel: str, value: Array, given: Input
) -> Hypothesis | None:
    """The likeliest hypothesis with a rejected value taken, if a larger covariance explains it."""
    best, e = state.hypotheses[0], state.predicted
    assert best.innovation is not None
    law = rules.model.law(e.mode, given)
    found = _believed(rules, e, best.innovation, channel, value, law)
    if found is None:
        return None
    wide, after, _ = found
    way = reconcile(rules.model, after, law)
    passed = Reconciliation(after.mean, after.covariance, way.transition) if way.events else None
    note = f"{channel!r} is believed, not the estimate that rejects it"
    return Hypothesis(
        way.estimate,
        parent=best.parent,
        predicted=wide,
        transition=best.transition,
        events=(*best.events, *way.events),
        notes=(*best.notes, note, *way.notes),
        reconciliation=passed,
        innovation=best.innovation,
    )


def _believed(
    rules: Rules,
    e: Estimate,
    rejected: Innovation,
    channel: str,
    value: Array,
    law: InputLaw,
) -> Believed | None:
    """The estimate made uncertain enough for a rejected value, and after that value.

    None where no factor of the covariance is enough.
    """
    mode, u = rules.model.system.mode(e.mode), law(e.time, e.mean)
    found = compared(rules.measurements[channel], mode, e, value, u)
    assert found is not None  # it was rejected
    noise = found.covariance
    factor = inflation(rejected.covariance - noise, noise, rejected.residual)
    wide = Estimate(e.mode, e.time, e.mean, factor * e.covariance, e.since)
    taken = rules.corrected(wide, channel, value, law)
    return None if taken is None or not taken[1].accepted else (wide, *taken)


def _restarted(rules: Rules, state: FilterState, rows: Sequence[Row]) -> Hypothesis | None:
    """An estimate made anew from some of the last rows of a channel; None where there is none."""
    channel, left = rows[-1].channel, state.predicted.mode
    for k in range(len(rows) - 1):
        try:
            steps = _anew(rules, state, rows[k:])
        except (SimulationError, np.linalg.LinAlgError):
            continue
        taken = sum(s.innovation is not None and s.innovation.accepted for s in steps)
        if not steps or 2 * (1 + taken) <= len(rows):
            continue
        note = f"{channel!r} is believed, and mode {left!r} is not: begun anew"
        return steps[-1]._replace(
            log_weight=0.0,
            parent=0,
            events=tuple(event for s in steps for event in s.events),
            notes=(note, *(note for s in steps for note in s.notes)),
            transition=None,
            reconciliation=None,
            innovation=state.innovation,
            undone=rows[k].estimate.time,
        )
    return None


def _anew(rules: Rules, state: FilterState, rows: Sequence[Row]) -> list[Hypothesis]:
    """Hypotheses begun from the first two rows: the likeliest after the second and each later one.

    Empty where the two do not tell the state, or it has another size in the mode of the beginning.
    """
    begin, first, model = state.beginning, rows[0].estimate, rules.model
    sizes = [model.system.mode(e.mode).space.nx for e in (first, begin)]
    if sizes[0] != sizes[1]:
        return []
    now = Estimate(begin.mode, first.time, first.mean, begin.covariance)
    for row in rows[:2]:
        onward = _past_guards(rules, state.inputs, now, row.estimate.time)
        if onward is None:
            return []
        law = model.law(onward.mode, row.input)
        taken = rules.corrected(onward, row.channel, row.value, law)
        if taken is None:
            return []
        believed: Believed | None = (onward, *taken)
        if not taken[1].accepted:
            believed = _believed(rules, onward, taken[1], row.channel, row.value, law)
        if believed is None:
            return []
        before, now, innovation = believed
    found = reconcile(model, now, law)
    steps: tuple[Hypothesis, ...] = (
        Hypothesis(
            found.estimate,
            predicted=before,
            events=found.events,
            notes=found.notes,
            innovation=innovation,
        ),
    )
    best = list(steps)
    for row in rows[2:]:
        steps = begun(steps)
        for piece in _between(state.inputs, steps[0].estimate.time, row.estimate.time):
            law = model.law(steps[0].estimate.mode, piece.input)
            steps = predicted(rules, steps, piece.end, law)
        law = model.law(steps[0].estimate.mode, row.input)
        steps = corrected(rules, steps, row.channel, row.value, law)
        best.append(steps[0])
    return best


def _between(pieces: Sequence[InputPiece], start: float, end: float) -> list[InputPiece]:
    """The inputs between two times."""
    return [piece for piece in pieces if start < piece.end <= end]


def _past_guards(
    rules: Rules, pieces: Sequence[InputPiece], estimate: Estimate, end: float
) -> Estimate | None:
    """The estimate at a later time in the same mode; None where there is no way."""
    for piece in _between(pieces, estimate.time, end):
        law = rules.model.law(estimate.mode, piece.input)
        onward = extend(rules.model, StatePrediction(estimate), piece.end, law)
        if onward.kept:
            return None
        estimate = onward.estimate
    return estimate
