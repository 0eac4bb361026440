"""Coulomb's law for an impact has one solution without friction; with it none, one or several.

Corners of a cube hit at random attitudes and velocities, in a vertical plane and in space, all
of them approaching level ground (each at its own height). Every case is solved twice: by
trying all sets of contact states, and by Newton's method from the solutions of cone programmes.
By the sets, a case has

- one, none, or several velocities after the impact;
- a family: more points than their normals' rank (3 in space, 2 in the plane) can share friction
  in more than one way, which connects solutions to a continuum.

The sets can miss solutions where contacts begin to slide in space, which takes Newton's method,
and where impulses are not unique: the last columns count cases in which iteration finds another.

The same attitudes and velocities serve every coefficient of friction; impacts are plastic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from hybridctl.robots import cube
from hybridctl.robots.bodies import free_body
from rich.console import Console

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import ORANGE, SKY, VERMILION, make_figure, save_figure
from hybridctl.app.report import make_record_table, show_progress
from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SeveralContactSolutionsError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Meta, Natural, Settings
from hybridctl.mechanics import Contact, Robot
from hybridctl.mechanics.contact_law import CoulombProblem, CoulombSolution, enumerate_solutions
from hybridctl.mechanics.contact_law.law import CERTIFIED, scale_problem
from hybridctl.mechanics.contact_law.solver import search_by_newton, select_least_norm_solution
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet

SUMMARY = "how often Coulomb's law for an impact has no, one, or several solutions"

NONE, ONE, SEVERAL, FAMILY = OUTCOMES = ("none", "one", "several", "family")
SAME, ANOTHER = "same", "another"
CORNERS = {2: 4, 3: 8}  # by dimension
PLACES = {2: "a plane", 3: "space"}
PROGRAMMES = 60  # starts of Newton's method; a choice
NEAR = 1e-6  # of the fastest row; distance up to which two solutions are one
SHADES = {
    ONE: ("one", SKY),
    FAMILY: ("a family, connected", ORANGE),
    SEVERAL: ("several, apart", VERMILION),
    NONE: ("none found", "black"),
}


@dataclass(frozen=True)
class Config(Settings):
    """The random cases.

    Attributes:
        frictions: Coefficients of friction, each between 0 and 2.
        samples: Numbers of cases of 1, 2, ... points.
        seed: Seed of the cases.
    """

    frictions: tuple[Annotated[float, Meta(ge=0.0, le=2.0)], ...] = (0.0, 0.25, 0.5, 1.0, 2.0)
    samples: tuple[Count, ...] = (100, 50, 30, 12, 4)
    seed: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.frictions or (np.diff(self.frictions) <= 0.0).any():
            raise InputError(f"frictions must increase, got {self.frictions}")
        if not 1 <= len(self.samples) <= 5:
            raise InputError(f"samples must have one to five entries, got {self.samples!r}")


class ImpactCase(NamedTuple):
    """An impact of a body.

    Attributes:
        corners: Indices of the corners that touch.
        configuration: Configuration (nq,) at the impact.
        velocity: Velocity (nv,) before it.
    """

    corners: tuple[int, ...]
    configuration: Array
    velocity: Array


class Verdict(NamedTuple):
    """The solutions of one case.

    Attributes:
        outcome: What enumeration finds.
        iterated: Whether iteration finds none, the same as enumeration, or another.
        difference: Difference of their velocities, relative to the fastest before the impact, where
            enumeration finds exactly one and iteration the same.
    """

    outcome: str
    iterated: str
    difference: float = 0.0


def full(config: Config) -> Config:
    """Return the settings with so many samples that shares are known to some per cent."""
    return replace(config, samples=(300, 150, 100, 50, 20))


def quick(config: Config) -> Config:
    """Return the settings with a few samples of up to four points."""
    return replace(config, samples=tuple(min(n, 8) for n in config.samples[:4]))


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of all cases, in the plane and in space."""
    rng = np.random.default_rng(config.seed)
    rows = []
    for dimension, corners in CORNERS.items():
        robot = body(dimension)
        numbers = config.samples[:corners]
        with show_progress(console, 0.0, float(sum(numbers))) as begin:
            tick = begin(f"in {PLACES[dimension]}")
            for points, number in enumerate(numbers, 1):
                cases = [draw_case(robot, dimension, points, rng) for _ in range(number)]
                done = float(sum(numbers[: points - 1]))
                rows += _judge_cases(config, robot, dimension, cases, done, tick)
    apart = max(row["largest_difference"] for row in rows)
    single = [row["none_percent"] for row in rows if row["points"] == 1]
    said = "relative difference of enumeration and iteration where there is one solution"
    tables = [
        make_record_table(
            f"Solutions of Coulomb's law for an impact in {place}, % of the samples",
            [row for row in rows if row["dimension"] == dimension],
            COLUMNS,
        )
        for dimension, place in PLACES.items()
    ]
    return Findings(
        {"rows": rows},
        [*tables, LEGEND],
        [
            Check(said, apart, 10.0 * CERTIFIED),
            Check("impacts of one point without a solution [%]", max(single), 0.0),
        ],
        draw=lambda folder: _draw_shares(rows, folder),
    )


