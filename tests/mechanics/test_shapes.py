"""The shapes of links are those that the URDF says."""

import logging

import coal
import numpy as np
import pytest

from hybridctl.base.errors import FileFormatError
from hybridctl.mechanics.multibody.robot import Robot
from hybridctl.mechanics.multibody.urdf import shapes_of

URDF = """<robot name="r">
<material name="red"><color rgba="1 0 0 1"/></material>
<link name="a">
 <visual><origin xyz="1 2 3" rpy="0 0 1.5707963267948966"/>
  <geometry><box size="1 2 3"/></geometry><material name="red"/></visual>
 <visual><geometry><cylinder radius="0.1" length="0.5"/></geometry></visual>
 <visual><geometry><mesh filename="package://pack/meshes/part.stl" scale="1 1 2"/></geometry>
 </visual>
</link>
<link name="b"><inertial><mass value="1"/>
 <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
 <visual><geometry><sphere radius="0.2"/></geometry>
 <material name="own"><color rgba="0 0.5 1 0.3"/></material></visual>
 <visual><geometry><mesh filename="package://pack/none.stl"/></geometry></visual></link>
<joint name="j" type="continuous"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint>
</robot>"""
TRIANGLE = """solid s
facet normal 0 0 1
outer loop
vertex 0 0 0
vertex 1 0 0
vertex 0 1 0
endloop
endfacet
endsolid s
"""
MODEL = Robot.from_urdf(URDF).model


def test_primitives_have_sizes_places_and_colours(caplog):
    with caplog.at_level(logging.WARNING):
        found = shapes_of(MODEL, URDF)
    box, cylinder, sphere = found.geometryObjects
    assert [shape.name for shape in (box, cylinder, sphere)] == ["a_0", "a_1", "b_0"]
    turned = np.array([[0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3], [0, 0, 0, 1.0]])
    np.testing.assert_allclose(box.placement.homogeneous, turned, atol=1e-15)
    np.testing.assert_array_equal(2.0 * box.geometry.halfSide, (1.0, 2.0, 3.0))
    assert isinstance(cylinder.geometry, coal.Cylinder)
    assert (cylinder.geometry.radius, 2.0 * cylinder.geometry.halfLength) == (0.1, 0.5)
    assert sphere.geometry.radius == 0.2
    assert [shape.overrideMaterial for shape in (box, cylinder, sphere)] == [True, False, True]
    np.testing.assert_array_equal(box.meshColor, (1, 0, 0, 1))
    single = 2.0**-24  # urdfdom keeps colours so
    np.testing.assert_allclose(sphere.meshColor, (0, 0.5, 1, 0.3), atol=single)
    assert "mesh package://pack/none.stl of link b is not found" in caplog.text


def test_kinds_and_purpose_select_and_links_of_no_model_are_left_out():
    spheres = shapes_of(MODEL, URDF, kinds=["sphere"])
    assert [shape.name for shape in spheres.geometryObjects] == ["b_0"]
    assert shapes_of(MODEL, URDF, purpose="collision").ngeoms == 0
    other = URDF.replace('link name="a"', 'link name="x"').replace('link="a"', 'link="x"')
    assert [s.name for s in shapes_of(MODEL, other).geometryObjects] == ["b_0"]


@pytest.mark.parametrize("purpose", ["collision", "visual"])
def test_a_shape_that_cannot_be_read_is_no_matter_in_the_part_that_is_not_wanted(caplog, purpose):
    """A capsule, which urdfdom does not know."""
    other = {"collision": "visual", "visual": "collision"}[purpose]
    capsule = f'<{other}><geometry><capsule radius="0.1" length="1"/></geometry></{other}>'
    box = f'<{purpose}><geometry><box size="1 2 3"/></geometry></{purpose}>'
    text = f'<robot name="r"><link name="a">{capsule}{box}</link></robot>'
    with caplog.at_level(logging.WARNING):
        (found,) = shapes_of(MODEL, text, purpose=purpose).geometryObjects
    np.testing.assert_array_equal(2.0 * found.geometry.halfSide, (1.0, 2.0, 3.0))
    assert found.name == "a_0"
    assert "capsule" not in caplog.text


@pytest.mark.parametrize("where", ["folder", "above", "package"])
def test_meshes_are_found_in_packages_and_above_the_file(tmp_path, where):
    mesh = tmp_path / "pack/meshes/part.stl"
    mesh.parent.mkdir(parents=True)
    mesh.write_text(TRIANGLE)
    (tmp_path / "pack/urdf").mkdir()
    (tmp_path / "pack/urdf/r.urdf").write_text(URDF)
    found = {
        "folder": lambda: shapes_of(MODEL, URDF, [tmp_path]),
        "above": lambda: shapes_of(MODEL, tmp_path / "pack/urdf/r.urdf"),
        "package": lambda: shapes_of(MODEL, URDF, [tmp_path / "pack"]),
    }[where]()
    (part,) = [shape for shape in found.geometryObjects if shape.meshPath.endswith("stl")]
    assert part.meshPath == str(mesh)
    np.testing.assert_array_equal(part.meshScale, (1.0, 1.0, 2.0))


@pytest.mark.parametrize(
    "text",
    ["<robot", '<robot><link name="a"><visual><geometry><box/></geometry></visual></link></robot>'],
)
def test_what_is_no_urdf_is_refused(text):
    with pytest.raises(FileFormatError, match="urdf"):
        shapes_of(MODEL, text)
