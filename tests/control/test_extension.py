"""Extension by rule: lengths from event times in closed form, inputs by rule, and the report."""

import numpy as np
import pytest
from control.samples import G, Levels, ball_on_two_floors, bouncing_ball, landing_ball
from hybridctl.experiments.rrr_door.reference import Design, build
from hybridctl.robots import rrr_door
from sensitivity.test_boundary import TIGHT, ball_on_the_cone

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.extension import RULES, continue_input, event_time_deviations, extend_by_rule

COVARIANCE = np.diag([0.01**2, 0.02**2])


def ramp(t, x):
    """A thrust that grows, and bends."""
    return np.array([1.0 + 2.0 * t + 3.0 * t**2])


@pytest.fixture(scope="module")
def bounce():
    system = bouncing_ball()
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.9), rtol=1e-11, atol=1e-11)
    return hc.linearize(system, run)


@pytest.fixture(scope="module")
def pushed():
    system = bouncing_ball()
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.9), ramp, rtol=1e-11, atol=1e-11)
    return hc.linearize(system, run)


def test_the_event_time_spreads_as_in_closed_form(bounce):
    """dt = (dh + t1 dv) / (g t1), so its variance is that of independent dh and dv."""
    t1 = np.sqrt(2.0 / G)
    expected = np.hypot(0.01, t1 * 0.02) / (G * t1)
    assert event_time_deviations(bounce, COVARIANCE) == pytest.approx([expected], rel=1e-7)
    shifted = event_time_deviations(bounce, 0.0 * COVARIANCE, [0.01, 0.0])
    assert shifted == pytest.approx([0.01 / (G * t1)], rel=1e-7)


def test_an_error_of_the_input_shifts_events_as_in_closed_form(bounce):
    """A thrust of b N on 1 kg: dt = b t1 / (2 g), beside the shift by the start."""
    t1, deviation = np.sqrt(2.0 / G), 0.3
    expected = deviation * t1 / (2.0 * G)
    (found,) = event_time_deviations(bounce, 0.0 * COVARIANCE, input_covariance=[[deviation**2]])
    assert found == pytest.approx(expected, rel=1e-7)
    (both,) = event_time_deviations(bounce, COVARIANCE, input_covariance=[[deviation**2]])
    (start,) = event_time_deviations(bounce, COVARIANCE)
    assert both == pytest.approx(np.hypot(start, expected), rel=1e-7)


def test_an_error_of_the_input_goes_through_an_event_with_the_state():
    """The second bounce against the exact flow; differences of 1e-4 N leave 1e-8 of truncation."""
    system, times = bouncing_ball(), []
    for thrust in (1e-4, -1e-4, 0.0):
        run = hc.simulate(
            system, "air", [1.0, 0.0], (0.0, 1.6), lambda t, x, b=thrust: np.array([b])
        )
        times.append([event.time for event in run.events])
    slopes = np.abs(np.subtract(times[0], times[1])) / 2e-4
    found = event_time_deviations(
        hc.linearize(system, run), 0.0 * COVARIANCE, input_covariance=[[1.0]]
    )
    assert found == pytest.approx(slopes, rel=1e-5)


def test_the_event_time_spreads_as_an_ensemble_does(bounce):
    """1000 balls; the standard error of a standard deviation is 1 / sqrt(2000) = 2.2 %."""
    starts = np.array([1.0, 0.0]) + np.random.default_rng(0).multivariate_normal(
        np.zeros(2), 0.01 * COVARIANCE, size=1000
    )
    h, v = starts.T
    times = (v + np.sqrt(v**2 + 2.0 * G * h)) / G
    (expected,) = event_time_deviations(bounce, 0.01 * COVARIANCE)
    assert times.std() == pytest.approx(expected, rel=0.09)


def test_feedback_narrows_the_spread(bounce):
    closed = bounce.closed_loop([[[40.0, 12.0]]] * 2)
    free, fed = (event_time_deviations(lin, COVARIANCE)[0] for lin in (bounce, closed))
    assert fed < 0.3 * free


