"""Dry friction of joints against closed forms, differences of flows, and other simulators."""

import pickle

import numpy as np
import pytest
from differences import central
from hybridctl.experiments.walking.cone_filter import ConeFilter
from scipy.integrate import quad, simpson
from scipy.optimize import brentq

import hybridctl as hc
from hybridctl.base.errors import BridgeWarning, InputError, UnknownNameError
from hybridctl.estimation.measurement import coordinates
from hybridctl.interop.mujoco import MujocoModel
from hybridctl.mechanics import (
    Contact,
    Plane,
    Robot,
    Wrench,
    contact_system,
    time_stepping,
)
from hybridctl.planning import Phase, Task

LIMIT = 2.0  # N, dry friction of the slider of 1 kg
LINK = """<link name="{name}"><inertial><mass value="{mass}"/><origin xyz="0 0 {center}"/>
<inertia ixx="{about}" iyy="{about}" izz="{about}" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
SLIDE = """<joint name="{name}" type="prismatic"><parent link="w"/><child link="{child}"/>
<origin xyz="{place} 0 0"/><axis xyz="1 0 0"/><dynamics damping="0" friction="{friction}"/>
<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>"""


ENDLESS = """<robot name="s"><link name="w"/><link name="m"><inertial><mass value="1"/>
<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="x" type="continuous"><parent link="w"/><child link="m"/><axis xyz="0 0 1"/>
<dynamics damping="0" friction="0.5"/></joint></robot>"""


def link(name, mass=1.0, center=0.0, about=1e-3):
    return LINK.format(name=name, mass=mass, center=center, about=about)


def slider(friction=LIMIT, **springs):
    joint = SLIDE.format(name="x", child="m", place=0, friction=friction)
    return Robot.from_urdf(f'<robot name="s"><link name="w"/>{link("m")}{joint}</robot>', **springs)


def arm(friction=(0.4, 0.25), **arguments):
    """Two links of 1 kg and 1 m that hang in gravity, with dry friction in both joints."""
    joints = """<joint name="shoulder" type="revolute"><parent link="w"/><child link="upper"/>
