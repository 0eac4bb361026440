"""Two modes of constant rates and one guard: the filter is the push-forward of an affine map."""

import numpy as np
from estimation.piecewise import affine_guard, affine_mode, affine_reset
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridctl as hc
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import linear
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.mode import Transition

# Rounded, so that no product of entries underflows: the tolerance is relative to such products.
ENTRY = st.floats(-2.0, 2.0).map(lambda value: round(value, 6))


def vectors(n):
    return st.lists(ENTRY, min_size=n, max_size=n).map(np.array)


@st.composite
def cases(draw):
    """Rates f before and f' after, reset R x + r, unit normal n, when the guard fires, P0 and Q."""
    n = draw(st.integers(1, 3))
    f, after, shift, x0 = (draw(vectors(n)) for _ in range(4))
    reset, root, density = (draw(vectors(n * n)).reshape(n, n) for _ in range(3))
    normal = draw(vectors(n)) + np.array([3.0, *np.zeros(n - 1)])
    normal /= np.linalg.norm(normal)
    rate = draw(st.floats(0.2, 3.0))
    f = f - (normal @ f + rate) * normal  # so that the guard falls with this rate
    hit = draw(st.floats(0.05, 0.95))
    splits = sorted(draw(st.lists(st.floats(0.0, 1.0), max_size=8)))
    return f, after, reset, shift, normal, hit, x0, root @ root.T, density @ density.T, splits


@settings(max_examples=100)
@given(cases())
def test_covariance_after_an_event_is_the_affine_push_forward_for_any_samples(case):
    """With missing values only: G (P0 + h Q) G^T + (1 - h) Q', G = R + (f' - R f) n^T / (n f)."""
    f, after, reset, shift, normal, hit, x0, p0, q, splits = case
    n = len(f)
    none = np.zeros((n, n))
    offset = -normal @ x0 - hit * (normal @ f)
    system = hc.HybridSystem(
        [affine_mode("I", none, f), affine_mode("J", none, after)],
        [Transition("I", affine_guard("g", normal, offset), affine_reset(reset, shift), "J")],
    )
    densities = {"I": q, "J": 2.0 * q}
    kf = SaltedKalmanFilter(system, densities, linear("z", np.eye(n), np.eye(n)))
    times = np.array([*splits, 1.0])
    record = Record({"z": Series(times, np.full((len(times), n), np.nan))})
    found = kf.run(record, Estimate("I", 0.0, x0, p0)).steps[-1]
    g = reset + np.outer(after - reset @ f, normal) / (normal @ f)
    exact = g @ (p0 + hit * q) @ g.T + (1.0 - hit) * densities["J"]
    assert found.estimate.mode == "J"
    # relative to what is carried: a matrix of rank less than n cancels most of it
    size = np.abs(g) @ np.abs(p0 + hit * q) @ np.abs(g).T + densities["J"]
    assert np.abs(found.estimate.covariance - exact).max() <= 1e-10 * np.abs(size).max()
    mean = reset @ (x0 + hit * f) + shift + (1.0 - hit) * after
    np.testing.assert_allclose(found.estimate.mean, mean, atol=1e-7)
