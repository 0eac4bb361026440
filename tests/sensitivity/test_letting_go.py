"""Feet whose forces vanish at one instant: their lift-off changes no perturbation to first order.

Derivatives of whole flows are compared with differences of simulations, in which feet slip and let
go one by one, in any order. What is of second order has a kink there: the error of a central
difference is proportional to the step, and one extrapolation takes it away.
"""

from dataclasses import replace

import numpy as np
import pytest
from hybridctl.robots import block, public
from hybridctl.robots.bodies import cuboid_inertia, free_body
from planning import jumper
from sensitivity.lift_offs import TIGHT, LiftOff, find_lift_off

import hybridctl as hc
from hybridctl.base.errors import GrazingError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

FLOOR = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
STEP = 1e-4
AT, END = 0.12, 0.17  # s, of lift-off and of the end of runs


def pair(seed: int) -> LiftOff:
    """A planar quadruped on two feet that stick, with different forces in their cones."""
    rng = np.random.default_rng(seed)
    system = jumper.system()
    start = jumper.standing(height=rng.uniform(0.3, 0.36))
    start[3:7] += rng.uniform(-0.1, 0.1, 4)
    start[1] -= system.dynamics.gaps(start[:7]).min()
    share, weight = rng.uniform(0.35, 0.65), system.robot.weight
    normal = weight * np.array([share, 1.0 - share])
    forces = np.concatenate([normal, rng.uniform(-0.4, 0.4, 2) * normal])
    # Feet of different height are put on the ground by the projection of the start.
    return find_lift_off(system, ("stick", "stick"), start, forces, AT, END)


def single(seed: int) -> LiftOff:
    """A planar monoped whose foot sticks until it lets go."""
    rng = np.random.default_rng(seed)
    system = jumper.system(jumper.MONOPED)
    start = jumper.standing(jumper.MONOPED, height=rng.uniform(0.3, 0.36))
    weight = system.robot.weight
    forces = weight * np.array([1.0, rng.uniform(-0.4, 0.4)])
    return find_lift_off(system, ("stick",), start, forces, AT, END)


def smooth_block(seed: int) -> LiftOff:
    """A block on two corners without friction, under forces and a torque at its centre."""
    rng = np.random.default_rng(seed)
    parameters = block.BlockParameters(friction=0.0, width=rng.uniform(0.1, 0.3))
    start = np.array([0.0, 0.5 * parameters.height, 0.0, rng.uniform(-1.0, 1.0), 0.0, 0.0])
    system = block.system(parameters, actuated=True)
    return find_lift_off(system, ("closed", "closed"), start, rng.uniform(2.0, 7.0, 2), AT, END)


def sliding_block(seed: int) -> LiftOff:
    """A block that slides to the right on two corners, whose friction vanishes with its load."""
    rng = np.random.default_rng(seed)
    mu = rng.uniform(0.1, 0.5)
    parameters = block.BlockParameters(friction=mu, width=rng.uniform(0.1, 0.3))
    start = np.array([0.0, 0.5 * parameters.height, 0.0, rng.uniform(1.0, 3.0), 0.0, 0.0])
    normal = rng.uniform(2.0, 7.0, 2)
    forces = np.concatenate([normal, -mu * normal])
    system = block.system(parameters, actuated=True)
    return find_lift_off(system, ("slip+", "slip+"), start, forces, AT, END)


def ball(seed: int) -> LiftOff:
    """A body in space that turns about a corner that sticks, under a force and a torque."""
    rng = np.random.default_rng(seed)
    urdf = free_body("box", 2.0, cuboid_inertia(2.0, (0.3, 0.2, 0.1)))
    moved = ("root_joint",)
    robot = Robot.from_urdf(urdf, root="floating", actuated=moved)
    tip = Contact("tip", "box", FLOOR, offset=(0.05, 0.02, -0.1), friction=0.6)
    system = contact_system(robot, [tip])
    start = np.zeros(13)
    start[2], start[6], start[10:] = 0.1, 1.0, rng.uniform(-0.5, 0.5, 3)
    forces = 20.0 * np.array([1.0, *rng.uniform(-0.3, 0.3, 2)])
    return find_lift_off(system, ("stick",), start, forces, AT, END)


