"""Filters that see nothing of a ball for 10 s, judged by many runs: `python -m attack.gaps N`.

Balls fall from 0.2 to 1.2 m with restitutions of 0.4 to 0.9, and lie on the floor before the gap
ends. What is not known then, place and speed along the floor, is linear in what was not known
before, so that the mean of squared deviations of n runs, in units of the covariance, is that of a
chi-square of two: 1 within 4 / sqrt(n) for each of the two. All else is known: gap and its rate.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial

import numpy as np
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.errors import HybridctlError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.sampling.unscented import UnscentedFilter

GAP = 10.0
RUNS = 40
REST = 1e-8
KINDS = {
    "salted": SaltedKalmanFilter,
    "four hypotheses": partial(SaltedKalmanFilter, hypotheses=4),
    "unscented": UnscentedFilter,
}


def judged(seed):
    """What becomes of filter and ball number `seed`, in words."""
    rng = np.random.default_rng([43, seed])
    kind = tuple(KINDS)[seed % len(KINDS)]
    system = ball.system(ball.BallParameters(slope=0.0, restitution=rng.uniform(0.4, 0.9)))
    start = np.array([0.0, rng.uniform(0.2, 1.2), rng.normal(), 0.3 * rng.normal()])
    root = 0.02 * rng.normal(size=(4, 4))
    p0 = root @ root.T * np.outer([1.0, 0.3, 1.0, 1.0], [1.0, 0.3, 1.0, 1.0])
    sensor = coordinates("position", [0, 1], 1e-4 * np.eye(2))
    kf = KINDS[kind](system, np.zeros((4, 4)), sensor)
    try:
        found = kf.predict(Estimate(("open",), 0.0, start, p0), GAP).estimate
        sure = found.covariance[[1, 3]]
        if found.mode != ("closed",) or np.abs(sure).max() > REST:
            return kind, f"wrong: seed {seed} is not at rest"
        along, scores = found.covariance[np.ix_([0, 2], [0, 2])], []
        for x in rng.multivariate_normal(start, p0, RUNS):
            run = hc.simulate(system, ("open",), x, (0.0, GAP), on_zeno=hc.ZenoPolicy(horizon=1e-3))
            off = run.final_state - found.mean
            if run.final_mode != found.mode or np.abs(off[[1, 3]]).max() > REST:
                return kind, f"wrong: seed {seed}, a run ends elsewhere"
            scores.append(off[[0, 2]] @ np.linalg.solve(along, off[[0, 2]]) / 2.0)
    except HybridctlError as refusal:
        return kind, f"refused: {type(refusal).__name__}"
    except Exception as error:
        return kind, f"raw: {type(error).__name__} of seed {seed}"
    right = abs(np.mean(scores) - 1.0) <= 4.0 / np.sqrt(RUNS)
    return kind, "right" if right else f"wrong: seed {seed}, {np.mean(scores):.2f} instead of 1"


def main():
    """Print how many of each filter end how."""
    found = Counter(judged(seed) for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
    for (kind, answer), count in sorted(found.items()):
        print(f"{kind:20}{count:6}  {answer}")


if __name__ == "__main__":
    main()
