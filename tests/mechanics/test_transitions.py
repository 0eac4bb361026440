"""Every transition of a contact: the derivative of the whole flow against its differences.

The transitions are those of the saltation tutorial's Table II, in one to three dimensions, with
equal and unequal friction coefficients and every kind of restitution. End-to-end differences
see the event time, the reset and both flows; steps of 1e-5 leave h^2 and 1e-12 / h (the flow is
integrated to 1e-12), so 1e-6 of the largest entry is asked for.
"""

import numpy as np
import pytest
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.mechanics import ContactDynamics, contact_system
from hybridctl.mechanics.modes.tolerances import STOPPED
from mechanics.flows import differences, saltation, transition
from mechanics.hopper import hopper

TILTED = (0.15, 0.1, 1.0)


def slope(**changes):
    parameters = ball.BallParameters(**changes)
    return ball.robot(parameters), ball.contacts(parameters)


CASES = {
    # name: (system, mode, x0, end, expected modes after the start)
    "plastic, frictionless": (
        lambda: slope(),
        ("open",),
        [0.0, 0.3, 0.4, 0.0],
        0.5,
        [("closed",)],
    ),
    "elastic": (lambda: slope(restitution=0.6), ("open",), [0.0, 0.3, 0.4, 0.0], 0.5, [("open",)]),
    "elastic, sliding": (
        lambda: slope(restitution=0.6, friction=0.1),
        ("open",),
        [0.0, 0.3, 0.4, 0.0],
        0.5,
        [("open",)],
    ),
    "plastic, sliding": (
        lambda: slope(friction=0.1),
        ("open",),
        [0.0, 0.3, 0.4, 0.0],
        0.5,
        [("slip+",)],
    ),
    "plastic, sticking": (
        lambda: slope(friction=0.9),
        ("open",),
        [0.0, 0.3, 0.4, 0.0],
        0.5,
        [("stick",)],
    ),
    "slip to stick in the plane": (
        lambda: slope(friction=0.6),
        ("slip+",),
        [0.0, 0.0, 0.5 * np.cos(0.3), -0.5 * np.sin(0.3)],
        0.4,
        [("stick",)],
    ),
    "stick to slip in the plane, equal coefficients": (
        lambda: hopper(2, "1 0 0.2", friction=0.3),
        ("stick",),
        [0.0, 0.0, 0.01, 0.0, 0.0, 1.2],
        0.16,
        [("slip+",)],
    ),
    "stick to slip in the plane, static friction": (
        lambda: hopper(2, "1 0 0.2", friction=0.2, static_friction=0.3),
        ("stick",),
        [0.0, 0.0, 0.01, 0.0, 0.0, 1.2],
        0.16,
        [("slip+",)],
    ),
    "release from rest": (
        lambda: hopper(1),
        ("closed",),
        [0.0, 0.0, 0.0, 3.5],
        0.3,
        [("open",)],
    ),
    "release while sliding": (
        lambda: hopper(2, "0.1 0 1", friction=0.2),
        ("slip+",),
        [0.0, 0.0, 0.0, 1.0, 0.0, 3.5],
        0.3,
        [("open",)],
    ),
    "landing in space, sliding": (
        lambda: hopper(3, "0.2 0.1 1", friction=0.2, normal=TILTED),
        ("open",),
        [0.0, 0.0, 0.05, 0.0, 1.0, 0.3, -0.5, 0.2],
        0.12,
        [("slip",)],
    ),
    "landing in space, elastic": (
        lambda: hopper(3, "0.2 0.1 1", friction=0.2, restitution=0.5, normal=TILTED),
        ("open",),
        [0.0, 0.0, 0.05, 0.0, 1.0, 0.3, -0.5, 0.2],
        0.12,
        [("open",)],
    ),
    "landing in space, sticking": (
        lambda: hopper(3, "0.2 0.1 1", friction=1.5, normal=TILTED),
        ("open",),
        [0.0, 0.0, 0.05, 0.0, 0.2, 0.1, -0.5, 0.2],
        0.12,
        [("stick",)],
    ),
    "slip to stick in space": (
        lambda: hopper(3, "0.2 0.1 1", friction=0.5, normal=TILTED, upper=0.1),
        ("slip",),
        "on the plane",
        0.35,
        [("stick",)],
    ),
    "stick to slip in space, static friction": (
        lambda: hopper(3, "1 0.4 0.2", friction=0.2, static_friction=0.3),
        ("stick",),
        [0.0, 0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 1.2],
        0.16,
        [("slip",)],
    ),
}
OPTIONS = {"rtol": 1e-12, "atol": 1e-13}
H = 1e-5


