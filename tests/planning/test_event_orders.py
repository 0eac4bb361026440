"""Contacts that close or open together may do so one by one: closed forms of a plate."""

import casadi as ca
import numpy as np
import pytest
from planning.plate import (
    BOTH,
    CLOSED,
    FORCE,
    HALF,
    INERTIA,
    LIFT,
    MASS,
    OPEN,
    RELEASE,
    SPEED,
    TIME,
    UNLOAD,
    guess,
    landing,
    lifting,
    plate,
)

import hybridctl as hc
from hybridctl.base.errors import InfeasibleReferenceError, InputError
from hybridctl.control.feasibility import feasibility
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning.event_orders import ContinuedArc, build_event_orders
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.phase_functions import build_phase_functions
from hybridctl.planning.task import Margins, Phase, Task
from hybridctl.planning.transcription import transcribe


def values(task, x, u, input_rate=(0.0, 0.0)):
    """Values of each order of touch by their limits' names."""
    state, inputs = ca.MX.sym("x", 4), ca.MX.sym("u", 2)
    found = {}
    for order in build_event_orders(task, 0, state, inputs, ca.DM(input_rate)):
        f = ca.Function("f", [state, inputs], [order.state, order.values])
        after, row = (np.array(part).ravel() for part in f(x, u))
        names = [limit.name for limit in order.limits]
        found[order.contacts] = after, dict(zip(names, row, strict=True))
    return found


def test_orders_of_a_plate_have_their_closed_form():
    """One corner stops: L (1/m + h^2/I) = c; the other goes on with the rest of its speed."""
    found = values(landing(), [0.0, 0.0, -SPEED, 0.0], [0.0, 0.0])
    assert set(found) == {("left",), ("right",), ("left", "right"), ("right", "left")}
    alone = SPEED / (1.0 / MASS + HALF**2 / INERTIA)
    rate = SPEED - alone * (1.0 / MASS - HALF**2 / INERTIA)
    for first, other in (("left", "right"), ("right", "left")):
        after, row = found[first,]
        assert row[f"normal impulse of '{first}' after {first}"] == pytest.approx(alone)
        assert row[f"fall of guard '{other} closes' after {first}"] == pytest.approx(rate)
        weight = MASS * 9.81 / (1.0 + MASS * HALF**2 / INERTIA)
        assert row[f"normal force of '{first}' after {first}"] == pytest.approx(weight)
        assert after[2] == pytest.approx(-0.5 * rate)
        after, row = found[first, other]
        np.testing.assert_allclose(after, 0.0, atol=1e-12)


def test_orders_of_release_have_their_closed_form():
    """Lifted by a force that grows at r: L (1/m + h^2/I) = g - F/m for the corner that is left.

    Its force falls at r / (1 + m h^2/I); nothing presses after the last one.
    """
    r = 30.0
    found = values(lifting(), np.zeros(4), [MASS * 9.81, 0.0], (r, 0.0))
    assert set(found) == {("left",), ("right",), ("left", "right"), ("right", "left")}
    for first, other in (("left", "right"), ("right", "left")):
        after, row = found[first,]
        fall = r / (1.0 + MASS * HALF**2 / INERTIA)
        assert row == pytest.approx({f"fall of guard '{other} opens' after {first}": fall})
        np.testing.assert_array_equal(after, 0.0)
        assert found[first, other][1] == {}


def test_a_corner_that_is_let_go_leaves_as_fast_as_its_force_fell():
    """d^3 gap / dt^3 = -(dL/dt) det G / det G_c: per newton more of lift, (1 - G_12 / G_11) / m."""
    own, other = 1.0 / MASS + HALF**2 / INERTIA, 1.0 / MASS - HALF**2 / INERTIA
    fall = 0.5  # of each force, while both press
    expected = fall * (own**2 - other**2) / own
    mode = plate().mode(("open", "closed"))
    x, u = np.zeros(4), np.array([MASS * 9.81, 0.0])
    change = mode.field(0.0, x, u + np.array([1.0, 0.0])) - mode.field(0.0, x, u)
    assert change[2] + HALF * change[3] == pytest.approx(expected)
    assert expected == pytest.approx((1.0 - other / own) / MASS)


