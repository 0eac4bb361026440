"""What a filter needs to know of an object or robot to run on its logs, in one frozen object.

A model says which channels of a log it reads, how a state appears in them and how well, how noisy
its flow, impacts and surfaces are, and what a typical motion of it looks like. The log channels
have the same names in both directions, so what is recorded of it needs no mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from hybridctl.base.checks import Array, check_array, check_instance, check_sequence
from hybridctl.base.errors import InputError
from hybridctl.base.settings import Count, Meta, Natural, NotNegative, Positive, Settings
from hybridctl.base.spaces import Space, compute_tangent_map
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.correct import observed, residual
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.estimate_checks import fitting
from hybridctl.estimation.hypotheses import HYPOTHESES
from hybridctl.estimation.measurement import GATE, Measurement, check_gate, explicit
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.state import Beginning
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts.contact import Contact
from hybridctl.mechanics.modes.guards import closing_guards
from hybridctl.mechanics.multibody.robot import Robot

SHORTEST_RUN, LONGEST_RUN = 0.02, 60.0  # s
_LOOSE = 100.0  # deviations of its sensor, by which a configuration before any value may be off


@dataclass(frozen=True)
class LogChannel:
    """A channel of a log: its columns, its SI unit ("1" without one), its frame.

    Without columns, all that the channel has, as they are.
    """

    channel: str
    columns: tuple[str, ...] = ()
    unit: str = "1"
    frame: str = ""
    quaternion: bool = False


@dataclass(frozen=True, eq=False)
class Sensor:
    """A measurement, and the channels whose columns, side by side, are its value.

    Without parts, the channel that has the name of the measurement, in any unit.
    """

    measurement: Measurement
    parts: tuple[LogChannel, ...] = ()

    def __post_init__(self) -> None:
        check_instance("measurement", self.measurement, Measurement)
        if not self.parts:
            object.__setattr__(self, "parts", (LogChannel(self.measurement.name, unit=""),))

    @property
    def name(self) -> str:
        """The name of the measurement."""
        return self.measurement.name

    @property
    def residual_names(self) -> tuple[str, ...]:
        """Names of a residual's entries: columns, and turns about x, y, z of quaternions.

        Numbers where columns have no names.
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
    """A typical motion: it starts at N(mean, diag(spread^2)) in the open mode.

    mean (nx,), spread (ndx,). policy: None, or what controls it, from the time `begin` on; its
    torques are held from sample to sample.
    """

    mean: Array
    spread: Array
    begin: float = 0.0
    policy: Policy | None = None


