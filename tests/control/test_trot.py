"""What a trot asks of the whole-body programme, against closed forms and symmetries."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hybridctl.robots import public

from hybridctl.control.trot import Trot, TrotController, interpolate_swing
from hybridctl.control.whole_body import WholeBodyQP, make_rotation

HEIGHT, PERIOD, STANCE = 0.25, 0.4, 0.55
SWING = (1.0 - STANCE) * PERIOD
REST = np.zeros(6)
HAS_TOUCHED = {"contact": np.ones(4, dtype=bool)}


class AskedProgramme:
    """A whole-body programme that keeps its targets, and takes the motion of the feet as given."""

    def __init__(self, programme):
        self.robot, self.contacts, self._programme = programme.robot, programme.contacts, programme
        self.motion = None

    def find_feet(self, q, v):
        return self._programme.find_feet(q, v) if self.motion is None else self.motion

    def solve(self, q, v, base, feet, support, motion):
        self.base, self.feet = base, feet
        return SimpleNamespace(u=np.zeros(self.robot.nu), is_solved=True)


@pytest.fixture(scope="module")
def programme():
    return WholeBodyQP(public.robot_with_motors("solo12"), public.contacts("solo12"))


def make_law(programme, trigger="clock", **settings):
    """A trot's law that has not begun, what is asked of its programme, and a standing posture."""
    asked, q = AskedProgramme(programme), programme.robot.posture(public.MODELS["solo12"].posture)
    q[2] = HEIGHT
    trot = Trot(PERIOD, HEIGHT, stance=STANCE, **settings)
    return TrotController(asked, trot, q, trigger), asked, q


def make_state(q, velocity=REST, place=(0.0, 0.0), turn=(0.0, 0.0, 0.0, 1.0)):
    """A state with the base at a place, turned, with a velocity in world axes."""
    rotation = make_rotation(np.array(turn))
    moving = np.concatenate([rotation.T @ velocity[:3], rotation.T @ velocity[3:]])
    return np.concatenate([place, q[2:3], turn, q[7:], moving, np.zeros(12)])


def about(axis, angle):
    """The quaternion x, y, z, w of a rotation."""
    return np.append(math.sin(0.5 * angle) * np.asarray(axis), math.cos(0.5 * angle))


def test_a_base_that_moves_as_asked_is_asked_for_no_acceleration(programme):
    """By default it moves forwards at 0.3 m/s. Rounding of a place of 0.1 m times 60 / s^2."""
    law, asked, q = make_law(programme)
    for k in range(20):
        time, velocity = 0.02 * k, np.array([0.3, 0.0, 0.0, 0.0, 0.0, 0.0])
        law.step(time, make_state(q, velocity, time * velocity[:2]))
        np.testing.assert_allclose(asked.base, 0.0, atol=1e-13)


def test_errors_of_the_base_are_taken_back(programme):
    """A spring and a damper on each error alone: of place, velocity, inclination and turn."""
    law, asked, q = make_law(
        programme, velocity=(0.0, 0.0, 0.0), base_gain=(50.0, 10.0), turn_gain=(200.0, 20.0)
    )
    law.step(0.0, make_state(q))
    for state, found in (
        (make_state(q, place=[0.01, -0.02]), [-0.5, 1.0, 0.0, 0.0, 0.0, 0.0]),
        (make_state(q + 0.01 * (np.arange(19) == 2)), [0.0, 0.0, -0.5, 0.0, 0.0, 0.0]),
        (make_state(q, np.arange(1.0, 7.0)), -np.repeat([10.0, 20.0], 3) * np.arange(1.0, 7.0)),
        (make_state(q, turn=about([1, 0, 0], 0.3)), [0, 0, 0, -200 * math.sin(0.3), 0, 0]),
        (make_state(q, turn=about([0, 0, 1], 0.3)), [0, 0, 0, 0, 0, -200 * math.sin(0.3)]),
    ):
        law.step(0.0, state)
        np.testing.assert_allclose(asked.base, found, atol=1e-12)


def test_the_reference_stays_within_its_leash_of_a_base_that_is_held(programme):
    """It is 5 cm ahead at the most, so that the spring asks for 50 * 0.05 m/s^2 and no more."""
    law, asked, q = make_law(programme, velocity=(0.3, 0.4, 0.0), base_gain=(50.0, 0.0))
    for time in (0.0, 0.05, 1.0, 2.0):
        law.step(time, make_state(q))
        ahead = min(0.5 * time, 0.05)
        np.testing.assert_allclose(asked.base[:2], 50.0 * ahead * np.array([0.6, 0.8]), atol=1e-12)


