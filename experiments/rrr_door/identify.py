"""Parameters of the door, which the thesis does not print, meet the numbers that it does print.

    python -m hybridctl.experiments.rrr_door.identify --seed 0 --generations 40

Published are the ante-impact task-space state (5.26), the impulses that it gives (Table 5.1), and
the micro-events of one perturbed run (Table 5.2). For any choice of the free parameters below, two
more (door inertia, lateral offset of the foot's centre of mass) are solved so that the impulses of
Table 5.1 are met exactly. Differential evolution then looks among the free ones for a perturbed
run in which no contact pulls, that is near Table 5.2, and whose spread error stays small between
the touches. The last two pull apart: `--error-weight` is the cost of a unit of the error (rad and
rad/s together), where a touch that is off by 0.01 s costs 1. The result is one plausible choice,
not the robot of the thesis.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace

import numpy as np
from hybridctl.experiments.rrr_door.laws import make_law, run_beside
from hybridctl.experiments.rrr_door.reference import CLOSED, Design, build, find_impact_state
from hybridctl.experiments.rrr_door.tracking import (
    PERTURBATION,
    PUBLISHED_REFERENCE,
    PUBLISHED_TRACKING,
    Config,
    measure_contacts,
    schedule,
)
from hybridctl.robots.rrr_door import DoorParameters, contacts, robot, system
from rich.console import Console
from scipy.optimize import differential_evolution, least_squares, minimize

from hybridctl.app.report import make_table
from hybridctl.base.checks import Array
from hybridctl.base.errors import HybridctlError
from hybridctl.control.tracking_error import tracking_error
from hybridctl.mechanics.modes.dynamics import ContactDynamics

PUBLISHED_IMPULSES = PUBLISHED_REFERENCE[0][2]
PUBLISHED_TOUCHES = tuple(time for _, time, _ in PUBLISHED_TRACKING)
PUBLISHED_MICRO_IMPULSES = tuple(x for *_, found in PUBLISHED_TRACKING for x in found if x > 0.0)

FREE = {  # least value, where the search begins, greatest value
    "upper_arm_length": (0.35, 0.4277, 0.50),
    "forearm_length": (0.40, 0.5141, 0.58),
    "foot_length": (0.06, 0.1021, 0.16),
    "upper_arm_mass": (3.0, 6.273, 8.0),
    "forearm_mass": (2.0, 3.735, 5.0),
    "foot_mass": (1.0, 1.860, 4.0),
    "foot_inertia": (0.004, 0.0062, 0.030),
    "foot_center_behind": (0.02, 0.1113, 0.12),
    "corner_1_offset": (0.04, 0.0551, 0.15),
    "foot_width": (0.15, 0.2365, 0.30),
    "hinge_left": (0.05, 0.121, 0.35),
    "hinge_damping": (4.0, 7.312, 20.0),
}
BOUNDS = {name: (low, high) for name, (low, _, high) in FREE.items()}
START = {name: start for name, (_, start, _) in FREE.items()}
MARGIN = 1.0
"""Least contact force without a penalty, N."""


@dataclass(frozen=True)
class CandidateRun:
    """A tracked run of one candidate.

    Attributes:
        touches: Times of the events, s.
        impulses: Positive impulses of the corners, event by event, N s.
        least_force: Least contact force of the run and its reference, N.
        peak_error: Peak of the spread error, rad and rad/s together.
        split: Whether corner 1 touches first, corner 2 second, and nothing else happens.
    """

    touches: tuple[float, ...]
    impulses: tuple[float, ...]
    least_force: float
    peak_error: float
    split: bool


def solve_parameters(free: dict[str, float]) -> DoorParameters:
    """Return parameters with the two that meet the impulses, and links of evenly spread mass."""
    base = DoorParameters()
    lengths = free["upper_arm_length"], free["forearm_length"]
    masses = free["upper_arm_mass"], free["forearm_mass"]
    links = {
        "upper_arm_inertia": masses[0] * lengths[0] ** 2 / 12.0,
        "forearm_inertia": masses[1] * lengths[1] ** 2 / 12.0,
        "hinge_ahead": Design().impact_y[0] + 0.5 * base.door_thickness,
    }
    partial = replace(base, **free, **links)

    def make_parameters(z: Array) -> DoorParameters:
        return replace(partial, door_inertia=float(np.exp(z[0])), foot_center_right=float(z[1]))

    solution = least_squares(
        lambda z: solve_impulses(make_parameters(z)) - PUBLISHED_IMPULSES,
        [np.log(3.0), 0.0],
        bounds=([np.log(0.5), -0.1], [np.log(20.0), 0.1]),
    )
    return make_parameters(solution.x)


def solve_impulses(parameters: DoorParameters) -> Array:
    """Return the impulses (2,) of the impact of both corners from the state (5.26), N s."""
    dynamics = ContactDynamics(robot(parameters), contacts(parameters))
    q, v = find_impact_state(parameters, Design())
    mass, rows = dynamics.robot.mass_matrix(q), dynamics.gap_jacobian(q)
    return np.asarray(np.linalg.solve(rows @ np.linalg.solve(mass, rows.T), -rows @ v))


def track(parameters: DoorParameters, design: Design, rtol: float = 1e-6) -> CandidateRun:
    """Return the perturbed run (5.29)-(5.31) under the experiment's own controller.

    Args:
        parameters: Parameters of arm and door.
        design: Numbers of the reference.
        rtol: Relative and absolute tolerance of the run.
    """
    plant = system(parameters)
    reference = build(plant, parameters, design, rtol=1e-8, atol=1e-8)
    policy = make_law("spreading", plant, reference, schedule(Config(), reference))
    deviation, to = np.array(PERTURBATION), (rtol, rtol)
    run = run_beside(plant, reference, policy, deviation, to, end=1.5, max_events=4)
    modes = [event.mode_after for event in run.events]
    split = modes == [("closed", "open"), CLOSED]
    return CandidateRun(
        tuple(event.time for event in run.events),
        tuple(float(x) for event in run.events for x in event.impulses if x > 0.0),
        min(measure_contacts(plant, each)["least_force"] for each in (run, reference.nominal)),
        tracking_error(reference, run, "spread", 5e-3).peak,
        split,
    )


def compute_cost(free: dict[str, float], error_weight: float = 2.0) -> float:
    """Return the distance from Table 5.2, plus spread error and penalties.

    Args:
        free: Free parameters by name.
        error_weight: Cost of a unit of the spread error.

    Returns:
        The cost. A candidate whose impulses are off, whose reference or run fails, or whose impact
        does not split, costs 100 or more, so that any one that is comparable is better.
    """
    try:
        parameters = solve_parameters(free)
        mismatch = float(np.abs(solve_impulses(parameters) - PUBLISHED_IMPULSES).max())
        if mismatch > 1e-3:
            return 1e3 * (1.0 + mismatch)
        outcome = track(parameters, Design())
    except HybridctlError:
        return 500.0
    pulling = max(MARGIN - outcome.least_force, 0.0)
    if not outcome.split or len(outcome.impulses) != 3:
        return 100.0 + min(pulling, 100.0)
    times = np.subtract(outcome.touches, PUBLISHED_TOUCHES) / 0.01
    ratios = np.divide(outcome.impulses, PUBLISHED_MICRO_IMPULSES) - 1.0
    return float(
        times @ times + ratios @ ratios + error_weight * outcome.peak_error + 5.0 * pulling
    )


def identify(
    seed: int, generations: int, polish: int, error_weight: float, console: Console
) -> DoorParameters:
    """Return the best parameters that a search finds, to four or five digits.

    Args:
        seed: Seed of differential evolution.
        generations: Number of its generations.
        polish: Evaluations of a local search from the parameters in use, instead of differential
            evolution; 0 for none.
        error_weight: Cost of a unit of the spread error.
        console: Where the cost of each generation is printed.
    """
    names, bounds = list(BOUNDS), list(BOUNDS.values())

    def evaluate(z: Array) -> float:
        return compute_cost(dict(zip(names, map(float, z), strict=True)), error_weight)

    def report_cost(intermediate_result: object) -> None:
        console.print(f"cost {getattr(intermediate_result, 'fun', np.nan):.4f}")

    if polish:
        start = [getattr(DoorParameters(), name) for name in names]
        options = {"maxfev": polish, "adaptive": True}
        result = minimize(
            evaluate, start, method="Nelder-Mead", bounds=bounds, callback=report_cost,
            options=options,
        )  # fmt: skip
    else:
        result = differential_evolution(
            evaluate, bounds, x0=[START[name] for name in names], rng=seed, maxiter=generations,
            popsize=4, init="sobol", polish=False, callback=report_cost, tol=0.0,
        )  # fmt: skip
    rounded = {name: float(f"{x:.4g}") for name, x in zip(names, result.x, strict=True)}
    exact = asdict(solve_parameters(rounded))
    return DoorParameters(**{k: float(f"{v:.5g}") for k, v in exact.items()})


def main() -> None:
    """Identify the parameters, and print them beside the published numbers that they meet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--polish", type=int, default=0, help="evaluations, from those in use")
    parser.add_argument("--error-weight", type=float, default=2.0)
    arguments = parser.parse_args()
    console = Console()
    settings = arguments.seed, arguments.generations, arguments.polish, arguments.error_weight
    parameters = identify(*settings, console)
    console.print(make_table("Parameters", ["name", "value"], list(asdict(parameters).items())))
    outcome = track(parameters, Design(), rtol=1e-9)
    achieved = [*solve_impulses(parameters), *outcome.touches, *outcome.impulses]
    published = [*PUBLISHED_IMPULSES, *PUBLISHED_TOUCHES, *PUBLISHED_MICRO_IMPULSES]
    rows = [(f"{p:.4f}", f"{a:.4f}") for p, a in zip(published, achieved, strict=False)]
    console.print(make_table("Achieved", ["published", "found"], rows))
    gap = 1e3 * float(np.diff(outcome.touches)[0])
    console.print(f"{gap:.1f} ms between touches, peak spread error {outcome.peak_error:.4f}")
    console.print(f"least contact force {outcome.least_force:.3f} N")


if __name__ == "__main__":
    main()
