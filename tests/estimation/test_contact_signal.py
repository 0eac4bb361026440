"""Contact signals: evidence that a contact closes or opens at the time of the signal."""

from dataclasses import replace

import numpy as np
import pytest
from estimation.systems import GRAVITY, bouncing_ball, height
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.errors import NoContactSolutionError, UnknownNameError
from hybridctl.base.spaces import VectorSpace
from hybridctl.estimation.consistency import band, nees
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import coordinates, linear
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.hybrid.mode import FieldJacobian, Guard, GuardJacobian, Mode, Reset, Transition

OPEN, CLOSED = ("open",), ("closed",)
CLOSES, OPENS = f"{ball.CONTACT} closes", f"{ball.CONTACT} opens"
FORCE = ContactSignal("force", 5.0, 2.0, CLOSES, OPENS)
ROOT = np.random.default_rng(0).normal(size=(4, 4))
P = 1e-4 * (ROOT @ ROOT.T + np.eye(4))


def ball_filter(slope=0.0, signal=FORCE, **options):
    system = ball.system(ball.BallParameters(slope=slope))
    z = coordinates("position", [0, 1], 1e-6 * np.eye(2))
    return SaltedKalmanFilter(system, np.zeros((4, 4)), z, signals=[signal], **options)


def falling(height=0.01, rate=-2.0, p=P):
    return Estimate(OPEN, 0.3, np.array([0.0, height, 0.5, rate]), p)


@pytest.mark.parametrize("s", [0.0, 1e-8, 2e-4, 1.0])
def test_it_measures_the_gap_and_then_stops_the_ball(s):
    """In closed form for a slope of unit normal n: a measurement of n q, then v loses n v.

    What noise of the guard leaves of the gap is the floor's: the mean is put on the slope, which
    the closed mode holds, and the variance stays.
    """
    slope = 0.35
    n = np.array([np.sin(slope), np.cos(slope)])
    gap, across = np.append(n, [0.0, 0.0]), np.append([0.0, 0.0], n)
    kf = ball_filter(slope, guard_noise={CLOSES: s})
    x = np.array([0.02, 0.01, 0.5, -2.0])
    found = kf.update(Estimate(OPEN, 0.3, x, P), "force", 6.0).estimate
    p = gap @ P @ gap
    gain, stop = P @ gap / (p + s), np.eye(4) - np.outer(across, across)
    assert found.mode == CLOSED
    measured = stop @ (x - gain * (gap @ x))
    np.testing.assert_allclose(found.mean, measured - gap * (gap @ measured), atol=1e-10)
    exact = stop @ (P - np.outer(gain, P @ gap)) @ stop.T
    np.testing.assert_allclose(found.covariance, exact, atol=1e-15)
    assert kf.predict(Estimate(CLOSED, 0.3, found.mean, found.covariance), 0.31).events == ()
    assert gap @ found.covariance @ gap == pytest.approx(p * s / (p + s), abs=1e-15)


@pytest.mark.parametrize("strategy", ["saltation", "reset_jacobian", "no_jump"])
def test_balls_on_floors_of_uncertain_height_are_where_it_says(strategy):
    """The signal comes when each ball touches its floor at -w; then y = -w and v+ = -0.8 v."""
    rng = np.random.default_rng(1)
    x0, p0, s = np.array([1.0, 0.2]), np.diag([0.01, 0.05]) ** 2, 0.01**2
    signal = ContactSignal("touch", 0.9, 0.1, "floor", None)
    kf = SaltedKalmanFilter(
        bouncing_ball(), np.zeros((2, 2)), height(), guard_noise=s, signals=[signal],
        options=FilterOptions(strategy=strategy),
    )  # fmt: skip
    space, squares = bouncing_ball().mode("air").space, []
    for _ in range(500):
        (y, v), w = rng.multivariate_normal(x0, p0), np.sqrt(s) * rng.normal()
        t = (v + np.sqrt(v**2 + 2.0 * GRAVITY * (y + w))) / GRAVITY
        flow = np.array([[1.0, t], [0.0, 1.0]])
        mean = flow @ x0 - np.array([0.5 * GRAVITY * t**2, GRAVITY * t])
        before = Estimate("air", t, mean, flow @ p0 @ flow.T)
        state = kf.rules.start(before)  # along the arc past the floor: none to begin with
        after = kf.update(state, "touch", 1.0).estimate
        truth = np.array([-w, -0.8 * (v - GRAVITY * t)])
        squares.append(nees(space, after, truth))
    assert band(*zip(*squares, strict=True)).inside == (strategy != "no_jump")


@pytest.mark.parametrize("what", ["closes", "opens"])
def test_a_guard_that_no_mode_has_is_refused(what):
    signal = replace(FORCE, **{what: f"{ball.CONTACT} {what[:-1]}"})
    with pytest.raises(UnknownNameError, match=f"{what} of signal 'force'.*did you mean"):
        ball_filter(signal=signal)


