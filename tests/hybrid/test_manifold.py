"""A state on the unit circle: two coordinates, one tangent direction."""

from dataclasses import dataclass

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import AmbiguousEventError, InputError
from hybridctl.hybrid.flow import METHODS
from hybridctl.hybrid.run_check import check_system


@dataclass(frozen=True)
class Circle:
    """Directions (cos a, sin a); the perturbation is the change of the angle a."""

    nx: int = 2
    ndx: int = 1

    def integrate(self, x, dx):
        c, s = np.cos(dx[0]), np.sin(dx[0])
        return np.array([c * x[0] - s * x[1], s * x[0] + c * x[1]])

    def difference(self, x0, x1):
        return np.array([np.arctan2(x0[0] * x1[1] - x0[1] * x1[0], x0 @ x1)])

    def rate(self, x, dx):
        return dx[0] * np.array([-x[1], x[0]])

    def transport(self, dx):
        return np.zeros((1, 1))

    def normalize(self, x):
        return x / np.linalg.norm(x)

    def check(self, name, x):
        if abs(np.linalg.norm(x) - 1.0) > 1e-9:
            raise InputError(f"{name} must be a direction, but its length is {np.linalg.norm(x)}")


CIRCLE = Circle()


def turn(angle):
    return np.array([np.cos(angle), np.sin(angle)])


def wheel():
    """A wheel that turns at rate cos t, and is set back by a quarter where it reaches 0.8 rad."""
    stop = hc.Guard("stop", lambda t, x, u: CIRCLE.difference(x, turn(0.8))[0])
    back = hc.Reset(lambda t, x, u: CIRCLE.integrate(x, [-np.pi / 2]))
    field = lambda t, x, u: np.array([np.cos(t)])  # noqa: E731
    return hc.HybridSystem(
        [hc.Mode("turn", CIRCLE, field)], [hc.Transition("turn", stop, back, "turn")]
    )


@pytest.mark.parametrize("method", list(METHODS))
def test_the_norm_is_kept_and_the_angle_is_the_closed_form(method):
    traj = hc.simulate(wheel(), "turn", [1.0, 0.0], (0.0, 3.0), method=method, rtol=1e-8, atol=1e-8)
    (event,) = traj.events
    # tolerance 1e-8 per step over up to 300 steps
    assert event.time == pytest.approx(np.arcsin(0.8), abs=3e-6)
    for t in np.linspace(0.0, 3.0, 61):
        x = traj(t)
        assert abs(x @ x - 1.0) < 1e-14  # one normalisation
        angle = np.sin(t) - (np.pi / 2 if t >= event.time else 0.0)
        assert abs(CIRCLE.difference(turn(angle), x)[0]) < 3e-6


def test_states_have_nx_coordinates_and_fields_ndx():
    traj = hc.simulate(wheel(), "turn", [1.0, 0.0], (0.0, 1.0))
    assert traj.arcs[0](np.linspace(0.0, 0.5, 5)).shape == (5, 2)
    assert traj.events[0].state_after.shape == (2,)


def test_a_start_that_is_no_point_of_the_space_is_an_error():
    with pytest.raises(InputError, match="x0 must be a direction"):
        hc.simulate(wheel(), "turn", [1.0, 1.0], (0.0, 1.0))


@dataclass(frozen=True)
class Turned(Circle):
    """Rotations of a plane by twice the angle of (cos a, sin a): x and -x are one of them."""

    def difference(self, x0, x1):
        sine, cosine = x0[0] * x1[1] - x0[1] * x1[0], x0 @ x1
        return np.array([np.arctan2(sine, cosine) if cosine >= 0.0 else np.arctan2(-sine, -cosine)])


def two_stops(first, then):
    """Two guards that fire together at 0.8 rad; which resets a and b are, first and then."""
    stop = {n: hc.Guard(n, lambda t, x, u: CIRCLE.difference(x, turn(0.8))[0]) for n in "ab"}
    modes = [hc.Mode(k, Turned(), lambda t, x, u: np.ones(1)) for k in ("on", "a", "b", "done")]
    last = {"a": "b", "b": "a"}
    edges = [hc.Transition("on", stop[n], first[n], n) for n in "ab"]
    edges += [hc.Transition(n, stop[last[n]], then[last[n]], "done") for n in "ab"]
    return hc.HybridSystem(modes, edges)


def turned(angle, sign=1.0):
    return hc.Reset(lambda t, x, u: sign * CIRCLE.integrate(x, [angle]))


def test_orders_that_lead_to_one_point_in_other_coordinates_agree():
    """Both turn by 0.3 rad, and b then a lands on -x where a then b lands on x."""
    ahead, back = {"a": turned(0.1), "b": turned(0.2)}, {"a": turned(0.1, -1.0), "b": turned(0.2)}
    run = hc.simulate(two_stops(ahead, back), "on", [1.0, 0.0], (0.0, 1.0))
    (event,) = run.events
    assert event.guards == ("a", "b")
    np.testing.assert_allclose(event.state_after, turn(1.1), atol=1e-8)  # of the flow until there
    check_system(two_stops(back, ahead), run)  # its first order lands on -x


def test_orders_that_lead_to_other_points_do_not_agree():
    """By 2e-6 rad, twice what counts as the same."""
    ahead, back = {"a": turned(0.1), "b": turned(0.2)}, {"a": turned(0.100002), "b": turned(0.2)}
    with pytest.raises(AmbiguousEventError, match="order matters"):
        hc.simulate(two_stops(ahead, back), "on", [1.0, 0.0], (0.0, 1.0))
