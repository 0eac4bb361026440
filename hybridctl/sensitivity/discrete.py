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
from scipy.integrate import quad_vec

from hybridctl.checks import Array, vector
from hybridctl.errors import InputError
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.trajectory import Arc
from hybridctl.sensitivity.linearize import Linearization
from hybridctl.sensitivity.variation import flow

StageCost = Callable[[int, float], Array]


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
    arc = parts[0]
    n, nu = arc.space.ndx, arc.inputs.shape[2]
    whole, cost = np.eye(n, n + nu), np.zeros((n + nu, n + nu))
    held = np.eye(nu, n + nu, n)
    for position, part in enumerate(parts):
        if part.inputs.shape[2] != nu:
            raise InputError(
                f"arc {part.index} has {part.inputs.shape[2]} inputs, but the input held from "
                f"t = {a:.9g} s has {nu}"
            )
        if part.end > part.start:
            whole, more = _flow(lin, part, np.vstack([whole, held]), stage_cost)
            cost += more
        if position + 1 < len(parts):
            jump = lin.linear_jump(part.index)
            whole = jump.state @ whole + jump.input @ held
    return Interval(a, b, whole[:, :n], whole[:, n:], 0.5 * (cost + cost.T))


def _parts(lin: Linearization, a: float, b: float) -> Iterator[Arc]:
    """The arcs cut to (a, b], with the events in it between them."""
    first = lin.trajectory.start
    for arc in lin.trajectory.arcs:
        begun = arc.index == 0 or arc.start <= b
        ended = arc.index < len(lin.jumps) and (arc.end <= a if a > first else arc.end < a)
        if begun and not ended:
            start, end = max(arc.start, a), min(arc.end, b)
            yield replace(arc, start=start, end=max(end, start))


def _flow(
    lin: Linearization, arc: Arc, columns: Array, stage_cost: StageCost | None
) -> tuple[Array, Array]:
    """The image (ndx, m) of m columns (dx, du) under the flow of an arc, and their cost (m, m)."""
    n, m = arc.space.ndx, columns.shape[1]
    held = columns[n:]
    gain = None if lin.gains is None else lin.gains[arc.index]

    def equation(t: float) -> tuple[Array, Array]:
        c = lin.coefficients(arc, t)
        return c.state if gain is None else c.state - c.input @ gain(t), c.input @ held

    def rate(t: float, step: Step, weight: StageCost) -> Array:
        x = step.state(t).reshape(n, m)
        both = np.vstack([x, held if gain is None else held - gain(t) @ x])
        return np.asarray(both.T @ weight(arc.index, t) @ both)

    mode, end, cost = lin.system.mode(arc.mode), columns[:n], np.zeros((m, m))
    for step in flow(mode, arc, equation, end, rtol=lin.rtol, atol=lin.atol):
        end = step.states[-1].reshape(n, m)
        if stage_cost is not None:
            cost += quad_vec(
                rate,
                step.start,
                step.end,
                epsabs=lin.atol,
                epsrel=lin.rtol,
                norm="max",
                args=(step, stage_cost),
            )[0]
    return end, cost
