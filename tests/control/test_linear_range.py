"""How far an optimal feedback can be believed: its first order, and its motors."""

import re
import warnings

import casadi as ca
import numpy as np
import pytest
from sensitivity.test_radius import bowl
from test_first_hour import HOPPER

import hybridctl as hc
from hybridctl.base.errors import EffortLimitWarning, LinearRangeWarning
from hybridctl.control import ClockTracking
from hybridctl.hybrid.simulate import computed_starts
from hybridctl.mechanics import Contact, Plane, Robot, contact_system, equilibrium

START, SPAN = np.array([1.0, 0.0]), (0.0, 2.0)
WARNED = pytest.mark.filterwarnings("always::hybridctl.base.errors.LinearRangeWarning")


@pytest.fixture(scope="module")
def tracked():
    """A pendulum that swings from 1 rad, its reference and its LQR."""
    system = bowl()
    run = hc.simulate(system, "go", START, SPAN)
    lqr = hc.hybrid_lqr(hc.linearize(system, run), np.eye(2), np.eye(1), np.eye(2))
    return system, hc.extend(system, run, before=0.1, after=0.1), lqr


def _warnings_from(tracked, times_beyond, make_policy):
    """What a run says that starts so many times as far off as first order holds to a tenth."""
    system, reference, lqr = tracked
    known = lqr.linearization.accurate_range
    start = START + times_beyond * known.size * known.direction
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hc.simulate(system, "go", start, SPAN, make_policy(reference, lqr.gains))
    return [one for one in caught if one.category is LinearRangeWarning]


POLICIES = [
    hc.ReferenceSpreading,
    ClockTracking,
    lambda *args: hc.SampledPolicy(hc.ReferenceSpreading(*args), 0.05),
]


@WARNED
@pytest.mark.parametrize("make_policy", POLICIES)
def test_a_start_where_first_order_predicts_nothing_is_told_once(tracked, make_policy):
    """The error of the map is a tenth at the range, and grows as the size: it is all at ten."""
    (warning,) = _warnings_from(tracked, 20.0, make_policy)
    assert "20 times as far" in str(warning.message)
    assert warning.filename == __file__
    assert not _warnings_from(tracked, 9.0, make_policy)
    assert not _warnings_from(tracked, 0.0, make_policy)


@WARNED
def test_no_warning_where_no_map_is_known_or_nobody_chose_the_start(tracked):
    constant = lambda reference, gains: hc.ReferenceSpreading(reference, [gains.arcs[0](0.0)])  # noqa: E731
    assert not _warnings_from(tracked, 20.0, constant)
    with computed_starts():
        assert not _warnings_from(tracked, 20.0, hc.ReferenceSpreading)


X, U = ca.SX.sym("x", 4), ca.SX.sym("u", 2)


@pytest.mark.parametrize("later", [1e-6, -1e-6])
def test_an_order_of_events_that_makes_no_difference_warns_of_nothing(later):
    """Two balls that do not touch each other fall on the ground almost at the same time."""
    air = hc.symbolic.SymbolicMode("air", X, ca.vertcat(X[2:], U - 9.81), U)
    resets = [[X[0], X[1], -0.5 * X[2], X[3]], [X[0], X[1], X[2], -0.5 * X[3]]]
    bounces = [
        hc.symbolic.SymbolicTransition("air", f"ball {i}", X[i], "air", ca.vertcat(*reset))
        for i, reset in enumerate(resets)
    ]
    system = hc.symbolic.hybrid_system([air], bounces)
    start, span = np.array([1.0, 1.0 + later, 0.0, 0.0]), (0.0, 0.6)
    run = hc.simulate(system, "air", start, span)
    lin = hc.linearize(system, run)
    lqr = hc.hybrid_lqr(lin, np.eye(4), np.eye(2), np.eye(4))
    policy = hc.ReferenceSpreading(hc.extend(system, run, before=0.1, after=0.1), lqr.gains)
    assert lin.accurate_range.size > 0.1
    for change in 0.01 * np.vstack([np.eye(4), -np.eye(4)]):
        hc.simulate(system, "air", start + change, span, policy)


