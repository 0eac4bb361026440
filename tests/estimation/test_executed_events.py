"""Events that filters execute are those of runs: who takes part, and where resets lead."""

import numpy as np
import pytest
from scipy.stats import truncnorm

import hybridctl as hc
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.estimation.salted_jump import jump_moments
from hybridctl.hybrid.laws import make_zero_input
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, Jump, ResetJacobian

SPACE = hc.VectorSpace(2)
P = np.array([[4.0, 1.0], [1.0, 9.0]])
RESTITUTION, GRAVITY = 0.8, 9.81


def guard(name, row):
    slope = GuardJacobian(np.zeros(()), np.array(row, dtype=float), np.zeros(0))
    return hc.Guard(name, lambda t, x, u: row @ x, lambda t, x, u: slope)


def constant(key, *velocity):
    none = FieldJacobian(np.zeros((2, 2)), np.zeros((2, 0)))
    return hc.Mode(key, SPACE, lambda t, x, u: np.array(velocity), 0, lambda t, x, u: none)


def naming(*names):
    """A reset that leaves the state alone, and names the guards that took part."""
    unit = ResetJacobian(np.zeros(2), np.eye(2), np.zeros((2, 0)))
    return hc.Reset(lambda t, x, u: Jump(x, guards=names or None), lambda t, x, u: unit)


def two_walls(joint):
    """A point that moves into a corner, where each wall turns the velocity across it about."""
    a, b = guard("a", np.array([1.0, 0.0])), guard("b", np.array([0.0, 1.0]))
    velocities = {"00": (-1.0, -2.0), "10": (1.0, -2.0), "01": (-1.0, 2.0), "11": (1.0, 2.0)}
    ways = [
        hc.Transition("00", a, naming("a"), "10"),
        hc.Transition("00", b, naming("b"), "01"),
        hc.Transition("10", b, naming("b"), "11"),
        hc.Transition("01", a, naming("a"), "11"),
    ]
    if joint:
        ways.append(hc.Transition("00", (a, b), naming("a"), "10"))
    return hc.HybridSystem([constant(key, *v) for key, v in velocities.items()], ways)


@pytest.mark.parametrize(
    ("joint", "took_part", "after", "turned"),
    [(True, ("a",), "10", [-1.0, 1.0]), (False, ("a", "b"), "11", [-1.0, -1.0])],
)
def test_a_filter_fires_the_guards_that_take_part_as_a_run_does(joint, took_part, after, turned):
    """The joint reset names one guard; one after the other they both take part."""
    system = two_walls(joint)
    event = hc.simulate(system, "00", [0.1, 0.2], (0.0, 0.15)).events[0]
    model = NoisySystem(system, None)
    fired = model.fire_guards("00", ["a", "b"], event.time, event.state_before, make_zero_input(0))
    assert fired.guards == event.guards == took_part
    assert fired.mode_after == event.mode_after == after
    expected = np.diag(turned) @ P @ np.diag(turned)  # a deviation is reflected at each of them
    for one in (event, fired):
        np.testing.assert_allclose(jump_moments(system, one, P, "saltation").covariance, expected)


def ball(limit, named_by):
    """A bouncing ball that goes on without gravity if it bounces more slowly than a limit."""

    def falling(key, gravity, select=None):
        slopes = FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros((2, 0)))
        return hc.Mode(
            key, SPACE, lambda t, x, u: np.array([x[1], -gravity]), 0, lambda t, x, u: slopes, None,
            select,
        )  # fmt: skip

    matrix = np.diag([1.0, -RESTITUTION])
    reset = hc.Reset(
        lambda t, x, u: Jump(matrix @ x, "fast" if named_by == "reset" else None),
        lambda t, x, u: ResetJacobian(np.zeros(2), matrix, np.zeros((2, 0))),
    )
    modes = [
        falling("air", GRAVITY),
        falling("fast", GRAVITY, lambda t, x, u: "slow" if x[1] < limit else "fast"),
        falling("slow", 0.0),
    ]
    way = hc.Transition("air", guard("floor", np.array([1.0, 0.0])), reset,
                        "fast" if named_by == "edge" else None)  # fmt: skip
    return hc.HybridSystem(modes, [way])


@pytest.mark.parametrize("named_by", ["reset", "edge"])
@pytest.mark.parametrize("limit", [0.5, 0.01])
def test_those_who_fall_have_the_event_or_another_whoever_names_where_it_leads(limit, named_by):
    """A ball at 1 mm/s, known to 0.2 m/s, of which those who fall come at 0.16 m/s.

    Below the limit they go on as it does. Then the event is theirs,
    x+ = R x + (f+ - R f-) dt with dt = -y / fall, else its own with that dt.
    """
    system, s, speed = ball(limit, named_by), 0.2, 1e-3
    x = np.array([0.0, -speed])
    event = NoisySystem(system, None).fire_guards("air", ["floor"], 0.0, x, make_zero_input(0))
    assert event.mode_after == "slow"
    found = jump_moments(system, event, np.diag([1e-12, s**2]), "saltation")
    fall = truncnorm(-np.inf, speed / s, -speed, s).mean()
    assert abs(fall) * RESTITUTION < 0.5
    own = fall if limit == 0.5 else -speed
    change = np.array([-(1.0 + RESTITUTION) * own, -RESTITUTION * GRAVITY])
    expected = np.diag([1.0, -RESTITUTION]) + np.outer(change / fall, [1.0, 0.0])
    np.testing.assert_allclose(found.matrix, expected, rtol=1e-9, atol=1e-12)
