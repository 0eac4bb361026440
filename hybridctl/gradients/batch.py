"""Gradients of many runs of one flow: each member with its own start, inputs and parameters.

Members are run and differentiated one after the other, or in the processes of an executor. Threads
do not help: most of the time is Python's own, whose lock they share.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from os import cpu_count
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_instance
from hybridctl.base.errors import HybridctlError, InputError, SimulationError
from hybridctl.gradients.tape import Gradient, Tape

_CHUNKS_PER_PROCESSOR = 2
"""Parts of a batch for each processor. Each part makes the modes anew that it enters, so that few
are better; with more than one a processor that is done early helps with the rest. A choice."""


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
    parts = min(count, _CHUNKS_PER_PROCESSOR * (cpu_count() or 1))
    borders = np.linspace(0, count, parts + 1).astype(int).tolist()
    calls = [
        executor.submit(_differentiate_each, run, loss, arguments.select(slice(a, b)))
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


def _differentiate_each(run: MakeTape, loss: Loss, arguments: _Arguments) -> list[_Member]:
    """Return what is found of each member, one after the other.

    Raises:
        InputError: The derivatives that the loss returns have another shape than what they are by.
    """
    found = []
    for k, start in enumerate(arguments.x0):
        inputs, parameters = (None if a is None else a[k] for a in arguments[1:])
        value = np.nan
        try:
            tape = run(start, inputs, parameters)
            wanted = loss(tape)
            value = float(wanted.value)
        except HybridctlError as error:
            found.append(_Member(value, None, error))
            continue
        # Faults of the loss are the caller's, and not those of one member.
        for name, given, by in (
            ("states", wanted.states, tape.states),
            ("event_times", wanted.event_times, tape.event_times),
        ):
            if given is not None:
                check_array(f"{name} of the loss", given, by.shape)
        try:
            gradient = tape.vjp(wanted.states, wanted.event_times)
            found.append(_Member(value, gradient, None))
        except HybridctlError as error:
            found.append(_Member(value, None, error))
    return found


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
