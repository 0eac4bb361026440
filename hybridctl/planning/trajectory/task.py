"""What a trajectory is to do: phases, margins, limits, conditions and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_callable,
    check_count,
    check_instance,
    check_interval,
    check_member,
    check_number,
    check_sequence,
    convert_to_floats,
    quote,
)
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Meta, NotNegative, Settings, UnitInterval
from hybridctl.control.reference import check_durations
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Surface
from hybridctl.mechanics.coulomb.contact_states import CLOSED, STICK
from hybridctl.mechanics.modes.dynamics import MOST_EXPRESSED
from hybridctl.mechanics.system import ContactSystem, closed_contacts
from hybridctl.sensitivity.symmetry import Symmetry

Expression = Any


@dataclass(frozen=True)
class Phase:
    """One arc: its mode, the guards that end it together, and how it is discretised.

    ends: names of guards of the mode; none for the last phase of a motion that ends at a time.
    duration: the least and the greatest, s. intervals: of collocation, each with `points` points.
    ground: the piece of the ground that a contact has in this phase, by its name, in place of its
    own surface; two for an open one, that which it leaves and that to which it goes: its gap is
    then counted from the former to the latter, in proportion to what is over of the phase.
    """

    mode: ModeKey
    ends: tuple[str, ...]
    duration: tuple[float, float]
    intervals: int = 10
    points: int = 4
    scheme: Literal["legendre", "radau"] = "legendre"
    ground: Mapping[str, Surface | tuple[Surface, Surface]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least, _ = check_interval("duration", self.duration)
        check_number("least duration", least, above=0.0)
        check_count("intervals", self.intervals)
        check_count("points", self.points, at_least=2)
        check_member("scheme", self.scheme, ("legendre", "radau"))


@dataclass(frozen=True)
class Margins(Settings):
    """How far a trajectory stays inside what its modes allow.

    force: least normal force, N; of a contact that opens where a phase ends, this times the share
    of the phase that is left. friction: the share of the friction cone that may be used, of forces
    and impulses. impulse: least normal impulse of a contact that an impact closes, N s.
    release: least normal rate of a contact that an impact opens, m/s. unload: least rate at which
    forces fall that end a phase, N/s; lift: least normal acceleration, under the input of the next
    phase, of contacts that open so, m/s^2. clearance: of open contacts, m: gaps are at least
    4 s (1 - s) times this, s being the fraction of the phase that is over; those of contacts whose
    force vanished where it began, which rise by the cube of the time, 256/27 s^3 (1 - s) times.
    approach: least rate at which other guards fall that end a phase, in their unit per s. sliding:
    least speed of contacts that slide, m/s. early: the share of a phase, at its end, from which on
    the impact that ends it would be inside these margins too, if the ground were met there.
    """

    force: NotNegative = 10.0
    friction: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.9
    impulse: NotNegative = 0.1
    release: NotNegative = 0.01
    unload: NotNegative = 1.0
    lift: NotNegative = 0.0
    clearance: NotNegative = 0.0
    approach: NotNegative = 0.05
    sliding: NotNegative = 0.01
    early: UnitInterval = 0.0


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition lower <= value(start, end, duration) <= upper, an equation where both agree.

    value: a CasADi expression of the state (nx, 1) at the start, that at the end, after the reset
    of the last event if there is one, and the duration in s. unit: of the value, for messages.
    """

    name: str
    value: Callable[[Expression, Expression, Expression], Expression]
    lower: float = 0.0
    upper: float = 0.0
    unit: str = ""

    def __post_init__(self) -> None:
        check_callable(f"condition {self.name!r}", self.value)
        if not self.lower <= self.upper:
            raise InputError(
                f"condition {self.name!r}: lower must not exceed upper, got {self.lower} and "
                f"{self.upper}"
            )


@dataclass(frozen=True, eq=False)
class TransitionWeight:
    r"""A cost of how far the motion spreads deviations, :math:`\tfrac12 w\, \|C \Phi D\|_F^2`.

    Phi (nx, nx) is the state transition from start to end at fixed times, under the planned inputs;
    at events it jumps by saltation matrices. weight: w. seen: C (m, nx), what counts of the
    deviation in the end. begun: D (nx, k), the deviations at the start. All count by default.
    """

    weight: float
    seen: ArrayLike | None = None
    begun: ArrayLike | None = None

    def start(self, nx: int) -> Array:
        """The deviations D (nx, k) at the start that count."""
        return np.eye(nx) if self.begun is None else check_array("begun", self.begun, (nx, None))

    def seeing(self, nx: int) -> Array:
        """The matrix C (m, nx) of what counts of the deviation at the end."""
        return np.eye(nx) if self.seen is None else check_array("seen", self.seen, (None, nx))


