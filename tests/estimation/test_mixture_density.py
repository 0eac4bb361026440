"""The likelihood of a value is a density of that value: it integrates to one, and is bounded.

A value y = H x + e with e of covariance R has a density that is a mean of N(y; H x, R) over the
belief, whatever the belief is. So it integrates to one over y, and it is nowhere above
|2 pi R|^(-1/2).
"""

from itertools import product

import casadi as ca
import numpy as np
import pytest
from estimation.systems import GRAVITY, bouncing_ball
from hybridctl.robots import block

from hybridctl import symbolic
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.guard_probabilities import Truncation
from hybridctl.estimation.kalman_equations import Innovation
from hybridctl.estimation.measurement import LinearizedResidual, linear
from hybridctl.estimation.salted_jump import STRATEGIES
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.sampling.unscented import UnscentedFilter

RESTITUTION, START = 0.7, np.array([0.1, 0.0])
IMPACT = np.sqrt(2.0 * START[0] / GRAVITY)
FALL = GRAVITY * IMPACT
S = 2e-3  # m and m/s, deviations of the start and of heights
NONE = np.zeros((2, 2))


def bound(measurement):
    """The logarithm of the largest density that the noise of a measurement allows."""
    return -0.5 * np.linalg.slogdet(2.0 * np.pi * measurement.covariance)[1]


def scores(kf, state, channel, values):
    """The log-likelihoods of values (n, m), -inf where the gate rejects one."""
    found = [kf.update(state, channel, value).innovation for value in values]
    return np.array([i.log_likelihood if i.accepted else -np.inf for i in found])


def axes(kf, state, channel, spacing, above=0.0):
    """Points along each component of a value, over seven deviations of all that is predicted.

    Their distance is so many deviations of the noise. above: how much farther up they go, for parts
    that only a value parts from the state.
    """
    measurement = kf.measurements[channel]
    parts = []
    for h in state.hypotheses:
        e, mode = h.estimate, kf.model.system.mode(h.estimate.mode)
        u = np.zeros(mode.nu)
        row = measurement.jacobian(mode, e.time, e.mean, u)
        deviations = np.sqrt(np.diag(row @ e.covariance @ row.T + measurement.covariance))
        parts.append((measurement.value(mode, e.time, e.mean, u), deviations))
    means, deviations = (np.array(column) for column in zip(*parts, strict=True))
    low, high = (means - 7.0 * deviations).min(axis=0), (means + 7.0 * deviations).max(axis=0)
    if channel == "both":  # a part that has bounced before the mean has
        high[1] = FALL + 7.0 * deviations[:, 1].max()
    high += above
    steps = spacing * np.sqrt(np.diag(measurement.covariance))
    return [np.arange(a, b + h, h) for a, b, h in zip(low, high, steps, strict=True)], steps


def check_density(kf, state, channel, *, spacing=1.0, tolerance=1e-6, above=0.0):
    """Check that the likelihood integrates to one by the trapezoidal rule, and its bound.

    All parts are at least as wide as the noise. With points one deviation of it apart the error
    of the rule is 2 exp(-2 pi^2) = 5e-9; beyond seven deviations there are 3e-12, and more where
    a part is cut off at a guard, which leaves its tail: 1e-7 at two deviations.
    """
    lines, steps = axes(kf, state, channel, spacing, above)
    found = scores(kf, state, channel, np.array(list(product(*lines))))
    assert np.exp(found).sum() * np.prod(steps) == pytest.approx(1.0, abs=tolerance)
    assert found.max() <= bound(kf.measurements[channel]) + 1e-9


def ball_filter(hypotheses, strategy, kind=SaltedKalmanFilter, gate=None):
    measured = [
        linear("height", [[1.0, 0.0]], [[S**2]], gate=gate),
        linear("both", np.eye(2), np.diag([S, 0.2]) ** 2, gate=gate),
    ]
    return kind(
        bouncing_ball(RESTITUTION),
        NONE,
        measured,
        hypotheses=hypotheses,
        options=FilterOptions(strategy=strategy),
    )


def fallen(kf, ahead, first=None):
    """The ball so many deviations of the time of its impact after it; two values on the way.

    first: a height, in deviations, measured half a deviation before.
    """
    time = IMPACT + ahead * S / FALL
    state = kf.start(Estimate("air", 0.0, START, S**2 * np.eye(2)))
    if first is not None:
        state = kf.update(kf.predict(state, time - 0.5 * S / FALL), "height", [first * S])
    return kf.predict(state, time)


