"""The limits of a robot's motors, as files give them, and as policies keep them."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import EffortLimitWarning, InputError
from hybridctl.control.interim import Interim
from hybridctl.control.reference import extend
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.mechanics import Contact, Plane, Robot, Wrench, contact_system
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Phase, Task

WARNED = pytest.mark.filterwarnings("always::hybridctl.base.errors.EffortLimitWarning")
URDF = """<robot name="s"><link name="w"/><link name="m"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="x"
type="prismatic"><parent link="w"/><child link="m"/><axis xyz="1 0 0"/><limit lower="-9" upper="9"
effort="{}" velocity="9"/></joint></robot>"""
MJCF = """<mujoco><worldbody><body name="m"><joint name="x" type="slide" axis="1 0 0"{joint}/>
<geom size=".1" mass="1"/></body></worldbody><actuator>{actuator}</actuator></mujoco>"""


@pytest.mark.parametrize(("given", "effort"), [("4", 4.0), ("0", np.inf)])
def test_effort_of_a_urdf_is_the_limit_of_its_motor(given, effort):
    """An effort of 0 was never filled in: its motor could not move anything."""
    robot = Robot.from_urdf(URDF.format(given))
    assert robot.effort.tolist() == [effort]
    assert Robot.from_urdf(URDF.format(given), actuated=[]).effort.shape == (0,)


@pytest.mark.parametrize(
    ("actuator", "joint", "effort"),
    [
        ('<motor joint="x" gear="7" ctrlrange="-2 1" ctrllimited="true"/>', "", 14.0),
        ('<motor joint="x" gear="7" forcerange="-1 1" forcelimited="true"/>', "", 7.0),
        ('<motor joint="x" gear="7"/>', ' actuatorfrcrange="-3 3"', 3.0),
        ('<position joint="x" kp="5" ctrlrange="-2 2" ctrllimited="true"/>', "", np.inf),
        ('<motor joint="x"/>', "", np.inf),
    ],
)
def test_effort_of_an_mjcf(actuator, joint, effort):
    """The force is gear times control; the control of a servo is a position, and no limit."""
    pytest.importorskip("mujoco")
    robot = Robot.from_mjcf(MJCF.format(actuator=actuator, joint=joint))
    assert robot.effort.tolist() == [effort]


def _reference(effort, push):
    wall = Contact("wall", "m", Plane((5, 0, 0), (-1, 0, 0)))
    system = contact_system(Robot.from_urdf(URDF.format(effort)), [wall])
    run = hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), lambda t, x: np.array([push]))
    return system, extend(system, run, before=0.1, after=0.1)


@WARNED
def test_policies_keep_to_the_motors_unless_told_otherwise():
    """A motor of 4 N that tracks a push of 6 N: 2 m after 1 s instead of 3, and one warning."""
    gains = [np.zeros((1, 2))]
    system, reference = _reference(4.0, 6.0)
    with pytest.warns(EffortLimitWarning, match=r"reference .* x force \[N\]: 6 of 4$") as caught:
        policy = ReferenceSpreading(reference, gains)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(
        EffortLimitWarning, match=r"run .* x force \[N\]: 6 of 4 .* \(cut\)$"
    ) as caught:
        run = hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), policy)
    assert [warning.filename for warning in caught] == [__file__]
    assert run.final_state[0] == pytest.approx(2.0, abs=1e-8)
    for limits in ([np.inf], [[-np.inf], [9.0]]):
        free = ReferenceSpreading(reference, gains, limits=limits)
        run = hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), free)
        assert run.final_state[0] == pytest.approx(3.0, abs=1e-8)


@WARNED
@pytest.mark.parametrize("push", [6.0, -6.0, 4.001])
def test_a_demand_is_named_with_its_size_before_the_cut(push):
    """At either limit of the motor, and just beyond it."""
    system, reference = _reference(4.0, push)
    with pytest.warns(EffortLimitWarning, match="reference"):
        policy = ReferenceSpreading(reference, [np.zeros((1, 2))])
    with pytest.warns(EffortLimitWarning, match=rf"{abs(push):g} of 4 at t = .* \(cut\)$"):
        run = hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), policy)
    assert run.final_state[0] == pytest.approx(np.sign(push) * 2.0, abs=1e-8)


@pytest.mark.filterwarnings("error::hybridctl.base.errors.EffortLimitWarning")
def test_reference_within_the_motors_is_no_matter():
    system, reference = _reference(8.0, 6.0)
    policy = ReferenceSpreading(reference, [np.zeros((1, 2))])
    hc.simulate(system, None, [0.0, 0.0], (0.0, 1.0), policy)
    assert policy.limits.tolist() == [[-8.0], [8.0]]
    _, reference = _reference(0.0, 6.0)
    assert ReferenceSpreading(reference, [np.zeros((1, 2))]).limits is None


@WARNED
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize("interim", [False, True])
def test_feedback_beyond_the_motor_is_told_once_a_run(sampled, pushed, interim):
    """A push of 3 N and a spring of 20 N/m from 0.5 m off: 13 N at once, of 4 N that there are."""
    system, reference = _reference(4.0, 3.0)
    options = {"interim": Interim(before=0.1, timeout=0.1)} if interim else {}
    policy = ReferenceSpreading(reference, [np.array([[20.0, 5.0]])], **options)
    policy = hc.SampledPolicy(policy, 0.05) if sampled else policy
    wrench = Wrench("m", (0.1, 0.0, 0.0), start=0.1, end=0.2) if pushed else None
    with pytest.warns(EffortLimitWarning) as caught:
        run = hc.simulate(system, None, [-0.5, 0.0], (0.0, 1.0), policy, wrench=wrench)
    (warning,) = caught
    found = str(warning.message)
    assert "x force [N]: 13 of 4 at t = 0 s (cut)" in found
    assert max(np.abs(arc.input(arc.times)[:, 0]).max() for arc in run.arcs) <= 4.0 + 1e-12


@WARNED
def test_runs_that_nothing_cuts_are_told_of_what_they_apply():
    """Laws without limits apply 3 + 20 * 0.5 N, on a clock of Unix times, too."""
    system, reference = _reference(4.0, 3.0)
    free = ReferenceSpreading(reference, [np.array([[20.0, 5.0]])], limits=[np.inf])
    by_hand = lambda t, x: np.array([3.0 + 20.0 * (1.5 * t**2 - x[0]) + 5.0 * (3.0 * t - x[1])])  # noqa: E731
    for policy in (free, by_hand):
        with pytest.warns(EffortLimitWarning, match=r"13 of 4 at t = 0 s$"):
            hc.simulate(system, None, [-0.5, 0.0], (0.0, 1.0), policy)
    late = lambda t, x: by_hand(t - 1e5, x)  # noqa: E731
    with pytest.warns(EffortLimitWarning, match=r"13 of 4 at t = 0 s$") as caught:
        hc.simulate(system, None, [-0.5, 0.0], (1e5, 1e5 + 1.0), late)
    assert [warning.filename for warning in caught] == [__file__]


@WARNED
def test_an_lqr_beyond_the_motors_is_told():
    """The planned 3 N and the feedback of the first gain, 0.5 m off."""
    system, reference = _reference(4.0, 3.0)
    lin = hc.linearize(system, reference.nominal)
    schedule = hc.hybrid_lqr(lin, 1e4 * np.eye(2), np.eye(1), np.eye(2)).gains
    gain = schedule.arcs[0](0.0)[0, 0]
    policy = ReferenceSpreading(reference, schedule)
    with pytest.warns(EffortLimitWarning) as caught:
        hc.simulate(system, None, [-0.5, 0.0], (0.0, 1.0), policy)
    (warning,) = caught
    assert f"{3.0 + 0.5 * gain:.6g} of 4 at t = 0 s (cut)" in str(warning.message)


def _least_effort(effort, **torque):
    """The task of 1 m to a wall in 0.8 s, with a mass of 1 kg and a motor of `effort` N."""
    wall = Contact("wall", "m", Plane((1, 0, 0), (-1, 0, 0)))
    system = contact_system(Robot.from_urdf(URDF.format(effort)), [wall])
    phase = Phase(("open",), ("wall closes",), (0.8, 0.8 + 1e-9), 2)
    return Task(system, [phase], start=[0.0, 0.0], degree=3, **torque)


def test_plans_keep_to_the_motors_unless_told_otherwise():
    """Without limits u = 3 m d / T^2 (1 - t / T), which begins with 4.6875 N."""
    guess = lambda k, s: np.array([s, 1.25])  # noqa: E731
    given = [(4.0, {}), (9.0, {"torque": [4.0]}), (4.0, {"torque": np.inf}), (0, {})]
    kept, told, free, filled = (optimise(_least_effort(e, **torque), guess) for e, torque in given)
    assert kept.cost == pytest.approx(told.cost, rel=1e-9)
    inputs = kept.run.arcs[0].input(np.linspace(0.0, 0.8, 33))
    assert np.abs(inputs).max() <= 4.0 * (1.0 + 1e-2)  # limits hold at points of collocation
    for each in (free, filled):
        assert each.cost == pytest.approx(3.0 / 0.8**3, rel=1e-6)
        assert each.feedforward[0](0.0) == pytest.approx([4.6875], abs=1e-4)
    assert kept.cost > free.cost


@pytest.mark.parametrize("torque", [[1.0, 1.0], [0.0], [np.nan], "much"])
def test_torques_of_a_plan_are_positive_and_one_for_each_motor(torque):
    with pytest.raises(InputError, match="torque must be"):
        _least_effort(4.0, torque=torque)
