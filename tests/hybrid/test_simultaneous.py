"""Guards that fire together or nearly so: none is lost, and their resets are composed."""

from itertools import permutations

import numpy as np
import pytest
from hybrid.samples import GRAVITY, feet

import hybridctl as hc
from hybridctl.base.errors import AmbiguousEventError, NoContactSolutionError
from hybridctl.hybrid.mode import Edge, GuardSet, Outgoing

WINDOW = 1e-8
GAPS = [10.0**-k for k in range(2, 13)] + [0.0]


def touches(traj):
    return [(name, event.time) for event in traj.events for name in event.guards]


def touch_times(drop, heights, damping, gravity):
    """Closed form: fall from rest, velocity times damping at each foot in the order of height."""
    times, y, v, t = [], drop, 0.0, 0.0
    for h in sorted(heights):
        fall = y + h
        dt = 2.0 * fall / (-v + np.sqrt(v * v + 2.0 * gravity * fall)) if fall > 0 else 0.0
        t, y, v = t + dt, -h, damping * (v - gravity * dt)
        times.append(t)
    return times


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("higher", [0, 1])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e3])
def test_two_guards_with_any_gap_both_fire_once(gap, higher, scale):
    heights = [0.0, 0.0]
    heights[higher] = gap * scale
    gravity = GRAVITY * scale
    traj = hc.simulate(feet(heights, 0.5, gravity), ("0", "1"), [scale, 0.0], (0.0, 1.0))
    fired = touches(traj)
    assert sorted(name for name, _ in fired) == ["0", "1"]
    assert traj.final_mode == ()
    # joined events are at most a window apart; rounding of lengths gives 1e-12 s
    np.testing.assert_allclose(
        [t for _, t in fired],
        touch_times(scale, heights, 0.5, gravity),
        rtol=0,
        atol=1e-12 + WINDOW * (len(traj.events) == 1) / 0.5,
    )


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.999, 1.0 - 1e-9, 1.0, 1.001, 1.1, 1.999, 2.0, 3.0])
@pytest.mark.parametrize("higher", [0, 1])
@pytest.mark.parametrize("damping", [1.0, 1e-3])
def test_gap_around_the_event_window_loses_nothing(ratio, higher, damping):
    heights = [0.0, 0.0]
    heights[higher] = ratio * WINDOW * np.sqrt(2.0 * GRAVITY)
    traj = hc.simulate(feet(heights, damping), ("0", "1"), [1.0, 0.0], (0.0, 1.0))
    assert sorted(name for name, _ in touches(traj)) == ["0", "1"]
    assert len(traj.events) == (1 if ratio < 0.99 else 2 if ratio > 1.01 else len(traj.events))
    # the velocity halves once per touch, whatever the grouping: v = damping^2 v0 - g (T - t)
    (t1, t2) = (t for _, t in touches(traj))
    v = damping * (-damping * GRAVITY * t1 - GRAVITY * (t2 - t1)) - GRAVITY * (1.0 - t2)
    assert traj.final_state[1] == pytest.approx(v, abs=1e-11)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_many_guards_with_mixed_gaps_all_fire_once(n):
    rng = np.random.default_rng(n)
    names = tuple(str(i) for i in range(n))
    for _ in range(10):
        heights = rng.permutation(np.cumsum(np.append(0.0, rng.choice(GAPS, n - 1))))
        traj = hc.simulate(feet(heights, 0.9), names, [1.0, 0.0], (0.0, 1.0))
        assert sorted(name for name, _ in touches(traj)) == sorted(names)
        assert traj.final_mode == ()


def two_walls(*resets, joint=None, impulses=False):
    """x moves along (-1, -1) into the corner of two walls, each with its own reset."""
    space, modes = hc.VectorSpace(2), ["00", "10", "01", "11"]
    field = lambda t, x, u: -np.ones(2)  # noqa: E731
    a = hc.Guard("a", lambda t, x, u: x[0])
    b = hc.Guard("b", lambda t, x, u: x[1])
    edges = [
        hc.Transition("00", a, resets[0], "10"),
        hc.Transition("00", b, resets[1], "01"),
        hc.Transition("10", b, resets[1], "11"),
        hc.Transition("01", a, resets[0], "11"),
    ]
    if joint is not None:
        edges.append(hc.Transition("00", [b, a], joint, "11"))
    return hc.HybridSystem([hc.Mode(key, space, field) for key in modes], edges)


def affine(matrix, offset=(0.0, 0.0)):
    return hc.Reset(lambda t, x, u: np.asarray(matrix) @ x + offset)


