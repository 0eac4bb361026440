"""Figures of curves over time in panels, of curves in the plane, and snapshots of mechanisms."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from hybridctl.app.plots.picture_files import check_beside, save_figure
from hybridctl.base.checks import Array, check_path
from hybridctl.base.files import atomic, encode_array

# Okabe and Ito's colours, which people who see fewer colours can tell apart.
BLUE, VERMILION, ORANGE, GREEN, SKY = "#0072b2", "#d55e00", "#e69f00", "#009e73", "#56b4e9"
REFERENCE, TRACKING, BASELINE = VERMILION, BLUE, "#555555"
CURVES = (TRACKING, ORANGE, BASELINE, SKY, GREEN)
BANDS = ("#ffffff", "#fdebd0", "#e8f4ea", "#ebe3f5", "#e0eef8")
_TICKS = 6  # about; as many as there is room for would change the room that the layout left
_IN_COLUMN = 4  # names of curves
_WIDE = 0.12  # of the span of all bands: one that is wider has its name above it
# Room at an edge, in: of numbers of an axis, of a line of its name, of an edge with neither.
_TICK_ROOM, _LINE_ROOM, _EDGE = 0.68, 0.19, 0.12
_TITLE_ROOM, _BAND_ROOM = 0.42, 0.16  # in, above the panels: of the title, and of names of modes
_LETTER_WIDTH = 0.092  # in, of a title of 12 points
_ROW_GAP = 0.2  # between rows, relative to the height of a panel
_MARK_ROOM = 0.16  # of the abscissa, which the text of a mark takes
_LONGEST = 120  # characters of a label
_FEW = 50.0  # factor: a logarithmic axis that spans less has plain numbers between powers of ten


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        times: Abscissae (n,), mostly times in s.
        values: Ordinates (n,); NaN breaks the curve.
        label: Name in the legend; None without.
        color: Colour.
        style: Style of matplotlib, such as "--" or ".-".
        width: Width, points.
    """

    times: Array
    values: Array
    label: str | None = None
    color: str = TRACKING
    style: str = "-"
    width: float = 1.4

    @classmethod
    def from_points(cls, points: Array, *rest: Any) -> Line:
        """Return the curve through points (n, 2); further arguments: label, color, style, width."""
        return cls(points[:, 0], points[:, 1], *rest)


@dataclass(frozen=True)
class Mark:
    """Something at an instant that has no value on the ordinate, such as an impulse.

    Attributes:
        time: Time, s.
        text: What is written beside it.
    """

    time: float
    text: str


@dataclass(frozen=True)
class Panel:
    """Curves that share an ordinate.

    Attributes:
        ylabel: Label of the ordinate.
        lines: The curves.
        log: Whether the ordinate is logarithmic.
        zero: Whether there is a line at zero.
        least: Least span of a linear ordinate, in its unit, so that rounding does not look like
            motion. A logarithmic one has none.
        legend: Where the legend is.
        share: Name of an ordinate: panels of a figure with the same name have the same limits.
            Empty for limits of its own.
        most: Largest value that is shown; the ordinate ends 5 % above it, and not lower than as far
            below zero. The highest peak beyond that is noted. Panels that `share` their ordinate
            may end elsewhere.
        marks: What happens at instants, drawn at the upper edge.
    """

    ylabel: str
    lines: Sequence[Line]
    log: bool = False
    zero: bool = False
    least: float = 0.0
    legend: Literal["best", "lower left"] = "best"
    share: str = ""
    most: float = math.inf
    marks: Sequence[Mark] = ()


@dataclass(frozen=True)
class Band:
    """A span of time in one mode, shaded and named.

    Attributes:
        start: Time at which it begins, s.
        end: Time at which it ends, s.
        label: Name of the mode.
        color: Colour of the shade.
    """

    start: float
    end: float
    label: str
    color: str = BANDS[0]


@dataclass(frozen=True)
class Pose:
    """A mechanism at a time.

    Attributes:
        bodies: Polylines (n, 2), m.
        color: Colour.
        alpha: Opacity, 0 to 1.
        width: Width of the lines, points.
    """

    bodies: Sequence[Array]
    color: str = TRACKING
    alpha: float = 1.0
    width: float = 2.2


