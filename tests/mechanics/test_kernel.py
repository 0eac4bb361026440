"""The compiled kernel of contact modes against the Python mode, and without it."""

import os
import pickle
import subprocess
import sys
import types
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hybridctl.robots import public

import hybridctl as hc
from hybridctl.app.cli import main
from hybridctl.base.errors import NoContactSolutionError
from hybridctl.hybrid.explicit import StageKernel
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import StepRequest
from hybridctl.hybrid.step import DrivenMode
from hybridctl.hybrid.tableau import DOP853_TABLEAU
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot
from hybridctl.mechanics.kernel import extension
from hybridctl.mechanics.kernel.extension import describe_kernel, is_kernel_available
from hybridctl.mechanics.modes import kernel_mode
from hybridctl.mechanics.modes.contact_mode import ContactMode
from hybridctl.mechanics.modes.kernel_mode import (
    KernelContactMode,
    ModeKernel,
    find_kernel_obstacle,
)
from hybridctl.mechanics.modes.slip_directions import find_slip_directions
from hybridctl.mechanics.multibody.state import RobotStateSpace
from hybridctl.mechanics.system import contact_system
from hybridctl.mechanics.terms import expression_terms
from mechanics.models import BOWL, HILL, PAIR, PLANAR_PAIR, SLOPE, TWINS, WHEEL, pair, random_state
from mechanics.random_robots import random_robot

pytestmark = pytest.mark.skipif(not is_kernel_available(), reason="there is no compiled kernel")

# The kernel and the Python mode solve the same equations in another order of operations. Forces of
# both are off by the rounding of the terms, 1e-16 of the largest, times the condition of mass and
# Delassus matrix. The kernel takes no pivots below 1e-6 of the largest; the worst of 500 random
# points differs by 3e-12 of the largest entry.
AGREE = 1e-9
SINGLE = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
GROUNDS = {
    "slope": lambda: pair("floating", SLOPE, mu=0.4),
    "smooth": lambda: pair("floating", SLOPE),
    "hill": lambda: pair("floating", HILL, mu=0.4),
    "bowl": lambda: pair("floating", BOWL, mu=0.3),
    "plane": lambda: pair("sagittal", SLOPE, PLANAR_PAIR, mu=0.4),
    "wheel": lambda: pair("floating", SLOPE, WHEEL, mu=0.4),
    "mimic": lambda: pair("floating", SLOPE, TWINS, mu=0.4),
}


def make_mode(dynamics, modes) -> ContactMode:
    return ContactMode(dynamics, modes, RobotStateSpace(dynamics.robot))


def list_modes(dynamics):
    """All modes of all contacts that the kernel covers."""
    names = [
        ("open", "closed"),
        ("open", "stick", "slip+", "slip-"),
        ("open", "stick", "slip"),
    ]
    for modes in product(*(names[len(rows)] for rows in dynamics.contact_set.tangents)):
        if find_kernel_obstacle(dynamics, dynamics.phase(modes)) is None:
            yield modes


def compare(mode: ContactMode, x, u) -> bool:
    """Compare all values at a point, and return whether the kernel covers it."""
    found, point = ModeKernel(mode).evaluate(x, u), mode.calc(0.0, x, u)
    if found is None:  # forces of redundant contacts are shared in Python
        kkt = point.solution.kkt
        assert kkt.redundant or kkt.without_sliding_friction().redundant
        return False
    compare_values(mode, point, found, AGREE)
    return True


def find_rate(mode: ContactMode, x, u):
    """The rate of the configuration (nq,) that the kernel finds."""
    kernel, dynamics = ModeKernel(mode)._kernel, mode.dynamics
    rate, forces = np.empty(len(x)), np.empty(len(dynamics.contact_set.owner))
    assert kernel.find_forces(x, u, rate, forces)
    return rate[: dynamics.robot.nq]


