"""Contacts guessed from the collision shapes of a URDF."""

import pickle
from importlib.metadata import files
from itertools import product

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Robot, contact_system, contacts_from, equilibrium
from hybridctl.mechanics.contacts.mesh_soles import find_sole_face

BODY = """<inertial><mass value="1"/>
<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>"""
SPHERE = (
    '<collision><origin xyz="0 0 -0.1"/><geometry><sphere radius="0.02"/></geometry></collision>'
)
BOX = '<collision><geometry><box size="0.2 0.1 0.04"/></geometry></collision>'


def legged(name, collision, turned="0 0 0"):
    """A trunk with one leg, whose last link is fixed to the leg and turned."""
    return f"""<robot name="r"><link name="trunk">{BODY}{BOX}</link>
<link name="leg">{BODY}{SPHERE}</link><link name="{name}">{collision}</link>
<joint name="hip" type="revolute"><parent link="trunk"/><child link="leg"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="1" velocity="1"/></joint>
<joint name="end" type="fixed"><parent link="leg"/><child link="{name}"/>
<origin xyz="0 0 -0.3" rpy="{turned}"/></joint></robot>"""


def found(text, **options):
    return contacts_from(Robot.from_urdf(text, root="floating"), **options)


def test_a_sphere_makes_a_round_contact():
    (contact,) = found(legged("left_foot", SPHERE), friction=0.4, restitution=0.1)
    assert (contact.name, contact.frame, contact.radius) == ("left_foot", "left_foot", 0.02)
    np.testing.assert_array_equal(contact.offset, (0.0, 0.0, -0.1))
    assert (contact.friction, contact.restitution) == (0.4, 0.1)


@pytest.mark.parametrize("turned", ["0 0 0", "3.14159265 0 0", "0 1.57079633 0"])
def test_a_box_makes_a_contact_at_each_lowest_corner(turned):
    robot = Robot.from_urdf(legged("sole", BOX, turned), root="floating")
    contacts = contacts_from(robot)
    assert [c.name for c in contacts] == [f"sole {i}" for i in (1, 2, 3, 4)]
    gaps = contact_system(robot, contacts).dynamics.gaps(robot.neutral())
    down = 0.1 if turned == "0 1.57079633 0" else 0.02  # half of the side that points down
    np.testing.assert_allclose(gaps, -0.3 - down, atol=1e-8)  # angles have nine digits


def test_a_foot_without_shapes_makes_a_point_at_its_origin():
    (contact,) = found(legged("toe", ""))
    assert (contact.radius, contact.offset.tolist()) == (0.0, [0.0, 0.0, 0.0])
    assert (contact.friction, contact.restitution) == (0.7, 0.0)


def test_links_at_ends_serve_where_no_name_says_foot():
    (contact,) = found(legged("tip", SPHERE))
    assert contact.name == "tip"


def test_what_was_taken_is_printed():
    text = repr(found(legged("left_foot", SPHERE)))
    assert text == "left_foot: sphere of 0.02 m at (0, 0, -0.1) m in left_foot"


def test_nothing_found_says_so():
    with pytest.raises(InputError, match=r"these are \['tip'\]: name its contacts by hand"):
        found(legged("tip", ""))
    robot = Robot(Robot.from_urdf(legged("tip", "")).model)
    with pytest.raises(InputError, match="must be built from a URDF or MJCF file"):
        contacts_from(robot)


