"""Coulomb's law of a few contacts by the compiled extension `_coulomb`, where it is installed.

It does what `solver.solve` does most often, in a twentieth of the time: one search by Newton's
method, and the conditions of `uniqueness`. For an impact it also makes the problem from the terms
of motion, and the velocity after it (`solve_impact_compiled`). Its results are equal to rounding,
which in rare cases decides more: which forces of redundant contacts are found where only their
rates are unique, and which of several solutions among more sets of states than are tried. Of 80,000
random problems 61 differed so, as Python's solution does from itself when its data change by their
rounding. It does not cover, and Python solves instead:

- problems of more than 12 contacts;
- impacts of robots with more than 48 velocities or 96 rows of contacts, open ones included;
- problems whose solution the first search does not find;
- problems that no condition proves unique, if their sets of states are few enough to be tried, if a
  contact is on the boundary of its state, or after more than 8 steps: rounding may decide then
  which of several solutions a search meets.

The environment variable `HYBRIDCTL_KERNEL=off` turns it off when it is set before hybridctl is
imported.
"""

from __future__ import annotations

import math
import os
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cython_lapack

from hybridctl.base.checks import Array, Indices
from hybridctl.mechanics.contact_law.law import (
    ContactState,
    CoulombProblem,
    CoulombSolution,
    Modes,
    Uniqueness,
    scale_problem,
)
from hybridctl.mechanics.contact_law.uniqueness import is_provably_unique

_INTERFACE = 3
"""Number of the calls of the extension, `INTERFACE` of its C source."""
_STATES = tuple(ContactState)
"""States by their number in C."""
_STATE_COUNTS = (2, 4, 3)
"""Number of states of a contact at rest by its number of tangents, see `possible_states`."""


class ImpactSolution(NamedTuple):
    """An impact of k of all c contacts, whose r rows are among all R rows.

    Attributes:
        restitution: Diagonal of E (R,).
        velocity_after: Velocity v+ (nv,).
        impulses: Normal impulses (c,), N s; zero where contacts take no part.
        friction_impulses: Tangential impulses (c, 2), N s.
        rates_after: J v+ (r,) of the contacts that take part, m/s.
        energy_loss: Kinetic energy lost from v- to v+, J.
        states: State of each contact that takes part, (k,).
        border: Those on the boundary of another state, by their place among the k.
        uniqueness: Whether no other velocity obeys the law.
    """

    restitution: Array
    velocity_after: Array
    impulses: Array
    friction_impulses: Array
    rates_after: list[float]
    energy_loss: float
    states: Modes
    border: tuple[int, ...]
    uniqueness: Uniqueness


def _load_extension() -> Any:
    """Return the extension.

    None if it is not installed, of another version, or turned off, or LAPACK's integers are others.
    """
    if os.environ.get("HYBRIDCTL_KERNEL") == "off":
        return None
    try:
        extension = import_module("._coulomb", __package__)
    except ImportError:  # there is none, or it was built for another Python
        return None
    if extension.INTERFACE != _INTERFACE:
        return None
    functions = cython_lapack.__pyx_capi__
    try:
        extension.set_lapack(functions["dgelsy"], functions["dsyev"])
    except ValueError:  # a LAPACK of 64-bit integers
        return None
    return extension


_EXTENSION = _load_extension()


def search_compiled(problem: CoulombProblem, max_sets: int) -> CoulombSolution | None:
    """Return the solution of a problem that the first search finds, with its uniqueness.

    Args:
        problem: Problem in any units.
        max_sets: Sets of contact states up to which the solution has to be proven unique.

    Returns:
        The solution in the units of the problem, as `solver.solve` returns it. None where there is
        no extension, or the problem needs more.
    """
    if _EXTENSION is None:
        return None
    n, k = len(problem.free), len(problem.tangents)
    results = np.empty(2 * n + 2 * k + 2)
    found = _EXTENSION.solve(*_list_fields(problem), results)
    if found is None:
        return None
    is_unique, states, slides, border = found
    if not is_unique and problem.count_states() <= max_sets:
        return None
    directions = [
        results[2 * n + 2 * i : 2 * n + 2 * i + len(rows)] if sliding else None
        for i, (rows, sliding) in enumerate(zip(problem.tangents, slides, strict=True))
    ]
    residual, rate_residual = results[-2:].tolist()
    return CoulombSolution(
        results[:n],
        results[n : 2 * n],
        tuple([_STATES[state] for state in states]),
        tuple(directions),
        tuple(border),
        residual,
        rate_residual,
        "proven" if is_unique else "not established",
    )


def solve_impact_compiled(
    motion: tuple[Array, Array, Array, Array],
    laws: tuple[Array, Array, Array],
    contacts: int,
    owner: Indices,
    rows: Indices,
    tangents: tuple[Indices, ...],
    max_sets: int,
) -> ImpactSolution | None:
    """Return the impact of some contacts, where the first search finds it.

    Args:
        motion: M (nv, nv), J (R, nv), J v (R,) and v (nv,) before the impact.
        laws: Coefficients of restitution (R,) of rows that rebound, approach speeds (R,) up to
            which rows do not rebound, and kinetic friction (k,).
        contacts: Number c of all contacts.
        owner: Contact (R,) of each row.
        rows: Rows (r,) of the contacts that take part, normals first.
        tangents: Tangents of each of these contacts, counted within `rows`.
        max_sets: Sets of contact states up to which the solution has to be proven unique.

    Returns:
        The impact. None where there is no extension, or the impact needs more.
    """
    if _EXTENSION is None:
        return None
    a = len(owner)
    b = a + len(motion[3])
    c, d = b + contacts, b + 3 * contacts
    out = np.empty(d + len(rows) + 1)
    found = _EXTENSION.solve_impact(*motion, *laws, out, owner, rows, tangents)
    if found is None:
        return None
    is_unique, states, border = found
    if not is_unique and math.prod([_STATE_COUNTS[len(t)] for t in tangents]) <= max_sets:
        return None
    *rates_after, energy_loss = out[d:].tolist()
    return ImpactSolution(
        out[:a],
        out[a:b],
        out[b:c],
        out[c:d].reshape(contacts, 2),
        rates_after,
        energy_loss,
        tuple([_STATES[state] for state in states]),
        tuple(border),
        "proven" if is_unique else "not established",
    )


def is_problem_unique(problem: CoulombProblem) -> bool:
    """Return whether a condition of `uniqueness` proves that a problem has one solution at most.

    Args:
        problem: Problem in any units.
    """
    if _EXTENSION is not None:
        found = _EXTENSION.prove_unique(*_list_fields(problem))
        if found is not None:
            return bool(found)
    return is_provably_unique(scale_problem(problem)[0])


def _list_fields(problem: CoulombProblem) -> tuple[Any, ...]:
    """Return the fields of a problem in the order in which the extension takes them."""
    return (
        problem.delassus,
        np.ascontiguousarray(problem.free),
        problem.tangents,
        np.ascontiguousarray(problem.static),
        np.ascontiguousarray(problem.kinetic),
        problem.sliding,
        problem.magnitude,
    )