def test_commuting_resets_are_composed_in_one_event():
    system = two_walls(affine(np.eye(2), (1.0, 0.0)), affine(np.eye(2), (0.0, 2.0)))
    traj = hc.simulate(system, "00", [0.5, 0.5], (0.0, 0.75))
    (event,) = traj.events
    assert event.guards == ("a", "b")
    assert (event.mode_before, event.mode_after) == ("00", "11")
    np.testing.assert_allclose(event.state_after, [1.0, 2.0], atol=1e-15)  # two additions


def test_resets_that_do_not_commute_are_ambiguous():
    """(1, 0) and (1, 2) one way; (0, 2) and (3, 0) the other."""
    system = two_walls(affine([[0, 1], [1, 0]], (1.0, 0.0)), affine(np.eye(2), (0.0, 2.0)))
    with pytest.raises(AmbiguousEventError, match=r"order matters.*differ by up to 2;"):
        hc.simulate(system, "00", [0.5, 0.5], (0.0, 1.0))


def test_orders_that_lead_to_states_of_different_dimensions_are_ambiguous():
    """The first guard leads to a mode of its own, in which the other has no effect."""
    plane, line = hc.VectorSpace(2), hc.VectorSpace(1)
    start = hc.Mode("start", plane, lambda t, x, u: np.array([-1.0, 0.0]))
    modes = [start, *(hc.Mode(key, space, lambda t, x, u: 0.0 * x)
                      for key, space in (("a", plane), ("b", line)))]  # fmt: skip
    guard = lambda name: hc.Guard(name, lambda t, x, u: x[0])  # noqa: E731
    system = hc.HybridSystem(
        modes,
        [
            hc.Transition("start", guard("a"), hc.Reset.identity(), "a"),
            hc.Transition("start", guard("b"), hc.Reset(lambda t, x, u: x[:1]), "b"),
        ],
    )
    with pytest.raises(AmbiguousEventError, match=r"differ by up to their dimension \(2 and 1\)"):
        hc.simulate(system, "start", [0.5, 0.5], (0.0, 1.0))


def test_joint_transition_is_preferred_to_the_single_ones():
    shear = affine([[1, 1], [0, 1]], (0.0, 2.0))
    system = two_walls(affine([[0, 1], [1, 0]]), shear, joint=affine(np.eye(2), (7.0, 8.0)))
    (event,) = hc.simulate(system, "00", [0.5, 0.5], (0.0, 1.0)).events
    np.testing.assert_allclose(event.state_after, [7.0, 8.0], atol=1e-15)
    assert event.mode_after == "11"


@pytest.mark.parametrize("n", [4, 5, 6])
@pytest.mark.parametrize("culprits", [(0, 1), (1, 2), (0, -1)])
def test_one_pair_that_does_not_commute_among_many_guards_is_found(n, culprits):
    i, j = (k % n for k in culprits)
    names = [str(k) for k in range(n)]

    def reset(k):
        if k == i:
            return hc.Reset(lambda t, x, u: x * np.array([1.0, 2.0]))
        if k == j:
            return hc.Reset(lambda t, x, u: x + np.array([0.0, 1.0]))
        return hc.Reset.identity()

    system = hc.HybridSystem(
        [hc.Mode("m", hc.VectorSpace(2), lambda t, x, u: np.array([-1.0, 0.0]))],
        [
            hc.Transition("m", hc.Guard(name, lambda t, x, u: x[0]), reset(k), "m")
            for k, name in enumerate(names)
        ],
    )
    with pytest.raises(AmbiguousEventError):
        hc.simulate(system, "m", [0.5, 1.0], (0.0, 1.0))


def latch(n, trips):
    """n guards that reach zero together; each mode is the order in which they have fired.

    The last reset adds 1 to the second coordinate where the whole order is in `trips`.
    """
    names = [str(k) for k in range(n)]
    counted = []

    def outgoing(fired):
        def edge(guards):
            if len(guards) > 1:
                return None
            order = (*fired, *guards)

            def reset(t, x, u):
                counted.append(order)
                return x + np.array([0.0, 1.0 if order in trips else 0.0])

            done = len(order) == n
            return Edge(hc.Reset(reset), "done" if done else order)

        left = () if fired == "done" else tuple(name for name in names if name not in fired)
        guards = GuardSet(left, lambda t, x, u: np.full(len(left), x[0]))
        return Outgoing(guards, edge)

    def mode(key):
        return hc.Mode(key, hc.VectorSpace(2), lambda t, x, u: np.array([-1.0, 0.0]))

    return hc.HybridSystem(mode, outgoing), counted


def test_one_order_of_five_guards_that_differs_is_found():
    """It is no rotation of the declared order, forwards or backwards."""
    system, _ = latch(5, [("0", "2", "1", "3", "4")])
    with pytest.raises(AmbiguousEventError, match="order matters") as caught:
        hc.simulate(system, (), [0.5, 0.0], (0.0, 1.0))
    assert ("0", "2", "1", "3", "4") in caught.value.orders
    differences = np.subtract(*caught.value.states)
    np.testing.assert_array_equal(np.abs(differences), [0.0, 1.0])


