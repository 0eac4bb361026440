r"""Forward simulation under inputs that are linear between grid times, with sampled feedback.

u(t) runs from u_k to u_{k+1} on each interval. Held inputs would jump at the grid times, and with
them the saltation matrices: the cost would have a kink wherever an event passes a grid time, and
minima that sit on such kinks. With a continuous input the motion depends smoothly on u_k.

Every interval is a simulation of its own, so that no integrator steps over a corner of u.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.arc import Arc, join_arcs
from hybridctl.hybrid.flow import METHODS, Integrator
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import computed_starts, simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory


@dataclass(frozen=True, eq=False)
class ShootingProblem:
    """A hybrid system with its start and the grid of its inputs.

    Attributes:
        system: The system.
        mode: Mode at the start.
        x0: State (nx,) at the start.
        times: Times (N+1,) of the grid, s.
        rtol: Relative tolerance of the simulation.
        atol: Absolute tolerance of the simulation.
    """

    system: HybridSystem
    mode: ModeKey
    x0: Array
    times: Array
    rtol: float
    atol: float

    def simulate_interval(
        self, k: int, mode: ModeKey, x: Array, u: Array, v: Array
    ) -> HybridTrajectory:
        """Return the run over interval k of the grid, under an input that is linear in time.

        Args:
            k: Number of the interval, from 0.
            mode: Key of the mode at its start.
            x: State at its start.
            u: Input (nu,) at its start.
            v: Input (nu,) at its end.

        Raises:
            SimulationError: The run cannot go on, or events accumulate.
        """
        start, end = float(self.times[k]), float(self.times[k + 1])
        slope = (v - u) / (end - start)
        with computed_starts():
            return simulate(
                self.system,
                mode,
                x,
                (start, end),
                lambda t, x: u + (t - start) * slope,
                on_zeno="raise",  # a run that comes to rest has no derivative
                rtol=self.rtol,
                atol=self.atol,
            )


@dataclass(frozen=True, eq=False)
class Rollout:
    """A motion: its N simulated intervals, with states and inputs at the times of the grid.

    Attributes:
        pieces: Trajectory on each interval.
        states: States at the N+1 times.
        inputs: Inputs (N+1, nu) at the times.
    """

    pieces: tuple[HybridTrajectory, ...]
    states: tuple[Array, ...]
    inputs: Array

    @property
    def events(self) -> tuple[Event, ...]:
        """Events of all intervals."""
        return tuple(event for piece in self.pieces for event in piece.events)

    def trajectory(self) -> HybridTrajectory:
        """Return one trajectory of all intervals."""
        arcs, group = list[Arc](), list[Arc]()
        for piece in self.pieces:
            for arc in piece.arcs:
                group.append(arc)
                if arc.index < len(piece.events):
                    arcs.append(join_arcs(len(arcs), group))
                    group = []
        arcs.append(join_arcs(len(arcs), group))
        events = (replace(event, index=i) for i, event in enumerate(self.events))
        return HybridTrajectory(tuple(arcs), tuple(events))


_InputChoice = Callable[[int, ModeKey, Array, Array, int], Array]
"""Input u_{k+1} by k, by mode, state and input at the start of interval k, and the event count."""


def simulate_open_loop(plant: ShootingProblem, inputs: Array) -> Rollout:
    """Return the motion under given inputs.

    Args:
        plant: The problem.
        inputs: Inputs (N+1, nu) at the times of the grid.

    Raises:
        SimulationError: The run cannot go on, or events accumulate.
    """
    return _simulate_grid(plant, inputs[0], lambda k, *start: inputs[k + 1])


def simulate_closed_loop(
    plant: ShootingProblem, nominal: Rollout, offsets: Array, gains: Sequence[Array]
) -> Rollout:
    r"""Return the motion under offsets and feedback around a nominal motion.

    The law is v_k = v_k* + offset_{k+1} + K_k (z_k* - z_k), with v_k = u_{k+1} and z = (x, u), and
    u_0 = u_0* + offset_0. Where the new motion has had more or fewer events than the nominal one,
    x* lies on the nominal arc of the same mode and event count. That arc is continued past its end,
    or to before its start, by its own field with the input held that it has there. The gain is that
    of the nearest grid time on the arc.
    Without such an arc, or without a grid time on it, the feedback is off.

    Args:
        plant: The problem.
        nominal: The nominal motion.
        offsets: Offsets (N+1, nu) of the inputs.
        gains: N gains K (nu, ndx + nu).

    Raises:
        SimulationError: The run cannot go on, or events accumulate.
    """
    arcs, planned = nominal.trajectory().arcs, nominal.inputs + offsets
    counts = np.cumsum([0, *(len(piece.events) for piece in nominal.pieces[:-1])])

    def choose(k: int, mode: ModeKey, x: Array, u: Array, count: int) -> Array:
        same_count = np.flatnonzero(counts == count)
        if not same_count.size or arcs[count].mode != mode:
            return np.asarray(planned[k + 1])
        i = int(min(max(k, same_count[0]), same_count[-1]))
        if i == k:
            target = nominal.states[k]
        else:
            target = _continue_arc(plant, arcs[count], k, forwards=k > i)
        error = plant.system.mode(mode).space.difference(x, target)
        feedback = gains[i] @ np.concatenate([error, nominal.inputs[k] - u])
        return np.asarray(planned[k + 1] + feedback)

    return _simulate_grid(plant, planned[0], choose)


def _simulate_grid(plant: ShootingProblem, first: Array, choose: _InputChoice) -> Rollout:
    """Return the motion whose inputs are chosen one after the other, from the first (nu,) on."""
    mode, x, count = plant.mode, plant.x0, 0
    pieces, states, inputs = list[HybridTrajectory](), [x], [first]
    for k in range(len(plant.times) - 1):
        inputs.append(choose(k, mode, x, inputs[k], count))
        pieces.append(plant.simulate_interval(k, mode, x, *inputs[k:]))
        mode, x = pieces[-1].final_mode, pieces[-1].final_state
        count += len(pieces[-1].events)
        states.append(x)
    return Rollout(tuple(pieces), tuple(states), np.array(inputs))


def _continue_arc(plant: ShootingProblem, arc: Arc, k: int, *, forwards: bool) -> Array:
    """Return the state (nx,) at grid index k on an arc continued with the input of its end.

    Args:
        plant: The problem.
        arc: The arc.
        k: Index of the grid time, outside of the arc.
        forwards: Whether the arc is continued past its end, or else to before its start.
    """
    start = arc.end if forwards else arc.start
    x, u = arc(start), arc.input(start)
    integrator = Integrator(METHODS["DOP853"], plant.rtol, plant.atol, np.inf)
    mode = plant.system.mode(arc.mode)
    steps = integrator.steps(mode, lambda t, x: u, start, x, float(plant.times[k]))
    return mode.space.normalize(list(steps)[-1].states[-1])
