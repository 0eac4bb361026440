r"""Prediction: the mean by exact simulation, the covariance by its first order along that.

A prediction may begin outside its mode: just after an event a corrected mean can lie beyond the
guard that has fired while it moves back in. To first order that is right (its own event is still to
come, and the deviation is that from the arc continued past its beginning), so it flows on without
that guard until it is inside again.

Where the input is held, and one compiled step of the mode reaches the end with all guards surely
positive (see `step`), that step is the simulation.

Along an arc the covariance obeys :math:`\dot P = A P + P A^T + Q`, which is taken in a few large
panels. With P = X Y^{-1} it is the linear equation

.. math:: \frac{d}{dt} \begin{pmatrix} X \\ Y \end{pmatrix} =
    \begin{pmatrix} A & Q \\ 0 & -A^T \end{pmatrix} \begin{pmatrix} X \\ Y \end{pmatrix},

solved by Magnus' expansion of order six on three Gauss points (Blanes, Casas, Oteo, Ros 2009,
section 5): exact where A and Q are constant, whatever the length. A panel has to be halved where
the expansion is not accurate: its error is of order h^7, its distance e to the expansion of order
four of order h^5, so that e^(7/5) stands for it. That distance is of commutators, and nothing where
A and Q commute at all times. What three points miss of the integral is judged by what the rule of
one point misses more: a part e of it, of order h^2, stands for e^3, of order h^6.

This serves arcs of any simulation, noise that is a function of the state, and modes whose contacts
slide: their friction is stiff, and one panel holds where the error of a compiled step with its
noise (`ModeModel.transition`) is far too large. Elsewhere that step is taken: 9 instead of
46 us for a ball, 19 instead of 51 for a block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import expm

from hybridctl.checks import Array
from hybridctl.errors import EventLimitError, SimulationError, ZenoError
from hybridctl.estimation.estimate import Estimate, constrained, nearest_semidefinite, retracted
from hybridctl.estimation.jumps import jumped
from hybridctl.estimation.model import Model
from hybridctl.estimation.noise import Noise
from hybridctl.hybrid.laws import HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeModel
from hybridctl.hybrid.model import WholeStep
from hybridctl.hybrid.series import TO_SERIES, basis
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.tolerances import FORCED
from hybridctl.hybrid.trajectory import Arc, Event, HybridTrajectory
from hybridctl.sensitivity.propagation import Propagation, symmetric_part
from hybridctl.sensitivity.variation import coefficients

Generators = list[Array]

_NODES = 0.5 + np.array([-1.0, 0.0, 1.0]) * np.sqrt(0.15)
_FRACTIONS: list[float] = _NODES.tolist()
_TO_NODES: Array = basis(2.0 * _NODES - 1.0) @ TO_SERIES
_ORDERS = 7.0 / 5.0  # of the errors of both expansions
_INSTANT = 1e-300  # s, of an arc whose length has an inverse
_LONGEST = 6.0  # size of the exponent, above which growing exponentials lose digits
_ROUNDING = 1e-14  # of the covariance: noise this small need not be right
_HALVINGS = 24
_HALVINGS_FOR_NOISE = 10


def transition(
    mode: ModeModel, arc: Arc, noise: Noise | None, p: Array, rtol: float
) -> Propagation:
    """The flow of deviations along an arc, and the noise gathered on it.

    p (ndx, ndx): the covariance at its start, next to which rounding is judged. rtol: of each
    panel. Raises `SystemDefinitionError` if the field has no Jacobian, `InputError` for noise that
    does not fit the mode.
    """
    n = arc.space.ndx

    def panel(start: float, end: float) -> Generators:
        times = [start + c * (end - start) for c in _FRACTIONS]
        return [generator(mode, noise, t, *arc.state_and_input(t)) for t in times]

    none = np.zeros((n, n))
    total = Propagation(np.eye(n), none, none)
    if arc.end - arc.start <= _INSTANT:
        return total
    waiting = [(arc.start, arc.end, 0)]
    while waiting:
        start, end, halvings = waiting.pop()
        found = _across(panel(start, end), end - start, p, rtol, halvings)
        if found is None:
            middle = 0.5 * (start + end)
            waiting += [(middle, end, halvings + 1), (start, middle, halvings + 1)]
            continue
        total = Propagation(found.state @ total.state, found.covariance(total.noise), none)
    return total


def step_transition(
    mode: ModeModel, t: float, h: float, states: Array, u: Array, noise: Noise | None, p: Array,
    rtol: float,
) -> Propagation | None:  # fmt: skip
    """The same on one step of length h from t, with states (8, nx) at the nodes of `series`.

    u (nu,): the input, held. None where one panel is not accurate.
    """
    points = zip(_FRACTIONS, _TO_NODES @ states, strict=True)
    normalize = mode.space.normalize
    panel = [generator(mode, noise, t + c * h, normalize(x), u) for c, x in points]
    return _across(panel, h, p, rtol, 0)


def generator(mode: ModeModel, noise: Noise | None, t: float, x: Array, u: Array) -> Array:
    """The matrix (2 ndx, 2 ndx) of the linear equation at a point."""
    n = mode.space.ndx
    c = coefficients(mode, t, x, u)
    m = np.zeros((2 * n, 2 * n))
    m[:n, :n] = c.state
    np.negative(c.state.T, out=m[n:, n:])
    if noise is not None:
        m[:n, n:] = noise.matrix(mode, t, x, u, c.input)
    return m


def _across(
    generators: Generators, h: float, p: Array, rtol: float, halvings: int
) -> Propagation | None:
    """The flow across a panel with these generators at its Gauss points; None to halve it."""
    n = len(p)
    exponent, error = _exponent(generators, h)
    if not _accurate(exponent, error, p, rtol, halvings):
        return None
    whole = expm(exponent)
    matrix = whole[:n, :n]
    gathered = whole[:n, n:] @ matrix.T
    return Propagation(matrix, symmetric_part(gathered), np.zeros((n, n)))


class _Errors(NamedTuple):
    """How far Magnus' exponent is from that of order four, and from that of one Gauss point."""

    turned: Array
    bent: Array