def test_a_trot_in_another_heading_is_the_same_trot(programme):
    """Turned about the vertical, start and state have targets that are turned with them.

    The base walks aside, turns, leans, and lags behind; foot 0 is late
    from 0.18 s.
    """
    turn, found = 0.7, []
    rotation = make_rotation(about([0, 0, 1], turn))
    for angle in (0.0, turn):
        law, asked, q = make_law(programme, "touch", velocity=(0.3, 0.2, 0.5))
        rotated, kept = make_rotation(about([0, 0, 1], angle)), []
        for k in range(15):
            place = rotated @ np.array([0.002 * k, 0.003 * k, 0.0])
            lean = 0.5 * angle, 0.05  # R_z(angle) R_x(0.1) as a quaternion
            quaternion = (
                math.cos(lean[0]) * math.sin(lean[1]),
                math.sin(lean[0]) * math.sin(lean[1]),
                math.sin(lean[0]) * math.cos(lean[1]),
                math.cos(lean[0]) * math.cos(lean[1]),
            )
            moving = np.concatenate([rotated @ [0.2, -0.1, 0.05], rotated @ [0.3, 0.2, 0.1]])
            touching = {"contact": np.array([False, True, True, True])}
            law.step(0.02 * k, make_state(q, moving, place[:2], quaternion), touching)
            kept.append((asked.base.reshape(2, 3), asked.feet))
        found.append(kept)
    for plain, turned in zip(*found, strict=True):
        for ours, theirs in zip(plain, turned, strict=True):
            # Accelerations of some 1e3 m/s^2, from which rounding takes 1e-13 of it.
            np.testing.assert_allclose(theirs, ours @ rotation.T, atol=1e-9)


def find_landing(law, q, velocity, excess):
    """Where foot 0 lands, relative to the base at its lift-off: the formula of the module."""
    hip = law.programme.find_feet(q, np.zeros(18)).positions[0, :2] - q[:2]
    capture = math.sqrt(HEIGHT / 9.81)
    return hip + (SWING + 0.5 * STANCE * PERIOD) * velocity + capture * excess


@pytest.mark.parametrize("excess", [np.zeros(2), np.array([0.1, -0.2])])
def test_a_foot_on_its_swing_is_asked_for_the_acceleration_of_it(programme, excess):
    """A base that moves steadily foresees one place of landing during the whole swing.

    A foot behind its swing, or slower, is asked for that of a spring and of a damper in addition.
    Rounding: 1e-16 m times the stiffness, and 1e-16 / SWING^2.
    """
    law, asked, q = make_law(programme, velocity=(0.3, 0.1, 0.0), clearance=0.06)
    velocity = np.array([0.3, 0.1]) + excess
    lift = programme.find_feet(q, np.zeros(18))
    land = np.append(find_landing(law, q, velocity, excess), 0.0)
    moving = np.concatenate([velocity, np.zeros(4)])
    behind, slower = np.array([0.01, 0.02, -0.01]), np.array([0.3, -0.1, 0.2])
    for part in (0.0, 0.2, 0.5, 0.9):
        place, rate, change = interpolate_swing(part, SWING, lift.positions[0], land, 0.06)
        for lag, slow in ((0.0, 0.0), (behind, 0.0), (0.0, slower)):
            if part == 0.0:  # lifts off where it is
                asked.motion = lift
                law.step(0.0, make_state(q, moving))
                continue
            positions, velocities = lift.positions.copy(), lift.velocities.copy()
            positions[0], velocities[0] = place - lag, rate - slow
            asked.motion = replace(lift, positions=positions, velocities=velocities)
            law.step(part * SWING, make_state(q, moving, part * SWING * velocity))
            np.testing.assert_allclose(asked.feet[0], change + 900 * lag + 60 * slow, atol=1e-10)


def test_standing_feet_are_braked_and_late_feet_pressed_down(programme):
    """All feet stand by the clock just after a swing, but foot 0 has not touched."""
    law, asked, q = make_law(programme, "touch", press=0.4, support_damping=30.0)
    lift = programme.find_feet(q, np.zeros(18))
    slipping = np.arange(12.0).reshape(4, 3)
    asked.motion = replace(lift, velocities=slipping)
    law.step(0.0, make_state(q), HAS_TOUCHED)
    late = {"contact": np.array([False, True, True, True])}
    law.step(1.05 * SWING, make_state(q), late)
    np.testing.assert_allclose(asked.feet[0], 60.0 * (np.array([0.0, 0.0, -0.4]) - slipping[0]))
    np.testing.assert_allclose(asked.feet[1:], -30.0 * slipping[1:])
    law.step(1.06 * SWING, make_state(q), HAS_TOUCHED)
    np.testing.assert_allclose(asked.feet, -30.0 * slipping)
