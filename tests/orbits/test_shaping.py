"""How multipliers change with parameters: closed forms, and differences of orbits found anew."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import paddle as robot

import hybridctl as hc
from hybridctl.base.errors import SystemDefinitionError
from hybridctl.base.spaces import VectorSpace
from hybridctl.control.ilqr.backward import compute_cost
from hybridctl.control.ilqr.cost import QuadraticCost, TransitionCost
from hybridctl.control.ilqr.rollout import ShootingProblem, simulate_open_loop
from hybridctl.control.ilqr.search import ilqr
from hybridctl.orbits.return_map import periodic_orbit
from hybridctl.orbits.shaping import orbit_derivatives
from hybridctl.symbolic import (
    Joint,
    SymbolicMode,
    SymbolicTransition,
    hybrid_system,
    parametric_system,
    variational,
)

G, E, FREQUENCY = 9.81, 0.7, 12.0
PERIOD = 2.0 * np.pi / FREQUENCY
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def table_ball():
    """A ball (y, v) on a table at height a sin(w t): modes, transitions, the amplitude's symbol."""
    y, v, t, a = (ca.SX.sym(name) for name in ("y", "v", "t", "a"))
    rate = a * FREQUENCY * ca.cos(FREQUENCY * t)
    hit = SymbolicTransition(
        "air", "table", y - a * ca.sin(FREQUENCY * t), "air", [y, (1 + E) * rate - E * v]
    )
    return [SymbolicMode("air", [y, v], [v, -G], time=t)], [hit], a


def table_orbit(amplitude):
    """The orbit of one bounce per period, and the phase at which the ball is hit."""
    modes, transitions, a = table_ball()
    parameters = {"amplitude": (a, amplitude)}
    speed = (1.0 - E) / (1.0 + E) * 0.5 * G * PERIOD
    phase = np.arccos(speed / (amplitude * FREQUENCY))
    after, leaves = PERIOD - phase / FREQUENCY, 0.5 * G * PERIOD
    x0 = [amplitude * np.sin(phase) + leaves * after - 0.5 * G * after**2, leaves - G * after]
    system, _ = parametric_system(modes, transitions, parameters)
    orbit = periodic_orbit(system, "air", x0, PERIOD, **TIGHT)
    return orbit, phase, orbit_derivatives(modes, transitions, parameters, orbit)


def acceleration(amplitude, phase):
    return -amplitude * FREQUENCY**2 * np.sin(phase)


@pytest.mark.parametrize("amplitude", [0.0385, 0.045, 0.08, 0.11])
def test_multipliers_of_a_ball_on_a_table_move_as_their_closed_form(amplitude):
    """lambda^2 - tau lambda + e^2 = 0 with tau = 1 + e^2 + (1 + e)^2 s'' / g. The ball is hit where
    a w cos(phase) is given, so that ds''/da = -w^2 / sin(phase)."""
    _, phase, found = table_orbit(amplitude)
    tau = 1.0 + E**2 + (1.0 + E) ** 2 * acceleration(amplitude, phase) / G
    change = -((1.0 + E) ** 2) / G * FREQUENCY**2 / np.sin(phase)
    np.testing.assert_allclose(found.multipliers.sum(), tau, atol=1e-8)
    np.testing.assert_allclose(found.derivatives.sum(), change, rtol=1e-6)
    expected = found.multipliers * change / (2.0 * found.multipliers - tau)
    np.testing.assert_allclose(found.derivatives[:, 0], expected, rtol=1e-6)


def test_the_acceleration_of_least_multiplier_is_where_both_meet():
    """The larger multiplier falls with the amplitude until both are e, where tau = 2 e, that is
    s'' = -g ((1 - e) / (1 + e))^2; Newton steps on tau - 2 e by the derivative find it, halved
    where they would leave amplitudes that have an orbit."""
    amplitude, least = 0.0385, (1.0 - E) / (1.0 + E) * 0.5 * G * PERIOD / FREQUENCY
    for _ in range(12):
        _, phase, found = table_orbit(amplitude)
        gap = np.trace(found.monodromy) - 2.0 * E
        step = gap / np.trace(found.transition[0])
        amplitude = max(amplitude - step, 0.5 * (amplitude + least))
    assert acceleration(amplitude, phase) == pytest.approx(-G * ((1 - E) / (1 + E)) ** 2, rel=1e-6)
    assert np.abs(found.multipliers) == pytest.approx([E, E], abs=1e-3)  # a root of rounding