def _exponent(generators: Generators, h: float) -> tuple[Array, _Errors | None]:
    """Magnus' exponent of order six, and what stands for its errors; None for none."""
    m1, m2, m3 = generators
    mean = h * m2
    if not ((m1 != m2) | (m3 != m2)).any():
        return mean, None
    slope, bend = np.sqrt(15.0) / 3.0 * h * (m3 - m1), 10.0 / 3.0 * h * (m3 - 2.0 * m2 + m1)
    straight = mean + bend / 12.0
    c1 = _commutator(mean, slope)
    c2 = _commutator(mean, 2.0 * bend + c1) / -60.0
    turned = _commutator(-20.0 * mean - bend + c1, slope + c2) / 240.0
    return straight + turned, _Errors(turned + c1 / 12.0, bend / 12.0)


def _commutator(a: Array, b: Array) -> Array:
    return a @ b - b @ a


def _accurate(exponent: Array, error: _Errors | None, p: Array, rtol: float, halvings: int) -> bool:
    """Whether a panel is short enough; flow and noise are judged apart, their units differ."""
    n = len(p)
    flow = exponent[:n, :n]
    size = float(np.sqrt(np.abs(flow @ flow).sum(axis=0).max()))  # bounds the eigenvalues
    if error is None:
        return size <= _LONGEST or halvings >= _HALVINGS
    turned, bent = np.abs(error.turned[:n]), np.abs(error.bent[:n])
    grown, gathered = np.abs(flow).max(), np.abs(exponent[:n, n:]).max()
    accuracy, share = rtol ** (1.0 / _ORDERS), rtol ** (1.0 / 3.0)
    exact = turned[:, :n].max() <= accuracy and bent[:, :n].max() ** 3 <= rtol * grown**2
    steady = halvings >= _HALVINGS or (size <= _LONGEST and exact)
    lost = max(turned[:, n:].max() - accuracy * gathered, bent[:, n:].max() - share * gathered)
    noisy = halvings < _HALVINGS_FOR_NOISE and lost > _ROUNDING * np.abs(p).max()
    return bool(steady and not noisy)


_ROUNDS = 20
_SHORTEST = 0.3  # of a prediction that fails: in this part of it the mode is kept
_BEYOND = 1.1  # of the time in which a guard is expected to be positive again


