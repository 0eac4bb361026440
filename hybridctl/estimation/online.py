"""A filter in a real-time loop: sensor values go in at each sample, an estimate comes out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import perf_counter

from numpy.typing import ArrayLike

from hybridctl.base.checks import check_flag, check_instance, check_number
from hybridctl.base.compilable import pause_compilation
from hybridctl.base.errors import InputError
from hybridctl.estimation.cut_prediction import rehearse
from hybridctl.estimation.deadline import Deadline
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_state import FilterState, Input
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.mode import ModeKey

_REMEMBERED_CORRECTIONS = 16
"""Last corrections whose least duration is reserved for each: most have no event. A choice."""
_NEWEST_WEIGHT = 0.1
"""Weight of the newest piece of work in the running mean of their times. A choice."""
Work = Callable[[FilterState], FilterState]
"""A piece of work: a prediction, or the correction by one channel."""


class Estimator:
    r"""A `SaltedKalmanFilter` that a loop steps, with an estimate within a deadline.

    A sample is work in pieces: the prediction to its time, and a correction for each channel.
    Samples with events take several times as long as others.

    With `finish`, a piece that has begun is finished, and a step with work finishes at least one.
    Pieces
    that the deadline leaves no time for are done first in the next steps, in their order, so that
    the estimate is then that of the filter. Until then `step` returns the last estimate
    extrapolated to the time of the sample by :math:`\dot x = f(x, u)`, in one step of Euler's
    method.

    Without `finish`, each sample is done in its step, and work that there is no time for is cut
    (`SaltedKalmanFilter.limit_time`): the covariance is larger for it, and notes say what was cut.
    The prediction has the time that corrections have not needed before. The first visit of a mode
    takes longer, because its functions are made or read from disk: `prepare` does that before.
    With a deadline no step begins to compile functions that are called often.

    Life cycle: `prepare` where time matters, `step` at each sample, `reset` to start again. An
    error in a value is raised by the `step` that does this piece of work, which with `finish` may
    be a later one. The piece is then dropped, and the next step goes on with the others.

    Args:
        kept: The filter. It is not changed.
        initial: The initial estimate.
        deadline: How long a step may take, s; inf for no limit.
        clock: Returns the time in s.
        finish: Whether work that there is no time for is left to later steps.

    Attributes:
        filter: The filter that is stepped.
        state: Its state after the pieces of work that are done.

    Raises:
        InputError: An argument does not fit.
    """

    def __init__(
        self,
        kept: SaltedKalmanFilter,
        initial: Estimate,
        *,
        deadline: float = math.inf,
        clock: Callable[[], float] = perf_counter,
        finish: bool = True,
    ) -> None:
        check_instance("kept", kept, SaltedKalmanFilter)
        self._finish = check_flag("finish", finish)
        self._work_deadline = Deadline(clock)
        self.filter = kept if finish else kept.limit_time(self._work_deadline)
        if deadline != math.inf:
            check_number("deadline", deadline, above=0.0)
        self._deadline, self._clock = deadline, clock
        self._mean_duration = 0.0  # of a piece of work, s; zero before the first
        self._corrections = deque[float](maxlen=_REMEMBERED_CORRECTIONS)  # their durations, s
        self.reset(initial)

    def reset(self, initial: Estimate) -> None:
        """Start again from an estimate, and drop the work that is left.

        Args:
            initial: The estimate.
        """
        self.state = self.filter.start(initial)
        self._time = self.state.time
        self._left: deque[Work] = deque()

    def prepare(self, modes: Iterable[ModeKey], input: Input = None) -> None:
        """Make the functions of modes before they are visited, and of events that leave them.

        Args:
            modes: Keys of the modes, such as those of `FilterResult` that a run on a log visits.
            input: Input, as for `step`.
        """
        model, e = self.filter.model, self.state.estimate
        rehearse(model, e, modes, model.law(e.mode, input))

    @property
    def behind(self) -> int:
        """Number of pieces of work that are left to the next steps."""
        return len(self._left)

    def step(self, t: float, values: Mapping[str, ArrayLike], input: Input = None) -> Estimate:
        """Return the estimate at the time of a sample, and update the state.

        Args:
            t: Time of the sample, s.
            values: Values by channel.
            input: Input since the sample before, as for `SaltedKalmanFilter.predict`.

        Raises:
            InputError: The time is before that of the sample before, or a value does not fit its
                channel.
            UnknownNameError: The filter has no such channel.
            SimulationError: The estimate is not finite.
        """
        begun, time = self._clock(), check_number("t", t)
        if time < self._time:
            raise InputError(f"t must not be before the last sample, {self._time} s, got {time}")
        self._left.extend(self._split_into_pieces(time, values, input))
        self._time = time
        with nullcontext() if self._deadline == math.inf else pause_compilation():
            self._work_off(begun)
        return self._extrapolate(input) if self._left else self.state.estimate

    def _work_off(self, begun: float) -> None:
        """Do the pieces of work that there is time for, and update the state.

        Args:
            begun: Time of the clock at which the step began, s.
        """
        now, correction = begun, min(self._corrections, default=0.0)
        while self._left and (
            not self._finish or now == begun or now - begun + self._mean_duration <= self._deadline
        ):
            piece = self._left.popleft()
            # Corrections come last, and each takes at least this long. With `finish` pieces that
            # are left may be predictions, but the limit does not act.
            self._work_deadline.limit = begun + self._deadline - correction * len(self._left)
            self.state = piece(self.state)
            last, now = now, self._clock()
            weight = _NEWEST_WEIGHT if self._mean_duration else 1.0
            self._mean_duration += weight * (now - last - self._mean_duration)
            if isinstance(piece, partial):
                self._corrections.append(now - last)

    def _split_into_pieces(
        self, t: float, values: Mapping[str, ArrayLike], given: Input
    ) -> Iterator[Work]:
        """Yield the prediction to a time, unless the last sample has it, and the corrections."""
        kept = self.filter
        if t > self._time:
            yield lambda state: kept.predict(state, t, given)
        for channel, value in values.items():
            yield partial(kept.update, channel=channel, value=value, input=given)

    def _extrapolate(self, given: Input) -> Estimate:
        """Return the last estimate at the time of the last sample, by one step of Euler's method.

        The mode stays, without events.
        The covariance stays that of the last estimate.
        """
        e = self.state.estimate
        model = self.filter.model
        mode = model.system.mode(e.mode)
        rate = mode.field(e.time, e.mean, model.law(e.mode, given)(e.time, e.mean))
        mean = mode.space.integrate(e.mean, (self._time - e.time) * rate)
        return replace(e, time=self._time, mean=mean)
