"""Random systems whose guards fire at given lags, with fields and guards that are not linear."""

from itertools import product

import casadi as ca
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import root

from hybridctl import symbolic

BEFORE = 0.1  # s, from the start to the first guard
NONE = np.zeros(0)


class CloseGuards:
    """n guards that depend on y (n,) fall, in any order; resets change one entry of w (n,) each.

    In every mode all guards fall, at rates of 0.3 to 2 1/s, so that their order is free.
    """

    def __init__(self, seed, n, resets):
        self.rng = rng = np.random.default_rng(seed)
        self.n, self.first = n, (0,) * n
        y, w = ca.SX.sym("y", n), ca.SX.sym("w", n)
        x = ca.vertcat(y, w)
        normals = np.eye(n) + 0.3 * rng.uniform(-1, 1, (n, n))
        bends = 0.5 * rng.uniform(-1, 1, (n, n, n))
        rows = zip(normals, bends, strict=True)
        guards = [ca.dot(ca.DM(a), y) + ca.bilin(ca.DM(b), y, y) for a, b in rows]
        keep, kick = rng.uniform(-0.8, 0.8, n), rng.uniform(-1, 1, n)
        drift = -rng.uniform(0.7, 1.5, n)
        turn = 0.5 * rng.uniform(-1, 1, (n, 2 * n))
        modes, transitions = [], []
        for key in product((0, 1), repeat=n):
            jump = rng.uniform(-0.4, 0.4, n) if any(key) else np.zeros(n)
            spin, level = 0.5 * rng.uniform(-1, 1, (n, 2 * n)), rng.uniform(-1, 1, n)
            across = ca.DM(np.linalg.inv(normals) @ (drift + jump))
            field = ca.vertcat(
                across + 0.1 * ca.sin(ca.DM(turn) @ x), ca.DM(level) + ca.sin(ca.DM(spin) @ x)
            )
            modes.append(symbolic.SymbolicMode(key, x, field))
            for j in (j for j in range(n) if not key[j]):
                target = tuple(1 if i == j else k for i, k in enumerate(key))
                after = [w[i] for i in range(n)]
                after[j] = float(keep[j]) * w[j] + float(kick[j]) * ca.cos(y[j])
                reset = ca.vertcat(y, *after) if resets else x
                move = symbolic.SymbolicTransition(key, f"guard {j}", guards[j], target, reset)
                transitions.append(move)
        self.system = symbolic.hybrid_system(modes, transitions)
        self._guards = ca.Function("guards", [x], [ca.vertcat(*guards)])
        self._w = rng.uniform(-1, 1, n)

    def start(self, lags):
        """The state BEFORE the guards fire, at about these lags (n,) from the first on."""
        mode = self.system.mode(self.first)

        def height(y):
            x = np.concatenate([y, self._w])
            h = 1e-6 * mode.field(0.0, x, NONE)
            ahead, back, here = (self._guards(z).full()[:, 0] for z in (x + h, x - h, x))
            return here + (ahead - back) / 2e-6 * lags

        y = root(height, np.zeros(self.n), tol=1e-14).x
        x = np.concatenate([y, self._w])
        back = solve_ivp(
            lambda t, z: -mode.field(t, z, NONE), (0.0, BEFORE), x, "DOP853", rtol=1e-12, atol=1e-14
        )
        return back.y[:, -1]
