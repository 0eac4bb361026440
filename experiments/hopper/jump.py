"""A filter that sees encoders and height alone follows the recorded jump of a hopper.

The leg stands, pushes off, flies for 0.15 s and lands on a force plate. Its inputs are the measured
torques of hip and knee, and a constant force that the rail carries. Damping of the rail and of the
joints, that force, the radius of the foot and the levels of noise are those of `START`. They were
chosen by hand after the whole recording had been looked at, the flight and the plate included. So
the second half, which has the flight and on which all is judged, is no independent test of them.
With `evaluations` above 1 they are fitted to the first half by `fit_noise`, and the second half is
one. There is no impact in the first half: the noise of impacts follows from a stated contact time,
see `ImpactNoise`. Three matrices at impacts are compared, with the height measured and with it
withheld in flight.

Contact times are those of the plate. The foot leaves it where the contact force that follows from
the torques falls to zero, and comes back where the ball of the foot reaches the ground: the latter
is as good as legs and sensor are known in mm over the speed of the touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zipfile import BadZipFile

import numpy as np
from hybridctl.experiments.runners import tabulate
from hybridctl.robots.hopper import model as hopper
from numpy.lib.npyio import NpzFile
from rich.console import Console
from rich.table import Table

from hybridctl.app.experiment import Check, Findings, experiment
from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, Line, Panel, draw_series
from hybridctl.base.checks import Array
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Positive, Settings
from hybridctl.estimation import Estimate, FilterOptions, ImpactNoise, Noise, Record
from hybridctl.estimation.initial_estimate import STRATEGY_BY_FILTER
from hybridctl.estimation.likelihood import NoiseFit, fit_noise, log_likelihoods
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.record import Series
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter

SUMMARY = "encoders and height of a hopper's recorded jump, its contact times against a force plate"
COLUMNS = ("time_s", "HFE_rad", "KFE_rad", "HFE_Nm", "KFE_Nm", "height_m", "fz_N")
"""Arrays (n,) of a recording: stamps, joint angles of hip and knee, their measured torques, height
of the hip, vertical force on the plate."""
ORIGIN = "machines-in-motion/mim_estimation on GitHub"
PARAMETERS = (
    "rail_damping", "rail_force", "joint_damping", "radius",
    "joint_noise", "height_noise", "force_noise", "torque_noise",
)  # fmt: skip
UNITS = ("N s/m", "N", "N m s/rad", "m", "rad", "m", "N sqrt(s)", "N m sqrt(s)")
START = (1.5, 1.7, 0.03, 0.017, 1e-2, 2e-3, 0.3, 0.1)
BOUNDS = (
    (0.01, 10.0), (0.01, 6.0), (1e-3, 0.2), (0.012, 0.025),
    (1e-3, 0.1), (5e-4, 1e-2), (0.01, 5.0), (0.01, 1.0),
)  # fmt: skip
CLOSED, OPEN = ("stick",), ("open",)
PLATE_FORCE = 0.5  # N, from which on the plate is loaded; its noise in flight is 0.15 N
DEVIATIONS = np.array([2e-3, 1e-2, 1e-2, 0.3, 2.0, 2.0])  # m, rad, m/s, rad/s, of the start
MISSED = 1.0  # s, error of the time of a contact that a filter does not find


@dataclass(frozen=True)
class Config(Settings):
    """The recording, and how it is used.

    Attributes:
        data: NPZ file with the columns of `COLUMNS`.
        contact_time: Time of the touchdown, s: the plate's force takes so long to rise.
        every: Of the samples, every n-th is fitted.
        evaluations: Most evaluations of the fit; 1 for none, with the values in `START`.
        half: End of the part that is fitted, s.
        until: End of what is judged, s; after the flight.
    """

    data: str | None = None
    contact_time: Positive = 0.02
    every: Count = 4
    evaluations: Count = 1
    half: Positive = 1.495
    until: Positive = 3.0


def quick(config: Config) -> Config:
    """Return the settings without a fit, for the flight and what is just around it."""
    return replace(config, every=20, evaluations=1, until=1.75)


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Compare the filters.

    Args:
        config: Settings.
        folder: Folder of the results.
        console: Where tables are shown.

    Returns:
        The content of summary.json.

    Raises:
        InputError: No file of recordings is given.
    """
    if config.data is None:
        raise InputError(
            f"hopper-jump needs data=FILE, an NPZ file of a recorded jump, with the arrays "
            f"{', '.join(COLUMNS)}; the recording is from {ORIGIN}"
        )
    return experiment(_judge_filters)(config, folder, console)


