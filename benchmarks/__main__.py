"""What the door and friction cost, as multiples of the Pinocchio calls they cannot do without.

Field evaluation, derivatives, an accepted step and an event, each beside the bare calls that
deliver the same rigid-body quantities: free motion `aba`; with contacts `crba`,
`nonLinearEffects`, `computeJointJacobiansTimeVariation`; derivatives `computeRNEADerivatives` and
`computeForwardKinematicsDerivatives`. All in one process and one run.
"""

from __future__ import annotations

import argparse

import numpy as np
import pinocchio as pin
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.experiments.rrr_door.tracking import Config, gains
from hybridctl.robots import rrr_door
from rich.console import Console
from rich.table import Table

from benchmarks import ball, bderivative, estimation, friction, robots
from benchmarks.timing import Timing, measure
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History, Policy
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics import ContactDynamics
from hybridctl.mechanics.impact import impact
from hybridctl.report import table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    quick = parser.parse_args().quick
    effort = {"rounds": 1, "seconds": 0.01} if quick else {"rounds": 7, "seconds": 0.2}
    console = Console(width=100)
    bare = Bare()
    console.print(ball.table_of_balls(effort))
    console.print(ball.table_of_batches(effort, 100 if quick else 1000))
    console.print(calls_table(effort, bare))
    console.print(simulation_table(effort, bare))
    console.print(friction.calls_table(effort))
    console.print(friction.simulators_table(effort))
    console.print(robots.landings_table(quick))
    console.print(estimation.table_of_filters(effort))
    for each in bderivative.tables(effort):
        console.print(each)


class Bare:
    """The Pinocchio calls themselves, on a model and scratch data of their own."""

    def __init__(self) -> None:
        self.model = pin.buildModelFromXML(rrr_door.urdf())
        self.data = self.model.createData()
        rng = np.random.default_rng(0)
        self.q, self.v = rng.normal(size=(2, 4))
        self.u = rng.normal(size=3)

    def free(self):
        pin.aba(self.model, self.data, self.q, self.v, self.v)

    def contact(self):
        pin.crba(self.model, self.data, self.q)
        pin.nonLinearEffects(self.model, self.data, self.q, self.v)
        pin.computeJointJacobiansTimeVariation(self.model, self.data, self.q, self.v)

    def derivatives(self):
        self.contact()
        pin.computeRNEADerivatives(self.model, self.data, self.q, self.v, self.v)
        pin.computeForwardKinematicsDerivatives(self.model, self.data, self.q, self.v, self.v)

    def positions(self):
        pin.forwardKinematics(self.model, self.data, self.q)

    def impact(self):
        pin.crba(self.model, self.data, self.q)
        pin.computeJointJacobians(self.model, self.data, self.q)

    def event(self):
        self.impact()
        self.contact()
        self.free()


ONE, BOTH = ("closed", "open"), ("closed", "closed")
COLUMNS = ["what", "us", "Pinocchio us", "multiple", "outside", "max/min"]


def row(name: str, ours: Timing, bare: Timing) -> tuple[str, ...]:
    """One line of a table: our time, that of the bare calls, and what lies between."""
    return (
        name,
        f"{ours.best:.1f}",
        f"{bare.best:.2f}",
        f"{ours.best / bare.best:.1f}",
        f"{100.0 * (1.0 - bare.best / ours.best):.0f} %",
        f"{ours.spread:.2f}, {bare.spread:.2f}",
    )


def calls_table(effort: dict[str, float], bare: Bare) -> Table:
    """Single calls of the dynamics."""
    dynamics = ContactDynamics(rrr_door.robot(), rrr_door.contacts())
    q, v, u = bare.q, bare.v, bare.u
    cases = [
        ("acceleration, open", lambda: dynamics.acceleration(q, v, u, OPEN), bare.free),
        ("acceleration, one closed", lambda: dynamics.acceleration(q, v, u, ONE), bare.contact),
        ("acceleration, both closed", lambda: dynamics.acceleration(q, v, u, BOTH), bare.contact),
        (
            "derivatives, both closed",
            lambda: dynamics.acceleration_derivatives(q, v, u, BOTH),
            bare.derivatives,
        ),
        ("gaps", lambda: dynamics.gaps(q), bare.positions),
        ("impact, both", lambda: impact(dynamics, q, v, (0, 1)), bare.impact),
    ]
    rows = [row(name, measure(o, **effort), measure(b, **effort)) for name, o, b in cases]
    return table("Door, one call", COLUMNS, rows)


def simulation_table(effort: dict[str, float], bare: Bare) -> Table:
    """An accepted step in free motion, with its policy and guards, and an event.

    The bare cost of a step is one `aba` per field evaluation and one `forwardKinematics` per
    sample of the gaps; that of an event is an impact and the choice of what stays closed.
    """
    plant, parameters = rrr_door.system(), rrr_door.Parameters()
    reference = build(plant, parameters, Design())
    policy = ReferenceSpreading(reference, *gains(Config(), reference))
    x0 = reference.nominal(0.0) + np.array(Config().perturbation)
    counting = CountingPolicy(policy)
    steps = len(simulate(plant, OPEN, x0, (0.0, 0.9), counting).arcs[0].breaks)
    whole = measure(lambda: simulate(plant, OPEN, x0, (0.0, 0.9), policy), **effort)
    fields = counting.calls / steps - 8.0  # each step stores its input at eight nodes
    free, positions = measure(bare.free, **effort), measure(bare.positions, **effort)
    step = Timing(whole.best / steps, whole.spread)
    needed = Timing(fields * free.best + 7.0 * positions.best, free.spread)

    event = simulate(plant, OPEN, x0, (0.0, 1.1), policy).events[-1]
    reset = plant.outgoing(event.mode_before).edge(event.guards).reset
    select = plant.mode(event.mode_after).select

    def handle():
        jump = reset(event.time, event.state_before, event.input_before)
        select(event.time, jump.state, event.input_after)

    rows = [
        row(f"accepted step ({fields:.1f} fields)", step, needed),
        row("event, second touch", measure(handle, **effort), measure(bare.event, **effort)),
    ]
    return table("Door, perturbed run", COLUMNS, rows)


class CountingPolicy:
    """A policy that counts how often its laws are evaluated."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.calls = 0

    def law(self, history: History) -> InputLaw:
        law = self.policy.law(history)

        def counted(t, x):
            self.calls += 1
            return law(t, x)

        return counted


if __name__ == "__main__":
    main()
