"""Wiring mistakes that are planted in the readings of a legged robot, and what must be named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.spatial.transform import Rotation

from hybridctl.base.checks import Array
from hybridctl.base.time_series import Series
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.readings import Readings
from hybridctl.legged.wiring_changes import find_legs

Plant = Callable[[LegKinematics, Readings], Readings]
G = 9.80665  # m/s^2, of sensors in g


@dataclass(frozen=True)
class Mistake:
    """A mistake: what plants it, and words of which each must stand in the first fault named.

    words: alternatives in a tuple; one of them must be there. late: s by which it makes the
    inertial sensor late against the joints; such a delay may be compensated instead.
    """

    name: str
    plant: Plant
    words: tuple[str | tuple[str, ...], ...]
    late: float = 0.0

    def is_named(self, faults: Sequence[object]) -> bool:
        """Whether one fault has all the words, and two faults are named at most."""
        texts = [str(fault) for fault in faults]
        return 0 < len(texts) <= 2 and any(
            all(
                any(w in text for w in ([word] if isinstance(word, str) else word))
                for word in self.words
            )
            for text in texts
        )


def _inertial(change: Callable[[Array, Array], tuple[Array, Array]]) -> Plant:
    """A change of rates (n, 3) and forces (n, 3)."""

    def plant(kinematics: LegKinematics, readings: Readings) -> Readings:
        series = readings.inertial
        changed = change(series.values[:, :3].copy(), series.values[:, 3:].copy())
        return replace(readings, inertial=Series(series.times, np.hstack(changed)))

    return plant


def _turned(axis: str, degrees: float) -> Plant:
    """Both sensors turned."""
    turn = Rotation.from_euler(axis, degrees, degrees=True).as_matrix()
    return _inertial(lambda w, f: (w @ turn, f @ turn))


def _without_gravity(w: Array, f: Array) -> tuple[Array, Array]:
    mean = f.mean(axis=0)
    return w, f - 9.81 * mean / np.linalg.norm(mean)


def _exchanged(w: Array, f: Array) -> tuple[Array, Array]:
    return w[:, [1, 0, 2]], f


def _angles(change: Callable[[LegKinematics, Array], Array]) -> Plant:
    """A change of joint angles (n, m)."""

    def plant(kinematics: LegKinematics, readings: Readings) -> Readings:
        series = readings.angles
        return replace(
            readings, angles=Series(series.times, change(kinematics, series.values.copy()))
        )

    return plant


def _swapped_legs(kinematics: LegKinematics, angles: Array) -> Array:
    first, second, *_ = find_legs(kinematics)
    angles[:, first + second] = angles[:, second + first]
    return angles


def _alphabetical(kinematics: LegKinematics, angles: Array) -> Array:
    names = kinematics.joints
    return angles[:, sorted(range(len(names)), key=lambda j: names[j])]


def _by_kind(kinematics: LegKinematics, angles: Array) -> Array:
    legs = find_legs(kinematics)
    return angles[:, [leg[k] for k in range(len(legs[0])) for leg in legs]]


def _joint(place: int, change: Callable[[Array], Array]) -> Plant:
    """A change of one joint of the first leg."""

    def apply(kinematics: LegKinematics, angles: Array) -> Array:
        joint = find_legs(kinematics)[0][place]
        angles[:, joint] = change(angles[:, joint])
        return angles

    return _angles(apply)


def _forces(change: Callable[[Array, Array], Array], *, first_only: bool = False) -> Plant:
    """A change of forces (n,) at times (n,), of all feet or the first."""

    def plant(kinematics: LegKinematics, readings: Readings) -> Readings:
        loads = dict(readings.loads)
        for foot in list(loads)[: 1 if first_only else None]:
            series = loads[foot]
            loads[foot] = Series(series.times, change(series.times, series.values[:, 0].copy()))
        return replace(readings, loads=loads)

    return plant


def _swapped_forces(kinematics: LegKinematics, readings: Readings) -> Readings:
    one, other, *rest = kinematics.feet
    loads = readings.loads
    return replace(
        readings,
        loads={one: loads[other], other: loads[one], **{foot: loads[foot] for foot in rest}},
    )


def _drifting(times: Array, force: Array) -> Array:
    """A drift to the whole range of the force over the log."""
    return force + np.ptp(force) * (times - times[0]) / np.ptp(times)


def _late(channel: str, delay: float) -> Plant:
    """Later stamps of a channel, by `delay` s."""

    def plant(kinematics: LegKinematics, readings: Readings) -> Readings:
        def shift(series: Series) -> Series:
            return replace(series, times=series.times + delay)

        if channel == "forces":
            return replace(
                readings, loads={foot: shift(load) for foot, load in readings.loads.items()}
            )
        return replace(readings, **{channel: shift(getattr(readings, channel))})

    return plant


def _stamps(change: Callable[[Array], Array], *, all_channels: bool = True) -> Plant:
    """Other stamps of all channels, or of the inertial sensor."""

    def plant(kinematics: LegKinematics, readings: Readings) -> Readings:
        def stamp(series: Series) -> Series:
            return replace(series, times=change(series.times))

        if all_channels:
            return readings.each(stamp)
        return replace(readings, inertial=stamp(readings.inertial))

    return plant


def _first_unset(times: Array) -> Array:
    return np.append(0.0, times[1:] + 1.7e9)


MISTAKES = (
    Mistake("gravity removed", _inertial(_without_gravity), ("accelerometer", "lacks gravity")),
    Mistake("accelerometer in g", _inertial(lambda w, f: (w, f / G)), ("accelerometer", "like g:")),
    Mistake("accelerometer negated", _inertial(lambda w, f: (w, -f)), ("accelerometer", "negate")),
    Mistake("imu upside down", _turned("x", 180.0), ("inertial sensor", "(x, -y, -z)")),
    Mistake("imu on its side", _turned("x", 90.0), ("inertial sensor", "frame")),
    Mistake(
        "imu turned about z",
        _turned("z", 90.0),
        (("inertial sensor", "gyroscope"), "turn", "frame"),
    ),
    Mistake(
        "gyroscope in deg/s", _inertial(lambda w, f: (np.degrees(w), f)), ("gyroscope", "0.01745")
    ),
    Mistake(
        "gyroscope scaled twice", _inertial(lambda w, f: (np.radians(w), f)), ("gyroscope", "57.3")
    ),
    Mistake("gyroscope negated", _inertial(lambda w, f: (-w, f)), ("gyroscope", "negate")),
    Mistake("gyroscope x for y", _inertial(_exchanged), ("gyroscope", "(y, x, z)")),
    Mistake("joints in degrees", _angles(lambda k, q: np.degrees(q)), ("joint angles", "deg")),
    Mistake("legs swapped", _angles(_swapped_legs), ("joint angles", "exchanged between legs")),
    Mistake(
        "joints in alphabetical order", _angles(_alphabetical), ("joint angles", "order", "name")
    ),
    Mistake("joints by kind", _angles(_by_kind), ("joint angles", "order", "name")),
    Mistake("a joint negated", _joint(1, lambda q: -q), ("joint angles", "wrong sign", "negate")),
    Mistake(
        "an encoder stuck",
        _joint(1, partial(np.full_like, fill_value=0.3)),
        ("joint angles", "stuck"),
    ),
    Mistake("forces in kg", _forces(lambda t, f: f / G), ("forces", "kgf", "9.81")),
    Mistake("forces negated", _forces(lambda t, f: -f), ("forces", "negate")),
    Mistake("forces swapped", _swapped_forces, ("forces", "exchanged between feet")),
    Mistake(
        "a force stuck",
        _forces(lambda t, f: np.full_like(f, f[0]), first_only=True),
        ("force of", "never changes"),
    ),
    Mistake("all forces stuck", _forces(lambda t, f: 0.0 * f), ("forces", "never change")),
    Mistake("a force drifting", _forces(_drifting, first_only=True), ("force of", "drifts")),
    Mistake(
        "imu 10 ms late", _late("inertial", 0.01), ("inertial sensor", "late", "take off"), 0.01
    ),
    Mistake(
        "imu 20 ms late", _late("inertial", 0.02), ("inertial sensor", "late", "take off"), 0.02
    ),
    Mistake(
        "imu 40 ms late", _late("inertial", 0.04), ("inertial sensor", "late", "take off"), 0.04
    ),
    Mistake("joints 20 ms late", _late("angles", 0.02), ("inertial sensor", "early", "add"), -0.02),
    Mistake("forces 60 ms late", _late("forces", 0.06), ("forces", "late", "take off")),
    Mistake(
        "imu without stamps", _stamps(np.zeros_like, all_channels=False), ("stamps of inertial",)
    ),
    Mistake("stamps in ms", _stamps(lambda t: 1e3 * t), ("stamps", "ms", "0.001")),
    Mistake("stamps in ns", _stamps(lambda t: 1e9 * t), ("stamps", "ns", "1e-09")),
    Mistake(
        "imu of another clock", _stamps(lambda t: t + 1.7e9, all_channels=False), ("another clock",)
    ),
    Mistake("first stamp zero", _stamps(_first_unset, all_channels=False), ("stamps", "leave out")),
)

TWENTY = (
    "gravity removed",
    "accelerometer in g",
    "accelerometer negated",
    "imu upside down",
    "imu turned about z",
    "gyroscope in deg/s",
    "gyroscope negated",
    "gyroscope x for y",
    "joints in degrees",
    "legs swapped",
    "joints by kind",
    "a joint negated",
    "an encoder stuck",
    "forces in kg",
    "forces swapped",
    "a force stuck",
    "a force drifting",
    "imu 20 ms late",
    "imu without stamps",
    "stamps in ms",
)
"""Names of the mistakes of which at least 18 have to be named on each of three robots."""
BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