def test_both_corners_are_let_go_at_once_and_go_on_past_it():
    """Forces fade no faster than asked, arcs past the event keep the motors' limits."""
    spread = 0.05
    task = lifting(spread=spread, widen=1.0)
    found = optimise(task, guess)
    plant, (event,) = task.system, found.run.events
    assert event.guards == RELEASE
    assert event.time == pytest.approx(TIME, abs=1e-7)
    assert found.mismatch < 1e-6
    reference = hc.extend(
        plant, found.run, before=spread, after=spread, feedforward=found.feedforward
    )
    report = feasibility(plant, reference)
    assert report.failures == ()
    lift, tilt = found.feedforward[0].rate(TIME)
    falls = {"left opens": 0.5 * lift + tilt, "right opens": 0.5 * lift - tilt}
    rates = {name: -fall for name, fall in falls.items()}
    assert report.events[0].guard_rates == pytest.approx(rates, rel=1e-6)
    pressing, free = reference.arcs
    lifts = plant.mode(OPEN).field(TIME, *free.state_and_input(TIME))[2:]
    for side in (HALF, -HALF):
        assert lifts[0] + side * lifts[1] >= LIFT - 1e-6
    for t in np.linspace(0.0, TIME, 21).tolist():
        forces = plant.mode(CLOSED).outputs(t, *pressing.state_and_input(t))["normal_force"]
        assert (forces >= FORCE * (1.0 - t / TIME) - 1e-3).all()
    for phantom in reference.phantoms.values():
        early, late = (
            plant.mode(phantom.mode).outputs(t, *phantom.arc.state_and_input(t))["normal_force"]
            for t in (TIME - spread, TIME + spread)
        )
        assert early.max() > 0.5 * UNLOAD * spread
        assert late.min() < -0.5 * UNLOAD * spread, "it pulls where it should be gone"
    for arc in (*reference.arcs, *(p.arc for p in reference.phantoms.values())):
        for t in np.linspace(arc.start, arc.end, 31).tolist():
            assert np.abs(arc.input(t)).max() <= 60.0 + 1e-6


def test_a_force_that_vanishes_at_the_end_has_no_bound_there():
    """Its equation leaves a bound no interior: with one the search takes 38 iterations, not 15."""
    found = optimise(lifting(), lambda k, s: np.array([0.1 * s * k, 0.0, 0.1 * k, 0.0]))
    assert found.iterations <= 25


def test_an_order_in_which_a_contact_would_pull_is_refused_by_name():
    """Tilting so fast that the left corner rises: it cannot be the first to touch."""
    found = values(landing(), [0.0, 0.0, -SPEED, 2.0 * SPEED / HALF], [0.0, 0.0])
    assert found["left",][1]["normal impulse of 'left' after left"] < 0.0
    rates = {"tilt": (3.0, 9.0)}
    with pytest.raises(InfeasibleReferenceError, match="cannot be done"):
        optimise(landing(start=None, rate_limits=rates), guess)


@pytest.mark.slow
def test_a_common_margin_multiplies_what_is_asked_and_is_as_large_as_it_can():
    """Flat landings have all orders alike; the motors' limit sets how fast, and so how hard."""
    found = optimise(landing(widen=100.0), guess)
    event = found.run.events[0]
    x, u = event.state_before, event.input_before
    least = np.inf
    for _, row in values(landing(), x, u).values():
        for name, value in row.items():
            asked = 0.1 if "impulse" in name else 1.0 if "force" in name else 0.05
            least = min(least, value / asked)
    assert found.margin > 1.0
    assert least == pytest.approx(1.0 + found.margin, rel=1e-5)
    assert optimise(landing(), guess).margin == pytest.approx(0.0, abs=1e-7)


