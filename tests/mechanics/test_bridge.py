"""Runs that are taken past a jam: impulses without collision, against closed forms."""

import warnings

import numpy as np
import pytest
from hybridctl.robots.bodies import free_body

import hybridctl as hc
from hybridctl.errors import BridgeWarning, InputError, JammingError
from hybridctl.hybrid.mapped import Change
from hybridctl.hybrid.system import MappedSystem
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

SPAN = (0.0, 0.1)
LONGEST = 1e-4  # s, of a bridge


def rod(mu=2.0, angle=-0.5, rate=-2.0, speed=-30.0, restitution=0.0):
    """A uniform rod of 2 m and 1 kg at an angle to the ground, on which its tip slides."""
    robot = Robot.from_urdf(free_body("rod", 1.0, (1e-3, 1.0 / 3.0, 1.0 / 3.0)), root="sagittal")
    ground = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    tip = Contact(
        "tip", "rod", ground, offset=(-1.0, 0.0, 0.0), friction=mu, restitution=restitution
    )
    system = contact_system(robot, [tip])
    q, v = np.array([0.0, 0.0, angle]), np.array([0.0, 0.0, rate])
    q[1] -= system.dynamics.gaps(q)[0]
    rows = system.dynamics.all.jacobian(q)[[1, 0]]
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
    rows = system.dynamics.all.jacobian(q)
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
    rows = system.dynamics.all.jacobian(q)
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


def test_a_system_that_is_mapped_has_the_bridges_of_the_one_inside(jammed):
    system, run, *_ = jammed
    mapped = MappedSystem(system, lambda key: Change())
    with pytest.warns(BridgeWarning):
        other = hc.simulate(mapped, ("slip-",), run.arcs[0](0.0), SPAN)
    np.testing.assert_allclose(other.final_state, run.final_state, atol=1e-9)
