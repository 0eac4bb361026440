r"""The Pinocchio adapter: with `sweeps` and `urdf`, all of mechanics that imports `pinocchio`.

Pinocchio's functions write into a `Data` object and return views of it, and take indices and
configurations on trust. `Robot` owns that scratch memory, one for each thread, resolves names
once, checks configurations at the border, and returns arrays that belong to the caller.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pinocchio as pin
from numpy.typing import ArrayLike, NDArray

from hybridctl.base.checks import (
    Array,
    check_flag,
    check_instance,
    check_mapping,
    check_member,
    check_number,
    check_sequence,
    check_vector,
)
from hybridctl.base.errors import InputError
from hybridctl.base.files import read_file_or_text
from hybridctl.base.tables import render_html_table
from hybridctl.mechanics.multibody.bodies import (
    Body,
    BodyKinematics,
    Frame,
    MotionDerivatives,
    Tree,
    check_inertias,
    find_massless_velocity,
    read_tree,
    replace_bodies,
)
from hybridctl.mechanics.multibody.dry_friction import joint_friction
from hybridctl.mechanics.multibody.joints import (
    CoordinateLabels,
    check_joints,
    describe_joints,
    describe_range,
    list_motor_joints,
    make_coordinate_labels,
)
from hybridctl.mechanics.multibody.limits import (
    JointLimit,
    read_joint_limits,
    read_motor_efforts,
    warn_of_posture,
)
from hybridctl.mechanics.multibody.links import CollisionModel
from hybridctl.mechanics.multibody.mimic import Mimic, find_coupling, read_mimics
from hybridctl.mechanics.multibody.mjcf import read_mjcf
from hybridctl.mechanics.multibody.passive import (
    Passive,
    Rotor,
    compute_armature,
    find_joint_indices,
)
from hybridctl.mechanics.multibody.rigid_model import RigidModel
from hybridctl.mechanics.multibody.sweeps import (
    Sweeps,
    ThreadData,
    inverse_dynamics_derivatives,
    motion_derivatives,
    subspace_adjoint,
)
from hybridctl.mechanics.multibody.urdf import Root as Root
from hybridctl.mechanics.multibody.urdf import model_of, refuse_massless_joint
from hybridctl.mechanics.multibody.urdf_document import parse_urdf

_UNIT_NORM_TOLERANCE = 1e-6
"""Deviation from 1 of the norm of a quaternion or unit circle: files have six digits."""


class Robot:
    r"""A tree of rigid bodies with springs and dampers: :math:`M \dot v + h = S u + J^T \lambda`.

    A robot is built by `from_urdf`, by `from_mjcf`, or from a `pinocchio.Model`. Units are SI.

    Configurations q (nq,) live on Pinocchio's manifold, with quaternions as x, y, z, w. Velocities
    v (nv,) and perturbations of q are in its local tangent space. The bias h has Coriolis,
    centrifugal and gravity terms, and those of springs and dampers, k (q - q_rest) + d v, at joints
    of one degree of freedom. Rotors of geared motors add their `armature` to the diagonal of M.

    Joints that mimic others have no coordinate, velocity, limit or motor of their own. Their
    springs, dampers, dry friction and rotors act on the joint that they follow; chains are followed
    to the end.

    Args:
        model: A `pinocchio.Model`, which is copied.
        actuated: Joints with a motor, in the order of inputs. None for all but those of a base
            that moves (`from_urdf`).
        stiffness: Stiffness k of springs by joint, N m/rad or N/m.
        rest: Rest positions of springs by joint, rad or m; 0 by default.
        damping: Damping d by joint, N m s/rad or N s/m; by default that of the model.
        rotors: Rotors of geared motors by joint.
        friction: Dry friction by joint, N m or N; by default that of the model.
        gravity: Gravity (3,), m/s^2.
        mimics: Joints that follow others, by name.

    Attributes:
        nq: Number of coordinates.
        nv: Number of velocities.
        nu: Number of inputs.
        actuation: Matrix S (nv, nu) of the inputs.
        armature: Inertia (nv,) of rotors on the diagonal of M, kg m^2 or kg.
        mass: Mass of all bodies, kg.
        weight: Mass of all moving bodies times gravity, N; times 1 m/s^2 where gravity is less.
        joint_names: Names of all joints, in the order of the tree.
        link_names: Names of all links.
        joints: Indices of coordinates and velocities of joints of one degree of freedom.
        mimics: Joints that follow others, by name, with chains followed to the end.
        passive: Springs and dampers.
        resists: Whether there are springs or dampers.
        limits: `JointLimit` of each joint with one coordinate. The dynamics ignores them, unless a
            `contact_system` is made with `joint_stops`.
        friction: Dry friction (nv,), N m or N. It is a set-valued force, which `contact_system`
            adds and the methods below leave out.
        effort: Limits (nu,) of the motors, N m or N; inf where the file gives none, and for a URDF
            effort of 0. Policies that take `limits` and plans have these by default. Runs that need
            more give an `EffortLimitWarning`.
        source: URDF that the robot was built from, a path or its text; None for none.
        keyframes: Named configurations (nq,) of an MJCF file; empty without one.
        collision: Collision shapes of an MJCF file; None without one.
        fixed_by_default: Root link that is fixed because `from_urdf` was given no root, if it or a
            link fixed to it has mass; else None.

    Raises:
        InputError: An inertia is not physical, a joint has a type that is not supported, or another
            argument does not fit.
        UnknownNameError: A joint is named that does not exist.
    """

    def __init__(
        self,
        model: Any,
        *,
        actuated: Sequence[str] | None = None,
        stiffness: Mapping[str, float] | None = None,
        rest: Mapping[str, float] | None = None,
        damping: Mapping[str, float] | None = None,
        rotors: Mapping[str, Rotor] | None = None,
        friction: Mapping[str, float] | None = None,
        gravity: ArrayLike = (0.0, 0.0, -9.81),
        mimics: Mapping[str, Mimic] | None = None,
    ) -> None:
        check_inertias(check_instance("model", model, pin.Model))
        check_joints(model)
        self.source: str | os.PathLike[str] | None = None
        self.keyframes: dict[str, Array] = {}
        self.collision: CollisionModel | None = None
        self.fixed_by_default: str | None = None
        geometry = model.copy()
        geometry.gravity.linear = np.array(check_vector("gravity", gravity, 3))
        self.joint_names: tuple[str, ...] = tuple(geometry.names)[1:]
        tree_joints = find_joint_indices(geometry)
        self._coupling = find_coupling(mimics, tree_joints, int(model.nq), int(model.nv))
        self.mimics = {} if self._coupling is None else dict(self._coupling.mimics)
        self.joints = tree_joints
        if self._coupling is not None:
            self.joints = self._coupling.reduce_indices(tree_joints)
        self.limits = read_joint_limits(geometry, tree_joints, self.joints)
        geometry.armature = compute_armature(model.armature, tree_joints, rotors)
        self._rigid = RigidModel(geometry)
        self.mass, self.weight = sum(self._rigid.masses), self._rigid.weight
        self._nv_all = int(geometry.nv)
        tree = read_tree(geometry)
        self._tree = tree if self._coupling is None else self._coupling.reduce_tree(tree)
        tree = self._tree
        self.armature = tree.armature
        self.armature.flags.writeable = False
        self.nq, self.nv = len(self.neutral()), len(self.armature)
        self.link_names = tuple(f.name for f in geometry.frames if f.type == pin.FrameType.BODY)
        curved = [body for body in tree.bodies if body.unit is not None]
        self._units = [body.unit for body in curved if body.unit is not None]
        self._turns = [
            (slice(b.v, b.v + b.twist.shape[1]), subspace_adjoint(b.twist)) for b in curved
        ]
        names = [name for name in list_motor_joints(geometry) if name not in self.mimics]
        if actuated is not None:
            names = check_sequence("actuated", actuated)
        for name in self.mimics:
            if name in names:
                self.joints.single("actuated", name)  # refuses it
        columns = [column for name in names for column in self.velocities(name)]
        self.nu = len(columns)
        self.actuation = np.zeros((self.nv, self.nu))
        self.actuation[columns, np.arange(self.nu)] = 1.0
        self.actuation.flags.writeable = False
        own = np.arange(self.nv) if self._coupling is None else self._coupling.v_own
        self.effort = read_motor_efforts(geometry, own[columns].tolist())
        self.passive = Passive.of(tree_joints, geometry.damping, stiffness, rest, damping)
        self.friction = joint_friction(geometry, friction)
        if self._coupling is not None:
            self.passive = self._coupling.reduce_passive(self.passive)
            self.friction = self._coupling.reduce_friction(self.friction)
        self.resists = bool(self.passive.stiffness.any() or self.passive.damping.any())

    @staticmethod
    def from_urdf(
        urdf: str | os.PathLike[str],
        *,
        root: Root | None = None,
        actuated: Sequence[str] | None = None,
        stiffness: Mapping[str, float] | None = None,
        rest: Mapping[str, float] | None = None,
        damping: Mapping[str, float] | None = None,
        rotors: Mapping[str, Rotor] | None = None,
        friction: Mapping[str, float] | None = None,
        gravity: ArrayLike = (0.0, 0.0, -9.81),
    ) -> Robot:
        """Return a robot from a URDF file or its text.

        Planar joints move perpendicular to their axis. A joint with `<mimic>` follows the other
        joint exactly: it has no coordinate, velocity or motor of its own (see `Robot.mimics`).

        Args:
            urdf: Path of the file, or its text.
            root: "fixed" to the world, "floating", "sagittal" (slides along x and z, turns about
                y), or "euler" (slides along x, y and z, turns about z, y and x: for `Task`s, which
                need symmetry without quaternions). None for fixed (see `contact_system`).
            actuated: Joints with a motor, see `Robot`.
            stiffness: Stiffness of springs by joint, N m/rad or N/m.
            rest: Rest positions of springs by joint, rad or m.
            damping: Damping by joint, in place of the file's, N m s/rad or N s/m.
            rotors: Rotors of the motors by joint; URDF has no place for them.
            friction: Dry friction by joint, in place of the file's, N m or N.
            gravity: Gravity (3,), m/s^2.

        Raises:
            FileFormatError: The file is no URDF or makes no sense; the message has the line. Such
                are a number that cannot be read, a joint along a zero axis, or one that moves no
                mass.
            InputError: No joint moves, or an argument does not fit.
            UnknownNameError: A joint is named that does not exist.
        """
        if root is not None:
            check_member("root", root, ("fixed", "floating", "sagittal", "euler"))
        document = parse_urdf(read_file_or_text("urdf", urdf))
        model = model_of(document, root or "fixed")
        if model.nv == 0:
            raise InputError("urdf has no joint that moves")
        robot = Robot(
            model,
            actuated=actuated,
            stiffness=stiffness,
            rest=rest,
            damping=damping,
            rotors=rotors,
            friction=friction,
            gravity=gravity,
            mimics=read_mimics(document.root),
        )
        # At a configuration without symmetry: matrices that are singular elsewhere are left alone.
        q = robot.integrate(robot.neutral(), np.sin(np.arange(1.0, robot.nv + 1.0)))
        massless = find_massless_velocity(robot.mass_matrix(q))
        for name in robot.joint_names:
            if massless in robot.velocities(name):
                refuse_massless_joint(document, name)
        robot.source = urdf
        if root is None and float(model.inertias[0].mass) > 0.0:
            robot.fixed_by_default = robot.link_names[0]
        return robot

    @staticmethod
    def from_mjcf(
        mjcf: str | os.PathLike[str],
        *,
        actuated: Sequence[str] | None = None,
        stiffness: Mapping[str, float] | None = None,
        rest: Mapping[str, float] | None = None,
        damping: Mapping[str, float] | None = None,
        rotors: Mapping[str, Rotor] | None = None,
        friction: Mapping[str, float] | None = None,
        gravity: ArrayLike | None = None,
        ignore: Sequence[str] = (),
        fixed_base: bool = False,
    ) -> Robot:
        """Build a robot from an MJCF file or its text, as MuJoCo compiles it.

        Bodies, joints, masses, gravity, armature, damping and springs equal MuJoCo's. Inputs are
        torques or forces along the joints, before gears and controllers of the file. See `mjcf`
        for the coordinates of free joints. Needs `pip install "hybridctl[mujoco]"`.

        Args:
            mjcf: Path of the file, or its text; a text cannot include other files.
            actuated: Joints with a motor. If None, those that have an actuator, in the order of
                the file; without actuators all but free joints.
            stiffness: Of springs by joint name, N m/rad or N/m, in place of the file's.
            rest: Of springs by joint name, rad or m, in place of the file's.
            damping: By joint name, N m s/rad or N s/m, in place of the file's.
            rotors: Of geared motors, by joint name, in place of the file's armature.
            friction: Dry friction by joint name, N m or N, in place of the file's frictionloss.
            gravity: (3,), m/s^2. If None, that of the file.
            ignore: What of the file may be left out: "equality", "tendon", "flex", "fluid",
                "muscle", "actuator" (on anything but a joint), "frictionloss" (of any joint),
                "stiffness" (of balls and free joints), "nonlinear" (springs and dampers),
                "armature" (of a free joint), "gravcomp", "plugin", or the name of one element.
            fixed_base: Whether bodies with free joints are fixed to the world instead, as filters
                of a legged base take a robot. Keyframes are left out then.

        Returns:
            The robot; `keyframes` has its configurations, with "qpos0" as that of the
            file itself unless a keyframe has this name.

        Raises:
            FileFormatError: The file is no MJCF that MuJoCo compiles.
            InputError: The file has something that a robot cannot hold and that `ignore` does not
                name, or no joint; or MuJoCo is not installed.
            UnknownNameError: A joint is named that does not exist.
        """
        skipped = check_sequence("ignore", ignore)
        read = read_mjcf(mjcf, skipped, is_fixed=check_flag("fixed_base", fixed_base))
        robot = Robot(
            read.model,
            actuated=read.actuated if actuated is None else actuated,
            stiffness={**read.stiffness, **(stiffness or {})},
            rest={**read.rest, **(rest or {})},
            damping=damping,
            rotors=rotors,
            friction=friction,
            gravity=read.model.gravity.linear if gravity is None else gravity,
            mimics=read.mimics,
        )
        robot.keyframes = {name: robot._reduce_q(q) for name, q in read.keyframes.items()}
        robot.collision = read.collision
        return robot

    def __repr__(self) -> str:
        followed = {name: mimic.describe() for name, mimic in self.mimics.items()}
        places = {name: self._list_indices(name) for name in self.joint_names}
        joints = ", ".join(describe_joints(places, followed))
        # Inputs mostly are in the order of the joints, and then need no words.
        moved = self.actuation.argmax(axis=0).tolist()
        by_place = {i: name for name in self.joint_names for i in np.r_[self.velocities(name)]}
        motors = ", ".join(dict.fromkeys(by_place[i] for i in moved))
        order = f"; inputs in the order {motors}" if moved != sorted(moved) else ""
        return f"Robot(nq={self.nq}, nv={self.nv}, joints {joints}{order})"

    def _repr_html_(self) -> str:
        """Return a table of the joints, with their places in q and v, and the driven ones."""
        driven = np.asarray(self.actuation.any(axis=1))
        rows = []
        for name in self.joint_names:
            q, v = self.coordinates(name), self.velocities(name)
            motor = "yes" if driven[v].any() else "no"
            if name in self.mimics:
                motor = f"mimics: {self.mimics[name].describe()}"
            rows.append((name, describe_range(q), describe_range(v), motor))
        return render_html_table(("joint", "q", "v", "motor"), rows)

    @property
    def model(self) -> Any:
        """A copy of the `pinocchio.Model`, for Pinocchio's own tools; springs are in `passive`.

        Joints that mimic move on their own there: see `all_coordinates`.
        """
        return self._model.copy()

    @property
    def labels(self) -> CoordinateLabels:
        """Names, with units, of coordinates, velocities and forces along these."""
        labels = make_coordinate_labels(self._geometry)
        return labels if self._coupling is None else self._coupling.reduce_labels(labels)

    @property
    def _model(self) -> Any:
        return self._rigid.model

    @property
    def _geometry(self) -> Any:
        return self._rigid.geometry

    @property
    def _scratch(self) -> ThreadData:
        return self._rigid.scratch

    def velocities(self, name: str) -> list[int]:
        """Return the indices in v of the velocities of a joint, none for one that mimics.

        Raises:
            UnknownNameError: There is no such joint.
        """
        return self._list_indices(name)[1]

    def coordinates(self, name: str) -> list[int]:
        """Return the indices in q of the coordinates of a joint, none for one that mimics.

        A continuous joint has the cosine and the sine of its angle.

        Raises:
            UnknownNameError: There is no such joint.
        """
        return self._list_indices(name)[0]

    def _list_indices(self, name: str) -> tuple[list[int], list[int]]:
        """Return the indices of the coordinates and of the velocities of a joint."""
        known = check_member("joint", name, self.joint_names)
        if known in self.mimics:
            return [], []
        joint = self._geometry.joints[self._geometry.getJointId(known)]
        q, v = joint.idx_q, joint.idx_v
        if self._coupling is not None:
            q, v = int(self._coupling.q_source[q]), int(self._coupling.v_source[v])
        return list(range(q, q + joint.nq)), list(range(v, v + joint.nv))

    def coordinate_index(self, name: str) -> int:
        """Return the index in q of the coordinate of a joint that has one, in rad or m there.

        Raises:
            UnknownNameError: There is no such joint.
            InputError: It has several coordinates, as a continuous joint has; see `coordinates`.
        """
        return self.joints.single("name", name)[0]

    def velocity_index(self, name: str) -> int:
        """Return the index in v of the velocity of a joint of one degree of freedom.

        Raises:
            UnknownNameError: There is no such joint.
            InputError: It has several degrees of freedom; see `velocities`.
        """
        return self.joints.velocity("name", name)

    # Configurations

    def neutral(self) -> Array:
        """Return the neutral configuration (nq,): zero positions, and unit quaternions."""
        return self._reduce_q(np.array(pin.neutral(self._geometry)))

    def posture(self, joints: Mapping[str, float]) -> Array:
        """Return the neutral configuration (nq,) with some joints at given positions.

        Args:
            joints: Positions in rad or m of joints of one degree of freedom, by name. Of a
                continuous joint it is the angle a, whose coordinates are (cos a, sin a).

        Raises:
            UnknownNameError: A name is no joint.
            InputError: A joint has several degrees of freedom, or joints is no mapping.

        Gives a `JointLimitWarning` for what is beyond limits, or looks like degrees.
        """
        q, placed = self.neutral(), []
        for name, value in check_mapping("joints", joints, "names of joints to rad or m").items():
            position = check_number(name, value)
            if name in self.joints.circles:
                i = self.joints.circles[name][0]
                q[i : i + 2] = math.cos(position), math.sin(position)
                placed.append((JointLimit(name, i, True, -math.inf, math.inf), position))
            else:
                q[self.joints.single("joints", name)[0]] = position
                placed.append((self.limits[name], position))
        warn_of_posture(placed)
        return q

    def integrate(self, q: Array, dq: Array) -> Array:
        """Return the configuration (nq,) reached from q (nq,) along dq (nv,)."""
        q_all, dq_all = self._expand_q(q), self.all_velocities(dq)
        return self._reduce_q(np.array(pin.integrate(self._geometry, q_all, dq_all)))

    def difference(self, q0: Array, q1: Array) -> Array:
        """Return the perturbation (nv,) that leads from q0 (nq,) to q1 (nq,)."""
        change = np.array(pin.difference(self._geometry, self._expand_q(q0), self._expand_q(q1)))
        return change if self._coupling is None else np.asarray(change[self._coupling.v_own])

    def difference_jacobians(self, q0: Array, q1: Array) -> tuple[Array, Array]:
        """Return the derivatives (nv, nv) of `difference` by perturbations of q0 and of q1."""
        ends = self._expand_q(q0), self._expand_q(q1)
        first, second = map(np.array, pin.dDifference(self._geometry, *ends))
        if self._coupling is None:
            return first, second
        own = np.ix_(self._coupling.v_own, self._coupling.v_own)
        return first[own], second[own]

    def rate(self, q: Array, v: Array) -> Array:
        """Return the rate of the coordinates (nq,) at velocity v (nv,), or (nq, k) at v (nv, k)."""
        if self.nq == self.nv:
            return v
        columns = self.all_velocities(v.reshape(self.nv, -1))
        rates = np.asarray(pin.tangentMapProduct(self._geometry, self._expand_q(q), columns))
        return np.reshape(self._reduce_q(rates), (self.nq, *v.shape[1:]))

    def transport(self, v: Array) -> Array:
        """Return the negative adjoint (nv, nv) of v: perturbations of q turn with the motion."""
        result = np.zeros((self.nv, self.nv))
        for iv, turns in self._turns:
            result[iv, iv] = -turns @ v[iv]
        return result

    def normalize(self, q: Array) -> Array:
        """Return a configuration q (nq,) with quaternions and unit circles scaled to norm 1."""
        if self.nq == self.nv:
            return q
        return self._reduce_q(np.array(pin.normalize(self._geometry, self._expand_q(q))))

    def normalize_rows(self, x: Array) -> Array:
        """Return m rows (m, ...) that begin with a configuration, each as `normalize` returns it.

        Sums of squares are in Pinocchio's order, so that both are equal to the bit where it uses no
        fused operations.

        Args:
            x: Configurations, with what may follow them.
        """
        result = x.copy()
        for unit in self._units:
            squares = x[:, unit] ** 2
            while squares.shape[1] > 1:
                half = squares.shape[1] // 2
                squares = squares[:, :half] + squares[:, half:]
            result[:, unit] /= np.sqrt(squares)
        return np.asarray(result)

    def check(self, name: str, q: Array) -> None:
        """Check that quaternions and unit circles of a configuration have norm 1.

        Args:
            name: Name of the argument, for messages.
            q: Configuration (nq,).

        Raises:
            InputError: A norm differs from 1 by more than 1e-6.
        """
        for unit in self._units:
            norm = float(np.linalg.norm(q[unit]))
            if abs(norm - 1.0) > _UNIT_NORM_TOLERANCE:
                raise InputError(
                    f"{name}: entries {unit.start} to {unit.stop - 1} must have norm 1 (a "
                    f"quaternion x, y, z, w or a cosine and sine), got {q[unit].tolist()} of norm "
                    f"{norm:.6g}"
                )

    # Joints that mimic

    def all_coordinates(self, q: Array) -> Array:
        """Return the coordinates (model.nq,) of all joints, of those that mimic too.

        Args:
            q: Configuration (nq,).
        """
        return np.array(self._expand_q(check_vector("q", q, self.nq)))

    def _expand_q(self, q: Array) -> Array:
        """Return the coordinates of all joints."""
        return q if self._coupling is None else self._coupling.expand(q)

    def all_velocities(self, v: Array) -> Array:
        """Return the velocities (model.nv,) of all joints, of those that mimic too.

        Args:
            v: Velocity (nv,), or k of them in columns (nv, k).
        """
        return v if self._coupling is None else self._coupling.expand_velocity(v)

    def _reduce_q(self, q: Array) -> Array:
        """Return the independent ones among the coordinates of all joints."""
        return q if self._coupling is None else np.asarray(q[self._coupling.q_own])

    def reduce_columns(self, columns: Array) -> Array:
        """Return columns (..., nv) by independent velocities from those by all joints' velocities.

        Args:
            columns: (..., model.nv), such as a Jacobian of `motion` times flags of `supporting`.
                They are returned unchanged where no joint mimics.
        """
        return columns if self._coupling is None else self._coupling.reduce_columns(columns)

    def reduce_flags(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which independent velocities (..., nv) move a joint that is flagged.

        Args:
            flags: Of the velocities of all joints, (..., model.nv).
        """
        return flags if self._coupling is None else self._coupling.reduce_flags(flags)

    # Names

    def frame(self, name: str, what: str = "frame") -> Frame:
        """Return a frame by name, "universe" for the world.

        A URDF may give a link, a joint and, in Pinocchio, a frame one name. A link comes first
        then, and a joint before any other frame.

        Args:
            name: Of a link, a joint or a fixed frame.
            what: What the name is, for the error.

        Returns:
            The joint that moves the frame, and its pose there.

        Raises:
            UnknownNameError: No frame has this name.
        """
        return self._rigid.frame(name, what)

    def body(self, name: str) -> Body:
        """Return the rigid body that a frame is fixed to.

        Args:
            name: Name of a link, a joint or a fixed frame.

        Raises:
            InputError: The frame is fixed to the world.
            UnknownNameError: No frame has this name.
        """
        frame = self.frame(name)
        if frame.joint == 0:
            raise InputError(f"frame {name!r} must move with a joint, but is fixed to the world")
        mass, center, _ = self.inertia(frame.joint)
        return Body(frame.joint, frame.rotation, mass, center)

    def inertia(self, joint: int) -> tuple[float, Array, Array]:
        """Return mass, center of mass (3,) and inertia (3, 3) about it of a joint's body.

        Center and axes are in the frame of the joint, in m and kg m^2.
        """
        return self._rigid.inertia(joint)

    def replace(
        self, inertias: Mapping[int, tuple[float, Array, Array]], passive: Passive
    ) -> Robot:
        """Return the same robot with other inertias, springs and dampers.

        Args:
            inertias: New values of `inertia` by joint; others stay.
            passive: Springs and dampers.

        Raises:
            InputError: An inertia is not physical.
        """
        other: Robot = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._rigid, new = self._rigid.replace(inertias)
        other._tree, other.mass = replace_bodies(self._tree, new), sum(other._rigid.masses)
        other.weight, other.passive = other._rigid.weight, passive
        other.resists = bool(passive.stiffness.any() or passive.damping.any())
        return other

    def supporting(self, joint: int) -> Array:
        """Return 1 for each velocity that moves the body of a joint, 0 for the others.

        Args:
            joint: Index of the joint; 0 for the world.

        Returns:
            Numbers (model.nv,) for the velocities of all joints, as the columns of `motion`.
        """
        mask = np.zeros(self._nv_all)
        for ancestor in list(self._geometry.supports[joint])[1:]:
            moved = self._geometry.joints[ancestor]
            mask[moved.idx_v : moved.idx_v + moved.nv] = 1.0
        return mask

    def carriers(self) -> NDArray[np.bool_]:
        """Return whether velocity j moves the joint of velocity i, or belongs to it, at [i, j].

        Returns:
            Values (model.nv, model.nv) for the velocities of all joints.
        """
        joints = list(self._geometry.joints)[1:]
        owners = [j for j, joint in enumerate(joints, 1) for _ in range(joint.nv)]
        return np.array([self.supporting(j) for j in owners]) > 0.0

    # Dynamics

    def sweeps(self, joints: Sequence[int]) -> tuple[Sweeps, Sweeps]:
        """Return sweeps for the bodies of some joints, with gravity and without; none may mimic."""
        return Sweeps(self._model, joints), Sweeps(self._rigid.weightless[0], joints)

    def mass_matrix(self, q: Array) -> Array:
        """Return the mass matrix M(q) (nv, nv), symmetric, with armature."""
        return self._reduce_square(pin.crba(self._model, self._scratch.data, self._expand_q(q)))

    def bias(self, q: Array, v: Array) -> Array:
        """Return the bias h(q, v) (nv,), springs and dampers included."""
        q_all, v_all = self._expand_q(q), self.all_velocities(v)
        h = np.array(pin.nonLinearEffects(self._model, self._scratch.data, q_all, v_all))
        h = self.reduce_columns(h)
        return h + self.passive.torque(q, v) if self.resists else h

    def free_acceleration(self, q: Array, v: Array, u: Array) -> Array:
        """Return the acceleration (nv,) with all contacts open, without dry friction of joints.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            u: Input (nu,).
        """
        if self._coupling is not None:
            return self.inverse_mass(q) @ (self.actuation @ u - self.bias(q, v))
        tau = self.actuation @ u - (self.passive.torque(q, v) if self.resists else 0.0)
        return np.array(pin.aba(self._model, self._scratch.data, q, v, tau))

    def inverse_mass(self, q: Array) -> Array:
        """Return the inverse mass matrix M(q)^-1 (nv, nv)."""
        if self._coupling is not None:
            try:
                return np.asarray(np.linalg.inv(self.mass_matrix(q)))
            except np.linalg.LinAlgError:  # a joint moves no mass: not finite, as Pinocchio's is
                return np.full((self.nv, self.nv), np.nan)
        return self._reduce_square(pin.computeMinverse(self._model, self._scratch.data, q))

    def energy(self, q: Array, v: Array) -> tuple[float, float]:
        """Return kinetic and potential energy in J; the potential of springs is included."""
        # computeKineticEnergy of Pinocchio 4.1 omits the armature of hinges with a skew axis.
        kinetic = 0.5 * float(v @ self.mass_matrix(q) @ v)
        q_all = self._expand_q(q)
        potential = float(pin.computePotentialEnergy(self._model, self._scratch.data, q_all))
        return kinetic, potential + self.passive.energy(q)

    def momentum(self, q: Array, v: Array) -> Array:
        """Return the momentum (6,): linear in N s, angular about the centre of mass in N m s."""
        q, v, data = self._expand_q(q), self.all_velocities(v), self._scratch.data
        return np.array(pin.computeCentroidalMomentum(self._model, data, q, v).vector)

    def bias_derivatives(
        self, q: Array, v: Array, a: Array, wrenches: Mapping[int, Array]
    ) -> tuple[Array, Array]:
        """Return the derivatives (nv, nv) of M a + h - J^T w by q and by v, at fixed a.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            wrenches: Spatial forces w by joint: force in N, and moment about the world's origin in
                N m. They are constant in the frame of their body, as in Pinocchio.
        """
        motion = self._expand_q(q), self.all_velocities(v), self.all_velocities(a)
        derivatives = inverse_dynamics_derivatives(
            self._model, self._scratch.data, motion, wrenches
        )
        d_q, d_v = map(self._reduce_square, derivatives)
        return d_q + np.diag(self.passive.stiffness), d_v + np.diag(self.passive.damping)

    def impulse_derivative(self, q: Array, dv: Array, wrenches: Mapping[int, Array]) -> Array:
        """Return the derivative (nv, nv) of M dv - J^T w by q, without gravity and springs.

        Args:
            q: Configuration (nq,).
            dv: Change of velocity (nv,), held fixed.
            wrenches: Spatial impulses w by joint, see `bias_derivatives`.
        """
        weightless, scratch = self._rigid.weightless
        motion = self._expand_q(q), np.zeros(self._nv_all), self.all_velocities(dv)
        return self._reduce_square(
            inverse_dynamics_derivatives(weightless, scratch.data, motion, wrenches)[0]
        )

    def regressor(self, q: Array, v: Array, a: Array) -> Array:
        r"""Return the regressor Y (nv, 10 n) with M a + h = Y pi, without springs and armature.

        pi has ten entries for the body of each of the n joints, in the frame of the joint: m, m c
        (3), and xx, xy, yy, xz, yz, zz of the inertia about the origin.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
        """
        return self._compute_regressor(self._model, self._scratch.data, q, v, a)

    def impulse_regressor(self, q: Array, dv: Array) -> Array:
        """Return the regressor Y (nv, 10 n) with M dv = Y pi, without armature; see `regressor`."""
        (weightless, scratch), still = self._rigid.weightless, np.zeros(self.nv)
        return self._compute_regressor(weightless, scratch.data, q, still, dv)

    def _compute_regressor(self, model: Any, data: Any, q: Array, v: Array, a: Array) -> Array:
        """Return the regressor (nv, 10 n) of the coordinates that are independent.

        Args:
            model: Pinocchio's model of all joints.
            data: Its data, which are overwritten.
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
        """
        motion = self._expand_q(q), self.all_velocities(v), self.all_velocities(a)
        regressor = np.array(pin.computeJointTorqueRegressor(model, data, *motion))
        return np.asarray(self.reduce_columns(regressor.T).T)

    def _reduce_square(self, matrix: Any) -> Array:
        """Return a copy (nv, nv) of a matrix of all joints, by independent velocities.

        Pinocchio returns vectors for robots of one joint.
        """
        square = np.array(matrix).reshape(self._nv_all, self._nv_all)
        return np.asarray(self.reduce_columns(self.reduce_columns(square).T).T)

    # Kinematics

    def poses(self, q: Array, joints: Sequence[int]) -> Array:
        """Return homogeneous transforms (k, 4, 4) from the frames of k joints to the world."""
        pin.forwardKinematics(self._model, self._scratch.data, self._expand_q(q))
        return self._copy_poses(joints)

    def motion(self, q: Array, v: Array, joints: Sequence[int]) -> BodyKinematics:
        """Return the Jacobians of all joints at once, and the poses of some.

        The Jacobian of one body has only the columns of the joints that carry it: multiply by
        `supporting`. Where joints mimic, `reduce_columns` then gives Jacobians by v.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            joints: Indices of the joints whose poses are returned.
        """
        data, nv = self._scratch.data, self._nv_all
        q_all, v_all = self._expand_q(q), self.all_velocities(v)
        pin.computeJointJacobiansTimeVariation(self._model, data, q_all, v_all)
        jacobian, rate = (np.array(each).reshape(6, nv) for each in (data.J, data.dJ))
        return BodyKinematics(jacobian, rate, self._copy_poses(joints))

    def point_position(self, q: ArrayLike, frame: str, offset: ArrayLike = (0, 0, 0)) -> Array:
        """Return the place in the world of a point that is fixed to a frame.

        Args:
            q: Configuration (nq,).
            frame: Name of a frame.
            offset: The point (3,) in the frame, m.

        Returns:
            The place (3,), m.

        Raises:
            InputError: The configuration or the offset has the wrong size.
            UnknownNameError: There is no such frame.
        """
        fixed, place = self.frame(frame), check_vector("offset", offset, 3)
        pose = self.poses(check_vector("q", q, self.nq), [fixed.joint])[0]
        return np.asarray(pose[:3, :3] @ (fixed.position + fixed.rotation @ place) + pose[:3, 3])

    def point_jacobian(self, q: Array, frame: str, offset: Array) -> Array:
        """Return the Jacobian J (3, nv) of a point, which moves at J v in world axes.

        Args:
            q: Configuration (nq,).
            frame: Name of the frame in which the point is fixed.
            offset: Position (3,) of the point in the frame, m.

        Raises:
            UnknownNameError: No frame has this name.
        """
        joint, rotation, position = self.frame(frame)
        motion = self.motion(q, np.zeros(self.nv), [joint])
        place = motion.poses[0] @ np.append(position + rotation @ offset, 1.0)
        moving = self.reduce_columns(motion.jacobian * self.supporting(joint))
        return np.array(moving[:3] + np.cross(moving[3:], place[:3], axis=0))

    def _copy_poses(self, joints: Sequence[int]) -> Array:
        poses = self._scratch.data.oMi
        return np.array([poses[j].homogeneous for j in joints])

    def motion_derivatives(
        self, q: Array, v: Array, a: Array, joints: Sequence[int]
    ) -> MotionDerivatives:
        """Return velocities and accelerations of joints in world coordinates, and derivatives.

        Args:
            q: Configuration (nq,).
            v: Velocity (nv,).
            a: Acceleration (nv,).
            joints: Indices of the joints.
        """
        motion = self._expand_q(q), self.all_velocities(v), self.all_velocities(a)
        velocity, acceleration, *columns = motion_derivatives(
            self._model, self._scratch.data, motion, joints
        )
        return MotionDerivatives(velocity, acceleration, *map(self.reduce_columns, columns))

    def tree(self) -> Tree:
        """Return the constants of the dynamics; springs and dampers are in `passive`."""
        return self._tree
