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
    check_hashable,
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
    """The ends of n members.

    Where members begin or end in spaces of several sizes, arrays have the largest, and entries
    beyond a member's own are NaN. Where no member has a last state, or a matrix, sizes are the
    largest of the modes in which members begin; of the mode that was given if there are no members.

    Attributes:
        states: Last states (n, nx); NaN for members that failed.
        modes: Last modes (n); None for members that failed.
        matrices: Derivatives D x(end) / D x(start) (n, ndx, ndx0); NaN for a member that has none.
            None where they are not asked for.
        events: Events of each member.
        errors: By member, why it failed or has no matrix. Messages begin with the member.
    """

    states: Array
    modes: tuple[ModeKey | None, ...]
    matrices: Array | None
    events: tuple[tuple[BriefEvent, ...], ...]
    errors: dict[int, HybridctlError]

    def check(self) -> None:
        """Check that no member failed, and that none lacks a matrix that was asked for.

        Raises:
            SimulationError: If one did: how many, and why the first one did.
        """
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
    """Return the ends of many states of a system that are simulated over one span of time.

    Every member is what `simulate`, and `linearize` where sensitivities are asked for, make of it
    alone, with the same settings. Members in modes with compiled steps (systems of expressions,
    small robots with contacts) advance together, each with its own step lengths and events, if the
    method is DOP853 and the policy None or a `HeldInput`. Others are simulated one after the other,
    or by the executor.

    A member for which `simulate` or `linearize` raises does not keep the others from going on: its
    error is in `Batch.errors`.

    Args:
        system: The system.
        mode: Key of the first mode of all n members, or a list with that of each.
        x0: First states: rows (n, nx), or a list of states (nx,) where modes differ in size.
        t_span: Start and end, s.
        policy: Input of all members, see `simulate`.
        sensitivities: Whether to find the derivative of each last state by the first one.
        executor: Runs members that are simulated one by one. For processes the system and the
            policy have to pickle.
        rtol: Relative tolerance of simulations and transition matrices.
        atol: Absolute tolerance of both.
        method: See `simulate`.
        max_step: See `simulate`.
        max_events: See `simulate`.
        event_window: See `simulate`.
        on_zeno: See `simulate`.
        on_jam: See `simulate`.
        options: See `simulate`.
        progress: True prints the share of the members that have ended on standard error. A function
            is called with it, from 0 to 1.

    Raises:
        InputError: If an argument serves no member.
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
    # A member at a jam is given up in lockstep: alone it is bridged, if that is asked for.
    run = replace(run, bridges=False)
    modes, states = _check_starts(system, mode, x0)
    report = report_share(progress, "simulate_batch")
    simulate_one = partial(_simulate_member, system, (start, end), policy, settings, sensitivities)
    is_unchanged = system.resolve_policy(policy) is policy
    is_held = (policy is None or isinstance(policy, HeldInput)) and is_unchanged
    # Far from zero times are rounded so coarsely that `simulate` shifts its clock.
    # Members that advance together choose their first step by themselves.
    is_usual = method == "DOP853" and options.first_step is None
    together = is_usual and is_held and not is_far_from_zero(start, end)
    keys = modes if modes or isinstance(mode, list) else [mode]
    first_modes = [system.mode(key) for key in dict.fromkeys(keys)]
    if not (together and any(m.compiled_steps and m.compiled_steps.batched for m in first_modes)):
        apply = map if executor is None else executor.map
        ends = list(report_each(apply(simulate_one, modes, states), len(states), report))
        return _make_batch(ends, first_modes, sensitivities)
    lockstep = Lockstep(run, modes, states, start, (rtol, atol) if sensitivities else None, report)
    members = enumerate(zip(modes, states, strict=True))
    ends = [lockstep.ends.get(i) or simulate_one(key, x) for i, (key, x) in members]
    return _make_batch(ends, first_modes, sensitivities)


def _check_starts(
    system: HybridSystem, mode: ModeKey | list[ModeKey], x0: ArrayLike | Sequence[ArrayLike]
) -> tuple[list[ModeKey], list[Array]]:
    """Return mode and first state of each member; arguments are those of `simulate_batch`.

    Raises:
        InputError: If they do not fit.
    """
    rows = check_sequence("x0", x0)
    modes = mode if isinstance(mode, list) else [mode] * len(rows)
    if len(modes) != len(rows):
        raise InputError(f"mode must have one entry per state ({len(rows)}), got {len(modes)}")
    for key in modes:
        check_hashable("key of a mode", key)
    sizes = {system.mode(key).space.nx for key in dict.fromkeys(modes)}
    if isinstance(x0, np.ndarray) and len(sizes) == 1:  # checks of single rows take time
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


def _simulate_member(
    system: HybridSystem,
    t_span: tuple[float, float],
    policy: Policy | InputLaw | None,
    settings: dict[str, Any],
    sensitivities: bool,
    mode: ModeKey,
    x0: Array,
) -> MemberEnd:
    """Return the end of one member that is simulated by itself.

    Args:
        system: The system.
        t_span: Start and end, s.
        policy: Its input.
        settings: Settings of `simulate`.
        sensitivities: Whether to linearize.
        mode: Key of the first mode.
        x0: First state (nx,).
    """
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


def _make_batch(
    ends: Sequence[MemberEnd], first_modes: Sequence[ModeModel], sensitivities: bool
) -> Batch:
    """Return the batch of all members, and put the member before the message of each error.

    Args:
        ends: The ends of all members.
        first_modes: The modes in which they begin: sizes of arrays where all fail.
        sensitivities: Whether matrices are asked for.
    """
    errors = {i: end.error for i, end in enumerate(ends) if end.error is not None}
    for i, error in errors.items():
        error.args = (f"member {i}: {error}", *error.args[1:])
    nx = max((mode.space.nx for mode in first_modes), default=0)
    ndx = max((mode.space.ndx for mode in first_modes), default=0)
    return Batch(
        _stack_padded([end.state for end in ends], (nx,)),
        tuple(end.mode for end in ends),
        _stack_padded([end.matrix for end in ends], (ndx, ndx)) if sensitivities else None,
        tuple(tuple(end.events) for end in ends),
        errors,
    )


def _stack_padded(arrays: Sequence[Array | None], default: tuple[int, ...]) -> Array:
    """Return arrays in one (n, ...), NaN where there is nothing.

    Args:
        arrays: The arrays; None for one that is missing.
        default: Shape of each if all are missing.
    """
    shapes = {a.shape for a in arrays if a is not None} or {default}
    if len(shapes) == 1 and not any(a is None for a in arrays):
        return np.array(arrays, dtype=np.float64).reshape(len(arrays), *shapes.pop())
    whole = np.full((len(arrays), *map(max, zip(*shapes, strict=True))), np.nan)
    for i, a in enumerate(arrays):
        if a is not None:
            whole[i][tuple(map(slice, a.shape))] = a
    return whole