<axis xyz="0 1 0"/><dynamics damping="0.05" friction="{}"/>
<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/>
<origin xyz="0 0 -1"/><axis xyz="0 1 0"/><dynamics damping="0.05" friction="{}"/>
<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>""".format(*friction)
    links = link("upper", center=-0.5, about=0.1) + link("lower", center=-0.5, about=0.1)
    return Robot.from_urdf(f'<robot name="a"><link name="w"/>{links}{joints}</robot>', **arguments)


def run_of(robot, x0, end, push=None, **settings):
    policy = None if push is None else lambda t, x: np.atleast_1d(push(t))
    return hc.simulate(contact_system(robot, []), None, x0, (0.0, end), policy, **settings)


@pytest.mark.parametrize(
    ("v0", "push", "end", "final"),
    [
        (1.0, 0.0, 1.0, (0.25, 0.0)),  # stops after 0.5 s
        (0.0, 1.9, 1.0, (0.0, 0.0)),  # held
        (0.0, 3.0, 1.0, (0.5, 1.0)),
        (-1.0, 3.0, 1.0, (-0.1 + 0.5 * 0.8**2, 0.8)),  # turns after 0.2 s and goes on at once
    ],
)
def test_slider_under_a_constant_force(v0, push, end, final):
    """Piecewise parabolas; the event time is right to 1e-9 s, at accelerations of 5 m/s^2."""
    run = run_of(slider(), [0.0, v0], end, lambda t: push)
    np.testing.assert_allclose(run.final_state, final, atol=1e-8)


def test_breakaway_is_at_the_limit_force():
    """A force of 4 t N breaks 2 N at 0.5 s; then x = 4 (t - 0.5)^3 / 6."""
    run = run_of(slider(), [0.3, 0.0], 1.0, lambda t: 4.0 * t)
    (event,) = run.events
    assert event.guards == ("x friction slips+",)
    assert (event.mode_before, event.mode_after) == (("stick",), ("slip+",))
    assert event.time == pytest.approx(0.5, abs=1e-9)
    np.testing.assert_allclose(run.final_state, [0.3 + 4 * 0.5**3 / 6, 0.5], atol=1e-8)


def test_coulomb_oscillator_loses_the_same_at_each_turn():
    """Turns are half a period apart, at x, 2 d - x, x - 4 d ... with d = F / k, until inside d."""
    k, d = 40.0, LIMIT / 40.0
    run = run_of(slider(stiffness={"x": k}), [6.3 * d, 0.0], 3.0)
    turns = [event for event in run.events if event.guards == ("x friction sticks",)]
    half = np.pi / np.sqrt(k)
    np.testing.assert_allclose([e.time for e in turns], half * np.arange(1, 4), atol=1e-8)
    places = [event.state_before[0] / d for event in turns]
    np.testing.assert_allclose(places, [-4.3, 2.3, -0.3], atol=1e-7)
    assert run.final_mode == ("stick",)
    assert run.final_state[0] == pytest.approx(-0.3 * d, abs=1e-9)


def test_periodic_force_slips_and_sticks_in_each_half_period():
    """A sin(w t) with A = 1.3 F: it breaks away at F, and stops where the impulses balance."""
    a, w = 1.3 * LIMIT, 3.0
    breaks = np.arcsin(LIMIT / a) / w

    def speed(t):
        return a / w * (np.cos(w * breaks) - np.cos(w * t)) - LIMIT * (t - breaks)

    stops = brentq(speed, 0.5 * np.pi / w, 1.2 * np.pi / w, xtol=1e-14)
    assert a * abs(np.sin(w * stops)) < LIMIT
    run = run_of(slider(), [0.0, 0.0], 4.0 * np.pi / w, lambda t: a * np.sin(w * t))
    expected = np.sort([t + k * np.pi / w for t in (breaks, stops) for k in range(4)])
    np.testing.assert_allclose([e.time for e in run.events], expected, atol=1e-8)
    way = quad(speed, breaks, stops)[0]
    highest = max(event.state_before[0] for event in run.events)
    assert highest == pytest.approx(way, abs=1e-8)
    np.testing.assert_allclose(run.final_state, 0.0, atol=1e-8)


def test_robot_without_friction_has_no_such_modes():
    robot = slider(friction=0.0)
    wall = Contact("wall", "m", Plane((5, 0, 0), (-1, 0, 0)))
    assert contact_system(robot, [wall]).mode(("open",)).key == ("open",)
    left_out = contact_system(slider(), [wall], joint_friction=False)
    run = hc.simulate(left_out, ("open",), [0.0, 1.0], (0.0, 1.0))
    assert run.final_state[0] == pytest.approx(1.0, abs=1e-9)


def test_key_without_the_joints_gets_their_modes_from_the_state():
    wall = Contact("wall", "m", Plane((5, 0, 0), (-1, 0, 0)))
    system = contact_system(slider(), [wall])
    for v0, mode in ((1.0, "slip+"), (-1.0, "slip-"), (0.0, "stick")):
        run = hc.simulate(system, ("open",), [0.0, v0], (0.0, 0.01))
        assert run.arcs[0].mode == ("open", mode)
    with pytest.raises(UnknownNameError, match="x friction"):
        system.mode(("open", "open"))


def test_names_outputs_and_copies():
    wall = Contact("wall", "m", Plane((5, 0, 0), (-1, 0, 0)))
    system = pickle.loads(pickle.dumps(contact_system(slider(), [wall])))
    assert {"x friction slips+", "x friction slips-", "x friction sticks"} < set(system.guard_names)
    assert "x friction opens" not in system.guard_names
    outputs = system.mode(("open", "stick")).outputs(0.0, np.zeros(2), np.array([0.7]))
    np.testing.assert_allclose(outputs["joint_friction"], [-0.7], atol=1e-12)
    assert outputs["gap"].shape == (1,)
    assert system.output_labels("joint_friction", (1,)) == ("joint_friction.x [N]",)
    turning = contact_system(arm(), [])
    assert turning.output_labels("joint_friction", (2,))[1] == "joint_friction.elbow [N m]"


def test_friction_by_hand_and_from_mjcf():
    assert slider(friction=0.0).friction.tolist() == [0.0]
    assert slider(friction=1.5).friction.tolist() == [1.5]
    by_hand = slider(friction=1.5).friction
    assert not by_hand.flags.writeable
    mjcf = """<mujoco><worldbody><body name="m"><joint name="x" type="slide" axis="1 0 0"
