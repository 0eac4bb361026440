"""Every analytic derivative against central differences on the manifold."""

import numpy as np
import pytest
from differences import assert_derivative

from mechanics.models import CASES, FLAT, random_state

# A configuration, a velocity and an input are drawn of unit scale, and derivatives are compared
# relative to their largest entry (at least 1), so 1e-7 is far above eps^(2/3) and below any
# error of substance.


@pytest.mark.parametrize(("name", "closed"), FLAT)
def test_acceleration_and_forces(name, closed):
    dynamics = CASES[name][0]()
    robot = dynamics.robot
    q, v, u = random_state(dynamics, seed=3)
    d = dynamics.acceleration_derivatives(q, v, u, closed)

    def result(q, v, u):
        r = dynamics.acceleration(q, v, u, closed)
        return np.concatenate([r.acceleration, r.forces])

    assert_derivative(
        lambda z: result(robot.integrate(q, z), v, u), np.vstack([d.acceleration_q, d.forces_q])
    )
    assert_derivative(lambda z: result(q, v + z, u), np.vstack([d.acceleration_v, d.forces_v]))
    assert_derivative(lambda z: result(q, v, u + z), np.vstack([d.acceleration_u, d.forces_u]))


@pytest.mark.parametrize(("name", "closed"), [case for case in FLAT if case[1]])
def test_impact_on_a_fixed_set(name, closed):
    dynamics = CASES[name][0]()
    robot = dynamics.robot
    q, v, _ = random_state(dynamics, seed=4)
    d = dynamics.impact_derivatives(q, v, closed)
    at, e = list(closed), dynamics.restitution[list(closed)]

    def result(q, v):
        """The same impact through the Delassus matrix, all contacts of the set acting."""
        mass, rows = robot.mass_matrix(q), dynamics.gap_jacobian(q)[at]
        delassus = rows @ np.linalg.solve(mass, rows.T)
        impulse = np.linalg.solve(delassus, -(1.0 + e) * (rows @ v))
        return np.concatenate([v + np.linalg.solve(mass, rows.T @ impulse), impulse])

    assert_derivative(
        lambda z: result(robot.integrate(q, z), v), np.vstack([d.velocity_q, d.impulses_q[at]])
    )
    assert_derivative(lambda z: result(q, v + z), np.vstack([d.velocity_v, d.impulses_v[at]]))


@pytest.mark.parametrize("name", CASES)
def test_gap_jacobian_and_drift(name):
    dynamics = CASES[name][0]()
    robot = dynamics.robot
    q, v, _ = random_state(dynamics, seed=5)
    assert_derivative(lambda z: dynamics.gaps(robot.integrate(q, z)), dynamics.gap_jacobian(q))
    # Along q(t) = q exp(v t) the body velocity is constant, so the gap rate changes by the drift.
    assert_derivative(
        lambda s: dynamics.gap_rates(robot.integrate(q, s[0] * v), v),
        dynamics.drift_acceleration(q, v)[:, None],
    )


@pytest.mark.parametrize("name", CASES)
def test_tangents_are_orthogonal_to_the_normal_and_of_unit_length(name):
    """J_t and J_n of a contact are three rows of one orthogonal frame times a point Jacobian."""
    dynamics = CASES[name][0]()
    q, _, _ = random_state(dynamics, seed=6)
    rows = np.concatenate([dynamics.gap_jacobian(q)[:, None], dynamics.tangent_jacobian(q)], axis=1)
    robot = dynamics.robot
    for contact, frame_rows in zip(dynamics.contacts, rows, strict=True):
        frame = robot.frame(contact.frame)
        body = robot.frame(contact.body)
        joints = [frame.joint, body.joint]
        motion = robot.motion(q, np.zeros(robot.nv), joints)
        pose = motion.poses[0]
        point = pose[:3, :3] @ (frame.position + frame.rotation @ contact.offset)
        point = point + pose[:3, 3]
        cross = np.array(
            [[0, -point[2], point[1]], [point[2], 0, -point[0]], [-point[1], point[0], 0]]
        )
        relative = (motion.jacobian[:3] - cross @ motion.jacobian[3:]) * (
            robot.supporting(joints[0]) - robot.supporting(joints[1])
        )
        # Rotating the world's axes into the frame's keeps the Gram matrix of the columns.
        np.testing.assert_allclose(
            frame_rows.T @ frame_rows, relative.T @ relative, atol=1e-13 * 10
        )
