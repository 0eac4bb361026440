"""Whether there is a compiled kernel of contact modes, and whether it is used.

The extension is built where hybridctl is installed, if there is a C compiler; wheels have it. The
environment variable `HYBRIDCTL_KERNEL=off` turns it off, for all systems that are made after it is
set, and so does `kernel="off"` for one system.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Literal

from hybridctl.symbolic.compiled_function import find_buffer_evaluator

KernelChoice = Literal["auto", "off"]
"""Whether contact modes use the compiled kernel where it covers them, or never."""

_SWITCH = "HYBRIDCTL_KERNEL"
"""Name of the environment variable; "off" turns the kernel off."""


def is_kernel_available() -> bool:
    """Return whether the extension is installed and not turned off."""
    return not _is_turned_off() and _is_installed()


def describe_kernel(compiler: str | None) -> str:
    """Return one line on whether contact modes run compiled, and how their terms are evaluated.

    Args:
        compiler: Path of the C compiler, None if there is none.
    """
    if not _is_installed():
        return "contact kernel: none, this installation has no compiled extension"
    if _is_turned_off():
        return f"contact kernel: off by {_SWITCH}"
    if find_buffer_evaluator() is None:  # as on Windows, see `find_kernel_obstacle`
        return "contact kernel: none, this CasADi does not let compiled code call its functions"
    terms = f"machine code by {compiler}" if compiler else "interpreted, as there is no C compiler"
    return f"contact kernel: compiled, terms {terms}"


def _is_turned_off() -> bool:
    return os.environ.get(_SWITCH) == "off"


@cache
def _is_installed() -> bool:
    try:
        import_module("hybridctl.mechanics.kernel._contact_kernel")
    except ImportError:  # there is none, or it was built for another Python
        return False
    return True
