"""The last solutions of Coulomb's law, kept: an impact and its derivatives pose the same one."""

from __future__ import annotations

from hybridctl.mechanics.coulomb.law import CoulombProblem, CoulombSolution
from hybridctl.mechanics.coulomb.solve import IterativeSolver, solve

_KEPT = 32

Key = tuple[object, ...]


class SolutionMemory:
    """`solve`, which looks first whether one of the last 32 problems was the same to the last bit.

    The arrays of its solutions are read-only.
    """

    def __init__(self, iterative: IterativeSolver) -> None:
        self._iterative = iterative
        self._known: dict[Key, CoulombSolution] = {}

    def solve(self, problem: CoulombProblem) -> CoulombSolution:
        """The one solution of the problem. Raises what `solve` raises."""
        key = _key(problem)
        known = self._known.get(key)
        if known is not None:
            return known
        solution = solve(problem, self._iterative)
        for values in (solution.forces, solution.rates, *solution.directions):
            if values is not None:
                values.flags.writeable = False
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = solution
        return solution


def _key(problem: CoulombProblem) -> Key:
    """All that a solution depends on."""
    arrays = (problem.delassus, problem.free, problem.static, problem.kinetic)
    sliding = (None if s is None else s.tobytes() for s in problem.sliding)
    tangents = (rows.tobytes() for rows in problem.tangents)
    return (*(a.tobytes() for a in arrays), problem.magnitude, *sliding, *tangents)
