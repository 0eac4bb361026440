"""Impacts that reverse sliding velocities: the superball, the energy it keeps, and derivatives."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from differences import assert_derivative
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import (
    Contact,
    ContactDynamics,
    Plane,
    Robot,
    contact_system,
    parameter_derivatives,
    time_stepping,
)
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.impacts.impact_derivatives import differentiate_impact
from hybridctl.mechanics.impacts.impact_expressions import build_impact_map
from hybridctl.planning.task import Phase, Task
from hybridctl.sensitivity.parameters import parameter_sensitivity
from mechanics.flows import differences
from mechanics.impacts import random_body, random_motion
from mechanics.models import ROUGH, random_state

MASS, RADIUS, HEIGHT = 0.3, 0.05, 0.4
FLOOR = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
TABLE = Plane((0.0, 0.0, HEIGHT), (0.0, 0.0, -1.0))
TIGHT = {"rtol": 1e-11, "atol": 1e-11}
SLOPE = Plane((0.0, 0.0, 0.0), (0.2, 0.0, 1.0))


def ball(root, share, surfaces=(FLOOR,), gravity=(0.0, 0.0, -9.81), **law):
    """A body of inertia share * m r^2 about all axes, round about its centre."""
    urdf = free_body("ball", MASS, (share * MASS * RADIUS**2,) * 3)
    robot = Robot.from_urdf(urdf, root=root, gravity=gravity)
    contacts = [
        Contact(f"rim {k}", "ball", surface, radius=RADIUS, **law)
        for k, surface in enumerate(surfaces)
    ]
    return contact_system(robot, contacts)


SUPER = {"restitution": 1.0, "friction": 20.0, "tangential_restitution": 1.0}


def test_a_superball_that_is_thrown_under_a_table_comes_back():
    """R. L. Garwin, Kinematics of an ultraelastic rough ball, Am. J. Phys. 37 (1969): after floor,
    table and floor it has -333/343 of its velocity, and the spin (with v = r w for rolling) 130/343
    of it: v' = (3 v + 4 r w) / 7, r w' = (10 v - 3 r w) / 7 on the floor, spin reversed below the
    table."""
    floor = np.array([[3.0, 4.0], [10.0, -3.0]]) / 7.0
    turn = np.diag([1.0, -1.0])
    v, spin = floor @ turn @ floor @ turn @ floor @ [2.0, 0.0]
    assert v == pytest.approx(-2.0 * 333.0 / 343.0)
    system = ball("sagittal", 0.4, (FLOOR, TABLE), (0.0, 0.0, 0.0), **SUPER)
    x0 = np.array([0.0, 0.5 * HEIGHT, 0.0, 2.0, -1.0, 0.0])
    run = hc.simulate(system, ("open", "open"), x0, (0.0, 0.8))
    assert [event.guards[0][:5] for event in run.guard_events] == ["rim 0", "rim 1", "rim 0"]
    assert run.final_state[3] == pytest.approx(v, rel=1e-9)
    assert abs(run.final_state[5]) * RADIUS == pytest.approx(abs(spin), rel=1e-9)
    energies = [system.robot.energy(x[:3], x[3:])[0] for x in (x0, run.final_state)]
    assert energies[1] == pytest.approx(energies[0], rel=1e-12)


@pytest.mark.parametrize("tangential", [0.0, 0.4, 1.0])
def test_a_ball_in_space_keeps_its_angular_momentum_about_the_contact(tangential):
    """What friction can hold leaves with -e_t of the velocity of the contact."""
    law = SUPER | {"tangential_restitution": tangential, "restitution": 0.6}
    dynamics = ball("floating", 0.4, **law).dynamics
    q = dynamics.robot.neutral()
    q[2] = RADIUS
    v = np.array([1.0, -0.5, -2.0, 3.0, 20.0, -7.0])
    after = impact(dynamics, q, v, (0,)).velocity_after
    arm = np.array([0.0, 0.0, -RADIUS])
    slid, slides = (w[:3] + np.cross(w[3:], arm) for w in (v, after))
    np.testing.assert_allclose(slides[:2], -tangential * slid[:2], atol=1e-12)
    assert slides[2] == pytest.approx(0.6 * 2.0)
    about = [0.4 * RADIUS**2 * w[3:] + np.cross(-arm, w[:3]) for w in (v, after)]
    np.testing.assert_allclose(about[1], about[0], atol=1e-13)


def test_a_ball_that_friction_cannot_hold_slides_on():
    """|Lambda_t| = mu Lambda_n = mu (1 + e) m v_n against xi_t, which is along v_t."""
    mu, e, speed, fall = 0.1, 0.5, 3.0, 1.0
    law = {"restitution": e, "friction": mu, "tangential_restitution": 0.9}
    dynamics = ball("sagittal", 0.5, **law).dynamics
    result = impact(dynamics, np.array([0.0, RADIUS, 0.0]), np.array([speed, -fall, 0.0]), (0,))
    assert result.states == ("slip+",)
    assert result.velocity_after[0] == pytest.approx(speed - mu * (1.0 + e) * fall)


@pytest.mark.parametrize("seed", range(12))
def test_no_energy_is_gained_at_equal_coefficients_and_the_loss_has_its_closed_form(seed):
    """1/2 L' D G L + sum mu L_n |xi_t| / (1 + e_t), for all contacts of a body on a plane."""
    rng = np.random.default_rng(seed)
    given = random_body(rng, bool(seed % 2), 1 + seed % 3, 1.0, 1.0)
    e = rng.uniform()
    for equal in (True, False):
        contacts = [
            replace(
                c,
                restitution=e if equal else c.restitution,
                tangential_restitution=e if equal else float(rng.uniform()),
            )
            for c in given.contacts
        ]
        dynamics = ContactDynamics(given.robot, contacts, terms="pinocchio")
        q, v = random_motion(rng, dynamics)
        result = impact(dynamics, q, v, tuple(range(len(contacts))))
        rows = dynamics.contact_set.jacobian(q)
        delassus = rows @ np.linalg.solve(dynamics.robot.mass_matrix(q), rows.T)
        forces = np.zeros(len(rows))
        forces[: len(contacts)] = result.impulses
        rubbed = 0.0
        for i, tangents in enumerate(dynamics.contact_set.tangents):
            forces[tangents] = result.friction_impulses[i, : len(tangents)]
            speed = np.linalg.norm(result.law_rates[tangents])
            pressed = contacts[i].friction * result.impulses[i]
            rubbed += pressed * speed / (1.0 + contacts[i].tangential_restitution)
        d = (1.0 - result.restitution) / (1.0 + result.restitution)
        energy = dynamics.robot.energy(q, v)[0]
        loss = 0.5 * forces @ (d * (delassus @ forces)) + rubbed
        assert result.energy_loss == pytest.approx(loss, abs=1e-8 * energy)
        if equal:
            assert result.energy_loss >= -1e-9 * energy


