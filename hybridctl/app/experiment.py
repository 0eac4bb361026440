"""The frame of an experiment: what it has to say, and all that is done with it.

An experiment keeps its settings, its physics and its claim; from its `Findings` this frame writes
config.json, runs, summary.json, checks.json, tables and figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from hybridctl.app.report import Tick, make_table, report_alive, show_progress
from hybridctl.base.code_reading import digest_sources
from hybridctl.base.errors import ClaimError
from hybridctl.base.fingerprint import digest_named_files
from hybridctl.base.journal import Journal
from hybridctl.base.run_folder import RunFolder
from hybridctl.hybrid.trajectory import HybridTrajectory

C = TypeVar("C")
Case = TypeVar("Case")
Found = TypeVar("Found")
CHECKS = "checks.json"


@dataclass(frozen=True)
class Check:
    """A claim in words, which holds where a value lies within bounds.

    Attributes:
        claim: The claim.
        value: What was found.
        most: Upper bound, itself allowed.
        least: Lower bound, itself allowed.
    """

    claim: str
    value: float
    most: float = float("inf")
    least: float = float("-inf")

    @property
    def holds(self) -> bool:
        """Whether the value lies within the bounds of the claim; false for NaN."""
        return bool(self.least <= self.value <= self.most)

    def record(self) -> dict[str, Any]:
        """Return the check as it stands in checks.json."""
        entries = {"claim": self.claim, "value": self.value, "least": self.least}
        return {**entries, "most": self.most, "holds": self.holds}


@dataclass(frozen=True, eq=False)
class Findings:
    """What an experiment has found.

    Attributes:
        summary: Content of summary.json.
        printed: Tables and lines, in their order.
        checks: Checks of its claims.
        runs: Trajectories to be saved as NAME.npz, by name.
        texts: Other text files, by name.
        draw: Function that writes the figures into a folder.
    """

    summary: Mapping[str, Any]
    printed: Sequence[Table | str] = ()
    checks: Sequence[Check] = ()
    runs: Mapping[str, HybridTrajectory] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    draw: Callable[[RunFolder], None] | None = None


def experiment(
    find: Callable[[C, Console], Findings],
) -> Callable[[C, RunFolder, Console], dict[str, Any]]:
    """Return `run(config, folder, console)` of an experiment.

    The seed in config.json is `config.seed`, if there is one.

    Args:
        find: Function of the configuration and the console that returns the findings. It prints
            nothing but its progress.

    Returns:
        A function that runs the experiment in a folder, and returns the content of summary.json.
    """

    @wraps(find)
    def run(config: C, folder: RunFolder, console: Console) -> dict[str, Any]:
        folder.write_configuration(config, seed=getattr(config, "seed", None))
        found = find(config, console)
        for name, trajectory in found.runs.items():
            trajectory.save(folder / f"{name}.npz")
        for name, text in found.texts.items():
            folder.write_text(name, text)
        folder.write_json("summary.json", found.summary)
        for part in found.printed:
            console.print(part)
        if found.checks:
            folder.write_json(CHECKS, {"checks": [check.record() for check in found.checks]})
            console.print(make_check_table(found.checks))
        if found.draw is not None and folder.draws:
            from hybridctl.app.plots import draw_in_parallel

            with report_alive(console, "drawing figures"), draw_in_parallel():
                found.draw(folder)
        return dict(found.summary)

    return run


def open_journal(path: Path, config: Any, **more: Any) -> Journal:
    """Return the journal in which a study keeps its runs, to go on from where it was interrupted.

    Args:
        path: The file.
        config: Settings of the study. Who works on it (`workers`, `dask`) may change.
        more: What else the runs depend on, by name.

    Raises:
        InputError: For a journal of other settings.
    """
    settings = {k: v for k, v in asdict(config).items() if k not in ("workers", "dask")}
    return Journal(path, {"settings": settings, **more}, digest_experiment(config, settings))


def digest_experiment(config: Any, settings: Any) -> dict[str, Any]:
    """Return digests of the code of an experiment, and of the files that settings name.

    Args:
        config: Settings of the experiment: its code is the module of their class, with what that
            imports outside of installed packages.
        settings: Text among them that is the path of a file counts with what the file holds.
    """
    module = sys.modules.get(type(config).__module__)
    source = None if module is None else digest_sources(module)
    return {"source": source, "files": dict(digest_named_files(settings))}


def study_cases(
    cases: Mapping[str, Case], study: Callable[[Case, Tick], Found], console: Console
) -> dict[str, Found]:
    """Study cases one after the other, and report the share that is done.

    Args:
        cases: Cases by name.
        study: Function of a case, and of a function to be called with the share of it that is done.
        console: Where progress is shown.

    Returns:
        What `study` returns of each case, by name.
    """
    with show_progress(console, 0.0, 1.0) as begin:
        return {name: study(case, begin(name)) for name, case in cases.items()}


def check_claims(folder: RunFolder) -> None:
    """Check that a run contradicts no claim of its experiment.

    Args:
        folder: Folder of the run. Without checks.json it has no claims.

    Raises:
        ClaimError: A claim does not hold.
    """
    if not (folder / CHECKS).is_file():
        return
    found = json.loads((folder / CHECKS).read_text(encoding="utf-8"))["checks"]
    failed = [check["claim"] for check in found if not check["holds"]]
    if failed:
        raise ClaimError(f"{len(failed)} of {len(found)} claims do not hold: {'; '.join(failed)}")


def make_check_table(checks: Sequence[Check]) -> Table:
    """Return a table of claims: what was found, what is expected, and whether they hold."""
    rows = [
        (check.claim, f"{check.value:.3g}", _format_range(check), "yes" if check.holds else "NO")
        for check in checks
    ]
    return make_table("Claims", ["claim", "found", "expected", "holds"], rows)


def _format_range(check: Check) -> str:
    if check.least == float("-inf"):
        return f"at most {check.most:.3g}"
    if check.most == float("inf"):
        return f"at least {check.least:.3g}"
    return f"{check.least:.3g} to {check.most:.3g}"
