"""Judges the gradient of a random system against differences of the whole simulated flow.

A scalar of the run, of its states and event times, is followed along a random line of each kind of
unknowns: the initial state, the held inputs, the weights of a feedback, and each parameter.

**Tolerance.** Runs have the tolerance eps = 1e-12. Along a line on which the scalar changes by its
own size over 1/k, a central difference of step h is off by about (k h)^2 + 10 eps / h, at best by
(10 eps k)^(2/3): that is 1e-6 for k = 100. Steps from 1e-8 to 1e-3 are tried until one of them, or
the extrapolation of two to h = 0, agrees with the gradient.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from gradients.random_systems import Case

from hybridctl.base.errors import HybridctlError
from hybridctl.gradients.differentiable import DifferentiableFlow
from hybridctl.gradients.tape import Tape

ACCURACY = 1e-6
"""Largest error of a gradient, relative to itself or 1; see above."""
CONVERGED = 1e-3
"""Change of one-sided differences between two steps up to which they have a limit, relative to 1 or
the gradient: they are off by k h, which is 1e-3 for k = 100 and h = 1e-5."""
FINE = {"rtol": 1e-12, "atol": 1e-12}
STEPS = (1e-5, 1e-4, 1e-6, 3e-5, 3e-4, 3e-6, 1e-7, 1e-3, 1e-8)
"""Steps of the differences, those that decide most cases first."""


class Verdict(NamedTuple):
    """What became of a gradient along a line.

    Attributes:
        unknown: Which unknowns change.
        outcome: "smooth": the gradient is that of the flow. "kink": it is refused, one-sided
            differences have two limits, and what `kink="mean"` and "first" give is between them.
            "passed over": it is refused, and along this line that of
            `kink="mean"` is the flow's. "refused": it is
            refused where the flow jumps, or `kink` gives an approximation. "wrong": the rest.
        error: Difference from central differences, relative to the gradient or 1; for "kink" the
            distance from between the one-sided ones.
        reason: Why the gradient was refused; empty if it was not.
    """

    unknown: str
    outcome: str
    error: float
    reason: str


class Line(NamedTuple):
    """A line through the unknowns of a case.

    Attributes:
        unknown: Which unknowns change.
        record: Returns the run at h along the line, of a flow.
        slope: Returns the derivative along the line, of a run at h = 0.
    """

    unknown: str
    record: Callable[[DifferentiableFlow, float], Tape]
    slope: Callable[[Tape], float]


class Scalar(NamedTuple):
    """A linear function of the states and event times of a run."""

    by_states: np.ndarray
    by_events: np.ndarray

    def value(self, tape: Tape) -> float:
        """Return the scalar of a run."""
        return float(
            (self.by_states * tape.states).sum() + (self.by_events * tape.event_times).sum()
        )


def judge(case: Case, seed: int) -> list[Verdict]:
    """Return the verdict of each kind of unknowns of a case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = replace(case.flow, settings=case.flow.settings | FINE)
        rng = np.random.default_rng([59, seed])
        tape = flow.run(case.x0, case.inputs, case.parameters)
        by_events = rng.normal(size=tape.event_times.shape) * tape.event_mask
        scalar = Scalar(rng.normal(size=tape.states.shape), by_events)
        return [_judge_line(flow, line, scalar) for line in _draw_lines(case, tape, scalar, rng)]


