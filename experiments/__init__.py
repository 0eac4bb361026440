"""Experiments: each builds a system, runs it, checks a claim, and leaves a folder of results.

An experiment is a module with a frozen dataclass `Config`, a function `quick(config)` that
returns a cheaper one, and `run(config, folder, console)` that returns what summary.json holds.
"""

from importlib import import_module
from types import ModuleType
from typing import NamedTuple


class Experiment(NamedTuple):
    """A module of this package, and what it shows in one line."""

    module: str
    summary: str

    def load(self) -> ModuleType:
        """Import the module."""
        return import_module(f"hybridctl.experiments.{self.module}")


EXPERIMENTS = {
    "rrr-door": Experiment(
        "rrr_door.tracking",
        "an arm hits a door with both corners of its foot, tracked with reference spreading",
    ),
    "slope": Experiment(
        "contacts.slope",
        "a ball falls on a slope and slides, stops, sticks or bounces, as closed forms say",
    ),
    "block": Experiment(
        "contacts.block",
        "a block lands, slides, stops and is lifted; another one rocks to Housner's rule",
    ),
    "cube-drop": Experiment(
        "contacts.cube_drop",
        "a cube tumbles and slides on a table, beside time stepping and recorded tosses",
    ),
    "cube-filter": Experiment(
        "cube_filter.comparison",
        "Kalman filters on recorded tosses of a cube, with and without noise of impacts",
    ),
    "saltation": Experiment(
        "linearization.saltation",
        "perturbations and covariances of a ball through an impact, by the saltation matrix",
    ),
    "bderivative": Experiment(
        "linearization.bderivative",
        "the image of a ball through two guards at once, one map for each order",
    ),
    "biped": Experiment(
        "contacts.biped",
        "a biped lands on both feet at once: smooth, or with a kink, in its initial pitch",
    ),
    "contact-law": Experiment(
        "contacts.law",
        "how often Coulomb's law for an impact has no, one, or several solutions",
    ),
    "lqr": Experiment(
        "optimal.lqr",
        "hybrid LQR against the same without saltation: a paddle, a block, the door",
    ),
    "ilqr": Experiment(
        "optimal.ilqr",
        "iterative LQR that finds its events: a ball, a sliding block, a foot and a door",
    ),
    "filter-study": Experiment(
        "filtering.study",
        "whether Kalman and particle filters are consistent: a ball, a block, the door, many runs",
    ),
    "zeno-ball": Experiment(
        "relaxation.zeno_ball",
        "a ball goes on past infinitely many bounces, by relaxation; errors over step and width",
    ),
    "relay": Experiment(
        "relaxation.relay",
        "a relay and dry friction slide on a surface: Filippov's modes, and relaxed systems",
    ),
    "biped-walk": Experiment(
        "walking.biped_walk",
        "a five-link biped walks on gaits found by optimisation, with feedback across touchdowns",
    ),
    "double-pendulum-stop": Experiment(
        "relaxation.double_pendulum",
        "a double pendulum lies on its stop and lets go, without a locked mode, by relaxation",
    ),
}
