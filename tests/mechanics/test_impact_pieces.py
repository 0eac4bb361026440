"""Impacts at the border between two states: their derivative is linear on cones, piece by piece.

The impact itself is the reference: one-sided differences over shrinking steps.
"""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import block, cube
from scipy.optimize import linprog

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, Sphere
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.impacts.impact_derivatives import find_linear_pieces
from mechanics.models import HILL_IN_THE_PLANE, PLANAR_PAIR, pair

MU, E = 0.4, 0.3
STEPS = 10.0 ** np.array([-3.0, -4.0, -5.0, -6.0])
PLANE = Plane((0.0, 0.0, 0.0), (0.1, 0.2, 1.0))
# seen from the point mass at the origin: surfaces whose normal turns with q
HILL = Sphere((0.1, -0.2, -0.9), 0.9)
BOWL = Sphere((0.1, 0.0, 1.2), 1.2, inside=True)
FLAT_HILL = Sphere((0.1, 0.0, -0.9), 0.9)
AXES = {"x": "1 0 0", "y": "0 1 0", "z": "0 0 1"}


def point_mass(axes, ground, mass=0.7):
    """A point that moves along some axes, and hits the ground where it is."""
    names = ["world", *(f"to {a}" for a in axes[:-1]), "point"]
    inertia = f'<inertial><mass value="{mass}"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" '
    inertia += 'iyz="0"/></inertial>'
    links = [f'<link name="{n}">{inertia if n == "point" else ""}</link>' for n in names]
    joints = [
        f'<joint name="{a}" type="prismatic"><parent link="{p}"/><child link="{c}"/>'
        f'<axis xyz="{AXES[a]}"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint>'
        for a, p, c in zip(axes, names, names[1:], strict=False)
    ]
    robot = Robot.from_urdf(f'<robot name="point">{"".join(links + joints)}</robot>')
    contact = Contact("foot", "point", ground, friction=MU, restitution=E)
    return ContactDynamics(robot, [contact])


def rates_to_velocity(dynamics, q, rates):
    """The smallest velocity with these normal and tangential rates."""
    return np.linalg.lstsq(dynamics.contact_set.jacobian(q), np.asarray(rates), rcond=None)[0]


def everything(result):
    return np.concatenate(
        (result.velocity_after, result.impulses, result.friction_impulses.ravel())
    )


def along(piece, dq, dv):
    """Derivative of `everything` along (dq, dv) by one piece."""
    d, z = piece.derivatives, np.concatenate([dq, dv])
    friction_z = d.friction_impulses_z.reshape(-1, len(z))
    return np.vstack([d.velocity_z, d.impulses_z, friction_z]) @ z


def errors(dynamics, q, v, at, piece, dq, dv, parts=slice(None)):
    """Of one-sided differences of `parts` over `STEPS`, relative to the derivative."""
    base = everything(impact(dynamics, q, v, at))[parts]
    slope = along(piece, dq, dv)[parts]
    found = []
    for h in STEPS:
        moved = dynamics.robot.integrate(q, h * dq)
        change = everything(impact(dynamics, moved, v + h * dv, at))[parts] - base
        found.append(np.abs(change / h - slope).max() / max(1.0, np.abs(slope).max()))
    return np.array(found)


def agrees(found):
    """Errors fall as h, to where rounding of the impact, 1e-12 / h, takes over."""
    return (
        found[2] <= 1e-3 and found[2] <= 0.2 * found[1] + 1e-7 and found[1] <= 0.2 * found[0] + 1e-8
    )


