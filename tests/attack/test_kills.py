"""Commands that are killed at random times: nothing lost, nothing left, and the same in the end.

Many more are run by `HYBRIDCTL_KILLS=20 pytest -m slow -n 0 tests/attack/test_kills.py`.
"""

import json
import os
import random
import signal
import time

import pytest

from attack.kills import COMMANDS, RECORDS, SIGNALS, begin, kill

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("HYBRIDCTL_KILLS", "1"))
TIMES = {"simulation_seconds", "seconds_per_step", "times_real_time", "seconds"}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What each command finds if it is left alone, and how long it takes, once it is wanted."""
    found = {}

    def result(name):
        if name not in found:
            out, start = tmp_path_factory.mktemp(name) / "alone", time.monotonic()
            finish(name, out)
            found[name] = time.monotonic() - start, content(out)
        return found[name]

    return result


def finish(name, out, *more):
    process = begin(name, out, *more)
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, said + errors


def content(out):
    """Tables and summary without the times that runs took."""
    found = [path.read_text() for path in [out / "table.csv"] if path.exists()]
    return [*found, *(untimed(json.loads(path.read_text())) for path in out.glob("summary.json"))]


def untimed(value):
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in TIMES}
    return list(map(untimed, value)) if isinstance(value, list) else value


def lines(out, name):
    path = out / RECORDS.get(name, "none")
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("number", range(KILLS))
def test_a_command_that_is_killed_leaves_nothing_behind_and_goes_on(number, undisturbed, tmp_path):
    """Ends take a tenth of a second on a free processor; ten times that is allowed, and waiting.

    Processes share processors with others here, so that seconds on a clock are not bounded closely.
    """
    drawn = random.Random(number)
    name, sent = list(COMMANDS)[number % 4], SIGNALS[number // 4 % 3]
    if KILLS == 1:  # where most could be lost
        name, sent = "sweep", signal.SIGKILL
    whole = drawn.random() < 0.5
    duration, expected = undisturbed(name)
    out, process = tmp_path / "run", begin(name, tmp_path / "run")
    time.sleep(duration * drawn.uniform(0.1, 0.9))
    if process.poll() is not None:
        process.communicate()
    else:
        alone, together = kill(process, sent, whole)
        print(f"{name} {sent.name} group={whole}: ended after {alone:.2f} s, all {together:.2f} s")
        said, errors = process.communicate(timeout=60)
        # A signal before the first line of `main` finds Python as it starts.
        assert process.returncode in (CODES[sent], -sent), errors
        assert together < 1.0 + alone + 2.0, "workers outlive their parent"
        assert "Traceback" not in errors, errors
        assert "leaked" not in errors
        kept = lines(out, name)
        assert sum(": done" in line for line in said.splitlines()) <= max(len(kept) - 1, 0)
    kept = [line for line in lines(out, name) if line.endswith("]")]
    more = () if name in RECORDS else ("--overwrite",)
    finish(name, out, *more)
    assert content(out) == expected
    assert lines(out, name)[1 : 1 + len(kept)] == kept
