"""Tolerances that several files of modes and impacts share; others are where they are used.

Speeds are absolute, in m/s: event times are known to 1e-9 s of motions at m/s. Each is far enough
above the one before to tell both apart. Those of Coulomb's law itself are in units of its data, see
`contact_law.law`, and those of steps and events in `hybrid.tolerances`.
"""

NO_DIRECTION = 1e-12
"""Sliding speed, m/s, at and below which a velocity is rounding and has no direction."""
STOPPED = 1e-8
"""Sliding speed, m/s, at which a contact stops in a surface: its guard is |v_t| less this."""
STANDSTILL = 2e-8
"""Sliding speed, m/s, at and below which a direction in a surface may be a guess.

It is `STOPPED` and what the error of an integrator step adds to that."""
MIN_SLIDING_SPEED = 1e-9
"""Sliding speed, m/s, at and below which a contact slower than `STANDSTILL` is at rest.

It is rounding: a tenth of `STOPPED`."""
LIMIT_MARGIN = 1e-6
"""Distance from the friction limit, relative to it, below which it is not certain that a contact
slower than `STANDSTILL` holds."""
SAME_MOTION_COSINE = 0.5
"""Cosine between two directions of a contact slower than `STANDSTILL`, above which they belong to
one motion."""

CONSISTENT = 1e-12
"""Residual of constraints that agree, relative to the terms of C a: rounding."""
ON_CONE = 1e-12
"""Distance of a force to the boundary of its cone, relative to the largest normal force: rounding.
"""
LEAST_WEIGHT = 1e-6
"""Least weight by which contacts share friction, relative to the norm of all normal forces."""
JAMMED = 1e-6
"""Response ratio at which sliding contacts jam, see `jamming`.

A flow right to 1e-9 has that ratio, and the forces, right to 1e-3."""
