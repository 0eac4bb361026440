"""What is judged: the few calls to hybridctl, each behind one function."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attack.laws import Array, Law
from attack.machines import Machine
from hybridctl.base.errors import SeveralContactSolutionsError
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics import ContactDynamics
from hybridctl.mechanics.contact_law import CoulombProblem, solve
from hybridctl.mechanics.impacts.impact import impact


class Struck(NamedTuple):
    """Velocity after an impact (nv,), impulses (c,) and friction impulses (c, 2)."""

    velocity: Array
    impulses: Array
    friction: Array


def strike(machine: Machine, v: Array, at: tuple[int, ...]) -> Struck:
    """The impact of the contacts `at`; `HybridctlError` where it is refused."""
    dynamics = ContactDynamics(machine.robot, machine.contacts)
    result = impact(dynamics, machine.q, v, at)
    return Struck(result.velocity_after, result.impulses, result.friction_impulses)


class Solution(NamedTuple):
    """Forces (r,) in the order of a law's rows, and what is said of their rates' uniqueness."""

    forces: Array
    uniqueness: str


def solved(law: Law) -> Array:
    """Forces (r,) that obey a law, in its order of rows; `HybridctlError` where it is refused."""
    return solution(law).forces


def solution(law: Law) -> Solution:
    """A solution of a law; `HybridctlError` where it is refused."""
    blocks = list(law.blocks())
    normals = [block.start for block in blocks]
    tangents = [list(range(block.start + 1, block.stop)) for block in blocks]
    order = np.array(normals + [row for rows in tangents for row in rows])
    place = np.argsort(order)
    count = len(blocks)
    problem = CoulombProblem(
        law.delassus[np.ix_(order, order)],
        law.free[order],
        tuple(place[rows].astype(np.intp) for rows in tangents),
        law.friction,
        law.friction,
        (None,) * count,
        law.velocity_unit,
    )
    found = solve(problem)
    return Solution(np.asarray(found.forces[place]), found.uniqueness)


def named(refusal: SeveralContactSolutionsError) -> list[tuple[Law, Array]]:
    """The law of a refusal for several solutions, with the forces of each."""
    problem = refusal.problem
    rows = np.concatenate([[i, *tangents] for i, tangents in enumerate(problem.tangents)])
    rows = rows.astype(np.intp)
    law = Law(
        problem.delassus[np.ix_(rows, rows)],
        problem.free[rows],
        problem.kinetic,
        tuple(len(tangents) for tangents in problem.tangents),
        problem.magnitude,
    )
    return [(law, solution.forces[rows]) for solution in refusal.solutions]


def impulses(event: Event) -> tuple[Array, Array] | None:
    """Impulses (c,) and friction impulses (c, 2) of an event, None where there was no impact."""
    report = event.report
    return None if report is None else (report.impulses, report.friction_impulses)