def body(dimension: int) -> Robot:
    """Return the cube, which moves in the vertical plane or in space.

    Args:
        dimension: 2 or 3.
    """
    if dimension == 3:
        return cube.robot()
    p = cube.CubeParameters()
    return Robot.from_urdf(free_body("cube", p.mass, (p.inertia,) * 3), root="sagittal")


def corner_contacts(dimension: int, friction: float) -> list[Contact]:
    """Return the corners; in the plane those on one side, seen along y.

    Args:
        dimension: 2 or 3.
        friction: Coefficient of friction.
    """
    contacts = cube.contacts(cube.CubeParameters(friction=friction))
    return [c for c in contacts if dimension == 3 or c.offset[1] < 0.0]


def draw_case(robot: Robot, dimension: int, points: int, rng: np.random.Generator) -> ImpactCase:
    """Return random corners, attitude and velocity; the velocity is drawn until all approach.

    Args:
        robot: The cube.
        dimension: 2 or 3.
        points: Number of corners.
        rng: Source of random numbers.
    """
    corners = tuple(sorted(rng.choice(CORNERS[dimension], points, replace=False).tolist()))
    q = robot.integrate(robot.neutral(), rng.uniform(-np.pi, np.pi, robot.nv))
    contacts = corner_contacts(dimension, friction=0.0)
    normals = ContactSet(robot, [contacts[i] for i in corners]).jacobian(q)
    scale = np.ones(robot.nv)
    scale[dimension:] = 1.0 / cube.CubeParameters().half_width
    while True:
        v = scale * rng.normal(size=robot.nv)
        if (normals @ v < 0.0).all():
            return ImpactCase(corners, q, v)


def problem_of(robot: Robot, contacts: Sequence[Contact], case: ImpactCase) -> CoulombProblem:
    """Return the law for a plastic impact of the corners of a case.

    Args:
        robot: The cube.
        contacts: Its corners.
        case: The impact.
    """
    hit = [contacts[i] for i in case.corners]
    rows = ContactSet(robot, hit)
    jacobian = rows.jacobian(case.configuration)
    mass = robot.mass_matrix(case.configuration)
    friction = np.array([contact.friction for contact in hit])
    return CoulombProblem(
        jacobian @ np.linalg.solve(mass, jacobian.T),
        jacobian @ case.velocity,
        rows.tangents,
        friction,
        friction,
        (None,) * len(hit),
        float((np.abs(jacobian) @ np.abs(case.velocity)).max()),
    )


def _judge_cases(
    config: Config,
    robot: Robot,
    dimension: int,
    cases: Sequence[ImpactCase],
    done: float,
    tick: Callable[[float], None],
) -> list[dict[str, Any]]:
    """Return a row of summary.json for each friction, over cases of one number of points.

    Args:
        config: Settings.
        robot: The cube.
        dimension: 2 or 3.
        cases: The cases.
        done: Number of cases before these.
        tick: Function that is called with the number of all cases that are done.
    """
    verdicts: dict[float, list[Verdict]] = {friction: [] for friction in config.frictions}
    for k, case in enumerate(cases, 1):
        for friction, found in verdicts.items():
            contacts = corner_contacts(dimension, friction)
            found.append(judge(problem_of(robot, contacts, case)))
        tick(done + k)
    rows = []
    for friction, found in verdicts.items():
        pairs = Counter((v.outcome, v.iterated) for v in found)
        outcomes = Counter(v.outcome for v in found)
        rows.append(
            {
                "points": len(cases[0].corners),
                "dimension": dimension,
                "friction": friction,
                "samples": len(found),
                **{f"{o}_percent": 100.0 * outcomes[o] / len(found) for o in OUTCOMES},
                "largest_difference": max(v.difference for v in found),
                "one_but_iteration_finds_none": pairs[ONE, NONE],
                "one_but_iteration_finds_another": pairs[ONE, ANOTHER],
                "none_but_iteration_finds_one": pairs[NONE, ANOTHER],
            }
        )
    return rows


