"""The whole-body programme: its forces, its dynamics, what it refuses; the trot's clock."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import public

from hybridctl.base.errors import InputError
from hybridctl.control.trot import Trot, TrotController, interpolate_swing
from hybridctl.control.whole_body import WholeBodyQP, WholeBodyWeights, make_rotation
from hybridctl.mechanics import Contact, Plane, Robot, Sphere

SHARE = 0.8
STANDING = np.ones(4, dtype=bool)
DIAGONAL = np.array([True, False, False, True])


@pytest.fixture(scope="module", params=["solo12", "go2"])
def programme(request):
    robot = public.robot_with_motors(request.param)
    radius = 0.02 if request.param == "go2" else 0.0
    feet = [
        Contact(c.name, c.frame, c.surface, friction=c.friction, radius=radius)
        for c in public.contacts(request.param)
    ]
    return WholeBodyQP(robot, feet, share=SHARE)


def stand(programme):
    names = [joint for joint, places in programme.robot.joints.items() if places is not None]
    model = public.MODELS["solo12" if "FL_HAA" in names else "go2"]
    return programme.robot.posture(model.posture)


def draw(programme, seed):
    """A state that is tilted and moves."""
    rng, robot = np.random.default_rng(seed), programme.robot
    return (
        robot.integrate(stand(programme), 0.2 * rng.standard_normal(robot.nv)),
        0.5 * rng.standard_normal(robot.nv),
        3.0 * rng.standard_normal(6),
        3.0 * rng.standard_normal((4, 3)),
    )


def residual(programme, q, v, found):
    """What the dynamics lack, with forces at the points that touch, in N and N m."""
    robot = programme.robot
    feet = programme.find_feet(q, v)
    pushed = np.einsum("cij,ci->j", feet.force_jacobians, found.forces)
    inertial = robot.mass_matrix(q) @ found.acceleration + robot.bias(q, v)
    return inertial - robot.actuation @ found.u - pushed


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("support", [STANDING, DIAGONAL])
def test_solutions_obey_dynamics_cones_and_motors(programme, seed, support):
    """Residuals are those of the solver's tolerance, 1e-6 (1 + the size of its terms)."""
    q, v, base, feet = draw(programme, seed)
    found = programme.solve(q, v, base, feet, support)
    assert found.is_solved
    scale = 1e-6 * (1.0 + 10.0 * programme.robot.weight)
    np.testing.assert_allclose(residual(programme, q, v, found), 0.0, atol=scale)
    normal, tangent = found.forces[:, 2], np.hypot(*found.forces[:, :2].T)
    assert (normal >= -scale).all()
    assert (tangent <= SHARE * public.MODELS["go2"].friction * normal + scale).all()
    assert (np.abs(found.u) <= programme.limits).all()
    assert not found.forces[~support].any()


def test_a_small_cone_and_weak_motors_bind(programme):
    """Far targets are met as far as cones and motors allow: some limits are reached."""
    q = stand(programme)
    weak = WholeBodyQP(programme.robot, programme.contacts, limits=np.full(12, 5.0), share=SHARE)
    base = np.array([50.0, 0.0, 20.0, 0.0, 0.0, 0.0])
    found = weak.solve(q, np.zeros(18), base, np.zeros((4, 3)), STANDING)
    assert np.abs(found.u).max() <= 5.0
    mu = SHARE * programme.contacts[0].friction
    used = np.abs(found.forces[:, :2]).max(axis=1) / (mu / np.sqrt(2.0) * found.forces[:, 2])
    assert max(used.max(), np.abs(found.u).max() / 5.0) == pytest.approx(1.0, abs=1e-3)


def test_a_robot_that_stands_is_borne_by_forces_equal_to_its_weight(programme):
    q = stand(programme)
    found = programme.solve(q, np.zeros(18), np.zeros(6), np.zeros((4, 3)), STANDING)
    weight = programme.robot.weight
    np.testing.assert_allclose(found.acceleration, 0.0, atol=0.05)  # regularised by w_f
    np.testing.assert_allclose(found.forces.sum(axis=0), [0.0, 0.0, weight], atol=1e-3 * weight)
    held = programme.robot.bias(q, np.zeros(18))[6:]
    feet = programme.find_feet(q, np.zeros(18))
    borne = np.einsum("cij,ci->j", feet.force_jacobians, found.forces)[6:]
    np.testing.assert_allclose(found.u, held - borne, atol=1e-2 * weight)


