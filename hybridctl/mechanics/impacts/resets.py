"""What happens when guards of a contact system fire: impacts, changes without one, and rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import JammingError, RiserError
from hybridctl.hybrid.mode import Bridge, Edge, Reset
from hybridctl.hybrid.model import (
    Jump,
    JumpPoint,
    ModeKey,
    ResetBorder,
    ResetJacobian,
    ResetModel,
)
from hybridctl.mechanics.constrained.phase import contact_modes
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, STICK, Modes
from hybridctl.mechanics.impacts.impact import (
    SEPARATION_SPEED,
    ImpactResult,
    impact_derivatives,
    impact_of,
    settle,
)
from hybridctl.mechanics.impacts.stick_slip_border import clearly_held, impact_border
from hybridctl.mechanics.impacts.stops import Breakaway, Stop
from hybridctl.mechanics.modes.dynamics import ON_SURFACE, ContactDynamics
from hybridctl.mechanics.modes.guards import ContactGuard, closing_guards
from hybridctl.mechanics.modes.jamming import response_ratio
from hybridctl.mechanics.terms.contact_terms import TermValues

TOUCHING = 2e-8
"""A gap of so many m is closed where others hit: above what event times, known to 1e-9 s, leave."""
PENETRATION = 1e-6
"""In m: time stepping does not start from a state this deep in a surface."""
BRIDGED = 1e-7
"""Contacts that have let go on a bridge come this deep, in m: a tenth of `PENETRATION`."""
_RESTING_SPEED = 1e-4
"""In m/s: an open contact on its surface that moves no faster takes part in an impact of others:
bounces that have died out leave less."""
NEAR_JAM = 1e-4
"""A response this small, where the guard has fired, is a jam: with room for the event's time."""

_LONGEST, _SHORTEST = 1e-4, 1e-7  # s, of a bridge


@dataclass(frozen=True)
class ContactEdges:
    """The edges behind the guards of a mode."""

    dynamics: ContactDynamics
    modes: Modes
    guards: tuple[ContactGuard, ...]

    def edge(self, fired: tuple[str, ...]) -> Edge | None:
        """The edge of guards that fire together; None for names that are none of this mode."""
        events = self._named(fired)
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
            elif after[guard.contact] != OPEN and not stops:
                after[guard.contact] = guard.mode_after
        if any(guard.kind == "jams" for guard in events) and not stops:
            return Edge(_Jam(self.dynamics, self.modes))
        if hit:
            return Edge(_ImpactReset(self.dynamics, frozenset(hit), self.modes))
        if stops:
            return Edge(Stop(self.dynamics, tuple(after), stops))
        leaving = tuple(guard.contact for guard in events if guard.kind == "leaves")
        if leaving:
            return Edge(_Departure(self.dynamics, tuple(after), leaving))
        begin = [g.contact for g in events if g.kind == "slips" and self.modes[g.contact] == STICK]
        if begin:
            return Edge(Breakaway(self.dynamics, self.modes, tuple(after), tuple(begin)))
        return Edge(_Release(self.dynamics, tuple(after)))

    def rest(self, fired: tuple[str, ...]) -> Edge | None:
        """Contacts whose impacts accumulate close without bouncing; in this mode some have."""
        names = closing_guards(self.dynamics.contacts)
        hit = [i for i, name in enumerate(names) if name in fired]
        if not hit:
            return None
        return Edge(Reset(_ImpactReset(self.dynamics, frozenset(hit), self.modes).settled))

    def bridge(self, t: float, x: Array, u: Array) -> Bridge | None:
        """The bridge: closed contacts let go until the first is `BRIDGED` deep, and hit again.

        There is none past the bounces of a contact with restitution, however many.
        """
        dynamics, n = self.dynamics, self.dynamics.robot.nq
        q, v = x[:n], x[n:]
        terms, count = dynamics.kept_values(q, v), len(dynamics.contacts)
        bounces = (dynamics.restitution > 0.0) & (terms.gaps <= PENETRATION)
        if any(bounces[i] for i, mode in enumerate(self.modes) if mode == OPEN):
            return None
        fall = terms.drift + terms.jacobian @ dynamics.robot.free_acceleration(q, v, u)
        each = zip(terms.gaps.tolist(), terms.rates[:count].tolist(), fall.tolist(), strict=False)
        length = min([_LONGEST, *(_reaches(BRIDGED + gap, rate, a) for gap, rate, a in each)])
        flying = tuple(mode if i in dynamics.pressed else OPEN for i, mode in enumerate(self.modes))
        closed = frozenset(dynamics.phase(self.modes).solid_contacts)
        taken_up = _BridgeEnd(dynamics, closed, flying)
        return Bridge(flying, max(length, _SHORTEST), Edge(taken_up))

    def _named(self, fired: Sequence[str]) -> list[ContactGuard] | None:
        known = {guard.name(self.dynamics.contacts): guard for guard in self.guards}
        return [known[name] for name in fired] if known.keys() >= set(fired) else None


