r"""MuJoCo: robots with contacts as its models, states to and from, and its simulation as a plant.

Contacts of MuJoCo are springs and dampers: a gap r < 0 obeys :math:`\ddot r + 2 \zeta \omega \dot r
+ \omega^2 r = 0` with :math:`\omega = 1 / (T \zeta)`, the time constant T and the damping ratio
:math:`\zeta`, until the force is zero again. Impacts therefore take time, and their restitution
follows from the damping ratio. Of a `Contact` the engine has frames, surface, radius and friction,
not its restitution and static friction. With friction the engine's cone is dilated: a sliding body
that hits leaves with a normal velocity of mu times its speed.

Install with `pip install "hybridctl[mujoco]"`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from hybridctl.base.checks import (
    Array,
    Indices,
    check_instance,
    check_number,
    check_vector,
    is_finite,
)
from hybridctl.base.errors import FileFormatError, InputError, SimulationError
from hybridctl.hybrid.plant import Sample
from hybridctl.interop.engine import (
    POINT_RADIUS,
    SLAB_HALF_SIDES,
    EnginePlant,
    Scenery,
    check_scenery,
    make_pose,
    rotate_to_normal,
)
from hybridctl.mechanics.contacts.contact import WORLD, Contact, check_contacts
from hybridctl.mechanics.contacts.surfaces import Plane, Sphere
from hybridctl.mechanics.multibody.bodies import MovingBody
from hybridctl.mechanics.multibody.mjcf import (
    compile_spec,
    load_mujoco,
    load_viewer,
    log_mujoco_warnings,
)
from hybridctl.mechanics.multibody.robot import Robot

STEPS_PER_TIME_CONSTANT = 4
"""Least number of steps of the engine in a time constant of the contacts. A choice."""
LONGEST_STEP = 2e-4
"""Longest default step of the engine, s, where contacts would allow a longer one. A choice."""
IMPEDANCE = (0.95, 0.99, 1e-4, 0.5, 2.0)
"""The engine's `solimp`: impedance at the surface and from a depth of 0.1 mm on, this depth in m,
and shape of the change between. So near to 1, contacts are nearly as stiff as `solref` says."""
DAMPING_RATIOS = (1e-3, 30.0)
"""Range of the damping ratio in which that of a restitution is looked for: 0.997 to below 1e-3."""
_CRITICAL = 1e-7
"""Distance of a damping ratio from 1 below which the limits at 1 are returned: the quotient there
is 0 / 0, and the limits are off by as little."""
_SOLVER_TOLERANCE, _SOLVER_ITERATIONS = 1e-10, 50
"""The engine's tolerance and most iterations of a solution for contact forces. Its own
defaults are 1e-8 and 100. A choice."""
ADDED_THICKNESS = 1e-12
"""Inertia that each body gets, relative to the trace of its own: a flat one then passes the check
of the engine."""


@dataclass(frozen=True)
class Compliance:
    """How contacts give way: as a spring and damper, the engine's `solref`.

    Args:
        time_constant: Time constant T, s.
        damping_ratio: Damping ratio zeta.

    Raises:
        InputError: One of them is not positive.
    """

    time_constant: float = 5e-4
    damping_ratio: float = 1.0

    def __post_init__(self) -> None:
        check_number("time_constant", self.time_constant, above=0.0)
        check_number("damping_ratio", self.damping_ratio, above=0.0)

    @staticmethod
    def of(duration: float, restitution: float) -> Compliance:
        """Return the compliance of a contact with a given duration of impacts and restitution.

        Args:
            duration: How long an impact lasts that nothing else accelerates, s.
            restitution: Speed after an impact over the one before it, between 1e-3 and 0.99.

        Raises:
            InputError: The duration is not positive, or the restitution outside of this range.
        """
        check_number("duration", duration, above=0.0)
        check_number("restitution", restitution, at_least=1e-3, at_most=0.99)
        ratio = float(
            brentq(lambda z: _compute_rebound(z)[1] - restitution, *DAMPING_RATIOS, xtol=1e-12)
        )
        return Compliance(duration / _compute_rebound(ratio)[0], ratio)

    @property
    def duration(self) -> float:
        """How long an impact lasts that nothing else accelerates, s."""
        return self.time_constant * _compute_rebound(self.damping_ratio)[0]

    @property
    def restitution(self) -> float:
        """The speed after an impact over the one before it."""
        return _compute_rebound(self.damping_ratio)[1]


def _compute_rebound(ratio: float) -> tuple[float, float]:
    r"""Return the duration in time constants, and the restitution, of an impact on a damped spring.

    The spring is relaxed at first, and lets go where its force :math:`\ddot r` is zero again:

    .. math:: t = \frac{2 \arccos \zeta}{\omega \sqrt{1 - \zeta^2}}
              = \zeta T \frac{2 \arccos \zeta}{\sqrt{1 - \zeta^2}}, \qquad e = \exp(-t / T).

    Args:
        ratio: Damping ratio zeta; beyond 1 the functions are hyperbolic.
    """
    if abs(ratio - 1.0) < _CRITICAL:
        return 2.0, math.exp(-2.0)
    if ratio < 1.0:
        turn = 2.0 * math.acos(ratio) / math.sqrt(1.0 - ratio**2)
    else:
        turn = 2.0 * math.acosh(ratio) / math.sqrt(ratio**2 - 1.0)
    return ratio * turn, math.exp(-ratio * turn)


@dataclass(frozen=True, eq=False)
class MujocoModel:
    """A robot with contacts as a model of the engine, whose `model` is an `mjModel`.

    The robot collides where a contact is named: with the surface of the contact, and with all boxes
    and geometries of a scene.

    Args:
        robot: The robot.
        contacts: Its contacts.
        compliance: How all of them give way.
        timestep: Step of the engine, s. By default a quarter of the time constant, at most 0.2 ms.
        scenery: Boxes that stand about, on which every contact can stand.
        scene: Model to which the robot is added, as the path or the text of an MJCF file; None for
            an empty one. Its options are those of this class. Contacts of the robot collide with
            all of its geometries that collide, as spheres of 1 mm where they have no radius.

    Raises:
        InputError: Joints mimic others. When `model` is used: the engine does not have a joint or
            a surface (unit circles, planar joints, terrain, bowls), or is not installed.
    """

    robot: Robot
    contacts: tuple[Contact, ...]
    compliance: Compliance = Compliance()
    timestep: float | None = None
    scenery: Scenery = ()
    scene: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.robot.mimics:
            raise InputError(
                "robot must have no joints that mimic others, as MuJoCo's equalities are soft, got "
                f"{sorted(self.robot.mimics)}"
            )
        object.__setattr__(self, "contacts", check_contacts(self.robot, self.contacts))
        compliance = check_instance("compliance", self.compliance, Compliance)
        if self.timestep is None:
            object.__setattr__(
                self,
                "timestep",
                min(LONGEST_STEP, compliance.time_constant / STEPS_PER_TIME_CONSTANT),
            )
        check_number("timestep", self.timestep, above=0.0)
        object.__setattr__(self, "scenery", check_scenery(self.scenery))

    @cached_property
    def model(self) -> Any:
        """The engine's `mjModel`, compiled once."""
        return _compile_model(self)

    def to_engine(self, state: ArrayLike) -> tuple[Array, Array]:
        """Return the engine's qpos and qvel of a state x = (q, v), a scene being at its start.

        The linear velocity of a floating base is in the world there, and in the base here. Angular
        velocities are in the base on both sides.

        Args:
            state: State (nq + nv,).
        """
        x = np.asarray(state, dtype=np.float64)
        nq, model = self.robot.nq, self.model
        qpos, qvel = np.array(model.qpos0), np.zeros(model.nv)
        qpos[self._position_map], qvel[self._velocity_map] = x[:nq], x[nq:]
        for q, v in self._bases:
            turn = _make_rotation(qpos[q + 3 : q + 7])
            qvel[v : v + 3] = turn @ qvel[v : v + 3]
        return qpos, qvel

    def from_engine(self, qpos: Array, qvel: Array) -> Array:
        """Return the state x = (q, v) (nq + nv,) of the engine's coordinates and velocities.

        Args:
            qpos: Coordinates (nq,) of the engine.
            qvel: Velocities (nv,) of the engine.
        """
        nq, x = self.robot.nq, np.empty(self.robot.nq + self.robot.nv)
        x[:nq] = qpos[self._position_map]
        rates = np.array(qvel)
        for q, v in self._bases:
            rates[v : v + 3] = _make_rotation(qpos[q + 3 : q + 7]).T @ rates[v : v + 3]
        x[nq:] = rates[self._velocity_map]
        return x

    def to_forces(self, u: ArrayLike, qpos: Array) -> Array:
        """Return the generalised forces (nv,) of the engine for an input.

        The force on a floating base is in the world there, and in the base here.

        Args:
            u: Input (nu,).
            qpos: Coordinates of the engine.
        """
        forces: Array = self.actuation @ np.asarray(u, dtype=np.float64)
        for q, v in self._bases:
            forces[v : v + 3] = _make_rotation(qpos[q + 3 : q + 7]) @ forces[v : v + 3]
        return forces

    def find_carrier(self, frame: str) -> tuple[int, Array]:
        """Return the engine's body that carries a frame of the robot, and its pose (4, 4) in it.

        Args:
            frame: Name of the frame.

        Raises:
            InputError: The frame is fixed to the world.
            UnknownNameError: The robot has no such frame.
        """
        place = self.robot.frame(frame)
        if place.joint == 0:
            raise InputError(f"body must move, but {frame!r} is fixed to the world")
        name, at = self._carriers[place.joint]
        return int(self.model.body(name).id), at @ make_pose(place.rotation, place.position)

    @cached_property
    def _carriers(self) -> dict[int, tuple[str, Array]]:
        """Name of the engine's body of each joint, and the pose (4, 4) of its frame there."""
        spec = load_mujoco().MjSpec()
        tree = self.robot.tree()
        found = _add_bodies(spec, self.robot, tree.bodies, tree.armature)
        return {j: (body.name, at) for j, (body, at) in enumerate(found) if j}

    @cached_property
    def actuation(self) -> Array:
        """Generalised forces of the engine by inputs, (nv, nu)."""
        forces = np.zeros((self.model.nv, self.robot.nu))
        forces[self._velocity_map] = self.robot.actuation
        return forces

    @cached_property
    def _places(self) -> list[tuple[int, int, MovingBody]]:
        """First index of each joint's coordinates in qpos and velocities in qvel, and its body."""
        model = self.model
        found = []
        for i, body in enumerate(self.robot.tree().bodies):
            joint = model.joint(_name_joints(i, body)[0]).id
            found.append((int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint]), body))
        return found

    @cached_property
    def _position_map(self) -> Indices:
        """The entry of qpos for each entry of q."""
        places = np.empty(self.robot.nq, dtype=np.intp)
        for q, _, body in self._places:
            kinds = {"floating": (0, 1, 2, 6, 3, 4, 5), "spherical": (3, 0, 1, 2)}
            order = kinds.get(body.kind, range(body.twist.shape[1]))
            places[[body.q + i for i in order]] = np.arange(q, q + len(order))
        return places

    @cached_property
    def _velocity_map(self) -> Indices:
        """The entry of qvel for each entry of v."""
        places = np.empty(self.robot.nv, dtype=np.intp)
        for _, v, body in self._places:
            n = body.twist.shape[1]
            places[body.v : body.v + n] = np.arange(v, v + n)
        return places

    @cached_property
    def _bases(self) -> list[tuple[int, int]]:
        """The starts of floating bases in qpos and qvel: their linear velocity is the world's."""
        return [(q, v) for q, v, body in self._places if body.kind == "floating"]


