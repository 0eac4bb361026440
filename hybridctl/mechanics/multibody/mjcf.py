"""What of an MJCF file Pinocchio's parser leaves out, or reads in another form."""

from __future__ import annotations

from collections.abc import Container
from xml.etree import ElementTree

from hybridctl.errors import FileFormatError, InputError

_UNREAD = ("equality", "tendon", "flex", "deformable", "composite", "replicate", "flexcomp")


def check_mjcf(root: ElementTree.Element, given: Container[str]) -> None:
    """Raise `InputError` for parts of a model that would be lost.

    given: joints whose springs are given beside the file. Loops (equality), tendons and soft bodies
    cannot be had; springs of joints can be given by hand; dry friction of joints is not modelled.
    """
    for part in _UNREAD:
        for element in root.iter(part):
            if len(element) or element.attrib:
                raise InputError(
                    f"mjcf must have no <{part}>: Pinocchio reads bodies and joints alone"
                )
    for joint in [*root.iter("joint"), *root.iter("freejoint")]:
        name = joint.get("name", joint.get("class", "without a name"))
        if _positive(joint, "stiffness") and name not in given:
            raise InputError(
                f"mjcf gives joint {name!r} a stiffness of {joint.get('stiffness')}, which "
                f"Pinocchio does not read: give it as stiffness={{{name!r}: ...}}"
            )
        if _positive(joint, "frictionloss"):
            raise InputError(
                f"mjcf gives joint {name!r} a frictionloss of {joint.get('frictionloss')}, but "
                "joints have no dry friction here"
            )


def parsed(text: str) -> ElementTree.Element:
    """The root of an MJCF file. Raises `FileFormatError` for what is none."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise FileFormatError(f"mjcf is not XML: {error}") from error
    if root.tag != "mujoco":
        raise FileFormatError(f"mjcf must be a <mujoco> model, got <{root.tag}>")
    if root.find(".//include") is not None:
        raise InputError("mjcf must be one file, but it has an <include>")
    return root


def nested(root: ElementTree.Element) -> str | None:
    """The file with a body for each joint, None where no body has several.

    MuJoCo moves a body by its joints in their order, which is what bodies without mass inside each
    other do, each with one of them; the last one has the name, and all that is fixed to it.
    """
    several = [body for body in root.iter("body") if len(body.findall("joint")) > 1]
    for number, body in enumerate(several):
        joints = body.findall("joint")[:-1]
        rest = [child for child in body if child not in joints]
        name = body.get("name", f"body {number}")
        for k, joint in enumerate(joints):
            body.set("name", f"{name}, joint {k + 1}")
            body[:] = [joint, ElementTree.Element("body")]
            body = body[-1]
        body.set("name", name)
        body[:] = rest
    return ElementTree.tostring(root, "unicode") if several else None


def motors_of(root: ElementTree.Element) -> tuple[str, ...] | None:
    """The joints that have an actuator, in the order of the file; None where there are none."""
    names = [entry.get("joint") for entry in root.findall("actuator/*")]
    return tuple(dict.fromkeys(name for name in names if name is not None)) or None


def _positive(joint: ElementTree.Element, what: str) -> bool:
    return float(joint.get(what, "0").split()[0]) > 0.0