def squared_input(x: Expression, u: Expression) -> Expression:
    """The squared norm |u|^2 of the input."""
    return u.T @ u


@dataclass(frozen=True, eq=False)
class Task:
    """A trajectory of a contact system over given phases, of least cost.

    start: the state (nx,) in which it begins; None leaves it free. symmetry: the end, after the
    reset of the last event, is to be the start, up to this. joint_limits, rate_limits: least and
    greatest coordinate and velocity of joints of one degree of freedom, by name. torque:
    greatest absolute input, N m or N, of all motors or of each (nu,); by default the limits of the
    robot's motors (`Robot.effort`), inf for none. degree: of the inputs, polynomials in time on
    each phase; they go on smoothly beyond its ends. running_cost: an expression L(x, u) whose
    integral is added to final_cost, an expression like the value of a `Condition`.

    Contacts with restitution rebound where they hit, so that they are open in the next phase;
    approach is to be faster than their threshold.

    Contacts that close or open together may do so one by one in any order, inside the margins of
    impulses, forces, approach and unload. spread: by how much events may be early or late, s, one
    number or one for each phase that ends with guards: so far arcs go on past their events, and
    those between events that come one by one, with contacts that press and inputs inside their
    limits; what an event opens need not press beyond it. widen: the weight of a common margin
    m >= 0, by which all orders stay (1 + m) times as far inside as the margins say; it is
    subtracted from the cost. transition: a cost of the state transition, added to the others; the
    phases then end with one guard each.

    Raises `InputError` for parts that do not fit together.
    """

    system: ContactSystem
    phases: Sequence[Phase]
    start: ArrayLike | None = None
    symmetry: Symmetry | None = None
    conditions: Sequence[Condition] = ()
    margins: Margins = field(default_factory=Margins)
    joint_limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rate_limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    torque: ArrayLike | None = None
    degree: int = 7
    running_cost: Callable[[Expression, Expression], Expression] = squared_input
    final_cost: Callable[[Expression, Expression, Expression], Expression] | None = None
    spread: float | Sequence[float] = 0.0
    widen: float = 0.0
    transition: TransitionWeight | None = None

    def __post_init__(self) -> None:
        check_instance("system", self.system, ContactSystem).contacts_in_space("a plan")
        if not self.system.dynamics.has_expressions:
            raise InputError(
                f"system must have expressions: at most {MOST_EXPRESSED} velocities (it has "
                f"{self.system.robot.nv}), and surfaces that have an expression"
            )
        phases = check_sequence("phases", self.phases)
        if not phases:
            raise InputError("phases must have at least one phase")
        for k, phase in enumerate(phases):
            self._check_phase(k, check_instance(f"phases[{k}]", phase, Phase))
        for k, condition in enumerate(self.conditions):
            check_instance(f"conditions[{k}]", condition, Condition)
        check_instance("margins", self.margins, Margins)
        robot = self.system.robot
        index = {"joint_limits": robot.coordinate_index, "rate_limits": robot.velocity_index}
        for what, find_index in index.items():
            for name, limits in getattr(self, what).items():
                find_index(name)
                pair = check_sequence(f"{what}[{name!r}]", limits)
                if len(pair) != 2 or not pair[0] < pair[1]:  # one of them may be infinite
                    raise InputError(
                        f"{what}[{name!r}] must be (least, greatest), got {quote(limits)}"
                    )
        self._check_torque()
        if self.start is not None:
            check_array("start", self.start, (self.system.space.nx,))
        if self.symmetry is not None:
            self.symmetry.check(self.system.space)
            if self.symmetry.coordinates is not None:
                raise InputError(
                    "symmetry: the robot of a task must have no quaternions or circles"
                )
        for k in range(len(phases)):
            self.rebounding(k)
        check_count("degree", self.degree, at_least=0)
        check_durations("spread", self.spread, sum(bool(phase.ends) for phase in phases))
        check_number("widen", self.widen, at_least=0.0)
        if self.transition is not None:
            self._check_transition(check_instance("transition", self.transition, TransitionWeight))

    def _check_torque(self) -> None:
        given, nu = self.torque, self.system.robot.nu
        if given is None:
            return
        if not isinstance(given, Sequence | np.ndarray):
            if given != np.inf:
                check_number("torque", given, above=0.0)
        elif not (np.shape(given) == (nu,) and (convert_to_floats(given) > 0.0).all()):
            raise InputError(
                f"torque must be positive, one number or one for each of {nu} motors, got "
                f"{quote(given)}"
            )

    @property
    def greatest_inputs(self) -> Array:
        """Greatest absolute input (nu,) of each motor, N m or N, infinite for none."""
        robot = self.system.robot
        return np.full(robot.nu, robot.effort if self.torque is None else self.torque)

    def _check_transition(self, wanted: TransitionWeight) -> None:
        space = self.system.space
        check_number("weight of transition", wanted.weight, at_least=0.0)
        if space.nx != space.ndx:
            raise InputError("transition must be None for states whose coordinates are not added")
        wanted.start(space.nx), wanted.seeing(space.nx)
        for k, phase in enumerate(self.phases):
            if len(phase.ends) > 1 and self.mode_after(k) is not None:
                raise InputError(
                    f"transition must be None where phases[{k}] ends with several guards, "
                    f"{phase.ends}: the orders in which they fire have a derivative each"
                )

    def _check_phase(self, k: int, phase: Phase) -> None:
        guards = self.system.outgoing(phase.mode).guards.names
        for name in phase.ends:
            check_member(f"guard that ends phases[{k}]", name, guards)
        for i in closed_contacts(phase.mode):
            if self.system.contacts[i].tangential_restitution:
                raise InputError(
                    f"contact {self.system.contacts[i].name!r} is closed in phases[{k}], so that "
                    "its tangential_restitution must be 0: what sticks in an impact would slide on"
                )
        for name, piece in phase.ground.items():
            names = [contact.name for contact in self.system.contacts]
            i = names.index(check_member(f"contact of ground of phases[{k}]", name, names))
            if isinstance(piece, tuple) and i in closed_contacts(phase.mode):
                raise InputError(
                    f"ground of phases[{k}] must have one surface for {name!r}, which is closed"
                )
        if not phase.ends and k < len(self.phases) - 1:
            raise InputError(f"phases[{k}] must end with a guard, as another phase follows")

    def contacts(self, k: int, *, left: bool = False) -> tuple[Contact, ...]:
        """The contacts with their ground in phase k; `left`: with that which open ones leave."""
        pieces = self.phases[k].ground
        found = []
        for contact in self.system.contacts_in_space("a plan"):
            piece = pieces.get(contact.name, contact.surface)
            if isinstance(piece, tuple):
                piece = piece[0] if left else piece[1]
            found.append(replace(contact, surface=piece))
        return tuple(found)

    def mode_after(self, k: int) -> ModeKey | None:
        """The mode after phase k: of the next phase, or of the image of the first; None at the end.

        Raises `InputError` where a symmetry leaves open which it is.
        """
        if k + 1 < len(self.phases):
            return self.phases[k + 1].mode
        if self.symmetry is None or not self.phases[k].ends:
            return None
        return self.symmetry.mode(self.phases[0].mode)

    def spread_of(self, k: int) -> float:
        """The spread of the event that ends phase k, s; zero where it ends at a time."""
        ends = [bool(phase.ends) for phase in self.phases]
        lengths = check_durations("spread", self.spread, sum(ends))
        return lengths[sum(ends[:k])] if ends[k] else 0.0

    def rebounding(self, k: int) -> tuple[int, ...]:
        """The contacts that hit where phase k ends, and open again as they rebound.

        Raises `InputError` where contacts with restitution are to stay closed.
        """
        after, ends = self.mode_after(k), self.phases[k].ends
        hit = [i for i, c in enumerate(self.system.contacts) if f"{c.name} closes" in ends]
        bounces = tuple(i for i in hit if self.system.contacts[i].restitution) if after else ()
        for i in bounces:
            if i in closed_contacts(after):
                raise InputError(
                    f"contact {self.system.contacts[i].name!r} rebounds where phases[{k}] ends, so "
                    f"that it must be open after it, got {after}"
                )
        return bounces

    def striking(self, k: int) -> tuple[str, ...] | None:
        """What contacts do in the impact that ends phase k, None where nothing hits.

        Those that rebound press; with friction they stick while they do.
        """
        after, rebounding = self.mode_after(k), self.rebounding(k)
        if after is None:
            return None
        closing = set(closed_contacts(after)) - set(closed_contacts(self.phases[k].mode))
        if not closing and not rebounding:
            return None
        return tuple(
            (STICK if self.system.contacts[i].rough else CLOSED) if i in rebounding else mode
            for i, mode in enumerate(contact_modes(after))
        )
