r"""The filter of a base on point feet, written out, for one hypothesis and given contacts.

Touchdowns and lift-offs come from outside. It computes what `SaltedKalmanFilter` computes for such
a system, and nothing else: a prediction is one step in closed form, a row of joint angles is
compared with the feet in contact, and a touchdown or a lift-off changes the number of states. Tests
compare both to 1e-9. With the whitened gain :math:`W = L^{-1} H P`, :math:`S = L L^T`, the
correction is

.. math:: P^+ = J (P - W^T W) J^T, \quad \hat x^+ = \hat x \boxplus W^T L^{-1} r,

with J the derivative of the step in the tangent space at its end.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dtrtri

from hybridctl.base.checks import Array, Indices
from hybridctl.estimation.estimate import Estimate, nearest_semidefinite
from hybridctl.estimation.kalman_equations import Innovation, find_gate_limit
from hybridctl.hybrid.event import Event
from hybridctl.hybrid.mode import ModeKey
from hybridctl.legged.compiled_formulas import PointFeetFormulas, build_formulas
from hybridctl.legged.ground_rise import GroundRise
from hybridctl.legged.place_noise import find_least_place_noise, follow_place_noise
from hybridctl.legged.rotation import matrix as rotation_matrix
from hybridctl.legged.rotation import skew
from hybridctl.legged.space import BASE_TANGENT, BIASES, POSITION, SENSED, propagate_core
from hybridctl.legged.system import (
    GAP,
    OPEN,
    STICK,
    LeggedBase,
    Lift,
    Touch,
    find_edge,
    find_kept_places,
    lifts,
    touches,
)

_LOG_TURN = math.log(2.0 * math.pi)
_CORE = slice(0, BASE_TANGENT)
_NOTHING = np.zeros(0)  # impulses of events that have none


class PointFeetMode(NamedTuple):
    """A mode with k point feet in contact, and what stays the same in it.

    Attributes:
        formulas: Its compiled formulas.
        constants: Last argument (8 + k,) of the prediction.
        feet: Numbers (k,) of the feet in contact among all feet.
        numbers: The same for indexing; a slice where all feet are in contact.
        no_parts: Zeros (k,): the parts of a rise by which feet come up that have risen.
        no_rise: Zeros (n,): the covariance of the deviation with the rise of feet that do not rise.
        motion: Entries (6 k,) of the input that are velocities and angular velocities of the feet.
        identity: Identity (n, n), with n = 15 + 3 k.
        feet_rows: Entries (3 k, 9) of a flat (n, n) matrix in the rows of the feet: in the columns
            of the turn, of the gyroscope's bias, and of the foot itself.
        feet_blocks: Entries (k, 3, 3) of the feet's own blocks.
        turning_blocks: Entries (3 + k, 3, 3) of the blocks that turn with the base.
        by_turn_blocks: Entries (2 + k, 3, 3) of blocks below that of the turn.
        jacobian: Derivative (3 k, n) of the feet that are seen, but for that by the turn.
        lever_blocks: Entries (3 k, 3 k) of the feet in `FeetKinematics.products`, flat.
        limit: Largest normalized innovation squared that the gate accepts; infinite without one.
    """

    formulas: PointFeetFormulas
    constants: Array
    feet: list[int]
    numbers: Indices | slice
    no_parts: list[float]
    no_rise: Array
    motion: Indices
    identity: Array
    feet_rows: NDArray[np.intp]
    feet_blocks: NDArray[np.intp]
    turning_blocks: NDArray[np.intp]
    by_turn_blocks: NDArray[np.intp]
    jacobian: Array
    lever_blocks: NDArray[np.intp]
    limit: float


class PredictedBase(NamedTuple):
    """An estimate at a later time.

    Attributes:
        estimate: The estimate.
        transition: Derivative (n, n) of its mean by the one before.
        creep: Density (k,) of creep by the velocities of the feet in contact, m^2/s.
        rise: What is known of the rise of feet; None where they do not rise.
    """

    estimate: Estimate
    transition: Array
    creep: Array
    rise: GroundRise | None


class CorrectedBase(NamedTuple):
    """An estimate after a row of joint angles.

    Attributes:
        estimate: The estimate.
        innovation: The innovation; one that the gate rejects leaves all others as they were.
        rise: What is known of the rise of feet; None where they do not rise.
        place_variance: Variance of the positions of feet besides that of the angles, m^2.
    """

    estimate: Estimate
    innovation: Innovation
    rise: GroundRise | None
    place_variance: float


class ContactChange(NamedTuple):
    """A touchdown or lift-off of one foot in a mode, and what stays the same in it.

    Attributes:
        guard: Name of the guard, see `system.touches` and `system.lifts`.
        after: Key of the mode after it.
        matrix: Derivative (n+, n) of the state after it, but for a foot that touches, of which
            `rows` by the turn of the base are zero here.
        coordinates: Those of the state before that are kept (nx,), among those of the state with
            more feet.
        foot: Number of the foot that touches among all feet; None for a lift-off.
        x: Coordinates (3,) of that foot in the state after it.
        rows: Its rows (3,) of the deviation after it.
    """

    guard: str
    after: ModeKey
    matrix: Array
    coordinates: Indices
    foot: int | None
    x: slice
    rows: slice


class ChangedContact(NamedTuple):
    """An estimate after a touchdown or lift-off.

    Attributes:
        estimate: The estimate.
        event: The event.
        transition: Derivative (n+, n) of its mean by the one before.
    """

    estimate: Estimate
    event: Event
    transition: Array


class PointFeetFilter:
    """Predicts and corrects the estimate of a base on point feet.

    Life cycle: `prepare` may be called with all modes before they are met. Each method is a
    function of its arguments; modes are kept once they are made.

    Args:
        base: Base, feet and noise. No foot is flat.
        rate_variance: Variance of the rate of a joint angle over the time in which velocities of
            feet are found, rad^2/s^2.
        gate: Probability with which right angles are accepted; None accepts all.
    """

    def __init__(self, base: LeggedBase, rate_variance: float, gate: float | None) -> None:
        self._base, self._rate_variance, self._gate = base, rate_variance, gate
        self._modes = dict[ModeKey, PointFeetMode]()
        self._changes = dict[tuple[ModeKey, str], ContactChange | None]()
        self._encoder_variance = base.noise.encoder**2
        self._variances = base.noise.core(0.0)
        self._least_place_variance = find_least_place_noise(base.noise)
        self._rows = base.noise.measured_rows

    def mode(self, key: ModeKey) -> PointFeetMode:
        """Return what stays the same in a mode."""
        try:
            return self._modes[key]
        except KeyError:
            return self._modes.setdefault(key, self._make_mode(key))

    def predict(
        self,
        e: Estimate,
        time: float,
        u: Array,
        level: float,
        steeper: float,
        rise: GroundRise | None,
    ) -> PredictedBase:
        """Return the estimate at a later time in the same mode.

        Args:
            e: Estimate before.
            time: The later time, s, at least that of the estimate.
            u: Input (nu,) in between.
            level: Density of creep of all feet in contact in each direction, m^2/s.
            steeper: By how much the density is larger along the vertical, m^2/s.
            rise: What is known of the rise of feet; None where they do not rise.
        """
        own, x, p, h = self.mode(e.mode), e.mean, e.covariance, time - e.time
        base, sensed, flat, gap = self._base, u[SENSED], p.reshape(-1), float(u[GAP])
        variances = base.noise.core(gap) if gap else self._variances
        core, gathered = propagate_core(sensed - x[BIASES], variances, h)
        assert gathered is not None
        feet = base.kinematics.find_feet(u[base.angle_columns])
        parts, expected, variance, by_rise = None, 0.0, 0.0, own.no_rise
        if rise is not None:
            parts = rise.find_parts(own.feet, e.time, time, base.noise)
            expected, variance, by_rise = rise.mean, rise.variance, rise.covariance
        x, rows, noise, creep, by_rise, added = own.formulas.predict(
            x,
            core.reshape(-1),
            flat[: 12 * len(p)],
            sensed,
            feet.positions[own.numbers].reshape(-1),
            u[own.motion],
            feet.levers[own.numbers],
            (h, level, steeper, expected, variance),
            parts or own.no_parts,
            by_rise,
            own.constants,
        )
        phi: Array = own.identity.copy()
        phi[_CORE, _CORE] = core
        phi.reshape(-1)[own.feet_rows] = rows
        p = phi.dot(p).dot(phi.T)
        p[_CORE, _CORE] += gathered
        p.reshape(-1)[own.feet_blocks] += noise
        if rise is not None:
            rise = rise.predict(by_rise.copy(), h)
            if parts is not None:
                p[:, BASE_TANGENT:] += added
        after = Estimate(e.mode, time, x.copy(), _symmetrize(p), e.since)
        return PredictedBase(after, phi, creep.copy(), rise)

    def correct(
        self, e: Estimate, channel: str, z: Array, rise: GroundRise | None, place_variance: float
    ) -> CorrectedBase | None:
        """Return the estimate after a row of joint angles, and what the innovation says.

        Args:
            e: Estimate before.
            channel: Name of the channel, for the innovation.
            z: Joint angles (m,), rad; finite.
            rise: What is known of the rise of feet; None where they do not rise.
            place_variance: Variance of the positions of feet besides that of the angles, m^2.

        Returns:
            What is known after it. None if the covariance of the innovation is not positive
            definite.
        """
        own, x, p = self.mode(e.mode), e.mean, e.covariance
        feet = self._base.kinematics.find_feet(z)
        r, by_turn = own.formulas.compare(x, feet.positions[own.numbers].reshape(-1))
        r = r.copy()
        h: Array = own.jacobian.copy()
        h[:, :3] = by_turn
        cross = p.dot(h.T)  # covariance (n, 3 k) of state and residual
        s = self._encoder_variance * feet.products.reshape(-1)[own.lever_blocks]
        s.reshape(-1)[:: len(s) + 1] += place_variance
        s += h.dot(cross)
        factor, failed = dpotrf(s, lower=1)
        if failed:
            return None
        # One small inverse serves four products; each solution apart takes twice as long.
        inverse = dtrtri(factor, lower=1)[0]
        # W and L^-1 r of the module's equations.
        white, score = inverse.dot(cross.T), inverse.dot(r)
        nis = float(score.dot(score))
        # log det(2 pi S), with S = L L^T
        log_volume = 2.0 * sum(map(math.log, factor.diagonal().tolist())) + len(r) * _LOG_TURN
        likelihood = -0.5 * (nis + log_volume)
        innovation = Innovation(
            e.time, channel, e.mode, r, s, nis, likelihood, own.limit, nis <= own.limit
        )
        if not innovation.accepted:
            return CorrectedBase(e, innovation, rise, place_variance)
        correction = score.dot(white)
        if rise is not None:
            by_rise = inverse.dot(h.dot(rise.covariance))
            rise, back = rise.correct(white, by_rise, score)
            if back is not None:
                correction += back
        x, along, by_turn = own.formulas.retract(x, correction)
        jacobian: Array = own.identity.copy()
        entries = jacobian.reshape(-1)
        entries[own.turning_blocks] = along
        entries[own.by_turn_blocks] = by_turn
        p = _symmetrize(jacobian.dot(p - white.T.dot(white)).dot(jacobian.T))
        if dpotrf(p)[1]:
            p = nearest_semidefinite(p)
        if rise is not None:
            rise = rise.change(jacobian)
        if self._least_place_variance is not None:
            place_variance = follow_place_noise(
                place_variance, self._least_place_variance, self._rows, inverse, score
            )
        after = Estimate(e.mode, e.time, x.copy(), p, e.since)
        return CorrectedBase(after, innovation, rise, place_variance)

    def change_contact(
        self, e: Estimate, guard: str, u: Array, place_variance: float
    ) -> ChangedContact | None:
        """Return the estimate after a foot has touched down or lifted off.

        Args:
            e: Estimate before.
            guard: Name of the guard, see `system.touches` and `system.lifts`.
            u: Input (nu,), whose angles say where a foot is that touches.
            place_variance: Variance of its position besides that of the angles, m^2.

        Returns:
            The estimate, event and derivative; None where the mode has no such guard.
        """
        change = self.find_contact_change(e.mode, guard)
        if change is None:
            return None
        x, p, matrix, foot = e.mean, e.covariance, change.matrix, change.foot
        if foot is None:
            x = x[change.coordinates]
            p = matrix.dot(p).dot(matrix.T)
        else:
            feet = self._base.kinematics.find_feet(u[self._base.angle_columns])
            place, own = feet.positions[foot], slice(3 * foot, 3 * foot + 3)
            x = np.empty(len(x) + 3)
            x[change.coordinates] = e.mean
            x[change.x] = e.mean[4:7] + rotation_matrix(e.mean[:4]).dot(place)
            matrix = matrix.copy()
            matrix[change.rows, :3] = -skew(place)
            p = matrix.dot(p).dot(matrix.T)
            noise = self._encoder_variance * feet.products[own, own]
            noise.reshape(-1)[::4] += place_variance
            p[change.rows, change.rows] += noise
        event = Event(
            0, e.time, e.mode, change.after, (guard,), e.mean, x, u, u, np.zeros(len(u)), _NOTHING
        )
        return ChangedContact(Estimate(change.after, e.time, x, p, e.time), event, matrix)

    def find_contact_change(self, key: ModeKey, guard: str) -> ContactChange | None:
        """Return what stays the same in an event of a mode; None where the guard leads nowhere."""
        try:
            return self._changes[key, guard]
        except KeyError:
            return self._changes.setdefault((key, guard), self._make_change(key, guard))

    def prepare(self) -> None:
        """Make all modes and their events before they are met."""
        guards = [name(foot) for foot in self._base.feet for name in (touches, lifts)]
        for key in product((OPEN, STICK), repeat=len(self._base.feet)):
            self.mode(key)
            for guard in guards:
                self.find_contact_change(key, guard)

    def _make_change(self, key: ModeKey, guard: str) -> ContactChange | None:
        """Return what stays the same in an event of a mode; None where the guard leads nowhere.

        A lift-off drops the foot's rows of the deviation. A touchdown adds them: the foot's error
        is that of the base's position, and, by the pose, that of the turn, which
        `change_contact` fills in.
        """
        base, edge = self._base, find_edge(self._base, key, (guard,))
        if edge is None:
            return None
        reset = edge.reset
        assert isinstance(reset, Lift | Touch)
        touch, after = isinstance(reset, Touch), reset.after
        more, fewer = (after, key) if touch else (key, after)
        coordinates, rows = find_kept_places(base, more, fewer)
        kept = np.eye(base.space(more).ndx)[rows]
        (place,) = [p for p in base.places(more) if p.foot not in base.standing(fewer)]
        if touch:
            kept = kept.T.copy()
            kept[place.dx, POSITION] = np.eye(3)
        kept.flags.writeable = False  # of a lift-off, all events have it
        number = place.number if touch else None
        return ContactChange(guard, after, kept, np.array(coordinates), number, place.x, place.dx)

    def _make_mode(self, key: ModeKey) -> PointFeetMode:
        """Return what stays the same in a mode.

        Blocks are places in a flat (n, n) matrix: the entries of rows b and columns c are
        n b + c.
        """
        base = self._base
        layout, noise = base.layout(key), base.noise
        k, n = len(layout.places), layout.mode.space.ndx
        radii = [base.kinematics.radii[place.foot] for place in layout.places]
        slips = noise.slip_margin, noise.slip_speed**2, noise.slip_fast**2, noise.slip_time
        constants = [*slips, self._rate_variance, *base.gravity, *radii]
        columns = (base.moving_columns, base.turning_columns)
        motion = [np.r_[of(place.number)] for of in columns for place in layout.places]
        feet = [place.dx.start for place in layout.places]
        blocks = [np.r_[first : first + 3] for first in (0, 3, 6, *feet)]
        own_blocks = [np.add.outer(n * b, b) for b in blocks[3:]]
        places = np.array([3 * p.number + i for p in layout.places for i in range(3)], np.intp)
        feet_rows = [np.add.outer(n * np.r_[f : f + 3], np.r_[0:3, 9:12, f : f + 3]) for f in feet]
        return PointFeetMode(
            formulas=build_formulas(k),
            constants=np.array(constants),
            feet=layout.numbers.tolist(),
            numbers=slice(None) if k == len(base.feet) else layout.numbers,
            no_parts=[0.0] * k,
            no_rise=np.zeros(n),
            motion=np.array(motion, dtype=np.intp).reshape(-1),
            identity=_make_identity(n),
            feet_rows=np.array(feet_rows, dtype=np.intp).reshape(-1, 9),
            feet_blocks=np.array(own_blocks, np.intp).reshape(-1, 3, 3),
            turning_blocks=np.array([np.add.outer(n * b, b) for b in blocks]),
            by_turn_blocks=np.array([np.add.outer(n * b, blocks[0]) for b in blocks[1:]]),
            jacobian=layout.angles_jacobian,
            lever_blocks=np.add.outer(3 * len(base.feet) * places, places),
            limit=math.inf if self._gate is None else find_gate_limit(self._gate, 3 * k),
        )


def _make_identity(n: int) -> Array:
    """Return the identity (n, n), read-only because all states of a mode have it."""
    matrix = np.eye(n)
    matrix.flags.writeable = False
    return matrix


def _symmetrize(p: Array) -> Array:
    """Return the symmetric part of a matrix (n, n)."""
    result: Array = p + p.T
    result *= 0.5
    return result
