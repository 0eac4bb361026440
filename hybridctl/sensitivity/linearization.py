r"""Linearization of a run: variational flow on its arcs, jumps at its events.

To first order, a perturbation :math:`\delta x_0` of the initial state leads to

.. math:: \delta x(t_{end}) = \Phi_N\, \mathcal G_N \cdots \mathcal G_1\, \Phi_0\, \delta x_0

at the end of the run, with the transition matrix :math:`\Phi_k` of arc k and the jump
:math:`\mathcal G_k` of event k. This is the fundamental solution, [Salt] (27). Isolated events have
linear jumps (`saltation`; the linear time-triggered hybrid system of [RS] 3.2), simultaneous guards
piecewise linear ones (`simultaneous`; [RS] 4.3). Perturbations compare trajectories at equal times.

`linearize` makes a `Linearization`. The flow is linearized when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_callable,
    check_instance,
    check_number,
    check_sequence,
    check_vector,
    format_count,
)
from hybridctl.base.errors import HybridctlError, InputError, SystemDefinitionError
from hybridctl.base.progress import Progress, report_each, report_share
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.model import FieldJacobian
from hybridctl.hybrid.policy import History, Policy
from hybridctl.hybrid.run_check import check_system
from hybridctl.hybrid.system import HybridSystem, as_policy
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.accurate_range import AccurateRange, measure_range
from hybridctl.sensitivity.event_order import (
    EventShifts,
    RunPassage,
    follow_event,
    follow_merged_events,
)
from hybridctl.sensitivity.floquet import FloquetMultipliers, floquet_multipliers
from hybridctl.sensitivity.merged_events import (
    InputResponse,
    MergedEvents,
    PiecewiseAffineJump,
    find_close_events,
)
from hybridctl.sensitivity.phantom_modes import PhantomMotions
from hybridctl.sensitivity.piecewise import EVENT_ACCURACY, PiecewiseLinearJump, are_equal_maps
from hybridctl.sensitivity.propagation import (
    Gain,
    InputChange,
    PerturbationCurve,
    compute_transition_by_steps,
    linearize_field,
    propagate_perturbations,
)
from hybridctl.sensitivity.radius import Radius, compute_radius, find_least_order_change
from hybridctl.sensitivity.saltation import JumpGains
from hybridctl.sensitivity.simultaneous import (
    PhantomInput,
    Simultaneous,
    get_constant_gain,
    jump_derivative,
    linearize_event_under_law,
    make_recorded_law,
)
from hybridctl.sensitivity.symmetry import Symmetry

PhantomGains: TypeAlias = Callable[[int, frozenset[int]], ArrayLike]
"""Gain (nu, ndx) in a phantom mode, given the event and the indices of its guards that fired."""

_MOST_QUICK_STEPS = 500
"""Integration steps of a run up to which `repr` and tracking measure how far its map holds.

Some four runs are simulated for that, which takes half a second or so for a hopper that lands (60
steps). The value is a choice."""
_MAX_INPUT_DIFFERENCE = 1e-6
"""Largest difference of a policy's input from the recorded one, relative to 1 + |u|.

