r"""The biped of [Bder] 3.2.4, in a vertical plane, that lands on a hill with both feet.

A body with q = (x, y, pitch), y up and pitch anticlockwise from level, and two rigid
massless limbs that point down and outwards at an angle psi below the horizontal. Its feet

.. math:: p_{left} = (x, y) - l\,(\cos(\theta + \psi), \sin(\theta + \psi)), \qquad
          p_{right} = (x, y) + l\,(\cos(\theta - \psi), \sin(\theta - \psi))

touch smooth frictionless ground of height -c p_x^2, so that foot j has the gap

.. math:: a_j(q) = p_{j,y} + c\, p_{j,x}^2 .

[Bder] (18) prints -a, which is negative in the air, and the left foot without its minus signs,
which puts both on the right; (19) and the level start of the preprint hold for the gaps above.
There c = 1 / m, and (19) is for l = 1 m and m = 1 kg. psi is said to be from the vertical there,
but (19) has it from the horizontal; at pi/4 that is the same.

State x = (q, v). A mode is a tuple of "open" or "closed", left foot first; its guards are
"left closes", "left opens" and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, Literal, get_args

import casadi as ca
import numpy as np
from hybridctl.robots.bodies import body
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_member, check_vector
from hybridctl.base.errors import InputError
from hybridctl.base.settings import NotNegative, Positive, Settings
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.surfaces import Terrain
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system
from hybridctl.symbolic import SymbolicMode, SymbolicTransition, hybrid_system

FEET = ("left", "right")
AIR = ("open", "open")
MODES = tuple(product(("open", "closed"), repeat=2))

Damping = Literal["none", "linear", "by_feet"]
Modes = tuple[str, ...]

_UNCOUPLED = 1e-5  # of the inertia: clearly beside the border of contacts that take no part


@dataclass(frozen=True)
class BipedParameters(Settings):
    """The numbers of the authors of [Bder].

    Attributes:
        mass: Mass of the body, kg.
        inertia: Moment of inertia of the body, kg m^2.
        spread: Angle psi of the limbs below the horizontal, rad.
        length: Length of the limbs, m.
        curvature: Curvature c of the ground -c x^2, 1/m; 0 is flat.
        stiffness: Stiffness of each foot against soft ground, N/m.
        damping: Damping of each foot against soft ground, N s/m.
        gravity: Acceleration of free fall, m/s^2.
        height: Height of the body at the start, m.
    """

    mass: Positive = 1.0
    inertia: Positive = 1.0
    spread: Positive = np.pi / 4.0
    length: Positive = 0.5
    curvature: float = 1.0
    stiffness: NotNegative = 1.0
    damping: NotNegative = 1.0
    gravity: Positive = 9.8
    height: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.spread < np.pi / 2.0:
            raise InputError(f"spread must be less than pi/2, got {self.spread}")
        if not self.height > self.landing_height:
            raise InputError(
                f"height must be above {self.landing_height}, where the feet touch, "
                f"got {self.height}"
            )

    @property
    def landing_height(self) -> float:
        """Height of the level body at x = 0 with both feet on the ground, m."""
        reach = self.length * np.cos(self.spread)
        return float(self.length * np.sin(self.spread) - self.curvature * reach**2)

    @property
    def masses(self) -> Array:
        """The diagonal of the mass matrix (3,)."""
        return np.array([self.mass, self.mass, self.inertia])


def start(parameters: BipedParameters | None = None) -> Array:
    """The state of the level biped at rest at `height`, from which both feet touch at once."""
    p = parameters or BipedParameters()
    return np.array([0.0, p.height, 0.0, 0.0, 0.0, 0.0])


def touchdown(parameters: BipedParameters | None = None) -> tuple[float, Array]:
    """The time when both feet touch after `start`, in s, and the state just then."""
    p = parameters or BipedParameters()
    time = float(np.sqrt(2.0 * (p.height - p.landing_height) / p.gravity))
    return time, np.array([0.0, p.landing_height, 0.0, 0.0, -p.gravity * time, 0.0])


def decouple_feet(parameters: BipedParameters | None = None) -> BipedParameters:
    r"""The biped with the inertia for which no foot feels the other one's push as it lands level.

    :math:`Da_{left} M^{-1} Da_{right}^T = 0`, but for 1e-5 to the side where impacts commute.
    Raises `InputError` where the ground is too curved for one.
    """
    p = parameters or BipedParameters()
    reach = p.length * np.cos(p.spread)
    arm = reach * (1.0 + 2.0 * p.curvature * p.length * np.sin(p.spread))
    rest = 1.0 - (2.0 * p.curvature * reach) ** 2
    if not rest > 0.0:
        raise InputError(f"curvature must be less than {0.5 / reach:.4g}, got {p.curvature}")
    return replace(p, inertia=float(p.mass * arm**2 / rest * (1.0 - _UNCOUPLED)))


def gaps(q: ArrayLike, parameters: BipedParameters | None = None) -> Array:
    """The gaps (2,) of the left and the right foot at q (3,), m."""
    value = _gaps(ca.DM(check_vector("q", q, 3)), parameters or BipedParameters())
    return np.array(value, dtype=np.float64).ravel()


@dataclass(frozen=True, eq=False)
class Throw:
    """A hand that catches the biped in the air and throws it anew.

    It catches it where its x is `caught[0]`: x+ = start + gain (x - caught).

    Attributes:
        start: State (6,) from which it is thrown.
        caught: State (6,) at which it is expected.
        gain: How far off (6, 6) a biped is thrown that is caught off `caught`.
    """

    start: ArrayLike
    caught: ArrayLike
    gain: ArrayLike


def soft(
    parameters: BipedParameters | None = None,
    *,
    damping: Damping = "linear",
    throw: Throw | None = None,
) -> HybridSystem:
    r"""The biped on springs and dampers that act on a foot while it is in the ground.

    .. math:: M \ddot q = f - \sum_{j\ closed} (\kappa a_j + \beta\, Da_j \dot q)\, Da_j^T,

    [Bder] (16). `damping`: "none" for the conservative (15), "linear" for (16), "by_feet" for
    beta / 2 while exactly one foot is in the ground and beta with both ([Bder] 3.2.4). A damper
    acts until its gap is zero again, so just before that it pulls. throw: by a hand, at
    guard "catch" in the air.
    """
    p = parameters or BipedParameters()
    check_member("damping", damping, get_args(Damping))
    made = _BipedExpressions.of(p)
    modes, transitions = [], []
    for key in MODES:
        closed = _find_closed_feet(key)
        beta = p.damping * {"none": 0.0, "linear": 1.0, "by_feet": len(closed) / 2}[damping]
        pushes = -p.stiffness * made.gap - beta * made.rate
        forces = ca.vertcat(*(pushes[j] if j in closed else 0.0 for j in range(len(FEET))))
        stored = sum((0.5 * p.stiffness * made.gap[j] ** 2 for j in closed), start=made.energy)
        modes.append(made.mode(key, forces, stored))
        for j, foot in enumerate(FEET):
            event, guard = ("opens", -made.gap[j]) if j in closed else ("closes", made.gap[j])
            transitions.append(
                SymbolicTransition(key, f"{foot} {event}", guard, _flip_foot(key, j))
            )
    if throw is not None:
        caught = check_vector("caught", throw.caught, 6)
        off = ca.DM(check_array("gain", throw.gain, (6, 6))) @ (made.state - ca.DM(caught))
        anew = ca.DM(check_vector("start", throw.start, 6)) + off
        transitions.append(SymbolicTransition(AIR, "catch", caught[0] - made.state[0], AIR, anew))
    return hybrid_system(modes, transitions)


def rigid(parameters: BipedParameters | None = None) -> ContactSystem:
    r"""The biped on rigid frictionless ground, with plastic impacts.

    Where :math:`Da_{left} M^{-1} Da_{right}^T > 0`, as with the default numbers, the impact of one
    foot makes the other one let go, so that impacts of single feet do not lead to the same state in
    either order. Feet that take turns ever faster come to rest on both, see `simulate`.
    """
    p = parameters or BipedParameters()
    hill = Terrain(lambda x, y: -p.curvature * x**2)
    across, below = p.length * float(np.cos(p.spread)), p.length * float(np.sin(p.spread))
    sides = zip(FEET, (-across, across), strict=True)
    feet = [Contact(foot, "body", hill, offset=(side, 0.0, -below)) for foot, side in sides]
    robot = Robot.from_urdf(_urdf(p), actuated=(), gravity=(0.0, 0.0, -p.gravity))
    return contact_system(robot, feet)


def _urdf(p: BipedParameters) -> str:
    """The body on joints along x and y, which is z there, and for the pitch."""
    joints = (
        ("x", "prismatic", "1 0 0"),
        ("y", "prismatic", "0 0 1"),
        ("pitch", "revolute", "0 -1 0"),
    )
    links = ("world", "along", "above", "body")
    parts = [
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<axis xyz="{axis}"/><limit lower="-100" upper="100" effort="1" velocity="100"/></joint>'
        for (name, kind, axis), (parent, child) in zip(joints, pairwise(links), strict=True)
    ]
    parts += [f'<link name="{link}"/>' for link in links[:-1]]
    return f'<robot name="biped">{body("body", p.mass, (p.inertia,) * 3)}{"".join(parts)}</robot>'


@dataclass(frozen=True, eq=False)
class _BipedExpressions:
    """The biped as expressions in its state."""

    state: Any
    masses: Any
    weight: Any
    gap: Any
    normals: Any
    rate: Any
    energy: Any

    @staticmethod
    def of(p: BipedParameters) -> _BipedExpressions:
        q, v = ca.SX.sym("q", 3), ca.SX.sym("v", 3)
        masses = ca.SX(p.masses)
        gap = _gaps(q, p)
        normals = ca.jacobian(gap, q)
        rate = normals @ v
        return _BipedExpressions(
            ca.vertcat(q, v),
            masses,
            ca.vertcat(0.0, -p.mass * p.gravity, 0.0),
            gap,
            normals,
            rate,
            0.5 * ca.dot(masses, v * v) + p.mass * p.gravity * q[1],
        )

    def mode(self, key: Modes, forces: Any, energy: Any) -> SymbolicMode:
        """The mode in which the ground pushes the feet with these normal forces (2,)."""
        acceleration = (self.weight + self.normals.T @ forces) / self.masses
        outputs = {"gaps": self.gap, "forces": forces, "energy": energy}
        return SymbolicMode(
            key, self.state, ca.vertcat(self.state[3:], acceleration), outputs=outputs
        )


def _gaps(q: Any, p: BipedParameters) -> Any:
    rows = []
    for side, tilt in ((-1.0, q[2] + p.spread), (1.0, q[2] - p.spread)):
        across = q[0] + side * p.length * ca.cos(tilt)
        rows.append(q[1] + side * p.length * ca.sin(tilt) + p.curvature * across**2)
    return ca.vertcat(*rows)


def _find_closed_feet(key: Modes) -> tuple[int, ...]:
    return tuple(j for j, mode in enumerate(key) if mode == "closed")


def _flip_foot(key: Modes, foot: int) -> Modes:
    other = "open" if key[foot] == "closed" else "closed"
    return (*key[:foot], other, *key[foot + 1 :])
