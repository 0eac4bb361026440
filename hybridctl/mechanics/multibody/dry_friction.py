"""Dry friction of joints: the largest torque with which each joint resists motion at any speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridctl.checks import Array, mapping, number
from hybridctl.errors import InputError
from hybridctl.mechanics.multibody.passive import JointIndices


def joint_friction(model: Any, joints: JointIndices, friction: Mapping[str, float] | None) -> Array:
    """Return the dry friction of each velocity (nv,), in N m or N, read-only.

    Args:
        model: The `pinocchio.Model`, with what its file gives.
        joints: Of the robot.
        friction: By joint name, in place of the model's; at least 0.

    Raises:
        UnknownNameError: A name is no joint.
        InputError: A value is negative, or a joint with friction has several degrees of freedom.
    """
    result = np.array(model.upperDryFrictionLimit, dtype=np.float64)
    for name, value in mapping("friction", friction, "names of joints to N m or N").items():
        result[joints.single("friction", name)[1]] = number(
            f"friction[{name!r}]", value, at_least=0.0
        )
    single = {indices[1]: name for name, indices in joints.items() if indices is not None}
    for i in np.flatnonzero(result).tolist():
        if i not in single:
            raise InputError(
                f"joint friction must be at joints of one degree of freedom, got {result[i]:.6g} "
                f"at velocity {i}, which belongs to a joint of several"
            )
        number(f"friction of joint {single[i]!r}", result[i], at_least=0.0)
    result.flags.writeable = False
    return result
