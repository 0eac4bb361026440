"""The filters by name, on a model with its settings, and the estimate that they start from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import block_diag

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.filter_model import FilterModel, FilterSettings
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.reconcile import reconcile
from hybridctl.estimation.record import Record

STRATEGIES: dict[str, Strategy] = {
    "salted": "saltation",
    "reset_jacobian": "reset_jacobian",
    "no_jump": "no_jump",
}
_NEWTON = 30  # steps to a configuration
_ROUNDING = 1e-12


def kalman(
    model: FilterModel,
    settings: FilterSettings,
    strategy: Strategy = "saltation",
    *,
    gated: bool = True,
    kind: type[SaltedKalmanFilter] = SaltedKalmanFilter,
) -> SaltedKalmanFilter:
    """The Kalman filter of a model; gated: whether by the gate of the settings."""
    return kind(
        model.system,
        model.process_noise,
        model.measurements(settings.gate if gated else None),
        model.reset_noise,
        model.guard_noise,
        signals=tuple(model.signals.values()),
        strategy=strategy,
        rewind=settings.rewind,
        hypotheses=settings.hypotheses,
        patience=settings.patience,
        beginning=model.beginning(),
        rtol=settings.tolerance,
        atol=settings.tolerance,
    )


def first_estimate(
    model: FilterModel, settings: FilterSettings, record: Record
) -> tuple[Estimate, Record]:
    """The estimate at the start of a record, and the rows that are still to be filtered.

    That of the model, taken to be just before the first row. Where it has none, that after the
    first `warm_up` complete rows of its first sensor: the first row, with those of other sensors
    next to it, gives the configuration, with the covariance that they leave. Velocities begin at
    the difference over these rows with the model's wide deviations; the filter, with no gate, goes
    over the rows that follow, along one order of events, because velocities as wide as that make an
    impact on the way to any of them as likely as none. It begins in the open mode; where the log
    begins in contact, guards that the state is past close at once. Raises `InputError` for fewer
    rows than that, and for sensors that do not measure the whole configuration.
    """
    if model.start is not None:
        begin = min(float(s.times.min()) for s in record.channels.values() if len(s.times))
        return replace(model.start, time=begin), record
    sensor = model.sensors[0]
    times = record.channels[sensor.name].complete_rows.times[: settings.warm_up]
    if len(times) < settings.warm_up or not times[0] < times[-1]:
        raise InputError(
            f"the first estimate needs {settings.warm_up} complete rows of {sensor.name!r} at "
            f"different times, and there are {len(times)}; `warm_up` may be as small as 2"
        )
    start = _prior(model, record, float(times[0]), float(times[-1]))
    loose = kalman(model, replace(settings, hypotheses=1), gated=False)

    def inside(e: Estimate) -> Estimate:
        law = loose.model.law(e.mode, record.input(e.time))
        return reconcile(loose.model, e, law).estimate

    first = record.between(times[0], times[-1])
    last = loose.run(first, inside(start)).steps[-1].estimate
    return inside(last), record.between(times[-1], np.inf)


def _prior(model: FilterModel, record: Record, begin: float, end: float) -> Estimate:
    """The estimate at `begin` by the configurations at two times."""
    robot = model.robot
    assert robot is not None
    assert model.speeds is not None
    (q, own), (last, _) = (_configuration(model, record, t) for t in (begin, end))
    v = robot.difference(q, last) / (end - begin)
    p = block_diag(own, np.diag(model.speeds**2))
    return Estimate(model.open, begin, np.concatenate([q, v]), p)


def _configuration(model: FilterModel, record: Record, time: float) -> tuple[Array, Array]:
    """The configuration (nq,) by rows of all sensors nearest to a time, and its covariance."""
    robot, rows = model.robot, dict[str, Array]()
    assert robot is not None
    for sensor in model.sensors:
        series = record.channels[sensor.name].complete_rows
        if len(series):
            rows[sensor.name] = series.values[np.abs(series.times - time).argmin()]
    q = robot.neutral()
    for _ in range(_NEWTON):
        seen = model.seen_configuration(q, rows)
        if np.linalg.matrix_rank(seen.derivative) < robot.nv:
            names = ", ".join(sensor.name for sensor in model.sensors)
            raise InputError(
                f"the model must give `start`, because its sensors ({names}) together measure "
                f"{np.linalg.matrix_rank(seen.derivative)} of {robot.nv} directions of the "
                "configuration"
            )
        way = np.asarray(np.linalg.lstsq(seen.derivative, seen.residual)[0], np.float64)
        q = robot.normalize(robot.integrate(q, way))
        if np.abs(way).max() < _ROUNDING:
            break
    information = seen.derivative.T @ seen.derivative
    return q, np.linalg.inv(information)
