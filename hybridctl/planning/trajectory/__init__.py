"""Trajectory optimisation over a given sequence of modes, by direct collocation."""
