"""Phases that end by the clock, where a jump of the input releases contacts."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from planning.plate import CLOSED, FORCE, LIFT, OPEN, RELEASE, TIME, lifting

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.phase_functions import compute_least_gaps
from hybridctl.planning.plan import PhaseSequence
from hybridctl.planning.task import Margins, Phase

CLOCK_PHASES = [
    Phase(CLOSED, (), (TIME, TIME + 1e-9), 2),
    Phase(OPEN, (), (TIME, TIME + 1e-9), 2),
]


def still(k, s):
    return np.zeros(4)


@pytest.mark.parametrize("implicit", [False, True])
def test_an_input_that_jumps_lifts_a_plate_at_a_time(implicit):
    """Both corners press until the clock, and leave with at least the acceleration asked for."""
    task = lifting(phases=CLOCK_PHASES, implicit=implicit)
    found = optimise(task, still)
    assert found.open_loop.closes, found.open_loop.problem
    (event,) = found.run.events
    assert event.guards == ()
    assert (event.mode_before, event.mode_after) == (CLOSED, OPEN)
    assert event.time == found.feedforward[0].end
    before = task.system.mode(CLOSED).calc(event.time, event.state_before, event.input_before)
    names = task.system.mode(CLOSED).guard_names
    forces = [before.guards[names.index(name)] for name in RELEASE]
    assert min(forces) > FORCE - 1e-6
    after = task.system.mode(OPEN).calc(event.time, event.state_after, event.input_after)
    # The plate does not turn: both corners have the acceleration of its middle.
    assert after.field[2] > LIFT - 1e-6


def test_perturbations_go_through_a_release_by_the_clock_unchanged():
    """The state does not decide when it comes: there is no saltation."""
    task = lifting(phases=CLOCK_PHASES)
    lin = hc.linearize(task.system, optimise(task, still).run)
    (jump,) = lin.jumps
    np.testing.assert_array_equal(jump.state, np.eye(4))
    assert not jump.input.any()


def test_a_jump_of_the_input_needs_a_lift_to_release_by():
    with pytest.raises(InputError, match="lift of margins must be positive"):
        lifting(phases=CLOCK_PHASES, margins=Margins(force=FORCE))
    with pytest.raises(InputError, match=r"phases\[0\] must end with guards, as contacts close"):
        lifting(phases=CLOCK_PHASES[::-1])


def test_gaps_rise_with_the_square_of_time_after_a_release_by_the_clock():
    """And with the cube where forces vanish; a phase has its own clearance if it is given one."""
    s, names = np.array([1e-3, 0.5]), ("left", "right")
    margins = Margins(force=FORCE, lift=LIFT, clearance=0.02)
    by_clock = compute_least_gaps(lifting(phases=CLOCK_PHASES, margins=margins), 1, names, s)
    np.testing.assert_allclose(by_clock[:, 0], 0.02 * 6.75 * s**2 * (1.0 - s))
    by_force = compute_least_gaps(lifting(margins=margins), 1, names, s)
    np.testing.assert_allclose(by_force[:, 1], 0.02 * 256.0 / 27.0 * s**3 * (1.0 - s))
    low = [CLOCK_PHASES[0], Phase(OPEN, (), (TIME, TIME + 1e-9), 2, clearance=0.01)]
    task = lifting(phases=low, margins=margins)
    np.testing.assert_allclose(compute_least_gaps(task, 1, names, s), 0.5 * by_clock)


def test_a_phase_that_ends_by_the_clock_is_over_at_its_time_whatever_the_mode_is():
    phases = PhaseSequence((("stick",), ("open",), ("stick",)), (0.5, math.inf, math.inf))
    early = SimpleNamespace(time=0.4, guards=("opens",), mode_after=("open",))
    lands = SimpleNamespace(time=0.8, guards=("closes",), mode_after=("stick",))
    assert [phases.find_phase(t, [early]) for t in (0.4, 0.5)] == [0, 1]
    assert phases.find_phase(0.7, []) == 1
    assert phases.find_phase(0.8, [early, lands]) == 2
    assert [phases.get_end(k) for k in range(3)] == [0.5, math.inf, math.inf]