frictionloss="2"/><geom type="sphere" size=".1" mass="1"/></body></worldbody></mujoco>"""
    assert Robot.from_mjcf(mjcf).friction.tolist() == [2.0]
    assert Robot.from_mjcf(mjcf, friction={"x": 0.5}).friction.tolist() == [0.5]
    for ignore in ("frictionloss", "x"):
        assert Robot.from_mjcf(mjcf, ignore=[ignore]).friction.tolist() == [0.0]
    off = mjcf.replace("<worldbody>", '<option><flag frictionloss="disable"/></option><worldbody>')
    assert Robot.from_mjcf(off).friction.tolist() == [0.0]
    run = run_of(Robot.from_mjcf(mjcf), [0.0, 1.0], 1.0)
    np.testing.assert_allclose(run.final_state, [0.25, 0.0], atol=1e-9)
    wall = Contact("wall", "m", Plane((5, 0, 0), (-1, 0, 0)))
    assert MujocoModel(slider(), (wall,)).model.dof_frictionloss.tolist() == [LIMIT]
    endless = Robot.from_urdf(ENDLESS)
    assert endless.friction.tolist() == [0.5]
    # It stops after 0.4 s: 2 rad/s over 0.5 N m of 0.1 kg m^2.
    q0 = endless.neutral()
    turned = run_of(endless, [*q0, 2.0], 1.0).final_state
    assert endless.difference(q0, turned[:-1]) == pytest.approx(0.4, abs=1e-8)
    assert contact_system(endless, []).output_labels("joint_friction", (1,))[0].endswith("[N m]")
    ball = mjcf.replace('type="slide" axis="1 0 0"', 'type="ball"')
    with pytest.raises(InputError, match=r"ignore=\['frictionloss'\]"):
        Robot.from_mjcf(ball)
    with pytest.raises(InputError, match=r"friction\['x'\]"):
        Robot.from_mjcf(mjcf, friction={"x": -0.5})


def test_derivative_of_a_stop_and_of_a_turn_is_that_of_the_closed_form():
    """It stops at x + v^2 / 2 a; if the motor has 3 N it turns there, and goes on with 1 m/s^2.

    With the speed w = -v it turns after w / 5, and ends at x - w^2 / 10 + (T - w / 5)^2 / 2.
    """
    system = contact_system(slider(), [])
    stopped = hc.simulate(system, None, [0.3, 0.9], (0.0, 1.0))
    expected = [[1.0, 0.9 / LIMIT], [0.0, 0.0]]
    np.testing.assert_allclose(hc.linearize(system, stopped).state_transition, expected, atol=1e-8)
    turned = run_of(slider(), [0.3, -0.9], 1.0, lambda t: 3.0)
    expected = [[1.0, 0.18 + (1.0 - 0.18) / 5.0], [0.0, 0.2]]
    np.testing.assert_allclose(
        hc.linearize(turned.system, turned).state_transition, expected, atol=1e-8
    )


def colliding():
    """Two sliders: A of 1 kg hits B of 2 kg, which friction holds, with e = 0.4."""
    a, b = (
        SLIDE.format(name=n, child=n, place=p, friction=f)
        for n, p, f in (("a", 0, 0), ("b", 1, LIMIT))
    )
    bodies = link("a") + link("b", mass=2.0)
    robot = Robot.from_urdf(f'<robot name="two"><link name="w"/>{bodies}{a}{b}</robot>')
    hit = Contact("hit", "a", Plane((0, 0, 0), (-1, 0, 0)), body="b", restitution=0.4)
    return contact_system(robot, [hit])


@pytest.mark.slow
def test_derivative_of_an_impact_on_a_sticking_joint_is_that_of_the_flow():
    _check_flow(colliding(), ("open", "stick"), [0.0, 0.0, 2.0, 0.0], 1.1, columns=slice(3))


def test_an_impact_sets_a_sticking_joint_in_motion():
    """A hits B, which its friction holds: momentum is kept, as a bounded force has no impulse.

    A of 1 kg with 2 m/s hits B of 2 kg with e = 0.4: B leaves with (1 + e) v / 3, A with
    (1 - 2 e) v / 3. B stops after m v / F.
    """
    system = colliding()
    run = hc.simulate(system, ("open", "stick"), [0.0, 0.0, 2.0, 0.0], (0.0, 3.0))
    first, stop = run.events[:2]
    assert first.time == pytest.approx(0.5, abs=1e-9)
    np.testing.assert_allclose(first.state_after[2:], [0.2 * 2 / 3, 1.4 * 2 / 3], atol=1e-9)
    assert first.mode_after == ("open", "slip+")
    assert first.impulses.tolist() == pytest.approx([2.0 * 1.4 * 2 / 3, 0.0], abs=1e-9)
    assert stop.guards == ("b friction sticks",)
    assert stop.time == pytest.approx(0.5 + 2.0 * (1.4 * 2 / 3) / LIMIT, abs=1e-8)
    kick = system.kick([0.0, 0.0, 0.0, 0.0], "b", [1.0, 0.0, 0.0])
    assert kick.mode == ("open", "slip+")
    assert kick.state[3] == pytest.approx(0.5, abs=1e-12)


def _check_flow(system, mode, x0, end, policy=None, columns=slice(None)):
    """The linearised flow against central differences of the whole flow, to 1e-7.

    Richardson's extrapolation from steps h and 2 h leaves errors of h^4, and 1e-11 / h.
    """
    settings = {"rtol": 1e-11, "atol": 1e-12}
    run = hc.simulate(system, mode, x0, (0.0, end), policy, **settings)
    total = hc.linearize(system, run).state_transition[:, columns]
    basis = np.eye(len(x0))[:, columns]

    def flow(z):
        x = np.asarray(x0) + basis @ z
        found = hc.simulate(system, mode, x, (0.0, end), policy, **settings)
        assert [e.guards for e in found.events] == [e.guards for e in run.events]
        return found.final_state

    fine, coarse = (central(flow, basis.shape[1], h) for h in (5e-4, 1e-3))
    found = (4.0 * fine - coarse) / 3.0
    np.testing.assert_allclose(found, total, atol=1e-7 * max(1.0, np.abs(total).max()))
    return run


@pytest.mark.slow
def test_derivative_through_stops_and_breakaways_is_that_of_the_flow():
    """A slider on a spring turns twice, sticks, and is broken loose by its motor."""
    system = contact_system(slider(stiffness={"x": 40.0}), [])

    def motor(t, x):
        return np.array([4.0 * max(t - 1.6, 0.0) ** 2])

    run = _check_flow(system, ("slip-",), [0.21, -0.3], 2.6, motor)
    kinds = [event.guards[0].split()[-1] for event in run.events]
    assert kinds.count("sticks") >= 2
    assert kinds[-1] == "slips+"


@pytest.mark.slow
def test_derivative_of_an_arm_with_friction_in_both_joints():
    run = _check_flow(contact_system(arm(), []), ("slip-", "slip+"), [1.2, -0.3, -0.5, 0.8], 1.6)
    assert len(run.events) >= 3


def test_energy_that_is_lost_is_the_work_of_friction():
    """E(T) - E(0) = the work of motor, dampers and friction, with F |v| of each joint."""
    robot, x0 = arm(), [1.2, -0.3, 0.0, 0.0]

    def motor(t):
        return np.array([2.0 * np.sin(3.0 * t), 0.8 * np.cos(5.0 * t)])

    run = run_of(robot, x0, 1.2, motor)
    assert len(run.events) > 1
    power = 0.0
    for arc in run.arcs:
        times = np.linspace(arc.start, arc.end, 301)
        v = np.array([arc(t)[2:] for t in times])
        forces = np.array([motor(t) for t in times]) - 0.05 * v - robot.friction * np.sign(v)
        power += simpson((forces * v).sum(axis=1), x=times)
    before, after = (sum(robot.energy(x[:2], x[2:])) for x in (np.array(x0), run.final_state))
    # Simpson's rule with steps of some 1 ms errs less than the integrator, by 1e-7 of 20 J.
    assert after - before == pytest.approx(power, abs=1e-6)


@pytest.mark.slow
def test_time_stepping_comes_to_the_same_motion_with_the_order_one():
    robot = arm(friction=(1.0, 0.5))
    system, x0 = contact_system(robot, []), np.array([1.2, -0.3, 0.0, 0.0])
    exact = hc.simulate(system, None, x0, (0.0, 1.5), rtol=1e-10, atol=1e-10)
    assert {"stick"} < {mode for arc in exact.arcs for mode in arc.mode}
    for step in (4e-3, 1e-3):
        run = time_stepping(robot, [], x0, (0.0, 1.5), step=step)
        # Of order one, with a constant of 0.4 / s as measured.
        assert np.abs(run.final_state - exact.final_state).max() < step
        assert run.final_mode == exact.final_mode


STOPPED = """<joint name="{name}" type="prismatic"><parent link="w"/><child link="{name} link"/>
<axis xyz="1 0 0"/><dynamics friction="{friction}"/>
<limit lower="-9" upper="0.5" effort="9" velocity="9"/>{mimic}</joint>"""


def sliders(**joints):
    """Masses of 1 kg that slide beside each other; joints: dry friction in N, and a mimic."""
    text = "".join(
        link(f"{name} link") + STOPPED.format(name=name, friction=friction, mimic=mimic)
        for name, (friction, mimic) in joints.items()
    )
    return Robot.from_urdf(f'<robot name="s"><link name="w"/>{text}</robot>')


def test_joint_that_is_pushed_into_its_stop_beside_one_that_rests():
    """With 8 N against 3 N of friction it gets there after sqrt(1 / 5) s; the stop takes 5 N."""
    robot = sliders(left=(3.0, ""), far=(0.25, ""))
    left = robot.velocity_index("left")
    system, push = contact_system(robot, [], joint_stops={"left": 0.0}), 8.0 * np.eye(2)[left]
    run = hc.simulate(system, None, np.zeros(4), (0.0, 1.5), lambda t, x: push)
    assert [event.guards for event in run.events] == [("left upper stop closes",)]
    assert run.events[0].time == pytest.approx(0.2**0.5, abs=1e-9)
    np.testing.assert_allclose(run.final_state, [*(0.5 * np.eye(2)[left]), 0.0, 0.0], atol=1e-9)
    outputs = system.mode(run.final_mode).outputs(1.5, run.final_state, push)
    assert outputs["normal_force"].sum() == pytest.approx(5.0, abs=1e-9)
    assert sorted(outputs["joint_friction"]) == pytest.approx([-3.0, 0.0], abs=1e-9)


TREE = """<joint name="{name}" type="prismatic"><parent link="{parent}"/><child link="{child}"/>
<axis xyz="{axis}"/><dynamics damping="0" friction="{friction}"/>
<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>"""


@pytest.mark.parametrize("speed", [0.0, 0.2])
def test_guard_of_a_joint_beside_a_foot_at_a_standstill_has_the_derivative_of_its_value(speed):
    """A foot in a surface may be held, with a constant guard; a joint, which has a sign, is not."""
    pairs = ["x w a", "y a b", "z b foot", "s foot cart"]
    axes, frictions = ["1 0 0", "0 1 0", "0 0 1", "1 0 0"], [0.0, 0.0, 0.0, LIMIT]
    joints = "".join(
        TREE.format(name=name, parent=parent, child=child, axis=axis, friction=friction)
        for (name, parent, child), axis, friction in zip(
            map(str.split, pairs), axes, frictions, strict=True
        )
    )
    links = '<link name="w"/>' + "".join(map(link, ["a", "b", "foot", "cart"]))
    robot = Robot.from_urdf(f'<robot name="t">{links}{joints}</robot>')
    ground = Plane((0, 0, 0), (0, 0, 1))
    system = contact_system(robot, [Contact("toe", "foot", ground, friction=0.8)])
    mode, x, u = system.mode(("slip", "slip+")), np.zeros(8), np.zeros(4)
    x[7] = speed
    point = mode.calc(0.0, x, u)
    foot, joint = (mode.guard_names.index(n) for n in ("toe sticks", "s friction sticks"))
    assert point.guards[foot] < 0.0
    assert point.guards[joint] == speed
    by_state = central(lambda dx: mode.calc(0.0, x + dx, u).guards, 8, 1e-9)
    analytic = point.guard_jacobian.state[[foot, joint]]
    # 1e-16 of rounding over a step of 1e-9
    np.testing.assert_allclose(analytic, by_state[[foot, joint]], atol=1e-6)


@pytest.mark.parametrize("multiplier", [-2.0, 0.5])
def test_friction_of_a_joint_that_mimics_acts_on_the_one_that_it_follows(multiplier):
    """Of 2 N and 0.5 N: at v and m v they take the power (2 + 0.5 |m|) v from 1 + m^2 kg."""
    mimic = f'<mimic joint="left" multiplier="{multiplier}" offset="0.1"/>'
    robot = sliders(left=(2.0, ""), right=(0.5, mimic))
    friction, mass = 2.0 + 0.5 * abs(multiplier), 1.0 + multiplier**2
    np.testing.assert_allclose(robot.friction, [friction], rtol=1e-15)
    assert robot.effort.tolist() == [9.0]
    system = contact_system(robot, [], joint_stops={"left": 0.0})
    held = hc.simulate(
        system, None, [0.0, 0.0], (0.0, 0.5), lambda t, x: np.array([0.99 * friction])
    )
    assert held.final_mode == ("open", "open", "stick")
    run = hc.simulate(system, None, [0.0, 0.0], (0.0, 2.0), lambda t, x: np.array([friction + 2.0]))
    assert run.events[0].time == pytest.approx((2.0 * 0.5 * mass / 2.0) ** 0.5, abs=1e-9)
    np.testing.assert_allclose(run.final_state, [0.5, 0.0], atol=1e-9)
    outputs = system.mode(run.final_mode).outputs(2.0, run.final_state, np.array([friction + 2.0]))
    np.testing.assert_allclose(outputs["normal_force"], [0.0, 2.0], atol=1e-9)


def test_bounces_at_a_stop_of_a_joint_with_friction_come_to_rest():
    """Pushed by p against friction f, it turns between bounces: up with p + f, down with p - f.

    A bounce of speed v takes v / (p + f), and back v' / (p - f) with v'^2 = v^2 (p - f) / (p + f).
    """
    push, friction, e = 3.0, 1.0, 0.5
    robot = sliders(left=(friction, ""))
    system = contact_system(robot, [], joint_stops={"left": e})
    run = hc.simulate(system, None, [0.5, -1.0], (0.0, 3.0), lambda t, x: np.array([push]))
    back = ((push - friction) / (push + friction)) ** 0.5
    flight = 1.0 / (push + friction) + back / (push - friction)
    assert run.events[-1].time == pytest.approx(flight / (1.0 - e * back), abs=1e-5)
    assert run.events[-1].rest
    assert run.final_mode == ("open", "closed", "stick")
    np.testing.assert_allclose(run.final_state, [0.5, 0.0], atol=1e-8)


@pytest.mark.slow
def test_filter_follows_the_modes_of_a_joint():
    """Under a held periodic force, positions seen to 1 mm; it sticks and slips both ways.

    The mean NIS of 100 scalar samples is 1 within 0.14 at one sigma.
    """
    system, period = contact_system(slider(), []), 0.02
    times = period * np.arange(1, 101)

    def motor(t, x):
        return np.array([1.3 * LIMIT * np.sin(6.0 * t)])

    truth = hc.simulate(system, None, np.zeros(2), (0.0, 2.0), hc.SampledPolicy(motor, period))
    noise = np.random.default_rng(0).normal(scale=1e-3, size=(100, 1))
    seen = hc.Series(times, np.array([truth(t)[:1] for t in times]) + noise)
    given = hc.Series(times - period, np.array([motor(t, None) for t in times - period]))
    position = coordinates("position", [0], 1e-6 * np.eye(1))
    salted = hc.SaltedKalmanFilter(system, np.diag([0.0, 1e-6]), position)
    start = hc.estimation.Estimate(("stick",), 0.0, np.zeros(2), np.diag([1e-4, 0.0]))
    found = salted.run(hc.estimation.Record({"position": seen}, given), start)
    assert set(found.modes) == {("stick",), ("slip+",), ("slip-",)}
    assert abs(found.summary()["mean_nis"] - 1.0) < 0.4
    np.testing.assert_allclose(found.means[-1], truth.final_state, atol=2e-3)


CHAINS = 5
"""Random chains; 300 were run once."""


def chain(rng, h):
    """The MJCF of a chain of two to four links in space, with dry friction in all joints."""
    count = int(rng.integers(2, 5))
    text, close = "", ""
    for k in range(count):
        axis, loss = rng.normal(size=3), rng.uniform(0.02, 0.8)
        place = (0, 0, -0.5) if k else (0, 0, 0)
        text += f"""<body pos="{place[0]} {place[1]} {place[2]}"><joint name="j{k}"