SPLITS = [(-1.5, None), (0.3, None), (0.0, -0.8), (0.8, -1.5), (2.0, 0.5)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("hypotheses", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(("ahead", "first"), SPLITS[1:4])
def test_a_height_near_a_bounce_has_a_density(ahead, first, hypotheses, strategy):
    """Before, at and after the impact, and where a value has split the belief."""
    kf = ball_filter(hypotheses, strategy)
    check_density(kf, fallen(kf, ahead, first), "height")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("ahead", "first"), [SPLITS[2], pytest.param(*SPLITS[4], marks=pytest.mark.long)]
)
def test_a_height_and_a_speed_near_a_bounce_have_a_density(ahead, first, strategy):
    """The value may turn the speed of a part, and with it the side of the floor it comes from."""
    kf = ball_filter(4, strategy)
    check_density(kf, fallen(kf, ahead, first), "both")


def corner(curvature):
    """A point that bounces in a corner, of two walls that are parabolas: x, y and their rates."""
    z = ca.SX.sym("z", 4)
    air = symbolic.SymbolicMode("air", state=z, field=[z[2], z[3], 0.0, -GRAVITY])
    left = symbolic.SymbolicTransition(
        "air", "left", z[0] - 0.5 * curvature * z[1] ** 2, "air",
        [z[0], z[1], -RESTITUTION * z[2], z[3]],
    )  # fmt: skip
    floor = symbolic.SymbolicTransition(
        "air", "floor", z[1] - 0.5 * curvature * z[0] ** 2, "air",
        [z[0], z[1], z[2], -RESTITUTION * z[3]],
    )  # fmt: skip
    return symbolic.hybrid_system([air], [left, floor])


MEET = 0.1  # s, to both walls
INTO = np.array([0.15, 0.1, -1.5, -1.0 + 0.5 * GRAVITY * MEET])  # m and m/s


def in_corner(strategy, late, *, curvature=0.0, hypotheses=4, kind=SaltedKalmanFilter, first=None):
    """A filter, and its state so late in s after both walls were met, within a millisecond.

    Deviations of both places have a correlation of 0.8. first: x and y measured 1 ms before.
    """
    places = linear("places", np.eye(2, 4), S**2 * np.eye(2), gate=None)
    one = linear("sum", [[0.7, 0.7, 0.0, 0.0]], [[S**2]], gate=None)
    kf = kind(
        corner(curvature), np.zeros((4, 4)), [places, one],
        hypotheses=hypotheses, options=FilterOptions(strategy=strategy),
    )  # fmt: skip
    p = np.diag([S, S, 0.02, 0.02]) ** 2
    p[0, 1] = p[1, 0] = 0.8 * S**2
    state = kf.start(Estimate("air", 0.0, INTO, p))
    if first is not None:
        state = kf.update(kf.predict(state, MEET + late - 1e-3), "places", first)
    return kf, kf.predict(state, MEET + late)


BEFORE = [-1e-3, 2e-3]  # m, x and y: between the walls, to be made up for


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("first", [pytest.param(None, marks=pytest.mark.slow), BEFORE])
def test_in_a_corner_of_two_walls_a_value_has_a_density(first, strategy):
    """Any of four orders may be true, and two guards, with a correlation, cut a part off."""
    kf, state = in_corner(strategy, 5e-4, curvature=5.0, first=first)
    assert len(state.hypotheses) > 1
    check_density(kf, state, "sum")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "hypotheses", "strategy"),
    [
        (SaltedKalmanFilter, 2, "saltation"),
        (UnscentedFilter, 4, "saltation"),
        *(
            pytest.param(SaltedKalmanFilter, number, strategy, marks=pytest.mark.long)
            for number, strategy in product([2, 4], STRATEGIES)
            if (number, strategy) != (2, "saltation")
        ),
    ],
)
def test_so_it_has_before_and_after_the_corner_by_any_filter(kind, hypotheses, strategy):
    """Two are fewer than the orders that are likely: what is dropped leaves its weight to them."""
    for late, curvature, first in product([-1e-3, 2e-3], [0.0, 5.0], [None, BEFORE]):
        kf, state = in_corner(
            strategy, late, curvature=curvature, hypotheses=hypotheses, kind=kind, first=first
        )
        check_density(kf, state, "sum")
        assert np.exp([h.weight for h in state.hypotheses]).sum() == pytest.approx(1.0, abs=1e-12)


