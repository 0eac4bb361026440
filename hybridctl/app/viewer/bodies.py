"""The bodies of a robot in a scene: Pinocchio's own visualizer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pinocchio as pin
from pinocchio.visualize import ViserVisualizer

_GREY = (0.6, 0.6, 0.63, 1.0)
_OPACITY = 0.4  # of tinted shapes


class DrawnBodies(ViserVisualizer):  # type: ignore[misc]
    """Pinocchio's visualizer on a server of viser, below `/name`; see `display(q)`.

    tint: red, green and blue, 0 to 255, of all shapes, which one can then look through; without it
    they have the colour of the URDF. Of those without one, meshes have that of their file, and
    others are grey.
    """

    def __init__(
        self,
        server: Any,
        name: str,
        model: Any,
        shapes: Any,
        tint: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__(model, pin.GeometryModel(), shapes)
        self.initViewer(viewer=server)
        color = None if tint is None else [*(tone / 255.0 for tone in tint), _OPACITY]
        self.loadViewerModel(f"/{name}", visual_color=color)

    def loadViewerGeometryObject(
        self, geometry_object: Any, prefix: str = "", color: Any = None
    ) -> None:
        """Draw a shape; Pinocchio tints no collada, and knows no colours of other files."""
        path, scene = geometry_object.meshPath, self.viewer.scene
        plain = color is None and not geometry_object.overrideMaterial
        if not Path(path).suffix:
            super().loadViewerGeometryObject(geometry_object, prefix, _GREY if plain else color)
            return
        mesh = import_module("trimesh").load(path, force="mesh")
        scale, name = tuple(geometry_object.meshScale.tolist()), f"{prefix}/{geometry_object.name}"
        if plain:
            self.frames[name] = scene.add_mesh_trimesh(name, mesh, scale=scale)
            return
        *tone, opacity = geometry_object.meshColor if color is None else color
        self.frames[name] = scene.add_mesh_simple(
            name, mesh.vertices, mesh.faces, color=tone, opacity=opacity, scale=scale
        )
