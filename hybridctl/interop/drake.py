r"""Drake: robots with contacts as its models, states to and from, and its simulation as a plant.

Contacts of Drake's discrete plants are springs with the damping of Hunt and Crossley: at the depth
x the normal force is

.. math:: f = k\, x\, (1 + d\, \dot x)_+ .

Of a `Contact` the engine has frames, surface, radius and friction, not its restitution and static
friction. An impact on such a spring lasts about :math:`\pi \sqrt{m / k}` for an effective mass m,
and the faster it is the more of its energy is lost: with :math:`d v \gg 1` nothing is left.

Install with `pip install "hybridctl[drake]"`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import (
    Array,
    Indices,
    check_instance,
    check_member,
    check_number,
    check_vector,
    is_finite,
)
from hybridctl.base.errors import InputError, SimulationError
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
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.push import Wrench

LONGEST_STEP = 2e-4
"""Longest step of the engine, s, as of MuJoCo's plants. A choice."""
ADDED_THICKNESS = 1e-12
"""Inertia that each body gets, relative to the trace of its own: a flat one then passes the check
of the engine."""

DISSIPATION = 50.0
"""Damping of contacts in s/m, the engine's own default.

With 5 s/m a door that is pressed by 10 N rings for 0.1 s after its impact.
"""

Approximation = Literal["lagged", "similar", "tamsi"]
"""Solver of the engine's contacts; its SAP solver has no damping by Hunt and Crossley."""


@dataclass(frozen=True)
class HuntCrossley:
    """How contacts give way.

    Args:
        stiffness: Stiffness k, N/m.
        dissipation: Damping d, s/m.

    Raises:
        InputError: The stiffness is not positive, or the damping is negative.
    """

    stiffness: float = 1e5
    dissipation: float = DISSIPATION

    def __post_init__(self) -> None:
        check_number("stiffness", self.stiffness, above=0.0)
        check_number("dissipation", self.dissipation, at_least=0.0)

    @staticmethod
    def of(duration: float, mass: float, dissipation: float = DISSIPATION) -> HuntCrossley:
        """Return contacts on which a mass without damping stays for a given time.

        Args:
            duration: How long such an impact lasts, s.
            mass: Effective mass of the impact, 1 / (J M^-1 J'), kg.
            dissipation: Damping d, s/m. It shortens the impact; the stiffness does not count it.

        Raises:
            InputError: Duration or mass is not positive, or the damping is negative.
        """
        check_number("duration", duration, above=0.0)
        check_number("mass", mass, above=0.0)
        return HuntCrossley(mass * (math.pi / duration) ** 2, dissipation)


