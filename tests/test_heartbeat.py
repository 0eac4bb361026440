"""A command is never silent for long, whatever it does."""

import time

from hybridctl.app import heartbeat as module
from hybridctl.app.heartbeat import Heartbeat


def test_silence_is_broken_and_reports_are_left_alone(monkeypatch, capsys):
    monkeypatch.setattr(module, "HEARTBEAT", 0.05)
    beat = Heartbeat()
    with beat.run("simulate"):
        with beat.pause():
            time.sleep(0.4)
        assert capsys.readouterr().err == ""
        while not (shown := capsys.readouterr().err):
            time.sleep(0.05)
    assert shown.startswith("simulate: 0 s") or shown.startswith("simulate: 1 s")
    assert beat.reports == 0
