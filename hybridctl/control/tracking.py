"""Tracking error of a trajectory: spread, against the arc of its event count, or on the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import followed, locate
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.trajectory import HybridTrajectory

ErrorKind = Literal["spread", "conventional"]


@dataclass(frozen=True)
class TrackingError:
    """Samples of an error along a trajectory: `times` (n,), `errors` (n, ndx), `arcs` (n,).

    Both limits of an event are samples. `norms` is the Euclidean norm of all components, with
    rad (or m) and rad/s (or m/s) taken as equal units.
    """

    kind: ErrorKind
    times: Array
    errors: Array
    arcs: Array

    def since(self, arc: int) -> TrackingError:
        """The samples from this arc on."""
        kept = self.arcs >= arc
        return TrackingError(self.kind, self.times[kept], self.errors[kept], self.arcs[kept])

    @property
    def norms(self) -> Array:
        """The norms |error| of the samples."""
        return np.asarray(np.linalg.norm(self.errors, axis=1))

    @property
    def peak(self) -> float:
        """The largest norm."""
        return float(self.norms.max())

    @property
    def rms(self) -> float:
        """Root of the time average of the squared norm."""
        dt = np.diff(self.times)
        squares = self.norms**2
        return float(np.sqrt(np.sum(dt * (squares[1:] + squares[:-1])) / (2.0 * dt.sum())))


def tracking_error(
    reference: Reference, trajectory: HybridTrajectory, kind: ErrorKind, period: float = 1e-3
) -> TrackingError:
    """Error of the state minus its reference, sampled at most `period` seconds apart.

    kind "spread" takes the extended or phantom arc of the same event count ([RS] 3.1.2),
    "conventional" the nominal reference at the same time.
    """
    check_member("kind", kind, ("spread", "conventional"))
    times, errors, indices = [], [], []
    for arc, t in trajectory.sampled(period):
        events = trajectory.events[: arc.index]
        if kind == "spread":
            target = followed(reference, locate(reference, events))
            alpha = target(t)
        else:
            alpha = _on_the_clock(reference.nominal.arcs, t)
        states = arc(t)
        times.append(t)
        errors.append([arc.space.difference(a, x) for a, x in zip(alpha, states, strict=True)])
        indices.append(np.full(len(t), arc.index))
    return TrackingError(
        kind, np.concatenate(times), np.concatenate(errors), np.concatenate(indices)
    )


def _on_the_clock(arcs: tuple[Arc, ...], times: Array) -> Array:
    """The nominal states at these times of one arc; an event at the last of them is still ahead."""
    ends = np.array([arc.end for arc in arcs[:-1]])
    indices = ends.searchsorted(times, "right")
    indices[-1] = ends.searchsorted(times[-1], "left")
    return np.array([arcs[i](float(t)) for i, t in zip(indices.tolist(), times, strict=True)])
