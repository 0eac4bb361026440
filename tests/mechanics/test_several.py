"""What an impact says of other solutions, and which of several is chosen."""

import numpy as np
import pytest
from hybridctl.robots import ball

import hybridctl as hc
from hybridctl.base.errors import InputError, NoContactSolutionError, SeveralContactSolutionsError
from hybridctl.mechanics import ContactDynamics
from hybridctl.mechanics.contact_law import CoulombProblem, solve
from hybridctl.mechanics.impacts.impact import impact
from mechanics.impacts import random_body, random_motion


def several_velocities():
    """Bodies in the plane with strong friction whose impact has several velocities."""
    rng = np.random.default_rng(11)
    while True:
        dynamics = random_body(rng, True, 3, friction=2.0, restitution=0.0)
        q, v = random_motion(rng, dynamics)
        try:
            impact(dynamics, q, v, (0, 1, 2))
        except SeveralContactSolutionsError as error:
            yield dynamics, q, v, error


def test_the_solution_of_greatest_dissipation_is_taken_if_asked_for():
    """Its kinetic energy after the impact is the least among all that the error names."""
    for _, (dynamics, q, v, error) in zip(range(3), several_velocities(), strict=False):
        chooses = ContactDynamics(dynamics.robot, dynamics.contacts, on_several="dissipation")
        result = impact(chooses, q, v, (0, 1, 2))
        assert result.uniqueness == "disproven"
        mass, rows = dynamics.robot.mass_matrix(q), dynamics.contact_set.jacobian(q)
        ends = [v + np.linalg.solve(mass, rows.T @ s.forces) for s in error.solutions]
        energies = [0.5 * end @ mass @ end for end in ends]
        assert len(energies) > 1
        after = result.velocity_after
        # energies are sums of some ten products
        np.testing.assert_allclose(0.5 * after @ mass @ after, min(energies), rtol=1e-12)


def test_a_rule_that_there_is_not_is_refused():
    robot, contacts = ball.system().robot, ball.system().contacts
    with pytest.raises(InputError, match="on_several"):
        hc.mechanics.contact_system(robot, contacts, on_several="first")


def test_an_event_says_whether_its_outcome_is_the_only_one(tmp_path):
    system = ball.system()
    run = hc.simulate(system, ("open",), [0.0, 1.0, 0.0, 0.0], (0.0, 0.6))
    event = run.events[0]
    assert event.report.uniqueness == event.uniqueness == "proven"
    assert "uniqueness proven" in repr(event)
    assert "<td>proven</td>" in event._repr_html_()
    run.save(tmp_path / "run.npz")
    loaded = hc.HybridTrajectory.load(tmp_path / "run.npz", system).events[0]
    assert (loaded.uniqueness, loaded.accuracy) == ("proven", event.accuracy)


def test_no_solution_is_told_from_one_that_is_not_found():
    """Two contacts that approach each other's side of one coordinate: no rates help both."""
    facing = np.array([[1.0, -1.0], [-1.0, 1.0]])
    none = np.zeros(0, dtype=np.intp)
    free = np.array([-1.0, -1.0])
    problem = CoulombProblem(facing, free, (none,) * 2, np.zeros(2), np.zeros(2), (None,) * 2)
    with pytest.raises(NoContactSolutionError, match="has no solution here") as refusal:
        solve(problem)
    assert not refusal.value.numerical
