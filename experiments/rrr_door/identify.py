"""Find parameters for the RRR-door model, which the thesis does not print.

    python -m hybridctl.experiments.rrr_door.identify --seed 0 --generations 40

What is published: the ante-impact task-space state (5.26), the impulses that it gives (Table
5.1), and the micro-events of one perturbed run (Table 5.2). For any choice of the free
parameters below, two more (door inertia, lateral offset of the foot's centre of mass) are solved
so that the impulses of Table 5.1 are met exactly. Differential evolution then looks among the
free ones for a perturbed run that no contact would have to pull in, that is near Table 5.2, and
whose spread error stays small between the touches. These two pull apart: `--error-weight` says
what a unit of the error (rad, rad/s together) costs, where 0.01 s off a touch costs 1. The result
is one plausible choice, not the robot of the thesis.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace

import numpy as np
from hybridctl.experiments.rrr_door.laws import law, run_beside
from hybridctl.experiments.rrr_door.reference import CLOSED, Design, build, impact_state
from hybridctl.experiments.rrr_door.tracking import (
    PERTURBATION,
    PUBLISHED_REFERENCE,
    PUBLISHED_TRACKING,
    Config,
    least_force,
    schedule,
)
from hybridctl.robots.rrr_door import DoorParameters, contacts, robot, system
from rich.console import Console
from scipy.optimize import differential_evolution, least_squares, minimize

from hybridctl.app.report import table
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
MARGIN = 1.0  # N, wanted between any contact force and zero


@dataclass(frozen=True)
class CandidateRun:
    """A tracked run of one candidate."""

    touches: tuple[float, ...]
    impulses: tuple[float, ...]
    least_force: float
    peak_error: float
    split: bool


def complete(free: dict[str, float]) -> DoorParameters:
    """Parameters with the two solved ones, and links of evenly spread mass."""
    base = DoorParameters()
    lengths = free["upper_arm_length"], free["forearm_length"]
    masses = free["upper_arm_mass"], free["forearm_mass"]
    links = {
        "upper_arm_inertia": masses[0] * lengths[0] ** 2 / 12.0,
        "forearm_inertia": masses[1] * lengths[1] ** 2 / 12.0,
        "hinge_ahead": Design().impact_y[0] + 0.5 * base.door_thickness,
    }
    partial = replace(base, **free, **links)

    def with_solved(z: Array) -> DoorParameters:
        return replace(partial, door_inertia=float(np.exp(z[0])), foot_center_right=float(z[1]))

    def residual(z: Array) -> Array:
        return impulses(with_solved(z)) - PUBLISHED_IMPULSES

    solution = least_squares(
        residual, [np.log(3.0), 0.0], bounds=([np.log(0.5), -0.1], [np.log(20.0), 0.1])
    )
    return with_solved(solution.x)


def impulses(parameters: DoorParameters) -> Array:
    """Impulses of the nominal impact, both corners acting, from the state (5.26)."""
    dynamics = ContactDynamics(robot(parameters), contacts(parameters))
    q, v = impact_state(parameters, Design())
    mass, rows = dynamics.robot.mass_matrix(q), dynamics.gap_jacobian(q)
    return np.asarray(np.linalg.solve(rows @ np.linalg.solve(mass, rows.T), -rows @ v))


def track(parameters: DoorParameters, design: Design, rtol: float = 1e-6) -> CandidateRun:
    """The perturbed run (5.29)-(5.31) of the experiment's own controller."""
    plant = system(parameters)
    reference = build(plant, parameters, design, rtol=1e-8, atol=1e-8)
    policy = law("spreading", plant, reference, schedule(Config(), reference))
    deviation, to = np.array(PERTURBATION), (rtol, rtol)
    run = run_beside(plant, reference, policy, deviation, to, end=1.5, max_events=4)
    modes = [event.mode_after for event in run.events]
    split = modes == [("closed", "open"), CLOSED]
    return CandidateRun(
        tuple(event.time for event in run.events),
        tuple(float(x) for event in run.events for x in event.impulses if x > 0.0),
        min(least_force(plant, run), least_force(plant, reference.nominal)),
        tracking_error(reference, run, "spread", 5e-3).peak,
        split,
    )


def cost(free: dict[str, float], error_weight: float = 2.0) -> float:
    """Distance from Table 5.2, spread error, and penalties for pulling and missing splits."""
    try:
        parameters = complete(free)
        mismatch = float(np.abs(impulses(parameters) - PUBLISHED_IMPULSES).max())
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
    """The best parameters found, by so many generations or, from those in use, evaluations."""
    names = list(BOUNDS)

    def objective(z: Array) -> float:
        return cost(dict(zip(names, map(float, z), strict=True)), error_weight)

    def report(intermediate_result: object) -> None:
        console.print(f"cost {getattr(intermediate_result, 'fun', np.nan):.4f}")

    if polish:
        start = [getattr(DoorParameters(), name) for name in names]
        found = minimize(objective, start, method="Nelder-Mead", bounds=list(BOUNDS.values()),
                         callback=report, options={"maxfev": polish, "adaptive": True})  # fmt: skip
        return rounded(names, found.x)
    result = differential_evolution(
        objective,
        list(BOUNDS.values()),
        x0=[START[name] for name in names],
        rng=seed,
        maxiter=generations,
        popsize=4,
        init="sobol",
        polish=False,
        callback=report,
        tol=0.0,
    )
    return rounded(names, result.x)


def rounded(names: list[str], values: Array) -> DoorParameters:
    """The parameters of a candidate, to four or five digits."""
    exact = complete({name: float(f"{x:.4g}") for name, x in zip(names, values, strict=True)})
    return DoorParameters(**{k: float(f"{v:.5g}") for k, v in asdict(exact).items()})


def main() -> None:
    """Identify, and print parameters and what they achieve."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--polish", type=int, default=0, help="evaluations, from those in use")
    parser.add_argument("--error-weight", type=float, default=2.0)
    arguments = parser.parse_args()
    console = Console()
    settings = arguments.seed, arguments.generations, arguments.polish, arguments.error_weight
    parameters = identify(*settings, console)
    console.print(table("Parameters", ["name", "value"], list(asdict(parameters).items())))
    outcome = track(parameters, Design(), rtol=1e-9)
    achieved = [*impulses(parameters), *outcome.touches, *outcome.impulses]
    published = [*PUBLISHED_IMPULSES, *PUBLISHED_TOUCHES, *PUBLISHED_MICRO_IMPULSES]
    rows = [(f"{p:.4f}", f"{a:.4f}") for p, a in zip(published, achieved, strict=False)]
    console.print(table("Achieved", ["published", "found"], rows))
    gap = 1e3 * float(np.diff(outcome.touches)[0])
    console.print(f"{gap:.1f} ms between touches, spread error {outcome.peak_error:.4f}")
    console.print(f"least contact force {outcome.least_force:.3f} N")
    console.print(f"peak spread error {outcome.peak_error:.3f}")


if __name__ == "__main__":
    main()
