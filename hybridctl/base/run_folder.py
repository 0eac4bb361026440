"""The folder of a run, with its configuration, versions and results."""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import sys
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import finalize

import numpy as np

from hybridctl import __version__
from hybridctl.base.checks import check_path
from hybridctl.base.errors import InputError
from hybridctl.base.files import atomic, find_named_files
from hybridctl.base.run_store import RunStore

CONFIGURATION = "config.json"
"""Name of the file with the resolved settings of a run."""
_PACKAGES = ("hybridctl", "numpy", "scipy", "pin", "casadi", "clarabel", "matplotlib")
"""Packages, as pip names them, on whose versions numbers or figures of a run depend."""
_EXECUTION_SETTINGS = ("workers", "dask")
"""Settings that say who computes, not what: they may change when a run is resumed."""


class RunFolder:
    """A folder that holds one run: configuration, versions, seed, metrics, data and figures.

    Its marker lists what the run has written, see `run_store`. Only listed files are ever removed
    or overwritten. `write_text`, `write_json`, `files.atomic` and all writers of hybridctl list
    their files; a file that is written by other means is foreign to the next run.

    Life cycle: a `with` statement ends the run. A run that ends by an exception has failed, and the
    run that it has replaced comes back. Without a `with` statement the run ends with the object,
    and has failed if it has not written summary.json. A run that has failed is replaced by the
    next one in its folder.

    Attributes:
        experiment: Name of the run.
        path: The folder, as it was given.
        draws: Whether figures are wanted.

    Args:
        experiment: Name of the run.
        path: Folder that is new, holds no visible files, or holds a run of the same kind. None for
            `runs/<experiment>-<date>-<time>`, numbered where another run has that name.
        kind: Command that makes the run. A run of another kind is never replaced.
        overwrite: Whether a run that has ended, or could be resumed, is replaced.
        resumes: Name of the journal from which such a run goes on; None if it cannot be resumed.
        draws: Whether figures are wanted.
        inputs: Settings in which texts and paths name the files that the run reads, see
            `files.find_named_files`. A run that wrote one of them is not replaced.

    Raises:
        InputError: The folder holds something else, or another run goes on in it.
        FileWriteError: The folder cannot be written.
    """

    def __init__(
        self,
        experiment: str,
        path: str | Path | None = None,
        *,
        kind: str = "simulate",
        overwrite: bool = False,
        resumes: str | None = None,
        draws: bool = True,
        inputs: Any = (),
    ) -> None:
        self.experiment = experiment
        self.draws = draws
        self.path = (
            _make_dated_folder(Path("runs"), experiment)
            if path is None
            else check_path("folder of the run", path)
        )
        header = {"kind": kind, "experiment": experiment, "version": __version__, "record": resumes}
        files = list(find_named_files(inputs).values())
        self._store = RunStore(self.path, header, overwrite=overwrite, inputs=files)
        self._end_left_over = finalize(self, self._store.close_left_over)

    def __enter__(self) -> RunFolder:
        self._store.in_with_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_left_over.detach()
        self._store.close(ended=error is None)

    def __truediv__(self, name: str) -> Path:
        """Return the path of a file in the folder, by its name."""
        return self.path / name

    def write_configuration(self, config: Any, seed: int | None) -> None:
        """Write config.json: the resolved configuration, the seed, and all versions.

        Args:
            config: Configuration dataclass.
            seed: Seed of random numbers; None if the run draws none.

        Raises:
            InputError: The run is resumed and its config.json has other settings.
            FileWriteError: The file cannot be written.
        """
        settings = dataclasses.asdict(config)
        if self._store.resumed:
            self._check_resumed(settings)
        self.write_json(
            CONFIGURATION,
            {
                "experiment": self.experiment,
                "seed": seed,
                "configuration": settings,
                "versions": collect_versions(),
            },
        )

    def _check_resumed(self, settings: Mapping[str, Any]) -> None:
        """Check that config.json has these settings, but for those in `_EXECUTION_SETTINGS`.

        Raises:
            InputError: It has others.
        """
        try:
            stored = json.loads((self / CONFIGURATION).read_text())["configuration"]
        except (OSError, KeyError, TypeError, ValueError):
            return  # the run was killed before the file was written, so no result depends on it
        asked = json.loads(json.dumps(_convert_to_json(settings)))
        for name in _EXECUTION_SETTINGS:
            stored.pop(name, None)
            asked.pop(name, None)
        if stored != asked:
            raise InputError(
                f"{self.path} holds a run with other settings: use them again to resume it, or "
                "another folder"
            )

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file.

        Args:
            name: Name of the file.
            content: Values for JSON. Arrays become lists, and infinities and NaN become null.

        Raises:
            FileWriteError: The file cannot be written, or is foreign.
        """
        self.write_text(
            name, json.dumps(_convert_to_json(content), indent=2, allow_nan=False) + "\n"
        )

    def write_text(self, name: str, content: str) -> None:
        """Write a text file in UTF-8.

        Args:
            name: Name of the file.
            content: The text. What UTF-8 does not hold, such as a broken file name, is escaped.

        Raises:
            FileWriteError: The file cannot be written, or is foreign.
        """
        with atomic(self / name) as temporary:
            temporary.write_text(content, encoding="utf-8", errors="backslashreplace")


def _make_dated_folder(parent: Path, experiment: str) -> Path:
    """Return the path of a new folder, which is made for a run that begins now.

    Runs that begin in the same second, also in other processes, get folders of their own.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = parent / f"{experiment}-{stamp}"
    for k in itertools.count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            path = parent / f"{experiment}-{stamp}-{k}"
    return path


def collect_versions() -> dict[str, str]:
    """Return the versions of Python, the platform, and the packages that a result depends on.

    A package that is not there has the version "not installed".
    """
    versions = {"python": sys.version.split()[0], "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _convert_to_json(value: Any) -> Any:
    """Return a value as JSON holds it: arrays as lists, infinities and NaN as None."""
    if isinstance(value, np.ndarray | np.bool_):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _convert_to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_to_json(v) for v in value]
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
