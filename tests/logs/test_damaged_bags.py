"""Damaged bags: each message is read as it was written, or its loss is named."""

import io

import numpy as np
import pytest
from logs.sample_logs import ORIGIN, require
from logs.test_fuzz import limit
from rich.console import Console

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs import Mapping, examine, read_log
from hybridctl.logs.info import print_info
from hybridctl.logs.mcap_files import read_mcap
from hybridctl.logs.message_collector import MessageCollector, find_size_limit

FEW, MANY = 10, 50
FORMS = ("mcap", "mcap loose", "ros2", "ros2-mcap", "bag")
DAMAGES = ("none", "cut", "cut", "cut", "unknown type", "bad bytes", "shuffled", "metadata")
TYPE, TOPICS = "tests/msg/Pair", ("/a", "/b", "/c")
DEFINITION = "float64 x\nfloat64[2] q\n"
UNDEFINED = "/c is not read: its messages cannot be decoded .'tests/msg/this' is not defined"
BAD_DEFINITION = "float64 x\nthis is no type\n"


def write_bag(folder, seed):
    """Write a bag; return its path, its truth by topic (stamps [ns], x, q), and its story."""
    rng = np.random.default_rng(seed)
    form, damage = FORMS[seed % len(FORMS)], DAMAGES[rng.integers(len(DAMAGES))]
    truth = {}
    for topic in TOPICS:
        count = int(rng.integers(20, 200))
        stamps = ORIGIN + np.cumsum(rng.integers(1_000_000, 9_000_000, count))
        truth[topic] = stamps, rng.normal(size=count), rng.normal(size=(count, 2))
    rows = [(topic, k) for topic, (stamps, _, _) in truth.items() for k in range(len(stamps))]
    rows.sort(key=lambda row: truth[row[0]][0][row[1]])
    if damage == "shuffled" and form != "bag":  # whose writer sorts
        rng.shuffle(rows)
    messages = []
    for topic, k in rows:
        stamps, x, q = truth[topic]
        data = np.array([x[k], *q[k]], "<f8").tobytes()
        if damage == "bad bytes" and topic == "/c" and rng.random() < 0.5:
            data = data[:13]
        head = b"" if form == "bag" else b"\0\1\0\0"  # of CDR, little endian
        messages.append((topic, int(stamps[k]), head + data))
    bad = {"/c": BAD_DEFINITION} if damage == "unknown type" else {}
    definitions = {topic: bad.get(topic, DEFINITION) for topic in TOPICS}
    if form.startswith("mcap"):
        path = _write_mcap(folder / "log.mcap", messages, definitions, form == "mcap")
    else:
        path = _write_rosbag(folder / "log", form, messages, definitions)
    files = [path]
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix != ".yaml"]
        if damage == "metadata":
            _spoil_metadata(path / "metadata.yaml", rng)
    if damage == "cut":
        content = files[0].read_bytes()
        files[0].write_bytes(content[: rng.integers(len(content))])
    return path, truth, f"{seed}: {form}, {damage}"


def _spoil_metadata(path, rng):
    """Remove metadata.yaml, or its storage identifier."""
    if rng.random() < 0.5:
        path.unlink()
        return
    text = path.read_text()
    for name in ("mcap", "sqlite3"):
        text = text.replace(f"storage_identifier: {name}", "storage_identifier: ''")
    path.write_text(text)


def _write_mcap(path, messages, definitions, is_chunked):
    from mcap.writer import CompressionType, Writer

    content = io.BytesIO()
    writer = Writer(
        content, chunk_size=2000, compression=CompressionType.LZ4, use_chunking=is_chunked
    )
    writer.start()
    channels = {}
    for topic, definition in definitions.items():
        schema = writer.register_schema("tests/msg/Pair", "ros2msg", definition.encode())
        channels[topic] = writer.register_channel(topic, "cdr", schema)
    for topic, stamp, data in messages:
        writer.add_message(channels[topic], stamp, data, stamp)
    writer.finish()
    path.write_bytes(content.getvalue())
    return path


def _write_rosbag(path, form, messages, definitions):
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(DEFINITION, TYPE))
    if form == "bag":
        path = path.with_suffix(".bag")
        hashes = {"md5sum": store.generate_msgdef(TYPE)[1]}
        writer = rosbag1.Writer(path)
    else:
        kinds = {"ros2": rosbag2.StoragePlugin.SQLITE3, "ros2-mcap": rosbag2.StoragePlugin.MCAP}
        hashes = {"rihs01": store.hash_rihs01(TYPE)}
        writer = rosbag2.Writer(path, version=9, storage_plugin=kinds[form])
    with writer:
        connections = {
            topic: writer.add_connection(
                topic, TYPE if d == DEFINITION else "tests/msg/Bad", msgdef=d, **hashes
            )
            for topic, d in definitions.items()
        }
        for topic, stamp, data in messages:
            writer.write(connections[topic], stamp, data)
    return path


