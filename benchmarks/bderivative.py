"""What a B-derivative costs: growth with the number of surfaces, and many directions at once."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from rich.table import Table

from benchmarks.timing import Timing, measure
from hybridctl.app.report import make_table
from hybridctl.sensitivity.bderivative import BDerivative

SURFACES = (2, 3, 4, 5, 6, 7, 10, 14, 20)
ENUMERATED = 7  # surfaces up to which all n! matrices are formed
DIRECTIONS, BATCH_SURFACES, BATCH_DIMENSION = 10_000, 4, 8


def tables(effort: dict[str, float]) -> list[Table]:
    """All tables of this file."""
    return [growth_table(effort), batch_table(effort)]


def problem(n: int, d: int) -> BDerivative:
    """Random independent normals and fields that cross each surface at a rate in [0.4, 2]."""
    rng = np.random.default_rng(n)
    normals = rng.normal(size=(n, d))
    lift, mix = np.linalg.pinv(normals), rng.normal(size=(n, n))
    # Rates that depend on all signs, at the cost of a product with a matrix.
    return BDerivative(normals, lambda b: lift @ (1.2 + 0.8 * np.sin(mix @ b + 1.0)))


def growth_table(effort: dict[str, float]) -> Table:
    """One direction in n = d dimensions, fields known and not, against all n! matrices.

    The multiple is that of all matrices, whose fields are known, over one direction.
    """
    rows, times = [], []
    for n in SURFACES:
        b = problem(n, n)
        dx = np.random.default_rng(0).normal(size=n)
        kept = measure(lambda b=b, dx=dx: b(dx), **effort)
        fresh = measure(lambda b=b, dx=dx: _again(b)(dx), **effort)
        times.append(kept.best)
        forming = _enumeration(b, effort) if n <= ENUMERATED else None
        rows.append(
            (
                f"{n} surfaces",
                f"{kept.best:.0f}",
                f"{fresh.best:.0f}",
                "-" if forming is None else f"{forming.best:.0f}",
                "-" if forming is None else f"{forming.best / kept.best:.1f}",
                f"{kept.spread:.2f}, {fresh.spread:.2f}",
            )
        )
    exponent = np.polyfit(np.log(SURFACES), np.log(times), 1)[0]
    title = f"B-derivative of one direction: time grows as n^{exponent:.2f}"
    columns = ["what", "us", "with new fields us", "all n! matrices us", "multiple", "max/min"]
    return make_table(title, columns, rows)


def batch_table(effort: dict[str, float]) -> Table:
    """The table of many directions in one call, by recursion and from the triangulation."""
    b = problem(BATCH_SURFACES, BATCH_DIMENSION)
    dx = np.random.default_rng(0).normal(size=(DIRECTIONS, BATCH_DIMENSION))
    mesh = b.triangulation()
    cases = [("recursion", lambda: b(dx)), ("triangulation", lambda: mesh(dx))]
    rows = []
    for name, call in cases:
        timing = measure(call, **effort)
        rows.append((name, f"{timing.best / DIRECTIONS:.3f}", f"{timing.spread:.2f}"))
    title = f"{DIRECTIONS} directions, {BATCH_SURFACES} surfaces, {BATCH_DIMENSION} dimensions"
    return make_table(title, ["in one call", "us per direction", "max/min"], rows)


def _again(b: BDerivative) -> BDerivative:
    """The same B-derivative problem, with nothing cached."""
    return BDerivative(b.normals, b.field)


def _enumeration(b: BDerivative, effort: dict[str, float]) -> Timing:
    orders = list(permutations(range(len(b.guards))))
    return measure(lambda: [b.matrix(order) for order in orders], **effort)
