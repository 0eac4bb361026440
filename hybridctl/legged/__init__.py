"""Base pose and velocity of legged robots from inertial sensors, encoders and foot forces.

    readings --(contact, readings)--> Record --(SaltedKalmanFilter on base_system)--> base poses

The mode says which feet are in contact; their poses are part of the state while they are.
"""
