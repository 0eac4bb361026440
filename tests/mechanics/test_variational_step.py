"""Steps of kernel modes with their derivative, against differences and collocation along an arc."""

import numpy as np
import pytest
from hybridctl.robots import public

import hybridctl as hc
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import Diffusion, FieldJacobian, StepRequest
from hybridctl.mechanics import ContactDynamics
from hybridctl.mechanics.kernel.extension import is_kernel_available
from hybridctl.mechanics.modes import variational_step
from hybridctl.mechanics.modes.kernel_mode import KernelContactMode
from hybridctl.mechanics.modes.tolerances import STANDSTILL
from hybridctl.mechanics.modes.variational_step import take_variational_step
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.mechanics.multibody.sweeps import JOINT_KINDS
from hybridctl.sensitivity.propagation import (
    compute_transition_by_steps,
    linearize_field_at,
    propagate_perturbations,
)
from mechanics.models import SLOPE, pair
from mechanics.random_robots import robot_of_all_kinds

pytestmark = pytest.mark.skipif(not is_kernel_available(), reason="there is no compiled kernel")
MODES = [("open", "open"), ("stick", "open"), ("slip", "open"), ("stick", "stick")]
LENGTH = 2e-4
"""Length of the steps, s: within the step-size limits of all modes here."""


AGREE = 1e-10
"""Rounding of points, 1e-16 of the largest entry times the condition of mass and Delassus matrix,
which is 1e6 at most where the kernel covers a point."""


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


def agree(mode, ahead, u):
    """Compare a step with that of the Python loop over the same points; whether there is one."""
    found, expected = mode.transition(ahead, u), take_variational_step(mode, ahead, u)
    if found is None:
        assert expected is None
        return False
    for own, other in ((found.state, expected.state), (found.matrix, expected.matrix)):
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(own, other, rtol=0.0, atol=AGREE * scale)
    # The estimates are differences of slopes, which may cancel to rounding.
    assert found.error == pytest.approx(expected.error, rel=1e-3, abs=1e-3)
    return True


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("solo12", ("open",) * 4),
        ("solo12", ("stick", "open", "slip", "stick")),
        pytest.param("icub", ("stick",) * 8, marks=pytest.mark.slow),
        pytest.param("icub", ("slip",) * 8, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_step_of_the_loop_in_python(name, modes):
    """Also of redundant contacts, on eight corners of soles."""
    system, start, rng = public.system(name), public.start(name, 0.0), np.random.default_rng(4)
    mode, robot, covered = system.mode(modes), system.robot, 0
    for _ in range(8):
        q = robot.integrate(start[: robot.nq], 0.02 * rng.normal(size=robot.nv))
        x = np.concatenate((q, 0.1 * rng.normal(size=robot.nv)))
        x = x if mode.project is None else mode.project(x)
        u = rng.normal(size=robot.nu)
        ahead = StepRequest(0.0, x, 1e-4, 1e-9, 1e-9)
        # Forces of sliding corners that are at the border of a cone are Python's.
        is_covered = mode.kernel.take_variational_step(ahead, u, np.inf) is not NotImplemented
        covered += is_covered and agree(mode, ahead, u)
    assert covered


def test_it_is_the_step_of_the_loop_for_joints_of_all_kinds():
    rng = np.random.default_rng(8)
    robot, contacts = robot_of_all_kinds(rng)
    dynamics = ContactDynamics(robot, contacts)
    mode = KernelContactMode(dynamics, ("open",), RobotStateSpace(robot))
    assert sorted(dynamics.terms.bodies.kinds[1:]) == list(range(len(JOINT_KINDS)))
    for _ in range(5):
        q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
        x = np.concatenate((q, rng.normal(size=robot.nv)))
        assert agree(mode, StepRequest(0.0, x, LENGTH, 1e-9, 1e-9), np.zeros(0))


def make_quadruped(modes):
    """Return a mode of solo12, whose bodies the kernel has, and a state and an input."""
    x, mode = public.start("solo12", 0.0), public.system("solo12").mode(modes)
    return mode, x if mode.project is None else mode.project(x), np.zeros(mode.nu)


def test_a_step_with_a_point_that_is_left_to_python_is_the_loop(monkeypatch):
    mode, x, u = make_quadruped(("stick",) * 4)
    ahead = StepRequest(0.0, x, LENGTH, 1e-9, 1e-9)
    expected = mode.transition(ahead, u)
    monkeypatch.setattr(mode.kernel, "take_variational_step", lambda *_: NotImplemented)
    found = mode.transition(ahead, u)
    np.testing.assert_allclose(found.matrix, expected.matrix, rtol=0.0, atol=AGREE)
    np.testing.assert_allclose(found.state, expected.state, rtol=0.0, atol=AGREE)


def test_a_step_that_runs_away_has_no_error_below_one():
    mode, x, u = make_quadruped(("open",) * 4)
    ahead = StepRequest(0.0, x, LENGTH, 1e-9, 1e-9)
    for bad in (ahead._replace(x=np.full_like(x, np.nan)), ahead._replace(h=np.inf)):
        assert not mode.transition(bad, u).error < 1.0


def test_a_matrix_that_is_not_finite_is_an_error(monkeypatch):
    """Also where the state is: the error is not that of the state alone."""
    mode, x, u = make_case(("open", "open"))
    ahead = StepRequest(0.0, x, LENGTH, 1e-9, 1e-9)

    def differentiate(point):
        found = linearize_field_at(point)
        return found._replace(state=np.full_like(found.state, np.nan))

    monkeypatch.setattr(variational_step, "linearize_field_at", differentiate)
    assert not take_variational_step(mode, ahead, u).error < 1.0


def test_of_a_field_with_time_it_is_the_exponential():
    """x' = t x has the derivative exp((t_1^2 - t_0^2) / 2) by its start."""
    mode = hc.Mode(
        "free",
        hc.VectorSpace(1),
        lambda t, x, u: t * x,
        jacobian=lambda t, x, u: FieldJacobian(np.array([[t]]), np.zeros((1, 0))),
    )
    start, length = 0.5, 0.1
    found = take_variational_step(
        mode, StepRequest(start, np.ones(1), length, 1e-9, 1e-9), np.zeros(0)
    )
    grown = np.exp(0.5 * ((start + length) ** 2 - start**2))
    # Of eighth order: 0.1 to the ninth, times derivatives of some units over 9!.
    np.testing.assert_allclose(found.matrix, [[grown]], rtol=1e-13)
    np.testing.assert_allclose(found.state, [grown], rtol=1e-13)
