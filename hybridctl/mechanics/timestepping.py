r"""Moreau-Jean time stepping: a second, independent simulator of the same robots.

Steps have one length h, but for shorter ones where a policy changes its law in between. They go
over impacts, accumulating ones too, without locating them:

.. math::
    q_m &= q \oplus \tfrac h2 v, \qquad
    M (v^+ - v) = h (S u - h_{bias}) + J_n^T P_n + J_t^T P_t, \\
    0 &\le v_n^+ + e v_n \perp P_n \ge 0, \qquad
    |P_t| \le \mu P_n \text{ against } v_t^+ + e_t v_t, \qquad
    q^+ = q_m \oplus \tfrac h2 v^+,

with all terms at the midpoint. Contacts whose gap there is zero or less take part, [RS] appendix
A.2. This is Coulomb's law of an impact, and is solved as such (`contact_law.solve_near`), from
the impulses of the step before. The scheme is first order in h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_interval, check_number, check_vector
from hybridctl.base.errors import (
    GuardViolatedError,
    IntegrationError,
    NoContactSolutionError,
    RiserError,
)
from hybridctl.hybrid.arc import Arc, make_arc_from_steps
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.policy import (
    History,
    Policy,
    ask_input_law,
    ask_next_change,
    compute_first_input,
)
from hybridctl.hybrid.series import FRACTIONS
from hybridctl.hybrid.step import Step
from hybridctl.hybrid.system import as_policy
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.mechanics.contact_law import solve_near
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, SLIPS, Modes
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.contacts.joint_contacts import AnyContact, JointStops, gap_unit
from hybridctl.mechanics.impacts.impact import mode_by_velocity
from hybridctl.mechanics.impacts.resets import PENETRATION, riser_error
from hybridctl.mechanics.modes.constraint_equations import build_impact_problem
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.guards import ContactGuard, Kind
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.system import ContactSystem, contact_system


@dataclass(frozen=True)
class _SteppedState:
    """The end of one step.

    Attributes:
        q: Configuration (nq,).
        v: Velocity (nv,).
        impulses: Impulses (r,) of the step along the rows of all contacts, N s or N m s; zero where
            open.
        modes: State of each contact in the law of the step, which is its mode during the step.
    """

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
    joint_stops: JointStops = False,
    joint_friction: bool = True,
    progress: Callable[[float], None] | None = None,
) -> HybridTrajectory:
    """Simulate a robot with contacts from x0 over t_span (s) by Moreau-Jean time stepping.

    The trajectory has the modes of `contact_system`, an event wherever they change, and guards
    named as there; velocities jump at the beginning of a step in which a contact closes. Only
    the kinetic coefficient of friction is used. Impulses obey the law of each step to 1e-9 of its
    velocities; those of redundant contacts are the smallest, and where velocities may differ too
    the states of the step before go on.

    Args:
        robot: The robot.
        contacts: Its contacts in space; may be empty where there are contacts of joints.
        x0: Initial state (q, v), (nq + nv,).
        t_span: Start and end, s.
        policy: Gives the input (nu,), N m or N; zero if None.
        step: Length of a step, s. It is changed so that a whole number of steps, at least one,
            makes
            up t_span.
        joint_stops: Which joints stop at their limits, as for `contact_system`: True for stops
            without restitution, the restitution of all, or that of each joint by name.
        joint_friction: Whether joints have their dry friction.
        progress: Called with the time reached, s, after each step; None for no call.

    Returns:
        The run.

    Raises:
        InputError: An argument is bad, or joint_stops asks for stops of a joint without limits.
        UnknownNameError: A name in joint_stops is no joint.
        GuardViolatedError: x0 penetrates by more than 1e-6 m or rad.
        IntegrationError: A state is not finite.
        NoContactSolutionError: No impulses obey the law, as is possible with restitution.
        RiserError: A contact runs into a riser of its `Stairs`.
    """
    start, end = check_interval("t_span", t_span)
    system = contact_system(robot, contacts, joint_stops=joint_stops, joint_friction=joint_friction)
    state = check_vector("x0", x0, system.space.nx)
    system.space.check("x0", state)
    check_number("step", step, above=0.0)
    gaps = system.dynamics.gaps(state[: robot.nq])
    if gaps.min() < -PENETRATION:
        deepest = system.contacts[int(gaps.argmin())]
        raise GuardViolatedError(
            f"x0 penetrates at contact {deepest.name!r}: gap {gaps.min():.3g} {gap_unit(deepest)}"
        )
    times = np.linspace(start, end, max(round((end - start) / step), 1) + 1).tolist()
    return _SteppedRun(system, as_policy(policy, system)).run(times, state, progress)


class _SteppedRun:
    """One run by time stepping: call `run` once.

    An arc is begun by `_begin_arc` and ended by `_end_arc`; `_add_event` does both. Between calls
    `_steps` has the steps of the present arc, `_modes` its modes, `_law` its input law, which holds
    until `_next_change` (s), and `_arcs` and `_events` what is complete.

    Args:
        system: Robot and contacts.
        policy: Policy of the input.
    """

    def __init__(self, system: ContactSystem, policy: Policy) -> None:
        self._system, self._policy, self._dynamics = system, policy, system.dynamics
        self._arcs: list[Arc] = []
        self._events: list[Event] = []

    def run(
        self, times: Sequence[float], x: Array, progress: Callable[[float], None] | None
    ) -> HybridTrajectory:
        """Return the run from a state.

        Args:
            times: Ends of all steps and the start, s, increasing.
            x: State (q, v) at the start.
            progress: Called with the time reached, s.

        Raises:
            IntegrationError: If a state is not finite.
        """
        t, dynamics = times[0], self._dynamics
        slip = dynamics.slip_velocities(x[: dynamics.robot.nq], x[dynamics.robot.nq :]).tolist()
        modes = tuple(
            mode_by_velocity(0.0, slip[i][:1]) if i in dynamics.pressed_contacts else OPEN
            for i in range(len(slip))
        )
        self._begin_arc(modes, t, x)
        impulses = np.zeros(len(dynamics.contact_set.owner))
        for t_next in times[1:]:
            while t < t_next:
                if t == self._next_change:
                    self._change_law(t, x)
                stop = min(t_next, self._next_change)
                after = _advance(dynamics, self._law, t, stop - t, x, impulses)
                if after.modes != self._modes:
                    x = self._change_modes(t, x, after)
                self._steps.append(self._sample_step(t, stop, x, after))
                t, x, impulses = stop, np.concatenate((after.q, after.v)), after.impulses
                if not np.isfinite(x).all():
                    raise IntegrationError(f"the state is not finite at t = {t:.9g} s")
            if progress is not None:
                progress(t_next)
        self._end_arc(t)
        return HybridTrajectory(tuple(self._arcs), tuple(self._events), self._system)

    def _begin_arc(self, modes: Modes, t: float, x: Array) -> None:
        """Set modes, start and input law of the next arc, which has no steps yet.

        Args:
            modes: Mode of each contact.
            t: Start, s.
            x: State (q, v) at the start.
        """
        self._modes, self._mode = modes, self._system.mode(modes)
        self._start, self._state = t, x
        self._steps: list[Step] = []
        self._update_law(t, x)
        self._input = compute_first_input(self._law, t, x, self._mode.nu)

    def _update_law(self, t: float, x: Array) -> None:
        """Set the input law from now on, and the time of its next change, from the policy."""
        history = History(self._modes, t, x, tuple(self._events))
        self._law = ask_input_law(self._policy, history, self._mode.nu)
        self._next_change = ask_next_change(self._policy, history)

    def _end_arc(self, t: float) -> None:
        """Add the present arc, which ends at time t, to the arcs."""
        arc = make_arc_from_steps(
            len(self._arcs), self._mode, self._steps, self._start, self._state, self._input, t
        )
        self._arcs.append(arc)

    def _change_modes(self, t: float, x: Array, stepped: _SteppedState) -> Array:
        """Return the state after an event at which modes change; end the arc with the event.

        Args:
            t: Time, s.
            x: State (q, v) before.
            stepped: End of the step that begins at t. Its velocity is that after the event, if a
                contact closes.
        """
        self._end_arc(t)
        hits = [a == OPEN != b for a, b in zip(self._modes, stepped.modes, strict=True)]
        q = x[: self._dynamics.robot.nq]
        after = np.concatenate((q, stepped.v)) if any(hits) else x
        impulses = stepped.impulses[: len(hits)]
        if not any(hits):
            impulses = np.zeros(len(hits))
        guards = _name_guards(self._dynamics.contacts, self._modes, stepped.modes)
        self._add_event(t, stepped.modes, guards, x, after, impulses)
        return after

    def _change_law(self, t: float, x: Array) -> None:
        """Change the input law, and end the arc unless both laws hold the input.

        Args:
            t: Time, s.
            x: State (q, v).
        """
        before = self._law
        if isinstance(before, HeldInput):
            self._update_law(t, x)
            if isinstance(self._law, HeldInput):
                return
            self._law = before
        self._end_arc(t)
        self._add_event(t, self._modes, (), x, x, np.zeros(len(self._dynamics.contacts)))

    def _add_event(
        self,
        t: float,
        modes: Modes,
        guards: tuple[str, ...],
        x: Array,
        after: Array,
        impulses: Array,
    ) -> None:
        """Add an event to the events, and begin the next arc.

        Args:
            t: Time, s.
            modes: Modes after it.
            guards: Names of its guards.
            x: State (q, v) before.
            after: State (q, v) after.
            impulses: Normal impulses (c,), N s.
        """
        u, rate = self._law(t, x), self._arcs[-1].input_rate(t)
        index, before, unknown = len(self._events), self._modes, np.zeros(self._mode.nu)
        event = Event(
            index=index,
            time=t,
            mode_before=before,
            mode_after=modes,
            guards=guards,
            state_before=x,
            state_after=after,
            input_before=u,
            input_after=unknown,
            input_rate=rate,
            impulses=impulses,
        )
        self._events.append(event)
        self._begin_arc(modes, t, after)
        self._events[-1] = replace(event, input_after=self._input)

    def _sample_step(self, t: float, t_next: float, x: Array, stepped: _SteppedState) -> Step:
        """Return samples of a step, as a straight line in the manifold.

        Args:
            t: Start, s.
            t_next: End, s.
            x: State (q, v) at the start.
            stepped: The end.
        """
        robot, nq = self._dynamics.robot, self._dynamics.robot.nq
        times = t + (t_next - t) * FRACTIONS
        along = robot.difference(x[:nq], stepped.q)
        q = [robot.integrate(x[:nq], fraction * along) for fraction in FRACTIONS]
        v = x[nq:] + FRACTIONS[:, None] * (stepped.v - x[nq:])
        states = np.hstack([np.array(q), v])
        inputs = np.array([self._law(time, z) for time, z in zip(times, states, strict=True)])
        return Step(t, t_next, states, inputs)


def _advance(
    dynamics: ContactDynamics, law: InputLaw, t: float, h: float, x: Array, near: Array
) -> _SteppedState:
    """Return the end of one step.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        law: Input law.
        t: Start, s.
        h: Length of the step, s.
        x: State (q, v) at the start.
        near: Impulses (r,) of the step before, N s.

    Raises:
        NoContactSolutionError: If no impulses obey the law.
        RiserError: If a contact runs into a riser.
    """
    robot, nq = dynamics.robot, dynamics.robot.nq
    v = x[nq:]
    q = robot.integrate(x[:nq], 0.5 * h * v)
    u = law(t + 0.5 * h, np.concatenate((q, v)))
    terms = dynamics.terms.values(q, v, u)
    _check_risers(dynamics, t, q, terms.gaps)
    free = v + h * np.linalg.solve(terms.mass, terms.drive)
    touching = tuple(OPEN if gap > 0.0 else CLOSED for gap in terms.gaps.tolist())
    phase = dynamics.phase(touching)
    if not phase.closed:
        return _SteppedState(
            robot.integrate(q, 0.5 * h * free), free, np.zeros(len(near)), touching
        )
    rows = terms.jacobian[phase.all_rows]
    rebound = (dynamics.select_restitution(terms.rates) * terms.rates)[phase.all_rows]
    free_rates, compliance = rows @ free + rebound, None
    if len(phase.pressed_places):
        compliance = dynamics.compute_compliance(phase, terms.mass)
        free_rates -= h * compliance * phase.loads
    system = KKT(terms.mass, rows, compliance=compliance)
    problem = build_impact_problem(phase, system, free_rates, free)
    try:
        found = solve_near(problem, near[phase.all_rows])
    except NoContactSolutionError as error:
        names = [dynamics.contacts[i].name for i in phase.closed]
        text = f"contacts {names} after t = {t:.9g} s: {error}"
        raise NoContactSolutionError(text, problem=problem) from error
    v_next, impulses = free + system.push @ found.forces, np.zeros(len(near))
    impulses[phase.all_rows] = found.forces
    modes: list[str] = list(touching)
    for i, mode in zip(phase.closed, found.modes, strict=True):
        modes[i] = mode
    return _SteppedState(robot.integrate(q, 0.5 * h * v_next), v_next, impulses, tuple(modes))


def _check_risers(dynamics: ContactDynamics, t: float, q: Array, gaps: Array) -> None:
    """Check that no contact is inside a stair and nearer in height to a lower tread.

    Args:
        dynamics: Dynamics of the robot with its contacts.
        t: Time, s.
        q: Configuration (nq,).
        gaps: Gaps (c,) there, m.

    Raises:
        RiserError: If one is.
    """
    inside = (gaps < 0.0) & (gaps < dynamics.contact_set.piece_gaps(q, gaps))
    if inside.any():
        error: RiserError = riser_error(dynamics, t, np.flatnonzero(inside).tolist())
        raise error


def _name_guards(contacts: Sequence[AnyContact], before: Modes, after: Modes) -> tuple[str, ...]:
    """Return the names of the guards that stand for a change of modes.

    Args:
        contacts: The contacts.
        before: Their modes before.
        after: Their modes after.
    """
    return tuple(
        ContactGuard(i, _select_guard_kind(a, b), SLIPS.get(b, 0.0)).name(contacts)
        for i, (a, b) in enumerate(zip(before, after, strict=True))
        if a != b
    )


def _select_guard_kind(before: str, after: str) -> Kind:
    """Return the kind of guard at which a contact goes from a mode into another one."""
    if before == OPEN:
        return "closes"
    if after == OPEN:
        return "opens"
    return "slips" if after in SLIPS else "sticks"
