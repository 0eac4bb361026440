r"""The first-order map of a whole trajectory: variational flow on its arcs, jumps at its events.

Linear through isolated events and piecewise linear through simultaneous ones,

.. math:: \delta x(t_{end}) = \Phi_N\, \mathcal G_N \cdots \mathcal G_1\, \Phi_0\, \delta x_0,

with deviations at fixed time: the fundamental solution, [Salt] (27); LTTHS and PTTHS of [RS] 3.2
and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeAlias, TypeVar

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
)
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.base.progress import Report, report_each
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.model import FieldJacobian
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.run_check import check_system
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.feedback import Feedback
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.nearby import (
    InputResponse,
    NearbyEvents,
    PiecewiseAffineJump,
    nearby_events,
)
from hybridctl.sensitivity.order import EventShifts, RunPassage, through_event, through_events
from hybridctl.sensitivity.phantoms import Phantoms
from hybridctl.sensitivity.pieces import EVENT_ACCURACY, alike
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump
from hybridctl.sensitivity.simultaneous import (
    PhantomInput,
    Simultaneous,
    constant_gain,
    held_law,
    jump_derivative,
    jump_under,
)
from hybridctl.sensitivity.variation import (
    Gain,
    InputChange,
    Variation,
    along,
    coefficients,
    transition,
)

M = TypeVar("M", bound="FirstOrderMap")
PhantomGains: TypeAlias = Callable[[int, frozenset[int]], ArrayLike]


@dataclass(frozen=True, eq=False)
class FirstOrderMap:
    """The first-order map of `trajectory`: of initial state and input against the final state.

    It is what a `Linearization` knows without its orbit and its radius.

    `jumps` has one entry per event, linear or piecewise linear. rtol, atol: of the flow.
    gains: of the feedback, one K(t) (nu, ndx) per arc, or None where the input is that of the
    record. nearby: events that are one piecewise affine jump, where the map is asked for a
    deviation; `jumps`, `transitions` and `state_transition` are of deviations that are too small
    to change their order. simultaneous: see `jump_derivative`.
    """

    system: HybridSystem
    trajectory: HybridTrajectory
    jumps: tuple[JumpGains | PiecewiseLinearJump, ...]
    rtol: float
    atol: float
    gains: tuple[Gain, ...] | None = None
    nearby: tuple[NearbyEvents, ...] = ()
    simultaneous: Simultaneous = "in turn"

    @classmethod
    def of(
        cls: type[M],
        system: HybridSystem,
        trajectory: HybridTrajectory,
        *,
        policy: Policy | InputLaw | None,
        merge: float | None,
        simultaneous: Simultaneous,
        rtol: float,
        atol: float,
        phantom_input: PhantomInput = "pushing",
        report: Report | None = None,
    ) -> M:
        """The map of a simulated trajectory, see `linearize`."""
        check_instance("system", system, HybridSystem)
        check_instance("trajectory", trajectory, HybridTrajectory)
        check_system(system, trajectory)
        rtol, atol = check_number("rtol", rtol, above=0.0), check_number("atol", atol, above=0.0)
        feedback = None if policy is None else Feedback(system, trajectory, policy)
        jumps: list[JumpGains | PiecewiseLinearJump] = []
        reported = report_each(trajectory.events, len(trajectory.events), report)
        for k, event in enumerate(reported):
            with _naming(k, event):
                if feedback is None:
                    jump = jump_derivative(
                        system, event, phantom_input=phantom_input, simultaneous=simultaneous
                    )
                else:
                    jump = jump_under(system, event, partial(feedback.after, k), simultaneous)
                jumps.append(jump)
        gains = None if feedback is None else feedback.gains()
        nearby = list[NearbyEvents]()
        if merge is not None:
            for k, events in nearby_events(
                system, trajectory, check_number("merge", merge, above=0.0)
            ):
                law = held_law(system, events, phantom_input)
                if feedback is not None:
                    law = partial(feedback.after, k)
                with _naming(k, events[0]):
                    phantoms = Phantoms(system, events, law)
                    phantoms.check()
                nearby.append(NearbyEvents(k, phantoms))
        return cls(system, trajectory, tuple(jumps), rtol, atol, gains, tuple(nearby), simultaneous)

    def closed_loop(
        self: M,
        gains: Sequence[Gain | ArrayLike],
        phantom_gains: PhantomGains | None = None,
    ) -> M:
        r"""The map under feedback :math:`\delta u = -K z + v`, v being the change asked for.

        gains: K (nu, ndx) of each arc, or functions of t. phantom_gains: K in the phantom mode of
        event k where the guards `fired` (indices into its guards) have fired; without it the
        gain of the arc before the event. Feedback that the map has already stays, gains add up.
        Raises `InputError` for sizes that do not fit.
        """
        arcs = self.trajectory.arcs
        given = check_sequence("gains", gains)
        if len(given) != len(arcs):
            raise InputError(f"gains must have one entry per arc ({len(arcs)}), got {len(given)}")
        laws = tuple(
            _gain(f"gains[{k}]", gain, arc)
            for k, (gain, arc) in enumerate(zip(given, arcs, strict=True))
        )
        jumps: list[JumpGains | PiecewiseLinearJump] = []
        for k, jump in enumerate(self.jumps):
            before = laws[k](arcs[k].end)
            if isinstance(jump, JumpGains):
                jumps.append(jump.fed_back(before))
            else:
                jumps.append(jump.fed_back(partial(_phantom_gain, k, before, phantom_gains)))
        ends = tuple(law(arc.end) for law, arc in zip(laws, arcs, strict=True))
        nearby = tuple(group.fed_back(partial(_nearby_gain, group, ends)) for group in self.nearby)
        if self.gains is not None:
            laws = tuple(partial(_sum, *both) for both in zip(self.gains, laws, strict=True))
        return replace(self, jumps=tuple(jumps), gains=laws, nearby=nearby)

    @property
    def is_linear(self) -> bool:
        """Whether no event has simultaneous guards, and none are one piecewise affine jump."""
        return not self.nearby and all(isinstance(jump, JumpGains) for jump in self.jumps)

    @property
    def state_transition(self) -> Array:
        """The derivative D x(end) / D x(start), (ndx+, ndx); `InputError` if piecewise linear.

        Simultaneous guards do not keep it from being linear where the order they fire in makes no
        difference, such as that of two feet of one body that stop sliding.
        """
        total: Array = np.eye(self.trajectory.arcs[0].space.ndx)
        for k, matrix in enumerate(self.transitions):
            total = matrix @ total
            if k < len(self.jumps):
                total = jump_matrix(self.jumps[k], self.trajectory.events[k], k) @ total
        return total

    @cached_property
    def arcs(self) -> tuple[Variation, ...]:
        """The fundamental solutions of the arcs, each from the identity, dense in time."""
        return tuple(
            self._along(k, arc, np.eye(arc.space.ndx), None)
            for k, arc in enumerate(self.trajectory.arcs)
        )

    @cached_property
    def transitions(self) -> tuple[Array, ...]:
        """The transition matrices (ndx, ndx) of the arcs, from start to end."""
        return tuple(self._transition(k, arc) for k, arc in enumerate(self.trajectory.arcs))

    def _transition(self, k: int, arc: Arc) -> Array:
        found = None
        if self.gains is None:
            mode = self.system.mode(arc.mode)
            found = transition(mode, arc, rtol=self.rtol, atol=self.atol)
        return self.arcs[k].end if found is None else found

    def coefficients(self, arc: Arc, t: ArrayLike) -> FieldJacobian:
        """The matrices A (..., ndx, ndx) and B (..., ndx, nu) at times t (...) of an arc."""
        mode = self.system.mode(arc.mode)
        if isinstance(t, float):
            return coefficients(mode, t, *arc.state_and_input(t))
        times = np.ravel(t)
        at = zip(times.tolist(), arc(times), arc.input(times), strict=True)
        found = [coefficients(mode, *point) for point in at]
        a, b = np.array([c.state for c in found]), np.array([c.input for c in found])
        shape = np.shape(t)
        return FieldJacobian(a.reshape(*shape, *a.shape[1:]), b.reshape(*shape, *b.shape[1:]))

    def linear_jump(self, k: int) -> JumpGains:
        """The jump of event k. Raises `InputError` where its guards are simultaneous."""
        return _linear(self.jumps[k], self.trajectory.events[k], k)

    def __call__(self, dx0: ArrayLike, input_change: InputChange | None = None) -> Array:
        """The deviation (ndx+,) at the end for dx0 (ndx,), or (m, ndx+) for m of them in rows.

        `input_change`: du(t) (nu,), added to the input of the trajectory; at an event it counts
        as it is just before it.
        """
        passage = self.follow(dx0, input_change)
        passage.warn(self.trajectory)
        return passage.state

    def derivative(self, direction: ArrayLike, input_change: InputChange | None = None) -> Array:
        """The one-sided derivative (ndx+,) of the end along a direction (ndx,), or (m, ndx) rows.

        It is that of deviations that are too small to change the order of events: no query of this
        size. `input_change` is the direction of the input.
        """
        return replace(self, nearby=()).follow(direction, input_change).state

    def again(
        self: M,
        trajectory: HybridTrajectory,
        policy: Policy | InputLaw | None = None,
        merge: float | None = None,
    ) -> M:
        """The linearization of a trajectory of the same system, with the same settings."""
        return self.of(
            self.system,
            trajectory,
            policy=policy,
            merge=merge,
            simultaneous=self.simultaneous,
            rtol=self.rtol,
            atol=self.atol,
        )

    def follow(self, dx0: ArrayLike, input_change: InputChange | None = None) -> RunPassage:
        """What becomes of deviations dx0 (ndx,) or (m, ndx), and when they have the events."""
        z = check_array("dx0", dx0)
        ndx = self.trajectory.arcs[0].space.ndx
        if z.ndim not in (1, 2) or z.shape[-1] != ndx:
            raise InputError(f"dx0 must be of shape ({ndx},) or (m, {ndx}), got {z.shape}")
        shifts, k, arcs = list[EventShifts](), 0, self.trajectory.arcs
        groups = {group.first: group for group in self.nearby}
        z = self._flow(0, arcs[0], z, input_change)
        while k < len(self.jumps):
            group = groups.get(k)
            if group is None:
                du = None if input_change is None else input_change(arcs[k].end)
                guards = len(self.trajectory.events[k].guards)
                z, shift = through_event(self.jumps[k], k, guards, z, du)
            else:
                z, shift = through_events(self.nearby_jump(group, input_change), group, z)
                k = group.last
            shifts.append(shift)
            k += 1
            z = self._flow(k, arcs[k], z, input_change)
        return RunPassage(z, tuple(shifts))

    def nearby_jump(
        self, group: NearbyEvents, input_change: InputChange | None = None
    ) -> PiecewiseAffineJump:
        """The jump of one of `nearby`, under a change of the input."""
        between = range(group.first + 1, group.last + 1)
        flows = [self.transitions[k] for k in between]
        if input_change is None:
            return group.jump(flows)
        left = []
        for k in between:
            arc = self.trajectory.arcs[k]
            left.append(self._along(k, arc, np.zeros((arc.space.ndx, 1)), input_change).end[:, 0])
        return group.jump(flows, InputResponse(input_change, left))

    def along(self, dx0: ArrayLike, input_change: InputChange | None = None) -> list[Variation]:
        """The deviations of one dx0 (ndx,) on every arc, dense in time, as columns (ndx, 1).

        An arc is that of the nominal trajectory: near an event, where a perturbed trajectory has
        another event count, its deviation is that from the arc continued past its end. Between
        events that are one jump it is that of their order in the run.
        """
        z: Array = check_array("dx0", dx0, (self.trajectory.arcs[0].space.ndx,))
        found: list[Variation] = []
        merged = {group.last: group for group in self.nearby}
        for k, arc in enumerate(self.trajectory.arcs):
            found.append(self._along(k, arc, z[:, None], input_change))
            if k in merged:
                before = found[merged[k].first].end[:, 0]
                z = self.nearby_jump(merged[k], input_change)(before)
            elif k < len(self.jumps):
                du = None if input_change is None else input_change(arc.end)
                z = self.jumps[k](found[-1].end[:, 0], du)
        return found

    def _flow(self, k: int, arc: Arc, z: Array, input_change: InputChange | None) -> Array:
        """Deviations at the end of an arc for those at its start."""
        if input_change is None:
            return np.asarray(z @ self.transitions[k].T)
        start = np.atleast_2d(z).T
        end = self._along(k, arc, start, input_change).end
        return np.asarray(end.T.reshape(*z.shape[:-1], end.shape[0]))

    def _along(self, k: int, arc: Arc, start: Array, input_change: InputChange | None) -> Variation:
        mode, gain = self.system.mode(arc.mode), None if self.gains is None else self.gains[k]
        if input_change is not None:
            du = check_callable("input_change", input_change)(arc.start)
            check_vector(f"input_change({arc.start})", du, arc.inputs.shape[2])
        return along(mode, arc, start, input_change, gain, rtol=self.rtol, atol=self.atol)


def jump_matrix(jump: JumpGains | PiecewiseLinearJump, event: Event, k: int) -> Array:
    """The matrix (ndx+, ndx) of event k. Raises `InputError` where it is piecewise linear."""
    if isinstance(jump, PiecewiseLinearJump):
        matrices = [piece.matrix for piece in jump.pieces(accuracy=EVENT_ACCURACY)]
        if alike(matrices, EVENT_ACCURACY):
            return matrices[0]
    return _linear(jump, event, k).state


def _linear(jump: JumpGains | PiecewiseLinearJump, event: Event, k: int) -> JumpGains:
    if not isinstance(jump, JumpGains):
        raise InputError(
            f"event {k} at t = {event.time:.9g} s is piecewise linear, as guards "
            f"{event.guards} fire together: apply the linearization to directions instead"
        )
    return jump


def _gain(name: str, gain: Gain | ArrayLike, arc: Arc) -> Gain:
    """A gain as a function of time, checked at the start of its arc."""
    shape = (arc.inputs.shape[2], arc.space.ndx)
    if callable(gain):
        check_array(f"{name}(t)", gain(arc.start), shape)
        return gain
    return partial(constant_gain, check_array(name, gain, shape))


def _sum(one: Gain, other: Gain, t: float) -> Array:
    return one(t) + other(t)


def _phantom_gain(
    k: int, before: Array, gains: PhantomGains | None, fired: frozenset[int]
) -> Array:
    """The gain in the phantom modes of event k; before: that of the arc before it."""
    if gains is None or not fired:
        return before
    return check_array(f"phantom_gains({k}, {sorted(fired)})", gains(k, fired), before.shape)


def _nearby_gain(group: NearbyEvents, ends: tuple[Array, ...], fired: frozenset[int]) -> Array:
    """The gain between events that are one jump: that of the arc there, or of the one before."""
    nominal = group.phantoms.nominal
    return ends[group.first + (nominal.index(fired) if fired in nominal else 0)]


@contextmanager
def _naming(k: int, event: Event) -> Iterator[None]:
    """Name the event in errors raised within: its index, time and guards."""
    try:
        yield
    except HybridctlError as error:
        what = ", ".join(event.guards) or "the input changes"
        error.args = (f"event {k} at t = {event.time:.9g} s ({what}): {error}", *error.args[1:])
        raise
