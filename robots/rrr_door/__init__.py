"""A planar arm of three revolute joints and a hinged door: one model with two trees.

The example of the reference-spreading thesis, chapter 5, seen from above (no gravity). Joints
q = (shoulder, elbow, wrist, hinge) turn about world z; the first three are actuated. The foot
at the end of the arm has two corners that hit the door's face. The thesis prints no parameters:
`DoorParameters` holds an identification (experiments/rrr_door/identify.py), not measurements.
"""

from hybridctl.robots.rrr_door.model import CORNERS, JOINTS, DoorParameters, contacts, robot, system
from hybridctl.robots.rrr_door.model import urdf as urdf

__all__ = ["CORNERS", "JOINTS", "DoorParameters", "contacts", "robot", "system", "urdf"]
