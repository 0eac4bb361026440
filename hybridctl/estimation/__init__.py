"""Estimation: the salted Kalman filter, its baselines, and how far its results can be trusted."""
