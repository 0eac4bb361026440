"""The door by optimisation: its reference, its controllers, and what the experiment leaves."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.experiments.door_optimal import door_optimal
from hybridctl.experiments.door_optimal.reference import (
    CLOSE,
    LET_GO,
    ExpectedTracking,
    Wanted,
    build_published,
    find_optimum,
)
from hybridctl.experiments.rrr_door.runner import CUT, Member, SpringGains, Stage
from hybridctl.robots.rrr_door import DoorParameters
from rich.console import Console

import hybridctl as hc
from hybridctl.base.errors import HybridctlError, InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.control.extension import RULES, extend_by_rule
from hybridctl.control.feasibility import feasibility
from hybridctl.control.tuning.ensemble import outcome

START = np.log((5.0, 1.0, 5.0, 1.0))


def member(start):
    """One that is off its start by so much, and nowhere else."""
    return Member(DoorParameters(), start, np.zeros(3), 0.0)


@pytest.fixture(scope="module")
def known():
    return build_published()


def test_spring_gains_have_the_frequency_and_damping_of_one_joint(known):
    plant, reference = known
    structure = SpringGains.build(plant, reference)
    schedule = structure.schedule(np.log((4.0, 0.5, 3.0, 1.0)))
    first = schedule.arcs[0](0.0)
    mass = plant.robot.mass_matrix(reference.events[0].state_before[:4])[1, 1]
    assert first[1, 1] == pytest.approx(16.0 * mass)
    assert first[1, 5] == pytest.approx(4.0 * mass)
    assert np.count_nonzero(first) == 6
    for curve in schedule.phantoms.values():
        np.testing.assert_array_equal(curve(0.0), first)


@pytest.mark.parametrize("name", door_optimal.LAWS)
def test_every_controller_stays_on_the_reference(known, name):
    """From its start and without errors, up to the tolerance of simulations and late detection."""
    plant, reference = known
    stage = Stage(plant, reference, window=0.02, delay=1e-4)
    gains = SpringGains.build(plant, reference).schedule(START)
    found = outcome(reference, stage.run(name, gains, member(np.zeros(8))))
    assert found.error < (1e-2 if name.endswith("late") else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["plain", "friction"])
def test_the_optimum_presses_more_in_either_order_than_the_published_reference(known, variant):
    wanted = Wanted()
    found = find_optimum(variant, wanted, known[1])
    optimum = found.optimum
    assert optimum.mismatch < 1e-6, "violation after simulation"
    assert optimum.margin > 2.0
    assert optimum.run.events[0].time == pytest.approx(1.0, abs=1e-6)
    assert len(optimum.run.events) == 1
    if variant == "plain":
        reports = [
            feasibility(plant, reference)
            for plant, reference in ((found.plant, found.extend_reference(wanted.spread)), known)
        ]
        assert reports[0].failures == ()
        ours, theirs = (report.events[0] for report in reports)
        assert ours.least_impulse > 3.0 * theirs.least_impulse
        assert min(ours.phantom_margin.values()) > 3.0 * min(theirs.phantom_margin.values())
        asked = (1.0 + optimum.margin) * (1.0 - 1e-4)
        assert min(ours.phantom_margin.values()) >= asked * wanted.force
        assert ours.least_impulse >= asked * wanted.impulse


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", [pytest.param("release", marks=pytest.mark.long), "friction-release"]
)
def test_both_corners_let_go_at_once_and_spreading_follows_when_they_do_not(known, variant):
    """The door swings on by itself; from a start that is off, corners leave one by one."""
    wanted = Wanted()
    found = find_optimum(variant, wanted, known[1])
    run = found.optimum.run
    assert found.optimum.mismatch < 1e-6, "violation after simulation"
    assert [event.guards for event in run.events] == [CLOSE, LET_GO]
    assert run.events[1].time == pytest.approx(1.0 + wanted.hold, abs=1e-6)
    assert run.final_state[3] == pytest.approx(wanted.angle, abs=1e-6)
    np.testing.assert_allclose(run.final_state[:3], run(0.0)[:3], atol=1e-6)
    reference = found.extend_reference(0.15)
    release = feasibility(found.plant, reference).events[1]
    assert max(release.guard_rates.values()) <= -wanted.unload * (1.0 - 1e-6)
    assert release.growing
    assert release.associativity == pytest.approx(0.0, abs=1e-12), "nothing jumps"
    stage = Stage(found.plant, reference, window=0.02, delay=1e-3)
    gains = SpringGains.build(found.plant, reference).schedule(START)
    off = np.array([-0.02, 0.01, 0.01, 0.0, 0.02, -0.02, 0.01, 0.0])
    tracked = stage.run("spreading", gains, member(off))
    fired = [guard for event in tracked.events for guard in event.guards]
    assert set(fired[-2:]) == set(LET_GO)
    assert tracked.final_mode == ("open", "open")
    error = np.abs(tracked.final_state - run.final_state)[:3]
    assert error.max() < 0.1, "it decays at 5 rad/s for a second"


@pytest.mark.slow
def test_arcs_are_feasible_over_the_spread_that_the_perturbations_leave(known):
    """By the torques of the optimum; an optimum that knows nothing of it fails by any rule."""
    config = door_optimal.Config()
    expected = ExpectedTracking(config.perturbations, config.start)

    def extended(found, rule):
        return extend_by_rule(
            expected.close_loop(hc.linearize(found.plant, found.optimum.run)),
            expected.perturbations.covariance,
            input_covariance=expected.perturbations.input_covariance,
            rule=rule,
            spread=CUT,
            limits=np.full(3, config.wanted.torque),
        )

    found = find_optimum("plain", config.wanted, known[1], expected=expected)
    extension = extended(found, found.optimum.feedforward)
    assert 0.02 < CUT * extension.deviations[0] <= found.spread
    assert extension.failures == ()
    short = find_optimum("plain", replace(config.wanted, spread=1e-9), known[1])
    assert short.optimum.margin - found.optimum.margin < 0.05, "it costs next to nothing"
    for rule in (*RULES, short.optimum.feedforward):
        assert any("corner_1 opens' falls to" in text for text in extended(short, rule).failures)


@pytest.mark.slow
@pytest.mark.long
def test_four_of_five_random_guesses_reach_one_optimum(known):
    """States at the ends of both arcs moved by 0.1 rad and rad/s (standard deviation)."""
    random, costs = np.random.default_rng(1), []
    for _ in range(5):
        try:
            noise = 0.1 * random.normal(size=(4, 8))
            costs.append(find_optimum("plain", Wanted(), known[1], noise).optimum.cost)
        except HybridctlError:
            costs.append(np.inf)
    best = min(costs)
    assert sum(cost <= best + 1e-6 * abs(best) for cost in costs) >= 4, costs


@pytest.mark.slow
def test_the_experiment_leaves_a_complete_folder(tmp_path):
    config = door_optimal.quick(door_optimal.Config())
    folder = RunFolder("door-optimal", tmp_path)
    summary = door_optimal.run(config, folder, Console(quiet=True))
    stored = json.loads((folder / "summary.json").read_text())
    assert stored.keys() == summary.keys()
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert checks
    assert all(check["holds"] for check in checks)
    assert set(stored["controllers"]["optimal"]) == set(door_optimal.LAWS)
    assert stored["references"]["plain"]["margin"] > 3.0
    assert (folder / "figures/comparison.png").stat().st_size > 10000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('variants=["other"]', "variant"),
        ('references=["other"]', "reference"),
        ("peak_input=0", "peak_input must be greater"),
        ("start=[1, 2]", "must be a list of length 4"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(door_optimal.Config, None, [setting])
