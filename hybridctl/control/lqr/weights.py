"""Weights of quadratic costs: constant, one for each arc, or functions of arc and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_semidefinite
from hybridctl.base.errors import InputError

Weights: TypeAlias = ArrayLike | Sequence[ArrayLike] | Callable[[int, float], ArrayLike]
"""One matrix, one for each arc, or a function of the index of the arc and the time in s."""
WeightFunction: TypeAlias = Callable[[int, float], Array]
"""The weight (n, n) by the index of the arc and the time in s."""


def make_weight_function(
    name: str,
    weights: Weights,
    sizes: Sequence[int],
    times: Sequence[tuple[float, float]],
    *,
    definite: bool = False,
) -> WeightFunction:
    """Return weights as a function of arc and time.

    Args:
        name: Name of the argument, for messages.
        weights: One matrix for all arcs, a list or tuple with one for each, or a function (arc, t).
        sizes: Size of the matrix on each arc.
        times: Start and end of each arc in s, where functions are checked.
        definite: Whether weights must be positive definite, not only positive semidefinite.

    Raises:
        InputError: A weight has another shape, is not symmetric, or not (semi)definite.
    """
    if callable(weights):
        for k, (size, ends) in enumerate(zip(sizes, times, strict=True)):
            for t in ends:
                check_semidefinite(f"{name}({k}, {t:g})", weights(k, t), size, definite=definite)
        return partial(_evaluate_function, weights)
    per_arc: list[ArrayLike] = [cast(ArrayLike, weights)] * len(sizes)
    if isinstance(weights, list | tuple) and len(weights) and np.ndim(weights[0]) == 2:
        per_arc = list(cast(Sequence[ArrayLike], weights))
        if len(per_arc) != len(sizes):
            raise InputError(
                f"{name} must have one matrix per arc ({len(sizes)}), got {len(per_arc)}"
            )
    matrices = [
        check_semidefinite(
            name if per_arc[k] is weights else f"{name}[{k}]", w, size, definite=definite
        )
        for k, (w, size) in enumerate(zip(per_arc, sizes, strict=True))
    ]
    return partial(_select_matrix, matrices)


# Functions of the module, not lambdas, so that weights can be sent to other processes.
def _evaluate_function(weights: Callable[[int, float], ArrayLike], arc: int, t: float) -> Array:
    return np.asarray(weights(arc, t), dtype=np.float64)


def _select_matrix(weights: Sequence[Array], arc: int, t: float) -> Array:
    return weights[arc]
