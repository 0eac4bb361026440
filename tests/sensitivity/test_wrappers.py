"""What wraps a system keeps what its modes hold, and the scales of its guards."""

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import ConstraintViolatedError, GuardViolatedError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.mode_consistency import reconcile
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.hybrid.mode import (
    Edge,
    FieldJacobian,
    GuardJacobian,
    GuardSet,
    Held,
    Outgoing,
    ResetJacobian,
)
from hybridctl.sensitivity.parameter_models import ParameterDerivatives, fix_inputs_as_parameters
from hybridctl.sensitivity.parameters import augment_with_guard_offsets, augment_with_parameters

TOLERANCE = 1e-7
ON_CIRCLE = np.array([1.0, 0.0, 0.0, 1.0])


def ring(scale=1.0):
    """A point (x, y, vx, vy) on the unit circle, of speed |v|, and two guards that nothing meets.

    Its two inputs do nothing; the guards are y + 2 and x + 2, of this scale.
    """
    held = Held(
        ("radius", "radial speed"),
        lambda s: np.array([s[0] ** 2 + s[1] ** 2 - 1.0, s[0] * s[2] + s[1] * s[3]]),
        np.array([TOLERANCE, TOLERANCE]),
        ("m", "m/s"),
        jacobian=lambda s: np.array([[2.0 * s[0], 2.0 * s[1], 0.0, 0.0], [s[2], s[3], s[0], s[1]]]),
    )

    def onto(s):
        q = s[:2] / np.linalg.norm(s[:2])
        return np.concatenate((q, s[2:] - q * (q @ s[2:])))

    def field(t, s, u):
        return np.concatenate((s[2:], -(s[2:] @ s[2:]) * s[:2]))

    def slope(t, s, u):
        d = np.zeros((4, 4))
        d[:2, 2:] = np.eye(2)
        d[2:, :2] = -(s[2:] @ s[2:]) * np.eye(2)
        d[2:, 2:] = -2.0 * np.outer(s[:2], s[2:])
        return FieldJacobian(d, np.zeros((4, 2)))

    rows = GuardJacobian(np.zeros(2), np.eye(4)[[1, 0]], np.zeros((2, 2)))
    guards = GuardSet(
        ("floor", "wall"),
        lambda t, s, u: s[[1, 0]] + 2.0,
        lambda t, s, u: rows,
        np.full(2, scale),
    )
    mode = hc.Mode("on", hc.VectorSpace(4), field, 2, slope, project=onto, held=held)
    return hc.HybridSystem(lambda key: mode, lambda key: Outgoing(guards, lambda fired: None))


def add_parameters(system, run):
    """The system in (x, p), of two parameters on which nothing depends."""
    none = ParameterDerivatives(
        ("a", "b"), lambda *at: np.zeros((4, 2)), lambda *at: np.zeros((2, 2)), None
    )
    return augment_with_parameters(system, run, none)


def make_touch():
    """An event of the first guard of `ring`."""
    u = np.zeros(2)
    event = (0, 0.0, "on", "on", ("floor",), ON_CIRCLE, ON_CIRCLE, u, u, u, u, None)
    return hc.hybrid.trajectory.Event(*event)


WRAPPERS = {
    "held inputs": (lambda s: fix_inputs_as_parameters(s, {"a": 0.0})[0], 0),
    "parameters": (lambda s: add_parameters(s, hc.simulate(s, "on", ON_CIRCLE, (0.0, 0.1)))[0], 2),
    "offsets": (lambda s: augment_with_guard_offsets(s, make_touch())[0], 1),
    "fewer guards": (lambda s: NoisySystem(s, None).without_guards("on", ["wall"]), 0),
}


@pytest.fixture(params=list(WRAPPERS))
def wrapper(request):
    wrap, n = WRAPPERS[request.param]
    return wrap, lambda x: np.append(x, np.zeros(n))


def test_every_wrapper_keeps_a_motion_on_what_its_mode_holds(wrapper):
    """At a rough tolerance a motion leaves the circle by far, unless projection brings it back."""
    wrap, lengthen = wrapper
    rough = {"rtol": 1e-6, "atol": 1e-6}
    run = hc.simulate(wrap(ring()), "on", lengthen(ON_CIRCLE), (0.0, 60.0), **rough)
    assert abs(run.final_state[:2] @ run.final_state[:2] - 1.0) <= TOLERANCE
    # local errors of 1e-6 over some 60 steps, whose effect on the angle grows linearly, by 60 s
    exact = np.array([np.cos(60.0), np.sin(60.0), -np.sin(60.0), np.cos(60.0)])
    assert np.abs(run.final_state[:4] - exact).max() < 60 * 60 * 1e-6
    assert not run.final_state[4:].any()


