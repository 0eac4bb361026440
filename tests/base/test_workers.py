"""`tune`, `filter-study` and `identify`: the same numbers for any workers, also where one dies."""

import json
import logging
import os
import signal
from concurrent.futures import ProcessPoolExecutor

import pytest
from click.testing import CliRunner
from hybridctl.robots import ball
from user_models import COLUMNS, ROBOT, write_csv

import hybridctl as hc
from hybridctl.app.cli import cli
from hybridctl.base import workers

pytestmark = pytest.mark.slow

COMMANDS = {
    "tune": "tune rrr-door --quick --set members=3 --set training=2 --set validation=2",
    "filter-study": 'simulate filter-study --quick --set models=["ball"]',
    "identify": (
        "identify a.csv b.csv --model robot.yaml --mapping map.yaml --parameters restitution "
        "--set restitution=0.65 --max-evaluations 4"
    ),
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two recorded drops of a ball, with its model."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "robot.yaml").write_text(ROBOT)
    (folder / "ball.urdf").write_text(ball.urdf())
    (folder / "map.yaml").write_text(COLUMNS.format(name="rails", fields="[across, up]"))
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.7))
    for name, height in (("a.csv", 0.3), ("b.csv", 0.4)):
        run = hc.simulate(system, ("open",), [0.0, height, 0.4, 0.0], (0.0, 0.45))
        write_csv(folder / name, ["across", "up"], run, [0, 1])
    return folder


# A search, a study and an identification: the first, of many short runs, takes the longest.
PARAMS = [pytest.param("tune", marks=pytest.mark.long), "filter-study", "identify"]


@pytest.fixture(scope="module", params=PARAMS)
def command(request, logs, tmp_path_factory):
    """The name of a command, and what it finds alone."""
    return request.param, found(
        request.param, logs, tmp_path_factory.mktemp("alone"), "--workers=1"
    )


def found(name, logs, out, *more):
    """What summary.json holds, without the times that it took."""
    before = os.getcwd()
    os.chdir(logs)
    try:
        call = [*COMMANDS[name].split(), "--out", str(out), *more]
        done = CliRunner().invoke(cli, call, catch_exceptions=False)
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.output
    return untimed(json.loads((out / "summary.json").read_text()))


def untimed(content):
    if isinstance(content, dict):
        return {k: untimed(v) for k, v in content.items() if "seconds" not in k}
    return list(map(untimed, content)) if isinstance(content, list) else content


def same(found, alone):
    """What is written is equal, numbers to rounding.

    BLAS adds up in another order with another number of threads, which a worker may have. A search
    carries such a last digit on to about 1e-12 of a result; a call that is lost or made on another
    argument changes it by a part in ten.
    """
    if isinstance(alone, dict):
        return found.keys() == alone.keys() and all(same(found[k], alone[k]) for k in alone)
    if isinstance(alone, list):
        return len(found) == len(alone) and all(map(same, found, alone))
    return found == (pytest.approx(alone, rel=1e-6) if isinstance(alone, float) else alone)


def test_a_process_that_dies_costs_its_call_only(command, logs, tmp_path, monkeypatch, caplog):
    name, alone = command
    calls = []

    class Mortal(ProcessPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            made = super().submit(fn, *args, **kwargs)
            calls.append(args)
            if len(calls) == 2:
                (process,) = self._processes
                os.kill(process, signal.SIGKILL)
            return made

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Mortal)
    with caplog.at_level(logging.WARNING, "hybridctl.base.workers"):
        assert same(found(name, logs, tmp_path, "--workers=2"), alone)
    assert [record.args for record in caplog.records if record.name == workers.__name__] == [(2,)]
    assert len(calls) > 2


def test_a_worker_of_a_cluster_that_dies_changes_no_number(command, logs, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    from distributed.cfexecutor import ClientExecutor

    name, alone = command
    calls, original = [], {way: getattr(ClientExecutor, way) for way in ("submit", "map")}
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
    ) as cluster:
        victim = cluster.workers[0].pid

        def mortal(way):
            def call(self, fn, *args, **kwargs):
                made = original[way](self, fn, *args, **kwargs)
                calls.append(way)
                if len(calls) == 2:
                    os.kill(victim, signal.SIGKILL)
                return made

            return call

        for way in original:
            monkeypatch.setattr(ClientExecutor, way, mortal(way))
        assert same(found(name, logs, tmp_path, "--dask", cluster.scheduler_address), alone)
    assert len(calls) > 2
