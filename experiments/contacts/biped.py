r"""The flow of a biped landing on both feet at once is smooth in its pitch, has a kink, or jumps.

Dropped level, both feet touch together; with some pitch, one after the other. How the motion a
moment after the landing depends on the initial pitch, near level, is up to the forces of the ground
([Bder] 3.2, Fig. 4):

- `linear` dampers, [Bder] (16): both orders of touching have one derivative, the flow is smooth;
- dampers `by feet` (beta / 2 with one foot in the ground): each order has its own, and the flow a
  kink. The products of saltation matrices differ by

  .. math:: -\frac{4\beta c\ell \cos\psi}{m}\ (\dot y, x), \qquad
            -\frac{2\beta (c\ell^2 \sin 2\psi + \ell\cos\psi)}{m}\ (\dot y, \theta)

  and by nothing else, (19), where c = 1 / m, l = 1 m and m = 1 kg;
- `rigid` ground and long limbs: each foot's impact presses the other one down, the orders agree;
- `rigid` ground and `short` limbs: the second impact lifts the first foot for a time that does not
  shrink with the pitch, while a level biped stays on both feet. The flow jumps at level, and there
  is no saltation piecewise: `AmbiguousEventError`.

Soft ground that is made stiffer tends to the rigid one: in the state at any damping, and in the
derivative as far as a touch gets shorter than what a perturbation puts between touches. That is so
where no foot feels the other one's push (:math:`Da_{left} M^{-1} Da_{right}^T = 0`, `uncoupled`),
or with dampers in proportion to the stiffness (`overdamped`), not for `coupled` feet at a constant
damping ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from hybridctl.experiments.convergence import measure_errors
from hybridctl.experiments.runners import tabulate
from hybridctl.robots import biped
from hybridctl.robots.biped import AIR, BipedParameters
from rich.console import Console

from hybridctl import HybridSystem, HybridTrajectory, linearize, simulate, simulate_batch
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import REFERENCE, TRACKING, Line, Panel, draw_series
from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import AmbiguousEventError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings
from hybridctl.sensitivity import Linearization
from hybridctl.sensitivity.piecewise import PiecewiseLinearJump

SUMMARY = "a biped lands on both feet at once: smooth, or with a kink, in its initial pitch"

PITCH, RISE, SPIN = 2, 4, 5  # of x = (x, y, pitch) and their rates
LEFT_FIRST, RIGHT_FIRST = (0, 1), (1, 0)
SIGNS = np.array([-1.0, 1.0])  # of the pitch
SIDES = ((-1.0, REFERENCE, "right foot first"), (1.0, TRACKING, "left foot first"))
TANGENT = 0.6  # length of a drawn tangent, of the reach


@dataclass(frozen=True)
class Config(Settings):
    """The biped, and its drops.

    Attributes:
        robot: Parameters of both soft variants and of the short rigid one.
        long_length: Length of the limbs of the long rigid one, m.
        long_height: Height of its start, m.
        after: Time from the level landing to the end, s.
        reach: Largest initial pitch of the drops, rad.
        points: Number of drops, from -`reach` to `reach`.
        steps: Steps of the one-sided differences, rad.
        tolerance: Relative and absolute tolerance of the simulations.
        stiffnesses: Stiffnesses of ground that gets stiffer, N/m.
        damping_ratio: Its damping ratio.
        damping_time: Time by which dampers in proportion to the stiffness are that times the
            stiffness, s.
        settled: Time from the landing to the end on such ground, s.
    """

    robot: BipedParameters = field(default_factory=BipedParameters)
    long_length: float = 1.0
    long_height: float = 2.0
    after: Positive = 0.04
    reach: Annotated[float, Meta(gt=0.0, le=0.5)] = 0.12
    points: Annotated[int, Meta(ge=3)] = 41
    steps: tuple[Positive, ...] = (1e-2, 1e-3, 1e-4, 1e-5)
    tolerance: Positive = 1e-11
    stiffnesses: tuple[Positive, ...] = (1e2, 1e4, 1e6)
    damping_ratio: Annotated[float, Meta(ge=1.0)] = 1.0
    damping_time: Positive = 1.0
    settled: Positive = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        for k, step in enumerate(self.steps):
            check_number(f"steps[{k}]", step, at_most=self.reach)
        self.long()

    def long(self) -> BipedParameters:
        """Return the robot with long limbs."""
        return replace(self.robot, length=self.long_length, height=self.long_height)


@dataclass(frozen=True, eq=False)
class Variant:
    """A biped on one kind of ground.

    Attributes:
        parameters: Parameters of the biped.
        system: The biped on this ground.
        printed: Whether [Bder] (19) applies to it.
    """

    parameters: BipedParameters
    system: HybridSystem
    printed: bool = False

    def drop(self, config: Config, pitch: float, method: str = "DOP853") -> HybridTrajectory:
        """Return the fall from rest until the time `after` the level landing.

        Args:
            config: Settings.
            pitch: Initial pitch, rad.
            method: Method of the integrator, implicit for stiff ground.
        """
        ((start, *_), span), tol = self._starts(config, [pitch]), config.tolerance
        window = 1e-8 if pitch == 0.0 else 0.0
        return simulate(
            self.system, AIR, start, span,
            method=method, rtol=tol, atol=tol, event_window=window, on_zeno="rest",
        )  # fmt: skip

    def drop_many(self, config: Config, pitches: Array) -> Array:
        """Return the final states (n, 6) of falls with pitches (n,), none of them level.

        Args:
            config: Settings.
            pitches: Initial pitches, rad.
        """
        (starts, span), tol = self._starts(config, pitches), config.tolerance
        found = simulate_batch(
            self.system, AIR, starts, span, rtol=tol, atol=tol, event_window=0.0, on_zeno="rest"
        )
        found.check()
        return found.states

    def _starts(
        self, config: Config, pitches: Sequence[float] | Array
    ) -> tuple[Array, tuple[float, float]]:
        """Return initial states (n, 6), and the span of time."""
        starts = np.tile(biped.start(self.parameters), (len(pitches), 1))
        starts[:, PITCH] = pitches
        return starts, (0.0, biped.touchdown(self.parameters)[0] + config.after)


@dataclass(frozen=True, eq=False)
class DropResult:
    """The drops of one variant.

    Attributes:
        variant: The variant.
        pitches: Initial pitches (points,), rad.
        finals: Final states (points, 6).
        level: Final state (6,) without a pitch.
        map: Linearization of the level drop; None where there is none.
        sides: Derivatives (2, 6) of the final state for falling and rising pitch, by |pitch|; None
            where the orders of the feet do not agree.
        differences: Differences (steps, 2, 6) of the simulations, in the same directions.
        errors: Their largest errors (steps,) against the derivatives; None without these.
    """

    variant: Variant
    pitches: Array
    finals: Array
    level: Array
    map: Linearization | None
    sides: Array | None
    differences: Array
    errors: Array | None


def quick(config: Config) -> Config:
    """Return the settings with fewer drops."""
    return replace(config, points=13, steps=(1e-3, 1e-4), stiffnesses=(1e4, 1e6))


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of drops of every biped."""
    short, long = config.robot, config.long()
    variants = {
        "linear": Variant(short, biped.soft(short, damping="linear")),
        "by feet": Variant(short, biped.soft(short, damping="by_feet"), printed=True),
        "rigid": Variant(long, biped.rigid(long)),
        "rigid, short": Variant(short, biped.rigid(short)),
    }
    results = study_cases(variants, partial(_study_variant, config), console)
    limits = _compare_stiff_ground(config)
    summary = {name: _record(config, result) for name, result in results.items()}

    def draw(folder: RunFolder) -> None:
        _draw_flow(folder, results)
        _write_drops(folder, config, variants["rigid"])

    rows = {
        name: {**s, "error": s["errors"].min() if s["has_cascade"] else None}
        for name, s in summary.items()
    }
    stiffening = {
        name: [
            {"stiffness": stiffness, "state": state, "derivative": derivative}
            for stiffness, state, derivative in zip(
                config.stiffnesses, found["states"], found["derivatives"], strict=True
            )
        ]
        for name, found in limits.items()
    }
    last = {name: found["derivatives"][-1] for name, found in limits.items()}
    against = "error of the derivative against rigid ground"
    return Findings(
        {**summary, "rigid limit": limits},
        [
            tabulate(
                f"Derivatives of rise and spin by the initial pitch, {config.after:g} s after "
                "landing [m/s, rad/s per rad]",
                rows,
                FLOW,
            ),
            LEGEND,
            tabulate(
                f"Soft ground against rigid ground {config.settled:g} s after a level landing",
                stiffening,
                STIFFENING,
            ),
        ],
        [
            *_check_claims(summary),
            Check(f"uncoupled feet: {against}", last["uncoupled"], 1e-2),
            Check(f"overdamped: {against}", last["overdamped"], 5e-6),
        ],
        draw=draw,
    )


