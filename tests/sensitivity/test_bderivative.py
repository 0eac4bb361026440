"""B-derivatives against the exact flow of piecewise constant fields, closed forms and laws."""

import pickle
from itertools import permutations
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridctl.base.errors import GrazingError, InputError
from hybridctl.sensitivity.bderivative import BDerivative
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump, group_equal_pieces

EPS = np.finfo(float).eps


class Problem:
    """Surfaces with normals (n, d), and a random field that crosses each at a rate in [0.4, 2]."""

    def __init__(self, normals, seed):
        self.normals, self.seed = normals, seed
        self.lift = np.linalg.pinv(normals)
        self.asked = []
        self._kept = {}

    @property
    def size(self):
        return self.normals.shape

    def at(self, b):
        signs = tuple(b)
        if signs not in self._kept:
            self._kept[signs] = self._draw(signs)
        return self._kept[signs]

    def _draw(self, signs):
        n, d = self.normals.shape
        rng = np.random.default_rng([self.seed, *(int(s > 0.0) for s in signs)])
        along = (np.eye(d) - self.lift @ self.normals) @ rng.uniform(-1.0, 1.0, d)
        return self.lift @ rng.uniform(0.4, 2.0, n) + along

    def __call__(self, b):
        self.asked.append(tuple(b))
        return self.at(b)

    def derivative(self):
        return BDerivative(self.normals, self)


def canonical(n, seed=0):
    """xdot = 1 + Delta(sign x) with components of Delta in [-0.6, 1], [Bder] (11)."""
    return Problem(np.eye(n), seed)


def general(n, d, seed=0):
    """Normals that are independent, with singular values in [0.5, 2]."""
    rng = np.random.default_rng([seed, 7])
    left, right = (np.linalg.qr(rng.normal(size=(k, k)))[0] for k in (n, d))
    return Problem(left * rng.uniform(0.5, 2.0, n) @ right[:n], seed)


def flow(normals, field, x, duration):
    """The exact flow of a piecewise constant field, from surface to surface."""
    b = -np.ones(len(normals))
    while True:
        f, before = field(b), np.flatnonzero(b < 0.0)
        waits = -(normals[before] @ x) / (normals[before] @ f)
        if not before.size or waits.min() >= duration:
            return x + duration * f
        x, duration = x + waits.min() * f, duration - waits.min()
        b[before[waits.argmin()]] = 1.0


def measure_perturbation(problem, dx):
    """What is left of dx after the flow has passed all surfaces, for a dx small enough for that."""
    ones = np.ones(problem.size[0])
    start, end = -0.5 * problem.at(-ones), 0.5 * problem.at(ones)
    assert (problem.normals @ (start + dx) < 0.0).all()
    after = flow(problem.normals, problem.at, start + dx, 1.0)
    assert (problem.normals @ after > 0.0).all()
    return after - end


def inside(mesh, order, rng):
    """A direction well inside the cone of an order: a combination of its corners, [Bder] (46).

    The corners are the points whose signs flip in this order, [Bder] (37); the last is zero.
    """
    first, *corners = mesh.points[np.cumsum([0, *(1 << j for j in order)])[:-1]]
    return rng.uniform(-1, 1) * first + rng.uniform(0.2, 1.0, len(corners)) @ np.array(corners)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7])
def test_every_order_agrees_with_the_exact_flow(n):
    """One-sided differences are exact here, as the flow is piecewise affine."""
    problem, rng = canonical(n), np.random.default_rng(n)
    b = problem.derivative()
    mesh = b.triangulation()
    orders = list(permutations(range(n)))
    directions = np.array([inside(mesh, order, rng) for order in orders])
    # The nominal start is 0.2 or more before each surface, the end as far behind it.
    directions *= 0.1 / np.abs([*directions, *b(directions)]).max()
    passage = b.follow(directions)
    assert [tuple(order) for order in passage.orders] == orders
    differences = np.array([measure_perturbation(problem, dx) for dx in directions])
    # On both sides n crossings round numbers of size 2 and divide by rates of at least 0.4.
    np.testing.assert_allclose(passage.state, differences, rtol=0.0, atol=40 * n * EPS)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 3), (2, 5), (4, 8), (5, 6)])
