"""Task of a trajectory optimisation: phases, margins, limits, conditions and costs.

A task states what a motion has to do; `optimise` looks for the motion of least cost that does it.
All parts are checked when a `Task` is made. A state is x = (q, v) of shape (nx,), an input u of
shape (nu,) holds motor torques in N m or forces in N.
"""

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
from hybridctl.base.settings import Meta, NotNegative, Positive, Settings, UnitInterval
from hybridctl.control.reference import check_durations
from hybridctl.hybrid.mode import ModeKey
from hybridctl.mechanics.contact_law.law import CLOSED, STICK
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Surface
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.system import ContactSystem, closed_contacts
from hybridctl.mechanics.terms.sources import MAX_EXPRESSED_VELOCITIES
from hybridctl.sensitivity.symmetry import Symmetry

Expression = Any
"""A CasADi expression, SX or MX. CasADi has no types for mypy."""
Guess = Callable[[int, float], Array]
"""Guess of a motion: the state (nx,) in phase k where a fraction of the phase is over."""


@dataclass(frozen=True)
class Phase:
    """One arc of a motion: its mode, the guards that end it together, and its discretisation.

    A phase without guards at its end ends at a time, by the clock. If it is not the last one, the
    input may jump there, and contacts that are open in the next phase are released by that jump:
    up to it they press as any other contact, inside their cones, and from then on the input pulls
    them off with an acceleration of at least `Margins.lift`. The state alone does not decide when
    they open, and errors do not decide how. A contact whose guard "opens" ends the phase has lost
    its force there, and with it its cone: the least error makes it slip.

    Attributes:
        mode: Key of the mode.
        ends: Names of the guards of the mode that fire together at the end of the phase. Empty for
            a phase that ends at a time.
        duration: Least and greatest duration, s.
        intervals: Number of collocation intervals.
        points: Number of collocation points in each interval.
        scheme: Gauss ("legendre") or Radau ("radau") points. The last Radau point is the end of
            its interval.
        ground: Surface of a contact in this phase, by the name of the contact, in place of its own
            surface: a piece of stairs, for instance. An open contact may have two, the surface that
            it leaves and the one that it approaches. Its gap then goes from the first to the second
            in proportion to the fraction of the phase that is over.
        clearance: Height of open contacts in this phase, m, in place of `Margins.clearance`. None
            for that.

    Raises:
        InputError: A duration, a clearance or a count is out of range. Whether the system has the
            mode, the guards and the contacts is checked by the `Task`.
        UnknownNameError: The scheme is neither "legendre" nor "radau".
    """

    mode: ModeKey
    ends: tuple[str, ...]
    duration: tuple[float, float]
    intervals: int = 10
    points: int = 4
    scheme: Literal["legendre", "radau"] = "legendre"
    ground: Mapping[str, Surface | tuple[Surface, Surface]] = field(default_factory=dict)
    clearance: float | None = None

    def __post_init__(self) -> None:
        least, _ = check_interval("duration", self.duration)
        check_number("least duration", least, above=0.0)
        check_count("intervals", self.intervals)
        check_count("points", self.points, at_least=2)
        check_member("scheme", self.scheme, ("legendre", "radau"))
        if self.clearance is not None:
            check_number("clearance", self.clearance, at_least=0.0)


