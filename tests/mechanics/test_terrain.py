"""Smooth ground: beside planes and spheres, Lagrange's equation of a bead, and differences."""

import pickle

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots.bodies import free_body
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Plane, Robot, Sphere, Terrain, contact_system
from mechanics.flows import differences

G = 9.81
TERMS = ("pinocchio", "generated")
WAVES = Terrain(lambda x, y: 0.2 * ca.sin(2.0 * x) + 0.1 * x * y - 0.05 * y**2)


def bead(surface, friction=0.0, restitution=0.0, terms="auto"):
    """A free body of 0.5 kg that touches with its centre."""
    robot = Robot.from_urdf(free_body("bead", 0.5, [1e-3] * 3), root="floating")
    contact = Contact("c", "bead", surface, friction=friction, restitution=restitution)
    return contact_system(robot, [contact], terms=terms)


def placed(surface, mode, system, position, velocity):
    """The state there, put on the ground, not turning."""
    x = [*system.robot.neutral().tolist(), *velocity, 0.0, 0.0, 0.0]
    x[:3] = position
    return system.mode(mode).project(np.array(x))


def test_a_tilted_terrain_is_a_plane_to_all_orders():
    ramp = Terrain(lambda x, y: 0.3 * x - 0.2 * y + 0.7)
    plane = Plane((0.0, 0.0, 0.7), (-0.3, 0.2, 1.0))
    rng = np.random.default_rng(0)
    r, s = rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    np.testing.assert_allclose(ramp.distance(r), plane.distance(r), atol=1e-14)
    np.testing.assert_allclose(ramp.normal(r), plane.normal(r), atol=1e-14)
    np.testing.assert_allclose(ramp.curvature(r), 0.0, atol=1e-14)
    np.testing.assert_allclose(ramp.curvature_along(r, s), 0.0, atol=1e-14)


def test_derivatives_are_differences_of_the_order_below():
    rng = np.random.default_rng(1)
    r, s = rng.uniform(-1.0, 1.0, (6, 3)), rng.normal(size=(6, 3))
    h = 1e-6  # central differences: third derivatives of order 10 times h^2, rounding / h

    def along(function):
        return (function(r + h * s) - function(r - h * s)) / (2.0 * h)

    gradient = np.einsum("ni,ni->n", WAVES.normal(r), s)
    np.testing.assert_allclose(along(WAVES.distance), gradient, atol=1e-8)
    turned = np.einsum("nij,nj->ni", WAVES.curvature(r), s)
    np.testing.assert_allclose(along(WAVES.normal), turned, atol=1e-8)
    np.testing.assert_allclose(along(WAVES.curvature), WAVES.curvature_along(r, s), atol=1e-8)


@pytest.mark.parametrize("terms", TERMS)
def test_a_dome_is_a_sphere_to_what_slides_on_it(terms):
    """Forces, motion and the derivative of the flow, with friction."""
    radius = 0.8
    dome = Terrain(lambda x, y: ca.sqrt(ca.fmax(radius**2 - x**2 - y**2, 0.01)))
    ends, forces, matrices = [], [], []
    for surface in (dome, Sphere((0.0, 0.0, 0.0), radius)):
        system = bead(surface, friction=0.2, terms=terms)
        start = placed(surface, ("slip",), system, (0.1, -0.05, 0.79), (0.9, 0.4, 0.0))
        run = hc.simulate(system, ("slip",), start, (0.0, 0.2), rtol=1e-11, atol=1e-11)
        assert not run.events
        ends.append(run.final_state)
        out = system.mode(("slip",)).outputs(0.2, run.final_state, np.zeros(system.robot.nu))
        forces.append([*out["normal_force"], np.linalg.norm(out["friction_force"])])
        held = system.mode(("slip",)).held.jacobian(start)
        allowed = np.linalg.svd(held)[2][len(held) :]
        matrices.append(hc.linearize(system, run).state_transition @ allowed.T)
    # both flows are right to 1e-11 a step, some hundred steps with growth of order ten
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-8)
    np.testing.assert_allclose(forces[0], forces[1], rtol=1e-7)
    projections = [m @ m.T for m in matrices]  # whatever basis of the same space was taken
    np.testing.assert_allclose(projections[0], projections[1], atol=1e-6)


