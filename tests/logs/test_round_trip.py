import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs.sample_logs import NAMES, NATIVE, require, sample_log, samples, write

from hybridctl import Series
from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.logs import Log, Mapping, read_log, read_raw, write_log


def assert_same(read, written):
    assert read.origin_ns == written.origin_ns
    assert read.metadata == written.metadata
    assert read.names == written.names
    for a, b in zip(read.channels.values(), written.channels.values(), strict=True):
        np.testing.assert_array_equal(a.times, b.times)
        np.testing.assert_array_equal(a.values, b.values)
        without = {"times": np.zeros(0), "values": np.zeros((0, len(b.columns)))}
        described = [dataclasses.replace(c, **without) for c in (a, b)]
        assert repr(described[0]) == repr(described[1])


@pytest.mark.parametrize("suffix", NATIVE)
def test_a_log_is_read_as_it_was_written(tmp_path, suffix):
    read = read_log(write(suffix, tmp_path))
    assert_same(read, sample_log())
    assert not read.notes


@pytest.mark.parametrize("suffix", [s for s in NATIVE if s != "csv"])
def test_a_channel_without_samples_survives(tmp_path, suffix):
    require(suffix)
    log = sample_log()
    empty = Series(np.zeros(0), np.zeros((0, 2)), ("a", "b"))
    log = dataclasses.replace(log, channels={**log.channels, "silent": empty})
    write_log(tmp_path / f"log.{suffix}", log)
    assert_same(read_log(tmp_path / f"log.{suffix}"), log)


VALUES = st.floats(width=64, allow_infinity=False)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(-1e9, 1e9), VALUES, VALUES),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 2**62),
)
def test_csv_holds_every_float(tmp_path_factory, rows, origin):
    table = np.array(rows)
    log = Log({"x": Series(table[:, 0], table[:, 1:], ("a,b", 'c"d'))}, origin)
    path = tmp_path_factory.mktemp("csv") / "log.csv"
    write_log(path, log)
    assert_same(read_log(path), log)


@pytest.mark.parametrize("format_", ["bag", "ros2", "ros2-mcap"])
def test_a_bag_gives_back_its_messages(tmp_path, format_):
    stamps, positions = samples()
    mapping = Mapping.parse(
        {"channels": {"q": {"topic": "/joint_states", "fields": "position", "unit": "deg"}}}
    )
    path = write(format_, tmp_path)
    log = read_log(path, mapping)
    assert log.origin_ns == stamps[0]
    # whole nanoseconds times 1e-9 round once
    np.testing.assert_allclose(log["q"].times, (stamps - stamps[0]) * 1e-9, rtol=1e-15)
    np.testing.assert_allclose(log["q"].values, np.deg2rad(positions), rtol=1e-15)
    assert log["q"].columns == tuple(NAMES)
    raw = read_raw(path).tables["/joint_states"]
    np.testing.assert_array_equal(raw["header.stamp"], stamps - 500)


@pytest.mark.parametrize("format_", ["bag", "ros2", "ros2-mcap"])
def test_a_topic_that_is_not_there_is_named_beside_those_that_are(tmp_path, format_):
    path = write(format_, tmp_path)
    mapping = Mapping.parse({"channels": {"q": {"topic": "/joint_state", "fields": "position"}}})
    with pytest.raises(UnknownNameError, match="did you mean '/joint_states'"):
        read_log(path, mapping)


def test_a_single_file_of_a_bag_is_read_whatever_its_name(tmp_path):
    folder = write("ros2-mcap", tmp_path)
    whole = read_log(folder)
    for k, file in enumerate(folder.glob("*.mcap")):
        renamed = file.rename(tmp_path / f"part{k}.dat")
        assert_same(read_log(renamed), whole)


def test_a_ros1_bag_and_a_database_are_read_whatever_their_names(tmp_path):
    bag = write("bag", tmp_path)
    whole = read_log(bag)
    assert_same(read_log(bag.rename(tmp_path / "renamed")), whole)
    folder = write("ros2", tmp_path)
    whole = read_log(folder)
    assert_same(read_log((folder / "bag.db3").rename(tmp_path / "other")), whole)


@pytest.mark.parametrize("suffix", NATIVE)
def test_the_name_does_not_matter(tmp_path, suffix):
    path = write(suffix, tmp_path).rename(tmp_path / "log.txt")
    assert_same(read_log(path), sample_log())


def test_rows_that_are_gone_are_noticed(tmp_path):
    path = write("csv", tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(FileFormatError, match="were written; the file was cut"):
        read_log(path)


def test_a_header_of_another_version_is_refused(tmp_path):
    path = write("npz", tmp_path)
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["hybridctl_log"])) | {"version": 99}
    np.savez(path, **{**arrays, "hybridctl_log": np.array(json.dumps(header))})
    with pytest.raises(FileFormatError, match="version 1"):
        read_log(path)


def test_an_unknown_suffix_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(UnknownNameError, match=r"suffix .* '.cvs' .* did you mean '.csv'"):
        write_log(tmp_path / "log.cvs", sample_log())
    assert not list(tmp_path.iterdir())


def test_mcap_refuses_stamps_before_1970_and_leaves_no_file(tmp_path):
    require("mcap")
    log = Log({"x": Series([-1.0, 0.0], [1.0, 2.0])}, 0)
    with pytest.raises(InputError, match="MCAP cannot hold the stamp"):
        write_log(tmp_path / "log.mcap", log)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["csv", "mcap"])
def test_a_log_without_any_sample_is_refused_where_it_could_not_be_read(tmp_path, suffix):
    require(suffix)
    log = Log({"x": Series(np.zeros(0), np.zeros((0, 2)))})
    with pytest.raises(InputError, match="needs at least one sample"):
        write_log(tmp_path / f"log.{suffix}", log)
    assert not list(tmp_path.iterdir())
