"""Damaged files: one line that says so, or a log; never anything else, never a hang."""

import signal
from contextlib import contextmanager

import numpy as np
import pytest
from logs.sample_logs import NEEDS, write

from hybridctl.base.errors import InputError
from hybridctl.logs import Log, array_files, examine, read_log


class Hang(BaseException):
    pass


@contextmanager
def limit(seconds):
    """Of processor time, which a busy machine does not use up."""

    def stop(*_):
        raise Hang

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def cut(data, rng):
    return data[: rng.integers(len(data))]


def flip(data, rng):
    damaged = np.frombuffer(data, np.uint8).copy()
    for _ in range(rng.integers(1, 6)):
        damaged[rng.integers(len(damaged))] ^= np.uint8(1 << rng.integers(8))
    return damaged.tobytes()


def overwrite(data, rng):
    damaged = np.frombuffer(data, np.uint8).copy()
    start, length = rng.integers(len(damaged)), rng.integers(1, 9)
    damaged[start : start + length] = rng.choice([0, 255, rng.integers(256)])
    return damaged.tobytes()


def outcome(path):
    """None for a log, else the message of the error; anything but InputError is not caught."""
    try:
        log = read_log(path)
    except InputError as error:
        return str(error)
    assert isinstance(log, Log)
    assert all(np.isfinite(channel.times).all() for channel in log.channels.values())
    examine(log)
    return None


def damage_and_read(path, cases, seed):
    """The messages of the errors, one for each damaged copy that gave one."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    rng = np.random.default_rng(seed)
    messages = []
    for file in files:
        original = file.read_bytes()
        for case in range(cases // len(files)):
            file.write_bytes((cut, flip, overwrite)[case % 3](original, rng))
            with limit(10.0):
                messages.append(outcome(path))
        file.write_bytes(original)
    return [message for message in messages if message is not None]


def check_damage(path, cases, seed=11):
    messages = damage_and_read(path, cases, seed)
    assert len(messages) > cases / 8  # damage behind the data leaves a log with a note
    for message in messages:
        assert "\n" not in message
        assert str(path.parent) in message
    assert outcome(path) is None


@pytest.mark.parametrize("format_", [f for f in NEEDS if f != "h5"])
def test_damage_gives_one_line_or_a_log(tmp_path, format_):
    check_damage(write(format_, tmp_path), 200)


def test_damage_to_hdf5_gives_one_line_or_a_log(tmp_path):
    check_damage(write("h5", tmp_path), 15)


@pytest.mark.slow
def test_much_damage_to_hdf5_gives_one_line_or_a_log(tmp_path):
    check_damage(write("h5", tmp_path), 25, seed=12)


def test_a_reader_that_does_not_come_back_is_stopped(tmp_path, monkeypatch):
    path = write("h5", tmp_path)
    monkeypatch.setattr(array_files, "HDF5_TIMEOUT", 1e-3)
    with pytest.raises(InputError, match="does not end"):
        read_log(path)


@pytest.mark.parametrize("format_", ["npz", "mcap", "bag"])
def test_no_cut_goes_unnoticed(tmp_path, format_):
    path = write(format_, tmp_path)
    original = path.read_bytes()
    for length in np.linspace(0, len(original) - 1, 40).astype(int):
        path.write_bytes(original[:length])
        if outcome(path) is None:
            assert "cut or damaged" in "".join(examine(read_log(path)).warnings)


def test_a_cut_table_is_an_error_or_a_warning(tmp_path):
    """A cut between two rows leaves no trace in a table that says nothing of its length."""
    path = tmp_path / "log.csv"
    original = b"t,x\n" + b"".join(b"%d,%d\n" % (k, 10 + k) for k in range(20))
    for length in range(len(original)):
        path.write_bytes(original[:length])
        if outcome(path) is None and not original[:length].endswith(b"\n"):
            assert "cut short" in "".join(examine(read_log(path)).warnings)