@dataclass(frozen=True)
class Margins(Settings):
    """Distance that a trajectory keeps from the borders of its modes.

    Attributes:
        force: Least normal force of closed contacts, N. For a contact that opens at the end of the
            phase it is multiplied by the fraction of the phase that is left.
        friction: Share of the friction cone that forces and impulses may use.
        impulse: Least normal impulse of a contact that an impact closes, N s.
        release: Least normal velocity with which an impact opens a contact, m/s.
        unload: Least rate at which a force falls that ends a phase, N/s.
        lift: Least normal acceleration of a contact that has just opened, under the input of the
            next phase, m/s^2: its force has vanished, or the jump of the input releases it (see
            `Phase`). Such a jump needs a positive one.
        clearance: Height of open contacts, m. With s, the fraction of the phase that is over, their
            gaps are at least 4 s (1 - s) times this. A contact that a jump of the input released at
            the start of the phase rises with the square of time, and one whose force vanished there
            with its cube: gaps are at least 27/4 s^2 (1 - s) and 256/27 s^3 (1 - s) times this. All
            three have the maximum 1.
        approach: Least rate at which the other guards fall that end a phase, gaps in m/s, sliding
            speeds in m/s^2.
        sliding: Least speed of sliding contacts, m/s.
        landing_speed: Greatest rate at which gaps fall that close at the planned end of a phase,
            m/s; None for no limit. It counts for all contacts together, not for the orders in
            which they may close one by one.
        landing_impulse: Greatest normal impulse of a contact of a planned impact, N s, likewise.
        early: Last part of a phase, as a fraction of it, in which the impact at the end of the
            phase would be inside these margins too if the ground were met there.
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
    landing_speed: Positive | None = None
    landing_impulse: Positive | None = None
    early: UnitInterval = 0.0


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition lower <= value(start, end, duration) <= upper, an equation if both are equal.

    Attributes:
        name: Name for messages.
        value: Function that returns a scalar CasADi expression. Its arguments are the states
            (nx, 1) at the start and at the end of the motion, in symbols, and the duration in s.
            The end is after the reset of the last event if there is one.
        lower: Lower bound.
        upper: Upper bound.
        unit: Unit of the value, for messages, and for the size of violations (`Limit.size`).

    Raises:
        InputError: The value is no function, or lower exceeds upper.
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
    r"""Cost of the growth of perturbations along the motion, :math:`\tfrac12 w\, \|C \Phi D\|_F^2`.

    :math:`\Phi` (nx, nx) is the state transition matrix from the start to the end at fixed times
    under the planned inputs, with saltation matrices at the events.

    Attributes:
        weight: The weight w.
        seen: Matrix C (m, nx) of the perturbations at the end that count. None for the identity.
        begun: Matrix D (nx, k) of the perturbations at the start, one in each column. None for the
            identity.
    """

    weight: float
    seen: ArrayLike | None = None
    begun: ArrayLike | None = None

    def get_start_perturbations(self, nx: int) -> Array:
        """Return the matrix D (nx, k) of the perturbations at the start.

        Raises:
            InputError: `begun` is no finite matrix of nx rows.
        """
        return np.eye(nx) if self.begun is None else check_array("begun", self.begun, (nx, None))

    def get_end_outputs(self, nx: int) -> Array:
        """Return the matrix C (m, nx) of the perturbations at the end that count.

        Raises:
            InputError: `seen` is no finite matrix of nx columns.
        """
        return np.eye(nx) if self.seen is None else check_array("seen", self.seen, (None, nx))


def squared_input(x: Expression, u: Expression) -> Expression:
    """Return |u|^2, the default of `Task.running_cost`."""
    return u.T @ u


@dataclass(frozen=True, eq=False)
class Task:
    """A trajectory of a contact system through given phases, of least cost.

    Contacts with restitution rebound where they hit, so that they are open in the next phase. Their
    `Margins.approach` has to be faster than the threshold of their restitution.

    Contacts that close or open together may do so one by one in any order: in each order the
    motion keeps the margins of impulses, forces, approach and unload (`event_orders`).

    Attributes:
        system: The contact system. Its surfaces need expressions.
        phases: The phases in order of time.
        start: State (nx,) at the start. None leaves it free.
        symmetry: Symmetry that maps the end, after the reset of the last event, to the start. None
            if the motion need not close.
        conditions: Conditions on the start, the end and the duration.
        margins: Distance from the borders of the modes.
        joint_limits: Least and greatest coordinate of joints of one degree of freedom, by name, rad
            or m. One of the two may be infinite.
        rate_limits: Least and greatest velocity of such joints, rad/s or m/s.
        torque: Greatest absolute input, N m or N, one number or one for each motor (nu,). By
            default the limits of the robot's motors (`Robot.effort`); inf for no limit.
        degree: Degree of the inputs, which are polynomials in time on each phase. They go on as the
            same polynomials beyond its ends.
        running_cost: Function that returns a scalar CasADi expression L(x, u). Its time integral is
            part of the cost.
        final_cost: Function of start, end and duration as of `Condition.value`, which is added to
            the cost. None for zero.
        spread: Time by which events may be early or late, s, one number or one for each phase that
            ends with guards. Arcs go on past their events by so much, and so do the arcs between
            events that come one by one: contacts press, and inputs keep their limits. A contact
            that opens at an event need not press beyond it.
        widen: Weight of a common margin m >= 0, which is subtracted from the cost. The margins of
            all orders of events are multiplied by 1 + m. Zero fixes m at zero.
        transition: Cost of the state transition, which is added to the others. Its phases end with
            one guard each. None for zero.
        implicit: Whether the equations of motion are constraints, with accelerations and forces as
            variables (`implicit_phases`). None leaves the choice: they are for robots of more than
            twelve velocities, where nothing else of the task needs the dynamics solved for
            accelerations. Above 24 velocities they always are (`MAX_EXPRESSED_VELOCITIES`). The
            optimum is the same for independent contacts. Redundant ones that stick hold by any
            forces inside their cones, where solved dynamics have those of least norm alone.
            `optimise` refuses True for redundant contacts that slide or rebound.

    Raises:
        InputError: Parts that do not fit together.
        UnknownNameError: A guard, a contact or a joint that the system does not have.
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
    implicit: bool | None = None

    def __post_init__(self) -> None:
        check_instance("system", self.system, ContactSystem).contacts_in_space("a plan")
        if not self.system.dynamics.has_expressions:
            raise InputError(
                "the surfaces of system must have expressions (their method `expression`), got "
                f"{self.system!r}"
            )
        phases = check_sequence("phases", self.phases)
        if not phases:
            raise InputError("phases must have at least one phase")
        for k, phase in enumerate(phases):
            self._check_phase(k, check_instance(f"phases[{k}]", phase, Phase))
        for k, condition in enumerate(self.conditions):
            check_instance(f"conditions[{k}]", condition, Condition)
        check_instance("margins", self.margins, Margins)
        self._check_joint_limits()
        self._check_torque()
        if self.start is not None:
            check_array("start", self.start, (self.system.space.nx,))
        if self.symmetry is not None:
            self.symmetry.check(self.system.space)
        for k in range(len(phases)):
            self.find_rebounding_contacts(k)
        check_count("degree", self.degree, at_least=0)
        check_durations("spread", self.spread, sum(bool(phase.ends) for phase in phases))
        check_number("widen", self.widen, at_least=0.0)
        if self.transition is not None:
            self._check_transition(check_instance("transition", self.transition, TransitionWeight))
        self._check_form()

    @property
    def needs_solved_dynamics(self) -> bool:
        """Whether a part of the task needs the dynamics solved for accelerations."""
        has_spread = bool(np.any(self.spread))
        return self.transition is not None or has_spread or self.margins.early > 0.0

    @property
    def largest_inputs(self) -> Array:
        """Greatest absolute input (nu,) of each motor, N m or N, infinite without a limit."""
        robot = self.system.robot
        return np.full(robot.nu, robot.effort if self.torque is None else self.torque)

    def get_contacts(self, k: int, *, on_left_ground: bool = False) -> tuple[Contact, ...]:
        """Return all contacts with the ground that they have in phase k.

        Args:
            k: Index of the phase.
            on_left_ground: Whether a contact with two surfaces gets the one that it leaves,
                instead of the one that it approaches (`Phase.ground`).
        """
        pieces = self.phases[k].ground
        contacts = []
        for contact in self.system.contacts_in_space("a plan"):
            piece = pieces.get(contact.name, contact.surface)
            if isinstance(piece, tuple):
                piece = piece[0] if on_left_ground else piece[1]
            contacts.append(replace(contact, surface=piece))
        return tuple(contacts)

    def find_mode_after(self, k: int) -> ModeKey | None:
        """Return the mode after phase k, None if the motion ends there.

        It is the mode of the next phase. After the last one it is the image of the first mode under
        the symmetry, if the task has a symmetry and the last phase ends with guards.

        Args:
            k: Index of the phase.
        """
        if k + 1 < len(self.phases):
            return self.phases[k + 1].mode
        if self.symmetry is None or not self.phases[k].ends:
            return None
        return self.symmetry.mode(self.phases[0].mode)

    def get_event_spread(self, k: int) -> float:
        """Return the spread of the event that ends phase k, s; zero if it ends at a time."""
        ends = [bool(phase.ends) for phase in self.phases]
        lengths = check_durations("spread", self.spread, sum(ends))
        return lengths[sum(ends[:k])] if ends[k] else 0.0

    def find_rebounding_contacts(self, k: int) -> tuple[int, ...]:
        """Return the indices of the contacts that hit at the end of phase k and rebound.

        Args:
            k: Index of the phase.

        Raises:
            InputError: A contact with restitution is closed in the next phase.
        """
        after, ends = self.find_mode_after(k), self.phases[k].ends
        hit = [i for i, c in enumerate(self.system.contacts) if f"{c.name} closes" in ends]
        bounces = tuple(i for i in hit if self.system.contacts[i].restitution) if after else ()
        for i in bounces:
            if i in closed_contacts(after):
                raise InputError(
                    f"contact {self.system.contacts[i].name!r} rebounds where phases[{k}] ends, so "
                    f"that it must be open after it, got {after}"
                )
        return bounces

    def find_released_contacts(self, k: int) -> tuple[int, ...]:
        """Return the indices of the contacts that the jump of the input after phase k releases.

        They are closed in this phase, which ends at a time, and open in the next.

        Args:
            k: Index of the phase.
        """
        after = self.find_mode_after(k)
        if self.phases[k].ends or after is None:
            return ()
        return tuple(
            i for i in closed_contacts(self.phases[k].mode) if i not in closed_contacts(after)
        )

    def find_impact_modes(self, k: int) -> tuple[str, ...] | None:
        """Return the mode of each contact during the impact that ends phase k.

        It is that of the next phase, but for contacts that rebound: they press during the impact,
        and with friction they stick.

        Args:
            k: Index of the phase.

        Returns:
            Modes of all contacts, None if nothing hits and the state does not jump.
        """
        after, rebounding = self.find_mode_after(k), self.find_rebounding_contacts(k)
        if after is None:
            return None
        closing = set(closed_contacts(after)) - set(closed_contacts(self.phases[k].mode))
        if not closing and not rebounding:
            return None
        return tuple(
            (STICK if self.system.contacts[i].rough else CLOSED) if i in rebounding else mode
            for i, mode in enumerate(contact_modes(after))
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
            self._check_release(k)

    def _check_release(self, k: int) -> None:
        """Check what changes between phase k, which ends at a time, and the next one.

        Raises:
            InputError: Anything but contacts that open, or they have no `Margins.lift`.
        """
        after, released = self.find_mode_after(k), self.find_released_contacts(k)
        assert after is not None
        modes = zip(contact_modes(self.phases[k].mode), contact_modes(after), strict=True)
        if any(old != new for i, (old, new) in enumerate(modes) if i not in released):
            raise InputError(
                f"phases[{k}] must end with guards, as contacts close, stick or slide anew in the "
                f"next phase: a jump of the input at a time only opens contacts, got {after}"
            )
        if released and not self.margins.lift > 0.0:
            raise InputError(
                f"lift of margins must be positive where the input releases contacts after "
                f"phases[{k}], got {self.margins.lift}"
            )

    def _check_joint_limits(self) -> None:
        robot = self.system.robot
        for what, find_index, limits_by_joint in (
            ("joint_limits", robot.coordinate_index, self.joint_limits),
            ("rate_limits", robot.velocity_index, self.rate_limits),
        ):
            for name, limits in limits_by_joint.items():
                find_index(name)
                # Not `check_interval`: one of the limits may be infinite.
                pair = check_sequence(f"{what}[{name!r}]", limits)
                if len(pair) != 2 or not pair[0] < pair[1]:
                    raise InputError(
                        f"{what}[{name!r}] must be (least, greatest), got {quote(limits)}"
                    )

    def _check_form(self) -> None:
        nv, most = self.system.robot.nv, MAX_EXPRESSED_VELOCITIES
        if self.implicit and self.needs_solved_dynamics:
            raise InputError(
                "implicit must be None or False with a transition cost, a spread or early impacts, "
                "which need the dynamics solved for accelerations"
            )
        if nv > most and (self.implicit is False or self.needs_solved_dynamics):
            raise InputError(
                f"a robot of more than {most} velocities (it has {nv}) must have implicit = None "
                "or True, and no transition cost, spread or early impacts, which need the dynamics "
                "solved for accelerations"
            )

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

    def _check_transition(self, transition: TransitionWeight) -> None:
        space = self.system.space
        check_number("weight of transition", transition.weight, at_least=0.0)
        if space.nx != space.ndx:
            raise InputError("transition must be None for states whose coordinates are not added")
        transition.get_start_perturbations(space.nx)
        transition.get_end_outputs(space.nx)
        for k, phase in enumerate(self.phases):
            if len(phase.ends) != 1 and self.find_mode_after(k) is not None:
                raise InputError(
                    f"transition must be None where phases[{k}] does not end with one guard, but "
                    f"with {phase.ends}: orders of several guards have a derivative each"
                )
