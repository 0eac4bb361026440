"""One filter on one toss.

The filter starts at the second row: velocity is the difference of the first two poses, with the
covariance that follows from their noise. Only poses are measured. After some that the gate rejects
in a row the filter begins anew, in flight: a contact taken to be closed by mistake would hold it
for the rest of the toss.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from hybridctl.experiments.cube_filter.toss import (
    Calibration,
    Toss,
    after_impacts,
    in_contact,
    phases,
)
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array, number
from hybridctl.errors import HybridctlError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.likelihood import log_likelihoods
from hybridctl.estimation.measurement import configuration
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.particle import ParticleFilter
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.result import FilterResult
from hybridctl.estimation.state import Beginning, FilterState
from hybridctl.estimation.unscented import UnscentedFilter
from hybridctl.mechanics import closed_contacts
from hybridctl.mechanics.guards import closing_guards
from hybridctl.mechanics.state import RobotStateSpace

OPEN = ("open",) * len(cube.CORNERS)
STRATEGIES = ("salted", "reset_jacobian", "no_jump")
SEVERAL = "several"
FILTERS = (*STRATEGIES, SEVERAL, "unscented", "particle")
JUMPS: dict[str, Strategy] = {"reset_jacobian": "reset_jacobian", "no_jump": "no_jump"}
EVENTS = ("impulse", "guard")
UNKNOWN = (1.0, 3.0, 10.0, 50.0)  # m, rad, m/s, rad/s: deviations before anything is known
SLOWEST_REBOUND = 0.1  # m/s, of approaches; what they would rebound with is less than the noise
CONTACT = ("friction", "restitution", "rounding")


@dataclass(frozen=True)
class Levels:
    """What a search may change: noise, as standard deviations, and the law of contact.

    position, rotation: of measured poses, m and rad. guard: of the height at which a corner hits,
    m. force: square root of a density, N sqrt(s); impulse: N s; torques about the centre are these
    times the half width. No impulse and no guard noise: impacts are taken to be exact. rounding:
    the radius of the corners, m: they are balls inside the cube's faces, with friction taken to act
    at their centres.
    """

    position: float = 5e-4
    rotation: float = 5e-3
    force: float = 1e-2
    impulse: float = 1.7e-2
    guard: float = 1e-3
    friction: float = 0.18
    restitution: float = 0.25
    rounding: float = 1.5e-3

    def __post_init__(self) -> None:
        for field in fields(self):
            optional = field.name in (*EVENTS, *CONTACT)
            value = getattr(self, field.name)
            number(field.name, value, **({"at_least": 0.0} if optional else {"above": 0.0}))
        number("restitution", self.restitution, at_most=1.0)


@dataclass(frozen=True)
class Setting:
    """A filter by name, at its levels; patience: of `SaltedKalmanFilter`; rtol: also atol.

    hypotheses: how many "several" follows; all others follow one. particles: of the particle
    filter, which is seeded with 0. gate: of the poses, None takes all.
    """

    name: str
    levels: Levels
    hypotheses: int
    rtol: float
    particles: int = 50
    gate: float | None = 0.9999
    patience: int | None = 3


@dataclass(frozen=True, eq=False)
class Score:
    """A filter on a toss: what `score` found, one row for each measured pose.

    residual (n, 6): innovations, in m in the frame of the table, and in rad in that of the cube.
    claimed (n,): the deviation of the predicted position, m. near (n,): at most the chosen time
    after an impact. touches, recorded (n,): contact by the filter and by the recorded pose. phases:
    of the recorded poses, as in `toss`. reopened: how often a lost filter believed the
    poses. failure: why the run could not be finished, or None; then there are no rows.
    """

    toss: int
    nis: Array
    accepted: Array
    log_likelihood: Array
    residual: Array
    claimed: Array
    near: Array
    touches: Array
    recorded: Array
    phases: tuple[str, ...]
    notes: int
    reopened: int
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, eq=False)
class StartedFilter:
    """A filter, the covariance that its runs begin with, and the radius of corners.

    In the model the centres of the corners touch a table at zero, so poses are lowered by that.
    """

    filter: SaltedKalmanFilter | ParticleFilter
    covariance: Array
    rounding: float

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Filter a record of poses; the covariance of `initial` is replaced."""
        poses, lower = record.channels["pose"], self.rounding * np.eye(1, 13, 2)[0]
        lowered = Record({"pose": Series(poses.times, poses.values - lower[:7])})
        start = replace(initial, mean=initial.mean - lower, covariance=self.covariance)
        return self.filter.run(lowered, start)


def started(setting: Setting, body: cube.Parameters, rate: float) -> StartedFilter:
    """The filter of tosses of a body, recorded at a rate in 1/s."""
    levels = setting.levels
    p = start_covariance(levels, body, rate)
    return StartedFilter(build(setting, body), p, levels.rounding)


