r"""The B-derivative is the first order of a flow through two surfaces at once: [Bder] Fig. 3.

Where a trajectory meets two surfaces of discontinuity together, its flow has a first-order
approximation that is piecewise linear in general. A ball of initial points goes to an ellipse where
the map is linear, and to halves of two ellipses where it is not, one on each side of the nominal
direction.

The field is :math:`\dot x = 1 + \Delta(\operatorname{sign} x)` in the plane, in m and s, from
:math:`-F_{-1}/2` through the origin to :math:`F_{+1}/2` in one second, [Bder] 3.1:

- `linear`: :math:`\Delta(b) = -\delta b`; the derivative is
  :math:`(1 - \delta)/(1 + \delta)` times the identity, [Bder] (12).
- `bent`: any Delta. The flow is piecewise affine, so differences of it are exact.
- `turning`: the same, with :math:`\omega\, (-x_2, x_1)` added. The flow between the surfaces turns
  perturbations by :math:`R(\omega/2)` before and after B, and differences err by their step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated

import casadi as ca
import numpy as np
from hybridctl.experiments.convergence import Convergence, measure_errors
from hybridctl.experiments.runners import tabulate
from rich.console import Console

from hybridctl import BDerivative, HybridSystem, simulate_batch, symbolic
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.plots import REFERENCE, TRACKING, Line, Panel, save_plane_pictures
from hybridctl.base.checks import Array, check_array, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings, UnitInterval
from hybridctl.sensitivity.piecewise import group_equal_pieces

SUMMARY = "the image of a ball through two guards at once, one map for each order"

Signs = tuple[int, ...]

SIGNS: tuple[Signs, ...] = tuple(product((-1, 1), repeat=2))
BEFORE, AFTER = SIGNS[0], SIGNS[-1]
DURATION = 1.0  # s, with the surfaces in the middle
SHOWN = 4  # one of so many simulated points is drawn


@dataclass(frozen=True)
class Config(Settings):
    """The fields, and how their derivatives are tested.

    Attributes:
        opposing: The delta of the linear case, m/s.
        changes: The Delta (2,) of the others, m/s, for the signs (-, -), (-, +), (+, -), (+, +).
        turning: The omega of the field that turns, rad/s.
        radius: Radius of the ball of perturbations, m.
        rim: Number of points on it.
        steps: Steps of the differences, m.
        directions: Number of directions of the differences.
        rtol: Relative tolerance of the simulations.
        atol: Absolute tolerance of the simulations.
    """

    opposing: Annotated[float, Meta(gt=-1.0, le=0.9)] = 0.3
    changes: tuple[tuple[float, float], ...] = ((0.2, 0.0), (-0.1, 0.0), (1.0, -0.4), (0.2, 0.4))
    turning: UnitInterval = 0.5
    radius: Positive = 0.2
    rim: Annotated[int, Meta(ge=8)] = 96
    steps: tuple[Positive, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    directions: Annotated[int, Meta(ge=4)] = 24
    rtol: Positive = 1e-12
    atol: Positive = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        changes = check_array("changes", self.changes, (len(SIGNS), 2))
        if not (changes > -1.0).all():
            raise InputError(f"changes must be greater than -1, got {changes.min()}")
        reach = min(instance.reach for instance in instances(self).values())
        check_number("radius", self.radius, at_most=reach)
        for k, step in enumerate(self.steps):
            check_number(f"steps[{k}]", step, at_most=reach)


@dataclass(frozen=True, eq=False)
class Instance:
    """A field of the plane.

    Attributes:
        limits: Its limits (2,) at the origin, m/s, by the signs of the coordinates.
        turning: Rate at which it turns, rad/s.
    """

    limits: Mapping[Signs, Array]
    turning: float = 0.0

    def nominal(self, t: float) -> Array:
        """Return the nominal point (2,) at time t, on a circle through the origin at half time.

        Args:
            t: Time, s.
        """
        since = t - 0.5 * DURATION
        f, angle = self.limits[BEFORE if since < 0.0 else AFTER], self.turning * since
        along = np.sinc(angle / np.pi)
        across = 0.5 * angle * np.sinc(0.5 * angle / np.pi) ** 2
        point: Array = since * (along * f + across * np.array([-f[1], f[0]]))
        return point

    @property
    def reach(self) -> float:
        """Largest radius in m of a ball that starts before both surfaces and ends behind both."""
        image = self.predict(circle(360))
        behind = (self.nominal(DURATION) / np.maximum(-image, 1e-300)).min()
        return float(min(-self.nominal(0.0).max(), behind))

    def turn(self, dx: Array) -> Array:
        """Return perturbations (m, 2) after half of the duration without an event.

        Args:
            dx: Perturbations (m, 2), m.
        """
        angle = 0.5 * DURATION * self.turning
        c, s = np.cos(angle), np.sin(angle)
        result: Array = dx @ np.array([[c, s], [-s, c]])
        return result

    def derivative(self) -> BDerivative:
        """Return the map of perturbations through the origin."""
        return BDerivative(np.eye(2), lambda b: self.limits[tuple(int(s) for s in b)])

    def predict(self, dx: Array) -> Array:
        """Return perturbations (m, 2) after the whole duration, to first order.

        Args:
            dx: Perturbations (m, 2) of the start, m.
        """
        return self.turn(self.derivative()(self.turn(dx)))

    def system(self) -> HybridSystem:
        """Return the field as four modes, whose guards -x_i fall through zero at the surfaces."""
        x = ca.SX.sym("x", 2)
        turned = self.turning * ca.vertcat(-x[1], x[0])
        modes = [symbolic.SymbolicMode(b, x, self.limits[b] + turned) for b in SIGNS]
        return symbolic.hybrid_system(
            modes,
            [
                symbolic.SymbolicTransition(b, f"x{i + 1}", -x[i], (*b[:i], 1, *b[i + 1 :]))
                for b, i in product(SIGNS, range(2))
                if b[i] < 0
            ],
        )


@dataclass(frozen=True, eq=False)
class BallImage:
    """Simulations of one instance beside its B-derivative.

    Attributes:
        instance: The instance.
        rim: Points (m, 2) of the ball around the start, as perturbations in m.
        image: Their images (m, 2) by simulation, likewise.
        predicted: Their images (m, 2) by the B-derivative, likewise.
        errors: Largest differences between one-sided difference quotients of the flow and the
            derivative, by step.
    """

    instance: Instance
    rim: Array
    image: Array
    predicted: Array
    errors: Convergence


def quick(config: Config) -> Config:
    """Return the settings with fewer directions and steps."""
    return replace(config, rim=24, directions=8, steps=config.steps[1::2])


@experiment
def run(config: Config, console: Console) -> Findings:
    """Return the findings of a ball and differences in every field."""
    results = study_cases(instances(config), partial(_simulate_ball, config), console)
    summary = {}
    for name, found in results.items():
        b = found.instance.derivative()
        pieces = b.pieces()
        summary[name] = {
            "orders": len(pieces),
            "maps": len(group_equal_pieces(pieces)),
            "linear": b.is_linear(),
            "matrices": [piece.matrix for piece in pieces],
            "lineality": b.lineality().T,
            "ball_error": np.abs(found.image - found.predicted).max() / config.radius,
            "steps": config.steps,
            "errors": found.errors.errors,
        }
    columns = {"field": "{name}", "orders": "{orders}", "maps": "{maps}", "linear": "{linear}"}
    columns[f"ball {config.radius:g} m"] = "{ball_error:.1e}"
    columns |= {f"step {s:g} m": f"{{errors[{k}]:.1e}}" for k, s in enumerate(config.steps)}
    errors = {name: found.errors for name, found in results.items()}

    def draw(folder: RunFolder) -> None:
        panels = [Panel(name, _ball_lines(found)) for name, found in results.items()]
        title, labels = "A ball of initial points and its image after 1 s", ("x1 [m]", "x2 [m]")
        path, surfaces = folder / "figures/balls.png", list(np.eye(2))
        save_plane_pictures(path, [panels], title=title, labels=labels, surfaces=surfaces, size=3.2)

    title = "B-derivative: largest error against the flow [m/m]"
    return Findings(
        summary,
        [tabulate(title, summary, columns)],
        [
            *(
                Check(
                    f"{name}: error of the ball's image [m/m]", summary[name]["ball_error"], 1e-13
                )
                for name in ("linear", "bent")
            ),
            Check("linear: number of maps", summary["linear"]["maps"], 1, 1),
            Check("bent: number of maps", summary["bent"]["maps"], 2, 2),
            Check("turning: order of the error of differences", errors["turning"].order, 1.1, 0.9),
        ],
        draw=draw,
    )


def instances(config: Config) -> dict[str, Instance]:
    """Return the three fields.

    Args:
        config: Settings.
    """
    linear = {b: 1.0 - config.opposing * np.array(b, dtype=np.float64) for b in SIGNS}
    bent = {b: 1.0 + np.array(c) for b, c in zip(SIGNS, config.changes, strict=True)}
    turning = Instance(bent, config.turning)
    return {"linear": Instance(linear), "bent": Instance(bent), "turning": turning}


def _simulate_ball(config: Config, instance: Instance, tick: Callable[[float], None]) -> BallImage:
    """Return the ball and the differences of one instance."""
    system, span = instance.system(), (0.0, DURATION)

    def flow(deviations: Array) -> Array:
        starts = instance.nominal(0.0) + deviations
        batch = simulate_batch(system, BEFORE, starts, span, rtol=config.rtol, atol=config.atol)
        batch.check()
        return batch.states - instance.nominal(DURATION)

    rim, around = config.radius * circle(config.rim), circle(config.directions)
    found = measure_errors(lambda step: flow(step * around), instance.predict(around), config.steps)
    tick(1.0)
    return BallImage(instance, rim, flow(rim), instance.predict(rim), found.relative)


def circle(points: int) -> Array:
    """Return unit vectors (points, 2), evenly spaced.

    Args:
        points: Number of vectors.
    """
    angles = 2.0 * np.pi * np.arange(points) / points
    return np.column_stack([np.cos(angles), np.sin(angles)])


def _ball_lines(found: BallImage) -> list[Line]:
    """Return nominal path, rim of the ball and predicted image by order, and simulated points."""
    instance, b = found.instance, found.instance.derivative()
    start, end = instance.nominal(0.0), instance.nominal(DURATION)
    nominal = np.array([instance.nominal(t) for t in np.linspace(0.0, 1.0, 61)])
    lines = [Line.from_points(nominal, "nominal", "black", "-", 1.0)]
    orders = b.follow(instance.turn(found.rim)).orders[:, 0]
    for first, color in enumerate((TRACKING, REFERENCE)):
        mine = orders == first
        for points, centre, label in (
            (found.rim, start, None),
            (found.predicted, end, f"B-derivative, x{first + 1} = 0 first"),
        ):
            shown = np.where((mine | np.roll(mine, 1))[:, None], centre + points, np.nan)
            lines.append(Line.from_points(np.vstack([shown, shown[:1]]), label, color, "-", 2.0))
    return [*lines, Line.from_points((end + found.image)[::SHOWN], "simulated", "black", ".")]