def inside(piece, rng):
    """A direction inside the cone of a piece, of those where friction has one direction.

    The middle of its largest ball in the unit box, and up to half its radius away from there.
    """
    cones = [mu * n + s * t for mu, (n, *ts) in piece.cones for t in ts[:1] for s in (1.0, -1.0)]
    faces = np.array([*piece.slack, *cones])
    faces /= np.linalg.norm(faces, axis=1)[:, None]
    m, n = faces.shape
    largest = linprog(
        [*np.zeros(n), -1.0],
        A_ub=np.hstack([-faces, np.ones((m, 1))]),
        b_ub=np.zeros(m),
        bounds=[(-1.0, 1.0)] * n + [(0.0, None)],
    )
    radius = largest.x[n]
    assert radius > 0.1
    away = rng.normal(size=n)
    return np.split(largest.x[:n] + 0.5 * radius * away / np.linalg.norm(away), 2)


def holds(piece, dq, dv, tolerance=1e-12):
    """Whether a piece is the derivative in the direction (dq, dv), by the definition."""
    z = np.concatenate((dq, dv))
    inside = [mu * (rows[0] @ z) - np.linalg.norm(rows[1:] @ z) for mu, rows in piece.cones]
    return min([*inside, *(piece.slack @ z)], default=0.0) >= -tolerance


def check_directions(dynamics, q, v, at, count, seed):
    """In every direction exactly the piece that holds is the derivative; returns states met.

    In random directions and in some inside the cone of each piece.
    """
    rng = np.random.default_rng(seed)
    result = impact(dynamics, q, v, at)
    pieces = find_linear_pieces(dynamics, q, v, result)
    seen = set()
    directions = [rng.normal(size=(2, dynamics.robot.nv)) for _ in range(count)]
    directions += [inside(piece, rng) for piece in pieces for _ in range(3)]
    for dq, dv in directions:
        right = {p.derivatives.states for p in pieces if holds(p, dq, dv)}
        assert len(right) == 1
        seen |= right
        for piece in pieces:
            found = errors(dynamics, q, v, at, piece, dq, dv)
            if piece.derivatives.states in right:
                assert agrees(found), (piece.derivatives.states, found)
            else:
                # a wrong piece leaves an error that does not depend on h
                assert found[3] >= 1e-4, (piece.derivatives.states, right, found)
    return seen


POINTS = {
    "plane, in the plane": (("x", "z"), Plane((0, 0, 0), (0.1, 0.0, 1.0))),
    "hill, in the plane": (("x", "z"), FLAT_HILL),
    "plane": (("x", "y", "z"), PLANE),
    "hill": (("x", "y", "z"), HILL),
    "bowl": (("x", "y", "z"), BOWL),
}


def at_the_cone(name, angle=0.7, fall=1.3):
    """A point mass that hits with |v_t| = mu (1 + e) |v_n|: friction only just stops it."""
    dynamics = point_mass(*POINTS[name])
    q = np.zeros(dynamics.robot.nv)
    speed = MU * (1.0 + E) * fall
    sideways = [speed] if len(q) == 2 else [speed * np.cos(angle), speed * np.sin(angle)]
    v = rates_to_velocity(dynamics, q, [-fall, *sideways])
    return dynamics, q, v


@pytest.mark.parametrize("name", POINTS)
def test_between_stick_and_slip(name):
    dynamics, q, v = at_the_cone(name)
    result = impact(dynamics, q, v, (0,))
    assert result.border == (0,)
    slip = "slip+" if len(q) == 2 else "slip"
    assert check_directions(dynamics, q, v, (0,), count=8, seed=1) == {("stick",), (slip,)}


@pytest.mark.parametrize("name", POINTS)
def test_stick_and_slip_share_a_border_on_which_they_agree(name):
    dynamics, q, v = at_the_cone(name)
    pieces = find_linear_pieces(dynamics, q, v, impact(dynamics, q, v, (0,)))
    (one,), (other,) = (piece.slack for piece in pieces)
    # their half-spaces are complementary
    one, other = one / np.linalg.norm(one), other / np.linalg.norm(other)
    np.testing.assert_allclose(one, -other, atol=1e-12)
    rng = np.random.default_rng(5)
    for _ in range(10):
        z = rng.normal(size=2 * len(q))
        dq, dv = np.split(z - (one @ z) * one, 2)
        assert all(holds(piece, dq, dv) for piece in pieces)
        np.testing.assert_allclose(along(pieces[0], dq, dv), along(pieces[1], dq, dv), atol=1e-11)


