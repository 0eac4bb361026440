"""A hopper with limited motors under predictive control: pushes that its fixed LQR falls from."""

from dataclasses import replace

import numpy as np
import pytest
from planning import hopper

import hybridctl as hc
from hybridctl.control.spreading import ClockTracking
from hybridctl.planning.horizon import Horizon
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Margins

TORQUE = 25.0  # N m, and N along the leg; hopping on takes 20
HOPS = 3
WEIGHTS = np.diag([0.0, *[100.0] * 4, 1.0, *[10.0] * 4]), 0.01 * np.eye(2)
ROOM = Margins(
    force=2.0, friction=0.65, unload=5.0, lift=0.5, approach=0.1, clearance=0.01, impulse=0.01
)
FINE = Horizon(intervals=(24, 20))  # the foot swings on its spring at 100 rad/s in the air


@pytest.fixture(scope="module")
def hopping():
    """The task, its plan, that repeated, and the feedback there."""
    task = hopper.task(60.0)
    motion = optimise(task, hopper.guess, tolerance=1e-2)
    hops = hopper.hops(task, motion, HOPS + 2)
    lin = hc.linearize(task.system, hops)
    lqr = hc.hybrid_lqr(lin, *WEIGHTS, 10.0 * WEIGHTS[0], lead=0.02, rtol=1e-5)
    return task, motion, hops, lqr


def fixed(hopping):
    task, motion, hops, lqr = hopping
    curves = [
        replace(motion.feedforward[k % 2], start=arc.start) for k, arc in enumerate(hops.arcs)
    ]
    around = {"before": 0.1, "after": 0.1, "rtol": 1e-8, "atol": 1e-8}
    reference = hc.extend(task.system, hops, feedforward=curves, **around)
    return ClockTracking(reference, lqr.gains, limits=np.full(2, TORQUE))


def predictive(hopping):
    _, motion, _, lqr = hopping
    values = [lqr.values[k].start for k in (2, 3)]
    task = replace(hopper.task(TORQUE, ROOM), joint_limits={})
    return hc.planning.HybridMpc(task, motion, WEIGHTS, values, fixed(hopping), horizon=FINE)


def hop_on(hopping, policy, push=0.0):
    """From the middle of stance, where it is made faster by a push, m/s, in which the toe stays."""
    task, motion, *_ = hopping
    time = 0.5 * motion.plan.arcs[0].end
    x = motion.plan(time)
    x[5] += push
    x = task.system.mode(hopper.STANCE).project(x)
    span = time, HOPS * motion.plan.end + time
    return hc.simulate(task.system, hopper.STANCE, x, span, policy, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
def test_without_a_push_it_hops_as_planned(hopping):
    """Steps of 10 ms are off by (1 rad)^5 / 120 of the foot's swing, some 1 ms of a hop."""
    policy = predictive(hopping)
    run = hop_on(hopping, policy)
    expected = [event.time for event in hopping[2].events[: 2 * HOPS]]
    np.testing.assert_allclose([event.time for event in run.guard_events], expected, atol=2e-3)
    assert policy.failures == 0


@pytest.mark.slow
@pytest.mark.parametrize("push", [-0.8, pytest.param(-0.5, marks=pytest.mark.long), 0.3])
def test_it_recovers_from_pushes_that_the_fixed_lqr_falls_from(hopping, push):
    """It is back on its orbit after the hops; under the LQR, on the clock, it has tumbled by then.

    By reference spreading the LQR slips until it is past its extended reference.
    """
    run, fallen = (hop_on(hopping, make(hopping), push) for make in (predictive, fixed))
    landed, planned = run.guard_events[-1], hopping[2].events[1]
    assert landed.mode_after == hopper.STANCE
    np.testing.assert_allclose(landed.state_after[1:], planned.state_after[1:], atol=0.2)
    assert np.abs(run(np.linspace(run.start, run.end, 500))[:, 2]).max() < 0.5
    assert np.abs(fallen(np.linspace(fallen.start, fallen.end, 500))[:, 2]).max() > 1.0
