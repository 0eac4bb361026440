"""Tracking error of a trajectory: against the arc of its event count, or at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hybridctl.base.checks import Array, check_member
from hybridctl.control.reference import Reference
from hybridctl.control.spreading import get_followed_arc, locate
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.trajectory import HybridTrajectory

ErrorKind = Literal["spread", "conventional"]


@dataclass(frozen=True)
class TrackingError:
    """Samples of the tracking error along a trajectory; both limits of an event are samples.

    Attributes:
        kind: "spread" or "conventional", see `tracking_error`.
        times: Times (n,) of the samples, s.
        errors: State minus reference (n, ndx), in the tangent space at the reference.
        arcs: Index (n,) of the arc of the trajectory that each sample lies on.
    """

    kind: ErrorKind
    times: Array
    errors: Array
    arcs: Array

    def select_from(self, arc: int) -> TrackingError:
        """Return the samples on one arc and on those after it.

        Args:
            arc: Index of the arc in its trajectory.
        """
        later = self.arcs >= arc
        return TrackingError(self.kind, self.times[later], self.errors[later], self.arcs[later])

    @property
    def norms(self) -> Array:
        """Euclidean norms (n,) of the errors; rad, m, rad/s and m/s count as equal units."""
        return np.asarray(np.linalg.norm(self.errors, axis=1))

    @property
    def peak(self) -> float:
        """The largest norm."""
        return float(self.norms.max())

    @property
    def rms(self) -> float:
        """Root of the time average of the squared norm, by the trapezoidal rule.

        NaN for samples that span no time.
        """
        dt = np.diff(self.times)
        squares = self.norms**2
        return float(np.sqrt(np.sum(dt * (squares[1:] + squares[:-1])) / (2.0 * dt.sum())))


def tracking_error(
    reference: Reference, trajectory: HybridTrajectory, kind: ErrorKind, period: float = 1e-3
) -> TrackingError:
    """Return the error of the state against a reference, at samples.

    Args:
        reference: The reference.
        trajectory: The trajectory that tracks it.
        kind: "spread" compares with the extended or phantom arc of the same event count
            ([RS] 3.1.2), "conventional" with the nominal trajectory at the same time.
        period: Greatest distance of two samples, s.

    Returns:
        The error at times that are at most a period apart, and on both sides of each event.

    Raises:
        InputError: The kind is unknown.
    """
    check_member("kind", kind, ("spread", "conventional"))
    times, errors, indices = [], [], []
    for arc, t in trajectory.sampled(period):
        if kind == "spread":
            events = trajectory.events[: arc.index]
            alpha = get_followed_arc(reference, locate(reference, events))(t)
        else:
            alpha = _evaluate_nominal(reference.nominal.arcs, t)
        states = arc(t)
        times.append(t)
        errors.append([arc.space.difference(a, x) for a, x in zip(alpha, states, strict=True)])
        indices.append(np.full(len(t), arc.index))
    return TrackingError(
        kind, np.concatenate(times), np.concatenate(errors), np.concatenate(indices)
    )


def _evaluate_nominal(arcs: tuple[Arc, ...], times: Array) -> Array:
    """Return the nominal states (n, nx) at the times (n,) of one arc of the tracking trajectory.

    A nominal event at the last of the times counts as not yet happened: the last sample is the
    left limit at the end of the arc. At earlier times it counts as happened.
    """
    ends = np.array([arc.end for arc in arcs[:-1]])
    indices = ends.searchsorted(times, "right")
    indices[-1] = ends.searchsorted(times[-1], "left")
    return np.array([arcs[i](float(t)) for i, t in zip(indices.tolist(), times, strict=True)])
