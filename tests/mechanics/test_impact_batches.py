"""Impacts that are differentiated together, against differences of each impact and each one alone.

Also with tangential restitution, and with impacts whose equations do not determine a derivative.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import cube

from hybridctl.mechanics import ContactDynamics
from hybridctl.mechanics.impacts.impact import impact
from hybridctl.mechanics.impacts.impact_batches import ImpactBatch
from hybridctl.mechanics.impacts.impact_derivatives import differentiate_impact
from hybridctl.mechanics.modes.tolerances import STANDSTILL

NU = 3
STEP = 1e-6
DIFFERENCES = 1e-6
"""Relative to the largest entry. Newton's method ends at rounding, 1e-15 of speeds of some 10 m/s,
which a step of 1e-6 makes 1e-8; third derivatives of a slip of 0.03 m/s leave (1e-6 / 0.03)^2."""
ROUNDING = 1e-10
"""Relative to the largest entry: 1e-16 times the condition of the equations, below 1e5 here."""


def make_dynamics(tangential):
    """A cube whose corners have friction, restitution and tangential restitution."""
    made = cube.CubeParameters(friction=0.3, restitution=0.4)
    contacts = [replace(c, tangential_restitution=tangential) for c in cube.contacts(made)]
    return ContactDynamics(cube.robot(made, actuated=True), contacts)


def draw_impacts(dynamics, count, closed, level=False):
    """Return random impacts by the pattern of their contacts: (q, v, result)."""
    rng, found = np.random.default_rng(3), defaultdict(list)
    for _ in range(count):
        turn = np.r_[0.0, 0.0, rng.normal()] if level else rng.normal(size=3)
        q = dynamics.robot.integrate(dynamics.robot.neutral(), np.r_[rng.normal(size=3), turn])
        v = rng.normal(size=6) * [1.0, 1.0, 1.0, 5.0, 5.0, 5.0]
        normals = dynamics.gap_jacobian(q)[list(closed)]
        if (normals @ v).max() >= -0.1:
            continue
        result = impact(dynamics, q, v, closed)
        if not result.border:
            found[dynamics.phase(result.states).pattern].append((q, v, result))
    return list(found.values())


def make_batch(dynamics, group):
    """Return the batch of a group of impacts."""
    q, v, results = zip(*group, strict=True)
    return ImpactBatch(dynamics, np.array(q), np.array(v), results, NU)


def difference(dynamics, q, v, closed, direction):
    """Return the central difference of v+ along a direction (12,) of (q, v)."""
    ends = []
    for h in (STEP, -STEP):
        moved = dynamics.robot.integrate(q, h * direction[:6])
        ends.append(impact(dynamics, moved, v + h * direction[6:], closed).velocity_after)
    return (ends[0] - ends[1]) / (2.0 * STEP)


@pytest.mark.parametrize("tangential", [0.0, 0.6])
@pytest.mark.parametrize("closed", [(0,), (0, 1)])
def test_derivatives_are_those_of_each_impact(tangential, closed):
    dynamics = make_dynamics(tangential)
    groups = draw_impacts(dynamics, 60, closed)
    slides = 0
    for group in groups:
        batch = make_batch(dynamics, group)
        jacobian = batch.jacobian
        assert batch.is_sound.all()
        slides += len(group) * bool(batch.phase.spatial)
        assert not jacobian.time.any()
        assert jacobian.input.shape == (len(group), 12, NU)
        assert not jacobian.input.any()
        for k, (q, v, result) in enumerate(group):
            np.testing.assert_array_equal(jacobian.state[k, :6], np.eye(6, 12))
            alone = differentiate_impact(dynamics, q, v, result).velocity_z
            size = np.abs(alone).max()
            np.testing.assert_allclose(jacobian.state[k, 6:], alone, rtol=0.0, atol=ROUNDING * size)
            direction = np.random.default_rng(k).normal(size=12)
            np.testing.assert_allclose(
                jacobian.state[k, 6:] @ direction,
                difference(dynamics, q, v, closed, direction),
                rtol=0.0,
                atol=DIFFERENCES * size,
            )
    assert len(groups) >= 2
    assert slides >= 5


def test_a_slip_that_all_but_stands_still_is_left_to_each_impact_alone():
    """Its direction is not known; the derivatives of the others do not change."""
    dynamics = make_dynamics(0.0)
    group = next(g for g in draw_impacts(dynamics, 60, (0,)) if "slip" in str(g[0][2].states))
    q, v, result = group[1]
    rows = result.terms.jacobian
    (contact,) = np.flatnonzero(result.impulses)
    tangents = dynamics.phase(result.states).all_rows[1:]
    slip = rows[tangents] @ result.velocity_after
    slower = slip * (1.0 - 0.5 * STANDSTILL / np.linalg.norm(slip))
    after = result.velocity_after - np.linalg.pinv(rows[tangents]) @ slower
    assert contact == 0
    still = [group[0], (q, v, replace(result, velocity_after=after)), *group[2:]]
    batch, whole = make_batch(dynamics, still), make_batch(dynamics, group)
    assert batch.is_sound.tolist() == [True, False, *[True] * (len(group) - 2)]
    kept = batch.is_sound
    np.testing.assert_array_equal(batch.jacobian.state[kept], whole.jacobian.state[kept])


def test_redundant_contacts_are_left_to_each_impact_alone():
    """Four corners of a face have twelve rows on six velocities."""
    dynamics = make_dynamics(0.0)
    bottom = tuple(k for k, c in enumerate(dynamics.contacts) if c.offset[2] < 0.0)
    (group, *_) = draw_impacts(dynamics, 400, bottom, level=True)
    batch = make_batch(dynamics, group)
    assert len(batch.phase.closed) >= 3
    assert not batch.is_sound.any()
    assert np.isfinite(batch.jacobian.state).all()
