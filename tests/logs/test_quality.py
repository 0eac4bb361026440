import numpy as np
import pytest
from logs.sample_logs import NATIVE, require, write

from hybridctl import Series
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.logs import Log, Mapping, examine, read_log, write_log

TIMES = np.arange(100) * 0.01


def warnings(**changes):
    values = changes.pop("values", np.zeros(100))
    times = changes.pop("times", TIMES)
    return examine(Log({"c": Series(times, values, **changes)})).warnings


def test_a_sound_channel_has_no_warning():
    report = examine(Log({"c": Series(TIMES, np.zeros((100, 2)), unit="rad")}))
    (quality,) = report.channels
    assert report.warnings == ()
    assert quality.rate == pytest.approx(100, rel=1e-12)
    assert (quality.duplicates, quality.out_of_order, quality.gaps, quality.incomplete) == (0,) * 4


def test_duplicates_late_stamps_gaps_and_missing_values_are_counted():
    times = TIMES.copy()
    times[10] = times[9]  # twice
    times[20], times[21] = times[21], times[20]  # one late
    times[60:] += 0.5  # a gap
    values = np.zeros((100, 2))
    values[5], values[7, 1] = np.nan, np.nan
    report = examine(Log({"c": Series(times, values)}))
    (q,) = report.channels
    assert (q.duplicates, q.out_of_order, q.gaps, q.incomplete) == (1, 1, 1, 2)
    assert q.longest_gap == pytest.approx(0.51, rel=1e-12)
    assert len(report.warnings) == 4


def test_shuffled_stamps_are_counted():
    times = np.random.default_rng(6).permutation(TIMES)
    late = sum(t < max(times[: k + 1]) for k, t in enumerate(times))
    assert any(f"{late} stamps are earlier" in w for w in warnings(times=times))


@pytest.mark.parametrize("slip", [1e9, 1e6, 1e-9, 1e-6])
def test_stamps_in_a_wrong_unit_are_implausible(slip):
    """Ten milliseconds read as 1e7 s, 1e4 s, 1e-11 s and 1e-8 s."""
    assert any("is the unit of the time right" in w for w in warnings(times=TIMES * slip))


@pytest.mark.parametrize(
    ("unit", "value", "slip", "cause"),
    [
        ("rad", 1.2, 180 / np.pi, "degrees"),
        ("m", 15.0, 1e3, "millimetres"),
        ("N", 2e3, 1e3, "is its unit right"),
    ],
)
def test_values_in_a_wrong_unit_are_implausible(unit, value, slip, cause):
    values = np.full(100, value)
    assert warnings(values=values, unit=unit) == ()
    (warning,) = warnings(values=values * slip, unit=unit)
    assert cause in warning


def faults():
    """(fault, times, values, words of the warning) of joint angles of 100 Hz [rad]."""
    rng = np.random.default_rng(9)
    values = rng.uniform(-2, 2, (100, 2))
    holes = np.where(rng.uniform(size=(100, 2)) < 0.1, np.nan, values)
    yield "NaN", TIMES, holes, "missing values"
    yield "shuffled", rng.permutation(TIMES), values, "earlier than one before"
    yield "repeated", np.repeat(TIMES[::2], 2), values, "more than once"
    yield "degrees", TIMES, np.rad2deg(values), "degrees taken for radians"
    yield "nanoseconds", TIMES * 1e9, values, "is the unit of the time right"
    yield "gap", TIMES + (TIMES > 0.5), values, "1 gap of more than"


@pytest.mark.parametrize("suffix", NATIVE)
@pytest.mark.parametrize("fault", list(faults()), ids=lambda fault: fault[0])
def test_every_fault_survives_every_format_and_is_warned_of(tmp_path, suffix, fault):
    require(suffix)
    _, times, values, words = fault
    path = tmp_path / f"log.{suffix}"
    write_log(path, Log({"q": Series(times, values, unit="rad")}))
    assert any(words in warning for warning in examine(read_log(path)).warnings)


