"""Hybrid trajectories: limits on both sides of events, evaluation, immutability, files."""

import dataclasses
import json
import zipfile

import numpy as np
import pytest
from hybrid.samples import ROUNDING, ball, box, feet

import hybridctl as hc
from hybridctl.base import errors
from hybridctl.base.files import atomic


@pytest.fixture(scope="module")
def traj():
    return hc.simulate(
        ball(0.8), "air", [1.0, 0.0], (0.0, 3.0), max_step=0.05, rtol=1e-6, atol=1e-6
    )


def test_both_limits_exist_at_an_event(traj):
    for j, event in enumerate(traj.events):
        np.testing.assert_array_equal(traj(event.time, "left"), event.state_before)
        # the next arc is a polynomial fitted to eight samples of speeds up to 5
        np.testing.assert_allclose(traj(event.time, "right"), event.state_after, atol=5 * ROUNDING)
        np.testing.assert_array_equal(traj(event.time), traj(event.time, "right"))
        assert traj.arc(event.time, "left") is traj.arcs[j]
        assert traj.arc(event.time, "right") is traj.arcs[j + 1]


def test_start_end_and_final_values(traj):
    assert (traj.start, traj.end, traj.final_mode) == (0.0, 3.0, "air")
    np.testing.assert_array_equal(traj.final_state, traj(3.0))
    np.testing.assert_allclose(traj(0.0), [1.0, 0.0], atol=ROUNDING)
    assert traj.arc(0.0, "left") is traj.arcs[0]
    assert traj.arc(3.0) is traj.arcs[-1]


@pytest.mark.parametrize("t", [-1e-12, 3.0 + 1e-12, np.nan, "now"])
def test_times_outside_are_errors(traj, t):
    with pytest.raises(errors.InputError):
        traj(t)


def test_an_unknown_side_is_an_error(traj):
    with pytest.raises(errors.UnknownNameError, match="did you mean 'left'"):
        traj(1.0, "lefft")


def test_many_times_at_once_are_the_same_as_one_at_a_time(traj):
    for arc in traj.arcs:
        times = np.linspace(arc.start, arc.end, 50)
        many = arc(times)
        one = np.array([arc(float(t)) for t in times])
        np.testing.assert_allclose(many, one, atol=5 * ROUNDING)  # of speeds up to 5
        assert arc.input(times).shape == (50, 0)
        x, u = arc.state_and_input(float(times[3]))
        np.testing.assert_allclose(x, one[3], atol=5 * ROUNDING)
        assert u.shape == (0,)
        states, inputs = arc.states_and_inputs(times)
        np.testing.assert_allclose(states, one, atol=5 * ROUNDING)
        assert inputs.shape == (50, 0)
        np.testing.assert_array_equal(arc(np.array(times[3])), one[3])


def test_a_run_has_inputs_at_many_times(traj):
    times = np.linspace(traj.start, traj.end, 20)
    assert traj.input(times).shape == (20, 0)
    one = [traj.input(float(t)) for t in times]
    np.testing.assert_array_equal(traj.input(times), one)


def test_samples_cover_each_arc_with_both_ends(traj):
    for arc, times in traj.sampled(0.07):
        assert (times[0], times[-1]) == (arc.start, arc.end)
        assert np.diff(times).max() <= 0.07 + 1e-15
    with pytest.raises(errors.InputError, match="period"):
        next(traj.sampled(0.0))


def arrays(thing):
    for f in dataclasses.fields(thing):
        value = getattr(thing, f.name)
        if isinstance(value, np.ndarray):
            yield f.name, value


def test_trajectories_cannot_be_changed(traj, tmp_path):
    traj.save(tmp_path / "t.npz")
    for each in (traj, hc.HybridTrajectory.load(tmp_path / "t.npz", ball())):
        for part in (*each.arcs, *each.events):
            for name, array in arrays(part):
                assert not array.flags.writeable, name
            with pytest.raises(dataclasses.FrozenInstanceError):
                part.index = 7
        with pytest.raises(dataclasses.FrozenInstanceError):
            each.arcs = ()


def test_states_given_by_the_caller_are_copied():
    x0 = np.array([1.0, 0.0])
    traj = hc.simulate(ball(), "air", x0, (0.0, 0.1))
    x0[:] = 99.0
    np.testing.assert_allclose(traj(0.0), [1.0, 0.0], atol=ROUNDING)


