"""The edges of a contact mode: which reset its guards lead to, and the resets with impulses.

`ContactEdges` chooses the reset of guards that fire together: an impact, a stop of sliding, the
beginning of sliding, a departure from a piece of a surface, a release, or an error where sliding
contacts jam. It also gives the rest after accumulated impacts (Zeno), and the regularised passage
past a jam (Painleve), in which the closed contacts let go for a moment and hit again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import JammingError, RiserError
from hybridctl.hybrid.mode import Bridge, Edge, Reset
from hybridctl.hybrid.model import (
    GuardJacobian,
    Jump,
    JumpPoint,
    ModeKey,
    ResetBorder,
    ResetJacobian,
    ResetModel,
)
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, STICK, Modes
from hybridctl.mechanics.impacts.impact import (
    SEPARATION_SPEED,
    ImpactResult,
    solve_accumulated_impacts,
    solve_impact,
)
from hybridctl.mechanics.impacts.impact_batches import ImpactBatch
from hybridctl.mechanics.impacts.impact_derivatives import differentiate_impact
from hybridctl.mechanics.impacts.stick_slip_boundary import (
    check_sticking,
    find_stick_slip_boundary,
    list_holding_contacts,
)
from hybridctl.mechanics.impacts.stick_slip_resets import Breakaway, SlidingStop
from hybridctl.mechanics.modes.dynamics import ON_SURFACE, ContactDynamics
from hybridctl.mechanics.modes.guards import ContactGuard, list_closing_guards
from hybridctl.mechanics.modes.jamming import compute_response_ratio
from hybridctl.mechanics.modes.phase import contact_modes
from hybridctl.mechanics.terms.contact_terms import TermValues

TOUCHING = 2e-8
"""Gap up to which a contact touches where others hit, m or rad.

It is above what event times leave, which are known to 1e-9 s."""
PENETRATION = 1e-6
"""Depth in a surface from which time stepping does not start, m. A choice."""
PASSAGE_DEPTH = 1e-7
"""Depth of a contact at which a passage past a jam ends, m: a tenth of `PENETRATION`."""
_RESTING_SPEED = 1e-4
"""Normal speed up to which an open contact on its surface takes part in an impact of others, m/s.

Bounces that have died out leave less."""
NEAR_JAM = 1e-4
"""Response ratio up to which a jam is taken for real where its guard has fired.

