"""The terms of a robot in contact at a point, by Pinocchio or generated."""
