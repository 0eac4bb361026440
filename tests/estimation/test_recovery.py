"""A filter that a push or a wrong mode has misled finds back, and tells so; wild rows do not."""

from dataclasses import replace

import numpy as np
import pytest
from estimation.systems import affine, bouncing_ball, height
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.stats import multivariate_normal

import hybridctl as hc
from hybridctl.app.models import find_model
from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_state import Beginning, Row
from hybridctl.estimation.initial_estimate import build_kalman_filter, first_estimate
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.recovery import _restart_from_rows as begun_anew
from hybridctl.estimation.recovery import compute_inflation
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.sampling.filters import make_filter as named_filter
from hybridctl.sampling.unscented import UnscentedFilter

KINDS = [SaltedKalmanFilter, UnscentedFilter]


def positive(rng, n):
    root = rng.normal(size=(n, n))
    return root @ root.T + 0.01 * np.eye(n)


def test_one_component_gets_the_variance_of_its_residual():
    found = compute_inflation(np.array([[0.04]]), np.array([[0.01]]), np.array([3.0]))
    assert found == pytest.approx((9.0 - 0.01) / 0.04, rel=1e-10)
    assert compute_inflation(np.array([[0.04]]), np.array([[0.01]]), np.array([0.1])) == 1.0


@given(st.integers(0, 10**6), st.integers(1, 4), st.floats(2.0, 1e4))
@settings(max_examples=60)
def test_the_factor_makes_the_residual_most_likely(seed, n, size):
    rng = np.random.default_rng(seed)
    spread, noise = positive(rng, n), positive(rng, n)
    r = size * rng.normal(size=n)
    factor = compute_inflation(spread, noise, r)
    assert factor >= 1.0
    assume(factor < 1e12)  # the largest that is given

    def likelihood(f):
        return multivariate_normal(cov=f * spread + noise).logpdf(r)

    for other in (0.99, 1.01):
        assert likelihood(max(other * factor, 1.0)) <= likelihood(factor) + 1e-10
    # with a small R it is the factor that puts the normalized innovation at its mean
    factor = compute_inflation(spread, 1e-9 * noise, r)
    if factor > 1.0:
        nis = r @ np.linalg.solve(factor * spread + 1e-9 * noise, r)
        assert nis == pytest.approx(n, rel=1e-4)


def test_a_held_direction_does_not_count():
    spread, noise = np.diag([0.04, 0.0]), np.diag([0.01, 0.01])
    alone = compute_inflation(spread[:1, :1], noise[:1, :1], np.array([3.0]))
    assert compute_inflation(spread, noise, np.array([3.0, 50.0])) == pytest.approx(alone)


A = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.5], [0.0, 0.2, -1.5]])
Q = np.diag([1e-3, 0.2, 0.05])
H = np.array([[1.0, 0.0, 0.3]])
R = np.array([[1e-4]])


def gathered(h):
    both = expm(h * np.block([[-A, Q], [np.zeros((3, 3)), A.T]]))
    phi = both[3:, 3:].T
    return phi, phi @ both[:3, 3:]


@pytest.mark.parametrize("kind", KINDS)
def test_to_filter_and_smoother_an_inflation_is_process_noise_at_that_time(kind):
    """Against the information of all states together, with that noise in its dynamics."""
    n, h, jumped = 8, 0.1, 4
    phi, q = gathered(h)
    rng = np.random.default_rng(3)
    x0, p0 = np.array([0.5, -0.2, 0.1]), 0.01 * np.eye(3)
    flow = np.array([np.linalg.matrix_power(phi, k) @ x0 for k in range(n + 1)])
    values = flow[1:] @ H.T + 0.01 * rng.normal(size=(n, 1))
    values[jumped:] += 4.0
    # Kalman's recursion gives the factor; from the jump on everything passes
    noises, p, m = [q] * n, p0, x0
    for k in range(jumped + 1):
        m, p = phi @ m, phi @ p @ phi.T + q
        r, s = values[k] - H @ m, H @ p @ H.T
        if k == jumped:
            noises[k] = q + ((r @ r - R[0, 0]) / s[0, 0] - 1.0) * p
        gain = p @ H.T / (s + R)
        m, p = m + gain @ r, p - gain @ H @ p
    size = 3 * (n + 1)
    information, vector = np.zeros((size, size)), np.zeros(size)
    information[:3, :3], vector[:3] = np.linalg.inv(p0), np.linalg.inv(p0) @ x0
    for k in range(n):
        rows, pair = slice(3 * k + 3, 3 * k + 6), slice(3 * k, 3 * k + 6)
        step = np.hstack([-phi, np.eye(3)])
        information[pair, pair] += step.T @ np.linalg.solve(noises[k], step)
        information[rows, rows] += H.T @ H / R
        vector[rows] += H.T @ values[k] / R[0]
    means = np.linalg.solve(information, vector).reshape(n + 1, 3)
    covariance = np.linalg.inv(information)

    kf = kind(
        affine(A, np.zeros(3)),
        Q,
        linear("z", H, R, gate=0.9999),
        options=FilterOptions(patience=1, rtol=1e-13, atol=1e-14),
    )
    record = Record({"z": Series(h * np.arange(1, n + 1), values)})
    result = kf.run(record, Estimate("flow", 0.0, x0, p0))
    assert [k for k, step in enumerate(result.steps) if step.reopened] == [jumped]
    assert result.summary()["reopened"] == result.summary()["rejected"] == 1
    np.testing.assert_allclose(result.means[-1], means[-1], atol=1e-8)
    found = smooth(kf.model.system, result)
    assert not found.notes
    for k, e in enumerate((found.initial, *found.estimates)):
        np.testing.assert_allclose(e.mean, means[k], atol=1e-8)
        block = covariance[3 * k : 3 * k + 3, 3 * k : 3 * k + 3]
        np.testing.assert_allclose(e.covariance, block, atol=1e-9)


