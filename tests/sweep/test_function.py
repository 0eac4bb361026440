"""Functions swept from Python: rows, processes, executors, folders, tables and lines."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sweep.jobs import cost

import hybridctl as hc
from hybridctl.base.errors import InputError, IntegrationError, UnknownNameError

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


def test_points_that_look_alike_have_their_own_results():
    """Rows go by place: inf and nan, 1 and True, objects without a name, and equal points."""
    values = [np.inf, -np.inf, np.nan, None, 1, True, 1.0, object(), object(), 0.0, -0.0, 0.0]
    places = {id(value): k for k, value in enumerate(values)}
    found = hc.sweep(lambda a: places[id(a)], {"a": values})
    assert [row["result"] for row in found.rows] == [places[id(value)] for value in values]
    assert found.rows[7]["a"] is values[7]
    seen = iter(range(3))
    assert [r["result"] for r in hc.sweep(lambda a: next(seen), {"a": [1, 1, 1]}).rows] == [0, 1, 2]


def test_equal_points_are_kept_each(tmp_path):
    seen = []

    def draw(a):
        seen.append(a)
        return seen.__len__()

    first = hc.sweep(draw, {"a": [1, 1, 2, 1]}, out=tmp_path)
    assert [row["result"] for row in first.rows] == [1, 2, 3, 4]
    seen.clear()
    lines = (tmp_path / "sweep.jsonl").read_text().splitlines()
    assert len({json.loads(line)[0] for line in lines[1:]}) == 4


def test_another_function_or_an_edited_one_gets_its_own_results(tmp_path):
    lines = []
    one, other = lambda a: a, lambda a: 100 * a
    for function, factor in ((one, 1), (other, 100), (one, 1)):
        found = hc.sweep(function, {"a": [1, 2]}, out=tmp_path, tell=lines.append)
        assert [row["result"] for row in found.rows] == [factor, 2 * factor]
    assert lines[2] == "2 results of other code or another version are not used"
    assert lines[-1] == "2 of 2 runs have results already"


def test_another_version_computes_anew(tmp_path, monkeypatch):
    from hybridctl.base import journal

    hc.sweep(abs_of, {"a": [-1]}, out=tmp_path)
    monkeypatch.setattr(journal, "__version__", "99")
    lines = []
    hc.sweep(abs_of, {"a": [-1]}, out=tmp_path, tell=lines.append)
    assert lines == ["1 results of other code or another version are not used", "[1/1] a=-1: done"]


def abs_of(a):
    return abs(a)


def test_terrains_and_recordings_are_told_apart_in_a_folder(tmp_path):
    """Two series that differ in the middle of their values; a generator is refused by name."""
    values = [np.eye(2000)[:, [k]] for k in (500, 1000)]
    logs = [hc.Series(np.arange(2000.0), each) for each in values]
    found = hc.sweep(lambda log: float(log.values[500, 0]), {"log": logs}, out=tmp_path / "a")
    assert [row["result"] for row in found.rows] == [1.0, 0.0]
    with pytest.raises(InputError, match=r"grid\.rng cannot be told from others.* Generator"):
        hc.sweep(lambda rng: 0, {"rng": [np.random.default_rng(1)]}, out=tmp_path / "b")


def test_all_kinds_of_numbers_are_kept(tmp_path):
    """Truth values of numpy, complex numbers, nan and infinities, as they are and from a folder."""

    def kinds(a):
        return {
            "holds": np.float64(a) > 1,
            "wave": np.exp(1j * a),
            "flags": np.array([True, False]),
            "far": np.inf,
            "none": np.nan,
            "place": np.array(3),
            "text": "left out",
        }

    first = hc.sweep(kinds, {"a": [2, 0]}, out=tmp_path).rows
    assert [row["holds"] for row in first] == [True, False]
    row = first[0]
    assert (row["wave.real"], row["wave.imag"]) == (math.cos(2), math.sin(2))
    assert (row["flags.0"], row["flags.1"], row["far"], row["place"]) == (True, False, math.inf, 3)
    assert math.isnan(row["none"])
    again = hc.sweep(kinds, {"a": [2, 0]}, out=tmp_path).rows
    assert json.dumps(again) == json.dumps(first)


def test_a_result_with_the_name_of_a_setting_stands_beside_it():
    """One that repeats the setting in all rows is the setting."""
    rows = hc.sweep(lambda a, n: {"n": 3 * n, "a": a, "status": 5}, {"a": [1], "n": [2, 4]}).rows
    own = {"a": 1, "status": "done", "message": "", "result.status": 5}
    assert rows == ({**own, "n": 2, "result.n": 6}, {**own, "n": 4, "result.n": 12})
    with pytest.raises(InputError, match=r"both 'n' and 'result\.n'"):
        hc.sweep(lambda n: {"n": 3, "result": {"n": 4}}, {"n": [2]})
    with pytest.raises(InputError, match=r"different names, got 'a\.b' twice"):
        hc.sweep(lambda n: {"a.b": 3, "a": {"b": 4}}, {"n": [2]})
    with pytest.raises(InputError, match="must not have the name 'status'"):
        hc.sweep(lambda status: 1, {"status": [2]})


def test_lines_of_settings_that_look_alike_are_drawn_apart():
    """Their labels are rounded to six digits, or have the first entries of an array."""
    values = [np.zeros(3000), np.eye(1, 3000, 1500)[0]]
    found = hc.sweep(lambda x, law: x + law.sum(), {"x": [0.0, 1.0], "law": values})
    lines = found.plot(names=["result"]).axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [[0.0, 1.0], [1.0, 2.0]]


def test_a_table_with_columns_of_several_types_is_written(tmp_path):
    grid = {"a": [1, "x", None, (1, 2)]}
    hc.sweep(lambda a: {"b": True if a == 1 else 0.5}, grid, out=tmp_path)
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 5
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = parquet.read_table(tmp_path / "table.parquet").to_pylist()
    assert [row["a"] for row in table] == ["1", "x", None, "(1, 2)"]


def test_grids_and_functions_that_do_not_serve_are_refused():
    with pytest.raises(InputError, match="at least one value"):
        hc.sweep(cost, {"gain": []})
    with pytest.raises(InputError, match="same names"):
        hc.sweep(cost, [{"gain": 1.0}, {"seed": 1}])
    with pytest.raises(InputError, match="in a module that other processes can import"):
        hc.sweep(lambda gain: gain, {"gain": [1.0]}, workers=2)
    with pytest.raises(UnknownNameError, match="peak"):
        hc.sweep(cost, GRID).values("peek")
