from collections.abc import Callable, Sequence
from typing import Any

from hybridctl.base.checks import Array

INTERFACE: int

class Kernel:
    def __init__(
        self,
        *,
        call: int,
        data: object,
        owner: object,
        arrays: tuple[Array, ...],
        sizes: tuple[int, int, int, int, int],
        closed: Sequence[tuple[int, int, int, bool, float, float, float, int, float]],
        rows: Sequence[int],
        constrained: Sequence[int],
        guards: Sequence[tuple[int, int, float, float]],
        stabilization: float,
        tableau: Array,
        python_mode: Callable[[bytes, bytes, bool], tuple[Any, Any]],
    ) -> None: ...
    def evaluate(
        self, x: Array, u: Array, field: Array, guards: Array, /
    ) -> tuple[float, float] | None: ...
    def step(
        self,
        x: Array,
        u: Array,
        settings: Array,
        states: Array,
        guards: Array,
        bounds: Array,
        /,
    ) -> tuple[float, float]: ...
    def sample_guards(self, states: Array, u: Array, guards: Array, /) -> None: ...
    def find_forces(self, x: Array, u: Array, rate: Array, forces: Array, /) -> bool: ...
    def find_rates(self, x: Array, gaps: Array, rates: Array, /) -> None: ...
    def set_tree(
        self,
        *,
        parents: Sequence[int],
        owners: Sequence[int],
        contact_joints: Sequence[int],
        row_owners: Sequence[int],
        gravity: Array,
        inertias: Array,
        points: Array,
        directions: Array,
        springs: Array,
        dampers: Array,
        actuation: Array,
        load_rank: int,
        kinds: Sequence[int],
        starts: Sequence[int],
        placements: Array,
        axes: Array,
        turns: Sequence[tuple[int, int, int, float]],
    ) -> None: ...
    def differentiate(
        self, x: Array, u: Array, field: Array, guards: Array, /
    ) -> tuple[bool, bool]: ...
    def variational_step(
        self, x: Array, u: Array, settings: Array, state: Array, matrix: Array, /
    ) -> float | None: ...
    def differentiate_terms(
        self, x: Array, u: Array, accelerations: Array, rates: Array, field: Array, guards: Array, /
    ) -> tuple[bool, bool]: ...
