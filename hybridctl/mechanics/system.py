r"""The hybrid system of a robot with contacts; its modes are enumerated as they are entered.

A mode is a tuple with the mode of every contact: "open" and, without friction, "closed"; with
friction "stick", and "slip+" and "slip-" where the contact slides along one direction (the sign
is that of its velocity) or "slip" where it slides in a surface. Guards ([RS] 2.3.3):

- "<contact> closes": the gap h of an open contact, m;
- "<contact> opens": the normal force of a closed one, N;
- "<contact> slips": mu_s lambda_n - |lambda_t| of a sticking one, N; where there is one direction
  "<contact> slips+" and "<contact> slips-", mu_s lambda_n + lambda_t and mu_s lambda_n - lambda_t;
- "<contact> sticks": the signed speed of "slip+" and "slip-", m/s. In a surface |v_t| - 1e-8 m/s,
  whose gradient is that of s . v_t with s the direction at the event: |v_t| itself has no
  derivative at zero.

- "<contact> leaves its piece" of one that slides over a surface of several pieces: how far it is
  from the border of its piece, m. It opens there; if the next piece is higher the run ends in a
  `RiserError`, as for an open contact that runs into a riser.
- "sliding jams", in modes with sliding friction: the normal response that friction leaves, relative
  to that without friction, less 1e-6 (see `jamming`). The run goes on past it by a regularised
  passage (see `simulate`), or ends there in a `JammingError`.

Contacts of joints follow the others in mode keys. The stop of a joint at a limit, such as "elbow
upper stop", is open or closed; its gap is in rad or m, its force in N m or N. The dry friction of
a joint, "elbow friction", is never open: it is "stick", "slip+" or "slip-", with guards "elbow
friction slips+", "elbow friction slips-" and "elbow friction sticks".

When gaps close, the impact law decides which contacts take part; which of them then stay closed,
stick or slip is decided at acceleration level with the post-event input ([RS] 2.3.4, Fig. 2.6).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_flag,
    check_instance,
    check_vector,
    format_count,
)
from hybridctl.base.errors import (
    FixedRootWarning,
    HybridctlWarning,
    InputError,
    JointLimitWarning,
    OrientationWarning,
    UnknownNameError,
)
from hybridctl.base.spaces import Space, VectorSpace
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.laws import InputLaw, make_zero_input
from hybridctl.hybrid.mode import ModeKey, ModeModel, Outgoing
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem, MappedSystem, as_policy, map_outgoing
from hybridctl.mechanics.contact_law.law import (
    CLOSED,
    OPEN,
    SLIP,
    SLIP_MINUS,
    SLIP_PLUS,
    STICK,
    Modes,
)
from hybridctl.mechanics.contacts.contact import WORLD, Contact
from hybridctl.mechanics.contacts.found_contacts import FoundContacts, is_foot_name
from hybridctl.mechanics.contacts.joint_contacts import (
    AnyContact,
    JointStops,
    force_unit,
    gap_unit,
    joint_contacts,
)
from hybridctl.mechanics.impacts.kick import Kick, apply_kick, find_consistent_modes
from hybridctl.mechanics.impacts.resets import ContactEdges
from hybridctl.mechanics.kernel.extension import KernelChoice
from hybridctl.mechanics.modes.contact_mode import ContactMode
from hybridctl.mechanics.modes.dynamics import STABILIZATION, ContactDynamics, OnSeveral
from hybridctl.mechanics.modes.generated_mode import GeneratedContactMode
from hybridctl.mechanics.modes.guards import ContactGuards
from hybridctl.mechanics.modes.kernel_mode import KernelContactMode
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.multibody.limits import describe_excesses
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.mechanics.push import (
    PolicyWithWrenches,
    Wrench,
    WrenchInputs,
    add_generalized_forces,
    check_wrenches,
)
from hybridctl.mechanics.terms.sources import TermsChoice

_MODES_BY_TANGENTS: dict[int, Modes] = {
    0: (OPEN, CLOSED),
    1: (OPEN, STICK, SLIP_PLUS, SLIP_MINUS),
    2: (OPEN, STICK, SLIP),
}
"""Modes of a contact, by its number of tangents."""

_JOINT_FRICTION_MODES: Modes = (STICK, SLIP_PLUS, SLIP_MINUS)
"""Modes of the dry friction of a joint, which is never open."""

_FLOATING_COORDINATES = 7
"""Number of coordinates of a floating base: position (3,), and a quaternion x, y, z, w."""

_MAX_LISTED_CONTACTS = 12
"""Number of contacts whose modes an error lists; the others are counted."""

_OUTPUTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gap": ("m", ()),
    "normal_force": ("N", ()),
    "friction_force": ("N", ("1", "2")),
    "slip_velocity": ("m/s", ("1", "2")),
    "contact_position": ("m", ("x", "y", "z")),
    "joint_friction": ("", ()),
    "joint_position": ("m", ("x", "y", "z")),
    "energy": ("J", ("kinetic", "potential")),
    "momentum": ("", ("x [N s]", "y [N s]", "z [N s]", "about x [N m s]", "about y [N m s]",
                      "about z [N m s]")),
}  # fmt: skip
"""Unit of each output and names of the entries of its last axis."""


class ContactSystem(HybridSystem):
    """The hybrid system of a robot with unilateral contacts with friction.

    Threads can share it, and it can be pickled.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        alike: A system that differs in numbers alone, with which this one shares what does not
            depend on them. None for none.

    Attributes:
        dynamics: The same.
        space: State space of (q, v).
    """

    def __init__(self, dynamics: ContactDynamics, alike: ContactSystem | None = None) -> None:
        self.dynamics = dynamics
        robot = dynamics.robot
        self._contact_modes: dict[ModeKey, ContactMode] = {}
        # One mode of each key that any of the systems alike has made.
        self._alike_modes: dict[ModeKey, ContactMode] = {}
        if alike is None:
            flat = robot.nq == robot.nv
            self.space: Space = VectorSpace(2 * robot.nv) if flat else RobotStateSpace(robot)
            names: Iterable[str] | None = self._list_guard_names()
        else:
            self.space, self._alike_modes = alike.space, alike._alike_modes
            names = alike.guard_names
        super().__init__(self._find_mode, self._make_edges, names)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the modes, which are made anew."""
        return {**super().__getstate__(), "_contact_modes": {}, "_alike_modes": {}}

    @property
    def robot(self) -> Robot:
        """The robot."""
        return self.dynamics.robot

    @property
    def contacts(self) -> tuple[AnyContact, ...]:
        """The contacts, in the order of the mode keys: in space, stops, dry friction of joints."""
        return self.dynamics.contacts

    def contacts_in_space(self, purpose: str) -> tuple[Contact, ...]:
        """Return the contacts for a purpose that contacts of joints do not serve.

        Args:
            purpose: What needs them, for the error.

        Raises:
            InputError: There are joint stops, or joints with dry friction.
        """
        found = tuple(contact for contact in self.contacts if isinstance(contact, Contact))
        if len(found) < len(self.contacts):
            first = self.contacts[len(found)].name
            raise InputError(
                f"{purpose} takes no contacts of joints, got {first!r}: make the system with "
                "contact_system(..., joint_stops=False, joint_friction=False)"
            )
        return found

    @property
    def mechanism(self) -> ContactSystem:
        """The system itself."""
        return self

    def __repr__(self) -> str:
        names = ", ".join(contact.name for contact in self.contacts)
        return f"ContactSystem(contacts {names}; {self.robot!r})"

    def _repr_html_(self) -> str:
        """Return a table of the contacts."""
        rows = [(c.name, c.frame, c.friction, c.restitution) for c in self.contacts]
        return render_html_table(("contact", "frame", "friction", "restitution"), rows)

    def state_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Return names of the coordinates (q, v), after the joints."""
        labels = self.robot.labels
        return (*labels.positions, *labels.velocities)

    def input_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Return names of the forces of the motors, after the joints."""
        forces = np.array(self.robot.labels.forces, dtype=np.str_)
        return tuple(forces[self.robot.actuation.argmax(axis=0)].tolist())

    def output_labels(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return names of the entries of an output, after the contacts and joints."""
        if name not in _OUTPUTS:
            return super().output_labels(name, shape)
        unit, entries = _OUTPUTS[name]
        if name == "joint_friction":
            rubbing = [self.contacts[i] for i in self.dynamics.pressed_contacts]
            return tuple(f"{name}.{c.frame} [{force_unit(c)}]" for c in rubbing)
        if name == "energy":
            return tuple(f"{entry} {name} [{unit}]" for entry in entries)
        if name == "momentum":
            return tuple(f"{name} {entry}" for entry in entries)
        places = dict.fromkeys(self.robot.joint_names, unit)
        if name != "joint_position":
            touching = [
                c for i, c in enumerate(self.contacts) if i not in self.dynamics.pressed_contacts
            ]
            unit_of = {"gap": gap_unit, "normal_force": force_unit}.get(name, lambda _: unit)
            places = {contact.name: unit_of(contact) for contact in touching}
        ends = [f".{entry}" for entry in entries] or [""]
        return tuple(f"{name}.{c}{end} [{own}]" for c, own in places.items() for end in ends)

    def describe_outside(self, guard: str, value: float, x: Array, u: Array) -> str:
        """Return which contact is inside its surface, for the guard of a gap, and the mode.

        Args:
            guard: Name of the guard.
            value: Its value, m or rad for a gap.
            x: State (nx,).
            u: Input (nu,).

        Returns:
            Text that goes on after the value of the guard, in an error about a start outside of its
            mode.
        """
        inside = [c for c in self.contacts if guard == f"{c.name} closes"]
        meaning = ""
        if inside:
            depth = f"{-value:.6g} {gap_unit(inside[0])}"
            meaning = f": contact {inside[0].name!r} is {depth} inside its surface"
        return meaning + super().describe_outside(guard, value, x, u)

    def complete_mode(self, key: ModeKey, find_mode: Callable[[], ModeKey]) -> ModeKey:
        """Return a key that has the modes of dry friction, found where only others are given."""
        rest = len(self.contacts) - len(self.dynamics.pressed_contacts)
        # A key of another length is complete, or an error that is reported where it is used.
        if not isinstance(key, tuple) or len(key) != rest or rest == len(self.contacts):
            return key
        return (*key, *contact_modes(find_mode())[rest:])

    def start_warnings(self, x: Array) -> tuple[HybridctlWarning, ...]:
        """Return warnings of joints beyond their limits, and of a base that starts upside down.

        Args:
            x: State (nx,).
        """
        report = describe_excesses(self.robot.limits.values(), x[: self.robot.nq])
        found: list[HybridctlWarning] = [JointLimitWarning(f"x0: {report}")] if report else []
        base = self.robot.coordinates(self.robot.joint_names[0])
        # Other libraries have w first: the identity there is half a turn about x here.
        if len(base) == _FLOATING_COORDINATES and x[base[3:]].tolist() == [1.0, 0.0, 0.0, 0.0]:
            found.append(
                OrientationWarning(
                    f"x0: the quaternion of {self.robot.joint_names[0]!r}, entries {base[3]} to "
                    f"{base[6]}, is 1, 0, 0, 0 in the order x, y, z, w: the base starts upside "
                    "down; 0, 0, 0, 1 is upright"
                )
            )
        return tuple(found)

    def greatest_inputs(self, key: ModeKey) -> Array | None:
        """Return the limits (nu,) of the robot's motors, N m or N; None where none has one."""
        effort = self.robot.effort
        return effort if np.isfinite(effort).any() else None

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> Modes:
        """Return the mode in which a state flows on under an input.

        A contact is taken for closed where its gap is from -1e-5 to 1e-7 m (`kick.TOUCHING_GAP`)
        and its normal speed at most 1e-5 m/s (rad for stops of joints that turn). Whether it stays
        so, sticks or slips is decided by Coulomb's law for the accelerations ([RS] 2.3.4). A
        contact that leaves its surface faster, or has a wider gap, is open. So is one that comes to
        its surface faster from a gap that is not negative: it lands at once.
        `system.mode(key).project(x)` closes the gaps of contacts that are placed by hand.

        Args:
            x: State (nx,).
            u: Input (nu,); zero for None.

        Raises:
            GuardViolatedError: If a contact is more than 1e-5 m inside its surface, or less and
                goes further in.
            NoContactSolutionError: If the law has no solution.
            SeveralContactSolutionsError: If the law has several.
        """
        state = self._check_state(x)
        return find_consistent_modes(self.dynamics, state, self._check_input(u, state))

    def kick(
        self,
        x: ArrayLike,
        body: str,
        impulse: ArrayLike,
        at: ArrayLike = (0.0, 0.0, 0.0),
        *,
        u: ArrayLike | None = None,
    ) -> Kick:
        """Return the mode and state just after a blow on a body.

        Closed contacts push and rub against the blow by the law of an impact without restitution
        (see `hybridctl.mechanics.impacts.kick`); the mode is that in which the state flows on under
        the input. A run goes on from there, in the mode that its policy's first input leaves
        consistent: `simulate(system, None, kick.state, ...)`.

        Args:
            x: State (nx,).
            body: Name of the frame that is hit.
            impulse: Impulse (3,) on it, N s, in world axes.
            at: The point (3,) that is hit, m, in that frame.
            u: Input (nu,) after the blow; zero for None.

        Raises:
            GuardViolatedError: If a contact is inside its surface, see `consistent_mode`.
            NoContactSolutionError: If the law has no solution.
            SeveralContactSolutionsError: If the law has several.
            InputError: If the frame is fixed to the world.
            UnknownNameError: If the robot has no such frame.
        """
        self.robot.body(check_instance("body", body, str))
        blow, place = check_vector("impulse", impulse, 3), check_vector("at", at, 3)
        state = self._check_state(x)
        return apply_kick(self.dynamics, state, body, blow, place, self._check_input(u, state))

    def pushed(self, wrench: object) -> PushedSystem:
        """Return this system while a `Wrench`, or a sequence of them, pushes it."""
        return PushedSystem(self, check_wrenches(wrench))

    def wrap_inputs(self, made: HybridSystem) -> HybridSystem:
        """Return a system made of the equations of `dynamics`, with the inputs of this one."""
        return made

    def _check_state(self, x: ArrayLike) -> Array:
        """Return a state (nx,), checked."""
        state = check_vector("x", x, self.space.nx)
        self.space.check("x", state)
        return state

    def _check_input(self, u: ArrayLike | None, x: Array) -> Array:
        """Return an input (nu,), checked; zero for None."""
        return np.zeros(self.robot.nu) if u is None else check_vector("u", u, self.robot.nu)

    def _find_mode(self, key: ModeKey) -> ModeModel:
        """Return the mode of a key, as runs have it."""
        return self._find_contact_mode(key)

    def _find_contact_mode(self, key: ModeKey) -> ContactMode:
        """Return the mode of a key, made once, with the inputs of `dynamics`."""
        known = self._contact_modes.get(key)
        if known is None:
            alike = self._alike_modes.get(key)
            modes = self._check_key(key) if alike is None else alike.modes
            made = self._mode_class(self.dynamics, modes, self.space, alike)
            known = self._contact_modes.setdefault(modes, made)
            self._alike_modes.setdefault(modes, made)
        return known

    @property
    def _mode_class(self) -> type[ContactMode]:
        """The class of modes: generated as a whole, evaluated by the kernel, or in Python."""
        if self.dynamics.has_compiled_modes:
            return GeneratedContactMode
        return ContactMode if self.dynamics.kernel_terms is None else KernelContactMode

    def _make_edges(self, key: ModeKey) -> Outgoing:
        """Return the edges from a mode."""
        mode = self._find_contact_mode(key)
        edges = ContactEdges(self.dynamics, mode.modes, mode.contact_guards.guards)
        return Outgoing(mode.guard_set, edges.edge, edges.rest, edges.bridge)

    def _list_guard_names(self) -> Iterator[str]:
        """Yield the names of all guards; those of a contact depend on its own mode alone."""
        known = self._list_known_modes()
        for k in range(max(map(len, known))):
            row = tuple(modes[min(k, len(modes) - 1)] for modes in known)
            yield from ContactGuards.of(self.dynamics, row).names

    def _list_known_modes(self) -> list[Modes]:
        """Return the modes of each contact."""
        pressed = self.dynamics.pressed_contacts
        return [
            _JOINT_FRICTION_MODES if i in pressed else _MODES_BY_TANGENTS[len(tangents)]
            for i, tangents in enumerate(self.dynamics.contact_set.tangents)
        ]

    def _check_key(self, key: ModeKey) -> Modes:
        """Return a key of a mode, checked.

        Args:
            key: What was given as one.

        Raises:
            UnknownNameError: If it is none.
        """
        known = self._list_known_modes()
        if (
            not isinstance(key, tuple)
            or len(key) != len(known)
            or any(mode not in modes for mode, modes in zip(key, known, strict=True))
        ):
            listed = [f"{c.name} {modes}" for c, modes in zip(self.contacts, known, strict=True)]
            left_out = len(listed) - _MAX_LISTED_CONTACTS
            more = f", and {left_out} more" if left_out > 0 else ""
            rubbing = self.dynamics.pressed_contacts
            joints = f"; the last {len(rubbing)} are dry friction of joints" if rubbing else ""
            # One word in place of a tuple is the commonest slip.
            every = isinstance(key, str) and all(key in modes for modes in known)
            meant = f"; did you mean {(key,) * len(known)!r}?" if every else ""
            raise UnknownNameError(
                f"mode {key!r} is unknown, expected a tuple with one of these for each of "
                f"{format_count(len(listed), 'contact')}: "
                f"{', '.join(listed[:_MAX_LISTED_CONTACTS])}{more}{joints}{meant}"
            )
        return key


class PushedSystem(ContactSystem):
    """A robot with contacts, `own`, and the `wrenches` that act on it.

    It has one more input for each wrench: its size. Policies are given for the motors alone. So

        simulate(system, mode, x0, t_span, policy, wrench=push)
        simulate(system.pushed(push), mode, x0, t_span, policy)

    are the same, and `linearize(run.system, run, policy=policy)` has the feedback and the wrench.

    Args:
        own: The system without the wrenches.
        wrenches: The wrenches.
    """

    def __init__(self, own: ContactSystem, wrenches: tuple[Wrench, ...]) -> None:
        self.own, self.wrenches = own, wrenches
        self._push = WrenchInputs(own.robot, wrenches)
        self._pushed: dict[ModeKey, ModeModel] = {}
        super().__init__(add_generalized_forces(own.dynamics))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_pushed": {}}

    def pushed(self, wrench: object) -> PushedSystem:
        """Return this system while further wrenches push it."""
        return PushedSystem(self.own, (*self.wrenches, *check_wrenches(wrench)))

    def wrap_inputs(self, made: HybridSystem) -> HybridSystem:
        """Return a system of the driven dynamics, with the inputs of motors and wrenches."""
        return MappedSystem(made, self._change)

    def input_labels(self, key: ModeKey) -> tuple[str, ...]:
        """Return names of the forces of the motors, and of the wrenches."""
        return (*self.own.input_labels(key), *(wrench.label for wrench in self.wrenches))

    def greatest_inputs(self, key: ModeKey) -> Array | None:
        """Return the limits of the motors; wrenches have none."""
        own = self.own.greatest_inputs(key)
        return None if own is None else np.append(own, np.full(len(self.wrenches), np.inf))

    def resolve_policy(self, policy: Policy | InputLaw | None) -> Policy:
        """Return the policy with the wrenches beside it."""
        if isinstance(policy, PolicyWithWrenches):
            return policy
        own = make_zero_input(self.own.robot.nu) if policy is None else policy
        return PolicyWithWrenches(as_policy(own, self.own), self.wrenches)

    def _check_input(self, u: ArrayLike | None, x: Array) -> Array:
        """Return the input of motors and generalized forces, for one of motors and wrenches."""
        size = self.own.robot.nu + len(self.wrenches)
        return self._push.input(np.zeros(size) if u is None else check_vector("u", u, size), x)

    def _find_mode(self, key: ModeKey) -> ModeModel:
        known = self._pushed.get(key)
        if known is None:
            made = self._push.map_mode(self._find_contact_mode(key))
            known = self._pushed.setdefault(key, made)
        return known

    def _make_edges(self, key: ModeKey) -> Outgoing:
        own, mode = super()._make_edges(key), self._find_mode(key)
        return map_outgoing(own, mode.guard_set, self._push, self._change)

    def _change(self, key: ModeKey) -> WrenchInputs:
        return self._push


def contact_system(
    robot: Robot,
    contacts: Sequence[Contact],
    *,
    stabilization: float = STABILIZATION,
    terms: TermsChoice = "auto",
    on_several: OnSeveral = "raise",
    joint_stops: JointStops = False,
    joint_friction: bool = True,
    kernel: KernelChoice = "auto",
) -> ContactSystem:
    """Return the hybrid system of a robot with unilateral contacts with friction.

    State x = (q, v), input u the actuated joint torques or forces. Mode keys and guards are
    those of this module, in the order of `contacts`. Outputs of a mode, for the c contacts in space
    and joint stops: "gap" (c,) m, "normal_force" (c,) N, "friction_force" (c, 2) N and
    "slip_velocity" (c, 2) m/s along the tangents of each surface, zero where open,
    "contact_position" (c, 3) and "joint_position" (joints, 3) m in the world, "energy" (2,) J,
    kinetic and potential, "momentum" (6,), linear in N s and angular about the centre of mass in
    N m s, along the axes of the world, without that of rotors. Gaps and forces of stops of joints
    that turn are in rad and N m.

    Gives a `FixedRootWarning` for a robot with feet whose root link, or a link fixed to it, has
    mass, and was fixed to the world because `Robot.from_urdf` was given no `root`.

    Args:
        robot: Robot, whose joints move past their limits unless `joint_stops` makes these contacts.
        contacts: Points of the robot and the surfaces that they meet.
        stabilization: Rate in 1/s at which a closed contact's residual gap and a sticking one's
            residual speed decay.
        terms: How the equations are evaluated, see `ContactDynamics`.
        on_several: What becomes of an impact after which several velocities obey the law, see
            `ContactDynamics`.
        joint_stops: True for stops without restitution, a number in [0, 1] for the restitution of
            all, or a mapping from the names of the joints that stop to the restitution of each.
        joint_friction: Whether joints with dry friction (`Robot.friction`) stick and slip.
            `simulate` then also takes initial modes without theirs, and modes have the output
            "joint_friction" (j,), the torque in N m or force in N on each such joint.
        kernel: "off" for the equations in Python, where else the compiled kernel of contact modes
            evaluates them if it is installed; numbers are the same to rounding.

    Raises:
        InputError: Contacts or stops do not fit the robot.
    """
    check_instance("robot", robot, Robot)
    dynamics = ContactDynamics(
        robot,
        contacts,
        stabilization=stabilization,
        terms=terms,
        on_several=on_several,
        joints=joint_contacts(robot, joint_stops, check_flag("joint_friction", joint_friction)),
        kernel=kernel,
    )
    if robot.fixed_by_default is not None and _has_feet(robot, contacts):
        warnings.warn(
            f"robot is fixed to the world at its link {robot.fixed_by_default!r}, which has mass "
            'with the links fixed to it, and has feet: Robot.from_urdf(..., root="floating") lets '
            'it move in space, "sagittal" in a plane; root="fixed" says that it is meant',
            FixedRootWarning,
            stacklevel=2,
        )
    return ContactSystem(dynamics)


def _has_feet(robot: Robot, contacts: Sequence[Contact]) -> bool:
    """Return whether contacts are those of feet: found by such names, or of several limbs.

    An arm that is fixed to the world touches it with one limb, whose base may well have mass.
    """
    if isinstance(contacts, FoundContacts) and any(is_foot_name(c.name) for c in contacts):
        return True
    on_world = [contact for contact in contacts if contact.body == WORLD]
    joints = [robot.frame(contact.frame).joint for contact in on_world]
    limbs = {int(np.flatnonzero(robot.supporting(joint))[0]) for joint in joints if joint}
    return len(limbs) > 1


def closed_contacts(mode: ModeKey) -> tuple[int, ...]:
    """Return the indices of the contacts that are closed in a mode of a contact system.

    Dry friction of joints is never open, so that its indices are always among them.

    Args:
        mode: Key of the mode.

    Raises:
        UnknownNameError: If the key is no tuple.
    """
    return tuple(i for i, contact in enumerate(contact_modes(mode)) if contact != OPEN)
