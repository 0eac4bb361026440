"""Readings: even clocks, gaps, and the record that they become."""

import numpy as np
import pytest
from legged.machine import machine

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.estimation.record import Series
from hybridctl.legged.readings import (
    Hysteresis,
    Readings,
    stood,
    uniform_stamps,
)

CONTACT = Hysteresis(100.0, 50.0)


def readings(times, loads=None, **changed):
    n, rng = len(times), np.random.default_rng(0)
    parts = {
        "inertial": Series(times, rng.normal(size=(n, 6))),
        "angles": Series(times, rng.normal(size=(n, 6))),
        "loads": {} if loads is None else loads,
    }
    return Readings(**(parts | changed))


def test_an_even_clock_goes_through_stamps_that_arrive_late_by_turns():
    """Errors are those of a line through n stamps with jitter s: at most 2 s / sqrt(n) here."""
    rng = np.random.default_rng(1)
    true = 5.0 + 0.01 * np.arange(1000)
    jitter = 0.002
    found = uniform_stamps(true + rng.uniform(0.0, jitter, 1000))
    spread = jitter / np.sqrt(12.0)
    assert np.abs(found - true - 0.5 * jitter).max() < 5.0 * 2.0 * spread / np.sqrt(1000)
    np.testing.assert_allclose(np.diff(found), np.diff(found)[0], rtol=1e-9)


def test_an_even_clock_leaves_room_for_what_is_missing():
    true = 0.01 * np.concatenate([np.arange(100), np.arange(120, 300)])
    np.testing.assert_allclose(uniform_stamps(true), true, atol=1e-12)
    assert uniform_stamps(true[:2]).tolist() == true[:2].tolist()


def test_gaps_are_found_and_stand_in_the_input():
    base, _ = machine()
    times = 0.01 * np.concatenate([np.arange(10), np.arange(30, 40)])
    given = readings(times)
    np.testing.assert_allclose(given.gaps, [[0.09, 0.3]])
    u = given.record(base, CONTACT).inputs
    np.testing.assert_allclose(u.values[:, 6], np.where(np.arange(20) == 9, 0.21, 0.0))
    middle = 0.5 * (given.inertial.values[3] + given.inertial.values[4])
    np.testing.assert_allclose(u.values[3, :6], middle)
    np.testing.assert_array_equal(u.values[:, base.angle_columns], given.angles.values)


@pytest.mark.parametrize(("periods", "missing"), [(2.9, 0.0), (3.1, 3.1)])
def test_a_gap_is_longer_than_three_periods(periods, missing):
    """Two samples in a row may be late or lost; what is longer is filled in by the model."""
    times = np.cumsum([0.0, *[1.0] * 5, periods, *[1.0] * 5])
    u = readings(times).record(machine()[0], CONTACT).inputs
    np.testing.assert_allclose(u.values[:, 6], np.where(np.arange(12) == 5, missing, 0.0))


@pytest.mark.parametrize(("force", "down"), [(74.0, False), (76.0, True)])
def test_forces_between_both_limits_are_of_the_side_that_is_nearer(force, down):
    """Where none of them ever says more."""
    assert CONTACT.states(np.full(3, force)).tolist() == [down] * 3


def test_only_rows_that_change_a_contact_are_left_of_the_forces():
    base, _ = machine()
    times = 0.1 * np.arange(6)
    force = Series(times, [200.0, 60.0, 20.0, 70.0, 120.0, 130.0])
    given = readings(times, {"left sole": force})
    record = given.record(base, CONTACT, ground=0.02)
    found = record.channels["load left sole"]
    np.testing.assert_allclose(found.times, [0.2, 0.4])
    np.testing.assert_allclose(found.values[:, 0], [20.0, 120.0])
    np.testing.assert_allclose(record.channels["ground"].times, [0.4])
    assert given.standing(CONTACT) == {"left sole": True}


def test_a_missing_force_is_filled_in_where_the_weight_is_known():
    base, _ = machine()
    times = 0.1 * np.arange(4)
    loads = {
        "left sole": Series(times, [150.0, 150.0, np.nan, np.nan]),
        "right sole": Series(times, [150.0, 150.0, 290.0, 150.0]),
    }
    record = readings(times, loads).filled(300.0).record(base, CONTACT)
    found = record.channels["load left sole"]
    np.testing.assert_allclose(found.times, [0.2, 0.3])
    np.testing.assert_allclose(found.values[:, 0], [10.0, 150.0])
    empty = readings(times, loads).record(base, CONTACT)
    assert not len(empty.channels["load left sole"].times)