def wheel(alpha, slope):
    """A rimless wheel of half angle `alpha` on a slope, symbols or numbers."""
    x = ca.SX.sym("x", 2)
    reset = [x[0] - 2.0 * alpha, ca.cos(2.0 * alpha) * x[1]]
    spoke = SymbolicTransition("roll", "spoke", slope + alpha - x[0], "roll", reset)
    return [SymbolicMode("roll", x, [x[1], G * ca.sin(x[0])])], [spoke]


def wheel_orbit(alpha, slope):
    a, s = ca.SX.sym("a"), ca.SX.sym("s")
    parts, values = wheel(a, s), {"alpha": (a, alpha), "slope": (s, slope)}
    c = np.cos(2.0 * alpha) ** 2
    gain = 2.0 * G * (np.cos(slope - alpha) - np.cos(slope + alpha))
    x0 = [slope - alpha, np.sqrt(c * gain / (1.0 - c))]
    system, _ = parametric_system(*parts, values)
    orbit = periodic_orbit(system, "roll", x0, "spoke", horizon=3.0, **TIGHT)
    return orbit, orbit_derivatives(*parts, values, orbit)


def test_an_autonomous_orbit_moves_with_its_period():
    """The multiplier is cos^2(2 alpha); start and period against orbits of other parameters, of
    which the start is on the image of the reset, so that both differ by some of the flow."""
    alpha, slope, step = 0.3, 0.08, 1e-5
    orbit, found = wheel_orbit(alpha, slope)
    np.testing.assert_allclose(
        found.derivatives.real, [[-2.0 * np.sin(4.0 * alpha), 0.0]], atol=1e-7
    )
    flow = np.array([orbit.state[1], G * np.sin(orbit.state[0])])
    across = np.array([-flow[1], flow[0]])
    for k, change in enumerate(([step, 0.0], [0.0, step])):
        ahead, behind = (
            wheel_orbit(alpha + sign * change[0], slope + sign * change[1])[0]
            for sign in (1.0, -1.0)
        )
        period = (ahead.period - behind.period) / (2.0 * step)
        assert found.period[k] == pytest.approx(period, rel=1e-6)
        start = (ahead.state - behind.state) / (2.0 * step)
        assert across @ found.start[:, k] == pytest.approx(across @ start, rel=1e-6)


def test_the_norm_of_the_monodromy_matrix_changes_as_differences_do():
    step, amplitude = 1e-6, 0.045
    _, _, found = table_orbit(amplitude)
    norms = [np.linalg.norm(table_orbit(amplitude + s)[2].monodromy, 2) for s in (step, -step)]
    assert found.norm[0] == pytest.approx((norms[0] - norms[1]) / (2.0 * step), rel=1e-6)


def test_the_state_transition_is_that_of_the_linearization():
    x, t, u = ca.SX.sym("x", 2), ca.SX.sym("t"), ca.SX.sym("u")
    parts = (
        [
            SymbolicMode("one", x, [x[1] + t, ca.sin(x[0]) - 2.0 + u], u, t),
            SymbolicMode("two", x, [x[1], x[0] * x[1]], u),
        ],
        [SymbolicTransition("one", "gate", x[0] - 0.3 * t, "two", [x[0] + t * x[1], -0.5 * x[1]])],
    )
    x0, span = np.array([0.5, 0.1]), (0.0, 1.5)
    law = lambda t, x: np.array([0.3 * np.cos(t)])  # noqa: E731
    run = hc.simulate(hybrid_system(*parts), "one", x0, span, law, **TIGHT)
    assert len(run.events) == 1
    lifted = hybrid_system(*variational(*parts))
    whole = hc.simulate(lifted, "one", np.concatenate([x0, np.eye(2).ravel()]), span, law, **TIGHT)
    phi = hc.linearize(hybrid_system(*parts), run, **TIGHT).state_transition
    np.testing.assert_allclose(whole.final_state[2:].reshape(2, 2).T, phi, atol=1e-9)


def test_what_has_no_saltation_matrix_by_itself_is_refused():
    x, u = ca.SX.sym("x"), ca.SX.sym("u")
    mode = SymbolicMode("a", x, -1.0 + 0.0 * x, u)
    with pytest.raises(SystemDefinitionError, match="input's rate"):
        variational([mode], [SymbolicTransition("a", "g", x - u, "a")])
    with pytest.raises(SystemDefinitionError):
        variational([mode], [Joint("a", ["g"], "a")])
    y = ca.SX.sym("y", 2)
    with pytest.raises(SystemDefinitionError, match="one dimension"):
        variational([mode, SymbolicMode("b", y, y)], [])


