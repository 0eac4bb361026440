"""Hybrid LQR through a simultaneous impact: the door of the thesis."""

import numpy as np
import pytest
from hybridctl.experiments.optimal.lqr import make_door_case, simulated_cost

import hybridctl as hc
from hybridctl.control.lqr.finite_horizon import hybrid_lqr
from hybridctl.control.spreading import ReferenceSpreading

TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def case():
    return make_door_case(TOLERANCE)


@pytest.fixture(scope="module")
def worst(case):
    return hybrid_lqr(
        case.map, list(case.state_weights), list(case.input_weights), case.final_weight
    )


@pytest.fixture(scope="module")
def mean(case):
    return hybrid_lqr(
        case.map,
        list(case.state_weights),
        list(case.input_weights),
        case.final_weight,
        simultaneous="mean",
        covariance=np.diag(case.deviation**2) + 1e-6 * np.eye(8),
    )


def both_orders(case):
    """Two directions that meet the corners in either order."""
    found = {}
    for seed in range(20):
        dx = case.deviation * np.random.default_rng(seed).normal(size=8)
        found.setdefault(case.map.jumps[0].order(case.map.arcs[0].end @ dx), dx)
    assert set(found) == {(0, 1), (1, 0)}
    return list(found.values())


def test_values_are_semidefinite_and_the_worst_is_above_the_mean(worst, mean):
    for result in (worst, mean):
        for value in result.values:
            for v in (value.start, value.end):
                assert np.linalg.eigvalsh(v).min() > -1e-9 * np.abs(v).max()
    np.testing.assert_allclose(worst.values[1].start, mean.values[1].start, rtol=1e-9)
    gap = worst.values[0].end - mean.values[0].end
    assert np.linalg.eigvalsh(gap).min() > -1e-9 * np.abs(gap).max()
    assert np.abs(gap).max() > 1e-3 * np.abs(mean.values[0].end).max()


def test_the_worst_case_is_a_bound_and_the_mean_is_between(case, worst, mean):
    for dx in both_orders(case):
        assert worst.predicted_cost(dx) <= worst.cost(dx) * (1.0 + 1e-9)
    ends = np.array([mean.predicted_cost(dx) / mean.cost(dx) for dx in both_orders(case)])
    assert ends.min() < 1.0 < ends.max()


def test_there_are_gains_for_each_phantom_arc_of_the_reference(case, worst):
    assert set(worst.gains.phantoms) == set(case.reference.phantoms)
    jump, after = case.map.jumps[0], worst.values[1].start
    for k, name in enumerate(("corner_1 closes", "corner_2 closes")):
        g = jump.jump(frozenset({k}), 1 - k).state
        phantom = case.reference.phantoms[0, frozenset({name})]
        time = case.map.trajectory.events[0].time
        mode = case.map.system.mode(phantom.mode)
        b = mode.jacobian(time, *phantom.arc.state_and_input(time)).input
        expected = np.linalg.solve(case.input_weights[0], b.T @ g.T @ after @ g)
        found = worst.gains.phantoms[0, frozenset({name})](time)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_the_predicted_cost_is_the_simulated_one_to_second_order(case, worst):
    policy = ReferenceSpreading(case.reference, worst.gains)
    nominal = case.reference.nominal
    for dx in both_orders(case):
        gaps = []
        for size in (0.2, 0.1):
            run = hc.simulate(
                case.map.system,
                nominal.arcs[0].mode,
                nominal(0.0) + size * dx,
                (0.0, nominal.end),
                policy,
                rtol=TOLERANCE,
                atol=1e-2 * TOLERANCE,
            )
            assert len(run.events) == 2
            cost = simulated_cost(
                case.reference, run, case.state_weights, case.input_weights, case.final_weight
            )
            gaps.append(abs(cost / worst.predicted_cost(size * dx) - 1.0))
        assert gaps[-1] < 1e-2
        assert np.log2(gaps[0] / gaps[1]) == pytest.approx(1.0, abs=0.25)