@dataclass(frozen=True)
class _ImpactReset(ResetModel):
    """Impact of contacts that `hit`, closed ones and all others that touch; its report: the result.

    Closed contacts of bodies that no impulse reaches take no part, and stay in their mode. One
    whose guard is below zero, but that already bounces off, does not hit: of its speed the law of
    impact would take back a part. If others send it back, it has an event of its own. Those that
    hit, but are still above their surface, as in a wide event window, are put on it.
    """

    dynamics: ContactDynamics
    hit: frozenset[int]
    modes: Modes
    at_once = True

    @property
    def closed(self) -> tuple[int, ...]:
        """The contacts that were closed before."""
        return self.dynamics.phase(self.modes).closed

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        q, v = self._parts(x)
        risers = self.hit.intersection(self.dynamics.all.at_risers(q))
        if risers:
            raise riser_error(self.dynamics, t, sorted(risers))
        result = self._hit(q, v)
        after = np.concatenate([q, result.velocity_after])
        gaps = result.terms.gaps
        if any(gaps[i] > ON_SURFACE for i in self._closed_at_once(result)):
            phase = self.dynamics.phase(result.modes)
            after = np.concatenate(self.dynamics.projected(phase, q, result.velocity_after))
        hit = self.hit - self._bouncing(result.terms)
        guards = None
        if hit != self.hit:
            names = closing_guards(self.dynamics.contacts)
            guards = tuple(names[i] for i in sorted(hit))
        return Jump(after, result.modes, result.impulses, result, guards)

    def settled(self, t: float, x: Array, u: Array) -> Jump:
        """The limit of bounces that accumulate: gaps that were left are closed."""
        q, v = self._parts(x)
        terms = self.dynamics.kept_values(q, v)
        at = tuple(sorted({*self.hit, *self._touching(terms)}))
        result = settle(self.dynamics, v, at, terms)
        phase = self.dynamics.phase(result.modes)
        after = np.concatenate(self.dynamics.projected(phase, q, result.velocity_after))
        return Jump(after, result.modes, result.impulses, result)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        q, v = self._parts(at.x)
        result, nv = self._known(at), len(v)
        d = impact_derivatives(self.dynamics, q, v, result)
        state = self._closing(q, result) @ np.vstack([np.eye(nv, 2 * nv), d.velocity_z])
        return ResetJacobian(np.zeros(2 * nv), state, np.zeros((2 * nv, len(at.u))))

    def border_at(self, at: JumpPoint, key: ModeKey, u_after: Array) -> ResetBorder | None:
        q, v = self._parts(at.x)
        after, result = contact_modes(key), self._known(at)
        clearly_held(self.dynamics, q, result.velocity_after, u_after, after)
        border = impact_border(self.dynamics, q, v, result, after, u_after)
        if border is None:
            return None
        closing = self._closing(q, result)
        return border._replace(
            positive=border.positive._replace(state=closing @ border.positive.state),
            negative=border.negative._replace(state=closing @ border.negative.state),
        )

    def _closing(self, q: Array, result: ImpactResult) -> Array:
        """What is left (2 nv, 2 nv) of deviations after the impact where gaps are closed."""
        closed = self._closed_at_once(result)
        if not closed:
            return np.eye(2 * len(result.velocity_after))
        after, phase = result.velocity_after, self.dynamics.phase(result.modes)
        return self.dynamics.projected_derivatives(phase, q, after, closed)

    def _closed_at_once(self, result: ImpactResult) -> list[int]:
        """The contacts whose gaps the impact closes: those that are closed from here on.

        But not a single one that hits: its gap is zero whenever it does.
        """
        touching = self._touching(result.terms)
        joined = [i for i in touching if i not in self.closed and result.modes[i] != OPEN]
        return [] if len(self.hit) == 1 and self.hit.issuperset(joined) else joined

    def _known(self, at: JumpPoint) -> ImpactResult:
        """What the impact found at a point, or finds there now."""
        return self._hit(*self._parts(at.x)) if at.report is None else at.report

    def _hit(self, q: Array, v: Array) -> ImpactResult:
        terms = self.dynamics.kept_values(q, v)
        at = self._touching(terms)
        reached = at if not self.closed else self._reached(at)
        result = impact_of(self.dynamics, v, reached, terms)
        if reached == at:
            return result
        kept = [i for i in at if i not in reached]
        modes = tuple(self.modes[i] if i in kept else m for i, m in enumerate(result.modes))
        return replace(result, modes=modes)

    def _reached(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Return the contacts whose velocities the impulses of this impact can change.

        M^-1 couples all velocities of a kinematic tree, so an impulse on one body of a tree may
        reach every contact of that tree. A contact between two trees passes impulses on. This is
        decided by the structure of the robot: an entry of M that happens to be zero at one
        configuration is not zero beside it, and derivatives of the impact need it.

        Args:
            at: Indices of the contacts that hit, are closed, or rest on their surface.

        Returns:
            The contacts of `at` that are connected with one that was not closed before, in order.
        """
        moves = self.dynamics.all.moved_trees
        found = {i for i in at if i not in self.closed}
        while True:
            trees = moves[list(found)].any(axis=0)
            more = found | {i for i in at if (moves[i] & trees).any()}
            if more == found:
                return tuple(i for i in at if i in found)
            found = more

    def _touching(self, terms: TermValues) -> tuple[int, ...]:
        """Contacts that hit or are closed, and others that rest on their surface without a force.

        One whose gap closes at the same instant, but that moves, has an event of its own.
        """
        bouncing, count = self._bouncing(terms), len(terms.gaps)
        each = enumerate(zip(terms.gaps.tolist(), terms.rates[:count].tolist(), strict=True))
        return tuple(
            i
            for i, (gap, rate) in each
            if i in self.closed or (i not in bouncing and (i in self.hit or _rests(gap, rate)))
        )

    def _bouncing(self, terms: TermValues) -> set[int]:
        """Contacts that bounce off, but those that hit where all of these do."""
        if not self.dynamics.bounces:
            return set()
        each = zip(self.dynamics.restitution.tolist(), terms.rates.tolist(), strict=False)
        found = {i for i, (e, rate) in enumerate(each) if e > 0.0 and rate > SEPARATION_SPEED}
        return found if self.hit - found else found - self.hit

    def _parts(self, x: Array) -> tuple[Array, Array]:
        n = self.dynamics.robot.nq
        return x[:n], x[n:]


def _reaches(height: float, rate: float, acceleration: float) -> float:
    """The time until a gap with this rate and acceleration closes, s; infinite if never."""
    if height <= 0.0:
        return 0.0
    root = rate * rate - 2.0 * acceleration * height
    if root < 0.0 or (rate >= 0.0 and acceleration >= 0.0):
        return math.inf
    return 2.0 * height / (math.sqrt(root) - rate)


@dataclass(frozen=True)
class _BridgeEnd(_ImpactReset):
    """The end of a bridge: an impact of all contacts that touch, without gaps after it.

    Those that let go, `hit`, do not rebound. Of several velocities that of the greatest loss of
    energy is taken.
    """

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        dynamics, (q, v) = self.dynamics, self._parts(x)
        terms = dynamics.kept_values(q, v)
        near = np.flatnonzero(terms.gaps <= TOUCHING).tolist()
        at = tuple(i for i in near if i not in dynamics.pressed)
        if not at:
            return Jump(x, self.modes, np.zeros(len(self.modes)))
        touching = tuple(CLOSED if i in at else OPEN for i in range(len(self.modes)))
        q, _ = dynamics.projected(dynamics.phase(touching), q, v)
        terms = dynamics.kept_values(q, v)
        result = impact_of(dynamics, v, at, terms, plastic=self.hit, on_several="dissipation")
        names = closing_guards(dynamics.contacts)
        after = np.concatenate((q, result.velocity_after))
        guards = tuple(names[i] for i in at)
        return Jump(after, result.modes, result.impulses, result, guards)


def _rests(gap: float, rate: float) -> bool:
    """Whether a contact is on its surface and hardly moves."""
    return abs(gap) <= TOUCHING and abs(rate) <= _RESTING_SPEED


@dataclass(frozen=True)
class _Release(ResetModel):
    """Contacts open or slip without an impulse, and go on in `modes`."""

    dynamics: ContactDynamics
    modes: Modes

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        return Jump(x, self.modes, np.zeros(len(self.modes)))

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        return Reset.identity(2 * self.dynamics.robot.nv).calc_diff(at)


@dataclass(frozen=True)
class _Departure(_Release):
    """Sliding contacts, `leaving`, come to the border of their piece, and open.

    Above a lower piece they fall. Where the next piece is higher they would hit a face that their
    surface does not have.
    """

    leaving: tuple[int, ...]

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        q = x[: self.dynamics.robot.nq]
        beyond = self.dynamics.all.gaps_beyond(q)
        risers = [i for i in self.leaving if beyond[i] < 0.0]
        if risers:
            raise riser_error(self.dynamics, t, risers)
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


class _Jam(_Release):
    """The end of sliding contacts that jam: there is nothing to go on with.

    Unless the guard only seemed to fall, within a step beyond a stop, where friction has turned.
    """

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        n, phase = self.dynamics.robot.nq, self.dynamics.phase(self.modes)
        now = self.dynamics.solve(phase, x[:n], x[n:], u)
        places = [slide.contact for slide in phase.sliding]
        names = tuple(self.dynamics.contacts[phase.closed[k]].name for k in places)
        forces, ratio = now.forces[places], response_ratio(now)
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
