"""The judge itself: what it must accept and what it must not, and its kinematics by differences."""

import numpy as np
import pinocchio as pin
import pytest

from attack.laws import Law, liftable, violation
from attack.layouts import KINDS, matter
from attack.machines import BASES, machine

MU = 0.5
POINT = np.diag([0.5, 0.5, 0.5])  # a point mass of 2 kg, V = 1 m/s, F = 2 N s


def point(free, mu=MU):
    return Law(POINT, np.array(free), np.array([mu]), (2,), 1.0)


# velocity before, impulse: the law's own answers for a point mass
RIGHT = {
    "flies": ([1.0, 0.3, 0.0], [0.0, 0.0, 0.0]),
    "sticks": ([-1.0, 0.3, -0.2], [2.0, -0.6, 0.4]),
    "slips": ([-0.5, 0.6, -0.8], [1.0, -0.3, 0.4]),
    "begins to slip": ([-1.0, 0.5, 0.0], [2.0, -1.0, 0.0]),
}
# and what is off by delta in one law alone, or by its whole size
DELTA = 1e-3
WRONG = {
    "penetrates": ("unilateral", [-1.0, 0.0, 0.0], [2.0 - 2.0 * DELTA, 0.0, 0.0], DELTA),
    "pulls": ("unilateral", [DELTA, 0.0, 0.0], [-2.0 * DELTA, 0.0, 0.0], DELTA),
    "pushes in flight": ("complementarity", [0.5, 0.0, 0.0], [2.0 * DELTA, 0.0, 0.0], DELTA),
    "leaves the cone": ("cone", [-0.5, 0.6, 0.0], [1.0, -0.5 - 2.0 * DELTA, 0.0], DELTA),
    "does not resist": ("dissipation", [-0.5, 0.6, 0.0], [1.0, -0.5 + 2.0 * DELTA, 0.0], DELTA),
    "holds too little": ("dissipation", [-1.0, 0.3, 0.0], [2.0, -0.6 + 2.0 * DELTA, 0.0], DELTA),
    "pushes on": ("dissipation", [-0.5, 0.6, 0.0], [1.0, 0.5, 0.0], 0.5),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    free, force = RIGHT[name]
    assert violation(point(free), np.array(force)).worst <= 1e-15


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_seen_by_their_law_at_their_size(name):
    law, free, force, size = WRONG[name]
    found = violation(point(free), np.array(force))
    assert getattr(found, law) == pytest.approx(size, rel=1e-9)
    assert found.worst == pytest.approx(size, rel=1e-9)


def test_what_is_not_a_number_is_infinitely_wrong():
    assert violation(point([-1.0, 0.0, 0.0]), np.full(3, np.nan)).worst == np.inf


@pytest.mark.parametrize("mass", [1e-6, 1e6])
@pytest.mark.parametrize("speed", [1e-6, 1e6])
def test_residuals_do_not_depend_on_units(mass, speed):
    law, free, force, size = WRONG["holds too little"]
    scaled = Law(POINT / mass, np.array(free) * speed, np.array([MU]), (2,), speed)
    found = violation(scaled, np.array(force) * mass * speed)
    assert getattr(found, law) == pytest.approx(size, rel=1e-9)


def test_large_forces_excuse_nothing():
    """Two contacts that squeeze: equal forces of any size leave the velocity as it is."""
    row = np.array([[1.0], [-1.0]])
    squeezed = Law(row @ row.T, np.array([-0.1, 0.1]), np.zeros(2), (0, 0))
    assert violation(squeezed, np.array([0.1, 0.0])).worst <= 1e-15
    assert violation(squeezed, np.array([1e6, 1e6])).unilateral == pytest.approx(1.0)


def test_liftable_says_whether_a_velocity_leaves_all_cones():
    law = point([-1.0, 0.0, 0.0])
    assert liftable(np.eye(3), law)
    facing = Law(np.eye(2), -np.ones(2), np.zeros(2), (0, 0))
    assert not liftable(np.array([[1.0], [-1.0]]), facing)
    slider = Law(np.eye(2), -np.ones(2), np.array([MU]), (1,))
    assert liftable(np.array([[0.6], [0.8]]), Law(np.eye(2), -np.ones(2), np.array([0.7]), (1,)))
    assert not liftable(np.array([[0.4], [0.9]]), slider)


def drawn(kind, seed):
    """A random tree by its base, or a layout; near a configuration where it touches, or there.

    Only there the derivatives of the gap over waves are what the judge says.
    """
    rng = np.random.default_rng([3, seed])
    layout = kind in KINDS
    each = KINDS[kind](rng, matter(rng), 0.0) if layout else machine(rng, kind, 8, 5)
    step = rng.uniform(-0.2, 0.2, each.model.nv)
    q = each.q if layout else pin.integrate(each.model, each.q, step)
    return each, q, *rng.normal(size=(2, each.model.nv))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [*BASES, *KINDS])