FLOW = {
    "ground": "{name}",
    "rise, falls": f"{{derivative_pitch_falls[{RISE}]:.3f}}",
    "spin, falls": f"{{derivative_pitch_falls[{SPIN}]:.3f}}",
    "rise, rises": f"{{derivative_pitch_rises[{RISE}]:.3f}}",
    "spin, rises": f"{{derivative_pitch_rises[{SPIN}]:.3f}}",
    "by x": f"{{difference_of_orders[{RISE}][0]:.3f}}",
    "by pitch": f"{{difference_of_orders[{RISE}][{PITCH}]:.3f}}",
    "simulation": "{error:.0e}",
}
STIFFENING = {
    "feet": "{name}",
    "stiffness [N/m]": "{stiffness:.0e}",
    "error of the state": "{state:.0e}",
    "derivative": "{derivative:.0e}",
}
LEGEND = (
    "falls, rises: by the size of a pitch that falls or rises\n"
    "by x, by pitch: difference of the orders' saltation products, of the rise\n"
    "simulation: error of the derivatives against differences of simulations"
)


def _compare_stiff_ground(config: Config) -> dict[str, dict[str, list[float]]]:
    """Return largest errors of the final state and its derivative against rigid ground.

    By biped, for each stiffness. Coupled feet press each other down, uncoupled ones do not.

    Args:
        config: Settings.
    """
    later, tol = replace(config, after=config.settled), config.tolerance

    def simulate_end(robot: BipedParameters, system: HybridSystem) -> tuple[Array, Array]:
        run = Variant(robot, system).drop(later, 0.0, "Radau")
        found = linearize(system, run, rtol=tol, atol=tol)
        return run.final_state, found.derivative(np.vstack([np.eye(6), -np.eye(6)]))

    def damp_by_ratio(stiffness: float) -> float:
        return 2.0 * config.damping_ratio * float(np.sqrt(stiffness * config.robot.mass))

    def damp_by_time(stiffness: float) -> float:
        return config.damping_time * stiffness

    limits = {}
    for name, robot, damping in (
        ("coupled", config.long(), damp_by_ratio),
        ("uncoupled", biped.decouple_feet(config.robot), damp_by_ratio),
        ("overdamped", config.long(), damp_by_time),
    ):
        wanted = simulate_end(robot, biped.rigid(robot))
        limits[name] = {"states": list[float](), "derivatives": list[float]()}
        for stiffness in config.stiffnesses:
            ground = replace(robot, stiffness=stiffness, damping=damping(stiffness))
            ends = simulate_end(robot, biped.soft(ground))
            for errors, one, other in zip(limits[name].values(), ends, wanted, strict=True):
                errors.append(float(np.abs(one - other).max()))
    return limits


