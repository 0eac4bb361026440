"""Odometry by a foot that stands still: what is done without a filter."""

from __future__ import annotations

import numpy as np
from hybridctl.experiments.legged.recording import euler
from hybridctl.experiments.legged.score import Track

from hybridctl.checks import Array
from hybridctl.estimation.legged.estimator import BaseEstimator
from hybridctl.estimation.legged.readings import Readings, held
from hybridctl.estimation.legged.rotation import matrix, quaternion


def odometry(
    estimator: BaseEstimator, readings: Readings, orientation: Array, position: Array
) -> Track:
    """The root over the foot that bears more, which is held where it is until the other does.

    orientation (4,), position (3,): of the root at the first row of angles.
    """
    timed, kinematics = estimator.readings(readings), estimator.base.kinematics
    feet, angles = list(timed.loads), timed.angles
    loads = np.hstack([held(timed.loads[foot], angles.times) for foot in feet])
    bearing = np.argmax(loads, axis=1)
    inner, offset = kinematics.base  # inertial frame in the root
    turn, place = matrix(orientation), np.array(position, dtype=np.float64)
    held_turn = held_place = None
    turns, places, last = [], [], -1
    for row, k in zip(angles.values, bearing, strict=True):
        seen = dict(zip(feet, kinematics(row, feet), strict=True))
        own = {f: (inner @ s.rotation, offset + inner @ s.position) for f, s in seen.items()}
        if k != last:
            if last >= 0 and held_turn is not None and held_place is not None:
                turn, place = _root(held_turn, held_place, *own[feet[last]])
            c, s = own[feet[k]]
            held_turn, held_place = turn @ c, place + turn @ s
            last = k
        assert held_turn is not None
        assert held_place is not None
        turn, place = _root(held_turn, held_place, *own[feet[k]])
        turns.append(quaternion(turn))
        places.append(place)
    return Track(angles.times, np.array(places), euler(np.array(turns)), None)


def _root(foot_turn: Array, foot_place: Array, c: Array, s: Array) -> tuple[Array, Array]:
    """The root that sees a foot, held there, in rotation c and position s."""
    turn = foot_turn @ c.T
    return turn, foot_place - turn @ s
