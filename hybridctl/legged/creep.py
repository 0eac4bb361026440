r"""How much a point foot in contact moves, by its own apparent velocity.

Joint angles say how fast a foot moves against the base, and the estimate how fast the base moves. A
foot that stands has none of the velocity

.. math:: w = R^T v + \omega \times s + \dot s

that is left, in the axes of the inertial frame, beyond what estimate and angles do not know of it,
of covariance S. What it has beyond that it slips, sinks into ground that gives way, or lifts off.
Such a velocity lasts for a time :math:`\tau`, so that the foot gains noise of the density

.. math:: q = \tau e\, (1 + e / \sigma^2), \quad e = \max(0, \tfrac13 (|w|^2 - c\, \mathrm{tr} S)),

in each direction: from :math:`\sigma` on it does not creep any more, but does not stand yet or is
about to leave, and says the less of the base. It needs nothing but what was measured until now, and
follows a foot from one sample to the next: at touchdown, while it stands, and while it lifts under
a force that has not gone yet.

Soles are left out. A humanoid stands on one of them most of the time, and what that seems to move
by is then as well an error of the base's velocity: on a recorded walk the error of position grew
from 16.5 mm to 23.2 mm.

The velocity :math:`\dot s` is the mean over a time that is short where encoders are fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, is_finite
from hybridctl.base.time_series import Series
from hybridctl.estimation.correct import Innovation
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult, over_record
from hybridctl.estimation.state import FilterState, Hypothesis, Input, Reconciliation
from hybridctl.hybrid.laws import HeldInput
from hybridctl.legged.foot_distances import FootDistances, begin_distances
from hybridctl.legged.kinematics import FootKinematics, LegKinematics
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.point_feet_filter import PointFeetFilter
from hybridctl.legged.rotation import matrix, skew, skews
from hybridctl.legged.space import ANGLE, GYROSCOPE, RATE, VELOCITY
from hybridctl.legged.system import (
    MOST_PREPARED_FEET,
    RISE,
    STICK,
    BaseNoise,
    LeggedBase,
    prepare_modes,
)

_EYE = np.eye(3)
_FINEST = 1e-5  # rad: no encoder is finer, and one that repeats its value says nothing
_LONGEST = 0.02  # s, of the mean velocity of a foot: what happens at touchdown lasts longer
_DOZEN = 12  # rows
_SECOND = math.sqrt(6.0)  # deviation of x[k-1] - 2 x[k] + x[k+1] of white noise of deviation one


def measure_angle_noise(angles: Series, otherwise: float) -> float:
    """Measure the white noise of joint angles where a robot moves least.

    Args:
        angles: Joint angles (n, m) in rad at the start of a log, in order and complete.
        otherwise: The result in rad where there are too few rows.

    Returns:
        Standard deviation of one angle in one row, rad, by second differences, which slow motion
        does not reach: the root mean square over the joints in the quietest dozen rows.
    """
    squares = (np.diff(angles.values, n=2, axis=0) ** 2).mean(axis=1)
    blocks = len(squares) // _DOZEN
    if not blocks:
        return otherwise
    quietest = squares[: blocks * _DOZEN].reshape(blocks, _DOZEN).mean(axis=1).min()
    return max(float(np.sqrt(quietest)) / _SECOND, _FINEST)


class FootMotion(NamedTuple):
    """How the velocity of feet is found from joint angles.

    Attributes:
        angle_noise: Standard deviation of one joint angle in one row, rad.
        window: Time over which the velocity of a foot is a mean, s.
    """

    angle_noise: float
    window: float

    @staticmethod
    def of(base: LeggedBase, angles: Series, window: float | None = None) -> FootMotion:
        """Choose it for joint angles (n, m) in rad at the start of a log.

        Args:
            base: Base and feet.
            angles: Joint angles (n, m), rad.
            window: Time over which velocities are means, s. If None, it is chosen by the noise.
        """
        known = angles.complete_rows
        if len(known) < 2:
            return FootMotion(base.noise.encoder, window or _LONGEST)
        noise = measure_angle_noise(known, base.noise.encoder)
        if window is not None:
            return FootMotion(noise, window)
        lever = measure_lever(base.kinematics, known.values[0])
        # Stamps that mostly repeat have no period.
        period = float(np.median(np.diff(known.times))) or _LONGEST
        rows = round(choose_window(base.noise, noise, lever) / period)
        return FootMotion(noise, max(rows, 1) * period)


def choose_window(noise: BaseNoise, angle_noise: float, lever: float) -> float:
    """Choose the time over which the velocity of a foot is averaged.

    Args:
        noise: Its `slip_resolution` is the noise that the velocity may have.
        angle_noise: Standard deviation of joint angles in one row, rad.
        lever: How far the foot moves with the angles, m/rad.

    Returns:
        The time in s, 20 ms at most.
    """
    return min(math.sqrt(2.0) * angle_noise * lever / noise.slip_resolution, _LONGEST)


def measure_lever(kinematics: LegKinematics, angles: Array) -> float:
    """Measure how far feet move with the joint angles, m/rad: the root mean square over axes."""
    seen = kinematics(angles, kinematics.feet)
    return float(np.sqrt(np.mean([np.sum(foot.moving**2) / 3.0 for foot in seen])))


def apparent_velocity(
    seen: FootKinematics, moving: Array, e: Estimate, rate: Array
) -> tuple[Array, Array]:
    """Compute how fast a foot moves in the world, and how it depends on the estimate.

    Args:
        seen: The foot by its angles.
        moving: Its velocity (3,) against the inertial frame by the angles, m/s.
        e: Estimate of base and feet.
        rate: Measured angular velocity (3,) of the inertial frame, rad/s.

    Returns:
        The velocity (3,) in the axes of the inertial frame in m/s, and its derivative (3, 12) by
        the deviation of turn, position, velocity and bias of the gyroscope.
    """
    w, h = apparent_velocities(seen.position[None], moving[None], e, rate)
    return w[0], h[0]


def apparent_velocities(
    positions: Array, moving: Array, e: Estimate, rate: Array
) -> tuple[Array, Array]:
    """Compute how fast k feet move in the world; see `apparent_velocity`.

    Args:
        positions: Positions (k, 3) of the feet in the inertial frame by the angles, m.
        moving: Their velocities (k, 3) against the inertial frame by the angles, m/s.
        e: Estimate of base and feet.
        rate: Measured angular velocity (3,) of the inertial frame, rad/s.

    Returns:
        The velocities (k, 3) and their derivatives (k, 3, 12), each as of one foot.
    """
    velocity = e.mean[7:10].dot(matrix(e.mean[:4]))
    arms = skews(positions)
    w = velocity - arms.dot(rate - e.mean[10:13]) + moving
    h = np.zeros((len(w), 3, GYROSCOPE.stop))
    h[:, :, ANGLE], h[:, :, VELOCITY], h[:, :, GYROSCOPE] = skew(velocity), _EYE, arms
    return w, h


def with_creep(base: LeggedBase, e: Estimate, u: Array, motion: FootMotion) -> Array:
    """Complete an input by how much each point foot in contact creeps.

    Args:
        base: Base, feet and noise.
        e: Estimate at the beginning of the time over which the input is held.
        u: Input (nu,), with the velocities of the feet.
        motion: How the velocities of the feet were found.

    Returns:
        The input (nu,).
    """
    noise, layout = base.noise, base.layout(e.mode)
    # A sole that is the only one says nothing of its own motion, see this module.
    numbers = layout.numbers[layout.points]
    if not noise.slip_time or not len(numbers):
        return u
    result: Array = u.copy()
    feet = base.kinematics.find_feet(base.angles(u))
    moving = u[base.all_moving_columns].reshape(-1, 3)
    w, h = apparent_velocities(feet.positions[numbers], moving[numbers], e, u[RATE])
    levers = feet.twists[numbers, :3].reshape(len(numbers), -1)
    by_angles = 2.0 * (motion.angle_noise / motion.window) ** 2 * _sum_squares(levers)
    rows = h.reshape(-1, GYROSCOPE.stop)
    spread = rows.dot(e.covariance[: GYROSCOPE.stop, : GYROSCOPE.stop]) * rows
    unknown = spread.reshape(len(numbers), -1).sum(axis=1) + by_angles
    excess = (_sum_squares(w) - noise.slip_margin * unknown) / 3.0
    excess = np.minimum(np.maximum(excess, 0.0), noise.slip_speed**2)
    creep = noise.slip_time * excess * (1.0 + excess / noise.slip_fast**2)
    result[base.creep_columns][numbers] = creep
    return result


def _sum_squares(rows: Array) -> Array:
    """Return the sum of squares (n,) of each row (n, m)."""
    return np.asarray((rows * rows).sum(axis=1))


class CreepState(NamedTuple):
    """What a `CreepFilter` keeps.

    Attributes:
        filter: State of the filter of the base.
        distances: What the distances of feet have said; None where the noise of feet is given.
    """

    filter: FilterState
    distances: FootDistances | None

    @property
    def time(self) -> float:
        """Time of the estimate, s."""
        return self.filter.time

    @property
    def estimate(self) -> Estimate:
        """The estimate of base and feet."""
        return self.filter.estimate


@dataclass(frozen=True, eq=False)
class CreepFilter:
    """A filter of a base that completes its inputs by how feet creep.

    Attributes:
        base: Base, feet and noise.
        filter: The filter of the base.
        motion: How the velocities of the feet in the inputs were found.
    """

    base: LeggedBase
    filter: SaltedKalmanFilter
    motion: FootMotion

    @cached_property
    def written_out(self) -> PointFeetFilter | None:
        """The same filter written out for point feet; None where a foot is a sole."""
        if any(foot.flat for foot in self.base.kinematics.feet.values()):
            return None
        rate_variance = 2.0 * (self.motion.angle_noise / self.motion.window) ** 2
        return PointFeetFilter(self.base, rate_variance, self.filter.measurements[ANGLES].gate)

    def prepare(self) -> None:
        """Make all modes and contact changes before they are met, so that no sample waits."""
        if len(self.base.feet) > MOST_PREPARED_FEET:
            return
        prepare_modes(self.base, self.filter.model.system)
        if self.written_out is not None:
            self.written_out.prepare()

    def start(self, initial: Estimate) -> CreepState:
        """Return the state in which a run from an estimate begins."""
        noise = self.base.noise
        distances = begin_distances(noise) if noise.foot is None else None
        return CreepState(self.filter.start(initial), distances)

    def predict(self, state: CreepState, time: float, input: Input = None) -> CreepState:
        """Return the state at a later time; see `SaltedKalmanFilter.predict`."""
        now, distances = state
        if input is None or time == now.time:
            return state
        e, u, own = now.estimate, np.asarray(input), self.written_out
        if own is None or time < now.time:
            return self._predict_generally(state, time, u)
        if distances is None:
            level, rise = self.base.noise.creep(flat=False) ** 2, 0.0
        else:
            distances = distances.follow(self.base, e, u)
            level, vertical = distances.creep.tolist()
            rise = vertical - level
        found = own.predict(e, time, u, level, rise)
        if distances is not None:
            seen = np.zeros(len(self.base.feet))
            seen[own.mode(e.mode).numbers] = (time - now.time) * found.creep
            distances = distances.add_motion(seen)
        h, transition = now.hypotheses[0], found.transition
        events, notes = h.events, h.notes
        if now.channel is not None:  # what has come before the last value is past
            events = notes = ()
        elif h.transition is not None:
            transition = transition.dot(h.transition)
        after = Hypothesis(
            found.estimate,
            h.log_weight,
            transition=transition,
            events=events,
            notes=notes,
            fired=h.fired,
        )
        return CreepState(_renew(now, time, after, None), distances)

    def _predict_generally(self, state: CreepState, time: float, u: Array) -> CreepState:
        """Return the state at a later time, by the general filter."""
        now, distances = state
        e, u = now.estimate, with_creep(self.base, now.estimate, u, self.motion)
        if distances is not None:
            seen = u[self.base.creep_columns].copy()
            distances = distances.follow(self.base, e, u)
            u = add_creep(self.base, e, u, distances.creep)
            distances = distances.add_motion((time - now.time) * seen)
        # A record and a live filter have checked it: as a held law it is not checked once more.
        return CreepState(self.filter.predict(now, time, HeldInput(u)), distances)

    def update(
        self, state: CreepState, channel: str, value: Array, input: Input = None
    ) -> CreepState:
        """Return the state after a value of a channel; see `SaltedKalmanFilter.update`."""
        now, own, updated = state.filter, self.written_out, None
        if own is not None and channel == ANGLES:
            updated = self._correct(own, now, value)
        elif own is not None and channel in self.filter.signals and input is not None:
            updated = self._signal(own, now, channel, value, np.asarray(input))
        if updated is not None:
            return CreepState(updated, state.distances)
        held = input if input is None else HeldInput(np.asarray(input))
        return state._replace(filter=self.filter.update(now, channel, value, held))

    def _correct(self, own: PointFeetFilter, now: FilterState, value: Array) -> FilterState | None:
        """Return the state after joint angles, None where the general filter has to find it."""
        h = now.hypotheses[0]
        known = value.shape == (len(self.base.kinematics.joints),) and is_finite(value)
        if not known or STICK not in h.estimate.mode:
            return None
        found = own.correct(h.estimate, ANGLES, value)
        if found is None:
            return None
        estimate, innovation = found
        transition, events, notes = h.transition, h.events, h.notes
        if now.channel is not None:  # what has come before the last value is past
            transition, events, notes = own.mode(h.estimate.mode).identity, (), ()
        after = Hypothesis(
            estimate,
            h.log_weight + find_evidence(innovation),
            predicted=h.estimate,
            transition=transition,
            events=events,
            notes=notes,
            innovation=innovation,
            fired=h.fired,
        )
        return _renew(now, now.time, after, ANGLES)

    def _signal(
        self, own: PointFeetFilter, now: FilterState, channel: str, value: Array, u: Array
    ) -> FilterState | None:
        """Return the state after the force of a foot; None where the general filter finds it."""
        signal, h = self.filter.signals[channel], now.hypotheses[0]
        if value.shape != (1,):
            return None
        force = float(value[0])
        guard = signal.closes if force >= signal.on else signal.opens
        if signal.off < force < signal.on or guard is None:
            return None
        changed = own.change_contact(h.estimate, guard, u)
        if changed is None:
            return None
        e, transition, events, notes = h.estimate, h.transition, h.events, h.notes
        if now.channel is not None:  # what has come before the last value is past
            transition, events, notes = own.mode(e.mode).identity, (), ()
        after = Hypothesis(
            changed.estimate,
            h.log_weight,
            predicted=e,
            transition=transition,
            events=(*events, changed.event),
            notes=notes,
            reconciliation=Reconciliation(e.mean, e.covariance, changed.transition),
        )
        return _renew(now, now.time, after, channel)

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Filter a record from an estimate on; see `SaltedKalmanFilter.run`."""
        channels = [*self.filter.measurements, *self.filter.signals]
        shown = lambda state: state.filter  # noqa: E731
        return over_record(
            record, self.start(initial), channels, self.predict, self.update, shown, None
        )


