from hybridctl.base.checks import Array, Indices

INTERFACE: int

def solve(
    delassus: Array,
    free: Array,
    tangents: tuple[Indices, ...],
    static: Array,
    kinetic: Array,
    sliding: tuple[Array | None, ...],
    magnitude: float,
    results: Array,
    /,
) -> tuple[bool, bytes, bytes, bytes] | None: ...
def prove_unique(
    delassus: Array,
    free: Array,
    tangents: tuple[Indices, ...],
    static: Array,
    kinetic: Array,
    sliding: tuple[Array | None, ...],
    magnitude: float,
    /,
) -> bool | None: ...
def solve_impact(
    mass: Array,
    jacobian: Array,
    rates: Array,
    velocity: Array,
    restitution: Array,
    threshold: Array,
    friction: Array,
    out: Array,
    owner: Indices,
    rows: Indices,
    tangents: tuple[Indices, ...],
    /,
) -> tuple[bool, bytes, bytes] | None: ...
def set_lapack(dgelsy: object, dsyev: object, /) -> None: ...
