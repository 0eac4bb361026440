"""Systems of every kind that wrappers are tried on, each with a point and events there."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
from hybridctl.robots import block, cube, rrr_door
from legged.machine import machine, state

import hybridctl as hc
from hybridctl.base.errors import EscapingError
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mode import Edge, FieldJacobian, Held, Pace, ResetBorder, ResetJacobian
from hybridctl.mechanics import contact_system
from hybridctl.mechanics.terms.flat_terms import FlatTerms
from hybridctl.sensitivity.parameter_models import fix_inputs_as_parameters

T = 0.3
ON_CUBE = np.r_[0.0, 0.0, 0.0524, 0.0, 0.0, 0.0, 1.0, np.zeros(6)]


@dataclass(frozen=True)
class Kind:
    """A system, a mode, a state and an input there, and guards that fire together.

    border: guards behind which the reset is at a border. after: the mode after them.
    """

    system: Any
    key: Any
    x: Any
    u: Any
    events: tuple[tuple[str, ...], ...] = ()
    border: tuple[str, ...] | None = None
    after: Any = None


@cache
def functions():
    """A mass on a spring under a force, which holds its third state, with two guards.

    The reset of one has a border, the other one comes to rest, and both lead out together.
    """
    space = hc.VectorSpace(3)
    slopes = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.0], [0.0, 0.0, 0.0]])

    def refuse(what, key, x):
        if x[0] > 0.4005:
            raise EscapingError(f"{what} of {key}: {x[0]}", fields=(x, x))

    mode = hc.Mode(
        "m",
        space,
        lambda t, x, u: slopes @ x + np.array([0.0, u[0] * u[1], 0.0]),
        2,
        lambda t, x, u: FieldJacobian(slopes, np.array([[0.0, 0.0], [u[1], u[0]], [0.0, 0.0]])),
        lambda t, x, u: {"force": u * x[0]},
        lambda t, x, u: "m" if x[0] < 5.0 else "other",
        lambda t, x, u: Pace(0.1 + x[0] ** 2, 2.0),
        lambda x: np.array([x[0], x[1], 1.0]),
        Held(
            ("z",),
            lambda x: x[2:] - 1.0,
            np.array([1e-5]),
            ("",),
            jacobian=lambda x: np.array([[0.0, 0.0, 1.0]]),
            refuse=refuse,
        ),
    )
    wall = hc.Guard(
        "wall",
        lambda t, x, u: x[0] + np.sin(t),
        lambda t, x, u: GuardJacobian(np.cos(t), np.array([1.0, 0.0, 0.0]), np.zeros(2)),
    )
    fast = hc.Guard(
        "fast",
        lambda t, x, u: 9.0 - x[1] ** 2 - u[1],
        lambda t, x, u: GuardJacobian(
            0.0, np.array([0.0, -2.0 * x[1], 0.0]), np.array([0.0, -1.0])
        ),
    )

    def turning(factor):
        turn = np.diag([1.0, factor, 1.0])
        by_input = np.array([[0.0, 0.0], [0.1, 0.2], [0.0, 0.0]])
        return lambda t, x, u: ResetJacobian(np.array([0.0, 0.5, 0.0]), turn, by_input)

    def turned(t, x, u):
        return np.array([x[0], -0.8 * x[1] + 0.5 * t + 0.1 * u[0] + 0.2 * u[1], x[2]])

    def border(t, x, u, key, u_after):
        distance = GuardJacobian(1.0, np.array([1.0, x[1], 0.0]), np.array([0.0, u_after[1]]))
        return ResetBorder(f"to {key}", distance, turning(-0.8)(t, x, u), turning(-0.5)(t, x, u))

    back = hc.Reset(turned, turning(-0.8), border)
    still = hc.Reset(lambda t, x, u: np.array([x[0], 0.0, x[2]]), turning(0.0))
    edges = [
        hc.Transition("m", wall, back, "m", Edge(still, "m")),
        hc.Transition("m", fast, hc.Reset(turned, turning(-0.8)), "m"),
        hc.Transition("m", (wall, fast), still, "m"),
    ]
    system = hc.HybridSystem([mode], edges)
    events = ("wall",), ("fast",), ("wall", "fast")
    return Kind(system, "m", np.array([0.4, -0.7, 1.0]), np.array([0.3, 2.0]), events, events[0])


@cache
def expressions():
    """A driven pendulum of a damping that is an input, between a wall that moves and a stop."""
    t, x, u = ca.SX.sym("t"), ca.SX.sym("x", 2), ca.SX.sym("u", 2)
    swing = hc.symbolic.SymbolicMode(
        "m",
        x,
        [x[1], -9.81 * ca.sin(x[0]) - u[1] * x[1] + u[0] + ca.cos(2.0 * t)],
        u,
        t,
        {"power": u[0] * x[1]},
    )
    wall = hc.symbolic.SymbolicTransition(
        "m", "wall", x[0] + 0.4 - 0.1 * ca.sin(t), "m", [x[0], -x[1] + 0.1 * t + u[1]]
    )
    fast = hc.symbolic.SymbolicTransition(
        "m", "fast", 9.0 - x[1] ** 2 - u[0], "m", [x[0], 0.5 * x[1]]
    )
    system = hc.symbolic.hybrid_system([swing], [wall, fast])
    events = ("wall",), ("fast",)
    return Kind(system, "m", np.array([0.7, -0.3]), np.array([0.3, 0.2]), events)


@cache
def generated():
    """A cube that stands on a face, pushed: redundant contacts, compiled, on a manifold."""
    system, key = cube.system(actuated=True), ("stick", "open") * 4
    x = system.mode(key).project(system.space.integrate(ON_CUBE, 0.01 * np.arange(12.0)))
    names = system.mode(key).guard_names
    opens = [name for name in names if name.endswith("opens")]
    slips = [name for name in names if name.endswith("slips")]
    events = (opens[0],), tuple(opens[:2]), (slips[0],)
    return Kind(system, key, x, 0.002 * np.arange(1.0, 7.0), events)


@cache
def dynamics():
    """A block that slides on a corner, by Pinocchio's terms; what is open closes."""
    made = block.system(actuated=True)
    system = contact_system(made.robot, made.contacts, terms="pinocchio")
    key = ("slip+", "open")
    x = system.mode(key).project(np.array([0.1, 0.06, 0.2, 1.0, 0.0, 0.3]))
    events = ("left opens",), ("left sticks",), ("right closes",), ("left opens", "right closes")
    return Kind(system, key, x, np.array([0.3, 0.1, -0.2]), events)


