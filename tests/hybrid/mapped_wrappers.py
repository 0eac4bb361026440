"""Wrappers of modes and systems, each with what it does otherwise than what it wraps."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hybrid.mapped_kinds import KINDS, T

import hybridctl as hc
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.system import MappedSystem
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics.system import ContactSystem
from hybridctl.relaxation.relax import relax_guards
from hybridctl.relaxation.sliding import Filippov, filippov
from hybridctl.relaxation.strip import Strips
from hybridctl.relaxation.zeno_rest import past_zeno
from hybridctl.sensitivity.parameter_models import ParameterDerivatives, fix_inputs_as_parameters
from hybridctl.sensitivity.parameters import augment_with_guard_offsets, augment_with_parameters

CLOSE = 1e-7


@dataclass
class Wrapped:
    """A wrapped system and a point of it, and what it does otherwise than the inner one.

    p: how many states are beside the inner ones. v: how many inputs are held; the derivatives by
    the first of p are those by the last of v. more: how many inputs the inner mode does not have.
    kept: which guards. scale: the largest of a guard. t: its time; sign: by which its field is the
    inner one's. steps, fed: whether it takes the inner steps, and those under a feedback. edges,
    labels: whether it has those. mode: given where the system has another one. close: how near
    numbers are, of their size, where they are not the same. offset: a guard that the only one of p
    moves. rests: whether what accumulates ends as in the inner system. pushes: whether it can be
    pushed.
    """

    system: Any
    x: Any
    u: Any
    p: int = 0
    v: int = 0
    more: int = 0
    kept: slice = field(default_factory=lambda: slice(None))
    scale: float = np.inf
    t: float = T
    sign: float = 1.0
    steps: bool = True
    fed: bool = True
    edges: bool = True
    labels: bool = True
    selects: bool = True
    paced: bool = True
    glued: bool = False
    borders: bool = True
    mode: Any = None
    close: float = 0.0
    offset: str | None = None
    rests: bool = True
    pushes: bool = True

    def of_states(self, x):
        return np.append(x, self.x[len(self.x) - self.p :])

    def of_rates(self, dx):
        return np.append(self.sign * dx, np.zeros(self.p))

    def of_guards(self, values):
        return values[..., self.kept]

    def of_inputs(self, u):
        cut = u[..., : u.shape[-1] - self.v]
        return np.concatenate((cut, np.full((*cut.shape[:-1], self.more), np.nan)), axis=-1)

    def beside(self, by_state, by_input):
        """Derivatives by the outer state and input, of which nan is not compared."""
        last = by_input[..., -1:] if self.v else np.zeros((*by_state.shape[:-1], 1))
        columns = np.repeat(last, self.p, axis=-1)
        return np.concatenate((by_state, columns), axis=-1), self.of_inputs(by_input)

    def of_field(self, d):
        state, by_input = self.beside(self.sign * d.state, self.sign * d.input)
        return d._replace(
            state=np.vstack((state, np.zeros((self.p, state.shape[1])))),
            input=np.vstack((by_input, np.zeros((self.p, by_input.shape[1])))),
        )

    def of_free_input(self, moved):
        by_input = self.sign * self.of_inputs(moved)
        return np.vstack((by_input, np.zeros((self.p, by_input.shape[1]))))

    def of_slopes(self, d):
        """Of guards."""
        state, by_input = self.beside(d.state, d.input)
        if self.offset is not None:
            state[:, -1] = [name == self.offset for name in self.mode.guard_names]
        return GuardJacobian(*(a[self.kept] for a in (d.time, state, by_input)))

    def of_rows(self, each):
        """Of guards, one by one."""
        rows = [self.of_distance(d) for d in each[self.kept]]
        for d, name in zip(rows, self.mode.guard_names, strict=True):
            if self.offset is not None:
                d.state[-1] = name == self.offset
        return rows

    def of_distance(self, d):
        return GuardJacobian(d.time, *self.beside(d.state, d.input))

    def of_reset(self, d):
        state, by_input = self.beside(d.state, d.input)
        below = np.eye(self.p, state.shape[1], state.shape[1] - self.p)
        none = np.zeros((self.p, by_input.shape[1]))
        time = np.append(d.time, np.zeros(self.p))
        return GuardJacobian(time, np.vstack((state, below)), np.vstack((by_input, none)))

    def of_terms(self, terms, name):
        """Of the first order of a jump of this guard, whose offset delays it by 1 / slope."""
        by_time = self.beside(terms.time_state, terms.time_input)
        if self.offset == name:
            by_time[0][-1] = -1.0 / terms.slope
        d = GuardJacobian(terms.reset_rate, terms.reset_state, terms.reset_input)
        rate, *by_reset = self.of_reset(d)
        return terms._replace(
            time_state=by_time[0], time_input=by_time[1],
            reset_state=by_reset[0], reset_input=by_reset[1], reset_rate=rate,
        )  # fmt: skip

    def of_jump(self, jump):
        return {**jump, "state": self.of_states(jump["state"])}

    def of_border(self, border):
        if border is None:
            return None
        return border._replace(
            distance=self.of_distance(border.distance),
            positive=self.of_reset(border.positive),
            negative=self.of_reset(border.negative),
        )

    def of_held(self, held):
        if held is None:
            return {"names": (), "residuals": np.zeros(0)} if self.glued else None
        d = held["jacobian"]
        beside = None if d is None else np.hstack((d, np.zeros((len(d), self.p))))
        return {**held, "jacobian": beside}

    def of_steps(self, steps):
        if not self.steps:
            return None
        held, fed = (
            step and step._replace(
                inputs=self.of_inputs(step.inputs),
                guards=self.of_guards(step.guards),
                bounds=self.of_guards(step.bounds),
            )
            for step in steps
        )  # fmt: skip
        return held, fed if self.fed else None

    def of_batched(self, rows):
        """Of steps from many points: rates, those of a step, and those of a varied one."""
        if rows is None or not self.steps:
            return None
        rates, (*moved, guards, bounds), varied = rows
        return rates, [*moved, self.of_guards(guards), self.of_guards(bounds)], varied

    def of_transitions(self, moved):
        if not self.steps:
            return None
        plain, noisy = moved
        return plain, noisy and noisy._replace(bounds=self.of_guards(noisy.bounds))


def plainly(k):
    return Wrapped(MappedSystem(k.system, lambda key: Change()), k.x, k.u, steps=False)


def without_a_guard(k):
    names = k.system.mode(k.key).guard_names
    if not names:
        pytest.skip("it has no guards")
    reduced = NoisySystem(k.system, None).without_guards(k.key, names[:1])
    return Wrapped(reduced, k.x, k.u, kept=slice(1, None))


def without_guards(k):
    return Wrapped(NoisySystem(k.system, None).unguarded_system, k.x, k.u, kept=slice(0, 0))


def staying(k):
    """Whatever its forces say, and without one of its guards."""
    names = k.system.mode(k.key).guard_names
    mode = NoisySystem(k.system, None).build_fixed_mode(k.key, names[:1])
    return Wrapped(
        None, k.x, k.u, kept=slice(1, None), mode=mode, selects=False, edges=False, labels=False
    )


def with_other_guards(k):
    """The same ones, given again."""
    own = k.system.outgoing(k.key).guards
    given = GuardSet(own.names, own.values, own.jacobian, own.scales)

    def ways(key):
        return replace(k.system.outgoing(key), guards=given)

    made = hc.HybridSystem(k.system.mode, ways, k.system.guard_names)
    return Wrapped(made, k.x, k.u, steps=False, labels=False)


def with_held_inputs(k):
    held, _ = fix_inputs_as_parameters(k.system, {"last": k.u[-1]})
    return Wrapped(held, k.x, k.u[:-1], v=1, fed=False, pushes=False)


def run_of(k):
    return hc.HybridTrajectory((), (), k.system)


def as_states(k):
    """The last input as a parameter beside the state; its derivatives are those by this input."""
    held, by = fix_inputs_as_parameters(k.system, {"last": k.u[-1]})
    wrapped, _ = augment_with_parameters(held, run_of(k), by)
    return Wrapped(
        wrapped, np.append(k.x, 0.0), k.u[:-1], p=1, v=1, steps=False, borders=False, pushes=False
    )


def without_effect(k):
    """Two parameters that change nothing."""
    mode = k.system.mode(k.key)
    nothing = ParameterDerivatives(
        ("a", "b"),
        lambda key, t, x, u: np.zeros((mode.space.ndx, 2)),
        lambda key, t, x, u: np.zeros((len(mode.guard_names), 2)),
        None,
        moves_borders=False,
    )
    wrapped, _ = augment_with_parameters(k.system, run_of(k), nothing)
    return Wrapped(wrapped, np.append(k.x, [0.0, 0.0]), k.u, p=2, steps=False, pushes=False)


def with_an_offset(k):
    """Of the guard of an event."""
    if not k.system.mode(k.key).guard_names:
        pytest.skip("it has no guards")
    name, none = k.system.mode(k.key).guard_names[0], np.zeros(0)
    before, after = (k.x, k.x), (k.u, k.u, np.zeros_like(k.u))
    event = Event(0, T, k.key, k.key, (name,), *before, *after, none, None)
    wrapped, _ = augment_with_guard_offsets(k.system, event)
    x = np.append(k.x, 0.0)
    return Wrapped(wrapped, x, k.u, p=1, offset=name, steps=False, pushes=False)


def backwards(k):
    mode, _ = NoisySystem(k.system, None).flow_backwards(k.key, k.x, 2.0 * T, 1e-4, HeldInput(k.u))
    return Wrapped(
        None, k.x, k.u, kept=slice(0, 0), sign=-1.0, steps=False, paced=False, mode=mode,
        edges=False, labels=False,
    )  # fmt: skip


def with_starts_refused(k):
    """As where sliding motions are modes, with guards of one side each."""
    glued = Filippov(Strips(k.system, 0.0))
    glued.get_strip = lambda key, name: SimpleNamespace(
        has_two_sides=False,
        source=k.system.mode(key),
        guard=SimpleNamespace(evaluate=lambda t, x, u: 1.0),
    )
    glued.max_guard_scale = 0.5
    return Wrapped(glued, k.x, k.u, scale=0.5, glued=True, labels=False)


def with_strips(k, made):
    """The modes of a system that has others on its guards, where these are defined."""
    try:
        made.mode(k.key)
    except (SystemDefinitionError, InputError):
        pytest.skip("it has no strips")
    return Wrapped(made, k.x, k.u, glued=True, edges=False)


def sliding(k):
    return with_strips(k, filippov(k.system))


def relaxed(k):
    """Its guards are of the size of 1e4 strips at most."""
    w = with_strips(k, relax_guards(k.system, 1e-5))
    return replace(w, scale=0.1)


def resting(k):
    """It comes to rest otherwise, where its events accumulate."""
    return Wrapped(past_zeno(k.system), k.x, k.u, rests=False)


def pushed(k):
    """By a wrench of size zero; what sizes do besides is compared with differences."""
    if not isinstance(k.system, ContactSystem):
        pytest.skip("it has no bodies")
    frame = k.system.contacts[0].frame
    made = k.system.pushed(hc.mechanics.Wrench(frame, (0.6, 0.0, 0.8), 0.0, 1.0))
    return Wrapped(made, k.x, np.append(k.u, 0.0), more=1, steps=False, close=CLOSE)


WRAPPERS = [
    plainly, without_a_guard, without_guards, staying, with_other_guards, with_held_inputs,
    as_states, without_effect, with_an_offset, backwards, with_starts_refused, sliding, relaxed,
    resting, pushed,
]  # fmt: skip


def on_every_kind(test):
    """The test, with every wrapper on every kind."""
    for name, made in (("wrap", WRAPPERS), ("kind", KINDS)):
        test = pytest.mark.parametrize(name, made, ids=lambda f: f.__name__)(test)
    return test
