"""Without events the filter is a Kalman filter: dense Gaussian algebra, and any step size."""

import numpy as np
import pytest
from estimation.systems import affine
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.estimation.estimate import Estimate, nearest_semidefinite
from hybridctl.estimation.measurement import Measurement, linear
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter

A = np.array([[0.0, 1.0, 0.0], [-4.0, -0.3, 0.5], [0.0, 0.2, -1.5]])
C = np.array([0.3, -9.81, 0.2])
Q = np.diag([1e-3, 0.2, 0.05])
P0 = np.diag([0.04, 0.1, 0.2]) + 0.01
X0 = np.array([0.5, -0.2, 0.1])
H = np.array([[1.0, 0.0, 0.3], [0.0, 1.0, 0.0]])
R = np.array([[0.01, 0.002], [0.002, 0.03]])


def start():
    return Estimate("flow", 0.0, X0, P0)


def kalman(**options):
    tight = FilterOptions(**{"rtol": 1e-9, "atol": 1e-9, **options})
    return SaltedKalmanFilter(affine(A, C), Q, linear("z", H, R, gate=None), options=tight)


@pytest.mark.parametrize("writeable", [True, False])
def test_a_jacobian_that_is_not_finite_is_refused(writeable):
    h = np.where(H == 0.3, np.nan, H)
    h.flags.writeable = writeable
    measured = Measurement("z", lambda m, t, x, u: H @ x, lambda m, t, x, u: h, R)
    kf = SaltedKalmanFilter(affine(A, C), Q, measured)
    with pytest.raises(InputError, match="Jacobian of 'z' must be finite"):
        kf.update(start(), "z", np.zeros(2))


def discrete(h):
    """Phi, the offset of the mean, and the gathered noise over h, by matrix exponentials."""
    n = len(A)
    both = expm(h * np.block([[-A, Q], [np.zeros((n, n)), A.T]]))
    phi = both[n:, n:].T
    shift = expm(h * np.block([[A, C[:, None]], [np.zeros((1, n + 1))]]))[:n, n]
    return phi, shift, phi @ both[:n, n:]


def dense(times, values):
    """Mean and covariance of the last state given all values, from the joint distribution."""
    n, k = len(A), len(times)
    maps, noises, means = [np.eye(n)], [np.zeros((n, n))], [X0]
    for h in np.diff([0.0, *times]):
        phi, shift, gathered = discrete(h)
        maps.append(phi)
        noises.append(gathered)
        means.append(phi @ means[-1] + shift)
    covariance = np.zeros((n * (k + 1), n * (k + 1)))
    for i in range(k + 1):
        to_i = np.eye(n)
        factors = {i: to_i}
        for j in range(i, 0, -1):
            to_i = to_i @ maps[j]
            factors[j - 1] = to_i
        for other in range(k + 1):
            to_other, others = np.eye(n), {other: np.eye(n)}
            for j in range(other, 0, -1):
                to_other = to_other @ maps[j]
                others[j - 1] = to_other
            covariance[n * i : n * i + n, n * other : n * other + n] = sum(
                factors[s] @ (P0 if s == 0 else noises[s]) @ others[s].T
                for s in range(min(i, other) + 1)
            )
    mean = np.concatenate(means)
    pick = np.kron(np.eye(k), H) @ np.eye(n * (k + 1))[n:]
    s = pick @ covariance @ pick.T + np.kron(np.eye(k), R)
    gain = np.linalg.solve(s, pick @ covariance).T
    mean = mean + gain @ (values.ravel() - pick @ mean)
    covariance = covariance - gain @ pick @ covariance
    return mean[-n:], covariance[-n:, -n:]


def test_it_is_the_dense_gaussian_solution_with_irregular_and_duplicate_stamps():
    times = np.array([0.1, 0.15, 0.15, 0.6, 0.61, 1.4])
    values = np.random.default_rng(0).normal(size=(6, 2))
    found = kalman().run(Record({"z": Series(times, values)}), start()).steps[-1].estimate
    mean, covariance = dense(times, values)
    # the mean follows a simulation of relative tolerance 1e-9
    np.testing.assert_allclose(found.mean, mean, atol=1e-7)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9, atol=1e-12)


def test_shuffled_stamps_are_sorted_and_counted_and_missing_rows_change_nothing():
    times = np.array([0.1, 0.15, 0.6, 0.61, 1.4])
    values = np.random.default_rng(1).normal(size=(5, 2))
    right = kalman().run(Record({"z": Series(times, values)}), start())
    order = [2, 0, 4, 1, 3]
    shuffled = Record({"z": Series(times[order], values[order])})
    found = kalman().run(shuffled, start())
    np.testing.assert_array_equal(found.steps[-1].estimate.mean, right.steps[-1].estimate.mean)
    assert (right.disorder, found.disorder) == (0, 2)
    gaps = Series(np.append(times, 0.7), np.vstack([values, [np.nan, np.nan]]))
    found = kalman().run(Record({"z": gaps}), start())
    np.testing.assert_allclose(found.steps[-1].estimate.mean, right.steps[-1].estimate.mean, 1e-6)
    assert found.summary()["missing"] == 1


