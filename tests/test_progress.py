"""Long calls say how far they are: shares that grow from 0 to 1, or lines on standard error."""

import numpy as np
import pytest
from control.test_trajectory import straight, to_the_wall
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl import progress as module
from hybridctl.control.trajectory import optimise
from hybridctl.errors import InputError


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


@pytest.mark.parametrize("call", [run_lqr, run_extend])
def test_a_function_is_called_with_shares_that_grow_to_one(call):
    shares = []
    call(shares.append)
    assert len(shares) >= 2
    assert shares == sorted(shares)
    assert 0.0 < shares[0] <= 1.0
    assert shares[-1] == pytest.approx(1.0)


def run_equilibrium(progress):
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.0))
    return hc.mechanics.equilibrium(system, ("closed",), [0.0, 0.1], progress=progress)


CALLS = {
    "equilibrium": run_equilibrium,
    "simulate": lambda p: bounces(progress=p),
    "hybrid_lqr": run_lqr,
    "extend": run_extend,
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
