"""Events do not depend on the order in which guards are declared: times, guards, states, impulses.

Guards of several kinds are functions of x = t, with the time at which each falls through zero in
closed form. A guard that has fired is switched off by its reset, so that a run goes through all.
"""

import itertools

import numpy as np
import pytest
from hybrid.samples import ROUNDING

import hybridctl as hc
from hybridctl.base import errors
from hybridctl.hybrid.model import Jump

CASES = 25
RIGHT, UP = np.array([1.0, 0.0]), np.array([0.0, 2.0])
WINDOW = 1e-8  # s, the default of `simulate`: guards are one event within it


def crossing(rng, end):
    """A guard that falls through zero at `end`."""
    slope = 10.0 ** rng.uniform(-1, 1)
    return lambda x: slope * (end - x)


def dipping(rng, end):
    """A guard that falls through zero at `end` and rises again, 0.02 to 0.2 s later."""
    half = rng.uniform(0.01, 0.1)
    return lambda x: (x - end) * (x - end - 2.0 * half)


def bending(rng, end):
    """A guard that falls through zero at `end` along a curve."""
    rate = rng.uniform(0.5, 3.0)
    return lambda x: np.exp(-rate * x) - np.exp(-rate * end)


def held(rng, end):
    """A guard that is exactly zero for a while, from which it falls at `end`."""
    begin = rng.uniform(0.0, 0.95) * end
    return lambda x: max(begin - x, 0.0) if x < end else end - x


def jumping(rng, end):
    """A guard that is exactly zero for a while, from which it jumps at `end`."""
    begin = rng.uniform(0.0, 0.95) * end
    return lambda x: max(begin - x, 0.0) if x < end else -1.0 + (end - x)


def resting(rng, end):
    """A guard that comes to zero and stays there: it never fires."""
    begin = rng.uniform(0.0, 1.0)
    return lambda x: max(begin - x, 0.0)


FALLING = (crossing, dipping, bending, held, jumping)


def cases(rng):
    """Guards by their names, each with its time (s, infinite for never), and its impulses."""
    found, ends = {}, []
    for k in range(rng.integers(2, 6)):
        kind = rng.choice([*FALLING, resting])
        end = rng.uniform(0.05, 0.95)
        if ends and rng.random() < 0.4:
            end = rng.choice(ends) + rng.choice([0.0, 0.4 * WINDOW])
        impulses = np.zeros(0)
        if rng.random() < 0.6:
            impulses = np.where(np.arange(6) == k, rng.uniform(1.0, 2.0), 0.0)
        if kind is not resting:
            ends.append(end)
        found[f"g{k}"] = (kind(rng, end), end if kind is not resting else np.inf, impulses, k)
    return found


def system(guards, order):
    """The line x = t with switches y_k, which resets of the guards set; declared in this order."""

    def value(g, k):
        return lambda t, x, u: g(x[0]) if x[1 + k] < 0.5 else 1.0

    def reset(k, impulses):
        switched = np.where(np.arange(7) == 1 + k, 1.0, 0.0)
        return hc.Reset(lambda t, x, u: Jump(x + switched, impulses=impulses))

    flow = hc.Mode("go", hc.VectorSpace(7), lambda t, x, u: np.eye(7)[0])
    edges = [
        hc.Transition("go", hc.Guard(name, value(g, k)), reset(k, impulses), "go")
        for name, (g, _, impulses, k) in ((name, guards[name]) for name in order)
    ]
    return hc.HybridSystem([flow], edges)


def expected(guards):
    """Times, sets of guards and impulses of the events, in closed form."""
    ends = {name: end for name, (_, end, _, _) in guards.items() if end < 1.0}
    while ends:
        time = min(ends.values())
        together = {name for name, end in ends.items() if end <= time + WINDOW}
        reported = [guards[name][2] for name in together if len(guards[name][2])]
        yield time, together, np.sum(reported, axis=0) if reported else np.zeros(0)
        ends = {name: end for name, end in ends.items() if name not in together}


def orders(names, rng, most=6):
    """All orders of few guards, some of many."""
    every = list(itertools.permutations(names))
    return [every[i] for i in rng.permutation(len(every))[:most]]


@pytest.mark.parametrize("number", range(CASES))
def test_events_do_not_depend_on_the_order_of_declaration(number):
    rng = np.random.default_rng([15, number])
    guards = cases(rng)
    max_step = rng.choice([np.inf, 0.31, 0.07])
    want = list(expected(guards))
    for order in orders(list(guards), rng):
        run = hc.simulate(system(guards, order), "go", np.zeros(7), (0.0, 1.0), max_step=max_step)
        assert [set(event.guards) for event in run.events] == [names for _, names, _ in want]
        for event, (time, _, impulses) in zip(run.events, want, strict=True):
            # of guards near 1 known to 1e-16, that fall by 0.02 /s or faster: 1e-14, and the state
            # is that of a step to 64 roundings
            assert event.time == pytest.approx(time, abs=1e-13)
            assert event.impulses.shape == impulses.shape
            np.testing.assert_allclose(event.impulses, impulses, rtol=1e-15)
        fired = [0.0] * 6
        for _, names, _ in want:
            for name in names:
                fired[guards[name][3]] += 1.0
        np.testing.assert_allclose(run.final_state[1:], fired, atol=(1 + len(want)) * ROUNDING)


