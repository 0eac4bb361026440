"""A Pinocchio model whose inertias can be replaced, with what is made of it at first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pinocchio as pin

from hybridctl.base.checks import Array, check_member
from hybridctl.mechanics.multibody.bodies import (
    Frame,
    check_moved_inertias,
    compute_moments,
)
from hybridctl.mechanics.multibody.sweeps import ThreadData
from hybridctl.mechanics.multibody.urdf import rank_frame


class RigidModel:
    """The model of a robot: joints and frames, which stay, and inertias, which may be replaced.

    Models with other inertias share the rest. Pinocchio's model with these, and the memory that it
    is evaluated in, are made where they are first asked for: runs in compiled modes need neither.
    Threads can share it.

    Args:
        geometry: The `pinocchio.Model` that has the joints and frames.

    Attributes:
        geometry: The same.
        masses: Masses (n + 1,) that the world and the n joints move, kg.
    """

    def __init__(self, geometry: Any) -> None:
        self.geometry = geometry
        self.masses = [float(inertia.mass) for inertia in geometry.inertias]
        self._replaced: dict[int, Any] = {}
        self._frames: dict[str, Frame] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return all but what is made at first use, which every process makes anew."""
        kept = {name: self.__dict__[name] for name in ("geometry", "masses", "_replaced")}
        return {**kept, "_frames": {}}

    @cached_property
    def model(self) -> Any:
        """The `pinocchio.Model`; the geometry itself where no inertia was replaced."""
        if not self._replaced:
            return self.geometry
        model = self.geometry.copy()
        for joint, inertia in self._replaced.items():
            model.inertias[joint] = inertia
        return model

    @cached_property
    def scratch(self) -> ThreadData:
        """Memory that the model is evaluated in."""
        return ThreadData(self.model)

    @cached_property
    def weightless(self) -> tuple[Any, ThreadData]:
        """The model without gravity, and the memory that it is evaluated in."""
        model = self.model.copy()
        model.gravity.linear = np.zeros(3)
        return model, ThreadData(model)

    @cached_property
    def moments(self) -> list[Array]:
        """Principal moments of inertia (3,) that the world and each joint move, kg m^2."""
        return compute_moments(self.model)

    @property
    def weight(self) -> float:
        """Mass of all moving bodies times gravity, N; times 1 m/s^2 where gravity is less."""
        gravity = float(np.linalg.norm(self.geometry.gravity.linear))
        return sum(self.masses[1:]) * max(1.0, gravity)

    def inertia(self, joint: int) -> tuple[float, Array, Array]:
        """Return mass, center of mass (3,) and inertia (3, 3) about it of a joint's body."""
        found = self._replaced.get(joint)
        if found is None:
            found = self.geometry.inertias[joint]
        return float(found.mass), np.array(found.lever), np.array(found.inertia)

    def replace(
        self, inertias: Mapping[int, tuple[float, Array, Array]]
    ) -> tuple[RigidModel, dict[int, Any]]:
        """Return the model with other inertias, and those that are new as `pinocchio.Inertia`.

        Args:
            inertias: New values of `inertia` by joint; others stay.

        Raises:
            InputError: An inertia is not physical.
        """
        new = {joint: pin.Inertia(*values) for joint, values in inertias.items()}
        masses, moments = list(self.masses), list(self.moments)
        for joint, inertia in new.items():
            masses[joint] = float(inertia.mass)
            if not np.array_equal(inertia.inertia, self.inertia(joint)[2]):
                moments[joint] = np.linalg.eigvalsh(inertia.inertia)
        check_moved_inertias(tuple(self.geometry.names)[1:], masses, moments)
        other: RigidModel = object.__new__(RigidModel)
        other.geometry, other.masses, other._frames = self.geometry, masses, self._frames
        other._replaced, other.moments = {**self._replaced, **new}, moments
        return other, new

    def frame(self, name: str, what: str) -> Frame:
        """Return a frame by name, see `Robot.frame`.

        Args:
            name: Of a link, a joint or a fixed frame.
            what: What the name is, for the error.

        Raises:
            UnknownNameError: No frame has this name.
        """
        known = self._frames.get(name) if isinstance(name, str) else None
        if known is None:
            frames = self.geometry.frames
            checked = check_member(what, name, tuple(frame.name for frame in frames))
            frame = min((one for one in frames if one.name == checked), key=rank_frame)
            at = frame.placement
            pose = np.array(at.rotation), np.array(at.translation)
            known = self._frames[checked] = Frame(int(frame.parentJoint), *pose)
        return known