def compare_values(mode: ContactMode, point, found, tolerance: float):
    """Compare the values found at a point, relative to the largest ones."""
    x, u, nq = point.x, point.u, mode.dynamics.robot.nq
    scale = max(1.0, float(np.abs(point.field).max()))
    np.testing.assert_allclose(found.field, point.field, rtol=0, atol=tolerance * scale)
    rate = find_rate(mode, x, u)
    np.testing.assert_allclose(
        rate, mode.space.rate(x, point.field)[:nq], rtol=0, atol=1e-14 * scale
    )
    scale = max(1.0, float(np.abs(point.guards).max(initial=0.0)))
    np.testing.assert_allclose(found.guards, point.guards, rtol=0, atol=tolerance * scale)
    (field_z, guards_z), both = (
        ModeKernel(mode).differentiate(x, u),
        np.hstack(point.field_jacobian),
    )
    if mode.held is not None:
        own = KernelContactMode(mode.dynamics, mode.modes, mode.space)
        residuals = own.held.residuals(x), mode.held.residuals(x)
        np.testing.assert_allclose(*residuals, rtol=0, atol=1e-14 * max(1.0, np.abs(x).max() ** 2))
    redundant = bool(mode.phase.closed) and point.solution.kkt.redundant
    if field_z is None:  # shared forces are at a border, or the mode has no tree
        assert redundant
    # Where forces are not inside their cones, weights of 1e-6 cost Python's derivatives digits; of
    # contacts that all stick the field does not depend on weights.
    elif not redundant or not mode.phase.sliding or point.force_solution.inside_cones:
        scale = max(1.0, float(np.abs(both).max()))
        np.testing.assert_allclose(field_z, both, rtol=0, atol=tolerance * scale)
    if guards_z is not None and (not redundant or point.force_solution.inside_cones):
        both = np.hstack(point.guard_jacobian[1:])
        scale = max(1.0, float(np.abs(both).max(initial=0.0)))
        np.testing.assert_allclose(guards_z, both, rtol=0, atol=tolerance * scale)
    if mode.steady_pace is None:
        longest = min(mode.decay_time, 0.9 * found.stop)
        rtol = max(1e-7, tolerance)
        np.testing.assert_allclose(longest, point.pace.longest_step, rtol=rtol)
        # As rates, 1/s: where nothing turns they are rounding of zero.
        turns = 1.0 / found.turn, 1.0 / point.pace.relaxation
        np.testing.assert_allclose(*turns, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("ground", GROUNDS)
def test_field_guards_and_step_limits_are_those_of_the_python_mode(ground):
    dynamics, covered = GROUNDS[ground](), []
    for seed, modes in enumerate(list_modes(dynamics)):
        q, v, u = random_state(dynamics, seed)
        covered.append(compare(make_mode(dynamics, modes), np.concatenate((q, v)), u))
    # The others have more constraints than the robot has velocities.
    assert sum(covered) >= 10


@pytest.mark.parametrize("seed", range(12))
def test_random_robots_agree(seed):
    """Chains and trees of all joint kinds, with contacts between bodies, some without friction."""
    rng = np.random.default_rng(seed)
    robot, contacts = random_robot(rng)
    dynamics = ContactDynamics(robot, contacts, stabilization=float(seed % 3))
    for k, modes in enumerate(list_modes(dynamics)):
        if k % 5 == 0:
            q, v, u = random_state(dynamics, k)
            compare(make_mode(dynamics, modes), np.concatenate((q, v)), u)


# Redundant contacts

SOLE_MODES = (
    ("stick",) * 5,
    ("stick", "stick", "stick", "open", "open"),
    ("stick", "open", "open", "stick", "stick"),
    ("slip",) * 4 + ("open",),
    ("slip",) * 5,
    ("slip", "slip", "slip", "slip", "stick"),
    ("stick", "slip", "open", "stick", "open"),
    ("stick", "stick", "open", "slip", "stick"),
)
FOOT = """<robot name="foot"><link name="sole"><inertial><mass value="1.5"/>
<inertia ixx="0.02" iyy="0.015" izz="0.01" ixy="0.001" ixz="0.002" iyz="0"/></inertial></link>
<link name="leg"><inertial><origin xyz="0.02 0.01 0.2"/><mass value="0.5"/>
<inertia ixx="0.02" iyy="0.03" izz="0.01" ixy="0.001" ixz="0" iyz="0.002"/></inertial></link>
<joint name="ankle" type="revolute"><parent link="sole"/><child link="leg"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="9" velocity="9"/></joint></robot>"""


def make_sole(friction: float) -> ContactDynamics:
    """A foot on four corners, of which the leg may touch the ground as well."""
    robot = Robot.from_urdf(FOOT, root="floating")
    corners = [(x, y, -0.05) for x in (0.1, -0.08) for y in (0.05, -0.05)]
    points = [*(("sole", corner) for corner in corners), ("leg", (-0.3, 0.1, -0.05))]
    contacts = [
        Contact(f"{k}", body, SINGLE, offset=place, friction=friction)
        for k, (body, place) in enumerate(points)
    ]
    return ContactDynamics(robot, contacts)


def is_near_apex(solution) -> bool:
    """Whether a contact carries next to no load."""
    normal = solution.forces[: len(solution.phase.closed)]
    return bool(np.abs(normal).min() <= 2e-4 * np.abs(normal).max())


@pytest.mark.parametrize("friction", [0.3, 0.6])
def test_redundant_contacts_share_forces_as_in_python(friction):
    """Inside their cones, at the border of one, and outside where no forces are inside."""
    dynamics, found = make_sole(friction), Counter()
    robot, rng = dynamics.robot, np.random.default_rng(5)
    for modes in SOLE_MODES * 8:
        mode = make_mode(dynamics, modes)
        q = robot.integrate(robot.neutral(), 0.05 * rng.normal(size=robot.nv))
        x = mode.project(np.concatenate((q, 0.2 * rng.normal(size=robot.nv))))
        u = 0.3 * rng.normal(size=robot.nu)
        values, point = ModeKernel(mode).evaluate(x, u), mode.calc(0.0, x, u)
        solution = point.force_solution
        if not solution.kkt.redundant:
            continue
        if values is None:
            free = len(solution.multipliers) - solution.kkt.rank
            slow = find_slip_directions(mode.phase, solution.rows)[1]
            assert free > 1 or slow or is_near_apex(solution)
            found["left to Python"] += 1
            continue
        found["slides" if solution.phase.sliding else "sticks"] += 1
        found["at a border"] += solution.cone_forces is not None
        compare_values(mode, point, values, AGREE)
    assert min(found["slides"], found["sticks"], found["at a border"]) >= 1, found


def test_two_free_directions_are_shared_inside_the_cones_as_in_python():
    """Two corners of a sole stick, all four of the other slide: each sole has one free direction.

    Friction of the sole that slides couples them.
    """
    system, found, rng = public.system("icub"), Counter(), np.random.default_rng(8)
    start = public.start("icub", 0.0)
    for modes in (
        ("stick", "open", "stick", "open", "slip", "slip", "slip", "slip"),
        ("slip", "slip", "slip", "slip", "stick", "open", "open", "stick"),
    ):
        kernel_mode = system.mode(modes)
        mode, robot = make_mode(kernel_mode.dynamics, modes), kernel_mode.dynamics.robot
        for _ in range(8):
            q = robot.integrate(start[: robot.nq], 0.02 * rng.normal(size=robot.nv))
            x = mode.project(np.concatenate((q, 0.1 * rng.normal(size=robot.nv))))
            # Along a line of inputs from forces inside the cones to where none are.
            push = 20.0 * rng.normal(size=mode.nu)
            at_border = []
            for part in np.linspace(0.0, 1.0, 200):
                values = kernel_mode.kernel.evaluate(x, part * push)
                found["left to Python"] += values is None
                if values is not None and not values.guards.all():
                    at_border.append(part * push)
            for u in (*at_border[:: max(1, len(at_border) // 3)], push):
                values, point = kernel_mode.kernel.evaluate(x, u), mode.calc(0.0, x, u)
                if values is None:
                    continue
                solution = point.force_solution
                assert len(solution.multipliers) - solution.kkt.rank == 2
                border = solution.cone_forces is not None
                found["border" if border else "none" if not solution.inside_cones else "in"] += 1
                compare_values(mode, point, values, AGREE)
    # The rest is near the apex of a cone, or nearly at the border of another one.
    assert found["left to Python"] <= 0.02 * 3200, found
    assert min(found["none"], found["border"]) >= 5, found


def test_a_held_corner_with_two_coefficients_of_friction_is_as_in_python():
    """Kinetic friction decides whether it is held, static friction bounds its shared forces.

    Forces inside one cone and outside the other were moved to the border of the narrow one: guards
    were off by up to 0.9 N of 14 N.
    """
    narrow, rng, held = make_sole(0.08), np.random.default_rng(1), 0
    contacts = [replace(c, friction=0.08, static_friction=1.5) for c in narrow.contacts]
    dynamics, robot = ContactDynamics(narrow.robot, contacts), narrow.robot
    stuck = make_mode(dynamics, ("stick", "open", "open", "stick", "open"))
    mode = make_mode(dynamics, ("stick", "open", "open", "slip", "open"))
    for _ in range(100):
        q = robot.integrate(robot.neutral(), 0.3 * rng.normal(size=robot.nv))
        x = stuck.project(np.concatenate((q, 0.7 * rng.normal(size=robot.nv))))
        u = rng.normal(size=robot.nu)
        values, point = ModeKernel(mode).evaluate(x, u), mode.calc(0.0, x, u)
        if values is None or not point.solution.kkt.redundant:
            continue
        held += 1
        scale = max(1.0, float(np.abs(point.guards).max()))
        np.testing.assert_allclose(values.guards, point.guards, rtol=0, atol=AGREE * scale)
    assert held >= 10


@pytest.mark.parametrize(
    ("place", "changed"),
    [(1, lambda first: first + 1), (2, lambda end: end - 1), (7, lambda pair: 99)],
    ids=["a gap between tangents", "a tangent too few", "an unknown pair"],
)
def test_closed_contacts_that_do_not_fit_are_refused(monkeypatch, place, changed):
    """The sizes of its memory are those of contacts whose tangents follow on each other."""
    mode = make_mode(make_sole(0.5), ("stick", "stick", "open", "open", "open"))
    describe = kernel_mode._describe_closed_contacts

    def misdescribe(phase):
        *others, last = describe(phase)
        return [*others, (*last[:place], changed(last[place]), *last[place + 1 :])]

    ModeKernel(mode)
    monkeypatch.setattr(kernel_mode, "_describe_closed_contacts", misdescribe)
    with pytest.raises(ValueError, match=r"do not fit|are not the normals"):
        ModeKernel(mode)


# Derivatives

QUADRUPED_MODES = (("slip",) * 4, ("stick",) * 4, ("open",) * 4, ("slip", "stick", "open", "slip"))


@pytest.mark.parametrize("modes", QUADRUPED_MODES)
def test_derivatives_of_a_quadruped_are_all_in_the_kernel(modes):
    """Those of the terms, of the field, and of all guards with "sliding jams"."""
    system, start, rng = (
        public.system("solo12"),
        public.start("solo12", 0.0),
        np.random.default_rng(3),
    )
    kernel_mode = system.mode(modes)
    mode, robot = make_mode(kernel_mode.dynamics, modes), kernel_mode.dynamics.robot
    for _ in range(2):
        q = robot.integrate(start[: robot.nq], 0.1 * rng.normal(size=robot.nv))
        x, u = np.concatenate((q, 0.5 * rng.normal(size=robot.nv))), rng.normal(size=mode.nu)
        field, guards = kernel_mode.kernel.differentiate(x, u)
        point = mode.calc(0.0, x, u)
        for found, expected in (
            (field, np.hstack(point.field_jacobian)),
            (guards, np.hstack(point.guard_jacobian[1:])),
        ):
            # Terms that cancel are not larger than the largest entry by more than a hundred.
            scale = 1e-13 * np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=0, atol=100 * scale)


def test_derivatives_of_standing_soles_are_in_the_kernel():
    """Redundant contacts that stick share forces by weights, which change with them."""
    system, start, found = public.system("icub"), public.start("icub", 0.0), 0
    rng = np.random.default_rng(1)
    for modes in (("stick",) * 8, ("stick",) * 4 + ("open",) * 4):
        kernel_mode = system.mode(modes)
        mode, robot = make_mode(kernel_mode.dynamics, modes), kernel_mode.dynamics.robot
        for _ in range(4):
            q = robot.integrate(start[: robot.nq], 0.01 * rng.normal(size=robot.nv))
            x = mode.project(np.concatenate((q, 0.02 * rng.normal(size=robot.nv))))
            u = rng.normal(size=mode.nu)
            derivatives, point = kernel_mode.kernel.differentiate(x, u), mode.calc(0.0, x, u)
            # Outside the cones, and at their border, they are those of Python.
            if derivatives.guards is None:
                continue
            found += 1
            pairs = zip(derivatives, (point.field_jacobian, point.guard_jacobian[1:]), strict=True)
            for own, expected in pairs:
                both = np.hstack(expected)
                np.testing.assert_allclose(own, both, rtol=0, atol=AGREE * np.abs(both).max())
    assert found >= 3


# Rounding, 1e-16 of the largest entry, times the condition of G, of which the kernel covers no more
# than 1e6. The worst of 200 random points differs by 2e-12.
SHARED_AGREE = 1e-10
SLIDING_SOLES = (
    ("slip",) * 8,
    ("slip",) * 4 + ("stick",) * 4,
    ("stick", "open", "stick", "open", "slip", "slip", "slip", "slip"),
)


def differentiate_sliding_soles(modes):
    """Points of icub with sliding soles: compiled mode, mode in Python, x, u, derivatives."""
    system, start = public.system("icub"), public.start("icub", 0.0)
    kernel_mode, rng = system.mode(modes), np.random.default_rng(2)
    mode, robot = make_mode(kernel_mode.dynamics, modes), kernel_mode.dynamics.robot
    for _ in range(16):
        q = robot.integrate(start[: robot.nq], 0.02 * rng.normal(size=robot.nv))
        x = mode.project(np.concatenate((q, 0.1 * rng.normal(size=robot.nv))))
        u = rng.normal(size=mode.nu)
        derivatives = kernel_mode.kernel.differentiate(x, u)
        if derivatives.field is not None:  # at the border of a cone they are those of Python
            yield kernel_mode, mode, x, u, derivatives


@pytest.mark.parametrize(
    "modes", SLIDING_SOLES, ids=["all slide", "one sole sticks", "two corners stick"]
)
def test_derivatives_of_sliding_soles_are_in_the_kernel(modes):
    """Those of shared forces, which change the acceleration, and of "sliding jams"."""
    found = 0
    for compiled, mode, x, u, derivatives in differentiate_sliding_soles(modes):
        found += 1
        point = mode.calc(0.0, x, u)
        field, guards = np.hstack(point.field_jacobian), np.hstack(point.guard_jacobian[1:])
        scale = SHARED_AGREE * np.abs(field).max()
        np.testing.assert_allclose(derivatives.field, field, rtol=0, atol=scale)
        rows = zip(mode.guard_names, derivatives.guards, guards, strict=True)
        largest = np.abs(guards).max()
        for name, own, expected in rows:  # the ratio is not measured in newtons
            scale = np.abs(expected).max() if name == "sliding jams" else largest
            np.testing.assert_allclose(own, expected, rtol=0, atol=SHARED_AGREE * scale)
        # "sliding jams" takes the factors of the forces apart: they are made again.
        again = compiled.kernel.differentiate(x, u)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(again, derivatives, strict=True))
    assert found >= 4


def test_derivatives_of_sliding_soles_are_those_of_differences():
    """Central differences of 1e-5: off by 1e-10 times third derivatives, and 1e-11 by rounding."""
    step, rng, tried = 1e-5, np.random.default_rng(4), 0
    for compiled, mode, x, u, derivatives in differentiate_sliding_soles(("slip",) * 8):
        direction, n = rng.normal(size=derivatives.field.shape[1]), len(x) - 1
        ends = []
        for way in (step, -step):
            moved = mode.space.integrate(x, way * direction[:n])
            point = compiled.calc(0.0, moved, u + way * direction[n:])
            ends.append(np.concatenate((point.field, point.guards)))
        differences = (ends[0] - ends[1]) / (2.0 * step)
        expected = np.concatenate((derivatives.field @ direction, derivatives.guards @ direction))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(expected, differences, rtol=0, atol=1e-5 * scale)
        tried += 1
    assert tried >= 4


# Dry friction of joints


def make_rubbing_robot():
    """Solo12 with dry friction in a joint of three of its legs."""
    joints = public.robot("solo12").joint_names[1:]
    friction = dict.fromkeys(joints[::4], 0.3)
    robot = Robot.from_urdf(public.urdf("solo12"), root="floating", friction=friction)
    return contact_system(robot, public.contacts("solo12"))


@pytest.mark.parametrize("rubbing", [("stick",) * 3, ("slip+", "slip-", "stick")])
@pytest.mark.parametrize("feet", QUADRUPED_MODES)
def test_dry_friction_of_joints_is_in_the_kernel(feet, rubbing):
    """Its load presses it, whatever the motion."""
    system, start, modes = make_rubbing_robot(), public.start("solo12", 0.0), feet + rubbing
    dynamics, rng, found = system.mode(modes).dynamics, np.random.default_rng(3), 0
    mode, robot = make_mode(dynamics, modes), dynamics.robot
    for _ in range(3):
        q = robot.integrate(start[: robot.nq], 0.02 * rng.normal(size=robot.nv))
        x = mode.project(np.concatenate((q, 0.1 * rng.normal(size=robot.nv))))
        found += compare(mode, x, rng.normal(size=mode.nu))
    assert found == 3


def test_a_load_without_a_tangent_is_refused(monkeypatch):
    """Dry friction has one tangent, from which its compliance follows."""
    mode = make_mode(make_sole(0.5), ("stick", "open", "open", "open", "open"))
    describe = kernel_mode._describe_closed_contacts

    def misdescribe(phase):
        return [(*contact[:8], 1.0) for contact in describe(phase)]

    monkeypatch.setattr(kernel_mode, "_describe_closed_contacts", misdescribe)
    with pytest.raises(ValueError, match="do not fit"):
        ModeKernel(mode)


# Contacts with near-zero velocity

SLOW_MODES = (
    ("slip", "open", "open", "open"),
    ("slip", "open", "stick", "open"),
    ("slip", "open", "slip", "open"),
    ("open", "stick", "slip", "open"),
    ("open", "slip", "open", "stick"),
)
SLOW_SPEEDS = (0.0, 5e-10, 4e-9, 8e-9, 1.5e-8)
# Rounding of sliding velocities, m/s: sums of a dozen terms of 1 to 3 m/s.
ROUNDING_OF_VELOCITY = 1e-14


def make_slow(mode, speed, seed):
    """A state in which the first contact that slides has this speed, and an input."""
    dynamics, slow = mode.dynamics, mode.modes.index("slip")
    q, v, u = random_state(dynamics, seed)
    stuck = tuple("stick" if i == slow else name for i, name in enumerate(mode.modes))
    held = make_mode(dynamics, stuck)
    x = held.project(np.concatenate((q, v)))
    rows, angle = held.phase.constrained_rows, float(seed)
    rates = np.zeros(len(dynamics.contact_set.owner))
    rates[dynamics.contact_set.tangents[slow]] = speed * np.cos(angle), speed * np.sin(angle)
    n = dynamics.robot.nq
    jacobian = dynamics.contact_set.jacobian(x[:n])[rows]
    x[n:] += np.linalg.lstsq(jacobian, rates[rows], rcond=None)[0]
    return x, u


def name_outcome(point) -> str:
    """What the Python mode finds that the slow contact does."""
    if point.solution.starting_contacts:
        return "starts"
    return "goes on" if point.solution.phase.modes == point.mode.modes else "is held"


@pytest.mark.parametrize("ground", [SLOPE, BOWL], ids=["slope", "bowl"])
@pytest.mark.parametrize("urdf", [PAIR, WHEEL, TWINS], ids=["pair", "wheel", "twins"])
def test_a_slow_contact_stops_starts_or_is_held_as_in_python(ground, urdf):
    outcomes = Counter()
    # With more friction more contacts are held.
    rough = [pair("floating", ground, urdf, mu=mu) for mu in (0.4, 1.5)]
    for seed, (dynamics, modes, speed) in enumerate(product(rough, SLOW_MODES, SLOW_SPEEDS * 10)):
        mode = make_mode(dynamics, modes)
        try:
            x, u = make_slow(mode, speed, seed)
            point = mode.calc(0.0, x, u)
            found = ModeKernel(mode).evaluate(x, u)
            expected = name_outcome(point)
        except NoContactSolutionError:  # gaps do not close from there
            continue
        if found is None:  # another contact pulls, or a border of the law is near
            continue
        outcomes[expected] += 1
        # A direction is known as well as the velocity is; one that starts, or is at rest, has that
        # of a force.
        is_by_velocity = expected == "goes on" and speed > 1e-9
        rounding = ROUNDING_OF_VELOCITY / speed if is_by_velocity else 0.0
        compare_values(mode, point, found, AGREE + rounding)
    assert min(outcomes[name] for name in ("starts", "goes on", "is held")) >= 1, outcomes


def test_a_single_contact_always_starts_from_rest_in_the_kernel():
    # Its acceleration and the error of its direction are relative to the accelerations without
    # forces. Misread as too small they leave no start certain.
    dynamics, starts = pair("floating", SLOPE, mu=0.1), 0
    mode = make_mode(dynamics, SLOW_MODES[0])
    for seed in range(20):
        try:
            x, u = make_slow(mode, 0.0, seed)
        except NoContactSolutionError:  # gaps do not close from there
            continue
        x[dynamics.robot.nq :] = 0.0  # no drift either
        point = mode.calc(0.0, x, u)
        if name_outcome(point) == "starts":
            starts += 1
            compare_values(mode, point, ModeKernel(mode).evaluate(x, u), AGREE)
    assert starts >= 5


# Steps


def hopping(ground="slope"):
    """A mode in which contacts slide and stick, its state on the constraints, and an input."""
    dynamics = GROUNDS[ground]()
    mode = make_mode(dynamics, ("slip", "open", "stick", "open"))
    q, v, u = random_state(dynamics, 3)
    return mode, mode.project(np.concatenate((q, v))), u


def take_stages(mode, ahead, u):
    """The error, the decay and the step of the generic kernel."""
    kernel = StageKernel(DOP853_TABLEAU, DrivenMode(mode, HeldInput(u), True), *ahead[3:])
    kernel.start(ahead.t, ahead.x)
    error = kernel.attempt(ahead.t + ahead.h)
    return error, kernel.fastest_decay, kernel.accept() if error < 1.0 else None


def assert_same_step(mode, ahead, u):
    error, decay, step = take_stages(mode, ahead, u)
    taken = ModeKernel(mode).take_step(ahead, HeldInput(u))
    if step is None:
        assert not taken.error < 1.0
        assert np.isnan(taken.states).all()
        return
    # An error estimate is what is left of terms that cancel.
    np.testing.assert_allclose(taken.error, error, rtol=1e-3, atol=1e-6)
    for name in ("states", "guards", "bounds"):
        expected = getattr(step, name)
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(getattr(taken, name), expected, rtol=0, atol=1e-10 * scale)
    if np.isfinite(decay):
        np.testing.assert_allclose(taken.fastest_decay, decay, rtol=1e-3)


@pytest.mark.parametrize("h", [1e-4, -1e-4, 1e-3, 0.05])
def test_a_whole_step_is_that_of_the_stages(h):
    mode, x, u = hopping()
    assert_same_step(mode, StepRequest(0.2, x, h, 1e-9, 1e-9), u)


def test_forces_are_those_of_the_acceleration():
    """Field and outputs of a point are of one computation: two would differ by rounding.

    Beside a pole that is 1 % of the forces (`tests/attack`, a pole that a bridge passes).
    """
    reference, x, u = hopping()
    mode = KernelContactMode(reference.dynamics, reference.modes, reference.space)
    point, n = mode.calc(0.0, x, u), mode.dynamics.robot.nv
    assert point.values is not None
    acceleration, forces = mode.kernel.find_forces(x, u)
    np.testing.assert_array_equal(point.field[n:], acceleration)
    np.testing.assert_array_equal(point.contact.acceleration, acceleration)
    count = len(mode.dynamics.contacts)
    np.testing.assert_array_equal(point.outputs["normal_force"], forces[:count])


def test_derivatives_are_those_of_their_point_after_rates_at_another():
    """The kernel keeps the point that it has evaluated last, of which rates leave nothing."""
    mode, x, u = hopping()
    kernel, other = ModeKernel(mode), ModeKernel(mode)
    other.evaluate(x, u)
    kernel.evaluate(x, u)
    kernel.find_rates(mode.space.integrate(x, np.full(mode.space.ndx, 0.1)))
    for found, expected in zip(kernel.differentiate(x, u), other.differentiate(x, u), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_second_step_goes_on_from_the_end_of_the_first():
    mode, x, u = hopping()
    kernel, law = ModeKernel(mode), HeldInput(u)
    first = kernel.take_step(StepRequest(0.0, x, 1e-4, 1e-9, 1e-9), law)
    ahead = StepRequest(1e-4, first.states[-1], 1e-4, 1e-9, 1e-9)
    again, alone = kernel.take_step(ahead, law), ModeKernel(mode).take_step(ahead, law)
    for one, other in zip(again, alone, strict=True):
        np.testing.assert_array_equal(one, other)
    # Another input at the same state is another step.
    other = HeldInput(u + 1.0)
    assert (kernel.take_step(ahead, other).states[-1] != again.states[-1]).any()


def test_a_guard_that_is_not_finite_within_a_step_leaves_it_to_the_stages():
    mode, x, u = hopping()
    kernel = ModeKernel(mode)
    inner = kernel._kernel

    class Broken:
        """Takes the same steps, and has no number for a guard at an inner point."""

        def step(self, *arguments):
            found = inner.step(*arguments)
            arguments[4][3] = np.nan
            return found

    ahead = StepRequest(0.0, x, 1e-4, 1e-6, 1e-6)
    assert kernel.take_step(ahead, HeldInput(u)).error < 1.0
    kernel._kernel = Broken()
    assert kernel.take_step(ahead, HeldInput(u)) is None


def test_points_that_are_left_to_python_within_steps():
    mode, x, u = hopping()
    # The sliding contact is put to rest: on the first stages it is slower than a direction needs.
    rest = make_mode(mode.dynamics, ("stick", "open", "stick", "open")).project(x)
    assert ModeKernel(mode).evaluate(rest, u) is None
    assert_same_step(mode, StepRequest(0.0, rest, 1e-7, 1e-6, 1e-6), u)


def test_a_step_whose_stages_overflow_in_python_is_rejected_without_a_warning():
    mode, x, u = hopping()
    rest = make_mode(mode.dynamics, ("stick", "open", "stick", "open")).project(x)
    taken = ModeKernel(mode).take_step(StepRequest(0.0, rest, 1e160, 1e-6, 1e-6), HeldInput(u))
    assert not taken.error < 1.0


def test_an_error_of_the_python_mode_comes_through(monkeypatch):
    mode, x, u = hopping()
    rest = make_mode(mode.dynamics, ("stick", "open", "stick", "open")).project(x)
    kernel = ModeKernel(mode)

    def fail(*arguments):
        raise FloatingPointError("no field here")

    monkeypatch.setattr(type(mode.dynamics), "solve_phase", fail)
    with pytest.raises(FloatingPointError, match="no field here"):
        kernel.take_step(StepRequest(0.0, rest, 1e-7, 1e-6, 1e-6), HeldInput(u))


def test_guards_at_several_states():
    mode, x, u = hopping()
    states = np.array([x, x + 1e-3, x])
    guards = ModeKernel(mode).sample_guards(states, u)
    for state, row in zip(states, guards, strict=True):
        expected = mode.guards(0.0, mode.space.normalize(state), u)
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


# What it refuses


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_no_state_end_in_no_crash(wrong):
    mode, x, u = hopping()
    bad = x.copy()
    bad[-1] = wrong
    kernel = ModeKernel(mode)
    assert kernel.evaluate(bad, u) is None or abs(wrong) == 1e300
    assert kernel.evaluate(x, np.full_like(u, wrong)) is None or abs(wrong) == 1e300
    if not np.isfinite(wrong):
        taken = kernel.take_step(StepRequest(0.0, bad, 1e-3, 1e-9, 1e-9), HeldInput(u))
        assert np.isnan(taken.error)
        taken = kernel.take_step(StepRequest(0.0, x, wrong, 1e-9, 1e-9), HeldInput(u))
        assert not taken.error < 1.0
    zero = np.zeros_like(x)  # a quaternion of norm zero
    assert kernel.evaluate(zero, u) is None


def test_arrays_of_another_size_type_or_layout_are_refused():
    mode, x, u = hopping()
    kernel = ModeKernel(mode)._kernel
    n, field, guards = len(x), np.empty(2 * mode.dynamics.robot.nv), np.empty(len(mode.guard_names))
    good = [x, u, field, guards]
    assert kernel.evaluate(*good) is not None
    frozen = np.empty(n)
    frozen.setflags(write=False)
    for place, bad in [
        (0, np.zeros(n + 1)),
        (0, np.zeros(n - 1)),
        (0, np.zeros(n, dtype=np.float32)),
        (0, np.zeros(n, dtype=np.int64)),
        (0, np.zeros(2 * n)[::2]),
        (0, None),
        (2, frozen),
        (2, np.zeros(n)),
        (3, np.zeros(len(guards) + 1)),
    ]:
        with pytest.raises((ValueError, TypeError, BufferError)):
            kernel.evaluate(*good[:place], bad, *good[place + 1 :])
    with pytest.raises(TypeError):
        kernel.evaluate(x, u)
    with pytest.raises((ValueError, TypeError)):
        type(kernel)()
    with pytest.raises(TypeError):
        type(kernel).__new__(type(kernel)).evaluate(*good)


def test_a_kernel_that_knows_the_bodies_takes_no_derivatives_of_terms():
    """Its bodies would not be where the coordinates are."""
    mode, start = public.system("solo12").mode(("stick",) * 4), public.start("solo12", 0.0)
    n, nu, guards = len(start) - 1, mode.nu, len(mode.guard_names)
    rows = n * len(mode.dynamics.contact_set.owner)
    slopes = np.empty((n, n + nu)), np.empty((guards, n + nu))
    with pytest.raises(TypeError, match="differentiates its terms itself"):
        mode.kernel._kernel.differentiate_terms(
            start, np.zeros(nu), np.zeros(rows), np.zeros(rows), *slopes
        )


def test_modes_that_are_left_to_python_say_why():
    robot = Robot.from_urdf(PLANAR_PAIR, root="floating")
    points = [(0.05, 0.05), (-0.05, 0.05), (0.05, -0.05)]
    contacts = [
        Contact(f"c{i}", "cube", SINGLE, offset=(*p, 0.0), friction=0.5)
        for i, p in enumerate(points)
    ]
    dynamics = ContactDynamics(robot, contacts)
    assert find_kernel_obstacle(dynamics, dynamics.phase(("stick",) * 3)) is None
    off = ContactDynamics(robot, contacts, kernel="off")
    assert "not compiled" in find_kernel_obstacle(off, off.phase(("open",) * 3))
    by_pinocchio = ContactDynamics(robot, contacts, terms="pinocchio")
    assert by_pinocchio.kernel_terms is None


def test_casadi_without_its_function_means_no_kernel(monkeypatch):
    dynamics = GROUNDS["slope"]()
    monkeypatch.setattr(kernel_mode, "find_buffer_evaluator", lambda: None)
    assert "CasADi" in find_kernel_obstacle(dynamics, dynamics.phase(("open",) * 4))
    monkeypatch.setattr(extension, "find_buffer_evaluator", lambda: None)
    assert describe_kernel("cc").startswith("contact kernel: none, this CasADi")


def test_an_extension_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(extension, "_INTERFACE", -1)
    extension._find_fault.cache_clear()
    try:
        assert not is_kernel_available()
        assert "another version: install hybridctl anew" in describe_kernel("cc")
    finally:
        extension._find_fault.cache_clear()


def test_an_extension_that_is_older_than_its_sources_is_noticed(tmp_path):
    built, source = tmp_path / "kernel.so", tmp_path / "kernel.c"
    for path in (built, source):
        path.touch()
    module = types.SimpleNamespace(__file__=str(built))
    assert not extension._is_outdated(module)
    later = built.stat().st_mtime + 60.0
    os.utime(source, (later, later))
    assert extension._is_outdated(module)


# Systems


BIPED = """<robot name="biped">
<link name="torso"><inertial><mass value="3"/><inertia ixx="0.03" iyy="0.02" izz="0.03" ixy="0"
  ixz="0" iyz="0"/></inertial></link>
{legs}</robot>"""
LEG = """<link name="thigh{k}"><inertial><origin xyz="0 0 -0.1"/><mass value="0.4"/>
  <inertia ixx="0.002" iyy="0.002" izz="0.0005" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="shin{k}"><inertial><origin xyz="0 0 -0.1"/><mass value="0.2"/>
  <inertia ixx="0.001" iyy="0.001" izz="0.0003" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="hip{k}" type="revolute"><parent link="torso"/><child link="thigh{k}"/>
  <origin xyz="0 {y} -0.05"/><axis xyz="0 1 0"/>
  <limit lower="-2" upper="2" effort="50" velocity="50"/></joint>
<joint name="knee{k}" type="revolute"><parent link="thigh{k}"/><child link="shin{k}"/>
  <origin xyz="0 0 -0.2"/><axis xyz="0 1 0"/>
  <limit lower="-2" upper="2" effort="50" velocity="50"/></joint>"""


def biped(**options):
    """A robot of ten velocities on two point feet."""
    legs = "".join(LEG.format(k=k, y=y) for k, y in ((0, 0.1), (1, -0.1)))
    joints = [f"{name}{k}" for name in ("hip", "knee") for k in (0, 1)]
    robot = Robot.from_urdf(
        BIPED.format(legs=legs),
        root="floating",
        stiffness=dict.fromkeys(joints, 15.0),
        damping=dict.fromkeys(joints, 0.4),
    )
    feet = [
        Contact(f"foot{k}", f"shin{k}", SINGLE, offset=(0.0, 0.0, -0.2), friction=0.4)
        for k in (0, 1)
    ]
    return contact_system(robot, feet, **options)


def biped_start(robot):
    q = robot.posture({"hip0": 0.3, "hip1": 0.2, "knee0": -0.6, "knee1": -0.5})
    q[2], v = 0.47, np.zeros(robot.nv)
    v[0], v[1] = 0.5, 0.1
    return np.concatenate((q, v))


def drop(system, end=0.15):
    return hc.simulate(
        system, None, biped_start(system.robot), (0.0, end), on_zeno="rest", max_events=200
    )


def test_a_run_is_the_same_with_and_without_the_kernel():
    fast, slow = biped(), biped(kernel="off")
    assert isinstance(fast.mode(("open", "open")), KernelContactMode)
    assert type(slow.mode(("open", "open"))) is ContactMode
    with_kernel, without = drop(fast), drop(slow)
    assert len(without.events) >= 2
    assert [e.guards for e in with_kernel.events][:2] == [e.guards for e in without.events][:2]
    # Tolerances of 1e-9, of which both make the same errors.
    np.testing.assert_allclose(with_kernel.final_state, without.final_state, atol=1e-8)


def test_a_system_of_a_machine_with_the_kernel_runs_on_one_without(monkeypatch):
    kept = pickle.dumps(biped())
    monkeypatch.setenv("HYBRIDCTL_KERNEL", "off")
    found = pickle.loads(kept)
    assert found.mode(("open", "open")).compiled_steps is None
    np.testing.assert_allclose(
        drop(found).final_state, drop(biped(kernel="off")).final_state, rtol=0, atol=1e-12
    )


def test_the_switch_of_the_environment(monkeypatch):
    monkeypatch.setenv("HYBRIDCTL_KERNEL", "off")
    assert not is_kernel_available()
    assert type(biped().mode(("open", "open"))) is ContactMode


def test_an_unknown_choice_is_refused():
    with pytest.raises(hc.errors.InputError, match="kernel"):
        biped(kernel="on")


def test_without_a_compiler_casadi_evaluates_the_terms(monkeypatch):
    machine_code = drop(biped())
    monkeypatch.setenv("CC", "no-such-compiler")
    interpreted = drop(biped())
    np.testing.assert_allclose(interpreted.final_state, machine_code.final_state, rtol=0, atol=1e-8)


def test_without_a_folder_terms_are_made_once_for_a_structure(monkeypatch):
    monkeypatch.setenv("HYBRIDCTL_CACHE", "off")
    monkeypatch.setattr(expression_terms, "_MODE_TERMS", OrderedDict())
    monkeypatch.setattr(expression_terms, "_MAX_MODE_TERMS", 2)

    def make(ground):
        dynamics = GROUNDS[ground]()
        return expression_terms.ExpressionTerms(dynamics.robot, dynamics.contact_set).mode_terms

    first, second, _, _, again = map(make, ("slope", "slope", "hill", "plane", "slope"))
    assert first is second
    assert again is not first  # two others have been asked for since
    monkeypatch.setenv("CC", "no-such-compiler")
    assert make("slope") is not again


def test_systems_are_pickled_and_shared(processes):
    system = biped()
    expected = drop(system).final_state
    np.testing.assert_array_equal(drop(pickle.loads(pickle.dumps(system))).final_state, expected)
    with ThreadPoolExecutor(4) as pool:
        for run in pool.map(drop, [system] * 8):
            np.testing.assert_array_equal(run.final_state, expected)
    in_another = processes.submit(drop, system).result()
    np.testing.assert_array_equal(in_another.final_state, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_goes_on_with_the_kernel():
    code = (
        "import os, numpy as np\n"
        "from mechanics.test_kernel import biped, drop\n"
        "system = biped(); expected = drop(system).final_state\n"
        "child = os.fork()\n"
        "same = np.array_equal(drop(system).final_state, expected)\n"
        "if not child: os._exit(0 if same else 3)\n"
        "assert same and os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=os.path.dirname(__file__) + "/..")


def test_the_version_names_the_kernel(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hybridctl", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert "contact kernel: compiled, terms" in capsys.readouterr().out
    assert "no C compiler" in describe_kernel(None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["solo12", "go2"])
def test_quadrupeds_land_the_same_with_and_without_the_kernel(name):
    contacts, x0 = public.contacts(name), public.start(name, 0.01, 0.1, 0.1)
    ends = [
        hc.simulate(
            contact_system(public.robot(name), contacts, kernel=kernel),
            ("open",) * 4,
            x0,
            (0.0, 0.5),
            on_zeno="rest",
            max_events=1000,
        ).final_state
        for kernel in ("auto", "off")
    ]
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-8)
