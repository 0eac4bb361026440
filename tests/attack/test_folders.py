"""Runs that are killed in folders with files of other people: see `folders.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


def ended(*arguments):
    """The numbers that a campaign prints; it forks, so it has a process of its own."""
    command = [sys.executable, "-m", "attack.folders", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [int(word) for word in done.stdout.splitlines()[-1].split()]


@pytest.mark.slow
def test_a_kill_before_any_operation_on_files_loses_nothing():
    """Of every sixth operation; all 440 were run by hand, see `folders.crash_points`."""
    (kills,) = ended("crash", 6)
    assert kills >= 50  # a run makes some 360 operations on files


@pytest.mark.slow
def test_commands_that_are_killed_at_random_times_lose_no_file_of_others():
    """Ten folders; 500 were run by hand."""
    ran, killed, foreign = ended("attack", os.environ.get("ATTACKED_FOLDERS", 10), 1)
    assert ran > 30
    assert killed > 5
    assert foreign > 10
