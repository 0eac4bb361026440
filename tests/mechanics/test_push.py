"""Forces on bodies for a while: momentum, closed forms, a second way, differences, refusals."""

import pickle

import numpy as np
import pytest
from hybridctl.robots import cube

import hybridctl as hc
from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.hybrid.laws import DifferentiableLaw
from hybridctl.mechanics import Contact, Plane, Robot, Wrench, contact_system
from hybridctl.mechanics.terms.contact_terms import Terms, WrappedTerms
from mechanics.models import PAIR

TABLE = Plane((0, 0, 0), (0, 0, 1))
FLOW = 1e-8  # of states after some tenths of a second, at the integrator's 1e-9 a step
MASS, MU, G = 2.0, 0.4, 9.81
BODY = f"""<inertial><mass value="{MASS}"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>"""
BLOCK = f"""<robot name="block"><link name="block">{BODY}</link></robot>"""


def block():
    """A block that cannot turn over: its one sole is below its centre, and it is pushed there."""
    robot = Robot.from_urdf(BLOCK, root="sagittal")
    system = contact_system(robot, [Contact("sole", "block", TABLE, friction=MU)])
    return system, np.zeros(6)


def robot_in_space(height=2.0, **settings):
    """Two bodies on a floating base, and a state."""
    settings = {"actuated": [], "stiffness": {"hip": 2.0}} | settings
    robot = Robot.from_urdf(PAIR, root="floating", **settings)
    contacts = [Contact("a", "cube", TABLE, offset=(0.05, 0.05, -0.05), friction=MU)]
    rng = np.random.default_rng(4)
    q = robot.integrate(robot.neutral(), rng.normal(scale=0.3, size=robot.nv))
    q[2] = height
    return contact_system(robot, contacts), np.concatenate((q, rng.normal(size=robot.nv)))


@pytest.mark.parametrize("period", [None, 0.007, 0.1])
def test_a_block_stands_slides_and_stops(period):
    """It stands for less than mu m g. Under twice that it slides with a = mu g for T, and with -a
    after it: a T^2 in all, until T after the push. Samples on its ends change nothing."""
    system, rest = block()
    weight, duration = MASS * G, 0.1
    weak = Wrench("block", (0.9 * MU * weight, 0, 0), 0.1, 0.3)
    strong = Wrench("block", (2.0 * MU * weight, 0, 0), 0.4, 0.4 + duration)
    policy = None if period is None else hc.SampledPolicy(lambda t, x: np.zeros(0), period)
    run = hc.simulate(system, ("stick",), rest, (0.0, 1.0), policy, wrench=[weak, strong])
    assert run.final_state[0] == pytest.approx(MU * G * duration**2, abs=FLOW)
    (stop,) = run.guard_events
    assert stop.time == pytest.approx(0.4 + 2.0 * duration, abs=FLOW)
    np.testing.assert_allclose(run(0.4 - 1e-6), rest, atol=FLOW)
    pieces = [piece for arc in run.arcs for piece in arc.pieces]
    assert min(piece.end - piece.start for piece in pieces) > 1e-9  # none as long as rounding
    assert {0.1, 0.3, 0.4, 0.5} <= {round(piece.start, 9) for piece in pieces}


def test_momentum_grows_by_the_impulse_and_by_its_moment():
    """Of the whole robot about the origin, without gravity."""
    system, x0 = robot_in_space(gravity=(0, 0, 0))
    robot, force, moment = system.robot, np.array([3.0, -2.0, 1.0]), np.array([0.1, 0.2, -0.1])
    lever = np.array([0.01, 0.02, 0.03])
    push = Wrench("arm", force, 0.05, 0.15, at=lever, moment=moment)
    run = hc.simulate(system, ("open",), x0, (0.0, 0.2), wrench=push)

    def momentum(x):
        q, v = x[: robot.nq], x[robot.nq :]
        base = robot.motion(q, v, [1]).jacobian[:, :6]
        return np.linalg.solve(base.T, (robot.mass_matrix(q) @ v)[:6])

    def turning(t):
        place = robot.poses(run(t)[: robot.nq], [2])[0] @ np.append(robot.frame("arm").position, 1)
        return np.cross((place + pose_of(run(t)) @ np.append(lever, 0.0))[:3], force) + moment

    def pose_of(x):
        return robot.poses(x[: robot.nq], [2])[0]

    nodes, weights = np.polynomial.legendre.leggauss(12)  # exact to the 23rd power
    twist = sum(0.05 * w * turning(0.1 + 0.05 * s) for s, w in zip(nodes, weights, strict=True))
    change = momentum(run.final_state) - momentum(x0)
    np.testing.assert_allclose(change, np.concatenate((0.1 * force, twist)), atol=FLOW)


