"""The B-derivative experiment shows what its docstring claims."""

import json

import numpy as np
import pytest
from hybridctl.experiments.linearization import bderivative
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = RunFolder("bderivative", tmp_path_factory.mktemp("bderivative"), draws=False)
    config = bderivative.quick(bderivative.Config())
    return folder, bderivative.run(config, folder, Console(quiet=True))


def test_the_numbers_of_pieces_are_those_of_the_paper(result):
    summary = result[1]
    assert [summary[name]["orders"] for name in summary] == [2, 2, 2]
    assert [summary[name]["maps"] for name in summary] == [1, 2, 2]
    assert [summary[name]["linear"] for name in summary] == [True, False, False]


def test_the_linear_case_is_a_multiple_of_the_identity(result):
    delta = bderivative.Config().opposing
    for matrix in result[1]["linear"]["matrices"]:
        np.testing.assert_allclose(matrix, (1 - delta) / (1 + delta) * np.eye(2), atol=1e-14)


@pytest.mark.parametrize("name", ["linear", "bent"])
def test_piecewise_affine_flows_are_met_to_rounding(result, name):
    found = result[1][name]
    assert found["ball_error"] <= 1e-13
    # A difference over a step h divides the rounding of states of size 1 by h.
    assert (np.array(found["errors"]) <= 1e-15 + 5e-15 / np.array(found["steps"])).all()


def test_differences_of_a_flow_that_turns_err_by_their_step(result):
    found = result[1]["turning"]
    orders = np.diff(np.log(found["errors"])) / np.diff(np.log(found["steps"]))
    # The integrator's 1e-12 over the least step, 1e-4, is far below the error there.
    np.testing.assert_allclose(orders, 1.0, atol=0.05)


def test_one_matrix_alone_is_wrong_on_the_other_side():
    """The control: neither piece of the bent field is its derivative."""
    instance = bderivative.instances(bderivative.Config())["bent"]
    around = bderivative.circle(8)
    for piece in instance.derivative().pieces():
        assert np.abs(around @ piece.matrix.T - instance.predict(around)).max() > 0.3


def test_the_folder_is_complete(result):
    folder, summary = result
    stored = json.loads((folder / "summary.json").read_text())
    assert stored.keys() == summary.keys() == {"linear", "bent", "turning"}
    assert json.loads((folder / "config.json").read_text())["experiment"] == "bderivative"
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("opposing=0.95", "opposing must be at most 0.9"),
        ("opposing=-1", "opposing must be greater than -1"),
        ("changes=[[0, 0], [0, 0], [-1, 0], [0, 0]]", "changes must be greater than -1, got -1"),
        ("changes=[[0, 0]]", r"changes must have shape \(4, 2\)"),
        ("radius=0.4", "radius must be at most 0.28"),
        ("steps=[0.1, 0]", r"steps\[1\] must be greater than 0"),
        ("turning=2", "turning must be at most 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(bderivative.Config, None, [setting])
