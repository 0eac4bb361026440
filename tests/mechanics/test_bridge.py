"""Runs that are taken past a jam: impulses without collision, against closed forms."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hybridctl.robots import ball, public
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.base.errors import (
    BridgeWarning,
    InputError,
    JammingError,
    NoContactSolutionError,
    StepSizeError,
    ZenoError,
)
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.bridge import check_pole
from hybridctl.hybrid.guards import GuardSet
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.mode import Bridge, Edge, Outgoing, Reset
from hybridctl.hybrid.system import MappedSystem
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.mechanics.impacts.resets import PASSAGE_DEPTH

SPAN = (0.0, 0.1)
LONGEST = 1e-4  # s, of a bridge


def rod(mu=2.0, angle=-0.5, rate=-2.0, speed=-30.0, restitution=0.0, weight=9.81):
    """A uniform rod of 2 m and 1 kg at an angle to the ground, on which its tip slides."""
    body, down = free_body("rod", 1.0, (1e-3, 1.0 / 3.0, 1.0 / 3.0)), (0.0, 0.0, -weight)
    robot = Robot.from_urdf(body, root="sagittal", gravity=down)
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    tip = Contact(
        "tip", "rod", ground, offset=(-1.0, 0.0, 0.0), friction=mu, restitution=restitution
    )
    system = contact_system(robot, [tip])
    q, v = np.array([0.0, 0.0, angle]), np.array([0.0, 0.0, rate])
    q[1] -= system.dynamics.gaps(q)[0]
    rows = system.dynamics.contact_set.jacobian(q)[[1, 0]]
    v[:2] = np.linalg.solve(rows[:, :2], np.array([speed, 0.0]) - rows[:, 2] * rate)
    return system, np.concatenate([q, v])


def bridged(*of, mode="slip-", span=SPAN, **options):
    system, x = rod(*of)
    with pytest.warns(BridgeWarning, match="jam"):
        return system, hc.simulate(system, (mode,), x, span, **options)


@pytest.fixture(scope="module")
def jammed():
    """The rod, its run, and the ends of its first bridge."""
    system, run = bridged()
    first, last = [event for event in run.events if event.bridged is not None][:2]
    return system, run, first, last


@pytest.mark.parametrize("weight", [9.81, 40.0, 160.0])
def test_a_bridge_lasts_until_a_contact_has_fallen_by_its_depth(weight):
    """The tip of a rod that does not turn, let go, falls freely; by 1e-7 m in 1.4e-4 s on Earth."""
    system, x = rod(rate=0.0, weight=weight)
    bridge = system.outgoing(("slip-",)).bridge(0.0, x, np.zeros(0))
    assert bridge.length == pytest.approx(
        min(LONGEST, np.sqrt(2.0 * PASSAGE_DEPTH / weight)), rel=1e-6
    )


def kinetic(system, x):
    v = x[3:]
    return 0.5 * v @ system.robot.mass_matrix(x[:3]) @ v


def test_a_rod_that_jams_is_stopped_by_an_impulse_without_collision(jammed):
    """Where friction leaves no normal response, G_nn = mu |G_nt|, the impulse that stops the tip
    is on the cone: G (L_n, L_t) = (0, -v_t) has |L_t| = mu L_n. Within 1e-4 s velocities change by
    accelerations of w^2 r = 16 m/s^2 and g, so by 1e-3 of the speed of 30 m/s.
    """
    system, _, first, last = jammed
    q, v = first.state_before[:3], first.state_before[3:]
    rows = system.dynamics.contact_set.jacobian(q)
    response = rows @ np.linalg.solve(system.robot.mass_matrix(q), rows.T)
    normal, friction = np.linalg.solve(response, [0.0, -(rows @ v)[1]])
    assert friction == pytest.approx(2.0 * normal, rel=1e-3)
    assert last.impulses[0] == pytest.approx(normal, rel=1e-3)
    assert last.report.states == ("stick",)
    stopped = v + np.linalg.solve(system.robot.mass_matrix(q), rows.T @ [normal, friction])
    np.testing.assert_allclose(last.state_after[3:], stopped, atol=1e-3 * np.abs(v).max())


def test_a_bridge_loses_what_the_impulse_takes(jammed):
    """The energy of the sliding tip, v_t^2 / (2 G^-1)_tt; gaps are closed after it."""
    system, _, first, last = jammed
    q, v = first.state_before[:3], first.state_before[3:]
    rows = system.dynamics.contact_set.jacobian(q)
    response = rows @ np.linalg.solve(system.robot.mass_matrix(q), rows.T)
    slip = rows @ v
    loss = 0.5 * slip @ np.linalg.solve(response, slip)
    found = kinetic(system, first.state_before) - kinetic(system, last.state_after)
    assert found == pytest.approx(loss, rel=1e-3)
    assert last.report.energy_loss > 0.0
    assert abs(system.dynamics.gaps(last.state_after[:3])[0]) <= 1e-11
    assert system.dynamics.gaps(last.state_before[:3])[0] >= -1.1e-7


def test_a_bridge_has_two_events_that_say_so(jammed):
    _, run, first, last = jammed
    assert first.guards == ("sliding jams",)
    assert (first.mode_after, last.mode_before) == (("open",), ("open",))
    assert first.bridged == 0.0
    assert last.bridged == last.time - first.time
    assert 0.0 < last.bridged <= LONGEST * (1.0 + 1e-12)
    assert last.guards == ("tip closes",)
    assert "begins a bridge" in repr(first)
    assert f"ends a bridge of {last.bridged:.3g} s" in last._repr_html_()
    assert run.end == SPAN[1]


def test_a_run_with_a_bridge_has_no_derivative(jammed):
    system, run, first, _ = jammed
    with pytest.raises(InputError, match=f"sliding jams.*{first.time:.9g} s begins a bridge"):
        hc.linearize(system, run)
    with pytest.raises(InputError, match="ends a bridge"):
        hc.jump_derivative(system, run.events[1])


def test_bridges_are_saved(jammed, tmp_path):
    system, run, *_ = jammed
    run.save(tmp_path / "run.npz")
    loaded = hc.HybridTrajectory.load(tmp_path / "run.npz", system)
    assert [event.bridged for event in loaded.events] == [event.bridged for event in run.events]


def test_a_bridge_can_be_refused():
    system, x = rod()
    with pytest.raises(JammingError):
        hc.simulate(system, ("slip-",), x, SPAN, on_jam="raise")
    with pytest.raises(InputError, match="on_jam"):
        hc.simulate(system, ("slip-",), x, SPAN, on_jam="step")


def test_the_bridge_of_a_contact_that_rebounds_is_plastic(jammed):
    """It was closed: there is nothing to rebound from."""
    _, run = bridged(2.0, -0.5, -2.0, -30.0, 0.5)
    np.testing.assert_allclose(run.final_state, jammed[1].final_state, atol=1e-9)


def test_a_bridge_ends_where_the_policy_changes(jammed):
    """A sample of a digital controller is not missed, so its inputs are those of its times."""
    _, _, first, _ = jammed
    system, x = rod()
    period = first.time + 0.25 * LONGEST

    policy = hc.SampledPolicy(lambda t, x: np.zeros(system.robot.nu), period)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BridgeWarning)
        run = hc.simulate(system, ("slip-",), x, (0.0, 1.5 * period), policy)
    assert period in [event.time for event in run.events]


def test_a_bridge_ends_with_the_time_span(jammed):
    _, _, first, _ = jammed
    system, x = rod()
    end = first.time + 0.25 * LONGEST
    with pytest.warns(BridgeWarning):
        run = hc.simulate(system, ("slip-",), x, (0.0, end))
    assert run.end == run.events[-1].time == end


def test_a_system_that_is_mapped_has_the_bridges_of_the_one_inside(jammed):
    system, run, *_ = jammed
    mapped = MappedSystem(system, lambda key: Change())
    with pytest.warns(BridgeWarning):
        other = hc.simulate(mapped, ("slip-",), run.arcs[0](0.0), SPAN)
    np.testing.assert_allclose(other.final_state, run.final_state, atol=1e-9)


def test_events_that_accumulate_are_no_reason_for_a_bridge():
    bouncing = ball.system(ball.BallParameters(slope=0.0, restitution=0.5))
    start, options = [0.0, 0.1, 0.0, 0.0], {"on_zeno": hc.ZenoPolicy(False, min_dwell=1e-6)}
    with pytest.raises(ZenoError, match="accumulate"):
        hc.simulate(bouncing, ("open",), start, (0.0, 2.0), **options)


def test_events_that_accumulate_end_a_run_that_takes_no_rest():
    """Also where the system has a bridge there: events of one ratio are those of no jam."""
    space = hc.VectorSpace(2)
    air = hc.Mode("air", space, lambda t, x, u: np.array([x[1], -9.81]))
    bounce = Edge(Reset(lambda t, x, u: np.array([x[0], -0.5 * x[1]])), "air")
    floor = GuardSet(("floor",), lambda t, x, u: x[:1])
    bridge = Bridge("air", 1e-3, bounce)
    outgoing = Outgoing(floor, lambda fired: bounce, bridge=lambda t, x, u: bridge)
    system = hc.HybridSystem(lambda key: air, lambda key: outgoing)
    with pytest.raises(ZenoError, match="accumulate"):
        hc.simulate(system, "air", [1.0, 0.0], (0.0, 2.0), on_zeno="raise")


class Clock:
    """No input, under another law every 5 ms."""

    def law(self, history):
        return lambda t, x: np.zeros(0)

    def next_change(self, history):
        return history.time + 5e-3


def test_a_bridge_after_other_events_goes_on_from_the_last_of_them():
    """A law of 5 ms each: what came before the jam is kept, and each arc begins where one ends."""
    system, x = rod()
    with pytest.warns(BridgeWarning, match="jam"):
        run = hc.simulate(system, ("slip-",), x, SPAN, Clock())
    first = next(event for event in run.events if event.bridged is not None)
    assert first.index > 2
    assert [arc.index for arc in run.arcs] == list(range(len(run.events) + 1))
    for event, before, after in zip(run.events, run.arcs[:-1], run.arcs[1:], strict=True):
        assert before.end == event.time == after.start
        assert (before.mode, after.mode) == (event.mode_before, event.mode_after)


@pytest.mark.parametrize(
    ("pieces", "values", "fired", "pole"),
    [
        ([[1e-2, 1e-2]], [0.5, -1.0], ("b",), True),  # far beyond zero where it fires
        ([[1e-2, 1e-2]], [0.5, -1e-9], ("b",), False),
        ([[1e-2, 1e-12, 1e-13]], [0.5, 0.0], ("a", "b"), True),  # steps have shrunk
        ([[1e-2, 1e-12, 1e-13]], [0.5, 0.0], ("b",), False),  # alone: its own fall
        ([[1e-2, 1e-3, 1e-13]], [0.5, 0.0], ("a", "b"), False),  # only the cut one is short
        ([[1e-10, 5e-12, 1e-13]], [0.5, 0.0], ("a", "b"), False),  # all of them are short
        ([[8e-11, 3e-11, 7e-13, 1e-13]], [0.5, 0.0], ("a", "b"), False),  # a foot stops at once
        ([[2e-9, 7e-12, 1e-13]], [0.5, 0.0], ("a", "b"), True),
        # The law changes while steps shrink, and just before the event.
        ([[1e-2, 5e-10, 1e-10], [3e-11, 7e-13, 1e-13]], [0.5, 0.0], ("a", "b"), True),
        ([[1e-2, 5e-12, 1e-13], [1e-13]], [0.5, 0.0], ("a", "b"), True),
        # It changes just before a foot stops, after long steps, of which it cuts one.
        ([[1e-2, 1e-2, 1e-10], [3e-11, 7e-13, 1e-13]], [0.5, 0.0], ("a", "b"), False),
        ([[1e-2, 1e-13], [1e-13]], [0.5, 0.0], ("a", "b"), False),
        ([[1e-13], [1e-13]], [0.5, 0.0], ("a", "b"), False),
    ],
)
def test_a_pole_of_the_forces_is_told_from_an_event(pieces, values, fired, pole):
    lengths = np.concatenate(pieces)
    inputs = np.zeros((len(lengths), 8, 1))  # held, at 0, 1, ...
    inputs[:, 0, 0] = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    guards = GuardSet(("a", "b"), lambda t, x, u: np.array(values))
    mode = hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: np.zeros(1))
    away = lambda t, x, u: None  # noqa: E731
    outgoing = Outgoing(guards, lambda fired: None, bridge=away)
    system = hc.HybridSystem(lambda key: mode, lambda key: outgoing)
    series = np.zeros((len(lengths), 8, 1))
    starts = np.cumsum([0.0, *lengths])
    arc = Arc(0, "m", mode.space, 0.0, float(starts[-1]), starts[:-1], lengths, series,
              inputs)  # fmt: skip
    assert len(arc.pieces) == len(pieces)
    for bridges in (True, False):
        run = SimpleNamespace(system=system, bridges=bridges)
        if pole and bridges:
            with pytest.raises(StepSizeError, match="guard 'b' has a pole"):
                check_pole(run, arc, fired)
        else:
            check_pole(run, arc, fired)


@pytest.mark.slow
def test_a_foot_that_stops_at_once_is_no_pole():
    """Of a tilted drop of solo12, with perturbations for which a foot slides on at 4e-8 m/s.

    Its stop and the guard of jams, which is at 0.8 there, are one event, after steps of 1e-12 s.
    """
    system = public.system("solo12")
    rng = np.random.default_rng(3)
    roll, pitch = rng.uniform(-0.25, 0.25, (3, 2))[2]
    start = public.start("solo12", 0.02, roll, pitch)
    space = system.mode(("open",) * 4).space
    direction = np.random.default_rng(0).normal(size=space.ndx)
    x0 = space.normalize(space.integrate(start, 5e-7 * direction))
    run = hc.simulate(system, ("open",) * 4, x0, (0.0, 0.15), rtol=1e-11, atol=1e-11)
    assert not any(event.bridge for event in run.events)


@pytest.mark.parametrize(("steps", "most"), [(1, 8), (3, 8), (3, 2)])
def test_bridges_in_a_row_are_events_of_one_way(steps, most, monkeypatch):
    """A point at x = 1 - t that no mode takes at zero, until bridges of 1 ms have lifted it.

    On a bridge x' = 1; a mode "on" with x' = 0 takes what is above `steps` of them.
    """
    monkeypatch.setattr("hybridctl.hybrid.bridge._MAX_BRIDGES", most)
    length, space, none = 1e-3, hc.VectorSpace(1), GuardSet((), lambda t, x, u: np.zeros(0))

    def select(t, x, u):
        if x[0] < (steps - 0.5) * length:
            raise NoContactSolutionError(f"nothing holds the point; x = {x[0]}")
        return "on"

    modes = {
        "fall": hc.Mode("fall", space, lambda t, x, u: -np.ones(1)),
        "rise": hc.Mode("rise", space, lambda t, x, u: np.ones(1)),
        "on": hc.Mode("on", space, lambda t, x, u: np.zeros(1), select=select),
    }
    edge = Edge(Reset.identity(), "on")
    ways = {
        "fall": GuardSet(("ground",), lambda t, x, u: x),
        "rise": none,
        "on": none,
    }
    system = hc.HybridSystem(
        modes.__getitem__,
        lambda key: Outgoing(
            ways[key], lambda fired: edge, bridge=lambda t, x, u: Bridge("rise", length, edge)
        ),
    )
    if steps > most:
        with pytest.raises(NoContactSolutionError), pytest.warns(BridgeWarning):
            hc.simulate(system, "fall", [1.0], (0.0, 2.0))
        return
    with pytest.warns(BridgeWarning) as caught:
        run = hc.simulate(system, "fall", [1.0], (0.0, 2.0))
    assert len(caught) == 1
    assert str(caught[0].message).endswith("see on_jam: nothing holds the point")
    assert [arc.mode for arc in run.arcs] == ["fall", *["rise"] * steps, "on"]
    np.testing.assert_allclose([event.bridged for event in run.events], [0.0] + [length] * steps)
    times = 1.0 + length * np.arange(steps + 1)
    np.testing.assert_allclose([event.time for event in run.events], times, rtol=1e-12)
    assert [event.index for event in run.events] == list(range(steps + 1))
    assert [arc.index for arc in run.arcs] == list(range(steps + 2))
    assert run.final_state == pytest.approx(steps * length, rel=1e-9)


def test_a_bridge_begins_before_the_steps_that_approach_a_pole():
    """A point at x = t, and a field with a pole at x = 0.5: steps shrink to rounding before it."""
    space = hc.VectorSpace(2)
    pole = lambda t, x, u: np.array([1.0, 1.0 / max(0.5 - x[0], 1e-300)])  # noqa: E731
    modes = {
        "pole": hc.Mode("pole", space, pole),
        "on": hc.Mode("on", space, lambda t, x, u: np.zeros(2)),
    }
    guards = GuardSet(("g",), lambda t, x, u: np.ones(1))
    none, edge = GuardSet((), lambda t, x, u: np.zeros(0)), Edge(Reset.identity(), "on")
    bridge = Bridge("on", 1e-3, edge)
    system = hc.HybridSystem(
        modes.__getitem__,
        lambda key: Outgoing(
            guards if key == "pole" else none, lambda fired: edge, bridge=lambda t, x, u: bridge
        ),
    )
    with pytest.warns(BridgeWarning):
        run = hc.simulate(system, "pole", [0.0, 0.0], (0.0, 1.0))
    assert [event.bridged for event in run.events] == pytest.approx([0.0, 1e-3])
    assert run.arcs[0].end < 0.5 - 1e-9
    assert run.arcs[0].lengths[-1] > 1e-8
