"""Tolerances of steps, guards and events: what counts as zero, in which unit, relative to what.

Those that users choose are arguments of `simulate`: rtol and atol of steps and `event_window`;
`guard_tolerance` of its `SimulationOptions`; `horizon` and `min_dwell` of its `ZenoPolicy`. The
numbers here follow from rounding, from those tolerances, or from a measurement, and stay as they
are. *Spacings* are distances between adjacent floating-point numbers at the time t (`math.ulp`).
"""

import numpy as np

# Steps.

MIN_STEP_SPACINGS = 10.0
"""Length of the shortest step, in spacings at t. It is that of scipy's methods."""
MIN_RTOL = 100.0 * np.finfo(np.float64).eps
"""Smallest relative tolerance of a step; below it an error estimate is rounding. As in scipy."""
INPUT_RECORD_RTOL = 1e-6
"""Accuracy of the recorded input of a step, relative to its largest input on the step.

It only concerns inputs that the field does not feel. Of others the error of the step takes care
(tests/hybrid/test_tolerances.py has the border)."""
MIN_PROJECTED_RESIDUAL = 1e-5
"""Residual of a constraint above which a state is projected, relative to the mode's tolerance.

Of the 1e-5 m that gaps are allowed it is ten times what Newton's method leaves there."""
MAX_ERROR_RATIO = 100.0
"""Error of a state that its integration explains, relative to the tolerance of the step.

Steps control an estimate of their error. The error itself is up to three times the tolerance where
the curvature of ground jumps within a step, and below it elsewhere (measured in the tests of
hybrid, mechanics and attack)."""
MAX_PROJECTION_RATIO = 1e4
"""Longest move of an explained state by its projection, relative to what the state can be off.

Constraints that hardly depend on a direction move it by up to a tenth of this (measured too)."""

# Event times. They are as accurate as the flow; these only end a search where rounding begins.

EVENT_TIME_TOLERANCE = 1e-15
"""Accuracy of an event time close to t = 0, s. Spacings are wider elsewhere."""
EVENT_TIME_SPACINGS = 8.0
"""Accuracy of an event time, in spacings at t. The value is a choice."""
MIN_SAMPLED_SPACINGS = 64.0
"""Length of an interval in which the eight samples of a step are distinct times, in spacings at t.

The first two nodes are a twentieth of the interval apart, which is three spacings."""
EVENT_RESOLUTION = 1e-8
"""Duration that is not resolved any further, s: of pieces of guards, and of zeros of guards.

It is the default event window. Where forces have a pole, steps this short approach it."""

# Guards.

MAX_SERIES_TAIL = 1e-4
"""Largest last three coefficients of a resolved guard, relative to its largest coefficient."""
MAX_VIOLATION_GROWTH = 1e-6
"""Growth of a violation at the start of an arc that is no event, relative to the violation.

Violations are above 1e-8 of the guard's scale, so that its rounding is 1e-8 of them."""
MIN_RISE = 1e-3
"""Smallest rise of a guard that counts as one, relative to the guard tolerance.

Rounding of the guard is 1e-8 of the tolerance."""
MAX_START_VIOLATION = 10.0
"""Violation with which an arc may begin, relative to the guard tolerance; above it fires at once.

Bounces that stay below the tolerance leave some of it; nothing leaves ten times as much."""

# Events.

SAME_INSTANT = 1e-11
"""Longest time between events at one instant, s: a thousandth of the default event window."""
SAME_STATE_TOLERANCE = 1e-6
"""Difference of states that are one state after an event, of each coordinate or of 1.

It compares several orders of guards, and the states before and after an event that may be idle."""
MAX_WINDOW_RATIO = 0.98
"""Largest ratio of successive windows, or jumps, of accumulating events.

At larger ones a sum is not predicted: an error of the ratio of 1e-3 changes it by 5 %."""
WINDOW_RATIO_SPREAD = 0.1
"""Largest difference between ratios of windows and jumps of a geometric sequence.

The value is a choice: the ratios of a geometric sequence are equal but for rounding."""
MAX_REST_RATE_RATIO = 10.0
"""Largest rate of a guard that rest takes away, relative to what the flow makes of it meanwhile.

A ball has a ratio of less than one half, whatever its restitution. The value is a choice."""

# Poles of contact forces, where a run cannot go on in its mode.

MAX_GUARD_FALL = 1e-2
"""Depth below zero at which a guard has not come through zero, relative to its scale.

A guard that falls through zero is within its rounding of zero at its event."""
POLE_STEP_LENGTH = 1e-11
"""Length to which steps shrink before a pole, s."""
POLE_STEP_RATIO = 1e-2
"""Length to which steps shrink before a pole, relative to the longest step of the arc.

On a short arc all steps are short: one without a step of `POLE_STEP_LENGTH` over this is none that
leads to a pole (test_a_foot_that_stops_at_once_is_no_pole)."""
MAX_STEP_VIOLATION = 1e-6
"""Depth below zero at which guards are outside at the end of a step, relative to their scales.

Rounding and the guard tolerance leave 1e-8. A step that ends farther outside goes past a pole or
past a jump of forces."""