@pytest.mark.parametrize("name", ROUGH)
@pytest.mark.parametrize("seed", range(2))
def test_the_derivative_of_an_impact(name, seed):
    """Also where contacts slide in a surface, and friction turns with xi_t."""
    given = ROUGH[name][0]()
    contacts = [replace(c, tangential_restitution=0.5) for c in given.contacts]
    dynamics = ContactDynamics(given.robot, contacts, terms="pinocchio")
    robot, at = dynamics.robot, (0, 1)
    q, v, _ = random_state(dynamics, seed)
    result = impact(dynamics, q, v, at)
    d = differentiate_impact(dynamics, q, v, result)

    def outcome(q, v):
        r = impact(dynamics, q, v, at)
        return np.concatenate([r.velocity_after, r.impulses, r.friction_impulses.ravel()])

    friction_z = d.friction_impulses_z.reshape(2 * len(contacts), -1)
    by_q, by_v = np.split(np.vstack([d.velocity_z, d.impulses_z, friction_z]), 2, axis=1)
    assert_derivative(lambda z: outcome(robot.integrate(q, z), v), by_q)
    assert_derivative(lambda z: outcome(q, v + z), by_v)


def thrown(friction, restitution=0.5, tangential=0.5, surface=SLOPE):
    law = {"restitution": restitution, "friction": friction, "tangential_restitution": tangential}
    return ball("sagittal", 0.5, (surface,), **law)


START = np.array([0.0, 0.25, 0.1, 0.8, 0.0, -5.0])


@pytest.mark.parametrize(
    ("friction", "restitution"),
    [(0.1, 0.5), (2.0, 0.5), (2.0, 0.0)],
    ids=["slips", "holds", "stays"],
)
def test_the_whole_flow_by_start_and_by_both_coefficients(friction, restitution):
    """Through two bounces, or one after which the disc slides the other way on the slope."""
    span, mode = (0.0, 0.45 if restitution else 0.25), ("open",)
    system = thrown(friction, restitution)
    run = hc.simulate(system, mode, START, span, **TIGHT)
    matrix = hc.linearize(system, run, **TIGHT).state_transition
    rng = np.random.default_rng(0).normal(size=(6, 2))
    seen = differences(system, mode, START, span, 1e-5, rng, **TIGHT)
    np.testing.assert_allclose(seen, matrix @ rng, atol=1e-6 * np.abs(matrix).max())
    names = ["tangential_restitution:rim 0", "restitution:rim 0"][: 1 + (restitution > 0.0)]
    by = parameter_derivatives(system.robot, system.contacts, names)
    found = parameter_sensitivity(system, run, by, **TIGHT).matrix
    for column, (e_t, e_n) in zip(found.T, np.eye(2), strict=False):
        ends = [
            hc.simulate(
                thrown(friction, restitution + h * e_n, 0.5 + h * e_t), mode, START, span, **TIGHT
            ).final_state
            for h in (1e-5, -1e-5)
        ]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, column, atol=1e-6)


