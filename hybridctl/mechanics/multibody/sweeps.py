"""Pinocchio's sweeps over a robot, and views of what they leave in its memory.

Linear parts of spatial vectors are those of the point at the origin of their frame. What a sweep
returns holds until the same sweep is asked for again in the same thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pinocchio as pin

from hybridctl.checks import Array


class Fall(NamedTuple):
    """A robot at (q, v): mass (nv, nv), bias (nv,), and columns (6, nv) of all joints' axes.

    Of the bodies of k joints: rotations (k, 3, 3) and positions (k, 3); motions (k, 2, 6), in
    their own frames: the velocity, and the acceleration without that of the joints, less gravity.
    """

    mass: Array
    bias: Array
    columns: Array
    rotations: Array
    positions: Array
    motions: Array


class SweepDerivatives(NamedTuple):
    """Derivatives at (q, v, a), by columns of the axes, all in the world.

    bias_q, bias_v (nv, nv) of M a + h; columns (6, nv) and their rate; acceleration_q and
    acceleration_v (6, nv) of the body that a column moves. Of the bodies of k joints: motions
    (k, 2, 6), the velocity and the acceleration without gravity.
    """

    bias_q: Array
    bias_v: Array
    columns: Array
    columns_rate: Array
    acceleration_q: Array
    acceleration_v: Array
    motions: Array


class Sweeps(threading.local):
    """Sweeps over a Pinocchio model, for the bodies of some joints; its memory is the thread's."""

    def __init__(self, model: Any, joints: Sequence[int]) -> None:
        self._model, self._data = model, model.createData()
        data = self._data
        self._still = np.zeros(model.nv)
        self._rotations = [data.oMi[j].rotation for j in joints]
        self._positions = [data.oMi[j].translation for j in joints]
        self._motions = [m for j in joints for m in (data.v[j].vector, data.a_gf[j].vector)]
        self._in_world = [m for j in joints for m in (data.ov[j].vector, data.oa[j].vector)]
        self._equations = data.M, data.nle, data.J
        self._changes = data.dtau_dq, data.dtau_dv, data.J, data.dJ, data.dAdq, data.dAdv

    def fall(self, q: Array, v: Array) -> Fall:
        """What acts on the robot, and where its axes are."""
        data = self._data
        pin.nonLinearEffects(self._model, data, q, v)
        pin.crba(self._model, data, q, pin.Convention.WORLD)
        motions = np.array(self._motions).reshape(-1, 2, 6)
        return Fall(*self._equations, *self.places(), motions)

    def slopes(self, q: Array, v: Array | None, a: Array) -> SweepDerivatives:
        """The derivatives of the equations of motion and of the motion; v None is zero."""
        data = self._data
        v = self._still if v is None else v
        pin.computeRNEADerivatives(self._model, data, q, v, a)
        return SweepDerivatives(*self._changes, np.array(self._in_world).reshape(-1, 2, 6))

    def axes(self, q: Array) -> Array:
        """Columns (6, nv) of all axes."""
        pin.computeJointJacobians(self._model, self._data, q)
        return np.asarray(self._data.J)

    def places(self) -> tuple[Array, Array]:
        """Rotations (k, 3, 3) and positions (k, 3) of the bodies where the last sweep was."""
        return np.array(self._rotations), np.array(self._positions)
