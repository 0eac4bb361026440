"""Terms of points on planes of the world, against those of any contacts, on random robots."""

import pickle

import numpy as np
import pinocchio as pin
import pytest

from hybridctl.mechanics import Contact, Plane, Sphere
from hybridctl.mechanics.contact_law.linear_equations import LeastNormEquations
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.terms.flat_terms import FlatTerms
from hybridctl.mechanics.terms.general_terms import GeneralTerms
from mechanics.random_robots import random_robot

AGREE = 1e-10  # of the largest entry or one, as for the generated terms, and for their reasons


def on_planes(seed):
    """A robot of two joints at least, with one to four points on planes, some of them rough."""
    pin.seed(seed)
    rng = np.random.default_rng(seed)
    robot, _ = random_robot(rng)
    while robot.nv < 2:
        robot, _ = random_robot(rng)
    contacts = [
        Contact(
            f"point{i}",
            str(rng.choice(robot.link_names)),
            Plane(rng.normal(size=3), rng.normal(size=3)),
            offset=rng.normal(size=3),
            friction=float(rng.choice([0.0, 0.5])),
        )
        for i in range(rng.integers(1, 5))
    ]
    return robot, contacts, rng


@pytest.mark.parametrize("seed", range(40))
def test_all_terms_are_those_of_any_contacts(seed):
    robot, contacts, rng = on_planes(seed)
    rows = ContactSet(robot, contacts)
    ground = rows.find_points_on_planes()
    assert ground is not None
    flat = pickle.loads(pickle.dumps(FlatTerms(robot, ground, rows.owner)))
    general = GeneralTerms(robot, rows)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    v, a = rng.normal(size=(2, robot.nv))
    u, forces = rng.normal(size=robot.nu), rng.normal(size=len(rows.owner))
    for name, at in {
        "values": (q, v, u),
        "derivatives": (q, v, a, forces),
        "impulse_derivatives": (q, a, forces),
    }.items():
        found, expected = getattr(flat, name)(*at), getattr(general, name)(*at)
        for part in found._fields:
            right = getattr(expected, part)
            scale = max(1.0, float(np.abs(right).max(initial=0.0)))
            np.testing.assert_allclose(
                getattr(found, part), right, rtol=0.0, atol=AGREE * scale, err_msg=part
            )


@pytest.mark.parametrize("seed", range(20))
def test_the_gradient_of_impulses_is_the_sum_of_their_derivatives(seed):
    """Of three at random, of which one is of forces that move nothing."""
    robot, contacts, rng = on_planes(seed)
    rows = ContactSet(robot, contacts)
    q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
    z, moved = rng.normal(size=(2, 3, robot.nv))
    forces, along = rng.normal(size=(2, 3, len(rows.owner)))
    z[1] = along[1] = 0.0
    flat = FlatTerms(robot, rows.find_points_on_planes(), rows.owner)
    general = GeneralTerms(robot, rows)
    each = [general.impulse_derivatives(q, *one) for one in zip(z, forces, strict=True)]
    parts = [y @ d.momentum - w @ d.rates for y, d, w in zip(moved, each, along, strict=True)]
    size = AGREE * max(1.0, float(np.abs(parts).max()))
    for terms in (flat, general):
        found = terms.impulse_gradient(q, z, forces, moved, along)
        np.testing.assert_allclose(found, sum(parts), rtol=0.0, atol=size)


def feet(seed):
    """A floating or fixed robot with four rough points on one or two of its links."""
    robot, _, rng = on_planes(seed)
    links = rng.choice(robot.link_names, size=2)
    contacts = [
        Contact(
            f"point{i}",
            str(links[rng.integers(2)]),
            Plane(rng.normal(size=3), rng.normal(size=3)),
            offset=rng.normal(size=3),
            friction=0.5,
        )
        for i in range(4)
    ]
    return robot, contacts, rng


def forces_on_bodies(robot, contacts):
    """How many forces at these points act on their bodies independently, each held alone."""
    of_bodies = {}
    for contact in contacts:
        frame = robot.frame(contact.frame)
        point = frame.position + frame.rotation @ contact.offset
        moments = [np.cross(point, d) for d in np.eye(3)]
        of_bodies.setdefault(frame.joint, []).append(np.hstack((np.eye(3), moments)))
    return sum(np.linalg.matrix_rank(np.vstack(rows)) for rows in of_bodies.values())


def test_loads_that_bodies_share_turn_as_rows_do():
    """D_q (J M^-1 J' y), by the terms of any contacts, is the same for loads that do nothing.

    Where such loads act on a body and another one undoes it there is no such rule.
    """
    met = {"shared": 0, "otherwise": 0}
    for seed in range(60):
        robot, contacts, rng = feet(seed)
        rows, closed = ContactSet(robot, contacts), (0, 1, 3) if seed % 2 else (0, 1, 2, 3)
        chosen = [*closed, *(row for i in closed for row in rows.tangents[i])]
        flat = FlatTerms(robot, rows.find_points_on_planes(), rows.owner)
        general = GeneralTerms(robot, rows)
        q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
        y = np.zeros(len(rows.owner))
        y[chosen] = rng.normal(size=len(chosen))
        jacobian = rows.jacobian(q)
        push = np.linalg.solve(robot.mass_matrix(q), jacobian.T)
        z, system = push @ y, LeastNormEquations((jacobian @ push)[np.ix_(chosen, chosen)])
        found = flat.load_turns(q, z, closed, system.rank)
        assert general.load_turns(q, z, closed, system.rank) is None
        on_bodies = forces_on_bodies(robot, [contacts[i] for i in closed])
        assert (found is not None) == (on_bodies == system.rank)
        if found is None:
            met["otherwise"] += 1
            continue
        d = general.impulse_derivatives(q, z, y)
        expected = d.rates - push.T @ d.momentum
        size = max(1.0, float(np.abs(expected).max()), float(np.abs(found).max()))
        met["shared"] += system.rank < len(chosen)
        projected = system.null.T @ (found - expected)[chosen]
        np.testing.assert_allclose(projected, 0.0, rtol=0.0, atol=1e-9 * size)
    assert min(met.values()) >= 10, met


@pytest.mark.parametrize("seed", range(3))
def test_other_contacts_are_not_on_the_ground(seed):
    robot, contacts, _ = on_planes(seed)
    frame, carrier = contacts[0].frame, robot.link_names[0]
    others = [
        Contact("ball", frame, Sphere((0.0, 0.0, -9.0), 1.0)),
        Contact("round", frame, Plane((0.0, 0.0, -9.0), (0.0, 0.0, 1.0)), radius=0.1),
    ]
    if carrier != frame:
        others.append(Contact("on a link", frame, contacts[0].surface, body=carrier))
    for other in others:
        assert ContactSet(robot, [contacts[0], other]).find_points_on_planes() is None
        terms = ContactDynamics(robot, [contacts[0], other], terms="pinocchio").terms
        assert isinstance(terms, GeneralTerms)
    assert isinstance(ContactDynamics(robot, contacts, terms="pinocchio").terms, FlatTerms)
