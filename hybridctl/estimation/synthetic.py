"""Synthetic records: a simulated truth with the noise that a filter assumes, and its sensors.

Noise on the flow is a disturbance of the input, constant from sample to sample, with the covariance
W / h for a period h and the density W of the open mode at the start. In one sample the speed has
the variance of white noise, the position three quarters of it. Noise on resets is drawn where an
event moved the state, and added to the state after it. A draw that would take the state through a
guard at once (a rebound that is too slow to leave) is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.estimation.filter_model import FilterModel, FilterSettings, Sensor
from hybridctl.estimation.noise import Noise, reset_covariance
from hybridctl.estimation.noisy_system import compute_guard_rates
from hybridctl.estimation.record import Record, Series
from hybridctl.hybrid.arc import Arc, compute_outputs
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.model import Point
from hybridctl.hybrid.policy import ContinuedPolicy, DisturbedPolicy, Policy, SampledPolicy
from hybridctl.hybrid.simulate import simulate
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.hybrid.zeno import ZenoPolicy
from hybridctl.mechanics.multibody.robot import Robot

_DEFAULT_TOLERANCE = 1e-8
"""Tolerance of the integrator of the truth."""
_OUTLIER_DEVIATIONS = 50.0
"""Error of an outlier, in standard deviations of the sensor. A choice."""
_MAX_DRAWS = 20
"""Draws of a random state that has to lie inside its mode."""
_PERIOD_ROUNDING = 1e-9
"""Time before the start of a period that counts as its start, relative to the period."""
_ZERO_GUARD = 1e-9
"""Value up to which a guard counts as zero, relative to its scale."""


@dataclass(frozen=True, eq=False)
class _Disturbance:
    """A disturbance of the input that is constant in each period.

    Attributes:
        values: Disturbances (n, nu), one for each period.
        begin: Start of the first period, s.
        period: Length of a period, s.
    """

    values: Array
    begin: float
    period: float

    def __call__(self, t: float, x: Array) -> Array:
        k = int(np.floor((t - self.begin) / self.period + _PERIOD_ROUNDING))
        return np.asarray(self.values[min(k, len(self.values) - 1)])


@dataclass(frozen=True, eq=False)
class Truth:
    """The true motion.

    Attributes:
        run: The simulation.
        times: Times (n,) of the samples, s.
        commands: Inputs (n, nu) that were commanded, without their disturbance.
    """

    run: HybridTrajectory
    times: Array
    commands: Array

    @cached_property
    def states(self) -> Array:
        """States (n, nx) at the samples, after events."""
        return np.array([self.run(t) for t in self.times.tolist()])


def simulate_record(model: FilterModel, settings: FilterSettings) -> tuple[Record, Truth]:
    """Return what the sensors of a model would have recorded of its scenario, and the truth.

    The result is the same for the same seed. Start, process and impacts draw from one stream of
    random numbers, sensors from another, so that the draws of one do not change those of the other.

    Args:
        model: The model.
        settings: Duration, rate, noise and seed of the record. If they have a `force` that is true,
            contact signals are the normal forces of the contacts, in their order, with the noise
            `force_noise` in N.
    """
    streams = np.random.SeedSequence(settings.seed).spawn(2)
    process, rng = map(np.random.default_rng, streams)
    truth = simulate_truth(model, settings, process)
    channels = {}
    for sensor in model.sensors:
        channels[sensor.name] = Series(truth.times, _measure(model, settings, truth, sensor, rng))
    if getattr(settings, "force", False):
        values = _normal_forces(model, truth)
        values = values + getattr(settings, "force_noise") * rng.normal(size=values.shape)  # noqa: B009
        for signal, column in zip(model.signals.values(), values.T, strict=True):
            channels[signal.channel] = Series(truth.times, column)
    inputs = None if model.inputs is None else Series(truth.times, truth.commands)
    return Record(channels, inputs), truth


def _measure(
    model: FilterModel,
    settings: FilterSettings,
    truth: Truth,
    sensor: Sensor,
    rng: np.random.Generator,
) -> Array:
    """Return the values (n, m) of a sensor, with its noise, missing rows and outliers.

    Args:
        model: The model.
        settings: Factor of the noise, and shares of missing rows and outliers.
        truth: The true motion.
        sensor: The sensor.
        rng: Random numbers.

    Raises:
        InputError: The residual of the sensor has no inverse, so that noise cannot be added.
    """
    m = sensor.measurement
    n, k = len(truth.times), m.dimension
    noise = settings.noise * rng.normal(size=(n, k)) @ np.linalg.cholesky(m.covariance).T
    far = rng.random(n) < settings.outliers
    deviations = np.sqrt(np.diag(m.covariance))
    noise[far] += (
        _OUTLIER_DEVIATIONS * deviations * rng.choice([-1.0, 1.0], size=(int(far.sum()), k))
    )
    rows = []
    for t, x, u, e in zip(truth.times.tolist(), truth.states, truth.commands, noise, strict=True):
        mode = model.system.mode(truth.run.arc(t).mode)
        z = m.value(mode, t, x, u)
        if m.residual is None:
            rows.append(z + e)
        elif model.robot is not None:
            rows.append(_add_perturbation(model.robot, z, e))
        else:
            raise InputError(f"values of {m.name!r} cannot be made up: its residual has no inverse")
    values = np.array(rows)
    values[rng.random(n) < settings.missing] = np.nan
    return values


def _add_perturbation(robot: Robot, z: Array, e: Array) -> Array:
    """Return the first coordinates z of a configuration, moved by the first of a perturbation e."""
    q, dq = robot.neutral(), np.zeros(robot.nv)
    q[: len(z)], dq[: len(e)] = z, e
    return robot.integrate(q, dq)[: len(z)]


def _normal_forces(model: FilterModel, truth: Truth) -> Array:
    """Return the normal force (n, c) of every contact, N.

    Raises:
        InputError: A mode has no normal forces.
    """
    rows = []
    for t in truth.times.tolist():
        arc = truth.run.arc(t)
        outputs = compute_outputs(model.system.mode(arc.mode), arc, t)
        if "normal_force" not in outputs:
            raise InputError(f"force: mode {arc.mode!r} has no normal forces")
        rows.append(outputs["normal_force"])
    return np.array(rows)


def simulate_truth(model: FilterModel, settings: FilterSettings, rng: np.random.Generator) -> Truth:
    """Return a simulation of the model's scenario from a random start.

    Args:
        model: The model.
        settings: Duration, rate and spread of the start.
        rng: Random numbers.

    Raises:
        InputError: The model has no scenario, its process noise is not through the input, or the
            spread is too large.
    """
    if model.scenario is None:
        raise InputError(
            f"model {model.name!r} has no scenario to simulate; a robot in YAML needs `start`"
        )
    scenario = model.scenario()
    period, n = 1.0 / settings.rate, round(settings.duration * settings.rate)
    times: Array = scenario.begin + period * np.arange(n + 1, dtype=np.float64)
    mode = model.system.mode(model.open)
    point = mode.calc(times[0], scenario.mean, np.zeros(mode.nu))
    density = _find_input_density(model, point)
    root = np.linalg.cholesky(density / period) if density.any() else density
    begin, disturbances = float(times[0]), rng.normal(size=(n + 1, mode.nu)) @ root.T
    disturbance, policy = _Disturbance(disturbances, begin, period), None
    if scenario.policy is not None:
        policy = SampledPolicy(DisturbedPolicy(scenario.policy, disturbance), period, begin)
    elif density.any():
        policy = SampledPolicy(disturbance, period, begin)
    tolerance = settings.tolerance or _DEFAULT_TOLERANCE
    start = _draw_start(model, begin, settings.spread * scenario.spread, scenario.mean, rng)
    if model.reset_noise is None:
        run = _simulate(model, model.open, start, (begin, float(times[-1])), policy, tolerance)
    else:
        run = _simulate_with_reset_noise(model, start, times, policy, tolerance, rng)
    if policy is None:
        return Truth(run, times, np.zeros((n + 1, mode.nu)))
    inputs = np.array([run.input(t) for t in times.tolist()])
    disturbances[-1] = disturbances[-2]  # the run ends in its last period
    return Truth(run, times, inputs - disturbances)


def _find_input_density(model: FilterModel, point: Point) -> Array:
    """Return the density W (nu, nu) of the process noise of a model, in the space of the input.

    Args:
        model: The model.
        point: The open mode at the start of the scenario.

    Raises:
        InputError: The noise is in the tangent space, where no disturbance of the input has it.
    """
    nu, noise = point.mode.nu, model.process_noise
    # The open mode has no constraints that give way: B = I leaves the density as it is.
    density = noise.matrix(point, np.eye(nu))
    if noise.through_input:
        return density
    if density.any():
        raise InputError(
            f"process_noise of {model.name!r} must be through_input for a synthetic log, as its "
            "disturbances act by the input"
        )
    return np.zeros((nu, nu))


def _draw_start(
    model: FilterModel, begin: float, spread: Array, mean: Array, rng: np.random.Generator
) -> Array:
    """Return a random start (nx,) inside the open mode.

    Args:
        model: The model.
        begin: Time of the start, s.
        spread: Standard deviations (ndx,) of the start.
        mean: Its mean (nx,).
        rng: Random numbers.

    Raises:
        InputError: None of 20 draws lies inside the mode.
    """
    for _ in range(_MAX_DRAWS):
        x = model.space.integrate(mean, spread * rng.normal(size=len(spread)))
        guards = model.system.outgoing(model.open).guards
        values = guards.values(begin, x, np.zeros(model.system.mode(model.open).nu))
        if values.min(initial=np.inf) > 0.0:
            return x
    raise InputError("spread is so large that the motion would begin in contact")


def _simulate_with_reset_noise(
    model: FilterModel,
    start: Array,
    times: Array,
    policy: Policy | None,
    tolerance: float,
    rng: np.random.Generator,
) -> HybridTrajectory:
    """Return a simulation with noise on the state after each event.

    It stops at each event, and goes on from the noisy state.

    Args:
        model: The model.
        start: Initial state (nx,).
        times: Times (n,) of the samples, s.
        policy: The policy, or None.
        tolerance: Tolerance of the integrator.
        rng: Random numbers.
    """
    arcs: list[Arc] = []
    events: list[Event] = []
    mode, x, t, end = model.open, start, float(times[0]), float(times[-1])
    stopped = True
    while stopped:
        on = None if policy is None else ContinuedPolicy(policy, tuple(events))
        run = _simulate(model, mode, x, (t, end), on, tolerance, stops=True)
        stopped = run.end < end
        arcs += run.arcs[: len(run.arcs) - stopped]
        events += run.events
        if stopped:
            noisy = events.pop()
            mode, x, t = noisy.mode_after, _draw_state_after(model, noisy, rng), noisy.time
            events.append(replace(noisy, state_after=x))
    return HybridTrajectory(
        tuple(replace(arc, index=k) for k, arc in enumerate(arcs)),
        tuple(replace(event, index=k) for k, event in enumerate(events)),
    )


def _simulate(
    model: FilterModel,
    mode: ModeKey,
    x: Array,
    span: tuple[float, float],
    policy: Policy | None,
    tolerance: float,
    stops: bool = False,
) -> HybridTrajectory:
    """Return a simulation of the truth.

    Args:
        model: The model.
        mode: Key of the initial mode.
        x: Initial state (nx,).
        span: Times of start and end, s.
        policy: The policy, or None.
        tolerance: Tolerance of the integrator.
        stops: Whether it ends at the first event inside the span.
    """
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


def _draw_state_after(model: FilterModel, event: Event, rng: np.random.Generator) -> Array:
    """Return the state (nx,) after an event, with random noise under which it stays in its mode.

    Without reset noise at this event, and if none of 20 draws stays in the mode, it has no noise.

    Args:
        model: The model, which has reset noise.
        event: The event, with the state after it without noise.
        rng: Random numbers.
    """
    noise = model.reset_noise
    if isinstance(noise, Noise):  # without it, noise would take the state off held contacts
        noise = replace(noise, compliance=0.0)
    covariance = reset_covariance(model.system, noise, event)
    if covariance is None:
        return event.state_after
    t, u = event.time, event.input_after
    mode = model.system.mode(event.mode_after)
    for _ in range(_MAX_DRAWS):
        added = rng.multivariate_normal(np.zeros(len(covariance)), covariance, method="eigh")
        x = mode.space.integrate(event.state_after, added)
        point = mode.calc(t, x, u)
        values = point.guards / mode.guard_set.sizes
        rates = compute_guard_rates(point)
        if not ((values < -_ZERO_GUARD) | (values < _ZERO_GUARD) & (rates < 0.0)).any():
            return x
    return event.state_after
