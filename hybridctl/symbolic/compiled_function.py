"""CasADi functions that are called often, on memory of their own in each thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array

_WIDTHS = (64, 16, 8, 4, 2, 1)  # points in a map: of wider ones a point costs no less


class Compiled(threading.local):
    """A CasADi function of columns, on memory of its own in each thread.

    Its results are dense matrices, written in the transposed form that `transposed` gives them,
    so that they are arrays of `shapes` in the order of C. A call returns read-only views of them,
    which hold until the next call in the same thread. numbers (n,): its last argument, where that
    is held.
    """

    def __init__(
        self, function: Any, shapes: Sequence[tuple[int, ...]], numbers: Array | None = None
    ) -> None:
        self._made = function, tuple(shapes), numbers
        self._buffer, evaluate = function.buffer()
        sizes = [function.numel_in(i) for i in range(function.n_in())]
        self._all = tuple(map(np.zeros, sizes))
        arguments: tuple[Array, ...] = self._all
        results = tuple(np.zeros(shape) for shape in shapes)
        for i, a in enumerate(arguments):
            if a.size:
                self._buffer.set_arg(i, a.data)
        for i, a in enumerate(results):
            if a.size:
                self._buffer.set_res(i, a.reshape(-1).data)
            a.flags.writeable = False
        if numbers is not None:
            arguments[-1][:] = numbers
            arguments = arguments[:-1]
        self._call = arguments, evaluate, results  # one look at what is of this thread

    def __reduce__(self) -> tuple[type[Compiled], tuple[Any, ...]]:
        return Compiled, self._made

    def __call__(self, *columns: ArrayLike) -> tuple[Array, ...]:
        """All results; numpy raises `ValueError` for a column of the wrong size."""
        arguments, evaluate, results = self._call
        for own, column in zip(arguments, columns, strict=True):
            own[:] = column
        evaluate()
        return results

    def mapped(self) -> MappedFunction:
        """The same function at many points."""
        return MappedFunction(*self._made)


class MappedFunction(threading.local):
    """A CasADi function of columns at many points, on memory of its own in each thread.

    As `Compiled`, but arguments (m, size) have one point in each row, and results are new arrays
    (m, ...) of them. Points are passed through maps over so many that call overhead is small.
    numbers (n,): value of the last argument at all points, which callers then leave out. None if
    they pass it.
    """

    def __init__(
        self, function: Any, shapes: Sequence[tuple[int, ...]], numbers: Array | None = None
    ) -> None:
        # The function is pickled as it was given: `held` returns one without a `source`, which
        # would lose its machine code.
        self._made = function, tuple(shapes), numbers
        self._shapes = tuple(shapes)
        self._function = function if numbers is None else held(function, numbers)
        self._maps: dict[int, Compiled] = {}

    def __reduce__(self) -> tuple[type[MappedFunction], tuple[Any, ...]]:
        return MappedFunction, self._made

    def __call__(self, *columns: Array) -> list[Array]:
        """All results; numpy raises `ValueError` for arguments of the wrong size."""
        m, first = len(columns[0]), 0
        results = [np.empty((m, *shape)) for shape in self._shapes]
        for width in _WIDTHS:
            while m - first >= width:
                part = slice(first, first + width)
                found = self._map(width)(*(column[part].ravel() for column in columns))
                for result, values in zip(results, found, strict=True):
                    result[part] = values
                first += width
        return results

    def _map(self, width: int) -> Compiled:
        if width not in self._maps:
            shapes = [(width, *shape) for shape in self._shapes]
            self._maps[width] = Compiled(self._function.map(width), shapes)
        return self._maps[width]


def transposed(name: str, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
    """The function of these symbols for `Compiled`; what results have in common is made once."""
    return ca.Function(name, arguments, ca.cse([ca.densify(result.T) for result in results]))


def held(function: Any, numbers: Array) -> Any:
    """The function with its last argument fixed at these numbers (n,)."""
    symbols = function.mx_in()[:-1]
    return ca.Function(function.name(), symbols, function.call([*symbols, ca.DM(numbers)]))
