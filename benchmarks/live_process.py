"""A log at 1 kHz through the pipes of `hybridctl live`: the share that is answered in 1 ms.

Each sample is sent at its time, and the answer's arrival is read in the same process, so that the
time is that of the sender's loop: two pipes, the process, and what the machine does beside. The
samples count that come a second after the opening, when what it has collected is caught up with
on a machine that keeps pace. Run it as `python -m benchmarks.live_process`; the load of the machine
and the processor time of a sample are printed with the numbers. `--pace 200` sends as many samples
a second, so that none waits for those before.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hybridctl.robots import public
from mcap.writer import Writer
from rich.console import Console
from rich.table import Table
from rosbags.typesys import Stores, get_typestore

from benchmarks.legged import OPENING, RATE, trot
from hybridctl.app.report import make_table
from hybridctl.base.checks import Array
from hybridctl.legged.estimator import BaseSettings
from hybridctl.legged.kinematics import Foot
from hybridctl.legged.live import LiveSample
from hybridctl.mechanics.multibody.robot import Robot

NAME = "go1"
KINDS = {
    "/imu": "sensor_msgs/msg/Imu",
    "/joint_states": "sensor_msgs/msg/JointState",
    "/forces": "std_msgs/msg/Float64MultiArray",
}
IN_TIME = 1e-3
"""Seconds in which a sample is to be answered: one period."""
START = 5.0
"""Seconds after the start of the process before the first sample: imports, and the robot."""
ECHO = (
    "import sys\nfor line in sys.stdin.buffer:\n sys.stdout.buffer.write(line)\n sys.stdout.flush()"
)
"""A process that sends each line back: what pipes and the machine take alone."""
SETTLED = OPENING + 1.0
"""Stamp in s from which on samples count."""
COLUMNS = ["form", "samples", "in 1 ms", "median ms", "99 %", "99.9 %", "worst", "CPU ms", "load"]


def write_robot(folder: Path) -> Path:
    """Write URDF and file of the robot, and return the path of the latter."""
    text = public.urdf(NAME)
    (folder / "robot.urdf").write_text(text)
    root = Robot.from_urdf(text).link_names[0]
    tips = public.MODELS[NAME].tips
    vectors = {
        name: {"topic": "/imu", "fields": [f"{field}.{axis}" for axis in "xyz"]}
        for name, field in (
            ("gyroscope", "angular_velocity"),
            ("accelerometer", "linear_acceleration"),
        )
    }
    forces = {
        tip: {"topic": "/forces", "fields": "data", "columns": [k]} for k, tip in enumerate(tips)
    }
    joints = {"topic": "/joint_states", "fields": "position", "unit": "rad"}
    content = {
        "urdf": "robot.urdf",
        "imu": {"frame": root},
        "encoders": {"joints": {}},
        "contacts": {tip: {"frame": tip, "force": tip} for tip in tips},
        "settings": {"opening": OPENING, "uniform_clock": False},
        "mapping": {"channels": {**vectors, "joints": joints, **forces}},
    }
    path = folder / "robot.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return path


def encode_lines(samples: list[LiveSample], joints: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the JSON line of each sample."""
    for sample in samples:
        assert sample.gyroscope is not None
        assert sample.accelerometer is not None
        assert sample.joints is not None
        content = {
            "time": sample.time,
            "gyroscope": sample.gyroscope.tolist(),
            "accelerometer": sample.accelerometer.tolist(),
            "joints": dict(zip(joints, sample.joints.tolist(), strict=True)),
            **sample.loads,
        }
        yield json.dumps(content).encode() + b"\n"


