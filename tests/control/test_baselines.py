"""Baselines beside reference spreading: who peaks where, and what their parts do."""

import numpy as np
import pytest
from control.pushed_ball import scene
from control.samples import G, Levels, ball_on_two_floors, bouncing_ball, landing_ball
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.robots import rrr_door as door

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.baselines import (
    ImpactInvariantTracking,
    NearestTracking,
    compute_impact_projector,
)
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.spreading import ClockTracking, locate
from hybridctl.control.tracking_error import tracking_error
from hybridctl.hybrid.mode import Jump, ResetJacobian, ResetModel
from hybridctl.mechanics.modes.dynamics import ContactDynamics

GAIN = [[40.0, 12.0]]


@pytest.fixture(scope="module")
def bounces():
    system = bouncing_ball()
    nominal = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.9), rtol=1e-11, atol=1e-11)
    return system, hc.extend(system, nominal, before=0.2, after=0.2)


def run(bounces, policy, start=(1.0, 0.0)):
    return hc.simulate(bounces[0], "air", start, (0.0, 0.9), policy)


def policies(bounces):
    system, reference = bounces
    gains = [GAIN, GAIN]
    return {
        "spreading": hc.ReferenceSpreading(reference, gains),
        "conventional": ClockTracking(reference, gains),
        "nearest": NearestTracking(reference, gains, window=0.1),
        "invariant": ImpactInvariantTracking(system, reference, gains, window=0.1),
    }


def test_on_the_reference_all_give_the_feedforward(bounces):
    """Also in the instant of the event, which the guard has before the clock."""
    _, reference = bounces
    for policy in policies(bounces).values():
        done = run(bounces, policy)
        assert len(done.guard_events) == 1
        np.testing.assert_allclose(done.final_state, reference.nominal.final_state, atol=1e-7)


def test_spreading_has_no_peak_and_the_others_have(bounces):
    """A ball dropped 2 cm higher lands 1 ms late, with a velocity 8 m/s off on the clock.

    The conventional feedback acts on that, so the peak of its input is the gain times the jump,
    96 N; the nearest arc and the projected error do not act on it, and the greatest input is the
    40 / s^2 times 2 cm of the start.
    """
    peaks = {
        name: max(
            float(np.abs(arc.input(t)).max())
            for arc, t in run(bounces, policy, (1.02, 0.0)).sampled(1e-4)
        )
        for name, policy in policies(bounces).items()
    }
    jump = 1.8 * np.sqrt(2.0 * G)
    assert peaks["conventional"] > 0.9 * GAIN[0][1] * jump
    for name in ("spreading", "nearest", "invariant"):
        assert peaks[name] == pytest.approx(0.8, rel=1e-9)
    _, reference = bounces
    errors = {
        name: tracking_error(reference, run(bounces, policy, (1.02, 0.0)), "spread").peak
        for name, policy in policies(bounces).items()
    }
    assert errors["spreading"] < 0.06
    assert errors["conventional"] > 1.2 * errors["spreading"]


def test_the_clock_changes_at_the_nominal_event(bounces):
    _, reference = bounces
    done = run(bounces, ClockTracking(reference, [GAIN, GAIN]), (1.1, 0.0))
    change = done.events[0]
    assert change.guards == ()
    assert change.time == reference.events[0].time
    t, x, k = change.time, change.state_before, np.array(GAIN)
    for u, arc in zip(
        (change.input_before, change.input_after), reference.nominal.arcs, strict=True
    ):
        alpha, mu = arc.state_and_input(t)
        np.testing.assert_allclose(u, mu + k @ (alpha - x), atol=1e-9)


def test_the_law_of_the_clock_is_right_without_its_changes(bounces):
    """A wrapper that forgets `next_change` costs small steps, not a wrong law."""
    _, reference = bounces
    policy = ClockTracking(reference, [GAIN, GAIN])

    class Forgetful:
        def law(self, history):
            return policy.law(history)

    ends = [run(bounces, p, (1.1, 0.0)).final_state for p in (policy, Forgetful())]
    np.testing.assert_allclose(*ends, atol=1e-6)


