"""Text tables as loggers and spreadsheets write them: read exactly, or refused by name."""

import numpy as np
import pytest
from logs.sample_logs import check_refused

from hybridctl.base.errors import InputError
from hybridctl.logs import Mapping, examine, read_log, read_raw

TIMES = np.arange(20) * 0.01
HEIGHT = np.round(1.0 - 4.905 * TIMES**2, 6)
ROWS = [(f"{t:.2f}", f"{z:.6f}") for t, z in zip(TIMES, HEIGHT, strict=True)]
START = 1_772_446_525_000_000_000  # 2026-03-02 10:15:25 UTC


def comma(text):
    return text.replace(".", ",")


def lines(form):
    return "".join(form.format(t=t, z=z, tc=comma(t), zc=comma(z)) for t, z in ROWS)


def clock(k):
    return f"10:15:25.{10 * k:03d}"


def stamped(form):
    return "".join(form.format(clock=clock(k), z=z) for k, (_, z) in enumerate(ROWS))


TABLES = {
    "quoted comma": ("time,up\n" + lines('{t},"{zc}"\n'), 0),
    "all quoted": ('"time","up"\n' + lines('"{tc}","{zc}"\n'), 0),
    "blanks": ("time up\n" + lines("{t}   {z}\n"), 0),
    "blanks before": ("  time up\n" + lines("  {t}   {z}\n"), 0),
    "tabs, commas": ("time\tup\r\n" + lines("{tc}\t{zc}\r\n"), 0),
    "numpy.savetxt": ("# time up\n" + lines("{t} {z}\n"), 0),
    "plotjuggler": ('"__time","up"\n' + lines("{t},{z}\n"), 0),
    "end of rows": ("time,up,\n" + lines("{t},{z},\n"), 0),
    "end of data rows": ("time,up\n" + lines("{t},{z},\n"), 0),
    "same twice": ("Time,up,Time\n" + lines("{t},{z},{t}\n"), 0),
    "iso": ("timestamp,up\n" + stamped("2026-03-02T{clock}Z,{z}\n"), START),
    "iso with a zone": ("timestamp,up\n" + stamped("2026-03-02T{clock}+00:00,{z}\n"), START),
    "date and time": ("Date,Time,up\n" + stamped("2026-03-02,{clock},{z}\n"), START),
    "recorded at": ("when,up\n" + stamped("2026/03/02 {clock},{z}\n"), START),
    "rostopic": (
        "%time,field.header.frame_id,up\n"
        + "".join(f"{START + k * 10**7},base,{z}\n" for k, (_, z) in enumerate(ROWS)),
        START,
    ),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_exactly(tmp_path, name, encoding):
    text, origin = TABLES[name]
    path = tmp_path / "log.txt"
    path.write_bytes(text.encode(encoding))
    log = read_log(path)
    np.testing.assert_array_equal(log["up"].values[:, 0], HEIGHT)
    np.testing.assert_allclose(log["up"].times, TIMES, rtol=1e-15, atol=0)
    assert log.origin_ns == origin


@pytest.mark.parametrize(
    "preamble",
    [
        "Instrument,FP-600\nSampling rate,100,Hz\nSubject,none\n\n",
        "drop\nversion=1\nnRows=20\nendheader\n",
        "Sampling rate,100\n",
    ],
)
def test_a_preamble_and_a_row_of_units_are_understood_and_said(tmp_path, preamble):
    path = tmp_path / "plate.csv"
    path.write_text(preamble + "Time,Fz,angle\nms,N,deg\n" + lines("{t},{z},{z}\n"))
    log = read_log(path)
    assert (log["Fz"].unit, log["angle"].unit) == ("N", "rad")
    np.testing.assert_allclose(log["Fz"].times, 1e-3 * TIMES, rtol=1e-15)
    np.testing.assert_allclose(log["angle"].values[:, 0], np.deg2rad(HEIGHT), rtol=3e-16)
    assert any("lines before the names are not read" in note for note in log.notes)


def test_missing_values_have_many_marks(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,x,y\n0,-,1\n1,NA,2\n2,n/a,3\n3,null,4\n4,7.5,-\n")
    log = read_log(path)
    np.testing.assert_array_equal(log["x"].values[:, 0], [np.nan] * 4 + [7.5])
    np.testing.assert_array_equal(log["y"].values[:, 0], [1, 2, 3, 4, np.nan])
    assert "x: 4 of 5 rows have missing values (NaN)" in examine(log).warnings


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("time,up\n0,00,1,50\n0,01,1,25\n", "line 2 has 4 cells where the names are 2; if commas"),
        ("t;x\n0;1.000,5\n1;999,5\n", "'1.000,5' in data row 1 .* without groups of thousands"),
        ("t;x\n0;1,234\n1;2,345\n", "'1,234' in data row 1 may be 1.234 or 1234"),
        ("t;x\n0;1,5\n1;2.5\n", "'1,5' in data row 1 has a comma, '2.5' in row 2 a point"),
        ("t;x\n0;1_000\n1;2\n2;3\n", "'1_000' in data row 1 is not a number"),
        ("t,x\n0,1.5\n1,1.2.3\n2,3\n", "'1.2.3' in data row 2 is not a number"),
        ("date,x\n03/02/2026,1\n04/02/2026,2\n", "write dates as YYYY-MM-DD"),
        ("date,x\n2026-13-02,1\n2026-14-02,2\n", "a date that does not exist"),
        ("dt,x\n0.01,1\n0.01,2\n0.02,3\n", "steps: previous"),
        ("t,x\n5,1\n1.7e9,2\n", "stamps of 't' are of two clocks"),
        ("t,x\n0,1\n1,2\n2\n3,4\n", "line 4 has 1 cells where the names are 2"),
    ],
)
def test_what_could_be_two_numbers_is_refused_by_name(tmp_path, text, reason):
    check_refused(read_log, tmp_path / "log.csv", text, reason)


