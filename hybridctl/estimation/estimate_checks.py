"""Checks of the estimates that users hand in."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hybridctl.base.checks import (
    Array,
    check_instance,
    check_number,
    check_semidefinite,
    check_vector,
)
from hybridctl.base.errors import GuardViolatedError
from hybridctl.estimation.estimate import Estimate, nearest_semidefinite
from hybridctl.estimation.model import Model, guard_rates, sees_input
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.system import HybridSystem

_FARTHEST = 4.0  # deviations, of a surface from where it is taken to be


def fitting(system: HybridSystem, estimate: Estimate) -> Estimate:
    """The estimate as read-only arrays, of the sizes of its mode.

    Its covariance must be symmetric and positive semidefinite up to rounding, and is made so
    entirely. Raises `InputError` for anything else, `UnknownNameError` for a mode that is none.
    """
    mode = system.mode(check_instance("estimate", estimate, Estimate).mode)
    mean = check_vector("mean", estimate.mean, mode.space.nx)
    mode.space.check("mean", mean)
    p = nearest_semidefinite(check_semidefinite("covariance", estimate.covariance, mode.space.ndx))
    p.setflags(write=False)
    return replace(estimate, time=check_number("time", estimate.time), mean=mean, covariance=p)


def admitted(model: Model, estimate: Estimate) -> Estimate:
    """The estimate, whose mean is made one that a motion of its mode can have.

    The mean obeys what the mode holds, and guards are not negative there, beyond their tolerance
    and the noise of their place. One may be that rises above zero within `rewind` s: just after an
    event that is where a filter leaves its own means, if that event is late (see `reconcile`), and
    such an estimate may be given back; so may one that has had an event (`since`) and may wait for
    another past its guard. Guards that see the input are not asked: forces jump with it, and an
    estimate knows none.

    Raises `ConstraintViolatedError` and `GuardViolatedError`.
    """
    found = fitting(model.system, estimate)
    mode = model.system.mode(found.mode)
    if mode.held is not None:
        mode.held.check("mean", found.mode, found.mean)
    if found.since == -math.inf:
        _check_guards(model, mode, found.time, found.mean)
    return found


def _check_guards(model: Model, mode: ModeModel, t: float, x: Array) -> None:
    key, rewind, u = mode.key, model.rewind, np.zeros(mode.nu)
    guards = model.system.outgoing(key).guards
    g, offsets = guards.checked_values(key, t, x, u), model.guard_noise.of_all(guards.names)
    allowed = model.tolerances(key) + _FARTHEST * np.sqrt(offsets)
    out = g < -allowed
    if out.any() and guards.jacobian is not None:
        point = mode.calc(t, x, u)
        out &= ~sees_input(point) & (g < -rewind * guard_rates(point))
    if out.any():
        i = int(np.where(out, g / guards.sizes, np.inf).argmin())
        raise GuardViolatedError(
            f"mean {x.tolist()} lies outside mode {key!r} at t = {t:.9g} s: guard "
            f"{guards.names[i]!r} is {g[i]:.6g} and must not be negative, unless it rises above "
            f"zero within {rewind:g} s"
        )
