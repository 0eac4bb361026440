"""Tracking under limits: it is the LQR where that keeps them, and optimal where it does not."""

import numpy as np
import pytest
from hybridctl.robots import paddle
from orbits.plank import FREE as FREE_MOTIONS
from orbits.plank import hop, make_plank, make_robot

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.lqr.periodic import periodic_lqr
from hybridctl.control.reference import extend
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.mechanics.limb_symmetry import limb_symmetry
from hybridctl.planning.constrained_tracking import (
    ConstrainedTracking,
    HorizonPlace,
    TrackingHorizon,
)

Q, R = np.diag([100.0, 10.0, 1.0, 0.1]), np.array([[1e-2]])
PERIODS = 6
HORIZON = TrackingHorizon(interval=0.02, fine=0.01, holds=(1,) * 30)
START = HorizonPlace(0, 0, 0)
FREE = np.array([1e3])


@pytest.fixture(scope="module")
def held():
    """The LQR of a ball on a paddle, and its reference over six periods."""
    plant, period = paddle.system(), paddle.PaddleParameters().period
    orbit = hc.orbits.periodic_orbit(
        plant, paddle.AIR, paddle.apex(), period, input=paddle.drive
    ).linearization
    lqr = periodic_lqr(orbit, Q, R)
    nominal, gains = lqr.repeated(PERIODS)
    return plant, lqr, gains, extend(plant, nominal, before=0.2, after=0.2)


def end_error(held, policy, dx):
    """Largest entry by which a run ends off the reference."""
    plant, _, _, reference = held
    nominal = reference.nominal
    start, span = nominal(0.0) + dx, (0.0, nominal.end)
    run = hc.simulate(plant, paddle.AIR, start, span, policy, rtol=1e-9, atol=1e-9)
    return np.abs(run.final_state - nominal(nominal.end)).max()


def narrow_limits(room):
    """Limits that leave the feedback some room beyond the feedforward, m/s^2."""
    times = np.linspace(0.0, paddle.PaddleParameters().period, 200)
    drive = np.array([paddle.drive(t) for t in times])
    return np.array([drive.min(axis=0) - room, drive.max(axis=0) + room])


def test_without_active_limits_it_is_the_lqr(held):
    """The law's value and gain are those of reference spreading, and so is the run."""
    _, lqr, gains, reference = held
    policy, other = (
        ConstrainedTracking(lqr, reference, R, FREE, HORIZON),
        ReferenceSpreading(reference, gains, limits=FREE),
    )
    dx = np.array([0.1, 0.01, -0.2, 0.05])
    found, right = (end_error(held, each, dx) for each in (policy, other))
    assert policy.active == 0
    assert found == pytest.approx(right, rel=1e-2, abs=1e-7)  # samples cut the steps elsewhere


def test_the_programme_with_all_limits_has_no_corrections_where_the_lqr_keeps_them(held):
    _, lqr, _, reference = held
    policy = ConstrainedTracking(lqr, reference, R, FREE, HORIZON)
    programme = policy.build_programme(START, np.array([0.1, 0.01, -0.2, 0.05]))
    assert programme.values.min() > 0.0
    found = programme._solve_chosen(np.ones(len(programme.values), dtype=bool))
    np.testing.assert_allclose(found, 0.0, atol=1e-4)  # of inputs of 3; the solver's accuracy


def test_corrections_cost_what_they_add_to_the_cost_of_the_lqr(held):
    """The cost of a motion through an impact is dx V dx + int v R v, by quadrature of x and u."""
    _, lqr, _, reference = held
    policy = ConstrainedTracking(lqr, reference, R, FREE, TrackingHorizon(interval=0.02, fine=1e-3))
    intervals = policy._intervals
    corrections = np.random.default_rng(0).normal(size=(len(intervals), 1))
    dx = x = np.array([0.02, 0.01, -0.05, 0.02])
    values, gains, cost, added = lqr.period.values, lqr.period.gains.arcs, 0.0, 0.0
    for interval, v in zip(intervals, corrections, strict=True):
        ends = np.linspace(interval.start, interval.end, len(interval.parts) + 1)
        for a, b, part in zip(ends[:-1], ends[1:], interval.parts, strict=True):
            after = part[:4, :4] @ x + part[:4, 4:] @ v
            for t, z in ((a, x), (b, after)):
                u = v - gains[interval.arc](t) @ z
                cost += 0.5 * (b - a) * (z @ Q @ z + u @ R @ u)
            added += (b - a) * (v @ R @ v)
            x = after
        x = policy._pass_event(interval, x[:, None])[:, 0]
    end = values[-1].end
    right = dx @ values[0].start @ dx + added
    # The trapezoidal rule with parts of 1 ms; at 10 ms the costs differ by 16 %.
    assert cost + x @ end @ x == pytest.approx(right, rel=5e-3)


