"""The door just before the arm hits it with both corners, by flowing back from the impact."""

from hybridctl.experiments.rrr_door.reference import OPEN, Design, build
from hybridctl.robots import rrr_door
from scipy.integrate import solve_ivp


def struck_door():
    """System, start (8,), and constant torques (3,) that end in the impact at 0.05 s."""
    system = rrr_door.system()
    event = build(system, rrr_door.DoorParameters(), Design()).events[0]
    u, mode = event.input_before, system.mode(OPEN)
    back = solve_ivp(
        lambda t, x: mode.field(t, x, u),
        (0.05, 0.0),
        event.state_before,
        rtol=1e-12,
        atol=1e-13,
        method="DOP853",
    )
    return system, back.y[:, -1], u
