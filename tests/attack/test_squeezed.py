r"""A light ball between a wall and a heavy mass that moves towards it, against closed forms.

Without a force, speeds after collisions are linear in those before. With u = (v, w) of ball and
mass, mu = m/M and a = (1 + e) / (1 + mu), ball and mass, then ball and wall, make

.. math:: u^+ = \begin{pmatrix} -e (1 - a) & -e a \\ \mu a & 1 - \mu a \end{pmatrix} u ,

of determinant e^2. Its eigenvalues are complex where the mass turns round after finitely many
collisions, and real where it is brought to a stop by infinitely many in finite time. With e = 1 the
point (sqrt(m) x, sqrt(M) y) moves along a straight line, folded at the sides of a wedge of angle
atan(sqrt(m/M)), so that state and number of collisions are known at any time.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import hybridctl as hc
from hybridctl.errors import ZenoError
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

G = 9.81
START = np.array([0.5, 1.0, 0.0, -1.0])  # ball and mass, m and m/s; a mass of 1 kg
FLIES = ("open", "open")
HORIZONS = (1e-5, 1e-3)  # those of runs and of filters


def link(name, mass):
    return (
        f'<link name="{name}"><inertial><mass value="{mass!r}"/>'
        '<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )


def chain(ratio, e, upright=False):
    """Ball and mass on a rail, which is level or upright, with a wall at its beginning."""
    axis = (0.0, 0.0, 1.0) if upright else (1.0, 0.0, 0.0)
    joints = "".join(
        f'<joint name="of {child}" type="prismatic"><parent link="base"/><child link="{child}"/>'
        f'<axis xyz="{" ".join(map(str, axis))}"/>'
        '<limit lower="-9" upper="9" effort="9" velocity="9"/></joint>'
        for child in ("ball", "mass")
    )
    links = '<link name="base"/>' + link("ball", 1.0 / ratio) + link("mass", 1.0)
    robot = Robot.from_urdf(f'<robot name="chain">{links}{joints}</robot>', actuated=())
    plane = Plane((0.0, 0.0, 0.0), axis)
    return contact_system(
        robot,
        [
            Contact("wall", "ball", plane, friction=0.0, restitution=e),
            Contact("pair", "mass", plane, body="ball", friction=0.0, restitution=e),
        ],
    )


def unfolded(ratio, t):
    """State of the elastic chain at time t, and the number of collisions until then."""
    m, wedge = 1.0 / ratio, np.arctan(1.0 / np.sqrt(ratio))
    (sx, vx), (sy, vy) = (np.sqrt(m) * START[[0, 2]], START[[1, 3]])
    x, y = sx + t * vx, sy + t * vy
    angle, r = np.arctan2(x, y), np.hypot(x, y)
    out, round_ = (x * vx + y * vy) / r, (y * vx - x * vy) / r
    side = int(np.floor(angle / wedge))
    folded, sign = angle - side * wedge, 1.0
    if side % 2:
        folded, sign = wedge - folded, -1.0
    s, c = np.sin(folded), np.cos(folded)
    v = (out * s + sign * round_ * c) / np.sqrt(m)
    w = out * c - sign * round_ * s
    return np.array([r * s / np.sqrt(m), r * c, v, w]), abs(side)


@dataclass
class Collisions:
    """The collisions of a chain, one by one, under an acceleration -g of both bodies.

    Between them the distance of the bodies changes at a constant speed, and the ball falls freely.
    """

    ratio: float
    e: float
    g: float
    t: float = 0.0
    last: str = ""

    def __post_init__(self):
        (self.x, y, self.v, self.w) = START.tolist()
        self.gap = y - self.x

    def wait(self):
        """Time to the next collision, and with what; infinite where there is none."""
        to_mass = self.gap / (self.v - self.w) if self.v > self.w else np.inf
        if self.last == "wall":
            to_wall = 2.0 * self.v / self.g if self.g else np.inf
        elif self.g:
            to_wall = (self.v + np.sqrt(self.v**2 + 2.0 * self.g * self.x)) / self.g
        else:
            to_wall = -self.x / self.v if self.v < 0.0 else np.inf
        if self.last == "pair":
            to_mass = np.inf
        return (to_wall, "wall") if to_wall < to_mass else (to_mass, "pair")

    def fly(self, h):
        self.x += h * (self.v - 0.5 * self.g * h)
        self.gap += h * (self.w - self.v)
        self.v, self.w, self.t = self.v - self.g * h, self.w - self.g * h, self.t + h

    def collide(self, what):
        self.last = what
        if what == "wall":
            self.x, self.v = 0.0, -self.e * self.v
            return
        mu, closing = 1.0 / self.ratio, self.v - self.w
        push = (1.0 + self.e) / (1.0 + mu) * closing
        self.gap, self.v, self.w = 0.0, self.v - push, self.w + mu * push

    def run(self, end, least=0.0):
        """All collisions until `end`: times, and states after them; then the state there.

        Or until two of them are closer than `least`, s.
        """
        passed = []
        while True:
            h, what = self.wait()
            if self.t + h >= end or h < least:
                self.fly(min(h, end - self.t))
                return passed
            self.fly(h)
            self.collide(what)
            passed.append((self.t, self.state))

    @property
    def state(self):
        return np.array([self.x, self.x + self.gap, self.v, self.w])


def simulated(ratio, e, end, horizon=1e-5, upright=False, max_events=3000):
    return hc.simulate(
        chain(ratio, e, upright),
        FLIES,
        START,
        (0.0, end),
        on_zeno="rest",
        zeno_horizon=horizon,
        max_events=max_events,
    )


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


# Each collision rounds the state to 1e-16 of its speeds, up to sqrt(ratio) m/s, and the time of the
# next one to 1e-15 s, over which the ball moves with that speed: 1e-15 sqrt(ratio) a collision.
def rounding(ratio, collisions):
    return 1e-14 * np.sqrt(ratio) * collisions


@pytest.mark.parametrize(("ratio", "count"), [(1e2, 31), (1e4, 314), (1e6, 3141)])
def test_elastic_collisions_count_the_digits_of_pi(ratio, count):
    assert unfolded(ratio, 1e6)[1] == count


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize("ratio", [1e2, 1e3, slow(1e4), slow(1e5)])
def test_an_elastic_ball_turns_the_mass_round(ratio, horizon):
    for end in (1.0, 3.0) if ratio < 1e4 else (3.0,):
        run = simulated(ratio, 1.0, end, horizon)
        state, count = unfolded(ratio, end)
        assert len(run.events) == count
        np.testing.assert_allclose(run.final_state, state, atol=rounding(ratio, count))


TURNING = [(1e2, 0.99), (1e2, 0.9), (1e3, 0.99), slow(1e3, 0.95), slow(1e4, 0.99), slow(1e5, 0.999)]


@pytest.mark.parametrize(("ratio", "e"), TURNING)
def test_a_ball_that_loses_speed_turns_the_mass_round_as_the_recurrence_says(ratio, e):
    mu = 1.0 / ratio
    a = (1.0 + e) / (1.0 + mu)
    cycle = np.array([[-e * (1.0 - a), -e * a], [mu * a, 1.0 - mu * a]])
    assert abs(np.trace(cycle)) < 2.0 * e  # complex eigenvalues
    exact = Collisions(ratio, e, 0.0)
    passed = exact.run(6.0)
    run = simulated(ratio, e, 6.0)
    assert [event.guards for event in run.events] == [
        (f"{'pair' if k % 2 == 0 else 'wall'} closes",) for k in range(len(passed))
    ]
    u = START[2:]
    tolerance = rounding(ratio, len(passed))
    for event in run.events[1::2]:
        u = cycle @ u
        np.testing.assert_allclose(event.state_after[2:], u, atol=tolerance)
    np.testing.assert_allclose(run.final_state, exact.state, atol=10.0 * tolerance)


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize(("ratio", "e"), [(30.0, 0.05), (1e3, 0.9), slow(1e4, 0.95)])
def test_a_mass_that_is_stopped_in_no_time_is_refused_not_put_to_rest(ratio, e, horizon):
    """Infinitely many collisions within a few 1e-9 s take all speed away; no force does that."""
    with pytest.raises(ZenoError, match="events accumulate"):
        simulated(ratio, e, 3.0, horizon)
    exact = Collisions(ratio, e, 0.0)
    passed = exact.run(3.0, least=1e-9)
    assert passed[-1][1][3] < -0.1  # where they are as close as that, the mass still moves


# Upright, with weight: the mass falls on the ball, is thrown back, and comes to rest on it.


@pytest.mark.parametrize(
    ("ratio", "e", "end"),
    [
        (1e2, 1.0, 0.4),
        (1e2, 0.9, 0.5),
        (1e3, 0.99, 0.4),
        slow(1e4, 1.0, 0.4),
        slow(1e5, 0.999, 0.4),
    ],
)
def test_a_falling_mass_is_thrown_back_by_the_ball(ratio, e, end):
    """The flow is exact to 1e-9; what it is off by then is squeezed as the height of the ball is.

    Its speed is inverse to that, and grows by sqrt(ratio).
    """
    exact = Collisions(ratio, e, G)
    passed = exact.run(end)
    run = simulated(ratio, e, end, 1e-3, upright=True)
    assert len(run.events) == len(passed)
    np.testing.assert_allclose(run.final_state, exact.state, atol=1e-8 * np.sqrt(ratio))


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize(("ratio", "e"), [(1.0, 0.5), (10.0, 0.7), slow(1e2, 0.9)])
def test_a_mass_rests_on_the_ball_only_when_it_has_come_to_rest(ratio, e, horizon):
    """Where rest begins, nothing closes faster than ten times what weight makes of it until then.

    A window may take as long as the horizon times (1 - r) / r, here at most three times that.
    """
    run = simulated(ratio, e, 1.0, horizon, upright=True)
    rests = [event for event in run.events if event.accumulation is not None]
    assert rests
    assert run.final_mode == ("closed", "closed")
    np.testing.assert_allclose(run.final_state, 0.0, atol=1e-8)
    before = run.events[: run.events.index(rests[0])]
    exact = Collisions(ratio, e, G)
    passed = exact.run(rests[0].time, least=10.0 * horizon)
    for event, (t, state) in zip(before, passed, strict=False):
        assert event.time == pytest.approx(t, abs=1e-8)
        np.testing.assert_allclose(event.state_after, state, atol=1e-6)
    for event in rests:
        v, w = event.state_before[2:]
        closing = [-v] * ("wall closes" in event.guards) + [v - w] * ("pair closes" in event.guards)
        assert max(closing) <= 10.0 * G * 4.0 * horizon