class MujocoPlant(EnginePlant):
    """MuJoCo as a plant: a robot whose impacts take time.

    Samples and life cycle are those of `EnginePlant`. Forces of contacts with all surfaces, boxes
    and geometries of the scene count.

    Args:
        model: The robot and its contacts. Several plants may share it.
        period: Time between samples, s. The step of the model is rounded to a whole part of it.

    Attributes:
        model: The robot and its contacts; `model.model` is the engine's `mjModel`.
        data: The engine's `mjData`, which holds the state between steps. It may be changed, as by a
            viewer.
    """

    def __init__(self, model: MujocoModel, period: float = 1e-3) -> None:
        self.model = check_instance("model", model, MujocoModel)
        super().__init__(model.robot, period)
        assert model.timestep is not None
        self._substeps = max(round(period / model.timestep), 1)
        self._step = period / self._substeps
        mujoco, engine = load_mujoco(), model.model
        self._engine, self.data = mujoco, mujoco.MjData(engine)
        self._diverging = int(mujoco.mjtWarning.mjWARN_BADQACC)
        points = [engine.geom(f"point {i}").id for i in range(len(model.contacts))]
        self._contact_of = {geom: i for i, geom in enumerate(points)}
        # Time of the start of the run, s, and number of its periods so far: times do not drift.
        self._begun, self._count = 0.0, 0

    def reset(self, time: float, state: ArrayLike) -> Sample:
        """Return the first sample of a new run.

        Args:
            time: Time, s.
            state: State (nx,).
        """
        robot, data = self.model.robot, self.data
        self._set_timestep()
        x = check_vector("state", state, robot.nq + robot.nv)
        self._engine.mj_resetData(self.model.model, data)
        data.qpos[:], data.qvel[:] = self.model.to_engine(x)
        with log_mujoco_warnings():
            self._engine.mj_forward(self.model.model, data)
        self._begun, self._count = check_number("time", time), 0
        return self._read_sample()

    def step(self, u: ArrayLike) -> Sample:
        """Return the sample one period later.

        Args:
            u: Input (nu,), which is held.

        Raises:
            SimulationError: The engine diverges.
        """
        data = self.data
        self._set_timestep()
        data.qfrc_applied[:] = self.model.to_forces(u, data.qpos)
        with log_mujoco_warnings():
            if self._wrenches:
                self._step_pushed()
            else:
                self._engine.mj_step(self.model.model, data, nstep=self._substeps)
        self._count += 1
        if not is_finite(data.qvel) or data.warning[self._diverging].number:
            raise SimulationError(f"MuJoCo diverges before t = {self._read_sample().time:.6g} s")
        return self._read_sample()

    def open_viewer(self) -> Any:
        """Return a window of the engine that shows the plant; call its `sync` after steps.

        It needs a display. On macOS it runs under `mjpython`.
        """
        return load_viewer().launch_passive(self.model.model, self.data)

    def _set_timestep(self) -> None:
        """Give the engine's model the step of this plant: another plant may have set its own."""
        self.model.model.opt.timestep = self._step

    def _step_pushed(self) -> None:
        """Take the engine's steps of one period one by one, under the pushes of each."""
        model, data = self.model.model, self.data
        step, begun = self._step, self._begun + self._count * self._period
        for k in range(self._substeps):
            data.xfrc_applied[:] = 0.0
            active = self._list_active_pushes(begun + k * step, step)
            if active:
                # The engine leaves the poses of before its last step: pushes act at those of now.
                self._engine.mj_kinematics(model, data)
                self._engine.mj_comPos(model, data)
            for wrench, share in active:
                body, place = self.model.find_carrier(wrench.body)
                turn = data.xmat[body].reshape(3, 3)
                at = place[:3, :3] @ wrench.at + place[:3, 3]
                arm = data.xpos[body] + turn @ at - data.xipos[body]
                data.xfrc_applied[body, :3] += share * wrench.force
                moment = wrench.moment + np.cross(arm, wrench.force)
                data.xfrc_applied[body, 3:] += share * moment
            self._engine.mj_step(model, data)
        data.xfrc_applied[:] = 0.0

    def _read_sample(self) -> Sample:
        """Return the engine's state now, and the contact forces of its last step."""
        data = self.data
        forces = np.zeros(len(self._contact_of))
        if data.ncon:
            found = data.contact
            rows = found.efc_address.tolist()
            for pair, row in zip(found.geom.tolist(), rows, strict=True):
                i = self._contact_of.get(pair[0], self._contact_of.get(pair[1]))
                if row >= 0 and i is not None:  # others are of bodies of the scene
                    forces[i] += data.efc_force[row]
        time = self._begun + self._count * self._period
        state = self.model.from_engine(data.qpos, data.qvel)
        return Sample(time, state, {"normal_force": forces, "contact": forces > 0.0})