MJCF = """<mujoco><worldbody><geom type="plane" size="1 1 1" pos="0 0 -0.2" {plane}/>
<body name="trunk"><freejoint/><geom type="box" size="0.2 0.1 0.1"/><body name="leg">
<joint name="hip" axis="0 1 0"/>{geom}</body></body></worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("geom", "offsets", "radius"),
    [
        ('<geom size="0.02" pos="0 0 -0.1"/>', [(0, 0, -0.1)], 0.02),
        ('<geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.3"/>', [(0, 0, -0.3)], 0.02),
        (
            '<geom type="capsule" size="0.02" fromto="-0.1 0 -0.3 0.2 0 -0.3"/>',
            [(-0.1, 0, -0.3), (0.2, 0, -0.3)],
            0.02,
        ),
        (
            '<geom type="box" size="0.1 0.05 0.02" pos="0 0 -0.1"/>',
            [(x, y, -0.12) for x in (-0.1, 0.1) for y in (-0.05, 0.05)],
            0.0,
        ),
    ],
)
def test_contacts_of_an_mjcf_touch_its_plane(geom, offsets, radius):
    """A leg that is one capsule touches with its lower end, one that lies level with both."""
    contacts = contacts_from(Robot.from_mjcf(MJCF.format(plane="", geom=geom)))
    found = sorted(tuple(contact.offset.tolist()) for contact in contacts)
    np.testing.assert_allclose(found, sorted(offsets), atol=1e-14)
    assert {contact.radius for contact in contacts} == {radius}
    for contact in contacts:
        np.testing.assert_array_equal(contact.surface.point, (0.0, 0.0, -0.2))


def test_shapes_that_only_are_drawn_make_no_contact():
    geom = '<geom size="0.02" contype="0" conaffinity="0" group="2"/>'
    with pytest.raises(InputError, match="name its contacts by hand"):
        contacts_from(Robot.from_mjcf(MJCF.format(plane="", geom=geom)))


@pytest.mark.parametrize(
    ("name", "radius"), [("solo12", 0.0), ("go1", 0.02), ("anymal", 0.031), ("b1", 0.04)]
)
def test_public_quadrupeds_have_four_feet(name, radius):
    urdf = next(f for f in files("example-robot-data") if f.name == f"{name}.urdf").locate()
    contacts = found(urdf)
    assert len(contacts) == 4
    assert {contact.radius for contact in contacts} == {radius}


def test_a_sensor_on_a_foot_is_no_foot_of_its_own():
    urdf = legged("left_foot", SPHERE).replace(
        "</robot>",
        f"""<link name="left_foot_imu">{BODY}</link><joint name="bolt" type="fixed">
<parent link="left_foot"/><child link="left_foot_imu"/></joint></robot>""",
    )
    (contact,) = found(urdf)
    assert contact.frame == "left_foot"


@pytest.mark.parametrize(
    ("name", "link", "length", "width", "height"),
    [
        ("icub_reduced", "foot", 0.129, 0.059, 1e-3),
        ("talos_reduced", "leg_right_6_link", 0.2, 0.124, 1e-3),
        ("romeo_small", "ankle", 0.191, 0.098, 1e-3),
    ],
)
def test_a_sole_that_is_a_mesh_has_corners(name, link, length, width, height):
    """Two feet with four corners each, longer than wide, at the height of the sole's frame.

    Meshes of icub have y up, which nothing but their files says: unturned its feet point sideways.
    """
    urdf = next(f for f in files("example-robot-data") if f.name == f"{name}.urdf").locate()
    robot = Robot.from_urdf(urdf, root="floating")
    contacts = contacts_from(robot)
    assert len(contacts) == 8
    for foot in (contacts[:4], contacts[4:]):
        (frame,) = {contact.frame for contact in foot}
        sole = foot[0].name.removesuffix(" 1")
        assert [contact.name for contact in foot] == [f"{sole} {k}" for k in (1, 2, 3, 4)]
        places = [robot.point_position(robot.neutral(), frame, c.offset) for c in foot]
        np.testing.assert_allclose(np.ptp(places, axis=0), (length, width, 0.0), atol=1e-3)
        origin = robot.point_position(robot.neutral(), sole)
        np.testing.assert_allclose([p[2] for p in places], origin[2], atol=height + 1e-3)
    assert frame.endswith(link)
    first = repr(contacts).splitlines()[0]
    assert "(a corner of its mesh, whose" in first


def test_talos_stands_on_the_corners_of_its_meshes():
    """All eight press, and together they carry the weight."""
    urdf = next(f for f in files("example-robot-data") if f.name == "talos_reduced.urdf").locate()
    robot = Robot.from_urdf(urdf, root="floating")
    angles = {3: -0.4, 4: 0.8, 5: -0.4}
    q = robot.posture(
        {f"leg_{side}_{k}_joint": a for side in ("left", "right") for k, a in angles.items()}
    )
    system = contact_system(robot, contacts_from(robot))
    q[2] -= system.dynamics.gaps(q).min()
    found = equilibrium(system, ("stick",) * 8, q)
    assert found.normal.min() > 0.0
    assert found.normal.sum() == pytest.approx(9.81 * robot.mass, rel=1e-6)


def test_a_round_foot_is_a_point_and_says_why():
    urdf = next(f for f in files("example-robot-data") if f.name == "solo12.urdf").locate()
    contacts = found(urdf)
    assert {contact.name for contact in contacts} == {"FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT"}
    assert "(its origin: its mesh has no flat sole)" in repr(contacts)
    assert "(its origin: no shape collides)" in repr(found(legged("toe", "")))
    assert pickle.loads(pickle.dumps(contacts)).reasons == contacts.reasons


def test_the_sole_is_the_lowest_face_within_two_millimetres():
    """An octagon of 20 by 10 cm, whose corners are cut by 1 cm, and a rim 5 mm higher."""
    octagon = [(x, y) for x, y in product((-0.1, 0.1), (-0.04, 0.04))]
    octagon += [(x, y) for x, y in product((-0.09, 0.09), (-0.05, 0.05))]
    sole = np.array([(*point, 0.001 * (k % 2)) for k, point in enumerate(octagon)])
    rim = np.array([(x, y, 0.005) for x, y in product((-0.2, 0.2), repeat=2)])
    face = find_sole_face(np.vstack([sole, rim]), np.array([0.0, 0.0, 1.0]))
    assert face.corners.shape == (4, 3)
    assert face.all_corners == 8
    np.testing.assert_array_equal(face.corners[:, 2], 0.0)
    assert {tuple(np.abs(c[:2])) for c in face.corners} <= {(0.1, 0.04), (0.09, 0.05)}
    # Each cut corner is a triangle of 0.5 cm^2 of 198; an edge between two cuts is the next loss.
    assert 0.8 < face.share < 1.0


@pytest.mark.parametrize("size", [0.0, 0.01])
def test_a_tip_or_an_edge_is_no_sole(size):
    points = np.array([(-size, 0.0, 0.0), (size, 0.0, 0.0), (0.0, size, 0.0), (0.0, 0.0, 1.0)])
    assert find_sole_face(points, np.array([0.0, 0.0, 1.0])) is None


def test_a_mesh_of_an_mjcf_has_corners_too():
    """A foot of 20 by 10 by 4 cm, 30 cm below the trunk."""
    corners = " ".join(f"{x} {y} {z}" for x, y, z in product((-0.1, 0.1), (-0.05, 0.05), (0, 0.04)))
    text = f"""<mujoco><asset><mesh name="sole" vertex="{corners}"/></asset><worldbody>