class Prediction(NamedTuple):
    """An estimate at a later time, and what happened on the way.

    transition (ndx+, ndx): the first-order map from the earlier deviation to this one, None where
    an event was piecewise linear. notes: what had to be replaced by something less exact. kept:
    whether a mode was kept, past its guards, because the simulation could not go on. befores: what
    was predicted just before each of the events.
    """

    estimate: Estimate
    events: tuple[Event, ...] = ()
    transition: Array | None = None
    notes: tuple[str, ...] = ()
    kept: bool = False
    befores: tuple[Prediction, ...] = ()

    def onward(self, estimate: Estimate, matrix: Array | None) -> Prediction:
        """The same with another estimate at its end, to which this first-order map has led."""
        whole = None
        if matrix is not None and self.transition is not None:
            whole = matrix @ self.transition
        return self._replace(estimate=estimate, transition=whole)


def predict(
    model: Model, estimate: Estimate, end: float, law: InputLaw, *, halve: bool = True
) -> Prediction:
    """The estimate at time `end`, through as many events as there are until then.

    Noise on the flow is gathered along each arc, between events. Where the simulation cannot go on,
    the time is halved, if asked for; in a quarter of it the mode is kept, at most up to its guards,
    with a covariance that says what is not known, and `notes` says so. Where even that takes too
    long the state is held for that time. Events that accumulate where the system knows no rest
    end in a state that is held, if they take no more speed away than the flow makes. A mode with
    a flow in closed form takes that, with the input that it begins with.
    """
    mode = model.system.mode(estimate.mode)
    if mode.flow is not None:
        return _flowed(model, mode, estimate, end, law)
    if estimate.time < end:
        found = _in_one_step(model, mode, estimate, end, law)
        if found is not None:
            return found
    now = Prediction(estimate, (), np.eye(mode.space.ndx))
    shortest = _SHORTEST if halve else 1.0
    now = _go(model, now, end, law, shortest * (end - estimate.time))
    e = now.estimate
    return now._replace(estimate=replace(e, covariance=nearest_semidefinite(e.covariance)))


def _flowed(model: Model, mode: ModeModel, e: Estimate, end: float, law: InputLaw) -> Prediction:
    """The estimate at time `end` by the closed form of its mode."""
    u = law(e.time, e.mean)
    assert mode.flow is not None
    noise, density = model.process_noise, None
    if noise is not None:
        through = np.zeros((0, 0))
        if noise.through_input:
            through = coefficients(mode, e.time, e.mean, u).input
        density = noise.matrix(mode, e.time, e.mean, u, through)
    flow = mode.flow(e.time, e.mean, u, end - e.time, density)
    p = flow.matrix @ e.covariance @ flow.matrix.T + flow.noise
    after = Estimate(e.mode, end, flow.state, 0.5 * (p + p.T), e.since)
    return Prediction(after, transition=flow.matrix)


def _in_one_step(
    model: Model, mode: ModeModel, e: Estimate, end: float, law: InputLaw
) -> Prediction | None:
    """The prediction by one compiled step on which nothing happens; None where there is none."""
    if not isinstance(law, HeldInput):
        return None
    h, u = end - e.time, law.value
    noise = model.diffusion(mode)
    if noise is not None and not mode.paced:
        moved = mode.transition(e.time, e.mean, u, h, model.rtol, model.atol, noise)
        if moved is None or not moved.error < 1.0:
            return None
        assert moved.noise is not None
        assert moved.bounds is not None
        if not (moved.bounds > 0.0).all():
            return None
        p = moved.matrix @ e.covariance @ moved.matrix.T + moved.noise
        after = Estimate(
            e.mode,
            end,
            constrained(mode, mode.space.normalize(moved.state)),
            0.5 * (p + p.T),
            e.since,
        )
        return Prediction(after, (), moved.matrix)
    taken = _taken(model, mode, e, h, law)
    if taken is None or not (taken.bounds > 0.0).all():
        return None
    return _ended(model, mode, e, end, taken, u)


def _ended(
    model: Model, mode: ModeModel, e: Estimate, end: float, taken: WholeStep, u: Array
) -> Prediction | None:
    """The prediction at the end of a compiled step, None where its covariance needs several."""
    noise, p = model.process_noise, e.covariance
    flow = step_transition(mode, e.time, end - e.time, taken.states, u, noise, p, model.rtol)
    if flow is None:
        return None
    x = constrained(mode, mode.space.normalize(taken.states[-1]))
    return Prediction(
        Estimate(e.mode, end, x, nearest_semidefinite(flow.covariance(p)), e.since), (), flow.state
    )


