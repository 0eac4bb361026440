"""Coulomb's law of a few contacts by the compiled extension `_coulomb`, where it is installed.

It does what `solver.solve` does most often, in a twentieth of the time: one search by Newton's
method, and the conditions of `uniqueness`. Its results are equal to rounding, which in rare cases
decides more: which forces of redundant contacts are found where only their rates are unique, and
which of several solutions among more sets of states than are tried. Of 80,000 random problems 61
differed so, as Python's solution does from itself when its data change by their rounding. It does
not cover, and Python solves instead:

- problems of more than 12 contacts;
- problems whose solution the first search does not find;
- problems that no condition proves unique, if their sets of states are few enough to be tried, if a
  contact is on the boundary of its state, or after more than 8 steps: rounding may decide then
  which of several solutions a search meets.

The environment variable `HYBRIDCTL_KERNEL=off` turns it off when it is set before hybridctl is
imported.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np
from scipy.linalg import cython_lapack

from hybridctl.mechanics.contact_law.law import (
    ContactState,
    CoulombProblem,
    CoulombSolution,
    scale_problem,
)
from hybridctl.mechanics.contact_law.uniqueness import is_provably_unique

_INTERFACE = 2
"""Number of the calls of the extension, `INTERFACE` of its C source."""
_STATES = tuple(ContactState)
"""States by their number in C."""


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
