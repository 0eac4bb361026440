"""Impacts of several contacts that stay one: what perturbed motions do within an event window."""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import block, public
from sensitivity.test_boundary import landing_level

import hybridctl as hc
from hybridctl.base.errors import AmbiguousEventError, GrazingError, InputError
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.mechanics import contact_system
from hybridctl.mechanics.parameters import parameter_derivatives
from hybridctl.orbits.return_map import periodic_orbit
from hybridctl.orbits.stability import stability
from hybridctl.sensitivity.parameters import parameter_sensitivity

TIGHT = {"rtol": 1e-12, "atol": 1e-12}
WINDOW = 1e-3  # s, far above what perturbations of 1e-6 put between contacts that land at 1 m/s
OPEN = ("open", "open")


def assert_one_sided(system, mode, x0, end, seed=0, **options):
    """Differences of whole runs on one side, extrapolated, agree to 1e-5 of their size.

    What is left of them is of third order, 1e-12 of some 1e2, and 1e-12 of a run over 1e-6.
    """
    run = hc.simulate(system, mode, x0, (0.0, end), event_window=WINDOW, **TIGHT)
    lin = hc.linearize(system, run, simultaneous="at once", rtol=1e-10, atol=1e-10)
    assert len(run.events[0].guards) == len(mode)
    space, after = system.mode(mode).space, system.mode(run.final_mode).space
    d = np.random.default_rng(seed).normal(size=space.ndx)
    d /= np.linalg.norm(d)
    quotients = []
    for h in (1e-6, 0.5e-6):
        start = space.integrate(x0, h * d)
        moved = hc.simulate(system, mode, start, (0.0, end), event_window=WINDOW, **TIGHT)
        quotients.append(after.difference(run.final_state, moved.final_state) / h)
    found, expected = 2.0 * quotients[1] - quotients[0], lin.derivative(d)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("friction", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("size", [(0.1, 0.02), (1.0, 0.1), (0.1, 0.3)])
def test_planks_and_a_high_block(size, friction):
    """The high block has no derivative where its corners land in turn."""
    system, x0 = landing_level(*size, friction, 0.2)
    assert_one_sided(system, OPEN, x0, 0.06)


def check_landing(public_name, friction, end):
    robot = public.robot(public_name)
    contacts = [
        replace(c, friction=friction, static_friction=friction)
        for c in public.contacts(public_name)
    ]
    system = contact_system(robot, contacts)
    assert_one_sided(system, ("open",) * len(contacts), public.start(public_name), end)


@pytest.mark.parametrize(("friction", "end"), [(0.3, 0.0455), (0.5, 0.0455), (0.7, 0.048)])
def test_a_quadruped_lands_on_four_feet(friction, end):
    """They touch at 45.15 ms and stick, or slide; at friction 0.5 they stop at 45.94 ms."""
    check_landing("solo12", friction, end)


@pytest.mark.slow
@pytest.mark.parametrize(("friction", "end"), [(0.5, 0.048), (0.9, 0.048)])
def test_a_quadruped_goes_on_to_a_stop(friction, end):
    check_landing("solo12", friction, end)


@pytest.mark.slow
@pytest.mark.parametrize(
    "friction", [0.3, 0.5, *(pytest.param(mu, marks=pytest.mark.long) for mu in (0.7, 0.9))]
)
def test_a_humanoid_lands_on_two_soles(friction):
    """Eight redundant corners: all slide at friction 0.3, some are at the border of stick else."""
    check_landing("talos", friction, 0.0456)


def test_a_foot_that_is_above_the_ground_when_another_lands_is_not_the_first():
    """A tilt of 1e-3 puts 4e-5 s between the corners: the derivative is linear, along every way."""
    system, x0 = landing_level(0.1, 0.3, 0.5, 0.2)
    x0[2] += 1e-3
    run = hc.simulate(system, OPEN, x0, (0.0, 0.06), event_window=WINDOW, **TIGHT)
    assert len(run.events[0].guards) == 2
    assert hc.linearize(system, run, simultaneous="at once").is_linear
    for tilt in (1.0, -1.0):
        x0[2] = tilt * 1e-3
        assert_one_sided(system, OPEN, x0, 0.06)


@pytest.mark.parametrize(
    ("plank", "seed", "window", "ends"),
    [
        ((0.1, 0.3, 0.5, 0.2), 2, 1e-2, "curvature"),
        ((1.0, 0.1, 0.5, 0.2), 0, 1e-2, "touches apart"),
        ((0.1, 0.3, 0.3, 3.0), 0, 1e-2, "another impact"),
    ],
)
def test_the_radius_is_where_runs_with_that_window_are_off(plank, seed, window, ends):
    """By curvature, where corners touch farther apart than the window, and where the impact no
    longer holds a corner down, which shows in the motion alone. Measured within 15 % on 15 cases.
    """
    system, x0 = landing_level(*plank)
    run = hc.simulate(system, OPEN, x0, (0.0, 0.06), event_window=window, **TIGHT)
    lin = hc.linearize(system, run, simultaneous="at once", rtol=1e-10, atol=1e-10)
    d = np.random.default_rng(seed).normal(size=6)
    d /= np.linalg.norm(d)
    radius = lin.radius(d, event_window=window)

    def off(size):
        moved = hc.simulate(system, OPEN, x0 + size * d, (0.0, 0.06), event_window=window, **TIGHT)
        error = moved.final_state - run.final_state - size * lin.derivative(d)
        return np.linalg.norm(error) / np.linalg.norm(size * lin.derivative(d))

    assert off(0.5 * radius.size) < 0.1 <= off(1.2 * radius.size)
    assert (radius.size == radius.curvature) == (ends == "curvature")
    assert (radius.size == radius.order.size) == (ends == "touches apart")
    with pytest.raises(InputError, match="event_window must be given"):
        lin.radius(d)
    alone = hc.linearize(system, run) if plank[0] == 1.0 else None
    if alone is not None:
        with pytest.raises(InputError, match="event_window is for maps"):
            alone.radius(d, event_window=window)


def simulate_only_event(system, x0):
    run = hc.simulate(system, OPEN, x0, (0.0, 0.04), **TIGHT)
    assert run.events[0].guards == ("left closes", "right closes")
    return run.events[0]


def test_a_block_that_sticks_by_hand():
    """It stops where a corner touches: dt = (dz - w / 2 |dtheta|) / V, dx+ = dx + v_x dt."""
    width, slide = 0.1, 0.2
    system, x0 = landing_level(width, 0.3, 0.5, slide)
    event = simulate_only_event(system, x0)
    with pytest.raises(AmbiguousEventError, match="simultaneous='at once'"):
        hc.jump_derivative(system, event)
    jump = hc.jump_derivative(system, event, simultaneous="at once")
    assert [piece.order[0] for piece in jump.pieces()] == [0, 1]
    for d in np.random.default_rng(2).normal(size=(8, 6)):
        dt = (d[1] - 0.5 * width * abs(d[2])) / -event.state_before[4]
        expected = [d[0] + slide * dt, 0.0, 0.0, 0.0, 0.0, 0.0]
        np.testing.assert_allclose(jump(d), expected, atol=1e-11)


def test_corners_that_land_together_at_the_border_stick_in_the_end():
    """A flat block hits sideways at mu |v_n|: whether it slips briefly makes no difference."""
    friction, fall = 0.3, 1.0
    system, x0 = landing_level(0.5, 0.05, friction, 0.0)
    speed = np.sqrt(fall**2 + 2.0 * 9.81 * 0.025)
    x0[3] = friction * speed
    event = simulate_only_event(system, x0)
    assert event.report.border == (0, 1)
    jump = hc.jump_derivative(system, event, simultaneous="at once")
    for d in np.random.default_rng(3).normal(size=(4, 6)):
        dt = (d[1] - 0.25 * abs(d[2])) / speed
        expected = [d[0] + x0[3] * dt, 0.0, 0.0, 0.0, 0.0, 0.0]
        np.testing.assert_allclose(jump(d), expected, atol=1e-9)


def test_corners_at_the_border_that_bounce_are_refused():
    friction, e = 0.3, 0.4
    p = block.BlockParameters(width=0.5, height=0.05, friction=friction, restitution=e)
    speed = np.sqrt(1.0 + 2.0 * 9.81 * 0.025)
    x0 = np.array([0.0, 0.05, 0.0, friction * (1.0 + e) * speed, -1.0, 0.0])
    system = block.system(p)
    event = simulate_only_event(system, x0)
    assert event.report.border == (0, 1)
    with pytest.raises(InputError, match=r"at once at t = 0\.02.*border"):
        hc.jump_derivative(system, event, simultaneous="at once")


def test_friction_of_a_block_that_lands_sliding_by_hand():
    """v_x+ = v_x - mu V, and so slows down by mu g: also by parameters."""
    p = block.BlockParameters(width=0.1, height=0.3, friction=0.3)
    system, end = block.system(p), 0.04
    x0 = np.array([0.0, 0.175, 0.0, 3.0, -1.0, 0.0])
    run = hc.simulate(system, OPEN, x0, (0.0, end), **TIGHT)
    assert run.final_mode == ("slip+", "slip+")
    robot, contacts = block.robot(p), block.contacts(p)
    by = parameter_derivatives(robot, contacts, ("friction:left", "friction:right"))
    found = parameter_sensitivity(system, run, by, simultaneous="at once")
    after, speed = end - run.events[0].time, -run.events[0].state_before[4]
    lost = speed + p.gravity * after
    expected = [-speed * after - 0.5 * p.gravity * after**2, 0.0, 0.0, -lost, 0.0, 0.0]
    np.testing.assert_allclose(found.derivative([1.0, 1.0]), expected, atol=1e-8)


def test_feedback_that_made_the_run_and_feedback_closed_afterwards_agree():
    p = block.BlockParameters(width=0.1, height=0.3, friction=0.3)
    system = contact_system(block.robot(p, actuated=True), block.contacts(p))
    gain = 0.1 * np.random.default_rng(4).normal(size=(3, 6))
    law = DifferentiableLaw(
        lambda t, x: -gain @ x, lambda t, x: -gain, lambda t, x: np.zeros(len(gain))
    )
    start, t = np.array([0.0, 0.175, 0.0, 3.0, -1.0, 0.0]), (0.0, 0.03)
    free = hc.simulate(system, OPEN, start, t, law, event_window=WINDOW, **TIGHT)
    lin = hc.linearize(system, free, policy=law, simultaneous="at once")
    recorded = hc.linearize(system, free, simultaneous="at once")
    closed = recorded.closed_loop([gain] * len(free.arcs))
    for d in np.random.default_rng(5).normal(size=(3, 6)):
        np.testing.assert_allclose(lin.derivative(d), closed.derivative(d), atol=1e-7)


def test_the_orbit_of_a_block_that_bounces_on_both_corners_at_once():
    """Shaken so that it bounces once a period; closed form of a ball on a table. A tilt puts one
    corner first, by dt = -(w / 2) |dtheta| / V: the return map has a kink. Differences are taken at
    the level start itself, as at h = 1e-6 the orbit's own tilt of 1e-9 would show.
    """
    e, amplitude, period = 0.7, 6.0, 0.5
    p = block.BlockParameters(width=0.1, height=0.3, friction=0.5, restitution=e)
    system, rate = block.system(p, actuated=True), 2.0 * np.pi / period
    speed = (1.0 - e) / (1.0 + e) * 0.5 * p.gravity * period
    phase, leaves = np.arccos(speed * rate / amplitude), 0.5 * p.gravity * period
    after = period - phase / rate
    height = amplitude / rate**2 * np.sin(phase) + leaves * after - 0.5 * p.gravity * after**2
    x0 = np.zeros(6)
    x0[[1, 4]] = 0.5 * p.height + height, leaves - p.gravity * after - amplitude / rate

    def push(t):
        return np.array([0.0, p.mass * amplitude * np.sin(rate * t), 0.0])

    with pytest.raises(AmbiguousEventError, match="simultaneous='at once'"):
        periodic_orbit(system, OPEN, x0, period, input=push)
    orbit = periodic_orbit(
        system, OPEN, x0 + 1e-3 * np.eye(6)[4], period, input=push,
        event_window=WINDOW, simultaneous="at once",
    )  # fmt: skip
    np.testing.assert_allclose(orbit.state[[1, 2, 4, 5]], x0[[1, 2, 4, 5]], atol=1e-8)
    assert not orbit.return_map.is_linear
    seen = set()
    for d in np.random.default_rng(6).normal(size=(4, 6)):
        quotients = []
        for h in (1e-6, 0.5e-6):
            moved = hc.simulate(
                system, OPEN, x0 + h * d, (0.0, period), lambda t, x: push(t),
                event_window=WINDOW, **TIGHT,
            )  # fmt: skip
            quotients.append((moved.final_state - x0) / h)
        found = 2.0 * quotients[1] - quotients[0]
        expected = orbit.return_map(d)
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5 * np.abs(expected).max())
        seen.add(int(orbit.return_map.find_pieces(d[None])[0]))
    assert len(seen) == 2
    assert stability(orbit).growth[1] >= 1.0


def test_guards_of_which_none_falls_are_grazed():
    system, x0 = landing_level(0.1, 0.3, 0.5, 0.2)
    (event, *_) = hc.simulate(system, OPEN, x0, (0.0, 0.06), event_window=WINDOW, **TIGHT).events
    at_rest = event.state_before.copy()
    at_rest[3:] = 0.0
    with pytest.raises(GrazingError, match="not crossed transversally"):
        hc.jump_derivative(system, replace(event, state_before=at_rest), simultaneous="at once")
