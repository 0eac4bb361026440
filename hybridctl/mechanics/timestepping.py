r"""Moreau-Jean time stepping: a second, independent simulator of the same robots.

Steps of fixed length h, shorter where a policy changes its law in between, go over impacts and
through accumulating ones without looking for them:

.. math::
    q_m &= q \oplus \tfrac h2 v, \qquad
    M (v^+ - v) = h (S u - h_{bias}) + J_n^T P_n + J_t^T P_t, \\
    P_n &= \mathrm{prox}_{\ge 0}(P_n - r (v_n^+ + e v_n)), \qquad
    P_t = \mathrm{prox}_{|P_t| \le \mu P_n}(P_t - r v_t^+), \qquad
    q^+ = q_m \oplus \tfrac h2 v^+,

with all terms at the midpoint, where contacts with a gap of zero or less take part. The proximal
points are found by iterating these equations for all contacts at once, with r from the sums of
the rows of |J M^-1 J'|, [RS] appendix A.2: what is symmetric stays so. First order in h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.checks import Array, count, interval, member, number, vector
from hybridctl.errors import GuardViolatedError, IntegrationError, NoContactSolutionError
from hybridctl.hybrid.mode import InputLaw
from hybridctl.hybrid.policy import History, Policy, as_policy, first_input, input_law, next_change
from hybridctl.hybrid.series import FRACTIONS
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Arc, Event, HybridTrajectory, arc_from_steps
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.coulomb.law import CLOSED, OPEN, SLIPS, STICK, Modes
from hybridctl.mechanics.geometry import ContactSet
from hybridctl.mechanics.phase import STANDSTILL, default_slip
from hybridctl.mechanics.robot import Robot
from hybridctl.mechanics.system import contact_system

_PENETRATION = 1e-6
_CREEP = 10.0
_TINY = 1e-300


@dataclass(frozen=True)
class _Settings:
    """What stays the same during a run."""

    robot: Robot
    contacts: tuple[Contact, ...]
    rows: ContactSet
    friction: Array
    step: float
    tolerance: float
    max_sweeps: int
    strict: bool


@dataclass(frozen=True)
class _Advance:
    """One step: state after it, velocity after it, impulses per row, modes of the contacts."""

    q: Array
    v: Array
    impulses: Array
    modes: Modes


def time_stepping(
    robot: Robot,
    contacts: Sequence[Contact],
    x0: ArrayLike,
    t_span: ArrayLike,
    policy: Policy | InputLaw | None = None,
    *,
    step: float = 1e-3,
    tolerance: float = 1e-6,
    max_sweeps: int = 10_000,
    on_no_convergence: Literal["raise", "accept"] = "raise",
    progress: Callable[[float], None] | None = None,
) -> HybridTrajectory:
    """Simulate a robot with contacts from x0 over t_span (s) by Moreau-Jean time stepping.

    The trajectory has the modes of `contact_system`, an event wherever they change, and guards
    named as there; velocities jump at the beginning of a step in which a contact closes. Only
    the kinetic coefficient of friction is used. `tolerance`: of the velocities of the contacts
    at the proximal points, relative to the fastest in a step without impulses; where they are
    not reached in `max_sweeps` the run ends, or goes on with what it has ("accept", for jammed
    mechanisms). The sweeps of redundant contacts that share friction converge slowly to less
    than the default. `progress` is called with the time reached.

    Raises `InputError` for bad arguments, `GuardViolatedError` if x0 penetrates by more than
    1e-6 m, `IntegrationError` for a state that is not finite, and `NoContactSolutionError`.
    """
    start, end = interval("t_span", t_span)
    system = contact_system(robot, contacts)
    space = system.mode((OPEN,) * len(contacts)).space
    state = vector("x0", x0, space.nx)
    space.check("x0", state)
    member("on_no_convergence", on_no_convergence, ("raise", "accept"))
    settings = _Settings(
        robot,
        tuple(contacts),
        ContactSet(robot, contacts),
        np.array([contact.friction for contact in contacts]),
        number("step", step, above=0.0),
        number("tolerance", tolerance, above=0.0),
        count("max_sweeps", max_sweeps),
        on_no_convergence == "raise",
    )
    gaps = settings.rows.gaps(state[: robot.nq])
    if gaps.min() < -_PENETRATION:
        name = contacts[int(gaps.argmin())].name
        raise GuardViolatedError(f"x0 penetrates at contact {name!r}: gap {gaps.min():.3g} m")
    return _Run(settings, system, as_policy(policy, system)).run(start, end, state, progress)


class _Run:
    """The arcs and events of one run as they come."""

    def __init__(self, settings: _Settings, system: HybridSystem, policy: Policy) -> None:
        self._settings, self._system, self._policy = settings, system, policy
        self._arcs: list[Arc] = []
        self._events: list[Event] = []

    def run(
        self, start: float, end: float, x: Array, progress: Callable[[float], None] | None
    ) -> HybridTrajectory:
        settings = self._settings
        times = np.linspace(start, end, max(round((end - start) / settings.step), 1) + 1).tolist()
        self._begin((OPEN,) * len(settings.contacts), start, x)
        impulses = np.zeros(len(settings.rows.owner))
        t = start
        for t_next in times[1:]:
            while t < t_next:
                if t == self._next_change:
                    self._ask_again(t, x)
                stop = min(t_next, self._next_change)
                now = _advance(settings, self._law, t, stop - t, x, impulses)
                if now.modes != self._modes:
                    x = self._change(t, x, self._modes, now)
                self._steps.append(self._sampled(t, stop, x, now))
                t, x, impulses = stop, np.concatenate((now.q, now.v)), now.impulses
                if not np.isfinite(x).all():
                    raise IntegrationError(f"the state is not finite at t = {t:.9g} s")
            if progress is not None:
                progress(t_next)
        self._finish(end)
        return HybridTrajectory(tuple(self._arcs), tuple(self._events))

    def _begin(self, modes: Modes, t: float, x: Array) -> None:
        self._modes, self._mode = modes, self._system.mode(modes)
        history = History(modes, t, x, tuple(self._events))
        self._law = input_law(self._policy, history, self._mode.nu)
        self._start, self._state = t, x
        self._input = first_input(self._law, t, x, self._mode.nu)
        self._next_change = next_change(self._policy, history)
        self._steps: list[Step] = []

    def _finish(self, t: float) -> None:
        arc = arc_from_steps(
            len(self._arcs), self._mode, self._steps, self._start, self._state, self._input, t
        )
        self._arcs.append(arc)

    def _change(self, t: float, x: Array, modes_before: Modes, now: _Advance) -> Array:
        """End the arc with an event; returns the state after it."""
        self._finish(t)
        hits = [a == OPEN != b for a, b in zip(modes_before, now.modes, strict=True)]
        q = x[: self._settings.robot.nq]
        after = np.concatenate((q, now.v)) if any(hits) else x
        impulses = now.impulses[: len(hits)] * any(hits)
        guards = _guards(self._settings.contacts, modes_before, now.modes)
        self._event(t, now.modes, guards, x, after, impulses)
        return after

    def _ask_again(self, t: float, x: Array) -> None:
        """End the arc where the policy wants to change its law."""
        self._finish(t)
        self._event(t, self._modes, (), x, x, np.zeros(len(self._settings.contacts)))

    def _event(
        self, t: float, modes: Modes, guards: tuple[str, ...], x: Array, after: Array, p: Array
    ) -> None:
        """Record an event with impulses p, and begin the next arc."""
        u, rate = self._law(t, x), self._arcs[-1].input_rate(t)
        index, before, unknown = len(self._events), self._modes, np.zeros(self._mode.nu)
        event = Event(index, t, before, modes, guards, x, after, u, unknown, rate, p)
        self._events.append(event)
        self._begin(modes, t, after)
        self._events[-1] = replace(event, input_after=self._input)

    def _sampled(self, t: float, t_next: float, x: Array, now: _Advance) -> Step:
        """A step as a straight line from the state x to the one after it."""
        robot, nq = self._settings.robot, self._settings.robot.nq
        times = t + (t_next - t) * FRACTIONS
        along = robot.difference(x[:nq], now.q)
        q = [robot.integrate(x[:nq], fraction * along) for fraction in FRACTIONS]
        v = x[nq:] + FRACTIONS[:, None] * (now.v - x[nq:])
        states = np.hstack([np.array(q), v])
        inputs = np.array([self._law(time, z) for time, z in zip(times, states, strict=True)])
        return Step(t, t_next, states, inputs)


def _advance(
    settings: _Settings, law: InputLaw, t: float, h: float, x: Array, guess: Array
) -> _Advance:
    """One step of length h from x; `guess` (r,) are the impulses to start from."""
    robot, rows, nq = settings.robot, settings.rows, settings.robot.nq
    v = x[nq:]
    q = robot.integrate(x[:nq], 0.5 * h * v)
    u = law(t + 0.5 * h, np.concatenate((q, v)))
    mass = robot.mass_matrix(q)
    force = h * (robot.actuation @ u - robot.bias(q, v))
    active = np.flatnonzero(rows.gaps(q) <= 0.0).tolist()
    impulses = np.zeros(len(rows.owner))
    v_next = v + np.linalg.solve(mass, force)
    if active:
        jacobian = rows.jacobian(q)
        by_impulse = np.linalg.solve(mass, jacobian.T)
        target = jacobian @ v_next
        for i in active:
            rate, contact = float(jacobian[i] @ v), settings.contacts[i]
            if rate > 0.0 or -rate > contact.restitution_threshold:
                target[i] += contact.restitution * rate
        impulses = _proximal(settings, active, jacobian @ by_impulse, target, guess, t)
        v_next = v_next + by_impulse @ impulses
        creep = settings.tolerance * float(np.abs(target).max())
        modes = _modes(rows, impulses, jacobian @ v_next, max(STANDSTILL, _CREEP * creep))
    else:
        modes = (OPEN,) * len(settings.contacts)
    return _Advance(robot.integrate(q, 0.5 * h * v_next), v_next, impulses, modes)


def _proximal(
    settings: _Settings,
    active: Sequence[int],
    delassus: Array,
    target: Array,
    guess: Array,
    t: float,
) -> Array:
    """Impulses (r,) of the active contacts: the fixed point of the proximal equations."""
    k = len(active)
    tangents = [settings.rows.tangents[i] for i in active]
    kept = np.concatenate([active, *tangents]).astype(np.intp)
    owner = np.repeat(np.arange(k), [len(rows) for rows in tangents])
    w, c, mu = delassus[np.ix_(kept, kept)], target[kept], settings.friction[active]
    inverse_r = np.abs(w).sum(axis=1)
    largest = inverse_r[:k].copy()
    np.maximum.at(largest, owner, inverse_r[k:])
    inverse_r[k:] = largest[owner]
    f, limit = guess[kept], settings.tolerance * float(np.abs(c).max())
    for _ in range(settings.max_sweeps):
        new = f - (w @ f + c) / inverse_r
        new[:k] = np.maximum(new[:k], 0.0)
        cone, size = mu * new[:k], np.sqrt(np.bincount(owner, new[k:] ** 2, k))
        new[k:] *= np.where(size > cone, cone / np.maximum(size, _TINY), 1.0)[owner]
        change = float(np.abs((new - f) * inverse_r).max())
        f = new
        if change <= limit:
            break
    else:
        if settings.strict:
            raise NoContactSolutionError(
                f"the proximal points of contacts {[settings.contacts[i].name for i in active]} "
                f"are not reached in {settings.max_sweeps} sweeps at t = {t:.9g} s (last change "
                f"{change:.3g} m/s, limit {limit:.3g} m/s): the mechanism is jammed, or tolerance "
                "is too small"
            )
    impulses = np.zeros(len(target))
    impulses[kept] = f
    return impulses


def _modes(rows: ContactSet, impulses: Array, rates: Array, standstill: float) -> Modes:
    """The modes that impulses and velocities after a step show."""
    modes = []
    for i, tangents in enumerate(rows.tangents):
        slip = rates[tangents]
        if impulses[i] <= 0.0:
            modes.append(OPEN)
        elif len(slip) == 0:
            modes.append(CLOSED)
        else:
            stands = float(np.linalg.norm(slip)) <= standstill
            modes.append(STICK if stands else default_slip(len(slip), slip))
    return tuple(modes)


def _guards(contacts: Sequence[Contact], before: Modes, after: Modes) -> tuple[str, ...]:
    """Names of the guards that stand for a change of modes."""
    names = []
    for contact, a, b in zip(contacts, before, after, strict=True):
        if a == b:
            continue
        if a == OPEN:
            names.append(f"{contact.name} closes")
        elif b == OPEN:
            names.append(f"{contact.name} opens")
        elif b in SLIPS:
            names.append(f"{contact.name} slips{b.removeprefix('slip')}")
        else:
            names.append(f"{contact.name} sticks")
    return tuple(names)
