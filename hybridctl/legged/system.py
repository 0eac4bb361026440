r"""The hybrid system of a base and its feet: a mode for each set of feet in contact.

Modes are tuples with "stick" or "open" for each foot. Touchdown starts the state of a foot where
the joint angles of that moment put it, :math:`d = p + R s, R_f = R C`, so that its deviation is
that of the base there and the noise of the angles; lift-off drops it. Only the evidence of a
contact fires these events (`ContactSignal`): no state reaches them, so modes have no guards.

The input is (rate, specific force, gap, rise, angles, turning, moving, creep): of the inertial
sensor, in rad/s and m/s^2; s without a sample before its next change; by how much more point feet
creep along the vertical, in m^2/s; the angles of `LegKinematics` in rad;
and for each foot the angular velocity (3,) of its link and the velocity (3,) of its position, both
against the inertial frame and in its axes, in rad/s and m/s, and how much it creeps beyond the
noise of `BaseNoise`, in m^2/s in each direction (see `creep`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product as combinations
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, Indices, check_instance
from hybridctl.base.errors import UnknownNameError
from hybridctl.base.settings import NotNegative, Positive, Settings
from hybridctl.hybrid.mode import Edge, ModeKey, Outgoing
from hybridctl.hybrid.model import Jump, JumpPoint, ResetJacobian, ResetModel
from hybridctl.hybrid.system import HybridSystem
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.rotation import matrix, product, quaternion, skew
from hybridctl.legged.space import (
    ANGLE,
    BASE_TANGENT,
    POSITION,
    BaseSpace,
    RollingFoot,
    Strapdown,
)

SOLE_CREEP = 4e-3
"""Creep of soles in contact, m/s/sqrt(Hz): those of a recorded humanoid rock and slip so much."""
POINT_CREEP = 1e-3
"""Creep of point feet in contact until they have walked, m/s/sqrt(Hz): of simulated trots on hard
ground. From then on `foot_distances` measures it."""


@dataclass(frozen=True)
class BaseNoise(Settings):
    """Noise of sensors and feet: standard deviations, and densities per square root of Hz.

    Those of gyroscope, accelerometer and encoder are raised to what a log shows at its start, see
    the module `sensor_noise`. The five of slipping are explained in the module `creep`, those of
    distances in `foot_distances`, those of rising in `ground_rise`.

    Attributes:
        gyroscope: White noise of the rate, rad/s/sqrt(Hz).
        accelerometer: White noise of the specific force, m/s^2/sqrt(Hz).
        gyroscope_walk: Random walk of the gyroscope's bias, rad/s^2/sqrt(Hz).
        accelerometer_walk: Random walk of the accelerometer's bias, m/s^3/sqrt(Hz).
        foot: Creep of feet in contact, m/s/sqrt(Hz). None for `SOLE_CREEP` of soles, and for point
            feet what their distances say.
        foot_alike: How many times feet creep more than their distances change, by what they do
            alike.
        foot_memory: Number of pairs of steps after which a pair counts 1 / e.
        foot_rise: How far point feet may rise after a touch on ground that gives way, as a
            deviation, m; 0 where they do not. None rise where `foot` is given.
        foot_rise_time: Time constant of that rise, s: with `BaseSettings.settle` before it, that of
            simulated ground which gives way for 10 to 20 ms.
        foot_turn: Turning creep of soles in contact, rad/s/sqrt(Hz).
        slip_time: Time in s for which a foot in contact keeps a velocity with which it slips,
            sinks or lifts; 0 to let all feet creep alike.
        slip_speed: Fastest slip that is believed, m/s.
        slip_fast: Speed in m/s from which on a foot does not stand yet, or is about to leave.
        slip_resolution: Noise in m/s that the velocity of a foot may have by its angles; it sets
            the time over which the velocity is a mean.
        slip_margin: By how many times its variance a squared velocity has to exceed zero.
        encoder: Noise of each joint angle in each sample, rad.
        measured: Noise of the position of a foot besides, such as of links that bend, m. That of
            point feet is so at the start and then follows innovations, if `delay` is known and
            `foot` is not given; see `place_noise`.
        measured_rows: Number of rows of angles over which it follows.
        delay: By how much the stamps of inertial sensor and joints may be apart, as a deviation, s.
            None for what is found in a log (see `time_offset`); live it is then not known.
        measured_turn: Noise of the turn of a sole besides, rad.
        ground: Deviation of the height of the ground under a foot, m.
        held_rate: By how much rates change while samples are missing, rad/s. The change is taken
            to be white, as wide as the gap.
        held_force: By how much specific forces change while samples are missing, m/s^2.
    """

    gyroscope: NotNegative = 1e-3
    accelerometer: NotNegative = 2e-2
    gyroscope_walk: NotNegative = 1e-4
    accelerometer_walk: NotNegative = 1e-3
    foot: NotNegative | None = None
    foot_alike: Positive = 3.0
    foot_memory: Positive = 33.0
    foot_rise: NotNegative = 1e-3
    foot_rise_time: Positive = 0.03
    foot_turn: NotNegative = 0.15
    slip_time: NotNegative = 0.02
    slip_speed: Positive = 1.0
    slip_fast: Positive = 0.1
    slip_resolution: Positive = 0.02
    slip_margin: NotNegative = 6.0
    encoder: Positive = 1e-3
    measured: Positive = 1e-3
    measured_rows: Positive = 250.0
    delay: NotNegative | None = None
    measured_turn: Positive = 5e-3
    ground: Positive = 1e-2
    held_rate: NotNegative = 0.3
    held_force: NotNegative = 1.0

    def creep(self, flat: bool) -> float:
        """Return how a foot in contact creeps, m/s/sqrt(Hz).

        Args:
            flat: Whether it is a sole.
        """
        if self.foot is not None:
            return self.foot
        return SOLE_CREEP if flat else POINT_CREEP

    def core(self, gap: float) -> Array:
        """Return variances (15,) per s of base and biases in a gap of samples in s; 0 for none."""
        return np.repeat(
            [
                self.gyroscope**2 + self.held_rate**2 * gap,
                0.0,
                self.accelerometer**2 + self.held_force**2 * gap,
                self.gyroscope_walk**2,
                self.accelerometer_walk**2,
            ],
            3,
        )


OPEN, STICK = "open", "stick"
GAP, RISE, OTHERS = 6, 7, 8  # of the input: which, and how many there are before the angles
MOST_PREPARED_FEET = 6
"""Feet up to which all modes are made before they are met: 64; each foot more doubles them."""
_OF_FOOT = 7  # entries of the input for each foot: turning, moving, creep


class FootPlace(NamedTuple):
    """The place of a foot in contact in state and deviation.

    Attributes:
        foot: Frame of the foot.
        number: Its number among all feet, in contact or not.
        x: Slice of its position in the state.
        dx: Slice of its position in the deviation.
        turn_x: Slice of the quaternion of a flat foot in the state; None for a point foot.
        turn_dx: Slice of the rotation of a flat foot in the deviation; None for a point foot.
    """

    foot: str
    number: int
    x: slice
    dx: slice
    turn_x: slice | None
    turn_dx: slice | None


class Layout(NamedTuple):
    """A mode with k feet in contact, and what stays the same in it.

    Attributes:
        mode: The mode.
        places: Its feet in contact.
        variances: Density (ndx,) of the noise, in the square of the unit per s.
        numbers: Numbers (k,) of the feet in contact among all feet.
        points: Those places (p,) that are points, which may creep.
        poses: Rows (m,) of poses that joint angles give, among six for each of all feet: position,
            and turn of flat feet. Places follow one another.
        seen: Those rows (3 k,) of these m that are positions; a slice where all are.
        turned: Flat feet in contact, each with those rows of these m that are its turn.
        angles_jacobian: Derivative (m, ndx) of these poses, but for what depends on the state.
        angles_noise: Variances (m,) of these poses besides those of the angles.
    """

    mode: Strapdown
    places: tuple[FootPlace, ...]
    variances: Array
    numbers: Indices
    points: Indices
    poses: Indices
    seen: Indices | slice
    turned: tuple[tuple[FootPlace, slice], ...]
    angles_jacobian: Array
    angles_noise: Array


@dataclass(frozen=True, eq=False)
class LeggedBase:
    """What base, feet and sensors are: the kinematics, gravity (3,) in m/s^2, noise."""

    kinematics: LegKinematics
    gravity: Array
    noise: BaseNoise
    _layouts: dict[ModeKey, Layout] = field(default_factory=dict, init=False, repr=False)
    _edges: dict[tuple[ModeKey, tuple[str, ...]], Edge | None] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def feet(self) -> tuple[str, ...]:
        """The frames of the feet."""
        return tuple(self.kinematics.feet)

    @cached_property
    def nu(self) -> int:
        """The number of inputs."""
        return OTHERS + len(self.kinematics.joints) + _OF_FOOT * len(self.feet)

    @cached_property
    def angle_columns(self) -> slice:
        """The entries of an input that are joint angles."""
        return slice(OTHERS, OTHERS + len(self.kinematics.joints))

    def angles(self, u: Array) -> Array:
        """Return the joint angles in an input, rad."""
        return u[self.angle_columns]

    def turning_columns(self, foot: int) -> slice:
        """Return the entries of an input that are the angular velocity of a foot, by its number."""
        first = self.angle_columns.stop + 3 * foot
        return slice(first, first + 3)

    def moving_columns(self, foot: int) -> slice:
        """Return the entries of an input that are the velocity of a foot, by its number."""
        first = self.angle_columns.stop + 3 * (len(self.feet) + foot)
        return slice(first, first + 3)

    @cached_property
    def all_turning_columns(self) -> slice:
        """The entries of an input that are the angular velocities of all feet, three for each."""
        return slice(self.angle_columns.stop, self.moving_columns(0).start)

    @cached_property
    def all_moving_columns(self) -> slice:
        """The entries of an input that are the velocities of all feet, three for each."""
        return slice(self.moving_columns(0).start, self.creep_columns.start)

    @cached_property
    def creep_columns(self) -> slice:
        """The entries of an input that say how much feet creep."""
        return slice(self.nu - len(self.feet), self.nu)

    def mode(self, key: ModeKey) -> Strapdown:
        """Return the mode of a key; see `layout` for what is raised."""
        return self.layout(key).mode

    def space(self, key: ModeKey) -> BaseSpace:
        """Return the states of a mode; see `layout` for what is raised."""
        return self.layout(key).mode.space

    def places(self, key: ModeKey) -> tuple[FootPlace, ...]:
        """Return the feet in contact in a mode; see `layout` for what is raised."""
        return self.layout(key).places

    def standing(self, key: ModeKey) -> tuple[str, ...]:
        """Return the names of the feet in contact in a mode."""
        return tuple(place.foot for place in self.places(key))

    def layout(self, key: ModeKey) -> Layout:
        """Return how states of a mode are laid out.

        Raises:
            UnknownNameError: There is no such mode.
        """
        try:
            return self._layouts[key]
        except (KeyError, TypeError):
            return self._layouts.setdefault(key, self._make_layout(key))

    def _make_layout(self, key: ModeKey) -> Layout:
        """Return the layout of a mode that was not met before.

        Args:
            key: Key of the mode.

        Raises:
            UnknownNameError: There is no such mode.
        """
        names = self.feet
        known = isinstance(key, tuple) and len(key) == len(names) and set(key) <= {OPEN, STICK}
        if not known:
            raise UnknownNameError(
                f"mode {key!r} is unknown: expected {OPEN!r} or {STICK!r} for each of {names}"
            )
        assert isinstance(key, tuple)
        feet = [(k, name) for k, name in enumerate(names) if key[k] == STICK]
        flat = [self.kinematics.feet[name].flat for _, name in feet]
        space = BaseSpace(len(feet), sum(flat))
        turns = iter(space.turns)
        places = tuple(
            FootPlace(name, index, *space.foot(k), *(next(turns) if flat[k] else (None, None)))
            for k, (index, name) in enumerate(feet)
        )
        variances = np.empty(space.ndx)
        variances[:BASE_TANGENT] = self.noise.core(0.0)
        for place in places:
            variances[place.dx] = self.noise.creep(place.turn_dx is not None) ** 2
            if place.turn_dx is not None:
                variances[place.turn_dx] = self.noise.foot_turn**2
        radii = self.kinematics.radii
        rolling = [
            RollingFoot(k, self.turning_columns(place.number), radii[place.foot])
            for k, place in enumerate(places)
            if radii[place.foot]
        ]
        mode = Strapdown(key, space, self.gravity, self.nu, rolling)
        return self._complete_layout(mode, places, variances)

    def _complete_layout(
        self, mode: Strapdown, places: tuple[FootPlace, ...], variances: Array
    ) -> Layout:
        """Return the layout of a mode, with what its measurement needs of it.

        Args:
            mode: Flow of the base with its feet.
            places: Feet in contact in state and deviation.
            variances: Variances (ndx,) per s of the deviations without creep that is seen.

        Returns:
            The layout; rows of poses are numbered by six for each foot, in contact or not.
        """
        rows = [6 * p.number + i for p in places for i in range(3 if p.turn_x is None else 6)]
        poses = np.array(rows, dtype=np.intp)
        seen = np.flatnonzero(poses % 6 < 3)
        jacobian, turned = np.zeros((len(poses), mode.space.ndx)), list[tuple[FootPlace, slice]]()
        for place, first in zip(places, seen[::3].tolist(), strict=True):
            own, turn = slice(first, first + 3), slice(first + 3, first + 6)
            jacobian[own, POSITION] = -np.eye(3)
            jacobian[own, place.dx] = np.eye(3)
            if place.turn_dx is not None:
                jacobian[turn, ANGLE] = -np.eye(3)
                turned.append((place, turn))
        points = [k for k, place in enumerate(places) if place.turn_x is None]
        return Layout(
            mode,
            places,
            variances,
            np.array([place.number for place in places], dtype=np.intp),
            np.array(points, dtype=np.intp),
            poses,
            seen if turned else slice(None),
            tuple(turned),
            jacobian,
            self.pose_variances[poses % 6],
        )

    def density(self, key: ModeKey, t: float, x: Array, u: Array) -> Array:
        """Return the density (ndx, ndx) of the noise, in the square of the unit per s.

        Args:
            key: Key of the mode.
            t: Time in s, on which nothing depends.
            x: State (nx,), whose orientation says where the vertical is.
            u: Input (nu,), with the gap and the creep of the feet.
        """
        layout, gap = self.layout(key), float(u[GAP])
        variances = layout.variances.copy()
        if gap:
            variances[:BASE_TANGENT] = self.noise.core(gap)
        feet = variances[layout.mode.space.feet[1]].reshape(-1, 3)
        feet += u[self.creep_columns][layout.numbers, None]
        ndx = len(variances)
        density = np.zeros((ndx, ndx))
        density.reshape(-1)[:: ndx + 1] = variances
        if u[RISE]:
            up = matrix(x[:4])[2]  # the vertical of the world, in axes of the inertial frame
            rise = u[RISE] * np.outer(up, up)
            for place in layout.places:
                if place.turn_dx is None:
                    density[place.dx, place.dx] += rise
        return density

    def pose_noise(self, twists: Array, variances: Array) -> Array:
        """Return the covariance of poses of feet by the noise of angles, and their own.

        Args:
            twists: Derivatives (m, n) of the poses by the angles, in the axes of the inertial
                frame.
            variances: Variances (m,) of the poses besides.
        """
        by = self.noise.encoder * twists
        noise: Array = by.dot(by.T)
        noise.reshape(-1)[:: len(noise) + 1] += variances
        return noise

    @cached_property
    def pose_variances(self) -> Array:
        """Variances (6,) of a pose besides those of the angles: position in m^2, turn in rad^2."""
        return np.repeat([self.noise.measured, self.noise.measured_turn], 3) ** 2


def base_system(base: LeggedBase) -> HybridSystem:
    """Return the hybrid system of a base with feet; see this module."""
    check_instance("base", base, LeggedBase)
    names = [touches(foot) for foot in base.feet] + [lifts(foot) for foot in base.feet]
    return HybridSystem(base.mode, partial(_outgoing, base), names)


def prepare_modes(base: LeggedBase, system: HybridSystem) -> None:
    """Make all modes and edges of a base before they are met, so that no sample waits for them.

    Args:
        base: Base and feet.
        system: Its `base_system`, which keeps what is made.
    """
    names = [name(foot) for foot in base.feet for name in (touches, lifts)]
    for key in combinations((OPEN, STICK), repeat=len(base.feet)):
        system.mode(key)
        for name in names:
            edge = system.outgoing(key).edge((name,))
            # A foot that stands cannot touch, and one that does not cannot lift.
            if edge is not None:
                assert isinstance(edge.reset, Lift | Touch)
                edge.reset.prepare()


def touches(foot: str) -> str:
    """Return the name of the guard by which a foot comes into contact."""
    return f"{foot} touches"


def lifts(foot: str) -> str:
    """Return the name of the guard by which a foot leaves the ground."""
    return f"{foot} lifts"


def _outgoing(base: LeggedBase, key: ModeKey) -> Outgoing:
    """Return the ways out of a mode, one for each foot."""
    return Outgoing(base.mode(key).guard_set, partial(find_edge, base, key))


def find_edge(base: LeggedBase, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
    """Return the edge of a mode behind a guard.

    Edges are kept: what their resets know of the two modes is found once.

    Args:
        base: The feet.
        key: Mode before the event.
        fired: Names of the guards that fire.

    Returns:
        The edge; None where the guards lead nowhere, such as the touch of a foot that stands, or
        several guards at once.
    """
    try:
        return base._edges[key, fired]
    except KeyError:
        return base._edges.setdefault((key, fired), _make_edge(base, key, fired))


def _make_edge(base: LeggedBase, key: ModeKey, fired: tuple[str, ...]) -> Edge | None:
    assert isinstance(key, tuple)
    standing = base.standing(key)
    for index, foot in enumerate(base.feet):
        if foot in standing and fired == (lifts(foot),):
            after = (*key[:index], OPEN, *key[index + 1 :])
            return Edge(Lift(base, key, after), after)
        if foot not in standing and fired == (touches(foot),):
            after = (*key[:index], STICK, *key[index + 1 :])
            return Edge(Touch(base, key, after, foot), after)
    return None


@dataclass(frozen=True, eq=False)
class Lift(ResetModel):
    """The reset that drops a foot: the state of all others."""

    base: LeggedBase
    before: ModeKey
    after: ModeKey

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the state without the foot.

        Args:
            t: Time in s, on which nothing depends.
            x: State (nx,) before.
            u: Input (nu,), on which nothing depends.
        """
        return Jump(x[self._kept_places[0]])

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the rows of the identity that are left."""
        return self._jacobian

    def prepare(self) -> None:
        """Find what stays the same before the first event."""
        _ = self._jacobian

    @cached_property
    def _kept_places(self) -> tuple[list[int], list[int]]:
        return find_kept_places(self.base, self.before, self.after)

    @cached_property
    def _jacobian(self) -> ResetJacobian:
        state = np.eye(self.base.space(self.before).ndx)[self._kept_places[1]]
        state.flags.writeable = False  # all events of this edge have it
        return _timeless(state, np.zeros((len(state), self.base.nu)))


@dataclass(frozen=True, eq=False)
class Touch(ResetModel):
    """The reset that starts the state of a foot."""

    base: LeggedBase
    before: ModeKey
    after: ModeKey
    foot: str

    def calc(self, t: float, x: Array, u: Array) -> Jump:
        """Return the state with the foot where the angles put it.

        Args:
            t: Time in s, on which nothing depends.
            x: State (nx,) before.
            u: Input (nu,), with the joint angles.
        """
        (seen,) = self.base.kinematics(self.base.angles(u), [self.foot])
        result = np.empty(self.base.space(self.after).nx)
        result[self._kept_places[0]] = x
        place = self._place
        result[place.x] = x[4:7] + matrix(x[:4]) @ seen.position
        if place.turn_x is not None:
            result[place.turn_x] = product(x[:4], quaternion(seen.rotation))
        return Jump(result)

    def calc_diff(self, at: JumpPoint) -> ResetJacobian:
        """Return the derivatives: delta = rho - s x theta + ds, phi = C^T (theta + dw)."""
        base = self.base
        (seen,) = base.kinematics(base.angles(at.u), [self.foot])
        before, after = base.space(self.before), base.space(self.after)
        state, by_input = np.zeros((after.ndx, before.ndx)), np.zeros((after.ndx, base.nu))
        state[self._kept_places[1]] = np.eye(before.ndx)
        delta, phi = self._place.dx, self._place.turn_dx
        angles = base.angle_columns
        state[delta, ANGLE], state[delta, POSITION] = -skew(seen.position), np.eye(3)
        by_input[delta, angles] = seen.moving
        if phi is not None:
            state[phi, ANGLE] = seen.rotation.T
            by_input[phi, angles] = seen.rotation.T @ seen.turning
        return _timeless(state, by_input)

    def noise(self, u: Array) -> Array:
        """Return the covariance (ndx+, ndx+) that the angles in `u` (nu,) add to the deviation."""
        base = self.base
        (seen,) = base.kinematics(base.angles(u), [self.foot])
        after = base.space(self.after)
        delta, phi = self._place.dx, self._place.turn_dx
        rows = np.arange(after.ndx)[delta]
        size = 3 if phi is None else 6
        noise = base.pose_noise(seen.twist[:size], base.pose_variances[:size])
        if phi is not None:
            rows = np.append(rows, np.arange(after.ndx)[phi])
            noise[3:] = seen.rotation.T @ noise[3:]
            noise[:, 3:] = noise[:, 3:] @ seen.rotation
        found = np.zeros((after.ndx, after.ndx))
        found[np.ix_(rows, rows)] = noise
        return found

    def prepare(self) -> None:
        """Find what stays the same before the first event."""
        _ = self._kept_places, self._place

    @cached_property
    def _kept_places(self) -> tuple[list[int], list[int]]:
        return find_kept_places(self.base, self.after, self.before)

    @cached_property
    def _place(self) -> FootPlace:
        return next(p for p in self.base.places(self.after) if p.foot == self.foot)


def find_kept_places(
    base: LeggedBase, more: ModeKey, fewer: ModeKey
) -> tuple[list[int], list[int]]:
    """Return where state and deviation of a mode with fewer feet lie in those of one with more.

    Args:
        base: The feet.
        more: Mode that has all feet of the other in contact.
        fewer: The other mode.

    Returns:
        Indices (nx,) in the state and (ndx,) in the deviation of `more`, in order.
    """
    left = base.standing(fewer)
    space = base.space(more)
    gone_x, gone_dx = set[int](), set[int]()
    for place in base.places(more):
        if place.foot not in left:
            for gone, part in zip((gone_x, gone_dx) * 2, place[2:], strict=True):
                if part is not None:
                    gone.update(range(part.start, part.stop))
    return (
        [i for i in range(space.nx) if i not in gone_x],
        [i for i in range(space.ndx) if i not in gone_dx],
    )


def _timeless(state: Array, by_input: Array) -> ResetJacobian:
    return ResetJacobian(np.zeros(len(state)), state, by_input)
