"""The interim mode: what impulses explain, when it holds, and what it does to late touches."""

import math
from dataclasses import replace

import numpy as np
import pytest
from control.samples import ball_on_two_floors, bouncing_ball, landing_ball
from hybridctl.experiments.rrr_door.reference import Design, build
from hybridctl.robots import cube
from hybridctl.robots import rrr_door as door
from scipy.optimize import lsq_linear

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.gains import GainCurve
from hybridctl.control.impacts import Impact, VelocityResidual, find_impact
from hybridctl.control.interim import (
    Interim,
    InterimLaw,
    WindowMoment,
    find_closing_window,
    find_opening_window,
)
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.system import MappedSystem
from hybridctl.mechanics import Wrench

GAIN = [[40.0, 12.0]]
INF = np.inf
PUSH = Wrench("door", (1.0, 0.0, 0.0), 0.0, 0.1)


def random_impact(rng, nv, m):
    """Any mass matrix and rows, with impulses of both signs."""
    root = rng.normal(size=(nv, nv))
    least = -rng.random(m) * rng.integers(2, size=m)
    return Impact(root @ root.T + np.eye(nv), rng.normal(size=(m, nv)), least, rng.random(m))


@pytest.mark.parametrize("seed", range(12))
def test_impulses_within_bounds_are_those_of_constrained_least_squares(seed):
    """Both minimise |B L - change| in the kinetic metric; steps end at 1e-12 of the impulses."""
    rng = np.random.default_rng(seed)
    nv = int(rng.integers(2, 6))
    m = int(rng.integers(1, nv + 1))
    impact = random_impact(rng, nv, m)
    kept = sorted(rng.choice(nv, size=int(rng.integers(m, nv + 1)), replace=False).tolist())
    explanation = impact.explanation(kept)
    change = rng.normal(size=len(kept))
    root = np.linalg.cholesky(impact.mass[np.ix_(kept, kept)]).T
    response = np.linalg.solve(impact.mass, impact.jacobian.T)[kept]
    bounds = (impact.least, impact.greatest)
    expected = lsq_linear(root @ response, root @ change, bounds, method="bvls", tol=1e-14)
    np.testing.assert_allclose(explanation.fit_impulses(change), expected.x, atol=1e-8)
    np.testing.assert_allclose(explanation.explain(change), response @ expected.x, atol=1e-8)


@pytest.mark.parametrize("excess", [0.0, 0.3, 2.0])
def test_impulses_far_beyond_their_bounds_are_not_believed(excess):
    """Rows that do not couple: each impulse is L = J v, left over what of it is believed.

    The first is between 0 and 0.5, the second between -0.2 and 0.2; below 0 there is no impulse,
    and nothing explains or excuses the velocity.
    """
    rows = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    least, greatest = np.array([0.0, -0.2]), np.array([0.5, 0.2])
    unexplained = VelocityResidual(
        Impact(np.eye(3), rows[:2], least, greatest).explanation(), excess
    )
    for size in ([0.3, 0.1], [0.6, -0.25], [9.0, -9.0], [-0.4, 9.0]):
        inside = np.clip(size, least, greatest)
        believed = np.array(size) - [size[0] > 0.0, 1] * (
            np.array(size) - np.clip(size, (1.0 + excess) * least, (1.0 + excess) * greatest)
        )
        change = rows.T @ [*size, 7.0]
        expected = rows.T @ [*(believed - inside), 7.0]
        np.testing.assert_allclose(unexplained(change), expected, atol=1e-10)


