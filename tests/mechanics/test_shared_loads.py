"""Redundant contacts that stay closed: forces of least weighted norm, and their derivatives.

Points off a common plane matter: there friction and normal forces are redundant together, so that
the weights of friction are not the normal forces of the result.
"""

import numpy as np
import pytest
from differences import assert_derivative
from hybridctl.robots.bodies import free_body

from hybridctl.base.errors import SimulationError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.mechanics.modes.force_distribution import compute_friction_weights
from hybridctl.mechanics.parameters import parameter_derivatives
from mechanics.models import PAIR
from mechanics.test_kernel import make_mode, make_sole
from mechanics.test_parameter_derivatives import NAMES, NONE, SOME, changed_system, pair
from mechanics.test_redundant import EXACT, FACES, FOOT, HALF, MASS, P, rows_of, standing, touching

# points of no common plane
ROUGH_FOOT = FOOT + 0.01 * np.random.default_rng(5).normal(size=(6, 3))


def incline(angle, azimuth):
    """The cube with gravity as on an incline that falls along `azimuth`, and that direction."""
    down = np.array([np.cos(azimuth), np.sin(azimuth)])
    robot = Robot.from_urdf(
        free_body("cube", MASS, (P.inertia,) * 3),
        root="floating",
        gravity=tuple(P.gravity * np.array([*(np.sin(angle) * down), -np.cos(angle)])),
    )
    return robot, down


def left_over(dynamics, q, v, u, now):
    """M a + h - S u - J' f."""
    robot = dynamics.robot
    force = dynamics.contact_set.jacobian(q).T @ rows_of(dynamics, now.forces, now.friction)
    drive = robot.actuation @ u - robot.bias(q, v)
    return robot.mass_matrix(q) @ now.acceleration - drive - force


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("angle", [0.0, 0.2])
@pytest.mark.parametrize("azimuth", [0.0, 0.7])
def test_a_cube_rests_on_an_incline(face, angle, azimuth):
    """f_n is affine in the place x of a point on the face: that is the least norm.

    f_n = m g / n (cos + sin h d.x / w^2) with w^2 the mean of x_1^2, d downhill; f_t = -f_n tan d.
    """
    robot, down = incline(angle, azimuth)
    points = FACES[face]
    dynamics = touching(points, 0.5, robot=robot)
    q, v, u = standing(dynamics), np.zeros(6), np.zeros(0)
    now = dynamics.acceleration(q, v, u, ("stick",) * len(points))
    x = points[:, :2]
    lean = HALF * np.sin(angle) * (x @ down) / (x[:, 0] ** 2).mean()
    normal = MASS * P.gravity / len(points) * (np.cos(angle) + lean)
    np.testing.assert_allclose(now.acceleration, 0.0, atol=100.0 * EXACT)  # forces over inertia
    np.testing.assert_allclose(now.forces, normal, atol=EXACT)
    tangents = dynamics.tangent_jacobian(q)[:, :, :2]
    friction = -np.tan(angle) * normal[:, None] * (tangents @ down)
    np.testing.assert_allclose(now.friction, friction, atol=EXACT)
    assert np.abs(left_over(dynamics, q, v, u, now)).max() <= EXACT


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("spin", [0.0, 1.5, 3.0])
def test_the_field_where_loads_are_shared_is_that_of_the_forces(face, spin):
    """A cube slides along a diagonal, so that friction presses it onto the corner in front.

    The load is h mu before the centre, between the middle of the face and its corner at h sqrt(2).
    The least forces without regard to the cones pull at the corner behind, and with a spin their
    friction is another one: the field is not theirs.
    """
    points = FACES[face]
    robot = incline(0.0, 0.0)[0]
    dynamics = touching(points, 1.2, robot=robot)
    system = contact_system(robot, dynamics.contacts)
    modes, q = ("slip",) * len(points), standing(dynamics)
    v, u = np.array([0.7, 0.7, 0.0, 0.0, 0.0, spin]), np.zeros(0)
    mode, x = system.mode(modes), np.concatenate((q, v))
    now = dynamics.acceleration(q, v, u, modes)
    assert now.forces.min() >= -EXACT
    assert np.abs(left_over(dynamics, q, v, u, now)).max() <= EXACT
    scale = 100.0 * EXACT  # forces over inertia
    np.testing.assert_allclose(mode.field(0.0, x, u)[6:], now.acceleration, atol=scale)
    alone = dynamics.solve_phase(dynamics.phase(modes), q, v, u)
    assert alone.kkt.redundant
    assert alone.forces[: len(points)].min() < 0.0
    apart = np.abs(alone.acceleration - now.acceleration).max()
    assert apart > 0.1 or spin == 0.0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("spin", [1.5, 3.0])
