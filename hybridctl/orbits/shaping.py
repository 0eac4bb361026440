r"""How the stability of a motion changes with parameters: event shaping.

The state transition :math:`\Phi` over a motion, jumps and all, is itself the state of a system (see
`symbolic.variational`), whose first derivatives are those of :math:`\Phi`. A periodic orbit moves
with the parameters p, and so does its period T,

.. math:: (S\Phi - I)\, \delta x_0 + S f\, \delta T + S D_p x\, \delta p = 0,

with S the symmetry up to which it closes, :math:`\delta T` only where nothing depends on time. With
left and right eigenvectors w, v of :math:`S\Phi` a multiplier changes by

.. math:: \delta\lambda = \frac{w^* S\, \delta\Phi\, v}{w^* v}, \qquad
    \delta\Phi = D_p\Phi\, \delta p + D_{x_0}\Phi\, \delta x_0 + \dot\Phi\, \delta T .
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.orbits.conewise import conewise
from hybridctl.orbits.growth import (
    GrowthDerivatives,
    eigenvalue_derivatives,
    growth_derivatives,
)
from hybridctl.orbits.return_map import PeriodicOrbit
from hybridctl.orbits.stability import stability
from hybridctl.sensitivity.floquet import find_trivial_directions
from hybridctl.sensitivity.parameters import parameter_sensitivity
from hybridctl.sensitivity.piecewise import EVENT_ACCURACY, PiecewiseLinearJump
from hybridctl.sensitivity.symmetry import map_perturbations
from hybridctl.symbolic import (
    Joint,
    SymbolicMode,
    SymbolicTransition,
    parametric_system,
    variational,
)

_LATE = 1e-3  # of the period: within this the event at its end comes again
_TOGETHER = 1e-6  # of 1 + their size: how far starts of different orders may be apart
_CARRIED = 1e-5  # of the field: how exactly an autonomous period maps it to itself
_RANK = 1e-9  # of the largest singular value: families of orbits move by the least that closes them


@dataclass(frozen=True, eq=False)
class OrbitDerivatives:
    """How a periodic orbit changes with the parameters `names`.

    start (n, np): of its state; where it is free to move along itself, the least that there is.
    period (np,): s per unit, zero where the period is given. transition (np, n, n): of the state
    transition over one period, S times. monodromy (n, n): that itself. multipliers (k,): those
    that are not trivial, the largest modulus first, and their derivatives (k, np).
    """

    names: tuple[str, ...]
    start: Array
    period: Array
    monodromy: Array
    transition: Array
    multipliers: NDArray[np.complex128]
    derivatives: NDArray[np.complex128]

    @property
    def moduli(self) -> Array:
        """The derivatives (k, np) of the multipliers' moduli; stability is that of the first."""
        size = np.abs(self.multipliers)[:, None]
        return np.asarray((self.multipliers.conj()[:, None] * self.derivatives).real / size)

    @property
    def norm(self) -> Array:
        """The derivatives (np,) of the monodromy matrix's largest singular value."""
        left, _, right = np.linalg.svd(self.monodromy)
        return np.asarray(left[:, 0] @ self.transition @ right[0])


def orbit_derivatives(
    modes: Iterable[SymbolicMode],
    transitions: Iterable[SymbolicTransition],
    parameters: Mapping[str, tuple[Any, float]],
    orbit: PeriodicOrbit,
    *,
    input: Callable[[float], ArrayLike] | None = None,
    rtol: float = 1e-10,
    atol: float = 1e-10,
) -> OrbitDerivatives:
    """How an orbit of these expressions and its multipliers change with parameters.

    parameters: symbol and value by name, as for `symbolic.parametric_system`, whose system the
    orbit is one of; coefficients of inputs that are expressions of time are parameters like others.
    input: u(t) (nu,) with which it was found. Derivatives of multipliers are those
    of simple ones; where several meet, they split as roots do, and have none.

    Raises what `symbolic.variational` and `parameter_sensitivity` raise, and `InputError` for
    orbits with kinks.
    """
    if not orbit.return_map.is_linear:
        raise InputError("orbit must have no kinks: `bound_derivatives` serves those")
    period = _period(modes, transitions, parameters, orbit, input, rtol, atol)
    multipliers = orbit.multipliers.others
    return OrbitDerivatives(
        tuple(parameters),
        period.start,
        period.duration,
        period.monodromy,
        period.transition,
        multipliers,
        np.array(
            [eigenvalue_derivatives(period.monodromy, period.transition, k) for k in multipliers],
            dtype=np.complex128,
        ).reshape(len(multipliers), len(parameters)),
    )