def test_redundant_contacts_explain_the_same_change():
    """Of the same row twice, impulses add up; which of them bears it does not matter."""
    row = np.array([[1.0, 2.0]])
    single = Impact(np.eye(2), row, np.zeros(1), np.array([2.0])).explanation()
    double = Impact(np.eye(2), np.vstack([row, row]), np.zeros(2), np.ones(2)).explanation()
    for change in ([0.5, 1.0], [9.0, 9.0], [-1.0, 0.0]):
        expected = single.explain(np.array(change))
        np.testing.assert_allclose(double.explain(np.array(change)), expected, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_the_projector_takes_off_what_impulses_do_and_no_more(seed):
    impact = random_impact(np.random.default_rng(seed), 5, 2)
    explanation = impact.explanation([0, 1, 3])
    p, w, b = explanation.projector, explanation.metric, explanation.response
    np.testing.assert_allclose(p @ p, p, atol=1e-12)
    np.testing.assert_allclose(w @ p, p.T @ w, atol=1e-12)
    np.testing.assert_allclose(p @ b, 0.0, atol=1e-12)
    assert np.linalg.matrix_rank(p, tol=1e-9) == 1


@pytest.fixture(scope="module")
def at_the_door():
    plant = door.system()
    return plant, build(plant, door.DoorParameters(), Design(), rtol=1e-9, atol=1e-9)


def test_the_planned_impulses_explain_the_whole_impact_of_the_door(at_the_door):
    """M (v+ - v-) = J' L; in every order of touches corners get no more than together."""
    _, reference = at_the_door
    (impact,), (event,) = reference.impacts, reference.events
    change = (event.state_after - event.state_before)[4:]
    np.testing.assert_allclose(impact.mass @ change, impact.jacobian.T @ event.impulses, atol=1e-9)
    np.testing.assert_allclose(impact.greatest, event.impulses, atol=1e-9)
    np.testing.assert_array_equal(impact.least, 0.0)
    arm = impact.explanation([0, 1, 2])
    np.testing.assert_allclose(impact.explanation().fit_impulses(change), event.impulses, atol=1e-8)
    np.testing.assert_allclose(arm.fit_impulses(change[:3]), event.impulses, atol=1e-8)
    np.testing.assert_allclose(arm.explain(2.0 * change[:3]), change[:3], atol=1e-8)
    np.testing.assert_array_equal(arm.explain(-change[:3]), 0.0)


def test_the_impact_of_a_wrapped_robot_is_that_of_the_robot(at_the_door):
    """By its mass and contacts, whatever the system is made for besides."""
    plant, reference = at_the_door
    (impact,), (event,) = reference.impacts, reference.events
    for system in (MappedSystem(plant, lambda key: Change()), plant.pushed(PUSH)):
        found = find_impact(system, event, [event.impulses], [event.state_after])
        np.testing.assert_array_equal(found.mass, impact.mass)
        np.testing.assert_array_equal(found.jacobian, impact.jacobian)


def test_friction_bounds_tangential_impulses(at_the_door):
    parameters = door.DoorParameters(friction=0.2)
    plant = door.system(parameters)
    _, smooth = at_the_door
    touch = smooth.events[0]
    start = smooth.nominal(touch.time - 0.01)
    run = hc.simulate(plant, ("open", "open"), start, (touch.time - 0.01, touch.time + 0.01))
    first = hc.extend(plant, run, before=0.01, after=0.01).impacts[0]
    n = len(first.greatest) // 2
    np.testing.assert_allclose(first.greatest[n:], 0.2 * first.greatest[:n])
    np.testing.assert_allclose(first.least, np.append(np.zeros(n), -first.greatest[n:]))


def test_events_that_change_no_velocity_have_no_impact():
    system = landing_ball()
    lifted = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.8), lambda t, x: [20.0 * (t > 0.6)])
    assert [e.guards for e in lifted.guard_events] == [("floor",), ("lift",)]
    landing, lift = hc.extend(system, lifted, before=0.05, after=0.05).impacts
    speed = np.sqrt(2.0 * 9.81)
    np.testing.assert_allclose(landing.jacobian, [[speed]], rtol=1e-8)
    assert lift is None


@pytest.mark.parametrize(
    ("touched", "time", "expected"),
    [
        (INF, 0.90, WindowMoment(None, False, 0.97)),
        (INF, 0.97, WindowMoment(4, False, 1.0)),
        (INF, 1.00, WindowMoment(4, True, 1.02)),
        (INF, 1.02, WindowMoment(None, False, INF)),
        (0.95, 0.96, WindowMoment(4, True, 1.02)),  # a touch before the window opens it
        (0.98, 1.01, WindowMoment(4, True, 1.02)),
        (
            1.01,
            1.025,
            WindowMoment(4, True, 1.03),
        ),  # missing touches are waited for from the first on
        (1.01, 1.03, WindowMoment(None, False, INF)),
    ],
)
def test_the_window_of_an_event_that_is_due(touched, time, expected):
    found = find_opening_window(
        Interim(before=0.03, dwell=0.01, timeout=0.02), 4, 1.0, touched, time
    )
    assert found[:2] == expected[:2]
    assert found.until == pytest.approx(expected.until)


def test_the_window_goes_on_after_the_last_touch():
    interim = Interim(dwell=0.01)
    assert find_closing_window(interim, 2, 1.0, 1.005) == WindowMoment(2, True, 1.01, 1.0)
    assert find_closing_window(interim, 2, 1.0, 1.01) is None
    assert find_closing_window(interim, 2, 1.0, 0.5) is None  # after a clock that jumped back
    nothing = WindowMoment(None, False, INF)
    assert find_opening_window(interim, 3, 1.0, INF, 0.5) == nothing
    assert find_opening_window(interim, 3, 1.0, 0.9, 0.95) == nothing
    assert find_closing_window(Interim(), 2, 1.0, 1.0) is None


