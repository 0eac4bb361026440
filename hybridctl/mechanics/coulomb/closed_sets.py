r"""Which contacts can be closed together at all, by one convex programme for each set of them.

Whatever the friction of closed contacts does inside its cones, their rates have to vanish along the
normals, and no others may approach: :math:`f_i \in K_i,\ w_{n,i} = 0` for closed contacts,
:math:`f_i = 0,\ w_{n,i} \ge 0` for open ones. Where no forces do so, none of the sets of states in
which just these are closed obeys the law. Contacts that slide already have friction of one
direction, :math:`f_t = -\mu f_n s`.
"""

from __future__ import annotations

from collections.abc import Sequence

import clarabel
import numpy as np

from hybridctl.mechanics.coulomb.cones import ConeProgramme, cone_rows, multipliers
from hybridctl.mechanics.coulomb.contact_states import OPEN, SLIP, STICK, Modes
from hybridctl.mechanics.coulomb.law import CoulombProblem

_FROM = 2  # contacts that begin to slide in space: fewer are found out sooner than excluded
_MARGIN = 1e-7  # of rates and forces, in a problem without units: what still counts as possible


def possible(problem: CoulombProblem, sets: Sequence[Modes]) -> list[Modes]:
    """The sets of states whose closed contacts can be closed together, and those not looked at."""
    known: dict[tuple[int, ...], bool] = {}
    kept = []
    for modes in sets:
        closed = tuple(i for i, mode in enumerate(modes) if mode != OPEN)
        if closed not in known:
            costly = sum(problem.turns(i, SLIP) for i in closed) >= _FROM
            known[closed] = not costly or can_be_closed(problem, closed)
        if known[closed]:
            kept.append(modes)
    return kept


def can_be_closed(problem: CoulombProblem, closed: Sequence[int]) -> bool:
    """Whether forces in the cones of these contacts keep just them closed, to 1e-7."""
    count, kept = len(problem.static), list(closed)
    states = zip(range(count), problem.sliding, strict=True)
    modes = tuple(OPEN if i not in kept else SLIP if s is not None else STICK for i, s in states)
    mix, cones = multipliers(problem, modes, problem.sliding)
    size = mix.shape[1]
    rates = problem.delassus[:count] @ mix
    limits, kinds = cone_rows(cones, [], size)
    rows = np.concatenate((rates, -rates[kept], limits))
    offset = np.full(len(rows), _MARGIN)
    offset[:count] += problem.free[:count]
    offset[count : count + len(kept)] -= problem.free[kept]
    kinds = [clarabel.NonnegativeConeT(count + len(kept)), *kinds]
    found = ConeProgramme(np.eye(size), np.zeros(size), rows, offset, kinds).solve()
    return not found.infeasible
