"""Hybrid trajectories: arcs of flow and the events between them, on the time domain (t, j)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_member, check_number, check_vector, format_count
from hybridctl.base.errors import InputError
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.arc import Arc, Side, outputs_on
from hybridctl.hybrid.event import Event as Event
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.run_file import read_run, write_run
from hybridctl.hybrid.run_table import make_run_table
from hybridctl.hybrid.system import HybridSystem

RUN_PLOTS = "hybridctl.run_plots"
"""Group of entry points under which packages announce functions that draw a run."""


@dataclass(frozen=True, eq=False)
class HybridTrajectory:
    """Arcs 0..N and the N events between them; event j ends arc j.

    At an event time both limits exist: `traj(t, side="left")` is the state before all events at
    t, `side="right"` the state after them. system: the one that was simulated, which knows outputs
    and names. It is not pickled: `dataclasses.replace(run, system=system)` gives it back. source:
    the one that has made the run, None where that is not known, as after a file: what goes on from
    such a run checks the system first.
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
        """The state at the end."""
        return self.arcs[-1](self.end)

    @property
    def final_mode(self) -> ModeKey:
        """The mode at the end."""
        return self.arcs[-1].mode

    def arc(self, t: float, side: Side = "right") -> Arc:
        """The arc at time t; at an event time the one before (left) or after it (right).

        Raises `InputError` outside [start, end].
        """
        t = check_number("t", t)
        check_member("side", side, ("left", "right"))
        if not self.start <= t <= self.end:
            raise InputError(f"t must lie in [{self.start}, {self.end}], got {t}")
        ends = np.array([arc.end for arc in self.arcs[:-1]])
        return self.arcs[int(ends.searchsorted(t, "left" if side == "left" else "right"))]

    def __call__(self, t: ArrayLike, side: Side = "right") -> Array:
        """State (nx,) at time t, or (n, nx) at times (n,).

        Raises `InputError` for times outside [start, end], or in modes of different sizes.
        """
        return self._of_arcs(Arc.__call__, t, side)

    def input(self, t: ArrayLike, side: Side = "right") -> Array:
        """Input (nu,) at time t, or (n, nu) at times (n,); at an event that of the given side.

        Raises `InputError` for times outside [start, end], or in modes of different sizes.
        """
        return self._of_arcs(partial(Arc.input, side=side), t, side)

    def _of_arcs(self, of: Callable[[Arc, float], Array], t: ArrayLike, side: Side) -> Array:
        if np.ndim(t) == 0:
            return of(self.arc(t, side), check_number("t", t))  # type: ignore[arg-type]
        rows = [of(self.arc(one, side), one) for one in check_vector("t", t).tolist()]
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
        """A table of the arcs and of the events that end them."""
        ends = [", ".join(event.guards) for event in self.events]
        rows = [
            (f"{arc.start:.6g}", f"{arc.end:.6g}", arc.mode, end)
            for arc, end in zip(self.arcs, [*ends, ""], strict=True)
        ]
        return render_html_table(("from [s]", "to [s]", "mode", "event"), rows)

    def outputs(self, name: str, t: ArrayLike, side: Side = "right") -> Array:
        """A quantity that modes declare, such as "normal_force": at time t, or (n, ...) at (n,).

        NaN where the mode at a time does not declare it. `contact_system` says what robots have;
        of other systems `system.mode(key).outputs` does.

        Raises `InputError` for times outside [start, end] and for a run without its system,
        `UnknownNameError` for a name that no mode of this run declares.
        """
        shape = self._declared[check_member("output", name, self._declared)]
        single = np.ndim(t) == 0
        times = [check_number("t", t)] if single else check_vector("t", t).tolist()
        values = np.full((len(times), *shape), np.nan)
        for row, time in zip(values, times, strict=True):
            found = self._outputs_of(self.arc(time, side), time)
            if name in found:
                row[...] = found[name]
        return values[0] if single else values

    @cached_property
    def _declared(self) -> dict[str, tuple[int, ...]]:
        """Names of the outputs of all modes on the way, and their shapes."""
        first = {arc.mode: arc for arc in reversed(self.arcs)}
        found = [self._outputs_of(arc, arc.start) for arc in first.values()]
        return {name: np.shape(value) for outputs in found for name, value in outputs.items()}

    def _outputs_of(self, arc: Arc, t: float) -> Mapping[str, Array]:
        return outputs_on(self.known_system.mode(arc.mode), arc, t)

    @property
    def known_system(self) -> HybridSystem:
        """The system that made this trajectory.

        Raises `InputError` for a run without it, such as one that was pickled.
        """
        if self.system is None:
            raise InputError(
                "a run that was pickled or put together has no system; "
                "dataclasses.replace(run, system=system) gives it back"
            )
        return self.system

    def to_dataframe(self, times: ArrayLike | None = None) -> Any:
        """A pandas table with a row for each time: mode, state, input, and all outputs.

        Columns are named, with units, by `system.state_labels` and its kin; the index is the time
        in s. times (n,) may not decrease; an event time gives the state after it. Without times,
        those at which the integrator stepped, with both limits of every event.

        Raises `InputError` for other times, where pandas (the extra `pandas`) is not installed,
        and for a run without its system.
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
        announced = {point.name: point for point in entry_points(group=RUN_PLOTS)}
        if not announced:
            raise InputError(
                f"backend {backend!r} cannot be found: no installed package has entry points of "
                f"the group {RUN_PLOTS!r}; install hybridctl itself, a checkout by `pip install -e`"
            )
        draw = announced[check_member("backend", backend, sorted(announced))].load()
        return draw(self, path, names=names)

    def sampled(self, period: float) -> Iterator[tuple[Arc, Array]]:
        """The arcs, each with times at most `period` apart, both ends included."""
        check_number("period", period, above=0.0)
        for arc in self.arcs:
            n = max(int(np.ceil((arc.end - arc.start) / period)), 1)
            yield arc, np.linspace(arc.start, arc.end, n + 1)

    def sampled_outputs(self, period: float) -> Iterator[tuple[Arc, Array, dict[str, Array]]]:
        """Arcs and times (n,) as `sampled`, with the outputs (n, ...) that the arc's mode declares.

        At both ends these are limits of the arc. Raises `InputError` for a run without its system.
        """
        for arc, times in self.sampled(period):
            rows = [self._outputs_of(arc, t) for t in times.tolist()]
            yield arc, times, {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the event reports to an .npz file, atomically.

        Raises `InputError` for mode keys that JSON does not give back (numbers, strings and
        tuples of them are fine).
        """
        write_run(path, self.arcs, self.events)

    @staticmethod
    def load(path: str | os.PathLike[str], system: HybridSystem) -> HybridTrajectory:
        """Read what `save` wrote; `system` gives the state spaces of the modes.

        Raises `FileFormatError` for a file that is empty, truncated or something else, for one that
        does not fit the system, and for what is no run (numbers that are not finite, times that go
        back, arcs that do not go on from events).
        """
        return HybridTrajectory(*read_run(path, system), system)
