r"""Value functions through events: from just after a jump to just before it.

Through an isolated event, with the feedback :math:`\delta u = -K \delta x` at the instant,

.. math:: V^- = (G - J K)^T\, V^+ (G - J K), \qquad K = R^{-1} B^T V^-,

[Salt] (42) where J = 0. Elsewhere V- is a fixed point: K is the limit of the gain before the event,
as a gain cannot be had for an instant alone. The fixed point need not exist, and is no optimum: an
input for a vanishing time costs nothing. Given a time h (`lead`) for which it costs, the best gain
at the instant is

.. math:: K = (h R + J^T V^+ J)^{-1} J^T V^+ G,

which always exists; the gain of the arc goes over to it within the last h, and V is what this
feedback costs.

Where guards fire together the jump is piecewise linear and the cost no quadratic form, one
:math:`V_i = (G_i - J_i K)^T V^+ (G_i - J_i K)` for each order. Two treatments are there:

- `worst`: a form above all :math:`V_i`, found by folding :math:`P_1 \vee P_2` over the pieces in
  the order in which `PiecewiseLinearJump.pieces` finds them. With :math:`P_1 + P_2 = S S^T`,
  :math:`P_1 = S U D U^T S^T` it is :math:`S U \max(D, I - D) U^T S^T`: none below it is above
  both P_1 and P_2. It bounds the cost in every direction, whichever order that has.
- `mean`: :math:`c \sum_i w_i V_i` with w_i the probability of order i for a normal distribution of
  deviations before the event, of mean zero and given covariance P, and c such that
  :math:`\operatorname{tr} V^- P` is the mean of the piecewise quadratic cost. c = 1 for two guards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

Treatment = Literal["worst", "mean"]
TREATMENTS: tuple[Treatment, ...] = ("worst", "mean")
GainOf = Callable[[Array], Array]

_POINTS, _SEED = 2**12, 0
_SWEEPS = 200
_SETTLED = 1e-14
_RUNAWAY = 1e6
_SOLVED = 1e-10
_RANK = 1e-13


class EventFeedback(NamedTuple):
    """The matrices V and K just before an event, or where some of its guards have fired."""

    value: Array
    gain: Array


def at_the_instant(jump: JumpGains, after: Array, weight: Array) -> EventFeedback:
    """The best gain for an input that costs du . weight du at the instant, and V before it.

    Raises `InputError` where these do not determine it: inputs that do the same, beside which the
    weight that tells them apart is lost in rounding.
    """
    whole = weight + jump.input.T @ after @ jump.input
    try:
        gain = np.linalg.solve(whole, jump.input.T @ after @ jump.state)
    except np.linalg.LinAlgError as error:
        raise InputError(
            "input_weight must tell inputs apart that do the same, but is lost in rounding beside "
            f"what they do: {quote(whole.tolist())} is singular"
        ) from error
    return EventFeedback(_form(jump.state - jump.input @ gain, after), gain)


def through_jump(jump: JumpGains, after: Array, gain: GainOf) -> Array:
    """The value V before an isolated event for V after it; gain: K for V before it.

    Raises `SimulationError` where no V is consistent with its own gain.
    """
    if not jump.input.any():
        return _form(jump.state, after)
    return consistent(lambda v: _form(jump.state - jump.input @ gain(v), after), after, jump.state)


@dataclass(frozen=True, eq=False)
class Together:
    """A treatment of simultaneous events; covariance (ndx, ndx) before the event for the mean."""

    treatment: Treatment
    covariance: Array | None

    def through(
        self, piecewise: PiecewiseLinearJump, after: Array, gains: Mapping[frozenset[int], GainOf]
    ) -> tuple[Array, dict[frozenset[int], EventFeedback]]:
        """The value V before the event for V after it, and V and K in phantom modes.

        gains: K for V before the event (where no guard has fired) and in those phantom modes that
        a trajectory can be in. A phantom mode has the cost of the guards that are left, treated
        alike; its covariance is that of before the event moved by the guards that have fired, in
        the order of their declaration.
        """
        n, found = len(piecewise.guards), dict[frozenset[int], EventFeedback]()
        for size in range(n - 1, -1, -1):
            for fired in map(frozenset, combinations(range(n), size)):
                if fired in gains:
                    value = self._value(piecewise, after, fired, gains[fired], found)
                    found[fired] = EventFeedback(value, gains[fired](value))
        return found.pop(frozenset()).value, found

    def _value(
        self,
        piecewise: PiecewiseLinearJump,
        after: Array,
        fired: frozenset[int],
        gain: GainOf,
        later: Mapping[frozenset[int], EventFeedback],
    ) -> Array:
        """The value V where `fired` have fired, with the gains of the phantom modes that follow."""
        rest, left = (
            piecewise.remaining_jump(fired),
            sorted(set(range(len(piecewise.guards))) - fired),
        )
        moved = None if self.covariance is None else _moved(piecewise, fired, self.covariance)
        if not _sees_input(rest):
            return self._treated(rest, after, moved)

        def form(v: Array) -> Array:
            own = gain(v)

            def feedback(then: frozenset[int]) -> Array:
                phantom = later.get(fired | {left[i] for i in then})
                return own if not then or phantom is None else phantom.gain

            return self._treated(rest.with_feedback(feedback), after, moved)

        return consistent(form, after, rest.matrix(range(len(left))))

    def _treated(
        self, piecewise: PiecewiseLinearJump, after: Array, covariance: Array | None
    ) -> Array:
        if self.treatment == "mean":
            assert covariance is not None
            return mean_form(piecewise, after, covariance)
        worst: Array | None = None
        for group in group_equal_pieces(piecewise.pieces()):
            form = _form(group[0].matrix, after)
            worst = form if worst is None else above_both(worst, form)
        assert worst is not None
        return worst


def above_both(first: Array, second: Array) -> Array:
    """A least symmetric matrix that is above two positive semidefinite ones, `worst` above."""
    values, vectors = eigh(first + second)
    kept = values > _RANK * max(float(values[-1]), 0.0)
    if not kept.any():
        return np.zeros_like(first)
    root_of = vectors[:, kept] * np.sqrt(values[kept])
    inverse = vectors[:, kept] / np.sqrt(values[kept])
    share, axes = eigh(inverse.T @ first @ inverse)
    share = np.clip(share, 0.0, 1.0)
    half = root_of @ axes * np.sqrt(np.maximum(share, 1.0 - share))
    return np.asarray(half @ half.T)


def mean_form(piecewise: PiecewiseLinearJump, after: Array, covariance: Array) -> Array:
    """The mean form c sum_i w_i V_i of this module, summed over low-discrepancy points."""
    points = sample_normal_points(covariance, _POINTS, _SEED)
    passage = piecewise.follow(points)
    orders, counts = np.unique(passage.orders, axis=0, return_counts=True)
    forms = [_form(piecewise.matrix([int(j) for j in order]), after) for order in orders]
    total: Array = np.tensordot(counts / len(points), np.array(forms), 1)
    cost = float(np.einsum("ki,ij,kj->", passage.state, after, passage.state)) / len(points)
    quadratic = float(np.sum(total * covariance))
    return total * (cost / quadratic) if quadratic > 0.0 else total


def consistent(form: Callable[[Array], Array], after: Array, jump: Array) -> Array:
    """The V with form(V) = V that the iteration from G^T V+ G leads to, or a solver finds near it.

    Raises `SimulationError` where there is none.
    """
    v = start = _form(jump, after)
    most = _RUNAWAY * float(np.abs(start).max(initial=0.0))
    for _ in range(_SWEEPS):
        following = form(v)
        size = float(np.abs(following).max(initial=0.0))
        if size > most:
            break
        change = float(np.abs(following - v).max(initial=0.0))
        v = following
        if change <= _SETTLED * size:
            return v
    n = len(start)
    upper = np.triu_indices(n)

    def matrix(entries: Array) -> Array:
        full = np.zeros((n, n))
        full[upper] = entries
        return np.asarray(full + np.triu(full, 1).T)

    with np.errstate(over="ignore", invalid="ignore"):
        solved = root(lambda e: (form(matrix(e)) - matrix(e))[upper], start[upper], tol=1e-13)
    v = matrix(solved.x)
    off = float(np.abs(form(v) - v).max(initial=0.0))
    if not off <= _SOLVED * float(np.abs(v).max(initial=0.0)):
        raise SimulationError(
            "no value function before the event is consistent with its own gain: the input acts "
            f"through guard or reset against what it does on the arc (off by {off:.3g}); a larger "
            "input weight before the event leads to one"
        )
    return form(v)


def _form(jump: Array, after: Array) -> Array:
    v = multi_dot([jump.T, after, jump])
    return np.asarray(0.5 * (v + v.T))


def _sees_input(piecewise: PiecewiseLinearJump) -> bool:
    n = len(piecewise.guards)
    return any(
        piecewise.jump(frozenset(fired), j).reset_input.any()
        or piecewise.jump(frozenset(fired), j).time_input.any()
        for size in range(n)
        for fired in combinations(range(n), size)
        for j in set(range(n)) - set(fired)
    )


def _moved(piecewise: PiecewiseLinearJump, fired: frozenset[int], covariance: Array) -> Array:
    p, done = covariance, frozenset[int]()
    for j in sorted(fired):
        jump = piecewise.jump(done, j).state
        p, done = jump @ p @ jump.T, done | {j}
    return p
