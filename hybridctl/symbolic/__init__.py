"""Hybrid systems from CasADi expressions, and compiled functions of their steps and resets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
