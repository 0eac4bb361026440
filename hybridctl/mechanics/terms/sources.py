"""Which source the terms of a robot with contacts come from, and why there are three.

Least times on one core in microseconds, values / derivatives, and the time in which expressions are
made and kept on disk; solo12 (18 velocities, 4 points) and talos (38, 8 points):

    robot, ground     `FlatTerms`   `GeneralTerms`   `ExpressionTerms`   made in
    solo12, plane       34 /  58       86 /  455         19 / 110          0.5 s
    solo12, sphere         -          262 / 1229         26 / 162          5 s
    talos, plane        46 /  83      110 /  739         72 / 560         11 s
    talos, sphere          -          191 / 1154         77 / 683         15 s

- `FlatTerms` are for points on planes of the world, from as few of Pinocchio's sweeps as can be.
  Without them the derivatives of talos take six times as long.
- `ExpressionTerms` are the only ones of which whole modes and steps can be compiled, which decides
  for robots of up to 7 velocities. On curved ground they are the fastest for all.
- `GeneralTerms` are slower than both and need no expressions: for large robots on curved ground or
  on moving bodies, whose expressions take 15 s to make; for surfaces without a method `expression`;
  and, where "pinocchio" is asked for and `FlatTerms` do not apply, for any robot. They are
  also the independent computation that tests compare both others with.
"""

from __future__ import annotations

from typing import Literal

from hybridctl.base.errors import InputError
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.joint_rows import JointContactSet
from hybridctl.mechanics.kernel.extension import KernelChoice, is_kernel_available
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.terms.contact_terms import Terms, TermsWithJointRows
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms, MachineCode
from hybridctl.mechanics.terms.flat_terms import FlatTerms
from hybridctl.mechanics.terms.general_terms import GeneralTerms

TermsChoice = Literal["auto", "generated", "native", "pinocchio"]
MAX_EXPRESSED_VELOCITIES = 24
"""Velocities of a robot up to which expressions are made unasked: the time that this takes, at the
first run of a structure, is the limit."""
MAX_KERNEL_VELOCITIES = 40
"""Velocities of a robot up to which terms of the compiled kernel are made unasked. For talos, which
has 38, that takes 0.6 s, and 5 s of a C compiler where there is one, once for a structure."""
MAX_COMPILED_VELOCITIES = 7
"""Velocities of a robot up to which whole modes and steps are compiled, and terms are expressions
on flat ground too under "auto". The value is a choice."""

_MACHINE_CODE: dict[TermsChoice, MachineCode] = {
    "auto": "often called",
    "generated": "none",
    "native": "all",
}


def make_terms(choice: TermsChoice, robot: Robot, rows: ContactSet) -> Terms:
    """Return the terms of a robot with its contacts from the source that is asked for.

    Args:
        choice: "generated" or "native" for expressions, as functions or as machine code.
            "pinocchio" for none: `FlatTerms` where they apply, else `GeneralTerms`. "auto" for
            expressions up to 7 velocities, and up to 24 where `FlatTerms` do not apply; else, or
            where none are known, as "pinocchio".
        robot: Robot.
        rows: Kinematics of its contacts.

    Raises:
        InputError: If expressions are asked for, and none are known for a joint or surface, or
            machine code is, and there is no compiler.
    """
    if isinstance(rows, JointContactSet):
        # The contacts in space decide. Expressions have the rows of joints themselves; terms by
        # Pinocchio are wrapped.
        own = make_terms(choice, robot, rows.in_space)
        if isinstance(own, ExpressionTerms):
            return ExpressionTerms(robot, rows, machine_code=own.machine_code)
        return TermsWithJointRows(own, rows)
    # Sweeps are over all joints, as if none would mimic; and they need two velocities.
    ground = rows.find_points_on_planes() if robot.nv > 1 and not robot.mimics else None
    by_sweeps = ground is not None and robot.nv > MAX_COMPILED_VELOCITIES
    is_asked = choice in ("generated", "native")
    is_small = choice == "auto" and robot.nv <= MAX_EXPRESSED_VELOCITIES
    if is_asked or (is_small and not by_sweeps):
        try:
            return ExpressionTerms(robot, rows, machine_code=_MACHINE_CODE[choice])
        except InputError:
            # "auto" goes on with Pinocchio where a joint or a surface has no expression.
            if is_asked:
                raise
    if ground is None:
        return GeneralTerms(robot, rows)
    return FlatTerms(robot, ground, rows.owner)


def make_kernel_terms(
    choice: TermsChoice, kernel: KernelChoice, robot: Robot, rows: ContactSet, terms: Terms
) -> ExpressionTerms | None:
    """Return the expressions that compiled modes evaluate, None if modes are not compiled.

    Those that are made here are machine code where there is a C compiler: one function of 0.7 s for
    a quadruped, made at the first run of its structure and kept. Without a compiler CasADi
    interprets them. Terms that are expressions already are machine code under "native" alone.

    Args:
        choice: Where terms come from; "pinocchio" asks for no expressions.
        kernel: Whether modes are to be compiled.
        robot: Robot.
        rows: Kinematics of its contacts.
        terms: Its terms in Python, which are returned if they are expressions.
    """
    if kernel == "off" or choice == "pinocchio" or not is_kernel_available():
        return None
    if isinstance(terms, ExpressionTerms):
        return terms
    if robot.nv > MAX_KERNEL_VELOCITIES:
        return None
    try:
        return ExpressionTerms(robot, rows, machine_code="all if possible")
    except InputError:  # of a joint or surface that has no expression
        return None