def _compile_model(made: MujocoModel) -> Any:
    """Return the model by the engine's compiler."""
    mujoco, robot = load_mujoco(), made.robot
    spec = _read_scene(made.scene)
    found = [geom for geom in spec.geoms if geom.contype or geom.conaffinity]
    for k, geom in enumerate(found):
        geom.name = geom.name or f"scene {k}"
    tree = robot.tree()
    option = spec.option
    option.gravity, option.timestep = tree.gravity, made.timestep
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    option.tolerance, option.iterations = _SOLVER_TOLERANCE, _SOLVER_ITERATIONS
    spec.compiler.degree = False
    bodies = _add_bodies(spec, robot, tree.bodies, tree.armature)
    for i, contact in enumerate(made.contacts):
        _add_contact_pair(spec, bodies, made, i, contact)
        obstacles = [*_add_boxes(spec, made, i, contact), *(geom.name for geom in found)]
        for name in obstacles:
            _add_pair(spec, made, contact, f"{contact.name} on {name}", f"point {i}", name)
    return compile_spec(spec)


def _read_scene(scene: str | os.PathLike[str] | None) -> Any:
    """Return the engine's model of a scene to which the robot is added.

    Args:
        scene: Path or text of an MJCF file; None for an empty model.

    Raises:
        FileFormatError: The engine does not read it.
    """
    kind = load_mujoco().MjSpec
    if scene is None:
        return kind()
    try:
        with log_mujoco_warnings():
            if isinstance(scene, str) and scene.lstrip().startswith("<"):
                return kind.from_string(scene)
            return kind.from_file(os.fspath(scene))
    except ValueError as error:
        raise FileFormatError(f"scene is not read by MuJoCo: {error}") from error