def solo12(seed: int) -> LiftOff:
    """Solo12 on two feet of a diagonal that stick, with the other two in the air."""
    rng = np.random.default_rng(seed)
    robot = Robot.from_urdf(public.urdf("solo12"), root="floating")
    contacts = public.contacts("solo12")
    system = contact_system(robot, contacts, terms="pinocchio")
    start = public.start("solo12", 0.0)
    names = [contact.name for contact in contacts]
    raised = [i for i, name in enumerate(names) if name[:2] in ("FR", "HL")]
    for joint in (f"{names[i][:2]}_{part}" for i in raised for part in ("HFE", "KFE")):
        start[robot.joints[joint][0]] *= 1.2
    mode = tuple("open" if i in raised else "stick" for i in range(4))
    normal = 0.5 * robot.weight * np.ones(2)
    sides = rng.uniform(-0.3, 0.3, (2, 2)) * normal[:, None]
    return find_lift_off(system, mode, start, np.concatenate([normal, sides.ravel()]), 0.05, 0.06)


def check_flow(lift: LiftOff, ways: int | None = None) -> list[tuple[str, ...]]:
    """Check the derivative of a lift-off, and return the orders of guards of perturbed runs."""
    run = lift.simulate(lift.start)
    (event,) = run.events
    assert all(name.endswith("opens") for name in event.guards)
    assert event.time == pytest.approx(lift.at, abs=1e-7)
    transition = hc.linearize(lift.system, run, **TIGHT).state_transition
    before, after = lift.system.mode(lift.mode).space, run.arcs[-1].space
    orders = []
    for way in lift.directions()[:ways]:
        errors = []
        for h in (STEP, 0.5 * STEP):
            starts = [lift.moved(sign * h * way) for sign in (-1.0, 1.0)]
            runs = [lift.simulate(start, event_window=0.0) for start in starts]
            orders += [tuple(g for e in one.events for g in e.guards) for one in runs]
            ends = after.difference(runs[0].final_state, runs[1].final_state)
            change = before.difference(*starts)
            errors.append((ends - transition @ change) / (2.0 * h))
        error = np.abs(2.0 * errors[1] - errors[0]).max()
        assert error <= 1e-6 * max(1.0, np.abs(transition).max()), (way, errors)
    return orders


@pytest.mark.parametrize("make", [smooth_block, sliding_block, single, pair, ball])
def test_a_flow_through_a_lift_off_has_the_derivative_of_its_arcs(make):
    check_flow(make(0), ways=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 10))
