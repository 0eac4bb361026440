"""Inputs of time under which the forces of closed contacts fall to zero at one instant.

Forces are prescribed, f(t) = c (1 - t / T), and the input that causes them is found along their
motion: of all (a, u) with M a - S u = J' f - h and J a = target that with the least norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl.base.checks import Array
from hybridctl.mechanics.system import ContactSystem

TIGHT = {"rtol": 1e-11, "atol": 1e-11}
DEGREE = 24
_SHIFT = 1e-5  # s, of the differences that are the rates of coordinates


@dataclass(frozen=True)
class LiftOff:
    """A system whose closed contacts let go together at the time `at` under an input of time."""

    system: ContactSystem
    mode: tuple[str, ...]
    start: Array
    law: Callable[[float, Array], Array]
    at: float
    end: float

    def simulate(self, start: Array, **options):
        """Return the run from another state, in which guards are taken one by one."""
        return hc.simulate(
            self.system, self.mode, start, (0.0, self.end), self.law, **(TIGHT | options)
        )

    def directions(self) -> Array:
        """Return an orthonormal basis (k, ndx) of what changes no gap and no rate of the start."""
        dynamics, n = self.system.dynamics, self.system.robot.nq
        phase, (q, v) = dynamics.phase(self.mode), np.split(self.start, [n])
        rates = dynamics.differentiate_rates(q, v)
        nv, closed = len(v), list(phase.closed)
        rows = np.vstack(
            [
                np.hstack([dynamics.gap_jacobian(q)[closed], np.zeros((len(closed), nv))]),
                rates[phase.solid_rows],
            ]
        )
        _, sizes, basis = np.linalg.svd(rows)
        return basis[int((sizes > 1e-9 * sizes[0]).sum()) :]

    def moved(self, change: Array) -> Array:
        """Return the start moved by a change of its tangent space, with closed contacts closed."""
        mode = self.system.mode(self.mode)
        return mode.project(mode.space.integrate(self.start, change))


def find_lift_off(
    system: ContactSystem,
    mode: tuple[str, ...],
    start: Array,
    forces: Array,
    at: float,
    end: float,
) -> LiftOff:
    """Return the lift-off of a start (q, v) in a mode with forces f(0) of its rows (r,), in N."""
    dynamics, robot = system.dynamics, system.robot
    phase, start = dynamics.phase(mode), system.mode(mode).project(start)
    n, nv, nu = robot.nq, robot.nv, robot.nu

    def solve(t: float, x: Array) -> tuple[Array, Array]:
        q, v = robot.normalize(x[:n]), x[n:]
        rows = dynamics.make_rows(phase, q, v, np.zeros(nu))
        fixed = rows.jacobian[phase.constrained]
        left = np.block([[rows.mass, -robot.actuation], [fixed, np.zeros((len(fixed), nu))]])
        push = rows.drive + rows.jacobian.T @ (forces * (1.0 - t / at))
        right = np.concatenate([push, rows.target[phase.constrained]])
        found = np.linalg.lstsq(left, right, rcond=1e-10)[0]
        return found[:nv], found[nv:]

    def rate(t: float, x: Array) -> Array:
        q, v = robot.normalize(x[:n]), x[n:]
        turned = robot.integrate(q, _SHIFT * v) - robot.integrate(q, -_SHIFT * v)
        return np.concatenate([turned / (2.0 * _SHIFT), solve(t, x)[0]])

    times = 0.5 * end * (1.0 - np.cos(np.pi * (np.arange(2 * DEGREE) + 0.5) / (2 * DEGREE)))
    flow = solve_ivp(rate, (0.0, end), start, "DOP853", times, **TIGHT)
    inputs = np.array([solve(t, x)[1] for t, x in zip(times, flow.y.T, strict=True)])
    fits = [
        np.polynomial.Chebyshev.fit(times, column, DEGREE, domain=[0.0, end]) for column in inputs.T
    ]

    def law(t: float, x: Array) -> Array:
        return np.array([float(fit(t)) for fit in fits])

    return LiftOff(system, mode, start, law, at, end)
