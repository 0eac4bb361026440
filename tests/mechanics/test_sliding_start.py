"""A corner of a tossed cube that begins to slide where its friction comes to the limit."""

import numpy as np
import pytest
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.mechanics import contact_system


@pytest.mark.slow
def test_a_corner_that_begins_to_slide_takes_few_steps_and_is_as_exact():
    """It has hit some five times, then turned about the corner until friction no longer held it.

    Friction turns the velocity at 1e8 / s at first, and at 1e3 / s after 10 ms.
    """
    parameters = cube.CubeParameters(restitution_threshold=1e-3)
    system = contact_system(cube.robot(parameters, actuated=True), cube.contacts(parameters))
    start = np.zeros(13)
    # the member of the benchmark's tosses (`benchmarks.gradients`) with the most steps
    rng = np.random.default_rng(0)
    angles = [0.3, 0.2, 0.1] + 0.1 * rng.normal(size=(100, 3))
    velocities = [0.5, 0.0, 0.0, 1.0, 2.0, 0.5] + 0.2 * rng.normal(size=(100, 6))
    start[2], start[7:] = 0.2, velocities[45]
    start[3:7] = Rotation.from_euler("xyz", angles[45]).as_quat()
    run, exact = (
        hc.simulate(system, ("open",) * 8, start, (0.0, 0.24), rtol=tolerance, atol=tolerance)
        for tolerance in (1e-9, 1e-11)
    )
    assert [event.mode_after for event in run.events] == [e.mode_after for e in exact.events]
    (slide,) = (arc for arc in run.arcs if "slip" in arc.mode and arc.end - arc.start > 1e-2)
    assert len(slide.breaks) <= 1 + 6
    # a hundred tolerances of a step
    np.testing.assert_allclose(run.final_state, exact.final_state, rtol=0.0, atol=1e-7)
