"""The assembled hybrid system: its Jacobians, its modes, and motions in closed form."""

import numpy as np
import pytest
from differences import assert_derivative
from hybridctl.robots import rrr_door

import hybridctl as hc
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.hybrid.model import JumpPoint, Pace
from hybridctl.mechanics import Contact, Plane, Robot, closed_contacts, contact_system
from mechanics.models import PAIR, SLOPE

G = 9.81
BALL = """<robot name="ball"><link name="ball"><inertial><mass value="0.5"/>
<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""
GROUND = Plane((0, 0, 0), (0, 0, 1))


def pair_system():
    robot = Robot.from_urdf(PAIR, root="floating")
    contacts = [
        Contact("a", "cube", SLOPE, offset=(0.05, 0.05, -0.05), restitution=0.3),
        Contact("b", "arm", SLOPE, offset=(0.0, 0.0, 0.1)),
    ]
    return contact_system(robot, contacts)


SYSTEMS = {"door": rrr_door.system, "pair": pair_system}
MODES = [("open", "open"), ("closed", "open"), ("closed", "closed")]


@pytest.mark.parametrize("key", MODES)
@pytest.mark.parametrize("name", SYSTEMS)
def test_field_guards_and_resets_have_exact_jacobians(name, key):
    system = SYSTEMS[name]()
    mode, outgoing = system.mode(key), system.outgoing(key)
    space = mode.space
    rng = np.random.default_rng(5)
    start = np.zeros(space.nx)
    start[: system.robot.nq] = system.robot.neutral()
    x, u = space.integrate(start, rng.normal(size=space.ndx)), rng.normal(size=mode.nu)
    field = mode.jacobian(0.0, x, u)
    assert_derivative(lambda z: mode.field(0.0, space.integrate(x, z), u), field.state)
    assert_derivative(lambda z: mode.field(0.0, x, u + z), field.input)
    guards = outgoing.guards
    rows = guards.jacobian(0.0, x, u)
    assert_derivative(lambda z: guards.values(0.0, space.integrate(x, z), u), rows.state)
    assert_derivative(lambda z: guards.values(0.0, x, u + z), rows.input)
    for fired in guards.names:
        reset = outgoing.edge((fired,)).reset
        after = reset(0.0, x, u).state
        assert_derivative(
            lambda z, reset=reset, after=after: space.difference(
                after, reset(0.0, space.integrate(x, z), u).state
            ),
            reset.calc_diff(JumpPoint(0.0, x, u)).state,
        )


def test_a_bouncing_ball_follows_the_closed_form():
    robot = Robot.from_urdf(BALL, root="floating")
    system = contact_system(robot, [Contact("south", "ball", GROUND, restitution=0.8)])
    x0 = np.zeros(13)
    x0[2], x0[6] = 1.0, 1.0
    run = hc.simulate(system, ("open",), x0, (0.0, 2.5))
    fall = np.sqrt(2.0 / G)
    expected = fall * (1.0 + 2.0 * np.cumsum([0.0, 0.8, 0.64, 0.512]))
    # Free fall is a parabola, which the integrator carries to rounding.
    np.testing.assert_allclose([e.time for e in run.events][:4], expected[:4], atol=1e-11)
    speed = G * fall * 0.8 ** np.arange(4)
    np.testing.assert_allclose(
        [e.impulses[0] for e in run.events][:4], 0.5 * 1.8 * speed, rtol=1e-10
    )
    assert all(e.mode_after == ("open",) for e in run.events)


def test_a_plastic_ball_stays_and_is_lifted_off_by_a_motor():
    """A prismatic ball pressed by gravity leaves the ground when the motor exceeds m g."""
    urdf = """<robot name="lift"><link name="base"/><link name="ball"><inertial><mass value="2"/>
    <inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <joint name="z" type="prismatic"><parent link="base"/><child link="ball"/><axis xyz="0 0 1"/>
    <limit lower="-9" upper="9" effort="99" velocity="99"/></joint></robot>"""
    robot = Robot.from_urdf(urdf)
    system = contact_system(robot, [Contact("foot", "ball", GROUND)])
    rate = 20.0
    run = hc.simulate(
        system, ("open",), [0.1, 0.0], (0.0, 1.5), lambda t, x: np.array([max(rate * t, 0.0)])
    )
    landing, liftoff = run.events
    assert landing.guards == ("foot closes",)
    assert landing.mode_after == ("closed",)
    assert liftoff.guards == ("foot opens",)
    assert liftoff.impulses.tolist() == [0.0]
    # Lift-off where 20 t = m g. The gap is held to the flow's tolerance h = 1e-9, which the
    # stabilisation turns into a force of m (s^2 h + 2 s hdot), some 3 m s^2 h = 2.4e-6 N.
    assert liftoff.time == pytest.approx(2.0 * G / rate, abs=2.4e-6 / rate)
    assert liftoff.mode_after == ("open",)
    mode = system.mode(("closed",))
    field = mode.jacobian(0.5, np.zeros(2), np.array([5.0]))
    assert field.state.shape == (2, 2)
    assert field.input.shape == (2, 1)
    # From there the acceleration is 10 (t - t0), so the height 10 (t - t0)^3 / 6.
    dt = 1.5 - liftoff.time
    assert run.final_state[0] == pytest.approx(10.0 * dt**3 / 6.0, abs=1e-7)


def test_a_cube_at_rest_does_not_drift():
    robot = Robot.from_urdf(BALL, root="floating")
    corners = [(x, y, -0.05) for x in (-0.05, 0.05) for y in (-0.05, 0.05)]
    contacts = [Contact(f"{i}", "ball", GROUND, offset=c) for i, c in enumerate(corners)]
    system = contact_system(robot, contacts)
    x0 = np.zeros(13)
    x0[2], x0[6] = 0.25, 1.0
    run = hc.simulate(system, ("open",) * 4, x0, (0.0, 3.0))
    assert closed_contacts(run.final_mode) == (0, 1, 2, 3)
    assert len(run.events) == 1
    np.testing.assert_allclose(run.events[0].impulses, 0.25 * 0.5 * np.sqrt(2 * G * 0.2))
    assert abs(run.final_state[2] - 0.05) <= 1e-8


@pytest.mark.parametrize("stabilization", [0.0, 20.0])
def test_a_gap_left_by_mistake_is_closed(stabilization):
    """With rate s a gap h is accelerated by -s^2 h; steps put the state back on the surface."""
    robot = Robot.from_urdf(BALL, root="floating")
    system = contact_system(robot, [Contact("south", "ball", GROUND)], stabilization=stabilization)
    x0 = np.zeros(13)
    x0[2], x0[6] = 1e-6, 1.0
    rate = system.mode(("closed",)).field(0.0, x0, np.zeros(0))
    # gravity and the contact's force cancel, each rounded
    assert rate[8] == pytest.approx(-(stabilization**2) * 1e-6, abs=1e-14)
    run = hc.simulate(system, ("closed",), x0, (0.0, 0.5))
    assert abs(run.final_state[2]) <= 1e-10


def test_only_what_slides_in_a_surface_has_a_pace_of_its_own_at_each_point():
    """Residuals decay within 0.05 s everywhere; a slide at 2 m/s, slowed by 0.5 g, ends in 0.41 s.

    Friction turns it into its direction at the rate mu g / v, faster as it is slower.
    """
    ground = Contact("south", "ball", GROUND, friction=0.5)
    system = contact_system(Robot.from_urdf(BALL, root="floating"), [ground], stabilization=20.0)
    paces = [system.mode((mode,)).steady_pace for mode in ("open", "stick", "slip")]
    assert paces == [Pace(), Pace(0.05), None]
    x = np.zeros(13)
    x[6] = 1.0
    relaxations = []
    for speed in (2.0, 0.2):
        x[7] = speed
        pace = system.mode(("slip",)).calc(0.0, x, np.zeros(0)).pace
        assert pace.longest_step <= 0.05
        relaxations.append(pace.relaxation)
    assert relaxations[0] == pytest.approx(10.0 * relaxations[1])


def test_unknown_modes_and_bad_states_are_refused():
    system = rrr_door.system()
    with pytest.raises(UnknownNameError, match=r"mode \('open',\) is unknown.*corner_1"):
        hc.simulate(system, ("open",), np.zeros(8), (0.0, 1.0))
    with pytest.raises(InputError, match=r"x0 must have shape \(8\), got \(7,\)"):
        hc.simulate(system, ("open", "open"), np.zeros(7), (0.0, 1.0))
    with pytest.raises(hc.errors.GuardViolatedError, match="corner_1 closes"):
        hc.simulate(system, ("open", "open"), [1.5, 0, 0, 0, 0, 0, 0, 0], (0.0, 1.0))
    ball = contact_system(
        Robot.from_urdf(BALL, root="floating"), [Contact("south", "ball", GROUND)]
    )
    x0 = np.zeros(13)
    x0[2], x0[6] = 1.0, 0.5
    with pytest.raises(InputError, match="must have norm 1"):
        hc.simulate(ball, ("open",), x0, (0.0, 1.0))
