"""Redundant contacts at impacts: one velocity, impulses of least norm, and their derivatives.

The reference for least norm is the pseudo-inverse of the map from forces to the momentum that they
must give, which an optimisation over all impulses inside the cones confirms.
"""

from itertools import combinations

import numpy as np
import pytest
from differences import assert_derivative
from hybridctl.robots import cube
from scipy.optimize import minimize

from hybridctl.mechanics import Contact, ContactDynamics, Plane
from hybridctl.mechanics.contact_law import enumerate_solutions
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.impacts.impact_derivatives import differentiate_impact
from mechanics.impacts import GROUND, impact_problem, violation

P = cube.CubeParameters()
HALF, MASS = P.half_width, P.mass
CORNERS = HALF * np.array([(-1, -1, -1), (-1, 1, -1), (1, -1, -1), (1, 1, -1)])
EDGES = HALF * np.array([(-1, 0, -1), (1, 0, -1), (0, -1, -1), (0, 1, -1)])
FACES = {"four": CORNERS, "eight": np.vstack([CORNERS, EDGES])}
# a foot without symmetry
FOOT = 0.05 * np.array(
    [(-1, -0.7, -1), (-0.9, 1, -1), (1.2, -1, -1), (1, 0.8, -1), (0.1, 0, -1), (0.2, 0.9, -1)]
)
# Momenta are of order one here and equations are solved by LU or singular values: some hundred
# roundings, times the condition of the contact matrix, about ten.
EXACT = 1e-11
# the solver certifies each equation to 1e-10 of the scale of the problem
LAW = 1e-10


def touching(
    points, mu=0.0, restitution=0.0, ground=GROUND, robot=None, frame="cube", stabilization=0.0
):
    """Points of the cube, or of a frame of another robot, against the ground."""
    mus = np.broadcast_to(mu, len(points))
    contacts = [
        Contact(f"{i}", frame, ground, offset=x, friction=m, restitution=restitution)
        for i, (x, m) in enumerate(zip(points, mus, strict=True))
    ]
    return ContactDynamics(robot or cube.robot(), contacts, stabilization=stabilization)


def standing(dynamics, height=HALF, yaw=0.0):
    """Flat on level ground."""
    robot = dynamics.robot
    q = robot.neutral()
    q[2] = height
    return robot.integrate(q, yaw * np.eye(robot.nv)[5])


def rows_of(dynamics, normal, friction):
    """Values of all rows (r,) from those of contacts."""
    tangents = dynamics.contact_set.tangents
    return np.concatenate([normal, *(f[: len(t)] for f, t in zip(friction, tangents, strict=True))])


def impulses_of(dynamics, result):
    return rows_of(dynamics, result.impulses, result.friction_impulses)


def hit(dynamics, q, v):
    return impact(dynamics, q, v, tuple(range(len(dynamics.contacts))))


def sticks(result):
    return set(result.states) == {"stick"} and not result.border


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("restitution", [0.0, 0.4])
def test_a_flat_drop_is_that_of_one_point_and_all_carry_the_same(face, mu, restitution):
    points, v = FACES[face], np.array([0.0, 0.0, -1.3, 0.0, 0.0, 0.0])
    dynamics = touching(points, mu, restitution)
    one = touching([(0.0, 0.0, -HALF)], mu, restitution)
    q = standing(dynamics, yaw=0.4)
    result, single = hit(dynamics, q, v), hit(one, q, v)
    np.testing.assert_allclose(result.velocity_after, single.velocity_after, atol=EXACT)
    equal = np.full(len(points), MASS * (1.0 + restitution) * 1.3 / len(points))
    np.testing.assert_allclose(result.impulses, equal, atol=EXACT)
    np.testing.assert_allclose(result.friction_impulses, 0.0, atol=EXACT)
    assert result.uniqueness != "disproven"


@pytest.mark.parametrize("face", FACES)
def test_sticking_corners_have_the_velocity_of_any_three_that_stick_alone(face):
    points = FACES[face]
    dynamics = touching(points, 0.9)
    q = standing(dynamics, yaw=0.4)
    rng = np.random.default_rng(1)
    compared = 0
    for _ in range(5):
        v = np.array([0.0, 0.0, -1.0, 0.0, 0.0, 0.0]) + 0.1 * rng.normal(size=6)
        result = hit(dynamics, q, v)
        assert sticks(result)
        assert result.uniqueness != "disproven"
        for three in combinations(range(4), 3):
            alone = hit(touching(points[list(three)], 0.9), q, v)
            if sticks(alone):
                compared += 1
                difference = alone.velocity_after - result.velocity_after
                assert np.abs(difference).max() <= EXACT
    assert compared >= 5