def test_a_ball_that_friction_only_just_stops_by_hand():
    """v_t+ = max(v_t - mu (1 + e) |v_n|, 0) on a level plane."""
    dynamics = point_mass(("x", "z"), Plane((0, 0, 0), (0, 0, 1)))
    q, v = np.zeros(2), np.array([MU * (1.0 + E), -1.0])
    stick, slip = find_linear_pieces(dynamics, q, v, impact(dynamics, q, v, (0,)))
    np.testing.assert_allclose(stick.derivatives.velocity_z[:, 2:], [[0, 0], [0, -E]], atol=1e-14)
    expected = [[1.0, MU * (1.0 + E)], [0.0, -E]]
    np.testing.assert_allclose(slip.derivatives.velocity_z[:, 2:], expected, atol=1e-14)
    still, faster = np.zeros(2), np.array([1.0, 0.0])
    assert holds(slip, still, faster)
    assert not holds(stick, still, faster)
    assert holds(stick, still, -faster)
    assert not holds(slip, still, -faster)


def before(dynamics, q, forces, after):
    """The velocity that an impact with these impulses turns into rates `after`, along all rows."""
    rows, count = dynamics.contact_set.jacobian(q), len(dynamics.contacts)
    rates = after - rows @ np.linalg.solve(dynamics.robot.mass_matrix(q), rows.T @ forces)
    rates[:count] /= 1.0 + dynamics.restitution
    return np.linalg.lstsq(rows, rates, rcond=None)[0]


def touching_block(slide, friction, restitution, height=0.1):
    """A block slides and hits with its right corner; the left one needs no impulse to stay.

    The impulse is 1 N s. In a frictionless impact the block does not turn if h^2 = 2 w^2: then
    the left corner touches at zero speed before the impact, too.
    """
    p = block.BlockParameters(height=height, friction=friction, restitution=restitution)
    dynamics = ContactDynamics(block.robot(p), block.contacts(p))
    q = np.array([0.0, 0.5 * height, 0.0])
    along = [slide, slide] if friction else []
    forces = [0.0, 1.0, 0.0, -friction * np.sign(slide)] if friction else [0.0, 1.0]
    return dynamics, q, before(dynamics, q, np.array(forces), np.array([0.0, 0.0, *along]))


def touching_cube(restitution):
    """The same in space: a cube with two corners in line slides aslant."""
    p = cube.CubeParameters(restitution=restitution)
    dynamics = ContactDynamics(cube.robot(p), cube.contacts(p)[0:5:4])
    q = dynamics.robot.neutral()
    q[2] = p.half_width
    s = np.array([0.6, 0.8])
    forces, after = np.array([0.0, 1.0, 0.0, 0.0, *(-p.friction * s)]), np.array([0, 0, *s, *s])
    return dynamics, q, before(dynamics, q, forces, after)


def touching_pair(share):
    """Two bodies with a joint hit with one point; another one comes to rest without an impulse.

    friction of the first is a `share` of its limit.
    """
    whole = pair("sagittal", HILL_IN_THE_PLANE, PLANAR_PAIR, mu=MU)
    cube_point, _, arm_point, _ = whole.contacts
    in_the_plane = replace(arm_point, offset=(0.0, 0.05, 0.1), friction=MU, static_friction=MU)
    dynamics = ContactDynamics(whole.robot, [cube_point, in_the_plane])
    q = np.array([0.1, -0.1, 0.2, 0.5])
    forces = np.array([1.0, 0.0, share * MU, 0.0])
    return dynamics, q, before(dynamics, q, forces, np.zeros(4))