The record of an input is as accurate (`tolerances.INPUT_RECORD_RTOL`)."""


def linearize(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    *,
    policy: Policy | InputLaw | None = None,
    merge: float | None = None,
    phantom_input: PhantomInput = "pushing",
    simultaneous: Simultaneous = "in turn",
    rtol: float = 1e-9,
    atol: float = 1e-9,
    progress: Progress = None,
) -> Linearization:
    """Return the first-order map of a simulated trajectory.

    Args:
        system: The hybrid system that was simulated.
        trajectory: The run.
        policy: Policy that made the run; then the map has its feedback D_x u, in phantom modes that
            of the law which the policy has there. Its laws must be `DifferentiableLaw`, as are
            those of `ReferenceSpreading` and `ClockTracking` outside of interim modes and without
            late detection of events. Or the policy is a `HeldInput`. None: the recorded input is
            replayed open loop.
        merge: Window in s. Events that follow each other within it, in whatever order, are one
            piecewise affine jump (see `merged_events`). The map then holds for perturbations that
            change their order, and warns with `OrderChangeWarning` if one changes the order of
            other events. None: no events are merged.
        phantom_input: See `jump_derivative`. With a policy, its own law counts.
        simultaneous: See `jump_derivative`. Guards of merged events fire in turn.
        rtol: Relative tolerance of every entry of the variational flow on each step.
        atol: Absolute tolerance of every entry, in its unit.
        progress: True prints the share of the events that is linearized on standard error. A
            function is called with it, from 0 to 1. None reports nothing.

    Returns:
        The map. Its flow is computed when it is first needed, which is an error then
        (`SystemDefinitionError`) if a field has no Jacobian.

    Raises:
        InputError: The system or the policy is not that of the trajectory, or a tolerance or the
            window is not positive.
        SystemDefinitionError: A law of the policy has no derivative.
        HybridctlError: An event has no derivative: an error of `jump_derivative` that has the event
            in its message, for merged events the first of them.
    """
    check_instance("system", system, HybridSystem)
    check_instance("trajectory", trajectory, HybridTrajectory)
    check_system(system, trajectory)
    rtol, atol = check_number("rtol", rtol, above=0.0), check_number("atol", atol, above=0.0)
    feedback = None if policy is None else RecordedFeedback(system, trajectory, policy)
    report = report_share(progress, "linearize")
    jumps: list[JumpGains | PiecewiseLinearJump] = []
    for k, event in enumerate(report_each(trajectory.events, len(trajectory.events), report)):
        with _name_event(k, event):
            if feedback is None:
                jump = jump_derivative(
                    system, event, phantom_input=phantom_input, simultaneous=simultaneous
                )
            else:
                own_law = partial(feedback.law_in_event, k)
                jump = linearize_event_under_law(system, event, own_law, simultaneous)
            jumps.append(jump)
    gains = None if feedback is None else feedback.gains()
    merged = list[MergedEvents]()
    if merge is not None:
        window = check_number("merge", merge, above=0.0)
        for k, events in find_close_events(system, trajectory, window):
            law = make_recorded_law(system, events, phantom_input)
            if feedback is not None:
                law = partial(feedback.law_in_event, k)
            with _name_event(k, events[0]):
                motions = PhantomMotions(system, events, law)
                motions.check_orders()
            merged.append(MergedEvents(k, motions))
    return Linearization(
        system=system,
        trajectory=trajectory,
        jumps=tuple(jumps),
        rtol=rtol,
        atol=atol,
        gains=gains,
        merged_events=tuple(merged),
        simultaneous=simultaneous,
        phantom_input=phantom_input,
    )


@dataclass(frozen=True, eq=False, repr=False)
class Linearization:
    """The first-order map of a run, from initial state and input to the final state.

    `linearize` makes it. Its jumps are known then. `transitions`, `arcs` and `accurate_range` are
    computed when they are first needed, and kept.

    Attributes:
        system: The hybrid system.
        trajectory: The run.
        jumps: Jump of each event, linear or piecewise linear.
        rtol: Relative tolerance of every entry of the variational flow.
        atol: Absolute tolerance of every entry.
        gains: Gain K(t) (nu, ndx) of the feedback on each arc. None if the recorded input is
            replayed open loop.
        merged_events: Events that are one piecewise affine jump when the map is called. `jumps`,
            `transitions`, `state_transition` and `derivative` are for perturbations that are too
            small to change their order.
        simultaneous: Whether simultaneous guards fire in turn or stay one event; see
            `jump_derivative`.
        phantom_input: Input in phantom modes without a policy; see `jump_derivative`.
    """

    system: HybridSystem
    trajectory: HybridTrajectory
    jumps: tuple[JumpGains | PiecewiseLinearJump, ...]
    rtol: float
    atol: float
    gains: tuple[Gain, ...] | None = None
    merged_events: tuple[MergedEvents, ...] = ()
    simultaneous: Simultaneous = "in turn"
    phantom_input: PhantomInput = "pushing"

    def __repr__(self) -> str:
        run, kind = self.trajectory, "linear" if self.is_linear else "piecewise linear"
        kind = "piecewise affine" if self.merged_events else kind
        span = f"{run.start:.6g} to {run.end:.6g} s"
        under = "" if self.gains is None else ", under feedback"
        notes = [f"{group.first} to {group.last} merged" for group in self.merged_events]
        # Two borders: that of first order at all, and that of this sequence of events. The first is
        # mostly nearer.
        accurate = self.quick_range
        if accurate is not None and np.isfinite(accurate.size):
            notes.append(f"off by 10 % at |dx0| = {accurate.size:.2g}")
        radius = find_least_order_change(self)
        if radius is not None and np.isfinite(radius):
            notes.append(f"in this order for |dx0| below {radius:.3g}")
        more = "".join(f", {note}" for note in notes)
        return (
            f"Linearization({span}, {format_count(len(self.jumps), 'jump')}, {kind}{under}{more})"
        )

    @property
    def is_linear(self) -> bool:
        """Whether all jumps are linear, and no events are merged.

        Simultaneous guards and resets at a border have piecewise linear jumps, also if their pieces
        are equal; guards that fire "at once" have a linear one if only one of them can be the
        first.
        """
        return not self.merged_events and all(isinstance(jump, JumpGains) for jump in self.jumps)

    # The map

    def __call__(self, dx0: ArrayLike, input_change: InputChange | None = None) -> Array:
        """Return the perturbation of the final state.

        Warns with `OrderChangeWarning` if a perturbation changes the order of events.

        Args:
            dx0: Perturbation (ndx,) of the initial state, or m of them in rows.
            input_change: Change du(t) (nu,) of the input, the same for all perturbations. At an
                event its value at the nominal time of the event counts. None for no change.

        Returns:
            The perturbation (ndx+,), or (m, ndx+).

        Raises:
            InputError: An argument has a wrong shape.
        """
        passage = self.follow(dx0, input_change)
        passage.warn(self.trajectory)
        return passage.state

    def derivative(self, direction: ArrayLike, input_change: InputChange | None = None) -> Array:
        """Return the one-sided derivative of the final state along a direction.

        It is that of perturbations too small to change the order of events, whatever the size of
        the direction is: merged events count as the separate ones that they are in the run.

        Args:
            direction: Direction (ndx,) of the initial state, or m of them in rows.
            input_change: Direction du(t) (nu,) of the input. None for no change.

        Returns:
            The derivative (ndx+,), or (m, ndx+).
        """
        return replace(self, merged_events=()).follow(direction, input_change).state

    def follow(self, dx0: ArrayLike, input_change: InputChange | None = None) -> RunPassage:
        """Return the perturbation of the final state, and the shifts of the events.

        Args:
            dx0: Perturbation (ndx,) of the initial state, or m of them in rows.
            input_change: Change du(t) (nu,) of the input. None for no change.

        Returns:
            The passage.

        Raises:
            InputError: dx0 has the wrong shape.
        """
        z = check_array("dx0", dx0)
        ndx = self.trajectory.arcs[0].space.ndx
        if z.ndim not in (1, 2) or z.shape[-1] != ndx:
            raise InputError(f"dx0 must be of shape ({ndx},) or (m, {ndx}), got {z.shape}")
        shifts, k, arcs = list[EventShifts](), 0, self.trajectory.arcs
        groups = {group.first: group for group in self.merged_events}
        z = self._propagate_arc(0, arcs[0], z, input_change)
        while k < len(self.jumps):
            group = groups.get(k)
            if group is None:
                du = None if input_change is None else input_change(arcs[k].end)
                guards = len(self.trajectory.events[k].guards)
                z, shift = follow_event(self.jumps[k], k, guards, z, du)
            else:
                jump = self.merged_jump(group, input_change)
                z, shift = follow_merged_events(jump, group, z)
                k = group.last
            shifts.append(shift)
            k += 1
            z = self._propagate_arc(k, arcs[k], z, input_change)
        return RunPassage(z, tuple(shifts))

    def propagate(
        self, dx0: ArrayLike, input_change: InputChange | None = None
    ) -> list[PerturbationCurve]:
        """Return one perturbation on every arc, dense in time.

        Args:
            dx0: Perturbation (ndx,) of the initial state.
            input_change: Change du(t) (nu,) of the input. None for no change.

        Returns:
            Curves of columns (ndx, 1), on the arcs of the nominal run. Near an event, where a
            perturbed run has another event count, a perturbation is the difference from the arc
            continued past its end. Between merged events it is that of their order in the run.
        """
        z: Array = check_array("dx0", dx0, (self.trajectory.arcs[0].space.ndx,))
        curves: list[PerturbationCurve] = []
        merged = {group.last: group for group in self.merged_events}
        for k, arc in enumerate(self.trajectory.arcs):
            curves.append(self._propagate_curve(k, arc, z[:, None], input_change))
            if k in merged:
                before = curves[merged[k].first].end[:, 0]
                z = self.merged_jump(merged[k], input_change)(before)
            elif k < len(self.jumps):
                du = None if input_change is None else input_change(arc.end)
                z = self.jumps[k](curves[-1].end[:, 0], du)
        return curves

    # Its parts

    @cached_property
    def accurate_range(self) -> AccurateRange | None:
        """How far the map holds along the direction that it amplifies most: see `measure_range`.

        Some four runs are simulated for it when it is first asked for. None if it cannot be
        measured: the map is under feedback or "at once", no direction has an effect, motions nearby
        show no error that falls with their size, or the flow has no derivative.
        """
        try:
            return measure_range(self)
        except HybridctlError:  # a derivative that does not exist, such as that of a field
            return None

    @property
    def quick_range(self) -> AccurateRange | None:
        """The `accurate_range` of a run of at most 500 steps; None for longer ones."""
        steps = sum(len(arc.breaks) for arc in self.trajectory.arcs)
        return self.accurate_range if steps <= _MOST_QUICK_STEPS else None

    @property
    def state_transition(self) -> Array:
        """The derivative D x(end) / D x(start), (ndx+, ndx).

        It is that of perturbations too small to change the order of events, also if events are
        merged. Piecewise linear jumps have one if their pieces are equal, as those of two feet of
        one body that stop sliding.

        Raises:
            InputError: A jump is piecewise linear with pieces that differ.
        """
        total: Array = np.eye(self.trajectory.arcs[0].space.ndx)
        for k, matrix in enumerate(self.transitions):
            total = matrix @ total
            if k < len(self.jumps):
                total = compute_jump_matrix(self.jumps[k], self.trajectory.events[k], k) @ total
        return total

    @cached_property
    def arcs(self) -> tuple[PerturbationCurve, ...]:
        """The fundamental solutions (ndx, ndx) of the arcs, each from the identity."""
        return tuple(
            self._propagate_curve(k, arc, np.eye(arc.space.ndx), None)
            for k, arc in enumerate(self.trajectory.arcs)
        )

    @cached_property
    def transitions(self) -> tuple[Array, ...]:
        """The transition matrices (ndx, ndx) of the arcs, from start to end."""
        return tuple(self._compute_transition(k, arc) for k, arc in enumerate(self.trajectory.arcs))

    def coefficients(self, arc: Arc, t: ArrayLike) -> FieldJacobian:
        """Return the matrices A and B of the variational equation along an arc, open loop.

        Args:
            arc: An arc of the run.
            t: Time in s, or an array (...) of times.

        Returns:
            A (..., ndx, ndx) as `state` and B (..., ndx, nu) as `input`.
        """
        mode = self.system.mode(arc.mode)
        if isinstance(t, float):
            return linearize_field(mode, t, *arc.state_and_input(t))
        times = np.ravel(t)
        points = zip(times.tolist(), arc(times), arc.input(times), strict=True)
        found = [linearize_field(mode, *point) for point in points]
        a, b = np.array([c.state for c in found]), np.array([c.input for c in found])
        shape = np.shape(t)
        return FieldJacobian(a.reshape(*shape, *a.shape[1:]), b.reshape(*shape, *b.shape[1:]))

    def linear_jump(self, k: int) -> JumpGains:
        """Return the jump of event k.

        Args:
            k: Index of the event.

        Raises:
            InputError: The jump is piecewise linear.
        """
        return _require_linear(self.jumps[k], self.trajectory.events[k], k)

    def merged_jump(
        self, group: MergedEvents, input_change: InputChange | None = None
    ) -> PiecewiseAffineJump:
        """Return the jump of merged events.

        Args:
            group: One of `merged_events`.
            input_change: Change du(t) (nu,) of the input. None for no change.
        """
        between = range(group.first + 1, group.last + 1)
        transitions = [self.transitions[k] for k in between]
        if input_change is None:
            return group.jump(transitions)
        responses = []
        for k in between:
            arc = self.trajectory.arcs[k]
            unperturbed = np.zeros((arc.space.ndx, 1))
            responses.append(self._propagate_curve(k, arc, unperturbed, input_change).end[:, 0])
        return group.jump(transitions, InputResponse(input_change, responses))

    # Further maps

    def closed_loop(
        self,
        gains: Sequence[Gain | ArrayLike],
        phantom_gains: PhantomGains | None = None,
    ) -> Linearization:
        r"""Return the map under the feedback :math:`\delta u = -K z + v`.

        v is the change of the input with which the map is called. Feedback that the map has already
        stays: gains add up.

        Args:
            gains: Gain K (nu, ndx) of each arc, or a function of the time in s.
            phantom_gains: Gain K in the phantom mode of event k where the guards with these indices
                have fired. None for the gain of the arc before the event. Between merged events it
                is not used: the gain there is that of the arc of the run after the same guards, or
                else of the arc before them.

        Returns:
            The map.

        Raises:
            InputError: A gain has the wrong shape, or there is not one for each arc.
        """
        arcs = self.trajectory.arcs
        given = check_sequence("gains", gains)
        if len(given) != len(arcs):
            raise InputError(f"gains must have one entry per arc ({len(arcs)}), got {len(given)}")
        feedback = tuple(
            _check_gain(f"gains[{k}]", gain, arc)
            for k, (gain, arc) in enumerate(zip(given, arcs, strict=True))
        )
        jumps: list[JumpGains | PiecewiseLinearJump] = []
        for k, jump in enumerate(self.jumps):
            before = feedback[k](arcs[k].end)
            if isinstance(jump, JumpGains):
                jumps.append(jump.with_feedback(before))
            else:
                gain = partial(_get_phantom_gain, k, before, phantom_gains)
                jumps.append(jump.with_feedback(gain))
        ends = tuple(gain(arc.end) for gain, arc in zip(feedback, arcs, strict=True))
        merged = tuple(
            group.with_feedback(partial(_get_gain_between, group, ends))
            for group in self.merged_events
        )
        if self.gains is not None:
            feedback = tuple(
                partial(_add_gains, *both) for both in zip(self.gains, feedback, strict=True)
            )
        return replace(self, jumps=tuple(jumps), gains=feedback, merged_events=merged)

    def relinearize(
        self,
        trajectory: HybridTrajectory,
        policy: Policy | InputLaw | None = None,
        merge: float | None = None,
    ) -> Linearization:
        """Return the linearization of a trajectory of the same system, with the same settings.

        Args:
            trajectory: The run.
            policy: See `linearize`.
            merge: See `linearize`.

        Returns:
            The map. It raises the errors of `linearize`.
        """
        return linearize(
            self.system,
            trajectory,
            policy=policy,
            merge=merge,
            phantom_input=self.phantom_input,
            simultaneous=self.simultaneous,
            rtol=self.rtol,
            atol=self.atol,
        )

    def radius(
        self,
        direction: ArrayLike,
        *,
        policy: Policy | InputLaw | None = None,
        event_window: float | None = None,
        error: float = 0.1,
    ) -> Radius:
        """Return how large a perturbation along a direction may be, in units of the direction.

        The radius is where the map is off by a relative error of what it predicts, in the Euclidean
        norm of the tangent space, or where the order of events changes first; see `radius`. Some
        runs from perturbed initial states are simulated for it.

        Args:
            direction: Direction (ndx,) of the initial state.
            policy: Policy that made the run, whose laws have derivatives. None: the recorded input
                is replayed.
            event_window: For maps with simultaneous="at once", the window of `simulate` in s
                within which contacts are one impact. The order changes where their touches get
                farther apart.
            error: Relative error, above 0 and at most 1.

        Returns:
            The radius.

        Raises:
            InputError: The direction has no effect, the map is under feedback and its policy is
                not given, or it is "at once" and its window is not given. Or no run nearby has the
                events of this run.
        """
        return compute_radius(self, direction, policy, event_window, error)

    def floquet_multipliers(
        self, *, symmetry: Symmetry | None = None, tolerance: float = 1e-6
    ) -> FloquetMultipliers:
        """Return the eigenvalues of `state_transition` on a periodic orbit, see `floquet`.

        Args:
            symmetry: Symmetry up to which the orbit closes. None if it closes itself.
            tolerance: Largest gap between final and initial state, relative to 1 + |x|.

        Returns:
            The multipliers.

        Raises:
            InputError: The run does not end as it starts.
        """
        return floquet_multipliers(self, symmetry=symmetry, tolerance=tolerance)

    def _compute_transition(self, k: int, arc: Arc) -> Array:
        """Return the transition matrix (ndx, ndx) of arc k, by compiled steps if it has them."""
        found = None
        if self.gains is None:  # compiled steps have no feedback
            mode = self.system.mode(arc.mode)
            found = compute_transition_by_steps(mode, arc, rtol=self.rtol, atol=self.atol)
        return self.arcs[k].end if found is None else found

    def _propagate_arc(self, k: int, arc: Arc, z: Array, input_change: InputChange | None) -> Array:
        """Return perturbations (..., ndx) at the end of arc k for those at its start."""
        if input_change is None:
            return np.asarray(z @ self.transitions[k].T)
        start = np.atleast_2d(z).T
        end = self._propagate_curve(k, arc, start, input_change).end
        return np.asarray(end.T.reshape(*z.shape[:-1], end.shape[0]))

    def _propagate_curve(
        self, k: int, arc: Arc, start: Array, input_change: InputChange | None
    ) -> PerturbationCurve:
        """Return perturbations along arc k for those at its start, in columns (ndx, m)."""
        mode, gain = self.system.mode(arc.mode), None if self.gains is None else self.gains[k]
        if input_change is not None:
            du = check_callable("input_change", input_change)(arc.start)
            check_vector(f"input_change({arc.start})", du, arc.inputs.shape[2])
        return propagate_perturbations(
            mode, arc, start, input_change, gain, rtol=self.rtol, atol=self.atol
        )


def compute_jump_matrix(jump: JumpGains | PiecewiseLinearJump, event: Event, k: int) -> Array:
    """Return the matrix of a jump, also of a piecewise linear one whose pieces are equal.

    Args:
        jump: The jump.
        event: Its event, for messages.
        k: Index of the event, for messages.

    Returns:
        The matrix (ndx+, ndx). An `InputError` if the jump is piecewise linear.
    """
    if isinstance(jump, PiecewiseLinearJump):
        matrices = [piece.matrix for piece in jump.pieces(accuracy=EVENT_ACCURACY)]
        # As in two feet of one body that stop sliding: whichever is first stops both.
        if are_equal_maps(matrices, EVENT_ACCURACY):
            return matrices[0]
    return _require_linear(jump, event, k).state


def _require_linear(jump: JumpGains | PiecewiseLinearJump, event: Event, k: int) -> JumpGains:
    """Return a jump that is linear.

    Raises:
        InputError: It is piecewise linear. The message names the reason.
    """
    if isinstance(jump, JumpGains):
        return jump
    if len(event.guards) > 1:
        reason = f"guards {event.guards} fire together"
    else:  # the jump's second "guard" is the border (`linearize_at_border`)
        reason = f"guard {event.guards[0]!r} leads to the border of {jump.guards[1]!r}"
    raise InputError(
        f"event {k} at t = {event.time:.9g} s is piecewise linear, as {reason}: apply the "
        "linearization to directions instead"
    )


@dataclass(frozen=True, eq=False)
class RecordedFeedback:
    """The feedback of a policy as it acted in a run: on its arcs and between its guards.

    Attributes:
        system: The hybrid system.
        trajectory: The run.
        policy: The policy that made it.
    """

    system: HybridSystem
    trajectory: HybridTrajectory
    policy: Policy | InputLaw

    def gains(self) -> tuple[Gain, ...]:
        """Return the gain K(t) = -D_x u (nu, ndx) along each arc.

        Raises:
            InputError: The policy does not give the input of the run.
            SystemDefinitionError: A law of the policy has no derivative.
        """
        return tuple(self._make_gain(k) for k in range(len(self.trajectory.arcs)))

    def law_in_event(
        self, k: int, fired: tuple[Event, ...], mode: ModeKey, state: Array
    ) -> DifferentiableLaw:
        """Return the law in a phantom mode of an event.

        Args:
            k: Index of the event, or of the first of merged events.
            fired: Events of single guards that have fired; none for the law before the event.
            mode: Mode to which they lead.
            state: State (nx,) to which they lead.

        Returns:
            The law; a `SystemDefinitionError` if it has no derivative.
        """
        if not fired:
            return self._get_arc_law(k)
        time, past = fired[-1].time, (*self.trajectory.events[:k], *fired)
        return self._get_law(History(mode, time, state, past))

    def _make_gain(self, k: int) -> Gain:
        """Return the gain along arc k, whose policy must give the recorded input at both ends.

        Raises:
            InputError: It does not.
        """
        law, arc = self._get_arc_law(k), self.trajectory.arcs[k]
        for t in (arc.start, arc.end):
            x, recorded = arc.state_and_input(t)
            u = law(t, x)
            scale = 1.0 + np.abs(recorded).max(initial=0.0)
            if (
                np.shape(u) != recorded.shape
                or np.abs(u - recorded).max() > _MAX_INPUT_DIFFERENCE * scale
            ):
                raise InputError(
                    f"policy must be the one of the run: at t = {t:.9g} s in mode {arc.mode!r} it "
                    f"gives {u}, but the input was {recorded}"
                )
        return partial(_evaluate_gain, law, arc)

    def _get_arc_law(self, k: int) -> DifferentiableLaw:
        """Return the law on arc k."""
        arc = self.trajectory.arcs[k]
        events = self.trajectory.events[:k]
        state = events[-1].state_after if events else arc(arc.start)
        return self._get_law(History(arc.mode, arc.start, state, events))

    def _get_law(self, history: History) -> DifferentiableLaw:
        """Return the law of the policy after a history of events.

        Raises:
            SystemDefinitionError: It has no derivative.
        """
        law = as_policy(self.policy, self.system).law(history)
        # A policy that is a constant input has the gain zero. The law alone does not show that: a
        # constant law of another policy may have been chosen by the state, as that of a sampled
        # controller, and has no derivative. The policy alone does not show it either: a system may
        # put a law of its own in its place (`HybridSystem.resolve_policy`). Wrenches leave it
        # constant.
        if isinstance(self.policy, HeldInput) and isinstance(law, HeldInput):
            value, ndx = law.value, self.system.mode(history.mode).space.ndx
            return DifferentiableLaw.held(value, np.zeros_like(value), ndx)
        if isinstance(law, DifferentiableLaw):
            return law
        what = getattr(law, "__qualname__", type(law).__name__)
        raise SystemDefinitionError(
            f"the law of the policy in mode {history.mode!r} at t = {history.time:.9g} s has no "
            f"derivative by the state: it is {what!r}, and has to be a DifferentiableLaw(function, "
            "jacobian, rate).\nA law that is held, delayed or chosen by the state has none; "
            "without policy the linearization is that of the recorded input"
        )


def _evaluate_gain(law: DifferentiableLaw, arc: Arc, t: float) -> Array:
    """Return the gain K = -D_x u (nu, ndx) of a law at the state of an arc."""
    return -law.jacobian(t, arc.state_and_input(t)[0])


def _check_gain(name: str, gain: Gain | ArrayLike, arc: Arc) -> Gain:
    """Return a gain as a function of time, checked at the start of its arc."""
    shape = (arc.inputs.shape[2], arc.space.ndx)
    if callable(gain):
        check_array(f"{name}(t)", gain(arc.start), shape)
        return gain
    return partial(get_constant_gain, check_array(name, gain, shape))


def _add_gains(one: Gain, other: Gain, t: float) -> Array:
    """Return the sum (nu, ndx) of two gains at a time in s; a function that can be pickled."""
    return one(t) + other(t)


def _get_phantom_gain(
    k: int, before: Array, gains: PhantomGains | None, fired: frozenset[int]
) -> Array:
    """Return the gain (nu, ndx) in a phantom mode.

    Args:
        k: Index of the event.
        before: Gain at the end of the arc before the event. It holds until a guard has fired, and
            in phantom modes if no gains are given for them.
        gains: Gains in phantom modes, or None.
        fired: Indices of the guards that have fired.
    """
    if gains is None or not fired:
        return before
    return check_array(f"phantom_gains({k}, {sorted(fired)})", gains(k, fired), before.shape)


def _get_gain_between(group: MergedEvents, ends: tuple[Array, ...], fired: frozenset[int]) -> Array:
    """Return the gain between merged events: of the arc of the run there, else of the one before.

    Args:
        group: The events.
        ends: Gain at the end of each arc of the run.
        fired: Guards that have fired.
    """
    nominal = group.motions.nominal
    # Set i of `nominal` is that of the arc before event first + i.
    return ends[group.first + (nominal.index(fired) if fired in nominal else 0)]


@contextmanager
def _name_event(k: int, event: Event) -> Iterator[None]:
    """Put index, time and guards of an event before the message of an error raised within.

    Args:
        k: Index of the event.
        event: The event.

    Raises:
        HybridctlError: The error, with the longer message.
    """
    try:
        yield
    except HybridctlError as error:
        what = ", ".join(event.guards) or "the input changes"
        error.args = (f"event {k} at t = {event.time:.9g} s ({what}): {error}", *error.args[1:])
        raise
