"""Trajectories by optimisation: closed forms, derivatives, and what cannot be done."""

import casadi as ca
import numpy as np
import pytest
from planning.small_systems import MASS, TIME, WAY, Unexpressed, ball, cart, straight, to_the_wall

import hybridctl as hc
from hybridctl.base.errors import InfeasibleReferenceError, InputError, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning.collocation import PhaseVariables
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.phase_functions import build_cone_limits, build_phase_functions
from hybridctl.planning.plan import build_plan
from hybridctl.planning.task import Condition, Margins, Phase, Task
from hybridctl.planning.transcription import transcribe


@pytest.mark.parametrize("scheme", ["legendre", "radau"])
def test_least_effort_to_a_wall_has_its_closed_form(scheme):
    """u = 3 m d / T^2 (1 - t / T), of cost 3 m^2 d^2 / T^3.

    It takes 7 iterations. The last Radau point is the end, where the gap is zero: a bound of the
    gap there would have no interior, and would cost 14.
    """
    phase = Phase(("open",), ("nose closes",), (TIME, TIME + 1e-9), 2, 4, scheme)
    found = optimise(to_the_wall(phases=[phase]), straight)
    assert found.cost == pytest.approx(3.0 * MASS**2 * WAY**2 / TIME**3, rel=1e-7)
    for t in np.linspace(0.0, TIME, 5):
        expected = 3.0 * MASS * WAY / TIME**2 * (1.0 - t / TIME)
        assert found.feedforward[0](t) == pytest.approx([expected], abs=1e-5)
    assert found.feedforward[0].rate(0.3) == pytest.approx([-3.0 * MASS * WAY / TIME**3], abs=1e-4)
    assert found.run.events[0].time == pytest.approx(TIME, abs=1e-7)
    assert found.mismatch < 1e-8
    assert found.iterations <= 10


def test_free_times_and_a_final_cost_are_balanced():
    """The least of c T + 3 m^2 d^2 / T^3 is where c = 9 m^2 d^2 / T^4."""
    weight = 9.0 * MASS**2 * WAY**2 / TIME**4
    phase = Phase(("open",), ("nose closes",), (0.2, 3.0), intervals=2)
    task = to_the_wall(phases=[phase], final_cost=lambda a, b, t: weight * t)
    assert optimise(task, straight).run.events[0].time == pytest.approx(TIME, rel=1e-6)


def test_a_motion_goes_on_after_its_impact():
    """To the wall and along it: it rests there, and pushes with at least the margin."""
    phases = [
        Phase(("open",), ("nose closes",), (TIME, TIME + 1e-9), 2),
        Phase(("closed",), (), (0.5, 0.5 + 1e-9), 2),
    ]
    margins = Margins(approach=0.1, force=4.0)
    found = optimise(to_the_wall(phases=phases, margins=margins), straight)
    assert found.run.final_mode == ("closed",)
    assert found.run.final_state == pytest.approx([WAY, 0.0], abs=1e-9)
    speed = 1.5 * WAY / TIME
    assert found.run.events[0].impulses == pytest.approx([MASS * speed], rel=1e-6)
    assert found.feedforward[1](TIME + 0.2) == pytest.approx([4.0], abs=1e-5)


def test_a_rising_mass_leaves_its_floor_where_nothing_holds_it():
    phases = [
        Phase(("closed",), ("foot opens",), (0.2, 0.4), 2),
        Phase(("open",), (), (0.3, 0.3 + 1e-9), 2),
    ]
    height = Condition("height", lambda a, b, t: b[1], lower=0.2, upper=0.2, unit="m")
    task = Task(ball(), phases, start=[0.0] * 4, conditions=[height])
    found = optimise(task, lambda k, s: np.zeros(4))
    event = found.run.events[0]
    assert event.guards == ("foot opens",)
    assert found.run.final_state[1] == pytest.approx(0.2, abs=1e-7)
    assert event.input_before[1] == pytest.approx(MASS * 9.81, abs=1e-6)


def test_every_constraint_and_the_cost_have_the_derivative_that_differences_see():
    """Along random directions at a random point; truncation h^2 = 1e-10, rounding 1e-16 / 1e-5."""
    task = to_the_wall(
        phases=[
            Phase(("open",), ("nose closes",), (0.5, 1.0), 2),
            Phase(("closed",), (), (0.5, 1.0), 1),
        ],
        torque=50.0,
        joint_limits={"x": (-1.0, 2.0)},
        final_cost=lambda a, b, t: b[1] ** 2,
    )
    assert_derivatives(transcribe(task))


def assert_derivatives(programme):
    w = programme.column
    both = ca.vertcat(programme.constraints, programme.cost)
    values, slopes = ca.Function("g", [w], [both]), ca.Function("d", [w], [ca.jacobian(both, w)])
    random = np.random.default_rng(0)
    point = 0.5 + 0.2 * random.normal(size=w.numel())
    exact, h = slopes(point).sparse(), 1e-5
    for direction in random.normal(size=(3, w.numel())):
        ends = [np.array(values(point + s * h * direction)).ravel() for s in (1.0, -1.0)]
        along = exact @ direction
        scale = np.maximum(np.abs(exact) @ np.abs(direction), 1.0)
        assert (np.abs((ends[0] - ends[1]) / (2.0 * h) - along) / scale).max() < 1e-7