def test_momentum_changes_by_forces_and_weight(programme):
    """The mass times the acceleration of its center is the sum of forces, by differences."""
    robot = programme.robot
    q, v, base, feet = draw(programme, 7)
    found = programme.solve(q, v, base, feet, STANDING)
    h = 1e-6
    ends = [
        robot.momentum(robot.integrate(q, s * h * v), v + s * h * found.acceleration)[:3]
        for s in (1.0, -1.0)
    ]
    rate = (ends[0] - ends[1]) / (2.0 * h)
    expected = found.forces.sum(axis=0) + robot.mass * np.array([0.0, 0.0, -9.81])
    # Differences of h = 1e-6 lose 1e-16 / 1e-6 of a momentum of some kg m/s.
    np.testing.assert_allclose(rate, expected, atol=1e-4 * robot.weight)


def test_feet_move_and_accelerate_as_differences_say(programme):
    robot = programme.robot
    q, v, _, _ = draw(programme, 3)
    a = np.random.default_rng(4).standard_normal(robot.nv)
    feet, h = programme.find_feet(q, v), 1e-5
    after, before = (
        programme.find_feet(robot.integrate(q, s * h * v + 0.5 * h**2 * a), v + s * h * a)
        for s in (1.0, -1.0)
    )
    rates = (after.positions - before.positions) / (2.0 * h)
    np.testing.assert_allclose(feet.velocities, rates, atol=1e-7)
    np.testing.assert_allclose(feet.velocities, feet.jacobians @ v, atol=1e-12)
    changes = (after.velocities - before.velocities) / (2.0 * h)
    np.testing.assert_allclose(feet.jacobians @ a + feet.drifts, changes, atol=1e-6)


def test_targets_that_can_be_met_are_met_in_world_axes(programme):
    """The base of a robot on four feet rises and turns as it is told to, tilted and moving."""
    robot = programme.robot
    q, v, _, _ = draw(programme, 1)
    exact = WholeBodyQP(
        robot,
        programme.contacts,
        WholeBodyWeights(turn=1.0, support=0.0, swing=0.0, force=1e-9),
        limits=np.full(12, 1e4),
    )
    base = np.array([0.3, -0.2, 0.5, 0.4, -0.3, 0.2])
    found = exact.solve(q, v, base, np.zeros((4, 3)), STANDING)
    turned, h = make_rotation(q[3:7]), 1e-6
    after, before = (
        (
            make_rotation(robot.integrate(q, s * h * v)[3:7]),
            v + s * h * found.acceleration,
        )
        for s in (1.0, -1.0)
    )
    linear = (after[0] @ after[1][:3] - before[0] @ before[1][:3]) / (2.0 * h)
    np.testing.assert_allclose(linear, base[:3], atol=1e-3)
    np.testing.assert_allclose(turned @ found.acceleration[3:6], base[3:], atol=1e-3)


def test_a_robot_in_the_air_falls(programme):
    """Without support the center of mass falls freely, whatever is asked for."""
    robot, q, v = programme.robot, stand(programme), np.zeros(18)
    found = programme.solve(q, v, np.ones(6), np.zeros((4, 3)), ~STANDING)
    h = 1e-6
    rate = robot.momentum(q, h * found.acceleration)[:3] / h
    np.testing.assert_allclose(rate, [0.0, 0.0, -robot.weight], atol=1e-4 * robot.weight)


def test_robots_that_do_not_fit_are_refused(programme):
    robot = programme.robot
    with pytest.raises(InputError, match="floating base"):
        WholeBodyQP(Robot.from_urdf(public.urdf("solo12"), root="fixed"), programme.contacts)
    limp = public.limp("solo12")
    with pytest.raises(InputError, match="motor at each joint"):
        WholeBodyQP(limp, public.contacts("solo12"))
    foot = programme.contacts[0]
    ball = Contact("ball", foot.frame, Sphere((0.0, 0.0, -1.0), 1.0))
    with pytest.raises(InputError, match="Plane of the world"):
        WholeBodyQP(robot, [ball])
    with pytest.raises(InputError, match="force must be greater"):
        WholeBodyWeights(force=0.0)


