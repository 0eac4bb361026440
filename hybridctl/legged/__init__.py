"""Base pose and velocity of legged robots from inertial sensors, encoders and foot forces.

    readings --(contact, readings)--> Record --(filter on base_system)--> base poses

The mode says which feet are in contact; their poses are part of the state while they are. Point
feet are filtered by `point_feet_filter`, soles by `SaltedKalmanFilter`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
