"""Small systems with thrust and contact, in closed form, used by the tests of control."""

from __future__ import annotations

import numpy as np

import hybridctl as hc
from hybridctl.hybrid.mode import FieldJacobian, GuardJacobian, Jump, ResetJacobian

G = 9.81
SPACE = hc.VectorSpace(2)


def ball_on_two_floors(loss=0.8, gap=0.0):
    """A ball with thrust u; each floor, once touched, scales the velocity by -loss or +loss.

    Modes count which floors have been touched; both floors together reverse and scale the
    velocity, one after the other in any order.
    """

    def field(t, x, u):
        return np.array([x[1], u[0] - G])

    def jacobian(t, x, u):
        return FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]))

    def guard(name, offset):
        row = np.array([1.0, 0.0])
        return hc.Guard(
            name,
            lambda t, x, u: x[0] + offset,
            lambda t, x, u: GuardJacobian(np.zeros(()), row, np.zeros(1)),
        )

    a, b = guard("a", 0.0), guard("b", gap)
    scale = hc.Reset(lambda t, x, u: np.array([x[0], loss * x[1]]))
    modes = [hc.Mode(key, SPACE, field, 1, jacobian) for key in ("00", "01", "10", "11")]
    return hc.HybridSystem(
        modes,
        [
            hc.Transition("00", a, scale, "01"),
            hc.Transition("00", b, scale, "10"),
            hc.Transition("01", b, scale, "11"),
            hc.Transition("10", a, scale, "11"),
        ],
    )


def bouncing_ball(restitution=0.8):
    """A ball of 1 kg with thrust u over a floor, which reports the impulses of its bounces."""
    bounce = np.diag([1.0, -restitution])
    return hc.HybridSystem(
        [hc.Mode("air", SPACE, fall, 1, fall_jacobian)],
        [
            hc.Transition(
                "air",
                floor_guard(),
                hc.Reset(
                    lambda t, x, u: Jump(
                        bounce @ x, impulses=np.array([-(1.0 + restitution) * x[1]])
                    ),
                    lambda t, x, u: ResetJacobian(np.zeros(2), bounce, np.zeros((2, 1))),
                ),
                "air",
            )
        ],
    )


def landing_ball():
    """A ball of 1 kg with thrust u that stays on the floor, pressing with G - u, until lifted."""
    stop = np.diag([1.0, 0.0])
    landed = hc.Reset(
        lambda t, x, u: Jump(np.array([0.0, 0.0]), impulses=np.array([-x[1]])),
        lambda t, x, u: ResetJacobian(np.zeros(2), stop, np.zeros((2, 1))),
    )
    still = FieldJacobian(np.zeros((2, 2)), np.zeros((2, 1)))
    ground = hc.Mode(
        "ground",
        SPACE,
        lambda t, x, u: np.zeros(2),
        1,
        lambda t, x, u: still,
        outputs=lambda t, x, u: {"normal_force": np.array([G - u[0]])},
    )
    air = hc.Mode(
        "air",
        SPACE,
        fall,
        1,
        fall_jacobian,
        outputs=lambda t, x, u: {"normal_force": np.zeros(1)},
    )
    lift = GuardJacobian(np.zeros(()), np.zeros(2), np.array([-1.0]))
    return hc.HybridSystem(
        [air, ground],
        [
            hc.Transition("air", floor_guard(), landed, "ground"),
            hc.Transition(
                "ground",
                hc.Guard("lift", lambda t, x, u: G - u[0], lambda t, x, u: lift),
                hc.Reset.identity(),
                "air",
            ),
        ],
    )


def fall(t, x, u):
    """Free fall with thrust."""
    return np.array([x[1], u[0] - G])


def fall_jacobian(t, x, u):
    """Its derivatives."""
    return FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]))


def floor_guard():
    """The height above the floor."""
    row = GuardJacobian(np.zeros(()), np.array([1.0, 0.0]), np.zeros(1))
    return hc.Guard("floor", lambda t, x, u: x[0], lambda t, x, u: row)


class Levels:
    """Plays one thrust after the other, each from its time on."""

    def __init__(self, times, levels):
        self.times, self.levels = times, levels

    def law(self, history):
        u = np.array([self.levels[np.searchsorted(self.times, history.time, "right")]])
        return lambda t, x: u

    def next_change(self, history):
        return min((t for t in self.times if t > history.time), default=np.inf)
