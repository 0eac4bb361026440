"""The walking experiment shows what its docstring claims."""

import json
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hybridctl.experiments.walking import (
    biped_walk,
    controllers,
    filtered,
    limits,
    phase_laws,
    tables,
)
from hybridctl.experiments.walking import walk as walks
from hybridctl.robots import five_link
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration
from hybridctl.control.controller import Controller
from hybridctl.control.detection import DetectedPolicy, Detection
from hybridctl.control.detectors import ModeFlags, Threshold
from hybridctl.hybrid.plant import SimulatedPlant
from hybridctl.hybrid.policy import History

CONFIG = biped_walk.quick(biped_walk.Config())
STEPS = 3


@pytest.fixture(scope="module")
def designs(gait):
    weights = controllers.Weights(*CONFIG.weights)
    return {jumps: controllers.design(gait, weights, jumps) for jumps in ("saltation", "reset")}


@pytest.fixture(scope="module")
def tracks(gait, designs):
    return controllers.Tracks.of(gait, designs["saltation"], STEPS, CONFIG.extension)


def test_without_saltation_the_design_is_worse(gait, designs):
    summary = tables.make_walk_record(gait, designs["saltation"], designs["reset"])
    closed = summary["multipliers_closed"]
    blind = summary["multipliers_closed_without_saltation"]
    assert closed[0] < 0.5 * blind[0]
    assert closed[0] < 1.0 < summary["multipliers_open"][0]
    assert summary["multipliers_trivial"]["translation"] == pytest.approx([1.0], abs=1e-6)


@pytest.mark.parametrize("name", controllers.NAMES)
def test_every_controller_walks_from_the_orbit(gait, tracks, designs, name):
    policy = tracks.policy(name, designs["saltation"], CONFIG.torque)
    found = walks.walk(gait, policy, gait.middle, STEPS)
    assert found.steps == STEPS
    assert found.reason == ""
    assert found.compute_errors(gait).max() < 1e-5


def test_being_late_costs_nothing_where_the_phase_is_chosen_by_value(gait, tracks, designs):
    """At a state of the orbit the reference of that state is found, whatever the clock says."""
    policy = tracks.policy("value", designs["saltation"], CONFIG.torque)
    for now, shift in ((0.61, 0.05), (0.41, -0.03)):
        law = policy.law(History(("stick", "open"), now + shift, gait.orbit(now)))
        u = law(now + shift, gait.orbit(now))
        np.testing.assert_allclose(u, gait.curve(0)(now), atol=1e-5)


def test_touchdowns_that_are_known_late_change_the_walk(gait, tracks, designs):
    policy = tracks.policy("spreading", designs["saltation"], CONFIG.torque)
    ends = [
        walks.walk(gait, DetectedPolicy(policy, Detection(delay)), gait.middle, 2).run.final_state
        for delay in (0.0, 0.005)
    ]
    nominal = walks.walk(gait, policy, gait.middle, 2).run.final_state
    np.testing.assert_array_equal(ends[0], nominal)
    assert np.abs(ends[1] - nominal).max() > 1e-3


