"""Inputs at which a search for an optimum begins, from a guess of the states.

All functions solve for inputs by least squares without limits and cut them to the limits. Where
one is cut, others do not make up for it: this is only where a search begins.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.mechanics.modes.implicit_expressions import SCALE, ImplicitMode
from hybridctl.mechanics.modes.phase import ClosedRows, contact_modes
from hybridctl.mechanics.system import closed_contacts
from hybridctl.planning.collocation import (
    compute_collocation_matrices,
    compute_input_basis,
    compute_knot_fractions,
    compute_point_fractions,
)
from hybridctl.planning.phase_functions import find_opening_contacts
from hybridctl.planning.task import Guess, Task

_HOLDING_PRECISION = 1e-6
"""Singular values of the effect of motors on accelerations below which they count as zero, relative
to the largest one. A choice: a motor that does nearly nothing gets no input, instead of a huge
one."""
_TORQUE_SIZE = 1e3
"""Input, N m or N, that counts as much as a force of 1 kN where forces are to be least."""
_LEAST_SHARE = 1e-2
"""Least share of its force that a contact has which opens or has just closed: without it a start
would have no force where a phase ends."""


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
    fractions, points, accelerations = _guess_motion(task, k, guess)
    return _fit_curve(task, fractions, _solve_inputs(task, field, points, accelerations))


def _guess_motion(task: Task, k: int, guess: Guess) -> tuple[Array, Array, Array]:
    """Return fractions (n,), states (n, nx) and accelerations (n, nv) at the points of a guess.

    Accelerations are the slopes of the collocation polynomial of the guess.

    Args:
        task: The task.
        k: Index of the phase.
        guess: States (nx,) by phase and fraction of the phase.
    """
    phase, nq = task.phases[k], task.system.robot.nq
    fractions = compute_point_fractions(phase)
    knots = np.array([guess(k, s) for s in compute_knot_fractions(phase)[:-1]])
    points = np.array([guess(k, s) for s in fractions])
    nodes = np.concatenate((knots[:, None], points.reshape(*knots.shape[:1], phase.points, -1)), 1)
    length = 0.5 * sum(phase.duration) / phase.intervals
    slopes = compute_collocation_matrices(phase).slopes.T @ nodes / length
    return fractions, points, slopes.reshape(points.shape)[:, nq:]


def _fit_curve(task: Task, fractions: Array, inputs: Array) -> Array:
    """Return Chebyshev coefficients (p + 1, nu) near inputs (n, nu), which are cut to limits.

    Args:
        task: The task.
        fractions: Fractions (n,) of the phase at which the inputs are.
        inputs: The inputs (n, nu).
    """
    limits = task.largest_inputs
    basis = compute_input_basis(fractions, task.degree).T
    return np.asarray(np.linalg.lstsq(basis, np.clip(inputs, -limits, limits), rcond=None)[0])


def fit_inputs_to_forces(task: Task, k: int, mode: ImplicitMode, guess: Guess) -> Array:
    """Return Chebyshev coefficients (p + 1, nu) of inputs that move phase k by least forces.

    Where redundant contacts share forces, many inputs move the robot as guessed. Those of least
    torque press the feet apart: the search for a step of talos that began there made no progress
    in 30 iterations. Forces of contacts that open at the end of the phase fade, and those of
    contacts that have just closed grow from zero.

    Args:
        task: The task.
        k: Index of the phase.
        mode: Equations of motion of its mode.
        guess: States (nx,) by phase and fraction of the phase.
    """
    robot, contacts = task.system.robot, task.system.dynamics.contact_set
    nv, nu = robot.nv, robot.nu
    modes, closed = contact_modes(task.phases[k].mode), closed_contacts(task.phases[k].mode)
    opening = find_opening_contacts(task, k)
    before = closed_contacts(task.phases[k - 1].mode) if k else closed
    fractions, points, accelerations = _guess_motion(task, k, guess)
    a = mode.u[nu : nu + nv]
    others = ca.vertcat(mode.u[:nu], mode.u[nu + nv :])
    balance = mode.residual[:nv]
    zero = ca.DM.zeros(others.shape)  # the equations are affine in inputs and forces
    rows = ca.substitute([balance, ca.jacobian(balance, others)], [others], [zero])
    f = ca.Function("balance", [mode.x, a], rows)
    owner = contacts.owner[ClosedRows(contacts.tangents, modes).constrained_rows].tolist()
    inputs = []
    for s, state, wanted in zip(fractions, points, accelerations, strict=True):
        missed, effect = (np.asarray(part) for part in f(state, wanted / SCALE))
        shares = [(1.0 - s if i in opening else 1.0) * (1.0 if i in before else s) for i in owner]
        sizes = np.append(np.full(nu, _TORQUE_SIZE), np.maximum(shares, _LEAST_SHARE))
        found = np.linalg.lstsq(effect * sizes, -missed.ravel(), _HOLDING_PRECISION)[0]
        inputs.append((sizes * found)[:nu])
    return _fit_curve(task, fractions, np.array(inputs))


def _solve_inputs(task: Task, field: Any, states: Array, accelerations: Array) -> Array:
    """Return the inputs (n, nu) of which accelerations are nearest to given ones, cut to limits.

    Args:
        task: The task.
        field: CasADi function (x, u) -> dx/dt, affine in u.
        states: States (n, nx).
        accelerations: The given accelerations (n, nv).
    """
    robot, u = task.system.robot, ca.SX.sym("u", task.system.robot.nu)
    zero, inputs = np.zeros(robot.nu), []
    for state, wanted in zip(states, accelerations, strict=True):
        # The Jacobian is the same at all u, but its expression need not be free of them.
        slope = ca.Function("slope", [u], [ca.jacobian(field(state, u), u)])
        free, effect = (np.array(part)[robot.nq :] for part in (field(state, zero), slope(zero)))
        inputs.append(np.linalg.lstsq(effect, wanted - free.ravel(), _HOLDING_PRECISION)[0])
    limits = task.largest_inputs
    return np.asarray(np.clip(np.array(inputs), -limits, limits))