@pytest.mark.parametrize("depth", [1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.03])
@pytest.mark.parametrize("held_first", [True, False])
def test_a_guard_that_is_zero_until_later_does_not_join_an_event(depth, held_first):
    """One is exactly zero from 0.3 to 0.6 s, the other dips below zero around 0.5 s."""
    guards = {
        "held": lambda t, x, u: max(0.3 - x[0], 0.0) if x[0] < 0.6 else 0.6 - x[0],
        "dip": lambda t, x, u: (x[0] - 0.5) ** 2 - depth,
        "root": lambda t, x, u: 1.0,
    }
    modes = [
        hc.Mode(key, hc.VectorSpace(1), lambda t, x, u, v=speed: np.array([v]))
        for key, speed in (("go", 1.0), ("stop", 0.0))
    ]
    names = list(guards) if held_first else list(guards)[::-1]
    edges = [
        hc.Transition("go", hc.Guard(name, guards[name]), hc.Reset.identity(), "stop")
        for name in names
    ]
    run = hc.simulate(
        hc.HybridSystem(modes, edges),
        "go",
        [0.0],
        (0.0, 1.0),
        options=hc.SimulationOptions(first_step=1.0),
    )
    (event,) = run.events
    assert event.guards == ("dip",)
    half = np.sqrt(depth)
    assert event.time == pytest.approx(0.5 - half, abs=1e-15 / half)


def test_a_guard_whose_root_is_exact_takes_none_along_that_stays_at_zero():
    """0.5 - x is exactly zero at its root; the other guard is zero there and until 0.6 s."""
    guards = {
        "exact": lambda t, x, u: 0.5 - x[0],
        "held": lambda t, x, u: max(0.25 - x[0], 0.0) if x[0] < 0.6 else 0.6 - x[0],
    }
    for order in (("exact", "held"), ("held", "exact")):
        modes = [hc.Mode("go", hc.VectorSpace(1), lambda t, x, u: np.ones(1))]
        modes += [hc.Mode("stop", hc.VectorSpace(1), lambda t, x, u: np.zeros(1))]
        edges = [
            hc.Transition("go", hc.Guard(name, guards[name]), hc.Reset.identity(), "stop")
            for name in order
        ]
        run = hc.simulate(hc.HybridSystem(modes, edges), "go", [0.0], (0.0, 1.0), max_step=0.125)
        assert [event.guards for event in run.events] == [("exact",)]


def corner(first, second, order):
    """Two walls x > 0 and y > 0 with resets for both, met at once; declared in this order."""
    walls = {
        "a": (hc.Guard("a", lambda t, x, u: x[0]), first),
        "b": (hc.Guard("b", lambda t, x, u: x[1]), second),
    }
    modes = [
        hc.Mode(key, hc.VectorSpace(2), lambda t, x, u: -np.ones(2)) for key in ("", "a", "b", "ab")
    ]
    edges = []
    for name in order:
        guard, reset = walls[name]
        (other,) = set(order) - {name}
        edges += [hc.Transition("", guard, reset, name), hc.Transition(other, guard, reset, "ab")]
    return hc.HybridSystem(modes, edges)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_reset_that_reports_no_impulses_counts_as_zero(order):
    hit = hc.Reset(lambda t, x, u: Jump(x + RIGHT, impulses=np.array([3.0, 0.0])))
    bare = hc.Reset(lambda t, x, u: x + UP)
    run = hc.simulate(corner(hit, bare, order), "", [0.5, 0.5], (0.0, 0.75))
    (event,) = run.events
    np.testing.assert_array_equal(event.impulses, [3.0, 0.0])
    np.testing.assert_array_equal(event.state_after, [1.0, 2.0])


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_impulses_of_different_contacts_do_not_add_up(order):
    one = hc.Reset(lambda t, x, u: Jump(x + RIGHT, impulses=np.array([3.0, 0.0])))
    other = hc.Reset(lambda t, x, u: Jump(x + UP, impulses=np.array([1.0])))
    with pytest.raises(errors.SystemDefinitionError, match="impulses of the same contacts"):
        hc.simulate(corner(one, other, order), "", [0.5, 0.5], (0.0, 0.75))


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_where_one_guard_does_what_the_other_does_the_first_by_name_acts(order):
    """Either reset ends the event; both give the same state, by an impulse of its own contact."""
    walls = {"a": [2.0, 0.0], "b": [0.0, 2.0]}
    modes = [hc.Mode(key, hc.VectorSpace(2), lambda t, x, u: -np.ones(2)) for key in ("", "both")]
    edges = [
        hc.Transition(
            "",
            hc.Guard(name, lambda t, x, u, k=k: x[k]),
            hc.Reset(lambda t, x, u, p=walls[name]: Jump(x + 1.0, impulses=np.array(p))),
            "both",
        )
        for name, k in ((name, "ab".index(name)) for name in order)
    ]
    run = hc.simulate(hc.HybridSystem(modes, edges), "", [0.5, 0.5], (0.0, 0.75))
    np.testing.assert_array_equal(run.events[0].impulses, walls["a"])
    assert set(run.events[0].guards) == {"a", "b"}
