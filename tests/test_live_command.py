"""`live`: lines through standard input and sockets, one stream after the other."""

import json
import socket
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from estimation.legged.machine import URDF
from logs.test_live_lines import Counting

from hybridctl.app.cli import cli
from hybridctl.app.commands.live import answer_clients, find_base_model, listen_at, start_odometry
from hybridctl.errors import InputError
from hybridctl.estimation.legged.estimator import BaseEstimator

MACHINE = """
urdf: machine.urdf
imu: {frame: imu}
encoders: {joints: {}}
contacts: {left: {frame: left sole, force: left}, right: {frame: right sole}}
start: {heading: 0.5, position: [1, 2, 3]}
"""
JOINTS = [f"{side} joint {k}" for side in ("left", "right") for k in range(3)]


def lines(count=1000, period=1e-3):
    """A second at 1 kHz, the rate of the gyroscope counting up."""
    for k in range(count):
        yield json.dumps(
            {
                "time": k * period,
                "gyroscope": [float(k), 0.0, 0.0],
                "accelerometer": [0.0, 0.0, 9.81],
                "joints": dict.fromkeys(JOINTS, 0.1),
                "left": 5.0,
            }
        )


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The machine in its files, and the options that filters were begun with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "machine.urdf").write_text(URDF)
    (tmp_path / "machine.yaml").write_text(MACHINE)
    begun = []

    def live(estimator, **how):
        begun.append(how)
        return Counting(waits=10)

    monkeypatch.setattr(BaseEstimator, "live", live, raising=False)
    return begun


def check(answers):
    found = [json.loads(line) for line in answers]
    np.testing.assert_array_equal([f["position"][0] for f in found], np.arange(10.0, 1000.0))
    assert set(found[0]["contacts"]) == {"left sole", "right sole"}


def test_lines_of_standard_input(started):
    call = ["live", "--model", "machine.yaml"]
    done = CliRunner().invoke(cli, call, input="\n".join(lines()), catch_exceptions=False)
    assert done.exit_code == 0
    check(done.output.splitlines())
    assert started == [{"heading": 0.5, "position": (1.0, 2.0, 3.0)}]


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_clients_of_a_socket_begin_anew(started, tmp_path, kind):
    if kind == "unix" and not hasattr(socket, "AF_UNIX"):
        pytest.skip("this system has no Unix sockets")
    address = "localhost:0" if kind == "tcp" else str(tmp_path / "s")
    start = start_odometry(find_base_model("machine.yaml", None, ()))
    with listen_at(address) as listening:
        served = threading.Thread(target=answer_clients, args=(start, listening, 3))
        served.start()
        for ends_early in (False, True, False):
            with socket.socket(listening.family) as client:
                client.connect(listening.getsockname())
                if ends_early:
                    continue
                sender = threading.Thread(
                    target=lambda to=client: (
                        to.sendall("\n".join(lines()).encode()),
                        to.shutdown(socket.SHUT_WR),
                    )
                )
                sender.start()
                with client.makefile("rb") as answers:
                    check(answers)
                sender.join()
        served.join(timeout=30.0)
        assert not served.is_alive()
    assert len(started) == 3


def test_what_cannot_be_run_live_is_named(started):
    with pytest.raises(InputError, match="'ball' must be a legged base"):
        find_base_model("ball", None, ())
    with pytest.raises(InputError, match="HOST:PORT or the path"):
        listen_at("host:port")
    shown = CliRunner().invoke(cli, ["live", "--model", "machine.yaml", "--settings"])
    assert json.loads(shown.output)["inertial"] == "imu"
    assert not started
