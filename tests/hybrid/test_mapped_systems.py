"""Every wrapper of a system on every kind: what it tells without a mode is what the inner one does.

Names, consistent modes, and what it is while a wrench acts.
"""

from dataclasses import replace

import numpy as np
import pytest
from hybrid.mapped_kinds import T
from hybrid.mapped_wrappers import on_every_kind

import hybridctl as hc
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.hybrid.guards import GuardJacobian
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.mode import Jump, ResetJacobian, ResetModel
from hybridctl.hybrid.policy import History
from hybridctl.hybrid.system import MappedSystem, as_policy
from hybridctl.mechanics import Wrench
from hybridctl.mechanics.system import ContactSystem
from hybridctl.relaxation.guard_motion import GuardMotionSystem


@on_every_kind
def test_systems_have_the_names_of_the_inner_one(kind, wrap):
    """Labels of states, inputs and outputs, and guards, to which motions on guards add theirs."""
    k = kind()
    w = wrap(k)
    if not w.labels:
        pytest.skip("it has no labels")
    n, m = k.system.mode(k.key).space.nx, len(k.u) - w.v
    assert w.system.state_labels(k.key)[:n] == k.system.state_labels(k.key)
    assert w.system.input_labels(k.key)[:m] == k.system.input_labels(k.key)[:m]
    assert len(w.system.state_labels(k.key)) == n + w.p
    assert len(w.system.input_labels(k.key)) == len(w.u)
    outputs = k.system.mode(k.key).outputs(T, k.x, k.u)
    for name, value in outputs.items():
        shape = np.shape(value)
        assert w.system.output_labels(name, shape) == k.system.output_labels(name, shape)
    names, more = k.system.guard_names, w.system.guard_names
    assert more[: len(names)] == names if names is not None else more is None
    assert more == names or isinstance(w.system, GuardMotionSystem)


@on_every_kind
def test_what_is_drawn_of_a_wrapper_is_what_is_drawn_of_the_inner_one(kind, wrap):
    """A robot with its contacts, of which states of the wrapper begin with a state."""
    k = kind()
    w = wrap(k)
    if not w.labels:
        pytest.skip("it is no whole system")
    drawn, inner = w.system.mechanism, k.system.mechanism
    assert inner is (k.system if isinstance(k.system, ContactSystem) else None)
    assert drawn is (w.system if w.more else inner)  # a pushed robot is a robot
    assert drawn is None or drawn.contacts == inner.contacts


def consistent(system, x, u):
    """The consistent mode, or what is said where there is none."""
    try:
        return system.consistent_mode(x, u)
    except HybridctlError as error:
        return type(error), str(error)


@on_every_kind
def test_systems_tell_the_consistent_mode_of_the_inner_one(kind, wrap):
    """Under the inputs given, and under none: those that are held are held then, too."""
    k = kind()
    w = wrap(k)
    if not w.labels:
        pytest.skip("it is no whole system")
    assert consistent(w.system, w.x, w.u) == consistent(k.system, k.x, k.u)
    still = np.append(np.zeros(len(k.u) - w.v), k.u[len(k.u) - w.v :])
    assert consistent(w.system, w.x, None) == consistent(k.system, k.x, still)


@on_every_kind
def test_a_wrapper_that_is_pushed_is_the_wrapper_of_the_pushed_system(kind, wrap):
    """Where it can be; and a policy acts there with the wrenches beside it."""
    k = kind()
    w = wrap(k)
    if not w.labels:
        pytest.skip("it is no whole system")
    wrench = Wrench("block", (0.6, 0.0, 0.8), 0.0, 1.0)
    if not isinstance(k.system, ContactSystem):
        with pytest.raises(InputError, match=r"no bodies|push the system first"):
            w.system.pushed(wrench)
        assert w.system.resolve_policy(None) is None
        return
    wrench = replace(wrench, body=k.system.contacts[0].frame)
    if not w.pushes:
        with pytest.raises(InputError, match="push the system first"):
            w.system.pushed(wrench)
        return
    found, u = w.system.pushed(wrench), np.append(w.u, 0.4)
    if w.more:  # the wrapper is the push
        expected = k.system.pushed([wrench, wrench])
    else:
        expected = wrap(replace(k, system=k.system.pushed(wrench), u=u)).system
    one, other = (system.mode(k.key).calc(T, w.x, u) for system in (found, expected))
    np.testing.assert_array_equal(one.field, other.field)
    np.testing.assert_array_equal(one.guards, other.guards)
    assert one.mode.nu == other.mode.nu == len(u)
    assert found.input_labels(k.key) == expected.input_labels(k.key)
    law = as_policy(None, found).law(History(k.key, 0.5, w.x))
    assert law(0.5, w.x)[-1] == wrench.size


class Noting(ResetModel):
    """The identity, which notes what is known of the mode before it where it is derived."""

    def __init__(self):
        self.known = []

    def calc(self, t, x, u):
        return Jump(x)

    def calc_diff(self, at):
        self.known.append(at.before)
        return ResetJacobian(np.zeros(1), np.eye(1), np.zeros((1, 0)))


def test_a_reset_that_is_seen_through_a_change_knows_the_inner_mode_before_it():
    """So it need not solve again what that found."""
    slope = GuardJacobian(0.0, np.ones(1), np.zeros(0))
    guard = hc.Guard("end", lambda t, x, u: x[0], lambda t, x, u: slope)
    mode = hc.Mode("on", hc.VectorSpace(1), lambda t, x, u: np.array([-1.0]))
    reset = Noting()
    inner = hc.HybridSystem([mode], [hc.Transition("on", guard, reset, "on")])
    changes = {"on": Change()}
    system = MappedSystem(inner, changes.get)
    run = hc.simulate(system, "on", [0.5], (0.0, 0.5), terminal=lambda event: True)
    hc.jump_gains(system, run.events[0])
    (known,) = reset.known
    assert known.mode is inner.mode("on")
    assert (known.t, *known.x) == (run.events[0].time, *run.events[0].state_before)