The guard fires at `tolerances.JAMMED`; this leaves room for the error of the event time."""
_MAX_PASSAGE, _MIN_PASSAGE = 1e-4, 1e-7
"""Longest and shortest duration of a passage past a jam, s. A choice."""


@dataclass(frozen=True)
class ContactEdges:
    """The edges behind the guards of a contact mode.

    Attributes:
        dynamics: Dynamics of the robot with its contacts.
        modes: Modes of all contacts.
        guards: The guards of this mode.
    """

    dynamics: ContactDynamics
    modes: Modes
    guards: tuple[ContactGuard, ...]
    _known_edges: dict[tuple[str, ...], Edge | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """Return the edge of guards that fire together, None if a name is no guard of this mode.

        It is made once: an event and its derivatives ask for it some five times.
        """
        if fired not in self._known_edges:
            self._known_edges[fired] = self._make_edge(fired)
        return self._known_edges[fired]

    def _make_edge(self, fired: tuple[str, ...]) -> Edge | None:
        """Return the edge of guards that fire together, see `edge`."""
        events = self._find_guards(fired)
        if events is None:
            return None
        after, hit = list(self.modes), set()
        stops = {
            guard.contact: name
            for guard, name in zip(events, fired, strict=True)
            if guard.kind == "sticks"
        }
        for guard in events:
            if guard.kind == "closes":
                hit.add(guard.contact)
            elif guard.kind != "jams" and after[guard.contact] != OPEN and not stops:
                after[guard.contact] = guard.mode_after
        # A guard that fires together with a stop was evaluated beyond it, where friction has turned
        # round: the stop alone counts.
        if any(guard.kind == "jams" for guard in events) and not stops:
            return Edge(_Jam(self.dynamics, self.modes))
        if hit:
            return Edge(ImpactReset(self.dynamics, frozenset(hit), self.modes))
        if stops:
            return Edge(SlidingStop(self.dynamics, tuple(after), stops))
        leaving = tuple(guard.contact for guard in events if guard.kind == "leaves")
        if leaving:
            return Edge(_Departure(self.dynamics, tuple(after), leaving=leaving))
        return Edge(self._make_release(events, fired, tuple(after)))

    def rest(self, fired: tuple[str, ...]) -> Edge | None:
        """Return the edge on which contacts whose impacts accumulate close without a rebound.

        Args:
            fired: Names of the guards of these contacts.

        Returns:
            The edge, None if no guard closes a contact.
        """
        names = list_closing_guards(self.dynamics.contacts)
        hit = [i for i, name in enumerate(names) if name in fired]
        if not hit:
            return None
        return Edge(_RestReset(self.dynamics, frozenset(hit), self.modes))

    def bridge(self, t: float, x: Array, u: Array) -> Bridge | None:
        """Return the regularised passage past a jam.

        The closed contacts let go until the first contact is `PASSAGE_DEPTH` deep, if it is so
        within 1e-7 to 1e-4 s, otherwise for the nearer of these two times. Then all that touch hit
        at once.

        Args:
            t: Time, s.
            x: State (q, v) at the jam.
            u: Input (nu,).

        Returns:
            The passage. None between bounces of a contact with restitution, which is open and on
            its surface: the passage would take the place of bounces, however many.
        """
        dynamics, n = self.dynamics, self.dynamics.robot.nq
        q, v = x[:n], x[n:]
        terms, count = dynamics.copy_terms(q, v), len(dynamics.contacts)
        bounces = (dynamics.restitution > 0.0) & (terms.gaps <= PENETRATION)
        if any(bounces[i] for i, mode in enumerate(self.modes) if mode == OPEN):
            return None
        fall = terms.drift + terms.jacobian @ dynamics.robot.free_acceleration(q, v, u)
        each = zip(terms.gaps.tolist(), terms.rates[:count].tolist(), fall.tolist(), strict=False)
        length = min(
            [
                _MAX_PASSAGE,
                *(_compute_closing_time(PASSAGE_DEPTH + gap, rate, a) for gap, rate, a in each),
            ]
        )
        flying = tuple(
            mode if i in dynamics.pressed_contacts else OPEN for i, mode in enumerate(self.modes)
        )
        closed = frozenset(dynamics.phase(self.modes).solid_contacts)
        return Bridge(
            flying, max(length, _MIN_PASSAGE), Edge(_PassageEnd(dynamics, closed, flying))
        )

    def _make_release(
        self, events: Sequence[ContactGuard], fired: Sequence[str], after: Modes
    ) -> ResetModel:
        """Return the reset of contacts that open, and of others that begin to slide.

        The friction cone of a contact vanishes with its normal force. So "slips" of a contact that
        opens is a consequence of that, and takes no part.

        Args:
            events: The guards, of the kinds "opens" and "slips".
            fired: Their names.
            after: Modes of all contacts after them.
        """
        opening = {guard.contact for guard in events if guard.kind == "opens"}
        begin = {guard.contact for guard in events if guard.kind == "slips"} - opening
        parts = [
            name
            for guard, name in zip(events, fired, strict=True)
            if guard.kind == "opens" or guard.contact in begin
        ]
        took_part = None if len(parts) == len(fired) else tuple(parts)
        if begin:
            return Breakaway(self.dynamics, self.modes, after, tuple(sorted(begin)), took_part)
        stuck = [i for i in opening if self.modes[i] == STICK]
        leaving = (stuck[0], self.modes) if stuck and len(opening) == 1 else None
        return Release(self.dynamics, after, took_part, keeps_field=True, leaving_stuck=leaving)

    def _find_guards(self, fired: Sequence[str]) -> list[ContactGuard] | None:
        """Return the guards of these names, None if a name is no guard of this mode."""
        known = self._guards_by_name
        return [known[name] for name in fired] if known.keys() >= set(fired) else None

    @cached_property
    def _guards_by_name(self) -> dict[str, ContactGuard]:
        return {guard.name(self.dynamics.contacts): guard for guard in self.guards}


@dataclass(frozen=True)
class ImpactReset(ResetModel):
    """The impact of contacts that hit, of closed ones, and of all others that touch.

    The report of its jump is the `ImpactResult`. Closed contacts of bodies that no impulse reaches
    take no part, and keep their mode. A contact whose guard is below zero, but that separates
    already, does not hit: the law of impact would take back a part of its speed. If others send it
    back, it has an event of its own. Contacts that hit while they are still above their surface, as
    in a wide event window, are put on it.

    Attributes:
        dynamics: Dynamics of the robot with its contacts.
        hit: Contacts whose guards fired.
        modes: Modes before.
    """

    dynamics: ContactDynamics
    hit: frozenset[int]
    modes: Modes
    at_once = True
    _known_reached: dict[tuple[int, ...], tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def _closed(self) -> tuple[int, ...]:
        """The contacts that were closed before."""
        return self.dynamics.phase(self.modes).closed

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump.

        Args:
            t: Time, s.
            x: State (q, v) before.
            u: Input (nu,).

        Raises:
            RiserError: If a contact runs into a riser of its surface.
        """
        q, v = self._split_state(x)
        risers = self.hit.intersection(self.dynamics.contact_set.find_riser_contacts(q))
        if risers:
            error: RiserError = riser_error(self.dynamics, t, sorted(risers))
            raise error
        result = self._solve(q, v)
        after = np.concatenate([q, result.velocity_after])
        newly_closed = self.find_newly_closed(result)
        if newly_closed and (result.terms.gaps[newly_closed] > ON_SURFACE).any():
            phase = self.dynamics.phase(result.modes)
            after = np.concatenate(self.dynamics.project_state(phase, q, result.velocity_after))
        hit = self.hit - self._find_separating(result.terms)
        guards = None
        if hit != self.hit:
            names = list_closing_guards(self.dynamics.contacts)
            guards = tuple(names[i] for i in sorted(hit))
        return Jump(after, result.modes, result.impulses, result, guards)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of the jump."""
        q, v = self._split_state(at.x)
        result, nv = self._find_result(at), len(v)
        d = differentiate_impact(self.dynamics, q, v, result)
        state = np.concatenate((np.eye(nv, 2 * nv), d.velocity_z))
        closing = self._differentiate_closing(q, result, result.modes)
        if closing is not None:
            state = closing @ state
        return ResetJacobian(np.zeros(2 * nv), state, np.zeros((2 * nv, len(at.u))))

    def find_batch(self, at: JumpPoint, key: ModeKey) -> Hashable:
        """Return the pattern of an impact of known result, see `ImpactBatch`; None for others.

        Args:
            at: The jump.
            key: Mode after the event.
        """
        result = at.report
        if not isinstance(result, ImpactResult) or result.is_rest or result.border:
            return None
        phase = self.dynamics.phase(result.states)
        is_alone = list_holding_contacts(self.dynamics, contact_modes(key))
        if not phase.closed or is_alone or self.find_newly_closed(result):
            return None
        return id(self.dynamics), phase.pattern

    @classmethod
    def batch_jumps(cls, jumps: Sequence[tuple[ResetModel, JumpPoint]]) -> ImpactBatch:
        """Return the derivatives of impacts of one pattern.

        Args:
            jumps: Each reset, and the point before its jump with the report of its result.
        """
        first, (_, _, u, _, _) = jumps[0]
        assert isinstance(first, ImpactReset)
        states = np.array([at.x for _, at in jumps])
        q, v = np.split(states, [first.dynamics.robot.nq], axis=1)
        return ImpactBatch(first.dynamics, q, v, [at.report for _, at in jumps], len(u))

    def find_border(self, at: JumpPoint, key: ModeKey, u_after: Array) -> ResetBorder | None:
        """Return the derivatives on both sides of the stick-slip boundary, None off it.

        Args:
            at: The jump.
            key: Mode after the event.
            u_after: Input (nu,) after the event.
        """
        q, v = self._split_state(at.x)
        after, result = contact_modes(key), self._find_result(at)
        check_sticking(self.dynamics, q, result.velocity_after, u_after, after)
        border = find_stick_slip_boundary(self.dynamics, q, v, result, after, u_after)
        if border is None:
            return None
        closing = self._differentiate_closing(q, result, result.modes)
        # Where a contact slips, the mode after the event keeps what is left of the slip.
        slipping = self._differentiate_closing(q, result, after)
        if closing is None or slipping is None:
            return border
        return border._replace(
            positive=border.positive._replace(state=slipping @ border.positive.state),
            negative=border.negative._replace(state=closing @ border.negative.state),
        )

    def _differentiate_closing(self, q: Array, result: ImpactResult, modes: Modes) -> Array | None:
        """Return how perturbations after the impact change where gaps are closed (2 nv, 2 nv).

        None where none are, so that perturbations do not change.

        Args:
            q: Configuration (nq,).
            result: The impact.
            modes: Modes after it, to whose states perturbed ones are projected.
        """
        closed = self.find_newly_closed(result)
        if not closed:
            return None
        phase = self.dynamics.phase(modes)
        return self.dynamics.differentiate_projection(phase, q, result.velocity_after, closed)

    def find_newly_closed(self, result: ImpactResult) -> list[int]:
        """Return the contacts that the impact closes, whose gaps have to be closed.

        A contact that hits alone is left out: its gap is zero at its event, whenever that is.
        """
        if len(self.hit) == 1 and all(
            mode == OPEN or i in self.hit or mode_before != OPEN
            for i, (mode, mode_before) in enumerate(zip(result.modes, self.modes, strict=True))
        ):
            return []  # the usual impact: nothing else has closed, so that rates need no look
        touching = self._find_touching(result.terms)
        joined = [i for i in touching if i not in self._closed and result.modes[i] != OPEN]
        return [] if len(self.hit) == 1 and self.hit.issuperset(joined) else joined

    def _find_result(self, at: JumpPoint) -> ImpactResult:
        """Return the impact at a point: the report of its jump, if there is one."""
        return self._solve(*self._split_state(at.x)) if at.report is None else at.report

    def _solve(self, q: Array, v: Array) -> ImpactResult:
        terms = self.dynamics.copy_terms(q, v)
        at = self._find_touching(terms)
        reached = at
        if self._closed:
            if at not in self._known_reached:  # they follow from the structure of the robot alone
                self._known_reached[at] = self._find_reached(at)
            reached = self._known_reached[at]
        result = solve_impact(self.dynamics, v, reached, terms)
        if reached == at:
            return result
        unreached = [i for i in at if i not in reached]
        modes = tuple(self.modes[i] if i in unreached else m for i, m in enumerate(result.modes))
        return replace(result, modes=modes)

    def _find_reached(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Return the contacts whose velocities the impulses of this impact can change.

        An impact begins at contacts that were not closed before.

        M^-1 couples all velocities of a kinematic tree, so an impulse on one body of a tree may
        reach every contact of that tree. A contact between two trees passes impulses on. This is
        decided by the structure of the robot: an entry of M that happens to be zero at one
        configuration is not zero beside it, and derivatives of the impact need it.

        Args:
            at: Indices of the contacts that hit, are closed, or rest on their surface.

        Returns:
            The contacts of `at` that are connected with one that was not closed before, in order.
        """
        moves = self.dynamics.contact_set.moved_trees
        found = {i for i in at if i not in self._closed}
        while True:
            trees = moves[list(found)].any(axis=0)
            more = found | {i for i in at if (moves[i] & trees).any()}
            if more == found:
                return tuple(i for i in at if i in found)
            found = more

    def _find_touching(self, terms: TermValues) -> tuple[int, ...]:
        """Return contacts that hit or are closed, and others that rest on their surface.

        A contact whose gap closes at the same instant, but that moves, has an event of its own. So
        has one that rests where nothing hits: of contacts that open together at zero speed one may
        be pressed back, which must not close the others, whose forces vanish
        (test_of_contacts_that_open_together_one_that_is_pressed_back_closes_no_other).
        """
        rates = terms.rates.tolist()
        is_impact = any(rates[i] < -SEPARATION_SPEED for i in self.hit)
        return self._list_touching(terms, is_impact)

    def _list_touching(self, terms: TermValues, with_resting: bool) -> tuple[int, ...]:
        """Return contacts that hit or are closed, and others at rest on their surface if wanted."""
        separating, closed, hit = self._find_separating(terms), self._closed, self.hit
        rates: list[float] = terms.rates.tolist()  # normal ones first
        touching = [
            i
            for i, gap in enumerate(terms.gaps.tolist())
            if i in closed or i in hit or (with_resting and _is_resting(gap, rates[i]))
        ]
        if separating:
            touching = [i for i in touching if i in closed or i not in separating]
        return tuple(touching)

    def _find_separating(self, terms: TermValues) -> set[int]:
        """Return contacts with restitution that separate already, and so do not hit.

        Where all contacts whose guards fired separate, these are not in the set: the event needs a
        contact that hits.
        """
        rates = terms.rates.tolist()
        found = {i for i in self.dynamics.bouncing_contacts if rates[i] > SEPARATION_SPEED}
        return found if self.hit - found else found - self.hit

    def _split_state(self, x: Array) -> tuple[Array, Array]:
        n = self.dynamics.robot.nq
        return x[:n], x[n:]


