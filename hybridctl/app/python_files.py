"""Python files of users: experiments, and the modules of models, which run when they are loaded.

Nothing that computes is imported here, so that what a file does not need is not loaded with it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hybridctl.base import plugins
from hybridctl.base.errors import FileFormatError, InputError
from hybridctl.base.fingerprint import compute_fingerprint


def load_experiment(group: str, text: str) -> Any:
    """Return the module of an experiment.

    Args:
        group: Group of entry points, see `base.plugins`.
        text: Name in this group, or path of a Python file with the same parts.

    Raises:
        InputError: There is no such file, or an announced module cannot be imported.
        UnknownNameError: No package announces the name.
        FileFormatError: The file cannot be run.
    """
    if text.endswith(".py"):
        return import_file(Path(text), "experiment")
    return plugins.load_plugin(group, text)


def import_file(path: Path, subject: str) -> ModuleType:
    """Return the module in a file, which Python knows by its stem and a digest of its whole path.

    Two files of one stem are two modules. A file that is run again replaces its module. After an
    error `sys.modules` has no module of this name.

    Args:
        path: Python file, which runs.
        subject: What the file holds, for errors: "model" or "experiment".

    Raises:
        InputError: There is no such file.
        FileFormatError: Running it raises an error, or ends Python by `sys.exit`.
    """
    if not path.is_file():
        raise InputError(f"{subject} {str(path)!r} does not exist")
    # The same in every process: workers find what is pickled by the name of its module.
    name = f"hybridctl_model_{path.stem}_{compute_fingerprint(str(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses look up the module of their annotations there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise FileFormatError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