def test_offsets_of_guards_leave_a_mode_without_guards():
    """Its guards have derivatives (0, nx + 1), as wide as the state with the offset."""
    x = ca.SX.sym("x", 2)
    modes = [hc.symbolic.SymbolicMode(name, x, [x[1], 0.0]) for name in ("air", "ground")]
    landing = hc.symbolic.SymbolicTransition("air", "floor", x[0], "ground")
    system = hc.symbolic.hybrid_system(modes, [landing])
    run = hc.simulate(system, "air", [1.0, -2.0], (0.0, 1.0))
    offset = augment_with_guard_offsets(system, run.guard_events[0])[0]
    rows = offset.outgoing("ground").guards.jacobian(0.0, np.zeros(3), np.zeros(0))
    assert (rows.time.shape, rows.state.shape, rows.input.shape) == ((0,), (0, 3), (0, 0))


def test_every_wrapper_refuses_a_start_off_what_its_mode_holds_and_repairs_it(wrapper):
    wrap, lengthen = wrapper
    system, off = wrap(ring()), lengthen(ON_CIRCLE * 1.001)
    with pytest.raises(ConstraintViolatedError, match=r"radius is 0\.002"):
        hc.simulate(system, "on", off, (0.0, 0.1))
    put = system.mode("on").project(off)
    np.testing.assert_allclose(put, lengthen(ON_CIRCLE * [1.0, 1.0, 1.0, 1.001]), atol=1e-12)
    hc.simulate(system, "on", put, (0.0, 0.1))


def test_what_is_held_is_held_for_multipliers_of_orbits_with_parameters():
    """Of six directions of (x, p) the two residuals say nothing about stability, and the flow."""
    run = hc.simulate(ring(), "on", ON_CIRCLE, (0.0, 2.0 * np.pi), rtol=1e-10, atol=1e-10)
    found = hc.linearize(*add_parameters(ring(), run)).floquet_multipliers()
    assert sorted(found.trivial.values()) == ["flow", "held", "held"]
    assert len(found.others) == 3


def test_every_wrapper_judges_guards_by_their_scale(wrapper):
    """2e-8 outside is inside for a guard of scale 3, not for one of scale 1: 1e-8 of each."""
    wrap, lengthen = wrapper
    low = lengthen(np.array([0.0, -2.0 - 2e-8, 0.0, 0.0]))
    for scale in (3.0, 1.0):
        system = wrap(remove_constraints(ring(scale)))
        if scale == 3.0:
            hc.simulate(system, "on", low, (0.0, 0.01))
        else:
            with pytest.raises(GuardViolatedError, match="floor"):
                hc.simulate(system, "on", low, (0.0, 0.01))


def remove_constraints(system):
    """The same without constraints: it may be anywhere."""
    mode = system.mode("on")
    free = hc.Mode("on", mode.space, mode.field, mode.nu, mode.jacobian)
    return hc.HybridSystem(lambda key: free, system.outgoing)


def make_falling_force(scale):
    """A force x that falls as x' = -1, of this scale, and what follows where it is gone."""

    def rate(t, x, u):
        return np.array([-1.0])

    def flat(t, x, u):
        return FieldJacobian(np.zeros((1, 1)), np.zeros((1, 0)))

    guards = GuardSet(
        ("force",),
        lambda t, x, u: x,
        lambda t, x, u: GuardJacobian(np.zeros(1), np.eye(1), np.zeros((1, 0))),
        np.array([scale]),
    )
    none = ResetJacobian(np.zeros(1), np.eye(1), np.zeros((1, 0)))
    edge = Edge(hc.Reset(lambda t, x, u: x, lambda t, x, u: none), "open")
    empty = GuardSet((), lambda t, x, u: np.zeros(0))
    ways = {
        "closed": Outgoing(guards, lambda fired: edge),
        "open": Outgoing(empty, lambda fired: None),
    }
    return hc.HybridSystem(
        lambda key: hc.Mode(key, hc.VectorSpace(1), rate, 0, flat), ways.__getitem__
    )


def test_a_filter_judges_guards_by_their_scale_as_a_simulation_does():
    """2e-8 outside is no contradiction to correct for a guard of scale 3; for one of 1 it fires."""
    e = Estimate("closed", 0.0, np.array([-2e-8]), np.array([[1e-4]]))
    kept, fired = (
        reconcile(model, e, model.law("closed", None)).estimate
        for model in (
            NoisySystem(make_falling_force(3.0), None),
            NoisySystem(make_falling_force(1.0), None),
        )
    )
    assert kept is e
    assert fired.mode == "open"
