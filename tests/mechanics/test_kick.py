"""A blow on a body: momentum, closed forms, and the mode in which the state flows on."""

import numpy as np
import pytest
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.errors import GuardViolatedError, InputError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

MASS, HALF = 0.37, 0.05
CUBE = f"""<robot name="cube"><link name="cube"><inertial><mass value="{MASS}"/>
<inertia ixx="8.1e-4" iyy="8.1e-4" izz="8.1e-4" ixy="0" ixz="0" iyz="0"/></inertial></link>
</robot>"""
BALL = """<inertial><mass value="1"/>
<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial>"""
CORNERS = [(x, y, -HALF) for x in (HALF, -HALF) for y in (HALF, -HALF)]
ROUNDING = 1e-9  # of velocities of some m/s; impulses are solved to about 1e-12 of their size


def cube(friction, height=HALF):
    robot = Robot.from_urdf(CUBE, root="floating")
    table = Plane(point=(0, 0, 0), normal=(0, 0, 1))
    contacts = [
        Contact(f"c{i}", "cube", table, offset=p, friction=friction) for i, p in enumerate(CORNERS)
    ]
    q = robot.neutral()
    q[2] = height
    return contact_system(robot, contacts), np.concatenate((q, np.zeros(6)))


def test_in_the_air_momentum_changes_by_the_impulse():
    system, x = cube(0.5, height=1.0)
    lever, blow = np.array([0.01, 0.02, 0.03]), np.array([0.1, -0.2, 0.3])
    kick = system.kick(x, "cube", blow, lever)
    v = kick.state[system.robot.nq :]  # level, so that body and world axes agree
    assert kick.mode == ("open",) * 4
    np.testing.assert_allclose(MASS * v[:3], blow, atol=ROUNDING)
    np.testing.assert_allclose(8.1e-4 * v[3:], np.cross(lever, blow), atol=ROUNDING)
    np.testing.assert_array_equal(kick.state[: system.robot.nq], x[: system.robot.nq])


