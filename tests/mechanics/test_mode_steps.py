"""Compiled steps of contact modes against those of the generic stepper."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import ball, block, cube, rrr_door
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.hybrid.explicit import CompiledKernel, StageKernel
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mapped import Change, MappedMode, ModeWithoutGuards, WithoutGuards
from hybridctl.hybrid.model import StepRequest
from hybridctl.hybrid.step import DrivenMode
from hybridctl.hybrid.system import MappedSystem
from hybridctl.hybrid.tableau import DOP853_TABLEAU
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from mechanics.models import SLOPE, WHEEL, pair

FACE = ("stick", "open") * 4
CUBE_AT_REST = np.r_[0.0, 0.0, 0.0524, 0.0, 0.0, 0.0, 1.0, np.zeros(6)]
DOOR = np.r_[-0.13, 1.37, -0.67, 0.35, 0.0, 0.0, 0.0, -0.6]


def without_steps(system):
    """The same system, which takes generic steps."""
    return MappedSystem(system, lambda key: Change())


class FreeMode(ModeWithoutGuards):
    """A mode that holds nothing and does not end, by generic steps."""

    compiled_steps = held = None

    def __init__(self, inner, change):
        MappedMode.__init__(self, inner, change)
        self.guard_names, self.held = (), None


class Free(WithoutGuards):
    """A change to modes that hold nothing and do not end, by generic steps."""

    mode_class = FreeMode


def wheel():
    """Two bodies of which one turns without end: a unit circle beside a quaternion."""
    dynamics = pair("floating", SLOPE, WHEEL, mu=0.4)
    return contact_system(dynamics.robot, dynamics.contacts)


def moving(system, seed: int):
    """A state in general position, and an input."""
    rng = np.random.default_rng(seed)
    robot = system.robot
    q = robot.integrate(robot.neutral(), 0.5 * rng.normal(size=robot.nv))
    v = rng.normal(size=robot.nv)
    return np.concatenate((q, v)), rng.normal(size=robot.nu)


ONE = ("open",) * 7
CASES = [
    ("ball", ball.system, ("open",)),
    ("ball", lambda: ball.system(ball.BallParameters(friction=0.4)), ("slip-",)),
    ("door", rrr_door.system, ("open", "open")),
    ("door", rrr_door.system, ("closed", "open")),
    ("block", lambda: block.system(actuated=True), ("stick", "open")),
    ("block", lambda: block.system(actuated=True), ("slip+", "open")),
    ("cube", cube.system, ("open", *ONE)),
    ("cube", cube.system, ("stick", *ONE)),
    ("cube", cube.system, ("slip", *ONE)),
    ("wheel", wheel, ("open",) * 4),
    ("wheel", wheel, ("stick", "open", "open", "open")),
]
NAMED = [pytest.param(make, key, id=f"{name} {key[0]}") for name, make, key in CASES]


def test_a_perturbed_robot_takes_its_own_steps_with_the_functions_of_another(tmp_path, monkeypatch):
    """Made for one door, held at the numbers of another: the step, and Pinocchio's field."""
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path))
    nominal = rrr_door.DoorParameters(friction=0.1)
    other = replace(
        nominal,
        friction=0.2,
        foot_mass=4.2,
        forearm_inertia=0.06,
        forearm_length=0.47,
        hinge_ahead=0.31,
        hinge_stiffness=3.0,
    )
    for p, files in ((nominal, 2), (other, 2)):
        system, key = rrr_door.system(p), ("slip+", "slip+")
        assert_steps_agree(system, key)
        assert len(list(tmp_path.iterdir())) == files
        x, u = moving(system, 5)
        slow = contact_system(system.robot, system.contacts, terms="pinocchio")
        found, expected = (s.mode(key).field(0.0, x, u) for s in (system, slow))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize(("make", "key"), NAMED)
def test_a_step_is_that_of_the_generic_stepper(make, key):
    assert_steps_agree(make(), key)


def assert_steps_agree(system, key):
    """To rounding: the same stages, in coordinates that have a norm a little off one."""
    x, u = moving(system, 3)
    x[: system.robot.nq] *= 1.0 + 1e-9
    mode = system.mode(key)
    motion = DrivenMode(mode, HeldInput(u), watched=True)
    compiled = CompiledKernel(motion, motion.compiled_law, 1e-9, 1e-9)
    generic = StageKernel(DOP853_TABLEAU, motion, 1e-9, 1e-9)
    assert mode.step(StepRequest(0.0, x, 1e-2, 1e-9, 1e-9), HeldInput(u)) is not None
    taken = []
    for formula in (compiled, generic):
        formula.start(0.0, x)
        error = formula.attempt(1e-2)
        taken.append((error, formula.accept()))
    (error, found), (its_error, expected) = taken
    assert error == pytest.approx(its_error, rel=1e-3, abs=1e-4)  # of rounding, near zero
    for what in ("states", "guards", "bounds"):
        ours, theirs = getattr(found, what), getattr(expected, what)
        scale = 1.0 + np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * scale, err_msg=what)


@pytest.mark.parametrize(("make", "key"), NAMED)
def test_a_transition_is_that_of_the_variational_flow(make, key):
    """Which is known to the tolerance asked for, of entries that grow to 10 in this time."""
    system = make()
    x, _ = moving(system, 4)
    mode = system.mode(key)
    law = HeldInput(np.zeros(mode.nu))
    ahead = MappedSystem(system, lambda key: Free([]))  # x is off what the mode holds
    run = hc.simulate(ahead, key, x, (0.0, 0.05), lambda t, x: law.value, rtol=1e-11, atol=1e-11)
    expected = hc.linearize(ahead, run, rtol=1e-10, atol=1e-10).state_transition
    total = np.eye(mode.space.ndx)
    for k in range(20):
        moved = mode.transition(StepRequest(0.05 * k / 20, x, 0.05 / 20, 1e-9, 1e-9), law.value)
        x, total = moved.state, moved.matrix @ total
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


