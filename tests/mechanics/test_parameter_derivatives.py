"""Derivatives by named parameters at a point, against differences of robots that are rebuilt.

Bodies are changed in the Pinocchio model by mass, center and inertia about it, springs and
contacts by their own arguments, all by up to a tenth of their scale at the largest step.
"""

from dataclasses import replace

import numpy as np
import pinocchio as pin
import pytest
from differences import assert_derivative
from hybridctl.robots import rrr_door

from hybridctl.base.errors import InputError, UnknownNameError
from hybridctl.mechanics import Contact, ContactDynamics, Plane, Robot, Sphere, contact_system
from hybridctl.mechanics.parameters import differentiate_by_parameters, parameter_derivatives
from mechanics.models import PAIR, random_state

TURNED = """
  <link name="foot"><inertial><origin xyz="0.02 0.1 0.03"/><mass value="0.3"/>
    <inertia ixx="0.002" iyy="0.003" izz="0.004" ixy="0.0002" ixz="0.0003" iyz="0.0001"/></inertial>
  </link>
  <joint name="mount" type="fixed"><parent link="arm"/><child link="foot"/>
    <origin xyz="0.1 0 0.2" rpy="0.3 0.2 -0.7"/></joint>
</robot>"""
MODEL = pin.buildModelFromXML(PAIR.replace("</robot>", TURNED), pin.JointModelFreeFlyer())
BODIES = {
    f"{kind}:{link}": scale
    for link in ("cube", "arm", "foot")
    for kind, scale in (
        ("mass", 0.3),
        *((f"center_{k}", 0.05) for k in "xyz"),
        *((f"inertia_{kl}", 1e-3) for kl in ("xx", "xy", "yy", "xz", "yz", "zz")),
    )
}
JOINTS = {"stiffness:hip": 2.0, "rest:hip": 1.0, "damping:hip": 0.5}
CONTACTS = {
    f"{kind}:{contact}": 0.5
    for contact in "abcd"
    for kind in ("restitution", "friction", "static_friction")
}
SCALES = {**BODIES, **JOINTS, **CONTACTS}
NAMES = tuple(SCALES)
# three random directions meet every parameter
SOME = np.array(list(SCALES.values()))[:, None] * np.random.default_rng(0).uniform(
    -1.0, 1.0, (len(NAMES), 3)
)


def pair(dp, points=None):
    """Two bodies with these contacts, by default `POINTS`."""
    change = dict(zip(NAMES, dp, strict=True))
    contacts = [
        replace(
            contact,
            restitution=contact.restitution + change[f"restitution:{contact.name}"],
            friction=contact.friction + change[f"friction:{contact.name}"],
            static_friction=contact.static_friction + change[f"static_friction:{contact.name}"],
        )
        for contact in points or POINTS
    ]
    robot = Robot(
        changed_model(change),
        stiffness={"hip": 2.0 + change["stiffness:hip"]},
        rest={"hip": 0.3 + change["rest:hip"]},
        damping={"hip": 0.5 + change["damping:hip"]},
    )
    return robot, contacts


def changed_system(z, points=None, **options):
    """By Pinocchio's calls, which need not be generated anew for each robot."""
    return contact_system(*pair(SOME @ z, points), terms="pinocchio", **options)


def changed_model(change):
    """Mass, center and central inertia of bodies, changed along the axes of a link of each."""
    model = MODEL.copy()
    for frame in model.frames:
        if frame.type == pin.FrameType.BODY:
            turn, old = frame.placement.rotation, model.inertias[frame.parentJoint]
            step = {kind: change[f"{kind}:{frame.name}"] for kind in KINDS}
            dc = np.array([step[f"center_{k}"] for k in "xyz"])
            upper = [step[f"inertia_{kl}"] for kl in ("xx", "xy", "xz", "yy", "yz", "zz")]
            di = np.zeros((3, 3))
            di[np.triu_indices(3)] = upper
            di = di + np.triu(di, 1).T
            model.inertias[frame.parentJoint] = pin.Inertia(
                old.mass + step["mass"], old.lever + turn @ dc, old.inertia + turn @ di @ turn.T
            )
    return model


KINDS = [name.split(":")[0] for name in BODIES if name.endswith(":cube")]
SLOPE = Plane((0.0, 0.0, -0.1), (0.1, 0.2, 1.0))
POINTS = [
    Contact("a", "cube", SLOPE, offset=(0.05, 0.05, -0.05), restitution=0.3, friction=0.4),
    Contact("b", "cube", SLOPE, offset=(-0.05, 0.05, -0.05), restitution=0.1, friction=0.2),
    Contact("c", "arm", SLOPE, offset=(0.0, 0.0, 0.1), restitution=0.9, friction=0.8),
    Contact(
        "d",
        "arm",
        Sphere((0.0, 0.0, -0.2), 0.05),
        body="cube",
        offset=(0.0, 0.1, 0.1),
        restitution=0.5,
        friction=0.1,
    ),
]
POINTS = [replace(p, static_friction=p.friction + 0.3) for p in POINTS]
NONE = np.zeros(len(NAMES))


