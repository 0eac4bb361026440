"""Synthetic records of models that are no robots: their start, their noise, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from estimation.systems import bouncing_ball

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import VectorSpace
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_model import FilterModel, FilterSettings, Scenario, Sensor
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.synthetic import _draw_state_after, simulate_record, simulate_truth
from hybridctl.hybrid.mode import FieldJacobian, Guard, GuardJacobian, Mode, Reset, Transition

SETTINGS = FilterSettings(duration=0.2, rate=50.0)


def make_model(transitions=(), begin=0.0, noise=None):
    """A point on a line, moved by a force: x' = v, v' = u."""
    a, b = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]])
    mode = Mode(
        "free", VectorSpace(2), lambda t, x, u: a @ x + b @ u, 1,
        lambda t, x, u: FieldJacobian(a, b),
    )  # fmt: skip
    return FilterModel(
        system=hc.HybridSystem([mode], list(transitions)),
        open="free",
        sensors=(Sensor(coordinates("place", [0], [[1e-4]])),),
        process_noise=Noise(np.eye(1), True) if noise is None else noise,
        start=Estimate("free", begin, np.array([1.0, 0.0]), 1e-4 * np.eye(2)),
        scenario=lambda: Scenario(np.array([1.0, 0.0]), np.full(2, 1e-2), begin),
        states=("x", "v"),
        name="point",
    )


def test_a_mode_without_guards_has_a_record():
    record, truth = simulate_record(make_model(), SETTINGS)
    assert len(record.channels["place"]) == 11
    assert not truth.run.events


def test_a_start_is_inside_its_mode_at_its_own_time():
    """A wall at x = 5 - t is past x = 1 from 4 s on: a motion that begins at 6 s is behind."""
    wall = Guard(
        "wall", lambda t, x, u: 5.0 - t - x[0],
        lambda t, x, u: GuardJacobian(-1.0, np.array([-1.0, 0.0]), np.zeros(1)),
    )  # fmt: skip
    stay = [Transition("free", wall, Reset.identity(2), "free")]
    rng = np.random.default_rng(0)
    simulate_truth(make_model(stay), SETTINGS, rng)
    with pytest.raises(InputError, match="spread is so large"):
        simulate_truth(make_model(stay, begin=6.0), SETTINGS, rng)


def test_a_draw_that_falls_below_a_rising_floor_is_repeated():
    """A floor at 1 m/s: a ball that leaves it by less is through it at once."""
    system = bouncing_ball(restitution=0.1, floor_speed=1.0)
    run = hc.simulate(system, "air", [0.5, 0.0], (0.0, 1.0), terminal=lambda event: True)
    noise = Noise(np.diag([0.0, 0.5]) ** 2)
    at_rest = Estimate("air", 0.0, np.array([0.5, 0.0]), np.eye(2))
    model = FilterModel(
        system=system, open="air", sensors=(Sensor(coordinates("place", [0], [[1e-4]])),),
        process_noise=Noise(np.zeros((2, 2))), reset_noise=noise, start=at_rest, states=("x", "v"),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    speeds = [_draw_state_after(model, run.events[0], rng)[1] for _ in range(20)]
    assert min(speeds) >= 1.0
    assert np.std(speeds) > 0.05


def test_noise_that_is_no_force_cannot_be_made_up():
    """The disturbance of a synthetic log acts through the input."""
    model = make_model(noise=Noise(np.eye(2)))
    with pytest.raises(InputError, match=r"process_noise.*through_input"):
        simulate_record(model, SETTINGS)
    quiet = replace(model, process_noise=Noise(np.zeros((2, 2))))
    assert len(simulate_record(quiet, SETTINGS)[0].channels["place"]) == 11


def test_a_record_without_rows_has_no_first_estimate():
    empty = Record({"place": Series(np.zeros(0), np.zeros((0, 1)))})
    with pytest.raises(InputError, match="record must have a row"):
        first_estimate(make_model(), SETTINGS, empty)