def prepared(name, *assignments):
    source = find_model(name)
    chosen = source.configure(None, assignments)
    return source.make(chosen), chosen


def noisy(model, truth, times, inputs=None, seed=0):
    """What the first sensor of a model records of a motion."""
    m = model.sensors[0].measurement
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(m.covariance)
    rows = [truth(t)[: m.dimension] + root @ rng.normal(size=m.dimension) for t in times]
    return Record({m.name: Series(times, np.array(rows))}, inputs)


def joined(*runs):
    """The state by time of motions that follow one another."""
    return lambda t: next(run for run in runs if t <= run.end + 1e-12)(t)


def filtered(model, chosen, record, kind=SaltedKalmanFilter):
    """The results with and without recovery."""
    start, rest = first_estimate(model, chosen, record)
    blind = make_filter(model, chosen, kind, None).run(rest, start)
    return make_filter(model, chosen, kind, chosen.patience).run(rest, start), blind


def make_filter(model, chosen, kind, patience):
    return build_kalman_filter(model, replace(chosen, patience=patience), kind=kind)


def errors(model, result, truth, since):
    """Of configuration and velocities, at all samples from a time on."""
    nv = model.system.robot.nv
    off = np.array([s.estimate.mean - truth(s.time) for s in result.steps if s.time > since])
    return np.abs(off[:, :nv]).max(), np.abs(off[:, nv:]).max()


def pushed_ball():
    model, chosen = prepared("ball")
    first = hc.simulate(model.system, model.open, model.scenario().mean, (0.0, 1.0))
    moved = first.final_state + np.array([0.3, 0.4, 0.0, 0.0])
    truth = joined(first, hc.simulate(model.system, model.open, moved, (1.0, 2.0)))
    return model, chosen, truth, noisy(model, truth, np.arange(0.0, 2.0, 0.01))


@pytest.mark.parametrize("kind", KINDS)
def test_a_ball_that_was_pushed_away_is_found(kind):
    model, chosen, truth, record = pushed_ball()
    found, blind = filtered(model, chosen, record, kind)
    assert found.summary()["reopened"] == 1
    assert found.summary()["rejected"] == chosen.patience
    (note,) = found.notes
    assert "is believed" in note[1]
    place, speed = errors(model, found, truth, 1.2)
    assert place < 4.0 * chosen.position_noise
    assert speed < 0.1
    assert errors(model, blind, truth, 1.2)[0] > 0.1
    assert len(blind.rejected) > 90


@pytest.mark.slow
def test_particles_are_drawn_anew_for_a_ball_that_was_pushed_away():
    model, chosen, truth, record = pushed_ball()
    settings_ = replace(chosen, particles=300)
    start, rest = first_estimate(model, settings_, record)
    found, blind = (
        named_filter("particle", model, replace(settings_, patience=patience)).run(rest, start)
        for patience in (chosen.patience, None)
    )
    assert found.summary()["reopened"] >= 1
    assert errors(model, found, truth, 1.2)[0] < 6.0 * chosen.position_noise
    assert errors(model, blind, truth, 1.2)[0] > 0.1


def test_wild_rows_alone_or_few_stay_rejected():
    model, chosen = prepared("ball")
    record, _ = simulate_record(model, chosen)
    series = record.channels["position"]
    values = series.values.copy()
    values[[10, 20, 40, 41, 70, *range(90, 97)]] += 3.0
    start, rest = first_estimate(model, chosen, Record({"position": Series(series.times, values)}))
    summary = build_kalman_filter(model, chosen).run(rest, start).summary()
    assert (summary["rejected"], summary["reopened"]) == (12, 0)