@dataclass(frozen=True, eq=False)
class DrakeModel:
    """A robot with contacts as a diagram of the engine.

    It collides where a contact is named, with the surface of the contact and with all boxes of the
    scenery.

    Args:
        robot: The robot.
        contacts: Its contacts.
        compliance: How all of them give way.
        timestep: Step of the engine, s.
        scenery: Boxes that stand about, on which every contact can stand.
        approximation: Solver of the engine's contacts.

    Raises:
        InputError: Joints mimic others or rub. When the model is used: the engine does not have a
            joint or a surface, or is not installed.
    """

    robot: Robot
    contacts: tuple[Contact, ...]
    compliance: HuntCrossley = HuntCrossley()
    timestep: float = LONGEST_STEP
    scenery: Scenery = ()
    approximation: Approximation = "lagged"

    def __post_init__(self) -> None:
        if self.robot.mimics:
            raise InputError(
                "robot must have no joints that mimic others, as Drake's couplers are soft, got "
                f"{sorted(self.robot.mimics)}"
            )
        if self.robot.friction.any():
            raise InputError("robot must have no dry friction of joints, which Drake does not have")
        object.__setattr__(self, "contacts", check_contacts(self.robot, self.contacts))
        check_instance("compliance", self.compliance, HuntCrossley)
        check_number("timestep", self.timestep, above=0.0)
        check_member("approximation", self.approximation, ("lagged", "similar", "tamsi"))
        object.__setattr__(self, "scenery", check_scenery(self.scenery))

    @cached_property
    def built(self) -> BuiltDiagram:
        """The engine's diagram, built once."""
        return _build_diagram(self)

    def to_engine(self, state: ArrayLike) -> tuple[Array, Array]:
        """Return the engine's positions and velocities of a state x = (q, v).

        The velocities of a floating base are in the world there, and in the base here.

        Args:
            state: State (nq + nv,).
        """
        x, built = np.asarray(state, dtype=np.float64), self.built
        nq = self.robot.nq
        positions, velocities = np.empty(nq), np.empty(self.robot.nv)
        positions[built.positions], velocities[built.velocities] = x[:nq], x[nq:]
        for q, v in built.bases:
            turn = _make_rotation(positions[q : q + 4])
            velocities[v : v + 3] = turn @ velocities[v : v + 3]
            velocities[v + 3 : v + 6] = turn @ velocities[v + 3 : v + 6]
        return positions, velocities

    def from_engine(self, positions: Array, velocities: Array) -> Array:
        """Return the state x = (q, v) (nq + nv,) of the engine's positions and velocities.

        Args:
            positions: Positions (nq,) of the engine.
            velocities: Velocities (nv,) of the engine.
        """
        built, rates = self.built, np.array(velocities)
        for q, v in built.bases:
            turn = _make_rotation(positions[q : q + 4]).T
            rates[v : v + 3] = turn @ rates[v : v + 3]
            rates[v + 3 : v + 6] = turn @ rates[v + 3 : v + 6]
        return np.concatenate([positions[built.positions], rates[built.velocities]])

    def to_forces(self, u: ArrayLike, positions: Array) -> Array:
        """Return the generalised forces (nv,) of the engine for an input.

        Args:
            u: Input (nu,).
            positions: Positions (nq,) of the engine.
        """
        built, forces = self.built, np.empty(self.robot.nv)
        forces[built.velocities] = self.robot.actuation @ np.asarray(u, dtype=np.float64)
        for q, v in built.bases:
            turn = _make_rotation(positions[q : q + 4])
            forces[v : v + 3] = turn @ forces[v : v + 3]
            forces[v + 3 : v + 6] = turn @ forces[v + 3 : v + 6]
        return forces


class BuiltDiagram(NamedTuple):
    """What is built of a `DrakeModel`.

    Attributes:
        diagram: The engine's diagram.
        plant: Its `MultibodyPlant`.
        positions: The engine's position for each entry of q, (nq,).
        velocities: The engine's velocity for each entry of v, (nv,).
        bases: Starts of floating bases in the engine's positions and velocities.
        points: Contact of each geometry that stands for one.
        carriers: The engine's body of each joint, the world first.
    """

    diagram: Any
    plant: Any
    positions: Indices
    velocities: Indices
    bases: list[tuple[int, int]]
    points: dict[Any, int]
    carriers: list[Any]


