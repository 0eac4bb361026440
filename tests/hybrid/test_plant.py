"""The package's own simulator as a plant: step by step what one run does."""

import numpy as np
import pytest
from control.samples import bouncing_ball, landing_ball

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.hybrid.plant import Plant, SimulatedPlant
from hybridctl.mechanics import Contact, Plane, Robot

PERIOD = 0.01


@pytest.mark.parametrize("system", [bouncing_ball(), landing_ball()])
def test_steps_under_held_inputs_are_one_run(system):
    """Accelerations are constant under a held input, so that both are exact but for the events."""
    plant = SimulatedPlant(system, "air", PERIOD)
    assert isinstance(plant, Plant)
    policy = hc.SampledPolicy(lambda t, x: np.array([3.0 * np.sin(20.0 * t)]), PERIOD)
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 0.9), policy)
    sample = plant.reset(0.0, [1.0, 0.0])
    for k in range(90):
        assert sample.time == k * PERIOD
        sample = plant.step([3.0 * np.sin(20.0 * k * PERIOD)])
        assert sample.sensed["mode"] == plant.run().final_mode
    whole = plant.run()
    np.testing.assert_allclose(sample.state, run.final_state, atol=1e-8)
    times = [[e.time for e in each.guard_events] for each in (whole, run)]
    assert len(times[0]) > 0
    np.testing.assert_allclose(*times, atol=1e-9)
    assert whole.end == pytest.approx(0.9)
    assert [arc.index for arc in whole.arcs] == list(range(len(whole.arcs)))
    assert [event.index for event in whole.events] == list(range(len(whole.arcs) - 1))
    landed = max(times[0][-1], times[1][-1])  # in both, whose times differ by rounding
    np.testing.assert_allclose(whole(landed), run(landed), atol=1e-7)


def test_an_input_that_ends_a_mode_begins_another():
    """A cart of 2 kg on the ground that is pushed up by more than its weight lifts off at once."""
    urdf = """<robot name="rail"><link name="base"/><link name="cart"><inertial>
    <mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <joint name="slide" type="prismatic"><parent link="base"/><child link="cart"/>
    <axis xyz="0 0 1"/><limit lower="-9" upper="9" effort="9" velocity="9"/></joint></robot>"""
    ground = Plane(point=(0, 0, 0), normal=(0, 0, 1))
    foot = Contact("foot", "cart", ground)
    system = hc.mechanics.contact_system(Robot.from_urdf(urdf), [foot])
    plant = SimulatedPlant(system, ("open",), PERIOD)
    plant.reset(0.0, [0.01, 0.0])
    sample = plant.step([0.0])
    while sample.sensed["mode"] == ("open",):
        sample = plant.step([0.0])
    assert sample.sensed["normal_force"] == pytest.approx([2.0 * 9.81])
    assert plant.step([9.81]).sensed["normal_force"] == pytest.approx([9.81])
    lifted = plant.step([24.0])
    assert lifted.sensed["mode"] == ("open",)
    assert lifted.sensed["normal_force"] == [0.0]
    assert lifted.state[1] == pytest.approx((12.0 - 9.81) * PERIOD, rel=1e-6)


def test_wrong_arguments_are_named():
    plant = SimulatedPlant(bouncing_ball(), "air")
    with pytest.raises(InputError, match="reset"):
        plant.step([0.0])
    with pytest.raises(InputError, match="state must have shape"):
        plant.reset(0.0, [1.0])
    plant.reset(0.0, [1.0, 0.0])
    with pytest.raises(InputError, match="u must have shape"):
        plant.step([1.0, 2.0])
    with pytest.raises(InputError, match="period must be greater than 0"):
        SimulatedPlant(bouncing_ball(), "air", 0.0)


def test_a_plant_without_a_step_has_no_run():
    plant = SimulatedPlant(bouncing_ball(), "air")
    with pytest.raises(InputError, match="after its first step"):
        plant.run()
    plant.reset(0.0, [1.0, 0.0])
    with pytest.raises(InputError, match="after its first step"):
        plant.run()