def paddle():
    """A ball (z, v) over a paddle (s, w) that is accelerated by u; restitution E."""
    x, u = ca.SX.sym("x", 4), ca.SX.sym("u")
    after = ca.vertcat(x[:2], (1.0 + E) * x[3] - E * x[2], x[3])
    hit = SymbolicTransition("air", "hit", x[0] - x[1], "air", after)
    return [SymbolicMode("air", x, [x[2], x[3], -G, u], u)], [hit]


@pytest.mark.parametrize(("grid", "weight"), [(2, 1.0), (3, 5.0)])
def test_ilqr_shapes_an_event_until_no_input_spreads_deviations_less(grid, weight):
    """That the paddle slows down as it hits, s'' < 0, keeps the ball's velocity from depending on
    when. At the end differences of the simulated cost vanish in all directions."""
    system = hybrid_system(*variational(*paddle()))
    start = np.concatenate([[0.5, 0.0, 0.0, 0.0], np.eye(4).ravel()])
    times, none, last = np.linspace(0.0, 0.6, grid), np.zeros((grid, 1)), np.zeros((4, 4))
    quadratic = QuadraticCost(VectorSpace(4), np.zeros(4), input=[[weight]], final=last)
    cost = TransitionCost(quadratic, 4, 1.0, [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    found = ilqr(system, "air", start, times, none, cost, tolerance=1e-5, rtol=1e-10, atol=1e-10)
    plant = ShootingProblem(system, "air", start, times, 1e-10, 1e-10)

    def value(inputs):
        return compute_cost(plant, simulate_open_loop(plant, inputs), cost)

    assert found.converged
    assert found.cost == pytest.approx(value(found.inputs), rel=1e-6)
    assert found.cost < 0.9 * value(none)
    (hit,) = found.trajectory.guard_events
    assert hit.input_before[0] < 0.0
    step = 1e-4
    for direction in np.random.default_rng(0).normal(size=(4, grid, 1)):
        ahead, behind = (value(found.inputs + s * direction) for s in (step, -step))
        assert abs(ahead - behind) / (2.0 * step) < 1e-3 * found.cost


def driven_paddle(coefficients):
    """The paddle of `robots.paddle` under c0 + c1 cos(f t) + c2 sin(f t); its orbit."""
    p, t, c = robot.PaddleParameters(), ca.SX.sym("t"), ca.SX.sym("c", 3)
    x = ca.SX.sym("x", 4)
    drive = c[0] + c[1] * ca.cos(p.frequency * t) + c[2] * ca.sin(p.frequency * t)
    rise = drive - p.stiffness * x[1] - p.damping * x[3]
    e = p.restitution
    after = ca.vertcat(x[:2], (1.0 + e) * x[3] - e * x[2], x[3])
    modes = [SymbolicMode("air", x, [x[2], x[3], -p.gravity, rise], time=t)]
    hit = [SymbolicTransition("air", "hit", x[0] - x[1], "air", after)]
    names = ("rest", "cosine", "sine")
    values = {n: (c[k], coefficients[k]) for k, n in enumerate(names)}
    system, _ = parametric_system(modes, hit, values)
    orbit = periodic_orbit(system, "air", robot.apex(p), p.period, **TIGHT)
    return orbit, (modes, hit, values)


def test_multipliers_and_norm_move_with_the_coefficients_of_the_input():
    """An input that is an expression of time has parameters: differences of orbits found anew. A
    constant moves all of the motion; orbits are found to 1e-12, so that differences err by 1e-7."""
    p = robot.PaddleParameters()
    quarter = 0.25 * p.period
    drives = [robot.drive(t, p)[0] for t in (0.0, quarter)]
    coefficients, step = np.array([0.0, *drives]), 1e-5
    orbit, parts = driven_paddle(coefficients)
    np.testing.assert_allclose(orbit.state, robot.apex(p), atol=1e-8)
    found = orbit_derivatives(*parts, orbit)
    for k, change in enumerate(step * np.eye(3)):
        ahead, behind = (driven_paddle(coefficients + s * change)[0] for s in (1.0, -1.0))
        largest = [np.abs(one.multipliers.others[0]) for one in (ahead, behind)]
        norms = [np.linalg.norm(one.linearization.state_transition, 2) for one in (ahead, behind)]
        assert found.moduli[0, k] == pytest.approx(
            np.subtract(*largest) / (2.0 * step), rel=1e-5, abs=1e-7
        )
        assert found.norm[k] == pytest.approx(
            np.subtract(*norms) / (2.0 * step), rel=1e-5, abs=1e-7
        )
