"""Gradients of many runs of one flow: each member with its own start, inputs and parameters.

Members are run one after the other, or in the processes of an executor. Their adjoints are
collocated together. Threads do not help: most of the time is Python's own, whose lock they share.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from os import cpu_count
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_instance
from hybridctl.base.errors import HybridctlError, InputError, SimulationError
from hybridctl.gradients.tape import Gradient, Tape, make_maps_together

_CHUNKS_PER_PROCESSOR = 2
"""Parts of a batch for each processor: one that is done early helps with the rest. A choice."""
_MEMBERS_TOGETHER = 32
"""Members whose arcs are collocated together, and so are in memory together.

Tosses of a cube with gradients take 0.96 of the time that they take with 8, and 25 MB more. A
choice."""


class RunLoss(NamedTuple):
    """The loss of a run, with its derivatives by what the run returns.

    Attributes:
        value: The loss.
        states: Derivatives (n, nx) by `Tape.states`. None for zero.
        event_times: Derivatives (event_count,) by `Tape.event_times`, 1/s. None for zero.
    """

    value: float
    states: ArrayLike | None = None
    event_times: ArrayLike | None = None


MakeTape = Callable[[Array, Array | None, Array | None], Tape]
"""Returns the recorded run of an initial state, inputs and parameters."""
Loss = Callable[[Tape], RunLoss]
"""Returns the loss of a run. For processes it has to pickle."""


@dataclass(frozen=True, eq=False)
class BatchGradient:
    """The losses of m runs and their gradients; NaN for members that failed.

    Attributes:
        values: Losses (m,).
        states: Gradients (m, ndx) by the initial states, see `Gradient.state`.
        coordinates: Gradients (m, nx), see `Gradient.coordinates`.
        inputs: Gradients (m, N, nu) by the held inputs. None if the runs had none.
        parameters: Gradients (m, np) by the parameters.
        errors: By member, why it has no run or no gradient. A member that has a run but no gradient
            keeps its loss.
    """

    values: Array
    states: Array
    coordinates: Array
    inputs: Array | None
    parameters: Array
    errors: dict[int, HybridctlError]

    def check(self) -> None:
        """Check that each member has a gradient.

        Raises:
            SimulationError: One has none: how many, and why the first one has none.
        """
        if self.errors:
            first = min(self.errors)
            raise SimulationError(
                f"{len(self.errors)} of {len(self.values)} members have no gradient; member "
                f"{first}: {self.errors[first]}"
            ) from self.errors[first]


class _Arguments(NamedTuple):
    """The arguments of m runs: x0 (m, nx), inputs (m, N, nu) and parameters (m, np), or None."""

    x0: Array
    inputs: Array | None
    parameters: Array | None

    def select(self, rows: slice) -> _Arguments:
        """Return those of some members."""
        inputs, parameters = (None if a is None else a[rows] for a in self[1:])
        return _Arguments(self.x0[rows], inputs, parameters)


class _Member(NamedTuple):
    """What was found of one member: its loss, its gradient, and the error that left one out."""

    value: float
    gradient: Gradient | None
    error: HybridctlError | None


def differentiate_members(
    run: MakeTape,
    loss: Loss,
    x0: ArrayLike,
    inputs: ArrayLike | None,
    parameters: ArrayLike | None,
    executor: Executor | None,
) -> BatchGradient:
    """Return losses and gradients of many runs, see `DifferentiableFlow.differentiate_batch`.

    Args:
        run: Makes the recorded run of a member.
        loss: Returns the loss of each run.
        x0: Initial states (m, nx).
        inputs: Inputs (m, N, nu), or (N, nu) of all. None for zero.
        parameters: Values (m, np), or (np,) of all. None for those of the system.
        executor: Runs parts of the batch. None for this process.

    Raises:
        InputError: An argument has the wrong shape.
    """
    starts = check_array("x0", x0, (None, None))
    count = len(starts)
    if not count:
        raise InputError("x0 must have at least one member, got none")
    held = None if inputs is None else _repeat("inputs", inputs, count, 3)
    values = None if parameters is None else _repeat("parameters", parameters, count, 2)
    arguments = _Arguments(starts, held, values)
    if executor is None:
        return _gather(_differentiate_each(run, loss, arguments), arguments)
    check_instance("executor", executor, Executor)
    shared = _SharedRun(run)
    parts = min(count, _CHUNKS_PER_PROCESSOR * (cpu_count() or 1))
    borders = np.linspace(0, count, parts + 1).astype(int).tolist()
    calls = [
        executor.submit(_differentiate_each, shared, loss, arguments.select(slice(a, b)))
        for a, b in pairwise(borders)
    ]
    return _gather([member for call in calls for member in call.result()], arguments)


def _repeat(name: str, given: ArrayLike, count: int, axes: int) -> Array:
    """Return an argument of each member; one that has no axis for members is that of all.

    Args:
        name: Name of the argument, for messages.
        given: The argument.
        count: Number of members.
        axes: Number of axes with that for members.
    """
    array = check_array(name, given)
    if array.ndim == axes - 1:
        array = np.broadcast_to(array, (count, *array.shape))
    return check_array(name, array, (count, *[None] * (axes - 1)))


class _SharedRun:
    """A `MakeTape` that a process keeps: later parts and batches find the modes that it has made.

    Args:
        run: Makes the recorded run of a member.
    """

    def __init__(self, run: MakeTape) -> None:
        self._run = run

    def __call__(self, x0: Array, inputs: Array | None, parameters: Array | None) -> Tape:
        """Return the recorded run of an initial state, inputs and parameters."""
        return self._run(x0, inputs, parameters)

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self._run)

    def __reduce__(self) -> tuple[Callable[[bytes], _SharedRun], tuple[bytes]]:
        return _recall_run, (self._pickled,)


_kept_runs: dict[bytes, _SharedRun] = {}
"""The last run that this process was sent, by its pickled form; at most one."""


def _recall_run(pickled: bytes) -> _SharedRun:
    """Return the run that was pickled: the last one if it is the same, else a new one, kept."""
    found = _kept_runs.get(pickled)
    if found is None:
        found = _SharedRun(pickle.loads(pickled))
        _kept_runs.clear()
        _kept_runs[pickled] = found
    return found


def _differentiate_each(run: MakeTape, loss: Loss, arguments: _Arguments) -> list[_Member]:
    """Return what is found of each member.

    Members are run one after the other. Costates on their arcs are made together.

    Raises:
        InputError: The derivatives that the loss returns have another shape than what they are by.
    """
    found: list[_Member] = []
    for first in range(0, len(arguments.x0), _MEMBERS_TOGETHER):
        some = arguments.select(slice(first, first + _MEMBERS_TOGETHER))
        runs = [_evaluate_loss(run, loss, some, k) for k in range(len(some.x0))]
        evaluated = [each for each in runs if isinstance(each, _EvaluatedRun)]
        _make_costates(evaluated)
        found += [
            each.differentiate() if isinstance(each, _EvaluatedRun) else each for each in runs
        ]
    return found


class _EvaluatedRun(NamedTuple):
    """A member's run and its loss."""

    tape: Tape
    loss: RunLoss

    def differentiate(self) -> _Member:
        """Return the loss and its gradient."""
        value = float(self.loss.value)
        try:
            return _Member(value, self.tape.vjp(self.loss.states, self.loss.event_times), None)
        except HybridctlError as error:
            return _Member(value, None, error)