def _add_boxes(spec: Any, made: MujocoModel, i: int, contact: Contact) -> list[str]:
    """Add the boxes of the scenery for one contact, and return their names.

    A contact without radius is a sphere, so that the boxes are smaller for it by the radius.

    Args:
        spec: The engine's model that is made.
        made: The model that is asked for.
        i: Number of the contact.
        contact: The contact.

    Returns:
        The names.
    """
    shift, names = 0.0 if contact.radius else POINT_RADIUS, []
    for k, box in enumerate(made.scenery):
        names.append(f"box {k} of {i}")
        spec.worldbody.add_geom(
            name=names[-1],
            type=load_mujoco().mjtGeom.mjGEOM_BOX,
            size=np.maximum(0.5 * box.sides - shift, POINT_RADIUS),
            contype=0,
            conaffinity=0,
            **_write_pose(box.pose),
        )
    return names


def _add_bodies(
    spec: Any, robot: Robot, bodies: Sequence[MovingBody], armature: Array
) -> list[tuple[Any, Array]]:
    """Return the engine's body of each joint, the world first, and the joint's frame in it (4, 4).

    A joint that moves no mass shares the body of the joint that it carries, because the engine
    refuses bodies without mass. Such joints wait until a body with mass follows.

    Args:
        spec: The engine's model that is made.
        robot: The robot.
        bodies: Its moving bodies, one for each joint, parents first.
        armature: Inertia of rotors by velocities (nv,).
    """
    found: list[tuple[Any, Array]] = [(spec.worldbody, np.eye(4))]
    waiting: list[tuple[int, Array]] = []
    frames: dict[int, tuple[int, Array]] = {}
    for i, body in enumerate(bodies):
        placed = make_pose(body.rotation, body.position)
        if waiting and waiting[-1][0] == body.parent:
            waiting = [(j, at @ placed) for j, at in waiting]
            placed = frames[waiting[0][0]][1] @ waiting[0][1]
            parent = frames[waiting[0][0]][0]
        else:
            parent = body.parent
        if body.mass == 0.0 and not body.inertia.any():
            if not waiting:
                frames[i] = parent, placed
            waiting.append((i, np.eye(4)))
            found.append((None, np.eye(4)))
            continue
        carrier, offset = found[parent + 1]
        made = carrier.add_body(name=f"body {i}", **_write_pose(offset @ placed))
        _set_inertia(made, body)
        for j, at in [*waiting, (i, np.eye(4))]:
            _add_joints(made, j, bodies[j], np.linalg.inv(at), robot, armature)
            if j < i:
                found[j + 1] = made, np.linalg.inv(at)
        waiting = []
        found.append((made, np.eye(4)))
    return found


