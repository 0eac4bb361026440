"""The output of `hybridctl info`: the content of a log file, and warnings about it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hybridctl.base.checks import make_printable
from hybridctl.base.errors import FileFormatError, HybridctlError, InputError
from hybridctl.base.files import atomic
from hybridctl.logs.build import build_log, read_log
from hybridctl.logs.log import Log
from hybridctl.logs.mapping_guess import draft_mapping, guess_mapping
from hybridctl.logs.native import make_native_log
from hybridctl.logs.quality import LogReport, examine
from hybridctl.logs.raw import RawTable
from hybridctl.logs.readers import FORMATS, read_raw
from hybridctl.logs.stamps import EPOCH_STAMP
from hybridctl.logs.topic_table import IS_TEXT

_SHOWN_NAMES = 6
"""Names of columns that a cell shows; of more, the first three and the last."""


def print_info(
    path: str | Path,
    console: Console,
    mapping: str | Path | None = None,
    segment: int | None = None,
) -> None:
    """Print format, fields, channels, rates, gaps and warnings of a log.

    A log that `write_log` wrote, or one with a mapping, has its channels listed. For any other,
    first every field that holds numbers is listed, with the fields that cannot be read and why
    (other than text, which is not shown), and then the channels that are guessed. No error is
    raised where none can be guessed, as without a field that is named like a time: a line says why.

    Args:
        path: The file or folder.
        console: Console to print on.
        mapping: Path of a mapping; None without one.
        segment: Number of another recording in the file than the mapping chooses; None for that
            one. It needs a mapping.

    Raises:
        FileFormatError: The file cannot be read.
        UnknownNameError: The mapping names a field or topic that is not in the file.
        InputError: A file does not exist, fields do not fit together, or `segment` is given without
            a mapping that has one.
    """
    if mapping is not None or segment is not None:  # `read_log` refuses a segment alone
        log = read_log(path, mapping, segment=segment)
        _print_line(console, f"{path}: {FORMATS[log.format]}")
        _print_log(log, console)
        return
    raw = read_raw(path)
    _print_line(console, f"{raw.path}: {FORMATS[raw.format]}")
    if raw.native is not None:  # `write_log` wrote it: its channels are known
        _print_log(make_native_log(raw), console)
        return
    for table in raw.tables.values():
        console.print(_tabulate_fields(table))
        for name, reason in table.unusable.items():
            if reason != IS_TEXT:
                _print_line(console, f"left out: {f'{table.name} {name}'.strip()}: {reason}")
    try:
        log = build_log(raw, guess_mapping(raw), is_guess=True)
    except FileFormatError:
        raise  # the file itself is damaged: an error, unlike those below
    except HybridctlError as error:  # channels cannot be guessed; the fields are listed already
        for note in raw.notes:
            _print_line(console, f"warning: {note}")
        _print_line(console, f"no channels without a mapping: {error}")
        return
    _print_log(log, console)


def write_mapping(path: str | Path, target: str | Path) -> None:
    """Write a mapping of a log to edit, with a channel for each of its arrays and columns.

    Where no field is found that is a time, all numbers are channels at one rate, to be edited.

    Args:
        path: The log.
        target: The YAML file to write. It must not exist: one that was edited is not replaced.

    Raises:
        InputError: The target exists, or the log has no numbers.
        FileFormatError: The log cannot be read.
    """
    if Path(target).exists():
        raise InputError(f"write_mapping must name a new file, but {target} is there already")
    mapping = draft_mapping(read_raw(path))
    with atomic(target) as temporary:
        temporary.write_text(mapping.format_yaml(), encoding="utf-8")


def _print_line(console: Console, line: str) -> None:
    """Print a line whose text may come from the file.

    Its brackets are no markup of rich, its control characters do not reach the terminal, and it is
    not broken, so that it can be copied and searched.
    """
    console.print(make_printable(line), markup=False, highlight=False, soft_wrap=True)


def _print_log(log: Log, console: Console) -> None:
    """Print span, metadata, channels and warnings of a log."""
    report = examine(log)
    first, last = log.span
    _print_line(
        console,
        f"{last - first:.6g} s, from {first:.6f} to {last:.6f} s after {_format_origin(log)}",
    )
    for key, value in log.metadata.items():
        _print_line(console, f"{key}: {value}")
    console.print(_tabulate_channels(log, report))
    for warning in report.warnings:
        _print_line(console, f"warning: {warning}")


def _format_origin(log: Log) -> str:
    """Return the time of stamp 0: as a date, or in ns where it does not count from 1970.

    That is where it is below `EPOCH_STAMP` (s). The digits of the fraction are those of the whole
    number of ns: neither a float of seconds since 1970 nor a `datetime` holds them all.
    """
    if log.origin_ns < EPOCH_STAMP * 1e9:
        return f"{log.origin_ns} ns"
    date = datetime.fromtimestamp(log.origin_ns // 10**9, timezone.utc)
    return f"{date:%Y-%m-%d %H:%M:%S}.{log.origin_ns % 10**9:09d} UTC"


def _tabulate_channels(log: Log, report: LogReport) -> Table:
    """Return a table with a row for each channel.

    There is a column of roles only if a channel is no measurement, and one of frames only if a
    channel has one. "[Hz]" is the rate by the median spacing, "first" and "last" are the smallest
    and the largest stamp in s, "gaps" is the number of spacings that are too long, and "NaN" that
    of rows with a missing value, see `ChannelQuality`.
    """
    with_role = any(channel.role != "measurement" for channel in log.channels.values())
    with_frame = any(channel.frame for channel in log.channels.values())
    table = _start_table("channels")
    table.add_column("channel", overflow="fold", min_width=8)
    table.add_column("columns", overflow="fold", min_width=8)
    for name in (*["role"] * with_role, "unit", *["frame"] * with_frame):
        table.add_column(name, no_wrap=True)
    for name in ("count", "[Hz]", "first", "last", "gaps", "NaN"):
        table.add_column(_make_cell(name), justify="right", no_wrap=True)
    for channel, quality in zip(log.channels.values(), report.channels, strict=True):
        # A channel without samples has no first and last stamp: these cells are empty.
        ends = (channel.times.min(), channel.times.max()) if len(channel) else ()
        table.add_row(
            _make_cell(quality.name),
            _make_cell(_shorten_names(channel.columns)),
            *["" if channel.role == "measurement" else channel.role] * with_role,
            _make_cell(channel.unit),
            *[_make_cell(channel.frame)] * with_frame,
            str(quality.count),
            f"{quality.rate:.4g}",
            *([f"{end:.3f}" for end in ends] or ["", ""]),
            str(quality.gaps),
            str(quality.incomplete),
        )
    return table


def _make_cell(text: str) -> str:
    """Return text of a file as it can be shown in a table: no markup, no control characters."""
    return escape(make_printable(text))


def _start_table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _tabulate_fields(content: RawTable) -> Table:
    """Return a table with a row for each field: its type, shape, unit and columns."""
    title = f"{content.name}: {content.kind}" if content.name else "fields"
    table = _start_table(_make_cell(title))
    for name in ("field", "type", "shape", "unit", "columns"):
        table.add_column(name, overflow="fold")
    for name, values in content.fields.items():
        row = [name, str(values.dtype), str(values.shape), content.units.get(name, "")]
        table.add_row(*map(_make_cell, [*row, _shorten_names(content.labels.get(name, ()))]))
    return table


def _shorten_names(names: tuple[str, ...]) -> str:
    """Return names in one text: all, or of more than `_SHOWN_NAMES` some and their number."""
    if len(names) <= _SHOWN_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:3])}, ... {names[-1]} ({len(names)})"
