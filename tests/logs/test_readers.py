import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from logs.sample_logs import require, write

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs import array_files, read_log, read_raw
from hybridctl.logs.cells import Column
from hybridctl.logs.raw import RawTable
from hybridctl.logs.text_table import _fill_table
from hybridctl.logs.topic_table import CollectedTopic

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 12345\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\n \n", "nothing but blanks"),
        (b"\0" * 500, "nothing but blanks or zeros"),
        (POINTER, "Git LFS pointer.*git lfs pull"),
        (b"/annex/objects/SHA256E-s9--4.npz\n", "git-annex.*git annex get"),
        (b"\x1f\x8b\x08\0" * 9, "gzip; unpack"),
        (b"\x93NUMPY\x01\0", "single array"),
        (b"#ROSBAG V1.2\n" + b"\0" * 9, "version 1"),
        (b"\x7fELF\x02\x01\x01\0" * 9, "not a text table \\(CSV\\), an NPZ archive.* begins with"),
        (b"t,x\n", "no rows of data"),
        (b"# only a comment\n", "no row of names"),
        (b"0.0,1.0\n0.1,2.0\n", "first row must name the columns, but has numbers"),
        (b"t,x\n0.0,1.0\n0.1\n", "line 3 has 1 cells where the names are 2"),
        (b"t,x,x\n0,1,2\n", r"all different; see \['x'\]"),
        (b't,x\n0.0,"1.0\n', "damaged"),
        ("t,x\n0,ä\n".encode("latin-1"), "'ä' in data row 1 is not a number"),
        (b"t,x\n0,\x01\n" * 9, "begins with"),
        (b"PK\x05\x06" + b"\0" * 18, "without arrays"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 99, "damaged|h5py"),
    ],
)
def test_what_is_no_log_gets_one_clear_line(tmp_path, content, reason):
    path = tmp_path / "log.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        read_log(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_links_and_folders_that_are_no_log(tmp_path):
    (tmp_path / "annexed").symlink_to("../.git/annex/objects/x/SHA256E-s9--4.npz")
    (tmp_path / "broken").symlink_to("nowhere")
    for name, reason in (
        ("annexed", "git annex get"),
        ("broken", "link to nothing"),
        ("absent", "does not exist"),
        ("", "without metadata.yaml"),
    ):
        with pytest.raises(InputError, match=reason):
            read_raw(tmp_path / name)


