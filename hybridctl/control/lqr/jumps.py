r"""Value functions through events: from just after a jump to just before it.

Through an isolated event, with the feedback :math:`\delta u = -K \delta x` at the event,

.. math:: V^- = (G - J K)^T\, V^+ (G - J K), \qquad K = R^{-1} B^T V^-,

which is [Salt] (42) where J = 0. With an input in guard or reset, V- is a fixed point: K is the
limit of the gain before the event, as a gain cannot be had for an instant alone. The fixed point
need not exist, and is no optimum, because an input for a vanishing time costs nothing. If the input
costs for a time h (`lead`), the best gain at the event is

.. math:: K = (h R + J^T V^+ J)^{-1} J^T V^+ G,

which always exists. The gain of the arc is blended into it within the last h, and V is what this
feedback costs.

Where guards fire together the jump is piecewise linear, and the cost is no quadratic form but one
:math:`V_i = (G_i - J_i K)^T V^+ (G_i - J_i K)` for each order of the guards. There are two
treatments:

- `worst`: a form above all :math:`V_i`, by folding :math:`P_1 \vee P_2` over the pieces in the
  order of `PiecewiseLinearJump.pieces`, equal ones once. With :math:`P_1 + P_2 = S S^T` and
  :math:`P_1 = S U D U^T S^T`, it is :math:`S U \max(D, I - D) U^T S^T`. No form below it is above
  both P_1 and P_2. It bounds the cost in every direction.
- `mean`: :math:`c \sum_i w_i V_i`. w_i is the probability of order i for a normal distribution of
  perturbations before the event, of mean zero and given covariance P. c makes
  :math:`\operatorname{tr} V^- P` the mean of the piecewise quadratic cost; c = 1 for two guards.

With a `lead` there is one gain for the event and its phantom modes, the best for the mean of all n
orders,

.. math:: K = (h R + \tfrac1n \sum_i J_i^T V^+ J_i)^{-1}\, \tfrac1n \sum_i J_i^T V^+ G_i,

and :math:`V^-` is what it costs, by the same treatment. So a value exists where inputs jump as two
feet let go, which has none without a lead (test_a_planned_hop_of_two_feet_has_an_lqr).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.linalg import multi_dot
from scipy.linalg import eigh
from scipy.optimize import root

from hybridctl.base.checks import Array, quote
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.sensitivity.moments import sample_normal_points
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump, group_equal_pieces
from hybridctl.sensitivity.saltation import JumpGains
from hybridctl.sensitivity.simultaneous import get_constant_gain

Treatment = Literal["worst", "mean"]
TREATMENTS: tuple[Treatment, ...] = ("worst", "mean")
GainOfValue = Callable[[Array], Array]
"""The gain K (nu, ndx) that belongs to a value V (ndx, ndx)."""

_MEAN_POINTS, _MEAN_SEED = 2**12, 0
"""Quasi-random points of the mean form, and their seed."""
_MAX_FIXED_POINT_SWEEPS = 200
"""Greatest number of sweeps of the fixed-point iteration V -> form(V). A choice."""
_FIXED_POINT_TOLERANCE = 1e-14
"""Change of V in a sweep, relative to its largest entry, at which the iteration ends: rounding."""
_MAX_VALUE_GROWTH = 1e6
"""Ratio of V to its start above which the iteration diverges, and a root finder is taken. A choice.
"""
_ROOT_TOLERANCE = 1e-10
"""Residual form(V) - V, relative to the largest entry of V, that the root finder must reach."""
_FORM_RANK_TOLERANCE = 1e-13
"""Eigenvalue of P_1 + P_2, relative to the largest, up to which both forms are taken to be zero
along its eigenvector: rounding."""


class EventFeedback(NamedTuple):
    """Value and gain just before an event, or in a phantom mode.

    Attributes:
        value: Value V (ndx, ndx).
        gain: Gain K (nu, ndx).
    """

    value: Array
    gain: Array


def compute_instant_feedback(jump: JumpGains, after: Array, weight: Array) -> EventFeedback:
    """Return the best gain at the instant of an event, and the value before it.

    Args:
        jump: First-order map of the event.
        after: Value V+ (ndx, ndx) after the event.
        weight: Weight h R (nu, nu) of the input at the instant.

    Raises:
        InputError: Several inputs do the same, and the weight that tells them apart is lost in
            rounding.
    """
    hessian = weight + jump.input.T @ after @ jump.input
    gain = _solve_for_gain(hessian, jump.input.T @ after @ jump.state)
    return EventFeedback(_transform_form(jump.state - jump.input @ gain, after), gain)


def _solve_for_gain(hessian: Array, mixed: Array) -> Array:
    """Return the gain of a quadratic cost in the input.

    Args:
        hessian: Its second derivatives (nu, nu) by the input.
        mixed: Its derivatives (nu, ndx) by input and state.

    Raises:
        InputError: The second derivatives are singular.
    """
    try:
        return np.asarray(np.linalg.solve(hessian, mixed), dtype=np.float64)
    except np.linalg.LinAlgError as error:
        raise InputError(
            "input_weight must tell inputs apart that do the same, but is lost in rounding beside "
            f"what they do: {quote(hessian.tolist())} is singular"
        ) from error


def compute_value_before(jump: JumpGains, after: Array, gain: GainOfValue) -> Array:
    """Return the value before an isolated event.

    Args:
        jump: First-order map of the event.
        after: Value V+ (ndx, ndx) after the event.
        gain: Gain just before the event, as a function of the value there.

    Raises:
        SimulationError: No value is consistent with its own gain.
    """
    if not jump.input.any():
        return _transform_form(jump.state, after)
    return solve_consistent_value(
        lambda v: _transform_form(jump.state - jump.input @ gain(v), after), after, jump.state
    )


@dataclass(frozen=True, eq=False)
class SimultaneousJump:
    """The value function through an event of several guards.

    Attributes:
        treatment: "worst" or "mean", see this module.
        covariance: Covariance (ndx, ndx) of perturbations before the event for "mean", else None.
    """

    treatment: Treatment
    covariance: Array | None

    def compute_value_before(
        self,
        piecewise: PiecewiseLinearJump,
        after: Array,
        gains: Mapping[frozenset[int], GainOfValue],
    ) -> tuple[Array, dict[frozenset[int], EventFeedback]]:
        """Return the value before the event, and values and gains in phantom modes.

        A phantom mode has the cost of the guards that are left, with the same treatment. Its
        covariance is that before the event, taken through the guards that have fired in the order
        of their declaration.

        Args:
            piecewise: First-order map of the event.
            after: Value V+ (ndx, ndx) after the event.
            gains: Gain as a function of the value, by the guards that have fired: before the event
                (none) and in the phantom modes that a trajectory can be in.

        Returns:
            Value V- (ndx, ndx) before the event, and value and gain of each phantom mode by the
            guards that have fired.

        Raises:
            SimulationError: The input enters a guard or reset, and no value is consistent with its
                own gain.
        """
        n = len(piecewise.guards)
        feedbacks = dict[frozenset[int], EventFeedback]()
        # From the last guard to the first: a phantom mode needs the gains of those that follow it.
        for size in range(n - 1, -1, -1):
            for fired in map(frozenset, combinations(range(n), size)):
                if fired in gains:
                    value = self._compute_value(piecewise, after, fired, gains[fired], feedbacks)
                    feedbacks[fired] = EventFeedback(value, gains[fired](value))
        return feedbacks.pop(frozenset()).value, feedbacks

    def has_input_effect(self, piecewise: PiecewiseLinearJump) -> bool:
        """Return whether the input changes the state after the event in any order of the guards.

        An input that only shifts the times of guards whose fields agree has no effect.
        """
        return any(piece.input.any() for piece in piecewise.pieces())

    def compute_instant_feedback(
        self, piecewise: PiecewiseLinearJump, after: Array, weight: Array
    ) -> EventFeedback:
        """Return one gain for the instant of the event and its phantom modes, and the value before.

        Args:
            piecewise: First-order map of the event.
            after: Value V+ (ndx, ndx) after the event.
            weight: Weight h R (nu, nu) of the input at the instant.

        Raises:
            InputError: Several inputs do the same, and the weight that tells them apart is lost in
                rounding.
        """
        pieces = piecewise.pieces()
        hessian, mixed = weight.copy(), np.zeros((len(weight), piecewise.dimension))
        for piece in pieces:
            pushed = piece.input.T @ after / len(pieces)
            hessian += pushed @ piece.input
            mixed += pushed @ piece.matrix
        gain = _solve_for_gain(hessian, mixed)
        closed = piecewise.with_feedback(partial(get_constant_gain, gain))
        return EventFeedback(self._combine_pieces(closed, after, self.covariance), gain)

    def _compute_value(
        self,
        piecewise: PiecewiseLinearJump,
        after: Array,
        fired: frozenset[int],
        gain: GainOfValue,
        later: Mapping[frozenset[int], EventFeedback],
    ) -> Array:
        """Return the value where some guards have fired.

        Args:
            piecewise: First-order map of the whole event.
            after: Value V+ (ndx, ndx) after the event.
            fired: Guards that have fired.
            gain: Gain there, as a function of the value.
            later: Feedback in the phantom modes where more guards have fired.
        """
        remaining = piecewise.remaining_jump(fired)
        waiting = sorted(set(range(len(piecewise.guards))) - fired)
        covariance = (
            None
            if self.covariance is None
            else _propagate_covariance(piecewise, fired, self.covariance)
        )
        if not _is_input_in_guard_or_reset(remaining):
            return self._combine_pieces(remaining, after, covariance)

        def form(v: Array) -> Array:
            own = gain(v)

            def feedback(then: frozenset[int]) -> Array:
                phantom = later.get(fired | {waiting[i] for i in then})
                return own if not then or phantom is None else phantom.gain

            return self._combine_pieces(remaining.with_feedback(feedback), after, covariance)

        return solve_consistent_value(form, after, remaining.matrix(range(len(waiting))))

    def _combine_pieces(
        self, piecewise: PiecewiseLinearJump, after: Array, covariance: Array | None
    ) -> Array:
        """Return one form (ndx, ndx) for all orders of the guards, by the treatment."""
        if self.treatment == "mean":
            assert covariance is not None
            return compute_mean_form(piecewise, after, covariance)
        worst: Array | None = None
        for group in group_equal_pieces(piecewise.pieces()):
            form = _transform_form(group[0].matrix, after)
            worst = form if worst is None else compute_upper_form(worst, form)
        assert worst is not None
        return worst


def compute_upper_form(first: Array, second: Array) -> Array:
    """Return a least symmetric matrix above two positive semidefinite ones, see `worst` above.

    Args:
        first: Matrix P_1 (n, n).
        second: Matrix P_2 (n, n).
    """
    values, vectors = eigh(first + second)
    nonzero = values > _FORM_RANK_TOLERANCE * max(float(values[-1]), 0.0)
    if not nonzero.any():
        return np.zeros_like(first)
    s = vectors[:, nonzero] * np.sqrt(values[nonzero])
    inverse = vectors[:, nonzero] / np.sqrt(values[nonzero])
    share, axes = eigh(inverse.T @ first @ inverse)
    share = np.clip(share, 0.0, 1.0)  # rounding may leave it outside
    half = s @ axes * np.sqrt(np.maximum(share, 1.0 - share))
    return np.asarray(half @ half.T)


def compute_mean_form(piecewise: PiecewiseLinearJump, after: Array, covariance: Array) -> Array:
    """Return the form c sum_i w_i V_i of this module, by quasi-random points.

    Args:
        piecewise: First-order map of the event.
        after: Value V+ (ndx, ndx) after the event.
        covariance: Covariance P (ndx, ndx) of perturbations before it.
    """
    points = sample_normal_points(covariance, _MEAN_POINTS, _MEAN_SEED)
    passage = piecewise.follow(points)
    orders, counts = np.unique(passage.orders, axis=0, return_counts=True)
    forms = [_transform_form(piecewise.matrix([int(j) for j in order]), after) for order in orders]
    total: Array = np.tensordot(counts / len(points), np.array(forms), 1)
    cost = float(np.einsum("ki,ij,kj->", passage.state, after, passage.state)) / len(points)
    quadratic = float(np.sum(total * covariance))
    return total * (cost / quadratic) if quadratic > 0.0 else total


def solve_consistent_value(form: Callable[[Array], Array], after: Array, jump: Array) -> Array:
    """Return a value V with form(V) = V.

    The iteration V -> form(V) begins at G' V+ G. Where it diverges or does not settle, a root
    finder begins at the same value.

    Args:
        form: Value before the event, of the value whose gain is applied.
        after: Value V+ (ndx, ndx) after the event.
        jump: Matrix G (ndx+, ndx) of the event without feedback.

    Raises:
        SimulationError: No such value is found.
    """
    v = start = _transform_form(jump, after)
    most = _MAX_VALUE_GROWTH * float(np.abs(start).max(initial=0.0))
    for _ in range(_MAX_FIXED_POINT_SWEEPS):
        following = form(v)
        size = float(np.abs(following).max(initial=0.0))
        if size > most:
            break
        change = float(np.abs(following - v).max(initial=0.0))
        v = following
        if change <= _FIXED_POINT_TOLERANCE * size:
            return v
    n = len(start)
    upper = np.triu_indices(n)

    def matrix(entries: Array) -> Array:
        full = np.zeros((n, n))
        full[upper] = entries
        return np.asarray(full + np.triu(full, 1).T)

    with np.errstate(over="ignore", invalid="ignore"):
        solution = root(lambda e: (form(matrix(e)) - matrix(e))[upper], start[upper], tol=1e-13)
    v = matrix(solution.x)
    residual = float(np.abs(form(v) - v).max(initial=0.0))
    if not residual <= _ROOT_TOLERANCE * float(np.abs(v).max(initial=0.0)):
        raise SimulationError(
            "no value function before the event is consistent with its own gain: the input acts "
            f"through guard or reset against what it does on the arc (off by {residual:.3g}); a "
            "larger input weight before the event leads to one"
        )
    return form(v)


def _transform_form(jump: Array, after: Array) -> Array:
    """Return the symmetric form G' V+ G (ndx, ndx)."""
    v = multi_dot([jump.T, after, jump])
    return np.asarray(0.5 * (v + v.T))


def _is_input_in_guard_or_reset(piecewise: PiecewiseLinearJump) -> bool:
    """Return whether the input enters any guard or reset, in any order; it may have no effect."""
    n = len(piecewise.guards)
    return any(
        piecewise.jump(frozenset(fired), j).reset_input.any()
        or piecewise.jump(frozenset(fired), j).time_input.any()
        for size in range(n)
        for fired in combinations(range(n), size)
        for j in set(range(n)) - set(fired)
    )


def _propagate_covariance(
    piecewise: PiecewiseLinearJump, fired: frozenset[int], covariance: Array
) -> Array:
    """Return a covariance (ndx, ndx) after some guards, in the order of their declaration."""
    p, before = covariance, frozenset[int]()
    for j in sorted(fired):
        jump = piecewise.jump(before, j).state
        p, before = jump @ p @ jump.T, before | {j}
    return p
