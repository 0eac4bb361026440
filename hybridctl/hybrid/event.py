"""An event of a hybrid trajectory: what fired, where it led, and what is particular about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridctl.base.checks import Array
from hybridctl.base.tables import render_html_table
from hybridctl.hybrid.model import ModeKey


@dataclass(frozen=True, eq=False)
class Event:
    """A jump from arc `index` to arc `index + 1`.

    Attributes:
        index: Number of the event in its trajectory.
        time: Event time, s.
        mode_before: Key of the mode before it.
        mode_after: Key of the mode after it.
        guards: Names of the guards that fired, in the order of their declaration. There are none
            where the policy changed its law. Where the system came to rest, these are all that
            accumulate, in the order in which they fired: the mode before the event holds those that
            it lacks.
        state_before: State (nx,) before it.
        state_after: State (nx',) after it.
        input_before: Input (nu,) before it.
        input_after: Input (nu',) after it.
        input_rate: Time derivative (nu,) of the input just before it.
        impulses: Normal impulse of each contact, N s; empty where no reset gave any.
        report: What the reset certifies, None if nothing. It is not saved in files.
        accumulation: Where the system came to rest instead of going through all events: the
            predicted time at which events of these guards accumulate, s. None for other events.
        accuracy: rtol and atol of the steps that led to it. Zeros where they are not known, None
            where they do not matter.
        uniqueness: Whether the law of the reset is "proven" or "disproven" to leave one state after
            it, or "not established"; None for resets by formulas.
        bridged: Where a run is taken past an instant whose events cannot be resolved (see
            `simulate`): 0 where that begins, and where it ends its duration in s. None for other
            events.
    """

    index: int
    time: float
    mode_before: ModeKey
    mode_after: ModeKey
    guards: tuple[str, ...]
    state_before: Array
    state_after: Array
    input_before: Array
    input_after: Array
    input_rate: Array
    impulses: Array
    report: Any = None
    accumulation: float | None = None
    accuracy: tuple[float, float] | None = (0.0, 0.0)
    uniqueness: str | None = None
    bridged: float | None = None

    def __repr__(self) -> str:
        what = ", ".join(self.guards) or "the input changes"
        modes = f"{self.mode_before} -> {self.mode_after}"
        unique = "" if self.uniqueness is None else f"; uniqueness {self.uniqueness}"
        bridge = "" if self.bridge is None else f"; {self.bridge}"
        rest = "" if self.rest is None else f"; {self.rest}"
        return f"Event({self.time:.9g} s, {what}: {modes}{unique}{bridge}{rest})"

    @property
    def rest(self) -> str | None:
        """What was assumed where events accumulate, in words; None for other events."""
        if self.accumulation is None:
            return None
        return f"assumed to rest: events accumulate at {self.accumulation:.9g} s"

    @property
    def bridge(self) -> str | None:
        """Whether the event begins or ends a bridge, in words; None for other events."""
        if self.bridged is None:
            return None
        return f"ends a bridge of {self.bridged:.3g} s" if self.bridged else "begins a bridge"

    def _repr_html_(self) -> str:
        """Return a table of what happened."""
        rows = [
            ("time [s]", f"{self.time:.9g}"),
            ("guards", ", ".join(self.guards) or "none: the input changes"),
            ("mode before", self.mode_before),
            ("mode after", self.mode_after),
        ]
        if self.impulses.size:
            rows.append(("impulses [N s]", ", ".join(f"{p:.6g}" for p in self.impulses)))
        if self.uniqueness is not None:
            rows.append(("uniqueness", self.uniqueness))
        if self.bridge is not None:
            rows.append(("bridge", self.bridge))
        if self.rest is not None:
            rows.append(("rest", self.rest))
        return render_html_table(("event", ""), rows)
