"""The examples of the saltation experiment: a flow that changes at a line, and three impacts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import casadi as ca
import numpy as np

from hybridctl import HybridSystem, symbolic
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Count, Meta, Natural, Positive, Settings
from hybridctl.hybrid.trajectory import Event

GRAVITY = 9.81
FLOW_AFTER, FLOW_NORMAL = (0.5, 1.2), (1.0, 0.4)  # behind the line, and of the line
FLOW_DURATION = 0.4  # s


@dataclass(frozen=True, eq=False)
class Example:
    """A run through one event, with affine fields.

    Attributes:
        system: The system.
        mode: Key of the mode at the start.
        start: State (nx,) at the start.
        duration: Duration of the run, s.
        spread: Standard deviations (nx,) of the start.
        normal: Normal (2,) of the surface, for the positions, which are the first two states.
        closed_form: Returns the saltation matrix (nx, nx) at an event.
    """

    system: HybridSystem
    mode: str
    start: Array
    duration: float
    spread: Array
    normal: Array
    closed_form: Callable[[Event], Array]


@dataclass(frozen=True)
class Config(Settings):
    """The examples, and how they are tested.

    Attributes:
        slope: Inclination of the slope on which the ball drops, rad.
        height: Height of the ball above the slope, along its normal, at the start, m.
        velocity: Its velocity at the start, horizontal and vertical, m/s.
        restitution: Restitution of the ball that bounces.
        duration: Duration of the run of a ball, s; long enough for it to reach the slope.
        flow_before: Constant flow before the line, m/s; it reaches the origin at half of
            `FLOW_DURATION`.
        position_spread: Standard deviation of positions at the start, m.
        velocity_spread: Standard deviation of velocities at the start, m/s.
        deviations: Falling lengths at which predictions are tested, in units of the spread.
        directions: Number of random directions of them.
        samples: Size of the ensembles.
        scales: Falling factors on their spread.
        displacement: Distance from the nominal ball of balls that start apart, m, in the figure of
            the eliminated directions.
        seed: Seed of directions and ensembles.
        rtol: Relative tolerance of the simulations.
        atol: Absolute tolerance of the simulations.
    """

    slope: Annotated[float, Meta(gt=0.0, le=1.5)] = 0.35
    height: Positive = 0.5
    velocity: tuple[float, float] = (0.6, 0.0)
    restitution: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.6
    duration: Positive = 0.55
    flow_before: tuple[float, float] = (1.0, 0.3)
    position_spread: Positive = 0.03
    velocity_spread: Positive = 0.1
    deviations: tuple[Positive, ...] = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
    directions: Count = 8
    samples: Annotated[int, Meta(ge=2)] = 300
    scales: tuple[Positive, ...] = (1.0, 0.1)
    displacement: Positive = 0.08
    seed: Natural = 1
    rtol: Positive = 1e-12
    atol: Positive = 1e-13

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("deviations", "scales"):
            falling = getattr(self, name)
            if not falling or (np.diff(falling) >= 0.0).any():
                raise InputError(f"{name} must fall, got {falling}")
        if np.dot(self.flow_before, FLOW_NORMAL) <= 0.0:
            raise InputError(
                f"flow_before must cross the line in the direction of {FLOW_NORMAL}, got "
                f"{self.flow_before}"
            )


def examples(config: Config) -> dict[str, Example]:
    """Return the constant flow, and the three impacts of the ball.

    Args:
        config: Settings.
    """
    balls = {name: ball(config, name) for name in ("slides", "sticks", "bounces")}
    return {"flow": _constant_flow(config), **balls}


def _constant_flow(config: Config) -> Example:
    """Return two constant flows that meet at a line through the origin, [Salt] Fig. 5, 6.

    Args:
        config: Settings.
    """
    before, after = np.array(config.flow_before), np.array(FLOW_AFTER)
    normal = np.array(FLOW_NORMAL) / np.linalg.norm(FLOW_NORMAL)
    x = ca.SX.sym("x", 2)
    system = symbolic.hybrid_system(
        [
            symbolic.SymbolicMode("I", state=x, field=before),
            symbolic.SymbolicMode("J", state=x, field=after),
        ],
        [symbolic.SymbolicTransition("I", "line", guard=-ca.dot(normal, x), target="J")],
    )
    # The guard falls to zero where the flow reaches the line: it is -n . x, with n along the flow.
    # I + (after - before) Dg / (Dg . before), in which the sign of Dg = -n cancels.
    matrix = np.eye(2) + np.outer(after - before, normal) / (normal @ before)
    return Example(
        system,
        "I",
        -0.5 * FLOW_DURATION * before,
        FLOW_DURATION,
        np.full(2, config.position_spread),
        normal,
        lambda event: matrix,
    )


def axes(config: Config) -> tuple[Array, Array]:
    """Return unit vectors (2,) down the slope and away from it.

    Args:
        config: Settings.
    """
    s, c = np.sin(config.slope), np.cos(config.slope)
    return np.array([c, -s]), np.array([s, c])


def ball(config: Config, impact: str) -> Example:
    """Return a point mass in a vertical plane that falls on a slope, [Salt] IV.

    Args:
        config: Settings.
        impact: "slides", "sticks" or "bounces".
    """
    down, away = axes(config)
    q, v = ca.SX.sym("q", 2), ca.SX.sym("v", 2)
    weight = np.array([0.0, -GRAVITY])
    normal_speed = ca.dot(away, v)
    # Acceleration in mode "slope", and velocity after the impact. What bounces stays in "air".
    acceleration_on_slope, velocity_after = {
        "slides": ((down @ weight) * down, v - away * normal_speed),
        "sticks": (np.zeros(2), np.zeros(2)),
        "bounces": (weight, v - (1.0 + config.restitution) * away * normal_speed),
    }[impact]
    air = symbolic.SymbolicMode("air", state=[q, v], field=[v, *weight])
    slope = symbolic.SymbolicMode("slope", state=[q, v], field=[v, *acceleration_on_slope])
    hits = symbolic.SymbolicTransition(
        "air",
        "slope",
        guard=ca.dot(away, q),
        target="air" if impact == "bounces" else "slope",
        reset=[q, velocity_after],
    )
    return Example(
        symbolic.hybrid_system([air] if impact == "bounces" else [air, slope], [hits]),
        "air",
        np.concatenate([config.height * away, config.velocity]),
        config.duration,
        np.repeat([config.position_spread, config.velocity_spread], 2),
        away,
        partial(_ball_matrix, config, impact),
    )


def _ball_matrix(config: Config, impact: str, event: Event) -> Array:
    r"""Return the saltation matrix (4, 4) of the ball in closed form, [Salt] (76)-(92).

    Sliding and bouncing share :math:`W = I - (1 + e) n n^T` in both diagonal blocks; sticking
    has :math:`I - v n^T / (n \cdot v)` for positions and nothing else. A bounce also turns a
    change of its time into one of the velocity, :math:`(1 + e) g_n / v_n\, n n^T`, with the
    components of gravity and of the velocity before along n, both negative. It is the change of the
    acceleration, :math:`f^+ - W f^-`, which is zero where the ball slides: the slope takes from
    gravity what the impact takes from the velocity.

    Args:
        config: Settings.
        impact: "slides", "sticks" or "bounces".
        event: The impact.
    """
    _, n = axes(config)
    v, zero, onto = event.state_before[2:], np.zeros((2, 2)), np.outer(n, n)
    if impact == "sticks":
        return np.block([[np.eye(2) - np.outer(v, n) / (n @ v), zero], [zero, zero]])
    e = config.restitution if impact == "bounces" else 0.0
    block = np.eye(2) - (1.0 + e) * onto
    by_time = -(1.0 + e) * GRAVITY * n[1] / (n @ v) * onto if impact == "bounces" else zero
    return np.block([[block, zero], [by_time, block]])
