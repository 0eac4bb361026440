"""What the door costs, as multiples of the Pinocchio calls that it cannot do without.

Field evaluation, derivatives, an accepted step and an event, each beside the bare calls that
deliver the same rigid-body quantities: free motion `aba`; with contacts `crba`,
`nonLinearEffects`, `computeJointJacobiansTimeVariation`; derivatives `computeRNEADerivatives` and
`computeForwardKinematicsDerivatives`. All in one process and one run.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
import pinocchio as pin
from hybridctl.experiments.rrr_door import Config, gains
from hybridctl.experiments.rrr_door_reference import CLOSED, OPEN, Design, build
from hybridctl.robots import rrr_door
from rich.console import Console

from benchmarks.timing import measure
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics import ContactDynamics
from hybridctl.report import table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    quick = parser.parse_args().quick
    effort = {"rounds": 1, "seconds": 0.01} if quick else {"rounds": 7, "seconds": 0.2}
    console = Console(width=100)
    console.print(calls_table(effort))
    console.print(simulation_table(1 if quick else 5))


def calls_table(effort: dict[str, float]):
    """Single calls of the dynamics."""
    dynamics = ContactDynamics(rrr_door.robot(), rrr_door.contacts())
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(2, 4))
    u = rng.normal(size=3)
    model = pin.buildModelFromXML(rrr_door.urdf())
    data = model.createData()

    def free():
        pin.aba(model, data, q, v, v)

    def contact():
        pin.crba(model, data, q)
        pin.nonLinearEffects(model, data, q, v)
        pin.computeJointJacobiansTimeVariation(model, data, q, v)

    def derivatives():
        contact()
        pin.computeRNEADerivatives(model, data, q, v, v)
        pin.computeForwardKinematicsDerivatives(model, data, q, v, v)

    def positions():
        pin.forwardKinematics(model, data, q)

    def impact():
        pin.crba(model, data, q)
        pin.computeJointJacobians(model, data, q)

    cases = [
        ("acceleration, open", lambda: dynamics.acceleration(q, v, u, ()), free),
        ("acceleration, one closed", lambda: dynamics.acceleration(q, v, u, (0,)), contact),
        ("acceleration, both closed", lambda: dynamics.acceleration(q, v, u, (0, 1)), contact),
        (
            "derivatives, both closed",
            lambda: dynamics.acceleration_derivatives(q, v, u, (0, 1)),
            derivatives,
        ),
        ("gaps", lambda: dynamics.gaps(q), positions),
        ("impact, both", lambda: dynamics.impact(q, v, (0, 1)), impact),
    ]
    rows = []
    for name, ours, bare in cases:
        a, b = measure(ours, **effort), measure(bare, **effort)
        share = 100.0 * (1.0 - b.best / a.best)
        rows.append(
            (
                name,
                f"{a.best:.1f}",
                f"{b.best:.2f}",
                f"{a.best / b.best:.1f}",
                f"{share:.0f} %",
                f"{a.spread:.2f}, {b.spread:.2f}",
            )
        )
    columns = ["call", "us", "Pinocchio us", "multiple", "outside", "max/min"]
    return table("Door, one call", columns, rows)


def simulation_table(rounds: int):
    """Accepted steps and events of the perturbed run, in field evaluations."""
    plant, parameters = rrr_door.system(), rrr_door.Parameters()
    reference = build(plant, parameters, Design())
    policy = ReferenceSpreading(reference, *gains(Config(), reference))
    x0 = reference.nominal(0.0) + np.array(Config().perturbation)
    times = []
    for _ in range(rounds):
        began = perf_counter()
        run = simulate(plant, OPEN, x0, (0.0, 2.0), policy)
        times.append(perf_counter() - began)
    steps = sum(len(arc.breaks) for arc in run.arcs)
    arc = run.arcs[-1]
    t = 0.5 * (arc.start + arc.end)
    x, u = arc.state_and_input(t)
    field = measure(lambda: plant.mode(CLOSED).field(t, x, u), rounds=rounds, seconds=0.05).best
    open_arc = run.arcs[0]
    y, w = open_arc.state_and_input(0.5)
    free = measure(lambda: plant.mode(OPEN).field(0.5, y, w), rounds=rounds, seconds=0.05).best
    edge = plant.outgoing(OPEN).edge(("corner_1 closes",))
    before = run.events[0]
    event = measure(
        lambda: edge.reset(before.time, before.state_before, before.input_before),
        rounds=rounds,
        seconds=0.05,
    ).best
    spread = max(times) / min(times)
    per_step = 1e6 * min(times) / steps
    rows = [
        (
            "whole run, 2 s",
            f"{1e6 * min(times):.0f}",
            f"{steps} steps",
            f"{spread:.2f}",
        ),
        ("accepted step", f"{per_step:.0f}", f"{per_step / free:.1f} open fields", ""),
        ("field, open", f"{free:.1f}", "1", ""),
        ("field, both closed", f"{field:.1f}", f"{field / free:.1f} open fields", ""),
        ("reset at an event", f"{event:.0f}", f"{event / free:.1f} open fields", ""),
    ]
    return table("Door, perturbed run", ["what", "us", "in all", "max/min of rounds"], rows)


if __name__ == "__main__":
    main()
