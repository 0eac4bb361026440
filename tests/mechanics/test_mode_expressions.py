"""Fields and guards of modes as expressions, against those of the contact system."""

from dataclasses import replace

import casadi as ca
import numpy as np
import pinocchio as pin
import pytest
from hybridctl.robots import block, cube

from hybridctl.hybrid.model import Pace
from hybridctl.mechanics import ContactDynamics, contact_system
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.modes import mode_functions
from hybridctl.mechanics.modes.contact_mode import ContactMode
from hybridctl.mechanics.modes.generated_mode import GeneratedContactMode
from hybridctl.mechanics.modes.mode_expressions import ModeEquations, mode_derivatives, mode_field
from mechanics.models import CASES, FLAT, ROUGH, ROUGH_FLAT, modes_of, random_state
from mechanics.random_robots import random_robot

# Of the largest entry. The worst of 200 random robots has 2e-11, where the least pivot is 1e-5 of
# the largest; most have 1e-14.
_AGREE = 1e-10
_ALONG_ONE_OF_TWO = ("sagittal on a hill", ("open", "open", "open", "slip+"))  # no mode of a system
_SEEDS = [
    *range(12),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 32)),
    *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.long]) for seed in range(32, 212)),
]
_RESTING = (np.array([0.0, 0.0, 0.0524, 0.0, 0.0, 0.0, 1.0]), np.array([0.0, 0.05, 0.0]))


def assert_agree(found, expected, what: str):
    scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=_AGREE * scale, err_msg=what)


def check(dynamics: ContactDynamics, modes, q, v, u, derivatives: bool = True):
    """Field, guards, and the derivatives of both."""
    system = contact_system(dynamics.robot, dynamics.contacts, stabilization=20.0)
    mode = mode_field(dynamics.robot, dynamics.contacts, modes, stabilization=20.0)
    results = [mode.field, mode.guards, mode.margin, mode.forces]
    if derivatives:
        results += mode_derivatives(mode)
    compiled = ca.Function("mode", [mode.x, mode.u], results)
    x = np.concatenate((q, v))
    field, guards, (margin,), forces, *by = (
        np.array(a).reshape(a.shape if i > 3 else -1) for i, a in enumerate(compiled(x, u))
    )
    assert margin > 0.0
    known, outgoing = system.mode(modes), system.outgoing(modes).guards
    rate = dynamics.robot.rate(q, v)
    acceleration = known.field(0.0, x, u)[-len(v) :]
    assert_agree(field, np.concatenate((rate, acceleration)), "field")
    assert_agree(guards, outgoing.values(0.0, x, u), "guards")
    normal = known.outputs(0.0, x, u)["normal_force"]
    assert_agree(forces[: len(normal)], normal, "normal forces")
    if not derivatives:
        return
    d, g = known.jacobian(0.0, x, u), outgoing.jacobian(0.0, x, u)
    for found, expected in zip(by, (d.state, d.input, g.state, g.input), strict=True):
        assert_agree(found, expected, "derivatives")


@pytest.mark.parametrize(
    ("name", "modes"), [case for case in ROUGH_FLAT if case != _ALONG_ONE_OF_TWO]
)
def test_modes_with_friction(name, modes):
    dynamics = ROUGH[name][0]()
    check(dynamics, modes, *random_state(dynamics, 1))


@pytest.mark.parametrize(("name", "closed"), FLAT)
def test_modes_without_friction(name, closed):
    dynamics = CASES[name][0]()
    check(dynamics, modes_of(dynamics, closed), *random_state(dynamics, 2))


@pytest.mark.parametrize(
    ("model", "mode"),
    [(cube, "stick"), (cube, "slip"), (block, "stick"), (block, "slip+"), (block, "slip-")],
)
def test_redundant_contacts_share_loads_alike(model, mode):
    """On its face, nearly at rest, where the rank is that of rest."""
    dynamics = ContactDynamics(model.robot(actuated=True), model.contacts())
    robot, rng = dynamics.robot, np.random.default_rng(5)
    q = _RESTING[0] if model is cube else _RESTING[1]
    near = np.abs(dynamics.gaps(q)) < 1e-2
    modes = tuple(mode if low else "open" for low in near)
    v, u = 1e-3 * rng.normal(size=robot.nv), 0.1 * rng.normal(size=robot.nu)
    check(dynamics, modes, q, v, u)


