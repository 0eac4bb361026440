"""Every wrapper of a mode on every kind of system: each attribute is the inner one's.

Or what the wrapper says that differs. Attributes are all that modes, resets, edges and systems have
in public, derivatives among them, so that one that is added has to be compared here. What is
forwarded is compared to the last digit; under a wrench of size zero, which enters other functions,
and where one side is compiled, to rounding. Derivatives are those of values of the same mode by
central differences, too: steps of 1e-5 leave them 1e-10 of curvature and 1e-8 of rounding where
entries are of size 1e3.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from differences import central
from hybrid.mapped_kinds import T
from hybrid.mapped_wrappers import CLOSE, Wrapped, on_every_kind

import hybridctl as hc
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.hybrid.guards import GuardJacobian, GuardSet
from hybridctl.hybrid.laws import HeldInput, LinearFeedback
from hybridctl.hybrid.mapped import MappedMode, MappedReset
from hybridctl.hybrid.mode import Bridge, Edge, Held, Jump, JumpPoint, Outgoing, Pace
from hybridctl.hybrid.model import (
    CompiledSteps,
    Diffusion,
    ModeModel,
    Point,
    ResetModel,
    StepRequest,
    compute_jump_terms,
)

H, ROUNDING = 1e-5, 1e-12
AHEAD = 1e-3, 1e-9, 1e-9


@dataclass(frozen=True)
class Feedback(LinearFeedback):
    """A linear feedback with a limit."""

    gain: Any
    offset: Any
    limits: Any

    def __call__(self, t, x):
        return np.clip(self.offset - self.gain @ x, *self.limits)

    def find_offsets_and_gains(self, times):
        return np.tile(self.offset, (len(times), 1)), np.tile(self.gain, (len(times), 1, 1))


@dataclass
class Side:
    """A mode and a point, of the inner system or of the outer one; noisy: how many inputs change.

    reset, after: of an event.
    """

    system: Any
    mode: Any
    x: Any
    u: Any
    t: float
    noisy: int
    off: Any
    reset: Any = None
    after: Any = None

    @property
    def point(self):
        return self.mode.calc(self.t, self.x, self.u)

    @property
    def at(self):
        return self.t, self.x, self.u

    @property
    def sees(self):
        """Which inputs change and have noise: all that no wrapper holds."""
        return np.arange(len(self.u)) < self.noisy


def rows(made):
    """Derivatives of guards, given one by one."""
    return GuardJacobian(*(np.array(parts) for parts in zip(*made, strict=True)))


def raised(call):
    """What a call says that fails, None where it does not."""
    try:
        call()
    except HybridctlError as error:
        return type(error).__name__, str(error)
    return None


def held(s):
    """All of `Held`, at a state that is off it."""
    h = s.mode.held
    if h is None:
        return None
    told = {f.name: getattr(h, f.name) for f in fields(Held)}
    assert told.keys() == {
        "names", "residuals", "tolerances", "units", "jacobian", "refuse", "decay",
    }  # fmt: skip
    return {
        **told,
        "residuals": h.residuals(s.off),
        "jacobian": None if h.jacobian is None else h.jacobian(s.off),
        "refuse": h.refuse and raised(lambda: h.refuse("x0", "m", s.off)),
        "excess": h.excess(s.off),
        "check": (
            raised(lambda: h.check("x0", "m", s.off)),
            raised(lambda: h.check("x", "m", s.x)),
        ),
    }


def guard_set(s):
    g = s.mode.guard_set
    told = {f.name: getattr(g, f.name) for f in fields(GuardSet)}
    assert told.keys() == {"names", "values", "jacobian", "scales", "one"}
    n = range(len(g.names))
    return (
        np.array(g.names), g.values(*s.at), np.array([g.value(i, *s.at) for i in n]),
        g.checked_values(s.mode.key, *s.at),
    )  # fmt: skip


def steps(s):
    """Under a held input, and under a feedback where there is one in this space."""
    ahead, space = StepRequest(s.t, s.x, *AHEAD), s.mode.space
    limits = np.stack((s.u - 1.0, s.u + 1e-4))
    law = Feedback(0.1 * np.ones((len(s.u), space.nx)), s.u + 0.1 * s.x.sum(), limits)
    compiled = s.mode.compiled_steps
    if compiled is None:
        return None
    fed = compiled.step(ahead, law) if isinstance(space, hc.VectorSpace) else None
    return compiled.step(ahead, HeldInput(s.u)), fed


def transitions(s):
    """Without noise, and with it; inputs that a wrapper holds have none."""
    ahead, n = StepRequest(s.t, s.x, *AHEAD), s.mode.space.ndx
    through = np.diag(s.sees).astype(float)
    noise = Diffusion(np.diag(np.arange(1.0, n + 1.0)), through, 0.5)
    compiled = s.mode.compiled_steps
    if compiled is None:
        return None
    return compiled.transition(ahead, s.u), compiled.transition(ahead, s.u, noise)


def several(s):
    """Three points at once: times, states in coordinates, and inputs."""
    space = s.mode.space
    moved = [space.integrate(s.x, size * np.ones(space.ndx)) for size in (0.0, 1e-4, -1e-4)]
    return np.full(3, s.t), np.array(moved), np.tile(s.u, (3, 1))


def batched(s):
    """Of three points at once, with steps of several lengths."""
    compiled = s.mode.compiled_steps
    found = compiled and compiled.batched
    if found is None:
        return None
    times, states, inputs = several(s)
    scalars = np.column_stack((times, [1e-3, 2e-3, 1e-4], np.full(3, 1e-9), np.full(3, 1e-9)))
    taken = (found.step(scalars, states, inputs), found.varied(scalars, states, inputs))
    return found.rate(times[:, None], states, inputs), *taken


def same(name):
    return lambda s: getattr(s.mode, name), lambda w, told: told


def called(name, seen):
    """A method of (t, x, u)."""
    return lambda s: getattr(s.mode, name)(*s.at), seen


def asked(name, seen):
    """An attribute of a point."""
    return lambda s: getattr(s.point, name), seen


def each(name, seen):
    """A method of a point and the index of a guard."""
    return lambda s: [getattr(s.point, name)(i) for i in range(len(s.mode.guard_names))], seen


def plain(w, told):
    return told


def if_paced(w, told):
    return told if w.paced else Pace()


MODE: dict[str, tuple[Callable, Callable]] = {
    "key": same("key"),
    "space": (
        lambda s: (s.mode.space.nx, s.mode.space.ndx),
        lambda w, sizes: tuple(n + w.p for n in sizes),
    ),
    "nu": (lambda s: s.mode.nu, lambda w, nu: nu - w.v + w.more),
    "guard_names": (lambda s: s.mode.guard_names, lambda w, names: names[w.kept]),
    "guard_scales": (
        lambda s: s.mode.guard_scales,
        lambda w, sizes: np.minimum(w.of_guards(sizes), w.scale),
    ),
    "guard_set": (guard_set, lambda w, parts: tuple(part[w.kept] for part in parts)),
    "held": (held, Wrapped.of_held),
    "project": (
        lambda s: s.mode.project and s.mode.project(s.off),
        lambda w, x: x if x is None else w.of_states(x),
    ),
    "differentiable": same("differentiable"),
    "guards_differentiable": same("guards_differentiable"),
    "selects": (lambda s: s.mode.selects, lambda w, told: told and w.selects),
    "steady_pace": (lambda s: s.mode.steady_pace, if_paced),
    "compiled_steps": (
        lambda s: s.mode.compiled_steps is not None,
        lambda w, told: told and w.steps,
    ),
    "calc": (
        lambda s: (s.point.field, s.point.guards),
        lambda w, both: (w.of_rates(both[0]), w.of_guards(both[1])),
    ),
    "calc_diff": (
        lambda s: s.mode.calc_diff(s.point),
        lambda w, d: d._replace(field=w.of_field(d.field), guards=w.of_slopes(d.guards)),
    ),
    "field": called("field", Wrapped.of_rates),
    "jacobian": called("jacobian", Wrapped.of_field),
    "guards": called("guards", Wrapped.of_guards),
    "outputs": called("outputs", plain),
}
POINT: dict[str, tuple[Callable, Callable]] = {
    "field": asked("field", Wrapped.of_rates),
    "guards": asked("guards", Wrapped.of_guards),
    "field_jacobian": asked("field_jacobian", Wrapped.of_field),
    "guard_jacobian": asked("guard_jacobian", Wrapped.of_slopes),
    "free_input": asked("free_input", Wrapped.of_free_input),
    "outputs": asked("outputs", plain),
    "selected_mode": asked("selected_mode", lambda w, key: key if w.selects else w.mode.key),
    "pace": asked("pace", if_paced),
    "guard": each("guard", lambda w, values: values[w.kept]),
    "guard_row": each("guard_row", Wrapped.of_rows),
}
STEPS: dict[str, tuple[Callable, Callable]] = {
    "step": (steps, lambda w, told: told and w.of_steps(told)),
    "transition": (transitions, lambda w, told: told and w.of_transitions(told)),
    "batched": (batched, Wrapped.of_batched),
    "retakes_steps": (
        lambda s: s.mode.compiled_steps and s.mode.compiled_steps.retakes_steps,
        lambda w, told: told if w.steps else None,
    ),
}
OF_RESETS = {"jump_terms", "batched_jump"}
"""Compared with resets."""
SHORTCUTS = {"sample_guards", "batched_slopes", "calc_together", "find_batch", "batch_jumps"}
"""What gives results of points and resets in fewer calls: wrappers have none, and ask each one."""


def jump_point(s):
    return JumpPoint(*s.at, s.reset(*s.at).report)


def jump(s):
    """All of a jump; its report is that of one solution of many, of which the type is compared."""
    made = s.reset.calc(*s.at)
    told = {f.name: getattr(made, f.name) for f in fields(Jump)}
    return {**told, "report": type(made.report)}


RESET: dict[str, tuple[Callable, Callable]] = {
    "differentiable": (lambda s: s.reset.differentiable, plain),
    "at_once": (lambda s: s.reset.at_once, plain),
    "keeps_field": (lambda s: s.reset.keeps_field, plain),
    "calc": (jump, Wrapped.of_jump),
    "calc_diff": (lambda s: s.reset.calc_diff(jump_point(s)), Wrapped.of_reset),
    "find_border": (
        lambda s: (
            s.after
            and s.reset.find_border(jump_point(s), s.after, np.where(s.sees, 0.9, 1.0) * s.u)
        ),
        Wrapped.of_border,
    ),
    "differentiate_departure": (
        lambda s: (
            s.reset.differentiate_departure(jump_point(s)) if s.reset.differentiable else None
        ),
        # Of parameters whose derivative of it is not known, that of the guard is taken.
        lambda w, told: None if told is None or w.p else w.of_rows([told])[0],
    ),
}


def compare(found, expected, close, what):
    """Whether two results are the same, part by part; nan is not expected."""
    if isinstance(expected, Mapping):
        assert expected.keys() <= found.keys(), what
        for name, part in expected.items():
            compare(found[name], part, close, f"{what}, {name}")
    elif isinstance(expected, (tuple, list)) and not isinstance(found, str):
        assert len(found) == len(expected), what
        for i, (one, part) in enumerate(zip(found, expected, strict=True)):
            compare(one, part, close, f"{what}, {i}")
    elif isinstance(expected, (float, np.ndarray)) and np.asarray(expected).dtype.kind == "f":
        assert np.shape(found) == np.shape(expected), what
        told = ~np.isnan(expected)
        one, part = np.asarray(found)[told], np.asarray(expected)[told]
        size = np.abs(part[np.isfinite(part)]).max(initial=1.0)
        np.testing.assert_allclose(one, part, rtol=0.0, atol=close * size, err_msg=what)
    else:
        assert np.array_equal(found, expected), f"{what}: {found} instead of {expected}"


def both_sides(k, w):
    inner = k.system.mode(k.key)
    if w.mode is None:
        w.mode = w.system.mode(k.key)
    off = inner.space.integrate(k.x, 1e-3 * np.ones(inner.space.ndx))
    noisy = len(k.u) - 1
    ours = Side(k.system, inner, k.x, k.u, T, noisy, off)
    return ours, Side(w.system, w.mode, w.x, w.u, w.t, noisy, w.of_states(off))


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (MODE.keys() | {"point"}, ModeModel),
        (POINT.keys() | {"mode"}, Point),
        (STEPS.keys() | OF_RESETS, CompiledSteps),
        (RESET.keys(), ResetModel),
    ],
    ids=["modes", "points", "steps", "resets"],
)
def test_all_that_is_public_is_compared(told, kind):
    names = {name for name in (*vars(kind), *kind.__annotations__) if not name.startswith("_")}
    assert told == names - SHORTCUTS


def test_shortcuts_are_those_that_wrappers_leave_to_the_default():
    kinds = {
        ModeModel: {"calc_together"},
        CompiledSteps: {"sample_guards", "batched_slopes"},
        ResetModel: {"find_batch", "batch_jumps"},
    }
    assert set().union(*kinds.values()) == SHORTCUTS
    for kind, wrapper in ((ModeModel, MappedMode), (ResetModel, MappedReset)):
        assert kinds[kind] <= vars(kind).keys()
        assert not kinds[kind] & vars(wrapper).keys(), "then it is to be compared"


@on_every_kind
def test_a_wrapped_mode_is_the_inner_one_but_for_what_differs(kind, wrap):
    k = kind()
    w = wrap(k)
    inner, outer = both_sides(k, w)
    for name, (ask, seen) in {**MODE, **POINT, **STEPS}.items():
        compare(ask(outer), seen(w, ask(inner)), w.close, name)


@on_every_kind
def test_edges_and_their_resets_are_the_inner_ones(kind, wrap):
    """Those of each event, of rest, and at a border; and the first order of the jump of a guard."""
    k = kind()
    w = wrap(k)
    if not w.edges:
        pytest.skip("it is a mode without edges")
    inner, outer = both_sides(k, w)
    ours, theirs = (s.system.outgoing(k.key) for s in (inner, outer))
    assert {f.name for f in fields(Outgoing)} == {"guards", "edge", "rest", "bridge"}
    assert theirs.guards.names == ours.guards.names[w.kept]
    for fired in (*k.events, ("none",)):
        for name in ("edge", "rest") if w.rests else ("edge",):
            found, expected = (getattr(ways, name)(fired) for ways in (theirs, ours))
            assert (found is None) == (expected is None), name
            if expected is not None:
                bordering = name == "edge" and fired == k.border
                inner.after = outer.after = (k.after or k.key) if bordering else None
                check_edge(w, inner, outer, expected, found, f"{name} of {fired}")
    check_bridge(k, w, ours, theirs)
    for fired in k.events:
        if len(fired) == 1 and fired[0] in w.mode.guard_names:
            check_terms(w, inner, outer, fired, (ours, theirs))


def check_edge(w, inner, outer, expected, found, what):
    assert {f.name for f in fields(Edge)} == {"reset", "target"}
    assert found.target == expected.target, what
    inner.reset, outer.reset = expected.reset, found.reset
    for name, (ask, seen) in RESET.items():
        if expected.reset.differentiable or name != "calc_diff":
            told = ask(inner)
            if name == "find_border" and inner.after is not None:
                assert told is not None, "the kind says that there is a border"
                if not w.borders:
                    with pytest.raises(InputError, match="no derivatives by parameters"):
                        ask(outer)
                    continue
            compare(ask(outer), seen(w, told), w.close, f"{what}, {name}")


def check_bridge(k, w, ours, theirs):
    """The way past an instant, and the state at its end."""
    assert (theirs.bridge is None) == (ours.bridge is None)
    if ours.bridge is None:
        return
    found, expected = theirs.bridge(w.t, w.x, w.u), ours.bridge(T, k.x, k.u)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert set(Bridge._fields) == {"mode", "length", "edge"}
        compare(found[:2], expected[:2], w.close, "bridge")
        jumps = [
            b.edge.reset(*at) for b, at in ((found, (w.t, w.x, w.u)), (expected, (T, k.x, k.u)))
        ]
        compare(jumps[0].state, w.of_states(jumps[1].state), w.close, "the end of the bridge")
        assert jumps[0].mode == jumps[1].mode


def check_terms(w, inner, outer, fired, ways):
    """One side may be compiled, so that rounding differs."""
    terms, together = [], []
    for s, out in zip((inner, outer), ways, strict=True):
        s.reset, i = out.edge(fired).reset, s.mode.guard_names.index(fired[0])
        if not s.reset.differentiable:
            return
        rate = np.where(s.sees, 0.7, 0.0)
        terms.append(compute_jump_terms(s.mode, i, s.reset, jump_point(s), rate))
        compiled = s.mode.compiled_steps
        function = compiled and compiled.batched_jump(i, s.reset)
        times, *rows = several(s)
        together.append(function and function(times[:, None], *rows))
    what, (name,) = f"jump terms of {fired}", fired
    compare(terms[1], w.of_terms(terms[0], name), max(w.close, ROUNDING), what)
    compare(together[1], together[0] if w.steps else None, w.close, f"{what} of many points")


def assert_close(found, expected, what):
    compare(found, expected, CLOSE, what)


@on_every_kind
def test_its_derivatives_are_those_of_its_values(kind, wrap):
    """By parameters that stand in for an input, those by this input."""
    k = kind()
    w = wrap(k)
    inner, outer = both_sides(k, w)
    mode, ndx = outer.mode, inner.mode.space.ndx
    acting = np.append(w.u[: len(w.u) - w.more], np.full(w.more, 0.05))
    slopes = mode.calc_diff(mode.calc(w.t, w.x, acting))
    by_last = {
        "field": inner.mode.jacobian(*inner.at).input,
        "guards": inner.point.guard_jacobian.input,
    }
    for name in ("field", "guards"):
        d, value = getattr(slopes, name), getattr(mode, name)
        moved = lambda dx, f=value: f(w.t, mode.space.integrate(w.x, dx), acting)  # noqa: E731
        by_state = central(moved, mode.space.ndx, H).reshape(d.state.shape)
        if w.offset is not None and name == "guards":
            by_state[:, -1] = [guard == w.offset for guard in mode.guard_names]
        if w.p and w.v:
            by_state[: len(by_last[name]), ndx:] = by_last[name][w.kept, -1:]
        assert_close(d.state, by_state, name)
        driven = lambda du, f=value: f(w.t, w.x, acting + du)  # noqa: E731
        assert_close(d.input, central(driven, mode.nu, H).reshape(d.input.shape), name)
    later, earlier = (mode.guards(w.t + s, w.x, acting) for s in (H, -H))
    assert_close(slopes.guards.time, (later - earlier) / (2.0 * H), "time")
