r"""The functions that compiled modes are made of, shared by systems that differ in numbers alone.

Each takes masses, inertias, lengths, springs and friction as its last argument. A system with other
values of its parameters calls the same functions with its numbers (`ContactDynamics.with_values`).
They are made of the expressions of `mode_expressions`, at first use, or read from disk.

In whole steps coordinates x = (q, v) are normalised wherever the equations are evaluated.
Perturbations of q become those of its coordinates by T(q) of :math:`\dot q = T v`. Its columns are
orthogonal to each other and to what changes norms, so that :math:`(T^T T)^{-1} T^T` takes
perturbations back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

import casadi as ca

from hybridctl.base.checks import Array
from hybridctl.base.compilable import list_settings
from hybridctl.base.function_cache import load_or_build, make_key
from hybridctl.mechanics.contact_law.law import Modes
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.joint_contacts import AnyContact
from hybridctl.mechanics.modes.mode_expressions import (
    ModeEquations,
    ModeField,
    cholesky,
    make_field,
    mode_derivatives,
)
from hybridctl.mechanics.multibody.expressions import Bodies, Expression, normalize_configuration
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.expression_terms import RobotConstants, hash_sources
from hybridctl.symbolic import compiled_step
from hybridctl.symbolic.compiled_function import build_transposed_function
from hybridctl.symbolic.compiled_step import Function

T = TypeVar("T")

_SOURCES = (compiled_step.__file__, __file__)
"""Files that functions are made by, beside those of `ModeEquations`."""

_MAX_STRUCTURES = 16
"""Most structures that a process keeps for equal robots. A choice."""
_STRUCTURES: OrderedDict[str, ModeStructure] = OrderedDict()
"""These structures, the one that was asked for last at the end."""


def find_structure(
    constants: RobotConstants,
    robot: Robot,
    members: ContactSet,
    contacts: Sequence[AnyContact],
    stabilization: float,
    machine_code: str,
) -> ModeStructure:
    """Return the structure of a robot with its contacts, one for all equal ones in this process.

    A model that is made anew for each log or each member of a sweep has the functions of the first.

    Args:
        constants: The robot with its contacts and their friction.
        robot: The robot.
        members: Kinematics of its contacts.
        contacts: The contacts.
        stabilization: Rate at which residuals decay, 1/s.
        machine_code: Which functions are machine code, see `MachineCode`.
    """
    key = constants.make_key(
        constants.numbers, members.tangents, stabilization, machine_code, list_settings()
    )
    found = _STRUCTURES.pop(key, None)
    if found is None:
        found = ModeStructure(robot, members, contacts, stabilization)
    _STRUCTURES[key] = found
    while len(_STRUCTURES) > _MAX_STRUCTURES:
        with suppress(KeyError):  # another thread has removed it
            _STRUCTURES.popitem(last=False)
    return found


class ModeStructure:
    """What contact dynamics that differ in numbers alone share: the functions of their modes.

    It is pickled without functions, which are read from disk again. Threads can share it.

    Args:
        robot: Robot of the first of them. Its numbers decide which of several redundant rows are
            solved for, so that functions do not depend on which values are asked for in which
            order.
        members: Kinematics of its contacts.
        contacts: The contacts.
        stabilization: Rate at which residuals decay, 1/s.

    Attributes:
        number_changes: The last derivatives of numbers by parameters, by what they are made of; see
            `mechanics.parameters`.
    """

    def __init__(
        self,
        robot: Robot,
        members: ContactSet,
        contacts: Sequence[AnyContact],
        stabilization: float,
    ) -> None:
        self._made_of = robot, members, contacts, stabilization
        self._functions: dict[Modes, ModeFunctions] = {}
        self.number_changes: tuple[tuple[bytes, ...], Array | None] = (), None

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the functions."""
        return {"_made_of": self._made_of, "_functions": {}, "number_changes": ((), None)}

    def functions_of(self, modes: Modes) -> ModeFunctions:
        """Return the functions of a mode, made once.

        Args:
            modes: Modes of all contacts.
        """
        known = self._functions.get(modes)
        if known is None:
            robot, members, contacts, stabilization = self._made_of
            equations = ModeEquations.of(robot, members, contacts, modes, stabilization)
            known = self._functions.setdefault(modes, ModeFunctions(equations))
        return known


