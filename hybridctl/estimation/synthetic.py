"""Synthetic records: simulated truth with the noise that a filter believes in, and its sensors.

Noise on the flow is a disturbance of the input, constant from sample to sample, of covariance
W / h for density W: in one sample the speed has the variance of white noise, the position three
quarters of it. Noise on resets is drawn where an event moved the state, added to the state after
it, and the run goes on from there. A draw that would take the state through a guard at once (a
rebound too slow to leave) is drawn again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.estimation.filter_model import FilterModel, FilterSettings, Sensor
from hybridctl.estimation.noise import reset_covariance
from hybridctl.estimation.record import Record, Series
from hybridctl.hybrid.arc import Arc, compute_outputs
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import ContinuedPolicy, DisturbedPolicy, Policy, SampledPolicy
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.hybrid.zeno import ZenoPolicy
from hybridctl.mechanics.multibody.robot import Robot

_TOLERANCE = 1e-8  # of the truth, unless told
_OUTLIER = 50.0  # standard deviations of the sensor
_DRAWS = 20
_ROUNDING = 1e-9  # of a period
_ON_SURFACE = 1e-9  # of a guard's size


@dataclass(frozen=True, eq=False)
class _Disturbance:
    """A disturbance of the input: values (n, nu), one for each period from `begin` on."""

    values: Array
    begin: float
    period: float

    def __call__(self, t: float, x: Array) -> Array:
        k = int(np.floor((t - self.begin) / self.period + _ROUNDING))
        return np.asarray(self.values[min(k, len(self.values) - 1)])


@dataclass(frozen=True, eq=False)
class Truth:
    """What happened: the run, sample times (n,), and the input that was commanded (n, nu)."""

    run: HybridTrajectory
    times: Array
    commands: Array

    @cached_property
    def states(self) -> Array:
        """The state at every sample (n, nx), after events."""
        return np.array([self.run(t) for t in self.times.tolist()])


def synthetic(model: FilterModel, settings: FilterSettings) -> tuple[Record, Truth]:
    """What the sensors of a model would have recorded of its scenario, and the run.

    The same for the same seed. Start, process and impacts draw from one stream of random numbers,
    sensors from another, so that changing what one draws keeps the other's. Contact signals are the
    normal forces of the contacts, in their order, where the settings have a `force` that is true,
    with its `force_noise` in N.
    """
    streams = np.random.SeedSequence(settings.seed).spawn(2)
    process, rng = map(np.random.default_rng, streams)
    truth = simulate_truth(model, settings, process)
    channels = {}
    for sensor in model.sensors:
        channels[sensor.name] = Series(truth.times, _measured(model, settings, truth, sensor, rng))
    if getattr(settings, "force", False):
        values = _normal_forces(model, truth)
        values = values + getattr(settings, "force_noise") * rng.normal(size=values.shape)  # noqa: B009
        for signal, column in zip(model.signals.values(), values.T, strict=True):
            channels[signal.channel] = Series(truth.times, column)
    inputs = None if model.inputs is None else Series(truth.times, truth.commands)
    return Record(channels, inputs), truth


def _measured(
    model: FilterModel,
    settings: FilterSettings,
    truth: Truth,
    sensor: Sensor,
    rng: np.random.Generator,
) -> Array:
    """Values (n, m) of a sensor with its noise, missing rows and outliers."""
    m = sensor.measurement
    n, k = len(truth.times), m.dimension
    noise = settings.noise * rng.normal(size=(n, k)) @ np.linalg.cholesky(m.covariance).T
    far = rng.random(n) < settings.outliers
    deviations = np.sqrt(np.diag(m.covariance))
    noise[far] += _OUTLIER * deviations * rng.choice([-1.0, 1.0], size=(int(far.sum()), k))
    rows = []
    for t, x, u, e in zip(truth.times.tolist(), truth.states, truth.commands, noise, strict=True):
        mode = model.system.mode(truth.run.arc(t).mode)
        z = m.value(mode, t, x, u)
        if m.residual is None:
            rows.append(z + e)
        elif model.robot is not None:
            rows.append(_moved(model.robot, z, e))
        else:
            raise InputError(f"values of {m.name!r} cannot be made up: its residual has no inverse")
    values = np.array(rows)
    values[rng.random(n) < settings.missing] = np.nan
    return values


def _moved(robot: Robot, z: Array, e: Array) -> Array:
    """The first coordinates z of a configuration, moved along the first of a perturbation."""
    q, dq = robot.neutral(), np.zeros(robot.nv)
    q[: len(z)], dq[: len(e)] = z, e
    return robot.integrate(q, dq)[: len(z)]


def _normal_forces(model: FilterModel, truth: Truth) -> Array:
    """The normal force of every contact (n, c), N."""
    rows = []
    for t in truth.times.tolist():
        arc = truth.run.arc(t)
        outputs = compute_outputs(model.system.mode(arc.mode), arc, t)
        if "normal_force" not in outputs:
            raise InputError(f"force: mode {arc.mode!r} has no normal forces")
        rows.append(outputs["normal_force"])
    return np.array(rows)


def simulate_truth(model: FilterModel, settings: FilterSettings, rng: np.random.Generator) -> Truth:
    """A run of the model's scenario from a start drawn at random, sampled at a rate."""
    if model.scenario is None:
        raise InputError(
            f"model {model.name!r} has no scenario to simulate; a robot in YAML needs `start`"
        )
    scenario = model.scenario()
    period, n = 1.0 / settings.rate, round(settings.duration * settings.rate)
    times: Array = scenario.begin + period * np.arange(n + 1, dtype=np.float64)
    mode = model.system.mode(model.open)
    point = mode.calc(times[0], scenario.mean, np.zeros(mode.nu))
    density = model.process_noise.matrix(point, np.eye(mode.nu))
    root = np.linalg.cholesky(density / period) if density.any() else density
    begin, disturbances = float(times[0]), rng.normal(size=(n + 1, mode.nu)) @ root.T
    disturbance, policy = _Disturbance(disturbances, begin, period), None
    if scenario.policy is not None:
        policy = SampledPolicy(DisturbedPolicy(scenario.policy, disturbance), period, begin)
    elif density.any():
        policy = SampledPolicy(disturbance, period, begin)
    tolerance = settings.tolerance or _TOLERANCE
    start = _start(model, settings.spread * scenario.spread, scenario.mean, rng)
    if model.reset_noise is None:
        run = _simulated(model, model.open, start, (begin, float(times[-1])), policy, tolerance)
    else:
        run = _with_reset_noise(model, start, times, policy, tolerance, rng)
    if policy is None:
        return Truth(run, times, np.zeros((n + 1, mode.nu)))
    inputs = np.array([run.input(t) for t in times.tolist()])
    disturbances[-1] = disturbances[-2]  # the run ends in its last period
    return Truth(run, times, inputs - disturbances)


