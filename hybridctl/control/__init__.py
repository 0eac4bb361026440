"""Tracking control of hybrid trajectories: references, reference spreading, their feasibility."""
