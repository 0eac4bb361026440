"""The mode graph: whose guards count, and what a system tells of itself."""

import numpy as np
import pytest
from hybrid.samples import GRAVITY, ball

import hybridctl as hc
from hybridctl.hybrid.guards import GuardSet
from hybridctl.hybrid.model import ModeModel, Point, PointProperty

BOUNCE = hc.Reset(lambda t, x, u: np.array([x[0], -x[1]]))


class FallingPoint(Point):
    """A point of a ball."""

    @PointProperty
    def field(self):
        return np.array([self.x[1], -GRAVITY])

    @PointProperty
    def guards(self):
        return self.x[:1] - 1.0


class Falling(ModeModel):
    """A ball with a guard of its own, 1 m above the floor."""

    key, space, guard_names, point = "air", hc.VectorSpace(2), ("shelf",), FallingPoint


def below(name, height):
    return hc.Transition("air", hc.Guard(name, lambda t, x, u: x[0] - height), BOUNCE, "air")


def first_event(*transitions):
    system = hc.HybridSystem([Falling()], transitions)
    return hc.simulate(system, "air", [2.0, 0.0], (0.0, 0.7)).events[0]


@pytest.mark.parametrize(("name", "height"), [("shelf", 1.0), ("floor", 0.5)])
def test_guards_of_a_mode_count_where_transitions_name_them_and_else_theirs(name, height):
    """Its shelf is at 1 m, whatever a transition of this name says; a floor is where it is said."""
    event = first_event(below(name, 0.5))
    assert event.guards == (name,)
    np.testing.assert_allclose(event.time, np.sqrt(2.0 * (2.0 - height) / GRAVITY), rtol=1e-9)


def test_a_transition_of_more_guards_than_the_mode_has_brings_all():
    """Then the shelf, too, is where its transition says."""
    event = first_event(below("shelf", 0.2), below("floor", 0.5))
    assert event.guards == ("floor",)


def test_a_system_shows_its_guards_or_that_modes_have_them():
    assert repr(ball()) == "HybridSystem(guards floor)"
    assert "<td>floor</td>" in ball()._repr_html_()
    listed = ball()
    lazy = hc.HybridSystem(listed.mode, listed.outgoing)
    assert repr(lazy) == "HybridSystem(guards by mode)"
    assert "<td>by mode</td>" in lazy._repr_html_()
    assert repr(hc.HybridSystem(listed.mode, listed.outgoing, ("floor",))) == repr(listed)


def test_the_set_of_no_guards_has_empty_derivatives():
    found = GuardSet.of([]).jacobian(0.0, np.zeros(2), np.zeros(1))
    assert found.time.shape == (0,)
    assert found.state.shape == (0, 2)
    assert found.input.shape == (0, 1)
