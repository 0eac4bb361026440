"""Every exception of the package comes out of another process as it went in."""

import pickle
from importlib import import_module
from pkgutil import walk_packages

import pytest

import hybridctl
from hybridctl.base.errors import HybridctlError


def everything():
    """All exception classes that hybridctl defines, in whatever module."""
    for module in walk_packages(hybridctl.__path__, "hybridctl."):
        # The first would run; the second needs PyTorch, which is an extra.
        if not module.name.endswith(("__main__", "torch_functions")):
            import_module(module.name)
    found, waiting = [], [HybridctlError]
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].__subclasses__()
    return sorted(set(found), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", everything(), ids=lambda kind: kind.__name__)
def test_an_exception_survives_pickle_with_its_fields(kind):
    error = kind("what was wrong")
    for name in vars(error):
        setattr(error, name, (name, 1.5))
    error.time = 0.25
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "what was wrong"
    assert vars(again) == vars(error)
