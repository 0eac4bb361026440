"""Relaxed robots with contacts tend to rigid ones as the square root of the strip's width."""

import numpy as np
import pytest
from hybridctl.robots import ball, block, cube

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Plane, Robot, Wrench, contact_system, time_stepping
from hybridctl.orbits.return_map import periodic_orbit
from hybridctl.relaxation.contacts import damping_ratio
from hybridctl.relaxation.relax import relax

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


def test_names_and_modes_are_those_of_the_robot():
    """A block above the ground is in no strip, one that has sunk in is, until it leaves it."""
    system = block.system(actuated=True)
    relaxed = relax(system, 1e-4)
    for key in (("open", "open"), ("strip", "open")):
        assert relaxed.state_labels(key) == system.state_labels(("open", "open"))
        assert relaxed.input_labels(key) == system.input_labels(("open", "open"))
    forces = "normal_force", (2,)
    assert relaxed.output_labels(*forces) == system.output_labels(*forces)
    x = np.zeros(6)
    x[1] = -system.dynamics.gaps(x[:3]).min()
    for height, speed, state in ((1e-3, -1.0, "open"), (-1e-5, 0.0, "strip"), (-1e-5, 9.0, "open")):
        there = x + np.array([0.0, height, 0.0, 0.0, speed, 0.0])
        assert relaxed.consistent_mode(there) == (state, state)
    run = hc.simulate(relaxed, None, x, (0.0, 0.1))
    assert run.arcs[0].mode == ("strip", "strip")


def test_the_relaxation_of_a_pushed_robot_is_pushed():
    """In the air, where a block drifts with F / m while it falls; and by a second wrench, too."""
    p = block.BlockParameters()
    system = block.system(p, actuated=True)
    push = Wrench("block", (2.0, 0.0, 0.0), 0.1, 0.2)
    x = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    relaxed = relax(system, 1e-4)
    run = hc.simulate(relaxed, OPEN, x, (0.0, 0.3), wrench=push)
    speed = 2.0 * 0.1 / p.mass
    assert run.final_state[3] == pytest.approx(speed, abs=1e-8)
    assert run.final_state[0] == pytest.approx(speed * (0.05 + 0.1), abs=1e-8)
    for made in (relaxed.pushed(push), relax(system.pushed(push), 1e-4)):
        assert made.mode(OPEN).nu == 4
        assert made.input_labels(OPEN)[-1] == "force on block [N]"
        twice = made.pushed(push)
        u = np.array([0.0, 0.0, 0.0, 2.0, 3.0])
        assert twice.mode(OPEN).field(0.0, x, u)[3] == pytest.approx(5.0 / p.mass)


def largest(run, other, times):
    """The largest difference of configurations."""
    return max(np.abs(run(t) - other(t))[:3].max() for t in times)


def errors(system, mode, x0, other, widths, end):
    times, found = np.linspace(0.0, end, 121).tolist(), []
    for width in widths:
        run = hc.simulate(relax(system, width), mode, x0, (0.0, end), max_events=5000)
        found.append(largest(run, other, times))
    return found


_LIMITS = '<limit lower="-9" upper="9" effort="99" velocity="99"/>'


def _link(name, mass, inertia, height):
    axes = " ".join(f'{axis}="{inertia}"' for axis in ("ixx", "iyy", "izz"))
    return (
        f'<link name="{name}"><inertial><origin xyz="0 0 {height}"/><mass value="{mass}"/>'
        f'<inertia {axes} ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )


def _joint(name, kind, parent, child, axis, height=0.0):
    damping = '<dynamics damping="0.05"/>' if kind == "revolute" else ""
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="0 0 {height}"/><axis xyz="{axis}"/>{_LIMITS}{damping}</joint>'
    )


LEG = (
    '<robot name="leg"><link name="world"/>'
    + _link("body", 2.0, 0.02, 0.0)
    + _link("thigh", 0.3, 0.002, -0.08)
    + _link("shank", 0.15, 0.001, -0.08)
    + _joint("slide", "prismatic", "world", "body", "0 0 1")
    + _joint("hip", "revolute", "body", "thigh", "0 1 0")
    + _joint("knee", "revolute", "thigh", "shank", "0 1 0", -0.16)
    + "</robot>"
)


