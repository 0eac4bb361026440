"""Periodic orbits with closed-form multipliers, their return maps, and Lyapunov exponents."""

from itertools import pairwise

import casadi as ca
import numpy as np
import pytest
from scipy.linalg import expm

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base.errors import GrazingError, InputError, SimulationError
from hybridctl.orbits.return_map import PoincareSection, periodic_orbit
from hybridctl.sensitivity.floquet import floquet_multipliers, monodromy, project_along_flow
from hybridctl.sensitivity.lyapunov import lyapunov_exponents

G = 9.81
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
RESTITUTION, FREQUENCY = 0.7, 12.0
PERIOD = 2.0 * np.pi / FREQUENCY
ALPHA, SLOPE = 0.3, 0.08


def linearized(system, mode, x0, end, start=0.0):
    run = hc.simulate(system, mode, x0, (start, end), **TIGHT)
    return hc.linearize(system, run, **TIGHT)


def moduli(values):
    return np.sort(np.abs(values))[::-1]


def table_ball(amplitude):
    """A ball (y, v) on a table at height amplitude sin(FREQUENCY t)."""
    y, v, t = ca.SX.sym("y"), ca.SX.sym("v"), ca.SX.sym("t")
    height = amplitude * ca.sin(FREQUENCY * t)
    rate = amplitude * FREQUENCY * ca.cos(FREQUENCY * t)
    reset = [y, (1.0 + RESTITUTION) * rate - RESTITUTION * v]
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", state=[y, v], field=[v, -G], time=t)],
        [symbolic.SymbolicTransition("air", "table", y - height, "air", reset)],
    )


def table_orbit(amplitude):
    """The state at t = 0 of the orbit with one impact per period, and the phase of the impact.

    The ball leaves with g T / 2 and comes back with -g T / 2, so that the table moves with
    (1 - e) / (1 + e) g T / 2 at the impact.
    """
    speed = (1.0 - RESTITUTION) / (1.0 + RESTITUTION) * 0.5 * G * PERIOD
    phase = np.arccos(speed / (amplitude * FREQUENCY))
    after = -phase / FREQUENCY + PERIOD  # time from the impact before to t = 0
    leaves = 0.5 * G * PERIOD
    y = amplitude * np.sin(phase) + leaves * after - 0.5 * G * after**2
    return np.array([y, leaves - G * after]), phase


@pytest.mark.parametrize("amplitude", [0.0385, 0.04, 0.06])
def test_a_ball_on_a_shaken_table_has_its_closed_form(amplitude):
    """The map (t, v) of one impact to the next has determinant e^2 and the trace
    1 + e^2 + (1 + e)^2 s'' / g, with s'' the acceleration of the table at the impact: implicit
    differentiation of s(t) + v tau - g tau^2 / 2 = s(t + tau) and of the reset. The map over a
    period from any other phase has the same eigenvalues."""
    x0, phase = table_orbit(amplitude)
    lin = linearized(table_ball(amplitude), "air", x0, PERIOD)
    found = lin.floquet_multipliers()
    acceleration = -amplitude * FREQUENCY**2 * np.sin(phase)
    e = RESTITUTION
    trace = 1.0 + e**2 + (1.0 + e) ** 2 * acceleration / G
    assert np.prod(found.values) == pytest.approx(e**2, abs=1e-9)
    assert np.sum(found.values) == pytest.approx(trace, abs=1e-8)
    expected = moduli(np.roots([1.0, -trace, e**2]))
    np.testing.assert_allclose(np.abs(found.values), expected, atol=1e-8)
    assert found.along_flow is None
    assert found.is_stable == bool(expected[0] < 1.0)


def test_deviations_decay_as_the_multipliers_say():
    """After k periods a small deviation is Phi^k times it, up to its square."""
    amplitude, size, k = 0.04, 1e-6, 4
    x0, _ = table_orbit(amplitude)
    system = table_ball(amplitude)
    matrix = monodromy(linearized(system, "air", x0, PERIOD))
    dx = size * np.array([0.6, -0.8])
    run = hc.simulate(system, "air", x0 + dx, (0.0, k * PERIOD), **TIGHT)
    predicted = np.linalg.matrix_power(matrix, k) @ dx
    assert np.abs(run.final_state - x0 - predicted).max() < 1e-3 * np.abs(dx).max()


