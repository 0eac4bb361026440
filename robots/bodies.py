"""URDF text of single rigid bodies, shared by the models of this package."""

from __future__ import annotations

from collections.abc import Sequence


def body(name: str, mass: float, inertia: Sequence[float]) -> str:
    """One link with its centre of mass at its origin; `inertia` about x, y, z in kg m^2."""
    x, y, z = inertia
    return (
        f'  <link name="{name}">\n    <inertial>\n      <mass value="{mass:.17g}"/>\n'
        f'      <inertia ixx="{x:.17g}" iyy="{y:.17g}" izz="{z:.17g}" ixy="0" ixz="0" iyz="0"/>\n'
        "    </inertial>\n  </link>"
    )


def free_body(name: str, mass: float, inertia: Sequence[float]) -> str:
    """A robot of one link, for a floating or sagittal root."""
    link = body(name, mass, inertia)
    return f'<?xml version="1.0"?>\n<robot name="{name}">\n{link}\n</robot>\n'


def cuboid_inertia(mass: float, sides: Sequence[float]) -> tuple[float, float, float]:
    """Moments of inertia of a solid box with sides along x, y, z, kg m^2."""
    x, y, z = (mass / 12.0 * side**2 for side in sides)
    return y + z, x + z, x + y
