r"""The backward pass of iterative LQR, and the exact gradient of the cost by the inputs.

The input is continuous and linear between grid times, so that z_k = (x_k, u_k) is the state of the
discrete problem and v_k = u_{k+1} its input,

.. math:: \delta z_{k+1} = \begin{pmatrix} A & B_0 \\ 0 & 0 \end{pmatrix} \delta z_k
    + \begin{pmatrix} B_1 \\ I \end{pmatrix} \delta v_k = F\, \delta z_k + H\, \delta v_k .

With the cost c_k(z_k) of a grid time and the value function V of z_{k+1},

.. math::
    Q_v &= H^T V_z, \quad Q_{vv} = H^T (V_{zz} + \mu I) H, \quad Q_{vz} = H^T (V_{zz} + \mu I) F, \\
    k &= -Q_{vv}^{-1} Q_v, \quad K = Q_{vv}^{-1} Q_{vz}, \quad \delta v = k - K\, \delta z .

On intervals with events, an estimate S of the second derivatives of the motion, weighted by the
costate, is added to Q_zz, Q_vz and Q_vv (see `estimate_curvature`). u_0 is chosen too, with offset
:math:`-(V_{uu} + \mu I)^{-1} V_u` at the first grid time. A, B_0 and B_1 go through the events, so
that V jumps with the saltation matrix, [Salt] (42).

They belong to one interval, with the events inside it. With s from 0 to 1 along the interval,

.. math:: \delta x_{k+1} = A\, \delta x_k + B_0\, \delta u_k + B_1\, \delta u_{k+1}, \qquad
    \delta u(t) = (1 - s)\, \delta u_k + s\, \delta u_{k+1}.

Flow and jumps alternate, :math:`\Phi_n G_n \cdots G_1 \Phi_0`. The input acts in each factor:
through the field, and at the events through J ([Salt] (35), [RS] (3.34)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from hybridctl.base.checks import Array
from hybridctl.control.ilqr.cost import Cost, Expansion
from hybridctl.control.ilqr.rollout import Rollout, ShootingProblem
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.linearization import Linearization
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.propagation import propagate_perturbations
from hybridctl.sensitivity.saltation import JumpGains

_SECANT_TOLERANCE = 1e-8
"""Least cosine between step and residual of a symmetric rank-one update; below it, none is made."""

Linearizer = Callable[[HybridSystem, HybridTrajectory], Linearization]


class IntervalMap(NamedTuple):
    """The first-order map of an interval.

    Attributes:
        state: Matrix A (ndx+, ndx) of the state at the start.
        start_input: Matrix B_0 (ndx+, nu) of the input at the start.
        end_input: Matrix B_1 (ndx+, nu) of the input at the end.
    """

    state: Array
    start_input: Array
    end_input: Array


def compute_interval_map(lin: Linearization) -> IntervalMap:
    """Return the first-order map of a trajectory by its initial state and both ends of its input.

    Where guards fire together the map is piecewise linear, and the mean of its pieces is taken.
    """
    motion = lin.trajectory
    n, nu = motion.arcs[0].space.ndx, motion.arcs[0].inputs.shape[2]
    first, last = np.eye(nu, n + 2 * nu, n), np.eye(nu, n + 2 * nu, n + nu)

    def inputs(t: float) -> Array:
        s = (t - motion.start) / (motion.end - motion.start)
        return (1.0 - s) * first + s * last

    z: Array = np.eye(n, n + 2 * nu)
    for k, arc in enumerate(motion.arcs):
        mode, gain = lin.system.mode(arc.mode), None if lin.gains is None else lin.gains[k]
        z = propagate_perturbations(mode, arc, z, inputs, gain, rtol=lin.rtol, atol=lin.atol).end
        if k < len(lin.jumps):
            state, by_input = _average_jump(lin.jumps[k])
            z = state @ z + by_input @ inputs(arc.end)
    return IntervalMap(z[:, :n], z[:, n : n + nu], z[:, n + nu :])


def _average_jump(jump: JumpGains | PiecewiseLinearJump) -> tuple[Array, Array]:
    """Return the matrices of a jump by state and input, as the mean over its pieces."""
    if isinstance(jump, JumpGains):
        return jump.state, jump.input
    pieces = jump.pieces()
    state = np.mean([piece.matrix for piece in pieces], axis=0)
    return state, np.mean([piece.input for piece in pieces], axis=0)


@dataclass(frozen=True, eq=False)
class ExpandedMotion:
    """A motion with the first-order maps of its intervals, and its cost to second order.

    Attributes:
        rollout: The motion.
        weights: Weights w_k (N+1,) of the running cost, s.
        maps: First-order map of each interval.
        running: Running cost at each time of the grid.
        final: Final cost.
        curvature: Estimate S (m, m) of each interval, with m the size of (x_k, u_k, u_{k+1}).
    """

    rollout: Rollout
    weights: Array
    maps: tuple[IntervalMap, ...]
    running: tuple[Expansion, ...]
    final: Expansion
    curvature: tuple[Array, ...]

    @property
    def cost(self) -> float:
        """Cost J."""
        return float(self.weights @ [e.value for e in self.running]) + self.final.value

    def costates(self) -> list[Array]:
        """Return the gradient of J by (x_k, u_k) at each grid time, with later inputs fixed."""
        p = [self.expand_last()[0]]
        for k in reversed(range(len(self.maps))):
            p.append(self.expand_stage(k)[0] + make_discrete_maps(self.maps[k])[0].T @ p[-1])
        return p[::-1]

    def gradient(self) -> Array:
        """Return the gradient dJ/du (N+1, nu), exact if the maps are."""
        p = self.costates()
        nu = self.rollout.inputs.shape[1]
        later = [make_discrete_maps(m)[1].T @ q for m, q in zip(self.maps, p[1:], strict=True)]
        return np.array([p[0][-nu:], *later])

    def slope(self) -> float:
        """Return the norm of the gradient by u(t), sqrt(sum |dJ/du_k|^2 / w_k)."""
        return float(np.sqrt((self.gradient() ** 2 / self.weights[:, None]).sum()))

    def expand_stage(self, k: int) -> tuple[Array, Array]:
        """Return gradient (m,) and Hessian (m, m) by (x_k, u_k) of w_k l at grid index k."""
        e, w = self.running[k], self.weights[k]
        return w * e.gradient, w * e.hessian

    def expand_last(self) -> tuple[Array, Array]:
        """Return gradient and Hessian at the last time of the grid, with the final cost."""
        gradient, hessian = self.expand_stage(-1)
        n = len(self.final.gradient)
        gradient[:n] += self.final.gradient
        hessian[:n, :n] += self.final.hessian
        return gradient, hessian


def make_discrete_maps(m: IntervalMap) -> tuple[Array, Array]:
    """Return the matrices F (ndx+ + nu, ndx + nu) and H (ndx+ + nu, nu) of an interval."""
    nu = m.end_input.shape[1]
    f = np.block([[m.state, m.start_input], [np.zeros((nu, m.state.shape[1] + nu))]])
    return f, np.vstack([m.end_input, np.eye(nu)])


@dataclass(frozen=True, eq=False)
class BackwardSweep:
    """The result of the backward pass.

    The quadratic model of the decrease of the cost by a step a is a linear - a^2/2 quadratic.

    Attributes:
        offsets: Offsets (N+1, nu) of the inputs.
        gains: N gains K (nu, ndx + nu) of z_k.
        linear: Linear term of the decrease.
        quadratic: Quadratic term of the decrease.
    """

    offsets: Array
    gains: tuple[Array, ...]
    linear: float
    quadratic: float

    def predict_decrease(self, step: float) -> float:
        """Return the decrease of the cost that the quadratic model predicts for a step."""
        return step * self.linear - 0.5 * step**2 * self.quadratic


def compute_trapezoid_weights(times: Array) -> Array:
    """Return the weights (N+1,) of the trapezoidal rule on times (N+1,), in their unit."""
    h = np.diff(times)
    return np.asarray(0.5 * (np.append(h, 0.0) + np.append(0.0, h)))


def compute_cost(plant: ShootingProblem, rollout: Rollout, cost: Cost) -> float:
    """Return the cost J of a motion.

    Args:
        plant: The problem.
        rollout: The motion.
        cost: The cost.
    """
    values = [e.value for e in _expand_running_cost(plant, rollout, cost)]
    return (
        float(compute_trapezoid_weights(plant.times) @ values)
        + cost.final(rollout.states[-1]).value
    )


def expand_motion(
    plant: ShootingProblem, rollout: Rollout, cost: Cost, linearizer: Linearizer
) -> ExpandedMotion:
    """Return a motion with first-order maps and its cost to second order.

    Args:
        plant: The problem.
        rollout: The motion.
        cost: The cost.
        linearizer: Gives the linearization of a trajectory; it may refuse one.
    """
    maps = tuple(compute_interval_map(linearizer(plant.system, piece)) for piece in rollout.pieces)
    return ExpandedMotion(
        rollout,
        compute_trapezoid_weights(plant.times),
        maps,
        _expand_running_cost(plant, rollout, cost),
        cost.final(rollout.states[-1]),
        tuple(np.zeros((sum(_get_widths(m)),) * 2) for m in maps),
    )


def estimate_curvature(new: ExpandedMotion, old: ExpandedMotion) -> ExpandedMotion:
    """Return the new motion with curvatures S that its difference from the old one shows.

    By symmetric rank-one updates, S takes the step of (x_k, u_k, u_{k+1}) to the change of
    [F, H]^T p, with the new costate p. The derivatives at both ends are exact. Intervals without an
    event, or with other events than before, begin with S = 0.

    Args:
        new: The new motion.
        old: The motion of the iteration before.
    """
    p, curvatures = new.costates(), []
    for k, (m, previous) in enumerate(zip(new.maps, old.maps, strict=True)):
        fired = [[e.guards for e in motion.rollout.pieces[k].events] for motion in (new, old)]
        is_same = fired[0] == fired[1] and _get_widths(m) == _get_widths(previous)
        if not fired[0] or not is_same:
            curvatures.append(new.curvature[k])
            continue
        space = old.rollout.pieces[k].arcs[0].space
        step = np.concatenate(
            [
                space.difference(old.rollout.states[k], new.rollout.states[k]),
                *(new.rollout.inputs[k : k + 2] - old.rollout.inputs[k : k + 2]),
            ]
        )
        map_change = np.hstack(m).T - np.hstack(previous).T
        gradient_change = map_change @ p[k + 1][: len(m.state)]
        curvatures.append(_update_rank_one(old.curvature[k], step, gradient_change))
    return replace(new, curvature=tuple(curvatures))


def _update_rank_one(s: Array, step: Array, change: Array) -> Array:
    """Return s plus a symmetric matrix of rank one, so that it takes step to change."""
    residual = change - s @ step
    curvature = float(residual @ step)
    if abs(curvature) <= _SECANT_TOLERANCE * float(np.linalg.norm(residual) * np.linalg.norm(step)):
        return s
    return s + np.outer(residual, residual) / curvature


def _get_widths(m: IntervalMap) -> tuple[int, ...]:
    return tuple(part.shape[1] for part in m)


def sweep_backwards(motion: ExpandedMotion, regularization: float) -> BackwardSweep | None:
    """Return the result of the backward pass, or None if a matrix is not positive definite.

    The matrices are Q_vv at each time and V_uu + mu I at the first. None is returned for values
    that are not finite, too.

    Args:
        motion: The motion.
        regularization: The number mu.
    """
    (gradient, hessian), n = motion.expand_last(), len(motion.final.gradient)
    offsets, gains = list[Array](), list[Array]()
    linear = quadratic = 0.0
    try:
        for k in reversed(range(len(motion.maps))):
            f, h = make_discrete_maps(motion.maps[k])
            n, curvature = f.shape[1], motion.curvature[k]
            q_v = h.T @ gradient
            q_vv, q_vz = (
                h.T @ hessian @ h + curvature[n:, n:],
                h.T @ hessian @ f + curvature[n:, :n],
            )
            factor = cho_factor(q_vv + regularization * h.T @ h)
            offset = -cho_solve(factor, q_v)
            gain = cho_solve(factor, q_vz + regularization * h.T @ f)
            linear -= float(offset @ q_v)
            quadratic += float(offset @ q_vv @ offset)
            stage, stage_hessian = motion.expand_stage(k)
            gradient = stage + f.T @ gradient - gain.T @ (q_vv @ offset + q_v) + q_vz.T @ offset
            hessian = stage_hessian + f.T @ hessian @ f + curvature[:n, :n] + gain.T @ q_vv @ gain
            cross = gain.T @ q_vz
            hessian = hessian - cross - cross.T
            hessian = 0.5 * (hessian + hessian.T)
            offsets.append(offset)
            gains.append(gain)
        n -= h.shape[1]
        own = hessian[n:, n:]
        offset = -cho_solve(cho_factor(own + regularization * np.eye(len(own))), gradient[n:])
    except (LinAlgError, ValueError):  # not definite, or not finite
        return None
    linear -= float(offset @ gradient[n:])
    quadratic += float(offset @ own @ offset)
    offsets.append(offset)
    return BackwardSweep(np.array(offsets[::-1]), tuple(gains[::-1]), linear, quadratic)


def _expand_running_cost(
    plant: ShootingProblem, rollout: Rollout, cost: Cost
) -> tuple[Expansion, ...]:
    """Return the running cost to second order at each time of the grid."""
    points = zip(plant.times.tolist(), rollout.states, rollout.inputs, strict=True)
    return tuple(cost.running(t, x, u) for t, x, u in points)
