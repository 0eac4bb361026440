r"""Forward simulation under inputs that are linear between grid times, with sampled feedback.

u(t) runs from u_k to u_{k+1} on each interval. Held inputs would jump at the grid times, and with
them the saltation matrices: the cost would have a kink wherever an event passes a grid time, and
minima that sit on such kinks. With a continuous input the motion depends smoothly on u_k.

Every interval is a simulation of its own, so that no integrator steps over a corner of u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hybridctl.checks import Array
from hybridctl.hybrid.arc import Arc, joined
from hybridctl.hybrid.flow import METHODS, Integrator
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory


@dataclass(frozen=True, eq=False)
class ShootingProblem:
    """A hybrid system, where it starts, and the grid `times` (N+1,) of its held inputs."""

    system: HybridSystem
    mode: ModeKey
    x0: Array
    times: Array
    rtol: float
    atol: float

    def piece(self, k: int, mode: ModeKey, x: Array, u: Array, v: Array) -> HybridTrajectory:
        """Interval k from state x, with the input from u at its start to v at its end."""
        start, end = float(self.times[k]), float(self.times[k + 1])
        slope = (v - u) / (end - start)
        return simulate(
            self.system,
            mode,
            x,
            (start, end),
            lambda t, x: u + (t - start) * slope,
            rtol=self.rtol,
            atol=self.atol,
        )


@dataclass(frozen=True, eq=False)
class Rollout:
    """The N simulated intervals, with states and inputs (N+1, nu) at the grid times."""

    pieces: tuple[HybridTrajectory, ...]
    states: tuple[Array, ...]
    inputs: Array

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of all intervals."""
        return tuple(event for piece in self.pieces for event in piece.events)

    def trajectory(self) -> HybridTrajectory:
        """One trajectory of all intervals."""
        arcs, group = list[Arc](), list[Arc]()
        for piece in self.pieces:
            for arc in piece.arcs:
                group.append(arc)
                if arc.index < len(piece.events):
                    arcs.append(joined(len(arcs), group))
                    group = []
        arcs.append(joined(len(arcs), group))
        events = (replace(event, index=i) for i, event in enumerate(self.events))
        return HybridTrajectory(tuple(arcs), tuple(events))


@dataclass(frozen=True, eq=False)
class RolloutFeedback:
    r"""The feedback v_k = v_k* + step * offset_{k+1} + K_k (z_k* - z_k); v_k is u_{k+1}.

    z = (x, u), and u_0 = u_0* + step * offset_0. Where the new motion has had more or fewer events
    than the rollout, x* is the arc of the rollout with the same mode and event count, continued
    past its end by its own field with the input held there; the gain is that of the arc's nearest
    grid time. Where the rollout has no such arc, feedback is held off.

    offsets (N+1, nu), gains N times (nu, ndx + nu).
    """

    nominal: Rollout
    offsets: Array
    gains: Sequence[Array]


@dataclass(frozen=True, eq=False)
class _RolloutStretch:
    """The part of a rollout in one mode and event count: its arcs, and the grid indices on it."""

    mode: ModeKey
    count: int
    arcs: list[Arc]
    indices: list[int]


def open_loop(plant: ShootingProblem, inputs: Array) -> Rollout:
    """The rollout of inputs (N+1, nu) alone. Raises what `simulate` raises."""
    mode, x = plant.mode, plant.x0
    pieces, states = list[HybridTrajectory](), [x]
    for k, (u, v) in enumerate(pairwise(inputs)):
        pieces.append(plant.piece(k, mode, x, u, v))
        mode, x = pieces[-1].final_mode, pieces[-1].final_state
        states.append(x)
    return Rollout(tuple(pieces), tuple(states), inputs)


def closed_loop(plant: ShootingProblem, feedback: RolloutFeedback, step: float) -> Rollout:
    """The rollout under feedback, with this part of its offsets. Raises what `simulate` raises."""
    nominal = feedback.nominal
    stretches = _stretches(nominal)
    mode, x, count = plant.mode, plant.x0, 0
    asked = nominal.inputs + step * feedback.offsets
    pieces, states, inputs = list[HybridTrajectory](), [x], [asked[0]]
    for k, v in enumerate(asked[1:]):
        near = next((s for s in stretches if s.mode == mode and s.count == count), None)
        if near is not None:
            reference, i = _reference(plant, nominal, near, k)
            error = plant.system.mode(mode).space.difference(x, reference)
            v = v + feedback.gains[i] @ np.concatenate([error, nominal.inputs[k] - inputs[k]])
        pieces.append(plant.piece(k, mode, x, inputs[k], v))
        inputs.append(v)
        mode, x = pieces[-1].final_mode, pieces[-1].final_state
        count += len(pieces[-1].events)
        states.append(x)
    return Rollout(tuple(pieces), tuple(states), np.array(inputs))


def _stretches(rollout: Rollout) -> list[_RolloutStretch]:
    """The stretches of a rollout that have a grid time, in order."""
    found = list[_RolloutStretch]()
    count, before = 0, list[Arc]()
    for k, piece in enumerate(rollout.pieces):
        if not found or found[-1].count != count:
            found.append(_RolloutStretch(piece.arcs[0].mode, count, before, []))
        found[-1].indices.append(k)
        found[-1].arcs.append(piece.arcs[0])
        before = [piece.arcs[-1]]
        count += len(piece.events)
    return found


def _reference(
    plant: ShootingProblem, nominal: Rollout, near: _RolloutStretch, k: int
) -> tuple[Array, int]:
    """The state of a stretch at grid index k, continued where it must be; the index of its gain."""
    i = min(max(k, near.indices[0]), near.indices[-1])
    if i == k:
        return nominal.states[k], k
    arc = near.arcs[-1] if k > i else near.arcs[0]
    start = arc.end if k > i else arc.start
    x, u = arc(start), arc.input(start)
    integrator = Integrator(METHODS["DOP853"], plant.rtol, plant.atol, np.inf)
    mode = plant.system.mode(arc.mode)
    steps = integrator.steps(mode, lambda t, x: u, start, x, float(plant.times[k]))
    return mode.space.normalize(list(steps)[-1].states[-1]), i
