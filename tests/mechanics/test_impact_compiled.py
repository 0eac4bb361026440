"""Impacts in C against the same in Python, at random impacts and at the limits of C."""

import os
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from hybridctl.mechanics.contact_law import compiled, solver
from hybridctl.mechanics.contact_law.law import CLOSED, OPEN, STICK
from hybridctl.mechanics.contact_law.linear_equations import KKT
from hybridctl.mechanics.impacts import impact
from hybridctl.mechanics.modes.constraint_equations import build_impact_problem
from hybridctl.mechanics.modes.dynamics import ContactDynamics
from hybridctl.mechanics.modes.phase import ContactPhase
from hybridctl.mechanics.terms.contact_terms import TermValues

pytestmark = pytest.mark.skipif(
    find_spec("hybridctl.mechanics.contact_law._coulomb") is None
    or os.environ.get("HYBRIDCTL_KERNEL") == "off",
    reason="no compiled extension",
)
ROUNDING = 1e-9
"""Relative to the largest value, or to 1: rounding, 1e-16, times the conditions of M and of
Newton's equations, up to 1e6 together in these impacts (the worst difference is 7e-11)."""


class Robot(SimpleNamespace):
    """What the law of an impact takes of `ContactDynamics`, without a robot."""

    is_rebounding = ContactDynamics.is_rebounding

    def phase(self, modes):
        """Return the phase of modes of all contacts."""
        c = len(modes)
        bodies = [(0, i + 1) for i in range(c)]
        friction = self.friction
        return ContactPhase(self.tangents, friction, friction, modes, bodies, np.zeros(c))


def make_impacts(count, seed):
    """Yield a robot, the contacts that hit, its terms and its velocity.

    One to four of up to six contacts hit: with two tangents, one or none (as joints' stops), with
    restitution or without, above and below its threshold, redundant or not.
    """
    rng = np.random.default_rng(seed)
    for number in range(count):
        c, nv = int(rng.integers(1, 7)), int(rng.integers(2, 15))
        sizes = rng.integers(0, 3, size=c) if number % 3 == 0 else np.full(c, 2)
        ends = np.cumsum([c, *sizes])
        tangents = [np.arange(a, b) for a, b in pairwise(ends)]
        owner = np.concatenate((np.arange(c), np.repeat(np.arange(c), sizes)))
        jacobian = rng.normal(size=(ends[-1], nv))
        jacobian[c:] *= rng.uniform(0.1, 1.0)
        if number % 4 == 0 and c > 1:
            jacobian[1] = jacobian[0]  # two contacts in one place
        root = rng.normal(size=(nv, nv)) + 2.0 * np.eye(nv)
        velocity = rng.normal(size=nv)
        rates = jacobian @ velocity
        robot = Robot(
            contacts=[SimpleNamespace(rough=rng.random() < 0.1) for _ in range(c)],
            contact_set=SimpleNamespace(owner=owner, tangents=tangents),
            tangents=tangents,
            friction=rng.uniform(0.0, 0.9, size=c),
            row_restitution=(rng.uniform(0.0, 0.9) * (rng.random(c) < 0.7))[owner],
            row_threshold=np.where(rng.random(c) < 0.5, 0.0, rng.uniform(0.0, 2.0, size=c))[owner],
            pressed_contacts=(),
            expected_modes=[],
            on_several="raise",
        )
        at = tuple(sorted(rng.permutation(c)[: rng.integers(1, min(c, 4) + 1)].tolist()))
        drive = np.zeros(nv)
        terms = TermValues(root @ root.T, drive, jacobian, np.zeros(len(owner)), np.zeros(c), rates)
        yield robot, at, terms, velocity


def solve_in_c(robot, at, terms, v, restitution=None):
    """Return an impact by C, None where it leaves the impact to Python."""
    phase = robot.phase(impact._list_touching_states(robot, at))
    return compiled.solve_impact_compiled(
        (terms.mass, terms.jacobian, terms.rates, v),
        (
            robot.row_restitution if restitution is None else restitution,
            robot.row_threshold,
            phase.friction.kinetic,
        ),
        len(robot.contacts),
        robot.contact_set.owner,
        phase.all_rows,
        phase.tangents,
        solver.MAX_ENUMERATED_SETS,
    )


def solve_both(robot, at, terms, v, plastic):
    """Return an impact by C and by Python alone; None twice where C leaves it to Python."""
    phase = robot.phase(impact._list_touching_states(robot, at))
    restitution = robot.row_restitution * (0.0 if plastic else 1.0)
    found = solve_in_c(robot, at, terms, v, restitution)
    if found is None:
        return None, None
    return found, impact._solve_in_python(robot, phase, v, terms, restitution, None)


def is_law_settled(robot, at, terms, v):
    """Return whether C settles the law of an impact alone, as Python makes its problem."""
    phase = robot.phase(impact._list_touching_states(robot, at))
    rates = terms.rates + robot.row_restitution * robot.is_rebounding(terms.rates) * terms.rates
    kkt = KKT(terms.mass, terms.jacobian[phase.all_rows])
    problem = build_impact_problem(phase, kkt, rates[phase.all_rows], v)
    return compiled.search_compiled(problem, solver.MAX_ENUMERATED_SETS) is not None


def assert_close(own, other, scale=None):
    """Raise an error where arrays differ by more than rounding."""
    scale = np.abs(other).max(initial=1.0) if scale is None else scale
    np.testing.assert_allclose(own, other, rtol=0.0, atol=ROUNDING * scale)


