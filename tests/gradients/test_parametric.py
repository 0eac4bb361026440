"""Gradients by named parameters of systems of expressions, against closed forms."""

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.symbolic import SymbolicMode, SymbolicTransition


def bouncing_ball():
    """A ball under gravity g that rebounds with restitution e; c stands for nothing."""
    y, v, g, e, c = (ca.SX.sym(name) for name in ("y", "v", "g", "e", "c"))
    air = SymbolicMode("air", state=[y, v], field=[v, -g])
    bounce = SymbolicTransition("air", "floor", y, "air", [y, -e * v])
    values = {"g": (g, 9.0), "c": (c, 1.0), "e": (e, 0.8)}
    return hc.symbolic.parametric_system([air], [bounce], values)[0]


@pytest.mark.parametrize("values", [None, [0.5, 4.0]])
def test_parameters_of_expressions_are_named(values):
    """After one bounce at t1 it is at y = e g t1 s - g s^2 / 2, s = T - t1."""
    end, height = 1.0, 0.9
    flow = hc.differentiable(bouncing_ball(), "air", (0.0, end), parameters=("e", "g"))
    np.testing.assert_array_equal(flow.nominal_parameters, [0.8, 9.0])
    e, g = flow.nominal_parameters if values is None else values
    tape = flow.run([height, 0.0], None, values)
    assert len(tape.trajectory.events) == 1
    hit = np.sqrt(2.0 * height / g)
    left, by_g = end - hit, -hit / (2.0 * g)
    wanted = [
        g * hit * left,
        e * (hit * left + g * by_g * (left - hit)) - left**2 / 2.0 + g * left * by_g,
    ]
    assert tape.states[0, 0] == pytest.approx(e * g * hit * left - g * left**2 / 2.0, rel=1e-9)
    found = tape.vjp([[1.0, 0.0]]).parameters
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_names_that_are_none():
    system = bouncing_ball()
    with pytest.raises(UnknownNameError, match="'gravity'"):
        hc.differentiable(system, "air", (0.0, 1.0), parameters=("gravity",))
    with pytest.raises(InputError, match="different"):
        hc.differentiable(system, "air", (0.0, 1.0), parameters=("g", "g"))
