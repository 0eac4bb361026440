"""Options of the command line: those that are settings too, and the versions."""

from __future__ import annotations

import dataclasses
import json

import click


def as_settings(kind: type, experiment: str, **given: object) -> list[str]:
    """The options that were given, as settings `key=value` of the configuration `kind`.

    Raises `click.UsageError` for one that is no setting of it.
    """
    known = {f.name for f in dataclasses.fields(kind)}
    found = {name: value for name, value in given.items() if value is not None}
    for name in found:
        if name not in known:
            raise click.UsageError(f"{experiment} has no {name}, so --{name} does not apply")
    return [f"{name}={json.dumps(value)}" for name, value in found.items()]


def print_versions(context: click.Context) -> None:
    """Print the version and those of the libraries beneath, and end."""
    from hybridctl.app.report import versions

    found = versions()
    click.echo(f"hybridctl {found.pop('hybridctl')}")
    click.echo("\n".join(f"  {name} {version}" for name, version in found.items()))
    context.exit()
