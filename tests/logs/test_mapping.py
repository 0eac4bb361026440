import numpy as np
import pytest
import yaml
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import FileFormatError, InputError, UnknownNameError
from hybridctl.logs import Mapping, read_log, read_raw
from hybridctl.logs.mapping_guess import draft_mapping

RNG = np.random.default_rng(5)
QUATERNIONS = Rotation.random(6, random_state=5).as_quat()


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(
        path,
        t_ms=np.arange(6) * 10.0,
        slow_us=np.array([5_000, 25_000]),
        offset=np.array([0, 2, 6]),
        rate=np.array(50.0),
        p=RNG.normal(size=(6, 3)),
        pitch=RNG.normal(size=6),
        wxyz=QUATERNIONS[:, [3, 0, 1, 2]],
        xyzw=QUATERNIONS,
        rpy=Rotation.from_quat(QUATERNIONS).as_euler("xyz", degrees=True),
        names=np.array(["x", "y", "z"]),
        force=np.array([1.0, 2.0]),
        mode=np.array(["a"] * 6),
    )
    return path


def read(archive, text, **options):
    path = archive.with_name("mapping.yaml")
    path.write_text(text)
    return read_log(archive, path, **options)


def test_units_labels_columns_scale_and_frames(archive):
    log = read(
        archive,
        """
        time: {field: t_ms, unit: ms}
        channels:
          p: {fields: p, unit: mm, labels: names, columns: [z, x], frame: table, scale: -1}
          pitch: {fields: [pitch], unit: deg, columns: [0]}
        inputs:
          force: {fields: force, unit: kN, time: {field: slow_us, unit: us}}
        truth:
          place: {fields: [pitch, p], labels: [a, b, c, d]}
        """,
    )
    with np.load(archive) as raw:
        np.testing.assert_allclose(log["p"].values, -1e-3 * raw["p"][:, [2, 0]], rtol=1e-15)
        np.testing.assert_allclose(log["pitch"].values[:, 0], np.deg2rad(raw["pitch"]), rtol=1e-15)
    assert (log["p"].columns, log["p"].unit, log["p"].frame) == (("z", "x"), "m", "table")
    np.testing.assert_allclose(log["p"].times, np.arange(6) * 0.01, rtol=1e-15)
    np.testing.assert_allclose(log["force"].times, [0.005, 0.025], rtol=1e-15)
    np.testing.assert_array_equal(log["force"].values, [[1000.0], [2000.0]])
    assert log["force"].role == "input"
    assert log["place"].columns == ("a", "b", "c", "d")
    assert log["place"].role == "truth"


@pytest.mark.parametrize("given", ["wxyz", "xyzw", "rpy"])
def test_every_form_of_a_rotation_becomes_the_same_quaternion(archive, given):
    unit = "deg" if given == "rpy" else "1"
    text = f"{{fields: {given}, rotation: {given}, unit: {unit}, time: {{rate: 10}}}}"
    channel = read(archive, f"channels: {{r: {text}}}")["r"]
    assert channel.quaternion
    assert channel.columns == ("qx", "qy", "qz", "qw")
    same = np.abs((channel.values * QUATERNIONS).sum(axis=1))  # up to the sign
    np.testing.assert_allclose(same, 1, atol=1e-14)