@pytest.mark.parametrize(
    ("name", "count", "more"), [("ball", 3, ()), ("block", 1, ()), ("door", 1, ("begin=0.8",))]
)
def test_ordinary_motions_are_left_alone(name, count, more):
    for seed in range(count):
        model, chosen = prepared(name, f"seed={seed}", *more, *(["duration=0.4"] if more else []))
        record, _ = simulate_record(model, chosen)
        found, blind = filtered(model, chosen, record)
        assert found.summary()["reopened"] == 0
        np.testing.assert_array_equal(found.means[-1], blind.means[-1])


def test_a_table_at_another_height_costs_few_values_after_each_bounce():
    model, chosen = prepared("ball", "slope=0")
    lower = model.scenario().mean - np.array([0.0, 0.05, 0.0, 0.0])
    run = hc.simulate(model.system, model.open, lower, (0.0, 1.4))
    record = noisy(
        model, lambda t: run(t) + np.array([0.0, 0.05, 0.0, 0.0]), np.arange(0.0, 1.4, 0.01)
    )
    found, blind = filtered(model, chosen, record)
    bounces = len(run.events)
    assert found.summary()["reopened"] == bounces == 2
    assert len(found.rejected) <= bounces * (chosen.patience + 1)
    assert len(blind.rejected) > 4 * len(found.rejected)


def test_a_block_that_does_not_stick_is_found_sliding():
    """It rests, and is struck to slide at 1 m/s, of which the filter is not told."""
    model, chosen = prepared("block")
    rest = hc.simulate(
        model.system,
        ("stick", "stick"),
        [0, 0.05, 0, 0, 0, 0],
        (0.0, 0.15),
        lambda t, x: np.zeros(3),
    )
    struck = rest.final_state + np.array([0, 0, 0, 1.0, 0, 0])
    slide = hc.simulate(
        model.system, ("slip+", "slip+"), struck, (0.15, 0.45), lambda t, x: np.zeros(3)
    )
    truth = joined(rest, slide)
    record = noisy(model, truth, np.arange(0.0, 0.45, 0.01))
    found, blind = filtered(model, chosen, record)
    assert any("begun anew" in note for _, note in found.notes)
    assert found.modes[-1] == ("slip+", "slip+")
    assert blind.modes[-1] == ("stick", "stick")
    place, speed = errors(model, found, truth, 0.3)
    assert place < 3.0 * chosen.position_noise
    assert speed < 0.1
    assert found.summary()["rejected"] < 15 < blind.summary()["rejected"]
    notes = smooth(model.system, found).notes
    assert "no first-order map: smoothing begins anew" in [note for _, note in notes]


def test_a_foot_that_is_lifted_by_hand_is_found_off_the_door():
    """A torque that nobody has logged pulls the arm back for 60 ms."""
    model, chosen = prepared("door", "begin=0.9", "duration=0.6")
    record, made = simulate_record(model, chosen)
    lift = int(np.searchsorted(made.times, 1.25))
    x, mode, runs = made.run(made.times[lift]), model.open, []
    for k in range(lift, len(made.times) - 1):
        pull = -12.0 * (made.times[k] < made.times[lift] + 0.06) * np.eye(3)[0]
        torque = record.inputs.values[k] + pull
        span = made.times[k], made.times[k + 1]
        runs.append(hc.simulate(model.system, mode, x, span, lambda t, x, u=torque: u))
        x, mode = runs[-1].final_state, runs[-1].final_mode

    def truth(t):
        return made.run(t) if t <= made.times[lift] else joined(*runs)(t)

    found, blind = filtered(model, chosen, noisy(model, truth, made.times, record.inputs))
    assert made.run.arc(made.times[lift]).mode == ("closed", "closed")
    assert found.modes[-1] == mode != blind.modes[-1]
    place, speed = errors(model, found, truth, 1.4)
    assert place < 4.0 * chosen.angle_noise
    assert speed < 0.1
    assert errors(model, blind, truth, 1.4)[0] > 20.0 * place


