"""State estimation through events: the salted Kalman filter and what judges it."""
