"""Tolerances of contact dynamics: what counts as zero, in which unit, relative to what, and why.

Those of Coulomb's law itself are where it is solved (`coulomb`), in units of its data; those of
steps and events are in `hybrid.tolerances`.
"""

# Gaps, in m. They do not scale with the robot: event times are known to 1e-9 s of motions at m/s.

TOUCHING = 2e-8
"""A gap this small is closed where others hit: above what event times leave of it."""
PENETRATION = 1e-6
"""Time stepping does not start from a state this deep in a surface."""
ON_SURFACE = 1e-11
"""Newton's method that puts closed contacts on their surfaces ends here: rounding, of m."""
SAMPLED_ON_SURFACE = 1e-9
"""The same for the configurations at which redundant rows are looked for."""

BRIDGED = 1e-7
"""Contacts that have let go on a bridge come this deep: a tenth of `PENETRATION`."""

# Speeds, in m/s, absolute as well. Each is far enough above the one before to tell both apart.

NO_DIRECTION = 1e-12
"""A sliding velocity this small is rounding, and has no direction."""
MOVES = 1e-9
"""A slow contact in a surface that slides no faster stands: a tenth of `STOPPED`, as rounding."""
SEPARATION_SPEED = 1e-9
"""After an impact a contact that parts faster is open; impulses count by it, too, of the largest
or of 1 N s."""
CLEARLY_MOVES = 9e-9
"""More than integration leaves of the beginning of a motion: not quite `STOPPED`."""
STOPPED = 1e-8
"""What slides in a surface stops at this speed: the guard is |v_t| less this."""
STANDSTILL = 2e-8
"""Below, friction in a surface may have no direction but a guessed one: what `STOPPED` and the
error of a step leave."""
LEAST_COMPILED_SPEED = 2e-7
"""Slower slides in a surface are left to the dynamics, which know other directions; derivatives,
which grow as 1 / |v_t|, are bounded by it."""
PROBE_SPEED = 1e-6
"""At which it is looked whether a contact at the border of slip goes on slipping."""
RESTING_SPEED = 1e-4
"""An open contact on its surface that moves no faster takes part in an impact of others: bounces
that have died out leave less."""

OFF_MODE = 1e-5
"""A state whose gaps (m) or speeds (m/s) are this far from what its mode holds is not of it."""

# Ratios, of the size of what stands in the equation unless said otherwise.

RANK = 1e-10
"""Singular values of C M^-1 F relative to the largest, below which contacts hold each other: what
rounding leaves of zero is below 1e-14 times the condition of M, and distinct contacts of robots
have stood above 1e-6. Pivots do not tell: where what contacts share is almost, but not quite,
without the last row, the last pivot is as much larger than the singular value."""
LEAST_PIVOT = 1e-6
"""Pivots of compiled modes relative to the largest: divisions go wrong by rounding over this,
1e-10."""
JAMMED = 1e-6
"""Sliding contacts jam where friction leaves this part of their normal response: a flow right to
1e-9 knows that part and the forces to 1e-3."""
NEAR_JAM = 1e-4
"""A response this small, where the guard has fired, is a jam: with room for the event's time."""
LEAST_WEIGHT = 1e-6
"""Of the norm of all normal forces: the least weight by which contacts share friction."""
CONSISTENT = 1e-12
"""Of the terms of C a: what rounding leaves of constraints that agree."""
APART = 1e-6
"""Of the same: contacts that hold together are never apart by more."""
ON_CONE = 1e-12
"""Of the largest normal force: what rounding leaves of forces on a friction cone."""
ON_BORDER = 1e-9
"""Of the largest normal force: what the programme of redundant forces leaves of zero at a border
that it holds."""
AT_BORDER = 1e-6
"""Of the friction limit: a slow contact nearer to it is not sure to hold."""
AT_LIMIT = 1e-8
"""Of the friction limit, or of 1 N: a contact this near to it only just sticks."""
TURNS = 1e-4
"""Of the response to forces across a sliding velocity: less is that of a direction known to
rounding over `STOPPED`, where other contacts leave no motion across."""
ALONG = 0.5
"""Cosine: directions of slow contacts that are nearer than this are of one motion."""
SLOWER = 0.1
"""Of the speed of another contact of the same two bodies: so far below `STANDSTILL` the error of a
step leaves a velocity its direction."""
SAME_PIECE = 1e-8
"""Of the size of a matrix, or of 1: pieces of a derivative that agree."""
DECELERATES = 1e-9
"""Of the size of the accelerations: a deceleration that stops a brief slip."""
FIXED_VELOCITY = 1e-8
"""Of the impulses' effect: what indeterminate impulses may change and still fix the velocity."""
CONTRADICTED = 1e-8
"""Of the rates, or of 1 m/s: constraints that a parameter moves apart by more cannot follow it."""
BALANCED = 1e-9
"""Of the weight, and m: what may be left of the equations of a posture that is held."""

# Models, at construction.

UNIT_NORM = 1e-6
"""Norms of quaternions and unit circles may be off one by this: six digits of a file."""
NO_MOTION = 1e-9
"""Of the largest: motions of a contact point in directions in which it does not move."""
CLEARLY_TILTED = 1e-4
"""rad: axes written with five digits are off by less."""
INDEFINITE = 1e-9
"""Of the largest principal moment of all joints: what rounding leaves of a plate's or a rod's."""