def make_figure(width: float, height: float, *, is_laid_out: bool = True) -> Figure:
    """Return an empty figure.

    Args:
        width: Width, inches.
        height: Height, inches.
        is_laid_out: Whether drawing finds the places of its parts.
    """
    figure = Figure(figsize=(width, height), layout="constrained" if is_laid_out else None)
    FigureCanvasAgg(figure)
    return figure


def make_drawable(text: str) -> str:
    """Return text that can be drawn: dollars around what is no formula stand for themselves.

    Names of joints, contacts and channels come from files, and may hold anything. Text of more than
    120 characters is cut.

    Args:
        text: The text, of which a formula of matplotlib stands between dollars.
    """
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    try:
        for line in text.split("\n") if "$" in text else ():
            MathTextParser("path").parse(line)
    except (ValueError, RecursionError):
        return text.replace("$", r"\$")
    return text


def number_log_axis(axis: Axis) -> None:
    """Number a logarithmic axis plainly, by the factor that it spans.

    Evenly up to a factor of 6, by 1, 2, 5, 10 below 1000, and from there on by powers of ten.
    """
    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps) if high > 6.0 * low else MaxNLocator(5))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def make_power_line(sizes: Array, values: Array, order: float) -> Line:
    """Return a dotted power law through the first of the values, straight on logarithmic axes.

    Args:
        sizes: Abscissae (n,).
        values: Ordinates (n,), of which the first is used.
        order: Slope of the line.
    """
    along = values[0] * (sizes / sizes[0]) ** order
    return Line(sizes, along, f"slope {order:g}", "black", ":", 1.0)


def arrange_panels(panels: Sequence[Panel], columns: int = 2) -> list[Sequence[Panel]]:
    """Return panels in rows, for `draw_series`; the last row may be shorter.

    Args:
        panels: The panels, at least one.
        columns: Number of panels in a row, at most.
    """
    columns = min(columns, len(panels))
    return [panels[k : k + columns] for k in range(0, len(panels), columns)]


def draw_series(
    path: str | os.PathLike[str] | None,
    panels: Sequence[Sequence[Panel]],
    *,
    title: str,
    bands: Sequence[Band] = (),
    span: tuple[float, float] | None = None,
    xlabel: str = "time [s]",
    xlog: bool = False,
) -> Figure:
    """Draw curves over time, in a grid of panels that share the time axis.

    Args:
        path: File to save the figure in, such as a .png, with vectors as .svg and the series as
            .json for the page beside it. A path that ends in .json gets the series alone, in place
            of earlier ones. None to save none.
        panels: Panels of each row.
        title: Title of the figure.
        bands: Spans of modes, shaded in all panels and named in the first row.
        span: Ends of the time axis, s; None for those of the curves.
        xlabel: Label of the abscissa, which need not be time.
        xlog: Whether the abscissa is logarithmic.

    Returns:
        The figure.

    Raises:
        FileWriteError: A file beside `path`, or the .json itself, is there that was not written
            with a figure.
    """
    rows, columns = len(panels), max(len(row) for row in panels)
    width, height = 1.0 + 4.6 * columns, 1.0 + max(1.75 * rows, 2.6)
    # A layout that is found takes as long as the drawing itself: labels have places of fixed sizes.
    figure = make_figure(width, height, is_laid_out=False)
    cells = figure.subplots(rows, columns, squeeze=False, sharex=True)
    names = max(panel.ylabel.count("\n") + 1 for row in panels for panel in row)
    left, bottom = _TICK_ROOM + _LINE_ROOM * names, _TICK_ROOM
    figure.subplots_adjust(
        # Each column has room for the names of its axis, which subplots_adjust counts as a gap
        # between panels, relative to a panel's width.
        left=left / width,
        right=1.0 - _EDGE / width,
        bottom=bottom / height,
        top=1.0 - (_TITLE_ROOM + _BAND_ROOM * bool(bands)) / height,
        wspace=(left + _EDGE) / ((width - columns * (left + _EDGE)) / columns),
        hspace=_ROW_GAP,
    )
    for r, row in enumerate(panels):
        for c in range(columns):
            axes = cells[r][c]
            if c >= len(row):
                axes.set_visible(False)
                continue
            _draw_panel(axes, row[c], bands, named=r == 0)
    _share_ordinates(
        [(cells[r][c], row[c]) for r, row in enumerate(panels) for c in range(len(row))]
    )
    for c in range(columns):
        visible = [cells[r][c] for r in range(rows) if c < len(panels[r])]
        visible[-1].set_xlabel(xlabel)
        visible[-1].tick_params(labelbottom=True)
    if xlog:
        cells[0][0].set_xscale("log")
        number_log_axis(cells[0][0].xaxis)
    if span is not None:
        cells[0][0].set_xlim(span)
    # As large as fits.
    size = min(12.0, 12.0 * width / (_LETTER_WIDTH * max(len(title), 1)))
    figure.suptitle(make_drawable(title), fontsize=size)
    if path is None:
        return figure
    path = check_path("path", path)
    chart = path.with_suffix(".json")
    if path.suffix.lower() == ".json":
        # A picture is overwritten by its name. A .json may as well be somebody's settings, and is
        # checked as if the user had named another file.
        check_beside(chart, Path(chart.stem))
    else:
        save_figure(figure, path, beside=(".json",))
    record = {
        "title": title,
        "xlabel": xlabel,
        "xlog": xlog,
        "span": span,
        "bands": [asdict(band) for band in bands],
        "rows": [[_encode_panel(panel) for panel in row] for row in panels],
    }
    with atomic(chart) as temporary:
        temporary.write_text(json.dumps(record, allow_nan=False))
    return figure


