"""A bouncing ball against its closed form.

Between impacts the flow is a parabola, which the integrator and the stored polynomials represent
exactly, so that only rounding remains: 12 impacts within 6 s leave some 1e-15 s each.
"""

import numpy as np
import pytest
from hybrid.samples import GRAVITY, ball, impact_times

import hybridctl as hc
from hybridctl.base import errors


@pytest.mark.parametrize("restitution", [0.6, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("height", [0.01, 1.0, 100.0])
def test_first_twelve_impact_times_are_the_closed_form(restitution, height):
    expected = impact_times(height, restitution, 12)
    traj = hc.simulate(ball(restitution), "air", [height, 0.0], (0.0, expected[-1] + 1e-6))
    times = np.array([event.time for event in traj.events[:12]])
    # rounding of times that are sums of ten terms of this size
    np.testing.assert_allclose(times, expected, rtol=0, atol=1e-12 * max(1.0, expected[-1] / 6))


@pytest.mark.parametrize("restitution", [0.6, 0.95])
def test_velocity_after_impact_k_is_the_drop_velocity_times_restitution_to_the_k(restitution):
    traj = hc.simulate(
        ball(restitution), "air", [1.0, 0.0], (0, impact_times(1.0, restitution, 12)[-1] + 1e-3)
    )
    drop = np.sqrt(2.0 * GRAVITY)
    for k, event in enumerate(traj.events[:12], start=1):
        # v = g (t - t_k), so a rounding of 1e-12 s is 1e-11 m/s
        assert event.state_before[1] == pytest.approx(-drop * restitution ** (k - 1), abs=1e-11)
        assert event.state_after[1] == pytest.approx(drop * restitution**k, abs=1e-11)
        assert abs(event.state_before[0]) < 1e-12


def test_elastic_impacts_keep_the_energy():
    traj = hc.simulate(ball(1.0), "air", [1.0, 0.3], (0.0, 20.0))
    assert len(traj.events) > 20
    energy = [GRAVITY * x[0] + 0.5 * x[1] ** 2 for x in map(traj, np.linspace(0, 20, 101))]
    # 22 impacts, each of which may round the velocity by 1e-14
    np.testing.assert_allclose(energy, GRAVITY + 0.045, rtol=1e-12)


def test_inelastic_impacts_multiply_the_kinetic_energy_by_restitution_squared():
    traj = hc.simulate(ball(0.7), "air", [1.0, 0.0], (0.0, 2.0))
    for event in traj.events:
        ratio = (event.state_after[1] / event.state_before[1]) ** 2
        assert ratio == pytest.approx(0.49, rel=1e-14)  # one multiplication


def test_state_between_impacts_is_the_parabola():
    traj = hc.simulate(ball(0.9), "air", [1.0, 0.0], (0.0, 4.0))
    for event, arc in zip(traj.events, traj.arcs[1:], strict=True):
        t = np.linspace(arc.start, arc.end, 7)
        s = t - event.time
        y = event.state_after[0] + event.state_after[1] * s - 0.5 * GRAVITY * s**2
        np.testing.assert_allclose(arc(t)[:, 0], y, atol=1e-13)  # rounding of numbers near 1


def test_zeno_is_reported_at_the_accumulation_time():
    t_end = impact_times(1.0, 0.5, 200)[-1]
    with pytest.raises(errors.ZenoError, match="accumulate") as caught:
        hc.simulate(ball(0.5), "air", [1.0, 0.0], (0.0, 10.0))
    time = float(str(caught.value).split("t = ")[1].split(" s")[0])
    # what is left after ten dwell times below 1e-9 s that halve each time
    assert time == pytest.approx(t_end, abs=2e-9)


def test_plastic_impact_on_the_same_guard_is_zeno():
    with pytest.raises(errors.ZenoError):
        hc.simulate(ball(0.0), "air", [1.0, 0.0], (0.0, 10.0))


@pytest.mark.parametrize("start", [(0.0, 0.0), (-1e-24, 3e-12)])
def test_ball_at_rest_on_the_floor_is_zeno(start):
    """The second, which rounding may make of the first, flies for 6e-13 s, which is not seen.

    It goes on a tolerance below the floor, in bounces of 1e-7 s that rounding keeps up.
    """
    with pytest.raises(errors.ZenoError):
        hc.simulate(ball(0.5), "air", start, (0.0, 1.0))


def test_event_cap_is_an_error_of_its_own():
    with pytest.raises(errors.EventLimitError, match=r"max_events = 5 .*\('floor',\)") as caught:
        hc.simulate(ball(0.9), "air", [1.0, 0.0], (0.0, 10.0), max_events=5)
    so_far, whole = caught.value.trajectory, hc.simulate(ball(0.9), "air", [1.0, 0.0], (0.0, 4.0))
    ends = [arc.end for arc in so_far.arcs]  # the two runs take other steps: equal to rounding
    assert len(so_far.events) == 5
    assert ends == pytest.approx([e.time for e in whole.events[:6]], abs=1e-12)
    assert len(hc.simulate(ball(0.9), "air", [1.0, 0.0], (0.0, 0.5), max_events=1).events) == 1
