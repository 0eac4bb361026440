r"""The first-order map of a trajectory on a fixed grid of times, with inputs held between them.

Over one interval, with the change of the input held,

.. math:: \delta x_{k+1} = A_k\, \delta x_k + B_k\, \delta u_k .

Where events fall into it the map is the sandwich of the flow up to each event, its jump, and the
flow after it, [Salt] (35): for one event

.. math:: A_k = \Phi_2\, G\, \Phi_1, \qquad B_k = \Phi_2\, (G\, \Gamma_1 + J) + \Gamma_2 ,

as the input held there is that which guard and reset see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, vector
from hybridctl.errors import InputError
from hybridctl.hybrid.trajectory import Arc
from hybridctl.sensitivity.linearize import Linearization
from hybridctl.sensitivity.variation import flow

StageCost = Callable[[int, float], Array]
InputChanges = Callable[[float], Array]


@dataclass(frozen=True, eq=False)
class Interval:
    """One interval of the grid: state A (ndx+, ndx), input B (ndx+, nu).

    cost S (ndx + nu, ndx + nu): the integral of the stage cost is (dx, du) . S (dx, du).
    """

    start: float
    end: float
    state: Array
    input: Array
    cost: Array


def discretize(
    lin: Linearization, times: ArrayLike, stage_cost: StageCost | None = None
) -> tuple[Interval, ...]:
    """The intervals between `times`, which increase from the start to the end of the trajectory.

    An event on a time of the grid belongs to the interval that ends there. stage_cost: W(arc, t)
    (ndx + nu, ndx + nu), of which (dx, du) . W (dx, du) is integrated over each interval along
    the deviations at fixed time; none is zero. Under feedback (`lin.closed_loop`) du is added to
    it. Raises `InputError` for other times, where guards are simultaneous, and where an event
    changes the number of inputs.
    """
    grid = vector("times", times)
    ends = (lin.trajectory.start, lin.trajectory.end)
    if len(grid) < 2 or not (np.diff(grid) > 0.0).all() or (grid[0], grid[-1]) != ends:
        raise InputError(f"times must increase from {ends[0]} to {ends[1]}, got {grid.tolist()}")
    return tuple(_interval(lin, float(a), float(b), stage_cost) for a, b in pairwise(grid))


def _interval(lin: Linearization, a: float, b: float, stage_cost: StageCost | None) -> Interval:
    parts = list(_parts(lin, a, b))
    n, nu = parts[0].space.ndx, parts[0].inputs.shape[2]
    state, cost = np.eye(n, n + nu), np.zeros((n + nu, n + nu))
    held = np.eye(nu, n + nu, n)
    for position, part in enumerate(parts):
        if part.inputs.shape[2] != nu:
            raise InputError(
                f"arc {part.index} has {part.inputs.shape[2]} inputs, but the input held from "
                f"t = {a:.9g} s has {nu}"
            )
        state, more = carried_along(lin, part, state, lambda t: held, stage_cost)
        cost += more
        if position + 1 < len(parts):
            jump = lin.linear_jump(part.index)
            state = jump.state @ state + jump.input @ held
    return Interval(a, b, state[:, :n], state[:, n:], 0.5 * (cost + cost.T))


def _parts(lin: Linearization, a: float, b: float) -> Iterator[Arc]:
    """The arcs cut to (a, b], with the events in it between them."""
    first = lin.trajectory.start
    for arc in lin.trajectory.arcs:
        begun = arc.index == 0 or arc.start <= b
        ended = arc.index < len(lin.jumps) and (arc.end <= a if a > first else arc.end < a)
        if begun and not ended:
            start, end = max(arc.start, a), min(arc.end, b)
            yield replace(arc, start=start, end=max(end, start))


def carried_along(
    lin: Linearization,
    arc: Arc,
    state: Array,
    inputs: InputChanges,
    stage_cost: StageCost | None = None,
) -> tuple[Array, Array]:
    """Columns dx (ndx, m) carried along an arc or part of one, and what they cost (m, m).

    inputs(t): du (nu, m) of each column, added to the feedback. stage_cost: see `discretize`.
    """
    (n, m), k = state.shape, arc.index
    gain = None if lin.gains is None else lin.gains[k]

    def equation(t: float) -> tuple[Array, Array]:
        c = lin.coefficients(arc, t)
        return c.state if gain is None else c.state - c.input @ gain(t), c.input @ inputs(t)

    def rate(t: float, x: Array) -> Array:
        assert stage_cost is not None
        du = inputs(t) if gain is None else inputs(t) - gain(t) @ x
        both = np.vstack([x, du])
        return np.asarray(both.T @ stage_cost(k, t) @ both).ravel()

    reached, tolerances = np.append(state, np.zeros(m * m)), {"rtol": lin.rtol, "atol": lin.atol}
    quadrature = None if stage_cost is None else rate
    mode = lin.system.mode(arc.mode)
    for step in flow(mode, arc, equation, state, quadrature=quadrature, **tolerances):
        reached[: step.states.shape[1]] = step.states[-1]
    return reached[: n * m].reshape(n, m), reached[n * m :].reshape(m, m)