def test_the_time_to_a_stop_is_told_by_the_loads_that_are_carried(face, spin):
    """The speed |v| of a corner at r from the centre changes by v / |v| . (a + dw x r - w^2 r)."""
    points = FACES[face]
    dynamics = touching(points, 1.2, robot=incline(0.0, 0.0)[0])
    modes, q = ("slip",) * len(points), standing(dynamics)
    v, u = np.array([0.7, 0.7, 0.0, 0.0, 0.0, spin]), np.zeros(0)
    a = dynamics.acceleration(q, v, u, modes).acceleration
    x, y = points[:, 0], points[:, 1]
    slip = np.stack((v[0] - spin * y, v[1] + spin * x))
    # joint velocities are those of the body, which turns
    change = np.stack((a[0] - spin * v[1] - a[5] * y, a[1] + spin * v[0] + a[5] * x)) - (
        spin**2 * np.stack((x, y))
    )
    speeds = np.linalg.norm(slip, axis=0)
    slowing = -(slip * change).sum(axis=0) / speeds
    stops = (speeds / slowing)[slowing > 0.0].min()
    mode = contact_system(dynamics.robot, dynamics.contacts).mode(modes)
    found = mode.calc(0.0, np.concatenate((q, v)), u).pace.longest_step
    assert found == pytest.approx(0.9 * stops, rel=1e-9)


@pytest.mark.parametrize("sliding", [0, 2, 4])
def test_a_state_whose_forces_overflow_has_no_finite_field(sliding):
    """So that a step that goes there is made smaller, and the run does not end."""
    robot = incline(0.0, 0.0)[0]
    dynamics = touching(FACES["four"], 1.2, robot=robot)
    mode = contact_system(robot, dynamics.contacts).mode(
        ("stick",) * (4 - sliding) + ("slip",) * sliding
    )
    fast = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 1e200])
    with np.errstate(all="ignore"):
        field = mode.field(0.0, np.concatenate((standing(dynamics), fast)), np.zeros(0))
    assert not np.isfinite(field).all()


def walker(points=FOOT, stabilization=0.0):
    """A foot with six points, and a leg with a motor."""
    robot = Robot.from_urdf(PAIR, root="floating", stiffness={"hip": 0.2})
    return touching(points, 0.05, robot=robot, stabilization=stabilization)


def walking(modes, spin, points=FOOT, stabilization=0.0):
    """The foot stands or slides straight or with a `spin`; the leg swings."""
    dynamics = walker(points, stabilization)
    q = standing(dynamics, 0.05, yaw=0.4)
    q[7] = 0.05
    slides = "slip" in modes
    v = np.array([0.3 * slides, 0.2 * slides, 0.0, 0.0, 0.0, spin, 0.2])
    return dynamics, q, v, np.array([0.01])


STICK, SLIP = ("stick",) * 6, ("slip",) * 6


