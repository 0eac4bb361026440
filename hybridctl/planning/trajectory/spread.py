r"""Optima that stay feasible over the spread of event times which their own tracking leaves.

How far arcs are to go on past event k depends on the optimum: with D t_k the derivative of the
event time under the feedback that tracks it and P_k the covariance carried to the event,

.. math:: s_k \ge n\, \sqrt{D t_k\, P_k\, D t_k^\top},

s being the `spread` of the task. It is found by repetition: optimise, linearize, and where the
spread that is expected exceeds the one that was asked for, ask for that and some more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import check_callable, check_count, check_instance
from hybridctl.base.errors import InfeasibleReferenceError, InputError
from hybridctl.control.extension import Extension, extend_by_rule
from hybridctl.planning.trajectory.optimise import OptimalTrajectory, optimise
from hybridctl.planning.trajectory.task import Task
from hybridctl.planning.trajectory.transcription import Guess
from hybridctl.sensitivity.linearization import Linearization, linearize

_ROOM = 1.1  # of what is needed: an optimum that changes a little need not be sought again


@dataclass(frozen=True, eq=False)
class SpreadOptimum:
    """An optimum, extended by its own inputs as far as its events are expected to spread.

    covered: how far past each event its arcs are feasible by the task's margins, s; no less than
    the lengths of the extension. rounds: how many optima were sought.
    """

    optimum: OptimalTrajectory
    extension: Extension
    covered: tuple[float, ...]
    rounds: int


def optimise_over_spread(
    task: Task,
    guess: Guess,
    feedback: Callable[[Linearization], Linearization],
    covariance: ArrayLike,
    *,
    mean: ArrayLike | None = None,
    input_covariance: ArrayLike | None = None,
    spread: float = 4.0,
    rounds: int = 6,
) -> SpreadOptimum:
    """The optimum of a task whose extended and phantom arcs stay feasible over its expected spread.

    task: its own `spread` is where the repetition begins; its last phase ends at a time. feedback:
    of a linearization of an optimum, the same under the feedback that is to track it, such as
    `lambda lin: lin.closed_loop(gains)`. covariance, mean, input_covariance, spread: see
    `extend_by_rule`.

    The spread is of first order, and constraints of continued arcs hold at three points each. What
    is asked for never shrinks from one round to the next. Raises what `optimise` and `linearize`
    raise, and `InfeasibleReferenceError` where after `rounds` the events still spread further.
    """
    if check_instance("task", task, Task).phases[-1].ends:
        raise InputError(
            f"the last phase of the task must end at a time, got ends = {task.phases[-1].ends}"
        )
    check_callable("feedback", feedback)
    lengths = [task.spread_of(k) for k, phase in enumerate(task.phases) if phase.ends]
    needed = covered = np.array(lengths)
    for done in range(1, check_count("rounds", rounds) + 1):
        covered = np.maximum(covered, np.where(needed > covered, _ROOM * needed, covered))
        optimum = optimise(replace(task, spread=covered.tolist()), guess)
        extension = extend_by_rule(
            feedback(linearize(task.system, optimum.run)),
            covariance,
            mean=mean,
            input_covariance=input_covariance,
            rule=optimum.feedforward,
            spread=spread,
            limits=task.greatest_inputs,
        )
        needed = spread * np.array(extension.deviations)
        if (needed <= covered).all():
            return SpreadOptimum(optimum, extension, tuple(covered.tolist()), done)
    raise InfeasibleReferenceError(
        f"after {rounds} rounds events spread by {needed.tolist()} s, more than the "
        f"{covered.tolist()} s over which arcs were made feasible: stronger feedback or margins "
        "that make events more transversal narrow the spread"
    )
