"""Equations of motion as constraints of a programme: the same optimum, and what it needs."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import public
from planning import first_tasks
from scipy.linalg import null_space

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.mechanics.impacts.impact_expressions import build_impact_map
from hybridctl.mechanics.modes.implicit_expressions import (
    SCALE,
    build_implicit_impact,
    build_implicit_mode,
    has_unique_accelerations,
)
from hybridctl.mechanics.modes.mode_expressions import mode_field
from hybridctl.planning.implicit_phases import uses_implicit_phases
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Condition, Phase, Task, TransitionWeight
from hybridctl.planning.transcription import transcribe

TROT = ("stick", "open", "open", "stick")


def solve(residual, x, unknowns, at):
    """The unknowns, by the residual that is linear in them."""
    f = ca.Function("f", [x, unknowns], [residual, ca.jacobian(residual, unknowns)])
    value, slope = (np.asarray(part) for part in f(at, np.zeros(unknowns.numel())))
    return -np.linalg.solve(slope, value.ravel())


@pytest.mark.parametrize("modes", [("open",) * 4, TROT])
def test_accelerations_and_forces_that_make_the_residual_vanish_are_those_of_the_field(modes):
    """Recursive inverse dynamics and a factorised mass matrix agree to rounding."""
    plant, rng = public.system("solo12"), np.random.default_rng(0)
    robot, contacts = plant.robot, plant.contacts
    assert has_unique_accelerations(robot, contacts, modes)
    q = robot.integrate(robot.neutral(), 0.3 * rng.normal(size=robot.nv))
    x, u = np.concatenate([q, rng.normal(size=robot.nv)]), rng.normal(size=robot.nu)
    solved = mode_field(robot, contacts, modes, stabilization=2.0)
    implicit = build_implicit_mode(robot, contacts, modes, stabilization=2.0)
    own, z = implicit.u[: robot.nu], implicit.u[robot.nu :]
    both = ca.vertcat(implicit.x, own)
    at = np.concatenate([x, u])
    found = np.concatenate([u, solve(implicit.residual, both, z, at)])
    rows = ["field", "forces", "guards"]
    want = ca.Function("f", [solved.x, solved.u], [getattr(solved, row) for row in rows])(x, u)
    have = ca.Function("f", [implicit.x, implicit.u], [getattr(implicit, row) for row in rows])
    for one, other in zip(have(x, found), want, strict=True):
        scale = np.abs(np.asarray(other)).max(initial=1.0)
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-9 * scale)


def test_an_impact_that_makes_the_residual_vanish_is_that_of_the_map():
    plant, rng = public.system("solo12"), np.random.default_rng(1)
    robot, contacts = plant.robot, plant.contacts
    q = robot.integrate(robot.neutral(), 0.3 * rng.normal(size=robot.nv))
    x = np.concatenate([q, rng.normal(size=robot.nv)])
    impact = build_implicit_impact(robot, contacts, TROT)
    z = solve(impact.residual, impact.x, impact.unknowns, x)
    want = build_impact_map(robot, contacts, TROT)
    rows = ["after", "impulses", "rates"]
    have = ca.Function("f", [impact.x, impact.unknowns], [getattr(impact, row) for row in rows])
    wanted = ca.Function("f", [want.x], [getattr(want, row) for row in rows])
    for one, other in zip(have(x, z), wanted(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-10)
    assert (
        np.abs(SCALE * z[: robot.nv] - np.asarray(wanted(x)[0]).ravel()[robot.nq :]).max() < 1e-10
    )


def test_a_guess_obeys_the_equations_of_motion_and_derivatives_are_those_of_differences():
    """Residuals of nodes vanish to 1e-8 at the start; differences of size h err by h^2."""
    task, guess = first_tasks.monoped_jump()
    programme = transcribe(replace(task, implicit=True))
    start = programme.compute_start(guess)
    motion = [
        block.values for block in programme.blocks if block.limits[0].name == "equations of motion"
    ]
    column = programme.column
    values = ca.Function("f", [column], [ca.vertcat(*(ca.vec(part) for part in motion))])(start)
    assert np.abs(np.asarray(values)).max() < 1e-8
    rng = np.random.default_rng(2)
    g, slopes = programme.jacobian()(start, [])
    away = rng.normal(size=len(start))
    away[-1] = 0.0
    h = 1e-6
    ends = [np.asarray(programme.jacobian()(start + s * h * away, [])[0]).ravel() for s in (1, -1)]
    slope = (ends[0] - ends[1]) / (2.0 * h)
    np.testing.assert_allclose(
        np.asarray(slopes @ away).ravel(), slope, rtol=1e-5, atol=1e-5 * np.abs(slope).max()
    )
    assert g.shape[0] == slopes.shape[0]


def test_large_robots_have_their_equations_as_constraints_where_nothing_needs_them_solved():
    plant = public.system("solo12")
    task = Task(plant, [Phase(TROT, (), (0.1, 0.2), 2, 3)])
    assert uses_implicit_phases(task)
    assert not uses_implicit_phases(replace(task, implicit=False))
    assert not uses_implicit_phases(replace(task, margins=replace(task.margins, early=0.1)))
    small, _ = first_tasks.monoped_jump()
    assert not uses_implicit_phases(small)
    assert uses_implicit_phases(replace(small, implicit=True))
    with pytest.raises(InputError, match="implicit must be None or False"):
        replace(small, implicit=True, margins=replace(small.margins, early=0.1))
    with pytest.raises(InputError, match="implicit must be None or False"):
        replace(small, implicit=True, transition=TransitionWeight(1.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hybridctl.base.errors.RedundantConditionWarning")
def test_both_forms_have_the_same_optimum_and_one_begins_at_the_other():
    task, guess = first_tasks.monoped_jump()
    solved = optimise(task, guess, tolerance=5e-2)
    implicit = optimise(replace(task, implicit=True), solved, tolerance=5e-2)
    assert implicit.cost == pytest.approx(solved.cost, rel=1e-6)
    assert implicit.iterations < solved.iterations
    finer = [replace(phase, intervals=2 * phase.intervals) for phase in task.phases]
    warm = optimise(replace(task, phases=finer), implicit, tolerance=5e-2)
    assert warm.cost == pytest.approx(solved.cost, rel=0.05)
    with pytest.raises(InputError, match="guess must have the 1 phase"):
        optimise(replace(task, phases=task.phases[:1]), solved)


def box_on_corners(count):
    """A box on a floor with this number of corners, not all in a line."""
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    urdf = """<robot name="box"><link name="box"><inertial><mass value="1"/>
      <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""
    places = ((0.1, 0.1, 0.0), (-0.1, 0.1, 0.0), (-0.1, -0.1, 0.0), (0.1, -0.1, 0.0))
    corners = [
        Contact(f"corner{i}", "box", floor, offset=offset, friction=0.5)
        for i, offset in enumerate(places[:count])
    ]
    return contact_system(Robot.from_urdf(urdf, root="floating"), corners)


