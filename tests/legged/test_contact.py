"""Forces as evidence of contact: hysteresis, probability, and a force that is missing."""

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.legged.readings import Hysteresis, completed

NAN = np.nan
CONTACT = Hysteresis(100.0, 50.0)


@pytest.mark.parametrize(
    ("forces", "expected"),
    [
        ([0.0, 99.0, 100.0, 60.0, 50.0, 99.0], [0, 0, 1, 1, 0, 0]),
        ([200.0, NAN, 70.0, 20.0, NAN, 70.0], [1, 1, 1, 0, 0, 0]),
        ([70.0, 80.0, 200.0], [1, 1, 1]),  # between the two: what it is where it is known first
        ([70.0, 80.0, 20.0], [0, 0, 0]),
        ([70.0, 71.0], [0, 0]),  # never known: by the middle
        ([80.0, NAN], [1, 1]),
        ([NAN, NAN], [0, 0]),
    ],
)
def test_a_foot_stays_in_contact_until_its_force_is_low(forces, expected):
    np.testing.assert_array_equal(CONTACT.states(np.array(forces)), np.array(expected, dtype=bool))


def test_forces_say_how_likely_contact_is():
    """Even in the middle of the thresholds, e^2 to one at the upper, a million to one at most."""
    odds = [CONTACT.log_odds(force) for force in (75.0, 100.0, 50.0, 1e4, -1e9)]
    np.testing.assert_allclose(odds, [0.0, 2.0, -2.0, np.log(1e6), -np.log(1e6)], atol=1e-12)


def test_one_missing_force_is_what_the_others_leave():
    forces = np.array([[100.0, NAN, 50.0], [NAN, NAN, 1.0], [1.0, 2.0, 3.0]])
    found = completed(forces, 400.0)
    np.testing.assert_array_equal(found, [[100.0, 250.0, 50.0], [NAN, NAN, 1.0], [1.0, 2.0, 3.0]])


def test_thresholds_in_the_wrong_order_are_refused():
    with pytest.raises(InputError, match="off must be below on, got off = 5"):
        Hysteresis(5.0, 5.0)
