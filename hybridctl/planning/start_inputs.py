"""Inputs at which a search for an optimum begins, from a guess of the states.

Both functions solve for inputs by least squares without limits and cut them to the limits. Where
one is cut, others do not make up for it: this is only where a search begins.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.planning.collocation import (
    compute_collocation_matrices,
    compute_input_basis,
    compute_knot_fractions,
    compute_point_fractions,
)
from hybridctl.planning.task import Guess, Task

_HOLDING_PRECISION = 1e-6
"""Singular values of the effect of motors on accelerations below which they count as zero, relative
to the largest one. A choice: a motor that does nearly nothing gets no input, instead of a huge
one."""


def compute_holding_input(task: Task, field: Any, x: Array) -> Array:
    """Return the input (nu,) of least acceleration of a state put to rest, cut to its limits.

    Args:
        task: The task.
        field: CasADi function (x, u) -> dx/dt, affine in u.
        x: State (nx,), of which the configuration counts; velocities are set to zero.
    """
    robot = task.system.robot
    rest = np.append(x[: robot.nq], np.zeros(robot.nv))
    return np.asarray(_solve_inputs(task, field, rest[None], np.zeros((1, robot.nv)))[0])


def fit_inputs(task: Task, k: int, field: Any, guess: Guess) -> Array:
    """Return Chebyshev coefficients (p + 1, nu) of inputs under which phase k moves as guessed.

    At each collocation point the input is that of which the accelerations are nearest to those of
    the guess, the slopes of its collocation polynomial. The duration is the mean of its bounds.

    Args:
        task: The task.
        k: Index of the phase.
        field: CasADi function (x, u) -> dx/dt of the phase, affine in u.
        guess: States (nx,) by phase and fraction of the phase.
    """
    phase, nq = task.phases[k], task.system.robot.nq
    fractions = compute_point_fractions(phase)
    knots = np.array([guess(k, s) for s in compute_knot_fractions(phase)[:-1]])
    points = np.array([guess(k, s) for s in fractions])
    nodes = np.concatenate((knots[:, None], points.reshape(*knots.shape[:1], phase.points, -1)), 1)
    length = 0.5 * sum(phase.duration) / phase.intervals
    slopes = compute_collocation_matrices(phase).slopes.T @ nodes / length
    accelerations = slopes.reshape(points.shape)[:, nq:]
    inputs = _solve_inputs(task, field, points, accelerations)
    basis = compute_input_basis(fractions, task.degree).T
    return np.asarray(np.linalg.lstsq(basis, inputs, rcond=None)[0])


def _solve_inputs(task: Task, field: Any, states: Array, accelerations: Array) -> Array:
    """Return the inputs (n, nu) of which accelerations are nearest to given ones, cut to limits.

    Args:
        task: The task.
        field: CasADi function (x, u) -> dx/dt, affine in u.
        states: States (n, nx).
        accelerations: The given accelerations (n, nv).
    """
    robot, zero, inputs = task.system.robot, np.zeros(task.system.robot.nu), []
    x, u = ca.SX.sym("x", task.system.space.nx), ca.SX.sym("u", robot.nu)
    # The Jacobian is the same at all u, but its expression need not be free of them.
    slope = ca.Function("slope", [x, u], [ca.jacobian(field(x, u), u)])
    for state, wanted in zip(states, accelerations, strict=True):
        free, effect = (
            np.array(part)[robot.nq :] for part in (field(state, zero), slope(state, zero))
        )
        inputs.append(np.linalg.lstsq(effect, wanted - free.ravel(), _HOLDING_PRECISION)[0])
    limits = task.largest_inputs
    return np.asarray(np.clip(np.array(inputs), -limits, limits))
