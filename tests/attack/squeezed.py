r"""A light ball squeezed by a heavy mass, in closed form: `python -m attack.squeezed N` tries N.

Ratios of masses are 1e2 to 1e5, e is from 0.95 to 1 or 1, rails level or upright.

Without a force, speeds after collisions are linear in those before. With u = (v, w) of ball and
mass, mu = m/M and a = (1 + e) / (1 + mu), ball and mass, then ball and wall, make

.. math:: u^+ = \begin{pmatrix} -e (1 - a) & -e a \\ \mu a & 1 - \mu a \end{pmatrix} u ,

of determinant e^2. Its eigenvalues are complex where the mass turns round after finitely many
collisions, and real where it is brought to a stop by infinitely many in finite time. With e = 1 the
point (sqrt(m) x, sqrt(M) y) moves along a straight line, folded at the sides of a wedge of angle
atan(sqrt(m/M)), so that state and number of collisions are known at any time.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np

import hybridctl as hc
from hybridctl.base.errors import HybridctlError
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
        on_zeno=hc.ZenoPolicy(horizon=horizon),
        max_events=max_events,
    )


# Each collision rounds the state to 1e-16 of its speeds, up to sqrt(ratio) m/s, and the time of the
# next one to 1e-15 s, over which the ball moves with that speed: 1e-15 sqrt(ratio) a collision.
def rounding(ratio, collisions):
    return 1e-14 * np.sqrt(ratio) * collisions


def judged(seed):
    """What becomes of chain `seed`, in words: as in closed form, wrong, or refused by name."""
    rng = np.random.default_rng([41, seed])
    ratio, e = 10.0 ** rng.uniform(2.0, 5.0), 1.0 if seed % 2 else float(rng.uniform(0.95, 1.0))
    upright, horizon = bool(rng.integers(2)), HORIZONS[int(rng.integers(2))]
    exact = Collisions(ratio, e, G if upright else 0.0)
    end = float(rng.uniform(0.3, 0.4) if upright else rng.uniform(0.5, 3.0))
    passed = exact.run(end, least=1e-9)
    kind = f"{'upright' if upright else 'level'}, e {'1' if seed % 2 else '0.95 to 1'}"
    try:
        run = simulated(ratio, e, end, horizon, upright, max_events=20_000)
    except HybridctlError as refusal:
        late = " where they accumulate" if exact.t < end else ""
        return kind, f"{type(refusal).__name__}{late}"
    except Exception as error:
        return kind, f"raw: {type(error).__name__} of seed {seed}"
    off = np.abs(run.final_state - exact.state).max()
    flow = 1e-8 * np.sqrt(ratio) if upright else 0.0
    right = len(run.events) == len(passed) and off <= 10.0 * rounding(ratio, len(passed)) + flow
    return kind, "right" if right else f"wrong: seed {seed}, by {off:.1e}"


def main():
    """Print how many of each kind end how."""
    found = Counter(judged(seed) for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
    for (kind, answer), count in sorted(found.items()):
        print(f"{kind:24}{count:6}  {answer}")


if __name__ == "__main__":
    main()
