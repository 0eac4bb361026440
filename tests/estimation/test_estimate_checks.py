"""Estimates that a user gives: refused where no motion has them, taken where a filter left them."""

import numpy as np
import pytest
from estimation.systems import bouncing_ball, height

import hybridctl as hc
from hybridctl.base.errors import ConstraintViolatedError, GuardViolatedError, InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.sampling.particle import ParticleFilter
from hybridctl.sampling.unscented import UnscentedFilter

ABOVE, KNOWN = np.array([1.0, 0.0]), np.diag([1e-4, 1e-4])
RECORD = Record({"height": Series([0.1], [[0.95]])})


def ball(kind=SaltedKalmanFilter, **options):
    return kind(bouncing_ball(), np.zeros((2, 2)), height(), **options)


def estimate(mean=ABOVE, covariance=KNOWN, mode="air"):
    return Estimate(mode, 0.0, np.asarray(mean, dtype=float), np.asarray(covariance, dtype=float))


def entries():
    """Every way in for an estimate."""
    salted, points = ball(), ball(UnscentedFilter)
    particles = ball(ParticleFilter, particles=10)
    return {
        "start": salted.start,
        "predict": lambda e: salted.predict(e, 0.1),
        "update": lambda e: salted.update(e, "height", [1.0]),
        "run": lambda e: salted.run(RECORD, e),
        "unscented": lambda e: points.run(RECORD, e),
        "particles": lambda e: particles.run(RECORD, e),
    }


@pytest.mark.parametrize("entry", list(entries()))
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"covariance": [[-1.0, 0.0], [0.0, 1.0]]}, InputError, "least eigenvalue is -1"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, InputError, "least eigenvalue is -1"),
        ({"covariance": [[np.nan, 0.0], [0.0, 1.0]]}, InputError, "covariance must be finite"),
        ({"covariance": [[1.0, 0.1], [0.0, 1.0]]}, InputError, r"symmetric, entries \[0, 1\]"),
        ({"covariance": [[1.0]]}, InputError, r"covariance must have shape \(2, 2\)"),
        ({"mean": [np.inf, 0.0]}, InputError, "mean must be finite"),
        ({"mean": [-0.1, 0.0]}, GuardViolatedError, "guard 'floor' is -0.1 and must not be"),
        ({"mean": [-0.1, -5.0]}, GuardViolatedError, "outside mode 'air'"),
        ({"mean": [-0.1, 1.0]}, GuardViolatedError, "rises above zero within 0.05 s"),
        ({"mode": "sea"}, hc.errors.UnknownNameError, "sea"),
    ],
)
def test_what_is_no_belief_is_refused_at_every_way_in(entry, wrong, error, message):
    with pytest.raises(error, match=message):
        entries()[entry](estimate(**wrong))


def test_rounding_of_a_covariance_is_taken_and_taken_off():
    """Products of matrices leave asymmetry and negative eigenvalues of some n eps."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, 1))
    flat = root @ root.T + 1e-16 * rng.normal(size=(2, 2))
    p = ball().start(estimate(covariance=flat)).estimate.covariance
    assert (p == p.T).all()
    assert np.linalg.eigvalsh(p).min() >= -np.finfo(float).eps
    np.testing.assert_allclose(p, root @ root.T, atol=1e-15)
    for off in (1e-10 * np.array([[0.0, 1.0], [0.0, 0.0]]), -1e-10 * np.eye(2)):
        with pytest.raises(InputError, match="covariance"):
            ball().start(estimate(covariance=root @ root.T + off))


def test_a_mean_on_its_surface_up_to_the_tolerance_of_guards_is_inside():
    ball().start(estimate([-0.9e-8, 0.0]))
    with pytest.raises(GuardViolatedError):
        ball().start(estimate([-1.1e-8, 0.0]))


def test_the_place_of_a_surface_may_be_uncertain():
    """With a deviation of 1 cm, a mean 3 cm below where the floor is thought to be may be above."""
    for height_, right in ((-0.03, True), (-0.05, False)):
        kf = ball(guard_noise=1e-4)
        if right:
            kf.start(estimate([height_, -1.0]))
        else:
            with pytest.raises(GuardViolatedError):
                kf.start(estimate([height_, -1.0]))


def test_what_a_filter_leaves_may_be_given_back_to_it():
    """Just after a bounce corrections take the mean under the floor, from where it rises: it is
    the filter's own, and stays so when only the estimate is handed on."""
    rng, filter_ = (
        np.random.default_rng(1),
        ball(hypotheses=1, options=FilterOptions(patience=None)),
    )
    truth, below = hc.simulate(bouncing_ball(), "air", ABOVE, (0.0, 3.0)), 0
    for offset in np.linspace(-2e-3, 2e-3, 41):
        impact = truth.events[0].time
        wide = Estimate("air", 0.0, ABOVE, np.diag([1e-4, 1e-4]))
        e = filter_.predict(wide, impact + 1e-3).estimate
        for t in impact + np.arange(1, 6) * 1e-3:
            value = truth(t)[:1] + offset - 5e-3 + rng.normal(size=1) * 1e-3
            e = filter_.update(filter_.predict(e, t).estimate, "height", value).estimate
            below += e.mean[0] < -1e-8
    assert below > 20


def test_an_estimate_that_waits_for_an_event_past_its_guard_is_a_filter_s():
    """A pending order is past the floor, and falls; it has bounced before."""
    own = Estimate("air", 1.0, np.array([-1e-3, -2.0]), KNOWN, since=0.4)
    assert ball().start(own).estimate.since == 0.4


def on_wall():
    """A point (y, v) whose mode holds y at zero."""
    held = hc.hybrid.mode.Held(("gap",), lambda s: s[:1], np.array([1e-7]), ("m",))
    mode = hc.Mode(
        "on",
        hc.VectorSpace(2),
        lambda t, s, u: np.array([0.0, -s[1]]),
        jacobian=lambda t, s, u: hc.hybrid.mode.FieldJacobian(
            np.diag([0.0, -1.0]), np.zeros((2, 0))
        ),
        project=lambda s: np.array([0.0, s[1]]),
        held=held,
    )
    return hc.HybridSystem([mode], [])


def test_a_mean_off_what_its_mode_holds_is_refused_with_what_puts_it_right():
    filter_ = SaltedKalmanFilter(on_wall(), np.zeros((2, 2)), height())
    filter_.start(estimate([0.0, 1.0], np.diag([0.0, 1.0]), "on"))
    with pytest.raises(ConstraintViolatedError, match=r"mean is off .* gap is 0\.001 m.*project"):
        filter_.start(estimate([1e-3, 1.0], np.diag([0.0, 1.0]), "on"))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize(
    "made",
    [
        ball,
        lambda: ball(hypotheses=4),
        lambda: ball(UnscentedFilter),
        lambda: ball(ParticleFilter, particles=2),
    ],
    ids=["salted", "several", "unscented", "particles"],
)
def test_an_estimate_that_overflows_is_an_error(made):
    """A stamp of 1e160 s: the flow until then has squares that are no floats."""
    record = Record({"height": Series(np.array([0.1, 1e160]), np.array([[0.9], [0.9]]))})
    with pytest.raises(hc.errors.SimulationError, match="not finite"):
        made().run(record, estimate())
