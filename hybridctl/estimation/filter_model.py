"""The model of a filter: a system with its sensors, its noise and a typical motion.

A `FilterModel` is all that a filter needs to run on the logs of an object or robot: which channels
of a log it reads, how a state appears in them and how precisely, and how noisy flow, impacts and
surfaces are. Synthetic logs of its scenario have the same channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, check_array, check_instance, check_sequence
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Count, Meta, Natural, NotNegative, Positive, Settings
from hybridctl.base.spaces import Space, compute_tangent_map
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.estimate import Estimate, check_estimate
from hybridctl.estimation.event_hypotheses import DEFAULT_HYPOTHESES
from hybridctl.estimation.filter_state import Beginning
from hybridctl.estimation.kalman_equations import compute_residual, predict_value
from hybridctl.estimation.measurement import (
    DEFAULT_GATE,
    Measurement,
    check_gate,
    require_explicit,
)
from hybridctl.estimation.noise import EventNoise, Noise
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.modes.guards import list_closing_guards
from hybridctl.mechanics.multibody.robot import Robot

SHORTEST_RUN, LONGEST_RUN = 0.02, 60.0
"""Limits of the duration of a synthetic log, s."""
_RESTART_DEVIATIONS = 100.0
"""Standard deviation of a coordinate before any value, in those of its sensor or of the initial
estimate. A choice: so wide that the first values determine the state."""
_DEFAULT_SPEED_DEVIATION = 10.0
"""Standard deviation of velocities before anything is known of them, in m/s or rad/s."""


@dataclass(frozen=True)
class LogChannel:
    """A channel of a log.

    Attributes:
        channel: Name of the channel.
        columns: Names of its columns; empty for all columns as they are.
        unit: SI unit, "1" for a number, "" for any.
        frame: Frame of the columns, "" for none.
        quaternion: Whether the columns are a unit quaternion.
    """

    channel: str
    columns: tuple[str, ...] = ()
    unit: str = "1"
    frame: str = ""
    quaternion: bool = False


@dataclass(frozen=True, eq=False)
class Sensor:
    """A measurement, and the channels that are its value.

    Attributes:
        measurement: The measurement.
        parts: Channels whose columns, side by side, are the value. Empty for the channel that has
            the name of the measurement, in any unit.
    """

    measurement: Measurement
    parts: tuple[LogChannel, ...] = ()

    def __post_init__(self) -> None:
        check_instance("measurement", self.measurement, Measurement)
        if not self.parts:
            object.__setattr__(self, "parts", (LogChannel(self.measurement.name, unit=""),))

    @property
    def name(self) -> str:
        """Name of the measurement."""
        return self.measurement.name

    @property
    def residual_names(self) -> tuple[str, ...]:
        """Names of the entries of a residual: columns, and rotations about x, y, z of quaternions.

        They are numbered where columns have no names.
        """
        if any(not part.columns for part in self.parts):
            return tuple(f"{self.name} {k}" for k in range(self.measurement.dimension))
        return tuple(
            f"{part.channel} {'about ' if part.quaternion else ''}{column}"
            for part in self.parts
            for column in ("xyz" if part.quaternion else part.columns)
        )


@dataclass(frozen=True, eq=False)
class Scenario:
    """A typical motion, which starts at N(mean, diag(spread^2)) in the open mode.

    Attributes:
        mean: Mean (nx,) of the initial state.
        spread: Standard deviations (ndx,) of the initial state.
        begin: Time of the start, s.
        policy: Policy that controls the motion, with torques held from sample to sample; None for
            no input.
    """

    mean: Array
    spread: Array
    begin: float = 0.0
    policy: Policy | None = None


class Whitened(NamedTuple):
    """Residuals divided by the root of their covariance.

    Attributes:
        residual: Residuals (m,) of all measurements.
        derivative: Derivative (m, nv) of the predictions by the configuration.
    """

    residual: Array
    derivative: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class FilterModel:
    """A system with its sensors and its noise.

    Attributes:
        system: The hybrid system.
        open: Key of its mode without contact, in which filters start.
        sensors: The sensors, at least one.
        process_noise: As for `SaltedKalmanFilter`.
        reset_noise: As for `SaltedKalmanFilter`.
        guard_noise: As for `SaltedKalmanFilter`, by the name of the guard.
        start: Estimate before the first row of a log, whatever its stamp. None for one that is made
            of rows, see `first_estimate`; then the sensors together measure the whole configuration
            of a robot.
        speeds: Standard deviations (nv,) of velocities before anything is known of them.
        scenario: Returns a typical motion, or None.
        inputs: Channel of the input; None if the input is noise only.
        signals: Optional contact signals by channel.
        states: Names (nx) of the coordinates; those of the system by default.
        shown_names: Names of the values that `shown` returns.
        shown: Returns the values and standard deviations (k,) of figures for a state (nx,) and a
            covariance (ndx, ndx); None for the coordinates.
        pose: Returns position and quaternion (7,) of the body at a state (nx,), or None.
        mapping: Mapping of logs that are known by the names of their fields, or None.
        name: Name of the model.

    Raises:
        InputError: An attribute does not fit the system.
    """

    system: HybridSystem
    open: ModeKey
    sensors: tuple[Sensor, ...]
    process_noise: Noise
    reset_noise: Noise | EventNoise | None = None
    guard_noise: Mapping[str, float] = field(default_factory=dict)
    start: Estimate | None = None
    speeds: Array | None = None
    scenario: Callable[[], Scenario] | None = None
    inputs: LogChannel | None = None
    signals: Mapping[LogChannel, ContactSignal] = field(default_factory=dict)
    states: tuple[str, ...] = ()
    shown_names: tuple[str, ...] = ()
    shown: Callable[[Array, Array], tuple[Array, Array]] | None = None
    pose: Callable[[Array], Array] | None = None
    mapping: Mapping[str, Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        check_instance("system", self.system, HybridSystem)
        check_instance("process_noise", self.process_noise, Noise)
        sensors = check_sequence("sensors", self.sensors)
        for k, sensor in enumerate(sensors):
            check_instance(f"sensors[{k}]", sensor, Sensor)
        if not sensors:
            raise InputError("sensors must have one entry at least, got none")
        if self.start is not None:
            check_estimate(self.system, self.start)
        elif self.robot is None:
            raise InputError(
                f"start must be an Estimate where the state of mode {self.open!r} is not that of a "
                "robot, got None"
            )
        else:
            nv = self.robot.nv
            speeds = _DEFAULT_SPEED_DEVIATION * np.ones(nv) if self.speeds is None else self.speeds
            object.__setattr__(self, "speeds", check_array("speeds", speeds, (nv,)))
        states = self.states or self.system.state_labels(self.open)
        object.__setattr__(self, "sensors", tuple(sensors))
        object.__setattr__(self, "states", states)

    @property
    def space(self) -> Space:
        """State space of the open mode."""
        return self.system.mode(self.open).space

    @property
    def robot(self) -> Robot | None:
        """Robot of which the states are configuration and velocity; None for other states."""
        mechanism = self.system.mechanism
        if mechanism is None or mechanism.space.nx != self.space.nx:
            return None
        robot: Robot = mechanism.robot
        return robot

    def display(self, x: Array, p: Array) -> tuple[Array, Array]:
        r"""Return values and standard deviations for figures, of the coordinates by default.

        With :math:`J` (nx, ndx) the derivative of the coordinates by the perturbation, the standard
        deviations are the roots of the diagonal of :math:`J P J^T`.

        Args:
            x: State (nx,).
            p: Covariance (ndx, ndx) in the tangent space there.
        """
        if self.shown is not None:
            return self.shown(x, p)
        j = compute_tangent_map(self.space, x)
        return x, np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", j, p, j), 0.0))

    @property
    def display_names(self) -> tuple[str, ...]:
        """Names of the values that `display` returns."""
        return self.shown_names or self.states

    def beginning(self) -> Beginning:
        """Return the open mode with a covariance that lets the first values determine the state."""
        if self.start is not None:
            return Beginning(self.open, _RESTART_DEVIATIONS**2 * self.start.covariance)
        assert self.robot is not None
        seen = self.whiten_residuals(self.robot.neutral(), None).derivative
        configuration = _RESTART_DEVIATIONS**2 * np.linalg.pinv(seen.T @ seen, hermitian=True)
        return Beginning(self.open, block_diag(configuration, np.diag(self.speeds**2)))  # type: ignore[operator]

    def whiten_residuals(self, q: Array, rows: Mapping[str, Array] | None) -> Whitened:
        """Return the whitened residuals of rows of sensors at a configuration of the robot at rest.

        Args:
            q: Configuration (nq,).
            rows: Rows (m,) by sensor. None for rows of all sensors that are as predicted.
        """
        assert self.robot is not None
        nv, mode = self.robot.nv, self.system.mode(self.open)
        x, u, found = np.concatenate([q, np.zeros(nv)]), np.zeros(mode.nu), list[Whitened]()
        for sensor in self.sensors:
            m = require_explicit(sensor.measurement)
            if rows is not None and sensor.name not in rows:
                continue
            predicted = predict_value(m, mode, 0.0, x, u)
            value = predicted if rows is None else rows[sensor.name]
            root = np.linalg.inv(np.linalg.cholesky(m.covariance))
            h = root @ m.jacobian(mode, 0.0, x, u)[:, :nv]
            found.append(Whitened(root @ compute_residual(m, predicted, value), h))
        return Whitened(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def measurements(self, gate: float | None) -> tuple[Measurement, ...]:
        """Return the measurements of the sensors with a gate.

        Args:
            gate: Probability with which a right value passes; None for no gate.
        """
        return tuple(replace(sensor.measurement, gate=gate) for sensor in self.sensors)


@dataclass(frozen=True)
class FilterSettings(Settings):
    """Settings of filters on all models; noise of sensors, impacts and flow belongs to each model.

    Attributes:
        gate: Probability with which a right value passes; None accepts all values.
        rewind: Longest time in s by which an event is early or late, see `FilterOptions`.
        hypotheses: Largest number of orders of events that are followed, or "auto", see
            `SaltedKalmanFilter`.
        patience: Rejected values in a row after which the filter recovers, see `FilterOptions`.
        compliance: Share of the noise of forces and impulses by which closed contacts give way, 0
            for rigid ones, see `Noise`.
        warm_up: Number of rows that make the first estimate.
        longest_gap: Longest time without any value, s.
        tolerance: Tolerance of the integrator; None for that of the filter.
        particles: Number of particles of the particle filter.
        smoothing: Share of the kernel smoothing of the particle filter.
        duration: Duration of a synthetic log, s.
        rate: Its rate, Hz.
        noise: Factor of the noise of all its sensors, 1 for what the filter assumes.
        spread: Factor of the standard deviations of its start.
        missing: Share of its rows that are missing.
        outliers: Share of its rows that are outliers.
        seed: Seed of the synthetic log and of the particle filter.
    """

    gate: float | None = DEFAULT_GATE
    rewind: NotNegative = 0.05
    hypotheses: Count | Literal["auto"] = DEFAULT_HYPOTHESES
    patience: Count | None = 8
    compliance: NotNegative = 1.0
    warm_up: Annotated[int, Meta(ge=2)] = 4
    longest_gap: Positive = 2.0
    tolerance: Annotated[float, Meta(gt=0.0, le=1e-4)] | None = None
    particles: Annotated[int, Meta(ge=10)] = 200
    smoothing: Annotated[float, Meta(ge=0.0, le=0.99)] = 0.4
    duration: Annotated[float, Meta(ge=SHORTEST_RUN, le=LONGEST_RUN)] = 1.0
    rate: Positive = 100.0
    noise: NotNegative = 1.0
    spread: NotNegative = 1.0
    missing: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.0
    outliers: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.0
    seed: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gate(self.gate)
        if self.duration * self.rate < self.warm_up + 2:
            raise InputError(
                f"duration and rate must give more than {self.warm_up + 1} samples, got "
                f"{self.duration * self.rate:g}"
            )


def surface_noise(contacts: Sequence[Contact], deviation: float) -> dict[str, float]:
    """Return the guard noise of surfaces whose position is uncertain.

    Args:
        contacts: The contacts with these surfaces.
        deviation: Standard deviation of the position, m; 0 for no noise.
    """
    return dict.fromkeys(list_closing_guards(contacts), deviation**2) if deviation else {}