@pytest.fixture(scope="module")
def bounces():
    system = bouncing_ball()
    nominal = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.9), rtol=1e-11, atol=1e-11)
    return system, hc.extend(system, nominal, before=0.2, after=0.2)


def spreading(bounces, **lengths):
    return hc.ReferenceSpreading(bounces[1], [GAIN, GAIN], interim=Interim(**lengths))


def bounced(bounces, policy, start=1.0):
    return hc.simulate(bounces[0], "air", [start, 0.0], (0.0, 0.9), policy)


def test_of_no_width_it_is_plain_spreading_to_the_last_bit(bounces):
    system = ball_on_two_floors(gap=0.02)
    nominal = hc.simulate(ball_on_two_floors(), "00", [1.0, 0.0], (0.0, 0.8))
    split = hc.extend(ball_on_two_floors(), nominal, before=0.1, after=0.1)
    gains = hc.GainSchedule.constant([GAIN, GAIN], {key: GAIN for key in split.phantoms})
    for plant, mode, reference in ((bounces[0], "air", bounces[1]), (system, "00", split)):
        schedule = gains if reference is split else [GAIN, GAIN]
        ends = [
            hc.simulate(plant, mode, [1.05, 0.0], (0.0, 0.7), policy)
            for policy in (
                hc.ReferenceSpreading(reference, schedule),
                hc.ReferenceSpreading(reference, schedule, interim=Interim()),
            )
        ]
        assert [e.time for e in ends[0].events] == [e.time for e in ends[1].events]
        np.testing.assert_array_equal(ends[0].final_state, ends[1].final_state)


def test_its_law_changes_where_the_window_begins_and_ends(bounces):
    """A ball from 2 cm higher lands late; the window is open from 30 ms before the plan on."""
    due = bounces[1].events[0].time
    run = bounced(bounces, spreading(bounces, before=0.03, dwell=0.02, timeout=0.04), 1.02)
    touch = run.guard_events[0].time
    assert touch > due
    changes = [e.time for e in run.events if not e.guards]
    assert changes == pytest.approx([due - 0.03, due, touch + 0.02], abs=1e-12)
    early = bounced(bounces, spreading(bounces, before=0.03, dwell=0.02, timeout=0.04), 0.98)
    touch = early.guard_events[0].time
    changes = [e.time for e in early.events if not e.guards]
    assert changes == pytest.approx([due - 0.03, touch + 0.02], abs=1e-12)


@pytest.mark.parametrize("part", [-0.4, 0.0, 0.3, 1.0, 1.2, 1.5, 4.0])
def test_velocities_are_compared_with_the_nearest_part_of_the_impact(bounces, part):
    """Between v- and v+ there is no error of the velocity, beyond them that to the nearer one.

    Beyond v+ by more than 0.3 of the jump it is that of 0.3, beyond v- all of it.
    """
    _, reference = bounces
    event = reference.events[0]
    policy = spreading(bounces, before=0.03, dwell=0.02, timeout=0.04)
    k = np.array(GAIN)
    for t, arc in ((event.time - 0.01, 0), (event.time + 0.01, 1)):
        alpha, mu = reference.arcs[arc].state_and_input(t)
        v = reference.arcs[0](t)[1]
        jump = (event.state_after - event.state_before)[1]
        x = np.array([alpha[0] - 0.02, v + part * jump])
        u = policy.law(History("air", t, x))(t, x)
        beyond = (min(max(part, 0.0), 1.0) - min(part, 1.3)) * jump
        np.testing.assert_allclose(u, mu + k @ [0.02, beyond], atol=1e-9)


def test_on_the_reference_it_gives_the_feedforward(bounces):
    run = bounced(bounces, spreading(bounces, before=0.03, dwell=0.02, timeout=0.04))
    np.testing.assert_allclose(run.final_state, bounces[1].nominal.final_state, atol=1e-7)


def test_it_takes_the_peak_off_touches_that_are_known_late(bounces):
    """5 ms late, spreading feeds back the whole jump of 8 m/s, 96 N; the interim mode none of it.

    What is left are 40 / s^2 times the 2 cm of the start, 0.8 N.
    """
    peaks = []
    for lengths in ({}, {"before": 0.03, "dwell": 0.02, "timeout": 0.04}):
        policy = DetectedPolicy(spreading(bounces, **lengths), Detection(delay=5e-3))
        run = bounced(bounces, policy, 1.02)
        peaks.append(max(np.abs(arc.input(t)).max() for arc, t in run.sampled(1e-4)))
    assert peaks[0] > 0.9 * 12.0 * 1.8 * np.sqrt(2.0 * 9.81)
    assert peaks[1] < 1.0