def test_general_normals_agree_with_the_exact_flow(n, d):
    problem, rng = general(n, d), np.random.default_rng(d)
    directions = 0.02 * rng.uniform(-1.0, 1.0, (50, d)) / np.sqrt(d)
    differences = np.array([measure_perturbation(problem, dx) for dx in directions])
    found = problem.derivative()(directions)
    # As above; normals with singular values down to 0.5 allow fields of size 4 sqrt(n).
    np.testing.assert_allclose(found, differences, rtol=0.0, atol=100 * n * d * EPS)


@pytest.mark.parametrize("seed", range(3))
def test_the_printed_recursion_lacks_its_last_advance(seed):
    """[Bder] (61), (62): dt_n and dq_n are those before the last surface is reached, so that dq+ is
    dq_n + s_n F_n - (dt_n + s_n) F_{+1}; without the advance s_n F_n it is off by that."""
    problem, rng = general(3, 4, seed), np.random.default_rng(seed)
    dx = rng.uniform(-1.0, 1.0, 4)
    b = problem.derivative()
    q, t, signs = dx, 0.0, -np.ones(3)
    for _ in range(3):
        field = problem.at(signs)
        times = np.where(signs < 0.0, -(problem.normals @ q) / (problem.normals @ field), np.inf)
        j = int(times.argmin())
        last = times[j] * field
        q, t = q + last, t + times[j]
        signs[j] = 1.0
    whole = q - t * problem.at(signs)
    np.testing.assert_allclose(whole, b(dx), atol=1e-13)
    assert np.abs(last).max() > 1e-2


def test_the_printed_projection_needs_a_field_across_the_kernel():
    """[Bder] (56) on l in ker Dh, where B(l) = l: right if F_{-1} . l = 0, and not otherwise."""
    problem = general(2, 4, 1)
    b, before, after = problem.derivative(), problem.at(-np.ones(2)), problem.at(np.ones(2))
    printed = np.eye(4) + np.outer(after - before, before) / (before @ before)
    kernel = np.linalg.svd(problem.normals)[2][2:]
    across = kernel.T @ np.array([-kernel[1] @ before, kernel[0] @ before])
    np.testing.assert_allclose(printed @ across, b(across), atol=1e-13)
    for along in kernel:
        np.testing.assert_allclose(b(along), along, atol=1e-13)
    assert np.abs(printed @ (kernel.T @ kernel @ before) - kernel.T @ kernel @ before).max() > 1e-3