def test_what_cannot_be_done_is_said_with_place_and_amount():
    """At most 3 N m gives d = u T^2 / (2 m) = 0.48 m: 0.52 m are missing, or force."""
    with pytest.raises(InfeasibleReferenceError, match="cannot be done near this guess") as caught:
        optimise(to_the_wall(torque=3.0), straight)
    text = str(caught.value)
    assert "guard 'nose closes' in phase 0 at 1.00 of it is missed by 0.52 m" in text or (
        "input 0 in phase 0" in text
    )


def test_a_limit_that_is_in_the_way_is_named():
    """The wall is at 1 m, the limit at 0.5 m: one of the two is missed by 0.5 m."""
    with pytest.raises(InfeasibleReferenceError) as caught:
        optimise(to_the_wall(joint_limits={"x": (-1.0, 0.5)}), straight)
    text = str(caught.value)
    assert "guard 'nose closes' in phase 0 at 1.00 of it is missed by 0.5 m" in text or (
        "coordinate of joint 'x'" in text
    )


@pytest.mark.parametrize(("duration", "searches"), [((0.2, 3.0), 2), ((TIME, TIME + 1e-9), 0)])
def test_other_durations_are_tried_where_there_are_others(duration, searches):
    """The message has all searches, each of which would begin at the same durations otherwise."""
    phase = Phase(("open",), ("nose closes",), duration, 2)
    with pytest.raises(InfeasibleReferenceError) as caught:
        optimise(to_the_wall(phases=[phase], joint_limits={"x": (-1.0, 0.5)}), straight)
    assert str(caught.value).count("% of their bounds") == searches


def test_a_result_is_tracked_as_it_is():
    """Extended by its own inputs, with LQR across the impact, from a start that is off."""
    phases = [
        Phase(("open",), ("nose closes",), (TIME, TIME + 1e-9), 2),
        Phase(("closed",), (), (0.5, 0.5 + 1e-9), 2),
    ]
    task = to_the_wall(phases=phases, margins=Margins(approach=0.1, force=4.0))
    found = optimise(task, straight)
    lin = hc.linearize(task.system, found.run)
    lqr = hc.hybrid_lqr(lin, np.eye(2), 0.1 * np.eye(1), np.eye(2))
    reference = hc.extend(
        task.system, found.run, before=0.2, after=0.2, feedforward=found.feedforward
    )
    policy = hc.ReferenceSpreading(reference, lqr.gains)
    run = hc.simulate(task.system, ("open",), [-0.05, 0.0], (0.0, found.run.end), policy)
    assert run.final_mode == ("closed",)
    assert run.final_state == pytest.approx(found.run.final_state, abs=1e-6)


def test_a_search_begins_inside_the_limits_of_inputs():
    """The ball weighs 19.6 N, of which the motor can bear 5 N."""
    task = Task(ball(), [Phase(("open",), (), (0.3, 0.4), 2)], torque=5.0)
    programme = transcribe(task)
    start = build_plan(programme, programme.compute_start(lambda k, s: np.array([0, 0.3, 0, 0])))
    np.testing.assert_allclose(start.curves[0](0.2), [0.0, 5.0], atol=1e-12)


def test_functions_of_a_phase_are_those_of_the_system():
    """Field, forces and jump by expressions against the modes that are simulated."""
    task = to_the_wall(
        phases=[Phase(("open",), ("nose closes",), (0.5, 1.0)), Phase(("closed",), (), (0.5, 1.0))]
    )
    f = build_phase_functions(task, 0)
    x, u = np.array([1.0, 0.7]), np.array([1.3])
    field = task.system.mode(("open",)).field(0.0, x, u)
    assert np.array(f.field(x, u)).ravel() == pytest.approx(field, abs=1e-13)
    jump = task.system.outgoing(("open",)).edge(("nose closes",)).reset(0.0, x, u)
    assert np.array(f.jump(x)).ravel() == pytest.approx(jump.state, abs=1e-13)