<body name="trunk"><freejoint/><geom type="box" size="0.2 0.1 0.1"/>
<body name="foot" pos="0 0 -0.3"><joint name="ankle" axis="0 1 0"/>
<geom type="mesh" mesh="sole"/></body></body></worldbody></mujoco>"""
    contacts = contacts_from(Robot.from_mjcf(text))
    places = sorted(tuple(np.round(contact.offset, 6)) for contact in contacts)
    assert places == [(x, y, 0.0) for x in (-0.1, 0.1) for y in (-0.05, 0.05)]
    assert repr(contacts).splitlines()[0].endswith("m in foot (a corner of its mesh)")


def test_a_sole_without_shapes_takes_the_box_that_it_lies_in():
    """Talos with boxes: 0.21 by 0.13 m, which end 3 mm below the origin of the sole."""
    name = "talos_reduced_box.urdf"
    urdf = next(f for f in files("example-robot-data") if f.name == name).locate()
    contacts = found(urdf)
    assert [c.frame for c in contacts] == ["leg_left_6_link"] * 4 + ["leg_right_6_link"] * 4
    corners = np.array([c.offset for c in contacts[:4]])
    np.testing.assert_allclose(np.ptp(corners, axis=0), (0.21, 0.13, 0.0), atol=1e-15)
    np.testing.assert_allclose(corners[:, 2], -0.11, atol=1e-15)


def test_a_sole_takes_the_box_of_a_link_beside_it():
    """A pad of 4 cm, fixed to the leg 1 cm above the origin of the sole, which lies in it."""
    urdf = legged("sole", "").replace(
        "</robot>",
        f"""<link name="pad">{BODY}{BOX}</link><joint name="glue" type="fixed">
<parent link="leg"/><child link="pad"/><origin xyz="0 0 -0.29"/></joint></robot>""",
    )
    contacts = found(urdf)
    assert [(c.name, c.frame) for c in contacts] == [(f"sole {k}", "pad") for k in (1, 2, 3, 4)]
