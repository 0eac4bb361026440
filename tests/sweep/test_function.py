"""Functions swept from Python: rows, processes, executors, folders, tables and lines."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sweep.jobs import cost

import hybridctl as hc
from hybridctl.errors import InputError, IntegrationError, UnknownNameError

GRID = {"gain": [1.0, 2.0, 4.0], "seed": [0, 1]}


def test_rows_are_what_the_function_returns_wherever_it_runs():
    one = hc.sweep(cost, GRID)
    assert [row["peak"] for row in one.rows] == [1.0, 2.0, 2.0, 3.0, 4.0, 5.0]
    assert [row["inner.half"] for row in one.rows] == [0.5, 0.5, 1.0, 1.0, 2.0, 2.0]
    assert one.varied == ("gain", "seed")
    assert one.varying == ("peak", "inner.half")  # what is the same in all runs is left out
    assert repr(one) == "Sweep(6 runs over gain, seed: 6 done)"
    assert hc.sweep(cost, GRID, workers=2).rows == one.rows
    with ThreadPoolExecutor(2) as pool:
        assert hc.sweep(cost, GRID, workers=pool).rows == one.rows
    listed = [{"gain": row["gain"], "seed": row["seed"]} for row in one.rows]
    assert hc.sweep(cost, listed).rows == one.rows


def test_a_number_is_a_result_and_an_error_of_the_simulation_a_row():
    def root(x):
        if x < 0.0:
            raise IntegrationError("no root")
        return math.sqrt(x)

    found = hc.sweep(root, {"x": [4.0, -1.0]})
    assert found.rows[0] == {"x": 4.0, "status": "done", "message": "", "result": 2.0}
    assert found.rows[1] == {"x": -1.0, "status": "failed", "message": "no root"}
    np.testing.assert_array_equal(found.values("result"), [2.0, np.nan])
    with pytest.raises(TypeError, match="keyword"):
        hc.sweep(math.sqrt, [{"x": -1.0}])


def test_lines_are_means_over_seeds_for_each_combination():
    found = hc.sweep(cost, {**GRID, "kind": ["soft", "hard"]})
    axes = found.plot(names=["peak"]).axes[0]
    means = [line for line in axes.lines if line.get_label() in ("kind=soft", "kind=hard")]
    assert axes.get_xlabel() == "gain"
    for line in means:
        np.testing.assert_array_equal(line.get_xdata(), GRID["gain"])
        np.testing.assert_array_equal(line.get_ydata(), np.array(GRID["gain"]) + 0.5)
    with pytest.raises(InputError, match="must vary a number"):
        hc.sweep(cost, {"kind": ["soft", "hard"]}).plot()


def test_a_folder_holds_table_plot_and_page_and_is_resumed(tmp_path):
    lines = []
    found = hc.sweep(cost, GRID, out=tmp_path / "swept")
    page = (tmp_path / "swept/index.html").read_text()
    assert "<td>4.0</td>" in page.replace("<td>4</td>", "<td>4.0</td>")
    chart = json.loads((tmp_path / "swept/figures/sweep.json").read_text())
    assert chart["xlabel"] == "gain"
    assert (tmp_path / "swept/table.csv").read_text().startswith("gain,seed,status")
    again = hc.sweep(cost, GRID, out=tmp_path / "swept", tell=lines.append)
    assert again.rows == found.rows
    assert lines == ["6 of 6 runs have results already"]
    with pytest.raises(InputError, match="other settings"):
        hc.sweep(cost, {"gain": [1.0]}, out=tmp_path / "swept")


def test_grids_and_functions_that_do_not_serve_are_refused():
    with pytest.raises(InputError, match="at least one value"):
        hc.sweep(cost, {"gain": []})
    with pytest.raises(InputError, match="same names"):
        hc.sweep(cost, [{"gain": 1.0}, {"seed": 1}])
    with pytest.raises(InputError, match="in a module that other processes can import"):
        hc.sweep(lambda gain: gain, {"gain": [1.0]}, workers=2)
    with pytest.raises(UnknownNameError, match="peak"):
        hc.sweep(cost, GRID).values("peek")
