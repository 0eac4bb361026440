"""talos on two flat soles, with locked arms, hands and head: it comes to rest on one of them."""

from functools import cache

import casadi as ca
import numpy as np
import pinocchio as pin
from hybridctl.robots import public

from hybridctl.mechanics import Robot, contact_system
from hybridctl.planning.task import Condition, Margins, Phase, Task

SOLES = ("left_sole_link", "right_sole_link")
BOTH, RIGHT = ("stick",) * 8, ("open",) * 4 + ("stick",) * 4
DURATIONS = ((0.5, 0.9), (0.4, 0.8))  # s, of the shift of weight and of single stance
LIFT = 0.03  # m, height of the left sole at the end
_CORNERS = ((0.1, 0.06, 0.0), (0.1, -0.06, 0.0), (-0.1, 0.06, 0.0))  # three make the pose of a sole
_DIFFERENCE = 1e-4  # part of a phase, half the distance of two places that give a velocity


def lock_arms():
    """talos with legs and torso alone: 20 velocities instead of 38, 14 motors."""
    full = public.robot_with_motors("talos")
    locked = [name for name in full.joint_names if name.split("_")[0] in ("arm", "gripper", "head")]
    elbows = {f"arm_{side}_4_joint": -0.8 for side in ("left", "right")}
    shoulders = {"arm_left_2_joint": 0.3, "arm_right_2_joint": -0.3}
    q = full.posture({**public.MODELS["talos"].posture, **elbows, **shoulders})
    model = full.model
    model = pin.buildReducedModel(model, [model.getJointId(name) for name in locked], q)
    return Robot(model, friction=dict.fromkeys(list(model.names)[2:], 0.0))


class LiftOff:
    """A shift of weight to the right sole and the rise of the left one, from rest to rest."""

    def __init__(self, intervals=5, points=3):
        self.robot = robot = lock_arms()
        self.system = contact_system(robot, public.contacts("talos"), terms="pinocchio")
        self.stand = robot.posture(public.MODELS["talos"].posture)
        self.stand[2] -= robot.point_position(self.stand, SOLES[0])[2]
        self.start = np.concatenate([self.stand, np.zeros(robot.nv)])
        sides = ("left", "right")
        self._legs = [
            robot.velocity_index(f"leg_{side}_{i}_joint") for side in sides for i in range(1, 7)
        ]
        self._soles = self._find_corners(self.stand)[0]
        self._shift = float(robot.point_position(self.stand, SOLES[1])[1])
        self.place = cache(self._place)
        opens = tuple(f"{contact.name} opens" for contact in self.system.contacts[:4])
        phases = [
            Phase(BOTH, opens, DURATIONS[0], intervals, points),
            Phase(RIGHT, (), DURATIONS[1], intervals, points),
        ]
        self.task = Task(
            self.system,
            phases,
            start=self.start,
            conditions=self._make_conditions(),
            margins=Margins(force=10.0, friction=0.7, unload=10.0, lift=0.1),
            degree=5,
            running_cost=lambda x, u: 1e-4 * ca.sumsqr(u) + 0.1 * ca.sumsqr(x[robot.nq + 6 :]),
        )

    def _make_conditions(self):
        """Rest in a pose: a sole that sticks leaves 14 velocities and 14 coordinates free."""
        nq, end = self.robot.nq, self.place(1, 1.0)
        free = [i for i in range(self.robot.nv) if i not in self._legs[6:]]
        speeds = [
            Condition(f"velocity {i} at the end", lambda a, b, t, i=i: b[nq + i]) for i in free
        ]
        # A joint's coordinate comes one later than its velocity, after the quaternion.
        places = [i if i < 6 else i + 1 for i in free]
        return speeds + [
            Condition(f"coordinate {i} at the end", lambda a, b, t, i=i: b[i] - end[i])
            for i in places
        ]

    def guess(self, k, s):
        """A state at a fraction of phase k: the pelvis moves, then the left sole rises."""
        a, b = max(s - _DIFFERENCE, 0.0), min(s + _DIFFERENCE, 1.0)
        time = 0.5 * sum(DURATIONS[k]) * (b - a)
        velocity = self.robot.difference(self.place(k, a), self.place(k, b)) / time
        return np.concatenate([self.place(k, s), velocity])

    def _place(self, k, s):
        even = s * s * s * (10.0 - 15.0 * s + 6.0 * s * s)
        shift, lift = (even * self._shift, 0.0) if k == 0 else (self._shift, LIFT * even)
        q, wanted = self.stand.copy(), self._soles.copy()
        q[1] += shift
        wanted[2:9:3] += lift  # of the corners of the left sole
        for _ in range(8):
            corners, rows = self._find_corners(q)
            if np.abs(wanted - corners).max() < 1e-10:
                break
            step = np.zeros(self.robot.nv)
            legs = rows[:, self._legs]
            step[self._legs] = np.linalg.lstsq(legs, wanted - corners, rcond=1e-9)[0]
            q = self.robot.integrate(q, step)
        return q

    def _find_corners(self, q):
        """Places (18,) of three corners of each sole, and their Jacobian (18, nv)."""
        pairs = [(sole, np.array(corner)) for sole in SOLES for corner in _CORNERS]
        places = np.concatenate([self.robot.point_position(q, *pair) for pair in pairs])
        return places, np.vstack([self.robot.point_jacobian(q, *pair) for pair in pairs])