TOUCH = 0.1  # s, until the left corner of the block hits


def block_near_touch(ahead, strategy):
    """A filter of the block, and its state so many deviations of the time after its first touch."""
    p = block.BlockParameters(restitution=0.3)
    corner = 0.5 * np.hypot(p.width, p.height)
    pitch, speed = -0.2, -1.0  # rad, so that the left corner is the lower one; m/s
    lowest = corner * np.sin(np.arctan2(p.height, p.width) - pitch)
    start = np.array([0.0, lowest - speed * TOUCH + 0.5 * p.gravity * TOUCH**2, pitch])
    measured = linear("pose", np.eye(6)[1:3], np.diag([S, 2.0 * S]) ** 2, gate=None)
    kf = SaltedKalmanFilter(
        block.system(p),
        np.zeros((6, 6)),
        measured,
        hypotheses=4,
        options=FilterOptions(strategy=strategy),
    )
    deviations = np.array([S, S, 2.0 * S, 0.02, 0.02, 0.1])
    mean = np.concatenate((start, [0.5, speed, 0.0]))
    state = kf.start(Estimate(("open", "open"), 0.0, mean, np.diag(deviations**2)))
    return kf, kf.predict(state, TOUCH + ahead * S / (p.gravity * TOUCH - speed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ahead", "strategy"),
    [
        (-0.5, "saltation"),
        pytest.param(1.5, "saltation", marks=pytest.mark.long),
        pytest.param(-0.5, "reset_jacobian", marks=pytest.mark.long),
        pytest.param(1.5, "reset_jacobian", marks=pytest.mark.long),
    ],
)
def test_a_height_and_a_pitch_of_a_block_near_a_touch_have_a_density(ahead, strategy):
    """Two coordinates of a robot with contacts, one of which turns its guard."""
    kf, state = block_near_touch(ahead, strategy)
    if ahead > 0.0:
        assert len(state.hypotheses) > 1
    # rad: a part that has touched before the mean turns up, by 20 rad/s for up to 3 ms
    check_density(kf, state, "pose", above=np.array([0.0, 0.06]))


def test_what_a_gate_takes_is_at_most_a_density():
    """Each part misses what its own gate rejects; a half where the gate is the median."""
    for gate, least in ((0.5, 0.4), (0.99, 0.98)):
        kf = ball_filter(4, "saltation", gate=gate)
        state = fallen(kf, 0.3)
        (line,), steps = axes(kf, state, "height", 0.25)  # the gate has an edge
        total = np.exp(scores(kf, state, "height", line[:, None])).sum() * steps[0]
        assert least < total <= 1.0


@pytest.mark.parametrize("depth", [-141.0, -3.0, 0.0, 3.0])
@pytest.mark.parametrize("known", [0.999999, 0.5])
def test_a_side_far_in_the_tail_keeps_the_density_within_its_bound(depth, known):
    """The estimate is 141 deviations past its guard, so that its side has a chance of e^-1e4.

    The guard is the first of two coordinates of unit variance, with a correlation; a value sees
    the second.
    """
    p = np.array([[1.0, known], [known, 1.0]])
    h, r = np.array([[0.0, 1.0]]), np.array([[0.04]])
    cut = Truncation(depth, np.array([1.0, 0.0]), 1.0)
    spread = h @ p @ h.T + r
    values = np.arange(-20.0, 160.0, 0.2)
    found = []
    for y in values:
        nis = float(y**2 / spread[0, 0])
        alone = -0.5 * (nis + np.log(2.0 * np.pi * spread[0, 0]))
        innovation = Innovation(0.0, "y", "air", np.array([y]), spread, nis, alone, np.inf, True)
        residual = LinearizedResidual(np.array([y]), h, r)
        found.append(alone + cut.log_evidence(p, residual, innovation))
    assert max(found) <= -0.5 * np.log(2.0 * np.pi * r[0, 0]) + 1e-9
    assert np.exp(found).sum() * 0.2 == pytest.approx(1.0, abs=1e-6)
