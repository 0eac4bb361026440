"""What a URDF says is what arrives, or it is refused by name and line."""

import logging
import os

import numpy as np
import pytest

from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.mechanics import Contact, Plane, Robot, Rotor, contact_system, contacts_from
from hybridctl.mechanics.multibody import urdf as reading
from hybridctl.mechanics.multibody.urdf import shapes_of
from hybridctl.mechanics.multibody.urdf_document import parse_urdf
from mechanics.urdf_reader import difference_from_reader, elements_of

INERTIAL = """<inertial><origin xyz="0 0 -0.5"/><mass value="2"/>
<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial>"""
LIMIT = '<limit lower="-1" upper="1" effort="9" velocity="9"/>'


def link(name, inertial=INERTIAL, shapes=""):
    return f'<link name="{name}">\n{inertial}{shapes}</link>\n'


def joint(name, parent, child, inside="", kind="revolute", limit=LIMIT):
    return (
        f'<joint name="{name}" type="{kind}">\n<parent link="{parent}"/><child link="{child}"/>'
        f"\n{inside}{limit}</joint>\n"
    )


def robot_of(*parts):
    return '<?xml version="1.0"?>\n<robot name="r">\n' + "".join(parts) + "</robot>"


def pole(inside="", inertial=INERTIAL, shapes="", **options):
    """A link on a joint; its joint is in line 7 to 9, `inside` in line 9; the link in 3 to 5."""
    swung = joint("hinge", "world_link", "pole", inside, **options)
    return robot_of(link("pole", inertial, shapes), '<link name="world_link"/>\n', swung)


