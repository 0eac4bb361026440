"""The base of a walking humanoid from joint angles, inertial sensor and foot forces.

A recorded walk of 12 s, of which the first 5.8 s are standing, with motion capture as truth. Feet
come into contact and leave it by their vertical forces, with hysteresis; while a flat foot is in
contact its pose is part of the state. Beside the filter stand the same with deviations written in
other ways, with noise found without motion capture, with contacts as hypotheses that force and
motion weigh, or motion alone, with level ground; without mode switches; odometry over the foot that
bears more; and the smoother, which knows all of the recording. Started 10 deg wrong in tilt the
errors differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from hybridctl.experiments.legged import figures, robustness
from hybridctl.experiments.legged.odometry import odometry
from hybridctl.experiments.legged.recording import FEET, INERTIAL, Recording, Source, load
from hybridctl.experiments.legged.score import Errors, Track, errors, judged, rms
from hybridctl.experiments.legged.tables import print_tables
from rich.console import Console
from scipy.spatial.transform import Rotation

from hybridctl.checks import count, number
from hybridctl.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.legged.estimator import BaseEstimator, BaseSettings
from hybridctl.estimation.legged.hypotheses import ContactEvidence
from hybridctl.estimation.legged.kinematics import Foot
from hybridctl.estimation.legged.levels import (
    noise_of_creep,
    noise_of_innovations,
    noise_of_standing,
)
from hybridctl.estimation.legged.measurements import ANGLES
from hybridctl.estimation.legged.noise import BaseNoise
from hybridctl.estimation.legged.space import ERRORS, Error
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.smoother import smooth
from hybridctl.report import RunFolder, progress

SUMMARY = "the base of a walking humanoid from angles, inertial sensor and foot forces, recorded"

SETTLED = np.radians(1.0)  # of tilt, below which a start is made up for
MAIN = "filter"


def _settings() -> BaseSettings:
    return BaseSettings(
        INERTIAL,
        tuple(Foot(frame, flat=True) for frame in FEET),
        touch_force=110.0,
        lift_force=55.0,
        standing=3.0,
        noise=BaseNoise(gyroscope=2e-3, accelerometer=2e-2, foot=4e-3, measured=2e-3),
    )


@dataclass(frozen=True)
class Config:
    """What is run on the recording in the folder `data`.

    source: "archive" (NPZ), "bag", or "any" that is there. settings: of the filter. share_touch,
    share_lift: of the robot's weight while it stands, the forces of the hysteresis where nothing is
    known of the truth. evaluations: of the likelihood in the search for noise, 0 for none. tilted:
    by how much the start is turned about x for the comparison of errors, deg. robust: whether the
    recording is damaged in some ways as well. jump, lost: see `recording.load`.
    """

    data: str | None = None
    source: Source = "any"
    settings: BaseSettings = field(default_factory=_settings)
    share_touch: float = 1.0 / 3.0
    share_lift: float = 1.0 / 6.0
    evaluations: int = 40
    tilted: float = 10.0
    robust: bool = True
    jump: float = 1.5
    lost: float = 0.3

    def __post_init__(self) -> None:
        if not isinstance(self.data, str | None):
            raise InputError(f"data must be the path of a folder, got {self.data!r}")
        for name in ("share_lift", "share_touch"):
            number(name, getattr(self, name), above=0.0, at_most=1.0)
        count("evaluations", self.evaluations, at_least=0)
        number("tilted", self.tilted, at_least=0.0, at_most=90.0)
        for name in ("jump", "lost"):
            number(name, getattr(self, name), above=0.0)


class Outcome(NamedTuple):
    """What came of one way to estimate the base: errors, the track, and the filter's result.

    touchdowns: by side.
    """

    name: str
    errors: Errors
    track: Track
    result: FilterResult | None = None
    settings: BaseSettings | None = None
    touchdowns: dict[str, int] = {}  # noqa: RUF012 read only


def quick(config: Config) -> Config:
    """Without the search for noise, and without damaged recordings."""
    return replace(config, evaluations=0, robust=False)


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Run the experiment; returns what it writes to summary.json."""
    folder.write_configuration(config, seed=None)
    recording = load(config.data, config.source, jump=config.jump, lost=config.lost)
    begun, end = recording.truth.times[[0, -1]]
    with progress(console, 0.0, 1.0) as begin:
        tick = begin("filters")
        cases = _cases(config, recording)
        outcomes = []
        for k, case in enumerate(cases):
            outcomes.append(case())
            tick((k + 1) / len(cases))
        tilted = [_tilted(config, recording, error) for error in ERRORS]
    main = outcomes[0]
    assert main.result is not None
    walk = main.result.events[0].time if main.result.events else begun
    summary = {
        "source": recording.log.format,
        "duration": end - begun,
        "walk": walk,
        "touchdowns": main.touchdowns,
        "filters": [_record(outcome, walk) for outcome in outcomes],
        "tilted": [_tilt_record(found, walk) for found in tilted],
        "levels": _levels(outcomes),
    }
    if config.robust:
        summary["robustness"] = robustness.rows(recording, config.settings, walk)
    folder.write_json("summary.json", summary)
    print_tables(console, summary)
    with console.status("drawing figures"):
        figures.draw(folder / "figures", recording.truth, outcomes, tilted, main.result)
    return summary


