"""Stiff stretches: implicit steps with the Jacobian of the mode, chosen by time constants."""

import numpy as np
import pytest
from hybridctl.robots import cube

import hybridctl as hc
from hybridctl.errors import SimulationError
from hybridctl.hybrid.explicit import StageKernel
from hybridctl.hybrid.flow import METHODS
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput
from hybridctl.hybrid.mode import FieldJacobian, Pace
from hybridctl.hybrid.radau import RadauStepper
from hybridctl.hybrid.series import FRACTIONS, TO_SERIES, basis
from hybridctl.hybrid.step import DrivenMode
from hybridctl.mechanics import contact_system

RATE = 1e6


class Counted:
    """x' = -RATE (x - cos t) - sin t, which tends to cos t, beside y' = 1."""

    def __init__(self, off=1.0):
        """off: what is said of the time of the decay, over what is true; None: nothing."""
        self.fields, self.derivatives, self.off = 0, 0, off

    def field(self, t, x, u):
        self.fields += 1
        return np.array([-RATE * (x[0] - np.cos(t)) - np.sin(t), 1.0])

    def jacobian(self, t, x, u):
        self.derivatives += 1
        return FieldJacobian(np.array([[-RATE, 0.0], [0.0, 0.0]]), np.zeros((2, 0)))

    def system(self, known=True):
        pace = None if self.off is None else lambda t, x, u: Pace(relaxation=self.off / RATE)
        mode = hc.Mode(
            "m", hc.VectorSpace(2), self.field, jacobian=self.jacobian if known else None, pace=pace
        )
        return hc.HybridSystem([mode], [])


@pytest.mark.parametrize("span", [1e-2, 1.0, 100.0])
def test_a_fast_decay_takes_implicit_steps_for_any_time_to_go(span):
    counted = Counted()
    run = hc.simulate(counted.system(), "m", [1.0, 0.0], (0.0, span), rtol=1e-8, atol=1e-8)
    # explicit steps would be of some 3 / RATE
    assert len(run.arcs[0].breaks) < 60 + 40 * span
    np.testing.assert_allclose(run.final_state, [np.cos(span), span], rtol=0.0, atol=1e-6)
    assert counted.derivatives > 0


@pytest.mark.parametrize("method", ["Radau", "BDF"])
def test_a_held_input_leaves_nothing_to_be_differenced(method):
    """Differences cost as many fields as there are coordinates, two, for each Jacobian."""
    fields = []
    for known in (True, False):
        counted = Counted()
        run = hc.simulate(counted.system(known), "m", [1.0, 0.0], (0.0, 1.0), method=method)
        fields.append(counted.fields)
        assert (counted.derivatives > 0) == known
        # errors of 1e-9 a step, of which there are some hundred
        assert run.final_state[0] == pytest.approx(np.cos(1.0), abs=1e-7)
    assert fields[0] <= fields[1] - 2


@pytest.mark.parametrize(
    ("values", "samples"),
    [
        ((1.0, 2.0), 4),
        ((0.0, 0.0), 4),
        ((-1.0, -2.0), 4),
        ((1.0, -1.0), 8),
        ((0.0, 1.0), 8),
        ((0.0, -1.0), 8),
    ],
)
def test_four_samples_of_a_short_step_do_for_a_guard_that_does_not_come_to_zero_or_leave_it(
    values, samples
):
    """Inside its mode, at zero as the force of a contact without load, or beyond it: straight."""
    asked, (first, last) = [], values

    def guard(t, x, u):
        asked.append(t)
        return first + (last - first) * t

    mode = Counted().system().mode("m")
    edge = hc.Transition("m", hc.Guard("straight", guard), hc.Reset(lambda t, x, u: x), "m")
    mode = hc.HybridSystem([mode], [edge]).mode("m")
    motion = DrivenMode(mode, HeldInput(np.zeros(0)), watched=True, short=True)
    step = motion.sample_step(0.0, 1.0, np.zeros((8, 2)))
    assert len(asked) == samples
    np.testing.assert_allclose(
        step.guards[:, 0], first + (last - first) * step.times, rtol=0.0, atol=1e-14
    )