def bound_derivatives(
    modes: Iterable[SymbolicMode],
    transitions: Iterable[SymbolicTransition | Joint],
    parameters: Mapping[str, tuple[Any, float]],
    orbit: PeriodicOrbit,
    *,
    input: Callable[[float], ArrayLike] | None = None,
    rtol: float = 1e-10,
    atol: float = 1e-10,
) -> GrowthDerivatives:
    """How the bounds of `stability` change with parameters that keep simultaneous guards together.

    Arguments are those of `orbit_derivatives`. Each piece of the return map is that of one order,
    in which guards fire one after the other: joint transitions are left out.

    Raises `InputError` for a parameter that parts the guards, as the orbit that it leads to has
    one piece, and what `orbit_derivatives` and `growth_derivatives` raise.
    """
    parts, ways = list(modes), list(transitions)
    found = stability(orbit)
    periods = [
        _period(parts, chosen, parameters, orbit, input, rtol, atol)
        for chosen in _orders(ways, orbit)
    ]
    starts = np.array([np.vstack([p.start, p.duration]) for p in periods])
    apart = np.abs(starts - starts[0]).max(axis=(0, 1))
    if apart.max() > _TOGETHER * (1.0 + np.abs(starts).max()):
        name = list(parameters)[int(apart.argmax())]
        raise InputError(f"parameter {name!r} parts guards that fire together on the orbit")
    basis, flow = found.basis, _flow(orbit)
    changes = []
    for piece in found.return_map.pieces:
        off = [np.abs(basis.T @ p.monodromy @ basis - piece.matrix).max() for p in periods]
        period = periods[int(np.argmin(off))]
        change = basis.T @ period.transition @ basis
        if flow is not None:
            turn = basis.T @ period.transition @ flow
            turn = np.linalg.solve(np.eye(len(piece.matrix)) - piece.matrix, turn.T).T
            left = flow @ period.monodromy @ basis / (flow @ flow)
            change -= turn[:, :, None] * left
        changes.append(change)
    return growth_derivatives(found, changes)


def _flow(orbit: PeriodicOrbit) -> Array | None:
    """The field at the start of an autonomous orbit, the one direction that is trivial then."""
    lin = orbit.linearization
    pieces = conewise(lin).pieces
    known, held, _ = find_trivial_directions(lin, [piece.matrix for piece in pieces], None)
    if len(held) or orbit.symmetry is not None:
        raise InputError("orbit must close without a symmetry, in a mode that holds nothing")
    return known.get("flow")


def _orders(
    ways: list[SymbolicTransition | Joint], orbit: PeriodicOrbit
) -> Iterator[list[SymbolicTransition | Joint]]:
    """The transitions of each order of the guards that fire together on an orbit."""
    kinked = [
        (event, jump.pieces(accuracy=EVENT_ACCURACY))
        for event, jump in zip(orbit.trajectory.events, orbit.linearization.jumps, strict=True)
        if isinstance(jump, PiecewiseLinearJump)
    ]
    for pieces in itertools.product(*(found for _, found in kinked)):
        chosen = ways
        for (event, _), piece in zip(kinked, pieces, strict=True):
            key = event.mode_before
            for j in piece.order:
                name = event.guards[j]
                chosen = [
                    way
                    for way in chosen
                    if way.source != key
                    or (
                        isinstance(way, SymbolicTransition)
                        and (way.name == name or way.name not in event.guards)
                    )
                ]
                key = _target(chosen, key, name)
        yield chosen


