"""One-sided limits of what a programme softens, and which of them share a slack."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hybridctl.base.checks import Array, Indices
from hybridctl.planning.trajectory.functions import Limit

# What a unit of slack costs, of the first three for a second.
SLACK = {"N": 50.0, "rad": 3e4, "m": 3e4, "N s": 2e3, "m/s": 2e3, "m/s^2": 20.0, "m/s/s": 20.0}
SLACK |= {"rad/s": 2e3, "N/s": 0.5}


@dataclass(frozen=True, eq=False)
class LimitSides:
    r"""Limits :math:`s_k (v_{i_k} - b_k) \ge 0` of values v; those of one unit share a slack.

    index (r,): i. sign (r,): s, 1 of lower and -1 of upper limits. bound (r,): b. fades (r,): 1
    where it falls to zero over a phase, else 0. group (r,): number of the slack. costs (g,): of
    these.
    """

    index: Indices
    sign: Array
    bound: Array
    fades: Array
    group: Indices
    costs: Array

    @staticmethod
    def of(limits: Sequence[Limit], without: Collection[int] = (), gaps: int = 0) -> LimitSides:
        """The sides of limits but those numbered `without`, then of gaps, each with a slack."""
        units = list(dict.fromkeys(r.unit for i, r in enumerate(limits) if i not in without))
        rows = [
            (i, sign, bound, float(limit.fades and sign > 0.0), units.index(limit.unit))
            for i, limit in enumerate(limits)
            for sign, bound in ((1.0, limit.lower), (-1.0, limit.upper))
            if i not in without and np.isfinite(bound)
        ]
        rows += [(len(limits) + g, 1.0, 0.0, 0.0, len(units) + g) for g in range(gaps)]
        columns = [np.array([row[k] for row in rows], dtype=float) for k in range(5)]
        index, sign, bound, fades, group = columns
        costs = np.array([SLACK[unit] for unit in units] + [SLACK["m"]] * gaps)
        return LimitSides(index.astype(int), sign, bound, fades, group.astype(int), costs)
