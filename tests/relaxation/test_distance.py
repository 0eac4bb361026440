"""The distance on the glued space: a metric, against a grid, and along trajectories."""

import casadi as ca
import numpy as np
import pytest
from relaxation.systems import ball, bowl, carrier, order
from scipy.sparse import csgraph

import hybridctl as hc
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.relaxation.distance import GluedSpace

PROGRAMME = 1e-10  # the gap of cone programmes is 1e-12 of lengths of up to some 5, each way
STATES = [0.0, -2.0], [0.4, 2.0]  # height and velocity of the random states


def random_states(count, seed=0):
    return np.random.default_rng(seed).uniform(*STATES, size=(count, 2))


def check_metric(count):
    """Symmetry, triangle inequality, and how many of the shortest paths jump twice."""
    space, twice = GluedSpace(ball(0.5), ["air"]), 0
    for x, y, z in random_states(3 * count).reshape(count, 3, 2):
        paths = [
            space.find_shortest_path("air", a, "air", b, 2)
            for a, b in ((x, y), (y, z), (x, z), (y, x))
        ]
        assert abs(paths[0].length - paths[3].length) <= PROGRAMME
        assert paths[2].length <= paths[0].length + paths[1].length + PROGRAMME
        twice += sum(len(path.jumps) == 2 for path in paths[:3])
    return twice / (3 * count)


def test_it_is_symmetric_and_obeys_the_triangle_inequality():
    assert 0.03 < check_metric(150) < 0.2


def test_a_jump_is_where_the_guard_is_crossed_downwards():
    """A solver may return a point beside that part, here a ball that rises through the floor."""
    (floor,) = GluedSpace(ball(0.5), ["air"]).guards
    speeds = [floor.evaluate(floor.clip(np.array([s])))[0][1] for s in (-1.0, 1.0)]
    np.testing.assert_allclose(sorted(speeds), [-1.0, 0.0], atol=1e-15)


def test_it_does_not_depend_on_where_the_floor_is():
    x, c, level = ca.SX.sym("x", 2), 0.5, 3.0
    air = hc.symbolic.SymbolicMode("air", x, [x[1], -1.0])
    floor = hc.symbolic.SymbolicTransition("air", "floor", x[0] - level, "air", [x[0], -c * x[1]])
    raised = GluedSpace(hc.symbolic.hybrid_system([air], [floor]), ["air"])
    plain, up = GluedSpace(ball(c), ["air"]), np.array([level, 0.0])
    for a, b in random_states(20, seed=3).reshape(10, 2, 2):
        wanted = plain.find_shortest_path("air", a, "air", b, 2).length
        found = raised.find_shortest_path("air", a + up, "air", b + up, 2).length
        assert abs(found - wanted) <= 2.0 * PROGRAMME


@pytest.mark.slow
@pytest.mark.long
def test_it_is_a_metric_on_three_thousand_triples():
    assert 0.05 < check_metric(3000) < 0.2


def grid_distance(x, y, c, points=601):
    """The shortest path over a grid of the guard, glued to its image: never shorter.

    Returns the spacing of the grid besides, which covers all images of up to 2 m/s.
    """
    fastest = 2.2 / c
    before = np.column_stack([np.zeros(points), -np.linspace(0.0, fastest, points)])
    nodes = np.vstack([before, -c * before, x, y])
    lengths = np.linalg.norm(nodes[:, None] - nodes, axis=2)
    k = np.arange(points)
    lengths[k, k + points] = lengths[k + points, k] = 0.0
    lengths[lengths == 0.0] = 1e-7  # csgraph takes what is nearly zero for no edge
    return csgraph.dijkstra(lengths, indices=2 * points)[2 * points + 1], fastest / (points - 1)


@pytest.mark.parametrize("c", [0.3, 0.8])
def test_it_is_that_of_a_grid_of_the_guard(c):
    """A grid of spacing s is longer by up to s at each jump, to first order less."""
    space = GluedSpace(ball(c), ["air"])
    for x, y in random_states(8, seed=1).reshape(4, 2, 2):
        wanted, spacing = grid_distance(x, y, c)
        found = space.distance("air", x, "air", y)
        assert found <= wanted + PROGRAMME
        assert wanted <= found + 2.0 * spacing


