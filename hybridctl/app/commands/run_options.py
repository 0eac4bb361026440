"""The options that all runs have, and what is done with them: settings, a folder, its page.

Nothing that computes is imported here, so that `--help` is quick.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from hybridctl.base.run_folder import RunFolder

PATH = click.Path(path_type=Path)
OUT = click.option(
    "--out",
    type=PATH,
    help="Folder for the results; an interrupted run of many parts goes on in its folder.",
)
OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Replace an earlier run of this command."
)
CONFIG = click.option("--config", type=PATH, help="JSON file with settings.")
SET = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting; may be repeated."
)
SHOW = click.option("--settings", "show", is_flag=True, help="Print the settings and stop.")
OPEN = click.option("--open", "look", is_flag=True, help="Show the page of the run in a browser.")


@dataclass(frozen=True)
class RunOptions:
    """The options that all runs have.

    Attributes:
        out: Folder for the results; None for a new one.
        overwrite: Whether an earlier run of the command in it is replaced.
        config: JSON file with settings.
        settings: Texts `key=value`, which win over the file, and over quick and full settings.
        look: Whether to show the page of the run in a browser.
        show: Whether to print the settings and stop.
    """

    out: Path | None
    overwrite: bool
    config: Path | None
    settings: tuple[str, ...]
    look: bool
    show: bool

    def configure(self, module: Any, quick: bool, *more: str, full: bool = False) -> Any:
        """Return the configuration of a module, or None where it was to be printed only.

        Args:
            module: Module of an experiment, with `Config`, `quick` and, for `full`, `full`.
            quick: Whether to take its quick settings.
            *more: Texts `key=value`, which win over `settings`.
            full: Whether to take the settings of the whole study.
        """
        from hybridctl.base.settings import change_unassigned, load_configuration

        assignments = (*self.settings, *more)
        found = load_configuration(module.Config, self.config, assignments)
        if full:
            found = change_unassigned(found, module.full, assignments)
        if quick:
            found = change_unassigned(found, module.quick, assignments)
        if self.show:
            echo_settings(found)
            return None
        return found

    def print_settings_if_asked(self, model: str) -> bool:
        """Print the settings of a model if they were asked for.

        Args:
            model: Text that names the model, see `find_source`.

        Returns:
            Whether they were asked for.
        """
        from hybridctl.app.models import find_source

        if self.show:
            echo_settings(find_source(model).configure(self.config, self.settings))
        return self.show

    def run(
        self,
        name: str,
        find: Callable[[RunFolder, Console], object],
        summary: str,
        claim: str | None = None,
        resumes: str | None = None,
    ) -> None:
        """Run a function in a folder, and leave its page.

        Args:
            name: Name of the run, and of its folder where none was named.
            find: Function of the folder and the console that does the work.
            summary: What the run shows, in a line.
            claim: Docstring of the experiment, for the page.
            resumes: Name of the journal from which an interrupted run goes on.

        Raises:
            ClaimError: The run has ended, and what was found contradicts a claim.
        """
        from hybridctl.app.commands.signals import advise_resuming
        from hybridctl.app.experiment import check_claims
        from hybridctl.app.page.build import publish_page
        from hybridctl.app.page.transcript import Transcript
        from hybridctl.base.run_folder import RunFolder

        context = click.get_current_context()
        kind, inputs = str(context.command.name), context.params
        options: Any = {"overwrite": self.overwrite, "resumes": resumes, "inputs": inputs}
        with RunFolder(name, self.out, kind=kind, **options) as folder:
            console = Transcript()
            gc.freeze()  # what imports have left would be gone through by every full collection
            with advise_resuming(folder.path, resumes):
                find(folder, console)
                publish_page(folder, console, summary, claim, look=self.look)
        check_claims(folder)


def add_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose first argument is `RunOptions`, from options that all runs have."""

    @wraps(command)
    def call_with_options(**given: Any) -> None:
        run_options = RunOptions(
            **{field.name: given.pop(field.name) for field in fields(RunOptions)}
        )
        command(run_options, **given)

    for option in (SHOW, OPEN, SET, CONFIG, OVERWRITE, OUT):
        call_with_options = option(call_with_options)
    return call_with_options


def echo_settings(configuration: Any) -> None:
    """Print a configuration as JSON."""
    click.echo(json.dumps(asdict(configuration), indent=2))