@pytest.mark.parametrize("known", [True, False])
def test_feedback_that_is_stiff_is_in_the_matrix_of_implicit_steps(known):
    """x' = u with u = -RATE (x - cos t) - sin t: Newton's iteration converges in a step or two."""
    law = lambda t, x: np.array([-RATE * (x[0] - np.cos(t)) - np.sin(t)])  # noqa: E731
    mode = hc.Mode(
        "m",
        hc.VectorSpace(1),
        lambda t, x, u: u,
        1,
        lambda t, x, u: FieldJacobian(np.zeros((1, 1)), np.eye(1)),
    )
    policy = law
    if known:
        slope, rate = np.array([[-RATE]]), lambda t: np.array([-RATE * np.sin(t) - np.cos(t)])
        policy = DifferentiableLaw(law, lambda t, x: slope, lambda t, x: rate(t))
    system = hc.HybridSystem([mode], [])
    # a wrong matrix leaves steps of some 1 / RATE
    options = {
        "method": "Radau",
        "rtol": 1e-6,
        "atol": 1e-6,
        "options": hc.SimulationOptions(max_steps=200),
    }
    run = hc.simulate(system, "m", [1.0], (0.0, 1.0), policy, **options)
    assert run.final_state[0] == pytest.approx(np.cos(1.0), abs=1e-5)


def test_a_slide_that_stops_takes_a_step_for_each_decade_of_its_speed():
    """Friction turns v across 30 times as fast as it stops it, and a push keeps v2 = r v1.

    v1' = -a v1 / |v|, v2' = -30 a v2 / |v| + c has straight solutions, with c = 29 a r / |(1, r)|:
    |v| falls linearly. With one Jacobian for all of a step, of 1 / |v|, Newton's iteration
    converges over less than half of the way to the stop, in more than three steps a decade.
    """
    a, r, fast, stopped = 5.0, 0.3, 30.0, 1e-8
    length = np.hypot(1.0, r)
    push = np.array([0.0, (fast - 1.0) * a * r / length])
    friction = -a * np.diag([1.0, fast])

    def jacobian(t, v, u):
        s, speed = v / np.linalg.norm(v), np.linalg.norm(v)
        return FieldJacobian(friction @ (np.eye(2) - np.outer(s, s)) / speed, np.zeros((2, 0)))

    def pace(t, v, u):
        speed = np.linalg.norm(v)
        return Pace(0.9 * max(speed, stopped) / a, speed / (fast * a))

    slides = hc.Mode(
        "slides",
        hc.VectorSpace(2),
        lambda t, v, u: friction @ v / np.linalg.norm(v) + push,
        jacobian=jacobian,
        pace=pace,
    )
    stands = hc.Mode("stands", hc.VectorSpace(2), lambda t, v, u: np.zeros(2))
    stops = hc.Transition(
        "slides",
        hc.Guard("stops", lambda t, v, u: np.linalg.norm(v) - stopped),
        hc.Reset(lambda t, v, u: np.zeros(2)),
        "stands",
    )
    run = hc.simulate(hc.HybridSystem([slides, stands], [stops]), "slides", [1.0, r], (0.0, 1.0))
    (event,) = run.events
    # from 1.04 m/s: the speed falls at a, and errors of a step are some 1e-9
    assert event.time == pytest.approx((length - stopped) / a, abs=1e-8)
    speeds = np.linalg.norm([run.arcs[0](t) for t in run.arcs[0].breaks], axis=1)
    assert (speeds < 1e-2).sum() <= 2 + 6