def test_newton_finds_the_orbit_of_the_table_quadratically():
    amplitude = 0.04
    x0, _ = table_orbit(amplitude)
    orbit = periodic_orbit(
        table_ball(amplitude), "air", x0 + np.array([0.004, 0.03]), PERIOD, tolerance=1e-10
    )
    np.testing.assert_allclose(orbit.state, x0, atol=1e-9)
    assert orbit.period == pytest.approx(PERIOD)
    assert_quadratic(orbit.residuals)


def assert_quadratic(residuals, floor=1e-10):
    """Each residual is at most some constant times the square of the one before."""
    assert len(residuals) >= 4
    ratios = [b / a**2 for a, b in pairwise(residuals) if b > floor]
    assert max(ratios) < 20.0 * max(ratios[0], 1.0)
    assert residuals[-1] < 1e-8


def wheel():
    """A rimless wheel (angle, rate) of spokes 2 ALPHA apart on a slope; length 1 m."""
    angle, rate = ca.SX.sym("angle"), ca.SX.sym("rate")
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("roll", state=[angle, rate], field=[rate, G * ca.sin(angle)])],
        [
            symbolic.SymbolicTransition(
                "roll",
                "spoke",
                SLOPE + ALPHA - angle,
                "roll",
                [angle - 2.0 * ALPHA, np.cos(2.0 * ALPHA) * rate],
            )
        ],
    )


def wheel_start():
    """Just after an impact: rate^2 = c^2 (rate^2 + gain), with the energy gained in one step."""
    c = np.cos(2.0 * ALPHA) ** 2
    gain = 2.0 * G * (np.cos(SLOPE - ALPHA) - np.cos(SLOPE + ALPHA))
    return np.array([SLOPE - ALPHA, np.sqrt(c * gain / (1.0 - c))])


def wheel_orbit(**options):
    return periodic_orbit(
        wheel(), "roll", wheel_start() + np.array([0.0, 0.4]), "spoke", horizon=3.0, **options
    )


def test_a_rimless_wheel_has_its_closed_form():
    """Its map of rate^2 has the slope cos^2(2 alpha), and so have the multipliers."""
    orbit = wheel_orbit()
    expected = np.cos(2.0 * ALPHA) ** 2
    np.testing.assert_allclose(orbit.state, wheel_start(), atol=1e-9)
    assert_quadratic(orbit.residuals)
    found = orbit.multipliers
    assert found.along_flow == 0
    assert found.values[0] == pytest.approx(1.0, abs=1e-9)
    assert found.others == pytest.approx([expected], abs=1e-9)
    assert found.is_stable
    returns = np.linalg.eigvals(orbit.return_map.matrix)
    assert moduli(returns) == pytest.approx([expected, 0], abs=1e-9)


def test_the_field_is_an_eigenvector_of_the_monodromy_matrix():
    orbit = wheel_orbit()
    f = np.array([orbit.state[1], G * np.sin(orbit.state[0])])
    np.testing.assert_allclose(monodromy(orbit.linearization) @ f, f, rtol=1e-9)


def upright_rate():
    """The rate of the wheel on its orbit as a spoke stands upright."""
    return np.sqrt(wheel_start()[1] ** 2 - 2.0 * G * (1.0 - np.cos(SLOPE - ALPHA)))


@pytest.mark.parametrize("normal", [[1.0, 0.0], [1.0, 0.3], [1.0, -0.1]])
def test_all_sections_have_the_same_return_map(normal):
    start = [0.0, upright_rate()]
    orbit = periodic_orbit(
        wheel(), "roll", start, PoincareSection("roll", start, normal), horizon=6.0
    )
    found = np.linalg.eigvals(orbit.return_map.matrix)
    assert moduli(found) == pytest.approx([np.cos(2.0 * ALPHA) ** 2, 0.0], abs=1e-8)


