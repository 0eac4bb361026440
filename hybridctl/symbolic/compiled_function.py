"""CasADi functions that are called often, with memory of their own in each thread."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache, lru_cache
from time import perf_counter
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array
from hybridctl.base.compilable import CompilableFunction

_BATCH_WIDTHS = (64, 16, 8, 4, 2, 1)
"""Numbers of points that one call evaluates, widest first. The last one is 1, so that every number
of points can be split. In calls that are wider than 64 a point costs no less."""
_FIRST_CHECK = 200
"""Evaluations after which a function becomes machine code if that is kept. A choice: to load it
takes some 0.4 ms, and saves some 10 us of each call."""
_SHARE_OF_COMPILATION = 0.05
"""Time spent in evaluations, relative to that of its compilation, after which a function is
compiled. With 1 nobody would pay more than twice what would have been best for one process. But
machine code is kept for later processes, and the compiler runs beside this one, behind it. With
0.25 five of 50 functions were compiled in 800 tosses of a cube, with 0.05 fifteen. A choice."""
_NEXT_CHECK = 500
"""Evaluations between later looks for its machine code. A choice."""


class CompiledFunction(threading.local):
    """A CasADi function of columns, with memory of its own in each thread.

    CasADi writes matrices column by column, numpy reads them row by row. The function therefore
    has to return transposed matrices, as `build_transposed_function` makes them.

    Life cycle: `threading.local` calls the constructor once more in each thread that uses the
    object. A call copies its arguments into the memory of the thread, evaluates, and returns views
    of the results there, which the next call in the same thread overwrites. Objects of one function
    with parameters share this memory: a new value of them costs no more than an object.

    Args:
        function: A `casadi.Function`. Its arguments are columns, its results dense.
        shapes: Shape of each result as an array.
        parameter_values: Value (n,) of the last argument, which callers then leave out. None if
            they pass it. It is read at later calls, and must not be changed.
    """

    def __init__(
        self,
        function: Any,
        shapes: Sequence[tuple[int, ...]],
        parameter_values: Array | None = None,
    ) -> None:
        shapes = tuple(shapes)
        self._constructor_arguments = function, shapes, parameter_values
        if parameter_values is None:
            memory = _FunctionMemory(function, shapes)
            arguments = memory.arguments
        else:
            memory = _find_memory(function, shapes)
            arguments = memory.arguments[:-1]
        # One tuple, since each access to an attribute of a thread-local object costs a look-up.
        self._call = arguments, memory, parameter_values

    def __reduce__(self) -> tuple[type[CompiledFunction], tuple[Any, ...]]:
        return CompiledFunction, self._constructor_arguments

    def __call__(self, *columns: ArrayLike) -> tuple[Array, ...]:
        """Return read-only views of all results. The next call in this thread changes them.

        Args:
            *columns: The arguments (n,) of the function. A wrong size is a `ValueError` of numpy.
        """
        arguments, memory, parameter_values = self._call
        for own, column in zip(arguments, columns, strict=True):
            own[:] = column
        if memory.parameter_values is not parameter_values:  # the last call was for other ones
            memory.arguments[-1][:] = parameter_values
            memory.parameter_values = parameter_values
        memory.evaluate()
        memory.calls_to_check -= 1
        if not memory.calls_to_check:
            memory.use_machine_code()
        return memory.results

    def build_batched(self) -> BatchedFunction:
        """Return the same function for many points at once."""
        return BatchedFunction(*self._constructor_arguments)


class _FunctionMemory:
    """The memory of a CasADi function for calls of one thread.

    A `CompilableFunction` becomes machine code once it has been called often: its caller counts
    `calls_to_check` down, and calls `use_machine_code` where that is zero.

    Args:
        function: The `casadi.Function`.
        shapes: Shape of each result.

    Attributes:
        arguments: Arrays (n,) of the arguments.
        calls_to_check: Number of calls until `use_machine_code` is due. Negative for a function
            that stays as it is.
        evaluate: Evaluates the function.
        results: Read-only arrays of the results.
        parameter_values: The array of which the last argument is a copy. None for none.
    """

    __slots__ = (
        "_buffer",
        "_compilable",
        "_evaluations",
        "arguments",
        "calls_to_check",
        "evaluate",
        "parameter_values",
        "results",
    )

    def __init__(self, function: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.arguments: tuple[Array, ...] = tuple(
            np.zeros(function.numel_in(i)) for i in range(function.n_in())
        )
        self.results: tuple[Array, ...] = tuple(np.zeros(shape) for shape in shapes)
        self.parameter_values: Array | None = None
        self._bind(function)
        self._compilable, self._evaluations = None, _FIRST_CHECK
        self.calls_to_check = -1
        if isinstance(function, CompilableFunction):
            self._compilable = function
            self.calls_to_check = max(1, _FIRST_CHECK // function.points)

    def _bind(self, function: Any) -> None:
        """Let a function read the arguments and write the results of this memory."""
        # CasADi holds addresses, not the arrays: these attributes keep buffer and arrays alive.
        self._buffer, self.evaluate = function.buffer()
        for i, array in enumerate(self.arguments):
            self._buffer.set_arg(i, array.data)
        for i, array in enumerate(self.results):
            array.flags.writeable = True  # CasADi takes no address of a read-only array
            self._buffer.set_res(i, array.reshape(-1).data)
            array.flags.writeable = False

    def use_machine_code(self) -> None:
        """Change to machine code of the function, if that is kept, or have it compiled.

        Arguments and results stay where they are, and results are the same to the bit.
        """
        function = self._compilable
        assert function is not None
        found = function.find_machine_code()
        if found is not None:
            self._bind(found)
            self._compilable, self.calls_to_check = None, -1
            return
        begun = perf_counter()
        self.evaluate()
        spent = (perf_counter() - begun) / function.points * self._evaluations
        if spent > _SHARE_OF_COMPILATION * function.compilation_time:
            function.compile_in_background()
        self._evaluations += _NEXT_CHECK
        self.calls_to_check = max(1, _NEXT_CHECK // function.points)


class _SharedMemories(threading.local):
    """The memories of functions with parameters in a thread, the one made last at the end."""

    def __init__(self) -> None:
        self.known: OrderedDict[tuple[Any, tuple[tuple[int, ...], ...]], _FunctionMemory] = (
            OrderedDict()
        )


_SHARED = _SharedMemories()
_MAX_SHARED = 512
"""Most functions of which a thread keeps the memory. A choice: more than the modes of some robots.

