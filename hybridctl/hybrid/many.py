"""Functions of many points at once, with one point in each row of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from hybridctl.base.checks import Array

Many: TypeAlias = Callable[..., list[Array]]


class ManySteps(NamedTuple):
    """The functions of whole steps of a mode from m points.

    rate(t (m, 1), x (m, nx), u (m, nu)): of the coordinates, (m, nx). step and varied, of scalars
    (t, h, rtol, atol) (m, 4), x and u: soundness and error (m, 1), then states (m, 8, nx), guards
    (m, 8, n) and their bounds (m, n) as in `WholeStep`, or end states (m, nx) and their derivatives
    (m, ndx, ndx). A step is sound where the first number is positive.
    """

    rate: Many
    step: Many
    varied: Many