def test_a_force_at_the_base_is_that_of_a_motor_there():
    """The other way: the root is driven, with the force turned into the axes of the body."""
    system, x0 = robot_in_space(0.3)
    driven, _ = robot_in_space(actuated=["root_joint"])
    nq, force = system.robot.nq, np.array([0.0, 2.0, -1.0])

    def motor(t, x):
        turned = system.robot.poses(x[:nq], [1])[0][:3, :3].T @ force
        return np.concatenate((turned, np.zeros(3)))

    push = Wrench("cube", force, 0.0, 1.0)
    one = hc.simulate(system, ("open",), x0, (0.0, 0.35), wrench=push)
    other = hc.simulate(driven, ("open",), x0, (0.0, 0.35), motor)
    assert [e.guards for e in one.events] == [e.guards for e in other.events] != []
    np.testing.assert_allclose(one.final_state, other.final_state, atol=100 * FLOW)
    assert one.input(0.1) == pytest.approx(np.linalg.norm(force))


def test_a_push_at_unix_times_is_that_at_times_from_zero():
    """Times there are 2.4e-7 s apart, and so are the ends of the push."""
    system, x0 = robot_in_space()
    runs = [
        hc.simulate(
            system, ("open",), x0, (t, t + 0.1), wrench=Wrench("cube", (0, 2, -1), t, t + 0.05)
        )
        for t in (0.0, 1.7e9)
    ]
    ends = [run.final_state for run in runs]
    # Accelerations of 1e2 while the push is on.
    np.testing.assert_allclose(*ends, atol=1e-4)
    assert runs[1].input(1.7e9 + 0.02) == pytest.approx(np.sqrt(5.0))


def test_a_short_push_is_a_kick():
    system, x0 = robot_in_space()
    impulse, at, brief = np.array([0.2, 0.1, -0.1]), (0.0, 0.01, 0.02), 1e-8
    push = Wrench("cube", impulse / brief, 0.0, brief, at=at)
    run = hc.simulate(system, ("open",), x0, (0.0, brief), wrench=push)
    kick = system.kick(x0, "cube", impulse, at)
    # Accelerations of 1e2 to 1e3 that are not the push's last as long.
    np.testing.assert_allclose(run.final_state, kick.state, atol=1e-5)


class Damped:
    """Feedback with derivatives: a motor at the hip that brakes it, and counts events it sees."""

    def __init__(self, nv, nu):
        self.gain = np.zeros((nu, 2 * nv))
        self.gain[:, -1] = 0.02
        self.inputs = set()

    def law(self, history):
        self.inputs |= {e.input_before.shape for e in history.events}
        return DifferentiableLaw(
            lambda t, x: -0.02 * x[-1:], lambda t, x: -self.gain, lambda t, x: np.zeros(1)
        )


@pytest.mark.slow
def test_the_linearization_of_a_pushed_landing_is_that_of_the_flow():
    """Through impact, slip and the ends of the push, under feedback that sees its own inputs."""
    system, x0 = robot_in_space(0.3, actuated=["hip"])
    system = system.pushed(Wrench("arm", (2.0, 1.0, -3.0), 0.1, 0.3, at=(0, 0.02, 0.05)))
    policy, space = Damped(system.own.robot.nv, 1), system.space

    def flow(dx):
        return hc.simulate(
            system, ("open",), space.integrate(x0, dx), (0.0, 0.35), policy, rtol=1e-11, atol=1e-11
        )

    run = flow(np.zeros(space.ndx))
    assert policy.inputs == {(1,)}
    assert run.guard_events
    lin = hc.linearize(system, run, policy=policy)
    h = 1e-4  # h^2 of the third derivative, and 1e-11 / h of the flow, each about 1e-7 of the image
    for dx in np.random.default_rng(0).normal(size=(3, space.ndx)):
        ends = [flow(s * h * dx).final_state for s in (-1.0, 1.0)]
        image = lin.derivative(dx)
        scale = 1e-5 * np.abs(image).max()
        np.testing.assert_allclose(space.difference(*ends) / (2 * h), image, atol=scale)