# on a table, where four points are redundant
CORNERS = [
    replace(p, frame="cube", body="universe", surface=Plane((0, 0, 0), (0, 0, 1)), offset=(x, y, 0))
    for p, (x, y) in zip(POINTS, [(0.2, 0.2), (-0.2, 0.2), (-0.2, -0.3), (0.2, -0.3)], strict=True)
]
CASES = [
    (POINTS, ("open",) * 4),
    (POINTS, ("slip", "open", "open", "slip")),
    (POINTS, ("stick", "open", "slip", "open")),
    (POINTS, ("open", "open", "stick", "slip")),
    (POINTS, ("slip", "slip", "open", "slip")),
    (CORNERS, ("stick",) * 4),
    (CORNERS, ("stick", "stick", "stick", "open")),
    (CORNERS, ("slip",) * 4),
]


def moving(robot, contacts, modes):
    """A state and input; on the table at rest or sliding on it, else random."""
    q, v, u = random_state(ContactDynamics(robot, contacts), seed=3)
    if contacts[-1].body == "universe":
        q[:7], v[2:5] = [0.1, 0.2, 0.0, 0.0, 0.0, np.sin(0.3), np.cos(0.3)], 0.0
        v[:6] *= "slip" in modes
        q[7], v[6], u[:] = 0.2, 0.1, 0.05
    return np.concatenate((q, v)), u


@pytest.mark.parametrize(("points", "modes"), CASES)
def test_field_and_guards(points, modes):
    """Of all guards but "sliding jams", at which runs end."""
    robot, contacts = pair(NONE, points)
    d = parameter_derivatives(robot, contacts, NAMES)
    x, u = moving(robot, contacts, modes)

    names = contact_system(robot, contacts).outgoing(modes).guards.names
    ends = [name != "sliding jams" for name in names]

    def outcome(z):
        changed = changed_system(z, points)
        values = changed.outgoing(modes).guards.values(0.0, x, u)[ends]
        return np.concatenate((changed.mode(modes).field(0.0, x, u), values))

    expected = np.vstack((d.field(modes, 0.0, x, u), d.guards(modes, 0.0, x, u)[ends]))
    assert_derivative(outcome, expected @ SOME)


@pytest.mark.parametrize("stabilization", [0.0, 50.0])
def test_options_of_the_system_are_those_of_the_derivatives(stabilization):
    robot, contacts = pair(NONE)
    modes = ("stick", "open", "open", "slip")
    d = parameter_derivatives(robot, contacts, NAMES, stabilization=stabilization)
    x, u = moving(robot, contacts, modes)

    def outcome(z):
        changed = changed_system(z, stabilization=stabilization)
        return changed.mode(modes).field(0.0, x, u)

    assert_derivative(outcome, d.field(modes, 0.0, x, u) @ SOME)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("hit", ["a", "bd", "abc"])
def test_impacts(hit, seed):
    """The whole law of the impact is differenced; no contact is at the border of two states."""
    robot, contacts = pair(NONE)
    fired, modes = tuple(f"{name} closes" for name in hit), ("open",) * 4
    d = parameter_derivatives(robot, contacts, NAMES)
    q, v, u = random_state(ContactDynamics(robot, contacts), seed)
    x = np.concatenate((q, v))

    def outcome(z):
        reset = changed_system(z).outgoing(modes).edge(fired).reset
        return reset(0.0, x, u).state[len(q) :]

    expected = d.reset(modes, fired, 0.0, x, u) @ SOME
    assert not expected[: robot.nv].any()
    assert_derivative(outcome, expected[robot.nv :])


def test_an_impact_whose_redundant_points_slide_and_leave_the_velocity_open():
    """By masses and friction; what bounces less than others would not take part with them."""
    points = [replace(p, restitution=0.0, friction=0.1, static_friction=0.2) for p in CORNERS]
    robot, contacts = pair(NONE, points)
    kept = [not name.startswith("restitution") for name in NAMES]
    names, changes = np.array(NAMES)[kept].tolist(), SOME * np.array(kept)[:, None]
    fired, modes = tuple(f"{name} closes" for name in "abcd"), ("open",) * 4
    q = moving(robot, contacts, ("slip",) * 4)[0][: robot.nq]
    x, u = np.concatenate((q, [1.0, 0.4, -1.0, 0.0, 0.0, 3.0, 0.0])), np.zeros(robot.nu)

    def jump(z):
        system = contact_system(*pair(changes @ z, points), terms="pinocchio")
        return system.outgoing(modes).edge(fired).reset(0.0, x, u)

    report = jump(np.zeros(3)).report
    assert report.states == ("slip",) * 4
    assert report.uniqueness == "disproven"
    found = parameter_derivatives(robot, contacts, names).reset(modes, fired, 0.0, x, u)
    expected = found[robot.nv :] @ changes[kept]
    assert_derivative(lambda z: jump(z).state[len(q) :], expected)


def test_an_event_without_impact_does_not_depend_on_parameters():
    robot, contacts = pair(NONE)
    d = parameter_derivatives(robot, contacts, NAMES)
    q, v, u = random_state(ContactDynamics(robot, contacts), seed=0)
    modes = ("stick", "open", "open", "open")
    assert not d.reset(modes, ("a opens",), 0.0, np.concatenate((q, v)), u).any()