def start(x0):
    if x0 == "on the plane":
        n = np.array(TILTED) / np.linalg.norm(TILTED)
        v = np.array([0.5, -0.4, 0.0])
        v -= (v @ n) * n
        return np.array([0.0, 0.0, 0.0, 0.0, *v, 0.1])
    return np.array(x0)


@pytest.mark.parametrize("name", CASES)
def test_the_flow_through_a_transition_has_the_derivative_of_its_saltation(name):
    make, mode, x0, end, expected = CASES[name]
    parts, x0 = make(), start(x0)
    system = contact_system(*parts)
    run = hc.simulate(system, mode, x0, (0.0, end), **OPTIONS)
    assert [e.mode_after for e in run.events] == expected
    jacobian = transition(system, run)
    # Perturbations that leave the constraint of the first mode are not part of the motion.
    tangent = _tangent(ContactDynamics(*parts), mode, x0)
    tangent = tangent @ np.random.default_rng(0).normal(size=(tangent.shape[1], 2))
    tangent /= np.linalg.norm(tangent, axis=0)
    found = differences(system, mode, x0, (0.0, end), H, tangent, **OPTIONS)
    error = np.abs(found - jacobian @ tangent).max()
    # second derivatives jump where sliding begins or ends: off by h times that, which is near 1
    bend = 3.0 * H if "to stick" in name or "stick to" in name else 0.0
    assert error <= 1e-6 * max(1.0, np.abs(jacobian).max()) + bend


def _tangent(dynamics, mode, x0):
    """A basis of the perturbations that keep closed contacts closed and sticking ones at rest."""
    n = len(x0)
    if mode == ("open",):
        return np.eye(n)
    nv = n // 2
    held = dynamics.phase(mode)
    rows = dynamics.contact_set.jacobian(x0[:nv])
    normal, constrained = rows[:1], rows[held.constrained]
    d = dynamics.contact_set.derivatives(x0[:nv], x0[nv:], np.zeros(nv))
    constraint = np.vstack(
        [
            np.hstack([normal, np.zeros_like(normal)]),
            np.hstack([d.rate_q[held.constrained], constrained]),
        ]
    )
    _, sizes, vt = np.linalg.svd(constraint)
    return vt[(sizes > 1e-9).sum() :].T


@pytest.mark.parametrize(("friction", "modes"), [(0.0, ("closed",)), (0.9, ("stick",))])
def test_the_saltation_matrix_of_the_slope_is_that_of_the_tutorial(friction, modes):
    """[Salt] (52), (76)-(92): slide diag(W, W); stick diag(W', 0)."""
    system = contact_system(*slope(friction=friction))
    run = hc.simulate(system, ("open",), [0.0, 0.3, 0.4, -0.2], (0.0, 0.5), **OPTIONS)
    (event,) = run.events
    assert event.mode_after == modes
    c, s = np.cos(0.3), np.sin(0.3)
    v1, v2 = event.state_before[2:]
    if friction:
        w = np.array([[v2 * c, -v1 * c], [-v2 * s, v1 * s]]) / (v2 * c + v1 * s)
        expected = np.block([[w, np.zeros((2, 2))], [np.zeros((2, 4))]])
    else:
        w = np.array([[c * c, -c * s], [-c * s, s * s]])
        expected = np.block([[w, np.zeros((2, 2))], [np.zeros((2, 2)), w]])
    np.testing.assert_allclose(saltation(system, event), expected, atol=1e-9)


def test_release_and_breakaway_with_equal_coefficients_change_no_perturbation():
    """The field is continuous there: the saltation matrix is the identity on what sticking allows.

    A sliding velocity, which it does not, is taken off.
    """
    for name in ("stick to slip in the plane, equal coefficients", "release from rest"):
        make, mode, x0, end, _ = CASES[name]
        system = contact_system(*make())
        (event,) = hc.simulate(system, mode, x0, (0.0, end), **OPTIONS).events
        matrix = saltation(system, event)
        held = system.mode(event.mode_before).held.jacobian(event.state_before)
        allowed = np.linalg.svd(held)[2][np.linalg.matrix_rank(held) :].T
        np.testing.assert_allclose(matrix @ allowed, allowed, atol=1e-7)


def test_a_stop_in_space_is_one_event_at_the_least_speed():
    make, mode, x0, end, _ = CASES["slip to stick in space"]
    run = hc.simulate(contact_system(*make()), mode, start(x0), (0.0, end))
    (event,) = run.events
    assert event.guards == ("foot sticks",)
    n = np.array(TILTED) / np.linalg.norm(TILTED)
    speed = event.state_before[4:7] - (event.state_before[4:7] @ n) * n
    assert np.linalg.norm(speed) <= 1.01 * STOPPED
