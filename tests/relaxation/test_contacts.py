"""Relaxed robots with contacts tend to rigid ones as the square root of the strip's width."""

import numpy as np
import pytest
from hybridctl.robots import ball, block, cube

import hybridctl as hc
from hybridctl.errors import InputError
from hybridctl.mechanics import time_stepping
from hybridctl.relaxing import damping_ratio, relax
from hybridctl.sensitivity.return_map import periodic_orbit

OPEN = ("open", "open")
G = 9.81


@pytest.mark.parametrize("restitution", [1.0, 0.9, 0.5, np.exp(-2.0), 0.1, 0.01])
def test_a_damped_spring_that_cannot_pull_rebounds_with_its_restitution(restitution):
    """x'' = -x - 2 zeta x' from x = 0, x' = -1 until x + 2 zeta x' = 0, by its matrix exponential:
    with roots -zeta +- w, the force vanishes where tanh(w t) is as below."""
    zeta = damping_ratio(restitution)
    w = np.sqrt(complex(zeta**2 - 1.0))
    if abs(w) < 1e-6:
        return  # critical: e = exp(-2), of which the closed form is the limit
    t = np.arctanh(2.0 * zeta * w / (2.0 * zeta**2 - 1.0)) / w
    t = t.real if t.real > 0.0 else t.real + np.pi / w.imag
    x = -(np.exp((w - zeta) * t) - np.exp(-(w + zeta) * t)) / (2.0 * w)
    v = -((w - zeta) * np.exp((w - zeta) * t) + (w + zeta) * np.exp(-(w + zeta) * t)) / (2.0 * w)
    assert x + 2.0 * zeta * v == pytest.approx(0.0, abs=1e-9)
    assert v == pytest.approx(restitution, abs=1e-9)


def largest(run, other, times):
    """The largest difference of configurations."""
    return max(np.abs(run(t) - other(t))[:3].max() for t in times)


def errors(system, x0, other, widths, end):
    times, found = np.linspace(0.0, end, 121).tolist(), []
    for width in widths:
        run = hc.simulate(relax(system, width), OPEN, x0, (0.0, end), max_events=5000)
        found.append(largest(run, other, times))
    return found


CASES = {
    "corner by corner": (block.Parameters(), [0.0, 0.3, 0.2, 1.0, 0.0, 0.0], 0.5, (-3, -4, -5)),
    "chattering": (
        block.Parameters(friction=0.0, restitution=0.3),
        [0.0, 0.1, 0.05, 0.3, 0.0, 0.0],
        0.6,
        (-4, -5, -6),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_block_tends_to_time_stepping_with_order_one_half(name):
    """Time stepping is right to 2e-4 at this step, below a tenth of the errors that are fitted."""
    p, x0, end, widths = CASES[name]
    other = time_stepping(block.robot(p), block.contacts(p), x0, (0.0, end), step=5e-5)
    found = errors(block.system(p), x0, other, [10.0**k for k in widths], end)
    assert np.polyfit(np.multiply(widths, np.log(10.0)), np.log(found), 1)[0] > 0.48


def test_a_block_that_slides_and_stops_tends_to_the_rigid_one():
    p, x0, end, widths = CASES["corner by corner"]
    rigid = hc.simulate(block.system(p), OPEN, x0, (0.0, end), rtol=1e-10, atol=1e-10)
    found = errors(block.system(p), x0, rigid, [10.0**k for k in widths], end)
    assert np.polyfit(np.multiply(widths, np.log(10.0)), np.log(found), 1)[0] > 0.6
    assert found[-1] < 1e-3


def test_it_sinks_by_the_width_under_the_weight_of_its_effective_mass():
    """Half of the block's weight stands on each corner, whose effective mass is a fourth of the
    block's, over which a corner's arm counts as well: 1 / (1 / m + a^2 / J)."""
    p, width = block.Parameters(), 1e-4
    x0 = [0.0, 0.5 * p.height, 0.0, 0.0, 0.0, 0.0]
    run = hc.simulate(relax(block.system(p), width), OPEN, x0, (0.0, 1.0))
    effective = 1.0 / (1.0 / p.mass + (0.5 * p.width) ** 2 / p.pitch_inertia)
    depth = 0.5 * p.height - run.final_state[1]
    assert depth == pytest.approx(width * 0.5 * p.mass * p.gravity / (effective * G), rel=1e-6)


def bounced(restitution, amplitude, period=0.5):
    """A ball that is shaken so that it bounces once a period; its orbit is that of a table."""
    rate = 2.0 * np.pi / period
    speed = (1.0 - restitution) / (1.0 + restitution) * 0.5 * G * period
    phase = np.arccos(speed * rate / amplitude)
    after, leaves = period - phase / rate, 0.5 * G * period
    height = amplitude / rate**2 * np.sin(phase) + leaves * after - 0.5 * G * after**2
    x0 = np.array([0.0, height, 0.0, leaves - G * after - amplitude / rate])
    system = ball.system(ball.Parameters(slope=0.0, restitution=restitution))
    return system, x0, lambda t: np.array([0.0, amplitude * np.sin(rate * t)]), period


@pytest.mark.parametrize(("restitution", "amplitude"), [(0.7, 6.0), (0.7, 8.0), (0.5, 11.0)])
def test_multipliers_of_relaxed_orbits_tend_to_the_exact_ones(restitution, amplitude):
    system, x0, push, period = bounced(restitution, amplitude)
    vertical = np.ix_([1, 3], [1, 3])  # along x the ball goes on as it likes

    def multipliers(of, start):
        orbit = periodic_orbit(of, ("open",), start, period, input=push)
        return np.linalg.eigvals(orbit.return_jacobian[vertical])

    exact, widths = multipliers(system, x0), (1e-4, 1e-5, 1e-6, 1e-7)
    assert np.prod(exact) == pytest.approx(restitution**2, abs=1e-9)
    found = [multipliers(relax(system, width), x0) for width in widths]
    off = [np.abs(np.sort_complex(k) - np.sort_complex(exact)).max() for k in found]
    assert np.polyfit(np.log(widths), np.log(off), 1)[0] == pytest.approx(0.5, abs=0.05)


def test_other_systems_are_relaxed_as_before_and_robots_without_expressions_refused():
    assert hc.relax is relax
    with pytest.raises(InputError, match="as many coordinates as velocities"):
        relax(cube.system(), 1e-3)
    with pytest.raises(InputError, match="epsilon must be greater"):
        relax(block.system(), 0.0)
    with pytest.raises(InputError, match="restitution must be"):
        damping_ratio(0.0)
