"""Any drop of a block or a ball ends well or says why not: a search for a counterexample.

A run may raise a `SimulationError` only where Coulomb's law leaves no way out: for a solid block
on a corner friction can do that (Painleve) from mu = 4/3 on. On a corner at an angle a from its
diagonal, with I = m r^2 / 3, W_nn - mu W_nt = (1 + 3 cos(a)^2 - 3 mu sin(a) cos(a)) / m, which is
positive for all a where mu < min (1 + 3 cos(a)^2) / (3 sin(a) cos(a)) = 4/3.
"""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import ball, block, cube
from hypothesis import event, given, settings
from hypothesis import strategies as st

import hybridctl as hc
from hybridctl.base.errors import (
    NoContactSolutionError,
    SeveralContactSolutionsError,
    SimulationError,
)
from hybridctl.mechanics import ContactDynamics, contact_system
from mechanics.impacts import violation

SPAN = 0.6
PERIOD = 0.005
PAINLEVE = 4.0 / 3.0
# The flow is accurate to 1e-9 of states up to 10 in size, per step; a step weighs ten in energy.
IN_ENERGY = 1e-7
MOST_STEPS = 20_000  # a run that takes as many goes nowhere


def numbers(low, high):
    """Any number of an interval, special ones among them, but none that only rounding could make.

    Speeds and angles below 1e-6 are not those of a drop, and are as good as zero.
    """
    grid = st.floats(low, high, allow_subnormal=False)
    return grid.map(lambda x: 0.0 if abs(x) < 1e-6 else x)


speeds = numbers(-5.0, 5.0)


@st.composite
def frictions(draw):
    """Restitution and both coefficients of friction."""
    kinetic = draw(st.one_of(st.just(0.0), numbers(0.0, 2.0), numbers(0.0, 0.5)))
    static = kinetic + draw(st.one_of(st.just(0.0), numbers(0.0, 1.0)))
    return draw(st.one_of(st.just(0.0), numbers(0.0, 0.9))), kinetic, static


@st.composite
def blocks(draw):
    restitution, kinetic, static = draw(frictions())
    parameters = block.BlockParameters(
        width=draw(st.floats(0.05, 0.4)),
        height=draw(st.floats(0.05, 0.4)),
        friction=kinetic,
        static_friction=static,
        restitution=restitution,
    )
    robot, contacts = block.robot(parameters), block.contacts(parameters)
    pitch = draw(st.one_of(st.just(0.0), numbers(-1.5, 1.5)))
    q = np.array([0.0, 0.0, pitch])
    q[1] = draw(numbers(0.0, 0.5)) - ContactDynamics(robot, contacts).gaps(q).min()
    return robot, contacts, np.array([*q, draw(speeds), draw(speeds), draw(speeds)])


@st.composite
def balls(draw):
    restitution, kinetic, static = draw(frictions())
    parameters = ball.BallParameters(
        slope=draw(numbers(-0.6, 0.6)), friction=kinetic, restitution=restitution
    )
    contacts = tuple(replace(c, static_friction=static) for c in ball.contacts(parameters))
    x = draw(numbers(-1.0, 1.0))
    z = draw(numbers(1e-3, 0.5)) - x * np.tan(parameters.slope)
    return ball.robot(parameters), contacts, np.array([x, z, draw(speeds), draw(speeds)])


@st.composite
def cubes(draw):
    parameters = cube.CubeParameters(
        friction=draw(numbers(0.0, 0.3)),
        restitution=draw(st.one_of(st.just(0.0), numbers(0.0, 0.5))),
    )
    robot, contacts = cube.robot(parameters), cube.contacts(parameters)
    quaternion = np.array([draw(numbers(-1.0, 1.0)) for _ in range(3)] + [1.0])
    q = np.array([0.0, 0.0, 0.0, *(quaternion / np.linalg.norm(quaternion))])
    q[2] = draw(numbers(1e-3, 0.1)) - ContactDynamics(robot, contacts).gaps(q).min()
    v = [draw(numbers(-1.0, 1.0)) for _ in range(3)] + [draw(speeds) for _ in range(3)]
    return robot, contacts, np.array([*q, *v])


class Guard:
    """Stops a run that does not come to an end."""

    def __init__(self):
        self.steps = 0

    def __call__(self, t):
        self.steps += 1
        if self.steps > MOST_STEPS:
            pytest.fail(f"still at t = {t} after {self.steps} steps")


