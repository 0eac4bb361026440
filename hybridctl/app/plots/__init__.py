"""Figures: of runs, of filters, and the panels and snapshots that they are made of.

Every figure is returned, and saved where a path is given. Names stand in the `__init__.pyi` beside
this file. Each is imported when it is first used: figures of filters need what others do not.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
