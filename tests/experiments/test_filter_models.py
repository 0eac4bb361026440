"""Synthetic truth has the noise that filters believe in; logs become records; first estimates."""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import ball

from hybridctl.app.models import find_model
from hybridctl.base import plugins
from hybridctl.base.errors import InputError
from hybridctl.base.time_series import Series
from hybridctl.estimation.consistency import band, nees
from hybridctl.estimation.filter_model import FilterSettings, Sensor
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.record import Record
from hybridctl.estimation.synthetic import simulate_record, simulate_truth
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.system import MappedSystem
from hybridctl.logs import Log

FREE = ["duration=0.2", "rate=50", "spread=0"]  # no impact yet, and always the same start


def made(model, *assignments):
    source = find_model(model)
    settings = source.configure(None, assignments)
    return source.make(settings), settings


def test_noise_on_the_flow_has_its_density():
    """Free flight: speeds gather W t / m^2."""
    model, settings = made("ball", *FREE, "force_noise=0.1", "mass=2")
    nominal = model.scenario().mean
    ends = []
    for seed in range(80):
        truth = simulate_truth(model, settings, np.random.default_rng(seed))
        ends.append(truth.run.final_state[2:] - nominal[2:])
    ends = np.array(ends) + np.array([0.0, 9.81 * 0.2])
    variance = 0.1**2 * 0.2 / 2.0**2
    # 160 normal values: the relative deviation of their variance is sqrt(2 / 160) = 0.112
    assert (ends**2).mean() == pytest.approx(variance, rel=4 * 0.112)


def test_noise_on_resets_has_its_covariance_and_is_the_only_one():
    assignments = ["duration=0.6", "rate=50", "spread=0", "force_noise=0", "mass=2"]
    model, settings = made("ball", *assignments, "reset_noise=0.1")
    quiet, _ = made("ball", *assignments)
    (expected,) = simulate_truth(quiet, settings, np.random.default_rng(0)).run.events
    kicks = []
    for seed in range(80):
        (event,) = simulate_truth(model, settings, np.random.default_rng(seed)).run.events
        np.testing.assert_allclose(event.state_before, expected.state_before, atol=1e-7)
        kicks.append(event.state_after - expected.state_after)
    kicks = np.array(kicks)
    assert np.abs(kicks[:, :2]).max() < 1e-7
    assert (kicks[:, 2:] ** 2).mean() == pytest.approx((0.1 / 2.0) ** 2, rel=4 * 0.112)


def test_a_kicked_truth_is_one_trajectory():
    model, settings = made("block", "duration=0.4", "rate=50", "reset_noise=0.01", "seed=2")
    run = simulate_truth(model, settings, np.random.default_rng(2)).run
    assert len(run.arcs) == len(run.events) + 1
    assert [arc.index for arc in run.arcs] == list(range(len(run.arcs)))
    for arc, event, after in zip(run.arcs, run.events, run.arcs[1:], strict=False):
        assert arc.end == event.time == after.start
        np.testing.assert_allclose(arc(arc.end), event.state_before, atol=1e-7)
        np.testing.assert_allclose(after(after.start), event.state_after, atol=1e-9)
    assert (run.start, run.end) == (0.0, pytest.approx(0.4))


class Counting:
    """Pushes by as many newtons as it has seen events, of which samples are some."""

    sees_samples = True

    def law(self, history):
        return lambda t, x: np.full(2, float(len(history.events)))


@pytest.mark.parametrize("noise", ["0", "0.1"])
def test_a_policy_of_a_scenario_that_goes_by_samples_sees_them(noise):
    """In one run, or in runs of four periods, as where resets have noise; no event comes first."""
    model, settings = made("ball", *FREE, "force_noise=0", f"reset_noise={noise}")
    scenario = replace(model.scenario(), policy=Counting())
    model = replace(model, scenario=lambda: scenario)
    truth = simulate_truth(model, settings, np.random.default_rng(0))
    seen = [*range(10), 9]  # at the end the last period still lasts
    np.testing.assert_allclose(truth.commands, np.outer(seen, np.ones(2)), atol=1e-12)


def test_commands_are_inputs_without_the_disturbance_of_their_period():
    """Without a policy there are none, at the end of the last period either."""
    model, settings = made("ball", *FREE, "force_noise=0.5")
    truth = simulate_truth(model, settings, np.random.default_rng(0))
    assert max(np.abs(truth.run.input(t)).max() for t in truth.times.tolist()) > 0.1
    np.testing.assert_allclose(truth.commands, 0.0, atol=1e-12)


def test_the_commands_of_the_door_are_held_and_go_with_the_truth():
    """A simulation with the logged torques alone is the truth, where nothing else acts."""
    import hybridctl as hc

    model, settings = made("door", "begin=0.85", "duration=0.2", "torque_noise=0", "seed=1")
    record, truth = simulate_record(model, settings)
    x, mode, t = truth.run(0.85), model.open, 0.85
    events = []
    for end, u in zip(record.inputs.times[1:].tolist(), record.inputs.values, strict=False):
        run = hc.simulate(model.system, mode, x, (t, end), lambda s, x, u=u: u)
        x, mode, t = run.final_state, run.final_mode, end
        events += [event.guards for event in run.events]
    assert events == [event.guards for event in truth.run.guard_events]
    # both are integrated to 1e-8, over impacts that magnify errors by a few tens
    np.testing.assert_allclose(x, truth.run.final_state, atol=1e-5)


@pytest.mark.parametrize("model", ["ball", "block"])
def test_first_estimates_are_consistent(model):
    built, settings = made(model, "duration=0.2", "rate=50")
    pairs = []
    for seed in range(40):
        record, truth = simulate_record(built, replace(settings, seed=seed))
        start, rest = first_estimate(built, settings, record)
        assert start.time == pytest.approx((settings.warm_up - 1) / 50.0)
        assert min(s.times.min() for s in rest.channels.values()) > start.time
        pairs.append(nees(built.space, start, truth.run(start.time)))
    assert band(*zip(*pairs, strict=True)).inside