def check_bag(folder, seed):
    """Return whether anything was read: nothing is wrong, and nothing is lost in silence."""
    path, truth, story = write_bag(folder, seed)
    log, refusal = None, ""
    with limit(10.0):
        try:
            log = read_log(path)
        except InputError as error:
            refusal = str(error)
    if log is None:
        assert "cut" in story, (story, refusal)
        assert str(path) in refusal, story
        assert len(refusal.splitlines()) <= 3, story
        return False
    said = " ".join(examine(log).warnings)
    for topic, (stamps, x, q) in truth.items():
        read = {name: log[f"{topic}.{name}"] for name in "xq" if f"{topic}.{name}" in log}
        for name, series in read.items():
            recorded = log.origin_ns + np.round(1e9 * series.times).astype(np.int64)
            rows = np.searchsorted(stamps, recorded)
            np.testing.assert_array_equal(stamps[rows], recorded, err_msg=story)
            values = {"x": x[:, None], "q": q}[name]
            np.testing.assert_array_equal(series.values, values[rows], err_msg=story)
        if len(read) < 2 or len(read["x"]) < len(stamps):
            lost = ("cut", "damaged", "declared", "metadata.yaml cannot be used")
            assert topic in said or any(word in said for word in lost), (story, topic, said)
    if "metadata" in story and "ros2" in story and not (path / "metadata.yaml").exists():
        assert "metadata.yaml cannot be used" in said, story
    return True


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.slow)]
)
def test_a_damaged_bag_is_read_as_far_as_it_goes_and_the_rest_is_named(tmp_path, seeds):
    for package in ("ros2-mcap", "bag"):
        require(package)
    read = []
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        read.append(check_bag(folder, seed))
    assert sum(read) > 0.5 * len(read)


@pytest.fixture
def half_known(tmp_path):
    """An MCAP whose topic /c has a definition that cannot be used, cut in its last chunk."""
    require("ros2-mcap")
    data = b"\0\1\0\0" + np.array([1.0, 2.0, 3.0], "<f8").tobytes()
    messages = [(topic, ORIGIN + k * 10**7, data) for k in range(100) for topic in TOPICS]
    definitions = {"/a": DEFINITION, "/b": DEFINITION, "/c": BAD_DEFINITION}
    path = _write_mcap(tmp_path / "log.mcap", messages, definitions, is_chunked=True)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def test_a_topic_that_cannot_be_decoded_is_an_error_only_where_it_is_asked_for(half_known):
    source = {"fields": "x", "topic": "/a"}
    log = read_log(half_known, Mapping.parse({"channels": {"a": source}}))
    assert 1 < len(log["a"]) < 100
    assert any("log.mcap is cut or damaged: read up to byte" in note for note in log.notes)
    with pytest.raises(InputError, match=f"topic {UNDEFINED}"):
        read_log(half_known, Mapping.parse({"channels": {"a": {**source, "topic": "/c"}}}))


def test_info_names_what_of_a_bag_is_not_read(half_known):
    console = Console(width=300)
    with console.capture() as capture:
        print_info(half_known, console)
    text = capture.get()
    assert "/a.x" in text
    assert f"warning: topic {UNDEFINED}" in text.replace("(", ".")
    assert "warning: log.mcap is cut or damaged" in text


def test_a_channel_without_decoder_does_not_drop_the_others_of_its_topic(tmp_path):
    """Two senders of one topic: one in JSON, the other in an encoding that is not read."""
    require("mcap")
    from mcap.writer import Writer

    path = tmp_path / "log.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("tests/msg/Pair", "jsonschema", b"{}")
        for encoding, data in (("json", b'{"x": 1.5}'), ("protobuf", b"\1")):
            channel = writer.register_channel("/a", encoding, schema)
            for k in range(3):
                writer.add_message(channel, ORIGIN + k * 10**7, data, ORIGIN)
        writer.finish()
    raw = read_mcap(path, None)
    np.testing.assert_array_equal(raw.tables["/a"]["x"], 3 * [1.5])
    assert not raw.unread
    reason = "messages encoded as 'protobuf' are not read"
    assert raw.notes == [f"some messages of topic /a are not read: {reason}"]


def test_content_beyond_the_limit_names_the_limit(tmp_path):
    path = tmp_path / "log.mcap"
    path.write_bytes(b"12")
    log = MessageCollector(path, None, find_size_limit(path))
    log.add_topic("/a", "")
    with pytest.raises(FileFormatError, match="more than 2000 bytes, the limit of 1000 times"):
        log.add_message("/a", 0, bytes(2000), "it is not read")