class _RestReset(ImpactReset):
    """The limit of bounces that accumulate: one plastic impact, after which all gaps are closed."""

    at_once = False

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump.

        Args:
            t: Time, s.
            x: State (q, v) before.
            u: Input (nu,).
        """
        result = self._solve(*self._split_state(x))
        q = x[: self.dynamics.robot.nq]
        phase = self.dynamics.phase(result.modes)
        after = np.concatenate(self.dynamics.project_state(phase, q, result.velocity_after))
        return Jump(after, result.modes, result.impulses, result)

    def _solve(self, q: Array, v: Array) -> ImpactResult:
        terms = self.dynamics.copy_terms(q, v)
        at = tuple(sorted({*self.hit, *self._list_touching(terms, with_resting=True)}))
        return solve_accumulated_impacts(self.dynamics, v, at, terms)

    def find_newly_closed(self, result: ImpactResult) -> list[int]:
        """Return all contacts that the impact closes: rest puts them on their surface."""
        closed = self._closed
        return [i for i, mode in enumerate(result.modes) if mode != OPEN and i not in closed]


def _compute_closing_time(height: float, rate: float, acceleration: float) -> float:
    """Return the time in which a gap closes at constant acceleration, s; infinite if never.

    Args:
        height: Gap, m.
        rate: Its rate, m/s.
        acceleration: Its acceleration, m/s^2.
    """
    if height <= 0.0:
        return 0.0
    root = rate * rate - 2.0 * acceleration * height
    if root < 0.0 or (rate >= 0.0 and acceleration >= 0.0):
        return math.inf
    return 2.0 * height / (math.sqrt(root) - rate)


@dataclass(frozen=True)
class _PassageEnd(ImpactReset):
    """The end of a passage past a jam: an impact of all contacts that touch, put on their surface.

    Contacts that let go (`hit`) do not rebound. Of several velocities the one of the greatest
    energy loss is taken.
    """

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump; the state itself if nothing touches.

        Args:
            t: Time, s.
            x: State (q, v) before.
            u: Input (nu,).
        """
        dynamics, (q, v) = self.dynamics, self._split_state(x)
        terms = dynamics.copy_terms(q, v)
        near = np.flatnonzero(terms.gaps <= TOUCHING).tolist()
        at = tuple(i for i in near if i not in dynamics.pressed_contacts)
        if not at:
            return Jump(x, self.modes, np.zeros(len(self.modes)))
        touching = tuple(CLOSED if i in at else OPEN for i in range(len(self.modes)))
        q, _ = dynamics.project_state(dynamics.phase(touching), q, v)
        terms = dynamics.copy_terms(q, v)
        result = solve_impact(dynamics, v, at, terms, plastic=self.hit, on_several="dissipation")
        names = list_closing_guards(dynamics.contacts)
        after = np.concatenate((q, result.velocity_after))
        guards = tuple(names[i] for i in at)
        return Jump(after, result.modes, result.impulses, result, guards)