def test_a_value_with_one_missing_component_is_the_measurement_of_the_other():
    partial = kalman().update(start(), "z", [0.4, np.nan])
    alone = SaltedKalmanFilter(affine(A, C), Q, linear("z", H[:1], R[:1, :1]))
    np.testing.assert_allclose(
        partial.estimate.covariance, alone.update(start(), "z", [0.4]).estimate.covariance, 1e-12
    )
    assert partial.innovation.dimension == 1


def test_channels_of_different_rates_are_taken_in_order_of_time():
    both = SaltedKalmanFilter(
        affine(A, C), Q, [linear("a", H[:1], R[:1, :1]), linear("b", H[1:], R[1:, 1:])]
    )
    record = Record(
        {"a": Series([0.1, 0.2, 0.3], np.zeros(3)), "b": Series([0.05, 0.2], np.zeros(2))}
    )
    steps = both.run(record, start()).steps
    assert [(s.time, s.channel) for s in steps] == [
        (0.05, "b"), (0.1, "a"), (0.2, "a"), (0.2, "b"), (0.3, "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("step", [0.5, 0.1, 0.01, 0.001])
def test_the_covariance_does_not_depend_on_the_step(step):
    kf = kalman(rtol=1e-12, atol=1e-12)
    e = start()
    for k in range(round(0.5 / step)):
        e = kf.predict(e, (k + 1) * step).estimate
    phi, _, gathered = discrete(0.5)
    np.testing.assert_allclose(e.covariance, phi @ P0 @ phi.T + gathered, rtol=1e-10, atol=1e-11)


def test_a_flow_that_varies_in_time_agrees_with_the_integrated_riccati_equation():
    """A pendulum: A depends on the state, steps are as short as the error asks for."""
    import casadi as ca

    from hybridctl import symbolic

    x = ca.SX.sym("x", 2)
    swing = symbolic.SymbolicMode("flow", state=x, field=[x[1], -40.0 * ca.sin(x[0])])
    kf = SaltedKalmanFilter(
        symbolic.hybrid_system([swing], []),
        np.diag([0.01, 0.3]),
        linear("z", np.eye(2), np.eye(2)),
        options=FilterOptions(rtol=1e-12, atol=1e-13),
    )
    p0, x0 = np.diag([0.1, 0.2]), np.array([2.0, 0.0])
    found = kf.predict(Estimate("flow", 0.0, x0, p0), 1.0).estimate.covariance

    def rate(t, y):
        a = np.array([[0.0, 1.0], [-40.0 * np.cos(y[0]), 0.0]])
        p = y[2:].reshape(2, 2)
        dp = a @ p + p @ a.T + np.diag([0.01, 0.3])
        return np.concatenate([[y[1], -40.0 * np.sin(y[0])], dp.ravel()])

    y0 = np.concatenate([x0, p0.ravel()])
    end = solve_ivp(rate, (0.0, 1.0), y0, method="DOP853", rtol=1e-12, atol=1e-13).y[2:, -1]
    # dense output of degree 7 carries 1e-9 where the integrator's steps are long
    np.testing.assert_allclose(found.ravel(), end, rtol=1e-8)


def test_noise_through_the_input_is_its_image():
    b = np.array([[0.0], [2.0], [1.0]])
    system = affine(A, C, 1, b)
    z = linear("z", H, R)
    through = SaltedKalmanFilter(system, Noise([[0.3]], through_input=True), z)
    direct = SaltedKalmanFilter(system, 0.3 * b @ b.T, z)
    p, q = (kf.predict(start(), 0.7, [1.5]).estimate for kf in (through, direct))
    np.testing.assert_allclose(p.covariance, q.covariance, rtol=1e-12)
    by_mode = SaltedKalmanFilter(system, {"flow": 0.3 * b @ b.T}, z)
    found = by_mode.predict(start(), 0.7, [1.5]).estimate.covariance
    np.testing.assert_array_equal(found, q.covariance)


def test_noise_that_a_function_gives_is_that_of_its_value():
    """Compiled steps gather what is constant, what a function gives is collocated."""
    z, found = linear("z", H, R), []
    for noise in (Q, Noise(lambda mode, t, x, u: Q)):
        kf = SaltedKalmanFilter(
            affine(A, C), noise, z, options=FilterOptions(rtol=1e-12, atol=1e-12)
        )
        found.append(kf.predict(start(), 0.7).estimate.covariance)
    phi, _, gathered = discrete(0.7)
    right = phi @ P0 @ phi.T + gathered
    np.testing.assert_allclose(found, [right, right], rtol=1e-10, atol=1e-11)


def test_inputs_are_held_from_stamp_to_stamp():
    b = np.array([[0.0], [2.0], [1.0]])
    kf = SaltedKalmanFilter(affine(A, C, 1, b), Q, linear("z", H, R))
    inputs = Series([0.0, 0.3, 0.5], [[1.0], [-2.0], [0.5]])
    z = Series([0.7], [[np.nan, np.nan]])
    found = kf.run(Record({"z": z}, inputs), start()).steps[-1].estimate
    e = start()
    for t, u in ((0.3, 1.0), (0.5, -2.0), (0.7, 0.5)):
        e = kf.predict(e, t, [u]).estimate
    np.testing.assert_array_equal(found.mean, e.mean)


def test_the_gate_rejects_what_is_improbable_and_says_so():
    kf = SaltedKalmanFilter(affine(A, C), Q, linear("z", H, R, gate=0.99))
    far = kf.update(start(), "z", [5.0, 5.0])
    assert not far.innovation.accepted
    assert far.innovation.nis > far.innovation.limit == pytest.approx(9.2103, abs=1e-3)
    assert far.estimate.mean is start().mean or np.array_equal(far.estimate.mean, X0)
    near = kf.update(start(), "z", H @ X0)
    open_gate = kalman().update(start(), "z", H @ X0)
    assert near.innovation.accepted
    np.testing.assert_array_equal(near.estimate.covariance, open_gate.estimate.covariance)


@settings(max_examples=60)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.floats(-8.0, 4.0),
    st.floats(0.0, 2.0),
)
def test_covariances_stay_positive_semidefinite(seed, rank, size, time):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, rank))
    p = nearest_semidefinite(10.0**size * root @ root.T)
    kf = SaltedKalmanFilter(affine(A, C), np.zeros((3, 3)), linear("z", H, 1e-9 * np.eye(2)))
    e = kf.predict(Estimate("flow", 0.0, X0, p), time).estimate
    e = kf.update(e, "z", rng.normal(size=2)).estimate
    values = np.linalg.eigvalsh(e.covariance)
    assert values[0] >= -1e-14 * max(values[-1], np.abs(p).max())
    np.testing.assert_array_equal(e.covariance, e.covariance.T)