def _evaluate_loss(
    run: MakeTape, loss: Loss, arguments: _Arguments, k: int
) -> _EvaluatedRun | _Member:
    """Return the run and the loss of member k, or the error by which it has none.

    Args:
        run: Makes the recorded run of a member.
        loss: Returns the loss of a run.
        arguments: The arguments of members.
        k: Number of the member among these.

    Raises:
        InputError: The derivatives that the loss returns have another shape than what they are by.
    """
    inputs, parameters = (None if a is None else a[k] for a in arguments[1:])
    try:
        tape = run(arguments.x0[k], inputs, parameters)
        wanted = loss(tape)
    except HybridctlError as error:
        return _Member(np.nan, None, error)
    # Faults of the loss are the caller's, and not those of one member.
    for name, given, by in (
        ("states", wanted.states, tape.states),
        ("event_times", wanted.event_times, tape.event_times),
    ):
        if given is not None:
            check_array(f"{name} of the loss", given, by.shape)
    return _EvaluatedRun(tape, wanted)


def _make_costates(members: Sequence[_EvaluatedRun]) -> None:
    """Make and keep the costates on the arcs that losses depend on, those of one system together.

    With other values of parameters members have other systems, and other functions of these.
    """
    groups: dict[int, list[tuple[Tape, int]]] = {}
    for tape, loss in members:
        last = tape.find_last_arc(loss.states)
        groups.setdefault(id(tape.system), []).append((tape, last))
    for group in groups.values():
        if len(group) > 1:
            make_maps_together(group)


def _gather(members: list[_Member], arguments: _Arguments) -> BatchGradient:
    """Return the members' gradients in arrays.

    Args:
        members: What was found of each.
        arguments: Their arguments, whose shapes gradients have.
    """
    known = [member.gradient for member in members if member.gradient is not None]
    directions = len(known[0].state) if known else arguments.x0.shape[1]
    names = known[0].parameters.shape if known else (0,)
    values = np.array([member.value for member in members])
    shapes = (directions,), arguments.x0.shape[1:], names
    states, coordinates, parameters = (np.full((len(members), *s), np.nan) for s in shapes)
    inputs = None if arguments.inputs is None else np.full(arguments.inputs.shape, np.nan)
    errors = {}
    for k, (_, gradient, error) in enumerate(members):
        if error is not None:
            errors[k] = error
        if gradient is None:
            continue
        states[k], coordinates[k] = gradient.state, gradient.coordinates
        parameters[k] = gradient.parameters
        if inputs is not None and gradient.inputs is not None:
            inputs[k] = gradient.inputs
    return BatchGradient(values, states, coordinates, inputs, parameters, errors)
