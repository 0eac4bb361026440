"""The default parameters of the door are what the identification makes of its free ones."""

from dataclasses import asdict

import numpy as np
import pytest
from hybridctl.experiments.rrr_door import identify
from hybridctl.experiments.rrr_door.reference import Design
from hybridctl.robots.rrr_door import DoorParameters


@pytest.fixture(scope="module")
def free():
    return {name: getattr(DoorParameters(), name) for name in identify.BOUNDS}


def test_the_solved_parameters_meet_the_published_impulses(free):
    solved = identify.solve_parameters(free)
    # Least squares on two unknowns ends at the default 1e-8 of scipy.
    np.testing.assert_allclose(
        identify.solve_impulses(solved), identify.PUBLISHED_IMPULSES, rtol=1e-6
    )
    # The defaults are rounded to five digits.
    for name, value in asdict(solved).items():
        assert getattr(DoorParameters(), name) == pytest.approx(value, rel=1e-4), name


def test_the_defaults_beat_the_start_and_lie_within_the_bounds(free):
    for name, (low, high) in identify.BOUNDS.items():
        assert low <= free[name] <= high, name
    assert identify.compute_cost(free) < 1.0
    assert identify.compute_cost(identify.START) > 100.0


def test_candidates_that_cannot_reach_are_costly_not_errors(free):
    assert identify.compute_cost({**free, "upper_arm_length": 0.2, "forearm_length": 0.2}) == 500.0


def test_a_tracked_candidate_reports_the_split():
    outcome = identify.track(DoorParameters(), Design())
    assert outcome.split
    assert outcome.least_force > 4.0
