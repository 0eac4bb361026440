"""The adjoint of a run's arcs, made together; that of its events, without a system in (x, p)."""

import numpy as np
import pytest
from gradients.systems import KINDS, falling_cube, landing_block
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import IntegrationError
from hybridctl.gradients import arc_adjoint
from hybridctl.gradients.event_adjoint import linearize_event, linearize_single_event
from hybridctl.sensitivity.parameters import augment_with_parameters


def arguments_of(tape, numbers):
    arcs = [tape.trajectory.arcs[k] for k in numbers]
    modes = [tape.system.mode(arc.mode) for arc in arcs]
    cuts = [*tape.times.tolist(), *tape.hold_times.tolist()]
    return modes, arcs, cuts, tape.parameters, True, tape.rtol


@pytest.mark.parametrize("kind", ["block", "cube"])
def test_arcs_that_are_made_together_are_those_that_are_made_alone(kind):
    """The sums have another order at most, which rounding shows: 1e-13 of the largest entry."""
    flow, *arguments = KINDS[kind]()
    tape = flow.run(*arguments)
    every = range(len(tape.trajectory.arcs))
    assert len(every) > 2
    together = arc_adjoint.linearize_arc_adjoints(*arguments_of(tape, every))
    for k in every:
        (alone,) = arc_adjoint.linearize_arc_adjoints(*arguments_of(tape, [k]))
        for name in ("starts", "ends"):
            np.testing.assert_array_equal(getattr(together[k], name), getattr(alone, name))
        for name in ("transitions", "by_input", "by_parameters"):
            one, other = getattr(together[k], name), getattr(alone, name)
            largest = max(1.0, np.abs(other).max(initial=0.0))
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-13 * largest)


def test_intervals_are_passed_together_as_one_by_one():
    flow, *arguments = landing_block()
    tape = flow.run(*arguments)
    arcs = arc_adjoint.linearize_arc_adjoints(*arguments_of(tape, [0]))[0]
    costate = np.random.default_rng(0).normal(size=6)
    last = len(arcs.starts) - 1
    found, by_input, by_parameters = arcs.pass_intervals(0, last, costate)
    total = np.zeros(len(by_parameters))
    for i in range(last, -1, -1):
        costate, own, added = arcs.pass_intervals(i, i, costate)
        np.testing.assert_allclose(by_input[i], own[0], rtol=1e-13, atol=1e-15)
        total += added
    np.testing.assert_array_equal(found, costate)
    np.testing.assert_allclose(by_parameters, total, rtol=1e-12, atol=1e-14)


def test_an_arc_on_which_nothing_depends_may_have_no_adjoint(monkeypatch):
    """The costate of arc 1 is asked for alone: that arc 0 is not resolved is no error there."""
    flow, *arguments = falling_cube(end=0.16)
    tape = flow.run(*arguments)
    make = arc_adjoint.linearize_arc_adjoints

    def fail_at_start(modes, arcs, *others):
        if arcs[0].index == 0:
            raise IntegrationError("unresolved")
        return make(modes, arcs, *others)

    monkeypatch.setattr("hybridctl.gradients.tape.linearize_arc_adjoints", fail_at_start)
    assert len(tape.arc_map(1).starts) >= 1
    with pytest.raises(IntegrationError, match="unresolved"):
        tape.arc_map(0)


@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")
def test_a_corner_that_begins_to_slide_is_passed_by_few_intervals(monkeypatch):
    """Its friction turns ever faster towards rest. Maps of all costates take over 300 intervals.

    So none are tried: one costate crosses the initial layer in one interval, and is collocated from
    there.
    """
    flow, *_ = falling_cube(end=0.24, kink="mean")
    turned = Rotation.from_euler("xyz", [0.43, 0.28, 0.13]).as_quat()
    x0 = np.array([0.0, 0.0, 0.2, *turned, 0.6, 0.3, 0.0, 1.2, 2.3, 0.7])

    def gradient():
        tape = flow.run(x0)
        found = tape.vjp(np.ones((1, 13)))
        assert "slip" in tape.trajectory.final_mode
        last = tape.arc_map(len(tape.trajectory.arcs) - 1)
        return len(last.starts), np.append(found.state, found.parameters)

    rounds, collocate = [], arc_adjoint._collocate

    def count_rounds(*arguments):
        rounds.append(arguments)
        return collocate(*arguments)

    monkeypatch.setattr(arc_adjoint, "_collocate", count_rounds)
    count, found = gradient()
    assert count < 50
    assert len(rounds) <= 3  # of the arcs before; maps of this one took nine more
    # Without the leap all errors are controlled. Those of the leap are not: they are 7e-8 here.
    monkeypatch.setattr(arc_adjoint, "choose_first_leap", lambda mode, arc: 0.0)
    _, wanted = gradient()
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")
@pytest.mark.parametrize("kind", ["ball", "block", "cube", "chain"])
def test_events_of_one_guard_are_those_of_the_system_with_parameters(kind):
    """A slope of the guard is summed in another order at most."""
    flow, *arguments = KINDS[kind]()
    tape = flow.run(*arguments)
    wide, run = augment_with_parameters(tape.system, tape.trajectory, tape.parameters)
    compared = 0
    for event, own in zip(run.events, tape.trajectory.events, strict=True):
        found = linearize_single_event(tape.system, own, tape.parameters)
        if found is None:
            continue
        wanted = linearize_event(wide, event, "raise", "in turn")
        for name in ("state", "input", "time_state", "time_input"):
            one, other = getattr(found, name), getattr(wanted, name)
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
        compared += 1
    assert compared