def step_along(model: Model, e: Estimate, end: float, law: InputLaw) -> Prediction | None:
    """The estimate at a time before or after in the same mode, past its guards, by one step.

    None where there is no compiled step that is accurate.
    """
    mode = model.system.mode(e.mode)
    if not isinstance(law, HeldInput) or end == e.time:
        return None
    taken = _taken(model, mode, e, end - e.time, law)
    return None if taken is None else _ended(model, mode, e, end, taken, law.value)


def _taken(
    model: Model, mode: ModeModel, e: Estimate, h: float, law: HeldInput
) -> WholeStep | None:
    """A whole step that is accurate, if there is one."""
    taken = mode.step(e.time, e.mean, law, h, model.rtol, model.atol)
    if taken is None or not taken.error < 1.0:
        return None
    if mode.paced:
        pace = mode.pace(e.time, e.mean, law.value)
        if abs(h) > min(pace.longest_step, pace.relaxation):
            return None
    return taken


def _go(model: Model, now: Prediction, end: float, law: InputLaw, shortest: float) -> Prediction:
    """Simulations, one after the other where the mean is outside its mode or is moved by an event.

    As many as there may be events: a mean that stays outside would make them shorter and shorter.
    """
    rounds = 0
    while now.estimate.time < end:
        try:
            if rounds > _ROUNDS:
                raise SimulationError(f"the mean stays outside mode {now.estimate.mode!r}")
            rounds += 1
            now = _onward(model, now, end, law)
        except SimulationError as error:
            if now.estimate.time + shortest < end:
                middle = 0.5 * (now.estimate.time + end)
                half = _go(model, now, middle, law, shortest)
                return _go(model, half, end, law, shortest)
            now = _bounded(model, now, end, law)
            return now._replace(notes=(*now.notes, f"the mode was kept: {error}"), kept=True)
    return now


def _onward(model: Model, now: Prediction, end: float, law: InputLaw) -> Prediction:
    """One simulation: without the guards that the mean is outside of, as long as it is."""
    e = now.estimate
    outside, until = _outside(model, e, end, law)
    try:
        run = simulate(
            model.without(e.mode, outside) if outside else model.system,
            e.mode,
            e.mean,
            (e.time, until),
            law,
            rtol=model.rtol,
            atol=model.atol,
            max_events=1 if outside else model.max_events,
            on_zeno="rest",
            zeno_horizon=model.zeno_horizon,
            first_step=until - e.time,
        )
    except EventLimitError as error:
        if not outside:
            raise
        run = error.trajectory
    except ZenoError as error:
        if outside:
            raise
        there = _follow(model, now, error.trajectory, once=False)
        if there.estimate.time < error.trajectory.end:
            return there
        rest = _rested(model, there, end, law)
        if rest is None:
            raise
        return rest
    return _follow(model, now, run, once=bool(outside))


def _rested(model: Model, now: Prediction, end: float, law: InputLaw) -> Prediction | None:
    """The prediction held where events accumulate, of a system that knows no rest there.

    The guards that are zero, and their rates, stay zero; elsewhere the flow is what is not known.
    None where rates are larger than what the flow makes of them within `zeno_horizon`. The
    curvature of the guards is left out.
    """
    e, mode = now.estimate, model.system.mode(now.estimate.mode)
    u = law(e.time, e.mean)
    g = model.guards(e.mode, e.time, e.mean, u)
    closed = (np.abs(g) <= model.tolerances(e.mode)) & ~model.sees_input(e.mode, e.time, e.mean, u)
    rows, rates = (part[closed] for part in model.guard_rates(e.mode, e.time, e.mean, u))
    turning = rows @ coefficients(mode, e.time, e.mean, u).state
    made = np.abs(turning @ mode.field(e.time, e.mean, u)) * model.zeno_horizon
    if not closed.any() or (np.abs(rates) > FORCED * made).any():
        return None
    free = extend(model, now, end, law)
    held = np.vstack([rows, turning])
    left = np.eye(len(e.covariance)) - np.linalg.pinv(held) @ held
    way = mode.space.difference(e.mean, free.estimate.mean)
    p = left @ (free.estimate.covariance + np.outer(way, way)) @ left.T
    matrix = None if now.transition is None else left @ now.transition
    notes = (*now.notes, "events accumulate: their guards and rates are set to zero")
    return now._replace(estimate=replace(e, time=end, covariance=p), transition=matrix, notes=notes)


