"""A system as a function of parameters: by their names, or by a function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from hybridctl.base.checks import Array, check_instance
from hybridctl.base.errors import InputError
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.parameter_values import NamedParameters
from hybridctl.mechanics.system import ContactSystem
from hybridctl.sensitivity.parameter_models import (
    FixedInputParameters,
    ParameterModel,
    SystemFamily,
    SystemWithFixedInputs,
)

MakeSystem: TypeAlias = Callable[[Array], tuple[HybridSystem, ParameterModel]]
"""Function of parameters (np,) that returns the system with these, and its derivatives by them."""


@dataclass(eq=False)
class ParametricSystem:
    """A system that is made for values of its parameters, and kept for the last values.

    Attributes:
        source: The system with its own values, or a function that makes one.
        names: Names (np,) of the parameters; empty for a system without any.

    Raises:
        InputError: Source and names do not fit.
    """

    source: HybridSystem | MakeSystem
    names: tuple[str, ...]
    _last: tuple[bytes, HybridSystem, ParameterModel] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._family: SystemFamily | None = None
        if not self.names:
            check_instance("system", self.source, HybridSystem)
        elif isinstance(self.source, ContactSystem):
            self._family = NamedParameters(self.source, self.names)
        elif isinstance(self.source, SystemWithFixedInputs):
            self._family = FixedInputParameters(self.source, self.names)
        elif isinstance(self.source, HybridSystem) or not callable(self.source):
            raise InputError(
                "parameters by name are those of robots with contacts (contact_system) and of "
                "symbolic.parametric_system; for other systems give a function that returns the "
                "system and its ParameterDerivatives"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the system of the last values, so that runs change no pickled form."""
        return {**self.__dict__, "_last": None}

    @property
    def nominal_values(self) -> Array | None:
        """Values (np,) in the system that was given; None where a function makes it."""
        if not self.names:
            return np.zeros(0)
        return None if self._family is None else self._family.values

    def make(self, values: Array) -> tuple[HybridSystem, ParameterModel | None]:
        """Return the system with these values, and its derivatives by them.

        Args:
            values: Values (np,).

        Raises:
            InputError: A value is out of its range.
        """
        if not self.names:
            assert isinstance(self.source, HybridSystem)
            return self.source, None
        key = values.tobytes()
        last = self._last  # read once, as another thread may replace it
        if last is None or last[0] != key:
            last = self._last = (key, *self._build(values))
        return last[1:]

    def _build(self, values: Array) -> tuple[HybridSystem, ParameterModel]:
        """Return a new system with these values, and its derivatives.

        Raises:
            InputError: A function makes derivatives by other parameters.
        """
        if self._family is not None:
            return self._family.make(values)
        assert not isinstance(self.source, HybridSystem)
        system, model = self.source(values)
        if tuple(model.names) != self.names:
            raise InputError(
                f"parameters must have the names of the derivatives, {model.names}, got "
                f"{self.names}"
            )
        return system, model