@pytest.mark.parametrize("modes", [STICK, ("stick", "stick", "stick", "stick", "open", "open")])
def test_sticking_forces_have_the_least_norm_with_friction_weighted_by_the_normal_forces(modes):
    dynamics, q, v, u = walking(modes, 0.0)
    now = dynamics.acceleration(q, v, u, modes)
    assert np.abs(left_over(dynamics, q, v, u, now)).max() <= EXACT * 10
    closed = [i for i, mode in enumerate(modes) if mode != "open"]
    tangents = [dynamics.contact_set.tangents[i] for i in closed]
    rows = np.array([*closed, *np.concatenate(tangents)])
    weights = np.array([*np.ones(len(closed)), *np.repeat(now.forces[closed], 2)])
    assert weights.min() > 0.0
    root = np.sqrt(weights)
    needed = dynamics.robot.mass_matrix(q) @ now.acceleration
    needed += dynamics.robot.bias(q, v) - dynamics.robot.actuation @ u
    push = dynamics.contact_set.jacobian(q)[rows].T
    least = root * (np.linalg.pinv(push * root, rcond=1e-10) @ needed)
    found = rows_of(dynamics, now.forces, now.friction)[rows]
    np.testing.assert_allclose(found, least, atol=10.0 * EXACT)


def assert_exact(dynamics, q, v, u, modes):
    """All derivatives of acceleration and forces against differences, in all directions."""
    robot, d = (
        dynamics.robot,
        dynamics.derivatives_at(q, v, u, dynamics.acceleration(q, v, u, modes)),
    )

    def result(q, v, u):
        now = dynamics.acceleration(q, v, u, modes)
        return np.concatenate([now.acceleration, now.forces, now.friction.ravel()])

    friction_z = d.friction_z.reshape(-1, d.friction_z.shape[2])
    by_z = np.vstack([d.acceleration_z, d.forces_z, friction_z])
    by_q, by_v, by_u = np.split(by_z, [robot.nv, 2 * robot.nv], axis=1)
    assert_derivative(lambda z: result(robot.integrate(q, z), v, u), by_q)
    assert_derivative(lambda z: result(q, v + z, u), by_v)
    assert_derivative(lambda z: result(q, v, u + z), by_u)


POINTS = {"plane": FOOT, "rough": ROUGH_FOOT}
MIXED = ("slip", "stick", "stick", "open", "stick", "stick")


@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize(
    ("modes", "spin"),
    [(STICK, 0.0), (SLIP, 0.0), (SLIP, 0.5), ((*SLIP[:4], "open", "open"), 0.5)],
)
def test_derivatives_of_redundant_forces(modes, spin, points):
    """At rest or sliding on level ground, also by configurations that lift the foot."""
    dynamics, q, v, u = walking(modes, spin, POINTS[points])
    if points == "plane":
        assert dynamics.acceleration(q, v, u, modes).forces[:4].min() > 0.0
    assert_exact(dynamics, q, v, u, modes)


@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("modes", [STICK, MIXED, ("slip", "slip", *STICK[2:])])
@pytest.mark.parametrize("seed", range(2))
def test_derivatives_where_points_pull_and_contradict_each_other(modes, points, seed):
    """Points that turn with a body cannot all keep still: the constraints leave a residual."""
    dynamics, q, v, u = walking(modes, 0.0, POINTS[points], stabilization=20.0)
    rng = np.random.default_rng(seed)
    q = dynamics.robot.integrate(q, 0.3 * rng.normal(size=7))
    v = v + 0.5 * rng.normal(size=7)
    assert dynamics.acceleration(q, v, u, modes).forces.min() < 0.0
    phase = dynamics.phase(modes)
    assert np.abs(dynamics.solve_phase(phase, q, v, u).residual).max() > 0.01
    assert_exact(dynamics, q, v, u, modes)