@dataclass(frozen=True, eq=False)
class RecordedJump:
    """The recording.

    Attributes:
        times: Stamps (n,), s.
        joints: Angles (n, 2) of hip and knee, rad.
        torques: Their measured torques (n, 2), N m.
        heights: Measured height (n,) of the hip, m.
        plate: Vertical force (n,) on the plate, N.
    """

    times: Array
    joints: Array
    torques: Array
    heights: Array
    plate: Array

    @property
    def contact_times(self) -> tuple[float, float]:
        """Times in s at which the plate is unloaded after the largest push, and loaded again."""
        top = int(self.plate.argmax())
        free = top + int(np.argmax(self.plate[top:] < PLATE_FORCE))
        back = free + int(np.argmax(self.plate[free:] >= PLATE_FORCE))
        return float(self.times[free]), float(self.times[back])

    def record(
        self,
        begin: float = -np.inf,
        end: float = np.inf,
        every: int = 1,
        withheld: tuple[float, float] | None = None,
    ) -> Record:
        """Return the rows of a span as a record without the force of the rail.

        Args:
            begin: First time, s.
            end: Time before which the record ends, s.
            every: Every n-th row is taken.
            withheld: Span in which the height is missing, s; None for none.
        """
        rows = np.flatnonzero((self.times >= begin) & (self.times < end))[::every]
        times, heights = self.times[rows], self.heights[rows].copy()
        if withheld is not None:
            heights[(times >= withheld[0]) & (times <= withheld[1])] = np.nan
        channels = {
            "joints": Series(times, self.joints[rows]),
            "height": Series(times, heights[:, None]),
        }
        inputs = np.column_stack([np.zeros(len(rows)), self.torques[rows]])
        return Record(channels, Series(times, inputs))


def read_jump(path: str) -> RecordedJump:
    """Return the recording in a file.

    Args:
        path: NPZ file.

    Raises:
        FileFormatError: The file is no such recording: a column is missing, of another length or
            not finite, times do not increase, or the plate is not unloaded and loaded again.
        OSError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            content = np.load(file)
            if not isinstance(content, NpzFile):
                raise FileFormatError(f"{path} does not hold a recorded jump: it is no NPZ file")
            columns = [np.asarray(content[name], dtype=np.float64) for name in COLUMNS]
    except (KeyError, ValueError, EOFError, BadZipFile) as error:
        raise FileFormatError(f"{path} does not hold a recorded jump: {error}") from error
    for name, column in zip(COLUMNS, columns, strict=True):
        if column.shape != columns[0].shape or column.ndim != 1 or not np.isfinite(column).all():
            raise FileFormatError(
                f"{path} does not hold a recorded jump: {name} must have one finite number for "
                f"each time, got shape {column.shape}"
            )
    t, hip, knee, hip_torque, knee_torque, height, plate = columns
    if len(t) < 2 or not (np.diff(t) > 0.0).all():
        raise FileFormatError(f"{path} does not hold a recorded jump: time_s does not increase")
    joints, torques = np.column_stack([hip, knee]), np.column_stack([hip_torque, knee_torque])
    jump = RecordedJump(t, joints, torques, height, plate)
    lifted, touched = jump.contact_times
    if not t[0] < lifted < touched:
        raise FileFormatError(
            f"{path} does not hold a recorded jump: the plate is not unloaded after its largest "
            f"force, and then loaded again, by {PLATE_FORCE} N"
        )
    return jump


@dataclass(frozen=True, eq=False)
class HopperFilter:
    """A filter of the leg with some parameters, which adds the rail's force to the inputs.

    Attributes:
        values: Parameters (8,) in the order of `PARAMETERS`.
        contact_time: Time that an impact takes, s.
        name: Name of the filter, one of `STRATEGY_BY_FILTER`.
    """

    values: Array
    contact_time: float
    name: str = "salted"

    def start(self, jump: RecordedJump) -> Estimate:
        """Return the estimate at the first row: at rest on the ground.

        Args:
            jump: The recording.
        """
        hip, knee = jump.joints[0]
        height = self.values[3] + hopper.LINK * (np.cos(hip) + np.cos(hip + knee))
        mean = np.array([height, hip, knee, 0.0, 0.0, 0.0])
        return Estimate(CLOSED, float(jump.times[0]), mean, np.diag(DEVIATIONS**2))

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Return the result on a record.

        Args:
            record: The record.
            initial: The initial estimate. Its height is moved to the foot's radius.
        """
        rail, force, joint, radius, angle, height, rail_noise, torque = self.values.tolist()
        parameters = hopper.HopperParameters(rail, joint, radius)
        density = np.diag([rail_noise, torque, torque]) ** 2
        sensors = [
            coordinates("joints", [1, 2], angle**2 * np.eye(2), gate=None),
            coordinates("height", [0], [[height**2]], gate=None),
        ]
        kf = SaltedKalmanFilter(
            hopper.system(parameters),
            Noise(density, through_input=True, name="force_noise"),
            sensors,
            ImpactNoise(contact_time=self.contact_time),
            options=FilterOptions(strategy=STRATEGY_BY_FILTER[self.name], patience=None),
        )
        hip, knee = initial.mean[1:3]
        mean = initial.mean.copy()
        mean[0] = radius + hopper.LINK * (np.cos(hip) + np.cos(hip + knee))
        inputs = record.inputs
        assert inputs is not None
        pushed = Series(inputs.times, inputs.values + np.array([force, 0.0, 0.0]))
        return kf.run(replace(record, inputs=pushed), replace(initial, mean=mean))