def _study_variant(config: Config, variant: Variant, tick: Callable[[float], None]) -> DropResult:
    """Return all drops of one variant, and its derivatives at level.

    Args:
        config: Settings.
        variant: The variant.
        tick: Function that is called with the share that is done.
    """
    nominal = variant.drop(config, 0.0)
    level, found, sides, errors = nominal.final_state, None, None, None
    try:
        found = linearize(variant.system, nominal, rtol=config.tolerance, atol=config.tolerance)
        sides = found.derivative(SIGNS[:, None] * np.eye(6)[PITCH])
    except AmbiguousEventError:
        pass  # the claim about short limbs on rigid ground
    pitches = np.linspace(-config.reach, config.reach, config.points)
    finals, off = np.tile(level, (config.points, 1)), pitches != 0.0
    finals[off] = variant.drop_many(config, pitches[off])
    near = {step: variant.drop_many(config, step * SIGNS) - level for step in config.steps}
    if sides is not None:
        errors = measure_errors(near.__getitem__, sides, config.steps).relative.errors
    differences = np.array([near[step] / step for step in config.steps])
    tick(1.0)
    return DropResult(variant, pitches, finals, level, found, sides, differences, errors)


def difference_of_orders(p: BipedParameters) -> Array:
    """Return the matrix [Bder] (19) (6, 6): left foot first minus right foot first.

    Args:
        p: Parameters, of which l, m and c enter.
    """
    across, beta = np.cos(p.spread), p.damping / p.mass
    found = np.zeros((6, 6))
    found[RISE, 0] = -4.0 * beta * p.curvature * p.length * across
    found[RISE, PITCH] = (
        -2.0 * beta * (p.curvature * p.length**2 * np.sin(2.0 * p.spread) + p.length * across)
    )
    return found