RUNS = [
    (
        "ball",
        lambda: ball.system(ball.BallParameters(restitution=0.7)),
        ("open",),
        [0, 1, 0, 0],
        1.2,
    ),
    ("door", rrr_door.system, ("open", "open"), DOOR, 1.0),
    ("rocking", lambda: block.system(block.ROCKING), ("open",) * 2, [0, 0.3, 0.05, 0, 0, 0], 0.4),
    ("dropped", block.system, ("open",) * 2, [0, 0.3, 0.3, 0.4, 0, 0.5], 0.5),
    ("sliding", block.system, ("slip+",) * 2, [0, 0.05, 0, 1, 0, 0], 0.6),
    ("cube", cube.system, FACE, CUBE_AT_REST, 0.2),
]


@pytest.mark.parametrize(("make", "key", "x", "end"), [pytest.param(*r[1:], id=r[0]) for r in RUNS])
def test_runs_are_the_same(make, key, x, end):
    """Errors of 1e-10 a step grow with the derivative, which is below 100."""
    system = make()
    plain = without_steps(system)
    run, expected = (
        hc.simulate(s, key, x, (0.0, end), rtol=1e-10, atol=1e-10) for s in (system, plain)
    )
    assert [e.mode_after for e in run.events] == [e.mode_after for e in expected.events]
    for ours, theirs in zip(run.events, expected.events, strict=True):
        assert ours.time == pytest.approx(theirs.time, abs=1e-8)
    space = run.arcs[-1].space
    off = space.difference(expected.final_state, run.final_state)
    np.testing.assert_allclose(off, 0.0, atol=1e-7)
    matrices = [hc.linearize(s, run).state_transition for s in (system, plain)]
    np.testing.assert_allclose(*matrices, rtol=0, atol=1e-6 * np.abs(matrices[1]).max())


def test_a_cube_that_stands_still_does_not_slide_by_the_compiled_step():
    """Friction has no direction in a surface there."""
    key = ("slip", "open") * 4
    mode, u = cube.system().mode(key), HeldInput(np.zeros(0))
    assert mode.step(StepRequest(0.0, CUBE_AT_REST, 1e-3, 1e-9, 1e-9), u) is None
    assert mode.transition(StepRequest(0.0, CUBE_AT_REST, 1e-3, 1e-9, 1e-9), u.value) is None
    x = CUBE_AT_REST + np.eye(13)[7]
    assert mode.step(StepRequest(0.0, x, 1e-3, 1e-9, 1e-9), u) is not None


def test_forces_outside_their_cones_are_looked_for_elsewhere():
    """A cube on four corners loaded at 0.7 of the way to one: least forces pull at the opposite.

    They are N / 4 (1 + 0.7 s_x + 0.7 s_y) at the corners s = (+-1, +-1), -0.1 N at the last.
    """
    system = cube.system(actuated=True)
    load = 0.7 * 0.37 * 9.81 * 0.0524
    none, law = (HeldInput(np.array([0.0, 0.0, 0.0, k, -k, 0.0])) for k in (0.0, load))
    mode = system.mode(FACE)
    assert mode.step(StepRequest(0.0, CUBE_AT_REST, 1e-3, 1e-9, 1e-9), none) is not None
    assert mode.step(StepRequest(0.0, CUBE_AT_REST, 1e-3, 1e-9, 1e-9), law) is None
    motion = DrivenMode(mode, law, watched=True)
    formula = CompiledKernel(motion, motion.compiled_law, 1e-9, 1e-9)
    formula.start(0.0, CUBE_AT_REST)
    formula.attempt(1e-3)
    step = formula.accept()
    pushes = [i for i, name in enumerate(mode.guard_names) if name.endswith("opens")]
    assert (step.guards[:, pushes] > -1e-9).all()
    assert formula.end_step_at(step, 5e-4) is step
    np.testing.assert_allclose(step.states, np.tile(CUBE_AT_REST, (8, 1)), atol=1e-12)


def close_pair(apart: float):
    """A block with two smooth contacts that are all but the same."""
    table = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    robot = Robot.from_urdf(free_body("block", 1.0, (0.01,) * 3), root="sagittal")
    offsets = (0.1, 0.0, -0.05), (0.1 + apart, 0.0, -0.05)
    return contact_system(
        robot, [Contact(n, "block", table, offset=o) for n, o in zip("ab", offsets, strict=True)]
    )


@pytest.mark.parametrize(("apart", "holds"), [(0.05, True), (1e-4, False)])
def test_equations_near_a_singularity_are_left_to_the_generic_step(apart, holds):
    mode = close_pair(apart).mode(("closed", "closed"))
    x = np.array([0.0, 0.05, 0.0, 1.0, 0.0, 0.0])
    step = mode.step(StepRequest(0.0, x, 1e-3, 1e-9, 1e-9), HeldInput(np.zeros(mode.nu)))
    assert (step is not None) == holds


def test_large_robots_have_none():
    system = cube.system()
    generic = contact_system(system.robot, system.contacts, terms="pinocchio")
    assert generic.mode(FACE).compiled_steps is None


def _run(system):
    return hc.simulate(system, ("open", "open"), DOOR, (0.0, 1.0)).final_state


def test_threads_share_a_system():
    system = rrr_door.system()
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(_run, [system] * 8))
    for end in ends:
        np.testing.assert_array_equal(end, ends[0])


def test_fresh_processes_get_a_system(processes):
    system = rrr_door.system()
    expected = _run(system)
    np.testing.assert_array_equal(processes.submit(_run, system).result(), expected)