def test_the_clock_has_all_feet_down_between_the_pairs():
    trot = Trot(0.4, 0.3, stance=0.6)
    first, both, second = (trot.find_swing(t) for t in (0.08, 0.18, 0.28))
    np.testing.assert_allclose(first, [0.5, np.nan, np.nan, 0.5])
    assert np.isnan(both).all()
    np.testing.assert_allclose(second, [np.nan, 0.5, 0.5, np.nan])
    for wrong in ({"stance": 0.5}, {"pairs": ((0, 1), (1, 2))}, {"period": 0.0}):
        with pytest.raises(InputError):
            Trot(**{"period": 0.4, "height": 0.3, **wrong})


@pytest.mark.parametrize(
    ("trigger", "early", "late"), [("clock", 0, 1), ("touch", 1, 1), ("sure", 1, 0)]
)
def test_touches_add_feet_early_and_hold_them_back_late(programme, trigger, early, late):
    """Foot 0 touches in the second half of its swing; foot 3 not at all."""
    q = stand(programme)
    trot = Trot(0.4, -programme.find_feet(q, np.zeros(18)).positions[:, 2].mean())
    law = TrotController(programme, trot, q, trigger)
    state = np.concatenate([q, np.zeros(18)])
    sensed = {"contact": np.array([True, True, True, False])}
    lasts = 0.45 * trot.period
    law.step(0.0, state, sensed)  # has only just let go
    assert law.support.tolist() == [False, True, True, False]
    law.step(0.7 * lasts, state, sensed)
    assert law.support.tolist() == [bool(early), True, True, False]
    law.step(1.05 * lasts, state, sensed)
    assert law.support.tolist() == [True, True, True, bool(late)]
    assert law.failures == 0


def test_a_foot_that_bounces_swings_on_and_one_that_never_touches_bears_nothing(programme):
    """Foot 0 touches early and is off again; it never touches after that."""
    law, trot, state = _make_trot(programme, "touch")
    lasts, standing = 0.45 * trot.period, 0.55 * trot.period
    off = {"contact": np.array([False, True, True, True])}
    law.step(0.0, state, {"contact": STANDING})
    for time, sensed, bears in (
        (0.7 * lasts, {"contact": STANDING}, True),
        (0.7 * lasts + 0.01, off, True),
        (0.7 * lasts + 0.03, off, False),
        (lasts + 0.2 * standing, off, True),
        (lasts + 0.6 * standing, off, False),
        (lasts + 0.7 * standing, {"contact": STANDING}, True),
    ):
        law.step(time, state, sensed)
        assert law.support[0] == bears, time


def test_the_heading_is_not_taken_back_far(programme):
    """A robot that was turned by a radian is asked for no more than a turn of 0.3 rad."""
    law, _, state = _make_trot(programme, "clock")
    law.step(0.0, state)
    turned = state.copy()
    turned[3:7] = 0.0, 0.0, np.sin(0.5), np.cos(0.5)
    target = law._find_base_target(
        turned[:19], turned[19:], make_rotation(turned[3:7]), *law._update_reference(
            0.002, turned[:19], make_rotation(turned[3:7])
        )
    )  # fmt: skip
    assert target[5] == pytest.approx(-law.trot.turn_gain[0] * np.sin(0.3), rel=1e-9)


def test_a_gap_of_samples_longer_than_a_stance_hides_no_lift_off(programme):
    """A foot swings from where it stood last, also if no sample has seen it stand."""
    law, trot, state = _make_trot(programme, "clock")
    law.step(0.1 * trot.period, state)
    law.step(0.3 * trot.period, state)
    moved = state.copy()
    moved[0] += 0.2
    law.step(1.3 * trot.period, moved)
    places = programme.find_feet(moved[:19], moved[19:]).positions
    np.testing.assert_allclose(law._lifted[[0, 3]], places[[0, 3]])


def test_where_the_programme_fails_joints_are_drawn_to_the_posture(programme, monkeypatch):
    law, trot, state = _make_trot(programme, "clock")
    found = law.step(0.0, state)
    assert (law.status, law.failures) == ("ok", 0)
    solve = programme.solve
    monkeypatch.setattr(programme, "solve", lambda *given: replace(solve(*given), is_solved=False))
    state[7], state[19 + 6] = state[7] + 0.01, 0.3
    np.testing.assert_array_equal(law.step(0.005, state), found)
    assert law.status == "held"
    u = law.step(0.02, state)
    assert (law.status, law.failures) == ("posture", 2)
    stiffness = programme.robot.weight * trot.height
    assert u[0] == pytest.approx(-stiffness * (0.01 + 0.05 * 0.3), rel=1e-9)
    np.testing.assert_allclose(u[1:], 0.0, atol=1e-12)
    state[7] += 1e4
    assert law.step(0.03, state)[0] == -programme.limits[0]
    monkeypatch.undo()
    state[7] -= 1e4
    law.step(0.04, state)
    assert law.status == "ok"
    law.reset()
    assert (law.status, law.failures) == ("ok", 0)


