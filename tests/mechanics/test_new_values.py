"""A system with other values of its parameters shares what does not depend on these."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hybridctl.robots import block, cube

from hybridctl.mechanics import contact_system
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
    with_columns = differentiate_by_parameters(made, names, named.columns)
    its_own = differentiate_by_parameters(made, names, NamedParameters(made, names).columns)
    np.testing.assert_array_equal(with_columns.calc(point).field, its_own.calc(point).field)
    np.testing.assert_array_equal(with_columns.calc(point).guards, its_own.calc(point).guards)
    again = differentiate_by_parameters(named.system, names, named.columns)
    assert not np.array_equal(
        again.calc(named.system.mode(SLIDING).calc(0.0, point.x, point.u)).field,
        with_columns.calc(point).field,
    )
