r"""How the stability of a motion changes with parameters: event shaping.

The state transition :math:`\Phi` over a motion, with the jumps of its events, is itself the state
of a system (see `symbolic.variational`). The first derivatives of that system are the second ones
of the motion. A periodic orbit moves with the parameters p, and so does its period T,

.. math:: (S\Phi - I)\, \delta x_0 + S f\, \delta T + S D_p x\, \delta p = 0,

with the symmetry S up to which it closes; :math:`\delta T` is zero where the motion depends on
time. With left and right eigenvectors w, v of :math:`S\Phi` a multiplier changes by

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
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.orbits.conewise import compute_conewise_map
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

_EXTRA_TIME = 1e-3  # time after the end of a period, relative to it, within which its event recurs
_SAME_START = 1e-6  # difference of the starts that orders of guards lead to, relative and absolute
_FLOW_TOLERANCE = 1e-5  # error with which an autonomous period maps its field to itself, relative
_RANK_TOLERANCE = 1e-9
"""Singular values of the closing equation that are zero, relative to the largest: along families of
orbits the start moves by the least change that closes the orbit."""


@dataclass(frozen=True, eq=False)
class OrbitDerivatives:
    """How a periodic orbit changes with np parameters.

    Attributes:
        names: Names of the parameters.
        start: Derivatives (n, np) of its first state. Where that is free to move along the orbit or
            a family of orbits, the least change.
        period: Derivatives (np,) of its period, s per unit; zero where the period is given.
        monodromy: Symmetry times state transition over one period (n, n).
        transition: Derivatives (np, n, n) of the monodromy matrix.
        multipliers: The multipliers (k,) that are not trivial, the largest modulus first.
        derivatives: Their derivatives (k, np).
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
        """Derivatives (k, np) of the multipliers' moduli; NaN for a multiplier of zero.

        The first row, of the largest modulus, decides on stability.
        """
        size = np.abs(self.multipliers)[:, None]
        return np.asarray((self.multipliers.conj()[:, None] * self.derivatives).real / size)

    @property
    def norm(self) -> Array:
        """Derivatives (np,) of the monodromy matrix's largest singular value."""
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
    """Return how an orbit of a system of expressions and its multipliers change with parameters.

    The derivatives of multipliers are those of simple ones. Where several meet they split as roots
    do, and have none.

    Args:
        modes: Modes of the system, as expressions.
        transitions: Its transitions.
        parameters: Symbol and value by name, as for `symbolic.parametric_system`. Coefficients of
            inputs that are expressions of time are parameters like others.
        orbit: An orbit, without kinks, of the system that `symbolic.parametric_system` makes of
            them.
        input: Input u(t) (nu,) with which the orbit was found. If None, it is zero.
        rtol: Relative tolerance of simulation and linearization.
        atol: Absolute tolerance of both.

    Raises:
        InputError: If the orbit has kinks, or an argument does not fit, see `symbolic.variational`
            and `parameter_sensitivity`.
        HybridctlError: If simulation or linearization fail.
    """
    if not orbit.return_map.is_linear:
        raise InputError("orbit must have no kinks: `bound_derivatives` serves those")
    period = _differentiate_period(modes, transitions, parameters, orbit, input, rtol, atol)
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
    """Return how the bounds of `stability` change with parameters, for an orbit with kinks.

    The parameters must keep simultaneous guards together. Each piece of the return map is that of
    one order, in which guards fire one after the other: joint transitions are left out.

    Args:
        modes: Modes of the system, as expressions.
        transitions: Its transitions; also those of each of the simultaneous guards alone.
        parameters: Symbol and value by name.
        orbit: An orbit of the system that `symbolic.parametric_system` makes of them.
        input: Input u(t) (nu,) with which the orbit was found. If None, it is zero.
        rtol: Relative tolerance of simulation and linearization.
        atol: Absolute tolerance of both.

    Raises:
        InputError: If a parameter parts the guards, as the orbit that it leads to has one piece. If
            the orbit closes by a symmetry, or in a mode with constraints. If a transition of one of
            the guards alone is missing. If an argument does not fit, as for `orbit_derivatives` and
            `growth_derivatives`.
        HybridctlError: If simulation or linearization fail.
    """
    parts, ways = list(modes), list(transitions)
    found = stability(orbit)
    periods = [
        _differentiate_period(parts, chosen, parameters, orbit, input, rtol, atol)
        for chosen in _list_orders(ways, orbit)
    ]
    starts = np.array([np.vstack([p.start, p.duration]) for p in periods])
    apart = np.abs(starts - starts[0]).max(axis=(0, 1))
    if apart.max() > _SAME_START * (1.0 + np.abs(starts).max()):
        name = list(parameters)[int(apart.argmax())]
        raise InputError(f"parameter {name!r} parts guards that fire together on the orbit")
    basis, flow = found.basis, _find_flow(orbit)
    changes = []
    for piece in found.return_map.pieces:
        misfits = [np.abs(basis.T @ p.monodromy @ basis - piece.matrix).max() for p in periods]
        period = periods[int(np.argmin(misfits))]
        change = basis.T @ period.transition @ basis
        if flow is not None:
            # The basis is across the flow, which turns with the parameters, too.
            turn = basis.T @ period.transition @ flow
            turn = np.linalg.solve(np.eye(len(piece.matrix)) - piece.matrix, turn.T).T
            left = flow @ period.monodromy @ basis / (flow @ flow)
            change -= turn[:, :, None] * left
        changes.append(change)
    return growth_derivatives(found, changes)


