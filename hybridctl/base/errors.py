"""The exception tree: everything hybridctl raises on purpose derives from `HybridctlError`.

Each class also inherits the builtin that callers would expect (`ValueError` for a bad
argument, `RuntimeError` for a run that cannot go on), so existing handlers keep working.
"""

from __future__ import annotations

import math
from typing import Any


class HybridctlError(Exception):
    """Base of all errors raised on purpose by hybridctl."""


class HybridctlWarning(UserWarning):
    """Base of all warnings given by hybridctl."""


class NearGrazingWarning(HybridctlWarning):
    """A guard is met so slowly that the derivative of its event is known to few digits."""


class OrderChangeWarning(HybridctlWarning):
    """A deviation is so large that events of the linearized run change their order."""


class BridgeWarning(HybridctlWarning):
    """A run goes past an instant at which its events cannot be resolved: see `Event.bridged`."""


class RedundantConditionWarning(HybridctlWarning):
    """Conditions of a task follow from others of it, and are left out."""


class JointLimitWarning(HybridctlWarning):
    """A joint is beyond the limits of its description, or at an angle that looks like degrees."""


class EffortLimitWarning(HybridctlWarning):
    """Inputs of a run or a reference exceed the limits of the robot's motors, `Robot.effort`."""


class FixedRootWarning(HybridctlWarning):
    """A robot with feet is fixed to the world because no root was named."""


class InputError(HybridctlError, ValueError):
    """An argument is wrong: its size, its type, its range, or a value that is not finite."""


class UnknownNameError(InputError):
    """A name (frame, joint, contact, mode, guard, option) that the model does not have."""


class SystemDefinitionError(InputError):
    """A hybrid system whose parts do not fit together."""


class GuardViolatedError(InputError):
    """The initial state lies outside its mode: a guard is negative there."""


class ConstraintViolatedError(InputError):
    """A state that is off what its mode holds, such as a closed contact with a gap."""


class EscapingError(InputError):
    """A state on a guard from which the fields of both modes lead away: no solution is unique.

    `fields` are those of the mode and of the next one, pulled back through the reset.
    """

    def __init__(self, message: str = "", *, fields: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class InfeasibleReferenceError(InputError):
    """A reference that the system cannot follow: out of reach, or needing a pulling contact."""


class FileFormatError(InputError):
    """A file that is not what it should be: empty, truncated, or of another format."""


class FileWriteError(HybridctlError, OSError):
    """A file that could not be written, and why: the disk is full, the folder is not there."""


class ClaimError(HybridctlError):
    """What an experiment claims does not hold in what it has found."""


class SimulationError(HybridctlError, RuntimeError):
    """A simulation that cannot go on; the message has the time, mode and state."""


class IntegrationError(SimulationError):
    """The integrator gave up, or the vector field returned a value that is not finite."""


class StepSizeError(IntegrationError):
    """The steps of the integrator have become too short to advance the time."""


class UnfinishedRunError(SimulationError):
    """A run that had to be ended before its time.

    `trajectory` is what was simulated, up to the last step or event that is allowed.
    """

    def __init__(self, message: str = "", *, trajectory: Any = None) -> None:
        super().__init__(message)
        self.trajectory = trajectory


class EventLimitError(UnfinishedRunError):
    """A run had more events than `max_events` allows."""


class StepLimitError(UnfinishedRunError):
    """A run took more steps than `max_steps` allows."""


class ZenoError(UnfinishedRunError):
    """Events accumulate: the dwell time between them has shrunk below `min_dwell`.

    Or there are more than `max_events`, of which the last ten came within `zeno_horizon`. `steady`:
    whether intervals shrink by one ratio; otherwise they only crowd.
    """

    def __init__(self, message: str = "", *, trajectory: Any = None, steady: bool = False) -> None:
        super().__init__(message, trajectory=trajectory)
        self.steady = steady


class IntersectionError(SimulationError):
    """A sliding motion meets another guard where no convex combination of fields is singled out.

    `fields` are those of the four modes around, in the chart of the first.
    """

    def __init__(self, message: str = "", *, fields: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class OverlappingStripsError(SimulationError):
    """A relaxed trajectory is behind two guards at once, where its field is not defined."""


class GrazingError(SimulationError):
    """A guard is touched without being crossed, so the event is not transversal."""


class AmbiguousEventError(SimulationError):
    """Guards fired together and the order of their resets changes the post-event state.

    `orders` has two orders that differ, `modes` and `states` where each of them leads; all are
    empty where no two are known.
    """

    def __init__(
        self,
        message: str,
        *,
        orders: tuple[tuple[str, ...], ...] = (),
        modes: tuple[Any, ...] = (),
        states: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message)
        self.orders, self.modes, self.states = orders, modes, states


class ImplausibleLogError(SimulationError):
    """A filter was ended because its model cannot explain the log at all: a unit may be wrong."""


class ReferenceRangeError(SimulationError):
    """A reference arc is needed outside the interval on which it is extended.

    `interval` has the start and the end of that interval, s.
    """

    def __init__(
        self, message: str = "", *, interval: tuple[float, float] = (-math.inf, math.inf)
    ) -> None:
        super().__init__(message)
        self.interval = interval


class NoContactSolutionError(SimulationError):
    """The contact problem has no solution, or no mode is consistent with its own forces.

    `problem` is the contact problem, where one was solved. `numerical`: it may have a solution all
    the same, which was not found; otherwise there is none.
    """

    def __init__(self, message: str = "", *, problem: Any = None, numerical: bool = False) -> None:
        super().__init__(message)
        self.problem, self.numerical = problem, numerical


class JammingError(NoContactSolutionError):
    """Friction takes the normal response of sliding contacts away: forces grow without bounds.

    `contacts` are the names of those that slide, `forces` their normal forces in N, `ratio` what
    is left of the response without friction.
    """

    def __init__(
        self, message: str, *, contacts: tuple[str, ...] = (), forces: Any = (), ratio: float = 0.0
    ) -> None:
        super().__init__(message)
        self.contacts, self.forces, self.ratio = contacts, forces, ratio


class RiserError(SimulationError):
    """A contact runs into the riser of a step: a face that its surface does not have."""


class SeveralContactSolutionsError(SimulationError):
    """The contact problem has more than one solution: friction and coupling are too strong.

    `problem` is the contact problem, `solutions` all that were found.
    """

    def __init__(
        self, message: str = "", *, problem: Any = None, solutions: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message)
        self.problem, self.solutions = problem, solutions


class SeveralModesError(SeveralContactSolutionsError):
    """The law of contacts has more than one solution for the accelerations of a state."""
