"""A body that slides so that friction presses it down: no acceleration, or two of them.

A point at (x, -z) of a body with m = I = 1 slides in +x. With a_n = W_nn - mu W_nt < 0 the law
0 <= c + a_n lambda _|_ lambda >= 0, c = omega^2 z - g, has no solution for c < 0 and two for
c > 0: lambda = 0 and lambda = -c / a_n (Painleve). [RS] 2.3.4 excludes it, the software says so.
"""

import numpy as np
import pytest
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.errors import (
    GuardViolatedError,
    NoContactSolutionError,
    SeveralContactSolutionsError,
)
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, contact_system
from hybridctl.mechanics.selection import select_modes

G, X, Z = 9.81, 1.0, 1.0
NONE = np.zeros(0)


def sliding(mu, omega, x=X, speed=0.5):
    """The body with its point on the ground, sliding at `speed`, and turning at `omega`."""
    robot = Robot.from_urdf(free_body("body", 1.0, (1.0, 1.0, 1.0)), root="sagittal")
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    point = Contact("point", "body", ground, offset=(x, 0.0, -Z), friction=mu)
    dynamics = ContactDynamics(robot, [point])
    q = np.array([0.0, Z, 0.0])
    rows = dynamics.all.jacobian(q)
    v = np.array([0.0, 0.0, omega])
    v[:2] = np.linalg.solve(rows[[1, 0], :2], np.array([speed, 0.0]) - rows[[1, 0], 2] * omega)
    return dynamics, q, v


def presses(dynamics, q, mu):
    """W_nn - mu W_nt for sliding in +x."""
    w_n, w_t = dynamics.all.jacobian(q)
    return w_n @ w_n - mu * (w_n @ w_t)


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("mu", [0.5, 1.9, 2.1, 3.0])
@pytest.mark.parametrize("omega", [0.0, 2.0, 4.0])
def test_no_or_two_solutions_are_reported_exactly_where_the_closed_form_has_them(side, mu, omega):
    dynamics, q, v = sliding(mu, omega, side * X)
    a_n, c = presses(dynamics, q, mu), omega**2 * Z - G
    if a_n > 0.0:
        expected = "slip+" if c < 0.0 else "open"
        assert select_modes(dynamics, q, v, NONE, ("slip+",)) == (expected,)
    elif c < 0.0:
        with pytest.raises(NoContactSolutionError) as none:
            select_modes(dynamics, q, v, NONE, ("slip+",))
        assert none.value.problem.delassus[0, 0] == pytest.approx(1.0 + X**2)
        assert none.value.problem.free[0] == pytest.approx(c)
    else:
        with pytest.raises(SeveralContactSolutionsError) as several:
            select_modes(dynamics, q, v, NONE, ("slip+",))
        forces = sorted(solution.forces[0] for solution in several.value.solutions)
        np.testing.assert_allclose(forces, [0.0, -c / a_n], rtol=1e-10, atol=1e-12)


def test_a_run_does_not_start_where_the_contact_would_pull():
    mu = 3.0
    cases = [sliding(mu, 0.0, side * X) for side in (1.0, -1.0)]
    (dynamics, q, v) = min(cases, key=lambda case: presses(case[0], case[1], mu))
    system = contact_system(dynamics.robot, dynamics.contacts)
    with pytest.raises(GuardViolatedError, match="point opens"):
        hc.simulate(system, ("slip+",), np.concatenate([q, v]), (0.0, 1.0))
