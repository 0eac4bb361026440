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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eig

from hybridctl.checks import Array
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.parameters import parameter_sensitivity
from hybridctl.sensitivity.return_map import PeriodicOrbit
from hybridctl.sensitivity.symmetry import carried
from hybridctl.symbolic import Mode, Transition, parametric_system, variational

_LATE = 1e-3  # of the period: within this the event at its end comes again
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
    modes: Iterable[Mode],
    transitions: Iterable[Transition],
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
    matrix = carried(symmetry, orbit.linearization.state_transition)
    autonomous = orbit.multipliers.along_flow is not None
    f = carried(symmetry, flow[:n]) * autonomous
    closing = np.column_stack([matrix - np.eye(n), f])
    moved = -carried(symmetry, whole[:n, -count:])
    if symmetry is not None:
        closing, moved = closing - symmetry.along(closing), moved - symmetry.along(moved)
    found = np.linalg.lstsq(closing, moved, rcond=_RANK)[0]
    change = whole[n:-count, :n] @ found[:n] + whole[n:-count, -count:]
    change += np.outer(flow[n:], found[n]) * autonomous
    shaped = change.T.reshape(count, n, n).transpose(0, 2, 1)  # columns of Phi one by one
    transition = np.stack([carried(symmetry, part) for part in shaped])
    multipliers = orbit.multipliers.others
    return OrbitDerivatives(
        by.names,
        np.asarray(found[:n], dtype=np.float64),
        found[n] * autonomous,
        matrix,
        transition,
        multipliers,
        _eigenvalue_derivatives(matrix, transition, multipliers),
    )


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
    stop = (lambda event: next(left) == len(orbit.events)) if at_event else None
    return simulate(
        system, orbit.arcs[0].mode, x0, (orbit.start, end), law,
        terminal=stop, rtol=rtol, atol=atol,
    )  # fmt: skip


def _eigenvalue_derivatives(
    matrix: Array, changes: Array, wanted: NDArray[np.complex128]
) -> NDArray[np.complex128]:
    """The derivatives (k, np) of the eigenvalues that are nearest to the wanted ones."""
    values, left, right = eig(matrix, left=True)
    found = []
    for value in wanted:
        k = int(np.abs(values - value).argmin())
        w, v = left[:, k].conj(), right[:, k]
        found.append((w @ changes @ v) / (w @ v))
    return np.array(found, dtype=np.complex128).reshape(len(wanted), len(changes))
