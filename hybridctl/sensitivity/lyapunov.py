r"""Lyapunov exponents of long runs.

An orthonormal frame is propagated through arcs and events. After each of them, and after an
interval within an arc, it is split by :math:`\Phi Q = Q' R`. The exponents are the means of
:math:`\log |R_{ii}|` over the time, after a first time in which the frame finds its directions. On
a periodic orbit they tend to the logarithms of the moduli of its Floquet multipliers over the
period, [Salt] III-C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import InputError
from hybridctl.hybrid.arc import Arc
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.propagation import propagate_perturbations

_GROWTH_ROUNDING = 1e-14
"""Growth of a frame vector up to which it counts as zero, relative to n times the largest entry of
the frame: rounding."""


def lyapunov_exponents(
    lin: Linearization, *, settle: float = 0.0, interval: float = np.inf
) -> Array:
    """Return all Lyapunov exponents of a long run.

    Args:
        lin: Linearization of the run.
        settle: Time at the start that is not counted, s. In it the frame turns into the directions
            of growth.
        interval: Longest time between two splittings of the frame, s.

    Returns:
        The exponents (ndx,) in 1/s, the largest first. Minus infinity for a direction that a jump
        destroys.

    Raises:
        InputError: A jump of the linearization is piecewise linear, the dimension of the state
            changes, or a time is out of range.
    """
    check_number("settle", settle, at_least=0.0)
    if not interval > 0.0:
        raise InputError(f"interval must be greater than 0, got {interval}")
    arcs = lin.trajectory.arcs
    begin, n = lin.trajectory.start + settle, arcs[0].space.ndx
    if not begin < lin.trajectory.end:
        raise InputError(
            f"settle must be less than the {lin.trajectory.end - lin.trajectory.start} s of the "
            f"trajectory, got {settle}"
        )
    sizes = {arc.space.ndx for arc in arcs}
    if len(sizes) > 1:
        raise InputError(f"trajectory must keep its dimension, but has {sorted(sizes)}")
    total, frame = np.zeros(n), np.eye(n)
    for k, arc in enumerate(arcs):
        for part in _cut_arc(arc, begin, interval):
            gain = None if lin.gains is None else lin.gains[k]
            mode = lin.system.mode(arc.mode)
            curve = propagate_perturbations(
                mode, part, frame, gain=gain, rtol=lin.rtol, atol=lin.atol
            )
            frame, growth = _split_frame(curve.end)
            total += growth if part.start >= begin else 0.0
        if k < len(lin.jumps):
            frame, growth = _split_frame(lin.linear_jump(k).state @ frame)
            total += growth if arc.end >= begin else 0.0
    return -np.sort(-total / (lin.trajectory.end - begin))


def _cut_arc(arc: Arc, begin: float, interval: float) -> Iterator[Arc]:
    """Yield the arc in parts of at most `interval` s, of which one begins at `begin`."""
    cuts = [arc.start, *([begin] if arc.start < begin < arc.end else []), arc.end]
    for start, end in pairwise(cuts):
        ends = np.linspace(start, end, int(max(np.ceil((end - start) / interval), 1)) + 1)
        for a, b in pairwise(ends):
            yield replace(arc, start=float(a), end=float(b))


def _split_frame(columns: Array) -> tuple[Array, Array]:
    """Return the frame Q' and log |R_ii| of the split Phi Q = Q' R.

    Args:
        columns: The propagated frame Phi Q (n, n).

    Returns:
        Orthonormal columns (n, n), and the logarithms (n,) of the growth; -inf for a direction that
        a jump destroys.
    """
    frame, upper = np.linalg.qr(columns)
    growth = np.abs(np.diag(upper))
    growth[growth <= _GROWTH_ROUNDING * len(growth) * np.abs(columns).max()] = 0.0
    with np.errstate(divide="ignore"):
        return frame, np.log(growth)