def compare_step_limits(dynamics: ContactDynamics, modes, states) -> list[Pace]:
    """Python's limits, after those of the generated function: as rates, where zero is no limit."""
    alike = dynamics.robot, dynamics.contacts
    compiled = ContactDynamics(*alike, stabilization=dynamics.stabilization, terms="generated")
    space, limits = contact_system(*alike).space, []
    mode = GeneratedContactMode(compiled, modes, space)
    for q, v, u in states:
        x = np.concatenate((q, v))
        _, sound = mode.sliding_rate_function(x, u)
        assert sound[0] > 0.0  # else Python is compared with itself
        found = mode.calc(0.0, x, u).pace
        expected = ContactMode(dynamics, modes, space).calc(0.0, x, u).pace
        for name in Pace._fields:
            rates = 1.0 / getattr(found, name), 1.0 / getattr(expected, name)
            np.testing.assert_allclose(*rates, rtol=_AGREE, atol=_AGREE, err_msg=name)
        limits.append(expected)
    return limits


@pytest.mark.parametrize(("name", "modes"), [case for case in ROUGH_FLAT if "slip" in case[1]])
def test_step_limits_of_sliding_contacts(name, modes):
    """Some contacts slow down, others speed up: either is drawn several times."""
    made = ROUGH[name][0]()
    dynamics = ContactDynamics(made.robot, made.contacts, stabilization=1.0)
    states = [random_state(dynamics, seed) for seed in range(6)]
    limits = compare_step_limits(dynamics, modes, states)
    assert all(np.isfinite(limit.relaxation) for limit in limits)
    assert any(limit.longest_step < 1.0 / dynamics.stabilization for limit in limits)


@pytest.mark.parametrize("friction", [0.3, 0.0])
def test_step_limits_of_sliding_contacts_that_share_loads(friction):
    """A cube slides on its face; without kinetic friction nothing turns its velocity."""
    contacts = [
        replace(contact, friction=friction, static_friction=0.3) for contact in cube.contacts()
    ]
    dynamics = ContactDynamics(cube.robot(actuated=True), contacts)
    low = np.abs(dynamics.gaps(_RESTING[0])) < 1e-2
    modes = tuple("slip" if touches else "open" for touches in low)
    v = np.array([1.0, 0.3, 0.0, 0.0, 0.0, 0.5])
    (limit,) = compare_step_limits(dynamics, modes, [(_RESTING[0], v, np.zeros(dynamics.robot.nu))])
    assert np.isfinite(limit.relaxation) == (friction > 0.0)


def test_step_limits_near_a_stop_are_those_of_python():
    """Several contacts are slower than the expressions are sound for, 2e-8 m/s."""
    dynamics = ContactDynamics(cube.robot(actuated=True), cube.contacts(), terms="generated")
    low = np.abs(dynamics.gaps(_RESTING[0])) < 1e-2
    modes = tuple("slip" if touches else "open" for touches in low)
    space = contact_system(dynamics.robot, dynamics.contacts).space
    x = np.concatenate((_RESTING[0], [1e-8, 0.0, 0.0, 0.0, 0.0, 0.0]))
    u = np.zeros(dynamics.robot.nu)
    found, expected = (
        kind(dynamics, modes, space).calc(0.0, x, u).pace
        for kind in (GeneratedContactMode, ContactMode)
    )
    assert found == expected
    assert 0.0 < found.longest_step < 1e-7