def test_under_narrow_limits_it_ends_nearer_than_the_lqr_that_is_cut(held):
    """Some fifty times nearer, from 0.4 m above the orbit with 0.03 m/s^2 of room."""
    _, lqr, gains, reference = held
    limits, dx = narrow_limits(0.03), np.array([0.4, 0.0, 0.0, 0.0])
    policy = ConstrainedTracking(lqr, reference, R, limits, HORIZON)
    found = end_error(held, policy, dx)
    assert policy.active > 0
    assert policy.failures == 0
    assert found < 0.1 * end_error(held, ReferenceSpreading(reference, gains, limits=limits), dx)


def test_settings_that_make_no_sense_are_refused(held):
    _, lqr, _, reference = held
    with pytest.raises(InputError, match="share"):
        TrackingHorizon(share=2.0)
    with pytest.raises(InputError, match=r"holds\[1\]"):
        TrackingHorizon(holds=(1, 0))
    with pytest.raises(InputError, match="input_weight"):
        ConstrainedTracking(lqr, reference, np.eye(2), FREE)


@pytest.fixture(scope="module")
def hovering():
    """A hopping plank on a quaternion, with jets in all directions, and its LQR up to a mirror."""
    robot = make_robot()
    robot.nu, robot.actuation = robot.nv, np.eye(robot.nv)
    plank = make_plank(robot)
    mirror = limb_symmetry(plank, {}, {"left": "right"}, free=FREE_MOTIONS)
    start, flight = hop()
    modes, still = ("open", "open"), np.zeros(robot.nv)
    fine = {"rtol": 1e-12, "atol": 1e-12}
    # It begins in mid-flight, and hits the ground half a flight later.
    middle = hc.simulate(plank, modes, start, (0.0, 0.5 * flight), lambda t, x: still, **fine)
    orbit = hc.simulate(plank, modes, middle.final_state, (0.0, flight), lambda t, x: still, **fine)
    weight = np.diag(np.repeat([100.0, 1.0], robot.nv))
    lqr = periodic_lqr(hc.linearize(plank, orbit), weight, 0.01 * np.eye(robot.nv), symmetry=mirror)
    reference = extend(plank, lqr.repeated(PERIODS)[0], before=0.05, after=0.05)
    return plank, lqr, reference, flight


class GivenCorrections(ConstrainedTracking):
    """The law with given corrections on its intervals, in place of those of a programme."""

    given, ends = np.zeros((0, 6)), np.zeros(0)

    def _take_sample(self, now, x, k):
        self._corrections, self._ends = self.given, self.ends


def test_states_through_impacts_of_a_floating_base_are_predicted_as_the_flow_has_them(hovering):
    """A perturbation and corrections, over four hits and four mirrors, by central differences."""
    plank, lqr, reference, flight = hovering
    horizon = TrackingHorizon(interval=0.02, fine=5e-3, holds=(2,) * 8, sample=10.0)
    policy = GivenCorrections(lqr, reference, 0.01 * np.eye(6), np.full(6, 1e3), horizon)
    rng = np.random.default_rng(0)
    dx, v, step = rng.normal(size=12), rng.normal(size=(8, 6)), 1e-5
    state, inputs, length = policy._map_to_orbit(START, dx)[:, 0], [], []
    for interval, block, wraps in policy._iterate_intervals(START):
        phi, gamma = interval.get_matrices(0)
        state = policy._pass_event(interval, (phi @ state + gamma @ v[block])[:, None])[:, 0]
        # A mirror is its own inverse: corrections go back to the side on which the plank is then.
        inputs.append(np.linalg.matrix_power(policy._input_map, wraps) @ v[block])
        length.append(interval.end - interval.start)
    policy.ends = np.cumsum(length)
    end = policy.ends[-1]
    assert end == pytest.approx(4.0 * flight)
    found = []
    for size in (step, -step):
        policy.given = size * np.array(inputs)
        start = plank.space.integrate(reference.nominal(0.0), size * dx)
        run = hc.simulate(plank, ("open",) * 2, start, (0.0, end), policy, rtol=1e-9, atol=1e-9)
        assert len([event for event in run.events if event.guards]) == 4
        found.append(plank.space.difference(reference.nominal(end), run.final_state))
    right = (found[0] - found[1]) / (2.0 * step)
    # Runs are right to some 1e-9, differences of them to 1e-4; four mirrors change nothing.
    np.testing.assert_allclose(state, right, rtol=0.0, atol=2e-4)
    assert np.abs(right).max() > 0.1
