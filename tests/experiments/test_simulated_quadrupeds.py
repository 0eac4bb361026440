"""Quadrupeds that walk on contacts of another engine, with the filter's settings as they come."""

import numpy as np
import pytest
from hybridctl.robots import public
from oracles import simulated_walks as simulated

from hybridctl.estimation.legged.estimator import WALKING, StartDeviations
from hybridctl.mechanics.multibody.robot import Robot

pytest.importorskip("mujoco")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "time_constant"),
    [
        ("solo12", 2e-3),
        ("go1", 1e-2),
        pytest.param("solo12", 1e-2, marks=pytest.mark.long),
        pytest.param("go1", 2e-3, marks=pytest.mark.long),
    ],
)
def test_a_quadruped_that_walks_is_known_to_some_centimetre(name, time_constant):
    """Over 7 s, of which it stands the first, and from mid-walk; settings name frames alone.

    What drifts is the same all along a log, so that its NEES is one number: three logs of each.
    Feet on contacts of 10 ms are pressed in for longer than `settle`, which costs 15 mm; on those
    of 2 ms the filter is more cautious than it need be. Recorded feet need both, see
    `test_go1_recording`.
    """
    done = simulated.walk(name, time_constant, 9.1)
    estimator = simulated.settings(name).build(Robot.from_urdf(public.urdf(name)))
    for begin, start in ((0.0, StartDeviations()), (2.0, WALKING)):
        found = []
        for seed in range(3):
            readings = simulated.log(estimator, done, begin, 7.0, seed)
            assert estimator.deviations(estimator.record(readings)) == start
            found.append(simulated.errors(estimator, done, readings, 100 + seed))
        assert not any(e.flags for e in found)
        assert np.mean([(e.position**2).sum(axis=1) for e in found]) ** 0.5 < 16e-3
        assert 0.2 < np.mean([e.of_position for e in found]) / 3.0 < 2.0
        assert 0.4 < np.mean([e.of_all for e in found]) / 9.0 < 2.0
