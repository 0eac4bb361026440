"""Offsets and radii of contacts as parameters: gradients against differences of the whole flow."""

import numpy as np
import pytest
from gradients.systems import CHAIN, dropped_quadruped, falling_cube, landing_block, swinging_chain

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

FLOOR = Plane(point=(0.0, 0.0, -0.75), normal=(0.0, 0.0, 1.0))
LENGTHS = ("offset_x:tip", "offset_z:tip", "radius:tip")


def chain_with_a_ball(terms="auto", offset_x=0.02, **options):
    """A chain of three links whose tip is a ball that rolls and slides on the floor."""
    offset = (offset_x, 0.0, -0.27)
    tip = Contact("tip", "link3", FLOOR, offset=offset, friction=0.4, restitution=0.5, radius=0.05)
    system: HybridSystem = contact_system(Robot.from_urdf(CHAIN), [tip], terms=terms)
    options = {"parameters": LENGTHS, "events": 1} | options
    return swinging_chain(np.random.default_rng(3), system, **options)


def assert_gradient_is_that_of_the_flow(flow, x0, u, p, tolerance=1e-6):
    """Differences with two steps have an error of their own: the better one counts."""

    def value(values):
        run = flow.run(x0, u, values)
        return (run.states**2).sum() + run.event_times.sum()

    tape = flow.run(x0, u, p)
    found = tape.vjp(2.0 * tape.states, np.ones(flow.event_count)).parameters
    for j, ours in enumerate(found):
        errors = []
        for h in (1e-5, 1e-6):
            step = h * np.eye(len(p))[j]
            errors.append((value(p + step) - value(p - step)) / (2.0 * h) - ours)
        assert np.abs(errors).min() <= tolerance * max(1.0, np.abs(found).max()), (j, ours, errors)
    return tape


@pytest.mark.parametrize(("terms", "offset_x"), [("auto", 0.02), ("auto", 0.0), ("pinocchio", 0.0)])
def test_a_ball_at_the_tip_of_a_chain(terms, offset_x):
    """Compiled, compiled but for an offset of zero, and in Python."""
    tape = assert_gradient_is_that_of_the_flow(*chain_with_a_ball(terms, offset_x))
    assert len(tape.trajectory.guard_events) >= 2


def test_a_block_that_slides_on_its_corners_and_stops():
    names = ("offset_x:left", "offset_z:left", "offset_z:right", "friction")
    flow, x0, u, p = landing_block(np.random.default_rng(0), parameters=names)
    tape = assert_gradient_is_that_of_the_flow(flow, x0, u, p)
    assert any("slip" in str(arc.mode) for arc in tape.trajectory.arcs)


def test_a_corner_of_a_cube_that_comes_to_rest():
    """The gaps that rest closes depend on the offset of the corner."""
    names = ("offset_x:back-left-bottom", "offset_z:back-left-bottom")
    flow, x0, u, p = falling_cube(np.random.default_rng(3), parameters=names)
    tape = assert_gradient_is_that_of_the_flow(flow, x0, u, p)
    assert any(event.accumulation is not None for event in tape.trajectory.events)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")
@pytest.mark.parametrize("seed", [0, 2])
def test_feet_of_a_quadruped(seed):
    """Feet stop and begin to slide in turn; at one event the reset's own derivative is taken."""
    names = ("offset_z:FL_FOOT 0", "offset_x:FR_FOOT 0")
    rng, options = np.random.default_rng(seed), {"parameters": names, "kink": "mean"}
    assert_gradient_is_that_of_the_flow(*dropped_quadruped(rng, **options), tolerance=2e-6)


def test_a_start_in_contact_would_leave_its_mode():
    system = landing_block()[0].parametric.source
    assert isinstance(system, HybridSystem)
    modes = ("stick", "stick")
    rest = system.mode(modes).project(np.zeros(6))
    flow = hc.differentiable(system, modes, (0.0, 0.1), parameters=("offset_z:left",))
    with pytest.raises(InputError, match="begin before the contact"):
        flow.run(rest).vjp(np.ones((1, 6)))


def test_a_new_length_makes_no_new_function(monkeypatch):
    """Functions have offsets and radii that are not zero among their numbers."""
    flow, x0, u, p = chain_with_a_ball()
    flow.run(x0, u, p).vjp(np.ones((2, 6)))

    def refuse(key, build):
        raise AssertionError("a function is asked for")

    monkeypatch.setattr("hybridctl.mechanics.modes.mode_functions.load_or_build", refuse)
    monkeypatch.setattr("hybridctl.mechanics.terms.expression_terms.load_or_build", refuse)
    flow.run(x0, u, 1.001 * p).vjp(np.ones((2, 6)))
