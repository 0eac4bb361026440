"""Digital control: inputs sampled by a clock, and held."""

import numpy as np
import pytest
from scipy.linalg import expm

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.hybrid.laws import LinearFeedback
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, ResetJacobian
from hybridctl.hybrid.policy import ContinuedPolicy, DisturbedPolicy

GAIN = np.array([3.0, 2.0])


def cart(restitution=0.7):
    """A pushed point (x, v) with a wall at 0."""
    free = hc.Mode("free", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], u[0]]), 1)
    wall = hc.Guard("wall", lambda t, x, u: x[0])
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -restitution * x[1]]))
    return hc.HybridSystem([free], [hc.Transition("free", wall, bounce, "free")])


@pytest.mark.parametrize("period", [0.1, 1.0 / 3.0, 1e-3])
def test_the_motion_is_that_of_the_discrete_time_system(period):
    """Zero-order hold: z+ = e^{A h} z + int e^{A s} ds B u, the textbook's matrices."""
    both = expm(period * np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    step = both[:2, :2] - np.outer(both[:2, 2], GAIN)
    law = lambda t, x: [-GAIN @ (x - [1.0, 0.0])]  # noqa: E731
    count = 30
    policy = hc.SampledPolicy(law, period)
    run = hc.simulate(cart(), "free", [1.5, 0.3], (0.0, count * period), policy)
    z = np.linalg.matrix_power(step, count) @ [0.5, 0.3]
    # polynomials of degree 2 are exact: rounding of 30 steps
    np.testing.assert_allclose(run.final_state - [1.0, 0.0], z, rtol=0.0, atol=1e-13)
    assert run.events == ()
    assert run.arcs[0].changes == tuple(k * period for k in range(1, count))


def test_the_grid_does_not_drift_and_events_do_not_sample():
    seen = []

    def law(t, x):
        seen.append((t, x.copy()))
        return [-1.0 - 0.1 * t]

    run = hc.simulate(cart(), "free", [0.3, 0.0], (0.0, 3.0), hc.SampledPolicy(law, 0.1))
    times = [0.1 * k for k in range(30)]
    assert [t for t, _ in seen] == times
    hits = run.guard_events
    assert len(hits) >= 2
    for event in hits:
        np.testing.assert_allclose(event.input_after, event.input_before, rtol=1e-15)
    for t, x in seen[1:]:
        np.testing.assert_allclose(x, run(t, "right"), rtol=0.0, atol=1e-14)  # of two polynomials


def test_a_start_between_two_samples_is_one():
    policy = hc.SampledPolicy(lambda t, x: [t], 1.0, start=0.25)
    run = hc.simulate(cart(), "free", [1.0, 0.0], (0.0, 2.0), policy)
    (arc,) = run.arcs
    assert arc.changes == (0.25, 1.25)
    np.testing.assert_allclose(arc.input([0.0, 0.25, 1.25])[:, 0], [0.0, 0.25, 1.25], rtol=1e-14)


def test_an_input_has_both_limits_where_it_changes():
    policy = hc.SampledPolicy(lambda t, x: [t], 1.0)
    run = hc.simulate(cart(), "free", [1.0, 0.0], (0.0, 3.0), policy)
    times = [0.5, 1.0, 2.0, 2.5]
    np.testing.assert_allclose(run.input(times)[:, 0], [0.0, 1.0, 2.0, 2.0], atol=1e-14)
    left = run.input(times, side="left")[:, 0]
    np.testing.assert_allclose(left, [0.0, 0.0, 1.0, 2.0], atol=1e-14)
    pieces = run.arcs[0].pieces
    assert [(p.start, p.end) for p in pieces] == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    for k, p in enumerate(pieces):
        assert p.left_limit()[1] == pytest.approx(float(k), abs=1e-14)
        assert run.arcs[0].piece(p.start) is p


class Reached:
    """Gives the number of events that it has seen."""

    def law(self, history):
        return lambda t, x: np.array([float(len(history.events))])


class Watching(Reached):
    """Goes by what was at the samples."""

    sees_samples = True


def test_a_clock_that_began_some_periods_ago_goes_on():
    policy = hc.SampledPolicy(lambda t, x: [t], 0.25, start=1.0)
    run = hc.simulate(cart(), "free", [1.0, 0.0], (1.5, 2.1), policy)
    assert run.arcs[0].changes == (1.75, 2.0)


def test_a_policy_may_be_sampled():
    """Only one that goes by samples sees them as events, whoever adds to its input."""
    disturbed = DisturbedPolicy(Watching(), lambda t, x: np.zeros(1))
    counted = [0.0, 1.0, 2.0, 3.0]
    cases = ((Reached(), [0.0] * 4), (Watching(), counted), (disturbed, counted))
    for policy, expected in cases:
        sampled = hc.SampledPolicy(policy, 0.25)
        run = hc.simulate(cart(), "free", [5.0, 0.0], (0.0, 1.0), sampled)
        inputs = run.input([0.0, 0.25, 0.5, 0.75])[:, 0]
        np.testing.assert_allclose(inputs, expected, atol=1e-14)


def test_a_policy_that_goes_on_in_another_run_keeps_the_events():
    """Those of samples too, and the clock."""
    for policy, expected in ((Reached(), [0.0] * 3), (Watching(), [0.0, 1.0, 3.0])):
        sampled = hc.SampledPolicy(policy, 0.25)
        first = hc.simulate(cart(), "free", [5.0, 0.0], (0.0, 0.6), sampled)
        on = ContinuedPolicy(sampled, first.events)
        rest = hc.simulate(cart(), "free", first.final_state, (0.6, 1.0), on)
        inputs = [first.input(t)[0] for t in (0.1, 0.4)] + [rest.input(0.8)[0]]
        np.testing.assert_allclose(inputs, expected, atol=1e-14)


def test_deviations_pass_held_inputs_as_they_are():
    """Against differences of the flow under the same inputs, over a bounce."""
    law = lambda t, x: [-2.0 - np.sin(9.0 * t)]  # noqa: E731
    policy = hc.SampledPolicy(law, 0.05)
    system = swinging()

    def run(dx):
        x0 = np.array([0.3, 0.1]) + dx
        return hc.simulate(system, "free", x0, (0.0, 1.0), policy, rtol=1e-12, atol=1e-12)

    nominal, h = run(np.zeros(2)), 1e-5
    assert len(nominal.events) == 1
    assert all(len(arc.changes) > 3 for arc in nominal.arcs)
    lin = hc.linearize(system, nominal, rtol=1e-10, atol=1e-10)
    columns = [(run(h * e).final_state - run(-h * e).final_state) / (2.0 * h) for e in np.eye(2)]
    # central differences err by h^2 and by the tolerance over h
    np.testing.assert_allclose(lin.state_transition, np.array(columns).T, atol=1e-6)
    du = lambda t: np.array([np.cos(3.0 * t)])  # noqa: E731
    moved = hc.simulate(
        system,
        "free",
        nominal.arcs[0](0.0),
        (0.0, 1.0),
        DisturbedPolicy(policy, lambda t, x: h * du(t)),
        rtol=1e-12,
        atol=1e-12,
    )
    change = (moved.final_state - nominal.final_state) / h
    np.testing.assert_allclose(lin(np.zeros(2), du), change, atol=1e-4)


def swinging():
    """The pushed point on a hard spring: its derivatives depend on state and input."""

    def jacobian(t, x, u):
        return FieldJacobian(
            np.array([[0.0, 1.0], [-3.0 * x[0] ** 2 * (1.0 + u[0]), 0.0]]),
            np.array([[0.0], [1.0 - x[0] ** 3]]),
        )

    row = GuardJacobian(np.zeros(()), np.array([1.0, 0.0]), np.zeros(1))
    bounce = np.diag([1.0, -0.7])
    free = hc.Mode(
        "free",
        hc.VectorSpace(2),
        lambda t, x, u: np.array([x[1], u[0] - x[0] ** 3 * (1.0 + u[0])]),
        1,
        jacobian,
    )
    wall = hc.Guard("wall", lambda t, x, u: x[0], lambda t, x, u: row)
    reset = hc.Reset(
        lambda t, x, u: bounce @ x,
        lambda t, x, u: ResetJacobian(np.zeros(2), bounce, np.zeros((2, 1))),
    )
    return hc.HybridSystem([free], [hc.Transition("free", wall, reset, "free")])


@pytest.mark.parametrize("period", [0.0, -1.0, np.nan, "often"])
def test_a_period_is_positive(period):
    with pytest.raises(InputError, match="period"):
        hc.SampledPolicy(lambda t, x: [0.0], period)


def test_an_input_of_the_wrong_size_is_named():
    with pytest.raises(InputError, match="input of the policy"):
        hc.simulate(
            cart(), "free", [1.0, 0.0], (0.0, 1.0), hc.SampledPolicy(lambda t, x: [1, 2], 0.1)
        )


class Sampled(LinearFeedback):
    """u = offset - gain x, the offset kept from a sample."""

    limits = None

    def __init__(self, offset):
        self.offset = offset

    def __call__(self, t, x):
        return np.array([self.offset]) - GAIN @ x

    def find_offsets_and_gains(self, times):
        return np.full((len(times), 1), self.offset), np.tile(GAIN, (len(times), 1, 1))


class Steered:
    """A linear feedback towards another place every 0.25 s."""

    def __init__(self):
        self.asked = []

    def law(self, history):
        self.asked.append((history.time, len(history.events)))
        return Sampled(3.0 - 2.0 * history.time)

    def next_change(self, history):
        return 0.25 * (np.floor(history.time / 0.25 + 1e-9) + 1.0)


class Seen(Steered):
    """The same, by what was at the samples."""

    sees_samples = True


FINE = {"rtol": 1e-11, "atol": 1e-11}


def test_an_arc_goes_on_where_one_linear_feedback_gives_way_to_the_next(tmp_path):
    """As where it ends: in the states, and in the inputs on both sides of each change."""
    one, other = (
        hc.simulate(cart(), "free", [1.0, 0.0], (0.0, 1.1), policy, **FINE)
        for policy in (Steered(), Seen())
    )
    (arc,) = one.arcs
    changes = (0.25, 0.5, 0.75, 1.0)
    assert arc.changes == changes
    assert tuple(event.time for event in other.events) == changes
    # the same steps of the same laws, and of polynomials that end at the changes: but for rounding
    np.testing.assert_allclose(
        one(np.linspace(0.0, 1.1, 23)), other(np.linspace(0.0, 1.1, 23)), atol=1e-15
    )  # rounding of states of size one
    for event in other.events:
        for side, u in (("left", event.input_before), ("right", event.input_after)):
            np.testing.assert_allclose(one.input(event.time, side), u, atol=1e-9)
    one.save(tmp_path / "run.npz")
    again = hc.HybridTrajectory.load(tmp_path / "run.npz", cart())
    assert again.arcs[0].changes == changes
    assert [p.changes for p in arc.pieces] == [()] * 5


def test_a_file_of_before_arcs_knew_of_changes_is_read(tmp_path):
    run = hc.simulate(cart(), "free", [1.0, 0.0], (0.0, 1.1), Steered())
    run.save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as data:
        old = {name: data[name] for name in data if not name.endswith(".jumps")}
    np.savez(tmp_path / "old.npz", **old)
    again = hc.HybridTrajectory.load(tmp_path / "old.npz", cart())
    np.testing.assert_array_equal(again.arcs[0].states, run.arcs[0].states)
    assert again.arcs[0].changes == ()


class Alternating(Steered):
    """A linear feedback, from 0.5 s on a plain function of time."""

    def law(self, history):
        law = super().law(history)
        return law if history.time < 0.5 else lambda t, x: law(t, x)


def test_a_policy_is_asked_once_at_each_change():
    for policy in (Steered(), Alternating()):
        run = hc.simulate(cart(), "free", [1.0, 0.0], (0.0, 1.1), policy)
        assert [time for time, _ in policy.asked] == [0.0, 0.25, 0.5, 0.75, 1.0]
        after = [event.time for event in run.events]
        assert after == ([] if type(policy) is Steered else [0.5, 0.75, 1.0])
