"""Tolerances of steps and events: what counts as zero, in which unit, relative to what, and why.

What users choose is an argument of `simulate`: rtol and atol of steps, `event_window` (s),
`guard_tolerance` (of a guard's scale), `min_dwell` and `zeno_horizon` (s).
"""

import numpy as np

# Steps.

SPACING = 10.0
"""Times the spacing of numbers at t: no step is shorter, s."""
LEAST_RTOL = 100.0 * np.finfo(np.float64).eps
"""Relative tolerance of a step below which its error estimate is rounding."""
INPUT_RTOL = 1e-6
"""Of the largest input on a step: how well its record is to show what fields do not feel."""
OFF = 1e-5
"""Of what a mode tolerates: a state this far from what it holds is put back on it; of 1e-5 m of a
gap ten times what Newton's method leaves there,"""
EXPLAINED = 100.0
"""Times the tolerance of a step: error of a state that its integration explains. Steps control an
estimate of their error; the error itself is up to three times the tolerance where the curvature of
ground jumps within a step, and below it elsewhere (tests of hybrid, mechanics and attack)."""
FARTHEST = 1e4
"""Times the tolerance of a step and what the state is off: farthest move of a state whose residuals
are explained. Constraints that know a direction only weakly take it a tenth as far."""

# Event times. They are as good as the flow; these only end a search where rounding begins.

ROOT = 1e-15
"""s: a root is known no better,"""
SPACINGS = 8.0
"""nor better than these spacings of numbers at t."""
SHORT = 64.0
"""Spacings of numbers at t: an interval in which eight samples are too close to each other."""

# Guards.

TAIL = 1e-4
"""Of a guard's largest coefficient on a step: its last three may be this large."""
CREEP = 1e-6
"""Of a violation at the start of an arc: how much farther outside the arc may go. Violations are
above 1e-8 of the guard's scale, so that its rounding is 1e-8 of them."""
HOP = 1e-3
"""Of the guard's tolerance: a rise that counts as one. Rounding of the guard is 1e-8 of it."""
OUTSIDE = 10.0
"""Times the guard's tolerance: an arc that begins farther outside fires at once."""

# Events.

POLE = 1e-2
"""Of a guard's scale: one that is farther outside where it fires has not come through zero."""
SHRUNK = 1e-11
"""s: steps that have become this short on an arc end at a pole,"""
SHRINKS = 1e-2
"""if they are this part of its longest."""
BRIEF = 1e-8
"""s: where a run cannot go on, steps this short are those of a pole of the forces: cut off.
Nor are guards resolved any further."""
UNSOUND = 1e-6
"""Of a guard's scale: where a run cannot go on, an arc whose guards end farther outside is cut.
Outputs at the end of an arc whose guards are farther outside are those just before a jump."""
SAME_STATE = 1e-6
"""Of a coordinate, or of 1: states after an event, by several orders of its guards, that agree."""
SLOWEST = 0.98
"""Of the window before: windows that shrink by no more are no accumulation."""
STEADY = 0.1
"""Ratios of successive windows that agree to this are those of a geometric sequence."""
FORCED = 10.0
"""Times what the flow makes of the rate of a guard, up to which rest takes a rate away."""