def _set_inertia(made: Any, body: MovingBody) -> None:
    """Write mass, center and inertia; a flat body is given a thickness beyond rounding.

    Args:
        made: The engine's body.
        body: Ours, whose inertia is about the joint.
    """
    c = body.moment / body.mass
    about = body.inertia - body.mass * (c @ c * np.eye(3) - np.outer(c, c))
    about += ADDED_THICKNESS * np.trace(about) * np.eye(3)
    made.mass, made.ipos, made.explicitinertial = body.mass, c, True
    made.fullinertia = [*np.diag(about), about[0, 1], about[0, 2], about[1, 2]]


def _name_joints(i: int, body: MovingBody) -> list[str]:
    """Return names of the engine's joints of one of ours."""
    n = body.twist.shape[1] if body.kind == "translation" else 1
    return [f"joint {i}.{k}" for k in range(n)]


def _add_joints(
    made: Any, i: int, body: MovingBody, at: Array, robot: Robot, armature: Array
) -> None:
    """Add one of our joints to a body of the engine, which has one for each axis.

    Args:
        made: The engine's body.
        i: Number of the joint.
        body: The body that it moves.
        at: Pose (4, 4) of the joint's frame in the engine's body.
        robot: The robot, with springs, damping and friction of its joints.
        armature: Inertia of rotors by velocities (nv,).

    Raises:
        InputError: The engine has no such joint.
    """
    names, kinds = _name_joints(i, body), load_mujoco().mjtJoint
    if body.kind == "floating":
        if body.parent >= 0 or (body.rotation != np.eye(3)).any() or body.position.any():
            raise InputError("a floating base must be placed at the origin of the world")
        made.add_joint(name=names[0], type=kinds.mjJNT_FREE)
        return
    if body.kind == "spherical":
        made.add_joint(name=names[0], type=kinds.mjJNT_BALL, pos=at[:3, 3])
        return
    linear, angular = body.twist[:3], body.twist[3:]
    if body.kind not in ("screw", "translation") or (linear.any() and angular.any()):
        raise InputError(f"joint {robot.joint_names[i]!r} has no counterpart in MuJoCo")
    turns = bool(angular.any())
    passive, axes = robot.passive, (angular if turns else linear).T
    for k, (name, axis) in enumerate(zip(names, axes, strict=True)):
        v = body.v + k
        made.add_joint(
            name=name,
            type=kinds.mjJNT_HINGE if turns else kinds.mjJNT_SLIDE,
            axis=at[:3, :3] @ axis,
            pos=at[:3, 3],
            stiffness=[passive.stiffness[v], 0.0, 0.0],
            springref=passive.rest[v],
            damping=[passive.damping[v], 0.0, 0.0],
            armature=armature[v],
            frictionloss=robot.friction[v],
        )


