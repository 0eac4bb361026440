"""The folder of a run, with its configuration, versions and results."""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import finalize

import numpy as np

from hybridctl import __version__
from hybridctl.base.errors import InputError
from hybridctl.base.files import atomic
from hybridctl.base.run_store import RunStore

CONFIGURATION = "config.json"
_PACKAGES = ("hybridctl", "numpy", "scipy", "pin", "casadi", "clarabel", "matplotlib")


class RunFolder:
    """A folder that holds one run: configuration, versions, seed, metrics, data and figures.

    Its marker lists what the run has written, see `run_store`. Only listed files are ever
    removed or overwritten. `write_text`, `write_json`, `files.atomic` and all writers of hybridctl
    list their files; a file that is written by other means is foreign to the next run.

    Life cycle: a `with` statement ends the run. A run that ends by an exception has failed, and the
    run that it has replaced comes back. Without a `with` statement the run ends with the object,
    and has failed if it has not written summary.json. A run that has failed is replaced by the
    next one in its folder.

    Attributes:
        experiment: Name of the run.
        path: The folder, as it was given.
        draws: Whether figures are wanted.
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
        inputs: Sequence[Path] = (),
    ) -> None:
        """Open a folder for a run.

        Args:
            experiment: Name of the run.
            path: Folder that is new, holds no visible files, or holds a run of the same kind. None
                for `runs/<experiment>-<date>-<time>`, numbered where another run has that name.
            kind: Command that makes the run. A run of another kind is never replaced.
            overwrite: Whether a run that has ended, or could be resumed, is replaced.
            resumes: Name of the journal from which such a run goes on.
            draws: Whether figures are wanted.
            inputs: Files that the run reads. A run that wrote one of them is not replaced.

        Raises:
            InputError: The folder holds something else, or another run goes on in it.
            FileWriteError: The folder cannot be written.
        """
        self.experiment = experiment
        self.draws = draws
        self.path = _new_folder(Path("runs"), experiment) if path is None else Path(path)
        header = {"kind": kind, "experiment": experiment, "version": __version__, "record": resumes}
        self._store = RunStore(self.path, header, overwrite=overwrite, inputs=inputs)
        self._end_left_over = finalize(self, self._store.close_left_over)

    def __enter__(self) -> RunFolder:
        self._store.guarded = True
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
        """The path of a file in the folder."""
        return self.path / name

    def write_configuration(self, config: Any, seed: int | None) -> None:
        """Write config.json: the resolved configuration, the seed, and all versions.

        Args:
            config: Configuration dataclass.
            seed: Seed of random numbers, None where there are none.

        Raises:
            InputError: The run is resumed and its config.json has other settings.
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
                "versions": versions(),
            },
        )

    def _check_resumed(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError if config.json has other settings; who computes may change."""
        try:
            stored = json.loads((self / CONFIGURATION).read_text())["configuration"]
        except (OSError, KeyError, TypeError, ValueError):  # stopped before it was written
            return
        asked = json.loads(json.dumps(plain(settings)))
        for name in ("workers", "dask"):
            stored.pop(name, None)
            asked.pop(name, None)
        if stored != asked:
            raise InputError(
                f"{self.path} holds a run with other settings: use them again to resume it, or "
                "another folder"
            )

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file; arrays become lists, and infinities and NaN become null."""
        self.write_text(name, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Write a text file."""
        with atomic(self / name) as temporary:
            temporary.write_text(content, encoding="utf-8", errors="backslashreplace")


def _new_folder(parent: Path, experiment: str) -> Path:
    """A folder of its own for a run that begins now, also beside others that begin now."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = parent / f"{experiment}-{stamp}"
    for k in itertools.count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            path = parent / f"{experiment}-{stamp}-{k}"
    return path


def named_files(values: Iterable[object]) -> list[Path]:
    """Return the files that are named by arguments and options of a command.

    Args:
        values: Values of the arguments and options, which may be tuples of values. A text or path
            counts if a regular file is there, from the working directory on.
    """
    flat = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
    found = []
    for one in flat:
        with suppress(OSError, ValueError):  # too long for a name, or with a null character
            if isinstance(one, str | Path) and Path(one).is_file():
                found.append(Path(one))
    return found


def versions() -> dict[str, str]:
    """Versions of Python, the platform, and the packages a result depends on."""
    found = {"python": sys.version.split()[0], "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: arrays as lists, infinities and NaN as None."""
    if isinstance(value, np.ndarray | np.bool_):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