def _start(model: FilterModel, spread: Array, mean: Array, rng: np.random.Generator) -> Array:
    """A start that lies inside the open mode."""
    for _ in range(_DRAWS):
        x = model.space.integrate(mean, spread * rng.normal(size=len(spread)))
        guards = model.system.outgoing(model.open).guards
        if guards.values(0.0, x, np.zeros(model.system.mode(model.open).nu)).min() > 0.0:
            return x
    raise InputError("spread is so large that the motion would begin in contact")


def _with_reset_noise(
    model: FilterModel,
    start: Array,
    times: Array,
    policy: Policy | None,
    tolerance: float,
    rng: np.random.Generator,
) -> HybridTrajectory:
    """A run that stops at each event, whose state after it gets its noise, and goes on."""
    arcs: list[Arc] = []
    events: list[Event] = []
    mode, x, t, end = model.open, start, float(times[0]), float(times[-1])
    stopped = True
    while stopped:
        on = None if policy is None else ContinuedPolicy(policy, tuple(events))
        run = _simulated(model, mode, x, (t, end), on, tolerance, stops=True)
        stopped = run.end < end
        arcs += run.arcs[: len(run.arcs) - stopped]
        events += run.events
        if stopped:
            noisy = events.pop()
            mode, x, t = noisy.mode_after, _perturbed(model, noisy, rng), noisy.time
            events.append(replace(noisy, state_after=x))
    return HybridTrajectory(
        tuple(replace(arc, index=k) for k, arc in enumerate(arcs)),
        tuple(replace(event, index=k) for k, event in enumerate(events)),
    )


def _simulated(
    model: FilterModel,
    mode: ModeKey,
    x: Array,
    span: tuple[float, float],
    policy: Policy | None,
    tolerance: float,
    stops: bool = False,
) -> HybridTrajectory:
    """A run of the truth; stops: whether it ends at the first event of guards within its span."""
    return simulate(
        model.system,
        mode,
        x,
        span,
        policy,
        rtol=tolerance,
        atol=tolerance,
        on_zeno=ZenoPolicy(horizon=1e-3),
        terminal=lambda event: stops and span[0] < event.time < span[1],
    )


def _perturbed(model: FilterModel, event: Event, rng: np.random.Generator) -> Array:
    """The state after an event, with noise under which it stays in its mode."""
    assert model.reset_noise is not None
    rigid = replace(model.reset_noise, compliance=0.0)
    covariance = reset_covariance(model.system, rigid, event)
    if covariance is None:
        return event.state_after
    t, u = event.time, event.input_after
    mode = model.system.mode(event.mode_after)
    for _ in range(_DRAWS):
        added = rng.multivariate_normal(np.zeros(len(covariance)), covariance, method="eigh")
        x = mode.space.integrate(event.state_after, added)
        point = mode.calc(t, x, u)
        values = point.guards / mode.guard_set.sizes
        rates = point.guard_jacobian.state @ point.field
        if not ((values < -_ON_SURFACE) | (values < _ON_SURFACE) & (rates < 0.0)).any():
            return x
    return event.state_after