def test_simultaneous_guards_spread_with_the_slowest():
    """Each of two floors has the time shift of the ball; they fire at once in all directions."""
    system = ball_on_two_floors()
    reset = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8))
    with_jacobians = two_floors_with_jacobians()
    run = hc.simulate(with_jacobians, "00", [1.0, 0.0], (0.0, 0.8))
    np.testing.assert_allclose(run.final_state, reset.final_state)
    t1 = np.sqrt(2.0 / G)
    (found,) = event_time_deviations(hc.linearize(with_jacobians, run), COVARIANCE)
    # The points of the sum have the covariance exactly.
    assert found == pytest.approx(np.hypot(0.01, t1 * 0.02) / (G * t1), rel=1e-6)
    lin = hc.linearize(with_jacobians, run)
    (pushed,) = event_time_deviations(lin, 0.0 * COVARIANCE, input_covariance=[[0.09]])
    assert pushed == pytest.approx(0.3 * t1 / (2.0 * G), rel=1e-6)


def two_floors_with_jacobians(loss=0.8):
    """`ball_on_two_floors` with derivatives of its resets."""
    plain, scale = ball_on_two_floors(loss), np.diag([1.0, loss])
    reset = hc.Reset(
        lambda t, x, u: scale @ x,
        lambda t, x, u: hc.hybrid.mode.ResetJacobian(np.zeros(2), scale, np.zeros((2, 1))),
    )

    def outgoing(key):
        known = plain.outgoing(key)

        def edge(fired):
            found = known.edge(fired)
            return None if found is None else hc.hybrid.mode.Edge(reset, found.target)

        return hc.hybrid.mode.Outgoing(known.guards, edge)

    return hc.HybridSystem(plain.mode, outgoing)


@pytest.mark.parametrize("rule", RULES)
def test_with_a_constant_input_all_rules_are_extend(bounce, rule):
    extension = extend_by_rule(bounce, COVARIANCE, rule=rule, spread=4.0)
    length = 4.0 * extension.deviations[0]
    plain = hc.extend(bounce.system, bounce.trajectory, before=length, after=length)
    for arc, other in zip(extension.reference.arcs, plain.arcs, strict=True):
        assert (arc.start, arc.end) == (other.start, other.end)
        times = np.linspace(arc.start, arc.end, 20)
        np.testing.assert_allclose(arc(times), other(times), rtol=0.0, atol=1e-12)
    assert extension.failures == ()


def test_the_input_goes_on_by_the_rule(pushed):
    arc = pushed.trajectory.arcs[0]
    t1, length = arc.end, 0.05
    u, rate, bend = ramp(t1, None)[0], 2.0 + 6.0 * t1, 6.0
    inputs = {rule: continue_input(arc, rule, before=0.0, after=length) for rule in RULES}
    for rule in RULES:
        assert inputs[rule](t1 - 0.1) == pytest.approx(ramp(t1 - 0.1, None), abs=1e-9)
        assert inputs[rule](t1 + 1e-9) == pytest.approx([u], abs=1e-6)
    assert inputs["hold"](t1 + length) == pytest.approx([u], abs=1e-9)
    assert inputs["extrapolate"](t1 + length) == pytest.approx([u + rate * length], abs=1e-7)
    quintic = inputs["quintic"]
    assert quintic(t1 + length) == pytest.approx([u + 0.5 * rate * length], abs=1e-7)
    assert quintic(t1 + 2.0 * length) == pytest.approx(quintic(t1 + length))
    h = 1e-3
    # One-sided differences of a quintic with terms up to bend / length^2.
    slope = (quintic(t1 + h) - quintic(t1)) / h
    assert slope == pytest.approx([rate + 0.5 * bend * h], abs=0.05)
    end = (quintic(t1 + length) - quintic(t1 + length - h)) / h
    assert end == pytest.approx([0.0], abs=0.05)


def test_the_input_goes_back_by_the_rule(pushed):
    arc = pushed.trajectory.arcs[1]
    t, length = arc.start, 0.05
    u, rate = ramp(t, None)[0], 2.0 + 6.0 * t
    back = {rule: continue_input(arc, rule, before=length, after=0.0) for rule in RULES}
    assert back["hold"](t - length) == pytest.approx([u], abs=1e-9)
    assert back["extrapolate"](t - length) == pytest.approx([u - rate * length], abs=1e-6)
    assert back["quintic"](t - length) == pytest.approx([u - 0.5 * rate * length], abs=1e-6)
    h = 1e-3
    slope = (back["quintic"](t) - back["quintic"](t - h)) / h
    assert slope == pytest.approx([rate], abs=0.1)