class DrakePlant(EnginePlant):
    """Drake as a plant: a robot whose impacts take time.

    Samples and life cycle are those of `EnginePlant`.

    Args:
        model: The robot and its contacts.
        period: Time between samples, s; a multiple of the engine's step.

    Attributes:
        model: The robot and its contacts; `model.built` has the engine's diagram.
        context: The engine's context of the diagram, which holds the state between steps.

    Raises:
        InputError: The period is no multiple of the step.
    """

    def __init__(self, model: DrakeModel, period: float = 1e-3) -> None:
        self.model = check_instance("model", model, DrakeModel)
        super().__init__(model.robot, period)
        self._substeps = round(period / model.timestep)
        if abs(self._substeps * model.timestep - period) > 1e-9 * period or not self._substeps:
            raise InputError(
                f"period must be a multiple of the step of {model.timestep} s, got {period}"
            )
        self._simulator = load_drake().analysis.Simulator(model.built.diagram)
        self.context = self._simulator.get_mutable_context()
        self._own = model.built.plant.GetMyMutableContextFromRoot(self.context)
        self._begun, self._count = 0.0, 0

    def reset(self, time: float, state: ArrayLike) -> Sample:
        """Return the first sample of a new run.

        Args:
            time: Time, s.
            state: State (nx,).
        """
        robot, built = self.model.robot, self.model.built
        x = check_vector("state", state, robot.nq + robot.nv)
        self._begun, self._count = check_number("time", time), 0
        # The engine's own time begins at zero, so that its steps are at multiples of its step.
        self.context.SetTime(0.0)
        built.plant.SetPositionsAndVelocities(self._own, np.concatenate(self.model.to_engine(x)))
        self._set_forces(np.zeros(robot.nv))
        self._set_pushes([])
        self._simulator.Initialize()
        return self._make_sample(self._read_forces())

    def step(self, u: ArrayLike) -> Sample:
        """Return the sample one period later.

        Args:
            u: Input (nu,), which is held.

        Raises:
            SimulationError: The engine fails or diverges.
        """
        # The engine takes the step from n h on while its time is before that product as rounded:
        # times in any other rounding let it take one step too many.
        step, first = self.model.timestep, self._count * self._substeps
        begun, last = self._begun + self._count * self._period, self._substeps - 1
        positions = self.model.built.plant.GetPositions(self._own)
        self._set_forces(self.model.to_forces(u, positions))
        is_pushed = self._is_pushed(begun)
        # Without pushes the engine is stopped only before the last step, whose forces are read.
        starts = range(self._substeps) if is_pushed else sorted({0, last})
        try:
            for k, end in zip(starts, [*starts[1:], last + 1], strict=True):
                if is_pushed:
                    self._set_pushes(self._list_active_pushes(begun + k * step, step))
                if k == last:
                    forces = self._read_forces()  # the step takes what is solved for them here
                self._simulator.AdvanceTo((first + end) * step)
        except RuntimeError as error:
            raise SimulationError(f"Drake fails: {str(error).splitlines()[0][:200]}") from error
        if is_pushed:
            self._set_pushes([])
        self._count += 1
        sample = self._make_sample(forces)
        if not is_finite(sample.state):
            raise SimulationError(f"Drake diverges before t = {sample.time:.6g} s")
        return sample

    def _set_forces(self, forces: Array) -> None:
        """Apply generalised forces (nv,) of the engine until they are set anew."""
        plant = self.model.built.plant
        plant.get_applied_generalized_force_input_port().FixValue(self._own, forces)

    def _set_pushes(self, active: Sequence[tuple[Wrench, float]]) -> None:
        """Apply the forces of pushes, each times its share of the step, until they are set anew."""
        built, drake = self.model.built, load_drake()
        found = []
        for wrench, share in active:
            frame = self.model.robot.frame(wrench.body)
            force = drake.plant.ExternallyAppliedSpatialForce()
            force.body_index = built.carriers[frame.joint].index()
            force.p_BoBq_B = frame.rotation @ wrench.at + frame.position
            force.F_Bq_W = drake.spatial.SpatialForce(share * wrench.moment, share * wrench.force)
            found.append(force)
        kind = drake.value.Value[_list_of(drake.plant.ExternallyAppliedSpatialForce)]
        built.plant.get_applied_spatial_force_input_port().FixValue(self._own, kind(found))

    def _read_forces(self) -> Array:
        """Return the normal forces (c,), N, of the step of the engine that begins at its state."""
        built = self.model.built
        forces = np.zeros(len(self.model.contacts))
        results = built.plant.get_contact_results_output_port().Eval(self._own)
        for k in range(results.num_point_pair_contacts()):
            info = results.point_pair_contact_info(k)
            pair = info.point_pair()
            i = built.points.get(pair.id_A, built.points.get(pair.id_B))
            assert i is not None
            forces[i] += abs(float(info.contact_force() @ pair.nhat_BA_W))
        return forces

    def _make_sample(self, forces: Array) -> Sample:
        """Return the sample of the engine's state with normal forces (c,), N."""
        plant = self.model.built.plant
        time = self._begun + self._count * self._period
        state = self.model.from_engine(
            plant.GetPositions(self._own), plant.GetVelocities(self._own)
        )
        return Sample(time, state, {"normal_force": forces, "contact": forces > 0.0})