@pytest.mark.parametrize("hypotheses", [1, 4])
def test_a_start_near_the_ground_has_the_velocity_between_its_rows(hypotheses):
    """Two heights that a ball falls through in 20 ms, where one that bounces is 10 m/s fast.

    The mean velocity of the fall, and at its end half of what gravity adds; its deviation is that
    of two heights over the time between.
    """
    model, settings = made("ball", "slope=0", "warm_up=2", f"hypotheses={hypotheses}")
    record = Record({"position": Series([0.0, 0.02], [[0.0, 0.05], [0.0, 0.03]])})
    start, _ = first_estimate(model, settings, record)
    deviation = np.sqrt(2.0) * settings.position_noise / 0.02
    # deviations of 10 m/s draw it to the difference, by (0.14 / 10)^2 of gravity's part
    assert start.mean[3] == pytest.approx(-1.0 - 0.5 * 9.81 * 0.02, abs=1e-3)
    assert np.sqrt(start.covariance[3, 3]) == pytest.approx(deviation, rel=0.05)


def test_the_first_estimate_of_a_wrapped_robot_is_that_of_the_robot():
    model, settings = made("ball", *FREE)
    record, _ = simulate_record(model, settings)
    wrapped = replace(model, system=MappedSystem(model.system, lambda key: Change()))
    one, other = (first_estimate(each, settings, record)[0] for each in (model, wrapped))
    np.testing.assert_allclose(other.mean, one.mean, atol=1e-9)  # whole steps, and stage by stage
    np.testing.assert_allclose(other.covariance, one.covariance, rtol=1e-6, atol=1e-12)


def test_channels_of_other_order_and_stamps_become_one_series():
    model, _ = made("block")
    t = np.arange(5) / 50.0
    position = Series(t, np.column_stack([t, 2.0 * t]), ("z", "x"), "m")
    pitch = Series(t[1:], 3.0 * t[1:], ("pitch",), "rad")
    record = Log({"position": position, "pitch": pitch}).record(model)
    values = record.channels["pose"].values
    np.testing.assert_array_equal(values[1:], np.column_stack([2.0 * t, t, 3.0 * t])[1:])
    assert np.isnan(values[0, 2])
    assert not record.notes


def test_units_and_broken_values_are_caught():
    model, _ = made("ball")
    t = np.arange(5) / 50.0
    values = np.column_stack([t, t])
    wrong = Log({"position": Series(t, values, ("x", "z"), "rad")})
    with pytest.raises(InputError, match="must be in m, but is in rad"):
        wrong.record(model)
    values[2, 0] = 1e9
    record = Log({"position": Series(t, values, ("x", "z"), "m")}).record(model)
    assert np.isnan(record.channels["position"].values[2, 0])
    assert "above 1e+06" in record.notes[0]
    cube, _ = made("cube")
    q = np.tile([0.0, 0.0, 0.0, 3.0], (5, 1))
    q[0] = [0.0, 0.0, 0.0, 1.0]
    place = Series(t, np.zeros((5, 3)), ("x", "y", "z"), "m")
    turn = Series(t, q, quaternion=True)
    record = Log({"position": place, "orientation": turn}).record(cube)
    assert np.isnan(record.channels["pose"].values[1:, 3:]).all()
    assert "no unit quaternion" in record.notes[0]


@pytest.mark.parametrize("kind", plugins.list_plugins("models"))
def test_every_setting_is_checked(kind):
    for name, value in (("rate", "x"), ("duration", 1e9), ("seed", -1), ("gate", 0), ("noise", -1)):
        with pytest.raises(InputError, match=name):
            find_model(kind).configure(None, [f"{name}={value}"])
    assert isinstance(find_model(kind).configure(), FilterSettings)


def test_the_ball_model_is_that_of_the_robot():
    model, settings = made("ball", "slope=0.1", "mass=3")
    other = ball.system(ball.BallParameters(slope=0.1, mass=3.0, restitution=settings.restitution))
    x, u = np.array([0.1, 0.5, 0.2, -1.0]), np.array([1.0, 2.0])
    for system in (model.system, other):
        rate = system.mode(("open",)).field(0.0, x, u)
        np.testing.assert_allclose(rate, [0.2, -1.0, 1.0 / 3.0, 2.0 / 3.0 - 9.81], atol=1e-12)


def test_sensors_that_measure_everything_together_need_no_start():
    """A pose of the body in one channel, its pitch in another: as if they were one."""
    model, settings = made("block", "rate=100", "duration=0.3")
    record, _ = simulate_record(model, settings)
    whole = record.channels["pose"]
    r = np.diag(model.sensors[0].measurement.covariance)
    parts = {"place": [0, 1], "pitch": [2]}
    apart = replace(
        model,
        sensors=tuple(
            Sensor(coordinates(name, rows, np.diag(r[rows]))) for name, rows in parts.items()
        ),
    )
    channels = {name: Series(whole.times, whole.values[:, rows]) for name, rows in parts.items()}
    (one, _), (other, _) = (
        first_estimate(model, settings, record),
        first_estimate(apart, settings, Record(channels)),
    )
    assert (one.mode, one.time) == (other.mode, other.time)
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.covariance, one.covariance, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(
        apart.beginning().covariance, model.beginning().covariance, rtol=1e-12
    )
    with pytest.raises(InputError, match=r"must give `start`.*\(pitch\).*1 of 3 directions"):
        first_estimate(replace(apart, sensors=apart.sensors[1:]), settings, Record(channels))