@pytest.mark.parametrize("end", ["before", "after"])
def test_a_quintic_goes_on_twice_differentiably(pushed, end):
    """Its six conditions solved as linear equations: value, rate and bend, at both of its ends."""
    length, at = 0.05, np.linspace(0.0, 0.05, 11)
    arc, sign = pushed.trajectory.arcs[end == "before"], -1.0 if end == "before" else 1.0
    t = arc.start if end == "before" else arc.end
    u, rate, bend = ramp(t, None)[0], sign * (2.0 + 6.0 * t), 6.0
    orders = [np.polynomial.polynomial.polyder(np.eye(6), n) for n in range(3)]
    rows = [
        [np.polynomial.polynomial.polyval(d, basis) for basis in columns.T]
        for d in (0.0, length)
        for columns in orders
    ]
    curve = np.linalg.solve(np.array(rows), [u, rate, bend, u + 0.5 * length * rate, 0.0, 0.0])
    found = continue_input(arc, "quintic", **{"before": 0.0, "after": 0.0, end: length})
    expected = np.polynomial.polynomial.polyval(at, curve)
    # the second derivative of a recorded input is good to 1e-4 or so, and moves it by its half l^2
    np.testing.assert_allclose([found(t + sign * d)[0] for d in at], expected, atol=1e-6)


def test_lengths_are_per_event_and_have_a_margin():
    system = bouncing_ball()
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 1.6), rtol=1e-11, atol=1e-11)
    extension = extend_by_rule(hc.linearize(system, run), COVARIANCE, spread=3.0, margin=0.01)
    first, second = (3.0 * d + 0.01 for d in extension.deviations)
    assert extension.deviations[1] > 1.5 * extension.deviations[0]
    t1, t2 = (e.time for e in run.events)
    spans = [(arc.start, arc.end) for arc in extension.reference.arcs]
    assert spans == [(0.0, t1 + first), (t1 - first, t2 + second), (t2 - second, 1.6)]
    assert {(c.event, c.end) for c in extension.continuations} == {
        (k, end) for k in (0, 1) for end in ("before", "after")
    }


def test_a_spread_reference_takes_what_it_was_extended_for(bounce):
    """Starts at 3 sigma stay within 4 sigma of extension, starts at 8 sigma do not."""
    extension = extend_by_rule(bounce, COVARIANCE, spread=4.0)
    policy = hc.ReferenceSpreading(extension.reference, [np.zeros((1, 2))] * 2)
    for start in ([1.03, 0.0], [0.97, 0.0], [1.0, 0.06]):
        hc.simulate(bounce.system, "air", start, (0.0, 0.8), policy)
    with pytest.raises(hc.errors.ReferenceRangeError, match="extend it further"):
        hc.simulate(bounce.system, "air", [0.85, 0.0], (0.0, 0.8), policy)


def test_a_guard_that_falls_on_the_way_is_reported():
    """Before it lands the reference lifts off: its ground arc, carried back, would pull."""
    system = landing_ball()
    lift = Levels([0.1], [0.0, 0.0])
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.8), rising_from(lift, G - 0.5, 20.0))
    lin = hc.linearize(system, run)
    sound = extend_by_rule(lin, 1e-4 * COVARIANCE, rule="hold")
    assert sound.failures == ()
    broken = extend_by_rule(lin, COVARIANCE, rule="extrapolate", spread=10.0)
    assert len(broken.failures) == 1
    assert "guard 'lift' falls to" in broken.failures[0]
    assert "to before it" in broken.failures[0]


def rising_from(policy, level, rate):
    """Thrust that falls from `level` at `rate` N/s once the ball has landed."""

    class Falling:
        def law(self, history):
            if not any(e.guards for e in history.events):
                return policy.law(history)
            start = history.time
            return lambda t, x: np.array([level - rate * (t - start)])

    return Falling()


def test_a_field_that_grows_is_reported(bounce):
    """Where 1.2 times the nominal field is too much: later in its fall the ball is faster."""
    tight = extend_by_rule(bounce, COVARIANCE, spread=40.0, most_growth=1.02)
    assert any("its field grows to 1." in text for text in tight.failures)
    (after,) = [c for c in tight.continuations if c.end == "after"]
    t1 = np.sqrt(2.0 / G)
    speed = G * (t1 + after.length)
    usual = max(np.hypot(G, G * t1), np.hypot(G, 0.8 * G * t1))
    assert after.growth == pytest.approx(np.hypot(G, speed) / usual, rel=1e-9)


