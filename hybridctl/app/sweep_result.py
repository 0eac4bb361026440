"""What a sweep has found: rows as a table and as lines over what varies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from hybridctl.app.report import make_table
from hybridctl.base.checks import Array, check_member, quote
from hybridctl.base.errors import InputError
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.run_table import import_pandas

if TYPE_CHECKING:
    from hybridctl.app.plots.panels import Figure

DONE, FAILED, LOST = "done", "failed", "lost"
_VARIATION_RATIO = 1e-9
"""Difference of two results, relative to the largest, up to which they count as the same."""
_MIN_RESULT = 1e-12
"""Largest value, in its unit, of a result that counts as zero in all runs: rounding."""
_MAX_PANELS, _MAX_COLUMNS, _MAX_LINES = 6, 6, 8
"""Results in a figure and in a table, and lines in a panel, at most. A choice: what fits a page."""
_NAME_WIDTH = 20
"""Characters of a dotted name on one line of a heading. A choice."""
_LONGEST_SETTING = 60
"""Characters of an object in a table. A choice."""
_SEED = "seed"
"""Setting that makes runs differ by their random numbers alone."""

Row = dict[str, Any]
"""One run: what varied, status, message and results by name. `run_unit` has results in "values"."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """The runs of a sweep.

    Attributes:
        rows: Of each run what varied, its "status" ("done", "failed" or, if its worker died,
            "lost"), a "message" that says why, and its results by name.
        varied: Names of what varied.
    """

    rows: tuple[Row, ...]
    varied: tuple[str, ...]

    def __repr__(self) -> str:
        ended = Counter(row["status"] for row in self.rows)
        how = ", ".join(f"{number} {status}" for status, number in sorted(ended.items()))
        return f"Sweep({len(self.rows)} runs over {', '.join(self.varied)}: {how})"

    def _repr_html_(self) -> str:
        return render_html_table(
            self._list_columns(self._choose_results(None, _MAX_COLUMNS)), self._format_rows(None)
        )

    @property
    def results(self) -> tuple[str, ...]:
        """The names of results, in the order in which runs gave them."""
        other = {*self.varied, "status", "message"}
        return tuple(dict.fromkeys(n for row in self.rows for n in row if n not in other))

    @property
    def varying(self) -> tuple[str, ...]:
        """The names of results that vary, each but once where several are equal."""
        found: dict[str, Array] = {}
        for name in self.results:
            values = self.values(name)
            known = values[np.isfinite(values)]
            scale = np.abs(known).max(initial=0.0)
            if not scale > _MIN_RESULT or np.ptp(known) <= _VARIATION_RATIO * scale:
                continue
            near = {"rtol": _VARIATION_RATIO, "atol": _VARIATION_RATIO * scale, "equal_nan": True}
            if not any(np.allclose(values, other, **near) for other in found.values()):
                found[name] = values
        return tuple(found)

    def values(self, name: str) -> Array:
        """Return a result, or what varied, of all runs (n,); NaN for a run that has none.

        Args:
            name: Name of the result or setting.

        Raises:
            UnknownNameError: There is no such name.
            InputError: It is no number.
        """
        check_member("name", name, (*self.varied, *self.results))
        try:
            return np.array([row.get(name, np.nan) for row in self.rows], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"name must be a column of numbers, got {name!r}") from error

    def to_dataframe(self) -> Any:
        """Return a `pandas.DataFrame` of the rows.

        Raises:
            InputError: pandas is not installed.
        """
        return import_pandas().DataFrame(list(self.rows))

    def table(self, names: Sequence[str] | None = None) -> Table:
        """Return a console table of the rows with some results, by default the first that vary."""
        shown = self._choose_results(names, _MAX_COLUMNS)
        heads = [_wrap_name(name) for name in self._list_columns(shown)]
        return make_table("Runs", heads, list(self._format_rows(names)))

    def plot(
        self, path: str | os.PathLike[str] | None = None, names: Sequence[str] | None = None
    ) -> Figure:
        """Draw results over what varies most, a line for each combination of the rest.

        Of runs that differ in the seed alone every one is shown, and their mean.

        Args:
            path: File to save the figure in; None to save none.
            names: Results to draw; None for the first that vary.

        Returns:
            The figure.

        Raises:
            InputError: Nothing that varies is a number, or no result varies.
        """
        from hybridctl.app import plots

        shown = self._choose_results(names, _MAX_PANELS)
        if not self.axes:
            raise InputError("a sweep must vary a number to be drawn over it")
        axis = self.axes[0]
        if not shown:
            raise InputError("names must be given: no result of the sweep varies")
        groups = list(self._group_rows(axis))
        panels = [
            plots.Panel(_wrap_name(n), list(self._make_lines(axis, n, groups))) for n in shown
        ]
        title = f"{len(self.rows)} runs over {', '.join(self.varied)}"
        if len(groups) > _MAX_LINES:
            title += f"; the first {_MAX_LINES} of {len(groups)} combinations"
        return plots.draw_series(path, plots.arrange_panels(panels), title=title, xlabel=axis)

    def _choose_results(self, names: Sequence[str] | None, most: int) -> tuple[str, ...]:
        return self.varying[:most] if names is None else tuple(names)

    def _list_columns(self, shown: Sequence[str]) -> tuple[str, ...]:
        return (*self.varied, "status", *shown)

    def _format_rows(self, names: Sequence[str] | None) -> Iterator[list[str]]:
        """Format the rows of the table.

        Yields:
            Cells of a row.
        """
        for row in self.rows:
            columns = self._list_columns(self._choose_results(names, _MAX_COLUMNS))
            yield [_format_cell(row.get(name, "")) for name in columns]

    @property
    def axes(self) -> tuple[str, ...]:
        """What varied that is a number, that with most values first."""
        sizes = {}
        for name in self.varied:
            values = [row[name] for row in self.rows]
            if all(isinstance(value, int | float) for value in values):
                sizes[name] = len(set(values)) if name != _SEED else 0
        return tuple(sorted(sizes, key=lambda name: -sizes[name]))

    def _group_rows(self, axis: str) -> Iterator[tuple[str, list[Row]]]:
        """Group runs that differ along an axis and by seed alone.

        Args:
            axis: Name of what varies along the axis.

        Yields:
            What the runs of a group have in common, in words, and their rows.
        """
        others = [name for name in self.varied if name not in (axis, _SEED)]
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            # By what the values are: their labels are rounded or cut short.
            key = tuple(_identify_value(row[name]) for name in others)
            groups.setdefault(key, []).append(row)
        for rows in groups.values():
            yield ", ".join(f"{name}={_format_cell(rows[0][name])}" for name in others), rows

    def _make_lines(self, axis: str, name: str, groups: Sequence[tuple[str, list[Row]]]) -> Any:
        """Make the lines of one result.

        Args:
            axis: Name of the abscissa.
            name: Name of the result.
            groups: Groups of rows, of which each becomes a line.

        Yields:
            Points of all seeds, if there are several, and the line of their means.
        """
        from hybridctl.app.plots import CURVES, Line

        for k, (label, rows) in enumerate(groups[:_MAX_LINES]):
            color, style = CURVES[k % len(CURVES)], ("-o", "--o")[k // len(CURVES) % 2]
            x = np.array([row[axis] for row in rows], dtype=np.float64)
            y = np.array([row.get(name, np.nan) for row in rows], dtype=np.float64)
            at = np.unique(x)
            means = np.array([_compute_mean(y[x == value]) for value in at])
            if len(at) < len(x):
                yield Line(x, y, None, color, ".", 1.0)
            yield Line(at, means, label or None, color, style)


def _compute_mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


def _identify_value(value: Any) -> Any:
    """Return what tells values apart: of numbers and text the exact value, else the object."""
    return repr(value) if isinstance(value, int | float | str | None) else id(value)


def shorten_setting(value: Any) -> str:
    """Return a setting in a few words, for labels and cells of a table.

    Args:
        value: The setting.

    Returns:
        Numbers, text and None whole, of others the first 60 characters of their representation.
    """
    if isinstance(value, int | float | str | None):
        return str(value)
    text = quote(value)
    return text if len(text) <= _LONGEST_SETTING else f"{text[:_LONGEST_SETTING]}..."


def _format_cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shorten_setting(value)


def _wrap_name(name: str) -> str:
    """Return a dotted name on as many lines as it needs."""
    lines = [""]
    for part in name.split("."):
        joined = f"{lines[-1]}.{part}" if lines[-1] else part
        if lines[-1] and len(joined) > _NAME_WIDTH:
            lines.append(part)
        else:
            lines[-1] = joined
    return "\n".join(lines)
