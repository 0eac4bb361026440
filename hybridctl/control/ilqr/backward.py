r"""The backward pass of iterative LQR, and the exact gradient of the cost by the inputs.

The input is continuous and linear between grid times, so that z_k = (x_k, u_k) is the state of the
discrete problem and v_k = u_{k+1} its input,

.. math:: \delta z_{k+1} = \begin{pmatrix} A & B_0 \\ 0 & 0 \end{pmatrix} \delta z_k
    + \begin{pmatrix} B_1 \\ I \end{pmatrix} \delta v_k = F\, \delta z_k + H\, \delta v_k .

With the cost c_k(z_k) of a grid time and the value function V of z_{k+1},

.. math::
    Q_v &= H^T V_z, \quad Q_{vv} = H^T (V_{zz} + \mu I) H, \quad Q_{vz} = H^T (V_{zz} + \mu I) F, \\
    k &= -Q_{vv}^{-1} Q_v, \quad K = Q_{vv}^{-1} Q_{vz}, \quad \delta v = k - K\, \delta z .

To Q_zz, Q_vz, Q_vv comes an estimate S of the second derivatives of the motion, weighted by the
costate, on intervals with events (see `with_curvature`). u_0 is chosen too, with offset
:math:`-(V_{uu} + \mu I)^{-1} V_u` at the first grid time. A, B_0 and B_1 go through the events, so
that V jumps with the saltation matrix, [Salt] (42).

They are those of one interval, with the events inside it: with s from 0 to 1 along it,

.. math:: \delta x_{k+1} = A\, \delta x_k + B_0\, \delta u_k + B_1\, \delta u_{k+1}, \qquad
    \delta u(t) = (1 - s)\, \delta u_k + s\, \delta u_{k+1}.

Flow and jumps alternate, :math:`\Phi_n G_n \cdots G_1 \Phi_0`, and the input counts in each factor:
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


class Interval(NamedTuple):
    """The matrices A (ndx+, ndx), and B_0, B_1 (ndx+, nu) of inputs at the start and at the end."""

    state: Array
    start_input: Array
    end_input: Array


def interval(lin: Linearization) -> Interval:
    """The first-order map of a trajectory by its initial state and both ends of its input.

    Where guards fire together the map is piecewise linear; the mean of its pieces is taken.
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
            state, j = _jump(lin.jumps[k])
            z = state @ z + j @ inputs(arc.end)
    return Interval(z[:, :n], z[:, n : n + nu], z[:, n + nu :])


def _jump(jump: JumpGains | PiecewiseLinearJump) -> tuple[Array, Array]:
    if isinstance(jump, JumpGains):
        return jump.state, jump.input
    pieces = jump.pieces()
    state = np.mean([piece.matrix for piece in pieces], axis=0)
    return state, np.mean([piece.input for piece in pieces], axis=0)


_SECANT = 1e-8

Linearizer = Callable[[HybridSystem, HybridTrajectory], Linearization]


@dataclass(frozen=True, eq=False)
class Expanded:
    """A rollout with the maps of its intervals, and its cost to second order.

    curvature: S (m, m) of each interval, with m the size of (x_k, u_k, u_{k+1}).
    """

    rollout: Rollout
    weights: Array
    maps: tuple[Interval, ...]
    running: tuple[Expansion, ...]
    final: Expansion
    curvature: tuple[Array, ...]

    @property
    def cost(self) -> float:
        """The cost J."""
        return float(self.weights @ [e.value for e in self.running]) + self.final.value

    def costates(self) -> list[Array]:
        """The gradients of J by (x_k, u_k), all later inputs fixed, of all grid times."""
        p = [self.last()[0]]
        for k in reversed(range(len(self.maps))):
            p.append(self.stage(k)[0] + augmented(self.maps[k])[0].T @ p[-1])
        return p[::-1]

    def gradient(self) -> Array:
        """The gradient dJ/du (N+1, nu), exact if the maps are."""
        p = self.costates()
        nu = self.rollout.inputs.shape[1]
        later = [augmented(m)[1].T @ q for m, q in zip(self.maps, p[1:], strict=True)]
        return np.array([p[0][-nu:], *later])

    def slope(self) -> float:
        """The norm of the gradient by u(t): sqrt(sum |dJ/du_k|^2 / w_k)."""
        return float(np.sqrt((self.gradient() ** 2 / self.weights[:, None]).sum()))

    def stage(self, k: int) -> tuple[Array, Array]:
        """Gradient and Hessian by (x_k, u_k) of the running cost of grid time k."""
        e, w = self.running[k], self.weights[k]
        return w * e.gradient, w * e.hessian

    def last(self) -> tuple[Array, Array]:
        """The expansion at the last grid time, with the final cost."""
        gradient, hessian = self.stage(-1)
        n = len(self.final.gradient)
        gradient[:n] += self.final.gradient
        hessian[:n, :n] += self.final.hessian
        return gradient, hessian