def test_a_force_that_ends_a_phase_is_a_force_whatever_its_contact_is_called():
    """Units of guards are of their kind: a name with "sticks" in it makes no speed of a force."""
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    plant = contact_system(ball().robot, [Contact("sticks", "ball", floor)])
    phases = [Phase(("closed",), ("sticks opens",), (0.2, 0.4)), Phase(("open",), (), (0.3, 0.4))]
    task = Task(plant, phases, margins=Margins(unload=7.0, approach=0.3))
    guard, fall = build_phase_functions(task, 0).end.limits
    assert (guard.unit, fall.unit, fall.lower) == ("N", "N/s", 7.0)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"phases": []}, InputError, "at least one phase"),
        (
            {"phases": [Phase(("open",), ("nose opens",), (0.1, 1.0))]},
            UnknownNameError,
            "'nose opens'",
        ),
        (
            {"phases": [Phase(("open",), (), (0.1, 1.0)), Phase(("closed",), (), (0.1, 1.0))]},
            InputError,
            r"phases\[0\] must end with guards, as contacts close",
        ),
        ({"start": [0.0]}, InputError, "start must have shape"),
        ({"joint_limits": {"y": (0.0, 1.0)}}, UnknownNameError, "'y'"),
        ({"degree": -1}, InputError, "degree"),
        ({"system": cart(Unexpressed())}, InputError, "expressions"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(change, kind, words):
    with pytest.raises(kind, match=words):
        to_the_wall(**change)


@pytest.mark.parametrize(
    "given", [{"duration": (1.0, 0.5)}, {"duration": (0.0, 1.0)}, {"intervals": 0}, {"points": 1}]
)
def test_phases_that_make_no_sense_are_refused(given):
    with pytest.raises(InputError):
        Phase(**({"mode": ("open",), "ends": (), "duration": (0.5, 1.0)} | given))


def test_margins_are_not_negative():
    with pytest.raises(InputError, match="friction"):
        Margins(friction=1.5)
    with pytest.raises(InputError, match="force"):
        Margins(force=-1.0)


def box(**options):
    """A floating box with one point on a floor, of friction 0.5."""
    urdf = """<robot name="box"><link name="box"><inertial><mass value="1"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    return Robot.from_urdf(urdf, **options), Contact("foot", "box", floor, friction=0.5)


@pytest.mark.parametrize(("root", "tangents"), [("sagittal", 1), ("floating", 2)])
def test_a_contact_that_sticks_stays_inside_its_part_of_the_cone(root, tangents):
    """|f_t| <= m mu f_n, with m the margin; and the normal force has its least value.

    In space the value has the sign of the room to the cone, and its size and slope at the border.
    """
    robot, contact = box(root=root)
    system = contact_system(robot, [contact])
    phase = Phase(("stick",), (), (0.3, 0.4), 2)
    task = Task(system, [phase], margins=Margins(friction=0.8, force=2.0))
    rng = np.random.default_rng(4)
    for _ in range(20):
        force = np.append(5.0 * rng.random(), rng.normal(size=tangents))
        rows = build_cone_limits(task, ca.DM(force), 0, "N", 2.0, "stick", is_smooth=True)
        room = [float(value) - limit.lower for value, limit in rows]
        assert room[0] == pytest.approx(force[0] - 2.0)
        inside = 0.4 * force[0] - np.linalg.norm(force[1:])
        if tangents == 1:
            assert min(room[1:]) == pytest.approx(inside)
        else:  # the root is rounded off at 1e-6 N
            assert room[1] * inside > 0.0
            border = np.append(force[0], 0.4 * force[0] * force[1:] / np.linalg.norm(force[1:]))
            for step in (0.0, 1e-3, -1e-3):
                moved = np.append(border[0] + step, border[1:])
                _, (value, _) = build_cone_limits(
                    task, ca.DM(moved), 0, "N", 2.0, "stick", is_smooth=True
                )
                # Curvature is at most 1 / |f|: the second order is step^2 / |f|.
                assert float(value) == pytest.approx(0.4 * step, abs=1e-5 + step**2)


def test_a_cone_in_space_has_no_edge_at_its_axis():
    """Its second derivative by f_t is that of a hyperbola at the axis, -sqrt(2) / (m mu f_n)."""
    robot, contact = box(root="floating")
    system = contact_system(robot, [contact])
    task = Task(system, [Phase(("stick",), (), (0.3, 0.4), 2)], margins=Margins(friction=0.8))
    force = ca.SX.sym("force", 3)
    value = build_cone_limits(task, force, 0, "N", 0.0, "stick", is_smooth=True)[1][0]
    curvature = ca.Function("curvature", [force], [ca.hessian(value, force)[0]])
    on_axis = np.array(curvature([5.0, 0.0, 0.0]))
    expected = np.diag([0.0, -1.0, -1.0]) * np.sqrt(2.0) / (0.4 * 5.0)
    np.testing.assert_allclose(on_axis, expected, atol=1e-9)


def test_the_rate_at_the_end_of_a_phase_is_that_of_its_polynomial():
    t, duration = np.polynomial.chebyshev.Chebyshev, 0.7
    coefficients = np.random.default_rng(6).normal(size=(2, 4))
    none = ca.DM.zeros(1, 1)
    variables = PhaseVariables(none, none, ca.DM(coefficients), ca.DM(duration))
    found = variables.build_final_input_rate()
    right = [t(row, domain=[0.0, duration]).deriv()(duration) for row in coefficients]
    np.testing.assert_allclose(np.array(found).ravel(), right, rtol=1e-12)