def test_a_blow_along_a_table_slides_by_what_friction_leaves():
    """A downward part P_n presses: friction takes mu P_n from P_t, and the cube stays level where
    the blow's line passes low enough."""
    friction, down, along = 0.3, 0.2, 0.5
    system, x = cube(friction)
    # At the height where the blow and friction at the soles leave no moment about the centre: mu
    # P_n acts at -HALF, so P_t h = -mu P_n HALF puts no load from one side to the other.
    lever = (0.0, 0.0, -HALF * friction * down / along)
    kick = system.kick(x, "cube", (along, 0.0, -down), lever)
    v = kick.state[system.robot.nq :]
    expected = [(along - friction * down) / MASS, 0.0, 0.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(v, expected, atol=ROUNDING)
    assert kick.mode == ("slip",) * 4
    assert kick.impulses.sum() == pytest.approx(down, abs=ROUNDING)


def test_a_blow_inside_the_friction_cone_moves_nothing():
    system, x = cube(0.5)
    kick = system.kick(x, "cube", (0.1, 0.0, -1.0))
    np.testing.assert_allclose(kick.state, x, atol=ROUNDING)
    assert kick.mode == ("stick",) * 4


def test_a_blow_upwards_lifts():
    system, x = cube(0.5)
    kick = system.kick(x, "cube", (0.0, 0.0, 0.37))
    assert kick.mode == ("open",) * 4
    assert kick.state[system.robot.nq + 2] == pytest.approx(1.0, abs=ROUNDING)
    run = hc.simulate(system, kick.mode, kick.state, (0.0, 0.05))
    assert run.final_state[2] == pytest.approx(HALF + 0.05 - 0.5 * 9.81 * 0.05**2, abs=1e-8)


def test_a_run_goes_on_from_a_blow_until_friction_has_stopped_it():
    system, x = cube(0.3)
    speed = 0.2
    kick = system.kick(x, "cube", (MASS * speed, 0.0, 0.0), (0.0, 0.0, 0.0))
    run = hc.simulate(system, kick.mode, kick.state, (0.0, 0.3))
    assert run.final_mode == ("stick",) * 4
    after = kick.state[system.robot.nq]
    stop = after**2 / (2.0 * 0.3 * 9.81)  # at the simulator's tolerance of 1e-9, times a few
    assert run.final_state[0] == pytest.approx(stop, abs=1e-7)


@pytest.mark.parametrize(
    ("height", "speed", "mode"),
    [(0.2, 0.0, "open"), (HALF, 0.0, "stick"), (HALF, 1.0, "open"), (HALF + 1e-7, -1.0, "open")],
)
def test_the_consistent_mode_is_that_of_gaps_and_speeds(height, speed, mode):
    system, x = cube(0.5, height)
    x[system.robot.nq + 2] = speed
    assert system.consistent_mode(x) == (mode,) * 4


def test_sliding_is_seen():
    system, x = cube(0.5)
    x[system.robot.nq] = 1.0
    assert system.consistent_mode(x) == ("slip",) * 4


def test_states_with_no_mode_are_refused():
    system, x = cube(0.5, 0.04)
    with pytest.raises(GuardViolatedError, match=r"inside the surface of contact 'c0'.*-0\.01"):
        system.consistent_mode(x)
    system, x = cube(0.5)
    x[2] -= 1e-7
    x[system.robot.nq + 2] = -1.0
    with pytest.raises(GuardViolatedError, match="just before an impact"):
        system.kick(x, "cube", (1.0, 0.0, 0.0))


def test_a_run_finds_its_mode_under_the_input_of_its_policy():
    """A motor that lifts with twice the weight leaves no contact closed; one of half of it does."""
    robot = Robot.from_urdf(CUBE, root="floating", actuated=["root_joint"])
    system = contact_system(robot, cube(0.5)[0].contacts)
    _, x = cube(0.5)
    for part, mode in ((0.5, "stick"), (2.0, "open")):
        lift = np.array([0.0, 0.0, part * robot.weight, 0.0, 0.0, 0.0])
        run = hc.simulate(system, None, x, (0.0, 0.05), lambda t, x, lift=lift: lift)
        assert run.arcs[0].mode == run.final_mode == (mode,) * 4


def test_a_system_that_cannot_tell_wants_a_mode():
    still = hc.HybridSystem([hc.Mode("a", hc.VectorSpace(1), lambda t, x, u: 0.0 * x)], [])
    with pytest.raises(InputError, match="mode must be given"):
        hc.simulate(still, None, [0.0], (0.0, 1.0))


def test_a_run_in_another_mode_names_the_consistent_one():
    system, x = cube(0.5)
    x[2] -= 1e-6
    with pytest.raises(GuardViolatedError, match=r"mode \('stick'.*\) is consistent with x0"):
        hc.simulate(system, ("open",) * 4, x, (0.0, 0.1))


def test_bad_arguments_are_named():
    system, x = cube(0.5)
    with pytest.raises(UnknownNameError, match="frame"):
        system.kick(x, "trunk", (1.0, 0.0, 0.0))
    with pytest.raises(InputError, match="must move with a joint"):
        system.kick(x, "universe", (1.0, 0.0, 0.0))
    with pytest.raises(InputError, match="impulse must have shape"):
        system.kick(x, "cube", (1.0, 0.0))
    with pytest.raises(InputError, match="impulse must be finite"):
        system.kick(x, "cube", (np.nan, 0.0, 0.0))


@pytest.mark.parametrize(("rate", "mode"), [(1.0, "open"), (1e-9, "closed")])
def test_a_ball_that_leaves_the_floor_by_rounding_below_it_is_in_the_air(rate, mode):
    system = ball.system(ball.BallParameters(slope=0.0))
    run = hc.simulate(system, None, [0.0, -1e-9, 0.0, rate], (0.0, 0.01))
    assert run.arcs[0].mode == (mode,)


def row(gap, count=5):
    """A row of balls of 1 kg on a rail that touch elastically, and its state; the first comes."""
    links = "".join(f'<link name="{k}">{BALL}</link>' for k in range(count))
    joints = "".join(
        f'<joint name="rail{k}" type="prismatic"><parent link="world"/><child link="{k}"/>'
        '<axis xyz="1 0 0"/><limit lower="-9" upper="9" effort="99" velocity="99"/></joint>'
        for k in range(count)
    )
    robot = Robot.from_urdf(f'<robot name="row"><link name="world"/>{links}{joints}</robot>')
    side = Plane((-0.05, 0.0, 0.0), (-1.0, 0.0, 0.0))
    contacts = [
        Contact(f"{k}", f"{k}", side, body=f"{k + 1}", offset=(0.05, 0.0, 0.0), restitution=1.0)
        for k in range(count - 1)
    ]
    x = np.concatenate(((0.1 + gap) * np.arange(count), np.eye(count)[0]))
    return contact_system(robot, contacts), x


@pytest.mark.parametrize("gap", [1e-6, 2e-7, 1e-5, 1e-3])
def test_balls_that_do_not_quite_touch_hit_one_after_the_other(gap):
    """Newton's cradle: each elastic impact of equal masses hands the speed on."""
    system, x = row(gap)
    assert system.consistent_mode(x) == ("open",) * 4
    run = hc.simulate(system, None, x, (0.0, 5.0 * gap))
    assert [event.guards for event in run.events] == [(f"{k} closes",) for k in range(4)]
    times = [event.time for event in run.events]
    # each ball moves by its gap at 1 m/s; places near 0.4 m are known to 1e-16
    np.testing.assert_allclose(times, gap * np.arange(1, 5), atol=1e-14)
    # speeds of one by products of inertias near one, a few roundings in each of four impacts
    np.testing.assert_allclose(run.final_state[5:], np.eye(5)[4], atol=1e-13)


def test_balls_that_touch_are_one_impact():
    """The other side of the gap that counts as closed: Newton's law of one impact of all."""
    system, x = row(0.0)
    x[0] -= 1e-3
    run = hc.simulate(system, None, x, (0.0, 2e-3))
    assert run.arcs[0].mode == ("open", "closed", "closed", "closed")


def test_a_run_goes_on_from_where_another_ended():
    """Gaps that a landing leaves are closed: 1e-7 m is above what events and steps leave."""
    system, x = cube(0.5, 0.11)
    x[3:7] = [0.02, 0.01, 0.0, np.sqrt(1.0 - 5e-4)]
    run = hc.simulate(system, ("open",) * 4, x, (0.0, 0.6))
    assert run.final_mode == ("stick",) * 4
    on = hc.simulate(system, None, run.final_state, (0.6, 0.7))
    assert on.arcs[0].mode == on.final_mode == run.final_mode
    assert not on.events
