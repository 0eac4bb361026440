"""A sweep gives the same rows for any number of workers, whatever becomes of them."""

import csv
import json

import numpy as np
import pytest
from sweep.jobs import square, square_but_always_die, square_but_die_once, units

from hybridctl.app.sweep import PLAN, list_numbers, plan_units, run_unit, run_units, write_table
from hybridctl.base import plugins
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.workers import Crew, InProcessExecutor, WorkerProcesses, crew


def silent(line):
    pass


def sweep(path, planned, workers, job, say=silent):
    folder = RunFolder("sweep", path, resumes=PLAN)
    with crew(workers) as found:
        return run_units(planned, folder, found, say, job=job)


def test_rows_are_the_same_for_any_number_of_workers(tmp_path):
    planned = units(7)
    alone = sweep(tmp_path / "one", planned, 1, square)
    assert [row["square"] for row in alone] == [k * k / 7.0 for k in range(7)]
    assert sweep(tmp_path / "three", planned, 3, square) == alone


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_unit_only(tmp_path):
    """Unit 3 is begun again; no other unit runs twice."""
    (tmp_path / "marks").mkdir()
    planned = units(8, folder=str(tmp_path / "marks"))
    rows = sweep(tmp_path / "run", planned, 2, square_but_die_once)
    assert [row["square"] for row in rows] == [k * k / 7.0 for k in range(8)]
    assert (tmp_path / "marks/died").exists()
    ran = [path.name.split("-")[1] for path in (tmp_path / "marks").glob("ran-*")]
    assert sorted(ran) == sorted(str(k) for k in range(8))


@pytest.mark.slow
def test_a_unit_that_kills_every_worker_is_lost_and_the_others_are_not(tmp_path):
    planned, lines = units(5), []
    rows = sweep(tmp_path, planned, 2, square_but_always_die, lines.append)
    assert [row["status"] for row in rows] == ["done", "done", "lost", "done", "done"]
    assert "square" not in rows[2]
    assert any("k=2: lost: its worker died" in line for line in lines)
    assert len((tmp_path / PLAN).read_text().splitlines()) == 1 + 4
    again = sweep(tmp_path, planned, 1, square, lines.append)
    assert [row["status"] for row in again] == ["done"] * 5
    assert "4 of 5 runs have results already" in lines


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path):
    seen = []

    def stop_at_three(unit):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(unit.settings["k"])
        return square(unit)

    def count(unit):
        seen.append(unit.settings["k"])
        return square(unit)

    planned = units(6)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, planned, 1, stop_at_three)
    assert len((tmp_path / PLAN).read_text().splitlines()) == 1 + 3
    rows = sweep(tmp_path, planned, 1, count)
    assert seen == list(range(6))
    assert [row["square"] for row in rows] == [k * k / 7.0 for k in range(6)]
    with pytest.raises(InputError, match="other settings"):
        sweep(tmp_path, units(5), 1, square)


def test_errors_of_the_program_are_not_results(tmp_path):
    def broken(unit):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sweep(tmp_path, units(2), 1, broken)


def test_numbers_of_nested_results_have_dotted_names():
    summary = {"a": {"b": [1, {"c": 2.5}], "name": "x", "none": None}, "simulation_seconds": 3.0}
    assert dict(list_numbers(summary)) == {"a.b.0": 1, "a.b.1.c": 2.5}
    named = {"compared": [{"quantity": "stop [s]", "error": 1e-9}]}
    assert dict(list_numbers(named)) == {"compared.stop [s].error": 1e-9}
    assert len(dict(list_numbers({"long": list(range(100))}))) == 16


def test_an_experiment_that_fails_is_a_row_that_says_why(tmp_path):
    config = plugins.load_plugin("experiments", "cube-drop").Config(data="none.npz")
    (unit,) = plan_units("cube-drop", config, ["step=1e-3:1e-3:1"], None)
    row = run_unit(unit)
    assert row["status"] == "failed"
    assert "none.npz" in row["message"]


def test_units_draw_no_figures_and_have_the_numbers_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("hybridctl.app.plots.save_figure", None)  # calling it would fail
    module = plugins.load_plugin("experiments", "slope")
    (unit,) = plan_units("slope", module.quick(module.Config()), ["speed=0.5:0.5:1"], None)
    row = run_unit(unit)
    assert row["status"] == "done"
    assert row["values"]["stops.comparisons.time of the stop [s].closed_form"] == pytest.approx(
        module.predict(module.Config(), module.define_cases(module.Config())["stops"]).stop_time
    )


def test_the_table_has_a_row_for_each_unit_and_is_read_back(tmp_path):
    rows = [
        {"k": 0, "status": "done", "message": "", "x": 0.1},
        {"k": 1, "status": "failed", "message": 'why, "so"', "y": 1e-300},
    ]
    paths = write_table(RunFolder("sweep", tmp_path), rows)
    with open(tmp_path / "table.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["k"] for row in read] == ["0", "1"]
    assert (float(read[0]["x"]), read[0]["y"], read[1]["message"]) == (0.1, "", 'why, "so"')
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert paths == [tmp_path / "table.csv", tmp_path / "table.parquet"]
    table = parquet.read_table(paths[1]).to_pylist()
    assert table[0] == {"k": 0, "status": "done", "message": "", "x": 0.1, "y": None}


def test_processes_are_ended(tmp_path):
    pool = WorkerProcesses(2)
    assert sorted(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(abs, 1)


def test_numbers_of_workers_and_missing_schedulers_are_refused():
    with pytest.raises(InputError, match="workers"), crew(-1):
        pass
    pytest.importorskip("distributed", reason="distributed is not installed")
    with (
        pytest.raises(InputError, match="no Dask scheduler answers at 'nonsense"),
        crew(1, "nonsense://x"),
    ):
        pass


def test_here_runs_one_unit_after_another(tmp_path):
    """Results are written before the next unit begins."""
    found = []

    def look(unit):
        found.append(len((tmp_path / PLAN).read_text().splitlines()) - 1)
        return square(unit)

    run_units(units(3), RunFolder("sweep", tmp_path), Crew(InProcessExecutor()), silent, job=look)
    assert found == [0, 1, 2]


def test_the_plan_says_what_is_run(tmp_path):
    sweep(tmp_path, units(2), 1, square)
    content = json.loads((tmp_path / PLAN).read_text().splitlines()[0])
    assert content["varied"] == [{"k": 0}, {"k": 1}]
    assert np.unique(content["units"]).size == 2
