"""A simulated run judged: every sampled state, force and impact against the laws."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

import hybridctl as hc
from attack import api
from attack.laws import Array, violation
from attack.machines import Machine
from attack.rigid import Judge, Row, impact_law, row_forces, stacked

FORCE = 1e-7  # of the force unit F of the contact
LENGTH = 1e-6  # m: guards see gaps below -1e-8; where bounces end, what is left decays at 20 / s
ROUNDING = 2e-15  # of the terms of a speed, some twenty: a slow slip has its direction to as much
SPEED = 1e-6  # m/s, beside the speeds of order 1 of these systems
# A state of rest is taken up to 1e-5 s before bounces end, which leaves accelerations of 10 to
# 100 m/s^2 that many m/s, however slow the last bounces are, and impulses that hold it; those of
# light limbs that fold are larger, and leave as much more.
REST = 1e-3
MOST_BOUNCES = 2000
AT_ONCE = 1e-9  # relative
PER_ARC = 6


@dataclass
class Faults:
    """The largest residual of each kind in a run; see the limits above.

    pull, cone, oppose, impact in units of the data; motion: of M a + h = S u + J' f, relative to
    its largest term; penetration and held (closed gaps) in m; rate, and rest (where bounces are
    left out), in m/s.
    """

    pull: float = 0.0
    cone: float = 0.0
    oppose: float = 0.0
    motion: float = 0.0
    penetration: float = 0.0
    held: float = 0.0
    rate: float = 0.0
    impact: float = 0.0
    rest: float = 0.0

    def note(self, what: str, value: float) -> None:
        """Keep the larger; not a number is infinite."""
        value = float(value) if np.isfinite(value) else np.inf
        setattr(self, what, max(getattr(self, what), value))

    def wrong(self) -> dict[str, float]:
        """What exceeds its limit."""
        limit = {"penetration": LENGTH, "held": LENGTH, "rate": SPEED, "rest": REST}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: v for name, v in values.items() if v > limit.get(name, FORCE)}


def faults(
    machine: Machine, system: hc.HybridSystem, run: hc.HybridTrajectory, instant: float = 0.0
) -> Faults:
    """Judge states and forces at some times of each arc, and the impacts.

    instant: what lasts for less, in s, does not count: arcs, and forces that obey that long before
    or after.
    """
    judge, found = machine.judge(), Faults()
    for arc in run.arcs:
        mode = system.mode(arc.mode)
        for t in np.linspace(arc.start, arc.end, PER_ARC) if arc.end - arc.start > instant else []:
            near = []
            for s in {t, max(t - instant, arc.start), min(t + instant, arc.end)}:
                x, u = arc(float(s)), arc.input(float(s))
                outputs, acceleration = mode.outputs(s, x, u), mode.field(s, x, u)[judge.nv :]
                near.append(Faults())
                _judge_state(machine, judge, arc.mode, x, u, outputs, acceleration, near[-1])
            best = min(near, key=lambda fault: max(fault.pull, fault.cone, fault.oppose))
            for field in fields(best):
                found.note(field.name, getattr(best, field.name))
    for event in run.events:
        _judge_impact(machine, judge, event, found)
    return found


def _judge_state(machine, judge: Judge, modes, x, u, outputs, acceleration, found: Faults) -> None:
    q, v = x[: judge.nq], x[judge.nq :]
    rows, mass = judge.rows(q, v), judge.mass_matrix(q)
    push = machine.robot.actuation @ u - judge.bias(q, v) - machine.passive_torque(q, v)
    units = force_units(rows, mass, push)
    normal, friction = outputs["normal_force"], outputs["friction_force"]
    for i, row in enumerate(rows):
        found.note("penetration", -row.gap)
        if modes[i] == "open":
            found.note("motion", abs(normal[i]) + np.abs(friction[i]).max())
            continue
        mu, drag = machine.contacts[i].friction, friction[i][: len(row.axes) - 1]
        found.note("held", abs(row.gap))
        found.note("rate", abs(row.rates()[0]))
        found.note("pull", -normal[i] / units[i])
        found.note("cone", (np.linalg.norm(drag) - mu * normal[i]) / units[i])
        slip = row.rates()[1:]
        if modes[i] == "stick":
            found.note("rate", np.abs(slip).max(initial=0.0))
        elif (speed := np.linalg.norm(slip)) > SPEED:
            missed = np.abs(drag + mu * normal[i] * slip / speed).max()
            blurred = ROUNDING * (np.abs(row.rows()[1:]) @ np.abs(v)).max() / speed
            found.note("oppose", (missed - blurred * mu * normal[i]) / units[i])
    jacobian, _ = stacked(rows)
    forces = row_forces(rows, normal, friction)
    terms = np.array([mass @ acceleration, -push, -jacobian.T @ forces])
    found.note("motion", np.abs(terms.sum(axis=0)).max() / (np.abs(terms).max() or 1.0))


def force_units(rows: list[Row], mass: Array, push: Array) -> Array:
    """The force of each contact that makes the largest of the terms that contacts have to balance.

    Of the terms, not of their sum, which vanishes where a contact opens. Where nothing
    accelerates, of 1 m/s^2.
    """
    free = np.linalg.solve(mass, push)
    needed = max(
        (np.abs(row.rows()) @ np.abs(free) + np.abs(row.accelerations(0.0 * free))).max()
        for row in rows
    )
    mobility = [np.diag(row.rows() @ np.linalg.solve(mass, row.rows().T)).max() for row in rows]
    return np.asarray((needed or 1.0) / np.array(mobility))


def _judge_impact(machine: Machine, judge: Judge, event, found: Faults) -> None:
    impulses = api.impulses(event)
    if impulses is None:
        return
    normal, friction = impulses
    nq, rests, bridged = judge.nq, event.accumulation is not None, bool(event.bridged)
    q = (event.state_after if bridged else event.state_before)[:nq]  # a bridge closes gaps first
    before, after = event.state_before[nq:], event.state_after[nq:]
    closing = {guard.rsplit(" ", 1)[0] for guard in event.guards if guard.endswith(" closes")}
    at = [
        i
        for i, contact in enumerate(machine.contacts)
        if contact.name in closing
        or "open" not in (event.mode_before[i], event.mode_after[i])
        or normal[i] != 0.0
    ]
    law, jacobian = impact_law(judge, q, before, at, plastic=rests or bridged)
    forces = row_forces([judge.rows(q, before)[i] for i in at], normal[at], friction[at])
    residual = violation(law, forces).worst
    if rests:
        drive = max(1.0, _drive(machine, judge, event, at))
        closed = [i for i in at if event.mode_before[i] != "open"]
        missed = jacobian @ (after - _bounced_out(judge, q, before, at, closed))
        found.note("rest", max(residual * law.velocity_unit, np.abs(missed).max()) / drive)
    else:
        found.note("impact", residual)
    change, momentum = judge.mass_matrix(q) @ (after - before), jacobian.T @ forces
    size = np.abs(judge.mass_matrix(q)) @ (np.abs(after) + np.abs(before))
    found.note("rest" if rests else "impact", np.abs(change - momentum).max() / size.max())


def _drive(machine: Machine, judge: Judge, event, at: list[int]) -> float:
    """The largest acceleration of some contacts without their forces, in units of 100 m/s^2."""
    q, v = event.state_before[: judge.nq], event.state_before[judge.nq :]
    push = machine.robot.actuation @ event.input_before - judge.bias(q, v)
    free = np.linalg.solve(judge.mass_matrix(q), push - machine.passive_torque(q, v))
    rows = judge.rows(q, v)
    return max(float(np.abs(rows[i].accelerations(free)).max()) for i in at) / 100.0


def _bounced_out(judge: Judge, q: Array, v: Array, at: list[int], closed: list[int]) -> Array:
    """The velocity after impacts at a configuration, until no contact comes faster than REST / 10.

    For bounces that end so soon that forces do not count: gaps go on as they do, and the contacts
    that close first are hit, together with those that are closed. Not a number where that does not
    end.
    """
    gaps, inverse = judge.gaps(q)[at], np.linalg.inv(judge.mass_matrix(q))
    for _ in range(MOST_BOUNCES):
        rates = np.array([judge.rows(q, v)[i].rates()[0] for i in at])
        comes = rates < -0.1 * REST
        if not comes.any():
            return v
        wait = np.full(len(at), np.inf)
        wait[comes] = np.maximum(gaps, 0.0)[comes] / -rates[comes]
        first = (1.0 + AT_ONCE) * wait.min()
        hit = [i for i, t in zip(at, wait, strict=True) if t <= first or i in closed]
        gaps = gaps + wait.min() * rates
        law, jacobian = impact_law(judge, q, v, hit)
        v = v + inverse @ jacobian.T @ api.solved(law)
    return np.full(len(v), np.nan)
