r"""How much point feet creep, by how well they keep their distances.

Two feet that stand keep the vector between them. Joint angles give it in the axes of the base, and
the estimate turns it into the world: over a step the gyroscope knows that turn far better than
anything knows the velocity of the base. Let both stand from :math:`t_0` to :math:`t_1`, a time T.
The vector between the centres of feet i and j then changes by

.. math:: \Delta = R_1 (s_i - s_j)_1 - R_0 (s_i - s_j)_0
                   - (\theta_i r_i - \theta_j r_j) \times n ,

where the last term is what feet with the radius r roll by as their links turn by :math:`\theta`.
Each component has the variance :math:`2 c^2 T` by the creep c of the feet, besides that of the
encoders at both ends, and of what the velocities of the feet have told in between (see the module
`creep`). The estimate of the base turns as well where it is corrected: from :math:`t_0` to
:math:`t_1` the error of its turn changes by what corrections take from its variance,
:math:`P_0 - P_1`, and by the gyroscope's noise. The vertical has a creep of its own: on soft ground
feet sink and rise, on slippery ground they slip.

The densities :math:`c^2` are found by Bayes' rule on a grid: each pair of feet multiplies the
weights of the grid by its likelihood. Older pairs fade, since the ground may change. What two feet
do alike does not change their distance, so that c is taken to be larger by `BaseNoise.foot_alike`.
Three feet make three pairs, which count as if they were independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.estimation.estimate import Estimate
from hybridctl.legged.rotation import matrix, rotation_vector, skew
from hybridctl.legged.space import ANGLE
from hybridctl.legged.system import BaseNoise, Layout, LeggedBase

LEVELS = np.geomspace(2.5e-4, 5e-2, 60) ** 2
"""Densities of creep that are compared, m^2/s: from hard floor to feet that hardly stand.

Neighbours differ by 9 % in creep; the pairs of `foot_memory` tell it to 6 % at best.
"""
SHORTEST, LONGEST = 0.04, 1.0
"""Time in s for which two feet of a step stand together.

