r"""Policy for a lost estimate: when values are believed instead of the estimate.

A wrong event, or a push that the model does not contain, takes the estimate away from the motion.
The gate then rejects every value, and the filter only predicts. After `patience` rejections in a
row of one channel the estimate is in doubt, and two things are tried, one after the other.

*Inflation.* The covariance of the prediction is multiplied by the factor under which the value
becomes most likely, and the value is accepted. With R = L L^T, eigenvalues d of
:math:`L^{-1} H P H^T L^{-T}` and the residual's components c along their eigenvectors,

.. math:: \lambda = \arg\max \sum_i -\tfrac12 \Big( \frac{c_i^2}{1 + \lambda d_i}
    + \log(1 + \lambda d_i) \Big), \qquad \text{so} \qquad
    \sum_i \frac{\lambda d_i}{1 + \lambda d_i} \Big( \frac{c_i^2}{1 + \lambda d_i} - 1 \Big) = 0.

For one component, and where R is small, that is the factor that puts the normalized innovation
squared at its mean, the dimension. The least factor that passes the gate would put it at the gate's
limit, where the value is as improbable as a value may be: the estimate would stay far too sure. A
direction that a contact constrains has d = 0, and has no part in this. To the smoother the
inflation is process noise :math:`(\lambda - 1) P` at that time.

*Restart.* Where no factor explains the value (it differs where a contact constrains the state), or
two values in a row are rejected soon after an inflation, the mode is taken to be wrong. The filter
restarts in a mode without contact (`Beginning`), from two values in a row only and past all guards,
so that velocities are known before events are looked for. Of the last `patience` values, the first
two are used with which the gate accepts more than half of these; if there are none, nothing is
done. What comes after a restart does not change smoothed estimates before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import brentq

from hybridctl.base.checks import Array
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.deadline import NO_TIME_LEFT
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.event_hypotheses import predict_hypotheses
from hybridctl.estimation.filter_state import (
    FilterRules,
    FilterState,
    Hypothesis,
    Input,
    InputPiece,
    Reconciliation,
    Row,
    begin_sample,
)
from hybridctl.estimation.hypothesis_correction import correct_hypotheses
from hybridctl.estimation.kalman_equations import Innovation, StatePrediction, linearize_residual
from hybridctl.estimation.mode_consistency import reconcile
from hybridctl.estimation.prediction import extend_past_guards
from hybridctl.hybrid.laws import InputLaw

_MAX_INFLATION = 1e12
"""Largest factor of a covariance: a million standard deviations. A direction that needs more is
constrained."""
_REJECTIONS_AFTER_INFLATION = 2
"""Rejections in a row soon after an inflation that cause a restart; a single one may be an
outlier."""

Believed = tuple[Estimate, Estimate, Innovation]
"""Estimate with the inflated covariance, estimate after the value, and innovation of the value."""


def monitor_rejections(
    rules: FilterRules, state: FilterState, channel: str, value: Array, given: Input
) -> FilterState:
    """Return the state after a value, which is believed if the estimate is lost.

    A value that the gate has rejected `patience` times in a row is believed with a wider covariance
    (`_inflate`). If that does not explain it, or it is rejected again soon afterwards, the filter
    restarts, or a note says that the value contradicts the estimate.

    Args:
        rules: The rules of the filter.
        state: State with the hypotheses after the value, and the rejections before it.
        channel: Name of the measurement.
        value: The value (m,).
        given: The input.
    """
    innovation, patience = state.innovation, rules.patience
    if innovation is None or patience is None:
        return state
    row = Row(state.estimate, channel, value, given)
    rows = (*state.rows.get(channel, ()), row)[-max(patience, 2) :]
    rejections = state.rejections
    if innovation.accepted:
        rejections = rejections.count_accepted(channel, patience)
    all_rows = {**state.rows, channel: rows}
    inputs = _keep_needed_inputs(state, all_rows)
    state = state._replace(rows=all_rows, rejections=rejections, inputs=inputs)
    if innovation.accepted:
        return state
    count = state.rejections.rejected.get(channel, 0) + 1
    is_out_of_patience = count >= patience
    believing = _inflate(rules, state, channel, value, given) if is_out_of_patience else None
    is_lost = believing is None and (
        is_out_of_patience
        or (channel in state.rejections.unsure and count >= _REJECTIONS_AFTER_INFLATION)
    )
    if is_lost and rules.model.late():
        # The count goes on, so the next rejected value tries it.
        state = _add_note(state, f"a restart was put off: {NO_TIME_LEFT}")
    elif is_lost:
        believing = _restart(rules, state, rows)
    if believing is not None:
        rejections = state.rejections.count_believed(channel)
        return state._replace(hypotheses=(believing,), reopened=True, rejections=rejections)
    if is_out_of_patience:
        note = f"{channel!r} contradicts the estimate, and is not explained otherwise"
        state = _add_note(state, note)
    return state._replace(rejections=state.rejections.count_rejected(channel, patience))


def _add_note(state: FilterState, note: str) -> FilterState:
    """Return the state with one more note of its likeliest hypothesis."""
    best, *others = state.hypotheses
    return state._replace(hypotheses=(best._replace(notes=(*best.notes, note)), *others))


def compute_inflation(spread: Array, noise: Array, residual: Array) -> float:
    """Return the factor of a covariance, 1 or more, that makes a residual most likely.

    Args:
        spread: H P H^T (k, k), the part of the innovation's covariance that has the factor.
        noise: R (k, k).
        residual: Residual (k,).
    """
    d, vectors = eigh(spread, noise)
    d, c2 = np.maximum(d, 0.0), (vectors.T @ residual) ** 2

    def slope(exponent: float) -> float:
        grown = d * np.exp(exponent)
        return float((grown / (1.0 + grown) * (c2 / (1.0 + grown) - 1.0)).sum())

    longest = float(np.log(_MAX_INFLATION))
    if slope(0.0) <= 0.0:
        return 1.0
    if slope(longest) >= 0.0:
        return _MAX_INFLATION
    return float(np.exp(brentq(slope, 0.0, longest)))


def _keep_needed_inputs(
    state: FilterState, rows: Mapping[str, tuple[Row, ...]]
) -> tuple[InputPiece, ...]:
    """Return the inputs of a state that a restart from one of these rows may need."""
    first = min([each[0].estimate.time for each in rows.values()])
    if not state.inputs or state.inputs[0].end > first:
        return state.inputs
    return tuple([piece for piece in state.inputs if piece.end > first])


def _inflate(
    rules: FilterRules, state: FilterState, channel: str, value: Array, given: Input
) -> Hypothesis | None:
    """Return the likeliest hypothesis with a rejected value accepted, by an inflated covariance.

    Args:
        rules: The rules of the filter.
        state: State after the value.
        channel: Name of the measurement.
        value: The value (m,).
        given: The input.

    Returns:
        The hypothesis, None if no factor of the covariance explains the value.
    """
    best, e = state.hypotheses[0], state.predicted
    assert best.innovation is not None
    law = rules.model.law(e.mode, given)
    found = _correct_inflated(rules, e, best.innovation, channel, value, law)
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


def _correct_inflated(
    rules: FilterRules,
    e: Estimate,
    rejected: Innovation,
    channel: str,
    value: Array,
    law: InputLaw,
) -> Believed | None:
    """Return an estimate with a covariance that is large enough for a rejected value.

    Args:
        rules: The rules of the filter.
        e: Estimate before the value.
        rejected: Innovation of the value, which the gate has rejected.
        channel: Name of the measurement.
        value: The value (m,).
        law: Input law.

    Returns:
        None if no factor of the covariance is enough.
    """
    mode, u = rules.model.system.mode(e.mode), law(e.time, e.mean)
    # Not by `rules.moments`: R of the value alone is needed, and sigma points add to it what their
    # regression leaves of the values.
    found = linearize_residual(rules.measurements[channel], mode, e, value, u)
    assert found is not None  # it was rejected
    noise = found.covariance
    factor = compute_inflation(rejected.covariance - noise, noise, rejected.residual)
    wide = Estimate(e.mode, e.time, e.mean, factor * e.covariance, e.since, e.impacts)
    corrected = rules.correct_estimate(wide, channel, value, law)
    if corrected is None or not corrected[1].accepted:
        return None
    return (wide, *corrected)


def _restart(rules: FilterRules, state: FilterState, rows: Sequence[Row]) -> Hypothesis | None:
    """Return a hypothesis restarted from some of the last rows of a channel.

    Args:
        rules: The rules of the filter.
        state: State after the last row.
        rows: The last rows, in order of time.

    Returns:
        The hypothesis, None if no two rows lead to one that accepts more than half of the rows.
    """
    channel, left = rows[-1].channel, state.predicted.mode
    for k in range(len(rows) - 1):
        try:
            steps = _restart_from_rows(rules, state, rows[k:])
        except (SimulationError, np.linalg.LinAlgError):
            continue  # these rows lead to no estimate: begin at the next one
        # The first row, of which there is no step, counts with those that are accepted.
        accepted = [s.innovation is not None and s.innovation.accepted for s in steps].count(True)
        if not steps or 2 * (1 + accepted) <= len(rows):
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


def _restart_from_rows(
    rules: FilterRules, state: FilterState, rows: Sequence[Row]
) -> list[Hypothesis]:
    """Return the likeliest hypothesis after the second row and after each later one.

    Args:
        rules: The rules of the filter.
        state: State after the last row, which has the inputs.
        rows: At least two rows, in order of time.

    Returns:
        The hypotheses. Empty if the first two rows do not determine the state, or if the state has
        another size in the mode of the restart.
    """
    begin, first, model = state.beginning, rows[0].estimate, rules.model
    sizes = [model.system.mode(e.mode).space.nx for e in (first, begin)]
    if sizes[0] != sizes[1]:
        return []
    now = Estimate(begin.mode, first.time, first.mean, begin.covariance)
    for row in rows[:2]:
        before = _predict_past_guards(rules, state.inputs, now, row.estimate.time)
        if before is None:
            return []
        law = model.law(before.mode, row.input)
        corrected = rules.correct_estimate(before, row.channel, row.value, law)
        if corrected is None:
            return []
        believed: Believed | None = (before, *corrected)
        if not corrected[1].accepted:
            believed = _correct_inflated(rules, before, corrected[1], row.channel, row.value, law)
        if believed is None:
            return []
        before, now, innovation = believed
    inside = reconcile(model, now, law)
    hypotheses: tuple[Hypothesis, ...] = (
        Hypothesis(
            inside.estimate,
            predicted=before,
            events=inside.events,
            notes=inside.notes,
            innovation=innovation,
        ),
    )
    likeliest = list(hypotheses)
    for row in rows[2:]:
        hypotheses = begin_sample(hypotheses)
        for piece in _select_inputs(state.inputs, hypotheses[0].estimate.time, row.estimate.time):
            law = model.law(hypotheses[0].estimate.mode, piece.input)
            hypotheses = predict_hypotheses(rules, hypotheses, piece.end, law, begins_sample=False)
        law = model.law(hypotheses[0].estimate.mode, row.input)
        hypotheses = correct_hypotheses(rules, hypotheses, row.channel, row.value, law)
        likeliest.append(hypotheses[0])
    return likeliest


def _select_inputs(pieces: Sequence[InputPiece], start: float, end: float) -> list[InputPiece]:
    """Return the inputs that end between two times in s."""
    return [piece for piece in pieces if start < piece.end <= end]


def _predict_past_guards(
    rules: FilterRules, pieces: Sequence[InputPiece], estimate: Estimate, end: float
) -> Estimate | None:
    """Return the estimate at a later time of its mode, past its guards; None if there is none."""
    for piece in _select_inputs(pieces, estimate.time, end):
        law = rules.model.law(estimate.mode, piece.input)
        onward = extend_past_guards(rules.model, StatePrediction(estimate), piece.end, law)
        if onward.mode_frozen:
            return None
        estimate = onward.estimate
    return estimate
