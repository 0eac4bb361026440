"""Jumps of events that are linearised together, against a flow that is known in closed form.

Fields are constant, and guards, resets and inputs are affine, also in time and input. Perturbed
runs are then affine in their perturbations, so that the jump to first order is the whole jump.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import NearGrazingWarning
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.model import ResetBatch, ResetJacobian
from hybridctl.hybrid.trajectory import Event
from hybridctl.sensitivity.jump_batches import find_jump_batches
from hybridctl.sensitivity.parameter_models import ParameterDerivatives

NX, NU, NEXT, NP = 3, 2, 2, 2
NONE = np.zeros(NP)
ROUNDING = 1e-12
"""Dimensionless: rounding of 1e-16 over the least guard rate, 0.5 where entries are some 3."""


class Jacobians(ResetBatch):
    """Derivatives of some affine resets, which hold but for those whose state begins with a 9."""

    def __init__(self, jumps):
        self.is_sound = np.array([at.x[0] != 9.0 for _, at in jumps])
        self._each = [reset.calc_diff(at) for reset, at in jumps]

    @property
    def jacobian(self):
        return ResetJacobian(*(np.array(each) for each in zip(*self._each, strict=True)))


class BatchedReset(hc.Reset):
    """A reset of functions whose derivatives are made together, whatever its functions are."""

    def find_batch(self, at, key):
        return key

    @classmethod
    def batch_jumps(cls, jumps):
        return Jacobians(jumps)


class Leg:
    """A guard and its reset, both affine in time, state, input and parameters p = 0."""

    def __init__(self, rng, guard=None):
        drawn = GuardJacobian(rng.normal(), rng.normal(size=NX), rng.normal(size=NU))
        self.guard = guard or drawn
        self.reset = ResetJacobian(
            rng.normal(size=NEXT), rng.normal(size=(NEXT, NX)), rng.normal(size=(NEXT, NU))
        )
        self.guard_p, self.reset_p = rng.normal(size=NP), rng.normal(size=(NEXT, NP))

    def jump(self, t, x, u, p=NONE):
        by_t, by_x, by_u = self.reset
        return by_t * t + by_x @ x + by_u @ u + self.reset_p @ p


class Affine:
    """Legs out of a mode "before" into a mode "after"."""

    def __init__(self, seed, guard=None):
        rng = np.random.default_rng(seed)
        self.fields = {"before": rng.normal(size=NX), "after": rng.normal(size=NEXT)}
        self.legs = {"first": Leg(rng, guard), "second": Leg(rng)}
        modes = [
            hc.Mode(key, hc.VectorSpace(len(f)), lambda t, x, u, f=f: f, NU)
            for key, f in self.fields.items()
        ]
        transitions = []
        for name, leg in self.legs.items():
            guard = hc.Guard(
                name,
                lambda t, x, u, g=leg.guard: g.time * t + g.state @ x + g.input @ u,
                lambda t, x, u, g=leg.guard: g,
            )
            reset = BatchedReset(leg.jump, lambda t, x, u, r=leg.reset: r)
            transitions.append(hc.Transition("before", guard, reset, "after"))
        self.system = hc.HybridSystem(modes, transitions)

    def make_event(self, rng, name, rate=None):
        """Return an event of a guard that falls at a rate of its own, or at the one given.

        The rate of the input is turned so that the guard has it.
        """
        leg, field = self.legs[name], self.fields["before"]
        rate = -rng.uniform(0.5, 2.0) if rate is None else rate
        t, x, u, du = 0.3, rng.normal(size=NX), rng.normal(size=NU), rng.normal(size=NU)
        by_t, by_x, by_u = leg.guard
        du += (rate - (by_t + by_x @ field + by_u @ du)) / (by_u @ by_u) * by_u
        after = leg.jump(t, x, u)
        return Event(0, t, "before", "after", (name,), x, after, u, u, du, np.zeros(0))

    def follow(self, event, dx, du, dp):
        """Return the change of the event's time, and that of the state after it, at one time.

        Both motions are straight lines: the guard of the perturbed one falls by `missing` where
        that of the nominal one is zero.
        """
        leg, before, after = self.legs[event.guards[0]], *self.fields.values()
        by_t, by_x, by_u = leg.guard
        missing = by_x @ dx + by_u @ du + leg.guard_p @ dp
        late = -missing / (by_t + by_x @ before + by_u @ event.input_rate)
        own = leg.jump(
            event.time + late,
            event.state_before + dx + before * late,
            event.input_before + du + event.input_rate * late,
            dp,
        )
        return late, own - after * late - event.state_after


def derivatives(affine):
    """The derivatives of the affine system by its parameters."""
    legs = affine.legs
    return ParameterDerivatives(
        ["p", "q"],
        lambda key, t, x, u: np.zeros((len(x), NP)),
        lambda key, t, x, u: np.array([leg.guard_p for leg in legs.values()]),
        lambda key, fired, t, x, u: legs[fired[0]].reset_p,
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("has_parameters", [False, True])
def test_jumps_are_those_of_straight_lines(seed, has_parameters):
    affine, rng = Affine(seed), np.random.default_rng([1, seed])
    events = [affine.make_event(rng, name) for name in ("first", "second", "first", "second")]
    model = derivatives(affine) if has_parameters else None
    (batch,) = find_jump_batches(affine.system, events, model)
    assert batch.numbers == [0, 1, 2, 3]
    gains = batch.gains
    for k, event in enumerate(events):
        dx, du = rng.normal(size=NX), rng.normal(size=NU)
        dp = rng.normal(size=NP) * has_parameters
        late, change = affine.follow(event, dx, du, dp)
        z = np.append(dx, dp) if has_parameters else dx
        found = gains.state[k] @ z + gains.input[k] @ du
        size = np.abs(gains.state[k]).max() + np.abs(gains.input[k]).max()
        np.testing.assert_allclose(found[:NEXT], change, rtol=0.0, atol=ROUNDING * size)
        np.testing.assert_array_equal(found[NEXT:], dp[: len(found) - NEXT])
        time = gains.time_state[k] @ z + gains.time_input[k] @ du
        assert time == pytest.approx(late, rel=ROUNDING * size, abs=ROUNDING * size)


def test_events_that_are_left_out_do_not_shift_the_others():
    """One whose guard rises, and one whose reset's derivative does not hold."""
    affine, rng = Affine(0), np.random.default_rng(2)
    events = [affine.make_event(rng, "first") for _ in range(5)]
    events[1] = affine.make_event(rng, "first", rate=0.7)
    events[3].state_before[0] = 9.0
    (batch,) = find_jump_batches(affine.system, events, None)
    assert batch.numbers == [0, 2, 4]
    for row, number in enumerate(batch.numbers):
        dx = rng.normal(size=NX)
        _, change = affine.follow(events[number], dx, np.zeros(NU), NONE)
        size = np.abs(batch.gains.state[row]).max()
        np.testing.assert_allclose(
            batch.gains.state[row] @ dx, change, rtol=0.0, atol=ROUNDING * size
        )