SPHERE = '<collision><origin xyz="{}"/><geometry><sphere radius="{}"/></geometry></collision>'
AXES = '<axis xyz="0 0 1"/>\n<axis xyz="0 1 0"/>'
PAIR = (link("a"), link("b"), link("c"))
MASSLESS = '<axis xyz="0 1 0"/>'
REFUSED = {
    # numbers
    "origin": (pole('<origin xyz="0,1 0 0"/>'), 9, "xyz of <origin> in joint 'hinge', got '0,1 "),
    "two": (pole('<origin rpy="0 1"/>'), 9, "must have three numbers as rpy of <origin>"),
    "nan": (pole('<origin xyz="nan 0 0"/>'), 9, "xyz of <origin>"),
    "empty": (pole('<origin xyz=""/>'), 9, "xyz of <origin> in joint 'hinge', got ''"),
    "axis": (pole('<axis xyz="0 0 1,0"/>'), 9, "xyz of <axis> in joint 'hinge'"),
    "no axis": (pole("<axis/>"), 9, "xyz of <axis> in joint 'hinge', got nothing"),
    "lower": (pole(limit='<limit lower="-inf" effort="1" velocity="1"/>'), 9, "lower of <limit>"),
    "effort": (pole(limit='<limit lower="0" velocity="1"/>'), 9, "effort of <limit> .* nothing"),
    "damping": (pole('<dynamics damping="1e999"/>'), 9, "damping of <dynamics>"),
    "mimic": (pole('<mimic joint="x" multiplier="2x"/>'), 9, "multiplier of <mimic>"),
    "xacro": (pole('<origin xyz="${a} 0 0"/>'), 9, "xacro macros: run xacro first"),
    "xacro name": (pole().replace("hinge", "${a}hinge"), 7, "xacro macros: run xacro first"),
    "digits": (pole('<origin xyz="\u0663 0 0"/>'), 9, "xyz of <origin>"),
    "mass": (pole(inertial=INERTIAL.replace('"2"', '"4,0"')), 4, "value of <mass> .* link 'pole'"),
    "moment": (pole(inertial=INERTIAL.replace('ixx="0.1"', "")), 5, "ixx of <inertia> .* nothing"),
    "shape": (pole(shapes=SPHERE.format("0 0 x", "1")), 5, "<origin> in the <collision> of link"),
    "radius": (pole(shapes=SPHERE.format("0 0 0", "")), 5, "radius of <sphere> .* got ''"),
    "deep": (robot_of("<a>" * 200, "</a>" * 200), 3, "nested more than 100 deep"),
    # joints
    "zero axis": (pole('<axis xyz="0 0 0"/>'), 9, "axis of joint 'hinge' that is not zero"),
    "two axes": (pole(AXES), 10, "must have one <axis> at most in joint 'hinge', got 2"),
    "negative": (pole('<dynamics damping="-1"/>'), 9, "negative damping at joint 'hinge', got -1"),
    "friction": (pole('<dynamics friction="-1"/>'), 9, "negative friction at joint 'hinge'"),
    "lost": (pole('<dynamics damping="1"/>', kind="planar"), 9, "'hinge', which is planar: it wou"),
    "kind": (pole(kind="ball"), 7, "a type of joint 'hinge' of revolute, .*; got 'ball'"),
    "no limit": (pole(limit=""), 7, "a <limit> in joint 'hinge', which is revolute"),
    "quaternion": (pole('<origin quat_xyzw="0 0 0 1"/>'), 9, "rpy in place of quat_xyzw"),
    "negative mass": (pole(inertial=INERTIAL.replace('"2"', '"-2"')), 4, "mass in link 'pole'"),
    # the tree
    "no link": (robot_of(), 2, "must have a <link> in <robot>"),
    "same link": (robot_of(link("a"), link("a")), 6, "another name for link 'a', which line 3"),
    "nameless": (robot_of("<link/>"), 3, "must have a name of the link"),
    "no parent": (robot_of(*PAIR, joint("j", "x", "b")), 12, "the parent link 'x' in joint 'j'"),
    "no child": (robot_of(*PAIR, joint("j", "a", "x")), 12, "the child link 'x' in joint 'j'"),
    "two parents": (
        robot_of(*PAIR, joint("j", "a", "c"), joint("k", "b", "c")),
        15,
        r"link 'c' a second parent by joint 'k'; the first is by joint 'j' \(line 12\)",
    ),
    "loop": (
        robot_of(*PAIR, joint("j", "b", "c"), joint("k", "c", "b")),
        15,
        "a loop of links by joint 'k': b -> c -> b",
    ),
    "same joint": (
        robot_of(*PAIR, joint("j", "a", "b"), joint("j", "a", "c")),
        15,
        "another name for joint 'j', which line 12",
    ),
    # mass
    "no mass": (pole(MASSLESS, inertial=""), 6, "where joint 'hinge' moves its links"),
    "coaxial": (
        robot_of(
            link("a"), link("b", ""), link("c"),
            joint("j", "a", "b", MASSLESS), joint("k", "b", "c", MASSLESS),
        ),
        11,
        "where joint 'j' moves its links, else the mass matrix is singular",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_by_name_and_line(case, capfd):
    text, line, said = REFUSED[case]
    with pytest.raises(FileFormatError, match=f"^urdf line {line} .*{said}") as caught:
        Robot.from_urdf(text)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # urdfdom says nothing past the error


def test_links_without_a_parent_are_named():
    text = robot_of(*PAIR, joint("j", "a", "b"))
    with pytest.raises(FileFormatError, match=r"got 2 links .*: link 'a' \(line 3\), link 'c' \("):
        Robot.from_urdf(text)


@pytest.mark.parametrize(
    ("name", "root"), [("root_joint", "floating"), ("root_z", "sagittal"), ("universe", "fixed")]
)
def test_a_joint_with_the_name_of_the_base_is_refused(name, root):
    text = robot_of(link("a"), link("b"), joint(name, "a", "b"))
    Robot.from_urdf(text.replace(name, "hip"), root=root)
    with pytest.raises(FileFormatError, match=f"line 9 .* joint '{name}': the base has it"):
        Robot.from_urdf(text, root=root)


def test_a_rotor_is_mass_enough():
    """I q'' = tau with the rotor's n^2 I alone."""
    text = pole(MASSLESS, inertial="")
    robot = Robot.from_urdf(text, rotors={"hinge": Rotor(1e-4, 10.0)})
    np.testing.assert_allclose(robot.mass_matrix(np.zeros(1)), [[1e-2]], rtol=1e-12)


def test_numbers_are_read_however_they_are_spaced():
    text = pole('<origin xyz=" 0\n 0\t1 "/>').replace('"2"', '" 2. "')
    robot = Robot.from_urdf(text)
    assert robot.mass == 2.0
    assert robot.poses(np.zeros(1), [1])[0][2, 3] == 1.0


PREFACES = ("", "\n\n", "\ufeff", "<!-- before -- it -->\n", "\n<!-- a\n<!-- b -->")


@pytest.mark.parametrize("preface", PREFACES)
@pytest.mark.parametrize("space", ["", 'xmlns="http://drake.mit.edu"', 'xmlns:u="http://u"'])
def test_namespaces_and_what_precedes_the_declaration_change_nothing(preface, space, tmp_path):
    foot = pole('<u:note xmlns:u="u"/><v:note/>', shapes=SPHERE.format("0 0 -1", "0.1"))
    text = preface + foot.replace("<robot ", f"<robot {space} ")
    (tmp_path / "a.urdf").write_text(text, encoding="utf-8")
    for given in (text, tmp_path / "a.urdf"):
        robot = Robot.from_urdf(given)
        (contact,) = contacts_from(robot)
        np.testing.assert_allclose(contact.offset, (0.0, 0.0, -1.0), atol=1e-15)
        np.testing.assert_allclose(robot.mass, 2.0)
    line = 9 + preface.count("\n")
    with pytest.raises(FileFormatError, match=f"^urdf line {line} "):
        Robot.from_urdf(text.replace("<u:note", '<axis xyz="0 0 0"/><u:note'))


def test_what_is_not_part_of_the_motion_does_not_stop_it():
    """urdfdom gives up on the whole robot for each of these."""
    shapes = "<visual><geometry/></visual><collision><geometry><cdf/></geometry></collision>"
    more = '<material name="m"/><material name="m"/><transmission/><link_state/></robot>'
    text = pole("<safety_controller/><dynamics/>", shapes=shapes).replace("</robot>", more)
    assert Robot.from_urdf(text.replace('name="r"', "")).mass == 2.0


def test_messages_of_urdfdom_are_in_the_error(monkeypatch, capfd):
    """The checks leave nothing to urdfdom; here it is given something else."""
    monkeypatch.setattr(reading, "text_for_model", lambda *_: "<robot name='r'/>")
    with pytest.raises(FileFormatError, match="description: No link elements found") as caught:
        Robot.from_urdf(pole())
    assert ".cpp" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_messages_of_urdfdom_about_shapes_are_in_the_error(capfd):
    visual = '<visual><geometry><sphere radius="1"/></geometry><material/></visual>'
    text = pole(shapes=visual)
    robot = Robot.from_urdf(text)
    with pytest.raises(FileFormatError, match="read: Visual material must contain a name"):
        shapes_of(robot.model, text)
    assert capfd.readouterr().err == ""


def test_the_error_stream_is_given_back(capfd):
    with reading._ErrorStream() as messages:
        os.write(2, b"Warning: odd\n")
    assert messages.text == "Warning: odd"
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "Warning: odd\nafter\n"


def test_without_an_error_stream_files_are_read(monkeypatch, capfd):
    """As in a process whose descriptor 2 is closed: messages are lost, nothing else."""

    def closed(descriptor):
        raise OSError(9, "Bad file descriptor")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", closed)
        assert Robot.from_urdf(pole()).mass == 2.0
        patch.setattr(reading, "text_for_model", lambda *_: "<robot name='r'/>")
        for _ in range(2):  # the second finds the lock open
            with pytest.raises(FileFormatError, match=r"description: .* valid URDF model"):
                Robot.from_urdf(pole())
    assert "No link elements" in capfd.readouterr().err


def test_inertias_of_no_rigid_body_are_in_the_log(caplog):
    """A rod along z of 1, 1 and 3 kg m^2: izz is more than ixx + iyy."""
    moments = INERTIAL.replace('izz="0.1"', 'izz="0.3"')
    with caplog.at_level(logging.WARNING):
        Robot.from_urdf(pole(inertial=moments))
        Robot.from_urdf(pole(inertial=INERTIAL.replace('izz="0.1"', 'izz="0.200001"')))  # a plate
    (line,) = caplog.messages
    assert line.endswith("link 'pole' (line 3) has the principal moments 0.1, 0.1, 0.3 kg m^2")


def test_a_model_that_differs_from_the_file_is_refused(monkeypatch):
    """What check_arrival finds, made by hiding a change from it."""
    whole = reading.text_for_model
    changes = {
        "otherwise than the model": ('xyz="0 0 1"/>', 'xyz="0 0 1.001"/>'),
        "moves otherwise": ('xyz="0 1 0"', 'xyz="0 1 0.001"'),
        "of 2 kg at joint 'hinge'": ('value="2"', 'value="2.1"'),
        "or other moments": ('ixy="0"', 'ixy="0.01"'),
        "has link 'pole', but": ('"pole"', '"pile"'),
    }
    text = pole('<origin xyz="0 0 1"/><axis xyz="0 1 0"/>')
    Robot.from_urdf(text)
    for said, (old, new) in changes.items():
        assert old in whole(parse_urdf(text)).replace(" />", "/>")
        monkeypatch.setattr(
            reading,
            "text_for_model",
            lambda d, _, old=old, new=new: whole(d).replace(" />", "/>").replace(old, new),
        )
        with pytest.raises(FileFormatError, match=said):
            Robot.from_urdf(text)


# Joints of several velocities


@pytest.mark.parametrize("axis", [(0, 0, 1), (0, 1, 0), (-1, 0, 0), (0, 0, -1), (1, -2, 3)])
def test_a_planar_joint_moves_perpendicular_to_its_axis(axis):
    """A disc in its plane: M = diag(m, m, I), and of its weight the share in the plane acts."""
    inertial = INERTIAL.replace('"0 0 -0.5"', '"0 0 0"')
    robot = Robot.from_urdf(pole(f'<axis xyz="{axis[0]} {axis[1]} {axis[2]}"/>', inertial,
                                 kind="planar", limit=""))  # fmt: skip
    normal = np.array(axis) / np.linalg.norm(axis)
    q = robot.integrate(robot.neutral(), np.array([0.3, -0.2, 0.7]))
    np.testing.assert_allclose(robot.mass_matrix(q), np.diag([2.0, 2.0, 0.1]), atol=1e-15)
    weight = 2.0 * 9.81 * np.sqrt(1.0 - normal[2] ** 2)
    bias = robot.bias(q, np.zeros(3))
    np.testing.assert_allclose([np.hypot(*bias[:2]), bias[2]], [weight, 0.0], atol=1e-7)
    place = robot.poses(robot.integrate(robot.neutral(), np.array([0.3, -0.2, 0.0])), [1])[0][:3, 3]
    np.testing.assert_allclose([normal @ place, np.linalg.norm(place)], [0.0, np.hypot(0.3, 0.2)],
                               atol=1e-15)  # fmt: skip


KINDS = ("revolute", "continuous", "prismatic", "planar", "floating", "fixed")


def random_tree(rng):
    """A URDF of up to seven links by joints of all types, with axes of any length."""

    def numbers(count, scale=1.0):
        return " ".join(f"{x:.17g}" for x in scale * rng.normal(size=count))

    parts = []
    for k in range(int(rng.integers(2, 8))):
        half = rng.normal(size=(3, 3))
        moments = np.trace(half @ half.T) * np.eye(3) - half @ half.T
        xx, xy, xz, _, yy, yz, *_, zz = moments.ravel()
        parts.append(
            link(
                f"l{k}",
                f'<inertial><origin xyz="{numbers(3)}" rpy="{numbers(3)}"/>'
                f'<mass value="{rng.uniform(0.1, 3.0):.17g}"/><inertia ixx="{xx:.17g}" '
                f'ixy="{xy:.17g}" ixz="{xz:.17g}" iyy="{yy:.17g}" iyz="{yz:.17g}" '
                f'izz="{zz:.17g}"/></inertial>',
            )
        )
        if k:
            kind, parent = rng.choice(KINDS), f"l{rng.integers(k)}"
            inside = f'<origin xyz="{numbers(3)}" rpy="{numbers(3, 2.0)}"/>'
            inside += f'<axis xyz="{numbers(3, 10.0 ** rng.uniform(-3, 3))}"/>'
            if kind not in ("planar", "floating"):
                inside += f'<dynamics damping="{rng.uniform():.17g}"/>'
            parts.append(joint(f"j{k}", parent, f"l{k}", inside, kind))
    rng.shuffle(parts)
    return robot_of(*parts)


def largest_difference(count, seed):
    """The largest relative difference of random trees from the second reader."""
    rng, found = np.random.default_rng(seed), [0.0]
    for _ in range(count):
        text = random_tree(rng)
        for root in ("fixed", "floating"):
            if root == "fixed" and all(f'"{kind}"' not in text for kind in KINDS[:5]):
                continue
            robot = Robot.from_urdf(text, root=root)
            tree = elements_of(text)
            found.append(difference_from_reader(robot, tree, root == "floating", rng))
    return max(found)


def test_trees_of_joints_of_all_types_are_as_a_second_reader_has_them():
    """To 1e-9: rounding of exponentials of turns about axes from 1e-3 to 1e3 long."""
    assert largest_difference(20, seed=3) < 1e-9


# Names


def test_a_link_comes_before_a_joint_of_its_name():
    """The wrist is 1 m below its shoulder, whatever the joint "wrist" of the hand does."""
    turn = '<axis xyz="0 1 0"/>'
    text = robot_of(
        link("base"), link("wrist"), link("hand"),
        joint("shoulder", "base", "wrist", '<origin xyz="0 0 -1"/>' + turn),
        joint("wrist", "wrist", "hand", '<origin xyz="0 0 -0.4"/>' + turn),
    )  # fmt: skip
    contact = Contact("c", "wrist", Plane((0, 0, -9), (0, 0, 1)), offset=(0.1, 0, 0))
    mode = contact_system(Robot.from_urdf(text), [contact]).mode(("open",))
    for angle in (0.0, 0.5):
        outputs = mode.outputs(0.0, np.array([0.0, angle, 0.0, 0.0]), np.zeros(2))
        np.testing.assert_allclose(outputs["contact_position"][0], (0.1, 0.0, -1.0), atol=1e-12)


def test_a_file_without_joints_is_a_body_that_can_float():
    with pytest.raises(InputError, match="no joint that moves"):
        Robot.from_urdf(robot_of(link("a")))
    robot = Robot.from_urdf(robot_of(link("a")), root="floating")
    assert (robot.nv, robot.mass) == (6, 2.0)
