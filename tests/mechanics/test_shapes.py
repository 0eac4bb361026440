"""The shapes of links are those that the URDF says."""

import logging

import numpy as np
import pytest

from hybridctl.errors import FileFormatError
from hybridctl.mechanics.contacts.shapes import GREY, shapes_of

URDF = """<robot name="r">
<material name="red"><color rgba="1 0 0 1"/></material>
<link name="a">
 <visual><origin xyz="1 2 3" rpy="0 0 1.5707963267948966"/>
  <geometry><box size="1 2 3"/></geometry><material name="red"/></visual>
 <visual><geometry><cylinder radius="0.1" length="0.5"/></geometry></visual>
 <visual><geometry><mesh filename="package://pack/meshes/part.stl" scale="1 1 2"/></geometry>
 </visual>
</link>
<link name="b"><visual><geometry><sphere radius="0.2"/></geometry>
 <material name="own"><color rgba="0 0.5 1 0.3"/></material></visual>
 <visual><geometry><mesh filename="package://pack/none.stl"/></geometry></visual></link>
</robot>"""


def test_primitives_have_sizes_places_and_colours(caplog):
    with caplog.at_level(logging.WARNING):
        box, cylinder, sphere = shapes_of(URDF)
    assert (box.link, box.kind, box.size, box.color) == ("a", "box", (1.0, 2.0, 3.0), (1, 0, 0))
    turned = np.array([[0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1.0]])
    np.testing.assert_allclose(box.pose, turned, atol=1e-15)
    assert (cylinder.kind, cylinder.size, cylinder.color) == ("cylinder", (0.1, 0.5), GREY)
    assert (sphere.link, sphere.size, sphere.color) == ("b", (0.2,), (0, 0.5, 1))
    assert "mesh package://pack/none.stl of link b is not found" in caplog.text


@pytest.mark.parametrize("where", ["folder", "above", "package"])
def test_meshes_are_found_in_packages_and_above_the_file(tmp_path, where):
    mesh = tmp_path / "pack/meshes/part.stl"
    mesh.parent.mkdir(parents=True)
    mesh.touch()
    (tmp_path / "pack/urdf").mkdir()
    (tmp_path / "pack/urdf/r.urdf").write_text(URDF)
    found = {
        "folder": lambda: shapes_of(URDF, [tmp_path]),
        "above": lambda: shapes_of(tmp_path / "pack/urdf/r.urdf"),
        "package": lambda: shapes_of(URDF, [tmp_path / "pack"]),
    }[where]()
    (part,) = [shape for shape in found if shape.kind == "mesh"]
    assert (part.file, part.size) == (mesh, (1.0, 1.0, 2.0))


@pytest.mark.parametrize(
    "text",
    ["<robot", '<robot><link name="a"><visual><geometry><box/></geometry></visual></link></robot>'],
)
def test_what_is_no_urdf_is_refused(text):
    with pytest.raises(FileFormatError, match="urdf"):
        shapes_of(text)