def test_rests_jams_and_events_of_several_guards_are_left_out():
    """They have no derivative of a single guard."""
    affine, rng = Affine(0), np.random.default_rng(3)
    events = [affine.make_event(rng, "first") for _ in range(5)]
    events[0] = replace(events[0], accumulation=0.31)
    events[2] = replace(events[2], bridged=0.0)
    events[3] = replace(events[3], guards=("first", "second"))
    (batch,) = find_jump_batches(affine.system, events, None)
    assert batch.numbers == [1, 4]


@pytest.mark.parametrize("is_earlier", [True, False])
def test_a_rate_that_changes_before_the_event_is_uncertain(is_earlier):
    """The event may be late by as much as its state is off. What is after it does not matter."""
    affine, rng = Affine(0), np.random.default_rng(4)
    given = affine.legs["first"].guard

    def differentiate(t, x, u):
        changes = t < 0.3 if is_earlier else t > 0.3
        return given._replace(state=given.state * (3.0 if changes else 1.0))

    mode = affine.system.mode("before")
    names, guards = mode.guard_names, mode.guard_set
    row = {"first": differentiate, "second": lambda t, x, u: affine.legs["second"].guard}
    system = hc.HybridSystem(
        [mode, affine.system.mode("after")],
        [
            hc.Transition(
                "before",
                hc.Guard(name, lambda t, x, u, i=i: guards.values(t, x, u)[i], row[name]),
                affine.system.outgoing("before").edge((name,)).reset,
                "after",
            )
            for i, name in enumerate(names)
        ],
    )
    events = [replace(affine.make_event(rng, "first"), accuracy=(1e-3, 1e-3)) for _ in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (batch,) = find_jump_batches(system, events, None)
    assert batch.numbers == [0, 1]
    assert len(caught) == 2 * is_earlier
    assert all(each.category is NearGrazingWarning for each in caught)


@pytest.mark.parametrize("term", ["time", "state", "input"])
def test_a_rate_that_is_the_rounding_of_its_terms_is_left_out(term):
    """Terms of 1000 and -1000 - 1e-7: the rate is 5e-11 of their sizes, and 1e-7 by itself."""
    other = {"time": "state", "state": "input", "input": "time"}[term]
    sizes = {"time": 0.0, "state": 0.0, "input": 0.0, term: 1e3, other: -1e3 - 1e-7}
    by_x, by_u = sizes["state"] * np.eye(NX)[0], sizes["input"] * np.eye(NU)[0]
    affine = Affine(0, GuardJacobian(sizes["time"], by_x, by_u))
    affine.fields["before"][:] = np.eye(NX)[0]
    x, u, after = np.zeros(NX), np.zeros(NU), np.zeros(NEXT)
    du = np.eye(NU)[0]
    event = Event(0, 0.3, "before", "after", ("first",), x, after, u, u, du, np.zeros(0))
    (batch,) = find_jump_batches(affine.system, [event, event], None)
    assert batch.numbers == []