def fit_parameters(config: Config, jump: RecordedJump) -> NoiseFit:
    """Return the parameters that make the first half of the recording most likely.

    Args:
        config: Settings.
        jump: The recording.
    """
    record = jump.record(end=config.half, every=config.every)
    start = HopperFilter(np.array(START), config.contact_time).start(jump)
    return fit_noise(
        partial(HopperFilter, contact_time=config.contact_time),
        [record],
        [start],
        START,
        bounds=BOUNDS,
        max_evaluations=config.evaluations,
    )


def _judge_filters(config: Config, console: Console) -> Findings:
    """Return the findings of all filters on the second half.

    Args:
        config: Settings.
        console: Not used.

    Raises:
        InputError: The flight is not between `half` and `until`.
    """
    assert config.data is not None
    jump = read_jump(config.data)
    lifted, touched = jump.contact_times
    if not config.half < lifted < touched < config.until:
        raise InputError(
            f"half and until must be before and after the flight from {lifted:.3f} to "
            f"{touched:.3f} s, got {config.half} and {config.until}"
        )
    fit = fit_parameters(config, jump) if config.evaluations > 1 else None
    values = np.array(START) if fit is None else fit.levels
    free = values.copy()
    free[:2] = [BOUNDS[0][0], BOUNDS[1][0]]  # next to no friction and force of the rail
    rows, curves = [], {}
    for label, chosen, names in (
        ("", values, STRATEGY_BY_FILTER),
        (", rail without friction and force", free, ("salted",)),
    ):
        for name in names:
            for withheld in (False, True):
                kf = HopperFilter(chosen, config.contact_time, name)
                row, curve = score_jump(kf, jump, config, withheld)
                row["name"] = name.replace("_", " ") + label
                rows.append(row)
                curves[row["name"], withheld] = curve
    errors = None if fit is None else fit.standard_errors
    summary = {
        "plate": dict(zip(("lift_off", "touchdown"), jump.contact_times, strict=True)),
        "parameters": [
            {
                "name": name,
                "value": float(value),
                "unit": unit,
                "relative_error": None if errors is None else float(errors[k]),
            }
            for k, (name, value, unit) in enumerate(zip(PARAMETERS, values, UNITS, strict=True))
        ],
        "evaluations": 0 if fit is None else fit.evaluations,
        "converged": fit is not None and fit.converged,
        "filters": rows,
    }
    salted = rows[0]
    checks = [
        Check("error of the measured height through flight, m", salted["height"], most=5e-3),
        Check("error of the time of lift-off, s", abs(salted["lift_off"]), most=8e-3),
    ]
    return Findings(
        summary,
        _tabulate(summary),
        checks,
        draw=lambda folder: _draw_jump(folder, jump, curves),
    )


