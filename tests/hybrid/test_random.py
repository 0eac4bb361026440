"""Laws that hold for every ball in every box: seeded searches for a counterexample."""

import numpy as np
from hybrid.samples import GRAVITY, box
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

import hybridctl as hc

SPAN = 1.5
unit = st.floats(0.0, 1.0, allow_subnormal=False)
speeds = st.floats(-5.0, 5.0, allow_subnormal=False)


@st.composite
def cases(draw):
    """A box, and a ball well inside it so that its bounces do not accumulate within the span."""
    width, height = 0.3 + 2.0 * draw(unit), 0.8 + 2.0 * draw(unit)
    restitution = 0.9 + 0.1 * draw(unit)
    x = width * (0.1 + 0.8 * draw(unit))
    y = 0.4 + (height - 0.5) * draw(unit)
    return (width, height, restitution), np.array([x, y, draw(speeds), draw(speeds)])


def run(case, x0, span):
    return hc.simulate(box(*case), "air", x0, span)


@seed(1)
@settings(max_examples=40)
@given(cases())
def test_the_ball_stays_in_the_box_and_events_are_ordered(case):
    (width, height, _), x0 = case
    traj = run(case[0], x0, (0.0, SPAN))
    times = [event.time for event in traj.events]
    assert times == sorted(times)
    for _, t in traj.sampled(0.01):
        for x in (traj(s) for s in t):
            # the guard tolerance is 1e-8; half of it covers what is between the samples
            assert -1.5e-8 < x[0] < width + 1.5e-8
            assert -1.5e-8 < x[1] < height + 1.5e-8
    for event, before, after in zip(traj.events, traj.arcs, traj.arcs[1:], strict=False):
        assert before.end == after.start == event.time
        np.testing.assert_array_equal(before(event.time), event.state_before)


@seed(2)
@settings(max_examples=40)
@given(cases())
def test_the_number_of_wall_impacts_is_that_of_the_unfolded_path(case):
    # sideways the ball is free: without loss, |x| unfolds to a straight line
    (width, height, _), x0 = case
    crossings = abs(np.floor((x0[0] + x0[2] * SPAN) / width))
    offset = (x0[0] + x0[2] * SPAN) / width
    assume(abs(offset - round(offset)) > 1e-6)
    traj = run((width, height, 1.0), x0, (0.0, SPAN))
    hits = [name for e in traj.events for name in e.guards if name in ("left", "right")]
    assert len(hits) == crossings
    energy = GRAVITY * traj.final_state[1] + 0.5 * (traj.final_state[2:] ** 2).sum()
    # up to 30 impacts that round 1e-14 each
    assert abs(energy - GRAVITY * x0[1] - 0.5 * (x0[2:] ** 2).sum()) < 1e-10


@seed(3)
@settings(max_examples=20)
@given(cases())
def test_two_runs_are_identical(case):
    first, second = (run(*case, (0.0, SPAN)) for _ in range(2))
    assert [e.time for e in first.events] == [e.time for e in second.events]
    np.testing.assert_array_equal(first.final_state, second.final_state)


@seed(4)
@settings(max_examples=40)
@given(cases(), st.floats(0.01, 0.99))
def test_a_run_that_is_split_in_time_is_the_same_run(case, part):
    whole = run(*case, (0.0, SPAN))
    first = run(*case, (0.0, part * SPAN))
    second = run(case[0], first.final_state, (part * SPAN, SPAN))
    times = [e.time for e in (*first.events, *second.events)]
    assert len(times) == len(whole.events)
    # parabolas are exact; errors of 1e-15 grow with 1/speed of slow impacts, at most 1e4 here
    np.testing.assert_allclose(times, [e.time for e in whole.events], atol=1e-10)
    np.testing.assert_allclose(second.final_state, whole.final_state, atol=1e-8)


@seed(5)
@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_piecewise_linear_oscillators_cross_where_their_closed_form_does(number):
    # x'' = -k_i x with k by the sign of x: half periods pi / sqrt(k_i), however random the start
    rng = np.random.default_rng(number)
    stiffness = dict(zip(("minus", "plus"), rng.uniform(1.0, 100.0, 2), strict=True))
    modes = [
        hc.Mode(key, hc.VectorSpace(2), lambda t, x, u, k=k: np.array([x[1], -k * x[0]]))
        for key, k in stiffness.items()
    ]
    zero = {"minus": lambda t, x, u: -x[0], "plus": lambda t, x, u: x[0]}
    other = {"minus": "plus", "plus": "minus"}
    edges = [
        hc.Transition(key, hc.Guard("zero", zero[key]), hc.Reset.identity(), other[key])
        for key in modes_of(modes)
    ]
    velocity = 10.0 ** rng.uniform(-3, 3)
    traj = hc.simulate(hc.HybridSystem(modes, edges), "plus", [0.0, velocity], (0.0, 3.0))
    halves = [np.pi / np.sqrt(stiffness[arc.mode]) for arc in traj.arcs[:-1]]
    np.testing.assert_allclose(
        [e.time for e in traj.events],
        np.cumsum(halves),
        # atol 1e-9 on a state of size `velocity`, over up to 200 steps
        atol=1e-6 * max(1.0, 1e-2 / velocity),
    )
    assert len(traj.events) >= int(3.0 / (np.pi * sum(s**-0.5 for s in stiffness.values()))) * 2


def modes_of(modes):
    return [mode.key for mode in modes]
