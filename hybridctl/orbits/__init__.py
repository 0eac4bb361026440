"""Periodic orbits of hybrid systems: return maps, stability of kinked maps, growth, shaping."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
