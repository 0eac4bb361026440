"""Derivatives by offsets and radii of contacts, against differences of systems that are rebuilt."""

from dataclasses import replace

import numpy as np
import pytest
from differences import assert_derivative

from hybridctl.base.errors import InputError
from hybridctl.hybrid.model import JumpPoint
from hybridctl.mechanics import (
    Contact,
    ContactDynamics,
    Plane,
    Robot,
    Sphere,
    Stairs,
    contact_system,
    parameter_derivatives,
)
from mechanics.models import PAIR, random_state

SLOPE = Plane((0.0, 0.0, -0.1), (0.1, 0.2, 1.0))
BALL = Sphere((0.0, 0.0, -0.2), 0.05)
POINTS = [
    Contact("a", "cube", SLOPE, offset=(0.05, 0.05, 0.0), restitution=0.3, friction=0.4),
    Contact("b", "cube", SLOPE, offset=(-0.05, 0.05, -0.05), friction=0.2, radius=0.02),
    Contact("c", "arm", SLOPE, offset=(0.0, 0.0, 0.1), restitution=0.9, friction=0.8),
    Contact("d", "arm", BALL, "cube", (0.0, 0.1, 0.1), friction=0.1, radius=0.01),
]
NAMES = (*(f"offset_{k}:{p.name}" for p in POINTS for k in "xyz"), "radius:b", "radius:d")
SOME = 0.02 * np.random.default_rng(0).uniform(-1.0, 1.0, (len(NAMES), 3))
SOME[-2:] *= 0.3  # radii stay above zero
MODES = [
    ("open",) * 4,
    ("slip", "open", "open", "slip"),
    ("open", "slip", "stick", "open"),
    ("stick", "open", "open", "slip"),
]


def changed(z, terms="pinocchio", **options):
    dp = dict(zip(NAMES, SOME @ z, strict=True))
    contacts = [
        replace(
            p,
            offset=p.offset + np.array([dp[f"offset_{k}:{p.name}"] for k in "xyz"]),
            radius=p.radius + dp.get(f"radius:{p.name}", 0.0),
        )
        for p in POINTS
    ]
    return contact_system(Robot.from_urdf(PAIR, root="floating"), contacts, terms=terms, **options)


def differentiate(**options):
    robot = Robot.from_urdf(PAIR, root="floating")
    return parameter_derivatives(robot, POINTS, NAMES, **options)


def start(seed=3):
    dynamics = ContactDynamics(Robot.from_urdf(PAIR, root="floating"), POINTS)
    q, v, u = random_state(dynamics, seed)
    return np.concatenate((q, v)), u


@pytest.mark.parametrize("stabilization", [0.0, 30.0])
@pytest.mark.parametrize("modes", MODES)
def test_field_and_guards(modes, stabilization):
    d, (x, u) = differentiate(stabilization=stabilization), start()
    names = d.system.outgoing(modes).guards.names
    ends = [name != "sliding jams" for name in names]  # runs end there

    def outcome(z):
        system = changed(z, stabilization=stabilization)
        values = system.outgoing(modes).guards.values(0.0, x, u)[ends]
        return np.concatenate((system.mode(modes).field(0.0, x, u), values))

    expected = np.vstack((d.field(modes, 0.0, x, u), d.guards(modes, 0.0, x, u)[ends]))
    assert_derivative(outcome, expected @ SOME)


@pytest.mark.parametrize("hit", ["a", "b", "d", "ac"])
def test_impacts(hit):
    """The whole law of the impact is differenced; no contact is at the border of two states.

    Those that close together have their gaps closed as well, which whole flows test.
    """
    d, (x, u) = differentiate(), start(1)
    fired, modes = tuple(f"{name} closes" for name in hit), ("open",) * 4
    nq = d.system.robot.nq

    def outcome(z):
        return changed(z).outgoing(modes).edge(fired).reset(0.0, x, u).state[nq:]

    expected = d.reset(modes, fired, 0.0, x, u) @ SOME
    assert not expected[: d.system.robot.nv].any()
    assert_derivative(outcome, expected[d.system.robot.nv :])


