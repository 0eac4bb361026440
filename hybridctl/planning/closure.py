"""Equations at the start and the end of a motion, and those that close it up to a symmetry."""

from __future__ import annotations

from dataclasses import dataclass

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.mechanics.base_motion import BaseMotion
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.collocation import ConstraintBlock
from hybridctl.planning.phase_functions import (
    Limit,
    build_constraint_residual,
    build_gaps,
    get_constraint_limits,
    get_joint_unit,
)
from hybridctl.planning.task import Expression, Task

_GAP_SLOPE = 1e-9
"""Change of a gap along a free direction of unit length, m per unit, above which the gap depends on
the direction; below it is rounding. A choice."""


def build_boundary_blocks(task: Task, first: Expression, last: Expression) -> list[ConstraintBlock]:
    """Return the equations of the start, and of the closure of a periodic motion.

    Without a start and a symmetry, the first state has to meet the constraints of its mode.

    Args:
        task: The task.
        first: State (nx, 1) at the start.
        last: State (nx, 1) at the end, after the reset of the last event.
    """
    blocks = list[ConstraintBlock]()
    if task.start is not None:
        residual = first - ca.DM(np.asarray(task.start, dtype=np.float64))
        limits = tuple(
            Limit(f"start: {limit.name}", limit.unit, 0.0, 0.0) for limit in get_state_limits(task)
        )
        blocks.append(ConstraintBlock(residual, limits))
    elif task.symmetry is None and (limits := get_constraint_limits(task, 0)):
        residual = build_constraint_residual(task, 0, task.phases[0].mode, first)
        blocks.append(ConstraintBlock(residual, limits, 0))
    if task.symmetry is not None:
        blocks += _build_closure(task, first, last)
    return blocks


@dataclass(frozen=True, eq=False)
class _ClosingFrame:
    """How states are compared where a motion closes.

    Attributes:
        limits: Names and units of the rows of a gap.
        directions: Free directions (n, k) of gaps.
        origins: For each free direction, that (nx,) of coordinates along which the start is fixed.
        quaternions: Indices of the coordinates of each quaternion and unit circle; x, y, z, w or
            cosine, sine.
    """

    limits: tuple[Limit, ...]
    directions: Array
    origins: tuple[Array, ...]
    quaternions: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(task: Task) -> _ClosingFrame:
        """Return the comparison of a task with a symmetry.

        Args:
            task: The task.

        Raises:
            InputError: A turn of the base is free, but not both shifts.
        """
        assert task.symmetry is not None
        robot, symmetry, limits = task.system.robot, task.symmetry, get_state_limits(task)
        if symmetry.coordinates is None and not symmetry.motions:
            directions = symmetry.directions
            return _ClosingFrame(limits, directions, tuple(directions.T), ())
        bodies, nv = robot.tree().bodies, robot.nv
        units = [
            tuple(range(body.unit.start, body.unit.stop))
            for body in bodies
            if body.unit is not None
        ]
        ways = [way for way in symmetry.free.values() if isinstance(way, BaseMotion)]
        if {way.way for way in ways} & {"yaw"} and len(ways) < 3:
            raise InputError("symmetry: where a turn of the base is free, x and y must be too")
        directions, origins = np.zeros((2 * nv, len(symmetry.free))), list[Array]()
        for k, way in enumerate(symmetry.free.values()):
            origin = np.zeros(task.system.space.nx)
            if isinstance(way, BaseMotion):
                place = 5 if way.way == "yaw" else ("x", "y").index(way.way)
                directions[way.velocity + place, k] = 1.0
                origin[way.coordinate + place] = 1.0
            else:
                directions[:, k] = np.asarray(way, dtype=np.float64)
                joints = [body for body in bodies if directions[body.v, k] and body.unit is None]
                for body in joints:
                    origin[body.q] = directions[body.v, k]
            origins.append(origin)
        rows = tuple(Limit(f"row {i} of the gap", "", 0.0, 0.0) for i in range(2 * nv))
        return _ClosingFrame(rows, directions, tuple(origins), tuple(units))

    def compute_gap(self, end: Expression, start: Expression) -> Expression:
        """Return the gap (n, 1) from one state (nx, 1) to another.

        Rotations count by the vector part of their quaternion, half of a small rotation vector in
        axes of the world, or by the sine of an angle.

        Args:
            end: The image of the end.
            start: The start.
        """
        rows, i = list[Expression](), 0
        units = {unit[0]: unit for unit in self.quaternions}
        while i < start.numel():
            unit = units.get(i)
            if unit is None:
                rows.append(end[i] - start[i])
                i += 1
                continue
            a, b = end[list(unit)], start[list(unit)]
            if len(unit) == 2:
                rows.append(b[0] * a[1] - b[1] * a[0])
            else:  # the vector part of a times the conjugate of b
                rows.append(b[3] * a[:3] - a[3] * b[:3] - ca.cross(a[:3], b[:3]))
            i += len(unit)
        return ca.vertcat(*rows)

    def build_norms(self, start: Expression) -> list[ConstraintBlock]:
        """Return the equations that quaternions and circles (nx, 1) of the start have norm 1."""
        norms = [ca.sumsqr(start[list(unit)]) - 1.0 for unit in self.quaternions]
        limits = (Limit("norm of a quaternion at the start", "", 0.0, 0.0),)
        return [ConstraintBlock(norm, limits, is_hard=True) for norm in norms]