def test_a_zip_that_unpacks_to_too_much_is_refused_unread(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * 2**22)
    body = path.read_bytes()
    huge = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(body.replace((2**22).to_bytes(4, "little"), huge))
    with pytest.raises(FileFormatError, match="declared as 4294967294 bytes"):
        read_raw(path)


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (-1,), (10**6, 3)])
def test_an_array_that_declares_more_than_it_holds_is_refused(tmp_path, shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    path = tmp_path / "log.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + b"\0" * 64)
    with pytest.raises(FileFormatError, match="'x' is declared as"):
        read_raw(path)


def test_an_hdf5_dataset_that_declares_more_than_it_holds_is_refused(tmp_path):
    require("h5")
    import h5py

    with h5py.File(tmp_path / "log.h5", "w") as file:
        file.create_dataset("x", shape=(10**13,), dtype="f8", chunks=(1000,))
    with pytest.raises(FileFormatError, match="'x' is declared as 80000000000000 bytes"):
        read_raw(tmp_path / "log.h5")


def test_hdf5_links_to_other_files_are_not_followed(tmp_path):
    require("h5")
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = [1.0]
    with h5py.File(tmp_path / "log.h5", "w") as file:
        file["arm/t"] = [0.0, 0.1]
        file["arm/q"] = [1.0, 2.0]
        file["link"] = h5py.ExternalLink("other.h5", "secret")
        file["loop"] = h5py.SoftLink("/")
    assert read_log(tmp_path / "log.h5").names == ("arm/q",)


def test_pickled_objects_are_named_and_left_alone(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, t=[0.0, 0.1], x=[1.0, 2.0], y=np.array([{}, []], dtype=object))
    raw = read_raw(path).tables[""]
    assert "pickled" in raw.unusable["y"]
    with pytest.raises(InputError, match=r"'y' .* pickled"):
        raw["y"]
    assert read_log(path).names == ("x",)


def test_text_columns_units_delimiters_and_whole_numbers(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "# a comment\ntime_ns;height [mm];mode;n\n"
        "1602256052650439937;1.5;open;1\n1602256052650439938;;closed;2\n"
    )
    log = read_log(path)
    assert log.origin_ns == 1602256052650439937
    assert log["height"].unit == "m"
    np.testing.assert_array_equal(log["height"].values, [[1.5e-3]])
    np.testing.assert_array_equal(log["n"].times, [0.0, 1e-9])
    raw = read_raw(path).tables[""]
    assert raw.unusable == {"mode": "'open' in data row 1 is not a number"}


@pytest.mark.parametrize(
    ("format_", "package", "extra"),
    [("mcap", "mcap.reader", "ros"), ("bag", "rosbags.rosbag1", "ros")],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, format_, package, extra):
    path = write(format_, tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    name = package.partition(".")[0]
    with pytest.raises(InputError, match=rf"needs the package {name}.*hybridctl\[{extra}\]"):
        read_log(path)


def test_a_missing_h5py_is_named_with_its_extra(tmp_path, monkeypatch):
    path = write("h5", tmp_path)
    monkeypatch.setattr(array_files, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package h5py.*hybridctl\[hdf5\]"):
        read_log(path)


def test_joint_states_whose_order_and_number_change_are_sorted_by_name():
    from hybridctl.logs.topic_table import CollectedTopic

    topic = CollectedTopic("/joint_states", "sensor_msgs/msg/JointState")
    topic.add(1, {"name": ["a", "b"], "position": [1.0, 2.0], "effort": []})
    topic.add(2, {"name": ["b", "a"], "position": [3.0, 4.0], "effort": []})
    topic.add(3, {"name": ["c"], "position": [5.0], "effort": []})
    table = topic.make_table()
    assert table.labels["position"] == ("a", "b", "c")
    nan = np.nan
    np.testing.assert_array_equal(
        table["position"], [[1.0, 2.0, nan], [4.0, 3.0, nan], [nan, nan, 5.0]]
    )


def test_messages_that_do_not_fit_a_table_say_why():
    from hybridctl.logs.topic_table import CollectedTopic

    topic = CollectedTopic("/scan", "sensor_msgs/msg/LaserScan")
    for k in range(2):
        message = {"ranges": [1.0] * (k + 1), "frame": "a", "tf": [{"x": 1, "of": "b"}], "ok": True}
        topic.add(k, {**message, "image": np.zeros(10_000)})
    table = topic.make_table()
    assert list(table.fields) == ["ok"]
    assert table.unusable["ranges"] == "its size changes"
    assert table.unusable["image"] == "it has 10000 numbers in one message"
    assert table.unusable["tf"] == "it is a list of messages"


class Counted(str):
    """Text that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    comparisons = 0

    def __eq__(self, other):
        Counted.comparisons += 1
        return str.__eq__(self, other)

    def strip(self):
        return self


def test_the_names_of_many_columns_are_compared_a_few_times_each():
    count = 2000
    names = [Counted(f"c{i}") for i in range(count)]
    table = RawTable("")
    columns = [Column(np.zeros(1), np.zeros(1, bool))] * count
    _fill_table(Path("wide.csv"), table, names, columns, [])
    assert len(table.fields) == count
    assert Counted.comparisons < 10 * count  # each with each would be 1000 times as many


def test_a_comma_stands_for_the_point_where_it_is_not_the_delimiter(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t [s];x [mm];both\n0,0;-1,5;1.000,5\n0,01;2,5e-3;2\n")
    table = read_raw(path).tables[""]
    np.testing.assert_array_equal(table.fields["t"], [0.0, 0.01])
    np.testing.assert_array_equal(table.fields["x"], [-1.5, 2.5e-3])
    assert "'1.000,5'" in table.unusable["both"]


def test_files_of_matlab_7_3_have_its_order_of_rows_and_columns(tmp_path):
    """HDF5 behind a block of 512 bytes, in which arrays are stored column by column."""
    h5py, path = pytest.importorskip("h5py"), tmp_path / "log.mat"
    times, angles = np.linspace(0.0, 1.0, 5), np.arange(10.0).reshape(5, 2)
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in (("t", times[:, None]), ("q", angles), ("#refs#/a", angles)):
            file.create_dataset(name, data=value.T).attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")
    found = read_raw(path)
    assert found.tables[""].fields.keys() == {"t", "q"}
    np.testing.assert_array_equal(found.tables[""].fields["t"], times)
    np.testing.assert_array_equal(found.tables[""].fields["q"], angles)


@pytest.mark.parametrize(
    ("kind", "unit"), [("Accel", "m/s^2"), ("AccelStamped", "m/s^2"), ("TwistStamped", "m/s")]
)
def test_linear_is_a_velocity_or_an_acceleration_by_the_type_of_the_message(kind, unit):
    topic = CollectedTopic("/a", f"geometry_msgs/msg/{kind}")
    topic.add(0, {"linear": {"x": 1.0}, "angular": {"x": 1.0}})
    assert topic.make_table().units == {"linear.x": unit, "angular.x": unit.replace("m/", "rad/")}
