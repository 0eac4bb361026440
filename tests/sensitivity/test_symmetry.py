"""Orbits that close up to a symmetry: glides and reflections with closed forms."""

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.lqr.periodic import periodic_lqr
from hybridctl.orbits.return_map import PoincareSection, periodic_orbit
from hybridctl.sensitivity.floquet import floquet_multipliers, monodromy
from hybridctl.sensitivity.symmetry import Symmetry

TIGHT = {"rtol": 1e-12, "atol": 1e-12}
ALONG = {"translation": [1.0, 0.0]}


def drift(rate: float = 0.7):
    """(p, y): p drifts with 1 + y, y forgets at `rate` and is driven with period 1."""
    x, t = ca.SX.sym("x", 2), ca.SX.sym("t")
    field = [1.0 + x[1], -rate * x[1] + ca.cos(2.0 * np.pi * t)]
    return hc.symbolic.hybrid_system([hc.symbolic.SymbolicMode("go", x, field, time=t)], [])


def test_an_orbit_that_moves_on_closes_along_its_free_direction():
    symmetry = Symmetry(np.eye(2), free=ALONG)
    orbit = periodic_orbit(drift(), "go", [3.0, 0.5], 1.0, symmetry=symmetry, **TIGHT)
    rate, w = 0.7, 2.0 * np.pi
    assert orbit.state == pytest.approx([3.0, rate / (rate**2 + w**2)], abs=1e-9)
    assert orbit.trajectory.final_state[0] == pytest.approx(4.0, abs=1e-9)
    found = orbit.multipliers
    assert found.trivial == {0: "translation"}
    assert found.values == pytest.approx([1.0, np.exp(-0.7)], abs=1e-9)
    assert found.others == pytest.approx([np.exp(-0.7)], abs=1e-9)


def test_without_its_free_direction_it_does_not_close():
    run = hc.simulate(drift(), "go", [3.0, 0.0], (0.0, 1.0), **TIGHT)
    lin = hc.linearize(drift(), run)
    with pytest.raises(InputError, match="must be periodic"):
        monodromy(lin, symmetry=Symmetry(np.eye(2)))


def test_a_direction_that_motions_depend_on_is_not_free():
    orbit = periodic_orbit(
        drift(), "go", [3.0, 0.5], 1.0, symmetry=Symmetry(np.eye(2), free=ALONG), **TIGHT
    )
    wrong = Symmetry(np.eye(2), free=ALONG | {"height": [0.0, 1.0]})
    with pytest.raises(InputError, match="'height'"):
        floquet_multipliers(orbit.linearization, symmetry=wrong)


def pendulum():
    """(p, y, y'): y'' = -sin y, or its image -y, while p drifts."""
    x, u = ca.SX.sym("x", 3), ca.SX.sym("u")
    return hc.symbolic.hybrid_system(
        [hc.symbolic.SymbolicMode("go", x, [0.3, x[2], -ca.sin(x[1]) + u], input=u)], []
    )


MIRROR = Symmetry(np.diag([1.0, -1.0, -1.0]), -np.eye(1), free={"translation": [1.0, 0.0, 0.0]})


def test_half_a_swing_closes_up_to_its_reflection():
    """From the bottom to the bottom: the mirrored section is the same line, crossed backwards."""
    section = PoincareSection("go", [0.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    half = periodic_orbit(
        pendulum(), "go", [0.0, 0.0, 1.2], section, horizon=5.0, symmetry=MIRROR, **TIGHT
    )
    assert half.state[2] == pytest.approx(1.2), "swings come in families: the nearest is the start"
    whole = hc.simulate(pendulum(), "go", half.state, (0.0, 2.0 * half.period), **TIGHT)
    assert whole.final_state[1:] == pytest.approx(half.state[1:], abs=1e-9)
    both = Symmetry(np.eye(3), free=MIRROR.free)
    squares = monodromy(hc.linearize(pendulum(), whole), symmetry=both)
    once = monodromy(half.linearization, symmetry=MIRROR)
    np.testing.assert_allclose(once @ once, squares, atol=1e-7)


@pytest.fixture(scope="module")
def swing():
    half = periodic_orbit(
        pendulum(),
        "go",
        [0.0, 0.0, 1.2],
        PoincareSection("go", [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
        horizon=5.0,
        symmetry=MIRROR,
        **TIGHT,
    )
    return half


WEIGHTS = np.diag([0.0, 3.0, 1.0]), np.array([[0.5]])


def test_feedback_on_half_an_orbit_is_that_on_the_whole_one(swing):
    half = periodic_lqr(swing.linearization, *WEIGHTS, symmetry=MIRROR)
    run = hc.simulate(pendulum(), "go", swing.state, (0.0, 2.0 * swing.period), **TIGHT)
    gliding = Symmetry(np.eye(3), free=MIRROR.free)
    whole = periodic_lqr(hc.linearize(pendulum(), run), *WEIGHTS, symmetry=gliding)
    v = whole.period.values[0].start
    np.testing.assert_allclose(half.period.values[0].start, v, atol=1e-6 * np.abs(v).max())
    squares = np.sort_complex(half.multipliers.others**2)
    np.testing.assert_allclose(np.sort_complex(whole.multipliers.others), squares, atol=1e-6)

    orbit, gains = half.repeated(2)
    assert len(orbit.arcs) == 1
    for t in np.linspace(0.0, run.end, 23):
        np.testing.assert_allclose(orbit(t), run(t), atol=1e-8)
        expected = whole.period.gains.arcs[0](t)
        np.testing.assert_allclose(gains.arcs[0](t), expected, atol=1e-4 * np.abs(v).max())


def test_a_direction_without_cost_is_left_alone(swing):
    found = periodic_lqr(swing.linearization, *WEIGHTS, symmetry=MIRROR)
    v = found.period.values[0].start
    assert np.abs(v[0]).max() < 1e-9 * np.abs(v).max()
    assert np.abs(found.period.gains.arcs[0].values[:, 0, 0]).max() < 1e-9
    assert "translation" in found.multipliers.trivial.values()
    assert found.multipliers.is_stable


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"state": np.ones((2, 3))}, "square"),
        ({"state": np.zeros((2, 2))}, "regular"),
        ({"state": np.eye(2), "input": np.zeros((1, 1))}, "input must be regular"),
        ({"state": np.eye(2), "free": {"a": [1.0, 0.0], "b": [2.0, 0.0]}}, "independent"),
        ({"state": np.eye(2), "free": {"a": [1.0]}}, r"free\['a'\]"),
        ({"state": np.eye(2), "mode": {}}, "mode must be a function"),
    ],
)
def test_what_is_no_symmetry_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        Symmetry(**given)


def test_a_symmetry_of_another_size_is_refused():
    with pytest.raises(InputError, match=r"\(2, 2\)"):
        periodic_orbit(drift(), "go", [0.0, 0.0], 1.0, symmetry=Symmetry(np.eye(3)))
