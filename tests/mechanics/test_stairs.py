"""Contacts at the edges of stairs: what slides over one falls, and risers are refused by name."""

import numpy as np
import pinocchio as pin
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError, RiserError
from hybridctl.mechanics import (
    Contact,
    ContactDynamics,
    Robot,
    Stairs,
    contact_system,
    time_stepping,
)

G = 9.81
EDGE, DROP = 0.3, 0.05  # m
TERMS = ["generated", "pinocchio"]


def body(model, joint, name):
    """Add a body of 1 kg with a frame of its name."""
    model.appendBodyToJoint(
        joint, pin.Inertia(1.0, np.zeros(3), 0.01 * np.eye(3)), pin.SE3.Identity()
    )
    model.addFrame(pin.Frame(name, joint, pin.SE3.Identity(), pin.FrameType.BODY))


def point_system(stairs, friction, terms, cart=False):
    """A point of 1 kg in the xz-plane over stairs of the world, or of a cart of 1 kg."""
    model = pin.Model()
    if cart:
        body(model, model.addJoint(0, pin.JointModelPX(), pin.SE3.Identity(), "rail"), "cart")
    x = model.addJoint(0, pin.JointModelPX(), pin.SE3.Identity(), "x")
    z = model.addJoint(x, pin.JointModelPZ(), pin.SE3.Identity(), "z")
    body(model, z, "point")
    foot = Contact("foot", "point", stairs, body="cart" if cart else "universe", friction=friction)
    return contact_system(Robot(model, actuated=()), [foot], terms=terms)


def fallen(v, friction, end, x=0.0):
    """Return the state at `end` of a point that slides from x at v > 0, and falls at the edge.

    It slides with the deceleration mu g to the edge and falls by the drop at constant speed. At the
    impact friction takes mu times the vertical speed from its speed. Then it slides on.
    """
    a = friction * G
    leaves = (v - np.sqrt(v**2 - 2.0 * a * (EDGE - x))) / a if a else (EDGE - x) / v
    v -= a * leaves
    falls = np.sqrt(2.0 * DROP / G)
    x, t = EDGE + v * falls, leaves + falls
    v -= friction * G * falls
    left = end - t
    return np.array([x + v * left - 0.5 * a * left**2, -DROP, v - a * left, 0.0]), leaves, t


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("friction", [0.0, 0.2])
@pytest.mark.parametrize("way", [1.0, -1.0])
def test_a_point_that_slides_over_an_edge_falls_as_in_closed_form(terms, friction, way):
    """Errors of steps of 1e-9, over some ten of them."""
    stairs = Stairs([EDGE], [0.0, -DROP]) if way > 0.0 else Stairs([-EDGE], [-DROP, 0.0])
    system = point_system(stairs, friction, terms)
    run = hc.simulate(system, None, [0.0, 0.0, way * 2.0, 0.0], (0.0, 0.4))
    expected, leaves, lands = fallen(2.0, friction, 0.4)
    expected[::2] *= way
    assert [e.guards for e in run.events] == [("foot leaves its piece",), ("foot closes",)]
    assert [e.mode_after[0] == "open" for e in run.events] == [True, False]
    np.testing.assert_allclose([e.time for e in run.events], [leaves, lands], atol=1e-8)
    np.testing.assert_allclose(run.final_state, expected, atol=1e-8)


@pytest.mark.parametrize("terms", TERMS)
def test_the_derivative_of_a_fall_off_an_edge_is_that_of_the_closed_form(terms):
    """By x and the speed along it. Central differences with h = 1e-5: wrong by h^2 and eps / h."""
    h, friction = 1e-5, 0.2
    system = point_system(Stairs([EDGE], [0.0, -DROP]), friction, terms)
    run = hc.simulate(system, None, [0.0, 0.0, 2.0, 0.0], (0.0, 0.4))
    matrix = hc.linearize(system, run).state_transition
    by_x = fallen(2.0, friction, 0.4, h)[0] - fallen(2.0, friction, 0.4, -h)[0]
    by_v = fallen(2.0 + h, friction, 0.4)[0] - fallen(2.0 - h, friction, 0.4)[0]
    np.testing.assert_allclose(matrix[:, [0, 2]], np.array([by_x, by_v]).T / (2.0 * h), atol=1e-7)


@pytest.mark.parametrize("terms", TERMS)
def test_margins_of_stairs_on_a_moving_body_have_the_derivatives_of_their_differences(terms):
    system = point_system(Stairs([EDGE, 0.5], [0.0, -DROP, 0.0]), 0.2, terms, cart=True)
    mode, x, h = system.mode(("slip+",)), np.array([0.1, 0.37, 0.0, 0.3, 1.0, 0.0]), 1e-6
    i, u = mode.guard_names.index("foot leaves its piece"), np.zeros(0)
    assert mode.guards(0.0, x, u)[i] == pytest.approx(EDGE - 0.27)
    row = mode.calc(0.0, x, u).guard_jacobian.state[i]
    steps = h * np.eye(6)
    values = [(mode.guards(0.0, x + d, u)[i] - mode.guards(0.0, x - d, u)[i]) for d in steps]
    np.testing.assert_allclose(row, np.array(values) / (2.0 * h), atol=1e-9)