def test_the_nearest_arc_is_chosen_at_samples(bounces):
    _, reference = bounces
    policy = NearestTracking(reference, [GAIN, GAIN], window=0.05, period=2e-3)
    done = run(bounces, policy, (1.02, 0.0))
    impact = done.guard_events[0]
    t1 = reference.events[0].time
    inside = sorted(t for arc in done.arcs for t in (*arc.changes, arc.end) if t < t1 + 0.1)
    assert (inside[0], inside[-1]) == (t1 - 0.05, t1 + 0.05)
    assert impact.time in inside
    assert max(np.diff(inside)) <= 2e-3 + 1e-12
    for t in inside[:-1]:
        x = done(t)
        errors = [np.linalg.norm(arc(t) - x) for arc in reference.arcs]
        arc = reference.arcs[int(np.argmin(errors))]
        np.testing.assert_allclose(done.input(t), np.array(GAIN) @ (arc(t) - x), atol=1e-8)
        # The jump of 8 m/s separates the arcs, so that the choice is the event count.
        assert int(np.argmin(errors)) == int(t >= impact.time)


def test_windows_must_fit_the_extension(bounces):
    _, reference = bounces
    with pytest.raises(InputError, match="window must be at most the extension"):
        NearestTracking(reference, [GAIN, GAIN], window=0.25)
    with pytest.raises(InputError, match="window must be greater than 0"):
        NearestTracking(reference, [GAIN, GAIN], window=(0.0, 0.0))
    with pytest.raises(InputError, match="one before and after"):
        NearestTracking(reference, [GAIN, GAIN], window=(0.1, 0.1, 0.1))
    with pytest.raises(InputError, match="metric must be positive semidefinite"):
        NearestTracking(reference, [GAIN, GAIN], window=0.1, metric=-np.eye(2))


@pytest.mark.parametrize("system", [landing_ball(), bouncing_ball(0.8), bouncing_ball(1.0)])
def test_the_projector_of_a_ball_leaves_no_velocity(system):
    event = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.5)).events[0]
    np.testing.assert_allclose(
        compute_impact_projector(system, event), np.diag([1.0, 0.0]), atol=1e-12
    )


class Either(ResetModel):
    """A reset with two solutions, rebound and none, of which the report of a jump names one."""

    def calc(self, t, x, u):
        return Jump(np.array([x[0], -0.5 * x[1]]), report="rebound")

    def calc_diff(self, at):
        kept = -0.5 if at.report == "rebound" else 1.0
        return ResetJacobian(np.zeros(2), np.diag([1.0, kept]), np.zeros((2, 0)))


def test_the_projector_is_that_of_the_solution_of_the_run():
    touch = hc.Guard("touch", lambda t, x, u: x[0])
    mode = hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -9.81]))
    system = hc.HybridSystem([mode], [hc.Transition("air", touch, Either(), "air")])
    event = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.5)).events[0]
    np.testing.assert_array_equal(compute_impact_projector(system, event), np.diag([1.0, 0.0]))


@pytest.fixture(scope="module")
def at_the_door():
    plant = door.system()
    return plant, build(plant, door.DoorParameters(), Design())


def test_the_projector_of_the_door_is_that_of_its_contacts(at_the_door):
    """P = I - M^-1 J^T (J M^-1 J^T)^+ J of both corners; it maps the jump of velocity to zero."""
    plant, reference = at_the_door
    event = reference.events[0]
    dynamics = ContactDynamics(
        door.robot(door.DoorParameters()), door.contacts(door.DoorParameters())
    )
    q = event.state_before[:4]
    jacobian, mass = dynamics.gap_jacobian(q), dynamics.robot.mass_matrix(q)
    columns = np.linalg.solve(mass, jacobian.T)
    expected = np.eye(4) - columns @ np.linalg.pinv(jacobian @ columns) @ jacobian
    found = compute_impact_projector(plant, event)
    np.testing.assert_allclose(found[4:, 4:], expected, atol=1e-9)
    np.testing.assert_array_equal(found[:4], np.eye(8)[:4])
    jump = event.state_after - event.state_before
    assert np.abs(jump[4:]).max() > 0.5
    np.testing.assert_allclose(found @ jump, 0.0, atol=1e-9)


