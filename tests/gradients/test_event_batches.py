"""Jumps of events that are linearised together are those of each event alone.

The reference is `linearize_single_event`, or `linearize_event` without parameters, which have tests
against differences of their own.
"""

import warnings

import numpy as np
import pytest
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import NearGrazingWarning, SystemDefinitionError
from hybridctl.gradients import differentiable
from hybridctl.gradients.event_adjoint import (
    linearize_event,
    linearize_events_together,
    linearize_single_event,
)
from hybridctl.mechanics import contact_system
from hybridctl.sensitivity.parameter_models import ParameterDerivatives
from hybridctl.sensitivity.parameters import linearize_guard_with_parameters
from tests.gradients.systems import falling_ball

SAME = 1e-9
"""Largest difference of the matrices, relative to their largest entry.

Rounding of 1e-16 is multiplied by the ratio of the terms of a guard rate to their sum, which near
grazing is up to 1e5 here, and once more by the velocity that changes at the event."""
NAMES = ("friction", "restitution", "mass:cube")


def toss(names=NAMES, end=0.3, seed=1, **options):
    """The run of a cube that hits a table with its corners, and its derivatives by parameters."""
    made = cube.CubeParameters(restitution_threshold=1e-3)
    system = contact_system(cube.robot(made, actuated=True), cube.contacts(made))
    rng, start = np.random.default_rng(seed), np.zeros(13)
    start[2] = 0.2
    start[3:7] = Rotation.from_euler("xyz", [0.3, 0.2, 0.1] + 0.1 * rng.normal(size=3)).as_quat()
    start[7:] = [0.5, 0.0, 0.0, 1.0, 2.0, 0.5] + 0.2 * rng.normal(size=6)
    flow = differentiable(
        system, ("open",) * 8, (0.0, end), parameters=names, kink="mean", **options
    )
    return flow.run(start)


def assert_same_jumps(found, wanted):
    """Compare all matrices of two `EventAdjoint`."""
    for name in ("state", "input", "time_state", "time_input"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max(initial=0.0) <= SAME * np.abs(theirs).max(initial=1.0)


@pytest.fixture(autouse=True)
def _silence():
    warnings.simplefilter("ignore", NearGrazingWarning)


OFFSET = f"offset_x:{cube.contacts(cube.CubeParameters())[0].name}"
"""A number of the geometry: guards and impacts are differentiated by it one by one."""


@pytest.mark.parametrize(
    ("names", "seed"), [(NAMES, 0), (NAMES, 1), (NAMES, 2), ((*NAMES, OFFSET), 1)]
)
def test_impacts_with_parameters(names, seed):
    tape = toss(names, seed=seed)
    events = tape.trajectory.events
    found = linearize_events_together(tape.system, events, tape.parameters)
    assert len(found) >= 3
    for k, jump in found.items():
        assert_same_jumps(jump, linearize_single_event(tape.system, events[k], tape.parameters))


def test_impacts_without_parameters():
    tape = toss(())
    events = tape.trajectory.events
    found = linearize_events_together(tape.system, events, None)
    assert len(found) >= 3
    for k, jump in found.items():
        assert_same_jumps(jump, linearize_event(tape.system, events[k], "mean", "in turn"))


def test_impacts_on_a_line_whose_contact_slides_or_sticks():
    patterns = set()
    for friction in (0.05, 2.0):
        flow, start, inputs, values = falling_ball()
        tape = flow.run(start, inputs, values * [1.0, 0.0, 1.0] + [0.0, friction, 0.0])
        events = tape.trajectory.events
        found = linearize_events_together(tape.system, events, tape.parameters)
        assert len(found) >= 2
        for k, jump in found.items():
            patterns.add(events[k].report.states)
            assert_same_jumps(jump, linearize_single_event(tape.system, events[k], tape.parameters))
    assert len(patterns) >= 2


def test_derivatives_of_resets_of_wrong_shapes_are_refused_where_each_event_is_alone():
    """Also shapes that differ from event to event, which make no array."""
    tape = toss(())
    events = tape.trajectory.events
    first, second, *_ = linearize_events_together(tape.system, events, None)
    given = ParameterDerivatives(
        ["p"],
        lambda key, t, x, u: np.zeros((12, 1)),
        lambda key, t, x, u: np.zeros((len(tape.system.mode(key).guard_names), 1)),
        lambda key, fired, t, x, u: np.zeros((12, 1 if t == events[first].time else 2)),
    )
    found = linearize_events_together(tape.system, events, given)
    assert first not in found
    assert second not in found
    assert linearize_guard_with_parameters(tape.system, events[first], given) is not None
    with pytest.raises(SystemDefinitionError, match="a reset of mode"):
        linearize_guard_with_parameters(tape.system, events[second], given)


def test_uncertain_rates_warn_once_together_or_alone():
    tape = toss(end=0.4)
    events = tape.trajectory.events
    with warnings.catch_warnings(record=True) as together:
        warnings.simplefilter("always")
        found = linearize_events_together(tape.system, events, tape.parameters)
    with warnings.catch_warnings(record=True) as alone:
        warnings.simplefilter("always")
        for k in found:
            linearize_single_event(tape.system, events[k], tape.parameters)
    texts = sorted(str(each.message).split(" and changes")[0] for each in together)
    assert texts == sorted(str(each.message).split(" and changes")[0] for each in alone)
    assert texts