@pytest.mark.parametrize("restitution", [0.5, 0.0])
def test_both_sides_of_the_border_of_stick_and_slip(restitution):
    """A disc stops to slip where (1 + e_t) |v_t| / (1 + 1 / share) = mu (1 + e_n) v_n."""
    mu, tangential, share, end = 0.2, 0.5, 0.5, 0.3
    system = thrown(mu, restitution, tangential, FLOOR)
    fall = np.sqrt(2.0 * 9.81 * (0.25 - RADIUS))
    speed = mu * (1.0 + restitution) * fall * (1.0 + 1.0 / share) / (1.0 + tangential)
    x0 = np.array([0.0, 0.25, 0.0, speed, 0.0, 0.0])
    run = hc.simulate(system, ("open",), x0, (0.0, end), **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    assert not lin.is_linear
    for dx in np.random.default_rng(0).normal(size=(6, 6)):
        step = 1e-6
        moved = hc.simulate(system, ("open",), x0 + step * dx, (0.0, end), **TIGHT).final_state
        np.testing.assert_allclose((moved - run.final_state) / step, lin.derivative(dx), atol=2e-4)


def test_time_stepping_and_batches_bounce_alike():
    """Steps of 1e-4 s are of first order; a batch is the same simulator."""
    for friction in (0.1, 2.0):
        system, span = thrown(friction), (0.0, 0.45)
        run = hc.simulate(system, ("open",), START, span)
        stepped = time_stepping(system.robot, system.contacts, START, span, step=1e-4)
        np.testing.assert_allclose(stepped.final_state, run.final_state, rtol=5e-3, atol=5e-3)
        batch = hc.simulate_batch(system, ("open",), [START, START], span)
        np.testing.assert_allclose(batch.states[1], run.final_state, atol=1e-9)


def test_planned_impacts_are_those_of_the_law():
    system = thrown(2.0)
    made = build_impact_map(system.robot, system.contacts, ("stick",))
    x = np.concatenate((START[:3], [0.8, -2.0, -5.0]))
    after = np.array(ca.Function("after", [made.x], [made.after])(x)).ravel()
    found = impact(system.dynamics, x[:3], x[3:], (0,))
    assert found.states == ("stick",)
    np.testing.assert_allclose(after[3:], found.velocity_after, atol=1e-12)
    with pytest.raises(InputError, match=r"is closed in phases\[0\].*tangential_restitution"):
        Task(system, [Phase(("stick",), (), (0.1, 0.2))])


def test_impacts_that_slide_in_space_are_not_planned():
    """Friction opposes the velocity after the impact: for a skew body not the one before it."""
    link = (
        '<link name="a"><inertial><origin xyz="0.1 0.05 0.2"/><mass value="1"/>'
        '<inertia ixx="0.02" ixy="0.002" ixz="0" iyy="0.03" iyz="0" izz="0.025"/></inertial></link>'
    )
    robot = Robot.from_urdf(f'<robot name="r">{link}</robot>', root="floating")
    system = contact_system(robot, [Contact("c", "a", Plane((0, 0, 0), (0, 0, 1)), friction=0.2)])
    before = np.array([1.0, 0.5, -1.0, 0.0, 0.0, 0.0])
    found = impact(system.dynamics, robot.neutral(), before, (0,))
    assert found.states == found.modes == ("slip",)
    friction, slip = found.friction_impulses[0], found.velocity_after[:2]
    # along the velocity after it, to the rounding of a solve, and far from that before it
    assert friction @ slip == pytest.approx(-np.linalg.norm(friction) * np.linalg.norm(slip))
    assert abs(np.cross(np.append(friction, 0.0), np.append(before[:2], 0.0))[2]) > 0.01
    with pytest.raises(InputError, match=r"contact 'c' slide in a surface.*not known before"):
        build_impact_map(robot, system.contacts, ("slip",))


def test_what_has_no_tangential_restitution_is_refused():
    with pytest.raises(InputError, match="tangential_restitution must be at most 1"):
        thrown(0.5, tangential=1.5)
    with pytest.raises(InputError, match="must be 0 without friction"):
        thrown(0.0)
    with pytest.raises(InputError, match=r"tangential_restitution .* must be 0 to be relaxed"):
        hc.relax(thrown(0.5), 1e-3)
