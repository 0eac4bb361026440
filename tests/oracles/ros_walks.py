"""The walk of the five-link walker as messages of ROS 2 in MCAP, and the filter of its log."""

import io
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from mcap.writer import CompressionType, Writer
from oracles.walking_robots import WALKER, Gait, Machine, estimator_of, log, over_states
from rosbags.typesys import Stores, get_typestore

from hybridctl.legged.creep_filter import CreepFilter
from hybridctl.logs import read_log
from hybridctl.logs.legged import make_base_readings
from hybridctl.mechanics.multibody.robot import Robot

ORIGIN = 1_700_000_000_123_456_789  # ns
STORE = get_typestore(Stores.ROS2_HUMBLE)
TYPES = STORE.types
STAMPED = "time: {field: header.stamp}"
MAPPING = """
  channels:
    gyroscope:
      {topic: /imu, fields: [angular_velocity.x, angular_velocity.y, angular_velocity.z], TIME}
    accelerometer:
      topic: /imu
      fields: [linear_acceleration.x, linear_acceleration.y, linear_acceleration.z]
      TIME
    joints: {topic: /joint_states, fields: position, unit: rad, TIME}
    left_foot: {topic: /left, fields: [wrench.force.z], TIME}
    right_foot: {topic: /right, fields: [wrench.force.z], TIME}
""".replace("TIME", STAMPED)
TOGETHER = (
    MAPPING[: MAPPING.index("    left_foot")]
    + """\
    left_foot: {topic: /forces, fields: data, columns: [0], unit: N}
    right_foot: {topic: /forces, fields: data, columns: [1], unit: N}
"""
)
"""Forces of both feet in one array without a header: their stamps are the recorder's."""
FILE = """
urdf: {urdf}
imu: {{frame: {frame}}}
encoders: {{joints: {{}}}}
contacts: {{left_foot: {{frame: left_foot, force: left_foot}},
  right_foot: {{frame: right_foot, force: right_foot}}}}
start: {{standing: 0.5, heading: 0.3, position: [1, 2, 3]}}
settings: {{opening: 0.7, uniform_clock: false, touch_force: 60, lift_force: 40, {settings}}}
mapping: {mapping}
"""


@dataclass(frozen=True)
class Sent:
    """A message: its topic, type and content, its stamp and when it was recorded, both in ns."""

    topic: str
    kind: str
    stamp: int
    recorded: int
    content: dict = field(repr=False)


@cache
def walk():
    """Two seconds of the walker at 100 Hz."""
    estimator = estimator_of(WALKER)
    return estimator, log(estimator, WALKER, Gait(), 2.0, 100.0, seed=4).readings


def robot_file(folder, mapping=MAPPING, settings="", extra=""):
    """Write the robot's file, and return its path."""
    machine = Machine.of(WALKER)
    frame = walk()[0].settings.inertial
    text = FILE.format(urdf=machine.urdf, frame=frame, mapping=mapping, settings=settings)
    path = folder / "walker.yaml"
    path.write_text(text + extra)
    return path


def messages(delays=(0, 0, 0), rates=(1, 1), readings=None, origin=ORIGIN):
    """The messages in order of their stamps, recorded 0.2 ms later.

    delays: of the joints and of each foot against the inertial sensor, ns. rates: every which row
    of the joints, and of the feet, is sent.
    """
    estimator, own = walk()
    readings = readings or own
    names = [*reversed(estimator.joints), "tail"]
    found = []
    for k, time in enumerate(readings.inertial.times.tolist()):
        stamp = origin + round(1e9 * time)
        values, joints = readings.inertial.values[k], readings.angles.values[k]
        rate, force = (dict(zip("xyz", v.tolist(), strict=True)) for v in np.split(values, 2))
        content = {"angular_velocity": rate, "linear_acceleration": force}
        found.append(("/imu", "sensor_msgs/msg/Imu", stamp, content))
        if k % rates[0] == 0:
            content = {"name": names, "position": np.append(joints[::-1], 9.0)}
            found.append(
                ("/joint_states", "sensor_msgs/msg/JointState", stamp + delays[0], content)
            )
        if k % rates[1] == 0:
            loads = [load.values[k, 0] for load in readings.loads.values()]
            for topic, delay, load in zip(("/left", "/right"), delays[1:], loads, strict=True):
                content = {"wrench": {"force": {"z": load}}}
                kind = "geometry_msgs/msg/WrenchStamped"
                found.append((topic, kind, stamp + delay, content))
            content = {"data": np.array(loads)}
            found.append(("/forces", "std_msgs/msg/Float64MultiArray", stamp + delays[1], content))
    sent = []
    for topic, kind, stamp, content in sorted(found, key=lambda one: one[2]):
        late = 0 if topic == "/forces" else 200_000
        sent.append(Sent(topic, kind, stamp, stamp + late, content))
    return sent