def _is_resting(gap: float, rate: float) -> bool:
    """Return whether a contact is on its surface and hardly moves."""
    return abs(gap) <= TOUCHING and abs(rate) <= _RESTING_SPEED


@dataclass(frozen=True)
class Release(ResetModel):
    """The reset of contacts that open without an impulse: the state stays the same.

    Attributes:
        dynamics: Dynamics of the robot with its contacts.
        modes: Modes after it.
        guards: Names of the guards that took part; None for all.
        keeps_field: Whether the contacts open at a normal force of zero, so that the acceleration
            does not jump; see `ResetModel`.
        leaving_stuck: Contact that opens alone and stuck before, and the modes before. None for
            others.
    """

    dynamics: ContactDynamics
    modes: Modes
    guards: tuple[str, ...] | None = None
    keeps_field: bool = False
    leaving_stuck: tuple[int, Modes] | None = None

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump to the same state.

        Args:
            t: Time, s.
            x: State (q, v).
            u: Input (nu,).
        """
        return Jump(x, self.modes, np.zeros(len(self.modes)), guards=self.guards)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives of the identity.

        Args:
            at: The jump.
        """
        return Reset.identity(2 * self.dynamics.robot.nv).calc_diff(at)

    def differentiate_departure(self, at: JumpPoint) -> GuardJacobian | None:
        """Return minus the derivatives of the gap's acceleration without a force at the contact.

        The friction cone vanishes with the normal force. So perturbed contacts that stick slip
        before they let go, and in whichever direction they slip, the force of this contact is zero
        where the other forces accelerate it by nothing: see "Letting go together" in
        docs/mathematics.md.

        Args:
            at: The jump.

        Returns:
            The derivatives. None for a contact that slides or has no friction, whose guard falls
            through zero there, and for one among redundant contacts, which the others hold.
        """
        if self.leaving_stuck is None:
            return None
        contact, before = self.leaving_stuck
        dynamics, nv = self.dynamics, self.dynamics.robot.nv
        q, v = np.split(at.x, [dynamics.robot.nq])
        if dynamics.solve_phase(dynamics.phase(before), q, v, at.u).kkt.redundant:
            return None
        free = dynamics.acceleration(q, v, at.u, self.modes)
        row = dynamics.gap_jacobian(q)[contact]
        by_z = -row @ dynamics.derivatives_at(q, v, at.u, free).acceleration_z
        # Forces of other contacts are fixed in the terms, and change none of these rows.
        no_forces = np.zeros(len(dynamics.contact_set.owner))
        terms = dynamics.terms.derivatives(q, v, free.acceleration, no_forces)
        by_z[: 2 * nv] -= terms.accelerations[contact]
        return GuardJacobian(np.zeros(()), by_z[: 2 * nv], by_z[2 * nv :])


