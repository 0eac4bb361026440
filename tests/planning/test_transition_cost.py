"""Plans that shape their events: the paddle's closed form, and multipliers of simulated orbits."""

import casadi as ca
import numpy as np
import pytest
from planning.plate import landing
from planning.test_optimisation import assert_derivatives
from scipy.integrate import simpson

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system
from hybridctl.planning.optimisation import optimise
from hybridctl.planning.task import Condition, Margins, Phase, Task, TransitionWeight
from hybridctl.planning.transcription import transcribe
from hybridctl.sensitivity.floquet import floquet_multipliers
from hybridctl.sensitivity.symmetry import Symmetry

G, E, PERIOD = 9.81, 0.7, 0.5
TIGHT = {"rtol": 1e-11, "atol": 1e-11}
HALF = 0.5 * PERIOD
SLIDER = """<link name="{name}"><inertial><mass value="{mass}"/><inertia ixx="1" iyy="1" izz="1"
  ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="{joint}" type="prismatic">
  <parent link="{parent}"/><child link="{name}"/><axis xyz="0 0 1"/>
  <limit lower="-9" upper="9" effort="0" velocity="1"/></joint>"""


def sliders(*parts):
    """A robot whose links slide up and down: (name, joint, parent, mass) each."""
    keys = ("name", "joint", "parent", "mass")
    text = "".join(SLIDER.format(**dict(zip(keys, part, strict=True))) for part in parts)
    return f'<robot name="sliders"><link name="rail"/>{text}</robot>'


def paddle():
    """A ball, so light that the paddle of 1 kg below it does not feel it: state (z, s, v, w)."""
    urdf = sliders(("ball", "z", "rail", 1e-9), ("paddle", "s", "rail", 1.0))
    top = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    hit = Contact("ball", "ball", top, body="paddle", restitution=E)
    return contact_system(Robot.from_urdf(urdf, actuated=["s"]), [hit])


BALL = np.eye(4)[[1, 3]]
OF_BALL = {"seen": BALL, "begun": BALL.T}


def bouncing(transition):
    """From apex to apex, of little effort; the paddle begins at rest height."""
    free = ("open",)
    return Task(
        paddle(),
        [
            Phase(free, ("ball closes",), (HALF, HALF + 1e-9), 4),
            Phase(free, (), (HALF, HALF + 1e-9), 4),
        ],
        symmetry=Symmetry(np.eye(4)),
        conditions=[Condition("rest", lambda a, b, t: a[0], unit="m")],
        margins=Margins(impulse=0.0),
        running_cost=lambda x, u: 1e-6 * ca.sumsqr(u),
        transition=transition,
    )


def bounce(k, s):
    """The ball up to 0.31 m above a paddle that moves up and down by 0.03 m."""
    t, turn = (s - 1.0 + k) * HALF, 2.0 * np.pi / PERIOD
    rise = 0.5 * G * HALF**2 - 0.5 * G * (HALF - abs(t)) ** 2
    up = np.sign(k - 0.5) * G * (HALF - abs(t))
    return np.array([0.03 * np.sin(turn * t), rise, 0.03 * turn * np.cos(turn * t), up])


def test_the_acceleration_that_spreads_a_ball_least_has_its_closed_form():
    """Phi = F S F of the ball, with S = ((-e, 0), (k, -e)) at the hit, k = (1 + e)^2 (1 + s''/g) /
    T, and F = ((1, h), (0, 1)) over h = T / 2; its norm is least where k = 2 e h / (1 + h^2), and
    its trace is 1 + e^2 + (1 + e)^2 s'' / g."""
    for transition in (None, TransitionWeight(1.0, **OF_BALL)):
        found = optimise(bouncing(transition), bounce)
        lin = hc.linearize(found.run.known_system, found.run, **TIGHT)
        phi = BALL @ lin.state_transition @ BALL.T
        acceleration = found.run.guard_events[0].input_before[0] - G
        trace = 1.0 + E**2 + (1.0 + E) ** 2 * acceleration / G
        assert np.trace(phi) == pytest.approx(trace, abs=1e-6)
    k = 2.0 * E * HALF / (1.0 + HALF**2)
    # effort, of weight 1e-6 against 1, moves the least by less than its root
    assert acceleration / G == pytest.approx(k * PERIOD / (1.0 + E) ** 2 - 1.0, abs=1e-3)
    assert np.linalg.norm(phi) == pytest.approx(np.sqrt(2.0) * E, rel=1e-6)


