"""Simultaneous guards with resets, inputs and changing dimension."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump, group_equal_pieces
from hybridctl.sensitivity.saltation import JumpGains


class RandomGains:
    """Gains without any structure; the dimension depends on which guards have fired."""

    def __init__(self, n, inputs, seed, identity=False):
        self.n, self.inputs, self.seed, self.identity = n, inputs, seed, identity
        self.asked = []

    def dimension(self, fired):
        return 3 if self.identity else 2 + (sum(fired) + self.seed) % 3

    def __call__(self, fired, j):
        self.asked.append((fired, j))
        rng = np.random.default_rng([self.seed, j, *(int(i in fired) for i in range(self.n))])
        before, after = self.dimension(fired), self.dimension(fired | {j})
        return JumpGains(
            time_state=rng.normal(size=before),
            time_input=rng.normal(size=self.inputs),
            reset_state=None if self.identity else rng.normal(size=(after, before)),
            reset_input=rng.normal(size=(after, self.inputs)),
            field_change=rng.normal(size=after),
            reset_rate=np.zeros(after),
        )

    def piecewise(self):
        return PiecewiseLinearJump([f"guard {j}" for j in range(self.n)], self)


def brute_force(gains, n, dx, us):
    """Every guard that is left is tried, and the first one to fire is applied as a matrix."""
    left, order, times = list(range(n)), [], []
    for u in us:
        jumps = [gains(frozenset(order), j) for j in left]
        shifts = [jump.time_state @ dx + jump.time_input @ u for jump in jumps]
        k = int(np.argmin(shifts))
        dx = jumps[k].state @ dx + jumps[k].input @ u
        times.append(shifts[k])
        order.append(left.pop(k))
    return dx, tuple(order), times


@st.composite
def gains_and_directions(draw):
    n, inputs, seed = draw(st.integers(1, 4)), draw(st.integers(0, 2)), draw(st.integers(0, 9999))
    gains = RandomGains(n, inputs, seed, identity=draw(st.booleans()))
    rng = np.random.default_rng(seed)
    m = draw(st.integers(1, 9))
    return gains, rng.normal(size=(m, gains.dimension(()))), rng.normal(size=(n, m, inputs))


@settings(max_examples=80)
@given(gains_and_directions())
def test_a_cascade_is_its_definition(case):
    gains, dx, us = case
    n, piecewise = gains.n, gains.piecewise()
    together = piecewise.follow(dx, inputs=us)
    for i, one in enumerate(dx):
        after, order, times = brute_force(gains, n, one, us[:, i])
        scale = 1e-11 * (1.0 + np.abs(after).sum())
        np.testing.assert_allclose(together.state[i], after, atol=scale)
        np.testing.assert_allclose(together.times[i], times, atol=scale)
        assert tuple(together.orders[i]) == order == piecewise.order(one, inputs=us[:, i])
        # [RS] (4.33): a product for the state, and a sum over the micro-events for the input.
        state, inputs = piecewise.order_gains(order)
        summed = state @ one + sum(j @ u for j, u in zip(inputs, us[:, i], strict=True))
        np.testing.assert_allclose(summed, after, atol=100 * scale)
        same = brute_force(gains, n, one, [us[0, i]] * n)
        np.testing.assert_allclose(piecewise(one, us[0, i]), same[0], atol=100 * scale)
        plain = brute_force(gains, n, one, [0.0 * us[0, i]] * n)
        np.testing.assert_allclose(piecewise(one), plain[0], atol=100 * scale)


@pytest.mark.parametrize("inputs", [0, 2])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_cones_of_a_cascade_cover_states_and_inputs_once(n, inputs, seed):
    gains = RandomGains(n, inputs, seed)
    piecewise, rng = gains.piecewise(), np.random.default_rng(seed)
    pieces, found = piecewise.pieces(), set()
    for _ in range(300):
        dx, du = rng.normal(size=piecewise.dimension), rng.normal(size=inputs)
        (home,) = (p for p in pieces if (p.cone @ dx + p.input_cone @ du >= 0.0).all())
        assert home.order == piecewise.order(dx, du)
        expected = home.matrix @ dx + home.input @ du
        np.testing.assert_allclose(piecewise(dx, du), expected, atol=1e-10)
        found.add(home.order)
    assert found <= {piece.order for piece in pieces}
    assert not piecewise.is_linear()
    shared = piecewise.lineality()
    np.testing.assert_allclose(np.vstack([piece.cone for piece in pieces]) @ shared, 0.0, atol=1e-9)


def test_the_rounding_of_fields_that_are_equal_does_not_make_a_jump_piecewise_linear():
    """Equal fields of size 1e3 differ by their rounding, 1e-13, and by nothing else."""

    def gains(fired, j, size=1e-13):
        rng = np.random.default_rng([7, j, len(fired)])
        nothing = np.zeros((3, 1))
        field_change = size * rng.normal(size=3)
        return JumpGains(
            np.eye(3)[j], np.array([0.3 * j]), None, nothing, field_change, np.zeros(3)
        )

    names = ("left", "right")
    assert PiecewiseLinearJump(names, gains).is_linear()
    assert not PiecewiseLinearJump(names, lambda fired, j: gains(fired, j, 1e-6)).is_linear()


class Sampled:
    """Constant fields F_S, guards N_j x + m_j u that fall, resets x+ = A_j x + B_j u.

    All guards meet at x = 0, u = 0, which all resets leave in place; they do not commute otherwise,
    but change no guard, so that each fires once. The flow is exact, and piecewise affine.
    """

    def __init__(self, n, d, inputs, seed):
        self.n, self.seed = n, seed
        rng = np.random.default_rng(seed)
        self.normals = np.hstack([-np.eye(n), np.zeros((n, d - n))])
        self.see = 0.3 * rng.uniform(-1, 1, (n, inputs))
        low = np.eye(d)[:, n:]
        self.reset = np.eye(d) + np.array([low @ rng.normal(size=(d - n, d)) for _ in range(n)])
        self.enter = np.array([low @ rng.normal(size=(d - n, inputs)) for _ in range(n)])

    def field(self, fired):
        rng = np.random.default_rng([self.seed, *(int(j in fired) for j in range(self.n))])
        d = self.normals.shape[1]
        return np.concatenate([rng.uniform(0.5, 2.0, self.n), rng.normal(size=d - self.n)])

    def gains(self, fired, j):
        before, after, reset = self.field(fired), self.field(fired | {j}), self.reset[j]
        slope = self.normals[j] @ before
        rate = reset @ before
        return JumpGains(
            -self.normals[j] / slope, -self.see[j] / slope, reset, self.enter[j], after - rate, rate
        )

    def flow(self, x, duration, us):
        """Input us[k] holds until the k-th event, and is what its reset sees."""
        fired = frozenset()
        for u in us:
            f = self.field(fired)
            waits = {
                j: -(self.normals[j] @ x + self.see[j] @ u) / (self.normals[j] @ f)
                for j in range(self.n)
                if j not in fired
            }
            j = min(waits, key=waits.get)
            x, duration = x + waits[j] * f, duration - waits[j]
            x, fired = self.reset[j] @ x + self.enter[j] @ u, fired | {j}
        assert duration > 0.0
        return x + duration * self.field(fired)


@pytest.mark.parametrize("held_off", [False, True])
@pytest.mark.parametrize(("n", "d", "inputs"), [(1, 3, 1), (2, 3, 1), (3, 5, 2), (4, 6, 1)])
def test_resets_and_inputs_agree_with_the_exact_flow(n, d, inputs, held_off):
    """A piecewise affine flow, so the difference is the derivative to rounding."""
    system = Sampled(n, d, inputs, seed=n)
    piecewise, rng = (
        PiecewiseLinearJump([str(j) for j in range(n)], system.gains),
        np.random.default_rng(d),
    )
    start, end = -4.0 * system.field(frozenset()), 4.0 * system.field(frozenset(range(n)))
    seen = set()
    for _ in range(60):
        dx, du = rng.normal(size=d), rng.normal(size=inputs)
        dx[:n] *= 0.1
        us = [du * (k == 0 or not held_off) for k in range(n)]
        found = piecewise.follow(dx, inputs=us)
        if (np.diff(found.times) < 0.0).any():
            continue  # inputs may move a guard back over one that has fired: not a flow
        expected = system.flow(start + dx, 8.0, us) - end
        # Resets with entries of size 1 are applied n times to states of size 10.
        rounding = 1e-12 * 4.0**n
        np.testing.assert_allclose(found.state, expected, atol=rounding)
        if not held_off:
            np.testing.assert_allclose(piecewise(dx, du), found.state, atol=rounding)
        seen.add(tuple(found.orders))
    assert len(seen) >= min(n, 2)


def test_independent_jumps_are_linear_however_they_are_ordered():
    """Balls that bounce side by side: pieces for all orders, one map, no lineality lost to it."""
    n, restitution = 3, 0.5

    def bounce(fired, j):
        """State (z, v) of each ball, falling at 2 m/s before and rising at 1 m/s after."""
        reset = np.eye(2 * n)
        reset[2 * j + 1, 2 * j + 1] = -restitution
        time, field_change = np.zeros(2 * n), np.zeros(2 * n)
        time[2 * j] = 0.5
        field_change[2 * j], field_change[2 * j + 1] = 3.0, -9.81 * (1.0 + restitution)
        none = np.zeros((2 * n, 0))
        return JumpGains(time, np.zeros(0), reset, none, field_change, np.zeros(2 * n))

    piecewise = PiecewiseLinearJump(["a", "b", "c"], bounce)
    pieces = piecewise.pieces()
    assert {piece.order for piece in pieces} == set(permutations(range(n)))
    assert len(group_equal_pieces(pieces)) == 1
    assert piecewise.is_linear()
    block = np.array([[-0.5, 0.0], [9.81 * 0.75, -0.5]])
    np.testing.assert_allclose(piecewise(np.eye(2 * n)).T, np.kron(np.eye(n), block), atol=1e-14)
    assert piecewise.lineality().shape == (2 * n, n + 1)  # the velocities, and all heights at once


def test_gains_are_asked_for_when_needed_and_once():
    gains = RandomGains(3, 1, seed=0)
    piecewise = gains.piecewise()
    assert gains.asked == []
    dx = np.ones(piecewise.dimension)
    piecewise(dx)
    assert len(gains.asked) == len(set(gains.asked)) == 3 + 2 + 1
    piecewise(2.0 * dx)
    assert len(gains.asked) == 6

    def times(fired):
        jumps = [gains(fired, j) for j in range(3) if j not in fired]
        return np.array([g.time_state for g in jumps]), np.array([g.time_input for g in jumps])

    asked = []

    def only(fired, j):
        asked.append((fired, j))
        return gains(fired, j)

    quick = PiecewiseLinearJump(["a", "b", "c"], only, times)
    np.testing.assert_array_equal(quick(dx), piecewise(dx))
    assert len(asked) == 3


def test_what_does_not_fit_is_refused():
    piecewise = RandomGains(2, 1, seed=0, identity=True).piecewise()
    dx, du = np.ones(3), np.ones(1)
    with pytest.raises(InputError, match="not both"):
        piecewise(dx, du, inputs=[du, du])
    with pytest.raises(InputError, match="one entry for each of 2 guards, got 1"):
        piecewise(dx, inputs=[du])
    with pytest.raises(InputError, match=r"inputs\[1\] must have shape \(1,\) or \(m, 1\)"):
        piecewise(dx, inputs=[du, np.ones(2)])
    with pytest.raises(InputError, match="du must have one row for each of 1 dx, got 2"):
        piecewise(dx, np.ones((2, 1)))
    with pytest.raises(InputError, match="dx must have shape"):
        piecewise.order(np.ones((2, 3)))
    with pytest.raises(InputError, match="guards must be one or more different names"):
        PiecewiseLinearJump(["a", "a"], RandomGains(2, 0, 0))


@pytest.mark.parametrize(
    ("field_change", "reset", "entered"), [(4, None, 4), (3, np.ones((3, 2)), 3), (3, None, 4)]
)
def test_gains_that_do_not_fit_together_are_refused(field_change, reset, entered):
    def micro(fired, j):
        return JumpGains(
            np.ones(3),
            np.ones(1),
            reset,
            np.ones((entered, 1)),
            np.ones(field_change),
            np.ones(field_change),
        )

    with pytest.raises(SystemDefinitionError, match=r"guard 'a' after \[\] must fit together"):
        PiecewiseLinearJump(["a", "b"], micro)(np.ones(3))


def test_guards_of_one_phantom_mode_act_on_one_dimension():
    def micro(fired, j):
        size = 3 + j
        none = np.zeros((size, 0))
        return JumpGains(np.ones(size), np.zeros(0), None, none, np.ones(size), np.ones(size))

    with pytest.raises(SystemDefinitionError, match=r"guard 'b' after \[\] act on \(4, 0\)"):
        PiecewiseLinearJump(["a", "b"], micro)(np.ones(3))