def test_contacts_count_once_the_ground_has_given_way():
    """That at the first row has begun before it, and one that is shorter than the wait is none."""
    times = 0.1 * np.arange(12)
    down = np.array([1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0])
    given = readings(times, {"left sole": Series(times, 200.0 * down)})
    found = given.settled(CONTACT, 0.2).loads["left sole"].values[:, 0]
    later = np.array([1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(CONTACT.states(found), later == 1)
    np.testing.assert_array_equal(found[later == 1], 200.0)
    np.testing.assert_array_equal(
        given.settled(CONTACT, 0.0).loads["left sole"].values[:, 0], 200.0 * down
    )


def test_a_robot_stands_until_a_joint_moves():
    """For 2 s at most; one whose joints move within 0.2 s walks already."""
    times, rng = 0.01 * np.arange(500), np.random.default_rng(0)
    noise = 1e-3 * rng.normal(size=(500, 3))
    for begin, expected in ((0.1, 0.0), (0.8, 0.8), (9.0, 2.0)):
        moved = np.where(times >= begin - 1e-9, 0.1, 0.0)[:, None] * [0.0, 1.0, 0.0]
        assert stood(Series(7.0 + times, noise + moved)) == pytest.approx(expected)


def test_rows_in_any_order_are_the_same_record():
    base, _ = machine()
    times = 0.1 * np.arange(8)
    given = readings(times)
    order = np.random.default_rng(2).permutation(8)
    mixed = [Series(s.times[order], s.values[order]) for s in (given.inertial, given.angles)]
    other = Readings(*mixed, {})
    assert other.disorder
    one, two = (r.uniform().record(base, CONTACT) for r in (given, other))
    np.testing.assert_array_equal(one.inputs.values, two.inputs.values)
    np.testing.assert_array_equal(one.channels["angles"].values, two.channels["angles"].values)


def test_a_start_needs_no_more_than_the_record_has():
    """Angles at half the rate, from the second sample on; a row is missing in each."""
    base, _ = machine()
    times = 0.01 * np.arange(40)
    angles = np.random.default_rng(2).normal(size=(19, 6))
    angles[7], inertial = np.nan, np.random.default_rng(3).normal(size=(40, 6))
    inertial[11, 2] = np.nan
    given = readings(times, inertial=Series(times, inertial), angles=Series(times[1:39:2], angles))
    whole, start = given.record(base, CONTACT), given.start_record(base)
    columns = [*range(6), *range(base.angle_columns.start, base.angle_columns.stop)]
    np.testing.assert_array_equal(start.inputs.times, whole.inputs.times)
    np.testing.assert_array_equal(start.inputs.values[:, columns], whole.inputs.values[:, columns])
    for name in ("times", "values"):
        ours, theirs = (getattr(r.channels["angles"], name) for r in (start, whole))
        np.testing.assert_array_equal(ours, theirs)


def test_the_last_value_is_held():
    series = Series(np.array([0.0, 1.0]), np.array([[5.0], [6.0]]))
    np.testing.assert_array_equal(
        series.hold_last(np.array([-1.0, 0.5, 1.0]))[:, 0], [5.0, 5.0, 6.0]
    )


def test_what_does_not_fit_is_refused():
    base, _ = machine()
    times = np.arange(3.0)
    with pytest.raises(InputError, match="inertial must have 6 columns, rate and force, got 5"):
        readings(times, inertial=Series(times, np.zeros((3, 5))))
    with pytest.raises(InputError, match="two rows without missing values"):
        readings(times, inertial=Series(times, np.full((3, 6), np.nan)))
    with pytest.raises(InputError, match="angles must have 6 columns"):
        readings(times, angles=Series(times, np.zeros((3, 2)))).record(base, CONTACT)
    with pytest.raises(UnknownNameError, match="did you mean 'left sole'"):
        readings(times, {"left sol": Series(times, np.zeros(3))}).record(base, CONTACT)