@pytest.mark.parametrize("delta", [-0.8, -0.3, 0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_linear_case_has_its_closed_form(n, delta):
    """Delta(b) = -delta b gives (1 - delta) / (1 + delta) dx, [Bder] (12)."""
    b = BDerivative(np.eye(n), lambda signs: 1.0 - delta * signs)
    directions = np.random.default_rng(n).normal(size=(200, n))
    factor = (1.0 - delta) / (1.0 + delta)
    np.testing.assert_allclose(b(directions), factor * directions, rtol=1e-14, atol=1e-14)
    assert b.is_linear()
    assert PiecewiseLinearJump.is_linear(b)
    assert len(group_equal_pieces(b.pieces())) == 1
    assert len(b.pieces()) == factorial(n)


@pytest.mark.parametrize(("n", "d"), [(2, 2), (3, 5), (4, 6)])
def test_the_linear_case_in_other_coordinates_is_found_linear_despite_rounding(n, d):
    """The factor across the surfaces, the identity along them."""
    problem, delta = general(n, d), 0.37
    b = BDerivative(problem.normals, lambda signs: problem.lift @ (1.0 - delta * signs))
    across = problem.lift @ problem.normals
    expected = np.eye(d) - across + (1.0 - delta) / (1.0 + delta) * across
    matrices = [piece.matrix for piece in b.pieces()]
    assert any((matrix != matrices[0]).any() for matrix in matrices)
    np.testing.assert_allclose(matrices, [expected] * factorial(n), atol=1e-13)
    assert len(group_equal_pieces(b.pieces())) == 1
    assert PiecewiseLinearJump.is_linear(b)
    assert b.is_linear()


def test_a_field_that_changes_one_sign_is_not_linear_any_more():
    def bent(signs):
        return 1.0 - 0.5 * signs + 1e-6 * (signs[0] > 0.0 > signs[1]) * np.array([1.0, 0.0, 0.0])

    b = BDerivative(np.eye(3), bent)
    assert not b.is_linear()
    assert not PiecewiseLinearJump.is_linear(b)
    assert b.is_linear(accuracy=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_two_surfaces_in_the_plane_by_hand(seed):
    """The cases of [Bder] Fig. 3: both orders written out, each on its side of F_{-1}."""
    problem = canonical(2, seed)
    f, k = problem(-np.ones(2)), problem(np.ones(2))
    b = problem.derivative()
    for x in np.random.default_rng(seed).normal(size=(100, 2)):
        waits = -x / f
        i = int(waits.argmin())
        signs = -np.ones(2)
        signs[i] = 1.0
        g, t = problem(signs), waits[i]
        s = -(x + t * f)[1 - i] / g[1 - i]
        expected = x + t * f + s * g - (t + s) * k
        assert b.order(x) == (i, 1 - i)
        np.testing.assert_allclose(b(x), expected, atol=1e-13)
        np.testing.assert_allclose(b.follow(x).times, [t, t + s], atol=1e-13)


@pytest.mark.parametrize(("n", "d"), [(2, 2), (3, 5), (4, 4)])
def test_pieces_are_the_products_of_saltation_matrices_and_of_barycentric_coordinates(n, d):
    """[Bder] (57) and (58), each as printed."""
    problem = general(n, d)
    b, rng = problem.derivative(), np.random.default_rng(0)
    mesh, across = b.triangulation(), b.lineality()
    off = np.eye(d) - across @ across.T
    for order in permutations(range(n)):
        product, signs = np.eye(d), -np.ones(n)
        corners, images = [], []
        for k, j in enumerate(order):
            before = problem.at(signs)
            if k:
                reach = np.where(signs < 0.0, -problem.normals @ before, 0.0)
                zeta = off @ np.linalg.lstsq(problem.normals, reach, rcond=None)[0]
                corners.append(zeta)
                images.append(b(zeta))
            signs[j] = 1.0
            jump = problem.at(signs) - before
            normal = problem.normals[j]
            product = (np.eye(d) + np.outer(jump, normal) / (normal @ before)) @ product
        np.testing.assert_allclose(b.matrix(order), product, rtol=1e-11, atol=1e-11)
        dx = off @ inside(mesh, order, rng)
        assert b.order(dx) == order
        weights = np.linalg.pinv(np.array(corners).T) @ dx
        assert (weights > 0.0).all()
        np.testing.assert_allclose(np.array(images).T @ weights, product @ dx, atol=1e-10)


@st.composite
def problems(draw):
    n = draw(st.integers(1, 5))
    return general(n, draw(st.integers(n, 7)), draw(st.integers(0, 10_000)))


@settings(max_examples=60)
@given(problem=problems(), seed=st.integers(0, 10_000), factor=st.just(0.0) | st.floats(1e-6, 1e6))
def test_laws_of_evaluation(problem, seed, factor):
    """Homogeneous; the matrix of its order; additive along the lineality space; barycentric."""
    b, (_, d) = problem.derivative(), problem.size
    rng = np.random.default_rng(seed)
    dx = rng.normal(size=d)
    scale = 1e-11 * (1.0 + np.abs(b.matrix(b.order(dx))).sum())
    np.testing.assert_allclose(b(factor * dx), factor * b(dx), atol=scale * factor)
    np.testing.assert_allclose(b(dx), b.matrix(b.order(dx)) @ dx, atol=scale)
    np.testing.assert_allclose(b(dx), b.triangulation()(dx), atol=scale)
    basis = b.lineality()
    along = basis @ rng.normal(size=basis.shape[1])
    np.testing.assert_allclose(b(dx + along), b(dx) + b(along), atol=scale)
    np.testing.assert_allclose(b(-along), -b(along), atol=scale)
    assert b.order(dx + along) == b.order(dx)
    np.testing.assert_allclose(b(b.field_before), b.field_after, atol=scale)
    times = b.follow(dx).times
    assert (np.diff(times) >= -scale).all()


@settings(max_examples=40)
@given(problem=problems(), seed=st.integers(0, 10_000))
def test_renaming_the_surfaces_changes_nothing(problem, seed):
    rng = np.random.default_rng(seed)
    n, d = problem.size
    new = rng.permutation(n)  # surface k of the renamed problem was new[k]
    scales = rng.uniform(0.1, 10.0, n)  # nor does the length of a normal

    def field(signs):
        old = np.empty(n)
        old[new] = signs
        return problem(old)

    a, b = problem.derivative(), BDerivative((scales[:, None] * problem.normals)[new], field)
    dx = rng.normal(size=(20, d))
    limit = 1e-11 * (1.0 + max(np.abs(a.matrix(o)).sum() for o in a.follow(dx).orders))
    np.testing.assert_allclose(b(dx), a(dx), atol=limit)
    np.testing.assert_array_equal(new[b.follow(dx).orders], a.follow(dx).orders)


@pytest.mark.parametrize(("n", "d"), [(2, 2), (3, 3), (3, 5), (4, 6)])
def test_cones_cover_every_direction_exactly_once(n, d):
    b = general(n, d).derivative()
    pieces = b.pieces()
    assert sorted(piece.order for piece in pieces) == list(permutations(range(n)))
    for dx in np.random.default_rng(n).normal(size=(300, d)):
        (home,) = (piece for piece in pieces if (piece.cone @ dx >= 0.0).all())
        assert home.order == b.order(dx)
        np.testing.assert_allclose(home.matrix @ dx, b(dx), rtol=1e-9, atol=1e-10)
    assert len(group_equal_pieces(pieces)) == len(pieces)


@pytest.mark.parametrize("n", [2, 4])
def test_the_map_is_continuous_where_cones_meet(n):
    """Close to a border B changes by no more than the largest piece allows."""
    b, rng = general(n, 5).derivative(), np.random.default_rng(n)
    steepest = max(np.linalg.norm(piece.matrix, 2) for piece in b.pieces())
    crossed = 0
    for low, high in rng.normal(size=(60, 2, 5)):
        while b.order(low) != b.order(high) and np.linalg.norm(high - low) > 1e-9:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if b.order(middle) != b.order(low) else (middle, high)
        crossed += b.order(low) != b.order(high)
        limit = steepest * (np.linalg.norm(high - low) + 1e-14 * np.linalg.norm(high))
        assert np.linalg.norm(b(high) - b(low)) <= limit
    assert crossed > 20


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 2), (3, 5)])
def test_the_lineality_space_is_common_to_all_cones(n, d):
    b = general(n, d).derivative()
    basis = b.lineality()
    assert basis.shape == (d, d - n + 1)
    np.testing.assert_allclose(basis.T @ basis, np.eye(d - n + 1), atol=1e-13)
    cones = PiecewiseLinearJump.lineality(b)
    if n > 1:
        np.testing.assert_allclose(cones @ cones.T, basis @ basis.T, atol=1e-10)
    else:
        assert cones.shape == (d, d)  # linear: one cone without borders


