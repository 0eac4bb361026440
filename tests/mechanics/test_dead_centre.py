"""A chain with its tip on a floor is stretched: there the tip stands, and slides back.

The tip comes to a stop because the chain is as long as it can be, whatever friction does: at that
instant its velocity vanishes for every motion of the chain. The constraints of a tip that sticks
then contradict the motion, and the chain goes on to the other side of its dead centre.
"""

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.optimize import brentq

import hybridctl as hc
from hybridctl.mechanics import Contact, Plane, Robot

LENGTH, HEIGHT = 0.5, 0.3
SPAN, RTOL = (0.0, 0.15), 1e-10


def chain(friction):
    """Two equal links, hinged at a height above the floor, with the tip of the second on it."""
    inertia = '<inertia ixx="0.01" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/>'
    body = f'<inertial><origin xyz="0.25 0 0"/><mass value="1"/>{inertia}</inertial>'
    limit = '<limit effort="10" velocity="10" lower="-9" upper="9"/>'
    urdf = '<robot name="chain"><link name="base"/>'
    for name, parent, place in (("upper", "base", "0 0 0.3"), ("lower", "upper", "0.5 0 0")):
        urdf += f'<link name="{name}">{body}</link><joint name="to_{name}" type="revolute">'
        urdf += f'<parent link="{parent}"/><child link="{name}"/><axis xyz="0 1 0"/>'
        urdf += f'<origin xyz="{place}"/>{limit}</joint>'
    robot = Robot.from_urdf(urdf + "</robot>")
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    tip = Contact("tip", "lower", floor, offset=(LENGTH, 0.0, 0.0), friction=friction)
    return hc.mechanics.contact_system(robot, [tip])


def start(knee, rate):
    """The tip on the floor, moving along it."""

    def above(hip):
        return HEIGHT - LENGTH * (np.sin(hip) + np.sin(hip + knee))

    hip = brentq(above, -1.5, 1.2, xtol=1e-15)
    upper, lower = np.cos(hip), np.cos(hip + knee)
    return np.array([hip, knee, -lower / (upper + lower) * rate, rate])


def slid(system, knee=0.4, rate=-5.0):
    x0 = start(knee, rate)
    return hc.simulate(system, ("slip+",), x0, SPAN, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("friction", [0.1, 0.3, 1.0])
def test_a_stretched_chain_takes_its_tip_back(friction):
    run = slid(chain(friction))
    (event,) = run.events
    assert event.guards == ("tip sticks",)
    assert run.final_mode == ("slip-",)
    # the knee is straight where the tip turns, to the tolerance of the flow times its growth
    assert abs(event.state_before[1]) < 1e4 * RTOL
    assert np.abs(event.state_after - event.state_before).max() < 1e4 * RTOL


def test_the_energy_lost_is_what_friction_takes():
    system, worked = chain(0.3), 0.0
    run = slid(system)
    for arc in run.arcs:
        times = np.linspace(arc.start, arc.end, 2001)
        power = []
        for t in times:
            out = system.mode(arc.mode).outputs(t, arc(t), np.zeros(2))
            power.append(float((out["friction_force"] * out["slip_velocity"]).sum()))
        worked += trapezoid(power, times)
    energies = [sum(system.robot.energy(x[:2], x[2:])) for x in (run.arcs[0](0.0), run.final_state)]
    # trapezoids of 75 us: relative errors of (h^2 / 12) times the second derivative, below 1e-5
    assert energies[1] - energies[0] == pytest.approx(worked, rel=1e-4)
    assert worked < -0.01


def test_its_derivative_is_that_of_the_flow():
    """Differences along the two families of motions with the tip on the floor."""
    system = chain(1.0)
    matrix = hc.linearize(system, slid(system)).state_transition
    for knee, rate in ((1e-5, 0.0), (0.0, 1e-5)):
        ends = [slid(system, 0.4 + s * knee, -5.0 + s * rate).final_state for s in (1, -1)]
        starts = [start(0.4 + s * knee, -5.0 + s * rate) for s in (1, -1)]
        differences, change = ends[0] - ends[1], starts[0] - starts[1]
        # errors: the third derivative times 1e-10, and 1e-10 / 1e-5 of the flow's own, grown
        assert np.abs(matrix @ change - differences).max() < 1e-4 * np.abs(differences).max()
