"""What modes hold: checked at the start and after resets, kept by projection; scales of guards."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import ConstraintViolatedError, IntegrationError, SystemDefinitionError
from hybridctl.hybrid.mode import GuardSet, Held, Outgoing

TOLERANCE = 1e-7


def circle(project=True, guards=()):
    """A point (x, y, vx, vy) on the unit circle, uniform motion: x'' = -|v|^2 x."""
    held = Held(
        ("radius", "radial speed"),
        lambda s: np.array([s[0] ** 2 + s[1] ** 2 - 1.0, s[0] * s[2] + s[1] * s[3]]),
        np.array([TOLERANCE, TOLERANCE]),
        ("m", "m/s"),
    )

    def onto(s):
        q = s[:2] / np.linalg.norm(s[:2])
        return np.concatenate((q, s[2:] - q * (q @ s[2:])))

    def field(t, s, u):
        return np.concatenate((s[2:], -(s[2:] @ s[2:]) * s[:2]))

    mode = hc.Mode("on", hc.VectorSpace(4), field, project=onto if project else None, held=held)
    return hc.HybridSystem([mode], list(guards))


START = np.array([1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("off", "message"),
    [
        ([1e-3, 0.0, 0.0, 0.0], "x0 is off what mode 'on' holds: radius is 0.002.* m, tolerated"),
        ([0.0, 0.0, -2e-4, 0.0], "radial speed is -0.0002 m/s"),
    ],
)
def test_a_start_off_what_its_mode_holds_is_refused_and_projection_repairs_it(off, message):
    system = circle()
    x0 = START + off
    with pytest.raises(ConstraintViolatedError, match=message) as caught:
        hc.simulate(system, "on", x0, (0.0, 1.0))
    assert "system.mode('on').project(x0)" in str(caught.value)
    run = hc.simulate(system, "on", system.mode("on").project(x0), (0.0, 1.0))
    assert run.final_mode == "on"


def test_projection_keeps_a_motion_where_it_belongs_and_its_accuracy():
    """At a rough tolerance the motion leaves the circle, unless it is put back on it."""
    span, rough = (0.0, 60.0), {"rtol": 1e-6, "atol": 1e-6}
    free = hc.simulate(circle(project=False), "on", START, span, **rough)
    kept = hc.simulate(circle(), "on", START, span, **rough)
    held = circle().mode("on").held
    for arc in kept.arcs:
        assert max(held.excess(arc(t)) for t in arc.times) <= 1.0
    assert held.excess(free.final_state) > 10.0
    # local errors of 1e-6 over some 60 steps, whose effect on the angle grows linearly, by 60 s
    exact = np.array([np.cos(60.0), np.sin(60.0), -np.sin(60.0), np.cos(60.0)])
    assert np.abs(kept.final_state - exact).max() < 60 * 60 * 1e-6
    # the record joins steps: what a projection moves is below what the mode tolerates
    (arc,) = kept.arcs
    for t in arc.breaks[1:]:
        assert np.abs(arc(np.nextafter(t, 0.0)) - arc(t)).max() < TOLERANCE


def test_a_field_that_leaves_what_its_mode_holds_is_refused():
    """Projection would stop this point where it is: silently another motion than the field's."""
    held = Held(("height",), lambda s: s[1:], np.array([TOLERANCE]), ("m",))
    mode = hc.Mode(
        "on",
        hc.VectorSpace(2),
        lambda t, s, u: np.ones(2),
        project=lambda s: np.array([s[0], 0.0]),
        held=held,
    )
    with pytest.raises(IntegrationError, match=r"leaves what its mode holds.* in mode 'on' at t ="):
        hc.simulate(hc.HybridSystem([mode], []), "on", [0.0, 0.0], (0.0, 1.0))


def test_a_reset_off_what_the_next_mode_holds_is_an_error():
    edge = hc.Transition(
        "on", hc.Guard("top", lambda t, s, u: 0.5 - s[1]), hc.Reset(lambda t, s, u: 1.001 * s), "on"
    )
    with pytest.raises(ConstraintViolatedError, match="state after the event"):
        hc.simulate(circle(guards=[edge]), "on", START, (0.0, 1.0))


def scaled(scale, unit):
    """A point that starts 2e-8 outside a wall, in a unit of which `scale` is a usual size."""
    guards = GuardSet(("wall",), lambda t, x, u: unit * x, scales=np.array([scale]))
    mode = hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: np.ones(1))
    return hc.HybridSystem(lambda key: mode, lambda key: Outgoing(guards, lambda fired: None))


def test_the_tolerance_of_a_guard_is_relative_to_its_scale():
    for unit in (1e-6, 1.0, 1e6):
        hc.simulate(scaled(3.0 * unit, unit), "m", [-2e-8], (0.0, 1.0))
        with pytest.raises(hc.errors.GuardViolatedError):
            hc.simulate(scaled(unit, unit), "m", [-2e-8], (0.0, 1.0))


@pytest.mark.parametrize("scales", [[1.0, 2.0], [0.0], [-1.0], [np.nan]])
def test_scales_are_positive_one_for_each_guard(scales):
    with pytest.raises(SystemDefinitionError, match="scales"):
        GuardSet(("wall",), lambda t, x, u: x, scales=np.array(scales))


@pytest.mark.parametrize(("off", "held"), [(0.9, True), (1.1, False), (np.nan, False)])
def test_what_is_tolerated_of_a_constraint_is_its_tolerance(off, held):
    both = Held(("a", "b"), lambda x: x, np.array([1e-8, 1e-3]), ("m", "m/s"))
    states = np.array([0.0, off * 1e-3]), np.array([-off * 1e-8, 0.0])
    for x in states:
        if held:
            both.check("x0", "m", x)
        else:
            with pytest.raises(ConstraintViolatedError, match="is off what mode 'm' holds"):
                both.check("x0", "m", x)