def _add_contact_pair(
    spec: Any, bodies: list[tuple[Any, Array]], made: MujocoModel, i: int, contact: Contact
) -> None:
    """Add the geometry of a contact, and the pair that collides.

    Args:
        spec: The engine's model that is made.
        bodies: What `_add_bodies` returns.
        made: The model that is asked for.
        i: Number of the contact.
        contact: The contact.

    Raises:
        InputError: The engine has no such surface.
    """
    radius = contact.radius or POINT_RADIUS
    shift = 0.0 if contact.radius else POINT_RADIUS
    body, at = _find_carrier(made.robot, bodies, contact.frame)
    place = at @ make_pose(np.eye(3), contact.offset)
    kinds, apart = load_mujoco().mjtGeom, {"contype": 0, "conaffinity": 0, "mass": 0.0}
    body.add_geom(
        name=f"point {i}", type=kinds.mjGEOM_SPHERE, size=[radius, 0, 0], pos=place[:3, 3], **apart
    )
    body, at = _find_carrier(made.robot, bodies, contact.body)
    surface = contact.surface
    if isinstance(surface, Plane):
        normal = surface.unit_normal
        face = surface.point - shift * normal
        flat = contact.body == WORLD or body is spec.worldbody
        depth = 0.0 if flat else SLAB_HALF_SIDES[2]
        pose = at @ make_pose(rotate_to_normal(normal), face - depth * normal)
        kind, size = (
            (kinds.mjGEOM_PLANE, (0.0, 0.0, 1.0)) if flat else (kinds.mjGEOM_BOX, SLAB_HALF_SIDES)
        )
        body.add_geom(name=f"surface {i}", type=kind, size=size, **_write_pose(pose), **apart)
    elif isinstance(surface, Sphere) and not surface.inside:
        pose = at @ make_pose(np.eye(3), surface.center)
        size = (surface.radius - shift, 0.0, 0.0)
        kind = kinds.mjGEOM_SPHERE
        body.add_geom(name=f"surface {i}", type=kind, size=size, pos=pose[:3, 3], **apart)
    else:
        raise InputError(
            f"surface of contact {contact.name!r} must be a Plane, or a Sphere from outside, "
            f"for MuJoCo, got {surface!r}"
        )
    _add_pair(spec, made, contact, contact.name, f"point {i}", f"surface {i}")


