"""Work on a Dask cluster of processes, one of which is killed in the middle."""

import logging

import pytest
from sweep.jobs import square_but_die_once, units

from hybridctl.app.sweep import run_units
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.workers import crew

distributed = pytest.importorskip("distributed", reason="distributed is not installed")


@pytest.fixture
def address():
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )
    yield cluster.scheduler_address
    cluster.close()


def test_a_killed_worker_of_a_cluster_costs_its_unit_only(address, tmp_path):
    (tmp_path / "marks").mkdir()
    planned = units(12, folder=str(tmp_path / "marks"))
    with crew(1, address) as workers:
        assert workers.ahead == 8
        folder = RunFolder("sweep", tmp_path / "run")
        rows = run_units(planned, folder, workers, lambda line: None, job=square_but_die_once)
    assert (tmp_path / "marks/died").exists()
    assert [row["square"] for row in rows] == [k * k / 7.0 for k in range(12)]
    assert [row["status"] for row in rows] == ["done"] * 12


@pytest.mark.slow
def test_whoever_takes_an_executor_does_not_notice(address, tmp_path):
    """Ensembles submit calls, likelihoods map them: both go on where a worker dies."""
    planned = units(6, folder=str(tmp_path))
    with crew(1, address) as workers:
        rows = list(workers.parallel_executor.map(square_but_die_once, planned))
    assert (tmp_path / "died").exists()
    assert [row["values"]["square"] for row in rows] == [k * k / 7.0 for k in range(6)]
