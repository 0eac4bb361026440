"""The arm and its door by optimisation: both corners at once, then held against it."""

import numpy as np
import pytest
from hybridctl.experiments.rrr_door.reference import Design, build
from hybridctl.robots import rrr_door

from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Condition, Margins, Phase, Task

OPEN, CLOSED = ("open", "open"), ("closed", "closed")
CORNERS = ("corner_1 closes", "corner_2 closes")
FORCE = 4.0  # N, what each corner presses at least


@pytest.fixture(scope="module")
def published():
    parameters = rrr_door.DoorParameters()
    plant = rrr_door.system(parameters)
    return plant, build(plant, parameters, Design(), rtol=1e-9, atol=1e-9).nominal


def task(plant, nominal) -> Task:
    """From the published start to the published angle of the hinge, at rest there."""
    angle = float(nominal.final_state[3])
    return Task(
        plant,
        [
            Phase(OPEN, CORNERS, (1.0, 1.0 + 1e-9), 12, 5),
            Phase(CLOSED, (), (1.0, 1.0 + 1e-9), 12, 5),
        ],
        start=nominal(0.0),
        conditions=[
            Condition("hinge angle at the end", lambda a, b, t: b[3] - angle, unit="rad"),
            Condition("hinge speed at the end", lambda a, b, t: b[7], unit="rad/s"),
        ],
        margins=Margins(force=FORCE, approach=0.1),
        torque=60.0,
    )


def found(plant, nominal):
    """From straight ways between the published states."""
    before, after = nominal(1.0, side="left"), nominal(1.0)
    ends = [nominal(0.0), before, after, nominal.final_state]
    return optimise(
        task(plant, nominal), lambda k, s: (1.0 - s) * ends[2 * k] + s * ends[2 * k + 1]
    )


def test_both_corners_touch_at_once_and_press(published):
    plant, nominal = published
    result = found(plant, nominal)
    assert result.mismatch < 1e-6
    assert [event.guards for event in result.run.events] == [CORNERS]
    assert (result.run.events[0].impulses > 0.0).all()
    assert result.run.final_mode == CLOSED
    assert result.run.final_state[3] == pytest.approx(nominal.final_state[3], abs=1e-6)
    assert result.run.final_state[7] == pytest.approx(0.0, abs=1e-6)
    arc, mode = result.run.arcs[1], plant.mode(CLOSED)
    for t in np.linspace(arc.start, arc.end, 41).tolist():
        force = mode.outputs(t, *arc.state_and_input(t))["normal_force"]
        assert (force >= FORCE - 0.05).all(), "between points of collocation it may be less"
