"""The constant fields of [Bder] 3.1, whose flow is known by hand."""

from itertools import product

import numpy as np
import pytest
from hybrid.samples import ROUNDING
from sensitivity import constant_pieces

import hybridctl as hc

NO_INPUT = np.zeros(0)


def random_delta(n, seed):
    rng = np.random.default_rng(seed)
    table = {b: rng.uniform(-0.6, 0.6, n) for b in product((-1, 1), repeat=n)}
    return table.__getitem__


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_all_guards_fire_together_half_a_second_after_the_start(n):
    delta = random_delta(n, n)
    before, after = (-1,) * n, (1,) * n
    x0 = constant_pieces.before_corner(delta, n)
    traj = hc.simulate(constant_pieces.system(delta, n), before, x0, (0.0, 1.0))
    (event,) = traj.events
    assert event.guards == tuple(f"x{j + 1} rises" for j in range(n))
    assert event.time == pytest.approx(0.5, abs=ROUNDING)
    assert (event.mode_before, event.mode_after) == (before, after)
    np.testing.assert_allclose(event.state_before, 0.0, atol=ROUNDING)
    np.testing.assert_allclose(traj.final_state, 0.5 * (1.0 + delta(after)), atol=ROUNDING)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("shrink", [-0.7, 0.3])
def test_perturbations_shrink_as_the_closed_form_says(n, shrink):
    """[Bder] (12), exact for perturbations of any size that still pass within the second."""
    delta = lambda b: -shrink * np.array(b)  # noqa: E731
    system, x0 = constant_pieces.system(delta, n), constant_pieces.before_corner(delta, n)
    dx = np.random.default_rng(n).uniform(-0.1, 0.1, n)
    ends = [hc.simulate(system, (-1,) * n, x, (0.0, 1.0)).final_state for x in (x0, x0 + dx)]
    np.testing.assert_allclose(ends[1] - ends[0], (1 - shrink) / (1 + shrink) * dx, atol=1e-12)


@pytest.mark.parametrize("name", constant_pieces.FIGURE_3)
def test_both_orders_are_taken_in_the_plane(name):
    delta = constant_pieces.FIGURE_3[name].__getitem__
    system, x0 = constant_pieces.system(delta, 2), constant_pieces.before_corner(delta, 2)
    for dx, passed in (((0.1, 0.0), (1, -1)), ((0.0, 0.1), (-1, 1))):
        traj = hc.simulate(system, (-1, -1), x0 + dx, (0.0, 1.0))
        assert [arc.mode for arc in traj.arcs] == [(-1, -1), passed, (1, 1)]
        # each piece is straight: 1 + Delta times the time in it
        times = np.diff([0.0, *(e.time for e in traj.events), 1.0])
        moved = sum(t * (1.0 + np.array(delta(a.mode))) for t, a in zip(
            times, traj.arcs, strict=True))  # fmt: skip
        np.testing.assert_allclose(traj.final_state, x0 + dx + moved, atol=1e-13)


@pytest.mark.parametrize("name", constant_pieces.FIGURE_3)
def test_the_map_past_the_corner_is_linear_in_one_field_of_the_figure_only(name):
    delta = constant_pieces.FIGURE_3[name].__getitem__
    system, x0 = constant_pieces.system(delta, 2), constant_pieces.before_corner(delta, 2)
    dx = np.array([0.1, 0.0])
    less, exact, more = (
        hc.simulate(system, (-1, -1), x, (0.0, 1.0)).final_state for x in (x0 - dx, x0, x0 + dx)
    )
    bend = np.abs(more + less - 2 * exact).max()
    assert bend < 1e-13 if name == "linear" else bend > 0.01


def test_constant_fields_have_derivatives():
    system = constant_pieces.system(random_delta(3, 7), 3)
    x = np.array([-0.1, 0.2, -0.3])
    for key in product((-1, 1), repeat=3):
        guards = system.outgoing(key).guards
        low = [j for j in range(3) if key[j] < 0]
        np.testing.assert_array_equal(guards.values(0.0, x, NO_INPUT), -x[low])
        np.testing.assert_array_equal(guards.jacobian(0.0, x, NO_INPUT).state, -np.eye(3)[low])
        derivative = system.mode(key).jacobian(0.0, x, NO_INPUT)
        assert derivative.state.shape == (3, 3)
        assert derivative.input.shape == (3, 0)
        assert not derivative.state.any()