def test_sizes_of_pushes_have_derivatives():
    """The end of a free flight by the size of a push: a difference of runs in its force."""
    system, x0 = robot_in_space()
    direction = np.array([0.6, 0.0, 0.8])

    def run(size):
        push = Wrench("arm", size * direction, 0.05, 0.1, at=(0, 0, 0.1))
        return hc.simulate(system, ("open",), x0, (0.0, 0.1), wrench=push)

    pushed = run(5.0)
    lin = hc.linearize(pushed.system, pushed)
    change = lin.derivative(np.zeros(system.space.ndx), lambda t: np.array([float(t >= 0.05)]))
    h = 1e-3  # error h^2 of the third derivative, about 1e-6, and 1e-9 / h of the flow
    more, less = run(5.0 + h).final_state, run(5.0 - h).final_state
    np.testing.assert_allclose(change, system.space.difference(less, more) / (2 * h), atol=3e-6)


def test_what_is_refused():
    system, x0 = robot_in_space()
    push = Wrench("cube", (1, 0, 0), 0.0, 0.1)
    run = hc.simulate(system, ("open",), x0, (0.0, 0.1), wrench=push)
    with pytest.raises(InputError, match=r"run\.system.*1 inputs, that of the system 15 and 0"):
        hc.linearize(system, run)
    with pytest.raises(InputError, match="must not both be zero"):
        Wrench("cube", (0, 0, 0), 0.0, 0.1)
    with pytest.raises(InputError, match=r"end must be greater than 0\.2"):
        Wrench("cube", (1, 0, 0), 0.2, 0.1)
    with pytest.raises(UnknownNameError, match="hat"):
        hc.simulate(system, ("open",), x0, (0, 1), wrench=Wrench("hat", (1, 0, 0), 0.0, 0.1))
    with pytest.raises(InputError, match="wrench must be"):
        hc.simulate(system, ("open",), x0, (0, 1), wrench=[3.0])
    plain = hc.HybridSystem([hc.Mode("one", hc.VectorSpace(1), lambda t, x, u: -x)], [])
    with pytest.raises(InputError, match="no bodies to push"):
        hc.simulate(plain, "one", [1.0], (0, 1), wrench=push)


def test_labels_batches_copies_and_files(tmp_path):
    system, x0 = robot_in_space()
    push = Wrench("cube", (1, 0, 0), 0.03, 0.05)
    pushed = system.pushed(push)
    assert pushed.input_labels(("open",))[-1] == "force on cube [N]"
    run = hc.simulate(pickle.loads(pickle.dumps(pushed)), ("open",), x0, (0.0, 0.1))
    run.save(tmp_path / "run.npz")
    again = hc.HybridTrajectory.load(tmp_path / "run.npz", pushed)
    np.testing.assert_array_equal(again.final_state, run.final_state)
    batch = hc.simulate_batch(pushed, ("open",), [x0, x0], (0.0, 0.1))
    np.testing.assert_allclose(batch.states[1], run.final_state, atol=FLOW)


def test_a_pushed_system_is_pushed_by_further_wrenches():
    """Each has its own size as an input, beside those of the motors."""
    system, x0 = robot_in_space(actuated=["hip"])
    one = Wrench("cube", (1, 0, 0), 0.0, 0.1)
    other = Wrench("arm", (0, 0, -2), 0.05, 0.1, at=(0, 0, 0.1))
    both = system.pushed([one, other])
    again = system.pushed(one).pushed(other)
    assert again.mode(("open",)).nu == both.mode(("open",)).nu == 3
    runs = [hc.simulate(s, ("open",), x0, (0.0, 0.1)) for s in (both, again)]
    np.testing.assert_array_equal(runs[0].final_state, runs[1].final_state)


def test_a_push_keeps_all_that_terms_know():
    """Also how loads turn, which terms of points on planes know and others do not."""
    made = cube.system(actuated=True)
    system = contact_system(made.robot, made.contacts, terms="pinocchio")
    # By default many points are single ones, of which subclasses override the derivatives.
    assert public(WrappedTerms) == public(Terms) - {"impulse_derivatives_at"}
    pushed = system.pushed(Wrench("cube", (1, 0, 0), 0.0, 0.1))
    q, z, closed = np.r_[0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0], np.arange(6.0), (0, 2, 4, 6)
    found = pushed.dynamics.terms.load_turns(q, z, closed, 6)
    np.testing.assert_array_equal(found, system.dynamics.terms.load_turns(q, z, closed, 6))
    assert found is not None


def public(terms):
    return {name for name in vars(terms) if not name.startswith("_")}