def _add_pair(
    spec: Any, made: MujocoModel, contact: Contact, name: str, first: str, second: str
) -> None:
    """Add a pair of geometries that collides, with the friction of a contact.

    Args:
        spec: The engine's model that is made.
        made: The model that is asked for.
        contact: The contact.
        name: Name of the pair.
        first: Name of one geometry.
        second: Name of the other geometry.
    """
    compliance = made.compliance
    spec.add_pair(
        name=name,
        geomname1=first,
        geomname2=second,
        condim=3 if contact.rough else 1,
        friction=[contact.friction, contact.friction, 0.0, 0.0, 0.0],
        solref=[compliance.time_constant, compliance.damping_ratio],
        solimp=list(IMPEDANCE),
    )


def _find_carrier(robot: Robot, bodies: list[tuple[Any, Array]], name: str) -> tuple[Any, Array]:
    """Return the engine's body of a frame, and the frame's pose (4, 4) in it."""
    frame = robot.frame(name)
    body, at = bodies[frame.joint]
    return body, at @ make_pose(frame.rotation, frame.position)


def _write_pose(pose: Array) -> dict[str, Array]:
    """Return a pose as the engine takes it, with its quaternion w, x, y, z."""
    quaternion = np.zeros(4)
    load_mujoco().mju_mat2Quat(quaternion, np.ascontiguousarray(pose[:3, :3]).ravel())
    return {"pos": pose[:3, 3], "quat": quaternion}


def _make_rotation(quaternion: Array) -> Array:
    """Return the rotation (3, 3) of a quaternion w, x, y, z."""
    matrix = np.zeros(9)
    load_mujoco().mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)
