"""What takes a system and a run refuses the run of another system, and takes that of its equal."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import InputError
from hybridctl.control.feasibility import feasibility
from hybridctl.control.reference import extend
from hybridctl.sensitivity.parameter_models import ParameterDerivatives
from hybridctl.sensitivity.parameters import parameter_sensitivity

HEIGHT = 1.0
SPAN = (0.0, 1.2)


def ball(gravity=9.81, floor=0.0, restitution=0.8, drag=0.0, mode="air", guard="floor", nu=1):
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u", nu)
    field = [x[1], u[0] - gravity - drag * x[1]]
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode(mode, state=x, field=field, input=u)],
        [
            symbolic.SymbolicTransition(
                mode, guard, x[0] - floor, mode, [floor, -restitution * x[1]]
            )
        ],
    )


def run_of(system, **options):
    return hc.simulate(system, "air", [HEIGHT, 0.0], SPAN, lambda t, x: [0.1], **options)


WEIGHT = ParameterDerivatives(
    ("g",), lambda *at: np.array([[0.0], [-1.0]]), lambda *at: np.zeros((1, 1)), None
)


def referenced(run):
    return extend(run.system, run, before=0.1, after=0.1)


TAKERS = {
    "linearize": lambda system, run: hc.linearize(system, run),
    "parameters": lambda system, run: parameter_sensitivity(system, run, WEIGHT),
    "extend": lambda system, run: extend(system, run, before=0.1, after=0.1),
    "feasibility": lambda system, run: feasibility(system, referenced(run)),
}
OTHERS = {
    "gravity": ({"gravity": 9.82}, "moves at"),
    "drag that is none at rest": ({"drag": 0.01}, "moves at"),
    "floor": ({"floor": 1e-3}, "were zero"),
    "restitution": ({"restitution": 0.79}, "leads to"),
    "mode": ({"mode": "flight"}, "air"),
    "guard": ({"guard": "ground"}, "of guard|were zero"),
    "inputs": ({"nu": 2}, "1 inputs"),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("other", OTHERS)
def test_a_run_of_another_system_is_refused(taker, other):
    change, message = OTHERS[other]
    with pytest.raises(InputError, match=message):
        TAKERS[taker](ball(**change), run_of(ball()))


@pytest.mark.parametrize("taker", TAKERS)
def test_a_run_of_an_equal_system_is_taken(taker):
    TAKERS[taker](ball(), run_of(ball()))


@pytest.mark.parametrize("method", ["DOP853", "RK45", "RK23", "Radau", "BDF"])
def test_a_run_of_any_method_is_of_its_system(method):
    """What the polynomials of steps leave of the field is the accuracy of the run."""
    options = {"rtol": 1e-5, "atol": 1e-5, "method": method, "event_window": 0.0}
    run = hc.simulate(ball(drag=2.0), "air", [HEIGHT, 0.0], (0.0, 0.4), None, **options)
    hc.linearize(ball(drag=2.0), run)
    with pytest.raises(InputError, match="moves at"):
        hc.linearize(ball(drag=2.1), run)


def test_a_run_that_was_given_another_system_is_refused_too(tmp_path):
    run, other = run_of(ball()), ball(gravity=1.62)
    run.save(tmp_path / "run.npz")
    loaded = hc.HybridTrajectory.load(tmp_path / "run.npz", other)
    for given in (loaded, replace(run, system=other)):
        with pytest.raises(InputError, match="moves at"):
            hc.linearize(other, given)


def test_a_field_that_makes_much_of_the_accuracy_of_a_run_is_that_of_the_run(tmp_path):
    """Drag of 1e4 1/s: errors of 1e-6 m/s are rates of 1e-2 m/s^2, which the run does not have."""
    system = ball(drag=1e4)
    options = {"method": "RK45", "rtol": 1e-6, "atol": 1e-6}
    run = hc.simulate(system, "air", [HEIGHT, 0.0], (0.0, 0.05), lambda t, x: [0.1], **options)
    run.save(tmp_path / "run.npz")
    loaded = hc.HybridTrajectory.load(tmp_path / "run.npz", system)
    np.testing.assert_array_equal(
        hc.linearize(system, loaded).state_transition, hc.linearize(system, run).state_transition
    )
    with pytest.raises(InputError, match="moves at"):
        hc.linearize(ball(drag=1.1e4), run)
