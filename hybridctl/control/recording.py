"""What a controller in a loop has seen and done, as a trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.hybrid.arc import Arc, freeze_array
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory


@dataclass(eq=False)
class _Stretch:
    """Times, states and inputs of the samples of one mode, up to the event that ends it."""

    mode: ModeKey
    samples: list[tuple[float, Array, Array]] = field(default_factory=list)
    event: Event | None = None


@dataclass(eq=False)
class Recording:
    """Samples with events between them."""

    _stretches: list[_Stretch] = field(default_factory=list)

    def put(self, t: float, x: Array, u: Array, mode: ModeKey) -> None:
        """Append a sample: time in s, state (nx,), the input (nu,) from there on, and the mode."""
        if not self._stretches or self._stretches[-1].event is not None:
            self._stretches.append(_Stretch(mode))
        self._stretches[-1].samples.append((t, x.copy(), u.copy()))

    def event(self, event: Event) -> None:
        """End the present stretch with an event; one before the first sample is left out."""
        if self._stretches:
            self._stretches[-1].event = event

    def run(self, system: HybridSystem) -> HybridTrajectory:
        """Arcs with states on straight lines and inputs held, and the events between them.

        Raises `InputError` where there are no samples.
        """
        if not self._stretches:
            raise InputError("a run must have one sample at least, but nothing was recorded")
        arcs, events = [], []
        for k, stretch in enumerate(self._stretches):
            arcs.append(_arc(system, k, stretch))
            last = k == len(self._stretches) - 1
            if stretch.event is not None and not last:
                _, _, after = self._stretches[k + 1].samples[0]
                events.append(
                    replace(stretch.event, index=k, input_after=freeze_array(after.copy()))
                )
        return HybridTrajectory(tuple(arcs), tuple(events), system)


def _arc(system: HybridSystem, index: int, stretch: _Stretch) -> Arc:
    """The arc of a stretch: Chebyshev series of degree one in states and zero in inputs."""
    mode = system.mode(stretch.mode)
    times, states, inputs = map(np.array, zip(*stretch.samples, strict=True))
    if stretch.event is not None and stretch.event.time > times[-1]:
        times = np.append(times, stretch.event.time)
        states = np.vstack([states, stretch.event.state_before])
    if len(times) == 1:
        times, states = np.repeat(times, 2), np.repeat(states, 2, axis=0)
        lengths = np.ones(1)
    else:
        lengths = np.diff(times)
    n = len(lengths)
    state_series, input_series = np.zeros((n, 8, mode.space.nx)), np.zeros((n, 8, mode.nu))
    state_series[:, 0] = 0.5 * (states[1:] + states[:-1])
    state_series[:, 1] = 0.5 * (states[1:] - states[:-1])
    input_series[:, 0] = inputs[:n]
    arrays = (times[:-1].copy(), lengths, state_series, input_series)
    start, end = float(times[0]), float(times[-1])
    return Arc(index, stretch.mode, mode.space, start, end, *arrays)
