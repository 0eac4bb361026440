"""Random bodies that hit a plane, and Coulomb's law written out a second time, as inequalities."""

import numpy as np
from hybridctl.robots.bodies import free_body

from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot
from hybridctl.mechanics.contact_law import CoulombProblem

GROUND = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
HALF = 0.05
CORNERS = HALF * (np.indices((2, 2, 2)).reshape(3, 8).T * 2.0 - 1.0)


def random_body(rng, planar, count, friction, restitution) -> ContactDynamics:
    """A body of 0.1 kg to 10 kg that touches with corners of a cube or with any points in it.

    Each is another body, for which generated functions would be made to be called once.
    """
    mass = 10.0 ** rng.uniform(-1.0, 1.0)
    inertia = mass * HALF**2 * rng.uniform(0.4, 0.8, 3)
    urdf = free_body("body", mass, tuple(inertia))
    robot = Robot.from_urdf(urdf, root="sagittal" if planar else "floating")
    places = [0, 1, 4, 5] if planar and count <= 4 else range(8)
    corners = CORNERS[rng.choice(places, count, replace=False)]
    points = corners if rng.random() < 0.5 else HALF * rng.uniform(-1.0, 1.0, (count, 3))
    contacts = [
        Contact(
            f"{i}",
            "body",
            GROUND,
            offset=point,
            friction=rng.uniform(0.0, friction),
            restitution=rng.uniform(0.0, restitution),
        )
        for i, point in enumerate(points)
    ]
    return ContactDynamics(robot, contacts, terms="pinocchio")


def random_motion(rng, dynamics):
    """A configuration, and a velocity whose size is 0.01 to 10."""
    robot = dynamics.robot
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    return q, 10.0 ** rng.uniform(-2.0, 1.0) * rng.normal(size=robot.nv)


def impact_problem(dynamics, q, v) -> CoulombProblem:
    """The impact of all contacts as a problem w = W f + c, from the Jacobians and M."""
    rows, count = dynamics.contact_set.jacobian(q), len(dynamics.contacts)
    delassus = rows @ np.linalg.inv(dynamics.robot.mass_matrix(q)) @ rows.T
    free = rows @ v
    free[:count] *= 1.0 + dynamics.restitution
    mu = dynamics.friction
    size = float((np.abs(rows) @ np.abs(v)).max())
    return CoulombProblem(
        delassus, free, dynamics.contact_set.tangents, mu, mu, (None,) * count, size
    )


def violation(problem, forces) -> float:
    """Largest violation of Coulomb's law by `forces`, in units of the problem's data.

    In terms of velocities and impulses only, without any states: nothing pulls or penetrates,
    nothing acts without contact, |f_t| <= mu f_n, and f_t is the point of that disk next to
    f_t - w_t, which says both that friction opposes sliding and that what holds rests. Velocities
    in units of the magnitude, impulses in units of what gives their contact that velocity.
    """
    rates = problem.delassus @ forces + problem.free
    speed = max(problem.magnitude, float(np.abs(problem.free).max()))
    diagonal, wrong = problem.delassus.diagonal(), [0.0]
    for i, (mu, rows) in enumerate(zip(problem.kinetic, problem.tangents, strict=True)):
        push = max(diagonal[i], *diagonal[rows], 0.0) / speed
        w_n, f_n = rates[i] / speed, forces[i] * push
        wrong += [-w_n, -f_n, min(w_n, f_n)]
        f_t = forces[rows] * push
        towards = f_t - rates[rows] / speed
        disk, length = mu * max(f_n, 0.0), float(np.linalg.norm(towards))
        if length > disk:
            towards = towards * (disk / length)
        wrong += [np.linalg.norm(f_t) - mu * f_n, np.linalg.norm(f_t - towards)]
    return float(max(wrong))