def test_redundant_contacts_are_refused_where_their_forces_would_decide_the_motion():
    """Three corners that stick have nine rows for the six directions of a body: they hold it.

    Where four slide, their friction depends on how they share the load.
    """
    plant = box_on_corners(3)
    names = plant.outgoing(("open",) * 3).guards.names
    lands = tuple(name for name in names if name.endswith("closes"))
    falls = Phase(("open",) * 3, lands, (0.1, 0.2), 2)
    lies = Phase(("stick",) * 3, (), (0.1, 0.2), 2)
    assert uses_implicit_phases(Task(plant, [falls, lies], implicit=True))
    slides = Phase(("slip",) * 4, (), (0.1, 0.2), 2)
    with pytest.raises(InputError, match=r"slide or rebound in phases\[0\]"):
        uses_implicit_phases(Task(box_on_corners(4), [slides], implicit=True))
    assert not uses_implicit_phases(Task(box_on_corners(4), [slides]))


def test_forces_that_corners_share_in_any_way_have_one_motion():
    """Of 24 rows of two soles 12 are independent; forces along the other 12 push nothing.

    All rows are at rest under the accelerations, not only those among the equations.
    """
    robot, contacts = public.robot_with_motors("talos"), public.contacts("talos")
    implicit = build_implicit_mode(robot, contacts, ("stick",) * 8)
    rng = np.random.default_rng(0)
    q = public.start("talos", 0.0)[: robot.nq]
    x, u = np.concatenate([q, np.zeros(robot.nv)]), rng.normal(size=robot.nu)
    own, z = implicit.u[: robot.nu], implicit.u[robot.nu :]
    rows = [implicit.residual, ca.jacobian(implicit.residual, z)]
    value, slope = map(np.asarray, ca.Function("f", [implicit.x, own, z], rows)(x, u, 0.0))
    assert slope.shape == (robot.nv + 12, robot.nv + 24)
    sizes = np.linalg.svd(slope, compute_uv=False)
    assert sizes[-1] > 1e-6 * sizes[0]
    found = -np.linalg.lstsq(slope, value.ravel(), rcond=None)[0]
    free = null_space(slope)
    assert free.shape[1] == 12
    np.testing.assert_allclose(free[: robot.nv], 0.0, atol=1e-9)
    for contact in contacts:  # at rest an acceleration of a point is that of its Jacobian
        jacobian = robot.point_jacobian(q, contact.frame, np.asarray(contact.offset))
        np.testing.assert_allclose(jacobian @ (SCALE * found[: robot.nv]), 0.0, atol=1e-9)


def lift_by_a_foot(implicit):
    """A body rises on a leg whose foot sticks with heel and toe: four rows, three directions."""
    inertia = '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
    inertial = f'<inertial><mass value="{{}}"/>{inertia}</inertial>'
    robot = Robot.from_urdf(
        f"""<robot name="leg"><link name="foot">{inertial.format(1)}</link>
        <link name="body">{inertial.format(5)}</link>
        <joint name="leg" type="prismatic"><parent link="foot"/><child link="body"/>
        <axis xyz="0.1 0 1"/><limit lower="-1" upper="1" effort="200" velocity="9"/></joint>
        </robot>""",
        root="sagittal",
    )
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    sole = [
        Contact(name, "foot", floor, offset=(along, 0.0, 0.0), friction=0.7)
        for name, along in (("heel", -0.1), ("toe", 0.15))
    ]
    plant = contact_system(robot, sole)
    start = np.zeros(8)
    start[3] = 0.4
    ends = [
        Condition("rise", lambda a, b, t: b[3] - a[3], 0.1, 0.1, "m"),
        Condition("rest", lambda a, b, t: b[7]),
    ]
    phase = Phase(("stick", "stick"), (), (0.3, 0.5), 4, 4)
    task = Task(plant, [phase], start=start, conditions=ends, degree=5, implicit=implicit)
    rise = np.eye(8)[3]
    return optimise(task, lambda k, s: start + 0.1 * s * rise + 0.2 * np.eye(8)[7])


def test_a_sole_whose_points_share_forces_has_the_optimum_of_solved_dynamics():
    """Forces of least norm are inside the cones, so that both forms allow the same motions."""
    solved, implicit = lift_by_a_foot(False), lift_by_a_foot(True)
    assert implicit.open_loop.closes, implicit.open_loop.problem
    assert implicit.cost == pytest.approx(solved.cost, rel=1e-6)