def test_a_section_within_an_arc():
    """From upright to upright, and two turns at once."""
    section, upright = PoincareSection("roll", [0.0, 0.0], [1.0, 0.0]), upright_rate()
    for turns in (1, 2):
        orbit = periodic_orbit(
            wheel(), "roll", [0.0, 0.9 * upright], section, horizon=6.0, crossings=turns
        )
        assert orbit.state == pytest.approx([0.0, upright], abs=1e-9)
        assert len(orbit.trajectory.events) == turns
        expected = np.cos(2.0 * ALPHA) ** (2 * turns)
        assert orbit.multipliers.others == pytest.approx([expected], abs=1e-8)


def test_the_wheel_slows_down_as_its_multiplier_says():
    """The excess of rate^2 falls by cos^2(2 alpha) at every impact, however large it is."""
    x0 = wheel_start()
    run = hc.simulate(wheel(), "roll", x0 + np.array([0.0, 0.2]), (0.0, 3.0), **TIGHT)
    excess = np.array([event.state_after[1] ** 2 - x0[1] ** 2 for event in run.events])
    assert len(excess) >= 4
    (factor,) = wheel_orbit().multipliers.others.real
    np.testing.assert_allclose(excess[1:] / excess[:-1], factor, rtol=1e-6)


MATRIX = np.array([[0.0, 1.0], [-4.0, -0.3]])
MIXING = np.array([[0.9, 0.2], [-0.1, 1.1]])
KICK = np.array([0.0, 0.5])
LAPSE = 0.8


def oscillator():
    """(z, clock): z' = MATRIX z, and z is MIXING z + KICK whenever the clock has reached LAPSE."""
    z, c = ca.SX.sym("z", 2), ca.SX.sym("c")
    return symbolic.hybrid_system(
        [symbolic.SymbolicMode("go", ca.vertcat(z, c), ca.vertcat(ca.DM(MATRIX) @ z, 1.0))],
        [
            symbolic.SymbolicTransition(
                "go", "tick", LAPSE - c, "go", ca.vertcat(ca.DM(MIXING) @ z + ca.DM(KICK), 0.0)
            )
        ],
    )


def oscillator_map():
    return MIXING @ expm(MATRIX * LAPSE)


def oscillator_start():
    return np.append(np.linalg.solve(np.eye(2) - oscillator_map(), KICK), 0.0)


def test_an_oscillator_with_a_clock_has_its_closed_form():
    orbit = periodic_orbit(oscillator(), "go", [0.3, -0.2, 0.0], "tick", horizon=2.0)
    np.testing.assert_allclose(orbit.state, oscillator_start(), atol=1e-9)
    assert len(orbit.residuals) == 2, "the return map is affine, so one step is exact"
    assert orbit.period == pytest.approx(LAPSE)
    expected = np.linalg.eigvals(oscillator_map())
    found = orbit.multipliers
    assert found.along_flow == 0
    np.testing.assert_allclose(np.sort_complex(found.others), np.sort_complex(expected), atol=1e-9)
    np.testing.assert_allclose(
        np.sort_complex(np.linalg.eigvals(orbit.return_map.matrix)),
        np.sort_complex(np.append(expected, 0.0)),
        atol=1e-9,
    )


def test_lyapunov_exponents_are_those_of_the_multipliers():
    """Once the frame has settled, means over whole periods are exact for real multipliers."""
    orbit = wheel_orbit()
    period = orbit.period
    lin = linearized(wheel(), "roll", orbit.state, 25.5 * period)
    expected = np.log([1.0, np.cos(2.0 * ALPHA) ** 2]) / period
    found = lyapunov_exponents(lin, settle=20.5 * period)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    fine = lyapunov_exponents(lin, settle=20.5 * period, interval=0.1 * period)
    np.testing.assert_allclose(fine, found, atol=1e-8)


