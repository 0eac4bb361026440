"""Tables of b(t) and K(t) against mu, alpha and K by themselves; laws that are followed later."""

import numpy as np
import pytest

from hybridctl.base.spaces import VectorSpace
from hybridctl.control.gains import GainCurve
from hybridctl.control.phase_reset import ShiftedLaw
from hybridctl.control.tracking_law import ProjectedGain, TrackingLaw
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.series import DEGREE

NX, NU = 3, 2
BREAKS, LENGTHS = np.array([0.2, 0.5, 0.6]), np.array([0.3, 0.1, 0.5])
# Terms of size one to ten, by a product of eleven Chebyshev polynomials with coefficients that a
# matrix of condition below 2 makes of values: some hundred roundings.
ROUNDING = 1e-13
TIMES = np.concatenate((np.linspace(0.0, 1.4, 141), BREAKS, [1.1]))


@pytest.fixture
def arc():
    """Steps whose states and inputs are any polynomials, so that both jump; it ends in the last."""
    rng = np.random.default_rng(3)
    shrink = 0.6 ** np.arange(DEGREE + 1)[:, None]
    states, inputs = (shrink * rng.normal(size=(3, DEGREE + 1, n)) for n in (NX, NU))
    return Arc(0, "air", VectorSpace(NX), 0.2, 1.0, BREAKS, LENGTHS, states, inputs)


def curves():
    rng = np.random.default_rng(4)
    knots = np.array([0.1, 0.35, 0.5, 0.55, 0.6, 0.9, 1.3])
    values, slopes = rng.normal(size=(2, len(knots), NU, NX))
    apart = np.array([0.3, 0.4])
    return {
        "cubics": GainCurve(knots, values, slopes),
        "lines": GainCurve(knots, values),
        "inside the arc": GainCurve(apart, values[:2], slopes[:2]),
        "constant": GainCurve.constant(values[0]),
    }


@pytest.mark.parametrize("name", curves())
def test_a_table_has_the_terms_of_the_law(arc, name):
    law, table = (
        TrackingLaw(arc, curves()[name], None, is_tabulated=is_tabulated)
        for is_tabulated in (False, True)
    )
    for found, expected in zip(
        table.find_offsets_and_gains(TIMES), law.find_offsets_and_gains(TIMES), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=ROUNDING)
    rng = np.random.default_rng(5)
    for t in TIMES[::7].tolist():
        x = rng.normal(size=NX)
        np.testing.assert_allclose(table(t, x), law(t, x), atol=10.0 * ROUNDING)


def test_a_knot_within_rounding_of_a_jump_of_the_input_does_not_blur_it(arc):
    """Else both sides of the jump would be values of one polynomial between them."""
    before = np.nextafter(0.6, 0.0)
    knots = np.array([0.2, before, 1.1])
    gain = GainCurve(knots, np.random.default_rng(7).normal(size=(3, NU, NX)))
    law, table = (
        TrackingLaw(arc, gain, None, is_tabulated=is_tabulated) for is_tabulated in (False, True)
    )
    times = np.array([np.nextafter(before, 0.0), before, 0.6])
    for found, expected in zip(
        table.find_offsets_and_gains(times), law.find_offsets_and_gains(times), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=ROUNDING)


@pytest.mark.parametrize("is_tabulated", [False, True])
def test_a_projected_gain_has_no_table_and_is_followed_as_it_is(arc, is_tabulated):
    removed, curve = np.diag([1.0, 0.0, 0.0]), curves()["cubics"]
    gain = ProjectedGain(curve, removed, 0.4, 0.7, 0.1)
    offsets, gains = TrackingLaw(arc, gain, None, is_tabulated).find_offsets_and_gains(TIMES)
    alpha, mu = arc.states_and_inputs(TIMES)
    inside = np.maximum(np.minimum(TIMES - 0.4, 0.7 - TIMES), 0.0)
    weight = (1.0 - np.exp(-inside / 0.1))[:, None, None]
    k = curve(TIMES) @ (np.eye(NX) - weight * removed)
    np.testing.assert_allclose(gains, k, atol=ROUNDING)
    np.testing.assert_allclose(offsets, mu + (k @ alpha[:, :, None])[:, :, 0], atol=ROUNDING)


def test_a_law_is_followed_later_with_an_input_added_and_cut_to_the_limits(arc):
    free = TrackingLaw(arc, curves()["cubics"], None, is_tabulated=True)
    limits, added = np.array([[-0.5, -1.0], [0.5, 1.0]]), np.array([0.3, -0.2])
    later = ShiftedLaw(free, limits, 0.25, added)
    rng = np.random.default_rng(6)
    for t in (0.5, 0.81, 1.2):
        x = rng.normal(size=NX)
        expected = np.clip(free(t - 0.25, x) + added, *limits)
        np.testing.assert_allclose(later(t, x), expected, atol=10.0 * ROUNDING)
    offsets, gains = later.find_offsets_and_gains(TIMES)
    before, same = free.find_offsets_and_gains(TIMES - 0.25)
    np.testing.assert_allclose(offsets, before + added, atol=ROUNDING)
    np.testing.assert_array_equal(gains, same)
    np.testing.assert_array_equal(
        ShiftedLaw(free, None, 0.25).find_offsets_and_gains(TIMES)[0], before
    )
