r"""Contact without forces: a foot stands where it is still, by the likelihood of its velocity.

Seen from the inertial frame a foot moves by :math:`\dot s`, the mean over a short time of what the
joint angles say, so in the world, and in the axes of that frame, by

.. math:: w = R^T v + \omega \times s + \dot s .

Of a foot that stands it is :math:`N(0, S + \sigma_s^2)`, of one that swings
:math:`N(0, S + \sigma_m^2)`, S being what estimate and angles do not know of it. The logarithm of
the ratio of both densities decides: above `odds` the foot is in contact, below minus that it is
not; between the two nothing follows. The lowest foot stays in contact: while two feet hold the base
and one of them leaves, the estimate is a compromise, against which both move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridctl.checks import Array, number
from hybridctl.errors import InputError
from hybridctl.estimation.contact_signal import fired
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.legged.kinematics import LegKinematics
from hybridctl.estimation.legged.rotation import matrix, skew
from hybridctl.estimation.legged.space import ANGLE, GYROSCOPE, VELOCITY
from hybridctl.estimation.legged.system import LeggedBase, lifts, touches
from hybridctl.estimation.model import Model
from hybridctl.estimation.predict import Prediction
from hybridctl.estimation.record import Series
from hybridctl.hybrid.laws import InputLaw

_ROUNDING = 1e-9  # s, of stamps


@dataclass(frozen=True)
class MotionEvidence:
    """How still a foot is that stands.

    still, moving: standard deviations of the velocity of feet that stand and swing, m/s. odds: of
    the logarithm of the ratio. span: s over which the velocity is a mean.
    """

    still: float = 0.05
    moving: float = 0.3
    odds: float = 3.0
    span: float = 0.05

    def __post_init__(self) -> None:
        for name in ("still", "span"):
            number(name, getattr(self, name), above=0.0)
        number("moving", self.moving, above=self.still)
        number("odds", self.odds, at_least=0.0)


@dataclass(frozen=True, eq=False)
class Stillness:
    """Evidence of the contact of one foot, in a channel of its velocities (3,) `foot_motion`."""

    base: LeggedBase
    foot: str
    evidence: MotionEvidence

    @property
    def channel(self) -> str:
        """The name of the channel."""
        return motion_name(self.foot)

    @property
    def closes(self) -> str:
        """The guard of touchdown."""
        return touches(self.foot)

    @property
    def opens(self) -> str:
        """The guard of lift-off."""
        return lifts(self.foot)

    def applied(self, model: Model, estimate: Estimate, value: Array, law: InputLaw) -> Prediction:
        """The estimate in the mode that the velocity asks for, at the same time."""
        if value.shape != (3,):
            raise InputError(f"a row of {self.channel!r} must have 3 values, got {value.shape}")
        if not np.isfinite(value).all():
            return Prediction(estimate)
        odds = self.log_odds(estimate, value, law(estimate.time, estimate.mean))
        standing = self.base.standing(estimate.mode)
        if odds > self.evidence.odds and self.foot not in standing:
            return fired(model, estimate, estimate, self.closes, law)
        leaves = odds < -self.evidence.odds and self.foot in standing
        if leaves and self.foot != self._lowest(estimate, law):
            return fired(model, estimate, estimate, self.opens, law)
        return Prediction(estimate)

    def _lowest(self, estimate: Estimate, law: InputLaw) -> str:
        """The foot in contact that is lowest by tilt and angles."""
        base, up = self.base, matrix(estimate.mean[:4])[2]
        standing = base.standing(estimate.mode)
        seen = base.kinematics(base.angles(law(estimate.time, estimate.mean)), standing)
        return standing[int(np.argmin([up @ s.position for s in seen]))]

    def log_odds(self, estimate: Estimate, value: Array, u: Array) -> float:
        """The logarithm of the ratio of the densities of a foot that stands and one that swings."""
        x, base = estimate.mean, self.base
        (seen,) = base.kinematics(base.angles(u), [self.foot])
        velocity = matrix(x[:4]).T @ x[7:10]
        w = velocity + np.cross(u[:3] - x[10:13], seen.position) + value
        space = base.space(estimate.mode)
        h = np.zeros((3, space.ndx))
        h[:, ANGLE], h[:, VELOCITY] = skew(velocity), np.eye(3)
        h[:, GYROSCOPE] = skew(seen.position)
        h = h @ space.to_left(x)
        angles = 2.0 * (base.noise.encoder / self.evidence.span) ** 2 * seen.moving @ seen.moving.T
        unknown = h @ estimate.covariance @ h.T + angles
        return _log_density(w, unknown, self.evidence.still) - _log_density(
            w, unknown, self.evidence.moving
        )


def motion_name(foot: str) -> str:
    """The name of the channel of the velocities of a foot."""
    return f"motion {foot}"


def foot_motion(kinematics: LegKinematics, foot: str, angles: Series, span: float) -> Series:
    """Mean velocities (n, 3) in m/s of a foot seen from the inertial frame over the last `span` s.

    angles: in order. Rows before that time, and those where angles are missing, are left out.
    """
    known = np.isfinite(angles.values).all(axis=1)
    times, values = angles.times[known], angles.values[known]
    places = np.array([kinematics(row, [foot])[0].position for row in values]).reshape(-1, 3)
    first = times.searchsorted(times - span - _ROUNDING)
    last = np.flatnonzero(times >= times[0] + span - _ROUNDING) if len(times) else first
    first = first[last]
    lengths = (times[last] - times[first])[:, None]
    return Series(times[last], (places[last] - places[first]) / lengths)


def _log_density(w: Array, unknown: Array, spread: float) -> float:
    """Of w (3,) in N(0, unknown + spread^2), but for a constant."""
    s = unknown + spread**2 * np.eye(3)
    return -0.5 * float(w @ np.linalg.solve(s, w) + np.linalg.slogdet(s)[1])