def _find_flow(orbit: PeriodicOrbit) -> Array | None:
    """Return the field (n,) at the start of an autonomous orbit; None if it depends on time.

    The flow is the only trivial direction then.

    Raises:
        InputError: If there are others: of a symmetry, or of constraints.
    """
    lin = orbit.linearization
    pieces = compute_conewise_map(lin).pieces
    known, constraints, _ = find_trivial_directions(lin, [piece.matrix for piece in pieces], None)
    if len(constraints) or orbit.symmetry is not None:
        raise InputError("orbit must close without a symmetry, in a mode that holds nothing")
    return known.get("flow")


def _list_orders(
    ways: list[SymbolicTransition | Joint], orbit: PeriodicOrbit
) -> Iterator[list[SymbolicTransition | Joint]]:
    """Yield the transitions that are left for each order of the guards that fire together.

    Args:
        ways: All transitions.
        orbit: The orbit with these events.

    Raises:
        InputError: If a transition of one of these guards alone is missing.
    """
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
                key = _find_target(chosen, key, name)
        yield chosen


def _find_target(ways: list[SymbolicTransition | Joint], source: ModeKey, name: str) -> ModeKey:
    """Return the mode to which a guard leads alone.

    Args:
        ways: Transitions of the system.
        source: Mode of the guard.
        name: Name of the guard.

    Raises:
        InputError: If there is no transition of this guard alone.
    """
    for way in ways:
        if isinstance(way, SymbolicTransition) and (way.source, way.name) == (source, name):
            return way.target
    raise InputError(f"transitions must have one of guard {name!r} alone from mode {source!r}")


@dataclass(frozen=True, eq=False)
class _PeriodDerivatives:
    """One period and its derivatives by np parameters; fields are those of `OrbitDerivatives`.

    Attributes:
        start: Derivatives (n, np) of the first state.
        duration: Derivatives (np,) of the period, s per unit.
        monodromy: Symmetry times state transition (n, n).
        transition: Its derivatives (np, n, n).
    """

    start: Array
    duration: Array
    monodromy: Array
    transition: Array


def _differentiate_period(
    modes: Iterable[SymbolicMode],
    transitions: Iterable[SymbolicTransition | Joint],
    parameters: Mapping[str, tuple[Any, float]],
    orbit: PeriodicOrbit,
    input: Callable[[float], ArrayLike] | None,
    rtol: float,
    atol: float,
) -> _PeriodDerivatives:
    """Return the derivatives of one period of an orbit; arguments are those of its callers."""
    system, by = parametric_system(*variational(list(modes), list(transitions)), parameters)
    start, n = orbit.state, len(orbit.state)
    law = None if input is None else (lambda t, x: np.asarray(input(t), dtype=np.float64))
    x0 = np.concatenate([start, np.eye(n).ravel()])
    run = _simulate_period(system, orbit.trajectory, x0, law, rtol=rtol, atol=atol)
    sensitivity = parameter_sensitivity(system, run, by, rtol=rtol, atol=atol)
    whole = sensitivity.linearization.state_transition
    count, symmetry = len(by.names), orbit.symmetry
    final = run.arcs[-1]
    flow = np.asarray(system.mode(final.mode).field(run.end, *final.state_and_input(run.end)))
    matrix = map_perturbations(symmetry, run.final_state[n:].reshape(n, n).T)
    field = flow[:n]
    if orbit.return_map.is_linear:
        is_autonomous = orbit.multipliers.along_flow is not None
    else:
        # The matrix is that of one order of the guards.
        error, size = np.abs(matrix @ field - field).max(), np.abs(field).max(initial=0.0)
        is_autonomous = bool(error <= _FLOW_TOLERANCE * size)
    along_flow = map_perturbations(symmetry, field) if is_autonomous else np.zeros(n)
    closing = np.column_stack([matrix - np.eye(n), along_flow])
    moved = -map_perturbations(symmetry, whole[:n, -count:])
    if symmetry is not None:
        closing, moved = (part - symmetry.free_part(part, start) for part in (closing, moved))
    found = np.linalg.lstsq(closing, moved, rcond=_RANK_TOLERANCE)[0]
    change = whole[n:-count, :n] @ found[:n] + whole[n:-count, -count:]
    if is_autonomous:
        change += np.outer(flow[n:], found[n])
    shaped = change.T.reshape(count, n, n).transpose(0, 2, 1)  # columns of Phi one by one
    transition = np.stack([map_perturbations(symmetry, part) for part in shaped])
    start_change = np.asarray(found[:n], dtype=np.float64)
    duration = found[n] if is_autonomous else np.zeros(count)
    return _PeriodDerivatives(start_change, duration, matrix, transition)


def _simulate_period(
    system: HybridSystem,
    orbit: HybridTrajectory,
    x0: Array,
    law: InputLaw | None,
    *,
    rtol: float,
    atol: float,
) -> HybridTrajectory:
    """Return the run of one period of an orbit with further states beside those of the orbit.

    A period that ends at an event ends at the same event: it is counted, and may come a little
    later than on the orbit. Guards fire one at a time here.

    Args:
        system: The system with further states.
        orbit: One period.
        x0: First state with further entries.
        law: Input as a function of time and state.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """
    last, count = orbit.arcs[-1], itertools.count(1)
    end = orbit.end
    stop: Callable[[Event], bool] | None = None
    if last.start == last.end:
        end += _EXTRA_TIME * (orbit.end - orbit.start)
        passed = sum(len(event.guards) for event in orbit.events)
        stop = lambda event: next(count) == passed  # noqa: E731
    return simulate(
        system, orbit.arcs[0].mode, x0, (orbit.start, end), law,
        terminal=stop, event_window=0.0, rtol=rtol, atol=atol, on_zeno="raise",
    )  # fmt: skip