def _cases(config: Config, recording: Recording) -> list[Callable[[], Outcome]]:
    """The ways to estimate the base, to be called one after the other."""
    s = config.settings
    blind = without_truth(config, recording)
    others = [error for error in ERRORS if error != s.error]
    low, blind_feet = replace(s, touch_force=30.0, lift_force=10.0), ContactEvidence(forces=False)
    found: list[Callable[[], Outcome]] = [
        lambda: filtered(MAIN, s, recording),
        *(_named(f"{e} error", replace(s, error=e), recording) for e in others),
        lambda: filtered("noise from standing and creep", blind, recording),
        _named("contact by force and motion", replace(s, evidence=ContactEvidence()), recording),
        _named("the same, from 30 and 10 N", replace(low, evidence=ContactEvidence()), recording),
        _named("contact by motion alone", replace(s, evidence=blind_feet), recording),
        _named("thresholds of 30 and 10 N", low, recording),
        lambda: filtered("level ground", replace(s, ground=0.0), recording),
        lambda: filtered("gyroscope bias from zero", s, recording, begin=_biased),
        lambda: filtered("no mode switches", s, recording, signals=False),
        lambda: _odometry(s, recording),
        lambda: _smoothed(s, recording),
    ]
    if config.evaluations:
        found.insert(4, lambda: _likely(config, blind, recording))
    return found


def _named(name: str, s: BaseSettings, recording: Recording) -> Callable[[], Outcome]:
    return lambda: filtered(name, s, recording)


def without_truth(config: Config, recording: Recording) -> BaseSettings:
    """Settings by what the robot knows: forces standing, sensor noise, feet that creep."""
    s = config.settings
    readings = recording.readings(s.build(recording.robot))
    weight = sum(
        float(np.median(load.values[load.times <= load.times[0] + s.standing]))
        for load in readings.loads.values()
    )
    s = replace(s, touch_force=config.share_touch * weight, lift_force=config.share_lift * weight)
    return noise_of_creep(noise_of_standing(s, readings), recording.robot, readings)


def _likely(config: Config, blind: BaseSettings, recording: Recording) -> Outcome:
    readings = recording.readings(blind.build(recording.robot))
    s, _ = noise_of_innovations(
        blind, recording.robot, [readings], max_evaluations=config.evaluations
    )
    return filtered("noise by likelihood", s, recording)


Begin = Callable[[BaseEstimator, Estimate], Estimate]


def filtered(
    name: str,
    settings: BaseSettings,
    recording: Recording,
    *,
    signals: bool = True,
    begin: Begin | None = None,
    orientation: Sequence[float] | None = None,
) -> Outcome:
    """The filter on a recording, begun at the first true position and heading.

    signals: whether contacts change. begin: changes the estimate at the start. orientation: of
    the root at the start, instead of that by gravity.
    """
    estimator = settings.build(recording.robot)
    readings, truth = recording.readings(estimator), recording.truth
    first = estimator.start(
        readings,
        heading=float(truth.angles[0, 2]),
        position=truth.position[0],
        orientation=orientation,
    )
    if begin is not None:
        first = begin(estimator, first)
    record = estimator.record(readings)
    if not signals:
        record = Record({ANGLES: record.channels[ANGLES]}, record.inputs)
    result = estimator.run_record(record, first)
    track = _track(estimator, record, [s.estimate for s in result.steps if s.channel == ANGLES])
    changes = estimator.contact_changes(result)
    downs = dict(zip(("left", "right"), (changes[foot][0] for foot in FEET), strict=True))
    return Outcome(name, errors(track, truth), track, result, settings, downs)


