"""The equations of the thesis for the arm and the door, (5.10)-(5.21), with their misprints mended.

Corrected: the factor 2 on the L2 terms of M_23 is 1, the first term of C_2 has the velocity
qdot_1^2, and c_3y is positive towards -y of link 3. Written from the paper, not from the code.
"""

import numpy as np
from hybridctl.robots.rrr_door import DoorParameters
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mass_matrix(p: DoorParameters, q: Array) -> Array:
    l1, l2 = p.upper_arm_length, p.forearm_length
    m1, m2, m3 = p.upper_arm_mass, p.forearm_mass, p.foot_mass
    r, c3y = p.foot_length - p.foot_center_behind, p.foot_center_right
    _, q2, q3, _ = q
    i1 = p.upper_arm_inertia + (m1 / 4 + m2 + m3) * l1**2
    i2 = p.forearm_inertia + (m2 / 4 + m3) * l2**2
    i3 = p.foot_inertia + m3 * (r**2 + c3y**2)
    a = l1 * m3 * (r * np.cos(q2 + q3) + c3y * np.sin(q2 + q3))
    b = l2 * m3 * (r * np.cos(q3) + c3y * np.sin(q3))
    c = l1 * l2 * (m2 + 2 * m3) * np.cos(q2)
    m = np.zeros((4, 4))
    m[0, 0] = i1 + i2 + i3 + 2 * a + c + 2 * b
    m[0, 1] = m[1, 0] = i2 + i3 + a + c / 2 + 2 * b
    m[0, 2] = m[2, 0] = i3 + a + b
    m[1, 1] = i2 + i3 + 2 * b
    m[1, 2] = m[2, 1] = i3 + b
    m[2, 2] = i3
    m[3, 3] = p.door_inertia
    return m


def bias(p: DoorParameters, q: Array, v: Array) -> Array:
    l1, l2 = p.upper_arm_length, p.forearm_length
    r, c3y = p.foot_length - p.foot_center_behind, p.foot_center_right
    _, q2, q3, q4 = q
    v1, v2, v3, v4 = v

    def e(angle: float) -> float:
        return float(p.foot_mass * (c3y * np.cos(angle) - r * np.sin(angle)))

    d = l1 * l2 * (p.forearm_mass + 2 * p.foot_mass) * np.sin(q2) / 2
    wrist = l2 * e(q3) * (v3**2 + 2 * v1 * v3 + 2 * v2 * v3)
    return np.array(
        [
            -d * (v2**2 + 2 * v1 * v2) + l1 * e(q2 + q3) * ((v1 + v2 + v3) ** 2 - v1**2) + wrist,
            d * v1**2 - l1 * e(q2 + q3) * v1**2 + wrist,
            -l1 * e(q2 + q3) * v1**2 - l2 * e(q3) * (v1 + v2) ** 2,
            p.hinge_damping * v4 + p.hinge_stiffness * q4,
        ]
    )


def gaps(p: DoorParameters, q: Array) -> Array:
    q4 = q[3]
    s1, s2, s3 = np.cumsum(q[:3]) - q4
    common = (
        p.hinge_left * np.sin(q4)
        + p.hinge_ahead * np.cos(q4)
        - p.upper_arm_length * np.sin(s1)
        - p.forearm_length * np.sin(s2)
        - p.foot_length * np.sin(s3)
        - p.corner_1_offset * np.cos(s3)
        - p.door_thickness / 2
    )
    return np.array([common, common + p.foot_width * np.cos(s3)])


def gap_jacobian(p: DoorParameters, q: Array) -> Array:
    q4 = q[3]
    s1, s2, s3 = np.cumsum(q[:3]) - q4
    a = -p.upper_arm_length * np.cos(s1)
    b = -p.forearm_length * np.cos(s2)
    c = -p.foot_length * np.cos(s3)
    d = p.corner_1_offset * np.sin(s3)
    door = p.hinge_left * np.cos(q4) - p.hinge_ahead * np.sin(q4)
    w = p.foot_width * np.sin(s3)
    first = np.array([a + b + c + d, b + c + d, c + d, -a - b - c - d + door])
    return np.array([first, first + w * np.array([-1.0, -1.0, -1.0, 1.0])])
