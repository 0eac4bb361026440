"""What `hybridctl filter` and `hybridctl record` know of an object or robot.

A model says which channels of a log it reads, how a state appears in them and how well, how noisy
its flow, impacts and surfaces are, and what a typical motion of it looks like. The log channels
have the same names in both directions, so what `record` writes needs no mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from hybridctl.checks import Array, count, number
from hybridctl.errors import InputError
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.measurement import Measurement
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.particle import Propagate
from hybridctl.estimation.recovery import Beginning
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem
from hybridctl.mechanics.contacts import Contact
from hybridctl.mechanics.guards import closing_guards
from hybridctl.mechanics.state import RobotStateSpace

SHORTEST_RUN, LONGEST_RUN = 0.02, 60.0  # s
_LOOSE = 100.0  # deviations of its sensor, by which a configuration before any value may be off


@dataclass(frozen=True)
class Part:
    """A channel of a log: its columns, its SI unit ("1" without one), its frame."""

    channel: str
    columns: tuple[str, ...]
    unit: str = "1"
    frame: str = ""
    quaternion: bool = False


@dataclass(frozen=True, eq=False)
class Sensor:
    """A measurement, and the channels whose columns, side by side, are its value."""

    measurement: Measurement
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """That of the measurement."""
        return self.measurement.name

    @property
    def residual_names(self) -> tuple[str, ...]:
        """Those of the entries of a residual: columns, and turns about x, y, z of quaternions."""
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


@dataclass(frozen=True, eq=False)
class FilterModel:
    """A system with its sensors and noise.

    open: its mode without contact, in which filters begin. sensors: the first measures the whole
    configuration. scenario: makes a typical motion. inputs: the channel of the input; None where
    the input is noise alone. signals: optional contact signals by channel. speeds (nv,):
    deviations that velocities are given before anything is known of them. states: names of the
    coordinates (nx). shown(x, P): the values and deviations (k,) that figures show, under the
    names `shown_names`. pose(x): position and quaternion of the body (7,), or None. mapping: of
    recordings that are known by the names of their fields. propagate: of all particles at once.
    """

    name: str
    system: HybridSystem
    space: RobotStateSpace
    open: ModeKey
    sensors: tuple[Sensor, ...]
    process_noise: Noise
    reset_noise: Noise | None
    guard_noise: Mapping[str, float]
    speeds: Array
    states: tuple[str, ...]
    scenario: Callable[[], Scenario]
    inputs: Part | None = None
    signals: Mapping[Part, ContactSignal] = field(default_factory=dict)
    shown_names: tuple[str, ...] = ()
    shown: Callable[[Array, Array], tuple[Array, Array]] | None = None
    pose: Callable[[Array], Array] | None = None
    mapping: Mapping[str, Any] | None = None
    propagate: Propagate | None = None

    def display(self, x: Array, p: Array) -> tuple[Array, Array]:
        """Values and deviations for figures, by default those of the state."""
        if self.shown is not None:
            return self.shown(x, p)
        return x, np.sqrt(np.maximum(np.diag(p), 0.0))

    @property
    def display_names(self) -> tuple[str, ...]:
        """The names of what `display` gives."""
        return self.shown_names or self.states


@dataclass(frozen=True)
class Settings:
    """Settings of all models; noise of sensors, impacts and flow is each model's own.

    gate: probability with which a right value passes, None takes all. rewind, window, odds,
    patience: of the filter, see `SaltedKalmanFilter`. warm_up: rows that make the first estimate.
    longest_gap: longest time without any value, s. tolerance: of the integrator. particles,
    smoothing, seed: of the particle filter.

    Of synthetic logs: duration in s, rate in Hz, noise (multiplies that of all sensors, 1 for what
    the filter believes), spread (multiplies that of the start), the shares of rows that are
    missing or outliers, and the seed.
    """

    gate: float | None = 0.999999
    rewind: float = 0.05
    window: float = 0.05
    odds: float = 3.0
    patience: int | None = 8
    warm_up: int = 4
    longest_gap: float = 2.0
    tolerance: float = 1e-8
    particles: int = 200
    smoothing: float = 0.4
    duration: float = 1.0
    rate: float = 100.0
    noise: float = 1.0
    spread: float = 1.0
    missing: float = 0.0
    outliers: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gate is not None:
            number("gate", self.gate, above=0.0, at_most=1.0 - 1e-15)
        for name in ("rewind", "window", "odds", "noise", "spread"):
            number(name, getattr(self, name), at_least=0.0)
        for name in ("longest_gap", "rate"):
            number(name, getattr(self, name), above=0.0)
        number("tolerance", self.tolerance, above=0.0, at_most=1e-4)
        number("duration", self.duration, at_least=SHORTEST_RUN, at_most=LONGEST_RUN)
        number("smoothing", self.smoothing, at_least=0.0, at_most=0.99)
        for name in ("missing", "outliers"):
            number(name, getattr(self, name), at_least=0.0, at_most=0.9)
        if self.patience is not None:
            count("patience", self.patience)
        for name, least in (("warm_up", 2), ("particles", 10), ("seed", 0)):
            count(name, getattr(self, name), at_least=least)
        if self.duration * self.rate < self.warm_up + 2:
            raise InputError(
                f"duration and rate must give more than {self.warm_up + 1} samples, got "
                f"{self.duration * self.rate:g}"
            )


def salted(
    model: FilterModel,
    settings: Settings,
    strategy: Strategy = "saltation",
    *,
    gated: bool = True,
    kind: type[SaltedKalmanFilter] = SaltedKalmanFilter,
) -> SaltedKalmanFilter:
    """The salted Kalman filter of a model, a baseline that takes events otherwise, or a `kind`."""
    return kind(
        model.system,
        model.process_noise,
        measurements(model, settings, gated=gated),
        model.reset_noise,
        model.guard_noise or None,
        signals=tuple(model.signals.values()),
        strategy=strategy,
        rewind=settings.rewind,
        window=settings.window,
        odds=settings.odds,
        patience=settings.patience,
        beginning=Beginning(model.open, unknown(model)),
        rtol=settings.tolerance,
        atol=settings.tolerance,
    )


def surface_noise(contacts: Sequence[Contact], deviation: float) -> dict[str, float]:
    """Guard noise of surfaces whose place is known to a deviation in m; none for 0."""
    return dict.fromkeys(closing_guards(contacts), deviation**2) if deviation else {}


def unknown(model: FilterModel) -> Array:
    """The covariance (ndx, ndx) of a state of which values to come shall say everything."""
    configuration = _LOOSE**2 * model.sensors[0].measurement.covariance
    return np.asarray(block_diag(configuration, np.diag(model.speeds**2)))


def measurements(
    model: FilterModel, settings: Settings, *, gated: bool = True
) -> tuple[Measurement, ...]:
    """The measurements of a model, with the gate that the settings ask for."""
    gate = settings.gate if gated else None
    return tuple(replace(sensor.measurement, gate=gate) for sensor in model.sensors)
