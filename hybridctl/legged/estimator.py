"""The filter of a legged base: settings, what they build, where it starts, and what it says.

estimator = settings.build(robot)
result = estimator.run(readings)
poses = [estimator.root(step.estimate) for step in result.steps]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    check_array,
    check_instance,
    check_member,
    check_number,
    check_vector,
)
from hybridctl.base.errors import InputError
from hybridctl.base.settings import NotNegative, Positive, Settings
from hybridctl.estimation.contact_signal import ContactSignal
from hybridctl.estimation.estimate import Estimate, Mixture, nearest_semidefinite
from hybridctl.estimation.noise import EventNoise, Noise
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter
from hybridctl.hybrid.trajectory import Event
from hybridctl.legged.compiled_formulas import build_root
from hybridctl.legged.contact_checks import (
    count_contact_changes,
    find_suspicious_contacts,
)
from hybridctl.legged.creep import FootMotion
from hybridctl.legged.creep_filter import CreepFilter
from hybridctl.legged.hypotheses import ContactEvidence, ContactHypotheses
from hybridctl.legged.inertial_alignment import align_inertial
from hybridctl.legged.kinematics import Foot, LegKinematics
from hybridctl.legged.leg_forces import LegDynamics, estimate_leg_forces
from hybridctl.legged.live import LiveBaseFilter
from hybridctl.legged.measurements import ANGLES, angles_measurement, ground_measurement
from hybridctl.legged.readings import (
    OPENING,
    Hysteresis,
    Readings,
    opening_rows,
    signal_name,
    stood,
    uniform_stamps,
)
from hybridctl.legged.rest import REST, rest_measurement
from hybridctl.legged.rotation import matrix, product, quaternion
from hybridctl.legged.sensor_noise import find_rest_noise, raise_to_sensors
from hybridctl.legged.space import BASE, BASE_TANGENT
from hybridctl.legged.space import RootPose as RootPose
from hybridctl.legged.start import (
    WALKING,
    StartDeviations,
    find_upright,
    median_variance,
    rest_bias,
)
from hybridctl.legged.system import (
    OPEN,
    BaseNoise,
    LeggedBase,
    Touch,
    base_system,
    find_edge,
    lifts,
    touches,
)
from hybridctl.legged.time_offset import TimeOffset, find_time_offset
from hybridctl.legged.verdict import judge_walk
from hybridctl.legged.wiring import find_wiring_faults
from hybridctl.legged.wiring_fault import WiringFault
from hybridctl.mechanics.multibody.robot import Robot

_TILT_TIME = 0.5
"""Time in s over which the mean force of a robot that walks is taken to point up. A choice."""
_THRESHOLD_SHARES = 2.0 / 3.0, 1.0 / 3.0
"""Touch and lift force, relative to the weight that each foot would bear if all stood. If only one
of the two is set, their ratio gives the other. A choice."""


@dataclass(frozen=True)
class BaseSettings(Settings):
    """Settings of the filter of a legged base; times in s, forces in N, lengths in m.

    Attributes:
        inertial: Name of the frame of the inertial sensor.
        feet: Frames that touch the ground.
        touch_force: Vertical force from which on a foot is in contact (see `Hysteresis`). None for
            two thirds of the weight that each of all feet would bear, or twice `lift_force`.
        lift_force: Vertical force down to which a foot stays in contact. None for half of
            `touch_force`.
        evidence: Contacts are hypotheses that motion and forces weigh (see `hypotheses`). None for
            thresholds of forces.
        weight: Weight by which one missing force is completed, and by which thresholds are chosen.
            None keeps the contact where a force is missing, and takes the weight of the URDF.
        ground: Height of level ground. None where it is not known.
        observer_gain: Gain in 1/s of the momentum observer that finds forces of feet by joint
            torques (see `leg_forces`). Changes within 1/gain s are smoothed; noise grows with it.
        settle: Time that a foot which has come down is pressed into the ground before its contact
            counts.
        uniform_clock: Whether stamps are replaced by those of an even clock.
        time_offset: Time by which the inertial sensor is stamped too late against the joints,
            negative where the joints are late; inertial samples are taken so much later. "auto"
            finds it in a log (see `time_offset`) and compensates what is significant. Live, where
            it would take a whole log, "auto" is 0.
        standing: Time from the start for which the robot stands still. Over it the bias of the
            gyroscope and the tilt are medians, and the force is compared with gravity, which gives
            the accelerometer's bias along it. 0 for a robot that walks already: its tilt is by the
            mean force of half a second, and its biases are zero. None finds the time by the joint
            angles (see `readings.stood`).
        opening: Time from the start from which `standing`, the noise of sensors, the usual period
            and the first contacts are found; at least 0.5 s, and at least `standing`. A live filter
            collects it before it begins.
        gate: Probability with which right angles are accepted; None accepts all.
        noise: Noise of sensors and feet.
        start: Deviations at the start. None for `StartDeviations()`, and for `WALKING` where the
            robot does not stand.
        gravity: Acceleration of free fall in the world, m/s^2, along -z.

    Raises:
        InputError: A value is out of its bounds or has another type, `lift_force` is not below
            `touch_force`, gravity does not point down, or there are both `evidence` and `ground`.
    """

    inertial: str
    feet: tuple[Foot, ...]
    touch_force: float | None = None
    lift_force: float | None = None
    evidence: ContactEvidence | None = None
    weight: float | None = None
    ground: float | None = None
    observer_gain: Positive = 150.0
    settle: NotNegative = 0.03
    uniform_clock: bool = True
    time_offset: float | Literal["auto"] = "auto"
    standing: NotNegative | None = None
    opening: Positive = OPENING
    gate: float | None = None
    noise: BaseNoise = field(default_factory=BaseNoise)
    start: StartDeviations | None = None
    gravity: tuple[float, float, float] = (0.0, 0.0, -9.81)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contact(1.0)  # raises if thresholds do not fit each other; any weight shows that
        if self.evidence is not None and self.ground is not None:
            raise InputError("ground is compared at touchdowns by thresholds: leave out evidence")
        down = check_vector("gravity", self.gravity, 3)
        if down[0] or down[1] or not down[2] < 0.0:
            raise InputError(f"gravity must point down along z, got {self.gravity}")

    def contact(self, weight: float) -> Hysteresis:
        """Return the force thresholds of contact, N: touch and lift force.

        Without either they are two thirds and one third of the weight that each foot would bear.
        With one of them, the lift force is half of the touch force.

        Args:
            weight: Weight in N that counts where the settings have none.

        Raises:
            InputError: The lift force is not below the touch force.
        """
        part = (self.weight or weight) / max(len(self.feet), 1)
        on, off = self.touch_force, self.lift_force
        ratio = _THRESHOLD_SHARES[0] / _THRESHOLD_SHARES[1]
        if on is None:
            on = _THRESHOLD_SHARES[0] * part if off is None else ratio * off
        return Hysteresis(on, on / ratio if off is None else off)

    def build(self, robot: Robot) -> BaseEstimator:
        """Return the estimator of a robot with its root fixed.

        Raises:
            UnknownNameError: The robot does not have a frame.
            InputError: The feet do not fit the robot, see `LegKinematics`.
        """
        return BaseEstimator(self, robot)


class BaseEstimator:
    """The salted Kalman filter of a legged base, made from `BaseSettings` and a robot.

    Life cycle: the methods may be called in any order, and change no result of another.

    Attributes:
        settings: Settings of the filter.
        base: Base, feet and noise of the settings.
        weight: Weight of the robot by its URDF, N, whether the settings have one or not.
        contact: Force thresholds of contact, N.
        system: Hybrid system with a mode for each set of feet in contact.
        filter: The filter of that system, without what the noise of a log raises.

    Args:
        settings: Settings of the filter.
        robot: The robot, with the feet and the inertial frame of the settings.
    """

    def __init__(self, settings: BaseSettings, robot: Robot) -> None:
        self.settings = check_instance("settings", settings, BaseSettings)
        kinematics = LegKinematics(robot, settings.inertial, settings.feet)
        gravity = check_vector("gravity", settings.gravity, 3)
        self.base = LeggedBase(kinematics, gravity, settings.noise)
        self._robot = robot
        self.weight = robot.mass * float(np.linalg.norm(gravity))
        # The last log of which the offset was asked for, and its offset, see `time_offset`.
        self._last_offset: tuple[Readings, TimeOffset] | None = None
        self.contact = settings.contact(self.weight)
        self.system = base_system(self.base)
        measurements = [angles_measurement(self.base, settings.gate), rest_measurement(self.base)]
        if settings.ground is not None:
            measurements.append(ground_measurement(self.base, settings.gate))
        on, off = self.contact.on, self.contact.off
        signals = [
            ContactSignal(signal_name(f), on, off, touches(f), lifts(f)) for f in self.base.feet
        ]
        self.filter = SaltedKalmanFilter(
            self.system,
            Noise(self.base.density, name="process_noise", of_input=True),
            measurements,
            EventNoise(self._touchdown_noise),
            signals=signals,
            hypotheses=1,  # contact signals say the mode
            options=FilterOptions(patience=None),
        )

    @property
    def joints(self) -> tuple[str, ...]:
        """The joints whose angles it takes, in order."""
        return self.base.kinematics.joints

    def _touchdown_noise(self, event: Event) -> ArrayLike | None:
        """Return the covariance (ndx+, ndx+) after a touchdown by the angles; None for others."""
        edge = find_edge(self.base, event.mode_before, event.guards)
        touch = None if edge is None else edge.reset
        return touch.noise(event.input_before) if isinstance(touch, Touch) else None

    def readings(self, given: Readings) -> Readings:
        """Return readings with the clock of the settings, aligned, and with contacts that count.

        A foot whose forces are all missing counts as one without forces.

        Args:
            given: Readings as recorded.
        """
        settings = self.settings
        even = given.uniform() if settings.uniform_clock else given
        late = self.time_offset(given).compensated
        measured = replace(even, loads=_select_measured(even.loads))
        whole = align_inertial(measured, late).filled(settings.weight)
        return whole.settled(self.contact, settings.settle) if settings.settle else whole

    def time_offset(self, given: Readings) -> TimeOffset:
        """Return how late the inertial sensor of readings is against the joints.

        Args:
            given: Readings as recorded.
        """
        setting = self.settings.time_offset
        if setting != "auto":
            return TimeOffset(None, None, setting, is_given=True)
        # Start, record and flags of one log ask for it one after the other, and finding it takes
        # the whole log. The log is the same if the readings are the same object.
        if self._last_offset is None or self._last_offset[0] is not given:
            self._last_offset = given, find_time_offset(self.base.kinematics, given)
        return self._last_offset[1]

    def add_leg_forces(self, given: Readings, torques: Series) -> Readings:
        """Return readings with forces by joint torques for all feet that measure none.

        A foot measures none if it has no series or no finite value. The filter uses the forces that
        are added as it uses measured ones. If all feet measure forces the readings are returned as
        they are.

        Args:
            given: Readings.
            torques: Torques (n, m) in N m of the motors along the joints, in the order of `joints`.

        Raises:
            InputError: Torques have another number of columns. Or a foot measures no force, and
                torques were never measured along with joint angles and inertial samples.
        """
        check_instance("torques", torques, Series)
        if torques.values.shape[1] != len(self.joints):
            raise InputError(
                f"torques must have {len(self.joints)} columns, those of the joints "
                f"{self.joints}, got {torques.values.shape[1]}"
            )
        measured = _select_measured(given.loads)
        if all(foot in measured for foot in self.base.feet):
            return given
        dynamics = LegDynamics(self._robot, self.base.kinematics)
        even = given.uniform() if self.settings.uniform_clock else given
        stamps = uniform_stamps(torques.sort_by_time().times)
        motors = (
            Series(stamps, torques.sort_by_time().values)
            if self.settings.uniform_clock
            else torques
        )
        forces = estimate_leg_forces(
            dynamics, even.inertial, even.angles, motors, self.settings.observer_gain
        )
        loads = {foot: measured.get(foot, forces[foot]) for foot in self.base.feet}
        return replace(given, loads=loads)

    def record(self, given: Readings) -> Record:
        """Return the record of readings: what the filter takes, in channels.

        If contacts are found by thresholds, the record has the forces of each foot at the times at
        which its contact changes. If contacts are hypotheses (`find_evidence`), it has all forces
        if they count as evidence, and otherwise none.

        Args:
            given: Readings as recorded.

        Raises:
            UnknownNameError: The robot does not have a foot.
            InputError: There are angles of another number of joints.
        """
        s, readings = self.settings, self.readings(given)
        angles, start = readings.angles, float(readings.inertial.complete_rows.times[0])
        # `run_record` finds the evidence from the record, whose angles begin after the start. The
        # same rows are taken here, so that both find the same.
        evidence = self.find_evidence(readings.loads, angles.select_rows(angles.times > start))
        record = readings.record(
            self.base,
            self.contact,
            standing=self.standing_time(angles, start),
            ground=s.ground,
            opening=self.opening,
            window=None if evidence is None else evidence.window,
        )
        if evidence is None:
            return record
        forces = readings.loads if evidence.forces else {}
        channels = {signal_name(foot): load for foot, load in forces.items()}
        channels[ANGLES] = record.channels[ANGLES].sort_by_time()
        still = {REST: record.channels[REST]} if REST in record.channels else {}
        return replace(record, channels={**channels, **still})

    def find_evidence(self, loads: Mapping[str, Series], angles: Series) -> ContactEvidence | None:
        """Return how contacts are hypotheses, with the time of a step; None for thresholds alone.

        They are hypotheses where the settings say so, and where a foot has no force.

        Args:
            loads: Vertical forces (n, 1) in N by the frames of feet.
            angles: Joint angles (n, m) in rad.

        Raises:
            InputError: A foot has no force, and the settings have `ground`.
        """
        missing = [foot for foot in self.base.feet if foot not in loads]
        evidence = self.settings.evidence
        if evidence is None and not missing:
            return None
        if self.settings.ground is not None:
            raise InputError(
                f"ground is compared at touchdowns by forces, but {missing[0]!r} has no force: "
                "leave out ground"
            )
        evidence = evidence or ContactEvidence()
        return evidence.find_step(self.contact, loads.values() if evidence.forces else (), angles)

    def stood(self, record: Record) -> float:
        """Return how long the robot stands still at the start of a record, s; 0 if it walks."""
        assert record.inputs is not None
        return self.standing_time(record.channels[ANGLES], record.inputs.times[0])

    @property
    def opening(self) -> float:
        """Time from the first sample from which everything that then stays fixed is found, s."""
        return max(self.settings.opening, self.settings.standing or 0.0, _TILT_TIME)

    def standing_time(self, angles: Series, start: float) -> float:
        """Return how long the robot stands still at the start, s; 0 for one that walks.

        Args:
            angles: Joint angles (n, m) in rad.
            start: Time of the first inertial sample, s.
        """
        told = self.settings.standing
        return stood(opening_rows(angles, start + self.opening)) if told is None else told

    def foot_motion(self, record: Record, window: float | None = None) -> FootMotion:
        """Return how velocities of feet are found in a record, by its opening.

        Args:
            record: A record of `record`.
            window: Time over which velocities are means, s. If None, it is chosen by the noise.
        """
        assert record.inputs is not None
        end = record.inputs.times[0] + self.opening
        return FootMotion.of(self.base, opening_rows(record.channels[ANGLES], end), window)

    def raise_noise(
        self, record: Record, motion: FootMotion, delay: float | None = None
    ) -> BaseEstimator:
        """Return an estimator whose sensors are as noisy as the opening of a record shows them.

        Args:
            record: A record of `record`, or its opening.
            motion: How velocities of feet are found, with the noise of the angles.
            delay: `BaseNoise.delay` where the settings have none, s; None where it is not known.

        Returns:
            This estimator where its noise is as large already.
        """
        assert record.inputs is not None
        opening = opening_rows(record.inputs, record.inputs.times[0] + self.opening)
        noise = self.settings.noise
        raised = raise_to_sensors(noise, opening, self.stood(record), motion.angle_noise)
        if noise.delay is None and delay is not None:
            raised = replace(raised, delay=delay)
        if raised is noise:
            return self
        return BaseEstimator(replace(self.settings, noise=raised), self._robot)

    def deviations(self, record: Record) -> StartDeviations:
        """Return the standard deviations at the start of a record."""
        return self.settings.start or (StartDeviations() if self.stood(record) else WALKING)

    def start(
        self,
        given: Readings,
        *,
        heading: float = 0.0,
        position: ArrayLike = (0.0, 0.0, 0.0),
        orientation: ArrayLike | None = None,
        standing: Sequence[str] | None = None,
    ) -> Estimate:
        """Return the estimate at the first sample of a robot that stands still, or walks already.

        Of one that stands, the bias of the gyroscope is the median rate. Tilt is by the median
        force, whose size gives the accelerometer's bias along gravity (see `rest_bias`). Of one
        that walks, see `BaseSettings.standing`.

        Args:
            given: Readings as recorded.
            heading: Yaw of the root, rad.
            position: Position (3,) of the root, m.
            orientation: Quaternion (x, y, z, w) of the root, instead of tilt and heading.
            standing: Feet in contact. By default those whose forces say so at the first row (see
                `Readings.standing`), and those that have no forces.

        Returns:
            The estimate of the inertial frame and the feet, at the first inertial sample.

        Raises:
            UnknownNameError: The robot does not have a foot.
            InputError: There are angles of another number of joints, a joint is between root and
                inertial frame, or heading, position or orientation is no finite number or has
                another size.
        """
        readings = self.readings(given)
        record = readings.start_record(self.base)
        assert record.inputs is not None
        times, u = record.inputs.times, record.inputs.values
        standstill = self.stood(record)
        still = times <= times[0] + (standstill or _TILT_TIME)
        force, s = u[still, 3:6].mean(axis=0), self.deviations(record)
        gyroscope, rate = s.gyroscope, np.zeros(3)
        if standstill:
            # A robot that jumps off turns at 1 rad/s and pushes at 100 m/s^2 before its joints have
            # moved so far that it does not count as standing any more. A mean would contain these
            # samples, a median does not. Of a robot that walks only the mean force points up.
            median = np.median(readings.inertial.complete_rows.values[still], axis=0)
            rate, force = median[:3], median[3:]
            # Of the log at rest. The noise of the force is used for the bias below.
            rate_noise, force_noise = find_rest_noise(
                self.settings.noise, record.inputs, standstill
            )
            gyroscope = max(gyroscope, median_variance(rate_noise, standstill) ** 0.5)
        x = np.zeros(16)
        inertial, (_, arm) = self.base.kinematics.base[0], self._locate_root()
        if orientation is None:
            x[:4] = find_upright(inertial, force, check_number("heading", heading))
        else:
            given_turn = check_vector("orientation", orientation, 4)
            x[:4] = product(given_turn / np.linalg.norm(given_turn), quaternion(inertial))
        x[4:7] = check_vector("position", position, 3) - matrix(x[:4]) @ arm
        x[10:13] = rate
        key = (OPEN,) * len(self.base.feet)
        spread = [s.tilt, s.tilt, s.heading, *np.repeat([s.position, s.velocity], 3)]
        spread += np.repeat([gyroscope, s.accelerometer], 3).tolist()
        # From deviations along axes of the world (turn, position, velocity) to tangent coordinates.
        own = np.eye(15)
        own[:9, :9] = np.kron(np.eye(3), matrix(x[:4]).T)
        p = (own * np.square(spread)) @ own.T
        if standstill:
            gravity = float(np.linalg.norm(self.base.gravity))
            found = rest_bias(force, rate, gravity, standstill, force_noise, s)
            x[13:16] = found.bias
            p[12:15, 12:15] = found.covariance
            # The tilt was found from a force that contains this bias, so their errors are
            # correlated. An orientation that is given does not come from the force.
            if orientation is None:
                p[:3, :3] += found.by_bias @ found.covariance @ found.by_bias.T
                p[:3, 12:15] = found.by_bias @ found.covariance
                p[12:15, :3] = p[:3, 12:15].T
        estimate = Estimate(key, float(times[0]), x, nearest_semidefinite(p))
        if standing is None:
            # Nothing says that a foot without forces swings, and hypotheses weigh it later.
            known = readings.standing(self.contact, self.opening)
            standing = [foot for foot in self.base.feet if known.get(foot, True)]
        for foot in standing:
            estimate = self.touched(estimate, foot, u[0])
        return estimate

    def touched(self, estimate: Estimate, foot: str, u: Array) -> Estimate:
        """Return the estimate with a foot in contact from now on; unchanged if it is already.

        Args:
            estimate: Estimate before.
            foot: Frame of the foot.
            u: Input (nu,), whose angles say where the foot is.

        Raises:
            UnknownNameError: The robot does not have the foot.
        """
        check_member("foot", foot, self.base.feet)
        found = self.filter.update(estimate, signal_name(foot), self.contact.on, u)
        return found.estimate

    def run(self, given: Readings, initial: Estimate | None = None) -> FilterResult:
        """Return the result of filtering readings.

        Args:
            given: Readings as recorded.
            initial: Estimate at the first sample; None for `start` with heading and position zero.
        """
        first = self.start(given) if initial is None else initial
        return self.run_record(self.record(given), first, delay=self.time_offset(given).left)

    def run_record(
        self, record: Record, initial: Estimate, *, delay: float | None = None
    ) -> FilterResult:
        """Return the result of filtering a record, by thresholds or hypotheses of contact.

        Which of both, see `find_evidence`.

        Args:
            record: Record that `record` has made.
            initial: Estimate at its first sample.
            delay: By how much stamps of inertial sensor and joints may be apart, as a deviation in
                s, see `TimeOffset.left`; None where it is not known.
        """
        names = {foot: signal_name(foot) for foot in self.base.feet}
        loads = {f: record.channels[n] for f, n in names.items() if n in record.channels}
        evidence = self.find_evidence(loads, record.channels[ANGLES])
        motion = self.foot_motion(record, None if evidence is None else evidence.window)
        own = self.raise_noise(record, motion, delay)
        if evidence is None:
            return CreepFilter(own.base, own.filter, motion).run(record, initial)
        u = record.input(initial.time)
        assert u is not None
        # Hypotheses run in the mode in which all feet are in the state. Which of them stand is in
        # the weights of the hypotheses, so a foot that swings has to be in the state, too.
        for foot in self.base.feet:
            if foot not in self.base.standing(initial.mode):
                initial = own.touched(initial, foot, u)
        hypotheses = ContactHypotheses(own.base, own.filter, self.contact, evidence, motion)
        return hypotheses.run(record, initial, sure=bool(self.stood(record)))

    def live(
        self, *, heading: float = 0.0, position: ArrayLike = (0.0, 0.0, 0.0)
    ) -> LiveBaseFilter:
        """Return the filter for samples as they come, see `LiveBaseFilter`.

        Args:
            heading: Yaw of the root at the start, rad.
            position: Position (3,) of the root at the start, m.

        Raises:
            InputError: The settings have `evidence`, which needs a whole log. Steps raise it where
                no foot has a force in the opening.
        """
        settings, other = self.settings, copy(self)
        if settings.evidence is not None:
            raise InputError("live, contacts are those of thresholds: leave out evidence")
        # Both an even clock (a straight line through all stamps) and an offset that is to be found
        # need the whole log. So live there is neither. An offset that the settings give is taken
        # off sample by sample, by `late`.
        other.settings = replace(settings, uniform_clock=False, time_offset=0.0)
        late = 0.0 if settings.time_offset == "auto" else settings.time_offset

        def start(opening: Readings) -> Estimate:
            if not opening.loads:
                raise InputError(
                    "live, contacts need a measured force of a foot, but there was none in the "
                    f"first {self.opening:g} s: contacts by motion or joint torques are for logs"
                )
            return other.start(opening, heading=heading, position=position)

        return LiveBaseFilter(
            other,
            start,
            weight=settings.weight,
            ground=settings.ground,
            settle=settings.settle,
            late=late,
        )

    def contact_changes(self, result: FilterResult) -> dict[str, tuple[int, int]]:
        """Return how often each foot touched down, and lifted off, by its frame."""
        return count_contact_changes(self.base, result)

    def contacts(self, belief: Mixture) -> Array:
        """Return the probability (k,) that each foot stands: the sum of those of its modes."""
        modes = belief.probabilities.items()
        return np.array(
            [
                sum(p for mode, p in modes if foot in self.base.standing(mode))
                for foot in self.base.feet
            ]
        )

    def find_wiring_faults(self, given: Readings) -> tuple[WiringFault, ...]:
        """Return what readings show to be wired wrongly, the first cause first; see `wiring`.

        It needs no filter. A delay that is compensated is no fault, see `time_offset`.

        Args:
            given: Readings as recorded.
        """
        s = self.settings
        weight, gravity = s.weight or self.weight, float(np.linalg.norm(s.gravity))
        late = self.time_offset(given).compensated
        return find_wiring_faults(
            self.base.kinematics,
            given,
            weight=weight,
            gravity=gravity,
            aligned=align_inertial(given.uniform(), late) if late else None,
        )

    def flags(
        self,
        given: Readings,
        result: FilterResult,
        *,
        faults: Sequence[WiringFault] | None = None,
    ) -> tuple[str, ...]:
        """Return what in readings, or in what was made of them, speaks against the estimates.

        Args:
            given: The readings.
            result: What the filter made of them.
            faults: What is wired wrongly, which comes first. If None, it is looked for.
        """
        wired = self.find_wiring_faults(given) if faults is None else faults
        found = [*map(str, wired), *judge_walk(self.base, result).flags]
        if given.disorder:
            found.append(f"{given.disorder} stamps out of order")
        gaps = self.readings(given).gaps
        if len(gaps):
            longest = 1e3 * float(np.diff(gaps, axis=1).max())
            found.append(f"{len(gaps)} gaps of up to {longest:.0f} ms")
        measured = _select_measured(given.loads)
        blind = [foot for foot in self.base.feet if foot not in measured]
        if blind:
            found.append(f"no forces of {', '.join(map(repr, blind))}: contacts by motion")
        for foot, load in measured.items():
            missing = float(np.isnan(load.values).mean())
            if missing:
                found.append(f"{100.0 * missing:.0f} % of the forces of {foot!r} missing")
        if result.rejected:
            found.append(f"{len(result.rejected)} rows of angles rejected")
        evidence, loads = self.settings.evidence or ContactEvidence(), self.readings(given).loads
        step = evidence.find_step(self.contact, loads.values(), given.angles).step
        assert step is not None
        found += find_suspicious_contacts(self.base, self.contact, result, step, loads)
        return (*found, *(f"{note} at {t:.3f} s" for t, note in result.notes))

    @cached_property
    def _root_pose(self) -> Array:
        """Origin of the root in the inertial frame, and its axes as a quaternion, (7,)."""
        turn, arm = self._locate_root()
        return np.concatenate([arm, quaternion(turn)])

    def _locate_root(self) -> tuple[Array, Array]:
        """Return axes (3, 3) and origin (3,) of the root in the inertial frame."""
        turn, place = self.base.kinematics.base
        return turn.T, -turn.T @ place

    def root(self, estimate: Estimate, rate: ArrayLike | None = None) -> RootPose:
        """Return the root by an estimate.

        Args:
            estimate: Estimate of the inertial frame.
            rate: Measured angular velocity (3,), rad/s. Less the bias of the estimate it is the
                rate at which the sensor turns, and with it the root at a distance. If None, the
                sensor is taken not to turn: the measured rate is the bias.
        """
        x = estimate.mean[:BASE]
        measured = x[10:13] if rate is None else check_array("rate", rate, (3,))
        *pose, by = build_root()(x, measured, self._root_pose)
        p = estimate.covariance[:BASE_TANGENT, :BASE_TANGENT]
        position, orientation, velocity = (values.copy() for values in pose)
        return RootPose(estimate.time, position, orientation, velocity, by.dot(p).dot(by.T))


def _select_measured(loads: Mapping[str, Series]) -> dict[str, Series]:
    """Return the forces of the feet that have a finite value; a column may be there but empty."""
    return {foot: load for foot, load in loads.items() if np.isfinite(load.values).any()}
