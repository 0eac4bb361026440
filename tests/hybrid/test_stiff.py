"""Stiff stretches: implicit steps with the Jacobian of the mode, chosen by time constants."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.hybrid.mode import FieldJacobian, Pace

RATE = 1e6


class Counted:
    """x' = -RATE (x - cos t) - sin t, which tends to cos t, beside y' = 1."""

    def __init__(self):
        self.fields, self.derivatives = 0, 0

    def field(self, t, x, u):
        self.fields += 1
        return np.array([-RATE * (x[0] - np.cos(t)) - np.sin(t), 1.0])

    def jacobian(self, t, x, u):
        self.derivatives += 1
        return FieldJacobian(np.array([[-RATE, 0.0], [0.0, 0.0]]), np.zeros((2, 0)))

    def system(self, known=True):
        pace = lambda t, x, u: Pace(relaxation=1.0 / RATE)  # noqa: E731
        mode = hc.Mode(
            "m", hc.VectorSpace(2), self.field, jacobian=self.jacobian if known else None, pace=pace
        )
        return hc.HybridSystem([mode], [])


@pytest.mark.parametrize("span", [1e-2, 1.0, 100.0])
def test_a_fast_decay_takes_implicit_steps_for_any_time_to_go(span):
    counted = Counted()
    run = hc.simulate(counted.system(), "m", [1.0, 0.0], (0.0, span), rtol=1e-8, atol=1e-8)
    # explicit steps would be of some 3 / RATE
    assert len(run.arcs[0].breaks) < 60 + 40 * span
    np.testing.assert_allclose(run.final_state, [np.cos(span), span], rtol=0.0, atol=1e-6)
    assert counted.derivatives > 0


@pytest.mark.parametrize("method", ["Radau", "BDF"])
def test_a_held_input_leaves_nothing_to_be_differenced(method):
    """Differences cost as many fields as there are coordinates, two, for each Jacobian."""
    fields = []
    for known in (True, False):
        counted = Counted()
        run = hc.simulate(counted.system(known), "m", [1.0, 0.0], (0.0, 1.0), method=method)
        fields.append(counted.fields)
        assert (counted.derivatives > 0) == known
        # errors of 1e-9 a step, of which there are some hundred
        assert run.final_state[0] == pytest.approx(np.cos(1.0), abs=1e-7)
    assert fields[0] <= fields[1] - 2


@pytest.mark.parametrize("known", [True, False])
def test_feedback_that_is_stiff_is_in_the_matrix_of_implicit_steps(known):
    """x' = u with u = -RATE (x - cos t) - sin t: Newton's iteration converges in a step or two."""
    law = lambda t, x: np.array([-RATE * (x[0] - np.cos(t)) - np.sin(t)])  # noqa: E731
    mode = hc.Mode(
        "m",
        hc.VectorSpace(1),
        lambda t, x, u: u,
        1,
        lambda t, x, u: FieldJacobian(np.zeros((1, 1)), np.eye(1)),
    )
    policy = law
    if known:
        slope, rate = np.array([[-RATE]]), lambda t: np.array([-RATE * np.sin(t) - np.cos(t)])
        policy = DifferentiableLaw(law, lambda t, x: slope, lambda t, x: rate(t))
    system = hc.HybridSystem([mode], [])
    # a wrong matrix leaves steps of some 1 / RATE
    options = {"method": "Radau", "rtol": 1e-6, "atol": 1e-6, "max_steps": 200}
    run = hc.simulate(system, "m", [1.0], (0.0, 1.0), policy, **options)
    assert run.final_state[0] == pytest.approx(np.cos(1.0), abs=1e-5)