class ModeFunctions:
    """The functions of one mode, made at first use.

    Args:
        equations: Equations of the mode. Of their numbers it counts which are zero.

    Attributes:
        equations: The same.
    """

    def __init__(self, equations: ModeEquations) -> None:
        self.equations = equations
        self._steps: dict[tuple[str, bool], Function] = {}
        self._described: dict[str, Any] = {}

    def recall(self, name: str, make: Callable[[], T]) -> T:
        """Return what modes that differ in numbers call a function by, made once.

        Args:
            name: Name of the function.
            make: Makes it, such as the function itself as machine code, with shapes of its results.
        """
        known = self._described.get(name)
        if known is None:
            known = self._described.setdefault(name, make())
        found: T = known
        return found

    @cached_property
    def motion(self) -> Function:
        """The function (t, x, u, numbers) -> rate, guards, soundness, for x of any norm."""
        return self._load("motion", self._make_motion)

    @cached_property
    def slopes(self) -> Function:
        """The function (x, u, numbers) -> soundness, and the results of `mode_derivatives`."""
        return self._load("slopes", self._make_slopes)

    @cached_property
    def sliding_rates(self) -> Function:
        """The function (x, u, numbers) -> sliding rates (2,), soundness; see `ModeField`."""
        return self._load("sliding_rates", self._make_sliding_rates)

    @cached_property
    def field_number_slopes(self) -> Function:
        """The function (t, x, u, numbers) -> soundness, derivatives of the acceleration by numbers.

        The second result is sparse, (numbers, nv), and has the entries that are not always zero.
        """
        return self._load("field_number_slopes", self._make_field_number_slopes)

    @cached_property
    def guard_number_slopes(self) -> Function:
        """The function (x, u, numbers) -> soundness, derivatives of the guards by numbers.

        The second result is sparse, (numbers, n).
        """
        return self._load("guard_number_slopes", self._make_guard_number_slopes)

    def load_step(self, name: str, is_constrained: bool) -> Function:
        """Return a function of the compiled steps, with the numbers as its last argument.

        Args:
            name: A name of `compiled_step.build_function`, but for "motion".
            is_constrained: Whether the mode has constraints, which input noise acts against.
        """
        known = self._steps.get((name, is_constrained))
        if known is None:
            kept_as = f"{name} with constraints" if is_constrained else name
            known = self._load(kept_as, lambda: self._make_step(name, is_constrained))
            self._steps[name, is_constrained] = known
        return known

    def _load(self, name: str, build: Callable[[], Function]) -> Function:
        """Return a function read from disk, or built."""
        return load_or_build(make_key(self._key, name), build)

    @cached_property
    def _key(self) -> str:
        return self.equations.make_key(hash_sources(*_SOURCES))

    @cached_property
    def _expressions(self) -> tuple[ModeField, Expression]:
        """Expressions of the mode, with symbols for the robot's numbers, and these symbols."""
        constants, numbers = self.equations.constants.make_symbolic()
        return make_field(self.equations._replace(constants=constants)), numbers

    def _make_motion(self) -> Function:
        """Return the function of `motion`."""
        mode, numbers = self._expressions
        symbols = [mode.x, mode.u, numbers]
        of_unit = ca.Function("mode", symbols, [mode.field, mode.guards, mode.sound])
        results = of_unit(self._normalize(mode.x), mode.u, numbers)
        columns = ca.cse([ca.densify(result) for result in results])
        return ca.Function("motion", [ca.SX.sym("t"), *symbols], columns)

    def _make_step(self, name: str, is_constrained: bool) -> Function:
        """Return a function of the compiled steps, see `compiled_step.build_function`."""
        is_noisy = name in ("driven_step", "noisy_step")
        free = self._make_free_input() if is_noisy and is_constrained else None
        return compiled_step.build_function(name, self.motion, self._make_tangent(), free)

    def _make_slopes(self) -> Function:
        """Return the function of `slopes`."""
        mode, numbers = self._expressions
        results = [mode.sound, *mode_derivatives(mode)]
        return build_transposed_function("slopes", [mode.x, mode.u, numbers], results)

    def _make_sliding_rates(self) -> Function:
        """Return the function of `sliding_rates`."""
        mode, numbers = self._expressions
        results = [mode.sliding_rates, mode.sound]
        return build_transposed_function("sliding_rates", [mode.x, mode.u, numbers], results)

    def _make_field_number_slopes(self) -> Function:
        """Return the function of `field_number_slopes`."""
        mode, numbers = self._expressions
        by_numbers = ca.jacobian(mode.field[self.equations.constants.nq :], numbers)
        arguments = [ca.SX.sym("t"), mode.x, mode.u, numbers]
        return ca.Function("number_slopes", arguments, ca.cse([mode.sound, by_numbers.T]))

    def _make_guard_number_slopes(self) -> Function:
        """Return the function of `guard_number_slopes`."""
        mode, numbers = self._expressions
        results = [mode.sound, ca.jacobian(mode.guards, numbers).T]
        return ca.Function("number_slopes", [mode.x, mode.u, numbers], ca.cse(results))

    def _make_tangent(self) -> Function | None:
        """Return the function x -> T (nx, 2 nv) and its left inverse.

        None where coordinates are free: then T is the identity.
        """
        c = self.equations.constants
        if c.nq == c.nv:
            return None
        x = ca.SX.sym("x", c.nq + c.nv)
        unit = self._normalize(x)
        rates = ca.diagcat(Bodies(c.tree, unit[: c.nq]).rate, ca.SX.eye(c.nv))
        back = ca.diag(1.0 / ca.sum1(rates * rates)) @ rates.T @ ca.jacobian(unit, x)
        return ca.Function("tangent", [x], ca.cse([ca.densify(rates), ca.densify(back)]))

    def _make_free_input(self) -> Function:
        """Return the function (x, numbers) -> (0, M^-1 S), (nx, nu), see `Point.free_input`."""
        c, numbers = self.equations.constants.make_symbolic()
        x = ca.SX.sym("x", c.nq + c.nv)
        by_mass, _ = cholesky(Bodies(c.tree, self._normalize(x)[: c.nq]).mass())
        moved = ca.vertcat(ca.SX.zeros(c.nq, c.actuation.shape[1]), by_mass(ca.DM(c.actuation)))
        return ca.Function("free", [x, numbers], ca.cse([ca.densify(moved)]))

    def _normalize(self, x: Expression) -> Expression:
        """Return the state with unit quaternions and circles."""
        c = self.equations.constants
        return ca.vertcat(normalize_configuration(c.tree, x[: c.nq]), x[c.nq :])
