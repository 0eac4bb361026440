"""Symmetries of floating bases: shifts, turns and exchanges of limbs on quaternions."""

import numpy as np
import pytest
from hybridctl.robots import public

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.mechanics.base_motion import BaseMotion
from hybridctl.mechanics.limb_symmetry import limb_symmetry, motion_symmetry
from hybridctl.sensitivity.symmetry import FreeMotion

GROUND = {"x": ("root_joint", "x"), "y": ("root_joint", "y"), "turn": ("root_joint", "yaw")}
LEGS = {
    "solo12": (("HAA", "HFE", "KFE"), (("FL", "FR"), ("HL", "HR"))),
    "bolt": (("HAA", "HFE", "KFE", "ANKLE"), (("FL", "FR"),)),
}
# How far the published models are from their mirror images: mass matrix and bias, relative.
ASYMMETRY = {"solo12": 1e-3, "bolt": 1e-3}


def robot_and_symmetry(name, free=None):
    robot = Robot.from_urdf(public.urdf(name), root="floating")
    system = contact_system(robot, public.contacts(name), terms="pinocchio")
    joints, sides = LEGS[name]
    pairs = {
        f"{a}_{j}": f"{b}_{j}" for a, b in sides for j in joints if f"{a}_{j}" in robot.joint_names
    }
    names = [contact.name for contact in system.contacts]
    feet = {n: n.replace(a, b, 1) for a, b in sides for n in names if n.startswith(a)}
    symmetry = limb_symmetry(system, pairs, feet, free=free, tolerance=ASYMMETRY[name])
    return system, symmetry


def random_state(system, rng):
    robot = system.robot
    q = robot.integrate(robot.neutral(), 0.4 * rng.normal(size=robot.nv))
    return np.concatenate([q, rng.normal(size=robot.nv)])


def differences(space, function, x, size=1e-6):
    """Central differences of a map of states, between the tangent spaces."""
    columns = []
    for step in size * np.eye(space.ndx):
        ends = [function(space.integrate(x, sign * step)) for sign in (1.0, -1.0)]
        columns.append(space.difference(ends[1], ends[0]) / (2.0 * size))
    return np.array(columns).T


@pytest.mark.parametrize("name", LEGS)
def test_an_exchange_of_legs_has_its_matrix_as_derivative_and_is_its_own_inverse(name):
    """Differences of size h err by h^2 and by rounding over h, some 1e-9 at h = 1e-6."""
    (system, symmetry), rng = robot_and_symmetry(name), np.random.default_rng(0)
    space, x = system.space, random_state(system, rng)
    found = differences(space, symmetry.image, x)
    np.testing.assert_allclose(found, symmetry.matrix, rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(symmetry.image(symmetry.image(x)), x, rtol=0.0, atol=1e-14)
    np.testing.assert_allclose(
        symmetry.matrix @ symmetry.matrix, np.eye(space.ndx), rtol=0.0, atol=1e-14
    )


@pytest.mark.parametrize("name", LEGS)
@pytest.mark.parametrize("closed", [(), (0,)])
def test_the_field_of_a_mirrored_state_is_the_mirrored_field(name, closed):
    """Up to the asymmetry of the published model."""
    (system, symmetry), rng = robot_and_symmetry(name), np.random.default_rng(1)
    x, u = random_state(system, rng), rng.normal(size=system.robot.nu)
    key = tuple("stick" if i in closed else "open" for i in range(len(system.contacts)))
    field = system.mode(key).calc(0.0, x, u).field
    mirrored = system.mode(symmetry.mode(key)).calc(
        0.0, symmetry.image(x), symmetry.inputs(len(u)) @ u
    )
    error = np.linalg.norm(mirrored.field - symmetry.matrix @ field) / np.linalg.norm(field)
    assert error < 10.0 * ASYMMETRY[name], error


@pytest.mark.parametrize("way", ["x", "y", "yaw"])
def test_a_shift_or_turn_has_its_direction_keeps_perturbations_and_maps_motions(way):
    (system, _), rng = robot_and_symmetry("solo12"), np.random.default_rng(2)
    space, x, u = system.space, random_state(system, rng), rng.normal(size=12)
    motion = BaseMotion.of(system.robot, "root_joint", way)
    assert isinstance(motion, FreeMotion)
    h = 1e-6
    slope = space.difference(motion.move(x, -h), motion.move(x, h)) / (2.0 * h)
    # The difference is in the tangent space at the first end, h away.
    np.testing.assert_allclose(slope, motion.direction(x), rtol=0.0, atol=1e-5)
    found = differences(space, lambda y: motion.move(y, 0.7), x)
    np.testing.assert_allclose(found, np.eye(space.ndx), rtol=0.0, atol=1e-8)
    both = motion.move(motion.move(x, 0.7), -0.2)
    np.testing.assert_allclose(both, motion.move(x, 0.5), rtol=0.0, atol=1e-14)
    mode = system.mode(("stick", "open", "open", "stick"))
    fields = [mode.calc(0.0, y, u).field for y in (x, motion.move(x, 0.7))]
    scale = np.abs(fields[0]).max()
    np.testing.assert_allclose(fields[1], fields[0], rtol=0.0, atol=1e-10 * scale)


def test_states_are_aligned_across_shifts_and_turns():
    (system, _), rng = robot_and_symmetry("solo12"), np.random.default_rng(3)
    symmetry, space = motion_symmetry(system, GROUND), system.space
    x, amounts = random_state(system, rng), np.array([1.3, -0.4, 2.5])
    moved = symmetry.add_shift(space, x, amounts)
    back, found = symmetry.align(space, x, moved)
    np.testing.assert_allclose(back, x, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(found, amounts, rtol=0.0, atol=1e-12)
    assert np.abs(symmetry.gap(space, x, moved)).max() < 1e-12
    # Another state leaves a gap across the directions, which moving it along does not change.
    other = space.integrate(moved, 0.05 * rng.normal(size=space.ndx))
    gap = symmetry.gap(space, x, other)
    assert np.abs(symmetry.find_directions(x).T @ gap).max() < 1e-10
    again = symmetry.gap(space, x, symmetry.add_shift(space, other, np.array([0.2, 0.1, 0.0])))
    np.testing.assert_allclose(again, gap, rtol=0.0, atol=1e-10)


def test_what_is_no_free_motion_is_refused():
    (system, _), robot = robot_and_symmetry("solo12"), public.system("solo12").robot
    with pytest.raises(UnknownNameError, match="free motion of a base"):
        BaseMotion.of(robot, "root_joint", "roll")
    with pytest.raises(InputError, match="must be floating"):
        BaseMotion.of(robot, "FL_HAA", "x")
    slope = Plane((0.0, 0.0, 0.0), (0.6, 0.0, 0.8))
    tilted = contact_system(system.robot, [Contact("foot", "FL_FOOT", slope, friction=0.5)])
    motion_symmetry(tilted, {"across": ("root_joint", "y")})
    with pytest.raises(InputError, match=r"gaps change by 0\.6 m"):
        motion_symmetry(tilted, {"along": ("root_joint", "x")})
    with pytest.raises(InputError, match="must not depend on the state here"):
        motion_symmetry(system, GROUND).directions  # noqa: B018