def _track(estimator: BaseEstimator, record: Record, estimates: Sequence[Estimate]) -> Track:
    roots = []
    for estimate in estimates:
        u = record.input(estimate.time)
        assert u is not None
        roots.append(estimator.root(estimate, u[:3]))
    return Track.of(roots)


def _biased(estimator: BaseEstimator, first: Estimate) -> Estimate:
    """The start with biases of the gyroscope at zero, and uncertain to 0.01 rad/s."""
    x, p = first.mean.copy(), first.covariance.copy()
    x[10:13] = 0.0
    p[9:12, :], p[:, 9:12], p[9:12, 9:12] = 0.0, 0.0, 1e-4 * np.eye(3)
    return replace(first, mean=x, covariance=p)


def _odometry(settings: BaseSettings, recording: Recording) -> Outcome:
    estimator, truth = settings.build(recording.robot), recording.truth
    readings = recording.readings(estimator)
    first = estimator.start(readings, heading=float(truth.angles[0, 2]), position=truth.position[0])
    root = estimator.root(first)
    track = odometry(estimator, readings, root.orientation, root.position)
    return Outcome("odometry", errors(track, truth), track)


def _smoothed(settings: BaseSettings, recording: Recording) -> Outcome:
    estimator = settings.build(recording.robot)
    outcome = filtered(MAIN, settings, recording)
    assert outcome.result is not None
    smoothed = smooth(estimator.system, outcome.result)
    chosen = [
        e
        for e, step in zip(smoothed.estimates, outcome.result.steps, strict=True)
        if step.channel == ANGLES
    ]
    record = estimator.record(recording.readings(estimator))
    track = _track(estimator, record, chosen)
    return Outcome("smoother", errors(track, recording.truth), track)


def _tilted(config: Config, recording: Recording, error: Error) -> Outcome:
    """The filter with one kind of error from a start that is turned about x."""
    angle = np.radians(config.tilted)
    s = config.settings
    s = replace(s, error=error, start=replace(s.start, tilt=max(float(angle), s.start.tilt)))
    roll, pitch, yaw = recording.truth.angles[0]
    turn = Rotation.from_rotvec([angle, 0.0, 0.0]) * Rotation.from_euler("ZYX", [yaw, pitch, roll])
    return filtered(error, s, recording, orientation=turn.as_quat().tolist())


def _record(outcome: Outcome, walk: float) -> dict[str, Any]:
    found = {"name": outcome.name, **judged(outcome.errors, walk), "seconds_per_sample": None}
    if outcome.result is not None:
        samples = sum(step.channel == ANGLES for step in outcome.result.steps)
        found["seconds_per_sample"] = outcome.result.seconds / samples
        found["mean_nis"] = float(outcome.result.nis.mean())
        found["nis_dim"] = float(np.mean([i.dimension for i in outcome.result.innovations]))
        found["log_likelihood"] = outcome.result.log_likelihood
        found["touchdowns"] = outcome.touchdowns
    return found


def _tilt_record(outcome: Outcome, walk: float) -> dict[str, Any]:
    """How a start that is wrong in tilt is made up for before the walk begins."""
    times, still = outcome.errors.times, outcome.errors.times < walk
    tilt = np.linalg.norm(outcome.errors.angles[:, :2], axis=1)
    wrong = np.flatnonzero((tilt > SETTLED) & still)
    last = int(wrong[-1]) + 1 if len(wrong) else 0
    return {
        "error": outcome.name,
        "settled": float(times[last] - times[0]) if still[last] else None,
        "tilt_rmse": rms(tilt),
        "position_rmse": rms(outcome.errors.position),
        "yaw_rmse": rms(outcome.errors.angles[:, 2]),
    }


def _levels(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The settings of the rows that differ in noise or thresholds."""
    found = []
    for outcome in outcomes:
        s = outcome.settings
        if s is not None and (outcome.name == MAIN or outcome.name.startswith("noise")):
            noise = {n: getattr(s.noise, n) for n in s.noise.__dataclass_fields__}
            found.append(
                {
                    "name": outcome.name,
                    "touch_force": s.touch_force,
                    "lift_force": s.lift_force,
                    **noise,
                }
            )
    return found
