"""Dry friction of joints: the largest torque with which each joint resists motion at any speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridctl.base.checks import Array, check_mapping, check_member, check_number
from hybridctl.base.errors import InputError


def joint_friction(model: Any, friction: Mapping[str, float] | None) -> Array:
    """Return the dry friction of each velocity (nv,), in N m or N, read-only.

    Args:
        model: The `pinocchio.Model`, with what its file gives.
        friction: By joint name, in place of the model's; at least 0.

    Raises:
        UnknownNameError: A name is no joint.
        InputError: A value is negative, or a joint with friction has several degrees of freedom.
    """
    result = np.array(model.upperDryFrictionLimit, dtype=np.float64)
    joints = dict(zip(list(model.names)[1:], list(model.joints)[1:], strict=True))
    for name, value in check_mapping("friction", friction, "names of joints to N m or N").items():
        joint = joints[check_member("joint", name, joints)]
        limit = check_number(f"friction[{name!r}]", value, at_least=0.0)
        result[joint.idx_v : joint.idx_v + joint.nv] = limit
    for name, joint in joints.items():
        for limit in result[joint.idx_v : joint.idx_v + joint.nv].tolist():
            check_number(f"friction of joint {name!r}", limit, at_least=0.0)
            if limit > 0.0 and joint.nv > 1:
                raise InputError(
                    f"friction: joint {name!r} must have one degree of freedom to have dry "
                    f"friction, but it has {joint.nv}"
                )
    result.flags.writeable = False
    return result