def test_segments_by_mapping_and_by_argument(archive):
    text = """
        time: {rate: rate}
        segment: {offsets: offset, index: 0}
        channels: {pitch: {fields: pitch, unit: rad}}
        """
    with np.load(archive) as raw:
        pitch = raw["pitch"]
    np.testing.assert_array_equal(read(archive, text)["pitch"].values[:, 0], pitch[:2])
    second = read(archive, text, segment=1)["pitch"]
    np.testing.assert_array_equal(second.values[:, 0], pitch[2:])
    np.testing.assert_allclose(second.times, np.arange(4) / 50, rtol=1e-15)
    with pytest.raises(InputError, match=r"segment\.index must be at most 1, got 2"):
        read(archive, text, segment=2)
    with pytest.raises(InputError, match="no segments"):
        read(archive, "channels: {p: {fields: pitch, time: {rate: 1}}}", segment=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("chanels: {}", "key in mapping 'chanels'.*did you mean 'channels'"),
        ("channels: {q: {field: p}}", "key in channels.q 'field'.*did you mean 'fields'"),
        ("channels: {q: {fields: p, unit: degs}}", "channels.q.unit 'degs'.*did you mean 'deg"),
        ("channels: {q: {fields: p, rotation: zyx}}", "channels.q.rotation 'zyx'"),
        ("time: {fild: t}", "key in time 'fild'.*did you mean 'field'"),
        ("time: {field: t, unit: mm}", "time.unit 'mm'"),
        ("time: {field: t, rate: 3}", "a field or a rate, not both"),
        ("time: {rate: 0}", "time.rate must be greater than 0.0, got 0"),
        ("segment: {index: 3}", "segment needs offsets"),
        (
            "segment: {offsets: o, index: -1}",
            "segment.index must be a whole number of at least 0",
        ),
        ("channels: {q: p}", "channels.q must be an object, got 'p'"),
        ("channels: {q: {unit: m}}", "channels.q needs fields"),
        ("channels: {q: {fields: []}}", "channels.q.fields must be a list of length >= 1"),
        ("channels: {q: {fields: p, scale: a}}", "channels.q.scale"),
        ("channels: [p]", "channels must be an object"),
        ("{}", "at least one entry"),
        ("", "mapping must be an object, got None"),
        ("channels: {q: {fields: p}}\ninputs: {q: {fields: p}}", "different names"),
    ],
)
def test_a_wrong_mapping_names_file_key_and_nearest_spelling(archive, text, reason):
    with pytest.raises(InputError, match=reason) as caught:
        read(archive, text)
    assert "mapping.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["channels: {", "a: 1\na: 2", "x: !!python/name:os.system", "\0"])
def test_what_is_not_plain_yaml_is_refused(archive, text):
    with pytest.raises(FileFormatError, match=r"mapping.yaml: not YAML") as caught:
        read(archive, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "kind", "reason"),
    [
        ({"fields": "pich"}, UnknownNameError, "did you mean 'pitch'"),
        ({"fields": "p", "topic": "/imu"}, UnknownNameError, "topic '/imu'"),
        ({"fields": "p", "columns": ["w"]}, UnknownNameError, "column 'w'"),
        ({"fields": "p", "labels": ["x"]}, InputError, "3 different names"),
        ({"fields": ["p", "force"]}, InputError, "'force' has 2 rows, but 'p' 6"),
        ({"fields": "p", "rotation": "wxyz"}, InputError, "needs 4 columns, got 3"),
        ({"fields": "mode"}, InputError, "must be .* numbers"),
        (
            {"fields": "force", "time": {"field": "t_ms"}},
            InputError,
            "6 stamps, but .* 2 rows",
        ),
        ({"fields": "p", "time": {"field": "p"}}, InputError, "time field 'p' must be"),
        ({"fields": "p", "time": {"rate": "p"}}, InputError, "must be one number"),
        ({"fields": "force", "time": {"field": "slow_us", "unit": "min"}}, None, ""),
    ],
)
def test_a_mapping_that_does_not_fit_names_channel_and_value(archive, spec, kind, reason):
    mapping = Mapping.parse({"time": {"rate": 10.0}, "channels": {"c": spec}})
    if kind is None:
        assert len(read_log(archive, mapping)["c"]) == 2
        return
    with pytest.raises(kind, match=f"channel 'c': .*{reason}") as caught:
        read_log(archive, mapping)
    assert str(archive) in str(caught.value)


def test_a_mapping_that_yaml_can_write_comes_back(archive):
    given = {"time": {"rate": 2.0}, "channels": {"p": {"fields": ["p"], "labels": "names"}}}
    assert Mapping.parse(yaml.safe_load(yaml.safe_dump(given))) == Mapping.parse(given)


def test_stamps_out_of_range_are_an_error_that_asks_for_the_unit(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,x\n1602256052650439937,1\n1602256052660439937,2\n")
    with pytest.raises(InputError, match="out of range; is its unit right"):
        read_log(path)


def test_a_draft_leaves_out_arrays_without_rows(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, rate=np.array(100.0), x=np.arange(5.0))
    assert list(draft_mapping(read_raw(path)).channels) == ["x"]