@pytest.mark.parametrize("make", [smooth_block, sliding_block, single, pair])
def test_flows_through_lift_offs(make, seed):
    check_flow(make(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
def test_flows_through_lift_offs_of_bodies_in_space(seed):
    check_flow(ball(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_flows_through_the_lift_off_of_two_feet_of_a_quadruped(seed):
    check_flow(solo12(seed), ways=8)


class PushInFlight:
    """The input of a lift-off until all contacts are open, and then that and a constant push.

    The push lifts the contacts that were closed by some 5 m/s^2.
    """

    def __init__(self, lift: LiftOff, seed: int) -> None:
        self.before = lift.law
        robot, dynamics = lift.system.robot, lift.system.dynamics
        q, push = lift.start[: robot.nq], np.random.default_rng(seed).uniform(-1.0, 1.0, robot.nu)
        closed = list(dynamics.phase(lift.mode).closed)
        lifting = dynamics.gap_jacobian(q)[closed] @ robot.inverse_mass(q) @ robot.actuation
        self.push = push + np.linalg.pinv(lifting) @ (5.0 - lifting @ push)

    def law(self, history):
        """Return the input law after the events so far."""
        if not history.events or set(history.events[-1].mode_after) != {"open"}:
            return self.before
        return lambda t, x: self.before(t, x) + self.push


def check_flow_with_a_push(lift: LiftOff, ways: int | None = None, step: float = STEP) -> set[str]:
    """Check one-sided derivatives where the input jumps with the last contact, and return these.

    What is left is of second order in the step on either side of a kink: one extrapolation takes it
    away. Steps are long enough for events to be more than 1e-9 s apart, to which runs know them.
    """
    lift = replace(lift, law=PushInFlight(lift, 3))
    run = lift.simulate(lift.start)
    (event,) = run.events
    assert np.abs(event.input_after - event.input_before).max() > 0.1
    lin = hc.linearize(lift.system, run, **TIGHT)
    before, after = lift.system.mode(lift.mode).space, run.arcs[-1].space
    last = set()
    for way in lift.directions()[:ways]:
        for sign in (-1.0, 1.0):
            errors = []
            for h in (step, 0.5 * step):
                start = lift.moved(sign * h * way)
                one = lift.simulate(start, event_window=0.0)
                last |= {[g for e in one.events for g in e.guards][-1]}
                change = before.difference(lift.start, start) / h
                end = after.difference(run.final_state, one.final_state) / h
                errors.append(end - lin.derivative(change))
            error = np.abs(2.0 * errors[1] - errors[0]).max()
            scale = max(1.0, np.abs(lin.derivative(lift.directions())).max())
            assert error <= 1e-5 * scale, (way, sign, errors)
    return last


@pytest.mark.parametrize("make", [single, ball, smooth_block])
def test_an_input_that_jumps_with_the_last_contact(make):
    """The time of the lift-off counts, and perturbed contacts that stick slip before it."""
    assert check_flow_with_a_push(make(0), ways=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("make", [single, ball, smooth_block, sliding_block, pair])
def test_inputs_that_jump_with_the_last_contact(make, seed):
    check_flow_with_a_push(make(seed))


@pytest.mark.parametrize("make", [smooth_block, sliding_block])
def test_a_corner_that_only_a_push_lifts_has_no_derivative(make):
    """As the other one leaves it is pressed down: a perturbed block goes on upon it."""
    lift = make(1)
    lift = replace(lift, law=PushInFlight(lift, 3))
    with pytest.raises(GrazingError, match="not crossed transversally"):
        hc.linearize(lift.system, lift.simulate(lift.start), **TIGHT)


@pytest.mark.slow
def test_an_input_that_jumps_with_either_foot_of_two():
    assert check_flow_with_a_push(pair(0)) == {"hind opens", "fore opens"}


@pytest.mark.slow
def test_an_input_that_jumps_with_the_last_foot_of_a_quadruped():
    check_flow_with_a_push(solo12(0), ways=4, step=1e-3)


@pytest.mark.slow
def test_feet_let_go_in_every_order():
    """Of two feet that stick each may be the first, slip before it lets go or not."""
    orders = check_flow(pair(0), ways=6)
    first = {next(name for name in order if name.endswith("opens")) for order in orders}
    assert first == {"hind opens", "fore opens"}
    assert len(set(orders)) > 4


def test_a_corner_that_another_one_presses_down_as_it_leaves_stays():
    """Of the corners of a wide block that are free of load at one instant only one lets go.

    That the other is pressed down shows in the rate of its force without the first one.
    """
    lift = smooth_block(1)
    run = lift.simulate(lift.start)
    (event,) = run.events
    assert event.guards == ("left opens",) or event.guards == ("right opens",)
    assert sorted(event.mode_after) == ["closed", "open"]
    force = run.final_mode.index("closed")
    assert run.outputs("normal_force", np.array([AT + 1e-3, END]))[:, force].min() > 0.0


@pytest.mark.parametrize(("make", "seed"), [(smooth_block, 4), (sliding_block, 1)])
def test_of_contacts_that_open_together_one_that_is_pressed_back_closes_no_other(make, seed):
    """One corner opens by rounding first, then the other one, which presses the first one back.

    The corner that is pressed back closed the other one, too, whose force vanishes: contacts opened
    and closed until rounding ended that, after up to 41 events at one instant.
    """
    lift = make(seed)
    for way in lift.directions():
        for h in (STEP, 0.5 * STEP, -STEP, -0.5 * STEP):
            run = lift.simulate(lift.moved(h * way), event_window=0.0)
            assert len(run.events) <= 3


@pytest.mark.parametrize("early", [1e-9, 1e-8, 1e-7, 1e-5, 1e-2])
@pytest.mark.parametrize("window", [0.0, 1e-8])
def test_feet_that_slip_just_before_they_let_go(window, early):
    """A push beside a force that vanishes makes the foot slip first; nothing else happens."""
    lift = ball(0)
    push = np.zeros(lift.system.robot.nu)
    push[0] = early
    law = replace(lift, law=lambda t, x: lift.law(t, x) + push)
    run = law.simulate(lift.start, event_window=window)
    last = run.events[-1]
    assert last.guards == ("tip opens",)
    assert len(run.events) <= 2
