"""What speaks against contacts: too many short ones, and feet that never step while others do."""

from types import SimpleNamespace

import numpy as np
import pytest
from legged.machine import machine

from hybridctl.legged.contact_checks import (
    count_contact_changes,
    find_suspicious_contacts,
)
from hybridctl.legged.readings import Hysteresis

BASE, _ = machine()
LEFT, RIGHT = BASE.feet
CONTACT, STEP, PERIOD = Hysteresis(100.0, 50.0), 0.5, 0.01  # N, s, s
STANDS = np.ones(1000, dtype=bool)


def filtered(left, right):
    """What a filter made of a log, as far as contacts are checked: modes at rows 10 ms apart."""
    names = {True: "stick", False: "open"}
    modes = [(names[bool(a)], names[bool(b)]) for a, b in zip(left, right, strict=True)]
    return SimpleNamespace(modes=modes, times=PERIOD * np.arange(len(modes)))


def contacts(*lengths):
    """Rows of a foot whose contacts have these lengths in rows, five rows apart."""
    rows = np.zeros(len(STANDS), dtype=bool)
    begin = 5
    for length in lengths:
        rows[begin : begin + length] = True
        begin += length + 5
    return rows


def check_contacts(left, right, loads=(LEFT, RIGHT)):
    return find_suspicious_contacts(
        BASE, CONTACT, filtered(left, right), STEP, dict.fromkeys(loads)
    )


def test_touchdowns_and_lift_offs_are_counted_by_foot():
    """A contact that stands at the begin has no touchdown, one at the end no lift-off."""
    left = np.array([True, True, False, True, False, False])
    right = np.array([False, True, False, True, True, True])
    found = count_contact_changes(BASE, filtered(left, right))
    assert found == {LEFT: (1, 2), RIGHT: (2, 1)}


@pytest.mark.parametrize(
    ("lengths", "short"),
    [
        ((50, 10, 50, 50, 50), None),  # one
        ((50, 10, 10, 50, 50), "2 of 3"),
        ((50, 11, 11, 50, 50), None),  # 100 ms from their first row to their last
        ((10, 50, 50, 50, 10), None),  # the log may cut the first and the last
        ((10, 10, 10, 50, 10), "2 of 3"),
        ((50, *(10,) * 2, *(50,) * 8, 50), None),  # a fifth
        ((50, *(10,) * 3, *(50,) * 7, 50), "3 of 10"),
    ],
)
def test_a_foot_with_many_short_contacts_chatters(lengths, short):
    """Short is less than a fifth of a step, 0.1 s; many is more than one, and than a fifth."""
    found = check_contacts(contacts(*lengths), contacts(50, 50, 50))
    if short is None:
        assert found == []
    else:
        (flag,) = found
        assert flag.startswith(f"{short} contacts of {LEFT!r} are shorter than 0.1 s")
    assert check_contacts(contacts(*lengths), contacts(50, 50, 50), loads=(RIGHT,)) == []


@pytest.mark.parametrize(("stands", "word"), [(STANDS, "always"), (~STANDS, "never")])
def test_a_foot_that_takes_no_steps_while_another_does_is_named(stands, word):
    (flag,) = check_contacts(contacts(50, 50, 50), stands)
    assert flag.startswith(f"{RIGHT!r} is {word} in contact while others step")
    assert "thresholds of 100 and 50 N" in flag


def test_a_robot_that_stands_or_is_lifted_once_takes_no_steps():
    assert check_contacts(STANDS, STANDS) == []
    lifted = np.arange(len(STANDS)) < 100
    assert check_contacts(lifted, STANDS) == []