def build(setting: Setting, body: cube.Parameters) -> SaltedKalmanFilter | ParticleFilter:
    """The filter of a body with the contact of the levels, for the centres of its corners."""
    s = setting.levels
    model = rounded(body, s)
    system = cube.system(model, actuated=True)
    space = system.mode(OPEN).space
    if not isinstance(space, RobotStateSpace):
        raise TypeError(f"a cube must have a robot's state, got {space!r}")
    lever = np.repeat([1.0, body.half_width], 3)
    push = Noise(np.diag((s.force * lever) ** 2), through_input=True)
    kick = Noise(np.diag((s.impulse * lever) ** 2), through_input=True) if s.impulse else None
    table = dict.fromkeys(closing_guards(cube.contacts(model)), s.guard**2)
    guard = table if s.guard else None
    pose = configuration("pose", space, measurement_noise(s), gate=setting.gate)
    rtol = setting.rtol
    anew = Beginning(OPEN, np.diag(np.repeat(UNKNOWN, 3) ** 2))
    if setting.name == "particle":
        return ParticleFilter(
            system,
            push,
            pose,
            kick,
            guard,
            particles=setting.particles,
            patience=setting.patience,
            beginning=anew,
            rtol=rtol,
            atol=rtol,
        )
    kind = UnscentedFilter if setting.name == "unscented" else SaltedKalmanFilter
    return kind(
        system,
        push,
        pose,
        kick,
        guard,
        strategy=JUMPS.get(setting.name, "saltation"),
        hypotheses=setting.hypotheses if setting.name == SEVERAL else 1,
        patience=setting.patience,
        beginning=anew,
        rtol=rtol,
        atol=rtol,
    )


def rounded(body: cube.Parameters, levels: Levels) -> cube.Parameters:
    """A body with the contact law of the levels, and corners where the centres of its balls are."""
    return replace(
        body,
        half_width=body.half_width - levels.rounding,
        friction=levels.friction,
        restitution=levels.restitution,
        restitution_threshold=SLOWEST_REBOUND,
    )


def measurement_noise(levels: Levels) -> Array:
    """R (6, 6)."""
    return np.diag(np.repeat([levels.position, levels.rotation], 3) ** 2)


def start_mean(toss: Toss) -> Array:
    """State (13,) at the second row, from the first two, as if nothing else were known."""
    robot, step = cube.robot(toss.model), 1.0 / toss.rate
    first, second = toss.poses[:2]
    velocity = robot.difference(first, second) / step
    down = Rotation.from_quat(second[3:]).inv().apply([0.0, 0.0, -toss.model.gravity])
    velocity[:3] += 0.5 * step * down
    return np.concatenate([second, velocity])


def start_covariance(levels: Levels, body: cube.Parameters, rate: float) -> Array:
    """Covariance (12, 12) of `start_mean`, by the noise of its two poses and of the force."""
    r, step = measurement_noise(levels), 1.0 / rate
    push = levels.force * np.repeat([1.0 / body.mass, body.half_width / body.inertia], 3)
    return np.block([[r, r / step], [r / step, 2.0 * r / step**2 + np.diag(push**2) * step]])


def to_filter(toss: Toss, levels: Levels) -> tuple[Record, Estimate]:
    """The rows from the third on, and the estimate at the second."""
    times = np.arange(len(toss.poses)) / toss.rate
    record = Record({"pose": Series(times[2:], toss.poses[2:])})
    p = start_covariance(levels, toss.model, toss.rate)
    return record, Estimate(OPEN, 1.0 / toss.rate, start_mean(toss), p)


def run_filter(setting: Setting, toss: Toss) -> FilterResult:
    """The filter on all rows from the third on."""
    return started(setting, toss.model, toss.rate).run(*to_filter(toss, setting.levels))


def score(setting: Setting, toss: Toss, calibration: Calibration, span: float) -> Score:
    """The filter on a levelled toss."""
    record, _ = to_filter(toss, setting.levels)
    try:
        result = run_filter(setting, toss)
    except (HybridctlError, np.linalg.LinAlgError) as error:
        return lost(toss.number, str(error))
    found = result.innovations
    residual = np.array([i.residual for i in found])
    attitude = Rotation.from_quat([step.predicted.mean[3:7] for step in result.steps])
    residual[:, :3] = attitude.apply(residual[:, :3])
    return Score(
        toss.number,
        np.array([i.nis for i in found]),
        np.array([i.accepted for i in found]),
        log_likelihoods(result, record),
        residual,
        np.sqrt([np.trace(i.covariance[:3, :3]) for i in found]),
        after_impacts(toss, calibration, span)[2:],
        np.array([touched(step) for step in result.steps]),
        in_contact(toss, calibration)[2:],
        phases(toss, calibration)[2:],
        len(result.notes),
        sum(step.reopened for step in result.steps),
        result.seconds,
    )


def lost(toss: int, reason: str) -> Score:
    """A toss that the filter could not finish."""
    none = np.zeros(0)
    empty = none, none, none, np.zeros((0, 6)), none, none, none, none
    return Score(toss, *empty, (), 0, 0, 0.0, reason)


def touched(step: FilterState) -> bool:
    """Whether a corner is closed after a sample, or has hit the table since the one before."""
    closed = len(closed_contacts(step.estimate.mode)) > 0
    return closed or any(g.endswith("closes") for e in step.events for g in e.guards)