def judge(problem: CoulombProblem) -> Verdict:
    """Return the verdict on one case, solved both ways.

    Args:
        problem: The law of the impact.
    """
    enumerated = enumerate_solutions(problem)
    plain, units = scale_problem(problem)
    iterated = units.restore(search_by_newton(plain, PROGRAMMES))
    outcome = _classify_solutions(problem, enumerated)
    if iterated.residual > CERTIFIED:
        return Verdict(outcome, NONE)
    # largest difference of the points' velocities after the impact, relative to before it
    fastest = np.abs(problem.free).max()
    differences = (float(np.abs(s.rates - iterated.rates).max() / fastest) for s in enumerated)
    apart = min(differences, default=np.inf)
    if apart > NEAR:
        return Verdict(outcome, ANOTHER)
    return Verdict(outcome, SAME, apart if outcome == ONE else 0.0)


def _classify_solutions(problem: CoulombProblem, found: Sequence[CoulombSolution]) -> str:
    """Return which of `OUTCOMES` a set of solutions is."""
    if len(found) < 2:
        return ONE if found else NONE
    try:
        select_least_norm_solution(problem, found)
    except SeveralContactSolutionsError:
        return SEVERAL
    return FAMILY


COLUMNS = {
    "points": "{points}",
    "friction": "{friction:g}",
    "samples": "{samples}",
    **{outcome: f"{{{outcome}_percent:.1f}}" for outcome in OUTCOMES},
    "difference": "{largest_difference:.0e}",
    "no solution": "{one_but_iteration_finds_none}",
    "another": "{one_but_iteration_finds_another}",
    "added": "{none_but_iteration_finds_one}",
}
LEGEND = (
    "none to family: outcome of enumeration\n"
    "difference: of iteration from enumeration, relative, where there is one solution\n"
    "no solution, another: cases where enumeration finds one solution, and what iteration finds\n"
    "added: cases where iteration alone finds a solution"
)


def _draw_shares(rows: Sequence[dict[str, Any]], folder: RunFolder) -> None:
    """Save shares of the outcomes as bars over friction, a picture for each number of points.

    Args:
        rows: Rows of summary.json.
        folder: Folder of the run.
    """
    most = max(row["points"] for row in rows)
    figure = make_figure(1.6 + 2.0 * most, 4.6)
    cells = figure.subplots(len(PLACES), most, squeeze=False, sharex=True, sharey=True)
    for line, (dimension, place) in zip(cells, PLACES.items(), strict=True):
        line[0].set_ylabel(f"in {place} [% of impacts]")
        for points, axes in enumerate(line, 1):
            chosen = [r for r in rows if (r["points"], r["dimension"]) == (points, dimension)]
            axes.set_visible(bool(chosen))
            bottom = np.zeros(len(chosen))
            for outcome, (label, color) in SHADES.items():
                percent = np.array([row[f"{outcome}_percent"] for row in chosen])
                axes.bar(range(len(chosen)), percent, bottom=bottom, color=color, label=label)
                bottom += percent
            axes.set_xticks(range(len(chosen)), [f"{row['friction']:g}" for row in chosen])
            words = "1 point" if points == 1 else f"{points} points"
            title = f"{words}, {chosen[0]['samples']} cases" if chosen else ""
            axes.set_title(title, fontsize=9)
    for axes in cells[-1]:
        axes.set_xlabel("friction")
        axes.tick_params(labelbottom=True)
    figure.legend(*cells[-1][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle("How many solutions Coulomb's law has for a random impact")
    save_figure(figure, folder / "figures/solutions.png")
