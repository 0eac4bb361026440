import csv
import json

import numpy as np
import pytest
from logs.sample_logs import ORIGIN, require

from hybridctl.base.errors import InputError
from hybridctl.logs import PoseSeries, read_log, read_raw, write_estimates

RNG = np.random.default_rng(8)
TIMES = np.cumsum(RNG.uniform(0, 0.01, 7))
MEAN = RNG.normal(size=(7, 2))
SERIES = {
    "mean": MEAN,
    "covariance": RNG.normal(size=(7, 2, 2)),
    "nis": np.where(np.arange(7) == 2, np.nan, 1.5),
    "mode": np.array(["air", "slip"])[np.arange(7) % 2],
    "rejected": np.arange(7) % 3 == 0,
}
COLUMNS = {"mean": ["height", "velocity"]}


def test_npz_holds_everything(tmp_path):
    paths = write_estimates(tmp_path, TIMES, SERIES, columns=COLUMNS, origin_ns=ORIGIN)
    assert [path.name for path in paths] == ["estimates.npz", "estimates.csv"]
    with np.load(paths[0]) as archive:
        np.testing.assert_array_equal(archive["time"], TIMES)
        assert archive["origin_ns"] == ORIGIN
        assert archive["mean_columns"].tolist() == COLUMNS["mean"]
        for name, values in SERIES.items():
            np.testing.assert_array_equal(archive[name], values)


def test_csv_holds_all_but_matrices_and_can_be_read_back(tmp_path):
    _, path = write_estimates(tmp_path, TIMES, SERIES, columns=COLUMNS)
    with path.open(newline="") as file:
        heading, first, *_ = csv.reader(file)
    assert heading == ["time [s]", "mean.height", "mean.velocity", "nis", "mode", "rejected"]
    assert first[3:] == ["1.5", "air", "True"]
    log = read_log(path)
    np.testing.assert_array_equal(log["mean"].values, MEAN)
    np.testing.assert_array_equal(log["mean"].times, TIMES)
    np.testing.assert_array_equal(log["nis"].values[:, 0], SERIES["nis"])


def test_mcap_has_a_topic_for_each_series_and_poses_that_viewers_know(tmp_path):
    require("mcap")
    poses = np.column_stack([RNG.normal(size=(7, 3)), RNG.normal(size=(7, 4))])
    *_, path = write_estimates(
        tmp_path,
        TIMES,
        SERIES,
        columns=COLUMNS,
        origin_ns=ORIGIN,
        mcap=True,
        poses={"cube": PoseSeries("table", poses)},
    )
    raw = read_raw(path)
    assert list(raw.tables) == ["/mean", "/nis", "/mode", "/rejected", "/cube/pose"]
    pose = raw.tables["/cube/pose"]
    assert pose.kind == "foxglove.PoseInFrame"
    log = read_log(path)
    stamps = ORIGIN + np.round(TIMES * 1e9).astype(int)
    np.testing.assert_array_equal(pose["timestamp"], stamps)
    # the origin of what is read is the first stamp; both are rounded to 1 ns
    offset = (log.origin_ns - ORIGIN) * 1e-9
    np.testing.assert_allclose(log["/mean.height"].times + offset, TIMES, atol=1.1e-9)
    np.testing.assert_array_equal(log["/mean.height"].values[:, 0], MEAN[:, 0])
    np.testing.assert_array_equal(log["/cube/pose.pose.position"].values, poses[:, :3])
    unit = poses[:, 3:] / np.linalg.norm(poses[:, 3:], axis=1)[:, None]
    np.testing.assert_allclose(log["/cube/pose.pose.orientation"].values, unit, rtol=1e-14)


def test_the_schema_of_poses_is_the_well_known_one(tmp_path):
    require("mcap")
    from mcap.reader import make_reader

    poses = {"cube": PoseSeries("table", [[0, 0, 0, 0, 0, 0, 1]] * 7)}
    *_, path = write_estimates(tmp_path, TIMES, {}, mcap=True, poses=poses)
    with path.open("rb") as file:
        ((schema, channel, message),) = [next(make_reader(file).iter_messages())]
    assert (schema.name, schema.encoding) == ("foxglove.PoseInFrame", "jsonschema")
    assert channel.message_encoding == "json"
    content, described = json.loads(message.data), json.loads(schema.data)
    assert set(content) == set(described["properties"]) == {"timestamp", "frame_id", "pose"}


@pytest.mark.parametrize(
    ("times", "series", "options", "reason"),
    [
        (TIMES[::-1], {}, {}, "must not decrease"),
        (TIMES, {"x": [1.0]}, {}, "'x' must be .* with 7 rows.*shape"),
        (TIMES, {"x": [{}] * 7}, {}, "'x' must be"),
        (TIMES, {"time": TIMES}, {}, "'time' must be"),
        (TIMES, {"x": MEAN}, {"columns": {"x": ["a"]}}, "2 different names"),
        (TIMES, {"x": MEAN}, {"columns": {"y": ["a", "b"]}}, "columns 'y' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(tmp_path, times, series, options, reason):
    with pytest.raises(InputError, match=reason):
        write_estimates(tmp_path, times, series, **options)
    assert not list(tmp_path.iterdir())