def test_the_judge_s_rates_and_accelerations_are_those_of_its_gaps(kind, seed):
    """Along q(t) with velocity v + a t; differences are right to h^2 and rounding over h^2."""
    each, q, v, a = drawn(kind, seed)
    judge, h = each.judge(), 1e-4

    def gaps(t):
        # integrate is along a constant body velocity: v + a t / 2 on average, and what the
        # change of direction adds is of third order
        return judge.gaps(pin.integrate(each.model, q, (v + 0.5 * a * t) * t))

    # above waves phi is no distance
    off = [kind == "balls" and abs(row.gap) > 1e-12 for row in judge.rows(q, v)]
    rows = [row for row, above in zip(judge.rows(q, v), off, strict=True) if not above]
    scale = max(1.0, np.abs(v).max()) ** 2
    rates = np.delete((gaps(h) - gaps(-h)) / (2.0 * h), np.flatnonzero(off))
    np.testing.assert_allclose([row.rates()[0] for row in rows], rates, atol=1e-5 * scale)
    np.testing.assert_allclose([row.rows()[0] @ v for row in rows], rates, atol=1e-5 * scale)
    seconds = (gaps(h) - 2.0 * gaps(0.0) + gaps(-h)) / h**2
    found = [row.accelerations(a)[0] for row in rows]
    np.testing.assert_allclose(found, np.delete(seconds, np.flatnonzero(off)), atol=1e-4 * scale)


@pytest.mark.parametrize("seed", range(4))
def test_a_rolling_ball_s_tangential_accelerations_are_those_of_its_rates(seed):
    """What touches of a ball is at rest on a body that moves: D = 0, its derivative along q(t)."""
    each, q, v, a = drawn("balls", 4 * seed + 1)
    judge, h = each.judge(), 1e-4
    jacobian = np.concatenate([row.rows() for row in judge.rows(q, v) if abs(row.gap) < 1e-12])
    v = v - np.linalg.pinv(jacobian) @ (jacobian @ v)

    def rates(t):
        at = pin.integrate(each.model, q, (v + 0.5 * a * t) * t)
        return [row.rates() for row in judge.rows(at, v + a * t)]

    after, before = rates(h), rates(-h)
    for k, row in enumerate(judge.rows(q, v)):
        if abs(row.gap) < 1e-12:
            found, seen = row.accelerations(a), (after[k] - before[k]) / (2.0 * h)
            np.testing.assert_allclose(found[1:], seen[1:], atol=1e-5 * max(1.0, v @ v))


@pytest.mark.parametrize("base", BASES)
def test_contacts_touch_at_the_configuration_they_were_made_for_and_axes_are_orthonormal(base):
    each, _, v, _ = drawn(base, 0)
    for row in each.judge().rows(each.q, v):
        assert abs(row.gap) <= 1e-14
        np.testing.assert_allclose(row.axes @ row.axes.T, np.eye(len(row.axes)), atol=1e-14)
        np.testing.assert_allclose(row.rows() @ v, row.rates(), atol=1e-12)
        if base == "planar":
            assert len(row.axes) <= 2