@cache
def landing():
    """A block on a corner that the impact only just stops, and that slips back at once.

    What slows its slip is friction and, with 6 rad/s, its way round.
    """
    system = block.system(block.BlockParameters(friction=0.2), actuated=True)
    q = np.array([0.0, 0.0, -0.5])
    q[1] = -system.dynamics.gaps(q).min()
    rows = system.dynamics.contact_set.jacobian(q)[[0, 2]]
    turn = np.linalg.svd(rows)[2][-1]
    stops = np.linalg.solve(system.robot.mass_matrix(q), rows.T @ np.array([0.6, -0.2 * 0.6]))
    x = np.concatenate((q, -6.0 * turn / turn[2] - stops))
    left, u = ("left closes",), np.array([0.01, -0.02, 0.005])
    return Kind(system, ("open", "open"), x, u, (left,), left, ("slip-", "open"))


@cache
def flying():
    """The door with its arm, no contact closed."""
    x = np.array([-0.13, 1.37, -0.67, 0.35, 0.1, 0.3, 0.0, -0.6])
    system, key = rrr_door.system(), ("open", "open")
    events = tuple((name,) for name in system.mode(key).guard_names)
    return Kind(system, key, x, np.array([0.2, -0.1, 0.3]), events)


@cache
def legged():
    """The base of a legged robot, with a flow in closed form; contact signals are its events."""
    base, system = machine()
    key = ("stick", "open")
    x, u = state(base, key, np.random.default_rng(0))
    return Kind(system, key, x, u, (("left sole lifts",), ("right sole touches",)))


@cache
def flat():
    """A cube that stands on a face, by terms of points on planes: redundant, and not compiled."""
    made = cube.system(actuated=True)
    system = contact_system(made.robot, made.contacts, terms="pinocchio")
    key = ("stick", "open") * 4
    assert isinstance(system.dynamics.terms, FlatTerms)
    names = system.mode(key).guard_names
    x = system.mode(key).project(ON_CUBE)
    return Kind(system, key, x, 0.002 * np.arange(1.0, 7.0), ((names[0],), (names[4],)))


@cache
def spatial_slip():
    """A cube that slides on a corner and turns: the pace of its steps ends where it stops."""
    system = cube.system(actuated=True)
    tipped = system.space.integrate(ON_CUBE, np.r_[0.0, 0.0, 0.0, 0.6, -0.5, 0.1, np.zeros(6)])
    gaps = system.dynamics.gaps(tipped[:7])
    key = tuple("slip" if gap == gaps.min() else "open" for gap in gaps)
    tipped[2] -= gaps.min()
    tipped[7:9] = 0.8, -0.3
    x = system.mode(key).project(tipped)
    names = system.mode(key).guard_names
    return Kind(system, key, x, 0.002 * np.arange(1.0, 7.0), tuple((name,) for name in names[:2]))


@cache
def relay():
    """A double integrator that a relay of its first state drives: a sliding motion on the border.

    Strips behind its guards are defined, as these see neither time nor input.
    """
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    modes, ways = [], []
    for key, other, sign in (("+", "-", 1.0), ("-", "+", -1.0)):
        field = [0.5 * x[1] - sign, -x[0] + u - 0.2 * x[1] ** 2]
        modes.append(hc.symbolic.SymbolicMode(key, x, field, u, outputs={"power": u * x[1]}))
        ways.append(hc.symbolic.SymbolicTransition(key, "switches", sign * x[0], other))
    system = hc.symbolic.hybrid_system(modes, ways)
    return Kind(system, "+", np.array([0.4, -0.7]), np.array([0.3]), (("switches",),))


@cache
def held():
    """The pendulum with its damping held: a wrapped system, which is compiled."""
    k = expressions()
    system, _ = fix_inputs_as_parameters(k.system, {"damping": k.u[-1]})
    return replace(k, system=system, u=k.u[:-1])


@cache
def under_push():
    """The sliding block while a wrench pushes it: a wrapped system with bodies."""
    k = dynamics()
    system = k.system.pushed(hc.mechanics.Wrench("block", (0.3, 0.0, -0.4), 0.0, 1.0))
    return replace(k, system=system, u=np.append(k.u, 0.5))


KINDS = [
    functions, expressions, generated, dynamics, landing, flying, legged, flat, spatial_slip, relay,
    held, under_push,
]  # fmt: skip
