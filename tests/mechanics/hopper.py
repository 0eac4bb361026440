"""Two masses joined by a spring, the lower one above a plane: stick, slip, lift and land.

The lower mass moves along 1 (z), 2 (x, z) or 3 (x, y, z) directions; the upper one along `axis`
relative to it, held by a spring. Nothing is actuated.
"""

from hybridctl.mechanics import Contact, Plane, Robot

_LIMIT = '<limit lower="-1000" upper="1000" effort="1000" velocity="1000"/>'
_INERTIA = '<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/>'
_DIRECTIONS = {1: "z", 2: "xz", 3: "xyz"}
_AXES = {"x": "1 0 0", "y": "0 1 0", "z": "0 0 1"}


def urdf(dimensions: int, axis: str, mass: float, upper: float) -> str:
    letters = _DIRECTIONS[dimensions]
    parts, parent = ['<link name="world"/>'], "world"
    for letter in letters:
        last = letter == letters[-1]
        child = "foot" if last else f"carriage_{letter}"
        inertial = f'<inertial><mass value="{mass}"/>{_INERTIA}</inertial>' if last else ""
        parts.append(f'<link name="{child}">{inertial}</link>')
        parts.append(_prismatic(letter, parent, child, _AXES[letter]))
        parent = child
    parts.append(f'<link name="load"><inertial><mass value="{upper}"/>{_INERTIA}</inertial></link>')
    parts.append(_prismatic("spring", "foot", "load", axis))
    return f'<robot name="hopper">{"".join(parts)}</robot>'


def _prismatic(name: str, parent: str, child: str, axis: str) -> str:
    return (
        f'<joint name="{name}" type="prismatic"><parent link="{parent}"/><child link="{child}"/>'
        f'<axis xyz="{axis}"/>{_LIMIT}</joint>'
    )


def hopper(
    dimensions: int,
    axis: str = "0 0 1",
    *,
    mass: float = 1.0,
    upper: float = 0.5,
    stiffness: float = 60.0,
    normal=(0.0, 0.0, 1.0),
    **contact,
):
    """Robot and contacts."""
    robot = Robot.from_urdf(
        urdf(dimensions, axis, mass, upper), actuated=[], stiffness={"spring": stiffness}
    )
    return robot, [Contact("foot", "foot", Plane((0, 0, 0), normal), **contact)]