def augmented(m: Interval) -> tuple[Array, Array]:
    """The matrices F and H of an interval."""
    nu = m.end_input.shape[1]
    f = np.block([[m.state, m.start_input], [np.zeros((nu, m.state.shape[1] + nu))]])
    return f, np.vstack([m.end_input, np.eye(nu)])


@dataclass(frozen=True, eq=False)
class BackwardSweep:
    """Offsets (N+1, nu) of the inputs, and N gains K (nu, ndx + nu) of z_k.

    The model of the decrease of the cost by a step a is a linear - a^2/2 quadratic.
    """

    offsets: Array
    gains: tuple[Array, ...]
    linear: float
    quadratic: float

    def expected(self, step: float) -> float:
        """The decrease of the cost that the quadratic model predicts."""
        return step * self.linear - 0.5 * step**2 * self.quadratic


def trapezoid(times: Array) -> Array:
    """The weights w_k (N+1,) of the trapezoidal rule."""
    h = np.diff(times)
    return np.asarray(0.5 * (np.append(h, 0.0) + np.append(0.0, h)))


def total_cost(plant: ShootingProblem, rollout: Rollout, cost: Cost) -> float:
    """The cost J of a rollout."""
    values = [e.value for e in _running(plant, rollout, cost)]
    return float(trapezoid(plant.times) @ values) + cost.final(rollout.states[-1]).value


def expand(
    plant: ShootingProblem, rollout: Rollout, cost: Cost, linearizer: Linearizer
) -> Expanded:
    """The cost and the maps along a rollout. Raises what the linearization raises."""
    maps = tuple(interval(linearizer(plant.system, piece)) for piece in rollout.pieces)
    return Expanded(
        rollout,
        trapezoid(plant.times),
        maps,
        _running(plant, rollout, cost),
        cost.final(rollout.states[-1]),
        tuple(np.zeros((sum(_widths(m)),) * 2) for m in maps),
    )


def with_curvature(new: Expanded, old: Expanded) -> Expanded:
    """The new motion with the curvature S that its difference from the old one shows.

    Symmetric rank-one updates: S takes the step y of (x_k, u_k, u_{k+1}) to the change of
    [F, H]^T p, with p the new costate; by exact derivatives at both ends. Intervals without an
    event, or with another one than before, have none.
    """
    p, found = new.costates(), []
    for k, (m, previous) in enumerate(zip(new.maps, old.maps, strict=True)):
        fired = [[e.guards for e in motion.rollout.pieces[k].events] for motion in (new, old)]
        same = fired[0] == fired[1] and _widths(m) == _widths(previous)
        if not fired[0] or not same:
            found.append(new.curvature[k])
            continue
        space = old.rollout.pieces[k].arcs[0].space
        step = np.concatenate(
            [
                space.difference(old.rollout.states[k], new.rollout.states[k]),
                *(new.rollout.inputs[k : k + 2] - old.rollout.inputs[k : k + 2]),
            ]
        )
        turn = np.hstack(m).T - np.hstack(previous).T
        found.append(_rank_one(old.curvature[k], step, turn @ p[k + 1][: len(m.state)]))
    return replace(new, curvature=tuple(found))


def _rank_one(s: Array, step: Array, change: Array) -> Array:
    miss = change - s @ step
    bend = float(miss @ step)
    if abs(bend) <= _SECANT * float(np.linalg.norm(miss) * np.linalg.norm(step)):
        return s
    return s + np.outer(miss, miss) / bend


def _widths(m: Interval) -> tuple[int, ...]:
    return tuple(part.shape[1] for part in m)


def sweep(now: Expanded, regularization: float) -> BackwardSweep | None:
    """The backward pass; None where some Q_vv is not positive definite."""
    (gradient, hessian), n = now.last(), len(now.final.gradient)
    offsets, gains = list[Array](), list[Array]()
    linear = quadratic = 0.0
    try:
        for k in reversed(range(len(now.maps))):
            f, h = augmented(now.maps[k])
            n, bend = f.shape[1], now.curvature[k]
            q_v = h.T @ gradient
            q_vv, q_vz = h.T @ hessian @ h + bend[n:, n:], h.T @ hessian @ f + bend[n:, :n]
            factor = cho_factor(q_vv + regularization * h.T @ h)
            offset = -cho_solve(factor, q_v)
            gain = cho_solve(factor, q_vz + regularization * h.T @ f)
            linear -= float(offset @ q_v)
            quadratic += float(offset @ q_vv @ offset)
            stage, stage_hessian = now.stage(k)
            gradient = stage + f.T @ gradient - gain.T @ (q_vv @ offset + q_v) + q_vz.T @ offset
            hessian = stage_hessian + f.T @ hessian @ f + bend[:n, :n] + gain.T @ q_vv @ gain
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


def _running(plant: ShootingProblem, rollout: Rollout, cost: Cost) -> tuple[Expansion, ...]:
    points = zip(plant.times.tolist(), rollout.states, rollout.inputs, strict=True)
    return tuple(cost.running(t, x, u) for t, x, u in points)