def test_impulses_of_the_landing_foot_explain_a_touchdown_that_releases_the_other(tracks):
    """The event closes one contact and opens another; rows are normal and tangent of the first.

    It sticks, so that the tangential impulse lies inside the friction cone, and its bound.
    """
    for event, impact in zip(tracks.reference.events[:2], tracks.reference.impacts, strict=False):
        before, after = event.mode_before, event.mode_after
        assert sorted((before, after)) == [("open", "stick"), ("stick", "open")]
        assert impact.jacobian.shape == (2, 7)
        change = (event.state_after - event.state_before)[7:]
        explanation = impact.explanation()
        np.testing.assert_allclose(explanation.explain(change), change, atol=1e-7)
        normal, tangent = explanation.fit_impulses(change)
        assert normal == pytest.approx(event.impulses.max(), rel=1e-6)
        assert 0.0 < abs(tangent) < impact.greatest[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spreading", "value"])
def test_its_policies_walk_in_a_loop_at_250_hertz(gait, tracks, designs, name):
    """Touchdowns are known at the sample after them, torques are held: still on the orbit."""
    policy = tracks.policy(name, designs["saltation"], CONFIG.torque)
    feet = ("left closes", "right closes")
    loop = Controller(
        gait.walker,
        policy,
        0.004,
        Threshold(ModeFlags(), feet, closed=[0]),
        mode=five_link.LEFT_STANCE,
        reference=tracks.reference,
        limits=[CONFIG.torque] * 4,
    )
    plant = SimulatedPlant(gait.walker, five_link.LEFT_STANCE, 0.004, rtol=1e-7, atol=1e-7)
    sample, commands = plant.reset(0.5 * gait.period, gait.middle), []
    for _ in range(round(2.0 * gait.period / 0.004)):
        commands.append(loop.step(*sample))
        sample = plant.step(commands[-1].u)
    assert {command.status for command in commands} == {"ok"}
    assert loop.fault is None
    assert commands[-1].position.macro == 2
    run = replace(plant.run(), events=plant.run().guard_events)
    assert [event.mode_after for event in run.events] == [walks.STANCES[1], walks.STANCES[0]]
    off = sample.state - tracks.reference.nominal(sample.time)
    assert np.abs(off[1:]).max() < 0.3


def test_values_are_those_of_the_other_foot_seen_through_the_exchange(gait, designs):
    """V just before a touchdown is V just after it, taken through the jump: V- = G' V+ G."""
    lqr = designs["saltation"]
    values = phase_laws.ValueFunction.of(lqr, gait.period, 0.1)
    jump = gait.map.jumps[0].state
    i, j = (int(np.abs(values.phases - s).argmin()) for s in (gait.period, 0.0))
    before, after = lqr.period.values[0].end, lqr.period.values[1].start
    np.testing.assert_allclose(jump.T @ after @ jump, before, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(values.left[i + 5], before, atol=1e-9 * np.abs(before).max())
    np.testing.assert_allclose(values.right[j - 5], after, atol=1e-9 * np.abs(after).max())


def test_errors_shrink_from_a_random_start(gait, tracks, designs):
    policy = tracks.policy("spreading", designs["saltation"], CONFIG.torque)
    start = walks.draw_start(gait, np.random.default_rng(0), (0.01, 0.05))
    held = gait.walker.mode(("stick", "open")).held
    assert np.abs(held.residuals(start)).max() < 1e-9, "the stance foot rests on the ground"
    errors = walks.walk(gait, policy, start, STEPS).compute_errors(gait)
    assert errors[2] < 0.1 * errors[0]


@pytest.mark.slow
def test_fifty_steps_are_walked_from_twenty_starts_in_mid_step(gait, designs):
    lqr, config = designs["saltation"], biped_walk.Config()
    policy = controllers.Tracks.of(gait, lqr, 50, config.extension).policy(
        "spreading", lqr, config.torque
    )
    random = np.random.default_rng(0)
    found = [
        walks.walk(gait, policy, walks.draw_start(gait, random, config.scatter), 50)
        for _ in range(20)
    ]
    assert [(each.steps, each.reason) for each in found] == [(50, "")] * 20
    assert max(each.compute_errors(gait)[-1] for each in found) < 1e-5


def test_a_push_gives_its_impulse_and_leaves_the_foot(gait):
    """The momentum that the hip gets is that of the push and of the ground together."""
    after = walks.push_state(gait, 5.0)
    dynamics, q = gait.walker.dynamics, gait.middle[:7]
    rates = dynamics.contact_set.jacobian(q)[[0, 2]] @ after[7:]
    np.testing.assert_allclose(rates, 0.0, atol=1e-9)
    gained = gait.walker.robot.mass_matrix(q) @ (after - gait.middle)[7:]
    ground = dynamics.contact_set.jacobian(q)[[0, 2]].T
    expected = 5.0 * np.eye(7)[0]
    left = gained - expected - ground @ np.linalg.lstsq(ground, gained - expected, rcond=None)[0]
    np.testing.assert_allclose(left, 0.0, atol=1e-9)


def test_a_push_that_is_too_hard_is_a_fall_with_a_reason(gait, tracks, designs):
    policy = tracks.policy("spreading", designs["saltation"], CONFIG.torque)
    found = walks.walk(gait, policy, walks.push_state(gait, 60.0), STEPS)
    assert found.steps < STEPS
    assert found.reason


@pytest.mark.parametrize("height", [0.005, -0.01])
def test_small_steps_up_and_down_are_walked(gait, tracks, designs, height):
    policy = tracks.policy("spreading", designs["saltation"], CONFIG.torque)
    found = walks.walk_over_step(gait, policy, height, STEPS)
    assert (found.steps, found.reason) == (STEPS, "")


@pytest.mark.slow
def test_a_push_that_makes_the_next_landing_slip_is_walked_where_the_cone_is_known(monkeypatch):
    """13 N s forwards on a gait that lands at the edge of its cone; without it the foot slides.

    Its own landings use 70 % of friction: the law is to have more than on the gait that ships.
    """
    settings = {"USED": 0.95, "PRESSED": 5.0, "SAMPLE": 0.02, "PATIENCE": 0.02}
    for name, value in settings.items():
        monkeypatch.setattr(controllers, name, value)
    gait = biped_walk.find_gait(replace(CONFIG, share=0.7, early=0.0, late=0.0), CONFIG.speed)
    lqr = controllers.design(gait, controllers.Weights(*CONFIG.weights))
    tracks = controllers.Tracks.of(gait, lqr, STEPS, CONFIG.extension)
    found = {
        name: walks.walk(
            gait, tracks.policy(name, lqr, CONFIG.torque), walks.push_state(gait, 13.0), STEPS
        )
        for name in ("value", "cone")
    }
    assert (found["cone"].steps, found["cone"].reason) == (STEPS, "")
    assert found["value"].steps == 0
    assert "right slip+" in found["value"].reason


@pytest.mark.slow
def test_a_gait_with_room_in_its_cone_takes_a_push_that_makes_the_other_slip(gait, tracks, designs):
    """The same push, and more than twice that of the gait that uses 70 % of friction.

    Of 25 N s the standing foot slips where the force on it is not kept.
    """
    for impulse in (13.0, 25.0, -30.0):
        policy = tracks.policy("cone", designs["saltation"], CONFIG.torque)
        found = walks.walk(gait, policy, walks.push_state(gait, impulse), STEPS)
        assert (found.steps, found.reason) == (STEPS, ""), impulse


@pytest.mark.parametrize("name", ["spreading", "value", "phase"])
def test_a_foot_that_is_late_is_not_waited_for(gait, tracks, designs, name):
    """All laws go on with the next arc 20 ms after the touchdown of the one that they are on."""
    policy = tracks.policy(name, designs["saltation"], CONFIG.torque)
    late = gait.period + controllers.PATIENCE
    for time, k in ((late - 1e-6, 0), (late + 1e-6, 1)):
        x = tracks.reference.arcs[k](time)
        history = History(five_link.LEFT_STANCE, time, x)
        u = policy.law(history)(time, x)
        if name != "value":  # which is at the phase of the state, not of the clock
            np.testing.assert_allclose(u, gait.curve(k)(time), atol=1e-5)
    if name != "value":
        early = replace(history, time=gait.period)
        assert policy.next_change(early) == pytest.approx(late, abs=1e-6)


def test_a_step_down_is_walked_where_the_next_leg_is_stretched_in_time(gait, tracks, designs):
    policy = tracks.policy("value", designs["saltation"], CONFIG.torque)
    found = walks.walk_over_step(gait, policy, -0.1, STEPS)
    assert (found.steps, found.reason) == (STEPS, "")


def test_the_last_that_is_survived_is_found_from_any_guess():
    for last in range(13):
        for guess in range(15):
            asked: list[int] = []

            def survives(n, last=last, asked=asked):
                asked.append(n)
                return n <= last

            assert limits.find_last_survived(survives, guess, 12) == last
            assert len(asked) == len(set(asked))
            assert all(1 <= n <= 12 for n in asked)
            survived = sum(n <= last for n in asked)
            assert survived <= (1 if guess >= last else 6)  # these take time


def _states(changes):
    """States after touchdowns that differ by these amounts, in any one direction."""
    way = np.zeros(13)
    way[4] = 1.0
    return np.outer(np.cumsum([0.0, *changes]), way)


def test_a_walk_repeats_where_what_is_left_of_its_changes_is_little():
    """At most the last change where they shrink by half or faster, and m times it where not."""
    assert walks.is_repeating(_states([0.1, 0.01, 0.001]), 40)
    assert not walks.is_repeating(_states([0.1, 0.01, 0.0011]), 40)
    assert walks.is_repeating(_states([0.01, 0.0015, 0.0011]), 1)
    assert walks.is_repeating(_states([1.25e-3, 5e-4, 4e-4]), 3), "4e-4 (.8 + .64 + .512) = 7.8e-4"
    assert not walks.is_repeating(_states([1.25e-3, 5e-4, 4e-4]), 5), "1.08e-3"
    assert walks.is_repeating(_states([2.4e-5] * 4), 40)
    assert walks.is_repeating(_states([0.0, 1e-12, 1e-10, 1e-9]), 40), "errors of simulation"


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_walk_repeats_every_few_steps(p):
    """In a cycle of p steps, and on the way to one by changes that are halved from step to step."""
    cycle, needed = [0.1] * (p - 1) + [-0.1 * (p - 1)], 2 * p + 1
    assert walks.is_repeating(_states((cycle * 3)[:needed]), 40)
    assert not walks.is_repeating(_states((cycle * 3)[: needed - 1]), 40), "too few to tell"
    nears = [c + 1e-3 * 0.5**k for k, c in enumerate((cycle * 3)[:needed])]
    assert walks.is_repeating(_states(nears), 40)


def test_a_walk_does_not_repeat_in_five_steps():
    assert not walks.is_repeating(_states([0.1, 0.1, 0.1, 0.1, -0.4] * 4), 40)


@pytest.mark.parametrize(
    "changes",
    [
        [1e-5] * 2,  # too few
        [2.6e-5] * 4,  # drifts by 1.04e-3 in 40 steps
        [0.1, 1e-3, 2.6e-5, 2.6e-5, 2.6e-5],  # the same, after what dies out fast
        [1e-6, 1.2e-6, 1.44e-6],  # grows by 1.2^40 = 1470
        [0.1, -0.1, 0.1, -0.0999, 0.1],  # every second step is the same, but it drifts
        [0.1, 0.2, -0.2999] * 3,  # so does every third one
    ],
)
def test_a_walk_does_not_repeat_while_its_changes_may_add_up(changes):
    assert not walks.is_repeating(_states(changes), 40)


def test_steps_that_repeat_too_slowly_are_not_all_walked_in_time(gait, tracks, designs):
    """A walk in whole ends after half as long again as the steps of the gait take, too."""
    policy = tracks.policy("value", designs["saltation"], CONFIG.torque)
    touchdowns = walks.walk(gait, policy, gait.middle, STEPS + 1).run.guard_events
    end = touchdowns[-1].time + 40 * gait.period
    assert walks.can_skip_rest(gait, touchdowns, 40, end + 0.01)
    assert not walks.can_skip_rest(gait, touchdowns, 40, end - 0.01)


def test_the_longest_of_four_steps_in_turn_tells_whether_there_is_time(gait):
    """Twelve touchdowns in a cycle of four, whose last step but two takes 0.9 s, the others 0.6."""
    turn, way = np.linalg.inv(gait.symmetry.matrix), np.eye(14)[5]
    lengths = np.where(np.arange(12) % 4 == 1, 0.9, 0.6)
    touchdowns = [
        SimpleNamespace(time=time, state_after=state if k % 2 == 0 else turn @ state)
        for k, time in enumerate(np.cumsum(lengths))
        for state in [0.1 * (k % 4) * way]
    ]
    end = touchdowns[-1].time + 8 * 0.9
    assert walks.can_skip_rest(gait, touchdowns, 8, end + 0.01)
    assert not walks.can_skip_rest(gait, touchdowns, 8, end - 0.01)


TRIALS = [
    ("value", "push forward", 15.0),
    ("value", "push back", 37.0),
    ("spreading", "push forward", 8.0),
    ("spreading", "slope up", 6.0),
    ("spreading", "heavier", 60.0),
    ("reset", "push forward", 15.0),
    ("reset", "slope down", 2.0),
    ("phase", "push forward", 12.0),
    ("phase", "slope up", 3.0),
    ("phase", "up", 7.0),
    ("phase", "late", 20.0),
    ("clock", "push back", 24.0),
    ("clock", "slope up", 4.0),
    ("clock", "down", 6.0),
    ("cone", "slope up", 12.0),
]


@pytest.fixture(scope="module")
def long_tracks(gait, designs):
    return {
        jumps: controllers.Tracks.of(gait, lqr, 50, CONFIG.extension)
        for jumps, lqr in designs.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "size"), TRIALS)
def test_walks_that_repeat_end_as_they_do_in_whole(gait, designs, long_tracks, name, kind, size):
    """Near the limits of each law, beyond some, and on slopes with steps of another length."""
    jumps = "reset" if name == "reset" else "saltation"
    policy = long_tracks[jumps].policy(name, designs[jumps], CONFIG.torque)
    start = walks.draw_start(gait, np.random.default_rng(28), (0.01, 0.05))
    whole, short = (
        limits.run_trial(gait, policy, kind, size, start, 50, whole=whole)
        for whole in (True, False)
    )
    assert (short.steps, short.reason) == (whole.steps, whole.reason)


def test_a_standing_foot_that_stays_as_the_other_lands_ends_a_walk(gait):
    """Knees bent, on ground of friction 3, without torques."""
    walker = five_link.system(friction=3.0)
    x = np.array([0.0, 0.7100, -0.3124, -0.2675, 0.9326, 0.4498, 0.5316, *np.zeros(7)])
    for _ in range(20):
        x[:7] -= np.linalg.pinv(walker.dynamics.gap_jacobian(x[:7])) @ walker.dynamics.gaps(x[:7])
    rates = np.array([0.0, -0.5, 0.0, 1.0])
    x[7:] = np.linalg.pinv(walker.dynamics.contact_set.jacobian(x[:7])) @ rates
    x[:7] -= 0.001 * x[7:]
    x = walker.mode(five_link.LEFT_STANCE).project(x)
    found = walks.walk(gait, lambda t, x: np.zeros(4), x, STEPS, walker)
    assert found.steps == 0
    assert found.reason.startswith("both feet down at")


def test_gains_over_many_steps_have_one_knot_where_two_periods_meet(designs):
    """Two knots that differ by rounding alone become one when the gains are moved in time."""
    lqr = designs["saltation"]
    apart = min(np.diff(curve.times).min() for curve in lqr.repeated(12)[1].arcs)
    once = min(np.diff(curve.times).min() for curve in lqr.period.gains.arcs)
    assert apart == pytest.approx(once, rel=1e-6)


def test_a_mistake_of_a_policy_is_not_a_fall(gait):
    def policy(t, x):
        raise InputError("u must be finite")

    with pytest.raises(InputError, match="finite"):
        walks.walk(gait, policy, gait.middle, STEPS)


def test_all_controllers_try_the_same_weights():
    first = controllers.Weights()
    tried = limits.draw_weights(first, 4, np.random.default_rng(0))
    assert len(tried) == 4
    assert tried[0] == first
    again = limits.draw_weights(first, 4, np.random.default_rng(0))
    assert tried == again


@pytest.mark.slow
def test_the_whole_experiment_leaves_a_complete_folder(tmp_path):
    config = biped_walk.quick(biped_walk.Config(full=True))
    folder = RunFolder("biped-walk", tmp_path)
    summary = biped_walk.run(config, folder, Console(quiet=True))
    stored = json.loads((folder / "summary.json").read_text())
    assert stored.keys() == summary.keys()
    assert {"multipliers_open", "multipliers_closed", "steps_walked"} <= stored.keys()
    assert stored["steps_walked"] == [config.steps]
    assert set(stored["limits"]) == set(controllers.NAMES)
    assert set(stored["limits"]["predictive"]) == set(config.kinds)
    kept = (folder / biped_walk.RECORD).read_text().splitlines()
    assert len(kept) == 1 + len(controllers.NAMES) * (1 + len(config.kinds))
    after_push = stored["predictive_on_estimates"]
    assert after_push["steps_walked"] == [config.filtered_steps]
    assert max(after_push["errors"]) < 0.1
    for name in ("gait.png", "limits.png"):
        assert (folder / "figures" / name).stat().st_size > 10000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("speed=0", "speed must be greater"),
        ("weights=[1, 2]", "must be a list of length 3"),
        ("steps=0", "steps must be"),
        ("scatter=[-1, 0]", r"scatter\[0\] must be at least"),
        ('kinds=["kick"]', r"\[0\] .kick. is unknown"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(biped_walk.Config, None, [setting])


@pytest.fixture(scope="module")
def soft(gait):
    """Gains for walks on estimates, and what they track."""
    lqr = controllers.design(gait, controllers.Weights(torques=CONFIG.filtered_weight))
    return controllers.Tracks.of(gait, lqr, 6, CONFIG.extension), lqr


def test_a_slip_under_torques_of_an_estimate_is_a_fall(soft):
    """Encoders off by 3 rad: the torques of the first sample break the foot loose at its start."""
    sensing = filtered.Sensing(3000.0, "saltation")
    found = filtered.walk_on_estimates(*soft, CONFIG.torque, sensing, seed=0).walk
    assert found.steps == 0
    assert "slips" in found.reason


@pytest.mark.slow
def test_on_estimates_the_salted_filter_walks_where_the_reset_jacobian_is_lost(soft):
    """At 0.3 mrad of encoders, 0.6 mrad of inclination and 3 mrad/s of its rate.

    The walker goes on for some steps on an estimate that is wrong by a radian, and falls later.
    """
    walked = {
        strategy: filtered.walk_on_estimates(
            *soft, CONFIG.torque, filtered.Sensing(0.3, strategy), seed=0
        )
        for strategy in filtered.STRATEGIES
    }
    salted, blind = walked["saltation"], walked["reset_jacobian"]
    assert (salted.walk.steps, salted.walk.reason) == (5, "")
    assert salted.error < 0.1
    assert blind.error > 10.0 * salted.error


@pytest.mark.parametrize(
    ("full", "asked", "cc"), list(product((True, False), (True, False), ("cc", None)))
)
def test_machine_code_is_for_full_runs_where_there_is_a_compiler(monkeypatch, full, asked, cc):
    """Of the walker's functions, and of the predictive controller's, on estimates too."""
    config, found = replace(CONFIG, full=full, compiled=asked), {}

    class FewTracks:
        def policy(self, name, lqr, torque, *, compiled):
            found[name] = compiled

    monkeypatch.setattr(biped_walk, "find_compiler", lambda: cc)
    monkeypatch.setattr(biped_walk, "optimise_gait", lambda speed, **options: found.update(options))
    monkeypatch.setattr(biped_walk, "design", lambda gait, weights: None)
    monkeypatch.setattr(biped_walk, "walk_on_estimates", lambda *given: given[-1])
    monkeypatch.setattr(biped_walk.Tracks, "of", lambda *given: FewTracks())
    biped_walk.find_gait(config, config.speed)
    biped_walk._walk_after_push(config, None, 0)
    assert found["terms"] == ("native" if full and asked and cc else "auto")
    assert found["predictive"] == (asked and cc is not None)
