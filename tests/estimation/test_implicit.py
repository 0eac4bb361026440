"""Implicit measurements: the same as explicit ones where both can be said, gates, refusals."""

import numpy as np
import pytest

from hybridctl.base.errors import InputError
from hybridctl.base.spaces import VectorSpace
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import ImplicitMeasurement, LinearizedResidual, linear
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.mode import FieldJacobian, Mode
from hybridctl.hybrid.system import HybridSystem
from hybridctl.sampling.unscented import UnscentedFilter

C = np.array([[1.0, 0.0], [0.5, 2.0]])
R = np.array([[0.02, 0.01], [0.01, 0.03]])
A = np.array([[0.0, 1.0], [-1.0, -0.1]])
START = Estimate("flow", 0.0, np.array([1.0, -0.5]), np.diag([0.1, 0.2]))


def oscillator():
    jacobian = lambda t, x, u: FieldJacobian(A, np.zeros((2, 0)))  # noqa: E731
    return HybridSystem([Mode("flow", VectorSpace(2), lambda t, x, u: A @ x, 0, jacobian)], [])


def compare(mode, t, x, u, z):
    return LinearizedResidual(z - C @ x, C, R) if np.isfinite(z).all() else None


def kalman(measurement, kind=SaltedKalmanFilter):
    return kind(oscillator(), 0.01 * np.eye(2), measurement)


def record():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20, 2))
    values[4] = np.nan
    values[9] += 30.0
    return Record({"z": Series(0.1 * np.arange(20), values)})


@pytest.mark.parametrize("gate", [None, 0.999])
def test_it_is_what_the_explicit_measurement_makes_of_a_record(gate):
    """Also where the gate rejects values until one is believed, with the covariance inflated."""
    one = kalman(linear("z", C, R, gate=gate)).run(record(), START)
    other = kalman(ImplicitMeasurement("z", compare, gate)).run(record(), START)
    for a, b in zip(one.steps, other.steps, strict=True):
        np.testing.assert_allclose(a.estimate.mean, b.estimate.mean, atol=1e-13)
        np.testing.assert_allclose(a.estimate.covariance, b.estimate.covariance, atol=1e-13)
        assert (a.innovation is None) == (b.innovation is None)
    assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-9)
    assert len(one.rejected) == len(other.rejected)
    assert bool(one.rejected) == (gate is not None)


def test_filters_that_need_a_predicted_value_refuse_it():
    points = kalman(ImplicitMeasurement("z", compare), UnscentedFilter)
    with pytest.raises(InputError, match="'z' is an implicit measurement"):
        points.run(record(), START)


def test_what_is_no_measurement_is_refused():
    with pytest.raises(InputError, match=r"measurement\[0\] must be a Measurement"):
        kalman([C])
    with pytest.raises(InputError, match="compare of 'z' must be a function"):
        ImplicitMeasurement("z", None)
    with pytest.raises(InputError, match="gate must be below 1"):
        ImplicitMeasurement("z", compare, 1.0)