class DrakeModules(NamedTuple):
    """The parts of Drake that are used, by their last names."""

    analysis: Any
    framework: Any
    geometry: Any
    math: Any
    plant: Any
    spatial: Any
    tree: Any
    value: Any


def load_drake() -> DrakeModules:
    """Return the parts of Drake, which is an optional dependency.

    Raises:
        InputError: Drake is not installed.
    """
    try:
        return DrakeModules(
            import_module("pydrake.systems.analysis"),
            import_module("pydrake.systems.framework"),
            import_module("pydrake.geometry"),
            import_module("pydrake.math"),
            import_module("pydrake.multibody.plant"),
            import_module("pydrake.multibody.math"),
            import_module("pydrake.multibody.tree"),
            import_module("pydrake.common.value"),
        )
    except ImportError as error:
        raise InputError('Drake needs `pip install "hybridctl[drake]"`') from error


def _build_diagram(made: DrakeModel) -> BuiltDiagram:
    """Return the diagram of a model."""
    framework, tree = load_drake().framework, load_drake().plant
    builder = framework.DiagramBuilder()
    plant, scene = tree.AddMultibodyPlantSceneGraph(builder, made.timestep)
    kinds = tree.DiscreteContactApproximation
    plant.set_discrete_contact_approximation(
        {"lagged": kinds.kLagged, "similar": kinds.kSimilar, "tamsi": kinds.kTamsi}[
            made.approximation
        ]
    )
    plant.set_adjacent_bodies_collision_filters(False)
    # By default the engine copies all outputs at each step, and looks for pairs with meshes, which
    # no geometry here has: more than half of the time of a step.
    plant.SetUseSampledOutputPorts(False)
    plant.set_contact_model(tree.ContactModel.kPoint)
    bodies = made.robot.tree()
    plant.mutable_gravity_field().set_gravity_vector(bodies.gravity)
    carriers, joints = [plant.world_body()], list[tuple[MovingBody, list[Any]]]()
    for i, body in enumerate(bodies.bodies):
        carrier, own = _add_body(plant, made.robot, carriers[body.parent + 1], i, body)
        carriers.append(carrier)
        joints.append((body, own))
    pairs = [_add_contact(plant, made, carriers, i, c) for i, c in enumerate(made.contacts)]
    plant.Finalize()
    for (_, own), armature in zip(joints, _list_armature(joints, bodies.armature), strict=True):
        for joint, inertia in zip(own, armature, strict=True):
            if inertia:
                actuator = plant.GetJointActuatorByName(joint.name())
                actuator.set_default_rotor_inertia(inertia)
                actuator.set_default_gear_ratio(1.0)
    _filter_collisions(scene, plant, pairs)
    positions = np.empty(made.robot.nq, dtype=np.intp)
    velocities, bases = np.empty(made.robot.nv, dtype=np.intp), list[tuple[int, int]]()
    for body, own in joints:
        q, v = own[0].position_start(), own[0].velocity_start()
        if body.kind == "floating":
            # Ours: position, quaternion x, y, z, w; linear, angular velocity.
            positions[body.q : body.q + 7] = q + np.array([4, 5, 6, 1, 2, 3, 0])
            velocities[body.v : body.v + 6] = v + np.array([3, 4, 5, 0, 1, 2])
            bases.append((q, v))
            continue
        for k, joint in enumerate(own):
            positions[body.q + k] = joint.position_start()
            velocities[body.v + k] = joint.velocity_start()
    points = {point: i for i, (point, _) in enumerate(pairs)}
    return BuiltDiagram(builder.Build(), plant, positions, velocities, bases, points, carriers)


