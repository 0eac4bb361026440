"""Simulation, control and estimation for robots that hit, stick and slip.

`import hybridctl as hc` gives the names used most, and subpackages with all others: they stand in
the `__init__.pyi` beside this file. Each is imported from its module when it is first used, so that
starting the command line does not load the numerical libraries.
"""

import lazy_loader

__version__ = "0.1.0"
_get_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str):
    """Return a public name, imported now; an unknown one is an error that suggests others."""
    try:
        return _get_attribute(name)
    except AttributeError as error:
        if name in __all__ or name.startswith("_"):
            raise  # the module of the name has failed, or Python itself asks
        from difflib import get_close_matches

        near = " or ".join(map(repr, get_close_matches(name, __all__, n=2)))
        meant = f"; did you mean {near}?" if near else ""
        raise AttributeError(f"hybridctl has no {name!r}{meant}", name=name) from error
