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
    """A hybrid system, where it starts, and the grid `times` (N+1,) of its held inputs."""

    system: HybridSystem
    mode: ModeKey
    x0: Array
    times: Array
    rtol: float
    atol: float

    def piece(self, k: int, mode: ModeKey, x: Array, u: Array, v: Array) -> HybridTrajectory:
        """Simulate interval k of the grid under an input that is linear in time.

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
                    arcs.append(join_arcs(len(arcs), group))
                    group = []
        arcs.append(join_arcs(len(arcs), group))
        events = (replace(event, index=i) for i, event in enumerate(self.events))
        return HybridTrajectory(tuple(arcs), tuple(events))


# u_{k+1} by k, by the mode, state and input where interval k begins, and by the events so far.
_Choice = Callable[[int, ModeKey, Array, Array, int], Array]


def open_loop(plant: ShootingProblem, inputs: Array) -> Rollout:
    """The rollout of inputs (N+1, nu) alone. Raises what `simulate` raises."""
    return _rolled_out(plant, inputs[0], lambda k, *now: inputs[k + 1])


def closed_loop(
    plant: ShootingProblem, nominal: Rollout, offsets: Array, gains: Sequence[Array]
) -> Rollout:
    r"""The rollout under feedback v_k = v_k* + offset_{k+1} + K_k (z_k* - z_k); v_k is u_{k+1}.

    z = (x, u), and u_0 = u_0* + offset_0. Where the new motion has had more or fewer events than
    the nominal one, x* is the arc of that with the same mode and event count, continued past its
    end by its own field with the input held there; the gain is that of the arc's nearest grid time.
    Where there is no such arc, or no grid time on it, feedback is held off.

    offsets (N+1, nu), gains N times (nu, ndx + nu). Raises what `simulate` raises.
    """
    arcs, asked = nominal.trajectory().arcs, nominal.inputs + offsets
    counts = np.cumsum([0, *(len(piece.events) for piece in nominal.pieces[:-1])])

    def chosen(k: int, mode: ModeKey, x: Array, u: Array, count: int) -> Array:
        known = np.flatnonzero(counts == count)
        if not known.size or arcs[count].mode != mode:
            return np.asarray(asked[k + 1])
        i = int(min(max(k, known[0]), known[-1]))
        reference = nominal.states[k] if i == k else _continued(plant, arcs[count], k, k > i)
        error = plant.system.mode(mode).space.difference(x, reference)
        fed_back = gains[i] @ np.concatenate([error, nominal.inputs[k] - u])
        return np.asarray(asked[k + 1] + fed_back)

    return _rolled_out(plant, asked[0], chosen)


def _rolled_out(plant: ShootingProblem, first: Array, choice: _Choice) -> Rollout:
    """The rollout whose inputs are chosen one after the other."""
    mode, x, count = plant.mode, plant.x0, 0
    pieces, states, inputs = list[HybridTrajectory](), [x], [first]
    for k in range(len(plant.times) - 1):
        inputs.append(choice(k, mode, x, inputs[k], count))
        pieces.append(plant.piece(k, mode, x, *inputs[k:]))
        mode, x = pieces[-1].final_mode, pieces[-1].final_state
        count += len(pieces[-1].events)
        states.append(x)
    return Rollout(tuple(pieces), tuple(states), np.array(inputs))


def _continued(plant: ShootingProblem, arc: Arc, k: int, past: bool) -> Array:
    """The state at grid index k on an arc continued past its end, or back past its start."""
    start = arc.end if past else arc.start
    x, u = arc(start), arc.input(start)
    integrator = Integrator(METHODS["DOP853"], plant.rtol, plant.atol, np.inf)
    mode = plant.system.mode(arc.mode)
    steps = integrator.steps(mode, lambda t, x: u, start, x, float(plant.times[k]))
    return mode.space.normalize(list(steps)[-1].states[-1])