def hopping(weight):
    """A body of 3 kg that pushes itself off with a foot of 1 kg, and flies for 0.2 s or more."""
    urdf = sliders(("body", "z", "rail", 3.0), ("foot", "leg", "body", 1.0))
    floor = Plane((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    springy = {"actuated": ["leg"], "stiffness": {"leg": 600.0}, "rest": {"leg": -0.5}}
    robot = Robot.from_urdf(urdf, **springy)
    plant = contact_system(robot, [Contact("foot", "foot", floor)])
    down = ("closed",)
    return Task(
        plant,
        [
            Phase(down, ("foot opens",), (0.1, 0.3), 4, 5),
            Phase(("open",), ("foot closes",), (0.2, 0.3), 4, 5),
            Phase(down, (), (0.1, 0.3), 4, 5),
        ],
        symmetry=Symmetry(np.eye(4)),
        margins=Margins(clearance=0.02, force=1.0, unload=50.0, lift=2.0),
        joint_limits={"leg": (-0.6, -0.3)},
        running_cost=lambda x, u: 1e-4 * ca.sumsqr(u),
        transition=TransitionWeight(weight, **STANDING),
    )


STANCE = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # the foot stays where it is
STANDING = {"seen": np.linalg.pinv(STANCE), "begun": STANCE}


def hop(k, s):
    if k == 1:
        fly = 0.1 * s * (1.0 - s)
        return np.array([0.5 + fly, -0.5 + fly, 1.0 - 2.0 * s, 0.0])
    speed = s if k == 0 else s - 1.0
    return np.array([0.45 + 0.05 * abs(speed), -0.45 - 0.05 * abs(speed), speed, -speed])


@pytest.mark.slow
def test_a_hop_is_made_stable_and_simulated_as_planned():
    """A release and a landing: Phi in the cost is that of the linearized simulation."""
    moduli = []
    for weight in (1e-4, 1.0):
        found = optimise(hopping(weight), hop)
        lin = hc.linearize(found.run.known_system, found.run, **TIGHT)
        spread = np.linalg.norm(STANDING["seen"] @ lin.state_transition @ STANCE)
        moduli.append(np.abs(floquet_multipliers(lin).others).max())
        effort = 0.0
        for curve in found.feedforward:
            t = np.linspace(curve.start, curve.start + curve.length, 501)
            effort += 1e-4 * simpson([curve(each) @ curve(each) for each in t], x=t)
        # of collocation: 4e-5 in the worst case, 6e-9 with twice the intervals
        assert found.cost - effort == pytest.approx(0.5 * weight * spread**2, rel=1e-4)
    assert moduli[0] > 2.0
    assert moduli[1] < 0.5


def test_constraints_and_hessian_have_the_derivatives_that_differences_see():
    programme = transcribe(bouncing(TransitionWeight(0.8, **OF_BALL)))
    assert_derivatives(programme)
    w, random = programme.column, np.random.default_rng(0)
    multipliers = random.normal(size=programme.constraints.numel())
    lagrangian = 0.7 * programme.cost + ca.dot(ca.DM(multipliers), programme.constraints)
    slopes = ca.jacobian(programme.constraints, w)
    whole = ca.Function("whole", [w], [ca.hessian(lagrangian, w)[0], slopes])
    point = random.normal(size=w.numel())
    bend, slope = (part.full() for part in whole(point))
    made = programme.hessian()(point, [], 0.7, multipliers), programme.jacobian()(point, [])[1]
    for found, expected in zip(made, (np.triu(bend), slope), strict=True):
        atol = 1e-12 * np.abs(expected).max()
        np.testing.assert_allclose(found.full(), expected, atol=atol)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (TransitionWeight(-1.0), "weight of transition"),
        (TransitionWeight(1.0, seen=np.eye(3)), "seen"),
        (TransitionWeight(1.0, begun=np.eye(3)), "begun"),
        (TransitionWeight(1.0), "several guards"),
        (1.0, "transition"),
    ],
)
def test_what_has_no_such_cost_is_refused(wanted, words):
    with pytest.raises(InputError, match=words):
        landing(transition=wanted)