def leg():
    """A body on a rail with thigh and shank on springs, whose foot bounces with half its speed."""
    robot = Robot.from_urdf(LEG, actuated=[], stiffness={"hip": 30.0, "knee": 30.0})
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    return robot, [Contact("foot", "shank", ground, offset=(0.0, 0.0, -0.16), restitution=0.5)]


def a_block(parameters):
    return block.robot(parameters), block.contacts(parameters)


CASES = {  # robot and contacts, start, end, logarithms of widths, step of time stepping
    "corner by corner": (
        a_block(block.BlockParameters()),
        [0.0, 0.3, 0.2, 1.0, 0.0, 0.0],
        0.5,
        (-3.0, -4.0, -5.0),
        5e-5,
    ),
    "chattering corners": (
        a_block(block.BlockParameters(friction=0.0, restitution=0.3)),
        [0.0, 0.1, 0.05, 0.3, 0.0, 0.0],
        0.6,
        (-5.0, -5.5, -6.0),
        2e-5,
    ),
    "chattering foot": (leg(), [0.35, -0.3, 0.6, 0.0, 0.0, 0.0], 0.25, (-5.0, -5.5, -6.0), 5e-6),
}


def order(widths, found):
    """The slope of errors over decades of width."""
    return np.polyfit(widths, np.log10(found), 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_robots_tend_to_time_stepping_with_order_one_half(name):
    """An impact in the strip lasts pi sqrt(width / g) or less, whatever its speed: 3 ms at 1e-5.

    Where bounces of a chatter are shorter than that, they are not bounces of the strip at all: of
    some 10 ms here, so that fits begin at 1e-5. Each adds that time to the chatter, C sqrt(width)
    to the error, and less with friction. Time stepping is right to a twentieth of the least error.
    """
    (robot, contacts), x0, end, widths, step = CASES[name]
    other = time_stepping(robot, contacts, x0, (0.0, end), step=step)
    system, mode = contact_system(robot, contacts), ("open",) * len(contacts)
    found = errors(system, mode, x0, other, [10.0**k for k in widths], end)
    assert order(widths, found) >= 0.5


def test_a_chattering_foot_tends_to_the_rigid_one_with_order_one_half():
    """After 14 bounces it stays. error / sqrt(width) falls to 4.74 from 5.14 at 1e-6."""
    (robot, contacts), x0, end, _, _ = CASES["chattering foot"]
    system, widths = contact_system(robot, contacts), (-6.0, -7.0, -8.0)
    rigid = hc.simulate(system, ("open",), x0, (0.0, end), on_zeno="rest", rtol=1e-10, atol=1e-10)
    assert rigid.events[-1].accumulation is not None
    found = errors(system, ("open",), x0, rigid, [10.0**k for k in widths], end)
    assert 0.5 <= order(widths, found) <= 0.55


def test_a_block_that_slides_and_stops_tends_to_the_rigid_one():
    (robot, contacts), x0, end, widths, _ = CASES["corner by corner"]
    system = contact_system(robot, contacts)
    rigid = hc.simulate(system, OPEN, x0, (0.0, end), rtol=1e-10, atol=1e-10)
    found = errors(system, OPEN, x0, rigid, [10.0**k for k in widths], end)
    assert order(widths, found) > 0.6
    assert found[-1] < 1e-3


def test_it_sinks_by_the_width_under_the_weight_of_its_effective_mass():
    """Half of the block's weight stands on each corner, whose effective mass is a fourth of the
    block's, over which a corner's arm counts as well: 1 / (1 / m + a^2 / J)."""
    p, width = block.BlockParameters(), 1e-4
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
    system = ball.system(ball.BallParameters(slope=0.0, restitution=restitution))
    return system, x0, lambda t: np.array([0.0, amplitude * np.sin(rate * t)]), period


@pytest.mark.parametrize(("restitution", "amplitude"), [(0.7, 6.0), (0.7, 8.0), (0.5, 11.0)])
def test_multipliers_of_relaxed_orbits_tend_to_the_exact_ones(restitution, amplitude):
    system, x0, push, period = bounced(restitution, amplitude)
    vertical = np.ix_([1, 3], [1, 3])  # along x the ball goes on as it likes

    def multipliers(of, start):
        orbit = periodic_orbit(of, ("open",), start, period, input=push)
        return np.linalg.eigvals(orbit.return_map.matrix[vertical])

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
