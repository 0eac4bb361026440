"""Random systems with impacts, each with a run: balls, blocks, doors, cubes, chains, quadrupeds.

System `seed` has the kind `ORDER[seed % len(ORDER)]`. Lengths, masses, friction, restitution, start
and inputs are drawn. Level blocks, cubes and quadrupeds touch with several points together, in turn
or, where the draw says so, as one impact (`simultaneous="at once"`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gradients.systems import struck_door
from hybridctl.robots import ball, block, cube, public
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.gradients.differentiable import DifferentiableFlow
from hybridctl.mechanics import Contact, Plane, Robot, contact_system


class Case(NamedTuple):
    """A run with its unknowns.

    Attributes:
        kind: Kind of the system.
        flow: The run as a function.
        x0: Initial state (nx,).
        inputs: Held inputs (N, nu). None for a system without.
        parameters: Values (np,).
    """

    kind: str
    flow: DifferentiableFlow
    x0: np.ndarray
    inputs: np.ndarray | None
    parameters: np.ndarray


def make_case(seed: int) -> Case:
    """Return system `seed`."""
    kind = ORDER[seed % len(ORDER)]
    return MAKERS[kind](np.random.default_rng([58, seed]))


def _name_parameters(friction: float, restitution: float, *others: str) -> list[str]:
    """Return the names of parameters: of friction and restitution those that are not zero."""
    rough = ["friction"] if friction > 0.0 else []
    elastic = ["restitution"] if restitution > 0.0 else []
    return [*rough, *elastic, *others]


def _choose_level(rng: np.random.Generator) -> dict[str, Any]:
    """Return settings of a level run: contacts touch in turn, or within 0.1 ms at once."""
    return {"simultaneous": "at once", "event_window": 1e-4} if rng.random() < 0.5 else {}


def _draw_matter(rng: np.random.Generator, friction: float, restitution: float) -> dict[str, float]:
    """Return friction and restitution: up to these values, each one zero in a quarter of cases."""
    most = {"friction": friction, "restitution": restitution}
    return {k: float(rng.uniform(0.1, v)) * bool(rng.random() < 0.75) for k, v in most.items()}


def _make_ball(rng: np.random.Generator) -> Case:
    """A ball is thrown onto a slope or a level floor, where it bounces, slides, and may rest."""
    matter = _draw_matter(rng, 0.8, 0.85)
    slope = 0.0 if rng.random() < 0.3 else rng.uniform(-0.5, 0.5)
    system = ball.system(ball.BallParameters(mass=rng.uniform(0.3, 3.0), slope=slope, **matter))
    end = float(rng.uniform(0.6, 1.2))
    flow = hc.differentiable(
        system,
        ("open",),
        (0.0, end),
        times=[0.5 * end, end],
        events=2,
        holds=int(rng.integers(3, 10)),
        parameters=_name_parameters(*matter.values(), "mass:ball"),
    )
    x, height = rng.normal(), rng.uniform(0.1, 0.6)
    x0 = np.array([x, -x * np.tan(slope) + height, rng.normal(), rng.normal()])
    u = rng.normal(size=(len(flow.hold_times) - 1, 2))
    return Case("ball", flow, x0, u, flow.nominal_parameters)


def _make_block(rng: np.random.Generator, level: bool = False) -> Case:
    """A block lands on a corner, or on both, and slides, rocks or rests."""
    matter = _draw_matter(rng, 0.9, 0.6)
    width, height = rng.uniform(0.08, 0.4, size=2)
    made = block.BlockParameters(width=width, height=height, mass=rng.uniform(0.5, 3.0), **matter)
    flow = hc.differentiable(
        block.system(made, actuated=True),
        ("open", "open"),
        (0.0, 0.5),
        times=[0.25, 0.5],
        events=1,
        holds=6,
        parameters=_name_parameters(*matter.values(), "mass:block", "inertia_yy:block"),
        **(_choose_level(rng) if level else {}),
    )
    pitch = 0.0 if level else rng.choice([-1.0, 1.0]) * rng.uniform(0.05, 0.5)
    low = 0.5 * (height * np.cos(pitch) + width * abs(np.sin(pitch)))
    v = rng.normal(size=3) * [1.0, 0.5, 0.0 if level else 2.0]
    x0 = np.array([0.0, low + rng.uniform(0.03, 0.15), pitch, *v])
    u = made.mass * rng.normal(size=(6, 3)) * [1.0, 1.0, 0.0 if level else width]
    return Case("block", flow, x0, u, flow.nominal_parameters)


def _make_level_block(rng: np.random.Generator) -> Case:
    """A block lands on both corners at once."""
    return _make_block(rng, level=True)._replace(kind="level block")


def _make_door(rng: np.random.Generator) -> Case:
    """An arm strikes a door with one corner of its foot, or almost with both."""
    ahead = rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-4.0, -2.3)
    names = ("mass:forearm", "damping:door_hinge")
    flow, x0, u, _ = struck_door(rng, ahead=ahead, parameters=names, times=(0.1, 0.25), events=1)
    return Case("door", flow, x0, u, flow.nominal_parameters)


def _make_cube(rng: np.random.Generator, level: str = "") -> Case:
    """A turning cube hits a table with its corners, or level with an edge or a face."""
    matter = _draw_matter(rng, 0.7, 0.4)
    made = cube.CubeParameters(
        half_width=rng.uniform(0.03, 0.08), restitution_threshold=1e-3, **matter
    )
    flow = hc.differentiable(
        contact_system(cube.robot(made, actuated=True), cube.contacts(made)),
        ("open",) * 8,
        (0.0, 0.22),
        times=[0.15, 0.22],
        events=1,
        holds=4,
        parameters=_name_parameters(*matter.values(), "mass:cube"),
        **(_choose_level(rng) if level else {}),
    )
    angles = {
        "": rng.uniform(-0.6, 0.6, size=3),
        "edge": [rng.uniform(0.1, 0.6), 0.0, 0.0],
        "face": [0.0, 0.0, rng.uniform(-0.6, 0.6)],
    }[level]
    turn = Rotation.from_euler("xyz", angles)
    corners = turn.apply([contact.offset for contact in cube.contacts(made)])
    x0 = np.zeros(13)
    x0[2] = -corners[:, 2].min() + rng.uniform(0.01, 0.04)
    x0[3:7] = turn.as_quat()
    speeds = rng.normal(size=6) * [0.3, 0.3, 0.3, 2.0, 2.0, 2.0]
    x0[7:] = np.r_[turn.inv().apply(speeds[:3]), speeds[3:] * (not level)]
    u = 0.05 * rng.normal(size=(4, 6)) * (not level)
    return Case("cube", flow, x0, u, flow.nominal_parameters)


def _make_level_cube(rng: np.random.Generator) -> Case:
    """A cube hits a table with an edge or a face."""
    return _make_cube(rng, str(rng.choice(["edge", "face"])))._replace(kind="level cube")


def _make_chain(rng: np.random.Generator) -> Case:
    """A chain of one to four links swings down and hits the floor with a point or a ball."""
    count = int(rng.integers(1, 5))
    lengths = rng.uniform(0.15, 0.4, size=count)
    masses = rng.uniform(0.3, 1.0, size=count)
    matter = _draw_matter(rng, 0.5, 0.7)
    floor = Plane(point=(0.0, 0.0, -0.8 * lengths.sum()), normal=(0.0, 0.0, 1.0))
    radius = 0.0 if rng.random() < 0.5 else 0.03
    tip = f"link{count}"
    contact = Contact(
        "tip", tip, floor, offset=(0.0, 0.0, -float(lengths[-1])), radius=radius, **matter
    )
    system = contact_system(Robot.from_urdf(_write_chain(lengths, masses)), [contact])
    flow = hc.differentiable(
        system,
        ("open",),
        (0.0, 0.6),
        times=(0.3, 0.6),
        events=1,
        holds=6,
        parameters=_name_parameters(
            *matter.values(), f"mass:{tip}", f"center_z:{tip}", "offset_z:tip"
        ),
    )
    angles = np.r_[rng.uniform(0.9, 1.3), rng.uniform(-0.2, 0.4, size=count - 1)]
    u = 0.3 * rng.normal(size=(6, count))
    return Case("chain", flow, np.r_[angles, rng.normal(size=count)], u, flow.nominal_parameters)


def _write_chain(lengths: np.ndarray, masses: np.ndarray) -> str:
    """Return the description of a chain of links (m, kg) that turn about y."""
    limit = '<limit lower="-9" upper="9" effort="99" velocity="99"/>'
    parts, above = ['<link name="link0"/>'], 0.0
    for k, (length, mass) in enumerate(zip(lengths, masses, strict=True), start=1):
        moment = mass * length**2 / 12.0
        inertia = f'<inertia ixx="{moment}" iyy="{moment}" izz="1e-3" ixy="0" ixz="0" iyz="0"/>'
        parts.append(
            f'<link name="link{k}"><inertial><origin xyz="0 0 {-0.5 * length}"/>'
            f'<mass value="{mass}"/>{inertia}</inertial></link>'
            f'<joint name="joint{k}" type="revolute"><parent link="link{k - 1}"/>'
            f'<child link="link{k}"/><origin xyz="0 0 {-above}"/><axis xyz="0 1 0"/>{limit}</joint>'
        )
        above = length
    return f'<robot name="chain">{"".join(parts)}</robot>'


def _make_quadruped(rng: np.random.Generator, level: bool = False) -> Case:
    """A quadruped of 18 velocities falls onto its feet, tilted by up to 0.25 rad or level."""
    flow = hc.differentiable(
        public.system("solo12"),
        ("open",) * 4,
        (0.0, 0.12),
        times=[0.12],
        parameters=["friction"],
        **(_choose_level(rng) if level else {}),
    )
    angles = np.zeros(2) if level else rng.uniform(-0.25, 0.25, size=2)
    x0 = public.start("solo12", rng.uniform(0.01, 0.03), *angles)
    x0[19:22] += 0.1 * rng.normal(size=3)
    if not level:
        x0[22:] += 0.1 * rng.normal(size=15)
    friction = np.array([rng.uniform(0.3, 0.9)])
    return Case("quadruped", flow, x0, None, friction)


def _make_level_quadruped(rng: np.random.Generator) -> Case:
    """A quadruped falls onto all of its feet at once."""
    return _make_quadruped(rng, level=True)._replace(kind="level quadruped")


MAKERS: dict[str, Callable[[np.random.Generator], Case]] = {
    "ball": _make_ball,
    "block": _make_block,
    "level block": _make_level_block,
    "door": _make_door,
    "cube": _make_cube,
    "level cube": _make_level_cube,
    "chain": _make_chain,
    "quadruped": _make_quadruped,
    "level quadruped": _make_level_quadruped,
}
SHARES = {
    "ball": 4,
    "block": 4,
    "level block": 1,
    "door": 2,
    "cube": 2,
    "level cube": 1,
    "chain": 4,
    "quadruped": 1,
    "level quadruped": 1,
}
"""Of 20 systems, how many are of each kind."""
ORDER = tuple(kind for kind, share in SHARES.items() for _ in range(share))
