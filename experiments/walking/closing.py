"""Newton's method for the state from which a simulated period closes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import null_space

from hybridctl.base.checks import Array
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.mechanics.system import ContactSystem
from hybridctl.sensitivity.symmetry import Symmetry

_FREE = 1e-9
"""Singular values of a gap's derivative below which a direction counts as free, relative to the
largest: the way along the ground changes no gap but by rounding."""


def measure_gap(system: ContactSystem, symmetry: Symmetry, once: HybridTrajectory) -> Array:
    """Return the gap (ndx,), the image of the end of a motion minus its start.

    Args:
        system: The system.
        symmetry: The symmetry, whose free directions are left out.
        once: The motion over one period.
    """
    return symmetry.gap(system.space, once(once.start), once.final_state)


def find_closing_state(
    system: ContactSystem,
    key: ModeKey,
    symmetry: Symmetry,
    start: Array,
    simulate_from: Callable[[Array], HybridTrajectory],
    map_period: Callable[[HybridTrajectory], Array],
    *,
    tolerance: float,
    corrections: int,
) -> Array:
    r"""Return a state (nx,) from which a period closes up to a symmetry, by Newton's method.

    A correction is :math:`\delta x = N \delta z`, where N spans the perturbations that keep closed
    contacts closed, with the least-squares solution of :math:`(I - P) N \delta z = g` for the gap g
    and the map P of a period. Directions that change no gap, such as the way along the ground, are
    left as they are.

    Args:
        system: The system.
        key: Key of the mode at the start, which has closed contacts.
        symmetry: The symmetry.
        start: State (nx,) near the one that is looked for.
        simulate_from: Function of a state that returns the motion over one period.
        map_period: Function of that motion that returns P (ndx, ndx), which takes perturbations of
            its start to those of the image of its end.
        tolerance: Largest entry of a gap that counts as closed, m, rad and per s.
        corrections: Most corrections. After them the last state is returned, whatever its gap is.
    """
    mode = system.mode(key)
    project, held = mode.project, mode.held
    assert project is not None
    assert held is not None
    assert held.jacobian is not None
    x = project(start)
    for _ in range(corrections):
        once = simulate_from(x)
        gap = measure_gap(system, symmetry, once)
        if np.abs(gap).max() < tolerance:
            break
        kept = null_space(held.jacobian(x))
        closing = (np.eye(len(gap)) - map_period(once)) @ kept
        change = kept @ np.linalg.lstsq(closing, gap, rcond=_FREE)[0]
        x = project(system.space.integrate(x, change))
    return np.asarray(x)
