"""The door model against the closed forms of the thesis, written out independently."""

import numpy as np
import pytest
from hybridctl.robots import rrr_door
from oracles import rrr_door_closed_form as thesis

from hybridctl.mechanics import ContactDynamics

# Both sides are sums of about ten terms of unit size: 1e-12 is some thousand roundings.


@pytest.mark.parametrize("seed", range(20))
def test_dynamics_and_kinematics_equal_the_closed_forms(seed):
    rng = np.random.default_rng(seed)
    base = rrr_door.DoorParameters()
    factors = rng.uniform(0.7, 1.3, size=18)
    names = [n for n in vars(base) if n not in ("restitution", "door_length")]
    parameters = rrr_door.DoorParameters(
        **{n: getattr(base, n) * f for n, f in zip(names, factors, strict=False)}
    )
    q, v = rng.normal(size=(2, 4))
    robot = rrr_door.robot(parameters)
    dynamics = ContactDynamics(robot, rrr_door.contacts(parameters))
    assert robot.joint_names == rrr_door.JOINTS
    for ours, theirs in (
        (robot.mass_matrix(q), thesis.mass_matrix(parameters, q)),
        (robot.bias(q, v), thesis.bias(parameters, q, v)),
        (dynamics.gaps(q), thesis.gaps(parameters, q)),
        (dynamics.gap_jacobian(q), thesis.gap_jacobian(parameters, q)),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
