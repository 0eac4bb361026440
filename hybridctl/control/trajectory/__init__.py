"""Trajectories by optimisation over a given sequence of modes."""