@dataclass(frozen=True)
class _Departure(Release):
    """The reset of sliding contacts that leave their piece of a surface: they open.

    Above a lower piece they fall. Where the next piece is higher they would hit a face that their
    surface does not have.

    Attributes:
        leaving: The contacts.
    """

    leaving: tuple[int, ...] = ()

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the jump.

        Args:
            t: Time, s.
            x: State (q, v) before.
            u: Input (nu,).

        Raises:
            RiserError: If the next piece is higher.
        """
        q = x[: self.dynamics.robot.nq]
        beyond = self.dynamics.contact_set.gaps_beyond(q)
        risers = [i for i in self.leaving if beyond[i] < 0.0]
        if risers:
            error: RiserError = riser_error(self.dynamics, t, risers)
            raise error
        return super().calc(t, x, u)


def riser_error(dynamics: ContactDynamics, t: float, contacts: Sequence[int]) -> RiserError:
    """Return the error of contacts that run into risers of their surfaces.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        t: Time of the event, s.
        contacts: Indices of the contacts, whose names the message has.
    """
    names = [dynamics.contacts[i].name for i in contacts]
    return RiserError(
        f"contacts {names} run into a riser of their surface at t = {t:.9g} s, but it has treads "
        "only: lift them over the edge, or give them a second contact with a Plane as the riser"
    )


class _Jam(Release):
    """The reset of sliding contacts that jam (Painleve): an error, as no motion goes on.

    A guard may also fire within a step that ends beyond a stop, where friction has turned round.
    Then the response ratio at the event is not near zero, and the motion goes on.
    """

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the state as it is, if the contacts do not jam.

        Args:
            t: Time, s.
            x: State (q, v) before.
            u: Input (nu,).

        Raises:
            JammingError: If the sliding contacts jam.
        """
        n, phase = self.dynamics.robot.nq, self.dynamics.phase(self.modes)
        solution = self.dynamics.solve_phase(phase, x[:n], x[n:], u)
        places = [slide.contact for slide in phase.sliding]
        names = tuple(self.dynamics.contacts[phase.closed[k]].name for k in places)
        forces, ratio = solution.forces[places], compute_response_ratio(solution)
        if ratio > NEAR_JAM:
            return super().calc(t, x, u)
        raise JammingError(
            f"contacts {names} jam at t = {t:.9g} s in mode {self.modes!r}: friction leaves "
            f"{ratio:.3g} of their normal response, so that normal forces, now {forces.tolist()} "
            f"N, grow without bounds and rigid bodies have no motion to go on with (Painleve); "
            f"x = {x.tolist()}. Less friction or a compliant contact avoids it",
            contacts=names,
            forces=forces,
            ratio=ratio,
        )
