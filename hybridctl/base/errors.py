"""The exception tree: everything that hybridctl raises on purpose derives from `HybridctlError`.

Each class also inherits the builtin that callers would expect (`ValueError` for a bad
argument, `RuntimeError` for a run that cannot go on), so existing handlers keep working.

Errors take, beside their message, keywords that become attributes: what was found until then. Each
has a default, which means that it is not known, so that every class can be raised with a message
alone and unpickled.
"""

from __future__ import annotations

import math
from typing import Any


class HybridctlError(Exception):
    """Base of all errors that hybridctl raises on purpose."""


class HybridctlWarning(UserWarning):
    """Base of all warnings that hybridctl gives."""


class NearGrazingWarning(HybridctlWarning):
    """Given when a guard is met so slowly that the event's derivative has few correct digits."""


class OrderChangeWarning(HybridctlWarning):
    """Given when a perturbation is so large that events of the linearized run change order."""


class BridgeWarning(HybridctlWarning):
    """Given when a run passes an instant at which events cannot be resolved: `Event.bridged`."""


class RedundantConditionWarning(HybridctlWarning):
    """Given when conditions of a task follow from others of it and are left out."""


class JointLimitWarning(HybridctlWarning):
    """Given when a joint is beyond its limits, or at an angle that looks like degrees."""


class OrientationWarning(HybridctlWarning):
    """Given when a base starts upside down by a quaternion that looks like w, x, y, z."""


class EffortLimitWarning(HybridctlWarning):
    """Given when inputs of a run or a reference exceed the motors' limits, `Robot.effort`."""


class LinearRangeWarning(HybridctlWarning):
    """Given when a tracked run begins far beyond the range of the map that its gains rest on."""


class FixedRootWarning(HybridctlWarning):
    """Given when a robot with feet is fixed to the world because no root was named."""


class InputError(HybridctlError, ValueError):
    """Raised when an argument is wrong: its size, type or range, or a value that is not finite."""


class UnknownNameError(InputError):
    """Raised for a name (frame, joint, contact, mode, guard, option) that does not exist."""


class SystemDefinitionError(InputError):
    """Raised when the parts of a hybrid system do not fit together."""


class GuardViolatedError(InputError):
    """Raised when the initial state lies outside its mode, as a guard is negative there."""


class ConstraintViolatedError(InputError):
    """Raised when a state violates a constraint of its mode, such as the gap of a contact."""


class EscapingError(InputError):
    """Raised for a state on a guard from which the fields of both modes point away.

    No solution from there is unique.

    Attributes:
        fields: Field of the mode and field of the next mode, pulled back through the reset; () if
            they are not known.
    """

    def __init__(self, message: str = "", *, fields: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class InfeasibleReferenceError(InputError):
    """Raised when the system cannot follow a reference: out of reach, or with a pulling contact."""


class FileFormatError(InputError):
    """Raised when a file is not what it should be: empty, truncated, or of another format."""


class FileWriteError(HybridctlError, OSError):
    """Raised when a file cannot be written; the message has the reason, such as a full disk."""


class ClaimError(HybridctlError):
    """Raised when an experiment's result contradicts its claim."""


class SimulationError(HybridctlError, RuntimeError):
    """Raised when a simulation cannot go on; the message has the time, mode and state."""


class IntegrationError(SimulationError):
    """Raised when the integrator gives up, or the vector field is not finite."""


class StepSizeError(IntegrationError):
    """Raised when the integrator's steps have become too short to advance the time."""


class UnfinishedRunError(SimulationError):
    """Raised when a run has to end before its time.

    Attributes:
        trajectory: The `HybridTrajectory` up to the last step or event that is allowed; None if it
            is not known.
    """

    def __init__(self, message: str = "", *, trajectory: Any = None) -> None:
        super().__init__(message)
        self.trajectory = trajectory


class EventLimitError(UnfinishedRunError):
    """Raised when a run has more events than `max_events` allows."""


class StepLimitError(UnfinishedRunError):
    """Raised when a run takes more steps than `max_steps` allows."""


class ZenoError(UnfinishedRunError):
    """Raised when events accumulate.

    The time between them has shrunk below `ZenoPolicy.min_dwell`, or there are more than
    `max_events`, of which the last ten came within `ZenoPolicy.horizon`.

    Attributes:
        trajectory: The run up to the last event that is allowed; None if it is not known.
        steady: Whether the intervals between events shrink by a constant ratio.
    """

    def __init__(self, message: str = "", *, trajectory: Any = None, steady: bool = False) -> None:
        super().__init__(message, trajectory=trajectory)
        self.steady = steady


class IntersectionError(SimulationError):
    """Raised when a sliding motion meets a second guard and no sliding field there is unique.

    Attributes:
        fields: Fields of the four modes around the intersection, in the chart of the first; () if
            they are not known.
    """

    def __init__(self, message: str = "", *, fields: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class OverlappingStripsError(SimulationError):
    """Raised when a relaxed trajectory is behind two guards at once, where it has no field."""


class GrazingError(SimulationError):
    """Raised when a guard is touched without being crossed, so the event is not transversal."""


class AmbiguousEventError(SimulationError):
    """Raised when guards fire together and the order of their resets changes the state after.

    Attributes:
        orders: Two orders of the guards' names that differ; () if no two are known, as for `modes`
            and `states`.
        modes: Mode after each of the two orders.
        states: State after each of the two orders.
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
    """Raised when a filter's model cannot explain the log at all: a unit may be wrong."""


class ReferenceRangeError(SimulationError):
    """Raised when a reference arc is needed outside the interval on which it is extended.

    Attributes:
        interval: Start and end of that interval, s; infinite if it is not known.
    """

    def __init__(
        self, message: str = "", *, interval: tuple[float, float] = (-math.inf, math.inf)
    ) -> None:
        super().__init__(message)
        self.interval = interval


class NoContactSolutionError(SimulationError):
    """Raised when the contact problem has no solution, or no mode agrees with its own forces.

    Attributes:
        problem: The contact problem; None if none was solved.
        numerical: Whether a solution may exist that was not found. If False, there is none.
    """

    def __init__(self, message: str = "", *, problem: Any = None, numerical: bool = False) -> None:
        super().__init__(message)
        self.problem, self.numerical = problem, numerical


class JammingError(NoContactSolutionError):
    """Raised when friction cancels the normal response of sliding contacts (Painleve's jamming).

    The contact forces grow without bound.

    Attributes:
        contacts: Names of the sliding contacts; () if they are not known.
        forces: Their normal forces, N.
        ratio: Normal response with friction, divided by that without.
    """

    def __init__(
        self, message: str, *, contacts: tuple[str, ...] = (), forces: Any = (), ratio: float = 0.0
    ) -> None:
        super().__init__(message)
        self.contacts, self.forces, self.ratio = contacts, forces, ratio


class RiserError(SimulationError):
    """Raised when a contact runs into the riser of a step, a face that its surface lacks."""


class SeveralContactSolutionsError(SimulationError):
    """Raised when the contact problem has several solutions: friction or coupling is too strong.

    Attributes:
        problem: The contact problem; None if it is not known.
        solutions: All solutions that were found.
    """

    def __init__(
        self, message: str = "", *, problem: Any = None, solutions: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message)
        self.problem, self.solutions = problem, solutions


class SeveralModesError(SeveralContactSolutionsError):
    """Raised when the contact law has several solutions for the accelerations of a state."""
