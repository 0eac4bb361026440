"""The sets of contact states that obey Coulomb's law, found for all sets together.

Every set of states gives linear equations A f = b once the directions are known in which contacts
begin to slide in space, see `slip_directions`. Contacts that are open or closed in any solution are
not tried otherwise, see `load_bounds`, and sets of contacts that cannot be closed together are left
out, see `closed_sets`; those that hold rows which depend on each other are looked at one by
one, see `redundant`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.coulomb.closed_sets import possible
from hybridctl.mechanics.coulomb.contact_states import OPEN, Modes
from hybridctl.mechanics.coulomb.law import CoulombProblem
from hybridctl.mechanics.coulomb.load_bounds import load_bounds
from hybridctl.mechanics.coulomb.redundant import Redundancy
from hybridctl.mechanics.coulomb.slip_directions import slip_directions, turning
from hybridctl.mechanics.coulomb.state_sets import StateSets


def candidates(problem: CoulombProblem) -> Iterator[tuple[Modes, Array, Array]]:
    """Yield sets of states that pass, with forces and rates (r,).

    They obey the law to six digits, except those of sets that hold redundant rows, which come last
    and may violate it (`Redundancy.forces`). Sets without unknown directions come first.
    """
    redundancy = Redundancy(problem)
    every = list(product(*_choices(problem)))
    sets, redundant = redundancy.split(possible(problem, every))
    turn = [len(turning(problem, modes)) for modes in sets]
    for number in sorted(set(turn)):
        chosen = [modes for modes, n in zip(sets, turn, strict=True) if n == number]
        directions = np.zeros((len(chosen), len(problem.free)))
        if number:
            which, directions = slip_directions(problem, chosen)
            chosen = [chosen[i] for i in which]
        yield from _passing(StateSets(problem, chosen, directions))
    for modes in redundant:
        for forces in redundancy.forces(modes):
            yield modes, forces, problem.delassus @ forces + problem.free


def _choices(problem: CoulombProblem) -> list[list[str]]:
    """The states that each contact may be in, as far as bounds of its load tell."""
    bounds, choices = load_bounds(problem), []
    for i, (open_, closed) in enumerate(zip(bounds.open, bounds.closed, strict=True)):
        states = [OPEN] if open_ else problem.choices(i)
        choices.append([state for state in states if not closed or state != OPEN])
    return choices


def _passing(batch: StateSets) -> Iterator[tuple[Modes, Array, Array]]:
    obeys, forces, rates = batch.obeys()
    for index in np.flatnonzero(obeys).tolist():
        yield batch.sets[index], forces[index], rates[index]
