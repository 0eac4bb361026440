"""How often derivatives solve for forces and impacts: once at each point, and never again."""

from collections import Counter

import numpy as np
import pytest
from hybridctl.robots import block

import hybridctl as hc
from hybridctl.hybrid.model import FieldJacobian, GuardJacobian
from hybridctl.mechanics import Robot, contact_system, parameter_derivatives
from hybridctl.mechanics.impacts import resets
from hybridctl.mechanics.modes import dynamics
from hybridctl.sensitivity.parameter_models import fix_inputs_as_parameters
from hybridctl.sensitivity.parameters import augment_with_parameters

P = block.BlockParameters()


@pytest.fixture
def solve_counts(monkeypatch):
    """How often equations of closed contacts, free accelerations and impacts have been solved."""
    counts = Counter()

    def count(home, name):
        own = getattr(home, name)

        def counted(*args, **options):
            counts[name] += 1
            return own(*args, **options)

        monkeypatch.setattr(home, name, counted)

    count(dynamics, "solve_phase")
    count(dynamics.ContactDynamics, "derivatives_at")
    count(resets, "solve_impact")
    count(Robot, "free_acceleration")
    return counts


def system():
    """A block whose modes are not compiled."""
    return contact_system(block.robot(P), block.contacts(P), terms="pinocchio")


def landing():
    """A level block that lands on both corners, sliding, and stops on both."""
    x0 = [0.0, 0.5 * P.height + 0.01, 0.0, 0.2, 0.0, 0.0]
    run = hc.simulate(system(), ("open", "open"), x0, (0.0, 0.2))
    assert [len(event.guards) for event in run.events] == [2, 2]
    return run


def test_two_guards_that_are_one_impact(solve_counts):
    """The flight before it once, for the rates of both guards, and the mode after it once.

    Gaps and their derivatives are kinematics, and the impact is known from the run.
    """
    run = landing()
    solve_counts.clear()
    jump = hc.jump_derivative(run.source, run.events[0], simultaneous="at once")
    jump.pieces()
    assert solve_counts == {"free_acceleration": 1, "solve_phase": 1}


def test_two_guards_that_are_two_impacts(solve_counts):
    """Each set of guards that have fired is one point, and each order of firing one impact.

    Points are the flight, a mode for either guard alone, those to which both orders lead, and the
    mode after the event of the run. The other guard has a rate in the modes of one.
    """
    run = landing()
    solve_counts.clear()
    hc.jump_derivative(run.source, run.events[0])
    orders = 4  # either guard first, and either last
    points = orders + 1
    assert solve_counts == {
        "free_acceleration": 1,
        "solve_impact": orders,
        "solve_phase": points,
        "derivatives_at": 2,
    }


def test_two_guards_of_which_either_does_what_the_other_would(solve_counts):
    """The mode before the stop, whose guards have derivatives, and that after it for either."""
    run = landing()
    solve_counts.clear()
    hc.jump_derivative(run.source, run.events[1])
    assert solve_counts == {"solve_phase": 3, "derivatives_at": 1}


def test_derivatives_by_parameters_go_on_from_those_by_the_state(solve_counts):
    """At a point field and guards are solved once for both, and the impact not at all."""
    run = landing()
    by = parameter_derivatives(block.robot(P), block.contacts(P), ("mass:block", "friction:left"))
    wide, moved = augment_with_parameters(run.source, run, by)
    for arc in moved.arcs:
        point = wide.mode(arc.mode).calc(arc.start, *arc.state_and_input(arc.start))
        solve_counts.clear()
        wide.mode(arc.mode).calc_diff(point)
        acceleration = "free_acceleration" if arc.mode == ("open", "open") else "solve_phase"
        assert solve_counts == {acceleration: 1, "derivatives_at": 1}
    solve_counts.clear()
    hc.jump_derivative(wide, moved.events[0], simultaneous="at once").pieces()
    assert solve_counts == {"free_acceleration": 1, "solve_phase": 1}


def test_derivatives_by_held_inputs_are_those_of_the_system():
    """Its field and its guards have one derivative each at a point, by kept inputs and others."""
    counts = Counter()

    def called(name, value):
        def function(t, x, u):
            counts[name] += 1
            return value

        return function

    field = called("field", FieldJacobian(np.eye(2), np.ones((2, 2))))
    guard = called("guard", GuardJacobian(0.0, np.ones(2), np.ones(2)))
    mode = hc.Mode("m", hc.VectorSpace(2), lambda t, x, u: x, nu=2, jacobian=field)
    leave = hc.Transition(
        "m", hc.Guard("g", lambda t, x, u: 1.0, guard), hc.Reset(lambda *a: a[1]), "m"
    )
    inner = hc.HybridSystem([mode], [leave])
    held, by = fix_inputs_as_parameters(inner, {"last": 0.5})
    run = hc.simulate(held, "m", [1.0, 1.0], (0.0, 0.1))
    wide, _ = augment_with_parameters(held, run, by)
    counts.clear()
    point = wide.mode("m").calc(0.0, np.array([1.0, 1.0, 0.0]), np.zeros(1))
    slopes = wide.mode("m").calc_diff(point)
    assert counts == {"field": 1, "guard": 1}
    np.testing.assert_array_equal(slopes.field.state[:2, 2], [1.0, 1.0])
    np.testing.assert_array_equal(slopes.guards.state, [[1.0, 1.0, 1.0]])