def test_more_jumps_than_two_do_not_shorten_paths_of_the_ball():
    space = GluedSpace(ball(0.5), ["air"])
    for x, y in random_states(16, seed=3).reshape(8, 2, 2):
        two, four = (space.distance("air", x, "air", y, jumps) for jumps in (2, 4))
        assert four == pytest.approx(two, abs=1e-9)


def test_plastic_resets_identify_what_ends_alike():
    space = GluedSpace(ball(0.0), ["air"])
    assert space.distance("air", [0.0, -1.0], "air", [0.0, -1.7]) == pytest.approx(0.0, abs=1e-9)
    assert space.distance("air", [0.2, -1.0], "air", [0.3, -1.7]) == pytest.approx(0.5, abs=1e-9)


def test_it_is_continuous_through_jumps_and_falls_with_the_tolerance():
    """A run against itself with tighter tolerances: the plain norm sees the whole jump."""
    system = carrier(0.5)
    space = GluedSpace(system, ["air"])
    runs = {
        tol: hc.simulate(
            system, "air", [1.0, 0.2, 0.3], (0.0, 1.9), rtol=tol, atol=tol, method="RK45"
        )
        for tol in (1e-4, 1e-6, 1e-8, 1e-12)
    }
    for event in runs[1e-12].events:
        jump = space.distance("air", event.state_before, "air", event.state_after)
        assert jump == pytest.approx(0.0, abs=1e-9)
    found, plain = [], []
    for tol in (1e-4, 1e-6, 1e-8):
        times, distances = space.compare_runs(runs[tol], runs[1e-12], 0.2)
        assert len(distances) == len(times)
        found.append(distances.max())
        apart = [np.linalg.norm(runs[tol](t) - runs[1e-12](t)) for t in times.tolist()]
        plain.append(max(apart))
    assert order(found, [1e-4, 1e-6, 1e-8]) > 0.6
    assert min(plain) > 0.5
    samples = space.compare_samples(
        [0.5, 1.0], ["air"] * 2, [runs[1e-12](t) for t in (0.5, 1.0)], runs[1e-8]
    )
    assert samples.max() < 1e-6


def test_several_modes():
    """A guard between two modes without a jump: the distance is that of the plane."""
    x = ca.SX.sym("x", 2)
    modes = [hc.symbolic.SymbolicMode(k, x, [1.0, 0.0]) for k in ("left", "right")]
    edge = hc.symbolic.SymbolicTransition("left", "wall", -x[0], "right")
    space = GluedSpace(hc.symbolic.hybrid_system(modes, [edge]), ["left"])
    a, b = np.array([-0.7, 0.2]), np.array([0.4, 1.1])
    assert space.distance("left", a, "right", b) == pytest.approx(
        np.linalg.norm(b - a), abs=PROGRAMME
    )
    (wall,) = space.guards  # it is crossed at a speed of 1 everywhere
    np.testing.assert_array_equal(wall.slope, [0.0])
    path = space.find_shortest_path("left", a, "right", b)
    np.testing.assert_allclose(path.points[0][0][0], 0.0, atol=PROGRAMME)


def test_what_has_no_distance_is_refused():
    with pytest.raises(SystemDefinitionError, match="'wall' of mode 'flight' is not affine"):
        GluedSpace(bowl(0.5), ["flight"])
    space = GluedSpace(ball(0.5), ["air"])
    with pytest.raises(InputError, match="mode 'ground' is not in this space"):
        space.distance("air", [1.0, 0.0], "ground", [1.0, 0.0])
    with pytest.raises(InputError, match="x must have shape"):
        space.distance("air", [1.0], "air", [1.0, 0.0])


def test_samples_of_different_numbers_are_refused():
    run = hc.simulate(ball(0.5), "air", [1.0, 0.0], (0.0, 0.4))
    space = GluedSpace(ball(0.5), ["air"])
    with pytest.raises(InputError, match="other must be a HybridTrajectory"):
        space.compare_runs(run, run.final_state, 0.1)
    with pytest.raises(InputError, match="as many, got 2, 1 and 2"):
        space.compare_samples([0.1, 0.2], ["air"], [[1.0, 0.0]] * 2, run)
    with pytest.raises(InputError):
        space.compare_samples([0.5], ["air"], [[1.0, 0.0]], run)
