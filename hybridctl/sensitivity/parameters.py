"""How the end of a trajectory depends on named parameters, to first order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_instance, check_member
from hybridctl.base.errors import InputError
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.augmentation import ParameterModel, with_parameters
from hybridctl.sensitivity.first_order import PhantomGains
from hybridctl.sensitivity.linearize import Linearization, linearize
from hybridctl.sensitivity.simultaneous import PhantomInput, Simultaneous
from hybridctl.sensitivity.variation import Gain, InputChange


@dataclass(frozen=True, eq=False)
class ParameterSensitivity:
    """The first-order map of changes dp of parameters `names`, and of dx0 and du with them.

    `linearization` is that of (x, p): its moments are joint ones of state and parameters, its
    jumps have the pieces of simultaneous events.
    """

    names: tuple[str, ...]
    linearization: Linearization

    @property
    def matrix(self) -> Array:
        """The derivative D_p x(end) from a fixed start (ndx+, np); `InputError` where piecewise."""
        n = len(self.names)
        return self.linearization.state_transition[:-n, -n:]

    def __call__(
        self,
        dp: Mapping[str, float] | ArrayLike,
        dx0: ArrayLike | None = None,
        input_change: InputChange | None = None,
    ) -> Array:
        """The deviation (ndx+,) at the end for dp (np,), or (m, ndx+) for m of them in rows.

        dp: values in the order of `names`, or changes by name. dx0 (ndx,) or (m, ndx): of the
        start, by default none. `input_change`: du(t) (nu,). Raises `InputError`.
        """
        joint = self._joint(dp, dx0)
        return self.linearization(joint, input_change)[..., : -len(self.names)]

    def derivative(
        self,
        dp: Mapping[str, float] | ArrayLike,
        dx0: ArrayLike | None = None,
        input_change: InputChange | None = None,
    ) -> Array:
        """The one-sided derivative along directions, of any size: see `Linearization.derivative`.

        Arguments and shapes are those of a call.
        """
        joint = self._joint(dp, dx0)
        return self.linearization.derivative(joint, input_change)[..., : -len(self.names)]

    def closed_loop(
        self, gains: Sequence[Gain | ArrayLike], phantom_gains: PhantomGains | None = None
    ) -> ParameterSensitivity:
        """The map under feedback of the state, see `Linearization.closed_loop`."""
        n = len(self.names)
        padded = [
            partial(_padded_at, f"gains[{k}]", gain, n)
            if callable(gain)
            else _padded(f"gains[{k}]", gain, n)
            for k, gain in enumerate(gains)
        ]
        phantom = None if phantom_gains is None else partial(_padded_phantom, phantom_gains, n)
        return replace(self, linearization=self.linearization.closed_loop(padded, phantom))

    def _joint(self, dp: Mapping[str, float] | ArrayLike, dx0: ArrayLike | None) -> Array:
        """Deviations (..., ndx + np) of state and parameters."""
        n, changes = len(self.names), self._changes(dp)
        ndx = self.linearization.trajectory.arcs[0].space.ndx - n
        start = np.zeros(ndx) if dx0 is None else check_array("dx0", dx0)
        if start.shape[-1:] != (ndx,) or start.ndim > 2:
            raise InputError(f"dx0 must have shape ({ndx},) or (m, {ndx}), got {start.shape}")
        try:
            rows = np.broadcast_shapes(start.shape[:-1], changes.shape[:-1])
        except ValueError as error:
            raise InputError(
                f"dx0 and dp must have as many rows, got shapes {start.shape} and {changes.shape}"
            ) from error
        both = [np.broadcast_to(a, (*rows, a.shape[-1])) for a in (start, changes)]
        return np.concatenate(both, axis=-1)

    def _changes(self, dp: Mapping[str, float] | ArrayLike) -> Array:
        n = len(self.names)
        if isinstance(dp, Mapping):
            values = np.zeros(n)
            for name, value in dp.items():
                values[self.names.index(check_member("parameter", name, self.names))] = value
            dp = values
        changes = check_array("dp", dp)
        if changes.ndim not in (1, 2) or changes.shape[-1] != n:
            raise InputError(f"dp must have shape ({n},) or (m, {n}), got {changes.shape}")
        return changes


def parameter_sensitivity(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    derivatives: ParameterModel,
    *,
    merge: float | None = None,
    phantom_input: PhantomInput = "pushing",
    simultaneous: Simultaneous = "in turn",
    rtol: float = 1e-9,
    atol: float = 1e-9,
) -> ParameterSensitivity:
    """How the end of a simulated trajectory depends on parameters, to first order.

    Options are those of `linearize`, and so is what is raised.
    """
    check_instance("derivatives", derivatives, ParameterModel)  # type: ignore[type-abstract]
    lin = linearize(
        *with_parameters(system, trajectory, derivatives),
        merge=merge,
        phantom_input=phantom_input,
        simultaneous=simultaneous,
        rtol=rtol,
        atol=atol,
    )
    return ParameterSensitivity(derivatives.names, lin)


def _padded(name: str, gain: ArrayLike, n: int) -> Array:
    """A gain (nu, ndx) that does not see n parameters: (nu, ndx + n)."""
    k = check_array(name, gain, (None, None))
    return np.hstack((k, np.zeros((len(k), n))))


def _padded_at(name: str, gain: Gain, n: int, t: float) -> Array:
    return _padded(f"{name}({t})", gain(t), n)


def _padded_phantom(gains: PhantomGains, n: int, k: int, fired: frozenset[int]) -> Array:
    return _padded(f"phantom_gains({k}, {sorted(fired)})", gains(k, fired), n)
