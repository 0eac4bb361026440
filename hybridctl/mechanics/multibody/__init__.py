"""Robots as trees of bodies: kinematics and dynamics by Pinocchio, or as expressions."""
