"""Simulation, control and estimation for robots that hit, stick and slip.

`import hybridctl as hc` gives the names used most, and subpackages with all others: they stand in
the `__init__.pyi` beside this file. Each is imported from its module when it is first used, so that
starting the command line does not load the numerical libraries.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