def _share_ordinates(drawn: Sequence[tuple[Axes, Panel]]) -> None:
    """Give panels that share their ordinate the same limits."""
    for name in {panel.share for _, panel in drawn if panel.share}:
        group = [axes for axes, panel in drawn if panel.share == name]
        limits = np.array([axes.get_ylim() for axes in group])
        for axes in group:
            axes.set_ylim(limits[:, 0].min(), limits[:, 1].max())


def save_plane_pictures(
    path: str | os.PathLike[str],
    panels: Sequence[Sequence[Panel]],
    *,
    title: str,
    labels: tuple[str, str],
    surfaces: Sequence[Array] = (),
    size: float = 4.8,
) -> None:
    """Save a grid of pictures of the plane, each square and to scale around its curves.

    Args:
        path: File to save the figure in.
        panels: Panels of each row; curves are made by `Line.from_points`, and ylabel stands above.
        title: Title of the figure.
        labels: Labels of both axes.
        surfaces: Directions (2,) of lines through the origin, such as guards that are zero there.
        size: Side of a picture, inches.
    """
    rows, columns = len(panels), max(len(row) for row in panels)
    figure = make_figure(1.0 + size * columns, 0.9 + size * rows)
    cells = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(cells.flat, (p for row in panels for p in row), strict=True):
        points = np.concatenate([np.column_stack([c.times, c.values]) for c in panel.lines])
        low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
        centre, half = 0.5 * (low + high), 0.55 * float((high - low).max())
        _draw_panel(axes, replace(panel, ylabel=labels[1]), (), named=False)
        for direction in surfaces:
            axes.axline((0.0, 0.0), tuple(direction), color=BASELINE, lw=1.8, zorder=1)
        x, y = ((middle - half, middle + half) for middle in centre.tolist())
        axes.set(xlim=x, ylim=y, aspect="equal", xlabel=labels[0])
        axes.locator_params(nbins=6)
        axes.set_title(make_drawable(panel.ylabel), fontsize=9)
    figure.suptitle(make_drawable(title))
    save_figure(figure, path)


def _encode_panel(panel: Panel) -> dict[str, Any]:
    lines = [
        {"x": encode_array(line.times), "y": encode_array(line.values)}
        | {name: getattr(line, name) for name in ("label", "color", "style", "width")}
        for line in panel.lines
    ]
    entries = {name: getattr(panel, name) for name in ("ylabel", "log", "zero", "least", "share")}
    entries["most"] = panel.most if math.isfinite(panel.most) else None
    return {**entries, "lines": lines, "marks": [asdict(mark) for mark in panel.marks]}


