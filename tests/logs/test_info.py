import numpy as np
import pytest
from click.testing import CliRunner
from logs.sample_logs import NEEDS, write
from rich.console import Console

from hybridctl.app.cli import cli
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.logs.info import print_info


@pytest.fixture
def show():
    console = Console(width=200)

    def run(path, **options):
        with console.capture() as capture:
            print_info(path, console, **options)
        return capture.get()

    return run


@pytest.mark.parametrize("format_", NEEDS)
def test_every_format_is_described(tmp_path, show, format_):
    text = show(write(format_, tmp_path))
    joints = "/joint_states.position" if format_ in ("bag", "ros2", "ros2-mcap") else "joints"
    assert joints in text
    assert "hip, knee" in text
    assert "2020-10-09 15:07:32" in text


def test_warnings_roles_and_metadata_are_printed(tmp_path, show):
    text = show(write("csv", tmp_path))
    assert "a text table (CSV)" in text
    assert "robot: a, b" in text
    assert "warning: joints: 1 of 12 rows have missing values (NaN)" in text
    assert "warning: imu.turn: 1 stamps are earlier than one before them" in text
    for word in ("rad", "world", "input", "truth", "qx, qy, qz, qw"):
        assert word in text


def test_fields_are_listed_where_no_channel_can_be_made(tmp_path, show):
    path = tmp_path / "log.npz"
    np.savez(path, clock=np.arange(3.0), q=np.zeros((3, 2)), tag=np.array([{}], dtype=object))
    text = show(path)
    assert "(3, 2)" in text
    assert "left out: tag: it holds pickled objects" in text
    assert "no channels without a mapping" in text
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("time: {field: clock}\nchannels: {q: {fields: q, unit: deg}}")
    text = show(path, mapping=mapping)
    assert "rad" in text


def test_names_that_look_like_markup_are_printed_as_they_are(tmp_path, show):
    path = tmp_path / "log.csv"
    path.write_text("t,[red]x\n0,1\n1,2\n")
    assert "[red]x" in show(path)


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path, show):
    path = tmp_path / "log.npz"
    np.savez(path, **{"time": np.arange(3.0), "a\x1b[31mred": np.arange(3.0)})
    text = show(path)
    assert "\x1b[31m" not in text
    assert r"a\x1b[31mred" in text


def test_a_damaged_file_is_an_error(tmp_path, show):
    path = tmp_path / "log.csv"
    path.write_text("t,x\n0\n")
    with pytest.raises(FileFormatError, match="line 2 has 1 cells"):
        show(path)


def test_a_segment_without_a_mapping_is_refused(tmp_path, show):
    with pytest.raises(InputError, match="segment 7 was asked for, but there is no mapping"):
        show(write("csv", tmp_path), segment=7)


def test_the_command_prints_it(tmp_path):
    path = write("csv", tmp_path)
    result = CliRunner().invoke(cli, ["info", str(path)])
    assert result.exit_code == 0, result.output
    assert "a text table (CSV)" in result.output
    assert "warning: joints: 1 of 12 rows" in result.output


def test_a_narrow_terminal_shows_every_column(tmp_path):
    console = Console(width=80)
    with console.capture() as capture:
        print_info(write("csv", tmp_path), console)
    (heading,) = [line for line in capture.get().splitlines() if "count" in line]
    for name in ("channel", "columns", "role", "unit", "frame", "[Hz]", "first", "last", "NaN"):
        assert name in heading
