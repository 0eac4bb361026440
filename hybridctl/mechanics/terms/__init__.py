"""The terms of a robot in contact, by Pinocchio or generated, and the system that they make."""