def test_impacts_are_those_of_python(monkeypatch):
    # The reference must not come from C as well.
    monkeypatch.setattr(solver, "search_compiled", lambda *_: None)
    count, seen, settled = 3000, Counter(), 0
    for number, (robot, at, terms, v) in enumerate(make_impacts(count, seed=5)):
        found, expected = solve_both(robot, at, terms, v, plastic=number % 5 == 0)
        if found is None:
            seen["left to Python"] += 1
            continue
        settled += 1
        assert (found.states, found.border) == (expected.states, expected.border)
        assert found.uniqueness == expected.uniqueness
        np.testing.assert_array_equal(found.restitution, expected.restitution)
        assert_close(found.velocity_after, expected.velocity_after)
        assert_close(found.rates_after, expected.rates_after)
        assert_close(found.impulses, expected.impulses)
        assert_close(found.friction_impulses, expected.friction_impulses)
        energy = 0.5 * v @ terms.mass @ v
        assert_close(found.energy_loss, expected.energy_loss, scale=energy)
        seen.update(found.states)
        seen["below threshold"] += bool((found.restitution < robot.row_restitution).any())
        seen["rebound"] += bool(found.restitution.any())
        seen[f"{len(at)} contacts"] += 1
        seen[found.uniqueness] += 1
    assert settled > 0.5 * count  # as of the law alone, see test_coulomb_compiled
    kinds = (OPEN, CLOSED, STICK, "slip", "slip+", "slip-", "rebound", "below threshold", "proven")
    for kind in (*kinds, "left to Python", *(f"{k} contacts" for k in range(1, 5))):
        assert seen[kind] > 20, kind


def test_c_leaves_no_more_to_python_than_of_the_law_alone():
    others = 0
    for robot, at, terms, v in make_impacts(1000, seed=8):
        is_settled = solve_in_c(robot, at, terms, v) is not None
        others += is_settled != is_law_settled(robot, at, terms, v)
    # Rounding decides where redundant contacts take Newton's method to a boundary, as it does for
    # the law alone if its data change by their rounding.
    assert others <= 5


def test_a_whole_result_is_the_same_without_the_extension(monkeypatch):
    """Whole results, with the modes after the impact, also where contacts are not to rebound."""
    impacts = [case for case in make_impacts(150, seed=6) if len(case[1]) < 3]

    def solve_all():
        for number, (robot, at, terms, v) in enumerate(impacts):
            plastic = frozenset(at[:1]) if number % 2 else False
            yield impact.solve_impact(
                robot, v, at, terms, plastic=plastic, on_several="dissipation"
            )

    with_extension = list(solve_all())
    monkeypatch.setattr(compiled, "_EXTENSION", None)
    for own, other in zip(with_extension, solve_all(), strict=True):
        assert (own.states, own.modes, own.border) == (other.states, other.modes, other.border)
        assert own.uniqueness == other.uniqueness
        assert_close(own.velocity_after, other.velocity_after)
        assert_close(own.impulses, other.impulses)


def test_what_c_does_not_cover_is_left_to_python():
    robot, at, terms, v = next(case for case in make_impacts(50, seed=7) if solve_in_c(*case))
    nv, c = len(v), len(robot.contacts)
    for other in (
        terms._replace(mass=-terms.mass),
        terms._replace(mass=np.full_like(terms.mass, np.nan)),
        terms._replace(mass=terms.mass[:-1]),
        terms._replace(jacobian=np.asfortranarray(terms.jacobian)),
        terms._replace(jacobian=terms.jacobian.astype(np.float32)),
        terms._replace(jacobian=np.full_like(terms.jacobian, np.inf)),
        terms._replace(rates=np.full_like(terms.rates, np.nan)),
        terms._replace(rates=terms.rates[:-1]),
    ):
        assert solve_in_c(robot, at, other, v) is None
    # 49 velocities, of which the robot has the first ones.
    large = np.eye(49)
    large[:nv, :nv] = terms.mass
    wide = np.hstack((terms.jacobian, np.zeros((len(terms.jacobian), 49 - nv))))
    longer = np.append(v, np.zeros(49 - nv))
    other = terms._replace(mass=large, jacobian=wide)
    assert solve_in_c(robot, at, other, longer) is None
    fits = terms._replace(mass=large[:48, :48].copy(), jacobian=wide[:, :48].copy())
    found = solve_in_c(robot, at, fits, longer[:48])
    assert_close(found.velocity_after[:nv], solve_in_c(robot, at, terms, v).velocity_after)

    phase = robot.phase(impact._list_touching_states(robot, at))
    motion = (terms.mass, terms.jacobian, terms.rates, v)
    laws = (robot.row_restitution, robot.row_threshold, phase.friction.kinetic)
    owner = robot.contact_set.owner
    for contacts, owners, rows in (
        (c + 1, owner, phase.all_rows),
        (c, owner + len(owner), phase.all_rows),
        (c, owner.astype(np.int32), phase.all_rows),
        (c, owner, phase.all_rows + len(owner)),
        (c, owner, phase.all_rows[:-1]),
        (c, owner, phase.all_rows - len(owner)),
    ):
        found = compiled.solve_impact_compiled(
            motion, laws, contacts, owners, rows, phase.tangents, 64
        )
        assert found is None
