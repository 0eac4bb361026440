"""One robot, one system, many threads: the numbers are those of one thread."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hybridctl.robots import block, cube

import hybridctl as hc
from attack import api
from attack.machines import machine

WORKERS = 8


@pytest.fixture(autouse=True)
def _eager_switching():
    """Threads take turns as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(call, cases):
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(call, cases))


def starts(count):
    """Blocks thrown above the floor."""
    rng = np.random.default_rng(8)
    return [np.array([0.0, 0.3, 0.2 * a, *v]) for a, *v in rng.normal(size=(count, 4))]


COUNTS = [8]


@pytest.mark.parametrize("count", COUNTS)
def test_simulations_that_share_a_system(count):
    system = block.system()

    def ends(x0):
        run = hc.simulate(system, ("open", "open"), x0, (0.0, 0.5), on_zeno="rest")
        return np.append(run.final_state, [event.time for event in run.events])

    cases = starts(count)
    for alone, together in zip([ends(x) for x in cases], in_threads(ends, cases), strict=True):
        np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("count", COUNTS)
def test_simulations_whose_systems_share_a_robot(count):
    robot, contacts = block.robot(), block.contacts()

    def ends(x0):
        system = hc.mechanics.contact_system(robot, contacts)
        return hc.simulate(system, ("open", "open"), x0, (0.0, 0.4), on_zeno="rest").final_state

    cases = starts(count)
    for alone, together in zip([ends(x) for x in cases], in_threads(ends, cases), strict=True):
        np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("count", COUNTS)
def test_linearizations_that_share_a_system(count):
    system = block.system()

    def transition(x0):
        run = hc.simulate(system, ("open", "open"), x0, (0.0, 0.25))
        return hc.linearize(system, run).derivative(np.eye(6))

    cases = starts(count)
    alone = [transition(x) for x in cases]
    for one, together in zip(alone, in_threads(transition, cases), strict=True):
        np.testing.assert_array_equal(together, one)


@pytest.mark.parametrize("count", COUNTS)
def test_time_stepping_with_one_robot(count):
    robot, contacts = cube.robot(), cube.contacts()
    rng = np.random.default_rng(9)

    def ends(v):
        x0 = np.array([0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0, *v])
        return hc.mechanics.time_stepping(robot, contacts, x0, (0.0, 0.05)).final_state

    cases = list(rng.normal(size=(count, 6)))
    for alone, together in zip([ends(v) for v in cases], in_threads(ends, cases), strict=True):
        np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("count", COUNTS)
def test_impacts_of_one_robot(count):
    rng = np.random.default_rng(10)
    each = machine(rng, "floating", 9, 3, friction=0.3, restitution=0.0)

    def after(v):
        return api.strike(each, v, (0, 1, 2)).velocity

    cases = list(rng.normal(size=(4 * count, each.model.nv)))
    for alone, together in zip([after(v) for v in cases], in_threads(after, cases), strict=True):
        np.testing.assert_array_equal(together, alone)