def test_orders_that_differ_on_the_way_and_agree_in_the_end_are_one_event():
    """The modes between are one for each order; what the last reset leaves is the same."""
    system, counted = latch(4, list(permutations("0123")))
    (event,) = hc.simulate(system, (), [0.5, 0.0], (0.0, 1.0)).events
    np.testing.assert_allclose(event.state_after, [0.0, 1.0], atol=1e-12)
    assert set(permutations("0123")) <= set(counted)


def many_feet(n):
    resets = []

    def reset(t, x, u):
        resets.append(t)
        return x * np.array([1.0, 0.5])

    def outgoing(left):
        guards = GuardSet(left, lambda t, x, u: np.full(len(left), x[0]))

        def edge(fired):
            if len(fired) > 1:
                return None
            return Edge(hc.Reset(reset), tuple(name for name in left if name not in fired))

        return Outgoing(guards, edge)

    def mode(key):
        return hc.Mode(key, hc.VectorSpace(2), lambda t, x, u: np.array([-1.0, 0.0]))

    names = tuple(str(k) for k in range(n))
    return hc.HybridSystem(mode, outgoing), names, resets


@pytest.mark.parametrize("n", [5, 8, pytest.param(12, marks=pytest.mark.slow)])
def test_all_orders_of_many_guards_are_compared_on_the_sets_that_have_fired(n):
    """One state for each of 2^n sets, one reset for each of n 2^(n - 1) steps between them."""
    system, names, resets = many_feet(n)
    (event,) = hc.simulate(system, names, [0.5, 1.0], (0.0, 1.0)).events
    assert event.mode_after == ()
    assert event.state_after[1] == pytest.approx(0.5**n, rel=1e-12)
    assert len(resets) <= n * 2 ** (n - 1) + n


def test_more_guards_than_can_be_compared_are_refused():
    system, names, resets = many_feet(20)
    with pytest.raises(AmbiguousEventError, match=r"20 guards .* a transition of their own"):
        hc.simulate(system, names, [0.5, 1.0], (0.0, 1.0))
    assert len(resets) < 40_000


def test_impulses_of_composed_resets_add_up():
    def push(k):
        unit = np.eye(2)[k]
        return hc.Reset(lambda t, x, u: hc.Jump(x + 1.0, impulses=(k + 1) * unit))

    (event,) = hc.simulate(two_walls(push(0), push(1)), "00", [0.5, 0.5], (0.0, 1.0)).events
    np.testing.assert_array_equal(event.impulses, [1.0, 2.0])


def switching(select=None, target=None, jump_mode=None):
    """A falling point whose mode after the event is decided by target, reset or select."""
    space = hc.VectorSpace(1)
    names = ("fall", "rest", "rise")
    speed = {"fall": -1.0, "rest": 0.0, "rise": 1.0}
    modes = [
        hc.Mode(key, space, lambda t, x, u, s=speed[key]: np.array([s]), 1, select=select)
        for key in names
    ]
    guard = hc.Guard("touch", lambda t, x, u: x[0])
    reset = hc.Reset(lambda t, x, u: hc.Jump(x, jump_mode))
    return hc.HybridSystem(modes, [hc.Transition("fall", guard, reset, target)])


def test_reset_decides_the_mode_before_the_target_does():
    traj = hc.simulate(switching(target="rest", jump_mode="rise"), "fall", [1.0], (0.0, 2.0))
    assert traj.events[0].mode_after == traj.final_mode == "rise"


@pytest.mark.parametrize(("lift", "mode"), [(1.0, "rise"), (-1.0, "rest")])
def test_select_decides_the_mode_with_the_input_after_the_event(lift, mode):
    select = lambda t, x, u: "rise" if u[0] > 0 else "rest"  # noqa: E731

    class Lift:
        def law(self, history):
            value = lift if history.events else 0.0
            return lambda t, x: np.array([value])

    traj = hc.simulate(switching(select, target="rest"), "fall", [1.0], (0.0, 2.0), Lift())
    assert traj.final_mode == mode
    np.testing.assert_array_equal(traj.events[0].input_after, [lift])


def test_select_without_a_consistent_mode_is_an_error():
    select = lambda t, x, u: "rest" if u[0] > 0 else "rise"  # noqa: E731

    class Contrary:
        def law(self, history):
            value = 1.0 if history.mode == "rise" else -1.0
            return lambda t, x: np.array([value])

    with pytest.raises(NoContactSolutionError, match="tried"):
        hc.simulate(switching(select, target="rest"), "fall", [1.0], (0.0, 2.0), Contrary())
