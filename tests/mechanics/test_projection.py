"""States put back on the constraints of a mode: they obey them, and moved no more than needed."""

import numpy as np
import pytest
from hybridctl.robots import cube, rrr_door
from scipy.linalg import null_space
from scipy.spatial.transform import Rotation

from hybridctl.base.errors import NoContactSolutionError
from hybridctl.mechanics import Contact, ContactDynamics, Plane

STICK, SLIP, OPEN = "stick", "slip", "open"
FACE = ("back-right-bottom", "back-left-bottom", "front-right-bottom", "front-left-bottom")
NEAR_THE_DOOR = np.array([-0.13, 1.37, -0.67, 0.35])  # joints of the rig, rad; gaps 8 and 28 cm


def cube_state(rng, tilt):
    """A cube on its lower face, displaced by about `tilt` m and rad, with a velocity."""
    turn = Rotation.from_rotvec(tilt * rng.normal(size=3)).as_quat()
    return np.concatenate([rng.normal(size=2), [0.0524 + tilt], turn, rng.normal(size=6)])


def on(*closed, mode=STICK):
    return tuple(mode if name in closed else OPEN for name in cube.CORNERS)


@pytest.mark.parametrize("closed", [FACE[:1], FACE[:2], FACE[:3], FACE])
@pytest.mark.parametrize("mode", [STICK, SLIP])
def test_contacts_are_closed_at_least_energy(closed, mode):
    """The rest of the velocity's change would be motion that the constraints allow: there is none.

    Gaps are exact to 1e-11 m, as promised; velocities to rounding of entries near 10.
    """
    rng = np.random.default_rng(len(closed))
    dynamics = ContactDynamics(cube.robot(), cube.contacts())
    key = on(*closed, mode=mode)
    phase = dynamics.phase(key)
    x = cube_state(rng, 1e-2)
    projected = cube.system().mode(key).project(x)
    q, v = projected[:7], projected[7:]
    rows = dynamics.contact_set.jacobian(q)[phase.all_rows[phase.constrained]]
    assert np.abs(dynamics.gaps(q)[list(phase.closed)]).max() <= 1e-11
    assert np.abs(rows @ v).max() <= 1e-12
    free = null_space(rows, rcond=1e-9)
    mass = dynamics.robot.mass_matrix(q)
    assert np.abs(free.T @ mass @ (v - x[7:])).max(initial=0.0) <= 1e-12
    assert abs(np.linalg.norm(q[3:]) - 1.0) <= 1e-14


def test_first_step_is_of_least_energy_too():
    """For gaps of size e the way differs from that of least energy by its curvature, e^2."""
    dynamics = ContactDynamics(cube.robot(), cube.contacts())
    key = on(*FACE[:2])
    phase = dynamics.phase(key)
    left = []
    for size in (1e-3, 1e-4):
        x = cube_state(np.random.default_rng(1), size)
        q = cube.system().mode(key).project(x)[:7]
        way = dynamics.robot.difference(x[:7], q)
        free = null_space(dynamics.gap_jacobian(x[:7])[list(phase.closed)], rcond=1e-9)
        left.append(np.abs(free.T @ dynamics.robot.mass_matrix(x[:7]) @ way).max())
    assert left[1] < 0.02 * left[0]


def test_states_that_obey_stay():
    mode = cube.system().mode(on(*FACE))
    x = mode.project(cube_state(np.random.default_rng(2), 1e-2))
    np.testing.assert_allclose(mode.project(x), x, atol=2e-11)


def test_modes_without_contact_project_nothing():
    assert cube.system().mode((OPEN,) * 8).project is None


def test_a_chain_is_moved_by_its_joints():
    """The door rig with one corner in contact, displaced by a milliradian in every joint."""
    system, dynamics = rrr_door.system(), ContactDynamics(rrr_door.robot(), rrr_door.contacts())
    rng = np.random.default_rng(3)
    key = ("closed", "open")
    n = dynamics.robot.nq
    x = system.mode(key).project(np.concatenate([NEAR_THE_DOOR, np.zeros(n)]))
    moved = x + np.concatenate([1e-3 * rng.normal(size=n), rng.normal(size=n)])
    again = system.mode(key).project(moved)
    assert abs(dynamics.gaps(again[:n])[0]) <= 1e-11
    assert abs(dynamics.gap_rates(again[:n], again[n:])[0]) <= 1e-12
    assert np.abs(again[:n] - moved[:n]).max() < 0.1


def test_contacts_that_cannot_all_be_closed():
    floor, ceiling = Plane((0, 0, 0), (0, 0, 1)), Plane((0, 0, 1), (0, 0, 1))
    contacts = [Contact("low", "cube", floor), Contact("high", "cube", ceiling)]
    dynamics = ContactDynamics(cube.robot(), contacts)
    q = np.array([0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 1.0])
    with pytest.raises(NoContactSolutionError, match="cannot be put"):
        dynamics.project_state(dynamics.phase(("closed", "closed")), q, np.zeros(6))
