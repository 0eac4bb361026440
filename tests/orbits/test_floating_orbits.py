"""Orbits of floating bases up to symmetries: a plank that hops from one end to the other."""

from dataclasses import replace

import numpy as np
import pytest
from orbits.plank import FREE, GROUND, SPEED, C, G, hop, make_plank, make_robot

import hybridctl as hc
from hybridctl.control.lqr.periodic import LaterPeriod
from hybridctl.mechanics import Contact, contact_system
from hybridctl.mechanics.limb_symmetry import limb_symmetry, motion_symmetry
from hybridctl.orbits import periodic_orbit


@pytest.fixture(scope="module")
def plank():
    return make_plank(make_robot())


def test_half_an_orbit_up_to_the_exchange_of_ends_is_half_of_the_whole(plank):
    """Multipliers and monodromy of the whole are those of the half twice.

    Both orbits are found to 1e-9, and multipliers of families of orbits are double: they are right
    to the root of that.
    """
    x, _ = hop()
    exchange = limb_symmetry(plank, {}, {"left": "right"}, free=FREE)
    shift = motion_symmetry(plank, FREE)
    off = plank.space.integrate(x, 1e-3 * np.array([0, 0, 0, 0, 0, 0, 0, 0, 1.0, 0.5, 0, 0]))
    mode = ("open", "open")
    half = periodic_orbit(plank, mode, off, "right closes", horizon=1.0, symmetry=exchange)
    assert np.abs(exchange.gap(plank.space, half.state, half.trajectory.final_state)).max() < 1e-8
    whole = periodic_orbit(plank, mode, half.state, "left closes", horizon=1.0, symmetry=shift)
    assert whole.period == pytest.approx(2.0 * half.period, rel=1e-8)
    once = exchange.matrix @ half.linearization.state_transition
    twice = whole.linearization.state_transition
    np.testing.assert_allclose(once @ once, twice, rtol=0.0, atol=1e-5 * np.abs(twice).max())
    assert {"translation", "flow"} <= set(whole.multipliers.trivial.values())
    # The plank goes ahead by its speed, and ends nowhere else.
    moved = shift.align(plank.space, whole.state, whole.trajectory.final_state)[1]
    assert moved == pytest.approx([SPEED * whole.period], rel=1e-7)


def test_the_hop_of_the_closed_form_is_an_orbit(plank):
    x, time = hop()
    exchange = limb_symmetry(plank, {}, {"left": "right"}, free=FREE)
    orbit = periodic_orbit(plank, ("open",) * 2, x, "right closes", horizon=1.0, symmetry=exchange)
    assert orbit.period == pytest.approx(time, rel=1e-7)
    assert len(orbit.residuals) == 1
    np.testing.assert_allclose(orbit.state, x, rtol=0.0, atol=1e-9)


def test_a_turning_hop_closes_up_to_the_turn_of_its_path(plank):
    """A plank that spins about the vertical bounces on a foot below its centre."""
    robot = plank.robot
    foot = Contact("foot", "body", GROUND, offset=(0.0, 0.0, -C), restitution=1.0)
    system = contact_system(robot, [foot])
    ground = {"x": ("root_joint", "x"), "y": ("root_joint", "y"), "turn": ("root_joint", "yaw")}
    symmetry = motion_symmetry(system, ground)
    rise, spin = 1.0, 2.0
    x = np.array([0.3, -0.2, C, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, rise, 0.0, 0.0, spin])
    period = 2.0 * rise / G
    run = hc.simulate(system, ("open",), x, (0.0, 1.5 * period))
    after = run.events[0].state_after
    _, amounts = symmetry.align(system.space, x, after)
    assert amounts[2] == pytest.approx(spin * period, rel=1e-9)
    orbit = periodic_orbit(system, ("open",), after, "foot closes", horizon=1.0, symmetry=symmetry)
    assert orbit.period == pytest.approx(period, rel=1e-9)
    # The period maps the shifts to others, turned by spin * period.
    ways = symmetry.find_directions(after)[:, :2]
    turned = ways.T @ orbit.linearization.state_transition @ ways
    c, s = np.cos(spin * period), np.sin(spin * period)
    np.testing.assert_allclose(turned, [[c, s], [-s, c]], rtol=0.0, atol=1e-8)


def test_an_orbit_goes_on_as_its_image(plank):
    """The next half of a hop is the image of the first, in state, mode, guards and impulses."""
    x, time = hop()
    exchange = limb_symmetry(plank, {}, {"left": "right"}, free=FREE)
    orbit = periodic_orbit(plank, ("open",) * 2, x, "right closes", horizon=1.0, symmetry=exchange)
    once = orbit.trajectory
    later = LaterPeriod.from_orbit(once, exchange)
    run = hc.simulate(plank, ("open",) * 2, once.final_state, (time, 1.9 * time))
    arc = later.map_arc(once.arcs[0], 1)
    for t in np.linspace(time, 1.9 * time, 5):
        np.testing.assert_allclose(arc(t), run(t), rtol=0.0, atol=1e-8)
    event = later.map_event(once.events[0], 1)
    # A change of the law by the clock has impulses of no contact.
    by_clock = replace(once.events[0], guards=(), impulses=np.zeros(0))
    assert later.map_event(by_clock, 1).impulses.size == 0
    assert event.guards == ("left closes",)
    assert event.impulses[0] == pytest.approx(once.events[0].impulses[1])
    assert event.time == pytest.approx(2.0 * time)