@pytest.mark.parametrize("format_", ["bag", "ros2", "ros2-mcap"])
def test_a_bag_mapped_with_a_wrong_unit_is_warned_of(tmp_path, format_):
    path = write(format_, tmp_path)
    source = {"topic": "/joint_states", "fields": "position", "unit": "rad", "scale": 1000}
    assert any("degrees" in w for w in warnings_of(path, source))
    slip = {**source, "time": {"field": "position", "unit": "ns"}}
    with pytest.raises(InputError, match=r"must be .* numbers"):
        warnings_of(path, slip)
    slip["time"] = {"field": "header.stamp", "unit": "us"}
    with pytest.raises(InputError, match="out of range; is its unit right"):
        warnings_of(path, slip)


def warnings_of(path, source):
    return examine(read_log(path, Mapping.parse({"channels": {"q": source}}))).warnings


def test_quaternions_that_are_not_of_unit_length_are_reported():
    turn = np.tile([0.0, 0.0, 0.6, 0.8], (100, 1))
    assert warnings(values=turn, quaternion=True) == ()
    turn[3] *= 1.5
    (warning,) = warnings(values=turn, quaternion=True)
    assert "1 quaternions are not of unit length, off by up to 0.5" in warning


def test_channels_of_different_clocks_are_reported():
    log = Log({"a": Series(TIMES, TIMES), "b": Series(TIMES + 1.6e9, TIMES)})
    assert any("a and b do not overlap in time" in w for w in examine(log).warnings)


def test_rows_without_a_stamp_are_left_out_and_reported(tmp_path):
    path = tmp_path / "log.npz"
    np.savez(path, t=np.array([0.0, np.nan, 0.2, np.inf]), x=np.arange(4.0))
    log = read_log(path)
    np.testing.assert_array_equal(log["x"].values[:, 0], [0.0, 2.0])
    assert examine(log).warnings[0] == "x: 2 rows without a stamp are left out"


def test_numbers_of_any_size_give_warnings_only(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t [min],x [km/h],y [deg]\n-1e308,1e308,0\n1e308,-1e308,5e-324\n0,nan,inf\n")
    assert examine(read_log(path)).warnings
    assert warnings(times=TIMES * 1e-322, values=np.full(100, 1e308), unit="m")
    assert warnings(values=np.full((100, 4), 1e308), quaternion=True)


def test_stamps_of_a_float_clock_lose_nothing(tmp_path):
    """The origin is taken off before rounding: what is left is the float's own difference."""
    clock = 1602256052.65044 + np.arange(50) * 0.0101
    path = tmp_path / "log.npz"
    np.savez(path, t_unix=clock, clock_ms=clock * 1e3, x=np.zeros(50))
    np.testing.assert_array_equal(read_log(path)["x"].times, clock - clock[0])
    mapping = {"time": {"field": "clock_ms", "unit": "ms"}, "channels": {"x": {"fields": "x"}}}
    log = read_log(path, Mapping.parse(mapping))
    # half a unit in the last place of 1.6e12 ms is 1.2e-7 s
    np.testing.assert_allclose(log["x"].times, clock - clock[0], atol=5e-7)
    assert log.origin_ns == pytest.approx(clock[0] * 1e9, rel=1e-15)


def test_channels_and_logs_are_checked_and_frozen():
    channel = Series(TIMES, TIMES)
    for array in (channel.times, channel.values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    for changes, reason in (
        ({"times": TIMES[:3]}, r"shape \(3, any\), one row for each time, got \(100,"),
        ({"times": TIMES * np.nan}, "must be finite"),
        ({"values": np.zeros((100, 2, 2))}, "shape"),
        ({"values": ["a"] * 100}, "must be an array of numbers"),
        ({"values": np.full(100, np.inf)}, "must not be infinite"),
        ({"columns": ("a", "b")}, "must be 1 different names"),
        ({"quaternion": True}, "need 4 columns"),
        ({"role": "inputs"}, "did you mean 'input'"),
    ):
        with pytest.raises(InputError, match=reason):
            warnings(**changes)
    for wrong in ({}, [channel]):
        with pytest.raises(InputError, match="must map names to Series"):
            Log(wrong)
    with pytest.raises(UnknownNameError, match="channel 'd'"):
        Log({"c": channel})["d"]
    assert "c" in Log({"c": channel})