def test_lyapunov_exponents_sum_to_the_mean_growth_of_volume():
    """log |det Phi| / T is the sum, whatever the frame."""
    lin = linearized(oscillator(), "go", oscillator_start(), 10.5 * LAPSE)
    found = lyapunov_exponents(lin)
    grown = np.trace(MATRIX) * 10.5 * LAPSE + 10.0 * np.log(np.linalg.det(MIXING))
    assert found.sum() == pytest.approx(grown / (10.5 * LAPSE), abs=1e-8)
    assert (np.diff(found) <= 0.0).all()


def test_a_direction_that_a_jump_destroys_has_minus_infinity():
    y, v = ca.SX.sym("y"), ca.SX.sym("v")
    system = symbolic.hybrid_system(
        [symbolic.SymbolicMode("air", [y, v], [v, -G])],
        [symbolic.SymbolicTransition("air", "floor", y, "air", [y, 3.0])],
    )
    lin = linearized(system, "air", [1.0, 0.0], 2.0)
    assert len(lin.jumps) > 1
    assert lyapunov_exponents(lin)[-1] == -np.inf
    orbit = periodic_orbit(system, "air", [0.0, 2.0], "floor", horizon=2.0)
    assert orbit.period == pytest.approx(6.0 / G)
    assert orbit.multipliers.others == pytest.approx([0.0], abs=1e-9)


def test_of_a_family_of_orbits_the_nearest_is_found():
    """A harmonic oscillator: all orbits close, and both multipliers are 1."""
    x, v = ca.SX.sym("x"), ca.SX.sym("v")
    system = symbolic.hybrid_system([symbolic.SymbolicMode("swing", [x, v], [v, -x])], [])
    orbit = periodic_orbit(
        system, "swing", [0.0, 1.5], PoincareSection("swing", [0.0, 0.0], [1.0, 0.0]), horizon=7.0
    )
    assert orbit.period == pytest.approx(2.0 * np.pi, abs=1e-9)
    np.testing.assert_allclose(orbit.multipliers.values, [1.0, 1.0], atol=1e-9)


def test_a_section_cuts_a_motion_under_an_input_of_time():
    """A driven oscillator, x'' = -4 x - x' + cos t, crosses the section once a period of cos t."""
    x, v, u = ca.SX.sym("x"), ca.SX.sym("v"), ca.SX.sym("u")
    mode = symbolic.SymbolicMode("swing", [x, v], [v, -4.0 * x - v + u], input=[u])
    response = 1.0 / (3.0 + 1.0j)  # x = Re(response e^(i t)) is the motion that stays
    orbit = periodic_orbit(
        symbolic.hybrid_system([mode], []),
        "swing",
        [0.0, np.abs(response)],
        PoincareSection("swing", [0.0, 0.0], [1.0, 0.0]),
        horizon=7.0,
        start=-0.5 * np.pi - np.angle(response),
        input=lambda t: [np.cos(t)],
    )
    assert orbit.period == pytest.approx(2.0 * np.pi, abs=1e-9)


def test_what_is_not_periodic_is_refused_with_how_far_it_is_off():
    lin = linearized(wheel(), "roll", wheel_start(), 0.1)
    with pytest.raises(InputError, match=r"must be periodic.* differs .* by 0\.\d+"):
        lin.floquet_multipliers()
    assert floquet_multipliers(lin, tolerance=1.0).values.shape == (2,)


def test_a_section_along_the_flow_is_refused():
    with pytest.raises(GrazingError, match="does not cross"):
        project_along_flow(np.array([1.0, 2.0]), np.array([-2.0, 1.0]))


@pytest.mark.parametrize(
    ("section", "options", "match"),
    [
        ("spoke", {}, "horizon must be given"),
        ("spoke", {"horizon": 0.01}, r"within horizon .* 0 events of guard 'spoke', not 1"),
        ("spoke", {"horizon": -1.0}, "horizon must be greater"),
        ("spoke", {"horizon": 1.0, "crossings": 0}, "crossings"),
        (1.0, {"horizon": 1.0}, "not for a period"),
        (-1.0, {}, "section must be greater"),
        (
            PoincareSection("roll", [0.0, 0.0], [1.0, 0.0]),
            {"horizon": 1.0},
            "x0 must lie on the section",
        ),
        (PoincareSection("stand", [0.0, 0.0], [1.0, 0.0]), {"horizon": 1.0}, "section.mode"),
        (
            PoincareSection("roll", [0.0, 0.0], [1.0]),
            {"horizon": 1.0},
            "section.normal must have shape",
        ),
    ],
)
def test_bad_arguments_are_refused(section, options, match):
    with pytest.raises(InputError, match=match):
        periodic_orbit(wheel(), "roll", wheel_start(), section, **options)


