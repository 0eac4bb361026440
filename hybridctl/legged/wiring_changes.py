"""Changes of a log that are wiring mistakes: axes of the gyroscope, forces, legs, joint angles.

Each function yields trials that change one channel of the present reading, with cause and remedy.
Feet that stand better under a change show that it is the mistake (`stance_trials`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.legged.kinematics import LegKinematics
from hybridctl.legged.stance import FootPaths, compute_paths
from hybridctl.legged.stance_trials import StanceTrial
from hybridctl.legged.wiring_fault import ANGLES, FORCES, GYROSCOPE
from hybridctl.legged.wiring_signals import describe_map, list_signed_permutations

_DEGREES = 180.0 / np.pi
"""Degrees in a radian."""
_MOST_FEET = 4
"""Feet up to which their orders are tried: 4 have 24 of them, 6 would have 720."""
_SHOWN_NAMES = 6
"""Names that a remedy lists."""


def list_axes(present: StanceTrial) -> Iterator[StanceTrial]:
    """Yield trials with other units, signs and axes of the gyroscope.

    Args:
        present: The present reading.

    Yields:
        Trials with 48 signed permutations in three units.
    """
    for factor, unit in ((1.0, ""), (1.0 / _DEGREES, "deg/s"), (_DEGREES, "rad/s")):
        for turn in list_signed_permutations():
            if factor == 1.0 and np.array_equal(turn, np.eye(3)):
                continue
            cause, remedy, rank = _describe_axes(turn, factor, unit)
            yield replace(
                present,
                axes=factor * turn @ present.axes,
                channel=GYROSCOPE,
                cause=cause,
                remedy=remedy,
                rank=rank,
            )


def _describe_axes(turn: Array, factor: float, unit: str) -> tuple[str, str, int]:
    """Return cause, remedy and rank of a change of the gyroscope.

    Args:
        turn: Signed permutation (3, 3) by which rates are multiplied.
        factor: Factor by which they are multiplied as well.
        unit: Unit that the factor converts from; empty for a factor of 1.
    """
    axes = describe_map(turn)
    rank = 1
    if np.array_equal(turn, -np.eye(3)):
        cause, remedy = "has the wrong sign", "negate it"
    elif np.linalg.det(turn) > 0.0:
        cause, remedy = f"has turned axes, {axes}", f"map {axes}"
        rank = 2
    elif np.array_equal(np.abs(turn), np.eye(3)):
        cause, remedy = "has an axis of the wrong sign", f"map {axes}"
        rank = 3
    else:
        cause, remedy = "has axes in another order", f"map {axes}"
        rank = 3
    if factor == 1.0:
        return cause, remedy, rank
    looks = f"looks like {'deg/s' if factor < 1.0 else 'rad/s that were converted from deg/s'}"
    scaled = f"multiply it by {factor:.4g}, by unit {unit} in the mapping"
    if np.array_equal(turn, np.eye(3)):
        return looks, scaled, 1
    return f"{looks} and {cause}", f"{scaled}, and {remedy}", 4 + rank


def list_forces(present: StanceTrial, feet: Sequence[str]) -> Iterator[StanceTrial]:
    """Yield trials with the forces of feet exchanged.

    Args:
        present: The present reading.
        feet: Frames of the feet.

    Yields:
        Trials in all orders of up to four feet.
    """
    count = len(feet)
    for order in permutations(range(count)) if count <= _MOST_FEET else ():
        if order == tuple(range(count)):
            continue
        moved = [f"{feet[i]!r}: that of {feet[j]!r}" for i, j in enumerate(order) if i != j]
        yield replace(
            present,
            standing=present.standing[:, list(order)],
            channel=FORCES,
            cause="are exchanged between feet",
            remedy=f"take for {', '.join(moved)}",
            rank=len(moved),
        )


class JointTrials:
    """Lists trials with joint angles in another order, of other legs, or of another sign.

    Paths of feet, which take time to compute, are kept by the name of the change.

    Args:
        kinematics: Kinematics of the legs.
        times: The grid (n,), s.
        angles: Joint angles (n, m) at these times, rad.
    """

    def __init__(self, kinematics: LegKinematics, times: Array, angles: Array) -> None:
        self._kinematics, self._times, self._angles = kinematics, times, angles
        self.names, self.feet = kinematics.joints, tuple(kinematics.feet)
        self.legs = find_legs(kinematics)
        self._kept: dict[str, FootPaths] = {}

    def list_legs_and_signs(self, present: StanceTrial) -> Iterator[StanceTrial]:
        """Yield trials with legs exchanged and joints negated.

        Args:
            present: The present reading.

        Yields:
            Trials, whose kinematics are computed one by one.
        """
        sizes = {len(leg) for leg in self.legs}
        is_partition = sum(map(len, self.legs)) == self._angles.shape[1]
        # Legs can be exchanged where they have as many joints each, and no joint in common.
        if len(sizes) == 1 and is_partition and 2 <= len(self.legs) <= _MOST_FEET:
            yield from self._list_legs(present)
        yield from self._list_signs(present)

    def _compute_paths(self, name: str, angles: Array) -> FootPaths:
        """Return the paths of changed angles (n, m), and keep them by the name of the change."""
        if name not in self._kept:
            self._kept[name] = compute_paths(self._kinematics, self._times, angles)
        return self._kept[name]

    def list_orders(self, present: StanceTrial) -> Iterator[StanceTrial]:
        """Yield trials with columns in another order.

        Args:
            present: The present reading.

        Yields:
            Trials with the columns as robots and programs commonly sort them.
        """
        names = self._kinematics.joints
        orders = {"alphabetical order": sorted(range(len(names)), key=lambda j: names[j])}
        if len({len(leg) for leg in self.legs}) == 1:
            by_kind = [j for group in zip(*self.legs, strict=True) for j in group]
            if sorted(by_kind) == list(range(len(names))):
                orders["order of kinds, all first joints of legs first"] = by_kind
                orders["order from foot to hip"] = [j for leg in self.legs for j in leg[::-1]]
        for name, order in orders.items():
            if order == list(range(len(names))):
                continue
            angles = np.empty_like(self._angles)
            angles[:, order] = self._angles
            yield replace(
                present,
                paths=self._compute_paths(name, angles),
                channel=ANGLES,
                cause=f"look like columns in {name}",
                remedy=f"name the columns {_shorten([names[j] for j in order])}",
                rank=2,
            )

    def _list_legs(self, present: StanceTrial) -> Iterator[StanceTrial]:
        """Yield trials with the angles of legs exchanged.

        Args:
            present: The present reading.

        Yields:
            Trials in all orders of the legs, made of the paths of cyclic ones.
        """
        count, feet = len(self.legs), list(self._kinematics.feet)
        shifted = [present.paths]
        for shift in range(1, count):
            angles = np.empty_like(self._angles)
            for i, leg in enumerate(self.legs):
                angles[:, leg] = self._angles[:, self.legs[(i + shift) % count]]
            shifted.append(self._compute_paths(f"legs {shift} further", angles))
        for order in permutations(range(count)):
            if order == tuple(range(count)):
                continue
            paths = present.paths
            for shift in range(1, count):
                mask = np.array([(j - i) % count == shift for i, j in enumerate(order)])
                paths = paths.replace_feet(mask, shifted[shift])
            moved = [f"{feet[i]!r}: those of {feet[j]!r}" for i, j in enumerate(order) if i != j]
            yield replace(
                present,
                paths=paths,
                channel=ANGLES,
                cause="are exchanged between legs",
                remedy=f"take for {', '.join(moved)}",
                rank=len(moved),
            )

    def _list_signs(self, present: StanceTrial) -> Iterator[StanceTrial]:
        """Yield trials with joint angles negated.

        Args:
            present: The present reading.

        Yields:
            Trials with all joints, one joint, or the same joint of all legs negated.
        """
        names = self._kinematics.joints
        yield replace(
            present,
            paths=self._compute_paths("all negated", -self._angles),
            channel=ANGLES,
            cause="have the wrong sign",
            remedy="negate them",
            rank=1,
        )
        for place in range(max(map(len, self.legs))):
            angles = self._angles.copy()
            negated = sorted({leg[place] for leg in self.legs if place < len(leg)})
            angles[:, negated] *= -1.0
            paths = self._compute_paths(f"joints {place} negated", angles)
            for i, leg in enumerate(self.legs):
                if place < len(leg):
                    mask = np.arange(len(self.legs)) == i
                    yield replace(
                        present,
                        paths=present.paths.replace_feet(mask, paths),
                        channel=ANGLES,
                        cause=f"have the wrong sign at {names[leg[place]]!r}",
                        remedy=f"negate {names[leg[place]]!r}",
                        rank=3,
                    )
            yield replace(
                present,
                paths=paths,
                channel=ANGLES,
                cause=f"have the wrong sign at {_shorten([names[j] for j in negated])}",
                remedy="negate these",
                rank=3,
            )


def find_legs(kinematics: LegKinematics) -> list[list[int]]:
    """Return the numbers of the joints that move each foot, from the base on."""
    angles = np.full(len(kinematics.joints), 0.1)  # at zero a joint may be singular
    feet = kinematics(angles, list(kinematics.feet))
    return [np.flatnonzero(foot.twist.any(axis=0)).tolist() for foot in feet]


def _shorten(names: Sequence[str]) -> str:
    """Return names in brackets, `_SHOWN_NAMES` of them at most."""
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    return f"[{', '.join(names[:_SHOWN_NAMES])}{more}]"