@pytest.mark.parametrize("face", FACES)
def test_a_straight_slide_has_the_velocity_of_any_three_corners_that_slide_alone(face):
    """v_t+ = v_t - mu (1 + e) |v_n| s; impulses share as 1 - mu s.x / h, so no corner lifts."""
    mu, e, fall, s = 0.1, 0.3, 1.0, np.array([0.6, 0.8])
    v = np.array([*(2.0 * s), -fall, 0.0, 0.0, 0.0])
    dynamics = touching(FACES[face], mu, e)
    q = standing(dynamics)
    result = hit(dynamics, q, v)
    expected = np.array([*((2.0 - mu * (1.0 + e) * fall) * s), e * fall, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(result.velocity_after, expected, atol=EXACT)
    assert set(result.states) == {"slip"}
    assert result.uniqueness != "disproven"
    compared = 0
    for three in combinations(range(4), 3):
        alone = hit(touching(CORNERS[list(three)], mu, e), q, v)
        if set(alone.states) == {"slip"} and not alone.border:
            compared += 1
            np.testing.assert_allclose(alone.velocity_after, expected, atol=EXACT)
    assert compared >= 1


def smallest(dynamics, q, momentum):
    """The impulses of least norm inside the cones that give this momentum, by optimisation."""
    rows, tangents, k = (
        dynamics.contact_set.jacobian(q),
        dynamics.contact_set.tangents,
        len(dynamics.contacts),
    )
    lengths = np.abs(rows).max(axis=0)
    used = lengths > 1e-9
    unit = momentum[2] / k
    give = rows.T[used] / lengths[used, None]
    target = momentum[used] / lengths[used] / unit
    mu = dynamics.friction

    def cones(f):
        friction = np.array([f[t] @ f[t] for t in tangents])
        return np.concatenate((f[:k], (mu * f[:k]) ** 2 - friction))

    found = minimize(
        lambda f: 0.5 * f @ f,
        np.concatenate((np.ones(k), np.zeros(len(rows) - k))),
        jac=lambda f: f,
        method="SLSQP",
        constraints=[
            {"type": "eq", "fun": lambda f: give @ f - target, "jac": lambda f: give},
            {"type": "ineq", "fun": cones},
        ],
        options={"ftol": 1e-15, "maxiter": 300},
    )
    assert found.success
    return unit * found.x


@pytest.mark.parametrize("mu", [0.0, 0.9])
@pytest.mark.parametrize("points", [CORNERS, FACES["eight"], FOOT], ids=["four", "eight", "foot"])
@pytest.mark.parametrize("seed", range(2))
def test_impulses_have_the_least_norm(mu, points, seed):
    dynamics = touching(points, mu, ground=GROUND)
    q = standing(dynamics, yaw=0.3)
    rng = np.random.default_rng(seed)
    v = np.array([0.0, 0.0, -1.0, 0.0, 0.0, 0.0]) + 0.1 * rng.normal(size=6)
    result = hit(dynamics, q, v)
    assert result.impulses.min() > 1e-3
    rows = dynamics.contact_set.jacobian(q)
    momentum = dynamics.robot.mass_matrix(q) @ (result.velocity_after - v)
    least = np.linalg.pinv(rows.T, rcond=1e-10) @ momentum
    found = impulses_of(dynamics, result)
    np.testing.assert_allclose(found, least, atol=EXACT)
    # SLSQP stops where the norm gains less than 1e-15, which leaves 1e-7 in impulses below one
    np.testing.assert_allclose(found, smallest(dynamics, q, momentum), atol=1e-6)


def test_impulses_of_sliding_corners_have_the_least_norm():
    """They push along normal - mu s, so least norm is meant of those combinations."""
    dynamics = touching(FOOT, 0.1)
    q = standing(dynamics, 0.05, yaw=0.3)
    v = np.array([1.0, 0.5, -1.0, 0.1, -0.05, 0.0])
    result = hit(dynamics, q, v)
    assert result.states == ("slip",) * 6
    rows, k = dynamics.contact_set.jacobian(q), 6
    mix = np.zeros((len(rows), k))
    for i, tangents in enumerate(dynamics.contact_set.tangents):
        slip = rows[tangents] @ result.velocity_after
        mix[i, i], mix[tangents, i] = 1.0, -0.1 * slip / np.linalg.norm(slip)
    momentum = dynamics.robot.mass_matrix(q) @ (result.velocity_after - v)
    least = mix @ np.linalg.pinv(rows.T @ mix, rcond=1e-10) @ momentum
    np.testing.assert_allclose(impulses_of(dynamics, result), least, atol=EXACT)


# name: (v, face, whether there is more than one velocity). Normal impulses +, -, -, + of the
# corners cancel; their friction cancels, too, where all slide alike or about the centre.
DROPS = {
    "straight": ([1.0, 0.5, -1.0, 0.0, 0.0, 0.0], "four", False),
    "turning": ([1.0, 0.5, -1.0, 0.0, 0.0, 1.0], "four", True),
    "about the centre": ([0.0, 0.0, -1.0, 0.0, 0.0, 40.0], "four", False),
    "straight, eight": ([1.0, 0.5, -1.0, 0.0, 0.0, 0.0], "eight", False),
    "turning, eight": ([1.0, 0.5, -1.0, 0.0, 0.0, 1.0], "eight", True),
}


@pytest.mark.parametrize("name", DROPS)
def test_a_family_is_reported_where_sliding_leaves_more_than_one_velocity(name):
    v, face, family = DROPS[name]
    dynamics = touching(FACES[face], 0.1)
    q = standing(dynamics)
    result = hit(dynamics, q, np.array(v))
    assert set(result.states) == {"slip"}
    assert (result.uniqueness == "disproven") == family
    problem = impact_problem(dynamics, q, np.array(v))
    assert violation(problem, impulses_of(dynamics, result)) <= LAW


def pushes(dynamics, q, result):
    """Momenta of unit normal impulses with friction, one per contact that slides (nv, k)."""
    rows, columns = dynamics.contact_set.jacobian(q), []
    for i, tangents in enumerate(dynamics.contact_set.tangents):
        slip = rows[tangents] @ result.velocity_after
        s = slip / np.linalg.norm(slip)
        columns.append(rows[i] - dynamics.friction[i] * s @ rows[tangents])
    return np.array(columns).T


def test_a_family_is_reported_exactly_where_pushes_are_independent_but_normals_are_not():
    """And a second velocity that obeys the law is then found by trying all states."""
    rng = np.random.default_rng(4)
    met = {True: 0, False: 0}
    for case in range(24):
        points = CORNERS[: 3 + case % 2]
        mu = 0.1 if case % 3 else rng.uniform(0.05, 0.15, len(points))
        dynamics = touching(points, mu)
        q = standing(dynamics)
        spin = [0.0, 0.0, rng.normal()] if case % 4 > 1 else np.zeros(3)
        v = np.array([*rng.uniform(1.0, 2.0, 2), -1.0, *spin])
        result = hit(dynamics, q, v)
        if "open" in result.states or result.border:
            continue
        assert set(result.states) == {"slip"}
        # directions that differ by the least spin here, some percent, give pushes as different
        independent = np.linalg.matrix_rank(pushes(dynamics, q, result), tol=1e-7)
        family = result.uniqueness == "disproven"
        assert family == (independent > 3)
        met[family] += 1
        problem = impact_problem(dynamics, q, v)
        solutions = enumerate_solutions(problem)
        assert (len(solutions) > 1) == family
        assert all(violation(problem, s.forces) <= LAW for s in solutions)
        if family:
            assert np.abs(solutions[0].rates - solutions[1].rates).max() > 1e-7
    assert min(met.values()) >= 4


ROCK = np.array([0.05, 0.02, -1.0, 0.1, -0.05, 0.1])
SLIDE = np.array([1.0, 0.4, -1.0, 0.0, 0.0, 0.0])
SPIN = np.array([1.0, 0.4, -1.0, 0.0, 0.0, 3.0])
# name: (points, mu, restitution, velocity, states); points that stick come to rest together only
# without restitution
IMPACTS = {
    "closed": (FOOT, 0.0, 0.0, ROCK, "closed"),
    "closed, bouncing": (FOOT, 0.0, 0.3, ROCK, "closed"),
    "points of no plane": (FOOT + 0.01 * np.eye(6, 3), 0.0, 0.3, ROCK, "closed"),
    "stick": (FOOT, 0.9, 0.0, ROCK, "stick"),
    "stick, eight": (FACES["eight"], 0.9, 0.0, ROCK, "stick"),
    "slip alike": (FACES["eight"], 0.1, 0.3, SLIDE, "slip"),
    "slip, four, velocity open": (FOOT[:4], 0.1, 0.0, SPIN, "slip"),
    "slip, eight, velocity open": (FACES["eight"], 0.1, 0.3, SPIN, "slip"),
}


@pytest.mark.parametrize("name", IMPACTS)
def test_derivatives_of_redundant_impulses(name):
    points, mu, restitution, v, state = IMPACTS[name]
    dynamics = touching(points, mu, restitution, ground=Plane((0, 0, 0), (0.05, 0.1, 1.0)))
    robot, q, count = dynamics.robot, standing(dynamics, yaw=0.4), len(points)
    base = hit(dynamics, q, v)
    assert set(base.states) == {state}
    assert not base.border
    assert (base.uniqueness == "disproven") == ("velocity open" in name)
    d = differentiate_impact(dynamics, q, v, base)

    def result(q, v):
        r = hit(dynamics, q, v)
        return np.concatenate([r.velocity_after, r.impulses, r.friction_impulses.ravel()])

    friction_z = d.friction_impulses_z.reshape(2 * count, -1)
    by_z = np.vstack([d.velocity_z, d.impulses_z, friction_z])
    by_q, by_v = np.split(by_z, 2, axis=1)
    assert_derivative(lambda z: result(robot.integrate(q, z), v), by_q)
    assert_derivative(lambda z: result(q, v + z), by_v)
