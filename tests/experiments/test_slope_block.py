"""The ball on a slope and the blocks do what their closed forms say."""

import json

import numpy as np
import pytest
from hybridctl.experiments.contacts import block, slope
from hybridctl.robots import ball
from hybridctl.robots import block as block_robot
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.hybrid.trajectory import HybridTrajectory

G = 9.81
ZENO_HORIZON = 1e-5  # s, of `simulate`
GUARD_TOLERANCE = 1e-8  # m, of `simulate`
STABILIZATION = 20.0  # 1/s, of `ContactDynamics`


def results(name, tmp_path_factory):
    module = {"slope": slope, "block": block}[name]
    folder = RunFolder(name, tmp_path_factory.mktemp(name), draws=False)
    return folder, module.run(module.quick(module.Config()), folder, Console(quiet=True))


@pytest.fixture(scope="module")
def balls(tmp_path_factory):
    return results("slope", tmp_path_factory)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    return results("block", tmp_path_factory)


def errors(summary, name):
    return {c["quantity"]: abs(c["error"]) for c in summary[name]["comparisons"]}


@pytest.mark.parametrize("name", ["frictionless", "slides", "stops", "caught"])
def test_a_ball_that_does_not_bounce_agrees_to_rounding(balls, name):
    """All its arcs are parabolas, which the integrator and the root finder carry to rounding."""
    found = errors(balls[1], name)
    assert len(found) == (6 if name == "stops" else 5)
    assert max(found.values()) <= 1e-12


def test_a_ball_bounces_until_it_slides(balls):
    config = slope.Config()
    found, into = errors(balls[1], "bounces"), G * np.cos(config.slope)
    e, mu = config.restitution, config.friction_low
    for quantity in (
        "time of the impact [s]",
        "speed down the slope after the impact [m/s]",
        "speed off the slope after the impact [m/s]",
        "acceleration [m/s^2]",
    ):
        assert found[quantity] <= 1e-12
    # A hop as low as the guard tolerance may end anywhere below it; what is left then is
    # 2 v / (g cos th (1 - e)) with v the speed that reaches this height.
    last_hop = np.sqrt(2.0 * into * GUARD_TOLERANCE)
    assert found["time of the last bounce [s]"] <= 2.0 * last_hop / (into * (1.0 - e))
    # Rest stops the last impact, at v_n, without the friction mu v_n of its impulse; the flight
    # left after it, 2 e v_n / (g cos th (1 - e)), is at most the Zeno horizon.
    assert found["speed at the end [m/s]"] <= mu * into * (1.0 - e) / (2.0 * e) * ZENO_HORIZON


def test_the_table_shows_the_right_motions(balls):
    modes = {
        name: [tuple(event["mode_after"]) for event in entry["events"]]
        for name, entry in balls[1].items()
    }
    assert modes["frictionless"] == [("closed",)]
    assert modes["slides"] == [("slip+",)]
    assert modes["stops"] == [("slip+",), ("stick",)]
    assert modes["caught"] == [("stick",)]
    assert set(modes["bounces"][:-1]) == {("open",)}
    assert modes["bounces"][-1] == ("slip+",)


def test_closed_forms_of_the_slope_hold_where_every_bounce_is_caught():
    """With much friction and no speed the ball bounces without sliding, and ends at rest."""
    config = slope.Config(speed=0.0)
    expected = slope.predict(config, slope.BallCase(2.0, 0.5))
    assert expected.tangential_after == 0.0
    assert expected.stop_time == expected.rest_time
    assert expected.acceleration == expected.final_speed == 0.0


def test_a_block_lands_slides_stops_and_is_lifted(blocks):
    found, events = errors(blocks[1], "landing"), blocks[1]["landing"]["events"]
    assert [tuple(event["mode_after"]) for event in events] == [
        ("open", "slip+"),
        ("slip+", "slip+"),
        ("stick", "stick"),
        ("open", "stick"),
        ("open", "slip-"),
        ("open", "open"),
    ]
    config, model = block.quick(block.Config()), block.Config().model
    # The flight is a parabola, so the state of the first impact is exact to rounding.
    assert found["first impulse [N s]"] <= 1e-12
    # The arc on one corner leaves an error of some ten local ones in the momentum.
    slack = 10.0 * (config.atol + config.rtol * config.speed)
    assert found["time of the stop [s]"] <= slack / (config.friction * G)
    # A gap h left of the integration, of the tolerance, acts as a force m (s^2 h + 2 s hdot),
    # and the force on the left corner falls by (1/2 + d/w) of what lifts.
    force = 3.0 * model.mass * STABILIZATION**2 * slack
    rate = config.lift_rate * (0.5 + config.lift_offset / model.width)
    assert found["time when the left corner opens [s]"] <= force / rate


def test_a_sliding_block_agrees_to_rounding(blocks):
    """Its only arc is a parabola."""
    found = errors(blocks[1], "sliding")
    assert len(found) == 2
    assert max(found.values()) <= 1e-12


def test_rocking_loses_what_housner_says(blocks):
    """A sticking corner that creeps by ten local errors changes the energy by twice their ratio
    to the speed of the centre, which is least at the last impact."""
    config, model = block.quick(block.Config()), block_robot.ROCKING
    rocking = blocks[1]["rocking"]
    assert len(rocking["events"]) >= 3
    first, *kept = rocking["comparisons"]
    fastest = np.sqrt(1.5 * first["closed_form"] / model.mass)  # the energy is 2/3 m v^2
    speed = fastest * 0.8 ** (0.5 * len(kept))
    part = 2.0 * 10.0 * (config.atol + config.rtol * speed) / speed
    assert abs(first["error"]) <= part * first["closed_form"]
    assert max(abs(entry["error"]) for entry in kept) <= part


def test_the_folders_are_complete(balls, blocks):
    for (folder, summary), name, system in (
        (balls, "bounces", ball.system(ball.BallParameters(friction=0.1))),
        (blocks, "rocking", block_robot.system()),
    ):
        stored = json.loads((folder / "summary.json").read_text())
        assert stored.keys() == summary.keys()
        again = HybridTrajectory.load(folder / f"{name}.npz", system)
        assert len(again.events) == len(summary[name]["events"])


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (slope, ["friction_low=0.5"], "friction_low must be at most"),
        (slope, ["friction_high=0.1"], "friction_high must be greater than"),
        (slope, ["duration=0.5"], "duration must be greater than"),
        (slope, ["speed=-1"], "speed must be at least 0"),
        (block, ["lean=1.5"], "lean must be at most"),
        (block, ["lift_time=0.1"], "lift_time must be greater than"),
        (block, ["friction=0"], "friction must be greater than"),
    ],
)
def test_settings_that_make_no_sense_are_refused(module, settings, message):
    with pytest.raises(InputError, match=message):
        load_configuration(module.Config, None, settings)


def test_a_block_that_is_never_lifted_is_refused(tmp_path):
    config = block.Config(landing_duration=0.7)
    with pytest.raises(InputError, match="no corner opens"):
        block.run(config, RunFolder("block", tmp_path), Console(quiet=True))
