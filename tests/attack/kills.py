"""Runs of the command line that are killed: what they leave behind, and where they go on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "simulate": 'simulate filter-study --quick --workers 2 --set models=["ball"] --set runs=6',
    "filter": "filter --model ball",
    "sweep": "sweep slope --quick --vary slope=0.2:0.3:4 --workers 2",
    "tune": "tune rrr-door --quick --workers 2 --set members=4 --set training=2 --set validation=2",
}
RECORDS = {"simulate": "runs.jsonl", "sweep": "sweep.jsonl", "tune": "runs.jsonl"}
HERE = Path(__file__).parent
"""Where commands run: the root of the checkout has a package without experiments."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def begin(name, out, *more):
    """Start a command in a session of its own, whose processes can be listed."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from hybridctl.app.cli import main; main()"
    call = [sys.executable, "-c", code, *COMMANDS[name].split(), "--out", str(out), *more]
    return subprocess.Popen(
        call,
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_of(session):
    """The processes of a session that have not ended, with their states."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found[int(folder.name)] = fields[0]
    return found


def kill(process, number, whole_group):
    """Send a signal; returns the seconds to the end of the process, and of all in its session."""
    begun = time.monotonic()
    (os.killpg if whole_group else os.kill)(process.pid, number)
    process.wait(timeout=60)
    alone = time.monotonic() - begun
    while processes_of(process.pid):
        time.sleep(0.02)
        if time.monotonic() - begun > 60:
            raise AssertionError(f"orphans after a minute: {processes_of(process.pid)}")
    return alone, time.monotonic() - begun
