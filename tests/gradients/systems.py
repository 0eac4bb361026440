"""Systems for tests of gradients: each returns a flow, an initial state, inputs and parameters."""

import numpy as np
from scipy.spatial.transform import Rotation

import hybridctl as hc
from hybridctl.mechanics import contact_system
from hybridctl.robots import ball, block, cube


def falling_ball(rng=None, **options):
    """A ball that bounces on a slope with friction, pushed by forces that are held."""
    rng = np.random.default_rng(0) if rng is None else rng
    system = ball.system(ball.BallParameters(friction=0.2, restitution=0.6))
    given = {"times": (0.15, 0.4, 0.9), "events": 3, "holds": 12}
    names = ("restitution:slope", "friction:slope", "mass:ball")
    flow = hc.differentiable(system, ("open",), (0.0, 1.2), parameters=names, **(given | options))
    x0 = np.array([0.0, 0.5, 0.5, 0.0]) + 0.2 * rng.normal(size=4) * [1.0, 0.3, 1.0, 1.0]
    p = np.array([rng.uniform(0.3, 0.8), rng.uniform(0.05, 0.5), rng.uniform(0.5, 2.0)])
    return flow, x0, rng.normal(size=(12, 2)), p


def landing_block(rng=None, **options):
    """A block that lands on a corner, slides, and lands on the other one."""
    rng = np.random.default_rng(1) if rng is None else rng
    system = block.system(block.BlockParameters(), actuated=True)
    given = {"times": (0.2, 0.4), "holds": 10}
    names = ("friction", "mass:block", "inertia_yy:block")
    flow = hc.differentiable(
        system, ("open", "open"), (0.0, 0.5), parameters=names, **(given | options)
    )
    x0 = np.array([0.0, 0.05 + 0.1 * np.sin(0.25) + 0.08, 0.25, 1.0, 0.0, 0.0])
    x0 = x0 + rng.normal(size=6) * [0.1, 0.02, 0.1, 0.5, 0.3, 0.5]
    p = flow.nominal_parameters * rng.uniform(0.7, 1.3, size=3)
    return flow, x0, 0.3 * rng.normal(size=(10, 3)), p


def falling_cube(rng=None, **options):
    """A turning cube that hits a table with its corners."""
    rng = np.random.default_rng(2) if rng is None else rng
    parameters = cube.CubeParameters(restitution_threshold=1e-3)
    system = contact_system(cube.robot(parameters, actuated=True), cube.contacts(parameters))
    given = {"holds": 6, "parameters": ("friction", "mass:cube")}
    flow = hc.differentiable(system, ("open",) * 8, (0.0, 0.22), **(given | options))
    x0 = np.zeros(13)
    x0[2] = 0.15
    x0[3:7] = Rotation.from_euler("xyz", rng.uniform(-0.6, 0.6, size=3)).as_quat()
    x0[7:] = rng.normal(size=6) * [0.3, 0.3, 0.3, 2.0, 2.0, 2.0]
    return flow, x0, 0.05 * rng.normal(size=(6, 6)), flow.nominal_parameters
