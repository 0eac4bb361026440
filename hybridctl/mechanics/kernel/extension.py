"""Whether there is a compiled kernel of contact modes, and whether it is used.

The extension is built where hybridctl is installed, if there is a C compiler; wheels have it. The
environment variable `HYBRIDCTL_KERNEL=off` turns it off, for all systems that are made after it is
set, and so does `kernel="off"` for one system.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hybridctl.base.errors import HybridctlWarning
from hybridctl.symbolic.compiled_function import find_buffer_evaluator

KernelChoice = Literal["auto", "off"]
"""Whether contact modes use the compiled kernel where it covers them, or never."""

_SWITCH = "HYBRIDCTL_KERNEL"
"""Name of the environment variable; "off" turns the kernel off."""
_INTERFACE = 6
"""Number of the calls of the extension, `KERNEL_INTERFACE` of its header."""
_COPY_TIME = 5.0
"""Time in s by which a source is newer than the extension where both were only copied."""


def is_kernel_available() -> bool:
    """Return whether the extension is installed and not turned off."""
    return not _is_turned_off() and _find_fault() is None


def describe_kernel(compiler: str | None) -> str:
    """Return one line on whether contact modes run compiled, and how their terms are evaluated.

    Args:
        compiler: Path of the C compiler, None if there is none.
    """
    fault = _find_fault()
    if fault is not None:
        return f"contact kernel: none, {fault}"
    if _is_turned_off():
        return f"contact kernel: off by {_SWITCH}"
    if find_buffer_evaluator() is None:  # as on Windows, see `find_kernel_obstacle`
        return "contact kernel: none, this CasADi does not let compiled code call its functions"
    terms = f"machine code by {compiler}" if compiler else "interpreted, as there is no C compiler"
    return f"contact kernel: compiled, terms {terms}"


def _is_turned_off() -> bool:
    return os.environ.get(_SWITCH) == "off"


@cache
def _find_fault() -> str | None:
    """Return why there is no extension to use, in words; None if there is one.

    Warns of an extension that is older than its sources, as after an edit of an editable install.
    """
    try:
        module = import_module("hybridctl.mechanics.kernel._contact_kernel")
    except ImportError:  # there is none, or it was built for another Python
        return "this installation has no compiled extension"
    if getattr(module, "INTERFACE", None) != _INTERFACE:
        return "the compiled extension is of another version: install hybridctl anew"
    if _is_outdated(module):
        warnings.warn(
            "the compiled contact kernel is older than its C sources: install hybridctl anew "
            f"(pip install -e .), or set {_SWITCH}=off",
            HybridctlWarning,
            stacklevel=2,
        )
    return None


def _is_outdated(module: Any) -> bool:
    """Return whether a C source beside the extension is newer; wheels have no sources."""
    built = Path(module.__file__)
    sources = [path for kind in ("*.c", "*.h") for path in built.parent.glob(kind)]
    newest = max((path.stat().st_mtime for path in sources), default=0.0)
    return newest > built.stat().st_mtime + _COPY_TIME
