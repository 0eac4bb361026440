r"""The compass gait: two straight legs with point feet that walk down a slope.

Legs of length l = a + b with a mass m at a from the foot, a mass m_H at the hip. The angle theta of
a leg is that from the vertical, anticlockwise, so that the hip is at l (-sin, cos) from a standing
foot; the slope falls by gamma towards the right, where the walker goes. A. Goswami, B. Thuilot,
B. Espiau, *A study of the passive gait of a compass-like biped robot*, IJRR 17 (1998). With m = 0
and a = 0 it is the simplest walker of M. Garcia, A. Chatterjee, A. Ruina, M. Coleman, J. Biomech.
Eng. 120 (1998): the equation of the swinging leg is divided by m.

Straight legs cross the ground in mid-step. As in both papers that is ignored: a step has a mode
"before" the swinging leg is ahead of the other by `ahead` rad, in which its foot meets nothing, and
one "after" it, which ends where

.. math:: \theta_{left} + \theta_{right} + 2 \gamma = 0 .

State x = (theta_left, theta_right, and their rates) in rad and rad/s. A mode is (standing leg,
"before" or "after"); its guards are "passes" and "touches". At touchdown the standing foot lets go:
the angular momenta of the walker about the new foot and of the leg that leaves about the hip stay.
Legs keep their names; `exchange` is the symmetry up to which a step closes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from hybridctl.base.settings import NotNegative, Positive, Settings
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sensitivity.symmetry import Symmetry
from hybridctl.symbolic import SymbolicMode, SymbolicTransition, hybrid_system

LEGS = ("left", "right")
START = ("left", "before")


@dataclass(frozen=True)
class CompassParameters(Settings):
    """Goswami's numbers.

    Attributes:
        slope: Inclination of the ground, rad.
        leg: Mass m of a leg, kg.
        hip: Mass m_H of the hip, kg.
        lower: Length a from the foot to the mass of a leg, m.
        upper: Length b from there to the hip, m.
        gravity: Acceleration of free fall, m/s^2.
        ahead: Angle between the legs from which on a foot sees the ground, rad; that of some gaits
            comes out of it only after the legs have passed each other.
    """

    slope: NotNegative = np.pi / 60.0
    leg: NotNegative = 5.0
    hip: Positive = 10.0
    lower: NotNegative = 0.5
    upper: Positive = 0.5
    gravity: Positive = 9.8
    ahead: NotNegative = 0.25

    @property
    def length(self) -> float:
        """The length l = a + b of a leg, m."""
        return self.lower + self.upper


def system(parameters: CompassParameters | None = None) -> HybridSystem:
    """The walker, with a mode for each half of a step of each leg."""
    p = parameters or CompassParameters()
    angles, rates = ca.SX.sym("angles", 2), ca.SX.sym("rates", 2)
    state = ca.vertcat(angles, rates)
    modes, transitions = [], []
    for stance, leg in enumerate(LEGS):
        swing = 1 - stance
        field = ca.vertcat(rates, _accelerations(p, angles, rates, stance))
        modes += [SymbolicMode((leg, half), state, field) for half in ("before", "after")]
        apart = angles[stance] - angles[swing] + p.ahead
        high = angles[0] + angles[1] + 2.0 * p.slope
        landed = ca.vertcat(angles, _rates_after(p, angles, rates, swing))
        transitions += [
            SymbolicTransition((leg, "before"), "passes", apart, (leg, "after")),
            SymbolicTransition((leg, "after"), "touches", high, (LEGS[swing], "before"), landed),
        ]
    return hybrid_system(modes, transitions)


def exchange() -> Symmetry:
    """The symmetry that exchanges the legs."""
    return Symmetry(np.kron(np.eye(2), np.eye(2)[::-1]), mode=_find_other_leg)


def _find_other_leg(key: ModeKey) -> ModeKey:
    assert isinstance(key, tuple)
    return (LEGS[1 - LEGS.index(key[0])], key[1])


def _find_leg_direction(angle: Any) -> Any:
    """The direction (2, 1) from a foot to the hip."""
    return ca.vertcat(-ca.sin(angle), ca.cos(angle))


def _places(p: CompassParameters, angles: Any, stance: int) -> tuple[Any, Any, Any]:
    """Hip, mass of the standing and mass of the other leg, from the standing foot, (2, 1) each."""
    standing, swinging = (_find_leg_direction(angles[leg]) for leg in (stance, 1 - stance))
    hip = p.length * standing
    return hip, p.lower * standing, hip - p.upper * swinging


def _accelerations(p: CompassParameters, angles: Any, rates: Any, stance: int) -> Any:
    """The accelerations of the angles (2, 1), from Lagrange's equations."""
    masses, places = (p.hip, p.leg, p.leg), _places(p, angles, stance)
    energies = [_energy(p, place, angles, rates) for place in places]
    whole, swinging = _sum_weighted(masses, energies), energies[2]
    rows = [
        _lagrange(whole, angles, rates)[stance],
        _lagrange(swinging, angles, rates)[1 - stance],
    ]
    return _solve_linear_rows(ca.vertcat(*rows), _ACCELERATION)


def _energy(p: CompassParameters, place: Any, angles: Any, rates: Any) -> Any:
    """Kinetic minus potential energy of a unit mass."""
    velocity = ca.jacobian(place, angles) @ rates
    return 0.5 * ca.sumsqr(velocity) - p.gravity * place[1]


_ACCELERATION = ca.SX.sym("acceleration", 2)


def _lagrange(energy: Any, angles: Any, rates: Any) -> Any:
    """The rates of the momenta less the forces, (2, 1)."""
    momenta = ca.gradient(energy, rates)
    change = ca.jacobian(momenta, angles) @ rates + ca.jacobian(momenta, rates) @ _ACCELERATION
    return change - ca.gradient(energy, angles)


def _rates_after(p: CompassParameters, angles: Any, rates: Any, swing: int) -> Any:
    """Rates (2, 1) after the foot of leg `swing` has landed."""
    masses, after = (p.hip, p.leg, p.leg), ca.SX.sym("after", 2)
    standing, landing = _places(p, angles, 1 - swing), _places(p, angles, swing)
    before = [standing[0], standing[2], standing[1]]  # in the order of the leg that lands first
    now = [ca.jacobian(place, angles) @ rates for place in before]
    then = [ca.jacobian(place, angles) @ after for place in landing]
    gained = [v - w for v, w in zip(then, now, strict=True)]
    moments = [_cross(r, v) for r, v in zip(landing, gained, strict=True)]
    whole = _sum_weighted(masses, moments)
    leaving = _cross(landing[2] - landing[0], gained[2])
    return _solve_linear_rows(ca.vertcat(whole, leaving), after)


def _sum_weighted(masses: tuple[float, ...], terms: list[Any]) -> Any:
    return sum(mass * term for mass, term in zip(masses, terms, strict=True))


def _cross(a: Any, b: Any) -> Any:
    return a[0] * b[1] - a[1] * b[0]


def _solve_linear_rows(rows: Any, unknown: Any) -> Any:
    """The zero of rows that are linear in the unknown."""
    free = ca.substitute(rows, unknown, ca.SX.zeros(2))
    return -ca.inv(ca.jacobian(rows, unknown)) @ free
