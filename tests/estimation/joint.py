"""The joint normal distribution of all states and values: what a smoother has to find."""

import numpy as np


def dense(maps, noises, p0, measured, noise, residuals):
    """Deviations (k + 1, n) and covariances of all states given all values, from their joint.

    maps, noises: of each prediction. residuals: of the values against the motion of the mean.
    """
    n, k = len(p0), len(maps)
    lift = np.eye(n * (k + 1))  # all states from the first one and the noises
    for i in range(k):
        lift[n * (i + 1) : n * (i + 2)] += maps[i] @ lift[n * i : n * (i + 1)]
    joint = np.zeros_like(lift)
    for i, block in enumerate([p0, *noises]):
        joint[n * i : n * (i + 1), n * i : n * (i + 1)] = block
    joint = lift @ joint @ lift.T
    seen = np.kron(np.eye(k), measured) @ np.eye(n * (k + 1))[n:]
    s = seen @ joint @ seen.T + np.kron(np.eye(k), noise)
    gain = np.linalg.solve(s, seen @ joint).T
    after = joint - gain @ seen @ joint
    blocks = [after[n * i : n * i + n, n * i : n * i + n] for i in range(k + 1)]
    return (gain @ np.ravel(residuals)).reshape(k + 1, n), blocks