@pytest.mark.parametrize("terms", TERMS)
def test_a_bead_in_a_valley_obeys_the_equation_of_lagrange(terms):
    """(1 + h'^2) x'' + h' h'' x'^2 + g h' = 0 for h = x^4 / 2 - x^2 / 5."""
    valley = Terrain(lambda x, y: 0.5 * x**4 - 0.2 * x**2)
    system = bead(valley, terms=terms)
    start = placed(valley, ("closed",), system, (0.5, 0.0, 0.0), (0.0, 0.0, 0.0))
    run = hc.simulate(system, ("closed",), start, (0.0, 1.5), rtol=1e-11, atol=1e-11)

    def rate(t, z):
        x, v = z
        slope, bend = 2.0 * x**3 - 0.4 * x, 6.0 * x**2 - 0.4
        return v, -(slope * bend * v**2 + G * slope) / (1.0 + slope**2)

    x0 = run.arcs[0](0.0)[0]
    exact = solve_ivp(rate, (0.0, 1.5), (x0, 0.0), method="DOP853", rtol=1e-12, atol=1e-12)
    assert not run.events
    assert run.final_state[0] == pytest.approx(exact.y[0, -1], abs=1e-8)
    energy = [sum(system.robot.energy(x[:7], x[7:])) for x in (start, run.final_state)]
    assert energy[0] == pytest.approx(energy[1], abs=1e-8)


@pytest.mark.parametrize("terms", TERMS)
def test_a_bounce_on_waves_keeps_the_speed_along_and_turns_back_a_part_of_that_across(terms):
    system = bead(WAVES, restitution=0.6, terms=terms)
    x0 = np.array([0.3, -0.2, 0.6, 0.0, 0.0, 0.0, 1.0, 0.5, -0.3, 0.0, 0.0, 0.0, 0.0])
    run = hc.simulate(system, ("open",), x0, (0.0, 0.4), rtol=1e-11, atol=1e-11)
    event = run.events[0]
    n = WAVES.normal(event.state_before[None, :3])[0]
    assert np.linalg.norm(n) == pytest.approx(1.0, abs=1e-9)
    before, after = event.state_before[7:10], event.state_after[7:10]
    assert n @ after == pytest.approx(-0.6 * (n @ before), abs=1e-9)
    along = np.eye(3) - np.outer(n, n)
    np.testing.assert_allclose(along @ after, along @ before, atol=1e-9)
    matrix, ways = hc.linearize(system, run).state_transition, np.eye(12)[:, [0, 1, 6, 8]]
    found = differences(system, ("open",), x0, (0.0, 0.4), 1e-5, ways, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found, matrix @ ways, atol=1e-6 * np.abs(matrix).max())


def test_heights_at_many_places_are_those_of_the_formula():
    x, y = np.array([[0.0, 0.3, -1.2], [0.5, -0.7, 2.0]])
    expected = 0.2 * np.sin(2.0 * x) + 0.1 * x * y - 0.05 * y**2
    np.testing.assert_allclose(WAVES.heights(x, y), expected, atol=1e-15)


def test_terrains_are_values():
    again = Terrain(lambda x, y: 0.2 * ca.sin(2.0 * x) + 0.1 * x * y - 0.05 * y**2)
    assert again == WAVES
    assert hash(again) == hash(WAVES)
    assert pickle.loads(pickle.dumps(WAVES)) == WAVES
    assert Terrain(lambda x, y: x) != WAVES
    assert "Terrain(" in repr(WAVES)


@pytest.mark.parametrize(
    ("height", "message"),
    [
        (lambda x, y: ca.SX.sym("z"), "x and y alone"),
        (lambda x, y: ca.vertcat(x, y), "one number"),
        (lambda x, y: 1.0 / x, "finite"),
        (0.3, "height"),
    ],
)
def test_heights_that_are_none_are_refused(height, message):
    with pytest.raises(InputError, match=message):
        Terrain(height)


def test_a_height_that_is_not_known_everywhere_is_refused():
    dome = Terrain(lambda x, y: ca.sqrt(0.01 - x**2 - y**2))
    with pytest.raises(InputError, match=r"surface of contact 'c' .* not finite at"):
        bead(dome, friction=0.3)


def test_round_contacts_need_a_distance():
    with pytest.raises(InputError, match="radius of contact 'c' must be 0 on Terrain"):
        Contact("c", "bead", WAVES, radius=0.1)
