"""One filter on one toss, and the search for the noise that makes a filter most likely.

The filter starts at the second row: velocity is the difference of the first two poses, with the
covariance that follows from their noise. Only poses are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from hybridctl.experiments.cube_filter_toss import Calibration, Toss, after_impacts, in_contact
from hybridctl.robots import cube
from scipy.spatial.transform import Rotation

from hybridctl.checks import Array, number
from hybridctl.errors import HybridctlError
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter import SaltedKalmanFilter
from hybridctl.estimation.jumps import Strategy
from hybridctl.estimation.measurement import configuration
from hybridctl.estimation.noise import Noise
from hybridctl.estimation.particle import ParticleFilter
from hybridctl.estimation.record import Record, Series
from hybridctl.estimation.result import FilterResult, Step
from hybridctl.estimation.unscented import UnscentedFilter
from hybridctl.mechanics import closed_contacts
from hybridctl.mechanics.state import RobotStateSpace

OPEN = ("open",) * len(cube.CORNERS)
STRATEGIES = ("salted", "reset_jacobian", "no_jump")
FILTERS = (*STRATEGIES, "unscented", "particle")
JUMPS: dict[str, Strategy] = {"reset_jacobian": "reset_jacobian", "no_jump": "no_jump"}
EVENTS = ("impulse", "guard")
FACTOR = 3.0  # by which a level is raised or lowered in the search
LOST = -1e3  # log-likelihood per row of a toss that a filter cannot finish, in the search


@dataclass(frozen=True)
class Levels:
    """Standard deviations: of measured position (m) and rotation (rad); of the guards (m).

    force: square root of a density, N sqrt(s); impulse: N s; torques about the centre are these
    times the half width. No impulse and no guard noise: impacts are taken to be exact.
    """

    position: float = 5e-4
    rotation: float = 5e-3
    force: float = 1e-2
    impulse: float = 5e-2
    guard: float = 2e-3

    def __post_init__(self) -> None:
        for field in fields(self):
            positive = field.name not in EVENTS
            value = getattr(self, field.name)
            number(field.name, value, **({"above": 0.0} if positive else {"at_least": 0.0}))


@dataclass(frozen=True)
class Setting:
    """A filter by name, with its noise; window: of `SaltedKalmanFilter`; rtol: also its atol.

    particles: of the particle filter, which is seeded with 0 and has no window.
    """

    name: str
    levels: Levels
    window: float
    rtol: float
    particles: int = 50


@dataclass(frozen=True, eq=False)
class Score:
    """A filter on a toss: what `score` found, one row for each measured pose.

    residual (n, 6): innovations, m and rad. near (n,): at most the chosen time after an impact.
    touches, recorded (n,): contact by the filter and by the recorded pose. failure: why the run
    could not be finished, or None; then the arrays are empty.
    """

    toss: int
    nis: Array
    log_likelihood: Array
    residual: Array
    near: Array
    touches: Array
    recorded: Array
    notes: int
    seconds: float
    failure: str | None = None


def build(setting: Setting, model: cube.Parameters) -> SaltedKalmanFilter | ParticleFilter:
    """The filter."""
    s = setting.levels
    system = cube.system(model, actuated=True)
    space = system.mode(OPEN).space
    if not isinstance(space, RobotStateSpace):
        raise TypeError(f"a cube must have a robot's state, got {space!r}")
    lever = np.repeat([1.0, model.half_width], 3)
    push = Noise(np.diag((s.force * lever) ** 2), through_input=True)
    kick = Noise(np.diag((s.impulse * lever) ** 2), through_input=True) if s.impulse else None
    guard = s.guard**2 if s.guard else None
    pose = configuration("pose", space, measurement_noise(s))
    rtol, window = setting.rtol, setting.window
    if setting.name == "particle":
        some = setting.particles
        return ParticleFilter(system, push, pose, kick, guard, particles=some, rtol=rtol, atol=rtol)
    kind = UnscentedFilter if setting.name == "unscented" else SaltedKalmanFilter
    return kind(
        system,
        push,
        pose,
        kick,
        guard,
        strategy=JUMPS.get(setting.name, "saltation"),
        window=window,
        rtol=rtol,
        atol=rtol,
    )


def measurement_noise(levels: Levels) -> Array:
    """R (6, 6)."""
    return np.diag(np.repeat([levels.position, levels.rotation], 3) ** 2)


def initial(toss: Toss, levels: Levels) -> Estimate:
    """The estimate at the second row from the first two, as if nothing else were known."""
    robot, step = cube.robot(toss.model), 1.0 / toss.rate
    first, second = toss.poses[:2]
    velocity = robot.difference(first, second) / step
    down = Rotation.from_quat(second[3:]).inv().apply([0.0, 0.0, -toss.model.gravity])
    velocity[:3] += 0.5 * step * down
    r = measurement_noise(levels)
    body = toss.model
    push = levels.force * np.repeat([1.0 / body.mass, body.half_width / body.inertia], 3)
    p = np.block([[r, r / step], [r / step, 2.0 * r / step**2 + np.diag(push**2) * step]])
    return Estimate(OPEN, step, np.concatenate([second, velocity]), p)


def run_filter(setting: Setting, toss: Toss) -> FilterResult:
    """The filter on all rows from the third on."""
    times = np.arange(len(toss.poses)) / toss.rate
    record = Record({"pose": Series(times[2:], toss.poses[2:])})
    return build(setting, toss.model).run(record, initial(toss, setting.levels))


def score(setting: Setting, toss: Toss, calibration: Calibration, span: float) -> Score:
    """The filter on a levelled toss."""
    try:
        result = run_filter(setting, toss)
    except (HybridctlError, np.linalg.LinAlgError) as error:
        none = np.zeros(0)
        return Score(
            toss.number, none, none, np.zeros((0, 6)), none, none, none, 0, 0.0, str(error)
        )
    found = result.innovations
    return Score(
        toss.number,
        np.array([i.nis for i in found]),
        np.array([i.log_likelihood for i in found]),
        np.array([i.residual for i in found]),
        after_impacts(toss, calibration, span)[2:],
        np.array([touched(step) for step in result.steps]),
        in_contact(toss, calibration)[2:],
        len(result.notes),
        result.seconds,
    )


def touched(step: Step) -> bool:
    """Whether a corner is closed after a sample, or has hit the table since the one before."""
    closed = len(closed_contacts(step.estimate.mode)) > 0
    return closed or any(g.endswith("closes") for e in step.events for g in e.guards)


def fit(
    setting: Setting,
    tosses: Sequence[Toss],
    calibration: Calibration,
    free: Sequence[str],
    evaluations: int,
) -> Levels:
    """The most likely levels that a pattern search of so many evaluations finds.

    Each free level in turn is multiplied by `FACTOR`, or divided by it, as long as that helps,
    until a round changes nothing. Likelihoods of event-driven filters jump, so no derivatives are
    used; the levels are good to about the factor.
    """

    def gain(levels: Levels) -> float:
        scores = [score(replace(setting, levels=levels), t, calibration, 0.0) for t in tosses]
        return sum(
            LOST * len(t.poses) if s.failure else float(s.log_likelihood.sum())
            for t, s in zip(tosses, scores, strict=True)
        )

    levels, left = setting.levels, evaluations - 1
    if left <= 0:
        return levels
    best = gain(levels)
    while True:
        before = levels
        for name in free:
            for factor in (FACTOR, 1.0 / FACTOR):
                moved = False
                while left > 0:
                    trial = replace(levels, **{name: factor * getattr(levels, name)})
                    left -= 1
                    if (value := gain(trial)) <= best:
                        break
                    levels, best, moved = trial, value, True
                if moved:
                    break
        if levels == before or left <= 0:
            return levels
