"""Moreau-Jean time stepping against the event-driven simulator: order one in the step.

An impact falls somewhere inside a step, so the error is not smooth in h but lies below C h; the
largest over a few steps near each size is compared, and its slope fitted.
"""

import numpy as np
import pytest
from hybridctl.robots import ball, block, cube, rrr_door

import hybridctl as hc
from hybridctl.base.errors import GuardViolatedError, InputError, NoContactSolutionError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system, time_stepping
from mechanics.test_joint_stops import ACROBOT, PENDULUM

G = 9.81
SIZES = 1e-3 * 0.5 ** np.arange(3)
NEAR = (1.0, 0.93, 0.87, 0.81, 0.77)


def cube_start():
    """A cube that falls flat on four corners while it flies sideways, and slides to a stop."""
    x = np.zeros(13)
    x[2], x[6] = 0.0524 + 0.05, 1.0
    x[7], x[8] = 0.5, 0.2
    return x


def block_case():
    p = block.BlockParameters()
    return block.robot(p), block.contacts(p), [0.0, 0.3, 0.2, 1.0, 0.0, 0.0], 0.3, None


def cube_case():
    p = cube.CubeParameters(restitution=0.0)
    return cube.robot(p), cube.contacts(p), cube_start(), 0.3, None


def door_case():
    p = rrr_door.DoorParameters(friction=0.2)
    push = np.array([25.0, 15.0, 2.0])
    x0 = np.array([-0.53, 1.9, 0.2, 0.0, 0.2, 0.3, 0.0, 0.0])
    return rrr_door.robot(p), rrr_door.contacts(p), x0, 0.35, lambda t, x: push - 4.0 * x[4:7]


CASES = {"block": block_case, "cube": cube_case, "door": door_case}