def _draw_lines(case: Case, tape: Tape, scalar: Scalar, rng: np.random.Generator) -> Iterator[Line]:
    """Return lines along the initial state, the inputs, weights of a feedback and parameters."""
    x0, u, p = case.x0, case.inputs, case.parameters
    space = tape.trajectory.arcs[0].space
    dx = rng.normal(size=space.ndx)

    def start(h):
        return space.normalize(space.integrate(np.asarray(x0, dtype=float), h * dx))

    def differentiate(tape, pull_feedback=None):
        return tape.vjp(*scalar, pull_feedback=pull_feedback)

    yield Line(
        "state",
        lambda flow, h: flow.run(start(h), u, p),
        lambda tape: float(differentiate(tape).state @ dx),
    )
    for j, name in enumerate(case.flow.parameter_names):
        dp = np.eye(len(p))[j] * abs(p[j])
        yield Line(
            name,
            lambda flow, h, dp=dp: flow.run(x0, u, p + h * dp),
            lambda tape, dp=dp: float(differentiate(tape).parameters @ dp),
        )
    if u is None:
        return
    du, scale = rng.normal(size=u.shape), np.abs(u).max()
    yield Line(
        "inputs",
        lambda flow, h: flow.run(x0, u + h * du, p),
        lambda tape: float((differentiate(tape).inputs * du).sum()),
    )
    weights = 0.1 * scale * rng.normal(size=(u.shape[1], len(x0)))
    change = scale * rng.normal(size=weights.shape)

    def differentiate_weights(tape):
        found = differentiate(tape, lambda k, by_input: weights.T @ by_input)
        return sum(float(found.inputs[s.hold] @ change @ s.state) for s in tape.samples)

    yield Line(
        "weights",
        lambda flow, h: flow.run_policy(x0, lambda k, x: u[k] + (weights + h * change) @ x, p),
        differentiate_weights,
    )


def _judge_line(flow: DifferentiableFlow, line: Line, scalar: Scalar) -> Verdict:
    """Return the verdict of the gradient along a line."""
    reason, slopes = "", []
    for kink in ("raise", "mean", "first"):
        try:
            slopes.append(line.slope(line.record(replace(flow, kink=kink), 0.0)))
        except HybridctlError as error:
            reason = reason or f"{type(error).__name__}: {error}"
            continue
        if kink == "raise":
            break
    if not slopes:
        return Verdict(line.unknown, "refused", np.inf, reason)
    size = max(1.0, *map(abs, slopes))
    # A mean of two halves is what central differences find: at least two steps tell a kink.
    error, sides = _compare(flow, line, scalar, slopes[0], size, least_steps=2 if reason else 1)
    limits = _find_limits(sides, size) if reason else None
    if limits is not None and abs(limits[1] - limits[0]) > CONVERGED * size:
        low, high = sorted(limits)
        beyond = max(max(low - slope, slope - high) for slope in slopes) / size
        return Verdict(line.unknown, "kink" if beyond <= CONVERGED else "wrong", beyond, reason)
    if error <= ACCURACY:
        return Verdict(line.unknown, "passed over" if reason else "smooth", error, reason)
    return Verdict(line.unknown, "refused" if reason else "wrong", error, reason)


def _compare(
    flow: DifferentiableFlow,
    line: Line,
    scalar: Scalar,
    slope: float,
    size: float,
    least_steps: int,
) -> tuple[float, dict[float, tuple[float, float]]]:
    """Return the error of a slope, and the one-sided differences of all steps that were tried.

    Args:
        flow: The run.
        line: The line.
        scalar: The scalar.
        slope: Its derivative along the line.
        size: Unit of errors.
        least_steps: Number of steps that are tried even if the first ones agree with the slope.
    """
    middle = scalar.value(line.record(flow, 0.0))
    sides, error = dict[float, tuple[float, float]](), np.inf
    for h in STEPS:
        try:
            one, other = (scalar.value(line.record(flow, sign * h)) for sign in (1.0, -1.0))
        except HybridctlError:  # a perturbed run may jam
            continue
        found = [(one - other) / (2.0 * h)]
        for g, pair in sides.items():
            found.append((g**2 * found[0] - h**2 * 0.5 * sum(pair)) / (g**2 - h**2))
        sides[h] = ((one - middle) / h, (middle - other) / h)
        error = min(error, *(abs(each - slope) / size for each in found))
        if error <= ACCURACY and len(sides) >= least_steps:
            break
    return error, sides


def _find_limits(sides: dict[float, tuple[float, float]], size: float) -> np.ndarray | None:
    """Return the limits of both one-sided differences as h goes to zero; None if they have none.

    Noise of 10 eps / h hides the limit below h = 1e-8, and jumps within the event window of a run
    that is level show at longer steps: two successive steps that agree are enough.
    """
    steps = sorted(sides)
    for shorter, longer in pairwise(steps):
        one, other = np.array(sides[shorter]), np.array(sides[longer])
        if np.abs(one - other).max() <= CONVERGED * size:
            return one
    return None