Over less, encoders say more than feet. A robot that stands for longer does not walk, and feet that
carry the same load all the time do not creep as those do which are loaded and unloaded.
"""
PRIOR = 0.3
"""How many pairs of feet the creep at the start counts for: the first steps decide."""


class FeetAtOnce(NamedTuple):
    """All feet at one time, by joint angles and the estimate, in the world.

    Attributes:
        time: Time, s.
        centres: Positions (k, 3) of the feet from the origin of the inertial frame, in axes of the
            world, m.
        rotations: Rotations (k, 3, 3) of their links in the world.
        variances: Variances (k, 3) of these positions by the encoders, m^2.
        seen: Variance (k,) by which feet have moved since the log began by their velocities, m^2.
        turn_covariance: Covariance (3, 3) of the turn of the base about axes of the world, rad^2.
    """

    time: float
    centres: Array
    rotations: Array
    variances: Array
    seen: Array
    turn_covariance: Array


class StepStart(NamedTuple):
    """What the filter knew at the start of its last step; see `FeetAtOnce`.

    Attributes:
        estimate: The estimate.
        input: The input (nu,) that was held from then on.
        seen: Variance (k,) by which feet had moved until then by their velocities, m^2.
    """

    estimate: Estimate
    input: Array
    seen: Array


class FootDistances(NamedTuple):
    """What the distances of feet have said until now.

    Attributes:
        creep: Densities (2,) of the creep of a point foot that stands, m^2/s: in each direction
            along level ground, and along the vertical.
        log_weights: Logarithms (2, n) of the weights of `LEVELS` for both, up to a constant.
        last: The start of the last step of the filter; None before the first.
        seen: Variance (k,) by which feet have moved until now by their velocities, m^2; () before
            the first step.
        pairs: For two feet that stand, by their numbers, all feet when the later one touched.
    """

    creep: Array
    log_weights: Array
    last: StepStart | None = None
    seen: Array = np.zeros(0)
    pairs: Mapping[tuple[int, int], FeetAtOnce] = {}

    def follow(self, base: LeggedBase, estimate: Estimate, u: Array) -> FootDistances:
        """Return what is known at the start of a step of the filter.

        Only touchdowns and lift-offs of point feet change what is known of the creep.

        Args:
            base: Base, feet and noise.
            estimate: Estimate at the start of the step.
            u: Input (nu,) from then on.
        """
        last = self.last
        if last is None:
            seen = np.zeros(len(base.feet))
            return self._replace(last=StepStart(estimate, u, seen), seen=seen)
        now = StepStart(estimate, u, self.seen)
        if estimate.mode == last.estimate.mode:
            return self._replace(last=now)
        before = find_points(base.layout(last.estimate.mode))
        after = find_points(base.layout(estimate.mode))
        parted = self._weigh_parted_pairs(base, last, before - after)
        return parted._add_pairs(base, now, after - before, after)

    def add_motion(self, variances: Array) -> FootDistances:
        """Return what is known after a step in which feet have moved.

        Args:
            variances: Variance (k,) of that motion in each direction by their velocities, m^2.
        """
        return self._replace(seen=self.seen + variances)

    def _weigh_parted_pairs(
        self, base: LeggedBase, last: StepStart, lifted: set[int]
    ) -> FootDistances:
        """Return these distances without the pairs of lifted feet, with the creep these show.

        A pair that stood together for less than `SHORTEST` or more than `LONGEST` shows nothing.

        Args:
            base: Base, feet and noise.
            last: Start of the last step, when the feet still stood.
            lifted: Numbers of the feet that have lifted.
        """
        if not lifted:
            return self
        creep, log_weights, end = self.creep, self.log_weights, None
        pairs = dict[tuple[int, int], FeetAtOnce]()
        for pair, start in self.pairs.items():
            if not lifted.intersection(pair):
                pairs[pair] = start
                continue
            end = end or place_feet(base, last)
            span = end.time - start.time
            if SHORTEST <= span <= LONGEST:
                radii = [base.kinematics.radii[base.feet[number]] for number in pair]
                log_weights = weigh_pair(base.noise, log_weights, pair, start, end, radii)
                creep = choose_creep(base.noise, log_weights)
        return self._replace(creep=creep, log_weights=log_weights, pairs=pairs)

    def _add_pairs(
        self, base: LeggedBase, now: StepStart, touched: set[int], standing: set[int]
    ) -> FootDistances:
        """Return these distances at a step, with pairs of each touched foot and each that stands.

        Args:
            base: Base, feet and noise.
            now: Start of the step.
            touched: Numbers of the feet that have touched.
            standing: Numbers of all feet that stand, those included.
        """
        pairs = self.pairs
        if touched:
            feet = place_feet(base, now)
            new = {(min(i, j), max(i, j)): feet for i in touched for j in standing if i != j}
            pairs = {**pairs, **new}
        return self._replace(last=now, pairs=pairs)


def begin_distances(noise: BaseNoise) -> FootDistances:
    """Return what is known of the creep of point feet before they have walked.

    Args:
        noise: Its creep is that of the start, which counts as `PRIOR` pairs of feet.
    """
    creep = noise.creep(flat=False)
    likelihood = -0.5 * (np.log(LEVELS) + (creep / noise.foot_alike) ** 2 / LEVELS)
    # Two directions along the ground, one along the vertical.
    return FootDistances(np.full(2, creep**2), PRIOR * np.outer([2.0, 1.0], likelihood))


def find_points(layout: Layout) -> set[int]:
    """Return the numbers of the point feet that stand in a mode, among all feet."""
    return set(layout.numbers[layout.points].tolist())


def place_feet(base: LeggedBase, moment: StepStart) -> FeetAtOnce:
    """Return where all feet are, see `FeetAtOnce`.

    Args:
        base: Base, feet and noise.
        moment: Estimate and joint angles of that time.
    """
    turn, p = matrix(moment.estimate.mean[:4]), moment.estimate.covariance[ANGLE, ANGLE]
    feet = base.kinematics.find_feet(base.angles(moment.input))
    # Matrix products of three rows are the quickest by `dot`.
    levers = np.matmul(base.noise.encoder * turn, feet.twists[:, :3])
    return FeetAtOnce(
        moment.estimate.time,
        feet.positions.dot(turn.T),
        np.matmul(turn, feet.rotations),
        (levers * levers).sum(axis=2),
        moment.seen,
        turn.dot(p).dot(turn.T),
    )


def weigh_pair(
    noise: BaseNoise,
    log_weights: Array,
    pair: tuple[int, int],
    start: FeetAtOnce,
    end: FeetAtOnce,
    radii: list[float],
) -> Array:
    """Return the logarithms of the weights of `LEVELS` after two feet have parted.

    Args:
        noise: Its `foot_memory` says how fast older pairs fade.
        log_weights: Logarithms (2, n) before, as in `FootDistances`.
        pair: The numbers of the feet.
        start: All feet when both stood at first.
        end: All feet when both stood at last.
        radii: Radii of the two feet in m; 0 for those that do not roll.
    """
    i, j = pair
    apart, span = end.centres[i] - end.centres[j], end.time - start.time
    moved = apart - (start.centres[i] - start.centres[j])
    moved -= roll_foot(start, end, i, radii[0]) - roll_foot(start, end, j, radii[1])
    known = start.variances[i] + start.variances[j] + end.variances[i] + end.variances[j]
    known += (end.seen[i] - start.seen[i]) + (end.seen[j] - start.seen[j])
    swing = skew(apart)
    turned = swing.dot(start.turn_covariance - end.turn_covariance).dot(swing.T)
    # Where nothing corrects it, as yaw, the variance grows, by the noise of the next line.
    known += np.maximum(turned.diagonal(), 0.0)
    known += noise.gyroscope**2 * span * (swing * swing).sum(axis=1)
    variances = known[:, None] + 2.0 * span * LEVELS
    x, y, z = -0.5 * (np.log(variances) + (moved * moved)[:, None] / variances)
    faded: Array = math.exp(-1.0 / noise.foot_memory) * log_weights
    faded[0] += x + y
    faded[1] += z
    return faded


def roll_foot(start: FeetAtOnce, end: FeetAtOnce, number: int, radius: float) -> Array:
    """Return by how much (3,) the centre of a foot has moved by rolling on level ground, m.

    Args:
        start: All feet at first.
        end: All feet at last; the turn of the link in between is taken about one axis.
        number: Number of the foot.
        radius: Radius of its sphere, m; 0 for a foot that does not roll.
    """
    if not radius:
        return np.zeros(3)
    x, y, _ = rotation_vector(end.rotations[number].dot(start.rotations[number].T)).tolist()
    return np.array([radius * y, -radius * x, 0.0])  # (x, y, z) x (0, 0, 1)


def choose_creep(noise: BaseNoise, log_weights: Array) -> Array:
    """Return the likeliest densities (2,) of creep in m^2/s by logarithms (2, n) of weights.

    The mean over the grid would rise where pairs say nothing: the weights at the start have a long
    tail.

    Args:
        noise: Its `foot_alike` multiplies the creep that distances show.
        log_weights: Logarithms (2, n) of the weights of `LEVELS`, level and vertical.
    """
    densities: Array = noise.foot_alike**2 * LEVELS[log_weights.argmax(axis=1)]
    return densities
