"""Contacts and surfaces are values: checked when made, compared, hashed, pickled."""

import pickle

import numpy as np
import pytest
from hybridctl.robots import ball

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, Sphere, contact_system
from hybridctl.mechanics.contacts.contact import check_contacts
from mechanics.models import PAIR

GROUND = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
KNOB = Sphere((0.0, 0.0, -0.2), 0.05)
FIXED = PAIR.replace(
    "</robot>",
    """<link name="tip"/><joint name="weld" type="fixed"><parent link="arm"/><child link="tip"/>
    </joint></robot>""",
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name of a contact must be a name, got ''"),
        ({"name": 3}, "name of a contact must be a name, got 3"),
        ({"frame": None}, "frame of a contact must be a name, got None"),
        ({"body": None}, "body of a contact must be a name, got None"),
        ({"surface": None}, "surface of contact 'foot' must be a Surface.*got None"),
        ({"surface": Plane}, "surface of contact 'foot' must be a Surface"),
        ({"surface": "floor"}, "must be a Surface"),
        ({"body": "ball"}, "must join two bodies.*'ball'"),
        ({"friction": "0.3"}, "friction must be a number, got '0.3'"),
        ({"friction": True}, "friction must be a number"),
        ({"friction": 0.3 + 0.0j}, "friction must be a number"),
        ({"friction": -0.1}, "friction must be at least 0"),
        ({"friction": [0.1, 0.2]}, "friction must be a number"),
        ({"restitution": 1.1}, "restitution must be at most 1"),
        ({"restitution": "1"}, "restitution must be a number"),
        ({"static_friction": "0.3"}, "static_friction must be a number"),
        ({"friction": 0.3, "static_friction": 0.2}, "static_friction must be at least 0.3"),
        ({"restitution_threshold": -1.0}, "restitution_threshold"),
        ({"offset": (0.0, 0.0)}, r"offset must have shape \(3\)"),
        ({"offset": 1.0}, "offset must have shape"),
        ({"offset": "000"}, "offset must be an array of numbers"),
        ({"surface": Sphere((0, 0, 0), 0.5, inside=True), "radius": 0.5}, "below that of its bowl"),
        ({"offset": np.ma.masked_less([1.0, -1.0, 0.0], 0.0)}, "offset must be an array"),
    ],
)
def test_a_contact_that_is_none_is_refused(changes, message):
    arguments = {"name": "foot", "frame": "ball", "surface": GROUND, **changes}
    with pytest.raises(InputError, match=message):
        Contact(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plane(None, (0.0, 0.0, 1.0)), "point"),
        (lambda: Plane((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), "normal must not be zero"),
        (lambda: Plane((0.0, 0.0, 0.0), "up!"), "normal must be an array of numbers"),
        (lambda: Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1j)), "normal must be an array of numbers"),
        (lambda: Sphere((0.0, 0.0), 1.0), "center must have shape"),
        (lambda: Sphere((0.0, 0.0, 0.0), 0.0), "radius must be greater than 0"),
        (lambda: Sphere((0.0, 0.0, 0.0), "1"), "radius must be a number"),
        (lambda: Sphere((0.0, 0.0, 0.0), 1.0, inside="no"), "inside must be True or False"),
    ],
)
def test_a_surface_that_is_none_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_equal_contacts_are_equal_and_have_one_hash():
    def foot(**changes):
        plane = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 2.0))
        return Contact("foot", "ball", plane, **{"offset": [0.0, 0.0, -0.1], **changes})

    assert foot() == foot()
    assert {foot(), foot(friction=0), foot(static_friction=np.float64(0.0))} == {foot()}
    others = [foot(friction=0.1), foot(offset=(0.0, 0.0, 0.1)), foot(body="arm"), None]
    assert all(foot() != other for other in others)
    assert Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)) == GROUND
    bowl = Sphere(KNOB.center, 0.05, inside=True)
    assert len({KNOB, Sphere(KNOB.center, KNOB.radius), bowl}) == 2
    assert KNOB != GROUND


@pytest.mark.parametrize("value", [GROUND, KNOB, Contact("a", "ball", KNOB, friction=0.3)])
def test_contacts_and_surfaces_survive_pickle(value):
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    ("contacts", "error", "message"),
    [
        (Contact("a", "cube", GROUND), InputError, "contacts must be a list of contacts, got Cont"),
        (None, InputError, "contacts must be a list of contacts, got None"),
        ("cube", InputError, r"contacts\[0\] must be a Contact, got 'c'"),
        ([GROUND], InputError, r"contacts\[0\] must be a Contact, got Plane"),
        ([], InputError, "at least one contact"),
        ([Contact("a", "cube", GROUND)] * 2, InputError, "contact names must differ"),
        ([Contact("a", "leg", GROUND)], UnknownNameError, "frame 'leg'"),
        ([Contact("a", "cube", GROUND, body="leg")], UnknownNameError, "body 'leg'"),
        ([Contact("a", "tip", KNOB, body="arm")], InputError, "'a' must join two bodies.*'tip'"),
    ],
)
def test_contacts_that_do_not_fit_the_robot_are_refused(contacts, error, message):
    with pytest.raises(error, match=message):
        check_contacts(Robot.from_urdf(FIXED, root="floating"), contacts)


def test_what_is_fixed_in_the_world_cannot_touch_it():
    robot = Robot.from_urdf(PAIR, root="fixed")
    with pytest.raises(InputError, match="must join two bodies that move against each other"):
        check_contacts(robot, [Contact("a", "cube", GROUND)])
    legs = [Contact("a", "arm", GROUND), Contact("b", "arm", KNOB, body="cube")]
    assert check_contacts(robot, iter(legs)) == tuple(legs)


@pytest.mark.parametrize("tilt", [1e-6, 3.7e-6, 5e-5])
def test_a_motion_that_is_almost_planar_is_refused(tilt):
    """As with rpy="1.5708 0 0": friction across the plane could not be told from nothing."""
    floor = Plane((0.0, 0.0, 0.0), (0.0, tilt, 1.0))
    with pytest.raises(InputError, match=f"'foot'.*leaves a plane by {tilt:.3g} rad"):
        contact_system(ball.robot(), [Contact("foot", "ball", floor, friction=0.5)])


@pytest.mark.parametrize(("tilt", "modes"), [(0.0, 4), (1e-3, 3)])
def test_a_motion_is_planar_or_clearly_not(tilt, modes):
    floor = Plane((0.0, 0.0, 0.0), (0.0, tilt, 1.0))
    system = contact_system(ball.robot(), [Contact("foot", "ball", floor, friction=0.5)])
    with pytest.raises(UnknownNameError) as error:
        system.mode(("none",))
    assert str(error.value).count("slip") == modes - 2
