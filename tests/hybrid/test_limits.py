"""Every run ends: by a limit of steps, of events, or where time stands still."""

import numpy as np
import pytest
from hybrid.samples import ball, line

import hybridctl as hc
from hybridctl.base.errors import IntegrationError, StepLimitError, ZenoError
from hybridctl.hybrid.mode import Pace


def oscillator(pace=np.inf):
    longest = Pace(pace)
    return hc.HybridSystem(
        [
            hc.Mode(
                "swing",
                hc.VectorSpace(2),
                lambda t, x, u: np.array([x[1], -1e6 * x[0]]),
                pace=lambda t, x, u: longest,
            )
        ],
        [],
    )


@pytest.mark.parametrize(
    ("system", "options", "why"),
    [
        (oscillator(), {}, "rtol = 1e-09"),
        (oscillator(pace=1e-5), {}, "the pace of the mode"),
        (oscillator(), {"max_step": 1e-6}, "max_step"),
    ],
)
def test_more_steps_than_allowed_are_an_error_that_says_why_they_are_short(system, options, why):
    with pytest.raises(StepLimitError, match=r"max_steps = 20 .* mode 'swing'") as caught:
        hc.simulate(
            system,
            "swing",
            [1.0, 0.0],
            (0.0, 10.0),
            options=hc.SimulationOptions(max_steps=20),
            **options,
        )
    assert why in str(caught.value)
    so_far = caught.value.trajectory
    assert 0.0 < so_far.end < 10.0
    assert so_far.final_state[0] == pytest.approx(np.cos(1e3 * so_far.end), abs=1e-5)


def test_a_state_that_grows_without_bound_is_named_where_steps_run_out():
    """x = exp(50 t); a state that stays as it is is not blamed."""
    mode = hc.Mode("runs away", hc.VectorSpace(1), lambda t, x, u: 50.0 * x)
    system = hc.HybridSystem([mode], [])
    with pytest.raises(StepLimitError, match=r"x0 has grown to .* is unstable") as caught:
        hc.simulate(
            system, "runs away", [1.0], (0.0, 10.0), options=hc.SimulationOptions(max_steps=20)
        )
    so_far = caught.value.trajectory
    assert so_far.final_state[0] == pytest.approx(np.exp(50.0 * so_far.end), rel=1e-6)
    with pytest.raises(StepLimitError) as caught:
        hc.simulate(
            oscillator(),
            "swing",
            [1.0, 0.0],
            (0.0, 10.0),
            options=hc.SimulationOptions(max_steps=20),
        )
    assert "grown" not in str(caught.value)


def test_the_first_step_under_each_law_is_free():
    """Changes of the law and events have limits of their own."""
    policy = hc.SampledPolicy(lambda t, x: np.zeros(0), 0.01)
    run = hc.simulate(
        ball(), "air", [1.0, 0.0], (0.0, 2.0), policy, options=hc.SimulationOptions(max_steps=20)
    )
    assert sum(len(arc.breaks) for arc in run.arcs) > 200


@pytest.mark.parametrize("method", ["DOP853", "Radau"])
def test_steps_that_no_longer_advance_time_are_an_error(method):
    """x' = 1 / (1 - t): the rate grows beyond all bounds at t = 1."""
    field = lambda t, x, u: np.array([1.0 / (1.0 - t) ** 2])  # noqa: E731
    system = hc.HybridSystem([hc.Mode("m", hc.VectorSpace(1), field)], [])
    with pytest.raises(IntegrationError, match=r"t = (0\.99|1)"):
        hc.simulate(system, "m", [0.0], (0.0, 2.0), method=method)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_field_that_stops_being_finite_is_told_from_one_that_is_steep(value):
    field = lambda t, x, u: np.array([1.0 if t <= 0.3 else value])  # noqa: E731
    system = hc.HybridSystem([hc.Mode("m", hc.VectorSpace(1), field)], [])
    with pytest.raises(IntegrationError, match=r"vector field \[.*\] is not finite .* at t = 0\.3"):
        hc.simulate(system, "m", [0.0], (0.0, 2.0))


def test_a_pace_of_zero_is_an_error():
    with pytest.raises(IntegrationError, match="limited by the pace of the mode"):
        hc.simulate(oscillator(pace=0.0), "swing", [1.0, 0.0], (0.0, 1.0))


def test_modes_that_alternate_at_one_instant_are_named():
    space = hc.VectorSpace(1)
    modes = [
        hc.Mode("left", space, lambda t, x, u: np.ones(1)),
        hc.Mode("right", space, lambda t, x, u: -np.ones(1)),
    ]
    edges = [
        hc.Transition("left", hc.Guard("to", lambda t, x, u: -x[0]), hc.Reset.identity(), "right"),
        hc.Transition("right", hc.Guard("fro", lambda t, x, u: x[0]), hc.Reset.identity(), "left"),
    ]
    with pytest.raises(ZenoError, match=r"alternating between modes \['left', 'right'\]"):
        hc.simulate(hc.HybridSystem(modes, edges), "left", [-1.0], (0.0, 2.0))


def test_a_run_of_any_length_in_smooth_flow_needs_few_steps():
    run = hc.simulate(
        line({"g": lambda t, x, u: 1.0}),
        "go",
        [0.0],
        (0.0, 1e6),
        options=hc.SimulationOptions(max_steps=20),
    )
    assert run.final_state[0] == pytest.approx(1e6, rel=1e-14)


def test_the_step_limit_is_told_also_where_modes_differ_in_size():
    """The first half of the run, with which the end is compared, has states of two sizes."""
    rise = hc.Mode("rise", hc.VectorSpace(1), lambda t, x, u: np.array([1.0]))
    swing = hc.Mode("swing", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -1e8 * x[0]]))
    top = hc.Guard("top", lambda t, x, u: 1e-4 - x[0])
    begin = hc.Reset(lambda t, x, u: np.array([1.0, 0.0]))
    system = hc.HybridSystem([rise, swing], [hc.Transition("rise", top, begin, "swing")])
    options = hc.SimulationOptions(max_steps=20)
    with pytest.raises(StepLimitError, match=r"max_steps = 20 .* mode 'swing'") as caught:
        hc.simulate(system, "rise", [0.0], (0.0, 1.0), options=options)
    assert [event.guards for event in caught.value.trajectory.events] == [("top",)]


def test_a_max_step_below_the_spacing_of_times_is_named():
    decay = hc.Mode("decay", hc.VectorSpace(1), lambda t, x, u: -x)
    with pytest.raises(IntegrationError, match=r"limited by the pace of the mode or max_step"):
        hc.simulate(hc.HybridSystem([decay], []), "decay", [1.0], (1.0, 2.0), max_step=1e-17)
