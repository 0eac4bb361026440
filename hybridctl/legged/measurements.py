r"""What joint angles and the ground say of a base with feet in contact.

*Angles.* The pose of each foot in contact that the angles say, (s, C), is compared with that of the
state, :math:`\hat s = R^T (d - p), \hat C = R^T R_f`, in the axes of the inertial frame:
:math:`r = (s - \hat s, \log(C \hat C^T))`, of covariance :math:`D \Sigma D^T` by the derivatives of
the kinematics, plus noise of the pose itself. The derivatives of what is predicted
are

.. math:: \delta\hat s = [\hat s]_\times \theta - \rho + \delta, \qquad
          \delta\hat C = [-\theta + \hat C \varphi]_\times \hat C .

*Ground.* The height of each foot in contact over a plane is known, zero or the radius of one that
rolls, but for what the ground is not even.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hybridctl.base.checks import Array, is_finite
from hybridctl.base.errors import InputError
from hybridctl.estimation.measurement import ImplicitMeasurement, LinearizedResidual
from hybridctl.hybrid.mode import ModeModel
from hybridctl.legged.rotation import matrix, quaternion, skews, vector
from hybridctl.legged.space import ANGLE
from hybridctl.legged.system import LeggedBase

ANGLES, GROUND = "angles", "ground"  # names of the channels


def angles_measurement(base: LeggedBase, gate: float | None = None) -> ImplicitMeasurement:
    """Return the measurement "angles" of joint angles (n,) in rad, in the order of the kinematics.

    Its residual is that of the poses of all feet in contact. Without one, and where an angle is not
    finite, the value is left out.

    Args:
        base: The base, which has kinematics and noise.
        gate: Probability with which a right value passes; None accepts all.
    """
    return ImplicitMeasurement(ANGLES, partial(_by_angles, base), gate)


def ground_measurement(base: LeggedBase, gate: float | None = None) -> ImplicitMeasurement:
    """Return the measurement "ground": the height (1,) in m of level ground in the world.

    Its residual is that of the heights of all feet in contact, less their radii. Without one, and
    where the height is not finite, the value is left out.

    Args:
        base: The base, which has kinematics and noise.
        gate: Probability with which a right value passes; None accepts all.
    """
    return ImplicitMeasurement(GROUND, partial(_by_ground, base), gate)


def _by_angles(
    base: LeggedBase, mode: ModeModel, t: float, x: Array, u: Array, z: Array
) -> LinearizedResidual | None:
    """Return the comparison of feet in contact with joint angles z (n,); None without either.

    Raises:
        InputError: There are angles of another number of joints.
    """
    if z.shape != (len(base.kinematics.joints),):
        raise InputError(
            f"a row of {ANGLES!r} must have the angles of {base.kinematics.joints}, got shape "
            f"{z.shape}"
        )
    layout = base.layout(mode.key)
    if not layout.places or not is_finite(z):
        return None
    feet, turn = base.kinematics.find_feet(z), matrix(x[:4])
    s = (x[layout.mode.space.feet[0]].reshape(-1, 3) - x[4:7]).dot(turn)
    h: Array = layout.angles_jacobian.copy()
    h[layout.seen, ANGLE] = skews(s).reshape(-1, 3)
    r = np.empty(len(h))
    r[layout.seen] = (feet.positions[layout.numbers] - s).reshape(-1)
    for place, rows in layout.turned:
        own = turn.T @ matrix(x[place.turn_x])
        r[rows] = vector(quaternion(feet.rotations[place.number] @ own.T))
        h[rows, place.turn_dx] = own
    twists = feet.twists.reshape(-1, len(z))[layout.poses]
    return LinearizedResidual(r, h, base.pose_noise(twists, layout.angles_noise))


def _by_ground(
    base: LeggedBase, mode: ModeModel, t: float, x: Array, u: Array, z: Array
) -> LinearizedResidual | None:
    """Return the comparison of the feet in contact with a height z (1,); None without such feet.

    Raises:
        InputError: There is not one height.
    """
    if z.shape != (1,):
        raise InputError(f"a row of {GROUND!r} must have one height, got shape {z.shape}")
    places = base.places(mode.key)
    if not places or not np.isfinite(z).all():
        return None
    up = matrix(x[:4])[2]
    h = np.zeros((len(places), mode.space.ndx))
    for row, place in zip(h, places, strict=True):
        row[place.dx] = up
    radii = base.kinematics.radii
    heights = np.array([x[place.x][2] - radii[place.foot] for place in places])
    noise = base.noise.ground**2 * np.eye(len(places))
    return LinearizedResidual(z - heights, h, noise)