def _bounded(model: Model, now: Prediction, end: float, law: InputLaw) -> Prediction:
    """The prediction carried on in the same mode, whose mean is held where a guard falls.

    How it goes on from there is not known. That it may be all the way that the flow takes it past
    the guard is the deviation that the covariance gains.
    """
    e = now.estimate
    free = extend(model, now, end, law)
    outside, _ = _outside(model, e, end, law)
    try:
        x = model.stopped(e.mode, e.mean, e.time, end, law, outside)
    except SimulationError:
        x = e.mean
    way = model.system.mode(e.mode).space.difference(x, free.estimate.mean)
    p = free.estimate.covariance + np.outer(way, way)
    return free._replace(estimate=replace(free.estimate, mean=x, covariance=p))


def extend(model: Model, now: Prediction, end: float, law: InputLaw) -> Prediction:
    """The prediction carried on to time `end` in the same mode, past its guards.

    Where there is no way the state is held, and its covariance gains what the rates at its
    beginning would make of it; `notes` and `kept` say so.
    """
    e = now.estimate
    if not e.time < end:
        return now
    found = step_along(model, e, end, law)
    if found is not None:
        return now.onward(found.estimate, found.transition)
    try:
        arc = model.extended(e.mode, e.mean, e.time, end, law)
    except SimulationError as error:
        note = f"the state was held: {error}"
        way = (end - e.time) * model.system.mode(e.mode).field(e.time, e.mean, law(e.time, e.mean))
        p = e.covariance + np.outer(way, way) if np.isfinite(way).all() else e.covariance
        held = replace(e, time=end, covariance=p)
        return now._replace(estimate=held, notes=(*now.notes, note), kept=True)
    return now.onward(*along(model, model.system.mode(e.mode), arc, e, end))


def along(
    model: Model, mode: ModeModel, arc: Arc, e: Estimate, time: float
) -> tuple[Estimate, Array]:
    """An estimate at the end of an arc of a mode, which is at a time, and the map to it."""
    flow = transition(mode, arc, model.process_noise, e.covariance, model.rtol)
    p = flow.covariance(e.covariance)
    return replace(e, time=time, mean=arc(arc.end), covariance=p), flow.state


def _outside(model: Model, e: Estimate, end: float, law: InputLaw) -> tuple[tuple[str, ...], float]:
    """The guards that the mean is outside of, and the time until which to flow without them."""
    u = law(e.time, e.mean)
    g = model.guards(e.mode, e.time, e.mean, u)
    out = g < -model.tolerances(e.mode)
    if not out.any():
        return (), end
    _, rates = model.guard_rates(e.mode, e.time, e.mean, u)
    rising = out & (rates > 0.0)
    if rising.any():
        back = float((-g[rising] / rates[rising]).max())
        end = min(end, e.time + _BEYOND * back + 1e-9)
    names = model.system.outgoing(e.mode).guards.names
    return tuple(names[i] for i in np.flatnonzero(out)), end


def _follow(model: Model, now: Prediction, run: HybridTrajectory, once: bool) -> Prediction:
    """Along a simulation: to its end, or to an event that moves the mean off it.

    once: to the first event at most.
    """
    for k, arc in enumerate(run.arcs):
        mode = model.system.mode(arc.mode)
        now = now.onward(*along(model, mode, arc, now.estimate, arc.end))
        if k == len(run.events):
            return now
        event = run.events[k]
        past = now._replace(befores=(*now.befores, now._replace(befores=())))
        now = after_event(model, past, event, now.estimate.covariance)
        if once or not np.array_equal(now.estimate.mean, event.state_after):
            return now
    return now


def after_event(model: Model, now: Prediction, event: Event, p: Array) -> Prediction:
    """The estimate just after an event, with covariance p (ndx, ndx) just before it."""
    noise = model.reset_noise, model.guard_noise
    jump = jumped(model.system, event, p, model.strategy, *noise)
    mean, covariance = event.state_after, jump.covariance
    if jump.shift.any():
        space = model.system.mode(event.mode_after).space
        mean, covariance = retracted(space, mean, covariance, jump.shift)
    estimate = Estimate(event.mode_after, event.time, mean, covariance, since=event.time)
    notes = now.notes if jump.note is None else (*now.notes, jump.note)
    return now.onward(estimate, jump.matrix)._replace(events=(*now.events, event), notes=notes)