def test_groups_of_three_digits_are_decimals_if_other_columns_show_the_mark(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t;x;y\n0,01;1,234;1.000\n0,02;2,345;2.000\n")
    table = read_raw(path).tables[""]
    # The points of y make both marks possible, so neither x nor y is certain.
    assert table.fields.keys() == {"t"}
    assert "'1.000' in data row 1 may have a decimal point or groups" in table.unusable["y"]
    path.write_text("t;x;y\n0,01;1,234;1\n0,02;2,345;2\n")
    np.testing.assert_array_equal(read_raw(path).tables[""].fields["x"], [1.234, 2.345])


def test_a_damaged_column_is_left_out_by_name_and_the_others_are_read(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,x,y,mode\n0,1,4,open\n1,2,#REF!,open\n2,3,6,open\n")
    log = read_log(path)
    np.testing.assert_array_equal(log["x"].values[:, 0], [1, 2, 3])
    assert log.notes == ("column 'y' is left out: '#REF!' in data row 2 is not a number",)
    with pytest.raises(InputError, match=r"'y' .* cannot be used: '#REF!'"):
        read_log(path, Mapping.parse({"channels": {"y": {"fields": "y"}}}))


def test_a_last_row_that_is_cut_is_left_out_by_name(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,x\n0,1\n1,2\n2")
    log = read_log(path)
    np.testing.assert_array_equal(log["x"].values[:, 0], [1, 2])
    assert log.notes == ("line 4, the last, is cut short and left out",)


def test_a_clock_that_passes_midnight_goes_on(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("Time,x\n23:59:59.5,1\n00:00:00.5,2\n00:00:01,3\n")
    np.testing.assert_allclose(np.diff(read_log(path)["x"].times), [1.0, 0.5], rtol=1e-12)


@pytest.mark.parametrize(
    ("steps", "times"), [("previous", [0.0, 0.02, 0.05]), ("next", [0.0, 0.01, 0.03])]
)
def test_steps_between_rows_become_stamps(tmp_path, steps, times):
    path = tmp_path / "log.csv"
    path.write_text("dt,x\n0.01,1\n0.02,2\n0.03,3\n")
    mapping = {"time": {"field": "dt", "steps": steps}, "channels": {"x": {"fields": "x"}}}
    np.testing.assert_allclose(read_log(path, Mapping.parse(mapping))["x"].times, times)
    path.write_text("dt_ms,x\n10,1\n10,2\n10,3\n")  # even steps need no mapping
    np.testing.assert_allclose(read_log(path)["x"].times, [0.0, 0.01, 0.02])


def test_a_stamp_that_is_missing_is_left_out_and_others_keep_their_nanoseconds(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "when,x\n2026-03-02T10:15:25.000000001,1\n-,2\n2026-03-02 10:15:25.000000003,3\n"
    )
    log = read_log(path)
    assert log.origin_ns == START + 1
    np.testing.assert_array_equal(log["x"].times, [0.0, 2e-9])
    assert "x: 1 rows without a stamp are left out" in log.notes


def test_a_unit_that_is_not_known_leaves_its_channel_out_by_name(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,x [furlong],y [N·m]\n0,1,2\n1,2,3\n")
    log = read_log(path)
    assert log.names == ("y",)
    assert log["y"].unit == "Nm"
    assert any("x is left out: unit 'furlong' is unknown" in note for note in log.notes)


@pytest.mark.parametrize(("steps", "cells"), [("previous", ["", 2, 3]), ("next", [2, 3, ""])])
def test_a_step_that_leads_to_no_row_may_be_missing(tmp_path, steps, cells):
    path = tmp_path / "log.csv"
    path.write_text("dt,x\n" + "".join(f"{cell},1\n" for cell in cells))
    mapping = {"time": {"field": "dt", "steps": steps}, "channels": {"x": {"fields": "x"}}}
    np.testing.assert_allclose(read_log(path, Mapping.parse(mapping))["x"].times, [0.0, 2.0, 5.0])


@pytest.mark.parametrize(("steps", "cells"), [("previous", [1, "", 3]), ("next", ["", 2, 3])])
def test_a_step_between_two_rows_must_not_be_missing(tmp_path, steps, cells):
    path = tmp_path / "log.csv"
    path.write_text("dt,x\n" + "".join(f"{cell},1\n" for cell in cells))
    mapping = {"time": {"field": "dt", "steps": steps}, "channels": {"x": {"fields": "x"}}}
    with pytest.raises(InputError, match="without missing ones"):
        read_log(path, Mapping.parse(mapping))
