"""The frequencies of no, one and several solutions, and both solvers on the same impacts."""

import json

import numpy as np
import pytest
from hybridctl.experiments.contacts import law as contact_law
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.mechanics.contact_law import CoulombProblem, enumerate_solutions
from hybridctl.mechanics.contact_law.law import CERTIFIED

CONFIG = contact_law.Config(frictions=(0.0, 0.5, 2.0), samples=(20, 10, 6, 4, 1))
BOTH = pytest.mark.parametrize("dimension", [2, 3])


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = RunFolder("contact-law", tmp_path_factory.mktemp("contact-law"), draws=False)
    return folder, contact_law.run(CONFIG, folder, Console(quiet=True))


@pytest.fixture(scope="module")
def rows(result):
    return result[1]["rows"]


def problems(dimension, friction, number=10):
    """Impacts of one to four points, with what they came from."""
    rng = np.random.default_rng(1)
    robot = contact_law.body(dimension)
    contacts = contact_law.corner_contacts(dimension, friction)
    for k in range(number):
        case = contact_law.draw_case(robot, dimension, 1 + k % 4, rng)
        yield robot, case, contact_law.problem_of(robot, contacts, case)


def planar(free, sliding=None):
    """One point in the plane, whose normal and tangent are strongly coupled."""
    mu = np.array([2.0])
    w = np.array([[1.0, 0.9], [0.9, 1.0]])
    return CoulombProblem(w, np.array(free), (np.array([1]),), mu, mu, (sliding,))


def test_every_case_counts_once(rows):
    cases = [(d, k) for d, corners in contact_law.CORNERS.items() for k in range(1, corners + 1)]
    expected = [(d, k, mu) for d, k in cases if k <= 5 for mu in CONFIG.frictions]
    assert [(r["dimension"], r["points"], r["friction"]) for r in rows] == expected
    for row in rows:
        assert row["samples"] == CONFIG.samples[row["points"] - 1]
        total = sum(row[f"{outcome}_percent"] for outcome in contact_law.OUTCOMES)
        assert total == pytest.approx(100.0, rel=1e-12)


def test_without_friction_there_is_always_one_solution(rows):
    frictionless = [row for row in rows if row["friction"] == 0.0]
    assert len(frictionless) == 9
    assert all(row["one_percent"] == 100.0 for row in frictionless)


def test_one_point_in_the_plane_always_has_a_solution(rows):
    single = [row for row in rows if (row["dimension"], row["points"]) == (2, 1)]
    assert len(single) == len(CONFIG.frictions)
    assert all(row["none_percent"] == 0.0 for row in single)


def test_strong_friction_makes_several_solutions(rows):
    strong = [row for row in rows if row["friction"] == 2.0 and row["points"] > 1]
    assert any(row["several_percent"] > 0.0 for row in strong)


def test_iteration_agrees_with_enumeration_where_there_is_one_solution(rows):
    """Both obey the law to CERTIFIED; what that leaves of velocities grows with their conditioning,
    for which a factor of 10 is left."""
    assert max(row["largest_difference"] for row in rows) <= 10.0 * CERTIFIED
    found = [row for row in rows if row["friction"] <= 0.5 and row["points"] <= 2]
    assert all(row["one_but_iteration_finds_none"] == 0 for row in found)
    assert all(row["one_but_iteration_finds_another"] == 0 for row in found)


@BOTH
def test_all_corners_of_a_case_approach(dimension):
    for robot, case, problem in problems(dimension, 0.5):
        points = len(case.corners)
        assert (problem.free[:points] < 0.0).all()
        assert len(set(case.corners)) == points
        # W = J M^-1 J' in the velocity of each point: all its eigenvalues are at least zero,
        # and no more of them are larger than the body has degrees of freedom.
        values = np.linalg.eigvalsh(problem.delassus)
        rounding = len(values) * np.finfo(float).eps * values[-1]
        assert values[0] >= -rounding
        assert (values > rounding).sum() <= robot.nv


@BOTH
def test_solutions_are_plastic_impacts_with_friction(dimension):
    """Without penetration, inside the cone, against sliding, and with no more energy."""
    number = 0
    for robot, case, problem in problems(dimension, 0.5):
        points = len(case.corners)
        size = np.abs(problem.free).max()
        force = size / problem.delassus.diagonal().mean()
        for solution in enumerate_solutions(problem):
            number += 1
            normal, rates = solution.forces[:points], solution.rates
            # The law is obeyed to CERTIFIED of the larger of these units and the largest impulse.
            slack = CERTIFIED * max(
                1.0, np.abs(solution.forces).max() / force, problem.magnitude / size
            )
            assert normal.min() >= -slack * force
            assert rates[:points].min() >= -slack * size
            assert np.abs(normal * rates[:points]).max() <= slack * size * np.abs(normal).max()
            for i, tangents in enumerate(problem.tangents):
                friction, slip = solution.forces[tangents], rates[tangents]
                assert np.linalg.norm(friction) <= 0.5 * normal[i] + 2.0 * slack * force
                assert friction @ slip <= slack * size * np.abs(solution.forces).max()
            # The energy changes by f (w + c) / 2, at most -f W f / 2 where f w <= 0.
            change = 0.5 * solution.forces @ (rates + problem.free)
            energy = 0.5 * case.velocity @ robot.mass_matrix(case.configuration) @ case.velocity
            assert -(1.0 + slack) * energy <= change <= slack * energy
    assert number >= 10


def test_the_outcomes_of_cases_made_by_hand():
    """With 1 - 0.9 mu < 0, friction against a slip to the right pulls the point down.

    A point that separates at 0.8 and slips at 5 may also be held by an impulse of 1 there; one
    that approaches and has to slip to the right has no impulse that stops it.
    """
    assert contact_law.judge(planar([0.8, 5.0])).outcome == contact_law.SEVERAL
    assert contact_law.judge(planar([0.8, -5.0])).outcome == contact_law.ONE
    stuck = contact_law.judge(planar([-1.0, 5.0], np.array([1.0])))
    assert (stuck.outcome, stuck.iterated) == (contact_law.NONE, contact_law.NONE)


def test_the_same_seed_gives_the_same_cases():
    robot = contact_law.body(3)
    one, other = (contact_law.draw_case(robot, 3, 3, np.random.default_rng(5)) for _ in range(2))
    assert one.corners == other.corners
    assert np.array_equal(one.configuration, other.configuration)
    assert np.array_equal(one.velocity, other.velocity)


def test_the_folder_is_complete(result):
    folder, summary = result
    assert json.loads((folder / "summary.json").read_text()) == summary


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("frictions=[]", "frictions must increase"),
        ("frictions=[1,0.5]", "frictions must increase"),
        ("frictions=[-0.5,1]", r"frictions\[0\] must be at least 0"),
        ("frictions=[0,2.5]", r"frictions\[1\] must be at most 2"),
        ("frictions=0.5", "frictions must be a list"),
        ("samples=[]", "samples must have one to five"),
        ("samples=5", "samples must be a list"),
        ("samples=[0]", r"samples\[0\] must be a whole number"),
        ("samples=[1,1,1,1,1,1]", "samples must have one to five"),
        ("seed=-1", "seed must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(contact_law.Config, None, [setting])


def test_quick_takes_few_samples():
    assert contact_law.quick(contact_law.Config(samples=(300, 2))).samples == (8, 2)
