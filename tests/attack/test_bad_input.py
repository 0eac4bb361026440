"""Bad arguments of robots, contacts and systems end in an error of hybridctl's that names them."""

import numpy as np
import pytest
from hybridctl.robots import block
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.mechanics import Contact, Plane, Robot, Sphere, contact_system, time_stepping

FLOOR = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
OPEN = ("open", "open")
START = [0.0, 0.3, 0.1, 0.0, 0.0, 0.0]
MASKED = np.ma.masked_array(START, mask=[True, *[False] * 5])

SIMULATORS = {
    "events": lambda x0: hc.simulate(block.system(), OPEN, x0, (0.0, 0.1)),
    "time stepping": lambda x0: time_stepping(block.robot(), block.contacts(), x0, (0.0, 0.1)),
}

CONTACTS = {
    "friction": [{"friction": "0.3"}, {"friction": np.nan}, {"friction": -0.1}, {"friction": 1j}],
    "restitution": [{"restitution": "1"}, {"restitution": 1.5}, {"restitution": None}],
    "static_friction": [{"friction": 0.3, "static_friction": 0.2}, {"static_friction": "0.3"}],
    "offset": [{"offset": (0.0, 0.0)}, {"offset": ("a", 0, 0)}, {"offset": (np.inf, 0, 0)}],
    "surface": [{"surface": None}, {"surface": "floor"}],
    "name": [{"name": ""}, {"name": None}],
}


@pytest.mark.parametrize(
    ("argument", "bad"), [(name, bad) for name, values in CONTACTS.items() for bad in values]
)
def test_a_contact(argument, bad):
    good = {"name": "tip", "frame": "block", "surface": FLOOR}
    with pytest.raises(InputError, match=argument):
        Contact(**{**good, **bad})


@pytest.mark.parametrize("bad", [(0.0, 0.0, 0.0), (0.0, np.nan, 1.0), (0.0, 1.0), "up"])
def test_a_plane(bad):
    with pytest.raises(InputError, match="normal"):
        Plane((0.0, 0.0, 0.0), bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, "1", None])
def test_a_sphere(bad):
    with pytest.raises(InputError, match="radius"):
        Sphere((0.0, 0.0, 0.0), bad)


def test_a_contact_of_a_body_with_itself():
    with pytest.raises(InputError, match="tip"):
        Contact("tip", "block", FLOOR, body="block", offset=(0.0, 0.0, 0.1))


@pytest.mark.parametrize("bad", [[], None, 3, Contact("tip", "block", FLOOR), ["tip"]])
def test_contacts_of_a_system(bad):
    with pytest.raises(InputError, match="contact"):
        contact_system(block.robot(), bad)


def test_equal_contacts_compare_and_hash():
    one, two = (Contact("tip", "block", FLOOR, offset=(0.0, 0.1, 0.0)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "up",
        START[:5],
        [START],
        [*START[:5], np.nan],
        [*START[:5], np.inf],
        [*START[:5], 1j],
        np.array(START, dtype=complex),
        MASKED,
    ],
)
@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_start(bad, simulator):
    with pytest.raises(InputError, match="x0"):
        SIMULATORS[simulator](bad)


@pytest.mark.parametrize("bad", ["open", ("open",), ("open", "shut"), 3, [1, 2]])
def test_a_mode(bad):
    with pytest.raises(InputError, match="mode"):
        hc.simulate(block.system(), bad, START, (0.0, 0.1))


@pytest.mark.parametrize("value", ["push", None, [1.0, 2.0], np.nan, 1j])
def test_an_input(value):
    robot = Robot.from_urdf(
        free_body("block", 1.0, (1.0, 1.0, 1.0)), root="sagittal", actuated=("root_x",)
    )
    contact = Contact("tip", "block", FLOOR)
    system = contact_system(robot, [contact])
    with pytest.raises(HybridctlError, match="policy"):
        hc.simulate(system, ("open",), START, (0.0, 0.1), lambda t, x: value)


@pytest.mark.parametrize("when", [0.01, 0.05])
def test_an_input_that_turns_nan_later_is_named_with_its_time(when):
    robot = Robot.from_urdf(
        free_body("block", 1.0, (1.0, 1.0, 1.0)), root="sagittal", actuated=("root_x",)
    )
    system = contact_system(robot, [Contact("tip", "block", FLOOR)])

    def law(t, x):
        return np.array([np.nan if t > when else 1.0])

    with pytest.raises(HybridctlError, match="finite"):
        hc.simulate(system, ("open",), START, (0.0, 0.1), law)


def test_a_robot_of_negative_mass():
    with pytest.raises(InputError, match="mass"):
        Robot.from_urdf(free_body("block", -1.0, (1.0, 1.0, 1.0)), root="floating")