@pytest.mark.slow
def test_with_a_spread_arcs_and_phantom_arcs_stay_feasible_past_the_event():
    """Simulated continuations: forces press, and motors stay inside their limits."""
    spread = 0.1
    task = landing(spread=spread, margins=Margins(force=0.5, impulse=0.1, approach=0.05))
    found = optimise(task, guess)
    plant, curves = task.system, found.feedforward
    reference = hc.extend(
        plant, found.run, before=spread, after=spread, feedforward=curves, rtol=1e-9, atol=1e-9
    )
    assert feasibility(plant, reference).failures == ()
    event = found.run.events[0].time
    times = np.linspace(event - spread, event + spread, 21)
    arcs = [(reference.arcs[1], CLOSED, times[:11])]
    arcs += [(p.arc, p.mode, times) for p in reference.phantoms.values()]
    for arc, mode, span in arcs:
        for t in span.tolist():
            x, u = arc.state_and_input(t)
            assert np.abs(u).max() <= 60.0 + 1e-6
            forces = plant.mode(mode).outputs(t, x, u)["normal_force"]
            assert all(f >= -1e-3 for f, m in zip(forces, mode, strict=True) if m == "closed")


def test_a_continued_arc_is_that_of_its_field():
    """Runge and Kutta's six steps over 0.05 s against the simulated phantom arc."""
    task = landing(torque=np.inf)
    u, state = np.array([5.0, -1.0]), ca.MX.sym("x", 4)
    arc = ContinuedArc(0, ("closed", "open"), state, lambda distance: ca.DM(u), 0.05, "late")
    rows, limits = arc.build_limits(task)
    assert [limit.name for limit in limits] == ["normal force of 'left' late"]
    mode = task.system.mode(("closed", "open"))
    start = mode.project(np.array([0.0, -0.1, 0.3, -0.6]))  # the other corner rises
    forces = np.array(ca.Function("f", [state], [rows])(start)).ravel()
    run = hc.simulate(task.system, mode.key, start, (0.0, 0.05), lambda t, x: u)
    times = np.linspace(0.0, 0.05, 7)[1:].tolist()
    exact = [mode.outputs(t, run(t), u)["normal_force"][0] for t in times]
    assert not run.events
    np.testing.assert_allclose(forces, exact, rtol=1e-6)


@pytest.mark.parametrize("task", [landing, lifting])
def test_every_constraint_has_the_derivative_that_differences_see(task):
    """Along random directions; h = 1e-6 leaves 1e-9 of rounding, 1e-12 of truncation."""
    programme = transcribe(task(spread=0.05, widen=1.0))
    w = programme.column
    both = ca.vertcat(programme.constraints, programme.cost)
    f, slopes = ca.Function("g", [w], [both]), ca.Function("d", [w], [ca.jacobian(both, w)])
    random, h = np.random.default_rng(0), 1e-6
    point = programme.compute_start(guess) + 0.05 * random.normal(size=w.numel())
    exact = slopes(point).sparse()
    for direction in random.normal(size=(2, w.numel())):
        ends = [np.array(f(point + s * h * direction)).ravel() for s in (1.0, -1.0)]
        scale = np.maximum(np.abs(exact) @ np.abs(direction), 1.0)
        off = (ends[0] - ends[1]) / (2.0 * h) - exact @ direction
        assert np.abs(off / scale).max() < 1e-7