def test_bad_input_is_named():
    system, z = affine(A, C), linear("z", H, R)
    with pytest.raises(InputError, match="process_noise must be symmetric"):
        SaltedKalmanFilter(system, np.triu(np.ones((3, 3))), z)
    with pytest.raises(InputError, match="process_noise must be finite"):
        SaltedKalmanFilter(system, np.full((3, 3), np.nan), z)
    with pytest.raises(InputError, match=r"process_noise must have shape \(3, 3\)"):
        SaltedKalmanFilter(system, np.eye(2), z).predict(start(), 0.1)
    with pytest.raises(UnknownNameError, match="process_noise has no entry for mode 'flow'"):
        SaltedKalmanFilter(system, {"air": Q}, z).predict(start(), 0.1)
    with pytest.raises(InputError, match="covariance of 'z' must be positive definite"):
        linear("z", H, np.zeros((2, 2)))
    with pytest.raises(InputError, match="different names"):
        SaltedKalmanFilter(system, Q, [z, z])
    with pytest.raises(UnknownNameError, match="strategy"):
        SaltedKalmanFilter(system, Q, z, options=FilterOptions(strategy="reset"))
    kf = kalman()
    with pytest.raises(InputError, match="time must not be before"):
        kf.predict(start(), -0.1)
    with pytest.raises(InputError, match="channel 'y' is unknown"):
        kf.update(start(), "y", [0.0, 0.0])
    with pytest.raises(InputError, match=r"'z' must have shape \(2,\), got \(3,\)"):
        kf.update(start(), "z", np.zeros(3))
    with pytest.raises(InputError, match="positive semidefinite"):
        kf.run(Record({}), Estimate("flow", 0.0, X0, -P0))
    with pytest.raises(UnknownNameError, match="mode 'air'"):
        kf.run(Record({}), Estimate("air", 0.0, X0, P0))
    with pytest.raises(InputError, match="mean must have shape"):
        kf.run(Record({}), Estimate("flow", 0.0, X0[:2], P0))
    with pytest.raises(InputError, match="times must be finite"):
        Series([0.0, np.nan], np.zeros(2))
    with pytest.raises(InputError, match="must not be infinite"):
        Series([0.0, 1.0], [0.0, np.inf])
    wrong = Measurement("z", lambda m, t, x, u: x[:2], lambda m, t, x, u: np.eye(3), R)
    with pytest.raises(InputError, match="the Jacobian of 'z' must have shape"):
        SaltedKalmanFilter(system, Q, wrong).update(start(), "z", np.zeros(2))
