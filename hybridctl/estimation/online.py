"""A filter in somebody's loop: what sensors say goes in at each sample, an estimate comes out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter

from numpy.typing import ArrayLike

from hybridctl.base.checks import check_flag, check_instance, check_number
from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.state import FilterState, Input

_RECENT = 0.1  # the weight of the last piece of work in what one usually takes
Work = Callable[[FilterState], FilterState]


class Estimator:
    r"""A `SaltedKalmanFilter` that is stepped by a loop, and gives its estimate within a deadline.

    kept: the filter. initial: the estimate to begin with. deadline: how long a step may take, s;
    without one each sample is finished in its step. clock: tells seconds. finish: whether work that
    there is no time for is left to later steps; otherwise each sample is done in its step, and
    events for which it is too late are not followed, see `SaltedKalmanFilter.hurried`.

    A sample is work in pieces: the prediction to its time, and a correction for each channel.
    Samples with events are several times as dear as others. Pieces that the deadline leaves no
    time for are done first in the next steps, in their order, so that the estimate is then that of
    the filter. Until then it is `behind`: the last one, carried on to the present by
    :math:`\dot x = f(x, u)` in one step of Euler's. A piece that has begun is finished, and each
    step finishes one. Without `finish` a step takes little more than the deadline and one event;
    what it then leaves out is gone, and the covariance says so.
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
        self.filter = kept if finish else kept.hurried(self._late)
        if deadline != math.inf:
            check_number("deadline", deadline, above=0.0)
        self._deadline, self._clock, self._limit = deadline, clock, math.inf
        self._usual = 0.0  # s, that a piece takes
        self.reset(initial)

    def reset(self, initial: Estimate) -> None:
        """Begin anew with an estimate."""
        self.state = self.filter.start(initial)
        self._time = self.state.time
        self._left: deque[Work] = deque()

    @property
    def behind(self) -> int:
        """Pieces of work that are left to the next steps."""
        return len(self._left)

    def step(self, t: float, values: Mapping[str, ArrayLike], input: Input = None) -> Estimate:
        """The estimate at time t in s, where channels have the values, by name.

        input: since the sample before, as for `SaltedKalmanFilter.predict`. Raises `InputError` for
        a time before that of the sample before, and what the filter raises.
        """
        begun, time = self._clock(), check_number("t", t)
        if time < self._time:
            raise InputError(f"t must not be before the last sample, {self._time} s, got {time}")
        self._left.extend(self._pieces(time, values, input))
        self._time = time
        now, self._limit = begun, begun + self._deadline
        while self._left and (
            not self._finish or now == begun or now - begun + self._usual <= self._deadline
        ):
            self.state = self._left.popleft()(self.state)
            last, now = now, self._clock()
            self._usual += (_RECENT if self._usual else 1.0) * (now - last - self._usual)
        return self._carried(input) if self._left else self.state.estimate

    def _late(self) -> bool:
        return self._clock() > self._limit

    def _pieces(self, t: float, values: Mapping[str, ArrayLike], given: Input) -> Iterator[Work]:
        kept = self.filter
        if t > self._time:
            yield lambda state: kept.predict(state, t, given)
        for channel, value in values.items():
            yield partial(kept.update, channel=channel, value=value, input=given)

    def _carried(self, given: Input) -> Estimate:
        """The last estimate at the present time, as it goes on in its mode."""
        e = self.state.estimate
        model = self.filter.model
        mode = model.system.mode(e.mode)
        rate = mode.field(e.time, e.mean, model.law(e.mode, given)(e.time, e.mean))
        mean = mode.space.integrate(e.mean, (self._time - e.time) * rate)
        return replace(e, time=self._time, mean=mean)