def drop(robot, contacts, x0):
    """The run, or the SimulationError it raises."""
    system = contact_system(robot, contacts)
    mode = ("open",) * len(contacts)
    try:
        return hc.simulate(
            system, mode, x0, (0.0, SPAN), on_zeno="rest", max_events=400, progress=Guard()
        )
    except SimulationError as error:
        return error


def check_run(run, robot, contacts):
    dynamics, n = ContactDynamics(robot, contacts), robot.nq
    assert run.end == SPAN
    states = np.array([arc(t) for arc, times in run.sampled(PERIOD) for t in times])
    assert np.isfinite(states).all()
    # guards see a gap below -1e-8; after a rest one of that size closes at the rate of 20 / s
    assert min(dynamics.gaps(x[:n]).min() for x in states) >= -1e-6
    if not dynamics.restitution.any():
        energy = np.array([sum(robot.energy(x[:n], x[n:])) for x in states])
        assert np.diff(energy).max() <= IN_ENERGY * max(1.0, energy[0])


@settings(max_examples=20)
@given(case=blocks())
def test_a_block_falls_slides_rocks_and_rests(case):
    robot, contacts, x0 = case
    run = drop(robot, contacts, x0)
    event(type(run).__name__)
    if isinstance(run, SimulationError):
        assert isinstance(run, NoContactSolutionError | SeveralContactSolutionsError), run
        assert run.problem is not None
        assert contacts[0].friction >= PAINLEVE, run
    else:
        check_run(run, robot, contacts)


@settings(max_examples=30)
@given(case=balls())
def test_a_ball_bounces_slides_and_rests(case):
    """Normal and tangential motion of a point are not coupled: nothing is ever in the way."""
    robot, contacts, x0 = case
    run = drop(robot, contacts, x0)
    assert not isinstance(run, SimulationError), run
    check_run(run, robot, contacts)


@settings(max_examples=3)
@given(case=cubes())
def test_a_cube_tumbles(case):
    """In space, where friction is too low for a corner to jam.

    A face that lands flat and slides can share its load in more ways than one: then every
    solution that the error carries obeys Coulomb's law, and their velocities differ.
    """
    robot, contacts, x0 = case
    run = drop(robot, contacts, x0)
    if isinstance(run, SimulationError):
        assert isinstance(run, SeveralContactSolutionsError), run
        assert max(violation(run.problem, s.forces) for s in run.solutions) <= 1e-9
        rates = np.array([s.rates for s in run.solutions])
        assert np.ptp(rates, axis=0).max() > 1e-6
    else:
        check_run(run, robot, contacts)


def test_a_corner_that_moves_off_slowly_is_not_held_by_the_impact_of_another():
    """Two corners bounce in turn, closer than events are told apart, at less than 0.1 mm/s."""
    p = cube.CubeParameters(friction=0.1484375, restitution=0.4375)
    robot, contacts = cube.robot(p), cube.contacts(p)
    x0 = [0.0, 0.0, 0.08365, 0.0, 0.0, 0.0, 1.0, 0.0, 0.4140625, 0.0, 2.0, 0.0, 3.5]
    run = drop(robot, contacts, np.array(x0))
    assert not isinstance(run, SimulationError), run
    check_run(run, robot, contacts)


@pytest.mark.parametrize("restitution", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("friction", [0.0, 0.4, 1.2])
@pytest.mark.parametrize("sideways", [0.0, 1.0])
def test_a_block_that_falls_flat(restitution, friction, sideways):
    """Both corners at once, and exactly so: the drop that random numbers do not find."""
    p = block.BlockParameters(friction=friction, restitution=restitution)
    robot, contacts = block.robot(p), block.contacts(p)
    x0 = [0.0, 0.5 * p.height + 0.01, 0.0, sideways, 0.0, 0.0]
    run = drop(robot, contacts, x0)
    assert not isinstance(run, SimulationError), run
    check_run(run, robot, contacts)
    energy = sum(robot.energy(run.final_state[:3], run.final_state[3:]))
    # 0.6 s are enough for the bouncing to end: t = sqrt(2 h / g) (1 + e) / (1 - e) = 0.41 s
    assert energy <= 9.81 * 0.5 * p.height + 0.5 * sideways**2 + IN_ENERGY
    np.testing.assert_allclose(run.final_state[[1, 2, 4, 5]], [0.5 * p.height, 0, 0, 0], atol=1e-6)