axis="{axis[0]} {axis[1]} {axis[2]}" frictionloss="{loss}" damping="0.02"
solreffriction="{2.0 * h} 1" solimpfriction="0.9999 0.9999 1e-3"/><inertial pos="0 0 -.25"
mass="{rng.uniform(0.3, 1.0)}" diaginertia=".03 .03 .02"/>"""
        close += "</body>"
    options = f"""<option timestep="{h}" solver="Newton" tolerance="1e-14" iterations="200"
integrator="implicit"/>"""
    return f"<mujoco>{options}<worldbody>{text}{close}</worldbody></mujoco>"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CHAINS))
def test_random_chains_move_as_in_mujoco(seed):
    """Its friction is softened over two of its steps, an error of order one, which is extrapolated.

    Steps of 0.02 ms alone are off by up to 6e-3. Besides, friction is within its limit, and
    opposes the motion of what slips.
    """
    mujoco = pytest.importorskip("mujoco")
    end, steps = 0.8, (4e-5, 2e-5)
    coarse, fine = (chain(np.random.default_rng(seed), h) for h in steps)
    robot, rng = Robot.from_mjcf(fine), np.random.default_rng(1000 + seed)
    x0 = np.concatenate((rng.normal(size=robot.nv), 2.0 * rng.normal(size=robot.nv)))
    run = run_of(robot, x0, end)
    found = []
    for text, h in zip((coarse, fine), steps, strict=True):
        model = mujoco.MjModel.from_xml_string(text)
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = x0[: robot.nq], x0[robot.nq :]
        mujoco.mj_step(model, data, nstep=round(end / h))
        found.append(np.concatenate((data.qpos, data.qvel)))
    np.testing.assert_allclose(2.0 * found[1] - found[0], run.final_state, atol=1e-3)
    for arc, times, outputs in run.sampled_outputs(0.01):
        torque = outputs["joint_friction"]
        assert (np.abs(torque) <= robot.friction * (1.0 + 1e-6)).all()
        v = np.array([arc(t)[robot.nq :] for t in times])
        slips = np.array([mode != "stick" for mode in arc.mode])
        assert (torque * v <= 1e-9)[:, slips].all()
        assert np.abs(v[:, ~slips]).max(initial=0.0) < 1e-8


@pytest.mark.slow
def test_mujoco_moves_alike_with_a_tight_solver():
    """Its frictionloss is softened by solref: the difference falls with the engine's step."""
    mujoco = pytest.importorskip("mujoco")
    text = """<mujoco><option timestep="{h}" solver="Newton" tolerance="1e-14" iterations="200"
integrator="implicit"/><worldbody><body name="upper"><joint name="shoulder" axis="0 1 0"
frictionloss="1.0" solreffriction="{s} 1" solimpfriction="0.9999 0.9999 1e-3"/>
<inertial pos="0 0 -.5" mass="1" diaginertia=".1 .1 .1"/><body name="lower" pos="0 0 -1">
<joint name="elbow" axis="0 1 0" frictionloss="0.5" solreffriction="{s} 1"
solimpfriction="0.9999 0.9999 1e-3"/><inertial pos="0 0 -.5" mass="1" diaginertia=".1 .1 .1"/>
</body></body></worldbody></mujoco>"""
    robot = Robot.from_mjcf(text.format(h=1e-4, s=2e-4))
    x0 = np.array([1.2, -0.3, 0.0, 0.0])
    run = run_of(robot, x0, 2.0)
    errors = []
    for h in (1e-4, 2.5e-5):
        model = mujoco.MjModel.from_xml_string(text.format(h=h, s=2.0 * h))
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = x0[:2], x0[2:]
        mujoco.mj_step(model, data, nstep=round(2.0 / h))
        errors.append(np.abs(np.concatenate((data.qpos, data.qvel)) - run.final_state).max())
    assert errors[1] < 1e-3
    assert errors[1] < 0.5 * errors[0]


