r"""Two surfaces at once: the B-derivative against the simulated flow, after [Bder] Fig. 3.

The claim: where a trajectory meets two surfaces of discontinuity together, its flow still has a
first-order approximation, piecewise linear in general, and the B-derivative is it. A ball of
initial points goes to an ellipse where the map is linear, and to halves of two ellipses where it
is not, to one on each side of the nominal direction.

The field is :math:`\dot x = 1 + \Delta(\operatorname{sign} x)` in the plane, in m and s, from
:math:`-F_{-1}/2` through the origin to :math:`F_{+1}/2` in one second, [Bder] 3.1:

- `linear`: :math:`\Delta(b) = -\delta b`; the derivative is
  :math:`(1 - \delta)/(1 + \delta)` times the identity, [Bder] (12).
- `bent`: any Delta. The flow is piecewise affine, so differences of it are exact.
- `turning`: the same, with :math:`\omega\, (-x_2, x_1)` added. The flow between the surfaces turns
  deviations by :math:`R(\omega/2)` before and after B, and differences err by their step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import casadi as ca
import numpy as np
from hybridctl.experiments.convergence import (
    Convergence,
    convergence,
    convergence_panel,
    draw_convergence,
)
from rich.console import Console
from rich.table import Table

from hybridctl import HybridSystem, simulate_batch, symbolic
from hybridctl.app.experiment import Check, Findings, experiment, study_cases
from hybridctl.app.plots import REFERENCE, TRACKING, Line, Panel, plane
from hybridctl.app.report import record_table
from hybridctl.base.checks import Array, check_array, check_number
from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Meta, Positive, Settings, UnitInterval
from hybridctl.sensitivity.bderivative import BDerivative
from hybridctl.sensitivity.piecewise import group_equal_pieces

SUMMARY = "the image of a ball through two guards at once, one map for each order"

Signs = tuple[int, ...]

SIGNS: tuple[Signs, ...] = tuple(product((-1, 1), repeat=2))
BEFORE, AFTER = SIGNS[0], SIGNS[-1]
DURATION = 1.0  # s, with the surfaces in the middle


@dataclass(frozen=True)
class Config(Settings):
    """Fields in m/s, and how they are tested.

    opposing: delta of the linear case. changes: Delta of the others for the signs (-, -), (-, +),
    (+, -), (+, +). turning: omega in rad/s. radius: of the ball in m. rim: points on it.
    steps: of the differences, in m, in `directions` directions. rtol, atol: of the simulation.
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
    """A field of the plane: its limits (2,) at the origin by signs, and its turning in rad/s."""

    limits: Mapping[Signs, Array]
    turning: float = 0.0

    @property
    def start(self) -> Array:
        """The point from which the origin is reached after half the duration."""
        return self.nominal(0.0)

    @property
    def end(self) -> Array:
        """The point that is reached from the origin in the other half."""
        return self.nominal(DURATION)

    def nominal(self, t: float) -> Array:
        """The nominal point at time t: on an arc of a circle through the origin at half time."""
        since = t - 0.5 * DURATION
        f, angle = self.limits[BEFORE if since < 0.0 else AFTER], self.turning * since
        along = np.sinc(angle / np.pi)
        across = 0.5 * angle * np.sinc(0.5 * angle / np.pi) ** 2
        point: Array = since * (along * f + across * np.array([-f[1], f[0]]))
        return point

    @property
    def reach(self) -> float:
        """The radius in m of a ball that starts before both surfaces and ends behind both."""
        image = self.predict(circle(360))
        behind = (self.end / np.maximum(-image, 1e-300)).min()
        return float(min(-self.start.max(), behind))

    def turned(self, dx: Array) -> Array:
        """Deviations (m, 2) at the surfaces, before the event, or from there to the end."""
        angle = 0.5 * DURATION * self.turning
        c, s = np.cos(angle), np.sin(angle)
        result: Array = dx @ np.array([[c, s], [-s, c]])
        return result

    def derivative(self) -> BDerivative:
        """The map of deviations through the origin."""
        return BDerivative(np.eye(2), lambda b: self.limits[tuple(int(s) for s in b)])

    def predict(self, dx: Array) -> Array:
        """Deviations (m, 2) after the whole duration, to first order."""
        return self.turned(self.derivative()(self.turned(dx)))

    def system(self) -> HybridSystem:
        """The field as four modes, whose guards -x_i fall through zero at the surfaces."""
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
class InstanceResult:
    """What the simulations of one instance gave.

    rim, image, predicted (m, 2): points on the ball around the start, where the flow takes them,
    and where the B-derivative does, as deviations in m. errors (steps,): the largest differences
    between one-sided differences of the flow and the derivative.
    """

    instance: Instance
    rim: Array
    image: Array
    predicted: Array
    errors: Convergence


def quick(config: Config) -> Config:
    """The settings with fewer directions and steps."""
    return replace(config, rim=24, directions=8, steps=config.steps[1::2])


@experiment
def run(config: Config, console: Console) -> Findings:
    """Simulate a ball and differences of every field."""
    results = study_cases(instances(config), partial(study, config), console)
    summary = {name: record(config, result) for name, result in results.items()}

    def draw(folder: RunFolder) -> None:
        draw_balls(folder / "figures/balls.png", results)
        draw_errors(folder / "figures/errors.png", results)

    return Findings(summary, [error_table(config, summary)], checks(results, summary), draw=draw)