def make(kind, content):
    """A message of a type with this content, zeros elsewhere."""
    given = {}
    for name, (node, what) in STORE.fielddefs[kind][1]:
        value = content.get(name)
        if node.name == "NAME":
            given[name] = make(what, value or {})
        elif node.name == "BASE":
            given[name] = value if value is not None else ("" if what[0] == "string" else 0)
        elif node.name == "ARRAY":
            given[name] = np.zeros(what[1]) if value is None else value
        else:
            is_plain = what[0][0].name == "BASE" and what[0][1][0] != "string"
            default = np.zeros(0) if is_plain else []
            given[name] = default if value is None else value
    return TYPES[kind](**given)


def mcap(sent, *, chunked=False, finish=True, schemas=True, rename=None, encoding="cdr"):
    """The messages as MCAP in the order given; rename: other types in the schemas, by name."""
    stream = io.BytesIO()
    writer = Writer(
        stream, chunk_size=2**14, use_chunking=chunked, compression=CompressionType.ZSTD
    )
    writer.start(profile="ros2", library="test")
    channels = {}
    for one in sent:
        if one.topic not in channels:
            schema = 0
            if schemas:
                text, _ = STORE.generate_msgdef(one.kind, ros_version=2)
                name = (rename or {}).get(one.kind, one.kind)
                text = "" if name != one.kind else text
                schema = writer.register_schema(name, "ros2msg", text.encode())
            channels[one.topic] = writer.register_channel(one.topic, encoding, schema)
        content = dict(one.content)
        if "header" in dict(STORE.fielddefs[one.kind][1]):
            sec, nanosec = divmod(one.stamp, 10**9)
            content["header"] = {"stamp": {"sec": sec, "nanosec": nanosec}, "frame_id": "x"}
        data = bytes(STORE.serialize_cdr(make(one.kind, content), one.kind))
        writer.add_message(channels[one.topic], one.recorded, data, one.recorded)
    if finish:
        writer.finish()
    return stream.getvalue()


class Offline:
    """The filter of a log, and the root at any inertial sample by all rows until then."""

    def __init__(self, model, path):
        """Filter a file of the log by the mapping of a model."""
        from hybridctl.logs import Mapping

        estimator = model.settings.build(Robot.from_urdf(model.urdf))
        found = read_log(path, Mapping.parse(model.mapping))
        readings = make_base_readings(found, model.channels, estimator)
        first = estimator.start(readings, heading=model.heading, position=model.position)
        self.estimator, self.origin, self.readings = estimator, found.origin_ns, readings
        self.record = estimator.record(readings)
        delay = estimator.time_offset(readings).left
        self.result = estimator.run_record(self.record, first, delay=delay)
        motion = estimator.foot_motion(self.record)
        own = estimator.raise_noise(self.record, motion, delay)
        self._filter = CreepFilter(own.base, own.filter, motion)
        self._states = over_states(self._filter, self.record, first)
        self._ends = np.array([step.time for step in self.result.steps])

    def roots(self):
        """Yield stamp in ns, root and estimate at each inertial sample after the first row."""
        inertial = self.readings.inertial
        for time, values in zip(inertial.times.tolist(), inertial.values, strict=True):
            row = self._ends.searchsorted(time, "right") - 1
            if row < 0:
                continue
            state = self._states[row]
            for t in (*self.record.input_changes(state.time, time), time):
                state = self._filter.predict(state, t, self.record.input(state.time))
            root = self.estimator.root(state.estimate, values[:3])
            yield self.origin + round(1e9 * time), root, state.estimate


def shuffled(sent, longest, seed=0):
    """The messages in another order of arrival, each at most `longest` ns late by its stamp.

    Messages of one topic stay in order.
    """
    rng = np.random.default_rng(seed)
    late = {topic: 0 for topic in {one.topic for one in sent}}
    arrivals = []
    for one in sent:
        at = one.stamp + int(rng.integers(0, longest))
        late[one.topic] = max(late[one.topic], at)
        arrivals.append((late[one.topic], one))
    arrivals.sort(key=lambda pair: pair[0])
    return [replace(one, recorded=at) for at, one in arrivals]