def test_a_gap_that_grows_or_stays_is_not_closed():
    kf = ball_filter()
    for rate in (2.0, 0.0):
        start = kf.start(falling(rate=rate, p=1e-4 * np.eye(4)))
        found = kf.update(start, "force", 6.0)
        assert found.notes == (f"'force' is on, but {CLOSES!r} recedes",)
        assert not found.events
        assert found.estimate is start.estimate


@pytest.mark.parametrize("rate", [-1e-4, -1e-9, -1e-15])
def test_a_gap_that_hardly_closes_does_not_blow_up_the_covariance(rate):
    """The time of the event is known, so nothing is divided by the rate of the guard."""
    found = ball_filter(guard_noise=1e-4).update(falling(0.0, rate, 1e-4 * np.eye(4)), "force", 6.0)
    assert found.estimate.mode == CLOSED
    np.testing.assert_allclose(
        found.estimate.covariance, np.diag([1e-4, 0.5e-4, 1e-4, 0.0]), atol=1e-18
    )
    assert not found.notes


def test_a_contact_that_opens_at_rest_leaves_the_covariance_alone():
    """Its force is the constant weight, whose rate is zero: no saltation matrix exists."""
    p = np.diag([1e-4, 0.0, 1e-4, 0.0])
    start = Estimate(CLOSED, 0.0, np.array([0.0, 0.0, 0.5, 0.0]), p)
    found = ball_filter().update(start, "force", 1.0)
    assert found.estimate.mode == OPEN
    np.testing.assert_array_equal(found.estimate.covariance, p)
    np.testing.assert_array_equal(found.estimate.mean, start.mean)
    assert not found.notes


def test_values_that_say_nothing_change_nothing():
    """Missing values, values between off and on, and guards that the mode does not have."""
    kf = ball_filter()
    closed = Estimate(CLOSED, 0.3, np.array([0.0, 0.0, 0.5, 0.0]), np.zeros((4, 4)))
    between = [4.999, 2.001, 3.0]
    for start, values in ((falling(), [-1.0, 2.0]), (closed, [5.0, 60.0])):
        for value in (*values, *between, np.nan):
            state = kf.start(start)
            found = kf.update(state, "force", value)
            assert found.estimate is state.estimate
            assert not found.events
            assert not found.notes


def test_at_its_thresholds_it_switches_each_time():
    kf = ball_filter()
    e, modes = falling(), []
    for value in (5.0, 2.0, 5.0, 3.0, 5.0, 2.0):
        e = kf.update(e, "force", value).estimate
        modes.append(e.mode)
        if e.mode == OPEN:  # or it would not fall
            e = falling()
    assert modes == [CLOSED, OPEN, CLOSED, CLOSED, CLOSED, OPEN]


def test_a_signal_that_chatters_between_its_thresholds_gives_one_event_of_a_run():
    kf = ball_filter()
    times = 0.3 + 0.01 * np.arange(1, 21)
    values = np.where(np.arange(20) % 2, 2.5, 4.5)
    values[3], values[4:8] = 7.0, np.nan
    start = falling(0.5, -1.0)
    result = kf.run(Record({"force": Series(times, values)}), start)
    assert [event.guards for event in result.events] == [(CLOSES,)]
    assert result.modes == (OPEN,) * 3 + (CLOSED,) * 17
    assert all(step.innovation is None for step in result.steps)
    # no map leads back through it, so what comes before does not learn of it
    assert [t for t, _ in smooth(kf.model.system, result).notes] == [pytest.approx(0.34)]


def test_what_cannot_be_followed_leaves_the_estimate_as_it_was():
    def stuck(t, x, u):
        raise NoContactSolutionError("no solution here")

    space = VectorSpace(1)
    modes = [
        Mode(
            key, space, lambda t, x, u: -np.ones(1), 0,
            lambda t, x, u: FieldJacobian(np.zeros((1, 1)), np.zeros((1, 0))),
        )
        for key in ("a", "b")
    ]  # fmt: skip
    guard = Guard(
        "g", lambda t, x, u: x[0], lambda t, x, u: GuardJacobian(0.0, np.ones(1), np.zeros(0))
    )
    system = hc.HybridSystem(modes, [Transition("a", guard, Reset(stuck), "b")])
    kf = SaltedKalmanFilter(
        system, np.zeros((1, 1)), linear("z", [[1.0]], [[1.0]]),
        signals=[ContactSignal("c", 1.0, 0.0, "g", None)],
    )  # fmt: skip
    start = kf.start(Estimate("a", 0.0, np.array([0.5]), np.eye(1)))
    found = kf.update(start, "c", 2.0)
    assert found.estimate is start.estimate
    assert found.notes == ("the contact signal was not followed: no solution here",)
