"""Optima whose continued arcs stay feasible over the spread of event times that they leave."""

import casadi as ca
import numpy as np
import pytest
from planning.plate import CLOSED, MASS, OPEN, TIME, guess, landing

import hybridctl as hc
from hybridctl.base.errors import InfeasibleReferenceError, InputError
from hybridctl.control.extension import extend_by_rule
from hybridctl.planning.optimisation import optimise, optimise_over_spread
from hybridctl.planning.task import Margins

TORQUE = 30.0  # N and N m
GAINS = np.array([[8.0, 0.0, 4.0, 0.0], [0.0, 1.0, 0.0, 0.6]])  # N/m, N s/m and of the tilt
COVARIANCE = np.diag([0.005, 0.005, 0.02, 0.02]) ** 2
MARGINS = Margins(force=0.05, impulse=0.05, approach=0.05)


def fed_back(free):
    """Under a spring and a damper on each motor."""
    return free.closed_loop([GAINS] * len(free.trajectory.arcs))


def task(**options):
    """Lowered too fast, the plate is braked until it touches, by as little as may be.

    What bears its weight costs nothing, so it is all but borne when it lands.
    """
    weight = ca.DM([MASS * 9.81, 0.0])
    given = {
        "start": [0.2, 0.0, -1.0, 0.0],
        "margins": MARGINS,
        "torque": TORQUE,
        "running_cost": lambda x, u: ca.sumsqr(u - weight),
    }
    return landing(**(given | options))


def extended(plant, optimum, rule):
    """Over four standard deviations of the event time."""
    lin = fed_back(hc.linearize(plant, optimum.run))
    return extend_by_rule(lin, COVARIANCE, rule=rule, limits=[TORQUE, TORQUE])


@pytest.fixture(scope="module")
def plain():
    return optimise(task(), guess)


@pytest.fixture(scope="module")
def spread():
    return optimise_over_spread(task(), guess, fed_back, COVARIANCE)


def test_continued_arcs_press_and_keep_the_limits_over_the_expected_spread(spread):
    """Simulated arcs and phantom arcs, at times of their own, by the contacts' own forces."""
    assert spread.extension.failures == ()
    (length,) = (4.0 * d for d in spread.extension.deviations)
    assert 0.1 < length <= spread.covered[0] < 1.5 * length
    plant, reference = task().system, spread.extension.reference
    arcs = [(OPEN, reference.arcs[0]), (CLOSED, reference.arcs[1])]
    arcs += [(phantom.mode, phantom.arc) for phantom in reference.phantoms.values()]
    assert len(arcs) == 4
    for mode, arc in arcs:
        times = np.linspace(max(arc.start, TIME - length), min(arc.end, TIME + length), 53)
        for t in times.tolist():
            x, u = arc.state_and_input(t)
            assert np.abs(u).max() <= TORQUE
            forces = plant.mode(mode).outputs(t, x, u)["normal_force"]
            assert all(f > 0.0 for f, m in zip(forces, mode, strict=True) if m == "closed")


@pytest.mark.parametrize("rule", ["hold", "extrapolate", "quintic", "own"])
def test_an_optimum_that_knows_nothing_of_the_spread_fails_over_it_by_any_rule(plain, rule):
    """It brakes until it touches: had one corner touched before, that would have to pull."""
    inputs = plain.feedforward if rule == "own" else rule
    failures = extended(task().system, plain, inputs).failures
    assert any("to before it: guard 'left opens' falls to -" in text for text in failures)


@pytest.mark.slow
def test_a_spread_that_is_enough_is_kept():
    """The first optimum is the answer."""
    found = optimise_over_spread(task(spread=0.05), guess, fed_back, 0.01 * COVARIANCE)
    assert found.rounds == 1
    assert found.covered == (0.05,)
    assert 4.0 * found.extension.deviations[0] < 0.05


def test_a_spread_that_is_not_reached_is_said():
    with pytest.raises(InfeasibleReferenceError, match="after 1 rounds events spread by"):
        optimise_over_spread(task(), guess, fed_back, COVARIANCE, rounds=1)


def test_a_task_that_ends_with_an_event_is_refused():
    """What follows the event would have no input."""
    ends = task(phases=task().phases[:1])
    with pytest.raises(InputError, match="last phase of the task must end at a time"):
        optimise_over_spread(ends, guess, fed_back, COVARIANCE)
    with pytest.raises(InputError, match="feedback must be"):
        optimise_over_spread(task(), guess, GAINS, COVARIANCE)
