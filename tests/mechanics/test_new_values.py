"""A system with other values of its parameters shares what does not depend on these."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hybridctl.robots import block, cube

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Robot, contact_system
from hybridctl.mechanics.parameter_columns import ParameterColumns
from hybridctl.mechanics.parameter_values import NamedParameters
from hybridctl.mechanics.parameters import differentiate_by_parameters

SLIDING = ("slip+", "open")


def landing_block():
    return block.system(block.BlockParameters(), actuated=True)


def evaluate(system, key=SLIDING):
    """The field, and its derivatives at three points, at which one contact is closed."""
    mode = system.mode(key)
    x, u = np.array([0.0, 0.1, 0.2, 0.5, 0.1, 0.3]), np.array([0.1, 0.2, 0.3])
    points = np.arange(3.0)[:, None], np.tile(x, (3, 1)), np.tile(u, (3, 1))
    slopes = mode.compiled_steps.batched_slopes(*points)
    return [mode.field(0.0, x, u), mode.jacobian(0.0, x, u).state, *slopes]


def assert_equal(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_systems_that_share_memory_keep_their_values():
    """Each has its own numbers, also where another one was evaluated in between."""
    named = NamedParameters(landing_block(), ("friction", "mass:block"))
    light, heavy = (named.make_system(named.values * factor) for factor in ([0.5, 1], [1, 3]))
    first = [evaluate(system) for system in (light, heavy)]
    assert not np.array_equal(first[0][0], first[1][0])
    for _ in range(2):
        for system, wanted in zip((light, heavy), first, strict=True):
            assert_equal(evaluate(system), wanted)
    for system, wanted in zip((light, heavy), first, strict=True):
        made = contact_system(system.robot, system.contacts)  # shares with none
        for one, other in zip(evaluate(made), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_threads_have_memory_of_their_own():
    named = NamedParameters(landing_block(), ("friction", "mass:block"))
    systems = [named.make_system(named.values * factor) for factor in (0.5, 1.0, 2.0)]
    wanted = [evaluate(system) for system in systems]
    with ThreadPoolExecutor(2) as pool:
        for system_number, found in enumerate(pool.map(evaluate, systems * 20)):
            assert_equal(found, wanted[system_number % 3])


def test_terms_are_those_of_robot_and_lengths():
    """Coefficients leave them alone; a mass does not."""
    named = NamedParameters(landing_block(), ("friction", "mass:block"))
    old = named.system.dynamics
    rough, heavy = (named.make_system(named.values * factor) for factor in ([0.5, 1], [1, 3]))
    assert rough.dynamics.terms is old.terms
    assert heavy.dynamics.terms is not old.terms
    q = np.array([0.0, 0.1, 0.2])
    ratio = heavy.dynamics.terms.values(q, 0.0 * q, 0.0 * q).mass[0, 0] / 3.0
    assert ratio == pytest.approx(old.terms.values(q, 0.0 * q, 0.0 * q).mass[0, 0])


def test_phases_are_those_of_the_new_coefficients():
    parameters = cube.CubeParameters()
    system = contact_system(cube.robot(parameters, actuated=True), cube.contacts(parameters))
    named = NamedParameters(system, ("friction",))
    modes = ("stick", "slip", *["open"] * 6)
    known = system.dynamics.phase(modes)
    made = named.make_system([0.5 * named.values[0]]).dynamics.phase(modes)
    fresh = contact_system(
        system.robot, named.make_system([0.5 * named.values[0]]).contacts
    ).dynamics.phase(modes)
    assert [slide.friction for slide in known.sliding] == [named.values[0]]
    for name, own in vars(fresh).items():
        if name in ("sliding", "spatial"):
            assert [s.friction for s in getattr(made, name)] == [s.friction for s in own]
        elif name == "friction":
            np.testing.assert_equal(vars(made.friction), vars(own))
        else:
            np.testing.assert_equal(getattr(made, name), own)


def test_columns_of_another_system_are_those_that_are_made_for_it():
    """The derivatives of an inertia depend on where its center is."""
    names = ("mass:block", "center_x:block", "inertia_yy:block", "friction")
    named = NamedParameters(landing_block(), names)
    made = named.make_system(named.values * [2.0, 1.0, 1.5, 0.5] + [0.0, 0.02, 0.0, 0.0])
    point = made.mode(SLIDING).calc(0.0, np.array([0.0, 0.1, 0.2, 0.5, 0.1, 0.3]), np.ones(3))
    with_columns = differentiate_by_parameters(made, named.names, named.columns)
    own = ParameterColumns(made.dynamics, named.members)
    without = differentiate_by_parameters(made, named.names, own)
    np.testing.assert_array_equal(with_columns.calc(point).field, without.calc(point).field)
    np.testing.assert_array_equal(with_columns.calc(point).guards, without.calc(point).guards)
    again = differentiate_by_parameters(named.system, named.names, named.columns)
    assert not np.array_equal(
        again.calc(named.system.mode(SLIDING).calc(0.0, point.x, point.u)).field,
        with_columns.calc(point).field,
    )


def test_a_mode_that_another_system_made_is_one_of_its_own():
    """Modes share guards and functions, whichever system was asked first; numbers they do not."""
    named = NamedParameters(landing_block(), ("friction", "mass:block"))
    light, heavy = (named.make_system(named.values * factor) for factor in ([0.5, 1], [1, 3]))
    for system in (heavy, light, named.system):
        alone, mode = contact_system(system.robot, system.contacts), system.mode(SLIDING)
        own = alone.mode(SLIDING)
        assert mode.dynamics is system.dynamics
        assert mode.guard_names == own.guard_names
        np.testing.assert_array_equal(mode.guard_scales, own.guard_scales)
        for one, other in zip(evaluate(system), evaluate(alone), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_contacts_that_cease_to_rub_have_other_guards():
    """Without kinetic friction nothing jams: such modes are not those of rough contacts."""
    parameters = block.BlockParameters(friction=0.3, static_friction=0.5)
    system = contact_system(block.robot(parameters), block.contacts(parameters))
    named = NamedParameters(system, ("friction",))
    smooth = named.make_system([0.0])
    assert "sliding jams" in system.mode(SLIDING).guard_names
    assert "sliding jams" not in smooth.mode(SLIDING).guard_names


def test_a_robot_with_other_inertias_is_the_robot_of_a_model_with_these():
    robot = block.robot(block.BlockParameters(), actuated=True)
    mass, center, inertia = 2.5, np.array([0.01, 0.0, -0.02]), 3.0 * robot.inertia(3)[2]
    changed = robot.replace({3: (mass, center, inertia)}, robot.passive)
    assert robot.mass == block.robot(block.BlockParameters(), actuated=True).mass
    q, v, a = np.array([0.1, 0.2, 0.3]), np.array([0.4, 0.5, 0.6]), np.array([0.7, 0.8, 0.9])
    for one in (changed, pickle.loads(pickle.dumps(changed))):
        wanted = Robot(one.model)
        assert one.mass == wanted.mass
        assert one.weight == wanted.weight
        assert repr(one.tree()) == repr(wanted.tree())
        np.testing.assert_array_equal(one.mass_matrix(q), wanted.mass_matrix(q))
        np.testing.assert_array_equal(one.bias(q, v), wanted.bias(q, v))
        np.testing.assert_array_equal(one.impulse_regressor(q, a), wanted.impulse_regressor(q, a))


def test_a_coefficient_out_of_range_is_refused():
    named = NamedParameters(landing_block(), ("friction",))
    with pytest.raises(InputError, match="friction must be at least 0"):
        named.make_system([-0.1])