def test_growth_is_that_over_the_two_arcs_of_an_event():
    """At the second bounce the arc before the first, on which the ball is fastest, is over."""
    system = bouncing_ball()
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 1.4), rtol=1e-11, atol=1e-11)
    found = extend_by_rule(hc.linearize(system, run), COVARIANCE, spread=1.0)
    (after,) = [c for c in found.continuations if c.end == "after" and c.event == 1]
    hit = 0.8 * G * np.sqrt(2.0 / G)
    grown = np.hypot(G, hit + G * after.length) / np.hypot(G, hit)
    assert after.growth == pytest.approx(grown, rel=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_the_door_reference_extends_by_any_rule(rule):
    """Its torques rise by 105 N m/s at the impact: continued so or held, guards keep their signs.

    Over one and a half standard deviations of the event time.
    """
    plant = rrr_door.system()
    reference = build(plant, rrr_door.DoorParameters(), Design())
    lin = hc.linearize(plant, reference.nominal, rtol=1e-4, atol=1e-4)
    covariance = np.diag([0.01**2] * 3 + [0.0] + [0.01**2] * 3 + [0.0])
    found = extend_by_rule(lin, covariance, rule=rule, spread=1.5, rtol=1e-8, atol=1e-8)
    assert found.failures == ()
    assert {c.fired for c in found.continuations} >= {frozenset({"corner_1 closes"})}


def test_an_arc_knows_nothing_of_its_input_past_its_event(pushed):
    """A thrust that jumps 1e-7 s after the bounce continues as if it did not.

    The jump of 50 N, within the last step as it was tried, would be all of its slope.
    """
    t1 = pushed.trajectory.events[0].time

    def thrust(t, x):
        return ramp(t, x) + (50.0 if t > t1 + 1e-7 else 0.0)

    run = hc.simulate(bouncing_ball(), "air", [1.0, 0.0], (0.0, 0.6), thrust)
    arc = run.arcs[0]
    assert arc.end == pytest.approx(t1, abs=1e-8)
    assert arc.input_rate(arc.end) == pytest.approx([2.0 + 6.0 * arc.end], rel=1e-5)
    ahead = continue_input(arc, "extrapolate", before=0.0, after=0.1)
    line = ramp(arc.end, None) + 0.1 * (2.0 + 6.0 * arc.end)
    assert ahead(arc.end + 0.1) == pytest.approx(line, rel=1e-6)


def test_inputs_that_go_on_by_themselves_are_those_of_extend(pushed):
    """A ramp that is known past its end, and by how much it leaves a limit there."""
    inputs = [lambda t: ramp(t, None)] * 2
    found = extend_by_rule(pushed, COVARIANCE, rule=inputs, limits=[[0.0], [ramp(0.5, None)[0]]])
    (length,) = (4.0 * d for d in found.deviations)
    plain = hc.extend(
        pushed.system, pushed.trajectory, before=length, after=length, feedforward=inputs
    )
    for arc, other in zip(found.reference.arcs, plain.arcs, strict=True):
        times = np.linspace(arc.start, arc.end, 20)
        np.testing.assert_array_equal(arc(times), other(times))
    t1 = pushed.trajectory.events[0].time
    (after,) = [c for c in found.continuations if c.end == "after"]
    excess = ramp(t1 + length, None)[0] - ramp(0.5, None)[0]
    assert after.excess == pytest.approx(excess, rel=1e-8)
    assert f"an input leaves its limits by {excess:.3g}" in found.failures[-1] + found.failures[0]


def test_wrong_arguments_are_named(bounce):
    with pytest.raises(InputError, match="rule 'held' is unknown"):
        extend_by_rule(bounce, COVARIANCE, rule="held")
    with pytest.raises(InputError, match="covariance must have shape"):
        extend_by_rule(bounce, np.eye(3))
    with pytest.raises(InputError, match="spread must be at least"):
        extend_by_rule(bounce, COVARIANCE, spread=-1.0)
    with pytest.raises(InputError, match="before must have one length per event"):
        hc.extend(bounce.system, bounce.trajectory, before=[0.1, 0.1], after=0.1)


def test_the_border_of_an_impact_has_no_share_in_the_time_of_its_event():
    """The border of the friction cone counts as a guard of the jump, with a time of its own."""
    system, x0 = ball_on_the_cone(0.5, 1.0, restitution=0.5)
    run = hc.simulate(system, ("open",), x0, (0.0, 0.2), **TIGHT)
    lin = hc.linearize(system, run, **TIGHT)
    before = lin.arcs[0].end @ (1e-6 * np.eye(4)) @ lin.arcs[0].end.T
    row = lin.jumps[0].jump(frozenset(), 0).time_state
    (found,) = event_time_deviations(lin, 1e-6 * np.eye(4))
    # The points of the sum have the covariance exactly.
    assert found == pytest.approx(np.sqrt(row @ before @ row), rel=1e-9)
