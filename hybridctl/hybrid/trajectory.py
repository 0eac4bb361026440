"""Hybrid trajectories: arcs of flow and the events between them, on the time domain (t, j)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_member, check_number, check_vector, format_count
from hybridctl.base.errors import InputError
from hybridctl.base.plugins import load_plugin
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.arc import Arc, Side, compute_outputs
from hybridctl.hybrid.event import Event as Event
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.run_file import read_run, write_run
from hybridctl.hybrid.run_table import make_run_table
from hybridctl.hybrid.system import HybridSystem


@dataclass(frozen=True, eq=False)
class HybridTrajectory:
    """Arcs 0..N and the N events between them; event j ends arc j.

    At an event time both limits exist: `traj(t, side="left")` is the state before all events at t,
    `side="right"` the state after them.

    Attributes:
        arcs: The arcs in order of time.
        events: The events in order of time.
        system: The system that was simulated, which has outputs and names. None in a run that was
            pickled or put together: `dataclasses.replace(run, system=system)` gives it back.
        source: The system that is known to have made the run. None where that is not known, as
            after a file: what goes on from such a run checks the system first. It is not pickled.
    """

    arcs: tuple[Arc, ...]
    events: tuple[Event, ...]
    system: HybridSystem | None = None
    source: HybridSystem | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"arcs": self.arcs, "events": self.events, "system": None, "source": None}

    @cached_property
    def guard_events(self) -> tuple[Event, ...]:
        """The events of guards, without those at which the policy changed its law."""
        return tuple(event for event in self.events if event.guards)

    @property
    def start(self) -> float:
        """Time at which the trajectory begins, s."""
        return self.arcs[0].start

    @property
    def end(self) -> float:
        """Time at which the trajectory ends, s."""
        return self.arcs[-1].end

    @property
    def final_state(self) -> Array:
        """The state (nx,) at the end."""
        return self.arcs[-1](self.end)

    @property
    def final_mode(self) -> ModeKey:
        """Key of the mode at the end."""
        return self.arcs[-1].mode

    def arc(self, t: float, side: Side = "right") -> Arc:
        """Return the arc at a time.

        Args:
            t: Time in [start, end], s.
            side: At an event time, the arc before it ("left") or after it ("right"); of several
                events at one time, before the first or after the last.

        Raises:
            InputError: If t is outside.
            UnknownNameError: If the side is neither.
        """
        t = check_number("t", t)
        check_member("side", side, ("left", "right"))
        if not self.start <= t <= self.end:
            raise InputError(f"t must lie in [{self.start}, {self.end}], got {t}")
        ends = np.array([arc.end for arc in self.arcs[:-1]])
        return self.arcs[int(ends.searchsorted(t, "left" if side == "left" else "right"))]

    def __call__(self, t: ArrayLike, side: Side = "right") -> Array:
        """Return the state at one time or several.

        Args:
            t: Time in [start, end], s, or n times.
            side: Which limit is returned at an event time.

        Returns:
            The state (nx,), or (n, nx) at n times.

        Raises:
            InputError: If a time is outside, or times lie in modes of different sizes.
        """
        return self._evaluate(Arc.__call__, t, side)

    def input(self, t: ArrayLike, side: Side = "right") -> Array:
        """Return the input at one time or several.

        Args:
            t: Time in [start, end], s, or n times.
            side: Which limit is returned at an event time, or where the law changes.

        Returns:
            The input (nu,), or (n, nu) at n times.

        Raises:
            InputError: If a time is outside, or times lie in modes of different sizes.
        """
        return self._evaluate(partial(Arc.input, side=side), t, side)

    def _evaluate(self, evaluate: Callable[[Arc, float], Array], t: ArrayLike, side: Side) -> Array:
        """Return a quantity of arcs (m,) at one time, or (n, m) at n times.

        Args:
            evaluate: Returns the quantity of an arc at one time.
            t: Time, s, or n times.
            side: Which arc counts at an event time.

        Raises:
            InputError: If times lie in modes of different sizes.
        """
        if np.ndim(t) == 0:
            return evaluate(self.arc(t, side), check_number("t", t))  # type: ignore[arg-type]
        rows = [evaluate(self.arc(one, side), one) for one in check_vector("t", t).tolist()]
        sizes = {len(row) for row in rows}
        if len(sizes) > 1:
            raise InputError(f"t must lie in modes of one size, got sizes {sorted(sizes)}")
        return np.array(rows).reshape(len(rows), max(sizes, default=0))

    def __repr__(self) -> str:
        arcs, events = (
            format_count(len(self.arcs), "arc"),
            format_count(len(self.guard_events), "event"),
        )
        span = f"{self.start:.6g} to {self.end:.6g} s"
        return f"HybridTrajectory({span}, {arcs}, {events}, ends in {self.final_mode})"

    def _repr_html_(self) -> str:
        """Return a table of the arcs and of the events that end them."""
        ends = [", ".join(event.guards) for event in self.events]
        rows = [
            (f"{arc.start:.6g}", f"{arc.end:.6g}", arc.mode, end)
            for arc, end in zip(self.arcs, [*ends, ""], strict=True)
        ]
        return render_html_table(("from [s]", "to [s]", "mode", "event"), rows)

    def outputs(self, name: str, t: ArrayLike, side: Side = "right") -> Array:
        """Return a quantity that modes declare, such as "normal_force", at one time or several.

        `contact_system` says what robots have; of other systems `system.mode(key).outputs` does.

        Args:
            name: Name of the quantity.
            t: Time in [start, end], s, or n times.
            side: Which limit is returned at an event time.

        Returns:
            The value in its own shape, with a leading axis at n times. NaN where the mode at a time
            does not declare it.

        Raises:
            UnknownNameError: If no mode of this run declares the name.
            InputError: If a time is outside, or the run has no system.
        """
        shape = self._output_shapes[check_member("output", name, self._output_shapes)]
        is_single = np.ndim(t) == 0
        times = [check_number("t", t)] if is_single else check_vector("t", t).tolist()
        values = np.full((len(times), *shape), np.nan)
        for row, time in zip(values, times, strict=True):
            outputs = self._compute_outputs(self.arc(time, side), time)
            if name in outputs:
                row[...] = outputs[name]
        return values[0] if is_single else values

    @cached_property
    def _output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs of all modes of the run, by name."""
        first = {arc.mode: arc for arc in reversed(self.arcs)}  # of each mode the first arc
        known = [self._compute_outputs(arc, arc.start) for arc in first.values()]
        return {name: np.shape(value) for outputs in known for name, value in outputs.items()}

    def _compute_outputs(self, arc: Arc, t: float) -> Mapping[str, Array]:
        return compute_outputs(self.known_system.mode(arc.mode), arc, t)

    @property
    def known_system(self) -> HybridSystem:
        """The system that was simulated.

        Raises:
            InputError: If the run has none, as one that was pickled.
        """
        if self.system is None:
            raise InputError(
                "a run that was pickled or put together has no system; "
                "dataclasses.replace(run, system=system) gives it back"
            )
        return self.system

    def to_dataframe(self, times: ArrayLike | None = None) -> Any:
        """Return a pandas table with a row for each time: mode, state, input, and all outputs.

        Columns are named, with units, by `system.state_labels` and its kin; the index is the time
        in s.

        Args:
            times: Times (n,), s, which may not decrease; an event time gives the state after it. If
                None, those at which the integrator stepped, with both limits of every event.

        Raises:
            InputError: If times are outside or decrease, pandas (the extra `pandas`) is not
                installed, or the run has no system.
        """
        if times is None:
            return make_run_table(self.known_system, [(arc, arc.times) for arc in self.arcs])
        t = check_vector("times", times)
        if len(t) and not (self.start <= t[0] and t[-1] <= self.end and (np.diff(t) >= 0).all()):
            raise InputError(
                f"times must lie in [{self.start}, {self.end}] and not decrease, got {t.tolist()}"
            )
        ends = np.array([arc.end for arc in self.arcs[:-1]])
        parts = np.split(t, t.searchsorted(ends, "left"))
        return make_run_table(self.known_system, list(zip(self.arcs, parts, strict=True)))

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        names: Sequence[str] | None = None,
        backend: str = "matplotlib",
    ) -> Any:
        """Draw the states over time.

        Args:
            path: File to save the figure in; None to save none.
            names: Labels of the coordinates to draw, in their order; None for all.
            backend: Name under which an installed package announces a function of this trajectory,
                the path and the names (entry point of the group "hybridctl.run_plots"). Its module
                is imported now, so that simulations do without it.

        Returns:
            What the backend returns: for "matplotlib" its figure, see `hybridctl.plots.states`.

        Raises:
            UnknownNameError: If no installed package announces the backend.
            InputError: If none announces any, as where hybridctl itself is not installed, or as the
                backend raises it.
        """
        draw = load_plugin("run_plots", backend, argument="backend")
        return draw(self, path, names=names)

    def sampled(self, period: float) -> Iterator[tuple[Arc, Array]]:
        """Yield the arcs, each with times (n,) at equal distances, both of its ends included.

        Args:
            period: Longest distance between two times of an arc, s; positive.

        Yields:
            An arc and its times, s.

        Raises:
            InputError: If the period is not positive.
        """
        check_number("period", period, above=0.0)
        for arc in self.arcs:
            n = max(int(np.ceil((arc.end - arc.start) / period)), 1)
            yield arc, np.linspace(arc.start, arc.end, n + 1)

    def sampled_outputs(self, period: float) -> Iterator[tuple[Arc, Array, dict[str, Array]]]:
        """Yield arcs and times as `sampled` does, with the outputs that the arc's mode declares.

        Args:
            period: Longest distance between two times of an arc, s; positive.

        Yields:
            An arc, its times (n,) in s, and its outputs (n, ...) by name. At both ends these are
            limits of the arc.

        Raises:
            InputError: If the period is not positive, or the run has no system.
        """
        for arc, times in self.sampled(period):
            rows = [self._compute_outputs(arc, t) for t in times.tolist()]
            yield arc, times, {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the event reports to an .npz file, atomically.

        Args:
            path: The file.

        Raises:
            InputError: If JSON does not give a mode key back (numbers, strings and tuples of them
                are fine).
            FileWriteError: If the file cannot be written.
        """
        write_run(path, self.arcs, self.events)

    @staticmethod
    def load(path: str | os.PathLike[str], system: HybridSystem | None = None) -> HybridTrajectory:
        """Read what `save` wrote.

        Args:
            path: The file.
            system: The system of the run, which gives the state spaces of its modes. Without it the
                states are plain vectors without names, and the run has no outputs.

        Returns:
            The trajectory, whose `source` is not known.

        Raises:
            FileFormatError: If the file is empty, truncated or something else, if sizes of states
                or inputs, or names of guards, are not those of the system, or if it holds no run:
                numbers that are not finite, times that go back, arcs that do not go on from events.
            UnknownNameError: If the system lacks a mode of the run.
        """
        return HybridTrajectory(*read_run(path, system), system)
