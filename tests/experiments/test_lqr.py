"""The LQR experiment shows what its docstring claims."""

import numpy as np
import pytest
from hybridctl.experiments.optimal import lqr

from hybridctl.base.errors import InputError
from hybridctl.base.settings import load_configuration


@pytest.fixture(scope="module")
def cheap():
    return lqr.quick(lqr.Config())


# The paddle takes half a minute; `test_defaults` has its claims at more starts.
PADDLE = pytest.param("paddle", marks=[pytest.mark.slow, pytest.mark.long])


@pytest.fixture(scope="module", params=[PADDLE, "block"])
def result(request, cheap):
    case = lqr.CASES[request.param](cheap.tolerance)
    return lqr.study(cheap, case, lambda x: None)


def test_designs_without_saltation_cost_more(result):
    for design in ("reset", "no"):
        ratios = result.ratios(design)
        assert ratios.mean() > 1.01
        assert (ratios > 1.0 - 1e-3).all()


def test_the_cost_is_the_predicted_one_the_closer_the_smaller_the_deviation(result, cheap):
    assert np.abs(result.costs["saltation"] / result.values - 1.0).max() < 0.2
    slope = np.diff(np.log(result.gaps)) / np.diff(np.log(cheap.sizes))
    np.testing.assert_allclose(slope, 1.0, atol=0.25)


def test_designs_believe_in_their_own_jumps(cheap):
    case = lqr.make_paddle_case(cheap.tolerance)
    right = case.map.jumps[0]
    reset = lqr.replace_jumps(case.map, "reset").jumps[0]
    np.testing.assert_array_equal(reset.state, right.reset_jacobian)
    np.testing.assert_array_equal(lqr.replace_jumps(case.map, "no").jumps[0].state, np.eye(4))
    assert lqr.replace_jumps(case.map, "saltation") is case.map


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("samples=0", "samples must be"),
        ("size=0", "size must be greater"),
        ("sizes=[0]", r"sizes\[0\] must be greater"),
        ("tolerance=0", "tolerance must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(lqr.Config, None, [setting])