@pytest.mark.parametrize(
    "name",
    [
        "block",
        pytest.param("cube", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param("door", marks=pytest.mark.slow),
    ],
)
def test_both_simulators_agree_to_first_order_in_the_step(name):
    robot, contacts, x0, end, policy = CASES[name]()
    system = hc.mechanics.contact_system(robot, contacts)
    free = ("open",) * len(contacts)
    exact = hc.simulate(
        system, free, x0, (0.0, end), policy, rtol=1e-10, atol=1e-11, on_zeno="rest"
    )
    assert exact.events
    space = system.mode(free).space
    errors = []
    for size in SIZES:
        found = []
        for near in NEAR:
            steps = round(end / (near * size))
            run = time_stepping(robot, contacts, x0, (0.0, end), policy, step=end / steps)
            found.append(np.abs(space.difference(exact.final_state, run.final_state)).max())
        errors.append(max(found))
    slope = np.polyfit(np.log(SIZES), np.log(errors), 1)[0]
    assert 0.75 < slope < 1.4, f"errors {errors}"
    assert errors[-1] < 0.05


def test_a_bouncing_ball_goes_on_past_the_end_of_its_bounces():
    p = ball.BallParameters(slope=0.0, restitution=0.5)
    run = time_stepping(
        ball.robot(p), ball.contacts(p), [0.0, 0.2, 0.0, 0.0], (0.0, 1.0), step=1e-3
    )
    # v0/g (1 + 2 e / (1 - e)) = 0.606 s after its release; positions are right to h v.
    assert run.final_mode == ("closed",)
    assert abs(run.final_state[1]) < 1e-3
    assert abs(run.final_state[3]) < 1e-9


def test_impulses_of_a_resting_cube_carry_its_weight():
    p = cube.CubeParameters()
    x0 = cube_start()
    x0[2], x0[7:9] = 0.0524, 0.0
    run = time_stepping(cube.robot(p), cube.contacts(p), x0, (0.0, 0.05), step=1e-3)
    # what the default tolerance leaves: 1e-6 of the speed that gravity gives in a step
    np.testing.assert_allclose(run.final_state[7:10], np.zeros(3), atol=1e-6 * G * 1e-3)
    np.testing.assert_allclose(run.final_state[10:], np.zeros(3), atol=1e-6 * G * 1e-3 / 0.05)
    assert run.final_mode.count("stick") == 4


def test_trajectories_can_be_saved_and_read_back(tmp_path):
    robot, contacts, x0, end, _ = block_case()
    run = time_stepping(robot, contacts, x0, (0.0, end), step=1e-3)
    run.save(tmp_path / "run.npz")
    system = hc.mechanics.contact_system(robot, contacts)
    again = hc.HybridTrajectory.load(tmp_path / "run.npz", system)
    assert [e.guards for e in again.events] == [e.guards for e in run.events]
    np.testing.assert_array_equal(again.final_state, run.final_state)


class Pushes:
    """Pushes sideways from its second time on, with what it knows of the past."""

    def __init__(self, times, pushes):
        self.times, self.pushes = times, pushes

    def law(self, history):
        push = self.pushes[np.searchsorted(self.times, history.time, "right")]
        return lambda t, x: np.array([push, 0.0])

    def next_change(self, history):
        return min((t for t in self.times if t > history.time), default=np.inf)


def test_a_policy_that_changes_its_law_between_steps_is_asked_again():
    p = ball.BallParameters(slope=0.0)
    times, pushes = [0.105, 0.2, 0.25], [0.0, 2.0, -1.0, 0.5]
    run = time_stepping(
        ball.robot(p),
        ball.contacts(p),
        [0.0, 1.0, 0.0, 0.0],
        (0.0, 0.3),
        Pushes(times, pushes),
        step=1e-2,
    )
    # 1 kg: the impulse of forces that are constant in pieces, exactly
    lengths = np.diff([0.0, *times, 0.3])
    assert run.final_state[2] == pytest.approx(lengths @ pushes, abs=1e-14)
    assert [event.time for event in run.events] == times
    assert all(event.guards == () for event in run.events)
    assert [event.input_before[0] for event in run.events] == pytest.approx(pushes[:-1], abs=1e-15)
    assert [event.input_after[0] for event in run.events] == pushes[1:]


def test_both_simulators_hold_the_same_samples():
    p = ball.BallParameters(slope=0.0)
    policy = hc.SampledPolicy(lambda t, x: np.array([1.0 - 3.0 * x[2], 0.0]), 0.03)
    x0, span = [0.0, 1.0, 0.4, 0.0], (0.0, 0.2)
    run = time_stepping(ball.robot(p), ball.contacts(p), x0, span, policy, step=7e-3)
    exact = hc.simulate(ball.system(p), ("open",), x0, span, policy)
    assert [e.time for e in run.events] == [e.time for e in exact.events]
    # forces are constant between samples, where both schemes have exact velocities
    np.testing.assert_allclose(run.final_state, exact.final_state, rtol=0.0, atol=1e-12)


def test_bad_arguments_are_named():
    robot, contacts, x0, _, _ = block_case()
    with pytest.raises(InputError, match="step must be greater than 0"):
        time_stepping(robot, contacts, x0, (0.0, 1.0), step=0.0)
    with pytest.raises(GuardViolatedError, match="penetrates at contact 'left'"):
        time_stepping(robot, contacts, [0.0, 0.01, 0.0, 0.0, 0.0, 0.0], (0.0, 1.0))
    with pytest.raises(InputError, match="x0 must have shape"):
        time_stepping(robot, contacts, [0.0, 0.01], (0.0, 1.0))


def test_a_cube_that_slides_on_four_corners_loses_speed_to_friction_alone():
    """All corners touch, and none turns the cube: mu g t, until it stands."""
    p = cube.CubeParameters()
    x0 = cube_start()
    x0[2], x0[7:9] = p.half_width - 1e-9, (0.3, 0.4)
    stop = 0.5 / (p.friction * G)
    run = time_stepping(cube.robot(p), cube.contacts(p), x0, (0.0, 1.5 * stop), step=1e-3)
    for t in np.linspace(1e-3, 1.5 * stop, 20):
        # between steps velocities are straight lines: exact but in the one where the cube stops
        exact = np.array([0.6, 0.8, 0.0]) * max(0.5 - p.friction * G * t, 0.0)
        slack = p.friction * G * 1e-3 if abs(t - stop) <= 1e-3 else 1e-9
        np.testing.assert_allclose(run(t)[7:10], exact, atol=slack)
        np.testing.assert_allclose(run(t)[10:], np.zeros(3), atol=1e-9 / p.half_width)
    assert [event.mode_after.count("slip") for event in run.events] == [4, 0]
    assert run.final_mode.count("stick") == 4


RAIL = """<robot name="rail"><link name="base"/>
<link name="mass"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="slide" type="prismatic"><parent link="base"/><child link="mass"/><axis xyz="1 0 0"/>
<limit lower="-9" upper="9" effort="9" velocity="9"/></joint></robot>"""


def test_a_law_without_a_solution_is_named():
    """Between two walls, v+ <= -0.5 v from the one and v+ >= -0.2 v from the other."""
    right = Contact("right", "mass", Plane((0, 0, 0), (-1, 0, 0)), restitution=0.5)
    # so little inside that x0 is accepted, and still inside after half a step
    left = Contact("left", "mass", Plane((1e-6, 0, 0), (1, 0, 0)), restitution=0.2)
    robot, x0, span = Robot.from_urdf(RAIL, actuated=[]), [0.0, 1e-3], (0.0, 0.1)
    assert time_stepping(robot, [right], x0, span).final_state[1] == pytest.approx(-0.5e-3)
    with pytest.raises(NoContactSolutionError, match=r"'right', 'left'.* t = 0 s: .* penetrating"):
        time_stepping(robot, [right, left], x0, span)


def test_pendulum_comes_to_rest_at_its_stop():
    """A motor of 50 N m presses it there: each step the stop takes h times that less the weight.

    It ends within one step of the stop, at most h v deep: 8 rad/s and 50 N m over 0.26 kg m^2 let
    it arrive with less than 11 rad/s.
    """
    step = 1e-3
    push = {"policy": lambda t, x: np.array([50.0]), "step": step, "joint_stops": True}
    run = time_stepping(Robot.from_urdf(PENDULUM), [], [0.4, 8.0], (0.0, 0.2), **push)
    assert run.final_mode == ("open", "closed")
    assert [event.guards for event in run.events] == [("j upper stop closes",)]
    angle, rate = run.final_state
    assert abs(angle - 0.5) < 11.0 * step
    assert abs(rate) < 1e-9  # of velocities of some 10 rad/s, the law is solved to 1e-9 of these
    # Arrival with w^2 = w0^2 + 2 (50 * 0.1 + m g l (cos 0.5 - cos 0.4)) / I
    arrival = np.sqrt(64.0 + 2.0 * (5.0 + 9.81 * 0.5 * (np.cos(0.5) - np.cos(0.4))) / 0.26)
    assert run.events[0].impulses[1] == pytest.approx(0.26 * arrival, rel=50.0 * step)


def test_pendulum_bounces_off_its_stop():
    """Without gravity and input it leaves with half of the speed: e acts at the first step."""
    robot = Robot.from_urdf(PENDULUM, gravity=(0.0, 0.0, 0.0))
    run = time_stepping(robot, [], [0.0, 2.0], (0.0, 0.5), joint_stops={"j": 0.5})
    assert run.final_state[1] == pytest.approx(-1.0, abs=1e-9)
    assert run.final_state[0] == pytest.approx(0.5 - 0.25, abs=4e-3)  # the event is one step off


@pytest.mark.slow
@pytest.mark.parametrize("stops", [{"elbow": 0.3}, {"elbow": 0.0}])
def test_stops_agree_with_events_to_first_order_in_the_step(stops):
    """With dry friction in the shoulder besides."""
    robot, x0, end = Robot.from_urdf(ACROBOT, friction={"shoulder": 0.4}), [1.5, 0.2, 0, 1.0], 0.5
    system = contact_system(robot, [], joint_stops=stops)
    exact = hc.simulate(system, None, x0, (0.0, end), rtol=1e-10, atol=1e-11, on_zeno="rest")
    assert any("elbow upper stop closes" in event.guards for event in exact.events)
    errors = []
    for size in (4e-3, 2e-3, 1e-3):
        found = []
        for near in NEAR:
            step = end / round(end / (near * size))
            run = time_stepping(robot, [], x0, (0.0, end), step=step, joint_stops=stops)
            found.append(np.abs(run.final_state - exact.final_state).max())
        errors.append(max(found))
    slope = np.polyfit(np.log([4.0, 2.0, 1.0]), np.log(errors), 1)[0]
    assert 0.75 < slope < 1.4, f"errors {errors}"
    assert errors[-1] < 0.05


def test_stops_of_time_stepping_are_checked():
    robot = Robot.from_urdf(PENDULUM)
    with pytest.raises(GuardViolatedError, match=r"'j upper stop': gap -0\.1 rad"):
        time_stepping(robot, [], [0.6, 0.0], (0.0, 0.1), joint_stops=True)
    with pytest.raises(InputError, match="joint_stops"):
        time_stepping(robot, [], [0.0, 0.0], (0.0, 0.1), joint_stops=2.0)
