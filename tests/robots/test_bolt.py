"""Bolt on a base by Euler angles: its weight, its feet, and its mirrored legs."""

import numpy as np
import pytest
from hybridctl.robots import bolt, public

from hybridctl.base.errors import InputError


def test_it_is_the_robot_of_the_file_on_another_base():
    robot, free = bolt.robot(), public.robot_with_motors("bolt")
    assert robot.weight == free.weight
    assert (robot.nq, robot.nv, robot.nu) == (12, 12, 6)
    assert robot.joint_names[6:] == bolt.JOINTS == tuple(free.joint_names[1:])


def test_the_file_has_legs_that_differ_and_the_mirrored_robot_has_not():
    """The largest difference of the file is 4e-4 of the mass matrix, of six digits."""
    symmetry = bolt.exchange_legs(bolt.system(mirrored=True))
    np.testing.assert_array_equal(np.diag(symmetry.matrix)[:6], [1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    with pytest.raises(InputError, match=r"mass matrix 0\.0004"):
        bolt.exchange_legs(bolt.system())
    masses = [bolt.robot(mirrored).mass_matrix(np.zeros(12)) for mirrored in (False, True)]
    assert np.abs(masses[1] - masses[0]).max() < 1e-3 * np.abs(masses[0]).max()


def test_its_lower_foot_is_set_on_the_floor():
    walker = bolt.system()
    q = bolt.set_feet_down(walker, {"FL_HFE": 0.8, "FL_KFE": -1.6})
    gaps = walker.dynamics.gaps(q)
    assert gaps.min() == pytest.approx(0.0, abs=1e-15)
    assert gaps[0] - gaps[1] > 0.1