Objects keep theirs beyond that; only later ones of the same function have another."""


def _find_memory(function: Any, shapes: tuple[tuple[int, ...], ...]) -> _FunctionMemory:
    """Return the memory of a function in this thread, which all its objects share."""
    known, key = _SHARED.known, (function, shapes)
    memory = known.get(key)
    if memory is None:
        memory = known[key] = _FunctionMemory(function, shapes)
        if len(known) > _MAX_SHARED:
            known.popitem(last=False)
    return memory


@lru_cache(maxsize=512)
def _widen_function(function: Any, width: int) -> Any:
    """Return a `casadi.Function` at a number of points; its objects of several values share it."""
    is_compilable = isinstance(function, CompilableFunction)
    return function.widen(width) if is_compilable else function.map(width)


class CallableFunction:
    """A CasADi function of columns with arrays of its own, as compiled code calls it.

    Compiled code calls the function at `address` with `data`, without Python. That reads
    `arguments`, and writes `results`. Nothing of this object is safe for several threads at once.

    Args:
        function: A `casadi.Function`. Its arguments are columns, its results dense.
        parameter_values: Value (n,) of its last argument, which is no part of `arguments`.

    Attributes:
        address: Address of a C function `void (void *data)`.
        data: Capsule with the address of its argument, which holds as long as this object.
        arguments: Arrays (n,) of the arguments.
        results: Arrays (n,) of the results, with matrices column by column.
    """

    def __init__(self, function: Any, parameter_values: Array) -> None:
        address = find_buffer_evaluator()
        assert address is not None
        self.address = address
        self._buffer, _ = function.buffer()
        self.data: Any = self._buffer._self()
        self._parameter_values = np.array(parameter_values, dtype=np.float64)
        self.arguments = tuple(np.zeros(function.numel_in(i)) for i in range(function.n_in() - 1))
        self.results = tuple(np.zeros(function.numel_out(i)) for i in range(function.n_out()))
        for i, array in enumerate((*self.arguments, self._parameter_values)):
            self._buffer.set_arg(i, array.data)
        for i, array in enumerate(self.results):
            self._buffer.set_res(i, array.data)


@cache
def find_buffer_evaluator() -> int | None:
    """Return the address of CasADi's function that evaluates a buffer; None if there is none.

    `casadi.FunctionBuffer` itself calls it through Python. Its name is that of C++ compilers on
    Linux and macOS.
    """
    try:
        library = ctypes.CDLL(str(sys.modules["casadi._casadi"].__file__))
        found = library._ZN6casadi21_function_buffer_evalEPv
    except (AttributeError, KeyError, OSError):
        return None
    return ctypes.cast(found, ctypes.c_void_p).value


class BatchedFunction(threading.local):
    """A CasADi function of columns at many points, with memory of its own in each thread.

    Calls of up to 64 points share the cost of a call. The functions for these widths are made when
    they are first used in a thread.

    Args:
        function: A `casadi.Function` as `CompiledFunction` takes it.
        shapes: Shape of each result at one point.
        parameter_values: Value (n,) of the last argument at all points, which callers then leave
            out. None if they pass it.
    """

    def __init__(
        self,
        function: Any,
        shapes: Sequence[tuple[int, ...]],
        parameter_values: Array | None = None,
    ) -> None:
        self._constructor_arguments = function, tuple(shapes), parameter_values
        self._shapes = tuple(shapes)
        self._functions_by_width: dict[int, CompiledFunction] = {}

    def __reduce__(self) -> tuple[type[BatchedFunction], tuple[Any, ...]]:
        return BatchedFunction, self._constructor_arguments

    def __call__(self, *columns: Array) -> list[Array]:
        """Return all results as new arrays (m, ...), with one point in each row.

        Args:
            *columns: The arguments (m, n) at m points. A wrong size is a `ValueError` of numpy.
        """
        m, first = len(columns[0]), 0
        results = [np.empty((m, *shape)) for shape in self._shapes]
        for width in _BATCH_WIDTHS:
            while m - first >= width:
                rows = slice(first, first + width)
                values = self._get_function(width)(*(column[rows].ravel() for column in columns))
                for result, value in zip(results, values, strict=True):
                    result[rows] = value
                first += width
        return results

    def with_values(self, parameter_values: Array) -> BatchedFunction:
        """Return the function at a value (n,) of its last argument, which callers then leave out.

        Args:
            parameter_values: The value.
        """
        return BatchedFunction(*self._constructor_arguments[:2], parameter_values)

    def _get_function(self, width: int) -> CompiledFunction:
        """Return the function of `width` points, which is made at first use."""
        if width not in self._functions_by_width:
            shapes = [(width, *shape) for shape in self._shapes]
            function, _, values = self._constructor_arguments
            # Values are repeated for each point: to make a function with fixed ones takes longer.
            repeated = None if values is None else np.tile(values, width)
            wide = CompiledFunction(_widen_function(function, width), shapes, repeated)
            self._functions_by_width[width] = wide
        return self._functions_by_width[width]


def build_transposed_function(name: str, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
    """Return a `casadi.Function` of dense transposed results, as `CompiledFunction` takes it.

    Subexpressions that several results have in common are evaluated once.

    Args:
        name: Name of the function.
        arguments: Symbols, columns of SX or MX.
        results: Expressions in these symbols.
    """
    return ca.Function(name, arguments, ca.cse([ca.densify(result.T) for result in results]))


def fix_last_argument(function: Any, parameter_values: Array) -> Any:
    """Return the `casadi.Function` with its last argument fixed at these values (n,)."""
    symbols = function.mx_in()[:-1]
    results = function.call([*symbols, ca.DM(parameter_values)])
    return ca.Function(function.name(), symbols, results)
