"""The Kalman filter of a filter model, and the first estimate on a log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import block_diag

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.mode_consistency import reconcile
from hybridctl.estimation.record import Record
from hybridctl.estimation.salted_jump import Strategy
from hybridctl.estimation.salted_kalman_filter import FilterOptions, SaltedKalmanFilter

STRATEGY_BY_FILTER: dict[str, Strategy] = {
    "salted": "saltation",
    "reset_jacobian": "reset_jacobian",
    "no_jump": "no_jump",
}
"""Names of filters that a user may choose, and how their covariances pass events."""
_MAX_NEWTON_STEPS = 30
"""Steps to a configuration. The iteration ends earlier where it converges."""
_MIN_NEWTON_STEP = 1e-12
"""Step of a coordinate, in its unit, below which the iteration has converged."""


def build_kalman_filter(
    model: FilterModel,
    settings: FilterSettings,
    strategy: Strategy = "saltation",
    *,
    gated: bool = True,
    kind: type[SaltedKalmanFilter] = SaltedKalmanFilter,
) -> SaltedKalmanFilter:
    """Return the Kalman filter of a model.

    Args:
        model: The model.
        settings: Settings of the filter, all but `warm_up` and those of other filters. Its
            tolerance is rtol and atol; for None see `FilterOptions`.
        strategy: How covariances pass events.
        gated: Whether the gate of the settings is used; otherwise there is none.
        kind: Class of the filter.
    """
    return kind(
        model.system,
        model.process_noise,
        model.measurements(settings.gate if gated else None),
        model.reset_noise,
        model.guard_noise,
        signals=tuple(model.signals.values()),
        hypotheses=settings.hypotheses,
        options=FilterOptions(
            strategy=strategy,
            rewind=settings.rewind,
            patience=settings.patience,
            beginning=model.beginning(),
            rtol=settings.tolerance,
            atol=settings.tolerance,
        ),
    )


def first_estimate(
    model: FilterModel, settings: FilterSettings, record: Record
) -> tuple[Estimate, Record]:
    """Return the estimate at the start of a record, and the rows that are still to be filtered.

    With `model.start` it is that, just before the first row. Otherwise it is made of the first
    `warm_up` complete rows of the first sensor:

    - The configuration comes from the first row, with the complete rows of other sensors that are
      nearest to it in time, however far. It has the covariance that these leave.
    - Velocities are the mean over these rows, from the first to the last. They have the wide
      standard deviations of the model: between the rows velocities change, by gravity and impacts,
      and the filter below uses the rows themselves.
    - A filter goes over the rows after the first, up to the last of these. It has no gate, as the
      guess of the velocities is no reason to reject a value. It follows one order of events:
      velocities as wide as that make an impact on the way to any row as likely as none.

    Rows at the time of the first one and before it are not filtered.

    The estimate starts in the open mode. Where the log starts in contact, guards that the state is
    past fire at once.

    Args:
        model: The model.
        settings: Settings of the filter.
        record: The record.

    Returns:
        The estimate, and the record of the rows after its time; with `model.start` of all rows.

    Raises:
        InputError: With `model.start` there is no row. Without it there are fewer complete rows, or
            these share one time, or the sensors do not measure the whole configuration.
        KeyError: The record has no channel of a sensor.
    """
    if model.start is not None:
        begins = [float(s.times.min()) for s in record.channels.values() if len(s.times)]
        if not begins:
            raise InputError("record must have a row, at which the first estimate begins, got none")
        return replace(model.start, time=min(begins)), record
    sensor = model.sensors[0]
    times = record.channels[sensor.name].complete_rows.times[: settings.warm_up]
    if len(times) < settings.warm_up or not times[0] < times[-1]:
        raise InputError(
            f"the first estimate needs {settings.warm_up} complete rows of {sensor.name!r} at "
            f"different times, and there are {len(times)}; `warm_up` may be as small as 2"
        )
    start = _estimate_from_rows(model, record, float(times[0]), float(times[-1]))
    loose = build_kalman_filter(model, replace(settings, hypotheses=1), gated=False)

    def move_inside(e: Estimate) -> Estimate:
        """Return the estimate after guards have fired that it is past."""
        law = loose.model.law(e.mode, record.input(e.time))
        return reconcile(loose.model, e, law).estimate

    warm_up = record.between(times[0], times[-1])  # without rows at the first time
    last = loose.run(warm_up, move_inside(start)).steps[-1].estimate
    # The last value may have moved the mean past a guard, of which there is no row any more.
    return move_inside(last), record.between(times[-1], np.inf)


def _estimate_from_rows(model: FilterModel, record: Record, begin: float, end: float) -> Estimate:
    """Return the estimate at the earlier of two times in s, by the configurations at both.

    Its velocity is the mean one between them, and not correlated with the configuration.
    """
    robot = model.robot
    assert robot is not None
    assert model.speeds is not None
    (q, own), (last, _) = (_solve_configuration(model, record, t) for t in (begin, end))
    v = robot.difference(q, last) / (end - begin)
    p = block_diag(own, np.diag(model.speeds**2))
    return Estimate(model.open, begin, np.concatenate([q, v]), p)


def _solve_configuration(model: FilterModel, record: Record, time: float) -> tuple[Array, Array]:
    """Return the configuration by the rows of all sensors nearest to a time.

    It is the least-squares solution by the iteration of Gauss and Newton, from the neutral
    configuration. If that does not converge in 30 steps, the last iterate is taken.

    Args:
        model: The model, of a robot.
        record: The record.
        time: Time, s.

    Returns:
        The configuration (nq,), and its covariance (nv, nv), taken at the last iterate but one.

    Raises:
        InputError: At an iterate the rows do not measure all directions of the configuration.
        KeyError: The record has no channel of a sensor.
    """
    robot, rows = model.robot, dict[str, Array]()
    assert robot is not None
    for sensor in model.sensors:
        series = record.channels[sensor.name].complete_rows
        if len(series):
            rows[sensor.name] = series.values[np.abs(series.times - time).argmin()]
    q = robot.neutral()
    for _ in range(_MAX_NEWTON_STEPS):
        seen = model.whiten_residuals(q, rows)
        if np.linalg.matrix_rank(seen.derivative) < robot.nv:
            names = ", ".join(rows)
            raise InputError(
                f"the model must give `start`, because its sensors with complete rows ({names}) "
                f"measure {np.linalg.matrix_rank(seen.derivative)} of {robot.nv} directions of the "
                "configuration"
            )
        step = np.asarray(np.linalg.lstsq(seen.derivative, seen.residual)[0], np.float64)
        q = robot.normalize(robot.integrate(q, step))
        if np.abs(step).max() < _MIN_NEWTON_STEP:
            break
    information = seen.derivative.T @ seen.derivative
    return q, np.linalg.inv(information)