# Every set of states has a piece with a cone of its own: rates without impulses are the image of
# a cone of as many dimensions, that of impulses and of rates that the states leave free, under a
# matrix that is regular where the impact has one solution, and (dq, dv) reaches all rates.
TOUCHING = {
    # name: (robot and impact, contacts at a border, states that are met)
    "frictionless": (lambda: touching_block(0.0, 0.0, 0.0), (0,), {"open closed", "closed closed"}),
    "frictionless, at zero speed": (
        lambda: touching_block(0.0, 0.0, 0.0, 0.2 * np.sqrt(2.0)),
        (0,),
        {"open closed", "closed closed"},
    ),
    "bouncing": (lambda: touching_block(0.0, 0.0, 0.6), (0,), {"open closed", "closed closed"}),
    "sliding": (lambda: touching_block(0.2, 0.3, 0.0), (0,), {"open slip+", "slip+ slip+"}),
    "sliding left": (lambda: touching_block(-0.2, 0.3, 0.6), (0,), {"open slip-", "slip- slip-"}),
    "sliding in space": (lambda: touching_cube(0.0), (0,), {"open slip", "slip slip"}),
    "bouncing in space": (lambda: touching_cube(0.4), (0,), {"open slip", "slip slip"}),
    "standing": (
        lambda: touching_pair(0.2),
        (1,),
        {"stick open", "stick stick", "stick slip+", "stick slip-"},
    ),
    "standing, at the cone": (
        lambda: touching_pair(1.0),
        (0, 1),
        {f"{a} {b}" for a in ("stick", "slip-") for b in ("open", "stick", "slip+", "slip-")},
    ),
}


@pytest.mark.parametrize("name", TOUCHING)
def test_a_contact_that_only_just_touches(name):
    make, border, expected = TOUCHING[name]
    dynamics, q, v = make()
    result = impact(dynamics, q, v, (0, 1))
    np.testing.assert_allclose(sorted(result.impulses), [0.0, 1.0], atol=1e-12)
    assert result.border == border
    seen = check_directions(dynamics, q, v, (0, 1), count=10, seed=2)
    assert {" ".join(states) for states in seen} == expected


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_redundant_corner_that_only_just_touches_has_one_velocity(share):
    """Both corners of a block stick: who carries the friction is open, the velocity is not."""
    p = block.BlockParameters(friction=0.5)
    dynamics = ContactDynamics(block.robot(p), block.contacts(p))
    q = np.array([0.0, 0.5 * p.height, 0.0])
    v = before(dynamics, q, np.array([0.0, 1.0, 0.0, share * p.friction]), np.zeros(4))
    result = impact(dynamics, q, v, (0, 1))
    assert result.border == (0,)
    pieces = find_linear_pieces(dynamics, q, v, result)
    rng = np.random.default_rng(3)
    lifts = []
    for _ in range(20):
        dq, dv = rng.normal(size=(2, 3))
        right = [piece for piece in pieces if holds(piece, dq, dv)]
        lifts.append({piece.derivatives.states[0] == "open" for piece in right})
        for piece in pieces:
            found = errors(dynamics, q, v, (0, 1), piece, dq, dv, parts=slice(3))
            if (piece.derivatives.states[0] == "open") in lifts[-1]:
                assert agrees(found), (piece.derivatives.states, found)
            else:
                assert found[3] >= 1e-4, (piece.derivatives.states, found)
    assert {True} in lifts
    assert {False} in lifts
    assert all(len(kinds) == 1 for kinds in lifts)


def test_in_a_surface_standing_without_an_impulse_is_not_piecewise_linear():
    p = cube.CubeParameters()
    dynamics = ContactDynamics(cube.robot(p), cube.contacts(p)[0:5:4])
    q = dynamics.robot.neutral()
    q[2] = p.half_width
    forces = np.array([0.0, 1.0, 0.0, 0.0, 0.5 * p.friction, 0.0])
    v = before(dynamics, q, forces, np.zeros(6))
    with pytest.raises(InputError, match="not piecewise linear"):
        find_linear_pieces(dynamics, q, v, impact(dynamics, q, v, (0, 1)))
