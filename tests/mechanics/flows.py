"""Fundamental solutions of simulated flows, written independently of the library's own.

Between events the variational equation is integrated beside the state with the analytic
Jacobians of the mode; at an event the saltation matrix is put together from the reset's
Jacobian and the fields and guards on both sides, as the saltation tutorial (2) prints it.
"""

import numpy as np
from scipy.integrate import solve_ivp

import hybridctl as hc
from hybridctl.hybrid.model import JumpPoint


def saltation(system, event):
    """Xi = D_x R + (f+ - D_x R f-) D_x g / (D_x g f-), for one guard."""
    (guard,) = event.guards
    before, after = system.mode(event.mode_before), system.mode(event.mode_after)
    outgoing = system.outgoing(event.mode_before)
    t, x, u = event.time, event.state_before, event.input_before
    reset = outgoing.edge(event.guards).reset.calc_diff(JumpPoint(t, x, u)).state
    row = outgoing.guards.names.index(guard)
    gradient = outgoing.guards.jacobian(t, x, u).state[row]
    f_before = before.field(t, x, u)
    f_after = after.field(t, event.state_after, event.input_after)
    slope = gradient @ f_before
    assert slope < 0.0
    return reset + np.outer(f_after - reset @ f_before, gradient) / slope


def transition(system, run):
    """D x(end) / D x(start), in tangent coordinates, for a run without input."""
    total = np.eye(system.mode(run.arcs[0].mode).space.ndx)
    for k, arc in enumerate(run.arcs):
        begins = k > 0 and "stick" in run.events[k - 1].mode_before
        total = _along(system, arc, begins) @ total
        if k < len(run.events):
            total = saltation(system, run.events[k]) @ total
    return total


def _along(system, arc, begins_to_slide):
    mode, space, n = system.mode(arc.mode), arc.space, arc.space.ndx
    u = np.zeros(mode.nu)

    def rate(t, z):
        x = arc(float(t))
        a = mode.jacobian(t, x, u).state + space.transport(mode.field(t, x, u))
        return (a @ z.reshape(n, n)).ravel()

    if arc.end <= arc.start:
        return np.eye(n)
    # The derivative does not exist at the instant at which a contact begins to slide.
    begin = arc.start + 1e-6 * (arc.end - arc.start) if begins_to_slide else arc.start
    # Where a contact begins or ends to slide in a surface the equation is stiff, as 1 / |v_t|.
    method = "Radau" if "slip" in arc.mode else "DOP853"
    solution = solve_ivp(
        rate, (begin, arc.end), np.eye(n).ravel(), method=method, rtol=1e-8, atol=1e-10
    )
    assert solution.success, solution.message
    return solution.y[:, -1].reshape(n, n)


def differences(system, mode, x0, t_span, h, directions, **options):
    """Central differences of the whole event-located flow along directions (ndx, k)."""
    space = system.mode(mode).space
    final = hc.simulate(system, mode, x0, t_span, **options).final_state
    columns = []
    for e in directions.T:
        ends = [
            hc.simulate(system, mode, space.integrate(x0, s * h * e), t_span, **options)
            for s in (1.0, -1.0)
        ]
        last = ends[0].arcs[-1].space
        plus, minus = (last.difference(final, end.final_state) for end in ends)
        columns.append((plus - minus) / (2.0 * h))
    return np.array(columns).T
