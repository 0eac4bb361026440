"""Steps of kernel modes with their derivative, against differences and collocation along an arc."""

import numpy as np
import pytest
from hybridctl.robots import public

import hybridctl as hc
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import Diffusion, FieldJacobian, StepRequest
from hybridctl.mechanics.kernel.extension import is_kernel_available
from hybridctl.mechanics.modes import variational_step
from hybridctl.mechanics.modes.kernel_mode import KernelContactMode
from hybridctl.mechanics.modes.tolerances import STANDSTILL
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.sensitivity.propagation import (
    compute_transition_by_steps,
    linearize_field_at,
    propagate_perturbations,
)
from mechanics.models import SLOPE, pair

pytestmark = pytest.mark.skipif(not is_kernel_available(), reason="there is no compiled kernel")
MODES = [("open", "open"), ("stick", "open"), ("slip", "open"), ("stick", "stick")]
LENGTH = 2e-4
"""Length of the steps, s: within the step-size limits of all modes here."""


def make_case(modes, seed=3):
    """Return a mode of two bodies on a slope, and a state with its contacts on the slope."""
    dynamics = pair("floating", SLOPE, mu=0.4)
    every = (*modes, *("open",) * (len(dynamics.contacts) - len(modes)))
    mode = KernelContactMode(dynamics, every, RobotStateSpace(dynamics.robot))
    robot, rng = dynamics.robot, np.random.default_rng(seed)
    q = robot.integrate(robot.neutral(), 0.2 * rng.normal(size=robot.nv))
    x, u = np.concatenate((q, rng.normal(size=robot.nv))), rng.normal(size=robot.nu)
    return mode, x if mode.project is None else mode.project(x), u


@pytest.mark.parametrize("modes", MODES, ids="-".join)
def test_it_is_the_derivative_of_a_step(modes):
    mode, x, u = make_case(modes)
    ahead = StepRequest(0.0, x, LENGTH, 1e-9, 1e-9)
    found = mode.transition(ahead, u)
    assert found.error < 1.0
    assert found.noise is None

    def end(change):
        start = mode.space.normalize(mode.space.integrate(x, change))
        states = mode.step(ahead._replace(x=start), HeldInput(u)).states
        return mode.space.normalize(states[-1])

    middle = end(np.zeros(mode.space.ndx))
    # The same stages: rounding, times their rates.
    np.testing.assert_allclose(mode.space.normalize(found.state), middle, rtol=0.0, atol=1e-11)
    size = 1e-5
    columns = [
        (mode.space.difference(middle, end(e)) - mode.space.difference(middle, end(-e)))
        / (2.0 * size)
        for e in size * np.eye(mode.space.ndx)
    ]
    # Rounding over the size, 1e-11, and its square times third derivatives.
    scale = max(1.0, float(np.abs(found.matrix).max()))
    np.testing.assert_allclose(found.matrix, np.transpose(columns), rtol=0.0, atol=1e-7 * scale)


def test_along_an_arc_it_is_that_of_collocation():
    system = public.system("solo12")
    run = hc.simulate(system, None, public.start("solo12", 0.02, 0.05, 0.03), (0.0, 0.075))
    arcs = [arc for arc in run.arcs if arc.end - arc.start > 1e-3][:2]
    assert len({arc.mode for arc in arcs}) == 2  # in flight, and with a foot on the ground
    for arc in arcs:
        mode, unit = system.mode(arc.mode), np.eye(arc.space.ndx)
        assert isinstance(mode, KernelContactMode)
        found = compute_transition_by_steps(mode, arc, rtol=1e-9, atol=1e-9)
        other = propagate_perturbations(mode, arc, unit, rtol=1e-9, atol=1e-9).end
        # Both have 1e-9 of each entry on each step, and follow a record of 1e-9.
        np.testing.assert_allclose(found, other, rtol=0.0, atol=1e-7 * np.abs(other).max())


def test_there_is_none_with_noise_or_beyond_the_limits():
    mode, x, u = make_case(("slip", "open"))
    ahead = StepRequest(0.0, x, LENGTH, 1e-9, 1e-9)
    none = Diffusion(np.zeros((mode.space.ndx,) * 2), np.zeros((mode.nu,) * 2))
    assert mode.transition(ahead, u, none) is None
    limit = mode.calc(0.0, x, u).pace
    long = ahead._replace(h=1.1 * min(limit.longest_step, limit.relaxation))
    assert mode.transition(long, u) is None
    # Of a contact that nearly stands still friction is stiff.
    q, v = np.split(x, [mode.dynamics.robot.nq])
    slow = np.concatenate((q, 1e-3 * STANDSTILL * v))
    assert mode.transition(ahead._replace(x=slow), u) is None


def test_a_matrix_that_is_not_finite_is_an_error(monkeypatch):
    """Also where the state is: the error is not that of the state alone."""
    mode, x, u = make_case(("open", "open"))
    ahead = StepRequest(0.0, x, LENGTH, 1e-9, 1e-9)

    def differentiate(point):
        found = linearize_field_at(point)
        return found._replace(state=np.full_like(found.state, np.nan))

    monkeypatch.setattr(variational_step, "linearize_field_at", differentiate)
    assert not mode.transition(ahead, u).error < 1.0


def test_of_a_field_with_time_it_is_the_exponential():
    """x' = t x has the derivative exp((t_1^2 - t_0^2) / 2) by its start."""
    mode = hc.Mode(
        "free",
        hc.VectorSpace(1),
        lambda t, x, u: t * x,
        jacobian=lambda t, x, u: FieldJacobian(np.array([[t]]), np.zeros((1, 0))),
    )
    start, length = 0.5, 0.1
    found = variational_step.take_variational_step(
        mode, StepRequest(start, np.ones(1), length, 1e-9, 1e-9), np.zeros(0)
    )
    grown = np.exp(0.5 * ((start + length) ** 2 - start**2))
    # Of eighth order: 0.1 to the ninth, times derivatives of some units over 9!.
    np.testing.assert_allclose(found.matrix, [[grown]], rtol=1e-13)
    np.testing.assert_allclose(found.state, [grown], rtol=1e-13)