def test_one_surface_is_the_saltation_matrix():
    """I + (F+ - F-) n / (n F-), [Bder] (5)."""
    problem = general(1, 4)
    before, after = problem(-np.ones(1)), problem(np.ones(1))
    (normal,) = problem.normals
    expected = np.eye(4) + np.outer(after - before, normal) / (normal @ before)
    b = problem.derivative()
    np.testing.assert_allclose(b.matrix((0,)), expected, atol=1e-14)
    np.testing.assert_allclose(b(np.eye(4)).T, expected, atol=1e-14)
    (piece,) = b.pieces()
    assert piece.cone.shape == (0, 4)
    assert b.is_linear()


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_of_tied_surfaces_the_first_declared_fires_first(scale):
    problem = general(4, 5)
    b = problem.derivative()
    assert b.order(scale * b.field_before) == (0, 1, 2, 3)
    assert b.order(-scale * b.field_before) == (0, 1, 2, 3)
    assert b.order(np.zeros(5)) == (0, 1, 2, 3)
    dx = 0.7 * b.field_before
    dx = dx + np.linalg.pinv(problem.normals) @ np.array([0.0, 0.0, -1.0, 0.0])
    assert b.order(dx) == (0, 1, 3, 2)


@pytest.mark.parametrize("factor", [1.0, 1.0 / 3.0, 7.0])
def test_equal_and_parallel_surfaces_are_crossed_as_one(factor):
    """The field between them acts for no time, so that only the first and the last one count."""
    problem = general(2, 3)
    normals = problem.normals[[0, 1, 0]] * np.array([[1.0], [1.0], [factor]])

    def field(signs):
        between = signs[0] != signs[2]
        return problem(signs[:2]) + 0.3 * between * np.array([1.0, 0.0, 0.0])

    doubled, single = BDerivative(normals, field), problem.derivative()
    dx = np.random.default_rng(3).normal(size=(100, 3))
    np.testing.assert_allclose(doubled(dx), single(dx), atol=1e-13)
    assert {piece.order for piece in doubled.pieces()} == {(0, 2, 1), (1, 0, 2)}
    for order in doubled.follow(dx).orders.tolist():
        assert tuple(order) in {(0, 2, 1), (1, 0, 2)}
    with pytest.raises(InputError, match="independent normals, but 3 of them have rank 2"):
        doubled.triangulation()
    basis, expected = doubled.lineality(), single.lineality()
    np.testing.assert_allclose(basis @ basis.T, expected @ expected.T, atol=1e-12)