@pytest.mark.parametrize(("points", "modes"), CASES)
def test_all_masses_springs_and_dampers_as_much_greater_change_no_motion(points, modes):
    """Without inputs accelerations are ratios: the field is homogeneous of degree 0 in them.

    Forces grow as much, and so do the guards that are forces.
    """
    robot, contacts = pair(NONE, points)
    names, by = proportional(robot)
    d = parameter_derivatives(robot, contacts, names)
    x, u = moving(robot, contacts, modes)
    none = np.zeros_like(u)
    field = d.field(modes, 0.0, x, none)
    # sums of 16 columns, which the mass matrix and the least-norm solution round
    np.testing.assert_allclose(field @ by, 0.0, atol=1e-11 * np.abs(field * by).max())
    guards = contact_system(robot, contacts).outgoing(modes).guards
    values = guards.values(0.0, x, none)
    are_forces = np.array([name.split()[1] in ("opens", "slips") for name in guards.names])
    change = d.guards(modes, 0.0, x, none)
    np.testing.assert_allclose(
        change @ by, values * are_forces, atol=1e-11 * max(1.0, np.abs(change * by).max())
    )


def test_masses_that_are_all_greater_do_not_change_an_impact():
    robot, contacts = pair(NONE)
    names, by = proportional(robot)
    q, v, u = random_state(ContactDynamics(robot, contacts), seed=1)
    d = parameter_derivatives(robot, contacts, names)
    fired = ("a closes", "c closes", "d closes")
    change = d.reset(("open",) * 4, fired, 0.0, np.concatenate((q, v)), u)
    assert np.abs(change * by).max() > 0.1
    np.testing.assert_allclose(change @ by, 0.0, atol=1e-12 * np.abs(change * by).max())


def proportional(robot):
    """Inertial parameters, stiffness and damping, and how they change when all double."""
    values = {"stiffness:hip": 2.0, "damping:hip": 0.5}
    for link in ("cube", "arm"):
        body = MODEL.inertias[robot.frame(link).joint]
        values[f"mass:{link}"] = body.mass
        for kl, i, j in zip(("xx", "xy", "xz", "yy", "yz", "zz"), *np.triu_indices(3), strict=True):
            values[f"inertia_{kl}:{link}"] = body.inertia[i, j]
    return tuple(values), np.array(list(values.values()))


def test_names():
    robot, contacts = rrr_door.robot(), rrr_door.contacts()
    for name, message in (
        ("mass:fot", "did you mean 'foot'"),
        ("mas:foot", "did you mean 'mass'"),
        ("foot", "KIND:OWNER"),
        ("stiffness:hinge", "door_hinge"),
        ("restitution:corner", "corner_1"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            parameter_derivatives(robot, contacts, [name])


def test_what_has_no_derivative():
    robot, contacts = rrr_door.robot(), rrr_door.contacts()
    for name, message in (
        ("friction:corner_1", "friction above 0"),
        ("restitution:corner_1", "restitution above 0"),
        ("mass:base", "fixed to the world"),
    ):
        with pytest.raises(InputError, match=message):
            parameter_derivatives(robot, contacts, [name])
    with pytest.raises(InputError, match="different parameters"):
        parameter_derivatives(robot, contacts, ["mass:foot", "mass:foot"])
    with pytest.raises(InputError, match="one degree of freedom"):
        parameter_derivatives(*pair(NONE), ["damping:root_joint"])


@pytest.mark.parametrize(("points", "modes"), CASES)
def test_one_compiled_call_gives_the_derivatives_of_all_points(points, modes):
    """Generated functions have another way to them than the equations of one point."""
    system, others = (
        contact_system(*pair(NONE, points), terms=terms) for terms in ("generated", "pinocchio")
    )
    made, solved = (differentiate_by_parameters(one, NAMES) for one in (system, others))
    x, u = moving(*pair(NONE, points), modes)
    states = np.array([x, x, x])
    states[1:, -1] += 0.1  # the arm's joint, which no contact of the table holds
    sound, fields = made.evaluate_fields(
        system.mode(modes), np.zeros(3), states, np.tile(u, (3, 1))
    )
    assert solved.evaluate_fields(others.mode(modes), np.zeros(3), states, u) is None
    for k in np.flatnonzero(sound > 0.0):
        at = others.mode(modes).calc(0.0, states[k], u)
        wanted, found = solved.calc(at), made.calc(system.mode(modes).calc(0.0, states[k], u))
        scale = np.abs(wanted.field).max()
        np.testing.assert_allclose(fields[k], wanted.field, rtol=1e-9, atol=1e-9 * scale)
        np.testing.assert_allclose(found.field, fields[k], rtol=1e-12, atol=1e-12 * scale)
        size = max(1.0, np.abs(wanted.guards).max())
        kept = [name != "sliding jams" for name in others.mode(modes).guard_names]
        np.testing.assert_allclose(
            found.guards[kept], wanted.guards[kept], rtol=1e-9, atol=1e-9 * size
        )
    assert (sound > 0.0).any()
