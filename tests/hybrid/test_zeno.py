"""Events that accumulate: predicted, and come to rest at."""

import numpy as np
import pytest
from hybridctl.robots import ball, block
from hypothesis import given
from hypothesis import strategies as st

import hybridctl as hc
from hybridctl.errors import InputError, ZenoError
from hybridctl.hybrid.mode import Edge
from hybridctl.hybrid.zeno import crowded, predict

G = 9.81


@given(
    ratio=st.floats(0.05, 0.95), first=st.floats(1e-3, 10.0), period=st.integers(1, 4),
    start=st.floats(-5.0, 5.0),
)  # fmt: skip
def test_a_geometric_sequence_ends_at_its_limit(ratio, first, period, start):
    """Windows shrink by ratio^period; the limit is t_0 + D / (1 - r)."""
    names = [f"guard {i}" for i in range(period)]
    times = start + first * np.concatenate([[0.0], np.cumsum(ratio ** np.arange(3 * period))])
    events = [(t, (names[k % period],)) for k, t in enumerate(times.tolist())]
    end = predict(events)
    assert end is not None
    # Differences of times lose eps |t| / D of their digits, which the ratio passes on.
    last = first * ratio ** (3 * period - 1)
    tolerance = 1e-13 * (abs(start) + first) / (1.0 - ratio) ** 2 * max(1.0, first / last * 1e-2)
    assert end.time == pytest.approx(start + first / (1.0 - ratio), abs=max(tolerance, 1e-9))
    assert set(end.guards) == set(names)


def test_growing_or_irregular_sequences_have_no_end():
    same = [(t, ("a",)) for t in (0.0, 1.0, 2.0, 3.0)]
    growing = [(t, ("a",)) for t in (0.0, 1.0, 3.0, 7.0)]
    irregular = [(t, ("a",)) for t in (0.0, 1.0, 1.9, 2.0)]
    mixed = [(0.0, ("a",)), (1.0, ("b",)), (1.5, ("c",)), (1.75, ("a",))]
    assert all(predict(events) is None for events in (same, growing, irregular, mixed, same[:3]))
    assert crowded(same, 3, 1.0) is None
    assert crowded(same, 3, 2.0).guards == ("a",)


@pytest.mark.parametrize("e", [0.1, 0.5, 0.8])
def test_a_ball_comes_to_rest_at_the_predicted_time(e):
    """t = v/g (1 + 2 e / (1 - e)) after a fall of v/g; flight is exact, so rounding is left."""
    p = ball.Parameters(slope=0.0, restitution=e)
    run = hc.simulate(ball.system(p), ("open",), [0, 1.0, 0, 0], (0.0, 6.0), on_zeno="rest")
    fall = np.sqrt(2.0 / G)
    (rest,) = [event for event in run.events if event.accumulation is not None]
    assert rest.accumulation == pytest.approx(fall * (1.0 + 2.0 * e / (1.0 - e)), abs=1e-8)
    assert abs(rest.time - rest.accumulation) <= 1e-5
    assert run.final_mode == ("closed",)
    np.testing.assert_allclose(run.final_state, np.zeros(4), atol=1e-8)


def test_bounces_that_accumulate_are_an_error_unless_told_to_rest():
    """At e = 0.8 ten bounces in a row are closer than 1e-9 s while they still part at 5e-9 m/s."""
    p = ball.Parameters(slope=0.0, restitution=0.8)
    with pytest.raises(ZenoError, match="events accumulate"):
        hc.simulate(ball.system(p), ("open",), [0, 1.0, 0, 0], (0.0, 6.0))


def test_a_rocking_block_comes_to_rest_on_both_corners():
    """Alternating impacts of period two; their times are those of Housner's ratio."""
    p = block.ROCKING
    x0 = [0.0, 0.0, 0.03, 0.0, 0.0, 0.0]
    corner = np.array([0.5 * p.width, -0.5 * p.height])
    c, s = np.cos(x0[2]), np.sin(x0[2])
    x0[1] = -(-s * corner[0] + c * corner[1])
    x0[0] = -(c * corner[0] + s * corner[1])
    run = hc.simulate(
        block.system(p), ("open", "stick"), x0, (0.0, 6.0), on_zeno="rest", zeno_horizon=1e-4
    )
    assert run.final_mode == ("stick", "stick")
    assert abs(run.final_state[2]) < 1e-7
    np.testing.assert_allclose(run.final_state[3:], np.zeros(3), atol=1e-6)


def test_a_listed_system_says_where_it_rests():
    space = hc.VectorSpace(2)
    air = hc.Mode("air", space, lambda t, x, u: np.array([x[1], -G]))
    ground = hc.Mode("ground", space, lambda t, x, u: np.zeros(2))
    floor = hc.Guard("floor", lambda t, x, u: x[0])
    bounce = hc.Reset(lambda t, x, u: np.array([x[0], -0.5 * x[1]]))
    stay = Edge(hc.Reset(lambda t, x, u: np.zeros(2)), "ground")
    system = hc.HybridSystem([air, ground], [hc.Transition("air", floor, bounce, "air", rest=stay)])
    run = hc.simulate(system, "air", [1.0, 0.0], (0.0, 3.0), on_zeno="rest")
    assert run.final_mode == "ground"
    assert run.events[-1].accumulation == pytest.approx(3.0 * np.sqrt(2.0 / G), abs=1e-8)
    without = hc.HybridSystem([air, ground], [hc.Transition("air", floor, bounce, "air")])
    with pytest.raises(ZenoError):
        hc.simulate(without, "air", [1.0, 0.0], (0.0, 3.0), on_zeno="rest")
    with pytest.raises(InputError, match="on_zeno 'stop' is unknown"):
        hc.simulate(system, "air", [1.0, 0.0], (0.0, 3.0), on_zeno="stop")


def test_the_accumulation_survives_saving(tmp_path):
    p = ball.Parameters(slope=0.0, restitution=0.3)
    system = ball.system(p)
    run = hc.simulate(system, ("open",), [0, 1.0, 0, 0], (0.0, 2.0), on_zeno="rest")
    run.save(tmp_path / "run.npz")
    again = hc.HybridTrajectory.load(tmp_path / "run.npz", system)
    assert [e.accumulation for e in again.events] == [e.accumulation for e in run.events]