class Whitened(NamedTuple):
    """Residuals (m,) of measurements in their deviations, derivatives (m, nv) of what they see."""

    residual: Array
    derivative: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class FilterModel:
    """A system with its sensors and noise.

    open: its mode without contact, in which filters begin. process_noise, reset_noise,
    guard_noise: see `SaltedKalmanFilter`. start: the estimate before the first row of a log,
    whatever its stamp; without it, see `first_estimate`, the sensors together must measure the
    whole configuration of a robot, and speeds (nv,) are the deviations that velocities are given
    before anything is known of them. scenario: makes a typical motion. inputs: the channel of the
    input; None where the input is noise alone. signals: optional contact signals by channel.
    states: names of the coordinates (nx), by default those of the system. shown(x, P): the values
    and deviations (k,) that figures show, under the names `shown_names`. pose(x): position and
    quaternion of the body (7,), or None. mapping: of recordings that are known by the names of
    their fields.
    """

    system: HybridSystem
    open: ModeKey
    sensors: tuple[Sensor, ...]
    process_noise: Noise
    reset_noise: Noise | None = None
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
            fitting(self.system, self.start)
        elif self.robot is None:
            raise InputError(
                f"start must be an Estimate where the state of mode {self.open!r} is not that of a "
                "robot, got None"
            )
        else:
            nv = self.robot.nv
            speeds = 10.0 * np.ones(nv) if self.speeds is None else self.speeds
            object.__setattr__(self, "speeds", check_array("speeds", speeds, (nv,)))
        states = self.states or self.system.state_labels(self.open)
        object.__setattr__(self, "sensors", tuple(sensors))
        object.__setattr__(self, "states", states)

    @property
    def space(self) -> Space:
        """The state space of the open mode."""
        return self.system.mode(self.open).space

    @property
    def robot(self) -> Robot | None:
        """The robot whose configuration and velocity the states are; None where they are others."""
        mechanism = self.system.mechanism
        if mechanism is None or mechanism.space.nx != self.space.nx:
            return None
        robot: Robot = mechanism.robot
        return robot

    def display(self, x: Array, p: Array) -> tuple[Array, Array]:
        r"""Values and deviations for figures, by default those of the coordinates (nx,).

        With :math:`J` the derivative of the coordinates by the perturbation (nx, ndx), they are
        the roots of the diagonal of :math:`J P J^T`.
        """
        if self.shown is not None:
            return self.shown(x, p)
        j = compute_tangent_map(self.space, x)
        return x, np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", j, p, j), 0.0))

    @property
    def display_names(self) -> tuple[str, ...]:
        """The names of what `display` gives."""
        return self.shown_names or self.states

    def beginning(self) -> Beginning:
        """The open mode, with a covariance so large that the first values determine the state."""
        if self.start is not None:
            return Beginning(self.open, _LOOSE**2 * self.start.covariance)
        assert self.robot is not None
        seen = self.seen_configuration(self.robot.neutral(), None).derivative
        configuration = _LOOSE**2 * np.linalg.pinv(seen.T @ seen, hermitian=True)
        return Beginning(self.open, block_diag(configuration, np.diag(self.speeds**2)))  # type: ignore[operator]

    def seen_configuration(self, q: Array, rows: Mapping[str, Array] | None) -> Whitened:
        """What rows (m,) of sensors by name say of a configuration (nq,) of a robot.

        rows: None for those that are exactly as predicted, of all sensors.
        """
        assert self.robot is not None
        nv, mode = self.robot.nv, self.system.mode(self.open)
        x, u, found = np.concatenate([q, np.zeros(nv)]), np.zeros(mode.nu), list[Whitened]()
        for sensor in self.sensors:
            m = explicit(sensor.measurement)
            if rows is not None and sensor.name not in rows:
                continue
            predicted = observed(m, mode, 0.0, x, u)
            value = predicted if rows is None else rows[sensor.name]
            root = np.linalg.inv(np.linalg.cholesky(m.covariance))
            h = root @ m.jacobian(mode, 0.0, x, u)[:, :nv]
            found.append(Whitened(root @ residual(m, predicted, value), h))
        return Whitened(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def measurements(self, gate: float | None) -> tuple[Measurement, ...]:
        """The measurements of the sensors, with a gate."""
        return tuple(replace(sensor.measurement, gate=gate) for sensor in self.sensors)


@dataclass(frozen=True)
class FilterSettings(Settings):
    """Settings of filters on all models; noise of sensors, impacts and flow is each model's own.

    gate: probability with which a right value passes, None takes all. rewind, hypotheses,
    patience: of the filter, see `SaltedKalmanFilter`. compliance: by how much of the noise of
    forces and impulses closed contacts give way, 0 for rigid ones, see `Noise`. warm_up: rows that
    make the first estimate. longest_gap: longest time without any value, s. tolerance: of the
    integrator, None for that of the filter. particles, smoothing, seed: of the particle filter.

    Of synthetic logs: duration in s, rate in Hz, noise (multiplies that of all sensors, 1 for what
    the filter believes), spread (multiplies that of the start), the shares of rows that are
    missing or outliers, and the seed.
    """

    gate: float | None = GATE
    rewind: NotNegative = 0.05
    hypotheses: Count = HYPOTHESES
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
    """Guard noise of surfaces whose place is known to a deviation in m; none for 0."""
    return dict.fromkeys(closing_guards(contacts), deviation**2) if deviation else {}