def test_some_velocities_are_projected_by_themselves(at_the_door):
    """Of the arm's velocities what impulses do to these is taken off; the door's is left out."""
    plant, reference = at_the_door
    gains = rrr_door.schedule(rrr_door.Config(), reference)
    policy = ImpactInvariantTracking(plant, reference, gains, window=0.04, velocities=(0, 1, 2))
    (p,), (event,) = policy.projectors, reference.events
    np.testing.assert_array_equal(p[:4], np.eye(8)[:4])
    np.testing.assert_array_equal(p[7], 0.0)
    np.testing.assert_allclose(p @ p, p, atol=1e-12)
    jump = event.state_after - event.state_before
    np.testing.assert_allclose(p @ jump, 0.0, atol=1e-9)
    dynamics = ContactDynamics(
        door.robot(door.DoorParameters()), door.contacts(door.DoorParameters())
    )
    mass = dynamics.robot.mass_matrix(event.state_before[:4])[:3, :3]
    np.testing.assert_allclose(mass @ p[4:7, 4:7], p[4:7, 4:7].T @ mass, atol=1e-9)


def test_windows_may_differ_before_and_after_and_blend(bounces):
    """Inside, the weight of the projection is 1 - exp(-s / tau), s from the nearer end."""
    system, reference = bounces
    due, tau = reference.events[0].time, 0.01
    policy = ImpactInvariantTracking(
        system, reference, [GAIN, GAIN], window=(0.06, 0.03), blend=tau
    )
    k = np.array(GAIN)
    for t in due + np.array([-0.07, -0.0601, -0.05, -0.02, 0.001, 0.015, 0.029, 0.0301]):
        arc = reference.nominal.arcs[int(t >= due)]
        alpha, mu = arc.state_and_input(t)
        x = alpha - [0.01, 0.5]
        inside = min(t - (due - 0.06), due + 0.03 - t)
        weight = -np.expm1(-inside / tau) if inside > 0.0 else 0.0
        law = policy.law(hc.hybrid.History("air", t, x))
        np.testing.assert_allclose(law(t, x), mu + k @ [0.01, (1.0 - weight) * 0.5], atol=1e-9)
        h = 1e-6  # central differences: h^2 / tau^2 of the slope, and 1e-15 / h
        slope = (law(t + h, x) - law(t - h, x)) / (2.0 * h)
        np.testing.assert_allclose(law.rate(t, x), slope, rtol=1e-6, atol=1e-6)
    done = run(bounces, policy, (1.02, 0.0))
    changes = [e.time for e in done.events if not e.guards]
    assert changes == pytest.approx([due - 0.06, due, due + 0.03], abs=1e-12)


def test_the_nearest_arc_is_that_of_the_metric(bounces):
    """Arcs cross at the event, at 4.4 m/s down and 3.5 m/s up; 10 ms later they are 8 cm apart.

    A state at the place of one of them with the velocity of the other is near to either.
    """
    _, reference = bounces
    t = reference.events[0].time + 0.01
    before, after = (arc(t) for arc in reference.arcs)
    x = np.array([before[0], after[1]])
    for metric, nearest in ((None, 1), (np.diag([1.0, 1e-9]), 0), (np.diag([1e9, 1.0]), 0)):
        policy = NearestTracking(reference, [GAIN, GAIN], window=0.05, metric=metric)
        alpha, mu = reference.arcs[nearest].state_and_input(t)
        u = policy.law(hc.hybrid.History("air", t, x))(t, x)
        np.testing.assert_allclose(u, mu + np.array(GAIN) @ (alpha - x), atol=1e-9)


def test_at_the_door_all_arrive_and_only_spreading_stays_small(at_the_door):
    """From the perturbed start of the thesis; the split impact takes 16 ms."""
    plant, reference = at_the_door
    config = rrr_door.Config()
    gains = rrr_door.schedule(config, reference)
    start = reference.nominal(0.0) + np.array(config.perturbation)
    peaks, finals = {}, {}
    for name, policy in {
        "spreading": hc.ReferenceSpreading(reference, gains),
        "late": DetectedPolicy(hc.ReferenceSpreading(reference, gains), Detection(delay=5e-3)),
        "conventional": ClockTracking(reference, gains),
        "nearest": NearestTracking(reference, gains, window=0.1),
        "invariant": ImpactInvariantTracking(plant, reference, gains, window=0.08),
    }.items():
        done = hc.simulate(plant, OPEN, start, (0.0, 2.0), policy, rtol=1e-7, atol=1e-7)
        error = tracking_error(reference, done, "spread")
        peaks[name], finals[name] = error.peak, float(error.norms[-1])
        assert locate(reference, done.events).macro == 1
    assert peaks["spreading"] < 0.3
    assert min(peak for name, peak in peaks.items() if name != "spreading") > 0.9
    assert max(finals.values()) < 0.05