def encode_messages(samples: list[LiveSample], joints: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the records of each sample: three messages of ROS 2 in MCAP without chunks."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    types: Any = store.types
    stream = io.BytesIO()
    writer = Writer(stream, use_chunking=False)
    writer.start(profile="ros2")
    channels = {}
    for topic, kind in KINDS.items():
        text, _ = store.generate_msgdef(kind, ros_version=2)
        schema = writer.register_schema(kind, "ros2msg", text.encode())
        channels[topic] = writer.register_channel(topic, "cdr", schema)
    vector, unknown = types["geometry_msgs/msg/Vector3"], np.zeros(9)
    nobody = types["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0)
    layout = types["std_msgs/msg/MultiArrayLayout"]([], 0)
    for sample in samples:
        assert sample.gyroscope is not None
        assert sample.accelerometer is not None
        stamp = round(1e9 * sample.time)
        header = types["std_msgs/msg/Header"](
            types["builtin_interfaces/msg/Time"](*divmod(stamp, 10**9)), "imu"
        )
        rate, force = vector(*sample.gyroscope), vector(*sample.accelerometer)
        empty = np.zeros(0)
        contents = {
            "/imu": types[KINDS["/imu"]](header, nobody, unknown, rate, unknown, force, unknown),
            "/joint_states": types[KINDS["/joint_states"]](
                header, list(joints), sample.joints, empty, empty
            ),
            "/forces": types[KINDS["/forces"]](layout, np.array(list(sample.loads.values()))),
        }
        for topic, message in contents.items():
            data = bytes(store.serialize_cdr(message, KINDS[topic]))
            writer.add_message(channels[topic], stamp, data, stamp)
        yield stream.getvalue()
        stream.seek(0)
        stream.truncate()


def measure_delays(form: str, seconds: float, pace: float) -> tuple[Array, float]:
    """Play a log through a process, and return the delays (n,) of answers in s.

    Args:
        form: "lines" or "messages"; "echo" for lines and a process that sends them back.
        seconds: Length of the log.
        pace: Samples sent in a second.

    Returns:
        The delays, infinite where there is no answer, and the processor time of a sample in s.
    """
    robot = Robot.from_urdf(public.urdf(NAME))
    feet = tuple(Foot(tip) for tip in public.MODELS[NAME].tips)
    estimator = BaseSettings(robot.link_names[0], feet).build(robot)
    samples = list(trot(estimator, NAME, seconds))
    encode = encode_messages if form == "messages" else encode_lines
    parts = list(encode(samples, estimator.joints))
    arrived = list[tuple[float, bytes]]()
    with tempfile.TemporaryDirectory() as folder:
        path = write_robot(Path(folder))
        live = ["-m", "hybridctl", "live", "--model", str(path)]
        call = [sys.executable, *(["-c", ECHO] if form == "echo" else live)]
        with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            answers = process.stdout

            def collect() -> None:
                for line in answers:
                    arrived.append((time.perf_counter(), line))

            reader = threading.Thread(target=collect)
            reader.start()
            time.sleep(START)
            left, began = list[float](), time.perf_counter()
            for k, part in enumerate(parts):
                time.sleep(max(0.0, began + k / pace - time.perf_counter()))
                if k == round(RATE * SETTLED):
                    used = read_processor_time(process.pid)
                left.append(time.perf_counter())
                process.stdin.write(part)
                process.stdin.flush()
            while len(arrived) < 1 or is_behind(arrived[-1][1], len(parts) - 1):
                time.sleep(1e-2)
            used = read_processor_time(process.pid) - used
            process.stdin.close()
            reader.join()
    delays = np.full(len(parts), np.inf)
    for at, line in arrived:
        k = round(RATE * json.loads(line)["time"])
        delays[k] = at - left[k]
    counted = delays[round(RATE * SETTLED) :]
    return counted, used / len(counted)


def is_behind(line: bytes, last: int) -> bool:
    """Whether a line answers a sample before the last one, by its number."""
    return round(RATE * float(json.loads(line)["time"])) < last


def read_processor_time(pid: int) -> float:
    """Return the processor time of a process so far, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def delays_table(seconds: float, pace: float) -> Table:
    """Return the table of delays for an echo, for JSON lines and for messages of ROS 2."""
    rows = []
    for form in ("echo", "lines", "messages"):
        delays, used = measure_delays(form, seconds, pace)
        middle, most, nearly, worst = 1e3 * np.quantile(delays, [0.5, 0.99, 0.999, 1.0])
        share = 100.0 * float((delays <= IN_TIME).mean())
        load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()}"
        numbers = [f"{v:.2f}" for v in (middle, most, nearly, worst)]
        numbers.append(f"{1e3 * used:.2f}")
        rows.append((form, str(len(delays)), f"{share:.2f} %", *numbers, load))
    return make_table(
        f"{NAME}, {pace:g} samples a second through the pipes of a process", COLUMNS, rows
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_process", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the log")
    parser.add_argument("--pace", type=float, default=RATE, help="samples sent in a second")
    given = parser.parse_args()
    Console(width=100).print(delays_table(given.seconds, given.pace))


if __name__ == "__main__":
    main()