def make_slide(power, fast, across=lambda t: (0.3 + t, 1.0)):
    """A mode of velocities that begin at rest, and their solution as a function of time.

    v' = -a D v / |v| + p(t), D = diag(1, fast), with p such that v = t^power (1, y(t)). Friction
    turns v at rates of fast a / |v|, beyond 1e9 / s at first. Below 2e-8 m/s the direction is that
    of the motion, as of contacts at a standstill. `across` returns y and its rate.
    """
    a, still = 5.0, 2e-8
    friction = a * np.diag([1.0, fast])

    def solution(t):
        return t**power * np.array([1.0, across(t)[0]])

    def direction(t):
        y, _ = across(t)
        return np.array([1.0, y]) / np.hypot(1.0, y)

    def acceleration(t):
        y, rate = across(t)
        return power * t ** (power - 1) * np.array([1.0, y]) + [0.0, t**power * rate]

    def field(t, v, u):
        speed = np.linalg.norm(v)
        if speed <= still:
            return acceleration(t)
        return acceleration(t) + friction @ (direction(t) - v / speed)

    def jacobian(t, v, u):
        speed = np.linalg.norm(v)
        if speed <= still:
            return FieldJacobian(np.zeros((2, 2)), np.zeros((2, 0)))
        s = v / speed
        return FieldJacobian(friction @ (np.outer(s, s) - np.eye(2)) / speed, np.zeros((2, 0)))

    def pace(t, v, u):
        return Pace(relaxation=max(np.linalg.norm(v), still) / (fast * a))

    mode = hc.Mode("slides", hc.VectorSpace(2), field, jacobian=jacobian, pace=pace)
    return mode, solution


@pytest.mark.parametrize("fast", [3.0, 30.0, 3000.0])
@pytest.mark.parametrize("power", [1, 2])
def test_a_slide_that_begins_takes_few_steps(power, fast):
    """From rest, with an acceleration or, as where friction comes to its limit, with none yet."""
    mode, solution = make_slide(power, fast)
    run = hc.simulate(hc.HybridSystem([mode], []), "slides", [0.0, 0.0], (0.0, 0.1))
    # errors of a step are some 1e-9, and friction damps those across
    np.testing.assert_allclose(run.final_state, solution(0.1), rtol=0.0, atol=1e-8)
    assert len(run.arcs[0].breaks) <= 1 + 6


def test_implicit_steps_turn_a_body_as_explicit_ones_do():
    """Also across the sphere of unit quaternions, where rates say nothing of what is missed.

    Newton's increments without that part leave an orientation that is off by 1e-6.
    """
    parameters = cube.CubeParameters()
    system = contact_system(cube.robot(parameters), cube.contacts(parameters))
    start = np.zeros(13)
    start[2], start[6], start[7:10], start[10:] = 1.0, 1.0, (0.5, 0.0, 0.2), (3.0, -5.0, 4.0)
    of_all = [
        hc.simulate(system, ("open",) * 8, start, (0.0, 0.2), method=method)
        for method in ("Radau", "DOP853")
    ]
    found, expected = (run.final_state for run in of_all)
    # a hundred tolerances of a step
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-7)


def attempt_step(mode, start, end, tolerance=1e-12):
    """The nodes of an implicit step from time zero, and its error relative to 1 + |x|."""
    motion, x = DrivenMode(mode, HeldInput(np.zeros(0))), np.asarray(start, dtype=float)
    rate = motion.compute_checked_rate(0.0, x)
    stepper = RadauStepper(motion, 0.0, x, end, tolerance, tolerance, rate=rate, length=end)
    record, error = stepper._attempt(end)
    return record, error * tolerance


def test_a_step_goes_on_where_the_last_polynomial_leads_to_no_field():
    """x' = -RATE (x - g) + g', of which g turns at the end of the first step.

    Far from g there is no field, as where no contact forces exist. The last polynomial goes there
    beyond its end; it is a guess, and shorter steps from its end do not.
    """
    turn, slope = 0.1, 10.0

    def field(t, x, u):
        bent = slope * max(t - turn, 0.0)
        if abs(x[0] - 1.0 - bent) > 0.1:
            raise SimulationError(f"no field at t = {t:.9g} s")
        return np.array([-RATE * (x[0] - 1.0 - bent) + (slope if t > turn else 0.0)])

    jacobian = FieldJacobian(-RATE * np.eye(1), np.zeros((1, 0)))
    mode = hc.Mode(
        "m",
        hc.VectorSpace(1),
        field,
        jacobian=lambda t, x, u: jacobian,
        pace=lambda t, x, u: Pace(),
    )
    motion, start = DrivenMode(mode, HeldInput(np.zeros(0))), np.ones(1)
    stepper = RadauStepper(
        motion,
        0.0,
        start,
        1.0,
        1e-8,
        1e-8,
        rate=motion.compute_checked_rate(0.0, start),
        length=turn,
    )
    assert stepper.advance(turn).end == turn
    step = stepper.advance(0.2 * turn)  # short enough for the last polynomial, see `length`
    assert turn < step.end <= 1.2 * turn
    assert step.states[-1, 0] == pytest.approx(1.0 + slope * (step.end - turn), abs=1e-6)


