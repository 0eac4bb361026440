"""What the states of a mode obey: the constraints that it holds, to tolerances."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import ConstraintViolatedError


@dataclass(frozen=True, eq=False)
class Held:
    """What a mode holds: residuals(x) (k,), zero on it, such as gaps of closed contacts.

    tolerances (k,): the size of each residual that still counts as zero, in its own unit. names,
    units: (k,), for messages. jacobian: D_x of the residuals (k, ndx). refuse(what, key, x): raises
    for further states at which no arc of the mode begins. decay: rate in 1/s at which the field
    itself takes residuals back, 0 if it leaves them; a gap of 1 m then has a rate of up to so many
    m/s.
    """

    names: tuple[str, ...]
    residuals: Callable[[Array], Array]
    tolerances: Array
    units: tuple[str, ...]
    jacobian: Callable[[Array], Array] | None = field(default=None, kw_only=True)
    refuse: Callable[[str, Hashable, Array], None] | None = field(default=None, kw_only=True)
    decay: float = field(default=0.0, kw_only=True)

    def excess(self, x: Array) -> float:
        """The largest residual at x in units of its tolerance."""
        return float((np.abs(self.residuals(x)) / self.tolerances).max(initial=0.0))

    def check(self, what: str, key: Hashable, x: Array) -> None:
        """Raise `ConstraintViolatedError` if `what`, the state x, is off what mode `key` holds.

        And what `refuse` raises.
        """
        residuals = self.residuals(x)
        ratios = np.abs(residuals) / self.tolerances
        if len(ratios) and not ratios.max() <= 1.0:
            i = int(ratios.argmax())
            raise ConstraintViolatedError(
                f"{what} is off what mode {key!r} holds: {self.names[i]} is {residuals[i]:.6g} "
                f"{self.units[i]}, tolerated are {self.tolerances[i]:.3g} {self.units[i]}; "
                f"x0 = system.mode({key!r}).project(x0) puts a state on it"
            )
        if self.refuse is not None:
            self.refuse(what, key, x)