def test_a_value_that_a_contact_excludes_is_believed_by_no_covariance():
    """Resting: height and speed are held, so no multiple of the covariance moves them."""
    start = Estimate("air", 0.0, np.array([1.0, 0.0]), np.diag([0.0, 0.0]))
    measured = linear("height", [[1.0, 0.0]], [[1e-6]], gate=0.999)
    at_once = SaltedKalmanFilter(
        bouncing_ball(), np.zeros((2, 2)), measured, options=FilterOptions(patience=1)
    )
    found = at_once.update(start, "height", 1.5)
    assert not found.reopened
    np.testing.assert_array_equal(found.estimate.mean, start.mean)
    times = 0.01 * np.arange(1, 25)
    off = Record({"height": Series(times, 1.5 + 0.1 * times - 4.905 * times**2)})
    # the initial covariance does not help either, and that is said once in eight values
    lost = SaltedKalmanFilter(bouncing_ball(), np.zeros((2, 2)), measured).run(off, start)
    assert len(lost.rejected) == 24
    assert [note for _, note in lost.notes] == [
        "'height' contradicts the estimate, and is not explained otherwise"
    ] * 3
    anew = SaltedKalmanFilter(
        bouncing_ball(),
        np.zeros((2, 2)),
        measured,
        options=FilterOptions(beginning=Beginning("air", np.eye(2))),
    ).run(off, start)
    assert anew.summary()["reopened"] == 1
    np.testing.assert_allclose(anew.means[-1][0], 1.5 + 0.1 * 0.24 - 4.905 * 0.24**2, atol=3e-3)


def test_settings_are_checked():
    with pytest.raises(InputError, match="patience"):
        SaltedKalmanFilter(
            bouncing_ball(), np.zeros((2, 2)), height(), options=FilterOptions(patience=0)
        )
    with pytest.raises(InputError, match="beginning"):
        SaltedKalmanFilter(
            bouncing_ball(),
            np.zeros((2, 2)),
            height(),
            options=FilterOptions(beginning=Beginning("air", np.eye(3))),
        )
    with pytest.raises(InputError, match="patience"):
        find_model("ball").configure(None, ["patience=0"])
    assert find_model("ball").configure(None, ["patience=null"]).patience is None


@pytest.mark.parametrize("width", [1e-2, 1e2])
def test_a_restart_believes_its_first_two_values_whatever_its_covariance(width):
    """Of a wide beginning the gate takes them; of a narrow one they are believed against it."""
    system = affine([[0.0, 1.0], [0.0, 0.0]], [0.0, 0.0])
    beginning = Beginning("flow", width**2 * np.eye(2))
    kf = SaltedKalmanFilter(
        system,
        np.zeros((2, 2)),
        height(1e-6),
        options=FilterOptions(beginning=beginning, patience=4),
    )
    state = kf.start(Estimate("flow", 0.0, np.zeros(2), 1e-6 * np.eye(2)))
    rows = [
        Row(Estimate("flow", t, np.zeros(2), np.eye(2)), "height", np.array([3.0 + 2.0 * t]), None)
        for t in (0.0, 0.5)
    ]
    state = kf.predict(state, 0.5)
    (found,) = begun_anew(kf.rules, state, rows)
    # two values of a deviation of 1 mm, half a second apart
    assert np.abs(found.estimate.mean - [4.0, 2.0]).max() < 4.0 * 1e-3 * np.sqrt(2.0) / 0.5 + 0.01


def test_what_is_kept_for_a_restart_does_not_grow():
    system = affine([[0.0, 1.0], [0.0, 0.0]], [0.0, 0.0])
    kf = SaltedKalmanFilter(
        system, np.zeros((2, 2)), height(1e-2), options=FilterOptions(patience=3)
    )
    state = kf.start(Estimate("flow", 0.0, np.zeros(2), np.eye(2)))
    for t in np.linspace(0.1, 3.0, 30):
        state = kf.update(kf.predict(state, t), "height", [0.0])
        assert len(state.rows["height"]) <= 3
        # those between the rows that are kept, and to the present
        assert len(state.inputs) <= 3
        first = state.rows["height"][0].estimate.time
        assert all(piece.end > first for piece in state.inputs)


@pytest.mark.parametrize(
    ("rows", "begun"),
    [
        ("a! a! ", 1),
        ("a! a a!", 0),  # not two in a row
        ("a! b! b a!", 1),  # for a they are, whatever b says
        ("a! b! b a", 0),
        ("a! b a!", 1),
    ],
)
def test_values_in_a_row_are_counted_channel_by_channel(rows, begun):
    """Two in a row begin anew; those marked are far off."""
    exact = [linear(name, [[1.0]], [[1e-4]], gate=0.999) for name in "ab"]
    kf = SaltedKalmanFilter(
        affine([[0.0]], [0.0]), np.zeros((1, 1)), exact, options=FilterOptions(patience=2)
    )
    state = kf.predict(Estimate("flow", 0.0, np.zeros(1), np.array([[1e-4]])), 0.1)
    opened = 0
    for row in rows.split():
        state = kf.update(state, row[0], [5.0 if row.endswith("!") else 0.0])
        opened += state.reopened
    assert opened == begun