def _build_closure(task: Task, first: Expression, last: Expression) -> list[ConstraintBlock]:
    """Return S last = first across the free directions, and a fixed place along them.

    On a floating base positions are compared in axes of the world, and orientations by the rotation
    between them: then free shifts and turns have constant directions.

    The projection across m free directions has rank nx - m: all its rows would be dependent
    equations, which IPOPT does not take. So m rows are left out, one for each direction: the row of
    the direction's largest entry. The other rows determine that one most accurately.

    Args:
        task: A task with a symmetry S.
        first: State (nx, 1) at the start.
        last: State (nx, 1) at the end.
    """
    symmetry = task.symmetry
    assert symmetry is not None
    frame = _ClosingFrame.of(task)
    free = frame.directions
    gap = frame.compute_gap(ca.DM(symmetry.state_map) @ last, first)
    coordinates = frame.limits
    left_out = set(np.abs(free).argmax(axis=0).tolist())
    fixed = [i for i in range(len(coordinates)) if i not in left_out]
    across = (np.eye(len(coordinates)) - free @ np.linalg.pinv(free))[fixed]
    limits = tuple(
        Limit(f"closing: {coordinates[i].name}", coordinates[i].unit, 0.0, 0.0) for i in fixed
    )
    blocks = [ConstraintBlock(ca.DM(across) @ gap, limits)]
    if task.start is None:
        ways = zip(symmetry.free, frame.origins, strict=True)
        blocks += [_build_origin(task, name, origin, first) for name, origin in ways]
        blocks += frame.build_norms(first)
    return blocks


def _build_origin(task: Task, name: str, direction: Array, first: Expression) -> ConstraintBlock:
    """Return the equation that fixes the start along a free direction of a symmetry.

    The component along it is zero. If the gap of the first closed contact changes along the
    direction, as for the height, that gap is zero instead: a height of zero would leave the ground.

    Args:
        task: The task.
        name: Name of the direction.
        direction: The direction (nx,) of coordinates.
        first: State (nx, 1) at the start.
    """
    limits = (Limit(f"start along {name!r}", "m", 0.0, 0.0),)
    closed = closed_contacts(task.phases[0].mode)
    if closed:
        x = ca.SX.sym("x", len(direction))
        gap = build_gaps(task, 0, x, list(closed[:1]))
        f = ca.Function("gap", [x], [gap, ca.jtimes(gap, x, ca.DM(direction))])
        # Evaluated at a state without zeros: at zero coordinates a slope may vanish by chance.
        if abs(float(f(np.linspace(0.1, 1.0, len(direction)))[1])) > _GAP_SLOPE:
            return ConstraintBlock(f(first)[0], limits, is_hard=True)
    return ConstraintBlock(ca.DM(direction).T @ first, limits, is_hard=True)


def get_state_limits(task: Task) -> tuple[Limit, ...]:
    """Return names and units of the entries of the state, as equations to zero.

    Entries have no names of joints where the coordinates are not one for each joint, as of a
    floating base.
    """
    robot = task.system.robot
    names = [name for name in robot.joint_names if name not in robot.mimics]
    if not robot.nq == robot.nv == len(names):
        entries = [(f"entry {i} of the state", "") for i in range(task.system.space.nx)]
    else:
        units = [get_joint_unit(robot, name) for name in names]
        pairs = list(zip(names, units, strict=True))
        entries = [(f"coordinate of joint {n!r}", unit) for n, unit in pairs]
        entries += [(f"velocity of joint {n!r}", f"{unit}/s") for n, unit in pairs]
    return tuple(Limit(name, unit, 0.0, 0.0) for name, unit in entries)