def score_jump(
    kf: HopperFilter, jump: RecordedJump, config: Config, withheld: bool
) -> tuple[dict[str, Any], Array]:
    """Return how a filter did on the second half, and its heights.

    Args:
        kf: The filter.
        jump: The recording.
        config: Settings.
        withheld: Whether the height is withheld while the plate is unloaded.

    Returns:
        A row: log_likelihood per value after `config.half`; mean NIS per channel and degree;
        lift_off, touchdown: the nearest such event after the plate's, s, `MISSED` if there is none;
        height: root mean square error in flight, and largest, m; claimed: mean standard deviation
        there, m; seconds per value. The curve: times in s, heights and deviations in m (n, 3).
    """
    flight = jump.contact_times
    record = jump.record(end=config.until, withheld=flight if withheld else None)
    result = kf.run(record, kf.start(jump))
    found, times = result.innovations, np.array([i.time for i in result.innovations])
    late = times >= config.half
    likelihood = log_likelihoods(result, record)
    last = {round(m.time, 6): m for m in result.mixtures}
    mixtures = [last[t] for t in sorted(last)]
    curve = np.array([(m.time, m.mean[0], np.sqrt(m.covariance[0, 0])) for m in mixtures])
    closed = np.array([m.mode != OPEN for m in mixtures])
    changes = np.flatnonzero(np.diff(closed.astype(int))) + 1
    inside = (curve[:, 0] >= flight[0]) & (curve[:, 0] <= flight[1])
    measured = np.interp(curve[:, 0], jump.times, jump.heights)
    error = (curve[:, 1] - measured)[inside]

    def find_nearest(time: float, closes: bool) -> float:
        """Return the delay, s, of the touch or lift-off of the filter that is nearest to a time."""
        own = [curve[k, 0] for k in changes if bool(closed[k]) is closes]
        return float(min((t - time for t in own), key=abs, default=MISSED))

    return {
        "withheld": withheld,
        "log_likelihood": float(likelihood[late].mean()),
        "nis_joints": _mean_nis([i for i, k in zip(found, late, strict=True) if k], "joints"),
        "nis_height": _mean_nis([i for i, k in zip(found, late, strict=True) if k], "height"),
        "lift_off": find_nearest(flight[0], False),
        "touchdown": find_nearest(flight[1], True),
        "height": float(np.sqrt((error**2).mean())),
        "largest": float(np.abs(error).max()),
        "claimed": float(curve[inside, 2].mean()),
        "seconds": result.seconds / len(result.steps),
    }, curve


def _mean_nis(innovations: Sequence[Any], channel: str) -> float:
    """Return the mean NIS of a channel per degree of freedom; 1 is expected."""
    own = [i for i in innovations if i.channel == channel]
    return float(np.mean([i.nis / i.dimension for i in own])) if own else float("nan")


def _draw_jump(
    folder: RunFolder, jump: RecordedJump, curves: Mapping[tuple[str, bool], Array]
) -> None:
    """Save the height in flight, the errors of the filters that do not see it, and the plate."""
    begin, end = jump.contact_times[0] - 0.05, jump.contact_times[1] + 0.09
    seen = (jump.times >= begin) & (jump.times <= end)
    times = jump.times[seen]
    heights = [Line(times, 1e3 * jump.heights[seen], "measured", "black", ".", 1.0)]
    errors = []
    for name, color in zip(STRATEGY_BY_FILTER, (TRACKING, REFERENCE, BASELINE), strict=True):
        label = name.replace("_", " ")
        t, height, deviation = curves[label, True].T
        own = (t >= begin) & (t <= end)
        t, height, deviation = t[own], 1e3 * height[own], 1e3 * deviation[own]
        heights.append(Line(t, height, label, color))
        error = height - 1e3 * np.interp(t, jump.times, jump.heights)
        errors.append(Line(t, error, label, color))
        if name == "salted":
            errors += [
                Line(t, side * 2.0 * deviation, "two deviations" if side > 0 else None, color, "--")
                for side in (1.0, -1.0)
            ]
    panels = [
        Panel("height [mm]", heights),
        Panel("error [mm]", errors, zero=True, most=20.0),
        Panel("plate [N]", [Line(times, jump.plate[seen], None, "black")], zero=True),
    ]
    title = "Height withheld while the plate is unloaded"
    draw_series(folder / "figures/jump.png", [[panel] for panel in panels], title=title)


def _tabulate(summary: Mapping[str, Any]) -> list[Table | str]:
    """Return the tables of parameters and filters.

    Args:
        summary: Content of summary.json.
    """
    fitted = {row["name"]: row for row in summary["parameters"]}
    values = {"parameter": "{name}", "value": "{value:.4g}", "unit": "{unit}",
              "relative error": "{relative_error:.2g}"}  # fmt: skip
    columns = {
        "filter": "{name}", "in flight": "{seen}", "log L": "{log_likelihood:.3f}",
        "NIS joints": "{nis_joints:.2f}", "NIS height": "{nis_height:.2f}",
        "lift-off [ms]": "{lift_off:+.0f}", "touchdown [ms]": "{touchdown:+.0f}",
        "rms [mm]": "{height:.2f}", "largest [mm]": "{largest:.1f}",
        "claimed [mm]": "{claimed:.2f}", "time [ms]": "{seconds:.1f}",
    }  # fmt: skip
    rows = {
        str(k): {**row, "seen": "withheld" if row["withheld"] else "measured"}
        for k, row in enumerate(summary["filters"])
    }
    plate = summary["plate"]
    return [
        tabulate("Parameters", fitted, values),
        tabulate("Second half", rows, columns),
        f"plate: unloaded at {plate['lift_off']:.3f} s, loaded at {plate['touchdown']:.3f} s. "
        "lift-off, touchdown: time of the filter after the plate's. rms, largest: error of the "
        "height in flight against the measured one, whose noise is 1 mm. log L: per value. NIS: "
        "per degree of freedom.",
    ]