def test_more_surfaces_than_dimensions():
    """Three lines through a point of the plane: not all orders occur, all that do fit the flow."""
    angles = np.array([-0.9, 0.1, 0.8])
    normals = np.column_stack([np.cos(angles), np.sin(angles)])

    def field(signs):
        return np.array([1.5, 0.0]) + 0.2 * np.array([signs @ [1, -1, 0.5], signs @ [0.3, 1, -1]])

    b = BDerivative(normals, field)
    pieces, rng = b.pieces(), np.random.default_rng(4)
    assert {piece.order for piece in pieces} == {(0, 1, 2), (2, 1, 0)}
    start, end = -b.field_before, b.field_after
    for dx in 0.1 * rng.uniform(-1, 1, (200, 2)):
        expected = flow(normals, field, start + dx, 2.0) - end
        np.testing.assert_allclose(b(dx), expected, atol=1e-14)
        (home,) = (piece for piece in pieces if (piece.cone @ dx >= 0.0).all())
        assert home.order == b.order(dx)
    assert not b.is_linear()


def test_many_directions_are_those_taken_one_by_one():
    b, rng = general(4, 8).derivative(), np.random.default_rng(5)
    dx = rng.normal(size=(300, 8))
    together = b.follow(dx)
    alone = [b.follow(one) for one in dx]
    # Matrix products of several rows may sum in another order than those of one.
    np.testing.assert_allclose(together.state, [a.state for a in alone], rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(together.orders, [a.orders for a in alone])
    np.testing.assert_array_equal(together.orders, [b.order(one) for one in dx])
    np.testing.assert_allclose(b.triangulation()(dx), together.state, rtol=1e-10, atol=1e-10)


def test_one_direction_asks_for_one_field_per_surface_passed():
    """20 surfaces have 2^20 fields; a direction needs n - 1 of them besides the two ends."""
    problem = canonical(20)
    b = problem.derivative()
    problem.asked.clear()
    dx = 0.1 * np.random.default_rng(6).uniform(-1, 1, 20)
    first = b(dx)
    assert len(problem.asked) == len(set(problem.asked)) == 19
    b(2.0 * dx)
    assert len(problem.asked) == 19
    np.testing.assert_allclose(first, measure_perturbation(problem, dx), atol=20 * 20 * EPS)


def test_what_does_not_fit_is_refused():
    def ones(b):
        return np.ones(2)

    with pytest.raises(InputError, match=r"normals must have shape \(any, any\), got \(2,\)"):
        BDerivative([1.0, 2.0], ones)
    with pytest.raises(InputError, match=r"normals must be finite"):
        BDerivative([[1.0, np.nan]], ones)
    with pytest.raises(InputError, match=r"normals\[1\] must not be zero"):
        BDerivative([[1.0, 0.0], [0.0, 0.0]], ones)
    with pytest.raises(InputError, match="guards must be one or more"):
        BDerivative(np.zeros((0, 2)), ones)
    with pytest.raises(InputError, match="one name for each of 2 normals"):
        BDerivative(np.eye(2), ones, guards=["left"])
    with pytest.raises(InputError, match=r"field\(\[-1, -1\]\) must have shape \(2\), got \(3,\)"):
        BDerivative(np.eye(2), lambda b: np.ones(3))
    with pytest.raises(InputError, match=r"field\(\[1, 1\]\) must be finite"):
        BDerivative(np.eye(2), lambda b: np.ones(2) if b[0] < 0 else np.full(2, np.nan))
    b = BDerivative(np.eye(2), ones)
    for bad in (np.ones(3), np.ones((1, 3)), np.ones((0, 2)), np.ones((1, 1, 2)), 1.0):
        with pytest.raises(InputError, match="dx must have shape"):
            b(bad)
    with pytest.raises(InputError, match="dx must be finite"):
        b([1.0, np.inf])
    for wrong in ((0,), (0, 0), (0, 1, 2), (1, 2)):
        with pytest.raises(InputError, match="order must have each of 0 to 1 once"):
            b.matrix(wrong)
    with pytest.raises(InputError, match="dx must have shape"):
        b.triangulation()(np.ones(3))


def test_a_field_that_does_not_cross_is_named():
    with pytest.raises(GrazingError, match=r"'left' is not crossed upwards by field\(\[-1, -1\]\)"):
        BDerivative(np.eye(2), lambda b: np.array([-1.0, 1.0]), guards=["left", "right"])
    opposite = np.array([[1.0, 0.0], [-2.0, 0.0]])
    with pytest.raises(GrazingError, match="normals\\[1\\] times the field must be positive"):
        BDerivative(opposite, lambda b: np.ones(2))

    def stuck(signs):
        return np.array([1.0, 0.0 if signs[0] > 0.0 > signs[1] else 1.0])

    b = BDerivative(np.eye(2), stuck)
    assert b.order([-1.0, 0.0]) == (1, 0)
    with pytest.raises(GrazingError, match=r"'surface 1' .* field\(\[1, -1\]\)"):
        b([0.0, -1.0])


def test_a_derivative_survives_pickling():
    problem = general(3, 4)
    b, dx = problem.derivative(), np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(b))(dx), b(dx))