@pytest.mark.parametrize("decay", [0.0, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("off", [0.0, 1e-3])
def test_the_error_inside_an_implicit_step_is_bounded_at_any_decay(decay, off):
    """y' = -z (y - g) + g' with g = 1 + s^8 / 8 starts on g, or in a layer beside it.

    The polynomial of a step leaves out the last power of g, which is what its error is. Of a layer
    that decays before the first stage no stage knows.
    """

    def exact(t):
        return 1.0 + t**8 / 8.0 + off * np.exp(-decay * t)

    def field(t, y, u):
        return -decay * (y - 1.0 - t**8 / 8.0) + t**7

    jacobian = FieldJacobian(-decay * np.eye(1), np.zeros((1, 0)))
    mode = hc.Mode("y", hc.VectorSpace(1), field, jacobian=lambda t, y, u: jacobian)
    record, estimate = attempt_step(mode, [1.0 + off], 1.0)
    places = np.concatenate([np.geomspace(1e-9, 0.1, 100), np.linspace(0.1, 1.0, 100)])
    values = basis(2.0 * places - 1.0) @ TO_SERIES @ record[:, 0]
    error = np.abs(values - exact(places)).max()
    allowed = 1.0 + np.abs(record[[0, -1], 0]).max()
    assert error <= estimate * allowed <= 10.0 * error


@pytest.mark.parametrize("fast", [3.0, 3000.0])
def test_error_and_estimate_of_a_slide_are_of_order_eight(fast):
    """Friction turns it at 1e2 or 1e5 / s, 0.1 s after its start, while it is smooth."""

    def across(t):
        return 0.3 + np.sin(20.0 * t), 20.0 * np.cos(20.0 * t)

    slide, solution = make_slide(1, fast, across)
    later = hc.Mode(
        "slides",
        slide.space,
        lambda t, v, u: slide.field(0.1 + t, v, u),
        jacobian=lambda t, v, u: slide.calc(0.1 + t, v, u).field_jacobian,
    )
    errors, estimates = [], []
    for end in (0.1, 0.05, 0.025):
        record, estimate = attempt_step(later, solution(0.1), end)
        exact = np.array([solution(0.1 + t) for t in end * FRACTIONS])
        allowed = 1.0 + np.abs(record[[0, -1]]).max(axis=0)
        errors.append(np.sqrt((((record - exact) / allowed) ** 2).mean(axis=1)).max())
        estimates.append(estimate)
    assert (np.array(errors) <= estimates).all()
    assert (np.array(estimates) <= 30.0 * np.array(errors)).all()
    for values in (errors, estimates):
        assert values[1] > 2.0**7 * values[2]


@pytest.mark.parametrize("off", [0.5, 1.0, 2.0, None])
def test_a_decay_known_to_a_factor_of_two_or_seen_is_left_to_implicit_steps(off):
    """Begun beside cos t with explicit steps, which stability keeps below some 6 / RATE.

    There are 2e5 of these in a second; those of the first 50 / RATE until the decay is over, of at
    least its own length, and the implicit ones of the test above are all that there should be.
    """
    run = hc.simulate(Counted(off=off).system(), "m", [2.0, 0.0], (0.0, 1.0), rtol=1e-8, atol=1e-8)
    assert len(run.arcs[0].breaks) < 50 + 60 + 40
    np.testing.assert_allclose(run.final_state, [np.cos(1.0), 1.0], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("off", [0.5, 1.0])
def test_a_smooth_solution_beside_a_known_decay_takes_two_explicit_steps(off):
    """A short one, and the longest that is stable, of 4.5 decays, which accuracy lets grow tenfold.

    That is shorter by `off`; implicit steps are longer than what is left until 20 / RATE.
    """
    options = {
        "rtol": 1e-8,
        "atol": 1e-8,
        "options": hc.SimulationOptions(first_step=0.5 * off / RATE),
    }
    run = hc.simulate(Counted(off=off).system(), "m", [1.0, 0.0], (0.0, 1.0), **options)
    assert (run.arcs[0].breaks < 20.0 / RATE).sum() == 3
    np.testing.assert_allclose(run.final_state, [np.cos(1.0), 1.0], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("method", ["DOP853", "RK45"])
def test_stages_of_a_step_tell_the_time_of_a_decay(method):
    """One from 0.1 beside the slow solution: f changes by RATE between any two states at a time."""
    mode = Counted(off=None).system().mode("m")
    formula = StageKernel(METHODS[method], DrivenMode(mode, HeldInput(np.zeros(0))), 1e-9, 1e-9)
    formula.start(0.0, np.array([1.1, 0.0]))
    formula.attempt(2.0 / RATE)
    assert formula.fastest_decay == pytest.approx(1.0 / RATE, rel=1e-6)
    formula.start(0.0, np.array([1.0, 0.0]))
    formula.attempt(1e-3 / RATE)  # what stages differ by is rounding
    assert formula.fastest_decay == np.inf


def test_a_formula_with_its_last_stage_elsewhere_tells_of_no_decay():
    mode = Counted(off=None).system().mode("m")
    formula = StageKernel(METHODS["RK23"], DrivenMode(mode, HeldInput(np.zeros(0))), 1e-9, 1e-9)
    formula.start(0.0, np.array([1.1, 0.0]))
    formula.attempt(2.0 / RATE)
    assert formula.fastest_decay == np.inf


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.0, -400.0), (-5.0, -400.0), (40.0, 0.0)])
def test_what_accuracy_limits_is_left_to_explicit_steps(rates, tolerance):
    """Free fall, oscillators with and without damping, and growth: x'' = growth x' + spring x - 1.

    Over ten periods, or until 1e17; no implicit step asks for a Jacobian.
    """
    growth, spring = rates
    asked = []

    def jacobian(t, x, u):
        asked.append(t)
        return FieldJacobian(np.array([[0.0, 1.0], [spring, growth]]), np.zeros((2, 0)))

    field = lambda t, x, u: np.array([x[1], spring * x[0] + growth * x[1] - 1.0])  # noqa: E731
    mode = hc.Mode("m", hc.VectorSpace(2), field, jacobian=jacobian)
    end = 1.0 if growth > 0.0 else 10.0 * 2.0 * np.pi / 20.0
    run = hc.simulate(
        hc.HybridSystem([mode], []), "m", [1.0, 0.0], (0.0, end), rtol=tolerance, atol=tolerance
    )
    assert run.end == end
    assert not asked


def test_a_growth_that_takes_away_the_matrix_of_a_step_taken_further_is_no_matter():
    """x' = 1, y' = y / h from y = 0, by steps of the pace h: I / h - J has no inverse."""
    h = 1.0
    mode = hc.Mode(
        "m",
        hc.VectorSpace(2),
        lambda t, x, u: np.array([1.0, x[1] / h]),
        jacobian=lambda t, x, u: FieldJacobian(np.diag([0.0, 1.0 / h]), np.zeros((2, 0))),
        pace=lambda t, x, u: Pace(longest_step=h),
    )
    options = {"method": "Radau", "options": hc.SimulationOptions(first_step=h)}
    run = hc.simulate(hc.HybridSystem([mode], []), "m", [0.0, 0.0], (0.0, 5.0), **options)
    np.testing.assert_allclose(run.final_state, [5.0, 0.0], rtol=1e-15, atol=0.0)
    assert run.arcs[0].breaks.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
