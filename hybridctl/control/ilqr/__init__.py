"""Hybrid iterative LQR: optimal motions whose sequence of events is found on the way."""
