"""How far sliding contacts are from jamming: by determinants, singular values, differences."""

import numpy as np
import pytest
from hybridctl.robots import public
from scipy.linalg import null_space, svdvals

from hybridctl.mechanics import Robot, contact_system
from hybridctl.mechanics.modes import jamming
from hybridctl.mechanics.modes.tolerances import JAMMED

CASES = [
    ("solo12", ("slip", "stick", "stick", "stick")),
    ("solo12", ("slip", "slip", "stick", "open")),
    ("solo12", ("slip", "slip", "slip", "slip")),
    ("talos", ("slip",) * 8),  # corners of two soles, which share loads
    ("talos", (*("slip",) * 4, *("stick",) * 4)),
]
# Exact ways on numbers of unit size: of four feet G has a regularity near 1e-4, and with eight
# corners the singular values that are not zero lie within 1e-7 of the largest.
AGREE = {"solo12": 1e-10, "talos": 1e-8}
STEP = 1e-6


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} {' '.join(case[1])}")
def sliding(request):
    """Terms, phase of a mode and a state in which its contacts slide."""
    name, modes = request.param
    robot = Robot.from_urdf(public.urdf(name), root="floating")
    system = contact_system(robot, public.contacts(name), terms="pinocchio", joint_friction=False)
    q = system.mode(("stick",) * len(modes)).project(public.start(name, height=0.0))[: robot.nq]
    mode, rows = system.mode(modes), system.dynamics.contact_set.jacobian(q)
    held = null_space(rows[mode.phase.constrained_rows], rcond=1e-10)
    v = held @ np.random.default_rng(0).normal(size=held.shape[1])
    return name, system, mode, np.concatenate((q, v))


def test_the_ratio_is_that_of_determinants_or_of_as_many_singular_values(sliding):
    name, _, mode, x = sliding
    now = mode.calc(0.0, x, np.zeros(mode.nu)).contact.solution
    held = now.rows.jacobian[now.phase.constrained]
    g = held @ np.linalg.solve(now.rows.mass, held.T)
    rank = np.linalg.matrix_rank(g, 1e-9)
    assert (rank < len(g)) == (name == "talos")
    found, whole = svdvals(now.kkt.delassus)[:rank], svdvals(g)[:rank]
    assert abs(found.prod() / whole.prod() - 1.0) > 0.01
    ratio = jamming.compute_response_ratio(now)
    assert ratio == pytest.approx(np.prod(found / whole), rel=AGREE[name])


def test_the_derivative_of_the_ratio_is_that_of_differences(sliding):
    """Central ones, along a random direction: STEP^2, and rounding over STEP times their length."""
    _, system, mode, x = sliding
    u = np.zeros(mode.nu)
    point = mode.calc(0.0, x, u)
    rates_z = point.derivatives.rates_z[:, : len(x) - 1]
    terms, now = system.dynamics.terms, point.contact.solution
    found = jamming.differentiate_response_ratio(terms, point.q, now, rates_z)
    rng = np.random.default_rng(1)
    for way in rng.normal(size=(3, len(found))):
        low, high = (
            jamming.compute_response_ratio(
                mode.calc(0.0, mode.space.integrate(x, step * way), u).solution
            )
            for step in (-STEP, STEP)
        )
        size = np.abs(found) @ np.abs(way)
        assert found @ way == pytest.approx((high - low) / (2.0 * STEP), abs=1e-6 * size)


def test_contacts_that_are_held_at_a_standstill_do_not_jam():
    """All are to slide and none does: the ratio is 1, whatever the state and the input."""
    robot = Robot.from_urdf(public.urdf("talos"), root="floating")
    system = contact_system(robot, public.contacts("talos"), joint_friction=False)
    mode, q = system.mode(("slip",) * 8), public.start("talos", height=0.0)[: robot.nq]
    point = mode.calc(0.0, np.concatenate((q, np.zeros(robot.nv))), np.zeros(mode.nu))
    assert all(point.contact.is_holding(i) for i in range(8))
    jams = mode.guard_names.index("sliding jams")
    assert point.guards[jams] == pytest.approx(1.0 - JAMMED, abs=1e-9)
    jacobian = mode.calc_diff(point).guards
    assert not jacobian.state[jams].any()
    assert not jacobian.input[jams].any()
