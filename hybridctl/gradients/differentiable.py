"""A run as a differentiable function of initial state, sampled inputs and parameters.

For example::

    flow = hc.differentiable(system, mode, (0.0, 1.0), times=[0.5, 1.0], holds=20)
    tape = flow.run(x0, inputs)
    gradient = tape.vjp(2.0 * (tape.states - wanted))

`gradient.state`, `gradient.inputs` and `gradient.parameters` are exact, through impacts, stick and
slip, simultaneous events and rest, at about the cost of the run, however many they are. `hc.torch`
and `hc.jax` make the same function part of the automatic differentiation of these libraries.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_count,
    check_interval,
    check_member,
    check_number,
    check_sequence,
    check_vector,
)
from hybridctl.base.errors import InputError
from hybridctl.gradients.batch import BatchGradient, Loss, differentiate_members
from hybridctl.gradients.event_adjoint import Kink
from hybridctl.gradients.parametric_system import MakeSystem, ParametricSystem
from hybridctl.gradients.tape import FeedbackSample, Tape, find_intervals
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.zeno import OnZeno
from hybridctl.sensitivity.simultaneous import Simultaneous

Feedback = Callable[[int, Array], ArrayLike]
"""Returns the input (nu,) held from sample k on, given k and the state (nx,) there."""


def differentiable(
    system: HybridSystem | MakeSystem,
    mode: ModeKey | None,
    span: ArrayLike,
    *,
    times: ArrayLike | None = None,
    events: int = 0,
    holds: int | ArrayLike | None = None,
    parameters: Sequence[str] = (),
    kink: Kink = "raise",
    simultaneous: Simultaneous = "in turn",
    on_zeno: OnZeno = "rest",
    rtol: float = 1e-9,
    **settings: Any,
) -> DifferentiableFlow:
    """Return a run as a differentiable function.

    Args:
        system: The hybrid system. With parameters, a robot with contacts (`contact_system`), a
            system of `symbolic.parametric_system`, or a function of their values (np,) that returns
            the system and its `ParameterModel`.
        mode: Key of the initial mode. None for the one consistent with each initial state.
        span: Start and end, s.
        times: Times (n,) at which states are returned, s. None for the end alone.
        events: Number of event times that are returned, those of the first events of guards.
        holds: Times (N + 1,) between which inputs are held, s, ascending, or the number N of equal
            intervals. None for a run without inputs.
        parameters: Names of the parameters. Of robots those of `mechanics.parameter_values`, such
            as "friction:foot", "mass:ball", or "restitution" for all contacts. Of expressions
            those that `symbolic.parametric_system` was given.
        kink: What is taken where a run has no gradient: "raise" an error that says why, the "mean"
            of its linear pieces, or the "first" one; see `event_adjoint.Kink`.
        simultaneous: Whether guards that fire together do so one by one when they are perturbed,
            "in turn", or stay one impact, "at once"; see `jump_derivative`.
        on_zeno: See `simulate`.
        rtol: Relative tolerance of the adjoint on each interval.
        **settings: Further arguments of `simulate`, such as `event_window`. With a `wrench` there
            are no parameters: how its forces depend on them is not differentiated.

    Returns:
        The function.

    Raises:
        InputError: An argument does not fit.
        UnknownNameError: A parameter, `kink` or `simultaneous` is none of its names.
    """
    start, end = check_interval("span", span)
    asked = np.array([end]) if times is None else check_vector("times", times)
    if len(asked) and not (start <= asked.min() and asked.max() <= end):
        raise InputError(f"times must lie in the span [{start}, {end}], got {asked.tolist()}")
    names = tuple(check_sequence("parameters", parameters))
    if names and settings.get("wrench") is not None:
        raise InputError(f"a run with a wrench has no gradient by parameters, got {names}")
    return DifferentiableFlow(
        ParametricSystem(system, names),
        mode,
        (start, end),
        asked,
        check_count("events", events, at_least=0),
        _check_holds(holds, start, end),
        check_member("kink", kink, get_args(Kink)),
        check_member("simultaneous", simultaneous, get_args(Simultaneous)),
        check_number("rtol", rtol, above=0.0),
        {"on_zeno": on_zeno, **settings},
    )


def _check_holds(holds: int | ArrayLike | None, start: float, end: float) -> Array | None:
    """Return the times (N + 1,) between which inputs are held.

    Raises:
        InputError: They do not ascend, or do not cover the span.
    """
    if holds is None:
        return None
    if isinstance(holds, int | np.integer):
        return np.linspace(start, end, check_count("holds", holds) + 1)
    borders = check_vector("holds", holds)
    if len(borders) < 2 or not (np.diff(borders) > 0.0).all():
        raise InputError(f"holds must be two or more ascending times, got {borders.tolist()}")
    if borders[0] > start or borders[-1] < end:
        raise InputError(
            f"holds must cover the span [{start}, {end}], got {borders[0]} to {borders[-1]}"
        )
    return borders


@dataclass(frozen=True, eq=False)
class DifferentiableFlow:
    """A run as a differentiable function, as `differentiable` makes it.

    Attributes:
        parametric: The system as a function of its parameters.
        mode: Key of the initial mode, or None.
        span: Start and end, s.
        times: Times (n,) at which states are returned, s.
        event_count: Number of event times that are returned.
        hold_times: Times (N + 1,) between which inputs are held, s, or None.
        kink: What is taken where a run has no gradient.
        simultaneous: See `jump_derivative`.
        rtol: Relative tolerance of the adjoint.
        settings: Further arguments of `simulate`.
    """

    parametric: ParametricSystem
    mode: ModeKey | None
    span: tuple[float, float]
    times: Array
    event_count: int
    hold_times: Array | None
    kink: Kink
    simultaneous: Simultaneous
    rtol: float
    settings: dict[str, Any]
    _recent: OrderedDict[tuple[object, ...], Tape] = field(default_factory=OrderedDict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the recent runs, which are far larger."""
        return {**self.__dict__, "_recent": OrderedDict()}

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names (np,) of the parameters."""
        return self.parametric.names

    @property
    def nominal_parameters(self) -> Array | None:
        """Values (np,) of the parameters in the system that was given; None if it is a function."""
        return self.parametric.nominal_values

    def run(
        self,
        x0: ArrayLike,
        inputs: ArrayLike | None = None,
        parameters: ArrayLike | None = None,
    ) -> Tape:
        """Return a recorded run.

        Args:
            x0: Initial state (nx,).
            inputs: Inputs (N, nu), one for each interval of `holds`. None for zero; the gradient
                then has none.
            parameters: Values (np,) of the parameters. None for those of the system.

        Returns:
            The run, with its states at `times` and the times of its events.

        Raises:
            InputError: An argument has the wrong shape, or there are no `holds` for inputs.
            SimulationError: The run cannot go on, see `simulate`.
        """
        policy, held = None, None
        if inputs is not None:
            if self.hold_times is None:
                raise InputError("inputs need holds, the times between which they are held")
            held = check_array("inputs", inputs, (len(self.hold_times) - 1, None))
            policy = _SampledInputs(self.hold_times, held)
        return self._record(x0, parameters, policy, held, None)

    def run_policy(
        self, x0: ArrayLike, feedback: Feedback, parameters: ArrayLike | None = None
    ) -> Tape:
        """Return a recorded run under a sampled feedback; `Tape.vjp` takes its derivative.

        Args:
            x0: Initial state (nx,).
            feedback: Returns the input (nu,) held on interval k, given k and the state (nx,) at its
                start. It is called once for each interval.
            parameters: Values (np,) of the parameters. None for those of the system.

        Returns:
            The run, with the inputs and the states at which they were taken.

        Raises:
            InputError: An argument has the wrong shape, or there are no `holds`.
            SimulationError: The run cannot go on, see `simulate`.
        """
        if self.hold_times is None:
            raise InputError("a feedback needs holds, the times between which its inputs are held")
        policy = _SampledFeedback(self.hold_times, feedback)
        return self._record(x0, parameters, policy, None, policy)

    def differentiate_batch(
        self,
        loss: Loss,
        x0: ArrayLike,
        inputs: ArrayLike | None = None,
        parameters: ArrayLike | None = None,
        *,
        executor: Executor | None = None,
    ) -> BatchGradient:
        """Return the losses of many runs, with the gradient of each.

        A member that has no run or no gradient does not keep the others from theirs: its error is
        in `BatchGradient.errors`.

        Args:
            loss: Returns the `RunLoss` of a run.
            x0: Initial states (m, nx).
            inputs: Inputs (m, N, nu) of each member, or (N, nu) of all. None for zero.
            parameters: Values (m, np) of each member, or (np,) of all. None for those of the
                system.
            executor: Runs parts of the batch, such as a `ProcessPoolExecutor`; system and loss have
                to pickle then. None for this process. Threads do not help.

        Returns:
            The losses and gradients.

        Raises:
            InputError: An argument has the wrong shape.
        """
        # Shapes are those of all members: a wrong one is not an error of one of them.
        if inputs is not None:
            if self.hold_times is None:
                raise InputError("inputs need holds, the times between which they are held")
            count = len(self.hold_times) - 1
            if np.shape(inputs)[-2:-1] != (count,):
                raise InputError(
                    f"inputs must be ({count}, nu) or (m, {count}, nu), got {np.shape(inputs)}"
                )
        if parameters is not None and np.shape(parameters)[-1:] != (len(self.parameter_names),):
            raise InputError(
                f"parameters must be ({len(self.parameter_names)},) or (m, "
                f"{len(self.parameter_names)}), got {np.shape(parameters)}"
            )
        return differentiate_members(self.run, loss, x0, inputs, parameters, executor)

    def recall(
        self,
        x0: ArrayLike,
        inputs: ArrayLike | None = None,
        parameters: ArrayLike | None = None,
    ) -> Tape:
        """Return the run of these arguments: a recent one if there is, else a new one.

        Bridges ask for the run twice, to go forwards and backwards. The last 64 runs are kept.

        Args:
            x0: See `run`.
            inputs: See `run`.
            parameters: See `run`.

        Returns:
            The run. It raises the errors of `run`.
        """
        given = (None if a is None else np.asarray(a, np.float64) for a in (x0, inputs, parameters))
        key = tuple(None if a is None else (a.shape, a.tobytes()) for a in given)
        tape = self._recent.pop(key, None)  # one step, as JAX may call from several threads
        if tape is None:
            tape = self.run(x0, inputs, parameters)
        self._recent[key] = tape
        while len(self._recent) > _KEPT_RUNS:
            with suppress(KeyError):
                self._recent.popitem(last=False)
        return tape

    def _record(
        self,
        x0: ArrayLike,
        parameters: ArrayLike | None,
        policy: _SampledInputs | None,
        held: Array | None,
        feedback: _SampledFeedback | None,
    ) -> Tape:
        """Return the record of a run.

        Args:
            x0: Initial state (nx,).
            parameters: Values (np,) of the parameters, or None.
            policy: The policy of the run, or None.
            held: Inputs (N, nu) that were given, or None.
            feedback: The policy, if it is a feedback whose samples are recorded.

        Raises:
            InputError: The parameters have the wrong number, or none are given and none are known.
        """
        values = self.nominal_parameters if parameters is None else parameters
        if values is None:
            raise InputError("parameters must be given, as a function makes the system of them")
        numbers = check_vector("parameters", values, len(self.parameter_names))
        system, model = self.parametric.make(numbers)
        settings = dict(self.settings)
        wrench = settings.pop("wrench", None)
        if wrench is not None:  # the run belongs to this system, and so do its derivatives
            system = system.pushed(wrench)
        run = simulate(system, self.mode, x0, self.span, policy, **settings)
        samples: tuple[FeedbackSample, ...] = ()
        if feedback is not None:
            held, samples = feedback.inputs, tuple(feedback.samples)
        return Tape(
            system,
            run,
            self.times,
            self.event_count,
            self.hold_times,
            held,
            model,
            self.kink,
            self.simultaneous,
            self.rtol,
            samples,
        )


_KEPT_RUNS = 64
"""Number of recent runs that `recall` keeps. A choice: more than the members of usual batches."""


class _SampledInputs:
    """The policy of inputs (N, nu) that are held between times (N + 1,), s."""

    def __init__(self, times: Array, inputs: Array) -> None:
        self.times, self.inputs = times, inputs

    def law(self, history: History) -> HeldInput:
        """Return the input held from now on."""
        return HeldInput(self.inputs[self.find_hold(history.time)].copy())

    def next_change(self, history: History) -> float:
        """Return the next time at which the input changes, s; infinite after the last."""
        k = self.find_hold(history.time) + 1
        return float(self.times[k]) if k < len(self.times) - 1 else math.inf

    def find_hold(self, t: float) -> int:
        """Return the number of the interval that a time is in."""
        return int(find_intervals(self.times, np.array([t]))[0])


class _SampledFeedback(_SampledInputs):
    """The policy of a feedback that is asked at the start of each interval.

    Attributes:
        samples: The samples so far, in order of time.
    """

    def __init__(self, times: Array, feedback: Feedback) -> None:
        super().__init__(times, np.zeros((len(times) - 1, 0)))
        self._feedback, self.samples = feedback, list[FeedbackSample]()

    def law(self, history: History) -> HeldInput:
        """Return the input held from now on; the feedback is asked on each new interval."""
        k = self.find_hold(history.time)
        if not self.samples or self.samples[-1].hold != k:
            u = check_vector("feedback", self._feedback(k, history.state))
            if not self.samples:
                self.inputs = np.zeros((len(self.times) - 1, len(u)))
            self.inputs[k] = u
            arc = len(history.events)
            self.samples.append(FeedbackSample(k, arc, history.time, history.state.copy()))
        return super().law(history)