def _list_armature(
    joints: Sequence[tuple[MovingBody, list[Any]]], armature: Array
) -> list[list[float]]:
    """Return the inertia of the rotor of each of the engine's joints of each body.

    Args:
        joints: Bodies with the engine's joints.
        armature: Inertia (nv,) of rotors.

    Raises:
        InputError: A floating base has rotors.
    """
    found = []
    for body, own in joints:
        if body.kind == "floating":
            if armature[body.v : body.v + 6].any():
                raise InputError("a floating base must have no rotors in Drake")
            found.append([0.0])
        else:
            found.append([float(armature[body.v + k]) for k in range(len(own))])
    return found


def _add_body(
    plant: Any, robot: Robot, parent: Any, i: int, body: MovingBody
) -> tuple[Any, list[Any]]:
    """Return the engine's body of a joint, and its joints, one for each axis.

    Args:
        plant: The engine's plant that is made.
        robot: The robot, with springs and damping of its joints.
        parent: The engine's body that carries the joint.
        i: Number of the joint.
        body: The body that it moves.

    Raises:
        InputError: The engine has no such joint.
    """
    tree, transforms = load_drake().tree, load_drake().math
    placed = transforms.RigidTransform(
        transforms.RotationMatrix(body.rotation), np.array(body.position)
    )
    none = transforms.RigidTransform()
    linear, angular = body.twist[:3], body.twist[3:]
    if body.kind == "floating":
        carrier = plant.AddRigidBody(f"body {i}", _make_inertia(tree, body))
        frame = parent.body_frame()
        if (body.rotation != np.eye(3)).any() or body.position.any():
            frame = plant.AddFrame(tree.FixedOffsetFrame(f"base {i}", parent.body_frame(), placed))
        kind = tree.QuaternionFloatingJoint
        return carrier, [plant.AddJoint(kind(f"joint {i}", frame, carrier.body_frame()))]
    if body.kind not in ("screw", "translation") or (linear.any() and angular.any()):
        raise InputError(f"joint {robot.joint_names[i]!r} has no counterpart in Drake")
    turns = bool(angular.any())
    axes, joints = (angular if turns else linear).T, []
    passive, armature = robot.passive, robot.tree().armature
    for k, axis in enumerate(axes):
        is_last = k == len(axes) - 1
        name, v = f"joint {i}.{k}", body.v + k
        carrier = plant.AddRigidBody(
            f"body {i}" if is_last else f"body {i}.{k}",
            _make_inertia(tree, body) if is_last else tree.SpatialInertia.Zero(),
        )
        kind = tree.RevoluteJoint if turns else tree.PrismaticJoint
        arms = (parent.body_frame(), carrier.body_frame())
        frame = plant.AddFrame(tree.FixedOffsetFrame(f"{name} in parent", arms[0], placed))
        joint = plant.AddJoint(kind(name, frame, arms[1], axis, damping=float(passive.damping[v])))
        if passive.stiffness[v]:
            spring = tree.RevoluteSpring if turns else tree.PrismaticSpring
            rest, stiffness = float(passive.rest[v]), float(passive.stiffness[v])
            plant.AddForceElement(spring(joint, rest, stiffness))
        if armature[v]:
            plant.AddJointActuator(name, joint)
        joints.append(joint)
        parent, placed = carrier, none
    return carrier, joints


def _make_inertia(tree: Any, body: MovingBody) -> Any:
    """Return the engine's inertia of a body about the origin of its joint.

    Args:
        tree: Drake's module of multibody trees.
        body: The body.
    """
    if body.mass == 0.0:
        return tree.SpatialInertia.Zero()
    c = body.moment / body.mass
    about = body.inertia - body.mass * (c @ c * np.eye(3) - np.outer(c, c))
    about += ADDED_THICKNESS * np.trace(about) * np.eye(3)
    unit = about / body.mass
    own = tree.UnitInertia(*np.diag(unit), unit[0, 1], unit[0, 2], unit[1, 2])
    central = tree.SpatialInertia(body.mass, np.zeros(3), own)
    return central.Shift(-c)


