"""What the door costs, as multiples of the Pinocchio calls it cannot do without.

Field evaluation, derivatives, an accepted step and an event, each beside the bare calls that
deliver the same rigid-body quantities: free motion `aba`; with contacts `crba`,
`nonLinearEffects`, `computeJointJacobiansTimeVariation`; derivatives `computeRNEADerivatives` and
`computeForwardKinematicsDerivatives`. All in one process and one run.
"""

from __future__ import annotations

import numpy as np
import pinocchio as pin
from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.experiments.rrr_door.tracking import Config, schedule
from hybridctl.robots import rrr_door
from rich.table import Table

from benchmarks.bare import term_derivatives, terms
from benchmarks.timing import COLUMNS, Timing, measure, row
from hybridctl.app.report import make_table
from hybridctl.control.spreading import ReferenceSpreading
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import History, Policy
from hybridctl.hybrid.simulate import simulate
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.impacts.impact_derivatives import differentiate_impact


class BareDoor:
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
        terms(self.model, self.data, self.q, self.v)

    def derivatives(self):
        term_derivatives(self.model, self.data, self.q, self.v)

    def positions(self):
        pin.forwardKinematics(self.model, self.data, self.q)

    def impact(self):
        pin.crba(self.model, self.data, self.q)
        pin.computeJointJacobians(self.model, self.data, self.q)

    def event(self):
        self.impact()
        self.contact()
        self.free()


BOTH = ("closed", "closed")


def calls_table(effort: dict[str, float]) -> Table:
    """Single calls, as runs make them."""
    system, bare = rrr_door.system(), BareDoor()
    q, v, u = bare.q, bare.v, bare.u
    x, dynamics = np.concatenate((q, v)), system.dynamics
    modes = {name: system.mode(key) for name, key in (("open", OPEN), ("closed", BOTH))}
    fired, hit = system.outgoing(BOTH).guards, -dynamics.gap_jacobian(q).sum(axis=0)
    result = impact(dynamics, q, hit, (0, 1))
    cases = [
        ("field, open", lambda: modes["open"].field(0.0, x, u), bare.free),
        ("field, both closed", lambda: modes["closed"].field(0.0, x, u), bare.contact),
        ("derivatives, both closed", lambda: modes["closed"].jacobian(0.0, x, u), bare.derivatives),
        ("guards, both closed", lambda: fired.values(0.0, x, u), bare.contact),
        ("impact, both", lambda: impact(dynamics, q, hit, (0, 1)), bare.impact),
        (
            "derivatives of the impact",
            lambda: differentiate_impact(dynamics, q, hit, result),
            bare.derivatives,
        ),
    ]
    rows = [row(name, measure(o, **effort), measure(b, **effort)) for name, o, b in cases]
    return make_table("Door, one call", COLUMNS, rows)


def simulation_table(effort: dict[str, float]) -> Table:
    """An accepted step in free motion, with its policy and guards, and an event.

    The bare cost of a step is one `aba` per field evaluation and one `forwardKinematics` per
    sample of the gaps; that of an event is an impact and the choice of what stays closed.
    """
    plant, parameters, bare = rrr_door.system(), rrr_door.DoorParameters(), BareDoor()
    reference = build(plant, parameters, Design())
    policy = ReferenceSpreading(reference, schedule(Config(), reference))
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
    mode = plant.mode(event.mode_after)

    def handle():
        jump = reset(event.time, event.state_before, event.input_before)
        _ = mode.calc(event.time, jump.state, event.input_after).selected_mode

    rows = [
        row(f"accepted step ({fields:.1f} fields)", step, needed),
        row("event, second touch", measure(handle, **effort), measure(bare.event, **effort)),
    ]
    return make_table("Door, perturbed run", COLUMNS, rows)


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
