"""What a sample of predictive control costs: the five-link walker, undisturbed and after pushes.

In processor time, beside what its solver takes alone, and what additions in Python take on the same
machine: the ratios tell versions of the library apart where machines differ.
"""

from __future__ import annotations

from time import process_time
from unittest.mock import patch

import numpy as np
import piqp
from hybridctl.experiments.walking.biped_walk import Config, find_gait
from hybridctl.experiments.walking.controllers import Tracks, Weights, design, make_predictive
from hybridctl.experiments.walking.walk import push_state, walk
from rich.table import Table

from hybridctl.app.report import make_table
from hybridctl.base.function_cache import find_compiler
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History
from hybridctl.planning import quadratic_programme
from hybridctl.planning.predictive_control import HybridMpc

ADDITIONS = 10**6
PUSHES = (0.0, 40.0, -60.0)  # N s, in mid-step
STEPS = 20


class Timed:
    """A predictive controller that writes down what its samples take, s."""

    def __init__(self, policy: HybridMpc) -> None:
        self.policy, self.costs = policy, list[float]()

    def law(self, history: History) -> InputLaw:
        """The law, timed."""
        began = process_time()
        found = self.policy.law(history)
        self.costs.append(process_time() - began)
        return found

    def next_change(self, history: History) -> float:
        """When the controller wants to be asked again, s."""
        return self.policy.next_change(history)


class TimedSolver:
    """A solver, and what all of them have taken, s."""

    taken = 0.0

    def __init__(self) -> None:
        self.solver = piqp.SparseSolver()
        self.settings = self.solver.settings

    def setup(self, *data) -> None:
        """The solver, set up."""
        began = process_time()
        self.solver.setup(*data)
        TimedSolver.taken += process_time() - began

    def solve(self):
        """The status of the solution."""
        began = process_time()
        status = self.solver.solve()
        TimedSolver.taken += process_time() - began
        self.result = self.solver.result
        return status


class Solvers:
    """What a programme takes of its solver's package."""

    SparseSolver, PIQP_SOLVED, KKTSolver = TimedSolver, piqp.PIQP_SOLVED, piqp.KKTSolver


def samples_table(quick: bool) -> Table:
    """Samples with functions that are interpreted, and compiled where there is a C compiler."""
    config = Config()
    gait, rows = find_gait(config, config.speed), []
    lqr = design(gait, Weights())
    fixed = Tracks.of(gait, lqr, STEPS, config.extension).policy("cone", lqr, config.torque)
    for compiled in (False, True)[: 1 if find_compiler() is None else 2]:
        policy = make_predictive(gait, lqr, Weights(), fixed, config.torque, compiled=compiled)
        walk(gait, policy, gait.middle, 1)  # functions are made
        timed, TimedSolver.taken = Timed(policy), 0.0
        with patch.object(quadratic_programme, "piqp", Solvers):
            for push in PUSHES[:1] if quick else PUSHES:
                policy.reset()
                walk(gait, timed, push_state(gait, push), 1 if quick else STEPS)
        costs, solver = np.array(timed.costs), TimedSolver.taken / len(timed.costs)
        shown = 1e3 * np.array([costs.mean(), np.quantile(costs, 0.99), costs.max(), solver])
        ratios = costs.mean() / np.array([solver, additions()])
        name = "compiled" if compiled else "interpreted"
        rows.append((name, *(f"{value:.1f}" for value in (*shown, ratios[0])), f"{ratios[1]:.2f}"))
    columns = ["functions", "mean ms", "99 % ms", "longest ms", "solver ms", "of the solver"]
    return make_table("Predictive walker, one sample", [*columns, "of 10^6 additions"], rows)


def additions() -> float:
    """The time of a million additions in a loop, s: the least of three."""
    taken = []
    for _ in range(3):
        began, total = process_time(), 0
        for i in range(ADDITIONS):
            total += i
        taken.append(process_time() - began)
    return min(taken)
