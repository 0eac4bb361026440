"""Rotors of geared motors: closed forms, both ways of evaluation, impacts and energy."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, Rotor, contact_system

ROTORS = {"hip": Rotor(3.32e-4, gear=50.0), "knee": Rotor(2e-4, gear=30.0)}


def _link(name: str, mass: float) -> str:
    return f"""<link name="{name}"><inertial><origin xyz="0 0 -0.2"/><mass value="{mass}"/>
      <inertia ixx="0.05" iyy="0.05" izz="0.05" ixy="0" ixz="0" iyz="0"/></inertial></link>"""


def _joint(name: str, parent: str, child: str, z: float) -> str:
    return f"""<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>
      <origin xyz="0 0 {z}"/><axis xyz="0 1 0"/>
      <limit lower="-3" upper="3" effort="1" velocity="1"/></joint>"""


LEG = f"""<robot name="leg">{_link("body", 5.0)}{_link("thigh", 2.0)}{_link("shank", 1.0)}
  {_joint("hip", "body", "thigh", 0.0)}{_joint("knee", "thigh", "shank", -0.4)}</robot>"""


def leg(rotors=None) -> Robot:
    return Robot.from_urdf(LEG, root="sagittal", rotors=rotors)


def landing(terms: str):
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    foot = Contact("foot", "shank", ground, offset=(0.0, 0.0, -0.4), friction=0.6)
    return contact_system(leg(ROTORS), [foot], terms=terms)


START = np.array([0.0, 0.9, 0.1, -0.5, 0.6, 0.2, 0.0, 0.3, -0.2, 0.1])


def test_a_pendulum_with_a_rotor_falls_as_its_whole_inertia_says():
    """At 90 degrees: acceleration m g c / (I + m c^2 + n^2 I_rotor)."""
    urdf = f"""<robot name="pendulum"><link name="base"/>{_link("bob", 2.0)}
      {_joint("pivot", "base", "bob", 0.0)}</robot>"""
    pendulum = Robot.from_urdf(urdf, rotors={"pivot": Rotor(1e-4, gear=40.0)})
    assert pendulum.armature == pytest.approx([0.16])
    a = pendulum.free_acceleration(np.array([np.pi / 2]), np.zeros(1), np.zeros(1))
    expected = -2.0 * 9.81 * 0.2 / (0.05 + 2.0 * 0.2**2 + 0.16)
    assert a == pytest.approx([expected], rel=1e-13)


def test_rotors_add_to_the_diagonal_of_their_joints_alone():
    q = START[:5]
    added = leg(ROTORS).mass_matrix(q) - leg().mass_matrix(q)
    np.testing.assert_allclose(added, np.diag([0, 0, 0, 0.83, 0.18]), atol=1e-13)


def test_their_energy_is_kinetic():
    q, v = START[:5], START[5:]
    kinetic, _ = leg(ROTORS).energy(q, v)
    assert kinetic == pytest.approx(0.5 * v @ leg(ROTORS).mass_matrix(q) @ v, rel=1e-13)


def test_their_energy_is_kinetic_at_skew_axes_too():
    """A hinge along (3, 0, 4) / 5 that moves nothing but its rotor of 4e-3 kg m^2, at 2 rad/s."""
    link = "<link name='{}'/>"
    hinge = "<parent link='a'/><child link='b'/><axis xyz='3 0 4'/>"
    limit = "<limit effort='1' velocity='1'/>"
    joint = f"<joint name='hinge' type='revolute'>{hinge}{limit}</joint>"
    urdf = f"<robot name='r'>{link.format('a')}{link.format('b')}{joint}</robot>"
    robot = Robot.from_urdf(urdf, rotors={"hinge": Rotor(1e-5, 20.0)})
    assert robot.energy(np.zeros(1), np.array([2.0]))[0] == pytest.approx(0.5 * 4e-3 * 4.0)


def test_both_ways_of_evaluation_fly_land_and_linearize_alike():
    """Flow, impact and saltation, to what the tolerance of the flow leaves (1e-10 each)."""
    runs, maps = [], []
    for terms in ("generated", "pinocchio"):
        system = landing(terms)
        run = hc.simulate(system, ("open",), START, (0.0, 0.4), rtol=1e-11, atol=1e-11)
        runs.append(run)
        maps.append(hc.linearize(system, run, rtol=1e-10, atol=1e-10).state_transition)
    assert len(runs[0].events) >= 1
    assert [e.guards for e in runs[0].events] == [e.guards for e in runs[1].events]
    np.testing.assert_allclose(runs[0].final_state, runs[1].final_state, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(maps[0], maps[1], rtol=0, atol=1e-6 * np.abs(maps[0]).max())


def test_the_impact_hits_the_rotors_too():
    """M (v+ - v-) = J' L with rotors in M: momentum that the ground's impulse explains."""
    system = landing("generated")
    run = hc.simulate(system, ("open",), START, (0.0, 0.4))
    event = run.events[0]
    q, kick = event.state_before[:5], event.state_after[5:] - event.state_before[5:]
    momentum = leg(ROTORS).mass_matrix(q) @ kick
    j = np.vstack([system.dynamics.gap_jacobian(q), system.dynamics.tangent_jacobian(q)[0]])
    left = momentum - j.T @ np.linalg.lstsq(j.T, momentum, rcond=None)[0]
    assert np.abs(left).max() < 1e-12 * np.abs(momentum).max()


@pytest.mark.parametrize(
    ("rotors", "kind", "words"),
    [
        ({"ankle": Rotor(1e-4)}, UnknownNameError, "ankle"),
        ({"hip": 0.83}, InputError, r"rotors\['hip'\]"),
    ],
)
def test_what_is_no_rotor_of_a_joint_is_refused(rotors, kind, words):
    with pytest.raises(kind, match=words):
        leg(rotors)


@pytest.mark.parametrize("values", [(-1e-4, 1.0), (1e-4, 0.0), (np.nan, 1.0)])
def test_a_rotor_has_an_inertia_and_a_gear(values):
    with pytest.raises(InputError):
        Rotor(*values)