def error_table(config: Config, summary: Mapping[str, Any]) -> Table:
    """What maps there are, and their errors against the flow."""
    columns = {"field": "{name}", "orders": "{orders}", "maps": "{maps}", "linear": "{linear}"}
    columns[f"ball {config.radius:g} m"] = "{ball_error:.1e}"
    columns |= {f"step {s:g} m": f"{{errors[{k}]:.1e}}" for k, s in enumerate(config.steps)}
    rows = [{"name": name, **s} for name, s in summary.items()]
    return record_table("B-derivative: largest error against the flow [m/m]", rows, columns)


def checks(results: Mapping[str, InstanceResult], summary: Mapping[str, Any]) -> list[Check]:
    """Piecewise affine flows are met to rounding, others to first order; one is linear."""
    order = results["turning"].errors.order
    return [
        *(
            Check(f"{name}: error of the ball's image [m/m]", summary[name]["ball_error"], 1e-13)
            for name in ("linear", "bent")
        ),
        Check("linear: number of maps", summary["linear"]["maps"], 1, 1),
        Check("bent: number of maps", summary["bent"]["maps"], 2, 2),
        Check("turning: order of the error of differences", order, 1.1, 0.9),
    ]


def instances(config: Config) -> dict[str, Instance]:
    """The three fields."""
    linear = {b: 1.0 - config.opposing * np.array(b, dtype=np.float64) for b in SIGNS}
    bent = {b: 1.0 + np.array(c) for b, c in zip(SIGNS, config.changes, strict=True)}
    return {
        "linear": Instance(linear),
        "bent": Instance(bent),
        "turning": Instance(bent, config.turning),
    }


def study(config: Config, instance: Instance, tick: Callable[[float], None]) -> InstanceResult:
    """Simulate the ball and the differences of one instance."""
    system = instance.system()

    def flow(deviations: Array) -> Array:
        starts, span = instance.start + deviations, (0.0, DURATION)
        batch = simulate_batch(system, BEFORE, starts, span, rtol=config.rtol, atol=config.atol)
        batch.check()
        return batch.states - instance.end

    rim = config.radius * circle(config.rim)
    around = circle(config.directions)
    found = convergence(lambda step: flow(step * around), instance.predict(around), config.steps)
    tick(1.0)
    return InstanceResult(instance, rim, flow(rim), instance.predict(rim), found.relative)


def circle(points: int) -> Array:
    """Unit vectors (points, 2), evenly spaced."""
    angles = 2.0 * np.pi * np.arange(points) / points
    return np.column_stack([np.cos(angles), np.sin(angles)])


def record(config: Config, result: InstanceResult) -> dict[str, Any]:
    """An instance as it stands in summary.json; errors in m per m of deviation."""
    b = result.instance.derivative()
    pieces = b.pieces()
    return {
        "orders": len(pieces),
        "maps": len(group_equal_pieces(pieces)),
        "linear": b.is_linear(),
        "matrices": [piece.matrix for piece in pieces],
        "lineality": b.lineality().T,
        "ball_error": np.abs(result.image - result.predicted).max() / config.radius,
        "steps": config.steps,
        "errors": result.errors.errors,
    }


ORDERS = (TRACKING, REFERENCE)
DOT = 4  # of so many simulated points one is drawn


def draw_balls(path: Path, results: Mapping[str, InstanceResult]) -> None:
    """The ball before the surfaces and its image behind them, simulated and predicted."""
    panels = [Panel(name, ball_lines(result)) for name, result in results.items()]
    title, surfaces = "A ball of initial points and its image after 1 s", list(np.eye(2))
    labels = ("x1 [m]", "x2 [m]")
    plane(path, [panels], title=title, labels=labels, surfaces=surfaces, size=3.2)


def ball_lines(result: InstanceResult) -> list[Line]:
    """The nominal path, the rim of the ball and its predicted image by order, simulated points."""
    instance, b = result.instance, result.instance.derivative()
    start, end = instance.start, instance.end
    nominal = np.array([instance.nominal(t) for t in np.linspace(0.0, 1.0, 61)])
    lines = [Line.through(nominal, "nominal", "black", "-", 1.0)]
    orders = b.follow(instance.turned(result.rim)).orders[:, 0]
    for first, color in enumerate(ORDERS):
        mine = orders == first
        for points, centre, label in (
            (result.rim, start, None),
            (result.predicted, end, f"B-derivative, x{first + 1} = 0 first"),
        ):
            shown = np.where((mine | np.roll(mine, 1))[:, None], centre + points, np.nan)
            lines.append(Line.through(np.vstack([shown, shown[:1]]), label, color, "-", 2.0))
    return [*lines, Line.through((end + result.image)[::DOT], "simulated", "black", ".")]


def draw_errors(path: Path, results: Mapping[str, InstanceResult]) -> None:
    """Errors of one-sided differences of the flow, for shrinking steps."""
    found = {name: result.errors for name, result in results.items()}
    panel = convergence_panel("largest error [m/m]", found, found["turning"], 1.0)
    title = "One-sided differences of the flow against the B-derivative"
    draw_convergence(path, [panel], title, "step [m]")