def test_newton_that_does_not_converge_says_its_residuals():
    with pytest.raises(SimulationError, match=r"no periodic orbit .* residuals \[0\.\d+"):
        wheel_orbit(max_steps=2)


def test_bad_arguments_of_the_exponents_are_refused():
    lin = wheel_orbit().linearization
    with pytest.raises(InputError, match="settle must be less"):
        lyapunov_exponents(lin, settle=100.0)
    with pytest.raises(InputError, match="interval must be greater"):
        lyapunov_exponents(lin, interval=0.0)


def test_an_orbit_under_a_periodic_input_is_the_driven_one():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    field = [x[1], -4.0 * x[0] - 0.6 * x[1] + u]
    system = symbolic.hybrid_system(
        [symbolic.SymbolicMode("on", state=x, field=field, input=u)], []
    )
    response = 1.0 / (4.0 - FREQUENCY**2 + 0.6j * FREQUENCY)  # to exp(i w t)
    found = periodic_orbit(
        system, "on", [0.1, 0.0], PERIOD, input=lambda t: [np.cos(FREQUENCY * t)]
    )
    start = [response.real, (1j * FREQUENCY * response).real]
    np.testing.assert_allclose(found.state, start, atol=1e-9)
    decay = np.exp(-0.6 * PERIOD)  # the determinant, by the trace of the field
    np.testing.assert_allclose(np.prod(found.multipliers.values).real, decay, rtol=1e-8)


def driven(frequency=2.0):
    """x'' = -x - 0.2 x' + cos(w t)."""
    x, t = ca.SX.sym("x", 2), ca.SX.sym("t")
    force = ca.cos(frequency * t)
    mode = symbolic.SymbolicMode("go", x, [x[1], -x[0] - 0.2 * x[1] + force], time=t)
    return symbolic.hybrid_system([mode], [])


def test_a_flow_that_closes_in_another_phase_of_what_drives_it_is_no_orbit():
    """Over any time a linear flow has a fixed point; it is an orbit after pi and 2 pi alone."""
    amplitude = 1.0 / np.hypot(1.0 - 2.0**2, 0.2 * 2.0)
    for period in (np.pi, 2.0 * np.pi):
        x, v = periodic_orbit(driven(), "go", [0.0, 0.0], period).state
        assert np.hypot(x, v / 2.0) == pytest.approx(amplitude, abs=1e-9)
    with pytest.raises(InputError, match="section must be a period of what depends on time"):
        periodic_orbit(driven(), "go", [0.0, 0.0], 1.0)
    x, u = ca.SX.sym("x"), ca.SX.sym("u")
    steady = symbolic.SymbolicMode("go", x, [u - x], u)
    push = lambda t: [np.sin(2.0 * t)]  # noqa: E731
    pushed = symbolic.hybrid_system([steady], [])
    assert periodic_orbit(pushed, "go", [0.0], np.pi, input=push).period == np.pi
    with pytest.raises(InputError, match="section must be a period"):
        periodic_orbit(pushed, "go", [0.0], 1.0, input=push)


@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.NearGrazingWarning")  # it comes to rest
def test_returns_that_tend_to_rest_are_no_orbit():
    """A ball that loses half its speed with each bounce comes back ever sooner."""
    y, v = ca.SX.sym("y"), ca.SX.sym("v")
    air = symbolic.SymbolicMode("air", [y, v], [v, -G])
    floor = symbolic.SymbolicTransition("air", "floor", y, "air", [y, -0.5 * v])
    with pytest.raises(SimulationError, match="tend to rest"):
        periodic_orbit(symbolic.hybrid_system([air], [floor]), "air", [0, 2.0], "floor", horizon=3)