@pytest.mark.parametrize(
    "modes", [("stick", "open", "open", "open"), ("stick", "open", "open", "slip")]
)
def test_the_departure_of_a_contact_that_sticks(modes):
    """What vanishes is the acceleration of its gap without it, by state, input and lengths."""
    d, (x, u) = differentiate(), start(1)
    system, after = d.system, ("open", *modes[1:])
    nv, space = system.robot.nv, system.space

    def outcome(z, own=system, x=x, u=u):
        """Minus the acceleration, by differences along the motion of the rate of the gap."""
        state, h = x, 1e-5
        f = own.mode(after).field(0.0, state, u)
        ends = [space.integrate(state, s * h * f) for s in (1.0, -1.0)]
        rates = [own.dynamics.gap_rates(*np.split(end, [system.robot.nq]))[0] for end in ends]
        return np.array([-(rates[0] - rates[1]) / (2.0 * h)])

    at = JumpPoint(0.0, x, u)
    reset = system.outgoing(modes).edge(("a opens",)).reset
    found = reset.differentiate_departure(at)
    by_lengths = d.differentiate_departure(modes, ("a opens",), at)
    scale = max(1.0, float(np.abs(found.state).max()))
    step = 1e-5
    for z in np.eye(3):
        ends = [outcome(None, changed(sign * step * z)) for sign in (1.0, -1.0)]
        slope = (ends[0] - ends[1]) / (2.0 * step)
        np.testing.assert_allclose(slope, by_lengths @ SOME @ z, rtol=0.0, atol=1e-4 * scale)
    for dx, row in ((np.eye(2 * nv), found.state), (np.eye(len(u)), found.input)):
        for k, way in enumerate(dx):
            moved = [
                {"x": space.integrate(x, s * step * way)}
                if len(way) == 2 * nv
                else {"u": u + s * step * way}
                for s in (1.0, -1.0)
            ]
            ends = [outcome(None, **change) for change in moved]
            slope = (ends[0] - ends[1]) / (2.0 * step)
            np.testing.assert_allclose(slope, row[k], rtol=0.0, atol=1e-4 * scale)


def test_what_has_no_derivative_is_refused():
    robot = Robot.from_urdf(PAIR, root="floating")
    with pytest.raises(InputError, match="must have a radius"):
        parameter_derivatives(robot, POINTS, ["radius:a"])
    stairs = Contact("step", "cube", Stairs([0.5], [0.0, 0.1]))
    with pytest.raises(InputError, match="of one piece"):
        parameter_derivatives(robot, [stairs], ["offset_x:step"])


def test_redundant_points_stay_closed_together_or_have_no_derivative():
    """Four points of a table: with one of them lower they no longer stand together."""
    table = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    corners = [
        Contact(f"p{k}", "cube", table, offset=(x, y, 0.0), friction=0.5)
        for k, (x, y) in enumerate([(0.2, 0.2), (-0.2, 0.2), (-0.2, -0.3), (0.2, -0.3)])
    ]
    robot, modes = Robot.from_urdf(PAIR, root="floating"), ("stick",) * 4
    x = np.zeros(robot.nq + robot.nv)
    x[6], x[7], u = 1.0, 0.2, np.zeros(robot.nu)
    lower = parameter_derivatives(robot, corners, ["offset_z:p0"])
    with pytest.raises(InputError, match="stay closed together"):
        lower.field(modes, 0.0, x, u)
    aside = parameter_derivatives(robot, corners, ["offset_x:p0"])

    def outcome(z):
        others = [replace(corners[0], offset=corners[0].offset + np.array([0.02 * z[0], 0.0, 0.0]))]
        system = contact_system(robot, others + corners[1:], terms="pinocchio")
        values = system.outgoing(modes).guards.values(0.0, x, u)
        return np.concatenate((system.mode(modes).field(0.0, x, u), values))

    expected = np.vstack((aside.field(modes, 0.0, x, u), aside.guards(modes, 0.0, x, u)))
    assert_derivative(outcome, 0.02 * expected)
