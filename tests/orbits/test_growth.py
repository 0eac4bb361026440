"""How bounds of growth change: identities, and differences of maps and orbits found anew."""

from itertools import product
from types import SimpleNamespace

import casadi as ca
import numpy as np
import pytest
from orbits.test_stability import kinked, random_map, thrown_puck
from sensitivity import puck

from hybridctl.base.errors import InputError
from hybridctl.orbits.conewise import ConewiseMap, LinearPiece
from hybridctl.orbits.growth import (
    FormSearch,
    _differentiate_form_rate,
    _find_least_rate,
    growth_derivatives,
)
from hybridctl.orbits.return_map import periodic_orbit
from hybridctl.orbits.shaping import bound_derivatives
from hybridctl.orbits.stability import balance_map, judge_map, stability
from hybridctl.symbolic import Joint, SymbolicMode, SymbolicTransition, parametric_system

MAPS = [(0, 2), (3, 2), (1, 3), (2, 3), (14, 3), (17, 3), (5, 4), (5, 3)]


@pytest.mark.parametrize(("seed", "n"), MAPS)
def test_bounds_are_homogeneous_and_do_not_see_coordinates(seed, n):
    """A_k (1 + s) grows by 1 + s more; T A_k T^-1, with its cones, as before. The programmes are
    solved to 1e-12, their roots and multipliers are good for some 1e-6."""
    map = random_map(seed, n)
    x = np.random.default_rng(seed).normal(size=(n, n))
    changes = [np.stack([p.matrix, x @ p.matrix - p.matrix @ x]) for p in map.pieces]
    found = judge_map(map)
    growth = growth_derivatives(found, changes)
    np.testing.assert_allclose(growth.derivatives[:, 0], growth.bounds, rtol=1e-6)
    np.testing.assert_allclose(growth.derivatives[:, 1], 0.0, atol=1e-4)
    low, high = growth.bounds
    assert found.growth[0] == pytest.approx(low)
    assert low * (1.0 - 1e-6) <= high <= found.growth[1] * (1.0 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "n"), MAPS[1:5])
def test_bounds_move_as_those_of_maps_beside_it(seed, n):
    """Steps of 1e-4 in all that a kink has: the matrix in front of it, its normal, its change."""
    map, rng = random_map(seed, n), np.random.default_rng(100 + seed)
    matrix, normal = map.pieces[0].matrix, map.pieces[0].cone[0]
    gap = (matrix - map.pieces[1].matrix) @ normal
    by_matrix, by_gap, by_normal = rng.normal(size=(n, n)), rng.normal(size=n), rng.normal(size=n)
    other = by_matrix - np.outer(by_gap, normal) - np.outer(gap, by_normal)
    found = growth_derivatives(judge_map(map), [by_matrix[None], other[None]])

    def bounds(step):
        turned = normal + step * by_normal
        size = np.linalg.norm(turned)
        moved = kinked(matrix + step * by_matrix, (gap + step * by_gap) * size, turned / size)
        return growth_derivatives(judge_map(moved), [np.zeros((1, n, n))] * 2).bounds

    expected = (bounds(1e-4) - bounds(-1e-4)) / 2e-4
    np.testing.assert_allclose(found.derivatives[:, 0], expected, rtol=2e-3, atol=2e-3)


def thrown(values):
    """The puck of `puck`, with expressions: how hard it is thrown anew, its thrust between the
    walls, where the corner is, and where only one of them is."""
    seed = 3
    rng = np.random.default_rng(seed)
    thrust = {key: 4.0 * rng.normal(size=2) for key in product((0, 1), repeat=2)}
    thrust[0, 0], thrust[1, 1] = np.zeros(2), np.abs(thrust[1, 1])
    gain = rng.uniform(0.2, 0.5) * rng.normal(size=(4, 4))
    p = puck.PuckParameters(thrust=thrust, throw=gain)
    x, (hard, pushed, corner, wall) = ca.SX.sym("x", 4), (ca.SX.sym(n) for n in "abcd")
    modes = []
    for key, force in thrust.items():
        fx, fy = (float(f) for f in force)
        modes.append(SymbolicMode(key, x, [x[2], x[3], fx + pushed * (sum(key) == 1), fy]))
    e, places = p.restitution, (x[0] - corner, x[1] - corner - wall)
    bounce = [ca.vertcat(x[:2], -e * x[2], x[3]), ca.vertcat(x[:3], -e * x[3])]
    ways = []
    for key in product((0, 1), repeat=2):
        for j in (j for j in range(2) if not key[j]):
            after = tuple(1 if i == j else done for i, done in enumerate(key))
            ways.append(SymbolicTransition(key, puck.WALLS[j], places[j], after, bounce[j]))
    ways.append(Joint((0, 0), list(puck.WALLS), (1, 1), ca.vertcat(x[:2], -e * x[2:])))
    moved = ca.vertcat(corner, corner, 0.0, 0.0)
    again = ca.DM(p.thrown) + moved + hard * ca.DM(gain) @ (x - ca.DM(p.caught[1]) - moved)
    catch = p.distance - x[0] - x[1] + 2.0 * corner
    ways.append(SymbolicTransition((1, 1), puck.CATCH, catch, (0, 0), again))
    names = ("hard", "pushed", "corner", "wall")
    symbols = dict(zip(names, (hard, pushed, corner, wall), strict=True))
    parameters = {name: (symbols[name], value) for name, value in values.items()}
    known = fixed(symbols, values)
    fields = [[ca.substitute(ca.vertcat(*m.field), *known)] for m in modes]
    modes = [SymbolicMode(m.key, m.state, f) for m, f in zip(modes, fields, strict=True)]
    return modes, [without(way, symbols, values) for way in ways], parameters, p.thrown


