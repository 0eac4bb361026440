"""Small logs, and files of every format, for the tests of the readers."""

from importlib.util import find_spec

import numpy as np
import pytest

from hybridctl import Series
from hybridctl.base.errors import InputError
from hybridctl.logs import Log, write_log

NEEDS = {
    "csv": (),
    "npz": (),
    "h5": ("h5py",),
    "mcap": ("mcap",),
    "bag": ("rosbags",),
    "ros2": ("rosbags",),
    "ros2-mcap": ("rosbags", "mcap"),
}
EXTRA = {"h5py": "hdf5", "mcap": "ros", "rosbags": "ros"}
NATIVE = ("csv", "npz", "h5", "mcap")
ORIGIN = 1_602_256_052_650_439_937
NAMES = ["hip", "knee"]


def require(format_):
    for package in NEEDS[format_]:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed; it comes with hybridctl[{EXTRA[package]}]")


def check_refused(read, path, text, reason, error=InputError):
    """Check that a reader refuses a text in three lines at most, which name file and reason."""
    path.write_text(text)
    with pytest.raises(error, match=reason) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


def sample_log(count=12):
    """Two rates, a quaternion, an input, a missing value, a stamp twice and one late."""
    rng = np.random.default_rng(3)
    fast = np.cumsum(rng.uniform(0.005, 0.02, count))
    slow = fast[::3] + 1e-3 / 3
    slow[2], slow[3] = slow[3], slow[1]
    positions = rng.normal(size=(count, 2))
    positions[4, 1] = np.nan
    quaternions = rng.normal(size=(len(slow), 4))
    quaternions /= np.linalg.norm(quaternions, axis=1)[:, None]
    channels = {
        "joints": Series(fast, positions, ("hip", "knee"), "rad"),
        "imu.turn": Series(slow, quaternions, unit="1", frame="world", quaternion=True),
        "torque": Series(fast, rng.normal(size=(count, 1)), ("knee",), "Nm", role="input"),
        "height": Series(fast[:3], rng.normal(size=3), (), "m", "table", "truth"),
    }
    return Log(channels, ORIGIN, metadata={"robot": "a, b \u00b5"})


def samples(count=40):
    """Stamps [ns] and joint angles of the ROS files."""
    rng = np.random.default_rng(4)
    stamps = ORIGIN + np.cumsum(rng.integers(1_000_000, 9_000_000, count))
    return stamps, rng.normal(size=(count, 2))


def write(format_, folder):
    """The path of a file or bag of this format."""
    require(format_)
    if format_ in NATIVE:
        path = folder / f"log.{format_}"
        write_log(path, sample_log())
        return path
    return _ros1(folder) if format_ == "bag" else _ros2(folder, format_)


def _joint_state(store, types, stamp, position, **header):
    time = types["builtin_interfaces/msg/Time"](sec=int(stamp // 10**9), nanosec=int(stamp % 10**9))
    return types["sensor_msgs/msg/JointState"](
        header=types["std_msgs/msg/Header"](stamp=time, frame_id="base", **header),
        name=NAMES,
        position=position,
        velocity=np.zeros(0),
        effort=np.zeros(0),
    )


def _ros1(folder):
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    kind = "sensor_msgs/msg/JointState"
    path = folder / "log.bag"
    with Writer(path) as writer:
        connection = writer.add_connection("/joint_states", kind, typestore=store)
        for k, (stamp, position) in enumerate(zip(*samples(), strict=True)):
            message = _joint_state(store, store.types, stamp - 500, position, seq=k)
            writer.write(connection, int(stamp), store.serialize_ros1(message, kind))
    return path


def _ros2(folder, format_):
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    kind = "sensor_msgs/msg/JointState"
    path = folder / "bag"
    plugin = StoragePlugin.MCAP if format_ == "ros2-mcap" else StoragePlugin.SQLITE3
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        connection = writer.add_connection("/joint_states", kind, typestore=store)
        for stamp, position in zip(*samples(), strict=True):
            message = _joint_state(store, store.types, stamp - 500, position)
            writer.write(connection, int(stamp), store.serialize_cdr(message, kind))
    return path
