"""What the first mistakes with a robot say: a state, a mode, a name that is not quite right."""

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError, OrientationWarning, UnknownNameError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system, equilibrium

INERTIA = '<inertia ixx="0.02" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/>'
HOPPER = f"""<robot name="hopper">
<link name="trunk"><inertial><mass value="4"/>{INERTIA}</inertial></link>
<joint name="hip" type="revolute"><parent link="trunk"/><child link="shank"/>
  <axis xyz="0 1 0"/><limit lower="-1.5" upper="1.5" effort="60" velocity="20"/></joint>
<link name="shank"><inertial><mass value="0.4"/>{INERTIA}</inertial></link>
</robot>"""


def make_hopper(root):
    robot = Robot.from_urdf(HOPPER, root=root)
    ground = Plane((0, 0, 0), (0, 0, 1))
    return contact_system(robot, [Contact("toe", "shank", ground, offset=(0, 0, -0.25))])


@pytest.fixture(scope="module")
def hopper():
    return make_hopper("sagittal")


def test_a_state_of_another_size_has_its_entries_named(hopper):
    expected = r"x0 must have shape \(8\), got \(4,\); its entries are root_x \[m\], .*hip rate"
    with pytest.raises(InputError, match=expected):
        hc.simulate(hopper, ("open",), np.zeros(4), (0.0, 0.1))


def test_a_mode_that_is_one_word_is_completed(hopper):
    with pytest.raises(UnknownNameError, match=r"each of 1 contact: .*did you mean \('open',\)\?"):
        hc.simulate(hopper, "open", np.zeros(8), (0.0, 0.1))
    with pytest.raises(UnknownNameError) as raised:
        hc.simulate(hopper, "flying", np.zeros(8), (0.0, 0.1))
    assert "did you mean" not in str(raised.value)


def test_a_quaternion_with_w_first_is_noticed():
    system = make_hopper("floating")
    x = np.zeros(15)
    x[2], x[3] = 0.5, 1.0
    with pytest.warns(OrientationWarning, match="entries 3 to 6, is 1, 0, 0, 0 in the order x, y"):
        hc.simulate(system, ("open",), x, (0.0, 1e-3))
    x[3], x[6] = 0.0, 1.0
    hc.simulate(system, ("open",), x, (0.0, 1e-3))  # warnings are errors


def test_an_equilibrium_in_the_air_says_what_is_missing(hopper):
    with pytest.raises(InputError, match="no contact is closed, so that none carries the robot"):
        equilibrium(hopper, ("open",), np.array([0.0, 0.5, 0.0, 0.0]))


def test_a_misspelt_name_of_the_package_is_suggested():
    with pytest.raises(AttributeError, match="hybridctl has no 'simulat'; did you mean 'simulate'"):
        hc.simulat  # noqa: B018
    with pytest.raises(AttributeError, match=r"hybridctl has no 'zzz'$"):
        hc.zzz  # noqa: B018
    assert not hasattr(hc, "__wrapped__")


def test_a_run_is_viewed_without_its_robot(hopper, tmp_path):
    run = hc.simulate(hopper, ("open",), [0.0, 0.6, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0], (0.0, 0.02))
    view = hc.view(run, path=tmp_path / "view.html")
    assert len(view.scene.movers) == 1
    with pytest.raises(InputError, match="robot must say what moves"):
        hc.view(hc.HybridTrajectory(run.arcs, run.events))
