"""Long calls say how far they are: shares that grow from 0 to 1, or lines on standard error."""

import numpy as np
import pytest
from control.test_tuning import START, STRUCTURE, Trial, prediction
from estimation.systems import bouncing_ball, height
from estimation.test_identify import BALL, BOUNDS, TRUTH, model_at, records
from hybridctl.robots import ball
from planning.small_systems import straight, to_the_wall

import hybridctl as hc
from hybridctl.base import progress as module
from hybridctl.base.errors import InputError
from hybridctl.control.tuning.ensemble import Ensemble
from hybridctl.control.tuning.search import tune
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.identification import Problem, identify
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.orbits.return_map import periodic_orbit
from hybridctl.planning import optimise


def bounces(**options):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.7))
    return system, hc.simulate(system, ("open",), [0.0, 0.3, 0.4, 0.0], (0.0, 0.6), **options)


def run_lqr(progress):
    system, run = bounces()
    n, nu = run.arcs[0].space.ndx, run.arcs[0].inputs.shape[2]
    weights = np.eye(n), np.eye(nu), np.eye(n)
    return hc.hybrid_lqr(hc.linearize(system, run), *weights, progress=progress)


def run_extend(progress):
    return hc.extend(*bounces(), before=0.02, after=0.02, progress=progress)


def run_linearize(progress):
    system, run = bounces()
    return hc.linearize(system, run, progress=progress)


def run_batch(progress):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.7))
    starts = np.array([[0.0, 0.3 + 0.01 * k, 0.4, 0.0] for k in range(4)])
    return hc.simulate_batch(system, ("open",), starts, (0.0, 0.6), progress=progress)


def run_smooth(progress):
    kf = SaltedKalmanFilter(bouncing_ball(), np.eye(2) * 1e-3, height(1e-4))
    times = np.linspace(0.05, 0.4, 8)
    values = np.full((8, 1), 0.1)
    start = Estimate("air", 0.0, np.array([0.5, 0.0]), np.eye(2) * 0.01)
    result = kf.run(Record({"height": Series(times, values)}), start)
    return smooth(kf.model.system, result, progress=progress)


def run_tune(progress):
    ensemble = Ensemble(Trial(), range(2))
    return tune(
        STRUCTURE, START, predictions=[prediction(1e-1)], ensemble=ensemble, evaluations=0,
        iterations=2, progress=progress,
    )  # fmt: skip


def run_identify(progress):
    names = ("restitution", "friction")
    at = model_at("ball", names, *BALL)
    problem = Problem(at, names, BOUNDS, records(at, [1]), at.settings)
    return identify(problem, TRUTH, max_evaluations=4, progress=progress)


def run_orbit(progress):
    return periodic_orbit(
        bouncing_ball(1.0), "air", [0.0, 2.0], "floor", horizon=2.0, progress=progress
    )


def run_equilibrium(progress):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.0))
    return hc.mechanics.equilibrium(system, ("closed",), [0.0, 0.1], progress=progress)


SHARES = [run_lqr, run_extend, run_linearize, run_batch, run_smooth, run_tune]


@pytest.mark.parametrize("call", SHARES)
def test_a_function_is_called_with_shares_that_grow_to_one(call):
    shares = []
    call(shares.append)
    assert len(shares) >= 2
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] <= 1.0
    assert shares[-1] == pytest.approx(1.0)


CALLS = {
    "equilibrium": run_equilibrium,
    "simulate": lambda p: bounces(progress=p),
    "hybrid_lqr": run_lqr,
    "extend": run_extend,
    "linearize": run_linearize,
    "periodic_orbit": run_orbit,
    "simulate_batch": run_batch,
    "smooth": run_smooth,
    "tune": run_tune,
    "identify": run_identify,
    "optimise": lambda p: optimise(to_the_wall(), straight, progress=p),
}


@pytest.mark.parametrize("name", CALLS)
def test_true_prints_lines_with_the_share(name, monkeypatch, capsys):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)
    CALLS[name](True)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith(f"{name}: ") and line.endswith(" %") for line in lines)


def test_quick_calls_print_nothing(capsys):
    CALLS["simulate"](True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_function_is_refused(name):
    with pytest.raises(InputError, match="progress must be True or a function, got 3"):
        CALLS[name](3)
