"""Late, noisy and missed detection, on balls in closed form."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from control.samples import G, ball_on_two_floors, bouncing_ball, landing_ball
from scipy.stats import norm

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.detection import DetectedPolicy, Detection, ForceSignal
from hybridctl.control.gains import GainCurve, GainSchedule
from hybridctl.control.tracking_error import tracking_error
from hybridctl.hybrid.policy import History

GAIN = [[40.0, 12.0]]
START = [1.02, 0.0]


@pytest.fixture(scope="module")
def bounces():
    system = bouncing_ball()
    nominal = hc.simulate(system, "air", [1.0, 0.0], (0.0, 1.6), rtol=1e-11, atol=1e-11)
    assert len(nominal.events) == 2
    return system, hc.extend(system, nominal, before=0.2, after=0.2)


def tracked(bounces, start=START, end=1.6, detection=None, **options):
    system, reference = bounces
    policy = hc.ReferenceSpreading(reference, [GAIN] * 3, **options)
    if detection is not None:
        policy = DetectedPolicy(policy, detection)
    return hc.simulate(system, "air", start, (0.0, end), policy)


@pytest.mark.parametrize(
    "options",
    [
        {"detection": Detection()},
        {"detection": Detection(delay=0.0, threshold=0.0, jitter=0.0, seed=7)},
        {"detection": Detection(threshold=0.5)},  # impulses of about 8 N s
        {"detection": Detection(timeout=0.0)},
        {"limits": [1e3]},
        {"limits": [[-1e3], [1e3]]},
    ],
)
def test_options_that_do_nothing_leave_plain_spreading(bounces, options):
    plain, other = tracked(bounces), tracked(bounces, **options)
    times = [[e.time for e in run.events] for run in (plain, other)]
    np.testing.assert_allclose(*times, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(plain.final_state, other.final_state, rtol=0.0, atol=1e-12)


def test_a_delay_shifts_the_switch_by_exactly_that(bounces):
    _, reference = bounces
    plain, late = tracked(bounces), tracked(bounces, detection=Detection(delay=0.01))
    impact, (t,) = late.events[0], late.arcs[1].changes
    assert impact.time == plain.events[0].time
    assert t == impact.time + 0.01
    for side, arc in (("left", 0), ("right", 1)):
        alpha, mu = reference.arcs[arc].state_and_input(t)
        expected = mu + np.array(GAIN) @ (alpha - late(t))
        np.testing.assert_allclose(late.arcs[1].input(t, side), expected, atol=1e-9)
    assert len(late.guard_events) == 2


def test_the_damage_of_a_delay_is_to_follow_the_wrong_arc_for_that_long(bounces):
    """The velocity lost in d seconds is d K (alpha_1 - alpha_0), to first order."""
    _, reference = bounces
    for delay in (1e-4, 1e-5):
        plain = tracked(bounces, end=0.6)
        late = tracked(bounces, end=0.6, detection=Detection(delay=delay))
        (t,) = late.arcs[1].changes
        wrong = reference.arcs[0](t) - reference.arcs[1](t)
        gained = (np.array(GAIN) @ wrong)[0] * delay
        # The feedback loses 12 / s of it, and the wrong force changes by as much.
        assert (late(t) - plain(t))[1] == pytest.approx(gained, rel=30.0 * delay)


def test_jitter_is_that_of_the_seed(bounces):
    def lags(seed):
        detection = Detection(delay=0.01, jitter=0.003, seed=seed)
        run = tracked(bounces, detection=detection)
        hits = [e.time for e in run.guard_events]
        known = [t for arc in run.arcs for t in arc.changes]
        return np.array(known) - np.array(hits)

    first = lags(1)
    assert len(first) == 2
    np.testing.assert_array_equal(first, lags(1))
    assert (first != lags(2)).all()
    draws = [np.random.default_rng((1, k)).standard_normal(2)[0] for k in range(2)]
    np.testing.assert_allclose(first, 0.01 + 0.003 * np.array(draws), rtol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_events_are_in_the_order_in_which_they_get_known(bounces, seed):
    """Samples between them keep their places, also where a later event is known sooner."""
    hit, kinds = tracked(bounces).events[0], np.random.default_rng(seed).random(40) < 0.3
    events = tuple(
        replace(hit, index=k, time=0.01 * k, guards=("floor",) if is_hit else ())
        for k, is_hit in enumerate(kinds)
    )
    detection = Detection(delay=0.03, jitter=0.03, seed=seed)
    now = History("air", 0.4, hit.state_after, events)
    hits = [event for event in events if event.guards]
    numbers = [np.random.default_rng((seed, k)).standard_normal() for k in range(len(hits))]
    lags = [max(0.0, 0.03 + 0.03 * number) for number in numbers]
    times = {e.index: e.time + lag for e, lag in zip(hits, lags, strict=True)}
    expected = sorted((times.get(e.index, e.time), e.index) for e in events)
    found, _ = detection.filter_history(now, lambda events: np.inf)
    assert [e.index for e in found.events] == [i for t, i in expected if t <= 0.4]


def test_a_policy_that_is_pickled_leaves_out_what_it_was_told(bounces):
    system, reference = bounces
    policy = DetectedPolicy(hc.ReferenceSpreading(reference, [GAIN] * 3), Detection(delay=0.01))
    hc.simulate(system, "air", START, (0.0, 1.6), policy)
    assert b"History" not in pickle.dumps(policy)


def test_a_missed_impact_counts_when_its_time_is_over(bounces):
    _, reference = bounces
    missed = tracked(bounces, end=0.7, detection=Detection(threshold=100.0, timeout=0.05))
    assert missed.arcs[1].changes == (reference.events[0].time + 0.05,)
    never = tracked(bounces, end=0.5, detection=Detection(threshold=100.0))
    assert [e.guards for e in never.events] == [("floor",)]


@pytest.mark.parametrize("above", [0.0, 0.5, -0.7])
def test_noise_decides_which_impacts_are_missed(bounces, above):
    """At a threshold that lies so many deviations of the noise above the impulse."""
    plain = tracked(bounces, end=0.5)
    (event,) = plain.events
    impulse = float(event.impulses[0])
    history = History("air", event.time, event.state_after, plain.events)
    known = []
    for seed in range(40):
        threshold = (1.0 + 0.01 * above) * impulse
        detection = Detection(threshold=threshold, noise=0.01 * impulse, seed=seed)
        found, following = detection.filter_history(history, lambda events: 0.45)
        noise = np.random.default_rng((seed, 0)).standard_normal(2)[1]
        assert found.events == (plain.events if noise >= above else ())
        assert following == np.inf
        known.append(len(found.events))
    # of 40 draws, within three deviations
    assert abs(sum(known) - 40.0 * norm.sf(above)) < 3.0 * np.sqrt(10.0)


def test_a_missed_contact_is_known_by_its_force():
    """A sample each millisecond; the contact presses with g, so the first one shows it."""
    system = landing_ball()
    nominal = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.8))
    reference = hc.extend(system, nominal, before=0.1, after=0.1)
    zero = np.zeros((1, 2))

    def run(force, delay=0.0):
        detection = Detection(
            threshold=100.0, delay=delay, force=ForceSignal(system, force, period=1e-3)
        )
        policy = DetectedPolicy(hc.ReferenceSpreading(reference, [zero, zero]), detection)
        return hc.simulate(system, "air", [0.99, 0.0], (0.0, 0.47), policy)

    hit = np.sqrt(2.0 * 0.99 / G)
    seen = run(5.0)
    assert [e.time for e in seen.events] == pytest.approx([hit, hit + 1e-3], abs=1e-12)
    late = run(5.0, delay=4e-3)
    expected = [hit, hit + 1e-3, hit + 5e-3]
    assert [e.time for e in late.events] == pytest.approx(expected, abs=1e-12)
    unseen = run(G + 1.0)
    assert len(unseen.events) == 1 + int((0.47 - hit) / 1e-3)


def test_detection_of_split_events_passes_through_the_phantom_arc():
    """Floors 5 mm apart: the touches are known in order, each 3 ms late."""
    plant = ball_on_two_floors()
    nominal = hc.simulate(plant, "00", [1.0, 0.0], (0.0, 0.8))
    reference = hc.extend(plant, nominal, before=0.1, after=0.1)
    gains = GainSchedule.constant(
        [GAIN, GAIN], {(0, frozenset("a")): GAIN, (0, frozenset("b")): GAIN}
    )
    policy = DetectedPolicy(hc.ReferenceSpreading(reference, gains), Detection(delay=3e-3))
    run = hc.simulate(ball_on_two_floors(gap=0.02), "00", [1.0, 0.0], (0.0, 0.6), policy)
    assert [e.guards for e in run.events] == [("a",), ("b",)]
    between, after = run.arcs[1:]
    assert between.changes == (between.start + 3e-3,)
    assert after.changes == (after.start + 3e-3,)
    (t,) = between.changes
    alpha, mu = reference.phantoms[0, frozenset("a")].arc.state_and_input(t)
    expected = mu + np.array(GAIN) @ (alpha - run(t))
    np.testing.assert_allclose(run.input(t), expected, atol=1e-9)


def test_the_peak_grows_with_the_delay(bounces):
    """Spreading has no peak; knowing late brings that of the conventional error back."""
    _, reference = bounces
    peaks = [
        tracking_error(reference, tracked(bounces, detection=Detection(delay=d)), "spread").peak
        for d in (0.0, 0.003, 0.01, 0.03)
    ]
    assert peaks[0] == pytest.approx(tracking_error(reference, tracked(bounces), "spread").peak)
    assert (np.diff(peaks) > 0.0).all()
    assert peaks[0] < 0.1
    assert peaks[-1] > 1.0


def test_saturation_cuts_the_input(bounces):
    run = tracked(bounces, start=[1.1, 0.0], limits=[[-0.5], [0.25]])
    inputs = np.concatenate([arc.input(t) for arc, t in run.sampled(1e-3)])
    # Where a kink lies inside a step, the record is a polynomial through it.
    assert inputs.min() == pytest.approx(-0.5, abs=1e-3)
    assert inputs.max() <= 0.25 + 1e-3
    symmetric = tracked(bounces, start=[1.1, 0.0], limits=[0.5])
    inputs = np.concatenate([arc.input(t) for arc, t in symmetric.sampled(1e-3)])
    assert np.abs(inputs).max() == pytest.approx(0.5, abs=1e-3)


def test_without_gains_there_is_feedforward_alone_on_phantom_arcs():
    plant = ball_on_two_floors()
    nominal = hc.simulate(plant, "00", [1.0, 0.0], (0.0, 0.8))
    reference = hc.extend(plant, nominal, before=0.1, after=0.1)
    between = GainSchedule.constant([GAIN] * 2, dict.fromkeys(reference.phantoms, GAIN))
    split = ball_on_two_floors(gap=0.02)
    none = hc.ReferenceSpreading(reference, [GAIN] * 2)
    fed = hc.ReferenceSpreading(reference, between)
    runs = [hc.simulate(split, "00", [1.03, 0.0], (0.0, 0.6), p) for p in (none, fed)]
    phantom, (arc, fed_back) = runs[0].events[0].guards, (run.arcs[1] for run in runs)
    t = 0.5 * (arc.start + arc.end)
    followed = reference.phantoms[0, frozenset(phantom)].arc
    np.testing.assert_array_equal(arc.input(t), followed.input(t))
    assert np.abs(fed_back.input(t) - followed.input(t)).max() > 1e-5
    assert np.abs(runs[0].final_state - runs[1].final_state).max() > 1e-5


def test_a_schedule_is_the_same_as_its_matrices(bounces):
    system, reference = bounces
    varying = GainCurve(np.array([0.0, 0.3, 0.9]), np.array([GAIN, GAIN, GAIN]))
    for gains in (GainSchedule.constant([GAIN] * 3), GainSchedule((varying,) * 3)):
        run = hc.simulate(system, "air", START, (0.0, 1.6), hc.ReferenceSpreading(reference, gains))
        np.testing.assert_allclose(
            run.final_state, tracked(bounces).final_state, rtol=0.0, atol=1e-12
        )


def test_wrong_arguments_are_named(bounces):
    _, reference = bounces
    schedule = GainSchedule.constant([GAIN] * 3)
    wrong = replace(schedule, phantoms={(0, frozenset("x")): schedule.arcs[0]})
    with pytest.raises(InputError, match="there is no such phantom arc"):
        hc.ReferenceSpreading(reference, wrong)
    with pytest.raises(InputError, match="limits must have shape"):
        hc.ReferenceSpreading(reference, schedule, limits=[1.0, 2.0])
    with pytest.raises(InputError, match="least input must not exceed"):
        hc.ReferenceSpreading(reference, schedule, limits=[[1.0], [-1.0]])
    with pytest.raises(InputError, match="delay must be at least 0"):
        Detection(delay=-1.0)
    with pytest.raises(InputError, match="reference must be given for a timeout"):
        DetectedPolicy(hc.SampledPolicy(lambda t, x: x[:1], 0.1), Detection(timeout=0.1))
    with pytest.raises(InputError, match="threshold must be greater than 0"):
        ForceSignal(bounces[0], 0.0)