@pytest.mark.parametrize("speed", [1e-7, 1.9e-8, 6e-9])
def test_a_contact_that_stops_is_computed_down_to_near_zero_velocity(speed):
    """A cube on one corner: of slow contacts those are sound that stop, and in all agrees Python.

    Inputs drive the corner against its velocity, along it, and harder than friction holds.
    """
    contacts = [replace(contact, friction=0.6, static_friction=None) for contact in cube.contacts()]
    dynamics = ContactDynamics(cube.robot(actuated=True), contacts, terms="generated")
    modes = ("slip",) + ("open",) * 7
    space = contact_system(dynamics.robot, dynamics.contacts).space
    generated, python = (
        kind(dynamics, modes, space) for kind in (GeneratedContactMode, ContactMode)
    )
    sound = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        q, v, _ = random_state(dynamics, seed)
        u = rng.normal(size=6)
        q[2] -= dynamics.gaps(q)[0]
        q, v = dynamics.project_state(dynamics.phase(("stick", *modes[1:])), q, 0.3 * v)
        rows = [0, *dynamics.contact_set.tangents[0]]
        slip = rng.normal(size=2)
        wanted = np.array([0.0, *(speed * slip / np.linalg.norm(slip))])
        v = v + np.linalg.pinv(dynamics.contact_set.jacobian(q)[rows]) @ wanted
        x = np.concatenate((q, v))
        at, expected = generated.calc(0.0, x, u), python.calc(0.0, x, u)
        if expected.contact.forces[0] < 0.0:
            continue  # pulled off the ground
        is_sound = at.values is not None
        sound.append(is_sound)
        if not is_sound:
            continue
        # Rounding of velocities of 1 m/s turns the direction of so slow a contact.
        agree = 1e-14 / speed
        np.testing.assert_allclose(at.field, expected.field, rtol=agree, atol=100.0 * agree)
        np.testing.assert_allclose(at.guards, expected.guards, rtol=agree, atol=agree)
        np.testing.assert_allclose(at.pace, expected.pace, rtol=10.0 * agree)
        found, slopes = at.field_jacobian.state, expected.field_jacobian.state
        np.testing.assert_allclose(found, slopes, rtol=0.0, atol=agree * np.abs(slopes).max())
    assert any(sound)
    assert all(sound) == (speed > 2e-8)


def test_all_that_a_mode_is_made_of_is_in_its_key_or_its_numbers():
    robot, contacts = block.robot(), block.contacts()
    modes = ("stick", "open")

    def equations(robot, contacts, *more):
        return ModeEquations.of(robot, ContactSet(robot, contacts), contacts, *more)

    first = equations(robot, contacts, modes, 0.0)
    others = [
        equations(block.robot(actuated=True), contacts, modes, 0.0),
        equations(robot, contacts, ("stick", "stick"), 0.0),
        equations(robot, contacts, modes, 20.0),
    ]
    keys = [first.make_key(), first.make_key("step"), *(other.make_key() for other in others)]
    assert len(set(keys)) == len(keys)
    again = equations(block.robot(), block.contacts(), modes, 0.0)
    assert again.make_key() == first.make_key()
    np.testing.assert_array_equal(again.constants.numbers, first.constants.numbers)
    rougher = [replace(contact, friction=0.9, static_friction=None) for contact in contacts]
    changed = equations(robot, rougher, modes, 0.0)
    assert changed.make_key() == first.make_key()
    assert (changed.constants.numbers != first.constants.numbers).sum() == 2 * len(contacts)


@pytest.mark.parametrize("name", ["step", "driven_step", "noisy_step"])
def test_functions_of_modes_with_and_without_constraints_are_kept_apart(name, monkeypatch):
    kept = {}
    monkeypatch.setattr(
        mode_functions, "load_or_build", lambda key, build: kept.setdefault(key, build)
    )
    equations = ModeEquations.of(
        block.robot(), ContactSet(block.robot(), block.contacts()), block.contacts(),
        ("stick", "open"), 0.0,
    )  # fmt: skip
    functions = mode_functions.ModeFunctions(equations)
    for is_constrained in (True, False, True):
        functions.load_step(name, is_constrained)
    assert len(kept) == 2


@pytest.mark.parametrize("seed", _SEEDS)
def test_random_robots_in_random_modes(seed):
    pin.seed(seed)
    rng = np.random.default_rng(seed)
    robot, contacts = random_robot(rng, most_joints=4)
    dynamics = ContactDynamics(robot, contacts)
    choices = {0: ("open", "closed"), 1: ("open", "stick", "slip+", "slip-")}
    modes = tuple(
        str(rng.choice(choices.get(len(tangents), ("open", "stick", "slip"))))
        for tangents in dynamics.contact_set.tangents
    )
    check(dynamics, modes, *random_state(dynamics, seed), derivatives=False)
