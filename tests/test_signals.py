"""Signals and workers: an orderly end with one line, and no worker that outlives its parent."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from attack.kills import processes_of

from hybridctl.app.commands.signals import Stopped, advise_resuming, stop_on_signals
from hybridctl.base.workers import Crew, WorkerProcesses, crew

BUSY = """
import ctypes, os, time
def busy(seconds):
    ctypes.PyDLL(None).sleep(seconds)  # as compiled code does that keeps Python's lock
def idle(seconds):
    time.sleep(seconds)
def pid(number):
    return os.getpid()
"""
PARENT = """
import signal, sys, time
import busy_jobs
from hybridctl.base.workers import crew
if __name__ == "__main__":
    # Where the tests run in the background of a shell, Ctrl-C is ignored from birth.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    with crew(2) as found:
        pids = [found.pool.submit(busy_jobs.pid, k) for k in range(2)]
        [each.result() for each in pids]
        calls = [found.pool.submit(getattr(busy_jobs, sys.argv[1]), 60) for _ in range(2)]
        print("busy", flush=True)
        calls[0].result()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sent", "whole"),
    [
        ("busy", signal.SIGKILL, False),
        ("idle", signal.SIGKILL, False),
        ("idle", signal.SIGTERM, False),
        ("busy", signal.SIGINT, True),
        ("idle", signal.SIGTERM, True),
    ],
)
def test_workers_end_with_their_parent(tmp_path, kind, sent, whole):
    """Also in compiled code, and silently: the traceback of Ctrl-C is that of the parent alone."""
    (tmp_path / "busy_jobs.py").write_text(BUSY)
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, "parent.py", kind],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout.readline() == "busy\n"
    time.sleep(0.2)
    (os.killpg if whole else os.kill)(parent.pid, sent)
    begun = time.monotonic()
    parent.wait(timeout=30)
    while processes_of(parent.pid):
        # They take some 0.05 s; the calls themselves a minute.
        assert time.monotonic() - begun < 20.0, processes_of(parent.pid)
        time.sleep(0.05)
    errors = parent.stderr.read()
    parent.stdout.close()
    parent.stderr.close()
    if sent == signal.SIGINT:
        assert errors.count("Traceback") == 1
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert errors == ""


@pytest.mark.slow
def test_a_crew_that_is_left_in_the_middle_ends_at_once():
    begun, calls = time.monotonic(), []

    def leave():
        with crew(2) as found:
            found.pool.submit(abs, -1).result()
            calls.extend(found.pool.submit(time.sleep, 60) for _ in range(4))
            time.sleep(0.2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert time.monotonic() - begun < 30.0
    assert all(call.done() for call in calls)


def test_stopping_before_anything_has_begun_is_no_error():
    WorkerProcesses(2).stop()


def test_calls_that_nobody_waits_for_are_not_begun():
    made = []

    class Queue:
        def submit(self, fn, item):
            from concurrent.futures import Future

            made.append(Future())
            if item == 0:
                made[-1].set_result(0)
            return made[-1]

    results = Crew(Queue(), 2).finished(None, range(5))
    next(results)
    results.close()
    assert [future.cancelled() for future in made] == [False, True]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_line_with_one_line(sent, tmp_path, capsys):
    (tmp_path / "runs.jsonl").touch()
    before = signal.getsignal(sent)
    signal.signal(sent, signal.SIG_DFL)  # a job in the background has it ignored, and so it stays

    def run():
        with stop_on_signals(), advise_resuming(tmp_path, "runs.jsonl"):
            os.kill(os.getpid(), sent)
            time.sleep(10)

    try:
        with pytest.raises(SystemExit) as ended:
            run()
        os.kill(os.getpid(), sent)  # `timeout` sends each twice
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(sent, before)
    assert ended.value.code == 128 + sent
    assert capsys.readouterr().err == (
        f"stopped by {sent.name}; results so far are kept: resume with the same command and --out "
        f"{tmp_path}\n"
    )


def test_a_run_that_keeps_nothing_begins_again(tmp_path):
    again = pytest.raises(Stopped, match="stopped by SIGINT; run the command again")
    for record in (None, "runs.jsonl"):
        with again, advise_resuming(tmp_path, record):
            raise Stopped(signal.SIGINT)


def test_signals_that_are_ignored_stay_so_and_handlers_come_back():
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signals():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])


def test_other_threads_have_no_handlers():
    before, found = signal.getsignal(signal.SIGTERM), []

    def run():
        with stop_on_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]