def _target(ways: list[SymbolicTransition | Joint], source: ModeKey, name: str) -> ModeKey:
    """The mode to which a guard leads alone."""
    for way in ways:
        if isinstance(way, SymbolicTransition) and (way.source, way.name) == (source, name):
            return way.target
    raise InputError(f"transitions must have one of guard {name!r} alone from mode {source!r}")


@dataclass(frozen=True, eq=False)
class _Period:
    """A period's state transition (n, n), S times, and its changes; those of start and duration."""

    start: Array
    duration: Array
    monodromy: Array
    transition: Array


def _period(
    modes: Iterable[SymbolicMode],
    transitions: Iterable[SymbolicTransition | Joint],
    parameters: Mapping[str, tuple[Any, float]],
    orbit: PeriodicOrbit,
    input: Callable[[float], ArrayLike] | None,
    rtol: float,
    atol: float,
) -> _Period:
    """How the period of an orbit changes with the parameters."""
    system, by = parametric_system(*variational(list(modes), list(transitions)), parameters)
    start, n = orbit.state, len(orbit.state)
    law = None if input is None else (lambda t, x: np.asarray(input(t), dtype=np.float64))
    x0 = np.concatenate([start, np.eye(n).ravel()])
    run = _again(system, orbit.trajectory, x0, law, rtol=rtol, atol=atol)
    sensitivity = parameter_sensitivity(system, run, by, rtol=rtol, atol=atol)
    whole = sensitivity.linearization.state_transition
    count, symmetry = len(by.names), orbit.symmetry
    final = run.arcs[-1]
    flow = np.asarray(system.mode(final.mode).field(run.end, *final.state_and_input(run.end)))
    matrix = map_perturbations(symmetry, run.final_state[n:].reshape(n, n).T)
    field = flow[:n]
    autonomous = np.abs(matrix @ field - field).max() <= _CARRIED * np.abs(field).max(initial=0.0)
    if orbit.return_map.is_linear:
        autonomous = orbit.multipliers.along_flow is not None
    f = map_perturbations(symmetry, field) * autonomous
    closing = np.column_stack([matrix - np.eye(n), f])
    moved = -map_perturbations(symmetry, whole[:n, -count:])
    if symmetry is not None:
        closing, moved = closing - symmetry.free_part(closing), moved - symmetry.free_part(moved)
    found = np.linalg.lstsq(closing, moved, rcond=_RANK)[0]
    change = whole[n:-count, :n] @ found[:n] + whole[n:-count, -count:]
    change += np.outer(flow[n:], found[n]) * autonomous
    shaped = change.T.reshape(count, n, n).transpose(0, 2, 1)  # columns of Phi one by one
    transition = np.stack([map_perturbations(symmetry, part) for part in shaped])
    start_change = np.asarray(found[:n], dtype=np.float64)
    return _Period(start_change, found[n] * autonomous, matrix, transition)


def _again(
    system: HybridSystem,
    orbit: HybridTrajectory,
    x0: Array,
    law: InputLaw | None,
    *,
    rtol: float,
    atol: float,
) -> HybridTrajectory:
    """The run of one period in more states; one that ends at an event does so at the same event."""
    last, left = orbit.arcs[-1], itertools.count(1)
    at_event = last.start == last.end
    end = orbit.end + _LATE * (orbit.end - orbit.start) * at_event
    passed = sum(len(event.guards) for event in orbit.events)
    stop = (lambda event: next(left) == passed) if at_event else None
    return simulate(
        system, orbit.arcs[0].mode, x0, (orbit.start, end), law,
        terminal=stop, event_window=0.0, rtol=rtol, atol=atol, on_zeno="raise",
    )  # fmt: skip