def _draw_panel(axes: Axes, panel: Panel, bands: Sequence[Band], *, named: bool) -> None:
    for band in bands:
        axes.axvspan(band.start, band.end, color=band.color, lw=0, zorder=0)
        if named and band.end - band.start > _WIDE * (bands[-1].end - bands[0].start):
            axes.annotate(
                make_drawable(band.label),
                (0.5 * (band.start + band.end), 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                annotation_clip=True,
            )
    for line in panel.lines:
        axes.plot(
            line.times,
            line.values,
            line.style,
            color=line.color,
            lw=line.width,
            label=line.label and make_drawable(line.label),
        )
    if panel.zero:
        axes.axhline(0.0, color="black", lw=0.6)
    if panel.log:
        axes.set_yscale("log")
    else:
        axes.locator_params(axis="y", nbins=_TICKS)
    low, high = axes.get_ylim()
    if panel.log and high < _FEW * low:
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    if not panel.log and high - low < panel.least:
        middle = 0.5 * (low + high)
        axes.set_ylim(middle - 0.5 * panel.least, middle + 0.5 * panel.least)
    if math.isfinite(panel.most):
        _cut_peaks(axes, panel)
    for mark in panel.marks:
        edge = axes.get_xaxis_transform()
        axes.plot([mark.time], [1.0], "v", color="black", ms=4, transform=edge, clip_on=False)
    if panel.marks:
        _name_marks(axes, panel.marks)
    axes.set_ylabel(make_drawable(panel.ylabel))
    axes.grid(alpha=0.3)
    labels = sum(line.label is not None for line in panel.lines)
    if labels:
        axes.legend(fontsize=7, loc=panel.legend, ncols=1 if labels <= _IN_COLUMN else 2)


def _cut_peaks(axes: Axes, panel: Panel) -> None:
    """End the ordinate at `panel.most`, and note how high the curves are that go beyond it."""
    high, low = 1.05 * panel.most, axes.get_ylim()[0]
    axes.set_ylim(max(low, -1.05 * panel.most), high)
    drawn = [line for line in panel.lines if not np.isnan(line.values).all()]
    peaks = [(float(np.nanmax(line.values)), line) for line in drawn]
    if not peaks or max(value for value, _ in peaks) <= high:
        return
    value, line = max(peaks, key=lambda peak: peak[0])
    time = float(line.times[np.nanargmax(line.values)])
    _write_note(axes, time, f"to {value:.3g}", line.color, below=10)


def _name_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Write the text of the first marks that have room beside them."""
    low, high = axes.get_xlim()
    last = -math.inf
    for mark in marks:
        if mark.time - last > _MARK_ROOM * (high - low):
            last = mark.time
            _write_note(axes, mark.time, mark.text, "black")


def _write_note(axes: Axes, time: float, text: str, color: str, *, below: float = 0.0) -> None:
    """Write a small text at a time, below the upper edge of a panel.

    Args:
        axes: The panel.
        time: Where the text begins, s.
        text: The text.
        color: Its colour.
        below: Distance in points below the first line of texts.
    """
    axes.annotate(
        text,
        (time, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(5, -9 - below),
        textcoords="offset points",
        fontsize=7,
        color=color,
        annotation_clip=True,
    )


def save_snapshots(
    path: str | os.PathLike[str],
    scenes: Sequence[tuple[str, Sequence[Pose]]],
    *,
    title: str,
    columns: int = 3,
    vertical: str = "y",
) -> None:
    """Save a grid of scenes to a common scale.

    Args:
        path: File to save the figure in.
        scenes: A caption and poses of each scene.
        title: Title of the figure.
        columns: Number of scenes in a row.
        vertical: Name of the vertical axis.
    """
    rows = -(-len(scenes) // columns)
    points = np.concatenate([body for _, poses in scenes for pose in poses for body in pose.bodies])
    margin = 0.06 * float(np.ptp(points, axis=0).max())
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    width, height = high - low
    cell = max(2.9 * height / width, 0.8)
    figure = make_figure(3.6 * columns, 0.8 + (cell + 0.6) * rows)
    cells = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    x, y = zip(low.tolist(), high.tolist(), strict=True)
    for axes, (caption, poses) in zip(cells.flat, scenes, strict=False):
        axes.set(xlim=x, ylim=y, aspect="equal", xlabel="x [m]", ylabel=f"{vertical} [m]")
        axes.grid(alpha=0.3)
        axes.set_title(caption, fontsize=9)
        for pose in poses:
            style = {"color": pose.color, "alpha": pose.alpha, "lw": pose.width}
            for body in pose.bodies:
                axes.plot(*body.T, **style, solid_capstyle="round")
    for axes in list(cells.flat)[len(scenes) :]:
        axes.set_visible(False)
    figure.suptitle(title)
    save_figure(figure, path)
