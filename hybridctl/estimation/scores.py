r"""The log-likelihood of a record by a filter, with its derivatives by parameters of the model.

With innovations r of covariance S, of the values z that the gate takes,

.. math:: L = \sum_k -\tfrac12 \left( r^T S^{-1} r + \log\det 2 \pi S \right), \qquad
    \partial_i L = \sum_k -\tfrac12 \operatorname{tr} S^{-1} \partial_i S
        - r^T S^{-1} \partial_i r + \tfrac12 r^T S^{-1} (\partial_i S) S^{-1} r,

and their expected information is (Gupta and Mehra, *Computational aspects of maximum likelihood
estimation and reduction in sensitivity function calculations*, IEEE TAC 19, 1974)

.. math:: F_{ij} = \sum_k (\partial_i r)^T S^{-1} \partial_j r
        + \tfrac12 \operatorname{tr} S^{-1} (\partial_i S)\, S^{-1} \partial_j S.

A tangent :math:`(D_i, P_i)` of mean and covariance goes along with the estimate. What is exact,
and what is not:

- The mean through flow and events: :math:`D^+ = \Phi D + \Psi`, with the matrices of
  `parameter_sensitivity`, saltation included. What it takes of the parameters, the derivatives of
  field, guards and resets at one point, are differences of these functions over two models, with
  no error but rounding where they are linear or quadratic (friction, restitution, heights).
- The covariance needs second derivatives of field, guards and resets. One prediction is a function
  of (x, P, p), and :math:`P_i` its central difference along the exact tangent, over one sample;
  so are correction and reconciliation. Errors are of second order in a step of 1e-5 of the
  parameter, and do not grow along the record, as those of differences of whole runs do.
- Where a prediction has no matrix (several guards at once, one map for each order), D is such a
  difference too.
- Where the filter replaces an event without a derivative by something less exact, and notes it
  (orders that matter, rates less certain than their sign, rest after bounces without end), what it
  puts in the place carries the tangent on, and what parameters do in that one sample is left out.

Where one side of a difference goes another way than the estimate (other events, another mode), the
other side alone is used; where both do, the tangent begins anew at zero. There, and where the gate
changes its mind, L has no derivative. The filter keeps one hypothesis. After `patience` values in a
row that the gate rejects it begins anew, from the rows that follow as `first_estimate` does; a
model that gives its own start cannot, and then the rest of the record counts as rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

from hybridctl.checks import Array
from hybridctl.errors import ConstraintViolatedError, HybridctlError, InputError, SimulationError
from hybridctl.estimation.correct import Innovation, correct
from hybridctl.estimation.estimate import Estimate, constrained
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.filters import first_estimate, kalman
from hybridctl.estimation.likelihood import log_range
from hybridctl.estimation.measurement import explicit
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.predict import StatePrediction
from hybridctl.estimation.reconcile import reconcile
from hybridctl.estimation.record import ChannelRow, Record
from hybridctl.estimation.state import FilterState
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.augmentation import ParameterDerivatives
from hybridctl.sensitivity.parameters import parameter_sensitivity
from hybridctl.spaces import Space


class EstimateBranch(NamedTuple):
    """An estimate, and the guards of the events on the way to it."""

    estimate: Estimate
    guards: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, prediction: StatePrediction | FilterState) -> EstimateBranch:
        """The end of a prediction, with its events."""
        return cls(prediction.estimate, tuple(event.guards for event in prediction.events))

    def same_sequence(self, other: EstimateBranch) -> bool:
        """Whether another has come by the same events to the same mode."""
        return (self.estimate.mode, self.guards) == (other.estimate.mode, other.guards)


class Tangent(NamedTuple):
    """Derivatives of an estimate by parameters: mean (ndx, np), covariance (np, ndx, ndx)."""

    mean: Array
    covariance: Array


@dataclass(frozen=True, eq=False)
class Filters:
    """A model and its filter, and both with each parameter a step down and up."""

    models: tuple[FilterModel, ...]
    middle: SaltedKalmanFilter
    sides: tuple[tuple[SaltedKalmanFilter, SaltedKalmanFilter], ...]
    steps: Array
    derivatives: ParameterDerivatives
    settings: FilterSettings
    patience: int | None

    def space(self, key: ModeKey) -> Space:
        """The state space of a mode."""
        return self.middle.model.system.mode(key).space

    def idle(self, estimate: Estimate, tangent: Tangent) -> bool:
        """Whether an estimate that no parameter has touched is in a mode that none touches."""
        noises = [one.model.process_noise for pair in self.sides for one in pair]
        if tangent.mean.any() or tangent.covariance.any() or not _alike(noises):
            return False
        u = np.zeros(self.middle.model.system.mode(estimate.mode).nu)
        return not self.derivatives.field(estimate.mode, estimate.time, estimate.mean, u).any()

    def differences(
        self,
        function: Callable[[SaltedKalmanFilter, Estimate], EstimateBranch],
        estimate: Estimate,
        tangent: Tangent,
        after: EstimateBranch,
    ) -> Tangent:
        """The tangent of a function of filter and estimate, whose value is `after`."""
        space = self.space(estimate.mode)
        means, covariances = [], []
        for i, (h, pair) in enumerate(zip(self.steps.tolist(), self.sides, strict=True)):
            ends = []
            for sign, one in zip((-h, h), pair, strict=True):
                x = space.integrate(estimate.mean, sign * tangent.mean[:, i])
                x = constrained(one.model.system.mode(estimate.mode), x)
                p = estimate.covariance + sign * tangent.covariance[i]
                ends.append(function(one, replace(estimate, mean=x, covariance=p)))
            mean, covariance = difference(self.space(after.estimate.mode), ends, after, h)
            means.append(mean)
            covariances.append(covariance)
        return Tangent(np.array(means).T, np.array(covariances))


def _alike(noises: Sequence[Noise | None]) -> bool:
    """Whether noises are constant and equal."""
    values: list[Any] = [None if noise is None else noise.value for noise in noises]
    if any(callable(value) or isinstance(value, Mapping) for value in values):
        return False
    return all(np.array_equal(value, values[0]) for value in values)


def difference(
    space: Space, ends: Sequence[EstimateBranch], after: EstimateBranch, h: float
) -> tuple[Array, Array]:
    """From the ends a step down and up, those that have come by the events of the middle."""
    down, up = (end if end.same_sequence(after) else after for end in ends)
    width = h * ((down is not after) + (up is not after)) or np.inf
    mean = after.estimate.mean
    first, last = (space.difference(mean, end.estimate.mean) for end in (down, up))
    rise = up.estimate.covariance - down.estimate.covariance
    return (last - first) / width, rise / width


def differences_at_a_point(
    system: HybridSystem,
    sides: Sequence[tuple[HybridSystem, HybridSystem]],
    names: Sequence[str],
    steps: Array,
) -> ParameterDerivatives:
    """Derivatives of field, guards and resets at fixed state and input, from systems on both sides.

    sides: for each parameter, those at a step (np,) down and up. Functions that are linear or
    quadratic in a parameter have no error but rounding.
    """

    def each(values: Callable[[HybridSystem], Array]) -> Array:
        pairs = [(values(a), values(b)) for a, b in sides]
        slopes = [(b - a) / (2.0 * h) for (a, b), h in zip(pairs, steps, strict=True)]
        return np.column_stack(slopes)

    def field(key: ModeKey, t: float, x: Array, u: Array) -> Array:
        return each(lambda s: np.asarray(s.mode(key).field(t, x, u), dtype=np.float64))

    def guards(key: ModeKey, t: float, x: Array, u: Array) -> Array:
        return each(lambda s: np.asarray(s.outgoing(key).guards.values(t, x, u), dtype=np.float64))

    def reset(key: ModeKey, fired: tuple[str, ...], t: float, x: Array, u: Array) -> Array:
        edge = system.outgoing(key).edge(fired)
        if edge is None:
            raise InputError(f"mode {key!r} has no edge for guards {fired}")
        jump = edge.reset(t, x, u)
        after = edge.target if jump.mode is None else jump.mode
        space: Space = system.mode(after).space

        def state(side: HybridSystem) -> Array:
            own = side.outgoing(key).edge(fired)
            assert own is not None
            moved: Array = space.difference(jump.state, own.reset(t, x, u).state)
            return moved

        return each(state)

    return ParameterDerivatives(tuple(names), field, guards, reset)


TOLERANCE = 1e-8  # of flows, unless told: finer than values show, for their differences
STEP = 1e-5  # of a parameter, of differences along its tangent
_LEAST = 1e-3  # size of a parameter that is zero

MakeModel = Callable[[Array], FilterModel]


@dataclass(frozen=True, eq=False)
class RecordScore:
    """One record at given parameters: L, its gradient (np,), and its information (np, np).

    accepted, rejected: values. lost: how often the filter has lost the motion.
    """

    log_likelihood: float
    gradient: Array
    information: Array
    accepted: int
    rejected: int
    lost: int


@dataclass(eq=False)
class _Sums:
    """What a score is made of, value by value."""

    gradient: Array
    information: Array
    log_likelihood: float = 0.0
    accepted: int = 0
    rejected: int = 0
    lost: int = 0

    def accept(self, i: Innovation, by_r: Array, by_s: Array) -> None:
        """Add a value with D_p r (k, np) and D_p S (np, k, k)."""
        inverse = np.linalg.inv(i.covariance)
        weighted, r = inverse @ by_s, inverse @ i.residual
        spread = 0.5 * np.einsum("iab,jba->ij", weighted, weighted)
        self.accepted += 1
        self.log_likelihood += i.log_likelihood
        self.gradient += 0.5 * (r @ by_s @ r - np.trace(weighted, axis1=1, axis2=2)) - r @ by_r
        self.information += by_r.T @ inverse @ by_r + spread


def scores(
    make: MakeModel,
    values: Array,
    names: Sequence[str],
    settings: FilterSettings,
    records: Sequence[Record],
) -> list[RecordScore | None]:
    """The log-likelihood of records at parameters (np,), and its derivatives; see this module.

    make: the model at parameters (np,). settings: gate, warm_up, patience and tolerance are used.
    None for a record with which the filter cannot go on. Raises what `make` raises.
    """
    steps = STEP * np.maximum(np.abs(values), _LEAST)
    moves = steps[:, None] * np.eye(len(values))
    models = [make(values), *(make(values + s) for move in moves for s in (-move, move))]
    fine = TOLERANCE if settings.tolerance is None else settings.tolerance
    plain = replace(settings, hypotheses=1, patience=None, tolerance=fine)
    filters = [kalman(model, plain, gated=False) for model in models]
    pairs = tuple(zip(filters[1::2], filters[2::2], strict=True))
    systems = [(a.model.system, b.model.system) for a, b in pairs]
    derivatives = differences_at_a_point(models[0].system, systems, names, steps)
    both = Filters(tuple(models), filters[0], pairs, steps, derivatives, plain, settings.patience)
    found: list[RecordScore | None] = []
    for record in records:
        try:
            found.append(_along(both, record))
        except (SimulationError, ConstraintViolatedError, np.linalg.LinAlgError):
            found.append(None)
    return found


def _along(filters: Filters, record: Record) -> RecordScore:
    """All of a record, in one go or, where the filter is lost, in several."""
    n = len(filters.steps)
    sums = _Sums(np.zeros(n), np.zeros((n, n)))
    ranges = {name: log_range(series.values) for name, series in record.channels.items()}
    rest: Record | None = record
    while rest is not None:
        estimate, rest, tangent = _begun(filters, rest)
        rest = _until_lost(filters, rest, estimate, tangent, sums, ranges)
    return RecordScore(**vars(sums))


def _begun(filters: Filters, record: Record) -> tuple[Estimate, Record, Tangent]:
    """The first estimate, what is left of the record, and the tangent by those on both sides."""
    starts = [first_estimate(model, filters.settings, record) for model in filters.models]
    first, rest = starts[0]
    ends, space = [EstimateBranch(e) for e, _ in starts[1:]], filters.space(first.mode)
    found = [
        difference(space, ends[2 * i : 2 * i + 2], EstimateBranch(first), h)
        for i, h in enumerate(filters.steps)
    ]
    means, covariances = zip(*found, strict=True)
    return first, rest, Tangent(np.array(means).T, np.array(covariances))


def _until_lost(
    filters: Filters,
    record: Record,
    estimate: Estimate,
    tangent: Tangent,
    sums: _Sums,
    ranges: Mapping[str, float],
) -> Record | None:
    """Take the rows of a record; what is left where the filter is lost and can begin anew."""
    in_a_row, blind = 0, False
    for sample in record.samples():
        unknown = sample.channel in filters.middle.signals or not np.isfinite(sample.value).any()
        if sample.time < estimate.time or unknown:
            continue
        found = None
        if not blind:
            estimate, tangent = _predicted(filters, record, estimate, tangent, sample.time)
            found = _corrected(filters, record, estimate, tangent, sample)
            if found is None:
                continue
            estimate, tangent, innovation, by_r, by_s = found
            if innovation.accepted:
                in_a_row = 0
                sums.accept(innovation, by_r, by_s)
                continue
        in_a_row += 1
        sums.rejected += 1
        sums.log_likelihood += _outlier(filters, sample, ranges)
        if filters.patience is not None and in_a_row == filters.patience:
            sums.lost += 1
            left = record.between(sample.time, np.inf)
            if _enough(filters, left):
                return left
            blind = True
    return None


def _enough(filters: Filters, record: Record) -> bool:
    """Whether a first estimate can be made of a record, with rows after it."""
    model = filters.models[0]
    series = record.channels[model.sensors[0].name]
    complete = np.unique(series.times[np.isfinite(series.values).all(axis=1)])
    return model.start is None and len(complete) > filters.settings.warm_up


def _outlier(filters: Filters, sample: ChannelRow, ranges: Mapping[str, float]) -> float:
    """What a rejected value counts, see `log_likelihoods`."""
    assert filters.settings.gate is not None
    k = explicit(filters.middle.measurements[sample.channel]).dimension
    return float(np.log1p(-filters.settings.gate)) - k * ranges[sample.channel]


def _predicted(
    filters: Filters, record: Record, estimate: Estimate, tangent: Tangent, end: float
) -> tuple[Estimate, Tangent]:
    """Estimate and tangent at a later time, over changes of the input."""
    for t in (*record.input_changes(estimate.time, end).tolist(), end):
        if t <= estimate.time:
            continue
        u = record.input(estimate.time)
        after = filters.middle.predict(estimate, t, u)
        if not after.events and filters.idle(estimate, tangent):
            estimate = after.estimate
            continue

        def predicted(
            one: SaltedKalmanFilter, e: Estimate, t: float = t, u: Any = u
        ) -> EstimateBranch:
            return EstimateBranch.of(one.predict(e, t, u))

        if after.notes:
            moved = _stood_in(after, tangent)
        else:
            moved = filters.differences(predicted, estimate, tangent, EstimateBranch.of(after))
            exact = _mean_by_parameters(filters, estimate, tangent, t, u)
            moved = moved if exact is None else moved._replace(mean=exact)
        estimate, tangent = after.estimate, moved
    return estimate, tangent


def _stood_in(after: StatePrediction | FilterState, tangent: Tangent) -> Tangent:
    """The tangent by the map that the filter itself has put in the place of a derivative."""
    size = len(after.estimate.covariance)
    phi = after.transition
    if phi is None:
        phi = np.zeros((size, len(tangent.mean)))
    return Tangent(phi @ tangent.mean, phi @ tangent.covariance @ phi.T)


def _mean_by_parameters(
    filters: Filters, estimate: Estimate, tangent: Tangent, end: float, u: Array | None
) -> Array | None:
    """Phi D + Psi (ndx+, np) of a prediction; None where it is no plain simulation."""
    model = filters.middle.model
    law = model.law(estimate.mode, u)
    try:
        run = simulate(
            model.system,
            estimate.mode,
            estimate.mean,
            (estimate.time, end),
            law,
            rtol=model.rtol,
            atol=model.atol,
            max_events=model.max_events,
        )
        by = parameter_sensitivity(model.system, run, filters.derivatives)
        whole = by.linearization.state_transition
    except HybridctlError:
        return None
    n = tangent.mean.shape[1]
    return np.asarray(whole[:-n, :-n] @ tangent.mean + whole[:-n, -n:])


def _corrected(
    filters: Filters, record: Record, estimate: Estimate, tangent: Tangent, sample: ChannelRow
) -> tuple[Estimate, Tangent, Innovation, Array, Array] | None:
    """After a value: estimate, tangent, innovation, D_p r (k, np) and D_p S (np, k, k)."""
    u = record.input(sample.time)
    innovations: list[Innovation] = []

    def updated(one: SaltedKalmanFilter, e: Estimate) -> EstimateBranch:
        law = one.model.law(e.mode, u)
        mode = one.model.system.mode(e.mode)
        found = correct(
            one.measurements[sample.channel], mode, e, sample.value, law(e.time, e.mean)
        )
        if found is None:
            return EstimateBranch(e)
        innovations.append(found[1])
        return EstimateBranch(found[0])

    middle = filters.middle
    after = updated(middle, estimate)
    if not innovations:
        return None
    own = innovations.pop()
    gate = filters.settings.gate
    limit = np.inf if gate is None else float(chi2.ppf(gate, own.dimension))
    own = own._replace(limit=limit, accepted=own.nis <= limit)
    moved = filters.differences(updated, estimate, tangent, after)
    width = 2.0 * filters.steps
    by_r = np.array([b.residual - a.residual for a, b in _pairs(innovations)]).T / width
    by_s = np.array([b.covariance - a.covariance for a, b in _pairs(innovations)])
    by_s /= width[:, None, None]
    if not own.accepted:
        return estimate, tangent, own, by_r, by_s

    def reconciled(one: SaltedKalmanFilter, e: Estimate) -> EstimateBranch:
        return EstimateBranch.of(reconcile(one.model, e, one.model.law(e.mode, u)))

    inside = reconcile(middle.model, after.estimate, middle.model.law(estimate.mode, u))
    if inside.notes:
        moved = _stood_in(inside, moved)
    elif inside.estimate is not after.estimate:
        moved = filters.differences(reconciled, after.estimate, moved, EstimateBranch.of(inside))
    return inside.estimate, moved, own, by_r, by_s


def _pairs(innovations: Sequence[Innovation]) -> list[tuple[Innovation, Innovation]]:
    return list(zip(innovations[::2], innovations[1::2], strict=True))
