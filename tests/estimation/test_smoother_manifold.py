"""The smoother of a cube, whose attitude is a quaternion: no chart makes its results."""

import numpy as np
import pytest
from estimation.joint import dense
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import configuration
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.estimation.smoother import smooth
from hybridctl.hybrid.mode import Guard, GuardJacobian, Reset, Transition

AIR = ("open",) * 8
POSE = np.eye(6, 12)
TWIST = np.array([0.4, 0.2, 0.0, 0.5, -1.0, 0.8])


def start(space, height, turned):
    level = np.array([0.0, 0.0, height, 0.0, 0.0, 0.0, 1.0, *TWIST])
    return space.integrate(level, np.concatenate([np.zeros(3), turned, np.zeros(6)]))


def weightless(level=None):
    """A cube that nothing acts on; where its height passes a level its mode has another name."""
    air = cube.system(cube.CubeParameters(gravity=0.0)).mode(AIR)
    above, below = (
        hc.Mode(name, air.space, air.field, air.nu, air.jacobian) for name in ("above", "below")
    )
    if level is None:
        return hc.HybridSystem([above], [])

    def jacobian(t, x, u):
        row = np.append(Rotation.from_quat(x[3:7]).as_matrix()[2], np.zeros(9))
        return GuardJacobian(0.0, row, np.zeros(0))

    guard = Guard("level", lambda t, x, u: float(x[2] - level), jacobian)
    return hc.HybridSystem(
        [above, below], [Transition("above", guard, Reset.identity(12), "below")]
    )


def flowed_back(scale, times, level=None):
    """Filter result, and what smoothing makes of it against its last estimate flowed back.

    A pose g exp(z) flies as g does, followed by exp(A z): linear, however large z is. Without noise
    all smoothed estimates are the last one taken back; returns the largest differences of means
    and covariances from that, in units of `scale`, the size of deviations, and of its square.
    """
    system, free, rng = weightless(level), weightless(), np.random.default_rng(3)
    space, x0 = free.mode("above").space, start(free.mode("above").space, 1.0, [0.5, 0.4, 0.2])
    p0 = (scale * np.diag([0.2, 0.3, 0.1, 0.5, 0.4, 0.6, *np.zeros(6)])) ** 2
    values = [
        space.integrate(state, np.append(0.4 * scale * rng.normal(size=6), np.zeros(6)))[:7]
        for state in (hc.simulate(free, "above", x0, (0.0, t)).final_state for t in times)
    ]
    pose = configuration("pose", space, 0.1 * scale**2 * np.eye(6))
    kf = SaltedKalmanFilter(
        system,
        np.zeros((12, 12)),
        pose,
        options=FilterOptions(rewind=5.0, rtol=1e-11, atol=1e-12),
        hypotheses=1,
    )
    record = Record({"pose": Series(times, np.array(values))})
    result = kf.run(record, Estimate("above", 0.0, x0, p0))
    found = smooth(system, result)
    assert not found.notes
    off = []
    for t, e in zip(times, found.estimates, strict=True):
        flow = hc.simulate(free, "above", found.initial.mean, (0.0, t), rtol=1e-11, atol=1e-12)
        phi = transition(free, flow)
        mean = np.abs(space.difference(flow.final_state, e.mean)).max() / scale
        p = np.abs(phi @ found.initial.covariance @ phi.T - e.covariance).max() / scale**2
        off.append([mean, p])
    return result, np.max(off, axis=0)


def test_without_noise_and_weight_it_is_the_last_estimate_flowed_back():
    """To rounding of the integrator, with corrections of more than half a radian."""
    result, off = flowed_back(1.0, np.array([0.1, 0.25, 0.3, 0.7]))
    space = weightless().mode("above").space
    turns = [space.difference(s.predicted.mean, s.estimate.mean)[3:6] for s in result.steps]
    assert max(np.linalg.norm(turn) for turn in turns) > 0.5
    assert off.max() < 1e-9


def test_through_an_admitted_event_it_is_so_too():
    result, off = flowed_back(0.25, 0.25 * np.array([0.01, 0.02, 0.03, 0.04]), level=0.9925)
    assert any(step.hypotheses[0].reconciliation is not None for step in result.steps)
    assert off.max() < 1e-9


