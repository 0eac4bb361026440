"""Half a stride of solo12's trot: planned with its floating base as it is published."""

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import public

import hybridctl as hc
from hybridctl.mechanics import Robot, contact_system, limb_symmetry
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Condition, Margins, Phase, Task

PAIRS = {f"{end}L_{joint}": f"{end}R_{joint}" for end in "FH" for joint in ("HAA", "HFE", "KFE")}
FEET = ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT")
STANCE, FLIGHT = ("stick", "open", "open", "stick"), ("open",) * 4
DURATIONS = (0.10, 0.20), (0.03, 0.08)  # s, of stance and flight
LANDING_SPEED, CLEARANCE, LIFT = 0.6, 0.02, 0.03  # m/s, m, m


def trot(speed):
    """The task, up to the exchange of left and right and the way along x, and its guess."""
    robot = Robot.from_urdf(public.urdf("solo12"), root="floating")
    plant = contact_system(robot, public.contacts("solo12"), terms="pinocchio")
    names = [contact.name for contact in plant.contacts]
    symmetry = limb_symmetry(
        plant,
        PAIRS,
        {names[0]: names[1], names[2]: names[3]},
        free={"translation": ("root_joint", "x")},
        tolerance=1e-3,
    )
    lifts, lands = ((names[0], names[3]), (names[1], names[2]))
    phases = [
        Phase(STANCE, tuple(f"{name} opens" for name in lifts), DURATIONS[0], 6, 3),
        Phase(FLIGHT, tuple(f"{name} closes" for name in lands), DURATIONS[1], 4, 3),
    ]
    task = Task(
        plant,
        phases,
        symmetry=symmetry,
        conditions=[Condition("speed", lambda a, b, t: b[0] - a[0] - speed * t, unit="m")],
        margins=Margins(
            force=1.0,
            friction=0.7,
            impulse=0.0,
            landing_speed=LANDING_SPEED,
            clearance=CLEARANCE,
        ),
        torque=2.7,
        degree=5,
        # A cost of velocities of the joints makes the search regular.
        running_cost=lambda x, u: ca.sumsqr(u) + 0.01 * ca.sumsqr(x[25:]),
    )
    return task, guess_trot(robot, speed)


def guess_trot(robot, speed):
    """Feet on parabolas or on the ground, by inverse kinematics; the base hops."""
    stand = public.start("solo12", 0.0, 0.0, 0.0)[: robot.nq]
    stance, flight = (0.5 * sum(pair) for pair in DURATIONS)
    half, rise = stance + flight, 0.5 * 9.81 * flight
    standing = [robot.point_position(stand, foot) for foot in FEET]

    def place_foot(i, t):
        later = 0.0 if i in (0, 3) else half
        stride, tau = divmod(t - later, 2.0 * half)
        x, s = speed * (2.0 * half * stride + later + 0.5 * stance), 0.0
        if tau > stance:
            s = (tau - stance) / (2.0 * half - stance)
            x += speed * 2.0 * half * (3.0 * s * s - 2.0 * s**3)
        return standing[i] + [x, 0.0, 4.0 * LIFT * s * (1.0 - s)]

    def place_robot(t):
        air = t - stance
        q = stand.copy()
        q[0] += speed * t
        q[2] += rise * (t * t / stance - t) if air < 0.0 else rise * air - 4.905 * air * air
        for _ in range(10):
            off = [place_foot(i, t) - robot.point_position(q, foot) for i, foot in enumerate(FEET)]
            rows = [robot.point_jacobian(q, foot, np.zeros(3))[:, 6:] for foot in FEET]
            step = np.linalg.solve(np.vstack(rows), np.concatenate(off))
            q = robot.integrate(q, np.concatenate([np.zeros(6), step]))
        return q

    def guess(k, s):
        first, length = ((0.0, stance), (stance, flight))[k]
        t = first + s * length
        # Differences stay inside the phase: the velocity jumps at a touch.
        a, b = max(t - 1e-5, first + 1e-9), min(t + 1e-5, first + length - 1e-9)
        velocity = robot.difference(place_robot(a), place_robot(b)) / (b - a)
        return np.concatenate([place_robot(t), velocity])

    return guess


@pytest.mark.slow
def test_solo12_trots_as_planned_open_loop_and_lands_softly():
    """Half a stride at 0.3 m/s is followed by a simulation of its inputs alone."""
    task, guess = trot(0.3)
    found = optimise(task, guess, tolerance=1e-2)
    assert found.open_loop.closes, found.open_loop.problem
    run = found.run
    # Feet that the plan lets go or touch down together do so within 1 ms (`_SIMULTANEITY`).
    assert [name for event in run.events for name in event.guards if "slips" not in name] == [
        name for phase in task.phases for name in phase.ends
    ]
    start, end = run(0.0), run.final_state
    gap = task.symmetry.gap(task.system.space, start, end)
    assert np.abs(gap).max() < 1e-2 * (1.0 + np.abs(start).max())
    assert end[0] - start[0] == pytest.approx(0.3 * run.end, abs=1e-3)
    # Torques jump as the feet let go: there is one derivative for each foot that may be the last.
    assert len(hc.linearize(task.system, run).jumps[0].pieces(accuracy=1e-9)) == 2
    landing = next(event for event in run.events if "FR_FOOT 0 closes" in event.guards).state_before
    robot = task.system.robot
    for foot in ("FR_FOOT", "HL_FOOT"):
        rows = robot.point_jacobian(landing[: robot.nq], foot, np.zeros(3))
        assert -LANDING_SPEED - 5e-2 < rows[2] @ landing[robot.nq :] < 0.0