def _add_contact(
    plant: Any, made: DrakeModel, carriers: Sequence[Any], i: int, contact: Contact
) -> tuple[Any, list[Any]]:
    """Return the geometry of a contact, and those with which it collides.

    Args:
        plant: The engine's plant that is made.
        made: The model that is asked for.
        carriers: The engine's body of each joint, the world first.
        i: Number of the contact.
        contact: The contact.

    Raises:
        InputError: The engine has no such surface.
    """
    shapes, transforms = load_drake().geometry, load_drake().math
    radius, shift = contact.radius or POINT_RADIUS, 0.0 if contact.radius else POINT_RADIUS
    give, properties = made.compliance, shapes.ProximityProperties()
    friction = load_drake().plant.CoulombFriction(contact.friction, contact.friction)
    # Two springs of twice the stiffness in a row have the stiffness.
    shapes.AddContactMaterial(
        dissipation=give.dissipation,
        point_stiffness=2.0 * give.stiffness,
        friction=friction,
        properties=properties,
    )

    def add(name: str, frame: str, place: Array, shape: Any) -> Any:
        """Return the geometry of a shape at a pose (4, 4) in a frame of the robot."""
        known = made.robot.frame(frame)
        pose = make_pose(known.rotation, known.position) @ place
        at = transforms.RigidTransform(transforms.RotationMatrix(pose[:3, :3]), pose[:3, 3])
        return plant.RegisterCollisionGeometry(carriers[known.joint], at, shape, name, properties)

    point = add(
        f"point {i}", contact.frame, make_pose(np.eye(3), contact.offset), shapes.Sphere(radius)
    )
    surface = contact.surface
    if isinstance(surface, Plane):
        normal = surface.unit_normal
        face, turn = surface.point - shift * normal, rotate_to_normal(normal)
        if contact.body == WORLD:
            place, shape = make_pose(turn, face), shapes.HalfSpace()
        else:
            place = make_pose(turn, face - SLAB_HALF_SIDES[2] * normal)
            shape = shapes.Box(*(2.0 * side for side in SLAB_HALF_SIDES))
    elif isinstance(surface, Sphere) and not surface.inside:
        place = make_pose(np.eye(3), surface.center)
        shape = shapes.Sphere(surface.radius - shift)
    else:
        raise InputError(
            f"surface of contact {contact.name!r} must be a Plane, or a Sphere from outside, "
            f"for Drake, got {surface!r}"
        )
    others = [add(f"surface {i}", contact.body, place, shape)]
    for k, box in enumerate(made.scenery):
        sides = np.maximum(box.sides - 2.0 * shift, 2.0 * POINT_RADIUS)
        others.append(add(f"box {k} of {i}", WORLD, box.pose, shapes.Box(*sides)))
    return point, others


def _filter_collisions(scene: Any, plant: Any, pairs: Sequence[tuple[Any, list[Any]]]) -> None:
    """Let each contact collide with its own surface and boxes, and with nothing else.

    Args:
        scene: The engine's scene graph.
        plant: The engine's plant.
        pairs: Geometry of each contact, with those that it may meet.
    """
    shapes = load_drake().geometry
    everything = [geometry for point, others in pairs for geometry in (point, *others)]
    manager, rule = scene.collision_filter_manager(), shapes.CollisionFilterDeclaration
    manager.Apply(rule().ExcludeWithin(shapes.GeometrySet(everything)))
    for point, others in pairs:
        allowed = shapes.GeometrySet([point]), shapes.GeometrySet(others)
        manager.Apply(rule().AllowBetween(*allowed))


def _list_of(kind: type) -> Any:
    """Return the type of lists of a type, by which the engine knows its values."""
    return list[kind]  # type: ignore[valid-type]


def _make_rotation(quaternion: Array) -> Array:
    """Return the rotation (3, 3) of a quaternion w, x, y, z, of any length."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