def test_contacts_that_pull_cost_the_field_no_digits():
    """Their friction has weights of 1e-6, but all that stick make one acceleration."""
    dynamics, pulling = make_sole(0.5), 0
    robot, rng, step = dynamics.robot, np.random.default_rng(5), 1e-4
    mode = make_mode(dynamics, ("stick", "open", "open", "stick", "stick"))
    for _ in range(40):
        q = robot.integrate(robot.neutral(), 0.05 * rng.normal(size=robot.nv))
        x = mode.project(np.concatenate((q, 0.2 * rng.normal(size=robot.nv))))
        u, direction = 0.3 * rng.normal(size=robot.nu), rng.normal(size=2 * robot.nv + robot.nu)
        by_x, by_u = np.split(direction, [2 * robot.nv])

        def field(way, x=x, u=u, by_x=by_x, by_u=by_u):
            return mode.calc(0.0, mode.space.integrate(x, way * by_x), u + way * by_u).field

        point = mode.calc(0.0, x, u)
        pulling += point.force_solution.inside_cones is False
        inner, outer = (field(h) - field(-h) for h in (step, 2.0 * step))
        expected = (8.0 * inner - outer) / (12.0 * step)
        found = np.hstack(point.field_jacobian) @ direction
        # Differences of fourth order: rounding over the step, 1e-12 of terms that cancel.
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-8 * np.abs(expected).max())
    assert pulling > 10


def test_a_weight_is_the_normal_force_and_hardly_anything_where_a_point_pulls():
    """l (1 + log(1 + e^(n / l - 1))), l = 1e-6 |n|: n up to e^-40 from 41 l on, and l at most."""
    phase = walker().phase(STICK)
    even = np.zeros(18)
    even[:6] = 3.0, 1e-4, 2.0, -1.0, 0.0, 1.0
    weights = compute_friction_weights(phase, even)
    least = 1e-6 * np.linalg.norm(even[:6])
    expected = [3.0, 1e-4, 2.0, least, least * (1.0 + np.log1p(np.exp(-1.0))), 1.0]
    np.testing.assert_allclose(weights[6:], np.repeat(expected, 2), rtol=1e-9)
    np.testing.assert_array_equal(weights[:6], 1.0)


def test_points_without_any_load_have_no_derivative():
    robot = Robot.from_urdf(
        free_body("cube", MASS, (P.inertia,) * 3), root="floating", gravity=(0, 0, 0)
    )
    dynamics = touching(FOOT, 0.5, robot=robot)
    q, v, u = standing(dynamics, 0.05), np.zeros(6), np.zeros(0)
    assert not dynamics.acceleration(q, v, u, STICK).forces.any()
    with pytest.raises(SimulationError, match="carry no load by which it is shared"):
        dynamics.derivatives_at(q, v, u, dynamics.acceleration(q, v, u, STICK))


# By parameters: four points of a body on a table that is not flat for them

STUDS = [
    Contact(
        name,
        "cube",
        Plane((0, 0, 0), (0, 0, 1)),
        offset=offset,
        restitution=0.3,
        friction=0.4,
        static_friction=0.6,
    )
    for name, offset in zip(
        "abcd",
        [(0.2, 0.2, 0.0), (-0.2, 0.2, 0.05), (-0.2, -0.3, -0.04), (0.2, -0.3, 0.02)],
        strict=True,
    )
]


@pytest.mark.parametrize("modes", [("stick",) * 4, ("stick", "stick", "stick", "slip")])
@pytest.mark.parametrize("turn", [0.0, 0.5])
def test_derivatives_by_parameters(modes, turn):
    """Of the field and all guards but "sliding jams", at which runs end."""
    robot, contacts = pair(NONE, STUDS)
    d = parameter_derivatives(robot, contacts, NAMES)
    names = contact_system(robot, contacts).outgoing(modes).guards.names
    goes_on = [name != "sliding jams" for name in names]
    q = robot.integrate(robot.neutral(), np.array([0.1, 0.2, 0.0, turn, -turn, 0.3, 0.2]))
    x = np.concatenate((q, turn * np.arange(-3.0, 4.0)))
    u = np.full(robot.nu, 0.05)

    def outcome(z):
        changed = changed_system(z, STUDS)
        values = changed.outgoing(modes).guards.values(0.0, x, u)
        return np.concatenate((changed.mode(modes).field(0.0, x, u), values[goes_on]))

    expected = np.vstack((d.field(modes, 0.0, x, u), d.guards(modes, 0.0, x, u)[goes_on]))
    assert_derivative(outcome, expected @ SOME)
