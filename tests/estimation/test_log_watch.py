"""A log whose mapping has a wrong unit ends early, with the unit that would be right."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.app.models import find_source
from hybridctl.base.errors import SimulationError
from hybridctl.estimation.initial_estimate import first_estimate
from hybridctl.estimation.log_watch import LogWatch, ScaledChannel, TooManyStepsError
from hybridctl.estimation.record import Record, Series
from hybridctl.mechanics import Contact, Plane, Robot
from hybridctl.sampling.filters import run_filter

INERTIA = '<inertia ixx="0.05" iyy="0.05" izz="0.05" ixy="0" ixz="0" iyz="0"/>'
HOPPER = f"""<robot name="hopper">
<link name="body"><inertial><mass value="5"/>{INERTIA}</inertial></link>
<joint name="leg" type="prismatic"><parent link="body"/><child link="foot"/>
  <origin xyz="0 0 -0.5"/><axis xyz="0 0 1"/>
  <limit lower="-0.3" upper="0.3" effort="500" velocity="10"/></joint>
<link name="foot"><inertial><mass value="0.5"/>{INERTIA}</inertial></link></robot>"""
MODEL = """urdf: hop.urdf
root: sagittal
joints: {leg: {stiffness: 2000, damping: 10}}
contacts: {toe: {frame: foot, plane: {normal: [0, 0, 1]}, friction: 0.7}}
encoders:
  mocap: {joints: [root_x, root_z], deviation: 1e-3, unit: m}
  gyro: {joints: [root_pitch], deviation: 1e-3}
  leg: {joints: [leg], deviation: 1e-3, unit: m}
noise: {force: 0.1, torque: 0.1, surface: 1e-3}
"""


@pytest.fixture(scope="module")
def hopper(tmp_path_factory):
    """The model of the page on hoppers, its settings, and a record of a fall and two hops."""
    folder: Path = tmp_path_factory.mktemp("hop")
    (folder / "hop.urdf").write_text(HOPPER)
    (folder / "hop.yaml").write_text(MODEL)
    source = find_source(str(folder / "hop.yaml"))
    settings = source.configure()
    robot = Robot.from_urdf(HOPPER, root="sagittal", stiffness={"leg": 2e3}, damping={"leg": 10.0})
    toe = Contact("toe", "foot", Plane((0, 0, 0), (0, 0, 1)), friction=0.7)
    start = np.zeros(8)
    start[1] = 0.9
    run = hc.simulate(hc.mechanics.contact_system(robot, [toe]), ("open",), start, (0.0, 0.8))
    times = np.arange(0.0, run.end, 0.01)
    noise = np.random.default_rng(0).normal(scale=1e-3, size=(len(times), 4))
    seen = run(times)[:, :4] + noise
    columns = {"mocap": seen[:, :2], "gyro": seen[:, 2:3], "leg": seen[:, 3:]}
    record = Record({name: Series(times, values) for name, values in columns.items()})
    return source.make(settings), settings, record


def filtered(hopper, channel="mocap", factor=1.0):
    model, settings, record = hopper
    wrong = record.channels[channel]
    wrong = replace(wrong, values=factor * np.array(wrong.values))
    record = replace(record, channels={**record.channels, channel: wrong})
    start, rest = first_estimate(model, settings, record)
    return run_filter("salted", model, settings, rest, start)


@pytest.mark.slow
def test_metres_that_are_read_as_millimetres_end_early_with_the_unit(hopper):
    """The run took minutes, as each lost estimate costs many events. 438 rows would follow."""
    with pytest.raises(SimulationError, match=r"is the unit of 'mocap' m\?") as caught:
        filtered(hopper, factor=1e-3)
    assert "1000 times too small" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


@pytest.mark.slow
def test_one_channel_of_many_that_is_near_zero_most_of_the_time_ends_the_run_too(hopper):
    """The leg is as long as at rest but for the stance: 57 of 438 values were rejected."""
    with pytest.raises(SimulationError, match=r"is the unit of 'leg' m\?") as caught:
        filtered(hopper, "leg", 1e-3)
    assert "values of 'leg' are more than 10 standard deviations" in str(caught.value)


@pytest.mark.slow
def test_the_right_unit_is_not_stopped(hopper):
    found = filtered(hopper)
    assert len(found.steps) > 200
    assert not found.rejected


def test_a_sample_of_too_many_steps_ends_the_run_by_their_count():
    """A hundred times the median, and 5,000 at least: counts, which no slow machine changes."""
    watch = LogWatch()
    for _ in range(5000):
        watch.take_step(0.0)
    with pytest.raises(TooManyStepsError, match="more than 5000 integrator steps"):
        watch.take_step(0.0)


def test_rare_samples_may_take_as_many_steps_as_are_usual_in_their_log():
    watch = LogWatch()
    watch._before = [200] * 5
    for _ in range(20_000):
        watch.take_step(0.0)
    with pytest.raises(TooManyStepsError, match=r"more than 20000 .* the usual one 200"):
        watch.take_step(0.0)


@pytest.mark.parametrize(
    ("unit", "factor", "asked"),
    [
        ("m", 1e3, "1000 times too small: is the unit of 'a' m?"),
        ("m", 1e-3, "1000 times too large: is the unit of 'a' mm?"),
        ("m", 1e-2, "100 times too large: is the unit of 'a' cm?"),
        ("rad", 180.0 / np.pi, "57.3 times too small: is the unit of 'a' rad?"),
        ("rad", np.pi / 180.0, "57.3 times too large: is the unit of 'a' deg?"),
        ("rad/s", np.pi / 180.0, "57.3 times too large: is the unit of 'a' deg/s?"),
        ("rad/s", 1e-3, "1000 times too large: is the unit of 'a' mrad/s?"),
        ("m", 1.0 / (180.0 / np.pi), "57.3 times too large"),
        ("m", 180.0 / np.pi, "57.3 times too small"),
        ("1", 1e3, "1000 times too small"),
    ],
)
def test_the_unit_that_is_asked_for_is_that_of_the_factor(unit, factor, asked):
    assert str(ScaledChannel("a", unit, factor)).replace("57.30", "57.3").endswith(asked)