def test_the_door_is_tracked_through_its_split_impact(at_the_door):
    """Touches of both corners 5 ms late: the peak of spreading is several times the interim's."""
    plant, reference = at_the_door
    k = np.hstack([np.diag([80.0, 40.0, 1.0]), np.zeros((3, 1))])
    d = np.hstack([np.diag([20.0, 10.0, 0.3]), np.zeros((3, 1))])
    gains = [np.hstack([k, d])] * 2
    begin = reference.nominal(0.8) + 0.02 * np.array([1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    peaks = []
    for interim in (Interim(), Interim(0.03, 0.01, 0.03, velocities=(0, 1, 2))):
        spread = hc.ReferenceSpreading(reference, gains, interim=interim)
        policy = DetectedPolicy(spread, Detection(delay=5e-3))
        run = hc.simulate(
            plant, ("open", "open"), begin, (0.8, 1.2), policy, rtol=1e-6, atol=1e-6, on_zeno="rest"
        )
        touch = run.guard_events[0].time
        sampled = [arc.input(t[t > touch - 0.02]) for arc, t in run.sampled(1e-3)]
        peaks.append(max(np.abs(u).max() for u in sampled if len(u)))
    assert peaks[1] < 0.6 * peaks[0]


def test_wrong_arguments_are_named(bounces):
    with pytest.raises(InputError, match="dwell must be at least 0"):
        Interim(dwell=-1.0)
    with pytest.raises(InputError, match="velocities must be below 1, got 1"):
        spreading(bounces, velocities=(1,))
    with pytest.raises(InputError, match="interim must be a Interim"):
        hc.ReferenceSpreading(bounces[1], [GAIN, GAIN], interim=0.03)


def test_on_a_manifold_too_only_what_impulses_do_not_explain_is_fed_back():
    """A cube in flight, whose states have one coordinate more than its tangents."""
    system, rng, mode = cube.system(actuated=True), np.random.default_rng(8), ("open",) * 8
    space = system.mode(mode).space
    starts = [
        np.concatenate([[0, 0, 1.0, 0, 0, 0, 1.0], rng.normal(size=6)]).astype(float)
        for _ in range(2)
    ]
    arc, ante = (hc.simulate(system, mode, x, (0.0, 0.1)).arcs[0] for x in starts)
    kept, t = [1, 3, 4], 0.05
    explanation = random_impact(rng, 6, 2).explanation(kept)
    unexplained = VelocityResidual(explanation, 1e6)
    gain = rng.normal(size=(6, 12))
    x = space.integrate(arc(t), rng.normal(size=12))
    whole = space.difference(x, arc(t))
    change = (x[7:] - ante(t)[7:])[kept]
    left = np.zeros(6)
    left[[1, 3, 4]] = explanation.explain(change) - change
    unfed = np.isin(np.arange(6), kept, invert=True)
    whole[6:][unfed] = 0.0
    for closing, share in (
        ((math.inf, math.inf), 0.0),
        ((t - 0.01, t + 0.03), 0.25),
        ((0.0, t), 1),
        ((0.0, 0.5 * t), 1),
    ):
        law = InterimLaw(arc, ante, GainCurve.constant(gain), unexplained, None, closing)
        error = np.concatenate([whole[:6], share * whole[6:] + (1 - share) * left])
        np.testing.assert_allclose(law(t, x), gain @ error, atol=1e-12)


def test_the_input_does_not_jump_where_the_window_closes(bounces):
    """A ball that is 1 m/s too slow after it has been hit: impulses explain that.

    1e-8 s before its end the window leaves 1e-8 / 0.02 of the 12 N to impulses, and at the last
    touch all of them.
    """
    policy = spreading(bounces, before=0.03, dwell=0.02, timeout=0.04)
    hit = hc.simulate(bounces[0], "air", [1.0, 0.0], (0.0, 0.6)).guard_events[0]
    touched = History("air", hit.time, hit.state_after, (hit,))
    x = hit.state_after - [0.0, 1.0]
    end = policy.next_change(touched)
    assert end == pytest.approx(hit.time + 0.02)
    during, after = (policy.law(replace(touched, time=t)) for t in (hit.time, end))
    t = end - 1e-8
    np.testing.assert_allclose(during(t, x), after(end, x), atol=2e-5)
    assert abs(during(hit.time, x) - after(end, x)).max() > 10.0