def find_evidence(innovation: Innovation) -> float:
    """Return the log-likelihood of a value, at the limit of the gate where it is beyond that."""
    beyond = 0.0 if innovation.accepted else 0.5 * (innovation.nis - innovation.limit)
    return innovation.log_likelihood + beyond


def _renew(
    state: FilterState, time: float, hypothesis: Hypothesis, channel: str | None
) -> FilterState:
    """Return a state with another hypothesis; `SimulationError` for one that is not finite."""
    return FilterState(
        time, (hypothesis,), state.beginning, channel, False, state.rejections, state.rows
    ).finite()


def add_creep(base: LeggedBase, e: Estimate, u: Array, densities: Array) -> Array:
    """Return an input in which point feet in contact creep as well as their distances say.

    Args:
        base: Base, feet and noise. What feet creep by in `noise` is part of the densities.
        e: Estimate, which says which feet stand.
        u: Input (nu,), with what their velocities say.
        densities: Densities (2,) of creep along level ground and along the vertical, m^2/s.
    """
    layout = base.layout(e.mode)
    numbers = layout.numbers[layout.points]
    if not len(numbers):
        return u
    level, vertical = densities.tolist()
    result: Array = u.copy()
    result[base.creep_columns][numbers] += level - base.noise.creep(flat=False) ** 2
    result[RISE] = vertical - level
    return result