def test_what_slides_keeps_sliding():
    """The speed of a sliding contact is a limit of its phase."""
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    urdf = """<robot name="puck"><link name="rail"/><link name="a"><inertial><mass value="1e-9"/>
      <inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/></inertial></link><link name="puck">
      <inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>
      </inertial></link><joint name="x" type="prismatic"><parent link="rail"/><child link="a"/>
      <axis xyz="1 0 0"/><limit lower="-9" upper="9" effort="1" velocity="1"/></joint>
      <joint name="z" type="prismatic"><parent link="a"/><child link="puck"/>
      <axis xyz="0 0 1"/><limit lower="-9" upper="9" effort="1" velocity="1"/></joint></robot>"""
    puck = contact_system(Robot.from_urdf(urdf), [Contact("foot", "puck", floor, friction=0.3)])
    slides = Phase(("slip+",), (), (0.3, 0.4), 2)
    f = build_phase_functions(Task(puck, [slides], margins=Margins(sliding=0.2)), 0)
    row = [limit.name for limit in f.path.limits].index("guard 'foot sticks'")
    assert f.path.limits[row].lower == 0.2
    speed = np.array(f.path([0.0, 0.0, 0.7, 0.0], [0.0, 0.0])).ravel()[row]
    assert speed == pytest.approx(0.7)


def test_the_spread_of_each_event_is_its_own():
    """One number for all, or one for each phase that ends with guards."""
    assert (
        landing(spread=0.1).get_event_spread(0) == landing(spread=[0.1]).get_event_spread(0) == 0.1
    )
    assert landing(spread=0.1).get_event_spread(1) == 0.0, "it ends at a time"
    phases = [
        Phase(OPEN, BOTH, (0.3, 0.5)),
        Phase(CLOSED, RELEASE, (0.3, 0.5)),
        Phase(OPEN, (), (0.3, 0.5)),
    ]
    both = landing(phases=phases, spread=[0.1, 0.2])
    assert [both.get_event_spread(k) for k in range(3)] == [0.1, 0.2, 0.0]


@pytest.mark.parametrize("change", [{"spread": -0.1}, {"spread": [0.1, 0.1]}, {"widen": -1.0}])
def test_tasks_that_make_no_sense_are_refused(change):
    with pytest.raises(InputError):
        landing(**change)


def test_derivatives_point_by_point_are_those_of_the_whole():
    """Rounding only: sums of some hundred terms."""
    task = landing(spread=0.05, widen=1.0, running_cost=lambda x, u: ca.sumsqr(u) * ca.cos(x[1]))
    programme = transcribe(task)
    w, random = programme.column, np.random.default_rng(0)
    multipliers = random.normal(size=programme.constraints.numel())
    lagrangian = 0.7 * programme.cost + ca.dot(ca.DM(multipliers), programme.constraints)
    g = programme.constraints
    whole = ca.Function("whole", [w], [ca.hessian(lagrangian, w)[0], g, ca.jacobian(g, w)])
    point = programme.compute_start(guess) + 0.5 * random.normal(size=w.numel())
    bend, *rest = (part.full() for part in whole(point))
    made = [programme.hessian()(point, [], 0.7, multipliers), *programme.jacobian()(point, [])]
    for found, expected in zip(made, [np.triu(bend), *rest], strict=True):
        atol = 1e-12 * np.abs(expected).max()
        np.testing.assert_allclose(found.full(), expected, atol=atol)


@pytest.mark.parametrize(
    ("limits", "speed"),
    [({}, None), ({"landing_speed": 0.3}, 0.3), ({"landing_impulse": 0.2}, 0.2)],
)
def test_a_landing_is_as_soft_as_it_is_to_be(limits, speed):
    """Without limits the plate of 2 kg hits at 0.6 m/s; each corner takes half of its momentum."""
    margins = Margins(force=1.0, impulse=0.01, approach=0.01, **limits)
    found = optimise(landing(margins=margins), guess)
    event = found.plan.events[0]
    assert event.guards == BOTH
    if speed is None:
        assert event.state_before[2] < -0.4
    else:
        assert event.state_before[2] == pytest.approx(-speed, abs=1e-6)
        np.testing.assert_allclose(event.impulses, 0.5 * MASS * speed, atol=1e-6)