@pytest.mark.parametrize(
    ("x", "z"), [(EDGE - 1e-6, 0.0), (EDGE - 1e-12, -DROP), (EDGE, -DROP), (EDGE + 1e-12, -DROP)]
)
def test_what_falls_right_at_an_edge_lands_on_one_of_its_treads(x, z):
    """An edge is 1e-9 m wide, and belongs to the lower tread."""
    system = point_system(Stairs([EDGE], [0.0, -DROP]), 0.3, "pinocchio")
    run = hc.simulate(system, None, [x, 0.02, 0.0, 0.0], (0.0, 0.2))
    assert [e.guards for e in run.events] == [("foot closes",)]
    assert run.events[0].time == pytest.approx(np.sqrt(2.0 * (0.02 - z) / G), abs=1e-8)
    assert run.final_state[1] == pytest.approx(z, abs=1e-9)


@pytest.mark.parametrize("terms", TERMS)
def test_what_slides_into_a_riser_ends_there_by_name(terms):
    """At 2 m/s and without friction it is there after 0.15 s."""
    system = point_system(Stairs([EDGE], [0.0, DROP]), 0.0, terms)
    with pytest.raises(RiserError, match=r"'foot'\] run into a riser .* t = 0.15 s"):
        hc.simulate(system, None, [0.0, 0.0, 2.0, 0.0], (0.0, 0.4))


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("rise", [5e-3, 0.05, 0.3])
def test_what_flies_into_a_riser_ends_there_by_name(terms, rise):
    """Thrown from x = 0 at 2 m/s, it is in the middle of the riser after 0.15 s."""
    system = point_system(Stairs([EDGE], [0.0, rise]), 0.0, terms)
    t = EDGE / 2.0
    up = (0.5 * rise + 0.5 * G * t**2) / t
    with pytest.raises(RiserError, match=r"t = 0.15 s"):
        hc.simulate(system, ("open",), [0.0, 0.0, 2.0, up], (0.0, 0.4))


def test_time_stepping_falls_off_edges_and_refuses_risers():
    """Its steps of 1 ms put what falls for 0.1 s off by g t h / 2 = 0.5 mm, and as much by impact.

    It takes part in contacts at a gap of zero or less, so that it ends as deep as that below.
    """
    down, up = (point_system(Stairs([EDGE], [0.0, z]), 0.0, "pinocchio") for z in (-DROP, DROP))
    start, span = [0.0, 0.0, 2.0, 0.0], (0.0, 0.4)
    run = time_stepping(down.robot, down.contacts, start, span)
    np.testing.assert_allclose(run.final_state, fallen(2.0, 0.0, 0.4)[0], atol=1e-3)
    with pytest.raises(RiserError, match="'foot'"):
        time_stepping(up.robot, up.contacts, start, span)


def test_treads_of_one_height_are_one_tread():
    """0.1 + 0.2 is not 0.3 to the last digit."""
    system = point_system(Stairs([0.1, EDGE], [0.3, 0.1 + 0.2, 0.3]), 0.0, "pinocchio")
    assert system.mode(("closed",)).guard_names == ("foot opens",)
    assert not hc.simulate(system, None, [0.0, 0.3, 2.0, 0.0], (0.0, 0.4)).events


def test_steps_that_contacts_could_not_tell_from_gaps_are_refused():
    with pytest.raises(InputError, match="differ by 0"):
        Stairs([0.1], [0.0, 0.9e-4])
    Stairs([0.1], [0.0, 1.1e-4])


def test_all_terms_have_the_gaps_and_rows_of_the_tread_below():
    """Corners of a box on both sides of an edge: stairs are not the plane of one tread."""
    urdf = """<robot name="box"><link name="box"><inertial><mass value="1"/>
    <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""
    robot = Robot.from_urdf(urdf, root="floating")
    stairs = Stairs([0.05], [0.0, -DROP])
    feet = [Contact(f"{x}", "box", stairs, offset=(x, 0.0, 0.0), friction=0.5) for x in (0.0, 0.1)]
    q, v = robot.neutral(), np.arange(6.0)
    found = [ContactDynamics(robot, feet, terms=terms).copy_terms(q, v) for terms in TERMS]
    for values in found:
        np.testing.assert_allclose(values.gaps, [0.0, DROP], atol=1e-15)
    np.testing.assert_allclose(found[0].jacobian, found[1].jacobian, atol=1e-12)