def test_a_start_off_in_a_direction_in_which_the_map_is_exact_warns_of_nothing():
    """A pendulum beside a mass: its range is none of the mass, whose motion is linear."""
    field = ca.vertcat(X[1], -ca.sin(X[0]) + U[0], X[3], U[1] - X[3] - X[2])
    system = hc.symbolic.hybrid_system([hc.symbolic.SymbolicMode("go", X, field, U)], [])
    start = np.array([1.0, 0.0, 0.0, 0.0])
    run = hc.simulate(system, "go", start, SPAN)
    lin = hc.linearize(system, run)
    lqr = hc.hybrid_lqr(lin, np.eye(4), np.eye(2), np.eye(4))
    policy = hc.ReferenceSpreading(hc.extend(system, run, before=0.1, after=0.1), lqr.gains)
    far = np.array([0.0, 0.0, 100.0, 0.0])
    known = lin.accurate_range
    assert np.linalg.norm(lin.derivative(far)) > 20.0 * known.growth * known.size
    hc.simulate(system, "go", start + far, SPAN, policy)


def test_gains_from_a_file_rest_on_no_map(tracked, tmp_path):
    gains = tracked[2].gains
    gains.save(tmp_path / "gains.npz")
    assert gains.linearization is tracked[2].linearization
    assert hc.GainSchedule.load(tmp_path / "gains.npz").linearization is None


URDF = """<robot name="s"><link name="w"/><link name="m"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="x"
type="prismatic"><parent link="w"/><child link="m"/><axis xyz="1 0 0"/><limit lower="-9" upper="9"
effort="4" velocity="9"/></joint></robot>"""


@pytest.mark.parametrize(("push", "left"), [(3.0, 1.0), (0.0, 4.0), (5.0, 0.0)])
def test_the_range_of_the_motors_is_what_the_feedforward_leaves(push, left):
    """A motor of 4 N that pushes a mass. The gain is greatest at the start: least |dx0| there."""
    wall = Contact("wall", "m", Plane((9, 0, 0), (-1, 0, 0)))
    system = contact_system(Robot.from_urdf(URDF), [wall])
    run = hc.simulate(system, ("open",), [0.0, 0.0], (0.0, 1.0), lambda t, x: np.array([push]))
    lqr = hc.hybrid_lqr(hc.linearize(system, run), 1e4 * np.eye(2), np.eye(1), np.zeros((2, 2)))
    greatest = np.linalg.norm(lqr.gains.arcs[0](0.0))
    assert lqr.motor_range == pytest.approx(left / greatest, rel=1e-6)
    said = f"below {lqr.motor_range:.2g}" if left else "the run alone needs more"
    assert said in repr(lqr)


def test_a_system_without_motors_has_no_range_of_them(tracked):
    assert tracked[2].motor_range is None


@pytest.mark.slow
@WARNED
def test_a_leg_that_lands_under_a_stiff_damper_is_linear_for_less_than_a_tenth_of_a_millimetre():
    """Optimal gains by 1 / limit^2 ask for twenty times the motors, and end farther off than a PD.

    After the touch torques of 4 N m s/rad decay within a millisecond on links of 0.003 kg m^2.
    """
    robot = Robot.from_urdf(HOPPER, root="sagittal")
    toe = Contact("toe", "shank", Plane((0, 0, 0), (0, 0, 1)), offset=(0, 0, -0.25), friction=0.8)
    system = contact_system(robot, [toe])
    q = robot.posture({"hip": -0.3, "knee": 0.6})
    q[1] = 0.478
    stand = equilibrium(system, ("stick",), q)
    start = stand.state.copy()
    start[1] += 0.08

    class Land:
        def law(self, history):
            weight = stand.input if any(event.guards for event in history.events) else np.zeros(2)
            return lambda t, x: weight + 120 * (stand.state[3:5] - x[3:5]) - 4 * x[8:10]

    landing = hc.simulate(system, ("open",), start, (0.0, 0.3), Land())
    lin = hc.linearize(system, landing)
    assert lin.accurate_range.size < 1e-4
    Q = np.diag([10.0, 100, 100, 50, 50, 1, 5, 5, 1, 1])
    lqr = hc.hybrid_lqr(lin, Q, np.eye(2) / 60.0**2, Q)
    assert "the run alone needs more than the motors have" in repr(lqr)
    reference = hc.extend(system, landing, before=0.04, after=0.04)
    policy = hc.ReferenceSpreading(reference, lqr.gains)
    higher = start.copy()
    higher[1] += 0.02
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = hc.simulate(system, ("open",), higher, (0.0, 0.3), policy, on_zeno="rest")
    said = {one.category: str(one.message) for one in caught}
    assert "times as far" in said[LinearRangeWarning]
    asked = re.findall(r"torque \[N m\]: ([\d.]+) of 60", said[EffortLimitWarning])
    assert max(map(float, asked)) > 1000.0
    alone = hc.simulate(system, ("open",), higher, (0.0, 0.3), Land(), on_zeno="rest")
    ends = [np.linalg.norm(each.final_state - landing.final_state) for each in (run, alone)]
    assert ends[0] > 5.0 * ends[1]
