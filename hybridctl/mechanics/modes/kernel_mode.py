r"""Contact modes by the compiled kernel: field, guards, step-size limits, and whole steps.

The kernel (`mechanics/kernel`) evaluates what a `ContactMode` computes, from a function of the
robot's terms, in a tenth of the time; results are equal to rounding. It does not cover, and Python
evaluates instead:

- modes that `find_kernel_obstacle` names, at all points;
- points where several contacts in a surface are slower than `STANDSTILL`, or one is whose forces
  are at a border of Coulomb's law: whether they stop, start or stick is decided by `standstill`;
- points where the equations of the contacts are nearly singular, so that their rank is not certain
  or they jam: the condition number decides (`linear_equations`);
- points where forces of redundant contacts are outside their cones and more than two directions
  are free, or several between two bodies (`redundancy`), or close to an apex;
- derivatives where redundant contacts are other than points on planes or have forces at the border
  of a cone: of the guards, and of the field where some slide;
- derivatives of "sticks" where that contact has near-zero velocity, and of "jams" of contacts other
  than points on planes;
- steps with their transition matrix of which it does not cover a stage, or where contacts are other
  than points on planes: they are taken stage by stage (`variational_step`);
- points that are not finite, of which the errors are Python's;
- input laws other than held inputs within whole steps: the generic step calls the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.model import (
    CompiledStep,
    CompiledSteps,
    Diffusion,
    FieldJacobian,
    GuardJacobian,
    Pace,
    PointProperty,
    StepRequest,
    StepTransition,
)
from hybridctl.hybrid.series import NODES, TO_SERIES
from hybridctl.hybrid.tableau import DOP853_TABLEAU
from hybridctl.mechanics.kernel.extension import is_kernel_available
from hybridctl.mechanics.modes.constraint_equations import Solution
from hybridctl.mechanics.modes.contact_mode import MAX_STEP_TO_STOP, ContactMode, ContactPoint
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.guards import ContactGuard, Kind
from hybridctl.mechanics.modes.phase import ContactPhase
from hybridctl.mechanics.modes.variational_step import take_variational_step
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.flat_terms import FlatTerms
from hybridctl.symbolic.compiled_function import CallableFunction, find_buffer_evaluator

if TYPE_CHECKING:
    from hybridctl.mechanics.kernel._contact_kernel import Kernel

_KINDS: tuple[Kind, ...] = ("closes", "opens", "slips", "sticks", "jams")
"""Kinds of guards in the order of `enum guard_kind` of the kernel."""


_Closed: TypeAlias = tuple[int, int, int, bool, float, float, float, int, float]
"""A closed contact, see `_describe_closed_contacts`."""


class KernelValues(NamedTuple):
    """What the kernel finds at a point.

    Attributes:
        field: The field (v, a), (2 nv,).
        guards: Guards (n,).
        stop: Time until the first contact that slides in a surface stops, s.
        turn: Time in which friction turns a sliding velocity, s.
    """

    field: Array
    guards: Array
    stop: float
    turn: float


class KernelDerivatives(NamedTuple):
    """Derivatives by z = (q, v, u) that the kernel finds at a point; None for those of Python.

    Attributes:
        field: Those of the field (v, a), (2 nv, z).
        guards: Those of the guards (n, z).
    """

    field: Array | None
    guards: Array | None


class KernelPoint(ContactPoint):
    """A point of a mode with a kernel, and where that does not cover it a `ContactPoint`."""

    mode: KernelContactMode

    @PointProperty
    def values(self) -> KernelValues | None:
        """What the kernel finds here, None where it does not cover the point."""
        kernel = self.mode.kernel
        return None if kernel is None else kernel.evaluate(self.x, self.u)

    @PointProperty
    def solution(self) -> Solution:
        """The equations solved in Python, with the acceleration and the forces of the kernel.

        Both differ by rounding. Where the equations are nearly singular, as beside a pole of the
        forces, forces of one would not fit the acceleration of the other.
        """
        found, kernel = super().solution, self.mode.kernel
        solved = None if kernel is None else kernel.find_forces(self.x, self.u)
        # Redundant contacts have yet to share forces, from those of least norm on.
        if solved is None or found.kkt.redundant:
            return found
        acceleration, forces = solved
        multipliers = forces[found.phase.constrained_rows]
        return found._replace(acceleration=acceleration, multipliers=multipliers)

    @PointProperty
    def field(self) -> Array:
        """The field (v, a), (2 nv,)."""
        values = self.values
        return super().field if values is None else values.field

    @PointProperty
    def guards(self) -> Array:
        """The guards (n,)."""
        values = self.values
        return super().guards if values is None else values.guards

    @PointProperty
    def pace(self) -> Pace:
        """The step-size limits, see `ContactPoint.pace`."""
        if self.mode.steady_pace is not None or self.values is None:
            return super().pace
        return self.mode.limit_steps(self.values.stop, self.values.turn)

    @PointProperty
    def kernel_derivatives(self) -> KernelDerivatives:
        """The derivatives that the kernel finds here."""
        kernel = self.mode.kernel
        if kernel is None:
            return KernelDerivatives(None, None)
        return kernel.differentiate(self.x, self.u)

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        """The derivatives of the field, D_x (2 nv, 2 nv) and D_u (2 nv, nu)."""
        rows = self.kernel_derivatives.field
        if rows is None:
            return super().field_jacobian
        return FieldJacobian(rows[:, : len(rows)], rows[:, len(rows) :])

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        """The derivatives of the guards by time (n,), state (n, 2 nv) and input (n, nu)."""
        rows = self.kernel_derivatives.guards
        if rows is None:
            return super().guard_jacobian
        n = 2 * len(self.v)
        return GuardJacobian(np.zeros(len(rows)), rows[:, :n], rows[:, n:])

    def guard_row(self, i: int) -> GuardJacobian:
        """Return the derivatives of guard i, see `ContactPoint.guard_row`.

        Args:
            i: Number of the guard.
        """
        rows = self.kernel_derivatives.guards
        if rows is None:
            return super().guard_row(i)
        n = 2 * len(self.v)
        return GuardJacobian(np.zeros(()), rows[i, :n], rows[i, n:])


class KernelContactMode(ContactMode, CompiledSteps):
    """A mode whose points and steps are those of the kernel, as far as that covers them."""

    point = KernelPoint
    retakes_steps = False

    @cached_property
    def kernel(self) -> ModeKernel | None:
        """The kernel, None where it does not cover this mode."""
        if find_kernel_obstacle(self.dynamics, self.phase) is not None:
            return None
        return ModeKernel(ContactMode(self.dynamics, self.modes, self.space))

    @property
    def compiled_steps(self) -> CompiledSteps | None:
        """The mode itself, None where it has no kernel."""
        return None if self.kernel is None else self

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """Return a step under a held input, None under any other law.

        Args:
            ahead: Start, length and tolerances of the step.
            law: The input law.
        """
        if self.kernel is None or not isinstance(law, HeldInput):
            return None
        return self.kernel.take_step(ahead, law)

    def transition(
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """Return a step with its derivative; None with noise, or beyond the step-size limits.

        It is taken in the kernel, or where that does not cover a stage by `take_variational_step`.

        Args:
            ahead: Start, length and tolerances of the step.
            u: Input (nu,), held on the step.
            noise: White noise; of such steps there are none.
        """
        if self.kernel is None or noise is not None:
            return None
        if self.kernel.has_tree:
            pace = self.steady_pace or Pace(self.decay_time)
            found = self.kernel.take_variational_step(ahead, u, pace.longest_step)
            if found is not NotImplemented:
                return found
        return take_variational_step(self, ahead, u)

    def sample_guards(self, states: Array, law: HeldInput) -> Array | None:
        """Return the guards (k, n) at several states (k, nx) under a held input.

        Args:
            states: Coordinates (k, nx), of any norm.
            law: The held input.
        """
        return None if self.kernel is None else self.kernel.sample_guards(states, law.value)

    def _compute_residuals(self, x: Array) -> Array:
        """Return the gaps and rates that this mode holds at zero; each accepted step asks for it.

        A mode with a kernel has no surfaces of several pieces, and so no gaps from single ones.
        """
        if self.kernel is None:
            return super()._compute_residuals(x)
        gaps, rates = self.kernel.find_rates(x)
        return np.concatenate((gaps[self.phase.solid_contacts], rates[self.phase.solid_rows]))


def find_kernel_obstacle(dynamics: ContactDynamics, phase: ContactPhase) -> str | None:
    """Return why the kernel covers no point of a mode, in words; None if it covers the mode.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        phase: Phase of the mode.
    """
    if dynamics.kernel_terms is None:
        return "modes of this system are not compiled"
    if not is_kernel_available():  # as where a system was pickled on another machine
        return "the extension is not installed, or turned off"
    if find_buffer_evaluator() is None:
        return "this CasADi does not let compiled code call its functions"
    if dynamics.contact_set.piecewise:
        return "a surface has several pieces, of which margins are computed in Python"
    return None


class ModeKernel:
    """The kernel of one mode, with its arguments as arrays.

    It may be used by several threads, and is not pickled.

    Args:
        reference: The mode in Python, for points that the kernel does not cover.
    """

    def __init__(self, reference: ContactMode) -> None:
        from hybridctl.mechanics.kernel._contact_kernel import Kernel

        dynamics, phase = reference.dynamics, reference.phase
        self._dynamics = dynamics
        terms = dynamics.kernel_terms
        assert terms is not None
        robot, contact_set = dynamics.robot, dynamics.contact_set
        function = CallableFunction(terms.mode_terms, terms.numbers)
        count = len(dynamics.contacts)
        self._nx, self._field_size = robot.nq + robot.nv, 2 * robot.nv
        self._guard_count = len(reference.guard_names)
        self._kernel: Kernel = Kernel(
            call=function.address,
            data=function.data,
            owner=function,
            arrays=(*function.arguments, *function.results),
            sizes=(robot.nq, robot.nv, robot.nu, count, len(contact_set.owner)),
            closed=_describe_closed_contacts(phase),
            rows=phase.all_rows.tolist(),
            constrained=phase.constrained.tolist(),
            guards=_describe_guards(
                reference.contact_guards.guards, phase, dynamics.static_friction
            ),
            stabilization=dynamics.stabilization,
            tableau=_TABLEAU,
            # Without a cycle: the reference does not have this kernel.
            python_mode=_PythonMode(reference),
        )
        self.has_tree = self._set_tree(phase)

    def _set_tree(self, phase: ContactPhase) -> bool:
        """Give the kernel the bodies of the robot.

        Args:
            phase: Phase of the mode.

        Returns:
            Whether it has them. If not, terms are differentiated in Python: the kernel does it for
            points on planes of the world.
        """
        terms, robot = self._dynamics.terms, self._dynamics.robot
        if not isinstance(terms, FlatTerms) or terms.bodies is None:
            return False
        bodies, ground = terms.bodies, terms.ground
        self._kernel.set_tree(
            parents=bodies.parents,
            owners=bodies.owners,
            contact_joints=list(ground.joints),
            row_owners=self._dynamics.contact_set.owner.tolist(),
            gravity=bodies.gravity,
            inertias=bodies.inertias,
            points=_as_doubles(ground.points),
            directions=_as_doubles(ground.directions),
            springs=_as_doubles(robot.passive.stiffness),
            dampers=_as_doubles(robot.passive.damping),
            actuation=_as_doubles(robot.actuation),
            load_rank=terms.count_loads(phase.closed) if phase.closed else -1,
            kinds=bodies.kinds,
            starts=bodies.starts,
            placements=bodies.placements,
            axes=bodies.axes,
            turns=_list_turns(robot),
        )
        return True

    def evaluate(self, x: Array, u: Array) -> KernelValues | None:
        """Return what the kernel finds at a point, None where it does not cover it.

        Args:
            x: State (nx,).
            u: Input (nu,).
        """
        field, guards = np.empty(self._field_size), np.empty(self._guard_count)
        try:
            times = self._kernel.evaluate(x, u, field, guards)
        except (TypeError, ValueError):  # other than contiguous arrays of doubles, which are rare
            times = self._kernel.evaluate(_as_doubles(x), _as_doubles(u), field, guards)
        return None if times is None else KernelValues(field, guards, *times)

    def find_forces(self, x: Array, u: Array) -> tuple[Array, Array] | None:
        """Return the acceleration and the forces at a point.

        Args:
            x: State (nx,).
            u: Input (nu,).

        Returns:
            The acceleration (nv,), and the forces (R,) along the rows of all contacts, zero where
            these are open. None where the kernel does not cover the point.
        """
        rate, forces = np.empty(self._nx), np.empty(len(self._dynamics.contact_set.owner))
        if not self._kernel.find_forces(_as_doubles(x), _as_doubles(u), rate, forces):
            return None
        return rate[self._dynamics.robot.nq :], forces

    def find_rates(self, x: Array) -> tuple[Array, Array]:
        """Return the gaps (c,) and the rates (R,) along the rows of all contacts.

        Args:
            x: State (nx,).
        """
        contacts = self._dynamics.contacts
        gaps, rates = np.empty(len(contacts)), np.empty(len(self._dynamics.contact_set.owner))
        self._kernel.find_rates(_as_doubles(x), gaps, rates)
        return gaps, rates

    def differentiate(self, x: Array, u: Array) -> KernelDerivatives:
        """Return the derivatives by (q, v, u), where the kernel covers the point.

        Those of the terms are computed in the kernel for points on planes, else in Python.

        Args:
            x: State (nx,).
            u: Input (nu,).
        """
        x, u, robot = _as_doubles(x), _as_doubles(u), self._dynamics.robot
        nq, nv = robot.nq, robot.nv
        field = np.empty((2 * nv, 2 * nv + robot.nu))
        guards = np.empty((self._guard_count, field.shape[1]))
        if self.has_tree:
            covers = self._kernel.differentiate(x, u, field, guards)
        else:
            solved = self.find_forces(x, u)
            if solved is None:
                return KernelDerivatives(None, None)
            d = self._dynamics.terms.derivatives(x[:nq], x[nq:], *solved)
            np.negative(d.equations, out=field[nv:, : 2 * nv])
            field[nv:, 2 * nv :] = robot.actuation
            given = _as_doubles(d.accelerations), _as_doubles(d.rates)
            covers = self._kernel.differentiate_terms(x, u, *given, field, guards)
        return KernelDerivatives(field if covers[0] else None, guards if covers[1] else None)

    def take_step(self, ahead: StepRequest, law: HeldInput) -> CompiledStep | None:
        """Return a step of DOP853.

        Of one with an error that is not below 1, states, bounds and guards are NaN, but for the
        guards at its end. None where a guard inside the step is not finite although its error is
        below 1: stage by stage the point is named.

        Args:
            ahead: Start, length and tolerances of the step.
            law: The held input.
        """
        n = self._guard_count
        states = np.full((len(NODES), self._nx), np.nan)
        guards, bounds = np.full((len(NODES), n), np.nan), np.full(n, np.nan)
        settings = np.array(ahead[2:])
        error, decay = self._kernel.step(
            _as_doubles(ahead.x), _as_doubles(law.value), settings, states, guards, bounds
        )
        if error < 1.0 and not np.isfinite(guards).all():
            return None
        return CompiledStep(error, states, law.at_nodes, guards, bounds, decay)

    def take_variational_step(
        self, ahead: StepRequest, u: Array, longest: float
    ) -> StepTransition | None:
        """Return a step with its transition matrix, see `variational_step.take_variational_step`.

        Args:
            ahead: Start, length and tolerances of the step.
            u: Input (nu,), held on the step.
            longest: Limit of the length that is the same at all points, s.

        Returns:
            The step. None if it exceeds the step-size limits, `NotImplemented` if the kernel does
            not cover one of its stages. The kernel has a tree.
        """
        state, matrix = np.empty(self._nx), np.empty((self._field_size, self._field_size))
        settings = np.array((ahead.h, ahead.rtol, ahead.atol, longest, MAX_STEP_TO_STOP))
        error = self._kernel.variational_step(
            _as_doubles(ahead.x), _as_doubles(u), settings, state, matrix
        )
        return StepTransition(error, state, matrix) if isinstance(error, float) else error

    def sample_guards(self, states: Array, u: Array) -> Array:
        """Return the guards (k, n) at several states.

        Args:
            states: Coordinates (k, nx), of any norm.
            u: Input (nu,), held.
        """
        guards = np.empty((len(states), self._guard_count))
        self._kernel.sample_guards(_as_doubles(states), _as_doubles(u), guards)
        return guards


class _PythonMode:
    """The function of points that the kernel does not cover.

    Stages of steps that are far too long overflow, as in the kernel itself, without a warning: the
    values are not finite, and the step is rejected.

    Args:
        reference: The mode in Python.
    """

    def __init__(self, reference: ContactMode) -> None:
        self._reference = reference

    def __call__(self, x: bytes, u: bytes, with_guards: bool) -> tuple[Array, Array | None]:
        """Return the rate (nx,) of the coordinates, and the guards (n,) if they are asked for.

        Args:
            x: Coordinates (nx,), of any norm, as bytes.
            u: Input (nu,) as bytes.
            with_guards: Whether guards are asked for.
        """
        mode = self._reference
        state = mode.space.normalize(np.frombuffer(x))
        point = mode.calc(0.0, state, np.frombuffer(u))  # no mode of contacts depends on time
        with np.errstate(over="ignore", invalid="ignore"):
            guards = np.ascontiguousarray(point.guards) if with_guards else None
            return np.ascontiguousarray(mode.space.rate(state, point.field)), guards


def _as_doubles(values: Array) -> Array:
    return np.ascontiguousarray(values, dtype=np.float64)


def _list_turns(robot: Robot) -> list[tuple[int, int, int, float]]:
    """Return row, column, velocity and factor of all entries of `Robot.transport`."""
    found = []
    for k, unit in enumerate(np.eye(robot.nv)):
        turns = robot.transport(unit)
        found += [(i, j, k, float(turns[i, j])) for i, j in np.argwhere(turns).tolist()]
    return found


def _describe_closed_contacts(phase: ContactPhase) -> list[_Closed]:
    """Return contact, first tangent, end of tangents, whether it slides, sign, and more.

    These are kinetic friction of a contact that slides, static friction, the number of its pair of
    bodies, and the constant load of dry friction of a joint.
    """
    sliding = {slide.contact: slide for slide in phase.sliding}
    static, found, end = phase.friction.static.tolist(), [], len(phase.closed)
    for j, (contact, tangents) in enumerate(zip(phase.closed, phase.tangents, strict=True)):
        first, end = end, end + len(tangents)
        slide = sliding.get(j)
        sign, friction = (slide.sign, slide.friction) if slide else (0.0, 0.0)
        pair = phase.pairs.index(phase.pairs[j])
        load = float(phase.loads[j])
        found.append(
            (contact, first, end, slide is not None, sign, friction, static[j], pair, load)
        )
    return found


def _describe_guards(
    guards: Sequence[ContactGuard], phase: ContactPhase, static_friction: Array
) -> list[tuple[int, int, float, float]]:
    """Return kind, contact, sign and static friction (c,) of each guard.

    The contact of a guard that does not close is counted among the closed ones.
    """
    found = []
    for guard in guards:
        kind, contact = _KINDS.index(guard.kind), guard.contact
        if guard.kind == "jams":
            found.append((kind, 0, 0.0, 0.0))
        elif guard.kind == "closes":
            found.append((kind, contact, 0.0, 0.0))
        else:
            place = phase.closed.index(contact)
            found.append((kind, place, guard.sign, float(static_friction[contact])))
    return found


def _make_tableau() -> Array:
    """Return the coefficients of `struct tableau` one after the other."""
    table = DOP853_TABLEAU
    rows = np.zeros((len(table.rows), len(table.rows) + 1))
    for i, row in enumerate(table.rows):
        rows[i, : len(row)] = row
    parts = rows, table.errors, table.dense, TO_SERIES
    return np.concatenate([part.ravel() for part in parts])


_TABLEAU = _make_tableau()
_TABLEAU.setflags(write=False)
