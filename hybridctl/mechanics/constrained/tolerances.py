"""Tolerances that several files share, of modes and impacts too; others stand where they are used.

Speeds are absolute, in m/s: event times are known to 1e-9 s of motions at m/s. Each is far enough
above the one before to tell both apart. Those of Coulomb's law itself are in units of its data, see
`contact_law.law`, and those of steps and events in `hybrid.tolerances`.
"""

NO_DIRECTION = 1e-12
"""A sliding velocity this small is rounding, and has no direction."""
STOPPED = 1e-8
"""What slides in a surface stops at this speed: the guard is |v_t| less this."""
STANDSTILL = 2e-8
"""Below, friction in a surface may have no direction but a guessed one: what `STOPPED` and the
error of a step leave."""

CONSISTENT = 1e-12
"""Of the terms of C a: what rounding leaves of constraints that agree."""
ON_CONE = 1e-12
"""Of the largest normal force: what rounding leaves of forces on a friction cone."""
LEAST_WEIGHT = 1e-6
"""Of the norm of all normal forces: the least weight by which contacts share friction."""
JAMMED = 1e-6
"""Sliding contacts jam where friction leaves this part of their normal response: a flow right to
1e-9 knows that part and the forces to 1e-3."""
