"""Simulation, control and estimation for robots that hit, stick and slip.

`import hybridctl as hc` gives the names used most, and subpackages with all others: they stand in
the `__init__.pyi` beside this file. Each is imported from its module when it is first used, so that
starting the command line does not load the numerical libraries.
"""

from pathlib import Path

import lazy_loader

from hybridctl.hybrid import drawing as _drawing

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# A wheel carries robots/ and experiments/ inside the package; a checkout has them beside it.
if not (Path(__file__).parent / "robots").is_dir():
    __path__.append(str(Path(__file__).parent.parent))


def _states(run, path=None, *, names=None):
    from hybridctl.app import plots  # matplotlib comes with it, and simulations do without

    return plots.states(run, path, names=names)


_drawing.states = _states