def fixed(symbols, values):
    """The symbols of no parameter, and what stands for them."""
    rest = [name for name in symbols if name not in values]
    return ca.vertcat(*(symbols[n] for n in rest)), ca.DM([float(n == "hard") for n in rest])


def without(way, symbols, values):
    put = lambda e: None if e is None else ca.substitute(e, *fixed(symbols, values))  # noqa: E731
    if isinstance(way, Joint):
        return Joint(way.source, way.names, way.target, put(way.reset))
    return SymbolicTransition(way.source, way.name, put(way.guard), way.target, put(way.reset))


def found_anew(values):
    modes, ways, parameters, start = thrown(values)
    system, _ = parametric_system(modes, ways, parameters)
    shift = values.get("corner", 0.0) * np.array([1.0, 1.0, 0.0, 0.0])
    return periodic_orbit(
        system, (0, 0), start + shift, puck.CATCH, horizon=5.0, tolerance=1e-11,
        rtol=1e-12, atol=1e-12,
    )  # fmt: skip


@pytest.mark.slow
def test_bounds_of_an_orbit_move_as_those_of_orbits_found_anew():
    """How hard the throw is, and a thrust that the orbit itself never meets; where the corner is
    changes nothing. The bounds are found to 1e-8, which differences over 1e-4 double to 1e-4."""
    values = {"hard": 1.0, "pushed": 0.0, "corner": 0.0}
    orbit = found_anew(values)
    same = periodic_orbit(*thrown_puck(3)[:3], puck.CATCH, horizon=5.0)
    assert stability(orbit).growth[0] == pytest.approx(stability(same).growth[0], rel=1e-6)
    found = bound_derivatives(*thrown(values)[:3], orbit)
    np.testing.assert_allclose(found.derivatives[:, 2], 0.0, atol=1e-5)
    for k, name in enumerate(("hard", "pushed")):
        both = []
        for step in (1e-4, -1e-4):
            beside = stability(found_anew(values | {name: values[name] + step}))
            n = len(beside.basis.T)
            both.append(growth_derivatives(beside, [np.zeros((1, n, n))] * 2).bounds)
        expected = (both[0] - both[1]) / 2e-4
        np.testing.assert_allclose(found.derivatives[:, k], expected, rtol=2e-3, atol=2e-3)
    assert np.abs(found.derivatives[:, :2]).min() > 1e-3


def test_a_parameter_that_parts_the_guards_is_refused():
    values = {"wall": 0.0}
    with pytest.raises(InputError, match="parameter 'wall' parts guards"):
        bound_derivatives(*thrown(values)[:3], found_anew(values))


def test_transitions_that_lack_a_guard_of_the_orbit_are_refused():
    values = {"hard": 1.0}
    modes, ways, parameters, _ = thrown(values)
    second = puck.WALLS[1]
    kept = [
        way for way in ways if isinstance(way, Joint) or (way.source, way.name) != ((1, 0), second)
    ]
    with pytest.raises(InputError, match=rf"guard '{second}' alone from mode \(1, 0\)"):
        bound_derivatives(modes, kept, parameters, found_anew(values))


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_the_rate_is_found_from_far_beside_it(factor):
    """Roots of the margin are known to 1e-8 of the rate."""
    found = judge_map(random_map(3, 2))
    map, _ = balance_map(found.return_map)
    still = [np.zeros((1, 2, 2))] * len(map.pieces)
    near, far = (
        _differentiate_form_rate(map, still, len(found.form.cones), found.growth[1] * f)[0]
        for f in (1.0, factor)
    )
    assert far == pytest.approx(near, rel=1e-6)


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_newton_finds_the_rate_in_few_steps(factor, monkeypatch):
    """Halving alone would need log2(5 / 1e-8) = 29 margins."""
    found = judge_map(random_map(3, 2))
    map, _ = balance_map(found.return_map)
    still, rates, compute = [np.zeros((1, 2, 2))] * len(map.pieces), [], FormSearch.compute_margin
    monkeypatch.setattr(
        FormSearch, "compute_margin", lambda self, rate: rates.append(rate) or compute(self, rate)
    )
    _differentiate_form_rate(map, still, len(found.form.cones), found.growth[1] * factor)
    assert len(rates) <= 10


@pytest.mark.parametrize("start", [0.01, 0.2, 3.0, 50.0])
def test_rates_that_newton_would_leave_are_halved(start):
    """The margin atan(10 (rate - 1)) sends Newton's steps away from 1, farther each time."""

    def compute_margin(rate):
        x = 10.0 * (rate - 1.0)
        return SimpleNamespace(value=np.arctan(x), by_rate=10.0 / (1.0 + x * x))

    search = SimpleNamespace(compute_margin=compute_margin)
    assert _find_least_rate(search, start)[0] == pytest.approx(1.0, rel=1e-7)


def test_changes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="one entry a piece"):
        growth_derivatives(judge_map(random_map(0, 2)), [np.zeros((1, 2, 2))])


def test_a_map_without_directions_does_not_grow():
    """All directions of an orbit in one dimension are along its flow."""
    none = ConewiseMap((LinearPiece(np.zeros((0, 0)), np.zeros((0, 0))),))
    growth = growth_derivatives(judge_map(none), [np.zeros((3, 0, 0))])
    np.testing.assert_array_equal(growth.bounds, [0.0, 0.0])
    np.testing.assert_array_equal(growth.derivatives, np.zeros((2, 3)))


def test_a_spectral_radius_of_zero_has_no_derivative():
    still = ConewiseMap((LinearPiece(np.zeros((2, 2)), np.zeros((0, 2))),))
    growth = growth_derivatives(judge_map(still), [np.ones((1, 2, 2))])
    assert np.isnan(growth.derivatives).all()