def gathered(system, flow, q):
    """Integral of Phi(end, s) q Phi(end, s)^T by Gauss's rule on an arc; of order 6."""
    total, (nodes, weights) = np.zeros_like(q), np.polynomial.legendre.leggauss(3)
    half = 0.5 * (flow.arcs[0].end - flow.arcs[0].start)
    for node, weight in zip(nodes, weights, strict=True):
        s = flow.arcs[0].start + half * (1.0 + node)
        phi = transition(system, hc.simulate(system, AIR, flow(s), (s, flow.arcs[0].end)))
        total += half * weight * phi @ q @ phi.T
    return total


def transition(system, flow):
    return hc.linearize(system, flow).state_transition


def first_order(system, run, times, q):
    """Maps and noises between samples along a nominal motion with one event."""
    (event,) = run.events
    g, maps, noises = hc.saltation_matrix(system, event), [], []
    for a, b in zip([0.0, *times[:-1]], times, strict=True):
        if not a < event.time < b:
            flow = hc.simulate(system, AIR, run(a), (a, b))
            maps.append(transition(system, flow))
            noises.append(gathered(system, flow, q))
            continue
        before = hc.simulate(system, AIR, run(a), (a, event.time - 1e-9))
        after = hc.simulate(system, AIR, event.state_after, (event.time, b))
        on = transition(system, after)
        maps.append(on @ g @ transition(system, before))
        through = g @ gathered(system, before, q) @ g.T
        noises.append(on @ through @ on.T + gathered(system, after, q))
    return maps, noises


PARAMETERS = cube.CubeParameters(restitution=0.6)
Q = np.diag([0.01, 0.01, 0.01, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 1.0, 1.0, 1.0]) ** 2
P0 = np.diag([*np.full(3, 0.02), *np.full(3, 0.2), *np.full(3, 0.2), *np.full(3, 1.0)]) ** 2
R = np.diag([*np.full(3, 0.02), *np.full(3, 0.1)]) ** 2


@pytest.mark.parametrize("early", [False, True])
def test_the_error_to_the_dense_solution_falls_with_the_square_of_deviations(early):
    """Deviations, noise and residuals times e: means are right to e^2, covariances to e of e^2.

    early: a value just before the impact says that it has happened, and the correction is admitted.
    """
    system = cube.system(PARAMETERS)
    space = system.mode(AIR).space
    x0 = start(space, 0.25, [0.3, 0.6, 0.1])
    run = hc.simulate(system, AIR, x0, (0.0, 0.22))
    (event,) = run.events
    guards = system.outgoing(AIR).guards
    gradient = guards.jacobian(event.time, event.state_before, np.zeros(0)).state
    lower = -gradient[guards.names.index(event.guards[0]), :6]
    residuals = 0.01 * np.random.default_rng(2).normal(size=(4, 6))
    errors = []
    for e in (0.02, 0.01, 0.005):
        times = np.array([0.06, 0.12, event.time - 0.02 * e if early else 0.15, 0.22])
        given = e * residuals
        if early:
            given[2] += 0.2 * e * lower / (lower @ lower)
        values = [
            space.integrate(run(t), np.append(r, np.zeros(6)))[:7]
            for t, r in zip(times, given, strict=True)
        ]
        kf = SaltedKalmanFilter(
            system,
            e**2 * Q,
            configuration("pose", space, e**2 * R, gate=None),
            hypotheses=1,
            options=FilterOptions(rtol=1e-11, atol=1e-11),
        )
        record = Record({"pose": Series(times, np.array(values))})
        result = kf.run(record, Estimate(AIR, 0.0, x0, e**2 * P0))
        assert [h.reconciliation is not None for h in result.history] == [
            False,
            False,
            early,
            False,
        ]
        found = smooth(system, result)
        maps, noises = first_order(system, run, times, e**2 * Q)
        ways, blocks = dense(maps, noises, e**2 * P0, POSE, e**2 * R, given)
        off = []
        for k in (0, 1, 2, 4):  # the third may be past the impact, the nominal motion is not
            at = (found.initial, *found.estimates)[k]
            off.append([
                np.abs(space.difference(run(([0.0, *times])[k]), at.mean) - ways[k]).max() / e,
                np.abs(at.covariance - blocks[k]).max() / np.abs(blocks[k]).max(),
            ])  # fmt: skip
        errors.append(np.max(off, axis=0))
    assert (np.array(errors[:-1]) > 1.8 * np.array(errors[1:])).all()
