"""Many states of one hybrid system at once: batches, and filters by samples of the belief."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