def _record(config: Config, result: DropResult) -> dict[str, Any]:
    """Return a variant as it stands in summary.json; derivatives in SI units per rad.

    Args:
        config: Settings.
        result: Drops of the variant.
    """
    found: dict[str, Any] = {
        "has_cascade": result.map is not None,
        "steps": config.steps,
        "differences_pitch_falls": result.differences[:, 0],
        "differences_pitch_rises": result.differences[:, 1],
        "jump": np.abs(np.min(config.steps) * result.differences[np.argmin(config.steps)]).max(),
    }
    if result.map is None or result.sides is None or result.errors is None:
        return found
    jump = result.map.jumps[0]
    assert isinstance(jump, PiecewiseLinearJump)
    orders = jump.matrix(LEFT_FIRST) - jump.matrix(RIGHT_FIRST)
    expected = np.zeros((6, 6))
    if result.variant.printed:
        expected = difference_of_orders(result.variant.parameters)
    return found | {
        "derivative_pitch_falls": result.sides[0],
        "derivative_pitch_rises": result.sides[1],
        "kink": np.abs(result.sides.sum(axis=0)).max(),
        "difference_of_orders": orders,
        "closed_form": expected,
        "closed_form_error": np.abs(orders - expected).max(),
        "errors": result.errors,
    }


def _check_claims(summary: Mapping[str, Any]) -> list[Check]:
    """Return checks of where the final state is smooth in the pitch, has a kink or jumps."""
    found = []
    for name, s in summary.items():
        if not s["has_cascade"]:
            found.append(Check(f"{name}: jump of the final state at level", s["jump"], least=1e-2))
            continue
        said = "difference of the orders' derivatives"
        if s["closed_form"].any():
            said = "error of the orders' difference against [Bder] (19)"
        bounds = {"least": 0.1} if name == "by feet" else {"most": 1e-9}
        found += [
            Check(f"{name}: kink of the flow at level", s["kink"], **bounds),
            Check(f"{name}: {said}", s["closed_form_error"], 1e-9),
        ]
    return found


def _write_drops(folder: RunFolder, config: Config, rigid: Variant) -> None:
    """Write the motion of the rigid biped, each drop a scene, until a while after its landing."""
    longer, p = replace(config, after=0.3), rigid.parameters
    ground = np.array([(x, -p.curvature * x**2) for x in np.linspace(-0.7, 0.7, 41)])

    def outline(x: Array) -> list[Array]:
        sides = ((-1.0, x[2] + p.spread), (1.0, x[2] - p.spread))
        feet = [x[:2] + s * p.length * np.array([np.cos(a), np.sin(a)]) for s, a in sides]
        return [np.array([feet[0], x[:2], feet[1]])]

    pitches = {"level": 0.0, "left foot first": config.reach, "right foot first": -config.reach}
    scenes = [
        Scene(title, [Mover("biped", rigid.drop(longer, pitch), outline)], [ground])
        for title, pitch in pitches.items()
    ]
    write_motion(folder, scenes)


def _draw_flow(folder: RunFolder, results: Mapping[str, DropResult]) -> None:
    """Save a row for each ground: drops as dots, and the one-sided derivatives as tangents.

    Args:
        folder: Folder of the run.
        results: Drops by ground.
    """
    rows = []
    for i, (name, result) in enumerate(results.items()):
        row = []
        for k, label in ((RISE, "rise [m/s]"), (SPIN, "pitch rate [rad/s]")):
            named = i == 0 and k == RISE
            dots = "simulated" if named else None
            lines = [Line(result.pitches, result.finals[:, k], dots, "black", ".")]
            size = np.array([0.0, TANGENT * float(result.pitches.max())])
            slopes = () if result.sides is None else result.sides[:, k]
            for slope, (sign, color, side) in zip(slopes, SIDES, strict=result.sides is not None):
                tangent = result.level[k] + slope * size
                lines.append(Line(sign * size, tangent, side if named else None, color))
            row.append(Panel(f"{name}\n{label}", lines, least=2e-3))
        rows.append(row)
    title = "A biped a moment after it has landed, on four kinds of ground"
    draw_series(folder / "figures/flow.png", rows, title=title, xlabel="initial pitch [rad]")