def test_a_reset_that_keeps_its_result_does_not_change_the_past():
    memory = np.zeros(2)

    def bounce(t, x, u):
        memory[:] = x[0], -0.8 * x[1]
        return memory

    air = hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -9.81]))
    floor = hc.Guard("floor", lambda t, x, u: x[0])
    system = hc.HybridSystem([air], [hc.Transition("air", floor, hc.Reset(bounce), "air")])
    traj = hc.simulate(system, "air", [1.0, 0.0], (0.0, 2.0))
    assert len(traj.events) >= 2
    for event in traj.events:
        assert event.state_after[1] == pytest.approx(-0.8 * event.state_before[1], rel=1e-15)


def same(a, b):
    assert len(a.arcs) == len(b.arcs)
    assert len(a.events) == len(b.events)
    for one, other in zip((*a.arcs, *a.events), (*b.arcs, *b.events), strict=True):
        for f in dataclasses.fields(one):
            if f.name not in ("space", "report"):
                np.testing.assert_equal(getattr(other, f.name), getattr(one, f.name))
                assert type(getattr(other, f.name)) is type(getattr(one, f.name))


def test_a_file_gives_back_every_bit(traj, tmp_path):
    path = tmp_path / "deeper" / "traj"
    traj.save(path)
    assert [p.name for p in path.parent.iterdir()] == ["traj"]
    again = hc.HybridTrajectory.load(path, ball())
    same(traj, again)
    np.testing.assert_array_equal(again(1.234), traj(1.234))


def test_mode_keys_may_be_nested_tuples_and_the_empty_one(tmp_path):
    system = feet([0.0, 0.1])
    traj = hc.simulate(system, ("0", "1"), [1.0, 0.0], (0.0, 1.0))
    traj.save(tmp_path / "t.npz")
    same(traj, hc.HybridTrajectory.load(tmp_path / "t.npz", system))