def _make_trot(programme, trigger):
    """A trot's law with its timing, and the state in which the robot stands."""
    q = stand(programme)
    trot = Trot(0.4, -programme.find_feet(q, np.zeros(18)).positions[:, 2].mean())
    return TrotController(programme, trot, q, trigger), trot, np.concatenate([q, np.zeros(18)])


def test_bad_samples_of_a_trot_are_refused_and_leave_no_trace(programme):
    q = stand(programme)
    law = TrotController(programme, Trot(0.4, 0.3), q, "touch")
    state = np.concatenate([q, np.zeros(18)])
    sensed = {"contact": STANDING}
    torques = law.step(0.1, state, sensed)
    other = TrotController(programme, Trot(0.4, 0.3), q, "touch")
    np.testing.assert_array_equal(other.step(0.1, state, sensed), torques)
    for arguments, named in (
        ((0.05, state, sensed), "time must not go back"),
        ((math.nan, state, sensed), "time"),
        ((0.2, np.full_like(state, np.nan), sensed), "state"),
        ((0.2, state[:-1], sensed), "state"),
        ((0.2, state, None), "sensed must have 'contact'"),
        ((0.2, state, {"contact": True}), "a flag for each of 4 feet"),
    ):
        with pytest.raises(InputError, match=named):
            law.step(*arguments)
    np.testing.assert_array_equal(law.step(0.12, state, sensed), other.step(0.12, state, sensed))
    law.reset()
    law.step(0.0, state, sensed)


def test_a_trot_needs_level_ground(programme):
    raised = [
        Contact(c.name, c.frame, Plane((0, 0, 0.1), (0, 0, 1)), friction=c.friction)
        for c in programme.contacts
    ]
    law = WholeBodyQP(programme.robot, raised)
    with pytest.raises(InputError, match="level and at height 0"):
        TrotController(law, Trot(0.4, 0.3), stand(programme))


def test_targets_of_another_size_are_refused(programme):
    q, v = stand(programme), np.zeros(18)
    good = {"base": np.zeros(6), "feet": np.zeros((4, 3)), "support": STANDING}
    for name, wrong in (
        ("base", np.zeros(3)),
        ("feet", np.zeros(3)),
        ("support", STANDING[:3]),
        ("base", np.full(6, np.nan)),
    ):
        with pytest.raises(InputError, match=name):
            programme.solve(q, v, **{**good, name: wrong})
    with pytest.raises(InputError, match="limits must not be negative"):
        WholeBodyQP(programme.robot, programme.contacts, limits=np.full(12, -1.0))
    for wrong in ({"base_gain": (-1.0, 1.0)}, {"support_damping": -1.0}, {"swing_gain": (1.0,)}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Trot(0.4, 0.3, **wrong)


def test_a_swing_rests_at_its_ends_and_has_its_clearance_in_the_middle():
    """Velocity and acceleration are those of the position, by central differences.

    With steps of 1e-4 of the swing these are off by 1e-8 of the third derivatives, some 1e3 m/s^3.
    """
    start, end, lasts = np.array([0.1, -0.2, 0.02]), np.array([0.2, -0.1, 0.0]), 0.18
    for part, place in ((0.0, start), (1.0, end)):
        at, rate, _ = interpolate_swing(part, lasts, start, end, 0.05)
        np.testing.assert_allclose(at, place, atol=1e-15)
        np.testing.assert_allclose(rate, 0.0, atol=1e-15)
    middle, _, _ = interpolate_swing(0.5, lasts, start, end, 0.05)
    np.testing.assert_allclose(middle, [0.15, -0.15, 0.01 + 0.05], atol=1e-15)
    for part in (0.2, 0.5, 0.9):
        before, now, after = (
            interpolate_swing(part + h, lasts, start, end, 0.05) for h in (-1e-4, 0.0, 1e-4)
        )
        for value, slope in ((0, 1), (1, 2)):
            difference = (after[value] - before[value]) / (2e-4 * lasts)
            np.testing.assert_allclose(difference, now[slope], atol=1e-5)
