"""Mode graphs, their exact simulation, and the trajectories that come of it; knows no robot."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