def test_a_mode_key_that_a_file_cannot_hold_is_an_error(tmp_path):
    key = frozenset({"left"})
    system = hc.HybridSystem([hc.Mode(key, hc.VectorSpace(1), lambda t, x, u: np.ones(1))], [])
    traj = hc.simulate(system, key, [0.0], (0.0, 1.0))
    with pytest.raises(errors.InputError, match="cannot be stored"):
        traj.save(tmp_path / "t.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_trajectory_is_an_error(tmp_path):
    path = tmp_path / "t.npz"
    for content in (b"", b"hello", b"PK\x03\x04", b"\x93NUMPY\x01\x00", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(errors.FileFormatError):
            hc.HybridTrajectory.load(path, ball())
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.savez(path, a=np.zeros(3))
    for other in (tmp_path / "a.npy", path):
        with pytest.raises(errors.FileFormatError):
            hc.HybridTrajectory.load(other, ball())
    for header in ("[]", "{", "3", json.dumps({"format": 1, "arcs": [3], "events": []})):
        np.savez(path, header=header)
        with pytest.raises(errors.FileFormatError):
            hc.HybridTrajectory.load(path, ball())
    np.savez(path, header=json.dumps({"format": 99, "arcs": [], "events": []}))
    with pytest.raises(errors.FileFormatError, match="format 99"):
        hc.HybridTrajectory.load(path, ball())


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(errors.FileFormatError, match=r"none\.npz cannot be read: .*No such file"):
        hc.HybridTrajectory.load(tmp_path / "none.npz", ball())


def test_a_truncated_file_is_an_error_wherever_it_ends(traj, tmp_path):
    traj.save(tmp_path / "t.npz")
    whole = (tmp_path / "t.npz").read_bytes()
    short = tmp_path / "short.npz"
    for end in np.linspace(0, len(whole) - 1, 60).astype(int):
        short.write_bytes(whole[:end])
        with pytest.raises(errors.FileFormatError):
            hc.HybridTrajectory.load(short, ball())


def test_a_flipped_byte_is_an_error_or_changes_nothing(traj, tmp_path):
    traj.save(tmp_path / "t.npz")
    whole = (tmp_path / "t.npz").read_bytes()
    bad = tmp_path / "bad.npz"
    rng = np.random.default_rng(0)
    for position in rng.choice(len(whole), 150, replace=False):
        content = bytearray(whole)
        content[position] ^= int(rng.integers(1, 256))
        bad.write_bytes(content)
        try:
            again = hc.HybridTrajectory.load(bad, ball())
        except errors.FileFormatError:
            continue
        same(traj, again)


def test_an_arc_array_that_is_missing_is_an_error(traj, tmp_path):
    traj.save(tmp_path / "t.npz")
    with (
        zipfile.ZipFile(tmp_path / "t.npz") as old,
        zipfile.ZipFile(tmp_path / "less.npz", "w") as new,
    ):
        for name in old.namelist():
            if not name.startswith("arc0.states"):
                new.writestr(name, old.read(name))
    with pytest.raises(errors.FileFormatError, match="arc0"):
        hc.HybridTrajectory.load(tmp_path / "less.npz", ball())


def test_a_system_that_does_not_fit_the_file_is_an_error(traj, tmp_path):
    traj.save(tmp_path / "t.npz")
    with pytest.raises(errors.FileFormatError, match="2 states"):
        hc.HybridTrajectory.load(tmp_path / "t.npz", box(1.0, 1.0, 1.0))
    other = hc.HybridSystem([hc.Mode("sea", hc.VectorSpace(2), lambda t, x, u: x)], [])
    with pytest.raises(errors.UnknownNameError, match="air"):
        hc.HybridTrajectory.load(tmp_path / "t.npz", other)
    driven = hc.HybridSystem([hc.Mode("air", hc.VectorSpace(2), lambda t, x, u: x, nu=1)], [])
    with pytest.raises(errors.FileFormatError, match="0 inputs"):
        hc.HybridTrajectory.load(tmp_path / "t.npz", driven)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(traj, tmp_path, monkeypatch):
    path = tmp_path / "t.npz"
    traj.save(path)
    old = path.read_bytes()

    def broken(file, **parts):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", broken)
    with pytest.raises(KeyboardInterrupt):
        traj.save(path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["t.npz"]


def test_an_atomic_file_replaces_the_old_one_only_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic(path) as temporary:
        assert temporary.suffix == ".txt"
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    ordinary = path.with_name("b.txt")
    ordinary.touch()
    assert path.stat().st_mode == ordinary.stat().st_mode
    ordinary.unlink()
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def forged(path, *, header=None, **arrays):
    """A saved run with some of its content replaced: of the header by a function, of arrays."""
    with np.load(path) as data:
        content = dict(data)
    told = json.loads(str(content["header"]))
    if header is not None:
        header(told)
    content["header"] = json.dumps(told)
    for name, change in arrays.items():
        change(content[name.replace("_of_", ".")])
    np.savez(path, **content)
    return path


def broken(array):
    array.reshape(-1)[0] = np.nan


def guard_named(name):
    return lambda told: told["events"][0].update(guards=[name])


@pytest.mark.parametrize(
    ("header", "name", "message"),
    [
        (None, "arc1.states", "states of arc 1 must be finite, got nan"),
        (None, "event0.state_after", "state_after of event 0 must be finite"),
        (lambda told: told["arcs"][0].update(end=-1.0), None, "arc 0 ends at -1.0 s, before its"),
        (
            lambda told: told["arcs"][0].update(start=np.nan),
            None,
            "must be a finite number, got nan",
        ),
        (
            lambda told: told["arcs"][0].update(end="late"),
            None,
            "must be a finite number, got 'late'",
        ),
        (lambda told: told["arcs"][-1].update(end=1e3), None, "its steps cover"),
        (
            lambda told: told["events"][0].update(time=0.1),
            None,
            "event 0 is at 0.1 s, between arcs",
        ),
        (
            guard_named("ceiling"),
            None,
            r"event 0 is of guard 'ceiling', the given system has \['fl",
        ),
        (lambda told: told["events"][0].update(mode_after="sea"), None, "to 'sea', but its arcs"),
        (lambda told: told["events"].pop(), None, "are no run"),
    ],
)
def test_a_file_that_is_no_run_is_refused(traj, tmp_path, header, name, message):
    """What `load` gives back answers questions, so it has to be a run."""
    traj.save(tmp_path / "t.npz")
    changes = {} if name is None else {name.replace(".", "_of_"): broken}
    path = forged(tmp_path / "t.npz", header=header, **changes)
    with pytest.raises(errors.FileFormatError, match=message):
        hc.HybridTrajectory.load(path, ball())


@pytest.mark.parametrize("name", ["breaks", "lengths", "states"])
def test_an_arc_of_the_wrong_shape_is_refused(traj, tmp_path, name):
    traj.save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as data:
        content = dict(data)
    content[f"arc0.{name}"] = np.concatenate([content[f"arc0.{name}"]] * 2)
    np.savez(tmp_path / "t.npz", **content)
    with pytest.raises(errors.FileFormatError, match="shape"):
        hc.HybridTrajectory.load(tmp_path / "t.npz", ball())


@pytest.mark.parametrize("lengths", [0.0, -1.0])
def test_steps_without_length_are_refused(traj, tmp_path, lengths):
    traj.save(tmp_path / "t.npz")
    path = forged(tmp_path / "t.npz", arc0_of_lengths=lambda a: a.fill(lengths))
    with pytest.raises(errors.FileFormatError, match="positive lengths"):
        hc.HybridTrajectory.load(path, ball())