def test_what_does_not_take_joints_says_so():
    wall = Contact("wall", "m", Plane((5, 0, 0), (-1, 0, 0)), friction=0.2)
    system = contact_system(slider(), [wall])
    with pytest.raises(InputError, match=r"relaxation takes no contacts of joints.*'x friction'"):
        hc.relax(system, 1e-3)
    with pytest.raises(InputError, match=r"a plan takes no contacts of joints"):
        Task(system, [Phase(("open", "stick"), (), (0.5, 1.0))])
    with pytest.raises(InputError, match=r"a friction cone filter takes no contacts of joints"):
        ConeFilter(system, [1.0])


def test_push_that_begins_and_ends_breaks_it_away_once():
    """3 N from 0.2 to 0.6 s leave 0.4 m/s at 0.08 m, which 2 N stop after 0.2 s and 0.04 m."""
    push = Wrench("m", (3.0, 0.0, 0.0), 0.2, 0.6)
    run = hc.simulate(contact_system(slider(), []), None, [0.0, 0.0], (0.0, 1.5), wrench=push)
    np.testing.assert_allclose(run.final_state, [0.12, 0.0], atol=1e-9)
    assert run.events[-1].time == pytest.approx(0.8, abs=1e-9)


@pytest.mark.parametrize("by_contact", [pytest.param(False, marks=pytest.mark.slow), True])
def test_law_that_jumps_unannounced_is_gone_past_with_a_warning(by_contact):
    """The same push by a law that does not say when it jumps; a bridge is 1e-4 s long at most."""
    robot, contacts = slider(0.0 if by_contact else LIMIT), []
    if by_contact:
        # A second slider of friction: a floor that carries 1 kg with mu g = 2 m/s^2.
        joints = SLIDE.format(name="x", child="c", place=0, friction=0)
        lift = SLIDE.format(name="z", child="m", place=0, friction=0)
        lift = lift.replace('parent link="w"', 'parent link="c"').replace("1 0 0", "0 0 1")
        bodies = link("c", mass=1e-9) + link("m")
        text = f'<robot name="s"><link name="w"/>{bodies}{joints}{lift}</robot>'
        robot = Robot.from_urdf(text, actuated=["x"])
        ground = Plane((0, 0, 0), (0, 0, 1))
        contacts = [Contact("pad", "m", ground, friction=LIMIT / 9.81)]
    system, still = contact_system(robot, contacts), np.zeros(2 * robot.nv)
    with pytest.warns(BridgeWarning):
        run = hc.simulate(
            system,
            None,
            still,
            (0.0, 1.5),
            lambda t, x: np.array([3.0 if 0.2 <= t < 0.6 else 0.0]),
            max_step=0.05,
        )
    assert run.final_state[0] == pytest.approx(0.12, abs=2e-4)
