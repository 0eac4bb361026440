"""Many states of one hybrid system, each simulated with its own events and transition matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_flag,
    check_instance,
    check_interval,
    check_sequence,
    check_vector,
)
from hybridctl.base.errors import HybridctlError, InputError, SimulationError
from hybridctl.base.progress import Progress, report_each, report_share
from hybridctl.base.spaces import VectorSpace
from hybridctl.hybrid.clock import is_far_from_zero
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeKey, ModeModel
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.run import BriefEvent
from hybridctl.hybrid.simulate import (
    DEFAULT_OPTIONS,
    OnJam,
    SimulationOptions,
    new_run,
    simulate,
)
from hybridctl.hybrid.system import HybridSystem, as_policy
from hybridctl.hybrid.zeno import OnZeno, as_zeno_policy
from hybridctl.sampling.lockstep import Lockstep, MemberEnd
from hybridctl.sensitivity.linearization import linearize


@dataclass(frozen=True, eq=False)
class Batch:
    """What became of n members.

    states (n, nx) and modes (n) at the end; nan and None of members that failed. matrices
    (n, ndx, ndx0): D x(end) / D x(start), None where not asked for, nan where there is none. Where
    members end or begin in spaces of several sizes, what is beyond their own is nan. events: of
    each member. errors: by member, why it failed, or has no matrix; a message begins with it.
    """

    states: Array
    modes: tuple[ModeKey | None, ...]
    matrices: Array | None
    events: tuple[tuple[BriefEvent, ...], ...]
    errors: dict[int, HybridctlError]

    def check(self) -> None:
        """Raise `SimulationError` if members failed: how many, and why the first one did."""
        if self.errors:
            first = self.errors[min(self.errors)]
            raise SimulationError(
                f"{len(self.errors)} of {len(self.states)} members failed: {first}"
            ) from first


def simulate_batch(
    system: HybridSystem,
    mode: ModeKey | list[ModeKey],
    x0: ArrayLike | Sequence[ArrayLike],
    t_span: ArrayLike,
    policy: Policy | InputLaw | None = None,
    *,
    sensitivities: bool = False,
    executor: Executor | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-9,
    method: str = "DOP853",
    max_step: float = math.inf,
    max_events: int = 1000,
    event_window: float = 1e-8,
    on_zeno: OnZeno = "rest",
    on_jam: OnJam = "bridge",
    options: SimulationOptions = DEFAULT_OPTIONS,
    progress: Progress = None,
) -> Batch:
    """Simulate the states x0 (n, nx) of a system, all over t_span = (start, end), in s.

    Every member is what `simulate`, and `linearize` where sensitivities are asked for, make of it
    alone, with the same settings; rtol and atol serve both. Members in modes with compiled steps
    (systems of expressions, small robots with contacts) advance together, each with its own step
    lengths and events, if the method is DOP853 and the policy None or a `HeldInput`. Any others
    are simulated one after the other, or by the `executor` if there is one (for processes the
    system and the policy have to pickle).

    mode: of all members, or a list with the mode of each. x0: rows, or a list of states (nx,) where
    modes differ in size.

    progress: True prints the share of the members that have ended on standard error; a function is
    called with it, from 0 to 1.

    A member for which `simulate` or `linearize` raises does not keep the others from going on: it
    is in `Batch.errors`. Raises `InputError` and its kin for arguments that serve no member.
    """
    check_instance("system", system, HybridSystem)
    start, end = check_interval("t_span", t_span)
    check_flag("sensitivities", sensitivities)
    if executor is not None:
        check_instance("executor", executor, Executor)
    zeno = as_zeno_policy(on_zeno)
    system = zeno.extend(system)
    settings: dict[str, Any] = {
        "rtol": rtol,
        "atol": atol,
        "method": method,
        "max_step": max_step,
        "max_events": max_events,
        "event_window": event_window,
        "on_zeno": zeno,
        "on_jam": on_jam,
        "options": options,
    }
    run = new_run(system, as_policy(policy, system), end, None, **settings)
    run = replace(run, bridges=False)  # a member that jams is simulated alone
    modes, states = _starts(system, mode, x0)
    report = report_share(progress, "simulate_batch")
    alone = partial(_alone, system, (start, end), policy, settings, sensitivities)
    held = (policy is None or isinstance(policy, HeldInput)) and system.acting(policy) is policy
    # Flights choose their first step by themselves.
    is_usual = method == "DOP853" and options.first_step is None
    together = is_usual and held and not is_far_from_zero(start, end)
    begun = [system.mode(key) for key in dict.fromkeys(modes)]
    if not (together and any(m.compiled_steps and m.compiled_steps.batched for m in begun)):
        apply = map if executor is None else executor.map
        ends = list(report_each(apply(alone, modes, states), len(states), report))
        return _gathered(ends, begun, sensitivities)
    lockstep = Lockstep(run, modes, states, start, (rtol, atol) if sensitivities else None, report)
    members = enumerate(zip(modes, states, strict=True))
    ends = [lockstep.ends.get(i) or alone(key, x) for i, (key, x) in members]
    return _gathered(ends, begun, sensitivities)


def _starts(
    system: HybridSystem, mode: ModeKey | list[ModeKey], x0: ArrayLike | Sequence[ArrayLike]
) -> tuple[list[ModeKey], list[Array]]:
    """Modes and states of the members, checked."""
    rows = check_sequence("x0", x0)
    modes = mode if isinstance(mode, list) else [mode] * len(rows)
    if len(modes) != len(rows):
        raise InputError(f"mode must have one entry per state ({len(rows)}), got {len(modes)}")
    sizes = {system.mode(key).space.nx for key in dict.fromkeys(modes)}
    if isinstance(x0, np.ndarray) and len(sizes) == 1:
        states = list(check_array("x0", x0, (None, *sizes)))
    else:
        pairs = enumerate(zip(modes, rows, strict=True))
        states = [
            check_vector(f"x0[{i}]", row, system.mode(key).space.nx) for i, (key, row) in pairs
        ]
    spaces = {key: system.mode(key).space for key in dict.fromkeys(modes)}
    if not all(isinstance(space, VectorSpace) for space in spaces.values()):
        for i, (key, state) in enumerate(zip(modes, states, strict=True)):
            spaces[key].check(f"x0[{i}]", state)
    return modes, states


def _alone(
    system: HybridSystem,
    t_span: tuple[float, float],
    policy: Policy | InputLaw | None,
    settings: dict[str, Any],
    sensitivities: bool,
    mode: ModeKey,
    x0: Array,
) -> MemberEnd:
    """The simulation of one member by itself."""
    try:
        run = simulate(system, mode, x0, t_span, policy, **settings)
    except HybridctlError as error:
        return MemberEnd(error=error)
    matrix, failure = None, None
    if sensitivities:
        try:
            tolerances = {"rtol": settings["rtol"], "atol": settings["atol"]}
            matrix = linearize(system, run, **tolerances).state_transition
        except HybridctlError as error:
            failure = error
    events = [BriefEvent.of(event) for event in run.events]
    return MemberEnd(run.final_mode, run.final_state, matrix, events, failure)


def _gathered(ends: Sequence[MemberEnd], modes: Sequence[ModeModel], sensitivities: bool) -> Batch:
    """The batch of all members, which began in these modes."""
    errors = {i: end.error for i, end in enumerate(ends) if end.error is not None}
    for i, error in errors.items():
        error.args = (f"member {i}: {error}", *error.args[1:])
    nx = max((mode.space.nx for mode in modes), default=0)
    ndx = max((mode.space.ndx for mode in modes), default=0)
    return Batch(
        _padded([end.state for end in ends], (nx,)),
        tuple(end.mode for end in ends),
        _padded([end.matrix for end in ends], (ndx, ndx)) if sensitivities else None,
        tuple(tuple(end.events) for end in ends),
        errors,
    )


def _padded(arrays: Sequence[Array | None], least: tuple[int, ...]) -> Array:
    """Arrays in one (n, ...), nan where there is nothing; least: the shape where there are none."""
    shapes = {a.shape for a in arrays if a is not None} or {least}
    if len(shapes) == 1 and not any(a is None for a in arrays):
        return np.array(arrays, dtype=np.float64).reshape(len(arrays), *shapes.pop())
    whole = np.full((len(arrays), *map(max, zip(*shapes, strict=True))), np.nan)
    for i, a in enumerate(arrays):
        if a is not None:
            whole[i][tuple(map(slice, a.shape))] = a
    return whole