def test_references_may_change_their_feedforward_in_between():
    """A nominal thrust that jumps twice; spreading and the clock jump with it, and reproduce it."""
    system = ball_on_two_floors()
    policy = Levels([0.2, 0.6], [0.0, 2.0, -1.0])
    nominal = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8), policy)
    assert [len(e.guards) for e in nominal.events] == [0, 2, 0]
    reference = hc.extend(system, nominal, before=0.1, after=0.1)
    assert len(reference.arcs) == 2
    assert [arc.changes for arc in reference.arcs] == [(0.2,), (0.6,)]
    assert set(reference.phantoms) == {(0, frozenset("a")), (0, frozenset("b"))}
    gains = [GAIN, GAIN]
    followers = (
        hc.ReferenceSpreading(reference, gains),
        ClockTracking(reference, gains),
        NearestTracking(reference, gains, window=0.05),
    )
    for follower in followers:
        done = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8), follower)
        np.testing.assert_allclose(done.final_state, nominal.final_state, atol=1e-7)
    late = hc.simulate(system, "00", [1.02, 0.0], (0.0, 0.8), followers[0])
    jumps = [e for e in late.events if e.time in (0.2, 0.6)]
    assert len(jumps) == 2
    np.testing.assert_allclose(
        [(e.input_after - e.input_before)[0] for e in jumps], [2.0, -3.0], atol=1e-9
    )
    assert tracking_error(reference, late, "spread").peak < 0.1
    assert hc.control.feasibility.feasibility(system, reference).failures == ()


def test_the_clock_changes_where_a_held_feedforward_jumps_within_an_arc():
    """Held inputs of a sampled law are one nominal arc: its changes are no events."""
    system, _ = scene()

    def push(t, x):
        return np.array([1.0 if 0.08 <= t < 0.18 else -1.0])

    nominal = hc.simulate(system, "air", [0.5, 0.0], (0.0, 0.6), hc.SampledPolicy(push, 0.05))
    changes = nominal.arcs[0].changes
    assert changes == pytest.approx([0.1, 0.2], abs=1e-12)
    reference = hc.extend(system, nominal, before=0.1, after=0.1)
    policy = ClockTracking(reference, [GAIN, GAIN])
    ends = [*changes, reference.events[0].time]
    for before, end in zip([0.0, *changes], ends, strict=True):
        assert policy.next_change(hc.hybrid.History("air", before, nominal(before))) == end
    invariant = ImpactInvariantTracking(system, reference, [GAIN, GAIN], window=0.05)
    assert invariant.next_change(hc.hybrid.History("air", 0.0, nominal(0.0))) == changes[0]
    for follower in (policy, invariant):
        done = hc.simulate(system, "air", [0.5, 0.0], (0.0, 0.6), follower)
        np.testing.assert_allclose(done.final_state, nominal.final_state, atol=1e-9)


def test_a_held_input_that_goes_on_beyond_an_event_does_not_jump_there():
    """What is held beyond the end of an arc differs from its input by rounding, which is no jump.

    Levels of decimal fractions, whose Chebyshev series are not exact.
    """
    system, levels = ball_on_two_floors(), [0.1, 1.0, 2.0, 3.0, 0.7, -1.0 / 3.0]
    times = [0.15, 0.3, 0.45, 0.6, 0.7]
    nominal = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8), Levels(times, levels))
    reference = hc.extend(system, nominal, before=0.1, after=0.1)
    assert [arc.changes for arc in reference.arcs] == [(0.15, 0.3, 0.45), (0.6, 0.7)]
    spreading = hc.ReferenceSpreading(reference, [GAIN, GAIN])
    done = hc.simulate(system, "00", [1.0, 0.0], (0.0, 0.8), spreading)
    assert [e.time for e in done.events if not e.guards] == times
